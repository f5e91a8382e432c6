"""The grammar of function tasks: an everyday request with undefined words, their hidden meanings, and a reference.

Somebody keeps a list: of orders, shifts, loans. They ask for a function of it in their own words ("our big orders, the
most urgent first"). What the words mean is hidden, and differs from task to task. A task has

    plan      what is asked for: theme, shape of the result, the undefined words, and which optional details there are
    details   {detail: value}: what the words mean (big.define: "weight", big.limit: 20, ties: "earlier")
    facts     what the human can tell, in layers: that big is about the weight, then the limit, then an exception

`settle` walks over a plan and gives each detail a value. Who picks the values makes the difference: a random choice
draws a task, the likeliest values are a guess, and a wrong program has one value that is not the true one.

A hash of the reference decides the split. Another hash keeps a fifth of the meanings (at the plain level, a quarter of
their combinations) out of training, and the last wording of many replies: tasks for validation and test alternate
between `seen` and `new` (key `half`). Level `full` has seven to nine layers and all wordings; `plain` has three to five,
one wording and a few themes, for a model that is trained from nothing. The vocabulary stands in themes.toml and
wordings.toml, which say how to add to it.
"""
import itertools
import json
import random
import re
from collections import Counter
from functools import cache

from function_words import (
    EMPTY, FORMS, ORDERED, common_words, facts_of, human_terms, is_new, parts_of, plural, sure_facts, terms_of, themes,
    wordings, write_request)
from listener import scripted_reply
from records import ANSWER_MARK, hashed, split_of

POOL = 60       # lists of things from which the ten calls are chosen
LAYERS = {  # level -> {number of facts: the share of such drafts that is kept}
    "full": {7: 0.5, 8: 0.75, 9: 1},    # an agent has nine questions
    "plain": {3: 1, 4: 1, 5: 1},
}
SHAPES = {  # level -> {what is asked for: its weight}
    "full": {"total": 3, "average": 3, "share": 2, "table": 3, "rows": 3, "who": 3, "line": 4},
    "plain": {"total": 3, "average": 2, "table": 2, "rows": 2},
}
PLAIN_THEMES = 4    # the first themes of the file
GROUP_WORDS = ["group", "category", "type", "kind"]
NICE = [*range(1, 11), 12, 15, 18, *range(20, 50, 5), *range(50, 100, 10), *range(100, 200, 20), *range(200, 650, 50)]


# ---- Plans and details

OPTIONAL = {  # detail -> how often a task of the full level has it
    "edge": 0.5, "except": 0.5, "last except": 0.25, "stated": 0.4, "format": 0.5, "count": 1, "extra": 0.4, "empty": 1,
}
TWICE = {"total": 0.6, "average": 0.5, "share": 0.4, "table": 0.4, "line": 0}    # shape -> how often it has two kinds


def draw_plan(level, rng):
    """What is asked for, at random; None if its words would be confused."""
    theme = themes()[rng.choice(list(themes())[:PLAIN_THEMES if level == "plain" else None])]
    [shape] = rng.choices(list(SHAPES[level]), SHAPES[level].values())
    people = shape == "who" or shape == "line" and rng.random() < 0.5
    known = theme.terms["kind"]

    def usable(terms):
        return [name for name, term in terms.items() if len(meanings_of(level, term)) > 1]

    twice = rng.random() < TWICE.get(shape, 0.2)
    kinds = rng.sample([name for name in usable(known) if level == "full" or not known[name].one], 1 + twice)
    sort = "measure" if shape not in ORDERED else "best" if people else "first"
    maybe = {"empty": 0.4}
    if level == "full":
        often = OPTIONAL | {"total": {"empty": 0.4}, "line": {"count": 0.3}}.get(shape, {})
        maybe = {f"{kinds[0]}.edge": often["edge"], f"{kinds[0]}.except": often["except"]}
        maybe |= {f"{kinds[-1]}.except": often["last except"]} if twice else {}
        maybe |= {name: often[name] for name in ("stated", "format", "empty", "count")}
        maybe |= {f"{name}.extra": often["extra"] for name in theme.terms["measure"]}
    plan = {
        "level": level,
        "theme": theme.noun,
        "shape": shape,
        "people": people,
        "kinds": kinds,
        "sort": sort,
        "goal": rng.choice(usable(theme.terms[sort])),
        "group": rng.choice(GROUP_WORDS),
        "mode": "only" if any(known[name].one for name in kinds) else rng.choice(["not", "not", "only"]),
        "open": [name for name, share in maybe.items() if rng.random() < share],
    }
    words = [word for term in terms_of(plan) for word in term.names]
    clear = len(words) == len(set(words)) and plan["group"] not in theme.words
    return plan if clear else None


