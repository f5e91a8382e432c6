"""The scripted human: whom it understands, how it answers proposals, what it never says.

phrases/terse.tsv, wordy.tsv and chatty.tsv are questions of three askers; the listener's patterns were written with them
in view, and they are among its example questions. A line is an aspect and a question with slots. "wrong:limit" proposes
a wrong limit, "anything" asks whether there is more. The questions of two other askers, phrases/fresh.tsv and
polite.tsv, are held out: no pattern and no example was written for them, so they stay unread.
"""
import json
import random
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import islice
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import listener  # noqa: E402
from function_tasks import draw_tasks  # noqa: E402
from listener import Memory, replied, scripted_reply  # noqa: E402
from listener_words import plain, sentences, stem, tables  # noqa: E402

KEPT = ("problem_description", "ground_truth", "facts", "terms", "sure", "test_cases")


@cache
def tasks():
    return list(islice(draw_tasks("test", "full", 5), 40))


def human_of(task):
    return listener.listener(json.dumps({key: task.get(key) for key in KEPT}, ensure_ascii=False))


def by_name(task):
    return {fact["detail"]: fact for fact in task["facts"]}


def needed(task, detail):
    """What must be told before a detail, in order."""
    needs = by_name(task)[detail].get("needs") or []
    return list(dict.fromkeys(each for need in needs for each in [*needed(task, need), need]))


def memory_of(task, told):
    """The memory of a human that has told some details, the last one last."""
    facts = [by_name(task)[detail] for detail in told]
    return Memory(tuple(told), tuple(fact["term"] for fact in facts if fact.get("term")),
                  plain(" ".join(fact["reply"] for fact in facts)))


def singular(noun):
    return re.sub(r"(?<=ch|sh|ss|.x)es$|s$", "", re.sub("ies$", "y", noun))


def a(words):
    return ("an " if words[0] in "aeiou" else "a ") + words


def slots(task, fact):
    """What stands for the slots of a question about a fact."""
    nouns = re.search(r"report\((\w+)\)", task["problem_description"])[1]
    row = json.loads(re.search(r"\{.*\}", task["problem_description"])[0])
    keys = list(row)
    numbers, labels = ([key for key in keys[2:] if isinstance(row[key], kind)] for kind in (int, str))
    term = fact.get("term")
    names = task["terms"][term]["names"] if term else ["result", "result"]
    values = fact.get("values") or {}
    define = by_name(task).get(f"{term}.define", {}).get("values", {})
    order = next((each.get("values") or {} for each in task["facts"] if each["aspect"] == "order"), {})
    fields = define.get("field") or order.get("field") or values.get("field") or []
    person = fields == [keys[1]]
    limit = by_name(task).get(f"{term}.limit", fact).get("values") or {}
    n = (limit.get("number") or ["20"])[0]
    mine = {word.lower() for word in values.get("word", [])}
    others = ["Anna", "Bruno", "Carla", "Dino"] if fact["aspect"] == "names" else [row[key] for key in labels]
    pool = labels if fact["aspect"] == "group" else numbers
    other = [key for key in pool if key not in fields + values.get("field", [])]
    return {"function": "report", "nouns": nouns, "noun": singular(nouns), "who": keys[1], "whos": keys[1] + "s",
            "measure": names[0], "term": names[person], "terms": names[0] if person else f"{names[0]} {nouns}",
            "a_term": a(names[1] if person else f"{names[0]} {singular(nouns)}"),
            "field": next((key for key in fields if key not in labels), "number"),
            "label": next((key for key in fields if key in labels), keys[1] if person else "kind"),
            "n": n, "wrong_n": str(int(n) + 3) if n.isdigit() else "7", "wrong_field": other[0],
            "value": " or ".join(values.get("word", [])),
            "wrong_value": next((word for word in others if word.lower() not in mine), "cash")}


def asked(task, fact, question, rng, more=2):
    """(reply, details told) of a human that has told what the fact needs and up to `more` other details before."""
    needs = needed(task, fact["detail"])
    others = [name for name in by_name(task) if name not in [*needs, fact["detail"]]
              and set(by_name(task)[name].get("needs") or []) <= set(needs)]
    told = rng.sample(others, min(len(others), rng.randint(0, more))) + needs
    return replied(human_of(task), memory_of(task, told), question.format_map(slots(task, fact)), "plain")[:2]


