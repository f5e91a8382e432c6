"""The figures of the function tasks: are they varied, are they fair, what do the calls catch, what does asking take?

    python study/task_figures.py [TASKS]    (default 300)
"""
import ast
import json
import random
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import function_tasks as f  # noqa: E402
import function_words as w  # noqa: E402
import honest_programs  # noqa: E402
from evaluate import markdown  # noqa: E402
from listener import scripted_reply  # noqa: E402

QUESTIONS = 9    # of ten turns, the last is the answer

# What somebody may ask who does not read the request, or only a word of it.
BLIND = """What if two are tied?
How many do you want?
What should the result look like?
Should each entry show just the name or the figures too?
What should I return if nothing is left?
How should I round?
Which ones count?
What do you mean by that?
Are there any exceptions?
Is there anything else?
Does anything else matter?
What should I sort them by?
Which ones come first?
What goes between the entries?
By which field should I group them?
Where's the limit?
How high does it have to be?
Is the limit itself included?
Which values count?
Which people do you mean?
How do you work it out?
What exactly should be added up?
What do you mean by big?
What do you mean by late?
What do you mean by long?
What do you mean by easy?
What do you mean by urgent?
What do you mean by expensive?
What do you mean by awkward?
What do you mean by regulars?
How do you work out the cost?
How do you work out the value?
How do you work out the effort?
How do you work out the work?
How do you work out the income?
What do you mean by best?
What do you mean by worst?
What do you mean by most urgent?
What do you mean by most demanding?
What do you mean by group?""".splitlines()
KEYS = ["average", "line", "first", ""]    # one list for the requests with this word and none before it


# ---- Players


def tell(task, questions):
    """The details that the human has told after some questions."""
    dialogue, told = [{"role": "user", "content": task["problem_description"]}], set()
    for question in questions:
        dialogue.append({"role": "assistant", "content": question})
        reply, new = scripted_reply(task, dialogue)
        dialogue.append({"role": "user", "content": reply})
        told |= set(new)
    return told


def hidden(task):
    return {fact["detail"] for fact in task["facts"]}


def greedy(tasks, questions):
    """The nine questions, in their order, that tell the most on some tasks."""
    chosen = []
    for _ in range(QUESTIONS):
        left = [question for question in questions if question not in chosen]
        chosen.append(max(left, key=lambda question: sum(len(tell(task, [*chosen, question])) for task in tasks)))
    return chosen


def key_of(task):
    return next(key for key in KEYS if key in task["problem_description"].split("{")[0])


def phrasings():
    """[{aspect: templates}] of several askers who had not seen the human's code."""
    found = []
    for path in sorted((ROOT / "tests/phrases").glob("*.tsv")):
        lines = [line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines() if "\t" in line]
        found.append({aspect: [text for other, text in lines if other == aspect] for aspect, _ in lines})
    return found


def words_for(task, fact):
    """The placeholders of the phrasings."""
    words = w.common_words(task["plan"]) | w.reply_to(task["plan"], task["details"], fact["detail"])[1]
    term = words["G"] if fact["aspect"] == "group" else words["R"] if fact["aspect"] == "order" else words.get("T", "")
    nouns = words["nouns"]
    return words | {"function": "report", "term": term, "terms": words.get("P", nouns), "a_term": words.get("A", "one"),
                    "measure": words["N"], "field": words.get("f", "number"), "n": words.get("num")}


def oracle(task, phrases, rng, turns=QUESTIONS):
    """Asks for the next hidden detail in other people's words: the details told."""
    dialogue, told = [{"role": "user", "content": task["problem_description"]}], set()
    for _ in range(turns):
        left = [fact for fact in task["facts"] if fact["detail"] not in told and set(fact.get("needs", [])) <= told]
        if left:
            text = rng.choice(phrases.get(left[0]["aspect"]) or phrases["except"]).format_map(words_for(task, left[0]))
            dialogue.append({"role": "assistant", "content": text})
            reply, new = scripted_reply(task, dialogue)
            dialogue.append({"role": "user", "content": reply})
            told |= set(new)
    return told


# ---- Checks


def rows_of(task):
    return [ast.literal_eval(call.removeprefix("report(")[:-1]) for call in task["test_cases"].values()]


def passes(task, told):
    """Whether somebody passes all calls who was told some details and takes the likeliest value of all others."""
    guessed, _ = f.settle(task["plan"], f.likeliest, f.known_details(task, told))
    rows = rows_of(task)
    return f.results_of(f.write_code(task["plan"], guessed), rows) == f.results_of(task["ground_truth"], rows)


def is_honest(task):
    """Whether a program in another style, written from what the request and the facts say, passes all calls."""
    rows = rows_of(task)
    results = [json.dumps(honest_programs.report(task["plan"], task["details"], each), sort_keys=True) for each in rows]
    return results == f.results_of(task["ground_truth"], rows)


