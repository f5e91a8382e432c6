"""The human of a task of your own: what it tells, what it asks back, and that no question costs a fact by accident."""
import json
import sys

import pytest

from conftest import ROOT
from test_human import talk

sys.path.insert(0, str(ROOT))
import own_facts  # noqa: E402
from listener_words import data  # noqa: E402
from listener import listener  # noqa: E402


def task(request, *facts):
    names = ("detail", "questions", "reply", "needs")
    return {"problem_description": request, "facts": [dict(zip(names, fact)) for fact in facts]}


PARCELS = task(
    "Write shipping(order) that computes shipping costs.", ("base", ["What is the base price?"], "5 euros."),
    ("weight", ["Is there a surcharge for heavy parcels?"], "2 euros for each kilogram above 10.", ["unit"]),
    ("unit", ["In which unit is the weight?"], "The weight is in grams."),
    ("free", ["When is shipping free?"], "From 50 euros on."),
    ("abroad", ["What about orders from abroad?"], "They pay double."))
SLOTS = task(
    "Write slots(calendar) that finds free slots for a meeting.",
    ("hours", ["What are the working hours?"], "From 9 to 17."), ("length", ["How long is the meeting?"], "45 minutes."),
    ("buffer", ["Should there be a break between meetings?"], "Leave 10 minutes on both sides."),
    ("weekend", ["Do weekends count?"], "Only weekdays."), ("order", ["In what order should they be?"], "Earliest first."))


@pytest.mark.parametrize("of, question, told", [
    (PARCELS, "How much does it cost by default?", "base"), (PARCELS, "Thanks! Is there a free shipping threshold?", "free"),
    (PARCELS, "What happens with international orders?", "abroad"), (PARCELS, "Does weight matter?", "unit"),
    (SLOTS, "How long does the meeting last?", "length"), (SLOTS, "Are Saturdays included?", "weekend"),
    (SLOTS, "I see. How should I sort them?", "order"), (SLOTS, "Do you need a gap around each meeting?", "buffer")])
def test_a_question_in_other_words_gets_its_fact(of, question, told):
    assert talk(of, question)[0][1] == [told]


@pytest.mark.parametrize("of, question", [
    (PARCELS, "What is the colour?"), (PARCELS, "What happens with returns?"), (PARCELS, "Is there a member club?"),
    (SLOTS, "What is the name of the room?"), (SLOTS, "Which time zone?"), (SLOTS, "What is a hippopotamus?")])
def test_a_question_about_something_else_tells_and_denies_nothing(of, question):
    reply, told = talk(of, question)[0]
    assert told == [] and any(reply.startswith(lost) for lost in data()["says"]["lost"]) and "Do you mean the" in reply


def test_what_is_known_is_said_again_whether_a_claim_is_right_or_wrong():
    asked = ["What is the base price?", "When is shipping free?"]
    for claim in ("So the base is 5 euros, and orders from 50 euros are free?", "Is the base 6 euros?"):
        reply, told = talk(PARCELS, *asked, claim)[-1]
        assert told == [] and reply.startswith(tuple(data()["says"]["again"])) and "5 euros." in reply


def test_two_questions_get_one_answer_and_what_is_left_is_named():
    (reply, told), (more, none) = talk(SLOTS, "How long is it? What are the working hours?", "Anything else?")
    assert told == ["length"] and reply.endswith("45 minutes.") and none == [] and "the hours" in more
    left = talk(SLOTS, *(fact["questions"][0] for fact in SLOTS["facts"]), "Anything else?")[-1]
    assert left[0] in data()["says"]["nothing"]


def test_facts_without_aspects_are_heard_by_their_words():
    human = listener(json.dumps({"terms": None, "sure": None, "test_cases": None, "ground_truth": None, **PARCELS}))
    assert isinstance(human, own_facts.OwnFacts)


def test_facts_that_need_each_other_end_no_run():
    circle = task("Do it.", ("size", ["How big is it?"], "Ten.", ["colour"]), ("colour", ["Which colour?"], "Red.", ["size"]))
    assert [told for _, told in talk(circle, "How big is it?", "Which colour?", "How big is it?")] == [["colour"], [], ["size"]]
    for fact in circle["facts"]:
        fact |= {"term": fact["detail"], "aspect": "define"}
    assert talk(circle, "What is the size?")[0][0]
