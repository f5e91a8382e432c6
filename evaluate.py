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
that both have (with the same name, request, reference and tests), and each draw of tasks is used for both (a paired
difference), so that the difficulty of the tasks cancels. A metric that is 0% or 100% on every task gets an interval of
width zero: the bootstrap cannot know better.

Departures
- An episode without an answer (the engine or the simulator failed) scores 0 and is counted.
- The paper gives no intervals. The released code runs programs inside its own process, in a function's local scope,
  behind a list of forbidden words (--mode released applies its rules inside the sandbox), writes rewards over its
  input, and reports the best of k samples. Here the input is left alone and every sample counts.
- Frontend: the page of the answer counts, and an answer without a page, or with one that cannot be rendered, scores 0
  (released code: the last page shown at any turn, else a black picture).

Reads   runs/{run-name}/{split}.trajectories.jsonl; with --compare scored files, and cost.json of the models they name
Writes  runs/{run-name}/{split}.scored.jsonl, the records plus `reward`, `tests` (one status per test) and `sandbox`
        (its layers); frontend: `reward`, `cosine` (both views), `view`, `page` (ok, blank, ...), `encoder`, `sandbox`
        .scored.settings.json and .metrics.json beside it, with --report one HTML file, with --picture one PNG of pages
With --truth no run is compared but critics: how each orders the candidates of a turn, beside what playing every
candidate to its end gave (rollout.py --continue).
Memory does not grow with the dialogues: each record is written as it is scored, in the order of the input. When it was
stopped, the same command continues.

    python evaluate.py --split train
    python evaluate.py --in runs/default/test.trajectories.jsonl --report runs/default/report.html
    python evaluate.py --compare base=runs/a/test.scored.jsonl sweet=runs/b/test.scored.jsonl --report runs/b/ab.html
    python evaluate.py --truth runs/default/val.continuations.scored.jsonl --compare a=runs/a/val.annotated.jsonl
    python evaluate.py --compare base='runs/seed-*/base.test.scored.jsonl' sweet='runs/seed-*/policy.test.scored.jsonl'
Where a name stands for several files, each is a training run with its own seed, which its records name: the table shows
means over the seeds, differences taken seed by seed, and from five seeds on intervals by Student's t.
"""

import argparse
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
from collections import Counter, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np
from tqdm import tqdm

from sandbox import (
    ANSWER_MARK, COSTS, OUTPUT_MARK, Output, Sandbox, agent_turns, check_path, die, monte_carlo_returns, number, read,
    whole)

VIEWS = ("page", "centre")


# ---------------------------------------------------------------------------------------------------------------------
# Reward: how each domain is scored


def score_programs(records, args):
    """Yield each backend record with `reward`, `tests` and `sandbox`, in order; only a few records are read ahead.

    With --mode both also `reward_released` and `tests_released`, what the released evaluator would say.
    """
    def jobs(records, mode):
        for record in records:
            answer = record["answer"] or ""
            yield record, record["task"], answer if mode == "released" else extract_code(answer)

    with Sandbox(workers=args.workers, memory_mb=args.memory_mb, call_timeout=args.call_timeout,
                 program_timeout=args.program_timeout, numpy=args.numpy, unsafe=args.unsafe) as box:
        modes = ["module", "released"] if args.mode == "both" else [args.mode]
        streams = zip(itertools.tee(records, len(modes)), modes)
        for scored in zip(*(box.score_many(jobs(stream, mode), mode) for stream, mode in streams)):
            record = scored[0][0] | {"sandbox": box.layers}
            for suffix, (_, tests) in zip(("", "_released"), scored):
                if record["answer"] is None:
                    tests = dict.fromkeys(tests, "no answer")
                passed = sum(status == "passed" for status in tests.values())
                record |= {f"reward{suffix}": passed / len(tests), f"tests{suffix}": tests}
            yield record


def score_pages(records, args):
    """Yield each frontend record with `reward`, `cosine` and what they rest on, in order.

    Each page is rendered once (samples of a task share its reference), and others while one is compared.
    """
    from render import Renderer, cosine, extract_page, load_encoder

    try:
        embed, renderer = load_encoder(args.encoder), Renderer(args.workers)
    except RuntimeError as problem:
        die(str(problem))
    underway = deque()    # (record, what embedded() gives for its reference, and for its page where it has one)

    def wait_and_embed(rendering):
        picture = rendering.result()
        seen = {view: embed(picture, view) for view in VIEWS} if picture.status == "ok" else None
        return "blank" if seen and picture.blank else picture.status, seen

    @functools.lru_cache(4096)
    def embedded(page):
        """The future of (status, {view: embedding} or None)."""
        return embedder.submit(wait_and_embed, renderer.submit(page))

    def finish():
        record, reference, answer = underway.popleft()
        reference_status, theirs = reference.result()
        status, ours = answer.result() if answer else ("no page", None)
        cosines = {view: cosine(ours[view], theirs[view]) if ours and theirs else 0.0 for view in VIEWS}
        return record | {"reward": min(1.0, max(0.0, cosines[args.view])), "cosine": cosines, "view": args.view,
                         "encoder": embed.name, "page": status if theirs else f"reference {reference_status}",
                         "sandbox": {"isolation": renderer.isolation, "chromium": renderer.version}}

    with renderer, ThreadPoolExecutor(1) as embedder:
        for record in records:
            page = page_of(record, extract_page)
            underway.append((record, embedded(record["task"]["ground_truth"]), embedded(page) if page else None))
            if len(underway) > 2 * args.workers:
                yield finish()
        while underway:
            yield finish()


REWARDS = {  # domain: (records -> scored records, the flags that decide their rewards)
    "backend": (score_programs, ("mode", "call_timeout", "program_timeout", "memory_mb", "numpy")),
    "frontend": (score_pages, ("encoder", "view")),
}


def extract_code(answer):
    """The program in an answer: a leading answer mark and markdown fences are taken off, the common indentation too.

    Of several fenced blocks those with a definition are kept, in order (a later one overrides an earlier one); usage
    examples and prose around the blocks go. A block that was cut off before its closing fence still counts.
    """
    text = re.sub(rf"\A\s*{ANSWER_MARK}", "", answer).replace("\r\n", "\n")
    blocks = re.findall(r"```[^\n`]*\n(.*?)(?:```|\Z)", text, flags=re.DOTALL)
    if not blocks:    # a fence within one line: ```python f = len```
        blocks = re.findall(r"```(?:python|py)?\b(.*?)```", text, flags=re.DOTALL) or [text]
    blocks = [textwrap.dedent(block) for block in blocks]
    definition = re.compile(r"^(?:async )?(?:def|class) |^\w+ *= *lambda\b", flags=re.MULTILINE)
    return "\n".join([b for b in blocks if definition.search(b)] or blocks).strip("\n").lstrip(" \t")


def page_of(record, extract_page):
    """The page of an answer, or None. Released records have a picture file's name there: the last reply holds it."""
    if record["answer"] is None:
        return None
    last = (replies(record) or [{"content": ""}])[-1]
    return extract_page(record["answer"]) or extract_page(last.get("output") or last["content"])


