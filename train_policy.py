"""Stage 2 of SWEET-RL: train the policy on its own turns, as the critic ranks them; and the baselines.

--method sweet (the paper's). At each turn of the offline trajectories 16 candidate actions were sampled (rollout.py
--candidates 16). The critic, which sees the training-time information c, gives each its advantage

    A(o_t, a_t, c) = 1/L sum_l [ log pi_theta(a_t^l | o_t, a_t^<l, c) - log pi_ref(a_t^l | o_t, a_t^<l, c) ]     (Eq. 3)

and a random one of the upper half is preferred to a random one of the lower half by the policy, which never sees c:

    J = -log sigmoid( beta' [log pi_phi(a+|o_t) - log pi_ref(a+|o_t)]
                    - beta' [log pi_phi(a-|o_t) - log pi_ref(a-|o_t)] )                                          (Eq. 4)

Log-probabilities in Eq. 4 are sums over the action's tokens; the advantages of Eq. 3 are means. To this comes a small
NLL term on the chosen action (--nll, the paper's Table 5).

--method multi-turn-dpo   DPO on pairs of whole trajectories of one task, ordered by reward: log-probabilities are
                          summed over all assistant tokens.
--method rejection-ft     Fine-tuning on the trajectories whose reward is at least --min-reward.
--method sft              Fine-tuning on all dialogues of --in (demonstrations); with --model tiny it starts from a
                          small random model and a tokenizer trained on the data. --with-c shows part of them with c
                          in front, so that a model learnt from nothing can also be the critic's seed.

Where it departs from the released code: the critic's reference sees c as the critic does (--critic-reference without-c
is theirs), and one pair a turn is drawn (--pairs-per-turn 4 is theirs).

A critic that sees pages (train_critic.py --domain frontend --head regression) gets each candidate's page as a picture.
render.py, which makes the pictures, has to lie beside this file then.

Whatever sequences share at their beginning (c and the request; the dialogue up to a turn) is computed once, as a tree,
exactly: --pack. `none` and `turn` take the same steps, of pairs from random turns; `trajectory` shares more by taking
a step's pairs from few trajectories, one after the other, so that the pairs of a step are alike: fewer independent
examples a step, another order of the data. Models whose attention takes no such mask (state-space and other recurrent
models, chunked or sink attention) are computed one sequence at a time, and a sentence says so.

In this file: the mathematics; the flags; what both trainers share (records, trees, attention, sharding, checkpoints);
last, candidates and baselines made pairs, and the training loop.

Reads   runs/{run}/train.candidates.jsonl and runs/{run}/critic/ (sweet), runs/{run}/train.scored.jsonl (baselines),
        or demonstrations (sft); the seed model. --in may also be a file of pairs, which is trained on as it is.
Writes  runs/{run}/train.pairs.jsonl (sweet) and runs/{run}/policy/: the model in Hugging Face format, metrics.jsonl,
        checkpoints/. The critic's scores are kept in runs/{run}/cache/, so other DPO settings do not score again.

    python train_policy.py                                              # one process, CPU or one GPU
    torchrun --nproc-per-node 8 train_policy.py --model meta-llama/Llama-3.1-8B-Instruct
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 train_policy.py   # each node
    python train_policy.py --method sft --model tiny --in data/backend/demonstrations.jsonl --out runs/default/base

--domain frontend: the defaults of multi-turn-dpo and rejection-ft are then the paper's for pages.
"""
import argparse
import copy
import functools
import hashlib
import json
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
import zlib
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":  # the imports below take seconds, in which Ctrl-C should be as quiet as later
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

METHODS = {  # the settings of the paper's Table 5, and of sft, which it does not have: what a method's flags default to
    "sweet": dict(input="train.candidates.jsonl", out="policy", lr=2e-7, epochs=1, frontend_epochs=1,
                  batch_size=8),
    "multi-turn-dpo": dict(input="train.scored.jsonl", out="multi-turn-dpo", lr=2e-7, epochs=4, frontend_epochs=8,
                           batch_size=8),
    "rejection-ft": dict(input="train.scored.jsonl", out="rejection-ft", lr=2e-7, epochs=4, frontend_epochs=8,
                         batch_size=32),
    "sft": dict(input=None, out="base", lr=2e-7, epochs=1, frontend_epochs=1, batch_size=32),
}


# The mathematics of stage 2


def dpo_loss(chosen, rejected, beta):
    """Eq. 4, per pair. chosen, rejected: (B,) log pi_phi - log pi_ref, summed over the action's tokens, in nats."""
    return -F.logsigmoid(beta * (chosen - rejected))


def preference_loss(logps, batch, items, args):
    """Eq. 4 with the NLL term, summed over a micro-batch's pairs, and what is logged: {name: (sum, count)}."""
    of_token = batch.side[batch.turn]                                                            # (N,)
    # The reference is subtracted token by token, before anything is summed: two long sums would lose digits.
    ratio = logps - batch.reference
    ratios = segment_sum(ratio, of_token, batch.sides)                                           # (2B,)
    sums = segment_sum(logps, of_token, batch.sides)
    lengths = segment_sum(torch.ones_like(logps), of_token, batch.sides)
    chosen, rejected = ratios[0::2], ratios[1::2]                                                # (B,) each
    preference = dpo_loss(chosen, rejected, args.beta)
    nll = -(sums / lengths)[0::2]
    losses = preference + args.nll * nll
    count = len(items)
    stats = {"loss": losses, "preference_loss": preference, "nll": nll,
             "accuracy": (chosen > rejected).float() + 0.5 * (chosen == rejected).float(),
             "reward_chosen": args.beta * chosen, "reward_rejected": args.beta * rejected,
             "logps_chosen": sums[0::2], "logps_rejected": sums[1::2],
             "length_chosen": lengths[0::2], "length_rejected": lengths[1::2]}
    stats = {name: (value.sum(), count) for name, value in stats.items()} | drift(ratio.detach(), of_token % 2 == 0)
    for n, name in enumerate(("answers_chosen", "answers_rejected")):
        stats[name] = (torch.tensor(float(sum(item.answers[n] for item in items))), count)
    return losses.sum(), stats


def imitation_loss(logps, batch, items, args):
    """Negative log-likelihood of every assistant token, summed; the step divides by its tokens."""
    return -logps.sum(), {"loss": (-logps.sum(), len(logps)), "length": (torch.tensor(float(len(logps))), len(items))}


def draw_pairs(advantages, texts, count, rng):
    """`count` pairs (chosen, rejected) of one turn's candidates: a random one of the upper half, one of the lower half.

    The halves are by advantage, ties in the order sampled. Pairs of identical text teach nothing and are left out.
    """
    order = sorted(range(len(advantages)), key=lambda i: -advantages[i])
    half = len(order) // 2
    upper, lower = order[:half], order[len(order) - half:]
    upper, lower = rng.permutation(upper), rng.permutation(lower)
    pairs = [(int(upper[k % half]), int(lower[k % half])) for k in range(min(count, half))] if half else []
    return [(i, j) for i, j in pairs if texts[i] != texts[j]]


# Flags of this stage


def parse_args():
    parser = argparse.ArgumentParser(description="Train the policy (SWEET-RL, stage 2), or a baseline.")
    # paths
    parser.add_argument("--run", default="default",
                        help="name of the run: the defaults below lie in runs/RUN (default default)")
    parser.add_argument("--method", choices=list(METHODS), default="sweet", help="how to train (default sweet)")
    parser.add_argument("--domain", choices=["backend", "frontend"], default="backend",
                        help="frontend: epochs, pairs and gap of the baselines default to the paper's for pages "
                             "(default backend)")
    parser.add_argument("--in", dest="input",
                        help="candidates, scored trajectories, demonstrations or pairs (default runs/RUN/"
                             "train.candidates.jsonl for sweet, runs/RUN/train.scored.jsonl for the baselines, "
                             "data/DOMAIN/demonstrations.jsonl for sft)")
    parser.add_argument("--model",
                        help="seed model, also the reference: folder or hub name, or (sft) tiny (default "
                             "runs/RUN/base)")
    parser.add_argument("--critic", help="the critic that ranks the candidates (default runs/RUN/critic)")
    parser.add_argument("--pairs", help="where sweet writes its pairs (default runs/RUN/train.pairs.jsonl)")
    parser.add_argument("--out",
                        help="folder of the policy (default runs/RUN/policy for sweet, runs/RUN/METHOD for the "
                             "baselines, runs/RUN/base for sft)")
    # preference optimisation
    parser.add_argument("--beta", type=float, default=0.1, help="inverse temperature of Eq. 4 (default 0.1)")
    parser.add_argument("--nll", type=float, default=0.01,
                        help="weight of the chosen side's mean NLL per token (default 0.01)")
    # sweet
    parser.add_argument("--pairs-per-turn", type=int, default=1,
                        help="pairs drawn at each turn (default 1; released code 4)")
    parser.add_argument("--critic-reference", choices=["with-c", "without-c"], default="with-c",
                        help="whether Eq. 3's reference sees c (default with-c; released code without-c)")
    # multi-turn-dpo and rejection-ft
    parser.add_argument("--pair-rule", choices=["best-vs-lower", "all"],
                        help="multi-turn-dpo: a task's first fully passing trajectory against each that scores lower, "
                             "or every two whose rewards differ (default best-vs-lower; frontend all)")
    parser.add_argument("--min-gap", type=float,
                        help="smallest difference of rewards in a pair (default 0; frontend 0.1)")
    parser.add_argument("--pairs-per-task", type=int, default=0,
                        help="most pairs of one task, a random choice; 0: all (default 0)")
    parser.add_argument("--min-reward", type=float, default=1.0,
                        help="rejection-ft: the reward to keep from (default 1.0, which is rare on the frontend)")
    # sft
    parser.add_argument("--with-c", type=float,
                        help="sft: share of dialogues shown with c in front (default 0.33 for --model tiny, else 0)")
    parser.add_argument("--tiny-vocabulary", type=int, default=2048,
                        help="tokens of the tiny model's tokenizer (default 2048)")
    told = lambda name: ", ".join(f"{method} {settings[name]:g}" for method, settings in METHODS.items())
    training_flags(parser, told("lr") + ", --model tiny 0.001",
                   told("epochs") + "; frontend: " + told("frontend_epochs"), told("batch_size"))
    args = parser.parse_args()
    run, pages, tiny = Path("runs") / args.run, args.domain == "frontend", args.model == "tiny"
    defaults = dict(METHODS[args.method], pair_rule="all" if pages else "best-vs-lower", min_gap=0.1 if pages else 0.0,
                    with_c=0.33 if tiny else 0.0)
    defaults["epochs"] = defaults["frontend_epochs" if pages else "epochs"]
    defaults["lr"] = 1e-3 if tiny else defaults["lr"]  # a random model needs thousandths
    for name in ("lr", "epochs", "batch_size", "pair_rule", "min_gap", "with_c"):
        setattr(args, name, defaults[name] if getattr(args, name) is None else getattr(args, name))
    demonstrations = Path("data") / args.domain / "demonstrations.jsonl"
    args.input = args.input or str(run / defaults["input"] if defaults["input"] else demonstrations)
    args.out = args.out or str(run / defaults["out"])
    args.critic = args.critic or str(run / "critic")
    args.pairs = args.pairs or str(run / "train.pairs.jsonl")
    if args.model is None and args.method == "sft":
        die("--method sft needs --model: a folder or hub name, or tiny to start from a small random model")
    if args.model == "tiny" and args.method != "sft":
        die(f"--model tiny starts from nothing and goes with --method sft only; {args.method} needs a trained model")
    args.model = args.model or str(run / "base")
    check_flags(args)
    return args


