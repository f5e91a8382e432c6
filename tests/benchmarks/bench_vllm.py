"""vLLM on a CPU, float32 against bfloat16: rollout.py against vLLM alone, and how far the log-probabilities are off.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_vllm.py --model runs/demo-llm/base \\
        --tasks runs/demo-llm/tasks/test.jsonl

Three times the same requests with the same seeds, hence the same tokens: by vLLM's own loop, by rollout.py (an episode
of one turn each), and by rollout.py with eight in flight. A process for each dtype; processor time without start-up;
the prefix cache is emptied before each. "Difference": mean and largest |difference| of the log-probabilities of some of the
tokens from those of a float32 pass through transformers, in nats. "File": whether the records are those of the row
before."""
import argparse
import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]
import engines  # noqa: E402
import rollout  # noqa: E402

SYSTEM = "Be brief."


def alone(engine, args, tasks, logprobs=None):
    """vLLM's own loop: {task: its output}."""
    for task in tasks:
        prompt = engines.encode_chat(engine.tokenizer, rollout.messages_before(
            SYSTEM, [{"role": "user", "content": task["problem_description"]}]))
        room = min(args.max_tokens, engine.context - len(prompt))
        engine.engine.add_request(task["task_id"], {"prompt_token_ids": prompt}, engine.params(
            n=1, seed=engines.derive_seed(args.seed, task["task_id"], 0, 0), temperature=1.0, max_tokens=room,
            logprobs=logprobs))
    outputs = {}
    while engine.engine.has_unfinished_requests():
        outputs |= {result.request_id: result for result in engine.engine.step() if result.finished}
    return outputs


def played(engine, args, tasks, in_flight):
    """rollout.py's own loop: {task: its record}."""
    records = []

    async def play(task):
        return await rollout.episode(args, engine, None, None, task, 0, SYSTEM, 1)
    asyncio.run(rollout.play_all([{"task": task} for task in tasks], play, {}, SimpleNamespace(write=records.append, path="rollout.py"), in_flight,
                                 False))
    return {record["task_id"]: record for record in records}


def differences(model, results):
    """|difference| of each token's log-probability from that of a float32 pass through transformers."""
    import torch
    from transformers import AutoModelForCausalLM
    lm, apart = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), []
    for result in results:
        prompt, ids = list(result.prompt_token_ids), list(result.outputs[0].token_ids)
        with torch.inference_mode():
            logps = lm(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1:-1].log_softmax(-1)
        apart += [abs(logps[i, token].item() - found[token].logprob)
                  for i, (token, found) in enumerate(zip(ids, result.outputs[0].logprobs))]
    return sum(apart) / len(apart), max(apart)


def rows(a, dtype):
    """The rows of one dtype, printed."""
    sys.argv = ["rollout.py", "--model", a.model, "--in", a.tasks, "--limit", str(a.requests), "--max-turns", "1",
                "--max-tokens", str(a.tokens), "--dtype", dtype, "--engine", "vllm"]
    args = rollout.parse_args()
    tasks = [play["task"] for play in rollout.what_to_play(args).values()]
    engine = engines.make_engine(a.model, None, "agent", args)

    def timed(function, *arguments):
        engine.engine.reset_prefix_cache()
        began = time.process_time()
        found = function(engine, args, tasks, *arguments)
        return found, time.process_time() - began
    scored = alone(engine, args, tasks, 0)    # the first time, kernels are chosen for each new shape
    outputs, seconds = timed(alone)
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs.values())
    print(f"| {dtype}, vLLM alone | {tokens / seconds:.0f} | | {{}} | |", flush=True)
    records = {}
    for in_flight in (a.requests, 8):
        before, (records, spent) = records, timed(played, in_flight)
        assert sum(record["cost"]["sampled_tokens"] for record in records.values()) == tokens or dtype != "float32"
        print(f"| {dtype}, rollout.py, {in_flight} in flight | {tokens / spent:.0f} | {seconds / spent:.0%} | | "
              f"{('the same' if records == before else 'another') if before else ''} |", flush=True)
    engine.close()
    print("difference: {:.1g}, at most {:.1g}".format(*differences(a.model, list(scored.values())[:8])), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", required=True, help="folder of the model")
    p.add_argument("--tasks", required=True, help="tasks, whose requests open the episodes")
    p.add_argument("--requests", type=int, default=64, help="how many (default 64)")
    p.add_argument("--tokens", type=int, default=64, help="most new tokens of each (default 64)")
    p.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], help="default float32 bfloat16")
    a = p.parse_args()
    if len(a.dtype) == 1:
        return rows(a, a.dtype[0])
    print("| | tokens/CPU s | of vLLM alone | difference | file |\n|---|---|---|---|---|", flush=True)
    for dtype in a.dtype:
        done = subprocess.run([sys.executable, __file__, "--model", a.model, "--tasks", a.tasks, "--requests",
                               str(a.requests), "--tokens", str(a.tokens), "--dtype", dtype], text=True,
                              stdout=subprocess.PIPE, env=os.environ, check=True)
        *table, last = [line for line in done.stdout.splitlines() if line.startswith(("| ", "difference: "))]
        print("\n".join(table).replace("{}", last.removeprefix("difference: ")), flush=True)


if __name__ == "__main__":
    main()
