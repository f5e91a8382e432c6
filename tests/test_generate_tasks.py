import http.server
import importlib
import itertools
import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import generate_tasks as g  # noqa: E402
from sandbox import Sandbox  # noqa: E402

SIMPLE = ["total", "average", "best", "fee", "score", "code"]


def command(*flags, ok=True, cwd=None):
    r = subprocess.run([sys.executable, ROOT / "generate_tasks.py", *map(str, flags)], capture_output=True, text=True,
                       cwd=cwd)
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


# --- tasks 

def test_each_wrong_value_of_each_detail_fails_a_call(tasks):
    items = []
    for t in tasks:
        family, values = t["source"].partition(":")[2], tuple(t["details"].values())
        assert t["ground_truth"] == g.source_code(family, values)
        items += [((t["task_id"], name, wrong), t, g.source_code(family, wrong))
                  for name, wrong in g.flips(family, values)]
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
    blind = {**fee, "details": fee["details"] + [g.detail("unused", "Unused?", "unused", "It is {}.", [1, 2])]}
    monkeypatch.setitem(g.FAMILIES, "blind", blind)
    values = tuple(next(iter(d["values"])) for d in blind["details"])
    task, reason = g.draft("blind", values, 0)
    assert task is None and reason == "no calls show blind.unused"


def test_a_wrong_detail_that_the_sandbox_cannot_see_is_reported():
    values = g.combinations("fee", "train", 0)[0]
    task, _ = g.draft("fee", values, 0)
    near = {**task, "test_cases": {str(i): f"fee({i}, {i == 0})" for i in range(3)}}  # no weight above a threshold
    with Sandbox(workers=1) as box:
        assert g.unseen_detail(box, "fee", values, task, 0) is None
        assert g.unseen_detail(box, "fee", values, near, 0) == "threshold"
        assert g.sandbox_verdicts(box, [("fee", values, t) for t in (task, near)], 0) == [
            None, "no calls show fee.threshold"]


def test_the_usual_value_comes_first_more_often():
    first = g.combinations("fee", "train", 0)[:200]
    i = [d["name"] for d in g.FAMILIES["fee"]["details"]].index("extra")
    share = sum(v[i] == "5" for v in first) / 200
    assert 0.5 < share < 0.85  # 0.7 asked for, 0.25 if the values were alike


# --- facts 

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


# --- the simple families 

def pieces(text):
    """Words and numbers with their leading space, runs of other signs, line breaks with their indent."""
    return re.findall(r"\n[ \t]*| ?[^\W\d]+| ?\d+(?:\.\d+)?| ?[^\s\w]+|[^\S\n]+", text)


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


# --- demonstrations 

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
        wasted, chances = wasted + len(said) - len(known), chances + len(said) + 1
        correct = r["answer"] == r["task"]["ground_truth"].strip()
        full += len(known) == len(facts)
        right += correct and len(known) == len(facts)
        blind_right += correct and len(known) < len(facts)
    assert abs(asked / needed - 0.6) < 0.05 and abs(wasted / chances - 0.2) < 0.05
    assert right == full  # who asked everything answers right
    assert 0 < blind_right < 0.25 * (len(made) - full)  # a guess is right now and then
    assert len({(r["task_id"], r["sample"]) for r in made}) == 400


def test_with_ask_0_nothing_is_asked_and_the_guesses_vary(folder):
    made = [r for r in demonstrations(folder, "--ask", 0, "--waste", 0) if r["task"]["source"] == "procedural:fee"]
    assert all(exchanges(r) == [] for r in made)
    assert len({r["answer"] for r in made}) > len(made) / 2


def test_demonstrations_end_within_the_turns_given_and_follow_from_the_seed(folder):
    made = demonstrations(folder, "--ask", 1, "--waste", 0.5, "--max-turns", 3)
    assert {len(r["dialogue_history"]) for r in made} == {6}
    assert any(r["answer"] == r["task"]["ground_truth"].strip() for r in made)
    other = demonstrations(folder, "--ask", 1, "--waste", 0.5, "--max-turns", 3, "--seed", 1)
    assert sum(a["dialogue_history"] == b["dialogue_history"] for a, b in zip(made, other)) < 40
    of_one = [json.dumps(r["dialogue_history"]) for r in made if r["task_id"] == made[0]["task_id"]]
    assert len(set(of_one)) > 0.9 * len(of_one), "the samples of a task differ"


def test_the_scripted_simulator_gives_these_replies(folder):
    scripted_reply = importlib.import_module("rollout").scripted_reply
    for r in demonstrations(folder, "--ask", 0.5, "--waste", 0.5):
        for question, reply in exchanges(r):
            assert scripted_reply(r["task"]["facts"], question) == reply, (r["task"]["source"], question)


