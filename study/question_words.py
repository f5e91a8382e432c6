"""Does a critic look at the dialogue, or only at the words of a question? From candidates that it ranked.

A question is useful if the scripted human tells something new on it. Of the different questions of a turn, three shares:

- how often the critic puts a useful one above a useless one;
- how often the words alone do: a question's mean advantage over the file's other turns, each less its turn's mean;
- of two turns with the same question, useful in one of them, how often it ranks higher there (50%: no look at the dialogue).

    python study/question_words.py --tasks runs/a/train.scored.jsonl critic=runs/a/train.ranked.jsonl
"""
import argparse
import sys
from collections import defaultdict
from itertools import permutations, product
from pathlib import Path

import numpy as np

sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[:2]]
from pairs_by_kind import scripted_kind  # noqa: E402
from records import ANSWER_MARK, read  # noqa: E402

COLUMNS = ("pairs", "critic", "words alone", "same question")


def questions_of(record, task):
    """{question: (is it useful?, its advantage less the mean of the turn's questions)}."""
    advantages = {one["output"]: one["advantage"] for one in record["candidates"] if ANSWER_MARK not in one["output"]}
    return {text: (scripted_kind(task, record["prompt"], text) == "useful question", value - np.mean([*advantages.values()]))
            for text, value in advantages.items()}


def right_order(pairs):
    """The share of (useful's score, useless one's score) in which the first is larger; equal ones count half."""
    return np.mean([0.5 + 0.5 * np.sign(useful - useless) for useful, useless in pairs])


def shares(turns):
    """The number of pairs of a useful and a useless question of a turn, and the three shares."""
    values = defaultdict(lambda: ([], []))    # question: advantages where it was useless, and where it was useful
    for turn in turns:
        for text, (useful, value) in turn.items():
            values[text][useful].append(value)

    def by_words(text, own):    # 0 if no other turn has this question
        useless, useful = values[text]
        return (sum(useless + useful) - own) / max(1, len(useless + useful) - 1)

    critic, words = [], []
    for turn in turns:
        for (a, (a_useful, a_value)), (b, (b_useful, b_value)) in permutations(turn.items(), 2):
            if a_useful and not b_useful:
                critic.append((a_value, b_value))
                words.append((by_words(a, a_value), by_words(b, b_value)))
    same = {}    # question: (the rarer of its two counts, the share)
    for text, (useless, useful) in values.items():
        if useless and useful:
            same[text] = min(len(useless), len(useful)), right_order(product(useful, useless))
    weights, of_question = zip(*same.values())
    return len(critic), right_order(critic), right_order(words), np.average(of_question, weights=weights)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", required=True, help="trajectories on the tasks of the candidates")
    parser.add_argument("files", nargs="+", metavar="NAME=FILE", help="ranked candidates (train_critic.py --score)")
    args = parser.parse_args()
    tasks = {record["task_id"]: record["task"] for record in read(args.tasks, "trajectory")}
    print(f"| | {' | '.join(COLUMNS)} |\n{'|---' * (len(COLUMNS) + 1)}|")
    for argument in args.files:
        name, _, path = argument.partition("=")
        count, *parts = shares([questions_of(record, tasks[record["task_id"]]) for record in read(path, "ranked")])
        print(f"| {name} | {count:,} | {' | '.join(f'{part:.1%}' for part in parts)} |")


if __name__ == "__main__":
    main()
