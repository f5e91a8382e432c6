"""How a reply is read (thoughts, marks, verdicts), and who can play: a model with its prompt, a scripted human with its
manners, a person on either side."""
import asyncio
import json
import sys
from argparse import Namespace
from collections import Counter
from types import SimpleNamespace

import pytest

import engines
import human
import rollout
from records import THOUGHTS
from rollout import parse_response
from stub_server import Stub
from conftest import read_lines
from test_rollout import play, world  # noqa: F401  (world is a fixture)

TASK = {"task_id": "a", "domain": "backend", "problem_description": "Write f(x).", "ground_truth": "SECRET = 7"}


class Says:
    """An engine that says these texts, one after the other."""

    def __init__(self, *texts, **more):
        self.texts, self.more, self.heard = list(texts), more, []

    async def generate(self, messages, n, seed, temperature, max_tokens):
        self.heard.append(messages)
        return [engines.Response(self.texts.pop(0), **self.more) for _ in range(n)]


def episode(agent, partner, **flags):
    args = Namespace(**{"best_of_n": 1, "seed": 0, "temperature": 1.0, "max_tokens": 9, **flags})
    return asyncio.run(rollout.episode(args, agent, partner, None, TASK, 0, "", 3))


def model_human(engine, prompt="{reference} {dialogue}", screen=None):
    made = object.__new__(human.ModelHuman)
    made.args = Namespace(seed=0, simulator_max_tokens=9)
    made.engine, made.prompt, made.screen = engine, prompt, screen
    return made


# ---- Thoughts


@pytest.mark.parametrize("opening, closing", THOUGHTS.items())
@pytest.mark.parametrize("form", ["{}it is 7{}\nWhat is x?", "{}it is 7{} What is x?", "{}it\n\nis 7{}{}7{}What is x?"])
def test_a_thought_in_any_known_marks_reaches_nobody(opening, closing, form):
    """Neither the human, nor the agent, nor a judge; in capitals as well."""
    for marks in ((opening, closing), (opening.upper(), closing.upper())):
        text = form.format(*marks * 2)
        agent, partner = Says(text, "I WANT TO ANSWER: 1"), Says(text)
        record = episode(agent, model_human(partner))
        said = [message["content"] for message in record["dialogue_history"]]
        assert said == ["Write f(x).", "What is x?", "What is x?", "I WANT TO ANSWER: 1"]
        assert "7" not in str(agent.heard) and record["dialogue_history"][1]["output"] == text


@pytest.mark.parametrize("opening, closing", THOUGHTS.items())
def test_a_thought_that_the_template_opened_ends_at_its_mark_alone(opening, closing):
    assert parse_response(f"it is 7, I WANT TO ANSWER: no.{closing}What is x?") == ("What is x?", None)
    assert engines.Response(f"{opening}it is 7").said == ""


def test_an_answer_may_speak_of_the_marks():
    code = "def f(s):\n    return s.split('</think>')[-1] + '<think>'"
    assert parse_response(f"I WANT TO ANSWER:\n{code}")[1] == code
    assert parse_response(f"<think>so</think>I WANT TO ANSWER:\n{code}")[1] == code


def test_unknown_marks_are_a_warning_that_counts(world, tmp_path):  # noqa: F811
    with Stub(lambda messages, rng: "<x:think>secret</x:think>I WANT TO ANSWER: 1") as stub:
        done = play(tmp_path, "--in", world / "tasks.jsonl", "--limit", 2, "--model", stub.url, "--out", "a.jsonl")
    assert [record["unknown_marks"] for record in read_lines(tmp_path / "a.jsonl")] == [1, 1]
    assert "warning: 2 texts hold marks that look like a thought's" in done.stdout


def test_marks_that_are_special_tokens_are_seen_in_a_local_models_text(world):  # noqa: F811
    from transformers import AutoTokenizer
    made = object.__new__(engines.TransformersEngine)
    made.tokenizer = AutoTokenizer.from_pretrained(world / "model")
    made.tokenizer.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]"]})
    ids = made.tokenizer("[THINK]it is 7[/THINK]What?", add_special_tokens=False)["input_ids"]
    assert engines.Response(made.text_of([*ids, made.tokenizer.eos_token_id], False)).said == "What?"
    assert made.text_of([*ids[-2:], made.tokenizer.eos_token_id], False) == made.tokenizer.decode(ids[-2:]).replace(
        "[/THINK]", "[/THINK]")