# --- mistakes 

def test_mistakes_are_answered_in_one_sentence(folder, tmp_path):
    def refused(text, *flags):
        r = command(*flags, ok=False)
        assert r.returncode == 2 and text in r.stderr and "Traceback" not in r.stderr, r.stderr
    refused("no family is called 'nosuch'", "--families", "nosuch", "--out", tmp_path)
    refused("fewer than the 100000 asked for", "--families", "fee", "--train", 100000, "--out", tmp_path)
    refused("seed was 0, now 1", "--train", 19, "--val", 19, "--test", 19, "--seed", 1, "--out", folder)
    refused("there are no frontend tasks", "--domain", "frontend", "--source", "llm")
    refused("needs --in", "--source", "llm", "--model", "x")
    refused("--ask must be at least 0 and at most 1", "--demonstrations", 5, "--ask", 2)
    refused("no such file", "--demonstrations", 5, "--in", tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"task_id": "x"}\n')
    refused("line 1", "--demonstrations", 5, "--in", tmp_path / "bad.jsonl")
    refused("already holds 19 records", "--train", 5, "--val", 19, "--test", 19, "--out", folder)
    (tmp_path / "other.jsonl").write_text('{"task_id": "x", "problem_description": "p", "source": "colbench"}\n')
    refused("procedural task", "--demonstrations", 5, "--in", tmp_path / "other.jsonl", "--out", tmp_path / "d.jsonl")


def test_demonstrations_refuse_a_task_of_another_shape_and_leave_nothing_behind(folder, tmp_path):
    good = next(t for t in records(folder / "train.jsonl") if t["source"] == "procedural:fee")
    path = tmp_path / "a.jsonl"
    for changed, text in (
            ({"facts": [1]}, "facts"), ({"facts": []}, "facts"), ({"facts": [{"detail": ["x"]}]}, "facts"),
            ({"details": {}}, "details"), ({"details": good["details"] | {"large": [1]}}, "details"),
            ({"ground_truth": None}, "ground_truth"), ({"domain": None}, "domain None"), ({"task_id": 5}, "task_id 5")):
        path.write_text(json.dumps(good) + "\n" + json.dumps(good | changed) + "\n")
        done = command("--demonstrations", 5, "--in", path, "--out", tmp_path / "b.jsonl", ok=False)
        assert done.returncode == 2 and f"a.jsonl, line 2: demonstrations need a procedural task, found {text}" in \
            done.stderr and "Traceback" not in done.stderr and list(tmp_path.iterdir()) == [path], done.stderr


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
            ["val.jsonl is the input", "--source", "llm", "--in", "web/val.jsonl", "--out", "web", "--overwrite",
             "--model", "http://localhost:1", "--model-name", "x"],
            ["folder.jsonl is a folder", *demonstrations, "--out", "folder.jsonl", "--overwrite"],
            ["must be a file that ends in .jsonl", *demonstrations, "--out", "x"],
            ["settings.json: damaged", "--train", 19, "--out", "."],
            ["train.jsonl: File exists", "--train", 1, "--val", 0, "--test", 0, "--out", "train.jsonl"],
            ["cannot load nope", "--source", "llm", "--model", "nope", "--in", "web/val.jsonl", "--out", "new",
             "--overwrite"],
            ["fewer than the 99999 asked for", "--test", 99999, "--families", "fee", "--train", 1, "--val", 0,
             "--out", ".", "--overwrite"],
            ["all 0: nothing to make", "--train", 0, "--val", 0, "--test", 0, "--out", "."],
            ["--workers must be at least 1", "--workers", 0], ["--waste must be at least 0", "--waste", "nan"],
            ["--split goes with demonstrations or colbench", "--split", "test"],
            ["--families goes with procedural", *demonstrations, "--families", "fee"]):
        done = command(*flags, ok=False, cwd=tmp_path)
        assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr, (flags, done.stderr)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before, flags


