"""Monte-Carlo returns: candidates played to the end, which measure a critic; a random ranking; and the critic by
temporal differences."""
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from stub_server import Stub
from test_rollout import ROOT, play, world  # noqa: F401  (world is a fixture)
from conftest import call, place, read_lines, write  # noqa: F401  (place is a fixture)
from test_train import POLICY

sys.path.insert(0, str(ROOT))
import rollout  # noqa: E402
import lm  # noqa: E402
import train_critic  # noqa: E402
import train_policy  # noqa: E402

sys.path.insert(0, str(ROOT / "study"))
import rank_monte_carlo  # noqa: E402
import rank_quality  # noqa: E402
import rank_random  # noqa: E402

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


@pytest.mark.slow
def test_every_distinct_candidate_is_played_to_the_end_k_times(world, tmp_path):  # noqa: F811
    task = turns_file(tmp_path / "c.jsonl", world / "tasks.jsonl")
    flags = ["--in", "c.jsonl", "--model", world / "model", "--engine", "transformers", "--max-tokens", 8,
             "--max-turns", 4, "--continue", 3, "--out", "q.jsonl"]
    play(tmp_path, *flags)
    found = read_lines(tmp_path / "q.jsonl")
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
    assert [r["sample"] for r in read_lines(tmp_path / "q.jsonl")] == [r["sample"] for r in found]
    assert read_lines(tmp_path / "q.jsonl")[:5] == found[:5]


@pytest.mark.parametrize("spoil, sentence", [
    (lambda row: row["task"].pop("facts"), "the task has no 'facts'"),
    (lambda row: row.pop("task"), "it lacks the key 'task'"),
    (lambda row: row["task"].pop("domain"), "task lacks the key 'domain'"),
    (lambda row: row.update(turn=None), "it lacks the key 'turn'"),    # null is absent
    (lambda row: row["candidates"][3].pop("output"), "candidates[3] lacks the key 'output'")])
def test_what_cannot_be_continued_is_one_sentence(world, tmp_path, spoil, sentence):  # noqa: F811
    turns_file(tmp_path / "c.jsonl", world / "tasks.jsonl")
    first, second = read_lines(tmp_path / "c.jsonl")
    spoil(second)
    write(tmp_path / "c.jsonl", [first, second])
    done = play(tmp_path, "--in", "c.jsonl", "--model", world / "model", "--continue", 2, code=2)
    assert f"c.jsonl, line 2: {sentence}" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_last_turn_is_played_once():
    record = {"task_id": "t", "domain": "backend", "task": {}, "sample": 0, "turn": 9, "prompt": [{"role": "user", "content": "?"}],
              "candidates": [{"output": "a"}, {"output": "b"}]}
    assert [arguments["action"].text for arguments in rollout.continuations(record, 8, 10)] == ["a", "b"]


def test_a_continued_episode_keeps_its_limit_and_every_one_is_played(world, tmp_path):  # noqa: F811
    """Turns may have different numbers of candidates: no two episodes of a task share a number."""
    turns_file(tmp_path / "c.jsonl", world / "tasks.jsonl")
    first, second = (row | {"max_turns": 3} for row in read_lines(tmp_path / "c.jsonl"))
    first["candidates"] = [{"output": f"What is detail {n}?"} for n in range(3)]
    second["candidates"] = [{"output": "What is the order?"}]
    write(tmp_path / "c.jsonl", [first, second])
    with Stub(lambda messages, rng: "What is the order?") as stub:
        play(tmp_path, "--in", "c.jsonl", "--model", stub.url, "--continue", 2, "--out", "q.jsonl")
    rows = read_lines(tmp_path / "q.jsonl")
    assert len(rows) == len({row["sample"] for row in rows}) == 3 * 2 + 1 * 2
    assert {sum(m["role"] == "assistant" for m in row["dialogue_history"]) for row in rows} == {3}


def test_a_ranking_by_worth_knows_what_each_candidate_is(tmp_path):
    facts = [{"detail": word, "question": f"What is the {word}?", "reply": f"The {word} is 4."} for word in ("unit", "order")]
    task = {"task_id": "t", "domain": "backend", "facts": facts, "problem_description": "Write f(x): what counts.",
            "ground_truth": "def f(x):\n    return 4\n", "test_cases": {"1": "f(1)"}}
    said = [{"role": "user", "content": task["problem_description"]}]
    told = [{"role": "assistant", "content": "?"}, {"role": "user", "content": "The unit is 4. The order is 4."}]
    texts = ["What is the order?", ANSWER, ANSWER.replace("return 0", "return 4"), "How long is it?"]
    write(tmp_path / "c.jsonl", [
        {"task_id": "t", "sample": 0, "turn": turn, "domain": "backend", "task": task, "prompt": prompt,
         "candidates": [{"output": text, "advantage": 0.0} for text in texts]} for turn, prompt in enumerate([said, said + told])])
    code, _, error = call(rank_quality, tmp_path / "c.jsonl", "--out", tmp_path / "truth.jsonl")
    assert code == 0, error
    worth = [[candidate["advantage"] for candidate in row["candidates"]] for row in read_lines(tmp_path / "truth.jsonl")]
    assert worth == [[1, -1, 1, 0], [0, -1, 1, 0]], "what was told is told: the same question is wasted"


