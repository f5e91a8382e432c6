"""Stage 2 of SWEET-RL: train the policy on its own turns, as the critic ranks them; and the baselines.

--method sweet (the paper's). At each turn of the offline trajectories 16 candidate actions were sampled (rollout.py
--candidates 16). The critic, which sees the training-time information c, gives each its advantage (Eq. 3, in
train_critic.py), and a random one of the upper half is preferred to a random one of the lower half by the policy, which
never sees c:

    J = -log sigmoid( beta' [log pi_phi(a+|o_t) - log pi_ref(a+|o_t)]
                    - beta' [log pi_phi(a-|o_t) - log pi_ref(a-|o_t)] )                                          (Eq. 4)

Log-probabilities in Eq. 4 are sums over the action's tokens; the advantages of Eq. 3 are means. To this comes a small
NLL term on the chosen action (--nll, the paper's Table 5). Other losses: --loss ipo, --loss length-normalised-dpo.

--method multi-turn-dpo   The same loss on pairs of whole trajectories of one task, ordered by reward:
                          log-probabilities are summed over all assistant tokens.
--method rejection-ft     Fine-tuning on the trajectories whose reward is at least --min-reward.
--method sft              Fine-tuning on all dialogues of --in (demonstrations); with --model tiny it starts from a
                          small random model and a tokenizer trained on the data. --with-c shows part of them with c
                          in front, so that a model learnt from nothing can also be the critic's seed.

Where it departs from the released code: the critic's reference sees c as the critic does (--critic-reference without-c
is theirs), one pair a turn is drawn (--pairs-per-turn 4 is theirs), without replacement, and none of identical text.

Reads   runs/RUN_NAME/train.candidates.jsonl and runs/RUN_NAME/critic/ (sweet), train.scored.jsonl (baselines), or
        demonstrations (sft); the seed model. --in may also be a file of pairs, which is trained on as it is.
Writes  runs/RUN_NAME/train.pairs.jsonl (sweet; with --out OUT.pairs.jsonl) and runs/RUN_NAME/policy/: the model in
        Hugging Face format, cost.json (what it took), settings.json, metrics.jsonl, checkpoints/. The critic's
        advantages are kept in runs/RUN_NAME/cache/, so other DPO settings do not score again.

    python train_policy.py                                              # one process, CPU or one GPU
    torchrun --nproc-per-node 8 train_policy.py --model meta-llama/Llama-3.1-8B-Instruct
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 train_policy.py   # each node
    python train_policy.py --method sft --model tiny --in data/backend/demonstrations.jsonl --out runs/default/base

The engine (trees, attention, log-probabilities, sharding, checkpoints) is train_critic.py's.
"""
import argparse
import json
import os
import shutil
import time
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers

from sandbox import (
    ANSWER_MARK, check_path, die, fingerprint, first_line, monte_carlo_returns, number, parse_response, read, whole)
from train_critic import (
    Critic, Item, accumulate, adder, begin_training, candidate_turns, check_dialogue, checked_settings, collate_items,
    digest, evaluate, finish, first_tasks, from_rank0, half_squared_log_ratio, holds, items_of, join_turns,
    learning_rate, load_model, load_tokenizer, micro_batches, open_log, optimizer_step, pair_tasks, parse_with_defaults,
    portion_size, put_c_in_front, rank, read_trajectories, reference_logps, response_of, save_model, save_or_stop, say,
    segment_sum, split_items, start_process_group, step_items, step_metrics, tokenise, training_flags, turns_of, world)

# ---- The mathematics


def dpo_loss(chosen, rejected, beta):
    """Eq. 4, per pair. chosen, rejected: (B,) log pi_phi - log pi_ref, summed over the action's tokens, in nats."""
    return -F.logsigmoid(beta * (chosen - rejected))


def ipo_loss(chosen, rejected, beta):
    """IPO (arXiv 2310.12036, Eq. 17), per pair: the margin is drawn to 1 / (2 beta) instead of to infinity."""
    return (chosen - rejected - 1 / (2 * beta)) ** 2


