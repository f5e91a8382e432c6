"""What the facts settle of a concrete case.

"Is an order with 20 big?" is no question about a fact, but a case. If the facts that settle it were told, the human
says yes or no. If one of them was not told yet, it is told instead. There are four sorts of cases:
- numbers that are rounded: "Does 41.2 become 42?",
- things that may be of a kind, with the numbers of a formula, a number, or a word: "Is it big with a price of 3?",
- examples of the result: "Would it read F38 (7) + C12 (2)?",
- how far something reaches, which the reference program settles itself: "The whole list, or only the big ones?".
"""
import math
import re
from fractions import Fraction
from itertools import chain
from typing import NamedTuple

from listener_claims import NEXT, Judge
from listener_reading import CHOICES, LIMITS, ONCE, RESULT, SURE
from listener_words import act, matches, rewritten, says, tables, without

ROUNDED = {"down": math.floor, "up": math.ceil, "nearest": lambda number: math.floor(number + Fraction(1, 2))}
BESIDE_KINDS = ("ties", "count", "between", "empty", "fewer", "absent")    # aspects that no kind is about
MARK = r"[^\w?]{1,6}"    # what may stand between two entries of an example


class Case(NamedTuple):
    """A thing that may be of a kind."""
    number: str
    average: set     # the average that is supposed for it, if any
    words: dict      # words that it has -> whether it rather lacks them
    denied: bool     # whether the text says that it is not of the kind


