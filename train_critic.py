"""Stage 1 of SWEET-RL: train the turn-wise advantage critic, and score with it (--score).

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

Reads   runs/RUN_NAME/train.scored.jsonl, the seed model
Writes  runs/RUN_NAME/critic/: the model in Hugging Face format, critic.json (how to score with it), cost.json (what it
        cost), settings.json, metrics.jsonl, checkpoints/; for pages also runs/RUN_NAME/cache/

    python train_critic.py                                              # one process, CPU or one GPU
    torchrun --nproc-per-node 8 train_critic.py --model meta-llama/Llama-3.1-8B-Instruct
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 train_critic.py   # each node
    python train_critic.py --domain frontend --head regression --model Qwen/Qwen2-VL-7B-Instruct --checkpointing full
    python train_critic.py --score runs/default/train.candidates.jsonl  # writes train.ranked.jsonl, for train_policy.py
    python train_critic.py --score runs/default/test.scored.jsonl       # writes test.annotated.jsonl, for the report
"""
import argparse
import functools
import hashlib
import inspect
import itertools
import json
import math
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import nn

from lm import (
    Scorer, Sequence, accuracy, add_stats, barrier, begin_training, checked_settings, checked_turn, code_of, collate,
    fill_defaults, finish, first_record_has, flag_parser, from_rank0, gather, items_of, learning_rate, load_model,
    load_tokenizer, log, micro_batches, optimizer_step, pair_tasks, pair_trajectories, progress, rank,
    read_trajectories, reference_solution, save_checkpoint, save_model, say, score_all, scored_context, segment_mean,
    segment_sum, set_reference, start_process_group, step_items, step_metrics, text_config, text_of, tokenise,
    training_flags, turns_of, usable_items, whole, world)
from records import (
    SCHEMA, Output, atomic_write, die, fingerprint, hashed, read, refuse_idle, run_script, succeeded, write_json)

# ---- The mathematics


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
    rewards = torch.tensor([item.reward for item in items], device=values.device)[item_of]       # (M,)
    success = torch.tensor([float(succeeded(item.reward)) for item in items], device=values.device)[item_of]
    targets, labels = success, success
    if head == "q":
        targets, labels = next_turn_targets(logits, batch.side, rewards), rewards
    losses = segment_mean(value_loss(logits, targets), item_of, len(items))                      # (B,)
    correct = (logits > 0) == (labels > 0.5)
    return losses, {"loss": losses, "accuracy": correct.double(), "success": labels.double()}


# ---- The stage

RECORDED = ("head", "pictures", "context", "advantage", "beta", "pack", "dtype")    # flags that critic.json records


def main():
    args = parse_args()
    device = start_process_group()
    torch.manual_seed(args.seed)    # for weights that are drawn
    if args.score:
        score_file(args)
        return finish()
    deciding = [critic_loss] if args.head in ("value", "q") else [critic_loss, pair_trajectories]
    settings = from_rank0(checked_settings, args, {"--in": args.input, "--model": args.model}, *deciding)
    if settings is None:
        return finish()
    tokenizer = load_processor(args.model) if args.pictures else load_tokenizer(args.model)
    items, cost = make_items(args, tokenizer)
    items = usable_items(items, args.model, args)
    head = None
    if args.head == "log-ratio":
        set_reference(load_model(args.model, device, args), items, device, args)
    else:
        head = new_head(args.model)
    model = load_scorer(args.model, device, args, head, tokenizer)
    train(model, items, device, args, settings)
    critic_config = {name: getattr(args, name) for name in RECORDED}
    critic_config |= {"reference": args.model, "reference_from_critic": os.path.relpath(args.model, args.out),
                      "reference_fingerprint": settings["content of --model"], "weights": None}
    if head:
        critic_config["weights"] = {name: whole(w.detach()).flatten().tolist() for name, w in head.named_parameters()}
    if rank() == 0:    # before the model, whose config.json marks the output as complete
        write_json(Path(args.out) / "critic.json", critic_config)
    save_model(model, tokenizer, args.model, args, cost)
    say(f"wrote the critic to {args.out}")
    finish()


