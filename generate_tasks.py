"""Generate tasks: a vague request, a hidden reference, ten hidden calls, and what a human says when asked.

A task is a request, a hidden reference (a function, or a page), for functions ten hidden calls, and `facts`: the hidden
details with what a human replies when asked for them. Where tasks come from:

procedural  (the default) A grammar composes them: function_tasks.py for --domain backend, page_tasks.py for frontend.
            --level plain is small and always worded alike, for a model that is trained from scratch.
llm         The paper's way: a model reads a web excerpt (key `text`) and writes a request, a function, calls and the
            hidden details, of which llm_tasks.py keeps what holds. A hash of the function, whatever its names and
            comments, decides the split and finds the same function again. Departure from the paper: its 10k + 1k tasks
            come from a 70B model, and need only run.
colbench    Released tasks, or trajectories, which keep the instructions that their agent had.
websight    Rows of WebSight v0.2 (`text`, `llm_generated_idea`), as JSON lines or parquet. As in the paper, the rows
            from 10,000 on are for the test; rows from 20,000 on validate.

--demonstrations N writes dialogues of a scripted, imperfect agent on procedural tasks. It asks for each hidden detail
with probability --ask, wastes turns with probability --waste, guesses what it did not ask, and answers.

Reads:  nothing; for demonstrations data/{domain}/{split}.jsonl; for the other sources the file named by --in
Writes: data/{domain}/{train,val,test}.jsonl or data/{domain}/demonstrations.jsonl, or for released trajectories
        runs/default/{split}.trajectories.jsonl, and the settings of each X.jsonl as X.settings.json; with --source llm
        also tasks.rejected.jsonl: each excerpt that gave no task, the reason and the answer. A stopped run resumes with
        the same command.

    python generate_tasks.py
    python generate_tasks.py --demonstrations 8000 --ask 0.6
    python generate_tasks.py --source llm --in excerpts.jsonl --model http://localhost:8000/v1
    python generate_tasks.py --source colbench --split test --in released_test.jsonl
    python generate_tasks.py --source colbench --domain frontend --split train --in released_pages.jsonl
    python generate_tasks.py --source websight --in websight.parquet
"""
import argparse
import asyncio
import importlib
import itertools
import math
import random
import re
import signal
import sys
import threading
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tqdm import tqdm

from engines import Refused, Stop, engine_flags, engine_of, is_url, make_engine, refuse_idle_engines
from llm_tasks import MORE_CALLS, PROMPT, doubt, task_of
from records import (
    ANSWER_MARK, SCHEMA, Output, die, first_line, hashed, number, read, refuse_idle, run_script, split_of)

SPLITS = ("train", "val", "test")
DOMAINS = {"backend": "function_tasks", "frontend": "page_tasks"}    # the module that draws and demonstrates its tasks
PAPERS_TEST = {"backend": 1000, "frontend": 500}    # the size of the paper's test set
LONGEST_EXCERPT = 2000    # characters
BATCH = 1000    # candidates that are checked at a time, at most
SCHEMA["excerpt"] = ("your collector of excerpts", (), {"text": str})
SCHEMA["released"] = ("ColBench's release", (), {})
SCHEMA["row"] = ("WebSight v0.2", (), {"text": str, "llm_generated_idea": str})
SCHEMA["rejected"] = ("generate_tasks.py --source llm", ("excerpt",), {"excerpt": int, "reason": str})


# ---- Writing: candidates are drawn in order, checked in parallel, and written in order until there are enough

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
    tell([(out, wanted)], rejected)


def tell(outs, rejected):
    """Say what [(Output, wanted)] hold now and why candidates were rejected; end the run if they hold nothing."""
    reasons = [f"{count} x {reason}" for reason, count in rejected.most_common()]
    if not any(out.done for out, _ in outs):
        die(f"nothing was written to {', '.join(str(out.path) for out, _ in outs)}: "
            f"{'; '.join(reasons) or 'there are no candidates'}", 1)
    for out, wanted in outs:
        print(f"wrote {len(out.done)} records to {out.path}; rejected {rejected.total()}")
        if len(out.done) < wanted < math.inf:
            print(f"  only {len(out.done)} of {wanted}: no candidates are left", file=sys.stderr)
    for line in reasons:
        print(f"  {line}")


