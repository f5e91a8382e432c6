"""What is said in a function task: its vocabulary, the request, and the replies of the human.

themes.toml has what somebody keeps a list of, the words that they use for it, and what these may mean. wordings.toml
has the sentences. A reply is a wording, filled in with words: {the} number of stops, {A} late order. function_tasks.py
draws the plan of a task (what is asked for) and its details (what the undefined words mean).
"""
import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from records import hashed

ORDERED = ("rows", "who", "line")    # shapes of the result that have an order
COUNTS = ["one", "two", "three", "four", "five"]
PEOPLE = "Anna Bruno Carla Dino Emma Felix Greta Hugo Ines Jonas"
EMPTY = {  # level -> shape -> what an empty result may be, the likeliest first
    "full": {"line": ["none", "nothing", "all quiet", "-"], "total": [0, -1, "none", "nothing"],
             "average": [0, -1, "none", "unknown"], "share": [0, -1, "none", "-"]},
    "plain": {"total": [0, -1, "none", "nothing"], "average": [0, -1, "none", 100]},
}
FORMS = {  # how a name and its figure are shown: in a list, in a line of text
    "list": ["pairs", "{n}: {v}", "{n} ({v})", "{v} {n}"],
    "line": ["{n}: {v}", "{n} ({v})", "{v} {n}", "{n} = {v}"],
}
WAYS = {  # how one speaks of a number: high, low, the most, the least
    "high": "high low highest lowest", "long": "long short longest shortest", "big": "big small biggest smallest",
    "many": "high low most fewest", "much": "high low most least",
}
HERE = Path(__file__).parent


# ---- The vocabulary

class Term(NamedTuple):
    """An undefined word."""
    name: str          # what its details are called by
    phrase: str        # how the request has it
    names: list        # all words for it
    meanings: list     # the likeliest first
    one: str = ""      # of people: a regular
    extras: list = ()  # of a measure: what may also count
    way: str = "high"  # how one speaks of a measure


class Theme(NamedTuple):
    """What somebody keeps a list of."""
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
    """{noun: Theme} of themes.toml."""
    found = tomllib.loads((HERE / "themes.toml").read_text(encoding="utf-8"))
    return {noun: read_theme(noun, lines) for noun, lines in found.items()}


def read_theme(noun, lines):
    """The Theme of a table of themes.toml."""
    words, numbers, terms = {}, {}, {}
    for key, (phrase, values) in lines["words"].items():
        words[key] = phrase, values.split()
    for key, span in lines["numbers"].items():
        lowest, highest, way = re.fullmatch(r"(\d+)-(\d+) ?(\w*)", span).groups()
        numbers[key] = int(lowest), int(highest), way or "high"
    for sort in ("kind", "measure", "first", "best"):
        found = [read_term(sort, phrase, parts) for phrase, parts in lines[sort].items()]
        terms[sort] = {term.name: term for term in found}
    people = lines.get("people", PEOPLE).split()
    return Theme(noun, lines["key"], lines["who"], lines["speaker"], people, words, numbers, terms)


def read_term(sort, phrase, parts):
    """The Term of a line of themes.toml."""
    others, meanings, *more = parts
    name = phrase.removeprefix("most ")
    names, meanings = [phrase, *others.split()], meanings.split()
    if sort == "measure":
        clause, extras, *way = more
        return Term(name, clause, names, meanings, "", extras.split(), *way)
    if more:    # people: old_hand, of our old hands, an old hand
        phrase, one = more
        names[:1] = [phrase.split("our ")[1], name.replace("_", " ")]
        return Term(name, phrase, names, meanings, one)
    return Term(name, phrase, names, meanings)


@cache
def all_wordings():
    return tomllib.loads((HERE / "wordings.toml").read_text(encoding="utf-8"))


@cache
def wordings(key, level, half="new"):
    """The wordings of something; at the full level the last of many replies only in new tasks."""
    first, *more = all_wordings()[key]
    if level == "plain":
        return [first]
    return more[:-1] if half == "seen" and len(more) > 3 else more


def is_new(theme, name, meaning):
    """Whether a meaning of a term is kept out of training. The likeliest never is, so that training has every term."""
    first = {term.meanings[0] for terms in theme.terms.values() for term in terms.values() if term.name == name}
    return meaning not in first and hashed("meaning", theme.noun, name, meaning) % 4 == 0


