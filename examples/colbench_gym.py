"""ColBench's functions as a gymnasium environment: text in, text out, one reward at the end. Needs gymnasium, no torch.

    from colbench_gym import ColBench
    with ColBench("data/backend/test.jsonl") as env:
        request, info = env.reset(seed=0)                     # info["system"]: instructions for the agent
        reply, reward, over, _, info = env.step("What is a big order?")
        _, reward, over, _, info = env.step("I WANT TO ANSWER:\\ndef report(orders): ...")

One sandbox serves all episodes: starting one takes longer than running a program in it.
"""
import sys
from argparse import Namespace
from pathlib import Path

import gymnasium

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import evaluate  # noqa: E402
import rollout  # noqa: E402
from listener import scripted_reply  # noqa: E402
from records import read  # noqa: E402
from sandbox import Sandbox  # noqa: E402


class AnyText(gymnasium.spaces.Text):
    """All texts. Text's own characters are letters and digits."""

    def contains(self, text):
        return isinstance(text, str)


class ColBench(gymnasium.Env):
    """Observations and actions are texts. An episode ends with an answer, or at the last of max_turns turns."""

    def __init__(self, tasks, max_turns=10, unsafe=False):
        self.tasks = list(read(tasks, "task", "backend"))
        self.max_turns = max_turns
        self.observation_space = self.action_space = AnyText(1000)
        self.system = rollout.system_prompt(Namespace(domain="backend", max_turns=max_turns))
        self.box = Sandbox(workers=1, unsafe=unsafe)

    def reset(self, seed=None, options=None):
        """options={"task": n} names a task; without, one is drawn."""
        super().reset(seed=seed)
        self.task = self.tasks[(options or {}).get("task", self.np_random.integers(len(self.tasks)))]
        self.dialogue = [{"role": "user", "content": self.task["problem_description"]}]
        return self.task["problem_description"], {"system": self.system, "task_id": self.task["task_id"]}

    def step(self, text):
        content, answer = rollout.parse_response(text)
        self.dialogue.append({"role": "assistant", "content": content})
        if answer is None and len(self.dialogue) < 2 * self.max_turns:
            reply, told = scripted_reply(self.task, self.dialogue)
            self.dialogue.append({"role": "user", "content": reply, "told": told})
            return reply, 0.0, False, False, {"told": told}
        record = {"task": self.task, "answer": content if answer is None else answer}
        tests = self.box.score(self.task, evaluate.program_of(record))
        return "", list(tests.values()).count("passed") / len(tests), True, False, {"tests": tests}

    def close(self):
        self.box.close()
