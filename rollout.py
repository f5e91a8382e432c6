"""Rollouts: episodes of an agent with a human simulator, and candidate actions for given episodes.

An episode starts with a vague request o_1. At turn t the agent sees the dialogue o_t and acts with a text a_t; the
simulator, which sees the hidden reference c, replies; at most --max-turns agent turns. With --candidates n no episode
is played: for every agent turn of given trajectories n actions a_t ~ pi(. | o_t) are sampled, which train_policy.py
ranks with the critic.

Protocol. A response may think before "OUTPUT:"; only what follows it enters the dialogue. What follows
"I WANT TO ANSWER:" is the final answer; at the last turn the whole response counts as the answer.

Agents (--model) and engines (--engine). Every engine answers `await engine.generate(messages, ...)`, and an episode is
one coroutine that awaits it: no episode waits for another, the engine batches whatever is ready.
  a folder or hub name through
    vllm          in-process vLLM with prefix caching: on CUDA its asynchronous engine, on CPU one stepped in a thread;
    transformers  our own continuous batching over a Hugging Face model;
    auto          vllm where it is installed, except for tiny models on CPU, where it takes longer to start and a step
                  costs more than the model (1M parameters, one core: episodes 2,100 against 5,700 tokens/s,
                  candidates 4,100 against 7,400).
  http(s)://...   any OpenAI-compatible server; the key comes from the environment variable OPENAI_API_KEY.

Simulators (--simulator): scripted answers from the task's facts (or, for pages, by comparing the two layouts); a
folder, hub name or URL plays the human with the reference in its prompt, at temperature 0; human is you, at the
terminal (pages are PNG files for you to open, in a folder talk/ beside the output). For pages a model behind a URL must
be a vision model: it gets the pictures of both pages (a local model gets the sources instead).

Best-of-N (--best-of-n, Fig. 3a of the paper): at each turn N actions are sampled and a step reward picks one: the
critic's advantage A(o_t, a_t, c) (Eq. 3) with or without c, a value head, or an LLM judge in a knock-out of pairs.

The same seeds give the same trajectories, whatever runs beside an episode: each request draws from a generator of its
own, seeded by a hash of (--seed, task, sample, turn). On CPU in float32 both engines compute a token's numbers to the
last bit alike in any batch, so this is exact there, at any --concurrency and after a kill. On CUDA the seeds are the
same, but the kernels round differently in different batches, and a server may ignore seeds.

When something fails. Rate limits, dropped connections, server errors and rubbish (no choices, no content, torn JSON)
are tried again with back-off and jitter; if that does not help the run stops with exit code 1. A refused request
(prompt too long, content policy) ends its episode with finish "error: ...". A refused key or an unknown model stops
the run, as do a full disk and a dead engine. Every finished episode is on disk then, and the same command continues.

Reads   data/{domain}/{split}.jsonl (tasks), or with --candidates runs/{run}/{split}.scored.jsonl (trajectories)
Writes  runs/{run}/{split}.trajectories.jsonl or .candidates.jsonl, one record a line, flushed as it is made;
        *.settings.json beside it, and runs/{run}/{split}.rollout.json (throughput)
A file that exists is continued: finished records are skipped, a torn last line is cut off.

    python rollout.py --split train
    python rollout.py --split train --candidates 16
    python rollout.py --split test --model runs/default/policy --out runs/default/test.policy.jsonl
    python rollout.py --split test --simulator human --limit 1 --out runs/default/talk.jsonl
    python rollout.py --split train --samples 3 --model meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 8 \\
        --simulator http://localhost:8001/v1
    python rollout.py --split test --model https://api.openai.com/v1 --model-name gpt-4o --concurrency 32
"""
import os
import signal

if __name__ == "__main__":  # Ctrl-C until episodes start (loading takes seconds to minutes): nothing is written yet
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
import argparse
import asyncio
import base64
import hashlib
import json
import random
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

ANSWER_MARK = "I WANT TO ANSWER:"
OUTPUT_MARK = "OUTPUT:"
REPLY_LIMIT = {"backend": 400, "frontend": 1000}  # characters of a simulator's reply (paper, section 3)
TINY = 50_000_000  # parameters; below, on CPU, a step of vLLM costs several times what the model does
REFERENCE_QUOTE = 25  # characters of a line of the reference that, repeated in a reply, count as a leak
# What the stages before put into a record of ours; what else it holds is carried through to candidates.
KNOWN = {"dialogue_history", "system", "answer", "finish", "model", "simulator", "seed", "leaks", "reward", "tests",
         "sandbox", "reward_released", "tests_released", "cosine", "page", "encoder", "view"}

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


SIMULATOR = {"backend": """You play a human who wants help with a Python function. You cannot read or write code, but \
you know exactly how the function must behave: just like this reference, which the assistant cannot see.

{reference}

The dialogue so far:

{dialogue}

Write the human's reply to the assistant's last message.
- At most two short sentences, in plain words. Never write code, and never quote the reference.
- Answer only what was asked, and only what the reference settles. If it does not settle it, say "I do not know."
- Do not contradict the reference, and do not tell what was not asked.

Reply:""", "frontend": """You play a human who has a web page in mind and cannot read code. This is the page:

{reference}

The assistant cannot see it. The dialogue so far:

{dialogue}

Imagine the assistant's last page and yours as pictures, side by side. Write the human's reply: the one or two most \
outstanding visual differences (layout, colours, texts, sizes, pictures), in plain words, in at most four sentences. \
Never write or quote code. If the assistant showed no page, ask for one.

Reply:"""}

VISION = """You play a human who has a web page in mind and cannot read code. You asked an assistant: "{request}" \
Here are two pictures: the assistant's page, and the page that you have in mind, which the assistant cannot see. Tell \
the assistant the one or two most outstanding visual differences (layout, colours, texts, sizes, pictures) and what \
you want instead, in plain words, in at most four sentences. Never write code. If there is no difference worth \
naming, say so."""

JUDGE = """A human wants what is described here, and has exactly this in mind:

{reference}

The assistant cannot see it and must find out by asking. The dialogue so far:

{dialogue}

Two possible next messages of the assistant:

[A]
{a}

[B]
{b}

Which message brings the assistant closer to the right final answer? Reply with one letter, A or B."""

