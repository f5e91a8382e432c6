"""Which kinds of actions a ranking prefers: stage 2's pairs, by what either side asks or answers.

    python study/pairs_by_kind.py --tasks runs/default/train.scored.jsonl critic=runs/default/train.pairs.jsonl

Prints the share of pairs for each combination of kinds: a look at a critic before a policy is trained. The kind of an
action depends on the scripted human's reply to it. Pairs without advantages, as stop pairs, are left out.
"""
import argparse
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "study")]
from evaluate import markdown
from human import scripted_reply
from records import ANSWER_MARK, number, read
from train_policy import is_ranked, surest


def scripted_kind(task, prompt, action):
    """The kind of an action (text) after a prompt (messages), by what the scripted human tells the agent."""
    known = set()
    for message in prompt:
        if message["role"] == "assistant":
            known.update(scripted_reply(task, message["content"])[1])
    if ANSWER_MARK in action:
        return "answer too early" if len(known) < len(task["facts"]) else "answer, all known"
    return "useful question" if {*scripted_reply(task, action)[1]} - known else "useless question"


def kinds_of(pair, tasks):
    """The kinds of what the pair prefers and of what it rejects. tasks: {task_id: task}."""
    return tuple(scripted_kind(tasks[pair["task_id"]], pair["prompt"], pair[side][-1]["content"]) for side in ("chosen", "rejected"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", required=True, help="trajectories on the tasks of the pairs")
    parser.add_argument("--surest", type=number(above=0, most=1), default=1, help="look at this share of them (train_policy.py)")
    parser.add_argument("pairs", nargs="+", metavar="NAME=PAIRS", help="files of pairs, as train_policy.py writes them")
    args = parser.parse_args()
    tasks = {record["task_id"]: record["task"] for record in read(args.tasks, "trajectory")}
    shares = {}    # name -> {(kind of chosen, kind of rejected): share of the pairs}
    for argument in args.pairs:
        name, _, args.input = argument.partition("=")
        pairs = surest(list(read(args.input, "pair")), args)
        counts = Counter(kinds_of(pair, tasks) for pair in filter(is_ranked, pairs))
        shares[name] = {kinds: count / counts.total() for kinds, count in counts.items()}
    total = Counter()
    for share in shares.values():
        total.update(share)
    rows = [("chosen", "rejected", *shares)]
    for kinds, _ in total.most_common():
        rows.append((*kinds, *(f"{share.get(kinds, 0):.1%}" for share in shares.values())))
    print(markdown(rows))


if __name__ == "__main__":
    main()
