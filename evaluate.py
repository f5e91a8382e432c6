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
TASKS, because the samples of one task are not independent. The bootstrap fails where a share is near 0 or 1: there the
interval is Wilson's, on the effective number of tasks n = (sum_i b_i)^2 / sum_i b_i^2. Runs are compared on the tasks
that all of them have (same name, request, reference and tests). Each draw of tasks is used for both runs (a paired
difference), so that the difficulty of the tasks cancels.

Departures
- An episode without an answer (the engine or the simulator failed) scores 0, and the table shows the share of them.
- The paper gives no intervals. The released code runs programs inside its own process, in a function's local scope,
  behind a list of forbidden words (--mode released applies its rules inside the sandbox), and reports the best of k
  samples. Here every sample counts.
- Frontend: the page of the answer counts (or else its message's). A page that is missing or cannot be rendered scores
  0. The released code takes the last page shown at any turn, or else a black picture.

Reads   runs/{run-name}/{split}.trajectories.jsonl, or with --compare scored files; cost.json of the models they name
Writes  runs/{run-name}/{split}.scored.jsonl, the records plus `reward`, `tests` (one status per test) and `sandbox`
        (its layers); frontend: `reward`, `cosine` (both views), `view`, `page` (ok, blank, ...), `encoder`, `sandbox`
        .scored.settings.json and .metrics.json beside it, with --report one HTML file
Each record is written as it is scored, in the order of the input. After a stop, the same command continues.

    python evaluate.py --split train
    python evaluate.py --in runs/default/test.trajectories.jsonl --report runs/default/report.html
    python evaluate.py --compare base=runs/a/test.scored.jsonl sweet=runs/b/test.scored.jsonl --report runs/b/ab.html
    python evaluate.py --compare base='runs/seed-*/base.test.scored.jsonl' sweet='runs/seed-*/policy.test.scored.jsonl'
Where a name stands for several files, each is a training run with its own seed, which its records name. The table then
shows means over the seeds. Differences are taken seed by seed. From five seeds on, intervals are Student's.

To add an environment, add a row to ENVIRONMENTS.
"""
import argparse
import ast
import base64
import difflib
import functools
import glob
import hashlib
import io
import itertools
import json
import math
import os
import re
import sys
import textwrap
import warnings
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np
from tqdm import tqdm

from records import (
    ANSWER_MARK, COSTS, OUTPUT_MARK, Output, atomic_write, check_path, die, fingerprint, number, read, sign_of_end)
from sandbox import Sandbox

VIEWS = ("page", "centre")


# ---------------------------------------------------------------------------------------------------------------------
# Rewards


def score_programs(records, args):
    """Yield each backend record with `reward`, `tests` and `sandbox`, in order; --mode both adds `..._released`."""
    modes = ["module", "released"] if args.mode == "both" else [args.mode]

    def program_of(record, mode):
        answer = record["answer"] or ""
        return answer if mode == "released" else extract_code(answer, called_names(record["task"]))

    def scored(records, mode, suffix):
        jobs = ((record, record["task"], program_of(record, mode)) for record in records)
        for record, tests in box.score_many(jobs, mode):
            if record["answer"] is None:
                tests = dict.fromkeys(tests, "no answer")
            passed = sum(status == "passed" for status in tests.values())
            yield record | {
                "mode": modes[0],
                "sandbox": box.layers,
                f"reward{suffix}": passed / len(tests),
                f"tests{suffix}": tests,
            }

    with Sandbox(workers=args.workers, memory_mb=args.memory_mb, call_timeout=args.call_timeout,
                 program_timeout=args.program_timeout, numpy=args.numpy, unsafe=args.unsafe) as box:
        for mode, suffix in zip(modes, ("", "_released")):
            records = scored(records, mode, suffix)
        yield from records


def score_pages(records, args):
    """Yield each frontend record with `reward`, `cosine` and what they rest on, in order; a page is rendered once."""
    from render import Renderer, choices_right, cosine, load_encoder
    try:
        embed, renderer = load_encoder(args.encoder), Renderer(args.workers)
    except RuntimeError as problem:
        die(str(problem))

    def wait_and_embed(rendering):
        if rendering is None:
            return "no page", None, None
        picture = rendering.result()
        if picture.status != "ok":
            return picture.status, None, None
        seen = {view: embed(picture, view) for view in VIEWS}
        return "blank" if picture.blank else "ok", seen, picture.layout

    @functools.lru_cache(4096)
    def embedded(page):
        """The future of (status, {view: embedding} or None, layout or None)."""
        return embedder.submit(wait_and_embed, None if page is None else renderer.submit(page, layout=True))

    def rewarded(record, reference, answer):
        reference_status, theirs, wanted = reference.result()
        status, ours, shown = answer.result()
        cosines = {view: cosine(ours[view], theirs[view]) if ours and theirs else 0.0 for view in VIEWS}
        choices = record["task"].get("choices") or {}
        if args.reward == "choices" and not choices:
            die(f"task {record['task_id']} names no choices; leave --reward choices out")
        choices = choices_right(choices, shown, wanted) if wanted else dict.fromkeys(choices, False)
        reward = cosines[args.view] if args.reward == "cosine" else sum(choices.values()) / len(choices)
        return record | {
            "reward": min(1.0, max(0.0, reward)),
            "rewarded": args.reward,
            "cosine": cosines,
            "choices": choices,
            "view": args.view,
            "encoder": embed.name,
            "page": status if theirs else f"reference {reference_status}",
            "sandbox": {"isolation": renderer.isolation, "chromium": renderer.version},
        }

    with renderer, ThreadPoolExecutor(1) as embedder:
        begun = ((record, embedded(record["task"]["ground_truth"]), embedded(page_of(record))) for record in records)
        underway = list(itertools.islice(begun, 2 * args.workers))
        while underway:
            oldest = underway.pop(0)
            underway += itertools.islice(begun, 1)
            yield rewarded(*oldest)


def page_of(record):
    """The page of an answer, or None. Released records have a picture file's name there: the last reply holds it."""
    from render import extract_page
    if record["answer"] is None:
        return None
    last = replies(record)[-1]["content"] if replies(record) else ""
    return extract_page(record["answer"]) or extract_page(last)


def replies(record):
    return [turn for turn in record["dialogue_history"] if turn["role"] == "assistant"]


# ---------------------------------------------------------------------------------------------------------------------
# The program in an answer


def extract_code(answer, called=()):
    """The program in an answer, without the answer mark, markdown, prose, and the answer's own tests.

    called: names of the functions that the task's tests call. Of several blocks those count that compile and define
    something, and those of imports and constants alone; a later definition overrides an earlier one, unless it is a
    stub. If no block compiles, all of them are the program, so that its error is the sandbox's to report.
    """
    text = re.sub(rf"\A[\s*]*{ANSWER_MARK}", "", answer).replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"\A\s*\*\*", "", text)    # the end of a bold mark
    blocks = fenced_blocks(text) or unfenced_blocks(text) or [tidy(text)]
    trees = {block: tree for block in blocks if (tree := parse(block)) is not None}
    if not trees:
        return "\n\n".join(filter(None, blocks))
    full = set().union(*(definitions(tree, called, stubs=False) for tree in trees.values()))

    def is_needed(tree):
        names = definitions(tree, called)
        only_stubs = names and not definitions(tree, called, stubs=False)
        if only_stubs and names <= full:
            return False
        return bool(names) or all(map(is_preparation, tree.body))

    if any(definitions(tree, called) for tree in trees.values()):
        trees = {block: tree for block, tree in trees.items() if is_needed(tree)}
    programs = [without_tests(block, tree, called) for block, tree in trees.items()]
    return "\n\n".join(filter(None, programs))


