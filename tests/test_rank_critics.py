"""Claims about study/rank_critics.py: how a ranking is measured, and what is not a truth."""
import json
import sys

import numpy as np
import pytest

from test_rollout import ROOT, records
from test_study_pairs import ASK, TASK, dialogue
from test_train import call, write

sys.path.insert(0, str(ROOT / "study"))
import rank_critics  # noqa: E402

QUESTIONS = ASK[:4]


def played(*texts):
    """An episode of these texts, the human's and the agent's in turn."""
    return {"finish": "answered", "dialogue_history": [
        {"role": ("user", "assistant")[n % 2], "content": text, "output": text} for n, text in enumerate(texts)]}


def test_spearman_is_the_correlation_of_ranks_with_ties():
    """By the definition: Pearson's correlation of mean ranks."""
    def rank(values):
        return [np.mean([n + 1 for n, w in enumerate(sorted(values)) if w == v]) for v in values]
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = rng.integers(5, size=8), rng.random(8)
        assert rank_critics.spearman(a, b) == pytest.approx(np.corrcoef(rank(a), rank(b))[0, 1])
    assert rank_critics.spearman([1, 2, 3], [9, 8, 1]) == pytest.approx(-1)
    assert rank_critics.spearman([1, 1, 1], [9, 8, 1]) == 0


def test_a_turns_ranking_by_hand():
    """Q = 1, 0.5, 0, 0.9; the critic's order is 3, 0, 2, 1. Of the pairs at least 0.25 apart (all but 0-3) it has 0-1,
    0-2, 1-3 and 2-3 right, 1-2 wrong."""
    rewards, kinds = ([1.0, 1.0], [1.0, 0.0], [0.0], [0.9, 0.9]), ["a", "b", "b", "a"]
    found = rank_critics.rank_turn(np.array([0.5, -1.0, 0.0, 2.0]), rewards, kinds, 0.25)
    ratio = {name: part / count for name, (part, count) in found.items()}
    assert found["pairs in the right order"][1] == 5 and ratio["pairs in the right order"] == pytest.approx(0.8)
    assert ratio["- a / b"] == 1 and ratio["- b / b"] == 0
    assert ratio["mean Q of all"] == pytest.approx(0.6) and ratio["mean Q of the upper half"] == pytest.approx(0.95)
    assert ratio["Spearman with Q"] == pytest.approx(1 - 6 * (1 + 1 + 1 + 1) / 60)
    # Halves: 1, 1, 0, 0.9 and 1, 0, 0, 0.9. The upper half of each, judged by the other.
    assert ratio["mean Q of the truth's upper half"] == pytest.approx(((1.0 + 0.0) / 2 + (1.0 + 0.9) / 2) / 2)


def truth_and_rankings(folder):
    """Twenty turns with four candidates, whose returns a good critic orders right, a bad one wrong."""
    rng, truth, rankings = np.random.default_rng(0), [], {"good": [], "bad": []}
    for task in range(20):
        q = rng.permutation([0.0, 0.3, 0.6, 1.0])
        for index in range(4):
            for k in range(2):
                truth.append(played("r", QUESTIONS[index], "Up.", "A") | {
                    "task_id": f"t{task}", "sample": index * 2 + k, "domain": "backend", "reward": q[index],
                    "continues": [0, 0, index], "cost": {"sampled_tokens": 5, "simulator_calls": 1}})
        for name, sign in (("good", 1), ("bad", -1)):
            rankings[name].append({
                "task_id": f"t{task}", "sample": 0, "turn": 0, "task": TASK, "prompt": dialogue(QUESTIONS[3]),
                "candidates": [{"output": text, "advantage": sign * a} for text, a in zip(QUESTIONS, q)]})
    write(folder / "truth.jsonl", truth)
    for name, rows in rankings.items():
        write(folder / f"{name}.jsonl", rows)
    return ["--truth", "truth.jsonl", "good=good.jsonl", "bad=bad.jsonl", "--resamples", "50"]


