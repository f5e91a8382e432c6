"""The examples: each runs, and does what it says."""
import argparse
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
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True,
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


def test_grpo_resumes_as_if_it_had_not_stopped(letters, monkeypatch):
    grpo = importlib.import_module("grpo")
    few = [*GRPO[:GRPO.index("--steps")], "--steps", 4, "--tasks-per-step", 2, "--samples", 4, "--save-every", 2]
    assert call(grpo, *few, "--out", "whole")[0] == 0
    save = lm.save_checkpoint

    def save_and_stop(args, model, optimizer, step):
        save(args, model, optimizer, step)
        if step == 3:    # the checkpoint is that of step 2
            raise SystemExit(9)

    monkeypatch.setattr(lm, "save_checkpoint", save_and_stop)
    assert call(grpo, *few, "--out", "halves")[0] == 9
    monkeypatch.setattr(lm, "save_checkpoint", save)
    assert "continuing halves after step 2" in call(grpo, *few, "--out", "halves")[1]
    assert metrics("halves") == metrics("whole")
    assert Path("halves/cost.json").read_text() == Path("whole/cost.json").read_text()
    one, other = (load_file(f"{folder}/model.safetensors") for folder in ("halves", "whole"))
    assert all(torch.equal(one[name], other[name]) for name in other)
    start = load_file("runs/default/base/model.safetensors")
    assert not all(torch.equal(one[name], start[name]) for name in start)


def test_the_advantage_of_grpo_is_relative_to_the_group():
    grpo = importlib.import_module("grpo")

    def record(task, reward):
        return {"task_id": task, "reward": reward, "dialogue_history": [{"role": "user", "content": "Hello"}]}

    records = [record("a", 1.0), record("b", 0.5), record("a", 0.0), record("b", 0.5), record("a", 0.5)]
    found = [(each["task_id"], each["reward"]) for each in grpo.with_advantages(records)]
    assert found == [("a", pytest.approx(1.5 ** 0.5)), ("a", pytest.approx(-(1.5 ** 0.5)))]


def test_grpo_clips_what_goes_too_far():
    grpo = importlib.import_module("grpo")
    old = torch.zeros(4)
    logps = torch.log(torch.tensor([1.5, 0.5, 1.5, 0.5])).requires_grad_()
    batch = lm.Batch(*[None] * len(lm.Batch._fields))._replace(
        reference=old, turn=torch.tensor([0, 0, 1, 1]), side=torch.tensor([0, 2]))
    items = [lm.Item([], [], reward=2.0), lm.Item([], [], reward=-1.0)]
    losses, _ = grpo.grpo_loss(logps, batch, items, argparse.Namespace(clip=0.2))
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([-2 * 1.2, -2 * 0.5, 1.5, 0.8])
    assert logps.grad.tolist() == pytest.approx([0.0, -2 * 0.5, 1.5, 0.0])    # the clipped ones have none


def test_grpo_takes_what_the_study_passes_and_a_step_may_teach_nothing(letters):
    """A random model earns nothing: every group is left out, and the output is the seed model. rollout.py goes on."""
    truth = {"ground_truth": "def f(x):\n    return x + 1", "test_cases": {str(n): f"f({n})" for n in range(10)}}
    write(letters / "train.jsonl", [{"task_id": n, "problem_description": "Write f(x).", "facts": [], **truth}
                                    for n in range(4)])
    seed = load_file("runs/default/base/model.safetensors")
    run(EXAMPLES / "grpo.py", "--seed", 3, "--domain", "backend", "--run-name", "default", "--in", "train.jsonl",
        "--max-tokens", 8, "--max-turns", 2, "--steps", 2, "--tasks-per-step", 2, "--samples", 2, "--out", "policy")
    assert [(line["tokens"], line["loss"], line["reward"]) for line in metrics("policy")] == [(0, 0, 0)] * 2
    trained = load_file("policy/model.safetensors")
    assert all(torch.equal(trained[name], seed[name]) for name in seed)
    code, said, _ = call(rollout, "--in", "train.jsonl", "--limit", 1, "--model", "policy", "--engine", "transformers",
                         "--max-turns", 2, "--max-tokens", 8, "--out", "a.trajectories.jsonl")
    assert code == 0 and "1 records" in said


@pytest.mark.parametrize("words, says", [
    (["--domain", "nowhere"], "--domain must be one of backend, frontend"),
    (["--samples", "1"], "must be at least 2"), (["--in", "none.jsonl"], "none.jsonl: no such file")])