def replies(record):
    return [turn for turn in record["dialogue_history"] if turn["role"] == "assistant"]


# ---------------------------------------------------------------------------------------------------------------------
# Metrics: a new one is a new row


class Metric(NamedTuple):
    heading: str
    unit: str              # how it is printed: "%" (a share), "x 100", or "" (a plain number)
    compared: bool         # are runs compared by it?
    of_record: Callable    # scored record -> a value (a, with b = 1), or (a, b), or None where it does not apply
    domain: str = ""       # the only domain that it is about, if there is one


def facts_heard(record):
    """[(fact, was the agent told it?)]: procedural tasks list the hidden details that the human tells when asked."""
    heard = [turn["content"] for turn in record["dialogue_history"][1:] if turn["role"] != "assistant"]
    return [(fact, any(fact["reply"] in text for text in heard)) for fact in record["task"].get("facts") or ()]


def sampled_lengths(record):
    return [len(turn["output_ids"]) for turn in replies(record) if turn.get("output_ids")]


METRICS = {  # name in metrics.json and --json: its row
    "success": Metric("success", "%", True, lambda r: r["reward"] == 1, "backend"),
    "tests_passed": Metric("tests passed", "%", True, lambda r: r["reward"], "backend"),
    "success_released": Metric("success (released evaluator)", "%", False, lambda r: (
        r["reward_released"] == 1 if "reward_released" in r else None), "backend"),
    "tests_passed_released": Metric("tests passed (released evaluator)", "%", False, lambda r: (
        r.get("reward_released")), "backend"),
    "cosine_page": Metric("cosine x 100, whole page", "x 100", True, lambda r: r["cosine"]["page"], "frontend"),
    "cosine_centre": Metric("cosine x 100, centre", "x 100", True, lambda r: r["cosine"]["centre"], "frontend"),
    "blank": Metric("blank pages", "%", False, lambda r: r["page"] == "blank", "frontend"),
    "broken": Metric("no page or broken", "%", False, lambda r: r["page"] not in ("ok", "blank"), "frontend"),
    "details_told": Metric("hidden details told", "%", False,
                           lambda r: (sum(heard for _, heard in facts_heard(r)), len(facts_heard(r)))),
    "answered": Metric("answered", "%", False, lambda r: r["finish"] == "answered"),
    "turns": Metric("turns", "", False, lambda r: len(replies(r))),
    "words_per_reply": Metric("words per reply", "", False, lambda r: (
        sum(len(turn["content"].split()) for turn in replies(r)), len(replies(r)))),
    "tokens_per_reply": Metric("tokens per reply", "", False,
                               lambda r: (sum(sampled_lengths(r)), len(sampled_lengths(r)))),
}


def measure(record):
    """The sums that one scored record adds to its task's: (2 M,), numerator and denominator of each of M metrics."""
    found = [metric.of_record(record) if metric.domain in ("", record["domain"]) else None
             for metric in METRICS.values()]
    return np.array([value if isinstance(value, tuple) else (0, 0) if value is None else (value, 1)
                     for value in found], float).ravel()


