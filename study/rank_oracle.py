"""Advantages from the scripted human itself: what stage 2 gains if the critic knows what each question would tell.

A useful question tells a hidden detail that the agent does not know. While a detail is open, a useful question is worth 2,
another question 1, an answer 0. When all is known, or at the last turn, an answer is worth 2 and any question 1. Writes the
same kind of file as train_critic.py --score, for train_policy.py to learn from.

    python study/rank_oracle.py --in runs/default/train.candidates.jsonl --out runs/default/oracle.ranked.jsonl
"""
import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[:2]]
from pairs_by_kind import scripted_kind  # noqa: E402
from rank_random import write_ranked  # noqa: E402
from train_critic import candidate_turns  # noqa: E402

WORTH = {"useful question": 2, "useless question": 1, "answer too early": 0, "answer, all known": 2}
WORTH_AT_THE_END = {**WORTH, "useful question": 1, "answer too early": 2}


def ranked(record):
    """The record with an advantage for each candidate: 0, 1 or 2."""
    candidate_turns(record)    # this removes empty candidates from the record
    worth = WORTH_AT_THE_END if record["turn"] == record["max_turns"] - 1 else WORTH
    candidates = []
    for candidate in record["candidates"]:
        kind = scripted_kind(record["task"], record["prompt"], candidate["output"])
        candidates.append({**candidate, "advantage": worth[kind]})
    return {**record, "candidates": candidates, "ranked_by": {"critic": "oracle"}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in", dest="input", required=True, help="candidates (rollout.py --candidates)")
    parser.add_argument("--out", required=True, help="the ranked file")
    parser.add_argument("--overwrite", action="store_true", help="start again and replace the output")
    write_ranked(parser.parse_args(), {"script": "rank_oracle"}, ranked)


if __name__ == "__main__":
    main()
