"""Claims about evaluate.py, checked on its real command line: rewards, intervals, comparison, resume, the report."""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import evaluate  # noqa: E402
from conftest import read_lines, running, write  # noqa: E402
from natural_answers import RIGHT as RIGHT_ANSWERS, WRONG as WRONG_ANSWERS  # noqa: E402

RIGHT = "def double(x):\n    return 2 * x\n"
HALF = "def double(x):\n    return 2 * x if x < 5 else 0\n"  # right for 0..4 of the calls 0..9
BROKEN = "def double(x:\n"


def task(number, reference=RIGHT):
    return {"task_id": f"t-{number:03d}", "domain": "backend", "problem_description": f"Double it, {number}.",
            "ground_truth": reference + f"\nNUMBER = {number}\n",
            "test_cases": {f"case {x}": f"double({x})" for x in range(10)},
            "source": "hand", "facts": [{"detail": "factor", "question": "What is the factor?",
                       "reply": "The factor is 2."}]}


def trajectory(number, answer, sample=0, turns=2, finish="answered", **more):
    history = [{"role": "user", "content": f"Double it, {number}."}]
    for turn in range(turns - 1):
        history += [{"role": "assistant", "content": "What is the factor?",
                     "output": "I wonder. OUTPUT: What is the factor?", "output_ids": [5, 6, 7]},
                    {"role": "user", "content": "The factor is 2.", "told": ["factor"]}]
    history.append({"role": "assistant", "content": f"I WANT TO ANSWER: {answer}",
                    "output": f"I WANT TO ANSWER: {answer}", "output_ids": [1] * 9})
    return {"task_id": f"t-{number:03d}", "sample": sample, "domain": "backend", "task": task(number), "system": "",
            "dialogue_history": history, "answer": answer, "finish": finish, "model": "m", "simulator": "scripted",
            "seed": 0, **more}


PATIENT = ["--call-timeout", "20", "--program-timeout", "60"]    # tests may run on a machine that has other work


def run(folder, *arguments, code=0, patience=PATIENT):
    arguments = [*arguments, *([] if "--compare" in arguments else patience)]
    done = subprocess.run([sys.executable, ROOT / "evaluate.py", *map(str, arguments)], cwd=folder,
                          capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == code, done.stdout + done.stderr
    return done


def compared(folder, *pairs):
    """The numbers behind the table of --compare."""
    args = argparse.Namespace(resamples=10_000, seed=0)
    runs = [evaluate.Run(name, folder / path) for name, path in (pair.split("=") for pair in pairs)]
    return evaluate.compare(runs, args)


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Six answers of known worth, scored once with a report: (folder, output of the command)."""
    folder = tmp_path_factory.mktemp("scored")
    write(folder / "runs/default/test.trajectories.jsonl", [
        trajectory(0, RIGHT), trajectory(1, HALF, extra={"kept": [1, "ü"]}), trajectory(2, BROKEN),
        trajectory(3, None, finish="error: the server is gone"),
        trajectory(4, f"Here:\n```python\n{RIGHT}```\nDone.", turns=4),
        trajectory(5, "def double(x):\n    return None\n", turns=10, finish="max_turns")])
    return folder, run(folder, "--split", "test", "--report", "report.html")


# ---- Rewards


def test_the_reward_is_the_share_of_tests_passed(scored):
    folder, _ = scored
    records = read_lines(folder / "runs/default/test.scored.jsonl")
    assert [record["reward"] for record in records] == [1.0, 0.5, 0.0, 0.0, 1.0, 0.0]
    assert set(records[2]["tests"].values()) == {"error: SyntaxError"}
    assert set(records[3]["tests"].values()) == {"no answer"}
    assert records[1]["tests"]["case 4"] == "passed" and records[1]["tests"]["case 5"] == "wrong"
    assert list(records[0]["tests"]) == [f"case {x}" for x in range(10)]
    assert records[0]["sandbox"], "every scored record says which layers of the sandbox were on"


def test_records_keep_their_order_and_every_key(scored):
    folder, _ = scored
    before = read_lines(folder / "runs/default/test.trajectories.jsonl")
    for old, new in zip(before, read_lines(folder / "runs/default/test.scored.jsonl"), strict=True):
        assert {key: new[key] for key in old} == old
    assert len(before) == 6 and "reward" not in before[0]


def test_metrics_are_those_computed_by_hand(scored):
    folder, done = scored
    metrics = json.loads((folder / "runs/default/test.metrics.json").read_text())
    assert metrics["tasks"] == 6 and metrics["samples"] == 6
    assert metrics["success"]["value"] == pytest.approx(2 / 6)
    assert metrics["tests_passed"]["value"] == pytest.approx(2.5 / 6)
    assert metrics["answered"]["value"] == pytest.approx(4 / 6)
    assert metrics["turns"]["value"] == pytest.approx((2 + 2 + 2 + 2 + 4 + 10) / 6)
    assert metrics["tokens_per_reply"]["value"] == pytest.approx((16 * 3 + 6 * 9) / 22)
    assert metrics["finish"] == {"answered": 4, "error": 1, "max_turns": 1}
    assert metrics["errors"] == {"error: the server is gone": 1}
    assert metrics["statuses"] == {"passed": 25, "wrong": 15, "error: SyntaxError": 10, "no answer": 10}
    assert "WARNING" not in done.stdout
    assert "| success" in done.stdout and "33.3%" in done.stdout and "the server is gone" in done.stdout


def test_of_a_rollout_that_was_stopped_it_says_so(tmp_path):
    """Its first records are the shortest episodes. A finished one has its .rollout.json beside it."""
    write(tmp_path / "a.trajectories.jsonl", [trajectory(0, RIGHT)])
    assert "has not finished this file" not in run(tmp_path, "--in", "a.trajectories.jsonl").stdout    # somebody else's
    (tmp_path / "a.trajectories.settings.json").write_text("{}")
    assert "has not finished this file" in run(tmp_path, "--in", "a.trajectories.jsonl").stdout
    assert "has not finished this file" not in run(tmp_path, "--in", "a.scored.jsonl").stdout    # scored again
    write(tmp_path / "b.jsonl", [trajectory(0, RIGHT, model="released")])
    (tmp_path / "b.settings.json").write_text("{}")
    assert "has not finished this file" not in run(tmp_path, "--in", "b.jsonl").stdout    # generate_tasks.py wrote it
    write(tmp_path / "c.jsonl", [trajectory(0, RIGHT, model="scripted")])
    (tmp_path / "c.settings.json").write_text("{}")
    assert "has not finished this file" not in run(tmp_path, "--in", "c.jsonl").stdout    # demonstrations
    (tmp_path / "a.rollout.json").write_text("{}")
    assert "has not finished this file" not in run(tmp_path, "--in", "a.trajectories.jsonl").stdout


def test_the_share_of_details_that_were_told_is_counted(scored):
    folder, _ = scored
    assert json.loads((folder / "runs/default/test.metrics.json").read_text())["details_told"]["value"] == 1.0
    assert evaluate.details_told(trajectory(0, RIGHT, turns=2)) == [True]
    silent = trajectory(0, RIGHT, turns=2)
    silent["dialogue_history"][2] |= {"content": "The factor is 2, reworded.", "told": []}
    assert evaluate.details_told(silent) == [False], "what counts is what the human says that it told"
    silent["dialogue_history"][2] |= {"content": "I do not know. The factor is 2.", "told": ["factor"]}
    assert evaluate.details_told(silent) == [True]
    assert evaluate.details_told(trajectory(0, RIGHT, turns=1)) == [False], "an answer at once was told nothing"


def test_a_model_as_the_human_does_not_say_what_it_told(tmp_path):
    record = trajectory(0, RIGHT, simulator="m")
    del record["dialogue_history"][2]["told"]
    plain = trajectory(1, RIGHT)    # without facts
    plain["task"]["facts"] = []
    said = run(tmp_path, "--in", write(tmp_path / "a.trajectories.jsonl", [record, plain])).stdout
    assert "hidden details" not in said, "unknown is no row"
    assert "details_told" not in json.loads((tmp_path / "a.metrics.json").read_text())


def test_what_a_continuation_has_lost_is_not_counted(tmp_path):
    """rollout.py --continue keeps neither what was told before the branch nor the tokens."""
    record = trajectory(0, RIGHT, turns=3, continues=[0, 1, 0])
    record["dialogue_history"][1:3] = [{"role": turn["role"], "content": turn["content"]}
                                       for turn in record["dialogue_history"][1:3]]
    said = run(tmp_path, "--in", write(tmp_path / "a.continuations.jsonl", [record])).stdout
    assert "turns" in said and "hidden details" not in said and "tokens per reply" not in said


def test_success_is_shown_for_both_halves_of_the_tasks(tmp_path):
    for name, rewards in (("a", (1, 1, 0, 1)), ("b", (1, 1, 1, 1))):
        records = [trajectory(n, RIGHT if reward else HALF) for n, reward in enumerate(rewards)]
        for number, record in enumerate(records):
            record["task"]["half"] = ("seen", "new")[number // 2]
        scored_file(tmp_path / f"{name}.jsonl", *records)
    said = run(tmp_path, "--compare", "a=a.jsonl", "b=b.jsonl").stdout
    result = compared(tmp_path, "a=a.jsonl", "b=b.jsonl")
    metrics, differences = result["a"]["metrics"], result["b"]["difference"]
    assert metrics["success_seen"]["value"] == 1 and metrics["success_new"]["value"] == 0.5
    assert metrics["success_seen"]["low"] == pytest.approx(evaluate.wilson(1, 2)[0]), "of two tasks, not of four"
    assert differences["success_seen"]["value"] == 0 and differences["success_new"]["value"] == 0.5
    assert re.search(r"success, seen tasks +\| 100.0% \[", said) and "success, new tasks, vs a" in said
    scored_file(tmp_path / "d.jsonl", trajectory(0, RIGHT))
    assert "seen" not in run(tmp_path, "--compare", "d=d.jsonl").stdout, "most tasks have no halves"


def test_another_environment_is_one_row(tmp_path, monkeypatch, capsys):
    """Twenty questions, scored by whether the answer names the thing: a table and a report with no other edit."""
    def score_twenty(records, args):
        for record in records:
            yield record | {"reward": float(record["task"]["ground_truth"] in (record["answer"] or ""))}

    monkeypatch.setitem(evaluate.ENVIRONMENTS, "twenty", evaluate.Environment(score_twenty))
    records = []
    for number, answer in enumerate(["a cat", "a dog", "a cat", None]):
        record = trajectory(number, answer or "", domain="twenty") | {"answer": answer}
        record["task"] |= {"domain": "twenty", "ground_truth": "cat", "test_cases": None, "facts": []}
        records.append(record)
    path = write(tmp_path / "a.trajectories.jsonl", records)
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "--in", str(path), "--report", str(tmp_path / "a.html")])
    evaluate.main()
    said = capsys.readouterr().out
    assert re.search(r"success +\| 50.0% \[", said) and re.search(r"reward +\| 50.0% \[", said)
    data = data_of(tmp_path / "a.html")
    assert len(data["tasks"]) == 4 and [task["episodes"][0]["reward"] for task in data["tasks"]] == [1, 0, 1, 0]


def test_the_report_compares_what_an_environment_takes_for_the_answer(tmp_path, monkeypatch):
    """A city's name is no program: a solved episode shows the city once, and no line as missing."""
    def score_cities(records, args):
        for record in records:
            yield record | {"reward": float(record["answer"].strip() == record["task"]["ground_truth"])}

    monkeypatch.setitem(evaluate.ENVIRONMENTS, "city", evaluate.Environment(score_cities))
    records = [trajectory(n, f" {city}\n") for n, city in enumerate(["Chicago", "Paris"])]
    for record in records:
        del record["domain"], record["finish"], record["sample"]    # as in a user's own file
        record["task"] = {"ground_truth": "Chicago"}
    path = write(tmp_path / "a.trajectories.jsonl", records)
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "--domain", "city", "--in", str(path), "--report",
                                      str(tmp_path / "a.html")])
    evaluate.main()
    solved, unsolved = (task["episodes"][0] for task in data_of(tmp_path / "a.html")["tasks"])
    assert solved["changes"] == [" Chicago"] and solved["solved"] is True
    assert unsolved["changes"] == ["-Chicago", "+Paris"] and unsolved["solved"] is False
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "--domain", "city", "--compare", f"a={tmp_path / 'a.scored.jsonl'}"])
    evaluate.main()


