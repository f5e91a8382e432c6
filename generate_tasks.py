"""Tasks: a vague request, the hidden reference, ten hidden calls, and what a simulated human may tell about them.

`--source procedural` (the default) composes tasks. A function is a short pipeline over a list of records: filter them,
take what each is worth, combine, rank or group them, bound or join the result. Each step has details ("slots"); the
request states some and leaves four to six open. Which question is useful must be read from this request. Some details
exist only if another has a certain value: a cap only if the result has one. The ten calls are chosen so that every wrong
value of every detail, and every program that differs from the reference in one place, fails at least one of them.

A hash of the reference decides the split, whatever the seed. Another hash keeps a quarter of the compositions out of
training: validation and test alternate between `seen` compositions with new values and `new` ones (key `half`).
`--plain` words everything in one way and gives each detail its own keys, for a model that is trained from nothing.

`--source llm` is the paper's way: a model reads a web excerpt (key `text`) and writes description, function and ten
calls. A task is kept if its reference runs, twice with the same results, and if it is no near-duplicate of an earlier
one. Departure from the paper: its 10k + 1k tasks come from a 70B model; composed ones need none.
`--source colbench` reads released tasks or trajectories, and counts references that fail their own tests.

`--domain frontend` draws pages from PAGES: kinds of pages with hidden choices (palette, order, layout, texts), each
rendered and kept if there is something to see. `--source websight` takes rows of WebSight v0.2 instead: neither an idea
nor a page occurs in two splits (`--split-by row` cuts at row 10,000 as the release does, whatever the ideas).

`--demonstrations N` writes dialogues of a scripted, imperfect agent on procedural tasks: it asks for each hidden detail
with probability `--ask`, in random order, wastes turns with probability `--waste`, guesses what it did not ask, and
answers. On pages it shows one, hears the largest differences and puts right each with probability `--ask`.

Reads:  nothing; for demonstrations data/{domain}/{split}.jsonl; for the other sources the file named by --in
Writes: data/{domain}/{train,val,test}.jsonl or data/{domain}/demonstrations.jsonl; beside each X.jsonl an
        X.settings.json with what decided its content. A run that was killed continues where it stopped.

    python generate_tasks.py
    python generate_tasks.py --demonstrations 8000 --ask 0.6
    python generate_tasks.py --source llm --in excerpts.jsonl --model http://localhost:8000/v1
    python generate_tasks.py --source colbench --split test --in released_test.jsonl
    python generate_tasks.py --domain frontend --kinds shop,event,login,profile --train 1000 --val 0 --test 200
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
import signal
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from string import Template
from typing import NamedTuple

from tqdm import tqdm

from records import ANSWER_MARK, SCHEMA, Output, die, number, parse_response, read
from sandbox import Sandbox

SPLITS = ("train", "val", "test")
BATCH = 1000      # most candidates that are handed to the threads at a time
SCHEMA["excerpt"] = ("what collects the excerpts", (), {"text": str})
SCHEMA["row"] = ("an export of WebSight v0.2", (), {"llm_generated_idea": str, "text": str})


# ---------------------------------------------------------------------------------------------------------------------
# Composed tasks: a function is a short pipeline over a list of records. A *composition* names its steps, the *slots* of
# those steps are the details that a request states or leaves open, and a slot's value settles one reading.

THEMES = {  # the records: (the key of a record's name, the keys of what can be added up or sorted by)
    "orders": ("code", ["amount", "weight", "price"]),
    "shifts": ("badge", ["hours", "pay", "miles"]),
    "books": ("title", ["pages", "copies", "sales"]),
    "games": ("match", ["points", "fouls", "goals"]),
}
KEYS = {  # slot -> the keys that it may name; with --plain each slot has its own, else all numbers and all labels mix
    "field": ["age", "size", "days", "stock"],
    "factor": ["count", "rate", "units"],
    "second": ["rank", "level", "rating"],
    "label": ["city", "region", "branch"],
    "group": ["client", "team", "owner"],
}
PLACES = ["oslo", "lima", "rome", "bern", "cairo", "quito"]
PEOPLE = ["anna", "bruno", "carla", "dino", "emma", "felix", "greta", "hugo", "ines", "jonas", "klara", "leo"]
NAMES = """amber birch cedar delta ember fern grove hazel iris jade kelp lotus maple nova onyx pearl quartz raven sage
    tulip umber violet willow yarrow""".split()
SIDES = {"above": ">", "below": "<", "at least": ">=", "at most": "<="}

FILTERS = ["limit", "label", "both", "none"]
KINDS = {  # kind -> (its share of the tasks, what a record may be worth, what may be returned)
    "total": (3, ["plain", "plus", "times", "cut"], ["number", "bounded"]),
    "average": (3, ["plain", "plus", "times", "cut"], ["number", "bounded"]),
    "ranked": (4, ["plain", "times"], ["first", "list", "text"]),
    "grouped": (4, ["plain", "times", "ones"], ["first", "list", "text"]),
}
CONDITIONAL = {  # slot -> (the slot that it depends on, the value with which it exists)
    "cap": ("bound", "a cap"),
    "floor": ("bound", "a floor"),
    "second": ("ties", "second"),
    "many": ("part", "first"),
}


class Slot(NamedTuple):
    """One detail of a function: how it is asked for, and what the human says of it."""
    questions: list       # the first is the one that --plain uses
    replies: object       # a list, in which {} is the value, or {value: list}
    absent: str           # the reply where the function has no such detail


SLOTS = {
    "field": Slot(
        ["Which number is limited?", "What is the limit on?", "Which key does the limit look at?"],
        ['The limit is on "{}".', 'It is "{}" that is limited.', 'Look at "{}" for the limit.'],
        "There is no limit."),
    "side": Slot(
        ["Which side of the limit counts?", "Above or below, and does the limit itself count?",
         "Do the records at the limit count, and which side of it is kept?"],
        ["Keep what is {} the limit.", "It has to be {} the limit.", "What counts is {} the limit."],
        "There is no limit."),
    "limit": Slot(
        ["What is the limit?", "How high is the limit?", "Which number is the limit?"],
        ["The limit is {}.", "I mean a limit of {}.", "It is limited at {}."],
        "There is no limit."),
    "label": Slot(
        ["Which label is checked?", "Which label decides?", "Which key holds that word?"],
        ['The label is "{}".', 'I mean the label "{}".', 'Look at the label "{}".'],
        "No label decides what is kept."),
    "which": Slot(
        ["Are those kept or left out?", "Do those stay or go?", "Is it only those, or all but those?"],
        {"only": ["Keep only those.", "Only those stay.", "Use those and no others."],
         "not": ["Leave out those.", "Those go.", "Use all but those."]},
        "No label decides what is kept."),
    "word": Slot(
        ["Which word is it?", "Which word do you mean?", "What does the label have to say?"],
        ['The word is "{}".', 'I mean the word "{}".', 'It says "{}".'],
        "No label decides what is kept."),
    "value": Slot(
        ["Which value do you mean?", "Which value is used?", "Which key holds the value?"],
        ['The value is "{}".', 'I mean the value "{}".', 'Take "{}" as the value.'],
        "Nothing is added up but the count."),
    "factor": Slot(
        ["What is it multiplied by?", "Times what?", "Which key is the factor?"],
        ['Take it times "{}".', 'Multiply it by "{}".', 'The factor is "{}".'],
        "Nothing is multiplied."),
    "fee": Slot(
        ["How large is the fee?", "What is the fee?", "How much is added to each?"],
        ["The fee is {}.", "I mean a fee of {}.", "Add {} to each."],
        "There is no fee."),
    "cut": Slot(
        ["Where is each one cut?", "At most how much counts of each?", "What is the most that one record counts?"],
        ["Each one is cut at {}.", "Of each at most {} counts.", "Count each as {} at most."],
        "Single records are not cut."),
    "how": Slot(
        ["How are they combined?", "Sum, largest or smallest?", "What is taken of them?"],
        {"sum": ["Take the sum.", "I want the sum.", "Add them all up."],
         "max": ["Take the largest.", "I want the largest.", "The largest of them."],
         "min": ["Take the smallest.", "I want the smallest.", "The smallest of them."]},
        "They are not combined to one number in another way than I said."),
    "rounding": Slot(
        ["Is it rounded up or down?", "How is it rounded?", "Which whole number is it, the next or the last?"],
        ["Round it {}.", "I want it rounded {}.", "It is always rounded {}."],
        "Nothing is rounded."),
    "bound": Slot(
        ["Does the result have bounds?", "Is the result bounded?", "Is there a cap or a floor?"],
        {"none": ["It has no bounds.", "No, there are no bounds.", "Neither a cap nor a floor."],
         "a cap": ["It has a cap.", "Yes, there is a cap.", "A cap, but no floor."],
         "a floor": ["It has a floor.", "Yes, there is a floor.", "A floor, but no cap."]},
        "It has no bounds."),
    "cap": Slot(
        ["What is the cap?", "How high is the cap?", "What is the highest result?"],
        ["The cap is {}.", "I mean a cap of {}.", "The result is {} at most."],
        "There is no cap."),
    "floor": Slot(
        ["What is the floor?", "How low is the floor?", "What is the lowest result?"],
        ["The floor is {}.", "I mean a floor of {}.", "The result is {} at least."],
        "There is no floor."),
    "empty": Slot(
        ["What if nothing is left?", "What if none are left?", "What comes back when there is no record?"],
        ["Then return {} at once.", "With nothing left, return {} at once.", "Return {} at once, then."],
        "Then the list is empty."),
    "order": Slot(
        ["Which end comes first?", "In which order are they sorted?", "Is it the largest or the smallest first?"],
        ["The {} first.", "I want the {} first.", "Begin with the {}."],
        "You may choose."),
    "ties": Slot(
        ["What if two are equal?", "How are ties settled?", "Which of two equals comes first?"],
        {"earlier": ["Of equals the earlier leads.", "Then the earlier leads.", "Equals stay in their order."],
         "later": ["Of equals the later leads.", "Then the later leads.", "Equals go in reverse order."],
         "second": ["Of equals another number decides.", "Then another number decides.", "By another number."]},
        "You may choose."),
    "second": Slot(
        ["Which number decides then?", "What is the other number?", "By which key are equals sorted?"],
        ['The smaller "{}" leads.', 'Then the smaller "{}" leads.', 'Of equals the smaller "{}" comes first.'],
        "There is no other number."),
    "group": Slot(
        ["What are the groups by?", "Which label makes the groups?", "What do the records of a group share?"],
        ['The groups are by "{}".', 'I mean groups by "{}".', 'Group them by "{}".'],
        "There are no groups."),
    "alphabet": Slot(
        ["What if two groups are equal?", "How are equal groups sorted?", "Which of two equal groups comes first?"],
        ["Equal groups go from {}.", "Then they go from {}.", "Sort equal groups from {}."],
        "You may choose."),
    "part": Slot(
        ["All or only the first?", "Do you want all of them?", "Is the whole list returned?"],
        {"all": ["I want all of them.", "Return all of them.", "All, without end."],
         "first": ["Only the first few.", "I want only the first few.", "No, the first few."]},
        "There is only one."),
    "many": Slot(
        ["How many are returned?", "How many do you want?", "How many are the first few?"],
        ["The first {}.", "I want the first {}.", "At most {} of them."],
        "There is no such number."),
    "between": Slot(
        ["What stands between them?", "What separates them?", "How are they joined?"],
        ["Put {} between them.", "I want {} between them.", "Join them with {}."],
        "They are not joined to a text."),
}


def hashed(*what):
    """A number from anything that JSON can write, the same in every process."""
    return int.from_bytes(hashlib.sha256(json.dumps(what).encode("utf-8", "replace")).digest()[:8], "big")


def split_of(*what):
    """Which split something belongs to: 72% train, 8% val, 20% test, by its hash alone (no seed)."""
    h = hashed(*what) % 100
    return "train" if h < 72 else "val" if h < 80 else "test"


def new_task(domain, about, truth, **more):
    """A task; its number is given when it is written."""
    return {"task_id": None, "domain": domain, "problem_description": about, "ground_truth": truth, **more}


def half_of(composition):
    """"new" for the quarter of the compositions that training never has, else "seen"."""
    return "new" if hashed("compositions", *composition) % 4 == 0 else "seen"


def choices_of(composition, theme, plain):
    """{slot: its values} for every slot that a composition may have, parents before the slots that depend on them."""
    filters, kind, worth, out = composition
    numbers = [*THEMES[theme][1], *KEYS["field"], *KEYS["factor"], *KEYS["second"]]
    labels = [*KEYS["label"], *KEYS["group"]]

    def keys(slot):
        own = THEMES[theme][1] if slot == "value" else KEYS[slot]
        return own if plain else labels if slot in ("label", "group") else numbers

    found = {}
    if filters in ("limit", "both"):
        found |= {"field": keys("field"), "side": list(SIDES), "limit": [5, 10, 15, 20, 25, 30, 40, 50, 60, 80]}
    if filters in ("label", "both"):
        found |= {"label": keys("label"), "which": ["only", "not"], "word": PLACES}
    if kind == "grouped":
        found["group"] = keys("group")
    if worth != "ones":
        found["value"] = keys("value")
    if worth == "times":
        found["factor"] = keys("factor")
    if worth == "plus":
        found["fee"] = [6, 7, 8, 9]
    if worth == "cut":
        found["cut"] = [35, 45, 55, 65, 75]
    if kind == "total":
        found["how"] = ["sum", "max", "min"]
    if kind == "average":
        found["rounding"] = ["down", "up"]
    if out == "bounded":
        found |= {"bound": ["none", "a cap", "a floor"], "cap": [90, 110, 120, 140, 150], "floor": [12, 18, 24, 32, 48]}
    if kind in ("ranked", "grouped"):
        found["order"] = ["largest", "smallest"]
    if kind == "ranked":
        found |= {"ties": ["earlier", "later", "second"], "second": keys("second")}
    if kind == "grouped":
        found["alphabet"] = ["a to z", "z to a"]
    if out in ("list", "text"):
        found |= {"part": ["all", "first"], "many": [2, 3, 4]}
    if out == "text":
        found["between"] = ['", "', '"; "', '" - "', '" / "']
    if out in ("number", "bounded"):
        found["empty"] = ["0", "-1", "1", "100"]
    if out in ("first", "text"):
        found["empty"] = ['"none"', '"empty"', '"nobody"', '"missing"']
    return found


def all_compositions():
    """Every composition with at least five slots that are not conditional, or else too little could be left open."""
    found = []
    for kind, (_, worths, outs) in KINDS.items():
        for composition in itertools.product(FILTERS, [kind], worths, outs):
            if len(choices_of(composition, "orders", True).keys() - CONDITIONAL.keys()) >= 5:
                found.append(composition)
    return found


COMPOSITIONS = all_compositions()


def draw_values(composition, theme, plain, rng, known=()):
    """A value for each slot of a task; those in `known` are given. No two slots name the same key."""
    values = dict(known)
    for slot, choices in choices_of(composition, theme, plain).items():
        parent, needed = CONDITIONAL.get(slot, (None, None))
        if slot not in values and (parent is None or values[parent] == needed):
            taken = [values[other] for other in ("value", *KEYS) if other in values]
            values[slot] = rng.choice([choice for choice in choices if choice not in taken])
    return values


def write_function(composition, theme, values):
    """The reference: a line or two for each step of the pipeline."""
    filters, kind, worth, out = composition
    name = THEMES[theme][0]
    lines = []
    if "limit" in values:
        lines += [f'rows = [r for r in rows if r["{values["field"]}"] {SIDES[values["side"]]} {values["limit"]}]']
    if "word" in values:
        sign = "==" if values["which"] == "only" else "!="
        lines += [f'rows = [r for r in rows if r["{values["label"]}"] {sign} "{values["word"]}"]']
    if "empty" in values:
        lines += ["if not rows:", f"    return {values['empty']}"]
    lines += {"total": total_lines, "average": average_lines, "ranked": ranked_lines, "grouped": grouped_lines}[kind](
        worth_of_record(worth, values), name, values)
    if "cap" in values:
        lines += [f"out = min(out, {values['cap']})"]
    if "floor" in values:
        lines += [f"out = max(out, {values['floor']})"]
    few = f"[:{values['many']}]" if "many" in values else ""
    if out in ("number", "bounded"):
        lines += ["return out"]
    if out == "first":
        lines += ["return names[0]"]
    if out == "list":
        lines += [f"return names{few}"]
    if out == "text":
        lines += [f"return {values['between']}.join(names{few})"]
    return "def report(rows):\n" + "".join(f"    {line}\n" for line in lines)


def worth_of_record(worth, values):
    """What one record r is worth, as an expression."""
    if worth == "ones":
        return "1"
    value = f'r["{values["value"]}"]'
    if worth == "plus":
        return f"{value} + {values['fee']}"
    if worth == "times":
        return f'{value} * r["{values["factor"]}"]'
    if worth == "cut":
        return f"min({value}, {values['cut']})"
    return value


def total_lines(value, name, values):
    return [f"out = {values['how']}({value} for r in rows)"]


def average_lines(value, name, values):
    total = f"sum({value} for r in rows)"
    return [f"out = {total} // len(rows)" if values["rounding"] == "down" else f"out = -(-{total} // len(rows))"]


def ranked_lines(value, name, values):
    reverse = ", reverse=True" if values["order"] == "largest" else ""
    before = {"earlier": [], "later": ["rows = rows[::-1]"], "second": [
        f'rows = sorted(rows, key=lambda r: r["{values.get("second")}"])']}
    return [*before[values["ties"]], f"rows = sorted(rows, key=lambda r: {value}{reverse})",
            f'names = [r["{name}"] for r in rows]']


def grouped_lines(value, name, values):
    reverse = ", reverse=True" if values["order"] == "largest" else ""
    turned = ", reverse=True" if values["alphabet"] == "z to a" else ""
    key = f'r["{values["group"]}"]'
    return ["sums = {}", "for r in rows:", f"    sums[{key}] = sums.get({key}, 0) + {value}",
            f"names = sorted(sums{turned})", f"names = sorted(names, key=sums.get{reverse})"]


def write_request(composition, theme, values, stated, plain, rng):
    """The task in plain words: what is stated of each step, and of the rest that it is there, or nothing at all."""
    filters, kind, worth, out = composition
    name = THEMES[theme][0]

    def pick(*wordings):
        return wordings[0] if plain else rng.choice(wordings)

    def say(slot, known, *vague):
        return known.format(values[slot]) if slot in stated else pick(*vague)

    opening = "Write report(rows) for a list of {}." if plain else rng.choice([
        "Write report(rows), where rows is a list of {}, each a dictionary.",
        "I have a list of {}, which are dictionaries; write report(rows).",
        "I need a function report(rows); rows are {}, as dictionaries."])
    text = [opening.format(theme)]
    if "limit" in values:
        text.append(pick("Keep those with", "Use only those with", "What counts are those with") + " a limit on "
                    + say("field", '"{}"', "one number", "some number") + ": "
                    + say("side", "{} the limit", "on one side of the limit", "on a certain side of the limit")
                    + say("limit", " {}", "") + ".")
    if "word" in values:
        rule = {"only": pick("Keep only those", "Use only those"), "not": pick("Leave out those", "Drop those")}
        text.append((rule[values["which"]] if "which" in stated else pick("Mind those", "There is a rule for those"))
                    + say("label", ' where the label "{}" is', " where a label is", " where some label is")
                    + say("word", ' the word "{}".', " a certain word.", " one word."))
    if "empty" in stated:
        text.append(pick("If nothing is left, return {} at once.", "With nothing left, return {} at once.").format(
            values["empty"]))
    worth_words = say("value", 'the value "{}"', "a value", "some value") if "value" in values else ""
    if worth == "plus":
        worth_words += say("fee", " plus a fee of {} each", " plus a fee each")
    if worth == "times":
        worth_words += say("factor", ' times "{}"', " times another number", " times a factor")
    if worth == "cut":
        worth_words += say("cut", ", each one cut at {}", ", each one cut somewhere", ", each one cut")
    order = f", the {values['order']} first" if "order" in stated else ""
    if kind == "total":
        how = {"sum": "sum", "max": "largest", "min": "smallest"}[values["how"]]
        text.append(f"{pick('Take', 'I want')} the {how} of {worth_words}." if "how" in stated else
                    f"{pick('Combine', 'Put together')} {worth_words}.")
    if kind == "average":
        text.append(f"{pick('Average', 'Take the average of')} {worth_words}, as a whole number"
                    + (f", rounded {values['rounding']}." if "rounding" in stated else "."))
    if kind == "ranked":
        text.append(f"{pick('Sort them by', 'Order them by')} {worth_words}{order}.")
    if kind == "grouped":
        text.append(pick("Make groups", "Put them in groups") + say("group", ' by "{}"', " by a label") + ", "
                    + (f"add up {worth_words}" if worth != "ones" else "count them")
                    + f" in each, and sort the groups by that{order}.")
    if "bound" in values and "bound" not in stated:
        text.append(pick("The result may have bounds.", "Mind the bounds of the result."))
    elif "bound" in values:
        detail = {"none": "no bounds", "a cap": say("cap", "a cap of {}", "a cap") if "cap" in values else "",
                  "a floor": say("floor", "a floor of {}", "a floor") if "floor" in values else ""}[values["bound"]]
        text.append(f"{pick('The result has', 'It has')} {detail}.")
    if "ties" in stated:
        text.append("Of equals " + (say("second", 'the smaller "{}"', "the smaller of another number")
                                    if values["ties"] == "second" else f"the {values['ties']}") + " leads.")
    if "alphabet" in stated:
        text.append(f"Equal groups go from {values['alphabet']}.")
    thing = "group" if kind == "grouped" else f'"{name}"'
    if out == "first":
        text.append(pick("Return the first {}.", "I want the first {}.").format(thing))
    if out in ("list", "text"):
        which = "all" if values["part"] == "all" else "the first " + say("many", "{}", "few")
        which = which if "part" in stated else "the"
        form = "" if out == "list" else " as one text" + say("between", ", {} between them", "")
        things = "groups" if kind == "grouped" else thing
        text.append(f"{pick('Return', 'I want')} {which} {things}{form or ' in a list'}.")
    return " ".join(text)


# ---------------------------------------------------------------------------------------------------------------------
# Ten calls that tell the reference from whatever is nearly it

def draw_rows(theme, values, rng):
    """Records near the edges: at the limit, with the word in question, worth the same as others, none at all."""
    numbers = [*THEMES[theme][1], *KEYS["field"], *KEYS["factor"], *KEYS["second"]]
    scale, size = rng.choice([12, 40, 90, 200]), rng.randint(0, 7)
    places, people, shown = rng.sample(PLACES, 3), rng.sample(PEOPLE, 3), rng.sample(NAMES, size)
    seconds = rng.sample(range(1, 60), size)
    rows = []
    for i in range(size):
        row = {THEMES[theme][0]: shown[i]}
        row |= {key: rng.choice(places) for key in KEYS["label"]}
        row |= {key: rng.choice(people) for key in KEYS["group"]}
        row |= {key: rng.randint(1, scale) for key in numbers}
        if rows and rng.random() < 0.5:    # worth as much as another record
            row |= {key: rng.choice([rows[-1], rng.choice(rows)])[key] for key in numbers}
        if "limit" in values and rng.random() < 0.6:
            row[values["field"]] = values["limit"] + rng.choice([-3, -1, 0, 0, 1, 7, 20])
        if "word" in values and rng.random() < (0.5 if values["which"] == "only" else 0.3):
            row[values["label"]] = values["word"]
        if "second" in values:    # never equal: what then decides is no part of the task
            row[values["second"]] = seconds[i]
        rows.append(row)
    return rows


def mutants(code):
    """Programs that differ from a program in one place: a comparison, a number, an operator, a function, a line."""
    tree, found = ast.parse(code), []

    def change(node, part, value):
        before = getattr(node, part)
        setattr(node, part, value)
        found.append(ast.unparse(tree))
        setattr(node, part, before)

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for sign in (ast.Gt, ast.GtE, ast.Lt, ast.LtE, ast.Eq, ast.NotEq):
                change(node, "ops", [sign()])
        elif isinstance(node, ast.BinOp):
            for sign in (ast.Add, ast.Sub, ast.Mult):
                change(node, "op", sign())
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            change(node, "value", not node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            change(node, "value", node.value - 1)
            change(node, "value", node.value + 1)
        elif isinstance(node, ast.Name) and node.id in ("min", "max", "sum"):
            for other in ("min", "max", "sum"):
                change(node, "id", other)
        if isinstance(getattr(node, "body", None), list) and len(node.body) > 1:
            for i in range(len(node.body)):
                change(node, "body", node.body[:i] + node.body[i + 1:])
    return [mutant for mutant in dict.fromkeys(found) if mutant != ast.unparse(tree)]


def with_one_wrong(composition, theme, values, plain):
    """{(slot, wrong value): the program that is right but for this slot}."""
    choices, found = choices_of(composition, theme, plain), {}
    for slot in values:
        for wrong in choices[slot]:
            changed = values | {slot: wrong}
            for child, (parent, needed) in CONDITIONAL.items():
                if slot == parent and wrong == needed:
                    changed[child] = choices[child][0]    # a cap where there is none: any will do
                elif slot == parent:
                    changed.pop(child, None)
            if wrong != values[slot]:
                found[slot, wrong] = write_function(composition, theme, changed)
    return found


def results_of(code, inputs):
    """What a program made of our own templates returns for each list of records, as text; exceptions by their names."""
    names, found = {}, []
    exec(compile(code, "task", "exec"), names)
    for rows in inputs:
        try:
            found.append(repr(names["report"](list(rows))))
        except Exception as error:    # a mutant may do anything
            found.append(type(error).__name__)
    return found


POOL = 60    # lists of records from which ten calls are chosen


def choose_calls(composition, theme, values, plain, rng):
    """(ten calls, None) that together fail every wrong value and every mutant, or (None, why there are none).

    The calls are a greedy cover of the wrong programs by a pool of random inputs. Their results differ, so that a
    constant answer passes one of them; two may be equal where ten different ones are not to be had.
    """
    inputs = [[]] + [draw_rows(theme, values, rng) for _ in range(POOL)]
    code = write_function(composition, theme, values)
    right = results_of(code, inputs)
    wrong = with_one_wrong(composition, theme, values, plain) | {("mutant", m): m for m in mutants(code)}
    shown_by = {}    # wrong program -> the inputs that show it
    for name, program in wrong.items():
        shown = {i for i, (a, b) in enumerate(zip(right, results_of(program, inputs))) if a != b}
        if shown:
            shown_by[name] = shown
        elif name[0] != "mutant":
            return None, f"no input shows a wrong value of {name[0]}"
    chosen, times, left = [], Counter(), set(shown_by)
    while len(chosen) < 10:
        free = [i for i in range(len(inputs)) if i not in chosen]
        free = [i for i in free if times[right[i]] == min(times[right[j]] for j in free)]
        shows = Counter(itertools.chain.from_iterable(shown_by[name] for name in left))    # input -> how many it shows
        best = max(free, key=lambda i: shows[i])
        chosen.append(best)
        times[right[best]] += 1
        left -= {name for name in left if best in shown_by[name]}
    if max(times.values()) > 1 and len(times) < 9:
        return None, "results alike"
    if left:
        return None, "ten calls are too few"
    return [f"report({inputs[i]!r})" for i in sorted(chosen)], None


# ---------------------------------------------------------------------------------------------------------------------
# Tasks, and the dialogues of a scripted, imperfect agent

def reply_of(slot, value, plain, rng):
    """What the human says of a slot's value."""
    replies = SLOTS[slot].replies
    replies = replies[value] if isinstance(replies, dict) else replies
    return (replies[0] if plain else rng.choice(replies)).format(value)