LOSSES = {"dpo": dpo_loss, "ipo": ipo_loss, "length-normalised-dpo": dpo_loss}


def preference_loss(logps, batch, items, args):
    """--loss with the NLL term, summed over a micro-batch's pairs, and what is logged: {name: (sum, count)}.

    logps: (N,) log-probabilities of the scored tokens under the policy.
    """
    of_token = batch.side[batch.turn]                                                            # (N,)
    # The reference is subtracted token by token, before anything is summed: two long sums would lose digits.
    ratio = logps - batch.reference
    ratios = segment_sum(ratio, of_token, batch.sides)                                           # (2B,)
    sums = segment_sum(logps, of_token, batch.sides)
    lengths = segment_sum(torch.ones_like(logps), of_token, batch.sides)
    if args.loss == "length-normalised-dpo":
        ratios = ratios / lengths
    chosen, rejected = ratios[0::2], ratios[1::2]                                                # (B,) each
    preference = LOSSES[args.loss](chosen, rejected, args.beta)
    nll = -(sums / lengths)[0::2]
    losses = preference + args.nll * nll
    answers = torch.tensor([item.answers for item in items], dtype=torch.float64)                # (B, 2)
    stats = {"loss": losses, "preference_loss": preference, "nll": nll,
             "accuracy": (chosen > rejected).float() + 0.5 * (chosen == rejected).float(),
             "reward_chosen": args.beta * chosen, "reward_rejected": args.beta * rejected,
             "logps_chosen": sums[0::2], "logps_rejected": sums[1::2],
             "length_chosen": lengths[0::2], "length_rejected": lengths[1::2],
             "answers_chosen": answers[:, 0], "answers_rejected": answers[:, 1]}
    stats = {name: (value.sum(), len(items)) for name, value in stats.items()}
    return losses.sum(), stats | half_squared_log_ratio(ratio, of_token % 2 == 0)


def imitation_loss(logps, batch, items, args):
    """Negative log-likelihood of every assistant token, summed; the step divides by its tokens."""
    return -logps.sum(), {"loss": (-logps.sum(), len(logps)), "length": (len(logps), len(items))}


def draw_pairs(advantages, texts, count, rng):
    """`count` pairs (chosen, rejected) of one turn's candidates: a random one of the upper half, one of the lower half.

    The halves are by advantage, ties in the order sampled. Pairs of identical text teach nothing and are left out.
    """
    order = sorted(range(len(advantages)), key=lambda i: -advantages[i])
    half = len(order) // 2
    upper, lower = rng.permutation(order[:half]), rng.permutation(order[len(order) - half:])
    return [(int(i), int(j)) for i, j in zip(upper[:count], lower) if texts[int(i)] != texts[int(j)]]


# ---- The training loop


