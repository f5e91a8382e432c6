"""Score trajectories, compute metrics with intervals, compare runs, and write an HTML report of the dialogues.

Backend: the reward is the share of the task's hidden tests that the answer passes. A test is a call; its expected value
is what the reference returns. sandbox.py runs answer and reference in separate processes. Frontend: the reward is the
cosine of two image embeddings, of the answer's page and of the reference page (render.py renders both).

    backend    reward(tau)  = 1/K sum_k [ answer(call_k) == reference(call_k) ]      in [0, 1], K = 10 in ColBench
               success(tau) = [ reward(tau) == 1 ]                      up to rounding; also within k turns
    frontend   reward(tau)  = max(0, cos(f(answer), f(reference)))                   f = --encoder
               with --reward choices the share of the task's hidden choices that the answer's page has right
               win(a, b)    = [ reward(a) > reward(b) ] + 1/2 [ reward(a) == reward(b) ]     mean over common tasks

Every metric is a ratio m = sum_i a_i / sum_i b_i over tasks i, where a_i and b_i are sums over the task's samples. For
the success rate, a_i counts successes and b_i counts samples. The 95% interval is a percentile bootstrap over TASKS,
because samples of one task are not independent. The bootstrap fails for shares near 0 and 1. Those get Wilson's
interval, with the effective number of tasks n = (sum_i b_i)^2 / sum_i b_i^2. Runs are compared on the tasks that all of
them have (same name, request, reference and tests). Both runs are resampled with the same draws of tasks (a paired
difference), so that task difficulty cancels.

Departures from the paper and its released code
- An episode without an answer (the engine or the simulator failed) scores 0. The table shows the share of failures.
- The paper gives no intervals. The released code reports the best of k samples; here every sample counts.
- The released code runs programs in its own process, in a function's local scope, and only checks them for forbidden
  words. --mode released applies its rules inside the sandbox.
- Frontend: the reward compares whole pages. CLIP's processor keeps only their centre; that cosine is recorded as well.
- Frontend: the page is taken from the answer, or else from the last reply. A page that is missing or cannot be rendered
  scores 0. The released code takes the last page shown at any turn, or else a black image.

Reads   runs/{run-name}/{split}.trajectories.jsonl, or the scored files of --compare; cost.json of the models they name
Writes  runs/{run-name}/{split}.scored.jsonl: the records plus `reward` and `sandbox` (its layers); backend: `tests`
        (one status per test), `mode`, `call_timeout`, `program_timeout`; frontend: `cosine` (both views), `choices`,
        `page` (ok, blank, ...), `encoder`. Beside it .scored.settings.json, .metrics.json; one HTML file with --report
Records are appended as they are scored, in input order. A stopped run resumes with the same command.

    python evaluate.py --split train
    python evaluate.py --in runs/default/test.trajectories.jsonl --report runs/default/report.html
    python evaluate.py --compare base=runs/a/test.scored.jsonl sweet=runs/b/test.scored.jsonl --report runs/b/ab.html
    python evaluate.py --in runs/b/a.trajectories.jsonl --report a.html --curves critic=runs/b/critic

To add an environment, add a row to ENVIRONMENTS.
"""
import argparse
import ast
import base64
import builtins
import difflib
import functools
import hashlib
import io
import itertools
import json
import math
import os
import re
import warnings
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np
from tqdm import tqdm

from records import (
    ANSWER_MARK, COSTS, Output, atomic_write, check_path, die, fingerprint, number, parse_lines, read, refuse_idle,
    run_script, sign_of_end, succeeded, write_json)
from sandbox import CALL_TIMEOUT, PROGRAM_TIMEOUT, Sandbox

VIEWS = ("page", "centre")    # the whole page, and the part that CLIP's processor keeps


# ---- Rewards


def score_programs(records, args):
    """Yield each backend record with `reward`, `tests` and `sandbox` added, in order."""
    with Sandbox(workers=args.workers, call_timeout=args.call_timeout, program_timeout=args.program_timeout,
                 unsafe=args.unsafe) as box:
        program = answer_of if args.mode == "released" else program_of
        jobs = ((record, record["task"], program(record)) for record in records)
        for record, tests in box.score_many(jobs, args.mode):
            if record["answer"] is None:
                tests = dict.fromkeys(tests, "no answer")
            passed = list(tests.values()).count("passed")
            yield record | {
                "sandbox": box.layers,
                "reward": passed / len(tests),
                "tests": tests,
            }


def score_pages(records, args):
    """Yield each frontend record with `reward` and how it was computed, in order. Each page is rendered once."""
    from page_words import choices_right
    from render import Renderer, cosine, load_encoder
    try:
        embed = load_encoder(args.encoder)
        renderer = Renderer(args.workers)
    except RuntimeError as problem:
        die(problem)

    def look_at(page, measured):
        """(status, {view: embedding}, layout) of a page."""
        if not page:
            return "no page", {}, None
        picture = renderer.render(page, measured)
        if not picture.png:
            return picture.status, {}, None
        status = "blank" if picture.blank and picture.status == "ok" else picture.status
        return status, {view: embed(picture, view) for view in VIEWS}, picture.layout

    @functools.lru_cache(4096)
    def submit(page, measured):
        return threads.submit(look_at, page, measured)

    def begin(record):
        """A record with futures of what is seen of the reference and of the answer."""
        measured = bool(record["task"].get("choices")) or embed.name == "layout"    # layouts judge the choices
        return record, submit(record["task"]["ground_truth"], measured), submit(page_of(record), measured)

    with renderer, ThreadPoolExecutor(2 * args.workers) as threads:    # some render, others embed
        begun = map(begin, records)
        waiting = list(itertools.islice(begun, 2 * args.workers))
        while waiting:
            record, reference, answer = waiting.pop(0)
            waiting += itertools.islice(begun, 1)
            reference_status, theirs, reference_layout = reference.result()
            status, ours, layout = answer.result()
            if not theirs:
                status, ours, layout = f"reference {reference_status}", {}, None
            cosines = {view: cosine(ours[view], theirs[view]) if ours else 0.0 for view in VIEWS}
            choices = choices_right(record["task"].get("choices") or {}, layout, reference_layout)
            reward = cosines["page"]
            if args.reward_from == "choices":
                if not choices:
                    die(f"task {record['task'].get('task_id')} has no choices, which --reward choices counts")
                reward = sum(choices.values()) / len(choices)
            yield record | {
                "reward": min(1.0, max(0.0, reward)),
                "reward_from": args.reward_from,
                "cosine": cosines,
                "choices": choices,
                "encoder": embed.name,
                "page": status,
                "sandbox": {"isolation": renderer.isolation, "chromium": renderer.version},
            }


