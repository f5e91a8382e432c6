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
TASKS, because the samples of one task are not independent; where a metric is the same on every task it has width zero.
Runs are compared on the tasks that both have (same name, request, reference and tests), and each draw of tasks is used
for both (a paired difference), so that the difficulty of the tasks cancels.

Departures
- An episode without an answer (the engine or the simulator failed) scores 0 and is counted.
- The paper gives no intervals. The released code runs programs inside its own process, in a function's local scope,
  behind a list of forbidden words (--mode released applies its rules inside the sandbox), and reports the best of k
  samples. Here every sample counts.
- Frontend: the page of the answer counts (else its message's), and one that is missing or cannot be rendered scores 0
  (released code: the last page shown at any turn, else a black picture).

Reads   runs/{run-name}/{split}.trajectories.jsonl, or with --compare scored files; cost.json of the models they name
Writes  runs/{run-name}/{split}.scored.jsonl, the records plus `reward`, `tests` (one status per test) and `sandbox`
        (its layers); frontend: `reward`, `cosine` (both views), `view`, `page` (ok, blank, ...), `encoder`, `sandbox`
        .scored.settings.json and .metrics.json beside it, with --report one HTML file, with --picture one PNG of pages
Each record is written as it is scored, in the order of the input; the same command, without --overwrite, goes on where
it was stopped.

    python evaluate.py --split train
    python evaluate.py --in runs/default/test.trajectories.jsonl --report runs/default/report.html
    python evaluate.py --compare base=runs/a/test.scored.jsonl sweet=runs/b/test.scored.jsonl --report runs/b/ab.html
    python evaluate.py --truth runs/default/val.continuations.scored.jsonl --compare a=runs/a/val.annotated.jsonl
    python evaluate.py --compare base='runs/seed-*/base.test.scored.jsonl' sweet='runs/seed-*/policy.test.scored.jsonl'
--truth measures critics: how each orders the candidates of a turn, beside what playing all to their ends gave. Where a
name stands for several files, each is a training run with its own seed, which its records name: the table shows means
over the seeds, differences taken seed by seed, and from five seeds on intervals by Student's t.
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
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np
from tqdm import tqdm

from sandbox import (
    ANSWER_MARK, COSTS, OUTPUT_MARK, Output, Sandbox, agent_turns, check_path, die, fingerprint, monte_carlo_returns,
    number, read, sign_of_end, whole)

VIEWS = ("page", "centre")


# ---------------------------------------------------------------------------------------------------------------------
# Reward: how each domain is scored


def score_programs(records, args):
    """Yield each backend record with `reward`, `tests` and `sandbox`, in order; --mode both adds `..._released`."""
    modes = ["module", "released"] if args.mode == "both" else [args.mode]

    def scored(records, mode, suffix):
        program_of = str if mode == "released" else extract_code
        jobs = ((record, record["task"], program_of(record["answer"] or "")) for record in records)
        for record, tests in box.score_many(jobs, mode):
            if record["answer"] is None:
                tests = dict.fromkeys(tests, "no answer")
            passed = sum(status == "passed" for status in tests.values())
            yield record | {"mode": modes[0], "sandbox": box.layers, f"reward{suffix}": passed / len(tests),
                            f"tests{suffix}": tests}

    with Sandbox(workers=args.workers, memory_mb=args.memory_mb, call_timeout=args.call_timeout,
                 program_timeout=args.program_timeout, numpy=args.numpy, unsafe=args.unsafe) as box:
        for mode, suffix in zip(modes, ("", "_released")):
            records = scored(records, mode, suffix)
        yield from records


def score_pages(records, args):
    """Yield each frontend record with `reward`, `cosine` and what they rest on, in order; a page is rendered once."""
    from render import Renderer, cosine, load_encoder
    try:
        embed, renderer = load_encoder(args.encoder), Renderer(args.workers)
    except RuntimeError as problem:
        die(str(problem))

    def wait_and_embed(rendering):
        if rendering is None:
            return "no page", None
        picture = rendering.result()
        seen = {view: embed(picture, view) for view in VIEWS} if picture.status == "ok" else None
        return "blank" if seen and picture.blank else picture.status, seen

    @functools.lru_cache(4096)
    def embedded(page):
        """The future of (status, {view: embedding} or None)."""
        return embedder.submit(wait_and_embed, None if page is None else renderer.submit(page))

    with renderer, ThreadPoolExecutor(1) as embedder:
        begun = ((record, embedded(record["task"]["ground_truth"]), embedded(page_of(record))) for record in records)
        underway = list(itertools.islice(begun, 2 * args.workers))
        while underway:
            record, reference, answer = underway.pop(0)
            underway += itertools.islice(begun, 1)
            (reference_status, theirs), (status, ours) = reference.result(), answer.result()
            cosines = {view: cosine(ours[view], theirs[view]) if ours and theirs else 0.0 for view in VIEWS}
            yield record | {"reward": min(1.0, max(0.0, cosines[args.view])), "cosine": cosines, "view": args.view,
                            "encoder": embed.name, "page": status if theirs else f"reference {reference_status}",
                            "sandbox": {"isolation": renderer.isolation, "chromium": renderer.version}}


REWARDS = {  # domain: (records -> scored records, the flags that decide their rewards)
    "backend": (score_programs, ("mode", "call_timeout", "program_timeout", "memory_mb", "numpy")),
    "frontend": (score_pages, ("encoder", "view")),
}


def extract_code(answer):
    """The program in an answer: a leading answer mark and markdown fences are taken off, the common indentation too.

    Of several fenced blocks those with a definition are kept, and with them those of nothing but imports and constants
    (a line each), in order (a later one overrides an earlier one); usage examples and prose around the blocks go. A
    block that was cut off before its closing fence still counts.
    """
    text = re.sub(rf"\A\s*{ANSWER_MARK}", "", answer).replace("\r\n", "\n")
    blocks = re.findall(r"```[^\n`]*\n(.*?)(?:```|\Z)", text, flags=re.DOTALL)
    if not blocks:    # a fence within one line: ```python f = len```
        blocks = re.findall(r"```(?:python|py)?\b(.*?)```", text, flags=re.DOTALL) or [text]
    blocks = [textwrap.dedent(block) for block in blocks]
    definition = re.compile(r"^(?:async )?(?:def|class) |^\w+ *= *lambda\b", flags=re.MULTILINE)
    before = re.compile(r"\s*$|#|import [\w.]|from [\w.]+ import [\w*]|[A-Z][A-Z_\d]* *= *[-\d\"'({\[]")
    needed = [b for b in blocks if definition.search(b) or b.strip() and all(map(before.match, b.split("\n")))]
    return "\n".join(needed if any(map(definition.search, blocks)) else blocks).strip("\n").lstrip(" \t")


def page_of(record):
    """The page of an answer, or None. Released records have a picture file's name there: the last reply holds it."""
    from render import extract_page
    if record["answer"] is None:
        return None
    last = (replies(record) or [{"content": ""}])[-1]
    return extract_page(record["answer"]) or extract_page(last["content"])


def replies(record):
    return [turn for turn in record["dialogue_history"] if turn["role"] == "assistant"]


# ---------------------------------------------------------------------------------------------------------------------
# Metrics: a new one is a new row


class Metric(NamedTuple):
    heading: str
    unit: str              # how it is printed: "%" (a share), "x 100", or "" (a plain number)
    compared: bool         # are runs compared by it?
    of_record: Callable    # scored record -> a value, or a list of values, of which the metric is the mean
    domain: str = ""       # the only domain that it is about, if there is one


def facts_heard(record):
    """[(fact, was the agent told it?)]: procedural tasks list the hidden details that the human tells when asked."""
    heard = [turn["content"] for turn in record["dialogue_history"][1:] if turn["role"] != "assistant"]
    return [(fact, any(fact["reply"] in text for text in heard)) for fact in record["task"].get("facts") or ()]


METRICS = {  # name in metrics.json and --json: its row
    "success": Metric("success", "%", True, lambda r: r["reward"] == 1, "backend"),
    "tests_passed": Metric("tests passed", "%", True, lambda r: r["reward"], "backend"),
    "success_released": Metric("success (released evaluator)", "%", False, lambda r: (
        [r["reward_released"] == 1] if "reward_released" in r else []), "backend"),
    "tests_passed_released": Metric("tests passed (released evaluator)", "%", False, lambda r: (
        r.get("reward_released", [])), "backend"),
    "cosine_page": Metric("cosine x 100, whole page", "x 100", True, lambda r: r["cosine"]["page"], "frontend"),
    "cosine_centre": Metric("cosine x 100, centre", "x 100", True, lambda r: r["cosine"]["centre"], "frontend"),
    "blank": Metric("blank pages", "%", False, lambda r: r["page"] == "blank", "frontend"),
    "broken": Metric("no page or broken", "%", False, lambda r: r["page"] not in ("ok", "blank"), "frontend"),
    "details_told": Metric("hidden details told", "%", False, lambda r: [heard for _, heard in facts_heard(r)]),
    "answered": Metric("answered", "%", False, lambda r: r["finish"] == "answered"),
    "turns": Metric("turns", "", False, lambda r: len(replies(r))),
    "words_per_reply": Metric("words per reply", "", False, lambda r: (
        [len(turn["content"].split()) for turn in replies(r)])),
    "tokens_per_reply": Metric("tokens per reply", "", False, lambda r: (
        [len(turn["output_ids"]) for turn in replies(r) if turn.get("output_ids")])),
}


def measure(record):
    """The sums that one scored record adds to its task's: (2 M,), sum and number of the values of each of M metrics."""
    found = [metric.of_record(record) if metric.domain in ("", record["domain"]) else [] for metric in METRICS.values()]
    found = [values if isinstance(values, list) else [values] for values in found]
    return np.array([(sum(values), len(values)) for values in found], float).ravel()


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


def intervals(sums, resamples, seed, measures=ratios, names=METRICS):
    """{name: {"value", "low", "high"}}: what `measures` makes of the sums of all tasks, with 95% percentile intervals.

    sums (T, C): one row per task; measures: (..., C) -> (..., number of names). NaN, nothing counted, is left out.
    """
    values, draws, result = measures(sums.sum(axis=0)), measures(bootstrap_sums(sums, resamples, seed)), {}
    for name, value, drawn in zip(names, values, draws.T):
        if not math.isnan(value):
            low, high = np.nanpercentile(drawn, [2.5, 97.5])
            result[name] = {"value": float(value), "low": float(low), "high": float(high)}
    return result


def difference(measures):
    """The same measures of two runs whose sums stand side by side (..., 2 C): those of the first less the second's."""
    return lambda sums: np.subtract(*map(measures, np.split(sums, 2, axis=-1)))


def win_share(ours, theirs):
    """Share of the pairs (a sample of ours, one of theirs) in which ours has the higher reward; a tie is half a win."""
    ours, theirs = np.array(ours)[:, None], np.array(theirs)[None, :]
    return float(((ours > theirs) + 0.5 * (ours == theirs)).mean())


def paired_difference(run, base, resamples, seed):
    """{metric: interval} of run minus base on the tasks of both, under the same draws; "tasks"; of pages "win_rate"."""
    common = [task for task in run.sums if task in base.sums]
    if not common:
        die(f"{run.path} and {base.path} have no task in common (same name, request, reference and tests)")
    sums = np.array([[*run.sums[task], *base.sums[task]] for task in common])    # (T, 4 M)
    found = {"tasks": len(common)} | intervals(sums, resamples, seed, difference(ratios))
    if run.domain == "frontend":
        wins = np.array([[win_share(run.rewards[task], base.rewards[task]), 1] for task in common])    # (T, 2)
        found |= intervals(wins, resamples, seed, names=["win_rate"])
    return found


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
# Scoring (trajectories in, scored records out), and comparing what was scored


def score(args):
    """Score args.input into args.out, going on where an earlier run stopped."""
    def with_tests(record):
        if record["domain"] == "backend" and not record["task"].get("test_cases"):
            raise ValueError('a backend task needs "test_cases", an object of calls such as {"1": "f(1)"}')
        return record

    domain = domain_of(args.input, "trajectory", args)
    score_records, flags = REWARDS[domain]
    inputs = {"--in": args.input} | ({"--encoder": args.encoder} if domain == "frontend" else {})
    out = Output(args.out, {"domain": domain, **{flag: getattr(args, flag) for flag in flags}}, inputs, args.overwrite)
    trajectories = functools.partial(read, args.input, "trajectory", domain, unique=True, each=with_tests)
    count = sum(1 for _ in trajectories())    # every line can be read, before anything is written
    first, ours = next(trajectories()), args.input.with_suffix(".settings.json").exists()
    ours = ours and first.get("model") != "released" and "reward" not in first
    if ours and not sign_of_end(args.input).exists():
        print(f"{args.input}: rollout.py has not finished it, and short episodes come first: these {count:,} are no "
              "fair sample; the same rollout.py command continues")
    if len(out.done) == count:
        print(f"{args.out}: all {count:,} trajectories are scored already")
        return
    scored = score_records((record for record in trajectories() if out.key_of(record) not in out.done), args)
    for record in tqdm(scored, total=count, initial=len(out.done), unit=" answers", desc="scoring", mininterval=0.5,
                       dynamic_ncols=True, delay=0.1):    # no progress bar before sandbox, encoder and browsers work
        out.write(record)
    print(f"wrote {args.out}")


def domain_of(path, kind, args):
    """What the first record of a file is about; the others must be about the same."""
    domain = next(read(path, kind))["domain"] or args.domain
    if domain not in REWARDS:
        die(f"{path}, line 1: found domain {domain!r}, expected {' or '.join(REWARDS)}")
    return domain


class Summary:
    """What the tables need of one scored file, however long its dialogues: a row of sums per task, and counts."""

    def __init__(self, path, args):
        self.path, self.domain = str(path), domain_of(path, "scored", args)
        self.scored_by = {}    # runs are compared if this agrees: of pages encoder and view, of programs the mode
        self.sums, self.rewards = {}, {}    # of each task's digest: (2 M,) sums; rewards
        self.ends, self.errors, self.statuses, self.failing = Counter(), Counter(), Counter(), Counter()
        self.models, self.seeds = set(), set()    # models: (name, fingerprint)
        for _ in read(path, "scored", self.domain, unique=True, each=self.add):
            pass

    def add(self, record):
        task = task_digest(record)
        self.sums[task] = self.sums.get(task, 0) + measure(record)
        self.rewards.setdefault(task, []).append(record["reward"])
        end = record["finish"].split(":")[0]
        self.ends[end] += 1
        if end == "error":
            self.errors[record["finish"][:120]] += 1
        statuses = (record.get("tests") or {}).values()
        self.scored_by = {"mode": record.get("mode", "module")}
        if self.domain == "frontend":
            self.scored_by, statuses = {name: record[name] for name in ("encoder", "view")}, [record["page"]]
        self.statuses.update(statuses)
        if any(status.startswith("reference") for status in statuses):
            self.failing[record["task_id"]] += 1
        self.models.add((record.get("model"), (record.get("fingerprints") or {}).get("model")))
        self.seeds.add(record.get("seed"))


def task_digest(record):
    """Names of tasks repeat over seeds: what is asked and what is expected belongs to a task's identity."""
    keys = "problem_description", "ground_truth", "test_cases"
    content = [record["task_id"], *(record["task"].get(key) for key in keys)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def metrics_of(summary, args):
    """What goes into metrics.json."""
    return {
        "in": summary.path, "domain": summary.domain, "tasks": len(summary.sums),
        "samples": sum(map(len, summary.rewards.values())),
        **summary.scored_by,
        **intervals(np.array(list(summary.sums.values())), args.resamples, args.seed),
        "finish": dict(summary.ends.most_common()), "errors": dict(summary.errors.most_common(10)),
        "statuses": dict(summary.statuses.most_common()),
        "references_failing": len(summary.failing), "references_failing_first": list(summary.failing)[:10],
        "interval": "95%, percentile bootstrap over tasks", "resamples": args.resamples, "bootstrap_seed": args.seed,
    }


def compare(summaries, args):
    """{name: {"metrics", "against", "difference", "cost", "notes"}}; differences are against the first run."""
    (base_name, base), result = next(iter(summaries.items())), {}
    for name, summary in summaries.items():
        kind, base_kind = ((one.domain, *one.scored_by.values()) for one in (summary, base))
        if kind != base_kind:
            die(f"{summary.path}, {kind}, and {base.path}, {base_kind}, cannot be compared; score both alike")
        (model, made), *others = summary.models
        cost = Path(str(model)) / "cost.json"    # what went into the model, as its trainer counted it
        # and it was not trained anew since (of a server's model the name is all that is known)
        known = cost.is_file() and not others and made in (None, model, fingerprint(model))
        metrics = metrics_of(summary, args)
        paired = paired_difference(summary, base, args.resamples, args.seed) if name != base_name else None
        result[name] = {"metrics": metrics, "against": base_name if paired else None, "difference": paired,
                        "cost": json.loads(cost.read_text()) if known else {},
                        "notes": notes(metrics)}
        most = max(len(summary.sums), len(base.sums))
        if paired and paired["tasks"] < most / 2:
            result[name]["notes"].append(f"WARNING: the differences rest on {paired['tasks']:,} tasks, of {most:,}: "
                                         f"{summary.path} and {base.path} have only these in common")
    return result


def notes(metrics):
    """What the numbers of a run rest on, as sentences."""
    def shares(counts):
        total = sum(counts.values())
        return ", ".join(f"{name} {count:,} ({100 * count / total:.1f}%)" for name, count in counts.items())

    said = [f"episodes of {metrics['in']} ended: {shares(metrics['finish'])}"]
    said += [f"{count:,} x {error}" for error, count in metrics["errors"].items()]
    if metrics["statuses"]:
        said.append(f"{'pages' if metrics['domain'] == 'frontend' else 'tests'}: {shares(metrics['statuses'])}")
    if "encoder" in metrics:
        said.append('encoder: {encoder}; the reward is the cosine of the view "{view}"'.format(**metrics))
    if metrics["references_failing"]:
        said.append(f"WARNING: {metrics['references_failing']:,} tasks whose reference does not run (first: "
                    f"{', '.join(map(str, metrics['references_failing_first'][:3]))}); no answer can score there")
    return said


def compare_seeds(runs, args):
    """compare() for several files a name: {name: [Summary]} -> {name: {..., "seeds": {seed: compare()'s result}}}.

    A name may lack seeds: its numbers are over those that it has, its differences over those that the first one has
    too, and a warning says so.
    """
    for name, run in runs.items():
        its = [seed for summary in run for seed in summary.seeds]
        if None in its or not len({*its}) == len(its) == len(run):
            found = "; ".join(f"{summary.path}: {', '.join(map(str, summary.seeds))}" for summary in run)
            die(f"each file of {name!r} must name one seed in its records (rollout.py --seed writes it), and no two "
                f"the same one; found {found}")
    by_seed = defaultdict(dict)
    for name, run in runs.items():
        for summary in run:
            by_seed[next(iter(summary.seeds))][name] = summary
    results = defaultdict(dict)
    for seed, summaries in sorted(by_seed.items()):
        groups = [summaries] if next(iter(runs)) in summaries else [{name: one} for name, one in summaries.items()]
        for name, result in itertools.chain(*(compare(group, args).items() for group in groups)):
            results[name][seed] = result
    means = {name: mean_over_seeds(results[name]) for name in runs}
    for name, result in means.items():
        models = [made for summary in runs[name] for _, made in summary.models if made]
        if len(set(models)) < len(models):
            result["notes"].append("WARNING: some of these files are of one and the same model: what differs is the "
                                   "seed of its sampling, not the training run")
        if missing := [str(seed) for seed in sorted(by_seed) if seed not in result["seeds"]]:
            result["notes"].append(f"WARNING: no seed {', '.join(missing)} here; differences are over what both have")
    return means


def mean_over_seeds(seeds):
    """One run's result over its seeds {seed: result}, in the shape of compare()'s, with "seeds" added."""
    runs = list(seeds.values())
    metrics = {key: runs[0]["metrics"][key] for key in ("domain", "tasks")}
    metrics["samples"] = sum(run["metrics"]["samples"] for run in runs)
    compared = [run for run in runs if run["against"]]
    result = {"metrics": metrics, "against": compared[0]["against"] if compared else None, "difference": {},
              "notes": [], "seeds": seeds}
    for part in ("metrics", "difference"):
        for name in (*METRICS, "win_rate"):
            values = [run[part][name]["value"] for run in runs if name in (run[part] or ())]
            if values and len(values) == len(compared if part == "difference" else runs):
                least = -1 if part == "difference" and name != "win_rate" else 0    # a share, or a difference of two
                is_share = name == "win_rate" or METRICS[name].unit
                result[part][name] = over_seeds(values, *((least, 1) if is_share else ()))
    for name, metric in METRICS.items():
        if metric.compared and name in metrics:
            values = ", ".join(show(value, metric.unit) for value in metrics[name]["values"])
            result["notes"].append(f"{metric.heading}, seeds {', '.join(map(str, seeds))}: {values}")
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
    if place == len(history) - 1 and record["finish"] == "answered":    # else the last turn is a question, told nothing
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
    for name, ranked in (("Spearman with Q", (values, q)), ("Spearman of Q's halves", halves)):
        found[name] = [spearman(*ranked), 1] if q.min() < q.max() else [0, 0]
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
    are seeds, taken in order: their tasks are pooled. Where some lack a seed, only folders that all have count.
    """
    sums = defaultdict(lambda: defaultdict(lambda: np.zeros(2)))    # (seed, task) -> (critic, measure) -> sum, count
    truths = files_of(args.truth)
    if {len(truths)} != {*map(len, files.values())}:
        shared = set.intersection(*({path.parent for path in paths} for paths in (truths, *files.values())))
        truths, *others = ([path for path in paths if path.parent in shared] for paths in (truths, *files.values()))
        files = dict(zip(files, others))
        if not truths or {len(truths)} != {*map(len, others)}:
            die(f"{args.truth} and the files of {', '.join(files)} are not equally many, and share no folders either")
        print(f"only of {', '.join(map(str, sorted(shared)))}: some critics are missing elsewhere")
    for seed, truth in enumerate(truths):
        returns, _ = monte_carlo_returns(truth, kind_of_action)

        def add(critic, record):
            found = returns.get((record["task_id"], record["sample"], record["turn"]), {})
            if len(found) < 2:
                return
            texts, rewards, kinds = zip(*found.values())
            candidates = dict(enumerate(record["candidates"]))
            ranked = [candidates.get(n, {}) for n in found]
            if any(one.get("output") != text or one.get("advantage") is None for one, text in zip(ranked, texts)):
                raise ValueError(f"these are not the candidates of {truth}, or have no advantages; give the file that "
                                 "was continued to train_critic.py --annotate")
            values = np.array([candidate["advantage"] for candidate in ranked])
            for name, part in rank_turn(values, rewards, kinds).items():
                sums[seed, record["task_id"]][critic, name] += part

        for critic, paths in files.items():
            for _ in read(paths[seed], "candidates", each=functools.partial(add, critic)):
                pass
        if all(len(rewards) == 1 for turn in returns.values() for _, rewards, _ in turn.values()):
            die(f"{truth} continues every candidate once, which does not show how noisy it is; rollout.py --continue 2")
    if not sums:
        die(f"{args.truth} continues no turn of {', '.join(files)}")
    names = list(dict.fromkeys(name for of_task in sums.values() for _, name in of_task))
    rows = {critic: np.array([np.ravel([of_task[critic, name] for name in names]) for of_task in sums.values()])
            for critic in files}    # (T, 2 M) each

    def measures(sums):    # (..., 2 M) -> (..., M + 1): the last is Spearman's, corrected
        found = ratios(sums)
        r = found[..., names.index("Spearman of Q's halves")]
        r = np.where(r > 0, r, np.nan)    # halves that do not agree at all: nothing to correct by
        corrected = found[..., names.index("Spearman with Q")] / np.sqrt(2 * r / (1 + r))
        return np.concatenate([found, corrected[..., None]], axis=-1)

    base, critics = next(iter(files)), {}
    estimate = functools.partial(intervals, resamples=args.resamples, seed=args.seed,
                                 names=[*names, "Spearman with Q, corrected"])
    for critic in files:
        beside = np.hstack([rows[critic], rows[base]])
        critics[critic] = {"measures": estimate(rows[critic], measures=measures),
                           "difference": estimate(beside, measures=difference(measures)) if critic != base else {},
                           "counts": dict(zip(names, rows[critic].sum(axis=0)[1::2]))}
    return {"turns": int(critics[base]["counts"]["mean Q of all"]), "against": base, "critics": critics}


def ranking_table(result):
    """rank_critics' result as rows of texts, a critic a column; in brackets how many pairs there are."""
    critics, base = list(result["critics"].values()), result["against"]
    rows = [("", *result["critics"]), ("turns", *[str(result["turns"])] * len(critics))]
    for name in sorted(critics[0]["measures"], key=lambda name: name.startswith("-")):
        count = f" ({critics[0]['counts'][name]:.0f})" if name.startswith(("-", "pairs")) else ""
        rows.append(row(critics, name + count, "measures", name, "Q"))
        if name in ("pairs in the right order", "Spearman with Q") and len(critics) > 1:
            rows.append(row(critics, f"{name}, vs {base}", "difference", name, "Q", signed=True))
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Tables (Markdown, so that they can be pasted)


def show(value, unit, signed=False):
    return f"{100 * value if unit in ('%', 'x 100') else value:{'+' if signed else ''}.{3 if unit == 'Q' else 1}f}"


def cell(numbers, unit, signed=False):
    """A metric as text: 33.3% [12.1, 54.5], or of a few seeds 50.0% (40.0, 60.0); a difference is in points."""
    if not numbers:
        return ""
    few = numbers["low"] is None
    ends = ", ".join(show(value, unit, signed) for value in (numbers["values"] if few else
                                                             (numbers["low"], numbers["high"])))
    percent = "%" if unit == "%" and not signed else ""
    return show(numbers["value"], unit, signed) + percent + (f" ({ends})" if few else f" [{ends}]")


def row(runs, heading, part, name, unit, signed=False):
    """A heading, and of every run one number of its "metrics", "measures" or "difference" as text."""
    return heading, *(cell((run[part] or {}).get(name), unit, signed) for run in runs)


def table(result):
    """Metrics, differences to the first run and costs as rows of texts, a run a column; the first row is the head."""
    runs, base = list(result.values()), next(iter(result))
    def size(run):
        seeds, tasks, samples = len(run.get("seeds", ())), run["metrics"]["tasks"], run["metrics"]["samples"]
        return (f"{seeds} seeds: " if seeds else "") + f"{tasks:,} x {samples / tasks / (seeds or 1):.3g}"

    rows = [("tasks x samples", *map(size, runs)),
            row(runs, f"win rate vs {base}", "difference", "win_rate", "%")]
    for name, metric in METRICS.items():
        rows.append(row(runs, metric.heading, "metrics", name, metric.unit))
        if metric.compared:
            rows.append(row(runs, f"{metric.heading}, vs {base}", "difference", name, metric.unit, signed=True))
    rows += [(f"cost: {name.replace('_', ' ')}",
              *(f"{run['cost'][name]:,.0f}" if name in run["cost"] else "" for run in runs)) for name in COSTS]
    return [("", *result), *(texts for texts in rows if any(texts[1:]))]


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


def write_report(path, summaries, result, args):
    """The table and dialogues of the scored files that were summarised {name: Summary}, as one HTML file."""
    def as_address(image):
        image.save(data := io.BytesIO(), "WEBP", quality=55, method=4)
        return "data:image/webp;base64," + base64.b64encode(data.getvalue()).decode()

    total = sum(run["metrics"]["samples"] for run in result.values())
    tasks = list(dict.fromkeys(task for summary in summaries.values() for task in summary.sums))
    tasks = {task: {"episodes": []} for task in tasks[:max(1, args.report_limit * len(tasks) // total)]}
    pages = {}    # page -> place of its picture among the pictures

    def add(name, record):    # -> is it in the report?
        task = tasks.get(task_digest(record))
        if task is not None:
            task |= {"id": record["task_id"], "request": record["task"].get("problem_description") or ""}
            if record["domain"] == "frontend":
                task["picture"] = pages.setdefault(record["task"]["ground_truth"], len(pages))
            task["episodes"].append(episode(name, record, pages))
        return task is not None

    for name, summary in summaries.items():
        added = read(summary.path, "scored", summary.domain, each=functools.partial(add, name))
        wanted = sum(len(summary.rewards.get(task, ())) for task in tasks)
        while wanted:    # they come first: the rest is not read
            wanted -= next(added)
    count = sum(len(task["episodes"]) for task in tasks.values())
    data = {"runs": list(summaries), "table": table(result), "total": total,
            "notes": {name: run["notes"] for name, run in result.items()}, "tasks": list(tasks.values()),
            "pictures": [image and as_address(image) for image in small_pictures(pages, args.workers)]}
    template = TEMPLATE.read_text(encoding="utf-8")
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")    # no </script> and no <!-- can end the script
    policy = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'"
    for tag in ("style", "script"):
        content = re.search(f"<{tag}>(.*?)</{tag}>", template, re.DOTALL)[1].encode()
        policy += f"; {tag}-src 'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"
    with whole(path) as part:
        part.write_text(template.replace("{{policy}}", policy).replace("{{data}}", text), encoding="utf-8")
    print(f"wrote {path}: {count:,} of {total:,} dialogues, {path.stat().st_size / 1e6:.1f} MB; open it in a browser")


def episode(name, record, pages):
    """One scored record as the report's script shows it; pages that it shows are added to `pages` {page: place}."""
    turns = []
    for turn in record["dialogue_history"]:
        text, mark, code = turn["content"].partition(ANSWER_MARK)
        turns.append(shown := {"agent": turn["role"] == "assistant", "text": text + mark, "code": code.strip()})
        if shown["agent"]:
            output, advantage = (turn.get("output") or "").strip(), turn.get("advantage")
            if output.endswith(turn["content"]):    # what parse_response cut off in front
                shown["thought"] = output.removesuffix(turn["content"]).strip().removesuffix(OUTPUT_MARK).strip()
            if isinstance(advantage, (int, float)) and math.isfinite(advantage):
                shown["advantage"] = advantage
            if record["domain"] == "frontend":
                from render import extract_page
                if page := extract_page(turn["content"]):
                    shown["picture"] = pages.setdefault(page, len(pages))
    reference, answer = ([line.rstrip() for line in source.strip("\n").split("\n")][:400]
                         for source in (record["task"]["ground_truth"], extract_code(record["answer"] or "")))
    changes = difflib.SequenceMatcher(None, reference, answer, autojunk=False).get_opcodes()
    lines = [(kind == "equal", *pair) for kind, a, b, c, d in changes
             for pair in itertools.zip_longest(reference[a:b], answer[c:d])]
    calls = record["task"].get("test_cases") or {}
    facts = [("good" if heard else "bad", f"{'' if heard else 'never '}told: {fact.get('detail', '?')}", fact["reply"])
             for fact, heard in facts_heard(record)]
    tests = [("good" if status == "passed" else "bad", status, calls.get(label, ""))
             for label, status in (record.get("tests") or {}).items()]
    more = [f"{view} {value:.3f}" for view, value in (record.get("cosine") or {}).items()]
    if "reward_released" in record:
        more.append(f"released evaluator {record['reward_released']:.2f}")
    return {"run": name, "sample": record["sample"], "reward": record["reward"], "result": result_of(record),
            "finish": record["finish"], "more": more, "turns": turns, "lines": lines,
            "lists": {"Hidden details": facts, "Tests": tests}}


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


def small_pictures(pages, workers):
    """Yield an image of each page, 360 pixels wide and cut at three screens, or None where it is broken."""
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
            image = Image.fromarray(found.rgb[:3 * 1280])
            size = 360, max(1, round(image.height * 360 / image.width))
            yield image.resize(size, Image.Resampling.BOX) if found.status == "ok" else None


def write_picture(path, summaries, workers):
    """One PNG, a row for each of the first four tasks: every run's page (its first sample), then the reference."""
    from PIL import Image, ImageDraw, ImageFont
    first = next(iter(summaries.values()))
    if first.domain != "frontend":
        die("--picture shows pages; these are backend episodes")
    found = {task: {} for task in list(first.sums)[:4]}    # task -> {run: its first record}
    for name, summary in summaries.items():
        for record in read(summary.path, "scored"):
            if (task := task_digest(record)) in found:
                found[task].setdefault(name, record)
    lines = []    # of (caption, page or None)
    for records in found.values():
        cells = [(f"{name}: cosine {record['reward']:.3f}", page_of(record)) for name, record in records.items()]
        lines.append([*cells, ("reference", next(iter(records.values()))["task"]["ground_truth"])])
    pages = list(dict.fromkeys(page for cells in lines for _, page in cells if page))
    images = dict(zip(pages, small_pictures(pages, workers)))
    heights = [24 + max((images[page].height for _, page in cells if images.get(page)), default=0) for cells in lines]
    sheet = Image.new("RGB", (370 * max(map(len, lines)) + 10, sum(heights) + 10), "#d6d9dc")
    pen = ImageDraw.Draw(sheet)
    for cells, top in zip(lines, itertools.accumulate(heights, initial=0)):
        for column, (caption, page) in enumerate(cells):
            pen.text((370 * column + 10, top + 6), caption, fill="black", font=ImageFont.load_default(14))
            if images.get(page):
                sheet.paste(images[page], (370 * column + 10, top + 24))
    with whole(path) as part:
        sheet.quantize(256).save(part, "PNG", optimize=True)    # pages have few colours
    print(f"wrote {path}: {len(lines)} tasks, {path.stat().st_size / 1e3:.0f} kB")


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
    add("--domain", choices=list(REWARDS), default="backend",
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
    # intervals
    add("--resamples", type=count, default=10_000, help="bootstrap draws of the tasks (default: 10000)")
    add("--seed", type=number(int, least=0), default=0, help="seed of the bootstrap (default: 0)")
    # compare runs that are scored already, or critics by how they rank candidates
    add("--compare", nargs="+", type=named_files, metavar="NAME=FILE",
        help="scored files to put side by side; differences are against the first one. A pattern in quotes "
             "(sweet='runs/seed-*/policy.test.scored.jsonl') stands for the same run with several seeds")
    add("--truth", metavar="FILE",
        help="scored continuations (rollout.py --continue): then the files of --compare are candidates with advantages "
             "(train_critic.py --annotate). Patterns in quotes stand for seeds, taken in pairs")
    # what to write beside the table
    add("--json", type=Path, help="write the table's numbers here as well")
    add("--report", type=Path, help="write one self-contained HTML file with the dialogues here")
    add("--report-limit", type=count, default=200,
        help="about how many dialogues go into the report, all of a task or none (default: 200)")
    add("--picture", type=Path, help="pages: write a PNG of the first four tasks here, a row each: every run's page, "
        "then the reference")
    args = parser.parse_args()
    if args.compare and len(dict(args.compare)) < len(args.compare):
        parser.error(f"--compare needs another name for each run, found {', '.join(name for name, _ in args.compare)}")
    if args.truth and (not args.compare or args.report or args.picture):
        parser.error("--truth needs --compare NAME=FILE, candidates as a critic ranks them, and gives a table alone")
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
    with whole(path) as part:
        part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")


def main():
    args = parse_args()
    if not args.compare:
        args.input = args.input or Path("runs") / args.run_name / f"{args.split}.trajectories.jsonl"
        stem = args.input.name.removesuffix(".jsonl").removesuffix(".trajectories")
        args.out = args.out or args.input.parent / f"{stem}.scored.jsonl"
    files = dict(args.compare or [(stem, [args.out])])
    inputs = [TEMPLATE, *filter(None, [args.input]), *itertools.chain(*files.values())]
    if args.report and not TEMPLATE.is_file():
        die(f"{TEMPLATE}: the report's template, which belongs beside evaluate.py, is missing")
    for path, suffix in ((args.report, ".html"), (args.json, ".json"), (args.picture, ".png")):
        if path and (path.suffix != suffix or path.name.endswith(".metrics.json")):
            die(f"{path} must end in {suffix}, and not in .metrics.json")    # a mistyped name replaces no other file
        if path:
            check_path(path, inputs)
    if args.truth:
        result = rank_critics(files, args)
        print(markdown(ranking_table(result)))
        return args.json and write_json(args.json, result)
    several = any(len(paths) > 1 for paths in files.values())
    if several and (args.report or args.picture):
        die("--report and --picture show one run a name: give them one file for each")
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
    if args.picture:
        write_picture(args.picture, summaries, args.workers)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.stdout.flush()
        print("\nevaluate.py: stopped; the same command, without --overwrite, goes on", file=sys.stderr)
        os._exit(130)    # without waiting for threads that are still at work
    except OSError as error:
        die(f"{error.filename or 'a file'}: {error.strerror or error}")
