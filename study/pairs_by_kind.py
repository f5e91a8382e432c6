"""Which kinds of actions a ranking prefers: stage 2's pairs, by what either side asks or answers.

    python study/pairs_by_kind.py --tasks runs/default/train.scored.jsonl critic=runs/default/train.pairs.jsonl
    python study/pairs_by_kind.py --truth CONTINUATIONS.scored.jsonl full=PAIRS.jsonl without-c=PAIRS.jsonl

Prints the share of pairs for each combination of kinds: a look at a critic before a policy is trained. The kind of an
action depends on the human's reply to it. With --tasks the scripted human replies. With --truth the reply is in the
continuations of the candidates (rollout.py --continue). They also give the mean return of each kind, and the difference
in return between useful and useless questions of the same turn, with its noise.
"""
import argparse
import sys
from collections import Counter, defaultdict
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "study")]
from evaluate import markdown
from rank_critics import kind_of_action
from rollout import scripted_reply
from monte_carlo import monte_carlo_returns
from records import ANSWER_MARK, read


def print_returns(returns):
    """Print the mean return of each kind, and how the returns of useful and useless questions of one turn differ."""
    by_kind = defaultdict(list)
    differences, variances = [], []
    for turn in returns.values():
        of_turn = defaultdict(list)    # kind -> [(Q, variance of Q)]
        for _, rewards, kind in turn.values():
            q = np.mean(rewards)
            variance = 0.0
            if len(rewards) > 1:
                variance = np.var(rewards, ddof=1) / len(rewards)
            by_kind[kind].append(q)
            of_turn[kind].append((q, variance))
        for useful, useless in product(of_turn["useful question"], of_turn["useless question"]):
            differences.append(useful[0] - useless[0])
            variances.append(useful[1] + useless[1])
    for kind, q in sorted(by_kind.items()):
        print(f"{kind}: {len(q):,} candidates, mean return {np.mean(q):.3f}")
    print(f"useful minus useless question of one turn: {len(differences):,} pairs, {np.mean(differences):.3f} on "
          f"average, each with a standard error of {np.mean(variances) ** 0.5:.3f}; "
          f"{np.mean(np.array(differences) < 0):.1%} are below 0")


def scripted_kind(task, prompt, action):
    """The kind of an action (text) after a prompt (messages), if the scripted human replies to the agent."""
    agent = [message["content"] for message in prompt if message["role"] == "assistant"]
    history = [{"role": "user", "content": task["problem_description"]}]
    for text in [*agent, action]:
        history.append({"role": "assistant", "content": text})
        if ANSWER_MARK not in text:
            reply, told = scripted_reply(task, text)
            history.append({"role": "user", "content": reply, "told": told})
    return kind_of_action({"task": task, "dialogue_history": history, "finish": "answered"}, -1)


def scripted_kind_of_side(tasks, pair, side):
    return scripted_kind(tasks[pair["task_id"]], pair["prompt"], pair[side][-1]["content"])


def continued_kind(returns, pair, side):
    """The kind of the action on one side of a pair, by the reply to it in the continuations."""
    turn = returns[pair["task_id"], pair["sample"], pair["turn"]]
    kinds = {text: kind for text, _, kind in turn.values()}
    return kinds[pair[side][-1]["content"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--tasks", help="trajectories on the tasks of the pairs")
    source.add_argument("--truth", help="scored continuations of the candidates")
    parser.add_argument("pairs", nargs="+", metavar="NAME=PAIRS", help="files of pairs, as train_policy.py writes them")
    args = parser.parse_args()
    if args.truth:
        returns, _ = monte_carlo_returns(args.truth, kind_of_action)
        kind_of = partial(continued_kind, returns)
        print_returns(returns)
    else:
        tasks = {record["task_id"]: record["task"] for record in read(args.tasks, "trajectory")}
        kind_of = partial(scripted_kind_of_side, tasks)
    shares = {}    # name -> {(kind of chosen, kind of rejected): share of the pairs}
    for argument in args.pairs:
        name, _, path = argument.partition("=")
        counts = Counter((kind_of(pair, "chosen"), kind_of(pair, "rejected")) for pair in read(path, "pair"))
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
