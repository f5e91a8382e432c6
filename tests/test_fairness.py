"""What an honest player can rely on, and what a checklist cannot: every reading of a task is settled, and asking takes
reading. The full figures (300 tasks): study/task_figures.py."""
import random
import re
import sys
import tracemalloc
from collections import Counter
from functools import cache
from itertools import islice
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "study"), str(ROOT / "tests")]
import function_tasks as f  # noqa: E402
import function_words as w  # noqa: E402
import task_figures  # noqa: E402
from test_human import by_name, human_of, needed, no_exceptions, reply_after, slots  # noqa: E402


FORMULA_HEDGE = re.compile(r"(Normally|Usually|Mostly|Mainly|Roughly|Basically|As a rule)\b")    # how a formula with an extra begins


@pytest.fixture(scope="module")
def tasks():
    return task_figures.finished(60)[0]


@pytest.mark.parametrize("level, count", [("full", 100), ("plain", 50)])
def test_an_honest_program_in_another_style_passes_every_call(level, count):
    tasks, *_ = task_figures.finished(count, level, seed=2026)
    assert [task["problem_description"] for task in tasks if not task_figures.is_honest(task)] == []


def test_the_check_tells_a_wrong_reading_from_an_honest_one(tasks):
    """With one detail misread, the program in another style fails."""
    for task in tasks:
        detail = random.Random(task["ground_truth"]).choice([fact["detail"] for fact in task["facts"]])
        _, choices = f.settle(task["plan"], f.likeliest, task["details"])
        wrong = next(value for value in choices[detail] if value != task["details"][detail])
        misread, _ = f.settle(task["plan"], f.likeliest, task["details"] | {detail: wrong})
        assert not task_figures.is_honest({**task, "details": misread}), detail


def test_whoever_was_told_everything_has_nothing_to_guess(tasks):
    assert all(task_figures.passes(task, task_figures.hidden(task)) for task in tasks)


def test_a_guesser_passes_at_most_one_task_in_twenty(tasks):
    assert sum(task_figures.passes(task, set()) for task in tasks) <= 3


def test_a_blind_list_finds_at_most_one_task_in_twenty(tasks):
    best = task_figures.greedy(tasks[:15], task_figures.BLIND)
    told = [task_figures.tell(task, best) for task in tasks]
    assert sum(task_figures.hidden(task) <= some for task, some in zip(tasks, told)) <= 3
    assert sum(task_figures.passes(task, some) for task, some in zip(tasks, told)) <= 3


def test_an_asker_who_wastes_a_turn_in_ten_is_told_nearly_all(tasks):
    """In the words of people who had not seen the human's code. The figures of 300 tasks: study/task_figures.py."""
    for phrases in task_figures.phrasings():
        told = [task_figures.oracle(task, phrases, random.Random(i), 0.1)[-1] for i, task in enumerate(tasks)]
        full = sum(task_figures.hidden(task) <= some for task, some in zip(tasks, told))
        assert 0.6 * len(tasks) <= full < len(tasks)


# ---- Checks of what was told: a reply says the facts that settle them

AGAIN = re.compile(r"(As I said|Like I said|One thing at|One after)")


@cache
def drafts():
    return list(islice(f.draw_tasks("test", "full", 99), 160))


@cache
def some_kinds():
    return list(islice(kinds(), 0, None, 5))


def kinds():
    """(task, name, key of the number, limit, join, label and its words, way, key, word and limit of the exception)"""
    for task in drafts():
        for name in task["plan"]["kinds"]:
            theme, details = w.themes()[task["plan"]["theme"]], task["details"]
            _, number, join, label = w.parts_of(theme, details[f"{name}.define"])
            limit = details.get(f"{name}.limit")
            if number in theme.numbers and type(limit) is int:
                yield task, theme, name, number, limit, join, label, details.get(f"{name}.values"), \
                    details.get(f"{name}.except") or ["none", "", ""]


def words_of(task, name, label="", word=""):
    theme = w.themes()[task["plan"]["theme"]]
    words = w.common_words(task["plan"]) | w.kind_words(theme, name)
    return words | (w.label_words(theme, label, [word]) if label else {})


def said_of(task, name, question):
    """(reply, details) of a human that has told all about a kind."""
    told = [fact["detail"] for fact in task["facts"] if fact["detail"].startswith(f"{name}.")]
    return reply_after(task, told, question)


def settling(task, name, *aspects):
    """The replies that settle a check of a kind."""
    return [fact["reply"] for fact in task["facts"] if fact.get("term") == name and fact["aspect"] in aspects]


NUMBERS = [    # {n} a number, {m} the next one, {f} its key, {T} the term
    "Is exactly {n} already {T}?", "Would {a_noun} with {f} of {n} count as {T}?", "And {n} itself, is that {T}?",
    "So does exactly {n} count as {T}, one that I take?", "What about exactly {n}, is that {T}?", "And {n}?",
    "Say the {f} is exactly {n}. Would you still call that {T}?", "I assume {n} still counts as {T}, right?",
    "Does exactly that number make it {T} already?", "Is that number itself {T}?", "So {n} is {T}?", "{n}: {T}?",
    "And is exactly that number still {T}?", "A {f} of more than one, right?", "{n}, still {T}?",
    "So {T} means a dozen or more, correct?", "So {n} is {T}, and {m} isn't, right?",
    "Just to be sure: with {n} it isn't {T}, with {m} it is?", "{n} is {T} but {m} isn't, correct?",
    "So exactly {n} isn't {T} and {m} is. Did I get that right?"]
WORDS = [      # {phrase} a word of the rows, as one says it
    "Do {nouns} {phrase} count as {T} even if the {f} is only {n}?", "Is one {phrase} with {f} {n} still {T}?",
    "One {phrase} and {n} of {f}: is that {T}, too?", "Does a {f} of {n} already make one {phrase} {T}?",
    "{nouns} {phrase}, no matter how high the {f}: are those {T}?", "Are {nouns} {phrase} {T} whatever the {f} is?",
    "Does {phrase} make it {T} regardless of the {f}?", "{nouns} {phrase} with no {f} at all: are they {T}?",
    "Is one {phrase} still {T} without any {f}?", "With {n} {f} but not {phrase}, is it {T}?",
    "Does a {noun} {phrase} count as {T} if it has no {f} at all?", "Is {n} enough for one not {phrase} to be {T}?",
    "Does exactly {n} count as {T} for {nouns} that aren't {phrase}?", "If it's {phrase} and exactly {n}, is it {T}?",
    "For {nouns} {phrase}, is {n} itself enough to be {T}?", "{nouns} {phrase}: would exactly {n} count as {T}?",
    "With {n} on the dot, is one {phrase} still {T}?", "So {n} already counts as {T} for the ones {phrase}, right?",
    "So for {phrase} at most {n}, meaning {n} counts and {m} doesn't?",
    "{nouns} {phrase}: {n} counts, {m} doesn't, right?",
    "So with {n} one {phrase} counts as {T} and with {m} it doesn't?", "To sum up, {T} is {n}, or {phrase}. Correct?",
    "So it's {T} if the {f} is at least {n} or if it's {phrase}?",
    "For {nouns} {phrase}, does the {n} replace the {limit}?",
    "{T} means more than {n} - or {phrase}, whatever the {f}. Is anything wrong with that?"]


@pytest.mark.parametrize("form", NUMBERS)
def test_a_number_is_answered_with_the_limit(form):
    count = Counter()
    for task, theme, name, key, limit, *_ in some_kinds():
        words = words_of(task, name)
        for n in (limit - 1, limit, limit + 4):
            question = form.format(n=n, m=n + 1, f=key, a_noun=w.a(words["noun"]), **words)
            reply, told = said_of(task, name, question)
            edge = settling(task, name, "edge") or settling(task, name, "limit")
            count[not told and all(text in reply for text in edge)] += 1
    assert count[False] <= 0.01 * count.total() and count.total() > 50, count


@pytest.mark.parametrize("form", WORDS)
def test_a_number_with_a_word_is_answered_with_all_that_settles_it(form):
    count, wrong = Counter(), []
    for task, theme, name, key, limit, join, label, values, (way, other, word, *_) in some_kinds():
        cases = [(label, each) for each in theme.words[label][1]] if join else [(other, word)] if way != "none" else []
        for column, each in cases:
            words = words_of(task, name, column, each)
            for n in (limit, limit + 3):
                question = form.format(n=n, m=n + 1, f=key, limit=limit, a_noun=w.a(words["noun"]), **words)
                reply, told = said_of(task, name, question)
                needed = settling(task, name, "except" if each == word else "values")
                count[not told and all(text in reply for text in needed)] += 1
                wrong += [] if not told and all(text in reply for text in needed) else [(question, reply)]
    assert count[False] <= 0.05 * count.total() and count.total() > 50, (count, wrong[:5])


def facts_with(aspect):
    return [(task, fact) for task in drafts() for fact in task["facts"] if fact["aspect"] == aspect]


@pytest.mark.parametrize("form", ["An average of {x} would become {n}?", "So {x} comes out as {n}, right?",
                                  "Would {x} be {n} or {m}?", "If it's {x}, do I return {n}?"])
def test_a_fraction_is_answered_with_how_it_is_rounded(form):
    for task, fact in facts_with("round"):
        for told in ([], ["round"]):
            reply, _ = reply_after(task, told, form.format(x=41.2, n=41, m=42))
            assert fact["reply"] in reply, (form, reply)


@pytest.mark.parametrize("number", ["007", "9" * 400, "9" * 5000, "\u0663"],
                         ids=["zeros", "long", "too long", "arabic"])