def page_of(record):
    """The page in an answer, or None. In released records the answer names an image file; the last reply has a page."""
    from render import extract_page
    if record["answer"] is None:
        return None
    texts = [turn["content"] for turn in replies(record)]
    return extract_page(record["answer"]) or extract_page(texts[-1] if texts else "")


def answer_of(record):
    return record["answer"] or ""


def replies(record):
    return [turn for turn in record["dialogue_history"] if turn["role"] == "assistant"]


# ---- The program in an answer


def program_of(record):
    calls = (record["task"].get("test_cases") or {}).values()
    return extract_code(answer_of(record), set(re.findall(r"\b([^\W\d]\w*)\(", " ".join(calls))) - BUILTINS)


def extract_code(answer, called=()):
    """The program in an answer: its fenced blocks that compile, or else its text, without the answer mark and prose.

    called: names of the functions that the task's tests call. Only what is certain to be no part of the program is
    dropped: stubs of functions that the answer defines elsewhere, blocks that show how to use it, and its own tests,
    because a wrong test would stop a right program. A later definition overrides an earlier one. If nothing compiles,
    the program is the whole text, and the sandbox reports its error.
    """
    text = re.sub(r"\r\n?", "\n", answer)
    text = tidy(re.sub(rf"\A([\s*\ufeff]*{ANSWER_MARK})?(\s*\*\*)?", "", text))    # the mark may be bold
    if text.startswith("def ") and text.isascii() and not re.search(r"```|~~~|\n\S", text):
        return text    # one function and nothing else, as in most answers; parsing it would take most of the time
    found = [find(text) for find in (parse, fenced_blocks, unfenced_code)]    # {block: its syntax tree} each
    blocks = next((blocks for blocks in found if any(map(defines, blocks.values()))), next(filter(None, found), {}))
    nodes = [node for tree in blocks.values() for node in tree.body]
    implemented = {node.name for node in nodes if isinstance(node, DEFINITION) and not is_stub(node)}
    bound = BUILTINS | implemented | set().union(*(names_in(node, ast.Store) for node in nodes))
    called = set(called) or implemented
    own = [without_tests(block, tree, called, implemented) for block, tree in blocks.items()
           if defines(tree) or is_preparation(tree, called, bound)]
    program = "\n\n".join(filter(None, own))
    if len(own) > 1:    # what must come first may stand in a later block
        future = r"^from __future__ .*\n?"
        program = "".join(re.findall(future, program, re.MULTILINE)) + re.sub(future, "", program, flags=re.MULTILINE)
    return program or text


BUILTINS = set(dir(builtins))
DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORT = (ast.Import, ast.ImportFrom)
MAY_TEST = (ast.Assert, ast.Expr, ast.For, ast.If, ast.Try, ast.While, ast.With)    # statements that may be a test
HARMLESS = (*MAY_TEST, ast.Pass, ast.Break, ast.Continue, ast.Raise)    # and what may stand inside one
DRIVERS = r"print|main|(run_?|self_?|_)*tests?\w*|demo\w*|(sys\.)?exit|quit|(unittest|doctest|pytest)\.\w+"


