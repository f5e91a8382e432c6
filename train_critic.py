"""Stage 1 of SWEET-RL: train the turn-wise advantage critic. train_policy.py imports the training engine from here.

Two trajectories of one task form a pair: the one with the higher reward is chosen, the other is rejected. The critic is
a language model that sees the training-time information c (the reference solution) before the dialogue. The advantage
of a turn is the mean log-ratio of the turn's tokens,

    A(o_t, a_t, c) = 1/L sum_l [ log pi_theta(a_t^l | o_t, a_t^<l, c) - log pi_ref(a_t^l | o_t, a_t^<l, c) ]     (Eq. 3)

and training makes the sum of advantages order trajectories as their rewards do (Bradley-Terry),

    J = -log sigmoid( beta sum_t A(o_t+, a_t+, c) - beta sum_t A(o_t-, a_t-, c) )                                (Eq. 2)

pi_theta starts as the seed model. pi_ref stays the seed model; its log-probabilities are computed once, at the start.

A small NLL term on the chosen side is added (--nll). The paper does not say which trajectories are paired, so
--pair-rule follows the released code. Variants:
    --advantage   one mean over all tokens of a trajectory, as in the released code, or a sum
    --context     without-c hides c from the critic
    --head        a linear head on the mean hidden state, or a value head trained with binary cross-entropy on success
                  or by temporal differences

--domain frontend --head regression is the paper's critic for web pages: an image-text model (any that transformers
loads with a processor and a chat template; the paper uses Qwen2-VL-7B). It sees a picture of the reference page (c),
then a picture of the page shown at the turn, then the dialogue, with [page] in place of each page's source.

Prefixes that sequences share (c and the request; the dialogue up to a turn) are computed once, as a tree. The result
is exact. Models whose attention accepts no such mask (state-space models, attention sinks, capped attention scores
such as Gemma 2's) need --pack none, which gives every turn a row of its own.

Reads   runs/RUN_NAME/train.scored.jsonl, the seed model
Writes  runs/RUN_NAME/critic/: the model in Hugging Face format, critic.json (how to score with it), cost.json (what it
        cost), settings.json, metrics.jsonl, checkpoints/; for pages also runs/RUN_NAME/cache/

    python train_critic.py                                              # one process, CPU or one GPU
    torchrun --nproc-per-node 8 train_critic.py --model meta-llama/Llama-3.1-8B-Instruct
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 train_critic.py   # each node
    python train_critic.py --domain frontend --head regression --model Qwen/Qwen2-VL-7B-Instruct --checkpointing full
    python train_critic.py --score runs/default/train.candidates.jsonl  # writes train.ranked.jsonl, for train_policy.py
    python train_critic.py --score runs/default/test.scored.jsonl       # writes test.annotated.jsonl, for the report

In this file: the mathematics; the training loop; the engine (records, sequences, trees, attention, log-probabilities,
the critic's advantages, sharding, steps, output and checkpoints, pictures); the flags.
"""
import argparse
import atexit
import functools
import gc
import hashlib
import inspect
import itertools
import json
import math
import os
import shutil
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
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
from tqdm import tqdm

from records import (
    COSTS, SCHEMA, Output, check_path, check_settings, die, fingerprint, first_line,
    number, open_locked, read, atomic_write, write_json)

# ---- The mathematics


def segment_sum(values, index, count):
    """Sum the values that share an index: (N,), (N,) -> (count,)."""
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add_(0, index, values)


def segment_mean(values, index, count):
    """Average the values that share an index: (N,), (N,) -> (count,)."""
    return segment_sum(values, index, count) / segment_sum(torch.ones_like(values), index, count)


def turn_advantages(logps, reference, turn, turns, advantage="mean-per-turn"):
    """Eq. 3: the mean log-ratio of each turn's tokens (with --advantage sum, their sum). Returns (turns,).

    The loss, --score and best-of-N all call this function. No other code computes a turn's advantage.
    logps, reference: (N,) log-probabilities of the scored tokens, in nats; turn: (N,) the turn of each token.
    """
    # Subtract before summing: the difference of two long sums would lose digits.
    ratio = logps - reference
    if advantage == "sum":
        return segment_sum(ratio, turn, turns)
    return segment_mean(ratio, turn, turns)


def trajectory_scores(logps, reference, turn, side, sides, advantage="mean-per-turn"):
    """What Eq. 2 compares: one number per trajectory, (sides,). side: (M,) the trajectory of each turn."""
    if advantage == "mean-per-trajectory":
        return segment_mean(logps - reference, side[turn], sides)
    return segment_sum(turn_advantages(logps, reference, turn, len(side), advantage), side, sides)


def bradley_terry_loss(chosen, rejected, beta):
    """Eq. 2, per pair: chosen and rejected are the trajectories' sums of advantages, (B,)."""
    return -F.logsigmoid(beta * (chosen - rejected))


def value_loss(logits, success):
    """Binary cross-entropy of each turn's predicted success: logits (M,), success (M,) in [0, 1]."""
    return F.binary_cross_entropy_with_logits(logits, success, reduction="none")


def next_turn_targets(logits, side, rewards):
    """Temporal-difference targets (M,): Q of the next turn, or the trajectory's reward at its last turn.

    logits: (M,), their sigmoid is Q; side: (M,) the trajectory of each turn, in order; rewards: (M,) the reward of that
    trajectory. The next action is the recorded one (SARSA), as in ArCHer (arXiv 2402.19446), but the trajectories are
    the offline ones.
    """
    last = side.diff(append=side[-1:] + 1) != 0
    next_q = logits.detach().sigmoid().roll(-1)
    return torch.where(last, rewards, next_q)


def last_of_turn(values, turn, turns):
    """The value at each turn's last token: values (N,), turn (N,) in ascending order -> (turns,)."""
    return values[torch.bincount(turn, minlength=turns).cumsum(0) - 1]


def critic_loss(values, batch, items, args):
    """The loss of each item (B,), and what to log: {name: one value per item, turn or token}.

    values: (N,) log-probabilities, or the head's outputs (their reference is zero). In batch (see Batch), side 2i is
    item i's chosen (or only) trajectory, and side 2i + 1 is its rejected one.
    """
    if args.head in ("value", "q"):
        return success_loss(values, batch, items, args.head)
    scores = trajectory_scores(values, batch.reference, batch.turn, batch.side, batch.sides, args.advantage)
    chosen = scores[0::2]
    rejected = scores[1::2]                                                                      # (B,) each
    losses = bradley_terry_loss(chosen, rejected, args.beta)
    stats = {"preference_loss": losses, "accuracy": accuracy(chosen, rejected),
             "advantage_chosen": chosen, "advantage_rejected": rejected}
    if args.head == "log-ratio":
        nll = -segment_mean(values, batch.side[batch.turn], batch.sides)[0::2]                   # (B,)
        losses = losses + args.nll * nll
        stats |= {"nll": nll, "distance": (values - batch.reference).abs()}
    return losses, {"loss": losses, **stats}


def success_loss(values, batch, items, head):
    """critic_loss for --head value and q: the prediction for a turn is read at its last token.

    It predicts the trajectory's success (0 or 1), or for q its reward.
    """
    logits = last_of_turn(values, batch.turn, len(batch.side))                                   # (M,)
    item_of = batch.side // 2                                                                    # (M,)
    labels = torch.tensor([item.reward for item in items], device=values.device)[item_of]        # (M,)
    if head == "q":
        targets = next_turn_targets(logits, batch.side, labels)
    else:
        targets = labels = (labels >= 1.0).float()
    losses = segment_mean(value_loss(logits, targets), item_of, len(items))                      # (B,)
    correct = (logits > 0) == (labels > 0.5)
    return losses, {"loss": losses, "accuracy": correct.double(), "success": labels.double()}


