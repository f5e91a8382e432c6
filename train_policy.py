"""Stage 2 of SWEET-RL: train the policy on its own turns, as the critic ranks them; and the baselines.

--method sweet (the paper's). At each turn of the offline trajectories 16 candidate actions were sampled (rollout.py
--candidates 16). The critic, which sees the training-time information c, gives each its advantage

    A(o_t, a_t, c) = 1/L sum_l [ log pi_theta(a_t^l | o_t, a_t^<l, c) - log pi_ref(a_t^l | o_t, a_t^<l, c) ]     (Eq. 3)

and a random one of the upper half is preferred to a random one of the lower half by the policy, which never sees c:

    J = -log sigmoid( beta' [log pi_phi(a+|o_t) - log pi_ref(a+|o_t)] - beta' [log pi_phi(a-|o_t) - log pi_ref(a-|o_t)] )   (Eq. 4)

Log-probabilities in Eq. 4 are sums over the action's tokens; the advantages of Eq. 3 are means. To this comes a small
NLL term on the chosen action (--nll, the paper's Table 5).

--method multi-turn-dpo   DPO on pairs of whole trajectories of one task, ordered by reward: log-probabilities are summed
                          over all assistant tokens.
--method rejection-ft     Fine-tuning on the trajectories whose reward is at least --min-reward.
--method sft              Fine-tuning on all dialogues of --in (demonstrations); with --model tiny it starts from a small
                          random model and a tokenizer trained on the data. --with-c shows part of them with c in front,
                          so that a model learnt from nothing can also be the critic's seed.

Where it departs from the released code: the critic's reference sees c as the critic does (--critic-reference without-c
is theirs), and one pair a turn is drawn (--pairs-per-turn 4 is theirs).

Reads   runs/{run}/train.candidates.jsonl and runs/{run}/critic/ (sweet), runs/{run}/train.scored.jsonl (baselines), or a
        file of demonstrations (sft); the seed model. --in may also be a file of pairs, which is trained on as it is.
Writes  runs/{run}/train.pairs.jsonl (sweet) and runs/{run}/policy/: the model in Hugging Face format, metrics.jsonl,
        checkpoints/. The critic's scores are kept in runs/{run}/cache/, so other DPO settings do not score again.

    python train_policy.py                                              # one process, CPU or one GPU
    torchrun --nproc-per-node 8 train_policy.py --model meta-llama/Llama-3.1-8B-Instruct
    python train_policy.py --method sft --model tiny --in data/backend/demonstrations.jsonl --out runs/default/base
"""
import argparse
import hashlib
import json
import math
import os
import resource
import shutil
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

METHODS = {  # the settings of the paper's Table 5 (backend): what a method's flags default to
    "sweet": dict(input="train.candidates.jsonl", out="policy", lr=2e-7, epochs=1, batch_size=8),
    "multi-turn-dpo": dict(input="train.scored.jsonl", out="multi-turn-dpo", lr=2e-7, epochs=4, batch_size=8),
    "rejection-ft": dict(input="train.scored.jsonl", out="rejection-ft", lr=2e-7, epochs=4, batch_size=32),
    "sft": dict(input="demonstrations.jsonl", out="base", lr=2e-7, epochs=1, batch_size=32),
}


def parse_args():
    parser = argparse.ArgumentParser(description="Train the policy (SWEET-RL, stage 2), or a baseline.")
    # paths
    parser.add_argument("--run", default="default", help="name of the run: the defaults below lie in runs/RUN (default default)")
    parser.add_argument("--method", choices=list(METHODS), default="sweet", help="how to train (default sweet)")
    parser.add_argument("--in", dest="input", help="candidates, scored trajectories, demonstrations or pairs (default: the "
                                                   "method's file in runs/RUN)")
    parser.add_argument("--model", help="seed model, also the reference: folder or hub name, or (sft) tiny (default runs/RUN/base)")
    parser.add_argument("--critic", help="the critic that ranks the candidates (default runs/RUN/critic)")
    parser.add_argument("--pairs", help="where sweet writes its pairs (default runs/RUN/train.pairs.jsonl)")
    parser.add_argument("--out", help="folder of the policy (default runs/RUN/ policy, multi-turn-dpo, rejection-ft or base)")
    # preference optimisation
    parser.add_argument("--beta", type=float, default=0.1, help="inverse temperature of Eq. 4 (default 0.1)")
    parser.add_argument("--nll", type=float, default=0.01, help="weight of the chosen side's mean NLL per token (default 0.01)")
    # sweet
    parser.add_argument("--pairs-per-turn", type=int, default=1, help="pairs drawn at each turn (default 1; released code 4)")
    parser.add_argument("--critic-reference", choices=["with-c", "without-c"], default="with-c",
                        help="whether Eq. 3's reference sees c (default with-c; released code without-c)")
    # multi-turn-dpo and rejection-ft
    parser.add_argument("--pair-rule", choices=["best-vs-lower", "all"], default="best-vs-lower",
                        help="multi-turn-dpo: a task's first fully passing trajectory against each that scores lower, or every "
                             "two whose rewards differ (default best-vs-lower)")
    parser.add_argument("--min-gap", type=float, default=0.0, help="smallest difference of rewards in a pair (default 0)")
    parser.add_argument("--pairs-per-task", type=int, default=0, help="most pairs of one task, a random choice; 0: all (default 0)")
    parser.add_argument("--min-reward", type=float, default=1.0, help="rejection-ft: the reward to keep from (default 1.0)")
    # sft
    parser.add_argument("--with-c", type=float, default=0.0, help="sft: share of dialogues shown with c in front (default 0)")
    parser.add_argument("--tiny-vocabulary", type=int, default=2048, help="tokens of the tiny model's tokenizer (default 2048)")
    training_flags(parser, lr=None, epochs=None, batch_size=None)
    args = parser.parse_args()
    run = Path("runs") / args.run
    defaults = METHODS[args.method]
    args.lr = args.lr or (1e-3 if args.model == "tiny" else defaults["lr"])  # a random model needs thousandths
    args.epochs = args.epochs or defaults["epochs"]
    args.batch_size = args.batch_size or defaults["batch_size"]
    args.input = args.input or str(run / defaults["input"])
    args.out = args.out or str(run / defaults["out"])
    args.critic = args.critic or str(run / "critic")
    args.pairs = args.pairs or str(run / "train.pairs.jsonl")
    if args.model is None and args.method == "sft":
        die("--method sft needs --model: a folder or hub name, or tiny to start from a small random model")
    if args.model == "tiny" and args.method != "sft":
        die(f"--model tiny starts from nothing and goes with --method sft only; --method {args.method} needs a trained model")
    args.model = args.model or str(run / "base")
    return args


