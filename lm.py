"""A language model as both trainers use it: token sequences, log-probabilities, sharding, steps, checkpoints.

A record becomes a loss on one road. `read_trajectories` gives each record its turns. `tokenise` makes each turn a
Sequence: the prompt in the model's own chat template, then the reply as it was sampled. Items are pairs of sequences,
or single ones. `collate` lays items out as one Batch, and a Scorer returns one log-probability per scored token.

Nothing here knows an equation of the paper: those stand in train_critic.py and train_policy.py, with their loops.
Prefixes that sequences share are computed once (trees.py) unless --pack is none.
"""
import argparse
import dis
import functools
import gc
import hashlib
import inspect
import json
import math
import os
import re
import shutil
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
import transformers
from jinja2 import TemplateError
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_state_dict, set_model_state_dict, set_state_dict)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from tqdm import tqdm

from records import (
    COSTS, atomic_write, check_path, check_settings, die, fingerprint, first_line, lines_of, mended, number,
    open_locked, read, succeeded, write_json)

# ---- Sums over the tokens of a turn or a side


def segment_sum(values, index, count):
    """Sum the values that share an index: (N,), (N,) -> (count,)."""
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add_(0, index, values)


def segment_mean(values, index, count):
    """Average the values that share an index: (N,), (N,) -> (count,)."""
    return segment_sum(values, index, count) / segment_sum(torch.ones_like(values), index, count)


def accuracy(chosen, rejected):
    """1 where the chosen side scores higher, 0.5 where the two tie: (B,), (B,) -> (B,)."""
    return ((chosen - rejected).sign() + 1) / 2


# ---- Pairs of trajectories

PAIR_RULES = ("best-vs-lower", "all")


def pair_trajectories(rewards, rule, min_gap=0.0):
    """Pair up one task's trajectories by their rewards: [(index of the chosen one, index of the rejected one)]."""
    chosen = range(len(rewards))
    if rule == "best-vs-lower":
        chosen = [i for i in chosen if succeeded(rewards[i])][:1]
    gap = max(0.0, min_gap - 1e-9)    # in floating point 1.0 - 0.9 < 0.1
    return [(i, j) for i in chosen for j in range(len(rewards)) if rewards[i] - rewards[j] > gap]


def pair_tasks(tasks, args):
    """The pairs of all tasks: [(chosen record, rejected record)]."""
    pairs = []
    unpaired = 0
    for group in tasks.values():
        indices = pair_trajectories([record["reward"] for record in group], args.pair_rule, args.min_gap)
        pairs += [(group[i], group[j]) for i, j in indices]
        unpaired += not indices
    if unpaired:
        say(f"{args.input}: {unpaired} of {len(tasks)} tasks left out: no two trajectories make a pair")
    if not pairs:
        die(f"{args.input}: no task has two trajectories that can be compared ({len(tasks)} tasks); sample more "
            f"trajectories per task (rollout.py --samples), or try --pair-rule all")
    return pairs


# ---- From records to turns and items


class Item(NamedTuple):
    """One training example: a pair (chosen and rejected), or a single dialogue (rejected is empty)."""
    chosen: list    # sequences
    rejected: list
    turn_key: tuple = ()    # equal for the pairs of one turn, which --shuffle turns keeps together
    reward: float = 1.0     # of the chosen trajectory
    task: object = None

    @property
    def sequences(self):
        return self.chosen + self.rejected

    @property
    def length(self):
        """The length of the longest sequence, in tokens."""
        return max(len(sequence.ids) for sequence in self.sequences)


def put_c_in_front(messages, ground_truth):
    """The messages, with the training-time information c in front of the first user message."""
    messages = list(messages)
    first = [message["role"] for message in messages].index("user")
    content = f"In light that the final answer is: {ground_truth}.\n\n{messages[first]['content']}"
    messages[first] = {**messages[first], "content": content}
    return messages


def check_dialogue(messages, name, tools=None):
    """Raise ValueError unless the user speaks first (after any system message), and never the assistant twice in a row.

    Tools, and messages that use them, are refused: the model would not be shown them.
    """
    roles = [message["role"] for message in messages if message["role"] != "system"]
    if roles[:1] != ["user"]:
        raise ValueError(f"{name} must begin with a user message")
    if ("assistant", "assistant") in zip(roles, roles[1:]):
        raise ValueError(f"{name} has an assistant message where the user should speak")
    if tools or set(roles) - {"user", "assistant"} or any(message.get("tool_calls") for message in messages):
        raise ValueError(f"{name} has tools, or messages of another role than system, user and assistant")


def checked_turn(record):
    """A turn with candidates, if its prompt ends where the assistant speaks. Raises ValueError otherwise."""
    check_dialogue([*record["prompt"], {"role": "assistant"}], "prompt", record.get("tools"))
    return record


def turns_of(record, with_c=False):
    """A trajectory's assistant turns: [(prompt messages, reply, c or None)]. A reply is a message of the record."""
    history = record["dialogue_history"]
    check_dialogue(history, "dialogue_history", record.get("tools"))
    c = reference_solution(record, with_c)
    messages = [{"role": "system", "content": record["system"]}] if record.get("system") else []
    turns = []
    for message in history:
        if message["role"] == "assistant":
            turns.append((list(messages), message, c))
        messages.append({"role": message["role"], "content": message["content"]})
    return turns


def text_of(reply):
    """The text of a reply, or None."""
    return reply.get("output", reply.get("content"))


def ids_of(reply):
    """The token ids of a reply as they were sampled, by the sampler's own tokenizer; () if none were recorded."""
    return reply.get("output_ids", ())


def reference_solution(record, with_c):
    """The training-time information c, or None if the critic does not see it."""
    c = (record.get("task") or {}).get("ground_truth") if with_c else None
    if with_c and c is None:
        raise ValueError("the record has no task with a ground_truth, which the critic's context needs")
    return c


def first_record_has(path, key):
    """Whether the first record of a file has this key. It identifies the kind of records in the file."""
    try:
        return key in json.loads(next(line for line in lines_of(path) if not line.isspace()))
    except Exception:    # no such file, not JSON, not an object
        return False


def read_trajectories(path, kind, with_c=False):
    """Usable trajectories as {task: [record with its "turns"]}, in file order, and the cost of all that were read."""
    tasks = {}
    left_out = Counter()    # {why: how many}
    cost = Counter()
    for record in read(path, kind, each=lambda record: {**record, "turns": turns_of(record, with_c)}):
        cost.update({"episodes": 1, **record.get("cost", {})})
        if kind == "scored" and (record["reward"] is None or record.get("finish", "").startswith("error")):
            left_out["no reward (the episode failed)"] += 1
        elif not record["turns"]:
            left_out["no assistant turn"] += 1
        else:
            tasks.setdefault(record["task_id"], []).append(record)
    for reason, count in left_out.items():
        say(f"{path}: {count} records left out: {reason}")
    if not tasks:
        die(f"{path}: no trajectory is left to train on")
    return tasks, cost


