"""The grammar of function tasks: an everyday request with undefined words, their hidden meanings, and a reference.

Somebody keeps a list: orders, shifts, loans. They ask for a function of it in their own words ("our big orders, most
urgent first"). What the words mean is hidden, and differs from task to task. A task has

    plan      what is asked for: theme, shape of the result, the undefined words, and which optional details exist
    details   {detail: value}: what the words mean (`big.define`: "weight", `big.limit`: 20, `ties`: "earlier")
    facts     what the human can tell, in layers: that big is about the weight, then the limit, then an exception

`settle` walks over a plan and gives each detail a value. Who picks the values makes the difference: a random choice
draws a task, the likeliest value is what a guesser takes, and a wrong program has one value that is not the true one.

A hash of the reference decides the split. Another hash keeps a fifth of the meanings, and wordings of replies, out of
training: tasks for validation and test alternate between `seen` and `new` (key `half`).
Level `full` has up to nine layers and all wordings; `plain` has three to five, one wording and a few themes, for a
model that is trained from nothing. The vocabulary stands in themes.txt and wordings.txt.
"""
import itertools
import json
import random
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

from records import ANSWER_MARK, hashed, split_of

POOL = 60       # lists of records from which the ten calls are chosen
LAYERS = {  # level -> {number of facts: the share of such drafts that is kept}
    "full": {6: 0.4, 7: 1, 8: 0.6, 9: 0.2},
    "plain": {3: 1, 4: 1, 5: 1},
}
SHAPES = {  # level -> {what is asked for: its weight}
    "full": {"total": 3, "average": 3, "share": 2, "rows": 3, "who": 3, "line": 3, "table": 3},
    "plain": {"total": 3, "average": 2, "rows": 2, "table": 2},
}
PLAIN_THEMES = 4    # the first themes of the file
GROUP_WORDS = ["group", "category", "type", "kind"]
COUNTS = ["one", "two", "three", "four", "five"]
PEOPLE = "Anna Bruno Carla Dino Emma Felix Greta Hugo Ines Jonas".split()
NICE = [*range(1, 11), 12, 15, 18, *range(20, 50, 5), *range(50, 100, 10), *range(100, 200, 20), *range(200, 650, 50)]
WAYS = {  # how one speaks of a number: high, low, the most, the least
    "high": "high low highest lowest", "long": "long short longest shortest", "big": "big small biggest smallest",
    "many": "high low most fewest", "much": "great small most least",
}
HERE = Path(__file__).parent


# ---------------------------------------------------------------------------------------------------------------------
# The vocabulary

class Term(NamedTuple):
    """An undefined word. `name` is what its details are called by, `phrase` how the request has it."""
    name: str
    phrase: str
    names: list        # all words for it
    meanings: list
    one: str = ""      # of people: "a regular"
    extras: list = ()  # of a measure
    way: str = "high"


class Theme(NamedTuple):
    noun: str
    key: str           # key of a thing's name
    who: str           # key of a person
    speaker: str
    people: list
    words: dict        # key -> (phrase, values)
    numbers: dict      # key -> (lowest, highest, way)
    terms: dict        # kind, measure, first or best -> {name: Term}


@cache
def themes():
    """{noun: Theme} of themes.txt, whose head explains it."""
    found = {}
    for line in (HERE / "themes.txt").read_text(encoding="utf-8").splitlines():
        what, _, rest = line.partition(" ")
        parts = [part.strip() for part in rest.split("|")]
        if what == "theme":
            noun, key, who, speaker, *people = parts
            theme = found[noun] = Theme(noun, key, who, speaker, people[0].split() if people else PEOPLE, {}, {},
                                        {sort: {} for sort in ("kind", "measure", "first", "best")})
        elif what == "words":
            theme.words[parts[0]] = parts[1], parts[2].split()
        elif what == "numbers":
            for key, span, *way in (each.split() for each in rest.split(",")):
                theme.numbers[key] = *map(int, span.split("-")), *(way or ["high"])
        elif what in ("kind", "person", "measure", "first", "best"):
            term = read_term(what, parts)
            theme.terms["kind" if what == "person" else what][term.name] = term
    return found


def read_term(what, parts):
    if what == "person":
        phrase, one, names, meanings = parts
        plural_name, name = phrase.split()[-1], one.split(" ", 1)[1]
        return Term(name.replace(" ", "_"), phrase, [plural_name, name, *names.split()], meanings.split(), one)
    if what == "measure":
        (name, *way), names, clause, meanings, extras = parts[0].split(), *parts[1:]
        return Term(name, clause, [name, *names.split()], meanings.split(), "", extras.split(), *way)
    phrase, names, meanings = parts
    return Term(phrase.removeprefix("most "), phrase, [phrase, *names.split()], meanings.split())


@cache
def wordings(key, level, half="new"):
    """The wordings of something; at the full level the last of many replies only in new tasks."""
    first, *more = wordings_file()[key]
    if level == "plain":
        return [first]
    return more[:-1] if half == "seen" and len(more) > 3 else more


