"""Stage 2 of SWEET-RL: train the policy on its own turns, as the critic ranks them. Also trains the baselines.

--method sweet (the paper's). rollout.py --candidates 16 sampled 16 candidate actions at each turn of the offline
trajectories. The critic, which sees the training-time information c, gave each candidate its advantage (Eq. 3,
train_critic.py --score). The policy never sees c. It learns to prefer a random candidate from the upper half to a
random one from the lower half:

    J = -log sigmoid( beta' [log pi_phi(a+|o_t) - log pi_ref(a+|o_t)]
                    - beta' [log pi_phi(a-|o_t) - log pi_ref(a-|o_t)] )                                          (Eq. 4)

Eq. 4 sums over the action's tokens; Eq. 3 takes means. A small NLL term on the chosen action is added (--nll, Table 5).

--method multi-turn-dpo   The same loss on pairs of whole trajectories of one task, ordered by reward.
                          Log-probabilities are summed over all assistant tokens.
--method rejection-ft     Fine-tuning on the trajectories whose reward is at least --min-reward.
--method sft              Fine-tuning on all dialogues of --in (demonstrations). --model tiny starts from a small
                          random model and a tokenizer trained on the data. --with-c puts c in front of some of the
                          dialogues, so that a model trained from scratch can also be the critic's seed.

One pair a turn is drawn, never of identical texts; the release draws four, with replacement (--pairs-per-turn 4).

Reads   runs/RUN_NAME/train.ranked.jsonl (sweet; candidates with their `advantage`, which any program may write),
        train.scored.jsonl (baselines), demonstrations (sft), or pairs that were drawn before; the seed model
Writes  runs/RUN_NAME/policy/: the model in Hugging Face format, cost.json (what it cost), settings.json, metrics.jsonl,
        checkpoints/; sweet also runs/RUN_NAME/train.pairs.jsonl (with --out: OUT.pairs.jsonl).

    python train_policy.py                                              # one process, CPU or one GPU
    torchrun --nproc-per-node 8 train_policy.py --model meta-llama/Llama-3.1-8B-Instruct
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 train_policy.py   # each node
    python train_policy.py --method sft --model tiny --in data/backend/demonstrations.jsonl --out runs/default/base
"""
import hashlib
import inspect
import json
import time
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers

from lm import (
    accuracy, add_stats, begin_training, check_dialogue, checked_settings, checked_turn, collate, fill_defaults,
    finish, first_record_has, flag_parser, from_rank0, items_of, learning_rate, load_model, load_tokenizer, log,
    micro_batches, optimizer_step, pair_tasks, pair_trajectories, progress, put_c_in_front, rank, read_trajectories,
    save_checkpoint, save_model, say, scored_tokens, segment_sum, set_reference, start_process_group, step_items,
    step_metrics, tokenise, training_flags, turns_of, usable_items, world)
from records import ANSWER_MARK, atomic_write, check_path, die, hashed, number, read, refuse_idle, run_script

# ---- The mathematics


def dpo_loss(chosen, rejected, beta):
    """Eq. 4, per pair. chosen, rejected: (B,) log pi_phi - log pi_ref, summed over the action's tokens, in nats."""
    return -F.logsigmoid(beta * (chosen - rejected))


def preference_loss(logps, batch, items, args):
    """Eq. 4 plus the NLL term: the loss of each pair (B,), and what to log: {name: one value per pair or token}.

    logps: (N,) log-probabilities of the scored tokens under the policy. In batch (see lm.Batch), side 2i is item i's
    chosen action and side 2i + 1 its rejected one.
    """
    side = batch.side[batch.turn]                                                                # (N,)
    # Subtract the reference before summing: the difference of two long sums would lose digits.
    ratios = segment_sum(logps - batch.reference, side, batch.sides)                             # (2B,)
    sums = segment_sum(logps, side, batch.sides)
    lengths = segment_sum(torch.ones_like(logps), side, batch.sides)
    chosen = ratios[0::2]
    rejected = ratios[1::2]                                                                      # (B,) each
    preference = dpo_loss(chosen, rejected, args.beta)
    nll = -(sums / lengths)[0::2]
    losses = preference + args.nll * nll
    return losses, {
        "loss": losses, "preference_loss": preference, "nll": nll, "accuracy": accuracy(chosen, rejected),
        "reward_chosen": args.beta * chosen, "reward_rejected": args.beta * rejected,
        "logps_chosen": sums[0::2], "logps_rejected": sums[1::2],
        "length_chosen": lengths[0::2], "length_rejected": lengths[1::2],
        "distance": (logps - batch.reference).abs()}