def main():
    args = parse_args()
    device = start_process_group()
    inputs = {"--in": args.input, **({} if args.model == "tiny" else {"--model": args.model})}
    ranked = args.method == "sweet" and not from_rank0(lambda: holds(args.input, "chosen"))  # else --in holds the pairs

    def check():
        if ranked:
            inputs["--critic"] = args.critic
            check_path(args.pairs, inputs.values())
            if Path(args.pairs).exists() and not holds(args.pairs, "chosen"):
                die(f"{args.pairs} exists and holds no pairs; name another file with --pairs")
        return checked_settings(args, inputs, unheeded(args), {"--pairs": args.pairs} if ranked else {})

    settings = from_rank0(check)
    if settings is None:
        return finish()
    seed = make_seed(args)
    tokenizer = load_tokenizer(seed)
    if ranked:
        pairs, cost = make_pairs(args, device)
        items, sequences, _ = pair_items(map(with_sides, pairs), tokenizer)
    elif args.method == "sweet":
        items, sequences, cost = pair_items(read_pairs(args.input, args.limit_tasks), tokenizer)
    else:
        items, sequences, cost = trajectory_items(args, tokenizer)
    items, held_out, sequences = split_items(items, sequences, seed, args)
    imitation = args.method in ("rejection-ft", "sft")
    loss_of = imitation_loss if imitation else preference_loss
    reference = None if imitation else reference_logps(seed, sequences, device, args)
    model = load_model(seed, device, args)
    steps = step_items(items, args)
    optimizer, first, best = begin_training(model, args, settings)
    if ranked:
        write_pairs(pairs, args)
        del pairs  # with every turn's whole prompt
    log = open_log(args, first, len(steps))

    for step in range(first, len(steps)):
        begun, total, parts = time.perf_counter(), {}, micro_batches(steps[step], sequences, args, args.micro_batch)
        # Preferences weigh every pair alike; imitation weighs every token alike.
        weight = len(steps[step]) if not imitation else sum(
            len(sequences[i].scored) for item in steps[step] for i in item.chosen)
        for part in parts:
            batch = collate_items(part, sequences, reference, device, args)
            logps = model(batch)                                                                 # (N,)
            loss, stats = loss_of(logps, batch, part, args) if part else (0 * logps.sum(), {})
            # FSDP averages over the ranks: times world() it is a sum, and over the weight the mean of the step.
            (loss * world() / weight).backward()
            accumulate(total, stats | model.work(batch) if part else {})
        rate = learning_rate(step, len(steps), args.lr, args.warmup, args.final_lr)
        norm = optimizer_step(model, optimizer, rate, args.clip)
        metrics = step_metrics(step, rate, norm, total, begun, device, args)
        if held_out and ((step + 1) % args.held_out_every == 0 or step + 1 == len(steps)):
            metrics |= evaluate(model, held_out, sequences, reference, loss_of, device, args)
        log(metrics)
        best = save_or_stop(args, model, optimizer, metrics, best)

    save_model(model, tokenizer, seed, args, cost)
    say(f"wrote the model to {args.out}")
    finish()


# ---- From candidates to pairs


def key_of(record):
    return [record.get("task_id"), record.get("sample"), record.get("turn")]


def rng_of(record, *seed):
    """Random numbers that depend on the turn and the seed alone, not on where in the file the turn stands."""
    return np.random.default_rng([*seed, zlib.crc32(json.dumps(key_of(record)).encode())])


def costs_of(records):
    """(what turns cost, what the episodes that they are of cost) of candidates or pairs, each counted once."""
    turns = {n if record.get("turn") is None else tuple(key_of(record)): record.get("cost") or {}
             for n, record in enumerate(records)}  # pairs that others made name no turn: each counts as one of its own
    episodes = {tuple(key_of(record)[:2]): record.get("episode_cost") or {} for record in records}
    return tuple(sum(map(Counter, costs.values()), Counter()) for costs in (turns, episodes))


def read_candidates(args):
    """The turns of --in with two candidates: [(record, [(prompt messages, response, c or None)])]; and costs_of all."""
    records = read(args.input, "candidates", each=lambda record: (record, candidate_turns(record)))
    found = list(first_tasks(records, args.limit_tasks, lambda r: r[0].get("task_id")))
    usable = [(record, turns) for record, turns in found if len(turns) > 1]
    if len(usable) < len(found):
        say(f"{args.input}: {len(found) - len(usable)} turns with fewer than two candidates left out")
    if not usable:
        die(f"{args.input}: no turn has two candidates to compare; run rollout.py --candidates 16 again")
    own = fingerprint(args.model)
    others = {r.get("model") for r, _ in usable if (r.get("fingerprints") or {}).get("model", own) != own}
    if others:  # as in the paper's Table 4
        say(f"{args.input}: the candidates were sampled by {', '.join(sorted(map(str, others)))}, not by {args.model}, "
            f"which is trained")
    return usable, *costs_of([record for record, _ in found])