# ---- shared block: the same lines stand in train_critic.py and train_policy.py, held identical by a test ----
BAR_SECONDS = 0.5 if sys.stderr.isatty() else 30  # a log file gets a line now and then
TABLE_5 = "the method's in the paper's Table 5"
ANSWER_MARK = "I WANT TO ANSWER:"
OUTPUT_MARK = "OUTPUT:"


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


# Reading records


def read_jsonl(path, required=(), maker="the stage that writes it"):
    """All records of a JSON lines file as (line number, record); each must be an object with the `required` keys."""
    if not Path(path).is_file():
        die(f"{path}: no such file; run {maker} first, or name another with --in")
    records = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError:
                torn = "" if line.endswith("\n") else " (the line is torn: the run that wrote it was killed; run it again)"
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
    if not isinstance(history, list) or not all(isinstance(m, dict) and "role" in m and "content" in m for m in history):
        die(f"{where}: dialogue_history should be a list of messages with role and content")
    if not any(m["role"] == "user" for m in history) or history[0]["role"] == "assistant":
        die(f"{where}: the dialogue should begin with what the user asks")
    messages = [{"role": m["role"], "content": m["content"]} for m in history]
    if record.get("system"):
        messages = [{"role": "system", "content": record["system"]}] + messages
    if ground_truth is not None:
        messages = put_c_in_front(messages, ground_truth)
    skipped = len(messages) - len(history)
    return [(messages[:t + skipped], history[t].get("output_ids") or history[t].get("output") or history[t]["content"])
            for t in range(len(history)) if history[t]["role"] == "assistant"]


# From messages to token sequences


def load_tokenizer(path):
    from transformers import AutoTokenizer
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        die(f"{path}: no tokenizer could be loaded from there ({str(error).splitlines()[0]})")
    if not tokenizer.chat_template:
        die(f"{path}: the tokenizer has no chat template; use an instruction-tuned model, or add chat_template.jinja to it")
    return tokenizer