# ---- Marks


@pytest.mark.parametrize("text", [
    'Should the last line be "OUTPUT: 3"?', "Should it print `Result OUTPUT: 3` or only the number?",
    "Is it 'OUTPUT: 3' or “OUTPUT: 4”?", 'When I know enough I write "I WANT TO ANSWER:" - which field counts?',
    "May I write `I WANT TO ANSWER: x` now?", "For example:\nInput: 3\nOutput: 5\nIs that right?",
    "I want to answer your question, but which field counts?"])
def test_a_question_that_speaks_of_a_mark_is_a_whole_question(text):
    assert parse_response(text) == (text, None)


@pytest.mark.parametrize("mark", ["OUTPUT:", "**OUTPUT:**", "**OUTPUT**:", "### OUTPUT:", "OUTPUT", "output:", "Output:",
                                  "__OUTPUT:__", "> OUTPUT:", "*Output*:"])
def test_the_end_of_a_thought_is_found_in_every_dress(mark):
    assert parse_response(f"I think.\n{mark}\nWhich field?") == ("Which field?", None)
    if ":" in mark:
        assert parse_response(f"I think.\n{mark} Which field?") == ("Which field?", None)


@pytest.mark.parametrize("mark", ["I WANT TO ANSWER:", "**I WANT TO ANSWER:**", "**I WANT TO ANSWER**:", "I WANT TO ANSWER",
                                  "I want to answer:", "i want to answer", "## I WANT TO ANSWER:", '"I WANT TO ANSWER:"',
                                  "*I want to answer:*"])
def test_the_mark_of_an_answer_is_found_in_every_dress(mark):
    for before in ("", "I know enough.\n", "I think.\nOUTPUT:\n"):
        assert parse_response(f"{before}{mark}\ndef f(x):\n    return x")[1] == "def f(x):\n    return x"


@pytest.mark.parametrize("code", ["```python\ndef f(x):\n    return x\n```", "def f(x):\n    return x", "<html><p>Hi</p></html>"])
def test_prose_after_the_mark_means_the_code_before_it(code):
    assert parse_response(f"{code}\n\nI WANT TO ANSWER: the one above")[1] == code
    assert parse_response(f"I thought.\nOUTPUT: {code}\n\nI WANT TO ANSWER: see above.")[1] == code


@pytest.mark.parametrize("text, answer", [("Is it Paris?\nI WANT TO ANSWER: Paris", "Paris"),
                                          ("```\nx = 1\n```\nI WANT TO ANSWER: f = lambda x: x", "f = lambda x: x"),
                                          ("def g(): pass\nI WANT TO ANSWER:", "")])
def test_what_stands_after_the_mark_is_the_answer_otherwise(text, answer):
    assert parse_response(text)[1] == answer


# ---- The model human


@pytest.mark.parametrize("reply, limit, short", [
    ("It is 20. Then sort them.", 25, "It is 20. Then sort them."), ("It is 20. Then sort them.", 24, "It is 20."),
    ("Is it 2.5? Yes, 2.5 it is", 14, "Is it 2.5?"), ("Count the many long words", 12, "Count the"), ("x" * 30, 9, "x" * 9),
    ("One.\nTwo words", 10, "One.")])
def test_a_long_reply_ends_with_a_sentence_or_a_word(reply, limit, short):
    assert human.shortened(reply, limit) == short


@pytest.mark.parametrize("reply, heard", [
    ("Human: It is 7.", "It is 7."), ("**Human:** It is 7.", "It is 7."), ("The human: It is 7.", "It is 7."),
    ("It is 7.\n\nAssistant: And then?\n\nHuman: Yes.", "It is 7."), ("Humans count from 1.", "Humans count from 1.")])
