"""Rollouts: play episodes between an agent and a simulated human, or sample candidate actions for recorded turns.

An episode starts with a vague request o_1. At turn t the agent sees the dialogue o_t and acts with a text a_t. The
simulator, which sees the hidden reference c, replies. An episode has at most --max-turns agent turns.

--candidates n plays no episodes. It samples n actions a_t ~ pi(. | o_t) at every agent turn of recorded trajectories,
which train_critic.py --score then ranks. --continue k plays every such candidate to the end k times. The mean reward
is the Monte-Carlo return Q(o_t, a_t), which can rank candidates without a critic, or measure a critic.

Protocol. A response may begin with a thought that ends at "OUTPUT:" (or "</think>", as in reasoning models). Only the
text after the thought enters the dialogue. Everything after the first "I WANT TO ANSWER:" is the final answer. If the
last turn has no such mark, its whole content is the answer.

Agents (--model): a folder, a hub name, or the URL of any OpenAI-compatible server. vLLM runs local models; where it is
not installed, a plain, slower engine on transformers does. Each episode is a coroutine. Episodes never wait for each
other: the engine batches whatever requests are pending.

Simulators (--simulator). "scripted" answers from the task's facts (for pages, by comparing the two layouts). A folder,
hub name or URL names a model that plays the human at temperature 0, with the reference in its prompt. "human" is you,
at the terminal. For pages, a model behind a URL must be a vision model: it gets pictures of both pages, while a local
model gets their source. A reply of the agent or the human that is cut inside its thought is sampled again, with eight
times the token limit; a server's cut reply without </think> counts as such. If that is cut as well, a neutral sentence
takes its place (a candidate is dropped) and the record counts it.

Best-of-N (--best-of-n, Fig. 3a of the paper). At each turn N actions are sampled and a step reward picks one: the
critic's advantage A(o_t, a_t, c) (Eq. 3) with or without c, a value head, or an LLM judge in a knockout of pairs.

Seeds. Each request has its own seed, a hash of (--seed, task, sample, turn). vLLM on a CPU, in float32 and with
OMP_NUM_THREADS=1, gives the same texts for the same seeds at any --concurrency and after a kill. Elsewhere rounding
depends on what else is in the batch: the transformers engine repeats itself at the same settings, CUDA nearly does. A
server may ignore seeds.

Failures. If one request fails (prompt too long, content policy, malformed reply), its episode ends with finish
"error: ...", the others go on, and the exit code is 1. --retry-errors plays such episodes again. A request is retried
up to --retries times if the server is busy, unreachable, or sends a malformed reply. The run stops if the server stays
unreachable, if 8 requests in a row fail, or if no request can succeed: a rejected key, no credit, an unknown model, a
rejected parameter. After any stop, the same command without --overwrite resumes.

Reads   data/{domain}/{split}.jsonl (tasks); with --candidates runs/{run}/{split}.scored.jsonl (trajectories); with
        --continue runs/{run}/{split}.candidates.jsonl
Writes  runs/{run}/{split}.trajectories.jsonl, .candidates.jsonl or .continuations.jsonl, in input order. Each record
        has its cost and the fingerprints of the models that made it. *.settings.json beside it has the settings;
        *.rollout.json has the totals and appears only once everything is done.

    python rollout.py --split train
    python rollout.py --split train --candidates 16
    python rollout.py --split val --continue 8
    python rollout.py --split test --model runs/default/policy --out runs/default/policy.test.trajectories.jsonl
    python rollout.py --split test --simulator human --limit 1 --out runs/default/talk.trajectories.jsonl
    python rollout.py --split train --samples 3 --model meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 8 \\
        --simulator http://localhost:8001/v1
    python rollout.py --split test --model https://api.openai.com/v1 --model-name gpt-4o --concurrency 32
"""
import argparse
import asyncio
import base64
import hashlib
import importlib.util
import json
import logging
import math
import os
import re
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from records import (
    ANSWER_MARK, EPISODE_KEY, ID, SCHEMA, TURN_KEY, Output, die, fingerprint, first_line, number, read, schema_errors,
    sign_of_end, write_json)

os.environ.setdefault("OMP_WAIT_POLICY", "passive")    # set before torch is imported: idle threads sleep, not spin
IN_FLIGHT = 512    # concurrent episodes, enough to keep vLLM on a CPU busy
COUNT = number(int, least=1)    # argparse types
SIZE = number(int, least=0)
OUTPUT_MARK = "OUTPUT:"    # ends a thought
NO_REPLY = "Sorry, I cannot say. Please go on."    # replaces a human's reply that was cut inside its thought
NO_ACTION = "Sorry, I have lost my thread."         # the same for the agent
MORE_ROOM = 8    # a reply that was cut inside its thought is sampled again with this many times the token limit
EPISODE_COSTS = ("sampled_tokens", "simulator_calls", "simulator_tokens", "judge_tokens")
# Problems counted in each episode: actions cut at --max-tokens, actions and human's replies cut inside their thought,
# judge comparisons left to chance.
COUNTERS = ("cut", "unfinished_actions", "unfinished_replies", "undecided")
# Keys of a trajectory that its candidates records drop. Unknown keys are kept.
DROPPED_KEYS = {"dialogue_history", "system", "answer", "finish", "model", "simulator", "seed", "cost", "fingerprints",
                *COUNTERS, "reward", "released_reward", "tests", "mode", "call_timeout", "program_timeout", "sandbox",
                "cosine", "choices", "page", "encoder"}


# ---------------------------------------------------------------------------------------------------------------------
# Episodes and candidates


@dataclass
class Response:
    """One of the n samples of `await engine.generate(messages, n, seed, temperature, max_tokens)`."""
    text: str               # without the end-of-turn token
    ids: list = None        # sampled token ids, with the end-of-turn token if the model emitted it; None from a server
    tokens: int = 0         # sampled tokens; from a server, the first of n has the total
    prompt_tokens: int = 0
    cut: bool = False       # whether it stopped at the token limit
    thinks: bool = True     # whether the chat template may have opened a thought, which a server does not tell us

    @property
    def unfinished(self):
        """Whether it was cut inside or right after its thought, so that nobody may see any of it."""
        reply = self.text.partition("</think>")[2].strip()
        return self.cut and not reply and (self.thinks or "<think>" in self.text)

    def sampled(self):
        """The keys that a record keeps of it, verbatim."""
        return {"output": self.text, "output_ids": self.ids} if self.ids else {"output": self.text}


class Refused(Exception):
    """One request failed (prompt too long, content policy, malformed reply): its episode ends with an error."""


class Stop(Exception):
    """Ends the run, with one sentence and an exit code."""

    def __init__(self, message, code=1):
        super().__init__(message)
        self.code = code


def agent_turns(dialogue):
    """Indices of the agent's messages."""
    return [i for i, message in enumerate(dialogue) if message["role"] == "assistant"]


def parse_response(text):
    """Split a response into (content, which enters the dialogue; answer or None).

    The thought ends at the first </think> or at OUTPUT:. The answer is everything after the first I WANT TO ANSWER:
    that follows. A thought may itself mention this mark. So if a later line begins with OUTPUT:, the thought ends
    there, unless there is code between the two. A thought that <think> opened and nothing closed leaves no content.
    """
    while True:
        text = text.split("</think>", 1)[-1]
        if text.lstrip().startswith("<think>"):
            return "", None
        before, mark, answer = text.partition(ANSWER_MARK)
        between, output, rest = answer.partition(f"\n{OUTPUT_MARK}")
        if not output or re.search(r"```|^\s*(def|import|from|class|<)\b|<html", between, re.M):
            break
        text = OUTPUT_MARK + rest
    content = before.rsplit(OUTPUT_MARK, 1)[-1] + mark + answer
    return content.strip(), answer.strip() if mark else None