def untrue(task, told, reply):
    """What a reply says that is no detail of those told, and not true of the task in another way."""
    table, facts = tables(), task["facts"]
    hidden = {fact.get("term") for fact in facts if fact.get("aspect") in ("except", "extra")}
    open_terms = {fact.get("term") for fact in facts if fact["detail"] not in told}
    settled = {fact.get("aspect") for fact in facts} | ({"except", "extra"} if hidden else set())
    true = [by_name(task)[detail]["reply"] for detail in told] + [row["reply"] for row in task.get("sure") or []]
    true += [row["says"].replace("{row}", "_").replace("{measure}", "_") for row in table["settled"]
             if re.search(row["code"], task["ground_truth"])]
    true += [aspect["none"].replace("{row}", "_") for name, aspect in table["aspects"].items()
             if "none" in aspect and name not in settled]
    true += [text for name in ("lost", "known", "again", "first", "code", "needless") for text in table["says"][name]]
    true += [text.replace("{0}", "_") for name in ("about", "again about", "was_about", "same_edge in", "same_edge out")
             for text in table["says"][name]]
    true += ["" if open_terms else text for text in table["says"]["nothing"]]
    left = {fact.get("term") for fact in facts
            if fact.get("aspect") in ("except", "extra") and fact["detail"] not in told}
    for term, about in (task.get("terms") or {}).items():
        near = {term}.union(*((fact.get("values") or {}).get("field", ()) for fact in facts if fact.get("term") == term))
        named = [*(table["says"]["no_more"] if term not in open_terms else []),
                 *(table["says"]["no_others"] if near.isdisjoint(left) else [])]
        true += [text.format(name.replace("-", " ")) for text in named for name in about["names"]]
    excepted = left | {fact.get("term") for fact in facts if fact.get("aspect") == "except" or (
        fact.get("aspect") == "extra" and "word" in (fact.get("values") or {}))}    # "I always add the tip" is none
    plain_terms = [name.replace("-", " ") for term, about in (task.get("terms") or {}).items() if term not in excepted
                   for name in about["names"]]
    named = rf'((" or ")?({"|".join(map(re.escape, plain_terms))}))+'
    none = [re.escape(text).replace(r"\{0\}", named) for text in table["says"]["no_exceptions"] if plain_terms]
    compared = re.findall(r'\["(\w+)"\] (?:==|!=|in|not in) (\[[^\]]*\]|"[^"]*")', task["ground_truth"])
    true += [text.format(f"{key} says {words.strip('[]').replace(', ', ' or ')}")
             for key, words in compared for text in table["says"]["spelled"]]
    true = [re.escape(text).replace("_", ".*?") for text in sorted(true, key=len, reverse=True)]
    asks_back = [r"Do you mean .*?\?", *(re.escape(text).replace(r"\{0\}", ".*") for name in ("unclear", "more")
                                        for text in table["says"][name])]
    return re.sub("|".join(filter(None, [*true, *none, *asks_back])), "", reply).strip()


def facts_about(aspect):
    return [(task, fact) for task in tasks() for fact in task["facts"] if fact["aspect"] == aspect
            and not (aspect == "limit" and ("times" in fact["reply"] or "number" not in (fact.get("values") or {})))]


@pytest.mark.parametrize("asker", ["terse", "wordy", "chatty"])
def test_three_askers_are_understood_in_95_percent(asker):
    rng, count = random.Random(asker), Counter()
    for line in (ROOT / f"tests/phrases/{asker}.tsv").read_text().splitlines():
        aspect, question = line.split("\t")
        pool = facts_about(aspect)
        for task, fact in rng.sample(pool, min(3, len(pool))):
            _, told = asked(task, fact, question, rng)
            count["right" if fact["detail"] in told else "wrong" if told else "not"] += 1
    assert count.total() > 400
    assert count["right"] >= 0.95 * count.total() and count["wrong"] <= 0.01 * count.total(), count


@pytest.mark.parametrize("asker", ["fresh", "polite"])
def test_a_held_out_asker_is_understood_in_93_percent(asker):
    rng, count = random.Random(asker), Counter()
    for line in (ROOT / f"tests/phrases/{asker}.tsv").read_text().splitlines():
        aspect, question = line.split("\t")
        pool = facts_about(aspect)
        for task, fact in rng.sample(pool, min(4, len(pool))):
            _, told = asked(task, fact, question, rng)
            count["right" if fact["detail"] in told else "wrong" if told else "not"] += 1
    assert count["right"] >= 0.93 * count.total() and count["wrong"] <= 0.02 * count.total(), count


def test_wrong_proposals_are_answered_with_the_fact():
    rng, count = random.Random(1), Counter()
    for line in (ROOT / "tests/phrases/wordy.tsv").read_text().splitlines():
        kind, question = line.split("\t")
        if kind.startswith("wrong:"):
            pool = [(task, fact) for task, fact in facts_about(kind[6:])
                    if kind != "wrong:define" or len((fact.get("values") or {}).get("field", [])) == 1]
            for task, fact in rng.sample(pool, min(8, len(pool))):
                reply, told = asked(task, fact, question, rng)
                count["right" if fact["reply"] in reply else "wrong" if told else "not"] += 1
    assert count["right"] >= 0.95 * count.total() and count["wrong"] <= 0.02 * count.total(), count


LIMITS = {("in", "high"): "at least {n}", ("out", "high"): "more than {n}", ("in", "low"): "at most {n}",
          ("out", "low"): "less than {n}"}


