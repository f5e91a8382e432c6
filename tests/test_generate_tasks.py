import ast
import http.server
import importlib
import itertools
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import generate_tasks as g  # noqa: E402
from sandbox import Sandbox  # noqa: E402

SIMPLE = ["total", "average", "best", "fee", "score", "code"]


def command(*flags, ok=True, cwd=None):
    r = subprocess.run([sys.executable, ROOT / "generate_tasks.py", *map(str, flags)], capture_output=True, text=True,
                       cwd=cwd)
    assert (r.returncode == 0) == ok, r.stderr + r.stdout
    return r


def records(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def words(text):
    return set(re.findall(r"\w+", text.lower()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One task of each family in each split."""
    out = tmp_path_factory.mktemp("tasks")
    n = len(g.FAMILIES)
    command("--train", n, "--val", n, "--test", n, "--out", out)
    return out


@pytest.fixture(scope="module")
def tasks(folder):
    return records(folder / "train.jsonl")


# --- tasks 

def test_each_wrong_value_of_each_detail_fails_a_call(tasks):
    items = []
    for t in tasks:
        family, values = t["source"].partition(":")[2], tuple(t["details"].values())
        assert t["ground_truth"] == g.source_code(family, values)
        items += [((t["task_id"], name, wrong), t, g.source_code(family, wrong))
                  for name, wrong in g.wrong_values(family, values)]
    assert len(items) > 15 * len(tasks)
    with Sandbox(workers=2) as box:
        for key, statuses in box.score_many(items):
            assert set(statuses.values()) != {"passed"}, key


def test_references_run_twice_the_same_and_are_not_constant(tasks):
    with Sandbox(workers=2) as box:
        for t in tasks:
            assert len(t["test_cases"]) == 10
            assert set(box.check_reference(t).values()) == {"ok"}, t["task_id"]
            outcomes = box.run(t["ground_truth"], list(t["test_cases"].values()))
            assert len({o.value for o in outcomes}) > 1, t["task_id"]


def test_every_family_and_every_split_is_there(folder):
    assert len(g.FAMILIES) >= 12
    for split in g.SPLITS:
        assert {t["source"] for t in records(folder / f"{split}.jsonl")} == {f"procedural:{f}" for f in g.FAMILIES}


def test_no_combination_is_in_two_splits_whatever_the_seed():
    offered = {s: {(f, v) for f in g.FAMILIES for v in g.combinations(f, s, 0)} for s in g.SPLITS}
    again = {s: {(f, v) for f in g.FAMILIES for v in g.combinations(f, s, 7)} for s in g.SPLITS}
    assert offered == again
    for a, b in itertools.combinations(g.SPLITS, 2):
        assert not offered[a] & offered[b]
    assert len(offered["train"]) >= 10500 and len(offered["val"]) >= 550 and len(offered["test"]) >= 1100
    for f in SIMPLE:
        assert sum(len(g.combinations(f, s, 0)) for s in g.SPLITS) >= 600


def test_the_output_follows_from_the_seed_and_a_cut_file_is_continued(tmp_path):
    flags = ["--families", "fee,quiz", "--train", 12, "--val", 2, "--test", 2]
    command(*flags, "--out", tmp_path / "a")
    command(*flags, "--out", tmp_path / "b")
    command(*flags, "--out", tmp_path / "c", "--seed", 1)
    whole = (tmp_path / "a/train.jsonl").read_bytes()
    assert (tmp_path / "b/train.jsonl").read_bytes() == whole != (tmp_path / "c/train.jsonl").read_bytes()
    (tmp_path / "b/train.jsonl").write_bytes(whole[:len(whole) // 2])
    command(*flags, "--out", tmp_path / "b")
    assert (tmp_path / "b/train.jsonl").read_bytes() == whole
    command(*flags[:2], "--train", 8, "--val", 2, "--test", 2, "--out", tmp_path / "d")
    assert whole.startswith((tmp_path / "d/train.jsonl").read_bytes())


def test_a_detail_that_no_call_can_show_is_rejected(monkeypatch):
    fee = g.FAMILIES["fee"]
    blind = {**fee, "details": fee["details"] + [g.detail("unused", "Unused?", "unused", "It is {}.", [1, 2])]}
    monkeypatch.setitem(g.FAMILIES, "blind", blind)
    values = tuple(next(iter(d["values"])) for d in blind["details"])
    assert g.check_backend(None, g.backend_draft("blind", values), 0)[1] == "no calls show blind.unused"


def test_calls_tell_values_apart_by_the_rule_of_the_sandbox(monkeypatch):
    """1 == 1.0 and NaN == NaN there: a detail that only changes these is not shown."""
    fee = g.FAMILIES["fee"]
    for one, other in ("1", "1.0"), ("float('nan')", "-float('nan')"):
        kind = g.detail("kind", "Which?", "which", "It is {}.", {"a": one, "b": other})
        family = {**fee, "details": fee["details"] + [kind], "code": fee["code"].replace("cost + $extra", "$kind")}
        family["code"] = family["code"].replace("return cost", "return [cost + $extra, $kind]")
        monkeypatch.setitem(g.FAMILIES, "odd", family)
        values = tuple(next(iter(d["values"])) for d in family["details"])
        g.namespace.cache_clear()
        assert g.check_backend(None, g.backend_draft("odd", values), 0)[1] == "no calls show odd.kind"


def test_the_usual_value_comes_first_more_often():
    first = g.combinations("fee", "train", 0)[:200]
    i = [d["name"] for d in g.FAMILIES["fee"]["details"]].index("extra")
    share = sum(v[i] == "5" for v in first) / 200
    assert 0.5 < share < 0.85  # 0.7 asked for, 0.25 if the values were alike


# --- facts 

def hits(facts, text):
    return [len(words(text) & set(f["keywords"])) for f in facts]


def test_own_questions_find_their_fact_and_foreign_questions_find_none(tasks):
    for t in tasks:
        own = [f["question"] for f in t["facts"]]
        for i, question in enumerate(own):
            h = hits(t["facts"], question)
            assert h[i] and [k for k, n in enumerate(h) if n == max(h)] == [i], (t["source"], question, h)
        for other in tasks:
            for f in other["facts"]:
                if f["question"] not in own:
                    assert not any(hits(t["facts"], f["question"])), (t["source"], f["question"])


def test_a_vague_request_leaves_the_purpose_to_be_asked(tasks):
    """The human tells it as one more fact; the scripted agent, which knows the reference, asks for it like a detail."""
    for t in tasks:
        family, values = t["source"].partition(":")[2], tuple(t["details"].values())
        vague = g.backend_draft(family, values, "vague")
        assert re.fullmatch("Write a function of (one argument|two arguments).", vague["problem_description"])
        (_, call), *_ = t["test_cases"].items()
        assert ("two" in vague["problem_description"]) == (len(ast.parse(call).body[0].value.args) == 2)
        assert vague["facts"][0]["reply"] == t["problem_description"] and vague["facts"][1:] == t["facts"]
        history, answer = g.demonstrate({**vague, "test_cases": t["test_cases"]}, [], 1, 0, 10, random.Random(0))
        assert {m["content"] for m in history[1::2]} > {f["question"] for f in vague["facts"]}
        assert history[1]["content"] == vague["facts"][0]["question"]
        assert answer == t["ground_truth"].strip()


def test_replies_are_short_and_keywords_single_words(tasks):
    for f in (f for t in tasks for f in t["facts"]):
        assert len(f["reply"]) <= 400 and f["reply"].endswith(".") and f["question"].endswith("?")
        assert all(re.fullmatch(r"[a-z]+", k) for k in f["keywords"])


# --- the simple families 

def pieces(text):
    """Words and numbers with their leading space, runs of other signs, line breaks with their indent."""
    return re.findall(r"\n[ \t]*| ?[^\W\d]+| ?\d+(?:\.\d+)?| ?[^\s\w]+|[^\S\n]+", text)


def test_simple_families_have_few_words_and_short_texts():
    vocabulary = set()
    for family in SIMPLE:
        f = g.FAMILIES[family]
        assert len(f["about"].split()) <= 25 and family in words(f["about"]) and 3 <= len(f["details"]) <= 4
        vocabulary |= set(pieces(f["about"]))
        for d in f["details"]:
            assert 4 <= len(d["question"].split()) <= 7
            vocabulary |= set(pieces(d["question"]))
            for v in d["values"]:
                reply = d["reply"].format(v)
                assert reply.rstrip('."').endswith(v), reply
                vocabulary |= set(pieces(reply))
        for values in g.combinations(family, "val", 0):
            code = g.source_code(family, values)
            assert 3 <= code.count("\n") <= 7 and len(pieces(code)) <= 75
            vocabulary |= set(pieces(code))
    assert len(vocabulary) < 250, len(vocabulary)


def test_simple_values_are_the_same_piece_in_the_reply_and_in_the_code():
    for family in SIMPLE:
        for d, i in zip(g.FAMILIES[family]["details"], itertools.count()):
            for values in g.combinations(family, "val", 0):
                if d["values"][values[i]] == values[i] and d["name"] != "case":
                    value = next(p for p in reversed(pieces(d["reply"].format(values[i]))) if p.strip() == values[i])
                    assert value in pieces(g.source_code(family, values)), (family, d["name"], value)


# --- demonstrations 

def demonstrations(folder, *flags):
    out = folder / ("demo" + "".join(map(str, flags)) + ".jsonl")
    command("--demonstrations", 400, "--in", folder / "train.jsonl", "--out", out, *flags)
    return records(out)


def exchanges(record):
    h = record["dialogue_history"]
    assert [m["role"] for m in h] == ["user", "assistant"] * (len(h) // 2) and len(h) <= 20
    return [(h[i]["content"], h[i + 1]["content"]) for i in range(1, len(h) - 1, 2)]


def test_with_ask_1_and_waste_0_every_detail_is_asked_once_and_the_answer_is_right(folder):
    for r in demonstrations(folder, "--ask", 1, "--waste", 0):
        facts = {f["question"]: f["reply"] for f in r["task"]["facts"]}
        assert dict(exchanges(r)) == facts and len(exchanges(r)) == len(facts)
        assert r["answer"] == r["task"]["ground_truth"].strip()
        assert r["dialogue_history"][-1]["content"] == f"I WANT TO ANSWER:\n{r['answer']}"


def test_demonstrations_ask_waste_and_guess_as_often_as_told(folder):
    made = demonstrations(folder, "--ask", 0.6, "--waste", 0.2)
    asked = needed = wasted = chances = full = right = blind_right = 0
    for r in made:
        facts = {f["question"]: f["reply"] for f in r["task"]["facts"]}
        said = exchanges(r)
        assert all(reply == facts.get(q, "I do not know.") for q, reply in said)
        known = {q for q, _ in said} & set(facts)
        asked, needed = asked + len(known), needed + len(facts)
        wasted, chances = wasted + len(said) - len(known), chances + len(said) + 1
        correct = r["answer"] == r["task"]["ground_truth"].strip()
        full += len(known) == len(facts)
        right += correct and len(known) == len(facts)
        blind_right += correct and len(known) < len(facts)
    assert abs(asked / needed - 0.6) < 0.05 and abs(wasted / chances - 0.2) < 0.05
    assert right == full  # who asked everything answers right
    assert 0 < blind_right < 0.25 * (len(made) - full)  # a guess is right now and then
    assert len({(r["task_id"], r["sample"]) for r in made}) == 400


def test_with_ask_0_nothing_is_asked_and_the_guesses_vary(folder):
    made = [r for r in demonstrations(folder, "--ask", 0, "--waste", 0) if r["task"]["source"] == "procedural:fee"]
    assert all(exchanges(r) == [] for r in made)
    assert len({r["answer"] for r in made}) > len(made) / 2


def test_demonstrations_end_within_the_turns_given_and_follow_from_the_seed(folder):
    made = demonstrations(folder, "--ask", 1, "--waste", 0.5, "--max-turns", 3)
    assert {len(r["dialogue_history"]) for r in made} == {6}
    assert any(r["answer"] == r["task"]["ground_truth"].strip() for r in made)
    other = demonstrations(folder, "--ask", 1, "--waste", 0.5, "--max-turns", 3, "--seed", 1)
    assert sum(a["dialogue_history"] == b["dialogue_history"] for a, b in zip(made, other)) < 40
    of_one = [json.dumps(r["dialogue_history"]) for r in made if r["task_id"] == made[0]["task_id"]]
    assert len(set(of_one)) > 0.9 * len(of_one), "the samples of a task differ"


def test_the_scripted_simulator_gives_these_replies(folder):
    scripted_reply = importlib.import_module("rollout").scripted_reply
    for r in demonstrations(folder, "--ask", 0.5, "--waste", 0.5):
        for question, reply in exchanges(r):
            assert scripted_reply(r["task"]["facts"], question) == reply, (r["task"]["source"], question)


# --- mistakes 

def test_mistakes_are_answered_in_one_sentence(folder, tmp_path):
    def refused(text, *flags):
        r = command(*flags, ok=False)
        assert r.returncode == 2 and text in r.stderr and "Traceback" not in r.stderr, r.stderr
    refused("there is no family 'nosuch'", "--families", "nosuch", "--out", tmp_path)
    n = len(g.FAMILIES)
    refused("seed was 0, now 1", "--train", n, "--val", n, "--test", n, "--seed", 1, "--out", folder)
    refused("there are no frontend tasks", "--domain", "frontend", "--source", "llm")
    refused("needs --in", "--source", "colbench")
    refused("--ask: must be at least 0 and at most 1", "--demonstrations", 5, "--ask", 2)
    refused("no such file", "--demonstrations", 5, "--in", tmp_path / "none.jsonl")
    refused("No such file", "--source", "colbench", "--in", tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"task_id": "x"}\n')
    refused("line 1", "--demonstrations", 5, "--in", tmp_path / "bad.jsonl")
    refused(f"already holds {n} records", "--train", 5, "--val", n, "--test", n, "--out", folder)
    (tmp_path / "other.jsonl").write_text(
        '{"task_id": "x", "problem_description": "p", "ground_truth": "g", "source": "colbench"}\n')
    refused("procedural task", "--demonstrations", 5, "--in", tmp_path / "other.jsonl", "--out", tmp_path / "d.jsonl")


def test_families_that_offer_fewer_tasks_than_asked_for_say_so(tmp_path):
    r = command("--families", "fee", "--train", 0, "--val", 99999, "--test", 0, "--out", tmp_path)
    offered = len(g.combinations("fee", "val", 0))
    assert len(records(tmp_path / "val.jsonl")) == offered and not (tmp_path / "test.jsonl").exists()
    assert f"only {offered} of the 99999 asked for" in r.stderr


@pytest.mark.parametrize("flags, flag", [
    (["--temperature", 0.5], "--temperature"), (["--run-name", "x"], "--run-name"), (["--timeout", 3], "--timeout"),
    (["--ask", 0.1], "--ask"), (["--split", "test"], "--split"), (["--in", "x"], "--in"),
    (["--demonstrations", 5, "--families", "fee"], "--families"), (["--demonstrations", 5, "--train", 9], "--train"),
    (["--source", "colbench", "--seed", 1], "--seed"), (["--source", "colbench", "--split", "test", "--train", 9],
                                                        "--train"),
    (["--source", "colbench", "--demonstrations", 3], "--source"),
    (["--domain", "frontend", "--source", "websight", "--split-by", "row", "--in", "x", "--val", 9], "--val"),
    (["--domain", "frontend", "--request", "vague"], "--request")])
def test_a_flag_that_would_do_nothing_is_refused(tmp_path, flags, flag):
    done = command(*flags, ok=False, cwd=tmp_path)
    assert done.returncode == 2 and flag in done.stderr.splitlines()[-1] and not list(tmp_path.iterdir()), done.stderr


def test_demonstrations_refuse_a_task_of_another_shape_and_leave_nothing_behind(folder, tmp_path):
    good = next(t for t in records(folder / "train.jsonl") if t["source"] == "procedural:fee")
    path = tmp_path / "a.jsonl"
    for changed, text in (
            ({"facts": [1]}, "facts"), ({"facts": []}, "facts"), ({"facts": [{"detail": ["x"]}]}, "facts"),
            ({"facts": good["facts"][1:]}, "facts"), ({"details": {}}, "details"), ({"source": 7}, "source 7"),
            ({"details": good["details"] | {"large": [1]}}, "details"), ({"ground_truth": None}, "ground_truth"),
            ({"domain": "frontend"}, "frontend")):
        path.write_text(json.dumps(good) + "\n" + json.dumps(good | {"task_id": "other"} | changed) + "\n")
        done = command("--demonstrations", 5, "--in", path, "--out", tmp_path / "b.jsonl", ok=False)
        assert done.returncode == 2 and "a.jsonl, line 2: " in done.stderr and text in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and list(tmp_path.iterdir()) == [path], done.stderr


def test_what_cannot_run_takes_nothing_away(folder, tmp_path):
    """Whatever --overwrite says: neither inputs nor what an earlier run wrote."""
    for path in folder.glob("*.jsonl"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / path.name).with_suffix(".settings.json").write_text("[1")
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "web").mkdir()
    (tmp_path / "web/val.jsonl").write_text('{"text": "An excerpt."}\n')
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    demonstrations = ["--demonstrations", 5, "--in", "train.jsonl"]
    for text, *flags in (
            ["train.jsonl is the input", *demonstrations, "--out", "train.jsonl", "--overwrite"],
            ["folder.jsonl is no file", *demonstrations, "--out", "folder.jsonl", "--overwrite"],
            ["must end in .jsonl", *demonstrations, "--out", "x"],
            ["settings.json: the settings", "--train", 19, "--out", "."],
            ["train.jsonl/train.jsonl cannot be written", "--train", 1, "--val", 0, "--test", 0, "--out",
             "train.jsonl"],
            ["no tasks are asked for", "--train", 0, "--val", 0, "--test", 0, "--out", "."],
            ["--workers: must be at least 1", "--workers", 0],
            ["--waste: must be at least 0", "--demonstrations", 1, "--waste", "nan"]):
        done = command(*flags, ok=False, cwd=tmp_path)
        assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr, (flags, done.stderr)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before, flags


def test_a_split_that_cannot_be_continued_keeps_the_others_from_being_changed(tmp_path):
    flags = ["--families", "fee", "--val", 0, "--out", tmp_path]
    command(*flags, "--train", 1, "--test", 3)
    before = (tmp_path / "train.jsonl").read_bytes()
    done = command(*flags, "--train", 5, "--test", 2, ok=False)
    assert "test.jsonl already holds 3" in done.stderr and (tmp_path / "train.jsonl").read_bytes() == before


def test_ctrl_c_is_quiet_and_leaves_whole_lines(tmp_path):
    process = subprocess.Popen([sys.executable, ROOT / "generate_tasks.py", "--out", "a"], cwd=tmp_path, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    out, deadline = tmp_path / "a/train.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline and not (out.exists() and out.stat().st_size):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "Traceback" not in said, said
    assert "the same command, without --overwrite, continues" in said and out.read_bytes().endswith(b"\n")


# --- released files

def released_task(code, name, description):
    return {"problem_description": description, "ground_truth": code,
            "test_cases": {f"test{i}": f"{name}({i})" for i in range(10)}}


RELEASED = [released_task("def f(x):\n    return x + 1\n", "f", "one more"),
            released_task("import math\ndef h(x):\n    return math.sqrt(x)\n", "h", "root"),  # fails if exec'd locally
            released_task("def k(x):\n    return 1 / (x - 3)\n", "k", "fails its own test")]


def write(path, records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def test_released_tasks_are_read_in_order_and_failing_references_counted(tmp_path):
    source = write(tmp_path / "released.jsonl", RELEASED + RELEASED[:1])
    r = command("--source", "colbench", "--split", "test", "--test", 3, "--in", source,
                "--out", tmp_path / "test.jsonl")
    made = records(tmp_path / "test.jsonl")
    assert [{k: t[k] for k in RELEASED[0]} for t in made] == RELEASED
    assert [t["task_id"] for t in made] == ["released-00001", "released-00002", "released-00003"]
    assert "1 of 3 references fail their own tests when run as modules\n  1 x error: ZeroDivisionError" in r.stdout
    assert "2 of 3 references fail their own tests when run as the released evaluation does" in r.stdout
    assert set(made[1]["reference_failures"]) == {"released"} and "reference_failures" not in made[0]
    assert made[2]["reference_failures"]["module"] == {"test3": "error: ZeroDivisionError"}


SYSTEM = "You are a helpful agent.\nWITHIN 10 rounds: {dialogue_history}"
LLAMA = ("<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
         "Today Date: 26 Jul 2024\n\n{}<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n")
CHATML = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def offline(task, template=LLAMA, system=SYSTEM, reply="I WANT TO ANSWER: x", answer="x", **more):
    """An offline trajectory in the released shape: a question, its reply, and a last turn."""
    said, prompt = [("user", task["problem_description"]), ("assistant", "How?"), ("user", "So."),
                    ("assistant", reply)], template.format(system, task["problem_description"])
    history = [{"role": role, "content": text} for role, text in said]
    history[1] |= {"input": prompt, "output": "I think.\nOUTPUT: How?"}
    history[3] |= {"input": prompt + "How? So.", "output": "I think.\nOUTPUT: " + reply}
    return {"task": task, "dialogue_history": history, "answer": answer, "reward": 0.25, **more}


def test_samples_of_released_trajectories_are_matched_over_blocks(tmp_path):
    lines = [offline(t, reply=f"I WANT TO ANSWER: {s}" if s else "no") for s in range(3) for t in RELEASED]
    source = write(tmp_path / "offline.jsonl", lines)
    out = tmp_path / "o.jsonl"
    r = command("--source", "colbench", "--in", source, "--out", out)
    whole, made = out.read_bytes(), records(out)
    assert "1 of 3 references fail their own tests when run as modules" in r.stdout
    ids, samples = [t["task_id"] for t in made], [t["sample"] for t in made]
    assert len(set(ids)) == 3 and ids == 3 * ids[:3] and samples == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for line, t in zip(lines, made):
        assert t["released_reward"] == line["reward"] and "reward" not in t and t["task"]["task_id"] == t["task_id"]
        assert t["dialogue_history"] == line["dialogue_history"] and t["task"].items() >= line["task"].items()
        assert t["finish"] == ("answered" if t["sample"] else "max_turns") and t["system"] == SYSTEM
        assert bool(t["task"].get("reference_failures")) == (line["task"] != RELEASED[0])
    out.write_bytes(whole[:-40])
    command("--source", "colbench", "--in", source, "--out", out)
    assert out.read_bytes() == whole
    write(tmp_path / "mixed.jsonl", lines[:1] + RELEASED)
    r = command("--source", "colbench", "--in", tmp_path / "mixed.jsonl", "--out", tmp_path / "m.jsonl", ok=False)
    assert r.returncode == 2 and "line 2: it lacks the key 'dialogue_history'" in r.stderr


def test_the_instructions_of_released_trajectories_come_from_the_text_after_the_chat_template(tmp_path):
    task = RELEASED[0]
    other = task | {"problem_description": "another request"}
    asked_twice = offline(task)
    asked_twice["dialogue_history"][3]["input"] = LLAMA.format("Other instructions.", task["problem_description"])
    without = offline(task)
    for turn in without["dialogue_history"]:
        turn.pop("input", None)
    cases = [(offline(task), SYSTEM), (offline(task, CHATML), ""), (offline(task, LLAMA.replace("{}", " {} ")), SYSTEM),
             (offline(task, LLAMA.replace("Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n", "")),
              SYSTEM),
             (offline(task, "no template") | {"system": "As given."}, "As given."),
             (without, ""), (asked_twice, ""),  # no input; two instructions
             (offline(task, "System: {}\nUser: {}\n"), ""),  # an unknown template
             (offline(task, LLAMA.replace("{}<|eot_id|><|start_header_id|>as", "{} More.<|eot_id|>as")), ""),
             (offline(task, LLAMA.replace("Today Date: 26 Jul 2024", "Today Date: 26 Jul 2024<|eot_id|>")), "")]
    moved = offline(other)
    moved["task"] = task  # the template's first message is not the dialogue's
    moved["dialogue_history"][0]["content"] = task["problem_description"]
    cases.append((moved, ""))
    source = write(tmp_path / "offline.jsonl", [case for case, _ in cases])
    r = command("--source", "colbench", "--in", source, "--out", tmp_path / "o.jsonl")
    for number, ((_, system), made) in enumerate(zip(cases, records(tmp_path / "o.jsonl"), strict=True)):
        assert made["system"] == system, number
    assert "kept as `system` for 4 of 11 trajectories" in r.stdout, r.stdout


def test_released_answers_with_the_mark_are_taken_apart_by_the_one_rule(tmp_path):
    code = 'def f(x):\n    print("OUTPUT:")\n    return x + 1'
    lines = [offline(RELEASED[0], answer=answer) for answer in (
        code, f"Thought. OUTPUT: I WANT TO ANSWER:\n{code}", f"I WANT TO ANSWER: {code}\n# I WANT TO ANSWER: no", None)]
    command("--source", "colbench", "--in", write(tmp_path / "a.jsonl", lines), "--out", tmp_path / "o.jsonl")
    assert [r["answer"] for r in records(tmp_path / "o.jsonl")] == [
        code, code, f"{code}\n# I WANT TO ANSWER: no", None]


def test_released_pages_are_read_without_test_cases_and_backend_tasks_are_not(tmp_path):
    pages = [{"problem_description": f"Page {n}", "ground_truth": f"<html>{n}</html>"} for n in range(3)]
    source = write(tmp_path / "pages.jsonl", pages)
    command("--domain", "frontend", "--source", "colbench", "--in", source, "--out", tmp_path / "o.jsonl", "--train", 2)
    assert [t["ground_truth"] for t in records(tmp_path / "o.jsonl")] == ["<html>0</html>", "<html>1</html>"]
    r = command("--source", "colbench", "--in", source, "--out", tmp_path / "b.jsonl", ok=False)
    assert r.returncode == 2 and "pages.jsonl, line 1: the key 'test_cases' is missing" in r.stderr


def test_the_same_file_by_another_path_is_the_same_input_and_a_changed_one_is_not(tmp_path):
    source = write(tmp_path / "a.jsonl", RELEASED)
    flags = ["--source", "colbench", "--out", tmp_path / "o.jsonl"]
    command(*flags, "--in", source)
    moved = write(tmp_path / "b.jsonl", RELEASED)
    command(*flags, "--in", moved)
    write(moved, RELEASED[:2])
    r = command(*flags, "--in", moved, ok=False)
    assert r.returncode == 2 and "content of --in was" in r.stderr


# --- WebSight: neither an idea nor a page occurs in two splits

def websight(tmp_path, rows, by="idea"):
    path = write(tmp_path / "rows.jsonl", [{"llm_generated_idea": idea, "text": page} for idea, page in rows])
    return {split: [(t["problem_description"], t["ground_truth"]) for t in g.websight_drafts(path, split, by)]
            for split in g.SPLITS}


def test_all_pages_of_an_idea_are_in_one_split(tmp_path):
    rows = [(f"Idea {n}", f"<html>{n} {k}</html>") for k in range(4) for n in range(50)]
    splits = websight(tmp_path, rows)
    assert sorted(row for split in splits.values() for row in split) == sorted(rows)
    ideas = [{idea for idea, _ in split} for split in splits.values()]
    assert all(ideas) and sum(map(len, ideas)) == 50, "an idea lies in two splits"


def test_a_page_of_two_ideas_is_in_one_split_that_of_its_first_row(tmp_path):
    rows = [(f"Idea {n}", f"<html>{n % 20}</html>") for n in range(200)]
    splits = websight(tmp_path, rows)
    pages = [{page for _, page in split} for split in splits.values()]
    assert len(set().union(*pages)) == sum(map(len, pages)) == 20
    for split, made in splits.items():
        assert all(g.split_of("websight", [f"Idea {page[6:-7]}"]) == split for _, page in made)


def test_split_by_row_cuts_at_row_ten_thousand_as_the_release_does(tmp_path):
    rows = [(f"Idea {n % 77}", f"<html>{n if n != 10_003 else 5}</html>") for n in range(10_010)]
    splits = websight(tmp_path, rows, by="row")
    assert splits["train"] == rows[:10_000] and not splits["val"]
    assert splits["test"] == rows[10_000:10_003] + rows[10_004:], "a page of train is in test"


# --- tasks from a language model

def response(description, code, calls):
    listed = "".join(f"{i + 1}. `{c}`\n" for i, c in enumerate(calls))
    return f"Sure.\nDESCRIPTION:\n{description}\nCODE:\n```python\n{code}\n```\nCALLS:\n{listed}"


def good(i):
    return response(f"Write tool{i}(x) that helps with topic {i} in our workshop number {i} and nothing else at all.",
                    f"def tool{i}(x):\n    return x * {i + 2}", [f"tool{i}({n})" for n in range(10)])


TEN = [f"f({n})" for n in range(10)]
BAD = {"not in the form asked for": "I will not.",
       "code does not parse": response("d", "def f(:", TEN),
       "more than 50 lines": response("d", "def f(x):\n" + "    x += 1\n" * 50 + "    return x", TEN),
       "fewer than ten different calls": response("d", "def f(x):\n    return x", TEN[:8] + TEN[:2]),
       "no call of a function of its own": response("d", "def f(x):\n    return x", [f"g({n})" for n in range(10)]),
       "reference: error: ZeroDivisionError": response("d", "def f(x):\n    return 1 / x", TEN),
       "reference: none": response("d", "def f(x):\n    pass", TEN),
       "reference: differs": response("d", "import random\ndef f(x):\n    return random.random()", TEN),
       "nested too deeply": response("d", "def f(x):\n    return x" + " + 1" * 1000, TEN),
       "calls alike": response("d", "def f(x):\n    return 7", TEN),
       "duplicate source": response("Something else.", 'def other(x):\n    """Doc."""\n    return x * 2',
                                    [f"other({n})" for n in range(10)]),
       "near-duplicate description": response(
           "Please write tool0(x) that helps with topic 0 in our workshop number 0 and nothing else at all.",
           "def tool0(x):\n    return x - 9", [f"tool0({n})" for n in range(10)])}


@pytest.fixture
def server():
    """An OpenAI-compatible server: each excerpt names its reply; one request in three meets a busy or gone server."""
    class Handler(http.server.BaseHTTPRequestHandler):
        requests, prompts = 0, []

        def answer(self, body, code=200):
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            self.answer({"data": [{"id": "stub"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            Handler.requests += 1
            if Handler.requests % 6 == 2:
                return self.answer({"error": {"message": "busy"}}, 429)
            if Handler.requests % 6 == 5:
                return self.connection.close()
            excerpt = re.search(r"<excerpt>\n(.*)\n</excerpt>", body["messages"][0]["content"], re.S)[1]
            Handler.prompts.append(excerpt)
            if excerpt == "refuse":
                return self.answer({"error": {"message": "no"}}, 400)
            text = good(int(excerpt[5:])) if excerpt.startswith("good ") else BAD[excerpt]
            self.answer({"choices": [{"message": {"content": text}}]})

        def log_message(self, *_):
            pass

    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=s.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{s.server_port}/v1", Handler
    s.shutdown()


def test_tasks_from_a_model_are_validated_and_the_yield_is_reported_by_reason(server, tmp_path):
    url, handler = server
    excerpts = [f"good {i}" for i in range(12)] + list(BAD) + ["refuse"]
    source = write(tmp_path / "excerpts.jsonl", [{"text": e} for e in excerpts])
    flags = ["--source", "llm", "--in", source, "--model", url, "--out", tmp_path / "out", "--train", 60, "--val", 0,
             "--test", 40, "--concurrency", 12]
    r = command(*flags)
    for reason in [*BAD, "request refused"]:
        assert f"  1 x {reason}\n" in r.stdout, (reason, r.stdout)
    assert "25 attempts on 25 excerpts, in" in r.stdout and "kept 12 (48.0%)" in r.stdout
    made = {s: records(tmp_path / f"out/{s}.jsonl") for s in ("train", "test")}
    assert {t["problem_description"] for s in made for t in made[s]} == {
        g.parse_task(good(i))[0]["problem_description"] for i in range(12)}
    assert made["train"] and made["test"] and not (tmp_path / "out/val.jsonl").exists()
    assert sorted(handler.prompts) == sorted(excerpts)  # nothing lost, nothing asked twice in spite of the failures

    # a kill: an attempt is written, its task and the rest are not
    whole = {s: (tmp_path / f"out/{s}.jsonl").read_bytes() for s in ("train", "test", "attempts")}
    made = records(tmp_path / "out/attempts.jsonl")
    last = [a["verdict"] for a in made].index("kept", 3)
    lost = made[last]
    write(tmp_path / "out/attempts.jsonl", made[:last + 1])
    before = {(a["excerpt"], a["sample"]) for a in made[:last]}
    for split in ("train", "test"):
        kept = [t for t in records(tmp_path / f"out/{split}.jsonl") if (t["excerpt"], t["sample"]) in before]
        write(tmp_path / f"out/{split}.jsonl", kept)
    handler.prompts.clear()
    command(*flags)
    for name, text in whole.items():
        assert (tmp_path / f"out/{name}.jsonl").read_bytes() == text, name
    assert excerpts[lost["excerpt"]] not in handler.prompts and len(handler.prompts) == len(excerpts) - last - 1
    handler.prompts.clear()
    assert "nothing left to ask" in command(*flags).stdout and not handler.prompts
    r = command(*flags, "--temperature", 0.5, ok=False)
    assert r.returncode == 2 and "temperature was 1.0, now 0.5" in r.stderr


def test_a_response_of_white_space_is_read_in_no_time():
    begun = time.process_time()
    assert g.parse_task("DESCRIPTION:" + "\n" * 20_000) == (None, "not in the form asked for")
    assert time.process_time() - begun < 5, "it was cubic: 6,000 took minutes"


def test_no_more_is_asked_for_than_is_wanted(server, tmp_path):
    """However many requests are under way: the attempts end with the last task that was asked for."""
    url, handler = server
    source = write(tmp_path / "excerpts.jsonl", [{"text": f"good {i:02d} and more"} for i in range(40)])
    command("--source", "llm", "--in", source, "--model", url, "--out", tmp_path / "out", "--train", 7, "--val", 0,
            "--test", 0, "--excerpt-length", 7)
    assert len(records(tmp_path / "out/train.jsonl")) == len(records(tmp_path / "out/attempts.jsonl")) == 7
    assert len(handler.prompts) == 7


def test_a_server_that_is_gone_stops_the_run_in_one_sentence(tmp_path):
    source = write(tmp_path / "e.jsonl", [{"text": "one"}, {"text": "two"}])
    r = command("--source", "llm", "--in", source, "--model", "http://127.0.0.1:9/v1", "--model-name", "m",
                "--out", tmp_path / "out", "--retries", 0, ok=False)
    assert r.returncode == 1 and "what was made so far is kept" in r.stderr and "Traceback" not in r.stderr
    assert not list(tmp_path.glob("out/*"))


def test_a_model_that_cannot_be_loaded_takes_nothing_away(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    source = write(tmp_path / "e.jsonl", [{"text": "An excerpt."}])
    write(tmp_path / "train.jsonl", [{"excerpt": 0}])
    flags = ["--source", "llm", "--in", source, "--out", tmp_path, "--overwrite", "--engine",
             "transformers", "--model"]
    for text, model in ("nope", "nope"), ("train.jsonl is the input", tmp_path / "train.jsonl"):
        r = command(*flags, model, ok=False)
        assert r.returncode in (1, 2) and text in r.stderr and "Traceback" not in r.stderr, r.stderr
    assert records(tmp_path / "train.jsonl") == [{"excerpt": 0}]


def test_the_signature_is_named_in_the_description():
    named, _ = g.parse_task(good(3))
    assert named["problem_description"].count("tool3(") == 1
    silent, _ = g.parse_task(response("Do it.", "def f(x, y=2):\n    return x", TEN))
    assert silent["problem_description"] == "Do it. Signature: f(x, y=2)."
