"""Tasks: a vague request, the hidden reference, ten hidden calls, and what a simulator may tell about them.

`--source procedural` (the default) draws tasks from the FAMILIES below. A family is a request that leaves several
details open (a field, a threshold, what happens on empty input), a code template with a slot for each, and a function
that draws calls at the edges of the chosen values. A choice of one value for each detail is a *combination*: one task.
Its split follows from a hash of (family, combination) alone: no combination of the test split occurs in train, whatever
the seed. The ten calls are redrawn until *every* wrong value of *every* detail fails at least one of them, and run in
the sandbox: all return, twice the same, not all equal, no None. `--request vague` hides even what the function is for.

`--source llm` is the paper's way: a model reads a web excerpt (key `text`) and writes description, function and ten
calls. Kept are those that run like procedural ones and are no near-duplicates of those before. Departure from the
paper: its 10k + 1k tasks come from a 70B model; procedural ones need none, and a transformer trained from nothing can
learn them. `--source colbench` reads released tasks or trajectories, and counts references that fail their own tests.

`--domain frontend` draws pages from PAGES: kinds of pages with hidden choices (palette, order, layout, texts), each
rendered and kept if there is something to see. `--source websight` takes rows of WebSight v0.2 instead: neither an idea
nor a page occurs in two splits (`--split-by row` cuts at row 10,000 as the release does, whatever the ideas).

`--demonstrations N` writes dialogues of a scripted, imperfect agent on procedural tasks: it asks each detail with
probability `--ask`, in random order, wastes turns with probability `--waste`, guesses the details that it did not ask
(the purpose it knows, also with `--request vague`), and answers.
On pages it shows one, hears the largest differences and puts right each with probability `--ask`.

Reads:  nothing; for demonstrations data/{domain}/{split}.jsonl; for the other sources the file named by --in
Writes: data/{domain}/{train,val,test}.jsonl or data/{domain}/demonstrations.jsonl; beside each X.jsonl an
        X.settings.json with what decided its content. A run that was killed continues where it stopped.

    python generate_tasks.py
    python generate_tasks.py --demonstrations 8000 --ask 0.6
    python generate_tasks.py --source llm --in excerpts.jsonl --model http://localhost:8000/v1
    python generate_tasks.py --source colbench --split test --in released_test.jsonl
    python generate_tasks.py --domain frontend --families shop,event,login,profile --train 1000 --val 0 --test 200
    python generate_tasks.py --domain frontend --demonstrations 3000 --max-turns 6
    python generate_tasks.py --domain frontend --source websight --in websight.parquet
"""
import argparse
import ast
import asyncio
import hashlib
import itertools
import json
import math
import os
import random
import re
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import date, timedelta
from functools import lru_cache, partial
from pathlib import Path
from string import Template

from tqdm import tqdm

from sandbox import ANSWER_MARK, SCHEMA, Output, Sandbox, canonical, die, number, parse_response, read

SPLITS = ("train", "val", "test")
REDRAWS = 40  # draws of ten calls before a combination is given up
BATCH = 1000  # most candidates that are handed to the threads at a time
SCHEMA["excerpt"] = ("what collects the excerpts", (), {"text": str})
SCHEMA["row"] = ("an export of WebSight v0.2", (), {"llm_generated_idea": str, "text": str})


# ---------------------------------------------------------------------------------------------------------------------
# From a family (or a kind of page) and a choice of values to a task

def split_of(family, values):
    """Which split a combination belongs to: 72% train, 8% val, 20% test, by its hash alone (no seed)."""
    h = hashed(json.dumps([family, *values])) % 100
    return "train" if h < 72 else "val" if h < 80 else "test"