def statement(task, fact, wrong):
    """What an agent that has understood a fact, or misunderstood it, would say; None for facts that are hard to put."""
    slot, values, aspect = slots(task, fact), fact.get("values") or {}, fact["aspect"]
    field, number = values.get("field", []), values.get("number", [""])[0]
    if aspect == "define" and len(field) == 1 and field[0] != slot["who"]:
        return f"{slot['terms']} depend on the {slot['wrong_field'] if wrong else field[0]}"
    if aspect == "limit" and number and values.get("edge"):
        end = by_name(task)[f"{fact['term']}.define"]["values"].get("end", ["high"])[0]
        edge = {"in": "out", "out": "in"}[values["edge"][0]] if wrong else values["edge"][0]
        return f"{slot['terms']} are those with {LIMITS[edge, end].format(n=number)}"
    if aspect == "edge":
        counts = (values["edge"] == ["in"]) != wrong
        return f"exactly {number} {'counts' if counts else 'does not count'} as {slot['term']}"
    if aspect == "formula" and len(field) == 2 and len(values["op"]) == 1 and not number and values["op"][0] in "+*":
        how = "times" if (values["op"] == ["*"]) != wrong else "plus"
        return f"the {slot['measure']} is {field[0]} {how} {field[1]}"
    if aspect == "count":
        return f"the list should have {int(number) + wrong} entries"
    if aspect == "group":
        return f"I group by {slot['wrong_field'] if wrong else field[0]}"
    if aspect == "ties" and values.get("ties", [""])[0] in ("a-z", "z-a"):
        back = (values["ties"] == ["z-a"]) != wrong
        return f"ties go in {'reverse ' * back}alphabetical order"
    return None


def proposals():
    """(task, fact, the statement, whether it is wrong) for all facts that can be put."""
    for task in tasks():
        for fact in task["facts"]:
            for wrong in (False, True):
                text = statement(task, fact, wrong)
                if text:
                    yield task, fact, text, wrong


@pytest.mark.parametrize("form", ["So {}?", "{}, right?", "I assume {}.", "I'd say {}. Is that correct?"])
def test_a_proposal_is_answered_with_the_fact_that_it_is_about(form):
    count = Counter()
    for task, fact, text, wrong in proposals():
        for known in ([], [fact["detail"]]):
            reply, told = reply_after(task, [*needed(task, fact["detail"]), *known], form.format(text))
            count[wrong, fact["reply"] in reply and set(told) <= {fact["detail"]}] += 1
    assert min(count[True, True], count[False, True]) > 0.95 * count.total() / 2, count


def test_in_a_summary_the_wrong_part_is_told():
    rng, count = random.Random(2), Counter()
    for task in tasks():
        mine = [(fact, text, wrong) for other, fact, text, wrong in proposals() if other is task]
        pairs = [(one, other) for one in mine for other in mine if one[0] is not other[0]]
        for (one, text, wrong), (other, more, also) in rng.sample(pairs, min(4, len(pairs))):
            told = list(dict.fromkeys(needed(task, one["detail"]) + needed(task, other["detail"])))
            if {one["detail"], other["detail"]} & set(told):
                continue
            reply, now = reply_after(task, told, f"To sum up: {text}; {more}. Correct?")
            assert len(now) < 2 or not (wrong and also), (text, more, reply)    # one guess may be wrong
            count[wrong + also, len({one["detail"], other["detail"]} & set(now))] += 1
    assert count[0, 2] + count[1, 2] + count[2, 1] > 0.9 * count.total(), count


# ---- Dialogues


def talk(task, *messages, manner="plain"):
    """The (reply, told) of each message of one dialogue."""
    dialogue, replies = [{"role": "user", "content": task["problem_description"]}], []
    for message in messages:
        dialogue.append({"role": "assistant", "content": message})
        replies.append(scripted_reply(task, dialogue, manner))
        dialogue.append({"role": "user", "content": replies[-1][0]})
    return replies


SHOP = {"problem_description": "I need one number: what our big orders are worth. Our regulars' don't count. Call it "
        'report(orders). An order: {"code": "B5", "customer": "Ann", "channel": "web", "price": 20, "weight": 3}',
        "ground_truth": "def report(orders):\n    return 0\n", "test_cases": {"1": 'report([{"channel": "phone"}])'},
        "terms": {"big": {"names": ["big", "large"]}, "value": {"names": ["worth", "value"]},
                  "regular": {"names": ["regulars", "regular"]}, "bulk": {"names": ["bulk"]}},
        "facts": [
            {"detail": "big.define", "term": "big", "aspect": "define", "reply": "As a rule I go by the bulk.",
             "values": {"field": ["bulk"], "end": ["high"]}},
            {"detail": "bulk.formula", "term": "bulk", "aspect": "formula", "reply": "Weight plus ten times the price.",
             "values": {"field": ["weight", "price"], "op": ["+", "*"], "number": ["10"]}, "needs": ["big.define"]},
            {"detail": "big.limit", "term": "big", "aspect": "limit", "reply": "From 20 on.",
             "values": {"number": ["20"], "edge": ["in"]}, "needs": ["big.define"]},
            {"detail": "big.except", "term": "big", "aspect": "except",
             "reply": "Orders placed by phone are never big.", "values": {"word": ["phone"]}, "needs": ["big.define"]},
            {"detail": "value.formula", "term": "value", "aspect": "formula", "reply": "Price times quantity.",
             "values": {"field": ["price", "quantity"], "op": ["*"]}},
            {"detail": "regular.define", "term": "regular", "aspect": "define",
             "reply": "A few people, I can name them.", "values": {"field": ["customer"]}},
            {"detail": "regular.names", "term": "regular", "aspect": "names", "reply": "Ann and Ben.",
             "values": {"word": ["Ann", "Ben"]}, "needs": ["regular.define"]},
            {"detail": "empty", "aspect": "empty", "reply": 'Then it should say "none".',
             "values": {"word": ["none"]}}]}


