"""Rollouts: episodes of an agent with a human simulator, and candidate actions for given episodes.

An episode starts with a vague request o_1. At turn t the agent sees the dialogue o_t and acts with a text a_t; the
simulator, which sees the hidden reference c, replies; at most --max-turns agent turns. With --candidates n no episode
is played: for every agent turn of given trajectories n actions a_t ~ pi(. | o_t) are sampled, which train_policy.py
ranks with the critic.

Protocol. A response may think before "OUTPUT:"; only what follows it enters the dialogue. What follows
"I WANT TO ANSWER:" is the final answer; at the last turn the whole response counts as the answer.

Engines (--engine). All of them answer `await engine.generate(messages, ...)`, and an episode is one coroutine that
awaits: no episode waits for another, the engine batches whatever is ready.
  transformers  our own continuous batching over a Hugging Face model.
  vllm          in-process vLLM with prefix caching.
  auto          vllm where it is installed, except for tiny models on CPU, where a step of vLLM costs several times
                what the model does.

The same seeds give the same trajectories, whatever runs beside an episode: each request draws from a generator of its
own, seeded by a hash of (--seed, task, sample, turn).

Reads   data/{domain}/{split}.jsonl (tasks), or with --candidates runs/{run}/{split}.scored.jsonl (trajectories)
Writes  runs/{run}/{split}.trajectories.jsonl or .candidates.jsonl, one record a line, flushed as it is made;
        *.settings.json beside it, and runs/{run}/{split}.rollout.json (throughput)
A file that exists is continued: finished records are skipped, a torn last line is cut off.

    python rollout.py --split train
    python rollout.py --split train --candidates 16
"""
import argparse
import asyncio
import hashlib
import json
import os
import random
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ANSWER_MARK = "I WANT TO ANSWER:"
OUTPUT_MARK = "OUTPUT:"
REPLY_LIMIT = {"backend": 400, "frontend": 1000}  # characters of a simulator's reply (paper, section 3)
TINY = 50_000_000  # parameters; below, on CPU, a step of vLLM costs several times what the model does
PREFILL_TOKENS = 4096  # prompt tokens that the transformers engine takes into one step
CHUNK = 64  # queries per row of its attention
KEYS = 512  # keys per block of its attention: the size of torch's own blocks on CPU

AGENT_MULTI_TURN = """You are a helpful programming assistant. A human wants a Python function and has described it only vaguely. \
Find out what is missing before you write it: ask the human ONE short question at a time about a detail that decides \
how the function behaves (names of fields, thresholds, rounding, ties, empty or bad input, ...). The human cannot read code.
When you know enough, or at your last turn, give the final answer: one line "I WANT TO ANSWER:" and after it only the \
Python code of the whole function, at most 50 lines, with the name and the signature that were asked for.
You have at most {max_turns} turns. You may think first; if you do, write "OUTPUT:" after your thoughts: the human sees \
only what follows it."""

AGENT_SINGLE_TURN = """You are a helpful programming assistant. A human wants a Python function. Do not ask questions: nobody can \
answer them. Decide what the description leaves open in the most likely way and write the function now.
Reply with one line "I WANT TO ANSWER:" and after it only the Python code of the whole function, at most 50 lines, with \
the name and the signature that were asked for. You may think first; if you do, write "OUTPUT:" after your thoughts."""

AGENT_PAGES_MULTI_TURN = """You are a helpful web designer. A human wants a web page and has described it only vaguely. In each turn \
show ONE complete page, at most about 100 lines: HTML in <html> ... </html>, styled with Tailwind CSS classes alone, linked as
{stylesheet}
No JavaScript. The only pictures are those at https://picsum.photos/id/48/W/H, in any width W and height H. The human sees the \
page as a picture, beside the page that they have in mind, and tells you the most outstanding differences. Improve the page accordingly.
When nothing is left to improve, or at your last turn, give the final page after a line "I WANT TO ANSWER:".
You have at most {max_turns} turns. You may think first; if you do, write "OUTPUT:" after your thoughts: the human sees \
only what follows it."""

AGENT_PAGES_SINGLE_TURN = """You are a helpful web designer. A human wants a web page. Do not ask questions: nobody can answer them. \
Reply with one line "I WANT TO ANSWER:" and after it ONE complete page, at most about 100 lines: HTML in <html> ... </html>, styled \
with Tailwind CSS classes alone, linked as
{stylesheet}
No JavaScript. The only pictures are those at https://picsum.photos/id/48/W/H, in any width W and height H. \
You may think first; if you do, write "OUTPUT:" after your thoughts."""


