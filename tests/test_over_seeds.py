"""Claims about study/over_seeds.py: means over seeds, their intervals, leads by seed, and the kept table."""
import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "study"))
import over_seeds  # noqa: E402


def finished(folder, agent, success, tokens=None):
    """A finished agent's files, as evaluate.py and train_policy.py write them."""
    (folder / agent).mkdir(parents=True, exist_ok=True)
    metrics = {"success": {"value": success}, "success_seen": {"value": success}, "domain": "backend"}
    (folder / f"{agent}.test.metrics.json").write_text(json.dumps(metrics))
    if tokens:
        cost = {"episodes": 10, "simulator_calls": 30, "sampled_tokens": tokens, "training_tokens": 2}
        (folder / agent / "cost.json").write_text(json.dumps(cost))


@pytest.fixture
def shown(tmp_path, monkeypatch, capsys):
    """A function that runs the command on a table of its own and returns what it printed."""
    monkeypatch.setattr(over_seeds, "TABLE", tmp_path / "results.tsv")
    monkeypatch.setattr(over_seeds.kept_rows, "__defaults__", (tmp_path / "results.tsv",))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["over_seeds.py", *map(str, arguments)])
        over_seeds.main()
        return capsys.readouterr().out

    return run


def test_means_and_leads_are_taken_seed_by_seed(tmp_path, shown):
    """Success 0, 0, 50, 50, 100 against 0, 50, 100, 50, 100 over five seeds; t(4) = 2.776, by hand."""
    for seed, (base, ours) in enumerate(zip((0, 0, 0.5, 0.5, 1), (0, 0.5, 1, 0.5, 1))):
        finished(tmp_path / f"study/{seed}", "base", base, tokens=1)
        finished(tmp_path / f"study/{seed}", "policy", ours, tokens=100 * seed)
    said = shown("--add", *(tmp_path / f"study/{seed}" for seed in range(5)))
    half = 2.776 * (7000 / 4) ** 0.5 / 5 ** 0.5    # squares of 60, 10, 40, 10, 40
    assert f"60.0 [{60 - half:.1f}, {60 + half:.1f}]" in said
    half = 2.776 * (3000 / 4) ** 0.5 / 5 ** 0.5    # differences 0, 50, 50, 0, 0
    assert f"| base | 5 | +20.0 [{20 - half:+.1f}, {20 + half:+.1f}] | 2 |" in said
    rows = {line.split("|")[1].strip(): line for line in said.split("\n\n")[0].splitlines()}
    assert "| 250 |" in rows["SWEET-RL"], "the mean of the sampled tokens; seed 0 has no cost.json"
    assert rows["base"].count("|  ") == 4, "the base agent is where costs begin"
    picture = (tmp_path / "results.svg").read_text()
    assert picture.count("<circle") == 10 and picture.count("<path") == 2


def test_a_seed_added_again_replaces_its_lines_alone(tmp_path, shown):
    for folder, success in (("study/1", 0.5), ("study/2", 0.5), ("easy/1", 0.25)):
        finished(tmp_path / folder, "base", success)
    shown("--add", *(tmp_path / name for name in ("study/1", "study/2", "easy/1")))
    finished(tmp_path / "study/1", "base", 1)
    assert "75.0 (100.0, 50.0)" in shown("--add", tmp_path / "study/1"), "below five seeds no interval"
    assert "25.0 (25.0)" in shown("--setting", "easy")


@pytest.mark.parametrize("arguments, sentence", [
    (["--add", "7"], "7: no AGENT.test.metrics.json"), (["--add", "7-policy"], "7-policy: a run's folder must be named"),
    (["--setting", "x"], "no setting 'x'")])
def test_what_cannot_be_added_up_is_one_sentence(tmp_path, shown, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        shown(*arguments)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and sentence in error and error.count("\n") == 1


@pytest.mark.parametrize("seeds, t", [(5, 2.776), (6, 2.571), (10, 2.262), (11, 2.228), (21, 2.086), (61, 2.000)])
def test_the_interval_over_seeds_has_students_quantile(seeds, t):
    values = np.random.default_rng(seeds).random(seeds)
    mean, half = over_seeds.interval(values)
    assert mean == pytest.approx(values.mean())
    assert half == pytest.approx(t * values.std(ddof=1) / seeds ** 0.5, rel=1e-3)
    assert over_seeds.interval(values[:4])[1] is None
