"""Training on one CUDA GPU: model FLOP utilisation, memory, and the largest context. Prints the README's GPU rows.

    python tests/benchmarks/bench_train_gpu.py           # 1B and 8B Llama shapes with random weights, bf16 compute

Pairs as stage 2 makes them (8 turns, prompts from 250 to 1500 tokens, actions of 60 tokens, 4 pairs a turn), 128k
vocabulary, full fine-tuning with float32 masters; a row is --pack none or tree, the latter a turn at a time (what
--shuffle turns shares) or the whole dialogue at once, a plain loop with whole logits, or TRL's DPOTrainer at its best
(reference computed before, no checkpointing; needs trl, see make test-trl).
8B needs about 16 bytes a parameter (128 GB) and is left out where that is not there. Peak is the card's dense bf16 rate
(--peak, in TFLOP/s), since no card says it of itself.
"""
import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]
from bench_train import attended  # noqa: E402
SHAPES = {"tiny": dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
                       num_key_value_heads=2),
          "1B": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                     num_key_value_heads=8),
          "8B": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                     num_key_value_heads=8)}


class Flags:
    """The trainers' flags that a step reads."""
    pack, checkpointing, micro_tokens = "tree", "none", 16384
    loss, beta, nll, lr, dtype = "dpo", 0.1, 0.01, 2e-7, "float32"


