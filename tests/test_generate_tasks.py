import importlib
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import generate_tasks as g  # noqa: E402
from sandbox import Sandbox  # noqa: E402

SIMPLE = ["total", "average", "best", "fee", "score", "code"]


def command(*flags, ok=True, cwd=None):
    r = subprocess.run([sys.executable, ROOT / "generate_tasks.py", *map(str, flags)], capture_output=True, text=True, cwd=cwd)
    assert (r.returncode == 0) == ok, r.stderr + r.stdout
    return r


def records(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def words(text):
    return set(re.findall(r"\w+", text.lower()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One task of each family in each split."""
    out = tmp_path_factory.mktemp("tasks")
    n = len(g.FAMILIES)
    command("--train", n, "--val", n, "--test", n, "--out", out)
    return out


@pytest.fixture(scope="module")
def tasks(folder):
    return records(folder / "train.jsonl")


# --- tasks --------------------------------------------------------------------------------------------------------------------

def test_each_wrong_value_of_each_detail_fails_a_call(tasks):
    items = []
    for t in tasks:
        family, values = t["source"].partition(":")[2], tuple(t["details"].values())
        assert t["ground_truth"] == g.source_code(family, values)
        items += [((t["task_id"], name, wrong), t, g.source_code(family, wrong)) for name, wrong in g.flips(family, values)]
    assert len(items) > 15 * len(tasks)
    with Sandbox(workers=2) as box:
        for key, statuses in box.score_many(items):
            assert set(statuses.values()) != {"passed"}, key


def test_references_run_twice_the_same_and_are_not_constant(tasks):
    with Sandbox(workers=2) as box:
        for t in tasks:
            assert len(t["test_cases"]) == 10
            assert set(box.check_reference(t).values()) == {"ok"}, t["task_id"]
            outcomes = box.run(t["ground_truth"], list(t["test_cases"].values()))
            assert len({o.value for o in outcomes}) > 1, t["task_id"]


def test_every_family_and_every_split_is_there(folder):
    assert len(g.FAMILIES) >= 12
    for split in g.SPLITS:
        assert {t["source"] for t in records(folder / f"{split}.jsonl")} == {f"procedural:{f}" for f in g.FAMILIES}


def test_no_combination_is_in_two_splits_whatever_the_seed():
    offered = {s: {(f, v) for f in g.FAMILIES for v in g.combinations(f, s, 0)} for s in g.SPLITS}
    again = {s: {(f, v) for f in g.FAMILIES for v in g.combinations(f, s, 7)} for s in g.SPLITS}
    assert offered == again
    for a, b in itertools.combinations(g.SPLITS, 2):
        assert not offered[a] & offered[b]
    assert len(offered["train"]) >= 10500 and len(offered["val"]) >= 550 and len(offered["test"]) >= 1100
    for f in SIMPLE:
        assert sum(len(g.combinations(f, s, 0)) for s in g.SPLITS) >= 600


def test_the_output_follows_from_the_seed_and_a_cut_file_is_continued(tmp_path):
    flags = ["--families", "fee,quiz", "--train", 12, "--val", 2, "--test", 2]
    command(*flags, "--out", tmp_path / "a")
    command(*flags, "--out", tmp_path / "b")
    command(*flags, "--out", tmp_path / "c", "--seed", 1)
    whole = (tmp_path / "a/train.jsonl").read_bytes()
    assert (tmp_path / "b/train.jsonl").read_bytes() == whole != (tmp_path / "c/train.jsonl").read_bytes()
    (tmp_path / "b/train.jsonl").write_bytes(whole[:len(whole) // 2])
    command(*flags, "--out", tmp_path / "b")
    assert (tmp_path / "b/train.jsonl").read_bytes() == whole
    command(*flags[:2], "--train", 8, "--val", 2, "--test", 2, "--out", tmp_path / "d")
    assert whole.startswith((tmp_path / "d/train.jsonl").read_bytes())


def test_a_detail_that_no_call_can_show_is_rejected(monkeypatch):
    fee = g.FAMILIES["fee"]
    blind = {**fee, "details": fee["details"] + [g.detail("unused", "Unused?", ["unused"], "It is {}.", [1, 2])]}
    monkeypatch.setitem(g.FAMILIES, "blind", blind)
    values = tuple(next(iter(d["values"])) for d in blind["details"])
    task, reason = g.draft("blind", values, 0)
    assert task is None and reason == "no calls show blind.unused"


def test_the_usual_value_comes_first_more_often():
    first = g.combinations("fee", "train", 0)[:200]
    i = [d["name"] for d in g.FAMILIES["fee"]["details"]].index("extra")
    share = sum(v[i] == "5" for v in first) / 200
    assert 0.5 < share < 0.85  # 0.7 asked for, 0.25 if the values were alike


# --- facts --------------------------------------------------------------------------------------------------------------------

def hits(facts, text):
    return [len(words(text) & set(f["keywords"])) for f in facts]


def test_own_questions_find_their_fact_and_foreign_questions_find_none(tasks):
    for t in tasks:
        own = [f["question"] for f in t["facts"]]
        for i, question in enumerate(own):
            h = hits(t["facts"], question)
            assert h[i] and [k for k, n in enumerate(h) if n == max(h)] == [i], (t["source"], question, h)
        for other in tasks:
            for f in other["facts"]:
                if f["question"] not in own:
                    assert not any(hits(t["facts"], f["question"])), (t["source"], f["question"])


def test_replies_are_short_and_keywords_single_words(tasks):
    for f in (f for t in tasks for f in t["facts"]):
        assert len(f["reply"]) <= 400 and f["reply"].endswith(".") and f["question"].endswith("?")
        assert all(re.fullmatch(r"[a-z]+", k) for k in f["keywords"])


# --- the simple families ------------------------------------------------------------------------------------------------------

def pieces(text):
    """Words and numbers with their leading space, runs of other signs, line breaks with their indent."""
    return re.findall(r"\n *| ?\w+| ?[^\w\s]+| +", text)


def test_simple_families_have_few_words_and_short_texts():
    vocabulary = set()
    for family in SIMPLE:
        f = g.FAMILIES[family]
        assert len(f["about"].split()) <= 25 and family in words(f["about"]) and 3 <= len(f["details"]) <= 4
        vocabulary |= set(pieces(f["about"]))
        for d in f["details"]:
            assert 4 <= len(d["question"].split()) <= 7
            vocabulary |= set(pieces(d["question"]))
            for v in d["values"]:
                reply = d["reply"].format(v)
                assert reply.rstrip('."').endswith(v), reply
                vocabulary |= set(pieces(reply))
        for values in g.combinations(family, "val", 0):
            code = g.source_code(family, values)
            assert 3 <= code.count("\n") <= 7 and len(pieces(code)) <= 75
            vocabulary |= set(pieces(code))
    assert len(vocabulary) < 250, len(vocabulary)


def test_simple_values_are_the_same_piece_in_the_reply_and_in_the_code():
    for family in SIMPLE:
        for d, i in zip(g.FAMILIES[family]["details"], itertools.count()):
            for values in g.combinations(family, "val", 0):
                if d["values"][values[i]] == values[i] and d["name"] != "case":
                    value = next(p for p in reversed(pieces(d["reply"].format(values[i]))) if p.strip() == values[i])
                    assert value in pieces(g.source_code(family, values)), (family, d["name"], value)


# --- demonstrations -----------------------------------------------------------------------------------------------------------

def demonstrations(folder, *flags):
    out = folder / ("demo" + "".join(map(str, flags)) + ".jsonl")
    command("--demonstrations", 400, "--in", folder / "train.jsonl", "--out", out, *flags)
    return records(out)


def exchanges(record):
    h = record["dialogue_history"]
    assert [m["role"] for m in h] == ["user", "assistant"] * (len(h) // 2) and len(h) <= 20
    return [(h[i]["content"], h[i + 1]["content"]) for i in range(1, len(h) - 1, 2)]


def test_with_ask_1_and_waste_0_every_detail_is_asked_once_and_the_answer_is_right(folder):
    for r in demonstrations(folder, "--ask", 1, "--waste", 0):
        facts = {f["question"]: f["reply"] for f in r["task"]["facts"]}
        assert dict(exchanges(r)) == facts and len(exchanges(r)) == len(facts)
        assert r["answer"] == r["task"]["ground_truth"].strip()
        assert r["dialogue_history"][-1]["content"] == f"I WANT TO ANSWER:\n{r['answer']}"


def test_demonstrations_ask_waste_and_guess_as_often_as_told(folder):
    made = demonstrations(folder, "--ask", 0.6, "--waste", 0.2)
    asked = needed = wasted = chances = full = right = blind_right = 0
    for r in made:
        facts = {f["question"]: f["reply"] for f in r["task"]["facts"]}
        said = exchanges(r)
        assert all(reply == facts.get(q, "I do not know.") for q, reply in said)
        known = {q for q, _ in said} & set(facts)
        asked, needed = asked + len(known), needed + len(facts)
        wasted, chances = wasted + len(said) - len(known), chances + len(known) + 1
        correct = r["answer"] == r["task"]["ground_truth"].strip()
        full += len(known) == len(facts)
        right += correct and len(known) == len(facts)
        blind_right += correct and len(known) < len(facts)
    assert abs(asked / needed - 0.6) < 0.05 and abs(wasted / chances - 0.2) < 0.05
    assert right == full  # who asked everything answers right
    assert 0 < blind_right < 0.25 * (len(made) - full)  # a guess is right now and then
    assert len({(r["task_id"], r["sample"]) for r in made}) == 400


def test_the_scripted_simulator_gives_these_replies(folder):
    scripted_reply = importlib.import_module("rollout").scripted_reply
    for r in demonstrations(folder, "--ask", 0.5, "--waste", 0.5):
        for question, reply in exchanges(r):
            assert scripted_reply(r["task"]["facts"], question) == reply, (r["task"]["source"], question)


# --- mistakes -----------------------------------------------------------------------------------------------------------------

def test_mistakes_are_answered_in_one_sentence(folder, tmp_path):
    def refused(text, *flags):
        r = command(*flags, ok=False)
        assert r.returncode == 2 and text in r.stderr and "Traceback" not in r.stderr, r.stderr
    refused("no family is called 'nosuch'", "--families", "nosuch", "--out", tmp_path)
    refused("fewer than the 100000 asked for", "--families", "fee", "--train", 100000, "--out", tmp_path)
    refused("seed was 0, now 1", "--train", 19, "--val", 19, "--test", 19, "--seed", 1, "--out", folder)
    refused("already holds 19 tasks", "--train", 5, "--val", 19, "--test", 19, "--out", folder)
    refused("--ask is a probability", "--demonstrations", 5, "--ask", 2)
    refused("no such file", "--demonstrations", 5, "--in", tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"task_id": "x"}\n')
    refused("line 1", "--demonstrations", 5, "--in", tmp_path / "bad.jsonl")
    (tmp_path / "other.jsonl").write_text('{"task_id": "x", "problem_description": "p", "source": "colbench"}\n')
    refused("procedural task", "--demonstrations", 5, "--in", tmp_path / "other.jsonl", "--out", tmp_path / "d.jsonl")
