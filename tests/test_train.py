"""What the two training scripts promise on one process: their equations, their pairs, their files, and their errors."""
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import lm
import train_critic
import train_policy
import trees
from conftest import (  # noqa: F401  (some for the files that import them from here)
    QUESTIONS, ROOT, call, candidates, make_data, metrics, never_ending, parsed, place, read_lines, running, trajectory,
    write)
from records import fingerprint

CRITIC = ["--in", "scored.jsonl", "--model", "base", "--out", "critic", "--lr", "1e-3", "--epochs", "1",
          "--batch-size", "4"]
SCORE = ["--score", "candidates.jsonl", "--critic", "critic", "--out", "ranked.jsonl", "--overwrite"]
POLICY = ["--in", "ranked.jsonl", "--model", "base", "--lr", "1e-3", "--batch-size", "4", "--out", "policy"]


def rank_and_train(*arguments, score=SCORE, policy=POLICY):
    """--score, then the policy: (exit code, stdout, stderr) of the first that fails, or of the second."""
    done = call(train_critic, *score)
    return done if done[0] else call(train_policy, *policy, *arguments)


# Each file with what it imports


def test_each_trainer_runs_in_a_folder_with_what_it_imports(tmp_path):
    """sft from nothing, critic, annotation, sweet: by the real command lines, with nothing else of ours beside them."""
    rng = np.random.default_rng(1)
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    for name in ("train_policy.py", "lm.py", "trees.py", "records.py"):
        shutil.copy(ROOT / name, tmp_path / "one")
    for name in ("train_critic.py", "lm.py", "trees.py", "records.py"):
        shutil.copy(ROOT / name, tmp_path / "two")
    records = [trajectory(t, s, rng) for t in range(8) for s in range(3)]
    run = tmp_path / "runs" / "default"
    run.mkdir(parents=True)
    write(tmp_path / "demonstrations.jsonl", [{k: v for k, v in r.items() if k != "reward"} for r in records])
    write(run / "train.scored.jsonl", records)
    write(run / "train.candidates.jsonl", [c for r in records[::3] for c in candidates(r, rng)])

    def script(*arguments):
        done = subprocess.run([sys.executable, *map(str, arguments)], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    policy, critic = tmp_path / "one" / "train_policy.py", tmp_path / "two" / "train_critic.py"
    script(policy, "--method", "sft", "--model", "tiny", "--in", "demonstrations.jsonl", "--out", "runs/default/base",
           "--epochs", 4, "--batch-size", 8, "--with-c", 0.5)
    losses = [m["loss"] for m in metrics(run / "base")]
    assert losses[-1] < 0.6 * losses[0]
    said = script(critic, "--lr", "1e-3", "--epochs", 1)
    assert "1 of 8 tasks left out" in said and "pairs from 7 tasks" in said and "wrote the critic to" in said
    assert metrics(run / "critic")[0]["preference_loss"] == pytest.approx(math.log(2), abs=1e-6)
    script(critic, "--score", "runs/default/train.scored.jsonl")
    annotated = [json.loads(line) for line in (run / "train.annotated.jsonl").read_text().splitlines()]
    assert all("advantage" in m for r in annotated for m in r["dialogue_history"] if m["role"] == "assistant")
    said = script(critic, "--score", "runs/default/train.candidates.jsonl")
    assert "train.ranked.jsonl" in said
    said = script(policy, "--lr", "1e-3")
    assert "train.pairs.jsonl" in said and "wrote the model to" in said
    costs = [json.loads((run / name / "cost.json").read_text()) for name in ("critic", "policy")]
    assert costs[0]["episodes"] == costs[1]["episodes"] == 24
    assert costs[1]["optimizer_steps"] == costs[0]["optimizer_steps"] + len(metrics(run / "policy"))
    from transformers import AutoModelForCausalLM
    assert AutoModelForCausalLM.from_pretrained(run / "policy").config.model_type == "llama"


# The equations, by hand


def test_equation_3_is_the_mean_log_ratio_of_each_turn():
    logps = torch.tensor([-1.0, -2.0, -3.0, -0.5, -0.5])
    reference = torch.tensor([-2.0, -2.0, -6.0, -1.5, -2.5])
    turn = torch.tensor([0, 0, 0, 1, 1])
    # turn 0: (1 + 0 + 3) / 3; turn 1: (1 + 2) / 2
    assert train_critic.turn_advantages(logps, reference, turn, 2).tolist() == pytest.approx([4 / 3, 1.5])


@pytest.mark.parametrize("kind, expected", [("mean-per-turn", [4 / 3 + 1.5, -1.0]),
                                            ("mean-per-trajectory", [7 / 5, -1.0]), ("sum", [7.0, -2.0])])
def test_trajectory_scores_by_hand(kind, expected):
    logps = torch.tensor([-1.0, -2.0, -3.0, -0.5, -0.5, -4.0, -2.0])
    reference = torch.tensor([-2.0, -2.0, -6.0, -1.5, -2.5, -2.0, -2.0])
    turn, side = torch.tensor([0, 0, 0, 1, 1, 2, 2]), torch.tensor([0, 0, 1])
    assert train_critic.trajectory_scores(logps, reference, turn, side, 2, kind).tolist() == pytest.approx(expected)


def test_equations_2_and_4_by_hand():
    # beta (chosen - rejected) = 0.1 * 10 = 1: -log sigmoid(1) = log(1 + e^-1) = 0.3132617
    chosen, rejected = torch.tensor([6.0, 0.0]), torch.tensor([-4.0, 0.0])
    for loss in (train_critic.bradley_terry_loss, train_policy.dpo_loss):
        assert loss(chosen, rejected, 0.1).tolist() == pytest.approx([0.3132617, math.log(2)], abs=1e-6)


def test_value_loss_by_hand():
    # -log sigmoid(2) = 0.1269280; -log(1 - sigmoid(2)) = 2.1269280
    logits, success = torch.tensor([2.0, 2.0]), torch.tensor([1.0, 0.0])
    assert train_critic.value_loss(logits, success).tolist() == pytest.approx([0.1269280, 2.1269280], abs=1e-6)
    assert train_critic.last_of_turn(
        torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0, 0, 1, 1]), 2).tolist() == [2.0, 4.0]


def test_a_value_critics_loss_is_the_mean_over_turns():
    """Two turns of a success, told by their last tokens' values 2 and -2, and one turn of a failure, told by 2."""
    values, turn = torch.tensor([9.0, 2.0, 9.0, -2.0, 2.0]), torch.tensor([0, 0, 1, 1, 2])
    batch = SimpleNamespace(turn=turn, side=torch.tensor([0, 0, 2]))  # a trajectory has no rejected side
    items = [lm.Item([0], [], ("", n), label) for n, label in enumerate((1.0, 0.0))]
    losses, stats = train_critic.critic_loss(values, batch, items, SimpleNamespace(head="value"))
    assert losses.tolist() == pytest.approx([(0.1269280 + 2.1269280) / 2, 2.1269280], abs=1e-5)
    assert stats["accuracy"].tolist() == [1, 0, 0]


