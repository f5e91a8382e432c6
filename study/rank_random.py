"""Random advantages for candidates: the ranking that every other one has to beat.

Writes the same kind of file as train_critic.py --score, for train_policy.py to learn from.

    python study/rank_random.py --in runs/default/train.candidates.jsonl --out runs/default/random.ranked.jsonl
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from records import SCHEMA, Output, number, read  # noqa: E402
from train_critic import candidate_turns  # noqa: E402
from train_policy import rng_of  # noqa: E402


def ranked(record, seed):
    """The record with a random advantage for each candidate."""
    count = len(candidate_turns(record))    # this also removes empty candidates from the record
    advantages = rng_of(record, seed, 1).random(count).tolist()
    candidates = [{**candidate, "advantage": value} for candidate, value in zip(record["candidates"], advantages)]
    return {**record, "candidates": candidates, "ranked_by": {"critic": "random"}}


def write_ranked(args, settings, ranked):
    """Write ranked(record) for each record of --in to --out, or for those that --out lacks."""
    output = Output(args.out, settings, {"--in": args.input}, args.overwrite, SCHEMA["candidates"][1])
    for record in read(args.input, "candidates", each=ranked):
        if output.key_of(record) not in output.done:
            output.write(record)
    print(f"wrote {args.out}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in", dest="input", required=True, help="candidates (rollout.py --candidates)")
    parser.add_argument("--out", required=True, help="the ranked file")
    parser.add_argument("--seed", type=number(int, least=0), default=0, help="(default 0)")
    parser.add_argument("--overwrite", action="store_true", help="start again and replace the output")
    args = parser.parse_args()
    settings = {"script": "rank_random", "seed": args.seed}
    write_ranked(args, settings, lambda record: ranked(record, args.seed))


if __name__ == "__main__":
    main()
