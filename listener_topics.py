"""Which facts a text is about.

Each fact gets a score for a text. It gets points if the wording of the text fits its aspect, more if the text names its
term, and a bonus for each token that they share. It loses points if the text names other terms. A text that names no
term is about the topic, the term that was talked about last, or about what it takes up from earlier replies.

A fact may need another one that is told before it: the limit of "big" is told after what "big" means. The facts that
can be told next are the open layer.
"""
import re

from listener_reading import HEADS, INNER, LIMITS, ONCE, RESULT, SURE, Reader
from listener_words import CONTENT, first_of, matches, tables, words_of

HEARD = 2.0         # a question with fewer points for every fact is not understood
TAKEN_UP = 0.7      # how clearly a term is named by what was said about it

# What the score of a fact is made of, beside the points of its aspect.
NEW = 1.0           # it was not told yet
TOO_EARLY = 0.3     # something must be told before it
SAME_TERM, OTHER_TERM, NEW_TERM = 3, 3, 2    # the text names its term; only others; none, and it was no topic yet
TOPIC = 0.8         # its term was the last topic, half as much for the one before


class Matcher(Reader):
    """Finds the facts of a task that a text is about."""

    # ---- What must be told first

    def needed(self, fact):
        """The facts that are told before a fact."""
        return [self.by_name[need] for need in fact.needs if need in self.by_name]

    def first(self, fact, told):
        """The fact, or what must be told before it. A formula can be told once its measure was brought up."""
        measure = self.names[fact.term][0] if fact.aspect == "formula" else None
        if any(measure in self.by_name[name].about["field"] for name in told):
            return fact
        return first_of(fact, told, self.by_name)

    def is_next(self, fact, memory):
        """Whether a fact was not told, and can be told now."""
        return fact.name not in memory.told and self.first(fact, memory.told) == fact

    # ---- Terms that a text does not name

    def topics(self, memory):
        """The last topic. If that is a measure, such as the effort, then also the kind that goes by it."""
        last = memory.topics[-1:]
        return [*last, *self.kinds_by(last)]

    def kinds_by(self, measures):
        """The kinds of thing that go by some measures."""
        return [need.term for fact in self.facts_about("formula") if fact.term in measures
                for need in self.needed(fact)]

    def taken_up(self, heard, memory):
        """The terms of what was told with the fields, words or numbers of a text."""
        return {self.by_name[name].term for name in self.details_taken_up(heard.said, memory)} - {""}

    def details_taken_up(self, said, memory, kinds=CONTENT):
        """The details that were told with tokens of some kinds that a text says."""
        return [name for name in memory.told if any(self.by_name[name].shared(said, kind) for kind in kinds)]

    def points_back(self, text):
        """Whether a text is about the last topic by a word such as "that"."""
        return matches("back", text) and not matches("result", text)

    # ---- Facts

    def concerns(self, fact, heard, memory):
        """Whether a text can be about a fact: a term must be named, or what was last said about it, or be the topic."""
        if not fact.term or fact.term in heard.terms:
            return True
        if fact.is_hidden and heard.terms:    # exceptions are those of the terms that are named
            return False
        if fact.term in memory.topics[-1:] or self.is_once_and_meant(fact, heard):
            return True
        taken_up = self.taken_up(heard, memory)
        return fact.term in (*taken_up, *self.kinds_by(taken_up), *self.topics(memory))

    def is_once_and_meant(self, fact, heard):
        """Whether a fact is the only one of its aspect, so that no term need be named, and the wording fits it."""
        if fact.aspect not in ONCE or not heard.fits(fact.aspect):
            return False
        return not heard.terms or fact.term in heard.terms or fact.aspect in self.surely_about(heard.text)

    def score(self, fact, heard, memory):
        """How well a question fits a fact."""
        score = self.points(fact, heard)
        if fact.name not in memory.told:
            score += NEW
        if self.first(fact, memory.told) != fact:
            score -= TOO_EARLY
        terms = dict.fromkeys(self.taken_up(heard, memory), TAKEN_UP) | heard.terms
        if heard.terms and fact.aspect in HEADS:
            terms = heard.terms
        if fact.aspect in LIMITS:    # "How high must people times rate be?"
            terms |= dict.fromkeys(self.kinds_by(terms), TAKEN_UP)
        if fact.term in terms:
            score += SAME_TERM * terms[fact.term]
        elif fact.term and fact.aspect not in RESULT and not self.is_once_and_meant(fact, heard):
            if terms:
                score -= OTHER_TERM
            elif fact.term not in memory.topics and fact.aspect not in ONCE:
                score -= NEW_TERM
        if fact.term in memory.topics and not heard.terms:
            score += TOPIC / (1 + memory.topics[::-1].index(fact.term))
        if not terms or fact.term in terms:
            score += sum(bonus for kind, bonus in CONTENT.items() if fact.shared(heard.said, kind))
        return score

    def points(self, fact, heard):
        """How well the aspects of a question fit a fact; below zero if they fit others only.

        A fact gets nearly the points of another aspect that it answers as well: who asks for the values of a kind that
        has none is told what the kind means.
        """
        also = tables()["aspects"].get(fact.aspect, {}).get("also", [])
        points = heard.aspects.get(fact.aspect, 0)
        for other in also:
            if (fact.term, other) not in self.settled_by_facts:
                points = max(points, heard.aspects.get(other, 0) - 1)
        best, surely = heard.best_aspect()
        fits = points > 0.5 and not (surely and points < SURE and fact.aspect in RESULT)
        if fits:
            return points
        leads_to_best = fact.aspect in HEADS and best in INNER    # "What's the limit?" before the meaning is known
        return -SURE if surely and not leads_to_best else 0

    def open_layer(self, heard, memory):
        """The facts that can be told next about the terms of a text, or about the topic if it points back to that."""
        terms = heard.terms
        if not terms and self.points_back(heard.text):
            terms = memory.topics[-1:]
        return [fact for fact in self.facts if fact.term and fact.term in terms and not fact.is_hidden
                and self.is_next(fact, memory)]

    def names_open_limit(self, heard, memory):
        """Whether a text names a number that was told as a limit, of which it is open whether it counts."""
        for fact in self.facts_about("edge"):
            if fact.name not in memory.told:
                limits = [need for need in self.needed(fact) if need.name in memory.told]
                if any(limit.values.get("number", set()) & heard.said["number"] for limit in limits):
                    return True
        return False

    def spoken(self, term, text=""):
        """The name of a term that a text, or else the request, has."""
        for known in (" ".join(re.findall(r'"([^"]*)"', text)), text, self.request):
            for name in self.names[term]:
                if set(name.split()) <= set(words_of(known.replace("-", " "))):
                    return name
        return self.names[term][0]

    def label(self, fact, text=""):
        """How a person would name a fact, in reply to a text: the limit for "big"."""
        label = tables()["aspects"][fact.aspect]["label"]
        name = self.spoken(fact.term, text) if fact.term else "it"
        if "{term}" in label:
            return label.format(term=f'"{name}"')
        return f'{label} for "{name}"' if fact.term else label
