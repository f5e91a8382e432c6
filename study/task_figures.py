"""The table of composed tasks in RESULTS.md: how varied the tasks are, whether they are fair, what the calls catch.

    python study/task_figures.py
"""
import ast
import math
import random
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import function_tasks  # noqa: E402
import generate_tasks as g  # noqa: E402
from evaluate import markdown  # noqa: E402
from honest_programs import STYLES  # noqa: E402
from test_fairness import answers, results  # noqa: E402


def drafts(split, count, seed=0):
    return list(islice(function_tasks.draw_tasks(split, list(function_tasks.KINDS), False, seed), count))


def finished(count):
    """(tasks with their calls, number of draws, CPU seconds)."""
    tasks, start = [], time.process_time()
    for drawn, task in enumerate(function_tasks.draw_tasks("test", list(function_tasks.KINDS), False, 1), 1):
        rng = random.Random(task["ground_truth"])
        calls, reason = function_tasks.choose_calls(task["composition"], task["theme"], task["details"], False, rng)
        if not reason:
            tasks.append({**task, "test_cases": calls})
        if len(tasks) == count:
            return tasks, drawn, time.process_time() - start


def count_values(split):
    """(Counter of the slots' values over the `seen` tasks of five seeds, number of these tasks)."""
    counts, tasks = Counter(), 0
    for seed in range(5):
        for task in drafts(split, 400, seed):
            if task["half"] == "seen":
                counts.update((slot, str(value)) for slot, value in task["details"].items())
                tasks += 1
    return counts, tasks


def far_apart():
    """(number of values whose shares in train and test are more than two standard errors apart, number of values)."""
    train, n = count_values("train")
    test, m = count_values("test")
    far, values = 0, 0
    for value, count in train.items():
        p = (count + test[value]) / (n + m)
        if 0.005 < p < 1:
            values += 1
            far += abs(count / n - test[value] / m) > 2 * math.sqrt(p * (1 - p) * (1 / n + 1 / m))
    return far, values


def shares(counts):
    return ", ".join(f"{kind} {counts[kind] / counts.total():.1%}" for kind in ("right", "wrong", "unknown"))


def fates(counts):
    return f"{counts['caught']:,}; missed {counts['missed']}; {counts['never differ']} never differ on 300 more inputs"


def main():
    ten_thousand = drafts("train", 10_000)
    tasks, drawn, seconds = finished(500)
    number = Counter(len(task["facts"]) for task in ten_thousand)
    conditional = sum(any(fact["detail"] in function_tasks.CONDITIONAL for fact in task["facts"]) for task in ten_thousand)
    halves = Counter(map(function_tasks.half_of, function_tasks.COMPOSITIONS))
    honest = Counter()         # does a program pass all calls?
    wrong = Counter()          # how wrong values of a detail fare
    brought = Counter()        # how they fare if they bring another detail along
    mutants = Counter()
    constant = []              # of each task: the share of calls with the most frequent result
    all_results = Counter()
    for task in tasks:
        code = task["ground_truth"]
        calls = task["test_cases"]
        right = results(code, calls)
        replies = [(fact["question"], fact["reply"]) for fact in task["facts"]]
        for style in STYLES.values():
            honest[results(style(task["problem_description"], replies), calls) == right] += 1
        rows = [ast.literal_eval(call.removeprefix("report(")[:-1]) for call in calls]
        rng = random.Random(code)
        more_rows = [function_tasks.draw_rows(task["theme"], task["details"], rng) for _ in range(300)]
        expected = function_tasks.results_of(code, rows)
        more_expected = function_tasks.results_of(code, more_rows)

        def fate(program):
            if function_tasks.results_of(program, rows) != expected:
                return "caught"
            return "missed" if function_tasks.results_of(program, more_rows) != more_expected else "never differ"

        programs = function_tasks.with_one_wrong(task["composition"], task["theme"], task["details"], False)
        wrong.update(fate(program) for name, program in programs.items() if len(name) == 2)
        brought.update(fate(program) for name, program in programs.items() if len(name) == 3)
        mutants.update(map(fate, function_tasks.mutants(code)))
        constant.append(max(Counter(right).values()) / len(right))
        all_results.update(right)
    held_out = answers("held out")
    looked_at = answers("looked at")
    far, values = far_apart()
    print(markdown([
        ("", "composed tasks"),
        ("compositions of the grammar", f"{len(function_tasks.COMPOSITIONS)}, {halves['new']} of them never in training"),
        ("distinct requests in 10,000 tasks", f"{len({t['problem_description'] for t in ten_thousand}):,}"),
        ("open facts: 4 / 5 / 6", " / ".join(f"{number[n] / 10_000:.0%}" for n in (4, 5, 6))),
        ("tasks with an open fact that depends on another", f"{conditional / 10_000:.0%}"),
        ("values whose shares in train and test are 2 standard errors apart", f"{far} of {values} (chance: 5%)"),
        ("draws that become tasks; CPU a task", f"{500 / drawn:.0%}; {1000 * seconds / 500:.0f} ms"),
        ("honest programs, five styles, that pass all calls", f"{honest[True]:,} of {honest.total():,}"),
        ("wrong values of a detail that fail a call", fates(wrong)),
        ("the same with each value of a detail that they bring along, such as a cap where there is none", fates(brought)),
        ("mutants that fail a call", fates(mutants)),
        ("calls that the best constant answer passes: of a task; one for all",
         f"{sum(constant) / len(constant):.1%}; {max(all_results.values()) / all_results.total():.1%}"),
        (f"{held_out.total()} natural questions that nobody looked at", shares(held_out)),
        (f"{looked_at.total()} that are in the human's table", shares(looked_at)),
    ]))


if __name__ == "__main__":
    main()
