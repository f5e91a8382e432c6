"""Generate tasks: a vague request, a hidden reference, ten hidden calls, and the replies of a simulated human.

`--source procedural` (the default) composes tasks from a grammar. A function is a short pipeline over a list of
records: it filters them, computes a value of each, combines, ranks or groups them, and bounds or joins the result. Each
step has details ("slots"). The request states some of them and leaves four to six open, so the agent must read from the
request which questions are useful. Some details depend on others: a cap has a value only if there is a cap. The ten
calls are chosen so that each wrong value of a detail, and each mutant of the reference that sixty inputs can expose,
fails at least one. A wrong value may bring a detail along: where there is no cap, one that no input reaches passes.

A hash of the reference decides the split, whatever the seed. Another hash keeps a quarter of the compositions out of
training. Drafts for validation and test alternate between `seen` compositions with new values and `new` compositions
(key `half`).
`--plain` uses one wording for each thing and gives each detail its own keys, for a model that is trained from scratch.

`--source llm` is the paper's way: a model reads a web excerpt (key `text`) and writes a description, a function and ten
calls. A task is kept if its function has at most 50 lines, its ten calls differ, and two runs of them succeed with the
same results, not all equal. Departure from the paper: its 10k + 1k tasks come from a 70B model.

`--source colbench` converts released tasks (with `--domain frontend` web pages) or trajectories. Simple page tasks for
a tiny model are drawn by study/practice_pages.py.

`--demonstrations N` writes dialogues of a scripted, imperfect agent on procedural tasks. It asks for each hidden detail
with probability `--ask`, in random order, wastes turns with probability `--waste`, guesses what it did not ask, and
answers.

Reads:  nothing; for demonstrations data/{domain}/{split}.jsonl; for the other sources the file named by --in
Writes: data/{domain}/{train,val,test}.jsonl or data/{domain}/demonstrations.jsonl, or for released trajectories
        runs/default/{split}.trajectories.jsonl, and the settings of each X.jsonl as X.settings.json. A stopped run
        resumes with the same command.

    python generate_tasks.py
    python generate_tasks.py --demonstrations 8000 --ask 0.6
    python generate_tasks.py --source llm --in excerpts.jsonl --model http://localhost:8000/v1
    python generate_tasks.py --source colbench --split test --in released_test.jsonl
    python generate_tasks.py --source colbench --domain frontend --split train --in released_pages.jsonl
"""
import argparse
import ast
import asyncio
import itertools
import math
import os
import random
import re
import signal
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tqdm import tqdm

from function_tasks import KINDS, check_demonstrable, demonstrate, draw_tasks, with_calls
from records import ANSWER_MARK, SCHEMA, Output, die, hashed, number, read, split_of

SPLITS = ("train", "val", "test")
BATCH = 1000    # candidates that are checked at a time, at most
SCHEMA["excerpt"] = ("your collector of excerpts", (), {"text": str})
SCHEMA["released"] = ("ColBench's release", (), {})
# ---------------------------------------------------------------------------------------------------------------------
# Writing: candidates are drawn in order, checked in parallel, and written in order until there are enough

def write(out, wanted, candidates, check):
    """Write the candidates that pass the check until there are `wanted`, and count the others by reason.

    check(candidates) yields (record, None or the reason to reject it), in order. It is given no more candidates than
    records are missing.
    """
    rejected, candidates = Counter(), iter(candidates)
    with tqdm(total=wanted, initial=len(out.done), desc=out.path.name, mininterval=1) as bar:
        while batch := list(itertools.islice(candidates, min(BATCH, wanted - len(out.done)))):
            for record, reason in check(batch):
                if reason:
                    rejected[reason] += 1
                    continue
                if record["task_id"] is None:
                    record["task_id"] = f"{record['domain']}-{out.path.stem}-{len(out.done):05d}"
                out.write(record)
                bar.update()
    print(f"wrote {len(out.done)} records to {out.path}; rejected {rejected.total()}")
    for reason, count in rejected.most_common():
        print(f"  {count} x {reason}")
    if len(out.done) < wanted < math.inf:
        print(f"  only {len(out.done)} of {wanted}: no candidates are left", file=sys.stderr)


