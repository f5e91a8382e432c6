"""Tasks: a vague request, the hidden reference function, ten hidden calls, and what a simulator may tell about them.

`--source procedural` (the default) draws tasks from FAMILIES below. A family is a request that leaves several details
open (a field name, a threshold, what happens on empty input, ...), a code template with a slot for each detail, and a
function that draws calls at the edges of the chosen details. One choice of a value for each detail is a
*combination*; it is one task. The split (train, val, test) follows from a hash of (family, combination) alone, so no
combination of the test split occurs in train, whatever the seed.

The ten calls of a task are redrawn until *every* wrong value of *every* detail fails at least one of them: an agent
can pass all tests only if it has every detail right. Each task is then run in the sandbox (all ten calls return,
twice the same, not all equal, no None; one wrong value of each detail fails). What is rejected is counted by reason.

`--source llm` is the paper's way: a model reads a web excerpt and writes description, function and ten calls. Kept
are those that run like procedural ones and are no near-duplicates (word 5-grams of the description, syntax tree of
the source) of those before. `--source colbench` reads released task and trajectory files as they are and tells how
many references fail their own tests.

`--demonstrations N` writes dialogues of a scripted, imperfect agent on these tasks: it asks each hidden detail with
probability `--ask`, in random order, wastes turns with probability `--waste`, guesses what it did not ask, and
answers.

`--domain frontend` draws pages instead, from PAGES: kinds of pages with hidden choices (palette, order, layout, texts,
alignment, sizes), each reference rendered and kept if there is something to see. The scripted agent of the
demonstrations shows a page, hears the largest differences from the reference, puts right what it heard with probability
`--ask`, and answers when nothing is left or, at times, too early. `--source websight` reads rows of WebSight v0.2.

Departure from the paper: its 10k + 1k backend tasks come from a 70B model; these need no model, and a transformer
trained from nothing can learn them. `total`, `average`, `best`, `fee`, `score`, `code` are the simple families: few
words, short answers.

Reads:  nothing; for demonstrations data/{domain}/{split}.jsonl; for llm and colbench the file named by --in
Writes: data/{domain}/{train,val,test}.jsonl; for demonstrations data/{domain}/demonstrations.jsonl; beside each
        X.jsonl an X.settings.json with the flags that made it. A run that was killed continues where it stopped.

    python generate_tasks.py
    python generate_tasks.py --families total,fee,score,code --train 2000 --val 200 --test 400
    python generate_tasks.py --demonstrations 8000 --ask 0.6
    python generate_tasks.py --source llm --in excerpts.jsonl --model http://localhost:8000/v1
    python generate_tasks.py --source colbench --split test --in released_test.jsonl
    python generate_tasks.py --domain frontend --families shop,event,login,profile --train 1000 --val 0 --test 200
    python generate_tasks.py --domain frontend --demonstrations 3000 --max-turns 6
    python generate_tasks.py --domain frontend --source websight --in websight.parquet
"""
import os
import signal

if __name__ == "__main__":  # Ctrl-C while the modules load: nothing is written yet
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
import argparse
import ast
import hashlib
import http.client
import importlib.util
import itertools
import json
import math
import random
import re
import shlex
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from string import Template

from tqdm import tqdm

from sandbox import Sandbox, die, read_jsonl

ANSWER_MARK = "I WANT TO ANSWER:"
DO_NOT_KNOW = "I do not know."
SPLITS = ("train", "val", "test")
REDRAWS = 40  # draws of ten calls before a combination is given up
BATCH = 200  # tasks validated at a time
# least and most of each number; NaN lies nowhere
RANGES = {"train": (0, 1e9), "val": (0, 1e9), "test": (0, 1e9), "demonstrations": (0, 1e9), "ask": (0, 1),
          "waste": (0, 1), "max_turns": (1, 1e6), "samples": (1, 1e9), "temperature": (0, 1e6),
          "max_tokens": (1, 1e9), "excerpt_length": (1, 1e9), "similar": (0, 1), "concurrency": (1, 1e6),
          "timeout": (0.001, 1e6), "retries": (0, 1e6), "tensor_parallel_size": (1, 1e6), "max_model_len": (0, 1e9),
          "workers": (1, 1e4)}
# what a flag belongs to; elsewhere it would do nothing, and is refused
BELONGS = {"families": "procedural", "split": "demonstrations colbench", "ask": "demonstrations",
           "waste": "demonstrations", "max_turns": "demonstrations", "input": "demonstrations llm colbench websight",
           "model": "llm", "model_name": "llm"}


def parse_args():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    # what to make
    p.add_argument("--domain", choices=["backend", "frontend"], default="backend",
                   help="kind of task (default backend)")
    p.add_argument("--source", choices=["procedural", "llm", "colbench", "websight"], default="procedural",
                   help="procedural: from the families in this file; llm: written by a model from web excerpts; "
                        "colbench: released task or trajectory files; websight: rows of WebSight v0.2, frontend "
                        "(default procedural)")
    p.add_argument("--families", default="", help="procedural: comma-separated families to draw from (default: all)")
    p.add_argument("--train", type=int, default=10000, help="number of training tasks (default 10000)")
    p.add_argument("--val", type=int, default=500, help="number of validation tasks (default 500)")
    p.add_argument("--test", type=int, default=None,
                   help="number of test tasks (default 1000, frontend 500, as in the paper)")
    # demonstrations
    p.add_argument("--demonstrations", type=int, default=0, metavar="N",
                   help="write N dialogues of the scripted agent instead of tasks (default 0: write tasks)")
    p.add_argument("--split", choices=SPLITS, default=None,
                   help="demonstrations: the tasks they are about; colbench: what the file holds (default train)")
    p.add_argument("--ask", type=float, default=0.6,
                   help="demonstrations: probability that a hidden detail is asked (default 0.6)")
    p.add_argument("--waste", type=float, default=0.2,
                   help="demonstrations: probability, before each turn, of a wasted turn, "
                        "again and again (default 0.2)")
    p.add_argument("--max-turns", type=int, default=10,
                   help="demonstrations: longest dialogue, in agent turns (default 10)")
    # tasks from a language model
    p.add_argument("--model", default=None,
                   help="llm: folder, hub name, or URL of an OpenAI-compatible server, such as "
                        "http://localhost:8000/v1 (key in OPENAI_API_KEY)")
    p.add_argument("--model-name", default=None, help="llm: model to name to the server (default: its first)")
    p.add_argument("--samples", type=int, default=1, help="llm: attempts per excerpt (default 1)")
    p.add_argument("--temperature", type=float, default=1.0, help="llm: sampling temperature (default 1.0)")
    p.add_argument("--max-tokens", type=int, default=2048, help="llm: new tokens per attempt (default 2048)")
    p.add_argument("--excerpt-length", type=int, default=2000,
                   help="llm: longest excerpt, in characters (default 2000)")
    p.add_argument("--similar", type=float, default=0.5,
                   help="llm: Jaccard similarity of word 5-grams from which a description is a duplicate (default 0.5)")
    p.add_argument("--concurrency", type=int, default=16, help="llm: requests under way at once (default 16)")
    p.add_argument("--timeout", type=float, default=300, help="llm: seconds to wait for the server (default 300)")
    p.add_argument("--retries", type=int, default=6,
                   help="llm: further tries when the server is busy or gone (default 6)")
    p.add_argument("--tensor-parallel-size", type=int, default=1,
                   help="llm: GPUs that share a local model (default 1)")
    p.add_argument("--max-model-len", type=int, default=0,
                   help="llm: context of a local model, in tokens (default: its own)")
    # in, out, resources
    p.add_argument("--in", dest="input", default=None, metavar="FILE",
                   help="demonstrations: tasks (default data/{domain}/{split}.jsonl); llm: excerpts; "
                        "colbench: a released file")
    p.add_argument("--out", default=None,
                   help="folder of the tasks (default data/{domain}); demonstrations and colbench: the file (default "
                        "data/{domain}/demonstrations.jsonl, data/{domain}/{split}.jsonl, or for trajectories "
                        "runs/{run}/{split}.trajectories.jsonl)")
    p.add_argument("--run", default="default", help="colbench trajectories: name of the run (default \"default\")")
    p.add_argument("--workers", type=int, default=2, help="sandbox processes (default 2)")
    p.add_argument("--seed", type=int, default=0, help="random seed (default 0)")
    p.add_argument("--overwrite", action="store_true", help="start the output again instead of continuing it")
    args = p.parse_args()
    args.test = {"backend": 1000, "frontend": 500}[args.domain] if args.test is None else args.test
    for flag, (least, most) in RANGES.items():
        if not least <= getattr(args, flag) <= most:
            die(f"--{flag.replace('_', '-')} must be at least {least} and at most {most:g}, found "
                f"{getattr(args, flag)}")
    making = "demonstrations" if args.demonstrations else args.source
    for flag, owners in BELONGS.items():
        if getattr(args, flag) != p.get_default(flag) and making not in owners.split():
            die(f"--{flag.replace('_', '-').replace('input', 'in')} goes with {' or '.join(owners.split())}; "
                f"it does nothing for {making}")
    if not args.demonstrations and args.train + args.val + args.test == 0:
        die("--train, --val and --test are all 0: nothing to make")
    args.split = args.split or "train"
    return args


# ---------------------------------------------------------------------------------------------------------------------
# The families. A detail has one question, the keywords by which a simulator recognises it, a reply ({} is the value)
# and values: a list (the word stands in the reply and in the code alike) or a dict from the reply's word to the code's.
# `usual` is the share of tasks that have the first value: a default that a guess gets right often.
# A question must hit the keywords of its own detail most often, and none in families without that detail.
# ---------------------------------------------------------------------------------------------------------------------

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
    return [(rows_of(rng, v["field"], values),) for values in lists]


def draw_fee(rng, v):
    t = int(v["threshold"])
    numbers = [t - 1, *rng.sample(range(t + 2, 2 * t + 40), 3), *rng.sample(range(t - 1), 2)]
    return [(t, False), (t, True), (t + 1, False), (t + 1, True)] + [(n, rng.random() < 0.5) for n in numbers]


def draw_score(rng, v):
    cap, free = int(v["cap"]), int(v["grace"])
    edges = [(cap + rng.randint(1, 30), 0), (100, rng.randint(0, free)), (cap - 1, free), (cap - 1, free + 1),
             (rng.randint(0, 9), free + 9), (rng.randint(1, 4), free + 1)]
    return edges + [(rng.randint(40, 110), rng.randint(0, free + 4)) for _ in range(4)]


def draw_code(rng, v):
    return [(rng.choice(WORDS).title() + rng.choice(WORDS), n) for n in [0, 1, 9, *rng.sample(range(10, 99), 7)]]

def draw_group(rng, v):
    names = rng.sample(["north", "south", "east", "west"], 3)
    small = int(v["small"])

    def row(group, amount):
        gone = rng.choice([{}, {v["key"]: ""}, {v["key"]: None}])
        return {**({v["key"]: group} if group else gone), v["amount"]: amount, "id": rng.randint(1, 99)}
    lists = [[], [row(None, small), row(names[0], small)], [row(names[0], small - 1), row(names[1], small + 1)]]
    for _ in range(7):
        lists.append([row(rng.choice([*names, None]), rng.choice([1, small - 1, small, small + 1, rng.randint(0, 50)]))
                      for _ in range(rng.randint(3, 7))])
    return [(rows,) for rows in lists]


def draw_tiers(rng, v):
    a, b = int(v["lower"]), int(v["upper"])
    quantities = [0, a - 1, a, a + 1, b - 1, b, b + 1, rng.randint(1, a), rng.randint(a, b), rng.randint(b, 2 * b)]
    return [(q, round(rng.uniform(1, 30), 4)) for q in quantities]