def draw_open(values, rng):
    """Four to six slots that the request leaves open, or None. Where a slot is open, so are those that depend on it."""
    if len(values) < 4:
        return None
    opened = set(rng.sample(list(values), min(len(values), rng.choice([4, 5, 6]))))
    opened |= {child for child, (parent, _) in CONDITIONAL.items() if child in values and parent in opened}
    return opened if len(opened) <= 6 else None


def draw_task(split, half, kinds, plain, rng):
    """A task without its calls, or None where the draw belongs to another split or half, or leaves too much open."""
    kind = rng.choices(kinds, [KINDS[kind][0] for kind in kinds])[0]
    composition = rng.choice([one for one in COMPOSITIONS if one[1] == kind])
    theme = rng.choice(list(THEMES))
    values = draw_values(composition, theme, plain, rng)
    opened = draw_open(values, rng)
    reference = write_function(composition, theme, values)
    if half_of(composition) != half or split_of(reference) != split or not opened:
        return None
    about = write_request(composition, theme, values, values.keys() - opened, plain, rng)
    said = {slot: reply_of(slot, value, plain, rng) for slot, value in values.items()}
    facts = [{"detail": slot, "question": SLOTS[slot].questions[0], "keywords": [], "reply": said[slot],
              "implies": [CONDITIONAL[slot][0]] if CONDITIONAL.get(slot, (None,))[0] in opened else []}
             for slot in values if slot in opened]
    replies = {slot: said.get(slot) or SLOTS[slot].absent for slot in SLOTS if slot not in opened}
    return new_task("backend", about, reference, test_cases=None, source=f"procedural:{kind}", half=half,
                    composition=composition, theme=theme, plain=plain, details=values, facts=facts, replies=replies)


