"""Rollouts: episodes of an agent with a human simulator, and candidate actions for given episodes.

An episode starts with a vague request o_1. At turn t the agent sees the dialogue o_t and acts with a text a_t; the
simulator, which sees the hidden reference c, replies; at most --max-turns agent turns. With --candidates n no episode
is played: for every agent turn of given trajectories n actions a_t ~ pi(. | o_t) are sampled, which train_policy.py
ranks with the critic. With --continue k every such candidate is played to the end k times: its mean reward is the
Monte-Carlo return Q(o_t, a_t), which ranks candidates without a critic and shows what a critic is worth.

Protocol. A response may think before "OUTPUT:" (or, as reasoning models do, before "</think>"); only what follows it
enters the dialogue. What follows the first "I WANT TO ANSWER:" is the final answer; at the last turn the whole response
counts as the answer.

Agents (--model): a folder or hub name, run by vLLM, or, where that is not installed, by a plain, slower engine on
transformers; or the URL of any OpenAI-compatible server. Each episode is a coroutine. No episode waits for another, and
the engine batches whatever is ready.

Simulators (--simulator): scripted answers from the task's facts (for pages, from a comparison of the two layouts); a
folder, hub name or URL plays the human with the reference in its prompt, at temperature 0; human is you, at the
terminal. For pages a model behind a URL must be a vision model: it gets pictures of both pages (a local model gets the
sources instead). A reply that is cut inside its thought, the human's or the agent's, is asked for again with eight
times the room. If that is not enough, a neutral sentence takes its place, and the record counts it.

Best-of-N (--best-of-n, Fig. 3a of the paper): at each turn N actions are sampled and a step reward picks one: the
critic's advantage A(o_t, a_t, c) (Eq. 3) with or without c, a value head, or an LLM judge in a knock-out of pairs.

Seeds. Each request has its own, a hash of (--seed, task, sample, turn). With vLLM on a CPU, in float32 and with
OMP_NUM_THREADS=1, the same seeds give the same texts at any --concurrency and after a kill. Elsewhere rounding depends
on what else is in the batch: the plain engine repeats itself at the same settings, CUDA nearly. A server may ignore
seeds.

When something fails. An error of one request (prompt too long, content policy, an odd reply) ends its episode with
finish "error: ..."; the others go on, and the exit code is 1. --retry-errors plays such episodes again. A server that
is busy or gone is asked again, --retries times, then the run stops. The run also stops where no request is answered any
more: a refused key, no credit, an unknown model, a rejected parameter. The same command, without --overwrite, continues
after any stop.

Reads   data/{domain}/{split}.jsonl (tasks), or with --candidates runs/{run}/{split}.scored.jsonl (trajectories),
        with --continue runs/{run}/{split}.candidates.jsonl
Writes  runs/{run}/{split}.trajectories.jsonl, .candidates.jsonl or .continuations.jsonl, in the order of the input,
        each record with its cost and the fingerprints of the models that made it; beside it *.settings.json, and when
        all is done *.rollout.json

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
import shlex
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from records import (
    ANSWER_MARK, EPISODE_KEY, TURN_KEY, Output, atomic_write, die, fingerprint, first_line, number, read, sign_of_end)

os.environ.setdefault("OMP_WAIT_POLICY", "passive")    # before torch is imported: its idle threads sleep, not spin
IN_FLIGHT = 512    # episodes, which keep vLLM on a CPU busy
REFERENCE_QUOTE = 25    # a reply leaks if it repeats so long a line of the reference, or shows one of these signs:
CODE_SIGNS = re.compile(
    r"```|\bdef \w+\(|\blambda\b[^.]*:|^\s*(import|from|return|for|if|while) .*[:=(]|==|</?\w+[^>]*>", re.M)
COUNT, SIZE = number(int, least=1), number(int, least=0)    # argparse types
OUTPUT_MARK = "OUTPUT:"    # ends a thought
NO_REPLY = "Sorry, I cannot say. Please go on."    # stands in for a reply that never came out of its thought
NO_ACTION = "Sorry, I have lost my thread."         # the same for the agent
MORE_ROOM = 8    # times --max-tokens, for a reply that was cut inside its thought
EPISODE_COSTS = ("sampled_tokens", "simulator_calls", "simulator_tokens", "judge_tokens")
# Mishaps within an episode: the name in the record, and the words at the end of the run.
COUNTED = {"cut": "actions cut at --max-tokens", "unfinished_actions": "actions lost in thought",
           "leaks": "replies with code", "unfinished_replies": "replies lost in thought",
           "undecided": "comparisons that the judge left to chance"}
# What a candidates record does not take over from its trajectory; keys that we do not know are carried through.
LEFT_BEHIND = {"dialogue_history", "system", "answer", "finish", "model", "simulator", "seed", "cost", "fingerprints",
               *COUNTED, "reward", "tests", "mode", "sandbox", "reward_released", "tests_released", "cosine", "page",
               "encoder", "view", "choices", "rewarded"}


# ---------------------------------------------------------------------------------------------------------------------
# Episodes and candidates


@dataclass
class Response:
    """One of the n texts that `await engine.generate(messages, n, seed, temperature, max_tokens)` gives."""
    text: str               # without the end-of-turn token
    ids: list = None        # sampled token ids, with the end-of-turn token if the model emitted it; None from a server
    tokens: int = 0         # how many were sampled
    prompt_tokens: int = 0
    cut: bool = False       # whether they were as many as there was room for
    thinks: bool = True     # whether a text that was cut may be a thought alone; a server does not tell

    @property
    def unfinished(self):
        """Whether it was cut before the thought ended, so that nobody may see it."""
        if not self.cut or "</think>" in self.text:
            return False
        return self.thinks or "<think>" in self.text

    def sampled(self):
        """What a record keeps of it, word for word."""
        return {"output": self.text, "output_ids": self.ids} if self.ids else {"output": self.text}


class Refused(Exception):
    """This one request cannot be answered (prompt too long, content policy, an odd reply): its episode is an error."""


class Stop(Exception):
    """The run ends: one sentence, and the exit code."""

    def __init__(self, message, code=1):
        super().__init__(message)
        self.code = code


def agent_turns(dialogue):
    """Where the agent speaks."""
    return [i for i, message in enumerate(dialogue) if message["role"] == "assistant"]


def parse_response(text):
    """A response as (content: what enters the dialogue, the answer or None).

    A thought ends at the first </think> or at OUTPUT:. The first I WANT TO ANSWER: after it begins the answer, which is
    kept whole. A thought may name that mark: a later line that begins with OUTPUT: ends it too, unless a program stands
    between the two. A thought that was begun with <think> and never ended leaves nothing.
    """
    text = text.split("</think>", 1)[-1]
    if text.lstrip().startswith("<think>"):
        return "", None
    before, mark, answer = text.partition(ANSWER_MARK)
    thought, output, rest = answer.partition(f"\n{OUTPUT_MARK}")
    if output and not re.search(r"```|^\s*(def|import|from|class|<)\b|<html", thought, re.M):
        return parse_response(OUTPUT_MARK + rest)
    content = before.rsplit(OUTPUT_MARK, 1)[-1] + mark + answer
    return content.strip(), answer.strip() if mark else None


async def episode(args, agent, simulator, step_reward, task, sample, system, max_turns, before=(), action=None,
                  note=()):
    """Play one dialogue to its end; returns its record.

    agent: an engine; simulator, step_reward: see SIMULATORS and STEP_REWARDS (without one the first action is played);
    sample: number of this episode among those of the task; system: the agent's instructions; max_turns: after so many
    turns of the agent the episode ends. before: the dialogue that is continued, if one is, with the agent's next
    Response as `action`; note: what else the record says.
    """
    key, counts = (task["task_id"], sample), Counter()
    dialogue = list(before) or [{"role": "user", "content": task["problem_description"]}]
    try:
        for turn in range(len(agent_turns(dialogue)), max_turns):
            if action is None:
                prompt = messages_before(system, dialogue)
                actions = await sample_actions(args, agent, prompt, args.best_of_n, (*key, turn), counts)
                action = actions[0]
                if step_reward:
                    action = await step_reward.best(task, prompt, actions, (*key, turn), counts)
            content, answer = (NO_ACTION, None) if action.unfinished else parse_response(action.text)
            dialogue.append({"role": "assistant", "content": content} | action.sampled())
            if answer is not None or turn == max_turns - 1:
                break
            counts["simulator_calls"] += 1
            reply, told = await simulator.reply(task, dialogue, key, counts)
            dialogue.append({"role": "user", "content": reply})
            if told is not None:
                dialogue[-1]["told"] = told
            action = None
        finish = "max_turns" if answer is None else "answered"
        if answer is None:
            answer = content
    except Refused as problem:
        answer, finish = None, f"error: {problem}"
    record = {"task_id": task["task_id"], "sample": sample, "domain": task["domain"], "task": task, "system": system,
              "max_turns": max_turns, "dialogue_history": dialogue, "answer": answer, "finish": finish,
              "cost": {name: counts[name] for name in EPISODE_COSTS}}
    return record | dict(note) | mishaps(counts)


def mishaps(counts):
    """Those of COUNTED that happened."""
    return {name: counts[name] for name in COUNTED if counts[name]}


async def sample_actions(args, agent, prompt, n, key, counts):
    """n Responses of the agent to a prompt. One that was cut inside its thought is asked for again, with more room.

    key: (task_id, sample, turn, ...), which seeds the request; counts: the episode's.
    """
    seed = derive_seed(args.seed, *key)
    actions = await agent.generate(prompt, n, seed, args.temperature, args.max_tokens)
    counts["sampled_tokens"] += sum(action.tokens for action in actions)
    for i in range(n):
        if actions[i].unfinished:
            [actions[i]] = await agent.generate(prompt, 1, seed + i, args.temperature, MORE_ROOM * args.max_tokens)
            counts["sampled_tokens"] += actions[i].tokens
        if actions[i].unfinished:
            counts["unfinished_actions"] += 1
        elif actions[i].cut:
            counts["cut"] += 1
    return actions


async def candidates(args, agent, trajectory, turn):
    """The record of --candidates actions at one turn of the agent; None if the request is refused."""
    key, dialogue = (trajectory["task_id"], trajectory["sample"], turn), trajectory["dialogue_history"]
    prompt, counts = messages_before(trajectory.get("system"), dialogue[:agent_turns(dialogue)[turn]]), Counter()
    try:
        actions = await sample_actions(args, agent, prompt, args.candidates, (*key, "candidates"), counts)
    except Refused as problem:
        print(f"{args.input}: turn {turn} of task {key[0]}, sample {key[1]} is left out: {problem}", file=sys.stderr)
        return None
    carried = {name: value for name, value in trajectory.items() if name not in LEFT_BEHIND}
    found = [action.sampled() for action in actions if not action.unfinished]
    return carried | {"turn": turn, "prompt": prompt, "cost": {"sampled_tokens": counts["sampled_tokens"]},
                      "episode_cost": {"episodes": 1, **(trajectory.get("cost") or {})},
                      "candidates": found} | mishaps(counts)


def continuations(record, count, max_turns):
    """What --continue plays from a turn's candidates: the arguments of each episode, but its number.

    Candidates of the same text are played once, and so is one that ends the episode, whose reward is certain.
    `continues` in the records names the episode, turn and candidate.
    """
    task = record["task"] | {"task_id": record["task_id"], "domain": record["domain"]}
    system, before, turn = "", record["prompt"], record["turn"]
    if before[0]["role"] == "system":
        system, before = before[0]["content"], before[1:]
    found, texts = [], [candidate["output"] for candidate in record["candidates"]]
    for index, text in enumerate(texts):
        if text in texts[:index]:
            continue
        action = Response(text, record["candidates"][index].get("output_ids"))
        given = {"task": task, "system": system, "max_turns": max_turns, "before": before, "action": action,
                 "note": {"continues": [record["sample"], turn, index]}}
        ends = parse_response(text)[1] is not None or turn == max_turns - 1
        found += [given] * (1 if ends else count)
    return found


async def play_all(todo, play, made_by, output, concurrency, person):
    """Play everything in todo, each at its own pace, and write the records as they come.

    play: the arguments of one item -> its record, or None; made_by: what each record says of its models; person:
    whether you play the human.
    """
    from tqdm import tqdm
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)    # it would print the traceback of an exit (a full disk)
    bar = tqdm(total=len(todo), disable=person, smoothing=0.05,
               mininterval=0.5 if sys.stderr.isatty() else 30)    # a log file gets a line now and then
    began, items, count = time.monotonic(), iter(todo), 0

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
    finally:    # however it ends
        bar.close()
        print(f"{output.path}: {count} records in {time.monotonic() - began:.1f} s")


def report(output):
    """Print and return what all records of an output amount to, whichever of several runs made them."""
    totals, errors = Counter(), Counter()
    for record in output.records():
        totals["records"] += 1
        finish, _, error = record.get("finish", "").partition(": ")
        if finish:
            totals[finish] += 1
        if error:
            errors[error] += 1
        totals.update({name: record.get(name, 0) for name in COUNTED})
        totals.update(record["cost"])
    for error, count in errors.most_common(3):
        print(f"  {count} x error: {first_line(error)}")
    said = [f"{count:,} {COUNTED.get(name, name.replace('_', ' '))}" for name, count in totals.items() if count]
    print(f"{output.path}: {', '.join(said)}")
    return totals


def messages_before(system, dialogue):
    """What the agent is shown: its instructions and the dialogue so far, without our own keys."""
    messages = [{"role": message["role"], "content": message["content"]} for message in dialogue]
    return [{"role": "system", "content": system}, *messages] if system else messages


def derive_seed(*key):
    """A seed for one request, from (seed, task, sample, turn, ...): independent of what runs beside it."""
    return int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()[:6], "big")


# ---------------------------------------------------------------------------------------------------------------------
# Environments: all that depends on the domain. Another one is another row here, and one in evaluate.py.


class Environment(NamedTuple):
    multi_turn: str          # the agent's instructions; {max_turns} and {stylesheet} are filled in
    single_turn: str         # the same for --max-turns 1
    model_human: str         # the prompt of a model that plays the human: {reference}, {dialogue}
    scripted_human: object   # await scripted_human(task, text, screen) -> (reply, names of the details told, or None)
    reply_limit: int         # most characters of the human's reply
    needs: tuple = ()        # keys of a task that the scripted human reads
    pages: bool = False      # whether the agent shows web pages, which the human sees as pictures


async def functions_human(task, text, screen):
    return scripted_reply(task, text)


async def pages_human(task, text, screen):
    """Names the largest differences between the layouts of two pages."""
    from render import NO_PAGE, extract_page, page_reply
    page = extract_page(text)
    if page is None:
        return NO_PAGE, None
    mine, reference = await in_threads(screen.layout, page, task["ground_truth"])
    if reference is None:
        raise Refused("the reference page could not be rendered")
    # In a thread: pages of many elements take seconds, for which no other episode should wait.
    return await asyncio.to_thread(page_reply, mine, reference, limit=ENVIRONMENTS["frontend"].reply_limit), None


def in_threads(function, *pages):
    """To await: what a function says of each page."""
    return asyncio.gather(*(asyncio.to_thread(function, page) for page in pages))


# ---------------------------------------------------------------------------------------------------------------------
# Simulators: `await reply(task, dialogue, key, counts)` gives the human's next text and the names of the details that
# it tells (None: not known). key: (task_id, sample); counts: a Counter of the episode's COUNTED and EPISODE_COSTS, in
# which one call is counted already


class Scripted:
    """The environment's scripted human."""

    def __init__(self, args, resources):
        self.environment, self.screen = ENVIRONMENTS[args.domain], resources.screen()

    async def reply(self, task, dialogue, key, counts):
        reply, told = await self.environment.scripted_human(task, dialogue[-1]["content"], self.screen)
        return reply[:self.environment.reply_limit], told