CODE_SIGNS = re.compile(
    r"```|\bdef \w+\(|\blambda\b[^.]*:|^\s*(import|from|return|for|if|while) .*[:=(]|==|</?\w+[^>]*>", re.M)


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Names the defaults, but not the None of a flag whose text says what comes instead."""
    def _get_help_string(self, action):
        idle = action.default is None or action.default is False
        return action.help if idle else super()._get_help_string(action)


# least and most of each number; NaN lies nowhere
RANGES = {"samples": (1, 1e9), "max_turns": (1, 1e9), "candidates": (0, 1e6), "best_of_n": (1, 1e6), "limit": (0, 1e12),
          "max_tokens": (1, 1e9), "temperature": (0, 1e6), "simulator_temperature": (0, 1e6),
          "simulator_max_tokens": (1, 1e9), "fraction": (1e-9, 1), "concurrency": (0, 1e6), "max_model_len": (0, 1e9),
          "gpu_memory_utilization": (0.01, 1), "tensor_parallel_size": (1, 1e6), "data_parallel_size": (1, 1e6),
          "timeout": (0.001, 1e6), "retries": (0, 1e6)}


def parse_args():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=Help)
    # what to roll out, and where it goes
    p.add_argument("--run", default="default", help="name of the run: outputs go to runs/{run}")
    p.add_argument("--domain", default="backend", choices=["backend", "frontend"], help="kind of task")
    p.add_argument("--split", default="train", help="train, val or test: names the default input and output")
    p.add_argument("--in", dest="input", default=None, metavar="FILE",
                   help="tasks (default data/{domain}/{split}.jsonl), or with --candidates trajectories (default "
                        "runs/{run}/{split}.scored.jsonl)")
    p.add_argument("--out", default=None, metavar="FILE",
                   help="default runs/{run}/{split}.trajectories.jsonl, or .candidates.jsonl with --candidates")
    p.add_argument("--overwrite", action="store_true", help="start again instead of continuing the output")
    p.add_argument("--limit", type=int, default=0, help="use the first LIMIT tasks or trajectories; 0 = all")
    # episodes
    p.add_argument("--samples", type=int, default=1, help="episodes per task (k)")
    p.add_argument("--max-turns", type=int, default=10,
                   help="agent turns per episode; 1 = answer at once, no questions")
    p.add_argument("--seed", type=int, default=0, help="seed of all sampling")
    p.add_argument("--system", default=None, metavar="FILE", help="file with the agent's instructions instead of ours")
    # candidate actions
    p.add_argument("--candidates", type=int, default=0, metavar="N",
                   help="sample N actions at every turn of given trajectories instead of playing (paper: 16)")
    p.add_argument("--fraction", type=float, default=1.0,
                   help="with --candidates: use this share of the trajectories, the first ones (released code: 0.1)")
    # best of N
    p.add_argument("--best-of-n", type=int, default=1, metavar="N",
                   help="sample N actions at each turn and play the best")
    p.add_argument("--step-reward", default="critic", choices=["critic", "critic-without-c", "judge", "value"],
                   help="what picks the best: the critic's advantage with or without c, an LLM, or a value head")
    p.add_argument("--critic", default=None, help="folder of the critic or value model (default runs/{run}/critic)")
    p.add_argument("--judge", default=None, help="the judge: folder, hub name or URL (default: the agent itself)")
    p.add_argument("--judge-name", default=None, help="model to name to the judge's server (default: its first)")
    # the agent
    p.add_argument("--model", default=None,
                   help="agent: folder, hub name, or URL of an OpenAI-compatible server, such as "
                        "http://localhost:8000/v1, with its key in OPENAI_API_KEY (default runs/{run}/base)")
    p.add_argument("--model-name", default=None, help="model to name to the agent's server (default: its first)")
    p.add_argument("--temperature", type=float, default=1.0, help="of the agent's sampling; 0 = greedy")
    p.add_argument("--max-tokens", type=int, default=1024, help="new tokens per response of the agent")
    # the partner
    p.add_argument("--simulator", default="scripted",
                   help="scripted, human, or the model that plays the human: folder, hub name or URL (key in "
                        "SIMULATOR_API_KEY, else OPENAI_API_KEY); the agent's own name shares its engine")
    p.add_argument("--simulator-name", default=None,
                   help="model to name to the simulator's server (default: its first)")
    p.add_argument("--simulator-temperature", type=float, default=0.0, help="of the simulator's sampling")
    p.add_argument("--simulator-max-tokens", type=int, default=256, help="new tokens per reply of a simulator model")
    # the engine
    p.add_argument("--engine", default="auto", choices=["auto", "vllm", "transformers"], help="what runs local models")
    p.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"],
                   help="auto = float32 on CPU, bfloat16 on CUDA")
    p.add_argument("--concurrency", type=int, default=0,
                   help="episodes (or trajectories) in flight; 0 = 256 on CUDA, 32 with a server as the agent; on "
                        "CPU 128, with --candidates 16")
    p.add_argument("--max-model-len", type=int, default=0,
                   help="tokens of context; 0 = the model's own (CPU: at most 8192)")
    p.add_argument("--gpu-memory-utilization", type=float, default=0.9, help="vLLM: share of each GPU's memory")
    p.add_argument("--tensor-parallel-size", type=int, default=1, help="vLLM: GPUs per copy of the model")
    p.add_argument("--data-parallel-size", type=int, default=1, help="vLLM: copies of the model")
    # servers
    p.add_argument("--timeout", type=float, default=300, help="seconds to wait for a server's answer")
    p.add_argument("--retries", type=int, default=6, help="further tries when a server is busy, gone or talks rubbish")
    args = p.parse_args()
    named = lambda flag: f"--{flag.replace('_', '-')}"
    for flag, (least, most) in RANGES.items():
        if not least <= getattr(args, flag) <= most:
            die(f"{named(flag)} must be at least {least} and at most {most:g}, found {getattr(args, flag)}")
    if args.candidates == 1:
        die("--candidates must be at least 2, found 1: train_policy.py compares the actions of a turn")
    if args.candidates and args.best_of_n > 1:
        die("--candidates samples and --best-of-n plays: give one of them")
    playing = ("samples", "max_turns", "system", "simulator", "simulator_name", "simulator_temperature",
               "simulator_max_tokens")
    for needed, flags in (("without --candidates", playing if args.candidates else ()),
                          ("with --candidates", () if args.candidates else ("fraction",)),
                          ("with --best-of-n", () if args.best_of_n > 1 else ("step_reward", "critic", "judge",
                                                                              "judge_name"))):
        for flag in flags:
            if getattr(args, flag) != p.get_default(flag):
                die(f"{named(flag)} does something {needed} only; leave it out")
    runs = Path("runs") / args.run
    args.model = args.model or str(runs / "base")
    args.critic = args.critic or str(runs / "critic")
    args.judge, args.judge_name = (args.judge, args.judge_name) if args.judge else (args.model, args.model_name)
    args.input = Path(args.input or (runs / f"{args.split}.scored.jsonl" if args.candidates
                                     else f"data/{args.domain}/{args.split}.jsonl"))
    args.out = Path(args.out or runs / f"{args.split}.{'candidates' if args.candidates else 'trajectories'}.jsonl")
    if args.out.suffix != ".jsonl":
        die(f"--out {args.out} must end in .jsonl: its settings get their name from it")
    check_output(args.out, args.input, *([Path(args.system)] if args.system else []))
    if args.model == str(runs / "base") and not Path(args.model).exists():
        die(f"{args.model}: no such model; name one with --model, or make the tiny one with: python train_policy.py "
            f"--method sft --model tiny --in data/{args.domain}/demonstrations.jsonl --out {args.model}")
    return args


def die(message):
    """Stop for a user's mistake: one sentence on stderr, exit code 2."""
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(2)


class Stop(Exception):
    """Ends the run while episodes are under way: one sentence, and the exit code."""

    def __init__(self, message, code=1):
        super().__init__(message)
        self.code = code


class Refused(Exception):
    """The engine will not do this request: the episode records why and ends."""


# ---------------------------------------------------------------------------------------------------------------------
# Files


def check_output(path, *inputs):
    """Stop before anything is done if `path` is one of the inputs (links followed) or cannot be written."""
    for source in inputs:
        if path.resolve() == source.resolve() or path.exists() and source.exists() and path.samefile(source):
            die(f"{path} is an input, which is never written over; name another output")
    if path.exists() and not path.is_file():
        die(f"{path} is no file; name a file to write")
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        with open(path, "ab") if path.exists() else tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        die(f"{path} cannot be written: {e.strerror}")


def check_types(where, record, **kinds):
    """Stop if a value that the rest relies on is missing or of another type."""
    for key, kind in kinds.items():
        if not isinstance(record.get(key), kind):
            expected = {str: "a text", int: "a whole number", dict: "an object"}[kind]
            die(f"{where}: {key!r} must be {expected}, found {json.dumps(record.get(key))[:60]}")


def read_jsonl(path, domain, required=()):
    """Records of a JSON lines file. Stops with one sentence that names file, line, found and expected."""
    if not Path(path).is_file():
        before = "rollout.py and evaluate.py" if "task" in required else "generate_tasks.py"
        die(f"{path}: no such file; run {before} first, or name another with --in")
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode("utf-8"))
            except (ValueError, RecursionError):  # no JSON, no UTF-8, or nested too deeply
                torn = "" if line.endswith(b"\n") else " (a torn last line: run the stage that writes this file again)"
                found = line.strip()[:60].decode("utf-8", "replace")
                die(f"{path}, line {number}: found {found!r}, expected a JSON object{torn}")
            if not isinstance(record, dict):
                die(f"{path}, line {number}: found {type(record).__name__}, expected a JSON object")
            missing = [key for key in required if key not in record]
            if missing:
                found = ", ".join(sorted(record)) or "none"
                die(f"{path}, line {number}: key {missing[0]!r} is missing, found {found}")
            record.setdefault("task_id", f"{Path(path).stem}-{number:05d}")  # released ColBench lines have none
            record.setdefault("domain", domain)
            check_types(f"{path}, line {number}", record, task_id=str, domain=str)
            if record["domain"] != domain:
                die(f"{path}, line {number}: found domain {record['domain']!r}, expected {domain!r}; --domain says "
                    "what the file is about")
            yield number, record


def read_tasks(args):
    """Tasks, each with a key of its own."""
    tasks, lines = [], {}
    for number, task in read_jsonl(args.input, args.domain, ("problem_description", "ground_truth")):
        where = f"{args.input}, line {number}"
        check_types(where, task, problem_description=str, ground_truth=str)
        if task["task_id"] in lines:
            die(f"{where}: task_id {task['task_id']!r} stands in line {lines[task['task_id']]} already; each must be "
                "unique")
        lines[task["task_id"]] = number
        if args.simulator == "scripted" and task["domain"] == "backend" and args.max_turns > 1:
            facts = task.get("facts")
            if not isinstance(facts, list) or not all(map(is_fact, facts)):
                die(f"{where}: found no 'facts' with keywords, question and reply, from which the scripted simulator "
                    "answers; give a model or URL with --simulator")
        tasks.append(task)
        if len(tasks) == args.limit:
            break
    return tasks or die(f"{args.input}: no tasks in it")


def is_fact(fact):
    return (isinstance(fact, dict) and all(isinstance(fact.get(key), str) for key in ("question", "reply"))
            and isinstance(fact.get("keywords"), list) and all(isinstance(word, str) for word in fact["keywords"]))


def read_trajectories(args):
    """The first --fraction of the trajectories."""
    records, lines = [], {}
    for number, record in read_jsonl(args.input, args.domain, ("sample", "dialogue_history", "task")):
        where, history = f"{args.input}, line {number}", record["dialogue_history"]
        if not isinstance(history, list) or not history or any(
                not isinstance(m, dict) or not isinstance(m.get("role"), str) or not isinstance(m.get("content"), str)
                for m in history) or history[0]["role"] != "user":
            die(f"{where}: 'dialogue_history' should be a list of messages with the texts role and content, the first "
                "of them the user's")
        record["system"] = record.get("system") or ""
        check_types(where, record, sample=int, task=dict, system=str)
        check_types(where, record["task"], problem_description=str, ground_truth=str)
        key = (record["task_id"], record["sample"])
        if key in lines:
            die(f"{where}: sample {key[1]} of task {key[0]!r} stands in line {lines[key]} already")
        lines[key] = number
        records.append(record)
    records = records[:max(1, round(args.fraction * len(records)))]
    return records[:args.limit or None] or die(f"{args.input}: no trajectories in it")


def resume(path, inputs, key):
    """Keys of the records in the output; a torn last line is cut off the file.

    A record must be about the task as the input has it now: files that were made again under the same names are an
    error."""
    done, good = set(), 0
    if not path.exists():
        return done
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            if not line.endswith(b"\n"):
                break
            try:
                record = json.loads(line)
                done.add(tuple(record[k] for k in key))
                task = inputs.get(record["task_id"], record["task"])
                if task["problem_description"] != record["task"]["problem_description"] \
                        or task["ground_truth"] != record["task"]["ground_truth"]:
                    die(f"{path}, line {number}: task {record['task_id']} reads differently in the input now; use "
                        "--overwrite or another --out")
            except (ValueError, KeyError, TypeError):
                die(f"{path}, line {number}: found {line[:60]!r}, expected a record with {', '.join(key)}; use "
                    "--overwrite or another --out")
            good += len(line)
    if good < path.stat().st_size:
        os.truncate(path, good)
    return done


