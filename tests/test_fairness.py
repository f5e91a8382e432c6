"""What an honest player can rely on, and what a checklist cannot: every reading of a task is settled, and asking takes
reading. The full figures (300 tasks): study/task_figures.py."""
import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "study"), str(ROOT / "tests")]
import function_tasks as f  # noqa: E402
import task_figures  # noqa: E402


@pytest.fixture(scope="module")
def tasks():
    return task_figures.finished(60)[0]


@pytest.mark.parametrize("level, count", [("full", 100), ("plain", 50)])
def test_an_honest_program_in_another_style_passes_every_call(level, count):
    tasks, *_ = task_figures.finished(count, level, seed=2026)
    assert [task["problem_description"] for task in tasks if not task_figures.is_honest(task)] == []


def test_the_check_tells_a_wrong_reading_from_an_honest_one(tasks):
    """With one detail misread, the program in another style fails."""
    for task in tasks:
        detail = random.Random(task["ground_truth"]).choice([fact["detail"] for fact in task["facts"]])
        _, choices = f.settle(task["plan"], f.likeliest, task["details"])
        wrong = next(value for value in choices[detail] if value != task["details"][detail])
        misread, _ = f.settle(task["plan"], f.likeliest, task["details"] | {detail: wrong})
        assert not task_figures.is_honest({**task, "details": misread}), detail


def test_whoever_was_told_everything_has_nothing_to_guess(tasks):
    assert all(task_figures.passes(task, task_figures.hidden(task)) for task in tasks)


def test_a_guesser_with_the_likeliest_values_passes_at_most_one_task_in_twenty(tasks):
    assert sum(task_figures.passes(task, set()) for task in tasks) <= 3


def test_a_list_that_ignores_the_request_finds_at_most_one_task_in_twenty(tasks):
    best = task_figures.greedy(tasks[:30], task_figures.BLIND)
    told = [task_figures.tell(task, best) for task in tasks]
    assert sum(task_figures.hidden(task) <= some for task, some in zip(tasks, told)) <= 3
    assert sum(task_figures.passes(task, some) for task, some in zip(tasks, told)) <= 3


def test_an_asker_who_wastes_a_turn_in_ten_is_told_nearly_all(tasks):
    """In the words of people who had not seen the human's code. The figures of 300 tasks: study/task_figures.py."""
    for phrases in task_figures.phrasings():
        told = [task_figures.oracle(task, phrases, random.Random(i), 0.1)[-1] for i, task in enumerate(tasks)]
        full = sum(task_figures.hidden(task) <= some for task, some in zip(tasks, told))
        assert 0.6 * len(tasks) <= full < len(tasks)