class CaseSolver(Judge):
    """Settles concrete cases."""

    def settled(self, text, memory, loosely=False):
        """(sentences, details, fact) in answer to a case, or None. loosely: a number by itself is a case, too"""
        several_terms = len(self.mentions(text, memory)) > 1
        is_summary = several_terms and len(self.clauses(text, memory)) > 2
        heard = self.read(rewritten("counted", text), memory)
        if is_summary and not self.worked_out(text, memory)[1] and any(heard.said[kind] for kind in ("number", "word")):
            return None
        found = self.rounded(heard)
        found = found or self.member(heard, memory, loosely)
        found = found or self.edge_of_exception(heard, memory)
        sorts = [self.alternative, self.compared_example, self.settled_by_reference]
        if " or " in text:    # "Is it "A (4)", "B (3)" as a list, or all in one line?"
            sorts.reverse()
        for sort in sorts:
            found = found or sort(heard, memory)
        if not found:
            return None
        sentence, facts, fact = found
        fresh = [each for each in facts if each.name not in memory.told]
        replies = [each.reply for each in fresh]
        return [sentence, *replies], [each.name for each in fresh], fact

    # Each sort of case is answered by (the sentence, the facts that settle it, the fact that it is about), or None.

    # ---- Numbers that are rounded

    def rounded(self, heard):
        """What becomes of fractions, shares and averages: "41.2 becomes 42.", "That makes 34 percent."."""
        facts = [fact for fact in self.facts if fact.values.get("round", set()) & ROUNDED.keys()]
        if not facts:
            return None
        fact = facts[0]
        way = ROUNDED[next(iter(fact.values["round"] & ROUNDED.keys()))]
        fractions = re.findall(r"(?<![\w.])\d{1,9}\.\d+(?!\w)", heard.text)
        if fractions and heard.fits("round"):
            each = [f"{part} becomes {way(float(part))}" for part in dict.fromkeys(fractions)]
            return ", ".join(each) + ".", [fact], fact
        is_share = "whole = sum(" in self.reference
        numbers = self.numbers_to_divide(heard.text, is_share)
        if is_share and len(numbers) > 1:
            part, whole = min(numbers), max(numbers)
        else:
            part, whole = sum(numbers), len(numbers)
        if whole <= 1:
            return None
        if is_share:
            return f"That makes {way(Fraction(100 * part, whole))} percent.", [fact], fact
        return f"That makes {way(Fraction(part, whole))}.", [fact], fact

    def numbers_to_divide(self, text, is_share):
        """The numbers of "7 out of 40", or those that are averaged in "the average of 3, 4 and 9"."""
        shadow = self.shadow(text)
        if not matches("outcome", shadow):
            return []
        found = matches("of_all" if is_share else "averaged", shadow)
        if not found:
            return []
        return list(map(int, re.findall(r"(?<![\w.])\d{1,9}(?![\w.])", found[0])))

    # ---- Things that may be of a kind

    def member(self, heard, memory, loosely=False):
        """Whether something is one of a kind: with a number, a formula's numbers, the limit itself, or with a word."""
        text = act("or_else").split(heard.text)[0]
        named, numbers = heard.terms, heard.said["number"]
        text, made, formula = self.worked_out(text, memory)
        if made and re.search(r"\d+", made)[0] in numbers and named.keys() <= {formula.term}:
            return made, [], formula    # "10 nights with 5 people count as 35, not as 50?"
        if made:
            heard = self.read(text, memory)
        text = act("doubled").sub("extra", text)    # its 2 is no number of a thing
        text = act("on_limit").sub("exactly that", text)
        sum_only = (made, [], formula) if made else None
        kind = self.kind_of(heard, memory)
        if not kind or not made and self.is_about_result(heard, text, kind):
            return sum_only
        define = kind["define"]
        if "join" in define.values and matches("joins", text):    # "Does it take both?"
            which = "either" if define.values["join"] == {"or"} else "both"
            return says(which, text), [], define
        shadow = self.with_terms(without("aside", text))
        if matches("exists", shadow):    # "Is there one that is big, although it's cheap?"
            return sum_only
        if self.gives_alternatives(text) and not matches("asks_if", shadow):
            return sum_only
        is_case = loosely or matches("instance", shadow) or matches("bounds", shadow)
        if matches("rules", shadow) or not is_case:
            return sum_only
        cases = self.cases(text, kind, memory)
        if not cases:
            instead = "" if made else self.other_number(text, kind)
            return (instead, [], define) if instead else sum_only
        verdicts, used = zip(*(self.one_of(kind, case) for case in cases))
        used = [*chain(*used)]
        untold = [fact for fact in used if self.hides_answer(fact, used, kind, memory)]
        if untold:
            is_claim = matches("bounds", shadow) or matches("claims", text) or not text.endswith("?")
            asks_for_it = made or define.term in heard.terms and not is_claim
            return (made, untold[:1], define) if asks_for_it else None
        if set(verdicts) == {None}:
            own_edge = self.edge_of_exception(heard, memory)
            # It is what was said before, or about the edge, which is told again.
            if own_edge or not text.endswith("?") or kind.get("edge") in used:
                return own_edge or sum_only
        sentence = self.verdict_on(cases, verdicts, define, text)
        return f"{made} {sentence}".strip(), used, define

    def edge_of_exception(self, heard, memory):
        """Whether an exception's own limit counts: "20 itself counts.". It has the edge of the kind's limit."""
        kind = self.kind_of(heard, memory)
        special, limit = kind.get("except"), kind.get("limit")
        if not special or special.name not in memory.told or not limit:
            return None
        edge = kind.get("edge", limit)
        own = special.shared(heard.said, "number") - limit.about["number"]
        if not own or not special.shared(heard.said, "word") or "edge" not in edge.values:
            return None
        if not self.weigh(heard.text, memory).fits("edge"):
            return None
        counts = "counts" if edge.values["edge"] == {"in"} else "doesn't count"
        rest = ", if the rest fits" if "join" in kind["define"].values and counts == "counts" else ""
        return f"{own.pop()} itself {counts}{rest}.", [edge], kind["define"]

    def gives_alternatives(self, text):
        """Whether a text says that a number or a word is enough: "It's big from 20 on, or by phone"."""
        before, _, after = text.partition(" or ")
        another_key = self.keys_with(after) - self.keys_with(before)
        return another_key and matches("number", before) and not matches("number", after)

    def is_about_result(self, heard, text, kind):
        """Whether a text is about the result, and gives no number of what a kind goes by."""
        best, surely = heard.best_aspect()
        if not surely or best not in BESIDE_KINDS:
            return False
        return kind["define"].about["field"].isdisjoint(self.amounts(text))

    def hides_answer(self, fact, used, kind, memory):
        """Whether a limit must be told first. An exception of the kind that is known needs no edge."""
        if fact.name in memory.told or fact.aspect not in LIMITS:
            return False
        return fact.aspect == "limit" or kind.get("except") not in used

    def verdict_on(self, cases, verdicts, define, text):
        """The sentence that says whether cases are of a kind; None is a verdict that stays open."""
        name = self.names[define.term][0]
        if set(verdicts) == {None}:
            return says("depends", text, fill=name)
        if len(verdicts) == 1:
            which = "one" if verdicts[0] else "none"
            return says(f"{which} denied" if cases[0].denied else which, text, fill=name)
        numbers, each, right = [case.number for case in cases], [], True
        for case, fits in zip(cases, verdicts):
            words = [" and ".join(case.words)] if numbers.count(case.number) > 1 and case.words else []
            verdict = {True: "counts", False: "does not", None: "may or may not"}[fits]
            each.append(" ".join([case.number, *words, verdict]))
            right = right and fits == (not case.denied)
        each = ", ".join(each)
        if matches("choice", text):    # "3 or 4?"
            return f"{each}."
        return says("yes", text) if right else f"Not quite. {each}."

    def other_number(self, text, kind):
        """A correction, if a text gives a number of another key: "3 stops" for a kind that goes by the delay."""
        define = kind["define"]
        keys = self.amounts(text).keys() - self.labels - define.about["field"]
        if not keys or any(fact.about["field"] & keys for fact in self.facts_about("formula")):
            return ""
        return self.not_by(define, text)

    def kind_of(self, heard, memory):
        """aspect -> fact of the kind that a text is about, by its name, by what was told of it, or as the topic."""
        meanings = {fact.term: fact.name for fact in self.facts_about("define")}
        last = [term for term in memory.topics if term in meanings][-1:]
        for terms in (heard.terms, self.taken_up(heard, memory), last):
            found = [term for term in meanings if term in terms]
            if len(found) > 1:
                return {}
            if found:
                is_known = meanings[found[0]] in memory.told
                return {fact.aspect: fact for fact in self.facts if fact.term in found and is_known}
        return {}

    def worked_out(self, text, memory):
        """(a text with what a told formula comes to in place of the numbers of its keys, a sentence, the formula)"""
        row = self.amounts(text)
        formulas = [fact for fact in self.facts_about("formula")
                    if fact.name in memory.told and fact.about["field"] <= row.keys()]
        if not formulas:
            return text, "", None
        formula, said = formulas[0], self.said(text)
        total = self.result(formula.reply, row)
        for extra in self.facts_about("extra"):
            meant = not extra.about["word"] or extra.shared(said, "word")
            if extra.term != formula.term or not meant:
                continue
            if extra.name in memory.told:
                total = self.with_extra(total, extra, row)
            else:
                total = None
        if total is None:
            return text, "", formula
        return f"with {formula.term} of {total} {text}", f"That makes {total}.", formula

    # The cases of a text

    def cases(self, text, kind, memory):
        """The cases that a text puts, or [] if it puts none, or makes other claims beside.

        Words go for the next number as well. "At most 35" puts two, 35 and 36.
        """
        limit, define = kind.get("limit"), kind["define"]
        average = matches("averages", text) if limit and "mean" in limit.values else None
        text = self.lacking.sub("lacking ", text.replace(average[0], " ") if average else text)
        average = self.said(average[0])["number"] if average else set()
        special = kind.get("except")
        if special and not special.shared(self.said(text), "word"):
            special = None
        parts = self.numbered_parts(text, define, self.bound(kind, average, special))
        found, words, edge, gives_number = [], {}, set(), bool(special)
        for number, part in parts:
            here = self.words_with(part)
            words = self.kept_words(words, here, part) | here
            denied = bool(matches("denies", self.with_terms(part)))
            stated = matches("bounds", self.shadow(part))
            has_edge_of_rule = edge and special and special.about["word"] & here.keys()
            if number and (stated or has_edge_of_rule):
                said = self.said(part)
                end = said["end"] if stated else set()
                end = end or (limit.values.get("end", ()) if limit else ())
                edge = said["edge"] or edge
                step = NEXT.get((*end, *edge))
                if denied or not step or not re.fullmatch(r"\d{1,9}", number):
                    return []
                beyond = str(int(number) + step)
                denied = edge == {"out"}
                found.append(Case(beyond, average, words, not denied))
            else:
                gives_number = gives_number or bool(number)
            found.append(Case(number, average, words, denied))
        if not found:
            return []
        if found[-1].number:
            return found if gives_number else []
        if len(found) == 1 and self.words_are_a_case(words, text, kind, special, memory):
            return found
        return []

    def words_are_a_case(self, words, text, kind, special, memory):
        """Whether words without a number are a case: "Is one by phone big, no matter how much it costs?"."""
        keys = {self.key_with.get(word) for word in words}
        if not words or not special and keys.isdisjoint(kind["define"].about["field"]):
            return False
        known = [kind[aspect] for aspect in (*CHOICES, "except")
                 if aspect in kind and kind[aspect].name in memory.told]
        if special in known or matches("any", text):
            return True
        return known and matches("asks_if", self.with_terms(text))

    def bound(self, kind, average, special):
        """The number that decides: the average that is supposed, that of an exception, or that of the limit."""
        limit = kind.get("limit")
        decides = special or limit or kind["define"]
        return average or decides.about["number"] or limit and limit.values.get("mean")

    def numbered_parts(self, text, define, bound):
        """[(number, text)]: a text cut where another number begins; [] if it puts no cases."""
        parts = [("", "")]
        for part in act("parts").split(without("opening", text)):
            numbers = self.numbers_of_case(part, define, bound)
            if len(numbers) > 1 or not numbers and self.speaks_of_result(part):
                return []
            number, before = parts[-1]
            turns = matches("turns", part)    # "20, except in the cup, where it's 10"
            if numbers and not turns:
                turns = self.keys_with(before) & self.keys_with(part)    # "20 by web, 20 by phone"
            goes_on = not number or not turns and (not numbers or number in numbers)
            if goes_on:
                parts[-1] = (next(iter(numbers), number), f"{before} {part}")
            else:
                parts.append((next(iter(numbers), ""), f" {part}"))
        if len(parts) > 1 and not parts[-1][0]:    # a last part without a number belongs to the one before
            _, rest = parts.pop()
            number, before = parts.pop()
            parts.append((number, f"{before} {rest}"))
        return parts

    def numbers_of_case(self, part, define, bound):
        """The numbers of what a kind goes by, or of nothing else; "that number" is the one that decides."""
        amounts, home = self.amounts(part), self.labels | define.about["field"]
        numbers = {number for key, number in amounts.items() if key in home}
        numbers = numbers or self.said(part)["number"] - {*amounts.values()}
        if not numbers and matches("own", part):
            return bound or set()
        return numbers

    def speaks_of_result(self, part):
        points = self.aspects(self.vocabulary.sub(" ", part))
        sure = {name for name in points if points[name] >= SURE}
        return not sure.isdisjoint((*RESULT, *ONCE))

    def keys_with(self, text):
        """The keys that the words of a text stand under."""
        return {self.key_with.get(word) for word in self.words_of_rows(text)}

    def words_with(self, part):
        """word -> whether a part says that it is lacking."""
        return {word: part[:match.start()].rstrip('"').endswith("lacking ")
                for word, match in self.words_of_rows(part).items()}

    def kept_words(self, words, here, part):
        """The words of earlier parts that go for a part as well: not those of a key of which it has another word."""
        if matches("others", part):
            return {}
        keys = {self.key_with.get(word) for word in here}
        return {word: lacks for word, lacks in words.items() if self.key_with.get(word) not in keys}

    # The verdict on a case

    def one_of(self, kind, case):
        """(whether a case is one of a kind, None if that is open; the facts that settle it)"""
        has = {word for word, lacks in case.words.items() if not lacks}
        special = kind.get("except")
        special = [special] if special and special.about["word"] & has else []
        if special and "ever" in special[0].values:    # "Orders by phone are never big."
            return special[0].values["ever"] == {"always"}, special
        limit, choice = kind.get("limit"), kind.get("values") or kind.get("names")
        fits, used = [], []
        if limit:
            bound = self.bound(kind, case.average, special[0] if special else None)
            fit, used = self.beyond_limit(kind, limit, case, bound)
            fits.append(fit)
        if choice:
            fit = self.is_chosen(choice, kind["define"], case.words, has)
            fits.append(fit)
            used = [*used, choice] if fit else used
        either = "or" in kind["define"].values.get("join", ())
        if choice and either and fits[-1]:
            used = [choice]
        verdict = None
        if either in fits:    # one arm of an "or" is enough, as one of an "and" is not
            verdict = either
        elif set(fits) == {not either}:
            verdict = not either
        return verdict, [*used, *special]

    def beyond_limit(self, kind, limit, case, bound):
        """(whether the number of a case is on the right side of a limit, None if that is open; the facts used)"""
        if {case.number} == bound:
            edge = kind.get("edge", limit)
            if "edge" not in edge.values:
                return None, [limit, edge]
            return edge.values["edge"] == {"in"}, [limit, edge]
        if not case.number:
            return None, []
        # The limit may be the average, which is a word here.
        if len(bound) != 1 or "end" not in limit.values:
            return None, [limit]
        if re.search("[a-z]", case.number + min(bound)):
            return None, [limit]
        is_higher = float(case.number) > float(*bound)
        return is_higher == ("high" in limit.values["end"]), [limit]

    def is_chosen(self, choice, define, words, has):
        """Whether the words of a case are those of a choice of words, None if that is open."""
        if choice.about["word"] & has:
            return True
        has_another = any(self.key_with.get(word) in define.about["field"] for word in has)
        lacks_all = choice.about["word"] <= words.keys() - has
        return False if has_another or lacks_all else None

    # ---- Examples of the result

    def compared_example(self, heard, memory):
        """Whether an example of an entry, or of a whole line, looks as it must: "F38 (7) + C12 (2)"."""
        told = [fact for fact in self.facts_about("format", "between") if fact.name in memory.told]
        aspects_told = {fact.aspect for fact in told}
        form_is_open = "format" in self.aspects_here - aspects_told
        two_examples = self.example.search(heard.text.partition(" or ")[2])
        if not told or form_is_open or two_examples:
            return None
        text, name = self.example_of(heard.text)
        if not re.search(r"[\d\"]", text) and not matches("sample", heard.text):
            return None    # names alone are no example of a line
        form = self.form_of_entry(told)
        count = len(re.findall(name, text))
        if not count or "{v}" in form and not re.search(r"\d", text):
            return None
        entry = re.escape(form).replace(r"\{n\}", name)
        entry = entry.replace(r"\{v\}", r"\d+").replace('"', '"?')
        mark = re.search(r'"(.+)"\.join', self.reference)
        mark = re.escape(mark[1]) if mark else MARK
        run = re.search(f"{entry}(?:{mark}{entry})*", text)
        if run and len(re.findall(name, run[0])) == count:
            return says("yes", heard.text), [], told[0]
        wrong = told[-1] if run else told[0]    # the mark stands before the form
        return f"Not quite. {wrong.reply}", [], wrong

    def example_of(self, text):
        """(an example in a text, "" if there is none; a pattern of the names in it)"""
        for quoted in re.findall(r"\"([^\"]+)\"", text):
            if re.search(r"\w\W+\w", quoted):
                return quoted, r"(?:\b[a-z]\w*)"
        found = self.example.search(text)
        return found[0] if found else "", rf"(?:\b[a-z]\d+\b|\b(?:{self.spellings})\b)"

    def form_of_entry(self, told):
        """How an entry must look: "{n}: {v}" is a name and its figure."""
        for fact in told:
            for form in fact.values.get("form", set()) - {"figures"}:
                return '["{n}", {v}]' if form == "pairs" else form
        return "{n}"

    # ---- How far something reaches

    def settled_by_reference(self, heard, memory):
        """What the reference itself settles: how far something reaches, and whether a name comes once."""
        proposes_limit = matches("bounds", heard.text) and " or " not in heard.text
        if not heard.text.endswith("?") or proposes_limit:
            return None
        terms = {"", *heard.terms, *memory.topics[-1:]}
        terms |= self.taken_up(heard, memory)
        told = [fact for fact in self.facts if fact.name in memory.told
                and (fact.term in terms or fact.aspect in ONCE)]
        with_terms, shadow = self.with_terms(heard.text), self.shadow(heard.text)
        for row in tables()["settled"]:
            facts = [fact for fact in told if fact.aspect == row["about"]]
            if not row["about"]:
                facts = self.facts[:1]
            asks = row["asks"].search(with_terms) or row["asks"].search(shadow)
            if facts and asks and re.search(row["code"], self.reference):
                measure = f"{facts[-1].term} of each {self.row}"
                return row["says"].format(measure=measure, row=self.row), [], facts[-1]
        return None

    # ---- Formulas

    def alternative(self, heard, memory):
        """Which of two formulas is right: "Is it a times (b - c), or (a times b) - c?"."""
        halves = heard.text.split(" or ")
        for fact in self.facts_about("formula"):
            results = [self.result_of(fact.term, half) for half in halves]
            both = [len(self.said(half)["field"] & fact.about["field"]) > 1 for half in halves]
            if len(halves) == 2 and all(both) and results.count("formula") == 1:
                which = ("The first", "The second")[results.index("formula")]
                return f"{which}." + f" {fact.reply}" * (fact.name in memory.told), [fact], fact
        return None

    # ---- Checks of a limit

    def not_by(self, fact, text):
        """A correction, if a question about a limit names a number that the limit is not one of."""
        if fact.aspect not in ("define", *LIMITS) or self.aspects(text).get("limit", 0) < SURE:
            return ""
        said = self.said(text)["field"] - self.labels
        home = set()    # what the kind goes by
        for other in self.facts_about("define"):
            if other.term == fact.term:
                home |= other.about["field"] - self.labels or other.about["field"]
        parts = set()    # what a measure that it goes by is made of
        for other in self.facts_about("formula"):
            if other.term in home:
                parts |= other.about["field"]
        if not said or not home or said & (home | parts):
            return ""
        wrong, right = " or ".join(sorted(said)), " and the ".join(sorted(home))
        return f"It's not the {wrong}, it's the {right}."

    def leaves_open(self, fact, text):
        """Whether a fact, once more, would not answer a check: it has other numbers or words than the text."""
        if not text.endswith("?") or matches("rules", text) or matches("bounds", text):
            return False
        said = self.said(text)
        for kind in ("number", "word"):
            is_known = fact.about[kind] or fact.aspect == "formula"
            if is_known and said[kind] and not fact.shared(said, kind):
                return True
        return False