def imitation_loss(logps, batch, items, args):
    """The negative log-likelihood of every assistant token (N,), and the same to log."""
    return -logps, {"loss": -logps}


def draw_pairs(advantages, texts, count, rng):
    """`count` pairs (chosen, rejected) of one turn's candidates: a random one of the upper half, one of the lower half.

    The halves are by advantage; ties keep the order of sampling. Pairs with identical texts or equal advantages teach
    nothing and are left out.
    """
    order = sorted(range(len(advantages)), key=lambda i: -advantages[i])
    half = len(order) // 2
    upper = rng.permutation(order[:half])
    lower = rng.permutation(order[len(order) - half:])
    pairs = []
    for i, j in zip(upper[:count].tolist(), lower[:count].tolist()):
        if texts[i] != texts[j] and advantages[i] > advantages[j]:
            pairs.append((i, j))
    return pairs


# ---- The stage

PREFERENCE_METHODS = ("sweet", "multi-turn-dpo")    # the others imitate


def main():
    args = parse_args()
    device = start_process_group()
    torch.manual_seed(args.seed)    # for weights that are drawn
    inputs = {"--in": args.input} | ({} if args.model == "tiny" else {"--model": args.model})
    settings = from_rank0(checked_settings, args, inputs, *METHODS[args.method]["deciding"])
    if settings is None:
        return finish()
    seed = make_seed(args)
    tokenizer = load_tokenizer(seed)
    items, cost, drawn_pairs = make_items(args, tokenizer)
    items = usable_items(items, seed, args)
    if args.method in PREFERENCE_METHODS:
        set_reference(load_model(seed, device, args), items, device, args)
    model = load_model(seed, device, args)
    if drawn_pairs:
        write_pairs(drawn_pairs, args.pairs)
    train(model, items, device, args, settings)
    save_model(model, tokenizer, seed, args, cost)
    say(f"wrote the model to {args.out}")
    finish()


def train(model, items, device, args, settings):
    """The training loop, from the newest checkpoint on. A step's loss is the mean over its pairs, or its tokens."""
    loss_function, weight_of = preference_loss, len
    if args.method not in PREFERENCE_METHODS:
        loss_function, weight_of = imitation_loss, scored_tokens
    steps = step_items(items, args)
    optimizer, first_step = begin_training(model, args, settings)
    bar = progress(range(len(steps)), Path(args.out).name, "step", first_step)
    for step in bar:
        start = time.perf_counter()
        torch.manual_seed(hashed(args.seed, step, rank()))    # for modules that draw
        sums, counts = Counter(), Counter()    # what to log
        weight = weight_of(steps[step])
        for part, counted in micro_batches(steps[step], args):
            batch = collate(part, device, args.pack)
            logps = model(batch)                                                                 # (N,)
            losses, stats = loss_function(logps, batch, part, args)
            # FSDP averages gradients over the ranks; world() turns the average into a sum.
            (losses.sum() * counted * world() / weight).backward()
            if counted:
                add_stats(sums, counts, stats, batch.tokens)
        rate = learning_rate(step, len(steps), args.lr)
        norm = optimizer_step(model, optimizer, rate)
        log(step_metrics(step, rate, norm, sums, counts, start, device, args), bar, args.out)
        save_checkpoint(args, model, optimizer, step + 1)


def make_items(args, tokenizer):
    """The items of --in, their cost, and the pairs if they were drawn here (--method sweet), else None."""
    if args.method != "sweet":
        return *trajectory_items(args, tokenizer), None
    if from_rank0(first_record_has, args.input, "chosen"):
        if args.pairs_per_turn > 1:
            die(f"--pairs-per-turn does nothing with a file of pairs ({args.input}); leave it out")
        pairs = read_pairs(args.input)
        return pair_items(surest(pairs, args), tokenizer), cost_of(pairs), None
    from_rank0(check_path, args.pairs, [args.input, args.model])
    pairs, cost = make_pairs(args)
    pairs = surest(pairs, args)
    return pair_items(pairs, tokenizer), cost, pairs


# ---- From candidates to pairs


def key_of(record):
    return [record.get("task_id"), record.get("sample"), record.get("turn")]


def rng_of(record, *seed):
    """A random generator that depends only on the turn and the seed, not on the turn's place in the file."""
    return np.random.default_rng([*seed, zlib.crc32(json.dumps(key_of(record)).encode())])


