"""The examples: each runs, and does what it says."""
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import call, metrics, write
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))
import evaluate  # noqa: E402
import lm  # noqa: E402
import rollout  # noqa: E402
import train_policy  # noqa: E402


def run(*words, code=0):
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


# ---- grpo.py


async def go_on(task, dialogue, screen):
    return "Go on.", []


def share_of_e(records, args):
    """The reward of a dialogue: the share of e in what the agent says, in all of its turns."""
    for record in records:
        said = "".join(message["content"] for message in record["dialogue_history"] if message["role"] == "assistant")
        yield record | {"reward": said.count("e") / max(1, len(said))}


@pytest.fixture
def letters(tmp_path, monkeypatch):
    """A folder with tasks of an environment that rewards the letter e, and a random tiny model as runs/default/base."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(rollout.ENVIRONMENTS, "letters", rollout.Environment("Talk.", "Talk.", "", go_on, 100))
    monkeypatch.setitem(evaluate.ENVIRONMENTS, "letters", evaluate.Environment(share_of_e))
    write(tmp_path / "tasks.jsonl", [{"task_id": n, "problem_description": f"Say {n}.", "ground_truth": "e"}
                                     for n in range(4)])
    train_policy.make_tiny_model(tmp_path / "runs/default/base", ["see the bee", "a cat sat"] * 50, 300, seed=0)
    return tmp_path


GRPO = ["--domain", "letters", "--in", "tasks.jsonl", "--max-turns", 2, "--max-tokens", 6, "--steps", 8,
        "--tasks-per-step", 2, "--samples", 12, "--lr", "3e-3", "--save-every", 1]


def test_grpo_learns_to_say_what_is_rewarded_in_every_turn(letters):
    grpo = importlib.import_module("grpo")
    code, _, error = call(grpo, *GRPO)
    assert code == 0, error
    rewards = [line["reward"] for line in metrics("runs/default/grpo")]
    assert np.mean(rewards[-2:]) > np.mean(rewards[:2]) + 0.2
    cost = json.loads(Path("runs/default/grpo/cost.json").read_text())
    assert cost["episodes"] == 8 * 2 * 12 == cost["simulator_calls"]    # one reply an episode of two turns
    assert cost["optimizer_steps"] == 8 and cost["sampled_tokens"] > 0
