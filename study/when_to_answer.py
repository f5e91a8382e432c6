"""When an agent answers, how often its questions help, and how often it wins: with all details known, and with one open.

    python study/when_to_answer.py base=runs/demo/base.test.scored.jsonl sweet=runs/demo/policy.test.scored.jsonl

A detail is known once a reply of the human has told it. `told` of a reply lists the details that it tells. A game counts as
"all told" if every detail is known before its last turn: an agent that wins without that has guessed.
"""
import argparse
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from records import read
from rollout import parse_response

COLUMNS = ("answers, all known", "answers, a detail open", "questions that bring something", "games, all told",
           "wins, all told", "wins, a detail untold")


class Turn(NamedTuple):
    knows_all: bool        # does the agent know every hidden detail?
    is_answer: bool
    learns: bool           # does the reply tell a new detail?


def turns_of(record):
    hidden = {fact["detail"] for fact in record["task"]["facts"]}
    known = set()
    dialogue = record["dialogue_history"]
    for message, reply in zip(dialogue, [*dialogue[1:], {}]):
        if message["role"] == "assistant":
            told = hidden.intersection(reply.get("told") or [])
            is_answer = parse_response(message.get("output") or message["content"])[1] is not None
            yield Turn(known == hidden, is_answer, bool(told - known))
            known |= told


def share(values):
    return f"{100 * sum(values) / len(values):.1f}%" if values else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="NAME=FILE", help="scored trajectories of composed tasks")
    print(f"| | {' | '.join(COLUMNS)} |\n{'|---' * (len(COLUMNS) + 1)}|")
    for argument in parser.parse_args().files:
        name, _, path = argument.partition("=")
        turns = []
        games = []    # (was all told?, was it won?)
        for record in read(path, "scored"):
            of_game = list(turns_of(record))
            turns += of_game
            if record["reward"] is not None:    # the episode did not fail
                games.append((of_game[-1].knows_all, record["reward"] >= 1))
        cells = [
            share([turn.is_answer for turn in turns if turn.knows_all]),
            share([turn.is_answer for turn in turns if not turn.knows_all]),
            share([turn.learns for turn in turns if not turn.is_answer]),
            share([all_told for all_told, _ in games]),
            share([won for all_told, won in games if all_told]),
            share([won for all_told, won in games if not all_told]),
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