def fates(task, programs, rng):
    """How wrong programs fare: caught by a call, missed, or the same as the reference on 300 more inputs."""
    rows, plan, details = rows_of(task), task["plan"], task["details"]
    more = f.settled(plan, details, [f.telling_rows(plan, details, rng) for _ in range(300)])
    right, more_right = f.results_of(task["ground_truth"], rows), f.results_of(task["ground_truth"], more)
    found = Counter()
    for program in programs:
        caught = f.results_of(program, rows) != right
        found["caught" if caught else "missed" if f.results_of(program, more) != more_right else "never differ"] += 1
    return found


def finished(count, level="full", seed=1):
    """(tasks with their calls, number of drafts, CPU seconds)."""
    tasks, start = [], time.process_time()
    for drawn, draft in enumerate(f.draw_tasks("test", level, seed), 1):
        task, reason = f.with_calls(draft, seed)
        if not reason:
            tasks.append(task)
        if len(tasks) == count:
            return tasks, drawn, time.process_time() - start


def percent(part, whole):
    return f"{part / max(1, whole):.1%}"


def asking(tasks, level):
    """Rows of the table: what lists, a guesser and an oracle find."""
    rows = []

    def row(name, told):
        full = sum(hidden(task) <= some for task, some in zip(tasks, told))
        layers = sum(len(hidden(task) & some) for task, some in zip(tasks, told))
        won = sum(passes(task, some) for task, some in zip(tasks, told))
        layers = percent(layers, sum(len(task["facts"]) for task in tasks))
        rows.append((f"{level}: {name}", f"{percent(full, len(tasks))}; {layers}; {percent(won, len(tasks))}"))

    row("a guesser with the likeliest values", [set()] * len(tasks))
    best = greedy(tasks[:50], BLIND)
    row("a blind list, the best nine questions", [tell(task, best) for task in tasks])
    row(f"the same, all {len(BLIND)} questions and no limit", [tell(task, BLIND) for task in tasks])
    lists = {key: greedy([task for task in tasks if key_of(task) == key][:25], BLIND) for key in KEYS}
    row("four lists, by a word of the request, nine each", [tell(task, lists[key_of(task)]) for task in tasks])
    for number, phrases in enumerate(phrasings(), 1):
        told = [oracle(task, phrases, random.Random(i)) for i, task in enumerate(tasks)]
        row(f"an oracle that asks for the next detail, asker {number}", told)
    return rows


def main(count=300):
    drafts = list(islice(f.draw_tasks("train", "full", 0), 10_000))
    tasks, drawn, seconds = finished(count)
    plain, _, plain_seconds = finished(count, "plain")
    terms = [(theme, term) for theme in w.themes().values() for sort in theme.terms.values() for term in sort.values()]
    wrong, mutants, constant = Counter(), Counter(), []
    for task in tasks:
        rng = random.Random(task["ground_truth"])
        wrong += fates(task, f.with_one_wrong(task["plan"], task["details"]).values(), rng)
        mutants += fates(task, f.mutants(task["ground_truth"]), rng)
        results = Counter(f.results_of(task["ground_truth"], rows_of(task)))
        constant.append(max(results.values()) / results.total())
    layers = Counter(len(task["facts"]) for task in tasks)
    new = sum(w.is_new(theme, term.name, meaning) for theme, term in terms for meaning in term.meanings)
    print(markdown([
        ("", f"function tasks, {count} of each level"),
        ("themes; terms; meanings, of which new", f"{len(w.themes())}; {len(terms)}; "
         f"{sum(len(term.meanings) for _, term in terms)}, {new}"),
        ("wordings of replies, questions and requests", sum(map(len, w.all_wordings().values()))),
        ("distinct requests in 10,000 tasks", f"{len({task['problem_description'] for task in drafts}):,}"),
        ("the same without the sample row",
         f"{len({task['problem_description'].split('{')[0] for task in drafts}):,}"),
        ("layers", ", ".join(f"{n}: {percent(layers[n], count)}" for n in sorted(layers))),
        ("layers that need another", percent(sum(bool(fact.get("needs")) for task in tasks for fact in task["facts"]),
                                             sum(len(task["facts"]) for task in tasks))),
        ("drafts that become tasks; CPU a task, full and plain",
         f"{percent(count, drawn)}; {1000 * seconds / count:.0f} ms, {1000 * plain_seconds / count:.0f} ms"),
        ("honest programs in another style that pass all calls",
         f"{sum(map(is_honest, tasks + plain))} of {2 * count}"),
        ("wrong values of a detail that fail a call", dict(wrong)),
        ("mutants that fail a call", dict(mutants)),
        ("calls that the best constant answer passes", f"{sum(constant) / count:.1%}"),
        ("all told; layers told; passed, with guesses", ""),
        *asking(tasks, "full"),
        *asking(plain, "plain"),
    ]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
