"""Generate tasks: a vague request, a hidden reference, ten hidden calls, and what a human says when asked.

A task is a request, a hidden reference (a function, or a page), for functions ten hidden calls, and `facts`: the hidden
details with what a human replies when asked for them. Where tasks come from:

procedural  (the default) A grammar composes them: function_tasks.py for --domain backend, page_tasks.py for frontend.
            --level plain is small and always worded alike, for a model that is trained from scratch.
llm         The paper's way: a model reads a web excerpt (key `text`) and writes a request, a function, twelve to fourteen
            calls and the hidden details. Each answer is read leniently and checked strictly:
            - a call counts if it has literal arguments and two runs of it give the same result, which is not None;
            - the request shows the true signature, and does not speak of the excerpt;
            - ten calls are kept, those that tell most wrong versions of the function (one line mutated, or one detail
              guessed wrong). The model is asked once more for calls that tell what survives;
            - a constant answer passes at most half of them;
            - a hidden detail is kept as a fact if guessing it wrong fails a call.
            A hash of the function, whatever its names and comments, decides the split and finds the same function again.
            Departure from the paper: its 10k + 1k tasks come from a 70B model, and need only run.
colbench    Released tasks, or trajectories, which keep the instructions that their agent had.
websight    Rows of WebSight v0.2 (`text`, `llm_generated_idea`), as JSON lines or parquet. As in the paper, the rows from
            10,000 on are for the test; rows from 20,000 on validate.

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
import ast
import asyncio
import builtins
import importlib
import itertools
import json
import math
import os
import random
import re
import signal
import sys
import textwrap
import threading
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tqdm import tqdm

from engines import Refused, Stop, engine_flags, engine_of, is_url, make_engine
from records import ANSWER_MARK, SCHEMA, Output, die, first_line, hashed, number, read, split_of

SPLITS = ("train", "val", "test")
DOMAINS = {"backend": "function_tasks", "frontend": "page_tasks"}    # the module that draws and demonstrates its tasks
PAPERS_TEST = {"backend": 1000, "frontend": 500}    # the size of the paper's test set
BATCH = 1000    # candidates that are checked at a time, at most
SCHEMA["excerpt"] = ("your collector of excerpts", (), {"text": str})
SCHEMA["released"] = ("ColBench's release", (), {})
SCHEMA["row"] = ("WebSight v0.2", (), {"text": str, "llm_generated_idea": str})
SCHEMA["rejected"] = ("generate_tasks.py --source llm", ("excerpt",), {"excerpt": int, "reason": str})


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
    return {split: (open_output(folder_of(args) / f"{split}.jsonl", wanted, args, settings, inputs, key), wanted)
            for split in SPLITS if (wanted := getattr(args, split))}


def write_splits(outs, drafts, check):
    """Write to each split what it lacks. drafts(split): an iterable of all its records; check: as in `write`."""
    for split, (out, wanted) in outs.items():
        write(out, wanted, (task for task in drafts(split) if out.key_of(task) not in out.done), check)


# ---------------------------------------------------------------------------------------------------------------------
# Composed tasks, and dialogues of a scripted agent on them

def grammar_of(domain):
    """The module that draws a domain's tasks."""
    if domain not in DOMAINS:
        die(f"no grammar composes tasks of the domain {domain!r}; DOMAINS in generate_tasks.py names those that exist")
    return importlib.import_module(DOMAINS[domain])


def draw(grammar, split, args):
    if hasattr(grammar, "COMPOSITIONS"):    # the grammar without levels
        kinds = ["total", "average"] if args.level == "plain" else list(grammar.KINDS)
        return grammar.draw_tasks(split, kinds, args.level == "plain", args.seed)
    return grammar.draw_tasks(split, args.level, args.seed)