def hashed(text):
    """A number from a text, the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8], "big")


def fill(family, values):
    """The template of a family with these values in its slots. A value may itself contain a slot, hence two rounds."""
    slots = {d["name"]: d["values"][v] for d, v in zip(family["details"], values)}
    return Template(Template(family["code"]).substitute(slots)).substitute(slots)


def source_code(family, values):
    return fill(FAMILIES[family], values).strip() + "\n"


def page_source(kind, values):
    from render import TAILWIND_TAG
    return f"<!DOCTYPE html><html><head>{TAILWIND_TAG}</head>{fill(PAGES[kind], values)}</html>"


def value_weights(d):
    """How often each value of a detail is to occur; the first has the share `usual` where the detail gives one."""
    n = len(d["values"])
    return [d["usual"]] + [(1 - d["usual"]) / (n - 1)] * (n - 1) if d["usual"] else [1 / n] * n


def combinations(family, split, seed):
    """All combinations of a family in a split, in a random order in which likely ones tend to come first (weighted
    sampling without replacement: sort by -log(u)/weight)."""
    rng = random.Random(f"{seed} {family} order")
    weights = [dict(zip(d["values"], value_weights(d))) for d in FAMILIES[family]["details"]]
    keys = {values: -math.log(1 - rng.random()) / math.prod(w[v] for w, v in zip(weights, values))
            for values in itertools.product(*weights)}
    return sorted((values for values in keys if split_of(family, values) == split), key=keys.get)


def draw_functions(families, split, seed):
    """Yield (family, values), one of each family in turn, until all combinations of this split are used up."""
    columns = [[(f, values) for values in combinations(f, split, seed)] for f in families]
    return (c for row in itertools.zip_longest(*columns) for c in row if c is not None)


def draw_pages(kinds, split, seed):
    """Yield (kind, values), one of each kind in turn, each combination once, until all of this split are used up."""
    rng, seen, spent = random.Random(f"{seed} {split} pages"), set(), Counter()
    while kinds := [k for k in kinds if spent[k] < 2000]:  # draws in a row without a new combination
        for kind in kinds:
            values = tuple(rng.choice(list(c["values"])) for c in PAGES[kind]["details"])
            spent[kind] += 1
            if (kind, values) not in seen and split_of(kind, values) == split:
                spent[kind] = 0
                seen.add((kind, values))
                yield kind, values


def new_task(domain, about, truth, **more):
    """A task; its number is given when it is written."""
    return {"task_id": None, "domain": domain, "problem_description": about, "ground_truth": truth, **more}


def backend_draft(family, values, request="plain"):
    """The task of a combination, without its calls. A vague request leaves open even what the function is to do."""
    f, about = FAMILIES[family], FAMILIES[family]["about"]
    chosen = list(zip(f["details"], values))
    facts = [{"detail": d["name"], "keywords": d["keywords"], "question": d["question"],
              "reply": d["reply"].format(v)} for d, v in chosen]
    if request == "vague":
        facts.insert(0, {"detail": "purpose", "question": "What is the function for?",
                         "keywords": ["function", "purpose"], "reply": about})
        about = "Write a function of " + ("two arguments." if "," in about[:about.index(")")] else "one argument.")
    return new_task("backend", about, source_code(family, values), test_cases=None, source=f"procedural:{family}",
                    details={d["name"]: v for d, v in chosen}, facts=facts)


def page_draft(kind, values):
    return new_task("frontend", PAGES[kind]["about"], page_source(kind, values), source=f"procedural:{kind}",
                    details={d["name"]: v for d, v in zip(PAGES[kind]["details"], values)})


def wrong_values(family, values):
    """Every combination that has exactly one detail wrong: (the detail's name, its values)."""
    for i, d in enumerate(FAMILIES[family]["details"]):
        for other in d["values"]:
            if other != values[i]:
                yield d["name"], values[:i] + (other,) + values[i + 1:]


@lru_cache(maxsize=20000)
def namespace(family, values):
    """The namespace of the executed function. Our own templates only: nothing untrusted is ever run here."""
    names = {}
    exec(compile(source_code(family, values), family, "exec"), names)
    return names


def outputs(family, values, calls):
    """What compiled calls return under these values, as bytes that the sandbox compares; exceptions by their names."""
    names, results = namespace(family, values), []
    for c in calls:
        try:
            results.append(canonical(eval(c, names)))
        except Exception as e:
            results.append(f"raised {type(e).__name__}")
    return results


def draw_calls(task, seed):
    """Give a draft ten calls that tell every wrong value of every detail from the right one. None, or why it fails."""
    family, values, reason = task["source"].partition(":")[2], tuple(task["details"].values()), "calls alike"
    rng, name = random.Random(f"{seed} {family} {values}"), re.search(r"def (\w+)", task["ground_truth"])[1]
    for _ in range(REDRAWS):
        drawn = FAMILIES[family]["draw"](rng, task["details"])
        calls = [f"{name}({', '.join(map(repr, a if isinstance(a, tuple) else [a]))})" for a in drawn]
        compiled = [compile(c, "call", "eval") for c in calls]
        right = outputs(family, values, compiled)
        if len(set(calls)) < 10 or len(set(right)) == 1:
            continue
        alike = (d for d, wrong in wrong_values(family, values) if outputs(family, wrong, compiled) == right)
        if not (unseen := next(alike, None)):
            task["test_cases"] = {str(i): c for i, c in enumerate(calls, 1)}
            return None
        reason = f"no calls show {family}.{unseen}"
    return reason


def check_backend(box, task, seed):
    """Draw the calls of a draft and run it in the sandbox: (task, None, or why it is rejected)."""
    return task, draw_calls(task, seed) or reference_fault(box, task)


def reference_fault(box, task):
    """Why a reference is not usable: a call that fails, returns None or differs between two runs."""
    bad = sorted(set(box.check_reference(task).values()) - {"ok"})
    return f"reference: {bad[0]}" if bad else None


def check_page(renderer, task, seed=None):
    """Render the reference of a draft: (task, None, or why it is rejected)."""
    picture = renderer.render(task["ground_truth"])
    return task, picture.status if picture.status != "ok" else "blank" if picture.blank else None


# ---------------------------------------------------------------------------------------------------------------------
# Demonstrations: the scripted, imperfect agent

def demonstrate(task, questions, ask, waste, max_turns, rng):
    """One dialogue, as (dialogue_history, answer): questions about some details in random order, wasted turns among
    them, guesses, the answer. questions: of all tasks, the source of irrelevant ones."""
    family = task["source"].partition(":")[2]
    asked = [fact for fact in task["facts"] if rng.random() < ask]
    rng.shuffle(asked)
    if any(fact["detail"] == "purpose" for fact in asked) and rng.random() < ask:    # before all else
        asked.sort(key=lambda fact: fact["detail"] != "purpose")
    asked = asked[:max_turns - 1]
    foreign = sorted(set(questions) - {fact["question"] for fact in task["facts"]})
    exchanges, spare = [], max_turns - 1 - len(asked)
    for fact in [*asked, None]:  # None: the turn that answers
        while spare and (foreign or exchanges) and rng.random() < waste:
            spare -= 1
            repeat = exchanges and (not foreign or rng.random() < 0.5)
            exchanges.append(rng.choice(exchanges) if repeat else (rng.choice(foreign), "I do not know."))
        if fact:
            exchanges.append((fact["question"], fact["reply"]))
    guess = {d["name"]: rng.choices(list(d["values"]), value_weights(d))[0] for d in FAMILIES[family]["details"]}
    known = {fact["detail"]: task["details"].get(fact["detail"]) for fact in asked}
    answer = source_code(family, [known.get(name, value) for name, value in guess.items()]).strip()
    said = [task["problem_description"], *itertools.chain(*exchanges), f"{ANSWER_MARK}\n{answer}"]
    return [{"role": role, "content": text} for role, text in zip(itertools.cycle(["user", "assistant"]), said)], answer


def demonstrate_page(task, layout, ask, waste, max_turns, rng):
    """One dialogue, as (dialogue_history, answer): a page at random, then what the partner names is put right with
    probability `ask` each (or set to something else); with probability `waste` a page is shown again unchanged, with
    half of that the answer comes too early, else when nothing is left to name. layout: a page -> its layout."""
    from render import page_reply
    kind = task["source"].partition(":")[2]
    choices = PAGES[kind]["details"]
    right, values = [task["details"][c["name"]] for c in choices], [rng.choice(list(c["values"])) for c in choices]
    history, done = [{"role": "user", "content": task["problem_description"]}], False
    for turn in range(max_turns):
        page = page_source(kind, values)
        if done or turn == max_turns - 1 or (turn and rng.random() < waste / 2):
            return history + [{"role": "assistant", "content": f"{ANSWER_MARK}\n{page}"}], page
        reply = page_reply(layout(page), layout(task["ground_truth"]))
        history += [{"role": "assistant", "content": page}, {"role": "user", "content": reply}]
        told = [i for i, c in enumerate(choices) if values[i] != right[i] and re.search(c["told"], reply, flags=re.M)]
        done = not told
        if rng.random() >= waste:
            for i in told:
                values[i] = right[i] if rng.random() < ask else rng.choice(list(choices[i]["values"]))


# ---------------------------------------------------------------------------------------------------------------------
# Writing: candidates are drawn in order, checked side by side, and written in order until there are enough

def checked(check, candidates, out, at_once):
    """Yield check(candidate), which is (record, None or why it is rejected), in order; none more than may be needed.
    at_once: threads. Nobody waits for those still at work after an error or Ctrl-C: the process ends without them."""
    candidates, threads = iter(candidates), ThreadPoolExecutor(at_once)
    while batch := list(itertools.islice(candidates, min(BATCH, out.wanted - len(out.done)))):
        yield from threads.map(check, batch)


def write(out, verdicts, unit="task"):
    """Write the records that are not rejected, and count the others by reason."""
    rejected = Counter()
    with tqdm(total=out.wanted, initial=len(out.done), desc=out.path.name, unit=unit, mininterval=1) as bar:
        for record, reason in verdicts:
            if reason or out.key_of(record) in out.done:
                rejected[reason or "there before"] += 1
                continue
            if record["task_id"] is None:
                record["task_id"] = f"{record['domain']}-{out.path.stem}-{len(out.done):05d}"
            out.write(record)
            bar.update()
    print(f"wrote {len(out.done)} {unit}s to {out.path}; rejected {rejected.total()}{listed(rejected)}")
    if len(out.done) < out.wanted < math.inf:
        print(f"  only {len(out.done)} of the {out.wanted} asked for: there are no more", file=sys.stderr)


def listed(counts):
    return "".join(f"\n  {n} x {what}" for what, n in counts.most_common())


def open_output(path, wanted, args, settings, inputs, key):
    """An Output, of which `wanted` is the number of records when it is finished."""
    out = Output(path, settings, inputs, args.overwrite, key)
    out.wanted = wanted
    if len(out.done) > wanted:
        die(f"{path} already holds {len(out.done)} records, more than the {wanted} asked for; use --overwrite or "
            "another --out")
    return out


def open_splits(args, settings, inputs, key=("ground_truth",)):
    """{split: Output} of the splits asked for. Whatever stands in the way of one is said before any is changed."""
    folder = Path(args.out or f"data/{args.domain}")
    return {split: open_output(folder / f"{split}.jsonl", wanted, args, settings, inputs, key)
            for split, wanted in args.sizes.items() if wanted}


def write_splits(args, settings, inputs, drafts, check):
    """drafts(split): an iterable of tasks; check(task): the task completed, and None or why it is rejected."""
    for split, out in open_splits(args, settings, inputs).items():
        new = (task for task in drafts(split) if out.key_of(task) not in out.done)
        write(out, checked(check, new, out, 4 * args.workers))


def open_renderer(args):
    from render import Renderer
    try:
        return Renderer(browsers=args.workers, remember=True)
    except RuntimeError as problem:
        die(str(problem))


def write_procedural(args):
    known = PAGES if args.domain == "frontend" else FAMILIES
    families = args.families.split(",") if args.families else list(known)
    if unknown := [f for f in families if f not in known]:
        die(f"there is no family {unknown[0]!r}; there are {', '.join(known)}")
    if args.domain == "frontend":
        draw, draft, check, checker = draw_pages, page_draft, check_page, open_renderer(args)
    else:  # ample time: the programs are quick, and a busy machine must not change which tasks are kept
        draw, draft, check = draw_functions, partial(backend_draft, request=args.request), check_backend
        checker = Sandbox(workers=args.workers, call_timeout=10, program_timeout=60)
    with checker:
        settings = {"source": "procedural", "families": families, "seed": args.seed, "request": args.request}
        write_splits(args, settings, {}, lambda split: itertools.starmap(draft, draw(families, split, args.seed)),
                     lambda task: check(checker, task, args.seed))


def read_websight(path):
    """Yield (idea, page) of WebSight rows, from JSON lines or parquet; pictures that are gone become picsum's."""
    from render import rewrite_images
    rows = read(path, "row")
    try:
        if Path(path).suffix == ".parquet":
            from pyarrow.parquet import ParquetFile
            batches = ParquetFile(path).iter_batches(1000, columns=list(SCHEMA["row"][2]))
            rows = (row for batch in batches for row in batch.to_pylist())
        for row in rows:
            yield (row["llm_generated_idea"] or "").strip(), rewrite_images((row["text"] or "").strip())
    except (ImportError, OSError, ValueError, KeyError) as problem:
        die(f"{path}: no rows with llm_generated_idea and text ({problem}); parquet needs: pip install pyarrow")


def websight_drafts(path, split, by):
    """Yield the tasks of one split: the idea is the request, the page the reference. by: "idea", its hash decides;
    "row", the first 10,000 rows are train and the rest test. Either way a page that several rows hold belongs to the
    split of the first of them."""
    split_of_page = {}  # hash -> split
    for row, (idea, page) in enumerate(read_websight(path)):
        own = split_of("websight", [idea]) if by == "idea" else "train" if row < 10_000 else "test"
        if idea and "<html" in page.lower() and split_of_page.setdefault(hashed(page), own) == own == split:
            yield new_task("frontend", idea, page, source="websight")


def write_websight(args):
    next(read_websight(args.input), None)  # what is wrong with the file is said before browsers start
    with open_renderer(args) as renderer:
        write_splits(args, {"source": "websight", "split_by": args.split_by}, {"--in": args.input},
                     lambda split: websight_drafts(args.input, split, args.split_by),
                     lambda task: check_page(renderer, task))


def of_known_family(task):
    """A task, if its details and facts are those of a family or kind of page above; else ValueError."""
    family = (PAGES if task["domain"] == "frontend" else FAMILIES).get(str(task.get("source")).partition(":")[2])
    values, details = {d["name"]: d["values"] for d in family["details"]} if family else {}, task.get("details") or {}
    known = values and details.keys() == values.keys() and all(details[d] in list(values[d]) for d in values)
    told = {fact.get("detail") for fact in task.get("facts") or ()} - {"purpose"}
    if not known or task["domain"] == "backend" and told != values.keys():
        raise ValueError("demonstrations need a procedural task with the details and facts of its family, found source "
                         f"{task.get('source')!r} with details {details}; generate_tasks.py writes such tasks")
    return task


def write_demonstrations(args):
    from rollout import system_prompt    # the instructions that an agent has in rollouts
    path, pages = args.input or f"data/{args.domain}/{args.split}.jsonl", args.domain == "frontend"
    tasks = list(read(path, "task", args.domain, unique=True, each=of_known_family))
    settings = {"ask": args.ask, "waste": args.waste, "max_turns": args.max_turns, "seed": args.seed}
    out = open_output(args.out or f"data/{args.domain}/demonstrations.jsonl", args.demonstrations, args, settings,
                      {"--in": path}, ("task_id", "sample"))
    with open_renderer(args) if pages else nullcontext() as renderer:
        act, known = (demonstrate_page, lru_cache(maxsize=20000)(renderer.layout)) if pages else (
            demonstrate, {fact["question"] for task in tasks for fact in task["facts"]})

        def dialogue(i):
            task, sample = tasks[i % len(tasks)], i // len(tasks)
            rng = random.Random(f"{args.seed} {task['task_id']} {sample}")
            history, answer = act(task, known, args.ask, args.waste, args.max_turns, rng)
            return {"task_id": task["task_id"], "sample": sample, "domain": task["domain"], "task": task,
                    "system": system, "dialogue_history": history, "answer": answer, "finish": "answered",
                    "model": "scripted", "simulator": "scripted", "seed": args.seed}, None

        system = system_prompt(args)
        write(out, checked(dialogue, range(len(out.done), args.demonstrations), out, 4 * args.workers), "demonstration")


# ---------------------------------------------------------------------------------------------------------------------
# Released ColBench files (--source colbench)

# The prompt of a released turn, whose agent is a Llama 3.1: its chat template (that of Llama 3 adds no dates).
CHAT_TEMPLATE = re.compile(
    r"(?:<\|begin_of_text\|>)?<\|start_header_id\|>system<\|end_header_id\|>\n\n"
    r"(?:Cutting Knowledge Date: [^\n<]*\nToday Date: [^\n<]*\n\n)?(.*?)<\|eot_id\|>"
    r"<\|start_header_id\|>user<\|end_header_id\|>(.*?)<\|eot_id\|>", re.S)


def recover_system(history):
    """The agent's instructions in a released dialogue, from the `input` of its turns (the prompt after the template).
    None where they are not certain: no `input`, an unknown template, another first message than the dialogue's, text
    with a template's marks in it, or turns that differ."""
    found = set()
    for prompt in (turn["input"] for turn in history if isinstance(turn.get("input"), str)):
        m = CHAT_TEMPLATE.match(prompt)
        sure = m and m[2].strip() == history[0]["content"].strip() and not re.search(r"<\|\w+\|>", m[1])
        found.add(m[1].strip() if sure else None)
    return found.pop() if len(found) == 1 else None


def as_ours(record):
    """A released task or trajectory as ours. A reward goes to `released_reward`: evaluate.py scores it again."""
    offline = "dialogue_history" in record
    task = {"task_id": record["task_id"], "domain": record["domain"], "source": "colbench",
            **(record["task"] if offline else record)}
    if record["domain"] == "backend" and not task["test_cases"]:
        raise ValueError("the task has no test_cases")
    if not offline:
        return task
    record["released_reward"] = record.pop("reward", None)
    if ANSWER_MARK in (record["answer"] or ""):
        record["answer"] = parse_response(record["answer"])[1]
    system = record.get("system") or recover_system(record["dialogue_history"]) or ""
    return record | {"task": task, "system": system, "model": "released", "simulator": "released", "seed": None}


def failures(box, task):
    """Which calls of a released reference fail, by mode: {"module": {label: status}, "released": {...}}, {} if none."""
    module = {k: v for k, v in box.check_reference(task).items() if v not in ("ok", "none")}
    released = {k: "returns None" if v == "wrong" else v.removeprefix("reference ")
                for k, v in box.score(task, task["ground_truth"], mode="released").items() if v != "passed"}
    return {mode: failed for mode, failed in (("module", module), ("released", released)) if failed}


def write_colbench(args):
    """The first --train, --val or --test lines are taken (the paper's test set is the first 1000 tasks), by default all
    of trajectories. The samples of a task, which lie num_tasks lines apart, are numbered in their order."""
    with open(args.input, "rb") as file:
        offline = b'"dialogue_history"' in file.readline()
    kind, limit, path = (
        ("trajectory", getattr(args, args.split), f"runs/{args.run_name}/{args.split}.trajectories.jsonl") if offline
        else ("task", args.sizes[args.split], f"data/{args.domain}/{args.split}.jsonl"))
    out = open_output(args.out or path, limit or math.inf, args, {"source": "colbench"}, {"--in": args.input},
                      SCHEMA[kind][1])
    known = {}  # task_id -> failures

    def check(record):
        task = record.get("task", record)
        if box and task["task_id"] not in known:
            known[task["task_id"]] = failures(box, task)
        if known.get(task["task_id"]):
            task["reference_failures"] = known[task["task_id"]]
        return record, None

    records = itertools.islice(read(args.input, kind, args.domain, unique=not offline, each=as_ours), limit)
    new = (record for record in records if out.key_of(record) not in out.done)
    with Sandbox(workers=args.workers) if args.domain == "backend" else nullcontext() as box:
        write(out, checked(check, new, out, args.workers), "record")
    recovered, faulty = 0, {}    # task_id -> {mode: failures}
    for record in out.records():
        task = record.get("task", record)
        faulty.setdefault(task["task_id"], task.get("reference_failures", {}))
        recovered += bool(record.get("system"))
    if args.domain == "backend":
        for mode, how in ("module", "as modules"), ("released", "as the released evaluation does"):
            faults = Counter(min(failed[mode].values()) for failed in faulty.values() if mode in failed)
            print(f"{faults.total()} of {len(faulty)} references fail their own tests when run {how}{listed(faults)}")
    if offline:
        print(f"the agent's instructions were found in `input` and kept as `system` for {recovered} of {len(out.done)} "
              "trajectories; rollout.py --candidates takes --system FILE for the others")


# ---------------------------------------------------------------------------------------------------------------------
# The families. A detail has one question, the keywords by which a simulator recognises it, a reply ({} is the value)
# and values: a list (the word stands in the reply and in the code alike) or a dict from the reply's word to the code's.
# `usual` is the share of tasks that have the first value: a default that a guess gets right often. A question must hit
# the keywords of its own detail most often, and none in families without that detail. draw(rng, values) returns the
# arguments of ten calls: tuples, or values where there is one. A family is one block: its draw function and its entry.

FAMILIES = {}


def family(name, draw, about, details, code):
    FAMILIES[name] = {"about": about, "draw": draw, "details": details, "code": code}


def detail(name, question, keywords, reply, values, usual=None):
    values = {str(v): str(v) for v in values} if not isinstance(values, dict) else values
    return {"name": name, "question": question, "keywords": keywords.split(), "reply": reply, "values": values,
            "usual": usual}


NUMBERS = [5, 10, 15, 20, 25, 30, 40, 50, 60, 80]
FIELDS = ["price", "weight", "points", "stock", "size", "age", "hours", "rating"]
FIELD = detail("field", "Which field should I use?", "field column", 'The field is "{}".', FIELDS)
THRESHOLD = detail("threshold", "What is the threshold?", "threshold cutoff limit", "The threshold is {}.", NUMBERS)
COMPARISON = detail("comparison", "Is it above or below?", "above below inclusive exactly",
                    "The comparison is {}.", {"above": ">", "below": "<", "at least": ">=", "at most": "<="})
DIGITS = detail("digits", "How many digits are kept?", "digits decimals decimal rounded rounding",
                "The digits kept are {}.", [1, 2, 3])
EMPTY = detail("empty", "What if nothing passes?", "nothing empty none",
               "The result is then {}.", [0, 1, 100], usual=0.7)
CASE = detail("case", "Is it upper or lower case?", "case upper lower uppercase lowercase",
              "The case is {}.", ["upper", "lower"])
FLOOR = detail("floor", "What is the lowest score?", "lowest floor minimum negative",
               "The lowest score is {}.", [0, 5, 10, 20], usual=0.7)


def only(known, values, **changes):
    """A shared detail with other values: same question, same keywords."""
    return {**known, **changes, "values": {v: known["values"].get(v, v) for v in map(str, values)}}


WORDS = "amber birch cedar delta ember fern grove hazel iris jade kelp lotus maple nova".split()


def around(rng, t, n):
    """n numbers at and beside t, and a few far from it."""
    return [rng.choice([t - 1, t, t, t + 1, t + 2, rng.randint(0, 2 * t + 20), rng.randint(0, 100) + 0.5])
            for _ in range(n)]


def rows_of(rng, field, values):
    """Rows with a name, the field in question and one more field."""
    other = rng.choice([f for f in FIELDS if f != field])
    return [{"name": rng.choice(WORDS), field: v, other: rng.randint(0, 90)} for v in values]


def draw_rows(rng, v):
    """Rows whose field lies at the threshold: no row, one row, few rows, many rows."""
    t = int(v["threshold"])
    lists = [[], [t - 1], [t], [t + 1]] + [around(rng, t, rng.randint(2, 6)) for _ in range(6)]
    return [rows_of(rng, v["field"], values) for values in lists]


# Simple families: few words; the value is the last word of the reply and the same word in the code.
family("total", draw_rows, "Write total(rows): add up one field over the rows that pass a threshold.", [
    FIELD, COMPARISON, THRESHOLD, EMPTY], """
def total(rows):
    kept = [r["$field"] for r in rows if r["$field"] $comparison $threshold]
    if not kept:
        return $empty
    return sum(kept)
""")


family("average", draw_rows,
       "Write average(rows): the average of one field over the rows above a threshold, rounded.", [
    FIELD, THRESHOLD, DIGITS, EMPTY], """
def average(rows):
    kept = [r["$field"] for r in rows if r["$field"] > $threshold]
    if not kept:
        return $empty
    return round(sum(kept) / len(kept), $digits)
""")


family("best", draw_rows, "Write best(rows): the name of the best row above a threshold.", [
    FIELD, THRESHOLD,
    detail("direction", "Is the largest or smallest best?", "largest smallest biggest",
           "The best is the {}.", {"largest": "max", "smallest": "min"}),
    only(EMPTY, ["none", "nobody", "missing", "blank"], reply='The result is then "{}".')], """
def best(rows):
    kept = [r for r in rows if r["$field"] > $threshold]
    if not kept:
        return "$empty"
    return $direction(kept, key=lambda r: r["$field"])["name"]
""")


def draw_fee(rng, v):
    t = int(v["threshold"])
    numbers = [t - 1, *rng.sample(range(t + 2, 2 * t + 40), 3), *rng.sample(range(t - 1), 2)]
    return [(t, False), (t, True), (t + 1, False), (t + 1, True)] + [(n, rng.random() < 0.5) for n in numbers]

family("fee", draw_fee, "Write fee(weight, far): small fee, large fee above a threshold, extra fee if far.", [
    THRESHOLD,
    detail("small", "What is the small fee?", "small", "The small fee is {}.", [1, 2, 3, 4, 6, 8]),
    detail("large", "What is the large fee?", "large", "The large fee is {}.", [12, 14, 16, 18, 20, 25]),
    detail("extra", "What is the extra fee?", "extra surcharge", "The extra fee is {}.", [5, 7, 9, 10], usual=0.7)], """
def fee(weight, far):
    cost = $small
    if weight > $threshold:
        cost = $large
    if far:
        cost = cost + $extra
    return cost
""")


def draw_score(rng, v):
    cap, free = int(v["cap"]), int(v["grace"])
    edges = [(cap + rng.randint(1, 30), 0), (100, rng.randint(0, free)), (cap - 1, free), (cap - 1, free + 1),
             (rng.randint(0, 9), free + 9), (rng.randint(1, 4), free + 1)]
    return edges + [(rng.randint(40, 110), rng.randint(0, free + 4)) for _ in range(4)]

family("score", draw_score,
       "Write score(points, days): points less a penalty for late days, between the lowest and highest score.", [
    detail("penalty", "What does a late day cost?", "late penalty cost",
           "A late day costs {}.", [1, 2, 3, 4, 5, 6, 8, 10]),
    detail("grace", "How many days are free?", "free grace", "The free days are {}.", [1, 2, 3, 4]),
    detail("cap", "What is the highest score?", "highest cap maximum",
           "The highest score is {}.", [50, 60, 70, 75, 80, 85, 90, 95]),
    FLOOR], """
def score(points, days):
    late = max(0, days - $grace)
    points = points - late * $penalty
    points = min(points, $cap)
    return max(points, $floor)
""")


def draw_code(rng, v):
    return [(rng.choice(WORDS).title() + rng.choice(WORDS), n) for n in [0, 1, 9, *rng.sample(range(10, 99), 7)]]

family("code", draw_code, "Write code(name, number): a prefix, the first letters of the name, and a number.", [
    detail("prefix", "What is the prefix?", "prefix",
           'The prefix is "{}".', ["item", "box", "lot", "unit", "part", "bin", "kit", "set"]),
    detail("letters", "How many letters are taken?", "letters", "The letters taken are {}.", [1, 2, 3, 4, 5, 6]),
    CASE,
    detail("first", "Where do the numbers start?", "start numbers numbering",
           "The numbers start at {}.", [10, 20, 30, 40, 50, 60, 80, 100])], """
def code(name, number):
    head = name[: $letters].$case()
    tail = str(number + $first)
    return "$prefix" + head + tail
""")


# The others: five or six details, replies in whole sentences, longer answers.

def draw_group(rng, v):
    names = rng.sample(["north", "south", "east", "west"], 3)
    small = int(v["small"])

    def row(group, amount):
        gone = rng.choice([{}, {v["key"]: ""}, {v["key"]: None}])
        return {**({v["key"]: group} if group else gone), v["amount"]: amount, "id": rng.randint(1, 99)}
    lists = [[], [row(None, small), row(names[0], small)], [row(names[0], small - 1), row(names[1], small + 1)]]
    return lists + [[row(rng.choice([*names, None]), rng.choice([1, small - 1, small, small + 1, rng.randint(0, 50)]))
                     for _ in range(rng.randint(3, 7))] for _ in range(7)]

family("group", draw_group,
       "Write group_totals(rows), which sums up a list of records (dicts) per group and returns a list of [group, "
       "total] pairs for a report. Small groups do not belong in the report.", [
    detail("key", "By which key are records grouped?", "grouped group key",
           'They are grouped by "{}".', ["region", "team", "city", "kind"]),
    detail("amount", "Which entry of a record is summed up?", "summed sum entry",
           'The entry "{}" is summed up.', ["amount", "units", "seconds", "visits"]),
    detail("missing", "What about records without a group?", "without group", "Records without a group {}.",
           {'are counted under "other"': 'key = "other"', 'are counted under "unknown"': 'key = "unknown"',
            "are skipped": "continue"}),
    detail("small", "From which total on is it reported?", "reported report",
           "Groups are reported from a total of {} on.", [1, 5, 10, 20, 40]),
    detail("order", "In which order are groups listed?", "order sorted listed", "The groups are listed {}.",
           {"alphabetically": "p[0]", "by total, the largest first": "-p[1]", "by total, the smallest first": "p[1]",
            "in order of first appearance": "0"})], """
def group_totals(rows):
    totals = {}
    for r in rows:
        key = r.get("$key")
        if not key:
            $missing
        totals[key] = totals.get(key, 0) + r["$amount"]
    pairs = [[k, t] for k, t in totals.items() if t >= $small]
    return sorted(pairs, key=lambda p: $order)
""")


def draw_tiers(rng, v):
    a, b = int(v["lower"]), int(v["upper"])
    quantities = [0, a - 1, a, a + 1, b - 1, b, b + 1, rng.randint(1, a), rng.randint(a, b), rng.randint(b, 2 * b)]
    return [(q, round(rng.uniform(1, 30), 4)) for q in quantities]

family("tiers", draw_tiers,
       "Write bulk_price(quantity, unit), which returns the price of an order: quantity times the unit price, with "
       "a quantity discount in two steps.", [
    detail("lower", "From which quantity on is the first discount given?", "quantity first",
           "The first discount begins at a quantity of {}.", [6, 10, 12, 15]),
    detail("upper", "From which quantity on is the second discount given?", "quantity second",
           "The second discount begins at a quantity of {}.", [30, 40, 50, 100]),
    detail("less", "How many percent is the first discount?", "percent percentage first",
           "The first discount is {} percent.", [5, 8, 10]),
    detail("more", "How many percent is the second discount?", "percent percentage second",
           "The second discount is {} percent.", [15, 20, 25]),
    detail("reach", "Does just meeting it earn the discount?", "meeting meets exactly inclusive",
           "An order of exactly that quantity {}.", {"gets the discount": ">=", "does not get it yet": ">"}),
    DIGITS], """
def bulk_price(quantity, unit):
    discount = 0
    if quantity $reach $lower:
        discount = $less
    if quantity $reach $upper:
        discount = $more
    return round(quantity * unit * (100 - discount) / 100, $digits)
""")


def draw_rental(rng, v):
    starts, most = rng.sample(range(300), 10), int(v["most"]) // int(v["rate"])
    lengths = [0, 1, 2, 3, -rng.randint(1, 9), 7, most, most + 1, rng.randint(3, 12), 2 * most + rng.randint(3, 9)]
    year = date(2024, 1, 1)
    return [(str(year + timedelta(s)), str(year + timedelta(s + n))) for s, n in zip(starts, lengths)]

family("rental", draw_rental,
       'Write rental(start, end), which returns what a rental from one date to another costs. Both dates are '
       'strings such as "2024-03-09".', [
    detail("rate", "What is the price of a rented day?", "price rented daily",
           "Each charged day costs {}.", [8, 12, 15, 20, 25]),
    detail("last", "Is the day of return charged?", "return returned",
           "The day of return {}.", {"is charged like the others": "1", "is not charged": "0"}),
    detail("week", "Are weekends charged?", "weekend weekends saturday saturdays sunday sundays", "Of the week, {}.",
           {"every day is charged": "7", "Sundays are not charged": "6", "Saturdays and Sundays are not charged": "5"}),
    detail("least", "How few days may be charged?", "few fewest minimum",
           "The number of days charged is at least {}.", [1, 2, 3]),
    detail("most", "Is the bill of a rental capped?", "bill capped ceiling",
           "A rental costs at most {}.", [150, 200, 240, 300]),
    detail("swapped", "What if the dates are swapped?", "swapped reversed before",
           "If the end lies before the start, {}.",
           {"the result is 0": "return 0", "the dates are swapped": "first, last = last, first",
            "the result is -1": "return -1"})], """
from datetime import date, timedelta

def rental(start, end):
    first, last = date.fromisoformat(start), date.fromisoformat(end)
    if last < first:
        $swapped
    days = [first + timedelta(n) for n in range((last - first).days + $last)]
    charged = [d for d in days if d.weekday() < $week]
    return min($most, $rate * max($least, len(charged)))
""")


def draw_clean(rng, v):
    def text():
        words = [rng.choice(WORDS[:6] + ["42", "7up", "x_y", "a-b", "don't", "Ok!"]) for _ in range(rng.randint(1, 6))]
        words += [rng.choice(words)] if rng.random() < 0.5 else []
        return "  ".join(rng.choice([w, w.title(), w.upper()]) for w in words)
    return ["", rng.choice(["12 345", "?! ...", "_ __"]), "cat", "go go go", *(text() for _ in range(6))]

family("clean", draw_clean,
       "Write clean(text), which turns free text that people typed into a short tidy name: unwanted characters go, "
       "words are joined, long names are cut.", [
    detail("unwanted", "Which characters are unwanted?", "unwanted removed stripped", "{}.",
           {"Digits are unwanted": "not c.isdigit()",
            "Everything but letters, digits and spaces is unwanted": "c.isalnum() or c.isspace()",
            "Only underscores are unwanted": 'c != "_"'}),
    only(CASE, ["upper", "lower", "title"]),
    detail("repeats", "What about words that repeat?", "repeat repeats repeated duplicates",
           "Repeated words {}.", {"stay": "text.split()", "are kept only once": "list(dict.fromkeys(text.split()))"}),
    detail("joiner", "What joins the words?", "joins joined joiner separator",
           'The words are joined by "{}".', ["-", "_", ".", "+"]),
    detail("length", "How long may the name be?", "long length cut",
           "The name is cut to {} characters.", [8, 10, 12, 16, 20]),
    detail("blank", "What if no words are left?", "left blank",
           'If no words are left, the name is "{}".', ["empty", "unknown", "untitled"])], """
def clean(text):
    text = "".join(c for c in text if $unwanted)
    text = text.$case()
    words = $repeats
    if not words:
        return "$blank"
    return "$joiner".join(words)[:$length]
""")


def draw_quiz(rng, v):
    calls = []
    for kind in ["none", "perfect", "wrong", "blank", "shouted", *["mixed"] * 5]:
        key = [rng.choice("abcd") for _ in range(0 if kind == "none" else rng.randint(4, 12))]
        given = {"perfect": key, "wrong": ["e"] * len(key), "blank": [""] * len(key), "shouted": [*map(str.upper, key)]}
        mixed = [rng.choice([k, k, k, k, k.upper(), rng.choice("abcd"), ""]) for k in key]
        calls.append((given.get(kind, mixed), key))
    return calls

family("quiz", draw_quiz,
       "Write grade_quiz(answers, key), which returns the points of a multiple-choice sheet. answers and key are "
       "lists of letters; an empty string is a question left out.", [
    detail("right", "How many points does a right answer give?", "right correct",
           "A right answer gives {}.", [2, 3, 4, 5]),
    detail("wrong", "How many points does a wrong answer lose?", "wrong incorrect",
           "A wrong answer loses {}.", [0, 1, 2, 3]),
    detail("blank", "What does an omitted question give?", "omitted unanswered blank",
           "A question left out gives {}.", {"nothing": "0", "1 point": "1", "minus 1 point": "-1"}),
    detail("match", "Do capitals matter?", "capitals capital capitalization", "Small and capital letters {}.",
           {"count as the same": "given.lower() == right.lower()", "count as different": "given == right"}),
    detail("bonus", "Is there a bonus for a perfect sheet?", "bonus perfect",
           "A perfect sheet, which an empty one is not, gets a bonus of {}.", [0, 5, 10, 20], usual=0.4),
    only(FLOOR, [0, 2, 5])], """
def grade_quiz(answers, key):
    points, hits = 0, 0
    for given, right in zip(answers, key):
        if given == "":
            points += $blank
        elif $match:
            points += $right
            hits += 1
        else:
            points -= $wrong
    if key and hits == len(key):
        points += $bonus
    return max($floor, points)
""")


def draw_intervals(rng, v):
    gap, short = int(v["gap"]), int(v["shortest"])

    def spans():
        at, result = rng.randint(0, 9), []
        for _ in range(rng.randint(1, 6)):
            end = at + rng.choice([1, short - 1, short, short + 1, rng.randint(1, 9)])
            result.append((end, at) if rng.random() < 0.2 else (at, end))
            at = end + rng.choice([-1, gap - 1, gap, gap + 1, gap + 2, rng.randint(0, 9)])
        return rng.sample(result, len(result))
    return [[], *(spans() for _ in range(9))]

family("intervals", draw_intervals,
       "Write busy(spans), which merges the [start, end] pairs of a calendar into busy periods and reports on them.", [
    detail("gap", "How far apart may spans be and still merge?", "apart", "Spans may be {} apart.", [1, 2, 3, 4, 5, 6]),
    detail("touch", "Is a hole of just that size bridged?", "bridged exactly inclusive",
           "Spans exactly that far apart {}.", {"merge": "<=", "stay separate": "<"}),
    detail("reversed", "What about spans that run backwards?", "backwards reversed", "Spans whose end comes first {}.",
           {"are turned round": "[min(s), max(s)] for s in spans",
            "are left out": "list(s) for s in spans if s[0] <= s[1]"}),
    detail("shortest", "How short may a busy period be?", "short shortest",
           "Merged periods shorter than {} are dropped.", [2, 3, 4, 5, 6, 8, 10, 12]),
    detail("result", "What is the output of busy?", "output result", "It returns {}.",
           {"the list of merged periods": "merged", "how many periods there are": "len(merged)",
            "the total length of the periods": "sum(e - s for s, e in merged)",
            "the length of the longest period, else 0": "max((e - s for s, e in merged), default=0)"})], """
def busy(spans):
    merged = []
    for start, end in sorted($reversed):
        if merged and start - merged[-1][1] $touch $gap:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    merged = [[s, e] for s, e in merged if e - s >= $shortest]
    return $result
""")


def draw_leaders(rng, v):
    lists = [[]]
    for _ in range(9):
        numbers = around(rng, int(v["threshold"]), rng.randint(1, 7))
        rows = rows_of(rng, v["field"], numbers + rng.choices(numbers, k=2))
        names = rng.sample(WORDS, len(rows))
        lists.append([{**r, "name": name, "age": rng.randint(18, 70)} for r, name in zip(rows, names)])
    return lists

family("leaders", draw_leaders,
       "Write leaders(rows), which returns the names for the top of a leader board, the highest first. Rows are "
       "dicts with a name, an age and some numbers.", [
    only(FIELD, ["price", "points", "stock", "size", "hours", "rating"]),
    only(THRESHOLD, NUMBERS, reply="The threshold to be listed is {}."),
    detail("reach", "Is a row just on the line kept?", "line exactly inclusive",
           "Exactly the threshold {}.", {"is enough": ">=", "is not enough": ">"}),
    detail("places", "How many places does the board have?", "places board top", "The board has {} places.", [2, 3, 4]),
    detail("ties", "How are ties resolved?", "ties tie tied", "Ties are ordered {}.",
           {"by name": 'r["name"]', "by age, the youngest first": 'r["age"]', "as the rows came": "0"})], """
def leaders(rows):
    kept = [r for r in rows if r["$field"] $reach $threshold]
    kept.sort(key=lambda r: (-r["$field"], $ties))
    return [r["name"] for r in kept[:$places]]
""")


def draw_window(rng, v):
    lengths = [0, 1, int(v["width"]) - 1, int(v["width"]), *(rng.randint(3, 10) for _ in range(6))]
    return [[None if rng.random() < 0.15 else round(rng.uniform(0, 50), 4) for _ in range(n)] for n in lengths]

family("window", draw_window,
       "Write smooth(values), which returns a sliding statistic over a list of sensor readings, some of which may "
       "be None.", [
    detail("width", "How many readings does it span?", "span width window",
           "The window spans {} readings.", [2, 3, 4, 5, 6, 7]),
    detail("statistic", "Which statistic is taken?", "statistic mean median", "The statistic is {}.",
           {"the mean": "sum(part) / len(part)", "the largest": "max(part)", "the smallest": "min(part)",
            "the range": "max(part) - min(part)"}),
    detail("gaps", "How are missing readings treated?", "missing gaps", "Missing readings {}.",
           {"are skipped": "continue", "count as 0": "v = 0",
            "repeat the reading before, or 0": "v = filled[-1] if filled else 0"}),
    detail("partial", "What happens until the window is full?", "until full partial incomplete",
           "Until the window is full, {}.", {"the readings so far are used": "0", "nothing is returned": "$width - 1"}),
    DIGITS], """
def smooth(values):
    filled = []
    for v in values:
        if v is None:
            $gaps
        filled.append(v)
    result = []
    for i in range($partial, len(filled)):
        part = filled[max(0, i - $width + 1):i + 1]
        result.append(round($statistic, $digits))
    return result
""")


def draw_parse(rng, v):
    def part():
        name = rng.choice(["size", "Size", "color", "Mode", "depth", ""])
        value = rng.choice(["7", "red", "Big one", "x=1", "a:b", "p,q", "m;n", "~", ""])
        return name + (rng.choice([v["equals"], f" {v['equals']} "]) + value if rng.random() < 0.8 else "")
    return ["", *(v["pairs"].join(part() for _ in range(rng.randint(1, 6))) for _ in range(9))]

family("parse", draw_parse,
       "Write read_settings(line), which turns one line of settings, pairs of a name and a value, into a dict of "
       "strings; what has no name is left out.", [
    detail("pairs", "What stands between two pairs?", "pairs between",
           'Between two pairs stands "{}".', [";", ",", "|", "&"]),
    detail("equals", "What separates name and value?", "separates assignment",
           'Between name and value stands "{}".', ["=", ":", "~"]),
    detail("twice", "What if a name comes twice?", "twice duplicate again", "If a name comes twice, {}.",
           {"the first value stays": "result.setdefault(name, value)", "the last value stays": "result[name] = value",
            'both values stay, joined by "/"':
                'result[name] = result[name] + "/" + value if name in result else value'}),
    detail("spelling", "How are names spelled?", "spelled spelling spelt",
           "Names are spelled {}.", {"as they came": "", "in small letters": ".lower()", "in capitals": ".upper()"}),
    detail("flag", "What is the value of a name standing alone?", "alone",
           'A name standing alone has the value "{}".', ["on", "yes", "true"]),
    detail("hollow", "What if a value is only whitespace?", "whitespace empty",
           'An empty value is stored as "{}".', ["blank", "default", "-"])], """
def read_settings(line):
    result = {}
    for part in line.split("$pairs"):
        name, found, value = part.partition("$equals")
        name, value = name.strip()$spelling, value.strip()
        if not name:
            continue
        if not found:
            value = "$flag"
        elif not value:
            value = "$hollow"
        $twice
    return result
""")


def draw_tax(rng, v):
    a, b = int(v["allowance"]), int(v["allowance"]) + int(v["bracket"])
    return [0, a - 1, a + rng.randint(1, 60), b, b + rng.randint(1, 60), *(rng.randint(a, b) for _ in range(2)),
            *(rng.randint(b, 3 * b) for _ in range(3))]

family("tax", draw_tax,
       "Write tax(income), which returns the tax owed on an income: nothing up to an allowance, one rate for the "
       "first bracket above it, a higher rate for the rest, in whole units.", [
    detail("allowance", "What is the allowance?", "allowance exempt",
           "The allowance is {}.", [500, 1000, 1200, 1500, 2000]),
    detail("bracket", "How far does the bracket reach?", "bracket reach",
           "The first bracket is {} wide.", [3000, 4000, 5000, 8000]),
    detail("rate", "What is the basic rate?", "basic rate", "The rate in the bracket is {} percent.", [5, 8, 10, 12]),
    detail("higher", "What is the higher rate?", "higher rate", "The higher rate is {} percent.", [20, 25, 30, 40]),
    detail("whole", "How does tax become whole units?", "whole integer rounded rounding", "It is rounded {}.",
           {"down": "int(owed)", "up": "math.ceil(owed)", "to the nearest, halves up": "int(owed + 0.5)"})], """
import math

def tax(income):
    base = max(0, income - $allowance)
    inside = min(base, $bracket)
    owed = (inside * $rate + (base - inside) * $higher) / 100
    return $whole
""")


# ---------------------------------------------------------------------------------------------------------------------
# The kinds of pages: a request, the hidden choices, a page with a slot for each. A partner who sees both pages names
# the differences (render.compare_pages). `told` recognises the sentences about a choice, for the scripted agent; a
# test holds that a wrong choice is told, and told by its own sentence. shop, event, login, profile and news are the
# simple kinds: few words, about fifty tokens of the tiny model.

PAGES = {}
BRIGHT = {c: f"bg-{c}-500" for c in ["red", "yellow", "green", "blue", "purple", "pink"]} | {
    "dark gray": "bg-gray-800", "dark blue": "bg-blue-900"}
PALE = {"white": "bg-white"} | {f"light {c}": f"bg-{c}-200" for c in ["gray", "yellow", "green", "blue", "pink"]}
INK = {"black": "text-black"} | {c: f"text-{c}-600" for c in ["red", "green", "blue", "purple"]}


def choice(name, told, values):
    return {"name": name, "told": told, "values": values if isinstance(values, dict) else {v: v for v in values}}


def told_by(sentence, usual=None):
    """A function (name, what, values) -> a choice that is told by a sentence about `what`."""
    return lambda name, what, values=usual: choice(name, f"^The {what} {sentence}", values)


colour_of = told_by(r"should (be (?!taller|less tall|wider|narrower|larger|smaller|bold|in |on )|have no)", BRIGHT)
letters_of = told_by(r"should be in [\w ]+ letters", INK)
size_of = told_by("should be (larger|smaller)", {"small": "text-3xl", "large": "text-7xl"})
place_of = told_by("should be (in the centre|on the)", {"left": "text-left", "centre": "text-center",
                                                        "right": "text-right"})
words_of = told_by("should say")
layout_of = told_by("should stand")
presence_of = told_by("(is missing|should not be there)")


def order_of(name, a, b):
    """Two pieces in either order; a piece may hold slots of other choices."""
    return choice(name, "^The section .* should (come before|stand above)", {"first": a + b, "second": b + a})


PAGE_COLOUR = choice("page", "^The page's background should be", PALE)
TITLE, BUTTON, TEXT = (f'{what} "[^"]*"' for what in ("main heading", "button", "text"))

SPORTS = '<section class="$first p-20"><h2 class="text-4xl">Sports</h2></section>'
WEATHER = '<section class="$second p-20"><h2 class="text-4xl">Weather</h2></section>'
DISHES = ['<section><h2 class="$ink $size">Starters</h2><p class="p-6 text-xl">Soup of the day</p></section>',
          '<section><h2 class="$ink $size">Desserts</h2><p class="p-6 text-xl">Apple cake</p></section>']
TRIPS = ['<section class="$sea p-16"><h2 class="text-4xl">By the sea</h2><p>Two weeks of sand and salt</p></section>',
         '<section class="$hills p-16"><h2 class="text-4xl">In the hills</h2><p>Nine days on foot</p></section>']
PHOTO = '<img src="https://picsum.photos/id/48/400/300">'


def page(kind, about, details, code):
    PAGES[kind] = {"about": about, "details": details, "code": code}


page("shop", "Make a page for my shop.", [
    colour_of("bar", "header"), place_of("place", TITLE), colour_of("part", "main part", PALE),
    colour_of("button", BUTTON), words_of("verb", BUTTON, ["Buy", "Order", "Reserve", "Browse"]),
    colour_of("foot", 'footer "[^"]*"')],
    '<body><header class="$bar p-12 text-white"><h1 class="text-6xl $place">Shop</h1></header>'
    '<main class="$part p-24"><button class="$button p-12 text-4xl text-white">$verb</button></main>'
    '<footer class="$foot p-16 text-white">Contact</footer></body>')
page("event", "Make a page for my concert.", [
    PAGE_COLOUR, letters_of("ink", TITLE), place_of("place", TITLE), size_of("size", TITLE),
    colour_of("box", "main part"), words_of("day", TEXT, ["Friday", "Saturday", "Sunday", "Monday"])],
    '<body class="$page"><header class="p-16"><h1 class="$ink $size $place">Concert</h1></header>'
    '<main class="$box p-24 text-white"><p class="text-5xl">$day</p></main></body>')
page("login", "Make a page where people log in.", [
    PAGE_COLOUR, colour_of("card", "form", {**BRIGHT, **PALE}), place_of("place", TITLE), colour_of("button", BUTTON),
    words_of("verb", BUTTON, ["Enter", "Continue", "Submit", "Start"])],
    '<body class="$page p-24"><form class="$card p-16"><h1 class="text-6xl $place">Login</h1>'
    '<input class="p-8" placeholder="Name"><button class="$button p-12 text-4xl text-white">$verb</button>'
    '</form></body>')
page("profile", "Make a page about me.", [
    PAGE_COLOUR, layout_of("layout", "picture", {"row": "flex", "column": "block"}), colour_of("box", "main part"),
    words_of("job", TEXT, ["Painter", "Teacher", "Doctor", "Writer"]), colour_of("foot", 'footer "[^"]*"')],
    f'<body class="$page"><div class="p-16 $layout">{PHOTO}'
    '<main class="$box p-20 text-white"><h1 class="text-6xl">Robin</h1><p class="text-4xl">$job</p></main>'
    '</div><footer class="$foot p-12">Contact</footer></body>')
page("news", "Make a page with the news.", [
    colour_of("bar", "header"), place_of("place", TITLE), colour_of("first", 'section "Sports"', PALE),
    colour_of("second", 'section "Weather"', PALE), order_of("order", SPORTS, WEATHER)],
    '<body><header class="$bar p-12 text-white"><h1 class="text-6xl $place">News</h1></header>$order</body>')
page("prices", "We need a page that shows what our three plans cost.", [
    PAGE_COLOUR, colour_of("bar", "header"),
    letters_of("ink", TITLE, {"white": "text-white", "black": "text-black", "light yellow": "text-yellow-200"}),
    place_of("place", TITLE), layout_of("layout", 'block "[^"]*"', {"row": "flex justify-around", "column": "block"}),
    colour_of("basic", 'block "Basic"', PALE), colour_of("team", 'block "Team"', PALE),
    colour_of("firm", 'block "Firm"', PALE), words_of("cost", r'text "\$[^"]*"', ["$$20", "$$35", "$$49", "$$80"])],
    '<body class="$page"><header class="$bar p-8"><h1 class="text-5xl $ink $place">Plans</h1></header>'
    '<main class="$layout"><div class="$basic p-16"><h2 class="text-3xl">Basic</h2><p>Free</p></div>'
    '<div class="$team p-16"><h2 class="text-3xl">Team</h2><p>$cost</p></div>'
    '<div class="$firm p-16"><h2 class="text-3xl">Firm</h2><p>Ask us</p></div></main></body>')
page("menu", "We would like a page with the menu of our restaurant.", [
    PAGE_COLOUR, colour_of("bar", "header"), place_of("place", TITLE),
    letters_of("ink", r'heading "(Starters|Mains|Desserts)"'),
    size_of("size", r'heading "(Starters|Mains|Desserts)"', {"small": "text-xl", "large": "text-5xl"}),
    words_of("dish", 'list item "[^"]*"', ["Grilled fish with rice", "Roast chicken with beans",
                                            "Mushroom pie with salad"]),
    order_of("order", *DISHES), presence_of("foot", 'footer( "[^"]*")?', {
        "yes": '<footer class="bg-gray-800 text-white p-10">Open daily from noon</footer>', "no": ""})],
    '<body class="$page"><header class="$bar p-10 text-white">'
    '<h1 class="text-5xl $place">The Green Table</h1></header><main class="p-12"><h2 class="$ink $size">Mains</h2>'
    '<ul class="p-6 text-xl"><li>$dish</li><li>Noodles with vegetables</li></ul>$order</main>$foot</body>')
page("gallery", "I want a page that shows my photographs.", [
    PAGE_COLOUR, colour_of("bar", 'navigation bar "[^"]*"'), place_of("side", 'navigation bar "[^"]*"'),
    choice("columns", "^The picture should (stand|be)",
           {"two": "grid grid-cols-2 gap-8", "four": "grid grid-cols-4 gap-8"}),
    words_of("label", BUTTON, ["See more", "Hire me", "Write to me"]), colour_of("button", BUTTON),
    place_of("where", BUTTON)],
    '<body class="$page"><nav class="$bar p-8 text-white text-4xl $side">My photographs</nav>'
    f'<main class="p-12 $columns">{4 * PHOTO}</main><footer class="p-8 $where">'
    '<button class="$button p-6 text-2xl text-white">$label</button></footer></body>')
page("dashboard", "Build a page on which our team sees this week's numbers.", [
    PAGE_COLOUR, colour_of("bar", "sidebar"),
    choice("side", "^The sidebar should be on the", {"left": "flex", "right": "flex flex-row-reverse"}),
    letters_of("ink", TITLE), colour_of("sales", 'block "Sales"'), colour_of("visits", 'block "Visits"'),
    layout_of("layout", 'block "[^"]*"', {"row": "flex", "column": "block"}), size_of("size", TITLE)],
    '<body class="$page"><div class="$side"><aside class="$bar w-64 h-screen p-8 text-white text-2xl">'
    '<p>Overview</p><p>Reports</p></aside><main class="p-8 w-full">'
    '<h1 class="$ink $size">This week</h1><div class="$layout">'
    '<div class="$sales p-20 text-white"><h2 class="text-3xl">Sales</h2></div>'
    '<div class="$visits p-20 text-white"><h2 class="text-3xl">Visits</h2></div></div></main></div></body>')
page("travel", "Please design a page for our travel agency.", [
    colour_of("bar", "header"), place_of("place", TITLE), size_of("size", TITLE), order_of("order", *TRIPS),
    colour_of("sea", 'section "By the sea"', PALE), colour_of("hills", 'section "In the hills"', PALE),
    words_of("verb", BUTTON, ["Book now", "Ask for dates", "Plan a trip"]),
    colour_of("button", BUTTON), presence_of("picture", "picture", {"yes": PHOTO, "no": ""})],
    '<body><header class="$bar p-16 text-white"><h1 class="$size $place">Far and Away</h1></header>$picture$order'
    '<div class="p-12"><button class="$button text-white p-8 text-2xl">$verb</button></div></body>')


# ---------------------------------------------------------------------------------------------------------------------
# Tasks from a language model (--source llm)

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
UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)  # what ast.parse raises


