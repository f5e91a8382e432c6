"""Claims about study/over_seeds.py: means over seeds, their intervals, and what a mean must not hide."""
import json
import sys

import numpy as np
import pytest

from test_evaluate import HALF, RIGHT, ROOT, run, scored_file, trajectory, width
from test_train import call

sys.path.insert(0, str(ROOT / "study"))
import evaluate  # noqa: E402
import over_seeds  # noqa: E402
import rounds  # noqa: E402


def metrics_file(folder, name, seed, right, tasks=2, **more):
    """{seed}/{name}.metrics.json in which `right` of the tasks are solved, as evaluate.py writes it."""
    path = folder / str(seed) / f"{name}.scored.jsonl"
    scored_file(path, *[trajectory(n, RIGHT if n < right else HALF, **more) for n in range(tasks)])
    args = evaluate.argparse.Namespace(resamples=10, seed=0)
    measured = evaluate.compare([evaluate.Run(name, path)], args)[name]["metrics"]
    (path.parent / f"{name}.metrics.json").write_text(json.dumps(measured))


def seeds_of(folder, rights):
    for name, by_seed in rights.items():
        for seed, right in by_seed.items():
            metrics_file(folder, name, seed, right)
    return [f"{name}=*/{name}.metrics.json" for name in rights]


@pytest.fixture
def said(tmp_path, monkeypatch):
    """A function that runs the command and returns what it printed, or with code=2 its refusal."""
    monkeypatch.chdir(tmp_path)

    def ask(*arguments, code=0):
        found, out, error = call(over_seeds, *arguments)
        assert found == code, error
        return error if code else out

    return ask


def test_it_reads_what_evaluate_writes(tmp_path, said):
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        path = tmp_path / str(seed) / "base.test.trajectories.jsonl"
        path.write_text(json.dumps(trajectory(0, RIGHT if seed else HALF)) + "\n")
        run(tmp_path, "--in", path)
    assert "50.0% (0.0, 100.0)" in said("base=*/base.test.metrics.json")


def test_means_and_differences_are_taken_seed_by_seed(tmp_path, said):
    """Success 0, 0, 1/2, 1/2, 1 against 0, 1/2, 1, 1/2, 1 over five seeds of two tasks; t(4) = 2.776, by hand."""
    rights = {"base": dict(enumerate((0, 0, 1, 1, 2))), "sweet": dict(enumerate((0, 1, 2, 1, 2)))}
    shown = said(*seeds_of(tmp_path, rights))
    assert "sweet: success, seeds 0, 1, 2, 3, 4: 0.0, 50.0, 100.0, 50.0, 100.0" in shown
    half = 100 * 2.776 * (0.7 / 4) ** 0.5 / 5 ** 0.5    # squares of 0.6, 0.1, 0.4, 0.1, 0.4
    assert f"60.0% [{60 - half:.1f}, 100.0]" in shown, "a rate is at most 100%"
    half = 100 * 2.776 * (0.3 / 4) ** 0.5 / 5 ** 0.5    # differences 0, 1/2, 1/2, 0, 0, run by run and not of the means
    assert f"+20.0 [{20 - half:+.1f}, {20 + half:+.1f}]" in shown
    assert shown.splitlines()[2].split("|")[3].strip() == "5" and "WARNING" not in shown


def test_several_seeds_do_not_hide_how_episodes_ended(tmp_path, said):
    metrics_file(tmp_path, "base", 0, 1)
    metrics_file(tmp_path, "base", 1, 1, finish="error: no server")
    shown = said("base=*/base.metrics.json")
    assert "base, seed 0: 2 tasks; episodes of " in shown and "0/base.scored.jsonl ended: answered 2" in shown
    assert "1/base.scored.jsonl ended: error 2" in shown and "base, seed 1: 2 x error: no server" in shown
    assert "failed by an error" in shown and "50.0% (0.0, 100.0)" in shown


def test_agents_of_a_seed_that_played_other_tasks_get_a_warning(tmp_path, said):
    for name, tasks in (("a", 4), ("b", 2)):
        metrics_file(tmp_path, name, 0, 1, tasks)
        metrics_file(tmp_path, name, 1, 1, 2)
    shown = said("a=*/a.metrics.json", "b=*/b.metrics.json")
    assert "WARNING: agents of seed 0 played 2 or 4 tasks" in shown and "seed 1 played" not in shown


def test_below_five_seeds_the_values_are_printed_and_no_interval(tmp_path, said):
    shown = said(*seeds_of(tmp_path, {"base": {0: 0, 1: 2}, "sweet": {0: 2, 1: 2}}))
    success = next(line for line in shown.splitlines() if line.startswith("| success "))
    assert "50.0%" in success and "[" not in success, "Student's interval of 0% and 100% is -585% to 685%"
    assert "base: success, seeds 0, 1: 0.0, 100.0" in shown


def test_a_name_that_lacks_a_seed_is_compared_on_the_others_and_says_so(tmp_path, said):
    files = seeds_of(tmp_path, {"base": {0: 0, 1: 2, 2: 0}, "sweet": {2: 1, 0: 2}})
    shown = said(*files)
    assert "sweet: WARNING: no seed 1; differences" in shown and "sweet: success, seeds 0, 2: 100.0, 50.0" in shown
    assert "base: success, seeds 0, 1, 2: 0.0, 100.0, 0.0" in shown and "+75.0 (+100.0, +50.0)" in shown
    shown = said(*reversed(files))
    assert "sweet: WARNING: no seed 1" in shown and "33.3% (0.0, 100.0, 0.0)" in shown
    assert "-75.0 (-100.0, -50.0)" in shown