def parse_args():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0],
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
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
    p.add_argument("--max-turns", type=int, default=10, help="agent turns per episode; 1 = answer at once, no questions")
    p.add_argument("--seed", type=int, default=0, help="seed of all sampling")
    p.add_argument("--system", default=None, metavar="FILE", help="file with the agent's instructions instead of ours")
    # candidate actions
    p.add_argument("--candidates", type=int, default=0, metavar="N",
                   help="sample N actions at every turn of given trajectories instead of playing (paper: 16)")
    p.add_argument("--fraction", type=float, default=1.0,
                   help="with --candidates: use this share of the trajectories, the first ones (released code: 0.1)")
    # the agent
    p.add_argument("--model", default=None, help="agent: folder or hub name (default runs/{run}/base)")
    p.add_argument("--temperature", type=float, default=1.0, help="of the agent's sampling; 0 = greedy")
    p.add_argument("--max-tokens", type=int, default=1024, help="new tokens per response of the agent")
    # the partner
    p.add_argument("--simulator", default="scripted", help="scripted: answers from the task's facts")
    # the engine
    p.add_argument("--engine", default="auto", choices=["auto", "vllm", "transformers"], help="what runs the model")
    p.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"],
                   help="auto = float32 on CPU, bfloat16 on CUDA")
    p.add_argument("--concurrency", type=int, default=0,
                   help="episodes (or trajectories) in flight; 0 = 256 on CUDA; on CPU 128, with --candidates 16")
    p.add_argument("--max-model-len", type=int, default=0, help="tokens of context; 0 = the model's own")
    p.add_argument("--gpu-memory-utilization", type=float, default=0.9, help="vLLM: share of each GPU's memory")
    p.add_argument("--tensor-parallel-size", type=int, default=1, help="vLLM: GPUs per copy of the model")
    p.add_argument("--data-parallel-size", type=int, default=1, help="vLLM: copies of the model")
    return p.parse_args()


def die(message):
    """Stop for a user's mistake: one sentence on stderr, exit code 2."""
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(2)


# ---------------------------------------------------------------------------------------------------------------------
# Files


def read_jsonl(path, required=()):
    """Records of a JSON lines file. Stops with one sentence that names file, line, found and expected."""
    if not Path(path).is_file():
        die(f"{path}: no such file")
    with open(path, encoding="utf-8", errors="replace") as f:
        for number, line in enumerate(f, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                torn = "" if line.endswith("\n") else " (a torn last line: run the stage that writes this file again)"
                die(f"{path}, line {number}: found {line.strip()[:60]!r}, expected a JSON object{torn}")
            if not isinstance(record, dict):
                die(f"{path}, line {number}: found {type(record).__name__}, expected a JSON object")
            missing = [key for key in required if key not in record]
            if missing:
                die(f"{path}, line {number}: key {missing[0]!r} is missing, found {', '.join(sorted(record)) or 'none'}")
            record.setdefault("task_id", f"{Path(path).stem}-{number:05d}")  # released ColBench lines have none
            record.setdefault("domain", args.domain)
            yield record


def resume(path):
    """Records already in the output; a torn last line is cut off the file."""
    if not path.exists():
        return []
    records, good = [], 0
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                die(f"{path}, line {number}: not JSON; use --overwrite or another --out")
            if record is None:
                break
            records.append(record)
            good += len(line)
    if good < path.stat().st_size:
        os.truncate(path, good)
    return records


def check_settings(path, settings):
    """The settings that decide the content stand beside the output; continuing it with others is an error."""
    path = path.with_suffix(".settings.json")
    old = json.loads(path.read_text()) if path.exists() and not args.overwrite else settings
    for name in settings:
        if old.get(name) != settings[name]:
            die(f"{path}: {name} was {old.get(name)!r}, now {settings[name]!r}; use --overwrite or another --out")
    path.write_text(json.dumps(settings, indent=1))


# ---------------------------------------------------------------------------------------------------------------------
# Protocol and prompts


def parse_output(output, last_turn):
    """(content, answer or None, finish or None) of a raw response."""
    content = output.rsplit(OUTPUT_MARK, 1)[-1].strip()
    if ANSWER_MARK in content:
        return content, content.split(ANSWER_MARK, 1)[1].strip(), "answered"
    return (content, content, "max_turns") if last_turn else (content, None, None)


def system_prompt(domain):
    if args.system:
        return Path(args.system).read_text()
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
    try:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    except Exception:  # templates refuse a system role each with an error of its own
        return tokenizer.apply_chat_template(merge_system(messages), add_generation_prompt=True, return_dict=False)


def derive_seed(*key):
    """A seed for one request, from (seed, task, sample, turn): independent of what runs beside it."""
    return int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()[:6], "big")


