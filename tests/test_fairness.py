"""What an honest player and an honest asker can rely on: every reading of a task is settled, and questions are understood."""
import itertools
import json
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import function_tasks  # noqa: E402
from human import listener  # noqa: E402
from honest_programs import STYLES  # noqa: E402


def finished_tasks(count, plain):
    """Tasks with their calls, of the test split."""
    found = []
    for task in function_tasks.draw_tasks("test", list(function_tasks.KINDS), plain, seed=2026):
        rng = random.Random(task["ground_truth"])
        calls, reason = function_tasks.choose_calls(task["composition"], task["theme"], task["details"], plain, rng)
        if not reason:
            found.append({**task, "test_cases": calls})
        if len(found) == count:
            return found


def results(code, calls):
    names = {}
    exec(code, names)
    return [repr(eval(call, names)) for call in calls]


@pytest.fixture(scope="module")
def tasks():
    return finished_tasks(400, plain=False) + finished_tasks(100, plain=True)


@pytest.mark.parametrize("style", STYLES)
def test_an_honest_program_written_from_the_english_passes_every_call(tasks, style):
    """Of request and replies alone, by a programmer who never saw how the references are written."""
    failed = []
    for task in tasks:
        replies = [(fact["question"], fact["reply"]) for fact in task["facts"]]
        code = STYLES[style](task["problem_description"], replies)
        if results(code, task["test_cases"]) != results(task["ground_truth"], task["test_cases"]):
            failed.append(task["problem_description"])
    assert len(tasks) == 500 and not failed, (len(failed), failed[:3])


def answers(split):
    """How natural questions about an open detail are answered: a Counter of right, wrong and unknown.

    questions.jsonl has them in the words of four askers, each with the task that it was asked about. Those that were
    looked at are examples in questions.tsv, as are those of three more askers. Nobody looked at the held-out ones.
    """
    found, human = Counter(), listener()
    with open(ROOT / "tests/questions.jsonl", encoding="utf-8") as file:
        for line in map(json.loads, file):
            if line["split"] == split:
                task = {"problem_description": line["request"], "theme": line["theme"], "details": line["details"],
                        "facts": [{"detail": detail} for detail in line["hidden"]]}
                topics = human.topics(task, line["question"])[:2]
                found["right" if line["topic"] in topics else "wrong" if topics else "unknown"] += 1
    return found


@pytest.mark.parametrize("split, least, most", [("held out", 0.80, 0.05), ("looked at", 0.95, 0.02)])
def test_natural_questions_are_answered_with_the_fact_that_they_are_about(split, least, most):
    found = answers(split)
    count = sum(found.values())
    print({kind: f"{number / count:.1%}" for kind, number in found.items()}, "of", count, split)
    assert count >= 300 and found["right"] >= least * count and found["wrong"] <= most * count, found


def test_a_wrong_program_is_told_from_an_honest_one(tasks):
    """The check itself: a style that ignores what comes back when nothing is left fails most tasks."""
    style, failed = next(iter(STYLES.values())), 0
    for task in itertools.islice(tasks, 100):
        replies = [(fact["question"], fact["reply"]) for fact in task["facts"]]
        code = style(task["problem_description"], replies).replace("if not kept:", "if False:")
        try:
            failed += results(code, task["test_cases"]) != results(task["ground_truth"], task["test_cases"])
        except Exception:    # the largest of nothing
            failed += 1
    assert failed > 50
