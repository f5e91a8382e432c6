"""The README's page about data of one's own: its records and its program are run as they stand there."""
import json
import re
from pathlib import Path

import pytest

import train_critic
import train_policy
from conftest import call, make_data, metrics, write

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("\n## Your own data\n")[2].partition("\n## ")[0]
pytestmark = pytest.mark.skipif(not SECTION, reason="the README has no such section")
FEW = ["--model", "base", "--max-steps", 1, "--lr", "1e-3", "--pack", "none"]


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", SECTION, re.S)


@pytest.fixture
def place(tmp_path, monkeypatch):
    make_data(tmp_path, tasks=2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def records():
    """{the key that tells what it is: record}"""
    found = [json.loads(line) for line in "".join(blocks("json")).splitlines()]
    return {next(key for key in ("reward", "candidates", "chosen") if key in record): record for record in found}


def test_the_page_has_three_records_and_nine_lines():
    assert len(records()) == 3
    [program] = blocks("python")
    assert len([line for line in program.splitlines() if line]) <= 9
    assert len(SECTION.splitlines()) <= 30


def test_the_readmes_record_trains_the_critic_of_its_program(place, capsys):
    scored = records()["reward"]
    write(place / "mine.jsonl", [scored, scored | {"reward": 0.0}])
    out = ["--in", "mine.jsonl", *FEW]
    assert call(train_critic, *out, "--out", "runs/default/critic")[0] == 0
    for method in ("multi-turn-dpo", "rejection-ft"):
        assert call(train_policy, *out, "--method", method, "--out", method)[0] == 0
    [program] = blocks("python")
    exec(compile(program, "README.md", "exec"), {})
    assert re.search(r"^[+-]\d\.\d{3} \S", capsys.readouterr().out, re.M)


@pytest.mark.parametrize("kind", ["candidates", "chosen"])
def test_the_readmes_candidates_and_pairs_train_a_policy(place, kind):
    write(place / "mine.jsonl", [records()[kind]])
    assert call(train_policy, "--in", "mine.jsonl", *FEW, "--out", "policy")[0] == 0
    assert len(metrics("policy")) == 1 and metrics("policy")[0]["length_chosen"] > 0


@pytest.mark.parametrize("kind", ["reward", "candidates", "chosen"])
def test_no_key_of_the_readmes_records_is_idle(place, kind):
    """A record is the smallest: without any of its keys it is refused, all that is missing in one sentence."""
    record = records()[kind]
    module = train_critic if kind == "reward" else train_policy
    for key in record:
        write(place / "less.jsonl", [{name: value for name, value in record.items() if name != key}])
        code, _, error = call(module, "--in", "less.jsonl", *FEW, "--out", "out")
        assert code == 2 and "less.jsonl, line 1" in error, (key, error)
    if kind == "reward":
        write(place / "less.jsonl", [{}])
        error = call(module, "--in", "less.jsonl", *FEW, "--out", "out")[2]
        assert all(repr(name) in error for name in record if name != "task") and "SCHEMA" in error
