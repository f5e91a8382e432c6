"""The scripted human: a person who listens, remembers, and tells what a task hides, one thing at a time.

A task hides `facts`. A fact is a detail's name, example questions or keywords, and a reply; for example
{"detail": "currency", "questions": ["Which currency?"], "reply": "Euros, please."}. More is optional:
  term     what it is about, a key of the task's `terms` ({"big": {"names": ["big", "large"]}}); absent: the result
  aspect   what it settles: a key of [aspects] in human.toml, such as "limit"
  values   what a proposal must say to be right, such as {"number": ["20"], "edge": ["in"]}; keys of [kinds]
  needs    details that are told before this one
  implies  details that its reply settles as well

scripted_reply(task, dialogue, manner) -> (reply, details newly told). It depends on the task and the agent's messages
only: the messages are replayed, so the human's memory needs no state.

How a message is understood. It is cut into sentences. A sentence that asks is compared with each fact: which terms it
names in any form of their words, which aspects its wording fits, what it takes up from earlier replies, how much it
shares with the example questions. The best fact is told, or what it needs. A sentence that proposes something is
checked claim by claim: several facts can be confirmed at once, and the wrong part is named. A question that is not
understood is answered with what was understood. It never costs a fact.
"""
import json
import math
import re
import tomllib
import zlib
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

MANNERS = ("plain", "vague", "revising")
SURE, LIKELY = 3.0, 1.5    # points of a question for the aspects that its wording fits
HEARD = 2.0                # a question with fewer points for every fact is not understood
HEADS = ("define", "formula", "order", "group")    # what a term means
HIDDEN = ("except", "extra", "more")               # what nobody can know that it is there
INNER = ("limit", "edge", "values", "names", "except", "extra")    # what can be asked about a term once it is known
RESULT = ("direction", "ties", "count", "format", "between", "round", "empty")    # one of each in a task

YES = ["Yes.", "Yes, exactly.", "That's right.", "Right."]
LOST = ["Sorry, I don't follow.", "I'm not sure what you're asking.", "Hm, I don't quite understand the question."]
REPEAT = ["As I said before:", "I told you already:", "Like I said:"]
FIRST = ["One thing at a time.", "Let me take the first one.", "One question at a time, please."]
NO_CODE = ["I'm no programmer. Ask me in words what I want.", "I can't read or write code. Ask me in words, please."]
NO_MORE = ["No, nothing else.", "No, that's everything.", "No, now you know it all."]
NEEDLESS_REPLY = ["That won't come up.", "You needn't worry about that.", "Don't worry about that."]
USUAL = ["Oh, the usual.", "Just the usual, you know.", "Well, what one normally means by that."]

STOP = set("""a about actually again all also an and another any are as ask asking at be been before being both but by call called
    can clear clarify come comes could data decide decides define did do does doing each either else ever every exact exactly
    fact far field fields for from function get getting give go got had has have having here how i if in information input into is
    it item its just keep know last let like list look make many may me mean meaning means might more most much must my name
    need needs next no not now number of ok okay on one ones only or other our out over own part please precise precisely
    question quick regarding right row rows rule say says see shall should show so some something sort still such sure take tell
    than thank thanks that the their them then there these they thing things this those to too two understand up us use used using
    value values very want was way we well were what when where whether which while who whom whose why will with word words would
    yes yet you your i'm i'd i'll it's that's what's don't doesn't isn't aren't let's you're there's who's how's again""".split())
SMALL = set("most least our my the of from by a an in for with to and or".split())
KEEP = {"name", "number", "value", "count", "order", "total", "result"}    # keys that questions use in another sense
DIGITS = dict(zip("two three four five six seven eight nine ten eleven twelve".split(), map(str, range(2, 13))))

ASKING = re.compile(r"\b(what|which|who|whom|whose|how|why|whether)\b|^(\W*(and|so|but|then|ok|okay|also|now)\W+)*(when|where)\b"
                    r"|^(\W*(and|so|but|then|ok|okay|also|now|first|please)\W+)*(please|define|explain|tell|give|list|name|describe|clarify|specify|show"
                    r"|(can|could|would|will) you|i('d| would)? (need|want|like|wonder)|let me know|help|need)\b")
CLAIM = re.compile(r"\b(i('ll| will)? (assume|guess|take it|suppose|presume|think|understand|read|interpret|treat|go with|conclude)|assuming|i'm assuming|so far|"
                   r"my (understanding|assumption|guess|reading)|in other words|to (summari[sz]e|recap|sum up|confirm)|i('d| would|'ll| will|'m going to|'m| plan to| intend to| want to| would) (?!need|want|like|love|wonder|know|be happy|not sure|unsure|asking|wondering|still|also)\w+|(?<!do )(?<!would )you mean|that means|correct me)\b")
