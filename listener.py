"""The scripted human of functions: a person who listens, remembers, and tells what a task hides, one thing at a time.

How a message is understood. It is cut into sentences. A sentence that asks is compared with each fact: which terms it
names in any form of their words, which aspects its wording fits, what it takes up from earlier replies. The aspects are
weighed by patterns and by example questions, both in listener.toml. The best fact is told, or what it needs first. A
sentence that proposes is cut into claims, each of which is confirmed or corrected. A question that is not understood is
answered with what could be meant, and never costs a fact. "Anything else?" never denies what is left, but names it
instead of telling it. Facts of your own, which name no aspect, are heard by their words alone (own_facts.py).

Standard library only. If you copy this file, copy listener_words.py, own_facts.py and listener.toml too; the last says
what a fact consists of.
"""
import json
import math
import operator
import re
from fractions import Fraction
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple

from listener_words import (
    CODE, CONTENT, data, features, list_of, plain, rewritten, says, sentences, stem, stems_of, stop_stems, tables,
    words_of)
from own_facts import OwnFacts

MANNERS = ("plain", "vague", "revising")
SURE, LIKELY = 3.0, 1.5    # points of a question for the aspects that its wording fits
CERTAIN = 4.5              # points for an aspect that it is sure to be about; two thirds of that are SURE
HEARD = 2.0                # a question with fewer points for every fact is not understood
HEADS = ("define", "formula", "order", "group")                    # what a term means
INNER = ("limit", "edge", "values", "names", "except", "extra")    # what else can be asked about a term
ONCE = ("order", "group")                                          # of which a task has one, and it has a term
HIDDEN = ("except", "extra")                                       # what nobody can know that it is there
RESULT = ("ties", "count", "format", "between", "round", "empty", "absent", "fewer")    # of which a task has one each
NEXT = {("high", "out"): 1, ("high", "in"): -1, ("low", "out"): -1, ("low", "in"): 1}    # (end, edge) -> step beyond it
ROUNDED = {"down": math.floor, "up": math.ceil, "nearest": lambda number: math.floor(number + Fraction(1, 2))}
SPOKEN = {"times": "*", "multiplied": "*", "x": "*", "plus": "+", "minus": "-", "twice": "2 *"}
STEPS = {"*": operator.mul, "+": operator.add, "-": operator.sub, "cap": min}


# ---- The dialogue


def scripted_reply(task, dialogue, manner="plain"):
    """(The human's reply to the last message of a dialogue, names of the details that it tells for the first time)

    task: with problem_description and facts, perhaps terms, sure, ground_truth and test_cases; dialogue: messages, of
    which the agent's ("assistant") count; manner: one of MANNERS. A vague human first says "the usual"; a revising one
    takes one number back in the next reply. The agent's messages are replayed, so memory needs no state.
    """
    kept = ("problem_description", "ground_truth", "facts", "terms", "sure", "test_cases")
    human = listener(json.dumps({key: task.get(key) for key in kept}, ensure_ascii=False))
    memory, reply, told = Memory(), "", []
    for message in dialogue:
        if message["role"] == "assistant":
            reply, told, memory = replied(human, memory, message["content"], manner)
    return reply, list(told)


@lru_cache(maxsize=256)
def listener(text):
    """The human of a task, which is given as JSON: composed tasks say what each of their facts is about."""
    task = json.loads(text)
    composed = task["facts"] and all(fact.get("aspect") in tables()["aspects"] for fact in task["facts"])
    return (Listener if composed else OwnFacts)(task)


@lru_cache(maxsize=20_000)
def replied(human, memory, message, manner):
    """(reply, details told for the first time, the memory after it)"""
    words, told, after = human.reply(memory, message)
    reply, told, after = in_manner(human, manner, words, told, after)
    return reply, told, after._replace(heard=after.heard + " " + plain(reply))


