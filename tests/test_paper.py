"""examples/paper.sh: the scripts take its commands, and it runs from excerpts to the result, with a stub server as the
writer and human and a tiny agent."""
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import test_house
from conftest import write
from stub_server import Stub

ROOT = Path(__file__).resolve().parents[1]
QUESTION, REPLY = "Where is it cut?", "It is cut somewhere."

needs_bash = pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")


def answer(limit):
    return f"def clip(x):\n    return max(x, {limit})"


def writer_and_human(messages, rng):
    """Writes a task that is its excerpt's own (the last term) and has one of two limits; as the human, says little."""
    excerpt = re.search(r"<excerpt>\nNote (\d+)\n</excerpt>", messages[0]["content"])
    if not excerpt:
        return REPLY
    if len(messages) > 1:
        return "There are none."
    calls = "\n".join(f"clip({x})" for x in [0, *range(3, 15)])
    number = int(excerpt[1])
    limit = [5, 9][number % 2]
    return (f"DESCRIPTION:\nI need clip(x) for my readings.\nCODE:\n{answer(limit)} + 0 * {number}\nCALLS:\n{calls}\n"
            f"DETAILS:\nQUESTION: {QUESTION}\nREPLY: At {limit}.\nFRAGMENT: {limit})\nWRONG: 7)")


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    """A tiny model that asks once and guesses one of the two limits."""
    folder = tmp_path_factory.mktemp("agent")
    rng = random.Random(0)
    said = [{"role": "user", "content": "I need clip(x) for my readings."}, {"role": "assistant", "content": QUESTION},
            {"role": "user", "content": REPLY}]
    shown = []
    for i in range(480):
        last = {"role": "assistant", "content": "I WANT TO ANSWER:\n" + answer(rng.choice([5, 9]))}
        shown.append({"task_id": f"t-{i}", "sample": 0, "domain": "backend", "dialogue_history": [*said, last]})
    flags = ["--method", "sft", "--model", "tiny", "--with-c", "0", "--lr", "2e-3", "--batch-size", "8"]
    files = ["--in", write(folder / "shown.jsonl", shown), "--out", folder / "base"]
    subprocess.run([sys.executable, ROOT / "train_policy.py", *flags, *files], check=True, capture_output=True,
                   text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return folder / "base"


@pytest.mark.slow
@needs_bash
def test_the_papers_setting_runs_from_excerpts_to_result(agent, tmp_path):
    write(tmp_path / "excerpts.jsonl", [{"text": f"Note {i}"} for i in range(100, 180)])
    asked = []
    with Stub(writer_and_human) as stub:
        settings = {"EXCERPTS": "excerpts.jsonl", "WRITER": "stub-1", "WRITER_URL": stub.url, "AGENT": str(agent),
                    "GPUS": "0", "TRAIN": "14", "TEST": "6", "CANDIDATES": "4", "PYTHON": sys.executable,
                    "OMP_NUM_THREADS": "1"}
        for _ in range(2):    # the second time nothing is left to do
            done = subprocess.run([ROOT / "examples/paper.sh"], cwd=tmp_path, capture_output=True, text=True,
                                  env={**os.environ, **settings})
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
            asked.append(len(stub.requests))
        assert asked[0] == asked[1]
    tasks = [json.loads(line) for split in ("train", "test") for line in open(tmp_path / f"data/backend/{split}.jsonl")]
    assert len(tasks) == 20 and all(task["facts"] for task in tasks)
    run = tmp_path / "runs/paper"
    played = [json.loads(line) for line in open(run / "train.scored.jsonl")]
    replies = {reply["content"] for record in played for reply in record["dialogue_history"][2::2]}
    assert len(played) == 42 and replies == {REPLY}
    assert {0 < record["reward"] < 1 for record in played} == {True, False}
    assert (run / "critic/model.safetensors").is_file() and (run / "policy/model.safetensors").is_file()
    assert sum(1 for _ in open(run / "train.pairs.jsonl")) > 20
    for agent_name in ("base", "policy"):
        assert json.loads((run / f"{agent_name}.test.metrics.json").read_text())
    assert re.search(r"sweet-rl", done.stdout)
    assert {request["model"] for request in stub.requests} == {"stub-1"}


@needs_bash
@pytest.mark.parametrize("gpus", [0, 8])
def test_the_scripts_take_every_command_of_the_papers_setting(gpus, tmp_path, monkeypatch, capsys):
    """In place of Python stands a program that writes down how it is called."""
    recorder = tmp_path / "python"
    recorder.write_text(f"#!/bin/sh\necho \"$CUDA_VISIBLE_DEVICES $*\" >> {tmp_path}/called\n")
    recorder.chmod(0o755)
    settings = {"EXCERPTS": "excerpts.jsonl", "WRITER_URL": "http://127.0.0.1:9/v1", "GPUS": str(gpus),
                "PYTHON": str(recorder)}
    subprocess.run([ROOT / "examples/paper.sh"], cwd=tmp_path, check=True, env={**os.environ, **settings})
    called = [line.replace(f"{ROOT}/", "") for line in (tmp_path / "called").read_text().splitlines()]
    scripts = [re.search(r"(\w+)\.py", line)[1] for line in called]
    assert scripts == ["generate_tasks", "rollout", "evaluate", "train_critic", "rollout", "train_critic",
                       "train_policy", "rollout", "evaluate", "rollout", "evaluate", "evaluate"]
    monkeypatch.chdir(tmp_path)
    for line in called:
        devices, arguments = line.split(" ", 1)
        on_half = gpus and "--simulator" in arguments
        assert devices == ("4,5,6,7" if on_half else os.environ.get("CUDA_VISIBLE_DEVICES", "")), line
        start = f"python {arguments}".replace("python -m torch.distributed.run", "torchrun")
        with monkeypatch.context() as patch:
            test_house.test_every_command_that_is_printed_is_taken_as_it_stands(start, patch, capsys)