def ratios(sums):
    """The metrics (..., M) of sums (..., 2 M); NaN where nothing was counted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums[..., 0::2] / sums[..., 1::2]


def bootstrap_sums(sums, resamples, seed):
    """Draw T tasks out of T with replacement, `resamples` times, and add up their rows.

    sums (T, C): one row per task. Returns (resamples, C). A draw is a count per task, so that the sums of a block of
    draws are one matrix product; blocks keep the memory at a few megabytes.
    """
    rng, tasks, totals = np.random.default_rng(seed), len(sums), []
    block = max(1, 500_000 // tasks)
    for start in range(0, resamples, block):
        draws = rng.integers(tasks, size=(min(block, resamples - start), tasks))    # (block, T), indices of tasks
        draws += np.arange(len(draws))[:, None] * tasks    # one bincount for all draws of the block
        counts = np.bincount(draws.ravel(), minlength=draws.size).reshape(draws.shape)    # (block, T)
        totals.append(counts @ sums)
    return np.concatenate(totals)


def percentile_intervals(names, values, draws):
    """{name: {"value", "low", "high"}}: values (M,) and the 95% percentile intervals of their bootstrap draws (R, M).

    Values and draws are left out where nothing was counted (NaN).
    """
    result = {}
    for name, value, drawn in zip(names, values, draws.T):
        if not math.isnan(value):
            low, high = np.nanpercentile(drawn, [2.5, 97.5])
            result[name] = {"value": float(value), "low": float(low), "high": float(high)}
    return result


def intervals(sums, resamples, seed):
    """{metric: {"value", "low", "high"}} for the sums (T, 2 M) of one run."""
    return percentile_intervals(METRICS, ratios(sums.sum(axis=0)), ratios(bootstrap_sums(sums, resamples, seed)))


def win_share(ours, theirs):
    """Share of the pairs (a sample of ours, one of theirs) in which ours has the higher reward; a tie is half a win."""
    ours, theirs = np.array(ours)[:, None], np.array(theirs)[None, :]
    return float(((ours > theirs) + 0.5 * (ours == theirs)).mean())


def paired_difference(run, base, resamples, seed):
    """{metric: {"value", "low", "high"}} of run minus base over the tasks that both have, under the same draws.

    With "tasks", how many these are, and for pages "win_rate".
    """
    common = [task for task in run.sums if task in base.sums]
    if not common:
        die(f"{run.path} and {base.path} have no task in common (same name, request, reference and tests), so "
            "they cannot be compared: roll both out on the same tasks")
    ours, theirs = (np.array([summary.sums[task] for task in common]) for summary in (run, base))    # (T, 2 M)
    wins = np.array([[win_share(run.rewards[task], base.rewards[task])] for task in common])    # (T, 1)
    sums, half = np.hstack([ours, theirs, wins]), ours.shape[1]    # (T, 4 M + 1)

    def differences(sums):    # (..., 4 M + 1) -> (..., M + 1)
        return np.concatenate([ratios(sums[..., :half]) - ratios(sums[..., half:-1]), sums[..., -1:] / len(common)], -1)

    names = [*METRICS, "win_rate"] if run.domain == "frontend" else METRICS
    return {"tasks": len(common)} | percentile_intervals(
        names, differences(sums.sum(axis=0)), differences(bootstrap_sums(sums, resamples, seed)))


def over_seeds(values, least=-math.inf, most=math.inf):
    """{"value", "low", "high", "values"}: the mean of independent training runs and its 95% t interval.

    values: one per seed; the interval is cut at `least` and `most`, what the metric can be. Below five seeds low and
    high are None, as Student's interval of so few says nothing (of 0% and 100% it is -585% to 685%).
    """
    mean, low, high = float(np.mean(values)), None, None
    if len(values) >= 5:
        freedom = len(values) - 1    # the 97.5% quantile of Student's t, expanded around the normal distribution's
        t = 1.959964 + 2.372271 / freedom + 2.822499 / freedom ** 2 + 2.555852 / freedom ** 3 + 1.58938 / freedom ** 4
        half = t * float(np.std(values, ddof=1)) / math.sqrt(len(values))
        low, high = max(least, mean - half), min(most, mean + half)
    return {"value": mean, "low": low, "high": high, "values": list(values)}


# ---------------------------------------------------------------------------------------------------------------------
# Scoring: trajectories in, scored records out


def score(args):
    """Score args.input into args.out, going on where an earlier run stopped."""
    domain = domain_of(args.input, "trajectory", args)
    score_records, flags = REWARDS[domain]
    inputs = {"--in": args.input} | ({"--encoder": args.encoder} if domain == "frontend" else {})
    out = Output(args.out, {"domain": domain, **{flag: getattr(args, flag) for flag in flags}}, inputs, args.overwrite)
    count = sum(1 for _ in trajectories(args.input, domain))    # every line can be read, before anything is written
    if len(out.done) == count:
        print(f"{args.out}: all {count:,} trajectories are scored already")
        return
    scored = score_records((record for record in trajectories(args.input, domain)
                            if out.key_of(record) not in out.done), args)
    first = next(scored)    # no progress bar before sandbox, encoder and browsers work
    for record in tqdm(itertools.chain([first], scored), total=count, initial=len(out.done), unit=" answers",
                       desc="scoring", mininterval=0.5, dynamic_ncols=True):
        out.write(record)


def domain_of(path, kind, args):
    """What the first record of a file is about; the others must be about the same."""
    domain = next(read(path, kind))["domain"] or args.domain
    if domain not in REWARDS:
        die(f"{path}, line 1: found domain {domain!r}, expected {' or '.join(REWARDS)}")
    return domain


def trajectories(path, domain):
    """The records of a file of trajectories, one at a time, checked."""
    def check(record):
        if domain == "backend" and not record["task"].get("test_cases"):
            raise ValueError('a backend task needs "test_cases", an object of calls such as {"1": "f(1)"}')
        return record
    return read(path, "trajectory", domain, unique=True, each=check)


# ---------------------------------------------------------------------------------------------------------------------
# Comparing runs


class Summary:
    """What the tables need of one scored file, however long its dialogues: a row of sums per task, and counts."""

    def __init__(self, path, domain):
        self.path, self.domain = str(path), domain
        self.sums, self.rewards, self.ids = {}, {}, {}    # of each task's digest: (2 M,) sums, rewards, task_id
        self.ends, self.errors, self.statuses, self.failing = Counter(), Counter(), Counter(), Counter()
        self.models, self.seeds, self.encoder = set(), set(), ()    # encoder: for pages (encoder, view)

    def add(self, record):
        task = task_digest(record)
        self.sums[task] = self.sums.get(task, 0) + measure(record)
        self.rewards.setdefault(task, []).append(record["reward"])
        self.ids.setdefault(task, record["task_id"])
        end = record["finish"].split(":")[0]
        self.ends[end] += 1
        if end == "error":
            self.errors[record["finish"][:120]] += 1
        statuses = [record["page"]] if self.domain == "frontend" else list((record.get("tests") or {}).values())
        self.statuses.update(statuses)
        if any(status.startswith("reference") for status in statuses):
            self.failing[record["task_id"]] += 1
        self.models.add(record.get("model"))
        self.seeds.add(record.get("seed"))
        if self.domain == "frontend":
            before, self.encoder = self.encoder, (record["encoder"], record["view"])
            if before not in ((), self.encoder):
                raise ValueError(f"scored with {self.encoder}, the lines before with {before}; score the whole file "
                                 "with one encoder and view (--overwrite)")


def task_digest(record):
    """Names of tasks repeat over seeds: what is asked and what is expected belongs to a task's identity."""
    keys = "problem_description", "ground_truth", "test_cases"
    content = [record["task_id"], *(record["task"].get(key) for key in keys)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def summarise(path, args):
    """The Summary of a scored file, in one pass."""
    summary = Summary(path, domain_of(path, "scored", args))
    for _ in read(path, "scored", summary.domain, each=summary.add):
        pass
    return summary


def metrics_of(summary, args):
    """What goes into metrics.json."""
    return {
        "in": summary.path, "domain": summary.domain, "tasks": len(summary.sums),
        "samples": sum(map(len, summary.rewards.values())),
        **dict(zip(("encoder", "view"), summary.encoder)),
        **intervals(np.array(list(summary.sums.values())), args.resamples, args.seed),
        "finish": dict(summary.ends.most_common()), "errors": dict(summary.errors.most_common(10)),
        "statuses": dict(summary.statuses.most_common()),
        "references_failing": len(summary.failing), "references_failing_first": list(summary.failing)[:10],
        "interval": "95%, percentile bootstrap over tasks", "resamples": args.resamples, "seed": args.seed,
    }


def training_cost(models):
    """What went into the model of a run, as its trainer counted it in cost.json; {} where nobody did."""
    model, *others = models
    path = Path(str(model)) / "cost.json"
    return json.loads(path.read_text()) if path.is_file() and not others else {}


def compare(summaries, args):
    """{name: {"metrics", "against", "difference", "cost", "notes"}}; differences are against the first run."""
    (base_name, base), result = next(iter(summaries.items())), {}
    for name, summary in summaries.items():
        for what in ("domain", "encoder"):
            if getattr(summary, what) != getattr(base, what):
                die(f"{summary.path} ({what}: {getattr(summary, what)}) and {base.path} ({getattr(base, what)}) cannot "
                    "be compared; score both with the same flags")
        difference = paired_difference(summary, base, args.resamples, args.seed) if name != base_name else None
        result[name] = {"metrics": metrics_of(summary, args), "against": base_name if difference else None,
                        "difference": difference, "cost": training_cost(summary.models),
                        "notes": notes(summary, base, difference)}
    return result


def notes(summary, base, difference):
    """What the numbers of a run rest on, as sentences."""
    def shares(counter):
        total = sum(counter.values())
        return ", ".join(f"{name} {count:,} ({100 * count / total:.1f}%)" for name, count in counter.most_common())

    said = [f"episodes of {summary.path} ended: {shares(summary.ends)}"]
    said += [f"{count:,} x {error}" for error, count in summary.errors.most_common(10)]
    if summary.statuses:
        said.append(f"{'pages' if summary.domain == 'frontend' else 'tests'}: {shares(summary.statuses)}")
    if summary.encoder:
        said.append('encoder: {}; the reward is the cosine of the view "{}"'.format(*summary.encoder))
    if summary.failing:
        said.append(f"WARNING: {len(summary.failing):,} tasks whose reference does not run (first: "
                    f"{', '.join(map(str, list(summary.failing)[:3]))}); no answer can score there")
    most = max(len(summary.sums), len(base.sums))
    if difference and difference["tasks"] < most / 2:
        said.append(f"WARNING: the differences rest on {difference['tasks']:,} tasks, of {most:,}: {summary.path} and "
                    f"{base.path} have only these in common")
    return said


def compare_seeds(files, args):
    """compare() for several files a name, one for each seed: {name: {..., "seeds": {seed: compare()'s result}}}."""
    runs = {name: {} for name in files}    # name -> seed -> Summary
    for name, run in runs.items():
        for path in files[name]:
            summary = summarise(path, args)
            seed, *others = summary.seeds
            if others or seed is None:
                die(f"{path} must name one seed in its records, found {sorted(map(str, summary.seeds))}: files of "
                    "several seeds are paired by it (rollout.py --seed writes it)")
            if seed in run:
                die(f"{path} and {run[seed].path} both name the seed {seed}; each file of {name!r} needs its own")
            run[seed] = summary
    base_name, base = next(iter(runs.items()))
    for name, run in runs.items():
        for seed in sorted(run.keys() ^ base.keys(), key=str):
            has, lacks = (name, base_name) if seed in run else (base_name, name)
            die(f"{runs[has][seed].path} ({has}) names the seed {seed}, which no file of {lacks} does "
                f"({', '.join(summary.path for summary in runs[lacks].values())}); seeds are compared one by one")
    by_seed = {seed: compare({name: run[seed] for name, run in runs.items()}, args) for seed in sorted(base)}
    return {name: mean_over_seeds({seed: result[name] for seed, result in by_seed.items()}) for name in runs}


def mean_over_seeds(seeds):
    """One run's result over its seeds {seed: result}, in the shape of compare()'s, with "seeds" added."""
    runs = list(seeds.values())
    metrics = {key: runs[0]["metrics"][key] for key in ("domain", "tasks")}
    metrics["samples"] = sum(run["metrics"]["samples"] for run in runs)
    result = {"metrics": metrics, "against": runs[0]["against"], "difference": {}, "notes": [], "seeds": seeds}
    for part in ("metrics", "difference"):
        for name in (*METRICS, "win_rate"):
            values = [run[part][name]["value"] for run in runs if name in (run[part] or ())]
            if len(values) == len(runs):
                least = -1 if part == "difference" and name != "win_rate" else 0    # a share, or a difference of two
                is_share = name == "win_rate" or METRICS[name].unit
                result[part][name] = over_seeds(values, *((least, 1) if is_share else ()))
    for metric, row in METRICS.items():
        if row.compared and metric in metrics:
            values = ", ".join(show(value, row.unit) for value in metrics[metric]["values"])
            result["notes"].append(f"{row.heading}, seeds {', '.join(map(str, seeds))}: {values}")
    result["notes"] += [f"seed {seed}: {note}" for seed, run in seeds.items() for note in run["notes"]
                        if note.startswith("WARNING")]
    result["cost"] = {name: sum(run["cost"][name] for run in runs) / len(runs) for name in COSTS
                      if all(name in run["cost"] for run in runs)}
    return result


# ---------------------------------------------------------------------------------------------------------------------
# How well a critic ranks the candidates of a turn: beside what playing each to its end gives


def kind_of_action(record, turn):
    """What the agent did at a turn of an episode, by the facts that it had been told before and was told then."""
    history = record["dialogue_history"]
    place = agent_turns(history)[turn]
    before, after = (sum(heard for _, heard in facts_heard(record | {"dialogue_history": history[:end]}))
                     for end in (place, place + 2))
    if place == len(history) - 1 and record["finish"] != "max_turns":  # a last question is told nothing
        return "answer too early" if before < len(record["task"].get("facts") or ()) else "answer, all known"
    return "useful question" if after > before else "useless question"


def spearman(a, b):
    """Spearman's rank correlation of two lists; 0 where one is constant."""
    ranks = []
    for values in (a, b):
        _, place, count = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(count) - (count - 1) / 2)[place])    # equal values share their mean rank
        ranks[-1] -= ranks[-1].mean()
    scale = math.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum())
    return float(ranks[0] @ ranks[1]) / scale if scale else 0.0