# ---------------------------------------------------------------------------------------------------------------------
# Simulators


def scripted_reply(facts, text):
    """The scripted human: at most two sentences from `facts`, by the words of the agent's `text`.

    A fact scores the number of its keywords among the words of the text; a fact whose own question stands in the text
    wins over all that are only touched. One fact answers, two if the text asks about two."""
    words = set(re.findall(r"\w+", text.lower()))
    asked = [f for f in facts if f["question"].lower() in text.lower()]
    if not asked:
        score = {i: len(words & {k.lower() for k in f["keywords"]}) for i, f in enumerate(facts)}
        best = sorted((i for i in score if score[i]), key=lambda i: -score[i])
        asked = [facts[i] for i in best[:2 if text.count("?") > 1 else 1]]
    reply = " ".join(f["reply"] for f in asked[:2]) or "I do not know."
    return reply[:REPLY_LIMIT["backend"]]


class PagePartner:
    """The scripted human of the frontend: sees the agent's page beside the reference and names the largest differences.

    Two browsers at work, each page measured once: candidates and samples of a task show the same pages again."""

    def __init__(self):
        from render import Renderer
        try:
            self.renderer = Renderer(browsers=2)
        except RuntimeError as problem:
            die(str(problem))
        self.layouts = {}

    async def layout(self, page):
        if page not in self.layouts:
            if len(self.layouts) >= 20000:
                self.layouts.pop(next(iter(self.layouts)))
            self.layouts[page] = asyncio.ensure_future(asyncio.wrap_future(self.renderer.submit(page, layout=True, picture=False)))
        return (await self.layouts[page]).layout

    async def reply(self, task, dialogue):
        from render import NO_PAGE, extract_page, page_reply
        page = extract_page(dialogue[-1]["content"])
        if page is None:
            return NO_PAGE
        mine, reference = await asyncio.gather(self.layout(page), self.layout(task["ground_truth"]))
        return page_reply(mine, reference, limit=REPLY_LIMIT["frontend"])


# ---------------------------------------------------------------------------------------------------------------------
# Engines


@dataclass
class Output:
    text: str  # without the end-of-turn token
    ids: list = None  # sampled token ids, with the end-of-turn token where the model emitted it
    logps: list = None  # log pi(token), before the temperature


class Refused(Exception):
    """The engine will not do this request; the episode records why and ends."""


def eos_ids(model_config, generation_config, tokenizer):
    ids = {tokenizer.eos_token_id}
    for config in (model_config, generation_config):
        eos = getattr(config, "eos_token_id", None)
        ids |= set(eos) if isinstance(eos, (list, tuple)) else {eos}
    return ids - {None}


