"""Rollouts: play episodes between an agent and a human, or sample candidate actions for recorded turns.

An episode starts with a vague request o_1. At turn t the agent sees the dialogue o_t and acts with a text a_t. The
human, who knows the hidden reference c, replies. An episode has at most --max-turns agent turns.

--candidates n plays no episodes. It samples n actions a_t ~ pi(. | o_t) at every agent turn of recorded trajectories,
which train_critic.py --score then ranks. --continue k plays every such candidate to the end k times. The mean reward
is the Monte-Carlo return Q(o_t, a_t), which can rank candidates without a critic, or measure a critic.

Protocol. A response may begin with a thought that ends at "OUTPUT:", or that stands between marks such as <think> and
</think> (THOUGHTS in records.py). Only the text after the thought enters the dialogue. Everything after the first
"I WANT TO ANSWER:" is the final answer. If the last turn has no such mark, its whole content is the answer.

Who plays. The agent (--model) is a folder, a hub name, or the URL of an OpenAI-compatible server; engines.py samples.
The human (--simulator) is scripted or a model; human.py has both. "human" is you at the terminal, on either side. Each
episode is a coroutine. Episodes never wait for each other: the engine batches whatever requests are pending. A reply of
the agent or the human that is cut inside its thought is sampled again, with eight times the token limit. If that is cut
as well, a neutral sentence takes its place (a candidate is dropped) and the record counts it.

Best-of-N (--best-of-n, Fig. 3a of the paper). At each turn N actions are sampled and a step reward picks one: the
critic's advantage A(o_t, a_t, c) (Eq. 3) with or without c, a value head, or an LLM judge in a knockout of pairs.

Seeds. Each request has its own seed, a hash of (--seed, task, sample, turn). With vLLM on a CPU the file is the same at
any --concurrency and after a kill; engines.py says what other engines promise.

Failures. If one request fails (prompt too long, content policy, malformed reply), its episode ends with finish
"error: ...", the others go on, and the exit code is 1, also of a rerun. --retry-errors plays such episodes again. The
run stops if no request can succeed. After any stop, the same command without --overwrite resumes.

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
    python rollout.py --split test --model human --limit 1 --out runs/default/me.trajectories.jsonl
    python rollout.py --split train --samples 3 --model meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 8 \\
        --simulator http://localhost:8001/v1
    python rollout.py --split test --model https://api.openai.com/v1 --model-name gpt-4o --concurrency 32
"""
import argparse
import asyncio
import hashlib
import inspect
import json
import logging
import re
import sys
import time
from collections import Counter
from contextlib import closing
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from engines import (
    COUNT, IN_FLIGHT, SIZE, LocalEngine, derive_seed, engine_flags, engine_of, is_url, json_object, make_engine,
    refuse_idle_engines, sample_with_room)
from human import (
    HUMAN_OF_FUNCTIONS, HUMAN_OF_PAGES, NO_REPLY, SIMULATORS, VISION_PROMPT, ModelHuman, PersonAsAgent, ask, as_text,
    fill, functions_human, pages_human, prompt_of_human, shortened)
from listener import MANNERS
from records import (
    ANSWER_MARK, EPISODE_KEY, ID, OUTPUT_MARK, SCHEMA, TURN_KEY, Output, die, fingerprint, mended, number, read,
    refuse_idle, reward, run_script, schema_errors, sign_of_end, write_json)
from server import CODE, UNKNOWN_MARK, Refused, Response, Stop, without_secrets, without_thoughts

NO_ACTION = "Sorry, I have lost my thread."    # replaces an action that was cut inside its thought
EPISODE_COSTS = ("sampled_tokens", "simulator_calls", "simulator_tokens", "judge_tokens")
# Problems counted in each episode: actions cut at --max-tokens, actions and human's replies cut inside their thought,
# replies longer than the environment allows, texts with an unknown mark of a thought, comparisons left to chance.
COUNTERS = ("cut", "unfinished_actions", "unfinished_replies", "shortened_replies", "unknown_marks", "undecided")
# Keys of a trajectory that its candidates records drop. Unknown keys are kept.
DROPPED_KEYS = {"dialogue_history", "system", "answer", "finish", "model", "simulator", "seed", "cost", "fingerprints",
                *COUNTERS, "reward", "released_reward", "tests", "mode", "call_timeout", "program_timeout", "sandbox",
                "cosine", "choices", "page", "encoder", "reward_from"}