def render(tokenizer, messages):
    """The prompt text up to where the assistant begins to speak."""
    from jinja2.exceptions import TemplateError
    try:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except TemplateError:
        if messages[0]["role"] != "system":
            raise
    # Some templates (Gemma's) refuse a system message: its text then opens what the user says.
    merged = {**messages[1], "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return render(tokenizer, [merged] + messages[2:])


def tokenise(tokenizer, turns):
    """[(prompt messages, response text or ids)] to [(prompt ids, response ids)], each an int32 array."""
    result = []
    for start in range(0, len(turns), 1024):
        part = turns[start:start + 1024]
        prompts = tokenizer([render(tokenizer, messages) for messages, _ in part], add_special_tokens=False)["input_ids"]
        texts = [response if isinstance(response, str) else "" for _, response in part]
        spoken = tokenizer(texts, add_special_tokens=False)["input_ids"]
        for prompt, text_ids, (_, response) in zip(prompts, spoken, part):
            ids = text_ids + [tokenizer.eos_token_id] if isinstance(response, str) else response
            result.append((np.array(prompt, np.int32), np.array(ids, np.int32)))
    return result


class Sequence(NamedTuple):
    """One path from the first token to the last, and which of its tokens are scored."""
    ids: np.ndarray     # (T,) int32
    scored: np.ndarray  # (N,) indices into ids of the tokens whose log-probability counts: the responses
    turn: np.ndarray    # (N,) index of the assistant turn that each scored token belongs to


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


# Batches


class Batch(NamedTuple):
    """What one forward pass computes; N scored tokens in M turns on S sides (a pair has two sides)."""
    ids: torch.Tensor           # (R, T) token ids: R rows
    positions: torch.Tensor     # (R, T) position of each token in its own sequence
    source: torch.Tensor        # (N,) flat index of the token that predicts the scored one
    own: torch.Tensor           # (N,) flat index of the scored token itself
    target: torch.Tensor        # (N,) id of the scored token
    turn: torch.Tensor          # (N,) which of the M turns it belongs to
    side: torch.Tensor          # (M,) which of the S sides each turn belongs to
    sides: int                  # S
    reference: torch.Tensor     # (N,) cached log-probability under the reference (zeros where there is none)
    tokens: int                 # tokens computed, without padding


def collate(sequences, side_of, sides, device, reference=None):
    """Sequences, and the side that each belongs to, as one batch of right-padded rows.

    Rows are padded on the right only, where causal attention never looks: no mask is needed.
    """
    length = max(len(s.ids) for s in sequences)
    ids = np.zeros((len(sequences), length), np.int64)
    for row, s in enumerate(sequences):
        ids[row, :len(s.ids)] = s.ids
    own = np.concatenate([s.scored + row * length for row, s in enumerate(sequences)])
    target = np.concatenate([s.ids[s.scored] for s in sequences]).astype(np.int64)
    key = np.concatenate([s.turn + side * 100_000 for s, side in zip(sequences, side_of)]).astype(np.int64)
    turns, turn = np.unique(key, return_inverse=True)
    cached = np.zeros(len(own), np.float32) if reference is None else np.concatenate(reference)
    to = lambda array: torch.from_numpy(array).to(device, non_blocking=True)
    return Batch(ids=to(ids), positions=torch.arange(length, device=device).expand(len(sequences), length),
                 source=to(own - 1), own=to(own), target=to(target), turn=to(turn), side=to(turns // 100_000),
                 sides=sides, reference=to(cached), tokens=sum(len(s.ids) for s in sequences))


def empty_batch(device):
    """A forward pass that counts for nothing: keeps ranks in step when one has fewer micro-batches."""
    return collate([Sequence(np.zeros(2, np.int32), np.array([1]), np.array([0]))], [0], 1, device)


# Log-probabilities


class TokenLogps(torch.autograd.Function):
    """Log-probability of each target from its hidden state, through the output head in chunks.

    The (N, V) logits exist for one chunk at a time, in float32; with `keep` they stay for the backward pass, otherwise
    they are computed again there.  logits = cap * tanh(scale * (h W^T + b) / cap), where cap and scale are given.
    """

    @staticmethod
    def logits_of(hidden, weight, bias, scale, cap):
        logits = (hidden @ weight.T).float()  # (n, V)
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
        ctx.save_for_backward(hidden, weight, bias, target, *normalisers, *kept)
        ctx.settings = scale, cap, chunk, len(normalisers)
        return torch.cat(logps)  # (N,)

    @staticmethod
    def backward(ctx, gradient):
        scale, cap, chunk, count = ctx.settings
        hidden, weight, bias, target, *rest = ctx.saved_tensors
        normalisers, kept = rest[:count], rest[count:]
        d_hidden, d_weight, d_bias = [], None, None
        for i, (h, t, g) in enumerate(zip(hidden.split(chunk), target.split(chunk), gradient.split(chunk))):
            logits = kept[i].clone() if kept else TokenLogps.logits_of(h, weight, bias, scale, cap)
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


def tree_attention(module, query, key, value, attention_mask, layout=None, scaling=None, sliding_window=None, softcap=None,
                   **kwargs):
    """The attention of every layer, called by transformers: query (R, H, T, D), key and value (R, K, T, D)."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    length = query.shape[2]
    mask = None
    if sliding_window is not None and length > sliding_window:
        back = torch.arange(length, device=query.device)[:, None] - torch.arange(length, device=query.device)
        mask = (back >= 0) & (back < sliding_window)
    if softcap is None:
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling)
    else:
        scores = softcap * torch.tanh(query @ key.transpose(2, 3) * scaling / softcap)
        if mask is None:
            mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
        out = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value
    return out.transpose(1, 2), None


class Scorer(nn.Module):
    """A causal language model that gives one number for each scored token, and never a (B, T, V) tensor.

    Without a head: its log-probability. With one: the head's value at the token (regression and value critics).
    """

    def __init__(self, lm, head=None, head_bytes=2 ** 29):
        super().__init__()
        self.lm, self.head, self.head_bytes = lm, head, head_bytes

    def forward(self, batch):
        hidden = self.lm.base_model(input_ids=batch.ids, position_ids=batch.positions, attention_mask=None,
                                    use_cache=False, layout=None).last_hidden_state
        hidden = hidden.flatten(0, 1)  # (R * T, D)
        if self.head is not None:
            return self.head(hidden[batch.own].float())[:, 0]  # (N,)
        config, output = self.lm.config, self.lm.get_output_embeddings()
        scale = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1.0)
        vocabulary = output.weight.shape[0]
        chunk = max(1, min(len(batch.source), self.head_bytes // 4 // (4 * vocabulary)))
        keep = torch.is_grad_enabled() and 4 * len(batch.source) * vocabulary <= self.head_bytes
        return TokenLogps.apply(hidden[batch.source], output.weight, output.bias, batch.target, scale,
                                getattr(config, "final_logit_softcapping", None), chunk, keep)


# Process group, model, saving


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


def load_model(path, device, args, head=None, train=True):
    """A Scorer around the causal language model at `path`: float32 parameters, sharded over the ranks with FSDP2."""
    from transformers import AttentionInterface, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar
    disable_progress_bar()
    AttentionInterface.register("tree", tree_attention)
    try:
        lm = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="tree")
    except (OSError, ValueError) as error:
        die(f"{path}: no causal language model could be loaded from there ({str(error).splitlines()[0]})")
    for module in lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model = Scorer(lm, head)
    if dist.is_initialized():
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) \
            if device.type == "cuda" else MixedPrecisionPolicy()
        for module in model.modules():
            if type(module).__name__ in (lm._no_split_modules or ()):
                fully_shard(module, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    model.to(device)
    return model.train(train)


def save_model(model, tokenizer, path, extra=None):
    """Write the model in Hugging Face format to `path`: into a folder beside it first, then moved file by file."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    lm = model.lm
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)) \
        if dist.is_initialized() else model.state_dict()
    if rank() == 0:
        tied = set(lm.all_tied_weights_keys) if hasattr(lm, "all_tied_weights_keys") else set()
        weights = {k.removeprefix("lm."): v for k, v in state.items() if k.startswith("lm.")}
        weights = {k: v for k, v in weights.items() if k not in tied}
        part = Path(path).with_name(Path(path).name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        lm.save_pretrained(part, state_dict=weights)
        tokenizer.save_pretrained(part)
        if extra:
            (part / "critic.json").write_text(json.dumps(extra, indent=1))
        Path(path).mkdir(parents=True, exist_ok=True)
        for file in sorted(part.iterdir(), key=lambda f: (f.name == "config.json", f.name)):  # its presence says: complete
            os.replace(file, Path(path) / file.name)
        part.rmdir()
    barrier()


def fingerprint(*parts):
    """A short name for settings, arrays of data and model folders: what a cache of them is filed under."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            files = sorted(f for f in part.iterdir() if f.suffix in (".safetensors", ".json", ".bin")) if part.is_dir() else []
            part = [str(part.resolve())] + [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files
                                            if "settings" not in f.name]
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()[:16]


# Passes without gradients


@torch.no_grad()
def score_all(model, sequences, device, args, title):
    """One number for each scored token of each sequence: a list of float32 arrays. Ranks share the work."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].ids))
    rows, row = [], []
    for i in order:
        if row and (len(row) + 1) * len(sequences[i].ids) > args.micro_tokens:
            rows.append(row)
            row = []
        row.append(i)
    rows.append(row)
    mine = rows[rank()::world()]
    result = {}
    for n in tqdm(range(-(-len(rows) // world())), desc=title, disable=rank() > 0, mininterval=BAR_SECONDS, unit="batch"):
        part = mine[n] if n < len(mine) else []
        batch = collate([sequences[i] for i in part], [0] * len(part), 1, device) if part else empty_batch(device)
        values = model(batch).float().cpu().numpy()
        ends = np.cumsum([len(sequences[i].scored) for i in part])
        result.update(zip(part, np.split(values, ends[:-1]) if part else []))
    if world() > 1:
        gathered = [None] * world()
        dist.all_gather_object(gathered, result)
        result = {i: v for part in gathered for i, v in part.items()}
    return [result[i] for i in range(len(sequences))]


def reference_logps(path, sequences, device, args, cache):
    """Log-probabilities under the reference, once: from the cache, or one pass that fills it. No model stays in memory."""
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


# The parts of the training loop


class Item(NamedTuple):
    """What one step counts as one: a pair (chosen and rejected), or a single dialogue (no rejected)."""
    chosen: list    # indices of sequences
    rejected: list
    group: tuple    # items of one group share a prompt
    label: float = 1.0
    answers: tuple = (False, False)  # whether chosen and rejected give the final answer


def step_items(items, args):
    """The items of each step: a new random order every epoch, the same on any number of ranks."""
    steps = []
    for epoch in range(args.epochs):
        order = np.random.default_rng([args.seed, epoch]).permutation(len(items))
        steps += [[items[i] for i in order[s:s + args.batch_size]] for s in range(0, len(order), args.batch_size)]
    return steps[:args.max_steps] if args.max_steps else steps


def micro_batches(items, sequences, args):
    """This rank's micro-batches of a step, and how many every rank runs (the most that any rank needs)."""
    cost = lambda item: max(len(sequences[i].ids) for i in item.chosen + item.rejected)
    ordered = sorted(items, key=cost)
    most, mine = 0, []
    for r in range(world()):
        parts, part = [], []
        for item in ordered[r::world()]:
            width = sum(len(x.chosen) + len(x.rejected) for x in part + [item])
            if part and (width * cost(item) > args.micro_tokens or (args.micro_batch and len(part) >= args.micro_batch)):
                parts.append(part)
                part = []
            part.append(item)
        parts += [part] if part else []
        most = max(most, len(parts))
        mine = parts if r == rank() else mine
    return mine + [[]] * (most - len(mine)), most


def collate_items(items, sequences, reference, device):
    """Items as one batch: side 2i is item i's chosen, 2i + 1 its rejected."""
    if not items:
        return empty_batch(device)
    index = [(i, 2 * n + s) for n, item in enumerate(items) for s, side in enumerate((item.chosen, item.rejected)) for i in side]
    return collate([sequences[i] for i, _ in index], [side for _, side in index], 2 * len(items), device,
                   [reference[i] for i, _ in index] if reference is not None else None)


def learning_rate(step, steps, peak, warmup=0.03, final=0.1):
    """Linear warm-up over the first 3% of the steps, then a cosine down to a tenth (both flags)."""
    warm = max(1, round(warmup * steps))
    if step < warm:
        return peak * (step + 1) / warm
    progress = (step - warm) / max(1, steps - warm)
    return peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress)))


def segment_sum(values, index, count):
    """Sum the values that have the same index: (N,), (N,) -> (count,)."""
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add_(0, index, values)


def save_checkpoint(args, model, optimizer, step, settings):
    """Everything that the next step depends on, into a folder of its own that appears only once it is complete."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    weights, moments = get_state_dict(model, optimizer)
    folder = Path(args.out) / "checkpoints"
    final, part = folder / f"step-{step:06d}", folder / f"step-{step:06d}.part"
    if rank() == 0:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    barrier()
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=str(part), no_dist=not dist.is_initialized())
    if rank() == 0:
        sizes = {f.name: f.stat().st_size for f in sorted(part.iterdir())}
        (part / "step.json").write_text(json.dumps({"step": step, "settings": settings, "sizes": sizes}))
        shutil.rmtree(final, ignore_errors=True)
        os.replace(part, final)
        for old in sorted(folder.glob("step-??????"))[:-args.keep]:
            shutil.rmtree(old)
    barrier()


def load_checkpoint(folder, model, optimizer):
    """Continue from the newest complete checkpoint in `folder`; returns its step, or 0 if there is none."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
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
        dcp.load(state, checkpoint_id=str(path), no_dist=not dist.is_initialized())
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return note["step"]
    return 0


def prepare_output(args, settings):
    """Compare the settings with those that the output was begun with; returns True if it is already finished."""
    out = Path(args.out)
    if args.overwrite and rank() == 0:
        shutil.rmtree(out, ignore_errors=True)
    barrier()
    file = out / "settings.json"
    if file.is_file():
        before = json.loads(file.read_text())
        differences = [f"{k} was {before.get(k)!r}, now {v!r}" for k, v in settings.items() if before.get(k) != v]
        if differences:
            die(f"{out} was begun with other settings ({'; '.join(differences)}); use --overwrite, or another --out")
    elif out.is_dir() and any(out.iterdir()):
        die(f"{out} exists and was not written by this script; use --overwrite, or another --out")
    if args.resume and not any((out / "checkpoints").glob("step-??????")) and not (out / "config.json").is_file():
        die(f"--resume: there is no checkpoint in {out}/checkpoints to continue from")
    barrier()
    if rank() == 0:
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings, indent=1))
    barrier()
    return (out / "config.json").is_file()