def test_a_perfect_critic_orders_every_pair_right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said, error = call(rank_critics, *truth_and_rankings(tmp_path), "--json", "out.json")
    assert code == 0, error
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["turns"] == 20 and result["critics"]["good"]["counts"]["pairs in the right order"] == 120
    good, bad = (result["critics"][name]["measures"] for name in ("good", "bad"))
    for name, value in (("pairs in the right order", 1), ("Spearman with Q", 1), ("Spearman with Q, corrected", 1),
                        ("Spearman of Q's halves", 1), ("mean Q of the upper half", 0.8)):
        assert good[name]["value"] == pytest.approx(value), name
    assert bad["pairs in the right order"]["value"] == 0 and bad["mean Q of the upper half"]["value"] < 0.151
    assert result["critics"]["bad"]["difference"]["Spearman with Q"]["value"] == pytest.approx(-2)
    # The human was asked the last question before this turn, so each turn has three useful ones.
    for pair, count in (("useful question / useful question", 60), ("useful question / useless question", 60)):
        assert f"| - {pair} ({count})" in said


@pytest.mark.parametrize("spoil, sentence", [
    (lambda truth: truth.pop("continues"), "line 1: the episode continues no candidate"),
    (lambda truth: truth["dialogue_history"][1].update(output="else"), "good.jsonl, line 1: these are not the cand"),
    (lambda truth: truth.update(reward=None), "truth.jsonl continues every candidate once"),
    (lambda truth: truth.update(task_id="other"), "truth.jsonl continues no turn of good, bad")])
def test_what_is_no_truth_is_one_sentence(tmp_path, monkeypatch, spoil, sentence):
    monkeypatch.chdir(tmp_path)
    flags = truth_and_rankings(tmp_path)
    rows = records(tmp_path / "truth.jsonl")
    for row in rows:
        spoil(row)
    write(tmp_path / "truth.jsonl", rows)
    code, _, error = call(rank_critics, *flags)
    assert code == 2 and sentence in error


def test_a_truth_of_one_continuation_does_not_show_its_noise(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = truth_and_rankings(tmp_path)
    write(tmp_path / "truth.jsonl", records(tmp_path / "truth.jsonl")[::2])
    code, _, error = call(rank_critics, *flags)
    assert code == 2 and "truth.jsonl continues every candidate once" in error


def test_seeds_are_pooled_each_with_its_own_truth(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in ("a", "b"):
        (tmp_path / seed).mkdir()
        truth_and_rankings(tmp_path / seed)
    code, _, error = call(rank_critics, "--truth", "*/truth.jsonl", "good=*/good.jsonl", "mixed=?/bad.jsonl",
                          "--json", "out.json")
    assert code == 0, error
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["turns"] == 40 and result["critics"]["good"]["measures"]["Spearman with Q"]["value"] == 1
    code, _, error = call(rank_critics, "--truth", "*/truth.jsonl", "good=a/good.jsonl")
    assert code == 0 and not error    # only of folder a, which both have
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a/good.jsonl").rename(tmp_path / "elsewhere/good.jsonl")
    code, _, error = call(rank_critics, "--truth", "*/truth.jsonl", "good=elsewhere/good.jsonl")
    assert code == 2 and "differ in number and cannot be matched by their folders" in error


def test_a_truth_whose_halves_disagree_corrects_nothing(tmp_path, monkeypatch):
    """Each candidate's two continuations won and lost: every Q is 1/2, or the halves order them the other way round."""
    monkeypatch.chdir(tmp_path)
    flags = truth_and_rankings(tmp_path)
    rows = records(tmp_path / "truth.jsonl")
    for number, row in enumerate(rows):    # Q is 0.5 but for the first candidate's 0.55; the halves are opposites
        row["reward"] = (0.1 * row["continues"][2] if number % 2 else 1 - 0.1 * row["continues"][2]) + (
            0.1 if row["continues"][2] == 0 and number % 2 else 0)
    write(tmp_path / "truth.jsonl", rows)
    code, said, error = call(rank_critics, *flags, "--json", "out.json")
    assert code == 0 and not error
    assert "Infinity" not in (tmp_path / "out.json").read_text() and "NaN" not in (tmp_path / "out.json").read_text()
    measures = json.loads((tmp_path / "out.json").read_text())["critics"]["good"]["measures"]
    assert measures["Spearman of Q's halves"]["value"] < 0 and "Spearman with Q, corrected" not in measures


