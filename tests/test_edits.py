"""Changing one thing touches one place: each edit here is made on a copy of the scripts, counted, and run.

These are the edits that a researcher makes first. A test fails when an edit needs more lines than it should, or when a
check elsewhere stands in the way of what was edited."""

import difflib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import lm  # noqa: E402
import train_critic  # noqa: E402
import train_policy  # noqa: E402
from conftest import call, metrics  # noqa: E402
from stub_server import Stub  # noqa: E402


class Copy:
    """The scripts in a folder of their own, to be edited and run."""

    def __init__(self, folder):
        self.folder = folder
        for path in [*ROOT.glob("*.py"), ROOT / "report.html", ROOT / "listener.toml"]:
            shutil.copy(path, folder)

    def edit(self, script, *changes):
        """Replace each (old, new), where old stands once; returns how many lines changed (edited ones count once)."""
        path = self.folder / script
        before = after = path.read_text(encoding="utf-8")
        for old, new in changes:
            assert after.count(old) == 1, f"{old!r} stands {after.count(old)} times in {script}"
            after = after.replace(old, new)
        path.write_text(after, encoding="utf-8")
        marks = [line[0] for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line.strip("+- ")]
        return max(marks.count("+"), marks.count("-"))

    def write(self, name, records):
        (self.folder / name).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")

    def read(self, name):
        return [json.loads(line) for line in (self.folder / name).read_text(encoding="utf-8").splitlines()]

    def run(self, *words):
        done = subprocess.run([sys.executable, *map(str, words)], cwd=self.folder, capture_output=True, text=True,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def copy(tmp_path):
    return Copy(tmp_path)


def trajectory(task, sample, reward):
    truth = f"def f(x):\n    return x + {task}"
    return {"task_id": f"t-{task}", "sample": sample, "domain": "backend", "finish": "answered", "reward": reward,
            "task": {"task_id": f"t-{task}", "problem_description": f"Write f(x), number {task}.",
                     "ground_truth": truth, "test_cases": {str(n): f"f({n})" for n in range(10)}},
            "answer": truth if reward == 1 else "def f(x):\n    return x",
            "dialogue_history": [
                {"role": "user", "content": f"Write f(x), number {task}."},
                {"role": "assistant", "content": "How much is added?" if sample % 2 else "Is it rounded?"},
                {"role": "user", "content": f"I add {task}."},
                {"role": "assistant", "content": f"I WANT TO ANSWER:\n{truth}"}]}


SCORED = [trajectory(task, sample, reward) for task in range(1, 7)
          for sample, reward in enumerate((1.0, 0.6, 0.2, 0.0))]
TRAIN = ["--epochs", "1", "--max-steps", "2", "--batch-size", "4", "--lr", "1e-3"]


def make_base(copy):
    copy.write("scored.jsonl", SCORED)
    texts = [message["content"] for record in SCORED for message in record["dialogue_history"]]
    train_policy.make_tiny_model(copy.folder / "base", texts, 400, seed=0)


def test_another_preference_loss_is_at_most_five_lines(copy):
    lines = copy.edit("train_policy.py", ("return -F.logsigmoid(beta * (chosen - rejected))",
                                          "return torch.relu(1 - beta * (chosen - rejected))"))
    assert lines <= 5
    make_base(copy)
    copy.run("train_policy.py", "--method", "multi-turn-dpo", "--model", "base", "--in",
             "scored.jsonl", "--out", "policy", *TRAIN)
    first, second = copy.read("policy/metrics.jsonl")
    assert first["preference_loss"] == pytest.approx(1, abs=1e-6)  # the log-ratios of the first step are zero
    assert second["preference_loss"] != pytest.approx(1, abs=1e-6)


def test_another_simulator_is_at_most_eight_lines(copy):
    lines = copy.edit("human.py", ("\nSIMULATORS = {", '''
class Silent:
    """Never knows."""
    def __init__(self, args, resources):
        pass

    async def reply(self, task, dialogue, key, counts):
        return "No idea.", []


SIMULATORS = {"silent": Silent, '''))
    assert lines <= 8
    copy.write("tasks.jsonl", [record["task"] for record in SCORED[::4]])
    with Stub() as stub:
        copy.run("rollout.py", "--in", "tasks.jsonl", "--model", stub.url, "--simulator", "silent", "--out", "a.jsonl")
    records = copy.read("a.jsonl")
    assert {m["content"] for r in records for m in r["dialogue_history"][2::2]} == {"No idea."}
    assert {r["fingerprints"]["simulator"] for r in records} == {"silent"}


def test_another_engine_and_another_step_reward_are_an_object_each(copy):
    """An agent that only ever asks one of two questions; of both the step reward takes the longer one."""
    lines = copy.edit("engines.py", ('ENGINES = {"vllm"', '''class Parrot:
    def __init__(self, spec, name, role, args):
        pass

    async def generate(self, messages, n, seed, temperature, max_tokens):
        return [Response("Why?" + " And how?" * k) for k in range(n)]

    def close(self):
        pass


ENGINES = {"parrot": Parrot, "vllm"'''))
    lines += copy.edit("rollout.py", ('STEP_REWARDS = {', '''class Longest:
    def __init__(self, args, resources):
        pass

    async def best(self, task, prompt, actions, key, counts):
        return max(actions, key=lambda action: len(action.text))


STEP_REWARDS = {"longest": Longest, '''))
    assert lines <= 22
    copy.write("tasks.jsonl", [record["task"] for record in SCORED[::4]])
    copy.write("facts.jsonl", [{**record["task"], "facts": []} for record in SCORED[::4]])
    copy.run("rollout.py", "--in", "facts.jsonl", "--model", "none", "--engine", "parrot", "--best-of-n", "2",
             "--step-reward", "longest", "--out", "a.jsonl")
    records = copy.read("a.jsonl")
    assert {m["content"] for r in records for m in r["dialogue_history"][1::2]} == {"Why? And how?"}
    assert "critic" not in (copy.folder / "a.settings.json").read_text()    # no critic stands behind it


def test_another_metric_is_one_row(copy):
    lines = copy.edit("evaluate.py", ('    "turns": Metric(',
                                      '    "half_right": Metric("at least half", "%", True, '
                                      'lambda r: r["reward"] >= 0.5),\n    "turns": Metric('))
    assert lines == 1
    copy.write("a.jsonl", SCORED)
    copy.write("b.jsonl", [record for record in SCORED if record["sample"] < 2])
    said = copy.run("evaluate.py", "--compare", "a=a.jsonl", "b=b.jsonl")
    assert "at least half, vs a" in said
    assert "50.0%" in said and "100.0%" in said and "+50.0" in said


@pytest.mark.slow
def test_another_rule_of_pairing_is_a_name_and_two_lines(copy):
    """Neighbours in reward alone: 1.0 over 0.6, 0.6 over 0.2, 0.2 over 0.0."""
    lines = copy.edit("lm.py", ('PAIR_RULES = ("best-vs-lower",', 'PAIR_RULES = ("neighbours", "best-vs-lower",'),
                      ("    chosen = range(len(rewards))\n", """    if rule == "neighbours":
        order = sorted(range(len(rewards)), key=lambda i: -rewards[i])
        return list(zip(order, order[1:]))
    chosen = range(len(rewards))
"""))
    assert lines <= 4
    make_base(copy)
    rule = ["--pair-rule", "neighbours"]
    said = copy.run("train_critic.py", "--model", "base", "--in", "scored.jsonl", "--out", "critic", *rule, *TRAIN)
    assert f"{6 * 3} pairs from 6 tasks" in said
    said = copy.run("train_policy.py", "--method", "multi-turn-dpo", "--model", "base", "--in", "scored.jsonl",
                    "--out", "policy", *rule, *TRAIN)
    assert f"{6 * 3} pairs" in said
    assert math.isfinite(copy.read("policy/metrics.jsonl")[-1]["loss"])


TWENTY_QUESTIONS = '''

async def answer_yes_or_no(task, dialogue, screen):
    """Says whether the animal that it has in mind has the trait that a question names."""
    for trait, has in task["traits"].items():
        if trait in dialogue[-1]["content"]:
            return ("Yes." if has else "No."), [trait]
    return "I cannot say.", []


ENVIRONMENTS["animals"] = Environment(
    multi_turn="I have an animal in mind. Ask yes-or-no questions, at most {max_turns} turns in all. When you know it, "
               "write I WANT TO ANSWER: and its name.",
    single_turn="I have an animal in mind. Write I WANT TO ANSWER: and its name.",
    model_human="You have this animal in mind: {reference}. The game so far: {dialogue}. Answer with yes or no.",
    scripted_human=answer_yes_or_no, reply_limit=100, needs=("traits",))
'''
TWENTY_REWARDS = '''

def score_guesses(records, args):
    """1 if the answer is the animal, else 0."""
    for record in records:
        yield record | {"reward": float((record["answer"] or "").strip().lower() == record["task"]["ground_truth"])}


ENVIRONMENTS["animals"] = Environment(score_guesses)
'''


@pytest.mark.slow
def test_twenty_questions_is_a_row_in_two_tables(copy):
    """Another environment, from its tasks to a trained policy and a report; the trainers stay as they are."""
    lines = copy.edit("rollout.py", ("            reply_limit=1000, pages=True),\n}\n",
                                     "            reply_limit=1000, pages=True),\n}\n" + TWENTY_QUESTIONS))
    lines += copy.edit("evaluate.py", ("def metrics_of(", TWENTY_REWARDS.lstrip() + "\n\ndef metrics_of("))
    assert lines <= 60
    animals = {"cat": (True, False), "bird": (False, True), "fish": (False, False), "bat": (True, True)}
    tasks = [{"task_id": f"animal-{n}", "domain": "animals", "problem_description": "Which animal is it?",
              "ground_truth": name, "traits": {"fur": fur, "wings": wings},
              "facts": [{"detail": trait, "question": f"Has it {trait}?", "reply": ""}
                        for trait in ("fur", "wings")]}
             for n, (name, (fur, wings)) in enumerate([*animals.items()] * 3)]
    copy.write("tasks.jsonl", tasks)

    def agent(messages, rng):
        asked = sum(message["role"] == "assistant" for message in messages)
        if asked < 2 and rng.random() < 0.7:
            return f"Has it {rng.choice(['fur', 'wings', 'teeth'])}?"
        return f"I WANT TO ANSWER:\n{rng.choice([*animals])}"

    common = ["--domain", "animals", "--max-turns", "5"]
    with Stub(agent) as stub:
        copy.run("rollout.py", *common, "--in", "tasks.jsonl", "--model", stub.url, "--samples", "8", "--out", "a.jsonl")
        copy.run("evaluate.py", "--domain", "animals", "--in", "a.jsonl", "--out", "scored.jsonl")
        copy.run("rollout.py", "--domain", "animals", "--in", "scored.jsonl", "--model", stub.url, "--candidates", "4",
                 "--out", "candidates.jsonl")
    records = copy.read("scored.jsonl")
    assert 0.1 < sum(record["reward"] for record in records) / len(records) < 0.6
    assert {message["content"] for record in records for message in record["dialogue_history"][2::2]} == {
        "Yes.", "No.", "I cannot say."}
    texts = [message["content"] for record in records for message in record["dialogue_history"]]
    train_policy.make_tiny_model(copy.folder / "base", texts, 400, seed=0)
    copy.run("train_critic.py", "--domain", "animals", "--model", "base", "--in", "scored.jsonl",
             "--out", "critic", *TRAIN)
    copy.run("train_critic.py", "--domain", "animals", "--score", "candidates.jsonl", "--critic", "critic",
             "--out", "ranked.jsonl")
    copy.run("train_policy.py", "--domain", "animals", "--model", "base", "--in", "ranked.jsonl", "--out", "policy", *TRAIN)
    copy.run("rollout.py", *common, "--in", "tasks.jsonl", "--model", "policy", "--engine", "transformers",
             "--max-tokens", "8", "--out", "b.jsonl")
    copy.run("evaluate.py", "--domain", "animals", "--in", "b.jsonl", "--out", "after.jsonl")
    said = copy.run("evaluate.py", "--domain", "animals", "--compare", "before=scored.jsonl", "after=after.jsonl",
                    "--report", "seen.html", "--report-limit", "400")
    assert "| success" in said and "| reward" in said and "hidden details told" in said
    page = (copy.folder / "seen.html").read_text()
    assert "Which animal is it?" in page
    shown = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    episodes = [episode for task in shown["tasks"] for episode in task["episodes"] if episode["run"] == "before"]
    for episode in episodes:    # the answer is a lone word, which no search for code may drop
        signs = [change[0] for change in episode["changes"]]
        assert signs == ([" "] if episode["solved"] else ["-", "+"]), episode["changes"]
    assert {episode["solved"] for episode in episodes} == {True, False}


def test_a_second_reference_in_eq_3_is_at_most_twelve_lines(copy):
    """PMI: the reference is halfway between the seed model that sees c and the one that does not."""
    lines = copy.edit(
        "train_critic.py",
        ("        set_reference(load_model(args.model, device, args), items, device, args)\n", """\
        reference = load_model(args.model, device, args)
        blind = make_items(argparse.Namespace(**vars(args) | {"context": "without-c"}), tokenizer)[0]
        set_reference(reference, items, device, args)
        set_reference(reference, blind, device, args)
        for item, other in zip(items, blind):
            for sequence, twin in zip(item.chosen + item.rejected, other.chosen + other.rejected):
                sequence.extras["blind"] = twin.reference
"""),
        ("trajectory_scores(values, batch.reference, ",
         'trajectory_scores(values, (batch.reference + batch.extras["blind"]) / 2, '),
        ("            references = score_all(self.reference, [sequences[n] for n in fit], self.device, self.args)\n", """\
            references = score_all(self.reference, [sequences[n] for n in fit], self.device, self.args)
            blind = self.encode(self.tokenizer, [(messages, reply, None) for messages, reply, _ in turns])
            blind = score_all(self.reference, [blind[n] for n in fit], self.device, self.args)
            references = [(seeing + other) / 2 for seeing, other in zip(references, blind)]
"""))
    assert lines <= 12
    make_base(copy)
    copy.run("train_critic.py", "--model", "base", "--in", "scored.jsonl", "--out", "critic", "--lr", "1e-30",
             "--epochs", "1", "--batch-size", "100", "--max-steps", "1", "--nll", "0")
    copy.run("train_critic.py", "--score", "scored.jsonl", "--critic", "critic", "--out", "annotated.jsonl")
    totals = {(record["task_id"], record["sample"]): sum(message.get("advantage", 0) for message in
              record["dialogue_history"]) for record in copy.read("annotated.jsonl")}
    chosen = [total for (_, sample), total in totals.items() if sample == 0]    # the one with reward 1, in three pairs
    assert min(map(abs, chosen)) > 1e-4
    found = copy.read("critic/metrics.jsonl")[0]["advantage_chosen"]
    assert found == pytest.approx(sum(chosen) / len(chosen), abs=1e-5)    # loss and ranking agree


@pytest.mark.parametrize("script, options", [
    pytest.param(train_critic, [], id="critic"),
    pytest.param(train_policy, ["--method", "multi-turn-dpo"], id="policy", marks=pytest.mark.slow)])
def test_modules_may_draw_numbers_at_random(copy, monkeypatch, script, options):
    """Two runs with one seed are equal, and so is a run that was stopped; another seed draws other numbers."""
    make_base(copy)
    monkeypatch.chdir(copy.folder)
    logps = lm.Scorer.logps
    monkeypatch.setattr(lm.Scorer, "logps", lambda self, hidden, target: logps(
        self, hidden + 1e-4 * torch.randn(hidden.shape), target))
    command = [script, *options, "--model", "base", "--in", "scored.jsonl", "--max-steps", 3, "--batch-size", 4,
               "--lr", "1e-3", "--save-every", 1, "--pair-rule", "all"]
    save = lm.save_checkpoint

    def save_and_stop(args, model, optimizer, step):
        save(args, model, optimizer, step)
        if step == 2 and args.out == "stopped":
            raise SystemExit(9)

    for out, seed, code in (("one", 0, 0), ("two", 0, 0), ("stopped", 0, 9), ("stopped", 0, 0), ("other", 1, 0)):
        monkeypatch.setattr(script, "save_checkpoint", save_and_stop if code else save)
        assert call(*command, "--seed", seed, "--out", out)[0] == code
    assert metrics("one") == metrics("two") == metrics("stopped") != metrics("other")
