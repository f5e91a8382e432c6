"""The study's other ways to make pairs: an oracle's ranking, pairs that show when to stop, and their kinds."""
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "study")]
import function_tasks  # noqa: E402
import generate_tasks as g  # noqa: E402
import question_words  # noqa: E402
import rank_oracle  # noqa: E402
import shape_rewards  # noqa: E402
from pairs_by_kind import scripted_kind  # noqa: E402
from records import ANSWER_MARK, read  # noqa: E402
from human import scripted_reply  # noqa: E402
from train_policy import cost_of, read_pairs, surest  # noqa: E402

TASK = {"task_id": "t0", **next(function_tasks.draw_tasks("train", ["total"], True, 0))}
ASK = [fact["question"] for fact in TASK["facts"]]
ANSWER = f"{ANSWER_MARK}\ndef report(rows):\n    return 0"


def dialogue(*questions):
    messages = [{"role": "user", "content": TASK["problem_description"]}]
    for question in questions:
        reply, told = scripted_reply(TASK, question)
        messages += [{"role": "assistant", "content": question, "output_ids": [len(messages)]},
                     {"role": "user", "content": reply, "told": told}]
    return messages


def turn(asked, actions, max_turns=7):
    return {"task_id": "t0", "sample": 0, "turn": len(asked), "max_turns": max_turns, "task": TASK,
            "prompt": dialogue(*asked), "candidates": [{"output": text, "advantage": 0} for text in actions]}


def won(*questions, **keys):
    """A dialogue with reward 1."""
    history = [*dialogue(*questions), {"role": "assistant", "content": ANSWER, "output_ids": [9]}]
    return {"task_id": "t0", "sample": 0, "domain": "backend", "max_turns": 7, "model": "m", "system": "S", "task": TASK,
            "cost": {"episodes": 1}, "dialogue_history": history, "answer": "", "finish": "answered", "reward": 1.0, **keys}


def worths(*args, **flags):
    return [candidate["advantage"] for candidate in rank_oracle.ranked(turn(*args, **flags))["candidates"]]


def test_the_oracle_prefers_what_tells_something_new_and_answers_when_all_is_known_or_at_the_last_turn():
    actions = [ASK[0], ASK[1], "Is it Tuesday?", ANSWER]
    assert worths([], actions) == [2, 2, 1, 0]
    assert worths(ASK[:1], actions) == [1, 2, 1, 0]
    assert worths(ASK, actions, max_turns=20) == [1, 1, 1, 2]
    assert worths(ASK[:1], actions, max_turns=2) == [1, 1, 1, 2]


def test_a_question_that_was_asked_before_is_useless():
    def kind(asked, action):
        return scripted_kind(TASK, dialogue(*asked), action)

    assert kind([], ASK[0]) == kind(ASK[:1], ASK[1]) == "useful question"
    assert kind(ASK[:1], ASK[0]) == "useless question"
    assert kind([], ANSWER) == "answer too early" and kind(ASK, ANSWER) == "answer, all known"


def test_when_to_answer_counts_answers_useful_questions_and_guesses(tmp_path):
    lost = {**won(ASK[0], ASK[0], reward=0.5), "sample": 2}
    failed = {**won(reward=None), "sample": 3, "finish": "error: no server", "dialogue_history": dialogue()}
    records = [won(*ASK), {**won(ASK[0]), "sample": 1}, lost, failed]
    (tmp_path / "scored.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    done = subprocess.run([sys.executable, ROOT / "study/when_to_answer.py", f"a={tmp_path / 'scored.jsonl'}"], check=True,
                          capture_output=True, text=True)
    count = len(ASK)
    expected = [1, 2 / (count + 5), (count + 2) / (count + 3), 1 / 3, 1, 1 / 2]    # lost asks one question twice
    assert done.stdout.splitlines()[-1] == f"| a | {' | '.join(f'{100 * value:.1f}%' for value in expected)} |"


def test_a_reward_is_lowered_by_turns_and_by_questions_that_were_asked_before():
    def shaped(*asked, reward=1.0):
        return shape_rewards.shaped_reward(won(*asked, reward=reward), 0.025, 0.25)

    assert math.isclose(shaped(ASK[0]), 1 - 2 * 0.025)
    assert math.isclose(shaped(ASK[0], ASK[1], ASK[0]), 1 - 4 * 0.025 - 0.25)
    assert shaped(*ASK * 3, reward=0.5) == 0


