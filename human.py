"""Scripted human (draft)."""
import json
import math
import re
import tomllib
import zlib
from collections import Counter
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

# ---------------------------------------------------------------------------------------------------------------------
# The scripted human of functions: a person who listens, remembers, and tells what a task hides, one thing at a time.
#
# A fact of a task is a detail's name, example questions or keywords, and a reply: {"detail": "currency", "questions":
# ["Which currency?"], "reply": "Euros, please."}. More is optional: `term`, what it is about, a key of the task's
# `terms` ({"big": {"names": ["big", "large"]}}); `aspect`, what it settles, a key of [aspects] in human.toml; `values`,
# what a proposal must say to be right, keys of [kinds]; `needs`, details that are told before; `implies`, details that
# it settles as well. A task's `sure` has replies for aspects that hide nothing.
#
# A message is cut into sentences. A sentence that asks is compared with each fact: which terms it names in any form of
# their words, which aspects its wording fits, what it takes up from earlier replies, what it shares with the example
# questions. The best fact is told, or what it needs first. A sentence that proposes is checked claim by claim. A
# question that is not understood is answered with what could be meant, and never costs a fact.

MANNERS = ("plain", "vague", "revising")
SURE, LIKELY = 3.0, 1.5    # points of a question for the aspects that its wording fits
HEARD = 2.0                # a question with fewer points for every fact is not understood
HEADS = ("define", "formula", "order", "group")                              # what a term means
INNER = ("limit", "edge", "values", "names", "except", "extra")              # what else can be asked about a term
HIDDEN = ("except", "extra", "more")                                         # what nobody can know that it is there
RESULT = ("direction", "ties", "count", "format", "between", "round", "empty")    # a task has one of each
CONTENT = ("field", "word", "number")
KEEP = {"name", "number", "value", "count", "order", "total", "result"}      # keys that questions use in another sense
SMALL = set("most least our my the of from by a an in for with to and or".split())
STOP = set("""a about actually again all also an and another any are as ask at be been before being both but by call called can
    could data decide decides did do does doing each either else ever every exact exactly far field fields for from function
    get give go got had has have having here how i if in information into is it item its just keep know last let like list
    look make many may me mean meaning means might more most much must my name need needs next no not now number of ok okay
    on one ones only or other our out over own part please precise precisely question regarding right row rows rule say says
    see shall should show so some something sort still such sure take tell than thank thanks that the their them then there
    these they thing things this those to too two up us use used using value values very want was way we well were what when
    where which while who whom whose why will with word words would yes yet you your""".split())
DIGITS = dict(zip("two three four five six seven eight nine ten eleven twelve".split(), map(str, range(2, 13))))
ENDINGS = re.compile(r"('s|s|es|ed|ing|ers?|est|ly|ness|ies|ied|iers?|iest|iness|ily|ity|ment|able|ful|ive|ion|some|"
                     r"ous|e|y)$")


@cache
def tables():
    """human.toml with compiled patterns: a dictionary of acts, says, aspects and kinds."""
    def pattern(text):
        lines = "|".join(filter(None, text.splitlines())) or "(?!)"
        return re.compile(rf"(?:(?<!\w)|(?!\w))(?:{lines})(?:(?!\w)|(?<!\w))")

    found = tomllib.loads(Path(__file__).with_name("human.toml").read_text(encoding="utf-8"))
    found["acts"] = {name: pattern(text) for name, text in found["acts"].items()}
    found["kinds"] = {kind: {token: pattern(text) for token, text in tokens.items()}
                      for kind, tokens in found["kinds"].items()}
    for aspect in found["aspects"].values():
        aspect |= {key: pattern(aspect[key]) for key in ("sure", "likely")}
        aspect |= {key: aspect[key].split() for key in ("also", "over")}
        aspect["kinds"] = [kind.split("/") for kind in aspect["kinds"].split()]
    return found


@cache
def stem(word):
    """What the forms of a word share: busy, busier and busily -> bus."""
    word = re.sub(r"nc[ey]$", "nt", word)
    while len(shorter := ENDINGS.sub("", word)) >= 3 and shorter != word:
        word = shorter
    return re.sub(r"([^aeiou])\1$", r"\1", word)


def words_of(text):
    return re.findall(r"\w+(?:'\w+)?", text)


