"""Bad input to any script: one sentence that names file, line and remedy, exit code 2, no stack trace,
nothing written over."""

import hashlib
import json
import os
import re
import subprocess
import sys

import pytest

import test_train
from test_train import ROOT

sys.path.insert(0, str(ROOT))
import function_tasks  # noqa: E402

TASK = {"task_id": "t-0", "domain": "backend", "problem_description": "Double it. Signature: def double(x)",
        "ground_truth": "def double(x):\n    return 2 * x\n", "test_cases": {str(x): f"double({x})" for x in range(10)},
        "source": "procedural:x", "replies": {}, "details": {}, "theme": "items",
        "facts": [{"detail": "f", "question": "What is f?", "reply": "f is 2."}]}
COMPOSED = {**next(function_tasks.draw_tasks("train", "plain", 0)), "task_id": "t-0", "test_cases": TASK["test_cases"]}
SAID = [{"role": "user", "content": "Double it."}, {"role": "assistant", "content": "I WANT TO ANSWER: double = None"}]
TRAJECTORY = {"task_id": "t-0", "sample": 0, "domain": "backend", "task": TASK, "dialogue_history": SAID,
              "answer": "double = None", "finish": "answered"}
SCORED = TRAJECTORY | {"reward": 0.5, "tests": {}}
PAGE_SCORE = {"domain": "frontend", "page": "ok", "cosine": {"page": 0.5, "centre": 0.5}, "encoder": "layout",
              "view": "page"}
CANDIDATES = {"task_id": "t-0", "sample": 0, "turn": 0, "prompt": SAID[:1], "task": TASK,
              "candidates": [{"output": "a"}, {"output": "b"}]}
RANKED = CANDIDATES | {"candidates": [{"output": "a", "advantage": 0.1}, {"output": "b", "advantage": 0.2}]}


def without(record, *keys):
    return {key: value for key, value in record.items() if key not in keys}


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def snapshot(folder):
    """What is in a folder: {file: digest of its content}."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob("*") if path.is_file()}


def refuse(folder, script, arguments, words, own_process=True):
    """Run a real command line that must be refused; returns what it said."""
    before = snapshot(folder)
    if own_process:
        done = subprocess.run([sys.executable, ROOT / script, *map(str, arguments)], cwd=folder, capture_output=True,
                              text=True, timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1"})
        code, out, said = done.returncode, done.stdout, done.stderr.strip()
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            code, out, said = test_train.call(sys.modules[script.removesuffix(".py")], *arguments)
        said = said.strip()
    assert code == 2, f"exit code {code}\n{out}{said}"
    assert "Traceback" not in said, said
    sentence = said.splitlines()[-1]
    assert sentence.startswith(f"{script}:"), said
    for word in words:
        assert word in sentence, f"{word!r} is not in: {sentence}"
    after = snapshot(folder)
    changed = [path for path in before if after.get(path) != before[path]]
    assert not changed, f"written over: {changed}"
    assert script.startswith("train") or after.keys() == before.keys(), f"left behind: {after.keys() - before.keys()}"
    return said


# Every script that reads JSON lines: its arguments before the file, a good record, and a key that it cannot do without.
READERS = {
    "evaluate": ("evaluate.py", ["--in"], TRAJECTORY, "answer"),
    "evaluate --compare": ("evaluate.py", ["--compare"], SCORED, "reward"),
    "rollout": ("rollout.py", ["--out", "out.jsonl", "--model", "{model}", "--in"], TASK, "problem_description"),
    "rollout --candidates": ("rollout.py", ["--candidates", "4", "--out", "out.jsonl", "--model", "{model}", "--in"],
                             SCORED, "dialogue_history"),
    "train_critic": ("train_critic.py", ["--out", "out", "--model", "{model}", "--in"], SCORED, "reward"),
    "train_policy sweet": ("train_policy.py", ["--out", "out", "--model", "{model}", "--in"], RANKED, "candidates"),
    "train_policy dpo": ("train_policy.py",
                         ["--method", "multi-turn-dpo", "--out", "out", "--model", "{model}", "--in"],
                         SCORED, "reward"),
    "train_policy sft": ("train_policy.py", ["--method", "sft", "--out", "out", "--model", "tiny", "--in"],
                         TRAJECTORY, "dialogue_history"),
    "generate_tasks": ("generate_tasks.py", ["--demonstrations", "2", "--out", "out.jsonl", "--in"], COMPOSED,
                       "problem_description"),
}
# Every reader is tried with a file that is not there and with a key that is not. What is no record at all is refused by
# records.read for all of them.
FAULTS = [(reader, fault) for reader in READERS for fault in ("missing", "missing key")] + [
    ("evaluate", fault) for fault in ("torn", "not json", "not an object", "empty", "binary")]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny model, so that a script can get as far as its input."""
    folder = tmp_path_factory.mktemp("model")
    test_train.train_policy.make_tiny_model(folder, [message["content"] for message in SAID], 400, seed=0)
    return folder