def test_grpo_refuses_what_it_cannot_do(letters, words, says):
    code, _, error = call(importlib.import_module("grpo"), *words)
    assert code == 2 and says in error


# ---- guess_my_city.py


@pytest.fixture
def city(tmp_path, monkeypatch):
    """The example as a module, in an empty folder; its rows go out of the tables again."""
    monkeypatch.chdir(tmp_path)
    for table in (rollout.ENVIRONMENTS, evaluate.ENVIRONMENTS):
        monkeypatch.delitem(table, "city", raising=False)
    sys.modules.pop("guess_my_city", None)
    return importlib.import_module("guess_my_city")


def test_the_cities_pass_through_every_stage_as_the_docstring_has_it(city, tmp_path):
    """Its own commands, with fewer steps and samples. No stage but the two with a row needs to know the environment."""
    few = {"sft": ["--max-steps", 100], "rollout": ["--engine", "transformers", "--max-tokens", 16], "evaluate": [],
           "tasks": [], "train_critic.py": ["--max-steps", 1, "--pair-rule", "all"], "--score": [],
           "train_policy.py": ["--max-steps", 1], "grpo": ["--steps", 1, "--tasks-per-step", 2, "--samples", 2]}
    lines = [line.partition("#")[0].split() for line in city.__doc__.splitlines()]
    commands = [line[1:] for line in lines if line[:1] == ["python"]]
    assert len(commands) == 9
    for script, *words in commands:
        words = ["2" if word == "24" else word for word in words]
        name = next(name for name in few if name in (*words, script))
        name = "--score" if "--score" in words else name
        module = city if "examples/" in script else importlib.import_module(Path(script).stem)
        code, said, error = call(module, *words, *few[name])
        assert code == 0, (script, words, said, error)
    assert Path("runs/city/policy/config.json").is_file() and Path("runs/city/grpo/config.json").is_file()
    tasks = [json.loads(line)["task"] for line in open("runs/city/train.scored.jsonl")]
    assert len(tasks) == 32 and {task["domain"] for task in tasks} == {"city"}


def test_the_human_of_the_cities_tells_what_is_asked(city):
    task = city.task_of("Durban")
    asked = [{"role": "user", "content": city.REQUEST}, {"role": "assistant", "content": "Is it a capital?"}]
    assert city.scripted_reply(task, asked) == ("No, it is no capital.", ["capital"])
    guesses = [{"task": task, "answer": answer} for answer in ("Durban", " Durban.\n", "Kano", None)]
    assert [record["reward"] for record in city.score_guesses(guesses, None)] == [1, 1, 0, 0]


# ---- colbench_gym.py

TASK = {"task_id": 0, "domain": "backend", "problem_description": "Write f(x). It adds the usual.",
        "ground_truth": "def f(x):\n    return x + 7", "test_cases": {str(n): f"f({n})" for n in range(10)},
        "facts": [{"detail": "usual", "questions": ["How much is added?"], "reply": "I add 7."}]}


def test_functions_are_a_gymnasium_environment_that_needs_no_torch(tmp_path):
    pytest.importorskip("gymnasium")
    write(tmp_path / "tasks.jsonl", [TASK])
    (tmp_path / "use.py").write_text(f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
from gymnasium.utils.env_checker import check_env
from colbench_gym import ColBench
with ColBench({str(tmp_path / "tasks.jsonl")!r}, max_turns=2) as env:
    check_env(env, skip_render_check=True)
    boxes = env.box
    for answer, expected in (("def f(x):\\n    return x + 7", 1.0), ("def f(x):\\n    return 7", 0.1), ("Why?", 0.0)):
        request, info = env.reset(seed=0)
        assert request == "Write f(x). It adds the usual." and "at most 2 turns" in info["system"]
        reply, reward, over, cut, info = env.step("How much is added?")
        assert (reply, reward, over, cut, info["told"]) == ("I add 7.", 0.0, False, False, ["usual"])
        reply, reward, over, cut, info = env.step(answer if answer == "Why?" else "I WANT TO ANSWER:\\n" + answer)
        assert (reply, reward, over, cut) == ("", expected, True, False) and len(info["tests"]) == 10
    assert env.box is boxes    # one sandbox serves them all
    assert env.reset(options={{"task": 0}})[0] == request
assert "torch" not in sys.modules
""")
    run(tmp_path / "use.py")