def rank_candidates(found, episodes, args, device):
    """(the advantages of every turn's candidates, a list for each record; what ranking and `episodes` cost)."""
    if args.critic == "random":
        return [rng_of(record, args.seed, 1).random(len(turns)).tolist() for record, turns in found], episodes
    if args.critic.endswith(".jsonl"):  # of scored continuations, whose mean rewards are the returns Q(o_t, a_t)
        returns, cost = monte_carlo_returns(args.critic)
        ranked = []
        for record, _ in found:
            played = {text: rewards for text, rewards, _ in returns.get(tuple(key_of(record)), {}).values()}
            texts = [c.get("output") for c in record["candidates"]]
            if not played.keys() >= set(texts):
                die(f"{args.critic} does not continue all candidates of turn {record['turn']} of task "
                    f"{record['task_id']}, sample {record['sample']}; play all of {args.input} (rollout.py --continue)")
            q = [float(np.mean(played[text])) for text in texts]
            ranked.append([value - float(np.mean(q)) for value in q])
        return ranked, episodes + cost
    file = Path(args.critic) / "cost.json"
    cost = from_rank0(lambda: Counter(json.loads(file.read_text())) if file.is_file() else Counter())
    return score_candidates(found, args, device), episodes | cost  # the critic's episodes hold the candidates'


def score_candidates(found, args, device):
    """The critic's advantages; kept on disk, portion by portion, in a file that is named by all they depend on."""
    critic = Critic(args.critic, device, reference_without_c=args.critic_reference == "without-c",
                    micro_tokens=args.micro_tokens, offload=args.cpu_offload)
    name = from_rank0(lambda: digest([fingerprint(path) for path in (args.critic, critic.reference) if path],
                                     args.critic_reference, args.limit_tasks, fingerprint(args.input)))
    file = Path(args.out).parent / "cache" / f"advantages-{name}.jsonl"
    lines = from_rank0(lambda: file.read_text(encoding="utf-8").splitlines() if file.is_file() else [])
    result = [json.loads(line)["advantages"] for line in lines]
    if result:
        say(f"advantages of {len(result)} of {len(found)} turns: taken from {file}")
    while len(result) < len(found):
        part = found[len(result):len(result) + portion_size()]
        values = iter(critic.advantages([turn for _, turns in part for turn in turns]))
        result += [[round(next(values), 7) for _ in turns] for _, turns in part]
        if rank() == 0:
            with whole(file) as out:
                out.write_text("".join(json.dumps({"key": key_of(record), "advantages": values}) + "\n"
                                       for (record, _), values in zip(found, result)), encoding="utf-8")
    return result


