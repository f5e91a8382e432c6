#!/usr/bin/env python3
"""Try the sandbox's layers on the hostile programs in tests/hostile, an honest program after each.

    python tests/hostile_programs.py                                # prints the layers and a table
    python tests/hostile_programs.py --without namespaces           # without a layer
    python tests/hostile_programs.py --only fork_bomb               # one of them

Each program says in comments what must not happen (claim), which statuses its ten calls may have (expect), and whether
holding it needs a pivoted root (needs: pivot), or that or Landlock (needs: landlock).
"""
import argparse
import json
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from records import die  # noqa: E402
from sandbox import Sandbox  # noqa: E402

HOSTILE_TASK = {
    "ground_truth": '''
def solve(x):
    if isinstance(x, (int, float)):
        return x * 3 + 1
    if isinstance(x, str):
        return x[::-1] + "!"
    if isinstance(x, dict):
        return {value: key for key, value in x.items()}
    return sorted(set(x))
''',
    "test_cases": {str(number): f"solve({argument})" for number, argument in enumerate(
        ["1", "-2", "0.25", "True", "'abc'", "''", "[3, 1, 2, 2]", "(7, 7)", "{'a': 1}", "{5, 4}"], 1)}}


def header(source, name):
    """What a program says after "# name:", or an empty text."""
    for line in source.splitlines():
        if line.startswith(f"# {name}:"):
            return line.partition(":")[2].strip()
    return ""


def try_hostile(box, task, name, source):
    """("ok" | "FAILED" | "not held", why). "ok": it ends as expected, and an honest program then passes every test."""
    held = {"": True, "pivot": box.layers["root"] == "pivoted"}
    held["landlock"] = held["pivot"] or box.layers["landlock"] > 0
    needs = header(source, "needs")
    if not held[needs]:
        return "not held", needs
    expected = {status.strip() for status in header(source, "expect").split("|")}
    for _ in range(3):    # a busy machine may make calls late, but hardly three times
        statuses = set(box.score(task, source).values())
        honest = set(box.score(task, task["ground_truth"] + f"# after {name}").values())
        if honest == {"passed"} and statuses & expected and statuses <= expected | {"timeout"}:
            return "ok", ", ".join(sorted(statuses))
        if not (statuses | honest) & {"timeout", "refused", "reference timeout"}:
            break
    return "FAILED", f"{sorted(statuses)}, and the honest program after it: {sorted(honest)}"


def try_all(only, unsafe, without):
    """Try every program, or only those that are named, on several sandboxes; prints a table, returns the exit code."""
    programs = sorted((HERE / "hostile").glob("*.py"))
    if not programs:
        die(f"{HERE / 'hostile'} holds no hostile programs; copy tests/hostile to there")
    unknown = set(only) - {path.stem for path in programs}
    if unknown:
        die(f"{HERE / 'hostile'} holds no {min(unknown)}.py")
    programs = [path for path in programs if not only or path.stem in only]
    secret = f"# known to the parent: {os.urandom(8).hex()}"    # some programs hunt for it
    task = {**HOSTILE_TASK, "ground_truth": HOSTILE_TASK["ground_truth"] + secret}
    counts = Counter()
    with ExitStack() as stack:
        boxes = [stack.enter_context(Sandbox(1, program_timeout=1, unsafe=unsafe, without=without))
                 for _ in range(2)]    # with more than there are cores, programs starve and are tried again
        print("layers: " + json.dumps(boxes[0].layers))
        threads = stack.enter_context(ThreadPoolExecutor(len(boxes)))
        trials = [threads.submit(try_hostile, box, task, path.stem, path.read_text(encoding="utf-8"))
                  for box, path in zip(cycle(boxes), programs)]
        for path, trial in zip(programs, trials):
            result, why = trial.result()
            counts[result] += 1
            print(f"{result:8} {path.stem:28} {why}")
    print(f"{len(programs)} hostile programs: {counts['ok']} contained, {counts['FAILED']} failed, "
          f"{counts['not held']} beyond the layers that are on")
    return 1 if counts["FAILED"] else 0


def main():
    parser = argparse.ArgumentParser(description="Try the sandbox's layers on hostile programs, an honest one after "
                                                 "each.")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="programs of tests/hostile (default: all)")
    parser.add_argument("--unsafe", action="store_true", help="run even without seccomp (default: refuse)")
    parser.add_argument("--without", nargs="+", default=[], choices=["namespaces", "landlock", "seccomp"],
                        metavar="LAYER", help="leave out namespaces, landlock or seccomp (default: none)")
    args = parser.parse_args()
    return try_all(args.only, args.unsafe, args.without)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        die("stopped", 130)