async def episode(args, agent, simulator, step_reward, task, sample, system, max_turns, history=(), action=None,
                  extra=()):
    """Play one dialogue to its end and return its record.

    agent: an engine; simulator, step_reward: see SIMULATORS and STEP_REWARDS (None plays the first action);
    sample: number of this episode among those of its task; system: the agent's instructions; max_turns: limit on the
    agent's turns; history, action: a dialogue to continue, and the agent's next Response in it; extra: more keys for
    the record.
    """
    key = (task["task_id"], sample)
    counts = Counter()
    dialogue = list(history) or [{"role": "user", "content": task["problem_description"]}]
    try:
        for turn in range(len(agent_turns(dialogue)), max_turns):
            if action is None:
                prompt = messages_before(system, dialogue)
                actions = await sample_actions(args, agent, prompt, args.best_of_n, (*key, turn), counts)
                action = actions[0]
                if step_reward:
                    finished = [action for action in actions if not action.unfinished] or actions
                    action = await step_reward.best(task, prompt, finished, (*key, turn), counts)
            content, answer = (NO_ACTION, None) if action.unfinished else parse_response(action.text)
            dialogue.append({"role": "assistant", "content": content} | action.sampled())
            if answer is not None or turn == max_turns - 1:
                break
            counts["simulator_calls"] += 1
            reply, details = await simulator.reply(task, dialogue, key, counts)
            dialogue.append({"role": "user", "content": reply[:ENVIRONMENTS[task["domain"]].reply_limit]})
            if details is not None:
                dialogue[-1]["told"] = details
            action = None
        finish = "answered"
        if answer is None:
            finish = "max_turns"
            answer = content
    except Refused as problem:
        answer, finish = None, f"error: {problem}"
        print(f"episode {key} failed: {problem}", file=sys.stderr)
    record = {"task_id": task["task_id"], "sample": sample, "domain": task["domain"], "task": task, "system": system,
              "max_turns": max_turns, "dialogue_history": dialogue, "answer": answer, "finish": finish,
              "cost": {name: counts[name] for name in EPISODE_COSTS}}
    return record | dict(extra) | problems(counts)


def problems(counts):
    """The COUNTERS that are not zero."""
    return {name: counts[name] for name in COUNTERS if counts[name]}


async def sample_actions(args, agent, prompt, n, key, counts):
    """Sample n Responses of the agent.

    key: (task_id, sample, turn, ...), which seeds the request; counts: the episode's Counter.
    """
    seed = derive_seed(args.seed, *key)
    actions, paid = await sample_with_room(agent, prompt, n, seed, args.temperature, args.max_tokens)
    counts["sampled_tokens"] += sum(action.tokens for action in paid)
    for action in actions:
        if action.cut:
            counts["unfinished_actions" if action.unfinished else "cut"] += 1
    return actions


async def sample_with_room(engine, messages, n, seed, temperature, max_tokens):
    """(n Responses, all that were sampled for them). What is cut inside its thought is sampled again with more room."""
    responses = await engine.generate(messages, n, seed, temperature, max_tokens)
    paid = list(responses)
    for i, response in enumerate(responses):
        if response.unfinished:
            with suppress(Refused):    # a server may have no room for more tokens
                [responses[i]] = await engine.generate(messages, 1, seed + i, temperature, MORE_ROOM * max_tokens)
                paid.append(responses[i])
    return responses, paid


async def candidates(args, agent, trajectory, turn, place):
    """The record of the --candidates actions sampled at one turn of the agent; None if the request is refused.

    place: index of the turn's message in the dialogue.
    """
    key = (trajectory["task_id"], trajectory["sample"], turn)
    counts = Counter()
    prompt = messages_before(trajectory.get("system"), trajectory["dialogue_history"][:place])
    try:
        actions = await sample_actions(args, agent, prompt, args.candidates, (*key, "candidates"), counts)
    except Refused as problem:
        print(f"turn {key} is left out: {problem}", file=sys.stderr)
        return None
    kept = {name: value for name, value in trajectory.items() if name not in DROPPED_KEYS}
    finished = [action.sampled() for action in actions if not action.unfinished]
    return kept | {"turn": turn, "prompt": prompt, "cost": {"sampled_tokens": counts["sampled_tokens"]},
                   "episode_cost": {"episodes": 1} | trajectory.get("cost", {}),
                   "candidates": finished} | problems(counts)


def continuations(record, count, max_turns):
    """Arguments of the episodes that --continue plays from the candidates of one turn, without their `sample`.

    Each distinct text is played `count` times. If it ends the episode it is played once, because its reward is certain.
    max_turns: the limit of a recorded episode that names none. `continues` in the records is [sample, turn, index of
    the candidate].
    """
    turn = record["turn"]
    max_turns = max(turn + 1, record.get("max_turns") or max_turns)
    system = "".join(message["content"] for message in record["prompt"] if message["role"] == "system")
    history = [message for message in record["prompt"] if message["role"] != "system"]
    episodes = []
    texts = [candidate["output"] for candidate in record["candidates"]]
    for text in dict.fromkeys(texts):
        index = texts.index(text)
        action = Response(text, record["candidates"][index].get("output_ids"))
        arguments = {"task": record["task"], "system": system, "max_turns": max_turns, "history": history,
                     "action": action, "extra": {"continues": [record["sample"], turn, index]}}
        ends = parse_response(text)[1] is not None or turn == max_turns - 1
        episodes += [arguments] * (1 if ends else count)
    return episodes


async def play_all(todo, play, made_by, output, concurrency, person):
    """Play everything in `todo`, at most `concurrency` at a time, and write each record when it is finished.

    play: coroutine that takes the arguments of one item and returns its record, or None; made_by: keys about the
    models, for every record; person: whether you play the human.
    """
    from tqdm import tqdm
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)    # no traceback when die() ends the run (a full disk)
    bar = tqdm(total=len(todo), disable=person, smoothing=0.05,
               mininterval=0.5 if sys.stderr.isatty() else 30)    # in a log file, a line every 30 s
    began = time.monotonic()
    items = iter(todo)
    count = 0

    async def worker():
        nonlocal count
        for item in items:    # the workers share the iterator
            record = await play(**item)
            if record:
                output.write(record | made_by)
                count += 1
            if person:
                print("\n" + as_text(record["dialogue_history"][-2:]) + f"\n\nThe end: {record['finish']}")
            bar.update()

    try:
        await asyncio.gather(*(worker() for _ in range(min(concurrency, len(todo)))))
    finally:
        bar.close()
        print(f"{output.path}: {count} records in {time.monotonic() - began:.1f} s")


def report(output):
    """Print and return the totals over all records of an output, including those of earlier runs."""
    totals = Counter()
    for record in output.records():
        finish = record.get("finish", "").partition(":")[0]
        totals.update({"records": 1, finish: 1} | {name: record.get(name, 0) for name in COUNTERS} | record["cost"])
    del totals[""]    # candidates have no finish
    parts = [f"{count:,} {name.replace('_', ' ')}" for name, count in totals.items() if count]
    print(f"{output.path}: {', '.join(parts)}")
    return totals


def messages_before(system, dialogue):
    """The agent's prompt: its instructions and the dialogue so far, reduced to roles and contents."""
    messages = [{"role": message["role"], "content": message["content"]} for message in dialogue]
    return [{"role": "system", "content": system}, *messages] if system else messages


def derive_seed(*key):
    """A seed for one request, from (seed, task, sample, turn, ...), so that it does not depend on scheduling."""
    return int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()[:6], "big")


# ---------------------------------------------------------------------------------------------------------------------
# Environments: everything that depends on the domain. To add one, add a row here and one in evaluate.py.


class Environment(NamedTuple):
    multi_turn: str          # the agent's instructions, with {max_turns} and {stylesheet}
    single_turn: str         # the same for --max-turns 1
    model_human: str         # prompt of a model that plays the human, with {reference} and {dialogue}
    scripted_human: object   # await scripted_human(task, text, screen) -> (reply, details revealed, None if unknown)
    reply_limit: int         # maximum length of the human's reply, in characters
    needs: tuple = ()        # keys of a task that the scripted human reads
    pages: bool = False      # whether the agent writes web pages, which the human sees as pictures