def accept(candidates):
    return ((candidate, None) for candidate in candidates)


def open_output(path, wanted, args, settings, inputs, key):
    """An Output for `wanted` records."""
    out = Output(path, settings, inputs, args.overwrite, key)
    if len(out.done) > wanted:
        die(f"{path} already holds {len(out.done)} records, more than {wanted}; use --overwrite or another --out")
    return out


def sizes_of(args):
    """{split: how many tasks it shall hold}"""
    sizes = {split: getattr(args, split) for split in SPLITS}
    if args.test is None:
        sizes["test"] = 1000 if args.domain == "backend" else 500
    return sizes


def open_splits(args, settings, inputs, key=("ground_truth",)):
    """{split: (Output, how many tasks)} of the requested splits. All are checked before any is changed."""
    outs = {}
    for split, wanted in sizes_of(args).items():
        if wanted:
            path = Path(args.out or f"data/{args.domain}") / f"{split}.jsonl"
            outs[split] = open_output(path, wanted, args, settings, inputs, key), wanted
    return outs


def write_splits(outs, drafts, check):
    """Write to each split what it lacks. drafts(split): an iterable of all its records; check: as in `write`."""
    for split, (out, wanted) in outs.items():
        write(out, wanted, (task for task in drafts(split) if out.key_of(task) not in out.done), check)


def kinds_of(args, known):
    """The kinds that --kinds names, or all that there are."""
    kinds = args.kinds.split(",") if args.kinds else list(known)
    for kind in kinds:
        if kind not in known:
            die(f"unknown kind {kind!r} in --kinds; choose from {', '.join(known)}")
    return kinds