def draw_tasks(split, kinds, plain, seed):
    """Yield tasks of a split without their calls: independent draws, each reference once, until no new one is found.

    Validation and test tasks are of `seen` and of `new` compositions in turn.
    """
    halves = ["seen"] if split == "train" else ["seen", "new"]
    rngs = {half: random.Random(f"{seed} {split} {half}") for half in halves}
    found = set()
    for half in itertools.cycle(halves):
        for _ in range(20_000):    # draws in a row without a new task
            task = draw_task(split, half, kinds, plain, rngs[half])
            if task and task["ground_truth"] not in found:
                break
        else:
            return
        found.add(task["ground_truth"])
        yield task


def check_task(box, pool, task, seed):
    """Give a task its calls and run its reference in the sandbox: (task, None, or why it is rejected).
    pool: processes that choose the calls."""
    rng = random.Random(f"{seed} {task['ground_truth']}")
    calls, reason = pool.apply(choose_calls, (task["composition"], task["theme"], task["details"], task["plain"], rng))
    if reason:
        return task, reason
    task["test_cases"] = {str(number): call for number, call in enumerate(calls, 1)}
    return task, reference_fault(box, task)


def reference_fault(box, task):
    """Why a reference is not usable: a call that fails, returns None or differs between two runs."""
    bad = sorted(set(box.check_reference(task).values()) - {"ok"})
    return f"reference: {bad[0]}" if bad else None


