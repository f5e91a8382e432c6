"""What rollout.py claims: same seeds same trajectories, nothing lost or twice, failures said in one sentence."""
import asyncio
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import engines  # noqa: E402
import human as people  # noqa: E402
from conftest import read_lines, running  # noqa: E402
from human import NO_REPLY  # noqa: E402
import rollout  # noqa: E402
from records import fingerprint  # noqa: E402
from stub_server import Stub  # noqa: E402

NAMES = ["threshold", "rounding", "unit", "field", "order"]


def make_tasks(path, count):
    with open(path, "w") as f:
        for i in range(count):
            facts = [{"detail": w, "question": f"What is the {w}?",
                      "reply": f"The {w} is {i + j}."}
                     for j, w in enumerate(NAMES)]
            f.write(json.dumps({
                "task_id": f"backend-train-{i:05d}", "domain": "backend", "source": "test", "facts": facts,
                "note": "kept",
                "problem_description": f"Write f(x) number {i}: it adds up what counts.",
                "ground_truth": f"def f(x):\n    return {i}\n",
                "test_cases": {str(k): f"f({k})" for k in range(10)}}) + "\n")
    return path


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A folder with a tiny model, tasks, and trajectories of a few turns."""
    import train_policy
    folder = tmp_path_factory.mktemp("world")
    make_tasks(folder / "tasks.jsonl", 12)
    tasks = [json.loads(line) for line in open(folder / "tasks.jsonl")]
    texts = [t["problem_description"] + " ".join(f["question"] + " " + f["reply"] for f in t["facts"]) for t in tasks]
    texts += ["I WANT TO ANSWER:\ndef f(x):\n    return sum(x)"] * 5
    train_policy.make_tiny_model(folder / "model", texts, 400, 0)
    with open(folder / "trajectories.jsonl", "w") as f:
        for t in tasks:
            dialogue = [{"role": "user", "content": t["problem_description"]}]
            for fact in t["facts"][:3]:
                dialogue += [{"role": "assistant", "content": fact["question"]},
                             {"role": "user", "content": fact["reply"]}]
            dialogue.append({"role": "assistant", "content": "I WANT TO ANSWER:\ndef f(x):\n    return 1"})
            f.write(json.dumps({"task_id": t["task_id"], "sample": 0, "domain": "backend", "task": t,
                                "system": "Be brief.", "dialogue_history": dialogue,
                                "answer": "def f(x):\n    return 1", "finish": "answered", "reward": 0.5}) + "\n")
    return folder


def command(*arguments):
    return [sys.executable, str(ROOT / "rollout.py"), *map(str, arguments)]


def play(folder, *arguments, code=0, **more):
    keys = ("AGENT_API_KEY", "SIMULATOR_API_KEY", "JUDGE_API_KEY", "OPENAI_API_KEY")
    environment = {name: value for name, value in os.environ.items() if name not in keys} | {
        "OMP_NUM_THREADS": "1", **more.pop("environment", {})}
    done = subprocess.run(command(*arguments), cwd=folder, capture_output=True, text=True,
                          env=environment, **more)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def in_order(path):
    return sorted(open(path).read().splitlines(), key=lambda line: [json.loads(line)[k] for k in ("task_id", "sample")])


def local_args(engine, max_model_len=0):
    return Namespace(engine=engine, dtype="auto", max_model_len=max_model_len, gpu_memory_utilization=0.9,
                     tensor_parallel_size=1, data_parallel_size=1)


def local_engine(path, engine, max_model_len=0):
    return engines.make_engine(str(path), None, "agent", local_args(engine, max_model_len))


# ---- The protocol and the scripted human


@pytest.mark.parametrize("output, last, expected", [
    ("hm OUTPUT: no OUTPUT: What? ", False, ("What?", None, "max_turns")),
    ("I WANT TO ANSWER: x", False, ("I WANT TO ANSWER: x", "x", "answered")),
    ("def f(): pass", True, ("def f(): pass", "def f(): pass", "max_turns")),
    ("Here: I WANT TO ANSWER:\nx = 1\n", True, ("Here: I WANT TO ANSWER:\nx = 1", "x = 1", "answered")),
    ("hm OUTPUT: I WANT TO ANSWER:\nprint('OUTPUT:', 1)", False,
     ("I WANT TO ANSWER:\nprint('OUTPUT:', 1)", "print('OUTPUT:', 1)", "answered"))])
def test_only_what_follows_output_enters_the_dialogue(output, last, expected):
    class Agent:
        async def generate(self, messages, n, seed, temperature, max_tokens):
            return [engines.Response(output)]

    class Human:
        async def reply(self, task, dialogue, key, counts):
            return "reply", None
    args = Namespace(max_turns=1 if last else 2, best_of_n=1, seed=0, temperature=1.0, max_tokens=9)
    task = {"task_id": "a", "domain": "backend", "problem_description": "p"}
    record = asyncio.run(rollout.episode(args, Agent(), Human(), None, task, 0, "", args.max_turns))
    content, answer, finish = expected
    assert record["dialogue_history"][1]["content"] == content and record["finish"] == finish
    assert record["answer"] == (content if answer is None else answer)


# ---- The plain engine


def test_sampling_takes_only_end_tokens_from_the_models_settings(world, tmp_path):
    """The same texts with a generation_config.json that would change them, and as many as were asked for."""
    shutil.copytree(world / "model", tmp_path / "odd")
    path = tmp_path / "odd/generation_config.json"
    settings = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(settings | {
        "min_p": 0.9, "typical_p": 0.1, "suppress_tokens": list(range(4, 300)), "num_beams": 3, "num_return_sequences": 3,
        "no_repeat_ngram_size": 1, "stop_strings": ["e"], "do_sample": True, "top_k": 1, "repetition_penalty": 9.0}))

    async def texts(folder):
        engine = local_engine(folder, "transformers")
        responses = await engine.generate([{"role": "user", "content": "Hello"}], 3, 7, 1.0, 12)
        engine.close()
        return [response.ids for response in responses]

    plain = asyncio.run(texts(world / "model"))
    assert len(plain) == 3 and plain == asyncio.run(texts(tmp_path / "odd"))



@pytest.fixture(scope="module")
def engine(world):
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    made = local_engine(world / "model", "transformers")
    yield made
    made.close()


def ask(engine, prompts, n, width, max_tokens=12, temperature=1.0):
    """Outputs of each prompt, at most `width` in flight, in a random order."""
    order = list(range(len(prompts)))
    random.Random(width).shuffle(order)
    results = {}

    async def worker(todo):
        for i in todo:
            results[i] = await engine.generate(prompts[i], n, i, temperature, max_tokens)

    async def everything():
        todo = iter(order)
        await asyncio.gather(*(worker(todo) for _ in range(width)))

    asyncio.run(everything())
    return [results[i] for i in range(len(prompts))]


def prompts_of(world):
    found = []
    for r in read_lines(world / "trajectories.jsonl"):
        found += [rollout.messages_before("", r["dialogue_history"][:i]) for i in (1, 3, 5)]
    return found


def test_what_is_said_at_temperature_0_is_likeliest_by_a_plain_pass(world, engine):
    """Eight prompts at once, of three lengths, before and beside each other's end."""
    assert_likeliest(world, engine)


def assert_likeliest(world, engine, max_tokens=12):
    """By the whole model, after the same prompt as the training code makes."""
    import torch
    import lm
    from transformers import AutoModelForCausalLM
    plain, compared = AutoModelForCausalLM.from_pretrained(world / "model").eval(), 0
    results = ask(engine, prompts_of(world), 1, 8, max_tokens, 0.0)
    for messages, [out] in list(zip(prompts_of(world), results))[::3]:
        prompt = engines.encode_chat(engine.tokenizer, messages)
        [turn] = lm.tokenise(engine.tokenizer, [(messages, {"content": "x"}, None)])
        assert prompt == turn.ids[:turn.start].tolist()
        with torch.no_grad():
            logps = plain(torch.tensor([prompt + out.ids])).logits[0, len(prompt) - 1:-1].log_softmax(-1)
        said = logps.gather(1, torch.tensor([out.ids]).T)[:, 0]
        assert (logps.max(-1).values - said).max() < 1e-4
        compared += 1
    assert compared > 3


def test_the_same_batch_gives_the_same_and_samples_differ(world, engine):
    first, again = (ask(engine, prompts_of(world), 3, width) for width in (36, 36))
    assert [[o.ids for o in outs] for outs in first] == [[o.ids for o in outs] for outs in again]
    assert len({tuple(o.ids) for outs in first for o in outs}) > 2 * len(first)


def test_tokens_are_sampled_in_proportion_to_their_probabilities(world, engine):
    import torch
    messages = prompts_of(world)[0]
    for temperature in (1.0, 0.5):
        draws = Counter(o.ids[0] for o in ask(engine, [messages], 4000, 1, 1, temperature)[0])
        ids = torch.tensor([engines.encode_chat(engine.tokenizer, messages)])
        from transformers import AutoModelForCausalLM
        with torch.inference_mode():
            logits = AutoModelForCausalLM.from_pretrained(world / "model")(ids).logits[0, -1]
        p = (logits / temperature).softmax(-1).numpy()
        likely = np.argsort(-p)[:20]
        error = np.sqrt(p[likely] * (1 - p[likely]) / 4000)
        assert (np.abs(np.array([draws[int(t)] / 4000 for t in likely]) - p[likely]) < 4.5 * error + 1e-9).all()
    greedy = ask(engine, [messages], 3, 1, 1, 0.0)[0]
    assert {o.ids[0] for o in greedy} == {int(logits.argmax())}