def plural(noun):
    if re.search("[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    return noun + ("es" if re.search("(s|x|ch)$", noun) else "s")


def a(words):
    return ("an " if words[0] in "aeiou" else "a ") + words


def listed(words, last):
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def upper(text):
    return text[:1].upper() + text[1:]


# ---- Plans and details

def parts_of(theme, meaning):
    """delay&status -> (whether low, number, join, label). number: a key, =measure or #who; label: a key of words."""
    low, number, join, label = re.fullmatch(r"(<?)([=#]?\w+)([&/]?)(\w*)", meaning).groups()
    if number in theme.words or number == theme.who:
        return False, "", "", number
    return bool(low), number, join, label


def terms_of(plan):
    """The undefined words of the request, as Terms: the kinds of things, and what is added up or comes first."""
    terms = themes()[plan["theme"]].terms
    return [*(terms["kind"][name] for name in plan["kinds"]), terms[plan["sort"]][plan["goal"]]]


# ---- What is said: the request, and the human's facts. Every sentence is a wording, filled in with words.

def common_words(plan):
    theme, goal = themes()[plan["theme"]], terms_of(plan)[-1]
    name, thing = ("name", theme.who) if plan["people"] else (theme.key, theme.noun)
    return {"noun": theme.noun, "nouns": plural(theme.noun), "who": theme.who, "whos": plural(theme.who), "name": name,
            "names": plural(name), "things": plural(thing), "G": plan["group"], "N": goal.name, "R": goal.phrase}


def kind_words(theme, name):
    """A big order, big orders, the big ones; a regular, orders from our regulars, the ones from our regulars."""
    term, nouns = theme.terms["kind"][name], plural(theme.noun)
    if term.one:
        return {"T": term.names[1], "P": f"{nouns} {term.phrase}", "A": term.one, "X": f"ones {term.phrase}"}
    return {"T": name, "P": f"{name} {nouns}", "A": a(f"{name} {theme.noun}"), "X": f"{name} ones"}


def number_words(theme, f, low=False):
    """How one speaks of a number or measure: the number of stops, the total delay, the longest delay."""
    if f in theme.numbers:
        way = theme.numbers[f][2]
    elif f in theme.terms["measure"]:
        way = theme.terms["measure"][f].way
    else:
        return {"f": f}
    high, little, most, least = WAYS[way].split()
    of, unit = (f"number of {f}", f" {f}") if way == "many" else (f, "")
    return {
        "f": f,
        "the": f"the {of}",
        "total": f"total {of}",
        "hi": high,
        "lo": little,
        "unit": unit,
        "high": little if low else high,
        "top": f"the {least if low else most} {f}",
        "end": "lowest" if low else "highest",
    }


def with_unit(number, words):
    """5 stops, or just 1."""
    return f"{number}{words['unit']}" if number != 1 else "1"


def label_words(theme, label, words):
    quoted = listed([f'"{word}"' for word in words], "or")
    phrase = theme.words[label][0] if label in theme.words else "{}"
    phrase = phrase.replace('"{}"', quoted).replace("{}", listed(words, "or"))
    return {"label": label, "phrase": phrase, "quoted": quoted, "list": listed(words, "and")}


def spoken(formula, level):
    """(price-discount)*quantity -> price minus discount, and all that times the quantity"""
    words = {"*": "times", "+": "plus", "-": "minus"}
    if level == "plain":
        return " ".join(words.get(part, f'"{part}"') for part in re.findall(r"\w+|[*+-]", formula))
    first, _, rest = formula.lstrip("(").partition(")*")
    text = re.sub(r"[*+-]", lambda sign: f" {words[sign[0]]} ", first)
    text = re.sub(r"(\d+) times ", r"\1 times the ", text).replace("2 times the", "twice the")
    text = re.sub(r"^((?:\w+ times (?:the )?|twice the )\w+) (?=plus|minus)", r"\1, then ", text)
    return text + (f", and all that times the {rest}" if rest else "")


def reply_to(plan, details, detail):
    """(keys of the wording with which a detail is told, its words)."""
    theme, value = themes()[plan["theme"]], details[detail]
    term, _, aspect = detail.rpartition(".")
    if aspect in ("define", "limit", "edge", "values", "except"):
        return reply_about_kind(plan, theme, details, term, aspect)
    if aspect == "formula":
        extra = details.get(f"{term}.extra")    # which holds for all things if it names no word
        key = "formula" if not extra else "hedged" if len(extra) > 2 else "partial"
        return key, {"formula": spoken(value, plan["level"]), "N": term}
    if aspect == "extra":
        sign, key, *more = value
        words = label_words(theme, key, more[:1]) if more else number_words(theme, key)
        words |= {"num": more[1] if more else key, "N": term}
        ways = {"*": "double", "+": "bonus"} if more else {"+": "plus", "-": "minus", "cap": "cap"}
        return ways[sign], words
    if aspect == "order":
        by, low = value.lstrip("<"), value[0] == "<"
        key = {"+": "sum", ">": "max", "#": "most"}.get(by[0], "by")
        return key, number_words(theme, by.lstrip("=+>#"), low)
    if aspect == "ties" and value[0] in "<>":
        return "field", number_words(theme, value[1:], value[0] == "<")
    if aspect == "format":
        return "pairs" if value == "pairs" else "entries", format_words(plan, theme, details, value)
    words = {"value": json.dumps(value), "num": value, "label": value}
    if aspect == "between" and value == ", ":
        words["value"] = "a comma and a space"
    if aspect == "count":
        words |= {"k": COUNTS[value - 1], "K": upper(COUNTS[value - 1])}
    return value if aspect in ("ties", "round") else aspect, words


def reply_about_kind(plan, theme, details, term, aspect):
    """reply_to for a kind of things."""
    value = details[f"{term}.{aspect}"]
    low, number, join, label = parts_of(theme, details[f"{term}.define"])
    side = "low" if low else "high"
    words = kind_words(theme, term) | number_words(theme, number.lstrip("=#"), low)
    words |= {"label": label, "num": value}
    if aspect == "define":
        key = side + {"&": " and", "/": " or", "": ""}[join] if number else "label"
        if number[:1] == "#":
            key = "seldom" if low else "often"
        if label == theme.who:
            key = "people"
        return [key, "hedge"] if details.get(f"{term}.except") else [key], words
    if aspect == "limit":
        if value == "average" or number[0] == "#":
            return f"average {side}" if value == "average" else f"times {side}", words
        words["n"] = with_unit(value, words)
        if f"{term}.edge" in plan["open"]:
            return "line", words
        return f"{side} in" if details[f"{term}.edge"] else f"{side} out", words
    if aspect == "edge":
        return "in" if value else "out", words | {"num": details[f"{term}.limit"]}
    if aspect == "values":
        return "names" if label == theme.who else "values", words | label_words(theme, label, value)
    way, label, word, *limit = value
    if limit:
        words |= {"n": with_unit(limit[0], words), "num": limit[0]}
    return way, words | label_words(theme, label, [word])


def format_words(plan, theme, details, form):
    """An example of an entry, and the figure that it shows."""
    by = details[f"{plan['goal']}.order"].lstrip("<")
    words = number_words(theme, by.lstrip("=+>#"))
    sample = theme.people[0] if plan["people"] else "A12"
    example = f'["{sample}", 40]' if form == "pairs" else '"' + form.format(n=sample, v=40) + '"'
    if by[0] == "#":
        figure = f"the number of those {plural(theme.noun)}"
    else:
        figure = {"+": f"the {words['total']}", ">": words["top"]}.get(by[0], words["the"])
    parts = ["the " + ("name" if plan["people"] else theme.key), figure]
    return {"example": example, "figure": figure, "parts": " and ".join(parts[::-1] if form[:3] == "{v}" else parts)}


TOKENS = {  # aspect -> kind of tokens -> what stands for them
    "formula": {"op": {"*": "*", "+": "+", "-": "-"}},
    "extra": {"op": {"*": "*", "+": "+", "-": "-"}},
    "define": {"join": {"&": "and", "/": "or"}},
    "order": {"way": {"+": "sum", ">": "max", "#": "count"}},
    "limit": {"mean": {"average": "average"}},
    "except": {"ever": {"never": "never", "always": "always"}},
}


def content_of(plan, details, detail):
    """What a proposal must say to be right about a detail: {kind of token: tokens}, see listener.py."""
    theme, value = themes()[plan["theme"]], details[detail]
    term, _, aspect = detail.rpartition(".")
    single = {"round": "round", "format": "form", "between": "mark"}.get(aspect)
    if aspect == "empty":
        single = "word" if type(value) is str else "number"
    if aspect == "ties" and value[0] not in "<>":
        single = "ties"
    if single:
        return {single: [str(value)]}
    if aspect == "edge":
        value = details[f"{term}.limit"]
    parts = value if type(value) is list else [value]
    tokens = re.findall(r"\w+|[^\w\s]", " ".join(map(str, parts)))
    words = {*theme.people, *(word for _, some in theme.words.values() for word in some)}
    keys = {*theme.numbers, *theme.words, *theme.terms["measure"], theme.who}
    found = {
        "number": [token for token in tokens if token.isdigit()],
        "field": [token for token in tokens if token in keys],
        "word": [token for token in tokens if token in words],
    }
    for kind, meant in TOKENS.get(aspect, {}).items():
        found[kind] = [meant[token] for token in tokens if token in meant]
    limited = aspect in ("limit", "edge") or aspect == "define" and f"{term}.limit" in details
    if limited or aspect == "ties" or aspect == "order" and value != "#":
        meaning = details.get(f"{term}.define", str(value))
        found["end"] = ["low" if meaning[0] == "<" else "high"]
    with_edge = aspect == "limit" and value != "average" and f"{term}.edge" not in plan["open"]
    if aspect == "edge" or with_edge:
        found["edge"] = ["in" if details.get(f"{term}.edge", True) else "out"]
    return {kind: some for kind, some in found.items() if some}


NEEDS = {"limit": "define", "values": "define", "except": "define", "edge": "limit", "extra": "formula"}


def facts_of(plan, details, choices, say):
    """What the human can tell, a layer each (the keys of a fact: see listener.py).

    say(keys, words): a wording. Whether the limit itself counts is told with the limit, unless it is open.
    """
    theme, base, facts = themes()[plan["theme"]], common_words(plan), []
    for detail in choices:
        term, _, aspect = detail.rpartition(".")
        merged = aspect == "edge" and detail not in plan["open"]
        if details[detail] is None or merged or aspect == "count" and is_stated(plan):
            continue
        keys, words = reply_to(plan, details, detail)
        ask = f"ask {aspect}"
        if aspect == "limit" and "#" in details[f"{term}.define"]:
            ask = "ask times"
        if aspect == "values" and words["label"] == theme.who:
            aspect, ask = "names", "ask names"
        words = base | words
        fact = {
            "detail": detail,
            "term": plan["group"] if aspect == "group" else term,
            "aspect": aspect,
            "reply": say(keys, words),
            "values": content_of(plan, details, detail),
            "needs": needs_of(plan, details, term, aspect),
            "questions": [upper(text.format_map(words)) for text in wordings(ask, plan["level"])],
        }
        facts.append({name: value for name, value in fact.items() if value})
    return facts


def needs_of(plan, details, term, aspect):
    """The details that are told before one of a term."""
    if aspect == "formula" and term != plan["goal"]:    # the human brings the measure up
        return [other for other, value in details.items() if re.search(rf"[=+>]{term}\b", str(value))][:1]
    before = {**NEEDS, "names": "define"}.get(aspect)
    return [f"{term}.{before}"] if before else []


def is_stated(plan):
    """Whether the request says how many entries a list has."""
    return "stated" in plan["open"] and plan["shape"] in ("rows", "who")


def sure_facts(plan, details, say):
    """[{aspect, reply}] of what goes without saying, or stands in the request."""
    found, words, shape = {}, common_words(plan), plan["shape"]
    if "empty" not in details:
        found["empty"] = "sure empty " + (shape if shape in ("total", "table") else "list")
    if shape in ORDERED and "count" not in details:
        found["count"] = "sure all"
    elif shape in ORDERED and is_stated(plan):
        found["count"] = "sure count"
        words |= reply_to(plan, details, "count")[1]
    if "format" not in details:
        sort = {"table": "table"}.get(shape, "number")
        found["format"] = "sure format" if shape in ORDERED else f"sure {sort}"
    return [{"aspect": aspect, "reply": say(key, words)} for aspect, key in found.items()]


def write_request(plan, details, row, say, rng):
    theme, level, shape = themes()[plan["theme"]], plan["level"], plan["shape"]
    first, *others = [kind_words(theme, name) for name in plan["kinds"]]
    people = theme.terms["kind"][plan["kinds"][0]].one
    our = ("the " if rng.random() < 0.5 or people else "our ") + first["P"]
    words = common_words(plan) | first | {"our P": our, "S": terms_of(plan)[-1].phrase.format(our)}
    key, mode = shape, plan["mode"]
    if shape == "line":
        key += " who" if plan["people"] else " rows"
    if shape == "share":
        mode = f"share {mode}"
    if "count" in details and (shape == "line" or is_stated(plan)):
        key += " k"
        words |= reply_to(plan, details, "count")[1]
    sentences = [say(key, words), *(say(mode, words | more) for more in others)]
    if level == "full":
        if shape in ORDERED:
            sentences.append(say("figures" if "format" in details else "stated", words))
        if rng.random() < 0.5:
            sentences.insert(0, theme.speaker)
        sentences.append(say("tail", words | {"row": json.dumps(row)}))
    return " ".join(sentences)


def human_terms(plan, details):
    """{undefined word: its other forms}, of the request and of what the human may bring up."""
    measures = themes()[plan["theme"]].terms["measure"].values()
    found = [*terms_of(plan), *(term for term in measures if f"{term.name}.formula" in details)]
    names = {term.name: {"names": term.names} for term in found}
    if plan["shape"] == "table":
        names[plan["group"]] = {"names": [plan["group"], "table"]}
    return names
