"""Monte-Carlo returns: candidates played to the end, as a ranking and as the measure of a critic; and the critic by
temporal differences, which is compared with them."""
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from test_rollout import ROOT, make_tasks, play, records, world  # noqa: F401  (world is a fixture)
from test_train import POLICY, call, place, write  # noqa: F401  (place is a fixture)

sys.path.insert(0, str(ROOT))
import evaluate  # noqa: E402
import rollout  # noqa: E402
import train_critic  # noqa: E402
import train_policy  # noqa: E402

ANSWER = "I WANT TO ANSWER:\ndef f(x):\n    return 0\n"


def turns_file(path, tasks):
    """Two turns of candidates of the first task, as rollout.py --candidates writes them."""
    task = json.loads(open(tasks).readline())
    system, begin = {"role": "system", "content": "Be brief."}, {"role": "user", "content": task["problem_description"]}
    said = [{"role": "assistant", "content": "What is the unit?"}, {"role": "user", "content": "The unit is 2."}]
    texts = ["What is the order?", ANSWER, "What is the order?", "Hm?"]
    write(path, [{"task_id": task["task_id"], "sample": 3, "turn": turn, "domain": "backend", "task": task,
                  "prompt": [system, begin, *said[:2 * turn]], "candidates": [{"output": text} for text in texts]}
                 for turn in (0, 1)])
    return task


