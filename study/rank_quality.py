"""How often is a ranking of candidates right? On the composed functions it is known what each candidate is worth.

    python study/rank_quality.py runs/demo/train.ranked.jsonl [TURNS]    (default: 500 turns)
    python study/rank_quality.py runs/demo/train.ranked.jsonl --out runs/demo/truth.ranked.jsonl

The second command ranks all candidates by their true worth, as a perfect critic would, for train_policy.py.

A question that gets a hidden detail told and a right answer are good (1), a question that gets none is a wasted turn
(0), a wrong answer loses the episode (-1). Of the pairs of a candidate in the upper half and one in the lower half
that differ in worth, which are what stage 2 learns from, the share is printed that is the right way round.
"""
import argparse
import random
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from evaluate import markdown, program_of  # noqa: E402
from rank_random import write_ranked  # noqa: E402
from listener import scripted_reply  # noqa: E402
from records import ANSWER_MARK, number, read, run_script  # noqa: E402
from sandbox import Sandbox  # noqa: E402

WORTH = {"question": 1, "right answer": 1, "wasted question": 0, "early answer": -1, "wrong answer": -1}


def kind_of(record, output, box):
    """What a candidate is: a key of WORTH. An early answer is a wrong one before all is told."""
    task, heard = record["task"], [message["content"] for message in record["prompt"] if message["role"] == "user"]
    told = {fact["detail"] for fact in task["facts"] if any(fact["reply"] in text for text in heard)}
    _, marked, answer = output.partition(ANSWER_MARK)
    if not marked:
        reply = {"role": "assistant", "content": output}
        return "question" if set(scripted_reply(task, [*record["prompt"], reply])[1]) - told else "wasted question"
    if set(box.score(task, program_of({"task": task, "answer": answer})).values()) == {"passed"}:
        return "right answer"
    return "wrong answer" if len(told) == len(task["facts"]) else "early answer"


def by_worth(record, box):
    """The record with the worth of each candidate as its advantage."""
    candidates = [{**each, "advantage": WORTH[kind_of(record, each["output"], box)]} for each in record["candidates"]]
    return {**record, "candidates": candidates, "ranked_by": {"critic": "truth"}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("input", metavar="ranked", help="candidates with their advantages (train_critic.py --score)")
    parser.add_argument("turns", nargs="?", type=number(int, least=1), default=500, help="(default: 500)")
    parser.add_argument("--out", help="write all candidates to this file, ranked by their worth")
    parser.add_argument("--overwrite", action="store_true", help="start --out again")
    parser.set_defaults(seed=0)
    args = parser.parse_args()
    if args.out:
        with Sandbox(workers=1) as box:
            return write_ranked(args, {"the candidates": args.input}, lambda record: by_worth(record, box))
    records = list(read(args.input, "candidates"))
    records = random.Random(0).sample(records, min(len(records), args.turns))
    right, pairs = Counter(), Counter()
    with Sandbox(workers=1) as box:
        for record in records:
            ranked = sorted(record["candidates"], key=lambda candidate: -candidate["advantage"])
            kinds = [kind_of(record, candidate["output"], box) for candidate in ranked]
            half = len(kinds) // 2
            for upper in kinds[:half]:
                for lower in kinds[-half:]:
                    if WORTH[upper] != WORTH[lower]:
                        pair = tuple(sorted([upper, lower], key=lambda kind: -WORTH[kind]))
                        for name in (" before ".join(pair), "all"):
                            pairs[name] += 1
                            right[name] += WORTH[upper] > WORTH[lower]
    print(markdown([["", "pairs", "right"], *([name, f"{count:,}", f"{100 * right[name] / count:.1f}%"]
                                              for name, count in pairs.most_common())]))


if __name__ == "__main__":
    run_script(main)