def rank_turn(values, rewards, kinds, gap=0.25):
    """{measure: [sum, count]} of one turn: what a critic's `values` (n,) say of its n candidates beside their rewards.

    rewards: of each candidate's continuations; kinds: of action; gap: pairs whose Q are closer are left out.
    """
    q = np.array([np.mean(r) for r in rewards])
    halves = [np.array([np.mean(r[start::2] or r) for r in rewards]) for start in (0, 1)]
    upper = lambda by: np.argsort(-by, kind="stable")[:len(q) // 2]  # noqa: E731
    truth = np.mean([b[upper(a)].mean() for a, b in (halves, halves[::-1])])    # one half chooses, the other judges
    found = {"pairs in the right order": [0, 0], "mean Q of all": [q.mean(), 1],
             "mean Q of the upper half": [q[upper(values)].mean(), 1], "mean Q of the truth's upper half": [truth, 1]}
    if q.min() < q.max():
        found |= {"Spearman with Q": [spearman(values, q), 1], "Spearman of Q's halves": [spearman(*halves), 1]}
    for i, j in itertools.combinations(range(len(q)), 2):
        if abs(q[i] - q[j]) >= gap:
            right = 0.5 + 0.5 * np.sign((q[i] - q[j]) * (values[i] - values[j]))
            for name in ("pairs in the right order", "- " + " / ".join(sorted((kinds[i], kinds[j])))):
                found[name] = np.add(found.get(name, [0, 0]), [right, 1])
    return found


def rank_critics(files, args):
    """How the candidates of `files` {name: annotated files} are ordered, beside --truth, a file for each of theirs.

    Only pairs of one turn count. The truth is noisy: its halves agree with a correlation r, a perfect critic would
    reach sqrt(2 r / (1 + r)), and the corrected correlation is divided by that (Spearman-Brown). Several files a name
    are seeds: their tasks are pooled.
    """
    sums = defaultdict(lambda: defaultdict(lambda: np.zeros(2)))    # (seed, task) -> (critic, measure) -> sum, count
    names, turns = {}, 0    # measures, in order
    for seed, truth in enumerate(truths := files_of(args.truth)):
        returns, _ = monte_carlo_returns(truth, kind_of_action)
        for critic, paths in files.items():
            if len(paths) != len(truths):
                die(f"{critic} has {len(paths)} files, --truth {len(truths)}; they are taken in pairs, by name")
            for record in read(paths[seed], "candidates"):
                found = returns.get((record["task_id"], record["sample"], record["turn"]), {})
                if len(found) < 2:
                    continue
                try:
                    ranked = [record["candidates"][n] for n in found]
                    values = np.array([candidate["advantage"] for candidate in ranked])
                except LookupError:
                    die(f"{paths[seed]} has no advantages of the candidates of {truth}; write them with "
                        "train_critic.py --annotate")
                texts, rewards, kinds = zip(*found.values())
                if texts != tuple(candidate.get("output") for candidate in ranked):
                    die(f"{paths[seed]} and {truth} have different candidates; annotate the file that was continued")
                for name, part in rank_turn(values, rewards, kinds).items():
                    sums[seed, record["task_id"]][critic, name] += part
                    names[name] = None
                turns += 1
    if not turns:
        die(f"{args.truth} continues no turn of {', '.join(files)}")
    names = sorted(names, key=lambda name: name.startswith("-"))
    table = np.array([[of_task[critic, name] for critic in files for name in names]
                      for of_task in sums.values()]).reshape(len(sums), -1)    # (T, 2 C M)
    total, draws = table.sum(axis=0), bootstrap_sums(table, args.resamples, args.seed)

    def measures(sums):    # (..., 2 C M) -> (..., C, M + 1): the last is Spearman's, corrected
        found = ratios(sums).reshape(*sums.shape[:-1], len(files), len(names))
        r = np.maximum(found[..., names.index("Spearman of Q's halves")], 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            corrected = found[..., names.index("Spearman with Q")] / np.sqrt(2 * r / (1 + r))
        return np.concatenate([found, corrected[..., None]], axis=-1)

    value, draws, counts = measures(total), measures(draws), total.reshape(len(files), -1, 2)[:, :, 1]
    all_names = [*names, "Spearman with Q, corrected"]
    return {"turns": turns // len(files), "against": next(iter(files)), "critics": {critic: {
        "measures": percentile_intervals(all_names, value[n], draws[:, n]),
        "difference": percentile_intervals(all_names, value[n] - value[0], draws[:, n] - draws[:, 0]) if n else {},
        "counts": dict(zip(names, counts[n]))} for n, critic in enumerate(files)}}