def write_procedural(args):
    kinds = kinds_of(args, KINDS)
    outs = open_splits(args, {"source": "procedural", "kinds": kinds, "seed": args.seed, "plain": args.plain}, {})
    with get_context("spawn").Pool(args.workers, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        write_splits(outs, lambda split: draw_tasks(split, kinds, args.plain, args.seed),
                     partial(pool.imap, partial(with_calls, seed=args.seed)))


def write_demonstrations(args, check=check_demonstrable, demonstrate=demonstrate):
    """check(task): the task, or an error if the scripted agent cannot play it; demonstrate: as the function above."""
    from rollout import system_prompt    # the agent's instructions in rollouts
    path = args.input or f"data/{args.domain}/{args.split}.jsonl"
    tasks = list(read(path, "task", args.domain, unique=True, each=check))
    settings = {name: getattr(args, name) for name in ("ask", "waste", "max_turns", "seed")}
    out = open_output(args.out or f"data/{args.domain}/demonstrations.jsonl", args.demonstrations, args, settings,
                      {"--in": path}, ("task_id", "sample"))
    system = system_prompt(args)

    def dialogue(i):
        sample, index = divmod(i, len(tasks))
        task = tasks[index]
        rng = random.Random(f"{args.seed} {task['task_id']} {sample}")
        history, answer = demonstrate(task, args.ask, args.waste, args.max_turns, rng)
        return {"task_id": task["task_id"], "sample": sample, "domain": task["domain"], "task": task,
                "system": system, "dialogue_history": history, "answer": answer, "finish": "answered",
                "model": "scripted", "simulator": "scripted", "seed": args.seed}, None

    threads = ThreadPoolExecutor(4 * args.workers)    # study/practice_pages.py renders at every turn
    write(out, args.demonstrations, range(len(out.done), args.demonstrations), partial(threads.map, dialogue))


# ---------------------------------------------------------------------------------------------------------------------
# Released ColBench files (--source colbench)

def released_task(args, name, task):
    """A released task in our format."""
    if args.domain == "backend" and not task["test_cases"]:
        raise ValueError("the task has no test_cases")
    return {"task_id": name, "domain": args.domain, "source": "colbench", **task}


def released_trajectory(args, system, seen, record):
    """A released trajectory as rollout.py would have written it. Its reward is kept as `released_reward`.

    system: our instructions for the agent, in place of its own. seen: {task_id: trajectories so far}.
    """
    from rollout import parse_response
    task = record["task"]
    content = hashed(task["problem_description"], task["ground_truth"])
    name = f"task-{content >> 16:012x}"
    seen[name] += 1
    history, answer, finish = record["dialogue_history"], record["answer"], "max_turns"
    if ANSWER_MARK in history[-1]["content"]:
        finish = "answered"
    elif answer is None:
        finish = "error: no answer"
    if ANSWER_MARK in (answer or ""):
        answer = parse_response(answer)[1]
    record["released_reward"] = record.pop("reward", None)
    return record | {"task_id": name, "sample": seen[name] - 1, "domain": args.domain,
                     "task": released_task(args, name, task), "system": system, "answer": answer, "finish": finish,
                     "model": "released", "simulator": "released", "seed": None}


def write_colbench(args):
    """Convert all trajectories, or the first --train, --val or --test tasks (the paper's test set is the first 1000).

    The samples of a task lie num_tasks lines apart and are numbered in file order.
    """
    from rollout import system_prompt
    with open(args.input, "rb") as file:
        offline = b'"dialogue_history"' in file.readline()
    kind, path, wanted = "task", f"data/{args.domain}/{args.split}.jsonl", sizes_of(args)[args.split]
    if offline:
        kind, path, wanted = "trajectory", f"runs/default/{args.split}.trajectories.jsonl", math.inf
    out = open_output(args.out or path, wanted, args, {"source": "colbench"}, {"--in": args.input}, SCHEMA[kind][1])
    numbers, seen, system = itertools.count(1), Counter(), system_prompt(args)

    def convert(record):
        if offline:
            return released_trajectory(args, system, seen, record)
        return released_task(args, f"{Path(args.input).stem}-{next(numbers):05d}", record)

    write_splits({args.split: (out, wanted)}, lambda split: read(args.input, "released", each=convert), accept)


# ---------------------------------------------------------------------------------------------------------------------
# Tasks from a language model (--source llm)

LONGEST_EXCERPT = 2000    # characters
MAX_TOKENS = 2048         # of a response
LLM_PROMPT = """Here is an excerpt from the web:

<excerpt>
{excerpt}
</excerpt>

Think of a Python function that someone who works with this subject would want to have, and write down three things in
exactly this form:

DESCRIPTION:
A request for the function in two to four sentences, as a colleague would put it: high-level, naming the function and
its parameters, leaving open the details (thresholds, names of keys, rounding, order, empty or bad input).
CODE:
```python
The function, with all details settled, in at most 50 lines. Standard library only, no randomness, no clock, no input
or output. It always returns a value.
```
CALLS:
Ten different calls of the function, one a line, with literal arguments, that reach the edge cases of the details.
"""


def parse_task(raw):
    """(task, None) from a model's response, or (None, the reason to reject it)."""
    said = raw.rpartition("</think>")[2].partition("<think>")[0]    # a thought may give the details away
    form = re.search(r"DESCRIPTION:(.*?)CODE:\s*```(?:python)?\n(.*?)```\s*CALLS:\s*(.*)", said, re.S)
    if not form:
        return None, "not in the requested form"
    description, code = " ".join(form[1].split()), form[2].strip() + "\n"
    try:
        parameters = {node.name: ast.unparse(node.args) for node in ast.parse(code).body
                      if isinstance(node, ast.FunctionDef)}
    except Exception:    # SyntaxError, ValueError, RecursionError or MemoryError
        return None, "code does not parse"
    if code.count("\n") > 50:
        return None, "more than 50 lines"
    calls = [call for call in re.finditer(r"\b(\w+)\(.*\)", form[3]) if call[1] in parameters]
    if not calls:
        return None, "no call of the function"
    name = calls[0][1]
    calls = list(dict.fromkeys(call[0] for call in calls if call[1] == name))[:10]
    if len(calls) < 10:
        return None, "fewer than ten different calls"
    if f"{name}(" not in description:
        description += f" Signature: {name}({parameters[name]})."
    return {"task_id": None, "domain": "backend", "problem_description": description, "ground_truth": code,
            "test_cases": {str(i): call for i, call in enumerate(calls, 1)}}, None


def write_llm(args):
    """One attempt per excerpt, until the splits are full. A resumed run starts after the last that became a task."""
    from engines import Refused, Stop, engine_of, is_url, make_engine
    from sandbox import Sandbox
    excerpts = list(read(args.input, "excerpt", each=lambda record: record["text"].strip()[:LONGEST_EXCERPT]))
    load = partial(make_engine, args.model, args.model_name, "agent", args)
    engine = None
    if is_url(args.model):    # it may serve another model tomorrow, so the name is a setting
        engine = load()
        args.model_name = engine.name
    settings = {name: getattr(args, name) for name in (
        "source", "model_name", "temperature", "seed", "dtype", "max_model_len", "extra_body")}
    settings["engine"] = engine_of(args.model, args)
    outs = open_splits(args, settings, {"--in": args.input, "--model": args.model}, ("excerpt",))
    engine = engine or load()    # a local model is loaded once the outputs are known to be good
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def attempt(i):
        """(task, None or the reason to reject it)"""
        prompt = [{"role": "user", "content": LLM_PROMPT.format(excerpt=excerpts[i])}]
        replies = engine.generate(prompt, 1, args.seed + i, args.temperature, MAX_TOKENS)
        try:
            raw = asyncio.run_coroutine_threadsafe(replies, loop).result()[0].text
        except Refused:
            return None, "request refused"
        task, reason = parse_task(raw)
        if reason:
            return None, reason
        task |= {"source": f"llm:{args.model_name or args.model}", "excerpt": i}
        errors = set(box.check_reference(task).values()) - {"ok"}
        if errors:
            return task, f"reference: {min(errors)}"
        results = box.run(task["ground_truth"], list(task["test_cases"].values()))
        return task, "all results equal" if len(set(results)) == 1 else None

    threads = ThreadPoolExecutor(args.concurrency)
    with Sandbox(workers=args.workers) as box:    # the time limits of scoring, so that a right answer can pass
        try:
            for split, (out, wanted) in outs.items():
                last = max(out.done, default=(-1,))[0]
                todo = [i for i, excerpt in enumerate(excerpts) if i > last and split_of(excerpt) == split]
                write(out, wanted, todo, partial(threads.map, attempt))
        except Stop as stop:
            die(f"{stop}; finished tasks are saved", stop.code)
    engine.close()


# ---------------------------------------------------------------------------------------------------------------------
# The command line

WRITERS = {"procedural": write_procedural, "llm": write_llm, "colbench": write_colbench}
LLM_FLAGS = "--model --model-name --temperature --concurrency"
IDLE = {  # mode: the flags that do nothing in it
    "--demonstrations": f"--source --kinds --plain --train --val --test {LLM_FLAGS}",
    "--source procedural": f"--in --split --ask --waste --max-turns {LLM_FLAGS}",
    "--source llm": "--kinds --plain --split --ask --waste --max-turns",
    "--source colbench": f"--kinds --plain --ask --waste --seed --workers {LLM_FLAGS}",
}


def add_common_flags(p):
    """The flags that study/practice_pages.py has too."""
    share, count, size = number(least=0, most=1), number(int, least=1), number(int, least=0)
    add = p.add_argument
    add("--in", dest="input", help="excerpts or released file; for --demonstrations the tasks (default "
        "data/{domain}/{split}.jsonl)")
    add("--out", help="folder of the tasks (default data/{domain}); for demonstrations and colbench the file (default "
        "data/{domain}/..., for trajectories runs/default/{split}.trajectories.jsonl)")
    add("--overwrite", action="store_true", help="start the output again instead of resuming it")
    add("--kinds", help="kinds of functions (total,average,ranked,grouped) or of pages (default: all)")
    add("--train", type=size, default=10000, help="number of training tasks (default 10000)")
    add("--val", type=size, default=500, help="number of validation tasks (default 500)")
    add("--test", type=size, help="number of test tasks (default 1000, frontend 500, as in the paper)")
    add("--seed", type=int, default=0, help="random seed (default 0)")
    add("--workers", type=count, default=2, help="processes (with --source llm the sandbox's), or browsers (default 2)")
    add = p.add_argument_group("--demonstrations").add_argument
    add("--demonstrations", type=size, default=0, metavar="N",
        help="write N dialogues of the scripted agent instead of tasks (default 0: write tasks)")
    add("--split", choices=SPLITS, default="train", help="split of the tasks, or of a released file (default train)")
    add("--ask", type=share, default=0.6,
        help="probability to ask for a hidden detail, or to correct a named difference (default 0.6)")
    add("--waste", type=share, default=0.2,
        help="probability of a wasted turn before each turn; after one there may be another (default 0.2)")
    add("--max-turns", type=count, default=10, help="longest dialogue, in agent turns (default 10)")


def parse_args():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    add = p.add_argument
    add("--source", choices=WRITERS, default="procedural",
        help="procedural: composed from the grammar in this file; llm: written by a model from web excerpts; colbench: "
             "released files (default procedural)")
    add("--domain", choices=["backend", "frontend"], default="backend",
        help="backend: Python functions; frontend: web pages, with --source colbench (default backend)")
    add_common_flags(p)
    add = p.add_argument_group("--source procedural").add_argument
    add("--plain", action="store_true", help="one wording for each thing and separate keys for each detail, so that a "
        "model trained from scratch learns them in minutes")
    add = p.add_argument_group("--source llm").add_argument
    add("--model", help="folder, hub name, or URL of an OpenAI-compatible server (other engine flags as in rollout.py)")
    add("--model-name", help="the model's name on its server (default: the only model there)")
    add("--temperature", type=number(least=0), default=1.0, help="sampling temperature (default 1.0)")
    add("--concurrency", type=number(int, least=1), default=64, help="concurrent requests (default 64)")
    if p.parse_known_args()[0].source == "llm":
        from engines import engine_flags
        engine_flags(p)
    args = p.parse_args()
    mode = "--demonstrations" if args.demonstrations else f"--source {args.source}"
    given = {word.partition("=")[0] for word in sys.argv}
    if idle := [flag for flag in IDLE[mode].split() if flag in given]:
        die(f"{', '.join(idle)} would do nothing with {mode}; see --help")
    if args.domain == "frontend" and args.source != "colbench":
        die("there are no frontend tasks but those of --source colbench; study/practice_pages.py draws simple ones")
    if args.source != "procedural" and not args.input:
        die(f"--source {args.source} needs --in")
    if args.source == "llm" and not args.model:
        die("--source llm needs --model")
    return args


def main():
    args = parse_args()
    write_records = write_demonstrations if args.demonstrations else WRITERS[args.source]
    write_records(args)


def run(command):
    """Run a command to its end, without waiting for threads that still work."""
    code = 0
    try:
        try:
            command()
        except KeyboardInterrupt:
            die("stopped; run the same command without --overwrite to resume", 130)
        except OSError as problem:
            die(f"{problem.filename or 'a file'}: {problem.strerror or problem}")
    except SystemExit as stop:
        code = stop.code
    sys.stdout.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    run(main)
