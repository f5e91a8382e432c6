"""Rewards for trajectories, metrics with intervals, runs side by side, and a report that a person can read.

Backend: the reward is the share of the task's hidden tests that the final answer passes. A test is a call; its expected
value is what the task's reference returns (sandbox.py runs both, in different processes). Frontend: the reward is the
cosine of the embeddings of two pictures, of the answer's page and of the reference page (render.py).

    backend    reward(tau)  = 1/K sum_k [ answer(call_k) == reference(call_k) ]      in [0, 1], K = 10 in ColBench
               success(tau) = [ reward(tau) == 1 ]
    frontend   reward(tau)  = max(0, cos(f(answer), f(reference)))                   f = --encoder, of the --view
               win(a, b)    = [ reward(a) > reward(b) ] + 1/2 [ reward(a) == reward(b) ]     mean over common tasks

Every metric is a ratio m = sum_i a_i / sum_i b_i over tasks i, where a_i and b_i are sums over the task's samples (for
the success rate a_i = number of successes, b_i = number of samples). Its 95% interval is the percentile bootstrap over
TASKS: the samples of one task are drawn together, because they are not independent. Two runs are compared on the tasks
that both have, and each draw of tasks is used for both (a paired difference): the difficulty of the tasks cancels.
A metric that is 0% or 100% on every task gets an interval of width zero: the bootstrap cannot know better.

Departures
- An episode without an answer (the engine or the simulator failed) scores 0 and is counted. It is never left out.
- The paper gives no intervals. The released code runs programs inside its own process, in a function's local scope
  (`--mode released` does the same to the namespace, in the sandbox; `--mode both` prints the two side by side), writes
  rewards over its input, and reports the best of k samples. Here the input is left alone and every sample counts.
- Frontend: an answer without a page, or with a page that cannot be rendered, scores 0 and is counted (released code: it
  is a black picture). Both views are recorded; numbers of different encoders are never put side by side.
- Code fences around an answer are taken off before it runs. Of several fenced blocks those that define something run,
  one after the other.

Reads   runs/{run}/{split}.trajectories.jsonl
Writes  runs/{run}/{split}.scored.jsonl, the records plus `reward`, `tests` (one status per test) and `sandbox` (its
        layers); frontend: `reward`, `cosine` (both views), `view`, `page` (ok, blank, ...), `encoder`, `sandbox`
        runs/{run}/{split}.scored.settings.json, runs/{run}/{split}.metrics.json, with --report one HTML file, and
        with --picture one PNG of pages
Memory does not grow with the dialogues: each record is written as it is scored, in the order of the input. Killed, it
goes on where it stopped; records that changed since they were scored are an error, not stale rewards.

    python evaluate.py --split train
    python evaluate.py --in runs/default/test.trajectories.jsonl --report report.html
    python evaluate.py --compare base=runs/a/test.scored.jsonl sweet=runs/b/test.scored.jsonl --report report.html
    python evaluate.py --compare base=runs/a/test.scored.jsonl sweet=runs/b/test.scored.jsonl --picture pages.png
    python evaluate.py --compare base='runs/seed-*/base.test.scored.jsonl' sweet='runs/seed-*/policy.test.scored.jsonl'
Where a name stands for several files, each is a training run of its own (a seed): means over the runs, intervals by
Student's t over the runs, differences taken run by run.
"""

import os
import signal

if __name__ == "__main__":  # Ctrl-C until scoring starts (loading takes seconds): nothing is written yet
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
import argparse
import base64
import collections
import difflib
import glob
import hashlib
import html
import io
import itertools
import json
import math
import re
import shlex
import sys
import tempfile
import textwrap
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from tqdm import tqdm

from sandbox import Sandbox, die, read_jsonl

ANSWER_MARK = "I WANT TO ANSWER:"
OUTPUT_MARK = "OUTPUT:"
NO_ANSWER = "no answer"  # status of every test of an episode that ended without one
# What scoring adds to a record. Whatever else a record holds is carried through, and must be the same on resume.
ADDED = ("reward", "tests", "sandbox", "reward_released", "tests_released", "cosine", "page", "encoder", "view")
VIEWS = ("page", "centre")
# What values of a record must be where they are there at all; other keys may hold anything.
KINDS = {"task_id": (str, "a text"), "sample": (int, "a whole number"), "domain": (str, "a text"),
         "finish": (str, "a text"), "tests": (dict | None, "an object of statuses"),
         "cosine": (dict | None, "an object with the cosines page and centre"), "page": (str, "a text"),
         "reward_released": (int | float, "a number"), "advantages": (list | None, "a list")}

# name in metrics.json: (numerator, denominator, what it is called in a table, how it is printed)
METRICS = {
    "success": ("success", "programs", "success", "percent"),
    "tests_passed": ("passed", "programs", "tests passed", "percent"),
    "success_released": ("success_released", "programs_released", "success (released evaluator)", "percent"),
    "tests_passed_released": ("passed_released", "programs_released", "tests passed (released evaluator)", "percent"),
    "cosine_page": ("cosine_page", "pages", "cosine x 100, whole page", "hundredths"),
    "cosine_centre": ("cosine_centre", "pages", "cosine x 100, centre", "hundredths"),
    "blank": ("blank", "pages", "blank pages", "percent"),
    "broken": ("broken", "pages", "no page or broken", "percent"),
    "details_told": ("details_told", "details", "hidden details told", "percent"),
    "answered": ("answered", "samples", "answered", "percent"),
    "turns": ("turns", "samples", "turns", "number"),
    "words_per_reply": ("words", "turns", "words per reply", "number"),
    "tokens_per_reply": ("tokens", "token_turns", "tokens per reply", "number"),
}
HEADLINES = ("success", "tests_passed", "cosine_page", "cosine_centre")  # what runs are compared by
SUMS = sorted({name for metric in METRICS.values() for name in metric[:2]})
COLUMN = {name: number for number, name in enumerate(SUMS)}


