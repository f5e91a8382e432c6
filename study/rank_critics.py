"""How well critics rank the candidates of a turn, measured against Monte-Carlo truth.

The truth Q(o_t, a_t) of a candidate is the mean reward of episodes that continue it (rollout.py --continue, then
evaluate.py). A critic's ranking is a file of candidates with their `advantage` (train_critic.py --score). Only
candidates of the same turn are compared.

The truth is noisy. If its two halves correlate with r, a perfect critic would reach only sqrt(2 r / (1 + r))
(Spearman-Brown). The corrected correlation is divided by that.

    python study/rank_critics.py --truth runs/a/val.continuations.scored.jsonl a=runs/a/val.ranked.jsonl
    python study/rank_critics.py --truth 'runs/*/val.continuations.scored.jsonl' a='runs/*/a.jsonl' b='runs/*/b.jsonl'

A quoted pattern names several seeds, in the order of their names. Their tasks are pooled. If a critic lacks some seeds,
only the folders that all critics have are used.
"""
import argparse
import functools
import itertools
import json
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[:2]]
from evaluate import difference, intervals, markdown, named_file, ratios  # noqa: E402
from over_seeds import files_of  # noqa: E402
from pairs_by_kind import scripted_kind  # noqa: E402
from records import check_path, die, number, read, write_json  # noqa: E402
from rollout import agent_turns  # noqa: E402

IN_ORDER = "pairs in the right order"
SPEARMAN = "Spearman with Q"
HALVES = "Spearman of Q's halves"


def monte_carlo_returns(path):
    """{(task_id, sample, turn): {candidate: (text, rewards)}} of scored continuations.

    candidate: index of the first candidate with the same text. Q(o_t, a_t) is the mean of its rewards. Failed episodes
    say nothing about a candidate, so they are left out.
    """
    returns, failed = {}, 0

    def check(record):
        if "continues" not in record:
            raise ValueError("the episode continues no candidate; it must come from rollout.py --continue")
        return record

    for record in read(path, "scored", each=check):
        if record["reward"] is None or record["finish"].startswith("error"):
            failed += 1
            continue
        sample, turn, candidate = record["continues"]
        history = record["dialogue_history"]
        action = history[agent_turns(history)[turn]]
        candidates = returns.setdefault((record["task_id"], sample, turn), {})
        candidates.setdefault(candidate, (action.get("output"), []))[1].append(record["reward"])
    if failed:
        print(f"{path}: {failed} failed episodes left out", flush=True)
    return returns


def spearman(a, b):
    """Spearman's rank correlation of two lists; 0 where one is constant."""
    def ranks(values):
        _, place, count = np.unique(values, return_inverse=True, return_counts=True)
        mean_ranks = (np.cumsum(count) - (count - 1) / 2)[place]    # equal values share their mean rank
        return mean_ranks - mean_ranks.mean()

    a = ranks(a)
    b = ranks(b)
    scale = math.sqrt((a ** 2).sum() * (b ** 2).sum())
    return float(a @ b) / scale if scale else 0.0