def test_a_monte_carlo_ranking_holds_mean_returns_of_what_was_played(tmp_path):
    """Candidates 0 and 2 have the same text, which was played twice; candidate 1's only episode failed."""
    episode = {"task_id": "t", "domain": "backend", "finish": "answered", "continues": [0, 0, 0], "dialogue_history": [
        {"role": "user", "content": "?"}, {"role": "assistant", "content": "a", "output": "a"}]}
    write(tmp_path / "q.jsonl", [episode | {"sample": 0, "reward": 1.0}, episode | {"sample": 1, "reward": 0.5},
                                 episode | {"sample": 2, "reward": None, "continues": [0, 0, 1]}])
    write(tmp_path / "c.jsonl", [{"task_id": "t", "sample": 0, "turn": 0, "prompt": [{"role": "user", "content": "?"}],
                                  "candidates": [{"output": text} for text in "aba"]}])
    code, _, error = call(rank_monte_carlo, "--in", tmp_path / "c.jsonl", "--returns", tmp_path / "q.jsonl",
                          "--out", tmp_path / "r.jsonl")
    assert code == 0, error
    [row] = read_lines(tmp_path / "r.jsonl")
    assert row["candidates"] == [{"output": "a", "advantage": 0.75}] * 2


# ---- A ranking that needs no critic


def test_a_random_ranking_is_random_and_charges_each_episode_once(place):  # noqa: F811
    rows = read_lines(place / "candidates.jsonl")
    write(place / "candidates.jsonl", [row | {"episode_cost": {"episodes": 1, "sampled_tokens": 9}} for row in rows])
    for script, arguments in ((rank_random, ["--in", "candidates.jsonl", "--out", "ranked.jsonl"]),
                              (train_policy, [*POLICY, "--max-steps", 1])):
        code, _, error = call(script, *arguments, "--overwrite")
        assert code == 0, error
    cost = json.loads((place / "policy/cost.json").read_text())
    assert cost["episodes"] == len({(row["task_id"], row["sample"]) for row in rows}) < len(rows)
    assert cost["sampled_tokens"] == 9 * cost["episodes"]
    by_key = {(row["task_id"], row["sample"], row["turn"]): [c["output"] for c in row["candidates"]] for row in rows}
    pairs = read_lines(place / "policy.pairs.jsonl")
    later = [texts.index(pair["chosen"][0]["content"]) > texts.index(pair["rejected"][0]["content"])
             for pair in pairs for texts in [by_key[pair["task_id"], pair["sample"], pair["turn"]]]]
    assert all(pair["advantage_chosen"] > pair["advantage_rejected"] for pair in pairs)
    assert 0 < sum(later) < len(later), "the order is not the candidates'"


# ---- The critic by temporal differences


def test_a_turns_target_is_the_next_q_and_the_last_ones_the_reward():
    """Trajectory 0 has turns with Q = 0.5, 0.75, and reward 0.2; trajectory 2 one turn, reward 1."""
    logits = torch.tensor([0.0, np.log(3.0), -1.0], requires_grad=True)
    side, rewards = torch.tensor([0, 0, 2]), torch.tensor([0.2, 0.2, 1.0])
    targets = train_critic.next_turn_targets(logits, side, rewards)
    assert targets.tolist() == pytest.approx([0.75, 0.2, 1.0]) and not targets.requires_grad
    batch = SimpleNamespace(turn=torch.arange(3), side=side)
    items = [lm.Item([0], [], ("", n), label) for n, label in enumerate((0.2, 1.0))]
    losses, _ = train_critic.critic_loss(logits, batch, items, SimpleNamespace(head="q"))
    one = np.log(2), -(0.2 * np.log(0.75) + 0.8 * np.log(0.25))
    assert losses.tolist() == pytest.approx([np.mean(one), np.log(1 + np.e)], abs=1e-5)


def test_a_q_critic_trains_on_rewards_and_annotates_candidates(place):  # noqa: F811
    items, *_ = train_critic.make_items(
        SimpleNamespace(**vars(parse("--head", "q", "--in", "scored.jsonl", "--model", "base"))),
        lm.load_tokenizer("base"))
    assert {item.reward for item in items} == {row["reward"] for row in read_lines(place / "scored.jsonl")}
    code, _, error = call(train_critic, "--head", "q", "--context", "without-c", "--in", "scored.jsonl", "--model", "base",
                          "--out", "q", "--lr", "1e-3", "--epochs", "1", "--batch-size", "4")
    assert code == 0, error
    code, said, error = call(train_critic, "--score", "candidates.jsonl", "--critic", "q", "--out", "seen.jsonl")
    assert code == 0, error
    rows, seen = read_lines(place / "candidates.jsonl"), read_lines(place / "seen.jsonl")
    assert [len(row["candidates"]) for row in seen] == [len(row["candidates"]) for row in rows]
    values = [c.pop("advantage") for row in seen for c in row["candidates"]]
    assert all(row.pop("ranked_by")["critic"] == "q" for row in seen)
    assert seen == rows and len(set(values)) > 2
    critic = train_critic.Critic("q")
    assert values == pytest.approx(critic.advantages([t for row in rows for t in train_critic.candidate_turns(row)]),
                                   abs=1e-5)


def parse(*flags):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train_critic.py", *flags])
        return train_critic.parse_args()