def write_procedural(args):
    grammar = grammar_of(args.domain)
    outs = open_splits(args, {"source": "procedural", "level": args.level, "seed": args.seed}, {})
    with get_context("spawn").Pool(args.workers, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        write_splits(outs, lambda split: draw(grammar, split, args),
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

    threads = ThreadPoolExecutor(4 * args.workers)    # pages are rendered at every turn
    write(out, args.demonstrations, range(len(out.done), args.demonstrations), partial(threads.map, dialogue))


# ---------------------------------------------------------------------------------------------------------------------
# What a reader of a task can tell without running it

def signature_of(function):
    """`f(x, y)` of an ast.FunctionDef."""
    return f"{function.name}({ast.unparse(function.args)})"


def functions_of(tree):
    """{name: ast.FunctionDef} of the functions at the top of a program."""
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def names_only_there(call, known):
    """The names in a call (an expression) that are neither its own, nor Python's, nor in `known`."""
    nodes = list(ast.walk(ast.parse(call.strip(), mode="eval")))
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    return used - own - set(known) - vars(builtins).keys()


def why_unfair(code, calls):
    """Why a right answer cannot pass all calls of this reference, as far as reading tells; None if nothing speaks
    against it."""
    try:
        tree = ast.parse(code)
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else \
                [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                if module.partition(".")[0] not in sys.stdlib_module_names:
                    return f"the reference imports {module}, which is not in the standard library"
        functions = functions_of(tree)
        for call in calls:
            if names := names_only_there(call, functions):
                return f"a call uses {min(names)}, which only the reference defines"
        called = [function for name, function in functions.items()
                  if any(re.search(rf"\b{name}\(", call) for call in calls)]
        if called and not any(isinstance(node, (ast.Yield, ast.YieldFrom)) or isinstance(node, ast.Return)
                              and not (node.value is None or isinstance(node.value, ast.Constant)
                                       and node.value.value is None) for function in called for node in ast.walk(function)):
            return "the reference never returns a value"
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "the reference or a call is not Python"
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Released ColBench files (--source colbench)

# What chat templates put between messages, the names of roles, and Llama's preamble of the system message.
TEMPLATE = re.compile(r"<\|[^<>|\n]*\|>|</?s>|<(?:bos|eos|start_of_turn|end_of_turn)>|\[/?INST\]|<</?SYS>>")
ROLES = r"\W*\b(?:system|user|human|assistant|model|developer)\b\W*"
PREAMBLE = r"^\s*Cutting Knowledge Date:.*\n\s*Today Date:.*\n"


def recorded_instructions(history):
    """The instructions that the agent of a released dialogue had, or None if it records none.

    They are what surrounds the request in the prompt of the first turn (`input`), without the marks of its template.
    """
    prompt = next((message.get("input") for message in history if message["role"] == "assistant"), None)
    if not isinstance(prompt, str) or history[0]["content"].strip() not in prompt:
        return None
    before, _, after = prompt.partition(history[0]["content"].strip())
    texts = [*TEMPLATE.split(before), TEMPLATE.split(after)[0]]
    texts = [re.sub(rf"(?i)\A{ROLES}(\n|\Z)|(\A|\n){ROLES}\Z", "", re.sub(PREAMBLE, "", text)) for text in texts]
    return "\n\n".join(text.strip() for text in texts if text.strip()) or None


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
    kind, path, wanted = "task", f"data/{args.domain}/{args.split}.jsonl", getattr(args, args.split)
    if offline:
        kind, path, wanted = "trajectory", f"runs/default/{args.split}.trajectories.jsonl", math.inf
    out = open_output(args.out or path, wanted, args, {"source": "colbench"}, {"--in": args.input}, SCHEMA[kind][1])
    numbers, seen, unfair = itertools.count(1), Counter(), {}
    system = system_prompt(args) if args.domain in ENVIRONMENTS else None

    def convert(record):
        if offline:
            made = released_trajectory(args, system, seen, record)
        else:
            made = released_task(args.domain, f"{Path(args.input).stem}-{next(numbers):05d}", record)
        task = made.get("task", made)
        if task.get("test_cases") and (reason := why_unfair(task["ground_truth"], task["test_cases"].values())):
            unfair.setdefault(reason, []).append(made["task_id"])
        return made

    write_splits({args.split: (out, wanted)}, lambda split: read(args.input, "released", each=convert), accept)
    for reason, names in unfair.items():
        print(f"  kept, but unfair: {len(names)} x {reason} ({', '.join(dict.fromkeys(names[:3]))})", file=sys.stderr)


# ---------------------------------------------------------------------------------------------------------------------
# WebSight's rows (--source websight)

FIRST_ROW = {"train": 0, "test": 10_000, "val": 20_000}


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
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    outs = open_splits(args, {"source": "websight"}, {f"--in {file.name}": file for file in files}, ("row",))
    pages = {hashed(task["ground_truth"]) for out, _ in outs.values() if out.done for task in out.records()}

    def drafts(split):
        last = min((first for first in FIRST_ROW.values() if first > FIRST_ROW[split]), default=None)
        for i, row in itertools.islice(enumerate(websight_rows(files)), FIRST_ROW[split], last):
            yield {"task_id": f"websight-{i:05d}", "domain": args.domain, "source": "websight", "row": i,
                   "problem_description": (row["llm_generated_idea"] or "").strip(),
                   "ground_truth": rewrite_images((row["text"] or "").strip())}

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


# ---------------------------------------------------------------------------------------------------------------------
# Tasks from a language model (--source llm): what it is asked, and how its answer is read

LONGEST_EXCERPT = 2000    # characters
MOST_MUTANTS = 100        # wrong versions of a function that its calls are tried on
LLM_PROMPT = """Here is an excerpt from the web:

<excerpt>
{excerpt}
</excerpt>

Think of a Python function that someone who works with this subject would want to have. A colleague will ask a
programmer for it. The programmer never sees this excerpt, and has to ask for whatever the request leaves open. Write four
parts in plain text, without markdown, each after its heading:

DESCRIPTION:
The colleague's request, in two to four sentences: what the function is for, its name and its parameters. It stands on
its own and mentions no text or excerpt. It gives away none of the details below.
CODE:
The function, with all details settled, in at most 50 lines. Standard library only. No default arguments, no randomness,
no clock, no input or output. It always returns a value, never None, and raises no error in any of the calls.
CALLS:
Twelve to fourteen different calls of the function, one a line, with literal arguments only, without their results. The
results differ. For each detail below some call has a result that depends on it. Every limit is tried below, at and above.
DETAILS:
The four to six details that the request leaves open (limits, and whether the limit itself counts; names of keys; rounding;
order; ties; empty or odd input), four lines for each:
QUESTION: what the programmer would ask
REPLY: what the colleague would say, in one plain sentence, with the exact number, name or text
FRAGMENT: the piece of the code that settles it, on one line, exactly as it stands there
WRONG: what would stand there if the programmer guessed wrong
"""
MORE_CALLS = """None of your calls tells the function from these wrong versions of it:

{changes}

For each one write another call of {name}, with literal arguments, for which the wrong version returns something else. One
call a line, without markdown and without results. Leave out a version that always returns the same."""

HEADINGS = {  # what a heading may say: its part
    "description": "description", "request": "description", "code": "code", "function": "code", "reference": "code",
    "implementation": "code", "calls": "calls", "tests": "calls", "details": "details", "facts": "details"}
HEADING = re.compile(rf"^ {{0,3}}(?=\S)(?:[^\w\n`\"']|\d+[.):])*(?:\w+ ){{0,2}}({'|'.join(HEADINGS)})\b[ *_]*(?:\([^)\n]*\))?[ *_]*"
                     r"(?::[ *_]*|$)", re.I | re.M)
FENCE = re.compile(r"^[ \t>]*(```|~~~)[^\n]*\n(.*?)^[ \t>]*\1[`~]*[ \t]*$", re.S | re.M)
FACT = re.compile(r"^\W*(question|reply|fragment|wrong)\b\W*?:(.*)$", re.I | re.M)
OF_THE_EXCERPT = re.compile(r"\b(the|this|that) (web )?(excerpt|passage|snippet)\b|"
                            r"\b(described|mentioned|given|listed|shown|stated) (above|in (the|this) (text|article|page))\b|"
                            r"\baccording to (the|this) (text|article|page)\b", re.I)


def parts_of(answer):
    """{"description", "code", "calls", perhaps "details": its text} of a model's answer, the last that is whole."""
    text = answer.replace("\r\n", "\n")
    text = text.rpartition("</think>")[2].partition("<think>")[0]    # a thought may give the details away
    with suppress(ValueError, AttributeError):    # an answer in JSON
        found = json.loads(FENCE.sub(r"\2", text.strip() + "\n"))
        text = "\n".join(f"{heading}:\n{as_lines(part)}" for heading, part in found.items())
    masked = FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)    # a heading inside code is none
    for searched in (masked, text):
        found = [(HEADINGS[match[1].lower()], match.start(), match.end()) for match in HEADING.finditer(searched)]
        parts, end = {}, len(text)
        for part, heading, start in reversed(found):
            parts[part], end = text[start:end], heading
            if part == "description" and {"code", "calls"} <= parts.keys():
                return parts
    return None


def as_lines(part):
    """A part of an answer in JSON as text."""
    if isinstance(part, dict):
        return "\n".join(f"{key}: {value}" for key, value in part.items())
    return "\n".join(map(as_lines, part)) if isinstance(part, list) else str(part)


def program_in(text):
    """(code, its syntax tree) of the first program with a function in a part of an answer; raises ValueError."""
    lines = [line for line in text.split("\n") if not re.match(r"\s*(```|~~~)", line)]
    lines = textwrap.dedent("\n".join(lines)).split("\n")
    start = next((i for i, line in enumerate(lines) if re.match(r"(def|import|from|class|async|@)\b|@|[A-Z_]+ *=", line)), 0)
    for block in [*(textwrap.dedent(match[2]) for match in FENCE.finditer(text)), lines[start:]]:
        lines = block if isinstance(block, list) else block.split("\n")
        for end in range(len(lines), max(0, len(lines) - 30), -1):    # what follows the code may be a remark
            with suppress(SyntaxError, RecursionError, MemoryError):    # a ValueError is a null byte
                code = "\n".join(lines[:end]).strip() + "\n"
                tree = ast.parse(code)
                if functions_of(tree):
                    return code, tree
    raise ValueError("code does not parse")


def calls_in(text, names):
    """The different calls of these functions in a text, in order: each grows until Python takes it as an expression."""
    calls, start = [], 0
    while begin := re.compile(rf"(?<![\w.])({'|'.join(names)})\(").search(text, start):
        start = begin.end()
        for close in itertools.islice(re.compile(r"\)").finditer(text, start), 60):
            with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                call = ast.parse(text[begin.start():close.end()], mode="eval").body
                if isinstance(call, ast.Call) and not names_only_there(ast.unparse(call), names):
                    calls.append(ast.unparse(call))
                start = close.end()
                break
    return list(dict.fromkeys(calls))


def bare(tree):
    """A program without comments and docstrings, in Python's own layout."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree) + "\n"


def normal_form(code):
    """A program as text, in which the names that it gives are numbered in order: equal for the same function."""
    tree = ast.parse(code)
    given = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    given |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    given |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    numbers = {}
    for node in ast.walk(tree):
        for field in ("name", "arg", "id"):
            if getattr(node, field, None) in given:
                setattr(node, field, numbers.setdefault(getattr(node, field), f"_{len(numbers)}"))
    return ast.unparse(tree)


def with_signature(request, function):
    """A request that shows the function's true signature: in place of one that it shows, or at its end."""
    signature = signature_of(function)

    def true(shown):
        try:
            ast.parse(f"def {shown[0]}: pass")
        except SyntaxError:    # an example call
            return shown[0]
        return signature

    request = re.sub(rf"\b{function.name}\([^()]*\)", true, request)
    return request if signature in request else f"{request} Signature: {signature}."


def parse_task(answer):
    """(task with all its calls, None) from a model's answer, or (None, the reason to reject it).

    Its `guesses` are {detail: the function with that detail guessed wrong}, for the details that name a piece of it.
    """
    parts = parts_of(answer)
    if not parts:
        return None, "not in the requested form"
    try:
        code, tree = program_in(parts["code"])
        functions = functions_of(tree)
        called = Counter(re.findall(r"(?<![\w.])(\w+)\(", parts["calls"]))
        name = max(functions, key=lambda name: called[name])
        form = normal_form(bare(tree))
    except (ValueError, RecursionError, MemoryError):
        return None, "code does not parse"
    if code.count("\n") > 50:
        return None, "more than 50 lines"
    if not called[name]:
        return None, "no call of the function"
    calls = calls_in(parts["calls"], [name])
    if reason := why_unfair(code, calls):
        return None, reason
    if len(calls) < 10:
        return None, "fewer than ten different calls with literal arguments"
    request = re.sub(r"\*\*([^*]+)\*\*", r"\1", " ".join(FENCE.sub(r"\2", parts["description"] + "\n").split()))
    if OF_THE_EXCERPT.search(request):
        return None, "the request speaks of the excerpt"
    facts, guesses = details_in(parts.get("details", ""), code)
    return {"task_id": None, "domain": "backend", "problem_description": with_signature(request, functions[name]),
            "ground_truth": code, "test_cases": numbered(calls), "facts": facts, "guesses": guesses,
            "function": f"{hashed(form):016x}", "name": name}, None


def numbered(calls):
    return {str(number): call for number, call in enumerate(calls, 1)}


def details_in(text, code):
    """(facts, {detail: the code with that detail guessed wrong}) of an answer's hidden details."""
    facts, guesses, said = [], {}, {}
    for label, words in FACT.findall(text):
        said[label.lower()] = words.strip().strip("*").strip()
        if len(said) == 4 and label.lower() == "wrong":
            fragment, wrong = (re.sub(r"^`+(.*?)`+$", r"\1", said[part]) for part in ("fragment", "wrong"))
            detail = f"detail-{len(facts) + 1}"
            facts.append({"detail": detail, "questions": [said["question"]], "reply": said["reply"]})
            if fragment in code:
                guesses[detail] = code.replace(fragment, wrong, 1)
            said = {}
    return facts, guesses


# ---------------------------------------------------------------------------------------------------------------------
# Ten calls that tell the function from wrong versions of it, and the details that they tell

def working_calls(box, code, calls):
    """({call: its result} of the calls that two runs give the same result for, not None; {reason: how many fail so})."""
    statuses = box.check_reference({"ground_truth": code, "test_cases": {call: call for call in calls}})
    working = [call for call in calls if statuses[call] == "ok"]
    return dict(zip(working, box.run(code, working))), Counter(status for status in statuses.values() if status != "ok")


def telling_calls(box, results, wrong):
    """{wrong version: the calls that tell it from the function, whose results are given as {call: Outcome}}"""
    return {program: {call for call, outcome in zip(results, box.run(program, list(results)))
                      if outcome != results[call]} for program in wrong}


def ten_calls(results, told_by):
    """A greedy choice: each call tells most of the wrong versions that are left, then has the rarest result."""
    chosen, times, left = [], Counter(), [calls for calls in told_by.values() if calls]
    while len(chosen) < 10:
        best = min((call for call in results if call not in chosen),
                   key=lambda call: (-sum(call in calls for calls in left), times[results[call]]))
        chosen.append(best)
        times[results[best]] += 1
        left = [calls for calls in left if best not in calls]
    return [call for call in results if call in chosen]


def change_of(code, wrong):
    """One line that says how a wrong version differs."""
    old, new = code.splitlines(), wrong.splitlines()
    n = next((n for n, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)) - 1)
    return f"`{old[n].strip()}` becomes `{new[n].strip()}`" if len(old) == len(new) else f"without `{old[n].strip()}`"


def settle(task, box, ask):
    """(task with ten calls and the facts that they depend on, None), or (task, the reason to reject it).

    ask(question) returns the model's answer to a further question in the same dialogue, or "".
    """
    from function_tasks import mutants
    code, name = task["ground_truth"], task.pop("name")
    guesses, calls = task.pop("guesses"), list(task["test_cases"].values())
    results, failed = working_calls(box, code, calls)
    if len(results) < 10:
        return task, f"reference: {failed.most_common(1)[0][0]}"
    layout = bare(ast.parse(code))
    wrong = [*guesses.values(), *mutants(layout)[:MOST_MUTANTS]]
    told_by = telling_calls(box, results, wrong)
    changes = [change_of(code if program in guesses.values() else layout, program) for program in wrong
               if not told_by[program]]
    if changes:
        listed = "\n".join(f"{n}. {change}" for n, change in enumerate(dict.fromkeys(changes), 1) if n <= 8)
        new = [call for call in calls_in(ask(MORE_CALLS.format(changes=listed, name=name)), [name]) if call not in results]
        more, _ = working_calls(box, code, new[:12])
        for program, calls in telling_calls(box, more, wrong).items():
            told_by[program] |= calls
        results |= more
    ten = ten_calls(results, told_by)
    most = max(Counter(results[call] for call in ten).values())
    if most > 5:
        return task, "all results equal" if most == 10 else "a constant answer passes more than half of the calls"
    task["test_cases"] = numbered(ten)
    task["facts"] = [fact for fact in task["facts"] if told_by.get(guesses.get(fact["detail"]), set()) & set(ten)]
    return task, None


def write_llm(args):
    """One attempt per excerpt, until the splits are full. An excerpt that was tried is not tried again on a resume."""
    from sandbox import Sandbox
    excerpts = list(read(args.input, "excerpt", each=lambda record: record["text"].strip()[:LONGEST_EXCERPT]))
    load = partial(make_engine, args.model, args.model_name, "agent", args)
    engine = None
    if is_url(args.model):    # it may serve another model tomorrow, so the name is a setting; its address is none
        engine = load()
        args.model_name = engine.name
    settings = {name: getattr(args, name) for name in (
        "source", "model_name", "temperature", "max_tokens", "seed", "dtype", "max_model_len", "extra_body")}
    settings |= {"engine": engine_of(args.model, args), "prompts": f"{hashed(LLM_PROMPT, MORE_CALLS):016x}"}
    inputs = {"--in": args.input} | ({} if engine else {"--model": args.model})
    outs = open_splits(args, settings, inputs, ("excerpt",))
    rejected = Output(folder_of(args) / "tasks.rejected.jsonl", settings, inputs, args.overwrite, ("excerpt",))
    engine = engine or load()    # a local model is loaded once the outputs are known to be good
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def attempt(i):
        """(number of the excerpt, the model's answer, the task or None, None or the reason to reject it)"""
        dialogue, responses = [], []

        def ask(text):
            dialogue.append({"role": "user", "content": text})
            replies = engine.generate(list(dialogue), 1, args.seed + i, args.temperature, args.max_tokens)
            [response] = asyncio.run_coroutine_threadsafe(replies, loop).result()
            responses.append(response)
            dialogue.append({"role": "assistant", "content": response.text})
            return response.text

        def ask_more(text):
            with suppress(Refused):    # it may not fit the context; the task stands without
                return ask(text)
            return ""

        try:
            answer = ask(LLM_PROMPT.format(excerpt=excerpts[i]))
        except Refused as refusal:
            return i, str(refusal), None, "request refused"
        task, reason = parse_task(answer)
        if reason and responses[0].cut:
            reason = "cut at the token limit"
        if not reason:
            task, reason = settle(task | {"source": f"llm:{args.model_name or args.model}", "excerpt": i}, box, ask_more)
        return i, answer, task, reason

    known, full, reasons, tried = set(), set(), Counter(), 0
    for split, (out, wanted) in outs.items():
        known |= {task["function"] for task in (out.records() if out.done else ())}
    room = [split for split, (out, wanted) in outs.items() if len(out.done) < wanted]
    tried_before = {key for out, _ in outs.values() for key in out.done}
    if rejected.done:    # a task that found its split full is wanted once the split has room
        tried_before |= {(record["excerpt"],) for record in rejected.records()
                         if record["reason"] not in [f"{split} is full" for split in room]}
    bar = tqdm(total=sum(wanted for _, wanted in outs.values()), initial=sum(len(out.done) for out, _ in outs.values()),
               desc="tasks", mininterval=1)

    def keep(i, answer, task, reason):
        nonlocal tried
        tried += 1
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
        out.write(task | {"task_id": f"backend-{split}-{i:05d}"})
        bar.update()

    todo = iter([i for i in range(len(excerpts)) if (i,) not in tried_before])
    threads, ahead = ThreadPoolExecutor(args.concurrency), deque()
    with Sandbox(workers=args.workers) as box:    # the time limits of scoring, so that a right answer can pass
        try:
            while missing := sum(wanted - len(out.done) for out, wanted in outs.values()):
                ahead.extend(threads.submit(attempt, i) for i in
                             itertools.islice(todo, min(args.concurrency, missing) - len(ahead)))
                if not ahead:
                    break
                keep(*ahead[0].result())
                ahead.popleft()
        except Stop as stop:
            die(f"{stop}; finished tasks are saved", stop.code)
        finally:    # after Ctrl-C, say: what is finished is kept
            for future in ahead:
                if future.done() and not future.cancelled() and not future.exception():
                    keep(*future.result())
            for out, _ in outs.values():
                if out.done:
                    out.sort(lambda excerpt: excerpt)
            bar.close()
    tell(list(outs.values()), reasons)
    kept = sum(len(out.done) for out, _ in outs.values())
    print(f"{len(tried_before) + tried} excerpts gave {kept} tasks; {rejected.path} has the others and why")
    engine.close()


# ---------------------------------------------------------------------------------------------------------------------
# The command line

SOURCES = {  # name: (what writes it, the domain of its tasks if --domain is not given, the flags that it reads)
    "procedural": (write_procedural, "backend", "level train val test seed workers"),
    "llm": (write_llm, "backend", "in model model-name temperature max-tokens concurrency train val test seed workers"),
    "colbench": (write_colbench, "backend", "in split train val test max-turns"),
    "websight": (write_websight, "frontend", "in train val test"),
}
DEMONSTRATIONS = "in split ask waste max-turns seed workers"


def parse_args():
    engines = argparse.ArgumentParser(add_help=False)
    engine_flags(engines)
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0], parents=[engines], allow_abbrev=False)
    share, count, size = number(least=0, most=1), number(int, least=1), number(int, least=0)
    add = p.add_argument
    add("--source", choices=SOURCES, default="procedural", help="procedural: composed from a grammar; llm: written by a "
        "model from web excerpts; colbench: released files; websight: rows of WebSight (default: procedural)")
    add("--domain", help=f"kind of task: {', '.join(DOMAINS)}, or for colbench any name (default: backend; websight: frontend)")
    add("--in", dest="input", help="excerpts, released file or rows (for websight a file or a folder of files); for "
        "--demonstrations the tasks (default: data/DOMAIN/SPLIT.jsonl)")
    add("--out", help="folder of the tasks (default: data/DOMAIN); for demonstrations and colbench the file (default: "
        "data/DOMAIN/..., for trajectories runs/default/SPLIT.trajectories.jsonl)")
    add("--overwrite", action="store_true", help="start the output again instead of resuming it")
    add("--train", type=size, default=10000, help="number of training tasks (default: 10000)")
    add("--val", type=size, default=500, help="number of validation tasks (default: 500)")
    add("--test", type=size, help="number of test tasks (default: 1000, frontend 500, as in the paper)")
    add("--seed", type=int, default=0, help="random seed (default: 0)")
    add("--workers", type=count, default=2, help="processes (for llm the sandbox's), or browsers (default: 2)")
    add = p.add_argument_group("--source procedural").add_argument
    add("--level", choices=["full", "plain"], default="full", help="plain: a small grammar that is always worded alike, so "
        "that a model trained from scratch learns it in minutes (default: full)")
    add = p.add_argument_group("--demonstrations, and --split for a released file").add_argument
    add("--demonstrations", type=size, default=0, metavar="N",
        help="write N dialogues of the scripted agent instead of tasks (default: 0 = write tasks)")
    add("--split", choices=SPLITS, default="train", help="split of the tasks, or of a released file (default: train)")
    add("--ask", type=share, default=0.6,
        help="probability to ask for a hidden detail, or to correct a named difference (default: 0.6)")
    add("--waste", type=share, default=0.2,
        help="probability of a wasted turn before each turn; after one there may be another (default: 0.2)")
    add("--max-turns", type=count, default=10, help="longest dialogue, in agent turns (default: 10)")
    add = p.add_argument_group("--source llm", "A strong model's excerpts give about a task for each 1.8; plan two to three, "
        "because a fifth of the tasks belongs to a split that is full already. The flags of engines are below.").add_argument
    add("--model", help="folder, hub name, or URL of an OpenAI-compatible server")
    add("--model-name", help="the model's name on its server (default: the only model there)")
    add("--temperature", type=number(least=0), default=1.0, help="sampling temperature (default: 1.0)")
    add("--max-tokens", type=count, default=4096, help="token limit of an answer, with its thought (default: 4096)")
    add("--concurrency", type=count, default=64, help="concurrent requests (default: 64)")
    args = p.parse_args()

    mode, (_, domain, used) = f"--source {args.source}", SOURCES[args.source]
    if args.demonstrations:
        mode, used = "--demonstrations", DEMONSTRATIONS
    used = {*used.split(), "source", "domain", "out", "overwrite", "demonstrations"}
    if args.source == "llm" and not args.demonstrations:
        used |= {name.replace("_", "-") for name in vars(engines.parse_args([]))}
    given = {word.partition("=")[0] for word in sys.argv}
    flags = [f"--{name.replace('_', '-')}" for name in vars(args) if name != "input"] + ["--in"]
    if idle := sorted(flag for flag in flags if flag in given and flag[2:] not in used):
        die(f"{', '.join(idle)} would do nothing with {mode}; see --help")
    if args.source in ("llm", "websight") and args.domain not in (None, domain):
        die(f"{mode} makes tasks of the domain {domain}, not of {args.domain}")
    args.domain = args.domain or domain
    if args.test is None:
        args.test = PAPERS_TEST.get(args.domain, 1000)
    for flag in {"in", "model"} & used if mode.startswith("--source") else ():
        if not getattr(args, flag.replace("in", "input")):
            die(f"{mode} needs --{flag}")
    return args


def main():
    """Run the command to its end, without waiting for threads that still work."""
    code = 0
    try:
        try:
            args = parse_args()
            (write_demonstrations if args.demonstrations else SOURCES[args.source][0])(args)
        except KeyboardInterrupt:
            die("stopped; the same command without --overwrite resumes", 130)
        except OSError as problem:
            die(f"{problem.filename or 'a file'}: {problem.strerror or problem}")
    except SystemExit as stop:
        code = stop.code
    sys.stdout.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    main()