@pytest.mark.parametrize("moment", ["imports", "writing"])
def test_ctrl_c_is_quiet_and_leaves_whole_lines(tmp_path, moment):
    process = subprocess.Popen([sys.executable, ROOT / "generate_tasks.py", "--out", "a"], cwd=tmp_path, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    out, deadline, maps = tmp_path / "a/train.jsonl", time.monotonic() + 60, Path(f"/proc/{process.pid}/maps")
    while time.monotonic() < deadline and not ("_ssl" in maps.read_text() if moment == "imports" else
                                               out.exists() and out.stat().st_size):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "Traceback" not in said
    assert moment == "imports" or out.read_bytes().endswith(b"\n")


def test_the_last_line_names_commands_that_find_the_output(tmp_path):
    def last(*flags):
        return command(*flags, cwd=tmp_path).stdout.splitlines()[-1].removeprefix("next: ")
    few = ["--families", "fee", "--train", 2, "--val", 0, "--test", 1]
    assert last(*few) == ("python generate_tasks.py --demonstrations 8000    or    "
                          "python rollout.py --split train --model MODEL")
    assert last(*few, "--out", "b c") == (
        "python generate_tasks.py --demonstrations 8000 --in 'b c/train.jsonl' --out 'b c/demonstrations.jsonl'    or"
        "    python rollout.py --split train --in 'b c/train.jsonl' --model MODEL")
    assert last("--demonstrations", 2, "--run", "foo") == ("python train_policy.py --method sft --model tiny --run foo "
                                                           "--in data/backend/demonstrations.jsonl")


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


def test_released_tasks_are_read_in_order_and_failing_references_counted(tmp_path):
    source = write(tmp_path / "released.jsonl", RELEASED + RELEASED[:1])
    r = command("--source", "colbench", "--split", "test", "--test", 3, "--in", source,
                "--out", tmp_path / "test.jsonl")
    made = records(tmp_path / "test.jsonl")
    assert [{k: t[k] for k in RELEASED[0]} for t in made] == RELEASED
    assert [t["task_id"] for t in made] == ["released-00001", "released-00002", "released-00003"]
    assert "1 of 3 references fail their own tests when run as modules\n  1 x error: ZeroDivisionError" in r.stdout
    assert "2 of 3 references fail their own tests when run as the released evaluation does" in r.stdout
    assert set(made[1]["reference_failures"]) == {"released"} and "reference_failures" not in made[0]
    assert made[2]["reference_failures"]["module"] == {"test3": "error: ZeroDivisionError"}


def test_samples_of_released_trajectories_are_matched_over_blocks(tmp_path):
    lines = [{"task": t, "answer": "x", "reward": 0.25 * s, "dialogue_history": [
        {"role": "user", "content": t["problem_description"]},
        {"role": "assistant", "content": f"I WANT TO ANSWER: {s}" if s else "no", "input": "<p>", "output": "raw"}]}
        for s in range(3) for t in RELEASED]
    source = write(tmp_path / "offline.jsonl", lines)
    out = tmp_path / "o.jsonl"
    r = command("--source", "colbench", "--in", source, "--out", out)
    whole, made = out.read_bytes(), records(out)
    assert "3 tasks with 3 samples" in r.stdout
    assert [(t["task_id"][-1], t["sample"]) for t in made] == [(str(i + 1), s) for s in range(3) for i in range(3)]
    for line, t in zip(lines, made):
        assert t["released_reward"] == line["reward"] and "reward" not in t
        assert t["dialogue_history"] == line["dialogue_history"] and t["task"].items() >= line["task"].items()
        assert t["finish"] == ("answered" if t["sample"] else "max_turns")
    out.write_bytes(whole[:-40])
    command("--source", "colbench", "--in", source, "--out", out)
    assert out.read_bytes() == whole
    write(tmp_path / "mixed.jsonl", lines[:1] + RELEASED)
    r = command("--source", "colbench", "--in", tmp_path / "mixed.jsonl", "--out", tmp_path / "m.jsonl", ok=False)
    assert r.returncode == 2 and "line 2: expected a released backend trajectory, found no" in r.stderr


# --- tasks from a language model

def response(description, code, calls):
    listed = "".join(f"{i + 1}. `{c}`\n" for i, c in enumerate(calls))
    return f"Sure.\nDESCRIPTION:\n{description}\nCODE:\n```python\n{code}\n```\nCALLS:\n{listed}"


def good(i):
    return response(f"Write tool{i}(x) that helps with topic {i} in our workshop number {i} and nothing else at all.",
                    f"def tool{i}(x):\n    return x * {i + 2}", [f"tool{i}({n})" for n in range(10)])


TEN = [f"f({n})" for n in range(10)]
BAD = {"not in the form asked for": "I will not.",
       "code does not parse": response("d", "def f(:", TEN),
       "more than 50 lines": response("d", "def f(x):\n" + "    x += 1\n" * 50 + "    return x", TEN),
       "fewer than ten different calls": response("d", "def f(x):\n    return x", TEN[:8] + TEN[:2]),
       "no call of a function of its own": response("d", "def f(x):\n    return x", [f"g({n})" for n in range(10)]),
       "reference: error: ZeroDivisionError": response("d", "def f(x):\n    return 1 / x", TEN),
       "reference: none": response("d", "def f(x):\n    pass", TEN),
       "reference: differs": response("d", "import random\ndef f(x):\n    return random.random()", TEN),
       "calls alike": response("d", "def f(x):\n    return 7", TEN),
       "duplicate source": response("Something else.", 'def other(x):\n    """Doc."""\n    return x * 2',
                                    [f"other({n})" for n in range(10)]),
       "near-duplicate description": response(
           "Please write tool0(x) that helps with topic 0 in our workshop number 0 and nothing else at all.",
           "def tool0(x):\n    return x - 9", [f"tool0({n})" for n in range(10)])}


@pytest.fixture
def server():
    """An OpenAI-compatible server: each excerpt names its reply; one request in three meets a busy or gone server."""
    class Handler(http.server.BaseHTTPRequestHandler):
        requests, prompts = 0, []

        def answer(self, body, code=200):
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            self.answer({"data": [{"id": "stub"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            Handler.requests += 1
            if Handler.requests % 6 == 2:
                return self.answer({"error": "busy"}, 429)
            if Handler.requests % 6 == 5:
                return self.connection.close()
            excerpt = re.search(r"<excerpt>\n(.*)\n</excerpt>", body["messages"][0]["content"], re.S)[1]
            Handler.prompts.append(excerpt)
            if excerpt == "refuse":
                return self.answer({"error": "no"}, 400)
            if excerpt == "rubbish":
                return self.answer({"choices": []})
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
    excerpts = [f"good {i}" for i in range(12)] + list(BAD) + ["refuse", "rubbish"]
    source = write(tmp_path / "excerpts.jsonl", [{"text": e} for e in excerpts])
    flags = ["--source", "llm", "--in", source, "--model", url, "--out", tmp_path / "out", "--train", 60, "--val", 0,
             "--test", 40, "--concurrency", 12]
    r = command(*flags)
    for reason in [*BAD, "request refused: HTTP 400", "server's answer has no content"]:
        assert f"  1 x {reason}\n" in r.stdout, (reason, r.stdout)
    assert "25 attempts on 25 excerpts; kept 12 (48.0%)" in r.stdout
    made = {s: records(tmp_path / f"out/{s}.jsonl") for s in g.SPLITS}
    assert {t["problem_description"] for s in made for t in made[s]} == {
        g.parse_task(good(i))[0]["problem_description"] for i in range(12)}
    assert made["train"] and made["test"] and not made["val"]
    assert sorted(handler.prompts) == sorted(excerpts)  # nothing lost, nothing asked twice in spite of the failures

    # a kill: a task is written, its attempt and the rest are not
    before = {s: (tmp_path / f"out/{s}.jsonl").read_bytes() for s in (*g.SPLITS, "attempts")}
    last = made["train"][-1]["excerpt"]
    (tmp_path / "out/attempts.jsonl").write_text(
        "".join(json.dumps(a) + "\n" for a in records(tmp_path / "out/attempts.jsonl") if a["excerpt"] < last))
    kept = [t for t in made["test"] if t["excerpt"] < last]
    write(tmp_path / "out/test.jsonl", kept)
    handler.prompts.clear()
    command(*flags)
    for s in g.SPLITS:
        assert (tmp_path / f"out/{s}.jsonl").read_bytes() == before[s]
    assert excerpts[last] not in handler.prompts and len(handler.prompts) == len(excerpts) - last - 1
    r = command(*flags, "--temperature", 0.5, ok=False)
    assert r.returncode == 2 and "temperature was 1.0, now 0.5" in r.stderr


def test_a_server_that_is_gone_stops_the_run_in_one_sentence(tmp_path):
    source = tmp_path / "e.txt"
    source.write_text("one\n\ntwo\n")
    r = command("--source", "llm", "--in", source, "--model", "http://127.0.0.1:9/v1", "--model-name", "m",
                "--out", tmp_path / "out", "--retries", 0, ok=False)
    assert r.returncode == 2 and "go on" in r.stderr and "Traceback" not in r.stderr


def test_text_files_are_cut_into_excerpts(tmp_path):
    (tmp_path / "e.txt").write_text("a" * 30 + "\n\n" + "b" * 30 + "\n\n" + "c" * 80 + "\n\n\nd\n")
    assert list(g.read_excerpts(tmp_path / "e.txt", 70)) == ["a" * 30 + "\n\n" + "b" * 30, "c" * 70, "d"]


def test_the_signature_is_named_in_the_description():
    named, _ = g.parse_task(good(3))
    assert named["problem_description"].count("tool3(") == 1
    silent, _ = g.parse_task(response("Do it.", "def f(x, y=2):\n    return x", TEN))
    assert silent["problem_description"] == "Do it. Signature: f(x, y=2)."
