"""The scripted human of functions: a person who listens, remembers, and tells what a task hides, one thing at a time.

How a message is understood. It is cut into sentences. A sentence that asks is compared with each fact: which terms it
names in any form of their words, which aspects its wording fits, what it takes up from earlier replies. The aspects are
weighed by patterns and by example questions, both in listener.toml. The best fact is told, or what it needs first. A
sentence that proposes is cut into claims, each of which is confirmed or corrected. A question that is not understood is
answered with what could be meant, and never costs a fact. "Anything else?" never denies what is left, but names it
instead of telling it. Facts of your own, which name no aspect, are heard by their words alone (own_facts.py).

This file has the dialogue: memory, manners, the parts of a message and the reply to each. It stands on four others:
- listener_words.py: words, and the patterns of listener.toml,
- listener_reading.py: what a task says, and what a text says in its words,
- listener_topics.py: which facts a text is about,
- listener_claims.py: whether a proposal is right,
- listener_cases.py: what the facts settle of a concrete case.

Standard library only. If you copy this file, copy these, own_facts.py and listener.toml too; the last says what a fact
consists of.
"""
import json
import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

from listener_cases import CaseSolver
from listener_claims import CORRECTED
from listener_reading import CERTAIN, HEADS, HIDDEN, INNER, MADE, RESULT, SURE
from listener_topics import HEARD
from listener_words import CODE, CONTENT, act, matches, plain, says, sentences, tables
from own_facts import OwnFacts

MANNERS = ("plain", "vague", "revising")


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
    aspects = tables()["aspects"]
    composed = task["facts"] and all(fact.get("aspect") in aspects for fact in task["facts"])
    return Listener(task) if composed else OwnFacts(task)


@lru_cache(maxsize=20_000)
def replied(human, memory, message, manner):
    """(reply, details told for the first time, the memory after it)"""
    words, told, after = human.reply(memory, message)
    words, told, after = in_manner(human, manner, words, told, after)
    reply = " ".join(filter(None, dict.fromkeys(words)))
    heard = f"{after.heard} {plain(reply)}"
    return reply, told, after._replace(heard=heard)


def in_manner(human, manner, words, told, memory):
    """What a human says who is vague at first, or wrong once and says so in the next reply."""
    if memory.wrong:
        fact = human.by_name[memory.wrong]
        rest = [word for word in words if word != fact.reply]
        mistaken = says("mistaken", fill=human.label(fact))
        memory = memory._replace(wrong="")
        return [mistaken, fact.reply, *rest], [fact.name, *told], memory
    if not told or memory.changed:
        return words, told, memory
    if manner == "vague":
        kept = tuple(name for name in memory.told if name not in told)
        memory = memory._replace(told=kept, changed=True)
        return [says("usual", *words)], [], memory
    if manner == "revising" and len(memory.told) < len(human.facts):
        fact = human.by_name[told[-1]]
        other = with_another_number(fact.reply)
        if other != fact.reply:
            words = [other if word == fact.reply else word for word in words]
            memory = memory._replace(wrong=fact.name, changed=True)
            return words, told[:-1], memory
    return words, told, memory


