"""How long evaluate.py takes for 10,000 trajectories of 10 tests, and what it holds in memory.

    python tests/benchmarks/bench_evaluate.py [--trajectories 10000] [--samples 3] [--workers 2]

Prints one table: the whole command at a tenth of the size and at full size (so that growth of memory shows), the same
again when everything is scored already (what the passes over the files and the bootstrap cost), and the report. Peak
memory is that of evaluate.py itself, without the sandbox's children. The answers are a mixture: right, wrong in one
place, raising, not a program.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

REFERENCE = '''def total(items):
    """Sum the {field} of the items above {limit}, rounded to {digits} digits."""
    kept = [item["{field}"] for item in items if item.get("{field}", 0) > {limit}]
    if not kept:
        return None
    return round(sum(kept), {digits})
'''


def trajectory(number, sample):
    rng = random.Random(number)  # the task's own draws, the same for its samples
    details = {"field": rng.choice(["price", "weight", "hours"]), "limit": rng.randint(1, 50),
               "digits": rng.randint(0, 3)}
    reference = REFERENCE.format(**details)
    calls = {str(k): f"total({[{details['field']: rng.randint(0, 60) + 0.125 * k} for _ in range(k)]})"
             for k in range(10)}
    rng = random.Random(f"{number} {sample}")
    answer = rng.choice([reference, reference, reference.replace(" > ", " >= "),
                         reference.replace("item.get", "item.got"), reference.replace("def", "fed", 1)])
    task = {"task_id": f"bench-{number:05d}", "domain": "backend",
            "problem_description": "Add up. Signature: def total(items)",
            "ground_truth": reference, "test_cases": calls, "source": "bench"}
    history = [{"role": "user", "content": task["problem_description"]}]
    for turn in range(rng.randint(1, 6)):
        words = " ".join(rng.choice(["what", "is", "the", "limit", "field", "of", "digits"]) for _ in range(40))
        history += [{"role": "assistant", "content": words, "output": words,
                     "output_ids": [rng.randint(0, 128_000) for _ in range(50)]},
                    {"role": "user", "content": f"The limit is {details['limit']}."}]
    history.append({"role": "assistant", "content": f"I WANT TO ANSWER: {answer}",
                    "output": f"I WANT TO ANSWER: {answer}",
                    "output_ids": [rng.randint(0, 128_000) for _ in range(120)]})
    return {"task_id": task["task_id"], "sample": sample, "domain": "backend", "task": task, "system": "",
            "dialogue_history": history, "answer": answer, "finish": "answered", "model": "bench",
            "simulator": "scripted", "seed": 0}


def measure(*arguments):
    """Seconds, CPU seconds (programs included) and peak megabytes of one evaluate.py."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, ROOT / "evaluate.py", *map(str, arguments)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
    error = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(error.decode())
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=10_000, help="trajectories at full size (default: 10000)")
    parser.add_argument("--samples", type=int, default=3, help="samples per task (default: 3)")
    parser.add_argument("--workers", type=int, default=2, help="programs that run at the same time (default: 2)")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for count in (args.trajectories // 10, args.trajectories):
            path = Path(folder) / f"{count}.trajectories.jsonl"
            with open(path, "w") as out:
                for number in range(count):
                    record = trajectory(number // args.samples, number % args.samples)
                    out.write(json.dumps(record) + "\n")
            size = path.stat().st_size / 1e6
            rows.append((f"score {count:,} trajectories ({size:.0f} MB)", count,
                         *measure("--in", path, "--workers", args.workers)))
            rows.append((f"again, all {count:,} scored already", count,
                         *measure("--in", path, "--workers", args.workers)))
        scored = Path(folder) / f"{args.trajectories}.scored.jsonl"
        rows.append(("compare with itself, report of 200", args.trajectories,
                     *measure("--compare", f"a={scored}", f"b={scored}", "--report", Path(folder) / "report.html")))
    print(f"{'what':48} {'seconds':>8} {'per second':>11} {'CPU s':>8} {'peak MB':>8}")
    for what, count, seconds, cpu, peak in rows:
        print(f"{what:48} {seconds:8.1f} {count / seconds:11,.0f} {cpu:8.1f} {peak:8.0f}")


if __name__ == "__main__":
    main()
