"""Stage 1 of SWEET-RL: train the turn-wise advantage critic. And the training engine, which train_policy.py imports.

Two trajectories of one task, the one with the higher reward chosen, the other rejected. The critic is a language model
that sees the training-time information c (the reference solution) before the dialogue; its advantage of a turn is the
mean log-ratio of the turn's tokens,

    A(o_t, a_t, c) = 1/L sum_l [ log pi_theta(a_t^l | o_t, a_t^<l, c) - log pi_ref(a_t^l | o_t, a_t^<l, c) ]     (Eq. 3)

and it is trained so that the sum of advantages orders trajectories as their rewards do (Bradley-Terry),

    J = -log sigmoid( beta sum_t A(o_t+, a_t+, c) - beta sum_t A(o_t-, a_t-, c) )                                (Eq. 2)

pi_theta starts as the seed model, pi_ref stays the seed model; its log-probabilities are computed once and cached.

To this comes a small NLL term on the chosen side (--nll). Which trajectories are paired is the released code's choice
(--pair-rule), as the paper does not say. Choices beside the paper's: one mean over all tokens of the trajectory, as in
the released code, or a sum (--advantage); no c (--context without-c); a linear head on the mean hidden state, or a
value head trained with binary cross-entropy on success or by temporal differences (--head).

--domain frontend --head regression is the paper's critic of web pages: an image-text model (any that transformers
loads with a processor and a chat template; the paper has Qwen2-VL-7B) that sees c as the picture of the reference page,
beside it the picture of the page shown at the turn, and the dialogue, in which [page] stands for a page's source.

Whatever sequences share at their beginning (c and the request; the dialogue up to a turn) is computed once, as a tree,
exactly. A model whose attention takes no such mask (state-space models, attention sinks) needs --pack none.

Reads   runs/RUN_NAME/train.scored.jsonl, the seed model
Writes  runs/RUN_NAME/critic/: the model in Hugging Face format, critic.json (how to read it), cost.json (what it took),
        settings.json, metrics.jsonl, checkpoints/; runs/RUN_NAME/cache/: the reference's log-probabilities, pictures/

    python train_critic.py                                              # one process, CPU or one GPU
    torchrun --nproc-per-node 8 train_critic.py --model meta-llama/Llama-3.1-8B-Instruct
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 train_critic.py   # each node
    python train_critic.py --domain frontend --head regression --model Qwen/Qwen2-VL-7B-Instruct --checkpointing full
    python train_critic.py --score runs/default/train.candidates.jsonl  # writes train.ranked.jsonl, for train_policy.py
    python train_critic.py --score runs/default/test.scored.jsonl       # writes test.annotated.jsonl, for the report

In this file: the mathematics; the training loop; how it is computed (records, sequences, trees, attention,
log-probabilities, the critic's advantages, sharding, steps, output and checkpoints, pictures); flags.
"""
import argparse
import atexit
import copy
import functools
import gc
import hashlib
import itertools
import json
import math
import os
import resource
import shutil
import signal
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
import transformers
from jinja2 import TemplateError
from safetensors import SafetensorError
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_state_dict, set_model_state_dict, set_state_dict)
from tqdm import tqdm

from records import (
    ANSWER_MARK, COSTS, SCHEMA, Output, agent_turns, check_path, check_settings, die, fingerprint, first_line,
    merge_system, number, open_locked, read, atomic_write)

# ---- The mathematics


def segment_sum(values, index, count):
    """Sum the values that have the same index: (N,), (N,) -> (count,)."""
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add_(0, index, values)


def segment_mean(values, index, count):
    """The mean of the values that have the same index: (N,), (N,) -> (count,)."""
    return segment_sum(values, index, count) / segment_sum(torch.ones_like(values), index, count)


def turn_advantages(logps, reference, turn, turns, advantage="mean-per-turn"):
    """Eq. 3: the mean log-ratio of each turn's tokens; with --advantage sum their sum.

    The loss, --score and best-of-N all call this function, and no other place computes an advantage.
    logps, reference: (N,) log-probabilities of the scored tokens, in nats; turn: (N,) which turn each belongs to.
    Returns (turns,).
    """
    # The subtraction comes before the sum: two long sums that nearly cancel would lose digits.
    ratio = logps - reference
    if advantage == "sum":
        return segment_sum(ratio, turn, turns)
    return segment_mean(ratio, turn, turns)


def trajectory_scores(logps, reference, turn, side, sides, advantage="mean-per-turn"):
    """What Eq. 2 compares: a number for each trajectory, (sides,). side: (M,) which trajectory each turn belongs to."""
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
    """What temporal differences draw a turn's Q to: Q of the next turn, and at the trajectory's last turn its reward.

    logits (M,), whose sigmoid is Q; side (M,): the trajectory of each turn, in order; rewards (M,), of each one's
    trajectory. The action of the next turn is the one that was played (SARSA), as the idea of ArCHer (arXiv 2402.19446)
    on trajectories of the agent itself.
    """
    last = side.diff(append=side[-1:] + 1) != 0
    return torch.where(last, rewards, logits.detach().sigmoid().roll(-1))


def last_of_turn(values, turn, turns):
    """The value at each turn's last token: (N,), (N,) in ascending order -> (turns,)."""
    return values[torch.bincount(turn, minlength=turns).cumsum(0) - 1]


def half_squared_log_ratio(ratio, on_chosen):
    """How far the model is from its reference: half the squared log-ratio of a token, in nats squared.

    Its mean over tokens that the model itself samples is its KL divergence to second order; these tokens come from the
    data. ratio: (N,) log pi_theta - log pi_ref; on_chosen: (N,) bool.
    """
    half = 0.5 * ratio.detach() ** 2
    return {"half_squared_log_ratio_chosen": (half[on_chosen].sum(), on_chosen.sum()),
            "half_squared_log_ratio_rejected": (half[~on_chosen].sum(), (~on_chosen).sum())}


def critic_loss(values, batch, items, args):
    """The loss summed over a micro-batch's items, and what is logged: {name: (sum, count)}.

    values: (N,) log-probabilities, or the head's outputs (whose reference is zero). Of batch (see Batch): side 2i is
    item i's chosen trajectory, or its only one, and side 2i + 1 its rejected one.
    """
    count = len(items)
    if args.head in ("value", "q"):
        logits, item_of = last_of_turn(values, batch.turn, len(batch.side)), batch.side // 2      # (M,) each
        success = torch.tensor([item.label for item in items], device=values.device)[item_of]
        target = success if args.head == "value" else next_turn_targets(logits, batch.side, success)
        losses = segment_mean(value_loss(logits, target), item_of, count)                        # (B,)
        right = ((logits > 0) == (success > 0.5)).double()
        return losses.sum(), {"loss": (losses.sum(), count), "accuracy": (right.sum(), len(right)),
                              "success": (success.double().sum(), len(success))}
    scores = trajectory_scores(values, batch.reference, batch.turn, batch.side, batch.sides, args.advantage)
    chosen, rejected = scores[0::2], scores[1::2]                                                # (B,) each
    losses = preference = bradley_terry_loss(chosen, rejected, args.beta)
    stats = {}
    if args.head == "log-ratio":
        of_token = batch.side[batch.turn]                                                        # (N,)
        nll = -segment_mean(values, of_token, batch.sides)[0::2]                                 # (B,)
        losses = preference + args.nll * nll
        stats = {"nll": (nll.sum(), count), **half_squared_log_ratio(values - batch.reference, of_token % 2 == 0)}
    stats |= {"loss": (losses.sum(), count), "preference_loss": (preference.sum(), count),
              "accuracy": ((chosen > rejected).double().sum() + 0.5 * (chosen == rejected).double().sum(), count),
              "advantage_chosen": (chosen.sum(), count), "advantage_rejected": (rejected.sum(), count)}
    return losses.sum(), stats


PAIR_RULES = ("best-vs-lower", "all")


def pair_trajectories(rewards, rule, min_gap=0.0):
    """Indices (chosen, rejected) of one task's trajectories, from their rewards."""
    chosen = range(len(rewards))
    if rule == "best-vs-lower":
        chosen = [i for i in chosen if rewards[i] >= 1.0][:1]
    return [(i, j) for i in chosen for j in range(len(rewards))
            if rewards[i] > rewards[j] and rewards[i] - rewards[j] > min_gap - 1e-9]    # 1.0 - 0.9 is below 0.1


# ---- The training loop


def main():
    args = parse_args()
    device = start_process_group()
    if args.score:
        score_file(args, device)
        return finish()
    inputs = {"--in": args.input, "--model": args.model}
    settings = from_rank0(lambda: checked_settings(args, inputs, unused_flags(args)))
    if settings is None:
        return finish()
    tokenizer = load_tokenizer(args.model, args.pictures)
    items, sequences, cost = make_items(args, tokenizer)
    items, held_out, sequences = split_items(items, sequences, args.model, args)
    reference = reference_logps(args.model, sequences, device, args) if args.head == "log-ratio" else None
    head = None if args.head == "log-ratio" else new_head(args.model)
    model = load_model(args.model, device, args, head, processor=tokenizer if args.pictures else None)
    steps = step_items(items, args)
    optimizer, first, best = begin_training(model, args, settings)
    log = open_log(args, first, len(steps))

    for step in range(first, len(steps)):
        begun, total, parts = time.perf_counter(), {}, micro_batches(steps[step], sequences, args, args.micro_batch)
        for part in parts:
            batch = collate_items(part, sequences, reference, device, args)
            values = model(batch)                                                                # (N,)
            loss, stats = critic_loss(values, batch, part, args) if part else (0 * values.sum(), {})
            # FSDP averages over the ranks: times world() it is a sum, and over the step's items their mean.
            (loss * world() / len(steps[step])).backward()
            accumulate(total, stats | model.work(batch) if part else {})
        rate = learning_rate(step, len(steps), args.lr, args.warmup, args.final_lr)
        norm = optimizer_step(model, optimizer, rate, args.clip)
        metrics = step_metrics(step, rate, norm, total, begun, device, args)
        if held_out and ((step + 1) % args.held_out_every == 0 or step + 1 == len(steps)):
            metrics |= evaluate(model, held_out, sequences, reference, critic_loss, device, args)
        log(metrics)
        best = save_or_stop(args, model, optimizer, metrics, best)

    note = {"head": args.head, "pictures": args.pictures, "context": args.context, "advantage": args.advantage,
            "beta": args.beta, "pack": args.pack, "dtype": args.dtype, "reference": args.model,
            "reference_fingerprint": settings["content of --model"]}
    save_model(model, tokenizer, args.model, args, cost, note)
    say(f"wrote the critic to {args.out}")
    finish()


def make_items(args, tokenizer):
    """The pairs of --in (for --head value and q: its trajectories) as items, their sequences, and their cost."""
    tasks, cost = read_trajectories(args.input, "scored", args.limit_tasks, args.context == "with-c")
    if args.head in ("value", "q"):
        pairs = [(record, None, task, record["reward"] if args.head == "q" else float(record["reward"] >= 1.0))
                 for task in tasks for record in tasks[task]]
        if len({label for *_, label in pairs}) == 1:
            die(f"{args.input}: --head {args.head} has nothing to learn, every label is {pairs[0][3]:g}")
    else:
        pairs = pair_tasks(tasks, args)
    pictures = Path(args.out).parent / "cache" / "pictures" if args.pictures else None
    return *items_of(pairs, tokenizer, pictures), cost


