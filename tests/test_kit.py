"""What the record kit in records.py claims: mistakes are one sentence that names the place, outputs continue, and nothing
that was there is lost."""
import argparse
import gzip
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import records
from conftest import family_of, running
from records import Output, atomic_write, check_settings, fingerprint, number, read, schema_errors
from rollout import parse_response

TASK = {"task_id": "t", "problem_description": "Add.", "ground_truth": "def f(x): return x"}
TURNS = [{"role": "user", "content": "Add."}, {"role": "assistant", "content": "I WANT TO ANSWER: x"}]
DIALOGUE = {"task_id": "t", "task": TASK, "dialogue_history": TURNS}
EPISODE = DIALOGUE | {"sample": 0, "domain": "backend", "answer": "x", "finish": "answered"}
TURN = {"task_id": "t", "sample": 0, "turn": 0, "prompt": TURNS[:1]}
RECORDS = {"task": TASK, "demonstration": DIALOGUE, "trajectory": EPISODE, "scored": EPISODE | {"reward": 0.5},
           "candidates": TURN | {"candidates": [{"output": "x"}]},
           "ranked": TURN | {"candidates": [{"output": "x", "advantage": 0.5}]},
           "pair": TURN | {"chosen": TURNS[1:], "rejected": TURNS[1:]}}


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def said(capsys, call, code=2):
    """What a call that ends the program says: one line, and this exit code."""
    with pytest.raises(SystemExit) as ended:
        call()
    line, = capsys.readouterr().err.splitlines()
    assert ended.value.code == code
    return line


# ---- Reading

@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_of_each_kind_keeps_unknown_keys(tmp_path, kind):
    record, = read(write(tmp_path / "a.jsonl", {**RECORDS[kind], "mine": [1, {"a": None}]}), kind)
    assert record["mine"] == [1, {"a": None}] and record.items() >= RECORDS[kind].items()


@pytest.mark.parametrize("kind, change, message", [
    ("task", {"ground_truth": None}, "ground_truth must be text, found null"),
    ("task", {"test_cases": {"a": 3}}, "test_cases.a must be text, found 3"),
    ("task", {"facts": [{"detail": "a", "question": "b"}]}, "facts[0] lacks the key 'reply', found detail, quest"),
    ("scored", {"cost": 0.5}, "cost must be an object, found 0.5"),
    ("ranked", {"ranked_by": "random"}, 'ranked_by must be an object, found "random"'),
    ("trajectory", {"task": {"problem_description": "Add."}}, "task lacks the key 'ground_truth'"),
    ("trajectory", {"dialogue_history": [{"role": "user", "content": ["a"]}]},
     'dialogue_history[0].content must be text, found ["a"]'),
    ("trajectory", {"dialogue_history": {}}, "dialogue_history must be a list, found {}"),
    ("scored", {"reward": 1.01}, "reward must be a number from 0.0 to 1.0, found 1.01"),
    ("scored", {"reward": math.nan}, "reward must be a number from 0.0 to 1.0, found NaN"),
    ("scored", {"reward": True}, "reward must be a number from 0.0 to 1.0, found true"),
    ("scored", {"sample": 1.5}, "sample must be a whole number, found 1.5"),
    ("candidates", {"candidates": [{"output_ids": [1, "2"]}]},
     'candidates[0].output_ids[1] must be a whole number, found "2"'),
    ("candidates", {"candidates": [{"output_ids": [1, 2.5]}]}, "output_ids[1] must be a whole number, found 2.5"),
    ("pair", {"chosen": "x"}, 'chosen must be a list, found "x"')])
def test_a_fault_names_file_line_and_path(tmp_path, capsys, kind, change, message):
    path = write(tmp_path / "a.jsonl", RECORDS[kind], {**RECORDS[kind], **change})
    line = said(capsys, lambda: list(read(path, kind)))
    assert f"{path}, line 2: " in line and message in line and records.SCHEMA[kind][0] in line


def test_all_missing_keys_are_named_at_once_and_where_to_look(tmp_path, capsys):
    line = said(capsys, lambda: list(read(write(tmp_path / "a.jsonl", {"task": {"facts": [{}]}}), "scored")))
    for words in ("it lacks the keys 'task_id', 'dialogue_history', 'reward'", "facts[0] lacks the keys 'detail', 'reply'",
                  "SCHEMA in records.py"):
        assert words in line