# ---- shared block: the same lines stand in train_critic.py and train_policy.py, held identical by a test ----
BAR_SECONDS = 0.5 if sys.stderr.isatty() else 30  # a log file gets a line now and then
ANSWER_MARK = "I WANT TO ANSWER:"
WRITTEN = (  # what --overwrite removes of an output folder, in this order, and nothing else
    "config.json", "checkpoints", "tensorboard", "metrics.jsonl", "critic.json", "*config.json", "model*.safetensors*",
    "*token*.json", "tokenizer.model", "chat_template*", "vocab.*", "merges.txt")
RANGES = (  # what the flags' numbers may be; no range holds NaN
    ("above 0", lambda x: 0 < x < math.inf, "lr beta clip"),
    ("at least 0", lambda x: 0 <= x < math.inf,
     "nll weight_decay max_steps seed micro_batch max_length save_every pairs_per_task"),
    ("at least 1", lambda x: x >= 1, "epochs batch_size micro_tokens keep pairs_per_turn"),
    ("between 0 and 1", lambda x: 0 <= x <= 1, "warmup final_lr min_gap min_reward with_c"),
    ("at least 0 and below 1", lambda x: 0 <= x < 1, "betas"),
    ("at least 260 (its bytes and signs)", lambda x: x >= 260, "tiny_vocabulary"))
signals = []  # the signals that asked the run to stop


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def say(*parts):
    """Print on rank 0 only."""
    if rank() == 0:
        print(*parts, flush=True)


def die(message):
    """Stop for a user's mistake: one sentence on stderr, exit code 2."""
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(2) if dist.is_initialized() else sys.exit(2)


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# Reading records


def read_jsonl(path, required=(), maker="the stage that writes it"):
    """All records of a JSON lines file as (line number, record); each must be an object with the `required` keys."""
    if not Path(path).is_file():
        die(f"{path}: no such file; run {maker} first, or name another with --in")
    records = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode())
            except ValueError:
                line = line.decode(errors="backslashreplace")
                torn = "" if line.endswith("\n") else " (the line is torn: the run that wrote it was killed; repeat it)"
                die(f"{path}, line {number}: expected a JSON object, found {line.strip()[:60]!r}{torn}")
            if not isinstance(record, dict):
                die(f"{path}, line {number}: expected a JSON object, found {type(record).__name__}")
            for key in required:
                if key not in record:
                    die(f"{path}, line {number}: the key {key!r} is missing; this file should come from {maker}")
            records.append((number, record))
    if not records:
        die(f"{path} holds no records; run {maker} first")
    return records


def check_messages(messages, where, name):
    """Die unless it is a dialogue: messages whose role and content are text, the first thing said by the user."""
    if not isinstance(messages, list) or not all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in messages):
        die(f"{where}: {name} should be a list of messages with role and content, both text")
    if next((m["role"] for m in messages if m["role"] != "system"), "") != "user":
        die(f"{where}: {name} should begin with what the user asks")


def check_keys(record, where):
    """Die unless what names a record is of the types that name one."""
    name = str | int | float
    for key, kinds in (("task_id", name), ("sample", name), ("turn", name), ("task", dict), ("system", str)):
        if record.get(key) is not None and not isinstance(record[key], kinds):
            die(f"{where}: {key} is {json.dumps(record[key])[:60]}, which is of the wrong type")


def speaks(record, where):
    """Whether the agent says anything in this dialogue; dies where it is none."""
    check_keys(record, where)
    check_messages(record["dialogue_history"], where, "dialogue_history")
    return any(m["role"] == "assistant" for m in record["dialogue_history"])


class Sampled(NamedTuple):
    """A response as its token ids, which hold for the tokenizer that they were sampled with, and as text (or None)."""
    ids: list
    text: str


def response_of(text, ids, where):
    """The response: as it was sampled where the record has ids, else its text."""
    if not isinstance(text, str if not ids else str | None):
        die(f"{where}: a response should be text, found {json.dumps(text)[:60]}")
    if ids and not (isinstance(ids, list) and all(type(i) is int and i >= 0 for i in ids)):
        die(f"{where}: the token ids of a response should be numbers, found {json.dumps(ids)[:60]}")
    return Sampled(ids, text) if ids else text


def put_c_in_front(messages, ground_truth):
    """The messages with the training-time information c before the first thing the user says."""
    first = next(i for i, message in enumerate(messages) if message["role"] == "user")
    content = f"In light that the final answer is: {ground_truth}.\n\n{messages[first]['content']}"
    return messages[:first] + [{**messages[first], "content": content}] + messages[first + 1:]


def ground_truth_of(record, where):
    """c, the reference that only the critic sees."""
    try:
        return record["task"]["ground_truth"]
    except (KeyError, TypeError):
        die(f"{where}: the record has no task with a ground_truth, which the critic's context needs")


def turns_of(record, where, ground_truth=None):
    """A trajectory's assistant turns as (prompt messages, response): what stage 1 and the baselines score.

    The response is the sampled token ids where the record has them, else text. With `ground_truth`, c stands in front.
    """
    history = record["dialogue_history"]
    check_messages(history, where, "dialogue_history")
    messages = [{"role": m["role"], "content": m["content"]} for m in history]
    if record.get("system"):
        messages = [{"role": "system", "content": record["system"]}] + messages
    if ground_truth is not None:
        messages = put_c_in_front(messages, ground_truth)
    skipped = len(messages) - len(history)
    return [(messages[:t + skipped], response_of(m.get("output") or m["content"], m.get("output_ids"), where))
            for t, m in enumerate(history) if m["role"] == "assistant"]


# From messages to token sequences


def load_tokenizer(path):
    from transformers import AutoTokenizer
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        die(f"{path}: no tokenizer could be loaded from there ({first_line(error)})")
    if not tokenizer.chat_template:
        die(f"{path}: the tokenizer has no chat template; take an instruction-tuned model, or add chat_template.jinja")
    return tokenizer


