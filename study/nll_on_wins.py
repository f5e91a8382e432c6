"""Stage 2 with its NLL term on the winning dialogues' turns, not on the chosen candidates (remedy 4; RLSD, arXiv 2604.03128).

Each turn of a winning dialogue weighs what the critic's advantage of it is, if that is positive (the mean weight of these is 1).

    python train_critic.py --score runs/default/train.scored.jsonl
    python study/nll_on_wins.py runs/default/train.annotated.jsonl --in runs/default/stop.jsonl --nll 1 --out runs/default/wins
"""
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import train_policy  # noqa: E402
from train_critic import read_trajectories  # noqa: E402

wins = sys.argv.pop(1)
plain_items, plain_loss = train_policy.pair_items, train_policy.preference_loss


def pair_items(pairs, tokenizer):
    """The pairs as items of weight 0, and behind them the won turns: pairs of a turn with itself, which teach no preference."""
    tasks, _ = read_trajectories(wins, "scored")
    turns = [(record, turn) for group in tasks.values() for record in group if record["reward"] >= 1
             for turn in record["turns"] if turn[1]["advantage"] > 0]
    mean = sum(turn[1]["advantage"] for _, turn in turns) / len(turns)
    twice = plain_items([{"task_id": record["task_id"], "sides": [turn, turn]} for record, turn in turns], tokenizer)
    print(f"{wins}: {len(turns)} turns")
    return ([item._replace(reward=0.0) for item in plain_items(pairs, tokenizer)]
            + [item._replace(reward=turn[1]["advantage"] / mean) for item, (_, turn) in zip(twice, turns)])


def preference_loss(logps, batch, items, args):
    _, log = plain_loss(logps, batch, items, args)
    weights = torch.tensor([item.reward for item in items], device=logps.device)
    losses = torch.where(weights == 0, log["preference_loss"], args.nll * weights * log["nll"])
    return losses, log | {"loss": losses}


train_policy.pair_items, train_policy.preference_loss = pair_items, preference_loss
train_policy.main()
