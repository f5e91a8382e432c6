"""Monte-Carlo returns of candidates, from episodes that continue them (rollout.py --continue, then evaluate.py)."""
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from records import read  # noqa: E402
from rollout import agent_turns  # noqa: E402


def monte_carlo_returns(path, kind_of=lambda record, turn: None):
    """({(task_id, sample, turn): {candidate: (text, rewards, its kind)}}, cost) of scored continuations.

    candidate: index of the first one with the same text. Q(o_t, a_t) is the mean of the rewards. Failed episodes say
    nothing about a candidate: they are left out and counted.
    """
    returns, cost, failed = {}, Counter(), 0

    def check(record):
        if "continues" not in record:
            raise ValueError("the episode continues no candidate; rollout.py --continue writes those that do")
        return record

    for record in read(path, "scored", each=check):
        cost.update({"episodes": 1, **(record.get("cost") or {})})
        if record["reward"] is None or record["finish"].startswith("error"):
            failed += 1
            continue
        sample, turn, candidate = record["continues"]
        history = record["dialogue_history"]
        action = history[agent_turns(history)[turn]]
        found = returns.setdefault((record["task_id"], sample, turn), {})
        _, rewards, _ = found.setdefault(candidate, (action.get("output"), [], kind_of(record, turn)))
        rewards.append(record["reward"])
    if failed:
        print(f"{path}: {failed} episodes left out: they failed", flush=True)
    return returns, cost
