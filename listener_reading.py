"""What a task says, and what a text says in the words of that task.

A task hides facts. A fact settles one aspect, such as the limit, of a term of the request ("big") or of the result.
A Reader knows the words of one task: its terms and their names, the keys of its rows and the words that stand in them.
It finds in any text
- the terms that it names, in any form of their words: "bigger" names "big",
- the aspects that its wording fits, each with points: "From what number on?" fits the limit,
- tokens, which are the parts of a claim in one form each: "20 or more" has the number 20 and the edge "in".

Before patterns are tried, the words of the task are replaced by words that all tasks share. This is the shadow of a
text. "Is the price of an order high?" becomes "Is the _figure of an row high?". Patterns stand in listener.toml.
"""
import math
import re
from functools import lru_cache
from typing import NamedTuple

from listener_words import (
    CONTENT, act, data, features, list_of, matches, name_of, plain, questions_of, rewritten, stem, stop_stems, tables,
    without, words_of)

SURE, LIKELY = 3.0, 1.5    # points of a question for the aspects that its wording fits
CERTAIN = 4.5              # points for an aspect that it is sure to be about; two thirds of that are SURE
UNLIKELY = -18              # the least that examples say against an aspect: long questions have many words of their own
PRIOR = 0.05               # the odds that a question is about nothing
LONG = 30                  # characters of a match that earns one point more

# Aspects of a term: what it means, what else can be asked about it, and what nobody can know that it is there.
HEADS = ("define", "formula", "order", "group")
HIDDEN = ("except", "extra")
INNER = ("limit", "edge", "values", "names", *HIDDEN)
LIMITS = ("limit", "edge")           # of a number
CHOICES = ("values", "names")        # of words
ONCE = ("order", "group")            # of which a task has one, and it has a term
# Aspects of the result, of which a task has one each. About the last two there are no facts, but good sense.
MADE = ("ties", "count", "format", "between", "round", "empty")
RESULT = (*MADE, "absent", "fewer")
BESIDE_KINDS = ("ties", "count", "format", "absent", "fewer")    # which no check of a kind of thing is about

# aspect -> kinds of tokens that are taken from a fact's reply if its values leave them out
IMPLIED = {"except": ["ever"], "extra": ["op"], "limit": ["end", "edge"], "edge": ["end"]}
NEVER = "(?!)"             # a pattern that fits nothing
KEY = r"[\"'](\w+)[\"']"    # a key in quotes


class Fact(NamedTuple):
    name: str
    reply: str
    term: str        # "" for the result as a whole
    aspect: str      # what it is about: a name of [aspects] in listener.toml
    values: dict     # kind -> tokens that a proposal must name
    about: dict      # field, word, number -> tokens that a question about it may take up
    needs: list
    implies: list

    @property
    def is_hidden(self):
        return self.aspect in HIDDEN

    def shared(self, said, kind):
        """The tokens of a kind that a text takes up."""
        return self.about[kind] & said[kind]


class Heard(NamedTuple):
    """What a text says."""
    text: str
    terms: dict      # term -> how clearly it is named, up to 1
    aspects: dict    # aspect -> points
    said: dict       # kind -> tokens

    def best_aspect(self):
        """(the aspect that it fits best, whether surely)"""
        best = max(self.aspects, key=self.aspects.get, default="")
        return best, self.fits(best)

    def fits(self, aspect):
        """Whether it surely is about an aspect."""
        return self.aspects.get(aspect, 0) >= SURE


