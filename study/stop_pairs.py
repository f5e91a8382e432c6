"""Pairs that show when to stop asking, from winning dialogues without a critic (CaRT, arXiv 2510.08517, has the idea).

Of each dialogue with reward 1 whose agent asked for something, two pairs: before the last useful question ask that question
rather than answer; after it answer rather than repeat a question. The answer is the dialogue's own, the question repeated
is a random one of it. A file of pairs in --add goes in front, for example SWEET-RL's.

    python study/stop_pairs.py --in runs/default/train.scored.jsonl --add runs/default/train.pairs.jsonl \\
        --out runs/default/stop.pairs.jsonl
    python train_policy.py --in runs/default/stop.pairs.jsonl --out runs/default/stop
"""
import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from records import SCHEMA, Output, read  # noqa: E402
from rollout import agent_turns  # noqa: E402
from train_policy import key_of  # noqa: E402


def stop_pairs(record, rng):
    """The two pairs of a winning dialogue; none if its agent asked for nothing."""
    history = record["dialogue_history"]
    *asked, last = agent_turns(history)
    known, useful = set(), []
    for place in asked:
        told = set(history[place + 1].get("told") or [])
        if told - known:
            useful.append(place)
        known |= told
    if not useful:
        return
    answer, repeated = history[last], history[rng.choice(asked)]
    system = {"role": "system", "content": record["system"]}
    keys = {name: record[name] for name in ("task_id", "sample", "domain", "max_turns", "model", "fingerprints")}
    for place, chosen, rejected in [(useful[-1], history[useful[-1]], answer), (last, answer, repeated)]:
        prompt = [{"role": message["role"], "content": message["content"]} for message in [system, *history[:place]]]
        yield {**keys, "turn": agent_turns(history).index(place), "prompt": prompt, "episode_cost": record["cost"],
               "chosen": [chosen], "chosen_ids": chosen["output_ids"],
               "rejected": [rejected], "rejected_ids": rejected["output_ids"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in", dest="input", required=True, help="scored trajectories")
    parser.add_argument("--add", required=True, help="pairs (train_policy.py writes them)")
    parser.add_argument("--out", required=True, help="these pairs, and after them those that show when to stop")
    parser.add_argument("--seed", type=int, default=0, help="(default 0)")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    pairs = list(read(args.add, "pair"))
    count = len(pairs)
    cost_of_turn = {tuple(key_of(pair)): pair.get("cost") for pair in pairs}
    for record in read(args.input, "scored"):
        if record["reward"] >= 1:
            pairs += [pair | {"cost": cost_of_turn.get(tuple(key_of(pair)))} for pair in stop_pairs(record, rng)]
    settings = {"script": "stop_pairs", "seed": args.seed}
    output = Output(args.out, settings, {"--in": args.input, "--add": args.add}, overwrite=True, key=SCHEMA["pair"][1])
    for pair in pairs:
        output.write(pair)
    print(f"wrote {args.out}: {count} pairs, and {len(pairs) - count} from winning dialogues")


if __name__ == "__main__":
    main()
