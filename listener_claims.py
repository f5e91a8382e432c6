"""What a proposal says about the facts: which ones, and whether it is right about them.

"So big orders are those with 20 or more, and ties go by name?" A sentence is cut into claims where it begins to speak
of another term or aspect. For each claim the fact is found that it is about. Then the tokens of the claim are compared
with those of the fact, kind by kind: its number, its edge, its keys, its words. This gives a verdict:
- right: all that it says is so,
- open: what it says is so, and something is left unsaid,
- unsure: it says more than can be checked,
- partly: some of it is so,
- wrong: nothing of it is so,
- "": it says nothing about the fact.
"""
import re
from itertools import chain

from listener_reading import CHOICES, HEADS, HIDDEN, LIMITS, RESULT
from listener_topics import HEARD, Matcher
from listener_words import CONTENT, act, matches, stem, tables, without

CORRECTED = {"wrong", "partly"}

# How much more a proposal speaks for a fact than a question does.
CLAIMED, AGREES, NAMES_HIDDEN = 0.5, 1.5, 6


class Judge(Matcher):
    """Judges what a sentence proposes."""

    # ---- The claims of a sentence

    def check(self, sentence, memory):
        """(detail -> verdict on a sentence's claims, the claims that nothing is known about)"""
        says_always = matches("universal", self.with_terms(sentence))
        found, unknown = {}, []
        for clause in self.clauses(without("lead_in", sentence), memory):
            heard = self.read(clause, memory)
            target, of_result = self.claimed(heard, memory)
            if target:
                found = self.with_edge(self.verdicts(target, of_result, heard, memory), heard, memory) | found
                if says_always:
                    found |= self.exception_denied(target, found.get(target.name), memory)
            elif heard.terms or heard.best_aspect()[1] or any(heard.said[kind] for kind in CONTENT):
                unknown.append(clause.strip(" ,;"))
            topics = [target.term] if target else heard.terms
            memory = memory.after(topics=topics)
        return found, unknown

    def with_edge(self, verdicts, heard, memory):
        """The verdicts on a claim; one that is right about a limit and says "exactly" asks whether that counts."""
        for edge in self.facts_about("edge"):
            limit = next(iter(edge.needs), "")
            is_open = edge.name not in {*verdicts, *memory.told} and verdicts.get(limit) in ("right", "open", "unsure")
            if is_open and (heard.fits("edge") or matches("exact", heard.text)):
                verdicts = verdicts | {edge.name: "unsure"}
                if limit in memory.told:
                    del verdicts[limit]
        return verdicts

    def exception_denied(self, target, grade, memory):
        """The verdict on "always" about a fact that has an exception, which was not told yet."""
        exceptions = [fact for fact in self.facts_about(*HIDDEN)
                      if fact.term == target.term and fact.name not in memory.told]
        if not exceptions or grade not in ("right", "unsure"):
            return {}
        if target.name in memory.told:
            return {exceptions[0].name: "partly"}
        return {target.name: "unsure"}

    def clauses(self, sentence, memory):
        """The claims of a sentence: it is cut where another term or aspect begins, not inside a list or a formula."""
        heard = self.read(sentence, memory)
        for fact in self.formulas_named(heard):
            nothing_else = heard.terms.keys() <= {fact.term} and heard.said["number"] <= fact.about["number"]
            if nothing_else and not heard.fits("except"):
                return [sentence]
        clauses, subject = [""], set()
        pieces = ["", *act("cuts").split(sentence)]    # a mark or conjunction, what follows it, the next one, ...
        for cut, rest in zip(pieces[::2], pieces[1::2]):
            piece = cut + rest
            heard = self.read(piece, memory)
            about = self.subject(heard, memory)
            speaks_of_others = matches("others", self.shadow(piece))
            if cut == "but" and heard.said["word"]:
                speaks_of_others = True
            begins = cut == ";" or about - subject or speaks_of_others
            opens = matches("cases", clauses[-1]) or act("prelude").fullmatch(clauses[-1])    # "If two are equal, ..."
            goes_on = not subject or opens
            if begins and not goes_on:
                clauses.append("")
            subject = about or subject
            clauses[-1] += piece
        return [clause for clause in clauses if re.search(r"\w", clause)]

    def subject(self, heard, memory):
        """The terms and aspects that a piece of a sentence is about, without those that any claim may seem to fit."""
        about = set(heard.terms or self.taken_up(heard, memory))
        about |= set(filter(heard.fits, heard.aspects))
        about -= {"define", *CHOICES, *{"formula", "extra"} - self.aspects_here}
        if self.formulas_named(heard):
            about.add("formula")
        return about

    # ---- The fact that a claim is about

    def claimed(self, heard, memory):
        """(the fact that a claim is about, or None; the facts of its aspects that concern the result)"""
        of_result = [fact for fact in self.facts_about(*RESULT) if heard.fits(fact.aspect)]
        formulas = self.formulas_named(heard) or self.formulas_guessed(heard, memory)
        if formulas and "average" in heard.said["way"] and "len(found)" not in self.reference:
            return None, of_result
        scores = [(HEARD, None)]
        for fact in of_result or formulas or self.facts:
            grade = self.verdict(fact, heard, memory.told)
            if grade and self.can_be_claimed(fact, heard, memory, formulas):
                bonus = self.bonus(fact, grade, heard)
                if bonus:
                    scores.append((self.score(fact, heard, memory) + bonus, fact))
        return max(scores, key=lambda pair: pair[0])[1], of_result

    def formulas_named(self, heard):
        """The formulas of exactly the keys that a claim names."""
        keys = heard.said["field"]
        if len(keys) < 2:
            return []
        with_extra = {fact.term for fact in self.facts_about("extra") if fact.shared(heard.said, "word")}
        return [fact for fact in self.facts_about("formula") if fact.term not in with_extra
                and keys - {self.names[fact.term][0]} == fact.about["field"]]

    def formulas_guessed(self, heard, memory):
        """The formulas of the topics that a claim guesses at with one of their keys: "maybe the fee times the days"."""
        near = {*heard.terms, *self.topics(memory)}
        return [fact for fact in self.facts_about("formula")
                if fact.term in near and heard.said["op"] and fact.shared(heard.said, "field")]

    def can_be_claimed(self, fact, heard, memory, formulas):
        """Whether a claim, which fits a fact by its tokens, can be about it: a number alone says nothing about it."""
        meant = self.is_once_and_meant(fact, heard)
        named = fact.term in heard.terms
        by_its_key = fact.aspect in LIMITS and fact.about["field"] & heard.terms.keys()
        needs_its_name = heard.terms and fact.term and fact.aspect not in RESULT
        if needs_its_name and not (named or meant or by_its_key or fact in formulas):
            return False
        if fact.aspect in ("count", "empty", "round") and not heard.fits(fact.aspect):
            return False
        if fact.aspect == "ties" and not (heard.fits("ties") or heard.said["ties"]) and fact.name not in memory.told:
            return False    # "Does that exact age count?"
        is_example = by_its_key or matches("comes_to", heard.text)
        if fact.aspect in LIMITS and is_example and not named and fact.name not in memory.told:
            # "Dino's bill is 28", "That comes to 28": a bill, and no limit
            return any(map(heard.fits, LIMITS)) or matches("bounds", heard.text)
        # "The total of the price", "guests added up over the big orders": not about which orders are meant.
        summed = heard.said["way"] & {"sum", "max"} or heard.said["end"]
        among = not named or matches("among", self.with_terms(heard.text))
        if fact.aspect == "define" and summed and among:
            return False
        if fact.aspect in HEADS:    # a proposal for a meaning is one for the term that was named, or is the topic
            return named or meant or formulas or fact.term in memory.topics[-1:]
        return fact.name in memory.told or self.concerns(fact, heard, memory)

    def bonus(self, fact, grade, heard):
        """What a claim's verdict adds to the score of a fact; 0 if the claim is too vague to be about it."""
        best, surely = heard.best_aspect()
        kinds = ["word"]
        if fact.aspect == "extra" and not fact.about["word"]:
            kinds = ["number", "field"]
        named = any(fact.shared(heard.said, kind) for kind in kinds)
        vague = fact.is_hidden and (not named or grade == "open" and not heard.said["ever"])
        right_about_term = grade == "right" and fact.term in heard.terms and best not in CHOICES
        has_its_keys = fact.aspect == "formula" and len(fact.shared(heard.said, "field")) > 1
        fits = self.points(fact, heard) > 0 or right_about_term or has_its_keys
        if fact.is_hidden and not named:
            fits = False
        if not fits and (vague or surely and not named):
            return 0
        bonus = CLAIMED
        if grade in ("right", "open"):
            bonus += AGREES
        if fact.is_hidden and not vague:
            bonus += NAMES_HIDDEN
        return bonus

    # ---- The verdict

    def verdicts(self, target, of_result, heard, memory):
        """What a claim about a fact says about this and the other facts of its term: detail -> verdict."""
        facts = [target]
        for fact in self.facts:
            if fact != target and (fact in of_result or self.is_beside(fact, target)):
                facts.append(fact)
        known = {*memory.told, *(fact.name for fact in facts)}
        no_such_key = matches("missing", heard.text)    # There is no key called "value".
        found = {}
        for fact in facts:
            grade = self.verdict(fact, heard, memory.told)
            is_doubtful = False    # whether it is no claim about the meaning of a term
            if fact.aspect in HEADS:
                seems_wrong = grade in CORRECTED and fact != target
                keys = fact.shared(heard.said, "field")
                aside = self.points(fact, heard) <= 0 and len(keys) < 2
                is_doubtful = no_such_key or seems_wrong and aside
            if grade and not is_doubtful and known.issuperset(fact.needs):
                found[fact.name] = grade
        return found

    def is_beside(self, fact, target):
        """Whether one claim may speak of two facts: they have one term, and none is an exception."""
        same_term = target.term and fact.term == target.term
        return same_term and not fact.is_hidden and not target.is_hidden

    def verdict(self, fact, heard, told):
        """What a claim says about a fact: right, open, unsure, partly, wrong, or "" (see above)."""
        if fact.aspect in ("empty", "ties"):    # not what stands in "if nothing is left"
            heard = heard._replace(said=self.said(without("supposed", heard.text)))
        has_limit = fact.aspect == "edge" and heard.fits("edge") and fact.shared(heard.said, "number")
        if has_limit and not heard.said["edge"]:    # "So 2 would be lonely but 3 not": which of them is not read
            return "partly"
        grades, keys, at_core = self.grades(fact, heard, told)
        if not at_core or grades == {"open"}:
            return ""
        if not keys and fact.aspect in ("define", "formula"):
            return ""
        if fact.aspect == "formula" and keys.isdisjoint(fact.about["field"]) and matches("denies", heard.text):
            return "right"    # "The discount isn't taken off."
        if grades & CORRECTED:
            return "partly" if grades & {"right", "partly"} else "wrong"
        for grade in ("unsure", "open", "right"):
            if grade in grades:
                return grade
        return ""

    def grades(self, fact, heard, told):
        """(verdicts on the kinds of a claim, the keys that it names, whether it speaks of what matters in the fact)"""
        groups = tables()["aspects"].get(fact.aspect, {}).get("kinds")
        groups = groups or [[kind] for kind in fact.values]
        fits = heard.fits(fact.aspect)
        grades, keys, at_core, has_core = set(), set(), False, False
        for place, kinds in enumerate(groups):
            mine_of = [kind for kind in kinds if kind in fact.values]
            kind = mine_of[0] if mine_of else kinds[0]
            if place == 0:
                has_core = bool(mine_of)
            if self.is_settled_elsewhere(fact, kind) or kind == "join" and len(keys) < 2:
                continue
            mine = fact.values.get(kind, set())
            theirs = self.tokens(fact, kind, heard, mine, told)
            if kind == "field":
                keys = theirs
            # The claim fits the aspect, but says it in another way than the fact: with a word, not a number.
            says_other = any(heard.said[other] for other in kinds)
            otherwise = fits and mine and not theirs and says_other
            matters = place == 0 or not has_core or kind == "edge" and heard.fits("edge")
            at_core = at_core or bool(otherwise or matters and mine and theirs)
            grades.add("wrong" if otherwise else self.grade(fact, kind, mine, theirs, told))
        grades.discard("")
        if fact.aspect == "formula" and ("open" in grades or len(fact.values.get("op", ())) > 1):
            grades.add("unsure")    # the order of its steps cannot be checked
        return grades, keys, at_core and not self.lacks_subject(fact, heard)

    def is_settled_elsewhere(self, fact, kind):
        """Whether a kind is no part of a fact: another fact has a limit's edge, and ties settle which end is first."""
        if kind == "end" and "ties" in fact.values:
            return True
        return kind != fact.aspect and (fact.term, kind) in self.settled_by_facts

    def lacks_subject(self, fact, heard):
        """Whether a claim does not say what would be so: "Does Bern count, too?" is not about an edge."""
        if fact.aspect == "edge":
            return not heard.said["number"] and not heard.fits("edge")
        if fact.aspect == "order":
            return not heard.said["field"] and self.points(fact, heard) <= 0
        return False

    def grade(self, fact, kind, mine, theirs, told):
        """The verdict on the tokens of one kind, given those of the fact."""
        if not theirs:
            return "open" if mine else ""
        if not mine:
            return "unsure"
        if theirs == mine or kind == "form" and theirs <= mine:
            vague = theirs == {"figures"} != mine    # which several forms show
            only_what_is_looked_for = kind == "field" and mine <= self.requested_keys & self.labels
            return "unsure" if vague or only_what_is_looked_for else "right"
        if kind == "number" and mine < theirs:
            return "unsure"
        if fact.name in told and kind in ("field", "word") and theirs < mine:    # it refers to what was told
            return ""
        return "partly" if theirs & mine else "wrong"

    # ---- The tokens of a claim that are about a fact

    def tokens(self, fact, kind, heard, mine, told):
        """What a claim about a fact says of a kind, less what it says of other facts beside."""
        if kind == "field":
            return self.claimed_keys(fact, heard, mine)
        if kind == "join":
            return self.claimed_join(heard)
        theirs = heard.said[kind]
        if kind == "word" and fact.aspect == "empty" and not theirs:
            theirs = heard.said["mark"]    # a dash may be what is returned for nothing
        left = theirs
        for other in self.facts if kind in CONTENT else ():
            if other.name in told and (kind == "number" or other.term == fact.term):
                left = left - (other.about[kind] - mine)
        return left or (theirs if mine else set())

    def claimed_join(self, heard):
        """The "and" or "or" that stands last between a number and a word."""
        text = self.vocabulary.sub("_label", self.shadow(heard.text))
        between = re.search(r"_figure.*?_label|_label.*?_figure", text)
        joins = re.findall(r"\b(?:and|or)\b", between[0]) if between else []
        return set(joins[-1:]) or heard.said["join"]

    def claimed_keys(self, fact, heard, mine):
        """The keys that a claim about a fact names, less those that only say what it is about."""
        own = set().union(*self.name_stems.get(fact.term, []))
        own = {self.key_of.get(word) for word in own}
        said = heard.said["field"]
        keys = said - (own - mine)
        if fact.aspect == "group":
            keys = keys & self.labels or keys
        of_each = self.keys_in(act("each").findall(heard.text))    # "for each customer"
        keys = keys - (of_each - mine)
        is_share = fact.aspect == "define" and matches("share", self.with_terms(heard.text))
        names_subject = fact.term not in heard.terms and not matches("pronoun", heard.text)
        if is_share or names_subject:
            names = list(chain(*(self.name_stems[term] for term in heard.terms)))
            keys = {key for key in keys if key in mine or {stem(key)} not in names}
        left = keys - (self.requested_keys - mine)
        return left if fact.aspect == "order" else left or keys
