"""What every test runs under, however pytest was started, and what several test files share."""
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

# No test reaches a hub. Where none can be reached either, a name that is no folder is asked for again and again, for
# half a minute, before it is refused. Set before transformers is imported, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# ---- Small dialogues about small functions

FIELDS = ["price", "count", "total", "weight", "score", "height"]
QUESTIONS = ["Which field is summed?", "What is the threshold?", "Is there anything else?"]


def trajectory(task, sample, rng, reward=None):
    """A small dialogue about a small function: two questions and an answer that is right or wrong."""
    field, limit = FIELDS[task % len(FIELDS)], 1 + task % 40
    truth = f"def total(rows):\n    return sum(r['{field}'] for r in rows if r['{field}'] > {limit})"
    right = rng.random() < 0.5
    history = [{"role": "user", "content": "Write total(rows). It sums the large values of the rows."},
               {"role": "assistant", "content": QUESTIONS[0]}, {"role": "user", "content": f"The field is {field}."},
               {"role": "assistant", "content": QUESTIONS[1]},
               {"role": "user", "content": f"The threshold is {limit}."},
               {"role": "assistant", "content": "I WANT TO ANSWER:\n" + (truth if right else truth.replace(">", "<"))}]
    if not right and rng.random() < 0.5:
        history = history[:3] + history[5:]
    return {"task_id": f"task-{task}", "sample": sample, "domain": "backend", "system": "You are careful.",
            "finish": "answered", "task": {"task_id": f"task-{task}", "ground_truth": truth},
            "dialogue_history": history, "reward": (1.0 if right else 0.3) if reward is None else reward}


def candidates(record, rng, count=8):
    history = record["dialogue_history"]
    for turn, place in enumerate(i for i, m in enumerate(history) if m["role"] == "assistant"):
        texts = [history[place]["content"] if rng.random() < 0.3 else QUESTIONS[rng.integers(3)] for _ in range(count)]
        yield {"task_id": record["task_id"], "sample": record["sample"], "turn": turn, "task": record["task"],
               "prompt": history[:place], "candidates": [{"output": text} for text in texts]}


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


def make_data(folder, tasks=12, samples=3):
    """scored.jsonl and candidates.jsonl in `folder`, and a random tiny model in `folder`/base."""
    rng = np.random.default_rng(0)
    records = [trajectory(t, s, rng) for t in range(tasks) for s in range(samples)]
    write(folder / "scored.jsonl", records)
    write(folder / "candidates.jsonl", [c for r in records[::samples] for c in candidates(r, rng)])
    texts = ([m["content"] for r in records for m in r["dialogue_history"]]
             + [r["task"]["ground_truth"] for r in records])
    import train_policy    # not at the top: most tests need no torch
    train_policy.make_tiny_model(folder / "base", texts, 512, seed=0)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder with data and a model, as the working directory."""
    make_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(module, *arguments):
    """The script's main() with a command line, in this process; returns (exit code, stdout, stderr)."""
    out, error, code = io.StringIO(), io.StringIO(), 0
    before, sys.argv = sys.argv, [module.__name__ + ".py", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            module.main()
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.argv = before
    return code, out.getvalue(), error.getvalue()


@contextlib.contextmanager
def running(*command, **options):
    """A command beside the test, as a subprocess.Popen with text. It heeds Ctrl-C even where this process ignores it,
    as under nohup. However the block ends, so does the command, with all that it has started."""
    def heed_ctrl_c():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen([*map(str, command)], text=True, start_new_session=True, preexec_fn=heed_ctrl_c,
                          **options) as process:
        try:
            yield process
        finally:
            end(process)


def end(process):
    """SIGKILL to a process and its descendants, also those in sessions of their own, as torchrun's workers are."""
    family = family_of(process.pid) if process.poll() is None else []
    for kill, pid in [(os.killpg, process.pid), *((os.kill, pid) for pid in family)]:
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    process.wait()
    while any(map(runs, family)):    # they hold locks until they have ended
        time.sleep(0.01)


def runs(pid):
    """Whether a process has not ended; one that nobody waits for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def family_of(pid):
    """The ids of a process and its descendants."""
    family = [pid]
    for parent in family:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):    # a thread has ended
                family += map(int, children.read_text().split())
    return family


def never_ending(path):
    """The script train_policy.py, which waits once its last step is done, so that no kill comes too late."""
    path.write_text(f"import sys, time\nsys.path.insert(0, {str(ROOT)!r})\nimport train_policy\n"
                    "train_policy.save_model = lambda *_: time.sleep(1_000_000)\n"
                    "sys.argv[0] = 'train_policy.py'\ntrain_policy.main()\n")
    return path


def read_lines(path):
    return [json.loads(line) for line in open(path)]


def parsed(module, *arguments):
    """The script's flags, as its command line gives them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module.__name__ + ".py", *map(str, arguments)])
        return module.parse_args()


def metrics(folder):
    lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