def called_names(task):
    """The names of the functions that a task's tests call."""
    calls = (task.get("test_cases") or {}).values()
    return {found[1] for call in calls if (found := re.match(r"\s*(\w+)\s*\(", call))}


def tidy(block):
    return textwrap.dedent(block).strip("\n").lstrip(" \t")


def parse(block):
    """The syntax tree of a program, or None if it does not compile."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")    # such as the invalid escape in "\d"
            return ast.parse(block)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def fenced_blocks(text):
    """The blocks between fences. A block ends at the first fence with which it compiles: a docstring may hold others.

    A block that compiles nowhere ends at the first fence; one that was cut off ends with the text.
    """
    opening_fence = re.compile(r"```[^\n`]*\n")
    fences = [match.start() for match in re.finditer("```", text)]
    blocks, place = [], 0
    while opening := opening_fence.search(text, place):
        start = opening.end()
        ends = [fence for fence in fences if fence >= start][:8] or [len(text)]
        end = next((end for end in ends if parse(tidy(text[start:end])) is not None), ends[0])
        blocks.append(tidy(text[start:end]))
        place = end + len("```")
    if not blocks:    # a fence within one line: ```python f = len```
        blocks = [tidy(block) for block in re.findall(r"```(?:python|py)?\b(.*?)```", text, flags=re.DOTALL)]
    return blocks


def unfenced_blocks(text):
    """The programs in a text without fences: the text if it compiles, else the longest runs of lines that do."""
    if parse(tidy(text)) is not None:
        return [tidy(text)]
    lines = textwrap.dedent(text).split("\n")
    begins_code = re.compile(r"(async def|def|class|import|from) |@|\w+ *= ")
    starts = [n for n, line in enumerate(lines) if begins_code.match(line)]
    ends = [n for n, line in enumerate(lines) if line[:1].strip()]
    ends.append(len(lines))
    blocks, place = [], 0
    for start in starts[:20]:
        if start < place:    # inside the last block
            continue
        for end in reversed(ends[-50:]):
            block = tidy("\n".join(lines[start:end]))
            if end > start and parse(block) is not None:
                blocks.append(block)
                place = end
                break
    return blocks


def definitions(tree, called, stubs=True):
    """The names of a program's functions and classes, and of the called functions that it assigns."""
    names = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if stubs or not is_stub(node):
                names.add(node.name)
        elif isinstance(node, ast.Assign):
            targets = {target.id for target in node.targets if isinstance(target, ast.Name)}
            names |= targets if isinstance(node.value, ast.Lambda) else targets & set(called)
    return names


def is_stub(node):
    """Is there nothing in a definition but a docstring, `...`, `pass` or NotImplementedError?"""
    def is_empty(statement):
        if isinstance(statement, ast.Expr):
            return isinstance(statement.value, ast.Constant)
        if isinstance(statement, ast.Raise):
            return "NotImplementedError" in ast.dump(statement)
        return isinstance(statement, ast.Pass)

    return not isinstance(node, ast.ClassDef) and all(map(is_empty, node.body))


def is_preparation(statement):
    """Is a statement an import or a constant in capitals?"""
    if not isinstance(statement, ast.Assign):
        return isinstance(statement, (ast.Import, ast.ImportFrom))
    for target in statement.targets:
        if not getattr(target, "id", "").isupper():
            return False
    return not any(isinstance(node, ast.Call) for node in ast.walk(statement.value))


def without_tests(block, tree, called):
    """A program without the lines at its top level that try it out: a wrong test of its own would end it."""
    lines = block.split("\n")
    owners = Counter(line for statement in tree.body for line in range(statement.lineno, statement.end_lineno + 1))
    for statement in reversed(tree.body):
        alone = owners[statement.lineno] == owners[statement.end_lineno] == 1
        if alone and tries_it_out(statement, called):
            del lines[statement.lineno - 1:statement.end_lineno]
    return "\n".join(lines).strip("\n")


def tries_it_out(statement, called):
    """Does a statement assert something, call what the task calls, run a test, or is it a word of prose?"""
    if not isinstance(statement, (ast.Assert, ast.Expr, ast.For, ast.If, ast.Try, ast.With)):
        return False
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Name):
        return True
    nodes = list(ast.walk(statement))
    if any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in nodes):
        return False
    calls = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    if calls & set(called) or any(name.startswith("test") for name in calls):
        return True
    return any(isinstance(node, ast.Assert) or getattr(node, "id", "") == "unittest" for node in nodes)


# ---------------------------------------------------------------------------------------------------------------------
# Metrics: a new one is a new row


class Metric(NamedTuple):
    heading: str
    unit: str              # how it is printed: "%" (a share), "x 100", or "" (a plain number)
    compared: bool         # are runs compared by it?
    of_record: Callable    # scored record -> a value, or a list of values, of which the metric is the mean; None if the
    #                        record does not say


def facts_told(record):
    """[(fact, was the agent told it?)] of the task's hidden details; None if the human does not say what it told."""
    facts = record["task"].get("facts") or []
    told, is_known = set(), False
    for turn in record["dialogue_history"]:
        if turn.get("told") is not None:
            told.update(turn["told"])
            is_known = True
    if facts and not is_known:
        return None
    return [(fact, fact.get("detail") in told) for fact in facts]