def test_a_model_that_plays_the_human_speaks_for_the_human_alone(reply, heard):
    assert asyncio.run(model_human(Says(reply)).reply(TASK, [], ("a", 0), Counter())) == (heard, None)


@pytest.mark.parametrize("wish", ["exactly", "volunteer", "confirm", "correct"])
def test_the_humans_prompt_asks_for_what_the_tests_depend_on(wish):
    assert wish in human.HUMAN_OF_FUNCTIONS


def test_the_human_that_sees_pages_sees_the_dialogue_too(monkeypatch):
    screen = SimpleNamespace(render=lambda page: SimpleNamespace(png=b"png"))
    says = Says("Blue.")
    dialogue = [{"role": "user", "content": "I want a page."},
                {"role": "assistant", "content": "<html><p>first</p></html>"}, {"role": "user", "content": "Larger."},
                {"role": "assistant", "content": "Which colour should the button have? <html><p>second</p></html>"}]
    made = model_human(says, human.VISION_PROMPT, screen)
    assert asyncio.run(made.reply(TASK, dialogue, ("a", 0), Counter())) == ("Blue.", None)
    parts = says.heard[0][0]["content"]
    text = parts[0]["text"]
    assert all(part in text for part in ("I want a page.", "Larger.", "Which colour should the button have?"))
    assert "<p>" not in text and sum(part["type"] == "image_url" for part in parts) == 2


def test_a_users_prompt_may_hold_braces_and_must_hold_its_places(world, tmp_path):  # noqa: F811
    (tmp_path / "good.txt").write_text('Reply as {"json": {}} does. {reference} {dialogue} {other}')
    (tmp_path / "bad.txt").write_text("{reference}")
    with Stub(lambda messages, rng: "What is x?") as agent, Stub(lambda messages, rng: "It is 7.") as partner:
        common = ["--in", world / "tasks.jsonl", "--limit", 1, "--max-turns", 2, "--model", agent.url, "--out", "a.jsonl"]
        of_model = [*common, "--simulator", partner.url]
        for name, words in (("bad.txt", "the prompt has no {dialogue}"), ("none.txt", "cannot be read")):
            assert words in play(tmp_path, *of_model, "--simulator-prompt", name, code=2).stderr
        assert "does nothing with --simulator scripted" in play(
            tmp_path, *common, "--simulator-prompt", "good.txt", code=2).stderr
        play(tmp_path, *of_model, "--simulator-prompt", "good.txt")
        assert "content of --simulator-prompt was" in play(tmp_path, *of_model, code=2).stderr
    prompt = partner.requests[0]["messages"][0]["content"]
    assert prompt.startswith('Reply as {"json": {}} does. def f(x):') and prompt.endswith("{other}")


def test_texts_with_braces_are_filled_in_as_they_are():
    assert human.fill("{a} {b} {c}", a="{b}", b="\\1 {a}") == "{b} \\1 {a} {c}"


# ---- The judge


VERDICTS = """A=A
[B]=B
**A**=A
Message B=B
A.=A
Answer: B=B
I prefer B because it asks about the field that decides the result.=B
The better message is B.=B
A asks about the limit, which matters. B asks about rounding, which never occurs.\\n\\nAnswer: A=A
Both are reasonable, but A is better because it asks for the threshold.=A
B is closer to the right final answer.=B
I would choose A, since B answers too early.=A
Message A brings the assistant closer to the right final answer.=A
[A] is a generic question, while [B] asks about the missing detail. I would pick [B].=B
My verdict: **B**=B
Verdict: Message A=A
Let me compare.\\n\\nA: asks for ties.\\nB: asks for what was given.\\n\\nTherefore A.=A
After weighing both, I'd go with B.=B
B, because A repeats a question that was already answered.=B
A wins.=A
The winner is A=A
At first A looks better, but the human has already told the limit, so B is better.=B
Option B is the stronger message.=B
(A)=A
Final answer: [A]=A
I think message A would be more helpful here.=A
Between A and B, I favour B.=B
A > B=A
The answer is "B".=B
Message B is better than message A because it writes the final answer correctly.=B
Neither is perfect. However, A moves the assistant closer.=A""".splitlines()