@cache
def wordings_file():
    lines = (HERE / "wordings.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split(":", 1) for line in lines if line and line[0] not in "#["]
    return {key: [text.strip() for text in texts.split("|")] for key, texts in pairs}


def is_new(theme, term, meaning):
    """Whether a meaning of a term is kept out of training."""
    return hashed("meaning", theme.noun, term, meaning) % 5 == 0


def plural(noun):
    return noun[:-1] + "ies" if re.search("[^aeiou]y$", noun) else noun + ("es" if re.search("(s|x|ch)$", noun) else "s")


def a(words):
    return ("an " if words[0] in "aeiou" else "a ") + words


def listed(words, last):
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def upper(text):
    return text[:1].upper() + text[1:]


def way_of(theme, f):
    """(high, low, most, least) of a number or measure."""
    way = theme.numbers[f][2] if f in theme.numbers else theme.terms["measure"][f].way
    return WAYS[way].split()


def is_many(theme, f):
    return f in theme.numbers and theme.numbers[f][2] == "many"


def the(theme, f):
    return f"the number of {f}" if is_many(theme, f) else f"the {f}"


def spoken(formula, level):
    """(price-discount)*quantity -> price minus discount, and all that times the quantity"""
    words = {"*": "times", "+": "plus", "-": "minus"}
    if level == "plain":
        return " ".join(words.get(part, f'"{part}"') for part in re.findall(r"\w+|[*+-]", formula))
    first, _, rest = formula.removeprefix("(").partition(")*")
    tokens = [words.get(part, part) for part in re.findall(r"\w+|[*+-]", first)]
    for i, token in enumerate(tokens):    # 2 times goals -> twice the goals
        if token.isdigit():
            tokens[i:i + 2] = ["twice the"] if token == "2" else [f"{token} times the"]
    return " ".join(tokens) + (f", and all that times the {rest}" if rest else "")


# ---------------------------------------------------------------------------------------------------------------------
# Plans and details

def parts_of(theme, meaning):
    """delay&status -> (whether low, number, join, label). number: a key, =measure or #who; label: a key of words."""
    low, number, join, label = re.fullmatch(r"(<?)([=#]?\w+)([&/]?)(\w*)", meaning).groups()
    if number in theme.words or number == theme.who:
        return False, "", "", number
    return bool(low), number, join, label


@cache
def round_numbers(noun, number, low):
    """Three to five round numbers that divide the things into those above and those below."""
    theme, rng = themes()[noun], random.Random(noun + number)
    rows = [{key: rng.randint(*span[:2]) for key, span in theme.numbers.items()} for _ in range(80)]
    numbers = sorted(eval(number, None, row) for row in rows)
    first, last = (numbers[12], numbers[48]) if low else (numbers[32], numbers[68])
    found = [n for n in NICE if first <= n <= last]
    found = found[::max(1, len(found) // 4)] if len(found) >= 3 else [max(1, first) + step for step in range(3)]
    return found[1:2] + found[:1] + found[2:]    # the likeliest is none of the two ends


def draw_plan(level, rng):
    """What is asked for, at random; None if its words would be confused."""
    noun = rng.choice(list(themes())[:PLAIN_THEMES if level == "plain" else None])
    theme = themes()[noun]
    shape = rng.choices(list(SHAPES[level]), SHAPES[level].values())[0]
    ranked = shape in ("rows", "who", "line")
    people = shape == "who" or shape == "line" and rng.random() < 0.5
    kinds = [name for name, term in theme.terms["kind"].items() if level == "full" or not term.one]
    twice = {"total": 0.6, "average": 0.5, "share": 0.4, "table": 0.4, "rows": 0.2, "who": 0.2}.get(shape, 0)
    plan = {"level": level, "theme": noun, "shape": shape, "people": people,
            "kinds": rng.sample(kinds, 2 if rng.random() < twice else 1), "mode": rng.choice(["not", "not", "only"]),
            "measure": None if ranked else rng.choice(list(theme.terms["measure"])),
            "order": rng.choice(list(theme.terms["best" if people else "first"])) if ranked else None,
            "group": rng.choice([word for word in GROUP_WORDS if word not in theme.words]) if shape == "table" else None}
    if any(theme.terms["kind"][name].one for name in plan["kinds"]):
        plan["mode"] = "only"
    maybe = {f"{plan['kinds'][0]}.edge": 0.5, "empty": 0.4 if shape == "total" else 1}
    if level == "full":
        maybe |= {f"{name}.except": share for name, share in zip(plan["kinds"], (0.5, 0.25))}
        maybe |= {f"{name}.extra": 0.4 for name in theme.terms["measure"]}
        maybe |= {f"{plan['order']}.direction": 0.2, "count": 0.3 if shape == "line" else 1,
                  "stated": 0.4, "format": 0.5, "more": 0.5}
    plan["open"] = [name for name, share in maybe.items() if rng.random() < share]
    words = [word for term in terms_of(plan) for word in term.names]
    return plan if len(words) == len(set(words)) else None


def terms_of(plan):
    """The undefined words of the request, as Terms."""
    terms = themes()[plan["theme"]].terms
    found = [terms["kind"][name] for name in plan["kinds"]]
    if plan["measure"]:
        found.append(terms["measure"][plan["measure"]])
    if plan["order"]:
        found.append(terms["best" if plan["people"] else "first"][plan["order"]])
    return found


def settle(plan, pick, known=()):
    """Give each detail of a plan a value: (details, choices), both by name, in the order in which they are told.

    pick(name, choices) picks one of a detail's choices, of which the first is the likeliest; known: details that have
    their value. Further details depend on a value: a label has words, a number has a limit.
    """
    theme, shape, may = themes()[plan["theme"]], plan["shape"], plan["open"]
    details, choices = {}, {}

    def put(name, options):
        choices[name] = options
        details[name] = known[name] if name in known else pick(name, options)
        return details[name]

    def put_measure(name):
        if f"{name}.formula" not in details:
            term = theme.terms["measure"][name]
            formulas = [each for each in term.meanings if plan["level"] == "full" or re.fullmatch(r"[a-z]+.[a-z]+", each)]
            formula = put(f"{name}.formula", formulas)
            if f"{name}.extra" in may:
                put(f"{name}.extra", [None, *extras_of(theme, term, formula)])

    def put_kind(name):
        term = theme.terms["kind"][name]
        low, number, _, label = parts_of(theme, put(f"{name}.define", meanings_of(plan, term)))
        if number.startswith("="):
            put_measure(number[1:])
        if number.startswith("#"):
            put(f"{name}.limit", [2, 3] if low else [2, 3, 4])
        elif number:
            formula = details[f"{number[1:]}.formula"] if number[0] == "=" else number
            limits = round_numbers(theme.noun, formula, low)
            average = ["average"] if plan["level"] == "full" and f"{name}.edge" not in may else []
            if put(f"{name}.limit", limits + average) != "average":
                put(f"{name}.edge", [True, False])
        if label:
            put(f"{name}.values", word_sets(theme, label, plan["level"]))
        if f"{name}.except" in may and not term.one:
            limit = details.get(f"{name}.limit")
            others = [n for n in limits if n != limit] if type(limit) is int else []
            found = put(f"{name}.except", [None, *exceptions(theme, label, others)])
            if found and found[0] == "limit" and type(limit) is not int:    # of another meaning
                details[f"{name}.except"] = None

    if plan["order"]:
        put_order(plan, theme, put, put_measure)
    else:
        put_measure(plan["measure"])
    for name in plan["kinds"]:
        put_kind(name)
    if plan["order"]:
        put_shown(plan, theme, details, put)
    if shape == "table":
        put("group", list(theme.words))
        if "more" in may:
            put("more", [None, ["drop", 20], ["drop", 30], ["drop", 50], ["all", None]])
    if shape in ("average", "share"):
        put("round", ["nearest", "down", "up"])
        put("empty", [0, -1, "none", 100])
    if shape == "total" and "empty" in may:
        put("empty", [0, -1, "none", "nothing"])
    return details, choices


def meanings_of(plan, term):
    """Its meanings; at the plain level those of one part."""
    return [each for each in term.meanings if plan["level"] == "full" or not re.search("[&/]", each)]


def extras_of(theme, term, formula):
    """What may also count for a measure: ["cap", n], [sign, key] or [sign, label, word, n]."""
    found = []
    for extra in term.extras:
        sign, key = extra[0], extra[1:]
        if extra == "cap":
            found += [["cap", n] for n in round_numbers(theme.noun, formula, False)[1:]]
        elif key in theme.words:
            found += [[sign, key, word, n] for word in theme.words[key][1] for n in ([2] if sign == "*" else [3, 5, 10])]
        elif key not in formula:
            found.append([sign, key])
    return found


def word_sets(theme, label, level):
    """Which words of a label may count, or which people."""
    if label == theme.who:
        return [theme.people[i:i + size] for size in (2, 3) for i in range(0, len(theme.people) - size + 1, size)]
    words = theme.words[label][1]
    sizes = (1,) if level == "plain" else (1, 2)
    return [list(some) for size in sizes for some in itertools.combinations(words, size)]


def exceptions(theme, label, limits):
    """[never, label, word], [always, ...] or [limit, label, word, another limit], of the other labels."""
    return [[kind, key, word, *more] for key, (_, words) in theme.words.items() if key != label for word in words
            for kind, *more in [("never",), ("always",), *(("limit", n) for n in limits)]]


def put_order(plan, theme, put, put_measure):
    """What an order goes by. Its direction goes without saying, unless it is open."""
    name = plan["order"]
    [term] = [term for term in terms_of(plan) if term.name == name]
    by = put(f"{name}.order", meanings_of(plan, term))
    f = by.lstrip("<=+>#")
    if f"{name}.direction" in plan["open"] and by[0] not in "#>":
        put(f"{name}.direction", ["lowest", "highest"] if by[0] == "<" else ["highest", "lowest"])
    if f in theme.terms["measure"]:
        put_measure(f)


def put_shown(plan, theme, details, put):
    """Ties, and what a list or a line shows."""
    by = details[f"{plan['order']}.order"].lstrip("<=+>#")
    if plan["people"]:
        put("ties", ["a-z", "z-a", *(["more"] if by else [])])
    elif plan["level"] == "plain":
        put("ties", ["earlier", "later", "a-z", "z-a"])
    else:
        put("ties", ["earlier", "later", "a-z", *(sign + f for f in theme.numbers if f != by for sign in "<>")])
    if "count" in plan["open"]:
        put("count", [3, 5, 2, 4])
    if plan["shape"] == "line":
        put("format", ["{n}", "{n}: {v}", "{n} ({v})", "{v} {n}", "{n} = {v}"])
        put("between", [", ", "; ", " / ", " - ", " + "])
        put("empty", ["none", "nothing", "all quiet", "-"])
    elif "format" in plan["open"]:
        put("format", ["names", "pairs"])


# ---------------------------------------------------------------------------------------------------------------------
# The reference, as a person would write it

def number_code(theme, details, number, o):
    """The code of a key or =measure of o: a function's call if the measure has an extra, else its formula."""
    if number[0] != "=":
        return f'{o}["{number}"]'
    if details.get(f"{number[1:]}.extra"):
        return f"{number[1:]}({o})"
    return re.sub(r"[a-z]\w*", lambda key: f'{o}["{key[0]}"]',
                  re.sub(r"([*+-])", r" \1 ", details[f"{number[1:]}.formula"]))


def measure_lines(theme, details, name, o):
    """The function of a measure that has an extra, line by line."""
    extra = details[f"{name}.extra"]
    formula = number_code(theme, details | {f"{name}.extra": None}, f"={name}", o)
    if extra[0] == "cap":
        return [f"def {name}({o}):", f"    return min({formula}, {extra[1]})"]
    if len(extra) == 2:
        return [f"def {name}({o}):", f'    return {formula} {extra[0]} {o}["{extra[1]}"]']
    return [f"def {name}({o}):", f"    result = {formula}", f'    if {o}["{extra[1]}"] == "{extra[2]}":',
            f"        result {extra[0]}= {extra[3]}", "    return result"]


def test_code(theme, details, name, o, limit=None):
    """The condition for something to be of a kind. limit: the code of its limit, if that is no number."""
    low, number, join, label = parts_of(theme, details[f"{name}.define"])
    rows, tests = plural(theme.noun), []
    if number:
        limit = limit or details[f"{name}.limit"]
        if limit == "average":
            limit = f"sum({number_code(theme, details, number, 'x')} for x in {rows}) / len({rows})"
        if number[0] == "#":
            tests.append(f'sum(x["{theme.who}"] == {o}["{theme.who}"] for x in {rows}) {"<=" if low else ">="} {limit}')
        else:
            sign = ("<" if low else ">") + "=" * details.get(f"{name}.edge", False)
            tests.append(f"{number_code(theme, details, number, o)} {sign} {limit}")
    if label:
        words = details[f"{name}.values"]
        tests.append(f'{o}["{label}"] ' + (f'== "{words[0]}"' if len(words) == 1 else f"in {json.dumps(words)}"))
    return (" or " if join == "/" else " and ").join(tests)


def kind_lines(theme, details, name, o):
    """The function of a kind that has an exception, line by line."""
    kind, key, word, *limit = details[f"{name}.except"]
    here = f'{o}["{key}"] == "{word}"'
    if kind == "limit":
        lines = [f"limit = {limit[0]} if {here} else {details[f'{name}.limit']}",
                 f"return {test_code(theme, details, name, o, 'limit')}"]
    else:
        lines = [f"if {here}:", f"    return {kind == 'always'}", f"return {test_code(theme, details, name, o)}"]
    return [f"def {name}({o}):", *("    " + line for line in lines)]


def write_code(plan, details):
    """The reference for some details."""
    theme, shape = themes()[plan["theme"]], plan["shape"]
    rows = plural(theme.noun)
    o = rows[0]
    lines = [line for name in theme.terms["measure"] if details.get(f"{name}.extra")
             for line in measure_lines(theme, details, name, o)]
    tests = []
    for name in plan["kinds"]:
        test = test_code(theme, details, name, o)
        if details.get(f"{name}.except"):
            lines += kind_lines(theme, details, name, o)
            test = f"{name}({o})"
        if tests and plan["mode"] == "not":
            test = f"not ({test})" if re.search(" (and|or|>|<|>=|<=|==|in) ", test) else f"not {test}"
        elif len(plan["kinds"]) > 1 and " or " in test:
            test = f"({test})"
        tests.append(test)
    lines.append(f"found = [{o} for {o} in {rows} if {' and '.join(tests)}]")
    if "empty" in details:
        lines += [f"if not {rows if shape == 'share' else 'found'}:", f"    return {json.dumps(details['empty'])}"]
    write = order_lines if plan["order"] else sum_lines
    lines += write(plan, theme, details, rows, o)
    return f"def report({rows}):\n" + "".join(f"    {line}\n" for line in lines)


def sum_lines(plan, theme, details, rows, o):
    """A total, an average, a share or a table."""
    value = number_code(theme, details, f"={plan['measure']}", o)
    total = f"sum({value} for {o} in found)"
    if plan["shape"] == "total":
        return [f"return {total}"]
    if plan["shape"] == "table":
        key, more = f'{o}["{details["group"]}"]', details.get("more")
        lines = ["table = {}", f"for {o} in found:", f"    table[{key}] = table.get({key}, 0) + {value}"]
        if more:
            lines += ['table["all"] = sum(table.values())' if more[0] == "all" else
                      f"table = {{key: n for key, n in table.items() if n >= {more[1]}}}"]
        return [*lines, "return table"]
    part, whole = f"part = {total}", "whole = len(found)"
    if plan["shape"] == "share":
        part, whole = f"part = 100 * {total}", f"whole = sum({value} for {o} in {rows})"
    return [part, whole, {"down": "return part // whole", "up": "return -(-part // whole)",
                          "nearest": "return (2 * part + whole) // (2 * whole)"}[details["round"]]]


def order_lines(plan, theme, details, rows, o):
    """A list of things or people in order, or a line of text."""
    by, ties = details[f"{plan['order']}.order"], details["ties"]
    f = by.lstrip("<=+>#")
    value = number_code(theme, details, f if f in theme.numbers else f"={f}", o) if f else "1"
    reverse = ", reverse=True" if is_down(plan, details) else ""
    first = f"[:{details['count']}]" if "count" in details else ""
    if plan["people"]:
        who = f'{o}["{theme.who}"]'
        step = f"max(totals.get({who}, 0), {value})" if by[0] == ">" else f"totals.get({who}, 0) + {value}"
        lines = ["totals = {}", f"for {o} in found:", f"    totals[{who}] = {step}",
                 f"names = sorted(totals{', reverse=True' if ties == 'z-a' else ''})"]
        if ties == "more":
            lines.append(f"names.sort(key=lambda name: sum({who} == name for {o} in found), reverse=True)")
        lines.append(f"names.sort(key=totals.get{reverse})")
        each, several, name, shown = "name", f"names{first}", "name", "totals[name]"
    else:
        back = ", reverse=True" if ties[0] == ">" or ties == "z-a" else ""
        key = theme.key if ties in ("a-z", "z-a") else ties[1:]
        lines = {"earlier": [], "later": ["found.reverse()"]}.get(
            ties, [f'found.sort(key=lambda {o}: {o}["{key}"]{back})'])
        lines = [*lines, f"found.sort(key=lambda {o}: {value}{reverse})"]
        each, several, name, shown = o, f"found{first}", f'{o}["{theme.key}"]', value
    form = details.get("format", "names")
    if plan["shape"] == "line":
        text = name if form == "{n}" else "f'" + form.format(n="{" + name + "}", v="{" + shown + "}") + "'"
        return [*lines, f"return {json.dumps(details['between'])}.join({text} for {each} in {several})"]
    return [*lines, f"return [{name if form == 'names' else f'[{name}, {shown}]'} for {each} in {several}]"]


def is_down(plan, details):
    """Whether the highest comes first."""
    natural = "lowest" if details[f"{plan['order']}.order"][0] == "<" else "highest"
    return details.get(f"{plan['order']}.direction", natural) == "highest"


# ---------------------------------------------------------------------------------------------------------------------
# What is said: the request, and the human's facts

def words_of(plan):
    """What the placeholders of wordings.txt stand for in every sentence about a plan."""
    theme = themes()[plan["theme"]]
    name = "name" if plan["people"] else theme.key
    things = theme.who if plan["people"] else theme.noun
    return {"noun": theme.noun, "nouns": plural(theme.noun), "who": theme.who, "whos": plural(theme.who), "name": name,
            "names": plural(name), "things": plural(things), "G": plan["group"]}


def kind_words(theme, term):
    nouns = plural(theme.noun)
    if term.one:
        return {"T": term.names[1], "P": f"{nouns} {term.phrase}", "A": term.one, "X": f"ones {term.phrase}"}
    return {"T": term.name, "P": f"{term.phrase} {nouns}", "A": a(f"{term.phrase} {theme.noun}"),
            "X": f"{term.phrase} ones"}


def number_words(theme, number, low=False):
    """How one speaks of a number or measure."""
    if not number:
        return {}
    high, little, most, least = way_of(theme, number)
    top = f"the {least if low else most} {number}"
    return {"f": number, "the": the(theme, number), "hi": high, "lo": little, "high": little if low else high,
            "top": top, "end": "lowest" if low else "highest",
            "total": f"total number of {number}" if is_many(theme, number) else f"total {number}"}


def phrase_words(theme, label, words):
    quoted = [f'"{word}"' for word in words]
    phrase = theme.words[label][0]
    phrase = phrase.replace('"{}"', listed(quoted, "or")).replace("{}", listed(words, "or"))
    return {"label": label, "phrase": phrase, "quoted": listed(quoted, "or")}


def facts_of(plan, details, choices, say):
    """What the human can tell, a layer each (the keys of a fact: see human.py).

    say(keys, words): a wording of something.
    """
    theme, base, facts = themes()[plan["theme"]], words_of(plan), []

    def add(detail, term, aspect, key, values, needs=None, question=None, **words):
        if detail in choices:
            words = base | words
            ask = [upper(text.format_map(words)) for text in wordings(f"ask {question or aspect}", plan["level"])]
            fact = {"detail": detail, "term": term, "aspect": aspect, "reply": say(key, words), "questions": ask,
                    "values": {kind: [str(each) for each in some] for kind, some in values.items() if some},
                    "needs": [needs] if needs else []}
            facts.append({name: value for name, value in fact.items() if value})

    def add_measure(name, needs=None):
        formula, extra = details[f"{name}.formula"], details.get(f"{name}.extra")
        if any(fact["detail"] == f"{name}.formula" for fact in facts):
            return
        words = {"N": name}
        add(f"{name}.formula", name, "formula", "hedged" if f"{name}.extra" in choices else "formula",
            {"field": re.findall(r"[a-z]+", formula), "op": re.findall(r"[*+-]", formula),
             "number": re.findall(r"\d+", formula)},
            None if name == plan["measure"] else needs, formula=spoken(formula, plan["level"]), **words)
        if not extra:
            return
        sign, *rest = extra
        if sign == "cap":
            key, values, more = "cap", {"number": rest}, {"num": rest[0]}
        elif len(rest) == 1:
            key, values = {"-": "minus", "+": "plus"}[sign], {"field": rest, "op": [sign]}
            more = number_words(theme, rest[0])
        else:
            key, values = {"*": "double", "+": "bonus"}[sign], {"word": [rest[1]], "number": [rest[2]]}
            more = phrase_words(theme, rest[0], [rest[1]]) | {"num": rest[2]}
        add(f"{name}.extra", name, "extra", key, values, f"{name}.formula", **words | more)

    def add_kind(name):
        low, number, join, label = parts_of(theme, details[f"{name}.define"])
        limit, edge = details.get(f"{name}.limit"), details.get(f"{name}.edge")
        f, number = number.lstrip("=#"), number[:1]
        words = kind_words(theme, theme.terms["kind"][name])
        define, times, end = f"{name}.define", number == "#", "low" if low else "high"
        words |= {"label": label} | (number_words(theme, f, low) if f and not times else {})
        key = "people" if label == theme.who else "label" if label and not join else \
            ("seldom" if low else "often") if times else end + {"&": " and", "/": " or", "": ""}[join]
        text = [key, "hedge"] if f"{name}.except" in choices else [key]
        add(define, name, "define", text, {"field": [each for each in (f, label) if each], "end": [end] if f else [],
                                           "join": {"&": ["and"], "/": ["or"]}.get(join)}, **words)
        if number == "=":
            add_measure(f, define)
        apart = f"{name}.edge" in plan["open"] and f"{name}.edge" in details
        if limit:
            n = f"{limit} {f}" if f in theme.numbers and is_many(theme, f) else limit
            key = f"times {end}" if times else f"average {end}" if limit == "average" else "line" if apart else \
                {(False, False): "over", (False, True): "least", (True, False): "under", (True, True): "most"}[low, edge]
            sure = [] if key == "line" or limit == "average" else ["in" if times or edge else "out"]
            add(f"{name}.limit", name, "limit", key, {"number": [limit] if limit != "average" else [], "edge": sure},
                define, "times" if times else "limit", n=n, num=limit, **words)
        if apart:
            add(f"{name}.edge", name, "edge", "in" if edge else "out",
                {"number": [limit], "edge": ["in" if edge else "out"]}, f"{name}.limit", num=limit, **words)
        if label:
            chosen, people = details[f"{name}.values"], label == theme.who
            more = {"list": listed(chosen, "and")} if people else phrase_words(theme, label, chosen)
            aspect = "names" if people else "values"
            add(f"{name}.values", name, aspect, aspect, {"word": chosen}, define, **words | more)
        if exception := details.get(f"{name}.except"):
            kind, key, word, *other = exception
            n = f"{other[0]} {f}" if other and f in theme.numbers and is_many(theme, f) else (other or [""])[0]
            add(f"{name}.except", name, "except", "other" if other else kind, {"word": [word], "number": other},
                define, n=n, num=n, **words | phrase_words(theme, key, [word]))

    if plan["measure"]:
        add_measure(plan["measure"])
    if plan["order"]:
        add_order(plan, theme, details, add, add_measure)
    for name in plan["kinds"]:
        add_kind(name)
    if plan["order"]:
        add_shown(plan, theme, details, add)
    if plan["shape"] == "table":
        more = details.get("more") or ["", None]
        label = details["group"]
        add("group", plan["group"], "group", "group hedged" if more[0] else "group", {"field": [label]}, label=label)
        if more[0]:
            add("more", plan["group"], "more", more[0], {"number": [more[1]] if more[1] else [], "word": [more[0]]},
                "group", num=more[1])
    if "round" in details:
        add("round", None, "round", details["round"], {"way": [details["round"]]})
    if "empty" in details:
        value = details["empty"]
        add("empty", None, "empty", "empty", {"word" if type(value) is str else "number": [value]},
            value=json.dumps(value))
    return facts


def add_order(plan, theme, details, add, add_measure):
    name, by = plan["order"], details[f"{plan['order']}.order"]
    f, low, apart = by.lstrip("<=+>#"), not is_down(plan, details), f"{name}.direction" in details
    [phrase] = [term.phrase for term in terms_of(plan) if term.name == name]
    way = {"+": "sum", ">": "max", "#": "count"}.get(by.lstrip("<")[0], "by")
    words = {"R": phrase} | number_words(theme, f, low)
    key = way + " apart" * apart
    add(f"{name}.order", name, "order", key, {"field": [f] if f else [], "way": [way] if way != "by" else [],
                                              "end": [] if apart else ["low" if low else "high"]}, **words)
    add(f"{name}.direction", name, "direction", "lowest" if low else "highest", {"end": ["low" if low else "high"]},
        f"{name}.order", **words)
    if f in theme.terms["measure"]:
        add_measure(f, f"{name}.order")


def add_shown(plan, theme, details, add):
    by, ties, form = details[f"{plan['order']}.order"].lstrip("<"), details["ties"], details.get("format")
    f = by.lstrip("=+>#")
    if ties[0] in "<>":
        add("ties", None, "ties", "field", {"field": [ties[1:]], "end": ["low" if ties[0] == "<" else "high"]},
            **number_words(theme, ties[1:], ties[0] == "<"))
    else:
        add("ties", None, "ties", ties, {"ties": [ties]})
    if "count" in details and "stated" not in plan["open"]:
        add("count", None, "count", "few", {"number": [details["count"]]}, **count_words(details))
    if form:
        sample = theme.people[0] if plan["people"] else "A12"
        example = f'["{sample}", 40]' if form == "pairs" else '"' + form.format(n=sample, v=40) + '"'
        figure = f"the {number_words(theme, f)['total']}" if by[0] == "+" else number_words(theme, f)["top"] \
            if by[0] == ">" else the(theme, f) if f else f"the number of those {plural(theme.noun)}"
        add("format", None, "format", {"names": "bare", "{n}": "bare", "pairs": "pairs"}.get(form, "entries"),
            {"form": [form]}, example=example, figure=figure)
    if "between" in details:
        mark = details["between"]
        add("between", None, "between", "between", {"mark": [mark.strip()]},
            mark="a comma and a space" if mark == ", " else f'"{mark}"')


def count_words(details):
    k = COUNTS[details["count"] - 1]
    return {"k": k, "K": upper(k)}


def write_request(plan, details, say, rng):
    theme, level = themes()[plan["theme"]], plan["level"]
    words, [first, *others] = words_of(plan), [kind_words(theme, theme.terms["kind"][name]) for name in plan["kinds"]]
    our = "the " if theme.terms["kind"][plan["kinds"][0]].one else rng.choice(["our ", "the "])
    words |= first | {"our P": our + first["P"], "N": plan["measure"]}
    key = plan["shape"]
    if plan["measure"]:
        words["S"] = theme.terms["measure"][plan["measure"]].phrase.format(words["our P"])
    else:
        words["R"] = terms_of(plan)[-1].phrase
        key += (" who" if plan["people"] else " rows") if key == "line" else ""
    if "count" in details and (plan["shape"] == "line" or "stated" in plan["open"]):
        key += " k"
        words |= count_words(details)
    sentences = [say(key, words)]
    for more in others:
        sentences.append(say(plan["mode"], words | more))
    if plan["shape"] in ("rows", "who") and "format" not in details:
        sentences += [say("stated", words)] if level == "full" else []
    if level == "full":
        if rng.random() < 0.5:
            sentences.insert(0, theme.speaker)
        row = json.dumps(draw_rows(theme, 1, rng)[0])
        sentences.append(say("tail", words | {"row": row}))
    return " ".join(sentences)


def sure_facts(plan, details, say):
    """[{aspect, reply}] of what goes without saying, or stands in the request."""
    shape, found, words = plan["shape"], {}, words_of(plan)
    if "empty" not in details and not details.get("more"):
        found["empty"] = "sure empty " + {"total": "total", "table": "table"}.get(shape, "list")
    if plan["order"] and "count" not in details:
        found["count"] = "sure count all"
    elif "count" in details and "stated" in plan["open"]:
        found["count"] = "sure count"
        words |= count_words(details)
    if "format" not in details:
        found["format"] = "sure format" + ("" if plan["order"] else " table" if shape == "table" else " number")
    return [{"aspect": aspect, "reply": say(key, words)} for aspect, key in found.items()]


def human_terms(plan, details):
    """{undefined word: its other forms}, of the request and of what the human may bring up."""
    theme = themes()[plan["theme"]]
    found = {term.name: {"names": term.names} for term in terms_of(plan)}
    for name, term in theme.terms["measure"].items():
        if f"{name}.formula" in details:
            found[name] = {"names": term.names}
    if plan["group"]:
        found[plan["group"]] = {"names": [plan["group"], "table"]}
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Ten calls that tell the reference from near misses

def draw_rows(theme, size, rng):
    people = rng.sample(theme.people, rng.choice([2, 3, 4]))
    codes = zip(rng.choices("ABCDEFGH", k=size), rng.sample(range(10, 100), size))
    return [{theme.key: f"{letter}{number}", theme.who: rng.choice(people)}
            | {key: rng.choice(words) for key, (_, words) in theme.words.items()}
            | {key: rng.randint(*span[:2]) for key, span in theme.numbers.items()} for letter, number in codes]


def telling_rows(plan, details, rng):
    """Rows rich in edge cases: at a limit, with a word that matters, tied with others, none at all."""
    theme = themes()[plan["theme"]]
    matter = set(re.findall(r"\w+", json.dumps([value for name, value in details.items()
                                                if name.endswith((".values", ".except", ".extra"))])))
    limits = [limit for name in plan["kinds"] for limit in limits_of(theme, details, name)]
    rows = []
    for row in draw_rows(theme, rng.choice([1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9]), rng):
        for key, words in [*((key, words) for key, (_, words) in theme.words.items()), (theme.who, theme.people)]:
            likely = [word for word in words if word in matter]
            if likely and rng.random() < 0.5:
                row[key] = rng.choice(likely)
        if rows and rng.random() < 0.5:    # tied with another row
            row |= {key: value for key, value in rng.choice(rows).items() if key in theme.numbers and rng.random() < 0.9}
        if limits and rng.random() < 0.6:
            row |= at_limit(theme, *rng.choice(limits), rng)
        rows.append(row)
    return rows


def limits_of(theme, details, name):
    """[(a formula of keys, its limit)] of a kind of thing."""
    _, number, _, _ = parts_of(theme, details[f"{name}.define"])
    if not number or number[0] == "#" or details[f"{name}.limit"] == "average":
        return []
    formula = details[f"{number[1:]}.formula"] if number[0] == "=" else number
    exception = details.get(f"{name}.except") or []
    return [(formula, limit) for limit in [details[f"{name}.limit"], *exception[3:]]]


def at_limit(theme, formula, limit, rng):
    """Values of a formula's keys that bring it to a limit, or beside it."""
    target, best = limit + rng.choice([0, 0, 0, 0, 1, -1]), None
    if formula in theme.numbers:
        return {formula: target}
    keys = re.findall("[a-z]+", formula)
    for _ in range(12):
        row = {key: rng.randint(*theme.numbers[key][:2]) for key in keys}
        off = abs(eval(compiled(formula), None, row) - target)
        if best is None or off < best[0]:
            best = off, row
    return best[1]


@cache
def compiled(formula):
    return compile(formula, "formula", "eval")


SWAPS = {  # pattern -> what may replace it: a comparison, an operator, a function, a truth value
    r"(?<= )(>=|<=|==|!=|>|<)(?= )": [">", ">=", "<", "<=", "==", "!="],
    r"(?<=[^\"] )(\+|\*|//|-)(?= )": ["+", "-", "*"],    # not in the text " - "
    r"\b(min|max|sum)\b": ["min", "max", "sum"],
    r"\b(and|or)\b": ["and", "or"],
    r"True|False": ["True", "False"],
}


def mutants(code):
    """Programs that differ from `code` in one place: a comparison, a number, an operator, a function, a line."""
    programs = []
    for pattern, others in SWAPS.items():
        for match in re.finditer(pattern, code):
            programs += [code[:match.start()] + other + code[match.end():] for other in others]
    for match in re.finditer(r"\b\d+", code):
        programs += [f"{code[:match.start()]}{int(match[0]) + step}{code[match.end():]}" for step in (-1, 1)]
    for statement in re.findall(r"^    \S.*\n(?:     .*\n)*", code, re.M):
        programs.append(code.replace(statement, "", 1))
    return [mutant for mutant in dict.fromkeys(programs) if mutant != code]


def likeliest(name, choices):
    return choices[0]


def with_one_wrong(plan, details):
    """{(detail, wrong value): the program that is right except for this detail}. What it brings along is likely."""
    programs = {}
    _, choices = settle(plan, likeliest, details)
    for name, options in choices.items():
        for wrong in options:
            if wrong != details[name] and (not name.endswith((".except", ".extra")) or near(wrong, details[name])):
                changed, _ = settle(plan, likeliest, details | {name: wrong})
                programs[name, json.dumps(wrong)] = write_code(plan, changed)
    return programs


def near(one, other):
    """Whether two exceptions or extras differ in one part, or one of them is none at all."""
    return one is None or len(one) != len(other) or sum(a != b for a, b in zip(one, other)) == 1


def results_of(code, inputs):
    """What a program from our own templates returns for each list of rows, as text, or its exception's name."""
    namespace, results = {}, []
    try:
        exec(compile(code, "task", "exec"), namespace)
    except SyntaxError:    # of a mutant without its only statement
        return ["SyntaxError"] * len(inputs)
    for rows in inputs:
        try:
            results.append(json.dumps(namespace["report"](list(rows)), sort_keys=True))
        except Exception as error:    # a mutant may do anything
            results.append(type(error).__name__)
    return results


def settled(plan, details, inputs, rng):
    """The inputs whose result the facts settle: nothing is divided by zero, and no tie goes beyond the tie rule."""
    code = write_code(plan, details)
    right = same = results_of(code, inputs)
    if plan["order"] and details["ties"] not in ("earlier", "later"):
        same = results_of(code, [rng.sample(rows, len(rows)) for rows in inputs])
        again = results_of(code, [rows[::-1] for rows in inputs])
        same = [one if one == other else None for one, other in zip(same, again)]
    return [rows for rows, result, other in zip(inputs, right, same)
            if result == other and not result[0].isupper() and result != '{"all": 0}']


def choose_calls(plan, details, rng):
    """(ten calls, None), or (None, why there are none). Together the calls fail every wrong value and every mutant.

    They are a greedy cover of the wrong programs by a pool of random inputs. Mutants that no input tells from the
    reference are left out, but each wrong value needs an input that fails. The results of the calls differ, so that a
    constant answer passes only one of them. Two results may be equal if the pool has no ten different ones.
    """
    inputs = settled(plan, details, [[], *(telling_rows(plan, details, rng) for _ in range(POOL))], rng)
    code = write_code(plan, details)
    right = results_of(code, inputs)
    exposed_by = {}    # wrong program -> the inputs that expose it
    for name, program in with_one_wrong(plan, details).items():
        exposed_by[name] = {i for i, result in enumerate(results_of(program, inputs)) if result != right[i]}
        if not exposed_by[name]:
            return None, f"no input exposes a wrong value of {name[0].partition('.')[2] or name[0]}"
    for mutant in mutants(code):
        exposed_by[mutant] = {i for i, result in enumerate(results_of(mutant, inputs)) if result != right[i]}
    chosen, times = [], Counter()    # times: result -> how many chosen inputs have it
    left = {name for name, exposing in exposed_by.items() if exposing}
    while len(chosen) < 10:
        exposes = Counter(i for name in left for i in exposed_by[name])    # input -> how many wrong programs it exposes
        free = [i for i in range(len(inputs)) if i not in chosen]
        if not free:
            return None, "too few inputs are settled"
        best = min(free, key=lambda i: (times[right[i]], -exposes[i]))
        chosen.append(best)
        times[right[best]] += 1
        left = {name for name in left if best not in exposed_by[name]}
    if len(times) < 9:
        return None, "too few different results"
    if left:
        return None, "ten calls are too few"
    return [f"report({inputs[i]!r})" for i in sorted(chosen)], None


# ---------------------------------------------------------------------------------------------------------------------
# Tasks, and the dialogues of a scripted, imperfect agent

def draw_task(split, half, level, rng):
    """A task without its calls, or None if the draw belongs to another split or half, or has too few or many layers."""
    plan = draw_plan(level, rng)
    if not plan:
        return None
    theme, novel = themes()[plan["theme"]], []

    def pick(name, options):
        term, _, aspect = name.partition(".")
        if aspect in ("define", "formula", "order"):
            known = [each for each in options if half == "new" or not is_new(theme, term, each)]
            value = rng.choice(known or options)
            novel.append(is_new(theme, term, value))
            return value
        if options[0] is None:
            return rng.choice(options[1:]) if len(options) > 1 else None
        return rng.choice([*options, *options[:1] * (len(options) // 2)])

    details, choices = settle(plan, pick)
    reference = write_code(plan, details)
    if split_of(reference) != split or any(novel) != (half == "new"):
        return None

    def say(keys, words):
        text = ""
        for key in [keys] if isinstance(keys, str) else keys:    # a further key is put around the text
            first, _, rest = text.partition(" ")
            inner = text if first.startswith(('"', "I'")) or first == "I" else text[:1].lower() + text[1:]
            text = upper(rng.choice(wordings(key, level, half)).format_map(words | {"text": inner}))
        return text

    facts = facts_of(plan, details, choices, say)
    if rng.random() >= LAYERS[level].get(len(facts), 0):
        return None
    request = write_request(plan, details, say, rng)
    return {"task_id": None, "domain": "backend", "problem_description": request, "ground_truth": reference,
            "test_cases": None, "source": f"procedural:{plan['shape']}", "half": half, "level": level, "plan": plan,
            "details": details, "terms": human_terms(plan, details), "facts": facts,
            "sure": sure_facts(plan, details, say)}


def draw_tasks(split, level, seed):
    """Yield tasks of a split without their calls: independent draws, each reference once, until no new one turns up.
    Validation and test alternate between `seen` and `new` meanings."""
    halves = ["seen"] if split == "train" else ["seen", "new"]
    rngs = {half: random.Random(f"{seed} {split} {half}") for half in halves}
    references = set()
    for half in itertools.cycle(halves):
        for _ in range(20_000):    # give up after so many draws without a new task
            task = draw_task(split, half, level, rngs[half])
            if task and task["ground_truth"] not in references:
                break
        else:
            return
        references.add(task["ground_truth"])
        yield task


def with_calls(task, seed):
    """(task with its calls, None), or (task, why there are none)."""
    rng = random.Random(f"{seed} {task['ground_truth']}")
    calls, reason = choose_calls(task["plan"], task["details"], rng)
    if not reason:
        task["test_cases"] = {str(number): call for number, call in enumerate(calls, 1)}
    return task, reason


def known_details(task, told):
    """The details that are settled once some are told: they themselves, and those without a fact of their own.

    Whether a limit counts is then told with the limit, and a stated number of entries stands in the request.
    """
    hidden = {fact["detail"] for fact in task["facts"]}
    return {name: value for name, value in task["details"].items() if name in told or
            name not in hidden and (not name.endswith(".edge") or name.replace(".edge", ".limit") in told)}


LITTLE_USE = ["round", "ties", "between", "count", "format", "empty", "direction"]    # questions that some tasks have


def demonstrate(task, ask, waste, max_turns, rng):
    """One dialogue of the scripted agent with the scripted human, as (dialogue_history, answer).

    It asks for some of the facts, each after those that it needs. Before each turn it may waste some: it repeats a
    question, or asks for something that the task does not have. What it was not told, it guesses.
    """
    plan, level = task["plan"], task["level"]
    todo = []
    for fact in task["facts"]:
        if rng.random() < ask and all(any(need == other["detail"] for other in todo) for need in fact.get("needs", [])):
            todo.append(fact)
    todo = todo[:max_turns - 1]
    history, asked, told = [{"role": "user", "content": task["problem_description"]}], [], set()
    idle = [aspect for aspect in LITTLE_USE if all(fact["aspect"] != aspect for fact in task["facts"])]

    def say(question):
        history.append({"role": "assistant", "content": question})
        reply, new = scripted_reply(task, history)
        history.append({"role": "user", "content": reply, "told": new})
        asked.append(question)
        told.update(new)

    spare = max_turns - 1 - len(todo)
    while True:
        while spare and rng.random() < waste:
            spare -= 1
            if asked and rng.random() < 0.5:
                say(rng.choice(asked))
            else:
                aspect = rng.choice(idle)
                say(rng.choice(wordings(f"ask {aspect}", level)).format_map(words_of(plan) | {"f": "number"}))
        if not todo:
            break
        missing = {fact["detail"] for fact in todo}
        ready = [fact for fact in todo if not missing & set(fact.get("needs", []))]
        fact = ready[0] if level == "plain" else rng.choice(ready)
        todo.remove(fact)
        say(rng.choice(fact["questions"]))

    def guess(name, options):
        return None if options[0] is None else rng.choice(options)

    guessed, _ = settle(plan, guess, known_details(task, told))
    answer = write_code(plan, guessed).strip()
    return [*history, {"role": "assistant", "content": f"{ANSWER_MARK}\n{answer}"}], answer