def accuracy(chosen, rejected):
    """1 where the chosen side scores higher, 0.5 where the two tie: (B,), (B,) -> (B,)."""
    return ((chosen - rejected).sign() + 1) / 2


PAIR_RULES = ("best-vs-lower", "all")


def pair_trajectories(rewards, rule, min_gap=0.0):
    """Pair up one task's trajectories by their rewards: [(index of the chosen one, index of the rejected one)]."""
    chosen = range(len(rewards))
    if rule == "best-vs-lower":
        chosen = [i for i in chosen if rewards[i] >= 1.0][:1]
    gap = max(0.0, min_gap - 1e-9)    # in floating point 1.0 - 0.9 < 0.1
    return [(i, j) for i in chosen for j in range(len(rewards)) if rewards[i] - rewards[j] > gap]


# ---- The training loop

RECORDED = ("head", "pictures", "context", "advantage", "beta", "pack", "dtype")    # flags that critic.json records


def main():
    args = parse_args()
    device = start_process_group()
    if args.score:
        score_file(args)
        return finish()
    settings = from_rank0(checked_settings, args, {"--in": args.input, "--model": args.model})
    if settings is None:
        return finish()
    tokenizer = load_tokenizer(args.model, args.pictures)
    items, cost = make_items(args, tokenizer)
    items = usable_items(items, args.model, args)
    head = None
    if args.head == "log-ratio":
        set_reference(args.model, items, device, args)
    else:
        head = new_head(args.model)
    model = load_model(args.model, device, args, head, tokenizer if args.pictures else None)
    train(model, items, critic_loss, device, args, settings)
    note = {name: getattr(args, name) for name in RECORDED}
    note |= {"reference": args.model, "reference_fingerprint": settings["content of --model"]}
    save_model(model, tokenizer, args.model, args, cost, note)
    say(f"wrote the critic to {args.out}")
    finish()


def train(model, items, loss_function, device, args, settings, weight_of=len):
    """The training loop of both stages, from the newest checkpoint on.

    loss_function: critic_loss or one with the same signature. A step's losses are summed and divided by
    weight_of(its items). With len, every pair (or trajectory) has the same weight.
    """
    steps = step_items(items, args)
    optimizer, first_step = begin_training(model, args, settings)
    bar = progress(range(len(steps)), Path(args.out).name, "step", first_step)
    for step in bar:
        start = time.perf_counter()
        sums, counts = add_gradients(model, steps[step], weight_of(steps[step]), loss_function, device, args)
        rate = learning_rate(step, len(steps), args.lr)
        norm = optimizer_step(model, optimizer, rate)
        log(step_metrics(step, rate, norm, sums, counts, start, device, args), bar, args.out)
        save_checkpoint(args, model, optimizer, step + 1)


def add_gradients(model, items, weight, loss_function, device, args):
    """Compute the gradients of sum(losses of the items) / weight, one micro-batch at a time.

    The gradients stay in the model. Returns what to log, of this rank: the sum {name: sum} of the loss function's
    numbers and of the computed tokens, and how many numbers there were {name: count}.
    """
    sums = Counter()
    counts = Counter()
    for micro_batch in micro_batches(items, args):
        # FSDP waits for every rank, so a rank that has no items left computes any item, with loss 0.
        batch = collate(micro_batch or items[:1], device, args.pack)
        values = model(batch)                                                                    # (N,)
        losses = 0 * values
        if micro_batch:
            losses, stats = loss_function(values, batch, micro_batch, args)
            for name, numbers in stats.items():
                sums[name] += numbers.detach().sum()
                counts[name] += len(numbers)
            sums["tokens"] += batch.tokens
        # FSDP averages gradients over the ranks; world() turns the average into a sum.
        (losses.sum() * world() / weight).backward()
    return sums, counts


def make_items(args, tokenizer):
    """The pairs of --in (with --head value and q, its single trajectories) as items, and their cost."""
    tasks, cost = read_trajectories(args.input, "scored", args.context == "with-c")
    if args.head in ("value", "q"):
        pairs = [(record, None) for group in tasks.values() for record in group]
    else:
        pairs = pair_tasks(tasks, args)
    return items_of(pairs, tokenizer, pictures_beside(args.out) if args.pictures else None), cost


def score_file(args):
    """Copy the records of --score to --out, adding the critic's advantage of each candidate or assistant turn."""
    if not Path(args.score).is_file():
        die(f"{args.score}: no such file; --score takes what rollout.py --candidates or evaluate.py wrote")
    of_candidates = from_rank0(first_record_has, args.score, "candidates")
    kind, ending, turns_in = "scored", "annotated", turns_of
    if of_candidates:
        kind, ending, turns_in = "candidates", "ranked", candidate_turns
    stem = args.score.removesuffix(".jsonl").removesuffix(f".{kind}")
    out = args.out or f"{stem}.{ending}.jsonl"
    inputs = {"--score": args.score, "--critic": args.critic}
    settings = {"script": "train_critic --score", "critic_reference": args.critic_reference}
    output = from_rank0(Output, out, settings, inputs, args.overwrite, SCHEMA[kind][1])
    done = frozenset(output.done)    # rank 0 adds to output.done while it writes
    critic = Critic(args.critic, args.micro_tokens, reference_without_c=args.critic_reference == "without-c")
    cost = json.loads((Path(args.critic) / "cost.json").read_text())
    ranked_by = {"critic": args.critic, "fingerprint": from_rank0(fingerprint, args.critic), "cost": cost}

    def with_turns(record):
        """(record, its turns), or None if the record is in the output already."""
        return None if output.key_of(record) in done else (record, turns_in(record, critic.with_c))

    def remaining():
        """Iterate over the records that are left. Not a list: token ids take a lot of memory as Python lists."""
        return filter(None, read(args.score, kind, each=with_turns))

    count = sum(1 for _ in remaining())    # reports a bad last line now, not after hours of scoring
    todo = remaining()
    written = 0
    left_out = 0
    for _ in progress(range(0, count, PORTION), "scored", "portion"):
        portion = list(itertools.islice(todo, PORTION))
        advantages = iter(critic.advantages([turn for _, turns in portion for turn in turns]))
        for record, turns in portion:
            too_long = 0
            for (_, reply, _), value in zip(turns, advantages):
                if value == -math.inf:
                    too_long += 1
                else:
                    reply["advantage"] = round(value, 7)    # changes the record, which contains the reply
            left_out += too_long
            if of_candidates and too_long:
                continue
            written += 1
            if rank() == 0:
                output.write({**record, "ranked_by": ranked_by})
    if left_out:
        say(f"{args.score}: {left_out} replies left out: they do not fit the critic's context; with a "
            "candidate go the others of its turn")
    say(f"wrote {written} records to {out}")


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


def first_record_has(path, key):
    """Whether the first record of a file has this key. It identifies the kind of records in the file."""
    try:
        with open(path, "rb") as file:
            return key in json.loads(file.readline())
    except Exception:    # no such file, not JSON, not an object
        return False


def gather(mine):
    """Merge the dictionaries of all ranks into one."""
    if world() == 1:
        return mine
    gathered = [None] * world()
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
    """Leave the process group. Under torchrun, also end the process here.

    gloo's threads may still hold a tensor. Releasing it during interpreter shutdown would end a finished run with
    "terminate called" (pytorch/pytorch#190489).
    """
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    if "RANK" in os.environ:
        atexit._run_exitfuncs()    # os._exit would skip them
        sys.stdout.flush()
        os._exit(0)


