"""How well critics rank the candidates of a turn, measured against Monte-Carlo truth.

The truth Q(o_t, a_t) of a candidate is the mean reward of episodes that continue it (rollout.py --continue, then
evaluate.py). A critic's ranking is a file of candidates with their `advantage` (train_critic.py --score). Only
candidates of one turn are compared.

The truth is noisy. Its two halves agree with a correlation r, and so a perfect critic would reach sqrt(2 r / (1 + r))
(Spearman-Brown); the corrected correlation is divided by that.

    python study/rank_critics.py --truth runs/a/val.continuations.scored.jsonl a=runs/a/val.ranked.jsonl
    python study/rank_critics.py --truth 'runs/*/val.continuations.scored.jsonl' a='runs/*/a.jsonl' b='runs/*/b.jsonl'

A pattern in quotes stands for several seeds, taken in the order of their names; their tasks are pooled. Where some
critics lack a seed, only the folders count that all have.
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
from evaluate import difference, facts_told, intervals, markdown, ratios  # noqa: E402
from monte_carlo import monte_carlo_returns  # noqa: E402
from over_seeds import files_of, named_pattern  # noqa: E402
from records import atomic_write, check_path, die, number, read  # noqa: E402
from rollout import agent_turns  # noqa: E402

IN_ORDER, SPEARMAN, HALVES = "pairs in the right order", "Spearman with Q", "Spearman of Q's halves"


def kind_of_action(record, turn):
    """What the agent did at a turn of an episode, by the facts that it had been told before and was told then."""
    history = record["dialogue_history"]
    place = agent_turns(history)[turn]
    is_answer = place == len(history) - 1 and record["finish"] == "answered"

    def told_until(end):
        facts = facts_told(record | {"dialogue_history": history[:end]}) or []
        return sum(told for _, told in facts)

    if facts_told(record) is None and place > 0 and len(history) > 2:    # the human does not say what it told
        return "answer" if is_answer else "question"
    before, after = told_until(place), told_until(place + 2)
    if is_answer:
        return "answer too early" if before < len(record["task"].get("facts") or ()) else "answer, all known"
    return "useful question" if after > before else "useless question"


def spearman(a, b):
    """Spearman's rank correlation of two lists; 0 where one is constant."""
    def ranks(values):
        _, place, count = np.unique(values, return_inverse=True, return_counts=True)
        found = (np.cumsum(count) - (count - 1) / 2)[place]    # equal values share their mean rank
        return found - found.mean()

    a, b = ranks(a), ranks(b)
    scale = math.sqrt((a ** 2).sum() * (b ** 2).sum())
    return float(a @ b) / scale if scale else 0.0