def accept(candidates):
    return ((candidate, None) for candidate in candidates)


def open_output(path, wanted, args, settings, inputs, key):
    """An Output for `wanted` records."""
    out = Output(path, settings, inputs, args.overwrite, key)
    if len(out.done) > wanted:
        die(f"{path} already holds {len(out.done)} records, more than {wanted}; use --overwrite or another --out")
    return out


def folder_of(args):
    return Path(args.out or f"data/{args.domain}")


def open_splits(args, settings, inputs, key=("ground_truth",)):
    """{split: (Output, how many tasks)} of the requested splits. All are checked before any is changed."""
    outs = {}
    for split in SPLITS:
        wanted = getattr(args, split)
        if wanted:
            path = folder_of(args) / f"{split}.jsonl"
            outs[split] = open_output(path, wanted, args, settings, inputs, key), wanted
    return outs


def write_splits(outs, drafts, check):
    """Write to each split what it lacks. drafts(split): an iterable of all its records; check: as in `write`."""
    for split, (out, wanted) in outs.items():
        write(out, wanted, (task for task in drafts(split) if out.key_of(task) not in out.done), check)


# ---- Composed tasks, and dialogues of a scripted agent on them

def grammar_of(domain):
    """The module that draws a domain's tasks."""
    if domain not in DOMAINS:
        die(f"no grammar composes tasks of the domain {domain!r}; DOMAINS in generate_tasks.py names those that exist")
    return importlib.import_module(DOMAINS[domain])