def test_learning_rate_warms_up_and_ends_at_a_tenth():
    rates = [lm.learning_rate(s, 100, 1.0) for s in range(100)]
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert rates[3] == pytest.approx(1.0) and rates[99] == pytest.approx(0.1, abs=1e-3)
    assert rates[3 + 97 // 2] == pytest.approx(0.55, abs=0.02)  # half way down the cosine


# The same losses from whole logits, one sequence at a time


def plain_logps(model, ids, scored):
    """Log-probabilities of ids[scored] from the model's own forward pass and logits."""
    logits = model(input_ids=torch.tensor(ids[None].astype(np.int64))).logits[0].float()
    logps = torch.log_softmax(logits, -1)
    return logps[torch.tensor(scored - 1), torch.tensor(ids[scored].astype(np.int64))]


def first_gradient(module, command, place):
    """Loss and gradients of a script's first step, seen just before the optimizer runs."""
    seen = {}
    real = module.optimizer_step

    def spy(model, optimizer, rate):
        seen.update({name: p.grad.clone() for name, p in model.named_parameters()})
        return real(model, optimizer, rate)
    module.optimizer_step = spy
    try:
        code, _, error = call(module, *command, "--max-steps", 1)
    finally:
        module.optimizer_step = real
    assert code == 0, error
    return metrics(place / command[command.index("--out") + 1])[0]["loss"], seen


def perturbed(source, target):
    """A copy of the model with other weights, so that it is not its own reference."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained(source)
    torch.manual_seed(5)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn_like(p))
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source).save_pretrained(target)


@pytest.mark.parametrize("advantage", ["mean-per-turn", "mean-per-trajectory", "sum"])
@pytest.mark.parametrize("context", ["with-c", "without-c"])
def test_the_critics_gradient_equals_an_independent_one(place, advantage, context):
    """Eq. 2 and 3 computed turn by turn from whole logits, as a loop over dialogues,
    against the script's first step."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    loss, gradient = first_gradient(
        train_critic, [*CRITIC, "--batch-size", 1000, "--micro-tokens", 600, "--advantage", advantage, "--context",
                       context, "--beta", 0.5, "--nll", 0.2], place)
    model, tokenizer = AutoModelForCausalLM.from_pretrained("base"), AutoTokenizer.from_pretrained("base")
    reference = AutoModelForCausalLM.from_pretrained("base").eval()
    records = [json.loads(line) for line in open("scored.jsonl")]

    def score(record):
        history, turns = [dict(m) for m in record["dialogue_history"]], []
        if context == "with-c":
            history[0]["content"] = (f"In light that the final answer is: {record['task']['ground_truth']}.\n\n"
                                     + history[0]["content"])
        for t, message in enumerate(history):
            if message["role"] == "assistant":
                prompt = tokenizer.apply_chat_template(history[:t], add_generation_prompt=True, return_dict=False)
                reply = tokenizer(message["content"], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
                ids, scored = np.array(prompt + reply), np.arange(len(prompt), len(prompt) + len(reply))
                with torch.no_grad():
                    base = plain_logps(reference, ids, scored)
                logps = plain_logps(model, ids, scored)
                turns.append((logps - base, logps))
        ratios = [r for r, _ in turns]
        if advantage == "mean-per-turn":
            value = sum(r.mean() for r in ratios)
        else:
            value = torch.cat(ratios).mean() if advantage == "mean-per-trajectory" else torch.cat(ratios).sum()
        return value, -torch.cat([logps for _, logps in turns]).mean()

    losses = []
    for task in dict.fromkeys(r["task_id"] for r in records):
        group = [r for r in records if r["task_id"] == task]
        best = next((r for r in group if r["reward"] == 1.0), None)
        for other in group if best else []:
            if other["reward"] < 1.0:
                (chosen, nll), (rejected, _) = score(best), score(other)
                losses.append(torch.log1p(torch.exp(-0.5 * (chosen - rejected))) + 0.2 * nll)
    mine = sum(losses) / len(losses)
    mine.backward()
    assert loss == pytest.approx(mine.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        error = (gradient["lm." + name] - parameter.grad).norm() / parameter.grad.norm()
        assert error < 1e-4, (name, error)


def test_imitation_weighs_every_assistant_token_alike(place):
    """The first step of fine-tuning, over micro-batches, against the mean NLL of all tokens from whole logits."""
    from transformers import AutoModelForCausalLM
    command = ["--method", "rejection-ft", "--in", "scored.jsonl", "--model", "base", "--out", "out"]
    loss, gradient = first_gradient(train_policy, [*command, "--batch-size", 1000, "--micro-tokens", 600], place)
    items, _ = train_policy.trajectory_items(parsed(train_policy, *command), lm.load_tokenizer("base"))
    model = AutoModelForCausalLM.from_pretrained("base")
    mine = -torch.cat([plain_logps(model, s.ids, s.scored) for s in lm.sequences_in(items)]).mean()
    mine.backward()
    assert loss == pytest.approx(mine.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        assert (gradient["lm." + name] - parameter.grad).norm() < 1e-4 * parameter.grad.norm(), name


def test_a_step_clips_the_gradient_and_takes_its_own_rate():
    model = torch.nn.Linear(2, 1, bias=False)
    before, optimizer = model.weight.detach().clone(), torch.optim.SGD(model.parameters(), lr=99.0)
    model.weight.grad = torch.tensor([[3.0, 4.0]])
    assert lm.optimizer_step(model, optimizer, rate=0.5) == pytest.approx(5.0)
    assert (before - model.weight).detach().flatten().tolist() == pytest.approx([0.3, 0.4], abs=1e-5)
    assert model.weight.grad is None


def test_every_epoch_and_every_seed_has_an_order_of_its_own():
    items = [lm.Item([2 * n], [2 * n + 1], ("task", n)) for n in range(50)]

    def orders(seed):
        args = Flags()
        args.seed, args.epochs = seed, 2
        order = [item.chosen[0] for step in lm.step_items(items, args) for item in step]
        return order[:50], order[50:]
    first, second = orders(0)
    assert sorted(first) == sorted(second) == list(range(0, 100, 2))
    assert len({tuple(order) for order in (range(0, 100, 2), first, second, *orders(1))}) == 5 and orders(0)[0] == first
    args = Flags()
    args.max_steps = 3
    assert [len(step) for step in lm.step_items(items, args)] == [args.batch_size] * 3


def test_the_policys_loss_equals_an_independent_one(place):
    """Eq. 4 with a policy that has moved: the sum over the action's tokens of both log-ratios, from whole logits."""
    from transformers import AutoModelForCausalLM
    perturbed("base", "moved")
    rng = np.random.default_rng(0)
    make = lambda n: rng.integers(5, 200, n)
    prompts, replies = [make(9), make(14), make(14)], [(make(5), make(7)), (make(4), make(4)), (make(6), make(3))]
    device, args = torch.device("cpu"), Flags()
    args.beta, args.nll = 0.5, 0.2
    sequences = [lm.Sequence(np.append(p, r).astype(np.int32), len(p))
                 for p, pair in zip(prompts, replies) for r in pair]
    items = [lm.Item([sequences[2 * n]], [sequences[2 * n + 1]], ("", n)) for n in range(3)]
    lm.set_reference(lm.load_model("base", device, args), items, device, args)
    model = lm.load_model("moved", device, args)
    batch = lm.collate(items, device, args.pack)
    losses, stats = train_policy.preference_loss(model(batch), batch, items, args)
    loss = losses.sum()
    base, moved = AutoModelForCausalLM.from_pretrained("base"), AutoModelForCausalLM.from_pretrained("moved")
    expected = 0
    for n in range(3):
        logps = [[plain_logps(m, s.ids, s.scored) for m in (moved, base)]
                 for s in (sequences[2 * n], sequences[2 * n + 1])]
        margin = 0.5 * ((logps[0][0].sum() - logps[0][1].sum()) - (logps[1][0].sum() - logps[1][1].sum()))
        expected += -torch.log(torch.sigmoid(margin)) + 0.2 * -logps[0][0].mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert stats["length_chosen"].tolist() == [5, 4, 6] and abs(loss.item() - 3 * math.log(2)) > 1e-3


def test_in_bfloat16_weights_and_gradients_stay_float32(place):
    """--dtype bfloat16 on a CPU: the same numbers but for rounding, in the forward and the backward pass."""
    ids = np.arange(40, dtype=np.int32) * 5 % 200
    sequences = [lm.Sequence(ids, 8), lm.Sequence(ids[::-1].copy(), 9)]
    found = []
    for dtype in ("float32", "bfloat16"):
        args = Flags()
        args.dtype = dtype
        model = lm.load_model("base", torch.device("cpu"), args)
        values = model(lm.collate([lm.Item(sequences, [], ())], torch.device("cpu"), "tree"))
        values.mean().backward()
        assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {torch.float32}
        found.append((values.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])))
    (values, gradient), (rough, rough_gradient) = found
    assert 0 < (values - rough).abs().mean() < 0.05
    assert torch.cosine_similarity(gradient, rough_gradient, 0) > 0.99


class Flags:
    """The flags that the functions above read, at their defaults."""
    pack, shuffle, checkpointing, out, dtype = "tree", "pairs", "none", "out", "float32"
    micro_tokens, beta, nll, seed, epochs, batch_size, max_steps = 16384, 0.1, 0.01, 0, 1, 4, 0


# Pairs


def test_trajectories_are_paired_by_the_rule_and_the_gap():
    pair = lm.pair_trajectories
    assert pair([0.3, 1.0, 0.3, 1.0, 0.9], "best-vs-lower") == [(1, 0), (1, 2), (1, 4)]
    assert pair([0.3, 0.9], "best-vs-lower") == []
    assert pair([0.3, 0.9, 0.35], "all") == [(1, 0), (1, 2), (2, 0)]
    assert pair([0.3, 0.9, 0.35], "all", min_gap=0.1) == [(1, 0), (1, 2)]
    assert pair([1.0, 0.95, 0.2], "best-vs-lower", min_gap=0.1) == [(0, 2)]
    assert pair([1.0, 0.9], "all", min_gap=0.1) == [(0, 1)], "the smallest gap counts, though 1.0 - 0.9 < 0.1"
    assert pair([0.5, 0.5], "all") == [] and pair([0.5, 0.5], "all", min_gap=0.0) == []


def test_candidates_are_paired_across_the_halves():
    scores, texts = [0.1 * i for i in range(16)], [f"text {i}" for i in range(16)]
    drawn = {pair for seed in range(400)
             for pair in train_policy.draw_pairs(scores, texts, 1, np.random.default_rng(seed))}
    assert {i for i, _ in drawn} == set(range(8, 16)) and {j for _, j in drawn} == set(range(8))
    four = train_policy.draw_pairs(scores, texts, 4, np.random.default_rng(3))
    assert len(four) == len({i for i, _ in four}) == len({j for _, j in four}) == 4
    assert train_policy.draw_pairs(scores, ["same"] * 16, 4, np.random.default_rng(3)) == []
    odd = {pair for seed in range(100)
           for pair in train_policy.draw_pairs([3.0, 2.0, 1.0], texts, 1, np.random.default_rng(seed))}
    assert odd == {(0, 2)}, "the middle one of an odd number is in neither half"


def test_a_value_critic_calls_success_what_passes_every_test(place):
    rng = np.random.default_rng(0)
    write(Path("three.jsonl"), [trajectory(0, n, rng, reward) for n, reward in enumerate([0.9, 1.0, 0.0])])
    items, _ = train_critic.make_items(parsed(train_critic, "--in", "three.jsonl", "--head", "value"),
                                      lm.load_tokenizer("base"))
    assert [item.reward for item in items] == [0.9, 1.0, 0.0]
    batch = SimpleNamespace(turn=torch.arange(3), side=torch.tensor([0, 2, 4]))
    _, stats = train_critic.critic_loss(torch.zeros(3), batch, items, SimpleNamespace(head="value"))
    assert stats["success"].tolist() == [0, 1, 0]


def test_the_baselines_never_see_c_unless_told(place):
    tokenizer = lm.load_tokenizer("base")

    def shown(*arguments):
        items, _ = train_policy.trajectory_items(
            parsed(train_policy, "--in", "scored.jsonl", "--model", "base", *arguments), tokenizer)
        return np.mean(["In light that" in tokenizer.decode(s.ids) for s in lm.sequences_in(items)])
    assert shown("--method", "multi-turn-dpo") == shown("--method", "rejection-ft") == shown("--method", "sft") == 0
    assert shown("--method", "sft", "--with-c", 1) == 1 and 0.2 < shown("--method", "sft", "--with-c", 0.5) < 0.8


def test_pairs_with_one_side_too_long_are_left_out(monkeypatch):
    sequence = lambda length: lm.Sequence(np.arange(length), 1)  # noqa: E731
    sequences, args = [sequence(length) for length in (9, 3, 3, 9, 5, 4)], Flags()
    items = [lm.Item([sequences[n]], [sequences[n + 1]], ("", n)) for n in (0, 2, 4)]
    args.input = "here"
    monkeypatch.setattr(lm, "scored_context", lambda path: 5)
    items = lm.usable_items(items, "a model", args)
    assert lm.sequences_in(items) == sequences[4:]
    assert [(i.chosen, i.rejected) for i in items] == [([sequences[4]], [sequences[5]])]


def ranked(path):
    """The records of a file of candidates, each candidate with an advantage."""
    return [{**r, "candidates": [{**c, "advantage": n / 10} for n, c in enumerate(r["candidates"])]}
            for r in read_lines(path)]


def seeming_critic(head="log-ratio", **note):
    """A critic that nobody trained: the base model with other weights, and a random head."""
    perturbed("base", "critic")
    generator = torch.Generator().manual_seed(1)
    weights = None if head == "log-ratio" else {"weight": torch.randn(128, generator=generator).tolist(), "bias": [0.5]}
    Path("critic/critic.json").write_text(json.dumps({
        "head": head, "context": "with-c", "advantage": "mean-per-turn", "reference": "base", "weights": weights,
        "reference_fingerprint": fingerprint("base"), "pictures": False, "pack": "tree", "dtype": "float32", "beta": 1, **note}))
    Path("critic/cost.json").write_text("{}")


def test_a_turns_draw_depends_on_the_turn_and_the_seed_only(place):
    record = json.loads(open("candidates.jsonl").readline())
    record["candidates"] = [{"output": f"What is number {n}?", "advantage": n % 5 + n / 10} for n in range(8)]
    turns = [{**record, "task_id": f"turn-{n}"} for n in range(12)]
    found = []
    for name, order in (("one", turns), ("two", turns[::-1])):
        write(Path(f"{name}.jsonl"), order)
        code, _, error = call(train_policy, "--in", f"{name}.jsonl", "--model", "base", "--out", name,
                              "--max-steps", 1)
        assert code == 0, error
        pairs = [json.loads(line) for line in open(f"{name}.pairs.jsonl")]
        found.append({p["task_id"]: (p["chosen"][0]["content"], p["rejected"][0]["content"]) for p in pairs})
    assert found[0] == found[1] and len(found[0]) == 12
    assert len(set(found[0].values())) > 4, "the turns are alike, their draws are not"
    code, said, error = call(train_policy, "--in", "one.jsonl", "--model", "base", "--out", "four",
                             "--max-steps", 1, "--pairs-per-turn", 4)
    assert code == 0 and "48 pairs from 12 turns" in said, error


def test_candidates_are_scored_and_learnt_as_they_were_sampled(place):
    """Sampled ids that are not what the tokenizer makes of their text: letter by letter."""
    from transformers import AutoModelForCausalLM
    seeming_critic()
    tokenizer = lm.load_tokenizer("base")
    letters = lambda text: [tokenizer(c)["input_ids"][0] for c in text] + [tokenizer.eos_token_id]  # noqa: E731
    record = json.loads(open("candidates.jsonl").readline())
    record["candidates"] = [{"output": text, "output_ids": letters(text)} for text in (*QUESTIONS, "Is it so?")]
    write(Path("candidates.jsonl"), [record])
    code, _, error = rank_and_train()
    assert code == 0, error
    critic, base = AutoModelForCausalLM.from_pretrained("critic"), AutoModelForCausalLM.from_pretrained("base")
    shown = lm.put_c_in_front(record["prompt"], record["task"]["ground_truth"])
    prompt = tokenizer.apply_chat_template(shown, add_generation_prompt=True, return_dict=False)
    ranked, = read_lines("ranked.jsonl")
    for value, candidate in zip([c["advantage"] for c in ranked["candidates"]], record["candidates"], strict=True):
        ids = np.array(prompt + candidate["output_ids"])
        with torch.no_grad():
            a, b = (plain_logps(model, ids, np.arange(len(prompt), len(ids))) for model in (critic, base))
        assert value == pytest.approx((a - b).mean().item(), abs=2e-5)
    item, = train_policy.pair_items(train_policy.read_pairs("policy.pairs.jsonl"), tokenizer)
    pair = json.loads(open("policy.pairs.jsonl").read())
    for side, (sequence,) in (("chosen", item.chosen), ("rejected", item.rejected)):
        assert sequence.ids[sequence.scored].tolist() == letters(pair[side][0]["content"])
    write(Path("others.jsonl"), [{**pair, "turn": None, "task_id": None}] * 2)  # as `datasets` writes what is not there
    items = train_policy.pair_items(train_policy.read_pairs("others.jsonl"), tokenizer)
    assert len({item.turn_key for item in items}) == len({item.task for item in items}) == 2
    longer = [{"role": "assistant", "content": "Which field?"}, {"role": "user", "content": "The first."}]
    write(Path("others.jsonl"), [{"prompt": pair["prompt"], **{side: longer + [{"role": "assistant", "content": side}]
                                                               for side in ("chosen", "rejected")}}])
    item, = train_policy.pair_items(train_policy.read_pairs("others.jsonl"), tokenizer)
    sequence, = item.chosen
    assert "The first." in tokenizer.decode(sequence.ids) and "The" not in tokenizer.decode(
        sequence.ids[sequence.scored]), "earlier messages of a side are read, its last one is learnt"


@pytest.mark.parametrize("head, advantage", [("log-ratio", "sum"), ("log-ratio", "mean-per-trajectory"),
                                             ("regression", "mean-per-turn"), ("value", "mean-per-turn")])
def test_a_turns_advantage_is_of_its_critics_kind(place, head, advantage):
    """From transformers' own model: the sum or mean of log-ratios; the head at the reply's tokens, or at its last."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    seeming_critic(head, advantage=advantage)
    code, _, error = call(train_critic, "--score", "scored.jsonl", "--critic", "critic", "--out", "seen.jsonl")
    assert code == 0, error
    weights = json.loads(Path("critic/critic.json").read_text())["weights"]
    tokenizer = AutoTokenizer.from_pretrained("base")
    critic, base = AutoModelForCausalLM.from_pretrained("critic"), AutoModelForCausalLM.from_pretrained("base")
    record = json.loads(open("seen.jsonl").readline())
    shown = lm.put_c_in_front(record["dialogue_history"], record["task"]["ground_truth"])
    shown = [{"role": m["role"], "content": m["content"]} for m in shown]
    for t, message in enumerate(record["dialogue_history"]):
        if message["role"] != "assistant":
            continue
        prompt = tokenizer.apply_chat_template(shown[:t], add_generation_prompt=True, return_dict=False)
        ids = np.array(prompt + tokenizer(message["content"])["input_ids"] + [tokenizer.eos_token_id])
        own = np.arange(len(prompt), len(ids))
        with torch.no_grad():
            if head == "log-ratio":
                ratio = plain_logps(critic, ids, own) - plain_logps(base, ids, own)
                expected = ratio.sum() if advantage == "sum" else ratio.mean()
            else:
                hidden = critic.model(torch.tensor(ids[None])).last_hidden_state[0, len(prompt):]
                values = hidden @ torch.tensor(weights["weight"]) + 0.5
                expected = values[-1] if head == "value" else values.mean()
        assert message["advantage"] == pytest.approx(expected.item(), abs=1e-3 if advantage == "sum" else 5e-5)


def test_a_critic_that_was_trained_without_c_needs_none(place):
    seeming_critic(context="without-c")
    for name in ("scored.jsonl", "candidates.jsonl"):
        write(Path(name), [{**json.loads(line), "task": {}} for line in open(name).readlines()])
    code, _, error = call(train_critic, "--score", "scored.jsonl", "--critic", "critic", "--out", "seen.jsonl")
    assert code == 0, error
    code, _, error = rank_and_train()
    assert code == 0, error


def test_sweet_writes_the_pairs_that_it_trains_on(place):
    assert call(train_critic, *CRITIC)[0] == 0
    code, said, error = rank_and_train("--pairs-per-turn", 2)
    assert code == 0, error
    records = {(r["task_id"], r["turn"]): r for r in map(json.loads, open("candidates.jsonl"))}
    pairs = [json.loads(line) for line in open("policy.pairs.jsonl")]
    advantages = {(r["task_id"], r["turn"]): [c["advantage"] for c in r["candidates"]] for r in read_lines("ranked.jsonl")}
    assert pairs and all(p["advantage_chosen"] >= p["advantage_rejected"] for p in pairs)
    for p in pairs:
        texts = [c["output"] for c in records[p["task_id"], p["turn"]]["candidates"]]
        assert p["prompt"] == records[p["task_id"], p["turn"]]["prompt"]
        assert p["chosen"][0]["content"] in texts and p["chosen"] != p["rejected"]
        values = dict(zip(texts, advantages[p["task_id"], p["turn"]]))
        for side in ("chosen", "rejected"):
            assert p[f"advantage_{side}"] == pytest.approx(values[p[side][0]["content"]], abs=1e-5)
    first = metrics("policy")[0]
    assert (first["preference_loss"] == pytest.approx(math.log(2), abs=1e-6)
            and first["distance"] == pytest.approx(0, abs=4e-5))
    expected = {"length_chosen", "length_rejected", "logps_chosen", "logps_rejected", "accuracy", "gradient_norm", "tokens", "nll"}
    assert expected <= set(first)
    code, said, error = call(train_policy, *POLICY[:-1], "other", "--pairs-per-turn", 2, "--beta", 0.5)
    assert code == 0, said + error
    # A file of pairs is trained on as it is, to the same end.
    pairs_in = ["--in", "policy.pairs.jsonl", "--model", "base", "--out", "again", "--lr", "1e-3", "--batch-size", 4]
    assert call(train_policy, *pairs_in)[0] == 0
    assert metrics("again") == metrics("policy")
    # --surest keeps those whose advantages differ most, of drawn pairs and of a file's.
    assert call(train_policy, *POLICY[:-1], "sure", "--pairs-per-turn", 2, "--surest", 0.3)[0] == 0
    gaps = sorted((p["advantage_chosen"] - p["advantage_rejected"] for p in pairs), reverse=True)
    sure = [p["advantage_chosen"] - p["advantage_rejected"] for p in read_lines("sure.pairs.jsonl")]
    assert sure == gaps[:round(0.3 * len(pairs))] and 0 < len(sure) < len(pairs)
    code, said, error = call(train_policy, *pairs_in[:5], "sure-again", *pairs_in[6:], "--surest", 0.3)
    assert code == 0 and metrics("sure-again") == metrics("sure"), said + error
    costly = [{**pair, "cost": {"sampled_tokens": 7}, "ranked_by": {}} for pair in pairs]    # another program's
    write(Path("costly.jsonl"), costly)
    assert call(train_policy, "--in", "costly.jsonl", *pairs_in[2:5], "costly", *pairs_in[6:], "--surest", 0.3)[0] == 0
    turns = {(p["task_id"], p["sample"], p["turn"]) for p in pairs}
    assert json.load(open("costly/cost.json"))["sampled_tokens"] == 7 * len(turns), "those left out were sampled too"
    write(Path("bare.jsonl"), [{**pair, "advantage_chosen": None} for pair in pairs])
    code, _, error = call(train_policy, "--in", "bare.jsonl", *pairs_in[2:5], "bare", "--surest", 0.3)
    assert code == 2 and "bare.jsonl: --surest needs pairs with advantages" in error


def test_written_advantages_are_equation_3(place):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    assert call(train_critic, *CRITIC)[0] == 0
    assert call(train_critic, "--score", "scored.jsonl", "--critic", "critic",
                "--out", "seen.jsonl")[0] == 0
    assert call(train_critic, *SCORE)[0] == 0
    tokenizer = AutoTokenizer.from_pretrained("base")
    critic, base = AutoModelForCausalLM.from_pretrained("critic"), AutoModelForCausalLM.from_pretrained("base")

    def advantage(messages, reply, truth):
        total = []
        for model in (critic, base):
            prompt = [dict(m) for m in messages]
            prompt[0]["content"] = f"In light that the final answer is: {truth}.\n\n{prompt[0]['content']}"
            ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
            tail = tokenizer(reply, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
            with torch.no_grad():
                total.append(plain_logps(model, np.array(ids + tail), np.arange(len(ids), len(ids) + len(tail))))
        return (total[0] - total[1]).mean().item()

    for line in open("seen.jsonl").readlines()[:3]:
        record = json.loads(line)
        history = record["dialogue_history"]
        for t, message in enumerate(history):
            if message["role"] == "assistant":
                expected = advantage(history[:t], message["content"], record["task"]["ground_truth"])
                assert message["advantage"] == pytest.approx(expected, abs=2e-5)
    record = json.loads(open("candidates.jsonl").readline())
    expected = [advantage(record["prompt"], c["output"], record["task"]["ground_truth"]) for c in record["candidates"]]
    assert [c["advantage"] for c in read_lines("ranked.jsonl")[0]["candidates"]] == pytest.approx(expected, abs=2e-5)


# From messages to tokens


class Letters:
    """A tokenizer of single letters whose template refuses system messages, as Gemma's does."""
    eos_token_id, chat_template, added_tokens_decoder = 0, "yes", {}

    def apply_chat_template(self, messages, add_generation_prompt, tokenize):
        from jinja2.exceptions import TemplateError
        if messages[0]["role"] == "system":
            raise TemplateError("System role not supported")
        return "".join(f"<{m['role'][0]}{m['content']}>" for m in messages) + "<a"

    def __call__(self, texts, add_special_tokens):
        return {"input_ids": [[ord(c) for c in text] for text in texts]}


def test_a_template_that_refuses_system_messages_gets_the_text():
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    assert lm.render_prompt(Letters(), messages) == "<uBe kind.\n\nHi><a"


def test_what_was_sampled_is_what_is_scored():
    record = {"system": "", "dialogue_history": [{"role": "user", "content": "u"}, {
        "role": "assistant", "content": "b", "output": "a OUTPUT: b", "output_ids": [7, 8]},
        {"role": "user", "content": "v"}, {"role": "assistant", "content": "d", "output": "c OUTPUT: d"}]}
    (_, first, _), (prompt, second, _) = lm.turns_of(record)
    assert (lm.text_of(first), lm.ids_of(first)) == ("a OUTPUT: b", [7, 8])
    assert (lm.text_of(second), lm.ids_of(second)) == ("c OUTPUT: d", ())
    assert [m["content"] for m in prompt] == ["u", "b", "v"]
    sequence, = lm.tokenise(Letters(), [(prompt, second, None)])
    assert sequence.ids[sequence.scored].tolist() == [ord(c) for c in "c OUTPUT: d"] + [0]
    record |= {"system": "s", "task": {"ground_truth": "truth"}}
    turns = [(prompt, {"content": "x"}, c) for prompt, _, c in lm.turns_of(record, with_c=True)]
    shown = lm.tokenise(Letters(), turns)[0]
    assert "".join(map(chr, shown.ids[:shown.start])) == "<us\n\nIn light that the final answer is: truth.\n\nu><a"


def test_the_tiny_tokenizer_gives_back_its_text(place):
    tokenizer = lm.load_tokenizer("base")
    for text in ("def total(rows):\n    return 12.5", "Ünïcode \t and  spaces 123456", "The field is price."):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer("The field is price.")["input_ids"]) == 5