def items_of(pairs, tokenizer, encode):
    """[(chosen record, rejected record or None)] as items. encode: tokenise, or the like for a critic that sees pages.

    Each record is encoded once, however many pairs it is in. A record with a key `turn` is of that turn only.
    """
    records = {id(record): record for pair in pairs for record in pair if record}.values()
    encoded = iter(encode(tokenizer, [turn for record in records for turn in record["turns"]]))
    for record in records:
        record["sequences"] = [next(encoded) for _ in record["turns"]]
    items = []
    for n, (chosen, rejected) in enumerate(pairs):
        task = chosen.get("task_id", n)    # pairs of other programs may name none
        turn_key = str(task), n
        if "turn" in chosen:
            turn_key = f"{task} {chosen.get('sample')}", chosen["turn"]
        rejected_sequences = rejected["sequences"] if rejected else []
        items.append(Item(chosen["sequences"], rejected_sequences, turn_key, chosen.get("reward", 1.0), task))
    return items


def usable_items(items, model, args):
    """The items that fit the context of the model at this path."""
    context = scored_context(model)
    fit = [item for item in items if item.length <= context]
    if len(fit) < len(items):
        say(f"{args.input}: {len(items) - len(fit)} of {len(items)} left out: they do not fit the context of {model}, "
            f"{context} tokens (with longrope and dynamic rope, the original context)")
    if not fit:
        die(f"{args.input}: no dialogue fits the context of {model}, {context} tokens; use a model with a longer one")
    kind = "pairs" if fit[0].rejected else "dialogues"
    say(f"{len(fit)} {kind} from {len({item.task for item in fit})} tasks")
    return fit


def sequences_in(items):
    """The distinct sequences of the items (a trajectory may be in several pairs)."""
    return list(dict.fromkeys(sequence for item in items for sequence in item.sequences))


def scored_tokens(items):
    """How many tokens of single dialogues are scored."""
    return sum(len(sequence.scored) for item in items for sequence in item.chosen)


# ---- From turns to token sequences


@dataclass(eq=False)    # hashed by identity: the same sequence may be in several pairs
class Sequence:
    """One turn as tokens: the prompt, then from `start` on the reply, whose tokens are scored."""
    ids: np.ndarray                  # (T,) int32
    start: int
    reference: np.ndarray = np.float32(0)    # (N,) log-probabilities under the reference, or one number for all
    extras: dict = field(default_factory=dict)    # {name: (N,)}: further numbers, such as importance weights

    @property
    def scored(self):
        """(N,) indices into ids."""
        return np.arange(self.start, len(self.ids))


def load_tokenizer(path, kind=transformers.AutoTokenizer):
    """A model's tokenizer (or, with another kind, its processor), which must have a chat template."""
    # Hub names have at most one slash, so a path with more is a folder.
    if (Path(path).is_dir() or str(path).count("/") > 1) and not (Path(path) / "config.json").is_file():
        die(f"{path}: no model found; train it first, or name another")
    try:
        tokenizer = kind.from_pretrained(path)
    except Exception as error:    # of many types
        die(f"{path}: cannot load a tokenizer or processor ({first_line(error)})")
    if not tokenizer.chat_template:
        die(f"{path} has no chat template; use an instruction-tuned model, or add chat_template.jinja")
    if kind is transformers.AutoTokenizer:
        known = getattr(text_config(path), "vocab_size", len(tokenizer))
        tokenizer.embeddings = known    # token ids that the model knows
    return tokenizer


def render(tokenizer, messages, add_generation_prompt):
    """Messages as text, by the model's chat template. Its clock stands still, or prompts would differ day by day."""
    clock = {}
    if "strftime_now" in str(tokenizer.chat_template):
        clock["strftime_now"] = datetime(2024, 7, 26).strftime    # what Llama 3's template shows where it has no clock
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=add_generation_prompt, tokenize=False, **clock)


def merge_system(messages):
    """The messages, with the text of a leading system message in front of the first user message."""
    if [message["role"] for message in messages[:2]] != ["system", "user"]:
        return messages
    system, user, *rest = messages
    return [{**user, "content": f"{system['content']}\n\n{user['content']}"}, *rest]


def in_parts(messages):
    """The messages, each with a list of parts as its content."""
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]


@functools.lru_cache
def form_of_messages(tokenizer, template):
    """The form in which a chat template shows the text of every message: a function of the messages.

    Found by a dialogue of unmistakable words. Some templates reject system messages (Gemma's), some drop them, some
    want lists of parts. A template that speaks of the system role and shows nothing drops it on purpose, as that of the
    tiny model does.
    """
    words = ["Aardvark", "Bumblebee", "Cormorant", "Dormouse"]
    roles = ["system", "user", "assistant", "user"]
    dialogue = [{"role": role, "content": word} for role, word in zip(roles, words)]
    reason = "it leaves a message out"
    for form in (list, merge_system, in_parts, lambda messages: in_parts(merge_system(messages))):
        try:
            text = render(tokenizer, form(dialogue), True)
        except (TemplateError, TypeError) as error:
            reason = first_line(error)
            continue
        no_system = [word in text for word in words] == [False, True, True, True] and form is list
        if all(word in text for word in words) or (no_system and "system" in template):
            return form
    die(f"{tokenizer.name_or_path}: its chat template does not show a dialogue ({reason}); use another one "
        f"(chat_template.jinja)")


def render_prompt(tokenizer, messages, add_generation_prompt=True):
    """The prompt text, up to where the assistant starts to speak."""
    form = form_of_messages(tokenizer, str(tokenizer.chat_template))
    try:
        return render(tokenizer, form(messages), add_generation_prompt)
    except TemplateError as error:
        die(f"the model's chat template rejects a dialogue ({first_line(error)})")


BREAK = "\ufdd0"    # stands for no character


@functools.lru_cache
def special_tokens(tokenizer):
    """A pattern of the names that the tokenizer turns into special tokens, or None."""
    names = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True)))) if names else None


def as_words(tokenizer, text):
    """A text in which what looks like a special token is cut in two by a BREAK, so that `encode` takes it for words."""
    text = mended(text).replace(BREAK, "")
    pattern = special_tokens(tokenizer)
    return pattern.sub(lambda name: name[0][:1] + BREAK + name[0][1:], text) if pattern else text