def demonstrate(task, ask, waste, max_turns, rng):
    """One dialogue of the scripted agent, as (dialogue_history, answer).

    It asks for some open details, those that make others exist first, with wasted turns among them: a question that
    it asked before, or one about a detail that is not open.
    """
    facts = {fact["detail"]: fact["reply"] for fact in task["facts"]}
    asked = [slot for slot in facts if rng.random() < ask]
    rng.shuffle(asked)
    asked = parents_first(asked[:max_turns - 1])
    exchanges, spare = [], max_turns - 1 - len(asked)    # (question, reply, what it told)
    for slot in [*asked, None]:    # None: the turn that answers
        while spare and rng.random() < waste:
            spare -= 1
            if exchanges and rng.random() < 0.5:
                exchanges.append(rng.choice(exchanges))
            else:
                idle = rng.choice(list(task["replies"]))
                exchanges.append((question_about(idle, task["plain"], rng), task["replies"][idle], []))
        if slot:
            exchanges.append((question_about(slot, task["plain"], rng), facts[slot], [slot]))

    known = {slot: value for slot, value in task["details"].items() if slot not in facts or slot in asked}
    for child, (parent, needed) in CONDITIONAL.items():
        if child in known:    # a cap of 90 says that there is one
            known[parent] = needed
    guessed = draw_values(task["composition"], task["theme"], task["plain"], rng, known)
    answer = write_function(task["composition"], task["theme"], guessed).strip()
    history = [{"role": "user", "content": task["problem_description"]}]
    for question, reply, told in exchanges:
        history += [{"role": "assistant", "content": question}, {"role": "user", "content": reply, "told": told}]
    return history + [{"role": "assistant", "content": f"{ANSWER_MARK}\n{answer}"}], answer