# Methods


@pytest.mark.parametrize("method, unit", [("multi-turn-dpo", "pairs"), ("rejection-ft", "dialogues"),
                                          ("sft", "dialogues")])
def test_the_baselines_train(place, method, unit):
    code, said, error = call(train_policy, "--method", method, "--in", "scored.jsonl", "--model", "base",
                             "--out", "out", "--lr", "1e-3", "--batch-size", 4, "--epochs", 3)
    assert code == 0, error
    seen = metrics("out")
    assert unit in said and seen[-1]["loss"] < seen[0]["loss"]
    rewards = [json.loads(line)["reward"] for line in open("scored.jsonl")]
    if method == "rejection-ft":
        assert f"{sum(r < 1 for r in rewards)} records left out: reward below 1 (--min-reward)" in said
        assert f"{sum(r == 1 for r in rewards)} dialogues" in said
    if method == "multi-turn-dpo":
        assert seen[0]["preference_loss"] == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize("head", ["regression", "value"])
def test_a_critic_with_a_head_trains_and_ranks(place, head):
    pairs = [] if head == "value" else ["--pair-rule", "all"]
    code, said, error = call(train_critic, *CRITIC, "--head", head, "--epochs", 12, *pairs)
    assert code == 0, error
    assert np.mean([m["accuracy"] for m in metrics("critic")[-4:]]) > 0.8
    note = json.loads(Path("critic/critic.json").read_text())
    assert note["head"] == head and len(note["weights"]["weight"]) == 128
    code, said, error = rank_and_train()
    assert code == 0, error