class TransformersEngine:
    """Continuous batching over any Hugging Face causal LM that uses the library's attention interface.

    A request owns a row ("slot") of the key/value cache. Each step runs ONE forward pass over a flat list of tokens:
    the prompt suffixes of new requests and the last token of every column (a column = one of a request's n samples).
    The n columns of a request share its prompt: their tokens lie in the same slot, and `mask` says who sees which.
    A later turn of a conversation finds its earlier turns in its slot and feeds only what is new.

    On CPU in float32 a token's numbers do not depend, to the last bit, on what else is in the batch: MKL treats rows
    alike if there are enough of them, so steps are padded to 16 tokens, attention to 4 queries and 64 keys (the sizes
    were found by experiment and are held by a test)."""

    def __init__(self, path, slots):
        import torch
        from transformers import AttentionInterface, AutoModelForCausalLM
        self.torch = torch
        self.tokenizer = load_tokenizer(path)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = {"auto": "bfloat16" if self.device == "cuda" else "float32"}.get(args.dtype, args.dtype)
        AttentionInterface.register("slots", self.attention)
        try:
            self.model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="slots")
        except (ValueError, OSError) as e:
            die(f"cannot load {path} into the transformers engine: {first_line(e)}")
        self.model.to(self.device).eval()
        config = self.model.config.get_text_config()
        self.eos = eos_ids(config, self.model.generation_config, self.tokenizer)
        self.context = args.max_model_len or getattr(config, "max_position_embeddings", 1 << 20)
        self.slots, self.capacity = slots, 0
        self.layers = config.num_hidden_layers
        self.keys, self.values = {}, {}  # layer -> (slots + 1, kv heads, capacity, head width); the last row is scrap
        self.held = [[] for _ in range(slots)]  # token ids whose keys and values lie in the slot's first cells
        self.owner = {}  # conversation -> slot, least recently used first
        self.free = list(range(slots - 1, -1, -1))
        self.waiting, self.active = [], {}  # active: slot -> request
        self.pool = ThreadPoolExecutor(1)
        self.driver = None
        self.counts = {"prompt_tokens": 0, "cached_tokens": 0, "steps": 0}

    async def generate(self, messages, n, seed, temperature, max_tokens, conversation):
        """n Outputs. `conversation` is any hashable key: its earlier turns stay in the cache until `forget`."""
        prompt = encode_chat(self.tokenizer, messages)
        room = min(max_tokens, self.context - len(prompt))
        if room < 1:
            raise Refused(f"prompt of {len(prompt)} tokens does not fit the context of {self.context} tokens")
        import numpy as np
        request = {"prompt": prompt, "n": n, "room": room, "temperature": temperature, "conversation": conversation,
                   "uniform": np.random.default_rng(seed).random((room, n)),  # one draw a token
                   "ids": [[] for _ in range(n)], "logps": [[] for _ in range(n)], "alive": list(range(n)),
                   "future": asyncio.get_running_loop().create_future()}
        self.waiting.append(request)
        if self.driver is None or self.driver.done():
            self.driver = asyncio.create_task(self.drive())
        await request["future"]
        return [Output(self.tokenizer.decode(ids, skip_special_tokens=True), ids, logps)
                for ids, logps in zip(request["ids"], request["logps"])]

    def forget(self, conversation):
        """The conversation is over: its slot may go to another."""
        if conversation in self.owner:
            self.free.append(self.owner.pop(conversation))

    async def drive(self):
        """Steps in a thread of their own while there is work, so that the event loop stays free."""
        loop = asyncio.get_running_loop()
        try:
            while self.waiting or self.active:
                for request in await loop.run_in_executor(self.pool, self.step):
                    request["future"].set_result(None)
        except Exception as e:
            for request in [*self.waiting, *self.active.values()]:
                request["future"].set_exception(e)
            self.waiting, self.active = [], {}

    def admit(self):
        """Slots for waiting requests: the conversation's own, a free one, or the least recently used idle one."""
        new, tokens = [], 0
        while self.waiting and tokens < PREFILL_TOKENS:
            request = self.waiting[0]
            conversation = request["conversation"]
            slot = self.owner.pop(conversation, None)
            if slot is None and self.free:
                slot = self.free.pop()
            if slot is None:
                idle = next((c for c, s in self.owner.items() if s not in self.active), None)
                slot = self.owner.pop(idle, None)
            if slot is None:
                break
            self.owner[conversation] = slot
            held, prompt = self.held[slot], request["prompt"]
            # the last prompt token is always fed: its logits start the response
            limit = min(len(held), len(prompt) - 1)
            shared = next((i for i in range(limit) if held[i] != prompt[i]), limit)
            request.update(slot=slot, start=shared, cells=len(prompt))
            self.held[slot] = prompt[:]
            self.active[slot] = request
            new.append(request)
            tokens += len(prompt) - shared
            self.counts["prompt_tokens"] += len(prompt)
            self.counts["cached_tokens"] += shared
            self.waiting.pop(0)
        return new

    def grow(self, cells, columns):
        """Room for `cells` cells per slot and `columns` columns in the mask."""
        torch = self.torch
        columns = max(columns, 4)
        if self.capacity == 0 or cells > self.capacity or columns > self.mask.shape[1]:
            old, old_mask = self.capacity, getattr(self, "mask", None)
            self.capacity = max(cells, old)
            columns = max(columns, 0 if old_mask is None else old_mask.shape[1])
            self.mask = torch.zeros(self.slots, columns, self.capacity, dtype=torch.bool, device=self.device)
            if old_mask is not None:
                self.mask[:, :old_mask.shape[1], :old] = old_mask
            for cache in (self.keys, self.values):
                for layer, c in cache.items():
                    cache[layer] = c.new_zeros(*c.shape[:2], self.capacity, c.shape[3])
                    cache[layer][:, :, :old] = c

    def attention(self, module, query, key, value, attention_mask=None, scaling=None, **kwargs):
        """Replaces the model's attention. query (1, H, N, D), key and value (1, Hkv, N, D) of the step's N tokens."""
        torch, plan = self.torch, self.plan
        layer = module.layer_idx
        if layer not in self.keys:
            shape = (self.slots + 1, key.shape[1], self.capacity, key.shape[3])
            self.keys[layer] = key.new_zeros(shape)
            self.values[layer] = value.new_zeros(*shape[:3], value.shape[3])
        keys, values = self.keys[layer], self.values[layer]
        keys[plan["slot"], :, plan["cell"]] = key[0].transpose(0, 1)
        values[plan["slot"], :, plan["cell"]] = value[0].transpose(0, 1)
        q = query[0].transpose(0, 1)  # (N, H, D)
        out = q.new_zeros(*q.shape[:2], value.shape[3])
        for part in plan["parts"]:
            grid = q.new_zeros(part["rows"], part["width"], *q.shape[1:])  # (rows, T, H, D)
            grid[part["row"], part["column"]] = q[part["tokens"]]
            k, v = keys[part["slots"], :, :part["cells"]], values[part["slots"], :, :part["cells"]]
            o = torch.nn.functional.scaled_dot_product_attention(
                grid.transpose(1, 2), k, v, attn_mask=part["mask"], scale=scaling, enable_gqa=k.shape[1] != q.shape[1])
            out[part["tokens"]] = o.transpose(1, 2)[part["row"], part["column"]]
        return out[None], None  # (1, N, H, D)

    def step(self):
        """One forward pass; returns the requests that are finished."""
        torch = self.torch
        decoding = list(self.active.values())
        new = self.admit()
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
            length = -(-(max(cells) + 1) // KEYS) * KEYS
            rows = max(slots) + 1
            width = -(-max(4, max(r["n"] for r in decoding)) // 4) * 4
            self.grow(length, width)
            self.mask[slots, column, cells] = True
            parts.append({"rows": rows, "width": width, "row": torch.tensor(slots), "column": torch.tensor(column),
                          "tokens": torch.arange(len(ids)), "slots": slice(0, rows), "cells": length,
                          "mask": self.mask[:rows, None, :width, :length]})
        # 2. the prompts of new requests, without what lies in their slots already
        if new:
            longest = max(len(r["prompt"]) for r in new)
            length = -(-longest // KEYS) * KEYS
            self.grow(length, max(r["n"] for r in new))
            first, row, column, begin, of = len(ids), [], [], [], []  # a long suffix is several rows of CHUNK queries
            for r in new:
                suffix = r["prompt"][r["start"]:]
                ids += suffix
                positions += range(r["start"], len(r["prompt"]))
                cells += range(r["start"], len(r["prompt"]))
                slots += [r["slot"]] * len(suffix)
                row += [len(begin) + i // CHUNK for i in range(len(suffix))]
                column += [i % CHUNK for i in range(len(suffix))]
                begin += range(r["start"], len(r["prompt"]), CHUNK)
                of += [r["slot"]] * (len(begin) - len(of))
                wanted.append((len(ids) - 1, r, range(r["n"])))
                self.mask[r["slot"], :, len(r["prompt"]):] = False
                self.mask[r["slot"], :, :len(r["prompt"])] = True
            width = -(-max(4, max(column) + 1) // 4) * 4
            seen = torch.tensor(begin)[:, None] + torch.arange(width)  # (rows, T): the last cell each query may see
            parts.append({"rows": len(begin), "width": width, "row": torch.tensor(row), "column": torch.tensor(column),
                          "tokens": torch.arange(first, len(ids)), "slots": torch.tensor(of), "cells": length,
                          "mask": (torch.arange(length) <= seen[:, :, None])[:, None].to(self.device)})
        # 3. forward, padded with tokens of a scrap slot
        pad = max(16, -(-len(ids) // 4) * 4) - len(ids)
        self.plan = {"slot": torch.tensor(slots + [self.slots] * pad), "cell": torch.tensor(cells + [0] * pad),
                     "parts": parts}
        at = [token for token, _, _ in wanted]
        at += [0] * (max(16, -(-len(at) // 4) * 4) - len(at))
        with torch.inference_mode():
            logits = self.model(input_ids=torch.tensor([ids + [0] * pad], device=self.device), use_cache=False,
                                position_ids=torch.tensor([positions + [0] * pad], device=self.device),
                                logits_to_keep=torch.tensor(at, device=self.device)).logits[0]
            self.sample(logits, wanted)
        # 4. columns end with an end-of-turn token or for lack of room, requests with their last column
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
        """Inverse-CDF sampling, in float64 so that summing V probabilities adds no noise of its own."""
        torch = self.torch
        which, requests, columns = [], [], []
        for i, (_, r, cs) in enumerate(wanted):
            for c in cs:
                which.append(i)
                requests.append(r)
                columns.append(c)
        uniform = [r["uniform"][len(r["ids"][c]), c] for r, c in zip(requests, columns)]
        temperature = torch.tensor([r["temperature"] for _, r, _ in wanted], device=logits.device)
        logits = logits[:len(wanted)].float()
        cdf = (logits / temperature.clamp_min(1e-6)[:, None]).double().softmax(-1).cumsum(-1)  # (wanted, V)
        u = torch.tensor(uniform, device=logits.device, dtype=torch.float64)
        index = torch.tensor(which, device=logits.device)
        tokens = torch.searchsorted(cdf[index], (u * cdf[index, -1])[:, None], right=True)[:, 0]
        tokens = tokens.clamp_max(logits.shape[1] - 1)
        tokens = torch.where(temperature[index] > 0, tokens, logits.argmax(-1)[index])
        logps = logits.log_softmax(-1)[index, tokens].tolist()
        for r, c, token, logp in zip(requests, columns, tokens.tolist(), logps):
            r["ids"][c].append(token)
            r["logps"][c].append(logp)


class VLLMEngine:
    """vLLM in this process: its LLMEngine, stepped in a thread while there is work."""

    def __init__(self, path, slots):
        import torch
        cuda = torch.cuda.is_available()
        if not cuda:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from vllm import EngineArgs, SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.llm_engine import LLMEngine
        self.params = lambda **kw: SamplingParams(logprobs=0, output_kind=RequestOutputKind.FINAL_ONLY, **kw)
        self.tokenizer = load_tokenizer(path)
        dtype = {"auto": "bfloat16" if cuda else "float32"}.get(args.dtype, args.dtype)
        # chunked prefill and per-request seeds do not go together on CPU (RuntimeError: CPU Generator does not use offset)
        self.engine = LLMEngine.from_engine_args(EngineArgs(
            model=str(path), dtype=dtype, enforce_eager=not cuda, max_num_seqs=256, seed=args.seed,
            max_model_len=args.max_model_len or None, enable_prefix_caching=True,
            gpu_memory_utilization=args.gpu_memory_utilization, tensor_parallel_size=args.tensor_parallel_size,
            **({} if cuda else {"enable_chunked_prefill": False, "max_num_batched_tokens": 16384})))
        self.context = self.engine.model_config.max_model_len
        self.waiting, self.futures, self.number = [], {}, 0
        self.pool = ThreadPoolExecutor(1)
        self.driver = None
        self.counts = {"prompt_tokens": 0, "cached_tokens": 0, "steps": 0}

    async def generate(self, messages, n, seed, temperature, max_tokens, conversation):
        prompt = encode_chat(self.tokenizer, messages)
        room = min(max_tokens, self.context - len(prompt))
        if room < 1:
            raise Refused(f"prompt of {len(prompt)} tokens does not fit the context of {self.context} tokens")
        self.number += 1
        name = str(self.number)
        self.futures[name] = asyncio.get_running_loop().create_future()
        self.waiting.append((name, prompt, self.params(n=n, seed=seed, temperature=temperature, max_tokens=room)))
        if self.driver is None or self.driver.done():
            self.driver = asyncio.create_task(self.drive())
        outputs = await self.futures[name]
        return [Output(self.tokenizer.decode(o.token_ids, skip_special_tokens=True), list(o.token_ids),
                       [lp[t].logprob for t, lp in zip(o.token_ids, o.logprobs)])
                for o in sorted(outputs, key=lambda o: o.index)]

    def forget(self, conversation):
        pass  # vLLM's prefix cache needs no help

    async def drive(self):
        loop = asyncio.get_running_loop()
        try:
            while self.waiting or self.engine.has_unfinished_requests():
                for result in await loop.run_in_executor(self.pool, self.step):
                    self.futures.pop(result.request_id).set_result(result.outputs)
        except Exception as e:
            for future in self.futures.values():
                future.set_exception(e)
            self.futures = {}

    def step(self):
        waiting, self.waiting = self.waiting, []
        for name, prompt, params in waiting:
            self.engine.add_request(name, {"prompt_token_ids": prompt}, params)
        self.counts["steps"] += 1
        finished = [r for r in self.engine.step() if r.finished]
        for r in finished:
            self.counts["prompt_tokens"] += len(r.prompt_token_ids)
            self.counts["cached_tokens"] += r.num_cached_tokens or 0
        return finished


def first_line(error):
    return str(error).strip().split("\n")[0][:200]


def load_tokenizer(path):
    from transformers import AutoTokenizer
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (ValueError, OSError) as e:
        die(f"cannot load the tokenizer of {path}: {first_line(e)}")
    if tokenizer.chat_template is None:
        die(f"{path}: the model has no chat template; give an instruction-tuned model, or save one with its tokenizer")
    return tokenizer


def choose_engine(path):
    """auto: vLLM where it is installed, but our own batching for a tiny model on CPU."""
    import importlib.util

    import torch
    if args.engine != "auto":
        return args.engine
    if importlib.util.find_spec("vllm") is None:
        return "transformers"
    size = sum(f.stat().st_size for f in Path(path).glob("*.safetensors")) if Path(path).is_dir() else 1 << 60
    return "transformers" if not torch.cuda.is_available() and size < 4 * TINY else "vllm"


# ---------------------------------------------------------------------------------------------------------------------
# Episodes


@dataclass
class Stats:
    """What the progress bar and the metrics file show."""
    start: float = field(default_factory=time.time)
    episodes: int = 0
    tokens: int = 0
    waited: float = 0.0  # seconds that episodes waited for the simulator, summed over episodes
    lived: float = 0.0  # seconds that episodes took, summed
    finish: dict = field(default_factory=dict)


async def episode(engine, task, sample, simulate):
    """One dialogue to its end; the trajectory record."""
    began, waited = time.time(), 0.0
    system = system_prompt(task["domain"])
    dialogue = [{"role": "user", "content": task["problem_description"]}]
    answer, finish = None, None
    key = (task["task_id"], sample)
    for turn in range(args.max_turns):
        try:
            [out] = await engine.generate(messages_before(system, dialogue), 1, derive_seed(args.seed, *key, turn),
                                          args.temperature, args.max_tokens, key)
        except Refused as e:
            finish = f"error: {e}"
            break
        content, answer, finish = parse_output(out.text, turn == args.max_turns - 1)
        dialogue.append({"role": "assistant", "content": content, "output": out.text, "output_ids": out.ids})
        stats.tokens += len(out.ids)
        if finish:
            break
        asked = time.time()
        dialogue.append({"role": "user", "content": await simulate(task, dialogue)})
        waited += time.time() - asked
    engine.forget(key)
    stats.episodes += 1
    stats.waited += waited
    stats.lived += time.time() - began
    kind = finish.split(":")[0]
    stats.finish[kind] = stats.finish.get(kind, 0) + 1
    return [{"task_id": task["task_id"], "sample": sample, "domain": task["domain"], "task": task, "system": system,
             "dialogue_history": dialogue, "answer": answer, "finish": finish, "model": str(args.model),
             "simulator": args.simulator, "seed": args.seed}]


async def candidates(engine, trajectory, done):
    """--candidates actions at every agent turn of one trajectory; one record a turn.

    Turns are sampled in order, and all of them even if some are done: so the cache grows as it did the first time."""
    key = (trajectory["task_id"], trajectory["sample"])
    dialogue, records = trajectory["dialogue_history"], []
    turns = [i for i, m in enumerate(dialogue) if m["role"] == "assistant"]
    for turn, i in enumerate(turns):
        if (*key, turn) in done:
            continue
        prompt = messages_before(trajectory.get("system", ""), dialogue[:i])
        try:
            outs = await engine.generate(prompt, args.candidates, derive_seed(args.seed, *key, turn, "candidates"),
                                         args.temperature, args.max_tokens, key)
        except Refused as e:
            stats.finish[f"refused: {e}"] = stats.finish.get(f"refused: {e}", 0) + 1
            continue
        stats.tokens += sum(len(o.ids) for o in outs)
        records.append({**{k: trajectory[k] for k in ("task_id", "sample")}, "turn": turn, "prompt": prompt,
                        "task": trajectory["task"],
                        "candidates": [{"output": o.text, "output_ids": o.ids, "logp": sum(o.logps)} for o in outs]})
    engine.forget(key)
    stats.episodes += 1
    return records


async def run(engine, jobs, out, limit):
    """Every job at its own pace, at most `limit` in flight; records are written as jobs end."""
    from tqdm import tqdm
    bar = tqdm(total=len(jobs), unit="trajectory" if args.candidates else "episode", smoothing=0.05)
    todo = iter(jobs)

    async def worker():
        for job in todo:  # the workers share the iterator
            for record in await job():
                out.write(json.dumps(record, ensure_ascii=False) + "\n")
            out.flush()
            bar.set_postfix_str(f"{stats.tokens / (time.time() - stats.start):.0f} tokens/s", refresh=False)
            bar.update()

    await asyncio.gather(*(worker() for _ in range(min(limit, len(jobs)))))
    bar.close()


if __name__ == "__main__":
    args = parse_args()
    runs = Path("runs") / args.run
    args.model = args.model or str(runs / "base")
    kind = "candidates" if args.candidates else "trajectories"
    source = Path(args.input or (runs / f"{args.split}.scored.jsonl" if args.candidates
                                 else f"data/{args.domain}/{args.split}.jsonl"))
    out_path = Path(args.out or runs / f"{args.split}.{kind}.jsonl")
    if not Path(args.model).exists() and args.model == str(runs / "base"):
        die(f"{args.model}: no such model; make it with: python train_policy.py --method sft --model tiny "
            f"--in data/{args.domain}/demonstrations.jsonl --out {args.model}")
    if args.simulator != "scripted":
        die(f"--simulator {args.simulator} is not available yet")

    # what there is to do, and what is done
    needs = ("task_id", "sample", "dialogue_history", "task") if args.candidates else ("problem_description",)
    records = list(read_jsonl(source, needs))
    if args.candidates:
        records = records[:max(1, round(args.fraction * len(records)))]
    records = records[:args.limit or None]
    if not records:
        die(f"{source}: no records")
    engine_name = choose_engine(args.model)
    out_path.parent.mkdir(parents=True, exist_ok=True)
    check_settings(out_path, {"model": args.model, "engine": engine_name, "simulator": args.simulator,
                              "temperature": args.temperature, "max_tokens": args.max_tokens,
                              "max_turns": args.max_turns, "candidates": args.candidates, "seed": args.seed,
                              "system": args.system, "dtype": args.dtype})
    if args.overwrite:
        out_path.unlink(missing_ok=True)
    done = {(r["task_id"], r["sample"], *([r["turn"]] if args.candidates else [])) for r in resume(out_path)}

    pages = PagePartner() if not args.candidates and any(r["domain"] == "frontend" for r in records) else None

    async def simulate(task, dialogue):
        if task["domain"] == "frontend":
            return await pages.reply(task, dialogue)
        return scripted_reply(task["facts"], dialogue[-1]["content"])

    limit = args.concurrency or (16 if args.candidates else 128)
    engine = {"vllm": VLLMEngine, "transformers": TransformersEngine}[engine_name](args.model, limit)
    stats = Stats()
    if args.candidates:
        jobs = [lambda r=r: candidates(engine, r, done) for r in records
                if any((r["task_id"], r["sample"], t) not in done
                       for t in range(sum(m["role"] == "assistant" for m in r["dialogue_history"])))]
    else:
        for task in records:
            if "facts" not in task and task["domain"] == "backend":
                die(f"{source}: task {task['task_id']} has no 'facts' for the scripted simulator")
        jobs = [lambda t=t, s=s: episode(engine, t, s, simulate) for s in range(args.samples) for t in records
                if (t["task_id"], s) not in done]
    with open(out_path, "a", encoding="utf-8") as out:
        asyncio.run(run(engine, jobs, out, limit))
    if pages:
        pages.renderer.close()

    seconds = time.time() - stats.start
    metrics = {"seconds": seconds, "episodes": stats.episodes, "tokens": stats.tokens,
               "episodes_per_second": stats.episodes / seconds, "tokens_per_second": stats.tokens / seconds,
               "waiting_on_simulator": stats.waited / stats.lived if stats.lived else 0.0,
               "cache_hits": engine.counts["cached_tokens"] / max(1, engine.counts["prompt_tokens"]),
               "finish": stats.finish, "engine": engine_name, "skipped": len(done), **engine.counts}
    metrics_path = out_path.parent / f"{args.split}.{'candidates' if args.candidates else 'rollout'}.json"
    metrics_path.write_text(json.dumps(metrics, indent=1))
    print(f"{out_path}: {stats.episodes} {'trajectories' if args.candidates else 'episodes'} in {seconds:.1f} s, "
          f"{metrics['tokens_per_second']:.0f} tokens/s, {stats.finish}")
    print("next: " + (f"torchrun train_policy.py --run {args.run}" if args.candidates
                      else f"python evaluate.py --split {args.split} --run {args.run}"))