def names_in(tree, context):
    """The names that are loaded (ast.Load) or bound (ast.Store, or by an import) in a tree."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, context):
            names.add(node.id)
        elif isinstance(node, ast.alias) and context is ast.Store:
            names.add((node.asname or node.name).split(".")[0])
    return names


def called_name(node):
    """The name, or name.name, that a call calls; an empty text for anything else."""
    called = getattr(node, "func", None)
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        return f"{called.value.id}.{called.attr}"
    return getattr(called, "id", "")


def defines(tree):
    return any(isinstance(node, (*DEFINITION, ast.Lambda)) for node in ast.walk(tree))


def is_preparation(tree, called, bound):
    """Does a block without definitions prepare something, such as a table? Else it is an example of use, or output."""
    if any(called_name(node) in called for node in ast.walk(tree)) or not names_in(tree, ast.Load) <= bound:
        return False
    return any(not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call) for node in tree.body)


def is_stub(node):
    """Does a function hold only a docstring, `...`, `pass` or `raise`?"""
    parts = [*node.decorator_list, *node.body]
    is_class = isinstance(node, ast.ClassDef)
    return not is_class and all(isinstance(part, (ast.Expr, ast.Pass, ast.Raise)) for part in parts)


def tidy(block):
    """A block without the margin that all its lines have. Inside a text, lines of white space stay as they are."""
    lines = block.strip("\n").split("\n")
    margin = re.match(r"[ \t>]*", os.path.commonprefix([line for line in lines if line.strip()]))[0]
    return "\n".join(line.removeprefix(margin) for line in lines).lstrip(" \t")


STRINGS = r"""("{3}(?:\\.|[^\\])*?"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*)"""
PASTED = {ord(bad): good for good, many in {    # what editors and web pages put in place of plain characters
    " ": "\xa0\u2002\u2003\u2009\u202f\u3000", "": "\ufeff\u200b\u200c\u200d\u2060\xad", '"': "\u201c\u201d\u201e",
    "'": "\u2018\u2019", "-": "\u2212\u2013"}.items() for bad in many}


# Three places to look for the program. Each function returns {block that compiles: its syntax tree}.


def parse(block):
    """The whole text as a block; if it does not compile, then without what pasting did to it outside its strings."""
    texts = [block]
    if not block.isascii():
        pieces = re.split(STRINGS, block, flags=re.DOTALL)
        pieces[::2] = [piece.translate(PASTED) for piece in pieces[::2]]    # between the strings
        texts.append(tidy("".join(pieces)))
    for text in texts:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")    # invalid escapes such as "\d"
                tree = ast.parse(text)
        except Exception:    # SyntaxError, ValueError, RecursionError or MemoryError
            continue
        return {text: tree} if tree.body else {}
    return {}


def fenced_blocks(text):
    """The code blocks between fences. A docstring may contain fences, so a block ends at the first where it compiles.

    If it never compiles, it ends at the first fence. A block that was cut off ends with the text.
    """
    pieces = re.split("(`{3,}|~{3,})", text)
    blocks = {}
    while len(pieces) > 2:
        for size in range(3, 19, 2):
            block = re.sub(r"\A[^\n]*\n|\A(python|py)?\b", "", "".join(pieces[2:size]))    # drop the language
            found = parse(tidy(block))
            if found:
                break
        blocks |= found
        del pieces[:size + 1 if found else 4]    # the prose before it, the block, and its last fence
    return blocks


def unfenced_code(text):
    """The statements that compile, in one block: all between them is prose."""
    first = (r"(async )?def |class |import |from |(try|for .*|while .*|if .*|with .*):|"
             r"[\w.]+(\[.*\])? *[-+*/|&]?= |[\w.]+\(")
    further = r"[ \t)\]}#]|(except|elif|else|finally)\b"
    statements = re.finditer(rf"^(@.*\n){{0,9}}({first}).*(\n(({further}).*)?)*", text, re.MULTILINE)
    # A comment in column 0 may belong to the code, or head the prose after it.
    pieces = (next(filter(parse, (match[0], match[0].rpartition("\n#")[0])), "") for match in statements)
    return parse(tidy("\n".join(pieces)))


def without_tests(block, tree, called, implemented):
    """A program without its stubs, lone words of prose, and tests. A wrong test would stop the program."""
    lines = block.split("\n")
    needed = set()
    tools = set()    # names from libraries for tests
    for node in tree.body:
        if not isinstance(node, MAY_TEST) or defines(node):
            needed |= names_in(node, ast.Load)
        if isinstance(node, IMPORT):
            library = getattr(node, "module", None) or node.names[0].name
            if re.match("pytest|hypothesis", library):
                tools |= names_in(node, ast.Store)
    next_first = None    # the line on which the next statement begins
    for node in reversed(tree.body):
        if isinstance(node, DEFINITION):
            first = min(part.lineno for part in (node, *node.decorator_list))
            of_a_tool = any(names_in(decorator, ast.Load) & tools for decorator in node.decorator_list)
            dispensable = of_a_tool or (is_stub(node) and node.name in implemented)
        else:
            first = node.lineno
            is_word = isinstance(node, ast.Expr) and isinstance(node.value, ast.Name)
            is_tool = isinstance(node, IMPORT) and names_in(node, ast.Store) & tools
            dispensable = is_word or is_tool or is_test(node, called, needed, implemented)
        if dispensable and node.col_offset == 0 and node.end_lineno != next_first:    # it owns its lines
            del lines[first - 1:node.end_lineno]
        next_first = first
    return "\n".join(lines).strip("\n")


def is_test(statement, called, needed, implemented):
    """Does a statement only test or show? It asserts or calls something, and leaves nothing that is needed behind.

    called: names of functions, besides DRIVERS, that are called for show. needed: names that the program uses later.
    """
    tests = "|".join([DRIVERS, *map(re.escape, called)])
    parts = list(ast.walk(statement))
    calls = {called_name(part) for part in parts}
    if calls & {"input", "open"} and not defines(statement) and not isinstance(statement, ast.Try):
        return True    # there is nothing to read
    for part in parts:
        harmless = isinstance(part, HARMLESS) or not isinstance(part, ast.stmt)
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            harmless = re.fullmatch(tests, called_name(part.value))
        elif isinstance(part, (ast.Assign, ast.AugAssign)) and part is not statement:
            harmless = not names_in(part, ast.Store) & needed
        elif isinstance(part, (ast.Subscript, ast.Attribute)):
            harmless = isinstance(part.ctx, ast.Load)
        if not harmless:
            return False
    if any(isinstance(part, ast.Assert) for part in parts):
        return True
    return any(name in implemented or re.fullmatch(tests, name) for name in calls - {"print"})


# ---- Metrics: a new one is a new row


class Metric(NamedTuple):
    heading: str
    unit: str              # how it is printed: "%" (a share), "x 100", or "" (a plain number)
    compared: bool         # are runs compared by it?
    of_record: Callable    # scored record -> a value, or a list of values; the metric is the mean of all


def facts_told(record):
    """[(fact, was the agent told it?)] for each hidden detail; None if the simulator does not record what it told."""
    facts = record["task"].get("facts") or []
    told_by_turn = [turn["told"] for turn in record["dialogue_history"] if turn.get("told") is not None]
    if "continues" in record or facts and not told_by_turn and record.get("simulator") != "scripted":
        return None    # rollout.py --continue keeps only roles and texts of the turns before the branch
    told = set().union(*told_by_turn)
    return [(fact, fact.get("detail") in told) for fact in facts]


def details_told(record):
    return [told for _, told in facts_told(record) or []]


def with_halves(name, metric):
    """A metric's rows: on all tasks, on tasks whose composition is in training (seen), and on the others (new)."""
    rows = {name: metric}
    for half in ("seen", "new"):
        rows[f"{name}_{half}"] = metric._replace(
            heading=f"{metric.heading}, {half} tasks",
            of_record=lambda r, half=half: metric.of_record(r) if r["task"].get("half") == half else [])
    return rows


