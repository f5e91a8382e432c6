"""The grammar of function tasks: its vocabulary can be asked about and told apart, tasks vary, splits do not mix, and
the scripted agent's dialogues are those that the scripted human has."""
import ast
import json
import random
import re
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import function_tasks as f  # noqa: E402
import function_words as w  # noqa: E402
from listener import scripted_reply  # noqa: E402

LEVELS = ("full", "plain")
TERMS = [(theme, sort, term) for theme in w.themes().values() for sort, terms in theme.terms.items()
         for term in terms.values()]
ASPECTS = {"kind": "define", "measure": "formula", "first": "order", "best": "order"}    # of a term's meaning


def drafts(split, level, count, seed=0):
    return list(islice(f.draw_tasks(split, level, seed), count))


def finished(level, count, seed=3):
    made = (f.with_calls(task, seed) for task in f.draw_tasks("test", level, seed))
    return list(islice((task for task, reason in made if not reason), count))


@pytest.fixture(scope="module", params=LEVELS)
def tasks(request):
    return finished(request.param, 60)


def rows_of(task):
    return [ast.literal_eval(call.removeprefix("report(")[:-1]) for call in task["test_cases"].values()]


# ---- The vocabulary. Each claim names the theme, the term and what is wrong with it.

def wrong_terms(theme, sort, term):
    """What is wrong with a term, in words."""
    keys = {*theme.numbers, *theme.words, theme.key, theme.who}
    known = {word for _, words in theme.words.values() for word in words}
    where = f"themes.toml, [{theme.noun}], {sort}.{term.name}: "
    for name in term.names:
        if name in keys | known:
            yield f"{where}the name {name!r} is also a key or a word of the things, so a question would be ambiguous"
    for meaning, times in Counter(term.meanings).items():
        if times > 1:
            yield f"{where}{meaning!r} stands twice among its meanings"
    for meaning in term.meanings:
        parts = re.findall(r"[a-zA-Z_]+", meaning)
        measures = theme.terms["measure"]
        if any(part not in keys and part not in measures for part in parts):
            yield f"{where}{meaning!r} names no key and no measure"
        if sort == "kind" and "".join(part for part in w.parts_of(theme, meaning)[1:]) != meaning.lstrip("<"):
            yield f"{where}{meaning!r} is no meaning of a kind: a number or a person, a label, or a number and a label"
    for extra in term.extras:
        if extra != "cap" and extra[1:] not in keys:
            yield f"{where}{extra!r} names no key"


def test_every_meaning_names_what_the_things_have():
    assert not [wrong for term in TERMS for wrong in wrong_terms(*term)]


def test_a_theme_with_a_fault_is_named():
    theme, sort, term = TERMS[0]
    broken = term._replace(names=[*term.names, "price"], meanings=["weight", "weight", "status&city", "colour"])
    found = " ".join(wrong_terms(theme, sort, broken))
    for fault in ("'price' is also", "stands twice", "'status&city' is no", "'colour' names no"):
        assert fault in found
    assert theme.noun in found and term.name in found


def plan_for(theme, sort, term):
    """A plan whose request has the term."""
    shape = {"kind": "total", "measure": "total", "first": "rows", "best": "who"}[sort]
    goals = theme.terms["measure" if sort == "kind" else sort]
    kinds = [name for name in theme.terms["kind"] if not set(theme.terms["kind"][name].names) & set(term.names)]
    return {"level": "full", "theme": theme.noun, "shape": shape, "people": shape == "who", "mode": "only",
            "kinds": [term.name] if sort == "kind" else kinds[:1], "sort": "measure" if sort == "kind" else sort,
            "goal": term.name if sort != "kind" else next(iter(goals)), "group": "group", "open": []}