def cost_of(records):
    """The cost behind a file of candidates or pairs, each turn, episode and ranking counted once.

    A critic's cost contains that of the episodes it was trained on, so they are counted only where no critic ranked.
    """
    ranked = any(record.get("ranked_by", {}).get("cost") for record in records)
    costs = {}    # {what was paid for: its cost}
    for n, record in enumerate(records):
        task, sample, turn = key_of(record)
        ranked_by = record.get("ranked_by", {})
        critic = ranked_by.get("fingerprint")
        costs["turn", n if turn is None else (task, sample, turn)] = record.get("cost")    # others' may name no turn
        costs["candidates", critic] = ranked_by.get("candidates_cost")    # of pairs: see make_pairs
        if ranked:
            costs["critic", critic] = ranked_by.get("cost")
        else:
            costs["episode", task, sample] = record.get("episode_cost")
    return sum(map(Counter, costs.values()), Counter())


def make_pairs(args):
    """Draw pairs from the ranked candidates of --in: (records in the conversational preference format, their cost)."""
    pairs, turns = [], []
    single = equal = 0
    for turn in read(args.input, "ranked", each=checked_turn):
        candidates = turn.pop("candidates")    # the pairs keep the turn's other keys
        turn.pop("task", None)
        turns.append(turn)
        scores = [candidate["advantage"] for candidate in candidates]
        texts = [candidate.get("output") or str(candidate.get("output_ids")) for candidate in candidates]
        drawn = draw_pairs(scores, texts, args.pairs_per_turn, rng_of(turn, args.seed))
        for i, j in drawn:
            pair = {"prompt": turn["prompt"], **side_of_pair(candidates[i], "chosen"),
                    **side_of_pair(candidates[j], "rejected"), **turn}
            pairs.append({name: value for name, value in pair.items() if value is not None})
        single += len(candidates) < 2
        equal += min(args.pairs_per_turn, len(candidates) // 2) - len(drawn)
    if single:
        say(f"{args.input}: {single} turns with fewer than two candidates left out")
    if equal:
        say(f"{args.input}: {equal} pairs with the same text or the same advantage left out")
    if not pairs:
        die(f"{args.input}: no pair could be drawn: each turn has one candidate (rollout.py --candidates 16 samples "
            f"more), or its candidates have the same advantage (is the critic trained?) or the same text")
    say(f"{len(pairs)} pairs from {len(turns) - single} turns")
    spent = sum((Counter(turn.get("cost")) for turn in turns), Counter())
    for pair in pairs:    # whoever trains on a part of them pays for all: turns without a pair were sampled too
        pair.pop("cost", None)
        pair["ranked_by"] = {**pair.get("ranked_by", {}), "candidates_cost": spent}
    return pairs, cost_of(turns)


def surest(pairs, args):
    """The share --surest of the pairs, those whose advantages differ most."""
    if args.surest == 1:
        return pairs
    if any(pair.get("advantage_chosen") is None for pair in pairs):
        die(f"{args.input}: --surest needs pairs with advantages, and some have none")
    ranked = sorted(pairs, key=lambda pair: pair["advantage_rejected"] - pair["advantage_chosen"])
    return ranked[:max(1, round(args.surest * len(ranked)))]


def side_of_pair(candidate, side):
    """A candidate as one side of a pair."""
    ids = candidate.get("output_ids")
    reply = {"role": "assistant", "content": candidate.get("output") or ""}
    return {side: [{**reply, "cut": True} if candidate.get("cut") else reply],
            f"advantage_{side}": candidate["advantage"],
            f"{side}_ids": np.array(ids, np.int32) if ids else None}    # a list would take ten times the memory


def write_pairs(pairs, path):
    """Write the pairs to a file, once the run is sure to start. Then empty the list: each pair has a whole prompt."""
    if rank() == 0:
        with atomic_write(path) as part, open(part, "w", encoding="utf-8", errors="backslashreplace") as file:
            for pair in pairs:
                file.write(json.dumps(pair, ensure_ascii=False, default=np.ndarray.tolist) + "\n")
    say(f"wrote {path}")
    pairs.clear()


def read_pairs(path):
    return list(read(path, "pair", each=checked_pair))


def checked_pair(pair):
    """The pair, if the loss can read it. Raises ValueError otherwise."""
    for side in ("chosen", "rejected"):
        if not pair[side] or pair[side][-1]["role"] != "assistant":
            raise ValueError(f"{side} must end with an assistant message")
        if pair[side][:len(pair["prompt"])] == pair["prompt"]:
            raise ValueError(f"{side} repeats the prompt; it must contain only what follows the prompt")
        check_dialogue(pair["prompt"] + pair[side], f"the prompt with {side}", pair.get("tools"))
    return pair


def pair_items(pairs, tokenizer):
    """Pairs as items. Each side is a record with one turn, which is scored on its last message."""
    sides = []
    for pair in pairs:
        for side in ("chosen", "rejected"):
            *earlier, reply = pair[side]
            reply = {**reply, "output_ids": pair.get(f"{side}_ids", ())}
            sides.append({**pair, "turns": [(pair["prompt"] + earlier, reply, None)]})
    return items_of(list(zip(sides[0::2], sides[1::2])), tokenizer, tokenise)


# ---- From trajectories to items: the baselines


def trajectory_items(args, tokenizer):
    """Pairs of whole trajectories (multi-turn-dpo) or single dialogues (rejection-ft, sft), and their cost."""
    sft = args.method == "sft"
    tasks, cost = read_trajectories(args.input, "demonstration" if sft else "scored", sft and args.with_c > 0)
    if args.method == "multi-turn-dpo":
        return items_of(pair_tasks(tasks, args), tokenizer, tokenise), cost
    records = [record for group in tasks.values() for record in group]
    if args.method == "rejection-ft":
        least = args.min_reward
        if least is None:
            least = 1.0
            if args.domain == "frontend":
                least = float(np.quantile([record["reward"] for record in records], 0.75))
        kept = [record for record in records if record["reward"] > least - 1e-6]    # rewards may be rounded means
        say(f"{args.input}: {len(records) - len(kept)} records left out: reward below {least:g} (--min-reward)")
        if not kept:
            die(f"{args.input}: no trajectory is left to train on; sample more trajectories, or lower --min-reward")
        records = kept
    elif args.with_c:
        rng = np.random.default_rng(args.seed)
        for record in records:
            if rng.random() >= args.with_c:
                record["turns"] = turns_of(record)
    return items_of([(record, None) for record in records], tokenizer, tokenise), cost


# ---- The tiny model


def make_seed(args):
    """The folder of the seed model. The tiny model is made once, in the cache next to the output."""
    if args.model != "tiny":
        return args.model
    texts = []
    for group in read_trajectories(args.input, "demonstration")[0].values():
        for record in group:
            texts += [message["content"] for message in record["dialogue_history"]]
            # The critic also reads c, so the tokenizer must learn its words too.
            texts.append((record.get("task") or {}).get("ground_truth") or "")
    c_prompt = put_c_in_front([{"role": "user", "content": ""}], "")[0]["content"]
    texts += [c_prompt, f"{ANSWER_MARK}\n"] * 100
    made_from = [texts, 2048, args.seed]    # 2048: size of the vocabulary
    code = [inspect.getsource(function) for function in (tiny_tokenizer, make_tiny_model)]
    name = hashlib.sha256(repr(made_from + code).encode()).hexdigest()[:16]
    path = Path(args.out).parent / "cache" / f"tiny-{name}"
    # tokenizer.json is written last: it marks the model as complete.
    from_rank0(lambda: (path / "tokenizer.json").is_file() or make_tiny_model(path, *made_from))
    return str(path)


def tiny_tokenizer(texts, vocabulary):
    """A byte-level BPE tokenizer trained on the data, with its own chat template.

    A piece is a word with its leading space, a complete number, a line break with its indentation, or a run of
    punctuation; in a web page also a tag up to its classes, or one class (`bg-blue-500`). Copying a frequent piece is
    then a single decision. The template leaves out system messages, which a model trained from scratch could not follow
    anyway.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    html = r'<[/!]?[A-Za-z][^<>\n]*?(?:>| class=")|">| ?(?:bg|text|p|w|h|flex|grid|gap|justify)(?:-[a-z\d]+)+|'
    pieces = html + r"\n[ \t]*| ?[^\W\d]+| ?\d+(?:\.\d+)?| ?[^\s\w]+|[^\S\n]+"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pieces), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"], clean_up_tokenization_spaces=False)
    fast.chat_template = (
        "{% for m in messages %}{% if m['role'] != 'system' %}"
        "{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")
    return fast


def make_tiny_model(path, texts, vocabulary, seed):
    """Write a small random Llama and a tokenizer trained on `texts` to `path`, in Hugging Face format."""
    tokenizer = tiny_tokenizer(texts, vocabulary)
    torch.manual_seed(seed)
    # Initialised with a spread of 0.08 instead of 0.02: attention then starts sharp enough to learn copying early.
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=352, num_hidden_layers=3,
        num_attention_heads=4, max_position_embeddings=4096, tie_word_embeddings=False,
        initializer_range=0.08, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id))
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


# ---- The command line

OF_METHODS = {    # the flags that only some methods read
    "--pairs-per-turn": ("sweet",), "--shuffle": ("sweet",), "--surest": ("sweet",), "--min-reward": ("rejection-ft",),
    "--with-c": ("sft",), "--pair-rule": ("multi-turn-dpo",), "--min-gap": ("multi-turn-dpo",),
    "--beta": PREFERENCE_METHODS, "--nll": PREFERENCE_METHODS}
METHODS = {    # defaults (the paper's Table 5, which has no sft), epochs for backend and frontend; the deciding code
    "sweet": dict(input="train.ranked.jsonl", out="policy", epochs=(1, 1), batch_size=8,
                  deciding=(preference_loss, draw_pairs, rng_of, surest)),
    "multi-turn-dpo": dict(input="train.scored.jsonl", out="multi-turn-dpo", epochs=(4, 8), batch_size=8,
                           deciding=(preference_loss, pair_trajectories)),
    "rejection-ft": dict(input="train.scored.jsonl", out="rejection-ft", epochs=(4, 8), batch_size=32,
                         deciding=(imitation_loss,)),
    "sft": dict(input=None, out="base", epochs=(1, 1), batch_size=32, deciding=(imitation_loss,))}


def parse_args():
    parser = flag_parser("Train the policy (SWEET-RL, stage 2), or a baseline.")
    share = number(least=0, most=1)
    flag = parser.add_argument_group("method and paths").add_argument
    flag("--method", choices=METHODS, default="sweet", help="training method")
    flag("--in", dest="input", help="ranked candidates or pairs (default: runs/RUN_NAME/train.ranked.jsonl; baselines: "
         "train.scored.jsonl there; sft: data/DOMAIN/demonstrations.jsonl)")
    flag("--model", help="seed model and reference: folder or hub name; sft: or tiny (default: runs/RUN_NAME/base)")
    flag("--out", help="folder of the policy (default: runs/RUN_NAME/policy for sweet, runs/RUN_NAME/METHOD for the "
         "baselines, runs/RUN_NAME/base for sft)")
    flag = parser.add_argument_group("for some methods").add_argument
    flag("--pairs-per-turn", type=number(int, least=1), default=1,
         help="sweet: pairs drawn at each turn, if --in is ranked; the released code draws 4")
    flag("--shuffle", choices=["pairs", "turns"], default="turns", help="sweet: turns: keep the pairs of a turn in one "
         "step where possible (half the work with --pairs-per-turn 4); pairs: shuffle single pairs (released code)")
    flag("--surest", type=number(above=0, most=1), default=1, metavar="SHARE",
         help="sweet: keep this share of the critic's pairs, those whose advantages differ most")
    flag("--min-reward", type=share, help="rejection-ft: smallest reward to keep (default: 1.0; frontend: the upper "
         "quartile of the rewards)")
    flag("--with-c", type=share, help="sft: fraction of the dialogues with c in front (default: 0; --model tiny: 0.33)")
    training_flags(parser, lr="2e-7; --model tiny: 0.001", epochs="1; multi-turn-dpo and rejection-ft: 4, frontend: 8",
                   batch_size="8; rejection-ft and sft: 32")
    args = parser.parse_args()
    run, method = Path("runs") / args.run_name, METHODS[args.method]
    idle = [flag for flag, methods in OF_METHODS.items() if args.method not in methods]
    refuse_idle(idle, f"with --method {args.method}")
    model = vars(args).get("model")
    if model is None and args.method == "sft":
        die("--method sft needs --model: a folder or hub name, or tiny to start from a small random model")
    if model == "tiny" and args.method != "sft":
        die(f"--model tiny is a random model, for --method sft only; --method {args.method} needs a trained model")
    return fill_defaults(args, {
        "input": f"{run}/{method['input']}" if method["input"] else f"data/{args.domain}/demonstrations.jsonl",
        "model": f"{run}/base", "out": f"{run}/{method['out']}", "min_reward": None,
        "pairs": f"{Path(vars(args).get('out', run / 'train'))}.pairs.jsonl",
        "lr": 1e-3 if model == "tiny" else 2e-7,    # a random model learns with a larger rate
        "epochs": method["epochs"][args.domain == "frontend"],
        "batch_size": method["batch_size"], "with_c": 0.33 if model == "tiny" else 0.0})


if __name__ == "__main__":
    run_script(main)