def test_the_model_is_always_written_in_float32(place):
    from safetensors.torch import load_file
    code, _, error = call(train_policy, "--method", "sft", "--in", "scored.jsonl", "--model", "base", "--out", "out",
                          "--max-steps", 1, "--dtype", "bfloat16")
    assert code == 0, error
    assert {str(w.dtype) for w in load_file("out/model.safetensors").values()} == {"torch.float32"}
    assert json.loads(Path("out/config.json").read_text())["dtype"] == "float32", "what it is loaded as"


# Stopping and going on


def test_a_killed_run_goes_on_to_the_same_bits(place):
    """SIGKILL in the middle; the second run continues from a checkpoint and ends where an uninterrupted one does."""
    pairs = ["--in", "scored.jsonl", "--method", "multi-turn-dpo", "--model", "base", "--lr", "1e-3",
             "--batch-size", "1", "--pair-rule", "all", "--epochs", "6", "--save-every", "3", "--keep", "3"]
    assert call(train_policy, *pairs, "--out", "straight")[0] == 0
    saved = Path("killed/checkpoints")
    with running(sys.executable, never_ending(place / "script.py"), *pairs, "--out", "killed", stdout=subprocess.DEVNULL,
                 stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and len(list(saved.glob("step-??????"))) < 2:
            time.sleep(0.005)
    assert process.returncode == -signal.SIGKILL
    newest = sorted(saved.glob("step-??????"))[-1]
    shutil.copytree("killed", "damaged")
    file = max(Path("damaged/checkpoints", newest.name).glob("*.distcp"), key=lambda f: f.stat().st_size)
    os.truncate(file, file.stat().st_size // 2)
    code, _, error = call(train_policy, *pairs, "--out", "damaged")
    assert code == 2 and f"damaged/checkpoints/{newest.name} could not be read" in error and "Traceback" not in error
    shutil.rmtree(Path("damaged/checkpoints", newest.name))  # as the sentence says
    code, said, error = call(train_policy, *pairs, "--out", "killed")
    assert code == 0 and "continuing" in said, error
    assert call(train_policy, *pairs, "--out", "damaged")[0] == 0
    assert Path("damaged/model.safetensors").read_bytes() == Path("straight/model.safetensors").read_bytes()
    assert Path("killed/model.safetensors").read_bytes() == Path("straight/model.safetensors").read_bytes()
    assert metrics("killed") == metrics("straight")
    assert len(list(saved.glob("step-??????"))) == 3
    assert "already finished" in call(train_policy, *pairs, "--out", "killed")[1]


def test_weights_without_gradients_do_not_hinder_resuming(place):
    """Gemma 3's vision tower in training on text. AdamW has no averages of it, so a checkpoint has none."""
    args = parsed(train_critic, "--out", "critic", "--save-every", 1)

    def state():
        model = lm.load_model("base", torch.device("cpu"), args)
        model.lm.register_parameter("tower", torch.nn.Parameter(torch.ones(3)))
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    model, optimizer = state()
    used = [weight for name, weight in model.named_parameters() if "tower" not in name]
    sum(weight.sum() for weight in used).backward()
    optimizer.step()
    lm.save_checkpoint(args, model, optimizer, 1)
    again, averages = state()
    lm.read_checkpoint(lm.checkpoint_of("critic", 1), again, averages)
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name]), name
    for weight, other in zip(used, [weight for name, weight in again.named_parameters() if "tower" not in name]):
        assert torch.equal(optimizer.state[weight]["exp_avg"], averages.state[other]["exp_avg"])


