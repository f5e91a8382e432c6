"""Rollouts: asynchronous episodes against lock step, and the engines against each other. Ratios within one run.

    python tests/benchmarks/bench_rollout.py                      # lock step, with a stub server of long-tailed latency
    python tests/benchmarks/bench_rollout.py --engines runs/default/base --tasks data/backend/train.jsonl
                                                                  # CPU engines

Lock step: all episodes of a batch take turn t together, and the next turn begins when the slowest has answered; a batch
is as large as --concurrency. Same server, same episodes, same number of threads; only the scheduling differs."""
import argparse
import asyncio
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import engines  # noqa: E402
import human  # noqa: E402
import rollout  # noqa: E402
from stub_server import Stub, long_tailed  # noqa: E402


def tasks_for(count):
    return [{"task_id": f"t{i}", "domain": "backend", "problem_description": f"Write f, number {i}.",
             "ground_truth": "x", "facts": []}
            for i in range(count)]


ARGS = Namespace(seed=0, temperature=1.0, max_tokens=64, max_turns=10, best_of_n=1, timeout=60, retries=2)


class Human:
    async def reply(self, task, dialogue, key, counts):
        return human.scripted_reply(task, dialogue)


async def asynchronous(engine, tasks, concurrency):
    """As rollout.py does it: workers that share the episodes."""
    todo, ended = iter(tasks), []

    async def worker():
        for task in todo:
            ended.append(await rollout.episode(ARGS, engine, Human(), None, task, 0, "", ARGS.max_turns))
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return ended


async def lock_step(engine, tasks, concurrency):
    """A batch takes each turn together; its next turn begins when all have answered."""
    ended = []
    for begin in range(0, len(tasks), concurrency):
        playing = [(t, [{"role": "user", "content": t["problem_description"]}])
                   for t in tasks[begin:begin + concurrency]]
        for turn in range(ARGS.max_turns):
            answers = await asyncio.gather(*(engine.generate(
                rollout.messages_before("", d), 1, engines.derive_seed(ARGS.seed, t["task_id"], 0, turn),
                ARGS.temperature, ARGS.max_tokens) for t, d in playing))
            still = []
            for (t, d), [out] in zip(playing, answers):
                content, answer = rollout.parse_response(out.text)
                d.append({"role": "assistant", "content": content})
                if answer is not None or turn == ARGS.max_turns - 1:
                    ended.append({"task_id": t["task_id"], "dialogue_history": d})
                    continue
                reply, _ = await Human().reply(t, d, (), None)
                d.append({"role": "user", "content": reply})
                still.append((t, d))
            playing = still
    return ended


def bench_lock_step(episodes, concurrency):
    print(f"{episodes} episodes, {concurrency} in flight, latency log-normal: median 50 ms, sigma 1, at most 3 s\n")
    print(f"{'':14}{'seconds':>9}{'episodes/s':>12}")
    rate, said = {}, {}
    for name, way in (("lock step", lock_step), ("asynchronous", asynchronous)):
        with Stub(latency=long_tailed) as stub:
            tasks, engine = tasks_for(episodes), engines.ServerEngine(stub.url, None, "agent", ARGS)
            began = time.time()
            ended = asyncio.run(way(engine, tasks, concurrency))
            seconds = time.time() - began
        rate[name] = episodes / seconds
        said[name] = sorted((e["task_id"], [m["content"] for m in e["dialogue_history"]]) for e in ended)
        print(f"{name:14}{seconds:9.2f}{rate[name]:12.1f}")
    assert said["lock step"] == said["asynchronous"], "both must play the same episodes"
    print(f"\nasynchronous / lock step: {rate['asynchronous'] / rate['lock step']:.2f}")


def bench_engines(model, tasks, count):
    """The real command line, each engine; seconds of play without start-up, and processor seconds with it (on a machine
    that others use as well, these are what to compare)."""
    print(f"{'':28}{'seconds':>9}{'tokens':>9}{'tokens/s':>10}{'start s':>9}{'cpu s':>8}{'tokens/cpu s':>14}")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        with open(tasks) as f:
            lines = [line for line, _ in zip(f, range(count))]
        (folder / "tasks.jsonl").write_text("".join(lines))
        for engine in ("transformers", "vllm"):
            for kind in ("episodes", "candidates"):
                out = folder / f"{engine}.{kind}.jsonl"
                flags = ["--in", folder / "tasks.jsonl"] if kind == "episodes" else [
                    "--in", folder / "transformers.episodes.jsonl", "--candidates", "16"]
                began, busy = time.time(), processor_seconds()
                said = subprocess.run([sys.executable, ROOT / "rollout.py", "--model", Path(model).resolve(),
                                "--engine", engine, "--out", out, "--max-tokens", "128", *flags], text=True, check=True,
                               cwd=folder, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout
                seconds = float(re.search(r" records in ([0-9.]+) s", said)[1])
                tokens = json.loads(out.with_name(f"{engine}.{kind}.rollout.json").read_text())["sampled_tokens"]
                busy = processor_seconds() - busy
                print(f"{engine + ', ' + kind:28}{seconds:9.1f}{tokens:9.0f}{tokens / seconds:10.0f}"
                      f"{time.time() - began - seconds:9.1f}{busy:8.1f}{tokens / busy:14.0f}", flush=True)


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--episodes", type=int, default=256, help="episodes against the stub server (default 256)")
    p.add_argument("--concurrency", type=int, default=64, help="episodes in flight there (default 64)")
    p.add_argument("--engines", metavar="MODEL", help="compare the engines with this model instead")
    p.add_argument("--tasks", default="data/backend/train.jsonl", help="tasks for --engines")
    p.add_argument("--count", type=int, default=200, help="tasks of them to play (default 200)")
    a = p.parse_args()
    random.seed(0)
    bench_engines(a.engines, a.tasks, a.count) if a.engines else bench_lock_step(a.episodes, a.concurrency)