def training_flags(parser, lr, epochs, batch_size):
    """The flags that both training scripts have."""
    # optimisation
    parser.add_argument("--lr", type=float, default=lr, help=f"peak learning rate of AdamW (default {lr or TABLE_5})")
    parser.add_argument("--epochs", type=int, default=epochs, help=f"passes over the data (default {epochs or TABLE_5})")
    parser.add_argument("--batch-size", type=int, default=batch_size,
                        help=f"pairs (or dialogues) per optimizer step, over all ranks (default {batch_size or TABLE_5})")
    parser.add_argument("--max-steps", type=int, default=0, help="stop after so many steps; 0: all (default 0)")
    parser.add_argument("--warmup", type=float, default=0.03, help="share of the steps with rising rate (default 0.03)")
    parser.add_argument("--final-lr", type=float, default=0.1, help="where the cosine ends, times --lr (default 0.1)")
    parser.add_argument("--betas", type=float, nargs=2, default=[0.9, 0.95], help="AdamW's averages (default 0.9 0.95)")
    parser.add_argument("--weight-decay", type=float, default=0.0, help="AdamW's weight decay (default 0)")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient (default 1.0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of every random choice (default 0)")
    # memory and speed
    parser.add_argument("--micro-tokens", type=int, default=16384,
                        help="most tokens in one forward pass; the rest of a step is accumulated (default 16384)")
    parser.add_argument("--micro-batch", type=int, default=0,
                        help="most pairs in one forward pass; 0: as many as --micro-tokens allow (default 0)")
    parser.add_argument("--max-length", type=int, default=0,
                        help="leave out, and count, dialogues of more tokens; 0: none, and one that does not fit into the "
                             "model's context is an error (default 0)")
    # checkpoints
    parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints; 0: none (default 200)")
    parser.add_argument("--keep", type=int, default=2, help="checkpoints to keep (default 2)")
    parser.add_argument("--resume", action="store_true",
                        help="insist on a checkpoint to continue from (without it: continue if there is one, else start)")
    parser.add_argument("--overwrite", action="store_true", help="start again and replace the output")


def settings_of(args, names):
    """The flags that decide the result: what a continued run must share with the run it continues."""
    names = (*names, "lr", "epochs", "batch_size", "max_steps", "warmup", "final_lr", "betas", "weight_decay", "clip", "seed",
             "max_length")
    return {name: getattr(args, name) for name in names}


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
    return [item._replace(chosen=move(item.chosen), rejected=move(item.rejected)) for item in short], [sequences[i] for i in used]


def new_head(path):
    """A linear head that starts at zero, so that every trajectory starts with the same score."""
    from transformers import AutoConfig
    head = nn.Linear(AutoConfig.from_pretrained(path).hidden_size, 1)
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
    if note["weights"]:
        head = nn.Linear(len(note["weights"]["weight"]), 1)
        with torch.no_grad():
            head.weight.copy_(torch.tensor([note["weights"]["weight"]]))
            head.bias.copy_(torch.tensor(note["weights"]["bias"]))
    return note, head


def critic_advantages(sequences, critic, reference, note, head, device, args, reference_sequences=None):
    """Each turn's advantage (Eq. 3), one list for each sequence. First the reference, then the critic: never both in memory.

    `reference_sequences`: the same responses after another prompt, for a reference that does not see c.
    """
    values = score_all(load_model(critic, device, args, head, train=False), sequences, device, args, "critic")
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


def drift(ratio, on_chosen):
    """How far the model is from the reference, per token: an estimate of KL(reference || model), never negative.

    ratio: (N,) log pi_theta - log pi_ref of tokens that the reference sampled; on_chosen: (N,) bool.
    """
    kl = ratio.exp() - 1 - ratio
    return {"kl_chosen": (kl[on_chosen].sum(), on_chosen.sum()), "kl_rejected": (kl[~on_chosen].sum(), (~on_chosen).sum())}


def reduce_at_the_end(model, last):
    """FSDP sums gradients over the ranks only after a step's last micro-batch."""
    if dist.is_initialized():
        model.set_requires_gradient_sync(last)


def progress(args, first, steps):
    return tqdm(total=steps, initial=first, desc=Path(args.out).name, disable=rank() > 0, mininterval=BAR_SECONDS, unit="step")


def step_metrics(step, rate, norm, total, tokens, begun, model):
    """One step's line of metrics.jsonl."""
    values = means({**total, "tokens": (torch.tensor(float(tokens)), 1 / world())})
    seconds = time.perf_counter() - begun
    tokens = values.pop("tokens")
    flops = 6 * tokens * sum(p.numel() for p in model.parameters())
    memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else \
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"step": step + 1, "lr": rate, "gradient_norm": norm, **values, "tokens": int(tokens), "seconds": round(seconds, 4),
            "tokens_per_second": round(tokens / seconds, 1), "tflops": round(flops / seconds / 1e12, 4),
            "memory_gib": round(memory / 2 ** 30, 3)}


