"""Let the reward judge the candidate answers: an answer ends the game, so its return is known, and no critic has to guess it.

An answer that passes all tests goes just above the best question of its turn, any other answer just below the worst, at the
last turn just above the best. Questions keep the critic's advantages. Costs a run of each answer in the sandbox, no human.

    python study/reward_answers.py --in runs/default/train.ranked.jsonl --out runs/default/judged.ranked.jsonl
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from evaluate import program_of  # noqa: E402
from records import SCHEMA, Output, read  # noqa: E402
from rollout import parse_response  # noqa: E402
from sandbox import Sandbox  # noqa: E402

JUST = 1e-6


def right_answers(records):
    """{(number of the record, number of the candidate): whether it passes all tests} of the candidates that answer."""
    jobs = []
    for n, record in enumerate(records):
        for k, candidate in enumerate(record["candidates"]):
            _, answer = parse_response(candidate["output"])
            if answer is not None:
                jobs.append(((n, k), record["task"], program_of({"task": record["task"], "answer": answer})))
    with Sandbox() as box:
        return {key: set(tests.values()) == {"passed"} for key, tests in box.score_many(jobs)}


def with_judged_answers(record, right):
    """The record with new advantages of its answers. right: {number of the candidate: whether it is right}."""
    candidates = record["candidates"]
    questions = [candidate["advantage"] for k, candidate in enumerate(candidates) if k not in right] or [0]
    last = record["turn"] == record["max_turns"] - 1
    for k, is_right in right.items():
        candidates[k]["advantage"] = max(questions) + (1 + is_right) * JUST if is_right or last else min(questions) - JUST
    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in", dest="input", required=True, help="ranked candidates (train_critic.py --score)")
    parser.add_argument("--out", required=True, help="the same with other advantages of the answers")
    args = parser.parse_args()
    records = list(read(args.input, "ranked"))
    right = right_answers(records)
    output = Output(args.out, {"script": "reward_answers"}, {"--in": args.input}, overwrite=True, key=SCHEMA["candidates"][1])
    for n, record in enumerate(records):
        output.write(with_judged_answers(record, {k: is_right for (m, k), is_right in right.items() if m == n}))
    print(f"wrote {args.out}: {len(right)} answers, {sum(right.values())} of them right")


if __name__ == "__main__":
    main()