def test_samples_end_with_the_end_of_turn_or_at_the_limit(world, engine):
    end = engine.tokenizer.eos_token_id
    for o in (o for outs in ask(engine, prompts_of(world), 8, 8, 20) for o in outs):
        assert len(o.ids) == 20 or o.ids[-1] == end
        assert end not in o.ids[:-1] and len(o.ids) == o.tokens and o.cut == (o.ids[-1] != end)


def test_a_prompt_longer_than_the_context_is_refused(world):
    small = local_engine(world / "model", "transformers", max_model_len=30)
    with pytest.raises(engines.Refused, match="does not fit the context of 30 tokens"):
        asyncio.run(small.generate([{"role": "user", "content": "much too long " * 30}], 1, 0, 1.0, 5))


def test_a_batch_holds_so_many_rows_and_requests_that_want_the_same(world, engine, monkeypatch):
    rows, generate = [], engine.model.generate
    monkeypatch.setattr(engine, "most_rows", 10)
    monkeypatch.setattr(engine.model, "generate", lambda **given: rows.append(len(given["input_ids"])) or generate(**given))
    results = ask(engine, prompts_of(world), 2, 36)
    assert len(results) == 36 and sum(rows) == 2 * 36 and max(rows) == 10


# ---- The command line


def test_half_a_surrogate_pair_ends_no_run_of_a_local_model(world, engine, tmp_path):
    """In a prompt, in a task, in its solution that a model human sees, and in a dialogue whose turns get candidates."""
    half = [{"role": "system", "content": "\ud83d"}, {"role": "user", "content": "Sum \ude00 the \ud83d field"}]
    whole = [{"role": "system", "content": "\ufffd"}, {"role": "user", "content": "Sum \ufffd the \ufffd field"}]
    [first], [second] = ask(engine, [half], 1, 1), ask(engine, [whole], 1, 1)
    assert [o.ids for o in first] == [o.ids for o in second]
    plays = {"tasks.jsonl": ["--simulator", world / "model", "--simulator-max-tokens", 8, "--max-turns", 2],
             "trajectories.jsonl": ["--candidates", 2]}
    for source, flags in plays.items():
        text = (world / source).read_text().replace("it adds up", "\\ud83d it adds up")
        (tmp_path / source).write_text(text.replace("return", "'\\ude00'; return").replace("What is", "\\ude00What is"))
        assert all("\ud83d" in record.get("task", record)["problem_description"] for record in read_lines(tmp_path / source))
        play(tmp_path, "--in", source, "--limit", 2, "--model", world / "model", "--engine", "transformers",
             "--max-tokens", 8, *flags, "--out", f"played-{source}")
    assert len(read_lines(tmp_path / "played-tasks.jsonl")) == 2 and len(read_lines(tmp_path / "played-trajectories.jsonl")) == 8