def test_what_decides_nothing_is_optional(tmp_path):
    """A user's own dialogues, as the trainers read them; dialogues of one task are told apart by their order."""
    bare = {key: EPISODE[key] for key in ("task_id", "task", "dialogue_history")} | {"reward": 1}
    path = write(tmp_path / "a.jsonl", bare, bare, {**bare, "task_id": "u"})
    assert [r["sample"] for r in read(path, "scored", domain="animals", unique=True)] == [0, 1, 0]
    assert {r["domain"] for r in read(path, "scored", domain="animals")} == {"animals"}


@pytest.mark.parametrize("fact", [
    {"detail": "a", "reply": "b"}, {"detail": "a", "reply": "b", "question": "c"},
    {"detail": "a", "reply": "b", "questions": ["c"], "term": "d", "aspect": "limit", "values": {"number": ["1"]},
     "needs": ["e"], "implies": []}])
def test_a_users_own_facts_are_read(tmp_path, fact):
    assert next(read(write(tmp_path / "a.jsonl", TASK | {"facts": [fact]}), "task"))["facts"] == [fact]


def test_null_is_a_missing_key_wherever_the_schema_looks(tmp_path):
    """As `datasets` writes records whose keys differ: every object has all keys, many of them null."""
    nulls = {"half": None, "terms": {"big": {"names": ["big"]}, "old": None}, "test_cases": {"1": "f(1)", "2": None},
             "facts": [{"detail": "a", "reply": "b", "question": None, "values": {"number": ["1"], "edge": None}}]}
    messages = [turn | {"told": None, "output": None, "output_ids": None, "cut": None} for turn in TURNS]
    record, = read(write(tmp_path / "a.jsonl", EPISODE | {
        "task": TASK | nulls, "dialogue_history": messages, "answer": None, "cost": None, "system": None}), "trajectory")
    assert record["task"] == TASK | {"terms": {"big": {"names": ["big"]}}, "test_cases": {"1": "f(1)"},
                                     "facts": [{"detail": "a", "reply": "b", "values": {"number": ["1"]}}]}
    assert record["dialogue_history"] == TURNS and record["answer"] is None and not {"cost", "system"} & record.keys()


def test_half_of_a_surrogate_pair_is_mended_on_reading(tmp_path):
    text = "a\ud83d b\ude00 \ud83d\ude00 é\\ud83d"
    record, = read(write(tmp_path / "a.jsonl", TASK | {"facts": [{"detail": text, "reply": text}],
                                                       "problem_description": text}), "task")
    assert {record["problem_description"], *record["facts"][0].values()} == {"a\ufffd b\ufffd \U0001f600 é\\ud83d"}


def test_a_byte_order_mark_blank_lines_and_gzip_are_read(tmp_path, capsys):
    plain = ("\n  \r\n" + json.dumps(TASK) + "\r\n\n" + json.dumps(TASK)).encode()
    for name, content in {"mark": b"\xef\xbb\xbf" + plain, "gzip": gzip.compress(b"\xef\xbb\xbf" + plain)}.items():
        (tmp_path / name).write_bytes(content)
        assert list(read(tmp_path / name, "task")) == [TASK, TASK], name
    (tmp_path / "torn").write_bytes(gzip.compress(plain)[:-12])
    assert "torn: the gzip file is damaged" in said(capsys, lambda: list(read(tmp_path / "torn", "task")))


@pytest.mark.parametrize("reward, success", [(1, True), (0.9999999999999999, True), (0.999, False), (None, False)])
def test_a_reward_that_rounding_kept_from_1_is_a_success(reward, success):
    assert records.succeeded(reward) is success


def test_an_optional_key_may_be_missing_or_null():
    assert [*schema_errors({}, {"a?": int}), *schema_errors({"a": None}, {"a?": int})] == []
    assert [*schema_errors({"reward": None}, {"reward": records.reward})] == []
    assert [*schema_errors({}, {"a": int})] == ["it lacks the key 'a', found none"]


@pytest.mark.parametrize("line, found", [
    (b"{}}\n", '"{}}'), (b"[1]\n", "[1]"), (b"\0" * 100 + b"\n", '"'), (b'{"a": "\xff"}\n', '"{'), (b'{"dialogue', '"{'),
    (b'{"a":' * 9_000 + b"\n", '"{'), (b'{"reward": ' + b"9" * 5_000 + b"}\n", '"{'), (b"\xef\xbb\xbf{}\n", '"')])
