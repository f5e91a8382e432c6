"""Which kinds of actions a ranking prefers: stage 2's pairs, by what was asked or answered on either side.

    python study/pairs_by_kind.py --tasks runs/default/train.scored.jsonl critic=runs/default/train.pairs.jsonl
    python study/pairs_by_kind.py --truth CONTINUATIONS.scored.jsonl full=PAIRS.jsonl without-c=PAIRS.jsonl

Prints the share of pairs of each two kinds: a look at a critic before a policy is trained. What the human says to an
action, and so its kind, comes from the scripted human (--tasks), or from continuations of the candidates (--truth,
rollout.py --continue). These also give the mean return of each kind, and how far apart the returns of a useful and a
useless question of one turn are, beside the noise of that difference.
"""
import argparse
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "study")]
from evaluate import markdown
from rank_critics import kind_of_action
from rollout import scripted_reply
from monte_carlo import monte_carlo_returns
from records import ANSWER_MARK, read

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
source = parser.add_mutually_exclusive_group(required=True)
source.add_argument("--tasks", help="trajectories, whose tasks the pairs are of")
source.add_argument("--truth", help="scored continuations of the candidates")
parser.add_argument("pairs", nargs="+", metavar="NAME=PAIRS", help="files of pairs, as train_policy.py writes them")
args = parser.parse_args()


def noise_of(returns):
    """Print the mean return of each kind, and how the returns of useful and useless questions of one turn differ."""
    of_kind, apart, noise = defaultdict(list), [], []
    for turn in returns.values():
        found = [(np.mean(rewards), np.var(rewards, ddof=1) / len(rewards) if rewards[1:] else 0.0, kind)
                 for _, rewards, kind in turn.values()]
        for q, _, kind in found:
            of_kind[kind].append(q)
        pairs = [(a, b) for a in found for b in found if (a[2], b[2]) == ("useful question", "useless question")]
        apart += [a[0] - b[0] for a, b in pairs]
        noise += [a[1] + b[1] for a, b in pairs]
    for kind, q in sorted(of_kind.items()):
        print(f"{kind}: {len(q):,} candidates, mean return {np.mean(q):.3f}")
    print(f"useful less useless question of one turn: {len(apart):,} pairs, {np.mean(apart):.3f} on average, each with "
          f"a standard error of {np.mean(noise) ** 0.5:.3f}; {np.mean(np.array(apart) < 0):.1%} are below 0")


def scripted_kind(pair, side):
    """The kind of the action on one side of a pair, when the scripted human replies to it."""
    task, said = tasks[pair["task_id"]], pair[side][-1]["content"]
    history = [m for m in pair["prompt"] if m["role"] != "system"] + [{"role": "assistant", "content": said}]
    if ANSWER_MARK not in said:
        reply, told = scripted_reply(task, said)
        history.append({"role": "user", "content": reply, "told": told})
    return kind_of_action({"task": task, "dialogue_history": history, "finish": "answered"}, -1)


def continued_kind(pair, side):
    """The same from what was said to it in the continuations."""
    return kinds[pair["task_id"], pair["sample"], pair["turn"]][pair[side][-1]["content"]]


if args.truth:
    kind_of, (returns, _) = continued_kind, monte_carlo_returns(args.truth, kind_of_action)
    kinds = {key: {text: kind for text, _, kind in turn.values()} for key, turn in returns.items()}
    noise_of(returns)
else:
    kind_of, tasks = scripted_kind, {record["task_id"]: record["task"] for record in read(args.tasks, "trajectory")}
shares = {}
for name, _, path in (words.partition("=") for words in args.pairs):
    counts = Counter(tuple(kind_of(pair, side) for side in ("chosen", "rejected")) for pair in read(path, "pair"))
    shares[name] = {two: count / counts.total() for two, count in counts.items()}
most = Counter()
for share in shares.values():
    most.update(share)
print(markdown([("chosen", "rejected", *shares)] + [
    (*two, *(f"{share.get(two, 0):.1%}" for share in shares.values())) for two, _ in most.most_common()]))