def test_a_file_that_names_no_environment_needs_the_flag(tmp_path):
    record = trajectory(0, RIGHT)
    del record["domain"], record["task"]["domain"]
    path = write(tmp_path / "a.trajectories.jsonl", [record])
    assert "line 1: found domain None, expected backend or frontend (--domain)" in run(tmp_path, "--in", path, code=2).stderr
    assert "100.0%" in run(tmp_path, "--in", path, "--domain", "backend").stdout


def test_success_within_k_turns_is_shown_for_any_scored_run(tmp_path):
    turns = [2, 5, 6, 7, 8, 10]
    scored_file(tmp_path / "a.jsonl", *[trajectory(n, RIGHT, turns=k) for n, k in enumerate(turns)],
                trajectory(9, HALF, turns=2))
    metrics = compared(tmp_path, "a=a.jsonl")["a"]["metrics"]
    found = [metrics[name]["value"] * 7 for name in ("success_within_5", "success_within_7", "success_within_10", "success")]
    assert found == pytest.approx([2, 4, 6, 6])
    assert re.search(r"success within 5 turns +\| 28.6% \[", run(tmp_path, "--compare", "a=a.jsonl").stdout)


def test_a_reward_that_misses_1_by_rounding_is_a_success(tmp_path):
    record = trajectory(0, RIGHT) | {"reward": 0.9999999999999999}
    other = trajectory(1, RIGHT) | {"reward": 0.999}
    write(tmp_path / "a.jsonl", [record, other])
    run(tmp_path, "--compare", "a=a.jsonl", "--report", "a.html")
    assert compared(tmp_path, "a=a.jsonl")["a"]["metrics"]["success"]["value"] == 0.5
    assert [task["episodes"][0]["solved"] for task in data_of(tmp_path / "a.html")["tasks"]] == [True, False]


@pytest.mark.parametrize("arguments, idle", [
    (["--in", "a.jsonl", "--split", "val", "--run-name=x"], "--run-name, --split do nothing with --in"),
    (["--in", "a.jsonl", "--report-limit", "3"], "--report-limit does nothing without --report"),
    (["--compare", "a=a.jsonl", "--curves", "b=c"], "--curves does nothing without --report"),
    (["--compare", "a=a.jsonl", "--unsafe"], "--unsafe does nothing with --compare"),
    (["--compare", "a=a.jsonl", "--workers", "2"], "--workers does nothing with --compare"), (["--over"], "unrecognized arguments: --over")])