def score_file(args, device):
    """Write the records of --score with the critic's advantage of each candidate, or of each assistant turn."""
    of_candidates = from_rank0(lambda: first_record_has(args.score, "candidates"))
    kind = "candidates" if of_candidates else "scored"
    args.out = args.out or name_of_ranking(args.score, kind)
    settings = {"script": "train_critic --score", "critic_reference": args.critic_reference,
                "limit_tasks": args.limit_tasks}
    inputs = {"--score": args.score, "--critic": args.critic}
    output = from_rank0(lambda: Output(args.out, settings, inputs, args.overwrite, SCHEMA[kind][1]))
    done = frozenset(output.done)    # rank 0 adds to its own while it writes
    critic = Critic(args.critic, device, reference_without_c=args.critic_reference == "without-c",
                    micro_tokens=args.micro_tokens, offload=args.cpu_offload)
    ranked_by = from_rank0(lambda: {"critic": args.critic, "fingerprint": fingerprint(args.critic),
                                    "cost": critic.cost()})

    def turns_in(record):
        turns = candidate_turns(record) if of_candidates else turns_of(record, critic.with_c)
        return output.key_of(record), record, turns

    def missing():
        """What the output lacks: (record, its turns). A generator: token ids as Python lists take much memory."""
        found = read(args.score, kind, each=turns_in)
        for key, record, turns in first_tasks(found, args.limit_tasks, lambda found: found[1].get("task_id")):
            if key not in done:
                yield record, turns

    todo, written, left_out = missing(), Counter(), 0
    for _ in missing():
        pass    # a mistake in the last line shows now, not after hours
    while portion := list(itertools.islice(todo, portion_size())):
        advantages = iter(critic.advantages([turn for _, turns in portion for turn in turns]))
        for record, turns in portion:
            found = [round(next(advantages), 7) for _ in turns]
            fit = [value for value in found if value > -math.inf]
            left_out += len(fit) < len(found) if of_candidates else len(found) - len(fit)
            if of_candidates and len(fit) < len(found):
                continue
            part, values = with_advantages(record, found, of_candidates)
            written.update(records=1, advantages=len(fit))
            if rank() == 0:
                output.write({**record, part: values, "ranked_by": ranked_by})
    if left_out:
        say(f"{args.score}: {left_out} turns left out: they do not fit into the critic's context")
    if not done and not written["records"]:
        die(f"{args.score}: no turn fits into the context of {args.critic}; nothing was written")
    what = "turns" if of_candidates else "trajectories"
    say(f"wrote {written['records']} {what} with {written['advantages']} advantages to {args.out}")


def name_of_ranking(path, kind):
    """Where --score writes: X.candidates.jsonl becomes X.ranked.jsonl, X.scored.jsonl becomes X.annotated.jsonl."""
    stem = Path(path).name.removesuffix(".jsonl").removesuffix(f".{kind}")
    ending = "ranked" if kind == "candidates" else "annotated"
    return str(Path(path).with_name(f"{stem}.{ending}.jsonl"))


def with_advantages(record, found, of_candidates):
    """(the key of a record under which its turns lie, those with their advantages)."""
    if of_candidates:
        return "candidates", [{**one, "advantage": value} for one, value in zip(record["candidates"], found)]
    history = list(record["dialogue_history"])
    for place, value in zip(agent_turns(history), found):
        if value > -math.inf:
            history[place] = {**history[place], "advantage": value}
    return "dialogue_history", history


# ---- Ranks: several processes, one of which speaks and looks at files


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


def from_rank0(function):
    """The result of a function that rank 0 calls, on every rank: whatever depends on which files there are."""
    box = [function() if rank() == 0 else None]
    if world() > 1:
        dist.broadcast_object_list(box)
    return box[0]


def first_record_has(path, key):
    """Whether the first record of a file has this key: what kind of record it has."""
    try:
        with open(path, "rb") as file:
            return key in json.loads(file.readline())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def gather(mine):
    """The union of every rank's dictionary."""
    if world() == 1:
        return mine
    gathered = [None] * world()
    dist.all_gather_object(gathered, mine)
    return {key: value for part in gathered for key, value in part.items()}


def start_process_group():
    """Join torchrun's group if there is one; returns the device. Plain `python` on a CPU needs no group."""
    cuda = torch.cuda.is_available()
    if cuda:
        local, devices = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if local >= devices:
            die(f"a process needs a GPU of its own, and there are {devices}; torchrun --nproc-per-node {devices}")
        torch.cuda.set_device(local)
    torchrun = {"RANK", "WORLD_SIZE"} <= os.environ.keys()
    if cuda or torchrun:
        alone = {} if torchrun else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group("cuda:nccl,cpu:gloo" if cuda else "gloo", **alone)
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")


def finish(code=0):
    """Leave the group, and under torchrun the process: gloo's threads may still hold a tensor; to let go of it while
    the interpreter is being taken down ends a finished run in "terminate called" (pytorch/pytorch#190489)."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    if "RANK" in os.environ:
        atexit._run_exitfuncs()    # a tracker's, for one
        sys.stdout.flush()
        os._exit(code)


def progress(what, title, unit):
    """A progress bar, if it has a title; a log file gets a line now and then."""
    return tqdm(what, desc=title, unit=unit, disable=rank() > 0 or not title,
                mininterval=0.5 if sys.stderr.isatty() else 30)


# ---- From records to turns


class Sampled(NamedTuple):
    """A response as its token ids, which hold for the tokenizer that they were sampled with, and as text (or None)."""
    ids: list    # or an array of int32
    text: str


class Item(NamedTuple):
    """What one step counts as one: a pair (chosen and rejected), or a single dialogue (no rejected)."""
    chosen: list    # indices of sequences
    rejected: list
    group: tuple    # (trajectory, or task of a pair of trajectories; turn): what --shuffle may keep together
    label: float = 1.0
    answers: tuple = (False, False)  # whether chosen and rejected give the final answer
    task: object = None


def response_of(text, ids):
    """The response: as it was sampled where the record has ids, else its text."""
    return Sampled(ids, text) if ids is not None and len(ids) else text


def put_c_in_front(messages, ground_truth):
    """The messages with the training-time information c before the first thing the user says."""
    first = [message["role"] for message in messages].index("user")
    content = f"In light that the final answer is: {ground_truth}.\n\n{messages[first]['content']}"
    return messages[:first] + [{**messages[first], "content": content}] + messages[first + 1:]


def check_dialogue(messages, name):
    """Raise ValueError unless the user speaks first (after a system message)."""
    if next((m["role"] for m in messages if m["role"] != "system"), None) != "user":
        raise ValueError(f"{name} must begin with what the user asks")


def turns_of(record, with_c=False):
    """A trajectory's assistant turns, which stage 1 and the baselines score: (prompt messages, response, c or None)."""
    check_dialogue(record["dialogue_history"], "dialogue_history")
    c = (record.get("task") or {}).get("ground_truth") if with_c else None
    if with_c and c is None:
        raise ValueError("the record has no task with a ground_truth, which the critic's context needs")
    system = [{"role": "system", "content": record["system"]}] if record.get("system") else []
    history = record["dialogue_history"]
    messages = [{"role": m["role"], "content": m["content"]} for m in history]
    said = lambda m: response_of(m.get("output") or m["content"], m.get("output_ids"))
    return [(system + messages[:i], said(history[i]), c) for i in agent_turns(history)]


def candidate_turns(record):
    """The candidates of one turn, in the shape of turns_of; those without text are taken out of the record."""
    check_dialogue(record["prompt"], "prompt")
    record["candidates"] = [a for a in record["candidates"] if a.get("output") or a.get("output_ids")]
    c = (record.get("task") or {}).get("ground_truth")
    return [(record["prompt"], response_of(a.get("output"), a.get("output_ids")), c) for a in record["candidates"]]


def first_tasks(records, count, task_of):
    """The records of the first `count` tasks (0: of all), in the file's order. Samples of a task may lie far apart."""
    seen = set()
    for n, record in enumerate(records):
        task = (n,) if task_of(record) is None else task_of(record)    # a record that names no task is one of its own
        if not count or len(seen) < count or task in seen:
            seen.add(task)
            yield record


def read_trajectories(path, kind, limit_tasks=0, with_c=False):
    """Usable trajectories, {task: [record with its "turns"]} in the file's order, and what all of the file cost."""
    tasks, unusable, cost = {}, Counter(), Counter()
    records = read(path, kind, each=lambda record: {**record, "turns": turns_of(record, with_c)})
    for record in first_tasks(records, limit_tasks, lambda record: record["task_id"]):
        cost.update({"episodes": 1, **(record.get("cost") or {})})
        if kind == "scored" and (record["reward"] is None or record["finish"].startswith("error")):
            unusable["no reward (the episode failed)"] += 1
        elif not record["turns"]:
            unusable["no assistant turn"] += 1
        else:
            tasks.setdefault(record["task_id"], []).append(record)
    for reason, count in unusable.items():
        say(f"{path}: {count} records left out: {reason}")
    if not tasks:
        die(f"{path}: no trajectory is left to train on")
    return tasks, cost


def pair_tasks(tasks, args):
    """The pairs of all tasks: [(chosen record, rejected record, task, 1.0)]."""
    rng, pairs, without = np.random.default_rng(args.seed), [], 0
    for task, group in tasks.items():
        found = pair_trajectories([record["reward"] for record in group], args.pair_rule, args.min_gap)
        if args.pairs_per_task and len(found) > args.pairs_per_task:
            found = [found[i] for i in sorted(rng.permutation(len(found))[:args.pairs_per_task])]
        pairs += [(group[i], group[j], task, 1.0) for i, j in found]
        without += not found
    if without:
        say(f"{args.input}: {without} of {len(tasks)} tasks left out: no two trajectories make a pair")
    if not pairs:
        die(f"{args.input}: no task has two trajectories that can be compared ({len(tasks)} tasks); sample more "
            f"trajectories per task (rollout.py --samples){', or try --pair-rule all' * (args.pair_rule != 'all')}")
    return pairs


def items_of(pairs, tokenizer, pictures=None):
    """[(chosen record, rejected record or None, task, label)] as items over a list of sequences."""
    records = {id(record): record for pair in pairs for record in pair[:2] if record is not None}
    encoded = sequences_of([record["turns"] for record in records.values()], tokenizer, pictures)
    sequences, of_record = [], {}
    for key, joined in zip(records, encoded):
        of_record[key] = list(range(len(sequences), len(sequences) + len(joined)))
        sequences += joined
    answers = lambda record: record is not None and ANSWER_MARK in record["dialogue_history"][-1]["content"]
    return [Item(of_record[id(chosen)], of_record.get(id(rejected), []), (str(task), n), label,
                 (answers(chosen), answers(rejected)), task)
            for n, (chosen, rejected, task, label) in enumerate(pairs)], sequences


