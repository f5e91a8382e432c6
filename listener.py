"""The scripted human of functions: a person who listens, remembers, and tells what a task hides, one thing at a time.

How a message is understood. It is cut into sentences. A sentence that asks is compared with each fact: which terms it
names in any form of their words, which aspects its wording fits, what it takes up from earlier replies. The aspects are
weighed by patterns and by example questions, both in listener.toml. The best fact is told, or what it needs first. A
sentence that proposes is cut into claims, each of which is answered with the fact that it is about. A question that is
not understood is answered with what could be meant, and never costs a fact. "Anything else?" never denies what is left,
but names it instead of telling it. Facts of your own, which name no aspect, are heard by their words alone
(own_facts.py).

The human never says yes or no. Rules misread some messages, and a wrong "no" cannot be told from a right one. So a
proposal, or a case such as "Is it big with 20?", is answered with the facts that settle it, which are always true.

This file has the dialogue: memory, manners, the parts of a message and the reply to each. It stands on four others:
- listener_words.py: words, and the patterns of listener.toml,
- listener_reading.py: what a task says, and what a text says in its words,
- listener_topics.py: which facts a text is about,
- listener_claims.py: what a proposal says about a fact.

Standard library only. If you copy this file, copy these, own_facts.py and listener.toml too; the last says what a fact
consists of.
"""
import json
import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

from listener_claims import CORRECTED, Judge
from listener_reading import CERTAIN, CHOICES, HEADS, HIDDEN, INNER, LIMITS, MADE, ONCE, RESULT, SURE, aspect_matches
from listener_topics import HEARD
from listener_words import CODE, CONTENT, act, matches, plain, says, sentences, tables, without
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


def halved(sentence):
    """The questions that a sentence joins: "What is big, and who is a regular?", but not "Okay, and what is big?"."""
    def cut(match):
        return match[0] if act("filler").fullmatch(sentence[:match.start()]) else "?\n"

    return sentences(act("joint").sub(cut, sentence))


def without_all(parts, text):
    """A text without some parts of it."""
    for part in parts:
        text = text.replace(part, "").strip()
    return text


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

    @property
    def only_leads(self):
        """Whether it only leads to another question: "I'm curious about exceptions, but first: what is big?"."""
        return not self.text.endswith("?") and not act("requests").match(self.text)


@dataclass
class Parts:
    """What a message is made of."""
    pieces: list                                     # its sentences
    claims: dict = field(default_factory=dict)       # detail -> verdict on what is proposed
    questions: list = field(default_factory=list)
    settled: list = field(default_factory=list)      # what the reference settles, beside the facts
    settling: str = ""                               # the sentences that ask for that
    topics: list = field(default_factory=list)       # the terms that are named
    scene: str = ""                                  # sentences that wait for their question
    asks_for_yes: bool = False                       # "..., right?"
    # What is to be said to it: details, but `instead` and `lead` are sentences.
    new: list = field(default_factory=list)          # that its claims tell
    known: list = field(default_factory=list)        # that its claims are about, and that were told before
    asked: dict = field(default_factory=dict)        # that its questions are about -> the question
    fresh: list = field(default_factory=list)        # those of them that were not told
    told: list = field(default_factory=list)         # to tell now
    again: list = field(default_factory=list)        # to say again before that
    lead: str = ""                                   # "One thing at a time."
    instead: list = field(default_factory=list)      # what is said to questions about nothing

    @property
    def corrected(self):
        """Whether something that is proposed must be corrected."""
        return not CORRECTED.isdisjoint(self.claims.values())