def train(model, items, device, args, settings):
    """The training loop, from the newest checkpoint on. A step's loss is the mean over its pairs."""
    steps = step_items(items, args)
    optimizer, first_step = begin_training(model, args, settings)
    bar = progress(range(len(steps)), Path(args.out).name, "step", first_step)
    for step in bar:
        start = time.perf_counter()
        torch.manual_seed(hashed(args.seed, step, rank()))    # for modules that draw
        sums, counts = Counter(), Counter()    # what to log
        weight = len(steps[step])
        for part, counted in micro_batches(steps[step], args):
            batch = collate(part, device, args.pack)
            values = model(batch)                                                                # (N,)
            losses, stats = critic_loss(values, batch, part, args)                               # (B,)
            # FSDP averages gradients over the ranks; world() turns the average into a sum.
            (losses.sum() * counted * world() / weight).backward()
            if counted:
                add_stats(sums, counts, stats, batch.tokens)
        rate = learning_rate(step, len(steps), args.lr)
        norm = optimizer_step(model, optimizer, rate)
        log(step_metrics(step, rate, norm, sums, counts, start, device, args), bar, args.out)
        save_checkpoint(args, model, optimizer, step + 1)


def make_items(args, tokenizer):
    """The pairs of --in (with --head value and q, its single trajectories) as items, and their cost."""
    tasks, cost = read_trajectories(args.input, "scored", args.context == "with-c")
    if args.head not in ("value", "q"):
        return items_of(pair_tasks(tasks, args), tokenizer, encoder(args.out, args.pictures)), cost
    records = [record for group in tasks.values() for record in group]
    count = sum(succeeded(record["reward"]) for record in records)
    if args.head == "value" and count in (0, len(records)):
        die(f"{args.input}: --head value learns to tell successes (reward 1) from failures, but {count} of "
            f"{len(records)} trajectories are successes; --head q predicts the reward itself")
    return items_of([(record, None) for record in records], tokenizer, tokenise), cost


def candidate_turns(record, with_c=False):
    """The candidates of one turn, in the form that turns_of returns. Removes empty candidates from the record."""
    c = reference_solution(checked_turn(record), with_c)
    record["candidates"] = [candidate for candidate in record["candidates"]
                            if candidate.get("output") or candidate.get("output_ids")]
    return [(record["prompt"], candidate, c) for candidate in record["candidates"]]


RECORDS_AT_A_TIME = 200    # records scored and saved at a time, so the most that a kill can lose


def score_file(args):
    """Copy the records of --score to --out, adding the critic's advantage of each candidate or assistant turn."""
    if not Path(args.score).is_file():
        die(f"{args.score}: no such file; --score takes what rollout.py --candidates or evaluate.py wrote")
    kind, ending, turns_in = "scored", "annotated", turns_of
    if from_rank0(first_record_has, args.score, "candidates"):
        kind, ending, turns_in = "candidates", "ranked", candidate_turns
    stem = args.score.removesuffix(".jsonl").removesuffix(f".{kind}")
    out = args.out or f"{stem}.{ending}.jsonl"
    inputs = {"--score": args.score, "--critic": args.critic}
    how = {name: value for name, value in (("pack", args.pack), ("dtype", args.dtype)) if value}
    settings = {"script": "train_critic --score", **how, **code_of(turn_advantages, last_of_turn, tokenise, turns_in)}
    output = from_rank0(Output, out, settings, inputs, args.overwrite, SCHEMA[kind][1])
    done = frozenset(output.done)    # rank 0 adds to output.done while it writes
    try:
        critic = Critic(args.critic, args.micro_tokens, **how)
    except ValueError as error:
        die(error)
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
    written = left_out = 0
    for _ in progress(range(0, count, RECORDS_AT_A_TIME), "scored", "portion"):
        portion = list(itertools.islice(todo, RECORDS_AT_A_TIME))
        advantages = iter(critic.advantages([turn for _, turns in portion for turn in turns]))
        for record, turns in portion:
            too_long = 0
            for (_, reply, _), value in zip(turns, advantages):
                if value == -math.inf:
                    too_long += 1
                else:
                    reply["advantage"] = round(value, 7)    # changes the record, which contains the reply
            left_out += too_long
            if kind == "candidates" and too_long:
                continue
            written += 1
            if rank() == 0:
                output.write({**record, "ranked_by": ranked_by})
    if left_out:
        say(f"{args.score}: {left_out} replies left out: they do not fit the critic's context; with a "
            "candidate go the others of its turn")
    say(f"wrote {written} records to {out}")


# ---- The critic and its advantages


def new_head(model, weights=None):
    """A linear head. By default it starts at zero: all trajectories start with the same score."""
    head = nn.Linear(text_config(model).hidden_size, 1)
    weights = weights or {"weight": [0.0] * head.in_features, "bias": [0.0]}
    nn.utils.vector_to_parameters(torch.tensor(weights["weight"] + weights["bias"]), head.parameters())
    return head


