"""Which kinds of actions a ranking prefers: stage 2's pairs, by what was asked or answered on either side.

    python tests/benchmarks/pairs_by_kind.py --truth CONTINUATIONS.scored.jsonl full=PAIRS.jsonl without-c=PAIRS.jsonl

--truth: continuations of the candidates that the pairs are made of (rollout.py --continue), which show what the human
says to each. Prints the mean return of each kind; how far apart the returns of a useful and a useless question of one
turn are, beside the noise of that difference; and the share of pairs of each two kinds.
"""
import argparse
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from evaluate import kind_of_action, markdown
from sandbox import monte_carlo_returns, read

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--truth", required=True, help="scored continuations of the candidates")
parser.add_argument("pairs", nargs="+", metavar="NAME=PAIRS", help="files of pairs, as train_policy.py writes them")
args = parser.parse_args()

returns, _ = monte_carlo_returns(args.truth, kind_of_action)
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
print(f"useful less useless question of one turn: {len(apart):,} pairs, {np.mean(apart):.3f} on average, each with a "
      f"standard error of {np.mean(noise) ** 0.5:.3f}; {np.mean(np.array(apart) < 0):.1%} are below 0")

shares = {}
for name, _, path in (words.partition("=") for words in args.pairs):
    counts = Counter()
    for pair in read(path, "pair"):
        kinds = {text: kind for text, _, kind in returns[pair["task_id"], pair["sample"], pair["turn"]].values()}
        counts[tuple(kinds[pair[side][-1]["content"]] for side in ("chosen", "rejected"))] += 1
    shares[name] = {kinds: count / counts.total() for kinds, count in counts.items()}
most = Counter()
for share in shares.values():
    most.update(share)
print(markdown([("chosen", "rejected", *shares)] + [
    (*kinds, *(f"{share.get(kinds, 0):.1%}" for share in shares.values())) for kinds, _ in most.most_common()]))
