"""Rank candidates by their Monte-Carlo returns: the mean reward of the episodes that rollout.py --continue played from
each. No critic is needed, but thousands of episodes are.

Writes the same kind of file as train_critic.py --score, for train_policy.py to learn from.

    python rollout.py --split train --continue 8
    python evaluate.py --in runs/default/train.continuations.jsonl
    python study/rank_monte_carlo.py --in runs/default/train.candidates.jsonl \\
        --returns runs/default/train.continuations.scored.jsonl --out runs/default/monte_carlo.ranked.jsonl
"""
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rank_random import parse_args, write_ranked  # noqa: E402
from records import read, run_script  # noqa: E402


def returns_of(path):
    """{(task, sample, turn, index of the candidate): the rewards of the episodes that continued it}."""
    rewards = {}
    for record in read(path, "scored"):
        if record.get("continues") and record["reward"] is not None:
            rewards.setdefault((record["task_id"], *record["continues"]), []).append(record["reward"])
    return rewards


def ranked(record, rewards):
    """The record with the mean return of each candidate. Candidates with the same text were played once."""
    first = {}
    kept = []
    for index, candidate in enumerate(record["candidates"]):
        index = first.setdefault(candidate.get("output"), index)
        found = rewards.get((record["task_id"], record["sample"], record["turn"], index))
        if found:
            kept.append({**candidate, "advantage": float(np.mean(found))})
    return {**record, "candidates": kept, "ranked_by": {"critic": "Monte-Carlo returns"}}


def main():
    args = parse_args(__doc__, returns="scored continuations (rollout.py --continue, then evaluate.py)")
    rewards = returns_of(args.returns)
    write_ranked(args, {"--in": args.input, "--returns": args.returns}, lambda record: ranked(record, rewards))


if __name__ == "__main__":
    run_script(main)