@pytest.mark.parametrize("line", VERDICTS)
def test_natural_verdicts_are_read(line):
    text, _, letter = line.rpartition("=")
    assert len(VERDICTS) == 31 and rollout.verdict(text.replace("\\n", "\n")) == letter


@pytest.mark.parametrize("text", ["Neither.", "Both A and B.", "The answer is A or B.", "", "I cannot decide between A and B."])
def test_no_verdict_is_read_where_there_is_none(text):
    assert rollout.verdict(text) is None


def test_the_judge_never_compares_a_text_with_itself():
    asked = Says(*["A"] * 9)
    judge = object.__new__(rollout.JudgeReward)
    judge.engine, judge.seed = asked, 0
    actions = [engines.Response(text) for text in ("Why?", "Why?", "I think.\nOUTPUT: Why?", "How?", "How?")]
    prompt = [{"role": "user", "content": "Write f(x)."}]
    best = asyncio.run(judge.best(TASK, prompt, actions, ("a", 0, 0), Counter()))
    assert len(asked.heard) == 1 and best in (actions[0], actions[3])
    text = asked.heard[0][0]["content"]
    assert '"I WANT TO ANSWER:" ends the dialogue' in text and "Why?" in text and "How?" in text


# ---- The scripted human, and a person


@pytest.mark.parametrize("domain, manner, words", [
    ("backend", "vague", ""), ("backend", "revising", ""), ("frontend", "vague", "has no manner but plain")])
def test_the_manner_reaches_the_scripted_human(world, tmp_path, monkeypatch, capsys, domain, manner, words):  # noqa: F811
    monkeypatch.setattr(sys, "argv", ["rollout.py", "--domain", domain, "--human", manner, "--model", "x"])
    if words:
        with pytest.raises(SystemExit):
            rollout.parse_args()
        assert words in capsys.readouterr().err
        return
    heard = []
    monkeypatch.setattr(human, "scripted_reply", lambda task, dialogue, manner: heard.append(manner) or ("It is 7.", []))
    args = rollout.parse_args()
    resources = SimpleNamespace(environment=rollout.ENVIRONMENTS["backend"], screen=lambda: None)
    asyncio.run(human.Scripted(args, resources).reply(TASK, [], (), None))
    assert heard == [manner] and rollout.settings_of(args)[0]["human"] == manner


@pytest.mark.parametrize("facts", [
    [{"detail": "currency", "questions": ["Which currency?"], "reply": "Euros, please."}],
    [{"detail": "currency", "question": "Which currency?", "reply": "Euros, please.", "implies": None, "term": None}], []])
def test_a_users_own_task_with_facts_is_played(tmp_path, facts):
    task = TASK | {"facts": facts, "replies": None, "theme": None, "details": None, "test_cases": {"1": None}}
    (tmp_path / "own.jsonl").write_text(json.dumps(task) + "\n")
    with Stub(lambda messages, rng: "Which currency?") as stub:
        play(tmp_path, "--in", "own.jsonl", "--model", stub.url, "--max-turns", 2, "--out", "a.jsonl")
    [record] = read_lines(tmp_path / "a.jsonl")
    assert record["finish"] == "max_turns" and record["dialogue_history"][2]["content"]


def test_a_person_plays_the_agent(world, tmp_path):  # noqa: F811
    typed = "\nWhat is the order?\nI WANT TO ANSWER:\ndef f(x):\n\n    return x\n.\n"
    done = play(tmp_path, "--in", world / "tasks.jsonl", "--limit", 1, "--model", "human", "--out", "a.jsonl", input=typed)
    [record] = read_lines(tmp_path / "a.jsonl")
    assert record["answer"] == "def f(x):\n\n    return x" and record["model"] == "human"
    assert record["dialogue_history"][2]["content"] == "The order is 4." and "Human: The order is 4." in done.stdout


def test_the_agent_is_told_to_ask_one_question_at_a_time():
    assert "ONE short question at a time" in rollout.AGENT_MULTI_TURN
