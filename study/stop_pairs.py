"""Pairs that show when to stop asking, from winning dialogues without a critic (CaRT, arXiv 2510.08517, has the idea).

Of each dialogue with reward 1 that asks anything, two pairs: its last question rather than its answer; then its answer rather
than one of its questions again, a random one. SWEET-RL's pairs go in front (--add): a file of them, or ranked candidates, from
which they are drawn as train_policy.py draws them. Of the result train_policy.py --surest keeps all stop pairs.

    python study/stop_pairs.py --in runs/default/train.scored.jsonl --add runs/default/train.ranked.jsonl \\
        --out runs/default/stop.jsonl
    python train_policy.py --in runs/default/stop.jsonl --out runs/default/stop-policy
"""
import argparse
import sys
from itertools import chain
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from records import SCHEMA, Output, number, read  # noqa: E402
from lm import first_record_has, read_trajectories, text_of  # noqa: E402
from train_policy import make_pairs, rng_of  # noqa: E402


def stop_pairs(record, seed):
    """The two pairs of a winning dialogue that has its "turns" (read_trajectories); none if it asks nothing."""
    *questions, (after, answer, _) = record["turns"]
    if not questions:
        return
    before, question, _ = questions[-1]
    repeated = questions[rng_of(record, seed).integers(len(questions))][1]
    last = len(questions)
    for turn, prompt, chosen, rejected in [(last - 1, before, question, answer), (last, after, answer, repeated)]:
        yield {"task_id": record["task_id"], "sample": record.get("sample"), "turn": turn, "prompt": prompt,
               "chosen": [{"role": "assistant", "content": text_of(chosen)}], "chosen_ids": chosen.get("output_ids"),
               "rejected": [{"role": "assistant", "content": text_of(rejected)}],
               "rejected_ids": rejected.get("output_ids"), "episode_cost": record.get("cost")}


def pairs_in_front(args):
    """The pairs of --add, or those drawn from its ranked candidates."""
    if first_record_has(args.add, "chosen"):
        return list(read(args.add, "pair"))
    drawn, _ = make_pairs(argparse.Namespace(**{**vars(args), "input": args.add, "surest": 1}))
    return [{name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in pair.items()}
            for pair in drawn]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in", dest="input", required=True, help="scored trajectories")
    parser.add_argument("--add", help="pairs that go in front, or ranked candidates to draw them from")
    parser.add_argument("--pairs-per-turn", type=number(int, least=1), default=2, help="drawn from these (default 2; train_policy.py: 1)")
    parser.add_argument("--out", required=True, help="the pairs")
    parser.add_argument("--seed", type=int, default=0, help="(default 0)")
    args = parser.parse_args()
    pairs = pairs_in_front(args) if args.add else []
    count = len(pairs)
    tasks, _ = read_trajectories(args.input, "scored")
    for record in chain(*tasks.values()):
        if record["reward"] >= 1:
            pairs += stop_pairs(record, args.seed)
    settings = {"script": "stop_pairs", "seed": args.seed, "pairs_per_turn": args.pairs_per_turn}
    inputs = {"--in": args.input} | ({"--add": args.add} if args.add else {})
    output = Output(args.out, settings, inputs, overwrite=True, key=SCHEMA["pair"][1])
    for pair in pairs:
        output.write(pair)
    print(f"wrote {args.out}: {count} pairs, and {len(pairs) - count} from winning dialogues")


if __name__ == "__main__":
    main()