def test_no_number_that_an_agent_writes_ends_the_run(number):
    for task, fact in [*facts_with("formula"), *facts_with("round")][::24]:
        told = [each["detail"] for each in task["facts"]]
        case = " and ".join(f"{number} {key}" for key in fact["values"].get("field", []))
        for question in (f"With {case}, what is it?", f"Would {number}.5 be rounded up?", f"Is {number} enough?"):
            assert reply_after(task, told, question)[0]


def test_numbers_that_lie_far_apart_take_no_room():
    lows = [(task, fact) for task, fact in facts_with("limit") if fact["values"].get("end") == ["low"]]
    tracemalloc.start()
    assert reply_after(lows[0][0], [lows[0][1]["detail"]], "So a low one, from 1 up to 9999999, is enough?")[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6, "a list of the numbers between would take four times as much"


@pytest.mark.parametrize("form", ["Would at least 5 or the lowest be {name}?",
                                  "Does a low one of at least 5 count as {name}?"])
def test_a_bound_of_a_kind_that_has_none_is_answered(form):
    count = 0
    for task, fact in facts_with("define"):
        if f"{fact['term']}.limit" not in by_name(task):
            name = task["terms"][fact["term"]]["names"][0]
            assert reply_after(task, [fact["detail"]], form.format(name=name))[0]
            count += 1
    assert count > 5


@pytest.mark.parametrize("words", ["and so ", "is it ", "if it is ", "or ", "1, ", "no matter ", "both or one ", "- "])
def test_a_message_that_repeats_words_is_answered(words):
    """A model that is stuck in a loop writes such messages; a pattern that tries every way to cut them never ends."""
    assert reply_after(drafts()[0], [], words * 150 + "xyz?")[0]


@pytest.mark.parametrize("form", [
    "Is the whole {m} meant, or only the {f}?", "Does that go for the whole {m} or just the {f}?",
    "Is the {f} doubled as well?", "Is it only the {f}, or everything?"])
def test_an_extra_goes_for_the_whole_amount(form):
    for task, fact in facts_with("extra"):
        if "word" not in fact["values"] and "number" not in fact["values"]:
            continue    # "I always add the tip." is no change of the whole
        field = by_name(task)[fact["needs"][0]]["values"]["field"][0]
        reply, told = reply_after(task, [fact["detail"]], form.format(m=fact["term"], f=field))
        assert "the whole" in reply and not told, (form, reply)


@pytest.mark.parametrize("form", ["The whole list or only the {term} ones?",
                                  "Over all {nouns}, or only those that are left?",
                                  "Do I look at the entire list for that, or just at the {term} {nouns}?"])
def test_averages_and_counts_are_of_the_whole_list(form):
    count = 0
    for task, fact in facts_with("limit"):
        name = fact["term"]
        if task["details"][f"{name}.limit"] == "average" or "#" in task["details"][f"{name}.define"]:
            words = words_of(task, name)
            reply, _ = reply_after(task, [fact["detail"]], form.format(term=words["T"], **words))
            assert "whole list" in reply and not AGAIN.match(reply), (form, reply)
            count += 1
    assert count > 9


@pytest.mark.parametrize("form", ["Per {label}, is it the sum or the average?",
                                  "Do I add them up for each {label}, or average them?",
                                  "Is it the total of each {label} or the highest one?"])
def test_a_table_has_sums(form):
    for task, fact in facts_with("group"):
        reply, told = reply_after(task, ["group"], form.format(label=task["details"]["group"]))
        assert "sum" in reply and not told, (form, reply)


@pytest.mark.parametrize("form", ["Is there {a_noun} which doesn't follow the limit of {n}?",
                                  "Does anything go by another limit than {n}?",
                                  "Do all {nouns} have to keep to the {n}?", "Is the {n} the same for every {noun}?"])
def test_who_does_not_follow_the_limit_is_an_exception(form):
    count = Counter()
    for task, theme, name, key, limit, *_, exception in kinds():
        if limit < 3:
            continue    # two that are the same are tied
        words = words_of(task, name)
        reply, told = reply_after(task, [f"{name}.limit"], form.format(n=limit, a_noun=w.a(words["noun"]), **words))
        count[exception[0] != "none"] += 1
        assert told == [f"{name}.except"] * (exception[0] != "none"), (form, reply, told, exception)
    assert min(count.values()) > 9


@pytest.mark.parametrize("form", ["And if two are equal, I'd put the earlier one first, okay?",
                                  "If two have the same {f}, I'd keep them in the order of the list, okay?",
                                  "If two are tied, I'd sort them alphabetically, is that okay?",
                                  "And when none qualify, I'd return \"nothing\", all right?"])
def test_a_condition_with_a_proposal_is_one_question(form):
    for task, fact in [*facts_with("ties"), *facts_with("empty")]:
        number = next(iter(w.themes()[task["plan"]["theme"]].numbers))
        field = fact["values"].get("field", [number])[0]
        reply, told = reply_after(task, [], form.format(f=field))
        assert not AGAIN.match(reply) and len(told) < 2, (form, reply)
        if (fact["aspect"] == "empty") == ("none" in form):
            assert told == [fact["detail"]], (form, reply)


@pytest.mark.parametrize("form", ["How many {wrong} make it {term}?", "From what {wrong} on is it {term}?",
                                  "What's the limit on the {wrong} for {P}?"])
def test_a_wrong_key_is_not_accepted_quietly(form):
    for task, theme, name, key, *_ in kinds():
        other = next(each for each in theme.numbers if each not in task["details"][f"{name}.define"])
        words = words_of(task, name)
        reply, _ = reply_after(task, [f"{name}.define"], form.format(wrong=other, term=words["T"], P=words["P"]))
        assert settling(task, name, "define")[0] in reply, (form, reply)


@pytest.mark.parametrize("form", ["{n} {v}", "{v} {n}"])
def test_the_parts_of_an_example_are_named_in_its_order(form):
    for task, fact in facts_with("format"):
        if task["details"]["format"] == form and " and " in fact["reply"]:
            name = "the " + w.common_words(task["plan"])["name"]
            assert (name in fact["reply"].split(" and ")[0]) == (form == "{n} {v}"), fact["reply"]


# ---- Kinds of checks that the third strong player put, in other words


@pytest.mark.parametrize("form", ["{case}, {T} or not?", "With {case}, is it {T}?", "Would {case} count as {T}?",
                                  "Say we have {case}. Is that already {T}?", "{a_noun} with {case}: {T}?",
                                  "Just to be sure: does one with {case} still count as {T}?"])
def test_the_numbers_of_a_formula_are_answered_with_it_and_the_limit(form):
    count = Counter()
    for task, fact in facts_with("formula"):
        for name in task["plan"]["kinds"]:
            if f"{name}.define" in (fact.get("needs") or []) and f"{name}.limit" in by_name(task):
                words = words_of(task, name)
                case = " and ".join(f"{n} {key}" for n, key in enumerate(fact["values"]["field"], 3))
                question = form.format(case=case, a_noun=w.a(words["noun"]), **words)
                told = [each["detail"] for each in task["facts"] if each["detail"].startswith(f"{name}.")]
                reply, more = reply_after(task, [fact["detail"], *told], question)
                count["known", settling(task, name, "limit")[0] in reply and not more] += 1
                reply, more = reply_after(task, [f"{name}.define", fact["detail"]], question)
                count["open", more == [f"{name}.limit"]] += 1
    assert count["known", True] > 9 and count["open", True] > 9
    assert count["known", False] + count["open", False] <= 0.03 * count.total(), count


@pytest.mark.parametrize("form", ["Exactly average: {T} or not?", "If the {f} is exactly the average, is it {T}?",
                                  "Say the average {f} is 20. Is one with exactly 20 {T}?",
                                  "Suppose the {f} averages 20. Would a {f} of 20 still be {T}?",
                                  "So one with exactly the average {f} counts as {T}?"])
def test_the_average_itself_is_no_riddle(form):
    count = 0
    for task, fact in facts_with("limit"):
        field = by_name(task)[fact["needs"][0]]["values"]["field"]
        if task["details"][fact["detail"]] == "average" and len(field) == 1:
            words = words_of(task, fact["term"])
            reply, _ = said_of(task, fact["term"], form.format(f=field[0], **words))
            assert fact["reply"] in reply, (form, reply)
            count += 1
    assert count > 5


@pytest.mark.parametrize("form", ["And if those are equal as well?", "And if that is the same too, what then?",
                                  "What if they're still tied?", "If even then two are equal, who goes first?",
                                  "Is there a second tie-breaker after that?"])
def test_a_second_tie_will_not_come_up(form):
    for task, fact in facts_with("ties"):
        reply, told = reply_after(task, ["ties"], form)
        assert "won't come up" in reply and not told, (form, reply)


@pytest.mark.parametrize("form", ["Two {nouns} have the same figure. Which one goes first?", "Same figure: who leads?",
                                  "Two of them are equal. What then?", "Two come out the same, what then?"])
def test_a_tie_that_is_put_first_is_a_tie(form):
    for task, fact in facts_with("ties"):
        order = next(each["detail"] for each in task["facts"] if each["aspect"] == "order")
        words = w.common_words(task["plan"])
        assert reply_after(task, [order], form.format(**words)) == (fact["reply"], ["ties"]), form


@pytest.mark.parametrize("form", ["Should {names} come once or twice?", "Can the same {name} be listed several times?",
                                  "Does each {name} appear only once?",
                                  "If somebody is in there twice, are they shown twice?"])
def test_how_often_a_name_comes_is_settled(form):
    for task, _ in facts_with("order"):
        reply, told = reply_after(task, [], form.format(**w.common_words(task["plan"])))
        once = "names.sort" in task["ground_truth"]
        assert ("just once" if once else "entry of its own") in reply and not told, (form, reply)


@pytest.mark.parametrize("form", ["Which {nouns} are an exception to the rule?", "What are the exceptions?",
                                  "When does that rule not hold?", "Is there an exception to that?"])
def test_an_exception_that_is_asked_for_is_told(form):
    for task, fact in facts_with("except"):
        hidden = [each for each in task["facts"] if each["aspect"] in ("except", "extra")]
        last = [each["detail"] for each in task["facts"] if each["aspect"] in ("order", "group")]
        if len(hidden) == 1:
            reply, told = reply_after(task, [fact["needs"][0], *last], form.format(**w.common_words(task["plan"])))
            assert told == [fact["detail"]], (form, reply)


@pytest.mark.parametrize("form", ["So a result might read {line}?", "Like {line}, right?", "Would {line} be right?",
                                  "So two of them look like this: {line}"])
def test_an_example_of_the_result_is_answered_with_its_form(form):
    for task, fact in facts_with("format"):
        known = [each["detail"] for each in task["facts"] if each["aspect"] in ("format", "between")]
        names = ["Anna", "Bruno"] if task["plan"]["people"] else ["F38", "C12"]
        for shape in ("{n}: {v}", "{n} ({v})", "{v} {n}", "{n} = {v}", '["{n}", {v}]'):
            line = task["details"].get("between", ", ").join(shape.format(n=name, v=7) for name in names)
            line = f'"{line}"' if "between" in task["details"] else f"[{line}]"
            world = task | {"test_cases": {"1": str([{"key": name} for name in names])}}
            assert fact["reply"] in reply_after(world, known, form.format(line=line))[0], (form, line)


@pytest.mark.parametrize("form", ["Is the number the sum of {formula} over all {P}?",
                                  "So I add up {formula} for all {P}?",
                                  "So the result is {formula}, summed over the {P}?"])
def test_a_sum_over_a_kind_is_answered_with_the_formula(form):
    for task, fact in facts_with("formula"):
        if task["plan"]["shape"] == "total" and fact["term"] == task["plan"]["goal"]:
            told = [each["detail"] for each in task["facts"] if each["aspect"] in ("define", "formula")]
            formula = re.sub(r"[*]", " times ", task["details"][fact["detail"]])
            formula = formula.replace("+", " plus ").replace("-", " minus ")
            words = words_of(task, task["plan"]["kinds"][0])
            reply, _ = reply_after(task, told, form.format(formula=formula, **words))
            assert fact["reply"] in reply, reply


@pytest.mark.parametrize("form", [
    "Is there {a_noun} that you'd call {T} for some other reason?", "Could {a_noun} be {T} under other circumstances?",
    "Are there {nouns} that are {T} although they don't fulfil that?", "Are there any exceptions to what makes it {T}?",
    "Can {a_noun} ever be {T} even though the {f} isn't right?", "Are there {nouns} that you'd never call {T}?",
    "Are there cases where another rule decides whether it's {T}?",
    "Might there be situations in which {a_noun} is {T} despite the {f}?"])
def test_whether_there_are_others_is_no_case_but_asks_for_exceptions(form):
    wrong, count = [], Counter()
    for task, theme, name, key, limit, join, label, values, exception in kinds():
        words = words_of(task, name)
        question = form.format(T=words["T"], a_noun=w.a(words["noun"]), nouns=words["nouns"], f=key)
        known = [each["detail"] for each in task["facts"]
                 if each["detail"].startswith(f"{name}.") and each["aspect"] != "except"]
        reply, told = reply_after(task, known, question)
        count[exception[0]] += 1
        if told != [f"{name}.except"] * (exception[0] != "none"):
            wrong.append((question, reply, exception))
    assert not wrong and count["none"] > 9 and count.total() > count["none"] + 9, (len(wrong), count, wrong[:9])


@pytest.mark.parametrize("form", ["Does {a_noun} with a {f} of {n} count as {T}?", "Is {a_noun} with {f} {n} {T}?",
                                  "Would you call {a_noun} {T} if its {f} was {n}?"])
def test_a_case_gets_no_verdict_before_the_limit_is_told(form):
    for task, theme, name, key, limit, join, *_ in kinds():
        words = words_of(task, name)
        for n in (max(0, limit - 4), limit + 4):
            question = form.format(a_noun=w.a(words["noun"]), f=key, n=n, T=words["T"])
            reply, told = reply_after(task, [f"{name}.define"], question)
            assert told == [f"{name}.limit"] and reply == by_name(task)[told[0]]["reply"], (question, reply)


@pytest.mark.parametrize("form", ["Is it {formula} minus {other}?", "So {m} is {formula} plus {other}, right?",
                                  "I'd take {other} plus {formula} for the {m}. Is that correct?"])
def test_a_formula_with_a_key_too_many_is_answered_with_the_right_one(form):
    for task, fact in facts_with("formula"):
        keys = fact["values"]["field"]
        numbers = w.themes()[task["plan"]["theme"]].numbers
        other = next(each for each in numbers if each not in keys and each != fact["term"])
        formula = re.sub(r"^.*?\b(?=twice|\d|" + "|".join(keys) + ")", "", fact["reply"].rstrip(".").lower(), count=1)
        question = form.format(formula=formula, other=other, m=fact["term"])
        assert fact["reply"] in reply_after(task, [fact["detail"]], question)[0], question
        question = f"So the {other} isn't taken off the {fact['term']}, right?"
        about = [fact["reply"], *(settling(task, fact["term"], "extra") or no_exceptions(task, fact["term"]))]
        assert any(text in reply_after(task, [fact["detail"]], question)[0] for text in about), question


@pytest.mark.parametrize("form", ["How should {name} appear in it?", "How would {name} be written?",
                                  "Do you want something like \"{name} (4)\" or \"{name}: 4\"?",
                                  "What's the wording of an entry?"])
def test_how_an_entry_looks_is_asked_with_an_example(form):
    for task, fact in facts_with("format"):
        name = re.search(r"\": \"([A-Z]\d+)\"", task["problem_description"])[1]
        assert reply_after(task, [], form.format(name=name))[1] == ["format"], form


@pytest.mark.parametrize("before", ["OK - and ", "Thanks! Sorry, I'm a bit lost. ",
                                    "Got it, thank you. One more thing: ", "Alright. Next question: "])
def test_words_around_a_question_ask_nothing(before):
    for task, fact in facts_with("formula"):
        reply, told = reply_after(task, needed(task, fact["detail"]),
                                  f"{before}how do I work out the {fact['term']} from the figures?")
        assert told == [fact["detail"]] and not AGAIN.match(reply), (reply, fact["reply"])


@pytest.mark.parametrize("form", ["Is {a_term} a {who} who shows up in at least {n} {nouns} on the list?",
                                  "So {terms} are those {who}s who have at least {n} {nouns}, right?"])
def test_how_often_somebody_comes_is_answered_with_the_limit(form):
    count = 0
    for task, fact in facts_with("limit"):
        values, words = fact["values"], slots(task, fact)
        counted = "#" in task["details"][f"{fact['term']}.define"]
        if counted and values.get("number") and "in" in values.get("edge", []):
            reply, told = reply_after(task, [fact["detail"]], form.format(**words))
            assert fact["reply"] in reply and not told, (form, reply, fact)
            count += 1
    assert count > 2


@pytest.mark.parametrize("form", ["If {a} has no {nouns} left, should it still show up in the dictionary with 0?",
                                  "Should {a} that has none of those be in the dictionary at all?"])
def test_groups_without_any_are_left_out(form):
    for task, fact in facts_with("group"):
        words = w.common_words(task["plan"])
        reply, told = reply_after(task, ["group"], form.format(a=w.a(task["details"]["group"]), nouns=words["nouns"]))
        left_out = f"Those with no such {words['noun']} at all are left out. A total of 0 is like any other."
        assert reply == left_out and not told, (form, reply)


@pytest.mark.parametrize("form", ["So in that case it's just {value}?", "And is it really {value} then?"])
def test_a_check_of_what_was_just_told_is_answered(form):
    for task, fact in facts_with("empty"):
        [value] = [*fact["values"].get("word", []), *fact["values"].get("number", []), ""][:1]
        if value and value.isalnum():
            reply, told = reply_after(task, ["empty"], form.format(value=value))
            assert fact["reply"] in reply and not told, (form, reply, fact["reply"])


@pytest.mark.parametrize("form", ["So right on the limit, is one {T}?", "And with exactly the limit, is it still {T}?"])
def test_a_question_about_the_limit_itself_asks_for_the_edge(form):
    for task, fact in facts_with("edge"):
        reply, told = reply_after(task, needed(task, fact["detail"]), form.format(T=slots(task, fact)["term"]))
        assert told == [fact["detail"]], (form, reply)


@pytest.mark.parametrize("before", ["So we need the result for the {T} {nouns}. ",
                                    "How nice! So you'd like just the {T} ones. "])
def test_a_request_that_is_repeated_proposes_nothing(before):
    for task, fact in facts_with("define"):
        words = slots(task, fact)
        if fact["term"] in task["terms"] and not fact.get("needs"):
            request = before.format(T=words["term"], nouns=w.common_words(task["plan"])["nouns"])
            reply, told = reply_after(task, [], f'{request}What does "{words["term"]}" mean here?')
            assert told == [fact["detail"]] and reply == fact["reply"], (before, reply, fact["reply"])


@pytest.mark.parametrize("form", ["So I multiply {a} by {b} first and then take off {c}?",
                                  "So I take {c} off from {a} first, and then multiply by {b}?"])
def test_steps_in_words_are_answered_with_the_formula(form):
    for task, fact in facts_with("formula"):
        steps_of = (r"(\w+) (times|minus) (?:the )?(\w+)"
                    r"(?:, and all that (times) the (\w+)|,? (?:then )?(minus) (\w+)|)\W*$")
        found = re.search(steps_of, fact["reply"])
        if found and (found[4] or found[6]):
            a, b, c = (found[1], found[3], found[7]) if found[6] else (found[1], found[5], found[3])
            if "times" in (found[2], found[4]):
                assert fact["reply"] in reply_after(task, [fact["detail"]], form.format(a=a, b=b, c=c))[0], form


def test_the_order_of_a_table_makes_no_difference():
    for task, _ in facts_with("group"):
        if not any(fact["aspect"] == "order" for fact in task["facts"]):
            reply, told = reply_after(task, ["group"], "Does the order of the keys matter to you?")
            assert reply == "The order makes no difference." and not told, reply


def test_ties_by_the_alphabet_name_their_key():
    for way in ("a-z", "z-a"):
        assert all("{name" in text for text in w.wordings(way, "full"))


def test_a_word_of_the_rows_is_known_as_an_adjective():
    task = {"problem_description": 'A match: {"weather": "sun", "by": "app"}', "facts": [
        {"detail": "a", "aspect": "values", "reply": "Sun.", "values": {"word": ["sun", "app"]}}]}
    human = human_of(task)
    assert human.said("sunny matches")["word"] == {"sun"} and not human.said("apply happily")["word"]


@pytest.mark.parametrize("form", ["So one with exactly {n}: {T} or not?", "Exactly {n} - is it {T}, or not?"])
def test_or_not_asks_for_the_edge(form):
    for task, fact in facts_with("edge"):
        words = slots(task, fact)
        reply, told = reply_after(task, needed(task, fact["detail"]), form.format(n=words["n"], T=words["term"]))
        assert told == [fact["detail"]], (form, reply)


@pytest.mark.parametrize("form", ["Let me see if I got it: you want the result for the {T} ones. And what makes one {T}?",
                                  "Hi! For the {T} ones you'd like to know what I find. What does {T} mean?"])
def test_a_request_that_is_repeated_asks_nothing(form):
    for task, fact in facts_with("define"):
        if not fact.get("needs"):
            reply, told = reply_after(task, [], form.format(T=slots(task, fact)["term"]))
            assert (reply, told) == (fact["reply"], [fact["detail"]]), (form, reply)


def test_one_of_a_kind_of_rows_is_known_in_the_singular():
    task = {"problem_description": 'A lesson: {"level": "intermediates", "instrument": "drums"}', "facts": [
        {"detail": "a", "aspect": "values", "reply": "Those.", "values": {"word": ["intermediates", "drums"]}}]}
    assert human_of(task).said("an intermediate lesson on a drum")["word"] == {"intermediates", "drums"}


def test_an_empty_result_says_when():
    assert all("no {nouns} qualify" in text for text in w.wordings("empty", "full"))


@pytest.mark.parametrize("form", ["Is it {a} x ({b} - {c}), or ({a} x {b}) - {c}?",
                                  "So {a} times {b} minus {c}, or {a} times ({b} minus {c})?"])
def test_of_two_formulas_the_right_one_is_said(form):
    for task, fact in facts_with("formula"):
        found = re.search(r"(\w+) minus (?:the )?(\w+), and all that times the (\w+)\W*$", fact["reply"])
        other = re.search(r"(\w+) times (?:the )?(\w+), then minus (?:the )?(\w+)\W*$", fact["reply"])
        if found or other:
            b, c, a = found.groups() if found else (other[2], other[3], other[1])
            for told in (needed(task, fact["detail"]), [fact["detail"]]):
                assert fact["reply"] in reply_after(task, told, form.format(a=a, b=b, c=c))[0], form


@pytest.mark.parametrize("form", ["So one with exactly {n} {f} is already {T}?",
                                  "Then exactly {n} {f} would be {T}, I assume?"])
def test_a_claim_about_the_limit_itself_is_about_the_edge(form):
    for task, fact in facts_with("edge"):
        words = slots(task, fact)
        claim = form.format(n=words["n"], f=words["field"], T=words["term"])
        reply, told = reply_after(task, needed(task, fact["detail"]), claim)
        assert told == [fact["detail"]] and fact["reply"] in reply, (form, reply, fact["reply"])


@pytest.mark.parametrize("form", ["And what if fewer than {k} {nouns} qualify, do I just return a shorter list?",
                                  "If there are fewer than {k}, should I pad the list?"])
def test_with_too_few_there_are_just_those(form):
    for task, fact in facts_with("count"):
        message = form.format(k=fact["values"]["number"][0], nouns=w.common_words(task["plan"])["things"])
        assert reply_after(task, ["count"], message)[0].endswith("If there are fewer, just those that there are.")


def test_what_a_formula_comes_to_is_answered_with_the_formula():
    for task, fact in facts_with("formula"):
        case = ", ".join(f"{key} {9 - n}" for n, key in enumerate(fact["values"]["field"]))
        told = [other["detail"] for other in task["facts"]]
        assert fact["reply"] in reply_after(task, told, f"So with {case} it counts as 20?")[0], case


@pytest.mark.parametrize("form", ["Does {formula} apply to all {nouns}, or do some work differently?",
                                  "Is it {formula} for every {noun}, or are there exceptions?"])
def test_exceptions_to_a_formula_are_its_own(form):
    count = 0
    for task, fact in facts_with("formula"):
        found = re.search(r"(?<!,) (\w+ (?:times|plus|minus) \w+)\.$", fact["reply"])
        whole = found and len(fact["values"]["field"]) == 2 and f"{fact['term']}.extra" not in by_name(task)
        if whole and any(other["aspect"] == "except" for other in task["facts"]):
            question = form.format(formula=found[1], **w.common_words(task["plan"]))
            reply, told = reply_after(task, [fact["detail"]], question)
            assert not told, (form, reply)
            count += 1
    assert count


def test_a_quoted_hedge_asks_for_the_exception_of_its_term():
    """The definition goes by a measure, so the question names the measure; the exception is the kind's."""
    count = 0
    for task, fact in facts_with("except"):
        define = by_name(task)[f"{fact['term']}.define"]
        hedge = re.match(r"(Normally|Usually|As a rule|Most of the time)", define["reply"])
        measure = [key for key in define["values"].get("field", []) if f"{key}.formula" in by_name(task)]
        if hedge and measure:
            told = [define["detail"], f"{measure[0]}.formula"]
            if not any(hedge[0] in by_name(task)[detail]["reply"] for detail in told[1:]):
                message = f'You said that "{hedge[0].lower()}" you go by the {measure[0]}; when is it different?'
                reply, new = reply_after(task, told, message)
                assert fact["detail"] in new, (message, reply, fact["reply"])
                count += 1
    assert count


# ---- Messages of several sentences


@pytest.mark.parametrize("end", [" Is that right?", " Would you say so, too?", " Did I get that right?"])
def test_a_proposal_may_end_with_a_sentence_of_its_own(end):
    """It says the same as "..., right?"."""
    for task, fact in facts_with("define")[:60]:
        told = [fact["detail"]]
        words = words_of(task, fact["term"])
        proposal = "So it's {T} if the {key} is 20".format(key=fact["values"]["field"][0], **words)
        replies = [reply_after(task, told, text)[0] for text in (f"{proposal}.{end}", f"{proposal}, right?")]
        assert AGAIN.sub("", replies[0]) == AGAIN.sub("", replies[1])


@pytest.mark.parametrize("form", ["I'd give you [\"A12\", \"A07\"]. Would you say so, too?",
                                  "So the first two entries would be A12 and A07, right?"])
def test_an_example_of_the_result_is_answered_with_order_ties_and_number(form):
    for task, fact in facts_with("ties"):
        result = [each for each in task["facts"] if each["aspect"] in ("order", "ties", "count")]
        known = [each["detail"] for each in task["facts"] if each["aspect"] in ("order", "ties", "count", "format")]
        reply, told = reply_after(task, known, form)
        assert all(each["reply"] in reply for each in result) and not told, (form, reply)


@pytest.mark.parametrize("form", [
    "So I divide by the number of {T} {nouns}, not by all of them. Is that right?",
    "Is the average over the {T} {nouns} only?", "What's the divisor of the average?"])
def test_what_an_average_is_over_is_settled(form):
    count = 0
    for task in drafts():
        if task["plan"]["shape"] == "average":
            words = words_of(task, task["plan"]["kinds"][0])
            reply, told = reply_after(task, [], form.format(**words))
            assert "I divide by how many these are" in reply and not told, (form, reply)
            count += 1
    assert count > 9


@pytest.mark.parametrize("suggestion", ["For instance, is it 1000 or more?", "Maybe at least 1000?",
                                        "Perhaps it's something that only you can know?"])
def test_a_suggestion_after_a_question_is_no_second_one(suggestion):
    for task, theme, name, key, *_ in some_kinds():
        words = words_of(task, name)
        reply, told = reply_after(task, [], f"What do you mean by {words['T']} {words['nouns']}? {suggestion}")
        assert told == [f"{name}.define"] and reply == by_name(task)[told[0]]["reply"], (suggestion, reply)


def test_who_restates_a_formula_and_asks_for_a_limit_gets_that():
    """What an example comes to is no limit, and the limit of another term is no aside."""
    count = 0
    for task, fact in facts_with("limit"):
        formula = [each for each in task["facts"]
                   if each["aspect"] == "formula" and fact["needs"][0] in each.get("needs", [])]
        if formula and "number" in fact["values"]:
            message = f"So it's {formula[0]['term']} that counts, which makes 9. Where do you set the bar for that?"
            told = reply_after(task, [formula[0]["detail"]], message)[1]
            assert told == [fact["detail"]], (message, told)
            count += 1
    assert count > 5


@pytest.mark.parametrize("form", ["I noticed the little word '{hedge}'. Are some {nouns} worth something else?",
                                  "Does '{hedge}' mean that some {nouns} are treated differently?", "Why {hedge}?",
                                  "Why {hedge}: what would make it exactly right?", "What do you mean by {hedge}?",
                                  "Is it only {hedge} so?"])
def test_a_hedge_that_is_taken_up_asks_for_its_exception(form):
    count = 0
    for task, fact in facts_with("extra"):
        base = by_name(task)[fact["needs"][0]]
        hedge = FORMULA_HEDGE.match(base["reply"])
        if hedge:
            words = w.common_words(task["plan"])
            told = reply_after(task, [base["detail"]], form.format(hedge=hedge[0].lower(), **words))[1]
            assert told == [fact["detail"]], (form, told)
            count += 1
    assert count > 5


@pytest.mark.parametrize("form", ["If two {names} have the same total {goal}, who is listed first?",
                                  "When two of them have an equal {goal}, which one leads?"])
def test_ties_in_a_measure_are_ties(form):
    """The condition says what is asked, whatever term it names."""
    count = 0
    for task, fact in facts_with("ties"):
        order = next(each for each in task["facts"] if each["aspect"] == "order")
        goal = order.get("values", {}).get("field", [""])[0]
        if f"{goal}.formula" in by_name(task):
            words = w.common_words(task["plan"]) | {"goal": task["terms"][goal]["names"][0]}
            told = reply_after(task, [order["detail"], f"{goal}.formula"], form.format(**words))[1]
            assert told == ["ties"], (form, words, told)
            count += 1
    assert count > 5


def test_the_number_of_a_limit_asks_for_its_edge():
    for task, fact in facts_with("edge"):
        limit = by_name(task)[fact["needs"][0]]
        words = words_of(task, fact["term"])
        number = limit["values"]["number"][0]
        told = reply_after(task, [limit["detail"]], f"Does {number} still make one {words['T']}?")[1]
        assert told == [fact["detail"]], (number, words["T"], told)


@pytest.mark.parametrize("form", [
    "What about one that has {nouns} in the list, but no {T} ones: should it appear with the number 0, or not appear?",
    "If there are {nouns} of a kind, but none of them is {T}, shall I leave the kind out, or show it with a 0?"])
def test_a_group_is_left_out_or_shown_with_a_zero(form):
    for task, fact in facts_with("group"):
        words = words_of(task, task["plan"]["kinds"][0])
        reply, told = reply_after(task, ["group"], form.format(**words))
        assert "left out" in reply and not told, (form, reply)


def test_none_at_all_is_an_empty_result():
    count = Counter()
    for task, fact in facts_with("empty"):
        if task["plan"]["shape"] in ("line", "rows", "total", "average"):
            words = words_of(task, task["plan"]["kinds"][0])
            message = "And what should it say on a day without any {T} {nouns}?".format(**words)
            count[reply_after(task, [f"{task['plan']['kinds'][0]}.define"], message)[1] == ["empty"]] += 1
    assert count[True] >= 0.9 * count.total() and count.total() > 20, count


def test_who_asks_again_for_exceptions_hears_that_there_are_no_others():
    for task, fact in facts_with("except"):
        words = words_of(task, fact["term"])
        message = "Are there any exceptions to what counts as {T}?".format(**words)
        reply, told = reply_after(task, [each["detail"] for each in task["facts"]], message)
        assert fact["reply"] in reply and "no other exceptions" in reply and not told, reply


@pytest.mark.parametrize("form", [
    "There's no such field as {term}, so how do you work it out?",
    "Let me ask about the {term} first, since there's no such field in the {noun}. How do you calculate it, please?"])
def test_what_the_rows_lack_is_no_empty_result(form):
    for task, fact in facts_with("formula"):
        if not fact.get("needs"):
            words = w.common_words(task["plan"]) | {"term": task["terms"][fact["term"]]["names"][0]}
            assert reply_after(task, [], form.format(**words))[1] == [fact["detail"]], words


def test_thanks_for_no_exceptions_ask_for_none():
    for task, fact in facts_with("order"):
        name = task["terms"][fact["term"]]["names"][0]
        message = f"Good, no exceptions then. Next, the {name} ones: how do I measure that?"
        reply, told = reply_after(task, [], message)
        assert "exceptions" not in reply and told, (message, reply)


def test_who_checks_the_result_hears_which_word_was_not_asked_about():
    count = 0
    for task, fact in facts_with("define"):
        others = [each["detail"] for each in task["facts"] if each.get("term") != fact["term"]]
        related = any(fact["detail"] in needed(task, name) for name in others)
        if fact.get("needs") or related:
            continue
        reply, told = reply_after(task, others, "So with 3 of them, the answer would be 12, right?")
        assert told or words_of(task, fact["term"])["T"] in reply, (fact["detail"], reply)
        count += 1
    assert count > 20


@pytest.mark.parametrize("form", ["Is there any exception, such as a {noun} for which another rule applies?",
                                  "Does that hold for every {T} {noun}, or are there exceptions to it?"])
def test_exceptions_that_are_asked_for_by_that_name_are_told_or_denied(form):
    for task, fact in facts_with("define"):
        words = words_of(task, fact["term"])
        reply, told = reply_after(task, [fact["detail"]], form.format(**words))
        hidden = [each["detail"] for each in task["facts"] if each["aspect"] in ("except", "extra")]
        assert "xception" in reply or set(told) & set(hidden) or "could ask" in reply or "yet" in reply, (form, reply)


@pytest.mark.parametrize("form", ["For which {nouns} does that formula not hold?", "Does it ever come out differently?",
                                  "Is that ever counted differently, say for a certain kind of {noun}?"])
def test_where_a_formula_does_not_hold_is_its_extra(form):
    for task, fact in facts_with("extra"):
        told = reply_after(task, fact["needs"], form.format(**w.common_words(task["plan"])))[1]
        assert told == [fact["detail"]], (form, told)


@pytest.mark.parametrize("form", ["Should all of the {nouns} be in the list, or only the first few?",
                                  "How many would you like to see, all of them or only a certain number?"])
def test_whether_all_are_wanted_is_a_question_about_their_number(form):
    for task, fact in facts_with("order"):
        reply, told = reply_after(task, [fact["detail"]], form.format(**w.common_words(task["plan"])))
        assert told == ["count"] or re.search("ll of them|[Aa]s I said", reply), (form, reply)


@pytest.mark.parametrize("form", ["How often is often enough, and is that over all {nouns}, or only the {other} ones?",
                                  "Is that counted over all {nouns}, or only the {other} ones?"])
def test_all_or_only_some_is_about_the_topic(form):
    count = 0
    for task, fact in facts_with("limit"):
        kinds = [kind for kind in task["plan"]["kinds"] if kind != fact["term"]]
        if kinds and "the whole list" in fact["reply"] and not fact["values"].get("mean"):
            other = words_of(task, kinds[0])["T"]
            reply, told = reply_after(task, fact["needs"], form.format(other=other, **w.common_words(task["plan"])))
            assert f"{kinds[0]}.define" not in told and "whole list" in reply, (form, reply)
            count += 1
    assert count > 3


@pytest.mark.parametrize("form", ['Great. Does "{T}" simply mean the largest one, or do you measure it differently?',
                                  '"{T}": is that just the number, or do you reckon it some other way?'])
def test_the_meaning_of_a_word_comes_before_its_exceptions(form):
    for task, fact in facts_with("order"):
        words = {"T": task["terms"][fact["term"]]["names"][0]}
        assert reply_after(task, [], form.format(**words))[1] == [fact["detail"]], words


def test_a_condition_that_is_known_decides_nothing():
    count = 0
    for task, fact in facts_with("values"):
        limit = by_name(task).get(f"{fact['term']}.limit")
        key = by_name(task)[f"{fact['term']}.define"]["values"]["field"]
        if limit and limit["values"].get("number") and len(key) == 2:
            words, number, label = words_of(task, fact["term"]), limit["values"]["number"][0], key[1]
            told = reply_after(task, [limit["detail"]], f"And which {label} makes it {words['T']}, if it has {number}?")[1]
            assert told == [fact["detail"]], (words["T"], number, told)
            count += 1
    assert count > 3


def test_none_of_them_is_an_empty_result():
    for task, fact in facts_with("empty"):
        words = words_of(task, task["plan"]["kinds"][0])
        message = "If there are {nouns} on the list, but none of them is {T}, should I return -1 or 0?".format(**words)
        assert reply_after(task, [f"{task['plan']['kinds'][0]}.define"], message)[1] == ["empty"], message


def test_exceptions_to_the_limit_of_a_key_are_those_of_its_kind():
    for task, fact in facts_with("limit"):
        keys = by_name(task)[f"{fact['term']}.define"]["values"]["field"]
        exception = by_name(task).get(f"{fact['term']}.except")
        if len(keys) == 1 and "number" in fact["values"]:
            noun = w.common_words(task["plan"])["noun"]
            message = f"Is there some {noun} for which the limit of the {keys[0]} is different?"
            reply, told = reply_after(task, [fact["detail"]], message)
            assert told == [exception["detail"]] if exception else words_of(task, fact["term"])["T"] in reply, reply


@pytest.mark.parametrize("form", ["What is the least that still counts as {T}?", "How much must it be at the very least?",
                                  "What is the limit, and is that number itself included?"])
def test_who_asks_for_the_least_that_counts_hears_whether_the_limit_does(form):
    for task, fact in facts_with("edge"):
        limit = by_name(task)[fact["needs"][0]]
        told = reply_after(task, limit["needs"], form.format(**words_of(task, fact["term"])))[1]
        assert told == [limit["detail"], fact["detail"]] or set(told) <= {*needed(task, fact["detail"])}, (form, told)
        assert told, form


def test_the_word_mostly_in_quotes_asks_for_what_is_different():
    for task, fact in facts_with("extra"):
        base = by_name(task)[fact["needs"][-1]]
        hedge = FORMULA_HEDGE.match(base["reply"])
        if hedge and base["aspect"] == "formula":
            name = task["terms"][fact["term"]]["names"][0]
            message = f'"{hedge[0]}" - when is the {name} different, and by how much?'
            assert reply_after(task, [base["detail"]], message)[1] == [fact["detail"]], message


def test_which_entry_holds_a_word_is_its_meaning():
    for task, fact in facts_with("group"):
        name = task["terms"][fact["term"]]["names"][0]
        message = f"You'd like it for each {name}: which entry holds the {name}, please?"
        assert reply_after(task, [], message)[1] == [fact["detail"]], message


@pytest.mark.parametrize("form", ["Is it really every one, or do you leave some out?",
                                  "Are there any {nouns} that should be left out altogether?"])
def test_what_is_left_out_is_an_exception_or_there_is_none(form):
    for task, fact in facts_with("define"):
        reply, told = reply_after(task, [fact["detail"]], form.format(**words_of(task, fact["term"])))
        says_so = re.search("exceptions|could ask|said yet", reply)    # a measure that was not asked about may have one
        assert told and told[0].endswith((".except", ".extra")) or says_so, (form, reply)


def test_who_is_happy_to_help_asks_for_nothing_helpful():
    for task, fact in facts_with("define"):
        words = words_of(task, fact["term"])
        if fact["term"] in task["plan"]["kinds"] and not fact.get("needs"):
            message = "What a nice cause, I'd be happy to help. When does one count as {T}?".format(**words)
            assert reply_after(task, [], message)[1] == [fact["detail"]], message


def test_two_details_of_different_things_are_both_labelled():
    for task, fact in facts_with("ties"):
        order = next(each for each in task["facts"] if each["aspect"] == "order")
        if "between" in by_name(task):
            message = "I'd write \"Dino, Emma\", with commas. And if two are equal, who comes first?"
            reply, told = reply_after(task, [order["detail"]], message)
            assert set(told) == {"between", "ties"} and reply.count("As for") == 2, reply


def has_hidden(task, term):
    """Whether a term, or a measure that it goes by, has an exception or an extra."""
    keys = by_name(task).get(f"{term}.define", {}).get("values", {}).get("field", [])
    terms = {term, *(each for each, about in task["terms"].items() if set(keys) & set(about["names"]))}
    return any(each.get("term") in terms for each in task["facts"] if each["aspect"] in ("except", "extra"))


@pytest.mark.parametrize("form", ["Is every {T} {noun} counted, or does it have to meet another condition as well?",
                                  "So that's all it takes to be {T}, whatever the rest of the {noun} says?",
                                  "And there's no special rule for some {nouns} that makes them {T}?"])
def test_who_asks_for_exceptions_beside_what_is_known_hears_that_there_are_none(form):
    count = 0
    for task, fact in facts_with("define"):
        if fact["term"] in task["plan"]["kinds"] and not has_hidden(task, fact["term"]):
            mine = [each["detail"] for each in task["facts"] if each.get("term") == fact["term"]]
            reply, told = reply_after(task, mine, form.format(**words_of(task, fact["term"])))
            assert told or re.search("exceptions|all about|no more", reply), (form, reply)
            count += 1
    assert count > 20


@pytest.mark.parametrize("form", ["So I simply add up {formula} over all of the {T} {nouns}, is that right?",
                                  "Is the total just the sum of {formula} over all {T} {nouns}?"])
def test_who_adds_up_hears_that_it_is_the_sum(form):
    count = 0
    for task, fact in facts_with("formula"):
        keys = fact["values"]["field"]
        if "return sum(" in task["ground_truth"] and "whole" not in task["ground_truth"] and len(keys) == 2:
            words = words_of(task, task["plan"]["kinds"][0]) | {"formula": f"{keys[0]} and {keys[1]}"}
            known = needed(task, fact["detail"])
            reply, told = reply_after(task, [*known, fact["detail"]], form.format(**words))
            assert told or "it's the sum" in reply, (form, reply)
            count += 1
    assert count > 3


@pytest.mark.parametrize("form", ["If {both} are both equal, what decides then?",
                                  "And what decides if both the {both} are the same?",
                                  "If even that is the same, what decides?"])
def test_after_a_tie_there_are_no_more(form):
    for task, fact in facts_with("ties"):
        order = next(each for each in task["facts"] if each["aspect"] == "order")
        keys = [*order["values"].get("field", []), *fact["values"].get("field", [])]
        if len(set(keys)) == 2:
            reply, _ = reply_after(task, [order["detail"], "ties"], form.format(both=" and the ".join(keys)))
            assert "More ties than that" in reply, (form, reply)


@pytest.mark.parametrize("form", ["If fewer than {k} qualify, or none at all, what should I return?",
                                  "If only one {noun} qualifies, I'd return just that one, and an empty list if none does?"])
def test_too_few_and_none_are_answered_together(form):
    count = 0
    for task, fact in facts_with("count"):
        if "empty" not in by_name(task) and fact["values"].get("number"):
            words = w.common_words(task["plan"]) | {"k": fact["values"]["number"][0]}
            reply, _ = reply_after(task, ["count"], form.format(**words))
            assert "fewer" in reply and ("nothing" in reply or "empty" in reply), (form, reply)
            count += 1
    assert count > 3


def test_what_is_known_and_asked_is_said_beside_what_is_proposed():
    for task, fact in facts_with("count"):
        number, limit = fact["values"].get("number"), task["plan"]["kinds"][0] + ".limit"
        if number and limit in by_name(task):
            words = words_of(task, task["plan"]["kinds"][0])
            message = "OK, the list has at most {k} entries. For \"{T}\": what is the limit?".format(k=number[0], **words)
            known = [*needed(task, limit), limit]
            reply, _ = reply_after(task, known, message)
            assert by_name(task)[limit]["reply"] in reply, reply


def test_names_that_are_asked_for_are_told_with_who_they_are():
    count = 0
    for task, fact in facts_with("names"):
        define, words = by_name(task)[f"{fact['term']}.define"], words_of(task, fact["term"])
        words |= {"who": w.themes()[task["plan"]["theme"]].who}
        for form in ("Who are your {T}, please? Could you give me their names?", "Who are your {T}?",
                     "Which {who}s are your {T}?"):
            told = reply_after(task, [], form.format(**words))[1]
            assert set(told) == {define["detail"], fact["detail"]}, (form, words["T"])
        for form in ("What do you mean by {T}?", "How do I recognise a {T}?"):
            told = reply_after(task, [], form.format(**words))[1]
            assert told == [define["detail"]], "only what is asked for"
        count += 1
    assert count > 3


def test_which_key_has_a_word_and_how_it_is_spelled():
    count = 0
    for task, fact in facts_with("values"):
        word = fact["values"]["word"][0]
        found = re.search(rf'\["(\w+)"\] (==|!=|in|not in) \[?("\w+", )*"{word}"', task["ground_truth"], re.IGNORECASE)
        if found:
            message = f"Is '{word}' given in the {found[1]} field, and is it spelled exactly like that?"
            reply, _ = reply_after(task, [*needed(task, fact["detail"]), fact["detail"]], message)
            assert re.search(rf'the {found[1]} says .*"{word}"', reply, re.IGNORECASE), (message, reply)
            count += 1
    assert count > 20


@pytest.mark.parametrize("form", ["Is there anything that I've missed?", "Did I miss anything?"])
def test_whether_something_was_missed_asks_for_no_exceptions(form):
    for task, fact in facts_with("empty"):
        everything = [each["detail"] for each in task["facts"]]
        reply, _ = reply_after(task, everything, f"So it's \"-\" for nothing. {form}")
        assert "exceptions" not in reply, reply


def test_a_case_and_whether_it_is_of_a_kind_are_one_question():
    for task, fact in facts_with("edge"):
        limit = by_name(task)[fact["needs"][0]]
        number, keys = limit["values"].get("number"), by_name(task)[limit["needs"][0]]["values"]["field"]
        if number and len(keys) == 1 and keys[0] in task["problem_description"]:
            words = words_of(task, fact["term"])
            message = "Say there is one with {n} {key}. Is that {noun} {T} or not?".format(n=number[0], key=keys[0], **words)
            known = [*needed(task, fact["detail"]), fact["detail"]]
            assert fact["reply"] in reply_after(task, known, message)[0], message


@pytest.mark.parametrize("form", ["How high must the {key} be: from 1000 on, or more than some other number?",
                                  "From what {key} on, inclusive or not?"])
def test_a_limit_is_asked_for_with_its_key(form):
    count = 0
    for task, fact in facts_with("limit"):
        define = by_name(task)[fact["needs"][0]]
        if len(define["values"]["field"]) == 1 and define["values"].get("end") == ["high"]:
            known = [*needed(task, fact["detail"])]
            formula = [each["detail"] for each in task["facts"] if each["aspect"] == "formula"]
            told = reply_after(task, [*formula, *known], form.format(key=define["values"]["field"][0]))[1]
            assert fact["detail"] in told, (form, told)
            count += 1
    assert count > 3


def test_what_is_added_up_is_the_measure_of_the_request():
    for task, fact in facts_with("formula"):
        if not fact.get("needs") and "return sum(" in task["ground_truth"]:
            name = task["terms"][fact["term"]]["names"][0]
            for message in ("So it is a sum. But which quantity should I add up for them, please?",
                            f'So it is a sum. Which number would one of them add to the total "{name}"?'):
                assert fact["detail"] in reply_after(task, [], message)[1], message


@pytest.mark.parametrize("form", ["Which of the {key}s mean that the {noun} is {T}?", "Which {key} makes the {noun} {T}?"])
def test_the_noun_order_is_no_order(form):
    count = 0
    for task, fact in facts_with("values"):
        define = by_name(task)[f"{fact['term']}.define"]
        if define["values"].get("field") and len(define["values"]["field"]) == 1:
            words = words_of(task, fact["term"]) | {"key": define["values"]["field"][0]}
            assert reply_after(task, [define["detail"]], form.format(**words))[1] == [fact["detail"]], (form, words)
            count += words["noun"] == "order"
    assert count > 0


def test_which_figure_stands_beside_a_name_is_the_form_of_an_entry():
    for task, fact in facts_with("format"):
        order = next((each for each in task["facts"] if each["aspect"] == "order"), None)
        if order and order["values"].get("field"):
            key = order["values"]["field"][0]
            message = f"Which figure goes with each {w.common_words(task['plan'])['noun']}: the {key} or something else?"
            assert reply_after(task, [order["detail"]], message)[1] == ["format"], message


def test_a_detail_of_rounding_is_about_rounding():
    for task, fact in facts_with("round"):
        limit = f"{task['plan']['kinds'][0]}.limit"
        known = [limit] if limit in by_name(task) else []
        assert reply_after(task, known, "How do you round it, especially when it ends in exactly .5?")[1] == ["round"]


def test_both_limits_of_an_exception_are_answered_together():
    count = 0
    for task, fact in facts_with("except"):
        number, limit = fact["values"].get("number"), by_name(task).get(f"{fact['term']}.limit")
        edge = by_name(task).get(f"{fact['term']}.edge")
        if number and edge and limit["values"].get("number"):
            words = words_of(task, fact["term"]) | {"n": limit["values"]["number"][0], "m": number[0]}
            message = "Does exactly {n} count as {T}, and exactly {m} where the exception applies?".format(**words)
            reply, told = reply_after(task, [limit["detail"], fact["detail"]], message)
            assert told == [edge["detail"]] and f"{number[0]}, exactly {number[0]}" in reply, (message, reply)
            count += 1
    assert count > 3


@pytest.mark.parametrize("form", ["What stands between the entries, and how many would you like to see?",
                                  "How many do you want at most, and how are they separated?"])
def test_that_all_are_wanted_is_said_with_what_stands_between(form):
    count = 0
    for task, fact in facts_with("between"):
        if "count" not in by_name(task):
            reply, told = reply_after(task, fact.get("needs") or [], form)
            assert told == ["between"] and " all of them" in reply.lower(), (form, reply)
            count += 1
    assert count > 3


ALWAYS_ADDED = ["For which {nouns} is the {key} counted, too: always, or only in certain cases?",
                "Do I add the {key} for every {noun}, or only for certain ones?", "Are there any exceptions for the {name}?"]


@pytest.mark.parametrize("form", ALWAYS_ADDED)
def test_what_holds_for_all_is_no_exception(form):
    """"Basically I take fee plus reminders. I always add the renewals as well.", and no word of other exceptions."""
    count = 0
    more = islice(f.draw_tasks("test", "full", 7), 900)
    for task, fact in [(task, fact) for task in more for fact in task["facts"] if fact["aspect"] == "extra"]:
        values = fact["values"]
        if "word" not in values and values.get("field"):
            base = by_name(task)[f"{fact['term']}.formula"]
            assert re.match("Mainly|Basically|Roughly", base["reply"]), base["reply"]
            words = w.common_words(task["plan"]) | {"key": values["field"][0], "name": fact["term"]}
            reply, _ = reply_after(task, [base["detail"], fact["detail"]], form.format(**words))
            assert "always" in reply and "other exceptions" not in reply and "the whole" not in reply, reply
            count += 1
    assert count > 5


@pytest.mark.parametrize("form", ['You say "{hedge}": when is it worked out differently?', "{hedge}? What else goes in?",
                                  "Is the {name} just that, or is there something else?", "What else besides that?",
                                  "What is the full formula for the {name}?"])
def test_a_formula_that_is_not_all_leads_to_the_rest(form):
    for task, fact in facts_with("extra"):
        base = by_name(task)[f"{fact['term']}.formula"]
        message = form.format(hedge=base["reply"].split()[0].lower(), name=fact["term"])
        assert reply_after(task, [base["detail"]], message)[1] == [fact["detail"]], (message, base["reply"])


@pytest.mark.parametrize("form", ["Let me check: {a} {noun} {phrase} with {n} {key} is {T}, agreed?",
                                  "So with {n} {key}, one {phrase} would be {T}, right?",
                                  "Would one {phrase} with {n} {key} be {T}?"])
def test_a_case_that_an_exception_meets_brings_it_up(form):
    """Else a false example would be left standing."""
    count = 0
    for task, fact in facts_with("except"):
        define, (_, label, word, *_) = by_name(task)[f"{fact['term']}.define"], task["details"][fact["detail"]]
        keys = define["values"]["field"]
        if len(keys) == 1 and keys[0] in task["problem_description"]:
            words = words_of(task, fact["term"], label, word) | {"n": 31, "key": keys[0]}
            known = [each["detail"] for each in task["facts"] if each["detail"] != fact["detail"]]
            reply, told = reply_after(task, known, form.format(a="a", **words))
            assert told == [fact["detail"]], (form.format(a="a", **words), reply)
            count += 1
    assert count > 5


def test_a_quoted_reply_is_said_again():
    count = 0
    for task, fact in facts_with("ties"):
        phrase = re.search(r"more of those \w+", fact["reply"])
        kind = next((each for each in task["facts"] if each["aspect"] in ("limit", "values")), None)
        if phrase and kind:
            message = f"When you say '{phrase[0]}', do you mean all of them?"
            known = [*fact.get("needs", []), fact["detail"], *needed(task, kind["detail"]), kind["detail"]]
            assert fact["reply"] in reply_after(task, known, message)[0], message
            count += 1
    assert count > 2


def test_the_figure_of_a_case_goes_by_its_measure():
    """"What is the cost with a price of 20: 40 or 60?" is not about the limit."""
    for task, fact in facts_with("formula"):
        key = fact["values"]["field"][0]
        message = f"What is the {fact['term']} of one with a {key} of 30 and all else 1: 92 or 96?"
        known = [detail for each in task["facts"] for detail in [each["detail"]] if each["aspect"] not in ("round", "empty")]
        assert fact["reply"] in reply_after(task, known, message)[0], message


def test_no_exceptions_are_denied_of_each_that_is_named():
    count = 0
    for task, fact in facts_with("extra"):
        for define in task["facts"]:
            term = define.get("term")
            by_it = define["aspect"] == "define" and fact["term"] in define["values"].get("field", [])
            if by_it and f"{term}.except" not in by_name(task):
                message = "Are there any that are {T}, or not {T}, regardless of their {m}?".format(
                    m=fact["term"], **words_of(task, term))
                known = [each["detail"] for each in task["facts"]]
                reply, _ = reply_after(task, known, message)
                assert any(text in reply for text in no_exceptions(task, term)), (message, reply)
                count += 1
    assert count > 5


@pytest.mark.parametrize("form", ["If two of them are equal in both figures, by the alphabet or something else?",
                                  "And if two {names} are the same in both the {key} and the number, who leads?"])
def test_more_ties_in_both_figures(form):
    for task, fact in facts_with("ties"):
        order = next(each for each in task["facts"] if each["aspect"] == "order")
        key = (order.get("values", {}).get("field") or ["total"])[0]
        message = form.format(key=key, **w.common_words(task["plan"]))
        reply, _ = reply_after(task, [order["detail"], "ties"], message)
        assert "More ties than that won't come up." in reply, (message, reply)


@pytest.mark.parametrize("form", ["So the key is that. Should one appear in the dictionary even if it has no such {noun}?",
                                  "Is one listed, even when none of its {nouns} counts?"])
def test_groups_without_any_are_left_out(form):
    for task, fact in facts_with("group"):
        reply, _ = reply_after(task, [fact["detail"]], form.format(**w.common_words(task["plan"])))
        assert "left out" in reply, reply


def test_a_verb_of_the_request_is_named_as_it_stands_there():
    """"what they come to" is no "come"."""
    count = 0
    for task, fact in facts_with("formula"):
        verb = re.search(r"what .* (come to|bring in)\b", task["problem_description"].split("{")[0])
        if verb and not fact.get("needs"):
            for message, name in ((f'What do you mean by "{verb[1]}"?', verb[1]), (f"And the {fact['term']}?", fact["term"])):
                reply, _ = reply_after(task, [fact["detail"]], f"{message} And what should I say if there are none?")
                labels = re.findall(r'about "([^"]+)"', reply)
                assert set(labels) <= {name}, (message, reply)
                count += 1
    assert count


def test_how_an_entry_and_its_figure_are_written():
    for task, fact in facts_with("format"):
        order = next((each for each in task["facts"] if each["aspect"] == "order"), None)
        if order and order["values"].get("field"):
            message = "How is one {noun} and its figure written, e.g. for one with 6 {key}?".format(
                key=order["values"]["field"][0], **w.common_words(task["plan"]))
            assert reply_after(task, [order["detail"]], message)[1] == ["format"], message


@pytest.mark.parametrize("form", ["Is it twice ({f}), then minus the rest, or twice the whole {m}?",
                                  "Do I take twice the whole {m}, or twice the {key} alone?"])
def test_what_is_doubled_is_the_whole(form):
    count = 0
    for task, fact in facts_with("extra"):
        if fact["values"].get("op") == ["*"]:
            base = by_name(task)[f"{fact['term']}.formula"]
            keys = base["values"]["field"]
            message = form.format(f=" times ".join(keys), m=fact["term"], key=keys[0])
            reply, _ = reply_after(task, [base["detail"], fact["detail"]], message)
            assert "The adjustment goes for the whole" in reply, (message, reply)
            count += 1
    assert count > 1


def test_up_to_how_many_asks_for_a_limit_where_nothing_is_rounded():
    count = 0
    for task, fact in facts_with("limit"):
        define = by_name(task)[fact["needs"][0]]
        if "round" not in by_name(task) and len(define["values"]["field"]) == 1 and "low" in define["values"]["end"]:
            message = f"Up to how many {define['values']['field'][0]}, inclusive?"
            formula = [each["detail"] for each in task["facts"] if each["aspect"] == "formula"]
            told = reply_after(task, [*formula, define["detail"]], message)[1]
            assert fact["detail"] in told, (message, told)
            count += 1
    assert count > 3


@pytest.mark.parametrize("form", ["Okay, and how is the {t} worked out from the fields?", "What is the {t}?",
                                  "What's {t}, and how high must it be?"])
def test_the_formula_of_what_a_kind_goes_by_is_told(form):
    for task, fact in facts_with("formula"):
        kind = next((each for each in task["facts"] if each["aspect"] == "define"
                     and fact["term"] in each["values"].get("field", [])), None)
        if kind:
            message = form.format(t=fact["term"])
            assert reply_after(task, [kind["detail"]], message)[1] == [fact["detail"]], message


@pytest.mark.parametrize("form", ["Is there any other condition that a {noun} has to meet to be {T}, or is it only {list}?",
                                  "Is there some other reason by which a {noun} may be {T}?"])
def test_other_conditions_are_exceptions(form):
    count = 0
    for task, fact in facts_with("values"):
        if f"{fact['term']}.except" not in by_name(task) and "between" in by_name(task):
            words = words_of(task, fact["term"]) | {"list": " and ".join(fact["values"]["word"])}
            known = [each["detail"] for each in task["facts"]]
            reply, _ = reply_after(task, known, form.format(**words))
            none = [*no_exceptions(task, fact["term"]), "That's all about", "There's no more to"]
            assert any(text in reply for text in none), (form.format(**words), reply)
            count += 1
    assert count > 3


@pytest.mark.parametrize("form", [
    "What's the limit, and does the limit count?", "What's the limit, and does that very number count?",
    "What's the limit, and do I compare with > or >=?", "What's the limit, with or without that number?",
    "Where do you draw the line, and is a {noun} right on the limit {T}?"])
def test_a_limit_and_whether_it_counts_are_told_together(form):
    for task, fact in facts_with("edge"):
        limit = by_name(task)[fact["needs"][0]]
        known = [each["detail"] for each in task["facts"] if each["aspect"] == "formula"] + limit["needs"]
        reply, told = reply_after(task, known, form.format(**words_of(task, fact["term"])))
        assert told == [limit["detail"], fact["detail"]], (form, reply)


@pytest.mark.parametrize("form", ["Where's the limit for {T} {nouns}, and are there any exceptions?",
                                  "What is the limit? And is it the same for all {nouns}, without exceptions?"])
def test_that_there_are_no_exceptions_is_said_with_a_limit(form):
    count = 0
    for task, fact in facts_with("limit"):
        define = by_name(task)[fact["needs"][0]]
        if not any(each["aspect"] in ("except", "extra") for each in task["facts"]):
            known = [each["detail"] for each in task["facts"] if each["aspect"] == "formula"] + [define["detail"]]
            reply, told = reply_after(task, known, form.format(**words_of(task, fact["term"])))
            assert fact["detail"] in told and "exceptions" in reply, (form, reply)
            count += 1
    assert count > 10


@pytest.mark.parametrize("form", ["Could you please tell me how many you mean by a few?", "How many is a short list for you?",
                                  "How many {label}s do you mean by a short list?", "How many would you call a few?"])
def test_what_a_few_or_short_means_is_how_many(form):
    for task, fact in facts_with("count"):
        label = w.common_words(task["plan"])["noun"]
        assert reply_after(task, [], form.format(label=label))[1] == ["count"], form


def test_what_stands_between_several_entries_is_told_to_who_asks_how_they_look():
    count = 0
    for task, fact in facts_with("between"):
        if "format" not in by_name(task):    # the request wants names only
            message = f"How exactly should the line look for two {w.common_words(task['plan'])['noun']}s?"
            assert reply_after(task, [], message)[1] == ["between"], message
            count += 1
    assert count > 3


@pytest.mark.parametrize("form", ["How should the line look: what goes between the name and the figure, and between the {nouns}?",
                                  "What stands between a name and its figure, and between the {nouns}?"])
def test_what_is_inside_an_entry_comes_before_what_is_between_them(form):
    count = 0
    for task, fact in facts_with("format"):
        if "between" in by_name(task):
            message = form.format(nouns=w.common_words(task["plan"])["things"])
            reply, told = reply_after(task, [], message)
            assert told[-1:] == ["format"] and reply.startswith(("One thing", "One after")), (message, reply)
            count += 1
    assert count > 3


@pytest.mark.parametrize("form", ["Does exactly {n} count {there}?", "{There}, is {n} itself {T} or not?"])
def test_whether_an_exceptions_own_limit_counts_is_answered_by_itself(form):
    count = 0
    for task, fact in facts_with("except"):
        term, number = fact["term"], fact["values"].get("number")
        limit, edge = (by_name(task).get(f"{term}.{name}") for name in ("limit", "edge"))
        if number and edge and limit["values"].get("number") not in (None, number):
            message = form.format(n=number[0], there="where the exception applies", There="With the exception",
                                  **words_of(task, term))
            reply, told = reply_after(task, [limit["detail"], edge["detail"], fact["detail"]], message)
            assert not told and limit["reply"] not in reply, (message, reply)
            assert fact["reply"] in reply and f"{number[0]}, exactly {number[0]}" in reply, (message, reply)
            count += 1
    assert count > 3


def test_an_average_of_the_list_is_not_mixed_up_with_what_is_added():
    count = 0
    for task, fact in facts_with("limit"):
        define = by_name(task)[fact["needs"][0]]
        extra = [each["detail"] for each in task["facts"] if each["aspect"] == "extra"]
        if fact["values"].get("mean") and extra and len(define["values"]["field"]) == 1:
            words = words_of(task, fact["term"]) | {"key": define["values"]["field"][0]}
            known = [*extra, define["detail"], fact["detail"]]
            message = "Is that the plain average {key} of all {noun}s in the list, including those that aren't {T}?"
            reply, _ = reply_after(task, known, message.format(**words))
            assert "whole list" in reply and "adjustment" not in reply, (message, reply)
            count += 1
    assert count > 1


@pytest.mark.parametrize("form", ["Should a {label} appear in the dictionary when it has no {T} {noun}s at all?",
                                  "Should a {label} appear even if none of its {noun}s is {T}?"])
def test_groups_without_any_are_left_out(form):
    count = 0
    for task, fact in facts_with("group"):
        kinds = [term for term in task["plan"]["kinds"] if f"{term}.define" in by_name(task)]
        if kinds:
            message = form.format(label=fact["values"]["field"][0], **words_of(task, kinds[0]))
            reply, _ = reply_after(task, [fact["detail"]], message)
            assert "are left out" in reply, (message, reply)
            count += 1
    assert count > 3


def test_that_one_number_or_only_names_are_wanted_is_said_beside_the_second_question():
    count = 0
    for task, fact in facts_with("empty"):
        if "format" not in by_name(task) and task["plan"]["shape"] == "share":
            message = "Should I return the percentages as a list or a tuple, and what if there are none at all?"
            reply, told = reply_after(task, [], message)
            assert told == ["empty"] and "the number" in reply.lower(), reply
            count += 1
    assert count > 3


def test_whether_all_is_added_up_is_answered_beside_the_group():
    count = 0
    for task, fact in facts_with("group"):
        message = f"What are the groups in the table, and is the {task['plan']['goal']} of several added up?"
        reply, _ = reply_after(task, [], message)
        assert "the sum" in reply, (message, reply)
        count += 1
    assert count > 3


def test_how_an_entry_and_its_figure_appear_is_about_the_form():
    for task, fact in facts_with("format"):
        words = w.common_words(task["plan"])
        for message in (f"How should each {words['who']} and their figure appear in the list?",
                        f"How exactly is one {words['noun']} written, with its figure?"):
            assert reply_after(task, [], message)[1] == ["format"], message


def test_what_comes_before_or_after_the_entries_is_not_about_the_order():
    for task, fact in facts_with("between"):
        reply, told = reply_after(task, [], "What stands between the names, and does anything come before or after them?")
        assert told == ["between"] and "I order" not in reply, reply
