"""What both scripted humans of functions share (listener.py, own_facts.py): stems, sentences, the patterns of
listener.toml, and how a fact stands in a file."""
import math
import re
import tomllib
import zlib
from collections import Counter
from functools import cache
from itertools import chain
from pathlib import Path

CONTENT = {"field": 0.8, "word": 1.5, "number": 0.7}    # kinds that a question takes up from a fact -> points
CODE = re.compile(r"```.*?(?:```|$)|`[^`\n]*\w\([^`\n]*`", re.DOTALL)


@cache
def data():
    """listener.toml, with compiled patterns of what is rewritten."""
    found = tomllib.loads(Path(__file__).with_name("listener.toml").read_text(encoding="utf-8"))
    rewrites = {name: [(re.compile(old), new) for old, new in rows] for name, rows in found["rewrites"].items()}
    found["endings"] = re.compile(rf"({found['endings']})$")
    words = {name: set(text.split()) for name, text in found["words"].items()}
    return found | {"rewrites": rewrites, "words": words}


@cache
def tables():
    """listener.toml with compiled patterns: acts, says, aspects and kinds; and the weights of its example questions."""
    def pattern(text):
        lines = "|".join(filter(None, text.splitlines())) or "(?!)"
        return re.compile(rf"(?:(?<!\w)|(?!\w))(?:{lines})(?:(?!\w)|(?<!\w))")

    found = data() | {"acts": {name: pattern(text) for name, text in data()["acts"].items()}}
    found["kinds"] = {kind: {token: pattern(text) for token, text in tokens.items()}
                      for kind, tokens in found["kinds"].items()} | {kind: {} for kind in CONTENT}
    found["settled"] = [row | {"asks": pattern(row["asks"])} for row in found["settled"]]
    found["aspects"] = {name: aspect | {
        "sure": pattern(aspect["sure"]), "likely": [*map(pattern, aspect.get("likely", "").split("\n"))][:-1],
        "needs": pattern(aspect.get("needs", "").strip() or ".*"),
        "kinds": [kinds.split("/") for kinds in aspect["kinds"]]} for name, aspect in found["aspects"].items()}
    asked = {}
    for name, aspect in found["aspects"].items():
        lines = aspect.get("asked", "").splitlines()
        asked[name] = [features(plain(line)) for line in lines]
    return found | {"weights": weights(asked)}


def act(name):
    """A pattern of [acts]: what a sentence does."""
    return tables()["acts"][name]


def matches(name, text):
    """The first match of a pattern of [acts], or None."""
    return tables()["acts"][name].search(text)


def without(name, text):
    """A text without what a pattern of [acts] matches."""
    return tables()["acts"][name].sub("", text)


def features(text):
    """The stems of a text, all numbers alike, and the pairs of neighbours."""
    words = [word.rstrip("s") if word[0] == "_" else "7" if word.isdigit() else stem(word)
             for word in re.findall(r"\w+(?:'\w+)?|[<>]=?", text)]
    return {*words, *map(" ".join, zip(["^", *words], [*words, "$"]))}


def weights(asked):
    """feature -> aspect -> log of how much likelier a question about it has the feature than any question

    asked: aspect -> features of its questions. Three questions of any kind are added to each aspect's own.
    """
    counts = {name: Counter(chain(*rows)) for name, rows in asked.items()}
    total, found = sum(map(len, asked.values())), {}
    for feature, number in sum(counts.values(), Counter()).items():
        share = number / total
        found[feature] = {}
        for name, rows in asked.items():
            its_share = (counts[name][feature] + 3 * share) / (len(rows) + 3)
            found[feature][name] = math.log(its_share / share) if rows else 0
    return found


def says(name, *key, fill=""):
    """One of the human's own sentences, always the same for the same key."""
    texts = data()["says"][name]
    choice = zlib.crc32(repr(key).encode()) % len(texts)
    return texts[choice].format(fill)


@cache
def stem(word):
    """What the forms of a word share: busy, busier and busily -> bus."""
    word = re.sub(r"nc[ey]$", "nt", word)
    while len(shorter := data()["endings"].sub("", word)) >= 3 and shorter != word:
        word = shorter
    return re.sub(r"([^aeiou])\1$", r"\1", word)


def words_of(text):
    return re.findall(r"\w+(?:'\w+)?", text)


@cache
def stop_stems():
    return set(map(stem, data()["words"]["stop"]))


def plain(text):
    """A text in lower case, with digits for number words, and without code, list marks and points of "e.g."."""
    text = rewritten("plain", CODE.sub(" ", text).lower())
    return re.sub(r"\w+", lambda match: data()["digits"].get(match[0], match[0]), text)


def rewritten(name, text):
    """A text after the replacements of a list of listener.toml."""
    for old, new in data()["rewrites"][name]:
        text = old.sub(new, text)
    return text


def sentences(text):
    parts = re.split(r"(?<=[.?!])[\"')\]]*\s+|\n+", text)
    return [part.strip() for part in parts if re.search(r"\w", part)]


def list_of(value):
    """A list, or what may stand in its place: one thing, or nothing."""
    return [] if value in (None, "") else value if isinstance(value, list) else [value]


def questions_of(raw):
    """The example questions of a fact, as it stands in a file."""
    return [*list_of(raw.get("question")), *list_of(raw.get("questions"))]


def name_of(n, raw):
    """The name of a fact's detail, or else its first question."""
    questions = questions_of(raw) or [f"fact {n}"]
    return str(raw.get("detail") or questions[0])


def first_of(fact, told, by_name):
    """The fact, or what must be told before it. Facts that need each other are told as they are asked for."""
    passed = {*told, fact.name}
    while missing := [need for need in fact.needs if need in by_name and need not in passed]:
        fact = by_name[missing[0]]
        passed.add(fact.name)
    return fact