def load_scorer(path, device, args, head, tokenizer):
    """The critic's model: a language model, or with args.pictures an image-text model and its processor."""
    if not args.pictures:
        return load_model(path, device, args, head)
    scorer = functools.partial(PageScorer, tokenizer)
    return load_model(path, device, args, head, transformers.AutoModelForImageTextToText, scorer)


class Critic:
    """A trained critic, as every stage loads it to get the advantages of turns.

    without_c: hide c from a critic that was trained with it. how: `pack` and `dtype`, if not as in training. Raises
    ValueError if the critic is damaged or its reference is gone. `config` is the content of critic.json.
    """

    def __init__(self, path, micro_tokens=8192, without_c=False, **how):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.config = config = from_rank0(read_critic_config, path)
        self.with_c = config["context"] == "with-c" and not without_c
        self.context = scored_context(path)
        self.pictures = config["pictures"]
        if self.pictures and how:
            raise ValueError(f"{path}: --{next(iter(how))} does nothing for a critic that sees pages; leave it out")
        self.tokenizer = load_processor(path) if self.pictures else load_tokenizer(path)
        self.encode = encoder(path, self.pictures)
        self.args = argparse.Namespace(**{**config, **how}, micro_tokens=micro_tokens, checkpointing="none")
        self.reference = None
        head = None
        if config["head"] == "log-ratio":
            self.reference = load_model(config["reference"], self.device, self.args)
        else:
            head = new_head(path, config["weights"])
        self.model = load_scorer(path, self.device, self.args, head, self.tokenizer)

    def advantages(self, turns):
        """Eq. 3 for each turn (prompt messages, reply, c or None), or the head's value for it: one float per turn.

        A turn that does not fit the critic's context, with c in front, gets -inf.
        """
        if not self.with_c:
            turns = [(messages, reply, None) for messages, reply, _ in turns]
        sequences = self.encode(self.tokenizer, turns)
        fit = [n for n, sequence in enumerate(sequences) if len(sequence.ids) <= self.context]
        values = score_all(self.model, [sequences[n] for n in fit], self.device, self.args)
        references = [0.0] * len(fit)
        if self.reference:
            references = score_all(self.reference, [sequences[n] for n in fit], self.device, self.args)
        advantages = [-math.inf] * len(turns)
        for n, numbers, reference in zip(fit, values, references):
            numbers = torch.tensor(numbers).double()                                             # (N,)
            reference = torch.tensor(reference).double()
            turn = torch.zeros(len(numbers), dtype=torch.long)                                   # (N,): one turn
            if self.config["head"] in ("value", "q"):
                advantage = last_of_turn(numbers, turn, 1)
            else:
                advantage = turn_advantages(numbers, reference, turn, 1, self.config["advantage"])
            advantages[n] = advantage.item()
        return advantages


def read_critic_config(path):
    """The content of critic.json, with the place where its reference was found. Raises ValueError if it is unusable."""
    file = Path(path) / "critic.json"
    try:
        config = {**json.loads(file.read_text())}
        if not {*RECORDED, "reference", "reference_fingerprint"} <= config.keys():
            raise ValueError("keys are missing")
    except OSError:
        raise ValueError(f"{path} contains no critic.json; train a critic with train_critic.py, or name another with "
                         "--critic") from None
    except (ValueError, TypeError):
        raise ValueError(f"{file} is damaged or incomplete; train it again, or name another (--critic)") from None
    reference = config["reference"]
    if config["head"] != "log-ratio" or config["reference_fingerprint"] == reference:    # a hub name
        return config
    beside = os.path.normpath(Path(path) / config.get("reference_from_critic", reference))
    places = [place for place in (reference, beside) if Path(place).exists()]
    if not places:
        raise ValueError(f"{path}: its reference model was not found at {reference} or {beside}; correct its path in "
                         f"{file}")
    if config["reference_fingerprint"] != fingerprint(places[0]):
        raise ValueError(f"{path}: its reference model {places[0]} has changed since the critic was trained; restore "
                         f"the model (or correct its path in {file}), or train the critic again")
    return {**config, "reference": places[0]}


# ---- Pictures of pages

PICTURE = 512, 1024    # pixels: a page's picture is scaled to this width and cut off at this height


