"""The grammar of page tasks: a vague request, a hidden web page, and what a human says about an agent's page.

A page has a kind, from pages.toml, and a value for each of the kind's hidden choices (palette, order, layout, texts).
The request names a purpose. A hash of the choices decides the split. Another hash keeps a quarter of the pairs of the
first two choices out of training: validation and test alternate between `seen` and `new` pairs (key `half`).

Two levels. "plain": a few parts, about fifty tokens of a model that is trained from scratch. "full": 20 to 40 parts
(navigation, cards, prices, sentences), for language models.

The scripted designer shows a page, is told the first differences, and corrects each with probability `ask`. It needs no
browser: its pages are of the grammar, so their choices say how they differ, in the words of page_words.py.
"""
import random
import re
import tomllib
from collections import Counter
from functools import lru_cache
from pathlib import Path

from page_words import (
    COLOURS, NO_DIFFERENCE, ORDER, PLACES, SIZES, TEXTS, Difference, letter_change, next_sentences, quote)
from records import ANSWER_MARK, hashed, split_of
from render import TAILWIND_TAG

LEVELS = ("plain", "full")
TIERS = {"colour": COLOURS, "order": ORDER, "layout": ORDER, "size": SIZES, "words": TEXTS, "letters": TEXTS,
         "place": PLACES, "extra": 0}    # aspect -> when it is told; the small colours are told with the texts
SIDES = {"left": "on the left", "centre": "in the centre", "right": "on the right"}
LETTERS = {"text-base": 16, "text-xl": 20, "text-2xl": 24, "text-3xl": 30, "text-4xl": 36, "text-5xl": 48,
           "text-6xl": 60, "text-7xl": 72}    # Tailwind's sizes of letters, in pixels


# ---- Pages and tasks


@lru_cache
def page_kinds(level=None):
    """{kind: {"level", "requests", "page", "details": its hidden choices}}, from pages.toml; of all levels by default.

    A choice has `name`, `told` (how a wrong value shows when two pages are compared: page_words.is_about), `says` (its
    part of a sentence, see sentence_of) and `values`.
    """
    with open(Path(__file__).with_name("pages.toml"), "rb") as file:
        content = tomllib.load(file)
    for entry in content["kinds"].values():
        entry["details"], pieces = [], entry.get("pieces", {})
        entry["page"], *texts = (without_breaks(text) for text in (entry["page"], *pieces.values()))
        pieces = dict(zip(pieces, texts))
        entry.setdefault("level", "plain")
        for name, (aspects, pattern, says, values) in entry["choices"].items():
            if isinstance(values, str):    # names of tables
                tables, values = values.split(), {}
                for table in tables:
                    values |= content["values"][table]
            if isinstance(values, list):
                values = dict(zip(values, values))
            values = {value: text.format(**pieces) for value, text in values.items()}
            says = dict(zip(values, says)) if isinstance(says, list) else says
            entry["details"].append({"name": name, "told": (aspects.split(), pattern), "says": says, "values": values})
    return {kind: entry for kind, entry in content["kinds"].items() if level in (None, entry["level"])}


def without_breaks(text):
    return "".join(line.strip() for line in text.splitlines())


def fill(template, slots):
    """A template with its slots filled: $name by its value, which may itself contain slots, and $$ by a dollar sign."""
    return re.sub(r"\$(\$|\w+)", lambda slot: "$" if slot[1] == "$" else fill(slots[slot[1]], slots), template)


def slots_of(kind, values):
    """{choice: what goes into the page}"""
    return {choice["name"]: choice["values"][value] for choice, value in zip(page_kinds()[kind]["details"], values)}


def page_source(kind, values):
    """The page of a kind with these values in its slots."""
    body = fill(page_kinds()[kind]["page"], slots_of(kind, values))
    return f"<!DOCTYPE html><html><head>{TAILWIND_TAG}</head>{body}</html>"


def half_of_page(kind, values):
    """"new" for the quarter of pairs of the first two choices that never occur in training, else "seen"."""
    return "new" if hashed("pages", kind, *values[:2]) % 4 == 0 else "seen"


def draw_tasks(split, level, seed, kinds=None):
    """Yield tasks, one of each kind in turn, each combination once, until no new one of this split turns up.
    Validation and test pages of a kind alternate between `seen` and `new` pairs of choices."""
    rng = random.Random(f"{seed} {split} pages")
    kinds = list(kinds or page_kinds(level))
    drawn = {kind: set() for kind in kinds}
    failures = Counter()    # kind -> draws in a row without a new combination
    while kinds := [kind for kind in kinds if failures[kind] < 2000]:
        for kind in kinds:
            values = tuple(rng.choice(list(choice["values"])) for choice in page_kinds()[kind]["details"])
            half = "new" if split != "train" and len(drawn[kind]) % 2 else "seen"
            failures[kind] += 1
            fits = split_of(kind, values) == split and half_of_page(kind, values) == half
            if fits and can_be_seen(kind, values) and values not in drawn[kind]:
                failures[kind] = 0
                drawn[kind].add(values)
                yield task_of(kind, values)


