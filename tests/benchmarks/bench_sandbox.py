"""How many programs a second: the sandbox beside the usual ways to run one, in one run on one machine. Prints a table.

    python tests/benchmarks/bench_sandbox.py [--seconds 5] [--workers 2]

Every way runs the same program on the same 10 calls and brings the 10 results back; each on --workers at once.
"""
import argparse
import itertools
import json
import multiprocessing
import multiprocessing.forkserver
import os
import re
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from sandbox import Sandbox, canonical  # noqa: E402

PROGRAM = '''
def solve(items, threshold=10):
    """Sum of price * quantity by category, for rows at or above a threshold, rounded, largest first."""
    totals = {}
    for row in items:
        value = row["price"] * row["quantity"]
        if value >= threshold:
            totals[row["category"]] = totals.get(row["category"], 0) + value
    return sorted(((name, round(total, 2)) for name, total in totals.items()), key=lambda pair: (-pair[1], pair[0]))
'''
CALLS = [f"""solve([{{'price': {i}.5, 'quantity': {i}, 'category': 'a'}},
                    {{'price': 3, 'quantity': {i + 2}, 'category': 'b'}}], {i})""" for i in range(10)]


def in_process(program, calls):
    results = []
    for call in calls:
        names = {}
        exec(program, names)
        results.append(eval(call, names))
    return results


def to_pipe(pipe, program, calls):
    pipe.send(in_process(program, calls))


def a_process(context, program, calls):
    """One multiprocessing.Process per program, its results through a pipe."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=to_pipe, args=(theirs, program, calls))
    process.start()
    results = ours.recv() if ours.poll(10) else None
    process.join()
    return results


def a_bare_fork(program, calls):
    """os.fork and nothing else: no wall, no limits, no clock. The results come back as canonical bytes."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.write(theirs, b"".join(map(canonical, in_process(program, calls))))
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as results:
        data = results.read()
    os.waitpid(child, 0)
    return data


def to_list(shared, program, calls):
    shared.append(in_process(program, calls))


def a_process_and_manager(context, program, calls):
    """As human-eval does: a Manager, a list in it, and a process, per program."""
    with context.Manager() as manager:
        shared = manager.list()
        process = context.Process(target=to_list, args=(shared, program, calls))
        process.start()
        process.join(10)
        return shared[0]


def an_interpreter(program, calls):
    """One `python -I` per program, its results as text."""
    script = program + "\nprint([" + ", ".join(calls) + "])"
    return subprocess.run([sys.executable, "-I", "-"], input=script, capture_output=True, text=True, timeout=10).stdout


def rate(one, seconds, workers):
    """(programs, seconds) of one(program, calls), on so many threads; every program differs by a comment."""
    numbers, stop, counts = itertools.count(), time.monotonic() + seconds, [0] * workers

    def work(n):
        while time.monotonic() < stop:
            assert one(f"# {next(numbers)}\n{PROGRAM}", CALLS)
            counts[n] += 1

    started = time.monotonic()
    with ThreadPoolExecutor(workers) as threads:
        for future in [threads.submit(work, n) for n in range(workers)]:
            future.result()
    return sum(counts), time.monotonic() - started


def cpu_seconds():
    """Processor time of this process and of all that have ended under it."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def own_memory(**settings):
    """(own, with what it shares) MiB of a child that has run the ten calls: the pages that are private to it."""
    pages = """