def test_a_question_that_uses_a_word_just_said_is_understood():
    assert talk(SHOP, "What is the bulk?")[0][1] == []    # nobody has spoken of it
    assert talk(SHOP, "What makes an order big?", "What do you mean by bulk?")[1][1] == ["bulk.formula"]
    assert talk(SHOP, "What makes an order big?", "And how is that worked out?")[1][1] != ["value.formula"]


@pytest.mark.parametrize("words", [
    "busy busier busiest busily busyness", "big bigger biggest", "profit profits profitable",
    "wild wilder wildest wildness", "urgent urgency urgently", "demand demanding demands",
    "late later latest lateness", "trouble troublesome", "risk risky riskier", "cost costly"])
def test_every_form_of_a_word_has_one_stem(words):
    assert len({stem(word) for word in words.split()}) == 1


@pytest.mark.parametrize("question", ["What does bigger mean to you?", "How do you judge the bigness of an order?",
                                      "What's a large order?", "Which orders are the biggest ones, by what rule?"])
def test_a_term_is_known_in_every_form_of_its_words(question):
    assert talk(SHOP, question)[0][1] == ["big.define"]


def test_what_exists_is_never_denied():
    for task in tasks()[:12]:
        details = sorted(by_name(task), key=lambda name: len(needed(task, name)))
        for count in range(len(details) + 1):
            for question in ("Is there anything else I should know?", "Have I missed anything?", "Is that all?"):
                reply, told, _ = replied(human_of(task), memory_of(task, details[:count]), question, "plain")
                assert (reply in tables()["says"]["nothing"]) == (count == len(details)), (reply, details[count:])
    hidden = [name for name in by_name(SHOP) if name != "big.except"]
    assert replied(human_of(SHOP), memory_of(SHOP, hidden), "No exceptions, I take it?", "plain")[1] == ["big.except"]


def test_asking_only_whether_there_is_more_does_not_tell_everything():
    replies = talk(SHOP, *["Is there anything else I should know?"] * 9)
    assert sum(len(told) for _, told in replies) == 0 and all("ask" in reply or "yet" in reply for reply, _ in replies)


def test_what_is_not_understood_is_asked_back_and_costs_nothing():
    for message in ("Xyzzy?", "What about the frobnication?", "How frilly is it?", "", "Hm."):
        reply, told = talk(SHOP, message)[0]
        assert told == [] and reply and not any(fact["reply"] in reply for fact in SHOP["facts"])
    assert 'what "big" means' in talk(SHOP, "What do you mean by frobnication?")[0][0]


def test_one_question_at_a_time_is_answered_and_said():
    reply, told = talk(SHOP, "What makes an order big? What should I return if there are none?")[0]
    assert told == ["big.define"] and any(first in reply for first in tables()["says"]["first"])
    reply, told = talk(SHOP, "What does big mean? Is it the weight, or something else?")[0]
    assert (reply, told) == ("As a rule I go by the bulk.", ["big.define"])


def test_a_repeated_question_is_answered_again_and_tells_nothing_new():
    (_, first), (reply, again) = talk(SHOP, "What makes an order big?", "What makes an order big, please?")
    assert first == ["big.define"] and again == [] and "As a rule I go by the bulk." in reply


@pytest.mark.parametrize("message, facts", [
    ("So big orders are those from 20 on?", "limit"), ("So the limit is 25?", "limit"),
    ("So it takes more than 20?", "limit"), ("Is a bulk of 21 big? And 19?", "limit"),
    ("A bulk of 12 isn't big, right?", "limit"),
    ("The limit is 20, and the value is price plus quantity. Right?", "value.formula"),
    ("Orders placed by phone are always big, right?", "except"), ("Phone orders are never big, correct?", "except"),
    ("I'd return \"nothing\" if there are none. Is that fine?", "empty"), ("Regulars are Ann and Ben?", "names"),
    ("Are the regulars Ann, Ben and phone?", "names"), ("Big orders are those under 20?", "limit"),
    ("So big orders are those with more than 19?", "limit"), ("So 12 does not count as big?", "limit")])
