"""Keep a part of a ranking's pairs, to see what each part teaches. Stop pairs behind them (study/stop_pairs.py) all stay.

- unlike: the two actions are of different kinds, so one is better (the scripted human tells their kinds);
- questions: both are questions;
- answers: one is a question and one an answer.

    python study/keep_pairs.py unlike --tasks runs/a/train.scored.jsonl --in runs/a/stop.jsonl --out runs/a/unlike.jsonl
"""
import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[:2]]
from pairs_by_kind import kinds_of  # noqa: E402
from records import SCHEMA, Output, read  # noqa: E402
from train_policy import is_ranked  # noqa: E402

KEEP = {"unlike": lambda chosen, rejected: chosen != rejected,
        "questions": lambda *kinds: all("question" in kind for kind in kinds),
        "answers": lambda *kinds: sum("question" in kind for kind in kinds) == 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=KEEP, help="what to keep")
    parser.add_argument("--tasks", required=True, help="trajectories on the tasks of the pairs")
    parser.add_argument("--in", dest="input", required=True, help="pairs (train_policy.py or stop_pairs.py writes them)")
    parser.add_argument("--out", required=True, help="the kept pairs, in their order")
    args = parser.parse_args()
    tasks = {record["task_id"]: record["task"] for record in read(args.tasks, "trajectory")}
    inputs = {"--in": args.input, "--tasks": args.tasks}
    output = Output(args.out, {"script": "keep_pairs", "part": args.part}, inputs, overwrite=True, key=SCHEMA["pair"][1])
    count = kept = 0
    for pair in read(args.input, "pair"):
        count += 1
        if not is_ranked(pair) or KEEP[args.part](*kinds_of(pair, tasks)):
            output.write(pair)
            kept += 1
    print(f"wrote {args.out}: {kept} of {count} pairs")


if __name__ == "__main__":
    main()
