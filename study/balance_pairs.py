"""Balance stage 2's pairs: as many prefer an answer to a question as prefer a question to an answer.

    python study/balance_pairs.py --in runs/default/train.pairs.jsonl --out runs/default/balanced.pairs.jsonl
    python train_policy.py --in runs/default/balanced.pairs.jsonl --out runs/default/balanced

Random pairs of the more frequent direction are dropped. All other pairs are kept, in their order.
"""
import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from records import ANSWER_MARK, SCHEMA, Output, read  # noqa: E402


def is_answer(pair, side):
    return ANSWER_MARK in pair[side][-1]["content"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in", dest="input", required=True, help="pairs (train_policy.py writes them)")
    parser.add_argument("--out", required=True, help="the balanced pairs")
    parser.add_argument("--seed", type=int, default=0, help="(default 0)")
    args = parser.parse_args()
    pairs = list(read(args.input, "pair"))
    ask = [n for n, pair in enumerate(pairs)
           if is_answer(pair, "rejected") and not is_answer(pair, "chosen")]
    answer = [n for n, pair in enumerate(pairs)
              if is_answer(pair, "chosen") and not is_answer(pair, "rejected")]
    rare, frequent = sorted([ask, answer], key=len)
    excess = len(frequent) - len(rare)
    dropped = set(random.Random(args.seed).sample(frequent, excess))
    settings = {"script": "balance_pairs", "seed": args.seed}
    output = Output(args.out, settings, {"--in": args.input}, overwrite=True, key=SCHEMA["pair"][1])
    for n, pair in enumerate(pairs):
        if n not in dropped:
            output.write(pair)
    print(f"{len(ask)} pairs prefer a question to an answer, {len(answer)} an answer to a question: "
          f"{excess} dropped")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