def with_another_number(reply):
    """A reply with a higher number in place of its first one, if it has one."""
    def higher(match):
        return str(int(match[0]) * 5 // 4 + 1)

    return re.sub(r"(?<![\w.])\d+(?![\d.]*\d)", higher, reply, count=1)


class Memory(NamedTuple):
    """What the human remembers. It is a tuple, so that the same messages need not be replayed."""
    told: tuple = ()         # details
    topics: tuple = ()       # terms that were talked about, the last one last
    heard: str = ""          # the human's own words
    turn: int = 0
    changed: bool = False    # whether it has been vague, or wrong, once
    wrong: str = ""          # a detail that must be taken back

    def after(self, told=(), topics=()):
        """The memory after details were told and terms were talked about."""
        return self._replace(told=(*self.told, *told), topics=(*self.topics, *topics))


# ---- The parts of a message


class Question(NamedTuple):
    text: str
    scene: str         # what is said before a question and is no claim: "Two may be equal. Who goes first then?"
    memory: Memory
    is_rest: bool      # whether it is what is left of a proposal, the rest of which is known


@dataclass
class Parts:
    """What a message is made of."""
    claims: dict = field(default_factory=dict)       # detail -> verdict on what is proposed
    questions: list = field(default_factory=list)
    cases: list = field(default_factory=list)        # what CaseSolver.settled says about each
    topics: list = field(default_factory=list)       # the terms that are named
    scene: str = ""                                  # sentences that wait for their question

    @property
    def corrected(self):
        """Whether something that is proposed must be corrected."""
        return not CORRECTED.isdisjoint(self.claims.values())


class Listener(CaseSolver):
    """The scripted human of one task."""

    def reply(self, memory, message):
        """(sentences of the reply, details told for the first time, the memory after it)"""
        text = self.with_zeros(plain(message))
        parts = self.hear(text, memory)
        _, settled, _ = self.judge(parts.claims, memory, alone=True)
        now = memory.after(settled, parts.topics)
        targets, instead = self.targets(parts, text, now)
        if not text.strip():
            instead = [says("code", message)]
        new = [name for name in targets if name not in now.told]
        if any(instead) and not new:    # what was told is not told again beside an answer
            targets = {}
        words, told, fact = self.judge(parts.claims, memory, alone=not targets and not instead)
        if parts.cases:
            words, told, fact = self.reply_to_cases(parts, words, told, new, instead)
        elif targets and parts.corrected and fact.name not in memory.told:    # a correction is an answer
            more_is_asked = any(self.by_name[name].term != fact.term for name in new)
            words = [says("first", text) if more_is_asked else "", *words]
        elif targets:
            words, told, fact = self.reply_to_questions(targets, new, words, told, text, now)
        elif not any(words):
            words = [self.reply_to_nothing(instead, message, text, now)]
        words, told = self.with_needed(words, told, memory)
        topics = [fact.term] if fact and fact.term else parts.topics
        memory = memory.after(told, topics)
        return words, told, memory._replace(turn=memory.turn + 1)

    def with_zeros(self, text):
        """A text in which to have no delay is to have a delay of 0, unless it is about what is listed."""
        if matches("listing", text):
            return text
        return self.having.sub(lambda match: f"{match[1] or 'with'} 0 {match[2]}", text)

    # ---- Hearing

    def hear(self, text, memory):
        """The parts of a message."""
        parts, pieces = Parts(), self.pieces(text, memory)
        for n, piece in enumerate(pieces):
            now = memory.after(topics=parts.topics)
            body, tag = self.cut_tag(piece, now)
            if n > 0 and tag and not body:
                continue    # "Is that right?"
            is_last, is_example = n + 1 == len(pieces), piece in self.examples
            sets_scene = not is_last and piece.endswith(".") and matches("cases", piece)
            proposal = body if tag and not is_example else ""    # "..., right?" without its end
            is_quote = not piece.endswith("?") and matches("quotes", piece)
            may_be_case = not sets_scene and not is_example and not is_quote
            if may_be_case and self.hear_case(parts, piece, proposal, now):
                continue
            self.hear_sentence(parts, piece, proposal, now)
        if parts.scene and not (parts.questions or parts.claims or parts.cases):
            parts.questions.append(Question(parts.scene.strip(), "", memory, False))
        return parts

    def pieces(self, text, memory):
        """The sentences of a text. One that asks two things is cut, but no example question and no case."""
        pieces = []
        for sentence in sentences(text):
            halves = sentences(act("joint").sub("?\n", sentence))
            about_result = len(halves) > 1 and any(SURE <= self.aspects(halves[-1]).get(name, 0) for name in MADE)
            if pieces and matches("points", sentence) and self.worked_out(pieces[-1], memory)[1]:
                pieces[-1] = f"{pieces[-1][:-1]}, {sentence}"    # "That makes 55. Is it big?"
            elif sentence in self.examples or not about_result and self.settled(sentence, memory):
                pieces.append(sentence)
            else:
                pieces += sentences(act("joint").sub("?\n", act("preamble").sub(r"\1.\n", sentence)))
        pieces = [piece for piece in pieces if not act("filler").fullmatch(piece)] or pieces
        if any(self.stands_alone(piece, memory) for piece in pieces[1:]):
            pieces = [piece for piece in pieces if not self.restates(piece)]
        goes_in = pieces[1:] and matches("goes_in", pieces[-1])
        if goes_in and act("filler").fullmatch(pieces[-1][:goes_in.start()] or "so"):
            # "Cheap pears picked in 5 hours: do they go in?"
            pieces[-2:] = [f"{pieces[-2][:-1]}, {pieces[-1]}"]
        return pieces

    def stands_alone(self, piece, memory):
        """Whether a question needs nothing that was said before it."""
        heard = self.read(piece, memory)
        return piece.endswith("?") and heard.best_aspect()[1] and (heard.terms or not matches("back", piece))

    def restates(self, piece):
        """Whether a sentence only repeats the request: "So you'd like one total over the big orders."."""
        if piece.endswith("?") or not matches("restates", piece):
            return False
        said = self.said(piece)
        kinds = ("field", "number", "word", "mark", "round", "ties", "form")
        return all(said[kind] <= self.requested[kind] for kind in kinds)

    @cached_property
    def requested(self):
        """What the request says, in the kinds of listener.toml."""
        said = self.said(self.request)
        said["field"] |= {names[0] for names in self.names.values()}
        said["form"] |= {form for form in ("figures", "names") if form in self.request}
        return said

    def cut_tag(self, piece, memory):
        """(what stands before the last comma or dash of a sentence, whether the rest only asks for a yes)"""
        body, _, tail = piece.rpartition(", " if ", " in piece else " - ")
        tail = tail.rstrip("?.! ")
        return body, act("approves").fullmatch(tail) and not self.mentions(tail, memory)

    def hear_case(self, parts, piece, proposal, memory):
        """Whether a sentence is a case, which then is one of the parts. After a case, "And 20?" is one, too."""
        scene = parts.scene
        if scene and self.read(piece, memory).best_aspect() == ("count", True):
            scene = ""
        text = scene + (f"{proposal}?" if proposal else piece)
        case = self.settled(text, memory, loosely=bool(parts.cases) and piece.startswith("and "))
        if case:
            parts.cases.append(case)
            parts.topics += filter(None, [case[2].term])
        return bool(case)

    def hear_sentence(self, parts, piece, proposal, memory):
        """Adds what a sentence claims or asks to the parts; else it may set the scene of what follows."""
        asks = self.asks(piece, memory)
        sets_scene = piece.endswith(".") and matches("cases", piece)
        quotes = sets_scene or matches("quotes", piece)
        claims, rest = {}, []
        if not quotes and (proposal or not asks):
            claims, rest = self.check(proposal or piece, memory)
        if claims and not proposal and self.repeats_to_ask(claims, piece, parts.scene, memory):
            claims, rest = {}, []
        if matches("thing", self.shadow(piece)) and not CORRECTED.isdisjoint(claims.values()):
            claims, rest, asks = {}, [], True    # what one of them has is no rule
        parts.claims = claims | parts.claims
        terms = [self.by_name[name].term for name in claims]
        topics = list(filter(None, terms)) or self.mentions(piece, memory)
        if claims:
            for clause in rest:
                if not matches("attached", clause):
                    parts.questions.append(Question(clause, "", memory.after(topics=topics), True))
        elif not quotes and (asks or piece.endswith("?")):
            parts.questions.append(Question(piece, parts.scene, memory, False))
        else:
            parts.scene += piece + " "
        parts.topics += topics

    def asks(self, piece, memory):
        """Whether a sentence asks, and does not propose: "What is big?", but not "So it's 20?"."""
        is_open = piece.endswith("?")
        seeks = any(matches(name, piece) for name in ("seeks", "on_limit", "goes_in"))
        if is_open and (seeks or self.asks_for_one(piece)):
            return True
        if piece in self.examples or matches("cases", piece) or is_open and matches("either", piece):
            return True
        if matches("claims", piece):
            return False
        if matches("asks" if is_open else "requests", piece):
            return True
        return is_open and self.names_open_limit(self.read(piece, memory), memory)

    def asks_for_one(self, piece):
        """Whether a sentence asks for exceptions: "Is there one that is big, although it's cheap?"."""
        about_result = any(points >= SURE for name, points in self.aspects(piece).items() if name in RESULT)
        return not about_result and matches("exists", self.with_terms(piece))

    def repeats_to_ask(self, claims, piece, scene, memory):
        """Whether claims repeat what is known to ask for something else: "It's the price - from 20 on, or more?"."""
        says_so = not piece.endswith("?") or matches("claims", piece)
        if says_so or not claims.keys() <= set(memory.told):
            return False
        fact, _ = self.answer(piece, scene, memory)
        if not fact or fact.name in memory.told:
            return False
        return self.read(piece, memory).fits(fact.aspect)

    # ---- Replying

    def targets(self, parts, text, memory):
        """({detail that a question is about: the question}, what is said to questions about nothing)"""
        targets, instead = {}, []
        for question in parts.questions:
            then = question.memory._replace(told=memory.told)
            if question.is_rest and (parts.corrected or self.is_known(question.text, memory)):
                continue
            if targets and self.goes_on(question.text, then):
                continue
            target, other = self.answer(question.text, question.scene, then)
            if target and target.name in memory.told and parts.claims and not question.text.endswith("?"):
                continue    # "I'm not sure what the -1 is for. Is it for an empty list?"
            if target and target.name not in parts.claims:
                targets.setdefault(self.first(target, memory.told).name, question)
            elif not target:
                unclear = says("unclear", text, fill=question.text) if question.is_rest else ""
                instead.append(other or unclear)
        return targets, instead

    def is_known(self, clause, memory):
        """Whether all that a clause names was told: "..., per site, at most 160"."""
        said = self.said(clause)
        told = [self.by_name[name].about for name in memory.told]
        named = [(kind, token) for kind in CONTENT for token in said[kind]]
        return bool(named) and all(any(token in about[kind] for about in told) for kind, token in named)

    def goes_on(self, question, memory):
        """Whether a question only goes on about the one before it: "If so, what then?"."""
        heard = self.read(question, memory)
        is_known = heard.terms or any(map(heard.fits, self.aspects_here))
        if not is_known or matches("follows", question):
            return True
        return not matches("whole", question)

    def reply_to_cases(self, parts, words, told, new, instead):
        """(sentences, details, fact) for cases, and for one question beside them if nothing else is told."""
        sentences, more, fact = parts.cases[0]
        for others, details, _ in parts.cases[1:]:
            if not details:
                sentences = [*sentences, *others]
        told = [*told, *more]
        if parts.corrected:
            return [*words, *sentences], told, fact
        if more:
            return sentences, told, fact
        if new:
            reply = self.by_name[new[0]].reply
            return [*sentences, reply], [*told, new[0]], fact
        return [*sentences, *filter(None, instead[:1])], told, fact

    def reply_to_questions(self, targets, new, words, told, text, now):
        """(sentences, details, fact) for the first question that asks for something new, or else for the first one."""
        fact = self.by_name[(new or [*targets])[0]]
        fact = self.exception_named(fact, text, now) or fact
        is_told = fact.name in now.told
        question = targets.get(fact.name) or Question(text, "", now, True)
        if len(targets) > 1:
            words = [*words, says("first", text)]
        leaves_open = self.leaves_open(fact, text)
        case = self.settled(text, now, loosely=True) if leaves_open and is_told else None
        if case:
            sentences, details, _ = case
            return sentences, details, fact
        words = words or self.verdict_first(fact, question, text, now)
        if not words:
            again = "unsettled" if leaves_open else "exact" if question.is_rest else "again"
            lead = says(again, text) if is_told else ""
            words = [self.not_by(fact, text) or lead]
        return [*words, fact.reply], [*told, fact.name], fact

    def reply_to_nothing(self, instead, message, text, memory):
        """The sentence for a message that is about no fact."""
        for sentence in filter(None, instead):
            return sentence
        if CODE.search(message):
            return says("code", text)
        heard = self.read(text, memory)
        best, surely = heard.best_aspect()
        goes_without_saying = self.sure_replies.get(best, "") if surely else ""
        return self.repeated(heard, memory) or goes_without_saying or self.lost(heard, memory)

    def repeated(self, heard, memory):
        """The answer to a check of what was told last: "So the answer is just the number 0?"."""
        if not memory.told:
            return ""
        fact = self.by_name[memory.told[-1]]
        shared = any(fact.shared(heard.said, kind) for kind in ("word", "number"))
        is_right = shared and self.verdict(fact, heard, memory.told) == "right"
        return f"{says('yes', heard.text)} {fact.reply}" if is_right else ""

    def exception_named(self, fact, text, memory):
        """An exception of the same term that was told as well, if a text has one of its words."""
        if fact.name not in memory.told:
            return None
        said = self.said(text)
        for other in self.facts_about(*HIDDEN):
            if other.term == fact.term and other.name in memory.told and other.shared(said, "word"):
                return other
        return None

    def verdict_first(self, fact, question, text, memory):
        """A yes or no in front of a fact that was told, if a question proposes something about it."""
        no_rule = matches("asks", question.text) or matches("goes_in", question.text)
        no_rule = no_rule or matches("thing", self.shadow(question.text))
        if question.is_rest or fact.name not in memory.told or no_rule:
            return []
        heard = self.read(question.text, memory)
        grade = self.verdict(fact, heard, memory.told)
        if grade == "right":
            return [says("yes", text)]
        return {"wrong": ["No."], "partly": ["Not quite."]}.get(grade, [])

    def with_needed(self, words, told, memory):
        """The reply with what must be told before, and the details that are told for the first time.

        A proposal may be right about a limit before its term has been explained.
        """
        for name in tuple(told):
            need = self.first(self.by_name[name], (*memory.told, *told))
            while need.name not in told:
                words, told = [*words, need.reply], [*told, need.name]
                need = self.first(self.by_name[name], (*memory.told, *told))
        implied = []
        for name in told:
            implied += self.by_name[name].implies
        details = dict.fromkeys([*told, *implied])
        return words, [name for name in details if name not in memory.told]

    # ---- What a question is about

    def answer(self, question, scene, memory):
        """(the fact that a question is about, "") or (None, what to say instead)"""
        if question in self.examples:
            return self.by_name[self.examples[question]], ""
        if matches("code", question):
            return None, says("code", question)
        heard, about_result = self.asked(question, scene, memory)
        if heard.best_aspect()[0] in HIDDEN:
            heard = heard._replace(terms=self.terms_with_exceptions(heard, question, memory))
        if matches("general", question) and not about_result:
            return self.anything(heard, memory)
        score, fact = self.best_fact(heard, memory)
        if matches("needless", question) and not self.is_clear(heard, fact):
            return None, says("needless", question)
        best, surely = heard.best_aspect()
        is_unordered = "order" not in self.aspects_here and "sort" not in self.reference
        asks_order = is_unordered and best == "order" and matches("in_order", question)
        if asks_order or surely and best == "fewer":
            return None, self.denial(best, question)
        if surely and best in HIDDEN and not heard.terms and not (fact and fact.is_hidden):
            return self.anything(heard, memory, self.denial(best, question))
        if surely and best in (*RESULT, *HIDDEN):
            likely = self.likely_facts(heard, best)
            if best in HIDDEN and fact and not fact.is_hidden:
                likely = [each for each in likely if each.term in heard.terms]
            concerned = likely
            if best in HIDDEN:
                concerned = [each for each in likely if self.concerns(each, heard, memory)]
            if not concerned:
                elsewhere = any(each.is_hidden and each.name not in memory.told for each in likely)
                return None, says("not_here") if elsewhere else self.denial(best, question)
        return self.heard_fact(question, heard, score, fact, memory), ""

    def terms_with_exceptions(self, heard, question, memory):
        """The terms whose exceptions a question is about: it may quote a hedge, or name the keys of a formula."""
        hedge = matches("hedge", question)    # 'You said "normally". When is it different?'
        hedged = {fact.term for fact in map(self.by_name.get, memory.told) if hedge and hedge[0] in fact.reply.lower()}
        if len(hedged) == 1:
            return dict.fromkeys(hedged, 1.0)
        formulas = self.formulas_named(heard)    # "Is it price times quantity for all, or are some different?"
        return heard.terms or {fact.term: 1.0 for fact in formulas[:1]}

    def best_fact(self, heard, memory):
        """(the best score, the fact that has it); (0, None) if the question concerns no fact"""
        best = (0, None)
        for fact in self.facts:
            if self.concerns(fact, heard, memory):
                score = self.score(fact, heard, memory)
                if best[1] is None or score > best[0]:
                    best = (score, fact)
        return best

    def is_clear(self, heard, fact):
        """Whether a question names a term, or surely fits an aspect of the result or that of a fact."""
        best, surely = heard.best_aspect()
        fits = fact is not None and self.points(fact, heard) > 0
        return heard.terms or surely and (best in RESULT or fits)

    def likely_facts(self, heard, aspect):
        """The facts that fit a question which surely is about an aspect."""
        return [fact for fact in self.facts if self.points(fact, heard) > 0
                and (fact.is_hidden or aspect in RESULT and (fact.term in heard.terms or fact.aspect == aspect))]

    def denial(self, aspect, question):
        """What is said if the task has no fact of an aspect: "No, no exceptions."; a yes to "Is it so for all?"."""
        usual = tables()["aspects"][aspect].get("none", "")
        reply = self.sure_replies.get(aspect) or usual
        if aspect in HIDDEN and matches("for_all", question):
            return reply.replace("No, ", "Yes, ", 1)
        return reply

    def heard_fact(self, question, heard, score, fact, memory):
        """The fact with the best score if that is enough, or else the only one that can be told next, or None."""
        layer = self.open_layer(heard, memory)
        aspects = self.aspects(question)
        if fact and fact.aspect == "limit" and fact.term not in heard.terms:
            goes_by = fact.about["field"] & heard.terms.keys() or fact.term in self.kinds_by(heard.terms)
            formulas = [other for other in self.facts_about("formula")
                        if other.term in heard.terms and other.name not in memory.told]
            if formulas and not (goes_by and aspects.get("limit")):    # "What is the cost?"
                fact = formulas[0]
        repeats = fact and fact.name in memory.told and fact.aspect in HEADS
        repeats = repeats and self.points(fact, heard) < SURE
        is_bare = act("bare").fullmatch(question) and not heard.terms and not aspects    # "And the rest?"
        if score >= HEARD and not is_bare and not (repeats and layer):
            return fact
        best, surely = heard.best_aspect()
        if len(layer) == 1 and (not surely or best in HEADS):
            return layer[0]
        fitting = [each for each in self.facts if surely and not heard.terms and best in INNER
                   and self.is_next(each, memory) and self.points(each, heard) >= SURE]
        return fitting[0] if len(fitting) == 1 else None    # "Who are they?"

    def asked(self, question, scene, memory):
        """(what a question says, with its scene and what was told last, whether it is about the result by itself)"""
        heard = self.weigh(question, memory)
        options = matches("options", question)
        if options:    # "The big ones - is it the price, the income?"
            heard = heard._replace(terms=self.mentions(question[:options.start()], memory) or heard.terms)
        best, surely = heard.best_aspect()
        if scene:
            heard = self.heard_in_scene(heard, question, scene, memory)
        # A condition names the aspect, wherever it stands: "If two are equal, what do you want to see?"
        conditions = [scene] if matches("cases", scene) else []
        if best != "absent":    # "If a mechanic has no repairs, ..."
            conditions += [match[0] for match in act("condition").finditer(question)]
        for aspects in map(self.aspects, conditions):
            condition = heard._replace(aspects=aspects)
            named, surely_named = condition.best_aspect()
            if surely_named and named in (*RESULT, *HIDDEN, "edge"):
                heard, best, surely = condition, named, True
        if self.asks_for_one(question):
            heard = heard._replace(aspects={"except": CERTAIN})
        if self.asks_how_often(heard, question, memory):
            heard = heard._replace(aspects={"limit": SURE})
        names_other = heard.fits("limit") or heard.best_aspect()[0] in (*RESULT, *HIDDEN)
        if not names_other and self.names_open_limit(heard, memory):
            aspects = self.aspects(question)    # "Is anything let off the limit of 20?" is about an exception
            heard = heard._replace(aspects=aspects if aspects.get("except", 0) >= SURE else {"edge": SURE})
        return heard, surely and best in RESULT

    def heard_in_scene(self, heard, question, scene, memory):
        """What a question says after a scene. That sets the topic, and the aspect if the question points back to it."""
        wide = self.weigh(scene + question, memory)
        points_back = not heard.terms and matches("back", question)
        stands_alone = heard.best_aspect()[1] and not points_back and not matches("cases", scene)
        aspects = heard.aspects if stands_alone else wide.aspects
        return heard._replace(terms=heard.terms or wide.terms, said=wide.said, aspects=aspects)

    def asks_how_often(self, heard, question, memory):
        """Whether "How many orders is that?" asks for a limit: how many orders a regular has, not how many I want."""
        if heard.best_aspect()[0] != "count" or matches("wanted", question):
            return False
        about_topics = heard._replace(terms=self.topics(memory))
        for fact in self.open_layer(about_topics, memory):
            if fact.aspect == "limit":
                keys = self.by_name[fact.needs[0]].about["field"]
                if keys <= self.requested_keys:
                    return True
        return False

    # ---- Questions about nothing, or about everything

    def anything(self, heard, memory, none=""):
        """The answer to "Anything else?" (or to "Any exceptions?", which `none` would deny)."""
        untold = [fact for fact in self.facts if fact.name not in memory.told]
        if heard.terms:
            return self.anything_about(heard, untold)
        hidden = [fact for fact in untold if fact.is_hidden]
        here = [fact for fact in hidden if fact.term in self.topics(memory)]
        if none and hidden and not here and matches("holds_for_all", heard.text):
            return None, says("not_here")
        if none and memory.told and not here and matches("holds_back", heard.text):    # "Is that so for all of them?"
            return None, none
        ready = [fact for fact in hidden if self.is_next(fact, memory)]
        near = [fact for fact in ready if fact.term in memory.topics[-1:]]
        if not near and none and len(ready) == 1:
            near = ready
        if near or len(untold) == 1 and not none:
            return (near or untold)[0], ""
        if not untold or none and not hidden:
            return None, none or says("nothing", heard.text)
        left = hidden if none else untold
        return None, says("more", heard.text, fill=self.label(left[0]))

    def anything_about(self, heard, untold):
        """The same if terms are named: what is hidden about them comes first."""
        mine = []
        for fact in untold:
            terms = {fact.term, *(need.term for need in self.needed(fact))}
            if terms & heard.terms.keys():
                mine.append(fact)
        if mine:
            return max(mine, key=lambda fact: fact.is_hidden), ""
        term = next(iter(heard.terms))
        return None, says("no_more", heard.text, fill=self.names[term][0])

    def lost(self, heard, memory):
        """The answer to a question that is not understood: what could be meant, and nothing that is hidden."""
        left = [fact for fact in self.facts if not fact.is_hidden and self.is_next(fact, memory)]
        named = [fact for fact in left if fact.term in heard.terms]
        labels = dict.fromkeys(map(self.label, named or left))
        guess = " or ".join([*labels][:2])
        guess = f"Do you mean {guess}?" if guess else says("known", heard.text)
        lost = says("lost", heard.text, memory.turn)
        return f"{lost} {guess}"