class Reader:
    """Reads texts with the words of one task."""

    # ---- What a task says

    def __init__(self, task):
        raws = task["facts"] or []
        # The example of a row is no part of what is said.
        self.request = plain(re.sub(r"\{.*?\}", "", task["problem_description"] or ""))
        self.reference = task["ground_truth"] or ""
        self.learn_terms(task, raws)
        self.learn_words(task, raws)
        self.facts = [self.fact(n, raw) for n, raw in enumerate(raws)]
        self.by_name = {fact.name: fact for fact in self.facts}
        groups = re.search(r"\b(table|totals|names)\b", self.reference)
        self.has_groups = bool(groups) or "found" not in self.reference    # of which some may have no rows
        self.aspects_here = {fact.aspect for fact in self.facts}
        self.settled_by_facts = {(fact.term, fact.aspect) for fact in self.facts}
        self.open_terms = {fact.term for fact in self.facts if not fact.needs}    # terms of the request
        self.sure_replies = {row["aspect"]: row["reply"] for row in task["sure"] or []}
        self.examples = {}    # a question -> the detail that it asks for
        for fact, raw in zip(self.facts, raws):
            self.examples |= {plain(question): fact.name for question in questions_of(raw)}
        self.complete_facts()

    def learn_terms(self, task, raws):
        """The terms and their names. A term of a fact that the task does not list is its own name."""
        names = {}
        for term, about in (task["terms"] or {}).items():
            names[term] = list_of((about or {}).get("names")) or [term]
        for raw in raws:
            if raw.get("term"):
                names.setdefault(raw["term"], [raw["term"]])
        self.names, self.name_stems = {}, {}    # term -> names; term -> the stems of each name
        self.term_words, self.term_stems = set(), set()
        small = data()["words"]["small"]
        for term, spelled in names.items():
            self.names[term] = [name.lower().replace("-", " ") for name in spelled]
            self.name_stems[term] = []
            for name in self.names[term]:
                words = [word for word in name.split() if word not in small] or [name]
                stems = set(map(stem, words))
                self.name_stems[term].append(stems)
                self.term_words.update(words)
                self.term_stems.update(stems)

    def learn_words(self, task, raws):
        """The keys of the rows, the words that stand in them, and the rows' noun."""
        code, calls = self.reference.lower(), task["test_cases"] or {}
        calls = " ".join(map(str, calls.values()))
        shown = f"{task['problem_description']} {code} {calls}".lower()
        keys = self.learn_keys(shown, code, raws)
        self.learn_vocabulary(shown, keys, raws)
        self.learn_noun(code if task["terms"] else "")

    def learn_keys(self, shown, code, raws):
        """All keys, which are found as {"price": 3} or order["price"]; the measures of formulas are used like keys."""
        measures = set()
        for raw in raws:
            if raw.get("aspect") == "formula" and raw.get("term"):
                measures.add(self.names[raw["term"]][0])
        keys = set(re.findall(rf"{KEY}\s*:(?!\n)", shown))
        keys |= set(re.findall(rf"\w\[{KEY}\]", code)) | measures
        for raw in raws:
            keys |= {str(key).lower() for key in values_of(raw, "field")}
        figures = measures | set(re.findall(rf"{KEY}\s*:\s*-?\d", shown))
        self.labels = set(re.findall(rf"{KEY}\s*:\s*[\"']", shown))    # the keys of words
        self.key_forms = {}    # a word for a key -> the key
        for key in sorted(keys - data()["words"]["keep"]):    # in the singular and the plural, however it is formed
            forms = (key, f"{key}s", f"{key}es", re.sub("y$", "ies", key), key.removesuffix("s"))
            self.key_forms |= dict.fromkeys(forms, key)
        # a word for a key -> what stands for it in a shadow
        self.key_words = {word: "_figure" if key in figures else "_label" for word, key in self.key_forms.items()}
        self.key_of = {stem(key): key for key in sorted(keys)}    # a stem -> the key that it is of
        for term, names in self.names.items():
            for key in sorted(keys & set(names)):    # a term that stands for a key
                self.key_of |= {min(stems): key for stems in self.name_stems[term] if len(stems) == 1}
        self.requested_keys = self.keys_in(words_of(self.request))    # such as the "customer" that is looked for
        return keys

    def keys_in(self, words):
        """The keys that words are, as they stand or in another form."""
        found = {self.key_forms.get(word) or self.key_of.get(stem(word)) for word in words}
        return found - {None}

    def learn_vocabulary(self, shown, keys, raws):
        """The words that stand in the rows, and patterns that have such words in them."""
        words = set(re.findall(r"[\"']([^\"'\\\n]{2,30})[\"']", shown)) - keys
        for raw in raws:
            words |= {str(word).lower() for word in values_of(raw, "word")}
        words = [word for word in words if word[:1].isalnum()]
        words.sort(key=len, reverse=True)    # the longest is tried first
        figures = [word for word, kind in self.key_words.items() if kind == "_figure"]
        spelled = [re.escape(word) + "?" * (len(word) > 4 and word[-1] == "s") for word in words]
        self.spellings = "|".join(spelled) or NEVER
        self.spelled = {word.removesuffix("s"): word for word in words} | {word: word for word in words}
        self.vocabulary = self.pattern("vocabulary", figures)
        self.having = self.pattern("having", figures)
        self.example = self.pattern("example", figures)

    def pattern(self, name, figures):
        """A pattern of [templates], filled with the words of the task."""
        text = data()["templates"][name]
        text = text.replace("FIGURE", "|".join(figures) or NEVER)
        return re.compile(text.replace("WORD", self.spellings))

    def learn_noun(self, code):
        """The noun of the rows: def report(orders) is about an "order"."""
        found = re.search(r"def \w+\((\w+s)\)", code)
        if not found:
            self.row = "thing"
            self.noun = re.compile(NEVER)
            return
        one = re.sub(r"ies$", "y", found[1])    # entries, matches, orders
        one = re.sub(r"(?<=ch|sh|ss|.x)es$|s$", "", one)
        noun = data()["noun"].replace("ROWS", found[1])
        self.row = one or "thing"
        self.noun = re.compile(noun.replace("ROW", one))

    def fact(self, n, raw):
        """A fact as it stands in a file, with what its reply says beside its values."""
        values = {}
        for kind in raw.get("values") or {}:
            tokens = {str(token).lower().strip() or " " for token in values_of(raw, kind)}
            if tokens:
                values[kind] = tokens
        if "form" in values:    # the form of an entry: "pairs", or a pattern such as "{n}: {v}"
            names_only = values["form"] == {"{n}"}
            with_figures = {"figures", *values["form"]} - {"names"}
            values["form"] = {"names"} if names_only else with_figures
        said = self.said(plain(raw["reply"]))
        for kind in IMPLIED.get(raw["aspect"], []):
            if said[kind]:
                values.setdefault(kind, said[kind])
        about = {kind: set(values.get(kind, ())) for kind in CONTENT}
        needs = list_of(raw.get("needs"))
        implies = list_of(raw.get("implies"))
        term = raw.get("term") or ""
        return Fact(name_of(n, raw), raw["reply"], term, raw["aspect"], values, about, needs, implies)

    def facts_about(self, *aspects):
        return [fact for fact in self.facts if fact.aspect in aspects]

    def complete_facts(self):
        """What facts take over from the meaning of their term: a limit is one of a number, a choice of words one of a
        key of words."""
        meanings = {fact.term: fact.values for fact in self.facts_about("define")}
        for fact in self.facts:
            meaning = meanings.get(fact.term, {})
            keys = meaning.get("field", set())
            if fact.aspect in LIMITS:
                fact.about["field"].update(keys - self.labels)
            elif fact.aspect in CHOICES:
                fact.about["field"].update(keys & self.labels)
            if fact.aspect in LIMITS and "end" in meaning:
                fact.values["end"] = meaning["end"]

    # ---- What a text says

    def read(self, text, memory):
        terms = self.mentions(text, memory)
        return Heard(text, terms, self.aspects(text), self.said(text))

    # The shadow of a text

    def shadow(self, text):
        """A text with "row" for the rows' noun and "_figure" or "_label" for their keys."""
        def noun(match):
            return "rows" if match[0].endswith("s") else "row"

        def key(match):
            return self.key_words.get(match[0], match[0])

        return re.sub(" +", " ", self.noun.sub(noun, re.sub(r"[a-z_]\w*", key, text)))

    def with_terms(self, text):
        """The shadow of a text, with "term" for each of a term's words."""
        def term(match):
            return "term" if stem(match[1]) in self.term_stems else match[0]

        return re.sub(r"\b(?:(?:most|least|more|less) )?([a-z]+)", term, self.shadow(text))

    # Aspects

    def aspects(self, text):
        """aspect -> points of a question, by its patterns.

        A sure pattern that fits gives SURE points, and a little more the longer the match is. A hint gives LIKELY ones.
        Two hints count as much as a sure pattern, but only one does where a sure pattern fits.
        """
        shadow = self.shadow(text)
        matches_here = aspect_matches(without("aside", shadow))
        fitting = {name for name, longest, hints in matches_here if longest}
        hints_that_count = 1 if fitting - {"define"} else 2
        points = {}
        for name, longest, hints in matches_here:
            points[name] = SURE if longest else 0
            points[name] += LIKELY * min(hints, hints_that_count)
            points[name] += min(longest, LONG) / LONG
        if not self.has_groups:
            points["absent"] = 0
        self.strike_out(points, shadow)
        if self.checks_kind(text):
            points.update(dict.fromkeys(BESIDE_KINDS, 0))
        return {name: number for name, number in points.items() if number}

    def surely_about(self, text):
        """The aspects that a text is about by a pattern that surely fits."""
        return {name for name, points in self.aspects(text).items() if points >= SURE}

    def checks_kind(self, text):
        """Whether a text checks a thing: "Does a van count as slow if it has 0 stops?" is not about how many I want."""
        if not matches("instance", self.with_terms(text)) or matches("asks", without("aside", text)):
            return False
        # "Should a city appear, even if none of its orders is slow?" is about the groups.
        return not (self.has_groups and tables()["aspects"]["absent"]["sure"].search(self.shadow(text)))

    def strike_out(self, points, shadow):
        """Takes the points from aspects of a shadow that yield to another one.

        What the task has no fact of yields to what it has one of. "Which one goes first if two are equal?" may be about
        the order, but is about ties if there is a fact of ties only. A surer aspect wins over those in its `over`.
        """
        sure = {name for name in points if points[name] >= SURE}
        if "between" in sure and matches("inside_entry", shadow):
            points.update(between=0, format=CERTAIN)
        if self.aspects_here & sure:
            unsettled = sure.intersection(MADE + ONCE).difference(self.aspects_here, self.sure_replies)
            points.update(dict.fromkeys(unsettled, 0))
        for name in sorted(points, key=points.get, reverse=True):
            if points[name] >= SURE:
                points.update(dict.fromkeys(tables()["aspects"][name]["over"], 0))

    def weigh(self, question, memory):
        """What a question says. Each aspect gets points for its probability, given patterns and example questions.

        This is naive Bayes. Half of the logarithms count, as neighbouring words are not independent.
        """
        heard, weights = self.read(question, memory), tables()["weights"]
        shadow = without("aside", self.shadow(question))

        def term(match):
            return "term" if stem(match[0]) in self.term_stems else match[0]

        text = self.vocabulary.sub("word", re.sub(r"\b[a-z]\w*", term, shadow))
        rows = [weights[feature] for feature in features(text) if feature in weights]
        odds = {}
        for name, aspect in tables()["aspects"].items():
            if name == "absent" and (not self.has_groups or heard.fits("empty")):    # its patterns tell the two apart
                continue
            is_strange = name in ("between", "round") and name not in self.aspects_here and not heard.fits(name)
            if is_strange and any(map(heard.fits, heard.aspects)) or not aspect["needs"].search(text):
                continue    # what the task has nothing of is not heard in examples alone
            evidence = max(UNLIKELY, sum(row[name] for row in rows))
            patterns = heard.aspects.get(name, 0)
            odds[name] = math.exp(1.5 * patterns + 0.5 * evidence)
        total, checks_kind = sum(odds.values()) + PRIOR, self.checks_kind(question)
        points = {}
        for name, number in odds.items():
            if number > total / 50 and not (checks_kind and name in BESIDE_KINDS):
                points[name] = CERTAIN * number / total
        best = max(points, key=points.get, default="")
        fitting = [name for name in heard.aspects if heard.fits(name)]
        is_count = fitting == ["count"] and best in ("count", *INNER, *HEADS) and matches("wanted", question)
        is_long = best == "format" and heard.aspects.get(best, 0) >= SURE + 1    # what fits
        if fitting == [best] and (best in (*HIDDEN, "absent") or is_count or is_long):    # patterns and examples agree
            points[best] = max(points[best], SURE)
        is_hidden = set(fitting) <= {*HIDDEN} and best not in LIMITS and not checks_kind
        if fitting and best not in fitting and (is_hidden or is_count):
            points[max(fitting, key=heard.aspects.get)] = CERTAIN    # no other pattern fits
        return heard._replace(aspects=points)

    # Terms

    def mentions(self, text, memory):
        """term -> how clearly a text names it: 1 if by all words of a name, 0.5 if by a part.

        A term that only a later reply brings up is not known before. "How long" and "long enough" name "long" faintly.
        """
        text = act("specific").sub(" ", text)
        # "like" is not "liked", nor is a repair that is "billed" a bill.
        no_names = {"values", *data()["words"]["stop"], *self.key_words, *self.spelled} - self.term_words
        words = [word for word in words_of(text.replace("-", " ")) if word not in no_names]
        faint, clear = set(map(stem, words)), set()
        for before, word, after in zip(["", *words], words, [*words[1:], ""]):
            if before != "how" and after != "enough":
                clear.add(stem(word))
        exact = self.named_word_by_word(words)
        taken = set()    # the stems of words that name a term as they stand
        for term in exact:
            names = " ".join(self.names[term]).split()
            taken |= {stem(word) for word in names if word in words}
        spoken = f"{self.request} {memory.heard}".replace("-", " ")
        spoken = set(map(stem, words_of(spoken)))
        dull = {*self.key_of, *stop_stems()}
        found = {}
        for term, names in self.name_stems.items():
            if term not in self.open_terms and not any(name <= spoken for name in names):
                continue
            left = set() if term in exact else taken    # "riskier" next to "risk" is a form of another term
            here, dim = clear - left, faint - left
            telling = here - dull
            if any(name <= here for name in names):
                found[term] = 1.0
            elif any(name <= dim or len(name) > 1 and name & telling for name in names):
                found[term] = 0.5
        return found

    def named_word_by_word(self, words):
        """The terms of which a name stands in a text as it is spelled."""
        small, found = data()["words"]["small"], set()
        for term, names in self.names.items():
            if any(set(name.split()) - small <= set(words) for name in names):
                found.add(term)
        return found

    # Tokens

    def said(self, text):
        """kind -> tokens: what a text says, in the kinds of listener.toml."""
        text = rewritten("counted", text)
        found = {kind: set(tokens) for kind, tokens in tokens_said(self.with_terms(text))}
        found["number"] = {match[0] for match in act("number").finditer(text)}
        found["word"] = {self.spelled.get(match[1], match[1]) for match in self.vocabulary.finditer(text)}
        dull = data()["words"]["stop"] - {*self.key_words, *self.term_words}
        found["field"] = self.keys_in(word for word in words_of(without("named", text)) if word not in dull)
        for quoted in re.findall(r"\"([^\"]+)\"", text):
            if self.is_strange(quoted):
                found["word"].add(quoted)
            if not re.search(r"\w", quoted):
                found["mark"].add(quoted.strip() or quoted)
        self.settle_doubts(found, text)
        return found

    def is_strange(self, quoted):
        """Whether what stands in quotes is a word that the task does not have: 'It says "none".'"""
        if not quoted[0].isalnum() or quoted in data()["words"]["stop"] or self.vocabulary.search(quoted):
            return False
        stems = set(map(stem, words_of(quoted)))
        known = {*self.key_of, *self.term_stems}
        return not stems & known

    def settle_doubts(self, found, text):
        """Leaves one token, or none, of a kind of which two were found that exclude each other."""
        found["mark"] = found["mark"] - {" "} or found["mark"]    # a comma and a space
        if len(found["edge"]) > 1:
            found["edge"] = {"out" if matches("excludes", text) else "in"}
        for kind, token in {"ever": "never", "ties": "z-a", "round": "nearest"}.items():    # "reverse alphabetical"
            if token in found[kind] and found[kind] != {"z-a", "earlier"}:
                found[kind] = {token}
        for kind in ("end", "ties"):
            if len(found[kind]) > 1:
                found[kind] = set()


def values_of(raw, kind):
    values = raw.get("values") or {}
    return list_of(values.get(kind))


@lru_cache(maxsize=20_000)
def aspect_matches(shadow):
    """[(aspect, length of the longest match of its sure patterns, how many of its hints fit)] of a text's shadow."""
    found = []
    for name, aspect in tables()["aspects"].items():
        longest = max((len(match[0]) for match in aspect["sure"].finditer(shadow)), default=0)
        found.append((name, longest, sum(bool(hint.search(shadow)) for hint in aspect["likely"])))
    return found


@lru_cache(maxsize=20_000)
def tokens_said(shadow):
    """[(kind, tokens)] of a text's shadow, in the kinds of listener.toml."""
    return [(kind, [token for token, pattern in tokens.items() if pattern.search(shadow)])
            for kind, tokens in tables()["kinds"].items()]