def write_metrics(log, bar, metrics):
    """A line for metrics.jsonl and a step on the progress bar; a loss that is not a number stops the run."""
    if not math.isfinite(metrics["loss"]) or not math.isfinite(metrics["gradient_norm"]):
        die(f"step {metrics['step']}: the loss is {metrics['loss']} and the gradient's norm {metrics['gradient_norm']}; "
            f"the last checkpoint is intact, try a smaller --lr")
    if log is not None:
        log.write(json.dumps(metrics) + "\n")
        log.flush()
        shown = {k: f"{metrics[k]:.4g}" for k in ("loss", "accuracy", "tokens_per_second", "memory_gib") if k in metrics}
        bar.set_postfix(shown, refresh=False)
        bar.update()


def check_first_loss(loss, device):
    """Before the first update the model is the reference, so the loss is log 2: anything else is a wrong cache or mask."""
    if abs(loss - math.log(2)) > (0.02 if device.type == "cuda" else 1e-4):
        die(f"the first step's preference loss is {loss:.6f}, not log 2: the cached reference is not this model's; "
            f"delete the folder cache beside --out and start again")


def finish():
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def context_of(lm_path):
    from transformers import AutoConfig
    try:
        return getattr(AutoConfig.from_pretrained(lm_path), "max_position_embeddings", 0) or 0
    except (OSError, ValueError) as error:
        die(f"{lm_path}: no model could be loaded from there ({str(error).splitlines()[0]})")