def in_manner(human, manner, words, told, memory):
    """The reply of a human who is vague at first, or wrong once and says so in the next reply."""
    fact = human.by_name[memory.wrong or told[-1]] if memory.wrong or told else None
    if memory.wrong:
        again = [word for word in words if word != fact.reply]
        words, told = [says("mistaken", fill=human.label(fact)), fact.reply, *again], [fact.name, *told]
        memory = memory._replace(wrong="")
    elif manner == "vague" and told and not memory.changed:
        kept = tuple(name for name in memory.told if name not in told)
        words, told, memory = [says("usual", *words)], [], memory._replace(told=kept, changed=True)
    elif manner == "revising" and told and not memory.changed and len(memory.told) < len(human.facts):
        number = r"(?<![\w.])\d+(?![\d.]*\d)"
        other = re.sub(number, lambda match: str(int(match[0]) * 5 // 4 + 1), fact.reply, count=1)
        if other != fact.reply:
            words, told = [other if word == fact.reply else word for word in words], told[:-1]
            memory = memory._replace(wrong=fact.name, changed=True)
    return " ".join(filter(None, dict.fromkeys(words))), told, memory


class Memory(NamedTuple):
    """What the human remembers. It is a tuple, so that the same messages need not be replayed."""
    told: tuple = ()         # details
    topics: tuple = ()       # terms that were talked about, the last one last
    heard: str = ""          # the human's own words
    turn: int = 0
    changed: bool = False    # whether it has been vague, or wrong, once
    wrong: str = ""          # a detail that must be taken back


class Fact(NamedTuple):
    name: str
    reply: str
    term: str        # "" for the result as a whole
    aspect: str      # what it is about: a name of [aspects] in listener.toml
    values: dict     # kind -> tokens that a proposal must name
    about: dict      # field, word, number -> tokens that a question about it may take up
    needs: list
    implies: list


class Heard(NamedTuple):
    """What a text says."""
    text: str
    terms: dict      # term -> how clearly it is named, up to 1
    aspects: dict    # aspect -> points
    said: dict       # kind -> tokens
    stems: set

    def top(self, sure_of=None):
        """(the aspect that it fits best, whether surely); or whether it surely fits a given one"""
        if sure_of:
            return self.aspects.get(sure_of, 0) >= SURE
        top = max(self.aspects, key=self.aspects.get, default="")
        return top, self.aspects.get(top, 0) >= SURE


class Listener:
    """The scripted human of one task."""

    def reply(self, memory, message):
        """(sentences of the reply, details told for the first time, the memory after it)"""
        text = plain(message)
        if not tables()["acts"]["listing"].search(text):    # to have no delay is to have a delay of 0
            text = self.having.sub(lambda match: f"{match[1] or 'with'} 0 {match[2]}", text)
        claims, questions, topics, cases = self.hear(text, memory)
        now = memory._replace(topics=(*memory.topics, *topics))
        now = now._replace(told=(*now.told, *self.judge(claims, now, True)[1]))
        corrected = any(grade in ("wrong", "partly") for grade in claims.values())
        targets, instead = {}, [] if text.strip() else [says("code", message)]
        for scene, question, then in questions:
            then = then._replace(told=now.told)
            heard = self.read(question, then)
            known = heard.terms or any(heard.top(fact.aspect) for fact in self.facts)
            if scene is None and corrected or targets and (not known or tables()["acts"]["follows"].search(question)
                                                   or not tables()["acts"]["whole"].search(question)):
                continue    # it only goes on about the question before it
            target, other = self.answer(question, scene or "", then)
            if not target:    # a claim has no scene
                instead.append(other or says("unclear", text, fill=question) * (scene is None))
            elif target.name not in claims:
                targets.setdefault(self.first(target, now.told).name, (scene, question))
        words, told, fact = self.judge(claims, memory, not targets and not instead)
        new = [name for name in targets if name not in now.told]
        if cases:
            found, more, fact = cases[0]
            found = [*found, *(word for words, new_ones, _ in cases[1:] if not new_ones for word in words)]
            also = [] if more or corrected else [self.by_name[new[0]].reply] if new else [*filter(None, instead[:1])]
            words, told = [*(words if corrected else []), *found, *also], [*told, *more, *new[:len(also)]]
        elif targets and corrected and fact.name not in memory.told:    # a correction is an answer
            words = [says("first", text) * any(self.by_name[name].term != fact.term for name in new), *words]
        elif targets:
            fact = self.by_name[(new or [*targets])[0]]
            fact = next((each for each in self.facts if each.aspect in HIDDEN and {fact.name, each.name} <= {*now.told}
                         and each.term == fact.term and each.about["word"] & self.said(text)["word"]), fact)
            words += [says("first", text)] if len(targets) > 1 else []
            scene, question = targets.get(fact.name, (None, text))
            again = "unsettled" if self.leaves_open(fact, text) else "exact" if scene is None else "again"
            proposes = scene is not None and fact.name in now.told and not tables()["acts"]["asks"].search(question)
            grade = self.verdict(fact, self.read(question, now), now.told) if proposes else ""
            words = words or {"right": [says("yes", text)], "wrong": ["No."], "partly": ["Not quite."]}.get(grade, [])
            case = self.settled(text, now, True) if again == "unsettled" and fact.name in now.told else None
            words += [self.not_by(fact, text) or says(again, text) * (fact.name in now.told)] if not words else []
            words, told = case[:2] if case else ([*words, fact.reply], [*told, fact.name])
        elif not any(words):
            lost = says("code", text) if CODE.search(message) else self.lost(self.read(text, now), now)
            words = [next(filter(None, instead), "") or lost]
        for name in tuple(told):    # a proposal may be right about a limit before its term has been explained
            while (need := self.first(self.by_name[name], (*memory.told, *told))).name not in told:
                words, told = [*words, need.reply], [*told, need.name]
        told += [other for name in told for other in self.by_name[name].implies]
        told = [name for name in dict.fromkeys(told) if name not in memory.told]
        topics = (fact.term,) if fact and fact.term else topics
        after = memory._replace(told=(*memory.told, *told), topics=(*memory.topics, *topics), turn=memory.turn + 1)
        return words, told, after

    def hear(self, text, memory):
        """(detail -> verdict on what a message proposes, [(scene, question, memory)], the terms that it names, cases)

        A scene is said before a question and is no claim: "Two may be equal. Who goes first then?" """
        acts, parts = tables()["acts"], []
        for whole in sentences(text):
            parts += [whole] if whole in self.examples or self.settled(whole, memory) else sentences(
                acts["joint"].sub("?\n", acts["preamble"].sub(r"\1.\n", whole)))
        claims, questions, scene, topics, cases = {}, [], "", [], []
        for part in parts:
            now = memory._replace(topics=(*memory.topics, *topics))
            body, _, tail = part.rpartition(", " if ", " in part else " - ")
            approves = acts["approves"].fullmatch(tail.rstrip("?.! ")) and not self.mentions(tail, now)
            tagged = part not in self.examples and body and approves
            if part is not parts[0] and approves and not body:
                continue    # "Is that right?"
            follows = part is not parts[-1] and part.endswith(".") and acts["cases"].search(part)    # a question
            case = None if follows or part in self.examples else self.settled(
                scene + (body + "?" if tagged else part), now, bool(cases) and part[:4] == "and ")    # "And 20?"
            if case:
                cases.append(case)
                topics += [case[2].term] * bool(case[2].term)
                continue
            open, says_so, puts = part.endswith("?"), acts["claims"].search(part), acts["cases"].search(part)
            asks = part in self.examples or puts or open and acts["either"].search(part) or not says_so and (
                acts["asks" if open else "requests"].search(part) or open and self.at_limit(self.read(part, now), now))
            quoted = acts["quotes"].search(part) or part.endswith(".") and puts
            checked, rest = ({}, []) if quoted or asks and not tagged else self.check(body if tagged else part, now)
            if checked and open and not says_so and not tagged and set(checked) <= set(now.told):
                fact = self.answer(part, scene, now)[0]    # what is known is repeated to ask for something else
                fresh = fact and fact.name not in now.told and self.read(part, now).top(fact.aspect)
                checked, rest = ({}, []) if fresh else (checked, rest)
            claims = checked | claims
            if checked:
                questions += [(None, clause, now) for clause in rest if not acts["attached"].search(clause)]
            elif not quoted and (asks or open):
                questions.append((scene, part, now))
            else:
                scene += part + " "
            terms = [self.by_name[name].term for name in checked]
            topics += list(filter(None, terms)) or self.mentions(part, now)
        if scene and not (questions or claims or cases):
            questions.append(("", scene.strip(), memory))
        return claims, questions, tuple(topics), cases

    # What a question is about

    def answer(self, question, scene, memory):
        """(the fact that a question is about, "") or (None, what to say instead)"""
        acts = tables()["acts"]
        if question in self.examples:
            return self.by_name[self.examples[question]], ""
        if acts["code"].search(question):
            return None, says("code", question)
        heard, alone = self.asked(question, scene, memory)
        if acts["general"].search(question) and not (alone[1] and alone[0] in RESULT):
            return self.anything(heard, memory)
        top, strong = heard.top()
        scores = [(self.score(fact, heard, memory), fact) for fact in self.facts if self.concerns(fact, heard, memory)]
        score, fact = max(scores, key=lambda pair: pair[0], default=(0, None))
        fits = fact is not None and self.points(fact, heard) > 0
        clear = heard.terms or strong and (top in RESULT or fits)
        if acts["needless"].search(question) and not clear:
            return None, says("needless", question)
        if strong and top in (*RESULT, *HIDDEN):
            likely = [fact for fact in self.facts if self.points(fact, heard) > 0 and (
                fact.term in heard.terms or fact.aspect in (top, *HIDDEN))]
            none = self.sure.get(top) or tables()["aspects"][top].get("none", "")
            hit = fact and fact.aspect in HIDDEN
            if top in HIDDEN and not heard.terms and not hit:
                return self.anything(heard, memory, none)
            if not likely or top in HIDDEN and not any(self.concerns(fact, heard, memory) for fact in likely):
                left = [fact for fact in likely if fact.aspect in HIDDEN and fact.name not in memory.told]
                return None, says("not_here") if left else none
        layers = self.next_layers(heard, memory)
        if fact and fact.aspect == "limit" and not (fact.term in heard.terms or self.aspects(question).get("limit")):
            fact = next((each for each in self.facts if each.aspect == "formula" and each.term in heard.terms
                         and each.name not in memory.told), fact)    # "What is the cost?"
        repeats = fact and fact.name in memory.told and fact.aspect in HEADS and self.points(fact, heard) < SURE
        vague = re.fullmatch(r"and (the|an?) \w+\W*", question) and not (heard.terms or self.aspects(question))
        if score >= HEARD and not (repeats and layers) and not vague:
            return fact, ""
        if len(layers) == 1 and not (strong and top not in HEADS):
            return layers[0], ""
        return None, ""

    def asked(self, question, scene, memory):
        """(what a question says, with its scene and what was told last; the aspect that it fits by itself)

        A condition names the aspect, wherever it stands: "If two are equal, what do you want to see?"
        """
        acts, heard = tables()["acts"], self.weigh(question, memory)
        alone = heard.top()
        if scene:    # it sets the topic, and the aspect of a question that points back to it
            wide = self.weigh(scene + question, memory)
            whole = alone[1] and (heard.terms or not acts["back"].search(question)) and not acts["cases"].search(scene)
            heard = heard._replace(terms=heard.terms or wide.terms, said=wide.said,
                                   aspects=(heard if whole else wide).aspects)
        conditions = [scene] if acts["cases"].search(scene) else []
        conditions += [match[0] for match in acts["condition"].finditer(question)]
        for aspects in map(self.aspects, conditions):
            top = max(aspects, key=aspects.get, default="")
            if aspects.get(top, 0) >= SURE and top in (*RESULT, *HIDDEN, "edge"):
                heard, alone = heard._replace(aspects=aspects), (top, True)
        open = [fact for fact in self.next_layers(heard._replace(terms=self.last(memory)), memory)
                if fact.aspect == "limit" and self.by_name[fact.needs[0]].about["field"] <= self.people]
        if heard.top()[0] == "count" and open and not acts["wanted"].search(question):
            heard = heard._replace(aspects={"limit": SURE})    # how many orders a regular has
        if self.at_limit(heard, memory) and not heard.top("limit") and heard.top()[0] not in (*RESULT, *HIDDEN):
            aspects = self.aspects(question)    # "Is anything let off the limit of 20?" is about an exception
            heard = heard._replace(aspects=aspects if aspects.get("except", 0) >= SURE else {"edge": SURE})
        return heard, alone

    def at_limit(self, heard, memory):
        """Whether a text names a number that was told as a limit, of which it is open whether it counts."""
        return any(fact.aspect == "edge" and fact.name not in memory.told and need in memory.told
                   and self.by_name[need].values.get("number", set()) & heard.said["number"]
                   for fact in self.facts for need in fact.needs)

    def next_layers(self, heard, memory):
        """What is open about the terms of a text, or about the last topic if it points back to that."""
        terms = heard.terms
        acts = tables()["acts"]
        if not terms and acts["back"].search(heard.text) and not acts["result"].search(heard.text):
            terms = memory.topics[-1:]
        return [fact for fact in self.facts if fact.name not in memory.told and fact.aspect not in HIDDEN
                and self.first(fact, memory.told) == fact and fact.term and fact.term in terms]

    def concerns(self, fact, heard, memory):
        """Whether a text can be about a fact: a term must be named, or what was last said about it, or be the topic.

        Exceptions for a named measure are its own, not those of a kind that goes by it.
        """
        measure = fact.aspect in HIDDEN and any((term, "formula") in self.own for term in heard.terms)
        taken_up = not measure and fact.term in (*self.taken_up(heard, memory), *self.last(memory))
        return not fact.term or fact.term in (*heard.terms, *memory.topics[-1:]) or taken_up or \
            fact.aspect in ONCE and heard.top(fact.aspect)

    def last(self, memory):
        """The last topic; if that is a measure, then the kind that goes by it, too."""
        last = memory.topics[-1:]
        return [*last, *(self.by_name[need].term for fact in self.facts for need in fact.needs
                         if fact.aspect == "formula" and fact.term in last and need in self.by_name)]

    def taken_up(self, heard, memory):
        """The terms of what was told with the fields, words or numbers of a text."""
        return {other.term for other in self.facts if other.term and other.name in memory.told
                and any(heard.said[kind] & other.about[kind] for kind in CONTENT)}

    def score(self, fact, heard, memory):
        """How well a question fits a fact."""
        score = self.points(fact, heard) + (fact.name not in memory.told)
        score -= 0.3 * (self.first(fact, memory.told) != fact)
        terms = dict.fromkeys(self.taken_up(heard, memory), 0.7) | heard.terms
        if fact.term in terms:
            score += 3 * terms[fact.term]
        elif fact.term and fact.aspect in ONCE and heard.top(fact.aspect):
            pass
        elif fact.term and fact.aspect not in RESULT:
            score -= 3 if terms else 2 * (fact.term not in memory.topics and fact.aspect not in ONCE)
        if fact.term in memory.topics and not heard.terms:
            score += 0.8 / (1 + memory.topics[::-1].index(fact.term))
        if not terms or fact.term in terms:
            score += sum(bonus for kind, bonus in CONTENT.items() if heard.said[kind] & fact.about[kind])
        return score

    def points(self, fact, heard):
        """How well the aspects of a question fit a fact; below zero if they fit others only."""
        also = tables()["aspects"].get(fact.aspect, {}).get("also", [])
        nearly = [heard.aspects.get(other, 0) - 1 for other in also if (fact.term, other) not in self.own]
        found = max([heard.aspects.get(fact.aspect, 0), *nearly])
        top, strong = heard.top()
        if found <= 0.5 or strong and found < SURE and fact.aspect in RESULT:
            return -SURE * (strong and not (fact.aspect in HEADS and top in INNER))
        return found

    def first(self, fact, told):
        """The fact, or what must be told before it."""
        while missing := [need for need in fact.needs if need not in told and need in self.by_name]:
            fact = self.by_name[missing[0]]
        return fact

    def anything(self, heard, memory, none=""):
        """The answer to "Anything else?" (or to "Any exceptions?", which `none` would deny)."""
        untold = [fact for fact in self.facts if fact.name not in memory.told]
        if heard.terms:
            mine = [fact for fact in untold
                    if heard.terms.keys() & {fact.term, *(self.by_name[need].term for need in fact.needs)}]
            mine.sort(key=lambda fact: fact.aspect not in HIDDEN)
            about = self.names[next(iter(heard.terms))][0]
            return (mine[0], "") if mine else (None, says("no_more", heard.text, fill=about))
        hidden = [fact for fact in untold if fact.aspect in HIDDEN]
        open = [fact for fact in hidden if self.first(fact, memory.told) == fact]
        near = [fact for fact in open if fact.term in memory.topics[-1:]] or (open if none and len(open) == 1 else [])
        if near or len(untold) == 1:
            return (near or untold)[0], ""
        if not untold or none and not hidden:
            return None, none or says("nothing", heard.text)
        return None, says("more", heard.text, fill=self.label((hidden if none else untold)[0]))

    def lost(self, heard, memory):
        """The answer to a question that is not understood: what could be meant, and nothing that is hidden."""
        left = [fact for fact in self.facts if fact.name not in memory.told and fact.aspect not in HIDDEN
                and self.first(fact, memory.told) == fact]
        left = [fact for fact in left if fact.term in heard.terms] or left
        labels = list(dict.fromkeys(map(self.label, left)))[:2]
        return says("lost", heard.text, memory.turn) + " " + (
            f"Do you mean {' or '.join(labels)}?" if labels else says("known", heard.text))

    def label(self, fact):
        """How a person would name a fact: the limit for "big"."""
        label, name = tables()["aspects"][fact.aspect]["label"], self.names.get(fact.term, ["it"])[0]
        return label.format(term=f'"{name}"') if "{term}" in label else label + f' for "{name}"' * bool(fact.term)

    # Whether a proposal is right

    def judge(self, claims, memory, alone):
        """(sentences, details settled, the last fact) in answer to proposals. alone: nothing else is asked"""
        wrong = [name for name, grade in claims.items() if grade in ("wrong", "partly")]
        right = [name for name in claims if name not in wrong]
        fresh = [name for name in right if name not in memory.told]
        if wrong:
            fact = self.by_name[wrong[0]]
            lead = "Not quite." if claims[fact.name] == "partly" or fact.aspect in HIDDEN else "No."
            others = [name for name in right if self.by_name[name].term != fact.term]
            lead = f"Right, except for {self.label(fact)}." if others else lead
            settled = [name for name in fresh if claims[name] == "right"]
            return [lead, fact.reply], [*settled, fact.name], fact
        if not right or not (alone or fresh):
            return [], [], None
        unsure = [name for name in right if claims[name] == "unsure"]
        again = [name for name in fresh if claims[name] != "right" or self.by_name[name].aspect in HEADS]
        again = again[:2] or unsure[:1]
        lead = says("exact", *right) if unsure else says("yes", *right, memory.turn) if alone else ""
        settled = [name for name in fresh if claims[name] == "right" or name in again]
        return [lead, *(self.by_name[name].reply for name in again)], settled, self.by_name[right[-1]]

    def check(self, sentence, memory):
        """(detail -> verdict on a sentence's claims, the claims that nothing is known about)"""
        found, rest, universal = {}, [], tables()["acts"]["universal"].search(self.with_terms(sentence))
        sentence = re.sub(r"\b(you mean|(to )?sum(ming)? up|to summari[sz]e|nothing (else|more))\b[:,]?", "", sentence)
        for clause in self.clauses(sentence, memory):
            heard = self.read(clause, memory)
            target, only = self.claimed(heard, memory)
            if target:
                found = self.verdicts(target, only, heard, memory) | found
                more = [fact for fact in self.facts if fact.aspect in HIDDEN and fact.term == target.term
                        and fact.name not in memory.told]
                if more and universal and found.get(target.name) in ("right", "unsure"):
                    found |= {more[0].name: "partly"} if target.name in memory.told else {target.name: "unsure"}
            elif heard.terms or heard.top()[1] or any(heard.said[kind] for kind in CONTENT):
                rest.append(clause.strip(" ,;"))
            memory = memory._replace(topics=(*memory.topics, *([target.term] if target else heard.terms)))
        return found, rest

    def clauses(self, sentence, memory):
        """The claims of a sentence: it is cut where another term or aspect begins, not inside a list."""
        parts, subject = [""], set()
        outside = r"(,|;|\b(?:but|except|and|while)\b| - | – |—)(?=(?:[^\"]*+\"[^\"]*+\")*+[^\"]*+$)"    # of quotes
        pieces = ["", *re.split(outside, sentence)]
        for piece in map("".join, zip(pieces[::2], pieces[1::2])):
            heard = self.read(piece, memory)
            about = {*(heard.terms or self.taken_up(heard, memory)), *filter(heard.top, heard.aspects)}
            about -= {"define", "values", "names"} | {"formula"} - self.here
            apart = tables()["acts"]["others"].search(self.shadow(piece)) or piece[:3] == "but" and heard.said["word"]
            ends = piece[:1] == ";" or about - subject or apart
            if subject and ends and not tables()["acts"]["cases"].search(parts[-1]):
                parts.append("")
            subject = about or subject
            parts[-1] += piece
        return [part for part in parts if re.search(r"\w", part)]

    def claimed(self, heard, memory):
        """(the fact that a claim is about, or None; the facts of its aspects that concern the result)"""
        only = [fact for fact in self.facts if fact.aspect in RESULT and heard.top(fact.aspect)]
        found = [(HEARD, None)]
        extra = {fact.term for fact in self.facts if fact.aspect == "extra" and fact.about["word"] & heard.said["word"]}
        whole = [fact for fact in self.facts if fact.aspect == "formula" and len(fact.about["field"]) > 1
                 and fact.about["field"] == heard.said["field"] and fact.term not in extra]
        if whole and "average" in heard.said["way"] and "len(found)" not in self.truth:
            return None, only
        for fact in self.facts if not only else []:
            near = fact.name in memory.told or fact.term in (*heard.terms, *self.last(memory))
            if fact.aspect in ("formula", "extra") and near and self.result_of(fact.term, heard.text) == fact.aspect:
                return fact, only
        for fact in only or whole or self.facts:
            grade, fits = self.verdict(fact, heard, memory.told), self.points(fact, heard) > 0
            elsewhere = heard.terms and fact.term not in {"", *heard.terms} \
                and fact.aspect not in RESULT and not (fact.aspect in ONCE and heard.top(fact.aspect)) \
                and not (fact.aspect in ("limit", "edge") and fact.about["field"] & heard.terms.keys())
            if fact.aspect in HEADS:    # a proposal for a meaning is one for the term that was named, or is the topic
                mine = fact.term in (*heard.terms, *memory.topics[-1:])
                known = mine or whole or fact.aspect in ONCE and heard.top(fact.aspect)
            else:
                known = fact.name in memory.told or self.concerns(fact, heard, memory)
            apart = fact.aspect in ("count", "empty") and not heard.top(fact.aspect) or fact.aspect == "define" \
                and fact.term not in heard.terms and heard.said["way"] & {"sum", "max"}
            if not grade or elsewhere or not known or apart:
                continue    # a number alone says nothing about them
            marks = ["word"] if fact.about["word"] or fact.aspect != "extra" else ["number", "field"]
            named = any(fact.about[kind] & heard.said[kind] for kind in marks)
            vague = fact.aspect in HIDDEN and (not named or grade == "open" and not heard.said["ever"])
            meant = fact.term in heard.terms and grade == "right" and heard.top()[0] not in ("values", "names")
            if (fits or meant) and (named or fact.aspect not in HIDDEN) or not vague and (named or not heard.top()[1]):
                bonus = 0.5 + 1.5 * (grade in ("right", "open")) + 5 * (fact.aspect in HIDDEN and not vague)
                found.append((self.score(fact, heard, memory) + bonus, fact))
        return max(found, key=lambda pair: pair[0])[1], only

    def verdicts(self, target, only, heard, memory):
        """What a claim about a fact says about this and the other facts of its term: detail -> verdict."""
        found = {}
        chain = [fact for fact in self.facts if fact == target or fact in only or target.term
                 and fact.term == target.term and not {fact.aspect, target.aspect} & set(HIDDEN)]
        known = {*memory.told, *(fact.name for fact in chain)}
        for fact in sorted(chain, key=lambda fact: fact != target):
            grade = self.verdict(fact, heard, memory.told)
            denies = re.search(r"\b(no|not|isn't|don't see|without)\b", heard.text)    # There is no key called "value".
            aside = grade in ("wrong", "partly") and fact != target and self.points(fact, heard) <= 0 \
                and not 1 < len(fact.about["field"] & heard.said["field"])
            if grade and known.issuperset(fact.needs) and not (fact.aspect in HEADS and (denies or aside)):
                found[fact.name] = grade
        return found

    def verdict(self, fact, heard, told):
        """What a claim says about a fact: right, open (something is unsaid), unsure, partly, wrong; "" if nothing."""
        grades, keys, core = set(), set(), False
        if fact.aspect in ("empty", "ties"):    # not what stands in "if nothing is left"
            heard = heard._replace(said=self.said(tables()["acts"]["supposed"].sub("", heard.text)))
        said = heard.said
        about = fact.aspect in ("formula", "extra") and self.result_of(fact.term, heard.text)
        if about:
            return "right" if about == fact.aspect else ""
        step = NEXT.get((*said["end"], *said["edge"])) if fact.aspect in ("limit", "edge") else 0
        beside = {str(int(n) + step) for n in said["number"] if step and re.fullmatch(r"\d{1,9}", n)}
        if step and beside == fact.values.get("number") and fact.values.get("edge") != said["edge"]:    # 3 up: over 2
            return "right" if "edge" in fact.values and fact.name in told else "unsure"
        groups = tables()["aspects"].get(fact.aspect, {}).get("kinds") or [[kind] for kind in fact.values]
        for kinds in groups:
            kind = next((kind for kind in kinds if kind in fact.values), kinds[0])
            if kind != fact.aspect and (fact.term, kind) in self.own or kind == "join" and len(keys) < 2 \
                    or kind == "end" and "ties" in fact.values:
                continue    # the limit's edge may be another fact
            mine = fact.values.get(kind, set())
            theirs = self.tokens(fact, kind, heard, mine, told)
            keys = theirs if kind == "field" else keys
            other = not theirs and mine and heard.top(fact.aspect) and any(said[other] for other in kinds)
            core |= other or bool(theirs and mine) and (kinds is groups[0] or kind == "edge" and heard.top("edge")
                                                  or not any(kind in fact.values for kind in groups[0]))
            if not theirs or not mine:
                grades |= {"wrong"} if other else {"open"} if mine else {"unsure"} if theirs else set()
            elif theirs == mine or kind == "form" and theirs <= mine:
                vague = theirs == {"figures"} != mine    # which several forms show
                grades.add("unsure" if vague or kind == "field" and mine <= self.people & self.labels else "right")
            elif kind == "number" and mine < theirs:
                grades.add("unsure")
            elif fact.name not in told or kind not in ("field", "word") or not theirs < mine:    # else it refers to it
                grades.add("partly" if theirs & mine else "wrong")
        if fact.aspect == "formula" and ("open" in grades or len(fact.values.get("op", ())) > 1):
            grades.add("unsure")    # the order of its steps cannot be checked
        core &= fact.aspect != "edge" or bool(said["number"]) or heard.top("edge")    # "Does Bern count, too?"
        core &= fact.aspect != "order" or bool(said["field"]) or self.points(fact, heard) > 0
        if not core or grades == {"open"} or fact.aspect in ("define", "formula") and not keys:
            return ""
        if grades & {"wrong", "partly"}:
            return "partly" if grades & {"right", "partly"} else "wrong"
        return next((grade for grade in ("unsure", "open", "right") if grade in grades), "")

    def tokens(self, fact, kind, heard, mine, told):
        """What a claim about a fact says of a kind, less what it says of other facts beside."""
        if kind == "field":
            return self.claimed_keys(fact, heard, mine)
        theirs = heard.said["mark" if kind == "word" and fact.aspect == "empty" and not heard.said["word"] else kind]
        if kind == "join":    # what stands last between the number and the word
            text = self.vocabulary.sub("_label", self.shadow(heard.text))
            between = re.search(r"_figure.*?_label|_label.*?_figure", text)
            return set(re.findall(r"\b(?:and|or)\b", between[0] if between else "")[-1:]) or theirs
        others = [each.about[kind] - mine for each in self.facts if kind in CONTENT
                  and each.name in told and (kind == "number" or each.term == fact.term)]
        return theirs.difference(*others) or theirs

    def claimed_keys(self, fact, heard, mine):
        """The keys that a claim about a fact names, less those that only say what it is about."""
        own = {self.field_of.get(word) for name in self.stems.get(fact.term, []) for word in name}
        theirs = heard.said["field"] - own | heard.said["field"] & mine
        theirs = fact.aspect == "group" and theirs & self.labels or theirs
        beside = re.findall(r"\b(?:each|every|per|all) (\w+)", heard.text)
        theirs -= {self.field_of.get(stem(word)) for word in beside} - mine
        if fact.aspect == "define" and tables()["acts"]["share"].search(self.with_terms(heard.text)):
            theirs -= {key for key in theirs - mine if any({stem(key)} in self.stems[term] for term in heard.terms)}
        if fact.term not in heard.terms and not re.search(r"\b(it|that|this|they)('s)?\b", heard.text):
            theirs -= {key for key in theirs - mine if any({stem(key)} in self.stems[term] for term in heard.terms)}
        return theirs - (self.people - mine) or theirs

    # What the facts, or the reference, settle of a concrete case

    def settled(self, text, memory, loosely=False):
        """(sentences, details, fact) in answer to a case, "Is it big with 20?", or None; loosely: a number is a case"""
        summary = len(self.mentions(text, memory)) > 1 and len(self.clauses(text, memory)) > 2
        if summary and not self.worked_out(text, memory)[1]:
            return None
        heard = self.read(rewritten("counted", text), memory)
        looks = (self.rounded, partial(self.member, loosely=loosely), self.shown, self.reach)
        for sentence, facts, fact in filter(None, (look(heard, memory) for look in looks)):
            fresh = [each for each in facts if each.name not in memory.told]
            return [sentence, *(each.reply for each in fresh)], [each.name for each in fresh], fact

    def rounded(self, heard, memory):
        """What becomes of fractions, shares and averages: "41.2 becomes 42.", "That makes 34 percent."."""
        fact = next((fact for fact in self.facts if fact.values.get("round", set()) & ROUNDED.keys()), None)
        if not fact:
            return None
        way = ROUNDED[next(iter(fact.values["round"] & ROUNDED.keys()))]
        parts = re.findall(r"(?<![\w.])\d{1,9}\.\d+(?!\w)", heard.text)
        if parts and heard.top("round"):
            return ", ".join(f"{part} becomes {way(float(part))}" for part in dict.fromkeys(parts)) + ".", [fact], fact
        share, acts, text = "whole = sum(" in self.truth, tables()["acts"], self.shadow(heard.text)
        found = acts["outcome"].search(text) and acts["of_all" if share else "averaged"].search(text)
        numbers = [int(number) for number in re.findall(r"(?<![\w.])\d{1,9}(?![\w.])", found[0])] if found else []
        part, whole = (min(numbers), max(numbers)) if share and numbers[1:] else (sum(numbers), len(numbers))
        if whole > 1:
            return f"That makes {way(Fraction(part * 100 ** share, whole))}{' percent' * share}.", [fact], fact

    def worked_out(self, text, memory):
        """(a text with what a told formula comes to in place of the numbers of its keys, a sentence, the formula)"""
        row = self.amounts(text)
        fact = next((fact for fact in self.facts if fact.aspect == "formula" and fact.name in memory.told
                     and fact.about["field"] <= row.keys()), None)
        if not fact:
            return text, "", None
        total = self.result(fact.reply, row)
        for extra in self.facts:
            meant = not extra.about["word"] or extra.about["word"] & self.said(text)["word"]
            if extra.aspect == "extra" and extra.term == fact.term and meant:
                total = self.with_extra(total, extra, row) if extra.name in memory.told else None
        known = f"with {fact.term} of {total} {text}", f"That makes {total}.", fact
        return (text, "", fact) if total is None else known

    def with_extra(self, total, extra, row):
        """What an extra makes of what a formula comes to, None if the row has no number for it."""
        number = next(iter(extra.about["number"] or map(row.get, extra.about["field"])), None)
        step = next((step for step in extra.values.get("op", ()) if step in STEPS), "cap")
        return STEPS[step](total, int(number)) if number and total is not None else None

    def result_of(self, term, text):
        """Whether what a text works out is what the formula of a term does ("formula"), or that with its extra."""
        facts = {fact.aspect: fact for fact in self.facts if fact.term == term}
        keys = sorted(set().union(*(fact.about["field"] for fact in facts.values())))
        rows = [{key: str(n ** (place + 1) + 3) for place, key in enumerate(keys)} for n in (7, 11)]
        theirs = [self.result(text, row) for row in rows]
        mine = [self.result(facts["formula"].reply, row) for row in rows] if "formula" in facts else theirs
        more = [self.with_extra(one, facts["extra"], row) for one, row in zip(mine, rows)] if "extra" in facts else None
        return "" if None in theirs else "formula" if theirs == mine else "extra" if theirs == more else ""

    def result(self, text, row):
        """What comes of a text, "the price times 3", with the numbers of a row; None if it works nothing out."""
        text, braced = re.subn(r"(, )?(and )?all (of )?that", " ) ", plain(text))
        words = re.findall(r"[a-z]\w*|\d{1,9}|[-+*()]", "( " * braced + text)
        code = " ".join(str(row.get(self.field_of.get(stem(word)), SPOKEN.get(word, ""))) if word[0].isalpha() else
                        word.lstrip("0") or "0" for word in words)
        found = re.search(r"[( ]*+\d++[) ]*+([-+*][( ]*+\d++[) ]*+)+", code[:200])
        try:
            return eval(found[0].strip()) if found else None
        except SyntaxError:    # a bracket is missing
            return None

    def member(self, heard, memory, loosely=False):
        """Whether something is one of a kind: with a number, a formula's numbers, the limit itself, or with a word."""
        acts = tables()["acts"]
        text, made, formula = self.worked_out(acts["or_else"].split(heard.text)[0], memory)
        heard, text = self.read(text, memory) if made else heard, acts["on_limit"].sub("exactly that", text)
        only, mine, (top, strong) = (made, [], formula) if made else None, self.kind_of(heard, memory), heard.top()
        define = mine.get("define")
        other = not made and strong and top in ("ties", "count", "between", "empty", "fewer", "absent")
        if not mine or other and not self.amounts(text).keys() & define.about["field"]:
            return only
        shadow = self.with_terms(acts["aside"].sub("", text))
        if "join" in define.values and acts["joins"].search(text):
            return says("either" if define.values["join"] == {"or"} else "both", text), [], define
        instance = loosely or acts["instance"].search(shadow) or acts["bounds"].search(shadow)
        if acts["rules"].search(shadow) or not instance:
            return only
        cases = self.cases(text, mine, memory)
        if not cases:    # "3 stops" of a kind that goes by the delay
            keys = self.amounts(text).keys() - self.labels - define.about["field"]
            parts = [fact for fact in self.facts if fact.aspect == "formula" and fact.about["field"] & keys]
            instead = "" if made or parts or not keys else self.not_by(define, text)
            return (instead, [], define) if instead else only
        fits, used = zip(*(self.one_of(mine, *case) for case in cases))
        used = [*chain(*used)]
        untold = [fact for fact in used if fact.name not in memory.told and fact.aspect in ("limit", "edge")
                  and not (fact.aspect == "edge" and mine.get("except") in used)]
        if untold:
            return (made, untold[:1], define) if made else None
        if None in fits or len(fits) == 1:
            kind = "depends" if None in fits else ("one" if fits[0] else "none") + " denied" * cases[0][-1]
            sentence = says(kind, text, fill=self.names[define.term][0])
        else:
            right = all(denied != fit for (*_, denied), fit in zip(cases, fits))
            each = ", ".join(f"{case[0]} {'counts' if fit else 'does not'}" for case, fit in zip(cases, fits))
            checked = says("yes", text) if right else f"Not quite. {each}."
            sentence = f"{each}." if acts["choice"].search(text) else checked
        return f"{made} {sentence}".strip(), used, define

    def cases(self, text, mine, memory):
        """[(number, the average, word -> whether it is lacking, whether it is said not to be one)] of a text's cases

        Words go for the next number as well. "At most 35" puts two, 35 and 36. There are none beside other claims.
        """
        acts, limit, special = tables()["acts"], mine.get("limit"), mine.get("except")
        mean = acts["averages"].search(text) if limit and "mean" in limit.values else None
        text = self.lacking.sub("lacking ", text.replace(mean[0], " ") if mean else text)
        special = special if special and special.about["word"] & self.said(text)["word"] else None
        mean = self.said(mean[0])["number"] if mean else set()
        bound = mean or (special or limit or mine["define"]).about["number"] or limit and limit.values.get("mean")
        parts, found, words, plainly, edge = [("", "")], [], {}, bool(special), set()
        for part in acts["parts"].split(acts["opening"].sub("", text)):
            amounts, home = self.amounts(part), self.labels | mine["define"].about["field"]
            numbers = {amounts[key] for key in amounts.keys() & home} or self.said(part)["number"] - {*amounts.values()}
            numbers = numbers or acts["own"].search(part) and bound or set()
            points = self.aspects(self.vocabulary.sub(" ", part))
            if len(numbers) > 1 or not numbers and any(points.get(name, 0) >= SURE for name in (*RESULT, *ONCE)):
                return []
            turns = parts[-1][0] and acts["turns"].search(part)    # "except in the cup, where it's 10"
            before, here = ({self.column.get(word[1]) for word in self.vocabulary.finditer(each)}
                            for each in (parts[-1][1], part))
            turns = turns or numbers and parts[-1][0] and before & here    # another word of the same key
            before, said = parts.pop() if not turns and (not numbers or parts[-1][0] in ("", *numbers)) else ("", "")
            parts.append((next(iter(numbers), before), f"{said} {part}"))
        if len(parts) > 1 and not parts[-1][0]:
            parts[-2:] = [(parts[-2][0], f"{parts[-2][1]} {parts[-1][1]}")]
        for number, part in parts:
            here = {match[1]: part[:match.start()].rstrip('"').endswith("lacking ")
                    for match in self.vocabulary.finditer(part)}
            taken = {self.column.get(word) for word in here}
            kept = {} if acts["others"].search(part) else words
            words = {word: lacks for word, lacks in kept.items() if self.column.get(word) not in taken} | here
            said, denied = self.said(part), bool(acts["denies"].search(self.with_terms(part)))
            stated = acts["bounds"].search(self.shadow(part))
            if number and (stated or edge and special and special.about["word"] & here.keys()):
                end = stated and said["end"] or (limit.values.get("end", ()) if limit else ())
                edge = said["edge"] or edge
                step = NEXT.get((*end, *edge))
                if denied or not step or not re.fullmatch(r"\d{1,9}", number):
                    return []
                denied = edge == {"out"}
                found.append((str(int(number) + step), mean, words, not denied))
            else:
                plainly |= bool(number)
            found.append((number, mean, words, denied))
        known = [fact for fact in mine.values()
                 if fact.aspect in ("values", "names", "except") and fact.name in memory.told]
        asks = special in known or known and acts["asks_if"].search(self.with_terms(text))
        alone = words and (acts["any"].search(text) or asks)
        fits = any(self.column.get(word) in mine["define"].about["field"] for word in words) or special
        return found if (plainly if found[-1][0] else alone and fits and len(found) == 1) else []

    def one_of(self, mine, number, mean, words, denied):
        """(whether a case is one of a kind, None if that is open; the facts that settle it)"""
        define, limit, label = mine["define"], mine.get("limit"), mine.get("values") or mine.get("names")
        has = {word for word, lacks in words.items() if not lacks}
        special = [fact for fact in [mine.get("except")] if fact and fact.about["word"] & has]
        if special and "ever" in special[0].values:
            return special[0].values["ever"] == {"always"}, special
        fits, used = [], []
        bound = mean or (special or [limit or define])[0].about["number"] or limit and limit.values.get("mean")
        if limit and {number} == bound:
            edge = mine.get("edge", limit)
            fits, used = [edge.values["edge"] == {"in"} if "edge" in edge.values else None], [limit, edge]
        elif limit:    # a limit may be the average, and the number unknown
            known = number and len(bound) == 1 and "end" in limit.values and not re.search("[a-z]", number + min(bound))
            fits = [(float(number) > float(*bound)) == ("high" in limit.values["end"]) if known else None]
            used = [limit] * bool(number)
        if label:
            right = label.about["word"] & has
            other = any(self.column.get(word) in define.about["field"] for word in has)
            fits.append(True if right else False if other or label.about["word"] <= words.keys() - has else None)
            used += [label] * bool(right)
        either = "or" in define.values.get("join", ())
        used = [label] if label and either and fits[-1] else used
        return either if either in fits else not either if set(fits) == {not either} else None, [*used, *special]

    def kind_of(self, heard, memory):
        """aspect -> fact of the kind that a text is about, by its name, by what was told of it, or as the topic."""
        kinds = {fact.term: fact.name for fact in self.facts if fact.aspect == "define"}
        last = [term for term in memory.topics if term in kinds][-1:]
        about = (heard.terms.keys(), self.taken_up(heard, memory), {*last})
        found = next((kinds.keys() & terms for terms in about if kinds.keys() & terms), ())
        known = len(found) == 1 and all(kinds[term] in memory.told for term in found)
        return {fact.aspect: fact for fact in self.facts if fact.term in found} if known else {}

    def shown(self, heard, memory):
        """Whether an example of an entry, or of a whole line, looks as it must: "F38 (7) + C12 (2)"."""
        told = [fact for fact in self.facts if fact.aspect in ("format", "between") and fact.name in memory.told]
        quoted = next((each for each in re.findall(r"\"([^\"]+)\"", heard.text) if re.search(r"\w\W+\w", each)), "")
        name = r"(?:\b[a-z]\w*)" if quoted else rf"(?:\b[a-z]\d+\b|\b(?:{self.spellings})\b)"
        text = quoted or (found[0] if (found := self.example.search(heard.text)) else "")
        open = "format" in self.here and all(fact.aspect != "format" for fact in told)
        several = self.example.search(heard.text.partition(" or ")[2])
        form = next((form for fact in told for form in fact.values.get("form", set()) - {"figures"}), "{n}")
        form = '["{n}", {v}]' if form == "pairs" else form
        count = len(re.findall(name, text))
        if not told or open or several or not count or "{v}" in form and not re.search(r"\d", text):
            return None
        entry = re.escape(form).replace(r"\{n\}", name).replace(r"\{v\}", r"\d+").replace('"', '"?')
        mark = re.search(r'"(.+)"\.join', self.truth)
        mark = re.escape(mark[1]) if mark else r"[^\w?]{1,6}"
        run = re.search(f"{entry}(?:{mark}{entry})*", text)
        if run and len(re.findall(name, run[0])) == count:
            return says("yes", heard.text), [], told[0]
        wrong = told[-1] if run else told[0]    # the mark stands before the form
        return f"Not quite. {wrong.reply}", [], wrong

    def reach(self, heard, memory):
        """What the reference itself settles: how far something reaches, and whether a name comes once."""
        terms = {*heard.terms, *memory.topics[-1:], *self.taken_up(heard, memory)}
        texts = (self.with_terms(heard.text), self.shadow(heard.text)) if heard.text.endswith("?") else ()
        for row in tables()["settled"]:
            told = [fact for fact in self.facts if fact.aspect == row["about"] and fact.name in memory.told
                    and (not fact.term or fact.term in terms or fact.aspect in ONCE)]
            found = told if row["about"] else self.facts[:1]
            if found and any(map(row["asks"].search, texts)) and re.search(row["code"], self.truth):
                return row["says"].format(measure=f"{found[-1].term} of each {self.row}", row=self.row), [], found[-1]

    def amounts(self, text):
        """key -> the number, of at most nine digits, that a text gives it: "a price of 4", "4 letters"."""
        key, number = r"\b([a-z]\w*)", r"(?:only |just |exactly )?(\d{1,9})\b"
        before = [pair[::-1] for pair in re.findall(r"\b(\d{1,9}) ([a-z]\w*)", text)]
        pairs = re.findall(f"{key} (?:is|was|are|at) {number}", text) + before
        pairs += re.findall(f"{key}(?: of)?[ :=]+{number}", text)
        return {self.field_of[stem(word)]: str(int(number)) for word, number in pairs if stem(word) in self.field_of}

    def not_by(self, fact, text):
        """A correction, if a question about a limit names a number that the limit is not one of."""
        said = self.said(text)["field"] - self.labels
        kinds = [each for each in self.facts if each.term == fact.term and each.aspect == "define"]
        home = set().union(*(kind.about["field"] - self.labels or kind.about["field"] for kind in kinds))
        parts = [each.about["field"] for each in self.facts if each.aspect == "formula" and each.term in home]
        asks = fact.aspect in ("define", "limit", "edge") and self.aspects(text).get("limit", 0) >= SURE
        if not asks or not home or not said or said & home.union(*parts):
            return ""
        return f"It's not the {' or '.join(sorted(said))}, it's the {' and the '.join(sorted(home))}."

    def leaves_open(self, fact, text):
        """Whether a fact, once more, would not answer a check: it has other numbers or words than the text."""
        said, mine = self.said(text), fact.about
        kinds = [kind for kind in ("number", "word") if mine[kind] or fact.aspect == "formula"]
        other = any(said[kind] and not said[kind] & mine[kind] for kind in kinds)
        acts = tables()["acts"]
        return other and text.endswith("?") and not acts["rules"].search(text) and not acts["bounds"].search(text)

    # What a text says

    def read(self, text, memory):
        return Heard(text, self.mentions(text, memory), self.aspects(text), self.said(text), set(stems_of(text)))

    def weigh(self, question, memory):
        """What a question says; each aspect gets points for its probability, given patterns and example questions.

        This is naive Bayes. Half of the logarithms count, as neighbouring words are not independent.
        """
        heard, table = self.read(question, memory), tables()["weights"]
        text = re.sub(r"\b[a-z]\w*", lambda match: "term" if stem(match[0]) in self.known else match[0],
                      tables()["acts"]["aside"].sub("", self.shadow(question)))
        found = [table[feature] for feature in features(text) if feature in table]
        odds = {name: math.exp(1.5 * heard.aspects.get(name, 0) + 0.5 * sum(each[name] for each in found))
                for name in tables()["aspects"]}
        total = sum(odds.values()) + 0.05    # for a question about nothing
        points = {name: CERTAIN * number / total for name, number in odds.items() if number > total / 50}
        return heard._replace(aspects=points)

    def shadow(self, text):
        """A text with "row" for the rows' noun and "_figure" or "_label" for their keys."""
        text = self.noun.sub(lambda match: "rows" if match[0].endswith("s") else "row", text)
        return re.sub(r"[a-z_]\w*", lambda match: self.key_words.get(match[0], match[0]), text)

    def with_terms(self, text):
        """The shadow of a text, with "term" for each of a term's words."""
        return re.sub(r"\b(?:(?:most|least|more|less) )?([a-z]+)",
                      lambda match: "term" if stem(match[1]) in self.known else match[0], self.shadow(text))

    def aspects(self, text):
        """aspect -> points of a question: a long match has a little more, two hints as many as a sure pattern."""
        points, table = {}, tables()["aspects"]
        shadow = tables()["acts"]["aside"].sub("", self.shadow(text))
        longest = {name: max((len(match[0]) for match in aspect["sure"].finditer(shadow)), default=0)
                   for name, aspect in table.items()}
        most = 1 if any(length for name, length in longest.items() if name != "define") else 2
        for name, aspect in table.items():
            hints = min(most, sum(bool(hint.search(shadow)) for hint in aspect["likely"]))
            points[name] = SURE * bool(longest[name]) + LIKELY * hints + min(longest[name], 30) / 30
        sure = [name for name in points if points[name] >= SURE]
        if self.here.intersection(sure):
            points |= dict.fromkeys({*sure}.intersection(RESULT[:6] + ONCE).difference(self.here, self.sure), 0)
        for name in sorted(points, key=points.get, reverse=True):
            if points[name] >= SURE:
                points |= dict.fromkeys(table[name]["over"], 0)
        return {name: number for name, number in points.items() if number}

    def mentions(self, text, memory):
        """term -> how clearly a text names it. A term that only a later reply brings up is not known before."""
        text = tables()["acts"]["specific"].sub(" ", text)
        known = set(map(stem, words_of((self.request + " " + memory.heard).replace("-", " "))))
        words = [word for word in words_of(text.replace("-", " "))
                 if word in self.spelled or word != "values" and word not in self.key_words]
        dim = set(map(stem, words))
        clear = {stem(word) for before, word, after in zip(["", *words], words, [*words[1:], ""])
                 if before != "how" and after != "enough"}    # "how long" and "long enough" need not mean "long"
        exact = {term for term, names in self.names.items()
                 if any(set(name.split()) - data()["words"]["small"] <= set(words) for name in names)}
        taken = {stem(word) for term in exact for name in self.names[term] for word in name.split() if word in words}
        found = {}
        dull = {*self.field_of, *stop_stems()}
        for term, names in self.stems.items():
            here, faint = (clear, dim) if term in exact else (clear - taken, dim - taken)    # a form of another term
            part = any(name & here - dull for name in names if len(name) > 1)
            whole = any(name <= here for name in names)
            if term in self.open or any(name <= known for name in names):
                found[term] = 1.0 if whole else 0.5 if part or any(name <= faint for name in names) else 0
        return {term: weight for term, weight in found.items() if weight}

    def said(self, text):
        """kind -> tokens: what a text says, in the kinds of listener.toml."""
        text = rewritten("counted", text)
        quoted = set(re.findall(r"\"([^\"]+)\"", text))
        strange = {each for each in quoted if each[0].isalnum() and each not in data()["words"]["stop"]
                   and not self.vocabulary.search(each)
                   and not set(map(stem, words_of(each))) & {*self.field_of, *self.known}}
        shadow = self.with_terms(text)
        found = {kind: {token for token, pattern in tokens.items() if pattern.search(shadow)}
                 for kind, tokens in tables()["kinds"].items()}
        number = r"(?<![\w.])-?\d+(?:\.\d+)?(?!\w| (?:fields|columns|keys|things|ways|parts|conditions|rules))"
        found["number"] = set(re.findall(number, text))
        found["word"] = {match[1] for match in self.vocabulary.finditer(text)} | strange
        found["field"] = {self.field_of[stem(word)] for word in words_of(text) if stem(word) in self.field_of
                          and (word not in data()["words"]["stop"] or word in {*self.key_words, *self.spelled})}
        found["mark"] |= {each.strip() or each for each in quoted if not re.search(r"\w", each)}
        found["mark"] = found["mark"] - {" "} or found["mark"]    # a comma and a space
        if len(found["edge"]) > 1:
            found["edge"] = {"out" if re.search(r"\b(not|no longer|never|exclu\w+)\b|n't\b", text) else "in"}
        for kind, token in {"ever": "never", "ties": "z-a", "round": "nearest"}.items():    # "reverse alphabetical"
            found[kind] = {token} if token in found[kind] and found[kind] != {"z-a", "earlier"} else found[kind]
        return found | {kind: set() for kind in ("end", "ties") if len(found[kind]) > 1}    # both: nothing clear

    # What a task says

    def __init__(self, task):
        raws = [raw | {"questions": [*list_of(raw.get("question")), *list_of(raw.get("questions"))]}
                for raw in task["facts"] or []]
        terms = {term: list_of((about or {}).get("names")) or [term] for term, about in (task["terms"] or {}).items()}
        terms |= {raw["term"]: [raw["term"]] for raw in raws if raw.get("term") and raw["term"] not in terms}
        self.names = {term: [name.lower().replace("-", " ") for name in names] for term, names in terms.items()}
        small = data()["words"]["small"]
        self.stems = {term: [{stem(word) for word in name.split() if word not in small} or {name} for name in names]
                      for term, names in self.names.items()}
        self.spelled = {word for names in self.names.values() for name in names for word in name.split()}
        self.known = set().union(*(name for names in self.stems.values() for name in names))
        self.request = plain(re.sub(r"\{.*?\}", "", task["problem_description"] or ""))
        self.truth = task["ground_truth"] or ""
        self.set_words(task, raws)
        self.here = {raw.get("aspect") for raw in raws}
        self.facts = [self.fact(n, raw) for n, raw in enumerate(raws)]
        self.by_name = {fact.name: fact for fact in self.facts}
        self.own = {(fact.term, fact.aspect) for fact in self.facts}
        self.open = {fact.term for fact in self.facts if not fact.needs}    # terms of the request
        self.sure = {row["aspect"]: row["reply"] for row in task["sure"] or []}
        self.examples = {plain(question): fact.name for fact, raw in zip(self.facts, raws)
                         for question in raw["questions"]}
        defined = {fact.term: fact.values for fact in self.facts if fact.aspect == "define"}
        for fact in self.facts:    # a limit is one of a number, a choice of words is one of a key of words
            values = defined.get(fact.term, {})
            if fact.aspect in ("limit", "edge", "values", "names"):
                keys, labels = values.get("field", set()), self.labels
                fact.about["field"].update(keys & labels if fact.aspect in ("values", "names") else keys - labels)
            if fact.aspect in ("limit", "edge") and "end" in values:
                fact.values["end"] = values["end"]
            self.column |= {word: key for key in fact.about["field"] for word in fact.about["word"]}

    def set_words(self, task, raws):
        """The keys of the rows, their noun, and the words that stand in them."""
        code, calls = self.truth.lower(), " ".join(map(str, (task["test_cases"] or {}).values()))
        shown = f"{task['problem_description']} {code} {calls}".lower()
        values = [raw.get("values") or {} for raw in raws]
        measures = {self.names[raw["term"]][0] for raw in raws if raw.get("aspect") == "formula" and raw.get("term")}
        keys = {*re.findall(r"[\"'](\w+)[\"']\s*:(?!\n)", shown), *re.findall(r"\w\[[\"'](\w+)[\"']\]", code)}
        keys |= {*measures, *(str(key).lower() for each in values for key in list_of(each.get("field")))}
        figures = {*re.findall(r"[\"'](\w+)[\"']\s*:\s*-?\d", shown), *measures}
        self.labels = set(re.findall(r"[\"'](\w+)[\"']\s*:\s*[\"']", shown))
        rest = sorted(keys - data()["words"]["keep"])
        self.key_words = {word: "_figure" if key in figures else "_label" for key in rest
                          for word in (key, key + "s", key.removesuffix("s"))}
        self.field_of = {stem(key): key for key in sorted(keys)}
        for names in self.names.values():    # a term that stands for a key
            self.field_of |= {stem(name): key for key in sorted(keys & set(names)) for name in names}
        self.column = {word.lower(): key for key, word in re.findall(r"[\"'](\w+)[\"']: [\"']([^\"']+)[\"']", shown)}
        self.people = {self.field_of[stem(word)] for word in words_of(self.request) if stem(word) in self.field_of}
        words = {str(word).lower() for each in values for word in list_of(each.get("word"))}
        words |= set(re.findall(r"[\"']([^\"'\\\n]{2,30})[\"']", shown)) - keys
        words = sorted((word for word in words if word[:1].isalnum()), key=len, reverse=True)
        self.spellings = "|".join(map(re.escape, words)) or "(?!)"
        figures = "|".join(word for word, kind in self.key_words.items() if kind == "_figure") or "(?!)"
        self.vocabulary, self.having, self.lacking, self.example = (
            re.compile(text.replace("FIGURE", figures).replace("WORD", self.spellings))
            for text in data()["templates"].values())
        rows = re.findall(r"def \w+\((\w+s)\)", code)[:1] if task["terms"] else []
        one = re.sub(r"(?<=ch|sh|ss|.x)es$|s$", "", re.sub(r"ies$", "y", *rows)) if rows else ""
        self.row = one or "thing"
        self.noun = re.compile(data()["noun"].replace("ROWS", *rows).replace("ROW", one) if rows else "(?!)")

    def fact(self, n, raw):
        """A fact as it stands in a file, with what goes without saying."""
        name, aspect = str(raw.get("detail") or (raw["questions"] or [f"fact {n}"])[0]), raw["aspect"]
        values = {kind: {str(token).lower().strip() or " " for token in list_of(tokens)}
                  for kind, tokens in (raw.get("values") or {}).items() if tokens not in (None, [], "")}
        if "form" in values:    # "pairs", or the pattern of an entry, such as "{n}: {v}"
            values["form"] = {"names"} if values["form"] == {"{n}"} else {"figures", *values["form"]} - {"names"}
        heard = self.said(plain(raw["reply"]))
        for kind in {"except": ["ever"], "extra": ["op"], "limit": ["end", "edge"], "edge": ["end"]}.get(aspect, []):
            if heard[kind]:
                values.setdefault(kind, heard[kind])
        return Fact(name, raw["reply"], raw.get("term") or "", aspect, values,
                    {kind: set(values.get(kind, ())) for kind in CONTENT}, list_of(raw.get("needs")),
                    list_of(raw.get("implies")))