def sequences_of(dialogues, tokenizer, pictures=None):
    """Each dialogue's turns as few sequences as possible. With a folder of pictures, for a critic that sees pages, each
    turn is one sequence, and the tokenizer is a processor."""
    flat = [turn for turns in dialogues for turn in turns]
    if pictures:
        encoded = iter(view_turns(flat, tokenizer, pictures))
        return [[s._replace(turn=s.turn + n) for n, s in zip(range(len(turns)), encoded)] for turns in dialogues]
    tokens = tokenise(tokenizer, in_context(flat))
    if any(turn is None for turn in tokens):
        die(NO_TEXT)
    encoded = iter(tokens)
    return [join_turns([next(encoded) for _ in turns]) for turns in dialogues]


def in_context(turns):
    """[(prompt messages, response, c or None)] to [(prompt messages with c in front, response)]."""
    return [(messages if c is None else put_c_in_front(messages, c), response) for messages, response, c in turns]


def split_items(items, sequences, model, args):
    """(items to train on, items held out, their sequences), which are not too long for --max-length and the model."""
    items, sequences = leave_out_long(items, sequences, args)
    check_lengths(sequences, model, args.input)
    items, held_out = hold_out(items, args.held_out, args.seed)
    say(f"{len(items)} {'pairs' if items[0].rejected else 'dialogues'} from {len({i.task for i in items})} tasks, "
        f"{sum(len(s.ids) for s in sequences)} tokens; {len(held_out)} held out")
    return items, held_out, sequences


def leave_out_long(items, sequences, args):
    """Drop items longer than --max-length, and the sequences of which none is left."""
    most = args.max_length or math.inf
    short = [item for item in items if all(len(sequences[i].ids) <= most for i in item.chosen + item.rejected)]
    if len(short) < len(items):
        say(f"{args.input}: {len(items) - len(short)} of {len(items)} left out: longer than {args.max_length} tokens")
    if not short:
        die(f"{args.input}: --max-length {args.max_length} leaves nothing to train on")
    used = sorted({i for item in short for i in item.chosen + item.rejected})
    new = {i: n for n, i in enumerate(used)}
    return [item._replace(chosen=[new[i] for i in item.chosen], rejected=[new[i] for i in item.rejected])
            for item in short], [sequences[i] for i in used]


def hold_out(items, share, seed):
    """Items to train on, and those of a random share of the tasks, on which only loss and accuracy are measured."""
    tasks = list(dict.fromkeys(item.task for item in items))
    count = math.ceil(share * len(tasks))
    if count == len(tasks):
        die(f"--held-out {share:g} of {len(tasks)} tasks leaves nothing to train on")
    chosen = {tasks[i] for i in np.random.default_rng([seed, 1]).permutation(len(tasks))[:count]}
    return [item for item in items if item.task not in chosen], [item for item in items if item.task in chosen]


# ---- From messages to token sequences


def load_tokenizer(path, pictures=False):
    """The tokenizer of a model, which must have a chat template; of an image-text model its processor, which also cuts
    pictures into patches."""
    # A hub's name has one slash at most: what has more is a folder.
    if not (Path(path) / "config.json").is_file() and (Path(path).is_dir() or str(path).count("/") > 1):
        die(f"{path}: no model is there; train it first, or name another")
    try:
        tokenizer = (transformers.AutoProcessor if pictures else transformers.AutoTokenizer).from_pretrained(path)
    except (ImportError, OSError, ValueError, TypeError, KeyError) as error:
        die(f"{path}: no {'processor' if pictures else 'tokenizer'} could be loaded from there ({first_line(error)})")
    if not tokenizer.chat_template:
        die(f"{path} has no chat template; take an instruction-tuned model, or add chat_template.jinja")
    if pictures and not hasattr(tokenizer, "image_processor"):
        die(f"{path}: this model reads text only; a critic that sees pages needs an image-text-to-text model")
    if pictures:
        tokenizer.tokenizer.pad_token = tokenizer.tokenizer.pad_token or tokenizer.tokenizer.eos_token
    return tokenizer


def render_prompt(tokenizer, messages):
    """The prompt text up to where the assistant begins to speak."""
    try:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except TemplateError as error:
        if [m["role"] for m in messages[:2]] != ["system", "user"]:
            roles = ", ".join(m["role"] for m in messages)
            die(f"the model's chat template refuses a dialogue of {roles} ({first_line(error)})")
    # Some templates (Gemma's) refuse a system message: its text then opens what the user says.
    return render_prompt(tokenizer, merge_system(messages))


def end_of_turn(tokenizer):
    """The ids that end a reply which is known as text only: the token that the chat template puts behind one.

    It is not always eos: Gemma's template ends a turn with <end_of_turn>, and goes on with a line break.
    """
    said = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Goodbye"}]
    behind = tokenizer.apply_chat_template(said, add_generation_prompt=False, tokenize=False).rpartition("Goodbye")[2]
    special = set(tokenizer.added_tokens_decoder)
    found = [i for i in tokenizer([behind], add_special_tokens=False)["input_ids"][0] if i in special]
    return found[:1] or [i for i in [tokenizer.eos_token_id] if i is not None]


