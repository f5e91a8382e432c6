"""Random advantages for candidates: the ranking that every other one has to beat.

Writes the same kind of file as train_critic.py --score, for train_policy.py to learn from.

    python study/rank_random.py --in runs/default/train.candidates.jsonl --out runs/default/random.ranked.jsonl
"""
import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from records import SCHEMA, TURN_KEY, Output, number, read, run_script  # noqa: E402


def ranked(record, seed):
    """The record with a random advantage for each candidate."""
    rng = random.Random(f"{seed} {[record.get(part) for part in TURN_KEY]}")
    candidates = [{**candidate, "advantage": rng.random()} for candidate in record["candidates"]]
    return {**record, "candidates": candidates, "ranked_by": {"critic": "random"}}


def write_ranked(args, inputs, ranked):
    """Write ranked(record) for each record of --in to --out, or for those that --out lacks."""
    settings = {"script": Path(sys.argv[0]).stem, "seed": args.seed}
    output = Output(args.out, settings, inputs, args.overwrite, SCHEMA["candidates"][1])
    for record in read(args.input, "candidates", each=ranked):
        if output.key_of(record) not in output.done:
            output.write(record)
    print(f"wrote {args.out}")


def parse_args(description, **inputs):
    """The command line of a ranking. inputs: {name of a further required flag: its help}."""
    parser = argparse.ArgumentParser(description=description.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--in", dest="input", required=True, help="candidates (rollout.py --candidates)")
    for name, text in inputs.items():
        parser.add_argument(f"--{name}", required=True, help=text)
    parser.add_argument("--out", required=True, help="the ranked file")
    parser.add_argument("--seed", type=number(int, least=0), default=0, help="(default: 0)")
    parser.add_argument("--overwrite", action="store_true", help="start again and replace the output")
    return parser.parse_args()


def main():
    args = parse_args(__doc__)
    write_ranked(args, {"--in": args.input}, lambda record: ranked(record, args.seed))


if __name__ == "__main__":
    run_script(main)