def broken_file(folder, fault, record, key):
    """A file with one fault in its second line (its first is good), and the words that the refusal must hold."""
    path = folder / "input.jsonl"
    good = lines(record)
    if fault == "missing":
        return path, ["input.jsonl"]
    if fault == "empty":
        path.write_text("")
        return path, ["input.jsonl"]
    if fault == "binary":
        path.write_bytes(good.encode() + b"\xff\xfe\x00\x01 no text\n" + good.encode())
        return path, ["input.jsonl", "line 2"]
    second = {"torn": good[:len(good) // 2], "not json": "{'task': 1}\n", "not an object": "[1, 2]\n",
              "missing key": lines(without(record, key))}[fault]
    path.write_text(good + second)
    return path, ["input.jsonl", "line 2", *([key] if fault == "missing key" else [])]


@pytest.mark.parametrize("reader, fault", FAULTS)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path, reader, fault, request):
    """The trainers in this process, for a process of its own would import torch for seconds before each sentence."""
    script, arguments, record, key = READERS[reader]
    arguments = [request.getfixturevalue("model") if argument == "{model}" else argument for argument in arguments]
    path, words = broken_file(tmp_path, fault, record, key)
    said = refuse(tmp_path, script, [*arguments, f"a={path}" if reader == "evaluate --compare" else path], words,
                  own_process=not script.startswith("train"))
    if fault in ("missing", "empty", "missing key", "torn"):
        assert re.search(r"run \w+\.py|\w+\.py\b.* writes such records|again", said), f"no remedy in: {said}"


# ---- Each script's own mistakes

