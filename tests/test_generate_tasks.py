import ast
import http.server
import itertools
import json
import math
import random
import re
import signal
import subprocess
import sys
import threading
import time
import types
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import function_tasks  # noqa: E402
import human  # noqa: E402
import generate_tasks as g  # noqa: E402
import rollout  # noqa: E402
from sandbox import Sandbox  # noqa: E402


def command(*flags, ok=True, cwd=None):
    r = subprocess.run([sys.executable, ROOT / "generate_tasks.py", *map(str, flags)], capture_output=True, text=True,
                       cwd=cwd)
    assert (r.returncode == 0) == ok, r.stderr + r.stdout
    return r


def records(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tasks in many wordings, as the real command writes them."""
    out = tmp_path_factory.mktemp("tasks")
    command("--train", 60, "--val", 10, "--test", 20, "--out", out)
    return out


@pytest.fixture(scope="module")
def tasks(folder):
    return [task for split in g.SPLITS for task in records(folder / f"{split}.jsonl")]


# --- the grammar

def drafts(split, count, seed=0, plain=False, kinds=tuple(function_tasks.KINDS)):
    """Tasks without their calls."""
    return list(itertools.islice(function_tasks.draw_tasks(split, list(kinds), plain, seed), count))


def test_there_are_a_hundred_compositions_and_a_quarter_of_them_is_new():
    halves = [function_tasks.half_of(composition) for composition in function_tasks.COMPOSITIONS]
    assert len(function_tasks.COMPOSITIONS) == len(set(function_tasks.COMPOSITIONS)) >= 100
    assert 0.2 < halves.count("new") / len(halves) < 0.32
    for kind in function_tasks.KINDS:
        own = [half for composition, half in zip(function_tasks.COMPOSITIONS, halves) if composition[1] == kind]
        assert {"seen", "new"} == set(own), kind


def test_ten_thousand_tasks_have_nine_thousand_distinct_requests():
    requests = [task["problem_description"] for task in drafts("train", 10_000)]
    assert len(requests) == 10_000 and len(set(requests)) >= 9000


def test_training_has_no_new_composition_and_the_splits_share_no_function_whatever_the_seed():
    made = {(split, seed): drafts(split, 300, seed) for split in g.SPLITS for seed in (0, 1)}
    for (split, _), tasks in made.items():
        halves = [task["half"] for task in tasks]
        assert all(task["half"] == function_tasks.half_of(tuple(task["composition"])) for task in tasks)
        assert halves == ["seen"] * 300 if split == "train" else halves == ["seen", "new"] * 150
    functions = {split: {task["ground_truth"] for seed in (0, 1) for task in made[split, seed]} for split in g.SPLITS}
    for one, other in itertools.combinations(g.SPLITS, 2):
        assert not functions[one] & functions[other]


def test_draws_are_independent_so_that_train_and_test_agree_within_sampling_error():
    """Over five seeds, the share of each value among the `seen` tasks of a split: beyond two standard errors as often as
    chance has it (5%), and never beyond five."""
    counts = {split: Counter() for split in g.SPLITS}
    for seed in range(5):
        for split in g.SPLITS:
            for task in drafts(split, 400, seed):
                if task["half"] == "seen":
                    counts[split].update(["tasks", task["source"], task["theme"]])
                    counts[split].update((slot, str(value)) for slot, value in task["details"].items())
    distances = []
    for other in ("val", "test"):
        n, m = counts["train"]["tasks"], counts[other]["tasks"]
        for value in counts["train"]:
            p, q = counts["train"][value] / n, counts[other][value] / m
            pooled = (counts["train"][value] + counts[other][value]) / (n + m)
            if 0.005 < pooled < 1:
                distances.append(abs(p - q) / math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m)))
    assert len(distances) > 200 and max(distances) < 5
    assert sum(distance > 2 for distance in distances) < 0.1 * len(distances)


def test_four_to_six_details_are_open_and_often_one_that_depends_on_another():
    tasks = drafts("train", 1000)
    number = Counter(len(task["facts"]) for task in tasks)
    assert set(number) == {4, 5, 6} and min(number.values()) > 200
    assert sum(any(fact["detail"] in function_tasks.CONDITIONAL for fact in task["facts"]) for task in tasks) > 200
    for task in tasks:
        opened = {fact["detail"] for fact in task["facts"]}
        for child, (parent, needed) in function_tasks.CONDITIONAL.items():
            assert (child in task["details"]) == (task["details"].get(parent) == needed)
            assert child not in task["details"] or parent not in opened or child in opened


def test_the_request_says_what_is_stated_and_nothing_of_what_is_open():
    for task in drafts("train", 600):
        request = task["problem_description"]
        opened = {fact["detail"] for fact in task["facts"]}
        numbers = re.findall(r"\d+", request)
        stated = {slot: str(value) for slot, value in task["details"].items() if slot not in opened}
        for slot, value in task["details"].items():
            if slot in ("field", "label", "word", "value", "factor", "second", "group"):
                assert (f'"{value}"' in request) == (slot not in opened), (slot, request)
            elif slot in ("limit", "fee", "cut", "cap", "floor", "many"):
                assert (str(value) in numbers) == (slot not in opened or str(value) in stated.values()), (slot, request)
        assert len(request) < 700


def test_every_slot_has_a_question_and_a_reply_for_each_of_its_values():
    """A grammar edit that makes a detail nobody can settle, or one that nobody can ask for, is named here."""
    used = set()
    for composition in function_tasks.COMPOSITIONS:
        for plain in (True, False):
            for slot, values in function_tasks.choices_of(composition, "orders", plain).items():
                used.add(slot)
                assert slot in function_tasks.SLOTS, f"{slot} has no question"
                for value in values:
                    for seed in range(3):
                        reply = function_tasks.reply_of(slot, value, plain, random.Random(seed))
                        assert len(reply) <= 130 and reply.endswith("."), (slot, value, reply)
                    others = {function_tasks.reply_of(slot, other, True, None) for other in values if other != value}
                    assert function_tasks.reply_of(slot, value, True, None) not in others, f"{slot}: two values, one reply"
    assert used == function_tasks.SLOTS.keys(), f"no composition has {function_tasks.SLOTS.keys() - used}"
    topics = {line.split("\t")[0] for line in (ROOT / "questions.tsv").read_text().splitlines()}
    assert function_tasks.SLOTS.keys() <= topics, f"the human knows no question about {function_tasks.SLOTS.keys() - topics}"


def test_every_question_of_the_grammar_is_understood_in_every_task(tasks):
    for task in tasks:
        hidden = {fact["detail"]: fact for fact in task["facts"]}
        for slot, about in function_tasks.SLOTS.items():
            for question in about.questions:
                reply, told = human.scripted_reply(task, question)
                if slot in hidden:
                    assert reply == hidden[slot]["reply"] and told == [slot, *hidden[slot]["implies"]], question
                else:
                    assert reply == task["replies"][slot] and told == [], (question, reply)


def test_the_plain_grammar_words_everything_in_one_way_and_types_its_keys():
    for task in drafts("train", 300, plain=True, kinds=["total", "average", "ranked"]):
        assert task["problem_description"].startswith(f"Write report(rows) for a list of {task['theme']}.")
        for fact in task["facts"]:
            assert fact["reply"] == function_tasks.reply_of(fact["detail"], task["details"][fact["detail"]], True, None)
        for slot in function_tasks.KEYS.keys() & task["details"].keys():
            assert task["details"][slot] in function_tasks.KEYS[slot]


# --- calls

def parts_of(task):
    return tuple(task["composition"]), task["theme"], task["details"], task["plain"]


def rows_of(task):
    return [ast.literal_eval(call.removeprefix("report(")[:-1]) for call in task["test_cases"].values()]


def test_each_wrong_value_of_each_detail_fails_a_call(tasks):
    """If a wrong value brings another detail along, one value of that must fail; the next test tries the others."""
    items = [((task["task_id"], *slot), task, program) for task in tasks
             for slot, program in function_tasks.with_one_wrong(*parts_of(task)).items()]
    tried, failed = {key[:3] for key, _, _ in items}, set()
    assert len(tried) > 15 * len(tasks) and len(items) > len(tried) + 3 * len(tasks)
    with Sandbox(workers=2) as box:
        for key, statuses in box.score_many(items):
            if set(statuses.values()) != {"passed"}:
                failed.add(key[:3])
    assert failed == tried


def test_wrong_programs_that_differ_on_any_of_300_inputs_fail_a_call(tasks):
    """At least 99% of the mutants, and 85% of those with a detail that the reference does not have."""
    counts = Counter()
    for task in tasks:
        composition, theme, values, plain = parts_of(task)
        rng = random.Random(task["task_id"])
        more = [function_tasks.draw_rows(theme, values, rng) for _ in range(300)]
        code = task["ground_truth"]
        right, right_more = function_tasks.results_of(code, rows_of(task)), function_tasks.results_of(code, more)
        programs = [("mutant", mutant) for mutant in function_tasks.mutants(code)]
        programs += [("brought", program) for slot, program in function_tasks.with_one_wrong(composition, theme, values, plain).items()
                     if len(slot) == 3]
        for kind, program in programs:
            if function_tasks.results_of(program, rows_of(task)) != right:
                counts[kind, "caught"] += 1
            elif function_tasks.results_of(program, more) != right_more:
                counts[kind, "missed"] += 1
    for kind, share in [("mutant", 0.99), ("brought", 0.85)]:
        caught, missed = counts[kind, "caught"], counts[kind, "missed"]
        assert caught > 300 and caught / (caught + missed) >= share, counts


def test_a_list_has_up_to_six_groups_so_that_the_first_few_are_not_all():
    rng = random.Random(0)
    lists = [function_tasks.draw_rows("orders", {}, rng) for _ in range(300)]
    for key in ("client", "city"):
        groups = Counter(len({row[key] for row in rows}) for rows in lists)
        assert max(groups) == 6 and groups[5] + groups[6] > 20, groups


def test_a_constant_answer_passes_an_eighth_of_the_calls_at_most(tasks):
    shares = []
    for task in tasks:
        results = Counter(function_tasks.results_of(task["ground_truth"], rows_of(task)))
        shares.append(max(results.values()) / 10)
    assert len(task["test_cases"]) == 10 and max(shares) <= 0.2
    assert sum(shares) / len(shares) <= 0.12


def test_references_run_twice_the_same(tasks):
    with Sandbox(workers=2) as box:
        for task in tasks:
            assert set(box.check_reference(task).values()) == {"ok"}, task["task_id"]


def test_a_detail_that_no_call_can_show_is_rejected(monkeypatch):
    """A slot whose value changes nothing in the function."""
    choices_of = function_tasks.choices_of
    monkeypatch.setattr(function_tasks, "choices_of", lambda *about: choices_of(*about) | {"unused": ["this", "that"]})
    composition = ("none", "total", "times", "bounded")
    values = function_tasks.draw_values(composition, "orders", True, random.Random(0))
    found = function_tasks.choose_calls(composition, "orders", values, True, random.Random(0))
    assert found == (None, "no input exposes a wrong value of unused")


def test_the_output_follows_from_the_seed_and_a_cut_file_is_continued(tmp_path):
    flags = ["--kinds", "total,ranked", "--train", 12, "--val", 2, "--test", 2]
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
    assert {task["source"] for task in records(tmp_path / "a/train.jsonl")} == {"procedural:total", "procedural:ranked"}


# --- demonstrations

def demonstrations(folder, *flags):
    out = folder / ("demo" + "".join(map(str, flags)) + ".jsonl")
    command("--demonstrations", 400, "--in", folder / "train.jsonl", "--out", out, *flags)
    return records(out)


def exchanges(record):
    """[(question, the human's message)]"""
    h = record["dialogue_history"]
    assert [m["role"] for m in h] == ["user", "assistant"] * (len(h) // 2) and len(h) <= 20
    return [(h[i]["content"], h[i + 1]) for i in range(1, len(h) - 1, 2)]


def hidden_of(record):
    return [fact["detail"] for fact in record["task"]["facts"]]


def test_with_ask_1_and_waste_0_every_detail_is_told_once_parents_first_and_the_answer_is_right(folder):
    for r in demonstrations(folder, "--ask", 1, "--waste", 0):
        told = [detail for _, message in exchanges(r) for detail in message["told"]]
        assert sorted(told) == sorted(hidden_of(r)) and len(exchanges(r)) == len(told)
        for child, (parent, _) in function_tasks.CONDITIONAL.items():
            assert child not in told or parent not in told or told.index(parent) < told.index(child)
        assert r["answer"] == r["task"]["ground_truth"].strip()
        assert r["dialogue_history"][-1]["content"] == f"I WANT TO ANSWER:\n{r['answer']}"


def test_demonstrations_ask_waste_and_guess_as_often_as_they_should(folder):
    made = demonstrations(folder, "--ask", 0.6, "--waste", 0.2)
    asked = needed = wasted = chances = full = right = lucky = 0
    for r in made:
        told, said = {detail for _, message in exchanges(r) for detail in message["told"]}, exchanges(r)
        asked, needed = asked + len(told), needed + len(hidden_of(r))
        wasted, chances = wasted + len(said) - len(told), chances + len(said) + 1
        correct = r["answer"] == r["task"]["ground_truth"].strip()
        complete = told == set(hidden_of(r))
        assert "min(out," not in r["answer"] or "max(out," not in r["answer"], "who heard of a cap guesses no floor"
        full, right, lucky = full + complete, right + (correct and complete), lucky + (correct and not complete)
    assert abs(asked / needed - 0.6) < 0.05 and abs(wasted / chances - 0.2) < 0.05
    assert right == full    # who asked everything answers right
    assert 0 < lucky < 0.3 * (len(made) - full)    # a guess is right now and then
    assert len({(r["task_id"], r["sample"]) for r in made}) == 400


def test_with_ask_0_nothing_is_asked_and_the_guesses_vary(folder):
    made = demonstrations(folder, "--ask", 0, "--waste", 0)
    assert all(exchanges(r) == [] for r in made)
    assert len({r["answer"] for r in made}) > len(made) / 2


def test_demonstrations_end_within_the_turns_given_and_follow_from_the_seed(folder):
    made = demonstrations(folder, "--ask", 1, "--waste", 0.5, "--max-turns", 3)
    assert {len(r["dialogue_history"]) for r in made} == {6}
    other = demonstrations(folder, "--ask", 1, "--waste", 0.5, "--max-turns", 3, "--seed", 1)
    assert sum(a["dialogue_history"] == b["dialogue_history"] for a, b in zip(made, other)) < 40


def test_the_scripted_human_of_rollouts_gives_these_replies(folder):
    for r in demonstrations(folder, "--ask", 0.5, "--waste", 0.5):
        for question, message in exchanges(r):
            reply, told = human.scripted_reply(r["task"], question)
            assert reply == message["content"] and set(message["told"]) <= set(told), question


# --- mistakes 

def test_mistakes_are_answered_in_one_sentence(folder, tmp_path):
    def refused(text, *flags):
        r = command(*flags, ok=False)
        assert r.returncode == 2 and text in r.stderr and "Traceback" not in r.stderr, r.stderr
    refused("unknown kind 'nosuch'", "--kinds", "nosuch", "--out", tmp_path)
    refused("seed was 0, now 1", "--train", 60, "--val", 10, "--test", 20, "--seed", 1, "--out", folder)
    refused("there are no frontend tasks", "--domain", "frontend", "--source", "llm")
    refused("needs --in", "--source", "colbench")
    refused("--ask: must be at least 0 and at most 1", "--demonstrations", 5, "--ask", 2)
    refused("no such file", "--demonstrations", 5, "--in", tmp_path / "none.jsonl")
    refused("No such file", "--source", "colbench", "--in", tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"task_id": "x"}\n')
    refused("line 1", "--demonstrations", 5, "--in", tmp_path / "bad.jsonl")
    refused("already holds 60 records", "--train", 5, "--val", 10, "--test", 20, "--out", folder)
    (tmp_path / "other.jsonl").write_text(
        '{"task_id": "x", "problem_description": "p", "ground_truth": "g", "source": "colbench"}\n')
    refused("procedural task", "--demonstrations", 5, "--in", tmp_path / "other.jsonl", "--out", tmp_path / "d.jsonl")


def test_demonstrations_refuse_a_task_of_another_shape_and_leave_nothing_behind(folder, tmp_path):
    good = records(folder / "train.jsonl")[0]
    path = tmp_path / "a.jsonl"
    for changed, text in (
            ({"facts": [1]}, "facts"), ({"facts": []}, "facts"), ({"facts": [{"detail": ["x"]}]}, "facts"),
            ({"details": {}}, "is missing"), ({"composition": ["none"]}, "unpack"), ({"theme": "x"}, "the key 'x'"),
            ({"ground_truth": "x"}, "procedural"), ({"ground_truth": None}, "ground_truth"),
            ({"domain": "frontend"}, "frontend")):
        path.write_text(json.dumps(good) + "\n" + json.dumps(good | {"task_id": "other"} | changed) + "\n")
        done = command("--demonstrations", 5, "--in", path, "--out", tmp_path / "b.jsonl", ok=False)
        assert done.returncode == 2 and "a.jsonl, line 2: " in done.stderr and text in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and list(tmp_path.iterdir()) == [path], done.stderr


def test_what_cannot_run_takes_nothing_away(folder, tmp_path):
    """Whatever --overwrite says: neither inputs nor what an earlier run wrote."""
    for path in folder.glob("*.jsonl"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / path.name).with_suffix(".settings.json").write_text("[1")
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "web").mkdir()
    (tmp_path / "web/val.jsonl").write_text('{"text": "An excerpt."}\n')
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    demonstrations = ["--demonstrations", 5, "--in", "train.jsonl"]
    for text, *flags in (
            ["train.jsonl is the input", *demonstrations, "--out", "train.jsonl", "--overwrite"],
            ["folder.jsonl cannot be written", *demonstrations, "--out", "folder.jsonl", "--overwrite"],
            ["must end in .jsonl", *demonstrations, "--out", "x"],
            ["settings.json: the settings", "--train", 19, "--out", "."],
            ["train.jsonl/train.jsonl cannot be written", "--train", 1, "--val", 0, "--test", 0, "--out",
             "train.jsonl"],
            ["--workers: must be at least 1", "--workers", 0],
            ["--waste: must be at least 0", "--demonstrations", 1, "--waste", "nan"]):
        done = command(*flags, ok=False, cwd=tmp_path)
        assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr, (flags, done.stderr)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before, flags


def test_a_split_that_cannot_be_continued_keeps_the_others_from_being_changed(tmp_path):
    flags = ["--kinds", "total", "--val", 0, "--out", tmp_path]
    command(*flags, "--train", 1, "--test", 3)
    before = (tmp_path / "train.jsonl").read_bytes()
    done = command(*flags, "--train", 5, "--test", 2, ok=False)
    assert "test.jsonl already holds 3" in done.stderr and (tmp_path / "train.jsonl").read_bytes() == before


def test_ctrl_c_is_quiet_and_leaves_whole_lines(tmp_path):
    process = subprocess.Popen([sys.executable, ROOT / "generate_tasks.py", "--out", "a"], cwd=tmp_path, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    out, deadline = tmp_path / "a/train.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline and not (out.exists() and out.stat().st_size):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "Traceback" not in said, said
    assert "run the same command without --overwrite to resume" in said and out.read_bytes().endswith(b"\n")


# --- released files

def released_task(code, name, description):
    return {"problem_description": description, "ground_truth": code,
            "test_cases": {f"test{i}": f"{name}({i})" for i in range(10)}}


RELEASED = [released_task("def f(x):\n    return x + 1\n", "f", "one more"),
            released_task("import math\ndef h(x):\n    return math.sqrt(x)\n", "h", "root"),  # fails if exec'd locally
            released_task("def k(x):\n    return 1 / (x - 3)\n", "k", "fails its own test")]


def write(path, records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def test_released_tasks_are_read_in_order(tmp_path):
    source = write(tmp_path / "released.jsonl", RELEASED + RELEASED[:1])
    command("--source", "colbench", "--split", "test", "--test", 3, "--in", source, "--out", tmp_path / "test.jsonl")
    made = records(tmp_path / "test.jsonl")
    assert [{k: t[k] for k in RELEASED[0]} for t in made] == RELEASED
    assert [t["task_id"] for t in made] == ["released-00001", "released-00002", "released-00003"]


def offline(task, reply="I WANT TO ANSWER: x", answer="x"):
    """An offline trajectory in the released shape: a question, its reply, and a last turn."""
    said = [("user", task["problem_description"]), ("assistant", "How?"), ("user", "So."), ("assistant", reply)]
    history = [{"role": role, "content": text} for role, text in said]
    history[1] |= {"input": "<prompt>", "output": "I think.\nOUTPUT: How?"}
    history[3] |= {"input": "<prompt>How? So.", "output": "I think.\nOUTPUT: " + reply}
    return {"task": task, "dialogue_history": history, "answer": answer, "reward": 0.25}


def test_samples_of_released_trajectories_are_matched_over_blocks(tmp_path):
    lines = [offline(t, reply=f"I WANT TO ANSWER: {s}" if s else "no") for s in range(3) for t in RELEASED]
    source = write(tmp_path / "offline.jsonl", lines)
    out = tmp_path / "o.jsonl"
    command("--source", "colbench", "--in", source, "--out", out)
    whole, made = out.read_bytes(), records(out)
    instructions = rollout.system_prompt(types.SimpleNamespace(domain="backend", max_turns=10))
    ids, samples = [t["task_id"] for t in made], [t["sample"] for t in made]
    assert len(set(ids)) == 3 and ids == 3 * ids[:3] and samples == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for line, t in zip(lines, made):
        assert t["released_reward"] == line["reward"] and "reward" not in t and t["task"]["task_id"] == t["task_id"]
        assert t["dialogue_history"] == line["dialogue_history"] and t["task"].items() >= line["task"].items()
        assert t["finish"] == ("answered" if t["sample"] else "max_turns") and t["system"] == instructions
    out.write_bytes(whole[:-40])
    command("--source", "colbench", "--in", source, "--out", out)
    assert out.read_bytes() == whole
    write(tmp_path / "mixed.jsonl", lines[:1] + RELEASED)
    r = command("--source", "colbench", "--in", tmp_path / "mixed.jsonl", "--out", tmp_path / "m.jsonl", ok=False)
    assert r.returncode == 2 and "line 2: the key 'task' is missing" in r.stderr


def test_released_answers_with_the_mark_are_taken_apart_by_the_one_rule(tmp_path):
    code = 'def f(x):\n    print("OUTPUT:")\n    return x + 1'
    lines = [offline(RELEASED[0], answer=answer) for answer in (
        code, f"Thought. OUTPUT: I WANT TO ANSWER:\n{code}", f"I WANT TO ANSWER: {code}\n# I WANT TO ANSWER: no", None)]
    command("--source", "colbench", "--in", write(tmp_path / "a.jsonl", lines), "--out", tmp_path / "o.jsonl")
    assert [r["answer"] for r in records(tmp_path / "o.jsonl")] == [
        code, code, f"{code}\n# I WANT TO ANSWER: no", None]


def test_released_pages_are_read_without_test_cases_and_backend_tasks_are_not(tmp_path):
    pages = [{"problem_description": f"Page {n}", "ground_truth": f"<html>{n}</html>"} for n in range(3)]
    source = write(tmp_path / "pages.jsonl", pages)
    command("--domain", "frontend", "--source", "colbench", "--in", source, "--out", tmp_path / "o.jsonl", "--train", 2)
    assert [t["ground_truth"] for t in records(tmp_path / "o.jsonl")] == ["<html>0</html>", "<html>1</html>"]
    r = command("--source", "colbench", "--in", source, "--out", tmp_path / "b.jsonl", ok=False)
    assert r.returncode == 2 and "pages.jsonl, line 1: the key 'test_cases' is missing" in r.stderr


def test_the_same_file_by_another_path_is_the_same_input_and_a_changed_one_is_not(tmp_path):
    source = write(tmp_path / "a.jsonl", RELEASED)
    flags = ["--source", "colbench", "--out", tmp_path / "o.jsonl"]
    command(*flags, "--in", source)
    moved = write(tmp_path / "b.jsonl", RELEASED)
    command(*flags, "--in", moved)
    write(moved, RELEASED[:2])
    r = command(*flags, "--in", moved, ok=False)
    assert r.returncode == 2 and "content of --in was" in r.stderr


# --- tasks from a language model

def response(description, code, calls):
    listed = "".join(f"{i + 1}. `{c}`\n" for i, c in enumerate(calls))
    return f"Sure.\nDESCRIPTION:\n{description}\nCODE:\n```python\n{code}\n```\nCALLS:\n{listed}"


def good(i):
    return response(f"Write tool{i}(x) that helps with topic {i} in our workshop number {i} and nothing else at all.",
                    f"def tool{i}(x):\n    return x * {i + 2}", [f"tool{i}({n})" for n in range(10)])


TEN = [f"f({n})" for n in range(10)]
BAD = {"not in the requested form": "I will not.",
       "code does not parse": response("d", "def f(:", TEN),
       "more than 50 lines": response("d", "def f(x):\n" + "    x += 1\n" * 50 + "    return x", TEN),
       "fewer than ten different calls": response("d", "def f(x):\n    return x", TEN[:8] + TEN[:2]),
       "no call of the function": response("d", "def f(x):\n    return x", [f"g({n})" for n in range(10)]),
       "reference: error: ZeroDivisionError": response("d", "def f(x):\n    return 1 / x", TEN),
       "reference: none": response("d", "def f(x):\n    pass", TEN),
       "reference: timeout": response(    # the limit of scoring is a second
           "d", "import time\ndef f(x):\n    time.sleep(1.5 * (x == 0))\n    return x", TEN),
       "reference: differs": response("d", "import random\ndef f(x):\n    return random.random()", TEN),
       "all results equal": response("d", "def f(x):\n    return 7", TEN)}


@pytest.fixture
def server():
    """An OpenAI-compatible server: each excerpt names its reply; one request in three meets a busy or gone server."""
    class Handler(http.server.BaseHTTPRequestHandler):
        model, requests, prompts = "stub", 0, []

        def answer(self, body, code=200):
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            self.answer({"data": [{"id": self.model}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            Handler.requests += 1
            if Handler.requests % 6 == 2:
                return self.answer({"error": {"message": "busy"}}, 429)
            if Handler.requests % 6 == 5:
                return self.connection.close()
            excerpt = re.search(r"<excerpt>\n(.*)\n</excerpt>", body["messages"][0]["content"], re.S)[1]
            Handler.prompts.append(excerpt)
            if excerpt == "refuse":
                return self.answer({"error": {"message": "no"}}, 400)
            text = good(int(excerpt[5:])) if excerpt.startswith("good ") else BAD[excerpt]
            self.answer({"choices": [{"message": {"content": text}}]})

        def log_message(self, *_):
            pass

    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=s.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{s.server_port}/v1", Handler
    s.shutdown()


def test_tasks_from_a_model_are_validated_and_the_yield_is_reported_by_reason(server, tmp_path):
    url, handler = server
    excerpts = [f"good {i}" for i in range(12)] + list(BAD) + ["refuse"]
    source = write(tmp_path / "excerpts.jsonl", [{"text": e} for e in excerpts])
    flags = ["--source", "llm", "--in", source, "--model", url, "--out", tmp_path / "out", "--train", 60, "--val", 20,
             "--test", 40, "--concurrency", 12]
    r = command(*flags)
    for reason in [*BAD, "request refused"]:
        assert f"  1 x {reason}\n" in r.stdout, (reason, r.stdout)
    made = {s: records(tmp_path / f"out/{s}.jsonl") for s in g.SPLITS if (tmp_path / f"out/{s}.jsonl").exists()}
    assert {t["problem_description"] for s in made for t in made[s]} == {
        g.parse_task(good(i))[0]["problem_description"] for i in range(12)}
    assert {"train", "test"} <= made.keys()
    assert {t["source"] for s in made for t in made[s]} == {"llm:stub"}, "which model, not which address"
    assert all(g.split_of(excerpts[t["excerpt"]]) == split for split in made for t in made[split])
    assert sorted(handler.prompts) == sorted(excerpts)  # nothing lost, nothing asked twice in spite of the failures

    # a kill: a run goes on behind the last task of each split
    whole = {s: (tmp_path / f"out/{s}.jsonl").read_bytes() for s in made}
    last = dict.fromkeys(g.SPLITS, -1)
    for split in made:
        kept = made[split][:len(made[split]) // 2]
        last[split] = kept[-1]["excerpt"] if kept else -1
        write(tmp_path / f"out/{split}.jsonl", kept)
    handler.prompts.clear()
    command(*flags)
    for name, text in whole.items():
        assert (tmp_path / f"out/{name}.jsonl").read_bytes() == text, name
    assert sorted(handler.prompts) == sorted(e for i, e in enumerate(excerpts) if i > last[g.split_of(e)])
    assert len(handler.prompts) < len(excerpts)
    r = command(*flags, "--temperature", 0.5, "--extra-body", '{"top_k": 1}', ok=False)
    assert r.returncode == 2 and "temperature was 1.0, now 0.5; extra_body was None, now {'top_k': 1}" in r.stderr
    handler.model = "other"
    r = command(*flags, ok=False)
    assert r.returncode == 2 and "model_name was 'stub', now 'other'" in r.stderr


def test_a_response_of_white_space_is_read_in_no_time():
    begun = time.process_time()
    summed = "def f(x=" + " + ".join(["1"] * 600) + "):\n    return x"
    assert g.parse_task(response("Do it.", summed, TEN)) == (None, "code does not parse")
    assert g.parse_task("DESCRIPTION:" + "\n" * 20_000) == (None, "not in the requested form")
    assert time.process_time() - begun < 5, "it was cubic: 6,000 took minutes"


def test_no_more_is_asked_for_than_is_wanted(server, tmp_path):
    """However many requests are under way: the attempts end with the last task that was asked for."""
    url, handler = server
    source = write(tmp_path / "excerpts.jsonl", [{"text": f"good {i:02d}"} for i in range(40)])
    command("--source", "llm", "--in", source, "--model", url, "--out", tmp_path / "out", "--train", 7, "--val", 0,
            "--test", 0)
    assert len(records(tmp_path / "out/train.jsonl")) == len(handler.prompts) == 7


def test_a_server_that_is_gone_stops_the_run_in_one_sentence(tmp_path):
    source = write(tmp_path / "e.jsonl", [{"text": "one"}, {"text": "two"}])
    r = command("--source", "llm", "--in", source, "--model", "http://127.0.0.1:9/v1", "--model-name", "m",
                "--out", tmp_path / "out", "--retries", 0, ok=False)
    assert r.returncode == 1 and "finished tasks are saved" in r.stderr and "Traceback" not in r.stderr
    assert not list(tmp_path.glob("out/*"))


def test_a_model_that_cannot_be_loaded_takes_nothing_away(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    source = write(tmp_path / "e.jsonl", [{"text": "An excerpt."}])
    write(tmp_path / "train.jsonl", [{"excerpt": 0}])
    flags = ["--source", "llm", "--in", source, "--out", tmp_path, "--overwrite", "--engine",
             "transformers", "--model"]
    for text, model in ("nope", "nope"), ("train.jsonl is the input", tmp_path / "train.jsonl"):
        r = command(*flags, model, ok=False)
        assert r.returncode in (1, 2) and text in r.stderr and "Traceback" not in r.stderr, r.stderr
    assert records(tmp_path / "train.jsonl") == [{"excerpt": 0}]


def test_a_thought_is_no_part_of_a_task():
    task, draft = g.parse_task(good(3)), response("It adds seven.", "def f(x):\n    return x + 7", TEN)
    assert task[0] and g.parse_task(f"<think>{draft}</think>\n{good(3)}") == task
    assert g.parse_task(f"Draft. DESCRIPTION: It adds seven.</think>{good(3)}") == task    # the template opened it
    assert g.parse_task(f"<think>{draft}") == (None, "not in the requested form"), "it was cut"


def test_the_signature_is_named_in_the_description():
    named, _ = g.parse_task(good(3))
    assert named["problem_description"].count("tool3(") == 1
    silent, _ = g.parse_task(response("Do it.", "def f(x, y=2):\n    return x", TEN))
    assert silent["problem_description"] == "Do it. Signature: f(x, y=2)."