def scripted_reply(task, text):
    """The scripted human of the backend: (its reply to an agent's text, the hidden details that the reply tells).

    A composed task says in `facts` what is hidden and in `replies` what else may be asked about; `Listener` finds out
    what a question means. A user's own task has `facts` alone, which are found by their questions and keywords.
    """
    if "replies" in task:
        hidden = {fact["detail"]: fact for fact in task["facts"]}
        topics = listener().topics(task, text)[:2]
        facts = [hidden[topic] for topic in topics if topic in hidden]
        replies = {detail: fact["reply"] for detail, fact in hidden.items()} | task["replies"]
        replies["choose"] = "You may choose."
        reply = " ".join(replies[topic] for topic in topics) or "What do you mean?"
    else:
        facts = facts_by_keywords(task["facts"], text)[:2]
        reply = " ".join(fact["reply"] for fact in facts) or "I do not know."
    told = [fact.get("detail") for fact in facts]
    for fact in facts:
        told += fact.get("implies", [])    # the height of a cap tells that there is one
    return reply, [detail for detail in dict.fromkeys(told) if detail]


def facts_by_keywords(facts, text):
    """The facts whose question a text quotes, else those with keywords in it (whole words), most keywords first."""
    text = padded(text)

    def count(fact):
        return sum(padded(word) in text for word in fact["keywords"])

    quoted = [fact for fact in facts if padded(fact["question"]) in text]
    return quoted or sorted(filter(count, facts), key=count, reverse=True)