def test_each_claim_is_answered_with_or_without_a_question_mark(message, facts):
    asked = ["What makes an order big?", "And what makes it big in numbers, what's the limit?", "Who are the regulars?"]
    reply = talk(SHOP, *asked, message)[-1][0]
    assert all(fact["reply"] in reply for fact in SHOP["facts"] if fact["detail"].endswith(facts)), reply


def test_a_formula_whose_steps_may_be_in_another_order_is_restated():
    reply, told = talk(SHOP, "What makes an order big?", "So the bulk is 10 times the weight plus the price?")[1]
    assert told == ["bulk.formula"] and "Weight plus ten times the price." in reply


def test_points_inside_a_sentence_end_none_and_patterns_end_at_words():
    assert sentences(plain("Is it e.g. 3.5, or i.e. 4? Yes.")) == ["is it eg 3.5, or ie 4?", "yes."]
    assert talk(SHOP, "How do you measure what is big?")[0][1] == ["big.define"]    # not "sure"


def test_code_is_neither_read_nor_written():
    for message in ("Please write the code.", "```python\ndef report(orders): return 3\n```"):
        reply, told = talk(SHOP, message)[0]
        assert reply in tables()["says"]["code"] and told == []


OWN = {"problem_description": "Write price(items) that adds up a basket.",
       "facts": [{"detail": "currency", "question": "Which currency should it be in?", "reply": "Euros, please."},
                 {"detail": "discount", "questions": ["Is there a discount?", "rebate"], "reply": "Ten percent off."},
                 {"detail": "rounding", "questions": ["How should I round?"], "reply": "To two decimals."}]}
RIDDLE = {"problem_description": "I'm thinking of an animal.", "ground_truth": "elephant",
          "facts": [{"detail": "size", "questions": ["Is it big?", "larger than a dog", "small"], "reply": "Very big."},
                    {"detail": "food", "questions": ["What does it eat?", "carnivore"], "reply": "Only plants."}]}


@pytest.mark.parametrize("task, question, told", [
    (OWN, "What currency?", ["currency"]), (OWN, "Are there any discounts?", ["discount"]),
    (OWN, "Some rebate?", ["discount"]), (OWN, "How many decimals do you want?", ["rounding"]),
    (OWN, "Is it in euros?", ["currency"]), (OWN, "What's for lunch?", []), (RIDDLE, "Is it blue?", []),
    (RIDDLE, "Is it larger than a cat?", ["size"]), (RIDDLE, "Is it a carnivore?", ["food"])])
def test_any_task_with_facts_can_be_played(task, question, told):
    assert talk(task, question)[0][1] == told
    nulls = {**dict.fromkeys(KEPT), "details": None, **task}
    nulls["facts"] = [dict.fromkeys(("term", "aspect", "values", "needs", "implies")) | fact for fact in task["facts"]]
    assert talk(nulls, question) == talk(task, question)


def test_a_riddle_that_is_solved_is_confirmed():
    assert talk(RIDDLE, "Is it an elephant?")[0][0] in tables()["says"]["found"]


def test_a_task_without_facts_has_nothing_to_tell():
    assert all(told == [] for task in ({"problem_description": "x"}, {"problem_description": "x", "facts": None})
               for _, told in talk(task, "What do you mean?", "Anything else?", "How are ties broken?"))


def test_a_detail_is_told_after_what_it_needs_and_with_what_it_implies():
    for task in tasks()[:20]:
        for fact in task["facts"]:
            told = talk(task, *(question for question in fact["questions"][:1]))[0][1]
            first = (needed(task, fact["detail"]) or [fact["detail"]])[0]
            with_names = [first, fact["detail"]] if fact["aspect"] == "names" else []
            assert told in ([first], with_names) or not fact.get("needs")
    both = {**OWN, "facts": [OWN["facts"][0] | {"implies": ["rounding"]}, *OWN["facts"][1:]]}
    assert talk(both, "What currency?")[0][1] == ["currency", "rounding"]


def test_a_vague_human_says_the_usual_first_and_is_clear_then():
    (reply, told), again = talk(OWN, "What currency?", "What currency?", manner="vague")
    assert reply in tables()["says"]["usual"] and told == [] and again == ("Euros, please.", ["currency"])


def test_a_revising_human_takes_one_number_back_and_says_so():
    questions = ["What makes an order big?", "What's the limit for big orders?", "Any exceptions?"]
    (wrong, told), (reply, now) = talk(SHOP, *questions, manner="revising")[1:]
    assert "20" not in wrong and told == [] and reply.index("From 20 on.") > 0 and now[0] == "big.limit"


def test_the_same_messages_give_the_same_replies_and_each_is_read_once(monkeypatch):
    read, plain_reply = [], listener.Listener.reply
    monkeypatch.setattr(listener.Listener, "reply", lambda *args: read.append(args[2]) or plain_reply(*args))
    messages = [f"What makes an order big, {n}?" for n in range(12)]
    assert talk(SHOP, *messages) == talk(SHOP, *messages) and read == messages


def test_the_listener_needs_the_standard_library_only():
    code = "import sys, listener; listener.tables(); sys.exit('numpy' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


