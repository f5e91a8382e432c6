"""The figures of the function tasks: are they varied, are they fair, what do the calls catch, what does asking take?

    python study/task_figures.py 300 500
"""
import argparse
import ast
import json
import random
import sys
import time
from collections import ChainMap, Counter
from functools import cache
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import function_tasks as f  # noqa: E402
import function_words as w  # noqa: E402
import honest_programs  # noqa: E402
from evaluate import markdown  # noqa: E402
from records import run_script  # noqa: E402
from listener import Listener, Memory, replied  # noqa: E402

QUESTIONS = 9    # of ten turns, the last is the answer
TURNS = (4, 6, 9)    # questions of a run of five, seven or ten turns
LEARN = 100    # tasks from which the best blind lists are chosen

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


@cache
def person(text):
    return Listener(json.loads(text))


def ask(task, memory, question):
    """(details that the human tells for the first time, what it remembers after that)"""
    human = person(json.dumps(task))
    _, told, memory = replied(human, memory, question, "plain")
    return told, memory


def tell(task, questions):
    """The details that the human has told after some questions."""
    memory, told = Memory(), set()
    for question in questions:
        new, memory = ask(task, memory, question)
        told.update(new)
    return told


def hidden(task):
    return {fact["detail"] for fact in task["facts"]}


def greedy(tasks, questions):
    """The nine questions, in their order, that tell the most on some tasks."""
    people = [person(json.dumps(task)) for task in tasks]
    memories = [Memory()] * len(tasks)
    chosen = []
    for _ in range(QUESTIONS):
        told, after = {}, {}
        for question in questions:
            if question not in chosen:
                replies = [replied(human, memory, question, "plain") for human, memory in zip(people, memories)]
                told[question] = sum(len(new) for _, new, _ in replies)
                after[question] = [memory for _, _, memory in replies]
        best = max(told, key=told.get)
        chosen.append(best)
        memories = after[best]
    return chosen


def key_of(task):
    request = task["problem_description"].split("{")[0]
    return next(key for key in KEYS if key in request)


def phrasings():
    """[{aspect: templates}] of several askers who had not seen the human's code.

    An aspect for which an asker has no words is asked for in the words of another.
    """
    found = []
    for path in sorted((ROOT / "tests/phrases").glob("*.tsv")):
        templates = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            aspect, text = line.split("\t")
            templates.setdefault(aspect, []).append(text)
        found.append(templates)
    return [dict(ChainMap(templates, *found)) for templates in found]


def words_for(task, fact):
    """The placeholders of the phrasings."""
    words = w.common_words(task["plan"]) | {"label": "kind"}
    words |= w.reply_to(task["plan"], task["details"], fact["detail"])[1]
    term = words.get("T", "")
    if fact["aspect"] in ("group", "order"):
        term = words["G"] if fact["aspect"] == "group" else words["R"]
    measure = fact["term"] if fact["aspect"] in ("formula", "extra") else words["N"]
    return words | {"function": "report", "term": term, "terms": words.get("P", words["nouns"]),
                    "a_term": words.get("A", "one"), "measure": measure,
                    "field": words.get("f", "number"), "n": words.get("num"),
                    "value": " or ".join(fact["values"].get("word", []))}


def oracle(task, phrases, rng, lost=0.0):
    """Asks for the next hidden detail in other people's words: the details told after each question.

    lost: the share of its turns that it wastes, as models do.
    """
    memory, told, after = Memory(), set(), []
    for _ in range(QUESTIONS):
        ready = [fact for fact in task["facts"]
                 if fact["detail"] not in told and told.issuperset(fact.get("needs", []))]
        if ready and rng.random() >= lost:
            templates = phrases[ready[0]["aspect"]]
            new, memory = ask(task, memory, rng.choice(templates).format_map(words_for(task, ready[0])))
            told = told | set(new)
        after.append(told)
    return after


# ---- Checks


def rows_of(task):
    calls = task["test_cases"].values()
    return [ast.literal_eval(call.removeprefix("report(")[:-1]) for call in calls]


def guess(task, told):
    """The details of somebody who was told some and takes the likeliest value of all others."""
    return f.settle(task["plan"], f.likeliest, f.known_details(task, told))[0]


def passes(task, told):
    """Whether a program with such details passes all calls."""
    rows = rows_of(task)
    program = f.write_code(task["plan"], guess(task, told))
    return f.results_of(program, rows) == f.results_of(task["ground_truth"], rows)


def is_honest(task):
    """Whether a program in another style, written from what the request and the facts say, passes all calls."""
    rows = rows_of(task)
    results = [honest_programs.report(task["plan"], task["details"], each) for each in rows]
    return [json.dumps(result, sort_keys=True) for result in results] == f.results_of(task["ground_truth"], rows)


def fates(task, programs, rng):
    """How wrong programs fare: caught by a call, missed, or the same as the reference on 300 more inputs."""
    rows, plan, details = rows_of(task), task["plan"], task["details"]
    right = f.results_of(task["ground_truth"], rows)
    survivors = [program for program in programs if f.results_of(program, rows) == right]
    found = Counter(caught=len(programs) - len(survivors))
    if survivors:
        more = f.settled(plan, details, [f.telling_rows(plan, details, rng) for _ in range(300)])
        right = f.results_of(task["ground_truth"], more)
        for program in survivors:
            found["missed" if f.results_of(program, more) != right else "never differ"] += 1
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


# ---- The table


def percent(part, whole):
    return f"{part / max(1, whole):.1%}"