def parse_task(raw):
    """(task, None) from a model's response, or (None, why not)."""
    m = re.search(r"DESCRIPTION:(.*?)CODE:\s*```(?:python)?\n(.*?)```\s*CALLS:\s*(.*)", raw, re.S)
    if not m:
        return None, "not in the form asked for"
    description, code = re.sub(r"\s+", " ", m[1]).strip(), m[2].strip() + "\n"
    try:
        tree = ast.parse(code)
    except UNPARSABLE:
        return None, "code does not parse"
    if code.count("\n") > 50:
        return None, "more than 50 lines"
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    calls = {}  # line -> the function that it calls
    for line in m[3].splitlines():
        line = re.sub(r"^\s*(?:\d+[.)]\s|[-*]\s)?\s*`?|`?\s*$", "", line)
        with suppress(*UNPARSABLE):
            match ast.parse(line, mode="eval"):
                case ast.Expression(ast.Call(ast.Name(name))) if name in functions:
                    calls.setdefault(line, name)
    if not calls:
        return None, "no call of a function of its own"
    name = Counter(calls.values()).most_common(1)[0][0]
    calls = [c for c, called in calls.items() if called == name][:10]
    if len(calls) < 10:
        return None, "fewer than ten different calls"
    if f"{name}(" not in description:
        description += f" Signature: {name}({ast.unparse(functions[name].args)})."
    return new_task("backend", description, code, test_cases={str(i): c for i, c in enumerate(calls, 1)}), None