def padded(text):
    """The words of a text in small letters, with a space on both sides of each."""
    words = re.findall(r"\w+", text.lower())
    return f" {' '.join(words)} "


class Listener:
    """Finds the detail that a question is about, from a table of example questions (questions.tsv).

    Kernel ridge regression: a question is a vector of its words, pairs of words and parts of words, weighted by how
    rare they are. Each topic's score is linear in it. Hidden details of the task are likelier than stated ones, and
    those likelier than details that the function does not have. A guess below SURE counts as not understood.
    """
    RIDGE, SHARPNESS, SURE = 0.2, 10, 0.55
    PRIOR = {"hidden": 0, "choose": -1, "none": -1, "stated": -1.5, "absent": -3}    # in logits

    def __init__(self, path):
        self.same = {}     # stem of a word -> the sign of all words that mean the same, such as "=limit"
        self.known = {}    # words of an example -> its topic
        examples = []      # (topic, question)
        for line in path.read_text().splitlines():
            topic, text = line.split("\t")
            if topic.startswith("="):
                for word in text.split():
                    self.same[stem(word)] = topic
            else:
                examples.append((topic, text))
                self.known.setdefault(" ".join(words_of(text)), topic)
        self.names = sorted({topic for topic, _ in examples})
        found = [self.features(text) for _, text in examples]
        count = Counter()
        for features in found:
            count.update(features.keys())
        self.rarity = {feature: math.log(1 + len(found) / n) for feature, n in count.items()}
        self.column = {feature: i for i, feature in enumerate(self.rarity)}
        x = np.stack([self.vector(features) for features in found])    # (examples, features)
        y = np.array([[topic == name for name in self.names] for topic, _ in examples], float)    # (examples, topics)
        self.weights = x.T @ np.linalg.solve(x @ x.T + self.RIDGE * np.eye(len(x)), y)    # (features, topics)

    def features(self, text):
        """{feature: its weight} of a text: words or what they stand for, pairs of them, and parts of four letters."""
        words = words_of(text)
        stems = [self.same.get(stem(word), stem(word)) for word in words]
        found = dict.fromkeys([*map(stem, words), *stems], 1.0)
        found |= dict.fromkeys(zip(["^", *stems], [*stems, "$"]), 0.6)
        for word in words:
            spaced = f" {word} "
            for i in range(len(word) - 1):
                found[spaced[i:i + 4], "part"] = 0.3
        return found

    def vector(self, features):
        """Their weights times their rarity, as a vector of length 1."""
        vector = np.zeros(len(self.column))
        for feature, weight in features.items():
            if feature in self.column:
                vector[self.column[feature]] = weight * self.rarity[feature]
        return vector / (np.linalg.norm(vector) or 1)

    def topic(self, task, question):
        """The detail of a task that a question is about, or "choose"; None if that is not clear."""
        known = self.known.get(" ".join(words_of(question)))
        if known:
            return known
        kinds = dict.fromkeys(self.names, "absent")
        kinds |= dict.fromkeys(task["details"], "stated")
        kinds |= dict.fromkeys([fact["detail"] for fact in task["facts"]], "hidden")
        kinds |= {"choose": "choose", "none": "none"}
        prior = [self.PRIOR[kinds[name]] for name in self.names]
        logits = self.vector(self.features(question)) @ self.weights * self.SHARPNESS + prior
        likely = np.exp(logits - logits.max())
        best = likely.argmax()
        return self.names[best] if likely[best] >= self.SURE * likely.sum() else None

    def topics(self, task, text):
        """What the questions of a text are about, each topic once, in their order."""
        questions = re.findall(r"[^.?!\n]+\?", text) or [text]
        found = [self.topic(task, with_slots(task, question)) for question in questions]
        return [topic for topic in dict.fromkeys(found) if topic not in (None, "none")]


