"""The scripted human of a task of your own: it knows a list of facts, and tells the one that a question is about.

A fact is {"detail": its name, "questions": [example questions or keywords], "reply": what is said}, perhaps with
`needs` (details that are told before it) and `implies` (details that its reply tells, too). A question is compared with
each fact by the words that they share. Forms of a word are one word, and so are words of like meaning (`same` in
listener.toml). A question of which no fact covers enough tells nothing: the human asks back what could be meant.

Standard library only. The facts of composed tasks say more about themselves; listener.py listens for them.
"""
import re
from collections import Counter
from functools import cache
from typing import NamedTuple

from listener_words import (
    data, first_of, list_of, matches, name_of, plain, questions_of, says, sentences, stem, words_of)

ENOUGH = 0.3               # share of a question's words that a fact must cover, or else
MUCH, AHEAD = 0.9, 0.3     # so many words, and so many more than any other fact
REPLY = 0.6                # weight of a word that only the fact's reply has
COMMON = 0.3               # weight of a word that every question may have: the request has it, all facts, or `dull`


class OwnFact(NamedTuple):
    name: str
    reply: str
    words: dict      # word -> how well the fact covers it, up to 1
    needs: list
    implies: list


class OwnFacts:
    """The scripted human of one task."""

    def __init__(self, task):
        self.facts = [own_fact(n, raw) for n, raw in enumerate(task["facts"] or [])]
        self.by_name = {fact.name: fact for fact in self.facts}
        self.answer = meanings(task["ground_truth"] or "") if len((task["ground_truth"] or "").split()) < 5 else []
        count = Counter(word for fact in self.facts for word in fact.words)
        shared = {word for word, facts in count.items() if facts == len(self.facts) > 1}
        self.common = {*shared, *meanings(task["problem_description"] or ""), *meanings(data()["dull"])}

    def reply(self, memory, message):
        """(sentences of the reply, details told for the first time, the memory after it)"""
        parts = sentences(plain(message))
        parts = [part for part in parts if part.endswith("?")] or parts
        found = []
        for part in parts:
            fact = self.meant(part, memory.told)
            if fact and fact not in found:
                found.append(fact)
        untold = [fact for fact in found if fact.name not in memory.told]
        told = []
        if self.answer and any(set(self.answer) <= set(meanings(part)) for part in parts):
            words = [says("found", message)]
        elif untold:
            fact = first_of(untold[0], memory.told, self.by_name)
            words = [says("first", message), fact.reply] if len(untold) > 1 else [fact.reply]
            told = [name for name in dict.fromkeys([fact.name, *fact.implies]) if name not in memory.told]
        elif found:
            words = [says("again", message), *(fact.reply for fact in found)]
        else:
            words = [self.at_a_loss(message, memory)]
        return words, told, memory._replace(told=(*memory.told, *told), turn=memory.turn + 1)

    def meant(self, question, told):
        """The fact that a question is about, or None. Of facts that fit alike, one that was not told yet."""
        scores, total = self.scores(question)
        ranking = sorted(scores, key=lambda name: (-scores[name], name in told))
        if not ranking or not scores[ranking[0]]:
            return None
        score = scores[ranking[0]]
        ahead = score - scores[ranking[1]] if len(ranking) > 1 else score
        is_clear = score >= ENOUGH * total or score >= MUCH and ahead >= AHEAD
        return self.by_name[ranking[0]] if is_clear else None

    def scores(self, question):
        """({name of a fact: how many words of a question it covers}, how many words there are), by weight"""
        weights = {word: COMMON if word in self.common else 1 for word in meanings(question)}
        scores = {fact.name: sum(weights[word] * fact.words.get(word, 0) for word in weights) for fact in self.facts}
        return scores, sum(weights.values())

    def at_a_loss(self, message, memory):
        """The answer to what fits no fact: what could be meant, and nothing that is hidden."""
        text, left = plain(message), [fact for fact in self.facts if fact.name not in memory.told]
        if not message.strip() or matches("code", text):
            return says("code", message)
        if matches("general", text):
            return says("more", message, fill=self.label(left[0])) if left else says("nothing", message)
        scores = self.scores(message)[0]
        ready = [fact for fact in left if not set(fact.needs) - set(memory.told)] or left
        labels = " or ".join(map(self.label, sorted(ready, key=lambda fact: -scores[fact.name])[:2]))
        return f"{says('lost', message)} " + (f"Do you mean {labels}?" if labels else says("known", message))

    def label(self, fact):
        """How a person would name a fact: the name of its detail."""
        return f"the {spoken(fact.name)}"


def own_fact(n, raw):
    """A fact as it stands in a file."""
    name = name_of(n, raw)
    words = dict.fromkeys(meanings(raw["reply"]), REPLY)
    words |= dict.fromkeys(meanings(" . ".join([spoken(name), *questions_of(raw)])), 1)
    return OwnFact(name, raw["reply"], words, list_of(raw.get("needs")), list_of(raw.get("implies")))


def spoken(name):
    """A detail's name as words: free_shipping, free shipping."""
    return re.sub(r"[\W_]+", " ", name).strip()


def meanings(text):
    """The words of a text that carry meaning, each in the one form that stands for all words of its meaning."""
    return list(dict.fromkeys(same().get(stem(word), stem(word)) for word in words_of(plain(text))
                              if stem(word) in same() or word not in data()["words"]["stop"]))


@cache
def same():
    """{the stem of a word: the stem that stands for its meaning}"""
    groups = [list(map(stem, line.split())) for line in data()["same"].splitlines()]
    return {word: group[0] for group in groups for word in group}
