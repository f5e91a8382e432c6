"""Advantages of candidates by Monte Carlo: the mean reward of a candidate's continuations minus the turn's mean.

Writes the same kind of file as train_critic.py --score, for train_policy.py to learn from.

    python study/rank_monte_carlo.py --in runs/default/train.candidates.jsonl \\
        --truth runs/default/train.continuations.scored.jsonl --out runs/default/monte-carlo.ranked.jsonl
"""
import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[:2]]
from monte_carlo import monte_carlo_returns  # noqa: E402
from records import SCHEMA, Output, die, fingerprint, read  # noqa: E402
from train_critic import candidate_turns  # noqa: E402
from train_policy import cost_of, key_of  # noqa: E402


def without_empty_candidates(record):
    """The record without its empty candidates, or None if it has no others."""
    return record if candidate_turns(record) else None


def advantages(record, returns):
    """Q(o_t, a_t) of each candidate minus their mean, or None if a candidate has no continuation with a reward."""
    rewards_of = {text: rewards for text, rewards, _ in returns.get(tuple(key_of(record)), {}).values()}
    texts = [candidate.get("output") for candidate in record["candidates"]]
    if not rewards_of.keys() >= set(texts):
        return None
    q = [float(np.mean(rewards_of[text])) for text in texts]
    return [value - float(np.mean(q)) for value in q]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in", dest="input", required=True, help="candidates (rollout.py --candidates)")
    parser.add_argument("--truth", required=True, help="their scored continuations (rollout.py --continue)")
    parser.add_argument("--out", required=True, help="the ranked file")
    parser.add_argument("--overwrite", action="store_true", help="start again and replace the output")
    args = parser.parse_args()
    inputs = {"--in": args.input, "--truth": args.truth}
    settings = {"script": "rank_monte_carlo"}
    output = Output(args.out, settings, inputs, args.overwrite, SCHEMA["candidates"][1])
    records = list(filter(None, read(args.input, "candidates", each=without_empty_candidates)))
    returns, cost = monte_carlo_returns(args.truth)
    episodes = cost_of([{**record, "cost": None} for record in records])
    ranked_by = {"critic": args.truth, "fingerprint": fingerprint(args.truth), "cost": episodes + Counter(cost)}
    left_out = 0
    for record in records:
        values = advantages(record, returns)
        if values is None:
            left_out += 1
        elif output.key_of(record) not in output.done:
            candidates = [{**candidate, "advantage": value} for candidate, value in zip(record["candidates"], values)]
            output.write({**record, "candidates": candidates, "ranked_by": ranked_by})
    if left_out == len(records):
        die(f"{args.truth} does not continue all candidates of any turn of {args.input}; use rollout.py --continue")
    if left_out:
        print(f"{args.input}: {left_out} turns left out: a candidate has no continuation with a reward")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