def details_told(record):
    facts = facts_told(record)
    if facts is None:
        return None
    return [told for _, told in facts]


METRICS = {  # of every environment. Name in metrics.json and --json: its row
    "details_told": Metric("hidden details told", "%", False, details_told),
    "answered": Metric("answered", "%", False, lambda r: r["finish"] == "answered"),
    "failed": Metric("failed by an error", "%", False, lambda r: r["finish"].startswith("error")),
    "turns": Metric("turns", "", False, lambda r: len(replies(r))),
    "words_per_reply": Metric("words per reply", "", False, lambda r: (
        [len(turn["content"].split()) for turn in replies(r)])),
    "tokens_per_reply": Metric("tokens per reply", "", False, lambda r: (
        [len(turn["output_ids"]) for turn in replies(r) if turn.get("output_ids")])),
}
REWARD_METRICS = {
    "success": Metric("success", "%", True, lambda r: r["reward"] == 1),
    "reward": Metric("reward", "%", True, lambda r: r["reward"]),
}
PROGRAM_METRICS = {
    "success": REWARD_METRICS["success"],
    "tests_passed": Metric("tests passed", "%", True, lambda r: r["reward"]),
    "success_released": Metric("success (released evaluator)", "%", False, lambda r: (
        [r["reward_released"] == 1] if "reward_released" in r else [])),
    "tests_passed_released": Metric("tests passed (released evaluator)", "%", False, lambda r: (
        r.get("reward_released", []))),
}
PAGE_METRICS = {
    "cosine_page": Metric("cosine x 100, whole page", "x 100", True, lambda r: r["cosine"]["page"]),
    "cosine_centre": Metric("cosine x 100, centre", "x 100", True, lambda r: r["cosine"]["centre"]),
    "choices_right": Metric("choices right", "%", True, lambda r: list((r.get("choices") or {}).values())),
    "blank": Metric("blank pages", "%", False, lambda r: r["page"] == "blank"),
    "broken": Metric("no page or broken", "%", False, lambda r: r["page"] not in ("ok", "blank")),
}


# ---------------------------------------------------------------------------------------------------------------------
# Environments: all that depends on a record's domain


def grade_reward(record):
    """What a reward amounts to in the report: (words to filter by, "good", "some" or "bad")."""
    if record["reward"] == 1:
        return "solved", "good"
    return ("partly solved", "some") if record["reward"] else ("unsolved", "bad")


def grade_page(record):
    if record["page"] != "ok":
        return "blank or broken page", "bad"
    if record["reward"] >= 0.9:
        return "close, from 0.9", "good"
    return ("similar, from 0.7", "some") if record["reward"] >= 0.7 else ("unlike, below 0.7", "bad")


class Environment(NamedTuple):
    score: Callable                      # (records, args) -> the records with `reward`, in the same order
    flags: tuple = ()                    # the flags that decide the rewards
    inputs: tuple = ()                   # those of them that name a file or a model
    task_needs: dict = {}                # keys that a task must have to be scored: what each must be
    metrics: dict = REWARD_METRICS
    headline: str = "success"            # the metric that counts as success
    scored_by: dict = {}                 # only runs that agree in these keys are compared: value where one is missing
    statuses: Callable = lambda record: list((record.get("tests") or {}).values())    # counted in the notes
    counts: str = "tests"                # what the statuses are of
    win_rate: bool = False               # are runs also compared by who has the higher reward?
    pages: bool = False                  # do the replies hold pages, which the report shows as pictures?
    grade: Callable = grade_reward


ENVIRONMENTS = {
    "backend": Environment(
        score_programs,
        flags=("mode", "call_timeout", "program_timeout", "memory_mb", "numpy"),
        task_needs={"test_cases": 'an object of calls such as {"1": "f(1)"}'},
        metrics=PROGRAM_METRICS,
        scored_by={"mode": "module"},
    ),
    "frontend": Environment(
        score_pages,
        flags=("encoder", "view", "reward"),
        inputs=("encoder",),
        metrics=PAGE_METRICS,
        headline="cosine_page",
        scored_by={"encoder": None, "view": None, "rewarded": "cosine"},
        statuses=lambda record: [record["page"]],
        counts="pages",
        win_rate=True,
        pages=True,
        grade=grade_page,
    ),
}
HALVES = ("seen", "new")    # tasks of compositions that training has, and that it never has


@functools.cache
def metrics_of(domain):
    """{name: Metric} of a domain; its headline stands there for each half of the tasks as well."""
    environment, rows = ENVIRONMENTS[domain], {}
    for name, metric in (environment.metrics | METRICS).items():
        rows[name] = metric
        if name == environment.headline:
            for half in HALVES:
                rows[f"{name}_{half}"] = of_half(metric, half)
    return rows


def of_half(metric, half):
    def of_record(record):
        return metric.of_record(record) if record["task"].get("half") == half else []

    return metric._replace(heading=f"{metric.heading}, {half} tasks", of_record=of_record)