class Listener(Judge):
    """The scripted human of one task."""

    def reply(self, memory, message):
        """(sentences of the reply, details told for the first time, the memory after it)"""
        text = self.with_zeros(plain(message))
        parts = self.hear(text, memory)
        now = memory.after(topics=parts.topics)
        self.choose_what_to_tell(parts, text, memory, now)
        self.choose_what_to_repeat(parts, text, memory)
        told, instead, settled = parts.told, parts.instead, " ".join(parts.settled)
        terms = self.mentions(text, now) | dict.fromkeys(self.by_name[name].term for name in parts.again)
        again = self.once_more(parts.again, text, memory, {} if parts.asks_for_yes else parts.asked)
        again = [word for word in again if word not in settled]
        if (again or settled) and not told and matches("adds_all", text):
            again += [word for word in self.settled_about_result(text, now, [""]) if word not in settled]
        if again and parts.asks_for_yes:    # an example asks for no number
            instead = [word for word in instead if word != self.denial("count")]
        words = [*again, parts.lead, *parts.settled,
                 *self.labelled(told, text, memory, several=parts.lead), *self.further_ties(told, parts),
                 *self.same_edges(told, text, memory),
                 *(without_all(parts.settled, word) for word in instead[:2])]
        if not any(words):
            words = [self.reply_to_nothing(message, text, now)]
        if not told and not instead:
            words += self.without_exceptions(terms, parts.pieces, now)
        if not told and (self.is_about_outcome(text) or parts.asks_for_yes and matches("whole_rule", text)):
            words += self.forgotten(text, now)
        last = [self.by_name[name].term for name in [*parts.asked, *parts.known, *told]][-1:]
        told = self.with_implied(told, memory.told)
        memory = memory.after(told, [*filter(None, last)] or parts.topics)
        return words, told, memory._replace(turn=memory.turn + 1)

    # ---- What to tell

    def choose_what_to_tell(self, parts, text, memory, now):
        """Fills in what a message proposes and asks, and the details to tell: of what is asked the first one."""
        parts.new, parts.known = self.claimed_facts(parts.claims, memory)
        parts.new += [name for name in self.exceptions_in_case(parts.pieces, now) if name not in parts.new]
        parts.asked, parts.instead = self.asked_facts(parts, text, now.after(parts.new))
        parts.instead = self.spelled_in_rows(text, memory) or parts.instead
        if parts.settled and parts.asks_for_yes:    # what is proposed is settled, and asks for no more
            parts.asked = {name: question for name, question in parts.asked.items() if name in memory.told}
        fresh = parts.fresh = [name for name in parts.asked if name not in {*parts.new, *memory.told}]
        told = parts.new
        if fresh:
            told = [*told, fresh[0], *self.asked_together(fresh[0], text, parts.pieces)]
        if len(fresh) > 1 and sum(parts.asked[name].text.endswith("?") for name in fresh) != 1:
            parts.lead = says("first", text)
        parts.told = self.with_needed(told, memory.told)
        is_denied = parts.instead and not any(self.by_name[name].is_hidden for name in parts.asked)
        if not (parts.told or is_denied or parts.settled or parts.asks_for_yes):
            parts.told = self.heard_again(text, parts.pieces, now)
            parts.asked = {} if parts.told else parts.asked

    def choose_what_to_repeat(self, parts, text, memory):
        """Fills in the details to say again, which were told before, and drops what need not be said of nothing."""
        known, asked, told = parts.known, parts.asked, parts.told
        others = {self.by_name[name].term for name in known} - {self.by_name[name].term for name in told}
        wrong = [name for name in known if parts.claims[name] in CORRECTED]
        if told:
            parts.again = self.told_before(parts, wrong, text, memory)
        if (parts.new or parts.asks_for_yes) and len(others) > 1:    # a summary
            parts.again = known
        elif told and parts.asks_for_yes:
            parts.again += [name for name in known if self.by_name[name].term in others]
        if told:    # "What stands between the entries, and how many do you want?": there is no wish about the second
            of_result = all(self.by_name[name].aspect in RESULT for name in told)
            wishes = [self.denial("count"), self.denial("format")] if of_result else []
            parts.instead = [word for word in parts.instead if word in wishes or matches("says_none", word.lower())]
        elif parts.settled:
            parts.again = [*known, *asked, *self.told_about_result(text, memory)]
            if not parts.asks_for_yes:
                parts.again = self.told_with_figures(parts.settling, memory)
                parts.again += [name for name in asked if self.by_name[name].is_hidden]
        elif parts.instead:
            parts.again = [*wrong, *asked, *self.told_beside(parts, text, memory)]
        else:
            parts.again = [*known, *asked, *self.quoted(parts.pieces, memory)]

    def told_before(self, parts, wrong, text, memory):
        """The details to say again before what is told. wrong: what was told, and is proposed otherwise."""
        if parts.fresh:
            return self.mistaken(parts.fresh[0], parts.asked[parts.fresh[0]], memory)
        terms = {self.by_name[name].term for name in parts.new}
        unsure = [name for name in parts.claims if name in memory.told and parts.claims[name] == "unsure"]
        again = [name for name in [*wrong, *unsure, *self.details_taken_up(self.said(text), memory, ["word"])]
                 if self.by_name[name].term in terms]
        if parts.new:    # "The first two, then. And what is the limit for big?"
            again += [name for name, question in parts.asked.items() if matches("asks", question.text)]
        return again

    def heard_again(self, text, pieces, memory):
        """[the detail, not told yet, that a message fits best which seemed to ask for nothing new], or []

        This second hearing goes by the patterns alone, and by the terms that are named.
        """
        terms, found = self.mentions(text, memory) or {"", *memory.topics[-1:]}, {}
        for piece in pieces:
            shadow = without("aside", self.shadow(piece))
            if not piece.endswith("?") or matches("general", piece) or matches("figure", shadow):
                continue
            points = {name: longest for name, longest, _ in aspect_matches(shadow)}
            points["order"] = max(points["order"], points["define"])    # "What makes one the best?"
            for fact in self.facts:
                is_named = fact.term in (*terms, *(self.kinds_by(terms) if fact.aspect in LIMITS else ()))
                if points[fact.aspect] and not fact.is_hidden and is_named and self.is_next(fact, memory):
                    found[fact.name] = max(points[fact.aspect], found.get(fact.name, 0))
        return [max(found, key=found.get)] if found else []

    def exceptions_in_case(self, pieces, memory):
        """The exceptions and extras, not told yet, which a case meets: "An express order for 40 is big, right?"."""
        found = []
        for piece in pieces:
            words = self.said(piece)["word"] if matches("figure", self.shadow(piece)) else set()
            terms = self.mentions(piece, memory).keys()
            terms |= set(chain(*map(self.measures_of, terms)))
            found += [fact.name for fact in self.facts_about(*HIDDEN)
                      if fact.term in terms and fact.about["word"] & words and self.is_next(fact, memory)]
        return [*dict.fromkeys(found)]

    def forgotten(self, text, memory):
        """What is said to who checks the result, but has never asked what the last word of the request means."""
        heads = [fact for fact in self.facts_about(*HEADS) if fact.term in self.open_terms]
        left = [fact for fact in heads if fact.name not in memory.told]
        if len(left) != 1 or left[0].term in memory.topics:
            return []
        return [says("more", text, fill=self.label(left[0]))]

    def further_ties(self, told, parts):
        """What is said with a rule for ties to who asks, before it was told, what comes after the rule."""
        if not any(self.by_name[name].aspect == "ties" for name in told):
            return []
        return [row["says"] for row in self.settled_here if row["about"] == "ties" and row["says"] not in parts.settled
                and any(row["asks"].search(self.shadow(piece)) for piece in parts.pieces)]

    def without_exceptions(self, terms, pieces, memory):
        """What is said of some terms, of which all is known, to who asks for exceptions beside something else."""
        text = " ".join(piece for piece in pieces if piece.endswith("?") and not matches("acknowledges", piece))
        if not matches("without_exception", self.shadow(text)):
            return []
        known = {self.by_name[name].term for name in memory.told} - {""}
        terms = [term for term in terms if term in known]
        hidden = self.hidden_about(terms, memory)
        none = [term for term in terms if not self.has_hidden(term)]
        words = [self.denial("except", none, text)] if none else []
        return words + [self.no_others(fact, text, memory) for fact in hidden[:1] if fact.name in memory.told]

    def asked_together(self, name, text, pieces):
        """What is told with a detail if a text asks for both: a limit with whether it counts, as in "From what price on,
        and is that included?", and that there are particular people with their names."""
        after = [fact for fact in self.facts if name in fact.needs]
        asks_edge = matches("asks_bound", text) or any(
            matches("asks_edge", piece) and "edge" in self.surely_about(piece) for piece in pieces)
        found = [fact.name for fact in after if fact.aspect == "edge" and asks_edge]
        return found + [fact.name for fact in after if fact.aspect == "names" and matches("asks_names", self.shadow(text))]

    def told_beside(self, parts, text, memory):
        """The details to say again before a sentence about what the task has no detail of: those that a text takes up.

        What a proposal says of the result may go by all that was told about it: "So the two are A12 and C40, right?"
        """
        found = []
        is_example = parts.claims and any(self.shows_example(question.text) for question in parts.questions)
        if is_example or parts.asks_for_yes and self.is_about_outcome(text):
            found += [name for name in parts.claims if name in memory.told]
            found += self.told_of_result(memory)
        if parts.asks_for_yes or not self.is_about_result(text):
            found += self.details_taken_up(self.said(text), memory, ["word", "number"])
        return found

    def quoted(self, pieces, memory):
        """The details that were told in words which a question quotes: 'By "more of those orders", which do you mean?'."""
        phrases = [phrase.rstrip(".,") for piece in pieces if piece.endswith("?")
                   for phrase in re.findall(r"""["']([a-z]+ [a-z][^"']*)["']""", piece)]
        return [name for name in memory.told if any(phrase in plain(self.by_name[name].reply) for phrase in phrases)]

    def told_about_result(self, text, memory):
        """The details of the result that were told, and that a text surely is about."""
        about = self.surely_about(text) & {*RESULT}
        return [name for name in memory.told if self.by_name[name].aspect in about]

    def told_with_figures(self, text, memory):
        """The details to say again before what the reference settles, if a text has a case or a formula beside: "Is a
        trip with 0 riders lonely, so that the average has it, too?"."""
        has_case = matches("figure", self.shadow(text))
        found = [name for name in memory.told if has_case and self.by_name[name].term in self.mentions(text, memory)]
        formulas = [fact for fact in self.facts_about("formula") if fact.name in memory.told]
        return found + [fact.name for fact in formulas if len(fact.shared(self.said(text), "field")) > 1]

    def with_zeros(self, text):
        """A text in which to have no delay is to have a delay of 0, unless it is about what is listed."""
        if matches("listing", text):
            return text
        return self.having.sub(lambda match: f"{match[1] or 'with'} 0 {match[2]}", text)

    # ---- Hearing

    def hear(self, text, memory):
        """The parts of a message."""
        pieces = self.pieces(text, memory)
        parts = Parts(pieces)
        alone = [n for n, piece in enumerate(pieces) if self.stands_alone(piece, memory)]    # questions
        has_question = any(n > 0 for n in alone)
        for n, piece in enumerate(pieces):
            suggests = alone and n > alone[0] and matches("suggests_so", piece)
            if suggests and piece.endswith("?"):
                continue    # "What is big? Perhaps a price of 20?"
            now = memory.after(topics=parts.topics)
            body, tag = self.cut_tag(piece, now)
            if has_question and self.restates(piece):
                parts.topics += self.mentions(piece, now)
                continue
            if n > 0 and tag and not body:
                continue    # "Is that right?"
            is_example = piece in self.examples
            parts.asks_for_yes |= tag
            if memory.told and matches("was_about", piece):
                parts.settled.append(says("was_about", fill=self.label(self.by_name[memory.told[-1]])))
                continue
            scene = parts.scene if matches("cases", parts.scene) else ""
            if tag:
                parts.settled += self.settled_by_sense(piece)
            settled = "" if is_example else self.settled_by_reference(scene + piece, now)
            if settled:
                parts.settled.append(settled)
                parts.settling += piece + " "
                if not tag and not self.surely_about(piece) & {*HIDDEN, "empty", "round"}:
                    continue
            proposal = body if tag and not is_example else ""    # "..., right?" without its end
            before = parts.claims
            self.hear_sentence(parts, piece, proposal, now)
            if suggests:    # "What is big? For example, when it has 4 pieces." is not about the number of entries
                parts.claims = before | {name: grade for name, grade in parts.claims.items()
                                         if self.by_name[name].term in now.topics}
        if parts.scene and not (parts.questions or parts.claims or parts.settled):
            parts.questions.append(Question(parts.scene.strip(), "", memory, False))
        return parts

    def settled_by_sense(self, proposal):
        """What good sense says of a proposal about too few rows, none, or groups without any."""
        about = self.surely_about(proposal) - self.aspects_here
        if tables()["aspects"]["fewer"]["sure"].search(self.shadow(proposal)):    # also beside another aspect
            about.add("fewer")
        return [self.denial(aspect) for aspect in ("fewer", "empty", "absent") if aspect in about]

    def pieces(self, text, memory):
        """The sentences of a text. One that asks two things is cut, but no example question."""
        pieces = []
        for sentence in sentences(text):
            halves = halved(sentence)
            several = len(halves) > 1 and (
                self.settled_by_reference(halves[-1], memory) or self.surely_about(halves[-1]) & {*MADE})
            if sentence in self.examples or not several and self.settled_by_reference(sentence, memory):
                pieces.append(sentence)
            else:
                pieces += halved(act("preamble").sub(r"\1.\n", sentence))
        pieces = [piece for piece in pieces if not act("filler").fullmatch(piece)
                  or piece.endswith("?") and act("approves").fullmatch(piece[:-1])] or pieces
        return self.with_their_tags(pieces, memory)

    def with_their_tags(self, pieces, memory):
        """Sentences, of which those that only ask for a yes, or about the case before, are joined to those before: "It's
        20. Is that so?", "Say one has exactly 20. Is that one big?"."""
        proposals = []
        for piece in pieces:
            follows = proposals and any(self.said(proposals[-1]).values())
            if follows and proposals[-1].endswith(".") and self.asks_about_case(proposals[-1], piece):
                proposals[-1] = f"{proposals[-1].rstrip('.')}, {piece}"
            elif follows and piece.endswith("?") and self.only_asks_for_a_yes(piece[:-1], memory):
                proposals[-1] = f"{proposals[-1].rstrip('.!?')}, right?"
            else:
                proposals.append(piece)
        return proposals

    def asks_about_case(self, case, question):
        """Whether a question only asks if a case, which is told before it, is of a kind: "Is that order big or not?"."""
        is_case = matches("figure", self.shadow(case)) and not matches("acknowledges", case)
        return is_case and matches("is_of_kind", self.with_terms(question))

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
        return all(said[kind] - {"1"} <= self.requested[kind] for kind in kinds)    # "one number for each city"

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
        return body, self.only_asks_for_a_yes(tail.rstrip("?.! "), memory)

    def only_asks_for_a_yes(self, text, memory):
        """Whether a text only asks for a yes: "is that right", but not "is that a big one"."""
        return bool(act("approves").fullmatch(text)) and not self.mentions(text, memory)

    def hear_sentence(self, parts, piece, proposal, memory):
        """Adds what a sentence claims or asks to the parts; else it may set the scene of what follows."""
        asks = self.asks(piece, memory)
        sets_scene = piece.endswith(".") and matches("cases", piece)
        quotes = sets_scene or not asks and matches("quotes", piece)
        claims, rest = {}, []
        if not quotes and (proposal or not asks):
            claims, rest = self.check(proposal or piece, memory)
        if claims and not proposal and self.repeats_to_ask(claims, piece, parts.scene, memory):
            claims, rest = {}, []
        parts.claims = claims | parts.claims
        terms = [self.by_name[name].term for name in claims]
        topics = list(filter(None, terms)) or self.mentions(piece, memory)
        if claims:
            for clause in rest:
                if not matches("attached", clause):
                    parts.questions.append(Question(clause, "", memory.after(topics=topics), True))
        elif not quotes and (asks or piece.endswith("?")):
            parts.questions.append(Question(piece, parts.scene, memory, False))
        elif not matches("acknowledges", piece):
            parts.scene += piece + " "
        parts.topics += topics

    def asks(self, piece, memory):
        """Whether a sentence asks, and does not propose: "What is big?", but not "So it's 20?"."""
        is_open = piece.endswith("?")
        seeks = any(matches(name, piece) for name in ("seeks", "on_limit", "goes_in"))
        if is_open and (seeks or self.asks_for_one(piece) or "absent" in self.surely_about(piece)):
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
        found = matches("exists", self.with_terms(piece))
        of_term = found and "term" in found[0]    # "..., or is it only the cash and the goods?" is no form of entries
        if self.surely_about(piece) & {*RESULT} - {"format" if of_term else ""} or matches("missed", piece):
            return False
        return found

    def repeats_to_ask(self, claims, piece, scene, memory):
        """Whether claims repeat what is known to ask for something else: "It's the price - from 20 on, or more?"."""
        says_so = not piece.endswith("?") or matches("claims", piece)
        if says_so or not claims.keys() <= set(memory.told):
            return False
        fact, instead = self.answer(piece, scene, memory)
        if instead:    # "Does price times weight hold for every order?"
            return self.read(piece, memory).best_aspect()[0] in HIDDEN
        if not fact or fact.name in memory.told:
            return False
        return self.read(piece, memory).fits(fact.aspect)

    # ---- Replying

    def labelled(self, names, text, memory, several):
        """What is told, and what it is about where that is not plain: 'As for the limit for "big": from 20 on.'.

        several: whether several things were asked.
        """
        terms, aspects = self.mentions(text, memory) or self.topics(memory), self.surely_about(text)
        facts, words = [self.by_name[name] for name in names], []
        several = several or len({fact.term or fact.aspect for fact in facts}) > 1
        for fact in facts:
            needs_no_term = not fact.term or fact.aspect in ONCE
            is_plain = fact.term in terms or needs_no_term and fact.aspect in aspects
            words += ["" if is_plain and not several else says("about", fill=self.label(fact, text)), fact.reply]
        return words

    def once_more(self, names, text, memory, asked=None):
        """What was told, said again; [] if there is nothing. asked: detail -> the question about it.

        A proposal or a case may go by anything that was told about its terms: "With 20, is it big?". So all of that is
        said, with what else it takes up. Who only asks for one detail is told that one.
        """
        if not names:
            return []
        aspects, settled = self.surely_about(text), []
        own = self.own_edge(names, text, memory) if asked and "edge" in aspects else []
        if own:
            return own
        formulas = {self.by_name[name].term for name in names if self.by_name[name].aspect == "formula"}
        found = {*names, *(fact.name for fact in self.facts_about("extra") if fact.term in formulas)}
        found |= {fact.name for fact in self.facts if not fact.term and fact.aspect in aspects}
        if not all(self.asks_only_for(self.by_name[name], (asked or {}).get(name)) for name in names):
            said, terms = self.said(text), {self.by_name[name].term for name in names}
            has_case = matches("figure", self.shadow(text))
            if said["number"]:    # "With 20, and Ann as a regular, is it big?"
                terms |= self.mentions(text, memory).keys()
            for fact in self.facts:
                is_case = fact.aspect in LIMITS and has_case and fact.about["field"] & said["field"]
                is_formula = is_case or fact.aspect == "formula" and fact.about["field"] <= said["field"]
                if is_formula or fact.shared(said, "number") or fact.shared(said, "word"):
                    terms.add(fact.term)
            terms |= set(chain(*map(self.measures_of, terms)))
            found |= {fact.name for fact in self.facts if fact.term and fact.term in terms}
            if self.is_about_outcome(text):
                form = ("format", "between") if self.shows_example(text) else ()
                found |= {fact.name for fact in self.facts_about("ties", "count", "round", *form, *ONCE)}
                settled = self.settled_about_result(text, memory)
        known = [fact for fact in self.facts if fact.name in memory.told and fact.name in found]
        return [*self.in_groups(known, text, memory), *settled]

    def is_about_outcome(self, text):
        """Whether a text may be about the result or a part of it: "So the list would be A12, C40?"."""
        return bool(matches("outcome", text) or self.shows_example(text))

    def told_of_result(self, memory):
        """The details that were told about the result: its order, ties, number and form."""
        return [name for name in memory.told if self.by_name[name].aspect in (*RESULT, "order")]

    def settled_about_result(self, text, memory, aspects=()):
        """What the reference settles about the result, given what was told, if a text may depend on it.

        aspects: those of the rows in question, if not all are.
        """
        told = {*aspects} or {"", *(self.by_name[name].aspect for name in memory.told)}
        of_limit = any("mean" in fact.values for fact in self.facts_about("limit"))    # the average of the list
        return [row["says"] for row in self.settled_here if row["about"] in told
                and not (of_limit and "average" in row["says"]) and "of_result" in row and re.search(row["of_result"], text)]

    def asks_only_for(self, fact, question):
        """Whether a question is an open one about a fact: "What's the limit?", but not "With 20, is it big?"."""
        if not question or not question.text.endswith("?") or not matches("asks", question.text):
            return False
        said, named = self.said(question.text), self.mentions(question.text, question.memory)
        if said["number"] and named and fact.term not in {"", *named}:    # "What is the cost with 20: 40 or 60?"
            return False
        for other in self.facts:    # "In the rain with 3 riders: is it lonely or not?"
            if other.is_hidden and other.term == fact.term != "" and other != fact and other.shared(said, "word"):
                return False
        return fact.aspect in self.surely_about(question.text)

    def in_groups(self, facts, text, memory):
        """Facts that were told, by term, and what each group is about if there are several, or if it is not named."""
        groups, words = {}, []
        for fact in facts:
            groups.setdefault(fact.term or fact.name, []).append(fact)
        for term, group in groups.items():
            has_term = bool(group[0].term)
            about = f'"{self.spoken(term, text)}"' if has_term else self.label(group[0])
            is_plain = len(groups) == 1 and (not has_term or term in self.mentions(text, memory))
            says_again = "again" if is_plain else "again about" if not words else "about"
            words += [says(says_again, text, fill=about), *(fact.reply for fact in group)]
            words.append(self.same_edge(group, text))
        return list(filter(None, words))

    def same_edges(self, told, text, memory):
        """The same of an exception that is known, if a text asks for both limits: "Does exactly 20 count, or 25?"."""
        terms = {self.by_name[name].term for name in told if self.by_name[name].aspect == "edge"}
        facts = [fact for fact in self.facts if fact.term in terms and fact.name in (*memory.told, *told)]
        return [self.same_edge(facts, text)]

    def same_edge(self, facts, text):
        """What is said about an exception's own limit, if the text has it and it is known whether the limit counts."""
        for fact in facts:
            own = self.own_limits(fact) & self.said(text)["number"]
            edges = [edge for other in facts for edge in other.values.get("edge", ())]
            if fact.aspect == "except" and own and edges:
                return says(f"same_edge {edges[0]}", fill=min(own))
        return ""

    def own_limits(self, fact):
        """The numbers of an exception that nothing else of its term has."""
        others = (other for other in self.facts if other.term == fact.term and not other.is_hidden)
        return fact.about["number"].difference(*(other.about["number"] for other in others))

    def own_edge(self, names, text, memory):
        """An exception, and whether its own limit counts, if a text asks for that alone: "Does exactly 15 count?"."""
        terms, numbers = {self.by_name[name].term for name in names}, self.said(text)["number"]
        facts = [fact for fact in self.facts if fact.term in terms and fact.name in memory.told]
        told = [fact for fact in facts if numbers and numbers <= self.own_limits(fact)
                and (fact.shared(self.said(text), "word") or matches("exception", text))]
        edge = self.same_edge(facts, text)
        return [told[0].reply, edge] if told and edge else []

    def claimed_facts(self, claims, memory):
        """(details that a proposal tells, those that were told before): at most one guess may be wrong"""
        untold = [name for name in claims if name not in memory.told]
        right = [name for name in untold if claims[name] not in CORRECTED]
        wrong = [self.first(self.by_name[name], memory.told).name for name in untold if name not in right]
        new = [*right, *wrong[:1]]
        return [*dict.fromkeys(new)], [name for name in claims if name in memory.told]

    def asked_facts(self, parts, text, memory):
        """({detail that a question is about: the question}, what is said to questions about nothing)"""
        asked, instead = {}, []
        only_one = len(sentences(text)) < 2    # else "So none of Pete's count." leads to what is asked
        for question in sorted(parts.questions, key=lambda question: question.only_leads):
            then = question.memory._replace(told=memory.told)
            if question.is_rest and (parts.corrected or self.is_known(question.text, memory)):
                continue
            if asked and self.goes_on(question.text, then, [name for name in asked if name not in memory.told]):
                continue
            fact, other = self.answer(question.text, question.scene, then)
            if fact and parts.claims and self.is_aside(fact, question, parts, text, memory):
                continue
            if fact and fact.is_hidden and fact.name in memory.told:    # "Does that not apply to some orders?"
                instead.append(self.no_others(fact, question.text, memory))
                with_some = {each.term for each in self.facts_about(*HIDDEN)}
                others = [term for term in self.mentions(question.text, then) if term not in with_some]
                instead += [self.denial("except", others, question.text)] if others else []
            if fact and fact.name not in parts.claims:
                name = self.next_told(fact, question, memory)
                if name not in asked or not asked[name].text.endswith("?"):
                    asked[name] = question
            elif not fact and (question.text.endswith("?") or only_one):
                is_unclear = question.is_rest and not parts.settled
                unclear = says("unclear", text, fill=question.text) if is_unclear else ""
                instead.append(other or unclear)
        return asked, [*filter(None, instead)]

    def no_others(self, fact, text, memory):
        """That there are no exceptions about a term beside one that was told, or "" if there are."""
        terms = {fact.term, *self.measures_of(fact.term)}
        if any(other.term in terms and other.name not in memory.told for other in self.facts_about(*HIDDEN)):
            return ""
        is_one = fact.aspect == "except" or fact.about["word"]    # "I always add the tip." is no exception
        return says("no_others" if is_one else "no_exceptions", text, fill=self.spoken(fact.term, text))

    def next_told(self, fact, question, memory):
        """The detail that answers a question about a fact: what must be told before it comes first.

        Who has guessed that is told both: "Is exactly 20 big?", "From what price on is it big?".
        """
        first, said = self.first(fact, memory.told), self.said(question.text)
        if fact.aspect == "edge" and first.aspect == "limit" and first.shared(said, "number"):
            return fact.name
        if fact.aspect == "format" and fact.name in memory.told:
            return next((other.name for other in self.form_of_several(question.text)), fact.name)
        if fact.aspect == "limit" and first.aspect == "define" and first.about["field"] and (
                first.about["field"] == said["field"] - self.requested_keys):
            return fact.name
        return first.name

    def form_of_several(self, question, told=()):
        """[what stands between entries], if a question about their form is about several: "How should the line look?"."""
        facts = self.facts_about("between") if matches("of_several", question) else []
        return [fact for fact in facts if fact.name not in told]

    def measures_of(self, term):
        """The measures that a kind of thing goes by."""
        keys = set()
        for fact in self.facts_about("define", "order"):
            if fact.term == term:
                keys |= fact.about["field"]
        return keys

    def mistaken(self, name, question, memory):
        """The definition, to be said again, if a question about a limit names a number that this is not one of."""
        fact = self.by_name[name]
        named = self.said(question.text)["field"] - self.labels
        goes_by = self.measures_of(fact.term)
        parts = set().union(*(other.about["field"] for other in self.facts_about("formula") if other.term in goes_by))
        if fact.aspect not in LIMITS or not named or named & (goes_by | parts):
            return []
        return [need for need in fact.needs if need in memory.told]

    def reply_to_nothing(self, message, text, memory):
        """The sentence for a message that is about no fact."""
        if CODE.search(message) or not text.strip():
            return says("code", text)
        heard = self.read(text, memory)
        best, surely = heard.best_aspect()
        if surely and best in self.sure_replies:
            return self.sure_replies[best]
        taken_up = self.details_taken_up(heard.said, memory)
        names_key = heard.said["field"] and not heard.terms
        if not taken_up and names_key:    # "So the quantity plays no part?"
            taken_up = [name for name in memory.told if self.by_name[name].term in memory.topics[-1:]]
        if not taken_up and self.is_about_outcome(text):
            taken_up = self.told_of_result(memory)
        if taken_up:    # "So the answer is just the number 0?"
            return " ".join(self.once_more(taken_up, text, memory))
        return self.lost(heard, memory)

    def is_aside(self, fact, question, parts, text, memory):
        """Whether a question beside a proposal asks for nothing else: "Over 50 of what? Is it big from 50 on?"."""
        if fact.name in memory.told and not question.text.endswith("?"):
            return True    # "I'm not sure what the -1 is for. Is it for an empty list?"
        if question.is_rest or fact.is_hidden or not fact.term or question.text in self.examples:
            return False
        claimed = {self.by_name[name].term for name in parts.claims}
        if fact.term in self.kinds_by(claimed):    # "So the cost is price times weight. Where do you set the bar?"
            return False
        return fact.term not in claimed | self.mentions(text, memory).keys()

    def is_about_result(self, text):
        return not self.surely_about(text).isdisjoint(RESULT)

    def is_known(self, clause, memory):
        """Whether all that a clause names was told: "..., per site, at most 160"."""
        said = self.said(clause)
        told = [self.by_name[name].about for name in memory.told]
        named = [(kind, token) for kind in CONTENT for token in said[kind]]
        return bool(named) and all(any(token in about[kind] for about in told) for kind, token in named)

    def goes_on(self, question, memory, fresh):
        """Whether a question only goes on about the one before it: "If so, what then?", "Is it the price?"."""
        heard = self.read(question, memory)
        best, surely = heard.best_aspect()
        suggests = fresh and matches("suggests", question) and best not in (*RESULT, *HIDDEN)
        if suggests or not heard.terms and not surely or matches("follows", question):
            return True
        return not matches("whole", question)

    def with_needed(self, names, told):
        """Details that are told, each after what must be told before it, if that is not known.

        A proposal may be right about a limit before its term has been explained.
        """
        found = []
        for name in names:
            fact = self.by_name[name]
            while (need := self.first(fact, (*told, *found))) != fact:
                found += self.with_needed([need.name], (*told, *found, name))
            found.append(name)
        return [*dict.fromkeys(found)]

    def with_implied(self, names, told):
        """Details that are told, with those that their replies tell as well."""
        implied = chain(*(self.by_name[name].implies for name in names))
        return [name for name in dict.fromkeys([*names, *implied]) if name not in told]

    # ---- What a question is about

    def answer(self, question, scene, memory):
        """(the fact that a question is about, "") or (None, what to say instead)"""
        if question in self.examples:
            return self.by_name[self.examples[question]], ""
        if matches("code", question):
            return None, says("code", question)
        goal = self.goal_asked(question, memory) or self.compared(question)
        if goal:
            return goal, ""
        heard, about_result = self.asked(question, scene, memory)
        if heard.best_aspect()[0] in HIDDEN:
            heard = heard._replace(terms=self.terms_with_exceptions(heard, scene + question, memory))
        is_general = matches("general", question) or matches("missed", question)
        if is_general and not about_result and not heard.said["field"]:
            return self.anything(heard, memory)
        score, fact = self.best_fact(heard, memory)
        if matches("needless", question) and not self.is_clear(heard, fact):
            return None, says("needless", question)
        best, surely = heard.best_aspect()
        is_unordered = "order" not in self.aspects_here and "sort" not in self.reference
        asks_order = is_unordered and best == "order" and matches("in_order", question)
        asks_order = asks_order and not (heard.terms and " or " in question)
        if asks_order or surely and best == "fewer":
            return None, self.denials(best, question)
        head = self.unknown_head(question, scene, heard, memory)
        if head:
            return head, ""
        found = self.exception_asked(question, heard, fact, memory) if surely and best in HIDDEN else None
        if found:
            return found
        if surely and best in RESULT and not self.likely_facts(heard, best):
            is_form = best == "format" and question.endswith("?")
            between = self.form_of_several(question, memory.told) if is_form else []
            return (between[0], "") if between else (None, self.denials(best, question))
        return self.heard_fact(question, heard, score, fact, memory), ""

    def spelled_in_rows(self, text, memory):
        """Which keys have the words that a text names, and how they are spelled, if it asks for that and they were told."""
        if not matches("spelling", self.shadow(text)):
            return []
        named = self.said(text)["word"] & set(chain(*(self.by_name[name].about["word"] for name in memory.told)))
        found = []
        for key, words in re.findall(r'\["(\w+)"\] (?:==|!=|in|not in) (\[[^\]]*\]|"[^"]*")', self.reference):
            if named & {word.lower() for word in re.findall('"([^"]*)"', words)}:
                found.append(says("spelled", fill=f"{key} says {words.strip('[]').replace(', ', ' or ')}"))
        return found

    def goal_asked(self, question, memory):
        """The formula of what the request asks for, if a question is about that: "What is it that I add up?", "Is the
        cost the same as the pay?"."""
        goals = [fact for fact in self.facts_about("formula") if fact.term in self.open_terms]
        if matches("adds_up", question) and len(goals) == 1:
            return goals[0]
        if matches("same_as", question):
            return next((fact for fact in goals if fact.term in self.mentions(question, memory)), None)
        return None

    def compared(self, question):
        """The meaning that goes by a measure, if a question asks which one: "Is it the price or the whole cost that must
        be above the average?"."""
        if not matches("which_measure", self.shadow(question)):
            return None
        named = self.said(question)["field"]
        return next((fact for fact in self.facts_about("define") if fact.about["field"] & named), None)

    def unknown_head(self, question, scene, heard, memory):
        """The meaning of a term that a question names and nobody knows yet, where it seems to be about something that
        comes later: 'The "work": is it just the hours, or is it different?'."""
        best, surely = heard.best_aspect()
        heads = [fact for fact in self.open_layer(heard, memory) if fact.aspect in HEADS]
        if not heads or not surely or best not in (*RESULT, *HIDDEN):
            return None
        fits = self.aspects(scene + question).get(best, 0) >= SURE
        fits = fits and not matches("other_way", question) and not matches("which_key", question)
        has_none = best in HIDDEN and not self.hidden_about(heard.terms, memory)
        return heads[0] if has_none or not fits else None

    def exception_asked(self, question, heard, fact, memory):
        """What answer() returns for a question about exceptions; None if `fact`, which fits it best, is the answer."""
        best, _ = heard.best_aspect()
        if not heard.terms:
            near = {*memory.topics[-1:], *self.taken_up(heard, memory)}
            return None if fact and fact.is_hidden and fact.term in near else self.anything(heard, memory, best)
        hidden = self.hidden_about(heard.terms, memory)
        others = matches("further", question) and hidden and self.no_others(hidden[0], question, memory)
        if others:
            return None, others
        layer = self.open_layer(heard, memory)
        if not hidden and layer and matches("what_makes", self.shadow(question)):    # "Which cities always count?"
            return max(layer, key=lambda fact: self.score(fact, heard, memory)), ""
        if hidden and fact and fact.is_hidden:
            return None
        return (hidden[0], "") if hidden else (None, self.denial(best, heard.terms, question))

    def terms_with_exceptions(self, heard, question, memory):
        """The terms whose exceptions a question is about: it may quote a hedge, or name the keys of a formula."""
        hedge = matches("hedge", question)    # 'You said "normally". When is it different?'
        hedged = {fact.term for fact in map(self.by_name.get, memory.told) if hedge and hedge[0] in fact.reply.lower()}
        if len(hedged) == 1:
            return dict.fromkeys(hedged, 1.0)
        meanings = [fact for fact in self.facts_about("define") if fact.name in memory.told]
        if not heard.terms:
            taken_up = map(self.by_name.get, self.details_taken_up(heard.said, memory, ["word"]))
            by_word = [fact.term for fact in taken_up if fact.term and not fact.is_hidden]
            if by_word:    # "Is Ann the only one, with no exceptions?"
                return dict.fromkeys(by_word, 1.0)
            if matches("left_out", question):
                return {fact.term: 1.0 for fact in meanings}
        measures = {fact.term for fact in self.facts_about("formula")}
        if heard.terms.keys() <= measures and matches("limit_word", question):    # "Is the limit of the fee different?"
            near = {fact.term: 1.0 for fact in meanings if fact.shared(heard.said, "field")}
            if near:
                return near
        # "Is it price times quantity for all, or is there a discount?"
        formulas = [fact for fact in self.facts_about("formula")
                    if len(fact.about["field"]) > 1 and fact.about["field"] <= heard.said["field"]]
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

    def denial(self, aspect, terms=(), text=""):
        """What is said if the task has no fact of an aspect, or no exception about some terms.

        It is a whole sentence, so that it is true whatever was asked.
        """
        if aspect in HIDDEN and terms:
            return says("no_exceptions", aspect, fill='" or "'.join(self.spoken(term, text) for term in terms))
        none = self.sure_replies.get(aspect) or tables()["aspects"][aspect].get("none", "")
        return none.replace("{row}", self.row)

    def denials(self, aspect, question):
        """What is said if the task has no fact of an aspect; who asks for too few rows and for none is told both."""
        few = [other for other in ("fewer", "empty") if other not in self.aspects_here
               and tables()["aspects"][other]["sure"].search(self.shadow(question))]
        return " ".join(map(self.denial, few if aspect in few else [aspect]))

    def hidden_about(self, terms, memory):
        """The exceptions and extras of some terms, and of measures that they go by, what was not told first."""
        near = set(chain(*map(self.measures_of, terms)))
        found = [fact for fact in self.facts_about(*HIDDEN)
                 if fact.term in terms or fact.term in near and self.is_next(fact, memory)]
        order = [*terms]
        return sorted(found, key=lambda fact: (
            fact.name in memory.told, order.index(fact.term) if fact.term in order else len(order)))

    def heard_fact(self, question, heard, score, fact, memory):
        """The fact with the best score if that is enough, or else the only one that can be told next, or None."""
        layer = self.open_layer(heard, memory)
        aspects = self.aspects(question)
        if fact and fact.aspect == "limit" and fact.term not in heard.terms:
            goes_by = fact.about["field"] & heard.terms.keys() or fact.term in self.kinds_by(heard.terms)
            formulas = [other for other in self.facts_about("formula") if other.term in heard.terms]
            if formulas and not (goes_by and any(map(aspects.get, LIMITS))):    # "What is the cost?"
                fact = formulas[0]
        formulas = [] if self.surely_about(question) else self.formulas_named(heard)
        if len(formulas) == 1 and heard.said["op"] and " or " in question:    # "Is it price x (weight - loss), or (price x weight) - loss?"
            return formulas[0]
        limits = [other for other in layer if other.aspect == "limit"]
        if fact and fact.aspect == "define" and fact.name in memory.told and limits and heard.said["number"]:
            return limits[0]    # "Would you call it big with a price of 20?"
        if fact and fact.aspect == "limit" and fact.name in memory.told and fact.shared(heard.said, "number"):
            edges = [other for other in layer if other.aspect == "edge"]
            fact = edges[0] if edges else fact    # "Is it still big with a price of 20?"
        repeats = fact and fact.name in memory.told and fact.aspect in HEADS
        repeats = repeats and self.points(fact, heard) < SURE
        is_bare = act("bare").fullmatch(question) and not heard.terms and not aspects    # "And the rest?"
        if score >= HEARD and not is_bare and not (repeats and layer):
            return fact
        best, surely = heard.best_aspect()
        if len(layer) == 1 and (not surely or best in HEADS or best in INNER and layer[0].aspect in HEADS):
            return layer[0]
        fitting = [each for each in self.facts if surely and not heard.terms and best in INNER
                   and self.is_next(each, memory) and self.points(each, heard) >= SURE]
        fitting = fitting or self.formulas_named(heard)    # "Is it price times weight, or price plus weight?"
        return fitting[0] if len(fitting) == 1 else None    # "Who are they?"

    def asked(self, question, scene, memory):
        """(what a question says, with its scene and what was told last, whether it is about the result by itself)"""
        question = self.without_known(question, memory)
        heard = self.weigh(question, memory)
        heard = heard._replace(terms=self.terms_asked(question, heard.terms, memory))
        best, surely = heard.best_aspect()
        if scene:
            heard = self.heard_in_scene(heard, question, scene, memory)
        for aspects in map(self.aspects, self.conditions(question, scene, heard, best)):
            condition = heard._replace(aspects=aspects)
            named, surely_named = condition.best_aspect()
            is_detail = named == "edge" and surely and best in MADE    # "How is it rounded if it ends in exactly .5?"
            if surely_named and named in (*RESULT, *HIDDEN, "edge") and not is_detail:
                heard, best, surely = heard._replace(aspects={named: aspects[named]}), named, True
        if self.quotes_hedge(scene) and matches("denies", question):    # "You said usually. When is it not big?"
            heard, best, surely = heard._replace(aspects={"except": CERTAIN}), "except", True
        hedge = matches("hedge", question)
        asks_hedge = hedge and matches("asks_hedge", question.replace(hedge[0], "hedge"))    # "Why roughly?"
        if asks_hedge and hedge[0] in memory.heard and self.surely_about(question) <= {*HIDDEN}:
            heard, best, surely = heard._replace(aspects={"except": CERTAIN}), "except", True
        by_name = matches("exception", question) and "except" in self.surely_about(question) and best not in MADE
        if by_name or "any exceptions" in question or self.asks_for_one(question):
            heard = heard._replace(aspects={"except": CERTAIN})
        if "round" in self.aspects_here and re.search(r"\d\.\d", question):    # all that is given is whole
            heard, best, surely = heard._replace(aspects={"round": CERTAIN}), "round", True
        other = ("between", "ties", "empty", "fewer", *([] if self.aspects(question).get("format") else INNER))
        shows_figure = "format" in self.aspects_here and matches("shows_figure", self.shadow(question))
        if shows_figure or self.shows_example(question) and not (surely and best in other):
            heard, best, surely = heard._replace(aspects={"format": CERTAIN}), "format", True
        if self.asks_how_often(heard, question, memory):
            heard = heard._replace(aspects={"limit": SURE})
        best_now, surely_now = heard.best_aspect()
        names_other = heard.fits("limit") or best_now in (*RESULT, *HIDDEN) or surely_now and best_now in CHOICES
        if not names_other and self.names_open_limit(heard, memory):
            aspects = self.aspects(question)    # "Is anything let off the limit of 20?" is about an exception
            heard = heard._replace(aspects=aspects if aspects.get("except", 0) >= SURE else {"edge": SURE})
        return heard, surely and best in RESULT

    def terms_asked(self, question, terms, memory):
        """Those of the terms that a question names which it is about."""
        options = matches("options", question)
        if options:    # "The big ones - is it the price, the income?"
            terms = self.mentions(question[:options.start()], memory) or terms
        quoted = self.mentions(" ".join(re.findall(r'"([^"]*)"', question)), memory)
        if quoted and len(terms) > len(quoted):    # 'When you say what big orders "come to", what is meant?'
            terms = quoted
        if len(terms) > 1:    # "How keen is somebody, over all long lessons?" is not about "long"
            terms = self.mentions(without("among_all", question), memory) or terms
        part = without("whole_or_part", question)
        if part != question:    # "Is that counted over all of them, or only the big ones?"
            terms = self.mentions(part, memory)
        return terms

    def conditions(self, question, scene, heard, best):
        """The conditions of a question, which name its aspect wherever they stand: "If two are equal, what then?"."""
        found = []
        # "You said usually. Which ones are big?", but not "You said usually. First, how long must it be?"
        quotes_hedge = self.quotes_hedge(scene) and not heard.fits("limit")
        if quotes_hedge or matches("cases", scene) and not self.is_about_result(question):
            found.append(scene)
        if best != "absent":    # "If a mechanic has no repairs, ..."
            found += [match[0] for match in act("condition").finditer(question)]
        return found

    def quotes_hedge(self, scene):
        return bool(matches("quotes", scene) and matches("hedge", scene))

    def without_known(self, question, memory):
        """A question without what it says in brackets, or as a condition at its end, and was told: "Which boards, if it
        has at most 3 people?"."""
        for aside in re.findall(r" ?\([^()]*\)", question):
            if self.is_known(aside, memory) and not matches("formula", aside):
                question = question.replace(aside, "")
        for match in act("condition").finditer(question):
            rest = question[:match.start()].rstrip(", ") + "?"
            is_last = match.end() >= len(question) - 1
            if is_last and self.is_known(match[0], memory) and self.surely_about(rest) & {*INNER}:
                return rest
        return question

    def shows_example(self, question):
        """Whether a question shows entries of the result: "Would it read F38 (7), C12 (2)?"."""
        found = self.example.search(question)
        if not found or not re.search("[a-z]", found[0]) or matches("instance", self.with_terms(question)):
            return False
        return matches("sample", question) or re.search(r"[\[\"(]", found[0])

    def heard_in_scene(self, heard, question, scene, memory):
        """What a question says after a scene. That sets the topic, and the aspect if the question points back to it."""
        wide = self.weigh(scene + question, memory)
        points_back = not heard.terms and matches("back", question)
        best, surely = heard.best_aspect()
        stands_alone = surely and not (points_back and best not in (*RESULT, *INNER)) and not matches("cases", scene)
        aspects = heard.aspects if stands_alone else wide.aspects
        named = filter(None, (self.mentions(sentence, memory) for sentence in sentences(scene)[::-1]))
        return heard._replace(terms=heard.terms or next(named, {}), said=wide.said, aspects=aspects)

    def asks_how_often(self, heard, question, memory):
        """Whether "How many orders is that?" asks for a limit: how many orders a regular has, not how many I want."""
        if heard.best_aspect()[0] != "count" or matches("wanted", question):
            return False
        about_topics = heard._replace(terms=self.topics(memory))
        for fact in self.open_layer(about_topics, memory):
            if fact.aspect == "limit":
                keys = self.by_name[fact.needs[0]].about["field"]
                if keys <= self.labels:
                    return True
        return False

    # ---- What the reference settles

    @cached_property
    def settled_here(self):
        """The rows of [[settled]] that are true of the reference."""
        return [row for row in tables()["settled"] if re.search(row["code"], self.reference)]

    def is_open(self, aspect, memory):
        """Whether a fact of an aspect was not told yet."""
        return any(fact.name not in memory.told for fact in self.facts_about(aspect))

    def settled_by_reference(self, text, memory):
        """What the reference itself settles, or "": how far something reaches, and whether a name comes once."""
        if not text.endswith("?") or matches("on_limit", text) or matches("bounds", text) and " or " not in text:
            return ""
        heard = self.read(text, memory)
        if self.asks_for_fact(text, heard, memory):
            return ""
        terms = {"", *heard.terms, *memory.topics[-1:]}
        terms |= self.taken_up(heard, memory)
        told = [fact for fact in self.facts if fact.name in memory.told
                and (fact.term in terms or fact.aspect in ONCE)
                and (fact.aspect != "limit" or matches("of_list", fact.reply.lower()))]
        known = self.requested_keys.union(self.labels, *(fact.about["field"] for fact in told))
        if " or " in text and heard.said["field"] - known:
            told = []    # "Does the bonus go into the total, or only the score?"
        with_terms, shadow = self.with_terms(text), self.shadow(text)
        found, of_average = [], False
        for row in self.settled_here:
            if row["about"] == "order" and any(map(heard.fits, MADE)):    # "All of them, or only the first few?"
                continue
            facts = [fact for fact in told if fact.aspect == row["about"]]
            if not row["about"]:
                facts = self.facts[:1]
            asks = row["asks"].search(with_terms) or row["asks"].search(shadow)
            if of_average and not re.search(row.get("beside_average", ""), text):
                continue    # "Is that the average of the whole list, or only of some?"
            if facts and asks:
                measure = f"{facts[-1].term} of each {self.row}"
                found.append(row["says"].format(measure=measure, row=self.row))
                of_average |= "mean" in facts[-1].values    # which is a limit, and not the result
        found = [words for words in dict.fromkeys(found) if not (of_average and "average" in words)]
        return " ".join(found[:2])

    def asks_for_fact(self, text, heard, memory):
        """Whether a question, which may seem to be about what the reference settles, asks for a fact."""
        if self.compared(text):
            return True
        about_round = heard.fits("round") or re.search(r"\d\.\d", text)
        if "round" in self.aspects_here and about_round and not matches("averaged_over", text):
            return True
        if heard.fits("group") and self.is_open("group", memory) or heard.fits("empty") and "qualif" not in text:
            return True
        if self.is_open("format", memory) and self.shows_example(text):
            return True
        goal = self.goal_asked(text, memory)
        if goal and goal.name not in memory.told:
            return True
        about_meaning = heard.terms and (heard.fits("define") or "count as" in text)
        if about_meaning and re.search(r"\b(how|what|who)\b", text):
            return True
        untold = [fact for fact in self.facts_about("define", "formula") if fact.name not in memory.told]
        if any(fact.aspect == "define" and fact.term in heard.terms for fact in untold):
            return any(map(heard.fits, INNER))    # "Who's a regular: how many visits, over the whole list?"
        points_back = not heard.terms and matches("back", text)    # "How's the effort found: how are they combined?"
        return points_back and any(fact.aspect == "formula" and fact.term in memory.topics[-1:] for fact in untold)

    # ---- Questions about nothing, or about everything

    def anything(self, heard, memory, aspect=""):
        """The answer to "Anything else?", or to "Any exceptions?", which are those of an aspect."""
        untold = [fact for fact in self.facts if fact.name not in memory.told]
        if heard.terms:
            return self.anything_about(heard, untold)
        hidden = [fact for fact in untold if fact.is_hidden]
        without_exceptions = {fact.term for fact in self.facts_about(*ONCE)}
        topics = [term for term in self.topics(memory) if term not in without_exceptions]
        here = self.hidden_about(topics, memory)
        points_back = matches("holds_back", heard.text) or matches("of_that", heard.text)
        if aspect and topics and points_back and not any(fact in hidden for fact in here):
            # "Is that so for all of them?"
            return (here[0], "") if here else (None, self.denial(aspect, topics[:1], heard.text))
        ready = [fact for fact in hidden if self.is_next(fact, memory)]
        near = [fact for fact in ready if fact.term in memory.topics[-1:]]
        if not near and aspect and len(ready) == 1:
            near = ready
        if near or len(untold) == 1 and not aspect:
            return (near or untold)[0], ""
        last = topics[:1] or memory.topics[-1:]
        has_none = aspect and last and self.facts_about(*HIDDEN) and not self.has_hidden(last[0])
        if hidden or untold and not aspect:
            more = says("more", heard.text, fill=self.label(self.first((hidden or untold)[0], memory.told)))
            return None, f"{self.denial(aspect, last, heard.text)} {more}" if has_none else more
        if has_none:
            return None, self.denial(aspect, last, heard.text)
        if aspect and self.facts_about(*HIDDEN):    # which were told
            return self.facts_about(*HIDDEN)[-1], ""
        return None, self.denial(aspect) if aspect else says("nothing", heard.text)

    def has_hidden(self, term):
        """Whether a term, or a measure that it goes by, has an exception or an extra."""
        return any(fact.term in {term, *self.measures_of(term)} for fact in self.facts_about(*HIDDEN))

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
        return None, says("no_more", heard.text, fill=self.spoken(term, heard.text))

    def lost(self, heard, memory):
        """The answer to a question that is not understood: what could be meant, and nothing that is hidden."""
        left = [fact for fact in self.facts if not fact.is_hidden and self.is_next(fact, memory)]
        named = [fact for fact in left if fact.term in heard.terms]
        labels = dict.fromkeys(map(self.label, named or left))
        guess = " or ".join([*labels][:2])
        guess = f"Do you mean {guess}?" if guess else says("known", heard.text)
        lost = says("lost", heard.text, memory.turn)
        return f"{lost} {guess}"
