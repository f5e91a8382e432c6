"""Training speed: TRL's DPOTrainer, and ours with --pack none and tree, on the same pairs in the same steps.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_train.py             # needs trl for its two rows (make test-trl)
    OMP_NUM_THREADS=1 python tests/benchmarks/bench_train.py --turns 4   # half as many pairs, for a busy machine

The pairs are as stage 2 makes them: a dialogue of 8 turns, prompts from 250 to 1500 tokens, actions of 60 tokens, 4
pairs a turn, all 32 in one step, so that every row takes the same step ("turn": what --shuffle turns shares in a step of
many dialogues; "trajectory": the whole dialogue at once). The critic's row: pairs of whole trajectories of about 2000
tokens. Llama shape, width 384, 6 layers, vocabulary 32,000, float32, one thread.

Every row is a process of its own and counts CPU seconds, so that a busy machine does not decide. A row stands only if
its loss and gradient norm are those of the others (1e-4). "with reference" counts the one reference pass (one epoch) as
well. Memory is the peak beyond what was there once the libraries were imported.
TRL runs on its CUDA code path, which scores completion tokens only; on a CPU it would score every position, and a ratio
against that would flatter. Its batch is 4 pairs with gradient accumulation.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
ROWS = {"trajectory": ("ours", "tree", "none", 100_000), "turn": ("ours", "tree", "none", 2000),
        "none": ("ours", "none", "none", 9_000),
        "trl at its best": ("trl", False, True), "trl defaults": ("trl", True, False),
        "turn, checkpointing": ("ours", "tree", "full", 2000),
        "trajectory, checkpointing": ("ours", "tree", "full", 100_000),
        "critic, per-turn loop": ("loop",), "critic, ours": ("critic",)}


def make_data(folder, turns, seed=0):
    """A model, pairs.jsonl and scored.jsonl whose words are one token each."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    vocabulary = {w: i for i, w in enumerate(
        ["<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"] + [f"w{i}" for i in range(31996)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>", unk_token="w0")
    fast.chat_template = ("{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + ' <|end|> ' }}"
                          "{% endfor %}"
                          "{% if add_generation_prompt %}{{ '<|assistant|> ' }}{% endif %}")
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=32000, hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6,
        num_key_value_heads=6, max_position_embeddings=4096, eos_token_id=3, pad_token_id=0, bos_token_id=None))
    model.save_pretrained(folder / "base")
    fast.save_pretrained(folder / "base")
    rng = np.random.default_rng(seed)
    words = lambda n: " ".join(f"w{i}" for i in rng.integers(0, 31996, n))
    growth = (1500 - 250) // max(turns - 1, 1)
    prompt, pairs = [{"role": "user", "content": words(247)}], []
    for turn in range(turns):
        for _ in range(4):
            chosen, rejected = ([{"role": "assistant", "content": words(59)}] for _ in range(2))
            pairs.append({"task_id": "t", "sample": 0, "turn": turn, "prompt": prompt, "chosen": chosen,
                          "rejected": rejected})
        prompt = prompt + chosen + [{"role": "user", "content": words(growth - 64)}]
    records = []
    for task in range(2):
        request = words(250)
        for sample, reward in enumerate((1.0, 0.3)):
            history = [{"role": "user", "content": request}]
            for _ in range(8):
                history += [{"role": "assistant", "content": words(59)}, {"role": "user", "content": words(146)}]
            records.append({"task_id": f"t{task}", "sample": sample, "domain": "backend", "finish": "answered",
                            "reward": reward, "task": {"ground_truth": words(100)}, "dialogue_history": history[:-1]})
    for name, lines in (("pairs.jsonl", pairs), ("scored.jsonl", records)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** 20


def run_trl(checkpointing, best, folder):
    import torch
    import trl
    import trl.trainer.utils
    from datasets import load_dataset
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForCausalLM, AutoTokenizer
    trl.trainer.utils._use_triton = lambda device: True  # there: score completion tokens only, as on CUDA
    begun = peak()
    pairs = load_dataset("json", data_files=str(folder / "pairs.jsonl"), split="train",
                         cache_dir=str(folder / f"trl{os.getpid()}")).select_columns(["prompt", "chosen", "rejected"])
    times = {}

    class InOrder(trl.DPOTrainer):
        def _get_train_sampler(self, *args):
            return SequentialSampler(self.train_dataset)

        def _precompute_ref_logps(self, *args, **kwargs):
            start = time.process_time()
            result = super()._precompute_ref_logps(*args, **kwargs)
            times["reference"] = time.process_time() - start
            return result

        def train(self, *args, **kwargs):
            times["start"] = time.process_time()
            return super().train(*args, **kwargs)
    config = trl.DPOConfig(
        output_dir=str(folder / "theirs"), per_device_train_batch_size=4, gradient_accumulation_steps=len(pairs) // 4,
        max_steps=1, learning_rate=1e-6, max_length=None, logging_steps=1, gradient_checkpointing=checkpointing,
        precompute_ref_log_probs=best, use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True)
    trainer = InOrder(AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32), args=config,
                      train_dataset=pairs, processing_class=AutoTokenizer.from_pretrained(folder / "base"))
    trainer.train()
    seconds = time.process_time() - times["start"]
    log = next(line for line in trainer.state.log_history if "loss" in line)
    return dict(pairs=len(pairs), tokens=60 * 2 * len(pairs), seconds=seconds, reference=times.get("reference", 0.0),
                loss=log["loss"], norm=log["grad_norm"], memory=peak() - begun)