def test_shaped_rewards_are_a_file_of_scored_episodes(tmp_path):
    records = [won(ASK[0]), {**won(ASK[0], ASK[0]), "sample": 1}, {**won(ASK[1], reward=None), "sample": 2}]
    (tmp_path / "train.scored.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    subprocess.run([sys.executable, ROOT / "study/shape_rewards.py", "--in", tmp_path / "train.scored.jsonl",
                    "--out", tmp_path / "shaped.scored.jsonl"], check=True)
    before, after = [list(read(tmp_path / f"{name}.scored.jsonl", "scored")) for name in ("train", "shaped")]
    rewards = [record.pop("reward") for record in after]
    assert math.isclose(rewards[0], 0.95) and math.isclose(rewards[1], 0.425) and rewards[2] is None
    assert [record.pop("reward") for record in before] == [1, 1, None] and after == before    # nothing else has changed


def test_stop_pairs_go_behind_others_and_keep_the_cost_of_their_turn(tmp_path):
    lost, quick = {**won(ASK[1], reward=0.5), "sample": 1}, {**won(), "sample": 2}
    records = [won(ASK[0], ASK[1], ASK[0]), lost, quick]
    (tmp_path / "scored.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))

    def pairs(name, *flags):
        subprocess.run([sys.executable, ROOT / "study/stop_pairs.py", "--in", tmp_path / "scored.jsonl",
                        "--out", tmp_path / name, *flags], check=True)
        return read_pairs(tmp_path / name)

    ask, stop = pairs("alone.jsonl")
    assert (ask["turn"], ask["chosen_ids"], ask["rejected_ids"]) == (2, [5], [9])    # its last question, not its answer
    assert [message["content"] for message in ask["prompt"]] == ["S", *(m["content"] for m in dialogue(*ASK[:2]))]
    assert (stop["turn"], stop["chosen_ids"]) == (3, [9]) and stop["rejected_ids"] in ([1], [3], [5])
    assert stop["chosen"] == ask["rejected"] == [{"role": "assistant", "content": ANSWER}]
    assert cost_of([ask, stop])["episodes"] == 1
    other = {"task_id": "t0", "sample": 0, "turn": 3, "cost": {"sampled_tokens": 5}, "prompt": dialogue(ASK[0]),
             "chosen": [{"role": "assistant", "content": "A"}], "rejected": [{"role": "assistant", "content": "B"}]}
    others = [{**other, "turn": n, "advantage_chosen": gap, "advantage_rejected": 0} for n, gap in enumerate([1, 3, 2], 3)]
    (tmp_path / "other.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in others))
    both = pairs("both.jsonl", "--add", tmp_path / "other.jsonl")
    assert [pair["turn"] for pair in both] == [3, 4, 5, 2, 3] and cost_of(both)["sampled_tokens"] == 15
    assert [pair["turn"] for pair in surest(both, SimpleNamespace(surest=0.67))] == [4, 5, 2, 3]    # all stop pairs
    ranked = {**turn([], [ASK[0], ASK[1]]), "domain": "backend", "model": "m", "cost": {"sampled_tokens": 100},
              "ranked_by": {"critic": "oracle"}}
    for n, candidate in enumerate(ranked["candidates"]):
        candidate |= {"advantage": n, "output_ids": [n]}
    alike = {**ranked, "turn": 1, "candidates": ranked["candidates"][:1] * 2}    # no pair, but sampled
    (tmp_path / "ranked.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (ranked, alike)))
    drawn, *rest = pairs("drawn.jsonl", "--add", tmp_path / "ranked.jsonl")
    assert cost_of([drawn, *rest]) == cost_of([ranked, alike, *rest]) and cost_of([drawn, *rest])["sampled_tokens"] == 200
    assert (drawn["chosen_ids"], drawn["rejected_ids"], drawn["advantage_chosen"]) == ([1], [0], 1) and len(rest) == 2


def test_the_oracle_s_command_ranks_a_file_of_candidates(tmp_path):
    path = tmp_path / "candidates.jsonl"
    record = turn([], [ASK[0], ANSWER])
    record |= {"domain": "backend", "model": "m", "task_id": "t0"}
    for candidate in record["candidates"]:
        del candidate["advantage"]
    path.write_text(json.dumps(record) + "\n")
    out = tmp_path / "ranked.jsonl"
    subprocess.run([sys.executable, ROOT / "study/rank_oracle.py", "--in", path, "--out", out], check=True)
    written = json.loads(out.read_text())
    assert [candidate["advantage"] for candidate in written["candidates"]] == [2, 0]


def test_a_critic_s_errors_are_put_into_an_oracle_s_pairs_or_as_many_at_random(tmp_path):
    actions = [ASK[0], "Is it Tuesday?", ANSWER]
    by, oracle = [], []
    for sample, advantages in enumerate([[2, 1, 0], [1, 2, 0], [2, 1, 0]]):    # the second turn is ordered wrongly
        candidates = [{"output": text, "advantage": value} for text, value in zip(actions, advantages)]
        by.append({**turn([], []), "sample": sample, "candidates": candidates})
        for n, rejected in enumerate(actions[1:]):
            oracle.append({"task_id": "t0", "sample": sample, "turn": 0, "prompt": dialogue(), "draw": n,
                           "chosen": [{"role": "assistant", "content": ASK[0]}], "chosen_ids": [7],
                           "rejected": [{"role": "assistant", "content": rejected}], "rejected_ids": [8]})
    for name, records in ("by", by), ("oracle", oracle):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))

    def flipped(*flags):
        subprocess.run([sys.executable, ROOT / "study/flip_pairs.py", "--in", tmp_path / "oracle.jsonl", "--by",
                        tmp_path / "by.jsonl", "--out", tmp_path / "out.jsonl", *flags], check=True)
        return list(read(tmp_path / "out.jsonl", "pair"))

    pairs = flipped()
    assert [pair["chosen"] == oracle[0]["chosen"] for pair in pairs] == [True, True, False, True, True, True]
    assert (pairs[2]["chosen_ids"], pairs[2]["rejected"], pairs[2]["prompt"]) == ([8], oracle[0]["chosen"], dialogue())
    at_random = [pair["draw"] for pair in flipped("--random") if pair["chosen_ids"] == [8]]
    assert at_random == [0]    # one pair of two questions


def test_a_critic_that_knows_only_the_words_ranks_a_question_alike_where_it_is_useful_and_where_it_is_not():
    def shares(*advantages):    # two turns: first the first of two questions is useful, then the second
        turns = [{"a": (True, advantages[0]), "b": (False, advantages[1])},
                 {"a": (False, advantages[2]), "b": (True, advantages[3])}]
        return tuple(question_words.shares(turns))

    assert shares(1, -1, 1, -1) == (0.5, 0.5, 0.5)
    assert shares(1, -1, -1, 1) == (1, 0, 1)    # each question's other turn misleads
    record = turn(ASK[:1], [ASK[0], ASK[1], ANSWER])
    for candidate, advantage in zip(record["candidates"], [0.1, 0.3, 9]):
        candidate["advantage"] = advantage
    useful = question_words.questions_of(record, TASK)
    assert [(text, is_useful, round(value, 6)) for text, (is_useful, value) in useful.items()] == [
        (ASK[0], False, -0.1), (ASK[1], True, 0.1)]


def test_a_part_of_the_pairs_is_kept_in_its_order_and_all_stop_pairs(tmp_path):
    def pair(n, asked, chosen, rejected, **advantages):
        return {"task_id": "t0", "sample": 0, "turn": len(asked), "prompt": dialogue(*asked), "draw": n, **advantages,
                "chosen": [{"role": "assistant", "content": chosen}], "rejected": [{"role": "assistant", "content": rejected}]}

    ranked = {"advantage_chosen": 1, "advantage_rejected": 0}
    pairs = [pair(0, ASK[:1], ASK[1], ASK[0], **ranked),               # useful over useless
             pair(1, [], ASK[0], ASK[1], **ranked),                    # two useful questions
             pair(2, [], ASK[0], ANSWER, **ranked),                    # a question over an early answer
             pair(3, [], ANSWER, ANSWER + "\n", **ranked),             # two early answers
             pair(4, ASK, ANSWER, ASK[0])]                             # a stop pair
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in pairs))
    (tmp_path / "tasks.jsonl").write_text(json.dumps(won(ASK[0])) + "\n")

    def kept(part):
        subprocess.run([sys.executable, ROOT / "study/keep_pairs.py", part, "--tasks", tmp_path / "tasks.jsonl",
                        "--in", tmp_path / "pairs.jsonl", "--out", tmp_path / "out.jsonl"], check=True)
        return [one["draw"] for one in read(tmp_path / "out.jsonl", "pair")]

    assert kept("unlike") == [0, 2, 4]
    assert kept("questions") == [0, 1, 4]
    assert kept("answers") == [2, 4]
