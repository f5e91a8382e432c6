"""--lora: products beside frozen weights. What is saved is a plain model, and neither kills nor ranks change it."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import lm
import train_critic
import train_policy
from conftest import ROOT, call, make_data, metrics, running

STEPS = ["--in", "scored.jsonl", "--pair-rule", "all", "--model", "base", "--lr", "1e-3", "--batch-size", 8,
         "--max-steps", 3, "--lora", 4, "--save-every", 1]
PAIRS = ["--method", "multi-turn-dpo", *STEPS]


@pytest.fixture
def place(tmp_path, monkeypatch):
    pytest.importorskip("peft")
    make_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weights(folder):
    return load_file(Path(folder) / "model.safetensors")


def test_what_is_saved_is_a_plain_model_with_changes_of_the_given_rank(place):
    assert call(train_policy, *PAIRS, "--out", "out")[0] == 0
    before, after = weights("base"), weights("out")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "_proj" in name}
    for name in changed:
        sizes = torch.linalg.svdvals((after[name] - before[name]).double())
        assert sizes[3] > 1e-7 > sizes[4]    # the rest is rounding
    device, args = torch.device("cpu"), lm.argparse.Namespace(pack="tree", checkpointing="none", dtype="float32")
    lm.load_model("out", device, args)    # also compares its scores with the model's own logits


def test_a_killed_run_with_adapters_resumes_exactly(place, monkeypatch):
    save = lm.save_checkpoint

    def save_and_stop(args, model, optimizer, step):
        save(args, model, optimizer, step)
        if step == 2:
            raise SystemExit(9)

    assert call(train_policy, *PAIRS, "--out", "whole")[0] == 0
    monkeypatch.setattr(train_policy, "save_checkpoint", save_and_stop)
    assert call(train_policy, *PAIRS, "--out", "halves")[0] == 9
    monkeypatch.setattr(train_policy, "save_checkpoint", save)
    assert "after step 2" in call(train_policy, *PAIRS, "--out", "halves")[1]
    assert metrics("halves") == metrics("whole")
    one, other = weights("halves"), weights("whole")
    assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.slow
def test_two_ranks_train_the_adapters_of_one(place):
    assert call(train_policy, *PAIRS, "--out", "one")[0] == 0
    with running(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
                 ROOT / "train_policy.py", *PAIRS, "--out", "two", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                 env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        said = process.communicate()[0]
    assert process.returncode == 0, said
    one, two = weights("one"), weights("two")
    assert max((one[name] - two[name]).abs().max() for name in one) < 1e-6


@pytest.mark.parametrize("head", ["log-ratio", "regression"])
def test_a_critic_with_adapters_scores_by_the_frozen_base(place, head):
    """Its reference is the seed model; a head beside the adapters is trained as well."""
    extra = [] if head == "log-ratio" else ["--head", head]
    steps = [*STEPS, "--nll", 0] if head == "log-ratio" else STEPS
    assert call(train_critic, *steps, *extra, "--out", "critic")[0] == 0
    config = json.loads(Path("critic/critic.json").read_text())
    assert Path(config["reference"]) == Path("base")
    assert call(train_critic, "--score", "candidates.jsonl", "--critic", "critic", "--out", "ranked.jsonl")[0] == 0
    ranked = [json.loads(line) for line in open("ranked.jsonl")]
    assert any(abs(candidate["advantage"]) > 1e-4 for turn in ranked for candidate in turn["candidates"])
    if head == "regression":
        assert any(config["weights"]["weight"])


def test_a_frozen_head_gets_no_gradient_buffer(monkeypatch):
    made = []
    zeros_like = torch.zeros_like
    monkeypatch.setattr(torch, "zeros_like", lambda tensor: made.append(tensor.shape) or zeros_like(tensor))
    found = []
    for frozen in (False, True):
        torch.manual_seed(0)
        hidden, weight = torch.randn(6, 8, requires_grad=True), torch.randn(30, 8, requires_grad=not frozen)
        logps = lm.TokenLogps.apply(hidden, weight, torch.arange(6), 1.0, None, 4, False)
        made.clear()
        logps.sum().backward()
        assert (weight.shape in made) == (not frozen)
        found.append(hidden.grad)
    assert torch.equal(*found)


def test_without_peft_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    make_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "peft", None)
    code, _, error = call(train_policy, *PAIRS, "--out", "out")
    assert code == 2 and "--lora needs peft: pip install peft" in error and not Path("out").exists()


def test_without_adapters_all_weights_are_trained(tmp_path, monkeypatch):
    make_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    plain = PAIRS[:PAIRS.index("--lora")]
    assert call(train_policy, *plain, "--out", "out")[0] == 0
    before, after = weights("base"), weights("out")
    assert not any(torch.equal(before[name], after[name]) for name in before if "_proj" in name or "norm" in name)