def draw_rental(rng, v):
    def day(n):
        return str(date(2024, 1, 1) + timedelta(n))
    starts, most = rng.sample(range(300), 10), int(v["most"]) // int(v["rate"])
    lengths = [0, 1, 2, 3, -rng.randint(1, 9), 7, most, most + 1, rng.randint(3, 12), 2 * most + rng.randint(3, 9)]
    return [(day(s), day(s + n)) for s, n in zip(starts, lengths)]


def draw_clean(rng, v):
    def text():
        words = [rng.choice(WORDS[:6] + ["42", "7up", "x_y", "a-b", "don't", "Ok!"]) for _ in range(rng.randint(1, 6))]
        words += [rng.choice(words)] if rng.random() < 0.5 else []
        return "  ".join(rng.choice([w, w.title(), w.upper()]) for w in words)
    blank = rng.choice(["12 345", "?! ...", "_ __"])
    return [(t,) for t in ["", blank, "cat", "go go go", *(text() for _ in range(6))]]


def draw_quiz(rng, v):
    calls = []
    for kind in ["none", "perfect", "wrong", "blank", "shouted", *["mixed"] * 5]:
        key = [rng.choice("abcd") for _ in range(0 if kind == "none" else rng.randint(4, 12))]
        given = {"perfect": key, "wrong": ["e" for _ in key], "blank": ["" for _ in key],
                 "shouted": [k.upper() for k in key]}
        mixed = [rng.choice([k, k, k, k, k.upper(), rng.choice("abcd"), ""]) for k in key]
        calls.append((given.get(kind, mixed), key))
    return calls


def draw_intervals(rng, v):
    gap, short = int(v["gap"]), int(v["shortest"])

    def spans():
        at, result = rng.randint(0, 9), []
        for _ in range(rng.randint(1, 6)):
            end = at + rng.choice([1, short - 1, short, short + 1, rng.randint(1, 9)])
            result.append((end, at) if rng.random() < 0.2 else (at, end))
            at = end + rng.choice([-1, gap - 1, gap, gap + 1, gap + 2, rng.randint(0, 9)])
        return rng.sample(result, len(result))
    return [([],)] + [(spans(),) for _ in range(9)]


def draw_inventory(rng, v):
    level = int(v["level"])
    calls = []
    for i in range(10):
        items = rng.sample(WORDS, rng.randint(2, 4))
        stock = {w: rng.choice([0, level - 1, level, level + 1, rng.randint(0, 40)]) for w in items}
        sold = rng.choices(items, k=rng.randint(0, 4) if i else 0)
        sales = [(rng.choice([w, w, w.title()]), rng.choice([0, 1, stock[w], stock[w] + 1, rng.randint(0, 12)]))
                 for w in sold]
        sales += [(rng.choice(["pebble", "quartz"]), rng.randint(0, 3))] if rng.random() < 0.3 else []
        calls.append((stock, sales))
    return calls


def draw_leaders(rng, v):
    lists = [[]]
    for _ in range(9):
        numbers = around(rng, int(v["threshold"]), rng.randint(1, 7))
        rows = rows_of(rng, v["field"], numbers + rng.choices(numbers, k=2))
        names = rng.sample(WORDS, len(rows))
        lists.append([{**r, "name": name, "age": rng.randint(18, 70)} for r, name in zip(rows, names)])
    return [(rows,) for rows in lists]


def draw_window(rng, v):
    def reading():
        return None if rng.random() < 0.15 else round(rng.uniform(0, 50), 4)
    lengths = [0, 1, int(v["width"]) - 1, int(v["width"]), *(rng.randint(3, 10) for _ in range(6))]
    return [([reading() for _ in range(n)],) for n in lengths]


def draw_parse(rng, v):
    def part():
        name = rng.choice(["size", "Size", "color", "Mode", "depth", ""])
        value = rng.choice(["7", "red", "Big one", "x=1", "a:b", "p,q", "m;n", "~", ""])
        return name + (rng.choice([v["equals"], f" {v['equals']} "]) + value if rng.random() < 0.8 else "")
    return [("",)] + [(v["pairs"].join(part() for _ in range(rng.randint(1, 6))),) for _ in range(9)]


def draw_tax(rng, v):
    a, b = int(v["allowance"]), int(v["allowance"]) + int(v["bracket"])
    incomes = [0, a - 1, a + rng.randint(1, 60), b, b + rng.randint(1, 60), *(rng.randint(a, b) for _ in range(2)),
               *(rng.randint(b, 3 * b) for _ in range(3))]
    return [(n,) for n in incomes]


def draw_bins(rng, v):
    number, origin, width = int(v["number"]), int(v["origin"]), int(v["width"])
    edges = [origin + i * width for i in range(number + 1)]

    def value():
        return rng.choice([*edges, origin - 1, edges[-1] + 1, rng.randint(origin - 9, edges[-1] + 9),
                           rng.randint(0, 99) + 0.5])
    lists = [[value() for _ in range(rng.randint(2, 8))] for _ in range(7)]
    return [(values,) for values in [[], [origin], [edges[-1]], *lists]]


def draw_late(rng, v):
    hour, minute = map(int, v["opening"].split(":"))
    grace, most = int(v["grace"]), int(v["most"])

    def arrival():
        at = hour * 60 + minute + rng.choice([-5, 0, grace, grace + 1, most, most + grace + 1, rng.randint(-20, 120)])
        return rng.choice(["noon", "8.30"]) if rng.random() < 0.15 else f"{at // 60}:{at % 60:02d}"
    return [([],)] + [([arrival() for _ in range(rng.randint(1, 4))],) for _ in range(9)]