def attended(items, batch):
    """How many tokens each computed token attends to, summed."""
    if "layout" in batch.inputs:
        return int((batch.inputs["layout"].positions + 1).sum())
    lengths = [len(sequence.ids) for item in items for sequence in item.chosen + item.rejected]
    return sum(length * (length + 1) // 2 for length in lengths)


def run_ours(module, command, folder):
    times, begun = {}, peak()
    real_reference, real_step = module.set_reference, module.optimizer_step
    real_collate = module.collate
    tokens = [0, 0, 0]

    def reference(*args):
        start = time.process_time()
        real_reference(*args)
        times["reference"] = time.process_time() - start
        times.pop("start", None)    # what was collated for this pass does not count
        tokens[:] = [0, 0, 0]

    def collate(*args):
        times.setdefault("start", time.process_time())
        batch = real_collate(*args)
        tokens[0] += batch.tokens
        tokens[1] += len(batch.source)
        tokens[2] += attended(args[0], batch)
        return batch

    def step(*args):
        result = real_step(*args)
        times["end"] = time.process_time()
        return result
    module.set_reference, module.optimizer_step, module.collate = reference, step, collate
    work = folder / f"work{os.getpid()}"
    sys.argv = ["bench", *command, "--model", str(folder / "base"), "--out", str(work / "out"), "--nll", "0",
                "--lr", "1e-6", "--epochs", "1", "--batch-size", "1000"]
    module.main()
    line = json.loads((work / "out" / "metrics.jsonl").read_text().splitlines()[0])
    return dict(seconds=times["end"] - times["start"], reference=times["reference"], loss=line["loss"],
                norm=line["gradient_norm"], memory=peak() - begun, computed=tokens[0], tokens=tokens[1],
                attended=tokens[2])


def run_loop(folder):
    """The critic as one would write it first: every turn a forward pass of its own,
    response logits only, reference cached."""
    import torch
    import lm
    from transformers import AutoModelForCausalLM
    begun = peak()
    tokenizer = lm.load_tokenizer(folder / "base")
    model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    records = [json.loads(line) for line in open(folder / "scored.jsonl")]

    def logps(prompt, response):
        ids = torch.tensor(np.concatenate([prompt, response])[None].astype(np.int64))
        logits = model(input_ids=ids, logits_to_keep=len(response) + 1, use_cache=False).logits[0, :-1]
        return torch.log_softmax(logits.float(), -1).gather(1, ids[0, len(prompt):, None])[:, 0]
    turns = [lm.tokenise(tokenizer, lm.turns_of(r, with_c=True)) for r in records]
    turns = [[(turn.ids[:turn.start], turn.ids[turn.start:]) for turn in part] for part in turns]
    with torch.no_grad():
        reference = [[logps(*t) for t in part] for part in turns]
    start = time.process_time()
    total = 0.0
    for n in range(0, len(records), 2):
        scores = [sum((logps(*t) - base).mean() for t, base in zip(turns[i], reference[i])) for i in (n, n + 1)]
        loss = -torch.nn.functional.logsigmoid(0.1 * (scores[0] - scores[1])) / (len(records) // 2)
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    optimizer.step()
    return dict(pairs=len(records) // 2, tokens=sum(len(r) for part in turns for _, r in part),
                seconds=time.process_time() - start, reference=0.0, loss=total, norm=norm, memory=peak() - begun)


def run_row(name, folder):
    import torch
    torch.set_num_threads(1)
    kind, *options = ROWS[name]
    if kind == "trl":
        return run_trl(*options, folder)
    if kind == "loop":
        return run_loop(folder)
    if kind == "critic":
        import train_critic
        result = run_ours(train_critic, ["--in", str(folder / "scored.jsonl")], folder)
        return {**result, "pairs": 2}
    import train_policy
    # The step is the same in each row, so that loss and gradient can be compared.
    pack, checkpointing, micro_tokens = options
    command = ["--in", str(folder / "pairs.jsonl"), "--pack", pack, "--checkpointing", checkpointing]
    result = run_ours(train_policy, [*command, "--micro-tokens", str(micro_tokens)], folder)
    return {**result, "pairs": sum(1 for _ in open(folder / "pairs.jsonl"))}


def matrix_rate():
    """Floating-point operations a second of this machine's matrix product, in CPU time."""
    import torch
    torch.set_num_threads(1)
    a, b = torch.randn(2048, 384), torch.randn(1024, 384)
    start, count = time.process_time(), 0
    while time.process_time() - start < 1.0:
        a @ b.T
        count += 1
    return 2 * 2048 * 384 * 1024 * count / (time.process_time() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8, help="turns of the dialogue, 4 pairs each (default 8)")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS), help="rows to run (default all)")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        result = run_row(args.row, Path(args.folder))
        print("RESULT " + json.dumps(result))
        return
    rate = matrix_rate()
    print(f"matrix rate {rate / 1e9:.0f} GFLOP/s on one thread")
    print(f"{'':28s} {'pairs/s':>8s} {'with reference':>14s} {'response tok/s':>14s} {'memory GiB':>10s} "
          f"{'of floor':>9s}  loss, gradient norm")
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder), args.turns)
        for name in args.rows:
            done = subprocess.run([sys.executable, __file__, "--row", name, "--folder", folder],
                                  capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            if not lines:
                print(f"{name:28s} did not run: {(done.stderr.strip().splitlines() or ['?'])[-1][:80]}", flush=True)
                continue
            r = json.loads(lines[0][7:])
            floor = ""
            if "computed" in r:  # (3 + g) (2 N n + attention) + head, over the matrix rate
                body, g = 6 * (4 * 384 ** 2 + 3 * 384 * 1024), int("checkpointing" in name)
                attention = 4 * 6 * 384 * r["attended"]
                work = (3 + g) * (2 * body * r["computed"] + attention) + 3 * 2 * 384 * 32000 * r["tokens"]
                floor = f"{work / rate / r['seconds']:9.0%}"
            print(f"{name:28s} {r['pairs'] / r['seconds']:8.3f} {r['pairs'] / (r['seconds'] + r['reference']):14.3f} "
                  f"{r['tokens'] / r['seconds']:14.0f} {r['memory']:10.2f} {floor:>9s}  "
                  f"{r['loss']:.6f} {r['norm']:.5f}", flush=True)


if __name__ == "__main__":
    main()