def ranking_table(result):
    """rank_critics' result as rows of texts, a critic a column; in brackets how many pairs there are."""
    def text(found, sign=""):
        return "{value:{0}.3f} [{low:{0}.3f}, {high:{0}.3f}]".format(sign, **found) if found else ""

    critics = result["critics"].values()
    first = next(iter(critics))
    rows = [("", *result["critics"]), ("turns", *(str(result["turns"]) for _ in critics))]
    for name in sorted(first["measures"], key=lambda name: name.startswith("-")):
        count = f" ({first['counts'][name]:.0f})" if name.startswith(("-", "pairs")) else ""
        rows.append((name + count, *(text(critic["measures"].get(name)) for critic in critics)))
        if name in ("pairs in the right order", "Spearman with Q") and len(critics) > 1:
            rows.append((f"{name}, vs {result['against']}", *(text(critic["difference"].get(name), "+")
                                                              for critic in critics)))
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Tables (Markdown, so that they can be pasted)


def show(value, unit, signed=False):
    return f"{100 * value if unit else value:{'+' if signed else ''}.1f}"


def cell(numbers, unit, signed=False):
    """A metric as text: 33.3% [12.1, 54.5], or of a few seeds 50.0% (40.0, 60.0); a difference is in points."""
    if not numbers:
        return ""
    few = numbers["low"] is None
    ends = ", ".join(show(value, unit, signed) for value in (numbers["values"] if few else
                                                             (numbers["low"], numbers["high"])))
    percent = "%" if unit == "%" and not signed else ""
    return show(numbers["value"], unit, signed) + percent + (f" ({ends})" if few else f" [{ends}]")