@lru_cache(maxsize=None)
def listener():
    return Listener(Path(__file__).with_name("questions.tsv"))


def with_slots(task, question):
    """A question with what the request names (keys, words, numbers) replaced by the names of the details: {limit}."""
    hidden = {fact["detail"] for fact in task["facts"]}
    named = {word or digits for word, digits in re.findall(r'"(\w+)"|\b(\d+)\b', task["problem_description"])}
    for detail, value in task["details"].items():
        if detail not in hidden and str(value) in named:
            question = re.sub(rf'"?\b{value}\b"?', "{" + detail + "}", question)
    one = task["theme"][:-1]    # a book; "the order" may be that of the results
    return re.sub(rf"\b{one}s\b|\b(an?|each|every|per|single|two) {one}\b", "{records}", question, flags=re.I)


def words_of(text):
    """The words of a text in small letters; a number is "zero", {limit} is "limit_"."""
    text = re.sub(r'"?\{(\w+)\}"?', r"\1_", text.lower())
    text = text.replace("what's", "what is").replace("n't", " not")
    return re.findall(r"[a-z_]+", re.sub(r"\d+", " zero ", text))


def stem(word):
    """A word without its ending."""
    for ending in ("ing", "ies", "ed", "es", "s", "ly"):
        if word.endswith(ending) and len(word) >= len(ending) + 3:
            return word[:-len(ending)]
    return word


class ModelHuman:
    """A model plays the human: brief, bound to the reference. Of pages a server's model sees both pictures."""

    def __init__(self, args, resources):
        self.args, self.environment = args, ENVIRONMENTS[args.domain]
        self.engine = resources.engine("simulator", args.simulator, args.simulator_name)
        self.screen = resources.screen() if is_url(args.simulator) else None

    async def reply(self, task, dialogue, key, counts):
        content = self.environment.model_human.format(reference=task["ground_truth"], dialogue=as_text(dialogue))
        if self.screen:
            from render import NO_PAGE, extract_page
            page = extract_page(dialogue[-1]["content"])
            if page is None:
                return NO_PAGE, None
            mine, reference = await in_threads(self.screen.render, page, task["ground_truth"])
            if not reference.png:
                raise Refused("the reference page cannot be rendered")
            if not mine.png:
                return "Your page could not be shown.", None
            content = [text_part(VISION_PROMPT.format(request=task["problem_description"])),
                       text_part("The assistant's page:"), picture_part(mine.png),
                       text_part("The page that you have in mind:"), picture_part(reference.png)]
        seed = derive_seed(self.args.seed, *key, "simulator", len(dialogue))
        text, asked, tokens = await ask(self.engine, content, seed, self.args.simulator_max_tokens)
        reply = (text or NO_REPLY)[:self.environment.reply_limit]
        counts["simulator_calls"] += asked - 1
        counts["simulator_tokens"] += tokens
        counts["unfinished_replies"] += text is None
        counts["leaks"] += leaks_code(reply, task["ground_truth"])
        return reply, None


def text_part(text):
    return {"type": "text", "text": text}


def picture_part(png):
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png).decode()}}


async def ask(engine, content, seed, max_tokens):
    """(what a model says after thinking, how often it was asked, tokens read and written); None for a lost thought.

    A model that reasons before it replies may run out of room inside the thought, which would tell the reference; its
    chat template may have opened the thought, so that any reply that was cut may be one. Such a reply is asked for
    again with more room.
    """
    tokens = 0
    for asked, room in enumerate((max_tokens, MORE_ROOM * max_tokens), 1):
        [response] = await engine.generate([{"role": "user", "content": content}], 1, seed, 0.0, room)
        tokens += response.prompt_tokens + response.tokens
        _, thought, said = response.text.rpartition("</think>")
        if said.strip() and "<think>" not in said and (thought or not response.cut):
            return said.strip(), asked, tokens
    return None, asked, tokens


def as_text(dialogue):
    """A dialogue as a model reads it that plays the human, or judges."""
    names = {"user": "Human", "assistant": "Assistant"}
    return "\n\n".join(f"{names[message['role']]}: {message['content']}" for message in dialogue)


def leaks_code(reply, reference):
    """Whether a simulator's reply contains code, or a line of the reference."""
    lines = map(str.strip, reference.splitlines())
    quoted = any(len(line) >= REFERENCE_QUOTE and line in reply for line in lines)
    return quoted or bool(CODE_SIGNS.search(reply))


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
                return line[:ENVIRONMENTS[task["domain"]].reply_limit], None


SIMULATORS = {"scripted": Scripted, "human": Person}    # --simulator; what is not in here is a ModelHuman


# ---------------------------------------------------------------------------------------------------------------------
# Best of N: step rewards. `await best(task, prompt, actions, key, counts)` gives the action to play; key: (task_id,
# sample, turn); counts as of simulators


class CriticReward:
    """The step reward of a trained critic: the advantage of Eq. 3, or its head's value."""

    def __init__(self, args, resources):
        from train_critic import Critic
        self.critic = Critic(args.critic, without_c=args.step_reward == "critic-without-c")
        resources.fingerprints["critic"] = fingerprint(args.critic)
        head = self.critic.note["head"]
        if self.critic.pictures or (head in ("value", "q")) != (args.step_reward == "value"):
            die(f"{args.critic}: --step-reward {args.step_reward} needs another critic than one for {head!r} or pages")

    async def best(self, task, prompt, actions, key, counts):
        turns = [(prompt, action.sampled(), task["ground_truth"]) for action in actions]
        scores = await asyncio.get_running_loop().run_in_executor(LocalEngine.pool, self.critic.advantages, turns)
        return actions[scores.index(max(scores))]


class JudgeReward:
    """The step reward of an LLM that compares two actions with the reference in view: a knock-out among the N."""

    def __init__(self, args, resources):
        self.engine, self.seed = resources.engine("judge", args.judge, args.judge_name), args.seed

    async def best(self, task, prompt, actions, key, counts):
        dialogue = as_text([message for message in prompt if message["role"] != "system"])
        contents = [parse_response(action.text)[0] for action in actions]

        async def better(i, j):
            """Which of the two stands first is drawn, since judges prefer a place."""
            seed = derive_seed(self.seed, *key, "judge", i, j)
            first, second = (i, j) if seed % 2 else (j, i)
            question = JUDGE_PROMPT.format(reference=task["ground_truth"], dialogue=dialogue, a=contents[first],
                                           b=contents[second])
            text, _, tokens = await ask(self.engine, question, seed, 64)
            counts["judge_tokens"] += tokens
            choice = verdict(text or "")
            counts["undecided"] += choice is None
            return second if choice == "B" else first

        left = list(range(len(actions)))
        while len(left) > 1:
            matches = [better(i, j) for i, j in zip(left[::2], left[1::2])]
            left = await asyncio.gather(*matches) + left[2 * len(matches):]
        return actions[left[0]]