def settle(plan, pick, known=()):
    """Give each detail of a plan a value: (details, choices), both by name, in the order in which they are told.

    pick(name, choices) picks one of a detail's choices, of which the first is the likeliest; known: details that have
    their value. Further details depend on a value: a label has words, a number has a limit.
    """
    theme, shape, may, full = themes()[plan["theme"]], plan["shape"], plan["open"], plan["level"] == "full"
    details, choices = {}, {}

    def put(name, options):
        choices[name] = options
        details[name] = known[name] if name in known else pick(name, options)
        return details[name]

    def put_measure(name):
        if name in theme.terms["measure"] and f"{name}.formula" not in details:
            term = theme.terms["measure"][name]
            formula = put(f"{name}.formula", meanings_of(plan["level"], term))
            if f"{name}.extra" in may:
                put(f"{name}.extra", [None, *extras_of(theme, term, formula)])

    def put_kind(name, term):
        low, number, _, label = parts_of(theme, put(f"{name}.define", meanings_of(plan["level"], term)))
        limits = [2, 3] if low else [2, 3, 4]    # how often somebody is on the list
        put_measure(number[1:])
        if number and number[0] != "#":
            formula = details.get(f"{number[1:]}.formula", number)
            limits = round_numbers(theme.noun, formula, low)
            average = ["average"] if full and f"{name}.edge" not in may else []
            if put(f"{name}.limit", limits + average) != "average":
                put(f"{name}.edge", [True, False])
        elif number:
            put(f"{name}.limit", limits)
        if label:
            put(f"{name}.values", word_sets(theme, label, (1, 2) if full else (1,)))
        if f"{name}.except" in may and not term.one:
            others = [n for n in limits if n != details.get(f"{name}.limit")]
            found = put(f"{name}.except", [None, *exceptions(theme, label, others)])
            if found and found[0] == "other" and type(details.get(f"{name}.limit")) is not int:
                details[f"{name}.except"] = None    # it is one of another meaning

    if shape in ORDERED:
        put(f"{plan['goal']}.order", meanings_of(plan["level"], terms_of(plan)[-1]))
    put_measure(plan["goal"] if shape not in ORDERED else details[f"{plan['goal']}.order"].lstrip("<=+>"))
    for term in terms_of(plan)[:-1]:
        put_kind(term.name, term)
    if shape in ORDERED:
        by = details[f"{plan['goal']}.order"].lstrip("<=+>")
        if plan["people"]:
            put("ties", ["a-z", "z-a"] + ["more"] * (by != "#"))
        else:
            more = [sign + f for f in theme.numbers if f != by for sign in "<>"] if full else []
            put("ties", ["earlier", "later", "a-z", *more])
    if shape in ORDERED and "count" in may:
        put("count", [3, 5, 2, 4])
    if shape == "line":
        put("between", [", ", "; ", " / ", " - ", " + "])
    if shape in ORDERED and "format" in may:
        put("format", FORMS["line" if shape == "line" else "list"])
    if shape == "table":
        put("group", list(theme.words))
    if shape in ("average", "share"):
        put("round", ["nearest", "down", "up"])
    if shape in EMPTY[plan["level"]] and "empty" in may:
        put("empty", EMPTY[plan["level"]][shape])
    return details, choices


def meanings_of(level, term):
    """A term's meanings; at the plain level only those of one part, and formulas of two keys."""
    pattern = "[a-z]+[*+-][a-z]+" if term.extras else "[^&/]+"
    return [each for each in term.meanings if level == "full" or re.fullmatch(pattern, each)]


