"""Pairs that show when to stop asking, from winning dialogues without a critic (CaRT, arXiv 2510.08517, has the idea).

Of each dialogue with reward 1 and a useful question, two pairs: before the last useful question ask that question
rather than answer; after it answer rather than repeat a question. The answer is the dialogue's own, the question repeated
is a random one of it. Pairs of --add, for example SWEET-RL's, go in front.

    python study/stop_pairs.py --in runs/default/train.scored.jsonl --add runs/default/train.pairs.jsonl \\
        --out runs/default/stop.pairs.jsonl
    python train_policy.py --in runs/default/stop.pairs.jsonl --out runs/default/stop
"""
import argparse
import random
import sys
from pathlib import Path

sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[:2]]
from records import SCHEMA, Output, read  # noqa: E402
from rollout import agent_turns  # noqa: E402
from train_policy import key_of  # noqa: E402
from when_to_answer import turns_of  # noqa: E402


def stop_pairs(record, rng):
    """The two pairs of a winning dialogue; none if no question of it tells anything new."""
    history = record["dialogue_history"]
    places = agent_turns(history)
    useful = [n for n, turn in enumerate(turns_of(record)) if turn.learns]
    if not useful:
        return
    last = len(places) - 1
    question, answer, repeated = history[places[useful[-1]]], history[places[last]], history[rng.choice(places[:last])]
    system = {"role": "system", "content": record["system"]}
    keys = {name: record.get(name) for name in ("task_id", "sample", "domain", "max_turns", "model", "fingerprints")}
    for n, chosen, rejected in [(useful[-1], question, answer), (last, answer, repeated)]:
        before = [system, *history[:places[n]]]
        prompt = [{"role": message["role"], "content": message["content"]} for message in before]
        yield {**keys, "turn": n, "prompt": prompt, "episode_cost": record.get("cost"),
               "chosen": [chosen], "chosen_ids": chosen.get("output_ids"),
               "rejected": [rejected], "rejected_ids": rejected.get("output_ids")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in", dest="input", required=True, help="scored trajectories")
    parser.add_argument("--add", help="pairs that go in front (train_policy.py writes them)")
    parser.add_argument("--out", required=True, help="the pairs")
    parser.add_argument("--seed", type=int, default=0, help="(default 0)")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    pairs = list(read(args.add, "pair")) if args.add else []
    count = len(pairs)
    cost_of_turn = {tuple(key_of(pair)): pair.get("cost") for pair in pairs}
    for record in read(args.input, "scored"):
        if record["reward"] >= 1:
            pairs += [pair | {"cost": cost_of_turn.get(tuple(key_of(pair)))} for pair in stop_pairs(record, rng)]
    settings = {"script": "stop_pairs", "seed": args.seed}
    inputs = {"--in": args.input} | ({"--add": args.add} if args.add else {})
    output = Output(args.out, settings, inputs, overwrite=True, key=SCHEMA["pair"][1])
    for pair in pairs:
        output.write(pair)
    print(f"wrote {args.out}: {count} pairs, and {len(pairs) - count} from winning dialogues")


if __name__ == "__main__":
    main()