# ---- Episodes and candidates


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
            short = shortened(reply, ENVIRONMENTS[task["domain"]].reply_limit)
            counts["shortened_replies"] += short != reply
            dialogue.append({"role": "user", "content": short})
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
    counts["unknown_marks"] = sum(bool(UNKNOWN_MARK.search(message["content"])) for message in dialogue[1:])
    record = {"task_id": task["task_id"], "sample": sample, "domain": task["domain"], "task": task, "system": system,
              "max_turns": max_turns, "dialogue_history": dialogue, "answer": answer, "finish": finish,
              "cost": {name: counts[name] for name in EPISODE_COSTS}}
    return record | dict(extra) | problems(counts)


def agent_turns(dialogue):
    """Indices of the agent's messages."""
    return [i for i, message in enumerate(dialogue) if message["role"] == "assistant"]


def mark_pattern(mark):
    """How models write a mark: as it is; at the start of a line also without colon; alone there, in any case."""
    words = re.escape(mark.rstrip(":"))
    start, end = r"^[ \t*_#>-]*", r"[ \t*_]*"
    alone = rf"(?i:{start}[\"'`]?{words}{end}(?::[\"'`*_]*|[\"'`*_]*$))"
    return rf"[*_]*{words}{end}:[*_]*|{start}{words}\b{end}(?::[*_]*)?|{alone}"


MARKS = re.compile(f"(?P<output>{mark_pattern(OUTPUT_MARK)})|(?P<answer>{mark_pattern(ANSWER_MARK)})", re.M)
QUOTED = re.compile(    # but not a whole line
    r"""(?m)(?<!^)("[^"\n]*"|`[^`\n]+`|“[^”\n]*”|(?<!\w)'[^'\n]*'(?!\w))|"[^"\n]*"(?=.)""")


def parse_response(text):
    """Split a response into (content, which enters the dialogue; answer or None).

    The thought ends where its marks say so, or at OUTPUT:. The answer is everything after the first I WANT TO ANSWER:
    that follows. A mark in quotes is only talked about. A thought may mention the answer's mark: if a later line begins
    with OUTPUT:, the thought ends there, unless there is code between the two. If only prose follows the mark, and code
    stands before it, that code is the answer.
    """
    text = without_thoughts(text)[0]
    unquoted = QUOTED.sub(lambda quote: "." * len(quote[0]), text)
    begin, answer = 0, None
    for mark in MARKS.finditer(unquoted):
        if mark["answer"]:
            answer = answer or mark
        elif answer is None:
            line_before = unquoted[begin:mark.start()].strip().rpartition("\n")[2]
            if not re.match(r"\W*input\b", line_before, re.I):    # an example of input and output
                begin = mark.end()
        elif unquoted[mark.start() - 1] == "\n" and not CODE.search(text, answer.end(), mark.start()):
            begin, answer = mark.end(), None
    content = text[begin:].strip()
    if answer is None:
        return content, None
    before, after = text[begin:answer.start()].strip(), text[answer.end():].strip()
    return content, before if after and CODE.search(before) and not CODE.search(after) else after


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
    if totals["unknown_marks"]:
        print(f"warning: {totals['unknown_marks']} texts hold marks that look like a thought's and are not in THOUGHTS "
              "(records.py); what stands between them was shown")
    return totals


def messages_before(system, dialogue):
    """The agent's prompt: its instructions and the dialogue so far, reduced to roles and contents."""
    messages = [{"role": message["role"], "content": message["content"]} for message in dialogue]
    return [{"role": "system", "content": system}, *messages] if system else messages


# ---- Environments: everything that depends on the domain. To add one, add a row here and one in evaluate.py.


class Environment(NamedTuple):
    multi_turn: str          # the agent's instructions, with {max_turns} and {stylesheet}
    single_turn: str         # the same for --max-turns 1
    model_human: str         # prompt of a model that plays the human, with {reference} and {dialogue}
    scripted_human: object   # await scripted_human(task, dialogue, screen) -> (reply, details revealed or None)
    reply_limit: int         # maximum length of the human's reply, in characters
    needs: tuple = ()        # keys of a task that the scripted human reads
    pages: bool = False      # whether the agent writes web pages, which the human sees as pictures