def parents_first(slots):
    """The slots in an order in which none stands before the one that it depends on."""
    slots = list(slots)
    for child, (parent, _) in CONDITIONAL.items():
        if child in slots and parent in slots and slots.index(child) < slots.index(parent):
            i, j = slots.index(child), slots.index(parent)
            slots[i], slots[j] = parent, child
    return slots


def question_about(slot, plain, rng):
    return SLOTS[slot].questions[0] if plain else rng.choice(SLOTS[slot].questions)


# ---------------------------------------------------------------------------------------------------------------------
# Web pages: from a kind of page and a choice of values to a task, and a scripted designer

def fill(family, values):
    """The template of a family with these values in its slots. A value may itself contain a slot, hence two rounds."""
    slots = {d["name"]: d["values"][v] for d, v in zip(family["details"], values)}
    return Template(Template(family["code"]).substitute(slots)).substitute(slots)


def page_source(kind, values):
    from render import TAILWIND_TAG
    return f"<!DOCTYPE html><html><head>{TAILWIND_TAG}</head>{fill(PAGES[kind], values)}</html>"


def half_of_page(kind, values):
    """"new" for a quarter of the pairs of the first two choices, which training never has together, else "seen"."""
    return "new" if hashed("pages", kind, *values[:2]) % 4 == 0 else "seen"