def pairs(tp, turns=8, first=250, last=1500, action=60, seed=0):
    """The items of one dialogue: 4 pairs at each turn."""
    rng, items = np.random.default_rng(seed), []
    words = lambda n: rng.integers(10, 120_000, n).astype(np.int32)
    prompt = words(first)
    for turn in range(turns):
        for _ in range(4):
            chosen, rejected = (lm.Sequence(np.append(prompt, words(action)), len(prompt)) for _ in range(2))
            items.append(lm.Item([chosen], [rejected], ("d", turn)))
        prompt = np.concatenate([rejected.ids, words(max((last - first) // max(turns - 1, 1) - action, 1))])
    return items


def work(lm, items, batch):
    """Floating-point operations of a batch, forward and backward: 6 per weight and token, 12 per attended pair and
    layer."""
    config = lm.config
    output = lm.get_output_embeddings().weight.numel()
    body = sum(p.numel() for p in lm.base_model.parameters()) - lm.get_input_embeddings().weight.numel()
    width = config.num_attention_heads * (config.head_dim or config.hidden_size // config.num_attention_heads)
    return (6 * body * batch.tokens + 6 * output * len(batch.source)
            + 12 * config.num_hidden_layers * width * attended(items, batch))


def make_model(shape, folder):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=128_256, max_position_embeddings=131_072, rope_theta=5e5,
                         tie_word_embeddings=shape == "1B", **SHAPES[shape])
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    torch.cuda.empty_cache()    # the rows, processes of their own, need it


def run_row(shape, row, folder, steps):
    import torch
    import lm
    from train_policy import preference_loss
    device, args = lm.start_process_group(), Flags()
    cuda = device.type == "cuda"
    wait = torch.cuda.synchronize if cuda else lambda: None
    kind, _, extra = row.partition("+")
    args.pack = "none" if kind in ("none", "loop") else "tree"
    args.checkpointing = "full" if "checkpointing" in extra else "none"
    items = pairs(tp)
    model = lm.load_model(str(folder), device, args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    args.micro_tokens = {"turn": 2000, "none": 12_000, "loop": 12_000}.get(kind, 16384)    # about 4 pairs each
    seconds, flops, computed, scored, loss = [], 0, 0, 0, 0.0
    for step in range(steps + 2):  # two to warm up and compile
        wait()
        start, flops, computed, scored, loss = time.perf_counter(), 0, 0, 0, 0.0
        for part, _ in lm.micro_batches(items, args):
            batch = lm.collate(part, device, args.pack)
            if kind == "loop":  # padded rows, whole logits in float32
                model.forward = lambda b: torch.log_softmax(model.lm(**b.inputs).logits.float(), -1).flatten(
                    0, 1)[b.source].gather(1, b.target[:, None])[:, 0]
            value = preference_loss(model(batch), batch, part, args)[0].sum()
            (value / len(items)).backward()
            flops += work(model.lm, part, batch)
            computed, scored = computed + batch.tokens, scored + len(batch.source)
            loss += value.item() / len(items)
        norm = lm.optimizer_step(model, optimizer, args.lr)
        wait()
        seconds.append(time.perf_counter() - start)
    memory = torch.cuda.max_memory_allocated() / 2 ** 30 if cuda else 0.0
    best = min(seconds[2:])
    print("RESULT " + json.dumps(dict(seconds=best, flops=flops, computed=computed, scored=scored,
                                      pairs=len(items), loss=loss, norm=norm, memory=memory)), flush=True)
    lm.finish()


def run_trl(folder, steps):
    """TRL on pairs of the same lengths, 4 a forward pass, 32 a step; the words are one token each."""
    import torch
    import trl
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    cuda = torch.cuda.is_available()
    words = ["<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"] + [f"w{i}" for i in range(128_252)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>",
                                        unk_token="w0")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + ' <|end|> ' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|> ' }}{% endif %}")
    import lm
    items = pairs(tp)
    text = lambda ids: " ".join(f"w{i}" for i in ids)
    rows = []
    for item in items:
        one, two = item.chosen[0].ids, item.rejected[0].ids
        rows.append({"prompt": [{"role": "user", "content": text(one[:-63])}],    # the template adds three tokens
                     "chosen": [{"role": "assistant", "content": text(one[-59:])}],
                     "rejected": [{"role": "assistant", "content": text(two[-59:])}]})
    seconds = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *args, **kwargs):
            cuda and torch.cuda.synchronize()
            seconds.append(-time.perf_counter())

        def on_step_end(self, *args, **kwargs):
            cuda and torch.cuda.synchronize()
            seconds[-1] += time.perf_counter()

    class InOrder(trl.DPOTrainer):
        def _get_train_sampler(self, *args):
            return SequentialSampler(self.train_dataset)
    config = trl.DPOConfig(
        output_dir=str(folder / "trl"), per_device_train_batch_size=4, gradient_accumulation_steps=len(rows) // 4,
        max_steps=steps + 2, num_train_epochs=steps + 2, learning_rate=2e-7, max_length=None,
        gradient_checkpointing=False, precompute_ref_log_probs=True, use_cpu=not cuda, bf16=cuda, logging_steps=1,
        report_to=[], save_strategy="no", disable_tqdm=True)
    trainer = InOrder(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), args=config,
                      processing_class=tokenizer, train_dataset=Dataset.from_list(rows), callbacks=[Clock()])
    trainer.train()
    log = [line for line in trainer.state.log_history if "loss" in line][0]
    memory = torch.cuda.max_memory_allocated() / 2 ** 30 if cuda else 0.0
    print("RESULT " + json.dumps(dict(seconds=min(seconds[2:]), flops=0, computed=0, scored=120 * len(rows),
                                      pairs=len(rows), loss=log["loss"], norm=log["grad_norm"],
                                      memory=memory)), flush=True)


def run_longest(shape, folder):
    """Double the prompt of one pair until memory runs out."""
    import torch
    import lm
    from train_policy import preference_loss
    device, args = lm.start_process_group(), Flags()
    args.checkpointing = "full"
    model = lm.load_model(str(folder), device, args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    longest = 0
    for length in (2 ** n for n in range(12, 18)):
        try:
            items = pairs(tp, turns=1, first=length - 60)
            batch = lm.collate(items[:1], device, args.pack)
            losses, _ = preference_loss(model(batch), batch, items[:1], args)
            losses.sum().backward()
            lm.optimizer_step(model, optimizer, args.lr)
            longest = length
        except torch.cuda.OutOfMemoryError:
            break
        if device.type != "cuda":
            break
    print("RESULT " + json.dumps({"longest": longest}), flush=True)
    lm.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=["1B", "8B"], choices=list(SHAPES),
                        help="model shapes (default 1B 8B)")
    parser.add_argument("--rows", nargs="*", default=["trl", "loop", "none", "turn", "trajectory",
                                                      "trajectory+checkpointing", "longest"],
                        help="rows to run (default all)")
    parser.add_argument("--steps", type=int, default=3, help="timed steps; the best counts (default 3)")
    parser.add_argument("--peak", type=float, default=989.0,
                        help="dense bf16 TFLOP/s of the card (default 989: H100, H200)")
    parser.add_argument("--row", nargs=3, metavar=("SHAPE", "ROW", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        shape, row, folder = args.row
        if row == "longest":
            return run_longest(shape, Path(folder))
        return run_trl(Path(folder), args.steps) if row == "trl" else run_row(shape, row, Path(folder), args.steps)
    import torch
    name = (torch.cuda.get_device_name() if torch.cuda.is_available()
            else "no GPU: a trial of the command, not a measurement")
    print(f"{name}, torch {torch.__version__}\n")
    print("| shape | row | pairs/s | tokens computed/s | response tokens/s | TFLOP/s | utilisation "
          "| memory GiB | loss | norm |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for shape in args.shapes:
        with tempfile.TemporaryDirectory() as folder:
            make_model(shape, folder)
            for row in args.rows:
                done = subprocess.run([sys.executable, __file__, "--row", shape, row, folder,
                                       "--steps", str(args.steps)], capture_output=True, text=True)
                found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
                if not found:
                    memory = ("out of memory" if "OutOfMemory" in done.stderr
                              else (done.stderr.strip().splitlines() or ["?"])[-1][:90])
                    print(f"| {shape} | {row} | {memory} |", flush=True)
                    continue
                r = json.loads(found[0][7:])
                if "longest" in r:
                    print(f"| {shape} | largest context tried that fits, full checkpointing: {r['longest']} tokens |",
                          flush=True)
                    continue
                rate = r["flops"] / r["seconds"] / 1e12
                print(f"| {shape} | {row} | {r['pairs'] / r['seconds']:.2f} | {r['computed'] / r['seconds']:.0f} "
                      f"| {r['scored'] / r['seconds']:.0f} | {rate:.1f} | {rate / args.peak:.0%} | {r['memory']:.1f} "
                      f"| {r['loss']:.5f} | {r['norm']:.4f} |", flush=True)


if __name__ == "__main__":
    main()