def verdict(text):
    """A or B: what a judge's text begins with ("A.", "[A]", "A, because B ..."), else the one letter that it names."""
    begins = re.match(r"\W*([AB])(?: is\b|[^\w\s]|\s*$)", text)
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
                           needs=("facts",)),
    "frontend": Environment(AGENT_PAGES_MULTI_TURN, AGENT_PAGES_SINGLE_TURN, HUMAN_OF_PAGES, pages_human,
                            reply_limit=1000, pages=True),
}


# ---------------------------------------------------------------------------------------------------------------------
# Engines: `await generate(messages, n, seed, temperature, max_tokens)` gives n Responses, or raises Refused or Stop;
# close() ends it; a server's `name` is the model that answers there


class LocalEngine:
    """A model in this process. Requests wait for a thread that samples, so that the event loop stays free.

    A library has a load(path, args, cuda) of its own, and a sample(requests), which goes on with these and with those
    before: [(name, [(token ids, whether cut)])] of the requests that are finished.
    """
    pool = ThreadPoolExecutor(1)    # of all models: two of vLLM's on a CPU that sample at once corrupt its memory

    def __init__(self, path, name, role, args):
        import torch
        from train_critic import context_of, load_tokenizer
        self.tokenizer = load_tokenizer(path)
        cuda = torch.cuda.is_available()
        self.dtype = args.dtype
        if args.dtype == "auto":
            self.dtype = "bfloat16" if cuda else "float32"
        self.context = min(context_of(path) or 8192, args.max_model_len or (math.inf if cuda else 8192))
        self.asked, self.waiting, self.futures, self.driver, self.closed = 0, [], {}, None, False
        try:
            self.load(path, args, cuda)
        except Exception as error:    # of many kinds: a damaged model.safetensors is a SafetensorError
            die(f"{path}: no causal language model could be loaded from there by {self.library} "
                f"({first_line(error)}); --engine names another library, --max-model-len a shorter context")

    async def generate(self, messages, n, seed, temperature, max_tokens):
        prompt = encode_chat(self.tokenizer, messages)
        room = min(max_tokens, self.context - len(prompt))
        if room < 1:
            raise Refused(f"prompt of {len(prompt)} tokens does not fit the context of {self.context} tokens")
        self.asked += 1
        samples = await self.answer(SimpleNamespace(
            name=str(self.asked), prompt=prompt, room=room, n=n, seed=seed, temperature=temperature))
        thinks = self.tokenizer.decode(prompt[-8:]).rstrip().endswith("<think>")    # the template opened the thought
        return [Response(self.tokenizer.decode(ids, skip_special_tokens=True), ids, len(ids), len(prompt), cut, thinks)
                for ids, cut in samples]

    async def answer(self, request):
        self.waiting.append(request)
        self.futures[request.name] = future = asyncio.get_running_loop().create_future()
        if self.driver is None or self.driver.done():
            self.driver = asyncio.create_task(self.drive())
        return await future

    async def drive(self):
        """Sample while there is work."""
        while self.futures:
            await asyncio.sleep(0)    # whoever was just answered asks again
            requests, self.waiting = self.waiting, []
            try:
                finished = await asyncio.get_running_loop().run_in_executor(self.pool, self.sample, requests)
            except Exception as error:
                for future in self.futures.values():
                    future.set_exception(Stop(f"{self.library} failed: {first_line(error)}"))
                return
            for name, samples in finished:
                self.futures.pop(name).set_result(samples)

    def close(self):
        self.closed = True
        self.pool.submit(int).result()    # what is being sampled ends first