def values_of(record):
    """{metric: its values in a record, or None where the record does not say}."""
    found = {name: metric.of_record(record) for name, metric in metrics_of(record["domain"]).items()}
    return {name: values if values is None or isinstance(values, list) else [values]
            for name, values in found.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Intervals


def ratios(sums):
    """The metrics (..., M) of sums (..., 2 M); NaN where nothing was counted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums[..., 0::2] / sums[..., 1::2]


def bootstrap_sums(sums, resamples, seed):
    """Draw T tasks out of T with replacement, `resamples` times, and add up their rows.

    sums (T, C): one row per task. Returns (resamples, C). A draw is a count per task, so that the sums of a block of
    draws are one matrix product; blocks keep the memory at a few megabytes.
    """
    rng = np.random.default_rng(seed)
    tasks = len(sums)
    totals = []
    block = max(1, 500_000 // tasks)
    for start in range(0, resamples, block):
        draws = rng.integers(tasks, size=(min(block, resamples - start), tasks))    # (block, T), indices of tasks
        draws += np.arange(len(draws))[:, None] * tasks    # one bincount for all draws of the block
        counts = np.bincount(draws.ravel(), minlength=draws.size).reshape(draws.shape)    # (block, T)
        totals.append(counts @ sums)
    return np.concatenate(totals)


def wilson(share, n, z=1.959964):
    """Wilson's 95% interval of a share of n."""
    scale = 1 + z * z / n
    middle = (share + z * z / (2 * n)) / scale
    variance = share * (1 - share) / n + z * z / (4 * n * n)
    half = z * math.sqrt(variance) / scale
    low = min(share, middle - half)    # rounding may leave the share itself outside
    high = max(share, middle + half)
    return max(0.0, low), min(1.0, high)


def near_the_edge(part, whole, tasks=10):
    """Is a share near 0 or 1? That is, do fewer than `tasks` tasks have any part of it, or lack any?

    part, whole: (T,). If every task is somewhere between, as where two equal runs tie on each, the bootstrap holds.
    """
    part, whole = part[whole > 0], whole[whole > 0]
    has_some, lacks_some = part > 0, part < whole
    if (has_some & lacks_some).all():
        return False
    return min(has_some.sum(), lacks_some.sum()) < tasks


def intervals(sums, resamples, seed, names, shares=(), measures=ratios):
    """{name: {"value", "low", "high"}}: what `measures` makes of the sums of all tasks, with 95% intervals.

    sums (T, C): one row per task; measures: (..., C) -> (..., number of names). A measure without a value (NaN) is left
    out. shares: the names whose sums (part, whole) are a share; near 0 and 1 their interval is Wilson's.
    """
    values = measures(sums.sum(axis=0))
    draws = measures(bootstrap_sums(sums, resamples, seed))
    result = {}
    for place, (name, value) in enumerate(zip(names, values)):
        if math.isnan(value):
            continue
        low, high = np.nanpercentile(draws[:, place], [2.5, 97.5])
        if name in shares:
            part = sums[:, 2 * place]
            whole = sums[:, 2 * place + 1]
            if near_the_edge(part, whole):
                tasks = whole.sum() ** 2 / (whole ** 2).sum()    # as many as there would be of equal weight
                low, high = wilson(float(value), tasks)
        result[name] = {"value": float(value), "low": float(low), "high": float(high)}
    return result


def difference(measures):
    """The same measures of two runs whose sums stand side by side (..., 2 C): those of the first less the second's."""
    def measure(sums):
        first, second = np.split(sums, 2, axis=-1)
        return measures(first) - measures(second)

    return measure


def win_share(ours, theirs):
    """Share of the pairs (a sample of ours, one of theirs) in which ours has the higher reward; a tie is half a win."""
    ours, theirs = np.array(ours)[:, None], np.array(theirs)[None, :]
    return float(((ours > theirs) + 0.5 * (ours == theirs)).mean())


def paired_difference(run, base, tasks, resamples, seed):
    """{metric: interval} of run minus base on these tasks, under the same draws; "tasks"; perhaps "win_rate"."""
    sums = np.array([[*run.sums[task], *base.sums[task]] for task in tasks])    # (T, 4 M)
    found = {"tasks": len(tasks)}
    found |= intervals(sums, resamples, seed, metrics_of(run.domain), measures=difference(ratios))
    if ENVIRONMENTS[run.domain].win_rate:
        wins = [win_share(run.rewards[task], base.rewards[task]) for task in tasks]
        sums = np.column_stack([wins, np.ones(len(wins))])    # (T, 2)
        found |= intervals(sums, resamples, seed, ["win_rate"], shares=["win_rate"])
    return found


STUDENT = {  # degrees of freedom: the 97.5% quantile of Student's t; between two rows the smaller one's holds
    4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042,
    60: 2.000}


def over_seeds(values, least=-math.inf, most=math.inf):
    """{"value", "low", "high", "values"}: the mean of independent training runs and its 95% t interval.

    values: one per seed; the interval is cut at `least` and `most`, what the metric can be. Below five seeds low and
    high are None: Student's interval of so few says nothing (of 0% and 100% it is -585% to 685%).
    """
    mean = float(np.mean(values))
    low = high = None
    if len(values) >= 5:
        t = STUDENT[max(freedom for freedom in STUDENT if freedom < len(values))]
        half = t * float(np.std(values, ddof=1)) / math.sqrt(len(values))
        low = max(least, mean - half)
        high = min(most, mean + half)
    return {"value": mean, "low": low, "high": high, "values": list(values)}


# ---------------------------------------------------------------------------------------------------------------------
# Scoring (trajectories in, scored records out), and comparing what was scored


def score(args):
    """Score args.input into args.out, going on where an earlier run stopped."""
    domain = domain_of(args.input, "trajectory", args)
    environment = ENVIRONMENTS[domain]

    def checked(record):
        for key, what in environment.task_needs.items():
            if not record["task"].get(key):
                raise ValueError(f'a {domain} task needs "{key}", {what}')
        return record

    settings = {"domain": domain, **{flag: getattr(args, flag) for flag in environment.flags}}
    inputs = {"--in": args.input, **{f"--{flag}": getattr(args, flag) for flag in environment.inputs}}
    out = Output(args.out, settings, inputs, args.overwrite)
    trajectories = functools.partial(read, args.input, "trajectory", domain, unique=True, each=checked)
    count = sum(1 for _ in trajectories())    # every line can be read, before anything is written
    warn_of_unfinished_rollout(args.input, next(trajectories()), count)
    if len(out.done) == count:
        print(f"{args.out}: all {count:,} trajectories are scored already")
        return
    scored = environment.score((record for record in trajectories() if out.key_of(record) not in out.done), args)
    for record in tqdm(scored, total=count, initial=len(out.done), unit=" answers", desc="scoring", mininterval=0.5,
                       dynamic_ncols=True, delay=0.1):    # no progress bar before sandbox, encoder and browsers work
        out.write(record)
    print(f"wrote {args.out}")


def warn_of_unfinished_rollout(path, first, count):
    """rollout.py writes its settings at the start and a sign at the end. Other programs' files have neither."""
    from_rollout = (path.with_suffix(".settings.json").exists()
                    and first.get("model") != "released" and "reward" not in first)
    if from_rollout and not sign_of_end(path).exists():
        print(f"{path}: rollout.py has not finished it, and short episodes come first: these {count:,} are not a fair "
              "sample; the same rollout.py command continues")


def domain_of(path, kind, args):
    """What the first record of a file is about; the others must be about the same."""
    domain = next(read(path, kind))["domain"] or args.domain
    if domain not in ENVIRONMENTS:
        die(f"{path}, line 1: found domain {domain!r}, expected {' or '.join(ENVIRONMENTS)}")
    return domain


class Summary:
    """What the tables need of one scored file, however long its dialogues: a row of sums per task, and counts."""

    def __init__(self, path, args):
        self.path, self.domain = str(path), domain_of(path, "scored", args)
        self.environment = ENVIRONMENTS[self.domain]
        self.scored_by = {}    # runs are compared if this agrees
        self.sums = {}         # of each task's digest: (2 M,), sum and number of the values of each of M metrics
        self.rewards = {}      # of each task's digest: its samples' rewards
        self.not_known = set()    # metrics that some record does not say
        self.ends, self.errors = Counter(), Counter()
        self.statuses = Counter()
        self.failing = Counter()    # tasks whose reference fails
        self.models = set()         # (name, fingerprint)
        self.humans = set()
        self.seeds = set()
        for _ in read(path, "scored", self.domain, unique=True, each=self.add):
            pass

    def add(self, record):
        task = task_digest(record)
        values = values_of(record)
        sums = []
        for name, found in values.items():
            if found is None:
                self.not_known.add(name)
                found = []
            sums += [sum(found), len(found)]
        self.sums[task] = self.sums.get(task, 0) + np.array(sums, float)
        self.rewards.setdefault(task, []).append(record["reward"])
        end = record["finish"].split(":")[0]
        self.ends[end] += 1
        if end == "error":
            self.errors[record["finish"][:120]] += 1
        self.scored_by = {key: record.get(key, missing) for key, missing in self.environment.scored_by.items()}
        statuses = self.environment.statuses(record)
        self.statuses.update(statuses)
        if any(status.startswith("reference") for status in statuses):
            self.failing[record["task_id"]] += 1
        self.models.add((record.get("model"), (record.get("fingerprints") or {}).get("model")))
        self.humans.add(str(record.get("simulator")))
        self.seeds.add(record.get("seed"))


def task_digest(record):
    """Names of tasks repeat over seeds: what is asked and what is expected belongs to a task's identity."""
    keys = "problem_description", "ground_truth", "test_cases"
    content = [record["task_id"], *(record["task"].get(key) for key in keys)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def summarise(summary, tasks, args):
    """What goes into metrics.json, of these tasks; how episodes ended is of all that the file has."""
    rows = metrics_of(summary.domain)
    sums = np.array([summary.sums[task] for task in tasks])
    shares = [name for name, metric in rows.items() if metric.unit == "%"]
    return {
        "in": summary.path,
        "domain": summary.domain,
        "tasks": len(tasks),
        "samples": sum(len(summary.rewards[task]) for task in tasks),
        **summary.scored_by,
        **dict.fromkeys(summary.not_known),    # null, unless other records say it
        **intervals(sums, args.resamples, args.seed, rows, shares),
        "finish": dict(summary.ends.most_common()),
        "errors": dict(summary.errors.most_common(10)),
        "statuses": dict(summary.statuses.most_common()),
        "references_failing": len(summary.failing),
        "references_failing_first": list(summary.failing)[:10],
        "interval": "95%, percentile bootstrap over tasks; near 0 and 1 Wilson's",
        "resamples": args.resamples,
        "bootstrap_seed": args.seed,
    }


def compare(summaries, args):
    """{name: {"metrics", "against", "difference", "cost", "notes"}}; differences are against the first run.

    All numbers rest on the tasks that all runs have.
    """
    base_name, base = next(iter(summaries.items()))
    for summary in summaries.values():
        check_comparable(summary, base)
    tasks = [task for task in base.sums if all(task in summary.sums for summary in summaries.values())]
    if not tasks:
        paths = ", ".join(summary.path for summary in summaries.values())
        die(f"{paths} have no task in common (same name, request, reference and tests)")
    result = {}
    for name, summary in summaries.items():
        metrics = summarise(summary, tasks, args)
        is_base = name == base_name
        result[name] = {
            "metrics": metrics,
            "against": None if is_base else base_name,
            "difference": None if is_base else paired_difference(summary, base, tasks, args.resamples, args.seed),
            "cost": cost_of(summary),
            "notes": notes(summary, metrics),
        }
        if len(tasks) < len(summary.sums):
            few = "WARNING: " if len(tasks) < len(summary.sums) / 2 else ""
            result[name]["notes"].append(f"{few}columns and differences rest on the {len(tasks):,} tasks that all runs "
                                         f"have, of {len(summary.sums):,} in {summary.path}")
        if summary.humans != base.humans:
            result[name]["notes"].append(f"WARNING: the human is {' and '.join(sorted(summary.humans))}; in "
                                         f"{base_name} it is {' and '.join(sorted(base.humans))}")
    return result


def check_comparable(summary, base):
    kind = (summary.domain, *summary.scored_by.values())
    base_kind = (base.domain, *base.scored_by.values())
    if kind != base_kind:
        die(f"{summary.path}, {kind}, and {base.path}, {base_kind}, cannot be compared; score both alike")


def cost_of(summary):
    """What went into the model that played, as its trainer counted it; {} if that is not known."""
    (model, made), *others = summary.models
    cost = Path(str(model)) / "cost.json"
    if others or not cost.is_file() or made not in (None, model, fingerprint(model)):    # or it was trained anew
        return {}
    return json.loads(cost.read_text())


def shares(counts):
    total = sum(counts.values())
    texts = [f"{name} {count:,} ({100 * count / total:.1f}%)" for name, count in counts.items()]
    return ", ".join(texts)


def notes(summary, metrics):
    """What the numbers of a run rest on, as sentences."""
    said = [f"episodes of {summary.path} ended: {shares(metrics['finish'])}"]
    for error, count in metrics["errors"].items():
        said.append(f"{count:,} x {error}")
    if metrics["statuses"]:
        said.append(f"{summary.environment.counts}: {shares(metrics['statuses'])}")
    if "encoder" in metrics:
        said.append('encoder: {encoder}; the reward is the cosine of the view "{view}"'.format(**metrics))
    if metrics["references_failing"]:
        first = ", ".join(map(str, metrics["references_failing_first"][:3]))
        said.append(f"WARNING: {metrics['references_failing']:,} tasks whose reference does not run (first: {first}); "
                    "no answer can score there")
    return said


def compare_seeds(runs, args):
    """compare() for several files a name: {name: [Summary]} -> {name: {..., "seeds": {seed: compare()'s result}}}.

    A name may lack seeds: its numbers are over those that it has, its differences over those that the first one has
    too, and a warning says so.
    """
    by_seed = defaultdict(dict)    # seed -> {name: Summary}
    for name, run in runs.items():
        for seed, summary in zip(seeds_of(name, run), run):
            by_seed[seed][name] = summary
    base = next(iter(runs))
    results = {name: {} for name in runs}
    for seed, summaries in sorted(by_seed.items()):
        groups = [summaries]
        if base not in summaries:    # nothing to compare with
            groups = [{name: summary} for name, summary in summaries.items()]
        for group in groups:
            for name, result in compare(group, args).items():
                results[name][seed] = result
    means = {name: mean_over_seeds(seeds) for name, seeds in results.items()}
    for name, result in means.items():
        models = [made for summary in runs[name] for _, made in summary.models if made]
        missing = [str(seed) for seed in sorted(by_seed) if seed not in result["seeds"]]
        if len(set(models)) < len(models):
            result["notes"].append("WARNING: some of these files are of one and the same model: what differs is the "
                                   "seed of its sampling, not the training run")
        if missing:
            result["notes"].append(f"WARNING: no seed {', '.join(missing)} here; differences are over what both have")
    return means


def seeds_of(name, run):
    """The one seed that the records of each file name."""
    seeds = [seed for summary in run for seed in summary.seeds]
    if None in seeds or len(seeds) != len(run) or len(set(seeds)) < len(seeds):
        found = "; ".join(f"{summary.path}: {', '.join(map(str, summary.seeds))}" for summary in run)
        die(f"each file of {name!r} must name one seed in its records (rollout.py --seed writes it), and no two "
            f"the same one; found {found}")
    return seeds


def mean_over_seeds(seeds):
    """One run's result over its seeds {seed: result}, in the shape of compare()'s, with "seeds" added."""
    runs = list(seeds.values())
    compared = [run for run in runs if run["against"]]
    of_runs = [run["metrics"] for run in runs]
    of_pairs = [run["difference"] for run in compared]
    metrics = {
        "domain": of_runs[0]["domain"],
        "tasks": of_runs[0]["tasks"],
        "samples": sum(one["samples"] for one in of_runs),
        "finish": added_up(one["finish"] for one in of_runs),
        "errors": added_up(one["errors"] for one in of_runs),
    }
    difference = {}
    for name, metric in metrics_of(metrics["domain"]).items():
        is_share = bool(metric.unit)
        if any(name in one for one in of_runs):
            metrics[name] = mean_of(name, of_runs, *((0, 1) if is_share else ()))
        if mean := mean_of(name, of_pairs, *((-1, 1) if is_share else ())):
            difference[name] = mean
    if win_rate := mean_of("win_rate", of_pairs, 0, 1):
        difference["win_rate"] = win_rate
    cost = {}
    for name in COSTS:
        if all(name in run["cost"] for run in runs):
            cost[name] = sum(run["cost"][name] for run in runs) / len(runs)
    return {
        "metrics": metrics,
        "against": compared[0]["against"] if compared else None,
        "difference": difference,
        "cost": cost,
        "notes": notes_over_seeds(seeds, metrics),
        "seeds": seeds,
    }


def added_up(counts):
    return dict(sum(map(Counter, counts), Counter()).most_common())


def mean_of(name, results, least=-math.inf, most=math.inf):
    """The mean of a metric over the seeds' results; None unless all of them have it."""
    found = [result.get(name) for result in results]
    if not found or not all(found):
        return None
    return over_seeds([one["value"] for one in found], least, most)


def notes_over_seeds(seeds, metrics):
    said = []
    for name, metric in metrics_of(metrics["domain"]).items():
        if metric.compared and metrics.get(name):
            values = [show(value, metric.unit) for value in metrics[name]["values"]]
            said.append(f"{metric.heading}, seeds {', '.join(map(str, seeds))}: {', '.join(values)}")
    said.append(f"episodes of all seeds ended: {shares(metrics['finish'])}")
    for seed, run in seeds.items():
        errors = run["metrics"]["errors"]
        if errors:
            said.append(f"WARNING: seed {seed}, {run['notes'][0]}")
        for error, count in errors.items():
            said.append(f"seed {seed}: {count:,} x {error}")
        for note in run["notes"]:
            if note.startswith("WARNING"):
                said.append(f"seed {seed}: {note}")
    return said


# ---------------------------------------------------------------------------------------------------------------------
# Tables (Markdown, so that they can be pasted)


def show(value, unit, signed=False):
    """A number as text; unit "Q" is a plain number with three digits."""
    scaled = 100 * value if unit in ("%", "x 100") else value
    digits = 3 if unit == "Q" else 1
    sign = "+" if signed else ""
    return f"{scaled:{sign}.{digits}f}"


def cell(numbers, unit, signed=False):
    """A metric as text: 33.3% [12.1, 54.5], or of a few seeds 50.0% (40.0, 60.0); a difference is in points."""
    value = show(numbers["value"], unit, signed)
    if unit == "%" and not signed:
        value += "%"
    if numbers["low"] is None:
        values = [show(each, unit, signed) for each in numbers["values"]]
        return f"{value} ({', '.join(values)})"
    low, high = show(numbers["low"], unit, signed), show(numbers["high"], unit, signed)
    return f"{value} [{low}, {high}]"


def row(runs, heading, part, name, unit, signed=False):
    """A heading, and of every run one number of its "metrics" or "difference" as text."""
    texts = []
    for run in runs:
        found = run[part] or {}
        if found.get(name):
            texts.append(cell(found[name], unit, signed))
        else:
            texts.append("not known" if name in found else "")
    return heading, *texts


def table(result):
    """Metrics, differences to the first run and costs as rows of texts, a run a column; the first row is the head."""
    runs, base = list(result.values()), next(iter(result))
    rows = [
        ("tasks x samples", *map(size_of, runs)),
        row(runs, f"win rate vs {base}", "difference", "win_rate", "%"),
    ]
    for name, metric in metrics_of(runs[0]["metrics"]["domain"]).items():
        rows.append(row(runs, metric.heading, "metrics", name, metric.unit))
        if metric.compared:
            rows.append(row(runs, f"{metric.heading}, vs {base}", "difference", name, metric.unit, signed=True))
    for name in COSTS:
        costs = [f"{run['cost'][name]:,.0f}" if name in run["cost"] else "" for run in runs]
        rows.append((f"cost: {name.replace('_', ' ')}", *costs))
    rows = [texts for texts in rows if any(texts[1:])]
    return [("", *result), *rows]


def size_of(run):
    """Number of tasks, and of samples of each; of several seeds that of one."""
    tasks, samples = run["metrics"]["tasks"], run["metrics"]["samples"]
    if "seeds" not in run:
        return f"{tasks:,} x {samples / tasks:.3g}"
    seeds = len(run["seeds"])
    return f"{seeds} seeds: {tasks:,} x {samples / tasks / seeds:.3g}"


def markdown(rows):
    """Rows of texts, the first one the heading, as a Markdown table with its columns lined up."""
    rows = [[printable(text).replace("|", "/") for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths)]
        lines.append(f"| {' | '.join(cells)} |")
    lines.insert(1, f"|{'|'.join('-' * (width + 2) for width in widths)}|")
    return "\n".join(lines)


def printable(text):
    """For the terminal: no control characters and no broken ones from a record."""
    return "".join(character if character.isprintable() else "?" for character in str(text))


# ---------------------------------------------------------------------------------------------------------------------
# The report: report.html with its data filled in. The template's script shows every text of a record as text only, and
# the policy in its head lets no other script run (it names the script by its hash), loads nothing and sends nothing.

TEMPLATE = Path(__file__).with_name("report.html")


def write_report(path, summaries, result, args):
    """The table and dialogues of the scored files that were summarised {name: Summary}, as one HTML file."""
    total = sum(len(rewards) for summary in summaries.values() for rewards in summary.rewards.values())
    names = list(dict.fromkeys(task for summary in summaries.values() for task in summary.sums))
    names = names[:max(1, args.report_limit * len(names) // total)]
    tasks = {name: {"episodes": []} for name in names}
    pages = {}    # page -> place of its picture among the pictures

    def add(name, record):    # -> is it in the report?
        task = tasks.get(task_digest(record))
        if task is None:
            return False
        task |= {"id": record["task_id"], "request": record["task"].get("problem_description") or ""}
        if ENVIRONMENTS[record["domain"]].pages:
            task["picture"] = pages.setdefault(record["task"]["ground_truth"], len(pages))
        task["episodes"].append(episode(name, record, pages))
        return True

    for name, summary in summaries.items():
        added = read(summary.path, "scored", summary.domain, each=functools.partial(add, name))
        wanted = sum(len(summary.rewards.get(task, ())) for task in tasks)
        while wanted:    # they come first: the rest is not read
            wanted -= next(added)
    count = sum(len(task["episodes"]) for task in tasks.values())
    data = {
        "runs": list(summaries),
        "table": table(result),
        "total": total,
        "notes": {name: run["notes"] for name, run in result.items()},
        "tasks": list(tasks.values()),
        "pictures": list(small_pictures(pages, args.workers)),
    }
    with atomic_write(path) as part:
        part.write_text(fill_template(data), encoding="utf-8")
    print(f"wrote {path}: {count:,} of {total:,} dialogues, {path.stat().st_size / 1e6:.1f} MB; open it in a browser")


def fill_template(data):
    template = TEMPLATE.read_text(encoding="utf-8")
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")    # no </script> and no <!-- can end the script
    policy = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'"
    for tag in ("style", "script"):
        content = re.search(f"<{tag}>(.*?)</{tag}>", template, re.DOTALL)[1].encode()
        policy += f"; {tag}-src 'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"
    return template.replace("{{policy}}", policy).replace("{{data}}", text)


def episode(name, record, pages):
    """One scored record as the report's script shows it; pages that it shows are added to `pages` {page: place}."""
    has_pages = ENVIRONMENTS[record["domain"]].pages
    more = [f"{view} {value:.3f}" for view, value in (record.get("cosine") or {}).items()]
    if "reward_released" in record:
        more.append(f"released evaluator {record['reward_released']:.2f}")
    facts = [("good" if told else "bad", f"{'' if told else 'never '}told: {fact.get('detail', '?')}", fact["reply"])
             for fact, told in facts_told(record) or ()]
    calls = record["task"].get("test_cases") or {}
    tests = [("good" if status == "passed" else "bad", status, calls.get(label, ""))
             for label, status in (record.get("tests") or {}).items()]
    return {
        "run": name,
        "sample": record["sample"],
        "reward": record["reward"],
        "result": ENVIRONMENTS[record["domain"]].grade(record),
        "finish": record["finish"],
        "more": more,
        "turns": [shown_turn(turn, pages if has_pages else None) for turn in record["dialogue_history"]],
        "lines": lines_side_by_side(record),
        "lists": {"Hidden details": facts, "Tests": tests},
    }


def shown_turn(turn, pages):
    """A message as the report's script shows it; pages: None if replies hold none."""
    text, mark, code = turn["content"].partition(ANSWER_MARK)
    shown = {"agent": turn["role"] == "assistant", "text": text + mark, "code": code.strip()}
    if not shown["agent"]:
        return shown
    output, advantage = (turn.get("output") or "").strip(), turn.get("advantage")
    if output.endswith(turn["content"]):    # what parse_response cut off in front
        shown["thought"] = output.removesuffix(turn["content"]).strip().removesuffix(OUTPUT_MARK).strip()
    if isinstance(advantage, (int, float)) and math.isfinite(advantage):
        shown["advantage"] = advantage
    if pages is not None:
        from render import extract_page
        if page := extract_page(turn["content"]):
            shown["picture"] = pages.setdefault(page, len(pages))
    return shown


def lines_side_by_side(record):
    """[(are they equal?, line of the reference or None, line of the answer or None)]."""
    def lines_of(source):
        return [line.rstrip() for line in source.strip("\n").split("\n")][:400]

    reference = lines_of(record["task"]["ground_truth"])
    answer = lines_of(extract_code(record["answer"] or "", called_names(record["task"])))
    rows = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, reference, answer, autojunk=False).get_opcodes():
        for pair in itertools.zip_longest(reference[a:b], answer[c:d]):
            rows.append((kind == "equal", *pair))
    return rows


def small_pictures(pages, workers):
    """Yield an address with the picture of each page, 360 pixels wide and cut at three screens; None if it broke."""
    if not pages:
        return
    from PIL import Image
    from render import Renderer
    try:
        renderer = Renderer(workers)
    except RuntimeError as problem:
        die(f"pictures of the pages are needed: {problem}")
    with renderer:
        for found in renderer.render_many(pages):
            if found.status != "ok":
                yield None
                continue
            image = Image.fromarray(found.rgb[:3 * 1280])
            image = image.resize((360, max(1, round(image.height * 360 / image.width))), Image.Resampling.BOX)
            image.save(data := io.BytesIO(), "WEBP", quality=55, method=4)
            yield "data:image/webp;base64," + base64.b64encode(data.getvalue()).decode()


# ---------------------------------------------------------------------------------------------------------------------
# The command line


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add, cores = parser.add_argument, getattr(os, "sched_getaffinity", None)
    count, seconds = number(int, least=1, most=1_000_000_000), number(above=0, most=1_000_000)
    # what to score
    add("--run-name", default="default", help="name of the run: its files are in runs/{run-name} (default: default)")
    add("--split", default="train", help="which of the run's trajectories: train, val, test (default: train)")
    add("--in", dest="input", type=Path, help="trajectories (default: runs/{run-name}/{split}.trajectories.jsonl)")
    add("--out", type=Path, help="scored trajectories (default: the input's name with .scored.jsonl)")
    add("--domain", choices=list(ENVIRONMENTS), default="backend",
        help="domain of records that do not name theirs (default: backend)")
    add("--overwrite", action="store_true", help="score everything again, even what --out holds already")
    add("--workers", type=count, default=len(cores(0)) if cores else os.cpu_count(),
        help="programs, or browsers, at work at the same time (default: one per core)")
    # how to score programs
    add("--mode", choices=["module", "released", "both"], default="module",
        help="module: the program runs as a module; released: by the rules of the evaluator released with the paper; "
             "both: the two side by side (default: module)")
    add("--call-timeout", type=seconds, default=1.0, help="seconds that one call may take (default: 1.0)")
    add("--program-timeout", type=seconds, default=5.0,
        help="seconds that all calls of a program may take (default: 5.0)")
    add("--memory-mb", type=count, default=256, help="megabytes that a program may use (default: 256)")
    add("--numpy", action="store_true", help="programs find numpy imported")
    add("--unsafe", action="store_true", help="run programs even where the sandbox cannot shut them in")
    # how to score pages
    add("--encoder", default="layout",
        help="what embeds the pictures: layout (colours and edges, no weights), or the folder or hub name of a CLIP or "
             "SigLIP; the paper's is openai/clip-vit-base-patch32 (default: layout)")
    add("--view", choices=VIEWS, default="page", help="which cosine is the reward: of the whole page, or of the centre "
        "that CLIP's processor keeps, as in the paper; both are recorded (default: page)")
    add("--reward", choices=["cosine", "choices"], default="cosine", help="the reward of a page: the cosine, as in the "
        "paper, or the share of the task's hidden choices that it has (default: cosine)")
    # intervals
    add("--resamples", type=count, default=10_000, help="bootstrap draws of the tasks (default: 10000)")
    add("--seed", type=number(int, least=0), default=0, help="seed of the bootstrap (default: 0)")
    # compare runs that are scored already
    add("--compare", nargs="+", type=named_files, metavar="NAME=FILE",
        help="scored files to put side by side; differences are against the first one. A pattern in quotes "
             "(sweet='runs/seed-*/policy.test.scored.jsonl') stands for the same run with several seeds")
    # what to write beside the table
    add("--json", type=Path, help="write the table's numbers here as well")
    add("--report", type=Path, help="write one self-contained HTML file with the dialogues here")
    add("--report-limit", type=count, default=200,
        help="about how many dialogues go into the report, all of a task or none (default: 200)")
    args = parser.parse_args()
    if args.compare and len(dict(args.compare)) < len(args.compare):
        parser.error(f"--compare needs another name for each run, found {', '.join(name for name, _ in args.compare)}")
    if args.compare and (args.input or args.out):
        parser.error("--compare reads files that are scored already: give it without --in and --out")
    return args


def named_files(pair):
    """An argparse type: NAME=FILE as (name, [paths]); several paths where a pattern names the seeds of one run."""
    name, _, path = pair.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"takes NAME=FILE, such as base=runs/base/test.scored.jsonl, not {pair!r}")
    return name, files_of(path)


def files_of(path):
    """The file, or the files of a pattern in the order of their names."""
    return [Path(path)] if Path(path).is_file() else sorted(map(Path, glob.glob(path))) or [Path(path)]


def write_json(path, value):
    with atomic_write(path) as part:
        part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")


def main():
    args = parse_args()
    if not args.compare:
        args.input = args.input or Path("runs") / args.run_name / f"{args.split}.trajectories.jsonl"
        stem = args.input.name.removesuffix(".jsonl").removesuffix(".trajectories")
        args.out = args.out or args.input.parent / f"{stem}.scored.jsonl"
    files = dict(args.compare or [(stem, [args.out])])
    several = any(len(paths) > 1 for paths in files.values())
    check_outputs(args, files, several)
    if args.input:
        score(args)
    runs = {name: [Summary(path, args) for path in paths] for name, paths in files.items()}
    summaries = {name: run[0] for name, run in runs.items()}
    result = compare_seeds(runs, args) if several else compare(summaries, args)
    print(markdown(table(result)))
    for name, run in result.items():
        for note in run["notes"]:
            print(printable(f"{name}: {note}"))
    if args.json:
        write_json(args.json, result)
    if args.input:
        name = args.out.name.removesuffix(".jsonl").removesuffix(".scored")
        write_json(args.out.with_name(f"{name}.metrics.json"), result[stem]["metrics"])
    if args.report:
        write_report(args.report, summaries, result, args)


def check_outputs(args, files, several):
    """Stop before any work if --json or --report cannot be written."""
    inputs = [TEMPLATE, *itertools.chain(*files.values())]
    if args.input:
        inputs.append(args.input)
    if args.report and not TEMPLATE.is_file():
        die(f"{TEMPLATE}: the report's template, which belongs beside evaluate.py, is missing")
    if args.report and several:
        die("--report shows one run a name: give it one file for each")
    for path, suffix in ((args.report, ".html"), (args.json, ".json")):
        if path is None:
            continue
        if path.suffix != suffix or path.name.endswith(".metrics.json"):    # a mistyped name replaces no other file
            die(f"{path} must end in {suffix}, and not in .metrics.json")
        check_path(path, inputs)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.stdout.flush()
        print("\nevaluate.py: stopped; the same command, without --overwrite, goes on", file=sys.stderr)
        os._exit(130)    # without waiting for threads that are still at work
    except OSError as error:
        die(f"{error.filename or 'a file'}: {error.strerror or error}")