def encode(tokenizer, text):
    """The token ids of a text, without those that some tokenizers put around it."""
    parts = [part for part in text.split(BREAK) if part]
    return [token for ids in tokenizer(parts, add_special_tokens=False)["input_ids"] for token in ids] if parts else []


def encode_prompt(tokenizer, messages):
    """The token ids of a prompt. Special tokens are the template's own; a stranger's `</s>` is text."""
    words = [{**message, "content": as_words(tokenizer, message["content"])} for message in messages]
    return encode(tokenizer, render_prompt(tokenizer, words))


def end_of_turn(tokenizer):
    """The ids that end a reply known only as text: the special token that the chat template puts after a reply.

    It is not always eos: Gemma's template ends a turn with <end_of_turn> and a line break.
    """
    dialogue = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Goodbye"}]
    after = render_prompt(tokenizer, dialogue, False).rpartition("Goodbye")[2]
    for token in encode(tokenizer, after):
        if token in tokenizer.added_tokens_decoder:
            return [token]
    return [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]


def ids_match(tokenizer, replies):
    """Whether this tokenizer sampled the replies: the model knows all ids, and about 200 replies decode to their text.

    A critic may belong to another model family than the agent. The agent's ids would then be random words to it. Models
    may know more ids than their tokenizer has words for, and sample them.
    """
    def bare(text):    # special tokens stand in a text where they mark a thought
        return "".join(re.sub(special_tokens(tokenizer) or r"\s", "", text).split())

    if max(np.max(ids_of(reply)) for reply in replies) >= tokenizer.embeddings:
        return False
    for reply in replies[::max(1, len(replies) // 200)]:
        text = text_of(reply)
        if text and bare(text) != bare(tokenizer.decode(ids_of(reply), skip_special_tokens=True)):
            return False
    return True


def tokenise(tokenizer, turns):
    """Turns [(prompt messages, reply, c or None)] as sequences.

    A reply is what was sampled, if its token ids are recorded; else its text and an end of turn, unless it was `cut`.
    """
    sampled = [reply for _, reply, _ in turns if len(ids_of(reply))]
    use_ids = not sampled or ids_match(tokenizer, sampled)
    if not use_ids:
        say_once("the recorded token ids come from another tokenizer than this model's: the text is used instead")
    end = end_of_turn(tokenizer)
    sequences = []
    previous = None    # the candidates of one turn share their prompt
    for messages, reply, c in turns:
        if previous != (messages, c):
            prompt = encode_prompt(tokenizer, messages if c is None else put_c_in_front(messages, c))
            previous = messages, c
        ids = ids_of(reply)
        if not use_ids or not len(ids):
            if text_of(reply) is None:
                die("a reply has token ids from another tokenizer and no text (output)")
            ids = encode(tokenizer, as_words(tokenizer, text_of(reply))) + ([] if reply.get("cut") else end)
        sequences.append(Sequence(np.concatenate([prompt, ids]).astype(np.int32), len(prompt)))
    highest = max((int(sequence.ids.max()) for sequence in sequences), default=0)
    if highest >= getattr(tokenizer, "embeddings", math.inf):
        die(f"{tokenizer.name_or_path}: the tokenizer has {len(tokenizer)} tokens, a text uses number {highest}, "
            f"but the model has {tokenizer.embeddings} embeddings; resize them (model.resize_token_embeddings)")
    return sequences


def text_config(path):
    """The configuration of a model, or of an image-text model's text part."""
    try:
        return transformers.AutoConfig.from_pretrained(path).get_text_config()
    except Exception as error:
        die(f"{path}: cannot load the model's configuration ({first_line(error)})")


def context_of(path):
    """How many tokens a model can read; 0 if its configuration does not say."""
    return getattr(text_config(path), "max_position_embeddings", None) or 0


def scored_context(path):
    """The longest sequence that can be scored: the model's context, or with longrope and dynamic rope the original one.
    Beyond it these two encode all positions of a batch differently, so a sequence's scores depend on the others."""
    context = context_of(path) or math.inf
    rope = getattr(text_config(path), "rope_parameters", None) or {}
    for part in [rope, *rope.values()]:    # some models have one for each kind of layer
        if isinstance(part, dict) and part.get("rope_type") in ("longrope", "dynamic"):
            context = min(context, part.get("original_max_position_embeddings") or context)
    return context


# ---- Batches


class Batch(NamedTuple):
    """What one forward pass computes; N scored tokens in M turns on S sides (a pair has two sides)."""
    inputs: dict                # arguments of the language model: R padded rows, or one row that contains a forest
    source: torch.Tensor        # (N,) flat index of the token that predicts the scored one
    scored: torch.Tensor        # (N,) flat index of the scored token itself
    target: torch.Tensor        # (N,) id of the scored token
    turn: torch.Tensor          # (N,) which of the M turns it belongs to
    side: torch.Tensor          # (M,) which of the S sides each turn belongs to
    sides: int                  # S
    reference: torch.Tensor     # (N,) log-probability under the reference (zeros where there is none)
    extras: dict                # {name: (N,)}: what the sequences carry beside it
    tokens: int                 # tokens computed, without padding
    sequences: list             # the sequences, in the order of their turns


def collate(items, device, pack):
    """Items as one batch. Side 2i is item i's chosen side, side 2i + 1 its rejected side.

    pack "tree": trees in one row (trees.py); "none": rows padded on the right, where causal attention never looks.
    """
    def to_device(array):
        return torch.from_numpy(array).to(device)

    sides = [side for item in items for side in (item.chosen, item.rejected)]
    sequences = [sequence for side in sides for sequence in side]
    if pack == "tree":
        from trees import forest_inputs
        inputs, paths, tokens = forest_inputs(sequences, device)
    else:
        lengths = [len(s.ids) for s in sequences]
        tokens = sum(lengths)
        ids = np.zeros((len(sequences), max(lengths)), np.int64)                                 # (R, T)
        for row, sequence in zip(ids, sequences):
            row[:len(sequence.ids)] = sequence.ids
        paths = np.arange(ids.size).reshape(ids.shape)
        inputs = {"input_ids": to_device(ids)}
    source = np.concatenate([path[s.scored - 1] for s, path in zip(sequences, paths)])
    scored = np.concatenate([path[s.scored] for s, path in zip(sequences, paths)])
    lengths = [len(s.scored) for s in sequences]
    return Batch(
        {"use_cache": False, **inputs},
        source=to_device(source),
        scored=to_device(scored),
        target=inputs["input_ids"].flatten()[to_device(scored)],
        turn=to_device(np.repeat(np.arange(len(sequences)), lengths)),
        side=to_device(np.repeat(np.arange(len(sides)), [len(side) for side in sides])),
        sides=len(sides),
        reference=to_device(np.concatenate([np.broadcast_to(s.reference, len(s.scored)) for s in sequences])),
        extras={name: to_device(np.concatenate([s.extras[name] for s in sequences])) for name in sequences[0].extras},
        tokens=tokens,
        sequences=sequences)


# ---- Log-probabilities


class TokenLogps(torch.autograd.Function):
    """Log-probability of each target from its hidden state, through the output head in chunks.

    logits = cap * tanh(scale * h W^T / cap), in float32; without a cap, scale * h W^T. With `keep` the (N, V) logits
    stay for the backward pass. Without it they exist one chunk at a time and are recomputed there.

    Plain autograd cannot do this: a bf16 product with a float32 result (out_dtype) has no derivative. Where autograd
    does work, with torch.utils.checkpoint, it takes a tenth more time and a quarter more memory.
    """

    @staticmethod
    def logits_of(hidden, weight, scale, cap):
        if hidden.is_cuda and hidden.dtype != torch.float32:
            logits = torch.mm(hidden, weight.T, out_dtype=torch.float32)    # (n, V), not rounded to bf16 in between
        else:
            logits = (hidden @ weight.T).float()
        if scale != 1.0:
            logits *= scale
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    @staticmethod
    def forward(ctx, hidden, weight, target, scale, cap, chunk, keep):
        logps = []
        normalisers = []
        ctx.kept = []
        for h, t in zip(hidden.split(chunk), target.split(chunk)):
            logits = TokenLogps.logits_of(h, weight, scale, cap)
            normaliser = torch.logsumexp(logits, -1)                                             # (n,)
            logps.append(logits.gather(1, t[:, None])[:, 0] - normaliser)
            normalisers.append(normaliser)
            if keep:
                ctx.kept.append(logits)
        ctx.save_for_backward(hidden, weight, target, *normalisers)
        ctx.settings = scale, cap, chunk
        return torch.cat(logps)                                                                  # (N,)

    @staticmethod
    def backward(ctx, gradient):
        scale, cap, chunk = ctx.settings
        hidden, weight, target, *normalisers = ctx.saved_tensors
        chunks = zip(hidden.split(chunk), target.split(chunk), (scale * gradient).split(chunk), normalisers)
        d_hidden = []
        d_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None    # None: a frozen head (--lora)
        for h, t, g, normaliser in chunks:
            # A kept chunk is overwritten and then freed, before the layers' backward passes need memory.
            logits = ctx.kept.pop(0) if ctx.kept else TokenLogps.logits_of(h, weight, scale, cap)
            slope = None if cap is None else 1 - (logits / cap) ** 2
            d = logits.sub_(normaliser[:, None]).exp_().mul_(-g[:, None])    # -g * softmax
            d.scatter_add_(1, t[:, None], g[:, None])                        # + g at the target
            if slope is not None:
                d.mul_(slope)
            d = d.to(weight.dtype)
            d_hidden.append(d @ weight)
            if d_weight is not None:
                d_weight.addmm_(d.T, h)
        return torch.cat(d_hidden), d_weight, None, None, None, None, None


class Scorer(nn.Module):
    """A causal language model that returns one number per scored token and never builds a (B, T, V) tensor.

    Without a head: the token's log-probability. With a head: the head's value at the token.
    """

    def __init__(self, lm, head=None, head_bytes=2 ** 29):
        super().__init__()
        self.lm = lm
        self.head = head
        self.bf16 = False
        self.head_bytes = head_bytes    # larger logits are recomputed in the backward pass

    def forward(self, batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):    # the residual stream stays float32
            hidden = self.lm.base_model(**batch.inputs).last_hidden_state.flatten(0, 1)          # (R * T, D)
        if self.head is not None:
            return self.values(hidden[batch.scored])
        return self.logps(hidden[batch.source], batch.target)

    def values(self, hidden):
        """The head's values (N,) of hidden states (N, D), in float32: in bf16 most turns would get the same number."""
        return F.linear(hidden.float(), self.head.weight.float(), self.head.bias.float())[:, 0]

    def logps(self, hidden, target):
        """Log-probabilities (N,) of the targets (N,), from the hidden states before them (N, D)."""
        output = self.lm.get_output_embeddings()
        config = self.lm.config.get_text_config()
        # Cohere multiplies its logits by one setting, Granite divides them by another.
        scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
        cap = getattr(config, "final_logit_softcapping", None)
        row_bytes = 4 * len(output.weight)    # one token's logits
        weight = output.weight
        keep = torch.is_grad_enabled() and len(hidden) * row_bytes <= self.head_bytes
        chunk = max(1, self.head_bytes // 4 // row_bytes)
        hidden = hidden.to(weight.dtype)    # state-space models return float32
        if output.bias is not None:    # as the weight of one more input, which is always 1
            hidden = F.pad(hidden, (0, 1), value=1.0)
            weight = torch.cat([weight, output.bias[:, None]], 1)
        return TokenLogps.apply(hidden, weight, target, scale, cap, chunk, keep)


@torch.no_grad()
def score_all(model, sequences, device, args, title=""):
    """One number per scored token of each sequence: a list of float32 arrays. The ranks share the work."""
    items = [Item([sequence], [], task=n) for n, sequence in enumerate(sequences)]
    if args.pack == "tree":
        from trees import lexicographic_order
        items = [items[n] for n in lexicographic_order(sequences)]    # shared prefixes side by side
    scores = {}    # {index of the sequence: its numbers}
    for part, counted in progress(micro_batches(items, args), title, "batch"):
        values = model(collate(part, device, args.pack)).float().cpu().numpy()
        ends = np.cumsum([len(item.chosen[0].scored) for item in part])
        if counted:
            scores |= {item.task: numbers for item, numbers in zip(part, np.split(values, ends))}
    if dist.is_initialized():
        model.reshard()    # FSDP leaves the root group gathered, and a saved state would contain gathered tensors
    scores = gather(scores)
    return [scores[n] for n in range(len(sequences))]


def set_reference(model, items, device, args, title="reference"):
    """Give each sequence its log-probabilities under this model as its reference."""
    sequences = sequences_in(items)
    for sequence, logps in zip(sequences, score_all(model, sequences, device, args, title)):
        sequence.reference = logps


# ---- Loading, sharding and saving a model

NO_TREES = "this model's attention does not accept a tree mask; use --pack none, which computes each sequence by itself"


def decoder_layers(lm):
    return [module for module in lm.modules() if type(module).__name__ in (lm._no_split_modules or ())]


def load_model(path, device, args, head=None, kind=transformers.AutoModelForCausalLM, scorer=Scorer):
    """A Scorer around the model at `path`, sharded over the ranks. kind, scorer: of a critic that sees pages.

    In a process group only rank 0 reads the weights, all of them, in float32. Each rank then receives its shards,
    whose sums must be those of the weights that were read. Without a group (on a CPU, or a critic inside rollout.py on
    a GPU, in bf16) the model is loaded unsharded. It stays in evaluation mode during training: there is no dropout.
    """
    grouped = dist.is_initialized()
    cuda = device.type == "cuda"
    options = {"dtype": torch.bfloat16 if cuda and not grouped else torch.float32}
    if args.pack == "tree":
        import trees
        options["attn_implementation"] = trees.ATTENTION
    elif getattr(text_config(path), "attn_logit_softcapping", None):
        options["attn_implementation"] = "eager"    # the default, SDPA, ignores the cap
    gc.collect()    # FSDP modules refer to each other in cycles: the previous model would stay in memory
    if rank() == 0:
        lm = read_weights(path, kind, options)
        if scorer is Scorer:
            check_scores(lm, args.pack, path)
        lm = with_adapters(lm, args)
    if grouped:
        full = Scorer(lm, head).state_dict() if rank() == 0 else {}
        sums = from_rank0(lambda: sums_of(Scorer(lm, head)))
        buffers = from_rank0(lambda: dict(lm.named_buffers()))    # some (rotary frequencies) are not in the state dict
        config = transformers.AutoConfig.from_pretrained(path)
        set_tied(config, from_rank0(lambda: lm.config.tie_word_embeddings))
        with torch.device("meta"):
            lm = with_adapters(kind.from_config(config, **options).eval(), args)
    if args.checkpointing != "none":
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        stride = 2 if args.checkpointing == "selective" else 1
        for layer in decoder_layers(lm)[::stride]:
            layer.training = True    # unlike train(), this turns no dropout module on; OPT's layers need `none`
    model = scorer(lm, head, 2 ** 32 if cuda else 2 ** 29)
    model.bf16 = not cuda and args.dtype == "bfloat16"
    if not grouped:
        return model.to(device)
    # On CUDA it computes in bf16; the weights themselves and the sums of gradients stay float32.
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if cuda else MixedPrecisionPolicy()
    for part in [*decoder_layers(lm), model]:    # FSDP2: one group per decoder layer, one for the rest
        fully_shard(part, mp_policy=policy)
    model.to_empty(device=device)
    lm.tie_weights()    # to_empty made separate copies of tied weights
    set_model_state_dict(model, full, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    for name, buffer in lm.named_buffers():
        buffer.copy_(buffers[name])
    check_sums(sums_of(model), sums, path)
    return model


def read_weights(path, kind, options):
    """The model at `path`. Exits if it cannot be loaded."""
    transformers.utils.logging.disable_progress_bar()
    try:
        lm, info = kind.from_pretrained(path, output_loading_info=True, **options)
    except Exception as error:    # of many types
        if error.args == ("tree",):    # older model families look up attention in tables of their own
            die(f"{path}: {NO_TREES}")
        die(f"{path}: cannot load it with {kind.__name__} ({first_line(error)})")
    missing = sorted(info["missing_keys"])
    if missing:
        die(f"{path}: {len(missing)} weights are missing, first {missing[0]}; train or download the model again")
    output = lm.get_output_embeddings()
    set_tied(lm.config, output is not None and output.weight is lm.get_input_embeddings().weight)
    return lm.eval()


def with_adapters(lm, args):
    """The model; with --lora each linear layer W but the output head becomes W + BA, and only A and B are trained.
    B starts at zero, so the model starts as it was."""
    rank_of_product = getattr(args, "lora", 0)
    if not rank_of_product:
        return lm
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        die("--lora needs peft: pip install peft")
    torch.manual_seed(args.seed)    # draws A
    config = LoraConfig(r=rank_of_product, lora_alpha=rank_of_product, target_modules="all-linear")
    return inject_adapter_in_model(config, lm).eval()


def merged(state):
    """A state dict {name: tensor} in which W + BA is a layer's weight, under the names of a model without adapters."""
    plain = {}
    for name, weight in state.items():
        a, b = (name.replace("base_layer.weight", f"lora_{part}.default.weight") for part in "AB")
        if a != name:
            weight = weight + state[b] @ state[a]
        if ".lora_" not in name:
            plain[name.replace("base_layer.", "")] = weight
    return plain


def set_tied(config, tied):
    """Let a configuration say whether the output head is the input embedding, as the weights do: a checkpoint may have
    a head of its own although its configuration ties the two."""
    for part in (config, config.get_text_config()):
        part.tie_word_embeddings = tied


def whole(tensor):
    """A tensor that may be sharded over the ranks, as a whole one on each rank."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def sums_of(model):
    """The sum and the norm of each parameter, over the shards of all ranks: {name: [sum, norm]}."""
    sums = {}
    for name, weight in model.named_parameters():
        pair = weight.detach().sum(dtype=torch.float64), weight.detach().norm(dtype=torch.float64)
        sums[name] = [whole(number).item() for number in pair]
    return sums


def check_sums(found, expected, path):
    """Exit unless the sharded model has the parameters that were loaded, each with the same sums."""
    for name in {**expected, **found}:
        pair, wanted = found.get(name), expected.get(name)
        if not (pair and wanted and np.allclose(pair, wanted, rtol=1e-6, atol=1e-6 * wanted[1])):
            die(f"{path}: the weight {name} is {wanted} (sum, norm) as loaded and {pair} as sharded over the ranks")


@torch.no_grad()
def check_scores(lm, pack, path):
    """Exit unless a Scorer, on three short turns in one batch, agrees with the model's own logits on each turn alone.
    A mask that the model ignores, or a scale of the logits that Scorer does not know, would go unnoticed otherwise."""
    config = lm.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ())
    if pack == "tree" and not (lm._supports_attention_backend and layers <= {"full_attention", "sliding_attention"}):
        die(f"{path}: {NO_TREES}")
    ids = np.arange(24, dtype=np.int32) % config.vocab_size
    cpu = torch.device("cpu")
    turns = (ids, np.append(ids[:12], ids[3:9]), np.append(ids[:5], ids[1:8]))    # two branches of the first
    sequences = [Sequence(turn, 4) for turn in turns]
    try:
        logps = Scorer(lm)(collate([Item(sequences, [])], cpu, pack))
    except NotImplementedError:    # from trees.py
        die(f"{path}: {NO_TREES}")
    expected = []
    for sequence in sequences:
        batch = collate([Item([sequence], [])], cpu, pack)
        logits = lm(**batch.inputs).logits.flatten(0, 1)[batch.source]                           # (n, V)
        expected.append(-F.cross_entropy(logits.float(), batch.target, reduction="none"))
    error = (logps - torch.cat(expected)).abs().mean().item()
    if error > (0.01 if lm.dtype == torch.float32 else 0.5):    # ignoring the mask gives an error of about 2
        die(f"{path}: Scorer's log-probabilities differ from those of the model's own logits by {error:.2g} nats per "
            f"token; try --pack none; if that fails too, Scorer.logps must be taught how this model scales its logits")


def save_model(model, tokenizer, seed, args, cost):
    """Write the model in Hugging Face format to --out, and what it cost. cost: of the records that it learned from."""
    state = merged(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)))
    if rank() == 0:
        out = Path(args.out).resolve()    # "." has no name of its own
        for step in map(json.loads, open(out / "metrics.jsonl")):
            cost.update({**step, "optimizer_steps": 1, "training_tokens": step["tokens"]})    # adds
        try:
            write_json(out / "cost.json", {key: int(cost[key]) for key in COSTS})
            write_model(model.lm, state, tokenizer, seed, out)
        except Exception as error:    # OSError or SafetensorError
            die(f"{out}: could not be written ({error}); the checkpoints are intact; the same command without "
                "--overwrite resumes training", 1)
    barrier()


def write_model(lm, state, tokenizer, seed, out):
    """Write the weights in `state` to a temporary folder, then move file by file."""
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    # named_parameters lists each tied weight once. Expert routers keep some of their weights as buffers.
    names = [name.replace("base_layer.", "") for name, _ in (*lm.named_parameters(), *lm.named_buffers())]
    names = [name for name in names if f"lm.{name}" in state]
    lm.generation_config = transformers.GenerationConfig.from_model_config(lm.config)    # a default
    lm.save_pretrained(part, state_dict={name: state[f"lm.{name}"].contiguous() for name in names})
    tokenizer.save_pretrained(part)
    generation = transformers.utils.cached_file(seed, "generation_config.json",
                                                _raise_exceptions_for_missing_entries=False)
    if generation:    # better: the seed model's own, with all its end tokens
        shutil.copy(generation, part / "generation_config.json")
    # config.json goes last: it marks the output as complete.
    for file in sorted(part.iterdir(), key=lambda file: file.name == "config.json"):
        os.replace(file, out / file.name)
    part.rmdir()


# ---- Optimizer steps

# The optimizer and schedule of the released scripts; edit these lines to change them.
BETAS, WEIGHT_DECAY, CLIP = (0.9, 0.95), 0.0, 1.0
WARMUP, FINAL_LR = 0.03, 0.1    # fraction of the steps that warm up; final learning rate as a fraction of --lr


def step_items(items, args):
    """The items of each step. Every epoch has a new order, which is the same on any number of ranks."""
    turns = {}
    for n, item in enumerate(items):
        turns.setdefault(item.turn_key if args.shuffle == "turns" else n, []).append(item)
    groups = list(turns.values())
    steps = []
    for epoch in range(args.epochs):
        order = np.random.default_rng([args.seed, epoch]).permutation(len(groups))
        shuffled = [item for n in order for item in groups[n]]
        steps += [shuffled[start:start + args.batch_size] for start in range(0, len(shuffled), args.batch_size)]
    return steps[:args.max_steps or None]


def micro_batches(items, args):
    """This rank's share of the items as [(items, counted)], at most --micro-tokens tokens each, or one longer item.

    FSDP waits for every rank, so every rank gets the same number of parts. A rank that needs fewer computes any item
    again, with counted 0 instead of 1.
    """
    ordered = sorted(items, key=lambda item: item.length)    # rows of similar length need the least padding
    if args.pack == "tree":
        ordered = sorted(items, key=lambda item: repr(item.turn_key))    # items of the same turn share the most tokens
    lengths = np.array([item.length for item in ordered])
    # Each rank takes a contiguous stretch, of about the same total length.
    rank_of = ((lengths.cumsum() - lengths / 2) * world() / lengths.sum()).astype(int)
    parts = [split([item for item, r in zip(ordered, rank_of) if r == n], args) for n in range(world())]
    mine = [(part, 1) for part in parts[rank()]]
    return mine + [(items[:1], 0)] * (max(map(len, parts)) - len(mine))


def split(items, args):
    """Halve a list of items until every part fits --micro-tokens, or is a single item."""
    if len(items) <= 1 or computed_tokens(items, args.pack) <= args.micro_tokens:
        return [items] if items else []
    middle = len(items) // 2
    return split(items[:middle], args) + split(items[middle:], args)


def computed_tokens(items, pack):
    """How many tokens, padding included, a forward pass over the items computes."""
    sequences = [sequence for item in items for sequence in item.sequences]
    if pack == "tree":
        from trees import tree_tokens
        return tree_tokens(sequences)
    return len(sequences) * max(item.length for item in items)


def learning_rate(step, steps, peak):
    """Linear warm-up over the first 3% of the steps, then a cosine down to a tenth of the peak."""
    warmup = max(1, round(WARMUP * steps))
    if step < warmup:
        return peak * (step + 1) / warmup
    fraction = (step - warmup) / max(1, steps - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * fraction))    # from 1 down to 0
    return peak * (FINAL_LR + (1 - FINAL_LR) * cosine)


def optimizer_step(model, optimizer, rate):
    """Clip the gradient norm to CLIP, update, clear the gradients. Returns the norm before clipping."""
    norm = whole(nn.utils.clip_grad_norm_(model.parameters(), CLIP))
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm.item()


def over_ranks(numbers):
    """The sum over all ranks of {name: number}."""
    total = Counter()
    for part in gather({rank(): {name: float(value) for name, value in numbers.items()}}).values():
        total.update(part)    # adds
    return total


def add_stats(sums, counts, stats, tokens):
    """Add a micro-batch's numbers {name: (n,)} to sums {name: sum}, and how many there are to counts {name: n}."""
    for name, numbers in stats.items():
        sums[name] += numbers.detach().sum()
        counts[name] += len(numbers)
    sums["tokens"] += tokens


def step_metrics(step, rate, norm, sums, counts, start, device, args):
    """One step's line of metrics.jsonl. Exits if the loss is not finite or training did not start at the reference."""
    sums, counts = over_ranks(sums), over_ranks(counts)
    values = {"loss": 0.0} | {name: sums[name] / count for name, count in counts.items()}    # a step may have no items
    if not math.isfinite(values["loss"] + norm):
        die(f"step {step + 1}: the loss is {values['loss']} and the gradient norm {norm}; this step was not saved, and "
            f"the last checkpoint is intact; try a smaller --lr")
    # Before the first update the model equals its reference: every log-ratio is zero.
    error = values.get("distance", 0.0)
    if step == 0 and error > (0.1 if device.type == "cuda" or args.dtype == "bfloat16" else 0.001):
        die(f"before the first step, the model's log-probabilities differ from its reference's by {error:.2g} nats per "
            f"token, though both are the same model")
    return {"step": step + 1, "lr": rate, "gradient_norm": norm, **values, "tokens": int(sums["tokens"]),
            "seconds": round(time.perf_counter() - start, 4)}


def log(metrics, bar, out):
    """Append a step's metrics to metrics.jsonl, and show the loss on the progress bar."""
    if rank() == 0:
        with open(Path(out) / "metrics.jsonl", "a") as file:
            file.write(json.dumps(metrics) + "\n")
        bar.set_postfix(loss=metrics["loss"], refresh=False)


# ---- The output folder, checkpoints, metrics

REMOVED_BY_OVERWRITE = (    # from an output folder, in this order
    "config.json", "checkpoints", "metrics.jsonl", "critic.json", "cost.json", "*config.json", "model*.safetensors*",
    "*token*.json", "tokenizer.model", "chat_template*", "vocab.*", "merges.txt")
NO_EFFECT_ON_RESULT = {    # flags for paths, scoring, speed and checkpoints
    "run_name", "input", "model", "out", "critic", "pairs", "score", "overwrite", "pack",
    "micro_tokens", "checkpointing", "save_every", "keep"}
HERE = Path(__file__).parent
locks = []      # files kept open, and so locked, until this process ends


def checked_settings(args, inputs, *functions):
    """The settings that decide the result: flags, the content of the inputs {flag: path}, the code of these functions.

    None if --out is complete. Exits if --out contains an input, was begun with other settings or was written by
    something else. Writes nothing. Only rank 0 calls it.
    """
    out = Path(args.out)
    script = Path(sys.argv[0]).stem
    for name, path in inputs.items():
        if Path(path).resolve().is_relative_to(out.resolve()):
            die(f"--out {out} is or contains {name} ({path}); name another folder with --out")
    check_path(out / "metrics.jsonl")
    settings = {"script": script, "optimizer": [BETAS, WEIGHT_DECAY]}
    settings |= {name: value for name, value in vars(args).items() if name not in NO_EFFECT_ON_RESULT}
    settings |= {f"content of {flag}": fingerprint(path) for flag, path in inputs.items()}
    settings |= code_of(*functions, tokenise, step_items, learning_rate, optimizer_step)
    file = out / "settings.json"
    if file.is_file() and not args.overwrite:
        check_settings(file, settings)
        if (out / "config.json").is_file():
            say(f"{out} is already finished (--overwrite trains it again)")
            return None
    elif out.exists() and any(out.iterdir()):
        if not (file.is_file() and f'"script": "{script}"' in file.read_text(errors="replace")):
            die(f"{out} exists and was not written by this script; name another folder with --out")
    return settings


def code_of(*functions):
    """{"code of NAME": digest} of these functions and of those of ours that they call, with the constants they use.

    It is part of the settings, so that an output made with other mathematics is never continued.
    """
    digests = {}
    todo = [*functions]
    ours = {HERE, *(Path(function.__code__.co_filename).parent for function in functions)}
    while todo:
        function = inspect.unwrap(todo.pop())
        name = f"code of {function.__name__}"
        if name in digests or function in (die, say) or Path(function.__code__.co_filename).parent not in ours:
            continue
        used = {word: function.__globals__.get(word) for word in sorted(global_names(function.__code__))}
        constants = {word: value for word, value in used.items() if isinstance(value, (str, int, float, tuple))}
        source = inspect.getsource(function) + repr(constants)
        digests[name] = hashlib.sha256(source.encode()).hexdigest()[:16]
        todo += [value for value in used.values() if inspect.isfunction(inspect.unwrap(value))]    # cached ones, too
    return digests


def global_names(code):
    """The global names that compiled code reads, with those of its inner functions and comprehensions."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    return names.union(*(global_names(inner) for inner in code.co_consts if inspect.iscode(inner)))


def begin_training(model, args, settings):
    """The optimizer, and the step to start or resume at."""
    step = from_rank0(prepare_output, Path(args.out), args.overwrite, settings)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=args.lr, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)
    if step:
        read_checkpoint(checkpoint_of(args.out, step), model, optimizer)
        say(f"continuing {args.out} after step {step}")
    return optimizer, step


def prepare_output(out, overwrite, settings):
    """Create the output folder, empty it (--overwrite), or prepare it for resuming. Returns the step of the newest
    checkpoint, or 0. Called only once the inputs and the model are known to be good."""
    out.mkdir(parents=True, exist_ok=True)
    locks.append(open_locked(out / "lock"))    # stops a second process from training here
    patterns = ["checkpoints/*.part", "additional_chat_templates"]    # cut short by a kill; never replaced by a move
    if overwrite:
        patterns = [*REMOVED_BY_OVERWRITE, *patterns]
    for pattern in patterns:
        for path in out.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_json(out / "settings.json", settings)
    step = max((int(path.name.removeprefix("step-")) for path in out.glob("checkpoints/step-*")), default=0)
    metrics = out / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True) if metrics.is_file() else []
    with atomic_write(metrics) as part:    # drop the steps after the checkpoint
        part.write_text("".join(lines[:step]))
    return step


def checkpoint_of(out, step):
    """The folder of a step's checkpoint."""
    return Path(out) / "checkpoints" / f"step-{step:06d}"


def state_of(model, optimizer):
    """Everything that the next step depends on: the weights and AdamW's averages. The learning rate, the order of the
    data and every random choice follow from the step and the seed."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled")    # expected without torchrun
    weights, averages = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": averages}


def save_checkpoint(args, model, optimizer, step):
    """Save a checkpoint every --save-every steps, and keep the last --keep of them.
    Each rank writes its shards. The folder appears only once it is complete."""
    if not args.save_every or step % args.save_every:
        return
    folder = checkpoint_of(args.out, step)
    part = folder.with_suffix(".part")
    try:
        dcp.save(state_of(model, optimizer), checkpoint_id=str(part))
        if rank() == 0:
            os.replace(part, folder)
            for old in sorted(folder.parent.glob("step-*"))[:-args.keep]:
                shutil.rmtree(old)
    except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
        die(f"{folder}: the checkpoint could not be written ({str(error).strip().splitlines()[-1]}); the one before it "
            f"is intact; the same command without --overwrite resumes from it", 1)
    barrier()


def read_checkpoint(folder, model, optimizer):
    """Load a checkpoint, which any number of ranks may have written."""
    state = state_of(model, optimizer)
    try:
        # Weights without a gradient (the output embedding under a head, Gemma 3's vision tower) have no averages.
        dcp.load(state, checkpoint_id=str(folder), planner=dcp.DefaultLoadPlanner(allow_partial_load=True))
    except (Exception, dcp.api.CheckpointException) as error:    # many kinds, all with the same meaning
        die(f"{folder} could not be read ({str(error).strip().splitlines()[-1][:100]}); if it is damaged, remove it; "
            f"the same command then resumes from the one before it")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


# ---- Ranks (distributed processes)


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def say(*parts):
    if rank() == 0:
        print(*parts, flush=True)


say_once = functools.cache(say)


def barrier():
    if dist.is_initialized():
        dist.barrier()


def from_rank0(function, *arguments):
    """Call a function on rank 0 and return its result on every rank. Use it for all that depends on existing files."""
    result = [function(*arguments) if rank() == 0 else None]
    if world() > 1:
        dist.broadcast_object_list(result)
    return result[0]


def gather(mine):
    """Merge the dictionaries of all ranks into one."""
    gathered = [mine] * world()
    if world() > 1:
        dist.all_gather_object(gathered, mine)
    return {key: value for part in gathered for key, value in part.items()}


def start_process_group():
    """Join torchrun's process group, if there is one, and return the device. Plain `python` on a CPU needs no group."""
    torchrun = {"RANK", "WORLD_SIZE"} <= os.environ.keys()
    if not torch.cuda.is_available():
        if torchrun:
            dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    options = {} if torchrun else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("cuda:nccl,cpu:gloo", **options)
    return device


def finish():
    """Leave the process group."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def progress(work, title, unit, first=0):
    """Iterate over work[first:], with a progress bar if it has a title. A log file gets a line every 30 seconds."""
    return tqdm(work[first:], title, len(work), initial=first, unit=unit, disable=rank() > 0 or not title,
                mininterval=0.5 if sys.stderr.isatty() else 30, delay=1)


# ---- The flags that both trainers share


def training_flags(parser, lr, epochs, batch_size):
    """The flags that both training scripts share. lr, epochs, batch_size: the stage's defaults, as help text."""
    flag = parser.add_argument_group(
        "pairs of trajectories (multi-turn-dpo; the critic unless --head value or q)").add_argument
    flag("--pair-rule", choices=PAIR_RULES,
         help="best-vs-lower: a task's first trajectory with reward 1 against each one with a lower reward; all: any "
         "two with different rewards (default: best-vs-lower; frontend: all)")
    flag("--min-gap", type=number(least=0, most=1),
         help="smallest reward difference in a pair (default: 0; frontend: 0.1)")
    flag = parser.add_argument_group("loss and steps").add_argument
    flag("--beta", type=number(above=0), default=0.1, help="inverse temperature of Eq. 2 and Eq. 4")
    flag("--nll", type=number(least=0), default=0.01,
         help="weight of the chosen side's mean NLL per token, beside Eq. 2 and Eq. 4; choose the critic's on "
         "validation tasks, it matters")
    flag("--max-steps", type=number(int, least=0), default=0, help="stop after this many steps; 0: train all epochs")
    step_flags(parser, lr, epochs, batch_size)


def step_flags(parser, lr, epochs, batch_size):
    """The flags of any training loop, on-policy ones too. Returns the parser."""
    count = number(int, least=0)
    positive = number(int, least=1)
    flag = parser.add_argument_group("data").add_argument
    flag("--run-name", default="default", help="the default paths are in runs/RUN_NAME")
    flag("--domain", default="backend", help="name of the environment; frontend (web pages) has defaults of its own")
    flag = parser.add_argument_group("optimisation").add_argument
    flag("--lr", type=number(above=0, most=1e38), help=f"peak learning rate of AdamW (default: {lr})")
    flag("--epochs", type=positive, help=f"passes over the data (default: {epochs})")
    flag("--batch-size", type=positive, help=f"pairs (or dialogues) per step, over all ranks (default: {batch_size})")
    flag("--seed", type=count, default=0, help="seed of every random choice")
    flag("--lora", type=count, default=0, metavar="RANK",
         help="train products of this rank beside the linear layers instead of all weights; 0: all weights; needs peft")
    flag = parser.add_argument_group("memory and speed").add_argument
    flag("--pack", choices=["tree", "none"],
         help="tree: compute shared prefixes once; none: padded rows, for models that accept no tree mask (default: "
         "tree; with --score as the critic was trained)")
    flag("--micro-tokens", type=positive, default=8192,
         help="most tokens in one forward pass, but for a longer pair or dialogue; a step may need several passes")
    flag("--checkpointing", choices=["none", "selective", "full"], default="none",
         help="layers that recompute their activations in the backward pass: none, every second layer, or all")
    flag("--dtype", choices=["float32", "bfloat16"],
         help="precision of matrix products on a CPU: bfloat16 is twice as fast with AVX512-BF16 or AMX; weights and "
         "log-probabilities stay float32; CUDA always uses bfloat16 (default: float32; with --score as the critic was "
         "trained)")
    flag = parser.add_argument_group("checkpoints").add_argument
    flag("--save-every", type=count, default=200, help="steps between checkpoints; 0: none")
    flag("--keep", type=positive, default=2, help="checkpoints to keep")
    flag("--overwrite", action="store_true", default=False, help="start again and replace the output")
    return parser


def fill_defaults(args, defaults):
    """Add the defaults that depend on other flags, for the flags that were not given."""
    pages = args.domain == "frontend"
    shared = {"pair_rule": "all" if pages else "best-vs-lower", "min_gap": 0.1 if pages else 0.0, "pack": "tree",
              "dtype": "float32"}
    return argparse.Namespace(**{**shared, **defaults, **vars(args)})


def flag_parser(description):
    """A parser whose help shows each default. A flag without a fixed default is absent from args unless it is given."""
    return argparse.ArgumentParser(description=description, argument_default=argparse.SUPPRESS, allow_abbrev=False,
                                   formatter_class=argparse.ArgumentDefaultsHelpFormatter)
