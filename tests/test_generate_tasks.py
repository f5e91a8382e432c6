import ast
import inspect
import json
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
import generate_tasks as g  # noqa: E402
import llm_tasks  # noqa: E402
import records as kit  # noqa: E402
import rollout  # noqa: E402
from conftest import read_lines, running, write  # noqa: E402
from sandbox import Sandbox  # noqa: E402
from server import Response  # noqa: E402
from stub_server import Stub  # noqa: E402

SCRIPT = [sys.executable, ROOT / "generate_tasks.py"]


def command(*flags, ok=True, cwd=None, code=None):
    r = subprocess.run([*SCRIPT, *map(str, flags)], capture_output=True, text=True, cwd=cwd)
    assert (r.returncode == 0) == ok and code in (None, r.returncode), r.stderr + r.stdout
    assert "Traceback" not in r.stderr, r.stderr
    return r


def interrupted(*flags, cwd, ready):
    """The command is sent Ctrl-C once it is ready, and says so in one line."""
    with running(*SCRIPT, *flags, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while not ready() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130 and "Traceback" not in said, said
    assert "stopped; the same command without --overwrite resumes" in said


# ---- The shell: composed tasks and demonstrations

@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Composed tasks, as the real command writes them."""
    out = tmp_path_factory.mktemp("tasks")
    command("--train", 60, "--val", 10, "--test", 20, "--out", out)
    return out


def test_the_output_follows_from_the_seed_and_a_cut_file_is_continued(tmp_path):
    flags = ["--level", "plain", "--train", 12, "--val", 2, "--test", 2]
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
    refused = command("--train", 12, "--val", 2, "--test", 2, "--out", tmp_path / "a", ok=False, code=2)
    assert "level was 'plain', now 'full'" in refused.stderr


def test_the_splits_share_no_function(folder, tmp_path):
    command("--level", "plain", "--train", 30, "--val", 0, "--test", 0, "--out", tmp_path)
    plain, full = read_lines(tmp_path / "train.jsonl"), read_lines(folder / "train.jsonl")
    opening = [len({task["problem_description"][:25] for task in tasks[:30]}) for tasks in (plain, full)]
    assert opening[0] < opening[1], "the plain grammar words everything alike"
    functions = [{task["ground_truth"] for task in read_lines(folder / f"{split}.jsonl")} for split in g.SPLITS]
    assert [len(each) for each in functions] == [60, 10, 20] and len(set.union(*functions)) == 90


def test_demonstrations_are_dialogues_as_rollouts_write_them(folder, tmp_path):
    flags = ["--demonstrations", 150, "--in", folder / "train.jsonl"]
    command(*flags, "--out", tmp_path / "a.jsonl")
    made = read_lines(tmp_path / "a.jsonl")
    assert len({(r["task_id"], r["sample"]) for r in made}) == 150
    instructions = rollout.system_prompt(types.SimpleNamespace(domain="backend", max_turns=10))
    for r in made:
        h = r["dialogue_history"]
        assert [m["role"] for m in h] == ["user", "assistant"] * (len(h) // 2) and len(h) <= 20
        assert h[0]["content"] == r["task"]["problem_description"] and r["system"] == instructions
        assert h[-1]["content"] == f"I WANT TO ANSWER:\n{r['answer']}"
    whole = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "a.jsonl").write_bytes(whole[:len(whole) // 3])
    command(*flags, "--out", tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == whole
    command(*flags, "--out", tmp_path / "b.jsonl", "--seed", 1)
    assert (tmp_path / "b.jsonl").read_bytes() != whole


# ---- Mistakes

def test_mistakes_are_answered_in_one_sentence(folder, tmp_path):
    def refused(text, *flags):
        r = command(*flags, ok=False, code=2)
        assert text in r.stderr, r.stderr
    refused("seed was 0, now 1", "--train", 60, "--val", 10, "--test", 20, "--seed", 1, "--out", folder)
    refused("no grammar composes tasks of the domain 'games'", "--domain", "games")
    refused("--source llm makes tasks of the domain backend", "--domain", "frontend", "--source", "llm")
    refused("--source websight makes tasks of the domain frontend", "--domain", "backend", "--source", "websight")
    refused("needs --in", "--source", "colbench")
    refused("needs --model", "--source", "llm", "--in", "x")
    refused("--ask: must be at least 0 and at most 1", "--demonstrations", 5, "--ask", 2)
    refused("no such file", "--demonstrations", 5, "--in", tmp_path / "none.jsonl")
    refused("No such file", "--source", "colbench", "--in", tmp_path / "none.jsonl")
    refused("unrecognized arguments: --over", "--over")
    (tmp_path / "bad.jsonl").write_text('{"task_id": "x"}\n')
    refused("line 1", "--demonstrations", 5, "--in", tmp_path / "bad.jsonl")
    refused("already holds 60 records", "--train", 5, "--val", 10, "--test", 20, "--out", folder)
    (tmp_path / "other.jsonl").write_text(
        '{"task_id": "x", "problem_description": "p", "ground_truth": "g", "source": "colbench"}\n')
    refused("other.jsonl, line 1", "--demonstrations", 5, "--in", tmp_path / "other.jsonl", "--out",
            tmp_path / "d.jsonl")
    assert not (tmp_path / "d.jsonl").exists()


@pytest.mark.parametrize("flags, idle", [
    (["--ask=0.6", "--in", "x", "--model", "y", "--engine", "vllm"], "--ask, --engine, --in, --model"),
    (["--demonstrations", 2, "--level", "plain", "--source", "procedural", "--train", 3],
     "--level, --source, --train"),
    (["--source", "llm", "--in", "x", "--model", "y", "--waste", 1, "--level", "plain"], "--level, --waste"),
    (["--source", "colbench", "--in", "x", "--seed", 1, "--dtype", "float32", "--ask", 1], "--ask, --dtype, --seed"),
    (["--source", "websight", "--in", "x", "--split", "test", "--workers", 2], "--split, --workers")])
def test_flags_that_a_mode_ignores_are_refused(flags, idle):
    assert f"{idle} do nothing with --" in command(*flags, ok=False, code=2).stderr


def test_flags_of_local_models_are_refused_with_a_server():
    flags = ["--source", "llm", "--in", "x", "--model", "http://localhost:1", "--engine", "vllm", "--dtype", "float32"]
    assert "--dtype, --engine do nothing without a local model" in command(*flags, ok=False, code=2).stderr


def test_help_shows_every_flag_of_every_mode():
    shown = command("--help").stdout
    assert shown == command("--source", "llm", "--help").stdout
    for flag in ("--level", "--demonstrations", "--split", "--max-tokens", "--concurrency", "--engine", "--extra-body",
                 "--max-model-len", "--retries", "--timeout", "--data-parallel-size"):
        assert re.search(rf"^  {flag}\b", shown, re.M), flag
    assert "excerpts" in shown and "1.8" in shown


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
            ["val.jsonl is the input", "--source", "llm", "--in", "web/val.jsonl", "--model", "nope", "--out", "web",
             "--overwrite"],
            ["--workers: must be at least 1", "--workers", 0],
            ["--waste: must be at least 0", "--demonstrations", 1, "--waste", "nan"]):
        done = command(*flags, ok=False, cwd=tmp_path, code=2)
        assert text in done.stderr, (flags, done.stderr)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before, flags


def test_a_split_that_cannot_be_continued_keeps_the_others(tmp_path):
    flags = ["--level", "plain", "--val", 0, "--out", tmp_path]
    command(*flags, "--train", 1, "--test", 3)
    before = (tmp_path / "train.jsonl").read_bytes()
    done = command(*flags, "--train", 5, "--test", 2, ok=False)
    assert "test.jsonl already holds 3" in done.stderr and (tmp_path / "train.jsonl").read_bytes() == before


def test_ctrl_c_is_quiet_and_leaves_whole_lines(tmp_path):
    out = tmp_path / "a/train.jsonl"
    interrupted("--out", "a", cwd=tmp_path, ready=lambda: out.exists() and out.stat().st_size)
    assert out.read_bytes().endswith(b"\n")


# ---- Released files

def released_task(code, name, description):
    return {"problem_description": description, "ground_truth": code,
            "test_cases": {f"test{i}": f"{name}({i})" for i in range(10)}}


RELEASED = [released_task("def f(x):\n    return x + 1\n", "f", "one more"),
            released_task("import math\ndef h(x):\n    return math.sqrt(x)\n", "h", "root"),  # fails if exec'd locally
            released_task("def k(x):\n    return 1 / (x - 3)\n", "k", "fails its own test")]


def test_released_tasks_are_read_in_order(tmp_path):
    source = write(tmp_path / "released.jsonl", RELEASED + RELEASED[:1])
    command("--source", "colbench", "--split", "test", "--test", 3, "--in", source, "--out", tmp_path / "test.jsonl")
    made = read_lines(tmp_path / "test.jsonl")
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
    whole, made = out.read_bytes(), read_lines(out)
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


def test_released_answers_are_taken_apart_by_the_one_rule(tmp_path):
    code = 'def f(x):\n    print("OUTPUT:")\n    return x + 1'
    lines = [offline(RELEASED[0], answer=answer) for answer in (
        code, f"Thought. OUTPUT: I WANT TO ANSWER:\n{code}", f"I WANT TO ANSWER: {code}\n# I WANT TO ANSWER: no", None)]
    command("--source", "colbench", "--in", write(tmp_path / "a.jsonl", lines), "--out", tmp_path / "o.jsonl")
    assert [r["answer"] for r in read_lines(tmp_path / "o.jsonl")] == [
        code, code, f"{code}\n# I WANT TO ANSWER: no", None]


def test_only_released_pages_are_read_without_test_cases(tmp_path):
    pages = [{"problem_description": f"Page {n}", "ground_truth": f"<html>{n}</html>"} for n in range(3)]
    source = write(tmp_path / "pages.jsonl", pages)
    command("--domain", "frontend", "--source", "colbench", "--in", source, "--out", tmp_path / "o.jsonl", "--train", 2)
    assert [t["ground_truth"] for t in read_lines(tmp_path / "o.jsonl")] == ["<html>0</html>", "<html>1</html>"]
    r = command("--source", "colbench", "--in", source, "--out", tmp_path / "b.jsonl", ok=False)
    assert r.returncode == 2 and "pages.jsonl, line 1: the key 'test_cases' is missing" in r.stderr


def test_the_same_file_by_another_path_is_the_same_input(tmp_path):
    source = write(tmp_path / "a.jsonl", RELEASED)
    flags = ["--source", "colbench", "--out", tmp_path / "o.jsonl"]
    command(*flags, "--in", source)
    moved = write(tmp_path / "b.jsonl", RELEASED)
    command(*flags, "--in", moved)
    write(moved, RELEASED[:2])
    r = command(*flags, "--in", moved, ok=False)
    assert r.returncode == 2 and "content of --in was" in r.stderr


PREAMBLE = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
RULES = "You are a helpful assistant.\n\nAsk the user what you need, then answer."
PROMPTS = {
    "llama": f"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n{PREAMBLE}{RULES}<|eot_id|>"
             "<|start_header_id|>user<|end_header_id|>\n\none more<|eot_id|>"
             "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "chatml": f"<|im_start|>system\n{RULES}<|im_end|>\n<|im_start|>user\none more<|im_end|>\n<|im_start|>assistant\n",
    "mistral": f"<s>[INST] {RULES}\n\none more[/INST]",
    "llama 2": f"<s>[INST] <<SYS>>\n{RULES}\n<</SYS>>\n\none more [/INST]",
    "gemma": f"<bos><start_of_turn>user\n{RULES}\n\none more<end_of_turn>\n<start_of_turn>model\n",
    "no marks": f"{RULES}\n\nUser: \none more",
}


@pytest.mark.parametrize("template", PROMPTS)
def test_released_trajectories_keep_the_instructions_of_their_agent(template, tmp_path):
    line = offline(RELEASED[0])
    line["dialogue_history"][1]["input"] = PROMPTS[template]
    command("--source", "colbench", "--in", write(tmp_path / "a.jsonl", [line]), "--out", tmp_path / "o.jsonl")
    assert [t["system"] for t in read_lines(tmp_path / "o.jsonl")] == [RULES]


def test_released_tasks_that_nobody_can_pass_are_reported(tmp_path):
    def task(code, *calls):
        return {"problem_description": "d", "ground_truth": code, "test_cases": dict(zip("12345", calls))}
    date = "from datetime import date\ndef f(day):\n    return day.year"
    tasks = [task(date, "f(date(2020, 1, 2))"), task(date, "f(date(2021, 1, 2))", "f(1)"),
             task("class P:\n    pass\ndef f(p):\n    return 1", "f(P())"),
             task("def f(x):\n    import numpy as np\n    return np.sum(x)", "f([1])"),
             task("def f(x):\n    print(x)\n    return", "f(1)"),
             task("def f(x):\n    x.sort()\ndef g(x):\n    return 1", "f([2, 1])"),
             task("def f(x):\n    yield x", "list(f(2))", "f(max([y for y in (1, 2)], key=lambda z: -z))")]
    r = command("--source", "colbench", "--in", write(tmp_path / "rel.jsonl", tasks), "--out", tmp_path / "o.jsonl")
    assert len(read_lines(tmp_path / "o.jsonl")) == 7, "the released set is kept as it is"
    for reason in ("2 x a call uses date, which only the reference defines (rel-00001, rel-00002)",
                   "1 x a call uses P, which only the reference defines (rel-00003)",
                   "1 x the reference imports numpy, which is not in the standard library (rel-00004)",
                   "2 x the reference never returns a value (rel-00005, rel-00006)"):
        assert f"kept, but doubtful: {reason}" in r.stderr, r.stderr
    assert "rel-00007" not in r.stderr


def test_a_name_of_a_domain_is_no_reason_to_refuse_a_conversion(tmp_path):
    line = offline(RELEASED[0]) | {"domain": "games"}
    line["dialogue_history"][1]["input"] = PROMPTS["llama"]
    command("--source", "colbench", "--domain", "games", "--in", write(tmp_path / "a.jsonl", [line]), "--out",
            tmp_path / "o.jsonl")
    assert [(r["domain"], r["system"]) for r in read_lines(tmp_path / "o.jsonl")] == [("games", RULES)]
    source = write(tmp_path / "b.jsonl", [{"problem_description": "Hangman.", "ground_truth": "gallows"}])
    command("--source", "colbench", "--domain", "games", "--in", source, "--out", tmp_path / "t.jsonl")
    assert [r["domain"] for r in read_lines(tmp_path / "t.jsonl")] == ["games"]


# ---- WebSight

def rows(count, start=0):
    return [{"text": f"<html><body><img src='https://source.unsplash.com/random/300x200/?{i}'>{i}</body></html>",
             "llm_generated_idea": f" A page about {i}. ", "image": {"path": None}}
            for i in range(start, start + count)]


def test_websight_is_split_as_the_paper_splits_it(tmp_path):
    made = rows(10_004)
    made[1]["llm_generated_idea"] = ""
    made[2]["text"] = "no page"
    made[3]["text"] = made[0]["text"]
    made[10_001]["text"] = made[0]["text"]
    source = write(tmp_path / "rows.jsonl", made)
    flags = ["--source", "websight", "--in", source, "--out", tmp_path, "--train", 3, "--val", 0, "--test", 2]
    r = command(*flags)
    train, test = read_lines(tmp_path / "train.jsonl"), read_lines(tmp_path / "test.jsonl")
    assert [t["row"] for t in train] == [0, 4, 5] and [t["row"] for t in test] == [10_000, 10_002]
    assert "2 x no idea or no page" in r.stdout and "1 x a page that another row has" in r.stdout
    assert train[0] == {"task_id": "websight-00000", "domain": "frontend", "source": "websight", "row": 0,
                        "problem_description": "A page about 0.", "ground_truth":
                        "<html><body><img src='https://picsum.photos/id/48/300/200'>0</body></html>"}
    whole = (tmp_path / "test.jsonl").read_bytes()
    (tmp_path / "test.jsonl").write_bytes(whole[:-40])
    command(*flags)
    assert (tmp_path / "test.jsonl").read_bytes() == whole
    r = command("--source", "websight", "--in", write(tmp_path / "few.jsonl", made[:9]), "--out", tmp_path / "few",
                "--train", 0, "--val", 0, ok=False, code=1)
    assert "nothing was written" in r.stderr and "no candidates" in r.stderr


def test_rows_of_websight_are_no_released_tasks(tmp_path):
    source = write(tmp_path / "rows.jsonl", rows(3))
    r = command("--source", "colbench", "--domain", "frontend", "--in", source, "--out", tmp_path / "o.jsonl", ok=False,
                code=2)
    assert "rows.jsonl, line 1: this is a row of WebSight, which --source websight reads" in r.stderr
    write(source, [{"problem_description": "A page."}])
    r = command("--source", "colbench", "--domain", "frontend", "--in", source, "--out", tmp_path / "o.jsonl", ok=False)
    assert "rows.jsonl, line 1: the task has no text under the key 'ground_truth'" in r.stderr
    assert not (tmp_path / "o.jsonl").exists()


def test_parquet_is_read_or_what_is_missing_is_named(tmp_path):
    (tmp_path / "web").mkdir()
    flags = ["--source", "websight", "--in", tmp_path / "web", "--out", tmp_path / "out", "--train", 5, "--val", 0,
             "--test", 0]
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        (tmp_path / "web/0.parquet").write_bytes(b"PAR1")
        assert "0.parquet: reading parquet needs pyarrow" in command(*flags, ok=False, code=2).stderr
        return
    for n in (1, 0):    # the files of a folder, in the order of their names
        parquet.write_table(pyarrow.Table.from_pylist(rows(4, 4 * n)), tmp_path / f"web/{n}.parquet")
    command(*flags)
    assert [t["row"] for t in read_lines(tmp_path / "out/train.jsonl")] == [0, 1, 2, 3, 4]
    assert "about 4." in read_lines(tmp_path / "out/train.jsonl")[4]["problem_description"]
    (tmp_path / "web/0.parquet").write_bytes(b"PAR1")
    assert "0.parquet: " in command(*flags, "--overwrite", ok=False, code=2).stderr


# ---- An answer's form

REQUEST = "I need late_fee(days, price) for our library: what a reader pays for a book that comes back late."
FUNCTION = '''def late_fee(days, price):
    # the first week is free
    if days <= 7:
        return 0
    fee = min(0.25 * (days - 7), price)
    return round(fee, 2)'''
CALLS = ["late_fee(7, 10)", "late_fee(8, 10)", "late_fee(9, 0.3)", "late_fee(0, 5)", "late_fee(47, 10)",
         "late_fee(48, 10)", "late_fee(11, 2.5)", "late_fee(100, 7)", "late_fee(15, 1)", "late_fee(12, 9)",
         "late_fee(30, 4.999)", "late_fee(21, 100)"]
ROWS = "\n".join(CALLS)


def indented(text, by="    "):
    return "".join(by + line + "\n" for line in text.splitlines())


def form(heads="DESCRIPTION:\n{}\nCODE:\n{}\nCALLS:\n{}\n", request=REQUEST, code=FUNCTION, calls=ROWS):
    return heads.format(request, code, calls)


DRAFT = form(request="No.", code="def g(x):\n    return x", calls="g(1)\ng(2)")
FORMS = {
    "as asked": form(),
    "python fences": form(code=f"```python\n{FUNCTION}\n```"),
    "py fences": form(code=f"```py\n{FUNCTION}\n```", calls=f"```py\n{ROWS}\n```"),
    "bare fences": form(code=f"```\n{FUNCTION}\n```"),
    "tilde fences": form(code=f"~~~python\n{FUNCTION}\n~~~", calls=f"~~~\n{ROWS}\n~~~"),
    "bold headings": form("**DESCRIPTION:**\n{}\n\n**CODE:**\n```python\n{}\n```\n\n**CALLS:**\n{}\n"),
    "bold, the colon outside": form("**Description**: {}\n\n**Code**:\n```python\n{}\n```\n\n**Calls**:\n{}\n"),
    "only the first is bold": form("**DESCRIPTION:** {}\nCODE:\n{}\nCALLS:\n{}\n"),
    "### headings": form("### DESCRIPTION\n{}\n\n### CODE\n```python\n{}\n```\n\n### CALLS\n{}\n"),
    "## headings with colons": form("## Description:\n{}\n\n## Code:\n```python\n{}\n```\n\n## Calls:\n{}\n"),
    "title case": form("Description: {}\nCode:\n{}\nCalls:\n{}\n"),
    "lower case": form("description:\n{}\n\ncode:\n{}\n\ncalls:\n{}\n"),
    "numbered headings": form("1. DESCRIPTION:\n{}\n\n2. CODE:\n```python\n{}\n```\n\n3. CALLS:\n{}\n"),
    "numbered bold headings": form("1. **Description**\n{}\n\n2. **Code**\n```python\n{}\n```\n\n3. **Calls**\n{}\n"),
    "headings with remarks": form("DESCRIPTION (request):\n{}\nCODE (Python):\n{}\nTEST CALLS (12):\n{}\n"),
    "a sentence before the calls": form(calls=f"Here are twelve calls that reach the edges:\n\n{ROWS}"),
    "a sentence before everything": "Sure! Here is a task.\n\n" + form(code=f"```python\n{FUNCTION}\n```"),
    "a sentence after everything": form(code=f"```python\n{FUNCTION}\n```") + "\nShall I write more of them?\n",
    "a remark after unfenced code": form(code=FUNCTION + "\n\nThis function keeps to the rules of the library."),
    "backticks with remarks": form(calls="\n".join(f"- `{call}` (case {n}: an edge)" for n, call in enumerate(CALLS))),
    "numbered calls": form(calls="\n".join(f"{n}. {call}" for n, call in enumerate(CALLS, 1))),
    "numbered calls with brackets": form(calls="\n".join(f"{n}) `{call}`" for n, call in enumerate(CALLS, 1))),
    "bullets": form(calls="\n".join(f"* {call}" for call in CALLS)),
    "results behind arrows": form(calls="\n".join(f"{call} -> 0.25" for call in CALLS)),
    "results in comments": form(calls="\n".join(f"{call}  # 0.25, not late_fee(days)" for call in CALLS)),
    "print": form(calls="\n".join(f"print({call})" for call in CALLS)),
    "assert": form(calls="\n".join(f"assert {call} == 0.25" for call in CALLS)),
    "a session": form(calls="\n".join(f">>> {call}\n0.25" for call in CALLS)),
    "calls over several lines": form(calls=ROWS.replace("(", "(\n    ").replace(", ", ",\n    ").replace(")", ",\n)")),
    "CRLF": form(code=f"```python\n{FUNCTION}\n```").replace("\n", "\r\n"),
    "a thought in front": f"<think>A draft.\n{DRAFT}</think>\n\n{form()}",
    "a draft in front": f"{DRAFT}\nBetter:\n\n{form()}",
    "indented code": form(code=indented(FUNCTION), calls=indented(ROWS)),
    "everything in one fence": "```text\n" + form() + "```\n",
    "JSON": json.dumps({"description": REQUEST, "code": FUNCTION, "calls": CALLS}, indent=1),
    "JSON in a fence": "```json\n" + json.dumps({"Description": REQUEST, "Code": FUNCTION, "Calls": ROWS}) + "\n```",
    "details behind": form() + "DETAILS:\nQUESTION: How long?\nREPLY: A week.\nFRAGMENT: days <= 7\nWRONG: days < 7\n",
    "a variable named calls": form(code=FUNCTION.replace("fee =", "calls: float = 0\n    fee =")),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_good_answer_is_read_in_whatever_form(name):
    task, reason = llm_tasks.parse_task(Response(FORMS[name]).said)
    assert reason is None
    assert list(task["test_cases"].values()) == CALLS
    assert task["problem_description"] == REQUEST
    right = {"days": 8, "price": 10}
    namespace = {}
    exec(task["ground_truth"], namespace)
    assert namespace["late_fee"](**right) == 0.25
    assert "```" not in task["ground_truth"] and "~~~" not in task["ground_truth"]


BAD_FORMS = {
    "no code": form(code="I would rather not write it."),
    "no calls": form(calls="They are left to the reader."),
    "no description": form("CODE:\n{1}\nCALLS:\n{2}\n"),
    "cut in its code": form()[:form().index("min(")],
    "cut in its thought": f"<think>{form()}",
    "another function is called": form(calls=ROWS.replace("late_fee", "fee")),
}


@pytest.mark.parametrize("name", BAD_FORMS)
def test_an_answer_that_lacks_a_part_is_refused(name):
    task, reason = llm_tasks.parse_task(Response(BAD_FORMS[name]).said)
    assert task is None and reason


# ---- Tasks from a language model

def response(description, code, calls, details=""):
    listed = "".join(f"{i + 1}. `{c}`\n" for i, c in enumerate(calls))
    return f"Sure.\nDESCRIPTION:\n{description}\nCODE:\n```python\n{code}\n```\nCALLS:\n{listed}{details}"


def good(i):
    return response(f"Write tool{i}(x) that helps with topic {i} in our workshop number {i} and nothing else at all.",
                    f"def tool{i}(x):\n    return x * {i + 2}", [f"tool{i}({n})" for n in range(12)])


TEN = [f"f({n})" for n in range(10)]
BAD = {"not in the requested form": "I will not.",
       "code does not parse": response("d", "def f(:", TEN),
       "more than 50 lines": response("d", "def f(x):\n" + "    x += 1\n" * 50 + "    return x", TEN),
       "fewer than ten different calls with literal arguments":
           response("d", "def f(x):\n    return x", TEN[:8] + TEN[:2] + ["f(y)"]),
       "no call of the function": response("d", "def f(x):\n    return x", [f"g({n})" for n in range(10)]),
       "reference: error: ZeroDivisionError": response("d", "def f(x):\n    return 1 / x", TEN),
       "reference: none": response("d", "def f(x):\n    return {}.get(x)", TEN),
       "the reference never returns a value": response("d", "def f(x):\n    print(x)", TEN),
       "the reference imports numpy, which is not in the standard library":
           response("d", "def f(x):\n    import numpy as np\n    return int(np.sum(x))", TEN),
       "the request speaks of the excerpt": response("Do what the passage says.", "def f(x):\n    return x", TEN),
       "reference: timeout": response(    # the limit of scoring is a second
           "d", "import time\ndef f(x):\n    time.sleep(1.5 * (x == 0))\n    return x", TEN),
       "reference: differs": response("d", "import random\ndef f(x):\n    return random.random()", TEN),
       "a constant answer passes more than half of the calls": response("d", "def f(x):\n    return x > 5", TEN),
       "all results equal": response("d", "def f(x):\n    return x * 0 + 7", TEN)}


def excerpt_of(messages):
    return re.search(r"<excerpt>\n(.*)\n</excerpt>", messages[0]["content"], re.S)[1]


def written_by(answers):
    """An answer(messages, rng) for the stub: answers[excerpt], or a list with the answer to the second request too."""
    def answer(messages, rng):
        excerpt = excerpt_of(messages)
        text = good(int(excerpt[5:])) if excerpt.startswith("good ") else answers[excerpt]
        return [text, ""][len(messages) // 2] if isinstance(text, str) else text[len(messages) // 2]
    return answer


def asked(stub):
    """The excerpts of the first requests that were answered."""
    return sorted(excerpt_of(request["messages"]) for request in stub.requests if len(request["messages"]) == 1)


def tasks_from(tmp_path, answers, *flags, **stub_settings):
    """(the tasks in all splits, {excerpt: why it was rejected}, what the command said) of a run with many splits."""
    source = write(tmp_path / "excerpts.jsonl", [{"text": excerpt} for excerpt in answers])
    with Stub(written_by(answers), **stub_settings) as stub:
        r = command("--source", "llm", "--in", source, "--model", stub.url, "--out", tmp_path / "out", "--train", 90,
                    "--val", 90, "--test", 90, *flags)
    made = [task for split in g.SPLITS if (path := tmp_path / f"out/{split}.jsonl").exists() for task in read_lines(path)]
    path = tmp_path / "out/tasks.rejected.jsonl"
    return made, {r["text"]: r["reason"] for r in read_lines(path)} if path.exists() else {}, r


def test_tasks_of_a_model_are_checked_and_rejections_have_reasons(tmp_path):
    answers = {f"good {i}": None for i in range(12)} | BAD | {"refuse": None}
    source = write(tmp_path / "excerpts.jsonl", [{"text": e} for e in answers])
    flags = ["--source", "llm", "--in", source, "--out", tmp_path / "out", "--train", 60, "--val", 20, "--test", 40,
             "--concurrency", 12]
    refusing = (lambda messages: "refuse" in messages[0]["content"], 403, "")
    with Stub(written_by(answers), faults=["429", "reset", None, "500", "torn"], odd=refusing) as stub:
        r = command(*flags, "--model", stub.url)
        assert len(set(asked(stub))) == len(answers)
    for reason in [*BAD, "request refused"]:
        assert f"  1 x {reason}\n" in r.stdout, (reason, r.stdout)
    rejected = read_lines(tmp_path / "out/tasks.rejected.jsonl")
    assert {r["text"]: r["reason"] for r in rejected} == {e: e for e in BAD} | {"refuse": "request refused"}
    assert all(r["answer"] == BAD.get(r["text"], r["answer"]) for r in rejected)
    assert all(r["text"] == list(answers)[r["excerpt"]] for r in rejected)
    made = {s: read_lines(tmp_path / f"out/{s}.jsonl") for s in g.SPLITS if (tmp_path / f"out/{s}.jsonl").exists()}
    written = {llm_tasks.parse_task(good(i))[0]["ground_truth"] for i in range(12)}
    assert {t["ground_truth"] for s in made for t in made[s]} == written
    assert "train" in made and len({t["task_id"] for s in made for t in made[s]}) == 12
    assert {t["source"] for s in made for t in made[s]} == {"llm:stub-1"}, "which model, not which address"
    assert all(len(t["test_cases"]) == 10 for s in made for t in made[s])
    assert all(g.split_of(t["function"]) == split for split in made for t in made[split])
    assert "27 excerpts gave 12 tasks" in r.stdout

    # a killed run goes on with what is missing, at another address; what was rejected is not asked again
    whole = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    lost = read_lines(tmp_path / "out/train.jsonl")[1]["excerpt"]
    write(tmp_path / "out/train.jsonl", [t for t in made["train"] if t["excerpt"] != lost])
    with Stub(written_by(answers)) as stub:
        command(*flags, "--model", stub.url)
        assert asked(stub) == [list(answers)[lost]]
        assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == whole
        r = command(*flags, "--model", stub.url, "--temperature", 0.5, "--extra-body", '{"top_k": 1}', ok=False, code=2)
        assert "temperature was 1.0, now 0.5; extra_body was None, now {'top_k': 1}" in r.stderr
    with Stub(models=["other"]) as stub:
        r = command(*flags, "--model", stub.url, ok=False, code=2)
        assert "model_name was 'stub-1', now 'other'" in r.stderr


def test_a_call_that_cannot_count_costs_the_task_nothing(tmp_path):
    """It raises, returns None or varies, uses a name of the reference, or does not fit its signature."""
    code = ("from datetime import date\nimport random\n\ndef year_of(day, add):\n    if day == 'today':\n"
            "        return random.random()\n    if day == 'never':\n        return None\n"
            "    if isinstance(day, date):\n        return day.year\n    return int(day[:4]) + add")
    bad = ["year_of('x', 1)", "year_of('never', 1)", "year_of('today', 1)", "year_of(date(2020, 1, 1), 0)",
           "year_of('2020')"]
    calls = [f"year_of('{1990 + n}-01', {n % 3})" for n in range(10)]
    task, = tasks_from(tmp_path, {"years": response("I need year_of(day, add).", code, bad[:3] + calls + bad[3:])})[0]
    assert list(task["test_cases"].values()) == calls


@pytest.mark.parametrize("request_, shown", [
    ("Count with near(a, b, limit) what is near.", "Count with near(a, b, limit=5) what is near."),
    ("Use near(a, b) as near([1], [2]) does.", "Use near(a, b, limit=5) as near([1], [2]) does."),
    ("Count what is near.", "Count what is near. Signature: near(a, b, limit=5).")])
def test_the_request_shows_the_signature_that_the_calls_fit(tmp_path, request_, shown):
    code = "def near(a, b, limit=5):\n    return sum(abs(x - y) < limit for x in a for y in b)"
    calls = [f"near({list(range(n))}, {list(range(3, n + 9))})" for n in range(1, 13)]
    task, = tasks_from(tmp_path, {"x": response(request_, code, calls)})[0]
    assert task["problem_description"] == shown
    namespace = {}
    exec(re.sub(r".*?(near\(a.*?\)).*", r"def \1: pass", shown), namespace)
    for call in task["test_cases"].values():
        arguments = ast.parse(call, mode="eval").body.args
        inspect.signature(namespace["near"]).bind(*arguments)


LIMIT = "def fee(days):\n    if days <= 7:\n        return days\n    return days * 3 - min(days, 30)"
FAR = [f"fee({n})" for n in (1, 2, 3, 4, 11, 12, 13, 14, 15, 16, 17, 18, 19)]
DETAILS = """
DETAILS:
QUESTION: How many days cost little?
REPLY: Up to seven days.
FRAGMENT: days <= 7
WRONG: days <= 10
QUESTION: Do seven days count as few?
REPLY: Yes, seven days are few.
FRAGMENT: `days <= 7`
WRONG: `days < 7`
QUESTION: Is there a discount?
REPLY: A day's worth, for thirty days at most.
FRAGMENT: min(days, 30)
WRONG: min(days, 20)
QUESTION: Which colour?
REPLY: Red.
FRAGMENT: colour = 'red'
WRONG: colour = 'blue'
QUESTION: Are many days dear?
REPLY: Three times as dear.
FRAGMENT: days * 3
WRONG: 3 * days
"""


def test_the_model_is_asked_once_more_for_calls_that_tell(tmp_path):
    """Its calls know neither the limit itself nor what is near it; its second answer does."""
    first = response("I need fee(days).", LIMIT, FAR, DETAILS)
    answers = {"x": [first, "Here:\n1. `fee(7)` -> 7\n2. fee(8)\n3. fee(31)\n4. fee(1 / 0)\nfee(None)"]}
    made, _, _ = tasks_from(tmp_path, answers)
    task, = made
    kept = set(task["test_cases"].values())
    assert {"fee(7)", "fee(8)", "fee(31)"} <= kept and len(kept) == 10
    told = {fact["reply"] for fact in task["facts"]}
    assert told == {"Up to seven days.", "Yes, seven days are few.", "A day's worth, for thirty days at most."}
    with Sandbox(workers=1) as box:
        for wrong in ("days < 7", "days <= 6", "days <= 8"):
            statuses = box.score(task, LIMIT.replace("days <= 7", wrong))
            assert "wrong" in statuses.values(), wrong


def test_a_detail_is_a_fact_if_a_wrong_guess_fails_a_call(tmp_path):
    with_limit = response("I need fee(days).", LIMIT, ["fee(7)", *FAR], DETAILS)
    details = DETAILS.replace("* 3", "* 4").replace("3 * d", "4 * d")
    without = response("I need fee(days).", LIMIT.replace("3", "4"), FAR, details)
    made, _, _ = tasks_from(tmp_path, {"with": with_limit, "without": without})
    facts = {task["ground_truth"].strip(): {fact["reply"]: fact for fact in task["facts"]} for task in made}
    assert facts[LIMIT].keys() == {"Yes, seven days are few."}, "no call has eight to ten days"
    assert facts[LIMIT.replace("3", "4")].keys() == set(), "no call comes near the limit"
    fact = facts[LIMIT]["Yes, seven days are few."]
    assert fact["questions"] == ["Do seven days count as few?"]
    for task in made:
        assert not list(kit.schema_errors(task, kit.SCHEMA["task"][2]))


def test_the_second_question_shows_each_change_and_no_more_than_eight(tmp_path):
    with Stub(written_by({"x": [response("I need fee(days).", LIMIT, FAR), ""]})) as stub:
        command("--source", "llm", "--in", write(tmp_path / "e.jsonl", [{"text": "x"}]), "--model", stub.url, "--out",
                tmp_path / "out")
    first, second = [request["messages"] for request in stub.requests]
    assert len(second) == 3 and second[0] == first[0]
    changes = re.findall(r"^\d\. (.*)$", second[2]["content"], re.M)
    assert "`if days <= 7:` becomes `if days < 7:`" in changes
    assert 3 < len(changes) <= 8 and len(set(changes)) == len(changes)


def test_calls_that_add_nothing_are_dropped(tmp_path):
    """Thirteen calls, of which three hold all that tells the function from wrong ones."""
    calls = [f"fee({n})" for n in (11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 7, 8, 31)]
    task, = tasks_from(tmp_path, {"x": response("I need fee(days).", LIMIT, calls)})[0]
    assert set(calls[-3:]) <= set(task["test_cases"].values())


def test_the_same_function_makes_one_task_whatever_the_excerpt(tmp_path):
    """Twelve like excerpts: the same function under other names, with other comments, in another layout."""
    answers = {}
    for n in range(12):
        code = (f'def shop{n}(price{n}, tax):\n    """Version {n}."""\n    # {n}\n'
                f'    total = {"(" * n}price{n}{")" * n} + tax\n    return total')
        answers[f"excerpt {n}"] = response("Add.", code, [f"shop{n}({i}, {i * i})" for i in range(12)])
    other = {"another": response("Add.", "def shop(price, tax):\n    total = price - tax\n    return total",
                                 [f"shop({i}, {i * i})" for i in range(12)])}
    made, rejected, _ = tasks_from(tmp_path, answers | other)
    assert len(made) == 2 and Counter(rejected.values()) == {"the same function as another task's": 11}
    # nor does a second run, which has other excerpts
    source = write(tmp_path / "more.jsonl", [{"text": "one"}, {"text": "two"}])
    calls = [f"a({i}, {i * i})" for i in range(12)]
    renamed = {"one": response("Add.", "def a(b, c):\n    d = b + c\n    return d", calls),
               "two": good(1)}
    splits = {}
    for folder, excerpts in (("out", answers), ("two", renamed)):
        if folder == "two":
            with Stub(written_by(renamed)) as stub:
                command("--source", "llm", "--in", source, "--model", stub.url, "--out", tmp_path / "two")
        for split in g.SPLITS:
            path = tmp_path / folder / f"{split}.jsonl"
            for task in read_lines(path) if path.exists() else ():
                splits.setdefault(task["function"], set()).add(split)
    assert len(splits) == 3 and all(len(found) == 1 for found in splits.values())


def test_no_more_is_asked_for_than_is_wanted(tmp_path):
    """However many requests are under way: the attempts end with the last task that was asked for."""
    answers = {f"good {i}": None for i in range(60)}
    source = write(tmp_path / "excerpts.jsonl", [{"text": e} for e in answers])
    flags = ["--source", "llm", "--in", source, "--out", tmp_path / "out", "--val", 0, "--test", 0]
    splits = [g.split_of(llm_tasks.parse_task(good(i))[0]["function"]) for i in range(60)]
    needed = [n for n in range(60) if splits[:n].count("train") == 7][0]
    with Stub(written_by(answers)) as stub:
        command(*flags, "--train", 7, "--model", stub.url)
        assert len(asked(stub)) == needed and len(read_lines(tmp_path / "out/train.jsonl")) == 7
        command(*flags, "--train", 7, "--model", stub.url)
        assert len(asked(stub)) == needed, "a finished run asks nothing"
        command(*flags, "--train", 9, "--model", stub.url)
        assert len(set(asked(stub))) == len(asked(stub)), "nothing is asked twice for a split that wants no more"
        # a split that had no room has some now
        command(*flags[:-1], 2, "--train", 9, "--model", stub.url)
        before = [i for i in range(60) if splits[i] == "test"][:2]
        assert [t["excerpt"] for t in read_lines(tmp_path / "out/test.jsonl")] == before


def test_ctrl_c_keeps_the_answers_that_are_finished(tmp_path):
    answers = {f"good {i}": None for i in range(8)}
    source = write(tmp_path / "excerpts.jsonl", [{"text": e} for e in answers])
    release, first = threading.Event(), []

    def answer(messages, rng):
        if excerpt_of(messages) == "good 0":
            release.wait()
        first.append(1)
        return written_by(answers)(messages, rng)

    flags = ["--source", "llm", "--in", source, "--out", "out", "--train", 8, "--val", 8, "--test", 8]
    paths = [tmp_path / f"out/{split}.jsonl" for split in g.SPLITS]
    with Stub(answer) as stub:
        for pause in (3, 30, 300):    # they are checked in the sandbox, which takes as long as the machine needs
            first.clear()
            interrupted(*flags, "--model", stub.url, cwd=tmp_path, ready=lambda: len(first) >= 7 and not time.sleep(pause))
            kept = {t["excerpt"] for path in paths if path.exists() for t in read_lines(path)}
            if kept:
                break
        assert kept and 0 not in kept
        release.set()
        stub.requests.clear()
        command(*flags, "--model", stub.url, cwd=tmp_path)
        assert asked(stub) == sorted(f"good {i}" for i in range(8) if i not in kept)
    made = [read_lines(path) for path in paths if path.exists()]
    assert sum(map(len, made)) == 8
    assert all([t["excerpt"] for t in tasks] == sorted(t["excerpt"] for t in tasks) for tasks in made)


def test_an_answer_cut_at_the_token_limit_is_called_so(tmp_path):
    made, rejected, _ = tasks_from(tmp_path, {"good 1": None, "long": form() + "x" * 900, "late": "y" * 150 + form()},
                                   "--max-tokens", 600, characters_a_token=1)
    assert rejected == {"late": "cut at the token limit"} and len(made) == 2


def test_a_model_that_writes_no_task_ends_in_an_error(tmp_path):
    source = write(tmp_path / "e.jsonl", [{"text": f"excerpt {i}"} for i in range(5)])
    with Stub(lambda messages, rng: "I am a small model.") as stub:
        r = command("--source", "llm", "--in", source, "--model", stub.url, "--out", tmp_path / "out", ok=False, code=1)
    assert "nothing was written" in r.stderr and "5 x not in the requested form" in r.stderr
    assert "wrote 0" not in r.stdout and not list(tmp_path.glob("out/t*n.jsonl"))
    assert len(read_lines(tmp_path / "out/tasks.rejected.jsonl")) == 5


def test_a_server_that_is_gone_stops_the_run_in_one_sentence(tmp_path):
    source = write(tmp_path / "e.jsonl", [{"text": "one"}, {"text": "two"}])
    r = command("--source", "llm", "--in", source, "--model", "http://127.0.0.1:9/v1", "--model-name", "m",
                "--out", tmp_path / "out", "--retries", 0, ok=False, code=1)
    assert "finished tasks are saved" in r.stderr
    assert not list(tmp_path.glob("out/*"))


def test_a_model_that_cannot_be_loaded_takes_nothing_away(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    source = write(tmp_path / "e.jsonl", [{"text": "An excerpt."}])
    write(tmp_path / "train.jsonl", [{"excerpt": 0}])
    flags = ["--source", "llm", "--in", source, "--out", tmp_path, "--overwrite", "--engine",
             "transformers", "--model"]
    for text, model in ("nope", "nope"), ("train.jsonl is the input", tmp_path / "train.jsonl"):
        assert text in command(*flags, model, ok=False).stderr
    assert read_lines(tmp_path / "train.jsonl") == [{"excerpt": 0}]


def test_an_odd_answer_is_read_in_no_time():
    begun = time.process_time()
    summed = "def f(x=" + " + ".join(["1"] * 600) + "):\n    return x"
    assert llm_tasks.parse_task(response("Do it.", summed, TEN)) == (None, "code does not parse")
    calls = "\n".join(TEN) + "\nf(" * 2000 + ")" * 2000
    for answer in ("DESCRIPTION:" + "\n" * 20_000, "description:\n" * 5000, "```" * 20_000, "````````````\n" * 5000,
                   "1." * 20_000, form(calls=calls), form(request="**a " * 20_000),
                   form(code="def f(x):\n x\n" * 3000)):
        llm_tasks.parse_task(answer)
    assert time.process_time() - begun < 60, "each was quadratic or worse: minutes"