# ---------------------------------------------------------------------------------------------------------------------
# What no person says


def reply_after(task, details, message):
    """(reply, details told) of a human that has told some details and what they need, the last one last."""
    known = list(dict.fromkeys(name for detail in details for name in [*needed(task, detail), detail]))
    reply, told, _ = replied(human_of(task), memory_of(task, known), message, "plain")
    assert not untrue(task, [*known, *told], reply), (message, reply)
    return reply, told


@pytest.mark.parametrize("message", ["So big orders always go by the bulk?", "Is it the bulk for every big order?",
                                     "So a big order depends on the bulk, nothing else?", "Big is just the bulk?",
                                     "Only the bulk makes an order big, right?"])
def test_whoever_says_always_is_told_the_exception(message):
    reply, told = reply_after(SHOP, ["big.define"], message)
    assert told == ["big.except"]
    reply, told = reply_after(SHOP, [], message)    # before the meaning is known, the meaning is said
    assert "big.except" not in told


def no_exceptions(task, term):
    names = [name.replace("-", " ") for name in task["terms"][term]["names"]]
    return [text.format(name) for text in tables()["says"]["no_exceptions"] for name in names]


@pytest.mark.parametrize("form", [
    "Are there any exceptions to what you call {}?", 'You said "mostly". Any exceptions for {}?',
    'Is there an exception for {}? You said "usually".', "Are {} treated differently at times?"])
def test_a_question_about_exceptions_is_about_its_term_and_no_is_plain(form):
    count = Counter()
    for task in tasks():
        for fact in task["facts"]:
            if fact["aspect"] in ("define", "formula"):
                name = slots(task, fact)["terms" if fact["aspect"] == "define" else "measure"]
                hidden = [other for other in task["facts"] if other["aspect"] in ("except", "extra")
                          and other["term"] == fact["term"]]
                reply, told = reply_after(task, [fact["detail"]], form.format(name))
                count[bool(hidden)] += 1
                if hidden:
                    assert (reply, told) == (hidden[0]["reply"], [hidden[0]["detail"]]), (form, name)
                else:
                    assert reply in no_exceptions(task, fact["term"]) and told == [], (form, name, reply)
    assert min(count[True], count[False]) > 10


@pytest.mark.parametrize("form", ["Is {n} already {term}, or does it have to be more than {n}?",
                                  "Just to check: does exactly {n} count as {term}, or not?",
                                  "Does one with exactly {n} count as {term}?", "Is exactly {n} still {term}?",
                                  "And is it {term} with exactly {n}?"])
def test_a_question_about_the_limit_itself_gets_the_plain_reply(form):
    facts = facts_about("edge")
    for task, fact in facts:
        slot = slots(task, fact)
        asked_for = form.format(n=slot["n"], term=fact["term"])
        assert reply_after(task, [fact["needs"][0]], asked_for) == (fact["reply"], [fact["detail"]]), asked_for
    assert len(facts) > 5


def test_a_recap_in_front_of_a_question_is_passed_over_in_silence():
    reply, told = reply_after(SHOP, ["big.limit"], "So big orders are those from 20 on. What if there are none?")
    assert (reply, told) == ('Then it should say "none".', ["empty"])
    reply, told = reply_after(SHOP, ["big.limit"], "The bulk, then. You said 20. What should I say if there are none?")
    assert (reply, told) == ('Then it should say "none".', ["empty"])


@pytest.mark.parametrize("message, count", [
    ("How high must the bulk be, and who are the regulars?", 2), ("What makes an order big? What is a regular?", 1),
    ("Mostly? What are the exceptions for big orders?", 1), ("What if there are none? If so, what do I return?", 1),
    ("Suppose there's no big order at all. What should come back then?", 1)])
def test_one_thing_at_a_time_is_said_to_two_questions_only(message, count):
    reply, told = reply_after(SHOP, ["big.define"], message)
    assert reply.startswith(tuple(tables()["says"]["first"])) == (count == 2) and len(told) <= 1


@pytest.mark.parametrize("question", [
    "Which ones count?", "What's the limit?", "Where do you draw the line?", "Are there any exceptions?",
    "Which values?", "How high does it have to be?", "Is the limit itself included?",
    "What exactly should be added up?",
    "Anything else?", "Which people do you mean?", "What do you mean by that?", "How is it calculated?",
    "Is it always like that?"])
def test_a_question_that_names_no_term_tells_nothing_about_terms(question):
    assert all(reply_after(task, [], question)[1] == [] for task in tasks())


def test_a_question_that_points_back_is_about_what_was_said_last():
    assert reply_after(SHOP, ["big.define"], "How high does it have to be?")[1] == ["big.limit"]
    assert reply_after(SHOP, ["regular.define"], "Who are they?")[1] == ["regular.names"]
    assert reply_after(SHOP, ["big.define", "value.formula"], "And who are they?")[1] == []


@pytest.mark.parametrize("message", ["Should I show the figure next to the name?",
                                     "I'd list each name with its figure, ok?",
                                     "So each entry has the name and the figure?"])