# ---- Step rewards, for best-of-N: `await best(task, prompt, actions, key, counts)` returns the action to play.
# key: (task_id, sample, turn). counts: the episode's Counter, as in simulators.


class CriticReward:
    """The step reward of a trained critic: the advantage of Eq. 3, or the value of its head."""

    def __init__(self, args, resources):
        from train_critic import Critic
        try:
            self.critic = Critic(args.critic, without_c=args.step_reward == "critic-without-c")
        except ValueError as error:
            die(error)
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
    ROOM = 512    # token limit of a verdict with its reasons

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
            question = fill(JUDGE_PROMPT, reference=task["ground_truth"], dialogue=dialogue, a=contents[first],
                            b=contents[second])
            choice = verdict(await ask(self.engine, question, seed, self.ROOM, counts, "judge") or "")
            counts["undecided"] += choice is None
            return second if choice == "B" else first

        remaining = [contents.index(text) for text in dict.fromkeys(contents)]    # each text once
        while len(remaining) > 1:
            matches = [better(i, j) for i, j in zip(remaining[::2], remaining[1::2])]
            remaining = await asyncio.gather(*matches) + remaining[2 * len(matches):]
        return actions[remaining[0]]


NAMED = r"(?:(?:the )?(?:\w+ )?(?:message|option|response|candidate|reply|one|question) )?[\[(\"']*([AB])\b"
VERDICTS = re.compile("|".join([
    # "Answer: A", "my verdict is [B]", "therefore A."
    r"\b(?:answer|verdict|choice|winner|decision|conclusion|preference|pick|vote|judge?ment|so|therefore|thus|hence)"
    rf"(?: is| would be| goes to)?\s*[,:=—-]?\s+{NAMED}(?=[^\w\s]|\s*$)",
    # "the better message is B", "best: A"
    rf"\b(?:better|best|stronger|preferred|winning|closer|right)(?: (?!than)\w+){{0,2}} (?:is|would be) {NAMED}",
    rf"\b(?:better|best|stronger|preferred|winning)(?: message| one| option)?: {NAMED}",
    # "I prefer B"
    r"(?<!not )\b(?:prefer|choose|chose|pick|select|vote for|go with|going with|favou?r|lean(?:ing)? (?:to|towards?)"
    rf"|take|recommend|settle on)\s+{NAMED}(?! (?:and|or)\b)",
    # "A is closer", "B moves the assistant closer", "A wins", "A > B", "A is worse than B"
    r"\b([AB])[\])\"']*,?(?: (?:is|seems|looks|appears|would|feels|does|brings|gets|moves|comes|helps|leads|it|the"
    r"|to|be|clearly|much|far|a|bit|slightly|definitely|probably|assistant|us|them|more)\b){1,6} ?"
    r"(?:better|best|closer|stronger|preferable|superior|winner|useful|helpful|one)\b",
    r"\b([AB])[\])\"']* wins\b", r"\b([AB])\s*(?:>|over|rather than)\s*[AB]\b",
    r"\b[AB] (?:is|seems|looks) (?:\w+ )?(?:worse|weaker|less \w+) than ([AB])\b", r"^\W*([AB])\W*$"]), re.I | re.M)


def verdict(text):
    """The A or B of a judge: its last explicit verdict, or the letter it begins with, or the only one; else None."""
    text = re.sub(r"[*_`]", "", text)
    for found in reversed(list(VERDICTS.finditer(text))):
        letter = next(filter(None, found.groups()))
        if letter.isupper():
            return letter
    begins = re.match(r"\W*([AB])(?: is\b|[^\w\s]|\s*(?:\n|$))", text)
    if begins:
        return begins[1]
    named = set(re.findall(r"\b[AB]\b", text))
    return named.pop() if len(named) == 1 else None


STEP_REWARDS = {"critic": CriticReward, "critic-without-c": CriticReward, "value": CriticReward, "judge": JudgeReward}


# ---- Prompts

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