@cache
def round_numbers(noun, formula, low):
    """Three to five round numbers that divide the things into those above and those below."""
    theme, rng = themes()[noun], random.Random(noun + formula)
    rows = [{key: rng.randint(*span[:2]) for key, span in theme.numbers.items()} for _ in range(80)]
    numbers = sorted(eval(formula, None, row) for row in rows)
    first, last = (numbers[12], numbers[48]) if low else (numbers[32], numbers[68])
    found = [n for n in NICE if first <= n <= last]
    if len(found) < 3:
        found = [max(1, first) + step for step in range(3)]
    found = found[::max(1, len(found) // 4)]
    return found[1:2] + found[:1] + found[2:]    # neither end is the likeliest


def extras_of(theme, term, formula):
    """What may also count for a measure: ["cap", n], [sign, key] or [sign, label, word, n]."""
    found = []
    for sign, key in ((extra[0], extra[1:]) for extra in term.extras):
        if key == "ap":
            found += [["cap", n] for n in round_numbers(theme.noun, formula, False)[1:]]
        elif key in theme.words:
            numbers = [2] if sign == "*" else [3, 5, 10]
            found += [[sign, key, word, n] for word in theme.words[key][1] for n in numbers]
        elif key not in formula:
            found.append([sign, key])
    return found


def word_sets(theme, label, sizes):
    """Which words of a label may count, or which people."""
    if label == theme.who:
        return [theme.people[i:i + size] for size in (2, 3) for i in range(0, len(theme.people) - size + 1, size)]
    return [list(some) for size in sizes for some in itertools.combinations(theme.words[label][1], size)]


def exceptions(theme, label, limits):
    """["never", label, word], ["always", label, word] or ["other", label, word, limit], of the other labels."""
    found = []
    for key, (_, words) in theme.words.items():
        for word in words if key != label else []:
            found += [["never", key, word], ["always", key, word]]
            found += [["other", key, word, limit] for limit in limits]
    return found


# ---- The reference, as a person would write it

FUNCTIONS = {  # an exception or an extra -> the function of its term
    "never": """def {name}({o}):
    if {o}["{key}"] == "{word}":
        return False
    return {test}""",
    "always": """def {name}({o}):
    if {o}["{key}"] == "{word}":
        return True
    return {test}""",
    "other": """def {name}({o}):
    limit = {n} if {o}["{key}"] == "{word}" else {limit}
    return {test}""",
    "cap": """def {name}({o}):
    return min({formula}, {n})""",
    "key": """def {name}({o}):
    return {formula} {sign} {o}["{key}"]""",
    "word": """def {name}({o}):
    result = {formula}
    if {o}["{key}"] == "{word}":
        result {sign}= {n}
    return result""",
}
RESULTS = {  # shape, or who orders people -> what is made of those that were found
    "total": "return sum({value} for {o} in found)",
    "average": """part = sum({value} for {o} in found)
whole = len(found)
return {rounded}""",
    "share": """part = 100 * sum({value} for {o} in found)
whole = sum({value} for {o} in {rows})
return {rounded}""",
    "table": """table = {{}}
for {o} in found:
    table[{o}["{group}"]] = table.get({o}["{group}"], 0) + {value}
return table""",
    "rows": """{ties}found.sort(key=lambda {o}: {value}{reverse})
return {start}{entry} for {o} in found{first}{end}""",
    "who": """totals = {{}}
for {o} in found:
    totals[{who}] = {step}
{ties}names.sort(key=totals.get{reverse})
return {start}{entry} for name in names{first}{end}""",
}
ROUNDED = {"down": "part // whole", "up": "-(-part // whole)", "nearest": "(2 * part + whole) // (2 * whole)"}
TIES = {  # of people and of things
    ("who", "a-z"): "names = sorted(totals)\n",
    ("who", "z-a"): "names = sorted(totals, reverse=True)\n",
    ("who", "more"): "names = sorted(totals, key=lambda name: sum({who} == name for {o} in found), reverse=True)\n",
    ("rows", "earlier"): "",
    ("rows", "later"): "found.reverse()\n",
    ("rows", "a-z"): 'found.sort(key=lambda {o}: {o}["{key}"])\n',
    ("rows", "<"): 'found.sort(key=lambda {o}: {o}["{tie}"])\n',
    ("rows", ">"): 'found.sort(key=lambda {o}: {o}["{tie}"], reverse=True)\n',
}


def number_code(details, number, o):
    """The code of a key or =measure of o: the call of a function if the measure has an extra, else its formula."""
    if number[0] != "=":
        return f'{o}["{number}"]'
    if details.get(f"{number[1:]}.extra"):
        return f"{number[1:]}({o})"
    spaced = re.sub(r"([*+-])", r" \1 ", details[f"{number[1:]}.formula"])
    return re.sub(r"[a-z]\w*", lambda key: f'{o}["{key[0]}"]', spaced)


def test_code(theme, details, name, o):
    """The condition for something to be of a kind, but for an exception."""
    low, number, join, label = parts_of(theme, details[f"{name}.define"])
    limit, tests = details.get(f"{name}.limit"), []
    if limit == "average":
        rows = plural(theme.noun)
        limit = f"sum({number_code(details, number, 'x')} for x in {rows}) / len({rows})"
    elif (details.get(f"{name}.except") or [""])[0] == "other":
        limit = "limit"
    if number[:1] == "#":
        often = f'sum(x["{theme.who}"] == {o}["{theme.who}"] for x in {plural(theme.noun)})'
        tests.append(f"{often} {'<=' if low else '>='} {limit}")
    elif number:
        sign = ("<" if low else ">") + "=" * details.get(f"{name}.edge", False)
        tests.append(f"{number_code(details, number, o)} {sign} {limit}")
    if label:
        words = details[f"{name}.values"]
        one_of = f"in {json.dumps(words)}" if words[1:] else f'== "{words[0]}"'
        tests.append(f'{o}["{label}"] {one_of}')
    return (" or " if join == "/" else " and ").join(tests)


def write_code(plan, details):
    """The reference for some details."""
    theme = themes()[plan["theme"]]
    rows = plural(theme.noun)
    o = rows[0]
    lines = [function for name in theme.terms["measure"] for function in measure_code(theme, details, name, o)]
    tests = []
    for name in plan["kinds"]:
        test = test_code(theme, details, name, o)
        exception = details.get(f"{name}.except")
        if exception:
            way, key, word, *limit = exception
            lines.append(FUNCTIONS[way].format(name=name, o=o, test=test, key=key, word=word, n=limit and limit[0],
                                               limit=details.get(f"{name}.limit")))
            test = f"{name}({o})"
        if tests and plan["mode"] == "not":
            test = f"not {test}" if exception else f"not ({test})"
        elif len(plan["kinds"]) > 1 and " or " in test:
            test = f"({test})"
        tests.append(test)
    lines.append(f"found = [{o} for {o} in {rows} if {' and '.join(tests)}]")
    if "empty" in details:
        lines.append(f"if not found:\n    return {json.dumps(details['empty'])}")
    words = {"o": o, "rows": rows, "who": f'{o}["{theme.who}"]', "key": theme.key, "group": details.get("group")}
    if plan["shape"] in ORDERED:
        words |= order_words(plan, theme, details, words)
        lines.append(RESULTS["who" if plan["people"] else "rows"].format_map(words))
    else:
        words["value"] = number_code(details, f"={plan['goal']}", o)
        words["rounded"] = ROUNDED.get(details.get("round"))
        lines.append(RESULTS[plan["shape"]].format_map(words))
    body = "\n".join(lines).replace("\n", "\n    ")
    return f"def report({rows}):\n    {body}\n"


def measure_code(theme, details, name, o):
    """[the function of a measure that has an extra], or []."""
    extra = details.get(f"{name}.extra")
    if not extra:
        return []
    sign, key, *bonus = extra
    formula = number_code({**details, f"{name}.extra": None}, f"={name}", o)
    words = {"name": name, "o": o, "formula": formula, "sign": sign, "key": key}
    if bonus:
        words |= {"word": bonus[0], "n": bonus[1]}
    elif sign == "cap":
        words["n"] = key
    return [FUNCTIONS["word" if bonus else "cap" if sign == "cap" else "key"].format_map(words)]


def order_words(plan, theme, details, words):
    """What stands in the code of an order."""
    by, ties, form = details[f"{plan['goal']}.order"], details["ties"], details.get("format", "{n}")
    f, o, who = by.lstrip("<=+>#"), words["o"], words["who"]
    value = "1"    # of people, ordered by how often they are there
    if f:
        value = number_code(details, f if f in theme.numbers else f"={f}", o)
    name, shown = ("name", "totals[name]") if plan["people"] else (f'{o}["{theme.key}"]', value)
    if form == "pairs":
        entry = f"[{name}, {shown}]"
    elif form == "{n}":
        entry = name
    else:
        entry = "f'" + form.format(n=f"{{{name}}}", v=f"{{{shown}}}") + "'"
    step = f"totals.get({who}, 0) + {value}"
    if by[0] == ">":
        step = f"max(totals.get({who}, 0), {value})"
    tie = TIES["who" if plan["people"] else "rows", ties[0] if ties[0] in "<>" else ties]
    in_line = plan["shape"] == "line"
    return {
        "value": value,
        "entry": entry,
        "step": step,
        "ties": tie.format_map(words | {"tie": ties[1:]}),
        "reverse": "" if by[0] == "<" else ", reverse=True",
        "first": f"[:{details['count']}]" if "count" in details else "",
        "start": f"{json.dumps(details['between'])}.join(" if in_line else "[",
        "end": ")" if in_line else "]",
    }


# ---- Ten calls that tell the reference from near misses

def draw_rows(theme, size, rng):
    people = rng.sample(theme.people, rng.choice([2, 3, 4]))
    letters, numbers = rng.choices("ABCDEFGH", k=size), rng.sample(range(10, 100), size)
    rows = []
    for letter, number in zip(letters, numbers):
        row = {theme.key: f"{letter}{number}", theme.who: rng.choice(people)}
        row |= {key: rng.choice(words) for key, (_, words) in theme.words.items()}
        row |= {key: rng.randint(*span[:2]) for key, span in theme.numbers.items()}
        rows.append(row)
    return rows


def telling_rows(plan, details, rng):
    """Rows rich in edge cases: at a limit, with a word that matters, tied with others, none at all."""
    theme = themes()[plan["theme"]]
    told = [value for name, value in details.items() if name.endswith((".values", ".except", ".extra"))]
    matter = set(re.findall(r"\w+", json.dumps(told)))
    likely = {}
    for key, (_, words) in {theme.who: ("", theme.people), **theme.words}.items():
        if some := [word for word in words if word in matter]:
            likely[key] = some
    limits = [limit for name in plan["kinds"] for limit in limits_of(theme, details, name)]
    sizes = [3, 5, 6, 7, 8, 9, 10] if plan["shape"] in ORDERED else [1, 2, 2, 3, 3, 4, 5, 6, 8]
    rows = []
    for row in draw_rows(theme, rng.choice(sizes), rng):
        row |= {key: rng.choice(some) for key, some in likely.items() if rng.random() < 0.6}
        if rows and rng.random() < 0.5:    # tied with another row
            other = rng.choice(rows)
            row |= {key: other[key] for key in (*theme.words, *theme.numbers) if rng.random() < 0.85}
        elif limits and rng.random() < 0.7:
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
        right = details[name]
        for wrong in options if right is not None else []:
            many = name.endswith((".except", ".extra"))
            if wrong != right and (not many or near(wrong, right)):
                changed, _ = settle(plan, likeliest, details | {name: wrong})
                programs[name, json.dumps(wrong)] = write_code(plan, changed)
    return programs


def near(one, other):
    """Whether two exceptions or extras differ in one part, or one of them is none at all."""
    if not one or not other or len(one) != len(other):
        return True
    return sum(a != b for a, b in zip(one, other)) == 1


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


def settled(plan, details, inputs):
    """The inputs whose result the facts settle: nothing is divided by zero, and no tie goes beyond the tie rule."""
    code, who = write_code(plan, details), themes()[plan["theme"]].who
    results = [results_of(code, inputs)]
    if plan["shape"] in ORDERED and details["ties"] not in ("earlier", "later"):    # in two opposite orders
        by_who = [sorted(rows, key=lambda row: row[who]) for rows in inputs]
        results += [results_of(code, by_who), results_of(code, [rows[::-1] for rows in by_who])]
    same = [set(each) for each in zip(*results)]
    errors = [result[0].isupper() for result in results[0]]
    return [rows for rows, found, error in zip(inputs, same, errors) if len(found) == 1 and not error]


def choose_calls(plan, details, rng):
    """(ten calls, None), or (None, why there are none). Together the calls fail every wrong value and every mutant.

    They are a greedy cover of the wrong programs by a pool of random inputs. Mutants that no input tells from the
    reference are left out, but each wrong value needs an input that fails. The results of the calls differ, so that a
    constant answer passes only one of them. Two results may be equal if the pool has no ten different ones.
    """
    inputs = settled(plan, details, [[], *(telling_rows(plan, details, rng) for _ in range(POOL))])
    code = write_code(plan, details)
    right = results_of(code, inputs)
    if len(inputs) < 10 or len(set(right)) < 9:
        return None, "too few different results"
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
        best = min(free, key=lambda i: (times[right[i]], -exposes[i]))
        chosen.append(best)
        times[right[best]] += 1
        left = {name for name in left if best not in exposed_by[name]}
    if len(times) < 9:
        return None, "too few different results"
    if left:
        return None, "ten calls are too few"
    return [f"report({inputs[i]!r})" for i in sorted(chosen)], None


# ---- Tasks, and the dialogues of a scripted, imperfect agent

def draw_task(split, half, level, rng):
    """A task without its calls, or None if the draw belongs to another split or half, or has too few or many layers."""
    plan = draw_plan(level, rng)
    if not plan:
        return None
    theme, novel = themes()[plan["theme"]], []

    def pick(name, options):
        term, _, aspect = name.partition(".")
        if aspect in ("define", "formula", "order"):
            known = [each for each in options if half == "new" or level == "plain" or not is_new(theme, term, each)]
            value = rng.choice(known or options)
            novel.append(is_new(theme, term, value))
            return value
        if options[0] is None:
            return rng.choice(options[1:]) if len(options) > 1 else None
        more = options[:1] * (len(options) // 2) if level == "plain" else []
        return rng.choice([*options, *more])

    details, choices = settle(plan, pick)
    reference = write_code(plan, details)
    if level == "plain":    # its terms have too few meanings to keep some out: combinations of them are new
        chosen = [value for name, value in details.items() if name.endswith((".define", ".formula", ".order"))]
        novel = [hashed("structure", plan["shape"], plan["kinds"], chosen) % 4 == 0]
    if split_of(reference) != split or any(novel) != (half == "new"):
        return None

    def say(keys, words):
        text = ""
        for key in [keys] if isinstance(keys, str) else keys:    # a further key is put around the text
            first, _, rest = text.partition(" ")
            inner = text if first.startswith(('"', "I'")) or first == "I" else text[:1].lower() + text[1:]
            text = rng.choice(wordings(key, level, half)).format_map(words | {"text": inner})
            text = re.sub(r"(^|[.?!] )[a-z]", lambda start: start[0].upper(), text)
        return text

    facts = facts_of(plan, details, choices, say)
    if rng.random() >= LAYERS[level].get(len(facts), 0):
        return None
    request = write_request(plan, details, draw_rows(theme, 1, rng)[0], say, rng)
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


LITTLE_USE = ["round", "ties", "between", "count", "format", "empty"]    # questions that some tasks have


def demonstrate(task, ask, waste, max_turns, rng):
    """One dialogue of the scripted agent with the scripted human, as (dialogue_history, answer).

    It asks for some of the facts, each after those that it needs. Before each turn it may waste some: it repeats a
    question, or asks for something that the task does not have. What it was not told, it guesses.
    """
    plan, level = task["plan"], task["level"]
    todo, known = [], set()
    for fact in task["facts"]:
        if rng.random() < ask and known.issuperset(fact.get("needs", [])):
            todo.append(fact)
            known.add(fact["detail"])
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
                say(rng.choice(wordings(f"ask {aspect}", level)).format_map(common_words(plan)))
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


def check_demonstrable(task):
    """The task, if the scripted agent can play it: its details must still produce its program."""
    if "plan" not in task or write_code(task["plan"], task["details"]) != task["ground_truth"]:
        raise ValueError("demonstrations need a procedural task as generate_tasks.py writes it, with plan and details")
    return task