def draw_pages(kinds, split, seed):
    """Yield (kind, values), one of each kind in turn, each combination once, until all of this split are used up.

    Validation and test pages of a kind are of `seen` and of `new` pairs of choices in turn.
    """
    rng, seen, spent, found = random.Random(f"{seed} {split} pages"), set(), Counter(), Counter()
    while kinds := [k for k in kinds if spent[k] < 2000]:  # draws in a row without a new combination
        for kind in kinds:
            values = tuple(rng.choice(list(c["values"])) for c in PAGES[kind]["details"])
            spent[kind] += 1
            half = "new" if split != "train" and found[kind] % 2 else "seen"
            if (split_of(kind, values) == split and half_of_page(kind, values) == half
                    and (kind, values) not in seen):
                found[kind], spent[kind] = found[kind] + 1, 0
                seen.add((kind, values))
                yield kind, values


def page_draft(kind, values):
    about, choices = PAGES[kind]["about"], PAGES[kind]["details"]
    return new_task("frontend", about[hashed("about", kind, *values) % len(about)], page_source(kind, values),
                    source=f"procedural:{kind}", half=half_of_page(kind, values),
                    details={one["name"]: value for one, value in zip(choices, values)},
                    choices={one["name"]: one["told"] for one in choices})


def check_page(renderer, task, seed=None):
    """Render the reference of a draft: (task, None, or why it is rejected)."""
    picture = renderer.render(task["ground_truth"])
    return task, picture.status if picture.status != "ok" else "blank" if picture.blank else None


