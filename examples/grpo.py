"""GRPO (arXiv 2402.03300), an on-policy baseline: whole dialogues are the members of a group.

1. Draw tasks, and sample --samples episodes of each from the present policy. The episodes of one task are a group.
2. Score them. An episode's advantage is its reward, relative to its group:  A_i = (R_i - mean(R)) / std(R)
3. Every token that the agent said in episode i, in any of its turns, has the advantage A_i. Minimise

    J = -mean_l min(r_l A_i, clip(r_l, 1 - eps, 1 + eps) A_i),    r_l = pi(a_l | o_t, a_<l) / pi_old(a_l | o_t, a_<l)

4. Give the new weights to the engine, and start again. The agent never sees c, and no critic is trained.
Departures: the mean is over all tokens of an update (in the paper first over each reply's), and there is no KL term.

    python examples/grpo.py --run-name default --steps 25 --tasks-per-step 16 --samples 6    # 2,400 episodes
"""
import asyncio
import sys
import time
from argparse import Namespace
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import evaluate  # noqa: E402
import lm  # noqa: E402
import rollout  # noqa: E402
from records import hashed, number, read, run_script  # noqa: E402


def with_advantages(records):
    """The records with their turns and, as their reward, their advantage; without those whose advantage is zero."""
    for task in dict.fromkeys(record["task_id"] for record in records):
        group = [record for record in records if record["task_id"] == task]
        rewards = np.array([record["reward"] for record in group])
        for record, advantage in zip(group, (rewards - rewards.mean()) / (rewards.std() or 1)):
            if advantage:
                yield record | {"reward": float(advantage), "turns": lm.turns_of(record)}


def grpo_loss(logps, batch, items, args):
    """The clipped surrogate of each token (N,), and what to log. An item's `reward` is its episode's advantage."""
    advantages = torch.tensor([item.reward for item in items], device=logps.device)[batch.side[batch.turn] // 2]
    ratio = (logps - batch.reference).exp()                                                      # (N,)
    losses = -torch.minimum(ratio * advantages, ratio.clamp(1 - args.clip, 1 + args.clip) * advantages)
    return losses, {"loss": losses, "nll": -logps, "clipped": ((ratio - 1).abs() > args.clip).double()}


def main():
    args = parse_args()
    device = lm.start_process_group()
    settings = lm.from_rank0(
        lm.checked_settings, args, {"--in": args.input, "--model": args.model}, grpo_loss, with_advantages)
    if settings is None:
        return lm.finish()
    tokenizer = lm.load_tokenizer(args.model)
    tasks = list(read(args.input, "task", args.domain, each=partial(rollout.check, args)))
    with closing(rollout.Resources(Namespace(**vars(args) | {"dtype": "auto"}))) as resources:
        agent = resources.engine("agent", args.model, None)
        human = rollout.SIMULATORS["scripted"](args, resources)
        model = lm.load_model(args.model, device, args)
        optimizer, first_step = lm.begin_training(model, args, settings)
        for step in (bar := lm.progress(range(args.steps), Path(args.out).name, "step", first_step)):
            start = time.perf_counter()
            agent.take(lm.merged({name: lm.whole(w.detach()) for name, w in model.lm.named_parameters()}).items())
            drawn = np.random.default_rng([args.seed, step]).permutation(len(tasks))[:args.tasks_per_step]
            records = play([tasks[n] for n in drawn], step, agent, human, args)
            items = lm.items_of([(record, None) for record in with_advantages(records)], tokenizer, lm.tokenise)
            torch.manual_seed(hashed(args.seed, step, lm.rank()))
            lm.set_reference(model, items, device, args, title="")
            sums, counts, norm = Counter(), Counter(), 0.0
            rate = lm.learning_rate(step, args.steps, args.lr)
            for update in lm.step_items(items, args):
                for part, counted in lm.micro_batches(update, args):
                    batch = lm.collate(part, device, args.pack)
                    losses, stats = grpo_loss(model(batch), batch, part, args)                   # (N,)
                    (losses.sum() * counted * lm.world() / lm.scored_tokens(update)).backward()
                    if counted:
                        lm.add_stats(sums, counts, stats, batch.tokens)
                norm = lm.optimizer_step(model, optimizer, rate)
            metrics = lm.step_metrics(step, rate, norm, sums, counts, start, device, args)
            metrics["reward"] = sum(record["reward"] for record in records) / max(1, len(records))
            cost = sum((Counter(record["cost"]) for record in records), Counter(episodes=len(records)))
            lm.log(metrics | cost, bar, args.out)
            lm.save_checkpoint(args, model, optimizer, step + 1)
    lm.save_model(model, tokenizer, args.model, args, Counter())
    lm.finish()


def play(tasks, step, agent, human, args):
    """The scored episodes of a step. Each rank plays its share of the tasks."""
    async def play_all():
        return await asyncio.gather(*(
            rollout.episode(args, agent, human, None, task, step * args.samples + n, rollout.system_prompt(args),
                            args.max_turns) for task in tasks[lm.rank()::lm.world()] for n in range(args.samples)))
    records = [record for record in asyncio.run(play_all()) if record["answer"] is not None]    # None: it failed
    scored = lm.gather({lm.rank(): list(evaluate.ENVIRONMENTS[args.domain].score(records, args))})
    return [record for part in scored.values() for record in part]


def parse_args():
    parser = lm.flag_parser("Train the policy by GRPO.")
    flag, count = parser.add_argument, number(int, least=1)
    flag("--in", dest="input", help="tasks (default: data/DOMAIN/train.jsonl)")
    flag("--model", help="seed model: folder or hub name (default: runs/RUN_NAME/base)")
    flag("--out", help="folder of the policy (default: runs/RUN_NAME/grpo)")
    flag("--steps", type=count, default=25, help="how often episodes are played")
    flag("--tasks-per-step", type=count, default=16, help="tasks that are played in a step")
    flag("--samples", type=number(int, least=2), default=6, help="episodes of a task, which are a group")
    flag("--max-turns", type=count, default=10, help="limit on the agent's turns")
    flag("--max-tokens", type=count, default=1024, help="token limit of the agent's reply")
    flag("--clip", type=number(above=0), default=0.2, help="how far from 1 a ratio counts (eps)")
    flag("--engine", default="transformers", choices=["transformers", "vllm"], help="vllm: on one process")
    flag("--unsafe", action="store_true", default=False, help="as in evaluate.py")
    lm.step_flags(parser, lr="1e-6", epochs="1", batch_size="all").set_defaults(save_every=5)
    args = parser.parse_args()
    if args.domain not in rollout.ENVIRONMENTS:
        parser.error(f"--domain must be one of {', '.join(rollout.ENVIRONMENTS)}, found {args.domain}")
    return lm.fill_defaults(args, dict(
        input=f"data/{args.domain}/train.jsonl", model=f"runs/{args.run_name}/base", out=f"runs/{args.run_name}/grpo",
        lr=1e-6, epochs=1, batch_size=10 ** 9, max_steps=0, shuffle="turns", kind="task", simulator="scripted",
        continue_=0, per_task=0, best_of_n=1, temperature=1.0, max_model_len=0, gpu_memory_utilization=0.3,
        tensor_parallel_size=1, data_parallel_size=1, workers=1, mode="module", call_timeout=evaluate.CALL_TIMEOUT,
        program_timeout=evaluate.PROGRAM_TIMEOUT, encoder="layout", reward_from="cosine"))


if __name__ == "__main__":
    run_script(main)