def normalised(code):
    """A program's syntax tree without docstrings, annotations and the names of its functions, as one string."""
    tree = ast.parse(code)
    names = {n.name: f"f{i}" for i, n in enumerate(tree.body) if isinstance(n, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns, node.name = None, names.get(node.name, node.name)
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return ast.dump(tree)


def duplicate(task, sources, descriptions, similar):
    """Why a task is too much like one that was accepted before; None if it is not, and from now on it is one of them.
    sources, descriptions: of the tasks that were accepted so far, normalised and as sets of word 5-grams."""
    try:
        source = normalised(task["ground_truth"])
    except RecursionError:
        return "nested too deeply"
    words = re.findall(r"\w+", task["problem_description"].lower())
    mine = {tuple(words[i:i + 5]) for i in range(max(1, len(words) - 4))}  # all words as one where they are few
    if source in sources:
        return "duplicate source"
    for other in descriptions:
        both = len(mine & other)
        if both and both >= similar * (len(mine) + len(other) - both):  # Jaccard similarity |A and B| / |A or B|
            return "near-duplicate description"
    sources.add(source)
    descriptions.append(mine)


def write_llm(args):
    """One attempt per excerpt and sample, until the splits are full. An excerpt belongs to one split, by its hash.
    attempts.jsonl keeps every response with its verdict: a continued run asks for nothing twice."""
    from rollout import Refused, Stop, make_engine
    excerpts = list(read(args.input, "excerpt", each=lambda record: record["text"].strip()[:args.excerpt_length]))
    settings = {name: getattr(args, name) for name in (
        "source", "model_name", "temperature", "max_tokens", "excerpt_length", "similar", "seed", "sizes")}
    inputs, key = {"--in": args.input, "--model": args.model}, ("excerpt", "sample")
    outs = open_splits(args, settings, inputs, key)
    attempts = Output(Path(args.out or f"data/{args.domain}") / "attempts.jsonl", settings, inputs, args.overwrite, key)
    accepted, responses = (set(), []), {}  # responses: of attempts whose task a kill has lost
    for task in itertools.chain.from_iterable(out.records() for out in outs.values() if out.done):
        duplicate(task, *accepted, args.similar)
    for attempt in attempts.records() if attempts.done else ():
        if attempt["verdict"] == "kept" and not any(attempts.key_of(attempt) in out.done for out in outs.values()):
            responses[attempts.key_of(attempt)] = attempt["output"]

    bounds = list(itertools.accumulate(args.sizes.values()))  # of train, val and test among the hashes
    splits = [SPLITS[sum(hashed(excerpt) % bounds[-1] >= bound for bound in bounds)] for excerpt in excerpts]
    todo = {split: [(i, k) for k in range(args.samples) for i in range(len(excerpts)) if splits[i] == split
                    and ((i, k) not in attempts.done or (i, k) in responses)] for split in outs}
    if not any(todo[split] and len(out.done) < out.wanted for split, out in outs.items()):
        return print(f"{attempts.path.parent}: nothing left to ask")
    engine = make_engine(args.model, args.model_name, "agent", args, args.concurrency)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def attempt(key):
        """(key, response, task, why it is rejected or None)"""
        raw, (i, k) = responses.get(key), key
        try:
            if raw is None:
                prompt = [{"role": "user", "content": LLM_PROMPT.format(excerpt=excerpts[i])}]
                raw = asyncio.run_coroutine_threadsafe(engine.generate(
                    prompt, 1, args.seed + 1_000_003 * k + i, args.temperature, args.max_tokens), loop).result()[0].text
        except Refused:
            return key, None, None, "request refused"
        task, reason = parse_task(raw)
        reason = reason or reference_fault(box, task)
        if not reason and len(set(box.run(task["ground_truth"], list(task["test_cases"].values())))) == 1:
            reason = "calls alike"
        return key, raw, task, reason

    def verdicts(made):
        for (i, k), raw, task, reason in made:
            reason = reason or duplicate(task, *accepted, args.similar)
            if not reason:
                task |= {"source": f"llm:{args.model_name or args.model}", "excerpt": i, "sample": k}
            if (i, k) not in attempts.done:
                attempts.write({"excerpt": i, "sample": k, "verdict": reason or "kept", "output": raw})
            yield task, reason

    # ample time: a busy machine must not change which tasks are kept
    with Sandbox(workers=args.workers, call_timeout=5, program_timeout=30) as box:
        try:
            for split, out in outs.items():
                write(out, verdicts(checked(attempt, todo[split], out, args.concurrency)))
        except Stop as stop:
            die(f"{stop}; what was made so far is kept", stop.code)
    engine.close()
    made, kept = len(attempts.done), sum(len(out.done) for out in outs.values())
    print(f"{made} attempts on {len(excerpts)} excerpts, in {attempts.path}; kept {kept} ({100 * kept / made:.1f}%)")


# ---------------------------------------------------------------------------------------------------------------------
# The command line

MAKERS = {"procedural": write_procedural, "llm": write_llm, "colbench": write_colbench, "websight": write_websight,
          "demonstrations": write_demonstrations}
SHARE, COUNT, SIZE = number(least=0, most=1), number(int, least=1), number(int, least=0)
FLAGS = {  # what flags are for (elsewhere they would do nothing, and are refused): name, default, type or choices, help
    "procedural": [
        ("--families", None, str, "comma-separated families, or kinds of pages, to draw from (default: all)"),
        ("--request", "plain", ("plain", "vague"), "vague: of the function the request tells only how many arguments "
         "it takes; what it is to do is one more thing that the human tells")],
    "procedural, llm, websight, colbench": [
        ("--train", None, SIZE, "number of training tasks, 0: none (default 10000; of released trajectories all)"),
        ("--val", None, SIZE, "number of validation tasks (default 500; with --split-by row 0)"),
        ("--test", None, SIZE, "number of test tasks (default 1000, frontend 500, as in the paper)")],
    "procedural, llm, demonstrations": [("--seed", 0, int, "random seed")],
    "demonstrations, llm, websight, colbench": [
        ("--in", None, str, "tasks (default data/{domain}/{split}.jsonl), excerpts, rows, or a released file")],
    "demonstrations, colbench": [("--split", "train", SPLITS, "split that they are about, or that the file holds")],
    "demonstrations": [
        ("--ask", 0.6, SHARE, "probability that a hidden detail is asked, or a difference that was named put right"),
        ("--waste", 0.2, SHARE, "probability, before each turn, of a wasted turn, again and again"),
        ("--max-turns", 10, COUNT, "longest dialogue, in agent turns")],
    "websight": [
        ("--split-by", "idea", ("idea", "row"), "idea: by a hash of it; row: the first 10,000 rows are train, the rest "
         "test, as in the release")],
    "colbench": [("--run-name", "default", str, "of trajectories: name of the run")],
    "llm": [
        ("--model", None, str, "folder, hub name, or URL of an OpenAI-compatible server, such as "
         "http://localhost:8000/v1; --source llm --help tells the flags of its engine"),
        ("--model-name", None, str, "model to name to the server (default: its first)"),
        ("--samples", 1, COUNT, "attempts per excerpt"),
        ("--temperature", 1.0, number(least=0), "sampling temperature"),
        ("--max-tokens", 2048, COUNT, "new tokens per attempt"),
        ("--excerpt-length", 2000, COUNT, "longest excerpt, in characters"),
        ("--similar", 0.5, SHARE, "Jaccard similarity of word 5-grams from which a description is a duplicate"),
        ("--concurrency", 64, COUNT, "requests under way at once")]}


def parse_args():
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--source", choices=["procedural", "llm", "colbench", "websight"], default="procedural",
                       help="procedural: from the families in this file; llm: written by a model from web excerpts; "
                            "colbench: released task or trajectory files; websight: rows of WebSight v0.2, frontend "
                            "(default procedural)")
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0], parents=[first])
    p.add_argument("--domain", choices=["backend", "frontend"], default="backend",
                   help="kind of task (default backend)")
    p.add_argument("--demonstrations", type=SIZE, default=0, metavar="N",
                   help="write N dialogues of the scripted agent instead of tasks (default 0: write tasks)")
    p.add_argument("--out", help="folder of the tasks (default data/{domain}); demonstrations and colbench: the file "
                   "(default data/{domain}/demonstrations.jsonl, data/{domain}/{split}.jsonl, or for trajectories "
                   "runs/{run name}/{split}.trajectories.jsonl)")
    p.add_argument("--workers", type=COUNT, default=2, help="sandbox processes, or browsers (default 2)")
    p.add_argument("--overwrite", action="store_true", help="start the output again instead of continuing it")
    kinds_of = {}
    for kinds, flags in FLAGS.items():
        group = p.add_argument_group(kinds)
        for name, default, allowed, text in flags:
            flag = group.add_argument(
                name, default=default, help=text + f" (default {default})" * (default is not None),
                **({"choices": allowed} if isinstance(allowed, tuple) else {"type": allowed}))
            kinds_of[flag] = kinds
    if first.parse_known_args()[0].source == "llm":
        from rollout import engine_flags
        engine_flags(p)
    args = p.parse_args()

    args.input = getattr(args, "in")
    args.making = making = "demonstrations" if args.demonstrations else args.source
    wrong_domain = {"llm": "frontend", "websight": "backend"}.get(args.source)
    if args.domain == wrong_domain or args.demonstrations and args.source != "procedural":
        die(f"there are no {args.domain} {'demonstrations' if args.demonstrations else 'tasks'} with --source "
            f"{args.source}")
    for flag, kinds in kinds_of.items():
        idle = (making not in kinds or making == "colbench" and flag.dest in SPLITS and flag.dest != args.split
                or flag.dest == "val" and args.split_by == "row"
                or flag.dest == "request" and args.domain == "frontend")
        if idle and getattr(args, flag.dest) != flag.default:
            die(f"{flag.option_strings[0]} would do nothing here: it is for {kinds}")
    for flag in {"llm": ("in", "model"), "colbench": ("in",), "websight": ("in",)}.get(making, ()):
        if not getattr(args, flag):
            die(f"--source {making} needs --{flag}")
    usual = (10000, 0 if args.split_by == "row" else 500, 1000 if args.domain == "backend" else 500)
    args.sizes = {split: size if getattr(args, split) is None else getattr(args, split)
                  for split, size in zip(SPLITS, usual)}
    if not (args.sizes[args.split] if making == "colbench" else any(args.sizes.values())):
        die("no tasks are asked for: nothing to make")
    return args


def main():
    try:
        args = parse_args()
        MAKERS[args.making](args)
    except KeyboardInterrupt:
        die("stopped; the same command, without --overwrite, continues", 130)
    except OSError as problem:
        die(f"{problem.filename or 'a file'}: {problem.strerror or problem}")


if __name__ == "__main__":
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code
    sys.stdout.flush()
    os._exit(code or 0)  # what is still at work in threads is not waited for
