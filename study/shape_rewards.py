"""Rewards less the cost of the dialogue, so that two dialogues that end alike make a pair: the shorter one is preferred.

Each turn costs --turn, each question that the dialogue has already asked in the same words costs --repeat. No reward falls
below 0. Nothing but the dialogue is looked at.

    python study/shape_rewards.py --in runs/default/train.scored.jsonl --out runs/default/shaped.scored.jsonl
    python train_critic.py --in runs/default/shaped.scored.jsonl --pair-rule all --min-gap 0.3 --out runs/default/shaped
"""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from records import Output, number, read  # noqa: E402
from rollout import agent_turns  # noqa: E402


def shaped_reward(record, turn_cost, repeat_cost):
    texts = [record["dialogue_history"][place]["content"] for place in agent_turns(record["dialogue_history"])]
    repeats = len(texts) - len(set(texts))
    return max(0.0, record["reward"] - turn_cost * len(texts) - repeat_cost * repeats)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in", dest="input", required=True, help="scored trajectories")
    parser.add_argument("--out", required=True, help="the same with other rewards")
    parser.add_argument("--turn", type=number(float, least=0), default=0.025, help="cost of a turn (default 0.025)")
    parser.add_argument("--repeat", type=number(float, least=0), default=0.5,
                        help="cost of a repeated question (default 0.5)")
    args = parser.parse_args()
    settings = {"script": "shape_rewards", "turn": args.turn, "repeat": args.repeat}
    output = Output(args.out, settings, {"--in": args.input}, overwrite=True)
    for record in read(args.input, "scored"):
        if record["reward"] is not None:
            record["reward"] = shaped_reward(record, args.turn, args.repeat)
        output.write(record)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