def progress(work, title, unit, first=0):
    """Iterate over work[first:] with a progress bar, if it has a title. A log file gets a line every 30 seconds."""
    return tqdm(work[first:], title, len(work), initial=first, unit=unit, disable=rank() > 0 or not title,
                mininterval=0.5 if sys.stderr.isatty() else 30, delay=1)


# ---- From records to turns


class Item(NamedTuple):
    """One training example: a pair (chosen and rejected), or a single dialogue (rejected is empty)."""
    chosen: list    # sequences
    rejected: list
    group: tuple    # items with equal groups stay together (train_policy.py --shuffle turns): the pairs of a turn
    reward: float = 1.0    # of the chosen trajectory
    task: object = None


def put_c_in_front(messages, ground_truth):
    """The messages, with the training-time information c in front of the first user message."""
    messages = list(messages)
    first = [message["role"] for message in messages].index("user")
    content = f"In light that the final answer is: {ground_truth}.\n\n{messages[first]['content']}"
    messages[first] = {**messages[first], "content": content}
    return messages


def check_dialogue(messages, name):
    """Raise ValueError unless the user speaks first (after any system message)."""
    roles = [message["role"] for message in messages if message["role"] != "system"]
    if roles[:1] != ["user"]:
        raise ValueError(f"{name} must begin with a user message")


def turns_of(record, with_c=False):
    """A trajectory's assistant turns: [(prompt messages, reply, c or None)].

    The reply is a message or a candidate of the record itself. Its token ids, if they were recorded, are in
    `output_ids`; its text is in `output` or `content`.
    """
    history = record["dialogue_history"]
    check_dialogue(history, "dialogue_history")
    c = reference_solution(record, with_c)
    messages = [{"role": "system", "content": record["system"]}] if record.get("system") else []
    turns = []
    for message in history:
        if message["role"] == "assistant":
            turns.append((list(messages), message, c))
        messages.append({"role": message["role"], "content": message["content"]})
    return turns


def candidate_turns(record, with_c=False):
    """The candidates of one turn, in the form that turns_of returns. Removes empty candidates from the record."""
    check_dialogue(record["prompt"], "prompt")
    c = reference_solution(record, with_c)
    record["candidates"] = [candidate for candidate in record["candidates"]
                            if candidate.get("output") or candidate.get("output_ids")]
    return [(record["prompt"], candidate, c) for candidate in record["candidates"]]


def text_of(reply):
    """The text of a reply, or None."""
    text = reply.get("output")
    return reply.get("content") if text is None else text


def ids_of(reply):
    """The token ids of a reply as they were sampled, by the sampler's own tokenizer; () if none were recorded."""
    ids = reply.get("output_ids")
    return () if ids is None else ids


def reference_solution(record, with_c):
    """The training-time information c, or None if the critic does not see it."""
    c = (record.get("task") or {}).get("ground_truth") if with_c else None
    if with_c and c is None:
        raise ValueError("the record has no task with a ground_truth, which the critic's context needs")
    return c


def read_trajectories(path, kind, with_c=False):
    """Usable trajectories as {task: [record with its "turns"]}, in file order, and the cost of all that were read."""
    tasks = {}
    left_out = Counter()    # {why: how many}
    cost = Counter()
    for record in read(path, kind, each=lambda record: {**record, "turns": turns_of(record, with_c)}):
        cost.update({"episodes": 1, **(record.get("cost") or {})})
        if kind == "scored" and (record["reward"] is None or record["finish"].startswith("error")):
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


def items_of(pairs, tokenizer, pictures=None):
    """[(chosen record, rejected record or None)] as items. Each record is encoded once, however many pairs it is in."""
    records = list({id(record): record for pair in pairs for record in pair if record}.values())    # each once
    encoded = iter(encode_turns([turn for record in records for turn in record["turns"]], tokenizer, pictures))
    for record in records:
        record["sequences"] = [next(encoded) for _ in record["turns"]]
    items = []
    for n, (chosen, rejected) in enumerate(pairs):
        sequences = rejected["sequences"] if rejected else []
        task = chosen["task_id"]
        items.append(Item(chosen["sequences"], sequences, (str(task), n), chosen.get("reward", 1.0), task))
    return items


def encode_turns(turns, tokenizer, pictures=None):
    """A sequence for each turn. A critic that sees pages has a folder of pictures, and a processor as its tokenizer."""
    return view_turns(turns, tokenizer, pictures) if pictures else tokenise(tokenizer, turns)


def usable_items(items, model, args):
    """The items that fit the context of the model at this path."""
    context = scored_context(model)
    fit = [item for item in items if length_of(item) <= context]
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
    return list(dict.fromkeys(sequence for item in items for sequence in item.chosen + item.rejected))


def length_of(item):
    """The length of an item's longest sequence, in tokens."""
    return max(len(sequence.ids) for sequence in item.chosen + item.rejected)


# ---- From messages to token sequences


def load_tokenizer(path, pictures=False):
    """A model's tokenizer, which must have a chat template. With pictures: an image-text model's processor."""
    # Hub names have at most one slash, so a path with more is a folder.
    is_folder = Path(path).is_dir() or str(path).count("/") > 1
    if is_folder and not (Path(path) / "config.json").is_file():
        die(f"{path}: no model found; train it first, or name another")
    kind = transformers.AutoProcessor if pictures else transformers.AutoTokenizer
    try:
        tokenizer = kind.from_pretrained(path)
    except Exception as error:    # of many types
        die(f"{path}: cannot load a tokenizer or processor ({first_line(error)})")
    if not tokenizer.chat_template:
        die(f"{path} has no chat template; use an instruction-tuned model, or add chat_template.jinja")
    if pictures:
        if not hasattr(tokenizer, "image_processor"):
            die(f"{path}: this model reads only text; a critic that sees pages needs an image-text-to-text model")
        tokenizer.tokenizer.pad_token = tokenizer.tokenizer.pad_token or tokenizer.tokenizer.eos_token
    return tokenizer


def render_prompt(tokenizer, messages):
    """The prompt text, up to where the assistant starts to speak."""
    try:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except TemplateError as error:
        if [m["role"] for m in messages[:2]] != ["system", "user"]:
            die(f"the model's chat template rejects a dialogue ({first_line(error)})")
    # Some templates, such as Gemma's, reject system messages: put the text in front of the first user message.
    system, user, *rest = messages
    merged = {"role": "user", "content": f"{system['content']}\n\n{user['content']}"}
    return render_prompt(tokenizer, [merged, *rest])


def end_of_turn(tokenizer):
    """The ids that end a reply known only as text: the special token that the chat template puts after a reply.

    It is not always eos: Gemma's template ends a turn with <end_of_turn> and a line break.
    """
    dialogue = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Goodbye"}]
    text = tokenizer.apply_chat_template(dialogue, add_generation_prompt=False, tokenize=False)
    after = text.rpartition("Goodbye")[2]
    for token in tokenizer([after], add_special_tokens=False)["input_ids"][0]:
        if token in tokenizer.added_tokens_decoder:
            return [token]
    return [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]