@pytest.mark.parametrize("theme", w.themes())
def test_no_call_leaves_two_meanings_of_a_term_the_same(theme):
    """Each meaning beside each other one of its term, on three hundred inputs."""
    same = []
    for owner, sort, term in TERMS:
        if owner.noun == theme and len(term.meanings) > 1:
            plan, detail = plan_for(owner, sort, term), f"{term.name}.{ASPECTS[sort]}"
            settled = [f.settle(plan, f.likeliest, {detail: meaning})[0] for meaning in term.meanings]
            rng = random.Random(detail)
            inputs = [f.telling_rows(plan, details, rng) for _ in range(300 // len(settled)) for details in settled]
            results = [f.results_of(f.write_code(plan, details), inputs) for details in settled]
            same += [f"[{theme}] {detail}: {one} and {other}" for i, one in enumerate(term.meanings)
                     for j, other in enumerate(term.meanings) if i < j and results[i] == results[j]]
    assert not same


@pytest.mark.parametrize("theme", w.themes())
def test_a_question_about_each_term_settles_it(theme):
    """The human tells each meaning of each term when asked for it in the words of the request."""
    def say(keys, words):
        return w.wordings(keys if isinstance(keys, str) else keys[0], "full")[0].format_map(words)

    unsettled = []
    for owner, sort, term in TERMS:
        plan, detail = plan_for(owner, sort, term), f"{term.name}.{ASPECTS[sort]}"
        for meaning in term.meanings if owner.noun == theme else []:
            details, choices = f.settle(plan, f.likeliest, {detail: meaning})
            facts = w.facts_of(plan, details, choices, say)
            request = w.write_request(plan, details, {}, say, random.Random(0))
            task = {"problem_description": request, "facts": facts, "terms": w.human_terms(plan, details)}
            [fact] = [fact for fact in facts if fact["detail"] == detail]
            for question in fact["questions"]:
                _, told = scripted_reply(task, [{"role": "assistant", "content": question}])
                if told != [detail]:
                    unsettled.append(f"[{theme}] {detail} = {meaning}: {question!r} tells {told}")
    assert not unsettled


def test_the_vocabulary_is_as_large_as_promised():
    assert len(w.themes()) >= 12 and len(TERMS) >= 100
    assert sum(len(term.meanings) for _, _, term in TERMS) >= 400
    replies = list(w.all_wordings().items())[:[key for key in w.all_wordings()].index("sure empty total")]
    assert sum(len(texts) - 1 for _, texts in replies) >= 160


def test_no_two_replies_share_a_wording():
    """So a reply settles its detail: what is said of one value is said of no other."""
    texts = [text for key, texts in w.all_wordings().items() if key[:3] != "ask" for text in texts[1:]]
    twice = {text for text, count in Counter(texts).items() if count > 1}
    assert all(re.fullmatch(r"(Only the|The) \{X\}.*|.*\{list\}\.", text) for text in twice), twice


# ---- Draws

@pytest.mark.parametrize("level, layers", [("full", range(7, 10)), ("plain", range(3, 6))])
def test_tasks_have_as_many_layers_as_their_level_says(level, layers):
    tasks = drafts("train", level, 300)
    assert {len(task["facts"]) for task in tasks} == set(layers)
    for task in tasks:
        told = [fact["detail"] for fact in task["facts"]]
        assert len(set(told)) == len(told) and all(fact["reply"] and fact["questions"] for fact in task["facts"])
        for i, fact in enumerate(task["facts"]):
            assert set(fact.get("needs", [])) <= set(told[:i])
            assert fact.get("term", "") in {"", *task["terms"]}
        assert json.loads(json.dumps(task)) == task


def test_a_request_says_what_no_fact_tells():
    """Whether figures are shown beside the names, and what a share is a share of."""
    for task in drafts("train", "full", 300):
        plan, request = task["plan"], task["problem_description"]
        if plan["shape"] in w.ORDERED:
            assert ("figure" in request) == ("format" in task["details"]), request
        if plan["shape"] == "share":
            wholes = request.count(f"all {w.plural(plan['theme'])}") + request.count(" whole is still ")
            assert wholes >= len(plan["kinds"]), request


@pytest.mark.parametrize("level", LEVELS)
def test_replies_about_limits_say_what_the_reference_does(level):
    """Whether a limit itself counts, and on which side of it a thing is one."""
    for task in drafts("train", level, 300):
        details = task["details"]
        for fact in task["facts"]:
            term, _, aspect = fact["detail"].rpartition(".")
            reply = re.sub("no more than|but not more", "at most", fact["reply"].lower())
            if aspect == "edge":
                assert bool(re.search(r"n't|\bnot\b|\bout\b", reply)) != details[f"{term}.edge"], reply
            if aspect == "limit" and f"{term}.edge" in details and fact["values"].get("edge"):
                strict = re.search(r"more than|over|above|less than|under|below", reply)
                assert bool(strict) != details[f"{term}.edge"], reply
                low = re.search(r"or less|at most|up to|less than|under|below", reply)
                assert bool(low) == (details[f"{term}.define"][0] == "<"), reply


def test_requests_of_the_full_level_are_distinct():
    tasks = drafts("train", "full", 1000)
    assert len({task["problem_description"] for task in tasks}) >= 0.99 * 1000


def test_a_reference_belongs_to_one_split_whatever_the_seed():
    seen = {}
    for split in ("train", "val", "test"):
        for seed in (0, 1):
            for task in drafts(split, "full", 60, seed):
                assert seen.setdefault(task["ground_truth"], split) == split


def test_new_tasks_have_a_meaning_that_training_never_has():
    def novel(task):
        theme = w.themes()[task["plan"]["theme"]]
        chosen = [(detail.rpartition(".")[0], value) for detail, value in task["details"].items()
                  if detail.endswith((".define", ".formula", ".order"))]
        return any(w.is_new(theme, *choice) for choice in chosen)

    assert not any(map(novel, drafts("train", "full", 300)))
    halves = drafts("test", "full", 100)
    assert [task["half"] for task in halves] == ["seen", "new"] * 50
    assert all(novel(task) == (task["half"] == "new") for task in halves)


def test_seen_tests_are_drawn_like_training():
    """The shares of themes and shapes are within four standard errors."""
    def shares(tasks):
        return Counter(name for task in tasks for name in (task["plan"]["theme"], task["plan"]["shape"]))

    train = drafts("train", "full", 400)
    test = [task for task in drafts("test", "full", 800) if task["half"] == "seen"]
    one, other = shares(train), shares(test)
    assert all(abs(one[name] - other[name]) <= 4 * (one[name] + other[name]) ** 0.5 for name in one | other)


def test_the_same_seed_draws_the_same_tasks():
    one, again, other = (drafts("val", "plain", 20, seed) for seed in (5, 5, 6))
    assert one == again != other


# ---- Calls

def test_every_wrong_value_of_every_detail_fails_a_call(tasks):
    for task in tasks:
        rows, right = rows_of(task), f.results_of(task["ground_truth"], rows_of(task))
        wrong = f.with_one_wrong(task["plan"], task["details"])
        facts = {fact["detail"] for fact in task["facts"]}
        assert facts <= {detail for detail, _ in wrong}, "a fact has no wrong value"
        for name, program in wrong.items():
            assert f.results_of(program, rows) != right, name


def test_mutants_fail_a_call(tasks):
    caught, missed, rng = 0, 0, random.Random(0)
    for task in tasks:
        rows, code = rows_of(task), task["ground_truth"]
        plan, details = task["plan"], task["details"]
        more = f.settled(plan, details, [f.telling_rows(plan, details, rng) for _ in range(100)])
        right, more_right = f.results_of(code, rows), f.results_of(code, more)
        for mutant in f.mutants(code):
            fails = f.results_of(mutant, rows) != right
            caught += fails
            missed += not fails and f.results_of(mutant, more) != more_right
    assert missed <= 0.01 * (caught + missed), (caught, missed)


def test_a_constant_answer_passes_few_calls(tasks):
    shares = []
    for task in tasks:
        results = Counter(f.results_of(task["ground_truth"], rows_of(task)))
        shares.append(max(results.values()) / results.total())
    assert sum(shares) / len(shares) <= 0.12


# ---- Dialogues

def test_whoever_asks_everything_writes_the_reference(tasks):
    for task in tasks:
        history, answer = f.demonstrate(task, 1, 0, 10, random.Random(0))
        told = [detail for message in history for detail in message.get("told", [])]
        assert sorted(told) == sorted(fact["detail"] for fact in task["facts"])
        assert answer == task["ground_truth"].strip() and history[-1]["content"].endswith(answer)


def test_a_demonstration_has_the_replies_of_the_scripted_human(tasks):
    for i, task in enumerate(tasks):
        history, _ = f.demonstrate(task, 0.6, 0.3, 10, random.Random(i))
        roles = [message["role"] for message in history]
        assert len(history) <= 20 and roles == ["user", "assistant"] * (len(history) // 2)
        for place in range(2, len(history), 2):
            said = [{"role": each["role"], "content": each["content"]} for each in history[:place]]
            assert scripted_reply(task, said) == (history[place]["content"], history[place]["told"])


def test_an_imperfect_agent_guesses_what_it_did_not_ask(tasks):
    answers = [f.demonstrate(task, 0.5, 0.2, 10, random.Random(i))[1] for i, task in enumerate(tasks)]
    right = sum(answer == task["ground_truth"].strip() for answer, task in zip(answers, tasks))
    assert right < len(tasks) / 2
    for answer in answers:
        ast.parse(answer)


def test_only_tasks_of_this_grammar_can_be_demonstrated(tasks):
    assert f.check_demonstrable(tasks[0]) is tasks[0]
    for other in ({**tasks[0], "ground_truth": "def report(rows):\n    return 0\n"}, {"facts": [], "ground_truth": ""}):
        with pytest.raises(ValueError, match="procedural task"):
            f.check_demonstrable(other)