def demonstrate_page(task, layout, ask, waste, max_turns, rng):
    """One dialogue, as (dialogue_history, answer): a page at random, then what the partner names is put right with
    probability `ask` each (or set to something else); with probability `waste` a page is shown again unchanged, with
    half of that the answer comes too early, else when nothing is left to name. layout: a page -> its layout."""
    from render import compare_pages, in_words, is_about
    kind = task["source"].partition(":")[2]
    choices = PAGES[kind]["details"]
    right, values = [task["details"][c["name"]] for c in choices], [rng.choice(list(c["values"])) for c in choices]
    history, done = [{"role": "user", "content": task["problem_description"]}], False
    for turn in range(max_turns):
        page = page_source(kind, values)
        if done or turn == max_turns - 1 or (turn and rng.random() < waste / 2):
            return history + [{"role": "assistant", "content": f"{ANSWER_MARK}\n{page}"}], page
        found = compare_pages(layout(page), layout(task["ground_truth"]))[:2]
        history += [{"role": "assistant", "content": page}, {"role": "user", "content": in_words(found)}]
        told = [i for i, c in enumerate(choices)
                if values[i] != right[i] and any(is_about(one, c["told"]) for one in found)]
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
    known = PAGES if args.domain == "frontend" else KINDS
    kinds = args.kinds.split(",") if args.kinds else list(known)
    if unknown := [kind for kind in kinds if kind not in known]:
        die(f"there is no kind {unknown[0]!r}; there are {', '.join(known)}")
    settings = {"source": "procedural", "kinds": kinds, "seed": args.seed, "plain": args.plain}
    if args.domain == "frontend":
        with open_renderer(args) as renderer:
            write_splits(args, settings, {}, lambda split: itertools.starmap(page_draft, draw_pages(
                kinds, split, args.seed)), lambda task: check_page(renderer, task))
        return
    # ample time: the programs are quick, and a busy machine must not change which tasks are kept
    with Sandbox(workers=args.workers, call_timeout=10, program_timeout=60) as box, \
            get_context("spawn").Pool(args.workers, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        write_splits(args, settings, {}, lambda split: draw_tasks(split, kinds, args.plain, args.seed),
                     lambda task: check_task(box, pool, task, args.seed))


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


def check_demonstrable(task):
    """A task, if it is a procedural one that the scripted agent can play; else ValueError."""
    kind, details = str(task.get("source")).partition(":")[2], task.get("details") or {}
    if task["domain"] == "frontend":
        values = {d["name"]: d["values"] for d in PAGES[kind]["details"]} if kind in PAGES else {}
        known = values and details.keys() == values.keys() and all(details[name] in values[name] for name in values)
    else:
        known = (tuple(task.get("composition") or ()) in COMPOSITIONS and task.get("theme") in THEMES
                 and task.get("facts") and task.get("replies") and {fact["detail"] for fact in task["facts"]} <= details.keys()
                 and write_function(task["composition"], task["theme"], details) == task["ground_truth"])
    if not known:
        raise ValueError("demonstrations need a procedural task with its details and facts, found source "
                         f"{task.get('source')!r} with details {details}; generate_tasks.py writes such tasks")
    return task


def write_demonstrations(args):
    from rollout import system_prompt    # the instructions that an agent has in rollouts
    path, pages = args.input or f"data/{args.domain}/{args.split}.jsonl", args.domain == "frontend"
    tasks = list(read(path, "task", args.domain, unique=True, each=check_demonstrable))
    settings = {"ask": args.ask, "waste": args.waste, "max_turns": args.max_turns, "seed": args.seed}
    out = open_output(args.out or f"data/{args.domain}/demonstrations.jsonl", args.demonstrations, args, settings,
                      {"--in": path}, ("task_id", "sample"))
    with open_renderer(args) if pages else nullcontext() as renderer:
        layout = lru_cache(maxsize=20000)(renderer.layout) if pages else None

        def dialogue(i):
            task, sample = tasks[i % len(tasks)], i // len(tasks)
            rng = random.Random(f"{args.seed} {task['task_id']} {sample}")
            if pages:
                history, answer = demonstrate_page(task, layout, args.ask, args.waste, args.max_turns, rng)
            else:
                history, answer = demonstrate(task, args.ask, args.waste, args.max_turns, rng)
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
# The kinds of pages: requests, the hidden choices, a page with a slot for each. A partner who sees both pages names
# the differences (render.compare_pages). A test holds that a wrong choice shows, and by a difference of its own. shop,
# event, login, profile and news are the simple kinds: few words, about fifty tokens of the tiny model.

PAGES = {}
BRIGHT = {c: f"bg-{c}-500" for c in ["red", "yellow", "green", "blue", "purple", "pink"]} | {
    "dark gray": "bg-gray-800", "dark blue": "bg-blue-900"}
PALE = {"white": "bg-white"} | {f"light {c}": f"bg-{c}-200" for c in ["gray", "yellow", "green", "blue", "pink"]}
INK = {"black": "text-black"} | {c: f"text-{c}-600" for c in ["red", "green", "blue", "purple"]}


def choice(name, aspects, subject, values):
    """A hidden choice. told: how a wrong one shows in the comparison of two pages (render.is_about)."""
    return {"name": name, "told": (aspects.split(), subject),
            "values": values if isinstance(values, dict) else {v: v for v in values}}


def told_by(aspects, usual=None):
    """A function (name, subject, values) -> a choice that shows in these aspects of the subject."""
    return lambda name, subject, values=usual: choice(name, aspects, subject, values)


colour_of, letters_of = told_by("colour", BRIGHT), told_by("letters", INK)
size_of = told_by("size", {"small": "text-3xl", "large": "text-7xl"})
place_of = told_by("place", {"left": "text-left", "centre": "text-center", "right": "text-right"})
words_of, layout_of, presence_of = told_by("words"), told_by("layout order"), told_by("extra")


def order_of(name, a, b):
    """Two pieces in either order; a piece may hold slots of other choices."""
    return choice(name, "order layout", "section .*", {"first": a + b, "second": b + a})


PAGE_COLOUR = choice("page", "colour", "page's background", PALE)
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


page("shop", ["Make a page for my shop.",
    "I have a shop and need a page for it.", "My shop should have a page of its own."], [
    colour_of("bar", "header"), place_of("place", TITLE), colour_of("part", "main part", PALE),
    colour_of("button", BUTTON), words_of("verb", BUTTON, ["Buy", "Order", "Reserve", "Browse"]),
    colour_of("foot", 'footer "[^"]*"')],
    '<body><header class="$bar p-12 text-white"><h1 class="text-6xl $place">Shop</h1></header>'
    '<main class="$part p-24"><button class="$button p-12 text-4xl text-white">$verb</button></main>'
    '<footer class="$foot p-16 text-white">Contact</footer></body>')
page("event", ["Make a page for my concert.",
    "I need a page that announces my concert.", "My concert is soon; please make a page for it."], [
    PAGE_COLOUR, letters_of("ink", TITLE), place_of("place", TITLE), size_of("size", TITLE),
    colour_of("box", "main part"), words_of("day", TEXT, ["Friday", "Saturday", "Sunday", "Monday"])],
    '<body class="$page"><header class="p-16"><h1 class="$ink $size $place">Concert</h1></header>'
    '<main class="$box p-24 text-white"><p class="text-5xl">$day</p></main></body>')
page("login", ["Make a page where people log in.",
    "I need a login page.", "Please build the page on which our users log in."], [
    PAGE_COLOUR, colour_of("card", "form", {**BRIGHT, **PALE}), place_of("place", TITLE), colour_of("button", BUTTON),
    words_of("verb", BUTTON, ["Enter", "Continue", "Submit", "Start"])],
    '<body class="$page p-24"><form class="$card p-16"><h1 class="text-6xl $place">Login</h1>'
    '<input class="p-8" placeholder="Name"><button class="$button p-12 text-4xl text-white">$verb</button>'
    '</form></body>')
page("profile", ["Make a page about me.",
    "I would like a page about myself.", "Please design my personal page."], [
    PAGE_COLOUR, layout_of("layout", "picture", {"row": "flex", "column": "block"}), colour_of("box", "main part"),
    words_of("job", TEXT, ["Painter", "Teacher", "Doctor", "Writer"]), colour_of("foot", 'footer "[^"]*"')],
    f'<body class="$page"><div class="p-16 $layout">{PHOTO}'
    '<main class="$box p-20 text-white"><h1 class="text-6xl">Robin</h1><p class="text-4xl">$job</p></main>'
    '</div><footer class="$foot p-12">Contact</footer></body>')
page("news", ["Make a page with the news.",
    "I need a page for the news of the day.", "Please make a news page."], [
    colour_of("bar", "header"), place_of("place", TITLE), colour_of("first", 'section "Sports"', PALE),
    colour_of("second", 'section "Weather"', PALE), order_of("order", SPORTS, WEATHER)],
    '<body><header class="$bar p-12 text-white"><h1 class="text-6xl $place">News</h1></header>$order</body>')
page("prices", ["We need a page that shows what our three plans cost.",
    "Please show the prices of our three plans on a page.", "Make a page with the prices of our plans."], [
    PAGE_COLOUR, colour_of("bar", "header"),
    letters_of("ink", TITLE, {"white": "text-white", "black": "text-black", "light yellow": "text-yellow-200"}),
    place_of("place", TITLE), layout_of("layout", 'block "[^"]*"', {"row": "flex justify-around", "column": "block"}),
    colour_of("basic", 'block "Basic"', PALE), colour_of("team", 'block "Team"', PALE),
    colour_of("firm", 'block "Firm"', PALE), words_of("cost", r'text "\$[^"]*"', ["$$20", "$$35", "$$49", "$$80"])],
    '<body class="$page"><header class="$bar p-8"><h1 class="text-5xl $ink $place">Plans</h1></header>'
    '<main class="$layout"><div class="$basic p-16"><h2 class="text-3xl">Basic</h2><p>Free</p></div>'
    '<div class="$team p-16"><h2 class="text-3xl">Team</h2><p>$cost</p></div>'
    '<div class="$firm p-16"><h2 class="text-3xl">Firm</h2><p>Ask us</p></div></main></body>')
page("menu", ["We would like a page with the menu of our restaurant.",
    "Our restaurant needs a page with its menu.", "Please put our restaurant's menu on a page."], [
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
page("gallery", ["I want a page that shows my photographs.",
    "Please make a gallery of my photographs.", "My photographs need a page."], [
    PAGE_COLOUR, colour_of("bar", 'navigation bar "[^"]*"'), place_of("side", 'navigation bar "[^"]*"'),
    choice("columns", "layout order shape place", "picture",
           {"two": "grid grid-cols-2 gap-8", "four": "grid grid-cols-4 gap-8"}),
    words_of("label", BUTTON, ["See more", "Hire me", "Write to me"]), colour_of("button", BUTTON),
    place_of("where", BUTTON)],
    '<body class="$page"><nav class="$bar p-8 text-white text-4xl $side">My photographs</nav>'
    f'<main class="p-12 $columns">{4 * PHOTO}</main><footer class="p-8 $where">'
    '<button class="$button p-6 text-2xl text-white">$label</button></footer></body>')
page("dashboard", ["Build a page on which our team sees this week's numbers.",
    "Our team needs a dashboard with this week's numbers.", "Please make a dashboard for our team."], [
    PAGE_COLOUR, colour_of("bar", "sidebar"),
    choice("side", "place", "sidebar", {"left": "flex", "right": "flex flex-row-reverse"}),
    letters_of("ink", TITLE), colour_of("sales", 'block "Sales"'), colour_of("visits", 'block "Visits"'),
    layout_of("layout", 'block "[^"]*"', {"row": "flex", "column": "block"}), size_of("size", TITLE)],
    '<body class="$page"><div class="$side"><aside class="$bar w-64 h-screen p-8 text-white text-2xl">'
    '<p>Overview</p><p>Reports</p></aside><main class="p-8 w-full">'
    '<h1 class="$ink $size">This week</h1><div class="$layout">'
    '<div class="$sales p-20 text-white"><h2 class="text-3xl">Sales</h2></div>'
    '<div class="$visits p-20 text-white"><h2 class="text-3xl">Visits</h2></div></div></main></div></body>')
page("travel", ["Please design a page for our travel agency.",
    "Our travel agency needs a page.", "We sell journeys and would like a page for that."], [
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
        try:
            description += f" Signature: {name}({ast.unparse(functions[name].args)})."
        except RecursionError:
            return None, "nested too deeply"
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
        ("--kinds", None, str, "comma-separated kinds of functions (total, average, ranked, grouped) or of pages "
         "(default: all)"),
        ("--plain", False, None, "one wording for each thing, and keys of its own for each detail: what a model that is "
         "trained from nothing can learn in minutes")],
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
                       help="procedural: composed by the grammar in this file; llm: written by a model from web excerpts; "
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
                name, default=default, help=text + f" (default {default})" * (default not in (None, False)),
                **({"action": "store_true"} if allowed is None else {"choices": allowed} if isinstance(allowed, tuple)
                   else {"type": allowed}))
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
                or flag.dest == "plain" and args.domain == "frontend")
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