def ids_match(tokenizer, replies):
    """Whether this tokenizer sampled the replies: all ids are in its vocabulary, and about 200 decode to their text.

    A critic may belong to another model family than the agent. The agent's ids would then be random words to it.
    """
    if max(np.max(ids_of(reply)) for reply in replies) >= len(tokenizer):
        return False
    for reply in replies[::max(1, len(replies) // 200)]:
        text = text_of(reply)
        if text and text.split() != tokenizer.decode(ids_of(reply), skip_special_tokens=True).split():
            return False
    return True


def tokenise(tokenizer, turns):
    """Turns [(prompt messages, reply, c or None)] as sequences."""
    sampled = [reply for _, reply, _ in turns if len(ids_of(reply))]
    use_ids = not sampled or ids_match(tokenizer, sampled)
    if not use_ids:
        say_once("the recorded token ids come from another tokenizer than this model's: the text is used instead")

    @functools.lru_cache(2)    # a prompt and a reply: the candidates of one turn share their prompt
    def encode(text):
        # Encoded and decoded, because a server may send half of a surrogate pair.
        return tokenizer([text.encode("utf-8", "replace").decode()], add_special_tokens=False)["input_ids"][0]

    end = end_of_turn(tokenizer)
    sequences = []
    for messages, reply, c in turns:
        prompt_ids = encode(render_prompt(tokenizer, messages if c is None else put_c_in_front(messages, c)))
        text = text_of(reply)
        ids = ids_of(reply)
        if not use_ids or not len(ids):
            if text is None:
                die("a reply has token ids from another tokenizer and no text (output)")
            ids = encode(text) + end
        sequences.append(Sequence(np.concatenate([prompt_ids, ids]).astype(np.int32), len(prompt_ids)))
    return sequences


@dataclass(eq=False)    # hashed by identity: the same sequence may be in several pairs
class Sequence:
    """One turn as tokens: the prompt, then from `start` on the reply, whose tokens are scored."""
    ids: np.ndarray                  # (T,) int32
    start: int
    view: tuple = ()                 # what a critic that sees pages reads: (text, picture files)
    reference: np.ndarray = np.float32(0)    # (N,) log-probabilities under the reference, or one number for all

    @property
    def scored(self):
        """(N,) indices into ids."""
        return np.arange(self.start, len(self.ids))


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

    As soon as one sequence in a batch is longer, these two encode all positions of the batch differently. A sequence's
    log-probabilities would then depend on the rest of its batch.
    """
    context = context_of(path) or math.inf
    rope = getattr(text_config(path), "rope_parameters", None) or {}
    for part in [rope, *rope.values()]:    # some models have one for each kind of layer
        if isinstance(part, dict) and part.get("rope_type") in ("longrope", "dynamic"):
            context = min(context, part.get("original_max_position_embeddings") or context)
    return context


# ---- Trees: shared prefixes are computed once


class Forest(NamedTuple):
    """Sequences laid out as trees in one row of T tokens, with each shared prefix stored once.

    A token's descendants follow it without a gap, so token q sees token k exactly if  k <= q < end[k].  One number per
    token is therefore the whole attention mask.
    """
    ids: np.ndarray        # (T,) token ids
    positions: np.ndarray  # (T,) position of each token in its sequence
    end: np.ndarray        # (T,) index in the row after the last descendant of the token
    paths: list            # for each sequence: (its length,) the indices of its tokens in the row
    blocks: list           # [(start, stop, prefix)]: queries start..stop see row[prefix] and, masked, each other


def common_prefix(a, b):
    """How many tokens two sequences share at their beginning."""
    length = min(len(a), len(b))
    differ = a[:length] != b[:length]
    return int(differ.argmax()) if differ.any() else length


def lexicographic_order(sequences):
    """Indices of the sequences in lexicographic order, in which sequences with a shared prefix are neighbours."""
    return sorted(range(len(sequences)), key=lambda i: sequences[i].ids.astype(">i4").tobytes())


def tree_tokens(sequences):
    """How many tokens the sequences take when each shared prefix is stored once."""
    total = 0
    previous = np.empty(0)
    for n in lexicographic_order(sequences):
        ids = sequences[n].ids
        total += len(ids) - common_prefix(previous, ids)
        previous = ids
    return total


def build_prefix_forest(sequences, block=256):
    """Lay sequences out as a forest.

    The longest sequence is the trunk of a tree: one stretch of the row, causal in itself. Its branches follow, each
    laid out the same way. Those that leave the trunk last come first. A branch that shares no token with the trunk is a
    tree of its own. `block` limits how many tokens of neighbouring branches a CPU attends to together.
    """
    ids, positions, end = (np.empty(tree_tokens(sequences), np.int64) for _ in range(3))
    paths = [None] * len(sequences)
    blocks = []
    length = 0

    def grow(members, prefix):
        """Append what the members have beyond row[prefix], the tokens that they share."""
        nonlocal length
        trunk = max((sequences[i].ids for i in members), key=len)
        depth = len(prefix)
        start = length
        length = stop = start + len(trunk) - depth
        ids[start:stop] = trunk[depth:]
        positions[start:stop] = np.arange(depth, len(trunk))
        end[start:stop] = stop
        path = np.concatenate([prefix, np.arange(start, stop)])
        if depth and np.array_equal(blocks[-1][2], prefix) and stop - blocks[-1][0] <= block:
            start_of_block = blocks.pop()[0]
        else:
            start_of_block = start
        blocks.append((start_of_block, stop, prefix))
        branches = {}    # {(how many tokens it shares with the trunk, its next token): members}
        for i in members:
            member = sequences[i].ids
            shared = common_prefix(member, trunk)
            if shared == len(member):
                paths[i] = path[:shared]
            else:
                branches.setdefault((shared, member[shared]), []).append(i)
        for shared, token in sorted(branches, key=lambda branch: (-branch[0], branch[1])):
            grow(branches[shared, token], path[:shared])
            end[start:start + shared - depth] = length    # the branch also descends from the shared part of the trunk

    grow(list(range(len(sequences))), np.empty(0, np.int64))
    return Forest(ids, positions, end, paths, blocks)


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
    tokens: int                 # tokens computed, without padding
    views: tuple = ()           # what a critic that sees pages reads, one view per row


def collate(items, device, pack):
    """Items as one batch. Side 2i is item i's chosen side, side 2i + 1 its rejected side.

    pack "tree": trees in one row; "none": rows padded on the right, where causal attention never looks.
    """
    def to_device(array):
        return torch.from_numpy(array).to(device)

    sides = [side for item in items for side in (item.chosen, item.rejected)]
    sequences = [sequence for side in sides for sequence in side]
    inputs = {"use_cache": False}
    if pack == "tree":
        forest = build_prefix_forest(sequences)
        tokens = len(forest.ids)
        paths = forest.paths
        pad = -tokens % 128 if device.type == "cuda" else 0    # FlexAttention works in blocks of 128
        ids = np.pad(forest.ids, (0, pad))[None]                                                 # (1, T)
        positions = to_device(np.pad(forest.positions, (0, pad)))
        end = np.concatenate([forest.end, np.arange(tokens, tokens + pad) + 1])
        inputs["position_ids"] = positions[None]
        inputs["layout"] = Attention(to_device(end), positions, forest.blocks)
    else:
        lengths = [len(s.ids) for s in sequences]
        tokens = sum(lengths)
        ids = np.zeros((len(sequences), max(lengths)), np.int64)                                 # (R, T)
        for row, sequence in zip(ids, sequences):
            row[:len(sequence.ids)] = sequence.ids
        paths = np.arange(ids.size).reshape(ids.shape)
    inputs["input_ids"] = to_device(ids)
    source = np.concatenate([path[s.scored - 1] for s, path in zip(sequences, paths)])
    scored = np.concatenate([path[s.scored] for s, path in zip(sequences, paths)])
    lengths = [len(s.scored) for s in sequences]
    reference = [np.broadcast_to(s.reference, length) for s, length in zip(sequences, lengths)]
    return Batch(
        inputs,
        source=to_device(source),
        scored=to_device(scored),
        target=to_device(ids.ravel()[scored]),
        turn=to_device(np.repeat(np.arange(len(sequences)), lengths)),
        side=to_device(np.repeat(np.arange(len(sides)), [len(side) for side in sides])),
        sides=len(sides),
        reference=to_device(np.concatenate(reference)),
        tokens=tokens,
        views=tuple(s.view for s in sequences))


# ---- Attention over a forest

NO_TREES = "this model's attention does not accept a tree mask; use --pack none, which computes each sequence by itself"


def sees(query, key, end, positions, window):
    """Whether a query sees a key (indices into the row): it descends from the key and is within the window, if any."""
    seen = (key <= query) & (query < end[key])
    return seen if window is None else seen & (positions[query] - positions[key] < window)


@dataclass
class Attention:
    """Which tokens of a row see which, in the form that each device needs. See Forest for end, positions and blocks."""
    end: torch.Tensor           # (T,)
    positions: torch.Tensor     # (T,)
    blocks: list
    masks: dict = field(default_factory=dict)    # {window: what block_mask or block_inputs makes of it}

    def mask(self, window):
        """The mask for layers with this window, which the layers share."""
        if window not in self.masks:
            on_cuda = self.end.device.type == "cuda"
            self.masks[window] = self.block_mask(window) if on_cuda else self.block_inputs(window)
        return self.masks[window]

    def block_mask(self, window, size=128):
        """FlexAttention's mask: it skips blocks that no query sees, and applies no mask to blocks that all queries see.

        Built directly from `end`: create_block_mask, unless compiled, would first build the whole (T, T) mask.
        """
        from torch.nn.attention.flex_attention import BlockMask
        end = self.end
        positions = self.positions
        ends = end.view(-1, size)
        depths = positions.view(-1, size)                                                        # (blocks, size)
        keys = torch.arange(len(ends), device=end.device) * size                                 # each block's start
        queries = keys[:, None]
        visible = (keys <= queries) & (ends.amax(1) > queries)                                   # (blocks, blocks)
        full = (keys < queries) & (ends.amin(1) >= queries + size)
        if window is not None:
            visible &= depths.amin(1)[:, None] - depths.amax(1) < window
            full &= depths.amax(1)[:, None] - depths.amin(1) < window

        def listed(chosen):
            """For each query block: how many key blocks are chosen, and the indices of all, the chosen ones first."""
            indices = chosen.int().argsort(dim=1, descending=True, stable=True)
            return chosen.sum(1).int()[None, None], indices.int()[None, None]

        def mask_mod(batch, head, query, key):
            return sees(query, key, end, positions, window)

        return BlockMask.from_kv_blocks(*listed(visible & ~full), *listed(full), BLOCK_SIZE=size, mask_mod=mask_mod)

    def block_inputs(self, window):
        """For each block of queries on a CPU: (start, stop, indices of its keys, mask).

        Keys None: the queries' own stretch, as for a trunk. Mask None: causal. An explicit mask takes a quarter longer.
        """
        inputs = []
        for start, stop, prefix in self.blocks:
            queries = torch.arange(start, stop)
            keys = None
            mask = None
            seen = torch.cat([torch.from_numpy(prefix), queries])
            if len(prefix):
                keys = seen
            if len(prefix) or window is not None:
                mask = sees(queries[:, None], seen, self.end, self.positions, window)
            inputs.append((start, stop, keys, mask))
        return inputs


def block_attention(query, key, value, blocks, scale):
    """Attention over a forest on a CPU, (1, H, T, D): each block of queries attends to the tokens it descends from."""
    sizes = [stop - start for start, stop, _, _ in blocks]
    parts = []
    # split instead of a slice per block: the gradient of a slice is as long as the row
    for q, k, v, (_, _, keys, mask) in zip(query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2), blocks):
        if keys is not None:
            k = key.index_select(2, keys)
            v = value.index_select(2, keys)
        parts.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale))
    return torch.cat(parts, 2)


@functools.cache
def compiled_flex():
    from torch.nn.attention.flex_attention import flex_attention
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(flex_attention, dynamic=True)


def tree_attention(module, query, key, value, attention_mask, layout=None, scaling=None, sliding_window=None, **kwargs):
    """The attention of every layer, which transformers calls: query (1, H, T, D), key and value (1, K, T, D)."""
    if layout is None or any(kwargs.get(name) is not None for name in ("s_aux", "position_bias", "softcap")):
        die(NO_TREES)
    if query.device.type == "cuda":
        out = compiled_flex()(query, key, value, block_mask=layout.mask(sliding_window), scale=scaling,
                              enable_gqa=query.shape[1] > key.shape[1])
    else:
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key = key.repeat_interleave(groups, 1)
            value = value.repeat_interleave(groups, 1)
        out = block_attention(query, key, value, layout.mask(sliding_window), scaling)
    return out.transpose(1, 2), None


transformers.AttentionInterface.register("tree", tree_attention)


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
        d_weight = torch.zeros_like(weight)
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
            d_weight.addmm_(d.T, h)
        return torch.cat(d_hidden), d_weight, None, None, None, None, None


class Scorer(nn.Module):
    """A causal language model that returns one number per scored token and never builds a (B, T, V) tensor.

    Without a head: the token's log-probability. With a head: the head's value at the token. With a processor the model
    is an image-text model and reads the views; it returns a value at every token, including the pictures' tokens.
    """

    def __init__(self, lm, head=None, head_bytes=2 ** 29, processor=None):
        super().__init__()
        self.lm = lm
        self.head = head
        self.processor = processor
        self.bf16 = False
        self.head_bytes = head_bytes    # larger logits are recomputed in the backward pass

    def forward(self, batch):
        if self.processor is not None:
            inputs = read_views(self.processor, batch.views).to(batch.target.device, self.head.weight.dtype)
            hidden = self.lm.base_model(**inputs, use_cache=False).last_hidden_state             # (R, T, D)
            return self.values(hidden[inputs["attention_mask"].bool()])
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
    items = [Item([sequences[i]], [], (), task=i) for i in lexicographic_order(sequences)]
    scores = {}    # {index of the sequence: its numbers}
    for micro_batch in progress(micro_batches(items, args), title, "batch"):
        values = model(collate(micro_batch or items[:1], device, args.pack)).float().cpu().numpy()
        ends = np.cumsum([len(item.chosen[0].scored) for item in micro_batch])
        for item, numbers in zip(micro_batch, np.split(values, ends)):
            scores[item.task] = numbers
    if dist.is_initialized():
        model.reshard()    # FSDP leaves the root group gathered, and a saved state would contain gathered tensors
    scores = gather(scores)
    return [scores[i] for i in range(len(sequences))]


def split_until(items, fits):
    """Halve a list until fits(part) is true of every part. A single item is never split, even if it does not fit."""
    if not items:
        return []
    if len(items) == 1 or fits(items):
        return [items]
    middle = len(items) // 2
    return split_until(items[:middle], fits) + split_until(items[middle:], fits)


def set_reference(path, items, device, args):
    """Give each sequence its log-probabilities under the reference, which is the model at `path`."""
    sequences = sequences_in(items)
    model = load_model(path, device, args)
    for sequence, logps in zip(sequences, score_all(model, sequences, device, args, "reference")):
        sequence.reference = logps


# ---- The critic as the other stages use it

PORTION = 200    # records scored and saved at a time, so the most that a kill can lose


def new_head(model, weights=None):
    """A linear head. By default it starts at zero: all trajectories start with the same score."""
    head = nn.Linear(text_config(model).hidden_size, 1)
    weights = weights or {"weight": [0.0] * head.in_features, "bias": [0.0]}
    nn.utils.vector_to_parameters(torch.tensor(weights["weight"] + weights["bias"]), head.parameters())
    return head


class Critic:
    """A trained critic, as every stage loads it to get the advantages of turns.

    without_c: hide c from a critic that was trained with it. reference_without_c: hide c only from the reference of
    Eq. 3, as the released code does. `note` is the content of critic.json.
    """

    def __init__(self, path, micro_tokens=8192, without_c=False, reference_without_c=False):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.note = note = read_note(path)
        self.with_c = note["context"] == "with-c" and not without_c
        self.reference_without_c = reference_without_c
        self.context = scored_context(path)
        self.pictures = pictures_beside(path) if note["pictures"] else None
        self.tokenizer = load_tokenizer(path, self.pictures)
        self.args = argparse.Namespace(**note, micro_tokens=micro_tokens, checkpointing="none")
        self.reference = None
        head = None
        if note["head"] == "log-ratio":
            self.reference = load_model(note["reference"], self.device, self.args)
        else:
            head = new_head(path, note["weights"])
        self.model = load_model(path, self.device, self.args, head, self.tokenizer if self.pictures else None)

    def advantages(self, turns):
        """Eq. 3 for each turn (prompt messages, reply, c or None), or the head's value for it: one float per turn.

        A turn that does not fit the critic's context, with c in front, gets -inf.
        """
        without_c = [(messages, reply, None) for messages, reply, _ in turns]
        sequences = encode_turns(turns if self.with_c else without_c, self.tokenizer, self.pictures)
        fit = [n for n, sequence in enumerate(sequences) if len(sequence.ids) <= self.context]
        values = score_all(self.model, [sequences[n] for n in fit], self.device, self.args)
        references = [0.0] * len(fit)
        if self.reference:
            if self.reference_without_c:
                sequences = encode_turns(without_c, self.tokenizer)
            references = score_all(self.reference, [sequences[n] for n in fit], self.device, self.args)
        advantages = [-math.inf] * len(turns)
        for n, numbers, reference in zip(fit, values, references):
            numbers = torch.tensor(numbers).double()                                             # (N,)
            turn = torch.zeros(len(numbers), dtype=torch.long)                                   # (N,): one turn
            if self.note["head"] in ("value", "q"):
                advantage = last_of_turn(numbers, turn, 1)
            else:
                advantage = turn_advantages(numbers, torch.tensor(reference).double(), turn, 1, self.note["advantage"])
            advantages[n] = advantage.item()
        return advantages


def read_note(path):
    """The content of critic.json. Exits if the reference is no longer the model that the critic was trained from."""
    file = Path(path) / "critic.json"
    try:
        note = {**json.loads(file.read_text())}
        if not {*RECORDED, "reference", "reference_fingerprint"} <= note.keys():
            raise ValueError("keys are missing")
    except OSError:
        die(f"{path} contains no critic.json; train a critic with train_critic.py, or name another with --critic")
    except (ValueError, TypeError):
        die(f"{file} is damaged or incomplete; train the critic again, or name another with --critic")
    reference = note["reference"]
    if note["head"] == "log-ratio" and note["reference_fingerprint"] != fingerprint(reference):
        die(f"{path}: its reference model {reference} has changed since the critic was trained; restore the model (or "
            f"correct its path in {file}), or train the critic again")
    return note


# ---- Loading, sharding and saving a model


def decoder_layers(lm):
    return [module for module in lm.modules() if type(module).__name__ in (lm._no_split_modules or ())]


def shard(model, device):
    """FSDP2: one group per decoder layer, one for the rest. On CUDA: bf16 compute, float32 masters and reductions."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy()
    if device.type == "cuda":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in [*decoder_layers(model.lm), model]:
        fully_shard(part, mp_policy=policy)


def load_model(path, device, args, head=None, processor=None):
    """A Scorer around the model at `path`, sharded over the ranks: a causal language model, or an image-text model with
    a processor.

    In a process group only rank 0 reads the weights, all of them, in float32. Each rank then receives its shards.
    Without a group (on a CPU, or a critic inside rollout.py on a GPU, in bf16) the model is loaded unsharded. It stays
    in evaluation mode during training, so there is no dropout.
    """
    grouped = dist.is_initialized()
    kind = transformers.AutoModelForImageTextToText if processor else transformers.AutoModelForCausalLM
    options = {"dtype": torch.bfloat16 if device.type == "cuda" and not grouped else torch.float32}
    if args.pack == "tree":
        options["attn_implementation"] = "tree"
    elif getattr(text_config(path), "attn_logit_softcapping", None):
        options["attn_implementation"] = "eager"    # the default, SDPA, ignores the cap
    gc.collect()    # FSDP modules refer to each other in cycles: the previous model would stay in memory
    if rank() == 0:
        lm = read_weights(path, kind, options)
        if processor is None:
            check_scores(lm, args.pack, path)
    if grouped:
        full = Scorer(lm, head).state_dict() if rank() == 0 else {}
        buffers = from_rank0(lambda: dict(lm.named_buffers()))    # some (rotary frequencies) are not in the state dict
        with torch.device("meta"):
            lm = kind.from_config(transformers.AutoConfig.from_pretrained(path), **options).eval()
    if args.checkpointing != "none":
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        stride = 2 if args.checkpointing == "selective" else 1
        for layer in decoder_layers(lm)[::stride]:
            layer.training = True    # unlike train(), this turns no dropout module on; OPT's layers need `none`
    model = Scorer(lm, head, 2 ** (32 if device.type == "cuda" else 29), processor)
    model.bf16 = device.type == "cpu" and args.dtype == "bfloat16"
    if not grouped:
        return model.to(device)
    shard(model, device)
    model.to_empty(device=device)
    lm.tie_weights()    # to_empty made separate copies of tied weights
    set_model_state_dict(model, full, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    for name, buffer in lm.named_buffers():
        buffer.copy_(buffers[name])
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
        die(f"{path}: {len(missing)} weights are missing, starting with {missing[0]}; train or download the model "
            f"again")
    return lm.eval()


@torch.no_grad()
def check_scores(lm, pack, path):
    """Exit unless a Scorer, on three short turns in one batch, agrees with the model's own logits on each turn alone.

    A mask that the model ignores, or a scale of the logits that Scorer does not know, would otherwise go unnoticed and
    train on wrong numbers.
    """
    config = lm.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ())
    if pack == "tree" and not (lm._supports_attention_backend and layers <= {"full_attention", "sliding_attention"}):
        die(f"{path}: {NO_TREES}")
    ids = np.arange(24, dtype=np.int32) % config.vocab_size
    cpu = torch.device("cpu")
    turns = (ids, np.append(ids[:12], ids[3:9]), np.append(ids[:5], ids[1:8]))    # two branches of the first
    sequences = [Sequence(turn, 4) for turn in turns]
    logps = Scorer(lm)(collate([Item(sequences, [], ())], cpu, pack))
    expected = []
    for sequence in sequences:
        batch = collate([Item([sequence], [], ())], cpu, pack)
        logits = lm(**batch.inputs).logits.flatten(0, 1)[batch.source]                           # (n, V)
        expected.append(-F.cross_entropy(logits.float(), batch.target, reduction="none"))
    error = (logps - torch.cat(expected)).abs().mean().item()
    if error > (0.01 if lm.dtype == torch.float32 else 0.5):    # ignoring the mask gives an error of about 2
        die(f"{path}: Scorer's log-probabilities differ from those of the model's own logits by {error:.2g} nats per "
            f"token; try --pack none; if that fails too, Scorer.logps must be taught how this model scales its logits")


def save_model(model, tokenizer, seed, args, cost, note=None):
    """Write the model in Hugging Face format to --out, with cost.json and, for a critic, critic.json.

    cost: of the records and the ranking that it learned from, not of the seed model; note: the content of critic.json
    without the head's weights.
    """
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank() == 0:
        out = Path(args.out).resolve()    # "." has no name of its own
        tokens = [json.loads(line)["tokens"] for line in open(out / "metrics.jsonl")]
        cost += Counter(optimizer_steps=len(tokens), training_tokens=sum(tokens))
        notes = {"cost.json": {key: int(cost[key]) for key in COSTS}}
        if note:
            head = None
            if model.head:
                head = {name: state[f"head.{name}"].flatten().tolist() for name in ("weight", "bias")}
            notes["critic.json"] = {**note, "weights": head}
        try:
            for name, content in notes.items():
                (out / name).write_text(json.dumps(content, indent=1) + "\n")
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
    names = [name for name, _ in (*lm.named_parameters(), *lm.named_buffers()) if f"lm.{name}" in state]
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
    groups = {}
    for i, item in enumerate(items):
        key = item.group if args.shuffle == "turns" else i
        groups.setdefault(key, []).append(item)
    groups = list(groups.values())
    steps = []
    for epoch in range(args.epochs):
        order = np.random.default_rng([args.seed, epoch]).permutation(len(groups))
        shuffled = [item for n in order for item in groups[n]]
        steps += [shuffled[start:start + args.batch_size] for start in range(0, len(shuffled), args.batch_size)]
    return steps[:args.max_steps or None]


def micro_batches(items, args):
    """This rank's micro-batches of items, each of at most --micro-tokens tokens, or of one longer item.

    Every rank gets the same number of micro-batches: if it needs fewer, its last ones are empty.
    """
    trees = args.pack == "tree"

    def fits(part):
        sequences = [sequence for item in part for sequence in item.chosen + item.rejected]
        if trees:
            return tree_tokens(sequences) <= args.micro_tokens
        return len(sequences) * max(map(length_of, part)) <= args.micro_tokens

    # Trees: items of the same group share the most tokens. Rows: items of similar length need the least padding.
    ordered = sorted(items, key=(lambda item: repr(item.group)) if trees else length_of)
    lengths = np.array([length_of(item) for item in ordered])
    # Each rank takes a contiguous stretch, of about the same total length.
    rank_of = ((lengths.cumsum() - lengths / 2) * world() / lengths.sum()).astype(int)
    parts = []
    for n in range(world()):
        parts.append(split_until([item for item, r in zip(ordered, rank_of) if r == n], fits))
    mine = parts[rank()]
    return mine + [[]] * (max(map(len, parts)) - len(mine))


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
    norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
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


def step_metrics(step, rate, norm, sums, counts, start, device, args):
    """One step's line of metrics.jsonl. Exits if the loss is not finite or training did not start at the reference."""
    sums = over_ranks(sums)
    counts = over_ranks(counts)
    values = {name: sums[name] / count for name, count in counts.items()}
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

WRITTEN = (    # what --overwrite removes from an output folder, in this order
    "config.json", "checkpoints", "metrics.jsonl", "critic.json", "cost.json", "*config.json", "model*.safetensors*",
    "*token*.json", "tokenizer.model", "chat_template*", "vocab.*", "merges.txt")
NOT_SETTINGS = {    # flags for paths, scoring, speed and checkpoints, which never change the trained model
    "run_name", "input", "model", "out", "critic", "critic_reference", "pairs", "score", "overwrite", "pack",
    "micro_tokens", "checkpointing", "save_every", "keep"}
locks = []      # files kept open, and so locked, until this process ends


def checked_settings(args, inputs):
    """The settings that decide the result: flags and the content of the inputs {flag: path}; None if --out is complete.

    Exits if --out contains an input, was begun with other settings or was written by something else. Writes nothing.
    Only rank 0 calls it.
    """
    out = Path(args.out)
    script = Path(sys.argv[0]).stem
    for name, path in inputs.items():
        if Path(path).resolve().is_relative_to(out.resolve()):
            die(f"--out {out} is or contains {name} ({path}); name another folder with --out")
    check_path(out / "metrics.jsonl")
    settings = {"script": script}
    settings |= {name: value for name, value in vars(args).items() if name not in NOT_SETTINGS}
    settings |= {f"content of {flag}": fingerprint(path) for flag, path in inputs.items()}
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


def begin_training(model, args, settings):
    """The optimizer, and the step to start or resume at."""
    step = from_rank0(prepare_output, Path(args.out), args.overwrite, settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)
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
        patterns = [*WRITTEN, *patterns]
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

    Each rank writes its shards. The folder appears only once it is complete.
    """
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
    # Weights that never get a gradient (the output embedding under a head, Gemma 3's vision tower) have no averages.
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
    try:
        dcp.load(state, checkpoint_id=str(folder), planner=planner)
    except (Exception, dcp.api.CheckpointException) as error:    # many kinds, all with the same meaning
        die(f"{folder} could not be read ({str(error).strip().splitlines()[-1][:100]}); if it is damaged, remove it; "
            f"the same command then resumes from the one before it")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


# ---- Pages as pictures: the input of a critic with a regression head in the frontend domain

PICTURE = 512, 1024    # pixels: a page's picture is scaled to this width and cut off at this height


def pictures_beside(critic):
    """The folder of the pictures that a critic sees, named after the code that makes them."""
    code = Path(__file__).with_name("render.py").read_text(encoding="utf-8"), inspect.getsource(save_picture), PICTURE
    return Path(critic).parent / "cache" / f"pictures-{hashlib.sha256(repr(code).encode()).hexdigest()[:8]}"


def photograph(files):
    """Save a picture of each page in {page: file}. One of the ranks renders each page, once. A page that fails to
    render is white."""
    from render import Renderer
    missing = from_rank0(lambda: sorted(page for page, file in files.items() if not file.is_file()))
    mine = missing[rank()::world()]
    if mine:
        try:
            renderer = Renderer(browsers=2 if world() == 1 else 1)
        except RuntimeError as error:
            die(error)
        with renderer:
            for page, picture in zip(progress(mine, "pages", "page"), renderer.render_many(mine)):
                save_picture(picture.rgb, files[page])
    barrier()


def save_picture(pixels, file):
    """Save a page's pixels (H, W, 3) to a file, cut and scaled to PICTURE."""
    from PIL import Image
    width, height = PICTURE
    image = Image.fromarray(pixels[:pixels.shape[1] * height // width])
    size = width, max(1, round(image.height * width / image.width))
    with atomic_write(file) as part:
        image.resize(size, Image.Resampling.BOX).save(part, "PNG")


def read_views(processor, views):
    """Views [(text, picture files)] as the inputs of an image-text model, in padded rows."""
    from PIL import Image
    pictures = [[Image.open(file).convert("RGB") for file in files] for _, files in views]
    return processor(text=[text for text, _ in views], images=pictures, padding=True, add_special_tokens=False,
                     return_tensors="pt")


def view_turns(turns, processor, folder):
    """Turns [(prompt messages, reply, reference page or None)] as sequences in which every token is scored.

    The critic sees the picture of the reference page (c), the picture of the reply's page (white if it has none), and
    the dialogue, with [page] in place of each page's source. `folder` contains the pictures.
    """
    files = {}    # {page: file of its picture}
    views = [view_of(*turn, processor, folder, files) for turn in turns]
    photograph(files)
    ids = {}
    for n in progress(range(len(views))[rank()::world()], "pictures", "turn"):
        ids[n] = read_views(processor, [views[n]])["input_ids"][0].numpy().astype(np.int32)
    ids = gather(ids)
    return [Sequence(ids[n], 0, view) for n, view in enumerate(views)]


def view_of(messages, reply, reference, processor, folder, files):
    """What the critic sees of a turn: (text with image tokens, the picture files that take their place). Adds the
    pictured pages to files {page: file}."""
    from render import extract_page
    lines = []
    for message in [*messages, {"role": "assistant", "content": text_of(reply) or ""}]:
        page = extract_page(message["content"])
        content = message["content"].replace(page, "[page]") if page else message["content"]
        if message["role"] != "system":
            lines.append(f"{message['role']}: {content}")
    text = "\n\n".join(lines)
    for token in [*processor.tokenizer.all_special_tokens, getattr(processor, "image_token", None)]:
        text = text.replace(token or "\0", " ")    # the dialogue must not contain special tokens, such as a picture's
    pages = [page or ""]    # the page of the last message, which is the reply
    lead = "The picture shows"
    if reference is not None:
        pages = [reference, *pages]
        lead = "The first picture shows the page that is wanted, the second"
    for page in pages:
        files[page] = folder / f"{hashlib.sha256(page.encode()).hexdigest()[:16]}.png"
    content = [{"type": "image"}] * len(pages)
    content.append({"type": "text", "text": f"{lead} the page of the last reply.\n\n{text}"})
    text = processor.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
    return text, [str(files[page]) for page in pages]


# ---- The command line


def training_flags(parser, lr, epochs, batch_size):
    """The flags that both training scripts share. lr, epochs, batch_size: the stage's defaults, as help text."""
    share = number(least=0, most=1)
    count = number(int, least=0)
    positive = number(int, least=1)
    flag = parser.add_argument_group("data").add_argument
    flag("--run-name", default="default", help="the default paths are in runs/RUN_NAME")
    flag("--domain", choices=["backend", "frontend"], default="backend",
         help="frontend: for web pages --epochs defaults to the paper's, --pair-rule and --min-gap to the release's")
    flag = parser.add_argument_group(
        "pairs of trajectories (multi-turn-dpo; the critic unless --head value or q)").add_argument
    flag("--pair-rule", choices=PAIR_RULES,
         help="best-vs-lower: a task's first trajectory with reward 1 against each one with a lower reward; all: any "
         "two with different rewards (default: best-vs-lower; frontend: all)")
    flag("--min-gap", type=share, help="smallest reward difference in a pair (default: 0; frontend: 0.1)")
    flag = parser.add_argument_group("optimisation").add_argument
    flag("--beta", type=number(above=0), default=0.1, help="inverse temperature of Eq. 2 and Eq. 4")
    flag("--nll", type=number(least=0), default=0.01,
         help="weight of the chosen side's mean NLL per token, beside Eq. 2 and Eq. 4; choose the critic's on "
         "validation tasks, it matters")
    flag("--lr", type=number(above=0, most=1e38), help=f"peak learning rate of AdamW (default: {lr})")
    flag("--epochs", type=positive, help=f"passes over the data (default: {epochs})")
    flag("--batch-size", type=positive, help=f"pairs (or dialogues) per step, over all ranks (default: {batch_size})")
    flag("--max-steps", type=count, default=0, help="stop after this many steps; 0: train all epochs")
    flag("--seed", type=count, default=0, help="seed of every random choice")
    flag = parser.add_argument_group("memory and speed").add_argument
    flag("--pack", choices=["tree", "none"], default="tree",
         help="tree: compute shared prefixes once; none: padded rows, for models that accept no tree mask")
    flag("--micro-tokens", type=positive, default=8192,
         help="most tokens in one forward pass, but for a longer pair or dialogue; a step may need several passes")
    flag("--checkpointing", choices=["none", "selective", "full"], default="none",
         help="layers that recompute their activations in the backward pass: none, every second layer, or all")
    flag("--dtype", choices=["float32", "bfloat16"], default="float32",
         help="precision of matrix products on a CPU: bfloat16 is twice as fast with AVX512-BF16 or AMX; weights and "
         "log-probabilities stay float32; CUDA always uses bfloat16")
    flag = parser.add_argument_group("checkpoints").add_argument
    flag("--save-every", type=count, default=200, help="steps between checkpoints; 0: none")
    flag("--keep", type=positive, default=2, help="checkpoints to keep")
    flag("--overwrite", action="store_true", default=False, help="start again and replace the output")


def fill_defaults(args, defaults):
    """Add the defaults that depend on other flags, for the flags that were not given."""
    pages = args.domain == "frontend"
    pairs = {"pair_rule": "all" if pages else "best-vs-lower", "min_gap": 0.1 if pages else 0.0}
    return argparse.Namespace(**{**pairs, **defaults, **vars(args)})


def parse_args():
    parser = flag_parser("Train the turn-wise advantage critic (SWEET-RL, stage 1).")
    flag = parser.add_argument_group("paths").add_argument
    flag("--in", dest="input", help="scored trajectories (default: runs/RUN_NAME/train.scored.jsonl)")
    flag("--model", help="seed model, also the reference: folder or hub name (default: runs/RUN_NAME/base)")
    flag("--out", help="folder of the critic (default: runs/RUN_NAME/critic); with --score a JSON lines file (default: "
         "next to FILE, X.ranked.jsonl for X.candidates.jsonl and X.annotated.jsonl for X.scored.jsonl)")
    flag = parser.add_argument_group("scoring").add_argument
    flag("--score", metavar="FILE", help="do not train; copy FILE (candidates or scored trajectories) to --out, adding "
         "the critic's advantage of each candidate or assistant turn")
    flag("--critic", help="the critic that --score uses (default: runs/RUN_NAME/critic)")
    flag("--critic-reference", choices=["with-c", "without-c"], default="with-c",
         help="with --score, whether the reference of Eq. 3 sees c like the critic; the released code uses without-c")
    flag = parser.add_argument_group("the critic").add_argument
    flag("--advantage", choices=["mean-per-turn", "mean-per-trajectory", "sum"], default="mean-per-turn",
         help="a trajectory's score: the sum of its turns' mean log-ratios (paper), the mean log-ratio of all its "
         "tokens (released code), or the sum over all tokens")
    flag("--context", choices=["with-c", "without-c"], default="with-c",
         help="whether the critic sees the reference solution")
    flag("--head", choices=["log-ratio", "regression", "value", "q"], default="log-ratio",
         help="log-ratio: Eq. 3; regression: a linear head on a turn's mean hidden state (frontend: of an image-text "
         "model that sees both pages); value: a head trained on success; q: a head trained on the reward by temporal "
         "differences")
    training_flags(parser, lr="2e-7", epochs="4; frontend: 8", batch_size="8")
    args = parser.parse_args()
    run = Path("runs") / args.run_name
    pages = args.domain == "frontend"
    args.pictures = pages and args.head == "regression"    # not a flag: whether the critic sees pages
    if args.pictures:
        args.pack = "none"    # a tree cannot contain pictures
    return fill_defaults(args, {
        "input": f"{run}/train.scored.jsonl", "model": f"{run}/base", "critic": f"{run}/critic", "score": None,
        "out": None if vars(args).get("score") else f"{run}/critic",
        "lr": 2e-7, "epochs": 8 if pages else 4, "batch_size": 8, "shuffle": "turns"})


def flag_parser(description):
    """A parser whose help shows each default. A flag without a fixed default is absent from args unless it is given."""
    return argparse.ArgumentParser(description=description, argument_default=argparse.SUPPRESS,
                                   formatter_class=argparse.ArgumentDefaultsHelpFormatter)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        die("stopped; the same command without --overwrite resumes", 130)