FAMILIES = {
    # Simple families: few words; the value is the last word of the reply and the same word in the code.
    "total": {
        "about": "Write total(rows): add up one field over the rows that pass a threshold.",
        "draw": draw_rows,
        "details": [FIELD, COMPARISON, THRESHOLD, EMPTY],
        "code": """
def total(rows):
    kept = [r["$field"] for r in rows if r["$field"] $comparison $threshold]
    if not kept:
        return $empty
    return sum(kept)
"""},
    "average": {
        "about": "Write average(rows): the average of one field over the rows above a threshold, rounded.",
        "draw": draw_rows,
        "details": [FIELD, THRESHOLD, DIGITS, EMPTY],
        "code": """
def average(rows):
    kept = [r["$field"] for r in rows if r["$field"] > $threshold]
    if not kept:
        return $empty
    return round(sum(kept) / len(kept), $digits)
"""},
    "best": {
        "about": "Write best(rows): the name of the best row above a threshold.",
        "draw": draw_rows,
        "details": [
            FIELD, THRESHOLD,
            detail("direction", "Is the largest or smallest best?", "largest smallest biggest",
                   "The best is the {}.", {"largest": "max", "smallest": "min"}),
            only(EMPTY, ["none", "nobody", "missing", "blank"], reply='The result is then "{}".')],
        "code": """
def best(rows):
    kept = [r for r in rows if r["$field"] > $threshold]
    if not kept:
        return "$empty"
    return $direction(kept, key=lambda r: r["$field"])["name"]
"""},
    "fee": {
        "about": "Write fee(weight, far): small fee, large fee above a threshold, extra fee if far.",
        "draw": draw_fee,
        "details": [
            THRESHOLD,
            detail("small", "What is the small fee?", "small", "The small fee is {}.", [1, 2, 3, 4, 6, 8]),
            detail("large", "What is the large fee?", "large", "The large fee is {}.", [12, 14, 16, 18, 20, 25]),
            detail("extra", "What is the extra fee?", "extra surcharge",
                   "The extra fee is {}.", [5, 7, 9, 10], usual=0.7)],
        "code": """
def fee(weight, far):
    cost = $small
    if weight > $threshold:
        cost = $large
    if far:
        cost = cost + $extra
    return cost
"""},
    "score": {
        "about": "Write score(points, days): points less a penalty for late days, between the lowest and highest "
                 "score.",
        "draw": draw_score,
        "details": [
            detail("penalty", "What does a late day cost?", "late penalty cost",
                   "A late day costs {}.", [1, 2, 3, 4, 5, 6, 8, 10]),
            detail("grace", "How many days are free?", "free grace", "The free days are {}.", [1, 2, 3, 4]),
            detail("cap", "What is the highest score?", "highest cap maximum",
                   "The highest score is {}.", [50, 60, 70, 75, 80, 85, 90, 95]),
            FLOOR],
        "code": """
def score(points, days):
    late = max(0, days - $grace)
    points = points - late * $penalty
    points = min(points, $cap)
    return max(points, $floor)
"""},
    "code": {
        "about": "Write code(name, number): a prefix, the first letters of the name, and a number.",
        "draw": draw_code,
        "details": [
            detail("prefix", "What is the prefix?", "prefix",
                   'The prefix is "{}".', ["item", "box", "lot", "unit", "part", "bin", "kit", "set"]),
            detail("letters", "How many letters are taken?", "letters",
                   "The letters taken are {}.", [1, 2, 3, 4, 5, 6]),
            CASE,
            detail("first", "Where do the numbers start?", "start numbers numbering",
                   "The numbers start at {}.", [10, 20, 30, 40, 50, 60, 80, 100])],
        "code": """
def code(name, number):
    head = name[: $letters].$case()
    tail = str(number + $first)
    return "$prefix" + head + tail
"""},
    # The others: five or six details, replies in whole sentences, longer answers.
    "group": {
        "about": "Write group_totals(rows), which sums up a list of records (dicts) per group and returns a list of "
                 "[group, total] pairs for a report. Small groups do not belong in the report.",
        "draw": draw_group,
        "details": [
            detail("key", "By which key are records grouped?", "grouped group key",
                   'They are grouped by "{}".', ["region", "team", "city", "kind"]),
            detail("amount", "Which entry of a record is summed up?", "summed sum entry",
                   'The entry "{}" is summed up.', ["amount", "units", "seconds", "visits"]),
            detail("missing", "What about records without a group?", "without group",
                   "Records without a group {}.",
                   {'are counted under "other"': 'key = "other"', 'are counted under "unknown"': 'key = "unknown"',
                    "are skipped": "continue"}),
            detail("small", "From which total on is it reported?", "reported report",
                   "Groups are reported from a total of {} on.", [1, 5, 10, 20, 40]),
            detail("order", "In which order are groups listed?", "order sorted listed",
                   "The groups are listed {}.",
                   {"alphabetically": "p[0]", "by total, the largest first": "-p[1]",
                    "by total, the smallest first": "p[1]", "in order of first appearance": "0"})],
        "code": """
def group_totals(rows):
    totals = {}
    for r in rows:
        key = r.get("$key")
        if not key:
            $missing
        totals[key] = totals.get(key, 0) + r["$amount"]
    pairs = [[k, t] for k, t in totals.items() if t >= $small]
    return sorted(pairs, key=lambda p: $order)
"""},
    "tiers": {
        "about": "Write bulk_price(quantity, unit), which returns the price of an order: quantity times the unit "
                 "price, with a quantity discount in two steps.",
        "draw": draw_tiers,
        "details": [
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
            DIGITS],
        "code": """
def bulk_price(quantity, unit):
    discount = 0
    if quantity $reach $lower:
        discount = $less
    if quantity $reach $upper:
        discount = $more
    return round(quantity * unit * (100 - discount) / 100, $digits)
"""},
    "rental": {
        "about": "Write rental(start, end), which returns what a rental from one date to another costs. Both dates "
                 'are strings such as "2024-03-09".',
        "draw": draw_rental,
        "details": [
            detail("rate", "What is the price of a rented day?", "price rented daily",
                   "Each charged day costs {}.", [8, 12, 15, 20, 25]),
            detail("last", "Is the day of return charged?", "return returned",
                   "The day of return {}.", {"is charged like the others": "1", "is not charged": "0"}),
            detail("week", "Are weekends charged?", "weekend weekends saturday saturdays sunday sundays",
                   "Of the week, {}.",
                   {"every day is charged": "7", "Sundays are not charged": "6",
                    "Saturdays and Sundays are not charged": "5"}),
            detail("least", "How few days may be charged?", "few fewest minimum",
                   "The number of days charged is at least {}.", [1, 2, 3]),
            detail("most", "Is the bill of a rental capped?", "bill capped ceiling",
                   "A rental costs at most {}.", [150, 200, 240, 300]),
            detail("swapped", "What if the dates are swapped?", "swapped reversed before",
                   "If the end lies before the start, {}.",
                   {"the result is 0": "return 0", "the dates are swapped": "first, last = last, first",
                    "the result is -1": "return -1"})],
        "code": """
from datetime import date, timedelta

def rental(start, end):
    first, last = date.fromisoformat(start), date.fromisoformat(end)
    if last < first:
        $swapped
    days = [first + timedelta(n) for n in range((last - first).days + $last)]
    charged = [d for d in days if d.weekday() < $week]
    return min($most, $rate * max($least, len(charged)))
"""},
    "clean": {
        "about": "Write clean(text), which turns free text that people typed into a short tidy name: unwanted "
                 "characters go, words are joined, long names are cut.",
        "draw": draw_clean,
        "details": [
            detail("unwanted", "Which characters are unwanted?", "unwanted removed stripped",
                   "{}.",
                   {"Digits are unwanted": "not c.isdigit()",
                    "Everything but letters, digits and spaces is unwanted": "c.isalnum() or c.isspace()",
                    "Only underscores are unwanted": 'c != "_"'}),
            only(CASE, ["upper", "lower", "title"]),
            detail("repeats", "What about words that repeat?", "repeat repeats repeated duplicates",
                   "Repeated words {}.",
                   {"stay": "text.split()", "are kept only once": "list(dict.fromkeys(text.split()))"}),
            detail("joiner", "What joins the words?", "joins joined joiner separator",
                   'The words are joined by "{}".', ["-", "_", ".", "+"]),
            detail("length", "How long may the name be?", "long length cut",
                   "The name is cut to {} characters.", [8, 10, 12, 16, 20]),
            detail("blank", "What if no words are left?", "left blank",
                   'If no words are left, the name is "{}".', ["empty", "unknown", "untitled"])],
        "code": """
def clean(text):
    text = "".join(c for c in text if $unwanted)
    text = text.$case()
    words = $repeats
    if not words:
        return "$blank"
    return "$joiner".join(words)[:$length]
"""},
    "quiz": {
        "about": "Write grade_quiz(answers, key), which returns the points of a multiple-choice sheet. answers and "
                 "key are lists of letters; an empty string is a question left out.",
        "draw": draw_quiz,
        "details": [
            detail("right", "How many points does a right answer give?", "right correct",
                   "A right answer gives {}.", [2, 3, 4, 5]),
            detail("wrong", "How many points does a wrong answer lose?", "wrong incorrect",
                   "A wrong answer loses {}.", [0, 1, 2, 3]),
            detail("blank", "What does an omitted question give?", "omitted unanswered blank",
                   "A question left out gives {}.", {"nothing": "0", "1 point": "1", "minus 1 point": "-1"}),
            detail("match", "Do capitals matter?", "capitals capital capitalization",
                   "Small and capital letters {}.",
                   {"count as the same": "given.lower() == right.lower()", "count as different": "given == right"}),
            detail("bonus", "Is there a bonus for a perfect sheet?", "bonus perfect",
                   "A perfect sheet gets a bonus of {}.", [0, 5, 10, 20], usual=0.4),
            only(FLOOR, [0, 2, 5])],
        "code": """
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
"""},
    "intervals": {
        "about": "Write busy(spans), which merges the [start, end] pairs of a calendar into busy periods and reports"
                 " on them.",
        "draw": draw_intervals,
        "details": [
            detail("gap", "How far apart may spans be and still merge?", "apart",
                   "Spans may be {} apart.", [1, 2, 3, 4, 5, 6]),
            detail("touch", "Is a hole of just that size bridged?", "bridged exactly inclusive",
                   "Spans exactly that far apart {}.", {"merge": "<=", "stay separate": "<"}),
            detail("reversed", "What about spans that run backwards?", "backwards reversed",
                   "Spans whose end comes first {}.",
                   {"are turned round": "[min(s), max(s)] for s in spans",
                    "are left out": "list(s) for s in spans if s[0] <= s[1]"}),
            detail("shortest", "How short may a busy period be?", "short shortest",
                   "Merged periods shorter than {} are dropped.", [2, 3, 4, 5, 6, 8, 10, 12]),
            detail("result", "What is the output of busy?", "output result",
                   "It returns {}.",
                   {"the list of merged periods": "merged", "how many periods there are": "len(merged)",
                    "the total length of the periods": "sum(e - s for s, e in merged)",
                    "the length of the longest period, else 0": "max((e - s for s, e in merged), default=0)"})],
        "code": """
def busy(spans):
    merged = []
    for start, end in sorted($reversed):
        if merged and start - merged[-1][1] $touch $gap:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    merged = [[s, e] for s, e in merged if e - s >= $shortest]
    return $result
"""},
    "inventory": {
        "about": "Write update(stock, orders), which takes a dict of item counts and a list of (item, amount) sales "
                 "and returns the new counts, with items that ran low filled up again.",
        "draw": draw_inventory,
        "details": [
            detail("names", "Do capitals matter?", "capitals capital capitalization",
                   "In names, capitals {}.",
                   {"matter": "item", "do not matter, stock names are all small": "item.lower()"}),
            detail("unknown", "What about unknown items?", "unknown",
                   "Items not in stock {}.",
                   {"are ignored": "continue", "are added with a count of 0": "stock[name] = 0"}),
            detail("short", "What if a sale exceeds the stock?", "exceeds exceed oversold enough",
                   "If a sale exceeds the stock, {}.",
                   {"it is skipped": "continue", "what is there is sold": "amount = stock[name]",
                    "the count goes below zero": "pass"}),
            detail("level", "At what count is an item low?", "low reorder",
                   "An item is low at fewer than {}.", [3, 4, 5, 6, 8, 10]),
            detail("fill", "By how many are items filled up?", "filled fill refill restocked",
                   "Low items are filled up by {}.", [6, 8, 12, 16, 20, 24, 30, 36])],
        "code": """
def update(stock, orders):
    stock = dict(stock)
    for item, amount in orders:
        name = $names
        if name not in stock:
            $unknown
        if amount > stock[name]:
            $short
        stock[name] -= amount
    for item, count in stock.items():
        if count < $level:
            stock[item] = count + $fill
    return stock
"""},
    "leaders": {
        "about": "Write leaders(rows), which returns the names for the top of a leader board, the highest first. "
                 "Rows are dicts with a name, an age and some numbers.",
        "draw": draw_leaders,
        "details": [
            only(FIELD, ["price", "points", "stock", "size", "hours", "rating"]),
            only(THRESHOLD, NUMBERS, reply="The threshold to be listed is {}."),
            detail("reach", "Is a row just on the line kept?", "line exactly inclusive",
                   "Exactly the threshold {}.", {"is enough": ">=", "is not enough": ">"}),
            detail("places", "How many places does the board have?", "places board top",
                   "The board has {} places.", [2, 3, 4]),
            detail("ties", "How are ties resolved?", "ties tie tied",
                   "Ties are ordered {}.",
                   {"by name": 'r["name"]', "by age, the youngest first": 'r["age"]', "as the rows came": "0"})],
        "code": """
def leaders(rows):
    kept = [r for r in rows if r["$field"] $reach $threshold]
    kept.sort(key=lambda r: (-r["$field"], $ties))
    return [r["name"] for r in kept[:$places]]
"""},
    "window": {
        "about": "Write smooth(values), which returns a sliding statistic over a list of sensor readings, some of "
                 "which may be None.",
        "draw": draw_window,
        "details": [
            detail("width", "How many readings does it span?", "span width window",
                   "The window spans {} readings.", [2, 3, 4, 5, 6, 7]),
            detail("statistic", "Which statistic is taken?", "statistic mean median",
                   "The statistic is {}.",
                   {"the mean": "sum(part) / len(part)", "the largest": "max(part)", "the smallest": "min(part)",
                    "the range": "max(part) - min(part)"}),
            detail("gaps", "How are missing readings treated?", "missing gaps",
                   "Missing readings {}.",
                   {"are skipped": "continue", "count as 0": "v = 0",
                    "repeat the reading before, or 0": "v = filled[-1] if filled else 0"}),
            detail("partial", "What happens until the window is full?", "until full partial incomplete",
                   "Until the window is full, {}.",
                   {"the readings so far are used": "0", "nothing is returned": "$width - 1"}),
            DIGITS],
        "code": """
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
"""},
    "parse": {
        "about": "Write read_settings(line), which turns one line of settings, pairs of a name and a value, into a "
                 "dict of strings.",
        "draw": draw_parse,
        "details": [
            detail("pairs", "What stands between two pairs?", "pairs between",
                   'Between two pairs stands "{}".', [";", ",", "|", "&"]),
            detail("equals", "What separates name and value?", "separates assignment",
                   'Between name and value stands "{}".', ["=", ":", "~"]),
            detail("twice", "What if a name comes twice?", "twice duplicate again",
                   "If a name comes twice, {}.",
                   {"the first value stays": "result.setdefault(name, value)",
                    "the last value stays": "result[name] = value",
                    'both values stay, joined by "/"':
                        'result[name] = result[name] + "/" + value if name in result else value'}),
            detail("spelling", "How are names spelled?", "spelled spelling spelt",
                   "Names are spelled {}.",
                   {"as they came": "", "in small letters": ".lower()", "in capitals": ".upper()"}),
            detail("flag", "What is the value of a name standing alone?", "alone",
                   'A name standing alone has the value "{}".', ["on", "yes", "true"]),
            detail("hollow", "What if a value is only whitespace?", "whitespace empty",
                   'An empty value is stored as "{}".', ["blank", "default", "-"])],
        "code": """
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
"""},
    "tax": {
        "about": "Write tax(income), which returns the tax owed on an income: nothing up to an allowance, one rate "
                 "for the first bracket above it, a higher rate for the rest, in whole units.",
        "draw": draw_tax,
        "details": [
            detail("allowance", "What is the allowance?", "allowance exempt",
                   "The allowance is {}.", [500, 1000, 1200, 1500, 2000]),
            detail("bracket", "How far does the bracket reach?", "bracket reach",
                   "The first bracket is {} wide.", [3000, 4000, 5000, 8000]),
            detail("rate", "What is the basic rate?", "basic rate",
                   "The rate in the bracket is {} percent.", [5, 8, 10, 12]),
            detail("higher", "What is the higher rate?", "higher rate",
                   "The higher rate is {} percent.", [20, 25, 30, 40]),
            detail("whole", "How does tax become whole units?", "whole integer rounded rounding",
                   "It is rounded {}.",
                   {"down": "int(owed)", "up": "math.ceil(owed)", "to the nearest, halves up": "int(owed + 0.5)"})],
        "code": """
import math

def tax(income):
    base = max(0, income - $allowance)
    inside = min(base, $bracket)
    owed = (inside * $rate + (base - inside) * $higher) / 100
    return $whole
"""},
    "bins": {
        "about": "Write histogram(values), which counts numbers in bins of equal width and returns the list of "
                 "counts.",
        "draw": draw_bins,
        "details": [
            detail("number", "How many bins are there?", "bins", "There are {} bins.", [3, 4, 5, 6]),
            detail("origin", "At what value does binning begin?", "binning begin begins origin",
                   "The first bin begins at {}.", [0, 5, 10, 20]),
            detail("width", "How broad is each bin?", "broad wide width", "Each bin is {} wide.", [5, 10, 20, 25]),
            detail("edges", "Where does a value on an edge belong?", "edge edges boundary",
                   "A value on an edge belongs to the {}.",
                   {"bin above": "(v - $origin) // $width", "bin below": "math.ceil((v - $origin) / $width) - 1"}),
            detail("outside", "What about values outside the range?", "outside range outliers",
                   "Values outside all bins {}.",
                   {"are left out": "continue", "go to the nearest bin": "i = 0 if i < 0 else $number - 1"}),
            detail("kind", "Plain or running counts?", "running plain cumulative",
                   "The counts are {}.",
                   {"plain": "counts", "running": "[sum(counts[:i + 1]) for i in range($number)]"})],
        "code": """
import math

def histogram(values):
    counts = [0] * $number
    for v in values:
        i = int($edges)
        if not 0 <= i < $number:
            $outside
        counts[i] += 1
    return $kind
"""},
    "late": {
        "about": "Write late_minutes(arrivals), which returns how many minutes are taken off for late arrivals, "
                 'given as strings such as "8:05".',
        "draw": draw_late,
        "details": [
            detail("opening", "When is the opening hour?", "opening",
                   "Work begins at {}.", {"8:00": "480", "8:15": "495", "8:30": "510", "9:00": "540"}),
            detail("grace", "How many minutes of delay are forgiven?", "forgiven tolerated",
                   "Up to {} minutes late are forgiven.", [3, 5, 10]),
            detail("beyond", "Does all the delay count, or the excess?", "excess beyond",
                   "For someone later than that, {}.",
                   {"all minutes count": "late", "only the minutes beyond count": "late - $grace"}),
            detail("most", "What is the most per arrival?", "arrival most",
                   "Per arrival at most {} minutes count.", [30, 45, 60, 90]),
            detail("broken", "What about times that cannot be read?", "cannot unreadable invalid",
                   "Times that cannot be read {}.",
                   {"are ignored": "continue", "count as the most minutes": "late = $most + $grace"}),
            detail("block", "Up to a multiple of what is the total taken?", "multiple step rounded",
                   "The sum is rounded up to a multiple of {}.", [5, 10, 15])],
        "code": """
def late_minutes(arrivals):
    total = 0
    for text in arrivals:
        try:
            hour, minute = text.split(":")
            late = int(hour) * 60 + int(minute) - $opening
        except ValueError:
            $broken
        if late > $grace:
            total += min($most, $beyond)
    return -(-total // $block) * $block
"""},
}