async def functions_human(task, text, screen):
    return scripted_reply(task, text)


async def pages_human(task, text, screen):
    """Replies with the largest differences between the layouts of the agent's page and the reference."""
    from render import NO_PAGE, page_reply
    page, reference = await seen(screen.layout, task, text)
    if reference is None:
        return NO_PAGE, None
    # In a thread, because large pages take seconds and other episodes should not wait.
    return await asyncio.to_thread(page_reply, page, reference), None


async def seen(look, task, text):
    """What `look` sees of the page in the agent's text and of the reference; (None, None) if the text has no page."""
    from render import extract_page
    page = extract_page(text)
    if page is None:
        return None, None
    page, reference = await asyncio.gather(asyncio.to_thread(look, page), asyncio.to_thread(look, task["ground_truth"]))
    if not reference:
        raise Refused("the reference page could not be rendered")
    return page, reference


# ---------------------------------------------------------------------------------------------------------------------
# Simulators: `await reply(task, dialogue, key, counts)` returns the human's next message and the names of the details
# that it reveals (None if unknown). key: (task_id, sample). counts: the episode's Counter of COUNTERS and
# EPISODE_COSTS; the caller has already counted one simulator call.


class Scripted:
    """The environment's scripted human."""

    def __init__(self, args, resources):
        self.human = ENVIRONMENTS[args.domain].scripted_human
        self.screen = resources.screen()

    async def reply(self, task, dialogue, key, counts):
        return await self.human(task, dialogue[-1]["content"], self.screen)


def scripted_reply(task, text):
    """The scripted human of the backend: (its reply to the agent's text, the hidden details that it reveals).

    A task has its hidden details in `facts`, and replies to other questions in `replies`. `Listener` decides what each
    question is about; the first two are answered.
    """
    hidden = {fact["detail"]: fact for fact in task["facts"]}
    replies = {detail: fact["reply"] for detail, fact in hidden.items()} | task["replies"]
    replies["choose"] = "You may choose."
    topics = listener().topics(task, text)[:2]
    told = [topic for topic in topics if topic in hidden]
    for topic in tuple(told):
        told += hidden[topic].get("implies", [])    # the value of a cap reveals that there is one
    reply = " ".join(replies[topic] for topic in topics) or "What do you mean?"
    return reply, list(dict.fromkeys(told))


class Listener:
    """Finds the detail that a question is about. It is trained on a table of example questions (questions.tsv).

    Ridge regression: a question is a vector of its words, word pairs and word parts, weighted by their rarity. Each
    topic's score is linear in it. The prior prefers hidden details of the task to stated ones, and stated ones to
    details that the function does not have. A topic with a probability below SURE counts as not understood.
    """
    RIDGE, SHARPNESS, SURE = 0.2, 10, 0.55
    STATED, ABSENT, NO_DETAIL = -1.5, -3, -1    # the prior of a topic, in logits; 0 for a hidden detail

    def __init__(self, path):
        self.synonyms = {}    # stem of a word -> the group of its synonyms, such as "=limit"
        examples = []         # (topic, question)
        for line in path.read_text().splitlines():
            topic, text = line.split("\t")
            if topic.startswith("="):
                self.synonyms |= dict.fromkeys(map(stem, text.split()), topic)
            else:
                examples.append((topic, text))
        self.names = sorted({topic for topic, _ in examples})
        all_features = [self.features(text) for _, text in examples]
        counts = Counter(feature for features in all_features for feature in features)
        self.known = {feature: (column, math.log(1 + len(examples) / n))    # the logarithm is its rarity
                      for column, (feature, n) in enumerate(counts.items())}
        x = np.stack([self.vector(features) for features in all_features])    # (examples, features)
        y = np.array([[topic == name for name in self.names] for topic, _ in examples], float)    # (examples, topics)
        self.weights = x.T @ np.linalg.solve(x @ x.T + self.RIDGE * np.eye(len(x)), y)    # (features, topics)

    def features(self, text):
        """{feature: weight} of a text: stems and their synonym groups, pairs of groups, and parts of four letters."""
        words = words_of(text)
        stems = list(map(stem, words))
        groups = [self.synonyms.get(word, word) for word in stems]
        features = dict.fromkeys(stems + groups, 1.0)
        features |= dict.fromkeys(zip(["^", *groups], [*groups, "$"]), 0.6)
        for word in words:
            spaced = f" {word} "
            for i in range(len(word) - 1):
                features[spaced[i:i + 4], "part"] = 0.3
        return features

    def vector(self, features):
        """The features' weights times their rarity, as a vector of length 1."""
        vector = np.zeros(len(self.known))
        for feature, weight in features.items():
            if feature in self.known:
                column, rarity = self.known[feature]
                vector[column] = weight * rarity
        return vector / (np.linalg.norm(vector) or 1)

    def topic(self, task, question):
        """The topic of a question: a detail, "choose" (up to the agent) or "none" (no detail, or unclear)."""
        prior = dict.fromkeys(self.names, self.ABSENT) | dict.fromkeys(task["details"], self.STATED)
        prior |= {fact["detail"]: 0 for fact in task["facts"]} | {"choose": self.NO_DETAIL, "none": self.NO_DETAIL}
        logits = self.vector(self.features(question)) @ self.weights * self.SHARPNESS
        logits += [prior[name] for name in self.names]
        share = 1 / np.exp(logits - logits.max()).sum()    # probability of the likeliest topic
        return self.names[logits.argmax()] if share >= self.SURE else "none"

    def topics(self, task, text):
        """The topics of the questions in a text, each once, in order."""
        questions = re.findall(r"[^.?!\n]+\?", text) or [text]
        topics = [self.topic(task, with_slots(task, question)) for question in questions]
        return [topic for topic in dict.fromkeys(topics) if topic != "none"]


@cache
def listener():
    return Listener(Path(__file__).with_name("questions.tsv"))


def with_slots(task, question):
    """A question in which the values that the request states (keys, words, numbers) become slots such as {limit}."""
    hidden = {fact["detail"] for fact in task["facts"]}
    stated = re.findall(r'(?<=")\w+(?=")|\b\d+\b', task["problem_description"])
    for detail, value in task["details"].items():
        if detail not in hidden and str(value) in stated:
            question = re.sub(rf'"?\b{value}\b"?', "{" + detail + "}", question)
    singular = task["theme"][:-1]    # books -> book. Not after "the": "the order" may be the order of the results.
    return re.sub(rf"\b{singular}s\b|\b(an?|each|every|per|single|two) {singular}\b", "{records}", question,
                  flags=re.I)


def words_of(text):
    """The words of a text in lower case. A number becomes "zero", {limit} becomes "limit_"."""
    text = re.sub(r'"?\{(\w+)\}"?', r"\1_", text.lower())
    text = text.replace("what's", "what is").replace("n't", " not")
    return re.findall(r"[a-z_]+", re.sub(r"\d+", " zero ", text))


def stem(word):
    """A word without its suffix."""
    return re.sub("(?<=...)(ing|ies|ed|es|s|ly)$", "", word)


class ModelHuman:
    """A model that plays the human, with the reference in its prompt. On a server it sees both pages as pictures."""

    def __init__(self, args, resources):
        self.args = args
        self.prompt = ENVIRONMENTS[args.domain].model_human
        self.engine = resources.engine("simulator", args.simulator, args.simulator_name)
        self.screen = resources.screen() if is_url(args.simulator) else None

    async def reply(self, task, dialogue, key, counts):
        content = self.prompt.format(reference=task["ground_truth"], dialogue=as_text(dialogue))
        if self.screen:
            from render import NO_PAGE
            page, reference = await seen(lambda page: self.screen.render(page).png, task, dialogue[-1]["content"])
            if reference is None:
                return NO_PAGE, None
            if not page:
                return "Your page could not be shown.", None
            content = [text_part(VISION_PROMPT.format(request=task["problem_description"])),
                       text_part("The assistant's page:"), picture_part(page),
                       text_part("The page that you have in mind:"), picture_part(reference)]
        seed = derive_seed(self.args.seed, *key, "simulator", len(dialogue))
        text = await ask(self.engine, content, seed, self.args.simulator_max_tokens, counts, "simulator")
        counts["unfinished_replies"] += text is None
        return text or NO_REPLY, None