def render(tokenizer, messages):
    """The prompt text up to where the assistant begins to speak."""
    from jinja2.exceptions import TemplateError
    try:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except TemplateError as error:
        if [m["role"] for m in messages[:2]] != ["system", "user"]:
            roles = ", ".join(m["role"] for m in messages)
            die(f"the model's chat template refuses a dialogue of {roles} ({first_line(error)})")
    # Some templates (Gemma's) refuse a system message: its text then opens what the user says.
    merged = {**messages[1], "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return render(tokenizer, [merged] + messages[2:])


@functools.cache
def say_once(text):
    say(text)


def own_ids(tokenizer, responses):
    """Whether sampled ids are this tokenizer's: all are in its vocabulary, and of some the text is what was recorded.

    A critic may be of another family than the agent; the agent's ids would then be any words to it.
    """
    sampled = [r for r in responses if isinstance(r, Sampled)]
    largest = max((max(r.ids) for r in sampled), default=0)
    told = [r for r in sampled if r.text is not None][::max(1, len(sampled) // 200)]
    texts = tokenizer.batch_decode([r.ids for r in told], skip_special_tokens=True) if largest < len(tokenizer) else []
    return largest < len(tokenizer) and all(a.split() == r.text.split() for a, r in zip(texts, told))


def tokenise(tokenizer, turns):
    """[(prompt messages, response: text or Sampled)] to [(prompt ids, response ids)], each an int32 array."""
    if any(isinstance(r, Sampled) for _, r in turns) and not own_ids(tokenizer, [r for _, r in turns]):
        say_once("the recorded token ids are not this model's (another tokenizer sampled them): the text is used")
        if any(isinstance(r, Sampled) and r.text is None for _, r in turns):
            die("a response has token ids of another tokenizer and no text (output)")
        turns = [(messages, r.text if isinstance(r, Sampled) else r) for messages, r in turns]
    result = []
    for start in range(0, len(turns), 1024):
        part = turns[start:start + 1024]
        prompts = [render(tokenizer, messages) for messages, _ in part]
        prompts = tokenizer(prompts, add_special_tokens=False)["input_ids"]
        texts = [response if isinstance(response, str) else "" for _, response in part]
        spoken = tokenizer(texts, add_special_tokens=False)["input_ids"]
        for prompt, text_ids, (_, response) in zip(prompts, spoken, part):
            ids = text_ids + [tokenizer.eos_token_id] if isinstance(response, str) else response.ids
            result.append((np.array(prompt, np.int32), np.array(ids, np.int32)))
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
    for number, (prompt, response) in enumerate(turns):
        ids = np.concatenate([prompt, response])
        scored = np.arange(len(prompt), len(ids))
        turn = np.full(len(response), number)
        last = sequences[-1] if sequences else None
        if last is not None and len(last.ids) <= len(prompt) and np.array_equal(last.ids, prompt[:len(last.ids)]):
            scored, turn = np.concatenate([last.scored, scored]), np.concatenate([last.turn, turn])
            sequences.pop()
        sequences.append(Sequence(ids, scored, turn))
    return sequences


def context_of(lm_path):
    from transformers import AutoConfig
    try:
        return getattr(AutoConfig.from_pretrained(lm_path).get_text_config(), "max_position_embeddings", 0) or 0
    except (OSError, ValueError) as error:
        die(f"{lm_path}: no model could be loaded from there ({first_line(error)})")


def check_lengths(sequences, limit, where, flag="--model"):
    longest = max((len(s.ids) for s in sequences), default=0)
    if limit and longest > limit:
        die(f"{where}: a dialogue of {longest} tokens does not fit into the model's context of {limit}; "
            f"use a model with a longer context ({flag}), or leave such records out with --max-length {limit}")


# The tiny model: learns from nothing on two CPU cores


def tiny_tokenizer(texts, vocabulary):
    """A byte-level BPE tokenizer trained on the data, with a chat template of its own.

    One piece is a word with its leading space, a whole number, a line break with its indentation, a run of
    punctuation, or in a web page a tag as far as its classes or a class (`bg-blue-500`), so that whatever is frequent
    becomes one token and copying it is one decision.
    The template leaves system messages out: a model trained from nothing could not follow instructions anyway.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
    html = r'<[/!]?[A-Za-z][^<>\n]*?(?:>| class=")|">| ?(?:bg|text|p|w|h|flex|grid|gap|justify)(?:-[a-z\d]+)+|'
    pieces = html + r"\n[ \t]*| ?[^\W\d]+| ?\d+(?:\.\d+)?| ?[^\s\w]+|[^\S\n]+"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pieces), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>",
                                   additional_special_tokens=["<|user|>", "<|assistant|>"],
                                   clean_up_tokenization_spaces=False)
    fast.chat_template = (
        "{% for m in messages %}{% if m['role'] != 'system' %}"
        "{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")
    return fast


def make_tiny_model(path, texts, vocabulary, seed):
    """Write a small random Llama and a tokenizer trained on `texts` to `path`, in Hugging Face format."""
    from transformers import LlamaConfig, LlamaForCausalLM
    tokenizer = tiny_tokenizer(texts, vocabulary)
    torch.manual_seed(seed)
    # An initial spread of 0.08 instead of 0.02: at width 128 the attention starts sharp enough to learn copying early.
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=352, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=4096, tie_word_embeddings=False, initializer_range=0.08,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id))
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


# Trees: what sequences share at their beginning is computed once


class Forest(NamedTuple):
    """Sequences laid out as trees in one row of T tokens: what they share at their beginning is there once.

    The row lists each tree depth first, so that a node's descendants follow it without a gap, and token q sees token k
    exactly if  k <= q < end[k]:  the whole of the attention mask in one number a token.
    """
    ids: np.ndarray        # (T,) token ids
    positions: np.ndarray  # (T,) position of each token on its branch
    end: np.ndarray        # (T,) where the part of the row ends that descends from the token
    paths: list            # of each sequence: (its length,) the places of its tokens in the row
    blocks: list           # [(start, stop, prefix ranges)]: queries start..stop see the ranges and, masked, themselves


def common_prefix(a, b):
    """How many tokens two sequences share at their beginning."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def tree_tokens(sequences):
    """How many tokens the sequences take once everything shared at their beginning is there once."""
    ordered = sorted((s.ids.astype(">i4").tobytes(), n) for n, s in enumerate(sequences))
    ids = [sequences[n].ids for _, n in ordered]
    return sum(map(len, ids)) - sum(common_prefix(a, b) for a, b in zip(ids, ids[1:]))


def padded_tokens(sequences):
    return len(sequences) * max(len(s.ids) for s in sequences)


def plant(sequences, share=True, block=256):
    """Lay sequences out as a forest; with share=False each is a tree of its own (sequences packed side by side).

    The longest branch of a node comes first: the dialogue is then one stretch of the row, causal in itself, and the
    candidates of each turn are leaves behind it that see the dialogue up to their turn. `block` bounds how many leaves'
    tokens are attended together on a CPU.
    """
    paths = [np.empty(len(s.ids), np.int64) for s in sequences]
    ids, positions, ends, chains = [], [], [], []
    length = 0

    def grow(members, depth, chain, prefix):
        """Append the subtree of `members`, which share `depth` tokens and come sorted; extend chain."""
        nonlocal length
        first, last = sequences[members[0]].ids, sequences[members[-1]].ids
        stop = common_prefix(first, last) if len(members) > 1 else len(first)
        begin, node = length, len(ends)
        ids.append(first[depth:stop])
        positions.append(np.arange(depth, stop))
        ends.append(None)
        length += stop - depth
        for i in members:
            paths[i][depth:stop] = np.arange(begin, length)
        chain[1] = length
        children = {}
        for i in members:
            if len(sequences[i].ids) > stop:
                children.setdefault(int(sequences[i].ids[stop]), []).append(i)
        branch = prefix + [(chain[0], length)] if length > chain[0] else prefix
        for n, child in enumerate(sorted(children.values(), key=lambda c: -max(len(sequences[i].ids) for i in c))):
            if n:
                chains.append([length, length, branch])
                chain = chains[-1]
            grow(child, stop, chain, prefix if n == 0 else branch)
        ends[node] = np.full(stop - depth, length)

    order = sorted(range(len(sequences)), key=lambda i: sequences[i].ids.astype(">i4").tobytes()) if share else None
    for members in [order] if share else [[i] for i in range(len(sequences))]:
        chains.append([length, length, []])
        grow(members, 0, chains[-1], [])
    blocks = []
    for start, stop, prefix in chains:
        if blocks and prefix and blocks[-1][2] == prefix and blocks[-1][1] == start and stop - blocks[-1][0] <= block:
            blocks[-1] = (blocks[-1][0], stop, prefix)
        elif stop > start:
            blocks.append((start, stop, prefix))
    join = lambda parts: np.concatenate(parts).astype(np.int64)
    return Forest(join(ids), join(positions), join(ends), paths, blocks)


class Batch(NamedTuple):
    """What one forward pass computes; N scored tokens in M turns on S sides (a pair has two sides)."""
    ids: torch.Tensor           # (R, T) token ids: R padded rows, or one row that holds a forest
    positions: torch.Tensor     # (R, T) position of each token in its own sequence
    forest: object              # the row's Attention (which token sees which), or None: rows, causal
    source: torch.Tensor        # (N,) flat index of the token that predicts the scored one
    own: torch.Tensor           # (N,) flat index of the scored token itself
    target: torch.Tensor        # (N,) id of the scored token
    turn: torch.Tensor          # (N,) which of the M turns it belongs to
    side: torch.Tensor          # (M,) which of the S sides each turn belongs to
    sides: int                  # S
    reference: torch.Tensor     # (N,) cached log-probability under the reference (zeros where there is none)
    tokens: int                 # tokens computed, without padding
    attended: int               # sum over them of how many tokens each attends to
    views: tuple = ()           # of each row, what a critic that sees pages reads


def collate(sequences, side_of, sides, device, pack, reference=None):
    """Sequences, and the side that each belongs to, as one batch.

    pack "none": side by side in one row, without padding; "turn", "trajectory": as trees. "padded" is for models that
    take no such mask: rows padded on the right, where causal attention never looks.
    """
    if pack == "padded":
        length = max(len(s.ids) for s in sequences)
        ids = np.zeros((len(sequences), length), np.int64)
        for row, s in enumerate(sequences):
            ids[row, :len(s.ids)] = s.ids
        paths = [row * length + np.arange(len(s.ids)) for row, s in enumerate(sequences)]
        positions, forest = np.tile(np.arange(length), (len(sequences), 1)), None
        tokens = sum(len(s.ids) for s in sequences)
        attended = sum(len(s.ids) * (len(s.ids) + 1) // 2 for s in sequences)
    else:
        trees = plant(sequences, share=pack != "none")
        ids, positions, paths, tokens = trees.ids[None], trees.positions[None], trees.paths, len(trees.ids)
        pad = -tokens % 128 if device.type == "cuda" else 0  # FlexAttention works in blocks of 128
        ids, positions = np.pad(ids, ((0, 0), (0, pad))), np.pad(positions, ((0, 0), (0, pad)))
        end = np.concatenate([trees.end, np.arange(tokens, tokens + pad) + 1])
        attended = int((trees.positions + 1).sum())
        forest = Attention(end, positions[0], trees.blocks, device)
    source = np.concatenate([path[s.scored - 1] for path, s in zip(paths, sequences)])
    own = np.concatenate([path[s.scored] for path, s in zip(paths, sequences)])
    target = np.concatenate([s.ids[s.scored] for s in sequences]).astype(np.int64)
    key = np.concatenate([s.turn + side * 100_000 for s, side in zip(sequences, side_of)]).astype(np.int64)
    turns, turn = np.unique(key, return_inverse=True)
    cached = np.zeros(len(own), np.float32) if reference is None else np.concatenate(reference)
    to = lambda array: torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)
    return Batch(ids=to(ids), positions=to(positions), forest=forest, source=to(source), own=to(own), target=to(target),
                 turn=to(turn), side=to(turns // 100_000), sides=sides, reference=to(cached), tokens=tokens,
                 attended=attended, views=tuple(s.view for s in sequences))


def empty_batch(device, pack, example):
    """A forward pass that counts for nothing: keeps ranks in step when one has fewer micro-batches."""
    if example.view:  # the picture's layers have to run on every rank too
        return collate([example], [0], 1, device, pack)
    return collate([Sequence(np.zeros(2, np.int32), np.array([1]), np.array([0]))], [0], 1, device, pack)


# Attention over a forest


class Attention:
    """Which token of a row sees which, in the form that each device computes it from."""

    def __init__(self, end, positions, blocks, device):
        self.end, self.positions = torch.from_numpy(end).to(device), torch.from_numpy(positions.copy()).to(device)
        self.blocks, self.device, self.masks = blocks, device, {}
        self.keep = True  # whether the forward pass keeps what the backward pass needs: not when checkpointing

    def allowed(self, query, key, window):
        """(n,), (m,) places in the row -> (n, m): does the query see the key?"""
        query, key = query[:, None], key[None, :]
        allowed = (key <= query) & (query < self.end[key])
        return allowed if window is None else allowed & (self.positions[query] - self.positions[key] < window)

    def block_mask(self, window, size=128):
        """FlexAttention's mask: blocks that nobody sees are skipped, blocks that all see need no mask."""
        if window not in self.masks:
            from torch.nn.attention.flex_attention import BlockMask
            end, positions = self.end, self.positions
            count = len(end) // size
            ends, places = end.view(count, size), positions.view(count, size)
            first = torch.arange(count, device=end.device) * size
            below = first[:, None] > first[None, :]  # the key block comes before the query block
            some = (below & (ends.amax(1)[None, :] > first[:, None])) | (first[:, None] == first[None, :])
            whole = below & (ends.amin(1)[None, :] >= first[:, None] + size)
            if window is not None:
                some &= places.amin(1)[:, None] - places.amax(1)[None, :] < window
                whole &= places.amax(1)[:, None] - places.amin(1)[None, :] < window

            def rule(batch, head, query, key):
                seen = (key <= query) & (query < end[key])
                return seen if window is None else seen & (positions[query] - positions[key] < window)

            def listed(chosen):  # (count, count) -> how many key blocks each query block has, and which, those first
                return chosen.sum(1, dtype=torch.int32)[None, None], \
                    chosen.int().argsort(dim=1, descending=True, stable=True).int()[None, None]
            self.masks[window] = BlockMask.from_kv_blocks(*listed(some & ~whole), *listed(whole), BLOCK_SIZE=size,
                                                          mask_mod=rule)
        return self.masks[window]

    def block_inputs(self, window):
        """For each block of queries on a CPU: (start, stop, key ranges, mask or None for plain causal)."""
        if window not in self.masks:
            self.masks[window] = []
            for start, stop, prefix in self.blocks:
                ranges = prefix + [(start, stop)]
                keys = torch.cat([torch.arange(a, b) for a, b in ranges])
                chain = bool((self.end[start:stop] >= stop).all())
                short = window is None or int(self.positions[start:stop].max()) < window
                mask = None if chain and not prefix and short else self.allowed(torch.arange(start, stop), keys, window)
                self.masks[window].append((start, stop, ranges, mask))
        return self.masks[window]


def attend(query, key, value, mask, scale, softcap):
    """Plain attention (1, H, n, D) x (1, H, m, D); mask (n, m) or None for causal; softcap is Gemma 2's."""
    if softcap is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale)
    scores = softcap * torch.tanh(query @ key.transpose(2, 3) * scale / softcap)
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value


class BlockAttention(torch.autograd.Function):
    """Attention over a forest on a CPU: each block of queries attends to the stretches of the row it descends from.

    The blocks' own small graphs are kept for the backward pass (with activation checkpointing: made again), which adds
    their gradients up in place; slicing the row with autograd would write a gradient as long as the row every time.
    """

    @staticmethod
    def run(query, key, value, block, scale, softcap, needed):
        start, stop, ranges, mask = block
        gather = lambda x: torch.cat([x[:, :, a:b] for a, b in ranges], 2)
        inputs = [x.detach().requires_grad_(needed) for x in (query[:, :, start:stop], gather(key), gather(value))]
        with torch.set_grad_enabled(needed):
            return attend(*inputs, mask, scale, softcap), inputs

    @staticmethod
    def forward(ctx, query, key, value, blocks, scale, softcap, keep):
        needed = keep and any(ctx.needs_input_grad[:3])
        out, ctx.graphs = torch.empty_like(query), []
        for block in blocks:
            part, inputs = BlockAttention.run(query, key, value, block, scale, softcap, needed)
            out[:, :, block[0]:block[1]] = part.detach()
            if needed:
                ctx.graphs.append((part, inputs))
        ctx.save_for_backward(query, key, value)
        ctx.settings = blocks, scale, softcap
        return out

    @staticmethod
    def backward(ctx, gradient):
        query, key, value = ctx.saved_tensors
        blocks, scale, softcap = ctx.settings
        d_query, d_key, d_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for n, block in enumerate(blocks):
            start, stop, ranges, _ = block
            part, inputs = ctx.graphs[n] if ctx.graphs else \
                BlockAttention.run(query, key, value, block, scale, softcap, True)
            dq, dk, dv = torch.autograd.grad(part, inputs, gradient[:, :, start:stop])
            d_query[:, :, start:stop] = dq
            place = 0
            for a, b in ranges:
                d_key[:, :, a:b] += dk[:, :, place:place + b - a]
                d_value[:, :, a:b] += dv[:, :, place:place + b - a]
                place += b - a
        ctx.graphs = None
        return d_query, d_key, d_value, None, None, None, None


@torch.compiler.disable
def block_attention(*inputs):
    return BlockAttention.apply(*inputs)


def tree_attention(module, query, key, value, attention_mask, layout=None, scaling=None, sliding_window=None,
                   softcap=None, **kwargs):
    """The attention of every layer, called by transformers: query (R, H, T, D), key and value (R, K, T, D)."""
    if kwargs.get("s_aux") is not None or kwargs.get("position_bias") is not None:
        raise NotImplementedError("attention with sinks or position biases")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    groups, length = query.shape[1] // key.shape[1], query.shape[2]
    if layout is not None and query.device.type == "cuda":
        return flex_tree(query, key, value, layout.block_mask(sliding_window), scaling, softcap).transpose(1, 2), None
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if layout is not None:
        out = block_attention(query, key, value, layout.block_inputs(sliding_window), scaling, softcap, layout.keep)
    else:
        mask = None
        if sliding_window is not None and length > sliding_window:
            back = torch.arange(length, device=query.device)[:, None] - torch.arange(length, device=query.device)
            mask = (back >= 0) & (back < sliding_window)
        out = attend(query, key, value, mask, scaling, softcap)
    return out.transpose(1, 2), None


@functools.cache
def compiled_flex():
    from torch.nn.attention.flex_attention import flex_attention
    return torch.compile(flex_attention, dynamic=True)


def flex_tree(query, key, value, block_mask, scaling, softcap=None):
    """FlexAttention over a forest (R, H, T, D): what is computed on CUDA."""
    cap = None if softcap is None else lambda score, batch, head, q, k: softcap * torch.tanh(score / softcap)
    return compiled_flex()(query, key, value, score_mod=cap, block_mask=block_mask, scale=scaling,
                           enable_gqa=query.shape[1] != key.shape[1])


# Log-probabilities


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
        for i, (h, t, g) in enumerate(zip(hidden.split(chunk), target.split(chunk), gradient.split(chunk))):
            # A kept chunk is used up: changed in place, and its memory is free for the layers' backward passes.
            logits = ctx.kept.pop(0) if ctx.kept else TokenLogps.logits_of(h, weight, bias, scale, cap)
            slope = None if cap is None else 1 - (logits / cap) ** 2
            d = logits.sub_(normalisers[i][:, None]).exp_().mul_(-g[:, None])  # -g * softmax
            d.scatter_add_(1, t[:, None], g[:, None])                          # + g at the target
            if slope is not None:
                d.mul_(slope)
            if scale != 1.0:
                d.mul_(scale)
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

    def __init__(self, lm, head=None, head_bytes=2 ** 29, keep=True, processor=None):
        super().__init__()
        self.lm, self.head, self.processor = lm, head, processor
        self.head_bytes = head_bytes  # logits beyond so many bytes are computed again in the backward pass
        self.keep = keep

    def forward(self, batch):
        if self.processor is not None:
            inputs = read_views(self.processor, batch.views).to(batch.ids.device, self.head.weight.dtype)
            hidden = self.lm.base_model(**inputs, use_cache=False).last_hidden_state              # (R, T, D)
            hidden = hidden[inputs["attention_mask"].bool()].to(self.head.weight.dtype)           # (N, D)
            return self.head(hidden).float()[:, 0]                                                # (N,)
        layout = {}
        if batch.forest is not None:
            batch.forest.keep = self.keep
            layout = {"layout": batch.forest}
        hidden = self.lm.base_model(input_ids=batch.ids, position_ids=batch.positions, attention_mask=None,
                                    use_cache=False, **layout).last_hidden_state.flatten(0, 1)  # (R * T, D)
        if self.head is not None:
            return self.head(hidden[batch.own].to(self.head.weight.dtype)).float()[:, 0]  # (N,)
        config, output = self.lm.config, self.lm.get_output_embeddings()
        scale = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1.0)
        vocabulary = output.weight.shape[0]
        chunk = max(1, min(len(batch.source), self.head_bytes // 4 // (4 * vocabulary)))
        keep = torch.is_grad_enabled() and 4 * len(batch.source) * vocabulary <= self.head_bytes
        return TokenLogps.apply(hidden[batch.source], output.weight, output.bias, batch.target, scale,
                                getattr(config, "final_logit_softcapping", None), chunk, keep)

    def flops(self, batch):
        """Floating-point operations forward and backward: 6 per weight and token, 12 per attended pair and layer."""
        config = self.lm.config.get_text_config()
        output = self.lm.get_output_embeddings().weight.numel()
        body = sum(p.numel() for p in self.lm.base_model.parameters()) - self.lm.get_input_embeddings().weight.numel()
        heads = getattr(config, "num_attention_heads", 0)
        width = heads * (getattr(config, "head_dim", None) or config.hidden_size // max(heads, 1))
        attention = 12 * config.num_hidden_layers * width * batch.attended
        return 6 * body * batch.tokens + 6 * output * len(batch.source) + attention


def segment_sum(values, index, count):
    """Sum the values that have the same index: (N,), (N,) -> (count,)."""
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add_(0, index, values)


def drift(ratio, on_chosen):
    """How far the model is from the reference, in nats per token: half the squared log-ratio, which estimates their KL
    divergence without ever being negative.

    ratio: (N,) log pi_theta - log pi_ref of tokens that the reference sampled; on_chosen: (N,) bool.
    """
    kl = 0.5 * ratio ** 2
    return {"kl_chosen": (kl[on_chosen].sum(), on_chosen.sum()),
            "kl_rejected": (kl[~on_chosen].sum(), (~on_chosen).sum())}


# The process group, and the model on it


def start_process_group():
    """Join torchrun's group if there is one; returns the device. Plain `python` on a CPU needs no group."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        dist.init_process_group("cuda:nccl,cpu:gloo" if cuda else "gloo")
    elif cuda:
        dist.init_process_group("cuda:nccl,cpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")


def barrier():
    if dist.is_initialized():
        dist.barrier()


def add_up(numbers, device):
    """Sum a list of floats over all ranks."""
    if not dist.is_initialized():
        return numbers
    total = torch.tensor(numbers, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total.tolist()


def finish():
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def local_folder(path, role=""):
    """The folder that holds the model: `path` itself, or where the hub's copy lies."""
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download
    try:
        return Path(snapshot_download(path, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]))
    except Exception as error:  # the hub's client raises many kinds, all of which mean: it is not to be had
        die(f"{path}{role}: neither a folder nor a model that could be fetched ({first_line(error)})")


@contextmanager
def parameters_on_meta():
    """Inside, modules are built with parameters that take no memory; buffers (rotary frequencies) are real."""
    register = nn.Module.register_parameter

    def on_meta(module, name, parameter):
        register(module, name, parameter)
        if parameter is not None and not parameter.is_meta:  # one that is, is shared: tied to another module's
            module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
    nn.Module.register_parameter = on_meta
    try:
        yield
    finally:
        nn.Module.register_parameter = register


def read_weights(model, folder):
    """Fill the model's parameters from its safetensors files, each rank reading only the rows that it holds."""
    from safetensors import SafetensorError, safe_open
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    waiting = dict(model.lm.named_parameters())

    def read(file):
        with safe_open(file, "pt") as tensors, torch.no_grad():
            for name in waiting.keys() & set(tensors.keys()):
                parameter, rows = waiting.pop(name), tensors.get_slice(name)
                if hasattr(parameter, "placements"):
                    shape, offset = compute_local_shape_and_global_offset(
                        parameter.shape, parameter.device_mesh, parameter.placements)
                    if shape[0]:
                        parameter.to_local().copy_(rows[offset[0]:offset[0] + shape[0]])
                else:
                    parameter.copy_(rows[...])
    for file in sorted(folder.glob("*.safetensors")):
        try:
            read(file)
        except (SafetensorError, OSError, RuntimeError) as error:
            die(f"{file}: the weights there are damaged, or not of this model ({first_line(error)}); make or fetch the "
                f"model again")
    return sorted(waiting)


def decoder_layers(lm):
    return [module for module in lm.modules() if type(module).__name__ in (lm._no_split_modules or ())]


def shard(model, device, offload):
    """FSDP2: each decoder layer a group, the rest one; bf16 in compute on CUDA, float32 masters and reductions."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
    options = {"offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy()}
    if device.type == "cuda":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in decoder_layers(model.lm):
        fully_shard(layer, **options)
    fully_shard(model, **options)


def load_model(path, device, args, head=None, train=True, processor=None):
    """A Scorer around the causal language model at `path`, float32, sharded over the ranks, in train or eval mode.

    With a processor: around the image-text model there. Its weights have other names in the file than in the model, so
    transformers reads them, all of them on every rank; and its rows are padded, since no tree mask fits its attention.
    """
    from safetensors import SafetensorError
    from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils import logging
    logging.disable_progress_bar()
    AttentionInterface.register("tree", tree_attention)
    folder = local_folder(path)

    def build(**options):
        try:
            return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32, **options)
        except (OSError, ValueError, KeyError) as error:
            if "attn_implementation" in options:
                return None
            die(f"{path}: no causal language model could be loaded from there ({first_line(error)})")

    if processor is None:
        with parameters_on_meta():
            lm = build(attn_implementation="tree")
            kinds = set(getattr(lm.config, "layer_types", None) or ()) if lm else {"unknown"}
            trees = kinds <= {"full_attention", "sliding_attention"} and lm._supports_attention_backend
            lm = lm if trees else build()
    else:
        trees, args.pack = False, "padded"
        try:
            lm, info = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32,
                                                                   output_loading_info=True)
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            die(f"{path}: no image-text-to-text model could be loaded from there ({first_line(error)})")
    for module in lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if args.checkpointing != "none" and train:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        for layer in decoder_layers(lm)[1::2] if args.checkpointing == "selective" else ():
            layer.gradient_checkpointing = False
    if args.compile:
        for layer in decoder_layers(lm):
            layer.compile(dynamic=True)
    model = Scorer(lm, head, head_bytes=2 ** (32 if device.type == "cuda" else 29), keep=args.checkpointing == "none",
                   processor=processor)
    if dist.is_initialized():
        shard(model, device, args.cpu_offload)
    home = torch.device("cpu") if args.cpu_offload else device

    def settle(tensor):
        where = home if isinstance(tensor, nn.Parameter) else device
        return torch.empty_like(tensor, device=where) if tensor.is_meta else tensor.to(where)
    model._apply(settle)
    if processor is None:
        lm.tie_weights()  # allocating gave a tied weight one copy at each of its places
    missing = read_weights(model, folder) if processor is None else sorted(info["missing_keys"])
    if missing:
        die(f"{path}: the safetensors files there do not hold {missing[0]} ({len(missing)} are missing); save "
            f"the model again with save_pretrained")
    if trees and not trees_agree(model.eval(), device):
        trees = False
        lm.set_attn_implementation("eager")  # its own, where ours cannot do what it asks for
    if not trees and args.pack != "padded":
        say(f"{path}: the attention of {type(lm).__name__} takes no tree mask; each sequence is computed by itself")
        args.pack = "padded"
    return model.train(train)


@torch.no_grad()
def trees_agree(model, device):
    """Whether three short dialogues as a tree have the log-probabilities that they have one by one."""
    ids = np.arange(24, dtype=np.int32) % model.lm.config.vocab_size
    paths = [ids, np.concatenate([ids[:12], ids[3:9]]), np.concatenate([ids[:5], ids[1:8]])]
    sequences = [Sequence(path, np.arange(4, len(path)), np.zeros(len(path) - 4, np.int64)) for path in paths]
    try:
        numbers = [model(collate(sequences, [0] * 3, 1, device, pack)) for pack in ("turn", "padded")]
    except NotImplementedError:
        return False
    finally:
        if dist.is_initialized():
            model.reshard()  # the root group stays gathered after a forward pass; the optimizer must see its shards
    # In bf16 the two layouts round differently; a mask that is not honoured is off by far more.
    return (numbers[0] - numbers[1]).abs().mean().item() < (0.05 if device.type == "cuda" else 1e-3)


def save_model(model, tokenizer, path, args, extra=None):
    """Write the model in Hugging Face format to `path`: into a folder beside it first, then moved file by file."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)) \
        if dist.is_initialized() else model.state_dict()
    if rank() == 0:
        lm, part = model.lm, Path(path).with_name(Path(path).name + ".part")
        named = {name for name, _ in lm.named_parameters()}  # a tied weight has one name here
        kind = getattr(torch, args.save_dtype)
        weights = {name: state["lm." + name].to(kind).contiguous() for name in named}
        try:
            shutil.rmtree(part, ignore_errors=True)
            lm.save_pretrained(part, state_dict=weights)
            config = json.loads((part / "config.json").read_text(encoding="utf-8"))  # names the dtype of training
            (part / "config.json").write_text(json.dumps({**config, "dtype": args.save_dtype}, indent=2) + "\n")
            tokenizer.save_pretrained(part)
            if extra:
                (part / "critic.json").write_text(json.dumps(extra, indent=1))
            # config.json comes last: its presence says that the output is complete
            for file in sorted(part.iterdir(), key=lambda f: (f.name == "config.json", f.name)):
                os.replace(file, Path(path) / file.name)
            part.rmdir()
        except OSError as error:
            die(f"{path}: could not be written ({error}); the checkpoints are intact, and the same command continues")
    barrier()


# Passes without gradients: the reference and the critic


def cut(things, fits):
    """Cut a list into as few stretches as halving finds for which fits(stretch) holds; single things stay whole."""
    if len(things) <= 1 or fits(things):
        return [things] if things else []
    return cut(things[:len(things) // 2], fits) + cut(things[len(things) // 2:], fits)


@torch.no_grad()
def score_all(model, sequences, device, args, title):
    """One number for each scored token of each sequence: a list of float32 arrays. Ranks share the work."""
    if args.pack in ("none", "padded"):
        order, cost = sorted(range(len(sequences)), key=lambda i: len(sequences[i].ids)), padded_tokens
    else:
        order, cost = sorted(range(len(sequences)), key=lambda i: sequences[i].ids.astype(">i4").tobytes()), tree_tokens
    rows = cut(order, lambda part: cost([sequences[i] for i in part]) <= args.micro_tokens)
    mine = rows[rank()::world()]
    result = {}
    rounds = range(-(-len(rows) // world()))
    for n in tqdm(rounds, desc=title, disable=rank() > 0, mininterval=BAR_SECONDS, unit="batch"):
        part = mine[n] if n < len(mine) else []
        batch = empty_batch(device, args.pack, sequences[0])
        if part:
            batch = collate([sequences[i] for i in part], [0] * len(part), 1, device, args.pack)
        values = model(batch).float().cpu().numpy()
        ends = np.cumsum([len(sequences[i].scored) for i in part])
        result.update(zip(part, np.split(values, ends[:-1]) if part else []))
    result = everyones(result)
    return [result[i] for i in range(len(sequences))]


def everyones(mine):
    """The union of every rank's dictionary."""
    if world() == 1:
        return mine
    gathered = [None] * world()
    dist.all_gather_object(gathered, mine)
    return {key: value for part in gathered for key, value in part.items()}


def fingerprint(*parts):
    """A short name for settings, arrays of data and model folders: what a cache of them is filed under."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            kinds = (".safetensors", ".json")
            files = sorted(f for f in part.glob("*.*") if f.suffix in kinds and f.stem != "settings")
            part = [str(part)] + [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()[:16]


def reference_logps(path, sequences, device, args, cache):
    """Log-probabilities under the reference, once: from the cache, or one pass that fills it. No model stays."""
    key = fingerprint(Path(path), *[a for s in sequences for a in (s.ids, s.scored)])
    file = Path(cache) / f"reference-{key}.npy"
    ends = np.cumsum([len(s.scored) for s in sequences])
    if file.is_file():
        flat = np.load(file)
        if len(flat) == ends[-1]:
            say(f"reference log-probabilities: taken from {file}")
            return np.split(flat, ends[:-1])
    model = load_model(path, device, args, train=False)
    values = score_all(model, sequences, device, args, "reference")
    if rank() == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        with open(part, "wb") as out:
            np.save(out, np.concatenate(values))
        os.replace(part, file)
    barrier()
    return values


def new_head(path):
    """A linear head that starts at zero, so that every trajectory starts with the same score."""
    from transformers import AutoConfig
    head = nn.Linear(AutoConfig.from_pretrained(path).get_text_config().hidden_size, 1)
    nn.init.zeros_(head.weight), nn.init.zeros_(head.bias)
    return head


def head_weights(model):
    """The head as lists of numbers for critic.json, or None. Every rank takes part."""
    if model.head is None:
        return None
    whole = lambda p: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().float().flatten().tolist()
    return {"weight": whole(model.head.weight), "bias": whole(model.head.bias)}


def read_critic(path):
    """critic.json, which says how the critic was trained, and the head if it has one."""
    try:
        note = json.loads((Path(path) / "critic.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        die(f"{path}: no critic.json in there; train one first with train_critic.py, or name another with --critic")
    head = None
    try:
        if not {"head", "context", "advantage", "reference"} <= note.keys():
            raise KeyError
        if note["weights"]:
            head = nn.Linear(len(note["weights"]["weight"]), 1)
            with torch.no_grad():
                head.weight.copy_(torch.tensor([note["weights"]["weight"]]))
                head.bias.copy_(torch.tensor(note["weights"]["bias"]))
    except (AttributeError, LookupError, TypeError, ValueError):
        die(f"{path}/critic.json is not what train_critic.py writes; train the critic again, or name another with "
            f"--critic")
    return note, head


def reference_of(critic, note, model=None):
    """The reference of Eq. 3: the model that the critic was trained from, whatever --model says; None without one."""
    if note["head"] != "log-ratio":
        return None
    local_folder(note["reference"], f" (the reference of {critic}, from which it was trained)")
    if model and Path(model).resolve() != Path(note["reference"]).resolve():
        say(f"advantages are relative to {note['reference']}, from which {critic} was trained, not to --model {model}")
    return note["reference"]


def critic_advantages(sequences, critic, reference, note, head, device, args, reference_sequences=None, processor=None):
    """Each turn's advantage (Eq. 3), one list for each sequence. The critic, then the reference: never both in memory.

    `reference_sequences`: the same responses after another prompt, for a reference that does not see c.
    """
    args = copy.copy(args)  # how the critic has to be packed says nothing about the policy
    model = load_model(critic, device, args, head, train=False, processor=processor)
    values = score_all(model, sequences, device, args, "critic")
    if note["head"] == "log-ratio":
        model = load_model(reference, device, args, train=False)
        base = score_all(model, reference_sequences or sequences, device, args, "reference")
        values = [v - b for v, b in zip(values, base)]
    result = []
    for value, sequence in zip(values, sequences):
        parts = np.split(value, np.flatnonzero(np.diff(sequence.turn)) + 1)
        if note["head"] == "value":
            result.append([float(part[-1]) for part in parts])
        elif note["advantage"] == "sum":
            result.append([float(part.sum(dtype=np.float64)) for part in parts])
        else:
            result.append([float(part.mean(dtype=np.float64)) for part in parts])
    return result


# What a step is made of


class Item(NamedTuple):
    """What one step counts as one: a pair (chosen and rejected), or a single dialogue (no rejected)."""
    chosen: list    # indices of sequences
    rejected: list
    group: tuple    # (trajectory, turn): items of one group share most of their prompt
    label: float = 1.0
    answers: tuple = (False, False)  # whether chosen and rejected give the final answer


def leave_out_long(items, sequences, args, where):
    """Without the items that --max-length leaves out."""
    if not args.max_length:
        return items, sequences
    short = [item for item in items
             if all(len(sequences[i].ids) <= args.max_length for i in item.chosen + item.rejected)]
    if len(short) < len(items):
        say(f"{where}: {len(items) - len(short)} of {len(items)} left out: longer than {args.max_length} tokens")
    if not short:
        die(f"{where}: --max-length {args.max_length} leaves nothing to train on")
    used = sorted({i for item in short for i in item.chosen + item.rejected})
    place = {i: n for n, i in enumerate(used)}
    move = lambda side: [place[i] for i in side]
    items = [item._replace(chosen=move(item.chosen), rejected=move(item.rejected)) for item in short]
    return items, [sequences[i] for i in used]


def step_items(items, args):
    """The items of each step: a new random order every epoch, the same on any number of ranks.

    What is shuffled is turns, so that the pairs of a step are of several random turns, or with --pack trajectory whole
    trajectories (critic: tasks), whose pairs then come one after the other.
    """
    units = {}
    for i, item in enumerate(items):
        units.setdefault(item.group[:1 if args.order == "trajectory" else 2], []).append(i)
    units, steps = list(units.values()), []
    for epoch in range(args.epochs):
        order = np.random.default_rng([args.seed, epoch]).permutation(len(units))
        order = [i for n in order for i in units[n]]
        steps += [[items[i] for i in order[s:s + args.batch_size]] for s in range(0, len(order), args.batch_size)]
    return steps[:args.max_steps] if args.max_steps else steps


def micro_batches(items, sequences, args):
    """This rank's micro-batches of a step, and how many every rank runs (the most that any rank needs)."""
    of = lambda part: [sequences[i] for item in part for i in item.chosen + item.rejected]
    longest = lambda item: max(len(sequences[i].ids) for i in item.chosen + item.rejected)
    if args.pack in ("none", "padded"):
        ordered, cost = sorted(items, key=longest), padded_tokens
        shares = [ordered[r::world()] for r in range(world())]
    else:  # neighbours share most: each rank takes a stretch of about the same length
        ordered, cost = sorted(items, key=lambda item: (repr(item.group), item.chosen)), tree_tokens
        place = np.cumsum([longest(item) for item in ordered])
        share = np.minimum((place - 1) * world() // place[-1], world() - 1)
        shares = [[item for item, s in zip(ordered, share) if s == r] for r in range(world())]
    fits = lambda part: (not args.micro_batch or len(part) <= args.micro_batch) and cost(of(part)) <= args.micro_tokens
    parts = [cut(part, fits) for part in shares]
    most = max(map(len, parts))
    return parts[rank()] + [[]] * (most - len(parts[rank()])), most


def collate_items(items, sequences, reference, device, args):
    """Items as one batch: side 2i is item i's chosen, 2i + 1 its rejected."""
    if not items:
        return empty_batch(device, args.pack, sequences[0])
    index = [(i, 2 * n + s) for n, item in enumerate(items)
             for s, side in enumerate((item.chosen, item.rejected)) for i in side]
    return collate([sequences[i] for i, _ in index], [side for _, side in index], 2 * len(items), device,
                   args.pack, [reference[i] for i, _ in index] if reference is not None else None)


# Pages as pictures: what a critic with a regression head sees in the frontend domain

PICTURE = 512, 1024  # pixels: a page's picture is scaled to this width, and cut at this height


def load_processor(path):
    """The processor of an image-text model: its tokenizer and chat template, and how it cuts pictures into patches."""
    from transformers import AutoProcessor
    try:
        processor = AutoProcessor.from_pretrained(path)
    except ImportError as error:
        die(f"{path}: its processor cannot be loaded without another package "
            f"({' '.join(str(error).split()).split('. ')[0]})")
    except (OSError, ValueError, TypeError, KeyError) as error:
        die(f"{path}: no processor for pictures could be loaded from there ({first_line(error)})")
    if not hasattr(processor, "image_processor"):
        die(f"{path}: this model reads text only; a critic that sees pages needs an image-text-to-text model")
    if not processor.chat_template:
        die(f"{path}: the processor has no chat template; take an instruction-tuned model, or add chat_template.jinja")
    processor.tokenizer.pad_token = processor.tokenizer.pad_token or processor.tokenizer.eos_token
    return processor


def photograph(pages, folder):
    """{page: file of its picture}. Each page is rendered once, by one of the ranks; what fails to render is white."""
    from PIL import Image
    from render import Renderer
    name = lambda page: hashlib.sha256(page.encode("utf-8", "replace")).hexdigest()[:24]
    files = {page: folder / f"{name(page)}.png" for page in pages}
    missing = sorted(page for page, file in files.items() if not file.is_file())[rank()::world()]
    barrier()  # every rank has looked before any writes
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            renderer = Renderer(browsers=2 if world() == 1 else 1)
        except RuntimeError as error:
            die(str(error))
        bar, failed = tqdm(missing, desc="pages", disable=rank() > 0, mininterval=BAR_SECONDS, unit="page"), 0
        with renderer:
            for page, picture in zip(bar, renderer.render_many(missing)):
                pixels = picture.rgb                                                               # (H, W, 3)
                image = Image.fromarray(pixels[:pixels.shape[1] * PICTURE[1] // PICTURE[0]])
                height = max(1, round(image.height * PICTURE[0] / image.width))
                part = files[page].with_suffix(".part")
                image.resize((PICTURE[0], height), Image.Resampling.BOX).save(part, "PNG")
                os.replace(part, files[page])
                failed += picture.status != "ok"
        if failed:
            say(f"{failed} of {len(missing)} pages could not be rendered: their pictures are white")
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
    try:
        import PIL  # noqa: F401
        from render import extract_page
    except ImportError as error:
        die(f"a critic that sees pages needs pillow, and render.py beside this file ({error})")
    shown, texts = [], []
    for messages, reply, reference in turns:
        said = [(m["role"], str(m["content"])) for m in messages if m["role"] != "system"] + [("assistant", reply)]
        found = [extract_page(text) for _, text in said]
        shown.append([page for page in (reference, found[-1] or "") if page is not None])
        text = "\n\n".join(f"{role}: {text.replace(page, '[page]') if page else text}"
                           for (role, text), page in zip(said, found))
        for token in {*processor.tokenizer.all_special_tokens, getattr(processor, "image_token", None)} - {None}:
            text = text.replace(token, " ")  # what a stranger wrote must not stand for a picture
        lead = "The picture shows" if reference is None else \
            "The first picture shows the page that is wanted, the second"
        texts.append(f"{lead} the page of the last reply.\n\n{text}")
    files = photograph({page for pages in shown for page in pages}, folder)
    views = []
    for pages, text in zip(shown, texts):
        content = [{"type": "image"}] * len(pages) + [{"type": "text", "text": text}]
        prompt = processor.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
        views.append((prompt, [str(files[page]) for page in pages]))
    bar = tqdm(range(rank(), len(views), world()), desc="pictures", disable=rank() > 0, mininterval=BAR_SECONDS)
    ids = everyones({n: read_views(processor, [views[n]])["input_ids"][0].numpy().astype(np.int32) for n in bar})
    return [Sequence(ids[n], np.arange(len(ids[n])), np.zeros(len(ids[n]), np.int64), view)
            for n, view in enumerate(views)]


# Flags, settings, and the output folder


def training_flags(parser, lr, epochs, batch_size):
    """The flags that both training scripts have; the first three have defaults of the stage's, told in words here."""
    # optimisation
    parser.add_argument("--lr", type=float, help=f"peak learning rate of AdamW (default {lr})")
    parser.add_argument("--epochs", type=int, help=f"passes over the data (default {epochs})")
    parser.add_argument("--batch-size", type=int,
                        help=f"pairs (or dialogues) a step, over all ranks (default {batch_size})")
    parser.add_argument("--max-steps", type=int, default=0, help="stop after so many steps; 0: all (default 0)")
    parser.add_argument("--warmup", type=float, default=0.03, help="share of the steps with rising rate (default 0.03)")
    parser.add_argument("--final-lr", type=float, default=0.1, help="where the cosine ends, times --lr (default 0.1)")
    parser.add_argument("--betas", type=float, nargs=2, default=[0.9, 0.95], help="AdamW's averages (default 0.9 0.95)")
    parser.add_argument("--weight-decay", type=float, default=0.0, help="AdamW's weight decay (default 0)")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient (default 1.0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of every random choice (default 0)")
    # memory and speed
    parser.add_argument("--pack", choices=["none", "turn", "trajectory"], default="turn",
                        help="compute what sequences share at their beginning once: none; turn: among a step's pairs, "
                             "which are of random turns; trajectory: a step's pairs follow each other in whole "
                             "trajectories, which shares most, but the pairs of a step are then alike (default turn)")
    parser.add_argument("--micro-tokens", type=int, default=8192,
                        help="most tokens in one forward pass; the rest of a step is accumulated (default 8192)")
    parser.add_argument("--micro-batch", type=int, default=0,
                        help="most pairs in one forward pass; 0: as many as --micro-tokens allow (default 0)")
    parser.add_argument("--max-length", type=int, default=0,
                        help="leave out, and count, dialogues of more tokens; 0: none, and one that does not fit into "
                             "the model's context is an error (default 0)")
    parser.add_argument("--checkpointing", choices=["none", "selective", "full"], default="none",
                        help="compute activations again in the backward pass instead of keeping them: of no layer, of "
                             "every second, of all; none is fastest where it fits (default none)")
    parser.add_argument("--cpu-offload", action="store_true",
                        help="keep parameters and AdamW's averages in CPU memory (CUDA)")
    parser.add_argument("--compile", action="store_true",
                        help="torch.compile each decoder layer; the first steps are slow")
    # watching it
    parser.add_argument("--tracker", choices=["none", "tensorboard", "wandb"], default="none",
                        help="send the metrics there as well (default none)")
    # checkpoints
    parser.add_argument("--save-dtype", choices=["float32", "bfloat16", "float16"], default="float32",
                        help="precision of the written model; at a learning rate of 2e-7 most updates are smaller "
                             "than what bfloat16 can hold (default float32)")
    parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints; 0: none (default 200)")
    parser.add_argument("--keep", type=int, default=2, help="checkpoints to keep (default 2)")
    parser.add_argument("--resume", action="store_true",
                        help="insist on a checkpoint to continue from (without it: continue if there is one, else "
                             "start)")
    parser.add_argument("--overwrite", action="store_true", help="start again and replace the output")


def check_flags(args):
    """Die where a number can have no meaning; the flags that this script does not have are passed over."""
    for words, holds, names in RANGES:
        for name in names.split():
            value = getattr(args, name, None)
            if value is not None and not all(map(holds, value if isinstance(value, list) else [value])):
                die(f"--{name.replace('_', '-')} must be {words}, found {value}")
    if args.resume and args.overwrite:
        die("--resume goes on and --overwrite starts again: give one of them")


def settings_of(args, names):
    """The flags that decide the result: what a continued run must share with the run it continues."""
    names = (*names, "order", "lr", "epochs", "batch_size", "max_steps", "warmup", "final_lr", "betas", "weight_decay",
             "clip", "seed", "max_length")
    # --pack changes the result only where it changes the order of the data
    args.order = "trajectory" if args.pack == "trajectory" else "turn"
    return {name: getattr(args, name) for name in names}


def check_folder(folder):
    """Die now, not after hours, if a folder is not there and cannot be made, or takes no file."""
    barrier()
    if rank() == 0:
        new = [place for place in (folder, *folder.parents) if not place.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            die(f"{folder}: nothing can be written there ({error.strerror})")
        for place in new:
            place.rmdir()
    barrier()


def finished_already(args, settings, inputs):
    """Compare the settings with those that the output was begun with; True if it is complete. Writes nothing.

    inputs: {flag: path} of what this run needs, which the output may neither be nor hold.
    """
    out = Path(args.out)
    needed = {"the working directory": ".", **inputs, "the folder of caches": out.parent / "cache"}
    for name, path in needed.items():
        if Path(path).resolve().is_relative_to(out.resolve()):
            die(f"--out {out} is or holds {name} ({path}); name another folder with --out")
    if out.exists() and not (out / "settings.json").is_file() and (not out.is_dir() or any(out.iterdir())):
        die(f"{out} exists and was not written by this script; name another folder with --out")
    if (out / "settings.json").is_file():
        try:
            before = json.loads((out / "settings.json").read_text(encoding="utf-8"))
            differences = [f"{k} was {before.get(k)!r}, now {v!r}" for k, v in settings.items() if before.get(k) != v]
        except (ValueError, AttributeError):
            before, differences = {}, ["which ones is not known, its settings.json is damaged"]
        if before and ("method" in before) != ("method" in settings):  # only the policy's have a method
            die(f"{out} was written by the other training script; name another folder with --out")
        if differences and not args.overwrite:
            die(f"{out} was begun with other settings ({'; '.join(differences)}); use --overwrite, or another --out")
    check_folder(out), check_folder(out.parent / "cache")
    if args.overwrite:
        return False
    if args.resume and not any((out / "checkpoints").glob("step-??????")) and not (out / "config.json").is_file():
        die(f"--resume: there is no checkpoint in {out}/checkpoints to continue from")
    return (out / "config.json").is_file()


def begin_output(args, settings):
    """Make the output folder, once input and model are known to be good; with --overwrite the old one goes only now."""
    out = Path(args.out)
    barrier()
    if rank() == 0:
        out.mkdir(parents=True, exist_ok=True)
        for old in [path for name in WRITTEN for path in out.glob(name)] if args.overwrite else ():
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink(missing_ok=True)
        (out / "settings.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    barrier()


# Checkpoints


def save_checkpoint(args, model, optimizer, step, settings):
    """Everything that the next step depends on, into a folder of its own that appears only once it is complete.

    Weights and AdamW's averages, each rank its shards; the learning rate, the order of the data and every random choice
    follow from the step and the seed. It loads onto another number of ranks as well.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process without torchrun: intended
    folder = Path(args.out) / "checkpoints"
    final, part = folder / f"step-{step:06d}", folder / f"step-{step:06d}.part"
    if final.is_dir():
        return
    weights, moments = get_state_dict(model, optimizer)
    try:
        if rank() == 0:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        barrier()
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=str(part), no_dist=not dist.is_initialized())
        if rank() == 0:
            sizes = {f.name: f.stat().st_size for f in sorted(part.iterdir())}
            (part / "step.json").write_text(json.dumps({"step": step, "settings": settings, "sizes": sizes}))
            os.replace(part, final)
            for old in sorted(folder.glob("step-??????"))[:-args.keep]:
                shutil.rmtree(old)
    except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
        reason = str(error).strip().splitlines()[-1]
        die(f"{final}: the checkpoint could not be written ({reason}); the one before it is intact, and the same "
            f"command continues from it")
    barrier()


def load_checkpoint(folder, model, optimizer):
    """Continue from the newest complete checkpoint in `folder`; returns its step, or 0 if there is none."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    for path in sorted(Path(folder).glob("step-??????"), reverse=True):
        try:
            note = json.loads((path / "step.json").read_text())
            whole = all((path / name).stat().st_size == size for name, size in note["sizes"].items())
        except (OSError, ValueError, KeyError):
            whole = False
        if not whole:
            say(f"{path} is damaged and is left out; continuing from the one before it")
            continue
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        # What a head leaves unused (the output embedding) never had a gradient, and AdamW no averages of it to save.
        planner = dcp.DefaultLoadPlanner(allow_partial_load=model.head is not None)
        dcp.load(state, checkpoint_id=str(path), planner=planner, no_dist=not dist.is_initialized())
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return note["step"]
    return 0


def stop_asked(device):
    """Whether a rank got SIGTERM (a scheduler's warning) or SIGINT: then every rank saves and leaves."""
    return add_up([len(signals)], device)[0] > 0


def leave(args, model, optimizer, step, settings):
    save_checkpoint(args, model, optimizer, step, settings)
    say(f"stopped by a signal after step {step}, which is saved; the same command continues")
    finish()
    sys.exit(128 + (signals[0] if signals else signal.SIGTERM))


# The parts of the training loop


def continue_training(model, args, device, steps):
    """The optimizer, the step to go on from, and the log cut back to that step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=tuple(args.betas),
                                  weight_decay=args.weight_decay, fused=True)
    first = load_checkpoint(Path(args.out) / "checkpoints", model, optimizer)
    if first:
        say(f"continuing {args.out} after step {first} of {steps}")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: signals.append(number))
    return optimizer, first, open_log(args, first)


def learning_rate(step, steps, peak, warmup=0.03, final=0.1):
    """Linear warm-up over the first 3% of the steps, then a cosine down to a tenth (both flags)."""
    warm = max(1, round(warmup * steps))
    if step < warm:
        return peak * (step + 1) / warm
    progress = (step - warm) / max(1, steps - warm)
    return peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress)))


def reduce_at_the_end(model, last):
    """FSDP sums gradients over the ranks only after a step's last micro-batch."""
    if dist.is_initialized():
        model.set_requires_gradient_sync(last)


def accumulate(total, stats):
    """Add a micro-batch's {name: (sum, count)} to the step's."""
    for name, (value, count) in stats.items():
        old = total.get(name, (0.0, 0.0))
        total[name] = (old[0] + value.detach(), old[1] + count)


def optimizer_step(model, optimizer, rate, clip):
    """Clip the gradient to the norm `clip`, update, clear; returns the norm before clipping."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm.item()


def check_first_loss(loss, device):
    """Before the first update the model is the reference and the loss log 2; else a cache or a mask is wrong."""
    if abs(loss - math.log(2)) > (0.02 if device.type == "cuda" else 1e-4):
        die(f"the first step's preference loss is {loss:.6f}, not log 2: the cached reference is not this model's; "
            f"delete the folder cache beside --out and start again")


# Metrics


def open_log(args, first):
    """The metrics file, cut back to the step that training goes on from, and the tracker: rank 0's."""
    if rank() > 0:
        return None
    path, send = Path(args.out) / "metrics.jsonl", lambda metrics: None
    lines = path.read_text(encoding="utf-8").splitlines()[:first] if path.is_file() else []
    file = open(path, "w", encoding="utf-8")
    file.writelines(line + "\n" for line in lines)
    file.flush()
    if args.tracker == "tensorboard":
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            die("--tracker tensorboard: not installed; pip install tensorboard")
        writer = SummaryWriter(Path(args.out) / "tensorboard")
        send = lambda metrics: [writer.add_scalar(k, v, metrics["step"]) for k, v in metrics.items()] and writer.flush()
    elif args.tracker == "wandb":
        try:
            import wandb
        except ImportError:
            die("--tracker wandb: not installed; pip install wandb")
        wandb.init(project="sweet-rl", name=args.out, config=vars(args), resume="allow")
        send = lambda metrics: wandb.log(metrics, step=metrics["step"])
    return {"file": file, "send": send}


def progress(args, first, steps):
    return tqdm(total=steps, initial=first, desc=Path(args.out).name, disable=rank() > 0, mininterval=BAR_SECONDS,
                unit="step")


def means(total):
    """{name: (sum, count)} of this rank to {name: mean over all ranks}; one wait for the device."""
    names = list(total)
    flat = [torch.as_tensor(x, dtype=torch.float64).cpu() for name in names for x in total[name]]
    flat = torch.stack(flat).tolist() if flat else []
    total = {name: (flat[2 * i], flat[2 * i + 1]) for i, name in enumerate(names)}
    if world() > 1:
        everyone = [None] * world()
        dist.all_gather_object(everyone, total)
        total = {}
        for name, (value, count) in ((k, v) for part in everyone for k, v in part.items()):
            old = total.get(name, (0.0, 0.0))
            total[name] = (old[0] + value, old[1] + count)
    return {name: value / count for name, (value, count) in total.items() if count}


def step_metrics(step, rate, norm, total, tokens, flops, begun):
    """One step's line of metrics.jsonl: what is logged of the loss, and what it cost."""
    values = means({**total, "tokens": (torch.tensor(float(tokens)), 1 / world()),
                    "flops": (torch.tensor(float(flops)), 1 / world())})
    seconds = time.perf_counter() - begun
    tokens, flops = values.pop("tokens"), values.pop("flops")
    memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else \
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"step": step + 1, "lr": rate, "gradient_norm": norm, **values, "tokens": int(tokens),
            "seconds": round(seconds, 4), "tokens_per_second": round(tokens / seconds, 1),
            "tflops": round(flops / seconds / 1e12, 4), "memory_gib": round(memory / 2 ** 30, 3)}


def write_metrics(log, bar, metrics):
    """A line for metrics.jsonl, the tracker and the progress bar; a loss that is not a number stops the run."""
    if not math.isfinite(metrics["loss"]) or not math.isfinite(metrics["gradient_norm"]):
        die(f"step {metrics['step']}: the loss is {metrics['loss']}, the gradient's norm {metrics['gradient_norm']}; "
            f"nothing of this step was saved, the last checkpoint is intact; try a smaller --lr")
    if rank() == 0:
        log["file"].write(json.dumps(metrics) + "\n")
        log["file"].flush()
        log["send"](metrics)
        shown = ("loss", "accuracy", "tokens_per_second", "tflops", "memory_gib")
        bar.set_postfix({k: f"{metrics[k]:.4g}" for k in shown if k in metrics}, refresh=False)
        bar.update()


# ---- end of the shared block ----


# From candidates to pairs


def read_turns(args):
    """The candidates file: one record a turn, each with candidates that can be used."""
    records, unusable = [], Counter()
    for number, record in read_jsonl(args.input, ("prompt", "candidates"), "rollout.py --candidates 16"):
        where = f"{args.input}, line {number}"
        check_keys(record, where)
        check_messages(record["prompt"], where, "prompt")
        if not isinstance(record["candidates"], list):
            die(f"{where}: candidates should be a list, found {json.dumps(record['candidates'])[:60]}")
        good = [c for c in record["candidates"] if isinstance(c, dict) and (c.get("output") or c.get("output_ids"))]
        for candidate in good:
            response_of(candidate.get("output"), candidate.get("output_ids"), where)
        if len(good) < 2:
            unusable["turns with fewer than two candidates"] += 1
            continue
        records.append((where, {**record, "candidates": good}))
    for reason, count in unusable.items():
        say(f"{args.input}: {count} {reason} left out")
    if not records:
        die(f"{args.input}: no turn has two candidates to compare; run rollout.py --candidates 16 again")
    return records


def key_of(record):
    return [record.get("task_id"), record.get("sample"), record.get("turn")]


def score_candidates(records, args, device, portion=2000):
    """The advantages of every turn's candidates, a list for each record; kept on disk, portion by portion.

    What they depend on names the file: another critic, model or candidates file has a file of its own, and other DPO
    settings find theirs finished.
    """
    note, head = read_critic(args.critic)
    reference = reference_of(args.critic, note, args.model)
    name = fingerprint(Path(args.critic), reference and Path(reference), args.critic_reference,
                       Path(args.input).read_bytes())
    file = Path(args.out).parent / "cache" / f"advantages-{name}.jsonl"
    result = []
    if file.is_file():
        result = [json.loads(line)["advantages"] for line in file.read_text(encoding="utf-8").splitlines()]
        say(f"advantages of {len(result)} of {len(records)} turns: taken from {file}")
    barrier()
    with_c, pictures = note["context"] == "with-c", file.parent / "pictures"
    processor = load_processor(args.critic) if note.get("pictures") else None
    tokenizer = None if processor else load_tokenizer(args.critic)
    tokenised = lambda turns: [join_turns([turn])[0] for turn in tokenise(tokenizer, turns)]
    while len(result) < len(records):
        turns, blind = [], []
        part = records[len(result):len(result) + portion]
        for where, record in part:
            truth = ground_truth_of(record, where) if with_c else None
            if processor:  # c is a picture, and so is what a candidate shows
                if not all("output" in c for c in record["candidates"]):
                    die(f"{where}: a critic that sees pages needs the text of every candidate (output)")
                turns += [(record["prompt"], c["output"], truth) for c in record["candidates"]]
                continue
            prompt = put_c_in_front(record["prompt"], truth) if with_c else record["prompt"]
            responses = [response_of(c.get("output"), c.get("output_ids"), where) for c in record["candidates"]]
            turns += [(prompt, response) for response in responses]
            blind += [(record["prompt"], response) for response in responses]
        sequences = view_turns(turns, processor, pictures) if processor else tokenised(turns)
        check_lengths(sequences, context_of(args.critic), args.input, "--critic")
        other = tokenised(blind) if blind and with_c and args.critic_reference == "without-c" else None
        advantages = iter(critic_advantages(sequences, args.critic, reference, note, head, device, args, other,
                                            processor))
        fresh = [[round(next(advantages)[0], 7) for _ in record["candidates"]] for _, record in part]
        if rank() == 0:
            file.parent.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps({"key": key_of(record), "advantages": values}) + "\n"
                     for (_, record), values in zip(records, result + fresh)]
            with open(file.with_suffix(".part"), "w", encoding="utf-8") as out:
                out.writelines(lines)
            os.replace(file.with_suffix(".part"), file)
        result += fresh
    return result


def write_pairs(args, device):
    """Rank the candidates with the critic, draw the pairs, and write them in the conversational preference format."""
    file = Path(args.pairs)
    for flag, path in (("--in", args.input), ("--critic", args.critic), ("--model", args.model)):
        if file.exists() and Path(path).exists() and file.samefile(path):
            die(f"--pairs is {flag} ({file}); no stage changes its input, name another file with --pairs")
    check_folder(file.parent)
    if file.is_dir() or file.exists() and b'"chosen"' not in file.read_bytes().partition(b"\n")[0]:
        die(f"{file} exists and holds no pairs; name another file with --pairs")
    records = read_turns(args)
    advantages = score_candidates(records, args, device)
    pairs, left_out = [], Counter()
    for (where, record), scores in zip(records, advantages):
        # The draw depends on the turn and the seed alone, not on where in the file the turn stands.
        seed = [args.seed, zlib.crc32(json.dumps(key_of(record)).encode())]
        texts = [c.get("output") or str(c["output_ids"]) for c in record["candidates"]]
        drawn = draw_pairs(scores, texts, args.pairs_per_turn, np.random.default_rng(seed))
        left_out["text"] += min(args.pairs_per_turn, len(texts) // 2) - len(drawn)
        apart = [(i, j) for i, j in drawn if scores[i] > scores[j]]  # of equal ones neither is preferred
        left_out["advantage"] += len(drawn) - len(apart)
        for i, j in apart:
            pair = {"prompt": record["prompt"]}
            for side, k in (("chosen", i), ("rejected", j)):
                candidate = record["candidates"][k]
                pair[side] = [{"role": "assistant", "content": candidate.get("output", "")}]
                pair[f"advantage_{side}"] = scores[k]
                if candidate.get("output_ids"):
                    pair[f"{side}_ids"] = candidate["output_ids"]
            known = {"domain": (record.get("task") or {}).get("domain"), **record}
            pairs.append({**pair, **{k: v for k, v in known.items()
                                     if v is not None and k not in (*pair, "task", "candidates")}})
    for what, count in left_out.items():
        if count:
            say(f"{count} pairs left out: chosen and rejected have the same {what}")
    if not pairs and left_out["advantage"]:
        die(f"{args.input}: no pair could be drawn, {args.critic} gives the candidates of a turn the same advantage; "
            f"is it trained?")
    if not pairs:
        die(f"{args.input}: no pair could be drawn, the candidates of every turn are the same text; sample at a higher "
            f"temperature (rollout.py --temperature)")
    text = "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)
    if file.is_file() and not args.overwrite and file.read_text(encoding="utf-8") != text:
        die(f"{file} exists with other pairs (another seed, critic or candidates); use --overwrite, or another --pairs")
    barrier()
    if rank() == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_suffix(".part").write_text(text, encoding="utf-8")
        os.replace(file.with_suffix(".part"), file)
    say(f"wrote {len(pairs)} pairs of {len(records)} turns to {args.pairs}")
    barrier()


def pair_items(path, tokenizer):
    """A file of pairs as items: each side one sequence, scored on its last message."""
    records = read_jsonl(path, ("prompt", "chosen", "rejected"), "rollout.py --candidates 16")
    turns = []
    for number, record in records:
        where = f"{path}, line {number}"
        check_keys(record, where)
        check_messages(record["prompt"], where, "prompt")
        for side in ("chosen", "rejected"):
            try:
                text = record[side][-1]["content"]
            except (TypeError, LookupError):
                die(f"{where}: {side} should be a list with a message, found {json.dumps(record[side])[:60]}")
            if not isinstance(text, str):
                die(f"{where}: the content of {side} should be text, found {json.dumps(text)[:60]}")
            ids = record.get(f"{side}_ids")
            turns.append((record["prompt"], response_of(text or None if ids else text, ids, where)))
    sequences = [join_turns([turn])[0] for turn in tokenise(tokenizer, turns)]
    items = []
    for n, (_, record) in enumerate(records):
        group = (f"{record.get('task_id')} {record.get('sample')}", record["turn"]) if "turn" in record else (n, n)
        answers = tuple(ANSWER_MARK in record[side][-1]["content"] for side in ("chosen", "rejected"))
        items.append(Item([2 * n], [2 * n + 1], group, 1.0, answers))
    return items, sequences


# From trajectories to items: the baselines


def pair_trajectories(rewards, rule, min_gap=0.0):
    """Indices (chosen, rejected) of one task's trajectories, from their rewards."""
    if rule == "best-vs-lower":
        best = next((i for i, reward in enumerate(rewards) if reward >= 1.0), None)
        candidates = [] if best is None else [(best, j) for j in range(len(rewards))]
    else:
        candidates = [(i, j) for i in range(len(rewards)) for j in range(len(rewards))]
    return [(i, j) for i, j in candidates if rewards[i] > rewards[j] and rewards[i] - rewards[j] >= min_gap]


def read_trajectories(args):
    """The trajectories of --in that can be used, as (where, record, task); what cannot be used is counted."""
    needed = ("dialogue_history",) if args.method == "sft" else ("dialogue_history", "reward")
    maker = "generate_tasks.py --demonstrations" if args.method == "sft" else "evaluate.py"
    usable, unusable = [], Counter()
    for number, record in read_jsonl(args.input, needed, maker):
        where, reward = f"{args.input}, line {number}", record.get("reward")
        if args.method != "sft" and (reward is None or str(record.get("finish", "")).startswith("error")):
            unusable["no reward (the episode failed)"] += 1
        elif args.method != "sft" and not (isinstance(reward, (int, float)) and 0 <= reward <= 1):
            die(f"{where}: expected a reward between 0 and 1, found {reward!r}")
        elif not speaks(record, where):
            unusable["no assistant turn"] += 1
        elif args.method == "rejection-ft" and reward < args.min_reward:
            unusable[f"reward below --min-reward {args.min_reward:g}"] += 1
        else:
            task = record.get("task") or {}
            key = record.get("task_id") or task.get("task_id") or task.get("problem_description")
            usable.append((where, record, key))
    for reason, count in unusable.items():
        say(f"{args.input}: {count} records left out: {reason}")
    if not usable:
        die(f"{args.input}: no trajectory is left to train on; sample more trajectories, or lower --min-reward")
    return usable


def trajectory_items(args, tokenizer):
    """Pairs of whole trajectories (multi-turn-dpo), or single dialogues (rejection-ft, sft)."""
    usable = read_trajectories(args)
    rng = np.random.default_rng(args.seed)
    links = [(i, None) for i in range(len(usable))]
    if args.method == "multi-turn-dpo":
        tasks = {}
        for i, (_, _, task) in enumerate(usable):
            tasks.setdefault(task, []).append(i)
        links, without = [], 0
        for members in tasks.values():
            pairs = pair_trajectories([usable[i][1]["reward"] for i in members], args.pair_rule, args.min_gap)
            if args.pairs_per_task and len(pairs) > args.pairs_per_task:
                pairs = [pairs[k] for k in sorted(rng.permutation(len(pairs))[:args.pairs_per_task])]
            without += not pairs
            links += [(members[i], members[j]) for i, j in pairs]
        if without:
            say(f"{args.input}: {without} of {len(tasks)} tasks left out: no two trajectories make a pair")
        if not links:
            die(f"{args.input}: no task has two trajectories that can be compared ({len(tasks)} tasks); sample more "
                f"trajectories per task (rollout.py --samples), or try --pair-rule all")
    turns, counts = [], []
    for where, record, _ in usable:
        c = ground_truth_of(record, where) if rng.random() < args.with_c else None
        part = turns_of(record, where, c)
        turns += part
        counts.append(len(part))
    ids = iter(tokenise(tokenizer, turns))
    sequences, of_record = [], []
    for count in counts:
        joined = join_turns([next(ids) for _ in range(count)])
        of_record.append(list(range(len(sequences), len(sequences) + len(joined))))
        sequences += joined
    ends = lambda i: ANSWER_MARK in str(usable[i][1]["dialogue_history"][-1]["content"])
    return [Item(of_record[i], [] if j is None else of_record[j], (str(usable[i][2]), n), 1.0,
                 (ends(i), False if j is None else ends(j))) for n, (i, j) in enumerate(links)], sequences


def make_tiny(args):
    """Write the random tiny model into the cache beside the output; returns its folder."""
    records = read_jsonl(args.input, ("dialogue_history",), "generate_tasks.py --demonstrations")
    for number, record in records:
        speaks(record, f"{args.input}, line {number}")
    # c is the reference's source, and the critic reads it: its words are learnt like the dialogue's.
    texts = [m["content"] for _, r in records for m in r["dialogue_history"]]
    texts += [str(r["task"]["ground_truth"]) for _, r in records if (r.get("task") or {}).get("ground_truth")]
    texts += [put_c_in_front([{"role": "user", "content": ""}], "")[0]["content"], f"{ANSWER_MARK}\n"] * 100
    path = Path(args.out).parent / "cache" / f"tiny-{fingerprint(texts, args.tiny_vocabulary, args.seed)}"
    if rank() == 0 and not (path / "tokenizer.json").is_file():
        make_tiny_model(path, texts, args.tiny_vocabulary, args.seed)
    barrier()
    return str(path)


def main():
    args = parse_args()
    device = start_process_group()
    settings = settings_of(args, ("method", "input", "model", "beta", "nll", "critic", "pairs", "pairs_per_turn",
                                  "critic_reference", "pair_rule", "min_gap", "pairs_per_task", "min_reward", "with_c",
                                  "tiny_vocabulary"))
    inputs = {"--in": args.input, **({"--model": args.model} if args.model != "tiny" else {})}
    if args.method == "sweet":
        inputs |= {"--critic": args.critic, "--pairs": args.pairs}
    if finished_already(args, settings, inputs):
        say(f"{args.out} is finished already (--overwrite trains it again)")
        return finish()
    if args.model == "tiny":
        args.model = make_tiny(args)
    tokenizer = load_tokenizer(args.model)
    imitation = args.method in ("rejection-ft", "sft")
    if args.method == "sweet":
        where = args.input
        if "candidates" in read_jsonl(where, (), "rollout.py --candidates 16")[0][1]:
            write_pairs(args, device)
            where = args.pairs
        items, sequences = pair_items(where, tokenizer)
    else:
        items, sequences = trajectory_items(args, tokenizer)
    items, sequences = leave_out_long(items, sequences, args, args.input)
    check_lengths(sequences, context_of(args.model), args.input)
    say(f"{len(items)} {'dialogues' if imitation else 'pairs'}, {sum(len(s.ids) for s in sequences)} tokens")
    reference = None
    if not imitation:
        reference = reference_logps(args.model, sequences, device, args, Path(args.out).parent / "cache")
    model = load_model(args.model, device, args)
    steps = step_items(items, args)
    begin_output(args, settings)
    optimizer, first, log = continue_training(model, args, device, len(steps))
    loss_of = imitation_loss if imitation else preference_loss

    bar = progress(args, first, len(steps))
    for step in range(first, len(steps)):
        begun, total, tokens, flops = time.perf_counter(), {}, 0, 0
        parts, most = micro_batches(steps[step], sequences, args)
        # Preferences weigh every pair alike; imitation weighs every token alike.
        weight = len(steps[step])
        if imitation:
            weight = sum(len(sequences[i].scored) for item in steps[step] for i in item.chosen)
        for n, part in enumerate(parts):
            reduce_at_the_end(model, n == most - 1)
            batch = collate_items(part, sequences, reference, device, args)
            logps = model(batch)                                                                 # (N,)
            loss, stats = loss_of(logps, batch, part, args) if part else (0 * logps.sum(), {})
            # Averaged over the ranks by FSDP, so world() / weight makes it the mean over the step's pairs.
            (loss * world() / weight).backward()
            accumulate(total, stats)
            if part:
                tokens, flops = tokens + batch.tokens, flops + model.flops(batch)
        rate = learning_rate(step, len(steps), args.lr, args.warmup, args.final_lr)
        norm = optimizer_step(model, optimizer, rate, args.clip)
        metrics = step_metrics(step, rate, norm, total, tokens, flops, begun)
        if step == 0 and not imitation:
            check_first_loss(metrics["preference_loss"], device)
        write_metrics(log, bar, metrics)
        if stop_asked(device):
            leave(args, model, optimizer, step + 1, settings)
        if args.save_every and (step + 1) % args.save_every == 0 and step + 1 < len(steps):
            save_checkpoint(args, model, optimizer, step + 1, settings)

    save_model(model, tokenizer, args.out, args)
    played = Path("runs") / args.run / f"{Path(args.out).name}.test.trajectories.jsonl"  # each model has its own
    say(f"wrote the model to {args.out}; next: python rollout.py --split {'train' if args.method == 'sft' else 'test'} "
        f"--model {args.out} --run {args.run}" + f" --out {played}" * (args.method != "sft")
        + " --domain frontend" * (args.domain == "frontend"))
    finish()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:  # before the first step: there is nothing to save, and caches are whole or absent
        os._exit(130)