OWN = [
    # script, arguments, files, words of the refusal
    ("evaluate.py", ["--in", "a.jsonl"], {"a.jsonl": lines(TRAJECTORY, TRAJECTORY)}, ["line 2", "t-0", "twice"]),
    ("evaluate.py", ["--in", "a.jsonl"], {"a.jsonl": lines(TRAJECTORY | {"task": without(TASK, "test_cases")})},
     ["line 1", "test_cases"]),
    ("evaluate.py", ["--in", "a.jsonl"],
     {"a.jsonl": lines(TRAJECTORY, TRAJECTORY | {"sample": 1, "domain": "frontend"})}, ["line 2", "frontend"]),
    ("evaluate.py", ["--in", "a.jsonl", "--out", "a.jsonl"], {"a.jsonl": lines(TRAJECTORY)},
     ["a.jsonl is the input"]),
    ("evaluate.py", ["--in", "a.jsonl", "--out", "b.txt"], {"a.jsonl": lines(TRAJECTORY)}, [".jsonl"]),
    ("evaluate.py", ["--in", "a.jsonl", "--out", "b.jsonl"], {"a.jsonl": lines(TRAJECTORY), "b.jsonl": lines(SCORED)},
     ["b.settings.json", "--overwrite"]),
    ("evaluate.py", ["--in", "a.jsonl", "--out", "b.jsonl"],
     {"a.jsonl": lines(TRAJECTORY), "b.jsonl": "what is this\n"}, ["b.settings.json", "missing"]),
    ("evaluate.py", ["--in", "a.jsonl", "--overwrite"], {"a.jsonl": "no\n", "a.scored.jsonl": lines(SCORED)},
     ["a.jsonl", "line 1"]),
    ("evaluate.py", ["--in", "."], {}, ["."]),
    ("evaluate.py", ["--in", "a.jsonl", "--out", "no/such/folder/b.jsonl"],
     {"a.jsonl": lines(TRAJECTORY), "no": "a file"}, ["no/such/folder"]),
    ("evaluate.py", ["--workers", "0"], {}, ["--workers"]),
    ("evaluate.py", ["--call-timeout", "nan"], {}, ["--call-timeout: must be above 0"]),
    ("evaluate.py", ["--call-timeout", "0"], {}, ["--call-timeout: must be above 0"]),
    ("evaluate.py", ["--program-timeout", "-1"], {}, ["--program-timeout: must be above 0"]),
    ("evaluate.py", ["--resamples", "0"], {}, ["--resamples: must be at least 1"]),
    ("evaluate.py", ["--in", "a.jsonl"], {"a.jsonl": lines(TRAJECTORY | {"domain": "weird"})}, ["line 1", "'weird'"]),
    ("evaluate.py", ["--compare", "x=a.html", "--report", "a.html"], {"a.html": lines(SCORED)}, ["is the input"]),
    ("evaluate.py", ["--compare", "x=a.jsonl", "--report", "a.jsonl"], {"a.jsonl": lines(SCORED)}, ["end in .html"]),
    ("evaluate.py", ["--in", "a.jsonl", "--report", "a.jsonl"], {"a.jsonl": lines(TRAJECTORY)}, ["end in .html"]),
    ("evaluate.py", ["--in", "a.jsonl", "--report", "b/c.html"], {"a.jsonl": lines(TRAJECTORY), "b": "a file"},
     ["b/c.html cannot be written"]),
    ("evaluate.py", ["--in", "a.jsonl", "--report", "b.html"], {"a.jsonl": lines(TRAJECTORY), "b.html/c": "a file"},
     ["b.html cannot be written: Is a directory"]),
    ("evaluate.py", ["--in", "a.jsonl", "--report", "/proc/x.html"], {"a.jsonl": lines(TRAJECTORY)},
     ["/proc/x.html cannot be written"]),
    ("evaluate.py", ["--in", "a.jsonl", "--out", "b.jsonl"],
     {"a.jsonl": lines(TRAJECTORY), "b.jsonl": lines(SCORED), "b.settings.json": "[1"}, ["b.settings.json", "damaged"]),
    ("evaluate.py", ["--in", "a.jsonl", "--out", "b.jsonl", "--overwrite", "--encoder", "nope"],
     {"a.jsonl": lines(TRAJECTORY | {"domain": "frontend"}), "b.jsonl": lines(SCORED), "b.settings.json": "{}"},
     ["evaluate.py: the image encoder 'nope' cannot be loaded"]),
    ("evaluate.py", ["--no-such-flag"], {}, ["--no-such-flag"]),
    ("evaluate.py", ["--compare", "a.jsonl"], {"a.jsonl": lines(SCORED)}, ["NAME=FILE"]),
    ("evaluate.py", ["--compare", "x=a.jsonl", "x=a.jsonl"], {"a.jsonl": lines(SCORED)}, ["--compare", "x, x"]),
    ("evaluate.py", ["--compare", "x=a.jsonl"], {"a.jsonl": lines(TRAJECTORY)},
     ["line 1", "reward", "evaluate.py writes"]),
    ("evaluate.py", ["--compare", "x=a.jsonl", "y=b.jsonl"],
     {"a.jsonl": lines(SCORED), "b.jsonl": lines(SCORED | {"task_id": "t-1"})}, ["no task in common"]),
    ("evaluate.py", ["--compare", "x=a.jsonl", "y=b.jsonl"],
     {"a.jsonl": lines(SCORED), "b.jsonl": lines(SCORED | PAGE_SCORE)}, ["b.jsonl", "frontend", "a.jsonl"]),
    ("evaluate.py", ["--compare", "x=a.jsonl", "--in", "a.jsonl"], {"a.jsonl": lines(SCORED)}, ["--compare"]),
    ("evaluate.py", ["--compare", "x=a.jsonl", "--mode=released", "--out", "b.jsonl", "--overwrite", "--encoder", "e"],
     {"a.jsonl": lines(SCORED)}, ["--encoder, --mode, --out, --overwrite do nothing with --compare"]),
    ("generate_tasks.py", ["--ask=0.6", "--in", "x", "--model", "y"], {}, ["--ask, --in, --model", "procedural"]),
    ("generate_tasks.py", ["--demonstrations", "2", "--level", "plain", "--train", "3"], {}, ["--level, --train"]),
    ("generate_tasks.py", ["--source", "llm", "--in", "x", "--model", "y", "--waste", "1"], {}, ["--waste"]),
    ("generate_tasks.py", ["--source", "colbench", "--in", "x", "--level", "plain"], {}, ["--level"]),
    ("generate_tasks.py", ["--domain", "no_such_domain"], {}, ["no_such_domain"]),
    ("generate_tasks.py", ["--train", "-1"], {}, ["--train"]),
    ("generate_tasks.py", ["--demonstrations", "2", "--ask", "2"], {}, ["--ask"]),
    ("rollout.py", ["--split", "test"], {"data/backend/test.jsonl": lines(TASK)},
     ["runs/default/base", "train_policy.py"]),
    ("rollout.py", ["--no-such-flag"], {}, ["--no-such-flag"]),
]


@pytest.mark.parametrize("script, arguments, files, words", OWN,
                         ids=[f"{case[0]} {' '.join(case[1])} {case[3][-1]}" for case in OWN])
def test_a_mistake_is_refused_in_one_sentence(tmp_path, script, arguments, files, words):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    refuse(tmp_path, script, arguments, words)


@pytest.mark.parametrize("script, arguments", [
    ("evaluate.py", ["--in", "bad.jsonl", "--out", "out.jsonl"]),
    ("rollout.py", ["--model", "{model}", "--in", "bad.jsonl", "--out", "out.jsonl"]),
    ("generate_tasks.py", ["--demonstrations", "2", "--in", "bad.jsonl", "--out", "out.jsonl"]),
    ("train_critic.py", ["--model", "{model}", "--in", "bad.jsonl", "--out", "out"]),
    ("train_policy.py", ["--model", "{model}", "--in", "bad.jsonl", "--out", "out"]),
])
def test_overwrite_removes_nothing_when_the_input_is_bad(tmp_path, script, arguments, request):
    (tmp_path / "bad.jsonl").write_text("no\n")
    for name in ("out.jsonl", "out.settings.json", "out/config.json", "out/settings.json", "out/model.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"script": script.removesuffix(".py")}) + "\n")
    arguments = [request.getfixturevalue("model") if argument == "{model}" else argument for argument in arguments]
    refuse(tmp_path, script, [*arguments, "--overwrite"], ["bad.jsonl", "line 1"])