def write_procedural(args):
    grammar = grammar_of(args.domain)
    outs = open_splits(args, {"source": "procedural", "level": args.level, "seed": args.seed}, {})
    with get_context("spawn").Pool(args.workers, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        write_splits(outs, lambda split: grammar.draw_tasks(split, args.level, args.seed),
                     partial(pool.imap, partial(grammar.with_calls, seed=args.seed)))


def write_demonstrations(args):
    from rollout import system_prompt    # the agent's instructions in rollouts
    grammar = grammar_of(args.domain)
    path = args.input or f"data/{args.domain}/{args.split}.jsonl"
    tasks = list(read(path, "task", args.domain, unique=True, each=grammar.check_demonstrable))
    settings = {name: getattr(args, name) for name in ("ask", "waste", "max_turns", "seed")}
    out = open_output(args.out or f"data/{args.domain}/demonstrations.jsonl", args.demonstrations, args, settings,
                      {"--in": path}, ("task_id", "sample"))
    system = system_prompt(args)

    def dialogue(i):
        sample, index = divmod(i, len(tasks))
        task = tasks[index]
        rng = random.Random(f"{args.seed} {task['task_id']} {sample}")
        history, answer = grammar.demonstrate(task, args.ask, args.waste, args.max_turns, rng)
        return {"task_id": task["task_id"], "sample": sample, "domain": task["domain"], "task": task,
                "system": system, "dialogue_history": history, "answer": answer, "finish": "answered",
                "model": "scripted", "simulator": "scripted", "seed": args.seed}, None

    write(out, args.demonstrations, range(len(out.done), args.demonstrations), partial(map, dialogue))


# ---- Released ColBench files (--source colbench)

# What chat templates put between messages, the names of roles, and Llama's preamble of the system message.
TEMPLATE = re.compile(r"<\|[^<>|\n]*\|>|</?s>|<(?:bos|eos|start_of_turn|end_of_turn)>|\[/?INST\]|<</?SYS>>")
ROLES = r"\W*\b(?:system|user|human|assistant|model|developer)\b\W*"
PREAMBLE = r"^\s*Cutting Knowledge Date:.*\n\s*Today Date:.*\n"


def recorded_instructions(history):
    """The instructions that the agent of a released dialogue had, or None if it records none.

    They are what surrounds the request in the prompt of the first turn (`input`), without the marks of its template.
    """
    request = history[0]["content"].strip()
    prompts = [message.get("input") for message in history if message["role"] == "assistant"]
    if not prompts or not isinstance(prompts[0], str) or request not in prompts[0]:
        return None
    before, _, after = prompts[0].partition(request)
    texts = []
    for text in [*TEMPLATE.split(before), TEMPLATE.split(after)[0]]:
        text = re.sub(PREAMBLE, "", text)
        text = re.sub(rf"(?i)\A{ROLES}(\n|\Z)|(\A|\n){ROLES}\Z", "", text).strip()
        if text:
            texts.append(text)
    return "\n\n".join(texts) or None


def released_task(domain, name, task):
    """A released task in our format."""
    if "llm_generated_idea" in task:
        raise ValueError("this is a row of WebSight, which --source websight reads")
    for key in ("problem_description", "ground_truth"):
        if not isinstance(task.get(key), str):
            raise ValueError(f"the task has no text under the key {key!r}")
    if domain == "backend" and not task["test_cases"]:
        raise ValueError("the task has no test_cases")
    return {"task_id": name, "domain": domain, "source": "colbench", **task}


def released_trajectory(args, system, seen, record):
    """A released trajectory as rollout.py would have written it. Its reward is kept as `released_reward`.

    system: our instructions, for an agent whose own are not recorded. seen: {task_id: trajectories so far}.
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
                     "task": released_task(args.domain, name, task), "system": recorded_instructions(history) or system,
                     "answer": answer, "finish": finish, "model": "released", "simulator": "released", "seed": None}


def write_colbench(args):
    """Convert all trajectories, or the first --train, --val or --test tasks (the paper's test set is the first 1000).

    The samples of a task lie num_tasks lines apart and are numbered in file order.
    """
    from rollout import ENVIRONMENTS, system_prompt
    with open(args.input, "rb") as file:
        offline = b'"dialogue_history"' in file.readline()
    if offline:
        kind, path = "trajectory", f"runs/default/{args.split}.trajectories.jsonl"
        wanted = math.inf
    else:
        kind, path = "task", f"data/{args.domain}/{args.split}.jsonl"
        wanted = getattr(args, args.split)
    out = open_output(args.out or path, wanted, args, {"source": "colbench"}, {"--in": args.input}, SCHEMA[kind][1])
    numbers, seen, doubts = itertools.count(1), Counter(), {}
    system = system_prompt(args) if args.domain in ENVIRONMENTS else None

    def convert(record):
        if offline:
            made = released_trajectory(args, system, seen, record)
        else:
            made = released_task(args.domain, f"{Path(args.input).stem}-{next(numbers):05d}", record)
        task = made.get("task", made)
        reason = doubt(task["ground_truth"], task["test_cases"].values()) if task.get("test_cases") else None
        if reason:
            doubts.setdefault(reason, []).append(made["task_id"])
        return made

    write_splits({args.split: (out, wanted)}, lambda split: read(args.input, "released", each=convert), accept)
    for reason, names in doubts.items():
        examples = ", ".join(dict.fromkeys(names[:3]))
        print(f"  kept, but doubtful: {len(names)} x {reason} ({examples})", file=sys.stderr)


# ---- WebSight's rows (--source websight)

ROWS = {"train": (0, 10_000), "test": (10_000, 20_000), "val": (20_000, None)}


def websight_rows(files):
    """Yield the rows of JSON lines or parquet files, one file after the other."""
    for file in files:
        if file.suffix != ".parquet":
            yield from read(file, "row")
            continue
        try:
            from pyarrow import ArrowException, parquet
        except ImportError:
            die(f"{file}: reading parquet needs pyarrow (pip install pyarrow); or write the rows as JSON lines")
        try:
            for batch in parquet.ParquetFile(file).iter_batches(columns=list(SCHEMA["row"][2])):
                yield from batch.to_pylist()
        except ArrowException as error:
            die(f"{file}: {first_line(error)}")


def write_websight(args):
    """A row's idea is the request, its page the reference. A page that stands in several rows is used once."""
    from render import rewrite_images
    path = Path(args.input)
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file())
    inputs = {f"--in {file.name}": file for file in files}
    outs = open_splits(args, {"source": "websight"}, inputs, ("row",))
    pages = set()    # hashes of those that have been seen
    for out, _ in outs.values():
        pages |= {hashed(task["ground_truth"]) for task in records_of(out)}

    def drafts(split):
        first, last = ROWS[split]
        for i, row in itertools.islice(enumerate(websight_rows(files)), first, last):
            idea = (row["llm_generated_idea"] or "").strip()
            page = rewrite_images((row["text"] or "").strip())
            yield {"task_id": f"websight-{i:05d}", "domain": args.domain, "source": "websight", "row": i,
                   "problem_description": idea, "ground_truth": page}

    def check(tasks):
        for task in tasks:
            page, reason = hashed(task["ground_truth"]), None
            if not task["problem_description"] or "<html" not in task["ground_truth"].lower():
                reason = "no idea or no page"
            elif page in pages:
                reason = "a page that another row has"
            pages.add(page)
            yield task, reason

    write_splits(outs, drafts, check)


# ---- Tasks from a language model (--source llm): one attempt per excerpt, until the splits are full

def open_llm(args):
    """(outputs as open_splits returns them, the Output of rejected attempts, the engine)"""
    load = partial(make_engine, args.model, args.model_name, "agent", args)
    engine, inputs = None, {"--in": args.input, "--model": args.model}
    if is_url(args.model):    # it may serve another model tomorrow, so the name is a setting; its address is none
        engine = load()
        args.model_name = engine.name
        del inputs["--model"]
    settings = {name: getattr(args, name) for name in (
        "source", "model_name", "temperature", "max_tokens", "seed", "dtype", "max_model_len", "extra_body")}
    settings |= {"engine": engine_of(args.model, args), "prompts": f"{hashed(PROMPT, MORE_CALLS):016x}"}
    outs = open_splits(args, settings, inputs, ("excerpt",))
    rejected = Output(folder_of(args) / "tasks.rejected.jsonl", settings, inputs, args.overwrite, ("excerpt",))
    return outs, rejected, engine or load()    # a local model is loaded once the outputs are known to be good


def start_dialogue(engine, loop, args, seed):
    """A function that sends one more message to the model and returns its Response; the engine runs in `loop`."""
    dialogue = []

    def say(text):
        dialogue.append({"role": "user", "content": text})
        replies = engine.generate(list(dialogue), 1, seed, args.temperature, args.max_tokens)
        [response] = asyncio.run_coroutine_threadsafe(replies, loop).result()
        dialogue.append({"role": "assistant", "content": response.said})
        return response

    return say


def attempt(excerpt, say, box):
    """(the model's answer to an excerpt, the task or None, None or the reason to reject it)"""
    def ask(question):
        with suppress(Refused):    # it may not fit the context
            return say(question).said
        return ""

    try:
        response = say(PROMPT.format(excerpt=excerpt))
    except Refused as refusal:
        return str(refusal), None, "request refused"
    task, reason = task_of(response.said, ask, box)
    if reason and response.cut:
        reason = "cut at the token limit"
    return response.text, task, reason


def write_llm(args):
    """Attempts are made in parallel and kept in order. A resumed run makes those that are not in its files.

    An attempt whose task belongs to a full split is made again once that split has room.
    """
    from sandbox import Sandbox
    excerpts = list(read(args.input, "excerpt", each=lambda record: record["text"].strip()[:LONGEST_EXCERPT]))
    outs, rejected, engine = open_llm(args)
    known, made, reasons = set(), set(), Counter()    # made: the excerpts of all attempts
    for out, wanted in outs.values():
        made |= out.done
        known |= {task["function"] for task in records_of(out)}
    roomy = [f"{split} is full" for split, (out, wanted) in outs.items() if len(out.done) < wanted]
    made |= {(record["excerpt"],) for record in records_of(rejected) if record["reason"] not in roomy}
    todo = iter([i for i in range(len(excerpts)) if (i,) not in made])

    def missing():
        return sum(wanted - len(out.done) for out, wanted in outs.values())

    def keep(i, answer, task, reason):
        made.add((i,))
        if not reason:
            split = split_of(task["function"])
            out, wanted = outs.get(split, (None, 0))
            if task["function"] in known:
                reason = "the same function as another task's"
            elif not wanted or len(out.done) >= wanted:
                reason = f"{split} is full"
        if reason:
            reasons[reason] += 1
            if (i,) not in rejected.done:
                rejected.write({"excerpt": i, "reason": reason, "answer": answer, "text": excerpts[i]})
            return
        known.add(task["function"])
        name = f"{task['domain']}-{split}-{i:05d}"
        out.write(task | {"task_id": name, "source": f"llm:{model}", "excerpt": i})
        bar.update()

    loop, model = asyncio.new_event_loop(), args.model_name or args.model
    threading.Thread(target=loop.run_forever, daemon=True).start()
    threads, ahead = ThreadPoolExecutor(args.concurrency), deque()    # ahead: [(i, its future)], oldest first
    with Sandbox(workers=args.workers) as box, tqdm(total=missing(), desc="tasks", mininterval=1) as bar:
        try:
            while missing():
                for i in itertools.islice(todo, min(args.concurrency, missing()) - len(ahead)):
                    say = start_dialogue(engine, loop, args, args.seed + i)
                    ahead.append((i, threads.submit(attempt, excerpts[i], say, box)))
                if not ahead:
                    break
                i, future = ahead[0]
                keep(i, *future.result())
                ahead.popleft()
        except Stop as stop:
            die(f"{stop}; finished tasks are saved", stop.code)
        finally:    # after Ctrl-C, say: what is finished is kept
            for i, future in ahead:
                if future.done() and not future.exception():
                    keep(i, *future.result())
            for out, _ in outs.values():
                if out.done:
                    out.sort(lambda excerpt: excerpt)
    tell(list(outs.values()), reasons)
    print(f"{len(made)} excerpts gave {len(known)} tasks; {rejected.path} has the others, and why")
    engine.close()


def records_of(out):
    """The records that an Output has written already."""
    return out.records() if out.done else ()


# ---- The command line

SOURCES = {  # name: (what writes it, the domain of its tasks if --domain is not given, the flags that it reads)
    "procedural": (write_procedural, "backend", "level train val test seed workers"),
    "llm": (write_llm, "backend", "in model model-name temperature max-tokens concurrency train val test seed workers"),
    "colbench": (write_colbench, "backend", "in split train val test max-turns"),
    "websight": (write_websight, "frontend", "in train val test"),
}
DEMONSTRATIONS = "in split ask waste max-turns seed workers"    # the flags that it reads
ALWAYS = "domain out overwrite demonstrations"


def add_flags(p):
    share, count, size = number(least=0, most=1), number(int, least=1), number(int, least=0)
    add = p.add_argument
    add("--source", choices=SOURCES, default="procedural",
        help="procedural: composed from a grammar; llm: written by a model from web excerpts; colbench: released "
             "files; websight: rows of WebSight (default: procedural)")
    add("--domain",
        help=f"kind of task: {', '.join(DOMAINS)}, for colbench any name (default: backend; websight: frontend)")
    add("--in", dest="input",
        help="excerpts, released file or rows (for websight a file or a folder of files); for --demonstrations the "
             "tasks (default: data/DOMAIN/SPLIT.jsonl)")
    add("--out",
        help="folder of the tasks (default: data/DOMAIN); for demonstrations and colbench the file (default: "
             "data/DOMAIN/..., for trajectories runs/default/SPLIT.trajectories.jsonl)")
    add("--overwrite", action="store_true", help="start the output again instead of resuming it")
    add("--train", type=size, default=10000, help="number of training tasks (default: 10000)")
    add("--val", type=size, default=500, help="number of validation tasks (default: 500)")
    add("--test", type=size, help="number of test tasks (default: 1000, frontend 500, as in the paper)")
    add("--seed", type=int, default=0, help="random seed (default: 0)")
    add("--workers", type=count, default=2, help="processes (for llm the sandbox's), or browsers (default: 2)")

    add = p.add_argument_group("--source procedural").add_argument
    add("--level", choices=["full", "plain"], default="full",
        help="plain: a small grammar that is always worded alike, so that a model trained from scratch learns it in "
             "minutes (default: full)")

    add = p.add_argument_group("--demonstrations (--split and --max-turns: --source colbench, too)").add_argument
    add("--demonstrations", type=size, default=0, metavar="N",
        help="write N dialogues of the scripted agent instead of tasks (default: 0 = write tasks)")
    add("--split", choices=SPLITS, default="train", help="split of the tasks, or of a released file (default: train)")
    add("--ask", type=share, default=0.6,
        help="probability to ask for a hidden detail, or to correct a named difference (default: 0.6)")
    add("--waste", type=share, default=0.2,
        help="probability of a wasted turn before each turn; after one there may be another (default: 0.2)")
    add("--max-turns", type=count, default=10, help="longest dialogue, in agent turns (default: 10)")

    add = p.add_argument_group(
        "--source llm", "A strong model needs about 1.8 excerpts a task. Plan two to three: the function's hash "
        "decides the split, so a fifth of the tasks meets a full split. The flags of engines are above.").add_argument
    add("--model", help="folder, hub name, or URL of an OpenAI-compatible server")
    add("--model-name", help="the model's name on its server (default: the only model there)")
    add("--temperature", type=number(least=0), default=1.0, help="sampling temperature (default: 1.0)")
    add("--max-tokens", type=count, default=4096, help="token limit of an answer, with its thought (default: 4096)")
    add("--concurrency", type=count, default=64, help="concurrent requests (default: 64)")


def parse_args():
    engines = argparse.ArgumentParser(add_help=False)
    engine_flags(engines)
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0], parents=[engines], allow_abbrev=False)
    add_flags(p)
    args = p.parse_args()

    mode = f"--source {args.source}"
    _, domain, used = SOURCES[args.source]
    used += " source"
    if args.demonstrations:
        mode, used = "--demonstrations", DEMONSTRATIONS
    used = {*used.split(), *ALWAYS.split()}
    if mode == "--source llm":
        used |= {name.replace("_", "-") for name in vars(engines.parse_args([]))}

    flags = {"--in"} | {f"--{name.replace('_', '-')}" for name in vars(args)}
    refuse_idle([flag for flag in flags if flag[2:] not in used], f"with {mode}")
    if args.source in ("llm", "websight") and args.domain not in (None, domain):
        die(f"{mode} makes tasks of the domain {domain}, not of {args.domain}")
    if "in" in used and not args.input and not args.demonstrations:
        die(f"{mode} needs --in")
    if "model" in used and not args.model:
        die(f"{mode} needs --model")
    if mode == "--source llm":
        refuse_idle_engines([args.model], args)
    args.domain = args.domain or domain
    if args.test is None:
        args.test = PAPERS_TEST.get(args.domain, 1000)
    return args


def main():
    args = parse_args()
    write = write_demonstrations if args.demonstrations else SOURCES[args.source][0]
    write(args)


if __name__ == "__main__":
    run_script(main)
