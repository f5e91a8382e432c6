"""How well a simulator plays the human: each hidden detail is asked for by its own question, as the first thing that an
agent says; the scripted human beside a model.

    python tests/benchmarks/bench_human.py --tasks data/backend/val.jsonl --simulator http://localhost:8001/v1

"Told": the reply has the value of the detail and no other value that the detail could have. "Contradicted": it has
another value. "Code": it leaks code, or a line of the reference (leaks_code). 95% intervals over tasks. Flags
that are not listed here are rollout.py's (--simulator-name, --max-model-len, ...)."""
import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]
import evaluate  # noqa: E402
import function_tasks  # noqa: E402
import human  # noqa: E402
import generate_tasks  # noqa: E402
import rollout  # noqa: E402

RATES = ["told", "contradicted", "code"]
REFERENCE_QUOTE = 25    # a line of the reference that has at least this many characters counts as quoted
CODE_SIGNS = re.compile(
    r"```|\bdef \w+\(|\blambda\b[^.]*:|^\s*(import|from|return|for|if|while) .*[:=(]|==|</?\w+[^>]*>", re.M)


def leaks_code(reply, reference):
    """Whether a simulator's reply contains code, or a line of the reference."""
    lines = map(str.strip, reference.splitlines())
    quoted = any(len(line) >= REFERENCE_QUOTE and line in reply for line in lines)
    return quoted or bool(CODE_SIGNS.search(reply))


def judge(task, detail, reply):
    """{rate: whether it holds} of a reply to the question for a detail of a task."""
    values = function_tasks.choices_of(task["composition"], task["theme"], task["plain"])[detail]
    said = lambda value: re.search(rf"(?<!\w){re.escape(str(value))}(?!\w)", reply, re.I)  # noqa: E731
    right = task["details"][detail]
    wrong = any(said(value) for value in values if value != right and str(value) not in str(right))
    return {"told": bool(said(right)) and not wrong, "contradicted": wrong,
            "code": leaks_code(reply, task["ground_truth"])}


async def interview(human, tasks, shown):
    """One row a task: [the sums of RATES over its details, how many details]."""
    async def ask(task, fact):
        dialogue = [{"role": "user", "content": task["problem_description"]},
                    {"role": "assistant", "content": fact["question"]}]
        reply, _ = await human.reply(task, dialogue, (task["task_id"], fact["detail"]), Counter())
        return judge(task, fact["detail"], reply), (fact["question"], fact["reply"], reply)
    rows = []
    for answers in await asyncio.gather(*(asyncio.gather(*(ask(task, fact) for fact in task["facts"]))
                                          for task in tasks)):
        rows.append([sum(found[rate] for found, _ in answers) for rate in RATES] + [len(answers)])
        shown.append(answers[0][1])
    return np.array(rows, float)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--tasks", required=True, help="procedural tasks")
    p.add_argument("--limit", type=int, default=25, help="the first so many of them (default 25)")
    p.add_argument("--simulator", required=True, help="folder, hub name or URL of the model")
    p.add_argument("--show", type=int, default=3, help="replies of the model to print (default 3)")
    a, flags = p.parse_known_args()
    tasks = [json.loads(line) for line in open(a.tasks)][:a.limit]
    print(f"{len(tasks)} tasks, {sum(len(task['facts']) for task in tasks)} questions\n\n| human | "
          + " | ".join(RATES) + " |\n|---|" + "---|" * len(RATES))
    for simulator in ("scripted", a.simulator):
        model = [] if simulator == "scripted" else flags
        with tempfile.TemporaryDirectory() as folder:
            sys.argv = ["rollout.py", "--in", a.tasks, "--model", a.simulator, "--simulator", simulator,
                        "--out", f"{folder}/none.jsonl", *model]
            args, shown = rollout.parse_args(), []
        resources = rollout.Resources(args)
        rows = asyncio.run(interview(human.SIMULATORS.get(simulator, human.ModelHuman)(args, resources), tasks,
                                     shown))
        resources.close()
        draws = evaluate.bootstrap_sums(rows, 10000, 0)
        cells = [f"{100 * rows[:, n].sum() / rows[:, -1].sum():.0f}% ["
                 + ", ".join(f"{q:.0f}" for q in np.percentile(100 * draws[:, n] / draws[:, -1], [2.5, 97.5])) + "]"
                 for n in range(len(RATES))]
        print(f"| {simulator} | " + " | ".join(cells) + " |", flush=True)
    for question, fact, reply in shown[:a.show]:
        print(f"\n{question}\n  scripted: {fact}\n  model: {reply!r}")


if __name__ == "__main__":
    main()