def text_part(text):
    return {"type": "text", "text": text}


def picture_part(png):
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png).decode()}}


async def ask(engine, content, seed, max_tokens, counts, role):
    """Ask a model, at most twice, and return its reply without its thought, or None. Counts tokens and a second call.

    A model that thinks first may be cut inside its thought, which must not be shown because it may quote the reference.
    The chat template may have opened the thought, so a reply that was cut may be all thought even without a <think>.
    """
    [response], paid = await sample_with_room(engine, [{"role": "user", "content": content}], 1, seed, 0.0, max_tokens)
    counts[f"{role}_tokens"] += sum(each.prompt_tokens + each.tokens for each in paid)
    counts[f"{role}_calls"] += len(paid) - 1
    reply = response.text.rpartition("</think>")[2].strip()
    return reply if reply and "<think>" not in reply and not response.unfinished else None


def as_text(dialogue):
    """A dialogue as plain text, for a person, or a model that plays the human or judges. Leaves out instructions."""
    names = {"user": "Human", "assistant": "Assistant"}
    return "\n\n".join(f"{names[message['role']]}: {message['content']}" for message in dialogue
                       if message["role"] in names)


class Person:
    """You, at the terminal."""

    def __init__(self, args, resources):
        print("You are the human. /show prints the hidden reference, which the assistant cannot see; Ctrl-D stops.")

    async def reply(self, task, dialogue, key, counts):
        print("\n" + as_text(dialogue[-2:]))
        while True:
            try:
                line = input("you> ").strip()
            except EOFError:
                raise Stop("you stopped", 0) from None
            if line == "/show":
                print(task["ground_truth"])
            elif line:
                return line, None


SIMULATORS = {"scripted": Scripted, "human": Person}    # --simulator; any other value names a model, for ModelHuman


# ---------------------------------------------------------------------------------------------------------------------
# Step rewards, for best-of-N: `await best(task, prompt, actions, key, counts)` returns the action to play.
# key: (task_id, sample, turn). counts: the episode's Counter, as in simulators.


class CriticReward:
    """The step reward of a trained critic: the advantage of Eq. 3, or the value of its head."""

    def __init__(self, args, resources):
        from train_critic import Critic
        self.critic = Critic(args.critic, without_c=args.step_reward == "critic-without-c")
        resources.fingerprints["critic"] = fingerprint(args.critic)
        head = self.critic.config["head"]
        if self.critic.pictures or (head in ("value", "q")) != (args.step_reward == "value"):
            die(f"{args.critic}: --step-reward {args.step_reward} does not work with a critic whose head is {head!r}, "
                "or with one that sees pictures")

    async def best(self, task, prompt, actions, key, counts):
        turns = [(prompt, action.sampled(), task["ground_truth"]) for action in actions]
        scores = await asyncio.get_running_loop().run_in_executor(LocalEngine.pool, self.critic.advantages, turns)
        return actions[scores.index(max(scores))]


class JudgeReward:
    """An LLM judge that sees the reference compares actions two at a time, in a knockout among the N."""

    def __init__(self, args, resources):
        self.engine = resources.engine("judge", args.judge, args.judge_name)
        self.seed = args.seed

    async def best(self, task, prompt, actions, key, counts):
        dialogue = as_text(prompt)
        contents = [parse_response(action.text)[0] for action in actions]

        async def better(i, j):
            """Index of the better action; if there is no verdict, the first. Judges favour a place, so it is drawn."""
            seed = derive_seed(self.seed, *key, "judge", i, j)
            first, second = (i, j) if seed % 2 else (j, i)
            question = JUDGE_PROMPT.format(reference=task["ground_truth"], dialogue=dialogue, a=contents[first],
                                           b=contents[second])
            choice = verdict(await ask(self.engine, question, seed, 64, counts, "judge") or "")
            counts["undecided"] += choice is None
            return second if choice == "B" else first

        remaining = list(range(len(actions)))
        while len(remaining) > 1:
            matches = [better(i, j) for i, j in zip(remaining[::2], remaining[1::2])]
            remaining = await asyncio.gather(*matches) + remaining[2 * len(matches):]
        return actions[remaining[0]]


def verdict(text):
    """The A or B that a judge's text begins with ("A.", "[A]", "A, because B ..."), or the only one in it; or None."""
    begins = re.match(r"\W*([AB])(?: is\b|[^\w\s]|\s*(?:\n|$))", text)
    if begins:
        return begins[1]
    named = set(re.findall(r"\b[AB]\b", text))
    return named.pop() if len(named) == 1 else None


STEP_REWARDS = {"critic": CriticReward, "critic-without-c": CriticReward, "value": CriticReward, "judge": JudgeReward}


# ---------------------------------------------------------------------------------------------------------------------
# Prompts

AGENT_MULTI_TURN = """You are a helpful programming assistant. A human wants a Python function and has described it \
only vaguely. Find out what is missing before you write it: ask the human ONE short question at a time about a detail \
that decides how the function behaves (names of fields, thresholds, rounding, ties, empty or bad input, ...). The \
human cannot read code.
When you know enough, or at your last turn, give the final answer: one line "I WANT TO ANSWER:" and after it only the \
Python code of the whole function, at most 50 lines, with the name and the signature that were asked for.
You have at most {max_turns} turns. You may think first; if you do, write "OUTPUT:" after your thoughts: the human \
sees only what follows it."""

AGENT_SINGLE_TURN = """You are a helpful programming assistant. A human wants a Python function. Do not ask \
questions: nobody can answer them. Decide what the description leaves open in the most likely way and write the \
function now.
Reply with one line "I WANT TO ANSWER:" and after it only the Python code of the whole function, at most 50 lines, \
with the name and the signature that were asked for. You may think first; if you do, write "OUTPUT:" after your \
thoughts."""

AGENT_PAGES_MULTI_TURN = """You are a helpful web designer. A human wants a web page and has described it only \
vaguely. In each turn show ONE complete page, at most about 100 lines: HTML in <html> ... </html>, styled with \
Tailwind CSS classes alone, linked as
{stylesheet}
No JavaScript. The only pictures are those at https://picsum.photos/id/48/W/H, in any width W and height H. The human \
sees the page as a picture, beside the page that they have in mind, and tells you the most outstanding differences. \
Improve the page accordingly.
When nothing is left to improve, or at your last turn, give the final page after a line "I WANT TO ANSWER:".
You have at most {max_turns} turns. You may think first; if you do, write "OUTPUT:" after your thoughts: the human \
sees only what follows it."""

AGENT_PAGES_SINGLE_TURN = """You are a helpful web designer. A human wants a web page. Do not ask questions: nobody \
can answer them. Reply with one line "I WANT TO ANSWER:" and after it ONE complete page, at most about 100 lines: \
HTML in <html> ... </html>, styled with Tailwind CSS classes alone, linked as
{stylesheet}
No JavaScript. The only pictures are those at https://picsum.photos/id/48/W/H, in any width W and height H. You may \
think first; if you do, write "OUTPUT:" after your thoughts."""

HUMAN_OF_FUNCTIONS = """You play a human who wants help with a Python function. You cannot read or write \
code, but you know exactly how the function must behave: just like this reference, which the assistant cannot see.

{reference}

The dialogue so far:

{dialogue}

Write the human's reply to the assistant's last message.
- At most two short sentences, in plain words. Never write code, and never quote the reference.
- Answer only what was asked, and only what the reference settles. If it does not settle it, say "I do not know."
- Do not contradict the reference, and do not tell what was not asked.

Reply:"""

