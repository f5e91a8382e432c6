"""When an agent answers: with every hidden detail known, or with one still open; and whether its questions bring something.

    python study/when_to_answer.py base=runs/demo/base.test.scored.jsonl sweet=runs/demo/policy.test.scored.jsonl

A detail is known once the human has told it. `told` of the human's replies says which details a reply tells.
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from records import read
from rollout import parse_response

COLUMNS = ("answers, all known", "answers, a detail open", "questions that bring something")


def turns_of(record):
    """Yield (is every hidden detail known?, is the turn the answer?, does the reply tell something new?) of each turn."""
    hidden = {fact["detail"] for fact in record["task"]["facts"]}
    known = set()
    dialogue = record["dialogue_history"]
    for place, message in enumerate(dialogue):
        if message["role"] == "assistant":
            reply = dialogue[place + 1] if place + 1 < len(dialogue) else {}
            told = hidden & set(reply.get("told") or [])
            answers = parse_response(message.get("output") or message["content"])[1] is not None
            yield known == hidden, answers, bool(told - known)
            known |= told


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="NAME=FILE", help="scored trajectories of composed tasks")
    print(f"| | {' | '.join(COLUMNS)} |\n|---|---|---|---|")
    for pair in parser.parse_args().files:
        name, _, path = pair.partition("=")
        turns = [turn for record in read(path, "scored") for turn in turns_of(record)]
        counts = [[answers for known, answers, _ in turns if known],
                  [answers for known, answers, _ in turns if not known],
                  [new for _, answers, new in turns if not answers]]
        cells = [f"{100 * sum(values) / len(values):.1f}%" if values else "" for values in counts]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