def put_in_order(path, place, key):
    """Sort a finished output by place(key of a record): it was written as episodes ended, which is a matter of timing,
    and what later stages draw and train on follows the order of their input. Appears whole."""
    lines, offset = [], 0
    with open(path, "rb") as f:
        for line in f:
            record = json.loads(line)
            lines.append((place(*(record[k] for k in key)), offset, len(line)))
            offset += len(line)
        if lines == sorted(lines):
            return
        part = path.with_suffix(".part")
        with open(part, "wb") as out:
            for _, offset, length in sorted(lines):
                f.seek(offset)
                out.write(f.read(length))
    os.replace(part, path)


def settings_of(args, engine_name):
    """What decides the content of the output."""
    names = ["model", "model_name", "temperature", "max_tokens", "seed", "system", "dtype", "max_model_len"]
    if args.candidates:
        names += ["candidates"]
    else:
        names += ["domain", "simulator", "simulator_name", "simulator_temperature", "simulator_max_tokens", "max_turns",
                  "best_of_n"]
    if args.best_of_n > 1:
        names += ["step_reward", "judge", "judge_name"] if args.step_reward == "judge" else ["step_reward", "critic"]
    settings = {name: getattr(args, name) for name in names}
    if args.system:  # a file that was edited is another one
        settings["system"] += f" (sha256 {hashlib.sha256(system_text(args).encode()).hexdigest()[:16]})"
    settings |= {"engine": engine_name, "model_fingerprint": fingerprint(args.model)}
    if args.best_of_n > 1 and args.step_reward != "judge":
        settings["critic_fingerprint"] = fingerprint(args.critic)
    return settings


def fingerprint(folder):
    """Sizes and both ends of a model's weight files: another model under the same name is noticed."""
    h = hashlib.sha256()
    for file in sorted(Path(folder).glob("*.safetensors")) if Path(folder).is_dir() else []:
        with open(file, "rb") as f:
            h.update(f"{file.name} {file.stat().st_size}".encode() + f.read(1 << 16))
            f.seek(-min(1 << 16, file.stat().st_size), os.SEEK_END)
            h.update(f.read())
    return h.hexdigest()[:16]


def check_settings(args, settings):
    """The settings stand beside the output; continuing it with others is an error."""
    path = args.out.with_suffix(".settings.json")
    if path.exists() and args.out.exists() and not args.overwrite:
        try:
            old = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            die(f"{path}: damaged, expected the JSON object of settings; use --overwrite or another --out")
        changed = [f"{name.replace('_', ' ')} was {old.get(name)!r}, now {settings.get(name)!r}"
                   for name in sorted({*old, *settings}) if old.get(name) != settings.get(name)]
        if changed:
            die(f"{path}: {'; '.join(changed)}; use --overwrite or another --out")


def open_output(args, settings):
    """The output for appending. Called when the first record is ready: a start that fails leaves all as it was."""
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if args.overwrite:
        args.out.unlink(missing_ok=True)
    path = args.out.with_suffix(".settings.json")
    part = path.with_suffix(".part")
    part.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    os.replace(part, path)
    return open(args.out, "a", encoding="utf-8", errors="backslashreplace")  # half a surrogate pair stays \\ud83d


# ---------------------------------------------------------------------------------------------------------------------
# Protocol and prompts


def parse_output(output, last_turn):
    """(content, answer or None, finish or None) of a raw response."""
    content = output.rsplit(OUTPUT_MARK, 1)[-1].strip()
    if ANSWER_MARK in content:
        return content, content.split(ANSWER_MARK, 1)[1].strip(), "answered"
    return (content, content, "max_turns") if last_turn else (content, None, None)


def system_text(args):
    """What stands in the file of --system."""
    try:
        return Path(args.system).read_text(encoding="utf-8")
    except OSError as e:
        die(f"--system {args.system}: {e.strerror}")
    except ValueError:
        die(f"--system {args.system}: not UTF-8")


def system_prompt(args, domain):
    if args.system:
        return system_text(args)
    if domain == "frontend":
        from render import TAILWIND_LINK
        prompt = AGENT_PAGES_SINGLE_TURN if args.max_turns == 1 else AGENT_PAGES_MULTI_TURN
        return prompt.format(max_turns=args.max_turns, stylesheet=f'<link href="{TAILWIND_LINK}" rel="stylesheet">')
    return AGENT_SINGLE_TURN if args.max_turns == 1 else AGENT_MULTI_TURN.format(max_turns=args.max_turns)


def messages_before(system, dialogue):
    """What the model is shown: the instructions and the dialogue, without our own keys."""
    head = [{"role": "system", "content": system}] if system else []
    return head + [{"role": m["role"], "content": m["content"]} for m in dialogue]