HUMAN_OF_PAGES = """You play a human who has a web page in mind and cannot read code. This is the page:

{reference}

The assistant cannot see it. The dialogue so far:

{dialogue}

Imagine the assistant's last page and yours as pictures, side by side. Write the human's reply: the one or two most \
outstanding visual differences (layout, colours, texts, sizes, pictures), in plain words, in at most four sentences. \
Never write or quote code. If the assistant showed no page, ask for one.

Reply:"""

VISION_PROMPT = """You play a human who has a web page in mind and cannot read code. You asked an assistant: \
"{request}" Here are two pictures: the assistant's page, and the page that you have in mind, which the assistant \
cannot see. Tell the assistant the one or two most outstanding visual differences (layout, colours, texts, sizes, \
pictures) and what you want instead, in plain words, in at most four sentences. Never write code. If there is no \
difference worth naming, say so."""

JUDGE_PROMPT = """A human wants what is described here, and has exactly this in mind:

{reference}

The assistant cannot see it and must find out by asking. The dialogue so far:

{dialogue}

Two possible next messages of the assistant:

[A]
{a}

[B]
{b}

Which message brings the assistant closer to the right final answer? Reply with one letter, A or B."""

ENVIRONMENTS = {
    "backend": Environment(AGENT_MULTI_TURN, AGENT_SINGLE_TURN, HUMAN_OF_FUNCTIONS, functions_human, reply_limit=400,
                           needs=("facts", "replies", "details", "theme")),
    "frontend": Environment(AGENT_PAGES_MULTI_TURN, AGENT_PAGES_SINGLE_TURN, HUMAN_OF_PAGES, pages_human,
                            reply_limit=1000, pages=True),
}


# ---------------------------------------------------------------------------------------------------------------------
# Engines: `await generate(messages, n, seed, temperature, max_tokens)` returns n Responses, or raises Refused or Stop;
# close() shuts it down. A server's engine has a `name`: the model there.


class LocalEngine:
    """A model in this process. Sampling runs in a thread of its own, so that the event loop stays free.

    A subclass has load(path, args, cuda), and sample(requests), which takes all pending requests, oldest first, works
    on them, and returns those that are finished: [(name, [(token ids, whether cut)])].
    """
    pool = ThreadPoolExecutor(1)    # one for all models: two vLLM engines that sample at once corrupt memory on a CPU

    def __init__(self, path, name, role, args):
        import torch
        from lm import context_of, load_tokenizer
        self.tokenizer = load_tokenizer(path)
        cuda = torch.cuda.is_available()
        self.dtype = args.dtype
        if args.dtype == "auto":
            self.dtype = "bfloat16" if cuda else "float32"
        self.context = min(context_of(path) or 8192, args.max_model_len or (math.inf if cuda else 8192))
        self.count = 0
        self.pending = {}    # name of a request -> the request, with the future of its samples
        self.closed = False
        try:
            self.load(path, args, cuda)
        except Exception as error:    # of many types, such as SafetensorError
            die(f"{path}: {self.library} cannot load a causal language model from there ({first_line(error)}); try "
                "another --engine, or a shorter --max-model-len")

    async def generate(self, messages, n, seed, temperature, max_tokens):
        prompt = encode_chat(self.tokenizer, messages)
        room = min(max_tokens, self.context - len(prompt))
        if room < 1:
            raise Refused(f"prompt of {len(prompt)} tokens does not fit the context of {self.context} tokens")
        self.count += 1
        samples = await self.answer(SimpleNamespace(
            name=str(self.count), prompt=prompt, room=room, n=n, seed=seed, temperature=temperature))
        thinks = self.tokenizer.decode(prompt[-8:]).rstrip().endswith("<think>")    # the template opened the thought
        return [Response(self.tokenizer.decode(ids, skip_special_tokens=True), ids, len(ids), len(prompt), cut, thinks)
                for ids, cut in samples]

    async def answer(self, request):
        request.future = asyncio.get_running_loop().create_future()
        self.pending[request.name] = request
        if len(self.pending) == 1:
            self.driver = asyncio.create_task(self.drive())    # kept, or it may be collected as garbage
        return await request.future

    async def drive(self):
        """Sample until no request is pending."""
        while self.pending:
            await asyncio.sleep(0)    # let episodes that just got a response send their next request
            try:
                finished = await asyncio.get_running_loop().run_in_executor(
                    self.pool, self.sample, list(self.pending.values()))
            except Exception as error:
                for request in self.pending.values():
                    request.future.set_exception(Stop(f"{self.library} failed: {first_line(error)}"))
                return
            for name, samples in finished:
                self.pending.pop(name).future.set_result(samples)

    def close(self):
        self.closed = True
        self.pool.submit(int).result()    # wait for the batch that is being sampled


class VLLMEngine(LocalEngine):
    """vLLM with prefix caching: its asynchronous engine on CUDA, an engine in this process on a CPU."""
    library = "vLLM"

    def load(self, path, args, cuda):
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        settings = {}
        if not cuda:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")    # GiB
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
            # No chunked prefill on a CPU: after a chunk vLLM rewinds the request's seeded generator, which a CPU
            # generator does not support (RuntimeError: CPU Generator does not use offset).
            settings = {"enforce_eager": True, "enable_chunked_prefill": False,
                        "max_num_batched_tokens": max(16384, self.context)}
        self.added = set()    # names of the requests that the engine knows
        self.in_process = os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"
        from vllm import AsyncEngineArgs, AsyncLLMEngine, LLMEngine, SamplingParams
        from vllm.sampling_params import RequestOutputKind
        self.params = partial(SamplingParams, output_kind=RequestOutputKind.FINAL_ONLY)
        engine_class = LLMEngine if self.in_process else AsyncLLMEngine
        self.engine = engine_class.from_engine_args(AsyncEngineArgs(
            model=str(path), dtype=self.dtype, max_model_len=self.context, max_num_seqs=IN_FLIGHT,
            enable_prefix_caching=True, gpu_memory_utilization=args.gpu_memory_utilization,
            tensor_parallel_size=args.tensor_parallel_size, data_parallel_size=args.data_parallel_size,
            disable_log_stats=True, **settings))

    async def answer(self, request):
        request.prompt = {"prompt_token_ids": request.prompt}
        request.params = self.params(n=request.n, seed=request.seed, temperature=request.temperature,
                                     max_tokens=request.room)
        if self.in_process:
            return await super().answer(request)
        try:
            async for result in self.engine.generate(request.prompt, request.params, request.name):
                pass
        except Exception as error:
            raise Stop(f"vLLM failed: {first_line(error)}") from error
        return self.samples(result)

    def sample(self, requests):
        for request in requests:
            if request.name not in self.added:
                self.engine.add_request(request.name, request.prompt, request.params)
                self.added.add(request.name)
        return [(result.request_id, self.samples(result)) for result in self.engine.step() if result.finished]

    def samples(self, result):
        return [(list(output.token_ids), output.finish_reason == "length") for output in result.outputs]

    def close(self):
        super().close()
        (self.engine.engine_core if self.in_process else self.engine).shutdown()
        self.engine = None    # delete it now: at interpreter exit its clean-up fails, because modules are gone