def test_figures_beside_names_are_a_proposal_about_the_format(message):
    bare = {"detail": "format", "aspect": "format", "reply": "Just the names.", "values": {"form": ["{n}"]}}
    forms = set()    # tasks that are drawn say so themselves where names are enough, and hide nothing about it then
    for task, fact in [*facts_about("format"), (SHOP | {"facts": [*SHOP["facts"], bare]}, bare)]:
        reply, _ = reply_after(task, [], message)
        forms |= set(fact["values"]["form"])
        assert fact["reply"] in reply, (reply, fact)
    assert {"pairs", "{n}"} < forms


def test_a_form_that_is_named_is_answered():
    for task, fact in facts_about("format"):
        reply, told = reply_after(task, [], "So the result is a list of pairs?")
        assert fact["reply"] in reply and told == ["format"], (reply, fact)


def test_a_repeat_is_short_and_not_rude():
    reply, told = reply_after(SHOP, ["big.limit"], "What's the limit for big orders?")
    assert told == [] and reply in [f"{again} From 20 on." for again in tables()["says"]["again"]]
    assert not any(word in again for again in tables()["says"]["again"] for word in ("told you", "already", "before"))


@pytest.mark.parametrize("question, reply", [
    ("What if there are fewer than that?", "If there are fewer, just those that there are."),
    ("Could names be spelled in two ways?", None),
    ("Should customers that have no big orders be shown with 0?",
     "Those with no such order at all are left out. A total of 0 is like any other."),
    ("Which channels are right, no matter how many there are?", None)])
def test_what_good_sense_settles_costs_nothing(question, reply):
    found, told = reply_after(SHOP, ["big.define"], question)
    assert told == [] and reply in (None, found)


# ---- Kinds of messages that the fourth strong player met unfair replies to, in other words


ALL = [fact["detail"] for fact in SHOP["facts"]]


@pytest.mark.parametrize("form", [
    "To recap: {}; {}; {}; {}. {}", "Here's what I have:\n- {}\n- {}\n- {}\n- {}\n{}",
    "So {}. {}. {}. {}. {}"])
@pytest.mark.parametrize("end", ["Did I forget anything?", "All correct?", "Have I understood you correctly?", ""])
def test_a_summary_is_answered_with_what_was_told(form, end):
    parts = ["big orders have a bulk of 20 or more, but never those placed by phone",
             "the worth is price times quantity", "our regulars are Ann and Ben", 'it says "none" if nothing is left']
    reply, told = reply_after(SHOP, ALL, form.format(*parts, end))
    assert not told and (reply in tables()["says"]["nothing"] or sum(map(in_reply(reply), SHOP["facts"])) > 5), reply
    for n, old, new, detail in (0, "20", "25", 2), (1, "times", "minus", 4), (3, "none", "zip", 7):
        wrong = [part.replace(old, new) if place == n else part for place, part in enumerate(parts)]
        assert in_reply(reply_after(SHOP, ALL, form.format(*wrong, end))[0])(SHOP["facts"][detail]), wrong


def in_reply(reply):
    return lambda fact: fact["reply"] in reply


@pytest.mark.parametrize("message", ["So 20 already counts. Which orders are treated differently?",
                                     "A bulk of 20 is in, then. Any exceptions for big orders?"])
def test_a_case_in_front_of_a_question_does_not_swallow_it(message):
    reply, told = reply_after(SHOP, ["big.limit"], message)
    assert told == ["big.except"] and "Orders placed by phone are never big." in reply


@pytest.mark.parametrize("form", ["With {word} that would be {more}, otherwise {formula}. Agreed?",
                                  "So the {term} is {formula}, but {more} for {word}, right?"])
def test_a_formula_and_its_exception_are_answered_together(form):
    for task, fact in facts_about("extra"):
        way, _, word, *number = [*task["details"][fact["detail"]], "", ""][:4]
        for wrong in (0, 3) if word else ():
            formula = task["details"][fact["needs"][0]]
            more = f"({formula}) {way} {number[0] + wrong}"
            reply, _ = reply_after(task, [fact["detail"]], form.format(
                word=word, more=more, formula=formula, term=fact["term"]))
            assert fact["reply"] in reply, (form, more, reply)


@pytest.mark.parametrize("message", ["How big must that be? I'd say 50 or more.", "And where's the limit of that, 12?"])
def test_that_is_the_measure_which_a_kind_goes_by(message):
    assert reply_after(SHOP, ["bulk.formula"], message)[1] == ["big.limit"]


@pytest.mark.parametrize("form", ["Which {G}s do you have in mind? The {a}, the {b}, or something different?",
                                  "What's the {G}: the {a}, the {b}, something else?"])
def test_an_open_choice_is_no_proposal(form):
    for task, fact in facts_about("group"):
        right, wrong = fact["values"]["field"][0], slots(task, fact)["wrong_field"]
        reply, told = reply_after(task, [], form.format(G=fact["term"], a=wrong, b=right))
        assert (reply, told) == (fact["reply"], ["group"])