APPROVAL = re.compile(r"\W*((and|so) )?(is|are|was|would|does|do|did|will|am|have|can|sounds?|ok|okay|right|correct|agreed|yes|please)\b(?=.*\b(that|this|it|you|i|so|all)\b|\W*\w*\W*$)"
                      r".*\b(ok|okay|right|correct|fine|happy|agree|agreed|want|good|accurate|true|confirm|yes|mean|meant|had in mind|work|alright|suit|acceptable|so|understood)\b\W*((with|for) (that|you|this)|it|that|this)?\W*[?.]$")
TAG = re.compile(r"[,;:.–—-]?\s*(is (that|this)( all)?|am i|did i get (that|it)|have i got (that|it)|does (that|this) (sound|look)|sounds?|agreed|ok|okay)?\s*"
                 r"(right|correct|yes|true|accurate|ok|okay|fine|good)?\s*\?$|,? (isn't|aren't|don't|doesn't|won't|shouldn't|wouldn't) (it|they|you|i|that|there|we|he|she)\?$")
CHOICE = re.compile(r"\bor (?!more\b|less\b|fewer\b|higher\b|lower\b|above\b|below\b|equal|longer\b|later\b|over\b|up\b|not\b|so\b|greater\b)")
GENERAL = re.compile(r"\b(any ?thing|something|what|who|nothing) (else|more|other|further)\b|\bis (that|this) (all|it|everything)\b|\bthat's (all|it|everything)\b"
                     r"|\b(am i|are we|did i|have i|what's|is|is there anything|what i'm|anything) (still )?(miss(ing|ed)?|overlook\w*|forg\w+|left)\b"
                     r"|\b(any|are there|what|another|some|an) (other|further|more|additional|hidden|last|final|remaining)? ?(details?|information|rules?|requirements?|things?|conditions?|hints?|points?|wishes|remarks?|thoughts?|words|preferences|considerations?)( \w+)? (hidden|before|about|i|that|you|to|left|for)\b"
                     r"|\b(any ?thing|something) (\w+ ){0,3}(add|correct|mention|tell me|know|matters|important|consider|aware|ask\w*)\b"
                     r"|\b(enough|everything|all) (to|i need|there is|you)\b|\bcovers? (it|everything|all)\b|\bhaven't (asked|mentioned|told|covered|said)\b")
NEEDLESS = re.compile(r"\b(missing|invalid|negative|duplicates?|upper ?case|lower ?case|case.?sensitiv\w*|currency|errors?|exceptions? (be )?(raised|thrown)|raise|throw"
                      r"|python|version|time ?zones?|null|nan|data types?|performance|efficien\w+|language|malformed|strings? instead|validat\w+|librar\w+|large inputs?)\b")
CODE = re.compile(r"^(please |(can|could|would|will) you (please )?|just )*(write|show|send|give|share|provide|paste|post)( me)? .*\b(code|implementation|program|script|solution|reference|tests?|test cases?)\b"
                  r"|\b(this|the|my|following) (code|implementation|program) (look|correct|right|ok|good|work)")
ROLE = re.compile(r"\b(matters?|plays? (a|any) (role|part)|relevant|depends?( on)?|affects?|influences?|taken? into account|considered?|has? (something|anything) to do)\b")


def pattern(lines):
    """The alternatives of human.toml, each a line, from border to border of words."""
    lines = [line for line in lines.splitlines() if line]
    return re.compile(rf"(?:(?<!\w)|(?!\w))(?:{'|'.join(lines)})(?:(?!\w)|(?<!\w))")


class Aspect(NamedTuple):
    label: str
    kinds: list
    also: list
    over: list
    sure: re.Pattern
    likely: re.Pattern
    none: str


TABLES = tomllib.loads((Path(__file__).parent / "human.toml").read_text(encoding="utf-8"))
ASPECTS = {name: Aspect(row["label"], [kind.split("/") for kind in row["kinds"].split()], row["also"].split(), row["over"].split(), pattern(row["sure"]),
                        pattern(row["likely"]) if row.get("likely") else re.compile(r"(?!)"), row.get("none", ""))
           for name, row in TABLES["aspects"].items()}
KINDS = {kind: {token: pattern(lines) for token, lines in tokens.items()} for kind, tokens in TABLES["kinds"].items()}


class Fact(NamedTuple):
    name: str
    reply: str
    term: str        # "" for the result as a whole
    aspect: str
    values: dict     # kind -> tokens
    needs: tuple
    implies: tuple
    words: Counter   # what its example questions contain, for a fact without an aspect


class State(NamedTuple):
    """What a human remembers. A tuple, so that the same messages are replayed once."""
    told: tuple = ()
    topics: tuple = ()     # terms and details that were talked about, the last one last
    heard: str = ""        # everything that the human has said
    turn: int = 0
    vague: str = ""        # the detail answered with "the usual"
    wrong: str = ""        # the detail that must be taken back