def test_a_line_that_is_no_record_is_one_sentence(tmp_path, capsys, line, found):
    path = write(tmp_path / "a.jsonl", RECORDS["scored"])
    path.write_bytes(path.read_bytes() + line)
    told = said(capsys, lambda: list(read(path, "scored")))
    assert f"{path}, line 2: it must be an object, found {found}" in told and len(told) < 600
    torn = "" if line.endswith(b"\n") else "; the last line is incomplete: run it again"
    assert told.endswith(f"; evaluate.py writes such records{torn}")


@pytest.mark.parametrize("content", [b"", b"\n", b"  \n\n"])
def test_an_empty_or_missing_file_names_the_stage_that_writes_it(tmp_path, capsys, content):
    (tmp_path / "a.jsonl").write_bytes(content)
    assert "holds no records; run evaluate.py first" in said(capsys, lambda: list(read(tmp_path / "a.jsonl", "scored")))
    assert "no such file; run evaluate.py" in said(capsys, lambda: list(read(tmp_path / "b.jsonl", "scored")))
    forgotten = tmp_path / "b.scored.jsonl"    # what --candidates reads needs no reward, but is scored as a rule
    assert "no such file; run evaluate.py" in said(capsys, lambda: list(read(forgotten, "trajectory")))


def test_another_domain_or_a_double_key_names_the_line(tmp_path, capsys):
    path = write(tmp_path / "a.jsonl", RECORDS["pair"], {**RECORDS["pair"], "turn": 1}, RECORDS["pair"])
    assert len(list(read(path, "pair"))) == 3
    told = said(capsys, lambda: list(read(path, "pair", unique=True)))
    assert "line 3: task_id t, sample 0, turn 0 appears twice, first in line 1" in told
    path = write(tmp_path / "b.jsonl", {**TASK, "domain": "frontend"})
    assert "found domain 'frontend', expected 'backend'" in said(capsys, lambda: list(read(path, "task", "backend")))
    assert list(read(path, "task", each=lambda record: record["ground_truth"])) == [TASK["ground_truth"]]
    tasks = read(write(tmp_path / "t.jsonl", TASK), "task", domain="backend")
    assert [task["domain"] for task in tasks] == ["backend"], "of a record that names none"
    for each, message in ((lambda r: r["luck"], "the key 'luck' is missing"), (lambda r: int("x"), "invalid literal")):
        told = said(capsys, lambda: list(read(path, "task", each=each)))
        assert f"{path}, line 1: " in told and message in told


# ---- Writing and continuing

def record(n, **more):
    return {"task_id": f"t{n}", "sample": 0, "text": "a line\u2028of é", **more}


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "in.jsonl", TASK)


def output(tmp_path, source, overwrite=False, **settings):
    return Output(tmp_path / "runs" / "out.jsonl", {"seed": 0, **settings}, {"--in": source}, overwrite)


def test_an_output_goes_on_where_it_was_and_cuts_a_torn_line(tmp_path, source):
    first = output(tmp_path, source)
    assert not first.path.parent.exists()    # nothing is made before the first record
    for n in range(3):
        first.write(record(n))
    with open(first.path, "ab") as file:
        file.write(b'{"task_id": "t3", "sam')
    second = output(tmp_path, source)
    assert second.done == {("t0", 0), ("t1", 0), ("t2", 0)}
    second.write(record(3))
    assert [json.loads(line) for line in second.path.read_bytes().splitlines()] == [record(n) for n in range(4)]
    assert json.loads(second.beside.read_text())["seed"] == 0


def test_a_continued_output_needs_the_same_settings_and_input(tmp_path, source, capsys):
    output(tmp_path, source).write(record(0))
    assert "seed was 0, now 1" in said(capsys, lambda: output(tmp_path, source, seed=1))
    assert "luck was None, now 7" in said(capsys, lambda: output(tmp_path, source, luck=7))
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(source.read_bytes())
    assert output(tmp_path, copy).done == {("t0", 0)}
    write(source, TASK, TASK)
    assert "content of --in was" in said(capsys, lambda: output(tmp_path, source))
    assert output(tmp_path, source, overwrite=True).done == set()
    copy.unlink()
    for damaged in ("{", "[1]"):
        (tmp_path / "runs" / "out.settings.json").write_text(damaged)
        assert "missing or damaged" in said(capsys, lambda: output(tmp_path, source))