def can_be_seen(kind, values):
    """Whether no part has the colour of what it is on."""
    named = dict(zip(page_kinds()[kind]["choices"], values))
    return all(named[part] != named[below] for part, below in page_kinds()[kind].get("differ", []))


def task_of(kind, values):
    """A task of a kind, without its id."""
    entry = page_kinds()[kind]
    request = entry["requests"][hashed("about", kind, *values) % len(entry["requests"])]
    return {
        "task_id": None,
        "domain": "frontend",
        "problem_description": request,
        "ground_truth": page_source(kind, values),
        "source": f"procedural:{kind}",
        "level": entry["level"],
        "half": half_of_page(kind, values),
        "details": dict(zip(entry["choices"], values)),
        "choices": {choice["name"]: choice["told"] for choice in entry["details"]},
    }


def with_calls(task, seed):
    """(task, None): a page needs no calls."""
    return task, None


def kind_and_values(task):
    """The kind and values that task_of made a task from."""
    kind = task["source"].removeprefix("procedural:")
    return kind, [task["details"][choice["name"]] for choice in page_kinds()[kind]["details"]]


def check_demonstrable(task):
    """The task, if the scripted designer can play it: its details must still make its page."""
    try:
        same = page_source(*kind_and_values(task)) == task["ground_truth"]
    except LookupError:
        same = False
    if not same:
        raise ValueError("demonstrations need page tasks with their details, as generate_tasks.py writes them")
    return task


# ---- The scripted designer and what it is told


def demonstrate(task, ask, waste, max_turns, rng):
    """One dialogue of the scripted designer, as (dialogue_history, answer).

    The designer begins with a random page. It corrects a choice that the human names with probability `ask`, and
    guesses otherwise. With probability `waste` it shows the page again unchanged. With probability waste/2 it answers
    too early; otherwise once no differences remain.
    """
    kind, right = kind_and_values(task)
    choices = page_kinds()[kind]["details"]
    values = [rng.choice(list(choice["values"])) for choice in choices]
    history, said = [{"role": "user", "content": task["problem_description"]}], set()
    for turn in range(max_turns):
        page = page_source(kind, values)
        last = NO_DIFFERENCE in said or turn == max_turns - 1
        if last or turn and rng.random() < waste / 2:
            history.append({"role": "assistant", "content": f"{ANSWER_MARK}\n{page}"})
            return history, page
        sentences = differences(kind, values, right)    # {sentence: number of its choice}
        told = next_sentences(list(sentences), said)
        history.append({"role": "assistant", "content": page})
        history.append({"role": "user", "content": "\n".join(told)})
        said |= set(told)
        if told == [NO_DIFFERENCE] or rng.random() < waste:
            continue
        for i in map(sentences.get, told):
            guess = rng.choice(list(choices[i]["values"]))
            values[i] = right[i] if rng.random() < ask else guess


def differences(kind, values, right):
    """{what the human says: number of the choice that is wrong}, in order: what page_words says of the two pages."""
    choices = page_kinds()[kind]["details"]
    pieces = {name: text for name, text in slots_of(kind, right).items() if re.search(r"(?<!\$)\$\w", text)}
    order = re.sub(r"\$(\w+)", lambda slot: pieces.get(slot[1], slot[0]), page_kinds()[kind]["page"])
    ranked = []
    for i, choice in enumerate(choices):
        if values[i] != right[i]:
            aspects = choice["told"][0]
            tier = TEXTS if "small" in aspects else TIERS[aspects[0]]
            ranked.append((tier, order.find(f"${choice['name']}"), sentence_of(kind, i, values, right), i))
    return {sentence: i for _, _, sentence, i in sorted(ranked)}


def sentence_of(kind, i, values, right):
    """What the human says about choice i of an agent's page with these values.

    `says` is what the part is called, with slots of the agent's page, or {value that is right: the whole sentence}.
    """
    choice = page_kinds()[kind]["details"][i]
    aspect, says = choice["told"][0][0], choice["says"]
    slots, want, have = slots_of(kind, values), right[i], values[i]
    if isinstance(says, dict):
        return fill(says[want], slots)
    if aspect == "place":
        want, have = SIDES[want], SIDES[have]
    if aspect == "words":
        want = quote(fill(choice["values"][want], {}), 80)
    if aspect == "size":
        want, have = (LETTERS[choice["values"][value]] for value in (want, have))
        want = letter_change(want, have)
    return Difference(fill(says, slots), aspect, want, have).sentence()