def make_pairs(args, device):
    """Rank candidates and draw pairs: (records in the conversational preference format, what it all cost)."""
    found, cost, episodes = read_candidates(args)
    ranked, cost_of_ranking = rank_candidates(found, episodes, args, device)
    pairs, left_out = [], Counter()
    for (record, _), scores in zip(found, ranked):
        texts = [c.get("output") or str(c["output_ids"]) for c in record["candidates"]]
        drawn = draw_pairs(scores, texts, args.pairs_per_turn, rng_of(record, args.seed))
        left_out["text"] += min(args.pairs_per_turn, len(texts) // 2) - len(drawn)
        apart = [(i, j) for i, j in drawn if scores[i] > scores[j]]  # of equal ones neither is preferred
        left_out["advantage"] += len(drawn) - len(apart)
        for i, j in apart:
            pair = {"prompt": record["prompt"]}
            for side, k in (("chosen", i), ("rejected", j)):
                candidate = record["candidates"][k]
                pair[side] = [{"role": "assistant", "content": candidate.get("output") or ""}]
                pair[f"advantage_{side}"] = scores[k]
                if candidate.get("output_ids"):
                    pair[f"{side}_ids"] = candidate["output_ids"]
            known = {"domain": (record.get("task") or {}).get("domain"), **record}
            pairs.append({**pair, **{k: v for k, v in known.items()
                                     if v is not None and k not in (*pair, "task", "candidates")}})
    for what, count in (+left_out).items():  # those above zero
        say(f"{count} pairs left out: chosen and rejected have the same {what}")
    if not pairs:
        reason = f"{args.critic} gives the candidates of a turn the same advantage; is it trained?"
        if not left_out["advantage"]:
            reason = "the candidates of every turn are the same text; sample at a higher temperature"
        die(f"{args.input}: no pair could be drawn, {reason}")
    file = Path(args.pairs)
    differ = lambda: file.is_file() and file.read_text(encoding="utf-8") != lines_of(pairs)
    if not args.overwrite and from_rank0(differ):
        die(f"{file} exists with other pairs (another seed, critic or candidates); use --overwrite, or another --pairs")
    say(f"{len(pairs)} pairs of {len(found)} turns")
    return pairs, cost + cost_of_ranking


def lines_of(pairs):
    return "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)


def write_pairs(pairs, args):
    """Once the run is sure to start: another run's pairs may lie there (--overwrite)."""
    if rank() == 0:
        with whole(args.pairs) as part:
            part.write_text(lines_of(pairs), encoding="utf-8")
    say(f"wrote {args.pairs}")


def with_sides(pair):
    """(the pair, its chosen and its rejected side as (prompt messages, response))."""
    check_dialogue(pair["prompt"], "prompt")
    said = lambda side, ids: pair[side][-1]["content"] or (None if ids else "")  # ids alone have no text
    return pair, [(pair["prompt"] + pair[side][:-1], response_of(said(side, ids), ids))
                  for side in ("chosen", "rejected") for ids in [pair.get(f"{side}_ids")]]


def read_pairs(path, limit_tasks):
    return first_tasks(read(path, "pair", each=with_sides), limit_tasks, lambda r: r[0].get("task_id"))


def pair_items(found, tokenizer):
    """Pairs as of with_sides: as items, each side one sequence, scored on its last message; and what they cost."""
    found = list(found)
    sequences = [join_turns([turn])[0] for turn in tokenise(tokenizer, [turn for _, turns in found for turn in turns])]
    items = []
    for n, (record, _) in enumerate(found):
        task, sample, turn = key_of(record)
        group = (n, n) if turn is None else (f"{task} {sample}", turn)
        answers = tuple(parse_response(record[side][-1]["content"])[1] is not None for side in ("chosen", "rejected"))
        items.append(Item([2 * n], [2 * n + 1], group, 1.0, answers, n if task is None else task))
    return items, sequences, sum(costs_of([record for record, _ in found]), Counter())


# ---- From trajectories to items: the baselines


def trajectory_items(args, tokenizer):
    """Pairs of whole trajectories (multi-turn-dpo), or single dialogues (rejection-ft, sft); what they cost to make."""
    kind, with_c = ("demonstration", args.with_c) if args.method == "sft" else ("scored", 0.0)
    tasks, cost = read_trajectories(args.input, kind, args.limit_tasks, with_c > 0)
    pairs = [(record, None, task, 1.0) for task in tasks for record in tasks[task]]
    if args.method == "multi-turn-dpo":
        pairs = pair_tasks(tasks, args)
    if args.method == "rejection-ft":
        rewards = [record["reward"] for record, *_ in pairs]
        least = args.min_reward
        if least is None:
            least = float(np.quantile(rewards, 0.75)) if args.domain == "frontend" else 1.0
        pairs = [pair for pair in pairs if pair[0]["reward"] >= least]
        say(f"{args.input}: {len(rewards) - len(pairs)} records left out: reward below {least:g} (--min-reward)")
        if not pairs:
            die(f"{args.input}: no trajectory is left to train on; sample more trajectories, or lower --min-reward")
    if with_c:
        rng = np.random.default_rng(args.seed)
        for record, *_ in pairs:
            if rng.random() >= with_c:
                record["turns"] = turns_of(record)
    return *items_of(pairs, tokenizer), cost


# ---- Seed models that are made here: of a GGUF file, and the tiny one


def make_seed(args):
    """The folder of the seed model. Of tiny and of a GGUF file one is made, once, in the cache beside the output."""
    cache, file = Path(args.out).parent / "cache", Path(args.model)
    if args.model == "tiny":
        records = [r for group in read_trajectories(args.input, "demonstration")[0].values() for r in group]
        # c is the reference's source, and the critic reads it: its words are learnt like the dialogue's.
        texts = [m["content"] for r in records for m in r["dialogue_history"]]
        texts += [str(r["task"]["ground_truth"]) for r in records if (r.get("task") or {}).get("ground_truth")]
        texts += [put_c_in_front([{"role": "user", "content": ""}], "")[0]["content"], f"{ANSWER_MARK}\n"] * 100
        path = cache / f"tiny-{digest(texts, args.tiny_width, args.seed)}"
        make = lambda: make_tiny_model(path, texts, 2048, args.seed, args.tiny_width)
    elif file.suffix == ".gguf":
        path = cache / f"{file.stem}-{fingerprint(file)}"
        make = lambda: unpack_gguf(file, path)
    else:
        return args.model
    from_rank0(lambda: (path / "tokenizer.json").is_file() or make())  # the file that is written last
    return str(path)


def unpack_gguf(file, folder):
    """Write the model and the tokenizer in a GGUF file to `folder`, in Hugging Face format and float32.

    What transformers reads there of a tokenizer lacks how text is split into words, which a GGUF gives by name only.
    """
    from tokenizers import pre_tokenizers
    transformers.utils.logging.disable_progress_bar()
    file, part, words = Path(file), Path(f"{folder}.part"), pre_tokenizers.ByteLevel(add_prefix_space=False)
    splits = {"gpt-2": words, "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])}
    try:
        from gguf import GGUFReader
        split = splits[GGUFReader(file).fields["tokenizer.ggml.pre"].contents()]
        tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        lm = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    except (ImportError, OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        die(f"{file}: not a whole GGUF file of a model that splits words as {' or '.join(splits)} does, or the "
            f"packages gguf and accelerate are missing ({first_line(error)})")
    tokenizer.backend_tokenizer.pre_tokenizer = split
    del lm.hf_quantizer, lm.config.quantization_config    # else it would be saved as a quantised model
    shutil.rmtree(part, ignore_errors=True)
    lm.save_pretrained(part)
    tokenizer.save_pretrained(part)
    os.replace(part, folder)


def tiny_tokenizer(texts, vocabulary):
    """A byte-level BPE tokenizer trained on the data, with a chat template of its own.

    One piece is a word with its leading space, a whole number, a line break with its indentation, a run of
    punctuation, or in a web page a tag as far as its classes or a class (`bg-blue-500`): to copy what is frequent is
    one decision. The template leaves system messages out, which a model trained from nothing could not follow anyway.
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


def make_tiny_model(path, texts, vocabulary, seed, width=128):
    """Write a small random Llama and a tokenizer trained on `texts` to `path`, in Hugging Face format."""
    tokenizer = tiny_tokenizer(texts, vocabulary)
    torch.manual_seed(seed)
    # An initial spread of 0.08 instead of 0.02: at width 128 the attention starts sharp enough to learn copying early.
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=3,
        num_attention_heads=width // 32, max_position_embeddings=4096, tie_word_embeddings=False,
        initializer_range=0.08, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id))
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


# ---- The command line

METHODS = {  # what a method's flags default to (the paper's Table 5, which has no sft), and the flags that it heeds
    "sweet": dict(input="train.candidates.jsonl", out="policy", epochs=1, frontend_epochs=1, batch_size=8,
                  uses={"loss", "beta", "nll", "pairs_per_turn", "critic_reference"}),
    "multi-turn-dpo": dict(input="train.scored.jsonl", out="multi-turn-dpo", epochs=4, frontend_epochs=8, batch_size=8,
                           uses={"loss", "beta", "nll", "pair_rule", "min_gap", "pairs_per_task"}),
    "rejection-ft": dict(input="train.scored.jsonl", out="rejection-ft", epochs=4, frontend_epochs=8, batch_size=32,
                         uses={"min_reward"}),
    "sft": dict(input=None, out="base", epochs=1, frontend_epochs=1, batch_size=32, uses={"with_c", "tiny_width"}),
}


def unheeded(args):
    """Flags that the method does not heed."""
    return sorted(set().union(*(method["uses"] for method in METHODS.values())) - METHODS[args.method]["uses"])


def parse_args():
    parser = argparse.ArgumentParser(description="Train the policy (SWEET-RL, stage 2), or a baseline.")
    flag = adder(parser)
    # paths
    flag("--method", "how to train", choices=list(METHODS), default="sweet")
    flag("--in", "candidates, scored trajectories, demonstrations or pairs (default "
         "runs/RUN_NAME/train.candidates.jsonl for sweet, train.scored.jsonl there for the baselines, "
         "data/DOMAIN/demonstrations.jsonl for sft)", dest="input")
    flag("--model", "seed model, also the reference: folder or hub name, GGUF file, or (sft) tiny (default "
         "runs/RUN_NAME/base)")
    flag("--critic", "what ranks the candidates: the critic's folder; monte-carlo, the returns of "
         "runs/RUN_NAME/train.continuations.scored.jsonl (or the name of such a file); or random, to compare with "
         "(default runs/RUN_NAME/critic)")
    flag("--pairs", "where sweet writes its pairs (default OUT.pairs.jsonl, runs/RUN_NAME/train.pairs.jsonl without "
         "--out)")
    flag("--out", "folder of the policy (default runs/RUN_NAME/policy for sweet, runs/RUN_NAME/METHOD for the "
         "baselines, runs/RUN_NAME/base for sft)")
    # preference optimisation
    flag("--loss", "dpo (Eq. 4); ipo; length-normalised-dpo: each side's log-ratio divided by its tokens, which wants "
         "a larger --beta", choices=list(LOSSES), default="dpo")
    # single methods
    flag("--pairs-per-turn", "sweet: pairs drawn at each turn; released code 4", type=number(int, least=1), default=1)
    flag("--critic-reference", "sweet: whether Eq. 3's reference sees c; released code without-c",
         choices=["with-c", "without-c"], default="with-c")
    flag("--min-reward", "rejection-ft: the reward to keep from (default 1.0; frontend: the upper quartile of the "
         "rewards)", type=number(float, least=0, most=1))
    flag("--with-c", "sft: share of dialogues shown with c in front (default 0.33 for --model tiny, else 0)",
         type=number(float, least=0, most=1))
    flag("--tiny-width", "sft: hidden size of the tiny model", type=int, choices=range(32, 1025, 32), metavar="W",
         default=128)
    in_words = lambda name: ", ".join(f"{method} {settings[name]}" for method, settings in METHODS.items())
    training_flags(parser, "2e-7; --model tiny 0.001", in_words("epochs") + "; frontend: "
                   + in_words("frontend_epochs"), in_words("batch_size"))

    def defaults(args, run, pages):
        tiny, method = args.model == "tiny", METHODS[args.method]
        if args.model is None and args.method == "sft":
            die("--method sft needs --model: a folder or hub name, or tiny to start from a small random model")
        if tiny and args.method != "sft":
            die(f"--model tiny starts from nothing and goes with --method sft only; {args.method} needs a trained one")
        return {"input": f"{run}/{method['input']}" if method["input"] else f"data/{args.domain}/demonstrations.jsonl",
                "model": f"{run}/base", "critic": f"{run}/critic", "out": f"{run}/{method['out']}",
                "pairs": f"{Path(args.out or run / 'train')}.pairs.jsonl",
                "lr": 1e-3 if tiny else 2e-7,  # a random model needs thousandths
                "epochs": method["frontend_epochs" if pages else "epochs"], "batch_size": method["batch_size"],
                "with_c": 0.33 if tiny else 0.0}

    args = parse_with_defaults(parser, defaults, unheeded)
    if args.critic == "monte-carlo":
        args.critic = str(Path("runs") / args.run_name / "train.continuations.scored.jsonl")
    return args


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # before the first step: caches are whole or absent
        die("stopped; the same command starts again", 130)