def parse_args():
    parser = argparse.ArgumentParser(
        description="Score trajectories, print metrics with 95% intervals, compare runs, write a report.",
        epilog="See the top of this file for the definitions.",
    )
    # what to score
    parser.add_argument("--run", default="default",
                        help="name of the run: its files are in runs/{run} (default: default)")
    parser.add_argument("--split", default="test",
                        help="which of the run's trajectories: train, val, test (default: test)")
    parser.add_argument("--in", dest="input", type=Path,
                        help="trajectories (default: runs/{run}/{split}.trajectories.jsonl)")
    parser.add_argument("--out", type=Path, help="scored trajectories (default: the input's name with .scored.jsonl)")
    parser.add_argument("--domain", choices=["backend", "frontend"], default="backend",
                        help="domain of records that do not name theirs (default: backend)")
    parser.add_argument("--overwrite", action="store_true",
                        help="score everything again, even what --out holds already")
    # how to score programs
    parser.add_argument("--mode", choices=["module", "released", "both"], default="module",
                        help="module: the program runs as a module, which is right; released: in a split namespace, "
                             "like the evaluator released with the paper; both: the two side by side (default: module)")
    parser.add_argument("--workers", type=int,
                        help="programs, or browsers, at work at the same time (default: one per core)",
                        default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    parser.add_argument("--call-timeout", type=float, default=1.0, help="seconds that one call may take (default: 1.0)")
    parser.add_argument("--program-timeout", type=float, default=5.0,
                        help="seconds that all calls of a program may take (default: 5.0)")
    parser.add_argument("--memory-mb", type=int, default=256, help="megabytes that a program may use (default: 256)")
    parser.add_argument("--numpy", action="store_true", help="programs find numpy imported")
    parser.add_argument("--unsafe", action="store_true", help="run programs even where the sandbox cannot shut them in")
    # how to score pages
    parser.add_argument("--encoder", default="layout",
                        help="what embeds the pictures: layout (colours and edges, no weights), or the folder or hub "
                             "name of a CLIP or SigLIP; the paper's is openai/clip-vit-base-patch32 (default: layout)")
    parser.add_argument("--view", choices=VIEWS, default="page",
                        help="which cosine is the reward: of the whole page, or of the centre that CLIP's processor "
                             "keeps, as in the paper; both are recorded (default: page)")
    # intervals
    parser.add_argument("--resamples", type=int, default=10_000, help="bootstrap draws of the tasks (default: 10000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default: 0)")
    # compare runs that are scored already
    parser.add_argument("--compare", nargs="+", metavar="NAME=FILE",
                        help="scored files to put side by side; differences are against the first one. A pattern in "
                             "quotes (sweet='runs/seed-*/policy.test.scored.jsonl') stands for the same run with "
                             "several seeds")
    parser.add_argument("--json", type=Path, help="with --compare: write the table's numbers here as well")
    # the report
    parser.add_argument("--report", type=Path, help="write one self-contained HTML file with the dialogues here")
    parser.add_argument("--report-limit", type=int, default=200,
                        help="most dialogues in the report, all samples and runs of a task together (default: 200)")
    parser.add_argument("--picture", type=Path, metavar="FILE.png",
                        help="pages: write a picture of the first tasks (by name) here, a row each: every run's page, "
                             "then the reference")
    parser.add_argument("--picture-tasks", type=int, default=4, help="rows of --picture (default: 4)")
    parser.add_argument("--runs-dir", type=Path, nargs="+",
                        help="folders searched for metrics.jsonl of training runs, whose curves go into the report "
                             "(default: the folders of the scored files)")
    args = parser.parse_args()
    for flag, least, most in (("workers", 1, 1e4), ("call_timeout", 0.001, 1e6), ("program_timeout", 0.001, 1e6),
                              ("memory_mb", 1, 1e9), ("resamples", 1, 1e9), ("seed", 0, math.inf),
                              ("report_limit", 1, math.inf), ("picture_tasks", 1, math.inf)):
        if not least <= getattr(args, flag) <= most:    # NaN lies nowhere
            die(f"--{flag.replace('_', '-')} must be at least {least}" + (f" and at most {most:g}" if most < math.inf
                else "") + f", found {getattr(args, flag)}")
    for flag, suffix in (("report", ".html"), ("json", ".json"), ("picture", ".png")):
        path = getattr(args, flag)
        if path and path.suffix != suffix:
            die(f"--{flag} {path} must end in {suffix}: it replaces what is there, and nothing else should lose by it")
    if args.compare and (args.input or args.out):
        die("--compare reads files that are scored already: give it without --in and --out")
    if args.json and not args.compare:
        die("--json belongs to --compare; the metrics of one file are in its .metrics.json anyway")
    return args


# ---------------------------------------------------------------------------------------------------------------------
# Files and records


def check_output(path, *inputs):
    """Stop before anything is done if `path` is one of the inputs (links followed) or cannot be written."""
    for source in inputs:
        if path.resolve() == source.resolve() or path.exists() and source.exists() and path.samefile(source):
            die(f"{path} is the input {source}, which is never written over; name another output")
    if path.exists() and not path.is_file():
        die(f"{path} is no file; name a file to write")
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        with open(path, "ab") if path.exists() else tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        die(f"{path} cannot be written: {error.strerror}")


@contextmanager
def whole_or_nothing(path):
    """A new file beside `path` that takes its place when it is whole, and goes away if something fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def extract_code(answer):
    """The program in an answer: markdown fences and the marker are taken off, the common indentation too.

    Of several fenced blocks those with a definition are kept, in order (a later one overrides an earlier one); usage
    examples and prose around the blocks go. A block that was cut off before its closing fence still counts.
    """
    text = answer.split(ANSWER_MARK)[-1].replace("\r\n", "\n")
    blocks = re.findall(r"```[^\n`]*\n(.*?)(?:```|\Z)", text, flags=re.DOTALL)
    if not blocks:  # a fence within one line: ```python f = len```
        blocks = re.findall(r"```(?:python|py)?\b(.*?)```", text, flags=re.DOTALL) or [text]
    blocks = [textwrap.dedent(block) for block in blocks]
    definition = re.compile(r"^(?:async )?(?:def|class) |^\w+ *= *lambda\b", flags=re.MULTILINE)
    defining = [block for block in blocks if definition.search(block)]
    return "\n".join(defining or blocks).strip("\n").lstrip(" \t")


def key_of(record):
    return record["task_id"], record["sample"]


def complete(record, number, path, domain, seen):
    """Fill in what released trajectories lack, and check what scoring needs.
    `seen`: samples so far per nameless task."""
    where = f"{path}, line {number}"
    task = record.get("task")
    if not isinstance(task, dict):
        die(f"{where}: no \"task\" object in the record (keys: {', '.join(sorted(record)) or 'none'}): "
            "is this a file of trajectories? rollout.py writes them")
    history = record.get("dialogue_history")
    messages = [turn for turn in history if isinstance(turn, dict)] if isinstance(history, list) else []
    good = [turn for turn in messages if isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)
            and isinstance(turn.get("output"), str | None) and isinstance(turn.get("output_ids"), list | None)]
    if not good or len(good) < len(history):
        die(f'{where}: "dialogue_history" must be a list of messages with the texts "role" and "content" (and, if they '
            'are there, the text "output" and the list "output_ids"); rollout.py writes them')
    if "answer" not in record or not isinstance(record["answer"], (str, type(None))):
        die(f'{where}: "answer" must be a text, or null for an episode that failed; run rollout.py again for '
            'this record')
    if "task_id" not in record:  # released: the k samples of a task lie far apart and carry no key
        content = json.dumps([task.get("problem_description"), task.get("ground_truth")])
        record["task_id"] = task.get("task_id") or "task-" + hashlib.sha256(content.encode()).hexdigest()[:12]
    if "sample" not in record:
        record["sample"] = seen[str(record["task_id"])]
        seen[str(record["task_id"])] += 1
    record.setdefault("domain", task.get("domain", domain))
    if "finish" not in record:
        last = next((turn for turn in reversed(history) if turn["role"] == "assistant"), {})
        marked = ANSWER_MARK in (last.get("output") or last.get("content") or "")
        record["finish"] = "answered" if marked else "max_turns" if record["answer"] is not None else "error: no answer"
    for name, (kind, expected) in KINDS.items():
        value = record.get(name)
        fits = name not in record or isinstance(value, kind)
        if fits and value and name == "tests":
            fits = all(isinstance(status, str) for status in value.values())
        if fits and value and name == "cosine":
            fits = all(isinstance(value.get(view), int | float) for view in VIEWS)
        if not fits:
            die(f"{where}: {name!r} must be {expected}, found {json.dumps(value)[:60]}")
    if record["domain"] not in ("backend", "frontend"):
        die(f"{where}: found domain {record['domain']!r}, expected backend or frontend")
    if not isinstance(task.get("ground_truth"), str):
        die(f"{where}: the task has no \"ground_truth\"; its reference is needed to score an answer")
    tests = task.get("test_cases")
    calls = list(tests.values()) if isinstance(tests, dict) else []
    if record["domain"] == "backend" and not (calls and all(isinstance(call, str) for call in calls)):
        die(f'{where}: the backend task {record["task_id"]} needs "test_cases", an object of calls: label -> "f(1)"')
    return record


def trajectories(path, domain):
    """The records of a file of trajectories, one at a time, checked."""
    seen = Counter()
    for number, record in enumerate(read_jsonl(path), start=1):
        yield complete(record, number, path, domain, seen)


def digest(record):
    """Fingerprint of what scoring does not add, to find a record that changed since it was scored."""
    rest = {key: value for key, value in record.items() if key not in ADDED}
    return hashlib.blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=8).digest()


# ---------------------------------------------------------------------------------------------------------------------
# Scoring


def finished_records(path):
    """{key: digest} of the records that an earlier run left in `path`. A last line without its end is cut off first."""
    with open(path, "rb+") as file:
        whole = sum(len(line) for line in file if line.endswith(b"\n"))
        if whole < file.tell():
            file.truncate(whole)
    return {key_of(record): digest(record) for record in read_jsonl(path, required=("task_id", "sample", "reward"))}


def check_settings(path, settings):
    """On resume, stop where the settings differ from those the output was made with."""
    sidecar = path.with_suffix(".settings.json")
    if not sidecar.exists():
        die(f"{path} is there, but not {sidecar.name}, the settings it was made with: use --overwrite or another --out")
    try:
        before = dict(json.loads(sidecar.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        die(f"{sidecar} is damaged, no JSON object of settings: use --overwrite or another --out")
    changed = [name for name in settings if before.get(name) != settings[name]]
    differences = [f"{name} was {before.get(name)!r}, now {settings[name]!r}" for name in changed]
    if differences:
        die(f"{path} was made with other settings ({'; '.join(differences)}): use --overwrite or another --out")


def interruptible():
    """From here on Ctrl-C is an exception: the line under way is finished, browsers and sandbox are closed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def score_in_order(box, records, mode):
    """Yield (record, statuses) in the order of `records`.
    An episode without an answer does not run, and passes no test."""
    held = collections.deque()  # what the sandbox is working on: some records, however long the file is

    def jobs():
        for record in records:
            held.append(record)
            if record["answer"] is not None:
                yield None, record["task"], extract_code(record["answer"])

    def without_answer():
        while held and held[0]["answer"] is None:
            record = held.popleft()
            yield record, {label: NO_ANSWER for label in record["task"]["test_cases"]}

    for _, statuses in box.score_many(jobs(), mode):
        yield from without_answer()
        yield held.popleft(), statuses
    yield from without_answer()


def share_passed(statuses):
    return sum(status == "passed" for status in statuses.values()) / len(statuses)


def score(args):
    """Score args.input into args.out, going on where an earlier run stopped."""
    # One pass before anything is written: every line can be read, every key is there once.
    done = finished_records(args.out) if args.out.exists() and not args.overwrite else {}
    keys, todo = set(), 0
    for number, record in enumerate(trajectories(args.input, args.domain), start=1):
        key = key_of(record)
        where = f"{args.input}, line {number}: task {key[0]}, sample {key[1]}"
        if key in keys:
            die(f'{where} is there twice; give each its own "sample" number')
        if key in done and done[key] != digest(record):
            die(f"{where} is another episode than the one scored in {args.out}; --overwrite scores everything again")
        if keys and record["domain"] != domain:
            die(f"{where} is a {record['domain']} episode among {domain} ones; score them in files of their own")
        keys.add(key)
        todo += key not in done
        domain = record["domain"]
    if not keys:
        die(f"{args.input} holds no trajectories; run rollout.py first")
    stale = [key for key in done if key not in keys]
    if stale:
        die(f"{args.out} holds {len(stale)} records that {args.input} does not (first: task {stale[0][0]}, sample "
            f"{stale[0][1]}); --overwrite scores everything again")
    for_programs, for_pages = ("mode", "call_timeout", "program_timeout", "memory_mb", "numpy"), ("encoder", "view")
    settings = {name: getattr(args, name) for name in (for_pages if domain == "frontend" else for_programs)}
    settings = {"in": str(args.input), "domain": domain, **settings}
    if args.out.exists() and not args.overwrite:
        check_settings(args.out, settings)
    if todo == 0:
        print(f"{args.out}: all {len(keys):,} trajectories are scored already")
        return
    records = (record for record in trajectories(args.input, args.domain) if key_of(record) not in done)
    scored = score_frontend(records, args) if domain == "frontend" else score_backend(records, args)
    with closing(scored):
        first = next(scored)    # sandbox, encoder and browsers work: only now is anything written or replaced
        if args.overwrite or not args.out.exists():
            args.out.unlink(missing_ok=True)
            write_json(args.out.with_suffix(".settings.json"), settings, said=False)
        bar = tqdm(total=len(keys), initial=len(done), unit=" answers", desc="scoring", mininterval=0.5,
                   dynamic_ncols=True)
        with open(args.out, "a", encoding="utf-8") as out, bar:
            for record in itertools.chain([first], scored):
                out.write(json.dumps(record) + "\n")
                out.flush()
                bar.update()


def score_backend(records, args):
    """Add reward, tests and sandbox to each record; with --mode both also what the released evaluator would say."""
    interruptible()
    modes = ["module", "released"] if args.mode == "both" else [args.mode]
    with Sandbox(workers=args.workers, memory_mb=args.memory_mb, call_timeout=args.call_timeout,
                 program_timeout=args.program_timeout, numpy=args.numpy, unsafe=args.unsafe) as box:
        streams = itertools.tee(records, len(modes))
        for scored in zip(*(score_in_order(box, stream, mode) for stream, mode in zip(streams, modes))):
            record, statuses = scored[0]
            record = record | {"reward": share_passed(statuses), "tests": statuses, "sandbox": box.layers}
            if len(scored) > 1:
                record |= {"reward_released": share_passed(scored[1][1]), "tests_released": scored[1][1]}
            yield record


def score_frontend(records, args):
    """Add reward, cosine, page and the encoder's name to each record.
    Two pages are rendered while a third is compared."""
    from render import Renderer, cosine, extract_page, load_encoder

    try:
        embed = load_encoder(args.encoder)
        interruptible()
        renderer = Renderer(args.workers)
    except RuntimeError as problem:
        die(str(problem))
    # Each page is rendered once: samples of a task share its reference, and a right answer is the reference itself.
    pages = collections.OrderedDict()  # page -> future of its picture, then (status, {view: embedding})
    underway = collections.deque()  # (record, answer's page or None, reference page)

    def start(page):
        if page not in pages:
            pages[page] = renderer.submit(page)
            if len(pages) > 4096:
                pages.popitem(last=False)

    def embedded(page):
        found = pages.get(page) or renderer.submit(page)  # it may have been forgotten since
        if not isinstance(found, tuple):
            picture = found.result()
            status = "blank" if picture.status == "ok" and picture.blank else picture.status
            embedding = {view: embed(picture, view) for view in VIEWS} if picture.status == "ok" else None
            found = pages[page] = status, embedding
        return found

    def finish():
        record, answer, reference = underway.popleft()
        (wanted, there), (status, here) = embedded(reference), embedded(answer) if answer else ("no page", None)
        values = {view: cosine(here[view], there[view]) if here and there else 0.0 for view in VIEWS}
        return record | {"reward": min(1.0, max(0.0, values[args.view])), "cosine": values, "view": args.view,
                         "encoder": embed.name, "page": status if there else f"reference {wanted}",
                         "sandbox": {"isolation": renderer.isolation, "chromium": renderer.version}}

    with renderer:
        for record in records:
            underway.append((record, page_of(record, extract_page), record["task"]["ground_truth"]))
            for page in filter(None, underway[-1][1:]):
                start(page)
            if len(underway) > 2 * args.workers:
                yield finish()
        while underway:
            yield finish()


def replies_of(record):
    return [turn for turn in record["dialogue_history"] if turn["role"] == "assistant"]


def page_of(record, extract_page):
    """The page of an answer. Released records have the name of a picture file there: the last reply holds the page."""
    replies = [turn.get("output") or turn["content"] for turn in replies_of(record)]
    return extract_page(record["answer"] or "") or (extract_page(replies[-1]) if record["answer"] and replies else None)


# ---------------------------------------------------------------------------------------------------------------------
# Metrics


def told_facts(record):
    """[(fact, was it told?)]: procedural tasks list the hidden details that the human may tell when asked."""
    heard = [turn["content"] for turn in record["dialogue_history"][1:] if turn["role"] != "assistant"]
    facts = record["task"].get("facts")
    facts = [fact for fact in facts if isinstance(fact, dict) and fact.get("reply")] if isinstance(facts, list) else []
    return [(fact, any(str(fact["reply"]) in text for text in heard)) for fact in facts]


def measure(record):
    """What one scored record adds to its task's sums: {column of SUMS: number}."""
    replies = replies_of(record)
    sampled = [len(turn["output_ids"]) for turn in replies if turn.get("output_ids")]
    values = {
        "samples": 1,
        "answered": record["finish"] == "answered",
        "turns": len(replies),
        "words": sum(len(turn["content"].split()) for turn in replies),
        "tokens": sum(sampled),
        "token_turns": len(sampled),
    }
    told = [told for _, told in told_facts(record)]
    values |= {"details": len(told), "details_told": sum(told)}
    if record["domain"] == "frontend":
        page, cosines = record.get("page", "ok"), record.get("cosine") or {}
        values |= {"pages": 1, "blank": page == "blank", "broken": page not in ("ok", "blank")}
        values |= {f"cosine_{view}": cosines.get(view, record["reward"]) for view in VIEWS}
    else:
        values |= {"programs": 1, "success": record["reward"] >= 1, "passed": record["reward"]}
    if "reward_released" in record:
        values |= {"programs_released": 1, "success_released": record["reward_released"] >= 1,
                   "passed_released": record["reward_released"]}
    return values


def summarise(path, domain="backend"):
    """Everything the tables need from one scored file, in one pass that keeps one row of sums per task."""
    rows, rewards, encoders, bad_references = {}, {}, {}, {}
    ends, errors, statuses, seen = Counter(), Counter(), Counter(), Counter()
    for number, record in enumerate(read_jsonl(path), start=1):
        complete(record, number, path, domain, seen)
        if not isinstance(record.get("reward"), (int, float)) or not 0 <= record["reward"] <= 1:
            die(f'{path}, line {number}: no "reward" between 0 and 1, so this is not a scored file: '
                f"run python evaluate.py --in {path} first and give its output here")
        row = rows.setdefault(record["task_id"], np.zeros(len(SUMS)))
        for name, value in measure(record).items():
            row[COLUMN[name]] += value
        end = record["finish"].split(":")[0]
        ends[end] += 1
        if end == "error":
            errors[record["finish"][:120]] += 1
        found = list((record.get("tests") or {}).values()) + ([record["page"]] if "page" in record else [])
        statuses.update(found)
        if any(status.startswith("reference") for status in found):
            bad_references[record["task_id"]] = True
        domain = record["domain"]
        if domain == "frontend":
            rewards.setdefault(record["task_id"], []).append(record["reward"])
            encoders[f"{record.get('encoder', 'an encoder without a name')}, {record.get('view', 'centre')}"] = number
            if len(encoders) > 1:
                first, second = encoders
                die(f"{path}, line {number}: scored with {second}, the lines before with {first}; score the whole file "
                    "with one encoder (--overwrite)")
    if not rows:
        die(f"{path} is empty: nothing to evaluate")
    return {"path": str(path), "domain": domain, "tasks": list(rows), "sums": np.array(list(rows.values())),
            "rewards": rewards, "encoder": next(iter(encoders), None), "ends": ends, "errors": errors,
            "statuses": statuses, "bad_references": list(bad_references)}


def bootstrap_sums(sums, resamples, seed):
    """Draw T tasks out of T with replacement, `resamples` times, and add up their rows.

    sums (T, C): one row per task. Returns (resamples, C). A draw is a count per task, so that the sums of a block of
    draws are one matrix product; blocks keep the memory at a few megabytes.
    """
    rng, tasks = np.random.default_rng(seed), len(sums)
    block = max(1, 500_000 // tasks)
    totals = []
    for start in range(0, resamples, block):
        draws = rng.integers(tasks, size=(min(block, resamples - start), tasks))  # (block, T), indices of tasks
        draws += np.arange(len(draws))[:, None] * tasks  # one bincount for all draws of the block
        counts = np.bincount(draws.ravel(), minlength=draws.size).reshape(draws.shape)  # (block, T)
        totals.append(counts @ sums)
    return np.concatenate(totals)


def ratio(totals, metric):
    """Metric from sums (..., C): numerator over denominator; NaN where nothing was counted."""
    numerator, denominator = (totals[..., COLUMN[name]] for name in METRICS[metric][:2])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(denominator > 0, numerator / denominator, np.nan)


def interval(draws):
    """95% percentile interval of bootstrap draws (R,); draws in which nothing was counted are left out."""
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return float(low), float(high)


def intervals(sums, resamples, seed):
    """{metric: {"value", "low", "high"}} for the sums (T, C) of one run;
    a metric that nothing was counted for is left out."""
    totals = bootstrap_sums(sums, resamples, seed)
    result = {}
    for metric in METRICS:
        value = float(ratio(sums.sum(axis=0), metric))
        if not math.isnan(value):
            low, high = interval(ratio(totals, metric))
            result[metric] = {"value": value, "low": low, "high": high}
    return result


def win_share(ours, theirs):
    """Share of the pairs (a sample of ours, one of theirs) in which ours has the higher reward; a tie is half a win."""
    ours, theirs = np.array(ours)[:, None], np.array(theirs)[None, :]
    return float(((ours > theirs) + 0.5 * (ours == theirs)).mean())


def paired_difference(run, base, resamples, seed):
    """{metric: {"value", "low", "high"}} of run minus base over the tasks that both have, under the same draws."""
    rows = {task: number for number, task in enumerate(base["tasks"])}
    common = [(number, rows[task]) for number, task in enumerate(run["tasks"]) if task in rows]
    if not common:
        die(f"{run['path']} and {base['path']} have no task in common, so they cannot be compared: "
            "roll both out on the same tasks")
    ours, theirs = (summary["sums"][list(index)] for summary, index in zip((run, base), zip(*common)))
    names = [run["tasks"][number] for number, _ in common]
    pages = bool(run.get("rewards"))
    wins = np.array([[win_share(run["rewards"][name], base["rewards"][name]) if pages else 0.0]
                     for name in names])  # (T, 1)
    both = bootstrap_sums(np.hstack([ours, theirs, wins]), resamples, seed)  # (R, 2 C + 1)
    width = len(SUMS)
    result = {"tasks": len(common)}
    if pages:
        low, high = interval(both[:, -1] / len(common))
        result["win_rate"] = {"value": float(wins.mean()), "low": low, "high": high}
    for metric in METRICS:
        value = float(ratio(ours.sum(axis=0), metric) - ratio(theirs.sum(axis=0), metric))
        if not math.isnan(value):
            low, high = interval(ratio(both[:, :width], metric) - ratio(both[:, width:2 * width], metric))
            result[metric] = {"value": value, "low": low, "high": high}
    return result


# ---------------------------------------------------------------------------------------------------------------------
# Tables (Markdown, so that they can be pasted)


def show(value, kind, signed=False):
    return f"{value if kind == 'number' else 100 * value:{'+' if signed else ''}.1f}"


def show_value(numbers, kind):
    return show(numbers["value"], kind) + ("%" if kind == "percent" else "") if numbers else ""


def show_interval(numbers, kind, signed=False):
    if not numbers:
        return ""
    unit = "%" if kind == "percent" and not signed else ""
    low, high = show(numbers["low"], kind, signed), show(numbers["high"], kind, signed)
    return f"{show(numbers['value'], kind, signed)}{unit} [{low}, {high}]"


def markdown(rows):
    """Rows of texts, the first one the heading, as a Markdown table with its columns lined up."""
    rows = [[plain(cell).replace("|", "/") for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def plain(text):
    """For the terminal: no control characters and no broken ones from a record."""
    return "".join(character if character.isprintable() else "?" for character in str(text))


def shares(counter):
    total = sum(counter.values())
    return ", ".join(f"{plain(name)} {count:,} ({100 * count / total:.1f}%)" for name, count in counter.most_common())


def metrics_of(summary, args):
    """What goes into metrics.json."""
    return {
        "in": summary["path"], "domain": summary["domain"], "tasks": len(summary["tasks"]),
        "samples": int(summary["sums"][:, COLUMN["samples"]].sum()),
        **(dict(zip(("encoder", "view"), summary["encoder"].rsplit(", ", 1))) if summary["encoder"] else {}),
        **intervals(summary["sums"], args.resamples, args.seed),
        "finish": dict(summary["ends"].most_common()), "errors": dict(summary["errors"].most_common(10)),
        "statuses": dict(summary["statuses"].most_common()),
        "references_failing": len(summary["bad_references"]),
        "references_failing_first": summary["bad_references"][:10],
        "interval": "95%, percentile bootstrap over tasks", "resamples": args.resamples, "seed": args.seed,
    }


def metric_rows(metrics):
    """The table of one run as rows of texts."""
    rows = [("metric", "value", "95% interval")]
    for name, (_, _, title, kind) in METRICS.items():
        if name in metrics:
            numbers = metrics[name]
            rows.append((title, show_value(numbers, kind),
                         f"[{show(numbers['low'], kind)}, {show(numbers['high'], kind)}]"))
    return [*rows, ("size", f"{metrics['tasks']:,} tasks", f"{metrics['samples']:,} trajectories")]


def print_metrics(metrics):
    print(markdown(metric_rows(metrics)))
    print(f"episodes ended: {shares(Counter(metrics['finish']))}")
    for error, count in metrics["errors"].items():
        print(f"  {count:,} x {plain(error)}")
    if metrics["statuses"]:
        print(f"{'pages' if metrics['domain'] == 'frontend' else 'tests'}: {shares(Counter(metrics['statuses']))}")
    if "encoder" in metrics:
        print(f"encoder: {plain(metrics['encoder'])}; the reward is the cosine of the view \"{metrics['view']}\"")
    if metrics["references_failing"]:
        print(f"WARNING: {metrics['references_failing']:,} tasks whose reference does not run "
              f"(first: {plain(', '.join(metrics['references_failing_first'][:3]))}); no answer can score there")


def compare(summaries, args):
    """{name: {"metrics", "against", "difference"}}: each run's metrics and paired differences against the first run."""
    base_name, base = next(iter(summaries.items()))
    result = {}
    for name, summary in summaries.items():
        if summary["domain"] != base["domain"]:
            die(f"{summary['path']} holds {summary['domain']} episodes and {base['path']} {base['domain']} ones; "
                "compare like with like")
        if summary["encoder"] != base["encoder"]:
            die(f"{summary['path']} was scored with {summary['encoder']} and {base['path']} with {base['encoder']}; "
                "their cosines cannot be compared: score both with the same --encoder and --view")
        result[name] = {"metrics": metrics_of(summary, args), "against": None, "difference": None}
        if name != base_name:
            difference = paired_difference(summary, base, args.resamples, args.seed)
            result[name] |= {"against": base_name, "difference": difference}
    return result


# Student's t, 97.5%, by degrees of freedom; beyond these by its expansion around the normal distribution
T_975 = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def over_seeds(values):
    """{"value", "low", "high"}: the mean of independent training runs and its 95% t interval; values (S,), S > 1."""
    freedom = len(values) - 1
    t = T_975[freedom] if freedom < len(T_975) else 1.96 + 2.372 / freedom + 2.822 / freedom ** 2
    mean, half = float(np.mean(values)), float(t * np.std(values, ddof=1) / math.sqrt(len(values)))
    return {"value": mean, "low": mean - half, "high": mean + half}


def compare_seeds(groups, args):
    """compare() for several files a name, one for each seed: {name: {"metrics", "against", "difference", "seeds"}}."""
    counts = {name: len(files) for name, files in groups.items()}
    if len(set(counts.values())) > 1:
        die("every name of --compare needs as many files as the others, one for each seed: "
            + ", ".join(f"{name} has {count}" for name, count in counts.items()))
    one_file = argparse.Namespace(**vars(args) | {"resamples": 1})    # their own intervals are not shown
    by_seed = [compare({name: summarise(files[n], args.domain) for name, files in groups.items()}, one_file)
               for n in range(next(iter(counts.values())))]
    result = {}
    for name in groups:
        runs = [seed[name] for seed in by_seed]
        first = runs[0]["metrics"]
        result[name] = {"against": runs[0]["against"], "seeds": runs, "metrics": {
            "domain": first["domain"], "tasks": first["tasks"],
            "samples": sum(run["metrics"]["samples"] for run in runs)}}
        for part in ("metrics", "difference"):
            shared = [m for m in (*METRICS, "win_rate") if all(m in (run[part] or ()) for run in runs)]
            result[name][part] = result[name].get(part, {}) | {
                metric: over_seeds([run[part][metric]["value"] for run in runs]) for metric in shared}
    return result


def comparison_rows(result):
    """The table of `compare` as rows of texts."""
    base_name, base = next(iter(result.items()))
    compared = [name for name in HEADLINES if name in base["metrics"]]
    released = [name for name in METRICS if name.endswith("_released")
                and any(name in run["metrics"] for run in result.values())]
    others = [name for name in ("broken", "details_told", "answered", "turns", "words_per_reply")
              if name in base["metrics"]]
    wins = ["win_rate"] if base["metrics"]["domain"] == "frontend" else []
    title = {name: metric[2] for name, metric in METRICS.items()}
    kind = {name: metric[3] for name, metric in METRICS.items()} | {"win_rate": "percent"}
    rows = [("run", "tasks", *(title[name] for name in compared),
             *(f"{title[name]}, vs {base_name}" for name in compared),
             *(f"win rate vs {base_name}" for _ in wins), *(title[name] for name in released + others))]
    for name, run in result.items():
        metrics, difference = run["metrics"], run["difference"] or {}
        samples = metrics["samples"] / metrics["tasks"]
        rows.append((
            name, f"{metrics['tasks']:,}" + (f" x {samples:.3g}" if samples != 1 else ""),
            *(show_interval(metrics[column], kind[column]) for column in compared),
            *(show_interval(difference.get(column), kind[column], signed=True) for column in compared),
            *(show_interval(difference.get(column), kind[column]) for column in wins),
            *(show_interval(metrics.get(column), kind[column]) for column in released),
            *(show_value(metrics.get(column), kind[column]) for column in others),
        ))
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# The report: one HTML file. Every text that comes from a record goes through e(); the policy in its head lets no
# script run but the one below (by its hash), loads nothing, and sends nothing.

STYLE = """
:root { --paper: #fbfbf9; --card: #fff; --ink: #1d2329; --dim: #68727d; --line: #dfe3e6; --agent: #eef4fb;
  --human: #f4f3ee;
  --good: #1a7f4b; --good-soft: #e0f3e8; --some: #9a6700; --some-soft: #fbecc8; --bad: #b3342b;
  --bad-soft: #fbe6e4; --accent: #2563a8;
  --good-mark: #a9debf; --bad-mark: #f2b8b2; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --card: #1c2024; --ink: #e3e6e8; --dim: #939da6;
  --line: #343a40;
  --agent: #1d2a38; --human: #26261f; --good: #5fd097; --good-soft: #173d2a; --some: #e5b454; --some-soft: #43350f;
  --bad: #f08a80;
  --bad-soft: #43201d; --accent: #7db4ee; --good-mark: #23663f; --bad-mark: #7d332c; } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
main, header { max-width: 1240px; margin: 0 auto; padding: 0 20px }
header { padding-top: 24px }
h1 { font-size: 24px; margin: 0 } h2 { font-size: 18px; margin: 32px 0 8px } h3 { font-size: 15px; margin: 0 }
.dim { color: var(--dim) } .small { font-size: 13px }
.scroll { overflow-x: auto }
table.numbers { border-collapse: collapse; font-variant-numeric: tabular-nums; background: var(--card) }
table.numbers th, table.numbers td { padding: 6px 12px; border: 1px solid var(--line); text-align: left;
  white-space: nowrap }
table.numbers th { font-weight: 600; color: var(--dim); font-size: 13px; white-space: normal; max-width: 11em }
.charts { display: flex; flex-wrap: wrap; gap: 12px }
.charts figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 8px;
  max-width: 100%; overflow-x: auto }
figcaption { font-size: 13px; font-weight: 600 }
svg text { font: 11px system-ui, sans-serif; fill: var(--dim) }
svg .axis { stroke: var(--line) } svg .zero { stroke: var(--dim); stroke-dasharray: 2 3 }
svg .a { stroke: var(--accent); fill: none; stroke-width: 1.8 }
svg .b { stroke: var(--bad); fill: none; stroke-width: 1.8 }
svg .raw { opacity: .28; stroke-width: 1 } svg .dot { fill: var(--accent); stroke: none }
svg .up { fill: var(--good) } svg .down { fill: var(--bad) }
svg text.name { fill: var(--ink); font-size: 12px } svg text.a { fill: var(--accent); stroke: none }
svg text.b { fill: var(--bad); stroke: none }
nav { position: sticky; top: 0; z-index: 2; background: var(--paper); border-bottom: 1px solid var(--line);
  padding: 10px 0; margin-top: 20px;
  display: flex; flex-wrap: wrap; gap: 10px; align-items: center }
nav select, nav input, nav button { font: inherit; font-size: 14px; padding: 4px 8px;
  border: 1px solid var(--line); border-radius: 5px;
  background: var(--card); color: var(--ink) }
nav input { flex: 1 1 160px; min-width: 0 }
section.task { margin: 18px 0 }
section.task > p { margin: 2px 0 8px; white-space: pre-wrap; overflow-wrap: anywhere }
details.episode { background: var(--card); border: 1px solid var(--line); border-radius: 6px; margin: 6px 0 }
details.episode > summary { display: flex; flex-wrap: wrap; gap: 10px; align-items: center; padding: 8px 12px;
  cursor: pointer; list-style: none }
details.episode > summary::before { content: "\\25B8"; color: var(--dim); width: 1em }
details.episode[open] > summary::before { content: "\\25BE" }
details.episode > div { padding: 4px 14px 16px; border-top: 1px solid var(--line) }
.run { font-weight: 600; min-width: 5em } .grow { flex: 1 }
.pill { border-radius: 10px; padding: 0 9px; font-size: 13px; font-variant-numeric: tabular-nums;
  white-space: nowrap; background: var(--human); color: var(--dim) }
.pill.good { background: var(--good-soft); color: var(--good) }
.pill.some { background: var(--some-soft); color: var(--some) }
.pill.bad { background: var(--bad-soft); color: var(--bad) }
.chat { max-width: 980px }
.turn { display: flex; margin: 8px 0 }
.turn.assistant { justify-content: flex-end }
.bubble { max-width: 78%; border-radius: 10px; padding: 7px 12px; background: var(--human); overflow-wrap: anywhere }
.assistant .bubble { background: var(--agent) }
.who { font-size: 12px; color: var(--dim); display: flex; gap: 10px; align-items: center }
.text { white-space: pre-wrap }
.bubble pre, .thought { font-size: 13px } .thought summary { color: var(--dim); cursor: pointer; font-size: 12px }
pre { margin: 6px 0; white-space: pre-wrap; font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace;
  overflow-wrap: anywhere }
h4 { margin: 18px 0 6px; font-size: 13px; text-transform: uppercase; letter-spacing: .04em; color: var(--dim) }
table.diff { width: 100%; border-collapse: collapse; table-layout: fixed; border: 1px solid var(--line);
  font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace }
table.diff th { text-align: left; font: 600 13px system-ui, sans-serif; padding: 4px 8px;
  border-bottom: 1px solid var(--line) }
table.diff th, table.diff td { width: 50% }
table.diff th.no, table.diff td.no { width: 34px; color: var(--dim); text-align: right; padding-right: 6px;
  user-select: none }
table.diff td { white-space: pre-wrap; overflow-wrap: anywhere; padding: 0 8px; vertical-align: top }
table.diff td.gone { background: var(--bad-soft) } table.diff td.new { background: var(--good-soft) }
table.diff td.none { background: var(--human) }
table.diff del, table.diff ins { text-decoration: none; border-radius: 2px; font-weight: 700 }
table.diff del { background: var(--bad-mark) } table.diff ins { background: var(--good-mark) }
ul.tests, ul.facts { list-style: none; padding: 0; margin: 0; font-size: 13px }
ul.tests li { display: flex; gap: 10px; align-items: baseline; margin: 2px 0 }
ul.tests .pill { min-width: 9em; text-align: center }
ul.tests code { overflow-wrap: anywhere; font: 13px ui-monospace, Menlo, Consolas, monospace }
ul.facts { display: flex; flex-wrap: wrap; gap: 6px }
.pages { display: flex; gap: 14px; margin: 6px 0; align-items: flex-start }
.pages figure { margin: 0; flex: 1; min-width: 0 }
.pages img, .pages svg { width: 100%; height: auto; border: 1px solid var(--line); border-radius: 4px;
  display: block; background: #fff }
.bubble.wide { width: 78%; max-width: 800px }
[hidden] { display: none !important }
@media (max-width: 700px) { .bubble { max-width: 95% } table.diff { font-size: 11px } }
@media print { nav { display: none } }
"""

SCRIPT = """
const all = (query, node) => [...(node || document).querySelectorAll(query)];
const value = id => document.getElementById(id).value;
function filter() {
  const words = value("words").toLowerCase();
  let shown = 0;
  for (const task of all("section.task")) {
    let some = false;
    const request = all(":scope > h3, :scope > p", task).map(node => node.textContent).join(" ").toLowerCase();
    for (const card of all("details.episode", task)) {
      const fits = ["run", "result", "finish"].every(name => !value(name) || card.dataset[name] === value(name))
        && (!words || request.includes(words) || card.textContent.toLowerCase().includes(words));
      card.hidden = !fits; some = some || fits; shown += fits;
    }
    task.hidden = !some;
  }
  document.getElementById("shown").textContent = shown + " shown";
}
for (const id of ["run", "result", "finish"]) document.getElementById(id).addEventListener("change", filter);
let timer;
const wait = () => { clearTimeout(timer); timer = setTimeout(filter, 150); };
document.getElementById("words").addEventListener("input", wait);
const fold = open => all("details.episode").forEach(card => { if (!card.hidden) card.open = open; });
document.getElementById("open").addEventListener("click", () => fold(true));
document.getElementById("close").addEventListener("click", () => fold(false));
filter();
"""


def e(value):
    """Text for HTML: every character that could end a text or an attribute is escaped; what HTML cannot hold (control
    characters, halves of surrogate pairs) is replaced."""
    text = str(value).encode("utf-8", "replace").decode()
    return html.escape(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", "\ufffd", text), quote=True)


def hash_of(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def html_table(rows):
    head = "".join(f"<th>{e(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{e(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f'<div class="scroll"><table class="numbers"><tr>{head}</tr>{body}</table></div>'


def whiskers(result, metric):
    """One line per run: the metric as a dot, its interval as a bar."""
    runs = [(name, run["metrics"][metric]) for name, run in result.items() if metric in run["metrics"]]
    high = max(numbers["high"] for _, numbers in runs) or 1.0
    step = next(step for step in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5) if high / step <= 6)
    top = step * math.ceil(high / step)
    label = 10 + 7 * max(len(name) for name, _ in runs)
    label, width, row = min(label, 260), 420, 24
    title, base = METRICS[metric][2], row * len(runs)
    at = lambda value: label + width * value / top
    parts = [f'<svg width="{label + width + 60}" height="{base + 24}" role="img" aria-label="{e(title)} of each run">']
    for tick in range(round(top / step) + 1):
        x = at(tick * step)
        number = show(tick * step, METRICS[metric][3])
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{base}"/>'
                     f'<text x="{x:.1f}" y="{base + 15}" text-anchor="middle">{number}</text>')
    for number, (name, numbers) in enumerate(runs):
        y = row * number + row / 2
        parts.append(f'<text class="name" x="{label - 8}" y="{y + 4}" text-anchor="end">{e(name[:36])}</text>'
                     f'<line class="a" x1="{at(numbers["low"]):.1f}" x2="{at(numbers["high"]):.1f}" y1="{y}" y2="{y}"/>'
                     f'<circle class="dot" cx="{at(numbers["value"]):.1f}" cy="{y}" r="4.5"/>')
    return f'<figure><figcaption>{e(title)} with 95% interval</figcaption>{"".join(parts)}</svg></figure>'


def short(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def curve(title, lines):
    """A small line chart. lines: {label: [(step, value)]}, at most two;
    many steps are drawn pale, their mean on top."""
    width, height, left, base = 330, 150, 56, 20
    points = [point for line in lines.values() for point in line]
    (x0, x1), (y0, y1) = ((min(values), max(values)) for values in zip(*points))
    x1, margin = max(x1, x0 + 1), (y1 - y0 or abs(y0) or 1) * 0.06
    y0, y1 = y0 - margin, y1 + margin
    across, down = (width - left - 8) / (x1 - x0), (height - base - 8) / (y1 - y0)
    at = lambda x, y: f"{left + across * (x - x0):.1f},{8 + down * (y1 - y):.1f}"
    parts = [f'<svg width="{width}" height="{height}" role="img" aria-label="{e(title)}">',
             f'<line class="axis" x1="{left}" x2="{left}" y1="8" y2="{height - base}"/>',
             f'<line class="axis" x1="{left}" x2="{width - 8}" y1="{height - base}" y2="{height - base}"/>',
             f'<text x="{left - 5}" y="17" text-anchor="end">{short(y1 - margin)}</text>',
             f'<text x="{left - 5}" y="{height - base}" text-anchor="end">{short(y0 + margin)}</text>',
             f'<text x="{left}" y="{height - 5}">step {x0:g}</text>',
             f'<text x="{width - 8}" y="{height - 5}" text-anchor="end">{x1:g}</text>']
    if y0 < 0 < y1:
        y = at(x0, 0).split(",")[1]
        parts.append(f'<line class="zero" x1="{left}" x2="{width - 8}" y1="{y}" y2="{y}"/>')
    for number, (label, line) in enumerate(lines.items()):
        name = "ab"[number]
        size = max(1, math.ceil(len(line) / 60))
        bins = [line[start:start + size] for start in range(0, len(line), size)]
        means = [tuple(sum(values) / len(part) for values in zip(*part)) for part in bins]
        if size > 1:
            pale = line[::max(1, len(line) // 600)]
            parts.append(f'<polyline class="{name} raw" points="{" ".join(at(*point) for point in pale)}"/>')
        parts.append(f'<polyline class="{name}" points="{" ".join(at(*point) for point in means)}"/>')
        if len(lines) > 1:
            parts.append(f'<text class="{name}" x="{left + 8 + 70 * number}" y="18">{e(label)}</text>')
    return f'<figure><figcaption>{e(title)}</figcaption>{"".join(parts)}</svg></figure>'


def training_curves(folders):
    """Charts of every metrics.jsonl in the folders and one below:
    each number against its step, chosen beside rejected."""
    for path in sorted({path for folder in folders
                        for name in ("metrics.jsonl", "*/metrics.jsonl") for path in folder.glob(name)}):
        values = {}
        for number, row in enumerate(read_jsonl(path), start=1):
            for name, value in row.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                    step = row.get("step")
                    values.setdefault(name, []).append((step if isinstance(step, int | float) else number, value))
        charts = {}
        for name in sorted(values.keys() - {"step", "epoch"},
                           key=lambda name: (name != "loss", "accuracy" not in name, name)):
            title, _, side = name.rpartition("_")
            title, line = (title, side) if side in ("chosen", "rejected") and title else (name, name)
            charts.setdefault(title.replace("_", " "), {})[line] = values[name]
        if charts:
            drawn = "".join(curve(title, lines) for title, lines in list(charts.items())[:12])
            yield f'<h3>{e(path.parent)}</h3><div class="charts">{drawn}</div>'


def marked(text, other, tag):
    """`text` with the pieces that `other` does not have between tags; unmarked where hardly anything agrees."""
    pieces, others = re.findall(r"\w+|\s+|.", text), re.findall(r"\w+|\s+|.", other)
    matcher, parts = difflib.SequenceMatcher(None, pieces, others, autojunk=False), []
    if matcher.ratio() < 0.4:
        return e(text)
    for operation, start, end, _, _ in matcher.get_opcodes():
        piece = e("".join(pieces[start:end]))
        parts.append(piece if operation == "equal" or not piece.strip() else f"<{tag}>{piece}</{tag}>")
    return "".join(parts)


def side_by_side(reference, answer):
    """Reference and answer as a table with equal lines beside each other and differences marked."""
    left, right = ([line.rstrip() for line in text.strip("\n").splitlines()][:400] for text in (reference, answer))
    rows = []
    for operation, a, b, c, d in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for offset in range(max(b - a, d - c)):
            one, two = (left[a + offset] if a + offset < b else None), (right[c + offset] if c + offset < d else None)
            if operation == "replace" and one is not None and two is not None and max(len(one), len(two)) < 2000:
                cells = marked(one, two, "del"), marked(two, one, "ins")
            else:
                cells = e(one or ""), e(two or "")
            row = ""
            for text, first, cell, kind in ((one, a, cells[0], "gone"), (two, c, cells[1], "new")):
                kind = "none" if text is None else "" if operation == "equal" else kind
                row += f'<td class="no">{"" if text is None else first + offset + 1}</td><td class="{kind}">{cell}</td>'
            rows.append(f"<tr>{row}</tr>")
    head = '<tr><th class="no"></th><th>reference</th><th class="no"></th><th>answer</th></tr>'
    return f'<table class="diff">{head}{"".join(rows)}</table>'


def advantage_bar(value, scale):
    """An advantage as a bar that leaves the middle to the right (better) or to the left (worse)."""
    length = min(1.0, abs(value) / scale) * 48 if scale else 0
    x = 50 if value >= 0 else 50 - length
    return (f'<svg width="100" height="10" role="img" aria-label="advantage {value:+.3f}">'
            f'<line class="axis" x1="50" x2="50" y1="0" y2="10"/>'
            f'<rect class="{"up" if value >= 0 else "down"}" x="{x:.1f}" y="1" width="{length:.1f}" height="8"/></svg>'
            f'<span>advantage {value:+.3f}</span>')


def advantages_of(record):
    """One advantage, or None, per assistant turn: `advantage` in the turn, or the list `advantages` of the record."""
    listed = record.get("advantages") or []
    replies = replies_of(record)
    listed = [*listed, *[None] * len(replies)]
    found = [turn.get("advantage", other) for turn, other in zip(replies, listed)]
    return [value if isinstance(value, (int, float)) and math.isfinite(value) else None for value in found]


def dialogue(record, pages):
    """The turns as a chat: the human left, the agent right, its thought (what stood before OUTPUT:) folded away.

    `pages` (frontend) shows a reply's page beside the reference; the page's source is folded away then.
    """
    advantages = advantages_of(record)
    scale = max((abs(value) for value in advantages if value is not None), default=0)
    parts, reply = [], 0
    for turn in record["dialogue_history"]:
        if turn["role"] != "assistant":
            parts.append(bubble("human", "", f'<div class="text">{e(turn["content"])}</div>'))
            continue
        value, reply = advantages[reply], reply + 1
        thought = (turn.get("output") or "").rpartition(OUTPUT_MARK)[0].strip()
        pictures = pages.beside_reference(record, turn) if pages else ""
        said, mark, code = turn["content"].partition(ANSWER_MARK)
        body = folded("thought", f'<div class="text">{e(thought)}</div>') if thought else ""
        if pictures:
            body += ((f"<b>{e(mark)}</b>" if mark else "") + pictures
                     + folded("source", f'<pre>{e(turn["content"])}</pre>'))
        else:
            body += (f'<div class="text">{e(said)}</div>'
                     + (f"<b>{e(mark)}</b><pre>{e(code.strip())}</pre>" if mark else ""))
        bar = advantage_bar(value, scale) if value is not None else ""
        parts.append(bubble(f"agent, turn {reply} {bar}", " assistant", body, " wide" if pictures else ""))
    return f'<div class="chat">{"".join(parts)}</div>'


def bubble(who, side, body, width=""):
    return (f'<div class="turn{side}"><div class="bubble{width}"><div class="who">{who}</div>{body}</div></div>')


def folded(title, body):
    return f'<details class="thought"><summary>{title}</summary>{body}</details>'


def details_of(record):
    """The hidden details as chips: which the human told the agent, which it never did."""
    chips = []
    for fact, told in told_facts(record):
        kind, words = ("good", "told") if told else ("bad", "never told")
        chips.append(f'<li class="pill {kind}" title="{e(fact["reply"])}">{words}: {e(fact.get("detail", "?"))}</li>')
    return f'<h4>Hidden details</h4><ul class="facts">{"".join(chips)}</ul>' if chips else ""


def test_results(record):
    items = []
    for label, status in (record.get("tests") or {}).items():
        call = record["task"].get("test_cases", {}).get(label, "")
        kind = "good" if status == "passed" else "bad"
        items.append(f'<li><span class="pill {kind}">{e(status)}</span><code>{e(call)}</code></li>')
    return f'<h4>Tests</h4><ul class="tests">{"".join(items)}</ul>' if items else ""


def result_of(record):
    """What the reward amounts to, in words that the report filters by, and the colour of it."""
    reward = record["reward"]
    if record["domain"] == "backend":
        return (("all tests pass", "good") if reward >= 1
                else ("some tests pass", "some") if reward else ("no test passes", "bad"))
    if record.get("page", "ok") != "ok":
        return "blank or broken page", "bad"
    return ("cosine from 0.9", "good") if reward >= 0.9 else ("cosine from 0.7", "some") if reward >= 0.7 else (
        "cosine below 0.7", "bad")


def episode(name, record, pages):
    """One dialogue as a card that opens."""
    result, kind = result_of(record)
    end = record["finish"].split(":")[0]
    turns, pills = len(replies_of(record)), []
    answer = extract_code(record["answer"]) if record["answer"] is not None else "(no answer)"
    if "reward_released" in record:
        pills.append(f"released evaluator {record['reward_released']:.2f}")
    if record.get("cosine"):
        pills += [*(f"{view} {record['cosine'][view]:.3f}" for view in VIEWS), record["page"]]
    sources = side_by_side(record["task"]["ground_truth"], answer)
    summary = (
        f'<span class="run">{e(name)}</span><span class="pill {kind}">{record["reward"]:.2f} {e(result)}</span>'
        + "".join(f'<span class="pill">{e(text)}</span>' for text in pills)
        + f'<span class="pill{"" if end == "answered" else " some"}">{e(record["finish"][:80])}</span>'
        f'<span class="dim small">{turns} turn{"s" * (turns != 1)}, sample {e(record["sample"])}</span>')
    body = (
        f"<h4>Dialogue</h4>{dialogue(record, pages)}{details_of(record)}"
        + (folded("sources beside each other", sources) if pages else f"<h4>Reference and answer</h4>{sources}")
        + test_results(record))
    return (f'<details class="episode" data-run="{e(name)}" data-result="{e(result)}" data-finish="{e(end)}">'
            f"<summary>{summary}</summary><div>{body}</div></details>\n")


def chosen_tasks(summaries, limit):
    """The first tasks of the first run, as many as fit into `limit` dialogues over all runs (but at least one)."""
    sizes = Counter()
    for summary in summaries.values():
        for task, row in zip(summary["tasks"], summary["sums"]):
            sizes[task] += int(row[COLUMN["samples"]])
    chosen, room = [], limit
    for task in dict.fromkeys(task for summary in summaries.values() for task in summary["tasks"]):
        if chosen and sizes[task] > room:
            break
        chosen.append(task)
        room -= sizes[task]
    return chosen


class PagePictures:
    """Small pictures of pages for the report, each page rendered once;
    a task's reference is stored once, used often."""

    def __init__(self, workers):
        from render import Renderer, extract_page

        self.renderer, self.extract_page = Renderer(workers), extract_page
        self.known, self.references = {}, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.renderer.close()

    def image(self, page):
        """A page's picture, 360 pixels wide, cut at three screens; None if broken."""
        from PIL import Image

        picture = self.renderer.render(page)
        if picture.status != "ok":
            return None
        image = Image.fromarray(picture.rgb[:3 * 1280])
        return image.resize((360, max(1, round(image.height * 360 / image.width))), Image.Resampling.BOX)

    def small(self, page):
        """(data address, width, height) of a page's picture; None if broken."""
        image = self.image(page)
        if image is None:
            return None
        data = io.BytesIO()
        image.save(data, "WEBP", quality=55, method=4)
        return "data:image/webp;base64," + base64.b64encode(data.getvalue()).decode(), *image.size

    def beside_reference(self, record, turn):
        """The page of a reply and the reference as two figures; "" for a reply without a page."""
        page = self.extract_page(turn.get("output") or turn["content"])
        if not page:
            return ""
        reference = record["task"]["ground_truth"]
        if reference not in self.references:
            self.references[reference] = (f"page{len(self.references)}", self.small(reference))
        number, theirs = self.references[reference]
        if page not in self.known:
            self.known[page] = self.small(page)
        mine = self.known[page]
        left = right = "could not be rendered"
        if mine:
            left = f'<img src="{mine[0]}" width="{mine[1]}" height="{mine[2]}" alt="the agent\'s page">'
        if theirs:
            size = f"0 0 {theirs[1]} {theirs[2]}"
            right = f'<svg viewBox="{size}" role="img" aria-label="reference page"><use href="#{number}"/></svg>'
        return (f'<div class="pages"><figure>{left}<figcaption>agent</figcaption></figure>'
                f"<figure>{right}<figcaption>reference</figcaption></figure></div>")

    def stored(self):
        """The references, for the `use` elements to point at."""
        images = "".join(f'<image id="{number}" href="{picture[0]}" width="{picture[1]}" height="{picture[2]}"/>'
                         for number, picture in self.references.values() if picture)
        return f'<svg width="0" height="0"><defs>{images}</defs></svg>' if images else ""


def write_report(path, named, result, summaries, args, pages=None):
    """Tables, curves and dialogues of the scored files `named` {name: path} into one HTML file, a piece at a time."""
    chosen = chosen_tasks(summaries, args.report_limit)
    episodes, requests, seen, results = {task: [] for task in chosen}, {}, Counter(), {}
    for name, file in named.items():
        seen.clear()
        for number, record in enumerate(read_jsonl(file), start=1):
            complete(record, number, file, args.domain, seen)
            if record["task_id"] in episodes:
                results[result_of(record)[0]] = True
                requests.setdefault(record["task_id"], record["task"].get("problem_description", ""))
                episodes[record["task_id"]].append(episode(name, record, pages))
    total = sum(int(summary["sums"][:, COLUMN["samples"]].sum()) for summary in summaries.values())
    shown = sum(map(len, episodes.values()))
    rows = comparison_rows(result) if len(result) > 1 else metric_rows(next(iter(result.values()))["metrics"])
    ends = sum((summary["ends"] for summary in summaries.values()), Counter())
    folders = args.runs_dir or sorted({Path(file).parent for file in named.values()})
    options = lambda values: "".join(f'<option value="{e(value)}">{e(value)}</option>' for value in values)
    several = len(named) > 1
    policy = (f"default-src 'none'; img-src data:; style-src {hash_of(STYLE)}; script-src {hash_of(SCRIPT)}; "
              "base-uri 'none'; form-action 'none'")
    with whole_or_nothing(path) as partial, open(partial, "w", encoding="utf-8") as out:
        out.write(
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            f"<title>{e(', '.join(named))}</title><style>{STYLE}</style></head><body><header>"
            f"<h1>{e(' / '.join(named))}</h1>"
            f"<p class=\"dim\">{e(', '.join(map(str, named.values())))}</p>{html_table(rows)}"
            '<p class="small dim">95% intervals: bootstrap over tasks. '
            + (f"Differences are paired: the same tasks, in points, against {e(next(iter(result)))}."
               if several else "") + "</p>")
        if several:
            shown_metrics = [metric for metric in HEADLINES if metric in next(iter(result.values()))["metrics"]]
            out.write('<div class="charts">' + "".join(whiskers(result, metric) for metric in shown_metrics) + "</div>")
        for name, run in result.items():
            what = "pages" if run["metrics"]["domain"] == "frontend" else "tests"
            statuses = f"; {what}: {shares(Counter(run['metrics']['statuses']))}" if run["metrics"]["statuses"] else ""
            ended = shares(Counter(run["metrics"]["finish"]))
            out.write(f'<p class="small"><b>{e(name)}</b> ended: {e(ended)}{e(statuses)}</p>')
        curves = list(training_curves(folders))
        if curves:
            out.write("<h2>Training</h2>" + "".join(curves))
        out.write(
            '</header><main><h2>Dialogues</h2><p class="dim small">'
            f'{shown:,} of {total:,}: the first {len(chosen):,} tasks, '
            f'every sample{" and run" if several else ""} of each. --report-limit shows more.</p><nav>'
            f'<select id="run"{"" if several else " hidden"}>'
            f'<option value="">every run</option>{options(named)}</select>'
            f'<select id="result"><option value="">every result</option>{options(sorted(results))}</select>'
            f'<select id="finish"><option value="">every end</option>{options(sorted(ends))}</select>'
            '<input id="words" type="search" placeholder="find in requests, dialogues and code">'
            '<button id="open">open all</button><button id="close">close all</button>'
            '<span id="shown" class="dim small"></span></nav>\n')
        for task in chosen:
            request = e(requests.get(task, ""))
            out.write(f'<section class="task"><h3>{e(task)}</h3><p>{request}</p>{"".join(episodes[task])}</section>\n')
        out.write(f"</main>{pages.stored() if pages else ''}<script>{SCRIPT}</script></body></html>\n")
    print(f"wrote {path}: {shown:,} of {total:,} dialogues, {path.stat().st_size / 1e6:.1f} MB; open it in a browser")


def write_picture(path, named, tasks, pages):
    """One picture: a row for each of `tasks`, with each run's page (first sample), its cosine, and the reference."""
    from PIL import Image, ImageDraw, ImageFont

    rows = {task: [] for task in tasks}  # task -> [(caption, page)]
    for name, file in named.items():
        seen, references = set(), {}
        for record in read_jsonl(file):
            task = record["task_id"]
            if task in rows and task not in seen:
                seen.add(task)
                page = page_of(record, pages.extract_page)
                rows[task].append((f"{name}: cosine {record['reward']:.3f}" if page else f"{name}: no page", page))
                references[task] = record["task"]["ground_truth"]
    for task, reference in references.items():
        rows[task].append(("reference", reference))
    known = {page: pages.image(page) for row in rows.values() for _, page in row if page}
    heights = [24 + max((known[page].height for _, page in row if known.get(page)), default=0) for row in rows.values()]
    sheet = Image.new("RGB", (370 * max(map(len, rows.values())) + 10, sum(heights) + 10), "#d6d9dc")
    pen, top = ImageDraw.Draw(sheet), 0
    for row, height in zip(rows.values(), heights):
        for column, (caption, page) in enumerate(row):
            pen.text((370 * column + 10, top + 6), caption, fill="black", font=ImageFont.load_default(14))
            if known.get(page):
                sheet.paste(known[page], (370 * column + 10, top + 24))
        top += height
    with whole_or_nothing(path) as partial:
        sheet.quantize(256).save(partial, "PNG", optimize=True)  # pages have few colours
    print(f"wrote {path}: {len(rows)} tasks, {path.stat().st_size / 1e3:.0f} kB")


# ---------------------------------------------------------------------------------------------------------------------


def named_files(pairs):
    """{name: [paths]} of --compare; several paths where a pattern names the seeds of one run."""
    named = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals or not name or not path:
            die(f"--compare takes NAME=FILE, such as base=runs/base/test.scored.jsonl, not {pair!r}")
        if name in named:
            die(f"--compare has the name {name!r} twice; each run needs its own")
        named[name] = [Path(path)] if Path(path).is_file() else sorted(map(Path, glob.glob(path)))
        if not named[name]:
            die(f"{path} (run {name!r} of --compare) is not there; "
                "evaluate.py --in ...trajectories.jsonl writes scored files")
    return named


def write_json(path, value, said=True):
    with whole_or_nothing(path) as partial:
        partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    if said:
        print(f"wrote {path}")


def next_command(args, frontend):
    """What comes after scoring: the critic of the run in whose folder the file lies, or a comparison."""
    if "train" not in args.out.name:
        return (f"python evaluate.py --compare NAME={shlex.quote(str(args.out))} NAME=... puts runs side by side; "
                "--report FILE.html shows the dialogues")
    folder = args.out.parent.as_posix()
    run = folder.removeprefix("runs/") if folder.startswith("runs/") else args.run
    default = args.out == Path("runs") / run / "train.scored.jsonl"
    return shlex.join(["python", "train_critic.py", *(["--run", run] if run != "default" else []),
                       *(["--domain", "frontend"] if frontend else []), *([] if default else ["--in", str(args.out)])])


def main():
    args = parse_args()
    outputs = args.report, args.json, args.picture
    if args.compare:
        named = named_files(args.compare)
        for path in filter(None, outputs):
            check_output(path, *itertools.chain(*named.values()))
        interruptible()
        if any(len(files) > 1 for files in named.values()):
            if args.report or args.picture:
                die("--report and --picture show one run a name: give them one file for each")
            result = compare_seeds(named, args)
            print(markdown(comparison_rows(result)))
            for metric in (metric for metric in HEADLINES if metric in next(iter(result.values()))["metrics"]):
                for name, run in result.items():
                    values = [show(seed["metrics"][metric]["value"], METRICS[metric][3]) for seed in run["seeds"]]
                    print(f"{METRICS[metric][2]}, {plain(name)}, seed by seed: {', '.join(values)}")
            if args.json:
                write_json(args.json, result)
            return
        named = {name: files[0] for name, files in named.items()}
        summaries = {name: summarise(path, args.domain) for name, path in named.items()}
        result = compare(summaries, args)
        print(markdown(comparison_rows(result)))
        if args.json:
            write_json(args.json, result)
    else:
        args.input = args.input or Path("runs") / args.run / f"{args.split}.trajectories.jsonl"
        if args.input.is_dir():
            die(f"--in {args.input} is a folder; name a file of trajectories in it")
        name = args.input.name.removesuffix(".jsonl").removesuffix(".trajectories")
        args.out = args.out or args.input.with_name(f"{name}.scored.jsonl")
        if args.out.suffix != ".jsonl":
            die(f"--out {args.out} must end in .jsonl: its settings and metrics get their names from it")
        for path in filter(None, (args.out, *outputs)):
            check_output(path, args.input)
        score(args)
        named = {name: args.out}
        summaries = {name: summarise(args.out, args.domain)}
        metrics = metrics_of(summaries[name], args)
        print_metrics(metrics)
        print(f"wrote {args.out}")
        stem = args.out.name.removesuffix(".jsonl").removesuffix(".scored")
        write_json(args.out.with_name(f"{stem}.metrics.json"), metrics)
        result = {name: {"metrics": metrics, "against": None, "difference": None}}
    frontend = any(summary["domain"] == "frontend" for summary in summaries.values())
    if args.picture and not frontend:
        die("--picture shows pages; these are backend episodes")
    if frontend and (args.report or args.picture):
        try:
            pages = PagePictures(args.workers)
        except RuntimeError as problem:
            die(f"pictures of the pages are needed: {problem}")
        with pages:
            if args.report:
                write_report(args.report, named, result, summaries, args, pages)
            if args.picture:
                tasks = sorted(next(iter(summaries.values()))["tasks"])
                write_picture(args.picture, named, tasks[:args.picture_tasks], pages)
    elif args.report:
        write_report(args.report, named, result, summaries, args)
    if not args.compare:
        print(f"next: {next_command(args, frontend)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nevaluate.py: stopped; the same command goes on where it stopped", file=sys.stderr)
        sys.stdout.flush()
        os._exit(130)    # what is still at work in threads is not waited for
    except OSError as error:
        die(f"{error.filename or 'a file'}: {error.strerror or error}")