def test_every_distinct_candidate_is_played_to_the_end_k_times_and_an_answer_once(world, tmp_path):  # noqa: F811
    task = turns_file(tmp_path / "c.jsonl", world / "tasks.jsonl")
    flags = ["--in", "c.jsonl", "--model", world / "model", "--engine", "transformers", "--max-tokens", 8,
             "--max-turns", 4, "--continue", 3, "--out", "q.jsonl"]
    play(tmp_path, *flags)
    found = records(tmp_path / "q.jsonl")
    counts = {}
    for record in found:
        counts[tuple(record["continues"])] = counts.get(tuple(record["continues"]), 0) + 1
        _, turn, index = record["continues"]
        text = ["What is the order?", ANSWER, "What is the order?", "Hm?"][index]
        dialogue = record["dialogue_history"]
        assert dialogue[0]["content"] == task["problem_description"] and record["system"] == "Be brief."
        assert dialogue[2 * turn + 1]["output"] == text and (turn == 0 or dialogue[1]["content"] == "What is the unit?")
        if index == 0:
            assert dialogue[2 * turn + 2]["content"] == "The order is 4.", "the human hears the candidate"
        assert (index == 1) == (len(dialogue) == 2 * turn + 2 and record["finish"] == "answered")
        assert len(dialogue) <= 8 and record["cost"]["sampled_tokens"] <= 8 * (3 - turn), "the candidate is not charged"
    assert counts == {(3, turn, index): 1 if index == 1 else 3 for turn in (0, 1) for index in (0, 1, 3)}
    assert len({record["sample"] for record in found}) == len(found), "each episode has a number of its own"
    of_first = [r["dialogue_history"] for r in found if r["continues"] == [3, 0, 0]]
    assert of_first[0] != of_first[1], "continuations differ"
    lines = (tmp_path / "q.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "q.jsonl").write_text("".join(lines[:5]) + lines[5][:40])
    play(tmp_path, *flags)
    assert [r["sample"] for r in records(tmp_path / "q.jsonl")] == [r["sample"] for r in found]
    assert records(tmp_path / "q.jsonl")[:5] == found[:5]


@pytest.mark.parametrize("flags, sentence", [
    (["--continue", 2, "--samples", 2], "--samples does something without --continue only"),
    (["--continue", 2, "--candidates", 4], "--continue does something without --candidates only"),
    (["--continue", 2, "--max-turns", 1], "turn 1 is beyond --max-turns 1"),
    (["--continue", 2, "--in", "factless.jsonl"], "factless.jsonl, line 1: the task has no 'facts'")])
def test_what_cannot_be_continued_is_one_sentence(world, tmp_path, flags, sentence):  # noqa: F811
    turns_file(tmp_path / "c.jsonl", world / "tasks.jsonl")
    rows = records(tmp_path / "c.jsonl")
    for row in rows:
        del row["task"]["facts"]
    write(tmp_path / "factless.jsonl", rows)
    done = play(tmp_path, "--in", "c.jsonl", "--model", world / "model", *flags, code=2)
    assert sentence in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_last_turn_is_played_once():
    record = {"sample": 0, "turn": 9, "prompt": [{"role": "user", "content": "?"}],
              "candidates": [{"output": "a"}, {"output": "b"}]}
    assert [sample for sample, _ in rollout.continuations(record, 8, 10)] == [(9 * 2 + n) * 8 for n in (0, 1)]


# ---- The measure of a critic


def played(dialogue, facts=("The unit is m.", "The order is up.")):
    return {"dialogue_history": [{"role": "user" if n % 2 == 0 else "assistant", "content": text, "output": text}
                                 for n, text in enumerate(dialogue)],
            "finish": "answered" if dialogue[-1] == "A" else "max_turns",
            "task": {"facts": [{"keywords": [], "question": "", "reply": fact} for fact in facts]}}


@pytest.mark.parametrize("dialogue, turn, kind", [
    (["r", "unit?", "The unit is m.", "A"], 0, "useful question"),
    (["r", "unit?", "The unit is m.", "unit?", "The unit is m.", "A"], 1, "useless question"),
    (["r", "hm?", "I do not know.", "A"], 0, "useless question"),
    (["r", "both?", "The unit is m. The order is up.", "unit?"], 1, "useless question"),
    (["r", "unit?", "The unit is m.", "A"], 1, "answer too early"),
    (["r", "both?", "The unit is m. The order is up.", "A"], 1, "answer, all known")])
def test_kinds_of_actions(dialogue, turn, kind):
    assert evaluate.kind_of_action(played(dialogue), turn) == kind


def test_spearman_is_the_correlation_of_ranks_with_ties():
    """By the definition: Pearson's correlation of mean ranks."""
    def rank(values):
        return [np.mean([n + 1 for n, w in enumerate(sorted(values)) if w == v]) for v in values]
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = rng.integers(5, size=8), rng.random(8)
        assert evaluate.spearman(a, b) == pytest.approx(np.corrcoef(rank(a), rank(b))[0, 1])
    assert evaluate.spearman([1, 2, 3], [9, 8, 1]) == pytest.approx(-1)
    assert evaluate.spearman([1, 1, 1], [9, 8, 1]) == 0


def test_a_turns_ranking_by_hand():
    """Q = 1, 0.5, 0, 0.9; the critic's order is 3, 0, 2, 1. Of the pairs at least 0.25 apart (all but 0-3) it has 0-1,
    0-2, 1-3 and 2-3 right, 1-2 wrong."""
    rewards, kinds = ([1.0, 1.0], [1.0, 0.0], [0.0], [0.9, 0.9]), ["a", "b", "b", "a"]
    found = evaluate.rank_turn(np.array([0.5, -1.0, 0.0, 2.0]), rewards, kinds, 0.25)
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
                truth.append(played(["r", str(index), "The unit is m.", "A"]) | {
                    "task_id": f"t{task}", "sample": index * 2 + k, "domain": "backend", "reward": q[index],
                    "continues": [0, 0, index], "cost": {"sampled_tokens": 5, "simulator_calls": 1}})
        for name, sign in (("good", 1), ("bad", -1)):
            rankings[name].append({"task_id": f"t{task}", "sample": 0, "turn": 0, "prompt": [
                {"role": "user", "content": "r"}], "candidates": [{"output": str(n), "advantage": sign * q[n]}
                                                                  for n in range(4)]})
    write(folder / "truth.jsonl", truth)
    for name, rows in rankings.items():
        write(folder / f"{name}.jsonl", rows)
    return ["--truth", "truth.jsonl", "--compare", "good=good.jsonl", "bad=bad.jsonl", "--resamples", "50"]


def test_a_perfect_critic_orders_every_pair_right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said, error = call(evaluate, *truth_and_rankings(tmp_path), "--json", "out.json")
    assert code == 0, error
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["turns"] == 20 and result["critics"]["good"]["counts"]["pairs in the right order"] == 120
    good, bad = (result["critics"][name]["measures"] for name in ("good", "bad"))
    for name, value in (("pairs in the right order", 1), ("Spearman with Q", 1), ("Spearman with Q, corrected", 1),
                        ("Spearman of Q's halves", 1), ("mean Q of the upper half", 0.8)):
        assert good[name]["value"] == pytest.approx(value), name
    assert bad["pairs in the right order"]["value"] == 0 and bad["mean Q of the upper half"]["value"] < 0.151
    assert result["critics"]["bad"]["difference"]["Spearman with Q"]["value"] == pytest.approx(-2)
    assert "| - useful question / useful question (120)" in said


@pytest.mark.parametrize("spoil, sentence", [
    (lambda truth: truth.pop("continues"), "line 1: the episode continues no candidate"),
    (lambda truth: truth["dialogue_history"][1].update(output="else"), "good.jsonl, line 1: these are not the cand"),
    (lambda truth: truth.update(reward=None), "line 1: the episode continues no candidate, or has no reward"),
    (lambda truth: truth.update(task_id="other"), "truth.jsonl continues no turn of good, bad")])
def test_what_is_no_truth_is_one_sentence(tmp_path, monkeypatch, spoil, sentence):
    monkeypatch.chdir(tmp_path)
    flags = truth_and_rankings(tmp_path)
    rows = records(tmp_path / "truth.jsonl")
    for row in rows:
        spoil(row)
    write(tmp_path / "truth.jsonl", rows)
    code, _, error = call(evaluate, *flags)
    assert code == 2 and sentence in error


def test_a_truth_of_one_continuation_does_not_show_its_noise(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = truth_and_rankings(tmp_path)
    write(tmp_path / "truth.jsonl", records(tmp_path / "truth.jsonl")[::2])
    code, _, error = call(evaluate, *flags)
    assert code == 2 and "truth.jsonl continues every candidate once" in error


def test_seeds_are_pooled_each_with_its_own_truth(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in ("a", "b"):
        (tmp_path / seed).mkdir()
        truth_and_rankings(tmp_path / seed)
    code, _, error = call(evaluate, "--truth", "*/truth.jsonl", "--compare", "good=*/good.jsonl", "mixed=?/bad.jsonl",
                          "--json", "out.json")
    assert code == 0, error
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["turns"] == 40 and result["critics"]["good"]["measures"]["Spearman with Q"]["value"] == 1
    code, _, error = call(evaluate, "--truth", "*/truth.jsonl", "--compare", "good=a/good.jsonl")
    assert code == 0 and not error    # only of folder a, which both have
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a/good.jsonl").rename(tmp_path / "elsewhere/good.jsonl")
    code, _, error = call(evaluate, "--truth", "*/truth.jsonl", "--compare", "good=elsewhere/good.jsonl")
    assert code == 2 and "are not equally many, and share no folders either" in error


def test_a_truth_whose_halves_disagree_corrects_nothing(tmp_path, monkeypatch):
    """Each candidate's two continuations won and lost: every Q is 1/2, or the halves order them the other way round."""
    monkeypatch.chdir(tmp_path)
    flags = truth_and_rankings(tmp_path)
    rows = records(tmp_path / "truth.jsonl")
    for number, row in enumerate(rows):    # Q is 0.5 but for the first candidate's 0.55; the halves are opposites
        row["reward"] = (0.1 * row["continues"][2] if number % 2 else 1 - 0.1 * row["continues"][2]) + (
            0.1 if row["continues"][2] == 0 and number % 2 else 0)
    write(tmp_path / "truth.jsonl", rows)
    code, said, error = call(evaluate, *flags, "--json", "out.json")
    assert code == 0 and not error
    assert "Infinity" not in (tmp_path / "out.json").read_text() and "NaN" not in (tmp_path / "out.json").read_text()
    measures = json.loads((tmp_path / "out.json").read_text())["critics"]["good"]["measures"]
    assert measures["Spearman of Q's halves"]["value"] < 0 and "Spearman with Q, corrected" not in measures


# ---- The rankings that need no critic


def test_returns_rank_the_candidates_and_random_does_not(place):  # noqa: F811
    rows, truth = records(place / "candidates.jsonl"), []
    for row in rows:
        texts = [c["output"] for c in row["candidates"]]
        for index, text in ((texts.index(text), text) for text in dict.fromkeys(texts)):
            truth.append(played(["r"] + ["x", "y"] * row["turn"] + [text]) | {
                "task_id": row["task_id"], "sample": len(truth), "domain": "backend", "reward": index / 20,
                "continues": [row["sample"], row["turn"], index], "cost": {"sampled_tokens": 7, "simulator_calls": 2}})
    (place / "runs/default").mkdir(parents=True)
    write(place / "runs/default/train.continuations.scored.jsonl", truth)
    flags = [flag for flag in POLICY if flag not in ("--critic", "critic")]
    code, _, error = call(train_policy, *flags, "--critic", "monte-carlo", "--max-steps", 1)
    assert code == 0, error
    by_key = {(row["task_id"], row["sample"], row["turn"]): [c["output"] for c in row["candidates"]] for row in rows}
    for pair in records(place / "pairs.jsonl"):
        texts = by_key[pair["task_id"], pair["sample"], pair["turn"]]
        q = [texts.index(text) / 20 for text in texts]
        assert pair["advantage_chosen"] > pair["advantage_rejected"]
        assert pair["advantage_chosen"] == pytest.approx(q[texts.index(pair["chosen"][0]["content"])] - np.mean(q))
    cost = json.loads((place / "policy/cost.json").read_text())
    assert cost["episodes"] == len(truth) and cost["simulator_calls"] == 2 * len(truth)
    # A candidate without text or ids is left out: the returns of the others are found by their text all the same.
    advantages = {pair["chosen"][0]["content"]: pair["advantage_chosen"] for pair in records(place / "pairs.jsonl")}
    write(place / "candidates.jsonl", [row | {"candidates": [{"output": ""}, *row["candidates"]],
                                              "episode_cost": {"episodes": 1, "sampled_tokens": 9}} for row in rows])
    code, _, error = call(train_policy, *flags, "--critic", "monte-carlo", "--max-steps", 1, "--overwrite")
    assert code == 0, error
    assert advantages == {p["chosen"][0]["content"]: p["advantage_chosen"] for p in records(place / "pairs.jsonl")}
    # The episodes that the candidates are of are charged once each, also where no critic was trained on them.
    code, _, error = call(train_policy, *flags, "--critic", "random", "--max-steps", 1, "--overwrite")
    assert code == 0, error
    cost = json.loads((place / "policy/cost.json").read_text())
    assert cost["episodes"] == len({(row["task_id"], row["sample"]) for row in rows}) < len(rows)
    assert cost["sampled_tokens"] == 9 * cost["episodes"]
    ups = [pair["advantage_chosen"] > pair["advantage_rejected"] for pair in records(place / "pairs.jsonl")]
    later = [texts.index(pair["chosen"][0]["content"]) > texts.index(pair["rejected"][0]["content"])
             for pair in records(place / "pairs.jsonl")
             for texts in [by_key[pair["task_id"], pair["sample"], pair["turn"]]]]
    assert all(ups) and 0 < sum(later) < len(later), "the order is not the candidates'"


def test_a_turn_that_nobody_played_on_is_one_sentence(place):  # noqa: F811
    row = records(place / "candidates.jsonl")[0]
    write(place / "q.jsonl", [played(["r", "A"]) | {"task_id": "other", "sample": 0, "domain": "backend", "reward": 1.0,
                                                    "continues": [0, 0, 0]}])
    flags = [flag for flag in POLICY if flag not in ("--critic", "critic")]
    code, _, error = call(train_policy, *flags, "--critic", "q.jsonl")
    assert code == 2 and f"does not continue all candidates of turn {row['turn']} of task {row['task_id']}" in error


# ---- The critic by temporal differences


def test_a_turns_target_is_the_next_turns_q_and_the_last_ones_the_reward():
    """Trajectory 0 has turns with Q = 0.5, 0.75, and reward 0.2; trajectory 2 one turn, reward 1."""
    logits = torch.tensor([0.0, np.log(3.0), -1.0], requires_grad=True)
    side, rewards = torch.tensor([0, 0, 2]), torch.tensor([0.2, 0.2, 1.0])
    targets = train_critic.next_turn_targets(logits, side, rewards)
    assert targets.tolist() == pytest.approx([0.75, 0.2, 1.0]) and not targets.requires_grad
    batch = SimpleNamespace(turn=torch.arange(3), side=side)
    items = [train_critic.Item([0], [], ("", n), label) for n, label in enumerate((0.2, 1.0))]
    loss, _ = train_critic.critic_loss(logits, batch, items, SimpleNamespace(head="q"))
    one = np.log(2), -(0.2 * np.log(0.75) + 0.8 * np.log(0.25))
    assert loss.item() == pytest.approx(np.mean(one) + np.log(1 + np.e), abs=1e-5)


def test_a_q_critic_trains_on_rewards_and_annotates_candidates(place):  # noqa: F811
    items, *_ = train_critic.make_items(
        SimpleNamespace(**vars(parse("--head", "q", "--in", "scored.jsonl", "--model", "base"))),
        train_critic.load_tokenizer("base"))
    assert {item.label for item in items} == {row["reward"] for row in records(place / "scored.jsonl")}
    code, _, error = call(train_critic, "--head", "q", "--context", "without-c", "--in", "scored.jsonl", "--model", "base",
                          "--out", "q", "--lr", "1e-3", "--epochs", "1", "--batch-size", "4")
    assert code == 0, error
    code, said, error = call(train_critic, "--annotate", "candidates.jsonl", "--critic", "q", "--out", "seen.jsonl")
    assert code == 0, error
    rows, seen = records(place / "candidates.jsonl"), records(place / "seen.jsonl")
    assert [len(row["candidates"]) for row in seen] == [len(row["candidates"]) for row in rows]
    values = [c.pop("advantage") for row in seen for c in row["candidates"]]
    assert seen == rows and len(set(values)) > 2
    critic = train_critic.Critic("q")
    assert values == pytest.approx(critic.advantages([t for row in rows for t in train_critic.candidate_turns(row)]),
                                   abs=1e-5)


def parse(*flags):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train_critic.py", *flags])
        return train_critic.parse_args()