class TransformersEngine(LocalEngine):
    """Static batches through model.generate; a batch runs until its last text is finished. Slower than vLLM.

    The same settings give the same texts again, but a text depends on the other requests of its batch.
    """
    library = "transformers"
    most_rows = 64

    def load(self, path, args, cuda):
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging
        logging.disable_progress_bar()
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=self.dtype).to("cuda" if cuda else "cpu")
        ends = self.model.generation_config.eos_token_id    # one, a list, or None
        ends = ends if isinstance(ends, list) else [ends]
        self.ends = list({self.tokenizer.eos_token_id, *ends} - {None})

    def sample(self, requests):
        """Sample one batch of at most most_rows texts: the oldest request, and others with its n and temperature."""
        import torch
        from torch.nn.utils.rnn import pad_sequence
        first = requests[0]
        similar = [other for other in requests if (other.n, other.temperature) == (first.n, first.temperature)]
        batch = similar[:max(1, self.most_rows // first.n)]
        prompts = [torch.tensor(request.prompt) for request in batch]
        ids = pad_sequence(prompts, batch_first=True, padding_value=-1, padding_side="left")
        ids = ids.repeat_interleave(first.n, 0).to(self.model.device)    # (R, T)
        torch.manual_seed(first.seed)
        out = self.model.generate(
            input_ids=ids.clamp(min=0), attention_mask=(ids >= 0).long(), do_sample=first.temperature > 0,
            temperature=first.temperature or 1.0, top_k=0, top_p=1.0, repetition_penalty=1.0,
            max_new_tokens=max(request.room for request in batch), eos_token_id=self.ends,
            pad_token_id=self.ends[0],
            stopping_criteria=[lambda ids, scores: torch.full((len(ids),), self.closed, device=ids.device)])
        # out: (R, T + new)
        sampled = out[:, ids.shape[1]:].unflatten(0, (len(batch), first.n)).tolist()    # (requests, n, new)
        return [(request.name, [self.until_end(sample[:request.room]) for sample in samples])
                for request, samples in zip(batch, sampled)]

    def until_end(self, ids):
        """(ids up to and including the first end of turn, whether there is none)."""
        for i, token in enumerate(ids):
            if token in self.ends:
                return ids[:i + 1], False
        return ids, True


class ServerEngine:
    """An OpenAI-compatible server.

    A failed request raises Refused, which ends its episode (prompt too long, content policy, malformed reply), or Stop,
    which ends the run (rejected key, no credit, unknown model, rejected parameter, no server; or MOST_FAILURES failed
    requests in a row). A busy server is asked again.
    """
    MOST_FAILURES = 8

    def __init__(self, url, name, role, args):
        import openai
        self.url = url
        self.retries = args.retries
        self.failures = 0            # since the last success
        self.usual = math.inf        # the lowest token limit so far; a request for more may fail, which does not count
        self.limit = "max_tokens"    # what the server calls its token limit
        self.extra = getattr(args, f"{role}_extra_body".removeprefix("agent_"), None) or {}
        keys = [f"{role.upper()}_API_KEY"]
        if urlsplit(url)[:2] == urlsplit(args.model)[:2]:
            keys += ["AGENT_API_KEY", "OPENAI_API_KEY"]    # sent only to the agent's server
        self.key = next((key for key in keys if os.environ.get(key)), f"{keys[0]}, which is not set")
        settings = {"base_url": url, "api_key": os.environ.get(self.key, "none"), "timeout": args.timeout}
        self.client = openai.AsyncOpenAI(max_retries=0, **settings)
        try:
            names = [name] if name else [model.id for model in openai.OpenAI(**settings).models.list()]
        except Exception as error:
            die(f"{url}: cannot list the models of this server ({refusal(error)[1]}); check the URL, or name the model")
        if len(names) != 1:
            die(f"{url} needs the {role}'s name (--model-name, --simulator-name, --judge-name); its models are: "
                f"{', '.join(names) or 'none'}")
        self.name = names[0]

    async def generate(self, messages, n, seed, temperature, max_tokens):
        responses = []
        self.usual = min(self.usual, max_tokens)
        while len(responses) < n:    # some servers return one choice whatever n is
            request = {"model": self.name, "messages": messages, "temperature": temperature, "top_p": 1,
                       self.limit: max_tokens, "seed": (seed + len(responses)) % (1 << 31)}
            if n > 1 and not responses:
                request["n"] = n
            try:
                responses += await self.ask(request | self.extra)
            except Refused as problem:
                self.failures += max_tokens == self.usual
                if self.failures < self.MOST_FAILURES:
                    raise
                raise Stop(f"{self.url}: {self.failures} requests in a row failed ({problem})") from problem
        return responses[:n]

    async def ask(self, request, attempt=0):
        """The Responses to one request; raises Refused or Stop. A parameter that is None is not sent."""
        sent = {name: value for name, value in request.items() if value is not None}
        try:    # chat.completions.create() would take twice as long, because it validates every message
            responses = self.responses(await self.client.post("/chat/completions", body=sent, cast_to=object))
            self.failures = 0
            return responses
        except Exception as error:
            status, message = refusal(error)
            busy = (status >= 500 or status in (408, 409, 425, 429)) and "billing" not in message
            if busy and attempt < self.retries:
                wait = min(60, 0.5 * 2 ** attempt)
                with suppress(AttributeError, LookupError, ValueError):
                    wait = max(wait, float(error.response.headers["retry-after"]))
                await asyncio.sleep(wait)
                return await self.ask(request, attempt + 1)
            if "max_tokens" in sent and "max_completion_tokens" in message and "context" not in message:
                self.limit = "max_completion_tokens"    # OpenAI's newer models call it so
                return await self.ask(request | {"max_tokens": None, self.limit: sent["max_tokens"]})
            if "n" in sent:    # the server may not support n > 1; its message could be anything
                return await self.ask(request | {"n": None})
            raise self.final(status, message) from error

    def responses(self, completion):
        """The Responses of a chat completion. A refusal raises Refused, a malformed reply any other exception."""
        if completion.get("error"):
            raise Refused(first_line(completion["error"]["message"]))
        usage = completion.get("usage") or {}
        responses = []
        for choice in completion["choices"]:
            message = choice["message"]
            finish = choice.get("finish_reason")
            text = message.get("content")
            if isinstance(text, list):
                text = "".join(part.get("text") or "" for part in text)
            if text is None and (message.get("refusal") or message.get("tool_calls")):
                raise Refused(first_line(message.get("refusal") or "the model calls a tool instead of speaking"))
            if not text and finish == "content_filter":
                raise Refused("the reply was withheld by a content filter")
            if text is None and finish != "length":    # a hidden thought may use up the limit
                raise TypeError("no content")
            responses.append(Response(text or "", prompt_tokens=usage.get("prompt_tokens") or 0,
                                      cut=finish == "length"))
        if not responses:
            raise TypeError("no choices")
        responses[0].tokens = usage.get("completion_tokens") or 0    # the sum over all choices
        return responses

    def final(self, status, message):
        """The exception for a request that is not retried: Refused ends its episode, Stop ends the run."""
        if status in (400, 422) and re.search(r"temperature|top_p|\bseed\b", message):
            status = "parameter"
        mistakes = {401: f"rejected the key in the environment variable {self.key}",
                    404: f"has no model {self.name!r}, or is not an OpenAI-compatible server",
                    "parameter": "rejects a parameter, which null in --extra-body removes"}
        if status in mistakes:
            return Stop(f"{self.url} {mistakes[status]} ({message})", 2)
        if status in (402, 599) or "billing" in message:
            return Stop(f"{self.url} failed: {message}")
        return Refused(message)

    def close(self):
        pass


def refusal(error):
    """(HTTP status, message) of a failed request: 200 if the model refused, 502 for a malformed reply, 599 for none."""
    if isinstance(error, Refused):
        return 200, str(error)
    if hasattr(error, "status_code"):
        message = error.body.get("message") if isinstance(error.body, dict) else error.body
        return error.status_code, f"HTTP {error.status_code}: {first_line(message or error.response.text)}"
    if error.__cause__:    # the library's APIConnectionError
        return 599, first_line(error.__cause__)
    return 502, f"malformed reply ({type(error).__name__}: {first_line(error)})"


ENGINES = {"vllm": VLLMEngine, "transformers": TransformersEngine}    # --engine; a URL is for ServerEngine


def engine_of(spec, args):
    """Name of the engine for a model: server for a URL, else --engine, where auto means vLLM if it is installed."""
    if is_url(spec):
        return "server"
    if args.engine != "auto":
        return args.engine
    return "vllm" if importlib.util.find_spec("vllm") else "transformers"


def make_engine(spec, name, role, args):
    """The engine for a model, given as a folder, hub name or URL.

    name: the model's name on its server, None if it is the only one there; role: agent, simulator or judge, which
    decides a server's key; args: the flags of engine_flags, and args.model if the role is not agent.
    """
    return ENGINES.get(engine_of(spec, args), ServerEngine)(spec, name, role, args)


def engine_flags(parser):
    add = parser.add_argument_group("local models").add_argument
    add("--engine", default="auto", choices=["auto", *ENGINES],
        help="auto = vllm if installed, else transformers, which is slower (default: auto)")
    add("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"],
        help="auto = float32 on CPU, bfloat16 on CUDA (default: auto)")
    add("--max-model-len", type=SIZE, default=0,
        help="context length in tokens; 0 = the model's own, but at most 8192 on a CPU (default: 0)")
    add("--gpu-memory-utilization", type=number(above=0, most=1), default=0.9, help="vLLM: share of each "
        "GPU's memory (default: 0.9); lower it if several local models share a GPU")
    add("--tensor-parallel-size", type=COUNT, default=1, help="vLLM: GPUs per copy of the model (default: 1)")
    add("--data-parallel-size", type=COUNT, default=1, help="vLLM: copies of the model (default: 1)")
    add = parser.add_argument_group(
        "servers", "Keys come from the environment: AGENT_API_KEY or OPENAI_API_KEY for the agent, SIMULATOR_API_KEY "
        "for the simulator, JUDGE_API_KEY for the judge. A simulator or judge on the agent's server may "
        "use the agent's key, which is sent to no other host.").add_argument
    add("--extra-body", type=json_object, help="JSON object added to each request to the agent's server: top_k, "
        "repetition_penalty, reasoning_effort, chat_template_kwargs, ...; null removes a parameter that is sent by "
        "default: temperature, top_p (1), seed, max_tokens")
    add("--timeout", type=number(above=0), default=300.0, help="seconds to wait for a server's reply (default: 300)")
    add("--retries", type=SIZE, default=8, help="retries if a server is busy, unreachable or sends a malformed reply, "
        "with pauses that grow to a minute, or as long as the server asks (default: 8)")


def json_object(text):
    """An argparse type."""
    return {**json.loads(text)}


def is_url(spec):
    return str(spec).startswith(("http://", "https://"))


def encode_chat(tokenizer, messages):
    """Token ids of a prompt in the model's own chat template, as the trainers make them."""
    from lm import render_prompt
    return tokenizer(render_prompt(tokenizer, messages), add_special_tokens=False)["input_ids"]


class Resources:
    """What the agent, simulator and step reward share: models, each loaded once, and browsers."""

    def __init__(self, args):
        self.args = args
        self.engines = {}
        self.browsers = None
        self.fingerprints = {}    # role -> digest of the model's folder, its hub name, or its name on a server

    def engine(self, role, spec, name):
        """The engine of a model. Roles share a local model. On a server each role has its own engine, with its key."""
        key = role if is_url(spec) else spec
        if key not in self.engines:
            self.engines[key] = make_engine(spec, name, role, self.args)
        digest = fingerprint(spec)
        if is_url(spec):
            digest = self.engines[key].name
            print(f"{role}: {digest} at {spec}")
        self.fingerprints["model" if role == "agent" else role] = digest
        return self.engines[key]

    def screen(self):
        """Two browsers that render pages for the human; None if the human sees no pages."""
        if ENVIRONMENTS[self.args.domain].pages and self.args.max_turns > 1:
            from render import Renderer
            try:
                self.browsers = Renderer(browsers=2)
            except RuntimeError as problem:
                die(problem)
            # Episodes of the same task often show the same page.
            self.browsers.layout = lru_cache(maxsize=20000)(self.browsers.layout)
        return self.browsers

    def close(self):
        for engine in self.engines.values():
            engine.close()
        if self.browsers:
            self.browsers.close()


# ---------------------------------------------------------------------------------------------------------------------
# The run and its command line


def main():
    args = parse_args()
    jobs = what_to_play(args)
    output = Output(args.out, *settings_of(args), args.overwrite, TURN_KEY if args.candidates else EPISODE_KEY)
    failed = set()
    if args.retry_errors and output.done:
        failed = jobs.keys() & {output.key_of(record) for record in output.records()
                                if record.get("finish", "").startswith("error")}
        output.done -= failed
    todo = [arguments for key, arguments in jobs.items() if key not in output.done]
    if todo:
        roll_out(args, todo, output, failed)
    else:
        print(f"{args.out}: nothing left to do")
    if not output.path.exists():
        die("every request failed, see above", 1)
    position = {key: n for n, key in enumerate(jobs)}
    output.sort(lambda *key: position.get(key, len(jobs)))    # records that --limit or --samples now excludes come last
    totals = report(output)
    write_json(sign_of_end(args.out), totals)
    if not args.candidates:
        print(f"next: python evaluate.py --in {args.out}")
    errors = len(jobs.keys() - output.done) + totals["error"]
    if todo and errors:
        die(f"{errors} failed, see above; add --retry-errors to the same command to try them again", 1)


def what_to_play(args):
    """{key of each record to make: the arguments of episode() or candidates() that make it}."""
    records = list(read(args.input, args.kind, args.domain, unique=True, each=partial(check, args)))
    records = records[:max(1, round(args.fraction * len(records)))][:args.limit or None]
    jobs = {}
    if args.kind == "task":
        system = system_prompt(args)
        for sample in range(args.samples):
            for task in records:
                jobs[task["task_id"], sample] = {"task": task, "sample": sample, "system": system,
                                                 "max_turns": args.max_turns}
        return jobs
    episodes = Counter()    # of each task, so far
    for record in records:
        task_id = record["task_id"]
        if args.kind == "trajectory":
            for turn, place in enumerate(agent_turns(record["dialogue_history"])):
                jobs[task_id, record["sample"], turn] = {"trajectory": record, "turn": turn, "place": place}
        else:
            for arguments in continuations(record, args.continue_, args.max_turns):
                jobs[task_id, episodes[task_id]] = arguments | {"sample": episodes[task_id]}
                episodes[task_id] += 1
    return jobs


def check(args, record):
    """The record itself; raises ValueError if it cannot be played, which `read` reports with its line."""
    for problem in schema_errors(record, CONTINUED if args.continue_ else {}):
        raise ValueError(problem)
    if args.kind == "trajectory" or args.simulator != "scripted" or args.max_turns == 1:
        return record
    for key in ENVIRONMENTS[args.domain].needs:
        if key not in record.get("task", record):
            raise ValueError(f"the task has no {key!r}, which the scripted simulator needs; choose a model with "
                             "--simulator")
    return record


def roll_out(args, todo, output, failed):
    """Load the models and play `todo`; the records of the `failed` are removed just before."""
    person = args.simulator == "human"
    concurrency = args.concurrency or (32 if is_url(args.model) else IN_FLIGHT * args.data_parallel_size)
    if person:
        concurrency = 1
    with closing(Resources(args)) as resources:
        agent = resources.engine("agent", args.model, args.model_name)
        made_by = {"model": args.model_name or args.model, "fingerprints": resources.fingerprints}
        play = partial(candidates, args, agent)
        if not args.candidates:
            simulator = SIMULATORS.get(args.simulator, ModelHuman)(args, resources)
            resources.fingerprints.setdefault("simulator", args.simulator)
            step_reward = STEP_REWARDS[args.step_reward](args, resources) if args.best_of_n > 1 else None
            made_by |= {"simulator": args.simulator_name or args.simulator, "seed": args.seed}
            play = partial(episode, args, agent, simulator, step_reward)
        if output.done:
            earlier = next(output.records()).get("fingerprints")
            if earlier != resources.fingerprints:    # a server may have another model now, which no setting names
                die(f"{args.out}: its records were made by {earlier}, but this run would use {resources.fingerprints}; "
                    "use --overwrite or another --out")
        sign_of_end(args.out).unlink(missing_ok=True)
        if failed:
            output.sort(lambda *key: None if key in failed else 0)
        asyncio.run(play_all(todo, play, made_by, output, concurrency, person))


def system_prompt(args):
    """The agent's instructions."""
    environment = ENVIRONMENTS[args.domain]
    prompt = environment.single_turn if args.max_turns == 1 else environment.multi_turn
    if environment.pages:
        from render import TAILWIND_TAG
        prompt = prompt.replace("{stylesheet}", TAILWIND_TAG)
    return prompt.replace("{max_turns}", str(args.max_turns))


def settings_of(args):
    """({setting: value}, {flag: file or model}): everything that decides the content of the output."""
    settings = dict(vars(args))
    inputs = {f"--{name}": settings.pop(name) for name in ("model", "simulator", "judge", "critic")}
    inputs["--in"] = settings.pop("input")
    prompts = [*ENVIRONMENTS[args.domain][:3], VISION_PROMPT, JUDGE_PROMPT, NO_REPLY, NO_ACTION]
    settings["prompts"] = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]
    settings["engine"] = engine_of(args.model, args)
    for name in ("out", "overwrite", "run_name", "split", "limit", "samples", "fraction", "retry_errors",
                 "concurrency", "timeout", "retries", "gpu_memory_utilization", "tensor_parallel_size",
                 "data_parallel_size"):    # these do not change a record
        del settings[name]
    # No URLs: a server may move to another address. Its model is in the fingerprints of the records.
    return settings, {flag: path for flag, path in inputs.items() if path and not is_url(path)}