@pytest.mark.parametrize("message", ["Would you like one joined string or a list of several?",
                                     "Should I return a list of texts, or everything in a single string?"])
def test_a_list_or_one_text_is_settled(message):
    count = Counter()
    for task, fact in facts_about("order"):
        reply, told = reply_after(task, ["ties"], message)
        line = ".join(" in task["ground_truth"]
        assert reply.startswith("One line" if line else "A list") and not told, reply
        count[line] += 1
    assert len(count) == 2


@pytest.mark.parametrize("form", ["If they make up 7 out of a total of 40 in {term}, what's the percentage?",
                                  "Say the {term} of those is 7, and 40 altogether: would I return 18?"])
def test_how_a_share_is_rounded_is_told(form):
    for task, fact in facts_about("round"):
        if task["plan"]["shape"] == "share":
            told = [each["detail"] for each in task["facts"]]
            assert fact["reply"] in reply_after(task, told, form.format(term=task["plan"]["goal"]))[0], form


def test_whether_and_or_or_is_told():
    count = Counter()
    for task, fact in facts_about("define"):
        join = fact["values"].get("join")
        limit = task["details"].get(f"{fact['term']}.limit")
        for word in ("and", "or") if join and limit else ():
            slot = slots(task, fact)
            values = " or ".join(task["details"][f"{fact['term']}.values"])
            reply, _ = reply_after(task, [f"{fact['term']}.limit", f"{fact['term']}.values"],
                                   f"So {slot['terms']} go by the {slot['field']} {word} the {slot['label']} {values}?")
            assert fact["reply"] in reply, (word, join, reply)
            count[word] += 1
    assert min(count.values()) > 3


@pytest.mark.parametrize("question", ["How often?", "How many {nouns} is that, at least?"])
def test_how_often_somebody_is_on_the_list_is_a_limit(question):
    for task, fact in facts_about("define"):
        if fact["values"].get("field") == [slots(task, fact)["who"]] and f"{fact['term']}.limit" in by_name(task):
            reply, told = reply_after(task, [fact["detail"]], question.format_map(slots(task, fact)))
            assert told == [f"{fact['term']}.limit"], reply


def test_a_code_snippet_is_not_taken_for_words():
    reply, told = reply_after(SHOP, ALL, "I'd write `sum(o['price'] for o in orders)`. Does that match?")
    assert reply in tables()["says"]["code"] and not told


@pytest.mark.parametrize("form", ["How high must {} be for that?", "And what does {} have to reach?",
                                  "At what level of {} does it begin?"])
def test_who_names_a_formula_and_asks_for_a_limit_gets_it(form):
    count = 0
    for task, fact in facts_about("formula"):
        kind = next((each["term"] for each in task["facts"] if each["detail"] in (fact.get("needs") or [])), None)
        limit = by_name(task).get(f"{kind}.limit")
        if limit and task["details"][limit["detail"]] != "average":
            said = "the total of " + " and ".join(fact["values"]["field"])
            reply, told = reply_after(task, [fact["detail"]], form.format(said))
            assert told == [limit["detail"]], reply
            count += 1
    assert count > 2


@pytest.mark.parametrize("message", ["So that goes for all of them, with no exceptions at all?", "Nothing on top of that?",
                                     "Always, with no extras or caps?", "Does that go for everybody?"])
def test_no_exceptions_is_no_question_about_an_empty_list(message):
    for task, fact in facts_about("empty"):
        told = [name for name in by_name(task) if name != "empty"]
        reply, new = reply_after(task, told, message)
        assert new == [] and fact["reply"] not in reply, (message, reply)


def test_exceptions_to_a_limit_are_asked_for_even_with_its_number():
    reply, told = reply_after(SHOP, [name for name in ALL if name != "big.except"], "Any exceptions to the 20 for big orders?")
    assert told == ["big.except"], reply
    reply, told = reply_after(SHOP, ALL, "Is that the same for all big orders, with the 20?")
    assert told == []


def test_a_term_before_a_dash_is_what_is_asked_about():
    for task, fact in facts_about("define"):
        measure = next((each for each in task["facts"] if each["aspect"] == "formula"), None)
        if measure and measure["detail"] not in (fact.get("needs") or []):
            slot, other = slots(task, fact), slots(task, measure)["measure"]
            told = reply_after(task, [], f"What about the {slot['terms']} - is it the {slot['field']}, or the {other}?")[1]
            assert told == [(needed(task, fact["detail"]) or [fact["detail"]])[0]]


@pytest.mark.parametrize("form", ["Does that hold for every one of them?", "Is the limit for {} always the same?"])
def test_whether_it_holds_for_all_asks_for_exceptions(form):
    for task, fact in facts_about("limit"):
        if not any(each["aspect"] in ("except", "extra") for each in task["facts"]):
            reply, told = reply_after(task, [fact["detail"]], form.format(slots(task, fact)["terms"]))
            assert reply in no_exceptions(task, fact["term"]) and told == [], reply