class VLLMEngine(LocalEngine):
    """vLLM with prefix caching: on CUDA its asynchronous engine, on a CPU one in this process."""
    library = "vLLM"

    def load(self, path, args, cuda):
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        settings = {}
        if not cuda:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")    # GiB
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
            # On a CPU a prompt must not be cut into chunks: after a chunk vLLM rewinds the seeded generator of the
            # request, which a CPU generator cannot do (RuntimeError: CPU Generator does not use offset).
            settings = {"enforce_eager": True, "enable_chunked_prefill": False,
                        "max_num_batched_tokens": max(16384, self.context)}
        self.in_process = os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"
        from vllm import AsyncEngineArgs, AsyncLLMEngine, LLMEngine, SamplingParams
        from vllm.sampling_params import RequestOutputKind
        self.params = partial(SamplingParams, output_kind=RequestOutputKind.FINAL_ONLY)
        self.engine = (LLMEngine if self.in_process else AsyncLLMEngine).from_engine_args(AsyncEngineArgs(
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
            self.engine.add_request(request.name, request.prompt, request.params)
        return [(result.request_id, self.samples(result)) for result in self.engine.step() if result.finished]

    def samples(self, result):
        outputs = sorted(result.outputs, key=lambda output: output.index)
        return [(list(output.token_ids), output.finish_reason == "length") for output in outputs]

    def close(self):
        super().close()
        (self.engine.engine_core if self.in_process else self.engine).shutdown()
        self.engine = None    # now: at the interpreter's end its own clean-up finds no module any more


class TransformersEngine(LocalEngine):
    """Plain batches through model.generate: what waits is sampled together to its end. Slower than vLLM.

    The same settings give the same texts again; a request's text depends on what shares its batch.
    """
    library, most_rows = "transformers", 64

    def load(self, path, args, cuda):
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging
        logging.disable_progress_bar()
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=self.dtype).to("cuda" if cuda else "cpu")
        ends = self.model.generation_config.eos_token_id
        if not isinstance(ends, list):
            ends = [ends]
        self.ends = [token for token in {self.tokenizer.eos_token_id, *ends} if token is not None]
        self.queue = []

    def sample(self, requests):
        """Of all that wait the first, and others that want as many texts at its temperature, most_rows texts in all."""
        import torch
        from torch.nn.utils.rnn import pad_sequence
        self.queue += requests
        first = self.queue[0]
        alike = [one for one in self.queue if (one.n, one.temperature) == (first.n, first.temperature)]
        batch = alike[:max(1, self.most_rows // first.n)]
        self.queue = [one for one in self.queue if one not in batch]
        prompts = [torch.tensor(request.prompt) for request in batch]
        ids = pad_sequence(prompts, batch_first=True, padding_value=-1, padding_side="left")
        ids = ids.repeat_interleave(first.n, 0).to(self.model.device)    # (R, T)
        torch.manual_seed(first.seed)
        out = self.model.generate(
            input_ids=ids.clamp(min=0), attention_mask=(ids >= 0).long(), do_sample=first.temperature > 0,
            temperature=first.temperature or 1.0, top_k=0, top_p=1.0, repetition_penalty=1.0,
            max_new_tokens=max(request.room for request in batch), eos_token_id=self.ends,
            pad_token_id=self.ends[0],
            stopping_criteria=[lambda ids, scores: torch.full((len(ids),), self.closed)])    # (R, T + new)
        rows = iter(out[:, ids.shape[1]:].tolist())
        return [(request.name, [self.until_end(next(rows)[:request.room]) for _ in range(first.n)])
                for request in batch]

    def until_end(self, ids):
        """(ids without the padding after an end of turn, whether there is none)."""
        for i, token in enumerate(ids):
            if token in self.ends:
                return ids[:i + 1], False
        return ids, True


class ServerEngine:
    """An OpenAI-compatible server.

    An error is this episode's (Refused: too long a prompt, a moderation, an odd reply) or the account's (Stop: a wrong
    key, no credit, no such model, a rejected parameter, no server; or ALIKE refusals in the same words with no answer
    between them). A busy server is asked again.
    """
    ALIKE = 8

    def __init__(self, url, name, role, args):
        import openai
        self.url, self.retries, self.alike, self.limit = url, args.retries, Counter(), "max_tokens"
        self.extra = getattr(args, f"{role}_extra_body".removeprefix("agent_"), None) or {}
        keys = [f"{role.upper()}_API_KEY"]
        if role == "agent" or urlsplit(url)[:2] == urlsplit(args.model)[:2]:
            keys += ["AGENT_API_KEY", "OPENAI_API_KEY"]    # which go to the agent's server only
        self.key = next((key for key in keys if os.environ.get(key)), f"{keys[0]}, which is not set")
        settings = {"base_url": url, "api_key": os.environ.get(self.key, "none"), "timeout": args.timeout}
        self.client = openai.AsyncOpenAI(max_retries=0, **settings)
        try:
            names = [name] if name else [model.id for model in openai.OpenAI(**settings).models.list()]
        except Exception as error:
            die(f"{url}: no list of models there ({refusal(error)[1]}); check the URL, or name the model")
        if len(names) != 1:
            die(f"{url} has several models: {', '.join(names)}; choose one with --model-name (or --{role}-name)")
        self.name = names[0]

    async def generate(self, messages, n, seed, temperature, max_tokens):
        responses = []
        while len(responses) < n:    # some servers give one choice however many are asked for
            request = {"model": self.name, "messages": messages, "temperature": temperature, "top_p": 1,
                       self.limit: max_tokens, "seed": (seed + len(responses)) % (1 << 31)}
            if n > 1 and not responses:
                request["n"] = n
            responses += await self.ask(request | self.extra)
        return responses[:n]

    async def ask(self, request, attempt=0):
        """The Responses to one request; raises Refused or Stop. A parameter that is None is not sent."""
        sent = {name: value for name, value in request.items() if value is not None}
        try:    # chat.completions.create() takes twice the time: it checks every message
            responses = self.responses(await self.client.post("/chat/completions", body=sent, cast_to=object))
            self.alike.clear()
            return responses
        except Exception as error:
            status, said = refusal(error)
            busy = (status >= 500 or status in (408, 409, 425, 429)) and "billing" not in said
            if busy and attempt < self.retries:
                wait = min(60, 0.5 * 2 ** attempt)
                with suppress(AttributeError, LookupError, ValueError):
                    wait = max(wait, float(error.response.headers["retry-after"]))
                await asyncio.sleep(wait)
                return await self.ask(request, attempt + 1)
            if "max_tokens" in sent and "max_completion_tokens" in said and "context" not in said:
                self.limit = "max_completion_tokens"    # most servers call it max_tokens
                return await self.ask(request | {"max_tokens": None, self.limit: sent["max_tokens"]})
            if "n" in sent:    # servers refuse n > 1 each in their own words
                return await self.ask(request | {"n": None})
            raise self.final(status, said) from error

    def responses(self, answer):
        """The Responses of a chat completion. One that says no is Refused; rubbish raises anything else."""
        if answer.get("error") and not answer.get("choices"):
            raise Refused(first_line(answer["error"]["message"]))
        usage, responses = answer.get("usage") or {}, []
        for choice in answer["choices"]:
            message, why = choice["message"], choice.get("finish_reason")
            text = message.get("content")
            if isinstance(text, list):
                text = "".join(part.get("text") or "" for part in text)
            if text is None and (message.get("refusal") or message.get("tool_calls")):
                raise Refused(first_line(message.get("refusal") or "the model calls a tool instead of speaking"))
            if text is None and why not in ("length", "content_filter"):    # a hidden thought may take all the room
                raise TypeError("no content")
            responses.append(Response(text or "", prompt_tokens=usage.get("prompt_tokens") or 0, cut=why == "length"))
        if not responses:
            raise TypeError("no choices")
        responses[0].tokens = usage.get("completion_tokens") or 0    # of all of them together
        return responses

    def final(self, status, said):
        """This episode's error, or the account's."""
        self.alike[re.sub(r"\d+", "0", said)] += 1
        if status == 401:
            return Stop(f"{self.url} refused the key in the environment variable {self.key} ({said})", 2)
        if status == 404:
            return Stop(f"{self.url} has no model {self.name!r}, or is no OpenAI-compatible address ({said})", 2)
        if status in (400, 422) and re.search(r"temperature|top_p|\bseed\b", said):
            return Stop(f"{self.url} rejects a parameter ({said}); null in --extra-body leaves it out", 2)
        if status in (402, 599) or "billing" in said:
            return Stop(f"{self.url} failed: {said}")
        if max(self.alike.values()) >= self.ALIKE:
            return Stop(f"{self.url}: {self.ALIKE} requests in a row met the same problem ({said})")
        return Refused(said)

    def close(self):
        pass


def refusal(error):
    """(HTTP status, what is wrong): 200 for a reply that says no, 502 for rubbish, 599 for no reply at all."""
    if isinstance(error, Refused):
        return 200, str(error)
    if hasattr(error, "status_code"):
        said = error.body.get("message") if isinstance(error.body, dict) else error.body
        return error.status_code, f"HTTP {error.status_code}: {first_line(said or error.response.text)}"
    if error.__cause__:    # the library's APIConnectionError
        return 599, first_line(error.__cause__)
    return 502, f"no chat completion ({type(error).__name__}: {first_line(error)})"


ENGINES = {"vllm": VLLMEngine, "transformers": TransformersEngine, "server": ServerEngine}


def engine_of(spec, args):
    """The name of the engine that runs a model: vLLM for local ones, wherever it is installed."""
    if is_url(spec):
        return "server"
    if args.engine != "auto":
        return args.engine
    return "vllm" if importlib.util.find_spec("vllm") else "transformers"


def make_engine(spec, name, role, args):
    """The engine for a model: a folder, hub name or URL.

    name: the model's on a server, None for the only one there; role: agent, simulator or judge, for a server's key;
    args: the flags of engine_flags, and for another role than the agent args.model.
    """
    return ENGINES[engine_of(spec, args)](spec, name, role, args)


def engine_flags(parser):
    add = parser.add_argument_group("engines, for local models").add_argument
    add("--engine", default="auto", choices=["auto", *(name for name in ENGINES if name != "server")],
        help="auto = vllm where it is installed, else a plain, slower engine on transformers (default: auto)")
    add("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"],
        help="auto = float32 on CPU, bfloat16 on CUDA (default: auto)")
    add("--max-model-len", type=SIZE, default=0,
        help="tokens of context; 0 = the model's own, on a CPU at most 8192 (default: 0)")
    add("--gpu-memory-utilization", type=number(above=0, most=1), default=0.9, help="vLLM: share of each "
        "GPU's memory (default: 0.9); several local models share a GPU and need a smaller share each")
    add("--tensor-parallel-size", type=COUNT, default=1, help="vLLM: GPUs per copy (default: 1)")
    add("--data-parallel-size", type=COUNT, default=1, help="vLLM: copies of the model (default: 1)")
    add = parser.add_argument_group(
        "servers", "Keys come from the environment: AGENT_API_KEY or OPENAI_API_KEY for the agent, SIMULATOR_API_KEY "
        "for the simulator, JUDGE_API_KEY for the judge. The last two may be missing where the server is the agent's; "
        "the agent's key goes to no other host.").add_argument
    add("--extra-body", type=json.loads, help="JSON: what else each request to the agent's server says: "
        "top_k, repetition_penalty, reasoning_effort, chat_template_kwargs; null leaves out what is said otherwise: "
        "temperature, top_p (1), seed, max_tokens")
    add("--timeout", type=number(above=0), default=300.0, help="seconds for a server's answer (default: 300)")
    add("--retries", type=SIZE, default=8, help="further tries when a server is busy or talks rubbish, the last ones a "
        "minute apart (default: 8)")


def is_url(spec):
    return str(spec).startswith(("http://", "https://"))


def encode_chat(tokenizer, messages):
    """Prompt token ids by the model's own chat template, as the trainers make them."""
    from train_critic import render_prompt
    return tokenizer(render_prompt(tokenizer, messages), add_special_tokens=False)["input_ids"]


class Resources:
    """What simulators and step rewards may ask for: models, each loaded once, and browsers."""

    def __init__(self, args):
        self.args, self.engines, self.browsers = args, {}, None
        self.fingerprints = {}    # of the models: a digest of the folder; a hub name; what a server calls it

    def engine(self, role, spec, name):
        """The engine of a model. Roles share a local model; to a server each goes with its own key."""
        key = (spec, name, role) if is_url(spec) else spec
        if key not in self.engines:
            self.engines[key] = make_engine(spec, name, role, self.args)
        digest = fingerprint(spec)
        if is_url(spec):
            digest = self.engines[key].name
            print(f"{role}: {digest} at {spec}")
        self.fingerprints["model" if role == "agent" else role] = digest
        return self.engines[key]

    def screen(self):
        """Two browsers, in which the human sees pages; None where there are no pages to see."""
        if self.browsers is None and ENVIRONMENTS[self.args.domain].pages and self.args.max_turns > 1:
            from render import Renderer
            try:
                self.browsers = Renderer(browsers=2)
            except RuntimeError as problem:
                die(str(problem))
            # Samples of a task show the same pages again.
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
    plays = what_to_play(args)
    output = Output(args.out, *settings_of(args), args.overwrite, TURN_KEY if args.candidates else EPISODE_KEY)
    failed = set()
    if args.retry_errors and output.done:
        failed = {output.key_of(record) for record in output.records() if record.get("finish", "").startswith("error")}
    done = output.done - failed
    todo = [play for key, play in plays.items() if key not in done]
    if todo:
        roll_out(args, todo, output, failed)
    else:
        print(f"{args.out}: nothing left to do, {len(done)} records")
    if not args.out.exists():
        die("all requests were refused, see above", 1)
    place = {key: n for n, key in enumerate(plays)}
    output.sort(lambda *key: place.get(key, len(place)))    # what --limit or --samples now leaves out comes last
    totals = report(output)
    with atomic_write(sign_of_end(args.out)) as part:
        part.write_text(json.dumps(totals, indent=1) + "\n")
    if not args.candidates:
        print(f"next: python evaluate.py --in {shlex.quote(str(args.out))}")
    errors = len(plays.keys() - output.done) + totals["error"]
    if todo and errors:
        die(f"{errors} failed, see above; the same command with --retry-errors asks for them again", 1)


def what_to_play(args):
    """{the key of each record to make: the arguments of episode() or candidates() that make it}."""
    records = list(read(args.input, args.kind, args.domain, unique=True, each=partial(check, args)))
    records = records[:max(1, round(args.fraction * len(records)))][:args.limit or None]
    plays, episodes = {}, Counter()    # episodes of each task, so far
    if args.kind == "task":
        given = {"system": system_prompt(args), "max_turns": args.max_turns}
        for sample in range(args.samples):
            for task in records:
                plays[task["task_id"], sample] = given | {"task": task, "sample": sample}
        return plays
    for record in records:
        task_id = record["task_id"]
        if args.kind == "trajectory":
            for turn in range(len(agent_turns(record["dialogue_history"]))):
                plays[task_id, record["sample"], turn] = {"trajectory": record, "turn": turn}
        else:
            for given in continuations(record, args.continue_, record.get("max_turns") or args.max_turns):
                plays[task_id, episodes[task_id]] = given | {"sample": episodes[task_id]}
                episodes[task_id] += 1
    return plays


def check(args, record):
    """A record, if it can be played; `read` says what is wrong together with the line."""
    if args.kind == "trajectory" and not record["dialogue_history"]:
        raise ValueError("'dialogue_history' is empty")
    if args.kind == "candidates" and record["turn"] >= (record.get("max_turns") or args.max_turns):
        raise ValueError(f"turn {record['turn']} is beyond --max-turns {args.max_turns}")
    if args.kind == "trajectory" or args.simulator != "scripted" or args.max_turns == 1:
        return record
    for key in ENVIRONMENTS[args.domain].needs:
        if key not in record.get("task", record):
            raise ValueError(f"the task has no {key!r}, from which the scripted simulator answers; give a model or URL "
                             "with --simulator")
    return record


def roll_out(args, todo, output, failed):
    """Open the models and play what is left to do; failed: records that it replaces."""
    person = args.simulator == "human" and not args.candidates
    usual = 32 if is_url(args.model) else IN_FLIGHT * args.data_parallel_size
    concurrency = 1 if person else args.concurrency or usual
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
            before = next(output.records()).get("fingerprints")
            if before != resources.fingerprints:    # a server's only model, which no setting names
                die(f"{args.out}: its records were made by {before}, now it would be {resources.fingerprints}; use "
                    "--overwrite or another --out")
        sign_of_end(args.out).unlink(missing_ok=True)
        if failed:
            output.sort(lambda *key: None if key in failed else 0)    # without them
            output.done -= failed
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
    """({setting: value}, {flag: file or model}): what decides the content of the output."""
    settings = dict(vars(args))
    inputs = {f"--{name}": settings.pop(name) for name in ("model", "simulator", "judge", "critic")}
    inputs["--in"] = settings.pop("input")
    prompts = [*ENVIRONMENTS[args.domain][:3], VISION_PROMPT, JUDGE_PROMPT, NO_REPLY, NO_ACTION]
    settings["prompts"] = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]
    settings["engine"] = engine_of(args.model, args)
    for name in ("out", "overwrite", "run_name", "split", "limit", "samples", "fraction", "retry_errors",
                 "concurrency", "timeout", "retries", "gpu_memory_utilization", "tensor_parallel_size",
                 "data_parallel_size"):    # where it goes, how much of it, how fast
        del settings[name]
    # A server may come back at another address: what model it has is in the records' fingerprints.
    return settings, {flag: path for flag, path in inputs.items() if path and not is_url(path)}


def parse_args():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = p.add_argument_group("what to roll out, and where it goes").add_argument
    add("--run-name", default="default", help="outputs go to runs/RUN_NAME (default: default)")
    add("--domain", default="backend", choices=list(ENVIRONMENTS), help="kind of task (default: backend)")
    add("--split", default="train", help="train, val or test: names the default input and output (default: train)")
    add("--in", dest="input", help="the file that is played (default: data/DOMAIN/SPLIT.jsonl; in runs/RUN_NAME "
        "with --candidates SPLIT.scored.jsonl, with --continue SPLIT.candidates.jsonl)")
    add("--out", help="the file to write (default: in runs/RUN_NAME SPLIT.trajectories.jsonl, with --candidates "
        "SPLIT.candidates.jsonl, with --continue SPLIT.continuations.jsonl)")
    add("--overwrite", action="store_true", help="start again instead of continuing the output")
    add("--retry-errors", action="store_true", help="play the episodes of the output again that ended in an error")
    add("--limit", type=SIZE, default=0, help="the first so many tasks, trajectories or turns; 0 = all (default: 0)")
    add("--concurrency", type=SIZE, default=0, help="episodes (or turns) in flight; 0 = 32 with a server as the agent, "
        f"else {IN_FLIGHT} times --data-parallel-size (default: 0)")
    add("--fraction", type=number(above=0, most=1), default=1.0,
        help="share of the input, its first records (default: 1; released code for --candidates: 0.1)")
    add = p.add_argument_group("episodes").add_argument
    add("--samples", type=COUNT, default=1, help="episodes per task (default: 1)")
    add("--max-turns", type=COUNT, default=10, help="agent turns; 1 = answer at once, no questions (default: 10; with "
        "--continue as many as the episode that is continued had)")
    add("--seed", type=int, default=0, help="seed of all sampling (default: 0)")
    add("--best-of-n", type=COUNT, default=1, help="sample so many actions a turn, play the best (default: 1)")
    add("--step-reward", default="critic", choices=list(STEP_REWARDS), help="what picks the best: the critic's "
        "advantage with or without c, a value head, or an LLM (default: critic)")
    add("--critic", help="folder of the critic or value model (default: runs/RUN_NAME/critic)")
    group = p.add_argument_group("candidate actions, and what they are worth, instead of episodes from the start")
    add = group.add_mutually_exclusive_group().add_argument
    add("--candidates", type=number(int, least=2), default=0,
        help="sample so many actions at every turn of given trajectories (paper: 16)")
    add("--continue", dest="continue_", type=COUNT, default=0, metavar="TIMES",
        help="play every candidate of a candidates file to the end so many times: the Monte-Carlo return of each")
    add = p.add_argument_group(
        "models", "A folder, a hub name, or the URL of an OpenAI-compatible server, such as http://localhost:8000/v1. "
        "Roles with the same model share it.").add_argument
    add("--model", help="the agent (default: runs/RUN_NAME/base)")
    add("--temperature", type=number(least=0), default=1.0, help="of the agent's sampling; 0 = greedy (default: 1)")
    add("--max-tokens", type=COUNT, default=1024, help="new tokens per response of the agent (default: 1024)")
    add("--simulator", default="scripted",
        help="scripted, human (you), or the model that plays the human (default: scripted)")
    add("--simulator-max-tokens", type=COUNT, default=256, help="new tokens per reply of a model; eight times as many "
        "where these are not enough, as for one that thinks (default: 256)")
    add("--judge", help="the judge of --step-reward judge (default: the agent itself)")
    add("--model-name", help="the agent's name on its server (default: the only model there)")
    add("--simulator-name", help="the simulator's name on its server (default: the only model there)")
    add("--judge-name", help="the judge's name on its server (default: the only model there)")
    add("--simulator-extra-body", type=json.loads, help="--extra-body of the simulator's server")
    add("--judge-extra-body", type=json.loads, help="--extra-body of the judge's server")
    engine_flags(p)
    args = p.parse_args()
    if args.temperature == 0 and max(args.candidates, args.best_of_n, args.samples, args.continue_) > 1:
        die("--temperature 0 gives the same action every time: more than 1 of --candidates, --best-of-n, --samples or "
            "--continue needs a higher one")

    runs = Path("runs") / args.run_name
    args.kind, source, out = "task", Path("data") / args.domain / f"{args.split}.jsonl", "trajectories"
    if args.candidates:
        args.kind, source, out = "trajectory", runs / f"{args.split}.scored.jsonl", "candidates"
    elif args.continue_:
        args.kind, source, out = "candidates", runs / f"{args.split}.candidates.jsonl", "continuations"
    args.input = Path(args.input or source)
    args.out = Path(args.out or runs / f"{args.split}.{out}.jsonl")
    base = str(runs / "base")
    args.model = args.model or base
    if args.model == base and not Path(base).exists():
        die(f"{base}: no such model; name one with --model, or make the tiny one with: python train_policy.py "
            f"--method sft --model tiny --in data/{args.domain}/demonstrations.jsonl --out {base}")
    if args.best_of_n > 1:
        if args.step_reward == "judge":
            args.judge = args.judge or args.model
        elif STEP_REWARDS[args.step_reward] is CriticReward:
            args.critic = args.critic or str(runs / "critic")
    if args.judge == args.model:
        args.judge_name = args.judge_name or args.model_name
    if args.simulator == args.model:
        args.simulator_name = args.simulator_name or args.model_name
    return args


if __name__ == "__main__":
    try:
        main()
    except (Stop, OSError) as problem:    # OSError: the disk is full, while the finished file is sorted
        die(f"{problem}; finished records are saved, and the same command, without --overwrite, continues",
            getattr(problem, "code", 1))
    except KeyboardInterrupt:
        die("stopped; finished records are saved, and the same command, without --overwrite, continues", 130)