def table(result):
    """Metrics, differences to the first run and costs as rows of texts, a run a column; the first row is the head."""
    runs, base = list(result.values()), next(iter(result))
    differences = [run["difference"] or {} for run in runs]
    sizes = [f"{tasks:,} x {samples / tasks:.3g}" for tasks, samples in
             ((run["metrics"]["tasks"], run["metrics"]["samples"]) for run in runs)]
    rows = [("tasks x samples", *sizes),
            (f"win rate vs {base}", *(cell(difference.get("win_rate"), "%") for difference in differences))]
    for name, metric in METRICS.items():
        rows.append((metric.heading, *(cell(run["metrics"].get(name), metric.unit) for run in runs)))
        if metric.compared:
            rows.append((f"{metric.heading}, vs {base}",
                         *(cell(difference.get(name), metric.unit, signed=True) for difference in differences)))
    rows += [(f"cost: {name.replace('_', ' ')}",
              *(f"{run['cost'][name]:,.0f}" if name in run["cost"] else "" for run in runs)) for name in COSTS]
    return [("", *result), *(row for row in rows if any(row[1:]))]


def markdown(rows):
    """Rows of texts, the first one the heading, as a Markdown table with its columns lined up."""
    rows = [[printable(text).replace("|", "/") for text in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def printable(text):
    """For the terminal: no control characters and no broken ones from a record."""
    return "".join(character if character.isprintable() else "?" for character in str(text))


# ---------------------------------------------------------------------------------------------------------------------
# The report: report.html with its data filled in. The template's script shows every text of a record as text only, and
# the policy in its head lets no other script run (it names the script by its hash), loads nothing and sends nothing.

TEMPLATE = Path(__file__).with_name("report.html")


def write_report(path, named, result, summaries, args, picture):
    """The tables, dialogues and curves of the scored files `named` {name: path} as one HTML file.

    picture: for pages, a function from HTML to a small image, or to None where it cannot be rendered.
    """
    tasks = {task: {"episodes": []} for task in first_tasks(summaries.values(), args.report_limit)}
    pictures, places = [], {}    # addresses of pictures; page -> place in that list, or None where it is broken

    def place_of(page):
        if picture and page and page not in places:
            image, data = picture(page), io.BytesIO()
            places[page] = len(pictures) if image else None
            if image:
                image.save(data, "WEBP", quality=55, method=4)
                pictures.append("data:image/webp;base64," + base64.b64encode(data.getvalue()).decode())
        return places.get(page)

    for name, file in named.items():
        for record in read(file, "scored", summaries[name].domain):
            if task := tasks.get(task_digest(record)):
                reference = record["task"]["ground_truth"]
                task |= {"id": record["task_id"], "request": record["task"].get("problem_description") or "",
                         "reference": lines_of(reference), "picture": place_of(reference)}
                task["episodes"].append(episode(name, record, place_of))
    total = sum(run["metrics"]["samples"] for run in result.values())
    count = sum(len(task["episodes"]) for task in tasks.values())
    folders = sorted({file.parent for file in named.values()})
    data = {"runs": list(named), "table": table(result), "total": total,
            "notes": {name: run["notes"] for name, run in result.items()}, "tasks": list(tasks.values()),
            "pictures": pictures, "curves": list(itertools.chain(*map(training_curves, folders)))}
    template = TEMPLATE.read_text(encoding="utf-8")
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")    # no </script> and no <!-- can end the script
    policy = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'"
    for tag in ("style", "script"):
        content = re.search(f"<{tag}>(.*?)</{tag}>", template, re.DOTALL)[1].encode()
        policy += f"; {tag}-src 'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"
    with whole(path) as part:
        part.write_text(template.replace("{{policy}}", policy).replace("{{data}}", text), encoding="utf-8")
    print(f"wrote {path}: {count:,} of {total:,} dialogues, {path.stat().st_size / 1e6:.1f} MB; open it in a browser")


def first_tasks(summaries, limit):
    """The first tasks, as many as fit whole into `limit` dialogues over all runs (but at least one)."""
    chosen, room = [], limit
    for task in dict.fromkeys(task for summary in summaries for task in summary.sums):
        room -= sum(len(summary.rewards.get(task, ())) for summary in summaries)
        if chosen and room < 0:
            break
        chosen.append(task)
    return chosen


def episode(name, record, place_of):
    """One scored record as the report's script shows it; place_of: from a page to the place of its picture."""
    if record["domain"] == "frontend":
        from render import extract_page

    advantages, turns = itertools.chain(record.get("advantages") or (), itertools.repeat(None)), []
    for turn in record["dialogue_history"]:
        text, mark, code = turn["content"].partition(ANSWER_MARK)
        turns.append(shown := {"agent": turn["role"] == "assistant", "text": text + mark, "code": code.strip()})
        if shown["agent"]:
            output, advantage = turn.get("output") or "", turn.get("advantage", next(advantages))
            shown["thought"] = output.partition(ANSWER_MARK)[0].rpartition(OUTPUT_MARK)[0].strip()
            if isinstance(advantage, (int, float)) and math.isfinite(advantage):
                shown["advantage"] = advantage
            if record["domain"] == "frontend":
                shown["picture"] = place_of(extract_page(output or turn["content"]))
    reference, answer = lines_of(record["task"]["ground_truth"]), lines_of(extract_code(record["answer"] or ""))
    calls = record["task"].get("test_cases") or {}
    more = [f"{view} {value:.3f}" for view, value in (record.get("cosine") or {}).items()]
    if "reward_released" in record:
        more.append(f"released evaluator {record['reward_released']:.2f}")
    return {"run": name, "sample": record["sample"], "reward": record["reward"], "result": result_of(record),
            "finish": record["finish"], "more": more, "turns": turns, "answer": answer,
            "changes": difflib.SequenceMatcher(None, reference, answer, autojunk=False).get_opcodes(),
            "facts": [(fact.get("detail", "?"), fact["reply"], heard) for fact, heard in facts_heard(record)],
            "tests": [(calls.get(label, ""), status) for label, status in (record.get("tests") or {}).items()]}


def lines_of(source):
    return [line.rstrip() for line in source.strip("\n").split("\n")][:400]


def result_of(record):
    """What the reward amounts to: (words that the report filters by, "good", "some" or "bad")."""
    reward = record["reward"]
    if record["domain"] == "backend":
        return ("solved", "good") if reward == 1 else ("partly solved", "some") if reward else ("unsolved", "bad")
    if record["page"] != "ok":
        return "blank or broken page", "bad"
    if reward < 0.7:
        return "unlike, below 0.7", "bad"
    return ("close, from 0.9", "good") if reward >= 0.9 else ("similar, from 0.7", "some")


def training_curves(folder):
    """Yield {"title", "charts": {title: {line: [(step, value)]}}} of each metrics.jsonl in the folder or one below.

    Charts are the loss, the accuracy, and what has several lines: chosen beside rejected, held out beside training.
    """
    for path in sorted({*folder.glob("metrics.jsonl"), *folder.glob("*/metrics.jsonl")}):
        charts = {}
        for row in read(path, "metrics") if path.stat().st_size else ():
            for name, value in row.items():
                held_out, title, side = re.fullmatch(r"(held_out_|)(.*?)(_chosen|_rejected|)", name, re.DOTALL).groups()
                line = (held_out + side[1:]).replace("_", " ").strip() or "training"
                if name not in ("step", "epoch") and isinstance(value, (int, float)) and math.isfinite(value):
                    charts.setdefault(title.replace("_", " "), {}).setdefault(line, []).append((row["step"], value))
        order = sorted(charts, key=lambda title: (title != "loss", title != "accuracy", title))
        few = [title for title in order if title in ("loss", "accuracy") or len(charts[title]) > 1][:6]
        yield {"title": str(path.parent), "charts": {
            title: {line: thinned(points) for line, points in charts[title].items()} for title in few}}


def thinned(points, most=80):
    """At most `most` points (step, value): means of neighbours where there are more."""
    size = math.ceil(len(points) / most)
    parts = (points[start:start + size] for start in range(0, len(points), size))
    return [tuple(round(sum(values) / len(part), 6) for values in zip(*part)) for part in parts]


@contextmanager
def page_pictures(workers):
    """A function that renders a page: HTML -> an image 360 pixels wide, cut at three screens, or None if broken."""
    from PIL import Image
    from render import Renderer

    try:
        renderer = Renderer(workers)
    except RuntimeError as problem:
        die(f"pictures of the pages are needed: {problem}")

    def picture(page):
        found = renderer.render(page)
        if found.status != "ok":
            return None
        image = Image.fromarray(found.rgb[:3 * 1280])
        return image.resize((360, max(1, round(image.height * 360 / image.width))), Image.Resampling.BOX)

    with renderer:
        yield picture


def write_picture(path, named, tasks, picture):
    """One picture with a row for each of `tasks`: every run's page (its first sample), its cosine, the reference."""
    from PIL import Image, ImageDraw, ImageFont
    from render import extract_page

    rows = {task: {} for task in tasks}    # task -> {caption: page}
    for name, file in named.items():
        missing = set(tasks)
        for record in read(file, "scored"):
            if (task := task_digest(record)) in missing:
                missing.remove(task)
                page = page_of(record, extract_page)
                rows[task].pop("reference", None)    # it comes last
                rows[task][f"{name}: cosine {record['reward']:.3f}" if page else f"{name}: no page"] = page
                rows[task]["reference"] = record["task"]["ground_truth"]
    images = {page: picture(page) for row in rows.values() for page in row.values() if page}
    heights = [24 + max((images[page].height for page in row.values() if images.get(page)), default=0)
               for row in rows.values()]
    sheet = Image.new("RGB", (370 * max(map(len, rows.values())) + 10, sum(heights) + 10), "#d6d9dc")
    pen = ImageDraw.Draw(sheet)
    for row, top in zip(rows.values(), itertools.accumulate(heights, initial=0)):
        for column, (caption, page) in enumerate(row.items()):
            pen.text((370 * column + 10, top + 6), caption, fill="black", font=ImageFont.load_default(14))
            if images.get(page):
                sheet.paste(images[page], (370 * column + 10, top + 24))
    with whole(path) as part:
        sheet.quantize(256).save(part, "PNG", optimize=True)    # pages have few colours
    print(f"wrote {path}: {len(rows)} tasks, {path.stat().st_size / 1e3:.0f} kB")


# ---------------------------------------------------------------------------------------------------------------------
# The command line


def ending_in(suffix):
    """An argparse type: a path of this kind, so that a mistyped name replaces no file of another kind."""
    def path(text):
        if not text.endswith(suffix):
            raise argparse.ArgumentTypeError(f"{text} must end in {suffix}")
        return Path(text)
    return path


def parse_args():
    parser = argparse.ArgumentParser(description="Score trajectories, print metrics with 95% intervals, compare runs, "
                                                 "write a report.")
    add, count, cores = parser.add_argument, number(int, least=1), getattr(os, "sched_getaffinity", None)
    # what to score
    add("--run-name", default="default", help="name of the run: its files are in runs/{run-name} (default: default)")
    add("--split", default="test", help="which of the run's trajectories: train, val, test (default: test)")
    add("--in", dest="input", type=Path, help="trajectories (default: runs/{run-name}/{split}.trajectories.jsonl)")
    add("--out", type=Path, help="scored trajectories (default: the input's name with .scored.jsonl)")
    add("--domain", choices=list(REWARDS), default="backend",
        help="domain of records that do not name theirs (default: backend)")
    add("--overwrite", action="store_true", help="score everything again, even what --out holds already")
    # how to score programs
    add("--mode", choices=["module", "released", "both"], default="module",
        help="module: the program runs as a module, which is right; released: by the rules of the evaluator released "
             "with the paper; both: the two side by side (default: module)")
    add("--workers", type=count, default=len(cores(0)) if cores else os.cpu_count(),
        help="programs, or browsers, at work at the same time (default: one per core)")
    add("--call-timeout", type=number(above=0, most=1_000_000), default=1.0,
        help="seconds that one call may take (default: 1.0)")
    add("--program-timeout", type=number(above=0, most=1_000_000), default=5.0,
        help="seconds that all calls of a program may take (default: 5.0)")
    add("--memory-mb", type=number(int, least=1, most=1_000_000_000), default=256,
        help="megabytes that a program may use (default: 256)")
    add("--numpy", action="store_true", help="programs find numpy imported")
    add("--unsafe", action="store_true", help="run programs even where the sandbox cannot shut them in")
    # how to score pages
    add("--encoder", default="layout",
        help="what embeds the pictures: layout (colours and edges, no weights), or the folder or hub name of a CLIP or "
             "SigLIP; the paper's is openai/clip-vit-base-patch32 (default: layout)")
    add("--view", choices=VIEWS, default="page", help="which cosine is the reward: of the whole page, or of the centre "
        "that CLIP's processor keeps, as in the paper; both are recorded (default: page)")
    # intervals
    add("--resamples", type=number(int, least=1, most=1_000_000_000), default=10_000,
        help="bootstrap draws of the tasks (default: 10000)")
    add("--seed", type=number(int, least=0), default=0, help="seed of the bootstrap (default: 0)")
    # compare runs that are scored already, or critics by how they rank candidates
    add("--compare", nargs="+", metavar="NAME=FILE",
        help="scored files to put side by side; differences are against the first one. A pattern in quotes "
             "(sweet='runs/seed-*/policy.test.scored.jsonl') stands for the same run with several seeds")
    add("--truth", metavar="FILE",
        help="scored continuations (rollout.py --continue): then the files of --compare are candidates with advantages "
             "(train_critic.py --annotate), and the table says how well each critic orders the candidates of a turn. "
             "Patterns in quotes stand for seeds, taken in pairs")
    add("--json", type=ending_in(".json"), help="write the table's numbers here as well")
    # the report
    add("--report", type=ending_in(".html"), help="write one self-contained HTML file with the dialogues here")
    add("--report-limit", type=count, default=200,
        help="most dialogues in the report, all samples and runs of a task together (default: 200)")
    add("--picture", type=ending_in(".png"), metavar="FILE.png", help="pages: write a picture of the first tasks (by "
        "name) here, a row each: every run's page, then the reference")
    add("--picture-tasks", type=count, default=4, help="rows of --picture (default: 4)")
    args = parser.parse_args()
    if args.truth and not args.compare:
        parser.error("--truth needs --compare NAME=FILE: the candidates as a critic ranks them")
    if args.compare and (args.input or args.out):
        parser.error("--compare reads files that are scored already: give it without --in and --out")
    return args


def named_files(pairs):
    """{name: [paths]} of --compare; several paths where a pattern names the seeds of one run."""
    named = {}
    for pair in pairs:
        name, _, path = pair.partition("=")
        if not name or not path:
            die(f"--compare takes NAME=FILE, such as base=runs/base/test.scored.jsonl, not {pair!r}")
        if name in named:
            die(f"--compare has the name {name!r} twice; each run needs its own")
        named[name] = files_of(path)
    return named


def files_of(path):
    """The file, or the files of a pattern in the order of their names."""
    return [Path(path)] if Path(path).is_file() else sorted(map(Path, glob.glob(path))) or [Path(path)]


def write_json(path, value):
    with whole(path) as part:
        part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")


def main():
    args = parse_args()
    if args.compare:
        files = named_files(args.compare)
    else:
        args.input = args.input or Path("runs") / args.run_name / f"{args.split}.trajectories.jsonl"
        stem = args.input.name.removesuffix(".jsonl").removesuffix(".trajectories")
        args.out = args.out or args.input.parent / f"{stem}.scored.jsonl"
        files = {stem: [args.out]}
    for path in filter(None, (args.report, args.json, args.picture)):
        check_path(path, [TEMPLATE, *filter(None, [args.input]), *itertools.chain(*files.values())])
    if args.truth:
        result = rank_critics(files, args)
        print(markdown(ranking_table(result)))
        return args.json and write_json(args.json, result)
    if args.input:
        score(args)
        print(f"wrote {args.out}")
    if any(len(paths) > 1 for paths in files.values()):
        if args.report or args.picture:
            die("--report and --picture show one run a name: give them one file for each")
        result = compare_seeds(files, args)
    else:
        named = {name: path for name, [path] in files.items()}
        summaries = {name: summarise(path, args) for name, path in named.items()}
        result = compare(summaries, args)
    print(markdown(table(result)))
    for name, run in result.items():
        for note in run["notes"]:
            print(printable(f"{name}: {note}"))
    if args.json:
        write_json(args.json, result)
    if args.input:
        name = args.out.name.removesuffix(".jsonl").removesuffix(".scored")
        write_json(args.out.with_name(f"{name}.metrics.json"), result[stem]["metrics"])
    if args.report or args.picture:
        first = next(iter(summaries.values()))
        if args.picture and first.domain != "frontend":
            die("--picture shows pages; these are backend episodes")
        with page_pictures(args.workers) if first.domain == "frontend" else nullcontext() as picture:
            if args.report:
                write_report(args.report, named, result, summaries, args, picture)
            if args.picture:
                tasks = sorted(first.ids, key=lambda task: str(first.ids[task]))
                write_picture(args.picture, named, tasks[:args.picture_tasks], picture)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.stdout.flush()
        print("\nevaluate.py: stopped; the same command goes on where it stopped", file=sys.stderr)
        os._exit(130)    # without waiting for threads that are still at work
    except OSError as error:
        die(f"{error.filename or 'a file'}: {error.strerror or error}")