def test_a_tokenizer_with_several_templates_is_written_twice(place):
    tokenizer = lm.load_tokenizer("base")
    tokenizer.chat_template = {"default": tokenizer.chat_template, "rag": tokenizer.chat_template}
    model = lm.load_model("base", torch.device("cpu"), parsed(train_critic))
    for _ in range(2):
        lm.prepare_output(Path("twice"), False, {})
        lm.write_model(model.lm, model.state_dict(), tokenizer, "base", Path("twice"))
    assert list(Path("twice/additional_chat_templates").iterdir())


def test_half_of_a_surrogate_pair_stops_nothing(place):
    """A server may cut a reply there."""
    tokenizer = lm.load_tokenizer("base")
    assert lm.tokenise(tokenizer, [([{"role": "user", "content": "a\ud83d"}], {"content": "b\ud83d"}, None)])
    pair = {"chosen": [{"role": "assistant", "content": "b\ud83d"}]}
    train_policy.write_pairs([pair], "p.jsonl")
    assert read_lines("p.jsonl") == [pair]


def test_a_loss_that_is_not_a_number_stops_the_run(place):
    command = ["--in", "scored.jsonl", "--method", "sft", "--model", "base", "--out", "out", "--lr", "1e38",
               "--batch-size", "4", "--save-every", "1"]
    code, said, error = call(train_policy, *command)
    assert code == 2 and "the last checkpoint is intact" in error and not Path("out/config.json").exists()
    assert list(Path("out/checkpoints").glob("step-??????"))


# Mistakes