def continue_training(model, args, device, steps):
    """The optimizer, the step to go on from, and the metrics file cut back to that step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=tuple(args.betas), weight_decay=args.weight_decay,
                                  fused=device.type == "cuda", foreach=device.type != "cuda")
    out = Path(args.out)
    first = load_checkpoint(out / "checkpoints", model, optimizer)
    if first:
        say(f"continuing {out} after step {first} of {steps}")
    log = None
    if rank() == 0:
        path = out / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines()[:first] if path.is_file() else []
        log = open(path, "w", encoding="utf-8")
        log.writelines(line + "\n" for line in lines)
        log.flush()
    return optimizer, first, log


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
    """Add a micro-batch's {name: (sum, count)} to the step's."""
    for name, (value, count) in stats.items():
        old = total.get(name, (0.0, 0.0))
        total[name] = (old[0] + value.detach(), old[1] + count)


def means(total):
    """{name: (sum, count)} of this rank to {name: mean over all ranks}; one wait for the device."""
    names = list(total)
    flat = torch.stack([torch.as_tensor(x, dtype=torch.float64).cpu() for name in names for x in total[name]]).tolist() \
        if names else []
    total = {name: (flat[2 * i], flat[2 * i + 1]) for i, name in enumerate(names)}
    if world() > 1:
        everyone = [None] * world()
        dist.all_gather_object(everyone, total)
        total = {}
        for name, (value, count) in ((k, v) for part in everyone for k, v in part.items()):
            old = total.get(name, (0.0, 0.0))
            total[name] = (old[0] + value, old[1] + count)
    return {name: value / count for name, (value, count) in total.items() if count}


# ---- end of the shared block ----


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


# From candidates to pairs


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


def read_turns(args):
    """The candidates file: one record a turn, each with candidates that can be used."""
    records, unusable = [], Counter()
    for number, record in read_jsonl(args.input, ("prompt", "candidates"), "rollout.py --candidates 16"):
        where = f"{args.input}, line {number}"
        good = [c for c in record["candidates"] if isinstance(c, dict) and (c.get("output") or c.get("output_ids"))]
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


def score_candidates(records, args, device):
    """The advantages of every turn's candidates, a list for each record; kept on disk as they are made.

    What they depend on names the file: another critic, model or candidates file has a file of its own, and other DPO
    settings find theirs finished.
    """
    note, head = read_critic(args.critic)
    name = fingerprint(Path(args.critic), Path(args.model), args.critic_reference, Path(args.input).read_bytes())
    file = Path(args.out).parent / "cache" / f"advantages-{name}.jsonl"
    kept = []
    if file.is_file():
        kept = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
        say(f"advantages of {len(kept)} of {len(records)} turns: taken from {file}")
    if len(kept) == len(records):
        return [line["advantages"] for line in kept]
    tokenizer = load_tokenizer(args.critic)
    with_c = note["context"] == "with-c"
    turns, blind = [], []
    for where, record in records[len(kept):]:
        prompt = put_c_in_front(record["prompt"], ground_truth_of(record, where)) if with_c else record["prompt"]
        responses = [c.get("output_ids") or c["output"] for c in record["candidates"]]
        turns += [(prompt, response) for response in responses]
        blind += [(record["prompt"], response) for response in responses]
    whole = lambda pairs: [s for turn in tokenise(tokenizer, pairs) for s in join_turns([turn])]
    sequences = whole(turns)
    check_lengths(sequences, context_of(args.critic), args.input, "--critic")
    other = whole(blind) if with_c and args.critic_reference == "without-c" else None
    advantages = iter(critic_advantages(sequences, args.critic, args.model, note, head, device, args, other))
    lines = [{"key": key_of(r), "advantages": [round(next(advantages)[0], 7) for _ in r["candidates"]]}
             for _, r in records[len(kept):]]
    if rank() == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        with open(part, "w", encoding="utf-8") as out:
            out.writelines(json.dumps(line) + "\n" for line in kept + lines)
        os.replace(part, file)
    return [line["advantages"] for line in kept + lines]


def write_pairs(args, device):
    """Rank the candidates with the critic, draw the pairs, and write them in the conversational preference format."""
    records = read_turns(args)
    advantages = score_candidates(records, args, device)
    pairs, identical = [], 0
    for (where, record), scores in zip(records, advantages):
        # The draw depends on the turn and the seed alone, not on where in the file the turn stands.
        seed = [args.seed, zlib.crc32(json.dumps(key_of(record)).encode())]
        texts = [c.get("output") or str(c["output_ids"]) for c in record["candidates"]]
        drawn = draw_pairs(scores, texts, args.pairs_per_turn, np.random.default_rng(seed))
        identical += min(args.pairs_per_turn, len(texts) // 2) - len(drawn)
        for i, j in drawn:
            pair = {"prompt": record["prompt"]}
            for side, k in (("chosen", i), ("rejected", j)):
                candidate = record["candidates"][k]
                pair[side] = [{"role": "assistant", "content": candidate.get("output", "")}]
                pair[f"advantage_{side}"] = scores[k]
                if candidate.get("output_ids"):
                    pair[f"{side}_ids"] = candidate["output_ids"]
            pairs.append({**pair, **{k: record[k] for k in ("task_id", "sample", "turn") if k in record}})
    if identical:
        say(f"{identical} pairs left out: chosen and rejected have the same text")
    if not pairs:
        die(f"{args.input}: no pair could be drawn, the candidates of every turn are the same text; sample at a higher "
            f"temperature (rollout.py --temperature)")
    if rank() == 0:
        part = Path(args.pairs).with_suffix(".part")
        part.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)
        os.replace(part, args.pairs)
    say(f"wrote {len(pairs)} pairs of {len(records)} turns to {args.pairs}")
    barrier()


def pair_items(path, tokenizer):
    """A file of pairs as items: each side one sequence, scored on its last message."""
    records = read_jsonl(path, ("prompt", "chosen", "rejected"), "train_policy.py --method sweet")
    turns = [(record["prompt"], record.get(f"{side}_ids") or record[side][-1]["content"])
             for _, record in records for side in ("chosen", "rejected")]
    sequences = [join_turns([turn])[0] for turn in tokenise(tokenizer, turns)]
    answers = [tuple(ANSWER_MARK in record[side][-1]["content"] for side in ("chosen", "rejected")) for _, record in records]
    groups = [(str(record.get("task_id")), record.get("sample"), record.get("turn")) for _, record in records]
    return [Item([2 * n], [2 * n + 1], groups[n], 1.0, answers[n]) for n in range(len(records))], sequences


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
        elif not any(m.get("role") == "assistant" for m in record["dialogue_history"] if isinstance(m, dict)):
            unusable["no assistant turn"] += 1
        elif args.method == "rejection-ft" and reward < args.min_reward:
            unusable[f"reward below --min-reward {args.min_reward:g}"] += 1
        else:
            task = record.get("task") or {}
            usable.append((where, record, record.get("task_id") or task.get("task_id") or task.get("problem_description")))
    for reason, count in unusable.items():
        say(f"{args.input}: {count} records left out: {reason}")
    if not usable:
        die(f"{args.input}: no trajectory is left to train on; sample more (rollout.py --samples), or lower --min-reward")
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
    return [Item(of_record[i], [] if j is None else of_record[j], (str(usable[i][2]),), 1.0,
                 (ends(i), False if j is None else ends(j))) for i, j in links], sequences


def make_tiny(args):
    """Write the random tiny model beside the output and train that."""
    path = Path(args.out).with_name(Path(args.out).name + "-random")
    records = read_jsonl(args.input, ("dialogue_history",), "generate_tasks.py --demonstrations")
    if rank() == 0 and (args.overwrite or not (path / "config.json").is_file()):
        # c is the reference's source, and the critic reads it: its words are learnt like the dialogue's.
        texts = [str(m.get("content", "")) for _, r in records for m in r["dialogue_history"]]
        texts += [str(r["task"]["ground_truth"]) for _, r in records if (r.get("task") or {}).get("ground_truth")]
        texts += [f"In light that the final answer is: {ANSWER_MARK}"]
        make_tiny_model(path, texts, args.tiny_vocabulary, args.seed)
    barrier()
    return str(path)


def main():
    args = parse_args()
    device = start_process_group()
    settings = settings_of(args, ("method", "input", "model", "beta", "nll", "critic", "pairs", "pairs_per_turn",
                                  "critic_reference", "pair_rule", "min_gap", "pairs_per_task", "min_reward", "with_c",
                                  "tiny_vocabulary"))
    if prepare_output(args, settings):
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
    optimizer, first, log = continue_training(model, args, device, len(steps))
    loss_of = imitation_loss if imitation else preference_loss

    bar = progress(args, first, len(steps))
    for step in range(first, len(steps)):
        begun, total, tokens = time.perf_counter(), {}, 0
        parts, most = micro_batches(steps[step], sequences, args)
        # Preferences weigh every pair alike; imitation weighs every token alike.
        weight = sum(len(sequences[i].scored) for item in steps[step] for i in item.chosen) if imitation else len(steps[step])
        for n, part in enumerate(parts):
            reduce_at_the_end(model, n == most - 1)
            batch = collate_items(part, sequences, reference, device)
            logps = model(batch)                                                                 # (N,)
            loss, stats = loss_of(logps, batch, part, args) if part else (0 * logps.sum(), {})
            # Averaged over the ranks by FSDP, so world() / weight makes it the mean over the step's pairs.
            (loss * world() / weight).backward()
            accumulate(total, stats)
            tokens += batch.tokens if part else 0
        rate = learning_rate(step, len(steps), args.lr, args.warmup, args.final_lr)
        norm = optimizer_step(model, optimizer, rate, args.clip)
        metrics = step_metrics(step, rate, norm, total, tokens, begun, model)
        if step == 0 and not imitation:
            check_first_loss(metrics["preference_loss"], device)
        write_metrics(log, bar, metrics)
        if args.save_every and (step + 1) % args.save_every == 0 and step + 1 < len(steps):
            save_checkpoint(args, model, optimizer, step + 1, settings)

    save_model(model, tokenizer, args.out)
    say(f"wrote the model to {args.out}; next: python rollout.py --split {'train' if args.method == 'sft' else 'test'} "
        f"--model {args.out} --run {args.run}")
    finish()


if __name__ == "__main__":
    main()
