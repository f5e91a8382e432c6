"""Put a critic's errors into an oracle's pairs: turn round the pairs of two questions that the critic orders otherwise.

With --random as many pairs are turned round, but random ones. Everything else stays: which pairs there are, and all pairs
with an answer, stop pairs too (study/stop_pairs.py).

    python study/flip_pairs.py --in runs/a/stop-warm-oracle.jsonl --by runs/a/warm-nll-0.2.jsonl --out runs/a/flipped.jsonl
"""
import argparse
import random
import sys
from pathlib import Path

sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[:2]]
from balance_pairs import is_answer  # noqa: E402
from records import SCHEMA, Output, read  # noqa: E402
from train_policy import key_of  # noqa: E402

SIDES = ("chosen", "rejected")


def flipped(pair):
    names = {}
    for side, other in (SIDES, SIDES[::-1]):
        names |= {side: other, f"{side}_ids": f"{other}_ids", f"advantage_{side}": f"advantage_{other}"}
    return {names.get(name, name): value for name, value in pair.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in", dest="input", required=True, help="the oracle's pairs (stop_pairs.py or train_policy.py writes them)")
    parser.add_argument("--by", required=True, help="the same candidates, ranked by the critic (train_critic.py --score)")
    parser.add_argument("--random", action="store_true", help="as many, but random ones")
    parser.add_argument("--out", required=True, help="the pairs")
    parser.add_argument("--seed", type=int, default=0, help="(default 0)")
    args = parser.parse_args()
    advantages = {}    # of each turn: {text: advantage}
    for turn in read(args.by, "ranked"):
        advantages[tuple(key_of(turn))] = {one["output"]: one["advantage"] for one in turn["candidates"]}

    def judged(pair):
        """The pair, and whether the critic orders its two questions otherwise; None if it has an answer."""
        if any(is_answer(pair, side) for side in SIDES):
            return pair, None
        of_turn = advantages[tuple(key_of(pair))]
        chosen, rejected = [of_turn[pair[side][-1]["content"]] for side in SIDES]
        return pair, chosen < rejected

    pairs, wrong = zip(*read(args.input, "pair", each=judged))
    questions = [n for n, is_wrong in enumerate(wrong) if is_wrong is not None]
    turned = [n for n in questions if wrong[n]]
    if args.random:
        turned = random.Random(args.seed).sample(questions, len(turned))
    settings = {"script": "flip_pairs", "random": args.random, "seed": args.seed}
    output = Output(args.out, settings, {"--in": args.input, "--by": args.by}, overwrite=True, key=SCHEMA["pair"][1])
    for n, pair in enumerate(pairs):
        output.write(flipped(pair) if n in turned else pair)
    print(f"wrote {args.out}: {len(pairs)} pairs, {len(questions)} of two questions, {len(turned)} of them turned round")


if __name__ == "__main__":
    main()