JUDGE_PROMPT = """A human wants what is described here, and has exactly this in mind:

{reference}

The assistant cannot see it and must find out by asking. The dialogue so far:

{dialogue}

Two possible next messages of the assistant:

[A]
{a}

[B]
{b}

A message with the line "I WANT TO ANSWER:" ends the dialogue: what follows the line is the final answer, and nothing \
can be asked any more. Which message brings the assistant closer to the right final answer? Reply with one letter, \
A or B."""

ENVIRONMENTS = {
    "backend": Environment(AGENT_MULTI_TURN, AGENT_SINGLE_TURN, HUMAN_OF_FUNCTIONS, functions_human, reply_limit=400,
                           needs=("facts",)),
    "frontend": Environment(AGENT_PAGES_MULTI_TURN, AGENT_PAGES_SINGLE_TURN, HUMAN_OF_PAGES, pages_human,
                            reply_limit=1000, pages=True),
}


class Resources:
    """What the agent, simulator and step reward share: models, each loaded once, and browsers."""

    def __init__(self, args):
        self.args = args
        self.environment = ENVIRONMENTS[args.domain]
        self.engines = {}
        self.browsers = None
        self.fingerprints = {}    # role -> digest of the model's folder, its hub name, or its name on a server

    def engine(self, role, spec, name):
        """The engine of a model. Roles share a local model. On a server each role has its own engine, with its key."""
        key = role if is_url(spec) else spec
        if key not in self.engines:
            self.engines[key] = PersonAsAgent() if spec == "human" else make_engine(spec, name, role, self.args)
        digest = fingerprint(spec)
        if is_url(spec):
            digest = self.engines[key].name
            print(f"{role}: {digest} at {without_secrets(spec)}")
        self.fingerprints["model" if role == "agent" else role] = digest
        return self.engines[key]

    def screen(self):
        """Two browsers that render pages for the human; None if the human sees no pages."""
        if self.environment.pages and self.args.max_turns > 1:
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


# ---- The run and its command line


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
    if not args.candidates:
        print(f"next: python evaluate.py --in {args.out}")
    errors = len(jobs.keys() - output.done) + totals["error"]
    if errors:
        sign_of_end(args.out).unlink(missing_ok=True)
        die(f"{errors} failed, see above; add --retry-errors to the same command to try them again", 1)
    write_json(sign_of_end(args.out), totals)


def what_to_play(args):
    """{key of each record to make: the arguments of episode() or candidates() that make it}."""
    records = list(read(args.input, args.kind, args.domain, unique=True, each=partial(check, args)))
    if args.per_task:
        records = best_of_tasks(records, args.per_task)
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


def best_of_tasks(trajectories, count):
    """The `count` trajectories of highest reward of each task, in file order; of equal ones the first."""
    tasks = {}
    for place, record in enumerate(trajectories):
        tasks.setdefault(record["task_id"], []).append((-(record["reward"] or 0), place))
    return [trajectories[place] for place in sorted(place for task in tasks.values()
                                                    for _, place in sorted(task)[:count])]


def check(args, record):
    """The record, without nulls; raises ValueError if it cannot be played, which `read` reports with its line."""
    record = mended(record) if args.kind == "task" else record
    shape = CONTINUED if args.continue_ else {"reward": reward} if args.per_task else {}
    for problem in schema_errors(record, shape):
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
    person = "human" in (args.simulator, args.model)
    concurrency = args.concurrency or (32 if is_url(args.model) else IN_FLIGHT * args.data_parallel_size)
    if person:
        concurrency = 1
    with closing(Resources(args)) as resources:
        agent = resources.engine("agent", args.model, args.model_name)
        made_by = {"model": args.model_name or without_secrets(args.model), "fingerprints": resources.fingerprints}
        play = partial(candidates, args, agent)
        if not args.candidates:
            simulator = SIMULATORS.get(args.simulator, ModelHuman)(args, resources)
            resources.fingerprints.setdefault("simulator", args.simulator)
            step_reward = STEP_REWARDS[args.step_reward](args, resources) if args.best_of_n > 1 else None
            made_by |= {"simulator": args.simulator_name or without_secrets(args.simulator), "seed": args.seed}
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
        prompt = fill(prompt, stylesheet=TAILWIND_TAG)
    return fill(prompt, max_turns=args.max_turns)


