"""Parity with TRL's DPOTrainer: runs where trl is installed (make test-trl)."""
import json
from pathlib import Path

import pytest

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.trl

import lm  # noqa: E402
import train_critic  # noqa: E402
import train_policy  # noqa: E402
from conftest import call, metrics, parsed, place  # noqa: E402, F401  (place is a fixture)
from test_train import CRITIC, rank_and_train  # noqa: E402


def test_our_pairs_load_in_trl_and_five_steps_have_the_same_loss(place):  # noqa: F811
    from datasets import load_dataset
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForCausalLM, AutoTokenizer
    assert call(train_critic, *CRITIC)[0] == 0
    code, _, error = rank_and_train("--pairs-per-turn", 2, "--max-steps", 1)
    assert code == 0, error
    pairs = load_dataset("json", data_files="policy.pairs.jsonl", split="train")
    settings = ["--in", "policy.pairs.jsonl", "--model", "base", "--out", "ours", "--lr", "1e-3", "--batch-size", 4,
                "--max-steps", 5, "--nll", 0]
    code, _, error = call(train_policy, *settings)
    assert code == 0, error
    # The same pairs in the order in which our steps take them.
    flags = parsed(train_policy, *settings)
    items = train_policy.pair_items(train_policy.read_pairs("policy.pairs.jsonl"), lm.load_tokenizer("base"))
    place_of = {id(item): n for n, item in enumerate(items)}
    order = [place_of[id(item)] for step in lm.step_items(items, flags) for item in step]
    pairs = pairs.select(order).select_columns(["prompt", "chosen", "rejected"])

    class InOrder(trl.DPOTrainer):
        def _get_train_sampler(self, *args):
            return SequentialSampler(self.train_dataset)
    config = trl.DPOConfig(
        output_dir="theirs", per_device_train_batch_size=4, learning_rate=1e-3, max_steps=5, beta=0.1, max_length=None,
        logging_steps=1, lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs={"min_lr_rate": 0.1},
        warmup_steps=0, adam_beta2=0.95, max_grad_norm=1.0, use_cpu=True, bf16=False, report_to=[],
        save_strategy="no", seed=0)
    trainer = InOrder(AutoModelForCausalLM.from_pretrained("base"), args=config, train_dataset=pairs,
                      processing_class=AutoTokenizer.from_pretrained("base"))
    # Our warm-up of one step starts at the full rate; theirs is given the same rates.
    rates = [m["lr"] for m in metrics("ours")]
    trainer.create_optimizer()
    import torch
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda step: rates[min(step, 4)] / 1e-3)
    trainer.train()
    theirs = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    norms = [line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line]
    ours = metrics("ours")
    print(json.dumps({"ours": [m["loss"] for m in ours], "trl": theirs}))
    assert len(theirs) == len(ours) == 5
    assert [m["loss"] for m in ours] == pytest.approx(theirs, abs=1e-4)
    assert [m["gradient_norm"] for m in ours] == pytest.approx(norms, rel=1e-2)
    assert Path("policy.pairs.jsonl").is_file()