# ---------------------------------------------------------------------------------------------------------------------
# From a family and a choice of values to a task
# ---------------------------------------------------------------------------------------------------------------------

def split_of(family, values):
    """Which split a combination belongs to: 72% train, 8% val, 20% test, by its hash alone (no seed)."""
    h = int.from_bytes(hashlib.sha256(json.dumps([family, *values]).encode()).digest()[:8], "big") % 100
    return "train" if h < 72 else "val" if h < 80 else "test"


def source_code(family, values):
    """The function with these values in its slots. A value may itself contain a slot, hence two rounds."""
    f = FAMILIES[family]
    slots = {d["name"]: d["values"][v] for d, v in zip(f["details"], values)}
    return Template(Template(f["code"].strip() + "\n").substitute(slots)).substitute(slots)


@lru_cache(maxsize=20000)
def namespace(family, values):
    """The namespace of the executed function. Our own templates only: nothing untrusted is ever run here."""
    names = {}
    exec(compile(source_code(family, values), family, "exec"), names)
    return names


def outputs(family, values, calls):
    """What ten compiled calls return under these values; an exception stands as its own name."""
    names, results = namespace(family, values), []
    for c in calls:
        try:
            results.append(eval(c, names))
        except Exception as e:
            results.append(f"raised {type(e).__name__}")
    return results


def flips(family, values):
    """Every combination that has exactly one detail wrong: (detail's name, its values)."""
    for i, d in enumerate(FAMILIES[family]["details"]):
        for other in d["values"]:
            if other != values[i]:
                yield d["name"], values[:i] + (other,) + values[i + 1:]


def draw_calls(rng, family, values):
    """Ten calls that tell every wrong value of every detail from the right one, or (None, why not)."""
    f = FAMILIES[family]
    name = re.search(r"def (\w+)", f["code"])[1]
    chosen = {d["name"]: v for d, v in zip(f["details"], values)}
    reason = "calls alike"
    for _ in range(REDRAWS):
        arguments = f["draw"](rng, chosen)
        calls = [f"{name}({', '.join(map(repr, a))})" for a in arguments]
        if len(set(calls)) < 10:
            continue
        compiled = [compile(c, "call", "eval") for c in calls]
        right = outputs(family, values, compiled)
        if all(r == right[0] for r in right):
            continue
        unseen = next((d for d, wrong in flips(family, values) if outputs(family, wrong, compiled) == right), None)
        if unseen is None:
            return calls, None
        reason = f"no calls show {family}.{unseen}"
    return None, reason


def task_record(family, values, calls):
    f = FAMILIES[family]
    return {"task_id": None, "domain": "backend", "problem_description": f["about"],
            "ground_truth": source_code(family, values),
            "test_cases": {str(i + 1): c for i, c in enumerate(calls)}, "source": f"procedural:{family}",
            "details": {d["name"]: v for d, v in zip(f["details"], values)},
            "facts": [{"detail": d["name"], "keywords": d["keywords"], "question": d["question"],
                       "reply": d["reply"].format(v)} for d, v in zip(f["details"], values)]}


def value_weights(d):
    """How often each value of a detail is to occur; the first has the share `usual` where the detail gives one."""
    n = len(d["values"])
    return [d["usual"]] + [(1 - d["usual"]) / (n - 1)] * (n - 1) if d["usual"] else [1 / n] * n


def combinations(family, split, seed):
    """All combinations of a family that belong to a split, in a random order in which likely ones tend to come first
    (weighted sampling without replacement: sort by -log(u)/weight)."""
    f = FAMILIES[family]
    rng = random.Random(f"{seed} {family} order")
    weights = [dict(zip(d["values"], value_weights(d))) for d in f["details"]]
    keyed = []
    for values in itertools.product(*[d["values"] for d in f["details"]]):
        key = -math.log(1 - rng.random()) / math.prod(w[v] for w, v in zip(weights, values))
        if split_of(family, values) == split:
            keyed.append((key, values))
    return [values for _, values in sorted(keyed)]


def in_turn(families, split, seed):
    """(family, values) over all families, one of each in turn until all are used up."""
    columns = [[(f, values) for values in combinations(f, split, seed)] for f in families]
    return [c for row in itertools.zip_longest(*columns) for c in row if c is not None]


# ---------------------------------------------------------------------------------------------------------------------
# Output files that can be continued
# ---------------------------------------------------------------------------------------------------------------------

class Threads(ThreadPoolExecutor):
    """Threads that nobody waits for after an error or Ctrl-C."""
    def __exit__(self, problem, *_):
        self.shutdown(wait=problem is None, cancel_futures=True)


def finished_records(path, settings, args, wanted):
    """Records already in `path` (a torn last line is cut off), after a check that this run may write it."""
    source, sidecar = Path(args.input or "data"), path.with_suffix(".settings.json")
    if path.suffix != ".jsonl":
        die(f"--out {path} must be a file that ends in .jsonl: its settings get their name from it")
    if path.resolve() == source.resolve() or path.exists() and source.exists() and path.samefile(source):
        die(f"{path} is the input, which is never written over; name another --out")
    if path.is_dir():
        die(f"--out {path} is a folder; name a file to write")
    done = []
    if path.exists() and not args.overwrite:
        try:
            old = dict(json.loads(sidecar.read_text(encoding="utf-8"))) if sidecar.exists() else {}
        except (ValueError, TypeError):
            die(f"{sidecar}: damaged, expected the JSON object of settings; use --overwrite or another --out")
        for k in sorted(settings.keys() | old.keys()):
            if old.get(k) != settings.get(k):
                die(f"{path}: {k} was {old.get(k)!r}, now {settings.get(k)!r}; use --overwrite or another --out")
        text = path.read_bytes()
        if not text.endswith(b"\n"):
            with open(path, "r+b") as f:
                f.truncate(text.rfind(b"\n") + 1)
        done = list(read_jsonl(path))
        if len(done) > wanted:
            die(f"{path} already holds {len(done)} records, more than the {wanted} asked for; "
                f"use --overwrite or another --out")
    return done