def test_a_command_heeds_ctrl_c_where_this_process_ignores_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        script = "import time; print('on', flush=True); time.sleep(10_000)"
        with running(sys.executable, "-c", script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout.readline() == "on\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=600) == -signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_test_that_fails_leaves_nothing_running():
    """Not even what has a session of its own."""
    script = """
import subprocess, time
subprocess.Popen(["sleep", "10000"], start_new_session=True)
print("on", flush=True)
time.sleep(10_000)
"""
    with pytest.raises(ZeroDivisionError), running(sys.executable, "-c", script, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == "on\n"
        family = family_of(process.pid)
        1 / 0
    deadline = time.monotonic() + 600
    while any(Path(f"/proc/{pid}").exists() for pid in family) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(family) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in family)


def test_a_second_process_never_writes_the_same_output(tmp_path, source):
    """Neither beside the first, nor with --overwrite; once the first is gone (killed, its children alive), it may."""
    with running(sys.executable, "-c", f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from records import Output
out = Output({str(tmp_path / 'runs/out.jsonl')!r}, {{"seed": 0}}, {{"--in": {str(source)!r}}})
out.write({record(0)!r})
out.file.write(b'{{"half a line')
if os.fork() == 0:
    time.sleep(10_000)
print("written", flush=True)
time.sleep(10_000)
""", stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == "written\n"
        path = tmp_path / "runs/out.jsonl"
        before = path.read_bytes()
        for overwrite in (False, True):
            with pytest.raises(SystemExit):
                output(tmp_path, source, overwrite)
            assert path.read_bytes() == before
        first.kill()
        first.wait()
        assert output(tmp_path, source).done == {("t0", 0)}


def test_overwrite_removes_nothing_before_the_first_record(tmp_path, source):
    output(tmp_path, source).write(record(0))
    before = {path: path.read_bytes() for path in (tmp_path / "runs").iterdir()}
    again = output(tmp_path, source, overwrite=True, seed=1)
    assert {path: path.read_bytes() for path in (tmp_path / "runs").iterdir()} == before and again.done == set()
    again.write(record(1))
    assert json.loads(again.path.read_bytes()) == record(1) and json.loads(again.beside.read_text())["seed"] == 1


@pytest.mark.parametrize("link", ["itself", "symlink", "hard link", "another path"])
def test_an_input_is_never_the_output(tmp_path, source, capsys, link):
    path = tmp_path / "out.jsonl"
    if link == "symlink":
        path.symlink_to(source)
    elif link == "hard link":
        os.link(source, path)
    else:
        path = source if link == "itself" else tmp_path / ".." / tmp_path.name / "in.jsonl"
    for overwrite in (False, True):
        told = said(capsys, lambda: Output(path, {}, {"--in": source}, overwrite))
        assert "is the input" in told and "never overwritten" in told
    assert json.loads(source.read_text()) == TASK


def test_an_output_that_cannot_be_written_is_one_sentence(tmp_path, source, capsys):
    (tmp_path / "folder.jsonl").mkdir()
    for path, message in ((tmp_path / "folder.jsonl", "cannot be written"), (source / "out.jsonl", "cannot be written"),
                          (Path("/proc/out.jsonl"), "cannot be written"), (tmp_path / "out.json", "end in .jsonl")):
        assert message in said(capsys, lambda: Output(path, {}, {"--in": source}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.jsonl", "in.jsonl"]


@pytest.mark.parametrize("line", [b"[1]\n", b"{}\n", b"no\n", b"\0\0\n", b'{"task_id": [1], "sample": 0}\n'])
def test_an_output_with_a_foreign_line_is_left_alone(tmp_path, source, capsys, line):
    output(tmp_path, source).write(record(0))
    path = tmp_path / "runs" / "out.jsonl"
    path.write_bytes(path.read_bytes() + line)
    before = path.read_bytes()
    assert "line 2: " in said(capsys, lambda: output(tmp_path, source)) and path.read_bytes() == before


def test_a_full_disk_leaves_whole_lines_and_the_same_command_goes_on(tmp_path, source, capsys):
    """The disk is full for this process alone: a limit on the size of its files, whose signal is ignored."""
    out = output(tmp_path, source)
    out.write(record(0))
    size, limits = out.path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))    # ten bytes of the next line go in
    try:
        with pytest.raises(SystemExit) as ended:
            out.write(record(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert ended.value.code == 1 and "File too large; all finished records are saved" in capsys.readouterr().err
    assert out.path.stat().st_size == size
    again = output(tmp_path, source)
    again.write(record(1))
    assert [json.loads(line)["task_id"] for line in again.path.read_bytes().splitlines()] == ["t0", "t1"]


def test_surrogates_and_line_separators_survive(tmp_path, source):
    texts = ["\ud83d", "\\\ud83d", "\ude00\ud83d", "a\u2028b\x85c\r\n", "\0", "\U0001f600"]
    out = output(tmp_path, source)
    for n, text in enumerate(texts):
        out.write(record(n, text=text))
    assert [r["text"] for r in output(tmp_path, source).records()] == texts
    assert len(out.path.read_bytes().split(b"\n")) == len(texts) + 1


def test_sort_puts_the_file_in_order(tmp_path, source):
    out = output(tmp_path, source)
    for n in (2, 0, 3, 1):
        out.write(record(n))
    out.sort(lambda task_id, sample: (sample, task_id))
    assert [r["task_id"] for r in out.records()] == ["t0", "t1", "t2", "t3"]
    assert sorted(path.name for path in out.path.parent.iterdir()) == ["out.jsonl", "out.settings.json"]


def test_sort_drops_records_that_have_no_position(tmp_path, source):
    out = output(tmp_path, source)
    for n in range(3):
        out.write(record(n))
    again = output(tmp_path, source)
    again.sort(lambda task_id, sample: None if task_id == "t1" else 0)
    again.write(record(1, text="anew"))
    assert [r["task_id"] for r in again.records()] == ["t0", "t2", "t1"]


def test_a_whole_file_takes_the_old_ones_place_or_leaves_it(tmp_path):
    path = tmp_path / "new" / "a.json"
    with atomic_write(path) as part:
        part.write_text("first")
    with pytest.raises(ZeroDivisionError):
        with atomic_write(path) as part:
            part.write_text("half")
            1 / 0
    assert path.read_text() == "first" and list(path.parent.iterdir()) == [path]
    writer = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from records import atomic_write\n" \
             f"with atomic_write({str(path)!r}) as part: part.write_text('another')"
    with atomic_write(path) as part:    # another process makes the same file in between
        part.write_text("second")
        subprocess.run([sys.executable, "-c", writer], check=True)
        assert path.read_text() == "another"
    assert path.read_text() == "second" and list(path.parent.iterdir()) == [path]


def test_settings_that_differ_are_named(tmp_path, capsys):
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"lr": 0.1, "names": ["a"], "gone": 1}))
    check_settings(file, {"lr": 0.1, "names": ("a",), "gone": 1})    # as JSON has them
    told = said(capsys, lambda: check_settings(file, {"lr": 0.2, "names": ["a"]}))
    assert "lr was 0.1, now 0.2; gone was 1, now None; use --overwrite" in told


def test_an_output_that_another_process_wrote_meanwhile_is_not_mixed(tmp_path, capsys):
    """Both began before the file was there: what the second would have written, settings too, stays away."""
    path, record = tmp_path / "a.jsonl", {"task_id": "t", "sample": 0}
    first, second = Output(path, {"seed": 0}, {}), Output(path, {"seed": 1}, {})
    first.write(record)
    before = (tmp_path / "a.settings.json").read_bytes(), path.read_bytes()
    assert "another process has written to it" in said(capsys, lambda: second.write(record))
    assert before == ((tmp_path / "a.settings.json").read_bytes(), path.read_bytes())
    first.write(record | {"sample": 1})
    again = Output(path, {"seed": 0}, {})
    again.write(record | {"sample": 2})
    assert len(path.read_text().splitlines()) == 3


def test_records_that_another_process_added_meanwhile_are_not_doubled(tmp_path, capsys):
    """Both found one record; the first then wrote the others and ended."""
    path = tmp_path / "a.jsonl"
    Output(path, {}, {}).write(record(0))
    late, first = Output(path, {}, {}), Output(path, {}, {})
    for n in (1, 2):
        first.write(record(n))
    first.file.close()
    assert "another process has written to it" in said(capsys, lambda: late.write(record(1)))
    assert [r["task_id"] for r in Output(path, {}, {}).records()] == ["t0", "t1", "t2"]


def test_a_fingerprint_is_of_the_content(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(bytes(3 << 20))
        (tmp_path / name / "settings.json").write_text(name)    # how it was made is no part of what it is
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two")
    (tmp_path / "one" / "chat_template.jinja").write_text("{{ messages }}")
    assert fingerprint(tmp_path / "one") != fingerprint(tmp_path / "two")
    (tmp_path / "two" / "chat_template.jinja").write_text("{{ messages }}")
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two")
    (tmp_path / "two" / "model.safetensors").write_bytes(bytes(2 << 20) + b"x" + bytes((1 << 20) - 1))
    assert fingerprint(tmp_path / "one") != fingerprint(tmp_path / "two")
    assert fingerprint("owner/model") == "owner/model" and fingerprint("http://host:8000/v1") == "http://host:8000/v1"
    assert fingerprint(tmp_path / "one/config.json") == fingerprint(tmp_path / "two/config.json")


def test_a_change_of_one_tensor_of_many_changes_the_fingerprint(tmp_path):
    """As a merge into one projection does, in weights that are too large to be read whole."""
    import numpy as np
    from safetensors.numpy import save_file
    weights = {f"layer.{n}": np.zeros((6, 1 << 20), np.float32) for n in range(3)}
    found = []
    for scale in (0.0, 0.5):
        weights["layer.1"] += scale
        save_file(weights, tmp_path / "model.safetensors")
        found.append(fingerprint(tmp_path))
    assert found[0] != found[1] and (tmp_path / "model.safetensors").stat().st_size > 1 << 26


# ---- Words and numbers

@pytest.mark.parametrize("text, content, answer", [
    ("What is x?", "What is x?", None),
    ("I think.\nOUTPUT: What is x?", "What is x?", None),
    ("I think.\nOUTPUT: I WANT TO ANSWER:\ndef f(): pass", "I WANT TO ANSWER:\ndef f(): pass", "def f(): pass"),
    ("I WANT TO ANSWER: print('OUTPUT: 3')", "I WANT TO ANSWER: print('OUTPUT: 3')", "print('OUTPUT: 3')"),
    ("<think>Should I WANT TO ANSWER: now?</think>\nWhich field?", "Which field?", None),
    ("<think>I WANT TO ANSWER: perhaps, if there is room", "", None),
    ("The template opened it.</think> I WANT TO ANSWER: '</think>'", "I WANT TO ANSWER: '</think>'", "'</think>'"),
    ("OUTPUT: I WANT TO ANSWER: 'I WANT TO ANSWER:'", "I WANT TO ANSWER: 'I WANT TO ANSWER:'", "'I WANT TO ANSWER:'"),
    ("I WANT TO ANSWER:", "I WANT TO ANSWER:", ""), ("", "", None)])
def test_a_response_is_cut_before_the_answer_and_never_in_it(text, content, answer):
    assert parse_response(text) == (content, answer)


@pytest.mark.parametrize("make, right, wrong", [
    (lambda: number(), "0.5", ["nan", "inf", "-inf", "x", ""]),
    (lambda: number(float, least=0, most=1), "1", ["-0.1", "1.1", "nan"]),
    (lambda: number(float, above=0), "1e-9", ["0", "nan", "inf"]),
    (lambda: number(int, least=1), "1", ["0", "1.0", "nan", "9" * 400 + "x"]),
    (lambda: number(int, least=0, most=9), "9", ["10", "1" + "0" * 400])])
def test_a_number_lies_in_its_range_and_nan_in_none(make, right, wrong):
    kind = make()
    assert kind(right) == float(right)
    for text in wrong:
        with pytest.raises((argparse.ArgumentTypeError, ValueError)):
            kind(text)


@pytest.mark.parametrize("rank, prefix", [(None, "tool.py: "), ("0", "tool.py: rank 0: "), ("3", "tool.py: rank 3: ")])
def test_die_is_one_line_on_every_rank(rank, prefix):
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv[0] = 'x/tool.py'; import records\n" \
             "print('said before'); records.die('no such file')"
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "PYTHONUNBUFFERED")}
    environment |= {"RANK": rank} if rank else {}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and done.stderr == f"{prefix}no such file\n" and done.stdout == "said before\n"