def plain(text):
    """A text in lower case, with digits for number words, and without code, list marks and points of "e.g."."""
    text = re.sub(r"```.*?(```|$)", " ", text, flags=re.S).lower()
    for old, new in {"’": "'", "“": '"', "”": '"', "`": "", "(s)": "s"}.items():
        text = text.replace(old, new)
    text = re.sub(r"\((e\.?g|i\.?e|for example|for instance|such as)\b.*?\)", "", text)
    text = re.sub(r"\bon (the|that|this) (whole |entire )?list\b", "", text)
    text = re.sub(r"\b(e\.g|i\.e|etc|vs|approx|dr|mr|mrs|no)\.(?=\s*[\w,(])", lambda match: match[1].replace(".", ""), text)
    text = re.sub(r"(?m)^\s*(\(?\d+[.)]|\(?[a-z]\)|[-*•])\s+|(?<!\w)\(?\d\)", "\n", text)
    return re.sub(r"\w+", lambda match: DIGITS.get(match[0], match[0]), text)


def sentences(text):
    parts = re.split(r"(?<=[.?!])[\"')\]]*\s+|\n+", text)
    return [part.strip() for part in parts if re.search(r"\w", part)]


def says(name, *key, fill=""):
    """One of the human's own sentences, always the same for the same key."""
    texts = tables()["says"][name]
    return texts[zlib.crc32(repr(key).encode()) % len(texts)].format(fill)


class Fact(NamedTuple):
    name: str
    reply: str
    term: str        # "" for the result as a whole
    aspect: str      # "" if the task does not say
    guess: str       # the aspect of its example questions, if the task does not say
    values: dict     # kind -> tokens that a proposal must name
    about: dict      # field, word, number -> tokens that a question about it may take up
    needs: list
    implies: list
    words: dict      # stem -> weight, from its example questions, if the task names no aspect


class Heard(NamedTuple):
    """What a listener reads in a text."""
    text: str
    terms: dict      # term -> how clearly it is named, up to 1
    aspects: dict    # aspect -> points
    said: dict       # kind -> tokens
    stems: set


class Memory(NamedTuple):
    """What the human remembers; a tuple, so that the same messages need not be replayed."""
    told: tuple = ()
    topics: tuple = ()    # terms that were talked about, the last one last
    heard: str = ""       # the human's own words
    turn: int = 0
    changed: bool = False    # whether it has been vague, or wrong, once
    wrong: str = ""       # a detail that must be taken back