class Verdict(NamedTuple):
    fact: Fact
    right: bool
    partly: bool    # a wrong claim with a right part
    open: bool      # leaves something unsaid
    unsure: bool    # says what cannot be checked


# ---------------------------------------------------------------------------------------------------------------------
# Words

ENDINGS = re.compile(r"('s|s|es|ed|ing|ers?|est|ly|ness|ies|ied|iers?|iest|iness|ily|ity|ment|able|ful|ive|ion|some|ous|e|y)$")


@lru_cache(maxsize=None)
def stem(word):
    """What noun, adjective, comparative and verb of a word share: busy, busiest and busily -> bus."""
    word = re.sub(r"nc[ey]$", "nt", word)
    while len(shorter := ENDINGS.sub("", word)) >= 3 and shorter != word:
        word = shorter
    return re.sub(r"([^aeiou])\1$", r"\1", word)


COMMON = {stem(word) for word in STOP}


def words_of(text):
    return re.findall(r"\w+(?:'\w+)?", text)


def stems_of(text):
    """The stems of the words that carry meaning."""
    return [stem(word) for word in words_of(text) if word not in STOP]


def plain(text):
    """Lower case, digits for number words, no code, no full stop that ends no sentence."""
    text = re.sub(r"```.*?(```|$)", " ", text, flags=re.S).lower().replace("’", "'").replace("“", '"').replace("”", '"')
    text = re.sub(r"\(s\)|\bon (the|that|this) (whole |entire )?list\b", lambda match: match[0].strip("()") if "s)" in match[0] else "", text)
    text = text.replace("`", "")
    text = re.sub(r"\b(e\.g|i\.e|etc|vs|approx|dr|mr|mrs|no)\.(?=\s*[\w,(])", lambda match: match[0].replace(".", ""), text)
    text = re.sub(r"(?m)^\s*(\(?\d+[.)]|\(?[a-z]\)|[-*•])\s+|\(\d\)|(?<!\w)\d\)", "\n", text)
    return re.sub(r"\w+", lambda match: DIGITS.get(match[0], match[0]), text)


def sentences(text):
    return [part.strip() for part in re.split(r"(?<=[.?!])[\"')\]]*\s+|\n+", text) if re.search(r"\w", part)]


def joined(parts):
    return " ".join(part for part in parts if part)


def pick(texts, *key):
    """One of some wordings, always the same for the same key."""
    return texts[zlib.crc32(repr(key).encode()) % len(texts)]


def questions_of(raw):
    """The example questions of a fact as it stands in a file."""
    return [*([raw["question"]] if raw.get("question") else []), *(raw.get("questions") or [])]


# ---------------------------------------------------------------------------------------------------------------------
# Understanding