# What --continue needs of a candidates record.
CONTINUED = {"task_id": ID, "sample": int, "turn": int, "task": SCHEMA["task"][2] | {"domain": str},
             "candidates": [{"output": str}]}
# Kind of input: (its default file, what is made of it).
DEFAULTS = {"task": ("data/{domain}/{split}.jsonl", "trajectories"),
            "trajectory": ("runs/{run_name}/{split}.scored.jsonl", "candidates"),
            "candidates": ("runs/{run_name}/{split}.candidates.jsonl", "continuations")}


def parse_args():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    add = p.add_argument_group("input and output").add_argument
    add("--run-name", default="default", help="outputs go to runs/RUN_NAME (default: default)")
    add("--domain", default="backend", choices=ENVIRONMENTS, help="kind of task (default: backend)")
    add("--split", default="train", help="train, val or test: names the default input and output (default: train)")
    add("--in", dest="input", help="tasks, trajectories or candidates (default: data/DOMAIN/SPLIT.jsonl; with "
        "--candidates runs/RUN_NAME/SPLIT.scored.jsonl; with --continue runs/RUN_NAME/SPLIT.candidates.jsonl)")
    add("--out", help="file to write (default: runs/RUN_NAME/SPLIT.X.jsonl, where X = trajectories, or candidates with "
        "--candidates, or continuations with --continue)")
    add("--overwrite", action="store_true", help="start over instead of resuming the output")
    add("--retry-errors", action="store_true", help="replay the episodes in the output that ended with an error")
    add("--limit", type=SIZE, default=0, help="use the first LIMIT tasks, trajectories or turns; 0 = all (default: 0)")
    add("--concurrency", type=SIZE, default=0, help="episodes (or turns) in flight; 0 = 32 if a server is the agent, "
        "else 512 times --data-parallel-size (default: 0)")
    add("--fraction", type=number(above=0, most=1), default=1.0,
        help="use this share of the input, from its start (default: 1; the released code has 0.1 for --candidates)")
    add = p.add_argument_group("episodes").add_argument
    add("--samples", type=COUNT, default=1, help="episodes per task (default: 1)")
    add("--max-turns", type=COUNT, default=10, help="limit on agent turns; 1 = answer at once, without questions "
        "(default: 10; --continue keeps the limit of the recorded episode)")
    add("--seed", type=int, default=0, help="seed of all sampling (default: 0)")
    add("--best-of-n", type=COUNT, default=1, help="sample this many actions per turn, play the best (default: 1)")
    add("--step-reward", default="critic", choices=STEP_REWARDS, help="what picks the best action: a critic's "
        "advantage with or without c, a value head, or an LLM judge (default: critic)")
    add("--critic", help="folder of the critic or value model (default: runs/RUN_NAME/critic)")
    group = p.add_argument_group("candidate actions and their returns, instead of new episodes")
    add = group.add_mutually_exclusive_group().add_argument
    add("--candidates", type=number(int, least=2), default=0,
        help="sample this many actions at every agent turn of recorded trajectories (paper: 16)")
    add("--continue", dest="continue_", type=COUNT, default=0, metavar="TIMES",
        help="play every candidate of a candidates file to the end this many times, for its Monte-Carlo return")
    add = p.add_argument_group(
        "models", "A folder, a hub name, or the URL of an OpenAI-compatible server, such as http://localhost:8000/v1. "
        "Roles with the same model share it.").add_argument
    add("--model", help="the agent (default: runs/RUN_NAME/base)")
    add("--temperature", type=number(least=0), default=1.0, help="the agent's temperature; 0 = greedy (default: 1)")
    add("--max-tokens", type=COUNT, default=1024, help="token limit of an agent's response; eight times "
        "as many for one that is cut inside its thought (default: 1024)")
    add("--simulator", default="scripted",
        help="scripted, human (you, at the terminal), or a model that plays the human (default: scripted)")
    add("--simulator-max-tokens", type=COUNT, default=256, help="token limit of a simulator model's reply; eight times "
        "as many for a reply that is cut inside its thought (default: 256)")
    add("--judge", help="the judge of --step-reward judge (default: the agent itself)")
    add("--model-name", help="the agent's name on its server (default: the only model there)")
    add("--simulator-name", help="the simulator's name on its server (default: the only model there)")
    add("--judge-name", help="the judge's name on its server (default: the only model there)")
    add("--simulator-extra-body", type=json_object, help="--extra-body for the simulator's server")
    add("--judge-extra-body", type=json_object, help="--extra-body for the judge's server")
    engine_flags(p)
    args = p.parse_args()
    if args.temperature == 0 and max(args.candidates, args.best_of_n, args.samples, args.continue_) > 1:
        die("--temperature 0 gives the same action every time; raise it if --candidates, --best-of-n, --samples or "
            "--continue is above 1")
    of_best = "--step-reward", "--critic", "--judge"
    of_play = "--samples", "--max-turns", "--simulator", "--best-of-n"
    for applies, mode, flags in ((args.candidates, "with --candidates", (*of_play, *of_best)),
                                 (args.continue_, "with --continue", ("--samples",)),
                                 (args.best_of_n == 1, "without --best-of-n above 1", of_best)):
        for given in sys.argv:
            if applies and given.startswith(flags):    # --judge-name starts with --judge
                die(f"{given.partition('=')[0]} does nothing {mode}; leave it out")

    args.kind = "trajectory" if args.candidates else "candidates" if args.continue_ else "task"
    source, made = DEFAULTS[args.kind]
    args.input = args.input or source.format(**vars(args))
    args.out = args.out or f"runs/{args.run_name}/{args.split}.{made}.jsonl"
    base = f"runs/{args.run_name}/base"
    args.model = args.model or base
    if args.model == base and not Path(base).exists():
        die(f"{base}: no such model; name one with --model, or make the tiny one with: python train_policy.py "
            f"--method sft --model tiny --out {base}")
    if args.best_of_n > 1:
        if args.step_reward == "judge":
            args.judge = args.judge or args.model
        elif STEP_REWARDS[args.step_reward] is CriticReward:
            args.critic = args.critic or f"runs/{args.run_name}/critic"
    if args.judge == args.model:
        args.judge_name = args.judge_name or args.model_name
    if args.simulator == args.model:
        args.simulator_name = args.simulator_name or args.model_name
    return args


if __name__ == "__main__":
    try:
        main()
    except (Stop, OSError) as problem:    # OSError: the disk is full when the finished file is sorted
        die(f"{problem}; finished records are saved; the same command without --overwrite resumes",
            getattr(problem, "code", 1))
    except KeyboardInterrupt:
        die("stopped; finished records are saved; the same command without --overwrite resumes", 130)