METRICS = {  # for every environment: {name in metrics.json: row}
    "details_told": Metric("hidden details told", "%", False, details_told),
    "answered": Metric("answered", "%", False, lambda r: r["finish"] == "answered" if "finish" in r else []),
    "failed": Metric("failed by an error", "%", False, lambda r: r.get("finish", "").startswith("error")),
    "turns": Metric("turns", "", False, lambda r: len(replies(r))),
    "tokens_per_reply": Metric("tokens per reply", "", False, lambda r: (
        [len(turn["output_ids"]) for turn in replies(r) if turn.get("output_ids") and "continues" not in r])),
}
SUCCESS = with_halves("success", Metric("success", "%", True, lambda r: succeeded(r["reward"]))) | {
    f"success_within_{k}": Metric(f"success within {k} turns", "%", False, lambda r, k=k: (
        succeeded(r["reward"]) and len(replies(r)) <= k)) for k in (5, 7, 10)
}
REWARD_METRICS = SUCCESS | {
    "reward": Metric("reward", "%", True, lambda r: r["reward"]),
}
PROGRAM_METRICS = SUCCESS | {
    "tests_passed": Metric("tests passed", "%", True, lambda r: r["reward"]),
}
COSINE = Metric("cosine x 100, whole page", "x 100", True, lambda r: r["cosine"]["page"])
PAGE_METRICS = with_halves("cosine_page", COSINE) | {
    "cosine_centre": Metric("cosine x 100, centre", "x 100", True, lambda r: r["cosine"]["centre"]),
    "choices_right": Metric("choices right", "%", True, lambda r: list((r.get("choices") or {}).values())),
}


# ---- Environments: everything that depends on the domain


class Environment(NamedTuple):
    score: Callable                      # (records, args) -> the records with `reward`, in the same order
    flags: tuple = ()                    # the flags that decide the rewards; compared runs must agree in them
    needs: tuple = ()                    # keys that a task must have to be scored
    metrics: dict = REWARD_METRICS
    win_rate: bool = False               # are runs also compared by who has the higher reward?
    pages: bool = False                  # do replies hold pages? The report then shows their pictures.
    answer: Callable = answer_of         # record -> the text that the report compares with the reference


ENVIRONMENTS = {
    "backend": Environment(
        score_programs,
        flags=("mode", "call_timeout", "program_timeout"),
        needs=("test_cases",),
        metrics=PROGRAM_METRICS,
        answer=program_of,
    ),
    "frontend": Environment(
        score_pages,
        flags=("encoder", "reward_from"),
        metrics=PAGE_METRICS,
        win_rate=True,
        pages=True,
        answer=lambda record: page_of(record) or "",
    ),
}


def metrics_of(domain):
    """{name: Metric} of a domain."""
    return ENVIRONMENTS[domain].metrics | METRICS


# ---- Intervals


def ratios(sums):
    """Metrics (..., M) from sums (..., 2 M); NaN where nothing was counted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums[..., 0::2] / sums[..., 1::2]


def bootstrap_sums(sums, resamples, seed):
    """Draw T tasks out of T with replacement, `resamples` times, and add up their rows.

    sums (T, C): one row per task. Returns (resamples, C). A draw is a vector of counts, one per task, so the sums of
    many draws are one matrix product. Drawing in blocks keeps memory at a few megabytes.
    """
    rng = np.random.default_rng(seed)
    tasks = len(sums)
    totals = []
    block = max(1, 500_000 // tasks)
    for start in range(0, resamples, block):
        draws = rng.integers(tasks, size=(min(block, resamples - start), tasks))    # (block, T), indices of tasks
        draws += np.arange(len(draws))[:, None] * tasks    # so that one bincount counts all draws of the block
        counts = np.bincount(draws.ravel(), minlength=draws.size).reshape(draws.shape)    # (block, T)
        totals.append(counts @ sums)
    return np.concatenate(totals)


def wilson(share, n, z=1.959964):
    """Wilson's 95% interval of a share of n."""
    def lower(share):
        c = z * z / n
        root = math.sqrt(c * share * (1 - share) + c * c / 4)
        return (share + c / 2 - root) / (1 + c)

    return lower(share), 1 - lower(1 - share)


def near_the_edge(part, whole):
    """Is a share near 0 or 1? That is, do fewer than 10 tasks contribute to it, or fewer than 10 fall short?

    part, whole: (T,). If every task lies in between, as when two equal runs tie everywhere, the bootstrap holds.
    """
    has_some, lacks_some = part > 0, part < whole
    all_between = (has_some & lacks_some).sum() == (whole > 0).sum()
    return not all_between and min(has_some.sum(), lacks_some.sum()) < 10


