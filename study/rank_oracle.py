"""Advantages from the scripted human itself: what stage 2 gains if the critic knows what each question would tell.

A useful question tells a hidden detail that the agent does not know. While a turn is left after this one and a detail is
open, a useful question is worth 2, another question 1, an answer 0. Otherwise an answer is worth 2. Writes the same kind
of file as train_critic.py --score, for train_policy.py to learn from.

    python study/rank_oracle.py --in runs/default/train.candidates.jsonl --out runs/default/oracle.ranked.jsonl
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from records import ANSWER_MARK, SCHEMA, Output, read  # noqa: E402
from rollout import scripted_reply  # noqa: E402
from train_critic import candidate_turns  # noqa: E402


def ranked(record):
    """The record with an advantage for each candidate: 0, 1 or 2."""
    candidate_turns(record)    # this removes empty candidates from the record
    task = record["task"]
    unknown = {fact["detail"] for fact in task["facts"]}
    for message in record["prompt"]:
        if message["role"] == "assistant":
            unknown -= set(scripted_reply(task, message["content"])[1])
    may_ask = unknown and record["turn"] < record["max_turns"] - 1

    def worth(text):
        if ANSWER_MARK in text:
            return 0 if may_ask else 2
        return 2 if may_ask and unknown & set(scripted_reply(task, text)[1]) else 1

    candidates = [{**candidate, "advantage": worth(candidate["output"])} for candidate in record["candidates"]]
    return {**record, "candidates": candidates, "ranked_by": {"critic": "oracle"}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in", dest="input", required=True, help="candidates (rollout.py --candidates)")
    parser.add_argument("--out", required=True, help="the ranked file")
    parser.add_argument("--overwrite", action="store_true", help="start again and replace the output")
    args = parser.parse_args()
    output = Output(args.out, {"script": "rank_oracle"}, {"--in": args.input}, args.overwrite, SCHEMA["candidates"][1])
    for record in read(args.input, "candidates", each=ranked):
        if output.key_of(record) not in output.done:
            output.write(record)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
