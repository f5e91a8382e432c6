"""Claims about evaluate.py, checked on its real command line: rewards, intervals, comparison, resume, the report."""

import html.parser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import evaluate  # noqa: E402

RIGHT = "def double(x):\n    return 2 * x\n"
HALF = "def double(x):\n    return 2 * x if x < 5 else 0\n"  # right for 0..4 of the calls 0..9
BROKEN = "def double(x:\n"


def task(number, reference=RIGHT):
    return {"task_id": f"t-{number:03d}", "domain": "backend", "problem_description": f"Double it, {number}.",
            "ground_truth": reference + f"\nNUMBER = {number}\n",
            "test_cases": {f"case {x}": f"double({x})" for x in range(10)},
            "source": "hand", "facts": [{"detail": "factor", "keywords": ["factor"], "reply": "The factor is 2."}]}


def trajectory(number, answer, sample=0, turns=2, finish="answered", **more):
    history = [{"role": "user", "content": f"Double it, {number}."}]
    for turn in range(turns - 1):
        history += [{"role": "assistant", "content": "What is the factor?",
                     "output": "I wonder. OUTPUT: What is the factor?", "output_ids": [5, 6, 7]},
                    {"role": "user", "content": "The factor is 2."}]
    history.append({"role": "assistant", "content": f"I WANT TO ANSWER: {answer}",
                    "output": f"I WANT TO ANSWER: {answer}", "output_ids": [1] * 9})
    return {"task_id": f"t-{number:03d}", "sample": sample, "domain": "backend", "task": task(number), "system": "",
            "dialogue_history": history, "answer": answer, "finish": finish, "model": "m", "simulator": "scripted",
            "seed": 0, **more}


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def run(folder, *arguments, code=0):
    done = subprocess.run([sys.executable, ROOT / "evaluate.py", *map(str, arguments)], cwd=folder,
                          capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Six answers of known worth, scored once with a report: (folder, output of the command)."""
    folder = tmp_path_factory.mktemp("scored")
    write(folder / "runs/default/test.trajectories.jsonl", [
        trajectory(0, RIGHT), trajectory(1, HALF, extra={"kept": [1, "ü"]}), trajectory(2, BROKEN),
        trajectory(3, None, finish="error: the server is gone"),
        trajectory(4, f"Here:\n```python\n{RIGHT}```\nDone.", turns=4),
        trajectory(5, "def double(x):\n    return None\n", turns=10, finish="max_turns")])
    return folder, run(folder, "--split", "test", "--report", "report.html")


# ------------------------------------------------------------------------------------------------------- rewards


def test_the_reward_is_the_share_of_tests_passed_and_failed_episodes_score_zero(scored):
    folder, _ = scored
    records = read(folder / "runs/default/test.scored.jsonl")
    assert [record["reward"] for record in records] == [1.0, 0.5, 0.0, 0.0, 1.0, 0.0]
    assert set(records[2]["tests"].values()) == {"error: SyntaxError"}
    assert set(records[3]["tests"].values()) == {"no answer"}
    assert records[1]["tests"]["case 4"] == "passed" and records[1]["tests"]["case 5"] == "wrong"
    assert list(records[0]["tests"]) == [f"case {x}" for x in range(10)]
    assert records[0]["sandbox"], "every scored record says which layers of the sandbox were on"


def test_records_keep_their_order_and_every_key_and_the_input_is_left_alone(scored):
    folder, _ = scored
    before = read(folder / "runs/default/test.trajectories.jsonl")
    for old, new in zip(before, read(folder / "runs/default/test.scored.jsonl"), strict=True):
        assert {key: new[key] for key in old} == old
    assert len(before) == 6 and "reward" not in before[0]


def test_metrics_are_those_computed_by_hand(scored):
    folder, done = scored
    metrics = json.loads((folder / "runs/default/test.metrics.json").read_text())
    assert metrics["tasks"] == 6 and metrics["samples"] == 6
    assert metrics["success"]["value"] == pytest.approx(2 / 6)
    assert metrics["tests_passed"]["value"] == pytest.approx(2.5 / 6)
    assert metrics["answered"]["value"] == pytest.approx(4 / 6)
    assert metrics["turns"]["value"] == pytest.approx((2 + 2 + 2 + 2 + 4 + 10) / 6)
    assert metrics["tokens_per_reply"]["value"] == pytest.approx((16 * 3 + 6 * 9) / 22)
    answers = (10 + 16 + 6 + 5 + 14 + 8)  # words of the six answers with their mark; thoughts are no words of a reply
    assert metrics["words_per_reply"]["value"] == pytest.approx((16 * 4 + answers) / 22)
    assert metrics["finish"] == {"answered": 4, "error": 1, "max_turns": 1}
    assert metrics["errors"] == {"error: the server is gone": 1}
    assert metrics["statuses"] == {"passed": 25, "wrong": 15, "error: SyntaxError": 10, "no answer": 10}
    assert metrics["references_failing"] == 0
    assert "| success" in done.stdout and "33.3%" in done.stdout and "the server is gone" in done.stdout


def test_the_share_of_hidden_details_that_the_agent_was_told_is_counted(scored):
    folder, _ = scored
    assert json.loads((folder / "runs/default/test.metrics.json").read_text())["details_told"]["value"] == 1.0
    assert [told for _, told in evaluate.told_facts(trajectory(0, RIGHT, turns=1))] == [False]
    assert [told for _, told in evaluate.told_facts(trajectory(0, RIGHT, turns=2))] == [True]
    guess = trajectory(0, RIGHT + "# The factor is 2.", turns=1)
    assert [told for _, told in evaluate.told_facts(guess)] == [False], "the agent guessed it, nobody told it"


def test_a_reference_that_fails_its_own_tests_is_counted(tmp_path):
    broken = trajectory(0, RIGHT)
    broken["task"]["ground_truth"] = "def double(x):\n    raise ValueError(x)\n"
    done = run(tmp_path, "--in", write(tmp_path / "a.trajectories.jsonl", [broken, trajectory(1, RIGHT)]))
    metrics = json.loads((tmp_path / "a.metrics.json").read_text())
    assert metrics["references_failing"] == 1 and metrics["references_failing_first"] == ["t-000"]
    assert metrics["success"]["value"] == 0.5 and "WARNING: 1 task" in done.stdout


@pytest.mark.parametrize("answer, code", [
    (RIGHT, RIGHT.strip()),
    (" def f():\n     return 1\n", "def f():\n    return 1"),
    (" f = 1\ng = 2\n", "f = 1\ng = 2"),
    ("```python\ndef f():\n    return 1\n```", "def f():\n    return 1"),
    ("```\ndef f():\n    return 1\n```", "def f():\n    return 1"),
    ("Sure!\r\n```Python3\r\ndef f():\r\n    return 1\r\n```\r\nDone.", "def f():\n    return 1"),
    ("1. code:\n   ```py\n   def f():\n       return 1\n   ```", "def f():\n    return 1"),
    ("```python\ndef f():\n    return 1", "def f():\n    return 1"),  # cut off before the closing fence
    ("I WANT TO ANSWER: ```python\ndef f():\n    return 1\n```", "def f():\n    return 1"),
    ("Like this? I WANT TO ANSWER:\ndef f():\n    return 1", "def f():\n    return 1"),
    ("```python\ndef f():\n    return g()\n```\nwith\n```python\ndef g():\n    return 1\n```\n"
     "Use:\n```\nprint(f())\n```",
     "def f():\n    return g()\n\ndef g():\n    return 1"),
    ("```python f = len```", "f = len"),
    ("```python\nf = len\n```", "f = len"),
    ("    def f():\n        return 1", "def f():\n    return 1"),
    ("", ""),
])
def test_code_is_taken_out_of_markdown(answer, code):
    assert evaluate.extract_code(answer) == code


def test_both_modes_are_printed_side_by_side(tmp_path):
    # the released evaluator: NameError
    helper = "def twice(x):\n    return 2 * x\n\ndef double(x):\n    return twice(x)\n"
    source = write(tmp_path / "a.trajectories.jsonl", [trajectory(0, helper), trajectory(1, RIGHT)])
    done = run(tmp_path, "--in", source, "--mode", "both")
    first, second = read(tmp_path / "a.scored.jsonl")
    assert first["reward"] == 1.0 and first["reward_released"] == 0.0
    assert set(first["tests"].values()) == {"passed"} and set(first["tests_released"].values()) == {"error: NameError"}
    assert second["reward"] == second["reward_released"] == 1.0
    assert (re.search(r"success +\| 100.0%", done.stdout)
            and re.search(r"success \(released evaluator\) +\| 50.0%", done.stdout))


def test_released_trajectories_are_read_as_they_are(tmp_path):
    def released(number, answer):
        record = trajectory(number, answer)
        bare = {key: record["task"][key] for key in ("problem_description", "ground_truth", "test_cases")}
        turns = [{**turn, "input": "<prompt>"} if turn["role"] == "assistant" else turn
                 for turn in record["dialogue_history"]]
        return {"task": bare, "dialogue_history": turns, "answer": answer, "reward": 0.123}

    unmarked = released(1, HALF)  # the turns ran out
    unmarked["dialogue_history"][-1] |= {"content": HALF, "output": HALF}
    source = write(tmp_path / "offline.jsonl", [released(0, RIGHT), released(1, HALF), released(0, HALF), unmarked])
    run(tmp_path, "--in", source)
    records = read(tmp_path / "offline.scored.jsonl")
    assert [record["reward"] for record in records] == [1.0, 0.5, 0.5, 0.5]
    assert [record["sample"] for record in records] == [0, 0, 1, 1]
    assert [record["finish"] for record in records] == ["answered"] * 3 + ["max_turns"]
    assert records[0]["task_id"] == records[2]["task_id"] != records[1]["task_id"] == records[3]["task_id"]
    assert json.loads((tmp_path / "offline.metrics.json").read_text())["tasks"] == 2


# ------------------------------------------------------------------------------------------------------- pages

RED, BLUE = (f'<html><body style="margin:0"><div style="background:{colour};width:100%;height:500px"></div>'
             '<h1>Shop</h1>'
             '<div style="background:#0a0;width:200px;height:90px"></div></body></html>'  # left of the centre square
             for colour in ("#c00", "#00c"))


def design(number, answer, reference=RED, sample=0):
    record = trajectory(number, answer or "", sample=sample)
    record |= {"domain": "frontend", "answer": answer,
               "task": {"task_id": record["task_id"], "domain": "frontend", "problem_description": "A shop.",
                        "ground_truth": reference}}
    record["dialogue_history"][1] |= {"content": BLUE, "output": f"A first try. OUTPUT: {BLUE}"}
    return record


@pytest.fixture(scope="module")
def designs(tmp_path_factory):
    """Two runs over three pages, scored, compared, with a report: (folder, what compare printed)."""
    render = pytest.importorskip("render")
    pytest.importorskip("playwright")
    try:
        render.find_chromium(), render.load_stylesheet()
    except RuntimeError as problem:
        pytest.skip(str(problem))
    folder = tmp_path_factory.mktemp("designs")
    answers = {"a": [RED, f"```html\n{BLUE}\n```", "I cannot."], "b": [RED, RED, "<html><body></body></html>"]}
    for name, pages in answers.items():
        run(folder, "--in", write(folder / f"{name}.trajectories.jsonl",
                                  [design(n, page) for n, page in enumerate(pages)]))
    return folder, run(folder, "--compare", "a=a.scored.jsonl", "b=b.scored.jsonl", "--json", "c.json",
                       "--report", "c.html").stdout


def test_the_reward_of_a_page_is_its_cosine_with_the_reference(designs):
    folder, _ = designs
    same, other, none = read(folder / "a.scored.jsonl")
    assert same["reward"] == pytest.approx(1.0) and same["page"] == "ok" and set(same["cosine"]) == {"page", "centre"}
    assert (other["reward"] == other["cosine"]["page"] < 0.99
            and other["encoder"] == "layout" and other["view"] == "page")
    assert abs(other["cosine"]["page"] - other["cosine"]["centre"]) > 0.001, \
        "the centre does not see what stands at the left"
    assert none["reward"] == 0 and none["page"] == "no page"
    blank = read(folder / "b.scored.jsonl")[2]
    assert blank["page"] == "blank" and blank["reward"] == 0
    metrics = json.loads((folder / "b.metrics.json").read_text())
    assert (metrics["blank"]["value"] == pytest.approx(1 / 3) and metrics["broken"]["value"] == 0
            and "success" not in metrics)
    assert metrics["encoder"] == "layout"


def test_the_next_command_for_pages_names_the_domain(designs):
    folder, _ = designs
    last = run(folder, "--in", "a.trajectories.jsonl", "--out", "runs/pages/train.scored.jsonl").stdout.splitlines()[-1]
    assert last == "next: python train_critic.py --run pages --domain frontend"


def test_a_win_is_the_higher_cosine_and_a_tie_is_half(designs):
    folder, printed = designs
    # page 0: both are the reference, a tie; page 1: b is better; page 2: nothing against a blank page, both 0, a tie
    assert (json.loads((folder / "c.json").read_text())["b"]["difference"]["win_rate"]["value"]
            == pytest.approx((0.5 + 1 + 0.5) / 3))
    assert "win rate vs a" in printed and "66.7%" in printed
    assert (evaluate.win_share([0.2, 0.8], [0.5]) == 0.5 and evaluate.win_share([0.5], [0.5]) == 0.5
            and evaluate.win_share([0.1], [0.5]) == 0)


def test_the_report_shows_every_page_beside_its_reference(designs):
    folder, _ = designs
    raw = (folder / "c.html").read_text()
    page = Page(raw)
    pictures = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert len(pictures) == 6 + 5, "each of six dialogues shows a first page, five an answer"
    assert all(source.startswith("data:image/webp;base64,") for source in pictures) and len(set(pictures)) == 3
    assert (sum(tag == "use" for tag, _ in page.tags) == len(pictures)
            and sum(tag == "image" for tag, _ in page.tags) == 1)
    assert len(raw) < 300_000


def test_cosines_of_different_views_or_encoders_are_not_compared(designs):
    folder, _ = designs
    run(folder, "--in", "a.trajectories.jsonl", "--out", "centre.scored.jsonl", "--view", "centre")
    _, centre, _ = read(folder / "centre.scored.jsonl")
    assert centre["reward"] == centre["cosine"]["centre"] != centre["cosine"]["page"]
    done = run(folder, "--compare", "a=a.scored.jsonl", "centre=centre.scored.jsonl", code=2)
    assert "layout, centre" in done.stderr and done.stderr.count("\n") == 1


# ------------------------------------------------------------------------------------------------------- intervals


def summary(values, samples=1, tasks=None):
    """As summarise() returns it, for tasks with the given numbers of successes out of `samples`."""
    sums = np.zeros((len(values), len(evaluate.SUMS)))
    sums[:, evaluate.COLUMN["samples"]] = sums[:, evaluate.COLUMN["programs"]] = samples
    sums[:, evaluate.COLUMN["success"]] = values
    return {"path": "x", "tasks": tasks or [f"t{number}" for number in range(len(values))], "sums": sums}


def width(numbers):
    return numbers["high"] - numbers["low"]


def test_the_bootstrap_agrees_with_a_plain_loop():
    values = np.random.default_rng(1).random((40, 3))
    fast = evaluate.bootstrap_sums(values, 20_000, seed=0)
    rng = np.random.default_rng(7)
    slow = np.array([values[rng.choice(40, size=40)].sum(axis=0) for _ in range(20_000)])
    assert np.abs(fast.mean(axis=0) - slow.mean(axis=0)).max() < 0.05
    assert np.abs(np.percentile(fast, [2.5, 50, 97.5], axis=0)
                  - np.percentile(slow, [2.5, 50, 97.5], axis=0)).max() < 0.15


def test_the_interval_of_a_thousand_tasks_has_the_width_of_the_binomial():
    values = (np.arange(1000) < 400).astype(float)
    numbers = evaluate.intervals(summary(values)["sums"], 10_000, seed=0)["success"]
    assert width(numbers) == pytest.approx(2 * 1.96 * (0.4 * 0.6 / 1000) ** 0.5, rel=0.05)
    assert numbers["low"] < numbers["value"] == 0.4 < numbers["high"]


def test_samples_of_one_task_are_drawn_together():
    values = (np.arange(200) < 80).astype(float)
    once = evaluate.intervals(summary(values)["sums"], 5000, seed=0)["success"]
    # five equal samples a task
    five = evaluate.intervals(summary(values * 5, samples=5)["sums"], 5000, seed=0)["success"]
    assert width(five) == pytest.approx(width(once)), "equal samples carry no information: the interval must not shrink"


def test_the_difference_is_paired():
    rng = np.random.default_rng(0)
    base = (rng.random(500) < 0.4).astype(float)
    better = np.maximum(base, rng.random(500) < 0.1)  # the same tasks, some more solved
    difference = evaluate.paired_difference(summary(better), summary(base), 5000, seed=0)["success"]
    assert difference["value"] == pytest.approx(better.mean() - base.mean()) and difference["low"] > 0
    apart = [width(evaluate.intervals(summary(values)["sums"], 5000, seed=0)["success"]) for values in (base, better)]
    assert width(difference) < 0.7 * np.hypot(*apart), "the difficulty of the tasks must cancel"
    same = evaluate.paired_difference(summary(base), summary(base), 500, seed=0)["success"]
    assert (same["value"], same["low"], same["high"]) == (0, 0, 0)


def test_the_difference_uses_the_common_tasks_in_whatever_order():
    run_a, run_b = summary([1, 0, 1], tasks=["a", "b", "c"]), summary([0, 1, 1], tasks=["x", "c", "a"])
    difference = evaluate.paired_difference(run_a, run_b, 500, seed=0)
    assert difference["tasks"] == 2 and difference["success"]["value"] == 0 == width(difference["success"])


def test_several_files_a_name_are_seeds_with_a_t_interval_over_them(tmp_path):
    """Success 0, 1/2, 1 against 0, 0, 1/2 over three seeds of two tasks; t(2) = 4.303, computed by hand."""
    for name, rights in {"base": (0, 0, 1), "sweet": (0, 1, 2)}.items():
        for seed, right in enumerate(rights):
            records = [trajectory(n, RIGHT if n < right else HALF) for n in range(2)]
            write(tmp_path / f"{name}.{seed}.trajectories.jsonl", records)
            run(tmp_path, "--in", f"{name}.{seed}.trajectories.jsonl")
    command = ["--compare", "base=base.*.scored.jsonl", "sweet=sweet.*.scored.jsonl", "--json", "c.json"]
    assert "success, sweet, seed by seed: 0.0, 50.0, 100.0" in run(tmp_path, *command).stdout
    found = json.loads((tmp_path / "c.json").read_text())["sweet"]
    half = 4.303 * 0.5 / 3 ** 0.5
    assert found["metrics"]["success"] == pytest.approx({"value": 0.5, "low": 0.5 - half, "high": 0.5 + half})
    differences, half = (0, 0.5, 0.5), 4.303 * (1 / 12) ** 0.5 / 3 ** 0.5    # run by run, not of the means
    assert found["difference"]["success"] == pytest.approx(
        {"value": sum(differences) / 3, "low": 1 / 3 - half, "high": 1 / 3 + half})
    assert "as many files" in run(tmp_path, *command[:2], "sweet=sweet.0.scored.jsonl", code=2).stderr
    assert "one file" in run(tmp_path, *command[:3], "--report", "r.html", code=2).stderr


@pytest.mark.parametrize("seeds, t", [(2, 12.706), (3, 4.303), (4, 3.182), (5, 2.776), (6, 2.571), (10, 2.262),
                                      (11, 2.228), (21, 2.086), (61, 2.000)])
def test_the_interval_over_seeds_has_students_quantile(seeds, t):
    values = np.random.default_rng(seeds).random(seeds)
    numbers = evaluate.over_seeds(values)
    assert width(numbers) == pytest.approx(2 * t * values.std(ddof=1) / seeds ** 0.5, rel=2e-3)
    assert numbers["value"] == pytest.approx(values.mean()) == pytest.approx((numbers["low"] + numbers["high"]) / 2)


def test_compare_prints_a_markdown_table_with_differences(tmp_path):
    files = {}
    for name, share in (("base", 3), ("sweet", 7)):
        source = write(tmp_path / f"{name}.trajectories.jsonl",
                       [trajectory(n, RIGHT if n < share else HALF) for n in range(10)])
        run(tmp_path, "--in", source)
        files[name] = tmp_path / f"{name}.scored.jsonl"
    done = run(tmp_path, "--compare", *(f"{name}={path}" for name, path in files.items()), "--json", "c.json",
               "--report", "c.html")
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(lines) == 4 and len({line.count("|") for line in lines}) == 1, "one Markdown table"
    assert "30.0%" in lines[2] and "70.0%" in lines[3] and "+40.0 [+" in lines[3]
    result = json.loads((tmp_path / "c.json").read_text())
    assert result["sweet"]["difference"]["success"]["value"] == pytest.approx(0.4)
    assert result["sweet"]["against"] == "base" and result["base"]["difference"] is None
    page = (tmp_path / "c.html").read_text()
    assert ("+40.0 [+" in page and page.count('<details class="episode"') == 20
            and page.count('<section class="task"') == 10)


def test_the_same_seed_gives_the_same_intervals(scored):
    folder, _ = scored
    path = "a=runs/default/test.scored.jsonl"
    assert run(folder, "--compare", path).stdout == run(folder, "--compare", path).stdout
    assert run(folder, "--compare", path, "--resamples", "5").stdout != run(folder, "--compare", path).stdout


# ------------------------------------------------------------------------------------------------------- resume


def test_a_killed_scoring_goes_on_and_gives_the_same_file(tmp_path):
    slow = "import time\ntime.sleep(0.004)\n" + RIGHT
    records = [trajectory(n, slow if n % 2 else HALF) for n in range(60)]
    whole = write(tmp_path / "whole.trajectories.jsonl", records)
    run(tmp_path, "--in", whole)
    parts = write(tmp_path / "parts.trajectories.jsonl", records)
    out = tmp_path / "parts.scored.jsonl"
    process = subprocess.Popen([sys.executable, ROOT / "evaluate.py", "--in", parts], cwd=tmp_path,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and (not out.exists() or out.read_bytes().count(b"\n") < 5):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    held = out.read_bytes()
    assert 5 <= held.count(b"\n") < 60, "the kill came in the middle"
    out.write_bytes(held + b'{"task_id": "t-0')  # as a kill within a line leaves it
    run(tmp_path, "--in", parts)
    assert out.read_bytes().startswith(held[:held.rindex(b"\n") + 1])
    assert ([line for line in out.read_bytes().splitlines()]
            == (tmp_path / "whole.scored.jsonl").read_bytes().splitlines())


@pytest.mark.parametrize("moment", ["imports", "scoring"])
def test_ctrl_c_is_quiet_and_leaves_whole_lines(tmp_path, moment):
    path = write(tmp_path / "a.trajectories.jsonl", [
        trajectory(n, "import time\ntime.sleep(0.004)\n" + RIGHT) for n in range(500)])
    process = subprocess.Popen([sys.executable, ROOT / "evaluate.py", "--in", path], cwd=tmp_path,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    out, deadline, maps = tmp_path / "a.scored.jsonl", time.monotonic() + 60, Path(f"/proc/{process.pid}/maps")
    while time.monotonic() < deadline and not (out.exists() if moment == "scoring" else "numpy" in maps.read_text()):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "Traceback" not in said
    assert moment == "imports" or out.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("name, flags, expected", [
    ("runs/default/train", "--split train", "python train_critic.py"),
    ("runs/foo/train", "--split train --run foo", "python train_critic.py --run foo"),
    ("runs/foo/train", "--in runs/foo/train.trajectories.jsonl", "python train_critic.py --run foo"),
    ("a b/train", "--run foo --in", "python train_critic.py --run foo --in 'a b/train.scored.jsonl'"),
    ("runs/foo/test", "--run foo", "python evaluate.py --compare NAME=runs/foo/test.scored.jsonl NAME=... ")])
def test_the_last_line_names_a_command_that_finds_the_output(tmp_path, name, flags, expected):
    path = write(tmp_path / f"{name}.trajectories.jsonl", [trajectory(0, RIGHT)]).relative_to(tmp_path)
    flags = [*flags.split(), *([path] if flags.endswith("--in") else [])]
    last = run(tmp_path, *flags).stdout.splitlines()[-1]
    assert last.startswith(f"next: {expected}") and (name.endswith("test") or last == f"next: {expected}")


def test_resuming_a_finished_file_changes_nothing(scored):
    folder, _ = scored
    path = folder / "runs/default/test.scored.jsonl"
    before = path.read_bytes(), path.stat().st_mtime_ns
    assert "scored already" in run(folder, "--split", "test").stdout
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize("change", ["answer", "dialogue", "settings", "gone"])
def test_a_reward_is_never_kept_for_an_episode_that_changed(tmp_path, change):
    source = write(tmp_path / "a.trajectories.jsonl", [trajectory(0, RIGHT), trajectory(1, RIGHT)])
    run(tmp_path, "--in", source)
    before = (tmp_path / "a.scored.jsonl").read_bytes()
    new = [trajectory(0, RIGHT),
           trajectory(1, BROKEN if change == "answer" else RIGHT, turns=3 if change == "dialogue" else 2)]
    write(source, new[:1] if change == "gone" else new)
    done = run(tmp_path, "--in", source, *(["--mode", "released"] if change == "settings" else []), code=2)
    assert "--overwrite" in done.stderr and done.stderr.count("\n") == 1
    assert (tmp_path / "a.scored.jsonl").read_bytes() == before
    if change == "settings":
        assert "mode was 'module', now 'released'" in done.stderr
    run(tmp_path, "--in", source, "--overwrite")
    assert [record["reward"] for record in read(tmp_path / "a.scored.jsonl")] == [1.0, 0.0][:2 - (change == "gone")] \
        or change in ("dialogue", "settings")


# ------------------------------------------------------------------------------------------------------- the report


class Page(html.parser.HTMLParser):
    """Tags, attributes and text of a page, as a browser would see them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.scripts, self.inside = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag if tag in ("script", "style") else None

    def handle_data(self, data):
        (self.scripts if self.inside == "script" else self.text).append(data)

    def handle_endtag(self, tag):
        self.inside = None


def test_the_report_shows_dialogue_answer_reference_and_tests(scored):
    folder, _ = scored
    page = Page((folder / "report.html").read_text())
    text = "\n".join(page.text)
    assert sum(tag == "details" and "episode" in attributes.get("class", "") for tag, attributes in page.tags) == 6
    for expected in ("What is the factor?", "The factor is 2.", "I wonder.", "double(9)", "error: SyntaxError",
                     "told: factor", "error: the server is gone", "0.50 some tests pass", "(no answer)"):
        assert expected in text, expected
    marks = [tag for tag, _ in page.tags]
    assert "ins" in marks and "del" in marks, "differences within a line are marked"


HOSTILE = ["<script>alert(1)</script>", "</script><script>alert(2)</script>", "\"><img src=x onerror=alert(3)>",
           "' onload='alert(4)", "</style><svg onload=alert(5)>", "<!-- -->]]>&lt;b&gt;&amp;",
           "</pre></details><iframe src=javascript:alert(6)>",
           "<meta http-equiv=refresh content='0;url=http://a.invalid/'>", "\u2028\u202e\x00\x1b[31m\ud83d"]


def test_nothing_from_a_record_becomes_markup_in_the_report(tmp_path):
    records = []
    for number, text in enumerate(HOSTILE):
        record = trajectory(number, f"{text}\n{RIGHT}", finish=f"error: {text}", model=text,
                            advantages=[float("nan"), 0.5])
        record["task_id"] = f"{text} {number}"
        record["task"] |= {"task_id": record["task_id"], "problem_description": text,
                           "ground_truth": f"X = {text!r}\n" + RIGHT, "test_cases": {text: f"double({text!r})"},
                           "facts": [{"detail": text, "reply": text, "keywords": []}]}
        for turn in record["dialogue_history"]:
            turn["content"] = text + turn["content"]
            turn["output"] = f"{text} OUTPUT: {text}"
        records.append(record)
    metrics = {"step": 1, "loss<script>": 1.0, "nan": float("nan"), "accuracy": 0.5}
    write(tmp_path / "<b>critic/metrics.jsonl", [metrics, metrics | {"step": 2}])
    run(tmp_path, "--in", write(tmp_path / "a.trajectories.jsonl", records))
    run(tmp_path, "--compare", "<i onclick>alert(7)</i>=a.scored.jsonl", "--report", "a.html")
    raw = (tmp_path / "a.html").read_text()
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", raw)
    page = Page(raw)
    allowed = set("html head meta title style body header main h1 h2 h3 h4 p table tr th td div span b i ul li nav "
                  "select option input button section details summary pre code del ins svg line text circle rect "
                  "polyline figure figcaption script".split())
    assert {tag for tag, _ in page.tags} <= allowed
    assert page.scripts == [evaluate.SCRIPT], "the only script is the report's own"
    assert not [attribute for _, attributes in page.tags for attribute in attributes
                if attribute.startswith("on") or attribute == "style"]
    assert sum(tag == "i" for tag, _ in page.tags) == 0 and sum(tag == "meta" for tag, _ in page.tags) == 3
    policy = next(attributes["content"] for tag, attributes in page.tags
                  if attributes.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy and evaluate.hash_of(evaluate.SCRIPT) in policy and "unsafe" not in policy
    assert not re.search(r"https?://(?!a\.invalid)", raw), "self-contained: it loads nothing"
    assert "<script>alert(1)</script>" in "".join(page.text), "and a person still reads the text as it was"


@pytest.mark.skipif(not (shutil.which("chromium") or shutil.which("google-chrome")), reason="no Chromium here")
def test_the_report_filters_in_a_browser_under_its_own_policy(scored, tmp_path):
    folder, _ = scored
    raw = (folder / "report.html").read_text()
    # The page starts with "x shown" filled in by its script: if the policy's hash did not fit, it would stay empty.
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    dumped = subprocess.run([chromium, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
                             "--virtual-time-budget=2000", "--dump-dom", f"file://{folder / 'report.html'}"],
                            capture_output=True, text=True, timeout=60).stdout
    assert 'class="dim small"></span></nav>' in raw and "6 shown" in dumped


def test_the_report_holds_advantages_and_training_curves(tmp_path):
    record = trajectory(0, RIGHT, turns=3)
    replies = [turn for turn in record["dialogue_history"] if turn["role"] == "assistant"]
    replies[0]["advantage"], replies[2]["advantage"] = 0.25, -0.5
    listed = trajectory(1, RIGHT, advantages=[0.125, None])
    write(tmp_path / "runs/r/critic/metrics.jsonl",
          [{"step": step, "loss": 1 / (step + 1), "advantage_chosen": step, "advantage_rejected": -step}
           for step in range(200)])
    source = write(tmp_path / "runs/r/test.trajectories.jsonl", [record, listed])
    run(tmp_path, "--in", source, "--out", "new/r/test.scored.jsonl", "--report", "new/er/a.html",
        "--runs-dir", "runs/r")
    page = Page((tmp_path / "new/er/a.html").read_text())
    bars = [attributes["aria-label"] for tag, attributes in page.tags
            if tag == "svg" and "advantage " in attributes.get("aria-label", "")]
    assert bars == ["advantage +0.250", "advantage -0.500", "advantage +0.125"]
    sides = [attributes["class"] for tag, attributes in page.tags if tag == "rect"]
    assert sides == ["up", "down", "up"]
    assert [float(attributes["x"]) < 50 for tag, attributes in page.tags if tag == "rect"] == [False, True, False]
    charts = [attributes["aria-label"] for tag, attributes in page.tags if tag == "svg"]
    assert "loss" in charts and "advantage" in charts
    assert sum(tag == "polyline" for tag, _ in page.tags) == 6, "three lines, each pale with its mean on top"


def test_the_report_limit_counts_dialogues_and_keeps_tasks_whole(tmp_path):
    records = [trajectory(n, RIGHT, sample=sample) for sample in range(3) for n in range(5)]
    run(tmp_path, "--in", write(tmp_path / "a.trajectories.jsonl", records), "--report", "a.html", "--report-limit", 7)
    page = (tmp_path / "a.html").read_text()
    assert page.count('<details class="episode"') == 6 and page.count('<section class="task"') == 2
    assert "6 of 15" in page


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_trajectories(tmp_path):
    peaks = []
    for count in (500, 5000):
        source = tmp_path / f"{count}.trajectories.jsonl"
        with open(source, "w") as file:  # record by record: a child inherits the peak of the process that starts it
            file.writelines(json.dumps(trajectory(n, RIGHT + "#" * 5000)) + "\n" for n in range(count))
        process = subprocess.Popen([sys.executable, ROOT / "evaluate.py", "--in", source], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        assert status == 0
        peaks.append(usage.ru_maxrss)
    assert peaks[1] < peaks[0] * 1.25, peaks