def ids_are_of(tokenizer, sampled):
    """Whether sampled ids are this tokenizer's: all are in its vocabulary, and of some the text is what was recorded.

    A critic may be of another family than the agent; the agent's ids would then be any words to it.
    """
    if max(np.max(r.ids) for r in sampled) >= len(tokenizer):
        return False
    with_text = [r for r in sampled if r.text is not None][::max(1, len(sampled) // 200)]
    texts = tokenizer.batch_decode([r.ids for r in with_text], skip_special_tokens=True)
    return all(text.split() == r.text.split() for text, r in zip(texts, with_text))


NO_TEXT = "a response has token ids of another tokenizer and no text (output)"


def tokenise(tokenizer, turns):
    """[(prompt messages, response: text or Sampled)] to [(prompt ids, response ids)], each an int32 array.

    None stands for a turn that NO_TEXT is true of.
    """
    sampled = [r for _, r in turns if isinstance(r, Sampled)]
    if sampled and not ids_are_of(tokenizer, sampled):
        say_once("the recorded token ids are not this model's (another tokenizer sampled them): the text is used")
        turns = [(messages, r.text if isinstance(r, Sampled) else r) for messages, r in turns]
    encode = lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"]
    result, end = [], end_of_turn(tokenizer)
    for start in range(0, len(turns), 1024):
        part = turns[start:start + 1024]
        texts = [render_prompt(tokenizer, messages) for messages, _ in part]
        once = list(dict.fromkeys(texts))  # candidates of one turn share theirs
        ids_of = dict(zip(once, encode(once)))
        spoken = encode([response if isinstance(response, str) else "" for _, response in part])
        for text, text_ids, (_, response) in zip(texts, spoken, part):
            if response is None:
                result.append(None)
                continue
            ids = text_ids + end if isinstance(response, str) else response.ids
            result.append((np.array(ids_of[text], np.int32), np.array(ids, np.int32)))
    return result


class Sequence(NamedTuple):
    """One path from the first token to the last, and which of its tokens are scored."""
    ids: np.ndarray     # (T,) int32
    scored: np.ndarray  # (N,) indices into ids of the tokens whose log-probability counts: the responses
    turn: np.ndarray    # (N,) index of the assistant turn that each scored token belongs to
    view: tuple = ()    # what a critic that sees pages reads: (text, the pictures' files)


def join_turns(turns):
    """A trajectory's turns [(prompt ids, response ids)] as few sequences as possible.

    Where a prompt extends the last prompt with its response, the turn continues that sequence; where the chat template
    rewrote what was said before (or a thought was dropped), it begins one of its own. Scores are the same either way.
    """
    sequences = []
    for n, (prompt, response) in enumerate(turns):
        ids = np.concatenate([prompt, response])
        scored = np.arange(len(prompt), len(ids))
        turn = np.full(len(response), n)
        if sequences and np.array_equal(sequences[-1].ids, prompt[:len(sequences[-1].ids)]):
            last = sequences.pop()
            scored, turn = np.concatenate([last.scored, scored]), np.concatenate([last.turn, turn])
        sequences.append(Sequence(ids, scored, turn))
    return sequences


def text_config(path):
    """The configuration of a model, or of the text part of an image-text model."""
    try:
        return transformers.AutoConfig.from_pretrained(path).get_text_config()
    except (OSError, ValueError) as error:
        die(f"{path}: no model could be loaded from there ({first_line(error)})")


def context_of(path):
    """How many tokens a model can read, 0 if its configuration does not say."""
    return getattr(text_config(path), "max_position_embeddings", None) or 0


def longest_sequence(path):
    """(the most tokens of a sequence that a model scores, why it is not its whole context or "").

    Longrope and dynamic rope turn every sequence of a batch differently once one of them is longer than the original
    context: log-probabilities would depend on what else is in the batch.
    """
    config = text_config(path)
    context = getattr(config, "max_position_embeddings", None) or math.inf
    rope = getattr(config, "rope_parameters", None) or {}
    for part in [rope, *rope.values()]:    # some models have one of each kind of layer
        kind = part.get("rope_type") if isinstance(part, dict) else None
        if kind in ("longrope", "dynamic"):
            original = part.get("original_max_position_embeddings") or context
            return original, f", beyond which its {kind} position encoding depends on what else is in the batch"
    return context, ""


def check_lengths(sequences, model, where):
    """Exit if the model cannot read the longest sequence."""
    longest, (limit, why) = max(len(s.ids) for s in sequences), longest_sequence(model)
    if longest > limit:
        die(f"{where}: a dialogue of {longest} tokens does not fit into the context of {model}, {limit}{why}; take a "
            f"model with a longer one, or leave such records out with --max-length {limit}")


# ---- Trees: what sequences share at their beginning is computed once


class Forest(NamedTuple):
    """Sequences laid out as trees in one row of T tokens: what they share at their beginning is there once.

    A token's descendants follow it without a gap, and token q sees token k exactly if  k <= q < end[k]:  the whole of
    the attention mask in one number a token.
    """
    ids: np.ndarray        # (T,) token ids
    positions: np.ndarray  # (T,) position of each token on its branch
    end: np.ndarray        # (T,) where the part of the row ends that descends from the token
    paths: list            # of each sequence: (its length,) the indices of its tokens in the row
    blocks: list           # [(start, stop, prefix)]: queries start..stop see row[prefix] and, masked, themselves


def common_prefix(a, b):
    """How many tokens two sequences share at their beginning."""
    length = min(len(a), len(b))
    return int(np.append(a[:length] != b[:length], True).argmax())  # where they differ first, or the shorter one ends


def reading_order(sequences):
    """Their indices, sorted as words in a dictionary: sequences that share a beginning follow each other."""
    return sorted(range(len(sequences)), key=lambda i: sequences[i].ids.astype(">i4").tobytes())


def tree_tokens(sequences):
    """How many tokens the sequences take once everything shared at their beginning is there once."""
    ids = [sequences[n].ids for n in reading_order(sequences)]
    return sum(map(len, ids)) - sum(common_prefix(a, b) for a, b in zip(ids, ids[1:]))


def build_prefix_forest(sequences, block=256):
    """Lay sequences out as a forest.

    The longest sequence is a tree's trunk, one stretch of the row that is causal in itself; branches follow it, those
    that leave it last come first, each planted in the same way (one that shares no token is a tree of its own). `block`
    bounds how many tokens of neighbouring branches are attended together on a CPU.
    """
    ids, ends, positions, paths, blocks, length = [], [], [], [None] * len(sequences), [], 0

    def grow(members, prefix):
        """Append what the members, which share the tokens at row[prefix], have beyond them."""
        nonlocal length
        longest, depth = max((sequences[i].ids for i in members), key=len), len(prefix)
        start, length = length, length + len(longest) - depth
        end = np.full(len(longest), length)  # of the whole path; the prefix's ends are its own tree's business
        ids.append(longest[depth:])
        positions.append(np.arange(depth, len(longest)))
        ends.append(end[depth:])
        path = np.concatenate([prefix, np.arange(start, length)])
        if depth and np.array_equal(blocks[-1][2], prefix) and length - blocks[-1][0] <= block:
            blocks[-1] = (blocks[-1][0], length, prefix)
        else:
            blocks.append((start, length, prefix))
        branches = {}
        for i in members:
            shared = common_prefix(sequences[i].ids, longest)
            if shared == len(sequences[i].ids):
                paths[i] = path[:shared]
            else:
                branches.setdefault((-shared, int(sequences[i].ids[shared])), []).append(i)
        for (shared, _), branch in sorted(branches.items()):
            grow(branch, path[:-shared])
            end[:-shared] = length

    grow(list(range(len(sequences))), np.empty(0, np.int64))
    join = lambda parts: np.concatenate(parts).astype(np.int64)
    return Forest(join(ids), join(positions), join(ends), paths, blocks)


class Batch(NamedTuple):
    """What one forward pass computes; N scored tokens in M turns on S sides (a pair has two sides)."""
    ids: torch.Tensor           # (R, T) token ids: R padded rows, or one row that holds a forest
    positions: torch.Tensor     # (R, T) position of each token in its own sequence
    attention: object           # of a forest: which token sees which; None: rows, causal
    source: torch.Tensor        # (N,) flat index of the token that predicts the scored one
    scored: torch.Tensor        # (N,) flat index of the scored token itself
    target: torch.Tensor        # (N,) id of the scored token
    turn: torch.Tensor          # (N,) which of the M turns it belongs to
    side: torch.Tensor          # (M,) which of the S sides each turn belongs to
    sides: int                  # S
    reference: torch.Tensor     # (N,) cached log-probability under the reference (zeros where there is none)
    tokens: int                 # tokens computed, without padding
    attended: int               # sum over them of how many tokens each attends to
    views: tuple = ()           # of each row, what a critic that sees pages reads

    @property
    def inputs(self):
        """What a language model is called with."""
        trees = {} if self.attention is None else {"layout": self.attention, "position_ids": self.positions}
        return {"input_ids": self.ids, "use_cache": False, **trees}


def collate(sequences, side_of, sides, device, pack, reference=None):
    """Sequences, and the side that each belongs to, as one batch.

    pack "tree": as trees in one row; "none": rows padded on the right, where causal attention never looks. Image-text
    models always read rows: pictures are no part of a tree.
    """
    if pack == "tree" and not sequences[0].view:
        trees = build_prefix_forest(sequences)
        paths, tokens, attended = trees.paths, len(trees.ids), int((trees.positions + 1).sum())
        pad = -tokens % 128 if device.type == "cuda" else 0  # FlexAttention works in blocks of 128
        ids, positions = (np.pad(row, (0, pad))[None] for row in (trees.ids, trees.positions))
        end = np.concatenate([trees.end, np.arange(tokens, tokens + pad) + 1])
        attention = Attention(end, positions[0], trees.blocks, device)
    else:
        length, attention = max(len(s.ids) for s in sequences), None
        ids = np.stack([np.pad(s.ids, (0, length - len(s.ids))) for s in sequences]).astype(np.int64)
        paths = [row * length + np.arange(len(s.ids)) for row, s in enumerate(sequences)]
        positions = np.tile(np.arange(length), (len(sequences), 1))
        tokens = sum(len(s.ids) for s in sequences)
        attended = sum(len(s.ids) * (len(s.ids) + 1) // 2 for s in sequences)
    source = np.concatenate([path[s.scored - 1] for path, s in zip(paths, sequences)])
    scored = np.concatenate([path[s.scored] for path, s in zip(paths, sequences)])
    most = 1 + max(int(s.turn.max()) for s in sequences)    # (side, turn) as one number
    key = np.concatenate([s.turn + side * most for s, side in zip(sequences, side_of)]).astype(np.int64)
    turns, turn = np.unique(key, return_inverse=True)
    cached = np.concatenate(reference) if reference else np.zeros(len(scored), np.float32)
    to = lambda array: torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)
    return Batch(ids=to(ids), positions=to(positions), attention=attention, source=to(source), scored=to(scored),
                 target=to(ids.ravel()[scored]), turn=to(turn), side=to(turns // most), sides=sides,
                 reference=to(cached), tokens=tokens, attended=attended, views=tuple(s.view for s in sequences))


# ---- Attention over a forest

NO_TREES = "the attention of this model takes no tree mask; compute each sequence by itself: --pack none"


def sees(query, key, end, positions, window):
    """Whether a query sees a key, both indices into the row: it descends from it, and within the window if any."""
    seen = (key <= query) & (query < end[key])
    return seen if window is None else seen & (positions[query] - positions[key] < window)


class Attention:
    """Which token of a row sees which, in the form that each device computes it from."""

    def __init__(self, end, positions, blocks, device):
        self.end, self.positions = torch.from_numpy(end).to(device), torch.from_numpy(positions.copy()).to(device)
        self.blocks, self.masks = blocks, {}

    def allowed(self, query, key, window):
        """(n,), (m,) indices into the row -> (n, m): does the query see the key?"""
        return sees(query[:, None], key[None, :], self.end, self.positions, window)

    def block_mask(self, window, size=128):
        """FlexAttention's mask: blocks that nobody sees are skipped, blocks that all see need no mask."""
        if window not in self.masks:
            from torch.nn.attention.flex_attention import BlockMask
            end, positions = self.end, self.positions
            ends, depths = end.view(-1, size), positions.view(-1, size)  # (blocks, size)
            keys = torch.arange(len(ends), device=end.device) * size     # (blocks,) where each begins
            queries = keys[:, None]
            some = (keys <= queries) & (ends.amax(1) > queries)
            full = (keys < queries) & (ends.amin(1) >= queries + size)
            if window is not None:
                some &= depths.amin(1)[:, None] - depths.amax(1) < window
                full &= depths.amax(1)[:, None] - depths.amin(1) < window
            # Of each query block: how many key blocks are chosen, and their numbers, those first.
            order = lambda chosen: chosen.int().argsort(dim=1, descending=True, stable=True)
            listed = lambda chosen: (x.int()[None, None] for x in (chosen.sum(1), order(chosen)))
            self.masks[window] = BlockMask.from_kv_blocks(
                *listed(some & ~full), *listed(full), BLOCK_SIZE=size,
                mask_mod=lambda batch, head, query, key: sees(query, key, end, positions, window))
        return self.masks[window]

    def block_inputs(self, window):
        """For each block of queries on a CPU: (start, stop, indices of its keys or None: they are its own stretch, mask
        or None: causal). With a mask where none is needed a trunk would take a quarter longer."""
        if window not in self.masks:
            self.masks[window] = []
            for start, stop, prefix in self.blocks:
                keys = torch.cat([torch.from_numpy(prefix), torch.arange(start, stop)])
                needed = len(prefix) or window is not None and int(self.positions[start:stop].max()) >= window
                mask = self.allowed(torch.arange(start, stop), keys, window) if needed else None
                self.masks[window].append((start, stop, keys if len(prefix) else None, mask))
        return self.masks[window]


def attend(query, key, value, mask, scale, softcap):
    """Plain attention (1, H, n, D) x (1, H, m, D); mask (n, m) or None for causal; softcap is Gemma 2's."""
    if softcap is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale)
    scores = softcap * torch.tanh(query @ key.transpose(2, 3) * scale / softcap)
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value


@torch.compiler.disable
def block_attention(query, key, value, blocks, scale, softcap):
    """Attention over a forest on a CPU, (1, H, T, D): each block of queries attends to the tokens it descends from."""
    parts, sizes = [], [stop - start for start, stop, _, _ in blocks]  # a slice's gradient would be as long as the row
    for q, k, v, (_, _, keys, mask) in zip(*(x.split(sizes, 2) for x in (query, key, value)), blocks):
        if keys is not None:
            k, v = key.index_select(2, keys), value.index_select(2, keys)
        parts.append(attend(q, k, v, mask, scale, softcap))
    return torch.cat(parts, 2)


@functools.cache
def compiled_flex():
    from torch.nn.attention.flex_attention import flex_attention
    torch._dynamo.config.specialize_float = True  # a soft cap as a symbol would break the graph in training
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(flex_attention, dynamic=True)


def tree_attention(module, query, key, value, attention_mask, layout=None, scaling=None, sliding_window=None,
                   softcap=None, **kwargs):
    """The attention of every layer, called by transformers: query (1, H, T, D), key and value (1, K, T, D)."""
    if layout is None or kwargs.get("s_aux") is not None or kwargs.get("position_bias") is not None:
        die(NO_TREES)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    groups = query.shape[1] // key.shape[1]
    if query.device.type == "cuda":
        cap = None if softcap is None else lambda score, batch, head, q, k: softcap * torch.tanh(score / softcap)
        out = compiled_flex()(query, key, value, score_mod=cap, block_mask=layout.block_mask(sliding_window),
                              scale=scaling, enable_gqa=groups > 1)
    else:
        if groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        out = block_attention(query, key, value, layout.block_inputs(sliding_window), scaling, softcap)
    return out.transpose(1, 2), None


# ---- Log-probabilities


class TokenLogps(torch.autograd.Function):
    """Log-probability of each target from its hidden state, through the output head in chunks.

    The (N, V) logits exist for one chunk at a time, in float32; with `keep` they stay for the backward pass, otherwise
    they are computed again there.  logits = cap * tanh(scale * (h W^T + b) / cap), where cap and scale are given.
    """

    @staticmethod
    def logits_of(hidden, weight, bias, scale, cap):
        if hidden.is_cuda and hidden.dtype != torch.float32:
            logits = torch.mm(hidden, weight.T, out_dtype=torch.float32)  # (n, V), not rounded to bf16 in between
        else:
            logits = (hidden @ weight.T).float()
        if bias is not None:
            logits += bias.float()
        if scale != 1.0:
            logits *= scale
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    @staticmethod
    def forward(ctx, hidden, weight, bias, target, scale, cap, chunk, keep):
        logps, kept, normalisers = [], [], []
        for h, t in zip(hidden.split(chunk), target.split(chunk)):
            logits = TokenLogps.logits_of(h, weight, bias, scale, cap)
            normaliser = torch.logsumexp(logits, -1)  # (n,)
            logps.append(logits.gather(1, t[:, None])[:, 0] - normaliser)
            normalisers.append(normaliser)
            if keep:
                kept.append(logits)
        ctx.save_for_backward(hidden, weight, bias, target, *normalisers)
        ctx.settings, ctx.kept = (scale, cap, chunk), kept
        return torch.cat(logps)  # (N,)

    @staticmethod
    def backward(ctx, gradient):
        scale, cap, chunk = ctx.settings
        hidden, weight, bias, target, *normalisers = ctx.saved_tensors
        d_hidden, d_weight, d_bias = [], None, None
        for i, (h, t, g) in enumerate(zip(hidden.split(chunk), target.split(chunk), (scale * gradient).split(chunk))):
            # A kept chunk is used up: changed in place, and its memory is free for the layers' backward passes.
            logits = ctx.kept.pop(0) if ctx.kept else TokenLogps.logits_of(h, weight, bias, scale, cap)
            slope = None if cap is None else 1 - (logits / cap) ** 2
            d = logits.sub_(normalisers[i][:, None]).exp_().mul_(-g[:, None])  # -g * softmax
            d.scatter_add_(1, t[:, None], g[:, None])                          # + g at the target
            if slope is not None:
                d.mul_(slope)
            if bias is not None:
                d_bias = d.sum(0) if d_bias is None else d_bias + d.sum(0)
            d = d.to(weight.dtype)
            d_hidden.append(d @ weight)
            if ctx.needs_input_grad[1]:
                d_weight = d.T @ h if d_weight is None else d_weight.addmm_(d.T, h)
        return torch.cat(d_hidden), d_weight, None if d_bias is None else d_bias.to(bias.dtype), *[None] * 5


class Scorer(nn.Module):
    """A causal language model that gives one number for each scored token, and never a (B, T, V) tensor.

    Without a head: its log-probability. With one: the head's value at the token (regression and value critics). With
    a processor the model is an image-text one, and reads the views: a value at each token, the pictures' included.
    """

    def __init__(self, lm, head=None, head_bytes=2 ** 29, processor=None):
        super().__init__()
        self.lm, self.head, self.processor, self.bf16 = lm, head, processor, False
        self.head_bytes = head_bytes  # logits beyond so many bytes are computed again in the backward pass

    def forward(self, batch):
        if self.processor is not None:
            inputs = read_views(self.processor, batch.views).to(batch.ids.device, self.head.weight.dtype)
            hidden = self.lm.base_model(**inputs, use_cache=False).last_hidden_state              # (R, T, D)
            return self.values(hidden[inputs["attention_mask"].bool()])                           # (N,)
        config = self.lm.config.get_text_config()
        if batch.attention is not None and batch.ids.is_cuda:
            # Before the layers run: one that is compiled and computed again (--checkpointing) must meet the same masks.
            for window in {None, getattr(config, "sliding_window", None)}:
                batch.attention.block_mask(window)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):  # the residual stream stays float32
            hidden = self.lm.base_model(**batch.inputs).last_hidden_state.flatten(0, 1)
        if self.head is not None:                                                                 # (R * T, D)
            return self.values(hidden[batch.scored])                                              # (N,)
        output = self.lm.get_output_embeddings()
        scale = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1.0)
        vocabulary = output.weight.shape[0]
        chunk = max(1, min(len(batch.source), self.head_bytes // 4 // (4 * vocabulary)))
        keep = torch.is_grad_enabled() and 4 * len(batch.source) * vocabulary <= self.head_bytes
        hidden = hidden[batch.source].to(output.weight.dtype)    # state-space models give float32
        return TokenLogps.apply(hidden, output.weight, output.bias, batch.target, scale,
                                getattr(config, "final_logit_softcapping", None), chunk, keep)

    def values(self, hidden):
        """The head's values (N,) of (N, D), in float32: most turns would have the same number in bf16."""
        return F.linear(hidden.float(), self.head.weight.float(), self.head.bias.float())[:, 0]

    def work(self, batch):
        """What a batch costs forward and backward, as sums to log: tokens, and floating-point operations.

        6 per weight and token (of experts: all), 12 per attended pair and layer; a critic with a head of its own has no
        output matrix.
        """
        config = self.lm.config.get_text_config()
        output = 0 if self.head is not None else self.lm.get_output_embeddings().weight.numel()
        body = sum(p.numel() for p in self.lm.base_model.parameters()) - self.lm.get_input_embeddings().weight.numel()
        heads = getattr(config, "num_attention_heads", 0)
        width = heads * (getattr(config, "head_dim", None) or config.hidden_size // max(heads, 1))
        attention = 12 * config.num_hidden_layers * width * batch.attended
        return {"tokens": (batch.tokens, 0),
                "flops": (6 * body * batch.tokens + 6 * output * len(batch.source) + attention, 0)}


@torch.no_grad()
def score_all(model, sequences, device, args, title):
    """One number for each scored token of each sequence: a list of float32 arrays. Ranks share the work."""
    order, result = reading_order(sequences), {}
    ordered = [sequences[i] for i in order]
    parts = micro_batches([Item([n], [], ()) for n in range(len(order))], ordered, args)
    for part in progress(parts, title, "batch"):
        values = model(collate_items(part, ordered, None, device, args)).float().cpu().numpy()
        ends = np.cumsum([len(ordered[item.chosen[0]].scored) for item in part])
        result.update(zip([order[item.chosen[0]] for item in part], np.split(values, ends[:-1])))
    reshard(model)
    result = gather(result)
    return [result[i] for i in range(len(sequences))]


def split_until(things, fits):
    """Cut a list into as few stretches as halving finds for which fits(stretch) holds; single things stay whole."""
    if len(things) <= 1 or fits(things):
        return [things] if things else []
    return split_until(things[:len(things) // 2], fits) + split_until(things[len(things) // 2:], fits)


def digest(*parts):
    """A short name for settings and arrays of data: what a cache of them is filed under."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return found.hexdigest()[:16]


def reference_logps(path, sequences, device, args):
    """Log-probabilities under the reference, once: from the cache, or one pass that fills it. No model stays."""
    dtype = "bfloat16" if device.type == "cuda" else args.dtype
    name = digest(from_rank0(lambda: fingerprint(path)), dtype, *[a for s in sequences for a in (s.ids, s.scored)])
    file = Path(args.out).parent / "cache" / f"reference-{name}.npy"
    flat = from_rank0(lambda: np.load(file) if file.is_file() else None)
    if flat is not None:
        say(f"reference log-probabilities: taken from {file}")
        return np.split(flat, np.cumsum([len(s.scored) for s in sequences])[:-1])
    values = score_all(load_model(path, device, args, train=False), sequences, device, args, "reference")
    if rank() == 0:
        with atomic_write(file) as part, open(part, "wb") as out:
            np.save(out, np.concatenate(values))
    return values


# ---- The critic as the other stages use it


def portion_size():
    """So many turns, or trajectories, are scored and saved at a time: minutes of work, since models load for each."""
    return 6000 * world() if torch.cuda.is_available() else 2000


def new_head(model):
    """A linear head that starts at zero, so that every trajectory starts with the same score."""
    head = nn.Linear(transformers.AutoConfig.from_pretrained(model).get_text_config().hidden_size, 1)
    nn.init.zeros_(head.weight), nn.init.zeros_(head.bias)
    return head


class Critic:
    """A trained critic: what every stage asks for the advantages of turns.

    resident: keep critic and reference in memory (many small requests); else one model at a time is there, which is
    loaded for each call. without_c: hide c from a critic that was trained with it. reference_without_c: only from the
    reference of Eq. 3. `note` is critic.json.
    """

    def __init__(self, path, device=None, resident=False, without_c=False, reference_without_c=False,
                 micro_tokens=8192, offload=False):
        self.path, self.resident, self.models = str(path), resident, {}
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        file = Path(path) / "critic.json"
        try:
            note = self.note = json.loads(file.read_text(encoding="utf-8"))
            self.with_c = note["context"] == "with-c" and not without_c
            self.advantage, self.reference, self.head = note["advantage"], note["reference"], None
            if note["head"] != "log-ratio":
                weight, bias = (torch.tensor(note["weights"][name]) for name in ("weight", "bias"))
                self.reference, self.head = None, nn.Linear(len(weight), 1)
                self.head.load_state_dict({"weight": weight[None], "bias": bias})
        except OSError:
            die(f"{path}: no critic.json in there; train one first with train_critic.py, or name another with --critic")
        except (LookupError, TypeError, ValueError):
            die(f"{file} is not what train_critic.py writes; train the critic again, or name another with --critic")
        if self.reference:    # where it was when the critic was trained, or beside the critic: the run was moved
            places = [self.reference, str(Path(path).parent / Path(self.reference).name)]
            known = note.get("reference_fingerprint")
            self.reference = next((place for place in places if known in (None, fingerprint(place))), None)
            if not self.reference:
                die(f"{path} was trained from a model that is no longer {' or '.join(dict.fromkeys(places))}; put it "
                    f"back (or its path into {file}), or train the critic again")
        self.reference_with_c = self.with_c and not reference_without_c
        self.pictures = Path(path).parent / "cache" / "pictures" if note.get("pictures") else None
        self.tokenizer = load_tokenizer(path, self.pictures)
        self.args = argparse.Namespace(pack=note.get("pack", "tree"), micro_tokens=micro_tokens, compile=False,
                                       checkpointing="none", cpu_offload=offload, dtype=note.get("dtype", "float32"))

    def advantages(self, turns):
        """Eq. 3 of each turn (prompt messages, response, c or None), or what the head says of it: a float each.

        A turn that does not fit into the critic's context, with c in front, has the advantage -inf.
        """
        advantages = [-math.inf] * len(turns)
        sequences = self.sequences(turns, self.with_c) if turns else []
        limit, _ = longest_sequence(self.path)
        fit = [n for n, sequence in enumerate(sequences) if len(sequence.ids) <= limit]
        if not fit:
            return advantages
        values = self.score(self.path, [sequences[n] for n in fit])
        reference = [np.zeros_like(v) for v in values]
        if self.reference:
            sequences = self.sequences([turns[n] for n in fit], self.reference_with_c)
            reference = self.score(self.reference, sequences)
        turn = torch.arange(len(fit)).repeat_interleave(torch.tensor([len(v) for v in values]))
        values, reference = (torch.from_numpy(np.concatenate(x)).double() for x in (values, reference))
        if self.note["head"] in ("value", "q"):
            found = last_of_turn(values, turn, len(fit))
        else:
            found = turn_advantages(values, reference, turn, len(fit), self.advantage)
        for n, advantage in zip(fit, found.tolist()):
            advantages[n] = advantage
        return advantages

    def cost(self):
        """What it took to train it, as cost.json has it."""
        file = Path(self.path) / "cost.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}

    def sequences(self, turns, with_c):
        if with_c and any(c is None for _, _, c in turns):
            die(f"{self.path} was trained with c: each turn needs its task's ground_truth")
        each = [[(messages, response, c if with_c else None)] for messages, response, c in turns]
        return [sequence for sequence, in sequences_of(each, self.tokenizer, self.pictures)]

    def score(self, path, sequences):
        head = copy.deepcopy(self.head)  # sharding changes it
        model = self.models.get(path) or load_model(path, self.device, self.args, head, train=False,
                                                    processor=self.tokenizer if self.pictures else None)
        if self.resident:
            self.models[path] = model
        title = "" if self.resident else "critic" if path == self.path else "reference"
        return score_all(model, sequences, self.device, self.args, title)


# ---- Loading, sharding and saving a model


def decoder_layers(lm):
    return [module for module in lm.modules() if type(module).__name__ in (lm._no_split_modules or ())]


def shard(model, device, offload):
    """FSDP2: one group per decoder layer, one for the rest; bf16 in compute on CUDA, float32 masters and reductions."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
    options = {"offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy()}
    if device.type == "cuda":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in decoder_layers(model.lm):
        fully_shard(layer, **options)
    fully_shard(model, **options)


def reshard(model):
    """After a forward pass without a backward one FSDP's root group stays gathered: an optimizer built then, or a state
    saved, would hold the gathered tensors instead of the shards."""
    if dist.is_initialized():
        model.reshard()


def load_model(path, device, args, head=None, train=True, processor=None):
    """A Scorer around the causal language model at `path`, sharded over the ranks; with a processor an image-text one.

    Under a process group rank 0 alone reads the file, whole, in float32; each rank then gets its shards. Without one
    (CPU, or a critic inside rollout.py on a GPU, then in bf16) it is loaded as it is.
    """
    transformers.utils.logging.disable_progress_bar()
    transformers.AttentionInterface.register("tree", tree_attention)
    kind = transformers.AutoModelForImageTextToText if processor else transformers.AutoModelForCausalLM
    trees = args.pack == "tree" and processor is None
    grouped = dist.is_initialized()
    options = {"dtype": torch.bfloat16 if device.type == "cuda" and not grouped else torch.float32}
    gc.collect()  # FSDP's modules hold each other: the model before this one would stay
    try:
        if trees:
            options["attn_implementation"] = "tree"
        elif getattr(transformers.AutoConfig.from_pretrained(path).get_text_config(), "attn_logit_softcapping", None):
            options["attn_implementation"] = "eager"  # the default, SDPA, leaves the cap out
        if rank() == 0:
            lm, info = kind.from_pretrained(path, output_loading_info=True, **options)
            if info["missing_keys"]:
                die(f"{path}: the weights there lack {sorted(info['missing_keys'])[0]} ({len(info['missing_keys'])} "
                    f"are missing); make or fetch the model again")
            if trees and not takes_trees(lm):
                die(f"{path}: {NO_TREES}")
            if head is None and not logits_agree(lm.eval(), args.pack):
                die(f"{path}: its logits are not its last layer's output times its output matrix, scaled and capped as "
                    f"its configuration says; Scorer, which computes them so, would have to learn what it does")
        if grouped:
            full = Scorer(lm, head).state_dict() if rank() == 0 else {}
            buffers = from_rank0(lambda: dict(lm.named_buffers()))  # rotary frequencies and the like: in no file
            with torch.device("meta"):
                lm = kind.from_config(transformers.AutoConfig.from_pretrained(path), **options)
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
        if error.args == ("tree",):  # old families look their attention up in a table of their own
            die(f"{path}: {NO_TREES}")
        what = "image-text-to-text" if processor else "causal language"
        die(f"{path}: no {what} model could be loaded from there ({first_line(error)})")
    for module in lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    if args.checkpointing != "none" and train:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        for layer in decoder_layers(lm)[1::2] if args.checkpointing == "selective" else ():
            layer.gradient_checkpointing = False
    for layer in decoder_layers(lm) if args.compile else ():
        layer.compile(dynamic=True)
    model = Scorer(lm, head, 2 ** (32 if device.type == "cuda" else 29), processor)
    if grouped:
        shard(model, device, args.cpu_offload)
        model.to_empty(device="cpu" if args.cpu_offload else device)
        lm.tie_weights()  # to_empty gave a tied weight one copy at each of its places
        set_model_state_dict(model, full, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
        for name, buffer in buffers.items():
            module, _, leaf = name.rpartition(".")
            setattr(lm.get_submodule(module), leaf, buffer.to(device))
    else:
        model.to(device)
    if trees and not trees_agree(model.eval(), device):
        die(f"{path}: {NO_TREES}")
    model.bf16 = device.type == "cpu" and args.dtype == "bfloat16"  # only now: rounding could fail the check above
    return model.train(train)


@torch.no_grad()
def logits_agree(lm, pack):
    """Whether a Scorer's log-probabilities are those of the model's own logits, of one short sequence on a CPU."""
    ids = np.arange(16, dtype=np.int32) % lm.config.get_text_config().vocab_size
    batch = collate([Sequence(ids, np.arange(1, 16), np.zeros(15, np.int64))], [0], 1, torch.device("cpu"), pack)
    logits = lm(**batch.inputs).logits.flatten(0, 1)[batch.source].float()
    own = logits.log_softmax(-1).gather(1, batch.target[:, None])[:, 0]
    return (Scorer(lm)(batch) - own).abs().mean().item() < (0.01 if lm.dtype == torch.float32 else 0.5)


def takes_trees(lm):
    """Whether every layer of a model is attention that takes a function of ours."""
    kinds = set(getattr(lm.config.get_text_config(), "layer_types", None) or ())
    return lm._supports_attention_backend and kinds <= {"full_attention", "sliding_attention"}


@torch.no_grad()
def trees_agree(model, device):
    """Whether three short dialogues as a tree have the log-probabilities that they have one by one."""
    ids = np.arange(24, dtype=np.int32) % model.lm.config.get_text_config().vocab_size
    paths = [ids, np.concatenate([ids[:12], ids[3:9]]), np.concatenate([ids[:5], ids[1:8]])]
    sequences = [Sequence(path, np.arange(4, len(path)), np.zeros(len(path) - 4, np.int64)) for path in paths]
    score = lambda part: model(collate(part, [0] * len(part), 1, device, "tree"))
    apart = (score(sequences) - torch.cat([score([s]) for s in sequences])).abs().mean().item()
    reshard(model)
    return apart < (0.5 if device.type == "cuda" else 1e-3)  # a mask that is not honoured is off by two


def save_model(model, tokenizer, seed, args, cost, note=None):
    """Write the model in Hugging Face format to --out: into a folder beside it first, then moved file by file.

    cost: what the records and models that went into it took; note: critic.json, whose head is added here.
    """
    if args.keep_best:
        read_checkpoint(Path(args.out) / "checkpoints" / "best", model)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank() == 0:
        lm, out = model.lm, Path(args.out)
        part = out.with_name(out.name + ".part")
        # a tied weight has one name among the parameters; routers of experts keep some of theirs as buffers
        named = {name for name, _ in (*lm.named_parameters(), *lm.named_buffers()) if f"lm.{name}" in state}
        steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        cost += Counter(optimizer_steps=len(steps), training_tokens=sum(step["tokens"] for step in steps))
        try:
            shutil.rmtree(part, ignore_errors=True)
            lm.generation_config = transformers.GenerationConfig.from_model_config(lm.config)  # the seed's comes below
            lm.save_pretrained(part, state_dict={name: state["lm." + name].contiguous() for name in named})
            tokenizer.save_pretrained(part)
            generation = transformers.utils.cached_file(seed, "generation_config.json",
                                                        _raise_exceptions_for_missing_entries=False)
            if generation:  # as the seed model has it: all of its end tokens
                shutil.copy(generation, part / "generation_config.json")
            (part / "cost.json").write_text(json.dumps({key: int(cost[key]) for key in COSTS}, indent=1) + "\n")
            if note:
                head = model.head and {key: state[f"head.{key}"].flatten().tolist() for key in ("weight", "bias")}
                (part / "critic.json").write_text(json.dumps({**note, "weights": head}, indent=1))
            # config.json comes last: its presence says that the output is complete
            for file in sorted(part.iterdir(), key=lambda f: (f.name == "config.json", f.name)):
                os.replace(file, out / file.name)
            part.rmdir()
        except (OSError, SafetensorError) as error:
            die(f"{out}: could not be written ({error}); the checkpoints are intact, and the same command, without "
                "--overwrite, continues", 1)
    barrier()


# ---- What a step is made of


def step_items(items, args):
    """The items of each step: what --shuffle names in a new order every epoch, the same on any number of ranks."""
    units = {}
    for i, item in enumerate(items):
        unit = {"pairs": i, "turns": item.group, "trajectories": item.group[0]}[args.shuffle]
        units.setdefault(unit, []).append(item)
    units, steps = list(units.values()), []
    for epoch in range(args.epochs):
        order = np.random.default_rng([args.seed, epoch]).permutation(len(units))
        order = [item for n in order for item in units[n]]
        steps += [order[s:s + args.batch_size] for s in range(0, len(order), args.batch_size)]
    return steps[:args.max_steps or None]


def micro_batches(items, sequences, args, most=0):
    """This rank's micro-batches, of at most so many items (0: any number) and --micro-tokens. Every rank has as many;
    where it needs fewer the last are empty."""
    of = lambda part: [sequences[i] for item in part for i in item.chosen + item.rejected]
    longest = lambda item: max(len(sequences[i].ids) for i in item.chosen + item.rejected)
    trees = args.pack == "tree" and not sequences[0].view
    cost = tree_tokens if trees else lambda part: len(part) * max(len(s.ids) for s in part)
    related = len({item.group[:1] for item in items}) < len(items)    # some are of one task or trajectory
    if trees and (related or world() == 1):  # neighbours share most: a rank takes a stretch of them
        ordered = sorted(items, key=lambda item: (repr(item.group), item.chosen))
        until = np.cumsum([longest(item) for item in ordered])
        rank_of = (until - 1) * world() // until[-1]
        portions = [[item for item, r in zip(ordered, rank_of) if r == n] for n in range(world())]
    else:  # nothing is shared: as much work for each rank
        ordered = sorted(items, key=longest)
        portions = [ordered[n::world()] for n in range(world())]
    fits = lambda part: (not most or len(part) <= most) and cost(of(part)) <= args.micro_tokens
    parts = [split_until(portion, fits) for portion in portions]
    mine = parts[rank()]
    return mine + [[]] * (max(map(len, parts)) - len(mine))


def collate_items(items, sequences, reference, device, args):
    """Items as one batch: side 2i is item i's chosen, 2i + 1 its rejected. No items: a batch that counts for nothing,
    which keeps ranks in step when one has fewer micro-batches."""
    if not items:  # of an image-text model a whole example: the picture's layers have to run on every rank too
        example = Sequence(np.zeros(2, np.int32), np.array([1]), np.array([0]))
        return collate([sequences[0] if sequences[0].view else example], [0], 1, device, args.pack)
    index = [(i, 2 * n + s) for n, item in enumerate(items)
             for s, side in enumerate((item.chosen, item.rejected)) for i in side]
    return collate([sequences[i] for i, _ in index], [side for _, side in index], 2 * len(items), device,
                   args.pack, reference and [reference[i] for i, _ in index])


def learning_rate(step, steps, peak, warmup=0.03, final=0.1):
    """Linear warm-up over the first 3% of the steps, then a cosine down to a tenth (both flags)."""
    warm = max(1, round(warmup * steps))
    if step < warm:
        return peak * (step + 1) / warm
    passed = (step - warm) / max(1, steps - warm)
    return peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * passed)))


def optimizer_step(model, optimizer, rate, clip):
    """Clip the gradient to the norm `clip`, update, clear; returns the norm before clipping."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm.item()


def accumulate(total, stats):
    """Add a micro-batch's {name: (sum, count)} to the step's; a count of 0 marks a sum that is no mean."""
    for name, (value, count) in stats.items():
        old = total.get(name, (0.0, 0.0))
        value = value.detach() if isinstance(value, torch.Tensor) else value
        total[name] = (old[0] + value, old[1] + count)


def means(mine):
    """{name: (sum, count)} of this rank to {name: mean (or sum) over all ranks}."""
    mine, total = {name: (float(value), float(count)) for name, (value, count) in mine.items()}, {}
    for stats in gather({rank(): mine}).values():
        accumulate(total, stats)
    return {name: value / count if count else value for name, (value, count) in total.items()}


def step_metrics(step, rate, norm, total, begun, device, args):
    """One step's line of metrics.jsonl: what is logged of the loss, and what it cost. Exits if it shows a mistake."""
    values = means(total)
    seconds = time.perf_counter() - begun
    tokens, flops = values.pop("tokens"), values.pop("flops")
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else \
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if not math.isfinite(values["loss"]) or not math.isfinite(norm):
        die(f"step {step + 1}: the loss is {values['loss']}, the gradient's norm {norm}; nothing of this step was "
            f"saved, the last checkpoint is intact; try a smaller --lr")
    # Before the first update the model is its reference: every log-ratio is zero (the chosen sides' are looked at).
    distance = (2 * values.get("half_squared_log_ratio_chosen", 0.0)) ** 0.5
    if step == 0 and distance > (0.14 if device.type == "cuda" or args.dtype == "bfloat16" else 0.0014):
        die(f"the model's log-probabilities differ from its reference's before the first step, by {distance:.2g} nats "
            f"a token: the cached reference is not this model's; delete the folder cache beside --out and start again")
    return {"step": step + 1, "lr": rate, "gradient_norm": norm, **values, "tokens": int(tokens),
            "seconds": round(seconds, 4), "tokens_per_second": round(tokens / seconds, 1),
            "tflops": round(flops / seconds / 1e12, 4), "memory_gib": round(memory / 2 ** 30, 3)}


@torch.no_grad()
def evaluate(model, items, sequences, reference, loss_of, device, args):
    """Loss and accuracy on held-out items, as metrics."""
    total = {}
    for part in micro_batches(items, sequences, args, args.micro_batch):
        batch = collate_items(part, sequences, reference, device, args)
        values = model(batch)
        accumulate(total, loss_of(values, batch, part, args)[1] if part else {})
    reshard(model)
    found = means(total)
    return {f"held_out_{name}": found[name] for name in ("loss", "accuracy") if name in found}


# ---- The output folder, checkpoints, metrics

WRITTEN = (  # what --overwrite removes of an output folder, in this order, and nothing else
    "config.json", "checkpoints", "tensorboard", "metrics.jsonl", "critic.json", "cost.json", "*config.json",
    "model*.safetensors*", "*token*.json", "tokenizer.model", "chat_template*", "vocab.*", "merges.txt")
NOT_SETTINGS = {  # flags that decide where files lie, how fast it goes and what is shown, never the result
    "run_name", "input", "model", "out", "critic", "critic_reference", "pairs", "score", "overwrite", "pack", "micro_tokens",
    "micro_batch", "checkpointing", "cpu_offload", "compile", "tracker", "save_every", "keep"}
signals = []  # those that asked the run to stop
locks = []    # files that stay open, locked, until this process ends


def checked_settings(args, inputs, unused, outputs={}):
    """What decides the result: flags, and the content of the inputs. None if --out is complete with just these.

    inputs, outputs: {flag: path}; --out may hold none of them. unused: flags that change nothing in this run.
    Exits if --out was begun with other settings or is somebody else's; writes nothing. Rank 0 calls it for all.
    """
    out = Path(args.out)
    inside = {"the working directory": ".", **inputs, **outputs, "the folder of caches": out.parent / "cache"}
    for name, path in inside.items():
        if Path(path).resolve().is_relative_to(out.resolve()):
            die(f"--out {out} is or holds {name} ({path}); name another folder with --out")
    check_path(out / "metrics.jsonl")
    check_path(out.parent / "cache" / "reference")
    left_out = {*NOT_SETTINGS, *unused, *([] if args.held_out else ["held_out_every"])}
    settings = {"script": Path(sys.argv[0]).stem,
                **{name: value for name, value in vars(args).items() if name not in left_out},
                **{f"content of {flag}": fingerprint(path) for flag, path in inputs.items()}}
    begun = out / "settings.json"
    if begun.is_file():
        open_locked(begun).close()    # nobody else is training there
    if not begun.is_file():
        if out.exists() and any(out.iterdir()):
            die(f"{out} exists and was not written by this script; name another folder with --out")
    elif args.overwrite:
        before = begun.read_text(encoding="utf-8")
        if '"script"' in before and f'"{settings["script"]}"' not in before:
            die(f"{out} was written by another script; name another folder with --out")
    else:
        check_settings(begun, settings)
        if (out / "config.json").is_file():
            return print(f"{out} is finished already (--overwrite trains it again)", flush=True)
    return settings


def begin_training(model, args, settings):
    """The optimizer, the step to go on from, and the least held-out loss so far.

    The output folder is made here, once input and model are known to be good; with --overwrite the old one goes now.
    """
    out = Path(args.out)

    def prepare():
        out.mkdir(parents=True, exist_ok=True)
        for old in [path for name in WRITTEN for path in out.glob(name)] if args.overwrite else ():
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink(missing_ok=True)
        if args.overwrite or not (out / "settings.json").is_file():
            with atomic_write(out / "settings.json") as part:
                part.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        locks.append(open_locked(out / "settings.json"))    # until this process ends
        for part in out.glob("checkpoints/*.part"):    # a checkpoint that a kill cut short
            shutil.rmtree(part)
        newest, file = max(out.glob("checkpoints/step-??????"), default=None), out / "metrics.jsonl"
        first = int(newest.name[5:]) if newest else 0
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)[:first] if file.is_file() else []
        with atomic_write(file) as part:  # without the steps after the checkpoint
            part.write_text("".join(lines), encoding="utf-8")
        return newest, first, min((json.loads(line).get("held_out_loss", math.inf) for line in lines), default=math.inf)

    newest, first, best = from_rank0(prepare)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=tuple(args.betas),
                                  weight_decay=args.weight_decay, fused=True)
    if newest:
        read_checkpoint(newest, model, optimizer)
        say(f"continuing {out} after step {first}")
    signals.clear()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, frame: signals.append(number))
    return optimizer, first, best


def state_of(model, *optimizers):
    """Everything that the next step depends on: weights and AdamW's averages. The learning rate, the order of the data
    and every random choice follow from the step and the seed."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process without torchrun: intended
    weights, averages = get_state_dict(model, optimizers)
    return {"model": weights, "optimizer": averages}


def write_checkpoint(folder, model, *optimizers):
    """Each rank writes its shards; the folder appears only once it is complete."""
    part = folder.with_suffix(".part")
    try:
        from_rank0(lambda: shutil.rmtree(part, ignore_errors=True))
        dcp.save(state_of(model, *optimizers), checkpoint_id=str(part))
        if rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(part, folder)
    except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
        die(f"{folder}: the checkpoint could not be written ({str(error).strip().splitlines()[-1]}); the one before it "
            f"is intact, and the same command, without --overwrite, continues from it", 1)
    barrier()


def read_checkpoint(folder, model, *optimizers):
    """Onto this number of ranks, however many wrote it."""
    state = state_of(model, *optimizers)
    # What a head leaves unused (the output embedding) never had a gradient, and AdamW no averages of it to save.
    planner = dcp.DefaultLoadPlanner(allow_partial_load=model.head is not None)
    try:
        dcp.load(state, checkpoint_id=str(folder), planner=planner)
    except (Exception, dcp.api.CheckpointException) as error:  # of many kinds, all of which mean the same
        die(f"{folder} could not be read ({str(error).strip().splitlines()[-1][:100]}); if it is damaged, remove it: "
            f"the same command continues from the one before it")
    set_state_dict(model, optimizers, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def save_or_stop(args, model, optimizer, metrics, best):
    """Save every --save-every steps; and if a rank got SIGTERM (a scheduler's warning) or Ctrl-C, save and leave.

    With --keep-best also the weights whose held-out loss is the least so far. best: that loss; returns the new one.
    """
    step, loss, folder = metrics["step"], metrics.get("held_out_loss", math.inf), Path(args.out) / "checkpoints"
    if args.keep_best and loss < best:
        write_checkpoint(folder / "best", model)
    asked = any(gather({rank(): len(signals)}).values())
    if asked or args.save_every and step % args.save_every == 0:
        write_checkpoint(folder / f"step-{step:06d}", model, optimizer)
        for old in sorted(folder.glob("step-??????"))[:-args.keep] if rank() == 0 else ():
            shutil.rmtree(old)
    if asked:
        say(f"stopped by a signal after step {step}, which is saved; the same command, without --overwrite, continues")
        code = 128 + (signals[0] if signals else signal.SIGTERM)
        finish(code)
        sys.exit(code)
    return min(best, loss)


def open_log(args, first, steps):
    """A function that sends a step's metrics to metrics.jsonl, the tracker and the progress bar. Only rank 0's does."""
    if rank() > 0:
        return lambda metrics: None
    out, send = Path(args.out), lambda metrics: None
    file = open(out / "metrics.jsonl", "a", encoding="utf-8", buffering=1)  # a line at a time
    try:
        if args.tracker == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter
            writer = SummaryWriter(out / "tensorboard", purge_step=first + 1)
            send = lambda metrics: [writer.add_scalar(k, v, metrics["step"]) for k, v in metrics.items()]
        elif args.tracker == "wandb":
            import wandb
            begun = (out / "settings.json").stat().st_mtime_ns  # a continued run keeps the file, a new one has its own
            name = digest(str(out.resolve()), begun)
            wandb.init(project="sweet-rl", name=args.out, id=name, resume="allow", config=vars(args))
            send = lambda metrics: wandb.log(metrics, step=metrics["step"])
    except ImportError:
        die(f"--tracker {args.tracker}: not installed; pip install {args.tracker}")
    bar = progress(range(steps), out.name, "step")
    bar.update(first)

    def log(metrics):
        file.write(json.dumps(metrics) + "\n")
        send(metrics)
        shown = ("loss", "accuracy", "held_out_loss", "tokens_per_second", "tflops", "memory_gib")
        bar.set_postfix({k: f"{metrics[k]:.4g}" for k in shown if k in metrics}, refresh=False)
        bar.update()
        if metrics["step"] == steps:
            bar.close()
    return log


# ---- Pages as pictures: what a critic with a regression head sees in the frontend domain

PICTURE = 512, 1024  # pixels: a page's picture is scaled to this width, and cut at this height


def photograph(pages, folder):
    """{page: file of its picture}. Each page is rendered once, by one of the ranks; what fails to render is white."""
    from PIL import Image
    from render import Renderer
    files = {page: folder / f"{digest(page)}.png" for page in pages}
    missing = from_rank0(lambda: sorted(page for page, file in files.items() if not file.is_file()))[rank()::world()]
    if missing:
        try:
            renderer = Renderer(browsers=2 if world() == 1 else 1)
        except RuntimeError as error:
            die(str(error))
        with renderer:
            for page, picture in zip(progress(missing, "pages", "page"), renderer.render_many(missing)):
                pixels = picture.rgb                                                               # (H, W, 3)
                image = Image.fromarray(pixels[:pixels.shape[1] * PICTURE[1] // PICTURE[0]])
                height = max(1, round(image.height * PICTURE[0] / image.width))
                with atomic_write(files[page]) as part:
                    image.resize((PICTURE[0], height), Image.Resampling.BOX).save(part, "PNG")
    barrier()
    return files


def read_views(processor, views):
    """[(text, the pictures' files)] as an image-text model's inputs, in padded rows."""
    from PIL import Image
    pictures = [[Image.open(file).convert("RGB") for file in files] for _, files in views]
    return processor(text=[text for text, _ in views], images=pictures, padding=True, add_special_tokens=False,
                     return_tensors="pt")


def view_turns(turns, processor, folder):
    """Turns [(prompt messages, reply, the reference page or None)] as sequences of which every token is scored.

    The critic sees the reference's picture (c), the picture of the reply's page (white where it has none), and the
    dialogue, where [page] stands for a page's source. The pictures lie in `folder`.
    """
    from render import extract_page
    shown, texts = [], []
    for messages, reply, reference in turns:
        reply = (reply.text or "") if isinstance(reply, Sampled) else reply
        said = [(m["role"], m["content"]) for m in messages if m["role"] != "system"] + [("assistant", reply)]
        found = [extract_page(text) for _, text in said]
        shown.append([page for page in (reference, found[-1] or "") if page is not None])
        text = "\n\n".join(f"{role}: {text.replace(page, '[page]') if page else text}"
                           for (role, text), page in zip(said, found))
        for token in {*processor.tokenizer.all_special_tokens, getattr(processor, "image_token", None)} - {None}:
            text = text.replace(token, " ")  # what a stranger wrote must not stand for a picture
        lead = "The picture shows" if reference is None else \
            "The first picture shows the page that is wanted, the second"
        content = [{"type": "image"}] * len(shown[-1])
        content += [{"type": "text", "text": f"{lead} the page of the last reply.\n\n{text}"}]
        texts.append(processor.apply_chat_template([{"role": "user", "content": content}], tokenize=False))
    files = photograph({page for pages in shown for page in pages}, folder)
    views = [(text, [str(files[page]) for page in pages]) for text, pages in zip(texts, shown)]
    mine = progress(range(rank(), len(views), world()), "pictures", "turn")
    ids = gather({n: read_views(processor, [views[n]])["input_ids"][0].numpy().astype(np.int32) for n in mine})
    return [Sequence(ids[n], np.arange(len(ids[n])), np.zeros(len(ids[n]), np.int64), view)
            for n, view in enumerate(views)]


# ---- The command line


def adder(parser):
    """parser.add_argument(name, help=...), whose help ends in the flag's default, if it has a fixed one."""
    return lambda name, text, **how: parser.add_argument(
        name, help=text + (f" (default {how['default']})" if "default" in how else ""), **how)


def training_flags(parser, lr, epochs, batch_size):
    """The flags that both training scripts have. lr, epochs, batch_size: the stage's own defaults, in words."""
    flag, share, count, positive = adder(parser), number(float, least=0, most=1), number(int, least=0), number(int, 1)
    # data
    flag("--run-name", "the defaults below lie in runs/RUN_NAME", default="default")
    flag("--domain", "frontend: epochs, pairs and gap default to the paper's for pages",
         choices=["backend", "frontend"], default="backend")
    flag("--pair-rule", "best-vs-lower: a task's first fully passing trajectory against each lower one; all: every two "
         "whose rewards differ (default best-vs-lower; frontend all)", choices=PAIR_RULES)
    flag("--min-gap", "smallest difference of rewards in a pair (default 0; frontend 0.1)", type=share)
    flag("--pairs-per-task", "most pairs of one task, a random choice; 0: all", type=count, default=0)
    flag("--limit-tasks", "use the first so many tasks of --in, all their trajectories; 0: all", type=count, default=0)
    flag("--max-length", "leave out dialogues of more tokens; 0: none, and one too long for the model is an error",
         type=count, default=0)
    flag("--held-out", "share of the tasks kept for held_out_loss and held_out_accuracy", type=share, default=0.0)
    flag("--held-out-every", "steps between those; there is one after the last step", type=positive, default=50)
    flag("--keep-best", "write the weights with the least held_out_loss, not the last ones", action="store_true")
    flag("--shuffle", "what is shuffled: pairs (released code); turns, whose pairs stay together but at a step's edge "
         "(with --pairs-per-turn 4 half the work); trajectories (or tasks): cheaper yet, but a step's pairs are alike",
         choices=["pairs", "turns", "trajectories"], default="turns")
    # optimisation
    flag("--beta", "inverse temperature of Eq. 2 and 4", type=number(float, above=0), default=0.1)
    flag("--nll", "weight of the chosen side's mean NLL per token", type=number(float, least=0), default=0.01)
    flag("--lr", f"peak learning rate of AdamW (default {lr})", type=number(float, above=0, most=1e38))
    flag("--epochs", f"passes over the data (default {epochs})", type=positive)
    flag("--batch-size", f"pairs (or dialogues) a step, over all ranks (default {batch_size})", type=positive)
    flag("--max-steps", "stop after so many steps; 0: all", type=count, default=0)
    flag("--warmup", "share of the steps with rising rate", type=share, default=0.03)
    flag("--final-lr", "where the cosine ends, times --lr", type=share, default=0.1)
    flag("--betas", "AdamW's averages", type=number(float, least=0, most=0.99999), nargs=2, default=[0.9, 0.95])
    flag("--weight-decay", "AdamW's weight decay", type=number(float, least=0), default=0.0)
    flag("--clip", "largest norm of the gradient", type=number(float, above=0), default=1.0)
    flag("--seed", "seed of every random choice", type=count, default=0)
    # memory and speed
    flag("--pack", "tree: compute shared beginnings once; none: padded rows, for attention without masks",
         choices=["tree", "none"], default="tree")
    flag("--micro-tokens", "most tokens in one forward pass, several of which make a step", type=positive, default=8192)
    flag("--micro-batch", "most pairs in one forward pass; 0: as many as --micro-tokens allow", type=count, default=0)
    flag("--checkpointing", "layers whose activations are not kept but computed again: none, every second, all",
         choices=["none", "selective", "full"], default="none")
    flag("--cpu-offload", "keep parameters and AdamW's averages in CPU memory (with torchrun or CUDA)",
         action="store_true")
    flag("--dtype", "of the layers' products on a CPU: bfloat16 is twice as fast on one with AVX512-BF16 or AMX; "
         "weights and log-probabilities stay float32; CUDA always has bfloat16", choices=["float32", "bfloat16"],
         default="float32")
    flag("--compile", "torch.compile each decoder layer; the first steps are slow", action="store_true")
    # watching it, and checkpoints
    flag("--tracker", "send the metrics there as well", choices=["none", "tensorboard", "wandb"], default="none")
    flag("--save-every", "steps between checkpoints; 0: none", type=count, default=200)
    flag("--keep", "checkpoints to keep", type=positive, default=2)
    flag("--overwrite", "start again and replace the output", action="store_true")


def parse_with_defaults(parser, defaults, idle):
    """Parse twice: some flags' defaults depend on what others say. defaults(args, run folder, is it pages): a dict;
    idle(args): names of flags that change nothing; those of them that were given are named."""
    args = parser.parse_args()
    pages = args.domain == "frontend"
    pairs = {"pair_rule": "all", "min_gap": 0.1} if pages else {"pair_rule": "best-vs-lower", "min_gap": 0.0}
    parser.set_defaults(**pairs, **defaults(args, Path("runs") / args.run_name, pages))
    args = parser.parse_args()
    if args.keep_best and not args.held_out:
        die("--keep-best chooses by the loss on held-out tasks: give it a share of them, such as --held-out 0.05")
    for name in idle(args):
        if getattr(args, name) != parser.get_default(name) and os.environ.get("RANK", "0") == "0":
            print(f"--{name.replace('_', '-')} changes nothing in this run (see --help)")
    return args


def unused_flags(args):
    """Flags that the head does not heed."""
    return {"log-ratio": (), "regression": ("nll",)}.get(
        args.head, ("nll", "beta", "advantage", "pair_rule", "min_gap", "pairs_per_task"))


def parse_args():
    parser = argparse.ArgumentParser(description="Train the turn-wise advantage critic (SWEET-RL, stage 1).")
    flag = adder(parser)
    # paths
    flag("--in", "scored trajectories (default runs/RUN_NAME/train.scored.jsonl)", dest="input")
    flag("--model", "seed model, also the reference: folder or hub name (default runs/RUN_NAME/base)")
    flag("--out", "folder of the critic (default runs/RUN_NAME/critic); with --score a JSON lines file (default: beside "
         "FILE, X.ranked.jsonl for X.candidates.jsonl and X.annotated.jsonl for X.scored.jsonl)")
    flag("--score", "do not train; write FILE's candidates, or scored trajectories, to --out with the critic's advantage "
         "of each candidate, or of each assistant turn", metavar="FILE")
    flag("--critic", "the critic that --score uses (default runs/RUN_NAME/critic)")
    flag("--critic-reference", "--score: whether the reference of Eq. 3 sees c, as the critic does; the released code "
         "has without-c", choices=["with-c", "without-c"], default="with-c")
    # the critic
    flag("--advantage", "a trajectory's score: the sum of its turns' mean log-ratios (paper), one mean over all tokens "
         "(released code), or their plain sum", choices=["mean-per-turn", "mean-per-trajectory", "sum"],
         default="mean-per-turn")
    flag("--context", "whether the critic sees the reference solution", choices=["with-c", "without-c"],
         default="with-c")
    flag("--head", "log-ratio (Eq. 3); regression: a linear head on a turn's mean hidden state (frontend: of an "
         "image-text model that sees both pages); value: one trained on success; q: on the reward, by temporal "
         "differences", choices=["log-ratio", "regression", "value", "q"], default="log-ratio")
    training_flags(parser, lr="2e-7", epochs="4; frontend 8", batch_size="8")
    return parse_with_defaults(parser, lambda args, run, pages: {
        "input": f"{run}/train.scored.jsonl", "model": f"{run}/base", "critic": f"{run}/critic",
        "out": None if args.score else f"{run}/critic", "lr": 2e-7,
        "epochs": 8 if pages else 4, "batch_size": 8,
        "pictures": pages and args.head == "regression"},    # no flag: whether the critic sees pages
        unused_flags)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # before the first step: caches are whole or absent
        die("stopped; the same command starts again", 130)