import time
def rest(): time.sleep(100)
"""
    with Sandbox(workers=1, call_timeout=3, program_timeout=3, **settings) as box:
        box.run(PROGRAM, CALLS)
        with ThreadPoolExecutor(1) as threads:
            future = threads.submit(box.run, PROGRAM + pages, [*CALLS, "rest()"])
            time.sleep(1)
            family, at = [box.zygotes[0].process.pid], 0
            while at < len(family):
                family += map(int, Path(f"/proc/{family[at]}/task/{family[at]}/children").read_text().split())
                at += 1
            try:
                rollup = Path(f"/proc/{family[-1]}/smaps_rollup").read_text()
            except OSError:    # only root may look into a child
                return None
            finally:
                future.result()
    kb = {name: int(size) for name, size in re.findall(r"(\w+):\s+(\d+) kB", rollup)}
    return (kb["Private_Dirty"] + kb["Private_Clean"]) / 1024, kb["Rss"] / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The sandbox beside the usual ways to run a program. Prints a table.")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds for each row (default: 5)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(),
                        help="programs at once (default: the number of cores)")
    args = parser.parse_args()
    fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    expected = [canonical(result) for result in in_process(PROGRAM, CALLS)]
    rows = []

    def row(name, one, workers=args.workers, started=0.0):
        before = cpu_seconds()
        programs, seconds = rate(one, args.seconds, workers)
        return lambda: rows.append((name, programs / seconds, (cpu_seconds() - before - started) / programs * 1000))

    def sandbox_row(name, **settings):
        settings = dict(workers=args.workers, call_timeout=10, program_timeout=20, **settings)
        try:
            before = cpu_seconds()
            with Sandbox(**settings) as box:
                for _ in range(args.workers):    # each starts one of its processes
                    assert [outcome.value for outcome in box.run(PROGRAM, CALLS)] == expected
            started = cpu_seconds() - before    # what starting costs, once, is no part of a program's cost
            with Sandbox(**settings) as box:
                for _ in range(args.workers):
                    box.run(PROGRAM, CALLS)
                finish = row(name, box.run, started=started)
            finish()    # now that its processes have ended, their time is known
        except SystemExit:
            print(f"left out: {name}", file=sys.stderr)

    sandbox_row("sandbox.py, all layers")
    sandbox_row("sandbox.py without namespaces", without=["namespaces"])
    sandbox_row("sandbox.py without seccomp", without=["seccomp"], unsafe=True)
    sandbox_row("sandbox.py without namespaces and seccomp", without=["namespaces", "seccomp"], unsafe=True)
    row("os.fork per program, no isolation", a_bare_fork)()
    row("multiprocessing.Process (fork) per program", lambda *job: a_process(fork, *job))()
    ballast = bytearray(b"x") * (1 << 30)    # as a parent has that holds a data set or a model
    row("the same, from a parent that holds 1 GiB", lambda *job: a_process(fork, *job))()
    del ballast
    row("multiprocessing.Process (spawn) per program", lambda *job: a_process(spawn, *job))()
    server = multiprocessing.get_context("forkserver")    # Python's default from 3.14 on
    a_process(server, PROGRAM, CALLS)
    finish = row("multiprocessing.Process (forkserver) per program", lambda *job: a_process(server, *job))
    multiprocessing.forkserver._forkserver._stop()    # its children's time is known when it has ended
    finish()
    managed = lambda *job: a_process_and_manager(fork, *job)
    row("Process and Manager per program (human-eval's way)", managed)()
    row("python -I per program", an_interpreter)()
    row("exec in this process, no isolation, one core", in_process, workers=1)()

    rate_of_first, cpu_of_first = rows[0][1:]
    print(f"{args.workers} at once, 10 calls a program, Python {sys.version.split()[0]}, "
          f"load average {os.getloadavg()[0]:.1f}\n")
    print("| way | programs/s | all layers: faster by | CPU ms a program | all layers: cheaper by |")
    print("|---|---|---|---|---|")
    for name, programs, cpu in rows:
        print(f"| {name} | {programs:,.0f} | {rate_of_first / programs:.1f} x | {cpu:.2f} | "
              f"{cpu / cpu_of_first:.1f} x |")
    memory = own_memory()
    if memory:
        print(f"\nmemory of a child: {memory[0]:.1f} MiB of its own, {memory[1]:.1f} MiB with what the zygote shares")