def open_output(settings, args, wanted):
    """[(records already there, the file opened for appending)] for each path of `wanted` {path: most records}.

    Whatever stands in the way of one is said before any is changed. Files are unbuffered: one write a line, so that
    lines are whole whenever the run ends."""
    done = [finished_records(path, settings, args, most) for path, most in wanted.items()]
    for path in wanted:
        path.parent.mkdir(parents=True, exist_ok=True)
        if args.overwrite:
            path.unlink(missing_ok=True)
        path.with_suffix(".settings.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    return list(zip(done, [open(path, "ab", buffering=0) for path in wanted]))


def open_splits(args, settings):
    """{split: (records already there, file)}"""
    folder = Path(args.out or f"data/{args.domain}")
    return dict(zip(SPLITS, open_output(settings, args, {folder / f"{s}.jsonl": getattr(args, s) for s in SPLITS})))


def write_line(file, record):
    line = json.dumps(record, ensure_ascii=False) + "\n"
    line = line.encode("utf-8", "backslashreplace")  # half a surrogate pair stays \\ud83d
    if file.write(line) < len(line):
        die(f"{file.name}: the disk is full; make room, and the same command continues")


def rollout_command(args, *more, source=None):
    """The command that plays the tasks just written (`source`: those of --split), with what it needs to find them."""
    split = args.split if source else next(split for split in SPLITS if getattr(args, split))
    default = Path(f"data/{args.domain}/{split}.jsonl")
    source = source or Path(args.out or default.parent) / default.name
    return shlex.join(["python", "rollout.py", *(["--domain", "frontend"] if args.domain == "frontend" else []),
                       "--split", split, *(["--in", str(source)] if source != default else []), "--model", "MODEL",
                       *more])


def demonstrations_command(args, count):
    """The command that makes demonstrations on the tasks just written."""
    default = Path(f"data/{args.domain}")
    folder = Path(args.out or default)
    return shlex.join(["python", "generate_tasks.py", *(["--domain", "frontend"] if args.domain == "frontend" else []),
                       "--demonstrations", str(count), *(["--in", f"{folder}/train.jsonl", "--out",
                                                          f"{folder}/demonstrations.jsonl"] if folder != default
                                                         else [])])


# ---------------------------------------------------------------------------------------------------------------------
# Procedural tasks
# ---------------------------------------------------------------------------------------------------------------------

def draft(family, values, seed):
    """A task before its validation, or (None, reason)."""
    calls, reason = draw_calls(random.Random(f"{seed} {family} {values}"), family, values)
    return (None, reason) if calls is None else (task_record(family, values, calls), None)


def wrong_programs(family, values, seed):
    """For each detail one program that has only this detail wrong."""
    rng = random.Random(f"{seed} {family} {values} wrong")
    by_detail = {}
    for name, wrong in flips(family, values):
        by_detail.setdefault(name, []).append(wrong)
    return {name: source_code(family, rng.choice(wrongs)) for name, wrongs in by_detail.items()}


def reference_fault(box, task):
    """Why a task is not usable: a call that fails, returns None or differs between two runs, or all outcomes alike."""
    bad = sorted(set(box.check_reference(task).values()) - {"ok"})
    if bad:
        return f"reference: {bad[0]}"
    outcomes = box.run(task["ground_truth"], list(task["test_cases"].values()))
    return "calls alike" if len(set(outcomes)) == 1 else None


def unseen_detail(box, family, values, task, seed):
    """The detail (or None) that can be wrong without any call's outcome in the sandbox changing.

    Reference and wrong programs go as one program under numbered names: one process instead of one for each."""
    wrong = wrong_programs(family, values, seed)
    name = re.search(r"def (\w+)", task["ground_truth"])[1]
    versions = [task["ground_truth"], *wrong.values()]
    program = "\n".join(code.replace(f"def {name}(", f"def {name}_{i}(") for i, code in enumerate(versions))
    calls = list(task["test_cases"].values())
    outcomes = box.run(program, [f"{name}_{i}{c.removeprefix(name)}" for i in range(len(versions)) for c in calls])
    right, *rest = [outcomes[i:i + len(calls)] for i in range(0, len(outcomes), len(calls))]
    return next((d for d, outcome in zip(wrong, rest) if outcome == right), None)


def sandbox_verdicts(box, batch, seed):
    """Run references and wrong programs of a batch [(family, values, task)]; one reason or None for each."""
    with Threads(box.workers) as threads:
        unseen = threads.map(lambda b: unseen_detail(box, *b, seed), batch)
        bad = threads.map(lambda b: reference_fault(box, b[2]), batch)
        return [b or (f"no calls show {family}.{u}" if u else None) for b, u, (family, *_) in zip(bad, unseen, batch)]


def write_split(box, split, order, done, file, families, args):
    """Write the tasks of one split, in `order`, after those that are done."""
    out, wanted = Path(file.name), getattr(args, split)
    have = {(t["source"].partition(":")[2], tuple(t["details"].values())) for t in done}
    order = iter([c for c in order if c not in have])
    rejects, count = Counter(), len(done)
    with file, tqdm(total=wanted, initial=count, desc=out.name, unit="task", mininterval=1) as bar:
        while count < wanted:
            chosen = list(itertools.islice(order, min(BATCH, wanted - count)))
            if not chosen:
                break
            drafts = [(family, values, *draft(family, values, args.seed)) for family, values in chosen]
            rejects.update(reason for *_, reason in drafts if reason)
            batch = [(family, values, task) for family, values, task, _ in drafts if task]
            for (_, _, task), reason in zip(batch, sandbox_verdicts(box, batch, args.seed)):
                if reason:
                    rejects[reason] += 1
                    continue
                write_line(file, {**task, "task_id": f"{args.domain}-{split}-{count:05d}"})
                count += 1
                bar.update()
    print(f"wrote {count} tasks of {len(families)} families to {out}; rejected {rejects.total()}"
          + "".join(f"\n  {n} x {reason}" for reason, n in rejects.most_common()))
    if count < wanted:
        print(f"  only {count} of the {wanted} asked for: the families are used up", file=sys.stderr)


def write_procedural(args):
    families = [f.strip() for f in args.families.split(",") if f.strip()] or list(FAMILIES)
    for f in families:
        if f not in FAMILIES:
            die(f"no family is called {f!r}; there are {', '.join(FAMILIES)}")
    orders = {split: in_turn(families, split, args.seed) for split in SPLITS}
    for split, order in orders.items():
        if getattr(args, split) > len(order):
            die(f"the chosen families offer {len(order)} {split} tasks, fewer than the {getattr(args, split)} asked "
                f"for: use --{split} {len(order)} or more families")
    # ample time: the programs are known to be quick, and a busy machine must not change which tasks are kept
    with Sandbox(workers=args.workers, call_timeout=10, program_timeout=60) as box:
        outputs = open_splits(args, {"source": args.source, "families": families, "seed": args.seed})
        for split, order in orders.items():
            write_split(box, split, order, *outputs[split], families, args)
    print(f"next: {demonstrations_command(args, 8000)}    or    {rollout_command(args)}")


# ---------------------------------------------------------------------------------------------------------------------
# Demonstrations of a scripted, imperfect agent
# ---------------------------------------------------------------------------------------------------------------------

def fault_of(task, domain):
    """Why no demonstration can be about a task, or None: its details must be those of a family or kind of page."""
    for key in ("task_id", "problem_description", "ground_truth", "source"):
        if not isinstance(task.get(key), str):
            return f"{key} {json.dumps(task.get(key))[:60]}, not a text"
    if task.get("domain") != domain:
        return f"domain {task.get('domain')!r}, not {domain!r}"
    families, part = (PAGES, "choices") if domain == "frontend" else (FAMILIES, "details")
    family, details = task["source"].partition(":")[2], task.get("details")
    if family not in families:
        return f"source {task['source']!r}"
    values = {d["name"]: list(d["values"]) for d in families[family][part]}
    if not isinstance(details, dict) or details.keys() != values.keys() or any(details[d] not in values[d]
                                                                               for d in values):
        return f"details {json.dumps(details)[:60]}, not those of {family}"
    facts = task.get("facts") if isinstance(task.get("facts"), list) else []
    told = {fact["detail"] for fact in facts if isinstance(fact, dict)
            and all(isinstance(fact.get(key), str) for key in ("detail", "question", "reply"))}
    if domain == "backend" and (len(told) < len(facts) or told != values.keys()):
        return f"facts {json.dumps(task.get('facts'))[:60]}, not one for each detail"
    return None


def tasks_to_show(args):
    """The tasks that demonstrations are about, checked, and a digest of them."""
    args.input = args.input or f"data/{args.domain}/{args.split}.jsonl"
    tasks = list(read_jsonl(args.input, required=("task_id", "problem_description", "source")))
    for number, task in enumerate(tasks, 1):
        if fault := fault_of(task, args.domain):
            die(f"{args.input}, line {number}: demonstrations need a procedural task, found {fault}; write some with "
                f"generate_tasks.py --domain {args.domain}")
    if not tasks:
        die(f"{args.input}: no tasks; write some with generate_tasks.py --domain {args.domain}")
    return tasks, hashlib.sha256("".join(t["task_id"] + t["ground_truth"] for t in tasks).encode()).hexdigest()[:16]


def say_written(args, count, tasks, out):
    print(f"wrote {count} demonstrations on {min(len(tasks), count)} tasks to {out}")
    print("next: " + shlex.join(["python", "train_policy.py", "--method", "sft", "--model", "tiny",
                                 *(["--domain", "frontend"] if args.domain == "frontend" else []),
                                 *(["--run", args.run] if args.run != "default" else []), "--in", str(out)]))


def demonstrate(task, elsewhere, ask, waste, max_turns, rng):
    """One dialogue: questions about some details in random order, wasted turns among them, guesses, the answer.

    elsewhere: questions of other families, the source of irrelevant ones. Returns (dialogue_history, answer).
    """
    family = task["source"].partition(":")[2]
    details = FAMILIES[family]["details"]
    facts = {f["detail"]: f for f in task["facts"]}
    asked = [d for d in details if rng.random() < ask]
    rng.shuffle(asked)
    asked = asked[:max_turns - 1]
    foreign = [q for q in elsewhere if q not in {f["question"] for f in task["facts"]}]
    exchanges, spare = [], max_turns - 1 - len(asked)
    for d in [*asked, None]:  # None: the turn that answers
        while spare and (foreign or exchanges) and rng.random() < waste:
            spare -= 1
            repeat = exchanges and (not foreign or rng.random() < 0.5)
            exchanges.append(rng.choice(exchanges) if repeat else (rng.choice(foreign), DO_NOT_KNOW))
        if d:
            exchanges.append((facts[d["name"]]["question"], facts[d["name"]]["reply"]))
    guess = {d["name"]: rng.choices(list(d["values"]), value_weights(d))[0] for d in details}
    values = tuple(task["details"][d["name"]] if d in asked else guess[d["name"]] for d in details)
    answer = source_code(family, values).strip()
    history = [{"role": "user", "content": task["problem_description"]}]
    for question, reply in exchanges:
        history += [{"role": "assistant", "content": question}, {"role": "user", "content": reply}]
    history.append({"role": "assistant", "content": f"{ANSWER_MARK}\n{answer}"})
    return history, answer


def write_demonstrations(args):
    tasks, digest = tasks_to_show(args)
    out = Path(args.out or f"data/{args.domain}/demonstrations.jsonl")
    families = sorted({t["source"].partition(":")[2] for t in tasks})
    elsewhere = sorted({d["question"] for f in families for d in FAMILIES[f]["details"]})
    settings = {"tasks": digest, "ask": args.ask, "waste": args.waste, "max_turns": args.max_turns, "seed": args.seed}
    [(done, file)] = open_output(settings, args, {out: args.demonstrations})
    with file:
        for i in tqdm(range(len(done), args.demonstrations), initial=len(done), total=args.demonstrations,
                      desc=out.name, unit="dialogue", mininterval=1):
            task, sample = tasks[i % len(tasks)], i // len(tasks)
            rng = random.Random(f"{args.seed} {task['task_id']} {sample}")
            history, answer = demonstrate(task, elsewhere, args.ask, args.waste, args.max_turns, rng)
            write_line(file, {"task_id": task["task_id"], "sample": sample, "domain": task["domain"], "task": task,
                              "system": "", "dialogue_history": history, "answer": answer, "finish": "answered",
                              "model": "scripted", "simulator": "scripted", "seed": args.seed})
    say_written(args, args.demonstrations, tasks, out)


# ---------------------------------------------------------------------------------------------------------------------
# The page kinds of the frontend domain: a request, a page with a slot for each hidden choice, and the choices. A
# partner who sees both pages names the differences (render.compare_pages). `told` recognises the sentences about a
# choice, for the scripted agent of the demonstrations; a test holds that a wrong choice is told, and told by its own
# sentence. shop, event, login, profile and news are the simple kinds: few words, about fifty tokens of the tiny model.
# ---------------------------------------------------------------------------------------------------------------------

TAILWIND = '<link href="https://cdn.jsdelivr.net/npm/tailwindcss@2.2.19/dist/tailwind.min.css" rel="stylesheet">'
BRIGHT = {"red": "bg-red-500", "yellow": "bg-yellow-500", "green": "bg-green-500", "blue": "bg-blue-500",
          "purple": "bg-purple-500", "pink": "bg-pink-500", "dark gray": "bg-gray-800", "dark blue": "bg-blue-900"}
PALE = {"white": "bg-white", "light gray": "bg-gray-200", "light yellow": "bg-yellow-200",
        "light green": "bg-green-200", "light blue": "bg-blue-200", "light pink": "bg-pink-200"}
INK = {"black": "text-black", "red": "text-red-600", "green": "text-green-600", "blue": "text-blue-600",
       "purple": "text-purple-600"}
PLACE = {"left": "text-left", "centre": "text-center", "right": "text-right"}
SIZE = {"small": "text-3xl", "large": "text-7xl"}


def choice(name, told, values):
    return {"name": name, "told": told, "usual": None,
            "values": values if isinstance(values, dict) else {v: v for v in values}}


def colour_of(name, what, values=BRIGHT):
    return choice(name, rf"^The {what} should "
                        r"(be (?!taller|less tall|wider|narrower|larger|smaller|bold|in |on )|have no)", values)


def letters_of(name, what, values=INK):
    return choice(name, rf"^The {what} should be in [\w ]+ letters", values)


def size_of(name, what, values=SIZE):
    return choice(name, rf"^The {what} should be (larger|smaller)", values)


def place_of(name, what):
    return choice(name, rf"^The {what} should be (in the centre|on the)", PLACE)


def words_of(name, what, values):
    return choice(name, rf"^The {what} should say", values)


def presence_of(name, what, snippet):
    return choice(name, rf"^The {what} (is missing|should not be there)", {"yes": snippet, "no": ""})


def order_of(name, a, b):
    """Two pieces in either order; a piece may hold slots of other choices."""
    return choice(name, "^The section .* should (come before|stand above)", {"first": a + b, "second": b + a})


PAGE_COLOUR = choice("page", "^The page's background should be", PALE)
TITLE = r'main heading "[^"]*"'

SPORTS = '<section class="$first p-20"><h2 class="text-4xl">Sports</h2></section>'
WEATHER = '<section class="$second p-20"><h2 class="text-4xl">Weather</h2></section>'
DISHES = ['<section><h2 class="$ink $size">Starters</h2><p class="p-6 text-xl">Soup of the day</p></section>',
          '<section><h2 class="$ink $size">Desserts</h2><p class="p-6 text-xl">Apple cake</p></section>']
TRIPS = ['<section class="$sea p-16"><h2 class="text-4xl">By the sea</h2><p>Two weeks of sand and salt</p></section>',
         '<section class="$hills p-16"><h2 class="text-4xl">In the hills</h2><p>Nine days on foot</p></section>']
PHOTO = '<img src="https://picsum.photos/id/48/400/300">'

PAGES = {
    "shop": {
        "about": "Make a page for my shop.",
        "choices": [colour_of("bar", "header"), place_of("place", TITLE), colour_of("part", "main part", PALE),
                    colour_of("button", 'button "[^"]*"'),
                    words_of("verb", 'button "[^"]*"', ["Buy", "Order", "Reserve", "Browse"]),
                    colour_of("foot", 'footer "[^"]*"')],
        "code": '<body><header class="$bar p-12 text-white"><h1 class="text-6xl $place">Shop</h1></header>'
                '<main class="$part p-24"><button class="$button p-12 text-4xl text-white">$verb</button></main>'
                '<footer class="$foot p-16 text-white">Contact</footer></body>'},
    "event": {
        "about": "Make a page for my concert.",
        "choices": [PAGE_COLOUR, letters_of("ink", TITLE), place_of("place", TITLE), size_of("size", TITLE),
                    colour_of("box", "main part"),
                    words_of("day", 'text "[^"]*"', ["Friday", "Saturday", "Sunday", "Monday"])],
        "code": '<body class="$page"><header class="p-16"><h1 class="$ink $size $place">Concert</h1></header>'
                '<main class="$box p-24 text-white"><p class="text-5xl">$day</p></main></body>'},
    "login": {
        "about": "Make a page where people log in.",
        "choices": [PAGE_COLOUR, colour_of("card", "form", {**BRIGHT, **PALE}), place_of("place", TITLE),
                    colour_of("button", 'button "[^"]*"'),
                    words_of("verb", 'button "[^"]*"', ["Enter", "Continue", "Submit", "Start"])],
        "code": '<body class="$page p-24"><form class="$card p-16"><h1 class="text-6xl $place">Login</h1>'
                '<input class="p-8" placeholder="Name"><button class="$button p-12 text-4xl text-white">$verb</button>'
                '</form></body>'},
    "profile": {
        "about": "Make a page about me.",
        "choices": [PAGE_COLOUR, choice("layout", "^The picture should stand", {"row": "flex", "column": "block"}),
                    colour_of("box", "main part"),
                    words_of("job", 'text "[^"]*"', ["Painter", "Teacher", "Doctor", "Writer"]),
                    colour_of("foot", 'footer "[^"]*"')],
        "code": '<body class="$page"><div class="p-16 $layout"><img src="https://picsum.photos/id/48/400/300">'
                '<main class="$box p-20 text-white"><h1 class="text-6xl">Robin</h1><p class="text-4xl">$job</p></main>'
                '</div><footer class="$foot p-12">Contact</footer></body>'},
    "news": {
        "about": "Make a page with the news.",
        "choices": [colour_of("bar", "header"), place_of("place", TITLE), colour_of("first", 'section "Sports"', PALE),
                    colour_of("second", 'section "Weather"', PALE), order_of("order", SPORTS, WEATHER)],
        "code": '<body><header class="$bar p-12 text-white"><h1 class="text-6xl $place">News</h1></header>'
                '$order</body>'},
    "prices": {
        "about": "We need a page that shows what our three plans cost.",
        "choices": [PAGE_COLOUR, colour_of("bar", "header"),
                    letters_of("ink", TITLE,
                               {"white": "text-white", "black": "text-black", "light yellow": "text-yellow-200"}),
                    place_of("place", TITLE),
                    choice("layout", r'^The block "[^"]*" should stand',
                           {"row": "flex justify-around", "column": "block"}),
                    colour_of("basic", 'block "Basic"', PALE), colour_of("team", 'block "Team"', PALE),
                    colour_of("firm", 'block "Firm"', PALE),
                    words_of("cost", r'text "\$[^"]*"', ["$$20", "$$35", "$$49", "$$80"])],
        "code": '<body class="$page"><header class="$bar p-8"><h1 class="text-5xl $ink $place">Plans</h1></header>'
                '<main class="$layout"><div class="$basic p-16"><h2 class="text-3xl">Basic</h2><p>Free</p></div>'
                '<div class="$team p-16"><h2 class="text-3xl">Team</h2><p>$cost</p></div>'
                '<div class="$firm p-16"><h2 class="text-3xl">Firm</h2><p>Ask us</p></div></main></body>'},
    "menu": {
        "about": "We would like a page with the menu of our restaurant.",
        "choices": [PAGE_COLOUR, colour_of("bar", "header"), place_of("place", TITLE),
                    letters_of("ink", r'heading "(Starters|Mains|Desserts)"'),
                    size_of("size", r'heading "(Starters|Mains|Desserts)"', {"small": "text-xl", "large": "text-5xl"}),
                    words_of("dish", 'list item "[^"]*"',
                             ["Grilled fish with rice", "Roast chicken with beans", "Mushroom pie with salad"]),
                    order_of("order", *DISHES),
                    presence_of("foot", 'footer( "[^"]*")?',
                                '<footer class="bg-gray-800 text-white p-10">Open daily from noon</footer>')],
        "code": '<body class="$page"><header class="$bar p-10 text-white">'
                '<h1 class="text-5xl $place">The Green Table</h1></header>'
                '<main class="p-12"><h2 class="$ink $size">Mains</h2>'
                '<ul class="p-6 text-xl"><li>$dish</li><li>Noodles with vegetables</li></ul>$order</main>$foot</body>'},
    "gallery": {
        "about": "I want a page that shows my photographs.",
        "choices": [PAGE_COLOUR, colour_of("bar", 'navigation bar "[^"]*"'), place_of("side", 'navigation bar "[^"]*"'),
                    choice("columns", "^The picture should (stand|be)",
                           {"two": "grid grid-cols-2 gap-8", "four": "grid grid-cols-4 gap-8"}),
                    words_of("label", 'button "[^"]*"', ["See more", "Hire me", "Write to me"]),
                    colour_of("button", 'button "[^"]*"'), place_of("where", 'button "[^"]*"')],
        "code": '<body class="$page"><nav class="$bar p-8 text-white text-4xl $side">My photographs</nav>'
                '<main class="p-12 $columns">' + 4 * PHOTO +
                '</main><footer class="p-8 $where">'
                '<button class="$button p-6 text-2xl text-white">$label</button></footer></body>'},
    "dashboard": {
        "about": "Build a page on which our team sees this week's numbers.",
        "choices": [PAGE_COLOUR, colour_of("bar", "sidebar"),
                    choice("side", "^The sidebar should be on the", {"left": "flex", "right": "flex flex-row-reverse"}),
                    letters_of("ink", TITLE), colour_of("sales", 'block "Sales"'),
                    colour_of("visits", 'block "Visits"'),
                    choice("layout", r'^The block "[^"]*" should stand', {"row": "flex", "column": "block"}),
                    size_of("size", TITLE)],
        "code": '<body class="$page"><div class="$side"><aside class="$bar w-64 h-screen p-8 text-white text-2xl">'
                '<p>Overview</p><p>Reports</p></aside><main class="p-8 w-full">'
                '<h1 class="$ink $size">This week</h1><div class="$layout">'
                '<div class="$sales p-20 text-white"><h2 class="text-3xl">Sales</h2></div>'
                '<div class="$visits p-20 text-white"><h2 class="text-3xl">Visits</h2></div>'
                '</div></main></div></body>'},
    "travel": {
        "about": "Please design a page for our travel agency.",
        "choices": [colour_of("bar", "header"), place_of("place", TITLE), size_of("size", TITLE),
                    order_of("order", *TRIPS), colour_of("sea", 'section "By the sea"', PALE),
                    colour_of("hills", 'section "In the hills"', PALE),
                    words_of("verb", 'button "[^"]*"', ["Book now", "Ask for dates", "Plan a trip"]),
                    colour_of("button", 'button "[^"]*"'), presence_of("picture", "picture", PHOTO)],
        "code": '<body><header class="$bar p-16 text-white"><h1 class="$size $place">Far and Away</h1>'
                '</header>$picture$order<div class="p-12">'
                '<button class="$button text-white p-8 text-2xl">$verb</button></div></body>'},
}


def page_source(kind, values):
    """The page of a kind with these values in its slots. A value may itself contain a slot, hence two rounds."""
    page = PAGES[kind]
    slots = {c["name"]: c["values"][v] for c, v in zip(page["choices"], values)}
    body = Template(Template(page["code"]).substitute(slots)).substitute(slots)
    return f"<!DOCTYPE html><html><head>{TAILWIND}</head>{body}</html>"


def draw_pages(kinds, split, seed):
    """(kind, values), one of each kind in turn, each combination once, of one split only;
    without end until all are used up."""
    rng, seen, spent = random.Random(f"{seed} {split} pages"), set(), Counter()
    while kinds := [k for k in kinds if spent[k] < 2000]:  # draws in a row without a new combination
        for kind in kinds:
            values = tuple(rng.choice(list(c["values"])) for c in PAGES[kind]["choices"])
            if (kind, values) in seen or split_of(kind, values) != split:
                spent[kind] += 1
                continue
            spent[kind] = 0
            seen.add((kind, values))
            yield kind, values


def page_fault(picture):
    """Why a page is no good reference, or None."""
    if picture.status != "ok":
        return picture.status
    return "blank" if picture.blank else None


def open_renderer(args):
    from render import Renderer
    try:
        return Renderer(browsers=args.workers, remember=True)
    except RuntimeError as problem:
        die(str(problem))


def chosen_kinds(args):
    kinds = [f.strip() for f in args.families.split(",") if f.strip()] or list(PAGES)
    for k in kinds:
        if k not in PAGES:
            die(f"no kind of page is called {k!r}; there are {', '.join(PAGES)}")
    return kinds


def write_pages(args):
    """Procedural frontend tasks; each reference is rendered, and kept if there is something to see."""
    kinds = chosen_kinds(args)
    with open_renderer(args) as renderer:
        outputs = open_splits(args, {"source": args.source, "families": kinds, "seed": args.seed})
        for split in SPLITS:
            rows = ((PAGES[kind]["about"], page_source(kind, values), f"procedural:{kind}",
                     {c["name"]: v for c, v in zip(PAGES[kind]["choices"], values)})
                    for kind, values in draw_pages(kinds, split, args.seed))
            write_page_split(renderer, split, rows, *outputs[split], args)
    print(f"next: {demonstrations_command(args, 3000)}    or    {rollout_command(args)}")


def write_page_split(renderer, split, rows, done, file, args):
    """Render the references (description, page, source, details or None) of one split and keep the good ones,
    --train (...) of them."""
    wanted, out = getattr(args, split), Path(file.name)
    have, rejects, count = {t["ground_truth"] for t in done}, Counter(), len(done)
    rows = (row for row in rows if row[1] not in have)
    with file, tqdm(total=wanted, initial=count, desc=out.name, unit="page", mininterval=1) as bar:
        while count < wanted and (batch := list(itertools.islice(rows, min(BATCH, wanted - count)))):
            for (about, page, source, details), picture in zip(batch, renderer.render_many(row[1] for row in batch)):
                reason = page_fault(picture)
                if reason or page in have:
                    rejects[reason or "a page that was there before"] += 1
                    continue
                have.add(page)
                write_line(file, {"task_id": f"{args.domain}-{split}-{count:05d}", "domain": args.domain,
                                  "problem_description": about, "ground_truth": page, "source": source,
                                  **({"details": details} if details else {})})
                count += 1
                bar.update()
    print(f"wrote {count} tasks to {out}; rejected {rejects.total()}"
          + "".join(f"\n  {n} x {reason}" for reason, n in rejects.most_common()))
    if count < wanted:
        print(f"  only {count} of the {wanted} asked for: there are no more pages of this split", file=sys.stderr)


def read_websight(path):
    """(idea, page) of WebSight rows, from JSON lines or parquet;
    pictures at addresses that are gone become picsum's."""
    from render import rewrite_images
    if Path(path).suffix == ".parquet":
        try:
            import pyarrow.parquet
        except ImportError:
            die(f"{path}: reading parquet needs pyarrow (pip install pyarrow); JSON lines need nothing")
        try:
            file = pyarrow.parquet.ParquetFile(path)
            rows = (row for batch in file.iter_batches(1000, columns=["llm_generated_idea", "text"])
                    for row in batch.to_pylist())
            rows = itertools.chain([next(rows)], rows)
        except (OSError, ValueError, KeyError, StopIteration) as problem:
            die(f"{path}: not a parquet file with llm_generated_idea and text ({problem})")
    else:
        rows = read_jsonl(path, required=("llm_generated_idea", "text"))
    for row in rows:
        yield str(row["llm_generated_idea"]).strip(), rewrite_images(str(row["text"]).strip())


def write_websight(args):
    """Tasks from WebSight v0.2: the idea is the request, the page the reference.
    The split follows from the idea alone."""
    path = args.input or die("--source websight needs --in FILE, rows of WebSight v0.2 as JSON lines or parquet")
    if not Path(path).is_file():
        die(f"{path}: no such file")
    next(read_websight(path), None)  # what is wrong with the file is said before browsers and bars start
    with open_renderer(args) as renderer:
        outputs = open_splits(args, {"source": args.source, "in": Path(path).name,
                                     "bytes": Path(path).stat().st_size})
        for split in SPLITS:
            rows = ((idea, page, "websight", None) for idea, page in read_websight(path)
                    if "<html" in page.lower() and idea and split_of("websight", [idea]) == split)
            write_page_split(renderer, split, rows, *outputs[split], args)
    print(f"next: {rollout_command(args, '--simulator', 'MODEL')}")


def demonstrate_page(task, layout, ask, waste, max_turns, rng):
    """One dialogue of the scripted agent: a page at random, then what the partner names is put right with probability
    `ask` each (or set to something else); with probability `waste` a page is shown again unchanged, with half of that
    the answer comes too early, else when nothing is left to name. Returns (dialogue_history, answer).
    layout: a page -> its layout."""
    from render import page_reply
    kind = task["source"].partition(":")[2]
    choices, right = PAGES[kind]["choices"], [task["details"][c["name"]] for c in PAGES[kind]["choices"]]
    values = [rng.choice(list(c["values"])) for c in choices]
    history = [{"role": "user", "content": task["problem_description"]}]
    done = False
    for turn in range(max_turns):
        page = page_source(kind, values)
        if done or turn == max_turns - 1 or (turn and rng.random() < waste / 2):
            history.append({"role": "assistant", "content": f"{ANSWER_MARK}\n{page}"})
            return history, page
        reply = page_reply(layout(page), layout(task["ground_truth"]))
        history += [{"role": "assistant", "content": page}, {"role": "user", "content": reply}]
        told = [i for i, c in enumerate(choices) if values[i] != right[i] and re.search(c["told"], reply, flags=re.M)]
        done = not told
        if rng.random() < waste:
            continue
        for i in told:
            values[i] = right[i] if rng.random() < ask else rng.choice(list(choices[i]["values"]))


def write_page_demonstrations(args):
    tasks, digest = tasks_to_show(args)
    out = Path(args.out or f"data/{args.domain}/demonstrations.jsonl")
    settings = {"demonstrations_of": digest, "ask": args.ask, "waste": args.waste, "max_turns": args.max_turns,
                "seed": args.seed}
    with open_renderer(args) as renderer, Threads(4 * args.workers) as threads:
        [(done, file)] = open_output(settings, args, {out: args.demonstrations})
        layout = lru_cache(maxsize=20000)(renderer.layout)

        def one(i):
            task, sample = tasks[i % len(tasks)], i // len(tasks)
            rng = random.Random(f"{args.seed} {task['task_id']} {sample}")
            return task, sample, *demonstrate_page(task, layout, args.ask, args.waste, args.max_turns, rng)

        numbers = range(len(done), args.demonstrations)
        for task, sample, history, answer in tqdm(threads.map(one, numbers), initial=len(done),
                                                  total=args.demonstrations, desc=out.name, unit="dialogue",
                                                  mininterval=1):
            write_line(file, {"task_id": task["task_id"], "sample": sample, "domain": task["domain"], "task": task,
                              "system": "", "dialogue_history": history, "answer": answer, "finish": "answered",
                              "model": "scripted", "simulator": "scripted", "seed": args.seed})
    say_written(args, args.demonstrations, tasks, out)


# ---------------------------------------------------------------------------------------------------------------------
# Released ColBench files (--source colbench)
# ---------------------------------------------------------------------------------------------------------------------

def failures(box, task):
    """Which calls of a released reference fail, by mode: {"module": {label: status}, "released": {...}}, {} if none."""
    module = {k: v for k, v in box.check_reference(task).items() if v not in ("ok", "none")}
    released = {k: "returns None" if v == "wrong" else v.removeprefix("reference ")
                for k, v in box.score(task, task["ground_truth"], mode="released").items() if v != "passed"}
    return {mode: failed for mode, failed in (("module", module), ("released", released)) if failed}


def read_released(path, domain):
    """(record, its task, whether it is a trajectory) of each line of a released file; all lines must be of one kind."""
    needed = ["problem_description", "ground_truth"] + ["test_cases"] * (domain == "backend")
    kind = None
    for number, record in enumerate(read_jsonl(path), 1):
        offline = isinstance(record.get("dialogue_history"), list)
        kind = offline if kind is None else kind
        task = record.get("task") if offline else record
        missing = [k for k in needed if k not in task] if isinstance(task, dict) else ["task"]
        if missing or offline != kind:
            die(f"{path} line {number}: expected a released {domain} {'trajectory' if kind else 'task'}, "
                f"found {'a trajectory' if offline > kind else 'no ' + ', '.join(missing or ['dialogue_history'])}")
        yield record, task, offline


def released_trajectory(record, task, sample):
    """A released offline trajectory as ours. Its reward goes to `released_reward`: evaluate.py scores it again."""
    record = {k: v for k, v in record.items() if k != "reward"} | {"released_reward": record.get("reward")}
    last = next((m["content"] for m in reversed(record["dialogue_history"]) if m["role"] == "assistant"), "")
    finish = "answered" if ANSWER_MARK in last else "max_turns"
    return {**record, "task_id": task["task_id"], "sample": sample, "domain": task["domain"], "task": task,
            "system": "", "finish": finish, "model": "released", "simulator": "released", "seed": None}


def write_colbench(args):
    """Tasks stay in their order, the first --train / --val / --test lines of them (the paper's test set is the first
    1000). Of trajectories all lines are taken; equal tasks get one id, and their samples, which lie num_tasks lines
    apart, are numbered in their order."""
    path = Path(args.input or die("--source colbench needs --in FILE, a released task or trajectory file"))
    _, _, offline = next(read_released(path, args.domain), None) or die(f"{path}: no records")
    name = f"runs/{args.run}/{args.split}.trajectories.jsonl" if offline else f"data/{args.domain}/{args.split}.jsonl"
    out, limit = Path(args.out or name), None if offline else getattr(args, args.split)
    settings = {"source": "colbench", "in": path.name, "bytes": path.stat().st_size, "limit": limit}
    stream = itertools.islice(read_released(path, args.domain), limit)
    tasks, reasons, samples, count = {}, Counter(), Counter(), 0  # tasks: identity -> our task
    with (Sandbox(workers=args.workers) if args.domain == "backend" else nullcontext() as box,
          Threads(args.workers) as threads, tqdm(desc=out.name, unit="record", mininterval=1) as bar):
        [(done, file)] = open_output(settings, args, {out: math.inf})
        while batch := list(itertools.islice(stream, BATCH)):
            new = {}  # tasks that occur for the first time
            identities = [json.dumps([task["problem_description"], task["ground_truth"], task.get("test_cases")])
                          if offline else count + i for i, (_, task, _) in enumerate(batch)]
            for identity, (_, task, _) in zip(identities, batch):
                if identity not in tasks and identity not in new:
                    name = f"{path.stem}-{len(tasks) + len(new) + 1:05d}"
                    new[identity] = {"task_id": name, "domain": args.domain, "source": "colbench", **task}
            checks = threads.map(lambda t: failures(box, t), new.values()) if box else itertools.repeat({})
            for (identity, task), failed in zip(new.items(), checks):
                tasks[identity] = {**task, "reference_failures": failed} if failed else task
                reasons.update((mode, min(statuses.values())) for mode, statuses in failed.items())
            for identity, (record, _, _) in zip(identities, batch):
                task = tasks[identity]
                sample = samples[task["task_id"]]
                if count >= len(done):
                    write_line(file, released_trajectory(record, task, sample) if offline else task)
                samples[task["task_id"]] += 1
                count += 1
                bar.update()
    shape = "tasks" if not offline else "trajectories: " + ", ".join(
        f"{n} tasks with {k} samples" for k, n in sorted(Counter(samples.values()).items()))
    print(f"wrote {count} {shape} to {out}")
    for mode, how in [("module", "as modules"), ("released", "as the released evaluation does")] if box else []:
        ours = Counter({reason: n for (m, reason), n in reasons.items() if m == mode})
        print(f"{ours.total()} of {len(tasks)} references fail their own tests when run {how}"
              + "".join(f"\n  {n} x {reason}" for reason, n in ours.most_common()))
    run = ["--run", args.run] if args.run != "default" else []
    print("next: " + (shlex.join(["python", "evaluate.py", "--in", str(out), *run]) if offline else
                      rollout_command(args, "--simulator", "MODEL", source=out)))


# ---------------------------------------------------------------------------------------------------------------------
# Tasks from a language model (--source llm)
# ---------------------------------------------------------------------------------------------------------------------

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


def read_excerpts(path, length):
    """Excerpts of at most `length` characters: of a JSONL file one a record (key text, content or excerpt), of any
    other text file its paragraphs, joined as long as they fit."""
    path = Path(path)
    if path.suffix in (".jsonl", ".json", ".ndjson"):
        for number, record in enumerate(read_jsonl(path), 1):
            text = next((record[k] for k in ("text", "content", "excerpt") if isinstance(record.get(k), str)), None)
            if text is None:
                die(f"{path} line {number}: expected a string under text, content or excerpt, found {sorted(record)}")
            yield text.strip()[:length]
        return
    if not path.is_file():
        die(f"{path}: no such file; give a text or JSONL file of excerpts with --in")
    held = ""
    for paragraph in re.split(r"\n\s*\n", path.read_text(encoding="utf-8", errors="replace")):
        if held and len(held) + len(paragraph) > length:
            yield held.strip()[:length]
            held = ""
        held += paragraph + "\n\n"
    if held.strip():
        yield held.strip()[:length]


def parse_task(raw):
    """(task, None) from a model's response, or (None, why not)."""
    m = re.search(r"DESCRIPTION:\s*(.*?)\s*CODE:\s*```(?:python)?\n(.*?)```\s*CALLS:\s*(.*)", raw, re.S)
    if not m:
        return None, "not in the form asked for"
    description, code = re.sub(r"\s+", " ", m[1]), m[2].strip() + "\n"
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None, "code does not parse"
    if code.count("\n") > 50:
        return None, "more than 50 lines"
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    calls = {}
    for line in m[3].splitlines():
        line = re.sub(r"^\s*(?:\d+[.)]\s|[-*]\s)?\s*`?|`?\s*$", "", line)
        try:
            call = ast.parse(line, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in functions:
            calls.setdefault(line, call.func.id)
    if not calls:
        return None, "no call of a function of its own"
    name = Counter(calls.values()).most_common(1)[0][0]
    calls = [c for c, called in calls.items() if called == name][:10]
    if len(calls) < 10:
        return None, "fewer than ten different calls"
    if f"{name}(" not in description:
        description += f" Signature: {name}({ast.unparse(functions[name].args)})."
    return {"task_id": None, "domain": "backend", "problem_description": description, "ground_truth": code,
            "test_cases": {str(i + 1): c for i, c in enumerate(calls)}}, None


def shingles(text, n=5):
    """The set of word 5-grams of a text (shorter texts: all words as one)."""
    w = re.findall(r"\w+", text.lower())
    return {tuple(w[i:i + n]) for i in range(max(1, len(w) - n + 1))}


def normalised(code):
    """A program's syntax tree without docstrings, annotations and the function's own name, as one string."""
    tree = ast.parse(code)
    names = {n.name: f"f{i}" for i, n in enumerate(n for n in tree.body if isinstance(n, ast.FunctionDef))}
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


class Seen:
    """What was accepted so far, to find near-duplicates: sources, and an index from 5-gram to descriptions."""

    def __init__(self, similar):
        self.similar, self.sources, self.sizes, self.index = similar, set(), [], {}

    def reason(self, task):
        if normalised(task["ground_truth"]) in self.sources:
            return "duplicate source"
        mine = shingles(task["problem_description"])
        shared = Counter(i for s in mine for i in self.index.get(s, ()))
        # Jaccard similarity |A and B| / |A or B| of the two sets of 5-grams
        if any(n >= self.similar * (len(mine) + self.sizes[i] - n) for i, n in shared.items()):
            return "near-duplicate description"
        return None

    def add(self, task):
        self.sources.add(normalised(task["ground_truth"]))
        mine = shingles(task["problem_description"])
        for s in mine:
            self.index.setdefault(s, []).append(len(self.sizes))
        self.sizes.append(len(mine))


def open_model(args):
    """A function: a list of (prompt, seed) -> a list of (text, None) or (None, why not)."""
    if not args.model:
        die("--source llm needs --model: a folder, a hub name, or the URL of an OpenAI-compatible server such as "
            "http://localhost:8000/v1")
    if args.model.startswith(("http://", "https://")):
        return server_model(args)
    engine = vllm_model if importlib.util.find_spec("vllm") else transformers_model
    try:
        return engine(args)
    except ImportError as e:
        die(f"a local model needs transformers or vllm ({e}); install requirements.txt")
    except (OSError, ValueError, RuntimeError) as e:
        die(f"cannot load {args.model}: {str(e).strip().splitlines()[0]}")


def server_model(args):
    """An OpenAI-compatible server; the key, if it needs one, in the environment variable OPENAI_API_KEY."""
    base = args.model.rstrip("/")
    headers = {"Content-Type": "application/json"}
    if os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"

    def request(url, body=None):
        """The decoded answer; a busy server or a dropped connection is tried again, a refusal is raised at once."""
        for attempt in itertools.count():
            try:
                data = None if body is None else json.dumps(body).encode()
                with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=args.timeout) as r:
                    return json.load(r)
            except (OSError, ValueError, http.client.HTTPException) as e:  # HTTPError and time-outs are OSErrors
                refused = isinstance(e, urllib.error.HTTPError) and e.code not in (408, 409, 429, *range(500, 600))
                if refused or attempt == args.retries:
                    raise
                time.sleep(min(60, 0.5 * 2 ** attempt) * random.uniform(0.5, 1.5))

    try:
        name = args.model_name or request(f"{base}/models")["data"][0]["id"]
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as e:
        die(f"{base}/models gave no model ({e}); name one with --model-name, or look whether the server runs")

    def one(prompt_seed):
        prompt, seed = prompt_seed
        body = {"model": name, "messages": [{"role": "user", "content": prompt}], "temperature": args.temperature,
                "max_tokens": args.max_tokens, "seed": seed}
        try:
            text = request(f"{base}/chat/completions", body)["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as e:
            if e.code in (401, 403, 404, 408, 409, 429, *range(500, 600)):
                raise
            return None, f"request refused: HTTP {e.code}"
        except (LookupError, TypeError):
            return None, "server's answer has no content"
        return (text, None) if isinstance(text, str) else (None, "server's answer has no content")

    def ask(prompts):
        with Threads(args.concurrency) as threads:
            try:
                return list(threads.map(one, prompts))
            except (OSError, ValueError, http.client.HTTPException) as e:
                threads.shutdown(cancel_futures=True)
                die(f"{base} failed ({e}); what was made so far is kept, run the same command to go on")
    return ask


def vllm_model(args):
    import torch
    cuda = torch.cuda.is_available()
    for key, value in () if cuda else (("VLLM_CPU_KVCACHE_SPACE", "1"), ("VLLM_ENABLE_V1_MULTIPROCESSING", "0")):
        os.environ.setdefault(key, value)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM, SamplingParams
    llm = LLM(args.model, enforce_eager=not cuda, dtype="auto" if cuda else "float32", seed=args.seed,
              tensor_parallel_size=args.tensor_parallel_size, max_model_len=args.max_model_len or None,
              **({} if cuda else {"enable_chunked_prefill": False, "max_num_batched_tokens": 16384}))

    def ask(prompts):
        params = [SamplingParams(temperature=args.temperature, max_tokens=args.max_tokens, seed=s) for _, s in prompts]
        results = llm.chat([[{"role": "user", "content": p}] for p, _ in prompts], params, use_tqdm=False)
        return [(r.outputs[0].text, None) for r in results]
    return ask


def transformers_model(args):
    """The fallback where vLLM is not installed: one prompt at a time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    device, dtype = ("cuda", "bfloat16") if torch.cuda.is_available() else ("cpu", "float32")
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).to(device)

    def ask(prompts):
        texts = []
        for prompt, seed in prompts:
            torch.manual_seed(seed)
            inputs = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True,
                                                   return_tensors="pt", return_dict=True).to(model.device)
            sampling = {"temperature": args.temperature} if args.temperature else {}
            ids = model.generate(**inputs, max_new_tokens=args.max_tokens, do_sample=bool(sampling), **sampling)
            ids = ids[0, inputs["input_ids"].shape[1]:]
            texts.append((tokenizer.decode(ids, skip_special_tokens=True), None))
        return texts
    return ask


def write_llm(args):
    """One attempt per excerpt and sample, until the splits are full. An excerpt belongs to one split, by its hash.
    attempts.jsonl keeps every response with its verdict, so that a continued run asks for nothing twice."""
    excerpts = list(read_excerpts(args.input or die("--source llm needs --in FILE, a text or JSONL file of excerpts"),
                                  args.excerpt_length))
    folder = Path(args.out or f"data/{args.domain}")
    wanted = {split: getattr(args, split) for split in SPLITS}
    settings = {"source": "llm", "model": args.model, "model_name": args.model_name, "temperature": args.temperature,
                "max_tokens": args.max_tokens, "excerpt_length": args.excerpt_length, "similar": args.similar,
                "seed": args.seed, "wanted": wanted,
                "excerpts": hashlib.sha256("\0".join(excerpts).encode()).hexdigest()[:16]}
    done, files = {}, {}
    ask = open_model(args) if args.overwrite else None  # what was made goes when model and sandbox are there
    box = Sandbox(workers=args.workers)
    outputs = open_output(settings, args, {folder / f"{name}.jsonl": math.inf for name in (*SPLITS, "attempts")})
    for name, output in zip((*SPLITS, "attempts"), outputs):
        done[name], files[name] = output
    seen, count = Seen(args.similar), {split: len(done[split]) for split in SPLITS}
    verdicts = {(a["excerpt"], a["sample"]): a["verdict"] for a in done["attempts"]}
    for task in itertools.chain(*(done[split] for split in SPLITS)):
        seen.add(task)
        verdicts[task["excerpt"], task["sample"]] = "kept"  # its line among the attempts may have been lost in a kill

    def split_for(i):
        h = int.from_bytes(hashlib.sha256(excerpts[i].encode()).digest()[:8], "big") % max(1, sum(wanted.values()))
        return "train" if h < wanted["train"] else "val" if h < wanted["train"] + wanted["val"] else "test"

    def room(attempt):
        return count[split_for(attempt[0])] < wanted[split_for(attempt[0])]

    todo = itertools.product(range(args.samples), range(len(excerpts)))
    todo = (a for a in ((i, k) for k, i in todo) if a not in verdicts and room(a))
    with (box, Threads(args.workers) as threads,
          tqdm(total=sum(wanted.values()), initial=sum(count.values()), desc=str(folder), unit="task") as bar):
        while batch := list(itertools.islice(todo, 4 * args.concurrency)):
            ask = ask or open_model(args)
            replies = ask([(LLM_PROMPT.format(excerpt=excerpts[i]), args.seed + 1_000_003 * k + i) for i, k in batch])
            drafts = [(None, why) if why else parse_task(raw) for raw, why in replies]
            faults = threads.map(lambda d: reference_fault(box, d[0]) if d[0] else d[1], drafts)
            for attempt, (raw, _), (task, _), reason in zip(batch, replies, drafts, faults):
                split = split_for(attempt[0])
                reason = reason or seen.reason(task) or (None if room(attempt) else "its split was full already")
                if reason is None:
                    seen.add(task)
                    write_line(files[split], {**task, "task_id": f"{args.domain}-{split}-{count[split]:05d}",
                                              "source": f"llm:{args.model_name or args.model}",
                                              "excerpt": attempt[0], "sample": attempt[1]})
                    count[split] += 1
                    bar.update()
                verdicts[attempt] = reason or "kept"
                write_line(files["attempts"], {"excerpt": attempt[0], "sample": attempt[1],
                                               "verdict": verdicts[attempt], "output": raw})
    for f in files.values():
        f.close()
    outcome = Counter(verdicts.values())
    print(f"{outcome.total()} attempts on {len(excerpts)} excerpts; kept {outcome['kept']} "
          f"({100 * outcome['kept'] / max(1, outcome.total()):.1f}%)"
          + "".join(f"\n  {n} x {reason}" for reason, n in outcome.most_common() if reason != "kept"))
    print("wrote " + ", ".join(f"{count[s]} of {wanted[s]} to {folder / s}.jsonl" for s in SPLITS)
          + f"; every response is in {folder / 'attempts.jsonl'}")
    print(f"next: {rollout_command(args, '--simulator', 'MODEL')}")


def main():
    args = parse_args()
    if args.demonstrations:
        (write_page_demonstrations if args.domain == "frontend" else write_demonstrations)(args)
    else:
        makers = {("backend", "procedural"): write_procedural, ("backend", "llm"): write_llm,
                  ("backend", "colbench"): write_colbench, ("frontend", "colbench"): write_colbench,
                  ("frontend", "procedural"): write_pages, ("frontend", "websight"): write_websight}
        if (args.domain, args.source) not in makers:
            die(f"there are no {args.domain} tasks with --source {args.source}")
        makers[args.domain, args.source](args)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        print("\ngenerate_tasks.py: stopped; the same command continues", file=sys.stderr)
        sys.stdout.flush()
        os._exit(130)  # what is still at work in threads is not waited for
    except OSError as problem:
        die(f"{problem.filename or 'a file'}: {problem.strerror or problem}")
