"""Does a critic look at the dialogue, or only at the words of a question? From candidates that it ranked.

A question is useful if the scripted human tells something new on it. Of the different questions of a turn, three shares:

- how often the critic puts a useful one above a useless one;
- how often the words alone do: a question's mean advantage over the file's other turns, each less its turn's mean;
- of two turns with the same question, useful in one of them, how often it ranks higher there (50%: no look at the dialogue).

Intervals: 95%, a jackknife that leaves out a twentieth of the tasks at a time.

    python study/question_words.py --tasks runs/a/train.scored.jsonl critic=runs/a/train.ranked.jsonl
"""
import argparse
import sys
from collections import defaultdict
from itertools import permutations
from pathlib import Path

import numpy as np

sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[:2]]
from evaluate import markdown  # noqa: E402
from pairs_by_kind import scripted_kind  # noqa: E402
from records import ANSWER_MARK, read  # noqa: E402

COLUMNS = ("critic", "words alone", "same question")


def questions_of(record, task):
    """{question: (is it useful?, its advantage less the mean of the turn's questions)}."""
    advantages = {}
    for candidate in record["candidates"]:
        if ANSWER_MARK not in candidate["output"]:
            advantages[candidate["output"]] = candidate["advantage"]
    mean = sum(advantages.values()) / max(1, len(advantages))    # an answer may be all there is
    return {text: (scripted_kind(task, record["prompt"], text) == "useful question", advantage - mean)
            for text, advantage in advantages.items()}


def in_order(differences):
    """The share of differences (useful less useless) above 0; a difference of 0 counts half."""
    return (0.5 + 0.5 * np.sign(differences)).mean()


def shares(turns):
    """The three shares, from questions_of of each turn."""
    values = defaultdict(lambda: ([], []))    # question: advantages where it was useless, and where it was useful
    for turn in turns:
        for text, (useful, value) in turn.items():
            values[text][useful].append(value)

    totals = {text: (sum(useless) + sum(useful), len(useless) + len(useful)) for text, (useless, useful) in values.items()}

    def by_words(text, own):    # 0 if no other turn has this question
        total, count = totals[text]
        return (total - own) / max(1, count - 1)

    critic, words = [], []
    for turn in turns:
        for (a, (a_useful, a_value)), (b, (b_useful, b_value)) in permutations(turn.items(), 2):
            if a_useful and not b_useful:
                critic.append(a_value - b_value)
                words.append(by_words(a, a_value) - by_words(b, b_value))
    both = [(useless, useful) for useless, useful in values.values() if useless and useful]
    same = [in_order(np.subtract.outer(useful, useless)) for useless, useful in both]
    weights = [min(len(useless), len(useful)) for useless, useful in both]
    return np.array([in_order(critic), in_order(words), np.average(same, weights=weights)])


def jackknife(turns, groups=20):
    """The shares and half the width of their intervals, from [(task_id, questions_of the turn)]."""
    group_of = {task: n % groups for n, task in enumerate(dict.fromkeys(task for task, _ in turns))}
    left_out = [shares([turn for task, turn in turns if group_of[task] != group]) for group in range(groups)]
    return shares([turn for _, turn in turns]), 1.96 * np.std(left_out, axis=0) * np.sqrt(groups - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", required=True, help="trajectories on the tasks of the candidates")
    parser.add_argument("files", nargs="+", metavar="NAME=FILE", help="ranked candidates (train_critic.py --score)")
    args = parser.parse_args()
    tasks = {record["task_id"]: record["task"] for record in read(args.tasks, "trajectory")}
    rows = [("", *COLUMNS)]
    for argument in args.files:
        name, _, path = argument.partition("=")
        turns = []
        for record in read(path, "ranked"):
            turns.append((record["task_id"], questions_of(record, tasks[record["task_id"]])))
        cells = []
        for share, half in zip(*jackknife(turns)):
            cells.append(f"{share:.1%} [{100 * (share - half):.1f}, {100 * (share + half):.1f}]")
        rows.append((name, *cells))
    print(markdown(rows))


if __name__ == "__main__":
    main()