MISTAKES = [
    ("a missing file", train_critic, ["--in", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
    ("a line that is not JSON", train_critic, ["--in", "broken.jsonl"],
     "broken.jsonl, line 2: it must be an object"),
    ("a torn last line", train_critic, ["--in", "torn.jsonl"], "the last line is incomplete"),
    ("an empty file", train_critic, ["--in", "empty.jsonl"], "holds no records"),
    ("a missing key", train_critic, ["--in", "keyless.jsonl"],
     "keyless.jsonl, line 1: it lacks the keys 'task_id', 'dialogue_history'"),
    ("no reward", train_critic, ["--in", "unscored.jsonl"], "line 1: it lacks the key 'reward'"),
    ("a reward out of range", train_critic, ["--in", "outside.jsonl"],
     "reward must be a number from 0.0 to 1.0, found 7"),
    ("no two rewards that differ", train_critic, ["--in", "equal.jsonl"],
     "no task has two trajectories that can be compared"),
    ("no c", train_critic, ["--in", "blind.jsonl"], "no task with a ground_truth"),
    ("no model", train_critic, ["--in", "scored.jsonl", "--model", "nobody/nothing"], "nobody/nothing: "),
    ("no chat template", train_critic, ["--in", "scored.jsonl", "--model", "plain"], "has no chat template"),
    ("too long a prompt", train_critic, ["--in", "long.jsonl"], "no dialogue fits the context of base, 4096 tokens"),
    ("someone else's folder", train_critic, ["--in", "scored.jsonl", "--out", "theirs"],
     "was not written by this script"),
    ("a critic that is none", train_critic, ["--score", "candidates.jsonl", "--critic", "base", "--out", "r.jsonl"],
     "base contains no critic.json"),
    ("candidates that nobody ranked", train_policy, ["--in", "candidates.jsonl"],
     "candidates[0] lacks the key 'advantage', found output; candidates[1] lacks the key 'advantage', found output"),
    ("sft without a model", train_policy, ["--method", "sft", "--in", "scored.jsonl"], "needs --model"),
    ("tiny for another method", train_policy, ["--model", "tiny"], "for --method sft only"),
    ("nothing good enough", train_policy, ["--method", "rejection-ft", "--in", "equal.jsonl"], "no trajectory is left"),
]


@pytest.mark.parametrize("module, arguments, expected", [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_one_sentence_and_nothing_is_written(place, module, arguments, expected):
    rng = np.random.default_rng(0)
    good, unscored = trajectory(0, 0, rng, 0.5), trajectory(0, 0, rng)
    del unscored["reward"]
    long = trajectory(0, 0, rng, 1.0)
    long["dialogue_history"][0]["content"] = "word " * 6000
    write(Path("equal.jsonl"), [good, {**good, "sample": 1}])
    write(Path("unscored.jsonl"), [unscored])
    write(Path("outside.jsonl"), [{**good, "reward": 7}])
    write(Path("keyless.jsonl"), [{"reward": 1.0}])
    write(Path("long.jsonl"), [long, {**good, "reward": 0.2}])
    write(Path("blind.jsonl"), [{**good, "task": {}, "reward": r} for r in (1.0, 0.2)])
    Path("broken.jsonl").write_text(json.dumps(good) + "\n{nonsense\n")
    Path("torn.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(good)[:50])
    Path("empty.jsonl").write_text("")
    Path("theirs").mkdir(), Path("theirs/thesis.txt").write_text("precious")
    shutil.copytree("base", "plain"), Path("plain/chat_template.jinja").unlink()
    before = {p: p.stat().st_mtime_ns for p in Path().rglob("*") if p.is_file()}
    extra = [] if {"--model", "sft", "--score"} & set(arguments) else ["--model", "base"]
    extra += [] if "--out" in arguments else ["--out", "out"]
    code, said, error = call(module, *arguments, *extra)
    assert code == 2 and expected in error and "Traceback" not in error, error
    assert len(error.strip().splitlines()) == 1
    after = {p: p.stat().st_mtime_ns for p in Path().rglob("*") if p.is_file()}
    assert before == after


def test_other_settings_are_an_error_that_names_them(place):
    assert call(train_critic, *CRITIC)[0] == 0
    code, _, error = call(train_critic, *CRITIC, "--beta", "0.2")
    assert code == 2 and "beta was 0.1, now 0.2" in error
    assert call(train_critic, *CRITIC, "--beta", "0.2", "--overwrite")[0] == 0


def test_records_that_cannot_be_used_are_counted(place):
    records = [json.loads(line) for line in open("scored.jsonl")]
    # evaluate.py gives a failed episode the reward 0; it says nothing about the agent
    records += [{**records[0], "finish": "error: the server went away", "reward": reward} for reward in (None, 0.0)]
    records += [{**records[0], "dialogue_history": records[0]["dialogue_history"][:1]}]
    request = {"role": "user", "content": "word " * 500}
    records += [{**records[0], "task_id": "long", "dialogue_history": [request] + records[0]["dialogue_history"][1:],
                 "reward": r} for r in (1.0, 0.5)]
    write(Path("scored.jsonl"), records)
    shorten("base", max_position_embeddings=400)
    code, said, error = call(train_critic, *CRITIC)
    assert code == 0, error
    assert ("2 records left out: no reward (the episode failed)" in said
            and "1 records left out: no assistant turn" in said)
    assert "tasks left out: no two trajectories make a pair" in said and "1 of" in said
    assert "left out: they do not fit the context of base, 400 tokens" in said
    code, said, error = call(train_policy, "--method", "multi-turn-dpo", "--in", "scored.jsonl", "--model", "base",
                             "--out", "dpo", "--max-steps", 1)
    assert code == 0 and "2 records left out: no reward (the episode failed)" in said, said + error


def test_a_reference_of_another_model_is_noticed_at_once(place, monkeypatch):
    assert call(train_critic, *CRITIC, "--max-steps", 1)[0] == 0
    rng, score_all = np.random.default_rng(0), lm.score_all
    monkeypatch.setattr(lm, "score_all", lambda *about: [
        values + rng.normal(size=values.shape).astype(np.float32) for values in score_all(*about)])
    code, _, error = call(train_critic, *CRITIC, "--overwrite")
    assert code == 2 and "before the first step, the model's log-probabilities differ from its reference's" in error


def refusal(module, *arguments):
    """The one sentence of a refusal, before which nothing may have been touched."""
    look = lambda: {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in Path().rglob("*") if p.is_file()}  # noqa: E731
    before = look()
    code, said, error = call(module, *arguments)
    assert code == 2 and "Traceback" not in error, (code, said, error)
    assert {p: state for p, state in look().items() if p in before} == before
    return [line for line in error.splitlines() if line.startswith(module.__name__)][-1]


@pytest.mark.parametrize("module, arguments, expected", [
    (train_critic, ["--out", "."], "--out . is or contains --in (scored.jsonl)"),
    (train_critic, ["--out", ".."], "is or contains --in"),
    (train_critic, ["--out", "base"], "--out base is or contains --model (base)"),
    (train_critic, ["--out", "deep", "--in", "deep/scored.jsonl"], "is or contains --in"),
    (train_critic, ["--out", "theirs"], "was not written by this script"),
    (train_critic, ["--out", "scored.jsonl"], "is or contains --in"),
    (train_critic, ["--out", "candidates.jsonl"], "cannot be written: Not a directory"),
    (train_critic, ["--out", "other"], "was not written by this script"),
    (train_critic, ["--out", "/proc/nowhere"], "/proc/nowhere/metrics.jsonl cannot be written"),
    (train_critic, ["--score", "scored.jsonl", "--out", "scored.jsonl"],
     "is the input scored.jsonl, which is never overwritten"),
    (train_critic, ["--score", "scored.jsonl", "--out", "scored.jsonl/seen.jsonl"],
     "cannot be written: Not a directory"),
    (train_policy, ["--method", "sft", "--out", "base"], "is or contains --model"),
    (train_policy, ["--out", "out", "--in", "out.pairs.jsonl"],
     "is the input out.pairs.jsonl, which is never overwritten"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_overwrite_never_reaches_an_input_or_what_others_wrote(place, module, arguments, expected):
    for folder in ("theirs", "other", "deep"):
        Path(folder).mkdir(), (Path(folder) / "thesis.txt").write_text("precious")
    Path("other/settings.json").write_text('{"script": "elsewhere", "lr": 1}')
    shutil.copy("scored.jsonl", "deep")
    write(Path("ranked.jsonl"), ranked("candidates.jsonl"))
    shutil.copy("ranked.jsonl", "out.pairs.jsonl")
    source = "ranked.jsonl" if module is train_policy else "scored.jsonl"
    common = [] if "--score" in arguments else ["--in", source, "--model", "base"]
    assert expected in refusal(module, *common, *arguments, "--overwrite")


def test_overwrite_removes_only_what_training_wrote(place):
    command = [*CRITIC[:2], "--out", "critic", "--max-steps", 2, "--save-every", 1]
    assert call(train_critic, *command, "--model", "base")[0] == 0
    Path("critic/notes.txt").write_text("precious"), Path("critic/added_tokens.json").write_text("{}")
    shutil.copytree("base", "damaged")
    os.truncate("damaged/model.safetensors", 1000)
    sentence = refusal(train_critic, *command, "--model", "damaged", "--overwrite")
    assert "damaged: cannot load it with AutoModelForCausalLM" in sentence
    assert "content of --model was" in refusal(train_critic, *command, "--model", "damaged")
    assert call(train_critic, *command[:-4], "--max-steps", 1, "--model", "base", "--overwrite")[0] == 0
    write(Path("ranked.jsonl"), ranked("candidates.jsonl"))
    assert call(train_policy, *POLICY, "--max-steps", 1)[0] == 0
    pairs = Path("policy.pairs.jsonl").read_bytes()
    refusal(train_policy, *POLICY, *("--model damaged --overwrite --seed 5").split())
    assert Path("policy.pairs.jsonl").read_bytes() == pairs, "the policy that learnt from them is still there"
    left = {p.name for p in Path("critic").iterdir()}
    assert "notes.txt" in left and not left & {"checkpoints", "added_tokens.json"} and len(metrics("critic")) == 1
    Path("critic/settings.json").write_text("{nonsense")
    assert "the settings of the output are missing or damaged" in refusal(
        train_critic, *command, "--model", "base")


def test_numbers_without_a_meaning_are_refused(place):
    both = ["--batch-size -1", "--batch-size 0", "--epochs -1", "--epochs 0", "--max-steps -1", "--beta 0", "--beta -1",
            "--beta nan", "--micro-tokens 0", "--save-every -1", "--min-gap -1", "--lr 0",
            "--lr -1", "--lr nan", "--lr inf", "--keep 0", "--seed -1", "--nll nan"]
    for flags in both + ["--with-c 5", "--pairs-per-turn 0", "--min-reward nan"]:
        for module in (train_critic, train_policy) if flags in both else (train_policy,):
            assert flags.split()[0] in refusal(module, *flags.split()), flags


def test_what_a_method_and_a_domain_default_to(monkeypatch):
    def flags(module, *arguments):
        monkeypatch.setattr(sys, "argv", ["x", *arguments])
        args = module.parse_args()
        return [getattr(args, name) for name in ("lr", "epochs", "batch_size", "pair_rule", "min_gap", "input")]

    scored, pages = "runs/default/train.scored.jsonl", ["--domain", "frontend"]
    assert flags(train_policy) == [2e-7, 1, 8, "best-vs-lower", 0, "runs/default/train.ranked.jsonl"]
    assert flags(train_policy, "--method", "multi-turn-dpo") == [2e-7, 4, 8, "best-vs-lower", 0, scored]
    assert flags(train_policy, "--method", "multi-turn-dpo", *pages) == [2e-7, 8, 8, "all", 0.1, scored]
    assert flags(train_policy, "--method", "rejection-ft", *pages)[:3] == [2e-7, 8, 32]
    assert flags(train_policy, *pages)[:3] == [2e-7, 1, 8]
    tiny = ["--method", "sft", "--model", "tiny"]
    assert flags(train_policy, *tiny) == [1e-3, 1, 32, "best-vs-lower", 0, "data/backend/demonstrations.jsonl"]
    assert flags(train_policy, *tiny, *pages)[-1] == "data/frontend/demonstrations.jsonl"
    assert flags(train_critic) == [2e-7, 4, 8, "best-vs-lower", 0, scored]
    assert flags(train_critic, *pages) == [2e-7, 8, 8, "all", 0.1, scored]


SAID = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
PAIR = {"prompt": SAID[:1], "chosen": SAID[1:], "rejected": [{"role": "assistant", "content": "No"}]}
TURN = {"prompt": SAID[:1], "candidates": [{"output": "a", "advantage": 1}, {"output": "b", "advantage": 0.5}]}
PLAYED = {"task_id": "t", "sample": 0, "domain": "backend", "dialogue_history": SAID, "finish": "answered", "reward": 1.0,
          "task": {"ground_truth": "x"}}


@pytest.mark.parametrize("arguments, good, changes, expected", [
    (["train_policy"], TURN, {"candidates": 5}, "candidates must be a list, found 5"),
    (["train_policy"], TURN, {"candidates": [{"output": 5, "advantage": 1}]},
     "candidates[0].output must be text, found 5"),
    (["train_policy"], TURN, {"candidates": [{"output": "a"}]}, "candidates[0] lacks the key 'advantage'"),
    (["train_policy"], TURN, {"candidates": [{"output": "a", "output_ids": ["x"], "advantage": 1}] * 2},
     "output_ids[0] must be a whole number"),
    (["train_policy"], TURN, {"prompt": "x"}, "prompt must be a list"),
    (["train_policy"], TURN, {"turn": [1]}, "turn must be a whole number"),
    (["train_policy"], PAIR, {"chosen": "x"}, 'chosen must be a list, found "x"'),
    (["train_policy"], PAIR, {"rejected": []}, "rejected must end with an assistant message"),
    (["train_policy"], PAIR, {"chosen": [{"role": "x", "content": None}]},
     "chosen[0] lacks the key 'content', found role"),
    (["train_policy"], PAIR, {"rejected_ids": ["x"]}, "rejected_ids[0] must be a whole number"),
    (["train_policy"], PLAYED, {}, "train_critic.py --score writes such records"),
    (["train_critic"], PLAYED, {"task_id": ["t"]}, "task_id must be"),
    (["train_critic"], PLAYED, {"task": "t"}, "task must be an object"),
    (["train_critic"], PLAYED, {"dialogue_history": 5}, "dialogue_history must be a list"),
    (["train_critic"], PLAYED, {"dialogue_history": [{**SAID[0], "content": None}, SAID[1]]},
     "dialogue_history[0] lacks the key 'content', found role"),
    (["train_critic"], PLAYED, {"dialogue_history": [SAID[0], {**SAID[1], "output_ids": ["x"]}]},
     "output_ids[0] must be a whole number"),
    (["train_policy", "--method", "rejection-ft"], PLAYED, {"dialogue_history": ["x"]},
     "dialogue_history[0] must be an object"),
    (["train_policy", "--method", "sft", "--model", "tiny"], PLAYED, {"dialogue_history": [5]},
     "dialogue_history[0] must be an object"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else str(value)[:40])
def test_a_value_of_the_wrong_type_is_named_with_its_line(place, arguments, good, changes, expected):
    write(Path("odd.jsonl"), [{**PLAYED, "reward": 0.0} if good is PLAYED else good, {**good, **changes}])
    write(Path("critic.json"), [])
    module = sys.modules[arguments[0]]
    model = [] if "tiny" in arguments else ["--model", "base"]
    sentence = refusal(module, "--in", "odd.jsonl", "--out", "out", *model, *arguments[1:])
    assert expected in sentence and ("odd.jsonl, line 2" in sentence or not changes)


# Whose token ids, and whose reference


def test_token_ids_of_another_tokenizer_are_not_trained_on(place):
    """A critic of another family gets the text, as if there were no ids; the agent's own keeps what was sampled."""
    records = [json.loads(line) for line in open("scored.jsonl")]
    words = ["zebra quokka " + m["content"] for r in records for m in r["dialogue_history"]]
    train_policy.make_tiny_model(place / "agent", words, 400, seed=0)
    seen = {}
    for name in ("text", "base", "agent"):
        for record in records:
            for message in record["dialogue_history"] if name != "text" else ():
                if message["role"] == "assistant":
                    message["output"] = message["content"]
                    ids = lm.load_tokenizer(name)(message["content"])["input_ids"]
                    message["output_ids"] = ids if name == "base" else ids + [1]  # the sampler's own end
        write(Path(f"{name}.jsonl"), records)
        code, said, error = call(train_critic, *CRITIC[2:], "--in", f"{name}.jsonl", "--out", name + "-critic")
        assert code == 0, error
        assert ("the text is used" in said) == (name == "agent"), said
        seen[name] = metrics(name + "-critic")
    assert seen["agent"] == seen["text"] != seen["base"]
    # ids without a text are what was sampled
    own = lm.load_tokenizer("base")
    ids = own("The threshold")["input_ids"]
    side = train_policy.side_of_pair({"output_ids": ids, "advantage": 1.0}, "chosen")
    reply = {**side["chosen"][0], "output_ids": side["chosen_ids"]}
    [sequence] = lm.tokenise(own, [(SAID[:1], reply, None)])
    assert list(sequence.ids[-len(ids):]) == ids
    # ids beyond the vocabulary, and no text instead of them
    turn = {"task_id": "t", "sample": 0, "turn": 0, "prompt": SAID[:1], "task": {"ground_truth": "x"},
            "candidates": [{"output_ids": [5, 10 ** 6]}, {"output_ids": [6]}]}
    write(Path("beyond.jsonl"), [turn])
    assert "and no text" in refusal(train_critic, "--score", "beyond.jsonl", "--critic", "base-critic", "--out", "r.jsonl")


def advantages(file):
    return [m["advantage"] for line in open(file) for m in json.loads(line)["dialogue_history"] if "advantage" in m]


def test_advantages_are_relative_to_the_critics_own_reference(place):
    assert call(train_critic, *CRITIC)[0] == 0
    code, said, error = call(train_critic, "--score", "scored.jsonl", "--critic", "critic", "--out", "new/seen.jsonl")
    assert code == 0, said + error
    assert any(advantages("new/seen.jsonl"))
    code, said, error = rank_and_train("--model", "critic")
    assert code == 0, error
    assert all(p["advantage_chosen"] > p["advantage_rejected"] for p in map(json.loads, open("policy.pairs.jsonl")))
    # A critic that is as its reference prefers nothing.
    shutil.copytree("critic", "still")
    note = json.loads(Path("critic/critic.json").read_text())
    shutil.copy("base/model.safetensors", "still")
    still = ["--score", "candidates.jsonl", "--critic", "still", "--out", "still.jsonl", "--overwrite"]
    code, said, error = rank_and_train("--in", "still.jsonl", "--out", "other", score=still)
    assert code == 2 and "its candidates have the same advantage" in error
    assert "pairs with the same text or the same advantage left out" in said
    Path("still/critic.json").write_text(json.dumps(note | dict.fromkeys(["reference", "reference_fingerprint"], "gone/away")))
    assert "gone/away: cannot load it with AutoModelForCausalLM" in refusal(train_critic, *still)
    perturbed("base", "moved")
    os.replace("moved/model.safetensors", "base/model.safetensors")
    assert "critic: its reference model base has changed since the critic was trained; restore the model" in refusal(
        train_critic, "--score", "scored.jsonl", "--critic", "critic", "--out", "late.jsonl")


def test_pairs_lie_beside_the_policy_that_learns_from_them(place):
    write(Path("ranked.jsonl"), ranked("candidates.jsonl"))
    code, _, error = call(train_policy, "--in", "ranked.jsonl", "--model", "base", "--out", "by-chance", "--max-steps", 1)
    assert code == 0, error
    assert Path("by-chance.pairs.jsonl").is_file()
    assert parsed(train_policy, "--out", "tab/completed/").pairs == "tab/completed.pairs.jsonl"


@pytest.mark.parametrize("name", ["runs/none/base", "empty"])
def test_where_no_model_is_one_sentence_says_so(place, name):
    Path("empty").mkdir()
    assert f"{name}: no model found" in refusal(train_critic, "--in", "scored.jsonl", "--model", name, "--out", "c")


def test_pairs_carry_what_their_turns_carry(place):
    turns = [json.loads(line) for line in open("candidates.jsonl")]
    write(Path("candidates.jsonl"), [{**turn, "note": ["mine"], "domain": "backend"} for turn in turns])
    write(Path("ranked.jsonl"), ranked("candidates.jsonl"))
    code, said, error = call(train_policy, *POLICY, "--run-name", "mine", "--domain", "frontend")
    assert code == 0, error
    for pair in map(json.loads, open("policy.pairs.jsonl")):
        assert pair["note"] == ["mine"] and pair["domain"] == "backend" and pair["turn"] >= 0
        assert not {"task", "candidates"} & pair.keys()


@pytest.mark.parametrize("script", ["train_critic", "train_policy"])
def test_ctrl_c_before_the_first_step_is_one_short_line(place, script):
    wait = "    import time; print('now', flush=True); time.sleep(10_000)\n"
    source = (ROOT / f"{script}.py").read_text().replace("    device = start_process_group()\n", wait, 1)
    Path("script.py").write_text(source)
    with running(sys.executable, "script.py", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                 env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "script.py: stopped; the same command without --overwrite resumes\n")
    assert process.returncode == 130


# What a loss, a model and a run must not break


def test_no_flag_of_the_trainers_is_taken_by_torchrun():
    """torchrun's parser reads the flags behind the script too: one that begins like two of its own is ambiguous."""
    from torch.distributed.run import get_args_parser
    for module in (train_critic, train_policy):
        flags = [line.split()[0].rstrip(",") for line in parser_help(module).splitlines() if line.startswith("  --")]
        assert "--run-name" in flags and len(flags) > 25
        for flag in flags:
            seen = get_args_parser().parse_args(["--nproc-per-node", "2", f"{module.__name__}.py", flag, "demo"])
            assert seen.training_script_args == [flag, "demo"], flag


def parser_help(module):
    return call(module, "--help")[1]


@pytest.mark.parametrize("family, sizes", [("Granite", dict(logits_scaling=4.0)), ("Cohere", dict(logit_scale=0.25)),
                                           ("Gemma2", dict(head_dim=16, final_logit_softcapping=5.0,
                                                          attn_logit_softcapping=None))])
def test_a_critic_of_any_family_scores_as_its_own_logits_say(place, family, sizes):
    """Logit scales and caps: rollout.py's step reward and the ranking of candidates are this one function."""
    import transformers
    from transformers import AutoModelForCausalLM
    tokenizer = lm.load_tokenizer("base")
    for seed, name in enumerate(("seed", "critic")):
        torch.manual_seed(seed)
        config = getattr(transformers, family + "Config")(
            vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, initializer_range=0.3, pad_token_id=0, bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id, **sizes)
        getattr(transformers, family + "ForCausalLM")(config).save_pretrained(name)
        tokenizer.save_pretrained(name)
    Path("critic/critic.json").write_text(json.dumps({
        "head": "log-ratio", "context": "with-c", "weights": None, "advantage": "mean-per-turn", "reference": "seed",
        "reference_fingerprint": fingerprint("seed"), "pictures": False, "pack": "tree", "dtype": "float32", "beta": 1}))
    turns = [(SAID[:1], {"content": question}, "x = 1") for question in QUESTIONS]
    critic, hidden = train_critic.Critic("critic"), train_critic.Critic("critic", without_c=True)
    for scored, with_c in ((critic, True), (hidden, False)):
        for found, (messages, reply, truth) in zip(scored.advantages(turns), turns):
            messages = lm.put_c_in_front(messages, truth) if with_c else messages
            prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            ids = np.array(prompt + tokenizer(reply["content"])["input_ids"] + [tokenizer.eos_token_id])
            with torch.no_grad():
                one, two = (plain_logps(AutoModelForCausalLM.from_pretrained(name, attn_implementation="eager"), ids,
                                        np.arange(len(prompt), len(ids))) for name in ("critic", "seed"))
            assert found == pytest.approx((one - two).mean().item(), abs=1e-4)


@pytest.mark.parametrize("family", ["Mixtral", "Qwen3Moe", "Olmoe"])
def test_a_mixture_of_experts_is_trained_and_loads_again(place, family):
    import transformers
    tokenizer = lm.load_tokenizer("base")
    torch.manual_seed(0)
    experts = {"Mixtral": dict(num_local_experts=4), "Olmoe": dict(num_experts=4),
               "Qwen3Moe": dict(num_experts=4, moe_intermediate_size=32, head_dim=16)}[family]
    getattr(transformers, family + "ForCausalLM")(getattr(transformers, family + "Config")(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_experts_per_tok=2, pad_token_id=0, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, **experts)).save_pretrained("experts")
    tokenizer.save_pretrained("experts")
    command = ["--method", "sft", "--in", "scored.jsonl", "--batch-size", 8, "--lr", "1e-2"]
    code, said, error = call(train_policy, *command, "--model", "experts", "--out", "one")
    assert code == 0, error
    code, said, error = call(train_policy, *command, "--model", "one", "--out", "two", "--max-steps", 1)
    assert code == 0, error
    assert metrics("two")[0]["loss"] < 0.9 * metrics("one")[0]["loss"]


def test_generation_settings_survive_training(place):
    Path("base/generation_config.json").write_text('{"eos_token_id": [3, 7], "top_p": 0.9}')
    assert call(train_policy, "--method", "sft", "--in", "scored.jsonl", "--model", "base", "--out", "out",
                "--max-steps", 1)[0] == 0
    assert json.loads(Path("out/generation_config.json").read_text()) == {"eos_token_id": [3, 7], "top_p": 0.9}


def test_changed_data_and_a_replaced_model_are_noticed(place):
    command = ["--method", "sft", "--in", "scored.jsonl", "--model", "base", "--out", "out", "--max-steps", 2]
    assert call(train_policy, *command)[0] == 0
    assert "already finished" in call(train_policy, *command)[1]
    lines = Path("scored.jsonl").read_text()
    Path("scored.jsonl").write_text("".join(lines.splitlines(keepends=True)[:-3]))
    assert "content of --in was" in refusal(train_policy, *command)
    Path("scored.jsonl").write_text(lines)
    perturbed("base", "moved")
    os.replace("moved/model.safetensors", "base/model.safetensors")
    assert "content of --model was" in refusal(train_policy, *command)


def test_a_reply_known_as_text_ends_as_the_template_ends_a_turn(place):
    """Gemma's template ends a turn with a token that is not eos, and then a line break; joined turns join."""
    tokenizer = lm.load_tokenizer("base")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"]})
    tokenizer.embeddings = len(tokenizer)    # of a model whose embeddings were resized
    tokenizer.chat_template = ("{% for m in messages %}{{ '<start_of_turn>' + m['role'] + '\\n' + m['content'] "
                               "+ '<end_of_turn>\\n' }}{% endfor %}"
                               "{% if add_generation_prompt %}{{ '<start_of_turn>assistant\\n' }}{% endif %}")
    end = tokenizer.convert_tokens_to_ids("<end_of_turn>")
    record = json.loads(open("scored.jsonl").readline())
    turns = lm.tokenise(tokenizer, lm.turns_of(record))
    assert all(turn.ids[-1] == end != tokenizer.eos_token_id for turn in turns)
    assert trees.tree_tokens(turns) == len(turns[-1].ids), "each prompt extends the turn before it"
    assert lm.end_of_turn(lm.load_tokenizer("base")) == [tokenizer.eos_token_id]


# Parts of the data, orders, costs


@pytest.mark.parametrize("line, kind", [
    ('{"candidates":[]}', "candidates"), ('{"task": {"facts": [{"question": "chosen"}]}}', "task"), ("[1]", None),
    ('{"cho', None), ("7", None)])
def test_the_kind_of_a_record_is_told_by_its_keys(tmp_path, line, kind):
    """Not by words that may stand anywhere in it, nor by the spaces between them."""
    (tmp_path / "a.jsonl").write_text(line + "\n")
    assert [key for key in ("candidates", "chosen", "task") if lm.first_record_has(tmp_path / "a.jsonl", key)] == (
        [kind] if kind else [])
    assert not any(lm.first_record_has(path, "task") for path in (tmp_path / "missing", tmp_path))


def test_what_a_step_is_a_random_choice_of():
    """Four pairs a turn, three turns a trajectory: how many turns and trajectories a step of eight pairs holds."""
    items = [lm.Item([n], [], (n // 12, n // 4)) for n in range(480)]
    distinct = {}
    for shuffle in ("pairs", "turns"):
        args = Flags()
        args.shuffle, args.batch_size = shuffle, 8
        steps = lm.step_items(items, args)
        assert sorted(item.chosen[0] for step in steps for item in step) == list(range(480))
        distinct[shuffle] = np.mean([len({item.turn_key for item in step}) for step in steps])
    assert distinct["pairs"] > 7 and distinct["turns"] == 2


def test_fine_tuning_on_pages_keeps_the_best_quarter(place):
    records = [json.loads(line) for line in open("scored.jsonl")]
    for n, record in enumerate(records):
        record.update(domain="frontend", reward=0.5 + n / 100)
    write(Path("pages.jsonl"), records)
    code, said, error = call(train_policy, "--domain", "frontend", "--method", "rejection-ft", "--in", "pages.jsonl",
                             "--model", "base", "--out", "out", "--max-steps", 1)
    assert code == 0 and "9 dialogues" in said and "27 records left out: reward below 0.7625" in said, said + error
    assert "domain was 'frontend', now 'backend'" in refusal(
        train_policy, "--method", "rejection-ft", "--in", "pages.jsonl", "--model", "base", "--out", "out",
        "--max-steps", 1)


def test_what_a_model_keeps_beside_its_parameters_is_saved(place):
    """The routers of GLM-4-MoE have a bias that is a buffer, without which the next stage could not load the model."""
    import transformers
    tokenizer = transformers.AutoTokenizer.from_pretrained("base")
    config = transformers.Glm4MoeConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, n_routed_experts=4, n_shared_experts=1,
        num_experts_per_tok=2, first_k_dense_replace=1, n_group=1, topk_group=1, pad_token_id=0, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id)
    model = transformers.Glm4MoeForCausalLM(config)
    bias = model.model.layers[1].mlp.gate.e_score_correction_bias
    bias.copy_(torch.arange(len(bias)))
    model.save_pretrained("glm")
    tokenizer.save_pretrained("glm")
    code, _, error = call(train_policy, "--method", "rejection-ft", "--in", "scored.jsonl", "--model", "glm", "--out",
                          "out", "--max-steps", 1)
    assert code == 0, error
    saved = transformers.AutoModelForCausalLM.from_pretrained("out")
    assert torch.equal(saved.model.layers[1].mlp.gate.e_score_correction_bias, bias)
    lm.load_model("out", torch.device("cpu"), SimpleNamespace(
        pack="tree", checkpointing="none", dtype="float32"))


def test_a_heads_values_are_float32_whatever_its_weights_are():
    """FSDP hands the forward pass bf16 weights on CUDA: turns whose values then were equal would make no pair."""
    head, hidden = torch.nn.Linear(64, 1).bfloat16(), torch.randn(200, 64).bfloat16()
    assert len(lm.Scorer(None, head).values(hidden).unique()) == 200 > len(head(hidden).unique())


def test_annotated_records_are_saved_as_they_come(place, monkeypatch):
    seeming_critic()
    flags = ["--score", "scored.jsonl", "--critic", "critic", "--out"]
    assert call(train_critic, *flags, "whole.jsonl")[0] == 0
    monkeypatch.setattr(train_critic, "RECORDS_AT_A_TIME", 7)
    advantages, calls = train_critic.Critic.advantages, []

    def twice(self, turns):
        calls.append(len(turns))
        if len(calls) > 2:
            raise KeyboardInterrupt
        return advantages(self, turns)
    monkeypatch.setattr(train_critic.Critic, "advantages", twice)
    with pytest.raises(KeyboardInterrupt):
        call(train_critic, *flags, "parts.jsonl")
    assert len(open("parts.jsonl").readlines()) == 14
    monkeypatch.setattr(train_critic.Critic, "advantages", advantages)
    assert call(train_critic, *flags, "parts.jsonl")[0] == 0
    seen = [[m.get("advantage") for m in json.loads(line)["dialogue_history"]] for file in ("whole", "parts")
            for line in open(f"{file}.jsonl")]
    assert len(seen) == 72 and all(a == pytest.approx(b, abs=2e-5) for ones in zip(seen[:36], seen[36:])
                                   for a, b in zip(*ones) if a is not None)
    nameless = json.loads(open("candidates.jsonl").readline())
    del nameless["turn"]
    write(Path("nameless.jsonl"), [nameless])
    assert "none.jsonl: no such file; --score takes what" in refusal(train_critic, "--score", "none.jsonl", "--critic", "critic")
    assert "nameless.jsonl, line 1: the key 'turn' is missing" in refusal(
        train_critic, "--score", "nameless.jsonl", "--critic", "critic", "--out", "n.jsonl")


def test_a_runs_cost_adds_up_what_went_into_it(place):
    for name in ("scored.jsonl", "candidates.jsonl"):
        cost = {"sampled_tokens": 7, **({"simulator_calls": 2} if name == "scored.jsonl" else {})}
        of_episode = {"episode_cost": {"episodes": 1, "sampled_tokens": 7, "simulator_calls": 2}}
        write(Path(name), [{**json.loads(line), "cost": cost, **of_episode} for line in open(name).readlines()])
    assert call(train_critic, *CRITIC)[0] == 0
    code, said, error = rank_and_train("--pairs-per-turn", 4)
    assert code == 0, error
    critic, policy = (json.loads(Path(name, "cost.json").read_text()) for name in ("critic", "policy"))
    steps, lines = metrics("critic"), metrics("policy")
    assert critic == {"episodes": 36, "sampled_tokens": 36 * 7, "simulator_calls": 72, "optimizer_steps": len(steps),
                      "training_tokens": sum(line["tokens"] for line in steps)}
    assert policy["episodes"] == 36 and policy["simulator_calls"] == 72
    assert policy["sampled_tokens"] == 36 * 7 + 7 * len(open("candidates.jsonl").readlines())
    assert policy["training_tokens"] == critic["training_tokens"] + sum(line["tokens"] for line in lines)
    write(Path("one.jsonl"), read_lines("policy.pairs.jsonl")[:1])
    assert call(train_policy, "--in", "one.jsonl", "--model", "base", "--out", "one")[0] == 0
    assert json.loads(Path("one/cost.json").read_text())["sampled_tokens"] == policy["sampled_tokens"], "of all turns"
    for pair in ({"cost": {"sampled_tokens": 3}}, {"cost": {"sampled_tokens": 3}, "turn": None, "task_id": None}):
        assert train_policy.cost_of([pair] * 2)["sampled_tokens"] == 6, "of no named turn"


# ---- What a requeued or a shared machine does


def test_the_current_folder_can_be_the_output(place, monkeypatch):
    Path("here").mkdir()
    monkeypatch.chdir("here")
    code, said, error = call(train_critic, "--in", "../scored.jsonl", "--model", "../base", "--out", ".", "--max-steps", 1)
    assert code == 0 and Path("config.json").is_file(), said + error


def test_a_second_trainer_of_the_same_output_is_refused(place):
    """The first keeps its lock until its process ends, and this is its process."""
    assert call(train_critic, *CRITIC, "--max-steps", 1)[0] == 0
    second = subprocess.run([sys.executable, ROOT / "train_critic.py", *CRITIC, "--max-steps", "2", "--overwrite"],
                            capture_output=True, text=True)
    assert second.returncode == 2 and "critic/lock: another process is writing it" in second.stderr
    assert len(metrics("critic")) == 1


def test_a_torn_checkpoint_goes_when_the_run_is_continued(place):
    assert call(train_critic, *CRITIC, "--max-steps", 1, "--save-every", 1)[0] == 0
    part = Path("critic/checkpoints/step-000002.part")
    part.mkdir()
    (part / "__0_0.distcp").write_bytes(bytes(100))
    Path("critic/config.json").unlink()    # the sign that it is finished
    assert call(train_critic, *CRITIC, "--max-steps", 1, "--save-every", 1)[0] == 0
    assert not part.exists() and Path("critic/checkpoints/step-000001").exists()


def shorten(folder, **changes):
    file = Path(folder) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_a_turn_that_fits_only_without_c_is_counted(place):
    assert call(train_critic, *CRITIC, "--max-steps", 1)[0] == 0
    rows = read_lines("candidates.jsonl")
    rows[0]["task"]["ground_truth"] = "a " * 600
    write(Path("candidates.jsonl"), rows)
    shorten("critic", max_position_embeddings=500)
    code, said, error = call(train_critic, *SCORE)
    assert code == 0, error
    ranked_keys = {(r["task_id"], r["sample"], r["turn"]) for r in read_lines("ranked.jsonl")}
    assert 0 < len(ranked_keys) < len(rows) and "replies left out: they do not fit the critic's context" in said


def test_an_empty_reply_of_another_family_stops_nothing(place):
    """Token ids of another tokenizer (Table 4 of the paper) and no text: that dialogue is left out, the others train."""
    rows = read_lines("scored.jsonl")
    for message in rows[0]["dialogue_history"]:
        if message["role"] == "assistant":
            message |= {"output": "", "output_ids": [100_000]}
    write(Path("scored.jsonl"), rows)
    for module, command in ((train_critic, CRITIC), (train_policy, ["--method", "multi-turn-dpo", *CRITIC[:4], "--out",
                                                                    "policy"])):
        code, _, error = call(module, *command, "--max-steps", 1)
        assert code == 0, error


def test_a_rope_that_depends_on_its_batch_is_refused(place):
    shorten("base", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0,
                                     "original_max_position_embeddings": 16})
    sentence = refusal(train_critic, *CRITIC)
    assert "no dialogue fits the context of base, 16 tokens" in sentence


@pytest.mark.parametrize("text", ["", "[]", '{"context": '])
def test_a_damaged_critic_is_one_sentence(place, text):
    shutil.copytree("base", "torn")
    Path("torn/critic.json").write_text(text)
    sentence = refusal(train_critic, *"--score scored.jsonl --critic torn --out again.jsonl".split())
    assert "torn/critic.json is damaged" in sentence