@dataclass(eq=False)
class PageSequence(Sequence):
    """A turn as a critic that sees pages reads it."""
    page_inputs: tuple = ()    # (text, picture files)


class PageScorer(Scorer):
    """An image-text model that reads page inputs. It returns the head's value at every token, pictures included."""

    def __init__(self, processor, *others):
        super().__init__(*others)
        self.processor = processor

    def forward(self, batch):
        inputs = read_page_inputs(self.processor, [sequence.page_inputs for sequence in batch.sequences])
        inputs = inputs.to(batch.target.device, self.head.weight.dtype)
        hidden = self.lm.base_model(**inputs, use_cache=False).last_hidden_state                 # (R, T, D)
        return self.values(hidden[inputs["attention_mask"].bool()])


def load_processor(path):
    """An image-text model's processor."""
    processor = load_tokenizer(path, transformers.AutoProcessor)
    if not hasattr(processor, "image_processor"):
        die(f"{path}: this model reads only text; a critic that sees pages needs an image-text-to-text model")
    processor.tokenizer.pad_token = processor.tokenizer.pad_token or processor.tokenizer.eos_token
    return processor


def read_page_inputs(processor, page_inputs):
    """[(text, picture files)] as the inputs of an image-text model, in padded rows."""
    from PIL import Image
    pictures = [[Image.open(file).convert("RGB") for file in files] for _, files in page_inputs]
    return processor(text=[text for text, _ in page_inputs], images=pictures, padding=True, add_special_tokens=False,
                     return_tensors="pt")


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


def encoder(critic, pictures):
    """What makes turns into sequences: tokenise, or for the critic (a path) that sees pages, picture_turns."""
    if not pictures:
        return tokenise
    code = Path(__file__).with_name("render.py").read_text(encoding="utf-8"), inspect.getsource(save_picture), PICTURE
    name = f"pictures-{hashlib.sha256(repr(code).encode()).hexdigest()[:8]}"    # other code makes other pictures
    return functools.partial(picture_turns, folder=Path(critic).parent / "cache" / name)


def picture_turns(processor, turns, folder):
    """Turns [(prompt messages, reply, reference page or None)] as sequences in which every token is scored.
    A reply without a page is shown as a white one. `folder` contains the pictures."""
    files = {}    # {page: file of its picture}
    inputs = [page_input(*turn, processor, folder, files) for turn in turns]
    photograph(files)
    ids = {}
    for n in progress(range(len(inputs))[rank()::world()], "pictures", "turn"):
        ids[n] = read_page_inputs(processor, [inputs[n]])["input_ids"][0].numpy().astype(np.int32)
    ids = gather(ids)
    return [PageSequence(ids[n], 0, page_inputs=inputs[n]) for n in range(len(inputs))]


def page_input(messages, reply, reference, processor, folder, files):
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

OF_TRAINING = (
    "--in", "--model", "--advantage", "--context", "--head", "--pair-rule", "--min-gap", "--beta", "--nll", "--lr",
    "--epochs", "--batch-size", "--max-steps", "--seed", "--lora", "--checkpointing", "--save-every", "--keep")
OF_PAIRS = ("--advantage", "--pair-rule", "--min-gap", "--beta", "--nll")
IDLE_WITH_HEAD = {"log-ratio": (), "regression": ("--nll",), "value": OF_PAIRS, "q": OF_PAIRS}


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
    defaults = {"input": f"{run}/train.scored.jsonl", "model": f"{run}/base", "critic": f"{run}/critic", "score": None,
                "out": f"{run}/critic", "lr": 2e-7, "epochs": 8 if pages else 4, "batch_size": 8, "shuffle": "turns"}
    args.pictures = pages and args.head == "regression"    # not a flag: whether the critic sees pages
    if "score" in args:
        refuse_idle(OF_TRAINING, "with --score")
        return fill_defaults(args, defaults | {"out": None, "pack": None, "dtype": None})    # None: as in training
    refuse_idle(("--critic",), "without --score")
    refuse_idle(IDLE_WITH_HEAD[args.head], f"with --head {args.head}")
    if pages and args.head == "value":
        die("--head value learns to tell successes (reward 1) from failures, which pages hardly are; --head q predicts "
            "the reward itself")
    if args.pictures:
        refuse_idle(("--pack", "--dtype"), "with --domain frontend --head regression")
        defaults["pack"] = "none"    # a tree cannot contain pictures
    return fill_defaults(args, defaults)


if __name__ == "__main__":
    run_script(main)