def intervals(sums, resamples, seed, names, shares=(), measures=ratios):
    """{name: {"value", "low", "high"}}: `measures` of the sums over all tasks, with 95% intervals.

    sums (T, C): one row per task. measures: (..., C) -> (..., number of names); a NaN is left out. shares: names whose
    sums (part, whole) form a share; near 0 and 1 they get Wilson's interval.
    """
    values = measures(sums.sum(axis=0))
    draws = measures(bootstrap_sums(sums, resamples, seed))
    result = {}
    for place, (name, value) in enumerate(zip(names, values)):
        if math.isnan(value):
            continue
        low, high = np.nanpercentile(draws[:, place], [2.5, 97.5])
        if name in shares:
            part, whole = sums[:, 2 * place:2 * place + 2].T
            if near_the_edge(part, whole):
                tasks = whole.sum() ** 2 / (whole ** 2).sum()    # the effective number
                low, high = wilson(value, tasks)
        result[name] = {"value": float(value), "low": float(low), "high": float(high)}
    return result


def difference(measures):
    """The measures of one run minus those of another, as a function of their sums side by side (..., 2 C)."""
    def measure(sums):
        first, second = np.split(sums, 2, axis=-1)
        return measures(first) - measures(second)

    return measure


def win_share(ours, theirs):
    """Share of sample pairs (one of ours, one of theirs) in which ours has the higher reward; a tie is half a win."""
    lead = np.sign(np.subtract.outer(ours, theirs))    # (ours, theirs): 1, 0 or -1
    return float(((1 + lead) / 2).mean())


def paired_difference(run, base, tasks, args):
    """{metric: interval} of run minus base on these tasks, and "win_rate" where the environment has one."""
    rows = np.array([np.concatenate([run.sums[task], base.sums[task]]) for task in tasks])    # (T, 4 M)
    names = metrics_of(run.domain)
    result = intervals(rows, args.resamples, args.seed, names, measures=difference(ratios))
    if ENVIRONMENTS[run.domain].win_rate:
        wins = np.array([(win_share(run.rewards[task], base.rewards[task]), 1) for task in tasks])    # (T, 2)
        result |= intervals(wins, args.resamples, args.seed, ["win_rate"], shares=["win_rate"])
    return result


# ---- Scoring: trajectories in, scored records out


def score(args):
    """Score args.input into args.out, or resume an earlier run."""
    first = first_of(args.input, "trajectory", args.domain)
    domain = first["domain"]
    environment = ENVIRONMENTS[domain]

    def checked(record):
        for key in environment.needs:
            if not record["task"].get(key):
                raise ValueError(f"a {domain} task needs {key!r}")
        return record

    of_others = {*itertools.chain(*(other.flags for other in ENVIRONMENTS.values()))} - {*environment.flags}
    if environment.pages:
        of_others.add("unsafe")
    refuse_idle([{"reward_from": "--reward"}.get(flag, f"--{flag.replace('_', '-')}") for flag in of_others],
                f"with {domain} records")
    settings = {"domain": domain, **{flag: getattr(args, flag) for flag in environment.flags}}
    out = Output(args.out, settings, {"--in": args.input}, args.overwrite)
    trajectories = functools.partial(read, args.input, "trajectory", domain, unique=True, each=checked)
    count = sum(1 for _ in trajectories())    # checks every line before anything is written
    warn_of_unfinished_rollout(args.input, first, count)
    if len(out.done) == count:
        print(f"{args.out}: all {count:,} trajectories are already scored")
        return
    todo = (record for record in trajectories() if out.key_of(record) not in out.done)
    scored = environment.score(todo, args)
    for record in tqdm(scored, total=count, initial=len(out.done), unit=" answers", desc="scoring", mininterval=0.5,
                       dynamic_ncols=True, delay=0.1):    # no bar until the sandbox, encoder and browsers have started
        out.write({**settings, **record})
    print(f"wrote {args.out}")


def warn_of_unfinished_rollout(path, first, count):
    """rollout.py writes a settings file when it starts and another file when it finishes."""
    is_from_rollout = first.get("model") not in ("released", "scripted") and "reward" not in first
    has_begun = path.with_suffix(".settings.json").exists()
    if is_from_rollout and has_begun and not sign_of_end(path).exists():
        print(f"{path}: rollout.py has not finished this file. Short episodes come first, so these {count:,} are not a "
              "fair sample; run the same rollout.py command to finish it")


def first_of(path, kind, domain):
    """The first record of a file; all others must have its domain, or none (domain: of a file that names none)."""
    def checked(record):
        if record.get("domain") not in ENVIRONMENTS:
            raise ValueError(f"found domain {record.get('domain')!r}, expected {' or '.join(ENVIRONMENTS)} (--domain)")
        return record

    return next(read(path, kind, domain, each=checked))


# ---- Comparing scored runs