def test_the_mean_cost_stands_beside_the_success(tmp_path, said):
    files = seeds_of(tmp_path, {"base": {0: 0, 1: 2}, "sweet": {0: 2, 1: 2}})
    for seed, tokens in ((0, 100), (1, 300)):
        (tmp_path / str(seed) / "sweet").mkdir()
        (tmp_path / str(seed) / "sweet/cost.json").write_text(json.dumps({"sampled_tokens": tokens}))
    cells = {row[1].strip(): (row[2].strip(), row[3].strip()) for row in
             (line.split("|") for line in said(*files).splitlines() if line.startswith("|"))}
    assert cells["cost: sampled tokens"] == ("", "200") and "cost: episodes" not in cells


@pytest.mark.parametrize("spoil, sentence", [
    (lambda path: path.unlink(), "1/base.metrics.json: no such file"),
    (lambda path: path.write_text("{"), "1/base.metrics.json holds no metrics"),
    (lambda path: path.write_text("{}"), "1/base.metrics.json holds no metrics"),
    (lambda path: path.write_text(path.read_text().replace('"module"', '"released"')), "score them the same way")])
def test_what_cannot_be_averaged_is_one_sentence(tmp_path, said, spoil, sentence):
    seeds_of(tmp_path, {"base": {0: 0, 1: 2}})
    spoil(tmp_path / "1/base.metrics.json")
    refused = said("a=0/base.metrics.json", "b=1/base.metrics.json", code=2)
    assert sentence in refused and refused.count("\n") == 1


def test_a_folder_is_one_seed(tmp_path, said):
    seeds_of(tmp_path, {"base": {0: 0}, "best": {0: 1}})
    assert "each seed needs its own folder" in said("both=0/b*.metrics.json", code=2)
    assert "different names" in said("a=0/base.metrics.json", "a=0/best.metrics.json", code=2)
    assert "NAME=FILE, such as" in said("0/base.metrics.json", code=2)


@pytest.mark.parametrize("seeds, t", [(5, 2.776), (6, 2.571), (10, 2.262), (11, 2.228), (21, 2.086), (61, 2.000)])
def test_the_interval_over_seeds_has_students_quantile(seeds, t):
    values = np.random.default_rng(seeds).random(seeds)
    numbers = over_seeds.over_seeds(values)
    assert width(numbers) == pytest.approx(2 * t * values.std(ddof=1) / seeds ** 0.5, rel=1e-3)
    assert numbers["value"] == pytest.approx(values.mean()) == pytest.approx((numbers["low"] + numbers["high"]) / 2)
    few = over_seeds.over_seeds(values[:4])
    assert few["low"] is few["high"] is None and few["values"] == list(values[:4])


# ---- study/rounds.py, over study/leaderboard.py


def finished_round(folder, agent, success, seconds):
    """A round's folder: the agent's metrics at both temperatures, its cost, and the CPU time of the commands."""
    (folder / agent).mkdir(parents=True)
    for temperature, share in zip(("0.3", "1"), success):
        (folder / f"{agent}.test-{temperature}.metrics.json").write_text(json.dumps({"success": {"value": share}}))
    cost = {"episodes": 10, "simulator_calls": 30, "sampled_tokens": 500}
    (folder / agent / "cost.json").write_text(json.dumps(cost))
    commands = ["rollout.py --limit 400 --samples 6 --in x", "evaluate.py --run-name x --split train",
                "train_policy.py --out runs/x/trial-rejection-2", f"train_policy.py --out runs/x/{agent}"]
    lines = [f"{took}\t{command}\n" for took, command in zip(seconds, commands)]
    (folder / "cpu.tsv").write_text("9999\ttrain_policy.py --out runs/x/another-agent\n" + "".join(lines))


def test_a_rounds_costs_are_those_of_all_rounds_so_far(tmp_path):
    agent = rounds.METHODS["dpo"]
    finished_round(tmp_path / "46", agent, (0.25, 0.125), (60, 30, 6, 24))
    finished_round(tmp_path / "46-dpo-2", agent, (0.5, 0.375), (120, 60, 6, 54))
    finished_round(tmp_path / "46-dpo-4", agent, (0.9, 0.9), (1, 1, 1, 1))    # not the next round: left out
    assert list(rounds.rows_of(tmp_path / "46")) == [
        ["46", "dpo", "1", "25.0", "12.5", "10", "30", "500", "2.0"],
        ["46", "dpo", "2", "50.0", "37.5", "20", "60", "1000", "6.0"]]


def test_rounds_are_compared_seed_by_seed(capsys):
    ours = [{"seed": "46", "0.3": "40.0", "1": "30.0"}, {"seed": "47", "0.3": "50.0", "1": "30.0"}]
    theirs = [{"seed": "47", "0.3": "20.0", "1": "35.0"}, {"seed": "48", "0.3": "99.0", "1": "99.0"}]
    rounds.print_differences({("sweet", 1): ours, ("dpo", 1): theirs})
    assert capsys.readouterr().out.splitlines()[-1] == "| 1 | 1 | 1 | +30.0 (+30.0) | -5.0 (-5.0) |"