def vocabulary():
    themes = w.themes().values()
    terms = [(theme, term) for theme in themes for sort in theme.terms.values() for term in sort.values()]
    meanings = [(theme, term.name, meaning) for theme, term in terms for meaning in term.meanings]
    new = sum(w.is_new(*meaning) for meaning in meanings)
    drafts = list(islice(f.draw_tasks("train", "full", 0), 10_000))
    requests = {task["problem_description"].split("{")[0] for task in drafts}
    return [("themes; terms; meanings, of which new", f"{len(themes)}; {len(terms)}; {len(meanings)}, {new}"),
            ("wordings of replies, questions and requests", sum(map(len, w.all_wordings().values()))),
            ("distinct requests in 10,000 tasks", f"{len({task['problem_description'] for task in drafts}):,}"),
            ("the same without the sample row", f"{len(requests):,}")]


def layers(tasks):
    facts = [fact for task in tasks for fact in task["facts"]]
    sizes = Counter(len(task["facts"]) for task in tasks)
    return [("layers", ", ".join(f"{n}: {percent(sizes[n], len(tasks))}" for n in sorted(sizes))),
            ("layers that need another", percent(sum("needs" in fact for fact in facts), len(facts)))]


def calls(tasks):
    """What the ten calls catch."""
    wrong, mutants, constant = Counter(), Counter(), []
    for task in tasks:
        rng = random.Random(task["ground_truth"])
        wrong += fates(task, f.with_one_wrong(task["plan"], task["details"]).values(), rng)
        mutants += fates(task, f.mutants(task["ground_truth"]), rng)
        results = Counter(f.results_of(task["ground_truth"], rows_of(task)))
        constant.append(max(results.values()) / results.total())

    def shown(fates):
        return ", ".join(f"{name} {count:,}" for name, count in fates.items())

    return [("wrong values of a detail that fail a call", shown(wrong)),
            ("mutants that fail a call",
             f"{percent(mutants['caught'], mutants['caught'] + mutants['missed'])}: {shown(mutants)}"),
            ("calls that the best constant answer passes", f"{sum(constant) / len(constant):.1%}")]


def guessed(tasks):
    """How often the likeliest value is right, by aspect, if all else is known; the most guessable first."""
    right, count = Counter(), Counter()
    for task in tasks:
        for fact in task["facts"]:
            count[fact["aspect"]] += 1
            right[fact["aspect"]] += passes(task, hidden(task) - {fact["detail"]})
    shares = {aspect: right[aspect] / count[aspect] for aspect in count}
    order = sorted(shares, key=shares.get, reverse=True)
    return [("a guess of one detail is right", ", ".join(f"{aspect} {shares[aspect]:.0%}" for aspect in order))]


def asking(tasks, level):
    """What lists, a guesser and an oracle find."""
    rows, learn = [], tasks[:LEARN]

    def row(name, told):
        full = sum(hidden(task) <= some for task, some in zip(tasks, told))
        found = sum(len(hidden(task) & some) for task, some in zip(tasks, told))
        won = sum(passes(task, some) for task, some in zip(tasks, told))
        found = percent(found, sum(len(task["facts"]) for task in tasks))
        rows.append((f"{level}: {name}", f"{percent(full, len(tasks))}; {found}; {percent(won, len(tasks))}"))

    row("a guesser with the likeliest values", [set()] * len(tasks))
    best = greedy(learn, BLIND)
    row("a blind list, the best nine questions", [tell(task, best) for task in tasks])
    row(f"the same, all {len(BLIND)} questions and no limit", [tell(task, BLIND) for task in tasks])
    lists = {key: greedy([task for task in learn if key_of(task) == key], BLIND) for key in KEYS}
    row("four lists, by a word of the request, nine each", [tell(task, lists[key_of(task)]) for task in tasks])
    for number, phrases in enumerate(phrasings(), 1):
        for lost in (0, 0.1):
            told = [oracle(task, phrases, random.Random(i), lost) for i, task in enumerate(tasks)]
            for turns in TURNS:
                name = f"an oracle asks {turns} times, asker {number}" + f", {lost:.0%} of turns lost" * bool(lost)
                row(name, [after[turns - 1] for after in told])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("tasks", type=int, nargs="?", default=300, help="tasks of each level (default: 300)")
    parser.add_argument("honest", type=int, nargs="?", default=500, help="tasks for honest programs (default: 500)")
    args = parser.parse_args()
    count, honest = args.tasks, args.honest
    tasks, drawn, seconds = finished(max(count, honest))
    plain, _, plain_seconds = finished(count, "plain")
    passed = sum(map(is_honest, tasks[:honest]))
    cost = f"{1000 * seconds / len(tasks):.0f} ms, {1000 * plain_seconds / count:.0f} ms"
    drafted, tasks = percent(len(tasks), drawn), tasks[:count]
    print(markdown([
        ("", f"function tasks, {count} of each level"),
        *vocabulary(),
        *layers(tasks),
        ("drafts that become tasks; CPU a task, full and plain", f"{drafted}; {cost}"),
        ("honest programs in another style that pass all calls", f"{passed} of {honest}"),
        ("the same, plain level", f"{sum(map(is_honest, plain))} of {count}"),
        *calls(tasks),
        *guessed(tasks),
        ("all told; layers told; passed, with guesses", ""),
        *asking(tasks, "full"),
        *asking(plain, "plain"),
    ]))


if __name__ == "__main__":
    run_script(main)