class Listener:
    """What a human knows of one task: its facts, terms, and the words of its rows."""

    def __init__(self, task):
        request, code = task["problem_description"] or "", task["ground_truth"] or ""
        everything = " ".join([request, code, *map(str, (task["test_cases"] or {}).values())])
        quoted = {text.lower() for text in re.findall(r"[\"']([^\"'\\\n]{1,30})[\"']", everything)}
        rows = re.findall(r"def \w+\((\w+)\)", code)    # the parameter names the rows
        noun = re.sub(r"(?<=[^aeiou])ies$", "y", rows[0].lower()) if rows else ""
        noun = re.sub(r"(?<=ch|sh|ss)es$|(?<!s)s$", "", noun)
        self.noun = re.compile(rf"\b{rows[0].lower()}\b|\b(?<!what )(?<!which )(?<!in )(?<!the )(?<!sort )(?<!that ){noun}\b(?! by)"
                               if noun and task["terms"] else r"(?!)")
        self.facts = [self.fact(n, raw) for n, raw in enumerate(task["facts"] or [])]
        self.examples = {plain(question): fact.name for fact, raw in zip(self.facts, task["facts"] or []) for question in questions_of(raw)}
        self.none = {row["aspect"]: row["reply"] for row in task.get("sure") or []}
        self.own = {(fact.term, fact.aspect) for fact in self.facts}
        self.by_name = {fact.name: fact for fact in self.facts}
        self.fields = {field.lower() for field in re.findall(r"[\"'](\w+)[\"']\s*:|\[[\"'](\w+)[\"']\]", everything) for field in field if field}
        self.fields |= {field for fact in self.facts for field in fact.values.get("field", ())}
        figures = {field.lower() for field in re.findall(r"[\"'](\w+)[\"']\s*:\s*-?\d", everything)}
        self.key_words = {word: "_figure" if field in figures else "_label" for field in sorted(self.fields - KEEP)
                          for word in (field, field + "s", field.removesuffix("s"))}
        self.field_of = {stem(field): field for field in sorted(self.fields)}
        self.names = {term: [about["names"]] if isinstance(about["names"], str) else list(about["names"] or [])
                      for term, about in (task["terms"] or {}).items()}
        for fact in self.facts:
            self.names.setdefault(fact.term, [fact.term]) if fact.term else None
        for term, names in self.names.items():    # a term that a fact uses as a field
            token = next((name for name in [term, *names] if name in self.fields), None)
            if token:
                self.field_of |= {stem(name): token for name in names}
        self.stems = {term: [frozenset(stem(word) for word in words_of(name.lower().replace("-", " ")) if word not in SMALL) for name in names] for term, names in self.names.items()}
        words = {word for fact in self.facts for word in fact.values.get("word", ())} | quoted
        words = sorted((word for word in words - self.fields if re.match(r"\w\w", word)), key=len, reverse=True)
        self.vocabulary = re.compile(rf"\b({'|'.join(map(re.escape, words))})(?:s|'s)?\b" if words else r"(?!)")
        prose = re.sub(r"\{.*?\}", "", request)
        self.request = plain(prose)
        self.people = {self.field_of[word] for word in map(stem, words_of(self.request)) if word in self.field_of}
        self.known = {word for names in self.stems.values() for name in names for word in name}
        counts = Counter(word for fact in self.facts for word in fact.words)
        self.rarity = {word: math.log(1 + len(self.facts) / n) / math.log(1 + len(self.facts)) for word, n in counts.items()}

    def fact(self, n, raw):
        questions = questions_of(raw)
        name = str(raw.get("detail") or (questions or [f"fact {n}"])[0])
        values = {kind: frozenset(str(token).lower().strip() or " " for token in ([tokens] if isinstance(tokens, (str, int, float)) else tokens))
                  for kind, tokens in (raw.get("values") or {}).items() if tokens}
        if "form" in values:    # a pattern such as "{n}: {v}", or a name
            figures = {"pairs": {"pairs", "figures"}, "dict": {"dict", "figures"}}
            values["form"] = frozenset().union(*(figures.get(form, {"figures"} if "{v}" in form else {"names"}) for form in values["form"]))
        aspect, words = raw.get("aspect") or "", Counter()
        spoken = plain(" . ".join([re.sub(r"[\W_]+", " ", name), *questions]))
        words.update(dict.fromkeys(stems_of(plain(raw["reply"])), 0.5 if not aspect else 0))
        words.update(dict.fromkeys(stems_of(spoken), 1) if questions or not aspect else {})
        if not aspect:
            points = self.aspects(spoken)
            aspect = max(points, key=points.get) if points and max(points.values()) >= SURE else ""
            aspect = "?" + aspect
        return Fact(name, raw["reply"], raw.get("term") or "", aspect, values, tuple(raw.get("needs") or ()), tuple(raw.get("implies") or ()), words)

    def aspects(self, text):
        """aspect -> points of a text. A long match is worth a little more than a short one."""
        points = {}
        for name, aspect in ASPECTS.items():
            longest = max((len(match[0]) for match in aspect.sure.finditer(text)), default=0)
            points[name] = (SURE if longest else 0) + (LIKELY if aspect.likely.search(text) else 0) + min(longest, 30) / 30
        for name in [name for name in points if points[name] >= SURE]:
            for other in ASPECTS[name].over:
                points[other] = 0
        return {name: number for name, number in points.items() if number > 0}

    def shadow(self, text):
        """A text with "row" for the rows' noun and "field" for the rows' keys."""
        text = self.noun.sub(lambda match: "rows" if match[0].endswith("s") else "row", text)
        return re.sub(r"[a-z_]\w*(?! of\b)", lambda match: self.key_words.get(match[0], match[0]), text)

    def mentions(self, text, state):
        """term -> how clearly a text names it (0 to 1). Terms that only a later reply brings up are not known yet."""
        heard = set(map(stem, words_of((self.request + " " + state.heard).replace("-", " "))))
        words = [word for word in words_of(text.replace("-", " ")) if word != "values"]
        clear = {stem(word) for before, word, after in zip(["", *words], words, [*words[1:], ""]) if before != "how" and after != "enough"}
        dim = set(map(stem, words))
        found = {}
        for term, names in self.stems.items():
            if any(name and name <= heard for name in names):
                found[term] = max((1.0 if name <= clear else 0.5 if name <= dim or len(name) > 1 and name & clear - set(self.field_of) - COMMON else 0
                                   for name in names if name), default=0)
        return {term: weight for term, weight in found.items() if weight}

    def said(self, text):
        """kind -> tokens: what a text says, in the kinds of human.toml."""
        found = {"number": set(re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?!\w)", text)),
                 "word": {match[1] for match in self.vocabulary.finditer(text)},
                 "field": {self.field_of.get(stem(word)) for word in words_of(text) if word not in STOP or word in self.fields} - {None}}
        found["word"] |= {text for text in re.findall(r"\"(\w[^\"]*)\"", text) if not {stem(word) for word in words_of(text)} & {*self.field_of, *self.known}}
        bare = re.sub(r"\b(most|least|more|less) (?=(\w+))", lambda match: "" if stem(match[2]) in self.known else match[0], self.shadow(text))
        bare = re.sub(r"[a-z]+", lambda match: "term" if stem(match[0]) in self.known else match[0], bare)
        for kind, tokens in KINDS.items():
            found[kind] = {token for token, regex in tokens.items() if regex.search(bare)}
        found["mark"] |= {mark.strip() or mark for mark in re.findall(r"[\"'`]([^\w\"'`]{1,5})[\"'`]", text)}
        if len(found["edge"]) > 1:
            found["edge"] = {"out" if re.search(r"\b(not|no longer|never|exclu\w+)\b|n't\b", text) else "in"}
        for kind in ("end", "ties"):    # more than one: nothing clear
            found[kind] = {"z-a"} if found[kind] == {"a-z", "z-a"} else found[kind] if len(found[kind]) == 1 else set()
        return found

    def read(self, text, state):
        return Reading(text, self.mentions(text, state), self.aspects(self.shadow(text)), self.said(text), set(stems_of(text)))

    def told_terms(self, said, state):
        """Terms whose told facts have a field, word or number that a text takes up."""
        return {fact.term for fact in self.facts if fact.term and fact.name in state.told
                if any(said[kind] & fact.values.get(kind, frozenset()) for kind in ("field", "word", "number"))}

    def points(self, fact, heard):
        """How well a question's aspects fit a fact; below zero if they fit others only."""
        if fact.aspect.startswith("?"):    # guessed from its example questions
            return min(heard.aspects.get(fact.aspect[1:], 0), SURE) / 2
        if fact.aspect not in ASPECTS:
            return 0
        own = heard.aspects.get(fact.aspect, 0)
        found = max([own, *(heard.aspects.get(other, 0) - 1 for other in ASPECTS[fact.aspect].also if (fact.term, other) not in self.own)])
        top = max(heard.aspects, key=heard.aspects.get, default="")
        return found if found > 0.5 else -SURE * (heard.aspects.get(top, 0) >= SURE and not (fact.aspect in HEADS and top in INNER))

    def score(self, fact, heard, state):
        """How well a question fits a fact."""
        score = self.points(fact, heard) + min(4, 2 * sum(weight * self.rarity[word] for word, weight in fact.words.items() if word in heard.stems))
        terms = dict.fromkeys(self.told_terms(heard.said, state), 0.7) | heard.terms
        if fact.term in terms:
            score += 3 * terms[fact.term]
        elif terms and fact.term and fact.aspect not in RESULT:
            score -= 3
        elif fact.term in state.topics:
            pass
        elif fact.term and fact.aspect not in (*RESULT, "order", "group", "more"):    # of what is not said
            score -= 2
        if fact.term in state.topics and not heard.terms:
            score += 1 / (1 + state.topics[::-1].index(fact.term))
        if not terms or fact.term in terms:
            for kind, bonus in (("field", 0.7), ("word", 1.5), ("number", 0.7)):
                score += bonus * bool(heard.said[kind] & fact.values.get(kind, frozenset()))
        return score + (fact.name not in state.told) - 0.3 * any(need not in state.told for need in fact.needs)

    def best(self, heard, state):
        """(score, fact) of the fact that a question fits best; the earlier one of two."""
        return max(((self.score(fact, heard, state), fact) for fact in self.facts), key=lambda pair: pair[0], default=(0, None))

    def first(self, fact, state):
        """The fact, or what must be told before it."""
        while missing := [need for need in fact.needs if need not in state.told and need in self.by_name]:
            fact = self.by_name[missing[0]]
        return fact

    def untold(self, state, term=None):
        """What can be told now, of one term or of all."""
        return [fact for fact in self.facts if fact.name not in state.told and self.first(fact, state) is fact and term in (None, fact.term)]

    def label(self, fact):
        """How a person would name a fact: the limit for "big"."""
        aspect = fact.aspect.strip("?")
        if fact.aspect not in ASPECTS:
            return "the " + re.sub(r"[\W_]+", " ", fact.name).strip()
        name, label = f'"{self.names[fact.term][0]}"' if fact.term else "it", ASPECTS[aspect].label
        return label.format(term=name) if "{term}" in label else label + (f" for {name}" if fact.term and aspect not in RESULT else "")

    # -----------------------------------------------------------------------------------------------------------------
    # Answering

    def stands_alone(self, text, state):
        """Whether a question is more than an elaboration of the one before."""
        heard = self.read(text, state)
        return bool(heard.terms) or any(points >= SURE and any(fact.aspect == name for fact in self.facts) for name, points in heard.aspects.items())

    def ask(self, text, state, scene=""):
        """(fact to tell or repeat, "") or (None, what to say instead) for a question. scene: what was said before it"""
        if text in self.examples:
            return self.by_name[self.examples[text]], ""
        heard = self.read(text, state)
        if scene:
            wide = self.read(scene + text, state)
            heard = wide._replace(terms=heard.terms or wide.terms)
        score, fact = self.best(heard, state)
        top = max(heard.aspects, key=heard.aspects.get, default="")
        strong = heard.aspects.get(top, 0) >= SURE
        if CODE.search(text):
            return None, pick(NO_CODE, text)
        if GENERAL.search(text) and not (strong and top in (*RESULT, "more")):
            return self.anything(heard, state)
        if NEEDLESS.search(self.shadow(text)) and not heard.terms and score < 2 * SURE:
            return None, pick(NEEDLESS_REPLY, text)
        if heard.said["field"] and ROLE.search(text) and (role := self.role(heard, state)):
            return role
        if strong and (fact is None or self.points(fact, heard) <= 0) and (top in RESULT or top in HIDDEN):
            if top in HIDDEN and not heard.terms:
                return self.anything(heard, state, ASPECTS[top].none)
            return None, self.none.get(top) or ASPECTS[top].none
        if fact and strong and fact.aspect in HEADS and not heard.terms and self.unclear(fact, heard, state):
            score = 0
        if score >= HEARD and (self.points(fact, heard) > 0 or score >= SURE + HEARD or fact.name not in state.told or fact.aspect not in ASPECTS):
            if heard.terms and not heard.aspects and fact.aspect not in HEADS and fact.aspect in ASPECTS:
                return None, self.lost(heard, state)
            return fact, ""
        return None, self.lost(heard, state)

    def unclear(self, fact, heard, state):
        """Whether a question for a meaning names no term that is known, and it is not clear which is meant."""
        if fact.aspect in ("order", "group") and heard.aspects.get(fact.aspect, 0) >= SURE:
            return False
        rest = heard.stems - self.known - {stem("row")}
        for aspect in ASPECTS.values():
            rest -= {stem(word) for match in aspect.sure.finditer(self.shadow(heard.text)) for word in words_of(match[0])}
        same = [other for other in self.untold(state) if other.aspect in HEADS and other.term not in state.topics[-1:]]
        return bool(rest - set(self.field_of)) or fact.term not in state.topics[-1:] and len(same) > 1 and self.points(fact, heard) < SURE

    def role(self, heard, state):
        """Whether a field plays a role: the fact that uses it, or a denial if none does."""
        field, = list(heard.said["field"])[:1]
        users = [fact for fact in self.facts if heard.said["field"] & fact.values.get("field", frozenset())]
        mine = [fact for fact in users if not heard.terms or fact.term in heard.terms]
        if not users:
            return None, f"No, the {field} plays no role." if field not in self.people else None
        untold = [fact for fact in mine if fact.name not in state.told]
        return (untold or mine)[0] if mine else None, "" if mine else None

    def anything(self, heard, state, none=""):
        """What is answered to "Anything else?": what is untold of the topic, else of all; a denial only if nothing is left."""
        for term in heard.terms:
            inner = self.untold(state, term)
            found = sorted(inner, key=lambda fact: fact.aspect not in HIDDEN)
            if found:
                return found[0], ""
            later = [fact for fact in self.facts if fact.name not in state.told and any(self.by_name[need].term == term for need in fact.needs if need in self.by_name)]
            return (later[0], "") if later else (None, f'No, that\'s all about "{self.names[term][0]}".')
        left = self.untold(state)
        near = [fact for fact in left if fact.aspect in HIDDEN and fact.term in state.topics[-1:]]
        if near or len(left) == 1 and not none:
            return (near or left)[0], ""
        hidden = [fact for fact in self.facts if fact.aspect in HIDDEN and fact.name not in state.told]
        if none and not hidden or not left:
            return None, none or pick(NO_MORE, heard.text)
        return None, f"Yes. You haven't asked me about {self.label((hidden if none else left)[0])} yet."

    def lost(self, heard, state):
        """What is said when a question is not understood: what could be meant, and nothing that is hidden."""
        left = [fact for fact in self.untold(state) if fact.aspect not in HIDDEN]
        mine = [fact for fact in left if fact.term in heard.terms] or left
        labels = list(dict.fromkeys(self.label(fact) for fact in mine))[:2]
        return joined([pick(LOST, heard.text, state.turn), f"Do you mean {' or '.join(labels)}?" if labels else "I think I've told you everything."])

    # -----------------------------------------------------------------------------------------------------------------
    # Proposals

    def clauses(self, sentence, state):
        """The claims of a sentence: it is cut where another term or aspect begins, not inside a list."""
        parts, subject = [""], set()
        for piece in re.split(r"(,|;|\bbut\b|\bexcept\b|\band\b|\bwhile\b| - | – |—)", sentence):
            heard = self.read(piece, state)
            about = set(heard.terms) | {name for name, points in heard.aspects.items() if points >= SURE and name in {*RESULT, *HIDDEN, "limit"}}
            if about - subject and subject and re.search(r"\w", piece):
                parts.append("")
            subject = about or subject
            parts[-1] += piece
        return [part for part in parts if re.search(r"\w", part)]

    def verdict(self, fact, said, told, sure):
        """What a claim says about a fact, as a Verdict; None if it says nothing about it."""
        aspect = ASPECTS.get(fact.aspect)
        own = self.stems.get(fact.term, [])
        right = partly = wrong = open_ = unsure = False
        for kinds in aspect.kinds if aspect else [[kind] for kind in fact.values]:
            ours = next((kind for kind in kinds if kind in fact.values), None)
            theirs = set(said.get(ours or kinds[0], ()))
            if (ours or kinds[0]) == "field":
                names = {self.field_of.get(stem) for name in own for stem in name} - fact.values.get("field", frozenset())
                theirs -= names | (self.people if theirs - self.people else set())
            mine = fact.values.get(ours, frozenset())
            if theirs and mine:
                if theirs == mine or ours == "form" and theirs <= mine:
                    right = True
                elif ours == "number" and mine < theirs:
                    unsure = True
                elif fact.name in told and kinds[0] in ("field", "word") and theirs < mine:    # it only refers to it
                    unsure = True
                else:
                    wrong, partly = True, partly or bool(theirs & mine)
            elif mine:
                if sure and any(said.get(kind) for kind in kinds):
                    wrong = True
                open_ = True
            elif theirs:
                unsure = True
        if fact.aspect == "formula":
            unsure |= open_ or len(fact.values.get("op", ())) > 1
        if fact.aspect in ("define", "formula") and not said["field"] - {self.field_of.get(word) for name in own for word in name}:
            return None    # a claim about a meaning names a key
        return Verdict(fact, right and not wrong, wrong and (partly or right), open_, unsure) if right or wrong else None

    def check(self, sentence, state):
        """The verdicts on a sentence's claims, one a fact."""
        found = {}
        for clause in self.clauses(sentence, state):
            heard = self.read(clause, state)
            scored = []
            strong = [fact for fact in self.facts if fact.aspect in RESULT and heard.aspects.get(fact.aspect, 0) >= SURE]
            for fact in strong or self.facts:
                verdict = self.verdict(fact, heard.said, state.told, heard.aspects.get(fact.aspect, 0) >= SURE)
                if verdict and (self.points(fact, heard) > 0 or max(heard.aspects.values(), default=0) < SURE):    # not if its words are about something else
                    scored.append((self.score(fact, heard, state) + 1.5 * verdict.right + 0.5, fact))
            score, target = max(scored, key=lambda pair: pair[0], default=(0, None))
            if score < SURE:
                continue
            chain = [fact for fact in self.facts if fact is target or target.term and fact.term == target.term and fact.aspect not in HIDDEN
                     and target.aspect not in HIDDEN or fact.aspect in RESULT and heard.aspects.get(fact.aspect, 0) >= SURE]
            known = {*state.told, *(fact.name for fact in chain)}
            for fact in chain:
                verdict = self.verdict(fact, heard.said, state.told, heard.aspects.get(fact.aspect, 0) >= SURE)
                if verdict and all(need in known for need in fact.needs):
                    found.setdefault(fact.name, verdict)
            state = state._replace(topics=(*state.topics, target.term or target.name))
        return list(found.values())

    # -----------------------------------------------------------------------------------------------------------------
    # A message and its reply

    def reply(self, state, message):
        """(reply, details newly told, the state after it)"""
        text = plain(message)
        verdicts, asks, now = {}, [], state
        parts = sentences(text)
        if not parts:
            return pick(NO_CODE if "```" in message else LOST, message), [], state._replace(turn=state.turn + 1)
        scene = ""    # what is said before a question, without being a claim
        for part in parts:
            if APPROVAL.fullmatch(part) and part is not parts[0]:
                continue
            kind = "ask" if part in self.examples else kind_of(part)
            checked = self.check(part, now) if kind in ("claim", "polar") else []
            for verdict in checked:
                verdicts.setdefault(verdict.fact.name, verdict)
            if kind == "ask" or not checked and part.endswith("?"):
                asks.append((scene, part))
            elif not checked:
                scene += part + " "
            topics = [verdict.fact.term for verdict in checked if verdict.fact.term] or list(self.mentions(part, now))
            now = now._replace(topics=(*now.topics, *topics))
        if scene and not asks and not verdicts:
            asks.append(("", scene.strip()))
        return self.compose(text, list(verdicts.values()), asks, state, now)

    def compose(self, text, verdicts, asks, state, now):
        told, words = list(state.told), []
        wrong = [verdict for verdict in verdicts if not verdict.right]
        right = [verdict for verdict in verdicts if verdict.right]
        fresh = [verdict for verdict in right if verdict.fact.name not in told]
        target = None
        if wrong:
            verdict = wrong[0]
            lead = f"Right, except for {self.label(verdict.fact)}." if right else "Not quite." if verdict.partly else "No."
            more = "And that isn't all that's different." if len(wrong) > 1 else ""
            words += [lead, verdict.fact.reply, more]
            target = verdict.fact
        elif right:
            sure = [verdict for verdict in right if not verdict.unsure]
            again = [verdict.fact for verdict in fresh if verdict.unsure or verdict.open or verdict.fact.aspect in HEADS][:2]
            again = again or [verdict.fact for verdict in right if verdict.unsure][:1]
            polar = not asks
            if sure and len(sure) == len(right) and (polar or fresh):
                words += [pick(YES, text, state.turn)]
            if polar or fresh:
                words += [fact.reply for fact in again]
            target = right[-1].fact
        settled = [verdict.fact.name for verdict in fresh if verdict in right and not (verdict.unsure or verdict.open)]
        settled += [fact.name for fact in ([target] if wrong else again if right else [])]
        new = [name for name in dict.fromkeys(settled) if name not in told]
        costly = wrong and target.name not in told
        now = now._replace(told=(*told, *new))
        targets, instead = [], ""
        for scene, ask in asks:
            if targets and not self.stands_alone(ask, now):
                continue
            fact, reply = self.ask(ask, now, scene)
            if fact:
                targets.append((self.first(fact, now), reply))
            instead = instead or ("" if fact else reply)
        targets = list({fact.name: (fact, reply) for fact, reply in reversed(targets)}.values())[::-1]
        if costly and targets:
            words.insert(0, pick(FIRST, text))
        elif targets:
            fact, how = targets[0]
            if fact.name in now.told:
                words += [pick(REPEAT, text, state.turn), fact.reply]
            else:
                words += [pick(FIRST, text) if len(targets) > 1 else "", fact.reply]
                new.append(fact.name)
            target = fact
        elif instead or not words:
            words.append(instead or self.lost(self.read(text, now), now))
        for name in tuple(new):
            new += [other for other in self.by_name[name].implies if other not in told and other not in new]
        reply = joined(words)
        after = state._replace(told=(*told, *new), topics=(*state.topics, *([target.term or target.name] if target else now.topics[len(state.topics):])),
                               heard=joined([state.heard, plain(reply)]), turn=state.turn + 1)
        return reply, new, after


