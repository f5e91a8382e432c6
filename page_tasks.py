"""Practice pages: web pages with hidden choices (palette, order, layout, texts), for a model trained from scratch.

    python study/practice_pages.py --kinds shop,event,login,profile --train 1000 --val 0 --test 200
    python study/practice_pages.py --demonstrations 2000

A page has a kind, from pages.toml, and a value for each of the kind's choices. The request names little more than the
kind; the scripted human tells how the agent's page differs from the reference. A hash of the choices decides the split.
Another hash keeps a quarter of the pairs of the first two choices out of training: validation and test alternate
between `seen` and `new` pairs (key `half`).

`--demonstrations N` writes dialogues of a scripted, imperfect designer. It shows a page, is told the largest
differences, and corrects each with probability `--ask`.

Reads:  pages.toml; for demonstrations data/frontend/{split}.jsonl
Writes: data/frontend/{train,val,test}.jsonl or data/frontend/demonstrations.jsonl, as generate_tasks.py does
"""
import argparse
import random
import sys
import tomllib
from collections import Counter
from functools import lru_cache, partial
from pathlib import Path
from string import Template

from generate_tasks import (accept, add_common_flags, hashed, kinds_of, new_task, open_splits, run,  # noqa: E402
                            split_of, write_demonstrations, write_splits)
from records import ANSWER_MARK, die  # noqa: E402
from render import TAILWIND_TAG, Renderer
from page_words import compare_pages, is_about


@lru_cache
def page_kinds():
    """{kind: {"requests", "page", "details": its hidden choices}}, from pages.toml.

    A choice's `told` says how a wrong value shows when two pages are compared (render.is_about).
    """
    with open(Path(__file__).with_name("pages.toml"), "rb") as file:
        content = tomllib.load(file)
    for entry in content["kinds"].values():
        entry["details"] = []
        for name, (aspects, subject, values) in entry["choices"].items():
            if isinstance(values, str):    # names of tables
                tables, values = values.split(), {}
                for table in tables:
                    values |= content["values"][table]
            if isinstance(values, list):
                values = dict(zip(values, values))
            values = {value: text.format(**entry.get("pieces", {})) for value, text in values.items()}
            entry["details"].append({"name": name, "told": (aspects.split(), subject), "values": values})
    return content["kinds"]


def page_source(kind, values):
    """The page of a kind with these values in its slots. A value may itself contain slots, hence two rounds."""
    entry = page_kinds()[kind]
    slots = {choice["name"]: choice["values"][value] for choice, value in zip(entry["details"], values)}
    body = "".join(line.strip() for line in entry["page"].splitlines())
    for _ in range(2):
        body = Template(body).substitute(slots)
    return f"<!DOCTYPE html><html><head>{TAILWIND_TAG}</head>{body}</html>"


def half_of_page(kind, values):
    """"new" for the quarter of pairs of the first two choices that never occur in training, else "seen"."""
    return "new" if hashed("pages", kind, *values[:2]) % 4 == 0 else "seen"


def draw_pages(kinds, split, seed):
    """Yield (kind, values), one of each kind in turn, each combination once, until no new one of this split turns up.
    Validation and test pages of a kind alternate between `seen` and `new` pairs of choices."""
    rng = random.Random(f"{seed} {split} pages")
    drawn = {kind: set() for kind in kinds}
    failures = Counter()    # kind -> draws in a row without a new combination
    while kinds := [kind for kind in kinds if failures[kind] < 2000]:
        for kind in kinds:
            values = tuple(rng.choice(list(choice["values"])) for choice in page_kinds()[kind]["details"])
            half = "new" if split != "train" and len(drawn[kind]) % 2 else "seen"
            failures[kind] += 1
            fits = split_of(kind, values) == split and half_of_page(kind, values) == half
            if fits and values not in drawn[kind]:
                failures[kind] = 0
                drawn[kind].add(values)
                yield kind, values


def page_draft(kind, values):
    """A task of a kind, without its id."""
    entry = page_kinds()[kind]
    request = entry["requests"][hashed("about", kind, *values) % len(entry["requests"])]
    names = [choice["name"] for choice in entry["details"]]
    return new_task("frontend", request, page_source(kind, values), source=f"procedural:{kind}",
                    half=half_of_page(kind, values), details=dict(zip(names, values)),
                    choices={choice["name"]: choice["told"] for choice in entry["details"]})


def kind_and_values(task):
    """The kind and values that page_draft made a task from."""
    kind = task["source"].removeprefix("procedural:")
    return kind, [task["details"][choice["name"]] for choice in page_kinds()[kind]["details"]]


def demonstrate_page(layout, task, ask, waste, max_turns, rng):
    """One dialogue of the scripted designer, as (dialogue_history, answer). layout: a function, page -> its layout.

    The designer begins with a random page. It corrects a choice that the human names with probability `ask`, and
    guesses otherwise. With probability `waste` it shows the page again unchanged. With probability waste/2 it answers
    too early; otherwise once no differences remain.
    """
    kind, right = kind_and_values(task)
    choices = page_kinds()[kind]["details"]
    values = [rng.choice(list(choice["values"])) for choice in choices]
    history, done = [{"role": "user", "content": task["problem_description"]}], False
    for turn in range(max_turns):
        page = page_source(kind, values)
        if done or turn == max_turns - 1 or (turn and rng.random() < waste / 2):
            history.append({"role": "assistant", "content": f"{ANSWER_MARK}\n{page}"})
            return history, page
        differences = compare_pages(layout(page), layout(task["ground_truth"]))[:2]
        history.append({"role": "assistant", "content": page})
        history.append({"role": "user", "content": in_words(differences)})
        named = [i for i, choice in enumerate(choices)
                 if values[i] != right[i] and any(is_about(difference, choice["told"]) for difference in differences)]
        done = not named
        if rng.random() >= waste:
            for i in named:
                values[i] = right[i] if rng.random() < ask else rng.choice(list(choices[i]["values"]))


def check_page(task):
    """The task, if the scripted designer can play it: its details must still make a page."""
    try:
        page_source(*kind_and_values(task))
    except LookupError:
        raise ValueError("demonstrations need page tasks with their details, as study/practice_pages.py writes them")
    return task


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--domain", choices=["frontend"], default="frontend", help="(default frontend)")
    add_common_flags(parser)
    args = parser.parse_args()
    if args.demonstrations:
        try:
            renderer = Renderer(browsers=args.workers)
        except RuntimeError as problem:
            die(str(problem))
        with renderer:
            layout = lru_cache(maxsize=20000)(renderer.layout)
            write_demonstrations(args, check_page, partial(demonstrate_page, layout))
        return
    kinds = kinds_of(args, page_kinds())
    outs = open_splits(args, {"source": "procedural", "kinds": kinds, "seed": args.seed}, {})
    write_splits(outs, lambda split: (page_draft(*page) for page in draw_pages(kinds, split, args.seed)), accept)


if __name__ == "__main__":
    run(main)