class Run:
    """A scored file as per-task sums and counts: all that the tables need. The dialogues are not kept."""

    def __init__(self, name, path, domain=None):
        self.name, self.path = name, path
        first = first_of(path, "scored", domain)    # all records have the same domain, scoring, model and simulator
        self.domain = first["domain"]
        self.scoring = scoring_of(first)
        self.model, self.fingerprints = first.get("model"), first.get("fingerprints") or {}
        self.human = first.get("simulator")
        self.sums = defaultdict(float)      # task -> (2 M,): sum and number of the values of each of M metrics
        self.rewards = defaultdict(list)    # task -> its samples' rewards
        self.ends, self.errors = Counter(), Counter()    # how episodes ended
        self.statuses = Counter()                        # of tests, or of pages
        for _ in read(path, "scored", self.domain, unique=True, each=self.add):
            pass

    def add(self, record):
        sums = []
        for metric in metrics_of(self.domain).values():
            values = metric.of_record(record)
            if not isinstance(values, list):
                values = [values]
            sums += [sum(values), len(values)]
        task = task_digest(record)
        self.sums[task] += np.array(sums, float)
        self.rewards[task].append(record["reward"])
        finish = record.get("finish", "unknown")
        end = finish.split(":")[0]
        self.ends[end] += 1
        if end == "error":
            self.errors[finish[:120]] += 1
        self.statuses.update((record.get("tests") or {}).values())
        if record.get("page"):
            self.statuses[record["page"]] += 1


def task_digest(record):
    """What identifies a task: its name and content. Names repeat across seeds."""
    task = record["task"]
    content = [record["task_id"], task.get("problem_description"), task.get("ground_truth"), task.get("test_cases")]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def scoring_of(record):
    """How a scored record, or the metrics of a file, was scored. Old ones do not tell the time limits."""
    return {key: record[key] for key in ("domain", *ENVIRONMENTS[record["domain"]].flags) if key in record}


def check_scoring(files):
    """Stop unless all files [(scoring_of its records, path)] were scored the same way."""
    known, first = {}, None
    for scoring, path in files:
        first = first or path
        if known | scoring != scoring | known:    # a key has two values
            die(f"{first} and {path} cannot be compared: found {known} and {scoring}; score them the same way")
        known |= scoring


def compare(runs, args):
    """{name: {"metrics", "difference", "cost", "notes"}} of a list of Runs, on the tasks that all of them have.

    Differences are to the first run.
    """
    base = runs[0]
    paths = ", ".join(str(run.path) for run in runs)
    check_scoring((run.scoring, run.path) for run in runs)
    common = [task for task in base.sums if all(task in run.sums for run in runs)]
    if not common:
        die(f"{paths} have no task in common (same name, request, reference and tests)")
    result = {}
    for run in runs:
        result[run.name] = {
            "metrics": summarise(run, common, args),
            "difference": paired_difference(run, base, common, args) if run is not base else {},
            "cost": cost_of(run),
            "notes": notes(run, base, common),
        }
    return result


def summarise(run, tasks, args):
    """The content of metrics.json: metrics on these tasks; `finish`, `errors` and `statuses` of the whole file."""
    metrics = metrics_of(run.domain)
    shares = [name for name, metric in metrics.items() if metric.unit == "%"]
    sums = np.array([run.sums[task] for task in tasks])
    return {
        "in": str(run.path),
        **run.scoring,
        "tasks": len(tasks),
        "samples": sum(len(run.rewards[task]) for task in tasks),
        **intervals(sums, args.resamples, args.seed, metrics, shares),
        "finish": dict(run.ends.most_common()),
        "errors": dict(run.errors.most_common(10)),
        "statuses": dict(run.statuses.most_common()),
        "resamples": args.resamples,
        "bootstrap_seed": args.seed,
    }


def cost_of(run):
    """What it cost to train the model that played, from its cost.json; {} if unknown."""
    path = Path(str(run.model)) / "cost.json"
    recorded = run.fingerprints.get("model")
    if not path.is_file() or recorded not in (None, run.model, fingerprint(run.model)):
        return {}    # no cost.json, or a model that was trained again since
    return json.loads(path.read_text())


def notes(run, base, tasks):
    """Sentences on how the episodes ended, how they were scored, and what limits the comparison."""
    sentences = [f"episodes of {run.path} ended: {shares_of(run.ends)}"]
    for error, count in run.errors.most_common(10):
        sentences.append(f"{count:,} x {error}")
    if run.statuses:
        sentences.append(f"statuses: {shares_of(run.statuses)}")
    sentences.append(f"scored with {json.dumps(run.scoring)}")
    if any(status.startswith("reference") for status in run.statuses):
        sentences.append("WARNING: some references do not run; no answer to those tasks can score")
    if len(tasks) < len(run.sums):
        warning = "WARNING: " if len(tasks) < len(run.sums) / 2 else ""
        sentences.append(f"{warning}columns and differences use only the {len(tasks):,} tasks that all runs have, of "
                         f"{len(run.sums):,} in {run.path}")
    if run.human != base.human:
        sentences.append(f"WARNING: the human is {run.human}; in {base.name} it is {base.human}")
    return sentences


def shares_of(counts):
    return ", ".join(f"{name} {count:,} ({100 * count / counts.total():.1f}%)" for name, count in counts.most_common())


# ---- Tables (Markdown, so that they can be pasted)


def table(result):
    """Metrics, differences to the first run and costs as rows of texts, one column per run; the heading comes first."""
    base = next(iter(result))
    columns = [column(run, base) for run in result.values()]
    rows = [(heading, *[texts[heading] for texts in columns]) for heading in columns[0]]
    return [("", *result), *[row for row in rows if any(row[1:])]]


def column(run, base):
    """{heading: text} of a run; a text is empty where the run has no such number."""
    metrics, difference, cost = run["metrics"], run["difference"], run["cost"]
    texts = {
        "tasks x samples": f"{metrics['tasks']:,} x {metrics['samples'] / metrics['tasks']:.3g}",
        f"win rate vs {base}": cell(difference, "win_rate", "%"),
    }
    for name, metric in metrics_of(metrics["domain"]).items():
        texts[metric.heading] = cell(metrics, name, metric.unit)
        if metric.compared:
            texts[f"{metric.heading}, vs {base}"] = cell(difference, name, metric.unit, signed=True)
    for name in COSTS:
        texts[f"cost: {name.replace('_', ' ')}"] = f"{cost[name]:,}" if name in cost else ""
    return texts