class Listener:
    """The scripted human of one task."""

    def __init__(self, task):
        request, code = task["problem_description"] or "", task["ground_truth"] or ""
        shown = " ".join([request, code, *map(str, (task["test_cases"] or {}).values())]).lower()
        terms = {term: about["names"] for term, about in (task["terms"] or {}).items()}
        terms |= {fact["term"]: [fact["term"]] for fact in task["facts"] or [] if (fact.get("term") or "") not in {"", *terms}}
        self.names = {term: [name.lower().replace("-", " ") for name in names] for term, names in terms.items()}
        self.stems = {term: [{stem(word) for word in name.split() if word not in SMALL} for name in names]
                      for term, names in self.names.items()}
        self.spelled = {word for names in self.names.values() for name in names for word in name.split()}
        self.known = set().union(*(name for names in self.stems.values() for name in names))
        self.request = plain(re.sub(r"\{.*?\}", "", request))
        self.set_words(task, shown, code)
        self.facts = [self.fact(n, raw) for n, raw in enumerate(task["facts"] or [])]
        self.by_name = {fact.name: fact for fact in self.facts}
        defined = {fact.term: fact.values for fact in self.facts if fact.aspect == "define"}
        for fact in self.facts:    # a limit is one of a number, a choice of words one of a key of words
            if fact.aspect in INNER[:4]:
                keys = defined.get(fact.term, {}).get("field", set())
                fact.about["field"].update(keys & self.labels if fact.aspect in ("values", "names") else keys - self.labels)
            if fact.aspect in ("limit", "edge") and "end" in defined.get(fact.term, {}):
                fact.values["end"] = defined[fact.term]["end"]
        self.open = {fact.term for fact in self.facts if not fact.needs}    # terms of the request
        self.own = {(fact.term, fact.aspect) for fact in self.facts}
        self.examples = {plain(question): fact.name for fact, raw in zip(self.facts, task["facts"] or [])
                         for question in questions_of(raw)}
        self.sure = {row["aspect"]: row["reply"] for row in task["sure"] or []}
        counts = Counter(word for fact in self.facts for word in fact.words)
        self.rarity = {word: math.log(1 + len(self.facts) / n) / math.log(1 + len(self.facts)) for word, n in counts.items()}

    def set_words(self, task, shown, code):
        """The keys of the rows, their noun, and the words that stand in them."""
        values = [fact.get("values") or {} for fact in task["facts"] or []]
        keys = {*re.findall(r"[\"'](\w+)[\"']\s*:", shown), *re.findall(r"\w\[[\"'](\w+)[\"']\]", code.lower())}
        keys |= {key.lower() for each in values for key in each.get("field") or []}
        measures = {self.names[fact["term"]][0] for fact in task["facts"] or [] if fact.get("aspect") == "formula"}
        keys |= measures
        figures = {*re.findall(r"[\"'](\w+)[\"']\s*:\s*-?\d", shown), *measures}
        self.labels = set(re.findall(r"[\"'](\w+)[\"']\s*:\s*[\"']", shown))
        self.key_words = {word: "_figure" if key in figures else "_label" for key in sorted(keys - KEEP)
                          for word in (key, key + "s", key.removesuffix("s"))}
        self.field_of = {stem(key): key for key in sorted(keys)}
        for names in self.names.values():    # a term that stands for a key
            self.field_of |= {stem(name): key for key in keys & set(names) for name in names}
        self.people = {self.field_of[stem(word)] for word in words_of(self.request) if stem(word) in self.field_of}
        words = {str(word).lower() for each in values for word in each.get("word") or []}
        words |= set(re.findall(r"[\"']([^\"'\\\n]{2,30})[\"']", shown)) - keys
        words = sorted((word for word in words if word[0].isalnum()), key=len, reverse=True)
        self.vocabulary = re.compile(rf"\b({'|'.join(map(re.escape, words)) or '(?!)'})(?:s|'s)?\b")
        rows = re.findall(r"def \w+\((\w+s)\)", code.lower()) if task["terms"] else []
        one = re.sub(r"ies$", "y", rows[0]) if rows else ""
        one = re.sub(r"(?<=ch|sh|ss|.x)es$|s$", "", one)
        self.noun = re.compile(rf"\b{rows[0]}\b|(?<!what )(?<!which )(?<!in )(?<!the )(?<!sort )(?<!that )\b{one}\b(?! by)" if rows else "(?!)")

    def fact(self, n, raw):
        """A fact as it stands in a file, with what goes without saying."""
        questions, aspect = questions_of(raw), raw.get("aspect") or ""
        name = str(raw.get("detail") or (questions or [f"fact {n}"])[0])
        values = {kind: {str(token).lower().strip() or " " for token in tokens}
                  for kind, tokens in (raw.get("values") or {}).items() if tokens}
        if "form" in values:    # "pairs", or the pattern of an entry, such as "{n}: {v}"
            values["form"] = {"names"} if values["form"] == {"{n}"} else {"figures", *values["form"]}
        heard = self.said(plain(raw["reply"]))
        for kind in {"except": ["ever"], "extra": ["op"], "limit": ["end"], "edge": ["end"]}.get(aspect, []):
            if heard[kind]:
                values.setdefault(kind, heard[kind])
        spoken, words = plain(" . ".join([re.sub(r"[\W_]+", " ", name), *questions])), {}
        if not aspect:
            words = dict.fromkeys(stems_of(plain(raw["reply"])), 0.5) | dict.fromkeys(stems_of(spoken), 1.0)
        points = self.aspects(spoken)
        guess = max(points, key=points.get, default="") if not aspect else ""
        about = {kind: set(values.get(kind, ())) for kind in CONTENT}
        return Fact(name, raw["reply"], raw.get("term") or "", aspect, guess, values, about,
                    raw.get("needs") or [], raw.get("implies") or [], words)

    # What a text says

    def shadow(self, text):
        """A text with "row" for the rows' noun and "_figure" or "_label" for their keys."""
        text = self.noun.sub(lambda match: "rows" if match[0].endswith("s") else "row", text)
        return re.sub(r"[a-z_]\w*(?! of\b)", lambda match: self.key_words.get(match[0], match[0]), text)

    def aspects(self, text):
        """aspect -> points of a question. A long match is worth a little more than a short one."""
        points, shadow = {}, self.shadow(text)
        for name, aspect in tables()["aspects"].items():
            longest = max((len(match[0]) for match in aspect["sure"].finditer(shadow)), default=0)
            points[name] = SURE * bool(longest) + LIKELY * bool(aspect["likely"].search(shadow)) + min(longest, 30) / 30
        for name in [name for name in points if points[name] >= SURE]:
            points |= dict.fromkeys(tables()["aspects"][name]["over"], 0)
        return {name: number for name, number in points.items() if number}

    def mentions(self, text, memory):
        """term -> how clearly a text names it. A term that only a later reply brings up is not known yet."""
        known = set(map(stem, words_of((self.request + " " + memory.heard).replace("-", " "))))
        words = [word for word in words_of(text.replace("-", " "))
                 if word in self.spelled or word != "values" and word not in self.key_words]
        dim = set(map(stem, words))
        clear = {stem(word) for before, word, after in zip(["", *words], words, [*words[1:], ""])
                 if before != "how" and after != "enough"}    # "how long" and "long enough" need not mean "long"
        found = {}
        exact = {term for term, names in self.names.items() if any(set(name.split()) - SMALL <= set(words) for name in names)}
        taken = {stem(word) for term in exact for name in self.names[term] for word in name.split() if word in words}
        for term, names in self.stems.items():
            names = [name for name in names if name]
            here, faint = (clear, dim) if term in exact else (clear - taken, dim - taken)    # "valuable" may be "value"
            parts = [name & here - set(self.field_of) - COMMON for name in names if len(name) > 1]
            found[term] = 1.0 if any(name <= here for name in names) else 0.5 * (any(parts) or any(name <= faint for name in names))
            found[term] *= any(name <= known for name in names) or term in self.open
        return {term: weight for term, weight in found.items() if weight}

    def said(self, text):
        """kind -> tokens: what a text says, in the kinds of human.toml."""
        quoted = {match for match in re.findall(r"\"([^\"]+)\"", text)}
        found = {"number": set(re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?!\w| (?:fields|columns|keys|things|ways|parts|of them))", text)),
                 "word": {match[1] for match in self.vocabulary.finditer(text)},
                 "field": {self.field_of[stem(word)] for word in words_of(text)
                           if stem(word) in self.field_of and (word not in STOP or word in self.key_words or word in self.spelled)}}
        found["word"] |= {each for each in quoted if each[0].isalnum() and each not in STOP and not self.vocabulary.search(each) and not set(map(stem, words_of(each))) & {*self.field_of, *self.known}}
        bare = re.sub(r"\b(?:(?:most|least|more|less) )?([a-z]+)", lambda match: "term" if stem(match[1]) in self.known else match[0], self.shadow(text))
        for kind, tokens in tables()["kinds"].items():
            found[kind] = {token for token, pattern in tokens.items() if pattern.search(bare)}
        found["mark"] |= {each.strip() or each for each in quoted if not re.search(r"\w", each)}
        if len(found["edge"]) > 1:
            found["edge"] = {"out" if re.search(r"\b(not|no longer|never|exclu\w+)\b|n't\b", text) else "in"}
        if len(found["ever"]) > 1:
            found["ever"] = {"never"}
        if found["ties"] == {"a-z", "z-a"}:
            found["ties"] = {"z-a"}
        if "nearest" in found["round"]:
            found["round"] = {"nearest"}
        return found | {kind: set() for kind in ("end", "ties") if len(found[kind]) > 1}    # both: nothing clear

    def read(self, text, memory):
        return Heard(text, self.mentions(text, memory), self.aspects(text), self.said(text), set(stems_of(text)))

    # Which fact a question is about

    def points(self, fact, heard):
        """How well the aspects of a question fit a fact; below zero if they fit others only."""
        if not fact.aspect:
            return min(heard.aspects.get(fact.guess, 0), SURE) / 2
        also = tables()["aspects"].get(fact.aspect, {}).get("also", [])
        found = max([heard.aspects.get(fact.aspect, 0),
                     *(heard.aspects.get(other, 0) - 1 for other in also if (fact.term, other) not in self.own)])
        top, strong = self.top(heard)
        return found if found > 0.5 else -SURE * (strong and not (fact.aspect in HEADS and top in INNER))

    def top(self, heard):
        """(the aspect that a question fits best, whether surely)"""
        top = max(heard.aspects, key=heard.aspects.get, default="")
        return top, heard.aspects.get(top, 0) >= SURE

    def score(self, fact, heard, memory):
        """How well a question fits a fact."""
        score = self.points(fact, heard) + (fact.name not in memory.told) - 0.3 * (self.first(fact, memory.told) is not fact)
        score += min(4, 2 * sum(weight * self.rarity[word] for word, weight in fact.words.items() if word in heard.stems))
        taken_up = {other.term for other in self.facts if other.term and other.name in memory.told
                    and any(heard.said[kind] & other.about[kind] for kind in CONTENT)}
        terms = dict.fromkeys(taken_up, 0.7) | heard.terms
        if fact.term in terms:
            score += 3 * terms[fact.term]
        elif fact.term and fact.aspect not in (*RESULT, "more"):
            score -= 3 if terms else 2 * (fact.term not in memory.topics and fact.aspect not in ("order", "group"))
        if fact.term in memory.topics and not heard.terms:
            score += 0.8 / (1 + memory.topics[::-1].index(fact.term))
        if not terms or fact.term in terms:
            score += sum(bonus for kind, bonus in zip(CONTENT, (0.8, 1.5, 0.7)) if heard.said[kind] & fact.about[kind])
        return score

    def first(self, fact, told):
        """The fact, or what must be told before it."""
        while missing := [need for need in fact.needs if need not in told and need in self.by_name]:
            fact = self.by_name[missing[0]]
        return fact

    def untold(self, memory, term=None):
        """What can be told now, of one term or of all."""
        return [fact for fact in self.facts if fact.name not in memory.told and term in (None, fact.term)
                and self.first(fact, memory.told) is fact]

    def label(self, fact):
        """How a person would name a fact: the limit for "big"."""
        if not fact.aspect in tables()["aspects"]:
            return "the " + re.sub(r"[\W_]+", " ", fact.name).strip()
        label, name = tables()["aspects"][fact.aspect]["label"], f'"{self.names[fact.term][0]}"' if fact.term else "it"
        return label.format(term=name) if "{term}" in label else label + f" for {name}" * bool(fact.term)

    def answer(self, question, scene, memory):
        """(the fact that a question is about, "") or (None, what to say instead). scene: what was said before it"""
        acts, heard = tables()["acts"], self.read(question, memory)
        top, strong = self.top(heard)
        if scene:    # it sets the topic, and the aspect of a question like "Who goes first then?"
            wide, points_back = self.read(scene + question, memory), re.search(r"\b(then|that|this|it|there|those|them|here)\b", question)
            aspects = heard.aspects if strong and (heard.terms or not points_back) else wide.aspects
            heard = heard._replace(terms=heard.terms or wide.terms, aspects=aspects, said=heard.said if strong else wide.said)
            top, strong = self.top(heard)
        score, fact = max(((self.score(fact, heard, memory), fact) for fact in self.facts), key=lambda pair: pair[0], default=(0, None))
        fits = fact and self.points(fact, heard)
        if question in self.examples:
            return self.by_name[self.examples[question]], ""
        if acts["code"].search(question):
            return None, says("code", question)
        about = self.top(self.read(question, memory))
        if acts["general"].search(question) and not (about[1] and (about[0] in RESULT or about[0] == "more" and fits > 0)):
            return self.anything(heard, memory)
        if acts["needless"].search(self.shadow(question)) and not heard.terms and score < 2 * SURE:
            return None, says("needless", question)
        if acts["role"].search(question) and (users := [fact for fact in self.facts if heard.said["field"] & fact.about["field"]] or [None]) and heard.said["field"] - self.people:
            mine = [fact for fact in users if fact and (fact.term in heard.terms or not heard.terms)]
            if not users[0] or mine:
                return next((fact for fact in mine if fact.name not in memory.told), (mine or [None])[0]), says("no_role", fill=min(heard.said["field"]))
        if strong and not (fits and fits > 0) and top in (*RESULT, *HIDDEN):
            none = self.sure.get(top) or tables()["aspects"][top]["none"]
            return self.anything(heard, memory, none) if top in HIDDEN and not heard.terms else (None, none)
        vague = fact and fact.aspect in ("define", "formula") and not heard.terms and self.unclear(fact, heard, memory)
        if score < HEARD or vague or heard.terms and not heard.aspects and fact.aspect in INNER:
            return None, self.lost(heard, memory)
        return fact, ""

    def unclear(self, fact, heard, memory):
        """Whether a question for a meaning names what is not known, or could mean several terms."""
        rest = heard.stems - self.known - set(self.field_of)
        for aspect in tables()["aspects"].values():
            for match in aspect["sure"].finditer(self.shadow(heard.text)):
                rest -= set(map(stem, words_of(match[0])))
        return bool(rest) or fact.term not in memory.topics[-1:]

    def anything(self, heard, memory, none=""):
        """The answer to "Anything else?": what nobody can know, or what has not been asked. Never denies what exists."""
        for term in heard.terms:
            mine = [fact for fact in self.facts if fact.name not in memory.told and
                    (fact.term == term or any(self.by_name[need].term == term for need in fact.needs if need in self.by_name))]
            mine.sort(key=lambda fact: fact.aspect not in HIDDEN)
            return (mine[0], "") if mine else (None, says("no_more", heard.text, fill=self.names[term][0]))
        left = self.untold(memory)
        near = [fact for fact in left if fact.aspect in HIDDEN and fact.term in memory.topics[-1:]]
        hidden = [fact for fact in self.facts if fact.aspect in HIDDEN and fact.name not in memory.told]
        if near or len(left) == 1 and not none:
            return (near or left)[0], ""
        if not left or none and not hidden:
            return None, none or says("nothing", heard.text)
        return None, says("more", heard.text, fill=self.label((hidden if none else left)[0]))

    def lost(self, heard, memory):
        """The answer to a question that is not understood: what could be meant, and nothing that is hidden."""
        left = [fact for fact in self.untold(memory) if fact.aspect not in HIDDEN]
        left = [fact for fact in left if fact.term in heard.terms] or left
        labels = list(dict.fromkeys(map(self.label, left)))[:2]
        guess = f"Do you mean {' or '.join(labels)}?" if labels else says("known")
        return says("lost", heard.text, memory.turn) + " " + guess

    # Whether a proposal is right

    def clauses(self, sentence, memory):
        """The claims of a sentence: it is cut where another term or aspect begins, not inside a list."""
        parts, subject = [""], set()
        for piece in re.split(r"(?<!\")(,|;|\b(?:but|except|and|while)\b| - | – |—)(?! ?\")", sentence):
            heard = self.read(piece, memory)
            about = {name for name, points in heard.aspects.items() if points >= SURE and name not in ("define", "values", "names", "direction")}
            about |= set(heard.terms)
            if subject and (about - subject or piece == ";"):
                parts.append("")
            subject = about or subject
            parts[-1] += piece
        return [part for part in parts if re.search(r"\w", part)]

    def verdict(self, fact, heard, told):
        """What a claim says about a fact: right, open (right, leaves something unsaid), unsure, partly, wrong or ""."""
        grades, keys, core, aspect = set(), set(), False, tables()["aspects"].get(fact.aspect)
        own = {self.field_of.get(word) for name in self.stems.get(fact.term, []) for word in name}
        said = heard.said
        if fact.aspect == "empty":    # not what stands in "if nothing is left"
            said = self.said(re.sub(r"\b(if|when|in case|for|with)\b[^,]*", "", heard.text))
        groups = aspect["kinds"] if aspect else [[kind] for kind in fact.values]
        for kinds in groups:
            kind = next((kind for kind in kinds if kind in fact.values), kinds[0])
            if kind != fact.aspect and (fact.term, kind) in self.own:    # another fact has it: a limit and its edge
                continue
            mine, theirs = fact.values.get(kind, set()), set(said.get(kind, ()))
            if kind == "join" and len(keys) < 2:
                continue
            if kind == "field":
                theirs -= own - mine
                if fact.term not in heard.terms and not re.search(r"\b(it|that|this|they)('s)?\b", heard.text):
                    theirs -= {key for key in theirs if any({stem(key)} in self.stems[term] for term in heard.terms)}
                theirs -= self.people - mine if theirs - self.people else set()
                keys = theirs
            if theirs and mine:
                core |= kinds is groups[0] or kind == "edge" or not any(kind in fact.values for kind in groups[0])
                if theirs == mine or kind == "form" and theirs <= mine:
                    grades.add("right" if kind != "field" or not mine <= self.people else "unsure")
                elif kind == "number" and mine < theirs:
                    grades.add("unsure")
                elif fact.name not in told or kind not in ("field", "word") or not theirs < mine:    # else it refers to it
                    grades.add("partly" if theirs & mine else "wrong")
            elif mine:
                other = any(said.get(other) for other in kinds) and heard.aspects.get(fact.aspect, 0) >= SURE
                grades.add("wrong" if other else "open")
                core |= other
            elif theirs:
                grades.add("unsure")
        if not core or not grades & {"right", "wrong", "partly", "unsure"} or fact.aspect in ("define", "formula") and not keys:
            return ""
        if fact.aspect == "formula" and ("open" in grades or len(fact.values.get("op", ())) > 1):
            grades.add("unsure")    # the order of its steps cannot be checked
        if grades & {"wrong", "partly"}:
            return "partly" if grades & {"right", "partly"} else "wrong"
        return next(grade for grade in ("unsure", "open", "right") if grade in grades)

    def check(self, sentence, memory):
        """(detail -> verdict on a sentence's claims, the claims that nothing is known about)"""
        found = {}
        rest = []
        for clause in self.clauses(re.sub(r"\b(you mean|(to )?sum(ming)? up|to summari[sz]e)\b[:,]?", "", sentence), memory):
            heard = self.read(clause, memory)
            _, strong = self.top(heard)
            only = [fact for fact in self.facts if fact.aspect in RESULT and heard.aspects.get(fact.aspect, 0) >= SURE]
            scored = []
            for fact in only or self.facts:
                if heard.terms and fact.term not in {"", *heard.terms} and fact.aspect not in RESULT:
                    continue
                if fact.aspect in ("count", "empty") and self.points(fact, heard) <= 0:
                    continue    # a number alone says nothing
                grade, named = self.verdict(fact, heard, memory.told), bool(fact.about["word"] & heard.said["word"])
                hides = fact.aspect in HIDDEN and (grade == "open" and not heard.said["ever"] or not named)
                if grade and (self.points(fact, heard) > 0 or not strong and not hides or named and not hides
                              or fact.term in heard.terms and grade == "right"):
                    scored.append((self.score(fact, heard, memory) + 1.5 * (grade in ("right", "open")) + 0.5 + 5 * (named and not hides and fact.aspect in HIDDEN), fact))
            score, target = max(scored, key=lambda pair: pair[0], default=(0, None))
            found |= {name: grade for name, grade in self.verdicts(target, only, heard, memory).items() if name not in found} if score >= HEARD else {}
            if score < HEARD and (heard.terms or strong or any(heard.said[kind] for kind in CONTENT)):
                rest.append(clause.strip(" ,;"))
            topics = [target.term] if target and score >= HEARD else heard.terms
            memory = memory._replace(topics=(*memory.topics, *topics))
        return found, rest

    def verdicts(self, target, only, heard, memory):
        """What a claim about a fact says about this and the other facts of its term: detail -> verdict."""
        found = {}
        chain = [fact for fact in self.facts if fact is target or fact in only
                 or target.term and fact.term == target.term and not {fact.aspect, target.aspect} & set(HIDDEN)]
        known = {*memory.told, *(fact.name for fact in chain)}
        for fact in sorted(chain, key=lambda fact: fact is not target):
            if fact.aspect in HEADS and re.search(r"\b(no|not|isn't|don't see|without)\b", heard.text):
                continue    # There is no key called "value".
            grade = self.verdict(fact, heard, memory.told)
            if grade in ("wrong", "partly") and fact is not target and fact.aspect in HEADS and self.points(fact, heard) <= 0:
                continue    # it is about a limit, say, not about the meaning
            if grade and known.issuperset(fact.needs):
                found[fact.name] = grade
        return found

    # A message and its reply

    def hear(self, text, memory):
        """(detail -> verdict on what a message proposes, [(scene, question)], the terms that it names)"""
        claims, questions, scene, topics = {}, [], "", []
        acts, parts = tables()["acts"], sentences(text)
        for part in parts:
            now = memory._replace(topics=(*memory.topics, *topics))
            body, _, tail = part.rpartition(", " if ", " in part else " - ")
            tagged = bool(body) and acts["approves"].fullmatch(tail.rstrip("?.! "))
            if len(parts) > 1 and part is not parts[0] and acts["approves"].fullmatch(part.rstrip("?.! ")):
                continue    # "Is that right?"
            asks = part in self.examples or acts["cases"].search(part) or (
                not acts["claims"].search(part) and acts["asks" if part.endswith("?") else "requests"].search(part))
            checked, rest = self.check(body if tagged else part, now) if tagged or not asks else ({}, [])
            claims = checked | claims
            if checked:
                questions += [("", clause) for clause in rest]
            if not checked and (asks or part.endswith("?")):
                questions.append((scene, part))
            elif not checked:
                scene += part + " "
            topics += [self.by_name[name].term for name in checked if self.by_name[name].term] or self.mentions(part, now)
        if scene and not questions and not claims:
            questions.append(("", scene.strip()))
        return claims, questions, tuple(topics)

    def judge(self, claims, memory, alone):
        """(sentences, details settled, the last fact) in answer to proposals. alone: nothing else is asked"""
        facts = {name: self.by_name[name] for name in claims}
        wrong = [name for name, grade in claims.items() if grade in ("wrong", "partly")]
        right = [name for name in claims if name not in wrong]
        fresh = [name for name in right if name not in memory.told]
        if wrong:
            fact = facts[wrong[0]]
            lead = f"Right, except for {self.label(fact)}." if right else "Not quite." if claims[fact.name] == "partly" else "No."
            more = ["And that isn't all that's different."] if wrong[1:] else []
            settled = [name for name in fresh if claims[name] == "right"]
            return [lead, fact.reply, *more], [*settled, fact.name], fact
        if not right or not (alone or fresh):
            return [], [], None
        unsure = [name for name in right if claims[name] == "unsure"]
        again = [name for name in fresh if claims[name] != "right" or facts[name].aspect in HEADS][:2] or unsure[:1]
        lead = says("exact", *right) if unsure else says("yes", *right, memory.turn)
        if not alone and not unsure:
            lead = f"You're right about {self.label(facts[right[0]])}."
        settled = [name for name in fresh if claims[name] == "right" or name in again]
        return [lead, *(facts[name].reply for name in again)], settled, facts[right[-1]]

    def reply(self, memory, message, manner):
        """(reply, details told for the first time, the memory after it)"""
        text = plain(message)
        claims, questions, topics = self.hear(text, memory)
        now = memory._replace(topics=(*memory.topics, *topics))
        now = now._replace(told=(*now.told, *self.judge(claims, now, True)[1]))
        targets, instead = {}, [] if text.strip() else [says("code", message)]
        for scene, question in questions:
            heard = self.read(question, now)
            if targets and not heard.terms and not any(heard.aspects.get(name, 0) >= SURE for _, name in self.own):
                continue    # it only goes on about the question before it
            target, other = self.answer(question, scene, now)
            if target and target.name in claims:
                continue
            if target:
                targets.setdefault(self.first(target, now.told).name)
            else:
                instead.append(other)
        words, told, fact = self.judge(claims, memory, not targets and not instead)
        if targets and any(grade in ("wrong", "partly") for grade in claims.values()) and fact.name not in memory.told:
            words = [says("first", text), *words]    # a correction is an answer
        elif targets:
            fact = self.by_name[next(iter(targets))]
            known = fact.name in now.told
            words += [says("again", text)] * (known and not claims) + [says("first", text)] * (len(targets) > 1 and not known) + [fact.reply]
            told = [*told, fact.name]
        elif instead or not words:
            words += instead[:1] or [self.lost(self.read(text, now), now)]
        told += [other for name in told for other in self.by_name[name].implies]
        told = [name for name in dict.fromkeys(told) if name not in memory.told]
        topics = (fact.term,) if fact and fact.term else topics
        after = memory._replace(told=(*memory.told, *told), topics=(*memory.topics, *topics), turn=memory.turn + 1)
        reply, told, after = self.in_manner(manner, words, told, after)
        return reply, told, after._replace(heard=after.heard + " " + plain(reply))

    def in_manner(self, manner, words, told, memory):
        """The reply of a human who is vague at first, or who is wrong once and says so in the next reply."""
        if memory.wrong:
            fact = self.by_name[memory.wrong]
            words = [says("mistaken", fill=self.label(fact)), fact.reply, *(word for word in words if word != fact.reply)]
            told, memory = [fact.name, *told], memory._replace(wrong="")
        elif manner == "vague" and told and not memory.changed:
            kept = tuple(name for name in memory.told if name not in told)
            words, told, memory = [says("usual", *words)], [], memory._replace(told=kept, changed=True)
        elif manner == "revising" and told and not memory.changed and len(memory.told) < len(self.facts):
            fact = self.by_name[told[-1]]
            other = re.sub(r"\d+", lambda match: str(int(match[0]) + 1 + int(match[0]) // 4), fact.reply)
            if other != fact.reply:
                words = [other if word == fact.reply else word for word in words]
                told, memory = told[:-1], memory._replace(wrong=fact.name, changed=True)
        return " ".join(dict.fromkeys(words)), told, memory


def questions_of(raw):
    """The example questions of a fact as it stands in a file."""
    return [*([raw["question"]] if raw.get("question") else []), *(raw.get("questions") or [])]


def stems_of(text):
    """The stems of the words that carry meaning."""
    return [stem(word) for word in words_of(text) if word not in STOP]


COMMON = {stem(word) for word in STOP}


@lru_cache(maxsize=256)
def listener(text):
    return Listener(json.loads(text))


@lru_cache(maxsize=20_000)
def replied(human, memory, message, manner):
    return human.reply(memory, message, manner)


def scripted_reply(task, dialogue, manner="plain"):
    """(The human's reply to the last message of a dialogue, names of the details that it tells for the first time)

    task: with problem_description and facts, perhaps terms, sure, ground_truth, test_cases; dialogue: messages, of which
    the agent's count; manner: one of MANNERS. The agent's messages are replayed, each once, so no state is needed.
    """
    kept = ("problem_description", "ground_truth", "facts", "terms", "sure", "test_cases")
    human = listener(json.dumps({key: task.get(key) for key in kept}, ensure_ascii=False))
    memory, reply, told = Memory(), "", []
    for message in dialogue:
        if message["role"] == "assistant":
            reply, told, memory = replied(human, memory, message["content"], manner)
    return reply, list(told)