class Reading(NamedTuple):
    text: str
    terms: dict      # term -> how clearly it is named
    aspects: dict    # aspect -> points
    said: dict       # kind -> tokens
    stems: set


def kind_of(sentence):
    """ask, claim, polar (a claim that asks) or none"""
    if sentence.endswith("?"):
        if re.match(r"\W*((and|so|but|then|ok|okay)\W+)?(if|suppose|supposing|in case|say)\b", sentence):    # a case is no claim
            return "ask"
        tag = TAG.search(sentence)
        if tag and re.search(r"\w", tag[0]) and tag.start() > 8:
            return "claim"
        return "ask" if ASKING.search(sentence) and not CLAIM.search(sentence) or CHOICE.search(sentence) else "polar"
    return "ask" if ASKING.search(sentence) and not CLAIM.search(sentence) else "claim"


@lru_cache(maxsize=256)
def listener(text):
    return Listener(json.loads(text))


def listener_of(task):
    kept = ("problem_description", "ground_truth", "facts", "terms", "test_cases", "sure")
    return listener(json.dumps({key: task.get(key) for key in kept}, ensure_ascii=False))


@lru_cache(maxsize=20_000)
def step(human, state, message):
    return human.reply(state, message)


def scripted_reply(task, dialogue, manner="plain"):
    """(The human's reply to the last message of a dialogue, names of the details that it tells for the first time)

    task: with problem_description, facts and what it likes of terms, ground_truth, test_cases; dialogue: messages
    {"role", "content"}, of which the agent's ("assistant") count; manner: one of MANNERS.
    """
    human = listener_of(task)
    state, reply, told = State(), "", []
    for message in dialogue:
        if message["role"] == "assistant":
            reply, told, state = step(human, state, message["content"])
    return reply, list(told)