def test_the_same_settings_repeat_a_run_and_mend_a_torn_line(world, tmp_path):
    common = ["--in", world / "tasks.jsonl", "--model", world / "model", "--engine", "transformers", "--max-tokens", 15,
              "--max-turns", 4, "--samples", 2]
    play(tmp_path, *common, "--out", "a.jsonl")
    play(tmp_path, *common, "--out", "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    rows = read_lines(tmp_path / "a.jsonl")
    order = [(f"backend-train-{i:05d}", s) for s in range(2) for i in range(12)]
    assert [(r["task_id"], r["sample"]) for r in rows] == order
    sampled = [len(m["output_ids"]) for r in rows for m in r["dialogue_history"] if m["role"] == "assistant"]
    for r in rows:
        roles = [m["role"] for m in r["dialogue_history"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2) and len(roles) <= 8 and r["task"]["note"] == "kept"
        assert r["answer"] is not None and r["finish"] in ("answered", "max_turns")
        assert r["cost"]["simulator_calls"] == len(roles) // 2 - 1
        assert r["fingerprints"] == {"model": fingerprint(world / "model"), "simulator": "scripted"}
    metrics = json.loads((tmp_path / "a.rollout.json").read_text())
    assert metrics["records"] == 24 == sum(metrics.get(finish, 0) for finish in ("answered", "max_turns"))
    assert metrics["sampled_tokens"] == sum(sampled) == sum(r["cost"]["sampled_tokens"] for r in rows)
    torn = (tmp_path / "b.jsonl").read_bytes()
    (tmp_path / "b.jsonl").write_bytes(torn[:len(torn) * 2 // 3])
    play(tmp_path, *common, "--out", "b.jsonl", "--concurrency", 5)
    assert [(r["task_id"], r["sample"]) for r in read_lines(tmp_path / "b.jsonl")] == order
    # other settings are an error that names the difference, and nothing is written over
    before = (tmp_path / "b.jsonl").read_bytes()
    done = play(tmp_path, *common, "--out", "b.jsonl", "--temperature", 0.7, code=2)
    assert "temperature was 1.0, now 0.7" in done.stderr and (tmp_path / "b.jsonl").read_bytes() == before
    # the same input and the same model by other paths are the same
    (tmp_path / "linked.jsonl").symlink_to(world / "tasks.jsonl")
    (tmp_path / "linked").symlink_to(world / "model")
    common[1:4:2] = ["linked.jsonl", "linked"]
    assert "nothing left to do" in play(tmp_path, *common, "--out", "b.jsonl").stdout


def test_candidates_are_sampled_at_every_turn_and_continued(world, tmp_path):
    common = ["--in", world / "trajectories.jsonl", "--model", world / "model", "--engine", "transformers",
              "--max-tokens", 10, "--candidates", 4]
    play(tmp_path, *common, "--out", "c.jsonl", "--fraction", 0.5)
    rows = read_lines(tmp_path / "c.jsonl")
    assert ({(r["task_id"], r["turn"]) for r in rows}
            == {(f"backend-train-{i:05d}", t) for i in range(6) for t in range(4)})
    dialogue = read_lines(world / "trajectories.jsonl")[0]["dialogue_history"]
    for r in rows:
        assert len(r["candidates"]) == 4 and len({c["output"] for c in r["candidates"]}) > 1
        assert r["prompt"][0] == {"role": "system", "content": "Be brief."} and len(r["prompt"]) == 2 * r["turn"] + 2
    assert next(r for r in rows if r["task_id"].endswith("00000") and r["turn"] == 1)["prompt"][1:] == dialogue[:3]
    lines = (tmp_path / "c.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "c.jsonl").write_text("".join(lines[:9]) + lines[9][:50])
    play(tmp_path, *common, "--out", "c.jsonl", "--fraction", 0.5)
    again = read_lines(tmp_path / "c.jsonl")
    assert again[:9] == rows[:9] and [(r["task_id"], r["turn"]) for r in again] == [
        (r["task_id"], r["turn"]) for r in rows]
    for r in rows:
        assert r["cost"] == {"sampled_tokens": sum(len(c["output_ids"]) for c in r["candidates"])}
        assert r["model"] == str(world / "model") and r["fingerprints"] == {
            "model": fingerprint(world / "model")}


def test_candidates_at_the_turns_of_the_best_trajectories(world, tmp_path):
    first = read_lines(world / "trajectories.jsonl")[:2]
    rewards = {0: (0.2, 0.7, 0.7), 1: (0.0, None, 1.0)}    # of the samples of each task; null: it was not scored
    with open(tmp_path / "in.jsonl", "w") as f:
        f.writelines(json.dumps(first[task] | {"sample": sample, "reward": rewards[task][sample]}) + "\n"
                     for sample in range(3) for task in rewards)
    common = ["--in", "in.jsonl", "--model", world / "model", "--engine", "transformers", "--max-tokens", 5,
              "--candidates", 2, "--per-task"]
    for count, kept in ((1, [(0, 1), (1, 2)]), (2, [(1, 0), (0, 1), (0, 2), (1, 2)])):
        play(tmp_path, *common, count, "--out", f"{count}.jsonl")
        assert [(r["task_id"], r["sample"], r["turn"]) for r in read_lines(tmp_path / f"{count}.jsonl")] == [
            (first[task]["task_id"], sample, turn) for task, sample in kept for turn in range(4)]
    with open(tmp_path / "in.jsonl", "w") as f:
        f.write(json.dumps({k: v for k, v in first[0].items() if k != "reward"}) + "\n")
    assert "in.jsonl, line 1: it lacks the key 'reward'" in play(tmp_path, *common, 1, "--out", "c.jsonl", code=2).stderr


@pytest.mark.parametrize("count", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_kills_at_random_moments_lose_nothing_and_repeat_nothing(tmp_path, count):
    make_tasks(tmp_path / "tasks.jsonl", 30 * count)
    rng, killed, over = random.Random(count), tmp_path / "killed.jsonl", threading.Event()

    def latency(rng):
        if lines(killed) > 30 * count - 10:    # more than run at once: no run ends before it is killed
            over.wait()
        return rng.uniform(0, 0.1)

    with Stub(latency=latency) as stub:
        common = ["--in", "tasks.jsonl", "--model", stub.url, "--concurrency", 8]
        play(tmp_path, *common, "--out", "whole.jsonl")
        for _ in range(count):
            seen = len(stub.requests)
            with running(*command(*common, "--out", killed), cwd=tmp_path, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL) as process:
                while rng.random() > 0.02 and len(stub.requests) == seen and process.poll() is None:
                    time.sleep(0.02)  # until it plays, but sometimes earlier
                time.sleep(rng.uniform(0, 0.5))
            assert process.returncode == -signal.SIGKILL
        over.set()
        play(tmp_path, *common, "--out", killed)
    whole = in_order(tmp_path / "whole.jsonl")
    assert in_order(killed) == whole and len(whole) == 30 * count


def test_the_report_file_is_the_sign_that_the_output_is_finished(world, tmp_path):
    """Make goes by it: a run that was stopped leaves none, not even an old one; with nothing to do it stays."""
    output, report = tmp_path / "a.jsonl", tmp_path / "a.rollout.json"
    most, over = [math.inf], threading.Event()
    with Stub(latency=lambda rng: lines(output) >= most[0] and over.wait() and 0) as stub:    # then it falls silent
        common = ["--in", world / "tasks.jsonl", "--model", stub.url, "--out", "a.jsonl"]
        play(tmp_path, *common, "--limit", 2)
        assert json.loads(report.read_text())["records"] == 2
        for stop, limit in ((signal.SIGKILL, 7), (signal.SIGINT, 12)):
            before = lines(output)
            most[0] = before + 1
            with running(*command(*common, "--concurrency", 1, "--limit", limit), cwd=tmp_path, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL) as process:
                while lines(output) == before and process.poll() is None:
                    time.sleep(0.01)
                process.send_signal(stop)
                said = process.communicate()[0]
            assert process.returncode and lines(output) == before + 1 and not report.exists()
            assert (" records in " in said) == (stop == signal.SIGINT)
        most[0] = math.inf
        over.set()
        assert f"{12 - len(read_lines(output))} records in" in play(tmp_path, *common).stdout
        whole = json.loads(report.read_text())
        assert whole["records"] == 12
        assert "nothing left to do" in play(tmp_path, *common).stdout
        assert json.loads(report.read_text()) == whole
        report.unlink()
        play(tmp_path, *common)
        assert json.loads(report.read_text()) == whole


def test_rate_limits_drops_and_rubbish_are_tried_again(world, tmp_path):
    faults = ["429", "500", "reset", None, "empty choices", None, "no content", "torn", None, "html", None, "429"]
    with Stub(faults=faults) as stub:
        play(tmp_path, "--in", world / "tasks.jsonl", "--model", stub.url, "--out", "a.jsonl", "--concurrency", 4)
        asked = len(stub.requests)
    with Stub() as stub:
        play(tmp_path, "--in", world / "tasks.jsonl", "--model", stub.url, "--out", "b.jsonl", "--concurrency", 9)
    differ = [(a, b) for a, b in zip(in_order(tmp_path / "a.jsonl"), in_order(tmp_path / "b.jsonl"))
              if json.loads(a) | {"model": "", "fingerprints": ""} != json.loads(b) | {"model": "", "fingerprints": ""}]
    assert not differ and asked == len(stub.requests) + 8 and len(in_order(tmp_path / "b.jsonl")) == 12


def test_every_request_has_a_seed_of_its_own_that_does_not_change(world, tmp_path):
    seeds = []
    for run, concurrency in (("a", 1), ("b", 7)):
        with Stub() as stub:
            play(tmp_path, "--in", world / "tasks.jsonl", "--model", stub.url, "--model-name", "stub-1", "--samples", 2,
                 "--out", f"{run}.jsonl", "--concurrency", concurrency)
            seeds.append(sorted(r["seed"] for r in stub.requests))
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == len(seeds[0]) > 24


@pytest.mark.parametrize("source, more", [("tasks.jsonl", []), ("trajectories.jsonl", ["--candidates", 2])])
def test_the_sampling_flags_reach_the_agent(world, tmp_path, source, more):
    seeds = []
    for seed in (0, 1):
        with Stub() as stub:
            play(tmp_path, "--in", world / source, "--limit", 3, "--model", stub.url, "--out", f"{seed}.jsonl",
                 "--seed", seed, "--temperature", 0.7, "--max-tokens", 33, *more)
            assert {(r["temperature"], r["max_tokens"]) for r in stub.requests} == {(0.7, 33)}
            seeds.append({r["seed"] for r in stub.requests})
    assert seeds[0] and not seeds[0] & seeds[1]


def test_thoughts_are_shown_to_nobody(world, tmp_path):
    """What stands before OUTPUT: is kept, but neither the agent's next turn nor the human nor the judge reads it."""
    def agent(messages, rng):
        turn = sum(m["role"] == "assistant" for m in messages)
        number = rng.random()    # the judge is asked about different texts only
        said = f"What is {number}?" if turn < 2 else f"I WANT TO ANSWER:\ndef f(x):\n    return {number}"
        return f"SECRET thought. OUTPUT: {said}"
    with Stub(agent) as stub, Stub(lambda messages, rng: "A") as other:
        play(tmp_path, "--in", world / "tasks.jsonl", "--limit", 1, "--model", stub.url, "--simulator", other.url,
             "--best-of-n", 2, "--step-reward", "judge", "--judge", other.url, "--out", "a.jsonl")
        assert len(stub.requests) == 3 and len(other.requests) == 3 + 2
        assert "SECRET" not in json.dumps([r["messages"] for r in stub.requests + other.requests])
    [row] = read_lines(tmp_path / "a.jsonl")
    assert row["dialogue_history"][1]["output"].startswith("SECRET")


def test_an_output_is_not_continued_with_another_seed_or_other_tasks(world, tmp_path):
    tasks = make_tasks(tmp_path / "tasks.jsonl", 2)
    with Stub() as stub:
        common = ["--in", tasks, "--model", stub.url, "--out", "a.jsonl"]
        play(tmp_path, *common)
        whole = (tmp_path / "a.jsonl").read_bytes()
        assert "seed was 0, now 1" in play(tmp_path, *common, "--seed", 1, code=2).stderr
        tasks.write_text(tasks.read_text().replace("return 1", "return 2"))  # made again under the same names
        assert "content of --in was" in play(tmp_path, *common, code=2).stderr
        tasks.write_text("".join(tasks.read_text().splitlines(keepends=True)[:1]))  # a shortened input
        assert "content of --in was" in play(tmp_path, *common, code=2).stderr
    assert (tmp_path / "a.jsonl").read_bytes() == whole


@pytest.mark.parametrize("flags", [["--model"], ["--model", "same", "--simulator"],
                                   ["--model", "same", "--best-of-n", 2, "--step-reward", "judge", "--judge"],
                                   ["--model", "same", "--best-of-n", 2, "--critic"]])
def test_another_model_under_the_same_name_is_another_setting(world, tmp_path, monkeypatch, flags):
    """As the agent, the simulator, the judge and the critic."""
    monkeypatch.chdir(tmp_path)
    for name in ("same", "model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes((world / "model/model.safetensors").read_bytes())
    monkeypatch.setattr(sys, "argv", ["rollout.py", "--in", str(world / "tasks.jsonl"), *map(str, flags), "model"])

    def settings():
        return rollout.Output("a.jsonl", *rollout.settings_of(rollout.parse_args())).settings
    before, weights = settings(), tmp_path / "model/model.safetensors"
    assert settings() == before
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    changed = settings()
    assert [name for name in before if changed[name] != before[name]] == [f"content of {flags[-1]}"]


def test_a_refused_request_ends_its_episode_and_the_run_goes_on(world, tmp_path):
    common = ["--in", world / "tasks.jsonl", "--out", "a.jsonl", "--concurrency", 1]
    with Stub(faults=["refuse"] * 3) as stub:
        play(tmp_path, *common, "--model", stub.url, code=1)
    rows = read_lines(tmp_path / "a.jsonl")
    failed = [r for r in rows if r["finish"] == "error: HTTP 400: This model's maximum context length is 10 tokens."]
    assert len(rows) == 12 and len(failed) == 3 and all(r["answer"] is None for r in failed)
    with Stub() as stub:    # nothing is left to do, unless one asks for it; a second make must not score the failures
        again = play(tmp_path, *common, "--model", stub.url, code=1)
        assert "nothing left to do" in again.stdout and "3 failed, see above; add --retry-errors" in again.stderr
        assert not (tmp_path / "a.rollout.json").exists()
        play(tmp_path, *common, "--model", stub.url, "--retry-errors")
        assert (tmp_path / "a.rollout.json").exists()
    again = read_lines(tmp_path / "a.jsonl")
    assert not any(r["finish"].startswith("error") for r in again)
    assert [r for r in again if r["task_id"] not in {f["task_id"] for f in failed}] == [r for r in rows if r not in failed]


def test_failed_episodes_stay_in_the_file_until_they_are_played_again(world, tmp_path):
    """Else a run that cannot start, or that --limit bounds, would drop failures, and success would rise."""
    common = ["--in", world / "tasks.jsonl", "--out", "a.jsonl", "--concurrency", 1]
    with Stub(faults=["refuse"] * 3) as stub:
        play(tmp_path, *common, "--model", stub.url, code=1)
    before = (tmp_path / "a.jsonl").read_bytes()
    play(tmp_path, *common, "--model", stub.url, "--retry-errors", code=2)    # the server is gone
    assert (tmp_path / "a.jsonl").read_bytes() == before
    with Stub() as stub:
        play(tmp_path, *common, "--model", stub.url, "--retry-errors", "--limit", 1, code=1)    # two are left
    rows = read_lines(tmp_path / "a.jsonl")
    assert len(rows) == 12 and sum(r["finish"].startswith("error") for r in rows) == 2


def test_requests_that_are_all_refused_alike_stop_the_run(world, tmp_path):
    """The account, or a server that came back with a shorter context: no file full of zeros."""
    with Stub(always="refuse") as stub:
        done = play(tmp_path, "--in", world / "tasks.jsonl", "--model", stub.url, "--out", "a.jsonl", code=1)
    assert "8 requests in a row failed (HTTP 400: This model's maximum context" in done.stderr
    assert len(read_lines(tmp_path / "a.jsonl")) == 7
    with Stub(always="no credit") as stub:
        done = play(tmp_path, "--in", world / "tasks.jsonl", "--model", stub.url, "--out", "b.jsonl", code=1)
    assert "HTTP 429: You exceeded your current quota" in done.stderr and not (tmp_path / "b.jsonl").exists()


@pytest.mark.parametrize("message, finish, words", [
    ({"content": None, "refusal": "I cannot help with that."}, "stop", "error: I cannot help with that."),
    ({"content": None, "tool_calls": [{"id": "1"}]}, "tool_calls", "error: the model calls a tool"),
    ({"content": None}, "content_filter", "error: the reply was withheld by a content filter"),
    ({"content": None}, "stop", "error: malformed reply (TypeError: no content)"),
    ({"content": [{"type": "text", "text": "I WANT TO ANSWER: x"}]}, "stop", "answered"),
    ("error", None, "error: Provider returned error"), (403, None, "error: HTTP 403: flagged"),
    (500, None, "error: HTTP 500: upstream died")])
def test_an_odd_reply_is_its_episodes_error_and_the_others_go_on(world, tmp_path, message, finish, words):
    """One task of twelve meets it, in every attempt."""
    with Stub(odd=(lambda messages: "number 3" in messages[1]["content"], message, finish)) as stub:
        done = play(tmp_path, "--in", world / "tasks.jsonl", "--model", stub.url, "--out", "a.jsonl", "--retries", 1,
                    code=int(words != "answered"))
    rows = read_lines(tmp_path / "a.jsonl")
    assert len(rows) == 12
    odd = [r for r in rows if "number 3" in r["task"]["problem_description"]]
    assert odd and all(r["finish"].startswith(words) for r in odd), [r["finish"] for r in odd]
    assert all(r["finish"] == "answered" for r in rows if r not in odd), done.stderr


def test_a_server_that_is_busy_is_waited_for_as_long_as_it_says(world, tmp_path):
    with Stub(faults=["busy 3"]) as stub:
        play(tmp_path, "--in", world / "tasks.jsonl", "--limit", 1, "--model", stub.url, "--out", "a.jsonl", "--retries", 1)
    assert stub.requests[1]["time"] - stub.requests[0]["time"] >= 3


def test_a_busy_server_is_waited_for_longer_than_a_minute(monkeypatch):
    """For 130 s where it says so, and where it does not, longer than the minute of a quota."""
    waits, sleep = [], asyncio.sleep

    async def recorded(seconds):
        waits.append(seconds)
        await sleep(0)
    monkeypatch.setattr(rollout.asyncio, "sleep", recorded)
    for faults in (["busy 130"], ["500"] * 8):
        waits.clear()
        with Stub(faults=faults) as stub:
            engine = engines.ServerEngine(stub.url, "stub-1", "agent", Namespace(timeout=30, retries=8, model=stub.url))
            [response] = asyncio.run(engine.generate([{"role": "user", "content": "?"}], 1, 0, 1.0, 9))
        assert response.text and len(waits) == len(faults) and sum(waits) > 120


def test_a_refused_turn_of_candidates_is_left_out_and_asked_for_again(world, tmp_path):
    common = ["--in", world / "trajectories.jsonl", "--limit", 2, "--candidates", 2, "--out", "a.jsonl"]
    with Stub(odd=(lambda messages: "number 1:" in messages[1]["content"], 403, None)) as stub:
        done = play(tmp_path, *common, "--model", stub.url, code=1)
    assert done.stderr.count("is left out: HTTP 403: flagged by moderation") == 4
    assert "4 failed, see above; add --retry-errors to the same command to try them again" in done.stderr
    assert {r["task_id"] for r in read_lines(tmp_path / "a.jsonl")} == {"backend-train-00000"}
    with Stub() as stub:
        play(tmp_path, *common, "--model", stub.url, "--retry-errors")
    assert len(read_lines(tmp_path / "a.jsonl")) == 8


def test_a_refusal_of_one_prompt_does_not_slow_the_others(world, tmp_path):
    """That would bill each prompt n times."""
    with Stub(odd=(lambda messages: "number 0:" in messages[1]["content"], 403, None)) as stub:
        play(tmp_path, "--in", world / "trajectories.jsonl", "--limit", 4, "--candidates", 3, "--out", "a.jsonl",
             "--concurrency", 1, "--model", stub.url, code=1)
    assert len(stub.requests) == 4 * 2 + 3 * 4 and len(read_lines(tmp_path / "a.jsonl")) == 3 * 4


def test_any_refusal_of_several_choices_leads_to_one_at_a_time(world, tmp_path):
    with Stub(one_at_a_time=True) as stub:
        play(tmp_path, "--in", world / "trajectories.jsonl", "--limit", 2, "--model", stub.url, "--out", "a.jsonl",
             "--candidates", 3)
    rows = read_lines(tmp_path / "a.jsonl")
    assert rows and all(len(row["candidates"]) == 3 for row in rows)
    assert len({r["seed"] for r in stub.requests[1:]}) == 3 * len(rows), "every choice has a seed of its own"


def test_a_thought_that_names_the_mark_does_not_end_the_episode():
    from rollout import parse_response
    question = ("What is the threshold?", None)
    assert parse_response("so no I WANT TO ANSWER: yet.\nOUTPUT: What is the threshold?") == question
    program = "def f(x):\n    return x\n# said\nOUTPUT: 3"
    assert parse_response(f"I WANT TO ANSWER:\n{program}")[1] == program
    assert parse_response("I WANT TO ANSWER:\nOUTPUT:\n" * 2000) == ("", None)


def test_best_of_n_does_not_choose_a_thought_that_is_cut(world, tmp_path):
    """Nor does the judge see it."""
    def think(messages, rng):
        return f"What is {rng.choice('xyz')}?" if rng.random() < 0.6 else "secret " * 100
    with Stub(think, characters_a_token=1) as stub, Stub(lambda messages, rng: "A") as umpire:
        play(tmp_path, "--in", world / "tasks.jsonl", "--limit", 3, "--model", stub.url, "--out", "a.jsonl",
             "--max-turns", 3, "--max-tokens", 20, "--best-of-n", 4, "--step-reward", "judge", "--judge", umpire.url,
             "--thinks", "yes")
    rows = read_lines(tmp_path / "a.jsonl")
    assert sum(r.get("unfinished_actions", 0) for r in rows) > 0
    said = {m["content"] for r in rows for m in r["dialogue_history"] if m["role"] == "assistant"}
    assert said <= {"What is x?", "What is y?", "What is z?"}
    assert umpire.requests and not any("secret" in str(r["messages"]) for r in umpire.requests)


def test_a_server_without_room_for_a_longer_thought_stops_no_run(world, tmp_path):
    """Neither for the agent nor for the human. Nine candidates are nine refused requests in a row."""
    common = ["--in", world / "tasks.jsonl", "--limit", 1, "--max-turns", 2, "--thinks", "yes"]
    with Stub(lambda messages, rng: "x" * 600, characters_a_token=1, context=100) as stub, \
            Stub(lambda messages, rng: "What is x?") as agent:
        play(tmp_path, *common, "--model", stub.url, "--max-tokens", 20, "--out", "a.jsonl")
        play(tmp_path, *common, "--model", agent.url, "--simulator", stub.url, "--simulator-max-tokens", 20,
             "--out", "b.jsonl")
        play(tmp_path, "--in", world / "trajectories.jsonl", "--limit", 1, "--model", stub.url, "--max-tokens", 20,
             "--candidates", 9, "--out", "c.jsonl", "--thinks", "yes")
    for name, finish, counter, count in (("a", "max_turns", "actions", 2), ("b", "max_turns", "replies", 1),
                                         ("c", None, "actions", 9)):
        rows = read_lines(tmp_path / f"{name}.jsonl")
        assert {(row.get("finish"), row[f"unfinished_{counter}"]) for row in rows} == {(finish, count)}


@pytest.mark.parametrize("room, said, count", [(100, "What is x?", 0), (20, rollout.NO_ACTION, 1)])
def test_an_agents_reply_that_is_cut_in_its_thought_is_asked_for_again(world, tmp_path, room, said, count):
    """Raw thought never reaches the human. The first try has an eighth of the room."""
    thought = lambda messages, rng: "x" * 600 + "</think>What is x?"  # noqa: E731
    with Stub(thought, characters_a_token=1) as stub:
        play(tmp_path, "--in", world / "tasks.jsonl", "--limit", 1, "--model", stub.url, "--out", "a.jsonl",
             "--max-turns", 2, "--max-tokens", room, "--thinks", "yes")
    [row] = read_lines(tmp_path / "a.jsonl")
    assert {m["content"] for m in row["dialogue_history"] if m["role"] == "assistant"} == {said}
    assert row.get("unfinished_actions", 0) == 2 * count
    assert [r["max_tokens"] for r in stub.requests] == [room, 8 * room] * 2


def test_room_that_goes_into_a_hidden_thought_is_counted_and_said(world, tmp_path):
    """A reasoning API that spends its budget before the first word gives no text at all."""
    with Stub(odd=(lambda messages: True, {"content": None}, "length")) as stub:
        done = play(tmp_path, "--in", world / "tasks.jsonl", "--limit", 1, "--model", stub.url, "--out", "a.jsonl",
                    "--max-turns", 2)
    [row] = read_lines(tmp_path / "a.jsonl")
    assert [m["content"] for m in row["dialogue_history"][1::2]] == [rollout.NO_ACTION] * 2
    assert row["unfinished_actions"] == 2 and "2 unfinished actions" in done.stdout


def test_a_cut_thought_of_the_chat_template_is_unfinished(world, tmp_path):
    shutil.copytree(world / "model", tmp_path / "model")
    template = tmp_path / "model" / "chat_template.jinja"
    ask_once = lambda: ask(local_engine(tmp_path / "model", "transformers"), prompts_of(world)[:1], 4, 1, 3)[0]  # noqa: E731
    assert all(o.cut and not o.unfinished for o in ask_once())
    template.write_text(template.read_text() + "<think>\n")
    assert all(o.cut and o.unfinished for o in ask_once())


def test_every_server_gets_its_own_extra_body(world, tmp_path):
    human = lambda messages, rng: "I do not know."  # noqa: E731
    with Stub() as agent, Stub(human) as partner, Stub(lambda messages, rng: "A") as judge:
        done = play(tmp_path, "--in", world / "tasks.jsonl", "--limit", 3, "--out", "a.jsonl", "--best-of-n", 2,
                    "--step-reward", "judge", "--model", agent.url, "--simulator", partner.url, "--judge", judge.url,
                    "--extra-body", '{"top_k": 1}', "--simulator-extra-body", '{"top_k": 2}', "--judge-extra-body",
                    '{"top_k": 3}')
    assert partner.requests and judge.requests
    for number, stub in enumerate((agent, partner, judge), 1):
        assert {(r["top_k"], r["top_p"]) for r in stub.requests} == {(number, 1)}
    rows = read_lines(tmp_path / "a.jsonl")
    assert sum(r["cost"]["judge_tokens"] for r in rows) == 110 * len(judge.requests)
    assert f"{110 * len(judge.requests):,} judge tokens" in done.stdout


def test_a_request_names_what_decides_the_sampling(world, tmp_path):
    """What a request leaves out a vLLM server takes from the model's generation_config.json."""
    common = ["--in", world / "tasks.jsonl", "--limit", 1, "--out", "a.jsonl"]
    with Stub() as stub:
        play(tmp_path, *common, "--model", stub.url, "--extra-body", '{"top_k": -1}')
        assert all(r["top_p"] == 1 and r["top_k"] == -1 for r in stub.requests)
        said = play(tmp_path, *common, "--model", stub.url, "--extra-body", '{"top_k": 5}', code=2).stderr
    assert "extra_body was {'top_k': -1}, now {'top_k': 5}" in said


def test_the_human_on_the_agents_server_is_the_agents_model(world, tmp_path):
    with Stub(models=["one", "two"]) as stub:
        common = ["--in", world / "tasks.jsonl", "--limit", 2, "--out", "a.jsonl", "--model", stub.url, "--simulator",
                  stub.url]
        said = play(tmp_path, *common, code=2).stderr
        assert "needs the agent's name (--model-name, --simulator-name, --judge-name); its models are: one, two" in said
        said = play(tmp_path, *common, "--model-name", "two").stdout
    assert {r["model"] for r in stub.requests} == {"two"} and f"simulator: two at {stub.url}" in said


def test_the_humans_tokens_are_counted_per_record_and_over_all_runs(world, tmp_path):
    common = ["--in", world / "tasks.jsonl", "--out", "a.jsonl"]
    with Stub() as agent, Stub(lambda messages, rng: "I do not know.") as human:
        for limit in (2, 4):
            said = play(tmp_path, *common, "--limit", limit, "--model", agent.url, "--simulator", human.url).stdout
    rows = read_lines(tmp_path / "a.jsonl")
    assert all(r["cost"]["simulator_tokens"] == 110 * r["cost"]["simulator_calls"] for r in rows)
    total = sum(r["cost"]["simulator_tokens"] for r in rows)
    assert f"{total:,} simulator tokens" in said
    assert json.loads((tmp_path / "a.rollout.json").read_text())["simulator_tokens"] == total


@pytest.mark.parametrize("stub, code, words", [
    ({"key": "secret"}, 2, "rejected the key in the environment variable AGENT_API_KEY, which is not set"),
    ({"always": "unknown model"}, 2, "has no model 'stub-1'"), ({"always": "500"}, 1, "failed: HTTP 500"),
    ({"always": "reset"}, 1, "failed: "),
    ({"always": "html"}, 1, "malformed reply"), ({"always": "empty choices"}, 1, "no choices")])
def test_what_cannot_be_helped_stops_the_run_in_one_sentence(world, tmp_path, stub, code, words):
    with Stub(**stub) as server:
        done = play(tmp_path, "--in", world / "tasks.jsonl", "--model", server.url, "--out", "a.jsonl",
                    "--limit", 1, "--retries", 1, code=code)
    assert words in done.stdout + done.stderr
    assert len(server.requests) == 3 - code    # what is the user's mistake is not tried again


def test_a_run_goes_on_when_its_servers_come_back_elsewhere(world, tmp_path):
    """Another address with the same models is no other setting, neither the agent's nor the human's."""
    human = lambda messages, rng: "I do not know."  # noqa: E731
    common = ["--in", world / "tasks.jsonl", "--out", "a.jsonl"]
    for limit in (2, 3):
        with Stub() as agent, Stub(human) as other:
            play(tmp_path, *common, "--model", agent.url, "--simulator", other.url, "--limit", limit)
        assert len(read_lines(tmp_path / "a.jsonl")) == limit


@pytest.mark.parametrize("name", ["AGENT_MULTI_TURN", "AGENT_SINGLE_TURN", "HUMAN_OF_FUNCTIONS", "VISION_PROMPT",
                                  "NO_REPLY", "JUDGE_PROMPT"])
def test_another_prompt_is_another_setting(world, monkeypatch, name):
    """Whoever edits one and starts the same command again shall not mix two protocols in one file."""
    monkeypatch.setattr(sys, "argv", ["rollout.py", "--in", str(world / "tasks.jsonl"), "--model", str(world / "model")])
    args = rollout.parse_args()
    before, old = rollout.settings_of(args)[0], getattr(rollout, name)
    row = rollout.ENVIRONMENTS["backend"]
    monkeypatch.setitem(rollout.ENVIRONMENTS, "backend", rollout.Environment(
        *(old + " Be brief." if value == old else value for value in row)))
    monkeypatch.setattr(rollout, name, old + " Be brief.")
    after = rollout.settings_of(args)[0]
    assert [setting for setting in before if before[setting] != after[setting]] == ["prompts"]


def test_a_run_does_not_go_on_with_another_model_of_its_server(world, tmp_path):
    common = ["--in", world / "tasks.jsonl", "--out", "a.jsonl"]
    with Stub(models=["one"]) as stub:
        play(tmp_path, *common, "--model", stub.url, "--limit", 1)
        stub.models = ["two"]
        said = play(tmp_path, *common, "--model", stub.url, code=2).stderr
    assert "'model': 'one'" in said and "'model': 'two'" in said and len(read_lines(tmp_path / "a.jsonl")) == 1


@pytest.mark.parametrize("variable", ["AGENT_API_KEY", "OPENAI_API_KEY"])
def test_the_key_comes_from_the_environment_and_names_from_the_flags(world, tmp_path, variable):
    with Stub(key="secret", models=["one", "two"]) as stub:
        common = ["--in", world / "tasks.jsonl", "--limit", 2, "--model", stub.url, "--out", "a.jsonl"]
        done = play(tmp_path, *common, "--model-name", "two", environment={variable: "wrong"}, code=2)
        assert f"{stub.url} rejected the key in the environment variable {variable} (HTTP 401" in done.stderr
        play(tmp_path, *common, "--model-name", "two", environment={variable: "secret"})
        assert {r["model"] for r in stub.requests if r["headers"]["authorization"] == "Bearer secret"} == {"two"}
    row = read_lines(tmp_path / "a.jsonl")[0]
    assert row["model"] == "two" and row["fingerprints"]["model"] == "two"


def test_the_agents_key_never_goes_to_another_host(world, tmp_path):
    """A simulator or judge elsewhere needs a key of its own; on the agent's server it may use the agent's."""
    human = lambda messages, rng: "A. I do not know."  # noqa: E731
    common = ["--in", world / "tasks.jsonl", "--best-of-n", 2, "--step-reward", "judge"]
    with Stub(key="a") as agent, Stub(human) as other, Stub(human, key="s") as closed:
        everywhere = {"OPENAI_API_KEY": "a"}
        play(tmp_path, *common, "--model", agent.url, "--simulator", other.url, "--judge", other.url,
             "--out", "a.jsonl", environment=everywhere)
        assert other.requests and all("Bearer a" not in json.dumps(r["headers"]) for r in other.requests)
        done = play(tmp_path, *common, "--model", agent.url, "--simulator", closed.url, "--judge", other.url,
                    "--out", "b.jsonl", environment=everywhere, code=2)
        assert f"{closed.url} rejected the key in the environment variable SIMULATOR_API_KEY" in done.stderr
        play(tmp_path, *common, "--model", agent.url, "--simulator", closed.url, "--judge", agent.url,
             "--out", "c.jsonl", environment=everywhere | {"SIMULATOR_API_KEY": "s"})
        done = play(tmp_path, *common, "--model", agent.url, "--judge", closed.url, "--out", "d.jsonl",
                    environment=everywhere | {"JUDGE_API_KEY": "wrong"}, code=2)
        assert "rejected the key in the environment variable JUDGE_API_KEY (HTTP 401" in done.stderr
    assert all(f"{v}_API_KEY" in subprocess.run(command("--help"), capture_output=True, text=True).stdout
               for v in ("OPENAI", "AGENT", "SIMULATOR", "JUDGE"))


def test_a_server_that_rejects_the_temperature_stops_the_run(world, tmp_path):
    """No run is silently sampled at a server's default while settings.json says otherwise."""
    common = ["--in", world / "tasks.jsonl", "--limit", 2, "--out", "a.jsonl", "--temperature", 0.7]
    with Stub(o1=True) as stub:
        said = play(tmp_path, *common, "--model", stub.url, code=2).stderr
        assert "rejects a parameter, which null in --extra-body removes (HTTP 400: Unsupported value: 'temperature'" in said
        assert not (tmp_path / "a.jsonl").exists()
        play(tmp_path, *common, "--model", stub.url, "--extra-body", '{"temperature": null}')
    said = stub.requests[-1]
    assert all(r["finish"] == "answered" for r in read_lines(tmp_path / "a.jsonl"))
    assert said["max_completion_tokens"] == 1024 and "temperature" not in said
    assert json.loads((tmp_path / "a.settings.json").read_text())["extra_body"] == {"temperature": None}


def test_a_server_that_gives_one_choice_is_asked_again(world, tmp_path):
    with Stub(one_choice=True) as stub:
        play(tmp_path, "--in", world / "trajectories.jsonl", "--limit", 2, "--model", stub.url, "--out", "a.jsonl",
             "--candidates", 3)
        assert all(len(r["candidates"]) == 3 for r in read_lines(tmp_path / "a.jsonl")) and len(stub.requests) == 2 * 4 * 3
        assert len({r["seed"] for r in stub.requests}) == 2 * 4 * 3, "the same seed would give the same action"


def test_a_model_plays_the_human_in_at_most_400_characters(world, tmp_path):
    human = lambda messages, rng: (  # noqa: E731
        "It is def f(x): return 3" if rng.random() < 0.5 else "I do not know. " * 60)
    with Stub() as agent, Stub(human) as partner:
        play(tmp_path, "--in", world / "tasks.jsonl", "--model", agent.url, "--simulator", partner.url,
             "--out", "a.jsonl")
    rows = read_lines(tmp_path / "a.jsonl")
    replies = [m["content"] for r in rows for m in r["dialogue_history"][1:] if m["role"] == "user"]
    assert max(map(len, replies)) == 15 * 26 - 1, "26 whole sentences"
    assert sum(r.get("shortened_replies", 0) for r in rows) == sum(len(reply) > 300 for reply in replies) > 0
    said = partner.requests[0]
    assert said["temperature"] == 0 and "def f(x):\n    return" in said["messages"][0]["content"]
    assert all("return 3" not in m["content"] for r in agent.requests[:1] for m in r["messages"])


THOUGHT = "The reference says def f(x): return 7, so I must not tell that it is seven. "


@pytest.mark.parametrize("opened", ["<think>", ""])  # by the model, or by its chat template
@pytest.mark.parametrize("length, lost", [(10, False), (40, False), (400, True)])
def test_an_unfinished_thought_is_no_reply(world, tmp_path, opened, length, lost):
    """It is asked for again with more room; where that does not help, a neutral sentence stands in, and is counted."""
    human = lambda messages, rng: opened + THOUGHT * length + "</think>Ask about the rounding."  # noqa: E731
    with Stub() as agent, Stub(human, characters_a_token=4) as partner:
        play(tmp_path, "--in", world / "tasks.jsonl", "--model", agent.url, "--simulator", partner.url,
             "--out", "a.jsonl", "--thinks", "auto" if opened else "yes")
    rows, metrics = read_lines(tmp_path / "a.jsonl"), json.loads((tmp_path / "a.rollout.json").read_text())
    replies = [m["content"] for r in rows for m in r["dialogue_history"][1:] if m["role"] == "user"]
    assert set(replies) == {NO_REPLY if lost else "Ask about the rounding."}
    assert metrics["unfinished_replies"] == sum(r.get("unfinished_replies", 0) for r in rows) == len(replies) * lost
    asked = len(replies) * (1 if length == 10 else 2)
    assert len(partner.requests) == sum(r["cost"]["simulator_calls"] for r in rows) == asked
    assert {r["max_tokens"] for r in partner.requests} == ({256} if length == 10 else {256, 2048})


def test_a_cut_reply_of_a_local_human_that_does_not_think_is_a_reply():
    class Human:
        async def generate(self, messages, n, seed, temperature, max_tokens):
            return [engines.Response("The unit is 2, and", cut=True, thinks=False)]
    counts = Counter()
    assert asyncio.run(people.ask(Human(), "?", 0, 9, counts, "simulator")) == "The unit is 2, and"
    assert counts["simulator_calls"] == 0, "it was not asked again"


def test_single_turn_does_not_invite_questions(world, tmp_path):
    with Stub() as stub:
        play(tmp_path, "--in", world / "tasks.jsonl", "--model", stub.url, "--max-turns", 1, "--out", "a.jsonl")
    rows = read_lines(tmp_path / "a.jsonl")
    assert (all(len(r["dialogue_history"]) == 2 and r["answer"] for r in rows)
            and "Do not ask questions" in rows[0]["system"])


def test_the_judge_knocks_out_all_but_the_best(world, tmp_path):
    """A judge that prefers the larger number always ends with the largest of the N."""
    def judge(messages, rng):
        a, b = (int(part.split("return ")[1].split("\n")[0]) for part in messages[0]["content"].split("\n[")[1:])
        return "A" if a > b else "B"
    agent = lambda messages, rng: f"I WANT TO ANSWER:\ndef f(x):\n    return {rng.randrange(1000)}"  # noqa: E731
    with Stub(agent) as player, Stub(judge) as umpire:
        play(tmp_path, "--in", world / "tasks.jsonl", "--model", player.url, "--best-of-n", 5,
             "--step-reward", "judge", "--judge", umpire.url, "--out", "a.jsonl")
        assert len(umpire.requests) == 12 * 4
        # the same prompts; other seeds, so only the range is compared
        play(tmp_path, "--in", world / "tasks.jsonl", "--model", player.url, "--candidates", 5,
             "--out", "c.jsonl", "--in", tmp_path / "a.jsonl")
    best = [int(r["answer"].split("return ")[1]) for r in read_lines(tmp_path / "a.jsonl")]
    assert np.mean(best) > 700  # the expected largest of five is 833, of one 500


def judged(verdict, times):
    """([which of four actions a judge of one verdict prefers], how many comparisons it leaves undecided)"""
    outs, counts = [engines.Response(f"What about number {n}?") for n in range(4)], Counter()
    with Stub(lambda messages, rng: verdict) as stub:
        args = Namespace(seed=0, timeout=30, retries=0, judge=stub.url, judge_name="stub-1", model=stub.url,
                         domain="backend")
        judge = rollout.JudgeReward(args, rollout.Resources(args))
        task, messages = {"ground_truth": "g"}, [{"role": "user", "content": "u"}]

        async def winners():
            return [outs.index(await judge.best(task, messages, outs, ("task", n, 0), counts)) for n in range(times)]
        return asyncio.run(winners()), counts["undecided"]


def test_a_judge_that_prefers_a_place_prefers_no_sample():
    """Which of two actions stands first is drawn: who always says A ends with any of the four, not with the first."""
    best, undecided = judged("A", times=30)
    assert set(best) == {0, 1, 2, 3} and undecided == 0


@pytest.mark.parametrize("verdict, undecided", [
    ("B", 0), ("[B].", 0), ("Message B", 0), ("A, because B is late.", 0), ("A is better than B", 0), ("A\n", 0),
    ("A\n\nIt is better than B.", 0),
    ("A closer look: B", 3), ("Neither.", 3), ("b", 3), ("Both A and B.", 3)])
def test_what_is_no_verdict_of_a_judge_is_counted(verdict, undecided):
    assert judged(verdict, times=1)[1] == undecided


def test_undecided_comparisons_stand_in_the_record_and_in_the_report(world, tmp_path):
    with Stub(lambda messages, rng: f"What is {rng.random()}?") as player, Stub(lambda messages, rng: "b") as umpire:
        done = play(tmp_path, "--in", world / "tasks.jsonl", "--limit", 1, "--max-turns", 1, "--model", player.url,
                    "--best-of-n", 4, "--step-reward", "judge", "--judge", umpire.url, "--out", "a.jsonl")
    assert read_lines(tmp_path / "a.jsonl")[0]["undecided"] == 3 and "3 undecided" in done.stdout


def other_keys(world):
    """What else critic.json holds of a critic that was trained from the world's model."""
    return {"beta": 0.1, "pictures": False, "pack": "tree", "dtype": "float32",
            "reference_fingerprint": fingerprint(world / "model")}


@pytest.mark.parametrize("context, reward, head, advantage", [
    ("with-c", "critic", "log-ratio", "mean-per-turn"), ("without-c", "critic-without-c", "log-ratio", "mean-per-turn"),
    ("with-c", "critic-without-c", "log-ratio", "mean-per-turn"), ("with-c", "critic", "log-ratio", "sum"),
    ("with-c", "value", "value", "mean-per-turn")])
def test_best_of_n_plays_the_action_that_the_critic_scores_highest(world, tmp_path, engine, context, reward, head,
                                                                   advantage):
    """Beside one sequence at a time through the whole models: the critic and its reference, or the head."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    weights = ({"weight": torch.randn(128, generator=torch.manual_seed(0)).tolist(), "bias": [0.0]}
               if head == "value" else None)
    torch.manual_seed(5)
    LlamaForCausalLM(LlamaConfig.from_pretrained(world / "model")).save_pretrained(tmp_path / "critic")
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / "critic" / file).write_bytes((world / "model" / file).read_bytes())
    (tmp_path / "critic" / "critic.json").write_text(json.dumps(
        {"head": head, "context": context, "advantage": advantage, "reference": str(world / "model"),
         "weights": weights, **other_keys(world)}))
    args = Namespace(critic=str(tmp_path / "critic"), step_reward=reward, domain="backend")
    scorer = rollout.STEP_REWARDS[reward](args, rollout.Resources(args))
    task = read_lines(world / "tasks.jsonl")[0]
    messages = [{"role": "user", "content": task["problem_description"]}]
    outs = asyncio.run(engine.generate(messages, 6, 0, 1.0, 8))
    shown = messages if context == "without-c" or reward == "critic-without-c" else [
        {"role": "user", "content": f"In light that the final answer is: {task['ground_truth']}.\n\n"
                                    f"{task['problem_description']}"}]
    prompt, expected = engines.encode_chat(engine.tokenizer, shown), []
    critic, reference = (LlamaForCausalLM.from_pretrained(p).eval() for p in (tmp_path / "critic", world / "model"))
    for o in outs:
        ids = torch.tensor([prompt + o.ids])
        with torch.no_grad():
            if head == "value":
                hidden = critic.model(ids).last_hidden_state[0, -1]
                expected.append(float(hidden @ torch.tensor(weights["weight"])))
                continue
            a, b = (m(ids).logits[0, len(prompt) - 1:-1].log_softmax(-1).gather(1, torch.tensor([o.ids]).T)
                    for m in (critic, reference))
        expected.append(float((a - b).sum() if advantage == "sum" else (a - b).mean()))
    turns = [(messages, o.text, task["ground_truth"]) for o in outs]
    sampled = [(messages, {"output": o.text, "output_ids": o.ids}, task["ground_truth"]) for o in outs]
    assert np.allclose(scorer.critic.advantages(sampled), expected, atol=1e-4) and len(turns) == 6
    assert asyncio.run(scorer.best(task, messages, outs, (), Counter())) is outs[int(np.argmax(expected))]


def test_an_empty_action_and_one_that_does_not_fit_stop_no_best_of_n(world, tmp_path):
    """A server may give no text, and c stands in front of the turn that the critic scores."""
    shutil.copytree(world / "model", tmp_path / "critic")
    (tmp_path / "critic" / "critic.json").write_text(json.dumps(
        {"head": "log-ratio", "context": "with-c", "advantage": "mean-per-turn", "reference": str(world / "model"),
         **other_keys(world)}))
    args = Namespace(critic=str(tmp_path / "critic"), step_reward="critic", domain="backend")
    scorer = rollout.CriticReward(args, rollout.Resources(args))
    task, messages = read_lines(world / "tasks.jsonl")[0], [{"role": "user", "content": "Write f(x)."}]
    for outs in ([engines.Response(""), engines.Response("What is the unit?")],
                 [engines.Response("What is it? " * 2000), engines.Response("What is the unit?")]):
        assert asyncio.run(scorer.best(task, messages, outs, (), Counter())) in outs
    assert asyncio.run(scorer.best(task, messages, outs, (), Counter())) is outs[1]


def test_a_person_plays_the_human(world, tmp_path):
    agent = lambda messages, rng: (  # noqa: E731
        "What is it?" if len(messages) < 4 else "I WANT TO ANSWER:\ndef f(x):\n    return 0")
    with Stub(agent) as stub:
        done = play(tmp_path, "--in", world / "tasks.jsonl", "--limit", 1, "--model", stub.url, "--simulator", "human",
                    "--out", "a.jsonl", input="/show\nNothing, really.\n")
    [row] = read_lines(tmp_path / "a.jsonl")
    assert row["dialogue_history"][2]["content"] == "Nothing, really." and row["finish"] == "answered"
    assert "def f(x):\n    return 0" in done.stdout and "Assistant: What is it?" in done.stdout
    assert "next: python evaluate.py --in a.jsonl" in done.stdout


def test_a_person_sees_the_request_before_an_answer_at_once(world, tmp_path):
    with Stub(lambda messages, rng: "def f(x):\n    return 0") as stub:
        done = play(tmp_path, "--in", world / "tasks.jsonl", "--limit", 1, "--model", stub.url, "--simulator", "human",
                    "--max-turns", 1, "--out", "a.jsonl", input="")
    assert done.stdout.count("Human: Write f(x) number 0") == 1


def test_a_full_disk_stops_the_run_and_the_same_command_continues(world, tmp_path):
    make_tasks(tmp_path / "tasks.jsonl", 60)
    with Stub() as stub:
        common = ["--in", "tasks.jsonl", "--model", stub.url, "--out", "a.jsonl"]
        small = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))  # noqa: E731
        done = play(tmp_path, *common, code=1, preexec_fn=small)
        assert "all finished records are saved; make room" in done.stderr
        assert (tmp_path / "a.jsonl").stat().st_size <= 40_000
        play(tmp_path, *common)
    assert (Counter(r["task_id"] for r in read_lines(tmp_path / "a.jsonl"))
            == Counter(f"backend-train-{i:05d}" for i in range(60)))


@pytest.mark.parametrize("arguments, words", [
    (["--in", "none.jsonl"], "none.jsonl: no such file"), (["--max-turns", 0], "--max-turns: must be at least 1"),
    (["--model", "no/such/model"], "no/such/model"),
    (["--in", "twice.jsonl"], "line 2: task_id a appears twice, first in line 1"),
    (["--in", "factless.jsonl"], "line 1: the task has no 'facts'"), (["--in", "torn.jsonl"], "torn.jsonl, line 2")])
def test_bad_input_is_one_sentence(world, tmp_path, arguments, words):
    task = TASK | {"domain": "backend"}
    (tmp_path / "twice.jsonl").write_text((json.dumps(task) + "\n") * 2)
    (tmp_path / "factless.jsonl").write_text(json.dumps({k: task[k] for k in task if k != "facts"}) + "\n")
    (tmp_path / "torn.jsonl").write_text(json.dumps(task) + "\n" + json.dumps(task)[:30])
    done = play(tmp_path, "--in", world / "tasks.jsonl", "--model", world / "model", "--out", "a.jsonl",
                *arguments, code=2)
    assert words in done.stderr.splitlines()[-1] and not (tmp_path / "a.jsonl").exists()


TASK = {"task_id": "a", "problem_description": "p", "ground_truth": "g", "facts": [], "replies": {}, "details": {},
        "theme": "items"}
TOLD = [{"role": "user", "content": "p"}, {"role": "assistant", "content": "a"}]
EPISODE = {"task_id": "a", "sample": 0, "domain": "backend", "task": TASK, "dialogue_history": TOLD, "answer": "a",
           "finish": "answered", "note": "kept"}


def fact(**changed):
    return TASK | {"facts": [{"detail": "x", "question": "x?", "reply": "y"} | changed]}


@pytest.mark.parametrize("second, arguments, words", [
    (TASK | {"facts": [1, 2]}, (), "facts[0] must be an object"), (fact(reply=5), (), "facts[0].reply must be text"),
    (fact(question=[5]), (), "facts[0].question must be text"), (TASK | {"task_id": ["b"]}, (), "task_id must be text"),
    (TASK | {"problem_description": 5}, (), "problem_description must be text"),
    (TASK | {"domain": "weird"}, (), "domain 'weird'"),
    (TASK | {"domain": "frontend"}, (), "domain 'frontend', expected 'backend'"),
    (b'{"task_id": "\xff"}\n', (), "it must be an object"), (b"[" * 9999 + b"]" * 9999, (), "it must be an object"),
    (EPISODE | {"sample": [1]}, ("--candidates", 2), "sample must be a whole number"),
    (EPISODE | {"dialogue_history": [*TOLD[:1], TOLD[1] | {"content": None}]}, ("--candidates", 2), "dialogue_history"),
    (EPISODE | {"task": TASK | {"ground_truth": None}}, ("--candidates", 2), "task lacks the key 'ground_truth'")])
def test_values_of_another_type_are_one_sentence(tmp_path, second, arguments, words):
    second = second if isinstance(second, bytes) else json.dumps(second).encode() + b"\n"
    first = (EPISODE if arguments else fact()) | {"task_id": "first"}
    (tmp_path / "a.jsonl").write_bytes(json.dumps(first).encode() + b"\n" + second)
    done = play(tmp_path, "--in", "a.jsonl", "--model", "no/model", "--out", "b.jsonl", *arguments, code=2)
    assert words in done.stderr and "a.jsonl, line 2" in done.stderr and os.listdir(tmp_path) == ["a.jsonl"]


@pytest.mark.parametrize("arguments, words", [
    ("--in tasks.jsonl --out tasks.jsonl", "is the input"), ("--in tasks.jsonl --out linked.jsonl", "is the input"),
    ("--candidates 2 --in played.jsonl --out played.jsonl", "is the input"),
    ("--in tasks.jsonl --out old.jsonl --model nope", "nope: cannot load a tokenizer"),
    ("--in tasks.jsonl --out old.jsonl --model damaged", "damaged: transformers cannot load a causal language model"),
    ("--in tasks.jsonl --out old.jsonl --best-of-n 2 --critic nope", "nope"),
    ("--in tasks.jsonl --out folder.jsonl", "folder.jsonl cannot be written"),
    ("--in tasks.jsonl --out x", "must end in .jsonl"),
    ("--in tasks.jsonl --out /proc/a.jsonl", "/proc/a.jsonl cannot be written"),
    ("--extra-body [1]", "--extra-body: invalid json_object value"),
    ("--temperature nan", "--temperature: must be at least 0"), ("--timeout -1", "--timeout: must be above 0"),
    ("--candidates 1", "--candidates: must be at least 2"), ("--max-model-len -5", "--max-model-len: must be at least"),
    ("--simulator-max-tokens 0", "--simulator-max-tokens: must be at least 1"),
    ("--candidates 2 --temperature 0", "--temperature 0 gives the same action every time"),
    ("--samples 3 --temperature 0", "--temperature 0 gives the same action every time"),
    ("--continue 2 --candidates 4", "not allowed with argument"),
    ("--per-task 1", "--per-task does nothing without --candidates"),
    ("--step-reward critic", "--step-reward does nothing without --best-of-n above 1"),
    ("--judge-name x", "--judge-name does nothing without --best-of-n above 1"),
    ("--candidates 2 --critic x", "--critic does nothing with --candidates"),
    ("--candidates 2 --max-turns 10", "--max-turns does nothing with --candidates"),
    ("--continue 2 --samples 1", "--samples does nothing with --continue"),
    ("--in tasks.jsonl --timeout 9", "--timeout does nothing without a server"),
    ("--in tasks.jsonl --gpu-memory-utilization 0.5", "--gpu-memory-utilization does nothing without vLLM"),
    ("--in tasks.jsonl --best-of-n 2 --judge x", "--judge does nothing with --step-reward critic"),
    ("--in tasks.jsonl --best-of-n 2 --step-reward judge --critic x", "--critic does nothing with --step-reward judge"),
    ("--in tasks.jsonl --retry-errors", "--retry-errors does nothing with --overwrite"),
    ("--in tasks.jsonl --model http://localhost:1", "--engine does nothing without a local model")])
def test_what_cannot_run_takes_nothing_away(world, tmp_path, arguments, words):
    """Whatever --overwrite says: neither inputs nor what an earlier run wrote."""
    for name, source in (("tasks", "tasks"), ("played", "trajectories"), ("old", "trajectories")):
        (tmp_path / f"{name}.jsonl").write_bytes((world / f"{source}.jsonl").read_bytes())
    os.link(tmp_path / "tasks.jsonl", tmp_path / "linked.jsonl")
    for folder in ("folder.jsonl", "damaged"):
        (tmp_path / folder).mkdir()
    for file in (world / "model").iterdir():
        (tmp_path / "damaged" / file.name).write_bytes(file.read_bytes()[:1000 if "safetensors" in file.name else None])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = play(tmp_path, "--engine", "transformers", "--model", world / "model", *arguments.split(), "--overwrite",
                code=2)
    assert words in done.stderr.splitlines()[-1]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_last_lines_say_why_episodes_failed(world, tmp_path):
    with Stub(always="refuse") as stub:
        done = play(tmp_path, "--in", world / "tasks.jsonl", "--model", stub.url, "--run-name", "foo", "--limit", 5, code=1)
    assert done.stderr.count(" failed: HTTP 400: This model's maximum context length is 10 tokens.") == 5
    assert "5 failed, see above; add --retry-errors to the same command to try them again" in done.stderr
    assert done.stdout.splitlines()[-1] == "next: python evaluate.py --in runs/foo/train.trajectories.jsonl"


def test_candidates_carry_unknown_keys_and_the_episodes_cost(tmp_path):
    (tmp_path / "pages.jsonl").write_text(json.dumps(EPISODE | {
        "domain": "frontend", "reward": 1.0, "released_reward": 1.0, "choices": {}, "model": "m",
        "cost": {"sampled_tokens": 5, "simulator_calls": 2},
        "fingerprints": {"model": "m", "simulator": "scripted"}, "unfinished_replies": 1}) + "\n")
    with Stub() as stub:
        play(tmp_path, "--in", "pages.jsonl", "--domain", "frontend", "--model", stub.url, "--candidates", 2,
             "--out", "c.jsonl")
    [record] = read_lines(tmp_path / "c.jsonl")
    assert record["note"] == "kept" and record["domain"] == "frontend" and record["cost"] == {"sampled_tokens": 20}
    assert record["episode_cost"] == {"episodes": 1, "sampled_tokens": 5, "simulator_calls": 2}
    assert record["model"] == stub.url and record["fingerprints"] == {"model": "stub-1"}
    assert set(record) == {*EPISODE, "domain", "turn", "prompt", "candidates", "finish", "model", "cost",
                           "episode_cost", "fingerprints"} - {"dialogue_history", "answer", "finish"}


@pytest.mark.parametrize("wait", ["loading", "episodes", "batches"])
def test_ctrl_c_ends_in_one_line_and_leaves_whole_lines(world, tmp_path, wait):
    make_tasks(tmp_path / "tasks.jsonl", 300)
    over = threading.Event()
    with Stub(latency=lambda rng: (tmp_path / "a.jsonl").exists() and over.wait() and 0) as stub:    # then it is silent
        model = stub.url if wait == "episodes" else world / "model"
        with open(tmp_path / "said", "w") as said, running(*command(
                "--in", "tasks.jsonl", "--model", model, "--out", "a.jsonl",
                *([] if wait == "episodes" else ["--engine", "transformers"])), cwd=tmp_path, stderr=said) as process:
            maps = Path(f"/proc/{process.pid}/maps")  # what it has loaded
            while process.poll() is None and not {
                    "loading": lambda: "libtorch" in maps.read_text(),
                    "batches": lambda: "0/300" in (tmp_path / "said").read_text(),
                    "episodes": lambda: (tmp_path / "a.jsonl").exists()}[wait]():
                time.sleep(0.01)
            time.sleep(wait == "batches")  # from the bar to the middle of one
            process.send_signal(signal.SIGINT)
            process.wait()
        over.set()
    said = (tmp_path / "said").read_text()
    assert process.returncode == 130 and "Traceback" not in said
    assert not (tmp_path / "a.jsonl").exists() or (tmp_path / "a.jsonl").read_bytes().endswith(b"\n")


def test_the_file_runs_beside_copies_of_what_it_imports(world, tmp_path):
    for name in ("rollout.py", "engines.py", "server.py", "human.py", "records.py", "own_facts.py", "listener.toml",
                 *(path.name for path in ROOT.glob("listener*.py"))):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    with Stub() as stub:
        done = subprocess.run([sys.executable, "rollout.py", "--in", world / "tasks.jsonl", "--model", stub.url,
                               "--out", "a.jsonl"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(read_lines(tmp_path / "a.jsonl")) == 12