def rank_turn(values, rewards, kinds, gap=0.25):
    """{measure: [sum, count]} of one turn, from a critic's `values` (n,) of its n candidates.

    rewards: those of each candidate's continuations. kinds: what each action is (pairs_by_kind.py). gap: pairs of
    candidates whose Q differ by less are left out.
    """
    def upper(by):
        return np.argsort(-by, kind="stable")[:len(by) // 2]

    def q_of_half(start):
        return np.array([np.mean(r[start::2] or r) for r in rewards])

    q = np.array([np.mean(r) for r in rewards])
    even = q_of_half(0)
    odd = q_of_half(1)
    truth = (odd[upper(even)].mean() + even[upper(odd)].mean()) / 2    # one half chooses, the other judges
    differs = q.min() < q.max()
    sums = {
        IN_ORDER: [0, 0],
        "mean Q of all": [q.mean(), 1],
        "mean Q of the upper half": [q[upper(values)].mean(), 1],
        "mean Q of the truth's upper half": [truth, 1],
        SPEARMAN: [spearman(values, q), 1] if differs else [0, 0],
        HALVES: [spearman(even, odd), 1] if differs else [0, 0],
    }
    for i, j in itertools.combinations(range(len(q)), 2):
        difference_of_q = q[i] - q[j]
        if abs(difference_of_q) < gap:
            continue
        right = 0.5 + 0.5 * np.sign(difference_of_q * (values[i] - values[j]))
        both_kinds = " / ".join(sorted((kinds[i], kinds[j])))
        for name in (IN_ORDER, f"- {both_kinds}"):
            sums[name] = np.add(sums.get(name, [0, 0]), [right, 1])
    return sums


def matched(truth, files):
    """The truth's files and {critic: its files}, reduced to folders that all have where their numbers differ."""
    def same_number():
        return all(len(paths) == len(truths) for paths in files.values())

    truths = files_of(truth)
    if same_number():
        return truths, files
    shared = {path.parent for path in truths}
    for paths in files.values():
        shared &= {path.parent for path in paths}
    truths = [path for path in truths if path.parent in shared]
    files = {name: [path for path in paths if path.parent in shared] for name, paths in files.items()}
    if not truths or not same_number():
        die(f"{truth} and the files of {', '.join(files)} differ in number and cannot be matched by their folders")
    print(f"only {', '.join(map(str, sorted(shared)))}: the other folders lack files")
    return truths, files


def sums_of(truths, files):
    """{(seed, task): {(critic, measure): [sum, count]}}."""
    sums = defaultdict(lambda: defaultdict(lambda: np.zeros(2)))
    for seed, truth in enumerate(truths):
        returns = monte_carlo_returns(truth)

        def add(critic, record):
            continued = returns.get((record["task_id"], record["sample"], record["turn"]), {})
            if len(continued) < 2:
                return
            values, rewards, kinds = [], [], []
            candidates = dict(enumerate(record["candidates"]))
            task = record.get("task") or {}
            for place, (text, rewards_of_one) in continued.items():
                candidate = candidates.get(place, {})
                if candidate.get("output") != text or candidate.get("advantage") is None:
                    raise ValueError(f"these are not the candidates that {truth} continues, or they have no "
                                     "advantages; give the continued file to train_critic.py --score")
                values.append(candidate["advantage"])
                rewards.append(rewards_of_one)
                kinds.append(scripted_kind(task, record["prompt"], text) if task.get("facts") else "action")
            for name, part in rank_turn(np.array(values), rewards, kinds).items():
                sums[seed, record["task_id"]][critic, name] += part

        for critic, paths in files.items():
            for _ in read(paths[seed], "candidates", each=functools.partial(add, critic)):
                pass
        if all(len(rewards) == 1 for turn in returns.values() for _, rewards in turn.values()):
            die(f"{truth} continues every candidate once, so its noise is unknown; use rollout.py --continue 2 or more")
    return sums


def rank_critics(truth, files, resamples, seed):
    """How the critics of `files` {critic: ranked files} order candidates, compared with the truth."""
    truths, files = matched(truth, files)
    sums = sums_of(truths, files)
    if not sums:
        die(f"{truth} continues no turn of {', '.join(files)}")
    names = list(dict.fromkeys(name for of_task in sums.values() for _, name in of_task))
    rows = {}    # critic -> (T, 2 M)
    for critic in files:
        rows[critic] = np.array([np.ravel([of_task[critic, name] for name in names]) for of_task in sums.values()])

    def measures(sums):    # (..., 2 M) -> (..., M + 1): the last is the corrected Spearman correlation
        means = ratios(sums)
        r = means[..., names.index(HALVES)]
        r = np.where(r > 0, r, np.nan)    # no correction if the halves do not agree at all
        corrected = means[..., names.index(SPEARMAN)] / np.sqrt(2 * r / (1 + r))
        return np.concatenate([means, corrected[..., None]], axis=-1)

    base, critics = next(iter(files)), {}
    estimate = functools.partial(intervals, resamples=resamples, seed=seed, names=[*names, f"{SPEARMAN}, corrected"])
    for critic in files:
        differences = {}
        if critic != base:
            differences = estimate(np.hstack([rows[critic], rows[base]]), measures=difference(measures))
        critics[critic] = {
            "measures": estimate(rows[critic], measures=measures),
            "difference": differences,
            "counts": dict(zip(names, rows[critic].sum(axis=0)[1::2])),
        }
    return {
        "turns": int(critics[base]["counts"]["mean Q of all"]),
        "against": base,
        "critics": critics,
    }


def cell(numbers, signed=False):
    """A measure as text: 0.812 [0.790, 0.834]."""
    sign = "+" if signed else ""
    value, low, high = [f"{numbers[key]:{sign}.3f}" for key in ("value", "low", "high")]
    return f"{value} [{low}, {high}]"


def table(result):
    """rank_critics' result as rows of texts, one column per critic. Numbers of pairs are in brackets."""
    critics, base = list(result["critics"].values()), result["against"]

    def row(heading, part, name, signed=False):
        parts = [critic[part] for critic in critics]
        return heading, *[cell(numbers[name], signed) if name in numbers else "" for numbers in parts]

    rows = [
        ("", *result["critics"]),
        ("turns", *[str(result["turns"])] * len(critics)),
    ]
    for name in sorted(critics[0]["measures"], key=lambda name: name.startswith("-")):
        count = f" ({critics[0]['counts'][name]:.0f})" if name.startswith(("-", "pairs")) else ""
        rows.append(row(name + count, "measures", name))
        if name in (IN_ORDER, SPEARMAN) and len(critics) > 1:
            rows.append(row(f"{name}, vs {base}", "difference", name, signed=True))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("critics", nargs="+", type=named_file, metavar="NAME=FILE",
                        help="candidates ranked by train_critic.py --score; differences are to the first critic")
    parser.add_argument("--truth", required=True, metavar="FILE",
                        help="scored continuations of the same candidates (rollout.py --continue)")
    parser.add_argument("--json", type=Path, help="also write the table's numbers to this file")
    parser.add_argument("--resamples", type=number(int, least=1), default=10_000,
                        help="bootstrap draws of the tasks (default: 10000)")
    parser.add_argument("--seed", type=number(int, least=0), default=0, help="seed of the bootstrap (default: 0)")
    args = parser.parse_args()
    files = {name: files_of(pattern) for name, pattern in args.critics}
    if len(files) < len(args.critics):
        parser.error(f"critics need different names, found {', '.join(name for name, _ in args.critics)}")
    if args.json:
        if args.json.suffix != ".json":
            die(f"{args.json} must end in .json")
        check_path(args.json, itertools.chain(files_of(args.truth), *files.values()))
    result = rank_critics(args.truth, files, args.resamples, args.seed)
    print(markdown(table(result)))
    if args.json:
        write_json(args.json, result)
        print(f"wrote {args.json}")


if __name__ == "__main__":
    main()
