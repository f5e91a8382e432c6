"""Monte-Carlo returns of candidates, from episodes that continue them (rollout.py --continue, then evaluate.py)."""
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from records import read  # noqa: E402
from rollout import agent_turns  # noqa: E402


def monte_carlo_returns(path, kind_of=lambda record, turn: None):
    """({(task_id, sample, turn): {candidate: (text, rewards, kind)}}, cost) of scored continuations.

    candidate: index of the first candidate with the same text. Q(o_t, a_t) is the mean of its rewards. kind: what
    kind_of says of the action. Failed episodes say nothing about a candidate, so they are left out.
    """
    returns, cost, failed = {}, Counter(), 0

    def check(record):
        if "continues" not in record:
            raise ValueError("the episode continues no candidate; it must come from rollout.py --continue")
        return record

    for record in read(path, "scored", each=check):
        cost.update({"episodes": 1, **(record.get("cost") or {})})
        if record["reward"] is None or record["finish"].startswith("error"):
            failed += 1
            continue
        sample, turn, candidate = record["continues"]
        history = record["dialogue_history"]
        action = history[agent_turns(history)[turn]]
        candidates = returns.setdefault((record["task_id"], sample, turn), {})
        _, rewards, _ = candidates.setdefault(candidate, (action.get("output"), [], kind_of(record, turn)))
        rewards.append(record["reward"])
    if failed:
        print(f"{path}: {failed} failed episodes left out", flush=True)
    return returns, cost