def test_a_flag_that_would_do_nothing_is_refused(tmp_path, arguments, idle):
    done = subprocess.run([sys.executable, ROOT / "evaluate.py", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and idle in done.stderr.splitlines()[-1], done.stderr


def test_a_reference_that_fails_its_own_tests_is_counted(tmp_path):
    broken = trajectory(0, RIGHT)
    broken["task"]["ground_truth"] = "def double(x):\n    raise ValueError(x)\n"
    done = run(tmp_path, "--in", write(tmp_path / "a.trajectories.jsonl", [broken, trajectory(1, RIGHT)]))
    metrics = json.loads((tmp_path / "a.metrics.json").read_text())
    assert metrics["statuses"] == {"reference error: ValueError": 10, "passed": 10}
    assert metrics["success"]["value"] == 0.5 and "WARNING: some references do not run" in done.stdout


@pytest.mark.parametrize("answer, code", [
    (RIGHT, RIGHT.strip()),
    (" def f():\n     return 1\n", "def f():\n    return 1"),
    (" f = 1\ng = 2\n", "f = 1\ng = 2"),
    ("```python\ndef f():\n    return 1\n```", "def f():\n    return 1"),
    ("```\ndef f():\n    return 1\n```", "def f():\n    return 1"),
    ("Sure!\r\n```Python3\r\ndef f():\r\n    return 1\r\n```\r\nDone.", "def f():\n    return 1"),
    ("1. code:\n   ```py\n   def f():\n       return 1\n   ```", "def f():\n    return 1"),
    ("```python\ndef f():\n    return 1", "def f():\n    return 1"),  # cut off before the closing fence
    ("I WANT TO ANSWER: ```python\ndef f():\n    return 1\n```", "def f():\n    return 1"),
    ("\n I WANT TO ANSWER:\ndef f():\n    return 1", "def f():\n    return 1"),
    ('MARK = "I WANT TO ANSWER:"', 'MARK = "I WANT TO ANSWER:"'),    # nothing is cut inside an answer
    ('I WANT TO ANSWER: print("OUTPUT: I WANT TO ANSWER: x")', 'print("OUTPUT: I WANT TO ANSWER: x")'),
    ("```python\ndef f():\n    return g()\n```\nwith\n```python\ndef g():\n    return 1\n```\n"
     "Use:\n```\nprint(f())\n```",
     "def f():\n    return g()\n\ndef g():\n    return 1"),
    ("```\nimport math\n\nRATE = 3\n```\nthen\n```\ndef f(x):\n    return math.floor(x) + RATE\n```\nUse:\n"
     "```\nimport math\nprint(f(2))\n```", "import math\n\nRATE = 3\n\ndef f(x):\n    return math.floor(x) + RATE"),
    ("```\nf = len\n```\n```\n", "f = len"),
    ("```\nimport operator\n```\n```\nf = operator.add\n```", "import operator\n\nf = operator.add"),
    ("```\ndef f():\n    return 1\n```\n```\nRESULT = f()\n```\n```\nfrom 3 to 5\n```", "def f():\n    return 1"),
    ("```python f = len```", "f = len"),
    ("```python\nf = len\n```", "f = len"),
    ("    def f():\n        return 1", "def f():\n    return 1"),
    ("", ""),
])
def test_code_is_taken_out_of_markdown(answer, code):
    assert evaluate.extract_code(answer) == code


STUB = "def double(x):\n    \"\"\"As above.\"\"\"\n    ..."
DOCUMENTED = 'def double(x):\n    """Twice x.\n\n    ```\n    double(2)\n    ```\n    """\n    return 2 * x'


@pytest.mark.parametrize("answer", [
    f"**I WANT TO ANSWER:**\n{RIGHT}", f"**I WANT TO ANSWER:** {RIGHT}", f"**\n{RIGHT}",
    f"Here is the function:\n\n{RIGHT}\nIt works because 2 * x is twice x.",
    f"import math\n{RIGHT}\nThis is all.\nEnjoy",
    "Here it is:\ndef double(x):\n    y = 2 * x\n# now return\n    return y\n\n# In short\nIt doubles.",
    f"{RIGHT}\n# Notes\n  - it doubles x\n",
    f"```python\n{RIGHT}```\nFill in the rest:\n```python\n{STUB}\n```",
    f"```python\n{STUB}\n```\nand in full:\n```python\n{RIGHT}```",
    f"{RIGHT}\nassert double(2) == 5", f"{RIGHT}\nprint(double('2' + 1))",
    f"{RIGHT}\ndef test_double():\n    assert double(2) == 5\n\ntest_double()",
    f"```python\n{RIGHT}```\n```python\nfor x, y in [(2, 5)]:\n    assert double(x) == y\n```",
    f"```python\n{DOCUMENTED}\n```", f"```python\n{DOCUMENTED}\n```\nUse:\n```\ndouble(2) -> 4\n```",
    f"```python\n{RIGHT}```\nNot this:\n```python\ndef double(x:\n```",
    f"{RIGHT.replace('double', 'twice')}\nAnd by its name:\n\ndef double(x):\n    return twice(x)\nDone.",
    f"```python\n{RIGHT.replace('double', 'twice')}\n```\n```python\ndouble = twice\n```",
    f"{RIGHT}\nUse it:\n```python\nprint(double(2))\n```", f"{RIGHT}```\n",
    f"Use `double`:\n```math``` and\n```\n{RIGHT}```",
])
def test_a_right_answer_is_found_in_whatever_surrounds_it(answer):
    code = evaluate.extract_code(answer, {"double"})
    names = {}
    exec(compile(code, "answer", "exec"), names)
    assert [names["double"](x) for x in (0, 3)] == [0, 6], code


@pytest.mark.parametrize("program", [
    "try:\n    from math import isqrt as f\nexcept ImportError:\n    def f(x):\n        return f(x)",
    "import sys\nsys.setrecursionlimit(9000)\ndef f(x):\n    assert x\n    return x",
    "known = []\ndef f(x):\n    return x\nknown.append(f)\nf = staticmethod(f)", "x = 1; assert x\nf = len"])
def test_what_is_no_test_stays_in_a_program(program):
    assert evaluate.extract_code(program, {"f"}) == program


@pytest.fixture(scope="module")
def box():
    with evaluate.Sandbox(workers=1, call_timeout=20, program_timeout=60) as box:
        yield box


@pytest.mark.parametrize("kind, name", [("RIGHT", name) for name in RIGHT_ANSWERS] + [
    ("WRONG", name) for name in WRONG_ANSWERS])
def test_natural_answers_score_what_they_are_worth(box, kind, name):
    reference, calls, answer = {"RIGHT": RIGHT_ANSWERS, "WRONG": WRONG_ANSWERS}[kind][name]
    task = {"ground_truth": reference, "test_cases": {str(n): call for n, call in enumerate(calls)}}
    code = evaluate.program_of({"task": task, "answer": answer})
    statuses = box.score(task, code)
    assert (set(statuses.values()) == {"passed"}) is (kind == "RIGHT"), (statuses, code)


@pytest.mark.parametrize("name", [name for name, (reference, _, answer) in RIGHT_ANSWERS.items() if reference == answer])
def test_an_answer_equal_to_its_reference_is_taken_as_it_is(name):
    reference, _, answer = RIGHT_ANSWERS[name]
    assert evaluate.extract_code(answer) == reference.strip("\n")


def test_hostile_text_is_no_program_and_stops_nothing():
    for text in ("(" * 100_000, "-" * 100_000 + "1", "def f():\n  x\x00", "```" * 3000, "```\n(" * 1000,
                 "def f(:\n" * 3000, "x = " * 20_000, "\ud83d"):
        begun = time.process_time()    # of this process, whatever else runs
        evaluate.extract_code(text, {"f"})
        assert time.process_time() - begun < 20, text[:9]


def test_the_two_modes_differ_by_the_released_rules_alone(tmp_path):
    # the released evaluator: NameError
    helper = "def twice(x):\n    return 2 * x\n\ndef double(x):\n    return twice(x)\n"
    source = write(tmp_path / "a.trajectories.jsonl", [trajectory(0, helper), trajectory(1, RIGHT)])
    done = run(tmp_path, "--in", source)
    first, second = read_lines(tmp_path / "a.scored.jsonl")
    assert first["reward"] == second["reward"] == 1.0 and set(first["tests"].values()) == {"passed"}
    released = run(tmp_path, "--in", source, "--mode", "released", "--out", "b.scored.jsonl")
    first, second = read_lines(tmp_path / "b.scored.jsonl")
    assert first["reward"] == 0.0 and set(first["tests"].values()) == {"error: NameError"} and second["reward"] == 1.0
    refused = run(tmp_path, "--compare", "a=a.scored.jsonl", "b=b.scored.jsonl", code=2).stderr
    assert "'released'" in refused and "score them the same way" in refused
    assert re.search(r"success +\| 100.0%", done.stdout) and re.search(r"success +\| 50.0%", released.stdout)


def test_runs_scored_with_other_time_limits_are_not_compared(scored, tmp_path):
    patient = read_lines(scored[0] / "runs/default/test.scored.jsonl")
    limits = {name: patient[0][name] for name in ("call_timeout", "program_timeout")}
    assert limits == {"call_timeout": 20, "program_timeout": 60}
    write(tmp_path / "patient", patient)
    write(tmp_path / "hasty", [record | {"call_timeout": 0.05} for record in patient])
    write(tmp_path / "old", [{key: record[key] for key in record if key not in limits} for record in patient])
    refused = run(tmp_path, "--compare", "o=old", "p=patient", "h=hasty", code=2).stderr
    assert "'call_timeout': 20.0" in refused and "'call_timeout': 0.05" in refused
    for name in ("old", "patient", "hasty"):    # earlier versions did not record them
        assert "success, vs a" in run(tmp_path, "--compare", "a=old", f"b={name}").stdout


def test_the_released_evaluator_gets_the_answer_as_it_stands(monkeypatch):
    asked = []

    class Box:
        layers = {}

        def __init__(self, **_):
            pass

        __enter__, __exit__ = lambda self: self, lambda self, *_: None

        def score_many(self, items, mode):
            for key, task, code in items:
                asked.append((mode, code))
                yield key, dict.fromkeys(task["test_cases"], "passed")

    monkeypatch.setattr(evaluate, "Sandbox", Box)
    answer = f"Here:\n```python\n{RIGHT}```\nDone."
    for mode, program in (("module", RIGHT.strip()), ("released", answer)):
        args = argparse.Namespace(mode=mode, workers=1, call_timeout=1, program_timeout=1, unsafe=False)
        scored = list(evaluate.score_programs([trajectory(0, answer), trajectory(1, None)], args))
        assert asked[0] == (mode, program)
        assert [record["reward"] for record in scored] == [1.0, 0.0], "no answer passes nothing"
        asked.clear()


def test_released_trajectories_are_scored_once_they_are_converted(tmp_path):
    def released(number, answer):
        record = trajectory(number, answer)
        bare = {key: record["task"][key] for key in ("problem_description", "ground_truth", "test_cases")}
        turns = [{**turn, "input": "<prompt>"} if turn["role"] == "assistant" else turn
                 for turn in record["dialogue_history"]]
        return {"task": bare, "dialogue_history": turns, "answer": answer, "reward": 0.123}

    unmarked = released(1, HALF)  # the turns ran out
    unmarked["dialogue_history"][-1] |= {"content": HALF, "output": HALF}
    source = write(tmp_path / "release.jsonl", [released(0, RIGHT), released(1, HALF), released(0, HALF), unmarked])
    subprocess.run([sys.executable, ROOT / "generate_tasks.py", "--source", "colbench", "--in", source,
                    "--out", tmp_path / "offline.jsonl"], check=True)
    run(tmp_path, "--in", tmp_path / "offline.jsonl")
    records = read_lines(tmp_path / "offline.scored.jsonl")
    assert [record["reward"] for record in records] == [1.0, 0.5, 0.5, 0.5]
    assert [record["sample"] for record in records] == [0, 0, 1, 1]
    assert [record["finish"] for record in records] == ["answered"] * 3 + ["max_turns"]
    assert records[0]["task_id"] == records[2]["task_id"] != records[1]["task_id"] == records[3]["task_id"]
    assert json.loads((tmp_path / "offline.metrics.json").read_text())["tasks"] == 2


# ---- Pages

RED, BLUE = (f'<html><body style="margin:0"><div style="background:{colour};width:100%;height:500px"></div>'
             '<h1>Shop</h1>'
             '<div style="background:#0a0;width:200px;height:90px"></div></body></html>'  # left of the centre square
             for colour in ("#c00", "#00c"))


def design(number, answer, reference=RED, sample=0):
    record = trajectory(number, answer or "", sample=sample)
    record |= {"domain": "frontend", "answer": answer,
               "task": {"task_id": record["task_id"], "domain": "frontend", "problem_description": "A shop.",
                        "ground_truth": reference}}
    record["dialogue_history"][1] |= {"content": BLUE, "output": f"A first try. OUTPUT: {BLUE}"}
    return record


@pytest.fixture(scope="module")
def designs(tmp_path_factory):
    """Two runs over three pages, scored, compared, with a report: (folder, what compare printed)."""
    render = pytest.importorskip("render")
    pytest.importorskip("playwright")
    try:
        render.find_chromium(), render.load_stylesheet()
    except RuntimeError as problem:
        pytest.skip(str(problem))
    folder = tmp_path_factory.mktemp("designs")
    answers = {"a": [RED, f"```html\n{BLUE}\n```", "I cannot."], "b": [RED, RED, "<html><body></body></html>"]}
    for name, pages in answers.items():
        run(folder, "--in", write(folder / f"{name}.trajectories.jsonl",
                                  [design(n, page) for n, page in enumerate(pages)]), patience=[])
    return folder, run(folder, "--compare", "a=a.scored.jsonl", "b=b.scored.jsonl", "--report", "c.html").stdout


def test_the_reward_of_a_page_is_its_cosine_with_the_reference(designs):
    folder, _ = designs
    same, other, none = read_lines(folder / "a.scored.jsonl")
    assert same["reward"] == pytest.approx(1.0) and same["page"] == "ok" and set(same["cosine"]) == {"page", "centre"}
    assert other["reward"] == other["cosine"]["page"] < 0.99 and other["encoder"] == "layout"
    assert abs(other["cosine"]["page"] - other["cosine"]["centre"]) > 0.001, \
        "the centre does not see what stands at the left"
    assert none["reward"] == 0 and none["page"] == "no page"
    blank = read_lines(folder / "b.scored.jsonl")[2]
    assert blank["page"] == "blank" and blank["reward"] == 0
    metrics = json.loads((folder / "b.metrics.json").read_text())
    assert metrics["statuses"] == {"ok": 2, "blank": 1} and "success" not in metrics
    assert metrics["encoder"] == "layout"


def test_a_win_is_the_higher_cosine_and_a_tie_is_half(designs):
    folder, printed = designs
    # page 0: both are the reference, a tie; page 1: b is better; page 2: nothing against a blank page, both 0, a tie
    result = compared(folder, "a=a.scored.jsonl", "b=b.scored.jsonl")
    assert result["b"]["difference"]["win_rate"]["value"] == pytest.approx((0.5 + 1 + 0.5) / 3)
    assert "win rate vs a" in printed and "66.7%" in printed
    assert (evaluate.win_share([0.2, 0.8], [0.5]) == 0.5 and evaluate.win_share([0.5], [0.5]) == 0.5
            and evaluate.win_share([0.1], [0.5]) == 0)


def test_the_report_shows_every_page_beside_its_reference(designs, browser):
    folder, _ = designs
    data = data_of(folder / "c.html")
    assert len(data["pictures"]) == 3, "each picture is stored once: the two designs and the blank page"
    assert all(address.startswith("data:image/webp;base64,") for address in data["pictures"])
    assert (folder / "c.html").stat().st_size < 300_000
    page = browser(folder / "c.html")
    page.evaluate(OPEN_ALL)
    shown = page.eval_on_selector_all("img", "images => images.map(i => [i.alt, i.complete && i.naturalWidth])")
    assert sum(alt == "agent" for alt, _ in shown) == 6 + 5, "each of six dialogues shows a first page, five an answer"
    assert sum(alt == "reference" for alt, _ in shown) == 6 + 5 and {wide for _, wide in shown} == {360}


def test_a_flag_of_programs_is_refused_with_pages(designs):
    folder, _ = designs
    done = run(folder, "--in", "a.trajectories.jsonl", "--out", "x.jsonl", "--mode", "released", code=2, patience=[])
    assert "--mode does nothing with frontend records" in done.stderr


def test_cosines_of_different_encoders_are_not_compared(designs):
    folder, _ = designs
    write(folder / "clip.scored.jsonl", [record | {"encoder": "clip"} for record in read_lines(folder / "a.scored.jsonl")])
    done = run(folder, "--compare", "a=a.scored.jsonl", "clip=clip.scored.jsonl", code=2)
    assert all(word in done.stderr for word in ("clip.scored.jsonl", "a.scored.jsonl", "'clip'"))
    assert done.stderr.count("\n") == 1


# ---- Intervals


def summary(values, samples=1, tasks=None):
    """What is compared of a Run of one file, for tasks with the given numbers of successes out of `samples`."""
    names = list(tasks or range(len(values)))
    rows = list(evaluate.metrics_of("backend"))
    sums = np.zeros((len(values), 2 * len(rows)))
    place = 2 * rows.index("success")
    sums[:, place], sums[:, place + 1] = values, samples
    return types.SimpleNamespace(domain="backend", sums=dict(zip(names, sums)),
                                 rewards={name: [0.0] for name in names})


def paired_difference(run, base, tasks, resamples):
    return evaluate.paired_difference(run, base, tasks, argparse.Namespace(resamples=resamples, seed=0))["success"]


def interval(values, resamples=10_000, samples=1):
    sums = np.array(list(summary(values, samples).sums.values()))
    return evaluate.intervals(sums, resamples, 0, evaluate.metrics_of("backend"), shares=["success"])["success"]


def width(numbers):
    return numbers["high"] - numbers["low"]


def test_the_bootstrap_agrees_with_a_plain_loop():
    values = np.random.default_rng(1).random((40, 3))
    fast = evaluate.bootstrap_sums(values, 20_000, seed=0)
    rng = np.random.default_rng(7)
    slow = np.array([values[rng.choice(40, size=40)].sum(axis=0) for _ in range(20_000)])
    assert np.abs(fast.mean(axis=0) - slow.mean(axis=0)).max() < 0.05
    assert np.abs(np.percentile(fast, [2.5, 50, 97.5], axis=0)
                  - np.percentile(slow, [2.5, 50, 97.5], axis=0)).max() < 0.15


def test_the_interval_has_the_width_of_the_binomial():
    values = (np.arange(1000) < 400).astype(float)
    numbers = interval(values)
    assert width(numbers) == pytest.approx(2 * 1.96 * (0.4 * 0.6 / 1000) ** 0.5, rel=0.05)
    assert numbers["low"] < numbers["value"] == 0.4 < numbers["high"]


def test_samples_of_one_task_are_drawn_together():
    values = (np.arange(200) < 80).astype(float)
    once = interval(values, 5000)
    five = interval(values * 5, 5000, samples=5)    # five equal samples a task
    assert width(five) == pytest.approx(width(once)), "equal samples carry no information: the interval must not shrink"


def test_the_difference_is_paired():
    rng = np.random.default_rng(0)
    base = (rng.random(500) < 0.4).astype(float)
    better = np.maximum(base, rng.random(500) < 0.1)  # the same tasks, some more solved
    difference = paired_difference(summary(better), summary(base), summary(base).sums, 5000)
    assert difference["value"] == pytest.approx(better.mean() - base.mean()) and difference["low"] > 0
    apart = [width(interval(values, 5000)) for values in (base, better)]
    assert width(difference) < 0.7 * np.hypot(*apart), "the difficulty of the tasks must cancel"
    same = paired_difference(summary(base), summary(base), summary(base).sums, 500)
    assert (same["value"], same["low"], same["high"]) == (0, 0, 0)


def test_intervals_of_shares_near_0_and_1_cover():
    """0 of 24 by Wilson: 1.96^2 / (24 + 1.96^2) = 0.138."""
    none, every = interval(np.zeros(24)), interval(np.ones(24))
    assert (none["low"], none["high"]) == (0, pytest.approx(0.138, abs=1e-3))
    assert (every["low"], every["high"]) == (pytest.approx(1 - 0.138, abs=1e-3), 1)
    many = interval(np.zeros(24), samples=100)
    assert many["high"] == pytest.approx(none["high"]), "samples of one task add no tasks"
    rng = np.random.default_rng(0)
    for tasks, share in ((24, 0.02), (60, 0.97), (200, 0.03)):
        drawn = [interval((rng.random(tasks) < share).astype(float), 200) for _ in range(300)]
        assert np.mean([one["low"] <= share <= one["high"] for one in drawn]) > 0.92, (tasks, share)


def test_the_difference_uses_the_common_tasks_in_whatever_order():
    run_a, run_b = summary([1, 0, 1], tasks=["a", "b", "c"]), summary([0, 1, 1], tasks=["x", "c", "a"])
    difference = paired_difference(run_a, run_b, ["a", "c"], 500)
    assert difference["value"] == 0 == width(difference)


def scored_file(path, *records):
    """A scored file without the scoring: half-right answers have the reward 0.5."""
    rewards, more = {RIGHT: 1.0, HALF: 0.5}, {"mode": "module", "tests": {}}
    return write(path, [record | {"reward": rewards[record["answer"]]} | more for record in records])


def test_a_task_is_its_content_and_not_its_name(tmp_path):
    """Task ids repeat over seeds with other tasks: two such files must never be paired."""
    scored_file(tmp_path / "a.jsonl", *[trajectory(n, RIGHT) for n in range(4)])
    other = [trajectory(n, HALF) for n in range(4)]
    for record in other:
        record["task"] |= {"ground_truth": record["task"]["ground_truth"] + "# another task\n"}
    scored_file(tmp_path / "b.jsonl", *other)
    refused = run(tmp_path, "--compare", "a=a.jsonl", "b=b.jsonl", code=2).stderr
    assert "a.jsonl" in refused and "b.jsonl" in refused and "no task in common" in refused
    scored_file(tmp_path / "c.jsonl", trajectory(0, HALF), *other[1:])
    said = run(tmp_path, "--compare", "a=a.jsonl", "c=c.jsonl").stdout
    assert "WARNING: columns and differences use only the 1 tasks that all runs have, of 4" in said and "-100.0 [-100.0, -100.0]" in said
    scored_file(tmp_path / "d.jsonl", *[trajectory(n, RIGHT) for n in (0, 1)], *other[2:])
    assert "WARNING" not in run(tmp_path, "--compare", "a=a.jsonl", "d=d.jsonl").stdout, "half of them is enough"


def test_columns_and_differences_rest_on_the_same_tasks(tmp_path):
    scored_file(tmp_path / "a.jsonl", *[trajectory(n, RIGHT if n < 2 else HALF) for n in range(6)])
    scored_file(tmp_path / "b.jsonl", *[trajectory(n, RIGHT) for n in range(4)])
    said = run(tmp_path, "--compare", "a=a.jsonl", "b=b.jsonl").stdout
    result = compared(tmp_path, "a=a.jsonl", "b=b.jsonl")
    assert [result[name]["metrics"]["tasks"] for name in "ab"] == [4, 4] and "| 4 x 1" in said
    assert result["a"]["metrics"]["success"]["value"] == 0.5 and result["b"]["metrics"]["success"]["value"] == 1
    assert result["b"]["difference"]["success"]["value"] == 0.5
    assert "a: columns and differences use only the 4 tasks that all runs have, of 6 in a.jsonl" in said


def test_episodes_that_failed_are_counted_and_shown(tmp_path):
    broken = [trajectory(n, HALF, finish="error: the server is gone") for n in range(3)]
    scored_file(tmp_path / "a.jsonl", *broken, trajectory(3, RIGHT))
    scored_file(tmp_path / "b.jsonl", *[trajectory(n, RIGHT) for n in range(4)])
    said = run(tmp_path, "--compare", "b=b.jsonl", "a=a.jsonl").stdout
    assert re.search(r"failed by an error +\| 0.0% \[.*\| 75.0% \[", said)
    assert "a: 3 x error: the server is gone" in said


def test_runs_with_other_humans_get_a_note(tmp_path):
    scored_file(tmp_path / "a.jsonl", trajectory(0, RIGHT))
    scored_file(tmp_path / "b.jsonl", trajectory(0, RIGHT, simulator="llama"))
    said = run(tmp_path, "--compare", "a=a.jsonl", "b=b.jsonl").stdout
    assert "b: WARNING: the human is llama; in a it is scripted" in said
    assert "the human is" not in run(tmp_path, "--compare", "a=a.jsonl", "b=a.jsonl").stdout


def test_the_cost_of_a_run_stands_beside_its_success(tmp_path, monkeypatch):
    cost = {"episodes": 2400, "sampled_tokens": 1234567, "simulator_calls": 9000, "optimizer_steps": 410,
            "training_tokens": 7654321}
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy/cost.json").write_text(json.dumps(cost))
    scored_file(tmp_path / "a.jsonl", trajectory(0, RIGHT))
    scored_file(tmp_path / "b.jsonl", trajectory(0, RIGHT) | {"model": "policy"})
    said = run(tmp_path, "--compare", "a=a.jsonl", "b=b.jsonl").stdout
    cells = {row[1].strip(): (row[2].strip(), row[3].strip()) for row in
             (line.split("|") for line in said.splitlines() if line.startswith("|"))}
    assert cells["success"][1].startswith("100.0%") and cells["cost: episodes"] == ("", "2,400"), "unknown is blank"
    assert cells["cost: sampled tokens"][1] == "1,234,567" and cells["cost: simulator calls"][1] == "9,000"
    assert cells["cost: optimizer steps"][1] == "410" and cells["cost: training tokens"][1] == "7,654,321"
    monkeypatch.chdir(tmp_path)    # the record names the model's folder as rollout.py was given it
    assert compared(tmp_path, "a=a.jsonl", "b=b.jsonl")["b"]["cost"] == cost
    scored_file(tmp_path / "b.jsonl", trajectory(0, RIGHT) | {"model": "policy", "fingerprints": {"model": "another"}})
    assert "1,234,567" not in run(tmp_path, "--compare", "a=a.jsonl", "b=b.jsonl").stdout, "the folder was trained anew"


def test_what_cannot_be_shown_is_one_sentence(tmp_path):
    scored_file(tmp_path / "a.jsonl", trajectory(0, RIGHT))
    record = json.loads((tmp_path / "a.jsonl").read_text())
    write(tmp_path / "a.jsonl", [{name: value for name, value in record.items() if name != "answer"}])
    refused = run(tmp_path, "--compare", "a=a.jsonl", "--report", "r.html", code=2).stderr
    assert "the key 'answer' is missing" in refused and "Traceback" not in refused


def test_an_episode_counts_once(tmp_path):
    scored_file(tmp_path / "a.jsonl", trajectory(0, RIGHT), trajectory(0, RIGHT))
    assert "appears twice" in run(tmp_path, "--compare", "a=a.jsonl", code=2).stderr


def test_compare_prints_a_markdown_table_with_differences(tmp_path):
    files = {}
    for name, share in (("base", 3), ("sweet", 7)):
        source = write(tmp_path / f"{name}.trajectories.jsonl",
                       [trajectory(n, RIGHT if n < share else HALF) for n in range(10)])
        run(tmp_path, "--in", source)
        files[name] = tmp_path / f"{name}.scored.jsonl"
    pairs = [f"{name}={path}" for name, path in files.items()]
    done = run(tmp_path, "--compare", *pairs, "--report", "c.html")
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1 and len({len(line) for line in lines}) == 1, "one table"
    assert "base" in lines[0] and "sweet" in lines[0] and "10 x 1" in lines[2]
    assert lines[3].startswith("| success ") and "30.0% [" in lines[3] and "70.0% [" in lines[3]
    assert lines[4].startswith("| success, vs base") and "+40.0 [+" in lines[4]
    result = compared(tmp_path, *pairs)
    assert result["sweet"]["difference"]["success"]["value"] == pytest.approx(0.4)
    assert result["base"]["difference"] == {}
    data = data_of(tmp_path / "c.html")
    assert any("+40.0 [+" in text for row in data["table"] for text in row) and len(data["tasks"]) == 10
    assert all([episode["run"] for episode in task["episodes"]] == ["base", "sweet"] for task in data["tasks"])


def test_the_same_seed_gives_the_same_intervals(scored):
    folder, _ = scored
    path = "a=runs/default/test.scored.jsonl"
    assert run(folder, "--compare", path).stdout == run(folder, "--compare", path).stdout
    assert run(folder, "--compare", path, "--resamples", "5").stdout != run(folder, "--compare", path).stdout


# ---- Resume


LONG = "def double(x):\n    if not x:\n        import time\n        time.sleep(%s)\n    return 2 * x\n"


def start(folder, *arguments):
    """evaluate.py beside the test."""
    return running(sys.executable, ROOT / "evaluate.py", *arguments, *PATIENT, cwd=folder, stdout=subprocess.DEVNULL,
                   stderr=subprocess.PIPE)


def wait_for_lines(process, path, count):
    """Until a process has written so many lines."""
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < count):
        time.sleep(0.01)


def test_a_killed_scoring_goes_on_and_gives_the_same_file(tmp_path):
    records = [trajectory(n, LONG % 4 if n == 40 else RIGHT if n % 2 else HALF) for n in range(60)]
    whole = write(tmp_path / "whole.trajectories.jsonl", records)
    run(tmp_path, "--in", whole)
    parts = write(tmp_path / "parts.trajectories.jsonl", records)
    out = tmp_path / "parts.scored.jsonl"
    with start(tmp_path, "--in", parts) as process:
        wait_for_lines(process, out, 5)
    held = out.read_bytes()
    assert 5 <= held.count(b"\n") < 60, "the kill came in the middle"
    out.write_bytes(held + b'{"task_id": "t-0')  # as a kill within a line leaves it
    run(tmp_path, "--in", parts)
    assert out.read_bytes().startswith(held[:held.rindex(b"\n") + 1])
    assert ([line for line in out.read_bytes().splitlines()]
            == (tmp_path / "whole.scored.jsonl").read_bytes().splitlines())


def test_ctrl_c_is_quiet_and_leaves_whole_lines(tmp_path):
    path = write(tmp_path / "a.trajectories.jsonl", [trajectory(n, LONG % 60 if n == 9 else RIGHT) for n in range(20)])
    out = tmp_path / "a.scored.jsonl"
    with start(tmp_path, "--in", path) as process:
        wait_for_lines(process, out, 1)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130 and "Traceback" not in said
    assert said.splitlines()[-1] == "evaluate.py: stopped; the same command without --overwrite resumes"
    assert out.read_bytes().endswith(b"\n")


def test_no_next_command_is_guessed_from_the_name_of_a_file(tmp_path):
    """A test split called pretrained.test was once sent to train the critic."""
    path = write(tmp_path / "pretrained.test.trajectories.jsonl", [trajectory(0, RIGHT)])
    said = run(tmp_path, "--in", path).stdout
    assert "train_critic" not in said and "wrote" in said


def test_resuming_a_finished_file_changes_nothing(scored):
    folder, _ = scored
    path = folder / "runs/default/test.scored.jsonl"
    before = path.read_bytes(), path.stat().st_mtime_ns
    assert "already scored" in run(folder, "--split", "test").stdout
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize("change", ["answer", "dialogue", "settings", "gone"])
def test_a_reward_is_never_kept_for_an_episode_that_changed(tmp_path, change):
    source = write(tmp_path / "a.trajectories.jsonl", [trajectory(0, RIGHT), trajectory(1, RIGHT)])
    run(tmp_path, "--in", source)
    before = (tmp_path / "a.scored.jsonl").read_bytes()
    new = [trajectory(0, RIGHT),
           trajectory(1, BROKEN if change == "answer" else RIGHT, turns=3 if change == "dialogue" else 2)]
    write(source, new[:1] if change == "gone" else new)
    done = run(tmp_path, "--in", source, *(["--mode", "released"] if change == "settings" else []), code=2)
    assert "--overwrite" in done.stderr and done.stderr.count("\n") == 1
    assert (tmp_path / "a.scored.jsonl").read_bytes() == before
    assert ("mode was 'module', now 'released'" if change == "settings" else "content of --in") in done.stderr
    run(tmp_path, "--in", source, "--overwrite")
    assert [record["reward"] for record in read_lines(tmp_path / "a.scored.jsonl")] == [1.0, 0.0][:2 - (change == "gone")] \
        or change in ("dialogue", "settings")


# ---- The report


OPEN_ALL = "document.querySelectorAll('details').forEach(details => { details.open = true })"


def data_of(path):
    """What evaluate.py filled into the template."""
    raw = path.read_text()
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', raw, re.DOTALL)
    assert len(found) == 1 and "{{" not in raw.split("<style>")[0]
    return json.loads(found[0], parse_constant=lambda name: pytest.fail(f"{name} is no JSON for a browser"))


@pytest.fixture(scope="module")
def chromium():
    render = pytest.importorskip("render")
    playwright = pytest.importorskip("playwright.sync_api")
    try:
        path = render.find_chromium()
    except RuntimeError as problem:
        pytest.skip(str(problem))
    with playwright.sync_playwright() as session:
        yield session.chromium.launch(executable_path=path, args=["--no-sandbox"])


@pytest.fixture
def browser(chromium):
    """A function that opens a file in a real Chromium; whatever it loads, runs or complains about fails the test."""
    trouble = []

    def show(path, **options):
        page = chromium.new_page(**options)
        page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        page.on("console", lambda message: trouble.append(message.text))
        page.on("dialog", lambda dialog: (trouble.append(f"ran: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: request.url.startswith("data:image/") or request.url == path.as_uri()
                or trouble.append(f"loaded: {request.url}"))
        page.goto(path.as_uri())
        return page

    show.trouble = trouble
    yield show
    assert not trouble, trouble


def test_the_report_shows_dialogue_answer_reference_and_tests(scored, browser):
    folder, _ = scored
    page = browser(folder / "report.html")
    assert page.locator("details.episode").count() == 6 == page.locator("section.task").count()
    assert page.locator("details.episode").first.get_attribute("open") is not None, "a dialogue is seen at once"
    assert page.locator("details.episode .body").count() == 1, "the others are made when they are opened"
    page.evaluate(OPEN_ALL)
    text = page.inner_text("body")
    for expected in ("What is the factor?", "The factor is 2.", "I wonder.", "double(9)", "error: SyntaxError",
                     "told: factor", "error: the server is gone", "0.50 partly solved", "33.3% [", "1.00 solved"):
        assert expected in text, expected
    half = page.locator("details.episode", has_text="0.50 partly solved")
    marked = {kind: [text[1:].strip() for text in half.locator(f"pre .{kind}").all_inner_texts() if text[1:].strip()]
              for kind in ("bad", "good")}    # lines that differ
    assert marked == {"bad": ["return 2 * x", "NUMBER = 1"], "good": ["return 2 * x if x < 5 else 0"]}


def test_an_answer_that_equals_the_reference_is_shown_as_well():
    record = trajectory(0, RIGHT)
    record["task"]["ground_truth"] = RIGHT
    assert evaluate.changed_lines(record) == [" def double(x):", "     return 2 * x"]
    fenced = record | {"answer": f"Here:\n```python\n{RIGHT}```\n"}
    assert evaluate.changed_lines(fenced) == evaluate.changed_lines(record), "the program, not the prose"
    assert evaluate.changed_lines(record | {"answer": HALF})[1:] == [
        "-    return 2 * x", "+    return 2 * x if x < 5 else 0"]


def test_the_report_is_filtered_by_run_result_and_words(tmp_path, browser):
    scored_file(tmp_path / "a.jsonl", trajectory(0, RIGHT), trajectory(1, HALF))
    scored_file(tmp_path / "b.jsonl", trajectory(0, HALF), trajectory(1, RIGHT))
    run(tmp_path, "--compare", "first=a.jsonl", "second=b.jsonl", "--report", "r.html")
    page = browser(tmp_path / "r.html")
    shown = lambda: page.locator("details.episode:visible > summary").all_inner_texts()  # noqa: E731
    assert len(shown()) == 4 and "4 shown" in page.inner_text("#count")
    page.select_option("#run", "second")
    assert len(shown()) == 2 and all("second" in text for text in shown())
    page.select_option("#result", "solved")
    assert len(shown()) == 1 and page.locator("section.task:visible").count() == 1
    page.select_option("#run", "")
    page.select_option("#result", "")
    page.fill("#words", "double it, 1")
    assert len(shown()) == 2 and page.inner_text("section.task:visible h3") == "t-001"
    page.fill("#words", 'no such "words"')
    assert not shown()


HOSTILE = ["<script>alert(1)</script>", "</script><script>alert(2)</script>", "\"><img src=x onerror=alert(3)>",
           "' onload='alert(4)", "</style><svg onload=alert(5)>", "<!-- -->]]>&lt;b&gt;&amp;", "<!--<script>",
           "</pre></details><iframe src=javascript:alert(6)>", "{{data}} {{policy}} ${alert(8)} __proto__",
           "<meta http-equiv=refresh content='0;url=http://a.invalid/'>", "\u2028\u202e\x00\x1b[31m\ud83d"]


def test_nothing_from_a_record_becomes_markup_in_the_report(tmp_path, browser):
    records = []
    for number, text in enumerate(HOSTILE):
        record = trajectory(number, f"{text}\n{RIGHT}", finish=f"error: {text}", model=text)
        record["task_id"] = f"{text} {number}"
        record["task"] |= {"task_id": record["task_id"], "problem_description": text,
                           "ground_truth": f"X = {text!r}\n" + RIGHT, "test_cases": {text: f"double({text!r})"},
                           "facts": [{"detail": text, "reply": text, "question": text}]}
        for turn, advantage in zip(record["dialogue_history"], (None, float("nan"), None, 0.5)):
            turn["content"] = text + turn["content"]
            turn["output"] = f"{text} OUTPUT: {text}"
            turn["advantage"] = advantage
        records.append(record)
    run(tmp_path, "--in", write(tmp_path / "a.trajectories.jsonl", records))
    run(tmp_path, "--compare", "<i onclick>alert(7)</i>=a.scored.jsonl", "--report", "a.html")
    raw, template = (tmp_path / "a.html").read_text(), (ROOT / "report.html").read_text()
    data_of(tmp_path / "a.html")    # the data ends where it should
    assert raw.count("<script") == template.count("<script") == 2 and raw.count("<!--") == template.count("<!--") == 1
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", raw)
    page = browser(tmp_path / "a.html")
    page.evaluate(OPEN_ALL)
    page.wait_for_timeout(200)
    tags = set(page.evaluate("[...document.querySelectorAll('*')].map(node => node.localName)"))
    assert not tags & {"img", "iframe", "object", "form", "a", "link"}
    assert page.locator("script").count() == 2 and page.locator("meta").count() == 3
    attributes = page.evaluate("[...document.querySelectorAll('*')].flatMap(node => node.getAttributeNames())")
    assert not [name for name in attributes if name.startswith("on") or name in ("href", "srcdoc")]
    text = page.inner_text("body")
    for hostile in HOSTILE[:-1]:
        assert hostile in text, "a person still reads the text as it was"


def test_the_reports_policy_lets_nothing_else_run_or_load(scored, browser, tmp_path):
    folder, _ = scored
    raw = (folder / "report.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', raw)[1]
    assert "default-src 'none'" in policy and "img-src data:" in policy and "unsafe" not in policy
    assert policy.count("'sha256-") == 2 and not re.findall(r"https?://", raw)
    page = browser(folder / "report.html")
    assert "6 shown" in page.inner_text("#count"), "its own script runs under the policy"
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).position") == "sticky", "so does its style"
    changed = tmp_path / "changed.html"    # a script that its hash does not name
    changed.write_text(raw.replace('"use strict";', '"use strict"; alert(1);'))
    browser(changed)
    assert len(browser.trouble) == 1 and "Content Security Policy" in browser.trouble[0]
    browser.trouble.clear()


def test_a_report_never_takes_the_place_of_its_template(tmp_path):
    for name in ("evaluate.py", "records.py", "sandbox.py", "report.html"):
        shutil.copy(ROOT / name, tmp_path)
    scored_file(tmp_path / "a.jsonl", trajectory(0, RIGHT))
    done = subprocess.run([sys.executable, "evaluate.py", "--compare", "a=a.jsonl", "--report", "report.html"],
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "report.html" in done.stderr and done.stderr.count("\n") == 1
    assert (tmp_path / "report.html").read_bytes() == (ROOT / "report.html").read_bytes()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_fits_the_width_of_a_phone(scored, browser, width):
    folder, _ = scored
    page = browser(folder / "report.html", viewport={"width": width, "height": 800})
    page.evaluate(OPEN_ALL)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_report_holds_advantages(tmp_path, browser):
    record = trajectory(0, RIGHT, turns=3)
    replies = [turn for turn in record["dialogue_history"] if turn["role"] == "assistant"]
    replies[0]["advantage"], replies[2]["advantage"] = 0.25, -0.5
    other = trajectory(1, RIGHT)
    other["dialogue_history"][1]["advantage"] = 0.125
    scored_file(tmp_path / "r/test.scored.jsonl", record, other)
    run(tmp_path, "--compare", "a=r/test.scored.jsonl", "--report", "new/er/a.html")
    page = browser(tmp_path / "new/er/a.html")
    page.evaluate(OPEN_ALL)
    bars = page.eval_on_selector_all(".bar i", "bars => bars.map(bar => [bar.className, bar.style.width])")
    assert bars == [["up", "25%"], ["down", "50%"], ["up", "50%"]], "signed, and as long as the value says"
    assert [text for text in page.locator(".who").all_inner_texts() if text.startswith("advantage")] == [
        "advantage +0.250", "advantage \u22120.500", "advantage +0.125"]


def test_the_report_says_what_each_reply_told_and_what_was_never_told(tmp_path, browser):
    record = trajectory(0, RIGHT, turns=3)
    record["task"]["facts"].append({"detail": "sign <b>", "reply": "It stays."})
    scored_file(tmp_path / "a.jsonl", record)
    run(tmp_path, "--compare", "a=a.jsonl", "--report", "a.html")
    page = browser(tmp_path / "a.html")
    humans = [text.split("\n") for text in page.locator(".turn:not(.agent)").all_inner_texts()]
    assert ["told: factor" in text for text in humans] == [False, True, True]
    assert "never told: sign <b>" in page.inner_text("body")


def test_the_report_opens_with_success_and_the_curves_of_training(tmp_path, browser):
    scored_file(tmp_path / "a.jsonl", *[trajectory(n, RIGHT if n else HALF) for n in range(4)])
    scored_file(tmp_path / "b.jsonl", *[trajectory(n, RIGHT) for n in range(4)])
    for name, side in (("critic", "advantage"), ("policy", "reward")):
        write(tmp_path / name / "metrics.jsonl", [
            {"step": n + 1, "loss": 0.7 / (n + 1), "accuracy": 0.5, f"{side}_chosen": 0.1 * n, f"{side}_rejected": -0.1 * n,
             "held_out_accuracy": 0.25} for n in range(250)])
    run(tmp_path, "--compare", "a <i>=a.jsonl", "b=b.jsonl", "--report", "r.html", "--curves", "critic=critic",
        "policy </script>=policy")
    data = data_of(tmp_path / "r.html")
    assert set(data["curves"]) == {"loss", "accuracy", "held_out_accuracy", "margin: chosen - rejected"}
    line = data["curves"]["margin: chosen - rejected"]["policy </script>"]
    assert len(line) == 84 and line[0] == pytest.approx([3, 0.2]) and line[-1] == pytest.approx([250, 49.8])
    assert data["bars"][0][:2] == ["a <i>", 0.75] and data["bars"][0][2] < 0.75 < data["bars"][0][3]
    page = browser(tmp_path / "r.html")
    assert page.locator("#charts svg").count() == 5 and page.locator("#charts polyline").count() == 8
    assert page.locator("#charts rect").count() == 2
    assert page.locator("#charts figcaption").first.inner_text() == "success, with 95% intervals"
    text = " ".join(page.locator("#charts svg text").all_text_contents())
    assert "a <i>" in text and "policy </script>" in text and "75.0" in text and "step 250" in text
    assert page.evaluate("document.querySelector('#charts').compareDocumentPosition(document.querySelector('#runs')) & 4")
    done = run(tmp_path, "--compare", "a=a.jsonl", "--report", "r.html", "--curves", "c=nowhere", code=2)
    assert "nowhere/metrics.jsonl" in done.stderr and "Traceback" not in done.stderr


def test_the_report_limit_counts_dialogues(tmp_path):
    for name in ("a", "b"):
        scored_file(tmp_path / f"{name}.jsonl", *[trajectory(n, RIGHT, sample=k) for n in range(5) for k in range(3)])
    run(tmp_path, "--compare", "a=a.jsonl", "b=b.jsonl", "--report", "a.html", "--report-limit", 8)
    data = data_of(tmp_path / "a.html")
    assert [[episode["run"] for episode in task["episodes"]] for task in data["tasks"]] == [[*"aaabbb"], [*"ab"]]
    assert data["total"] == 30


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_trajectories(tmp_path):
    peaks = []
    for count in (500, 5000):
        source = tmp_path / f"{count}.trajectories.jsonl"
        with open(source, "w") as file:  # record by record: a child inherits the peak of the process that starts it
            file.writelines(json.dumps(trajectory(n, RIGHT + "#" * 5000)) + "\n" for n in range(count))
        with running(sys.executable, ROOT / "evaluate.py", "--in", source, stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL) as process:
            _, status, usage = os.wait4(process.pid, 0)
        assert status == 0
        peaks.append(usage.ru_maxrss)
    assert peaks[1] < peaks[0] * 1.25, peaks