def rank_turn(values, rewards, kinds, gap=0.25):
    """{measure: [sum, count]} of one turn: what a critic's `values` (n,) say of its n candidates beside their rewards.

    rewards: of each candidate's continuations; kinds: of action; gap: pairs whose Q are closer are left out.
    """
    def upper(by):
        return np.argsort(-by, kind="stable")[:len(by) // 2]

    q = np.array([np.mean(r) for r in rewards])
    even, odd = (np.array([np.mean(r[start::2] or r) for r in rewards]) for start in (0, 1))
    truth = (odd[upper(even)].mean() + even[upper(odd)].mean()) / 2    # one half chooses, the other judges
    differs = q.min() < q.max()
    found = {
        IN_ORDER: [0, 0],
        "mean Q of all": [q.mean(), 1],
        "mean Q of the upper half": [q[upper(values)].mean(), 1],
        "mean Q of the truth's upper half": [truth, 1],
        SPEARMAN: [spearman(values, q), 1] if differs else [0, 0],
        HALVES: [spearman(even, odd), 1] if differs else [0, 0],
    }
    for i, j in itertools.combinations(range(len(q)), 2):
        if abs(q[i] - q[j]) < gap:
            continue
        right = 0.5 + 0.5 * np.sign((q[i] - q[j]) * (values[i] - values[j]))
        for name in (IN_ORDER, "- " + " / ".join(sorted((kinds[i], kinds[j])))):
            found[name] = np.add(found.get(name, [0, 0]), [right, 1])
    return found


def matched(truth, files):
    """The files of the truth and of each critic {name: paths}, as many of each."""
    truths = files_of(truth)
    if {len(truths)} == {*map(len, files.values())}:
        return truths, files
    shared = set.intersection(*({path.parent for path in paths} for paths in (truths, *files.values())))
    truths = [path for path in truths if path.parent in shared]
    files = {name: [path for path in paths if path.parent in shared] for name, paths in files.items()}
    if not truths or {len(truths)} != {*map(len, files.values())}:
        die(f"{truth} and the files of {', '.join(files)} are not equally many, and share no folders either")
    print(f"only of {', '.join(map(str, sorted(shared)))}: some critics are missing elsewhere")
    return truths, files


def sums_of(truths, files):
    """{(seed, task): {(critic, measure): [sum, count]}}."""
    sums = defaultdict(lambda: defaultdict(lambda: np.zeros(2)))
    for seed, truth in enumerate(truths):
        returns, _ = monte_carlo_returns(truth, kind_of_action)

        def add(critic, record):
            found = returns.get((record["task_id"], record["sample"], record["turn"]), {})
            if len(found) < 2:
                return
            texts, rewards, kinds = zip(*found.values())
            candidates = dict(enumerate(record["candidates"]))
            ranked = [candidates.get(place, {}) for place in found]
            if any(one.get("output") != text or one.get("advantage") is None for one, text in zip(ranked, texts)):
                raise ValueError(f"these are not the candidates of {truth}, or have no advantages; give the file that "
                                 "was continued to train_critic.py --score")
            values = np.array([candidate["advantage"] for candidate in ranked])
            for name, part in rank_turn(values, rewards, kinds).items():
                sums[seed, record["task_id"]][critic, name] += part

        for critic, paths in files.items():
            for _ in read(paths[seed], "candidates", each=functools.partial(add, critic)):
                pass
        if all(len(rewards) == 1 for turn in returns.values() for _, rewards, _ in turn.values()):
            die(f"{truth} continues every candidate once, which does not show how noisy it is; rollout.py --continue 2")
    return sums


def rank_critics(truth, files, resamples, seed):
    """How the candidates of `files` {critic: ranked files} are ordered, beside the truth."""
    truths, files = matched(truth, files)
    sums = sums_of(truths, files)
    if not sums:
        die(f"{truth} continues no turn of {', '.join(files)}")
    names = list(dict.fromkeys(name for of_task in sums.values() for _, name in of_task))
    rows = {critic: np.array([np.ravel([of_task[critic, name] for name in names]) for of_task in sums.values()])
            for critic in files}    # (T, 2 M) each

    def measures(sums):    # (..., 2 M) -> (..., M + 1): the last is Spearman's, corrected
        found = ratios(sums)
        r = found[..., names.index(HALVES)]
        r = np.where(r > 0, r, np.nan)    # halves that do not agree at all: nothing to correct by
        corrected = found[..., names.index(SPEARMAN)] / np.sqrt(2 * r / (1 + r))
        return np.concatenate([found, corrected[..., None]], axis=-1)

    base, critics = next(iter(files)), {}
    estimate = functools.partial(intervals, resamples=resamples, seed=seed, names=[*names, f"{SPEARMAN}, corrected"])
    for critic in files:
        beside = np.hstack([rows[critic], rows[base]])
        critics[critic] = {
            "measures": estimate(rows[critic], measures=measures),
            "difference": estimate(beside, measures=difference(measures)) if critic != base else {},
            "counts": dict(zip(names, rows[critic].sum(axis=0)[1::2])),
        }
    return {"turns": int(critics[base]["counts"]["mean Q of all"]), "against": base, "critics": critics}


def cell(numbers, signed=False):
    """A measure as text: 0.812 [0.790, 0.834]."""
    value, low, high = [f"{numbers[key]:{'+' if signed else ''}.3f}" for key in ("value", "low", "high")]
    return f"{value} [{low}, {high}]"


def table(result):
    """rank_critics' result as rows of texts, a critic a column; in brackets how many pairs there are."""
    critics, base = list(result["critics"].values()), result["against"]

    def row(heading, part, name, signed=False):
        found = [critic[part] for critic in critics]
        return heading, *[cell(numbers[name], signed) if name in numbers else "" for numbers in found]

    rows = [("", *result["critics"]), ("turns", *[str(result["turns"])] * len(critics))]
    for name in sorted(critics[0]["measures"], key=lambda name: name.startswith("-")):
        count = f" ({critics[0]['counts'][name]:.0f})" if name.startswith(("-", "pairs")) else ""
        rows.append(row(name + count, "measures", name))
        if name in (IN_ORDER, SPEARMAN) and len(critics) > 1:
            rows.append(row(f"{name}, vs {base}", "difference", name, signed=True))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("critics", nargs="+", type=named_pattern, metavar="NAME=FILE",
                        help="candidates as train_critic.py --score ranks them; differences are against the first")
    parser.add_argument("--truth", required=True, metavar="FILE",
                        help="scored continuations of the same candidates (rollout.py --continue)")
    parser.add_argument("--json", type=Path, help="write the table's numbers here as well")
    parser.add_argument("--resamples", type=number(int, least=1), default=10_000,
                        help="bootstrap draws of the tasks (default: 10000)")
    parser.add_argument("--seed", type=number(int, least=0), default=0, help="seed of the bootstrap (default: 0)")
    args = parser.parse_args()
    files = {name: files_of(pattern) for name, pattern in args.critics}
    if len(files) < len(args.critics):
        parser.error(f"each critic needs another name, found {', '.join(name for name, _ in args.critics)}")
    if args.json and args.json.suffix != ".json":
        die(f"{args.json} must end in .json")
    if args.json:
        check_path(args.json, itertools.chain(files_of(args.truth), *files.values()))
    result = rank_critics(args.truth, files, args.resamples, args.seed)
    print(markdown(table(result)))
    if args.json:
        with atomic_write(args.json) as part:
            part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {args.json}")


if __name__ == "__main__":
    main()