def cell(numbers, name, unit, signed=False):
    """A metric as text: 33.3% [12.1, 54.5], or if signed +4.5 [-1.0, 10.0] (a difference in points)."""
    if name not in numbers:
        return ""
    scale = 100 if unit else 1    # "%" and "x 100"
    sign = "+" if signed else ""
    value, low, high = [f"{scale * numbers[name][key]:{sign}.1f}" for key in ("value", "low", "high")]
    percent = "%" if unit == "%" and not signed else ""
    return f"{value}{percent} [{low}, {high}]"


def markdown(rows):
    """A Markdown table with aligned columns from rows of texts; the first row is the heading."""
    rows = [[printable(text).replace("|", "/") for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows)


def printable(text):
    """A record's text made safe for the terminal: no control characters, no broken ones."""
    return "".join(character if character.isprintable() else "?" for character in str(text))


# ---- The report: report.html with the data filled in. Its script inserts a record's texts as text, never as markup.
# The page's content security policy allows that script alone, by its hash; nothing is loaded and nothing is sent.

TEMPLATE = Path(__file__).with_name("report.html")


def write_report(path, runs, result, args):
    """Write the table and the first dialogues of each run to one HTML file."""
    tasks = {}    # digest -> what report.html shows of a task
    pages = defaultdict(itertools.count().__next__)    # page -> index of its picture

    def add(name, record):
        task = {"id": record["task_id"], "request": record["task"].get("problem_description") or "", "episodes": []}
        if ENVIRONMENTS[record["domain"]].pages:
            task["picture"] = pages[record["task"]["ground_truth"]]
        task = tasks.setdefault(task_digest(record), task)
        task["episodes"].append(episode(name, record, pages))

    limit = max(1, args.report_limit // len(runs))
    for run in runs:
        records = read(run.path, "scored", run.domain, each=functools.partial(add, run.name))
        for _ in itertools.islice(records, limit):    # add() is called for each
            pass
    headline, metric = next(iter(metrics_of(runs[0].domain).items()))
    data = {
        "runs": list(result),
        "headline": metric.heading,
        "bars": [[name, *run["metrics"][headline].values()] for name, run in result.items()],
        "curves": curves_of(args.curves or []),
        "table": table(result),
        "total": sum(run.ends.total() for run in runs),
        "notes": {name: run["notes"] for name, run in result.items()},
        "tasks": list(tasks.values()),
        "pictures": list(small_pictures(pages, args.workers)),
    }
    with atomic_write(path) as part:
        part.write_text(fill_template(data), encoding="utf-8")
    print(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB; open it in a browser")


def curves_of(folders):
    """{"loss", "accuracy", ...: {name: [[step, value], ...]}} from the metrics.jsonl of models [(name, folder)].

    At most 100 points a line, each the mean of the steps around it.
    """
    charts = defaultdict(dict)
    for name, folder in folders:
        shape = {"step": int, "loss": int | float}
        steps = [step for _, step in parse_lines(folder / "metrics.jsonl", shape, "a trainer writes such lines")]
        for step in steps:
            for side in ("advantage", "reward"):
                if f"{side}_chosen" in step:
                    step["margin: chosen - rejected"] = step[f"{side}_chosen"] - step[f"{side}_rejected"]
        size = -(-len(steps) // 100)
        blocks = [steps[start:start + size] for start in range(0, len(steps), size)]
        for key in filter(re.compile("loss$|margin|accuracy").search, steps[0]):
            charts[key][name] = [[block[-1]["step"], np.mean([step[key] for step in block])] for block in blocks]
    return charts


def fill_template(data):
    template = TEMPLATE.read_text(encoding="utf-8")
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")    # so that no </script> or <!-- ends the script
    policy = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'"
    for tag in ("style", "script"):
        content = re.search(f"<{tag}>(.*?)</{tag}>", template, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        policy += f"; {tag}-src 'sha256-{digest}'"
    return template.replace("{{policy}}", policy).replace("{{data}}", text)


def episode(name, record, pages):
    """What report.html shows of a scored record; its replies' pages are added to `pages` {page: index}."""
    return {
        "run": name,
        "sample": record["sample"],
        "reward": record["reward"],
        "solved": succeeded(record["reward"]),
        "finish": record.get("finish", "unknown"),
        "turns": [shown_turn(turn, record["domain"], pages) for turn in record["dialogue_history"]],
        "facts": facts_told(record) or [],
        "tests": record.get("tests") or {},
        "calls": record["task"].get("test_cases") or {},
        "changes": changed_lines(record),
    }


def shown_turn(turn, domain, pages):
    shown = {key: turn.get(key) for key in ("role", "content", "output", "advantage", "told")}
    if not math.isfinite(turn.get("advantage") or 0):    # JSON cannot hold it
        del shown["advantage"]
    if ENVIRONMENTS[domain].pages and turn["role"] == "assistant":
        from render import extract_page
        page = extract_page(turn["content"])
        if page:
            shown["picture"] = pages[page]
    return shown


def changed_lines(record):
    """A diff of all lines of reference and answer: "-" marks those of the reference alone, "+" those of the answer."""
    reference = record["task"]["ground_truth"].strip().splitlines()
    answer = ENVIRONMENTS[record["domain"]].answer(record).strip().splitlines()
    changes = difflib.unified_diff(reference, answer, n=1_000_000, lineterm="")
    lines = list(changes)[3:]    # without the diff's header
    return lines or [f" {line}" for line in reference]


def small_pictures(pages, workers):
    """Yield each page's picture, 360 pixels wide, as a data URL; None if it cannot be rendered."""
    if not pages:
        return
    from PIL import Image
    from render import Renderer
    try:
        renderer = Renderer(workers)
    except RuntimeError as problem:
        die(f"the report needs pictures of the pages: {problem}")
    with renderer:
        for picture in renderer.render_many(pages):
            if not picture.png:
                yield None
                continue
            image = Image.fromarray(picture.rgb)
            image.thumbnail((360, image.height))
            data = io.BytesIO()
            image.save(data, "WEBP")
            yield "data:image/webp;base64," + base64.b64encode(data.getvalue()).decode()


# ---- The command line


OF_SCORING = ("--in", "--run-name", "--split", "--out", "--overwrite", "--mode", "--call-timeout", "--program-timeout",
              "--unsafe", "--encoder", "--reward")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add, cores = parser.add_argument, getattr(os, "sched_getaffinity", None)
    count, seconds = number(int, least=1, most=1_000_000_000), number(above=0, most=1_000_000)
    # what to score
    add("--run-name", default="default", help="name of the run; its files are in runs/{run-name} (default: default)")
    add("--split", default="train", help="which of the run's trajectories: train, val, test (default: train)")
    add("--in", dest="input", type=Path, help="trajectories (default: runs/{run-name}/{split}.trajectories.jsonl)")
    add("--out", type=Path, help="scored trajectories (default: the input's name with .scored.jsonl)")
    add("--overwrite", action="store_true", help="score everything again and replace --out")
    add("--domain", help="environment of records that name none; others must be of this one (default: as they say)")
    add("--workers", type=count, default=len(cores(0)) if cores else os.cpu_count(),
        help="programs, or browsers, that run at the same time (default: one per core)")
    # how to score programs
    add("--mode", choices=["module", "released"], default="module",
        help="module: the program runs as a module; released: the rules of the paper's released evaluator apply "
             "(default: module)")
    add("--call-timeout", type=seconds, default=CALL_TIMEOUT, help="seconds for one call (default: %(default)s)")
    add("--program-timeout", type=seconds, default=PROGRAM_TIMEOUT,
        help="seconds for all calls of a program (default: %(default)s)")
    add("--unsafe", action="store_true", help="run programs even where the sandbox cannot isolate them")
    # how to score pages
    add("--encoder", default="layout",
        help="image encoder: layout (colours, edges, texts), or the folder or hub name of a CLIP or SigLIP; "
             "the paper's is openai/clip-vit-base-patch32 (default: layout)")
    add("--reward", dest="reward_from", choices=["cosine", "choices"], default="cosine",
        help="what is the reward of a page: the cosine, or the share of right choices (default: cosine)")
    # intervals
    add("--resamples", type=count, default=10_000, help="bootstrap draws of the tasks (default: 10000)")
    add("--seed", type=number(int, least=0), default=0, help="seed of the bootstrap (default: 0)")
    # compare runs that are already scored
    add("--compare", nargs="+", type=named_file, metavar="NAME=FILE", help="scored files to compare with the first one")
    # the report
    add("--report", type=Path, help="write one self-contained HTML file with the dialogues here")
    add("--report-limit", type=count, default=200,
        help="number of dialogues in the report, equally many of each run (default: 200)")
    add("--curves", nargs="+", type=named_file, metavar="NAME=FOLDER", help="trained models whose curves it shows")
    args = parser.parse_args()
    if args.compare:
        refuse_idle(OF_SCORING, "with --compare, which only reads scored files")
    if args.input:
        refuse_idle(("--run-name", "--split"), "with --in, which names the file")
    if not args.report:
        refuse_idle(("--report-limit", "--curves"), "without --report")
    if args.compare and not args.report:
        refuse_idle(("--workers",), "with --compare and no --report")
    if args.compare and len(dict(args.compare)) < len(args.compare):
        parser.error(f"--compare needs different names, found {', '.join(name for name, _ in args.compare)}")
    return args


def named_file(pair):
    """An argparse type: NAME=FILE as (name, path)."""
    name, _, path = pair.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"must be NAME=FILE, such as base=runs/a/base.jsonl, found {pair!r}")
    return name, Path(path)


def main():
    args = parse_args()
    files = args.compare
    if not files:
        args.input = args.input or Path("runs") / args.run_name / f"{args.split}.trajectories.jsonl"
        stem = str(args.input).removesuffix(".jsonl").removesuffix(".trajectories")
        args.out = args.out or Path(f"{stem}.scored.jsonl")
        files = [(Path(stem).name, args.out)]
    if args.report:
        if args.report.suffix != ".html":    # so that a typo overwrites no other file
            die(f"{args.report} must end in .html")
        check_path(args.report, filter(None, [TEMPLATE, args.input, *dict(files).values()]))
    if args.input:
        score(args)
    runs = [Run(name, path, args.domain) for name, path in files]
    result = compare(runs, args)
    print(markdown(table(result)))
    for name, run in result.items():
        for note in run["notes"]:
            print(printable(f"{name}: {note}"))
    if args.input:
        stem = str(args.out).removesuffix(".jsonl").removesuffix(".scored")
        [only] = result.values()
        write_json(f"{stem}.metrics.json", only["metrics"])
        print(f"wrote {stem}.metrics.json")
    if args.report:
        write_report(args.report, runs, result, args)


if __name__ == "__main__":
    run_script(main)