def settings_of(args):
    """({setting: value}, {flag: file or model}): everything that decides the content of the output."""
    settings = dict(vars(args))
    inputs = {f"--{name}": settings.pop(name.replace("-", "_"))
              for name in ("model", "simulator", "simulator-prompt", "judge", "critic")}
    inputs["--in"] = settings.pop("input")
    prompts = [*ENVIRONMENTS[args.domain][:3], VISION_PROMPT, JUDGE_PROMPT, NO_REPLY, NO_ACTION]
    settings["prompts"] = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]
    settings["engine"] = engine_of(args.model, args)
    if args.best_of_n > 1 and STEP_REWARDS[args.step_reward] is CriticReward:
        from train_critic import code_of, last_of_turn, turn_advantages
        settings |= code_of(turn_advantages, last_of_turn)
    for name in ("out", "overwrite", "run_name", "split", "limit", "samples", "fraction", "per_task",
                 "retry_errors", "concurrency", "timeout", "retries", "gpu_memory_utilization", "tensor_parallel_size",
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
    group.add_argument("--per-task", type=SIZE, default=0, help="--candidates: only at the turns of each task's "
                       "PER_TASK trajectories of highest reward, which hold the late turns that most lack; 0 = all "
                       "(default: 0)")
    add = p.add_argument_group(
        "models", "A folder, a hub name, or the URL of an OpenAI-compatible server, such as http://localhost:8000/v1. "
        "Roles with the same model share it.").add_argument
    add("--model", help="the agent; human = you, at the terminal (default: runs/RUN_NAME/base)")
    add("--temperature", type=number(least=0), default=1.0, help="the agent's temperature; 0 = greedy (default: 1)")
    add("--max-tokens", type=COUNT, default=1024, help="token limit of an agent's response; eight times "
        "as many for one that is cut inside its thought (default: 1024)")
    add("--simulator", default="scripted",
        help="scripted, human (you, at the terminal), or a model that plays the human (default: scripted)")
    add("--human", default="plain", choices=MANNERS, help="manner of the scripted human; vague: its first answer is "
        "\"the usual\"; revising: it changes its mind once (default: plain)")
    add("--simulator-prompt", help="file with the prompt of a model that plays the human; {reference} and {dialogue} "
        "are filled in (default: the environment's)")
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
    of_best = ["--step-reward", "--critic", "--judge", "--judge-name", "--judge-extra-body"]
    of_model = [f"--simulator-{name}" for name in ("name", "prompt", "max-tokens", "extra-body")]
    of_human = ["--max-turns", "--simulator", "--human", *of_model]
    if args.candidates:
        refuse_idle(["--samples", "--best-of-n", *of_human, *of_best], "with --candidates")
    else:
        refuse_idle(["--per-task"], "without --candidates")
    if args.continue_:
        refuse_idle(["--samples"], "with --continue")
    if args.best_of_n == 1:
        refuse_idle(of_best, "without --best-of-n above 1")
    else:
        of_judge = [flag for flag in of_best if flag.startswith("--judge")]
        refuse_idle(["--critic"] if args.step_reward == "judge" else of_judge, f"with --step-reward {args.step_reward}")
    if args.overwrite:
        refuse_idle(["--retry-errors"], "with --overwrite")
    if args.simulator != "scripted":
        refuse_idle(["--human"], "without --simulator scripted")
    if args.simulator in SIMULATORS:
        refuse_idle(of_model, f"with --simulator {args.simulator}")
    environment = ENVIRONMENTS[args.domain]
    if args.human != "plain" and "manner" not in inspect.signature(environment.scripted_human).parameters:
        die(f"--human {args.human}: the scripted human of --domain {args.domain} has no manner but plain")
    if args.simulator not in SIMULATORS:
        prompt_of_human(args, environment)
    if args.model == "human" and max(args.candidates, args.best_of_n, args.continue_) > 1:
        die("--model human answers once; leave --candidates, --continue and --best-of-n out")

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
    models = [args.model, args.simulator, *filter(None, [args.judge])]
    refuse_idle_engines([model for model in models if model not in SIMULATORS], args)
    return args


if __name__ == "__main__":
    try:
        run_script(main)
    except Stop as stop:
        die(f"{stop}; finished records are saved; the same command without --overwrite resumes", stop.code)