def merge_system(messages):
    """For models without a system role: the instructions in front of the first user message."""
    if messages[0]["role"] != "system":
        return messages
    system, first, *rest = messages
    return [{"role": first["role"], "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def encode_chat(tokenizer, messages):
    """Prompt token ids by the model's own chat template."""
    from jinja2.exceptions import TemplateError
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except TemplateError:  # some templates (Gemma's) refuse a system role
        if messages[0]["role"] != "system":
            raise
        text = tokenizer.apply_chat_template(merge_system(messages), add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def as_text(dialogue, names):
    """A dialogue for a prompt; `names`: role -> who speaks."""
    return "\n\n".join(f"{names[m['role']]}: {m['content']}" for m in dialogue)


def derive_seed(*key):
    """A seed for one request, from (seed, task, sample, turn): independent of what runs beside it."""
    return int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()[:6], "big")


# ---------------------------------------------------------------------------------------------------------------------
# Simulators


def scripted_reply(facts, text):
    """The scripted human: at most two sentences from `facts`, by the words of the agent's `text`.

    Facts whose own question stands in the text win. Otherwise a fact scores the number of its keywords in the text
    (whole words, any case); the best answers, and a second one if it is asked about with words of its own."""
    text = text.lower()
    chosen = [f for f in facts if f["question"].lower() in text]
    if not chosen:
        said = lambda k: re.search(rf"(?<!\w){re.escape(k.lower())}(?!\w)", text)  # noqa: E731
        hits = [{k.lower() for k in f["keywords"] if said(k)} for f in facts]
        order = sorted((i for i in range(len(facts)) if hits[i]), key=lambda i: -len(hits[i]))
        chosen = [facts[i] for i in order if i == order[0] or hits[i] - hits[order[0]]]
    reply = " ".join(f["reply"] for f in chosen[:2]) or "I do not know."
    return reply[:REPLY_LIMIT["backend"]]


class PagePartner:
    """The human of the frontend sees the agent's page beside the reference. Scripted, it names the largest differences
    of the two layouts; a vision model behind a URL gets both pictures and names what it finds most outstanding.

    Two browsers at work, each page measured once: samples of a task show the same pages again."""

    def __init__(self):
        from render import Renderer
        try:
            self.renderer = Renderer(browsers=2, remember=True)
        except RuntimeError as problem:
            die(str(problem))
        self.layouts = {}

    async def layout(self, page):
        if page not in self.layouts:
            if len(self.layouts) >= 20000:
                self.layouts.pop(next(iter(self.layouts)))
            rendering = self.renderer.submit(page, layout=True, picture=False)
            self.layouts[page] = asyncio.ensure_future(asyncio.wrap_future(rendering))
        return (await self.layouts[page]).layout

    async def reply(self, task, dialogue):
        from render import NO_PAGE, extract_page, page_reply
        page = extract_page(dialogue[-1]["content"])
        if page is None:
            return NO_PAGE
        mine, reference = await asyncio.gather(self.layout(page), self.layout(task["ground_truth"]))
        return page_reply(mine, reference, limit=REPLY_LIMIT["frontend"])

    async def picture(self, page):
        """A page as a part of a message; None if it cannot be rendered."""
        picture = await asyncio.wrap_future(self.renderer.submit(page))
        address = "data:image/png;base64," + base64.b64encode(picture.png).decode()
        return {"type": "image_url", "image_url": {"url": address}} if picture.png else None

    async def as_files(self, task, sample, dialogue, folder):
        """For a person: the agent's last message with a PNG file's path for its page, and the reference's PNG."""
        from render import extract_page
        said = dialogue[-1]["content"]
        page, name = extract_page(said), re.sub(r"[^\w.-]", "_", task["task_id"])
        path, reference = folder / f"{name}-{sample}-turn-{len(dialogue) // 2}.png", folder / f"{name}-reference.png"
        folder.mkdir(parents=True, exist_ok=True)
        for source, file in ((page, path), (task["ground_truth"], reference)):
            if source:
                picture = await asyncio.wrap_future(self.renderer.submit(source))
                file.write_bytes(picture.png)  # empty where it cannot be rendered
        return said.replace(page, f"(a page: {path})") if page else said, reference

    async def vision_reply(self, engine, args, task, sample, dialogue):
        """The model sees the two pictures, not the sources."""
        from render import NO_PAGE, extract_page
        page = extract_page(dialogue[-1]["content"])
        if page is None:
            return NO_PAGE
        mine, reference = await asyncio.gather(self.picture(page), self.picture(task["ground_truth"]))
        if reference is None:
            raise Refused("the reference page cannot be rendered")
        if mine is None:
            return "Your page could not be shown."
        parts = [{"type": "text", "text": VISION.format(request=task["problem_description"])},
                 {"type": "text", "text": "The assistant's page:"}, mine,
                 {"type": "text", "text": "The page that you have in mind:"}, reference]
        key = (task["task_id"], sample, "simulator")
        seed = derive_seed(args.seed, *key, len(dialogue))
        [out] = await engine.generate([{"role": "user", "content": parts}], 1, seed, args.simulator_temperature,
                                      args.simulator_max_tokens, key)
        return out.text.rsplit("</think>", 1)[-1].strip()[:REPLY_LIMIT["frontend"]]


def leaks_code(reply, reference):
    """Whether a simulator's reply contains code, or a line of the reference."""
    lines = [line.strip() for line in reference.splitlines()]
    return bool(CODE_SIGNS.search(reply)) or any(len(line) >= REFERENCE_QUOTE and line in reply for line in lines)


async def model_reply(engine, args, task, sample, dialogue):
    """A model plays the human: brief, bound to the reference."""
    prompt = SIMULATOR[task["domain"]].format(
        reference=task["ground_truth"], dialogue=as_text(dialogue, {"user": "Human", "assistant": "Assistant"}))
    key = (task["task_id"], sample, "simulator")
    [out] = await engine.generate([{"role": "user", "content": prompt}], 1, derive_seed(args.seed, *key, len(dialogue)),
                                  args.simulator_temperature, args.simulator_max_tokens, key)
    return out.text.rsplit("</think>", 1)[-1].strip()[:REPLY_LIMIT[task["domain"]]]


def human_reply(task, dialogue, said, picture=None):
    """A person at the terminal. said: the agent's last message; picture: a file that shows the reference page."""
    if len(dialogue) == 2:
        print("\n" + "=" * 100 + f"\nThe agent was told: {task['problem_description']}\n"
              "You are the human. Answer it; /show prints the hidden reference, /quit stops."
              + (f"\nThe page that you have in mind: {picture}" if picture else ""))
    print(f"\nagent> {said}")
    while True:
        try:
            line = input("you> ").strip()
        except EOFError:
            line = "/quit"
        if line == "/quit":
            raise Stop("you stopped; finished episodes are saved, and the same command continues", 0)
        if line == "/show":
            print(task["ground_truth"])
        elif line:
            return line[:REPLY_LIMIT[task["domain"]]]


def show_score(record):
    """After a talk with a human: what the answer is worth, by evaluate.py where it lies beside this file."""
    print(f"\nagent> {record['dialogue_history'][-1]['content']}\n")
    evaluate = Path(__file__).with_name("evaluate.py")
    if record["answer"] is None or not evaluate.exists():
        why = "" if evaluate.exists() else " (No evaluate.py here to score it.)"
        return print(f"The episode ended: {record['finish']}.{why}")
    with tempfile.TemporaryDirectory() as folder:
        source, scored = Path(folder) / "talk.jsonl", Path(folder) / "scored.jsonl"
        source.write_text(json.dumps(record) + "\n", encoding="utf-8")
        ran = subprocess.run([sys.executable, evaluate, "--in", source, "--out", scored, "--domain", record["domain"]],
                             capture_output=True, text=True)
        if ran.returncode:
            return print(f"It could not be scored: {ran.stderr.strip()}")
        record = json.loads(scored.read_text(encoding="utf-8"))
    print(f"Reward {record['reward']:.2f}" + (
        f": {sum(s == 'passed' for s in record['tests'].values())} of {len(record['tests'])} hidden tests passed "
        f"({', '.join(record['tests'].values())})." if record.get("tests") else "."))


# ---------------------------------------------------------------------------------------------------------------------
# Engines


@dataclass
class Output:
    text: str  # without the end-of-turn token
    ids: list = None  # sampled token ids, with the end-of-turn token where the model emitted it; None from a server
    logps: list = None  # log pi(token), before the temperature; None from a server
    tokens: int = 0


def first_line(error):
    return (str(error).strip() or type(error).__name__).split("\n")[0][:300]


def load_tokenizer(path):
    from transformers import AutoTokenizer
    from transformers.utils import logging
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except Exception as e:  # a damaged tokenizer.json is a plain Exception
        die(f"{path}: no tokenizer could be loaded from there ({first_line(e)})")
    if tokenizer.chat_template is None:
        die(f"{path}: the model has no chat template; give an instruction-tuned model, or add chat_template.jinja to "
            "its folder")
    return tokenizer


def prepare_cpu():
    """Before torch is loaded: idle threads of OpenMP sleep instead of spinning, which costs seconds where cores are
    shared."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def context_of(args, config):
    own = getattr(config, "max_position_embeddings", None) or 8192
    return min(own, args.max_model_len or own)


class TransformersEngine:
    """Continuous batching over any Hugging Face causal LM that uses the library's attention interface.

    A conversation owns a row ("slot") of the key/value cache. Each step runs ONE forward pass over a flat list of
    tokens: the prompt suffixes of new requests and the last token of every column (a column = one of a request's n
    samples). The n columns of a request share its prompt: their tokens lie in the same slot, and `mask` says who sees
    which. A later turn of a conversation finds its earlier turns in its slot and feeds only what is new.

    On CPU in float32 a token's numbers do not depend, to the last bit, on what else is in the batch. MKL treats rows
    alike if there are enough of them (4; 12 with two threads), and adds up as many terms as there are in an order of
    its own: so steps are padded to 16 tokens, attention to 4 queries, and its keys come in blocks of 64 (found by
    experiment, held by a test)."""

    STEP, QUERIES, CHUNK = 16, 4, 64
    PREFILL = 4096  # prompt tokens that one step takes in

    def __init__(self, path, args, slots):
        prepare_cpu()
        import torch
        from transformers import AttentionInterface, AutoModelForCausalLM
        self.torch, self.path = torch, path
        self.tokenizer = load_tokenizer(path)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = {"auto": "bfloat16" if self.device == "cuda" else "float32"}.get(args.dtype, args.dtype)
        AttentionInterface.register("slots", attend)
        try:
            self.model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        except Exception as e:  # a damaged model.safetensors is a SafetensorError, a cut config.json a KeyError, ...
            die(f"{path}: no causal language model could be loaded from there ({first_line(e)})")
        self.model.to(self.device).eval()
        if self.device == "cpu" and self.model.num_parameters() < TINY and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)  # two threads wait for each other longer than they compute
        config = self.model.config.get_text_config()
        eos = getattr(self.model.generation_config, "eos_token_id", None)
        self.eos = {self.tokenizer.eos_token_id, *(eos if isinstance(eos, list) else [eos])} - {None}
        self.context = context_of(args, config)
        if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
            self.context = min(self.context, config.sliding_window)  # up to there, a window is plain attention
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        token = 2 * config.num_hidden_layers * heads * width * self.model.dtype.itemsize  # bytes of keys and values
        memory = torch.cuda.mem_get_info()[0] // 2 if self.device == "cuda" else 2 << 30
        self.slots = max(1, min(slots, memory // (token * min(self.context, 2048))))
        self.block = 64 if self.device == "cpu" else 1024
        # (slots, columns, cells): who sees which
        self.mask = torch.zeros(self.slots, self.QUERIES, 0, dtype=torch.bool, device=self.device)
        # layer -> blocks of cells, each (slots + 1, kv heads, block, head width); the last row is scrap
        self.keys, self.values = {}, {}
        self.held = [[] for _ in range(self.slots)]  # token ids whose keys and values lie in the slot's first cells
        self.owner = {}  # conversation -> slot, least recently used first
        self.free = list(range(self.slots - 1, -1, -1))
        self.waiting, self.active = [], {}  # active: slot -> request
        self.pool, self.driver = ThreadPoolExecutor(1), None
        self.counts = {"prompt_tokens": 0, "cached_tokens": 0, "steps": 0}
        self.check()

    def check(self):
        """One prompt through the model as it is and through ours: models whose attention we cannot replace are
        refused."""
        torch = self.torch
        prompt = encode_chat(self.tokenizer, [{"role": "user", "content": "Hello"}])[:self.context - 1]
        with torch.inference_mode():
            logits = self.model(input_ids=torch.tensor([prompt], device=self.device)).logits[0, -1]
            expected = logits.float().log_softmax(-1).max().item()
        try:
            self.model.set_attn_implementation("slots")
            self.new_request(prompt, 1, 0, 0.0, 1, "check")
            [request] = self.step()
            close = abs(request["logps"][0][0] - expected) < (1e-3 if self.model.dtype == torch.float32 else 0.3)
        except Exception as e:  # whatever a foreign model does with an attention that is not its own
            close = print(f"{self.path}: {first_line(e)}", file=sys.stderr)
        if not close:
            die(f"{self.path}: the transformers engine cannot run this model's attention; install vllm and use "
                "--engine vllm")
        self.forget("check")
        self.counts = dict.fromkeys(self.counts, 0)

    def new_request(self, prompt, n, seed, temperature, max_tokens, conversation, future=None):
        room = min(max_tokens, self.context - len(prompt))
        if room < 1:
            raise Refused(f"prompt of {len(prompt)} tokens does not fit the context of {self.context} tokens")
        import numpy as np
        self.waiting.append({
            "prompt": prompt, "n": n, "room": room, "temperature": temperature, "conversation": conversation,
            "future": future, "random": np.random.default_rng(seed), "uniform": np.zeros((0, n)),
            "ids": [[] for _ in range(n)], "logps": [[] for _ in range(n)], "alive": list(range(n))})
        return self.waiting[-1]

    async def generate(self, messages, n, seed, temperature, max_tokens, conversation):
        """n Outputs. `conversation`: any hashable key; its earlier turns stay in the cache until `forget`."""
        request = self.new_request(encode_chat(self.tokenizer, messages), n, seed, temperature, max_tokens,
                                   conversation, asyncio.get_running_loop().create_future())
        if self.driver is None or self.driver.done():
            self.driver = asyncio.create_task(self.drive())
        await request["future"]
        return [Output(self.tokenizer.decode(ids, skip_special_tokens=True), ids, logps, len(ids))
                for ids, logps in zip(request["ids"], request["logps"])]

    def forget(self, conversation):
        """The conversation is over: its slot may go to another."""
        if conversation in self.owner:
            self.free.append(self.owner.pop(conversation))

    async def drive(self):
        """Steps in a thread of their own while there is work, so that the event loop stays free."""
        try:
            while self.waiting or self.active:
                for request in await asyncio.get_running_loop().run_in_executor(self.pool, self.step):
                    request["future"].set_result(None)
        except Exception as e:
            for request in [*self.waiting, *self.active.values()]:
                if not request["future"].done():
                    request["future"].set_exception(Stop(f"the transformers engine failed: {first_line(e)}"))

    def admit(self):
        """Slots for waiting requests: the conversation's own, a free one, or the least recently used idle one."""
        new, tokens = [], 0
        while self.waiting and tokens < self.PREFILL:
            request = self.waiting[0]
            slot = self.owner.pop(request["conversation"], None)
            if slot is None and self.free:
                slot = self.free.pop()
            if slot is None:
                idle = next((c for c, s in self.owner.items() if s not in self.active), None)
                slot = self.owner.pop(idle, None)
            if slot is None:
                break
            assert slot not in self.active, "a conversation asks one thing at a time"
            self.owner[request["conversation"]] = slot
            held, prompt = self.held[slot], request["prompt"]
            most = min(len(held), len(prompt) - 1)  # the last prompt token is always fed: the response starts from it
            shared = next((i for i in range(most) if held[i] != prompt[i]), most)
            request.update(slot=slot, start=shared, cells=len(prompt))
            self.held[slot] = prompt[:]
            self.active[slot] = self.waiting.pop(0)
            new.append(request)
            tokens += len(prompt) - shared
            self.counts["prompt_tokens"] += len(prompt)
            self.counts["cached_tokens"] += shared
        return new

    def grow(self, cells, columns):
        """Room in the mask for `cells` cells per slot and `columns` columns; the blocks of keys grow when they are
        written."""
        old = self.mask
        if cells > old.shape[2] or columns > old.shape[1]:
            self.mask = old.new_zeros(self.slots, max(columns, old.shape[1]), max(cells, old.shape[2]))
            self.mask[:, :old.shape[1], :old.shape[2]] = old

    def step(self):
        """One forward pass; returns the requests that are finished."""
        torch = self.torch
        up = lambda n, to: -(-n // to) * to  # noqa: E731
        decoding, new = list(self.active.values()), self.admit()
        self.counts["steps"] += 1
        ids, positions, slots, cells, parts = [], [], [], [], []
        wanted = []  # (token, request, columns): whose logits are sampled from
        # 1. the last token of every column goes into the next cell of its slot
        if decoding:
            column = []
            for r in decoding:
                for c in r["alive"]:
                    wanted.append((len(ids), r, (c,)))
                    ids.append(r["ids"][c][-1])
                    positions.append(len(r["prompt"]) + len(r["ids"][c]) - 1)
                    slots.append(r["slot"])
                    cells.append(r["cells"])
                    column.append(c)
                    r["cells"] += 1
            length, rows = up(max(cells) + 1, self.block), max(slots) + 1
            width = up(max(r["n"] for r in decoding), self.QUERIES)
            self.grow(length, width)
            self.mask[slots, column, cells] = True
            parts.append({"tokens": slice(0, len(ids)), "rows": rows, "width": width, "row": torch.tensor(slots),
                          "column": torch.tensor(column), "slots": slice(0, rows),
                          "mask": self.mask[:rows, None, :width, :length]})
        # 2. the prompts of new requests, without what lies in their slots already, as rows of at most CHUNK queries
        if new:
            length = up(max(len(r["prompt"]) for r in new), self.block)
            self.grow(length, up(max(r["n"] for r in new), self.QUERIES))
            first, row, column, begin, of = len(ids), [], [], [], []
            for r in new:
                start, end = r["start"], len(r["prompt"])
                ids += r["prompt"][start:]
                positions += range(start, end)
                cells += range(start, end)
                slots += [r["slot"]] * (end - start)
                row += [len(begin) + i // self.CHUNK for i in range(end - start)]
                column += [i % self.CHUNK for i in range(end - start)]
                begin += range(start, end, self.CHUNK)
                of += [r["slot"]] * (len(begin) - len(of))
                wanted.append((len(ids) - 1, r, range(r["n"])))
                self.mask[r["slot"], :, end:] = False
                self.mask[r["slot"], :, :end] = True
            width = up(max(column) + 1, self.QUERIES)
            last = torch.tensor(begin)[:, None] + torch.arange(width)  # (rows, T): the last cell that each query sees
            parts.append({"tokens": slice(first, len(ids)), "rows": len(begin), "width": width,
                          "row": torch.tensor(row), "column": torch.tensor(column), "slots": torch.tensor(of),
                          "mask": (torch.arange(length) <= last[:, :, None])[:, None].to(self.device)})
        # 3. forward, padded with tokens of the scrap slot
        at = [token for token, _, _ in wanted]
        at += [0] * (max(self.STEP, up(len(at), 4)) - len(at))
        pad = [0] * (max(self.STEP, up(len(ids), 4)) - len(ids))
        plan = {"engine": self, "slot": torch.tensor(slots + [self.slots] * len(pad)),
                "cell": torch.tensor(cells + pad), "parts": parts,
                "written": sorted({cell // self.block for cell in cells + pad})}
        with torch.inference_mode():
            logits = self.model(input_ids=torch.tensor([ids + pad], device=self.device), use_cache=False,
                                position_ids=torch.tensor([positions + pad], device=self.device), plan=plan,
                                logits_to_keep=torch.tensor(at, device=self.device)).logits[0]  # (wanted, V)
            self.sample(logits[:len(wanted)].float(), wanted)
        # 4. a column ends with an end-of-turn token or for lack of room, a request with its last column
        finished = []
        for r in [*decoding, *new]:
            r["alive"] = [c for c in r["alive"] if r["ids"][c][-1] not in self.eos and len(r["ids"][c]) < r["room"]]
            if not r["alive"]:
                if r["n"] == 1:  # all but the last token lie in the cache already
                    self.held[r["slot"]] += r["ids"][0][:-1]
                del self.active[r["slot"]]
                finished.append(r)
        return finished

    def sample(self, logits, wanted):
        """Inverse-CDF sampling with one uniform number a token, in float64 so that summing V terms adds no noise of
        its own."""
        import numpy as np
        torch = self.torch
        drawn = [(i, r, c) for i, (_, r, columns) in enumerate(wanted) for c in columns]
        uniform = []
        for _, r, c in drawn:
            if len(r["ids"][c]) >= len(r["uniform"]):
                r["uniform"] = np.concatenate([r["uniform"], r["random"].random((64, r["n"]))])
            uniform.append(r["uniform"][len(r["ids"][c]), c])
        temperature = torch.tensor([r["temperature"] for _, r, _ in wanted], device=logits.device)
        cdf = (logits / temperature.clamp_min(1e-6)[:, None]).double().softmax(-1).cumsum(-1)  # (wanted, V)
        index = torch.tensor([i for i, _, _ in drawn], device=logits.device)
        u = torch.tensor(uniform, device=logits.device, dtype=torch.float64) * cdf[index, -1]
        tokens = torch.searchsorted(cdf[index], u[:, None], right=True)[:, 0].clamp_max(logits.shape[1] - 1)
        tokens = torch.where(temperature[index] > 0, tokens, logits.argmax(-1)[index])
        logps = logits.log_softmax(-1)[index, tokens]
        for (_, r, c), token, logp in zip(drawn, tokens.tolist(), logps.tolist()):
            r["ids"][c].append(token)
            r["logps"][c].append(logp)


def attend(module, query, key, value, attention_mask=None, scaling=None, softcap=None, plan=None, **kwargs):
    """The attention of every layer, called by transformers. query (1, H, N, D), key and value (1, K, N, D) of N tokens.

    Block by block in a fixed order, so that no sum depends on how long the longest row of the batch is."""
    import torch
    engine, size = plan["engine"], plan["engine"].block
    stores = [cache.setdefault(module.layer_idx, []) for cache in (engine.keys, engine.values)]
    for blocks, x in zip(stores, (key, value)):
        while len(blocks) * size < engine.mask.shape[2]:
            blocks.append(x.new_zeros(engine.slots + 1, x.shape[1], size, x.shape[3]))
        for number in plan["written"]:
            here = plan["cell"] // size == number
            blocks[number][plan["slot"][here], :, plan["cell"][here] % size] = x[0, :, here].transpose(0, 1)
    q = query[0].transpose(0, 1)  # (N, H, D)
    heads, groups = key.shape[1], query.shape[1] // key.shape[1]
    out = q.new_zeros(*q.shape[:2], value.shape[3])
    for part in plan["parts"]:
        rows, width = part["rows"], part["width"]
        grid = q.new_zeros(rows, width, *q.shape[1:])  # (R, T, H, D)
        grid[part["row"], part["column"]] = q[part["tokens"]]
        grid = grid.transpose(1, 2).reshape(rows, heads, groups * width, -1)  # (R, K, G * T, D)
        keys, values = ([b[part["slots"]] for b in blocks[:part["mask"].shape[3] // size]] for blocks in stores)
        scores = torch.cat([grid @ k.transpose(2, 3) for k in keys], 3).mul_(scaling)
        scores = scores.view(rows, heads * groups, width, -1)  # (R, H, T, cells)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        weights = scores.masked_fill_(~part["mask"], torch.finfo(scores.dtype).min).softmax(-1)
        weights = weights.view(rows, heads, groups * width, -1)
        seen = weights[..., :size] @ values[0]
        for number, v in enumerate(values[1:], 1):
            seen += weights[..., number * size:(number + 1) * size] @ v
        out[part["tokens"]] = seen.view(rows, heads * groups, width, -1)[part["row"], :, part["column"]]
    return out[None], None  # (1, N, H, D)


class VLLMEngine:
    """vLLM. On CUDA its asynchronous engine with processes of its own; on CPU its engine in this process, stepped in a
    thread."""

    def __init__(self, path, args, slots):
        prepare_cpu()
        import torch
        cuda = torch.cuda.is_available()
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        if not cuda:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        try:
            from vllm import AsyncEngineArgs, SamplingParams
            from vllm.sampling_params import RequestOutputKind
            from vllm.v1.engine.async_llm import AsyncLLM
            from vllm.v1.engine.llm_engine import LLMEngine
        except ImportError as e:
            die(f"--engine vllm needs vllm, which cannot be imported here ({first_line(e)}): pip install -r "
                "requirements.txt, or use --engine transformers")
        from transformers import AutoConfig
        self.tokenizer = load_tokenizer(path)
        self.params = lambda **kw: SamplingParams(logprobs=0, output_kind=RequestOutputKind.FINAL_ONLY, **kw)
        self.here = os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"
        dtype = {"auto": "bfloat16" if cuda else "float32"}.get(args.dtype, args.dtype)
        try:
            self.context = context_of(args, AutoConfig.from_pretrained(path).get_text_config())
            if not cuda and not args.max_model_len:
                self.context = min(self.context, 8192)
            # On CPU a prompt must not be cut into chunks: vLLM 0.32 rewinds the seeded generator of a request after a
            # chunk, which a CPU generator cannot do (RuntimeError: CPU Generator does not use offset).
            cpu = {} if cuda else {"enforce_eager": True, "enable_chunked_prefill": False,
                                   "max_num_batched_tokens": max(16384, self.context)}
            self.engine = (LLMEngine if self.here else AsyncLLM).from_engine_args(AsyncEngineArgs(
                model=str(path), dtype=dtype, max_model_len=self.context, max_num_seqs=256,
                enable_prefix_caching=True, seed=args.seed, gpu_memory_utilization=args.gpu_memory_utilization,
                tensor_parallel_size=args.tensor_parallel_size, data_parallel_size=args.data_parallel_size,
                disable_log_stats=True, **cpu))
        except Exception as e:  # vLLM refuses models, flags and too little memory with many kinds of errors
            die(f"{path}: vLLM cannot load it ({first_line(e)})")
        self.waiting, self.futures, self.number = [], {}, 0
        self.pool, self.driver = ThreadPoolExecutor(1), None
        self.counts = {"prompt_tokens": 0, "cached_tokens": 0, "steps": 0}

    async def generate(self, messages, n, seed, temperature, max_tokens, conversation):
        prompt = encode_chat(self.tokenizer, messages)
        room = min(max_tokens, self.context - len(prompt))
        if room < 1:
            raise Refused(f"prompt of {len(prompt)} tokens does not fit the context of {self.context} tokens")
        self.number += 1
        name, params = str(self.number), self.params(n=n, seed=seed, temperature=temperature, max_tokens=room)
        if self.here:
            self.futures[name] = asyncio.get_running_loop().create_future()
            self.waiting.append((name, prompt, params))
            if self.driver is None or self.driver.done():
                self.driver = asyncio.create_task(self.drive())
            result = await self.futures[name]
        else:
            try:
                async for result in self.engine.generate({"prompt_token_ids": prompt}, params, name):
                    pass
            except Exception as e:
                raise Stop(f"the vLLM engine died: {first_line(e)}") from e
        self.counts["prompt_tokens"] += len(prompt)
        self.counts["cached_tokens"] += result.num_cached_tokens or 0
        return [Output(self.tokenizer.decode(o.token_ids, skip_special_tokens=True), list(o.token_ids),
                       [ranks[token].logprob for token, ranks in zip(o.token_ids, o.logprobs)], len(o.token_ids))
                for o in sorted(result.outputs, key=lambda o: o.index)]

    def forget(self, conversation):
        pass  # vLLM's prefix cache needs no help

    async def drive(self):
        try:
            while self.waiting or self.engine.has_unfinished_requests():
                for result in await asyncio.get_running_loop().run_in_executor(self.pool, self.step):
                    self.futures.pop(result.request_id).set_result(result)
        except Exception as e:
            for future in self.futures.values():
                future.set_exception(Stop(f"the vLLM engine died: {first_line(e)}"))

    def step(self):
        waiting, self.waiting = self.waiting, []
        for name, prompt, params in waiting:
            self.engine.add_request(name, {"prompt_token_ids": prompt}, params)
        self.counts["steps"] += 1
        return [r for r in self.engine.step() if r.finished]


class ServerEngine:
    """An OpenAI-compatible server: chat completions over plain HTTP, one thread a request."""

    def __init__(self, url, args, name, key, limit):
        self.url, self.args, self.name = url.rstrip("/"), args, name
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self.pool = ThreadPoolExecutor(limit)
        self.dialect = set()  # what this server wants otherwise: found out from its refusals
        self.counts = {"prompt_tokens": 0, "cached_tokens": 0, "requests": 0, "retries": 0}
        self.lock = threading.Lock()
        if self.name is None:
            models = self.models()
            self.name = models[0] if models else die(f"{url}: the server names no model; give one with --model-name")

    def models(self):
        try:
            answer = self.http("/models", None)
            return [m["id"] for m in answer["data"]]
        except (OSError, ValueError, KeyError, TypeError, HTTPException) as e:
            die(f"{self.url}: no list of models from this server ({first_line(e)}); check the URL, or name the model "
                "with --model-name")

    def http(self, path, body):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self.headers)
        with urllib.request.urlopen(request, timeout=self.args.timeout) as response:
            return json.loads(response.read())

    async def generate(self, messages, n, seed, temperature, max_tokens, conversation):
        outputs = []
        while len(outputs) < n:  # some servers give one choice however many are asked for
            body = {"messages": messages, "n": n - len(outputs), "seed": (seed + len(outputs)) % (1 << 31),
                    "temperature": temperature, "max_tokens": max_tokens}
            outputs += await asyncio.get_running_loop().run_in_executor(self.pool, self.ask, body)
        return outputs[:n]

    def forget(self, conversation):
        pass

    def ask(self, body):
        """One request until it is answered: Outputs, Refused, or Stop."""
        problem, attempt = None, 0
        while attempt <= self.args.retries:
            sent = self.translate(body)
            wait = min(60, 0.5 * 2 ** attempt) * random.uniform(0.5, 1.5)
            try:
                return self.read(self.http("/chat/completions", sent))
            except urllib.error.HTTPError as e:
                text = e.read().decode(errors="replace")[:2000]
                problem = f"HTTP {e.code}: {message_of(text)}"
                if e.code in (401, 403):
                    raise Stop(f"{self.url} refused the key in OPENAI_API_KEY ({problem})", 2) from e
                if e.code == 404:
                    raise Stop(f"{self.url} has no model {self.name!r} ({problem})", 2) from e
                if e.code in (400, 413, 422):
                    with self.lock:  # another request may have learnt the same meanwhile
                        if self.translate(body) == sent and not self.learn(text):
                            raise Refused(problem) from e
                    continue
                if e.headers.get("Retry-After", "").isdigit():
                    wait = max(wait, min(120, int(e.headers["Retry-After"])))
            except (OSError, HTTPException) as e:  # refused, reset, timed out, cut off
                problem = first_line(e)
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as e:
                problem = f"a reply that is no chat completion ({type(e).__name__}: {first_line(e)})"
            attempt += 1
            if attempt <= self.args.retries:
                with self.lock:
                    self.counts["retries"] += 1
                time.sleep(wait)
        raise Stop(f"{self.url} failed {attempt} times, the last time with: {problem}; finished episodes are saved, "
                   "and the same command continues")

    def translate(self, body):
        """The request in this server's dialect."""
        body = {"model": self.name, **body}
        if body["n"] == 1:
            del body["n"]
        if "max_tokens" in self.dialect:
            body["max_completion_tokens"] = body["max_tokens"]
        if "system" in self.dialect:
            body["messages"] = merge_system(body["messages"])
        return {k: v for k, v in body.items() if k not in self.dialect}

    def learn(self, text):
        """Whether a refusal names something that can be said otherwise: o1-mini wants no system role and no
        temperature."""
        message = message_of(text).lower()
        signs = {"max_tokens": "max_completion_tokens", "temperature": "temperature", "system": "role", "seed": "seed",
                 "n": "'n'"}
        for word, sign in signs.items():
            if word not in self.dialect and sign in message and word in message and "context" not in message:
                self.dialect.add(word)
                print(f"{self.url}: the server wants it without {word} ({message_of(text)})", file=sys.stderr)
                return True
        return False

    def read(self, answer):
        """Outputs of an answer; anything that is not one raises."""
        outputs = []
        for choice in answer["choices"]:
            text = choice["message"]["content"]
            if text is None and choice.get("finish_reason") in ("length", "content_filter"):
                text = ""
            if not isinstance(text, str):
                raise TypeError("no content")
            outputs.append(Output(text))
        if not outputs:
            raise IndexError("no choices")
        usage = answer.get("usage") or {}
        tokens = usage.get("completion_tokens") or sum(len(o.text) // 4 for o in outputs)
        for o in outputs:
            o.tokens = tokens / len(outputs)
        with self.lock:
            self.counts["requests"] += 1
            self.counts["prompt_tokens"] += usage.get("prompt_tokens") or 0
            self.counts["cached_tokens"] += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return outputs


def message_of(text):
    """The sentence in a server's error."""
    try:
        error = json.loads(text).get("error", text)
        return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
    except (ValueError, AttributeError):
        return text.strip()[:300]


def is_url(spec):
    return str(spec).startswith(("http://", "https://"))


def choose_engine(spec, args):
    """server, vllm or transformers. auto: vLLM where it is installed, but our own batching for a tiny model on CPU."""
    if is_url(spec):
        return "server"
    if args.engine != "auto":
        return args.engine
    import importlib.util
    prepare_cpu()
    import torch
    if importlib.util.find_spec("vllm") is None:
        return "transformers"
    files = list(Path(spec).glob("*.safetensors")) if Path(spec).is_dir() else []
    tiny = files and sum(f.stat().st_size for f in files) < 4 * TINY
    return "transformers" if tiny and not torch.cuda.is_available() else "vllm"


def make_engine(spec, name, role, args, limit, made):
    """The engine for a model; the same model is loaded once (`made`: (spec, name) -> engine)."""
    if (spec, name) not in made:
        kind = choose_engine(spec, args)
        if kind == "server":
            key = os.environ.get(f"{role.upper()}_API_KEY") or os.environ.get("OPENAI_API_KEY")
            made[spec, name] = ServerEngine(spec, args, name, key, limit)
        else:
            made[spec, name] = {"vllm": VLLMEngine, "transformers": TransformersEngine}[kind](spec, args, limit)
    return made[spec, name]


# ---------------------------------------------------------------------------------------------------------------------
# Best of N: step rewards


def put_c_in_front(messages, ground_truth):
    """The critic's context: c before the first thing that the user says."""
    first = next(i for i, m in enumerate(messages) if m["role"] == "user")
    content = f"In light that the final answer is: {ground_truth}.\n\n{messages[first]['content']}"
    return messages[:first] + [{**messages[first], "content": content}] + messages[first + 1:]


def response_values(model, sequences, head=None):
    """For each (prompt ids, response ids): log pi(token | what stands before) of the response's tokens, in float32;
    with a head, the head's value at each of them. Lists of (L,) tensors."""
    import torch
    longest = max(len(p) + len(r) for p, r in sequences)
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)  # right-padded: causal attention never looks there
    for row, (p, r) in enumerate(sequences):
        ids[row, :len(p) + len(r)] = torch.tensor([*p, *r])
    values = []
    with torch.inference_mode():
        hidden = model.base_model(input_ids=ids.to(model.device), use_cache=False).last_hidden_state  # (B, T, D)
        for h, (p, r) in zip(hidden, sequences):
            if head is not None:
                values.append(head(h[len(p):len(p) + len(r)].float())[:, 0].cpu())
                continue
            logits = model.get_output_embeddings()(h[len(p) - 1:len(p) + len(r) - 1]).float()  # (L, V)
            cap = getattr(model.config, "final_logit_softcapping", None)
            logits = cap * torch.tanh(logits / cap) if cap else logits
            values.append(logits.log_softmax(-1).gather(1, torch.tensor([r], device=logits.device).T)[:, 0].cpu())
    return values


class CriticReward:
    """The step reward of a trained critic: Eq. 3, A = 1/L sum_l log pi_theta(a^l | ..) - log pi_ref(a^l | ..), or its
    head's value."""

    def __init__(self, args, agent_tokenizer):
        prepare_cpu()
        import torch
        from transformers import AutoModelForCausalLM
        try:
            self.note = json.loads((Path(args.critic) / "critic.json").read_text(encoding="utf-8"))
            [self.note[key] for key in ("head", "context", "advantage", "reference", "weights")]
        except (OSError, ValueError, LookupError, TypeError):
            die(f"{args.critic}: no whole critic.json in there; train one with train_critic.py, or name another with "
                "--critic")
        head = self.note["head"]
        if self.note.get("pictures"):
            die(f"{args.critic}: this critic sees pages, which --step-reward does not show it; use another critic")
        if (args.step_reward == "value") != (head == "value"):
            die(f"--step-reward {args.step_reward} needs another critic: {args.critic} has head {head!r}")
        if args.step_reward == "critic" and self.note["context"] != "with-c":
            die(f"{args.critic}: this critic was trained without c; use --step-reward critic-without-c")
        self.with_c = self.note["context"] == "with-c" and args.step_reward != "critic-without-c"
        self.tokenizer = load_tokenizer(args.critic)
        self.same_ids = agent_tokenizer is not None and agent_tokenizer.get_vocab() == self.tokenizer.get_vocab()
        cuda = torch.cuda.is_available()
        load = lambda path: AutoModelForCausalLM.from_pretrained(  # noqa: E731
            path, dtype=torch.bfloat16 if cuda else torch.float32).to("cuda" if cuda else "cpu").eval()
        self.head = None
        try:
            self.critic = load(args.critic)
            self.reference = load(self.note["reference"]) if head == "log-ratio" else None
        except Exception as e:
            die(f"{args.critic}: the critic or its reference {self.note['reference']} cannot be loaded "
                f"({first_line(e)})")
        if self.note["weights"]:
            self.head = torch.nn.Linear(len(self.note["weights"]["weight"]), 1).to(self.critic.device)
            self.head.weight.data.copy_(torch.tensor([self.note["weights"]["weight"]]))
            self.head.bias.data.copy_(torch.tensor(self.note["weights"]["bias"]))
        self.pool = ThreadPoolExecutor(1)

    def scores(self, messages, task, outs):
        if self.with_c:
            messages = put_c_in_front(messages, task["ground_truth"])
        prompt = encode_chat(self.tokenizer, messages)
        texts = self.tokenizer([o.text for o in outs], add_special_tokens=False)["input_ids"]
        responses = [o.ids if self.same_ids and o.ids else ids + [self.tokenizer.eos_token_id]
                     for o, ids in zip(outs, texts)]
        values = response_values(self.critic, [(prompt, r) for r in responses], self.head)
        if self.reference is not None:
            values = [v - b for v, b in zip(values, response_values(self.reference, [(prompt, r) for r in responses]))]
        if self.note["head"] == "value":
            return [float(v[-1]) for v in values]
        return [float(v.double().sum() if self.note["advantage"] == "sum" else v.double().mean()) for v in values]

    async def best(self, messages, task, outs, key):
        scores = await asyncio.get_running_loop().run_in_executor(self.pool, self.scores, messages, task, outs)
        return max(range(len(outs)), key=lambda i: scores[i])


class JudgeReward:
    """The step reward of an LLM that compares two actions with the reference in view: a knock-out among the N."""

    def __init__(self, engine, args):
        self.engine, self.args = engine, args

    async def better(self, task, dialogue, outs, i, j, key):
        """The winner of two; which of them stands first is drawn, since judges prefer a place."""
        seed = derive_seed(self.args.seed, *key, "judge", i, j)
        first, second = (i, j) if seed % 2 else (j, i)
        content = [parse_output(outs[k].text, False)[0] for k in (first, second)]
        prompt = JUDGE.format(reference=task["ground_truth"], a=content[0], b=content[1],
                              dialogue=as_text(dialogue, {"user": "Human", "assistant": "Assistant"}))
        conversation = (*key, "judge", i, j)
        [out] = await self.engine.generate([{"role": "user", "content": prompt}], 1, seed, 0.0, 64, conversation)
        self.engine.forget(conversation)
        said = re.findall(r"\b[AB]\b", out.text.rsplit("</think>", 1)[-1])
        return second if said and said[0] == "B" else first

    async def best(self, messages, task, outs, key):
        dialogue, left = [m for m in messages if m["role"] != "system"], list(range(len(outs)))
        while len(left) > 1:
            pairs = list(zip(left[::2], left[1::2]))
            winners = await asyncio.gather(*(self.better(task, dialogue, outs, i, j, key) for i, j in pairs))
            left = list(winners) + (left[-1:] if len(left) % 2 else [])
        return left[0]


# ---------------------------------------------------------------------------------------------------------------------
# Episodes


@dataclass
class Stats:
    """What the progress bar and the metrics file show."""
    start: float = field(default_factory=time.time)
    episodes: int = 0
    tokens: float = 0
    waited: float = 0.0  # seconds that episodes waited for the simulator, summed over episodes
    lived: float = 0.0  # seconds that episodes took, summed
    leaks: int = 0  # replies of a model simulator that contain code
    turns_refused: int = 0  # --candidates: turns that the engine refused
    finish: dict = field(default_factory=dict)
    errors: Counter = field(default_factory=Counter)  # why episodes ended in an error


async def episode(args, engine, simulate, reward, system, task, sample, stats):
    """One dialogue to its end, as a list of its one record."""
    began, waited = time.time(), 0.0
    dialogue = [{"role": "user", "content": task["problem_description"]}]
    answer, finish, leaks = None, None, 0
    key = (task["task_id"], sample)
    try:
        for turn in range(args.max_turns):
            prompt = messages_before(system, dialogue)
            outs = await engine.generate(prompt, args.best_of_n, derive_seed(args.seed, *key, turn), args.temperature,
                                         args.max_tokens, key)
            stats.tokens += sum(o.tokens for o in outs)
            out = outs[await reward.best(prompt, task, outs, (*key, turn))] if reward else outs[0]
            content, answer, finish = parse_output(out.text, turn == args.max_turns - 1)
            dialogue.append({"role": "assistant", "content": content, "output": out.text}
                            | ({"output_ids": out.ids} if out.ids else {}))
            if finish:
                break
            asked = time.time()
            reply = await simulate(task, sample, dialogue)
            waited += time.time() - asked
            leaks += args.simulator not in ("scripted", "human") and leaks_code(reply, task["ground_truth"])
            dialogue.append({"role": "user", "content": reply})
    except Refused as e:
        answer, finish = None, f"error: {e}"
    engine.forget(key)
    stats.episodes += 1
    stats.waited += waited
    stats.lived += time.time() - began
    stats.leaks += leaks
    kind = finish.split(":")[0]
    stats.finish[kind] = stats.finish.get(kind, 0) + 1
    stats.errors.update([finish] if kind == "error" else [])
    return [{"task_id": task["task_id"], "sample": sample, "domain": task["domain"], "task": task, "system": system,
             "dialogue_history": dialogue, "answer": answer, "finish": finish, "model": args.model_name or args.model,
             "simulator": args.simulator_name or args.simulator, "seed": args.seed}
            | ({"leaks": leaks} if leaks else {})]


async def candidates(args, engine, trajectory, done, stats):
    """--candidates actions at every agent turn of one trajectory that is not done; one record a turn."""
    key = (trajectory["task_id"], trajectory["sample"])
    dialogue, records = trajectory["dialogue_history"], []
    for turn, i in enumerate(i for i, m in enumerate(dialogue) if m["role"] == "assistant"):
        if (*key, turn) in done:
            continue
        prompt = messages_before(trajectory["system"], dialogue[:i])
        try:
            outs = await engine.generate(prompt, args.candidates, derive_seed(args.seed, *key, turn, "candidates"),
                                         args.temperature, args.max_tokens, key)
        except Refused as e:
            stats.turns_refused += 1
            print(f"{args.input}: turn {turn} of task {key[0]}, sample {key[1]} is left out: {e}", file=sys.stderr)
            continue
        stats.tokens += sum(o.tokens for o in outs)
        actions = [{"output": o.text} | ({"output_ids": o.ids, "logp": round(sum(o.logps), 5)} if o.ids else {})
                   for o in outs]
        records.append({k: v for k, v in trajectory.items() if k not in KNOWN} | {
            "turn": turn, "prompt": prompt, "candidates": actions})
    engine.forget(key)
    stats.episodes += 1
    return records


async def run(args, jobs, limit, stats, engine, settings):
    """Every job at its own pace, at most `limit` in flight; records are written as jobs end, each line flushed."""
    from tqdm import tqdm
    human = args.simulator == "human" and not args.candidates
    bar = tqdm(total=len(jobs), unit="trajectory" if args.candidates else "episode", disable=human, smoothing=0.05,
               mininterval=0.5 if sys.stderr.isatty() else 30)  # a log file gets a line now and then
    todo, out = iter(jobs), None

    async def worker():
        nonlocal out
        for job in todo:  # the workers share the iterator
            for record in await job():
                try:
                    out = out or open_output(args, settings)
                    out.write(json.dumps(record, ensure_ascii=False) + "\n")
                    out.flush()
                except OSError as e:
                    raise Stop(f"{args.out}: {e.strerror} while writing; finished episodes are saved, make room and "
                               "run the same command again") from e
                if human:
                    show_score(record)
            m = metrics_of(stats, engine)
            bar.set_postfix_str(f"{m['tokens_per_second']:.0f} tokens/s, {m['cache_hits']:.0%} cached" + (
                "" if args.candidates else f", {m['waiting_on_simulator']:.0%} waiting for the human"), refresh=False)
            bar.update()

    try:
        await asyncio.gather(*(worker() for _ in range(min(limit, len(jobs)))))
    finally:
        bar.close()
    if out:
        out.close()


def metrics_of(stats, engine):
    seconds = max(1e-9, time.time() - stats.start)
    return {"seconds": seconds, "episodes": stats.episodes, "tokens": stats.tokens,
            "episodes_per_second": stats.episodes / seconds, "tokens_per_second": stats.tokens / seconds,
            "waiting_on_simulator": stats.waited / stats.lived if stats.lived else 0.0,
            "cache_hits": engine.counts["cached_tokens"] / max(1, engine.counts["prompt_tokens"]),
            "finish": stats.finish, "leaks": stats.leaks, "turns_refused": stats.turns_refused, **engine.counts}


def next_command(args):
    """What comes after this stage, with the flags that it needs to find this one's output."""
    runs, words = Path("runs") / args.run, []
    if args.candidates:
        words = ["train_policy.py"] + ["--domain", "frontend"] * (args.domain == "frontend")
        words += ["--in", args.out] if args.out != runs / "train.candidates.jsonl" else []
        words += ["--model", args.model] if args.model != str(runs / "base") and not is_url(args.model) else []
    else:
        words = ["evaluate.py"]
        words += (["--split", args.split] if args.out == runs / f"{args.split}.trajectories.jsonl" else
                  ["--in", args.out])
    return shlex.join(["python", *map(str, words), *(["--run", args.run] if args.run != "default" else [])])


def main(args):
    # what there is to do, and what is done
    inputs = read_trajectories(args) if args.candidates else read_tasks(args)
    tasks = {r["task_id"]: r["task"] if args.candidates else r for r in inputs}
    engine_name = choose_engine(args.model, args)
    settings = settings_of(args, engine_name)
    try:
        check_settings(args, settings)
        key = ("task_id", "sample", "turn") if args.candidates else ("task_id", "sample")
        done = set() if args.overwrite else resume(args.out, tasks, key)
    except OSError as e:
        die(f"{args.out}: {e.strerror}")
    if args.candidates:
        todo = [r for r in inputs if any((r["task_id"], r["sample"], turn) not in done for turn in range(
            sum(m["role"] == "assistant" for m in r["dialogue_history"])))]
    else:
        todo = [(t, s) for s in range(args.samples) for t in inputs if (t["task_id"], s) not in done]
    if done:
        print(f"{args.out}: continuing after {len(done)} records", file=sys.stderr)

    # who plays
    cuda = engine_name != "server" and __import__("torch").cuda.is_available()
    limit = args.concurrency or (32 if engine_name == "server" else 256 if cuda else 16 if args.candidates else 128)
    if args.simulator == "human":
        limit = 1
    engine, simulate, reward, pages, made = None, None, None, None, {}
    if todo:
        engine = make_engine(args.model, args.model_name, "agent", args, limit, made)
    if todo and not args.candidates:
        shows_pages = args.domain == "frontend" and args.max_turns > 1  # every task is of --domain (read_jsonl)
        if args.simulator == "scripted":
            pages = PagePartner() if shows_pages else None

            async def simulate(task, sample, dialogue):
                return await pages.reply(task, dialogue) if pages else scripted_reply(
                    task["facts"], dialogue[-1]["content"])
        elif args.simulator == "human":
            pages = PagePartner() if shows_pages else None

            async def simulate(task, sample, dialogue):
                if pages:
                    said, reference = await pages.as_files(task, sample, dialogue, args.out.parent / "talk")
                    return human_reply(task, dialogue, said, reference)
                return human_reply(task, dialogue, dialogue[-1]["content"])
        else:
            partner = make_engine(args.simulator, args.simulator_name, "simulator", args, limit, made)
            if isinstance(partner, ServerEngine) and shows_pages:
                pages = PagePartner()

            async def simulate(task, sample, dialogue):
                if pages:
                    return await pages.vision_reply(partner, args, task, sample, dialogue)
                return await model_reply(partner, args, task, sample, dialogue)
        if args.best_of_n > 1 and args.step_reward == "judge":
            reward = JudgeReward(make_engine(args.judge, args.judge_name, "judge", args, limit, made), args)
        elif args.best_of_n > 1:
            reward = CriticReward(args, getattr(engine, "tokenizer", None))

    # play
    stats = Stats()
    if args.candidates:
        jobs = [lambda r=r: candidates(args, engine, r, done, stats) for r in todo]
    else:
        system = system_prompt(args, args.domain)
        jobs = [lambda t=t, s=s: episode(args, engine, simulate, reward, system, t, s, stats) for t, s in todo]
    stopped, quick_end = None, signal.getsignal(signal.SIGINT)
    if todo:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on Ctrl-C ends whole lines
            asyncio.run(run(args, jobs, limit, stats, engine, settings))
        except Stop as e:
            stopped = e
        except KeyboardInterrupt:
            stopped = Stop("stopped; finished episodes are saved, and the same command continues", 130)
        signal.signal(signal.SIGINT, quick_end)
        if pages:
            pages.renderer.close()
        name = args.out.name.removesuffix(".jsonl").removesuffix(".trajectories") + ".rollout.json"
        metrics = metrics_of(stats, engine) | {"engine": engine_name, "concurrency": limit,
                                               "continued_after": len(done)}
        try:
            args.out.with_name(name).write_text(json.dumps(metrics, indent=1))
        except OSError:
            pass  # the disk is full, which `stopped` says
        unit = ("trajectory" if stats.episodes == 1 else "trajectories") if args.candidates else (
            "episode" if stats.episodes == 1 else "episodes")
        print(f"{args.out}: {stats.episodes} {unit} in {metrics['seconds']:.1f} s, "
              f"{metrics['tokens_per_second']:.0f} tokens/s" + (f", ended {stats.finish}" if stats.finish else "")
              + (f", {stats.leaks} replies with code" if stats.leaks else "")
              + (f", {stats.turns_refused} turns left out" if stats.turns_refused else ""))
        for why, count in stats.errors.most_common(3):
            print(f"  {count} x {first_line(why)}")
    else:
        print(f"{args.out}: nothing left to do, {len(done)} records")
    if not stopped and args.out.exists():
        last = len(inputs)  # where records go whose task is no longer in the input
        if args.candidates:
            order = {(r["task_id"], r["sample"]): n for n, r in enumerate(inputs)}
            place = lambda task, sample, turn: (order.get((task, sample), last), task, sample, turn)
        else:
            order = {task["task_id"]: n for n, task in enumerate(inputs)}
            place = lambda task, sample: (sample, order.get(task, last), task)
        try:
            put_in_order(args.out, place, key)
        except OSError as e:
            stopped = Stop(f"{args.out} could not be put in order ({e.strerror}); the same command tries again")
    if stopped:
        print(f"{Path(sys.argv[0]).name}: {stopped}", file=sys.stderr)
    else:
        print("next: " + next_command(args))
    for made_engine in made.values():
        if hasattr(getattr(made_engine, "engine", None), "shutdown"):
            made_engine.engine.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(stopped.code if stopped else 0)  # engines and requests under way leave threads that would be waited for


if __name__ == "__main__":
    main(parse_args())
