"""Trees are exact: packed log-probabilities and gradients equal those of one sequence at a time, for every family."""
import argparse
import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import lm  # noqa: E402
import trees  # noqa: E402

SHAPE = dict(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=2)
FAMILIES = {  # grouped heads everywhere; tied embeddings, biases, windows and caps where the family has them
    "Llama": {},
    "Qwen2": dict(tie_word_embeddings=True, use_sliding_window=True, sliding_window=24, max_window_layers=1),
    "Qwen3": dict(head_dim=32), "Mistral": dict(sliding_window=24), "Gemma": dict(head_dim=16),
    "Gemma2": dict(head_dim=16, sliding_window=24, query_pre_attn_scalar=16, attn_logit_softcapping=None), "Phi": {},
    "Phi3": dict(sliding_window=24), "Gemma3": dict(head_dim=16, sliding_window=24),
    "Granite": dict(logits_scaling=4.0), "Cohere": dict(logit_scale=0.25)}
CPU = torch.device("cpu")


def random_model(family, attention="tree"):
    import transformers
    transformers.AttentionInterface.register("tree", trees.tree_attention)
    kind = "Gemma3Text" if family == "Gemma3" else family
    config = getattr(transformers, kind + "Config")(**{**SHAPE, **FAMILIES.get(family, {})})
    torch.manual_seed(1)
    model = getattr(transformers, family + "ForCausalLM")._from_config(config, attn_implementation=attention,
                                                                       dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))  # biases and norms too
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def sequence(ids, start):
    ids = np.asarray(ids, np.int32)
    return lm.Sequence(ids, start)


def forest_of_dialogues(rng):
    """Two dialogues of several turns with candidates at each, one of them twice, one a prefix of another."""
    result = []
    for turns in (4, 2):
        trunk = rng.integers(3, 300, 12)
        for _ in range(turns):
            for _ in range(3):
                result.append(sequence(np.concatenate([trunk, rng.integers(3, 300, rng.integers(3, 9))]), len(trunk)))
            trunk = np.concatenate([result[-1].ids, rng.integers(3, 300, 7)])
    return result + [result[2], sequence(result[4].ids[:-1], result[4].start)]


def one_at_a_time(model, sequences, weights):
    """Log-probabilities from the model's own eager attention and whole logits;
    gradients of their weighted sum are left."""
    result = []
    for s, weight in zip(sequences, weights):
        logits = model(input_ids=torch.tensor(s.ids[None].astype(np.int64))).logits[0].float()
        logps = torch.log_softmax(logits, -1)[torch.tensor(s.scored - 1),
                                              torch.tensor(s.ids[s.scored].astype(np.int64))]
        (logps * weight).sum().backward()
        result.append(logps.detach())
    return torch.cat(result)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_logps_and_gradients_equal_one_sequence_at_a_time(family):
    model, rng = random_model(family), np.random.default_rng(0)
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    sequences = forest_of_dialogues(rng)
    torch.manual_seed(2)
    weights = [torch.randn(len(s.scored)) for s in sequences]
    expected = one_at_a_time(plain, sequences, weights)
    gradients = {name: p.grad for name, p in plain.named_parameters()}
    for pack, head_bytes in (("tree", 2 ** 29), ("tree", 20_000), ("none", 2 ** 29)):
        model.zero_grad()
        model.set_attn_implementation("tree" if pack == "tree" else "sdpa")
        logps = lm.Scorer(model, head_bytes=head_bytes)(
            lm.collate([lm.Item(sequences, [], ())], CPU, pack))
        (logps * torch.cat(weights)).sum().backward()
        assert ((logps - expected).norm() / expected.norm()) < 1e-5
        for name, parameter in model.named_parameters():
            assert (parameter.grad - gradients[name]).norm() <= 1e-5 * gradients[name].norm(), (pack, name)


def test_a_tree_has_the_tokens_of_its_branches_once():
    sequences = forest_of_dialogues(np.random.default_rng(0))
    forest = trees.build_prefix_forest(sequences)
    assert len(forest.ids) == trees.tree_tokens(sequences) < 0.5 * sum(len(s.ids) for s in sequences)


few = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(few, st.integers(1, 12), st.sampled_from([None, 1, 3]))
def test_each_token_sees_its_own_branch_and_nothing_else(lists, block, window):
    """For any sequences: the mask by `end`, the blocks on a CPU, and the definition (same branch, not later) agree."""
    sequences = [sequence(ids, 1) for ids in lists]
    forest = trees.build_prefix_forest(sequences, block=block)
    total = len(forest.ids)
    assert total == trees.tree_tokens(sequences)
    expected = np.zeros((total, total), bool)
    for s, path in zip(sequences, forest.paths):
        assert (forest.ids[path] == s.ids).all() and (forest.positions[path] == np.arange(len(path))).all()
        for q in range(len(path)):
            expected[path[q], path[max(0, q + 1 - window) if window else 0:q + 1]] = True
    attention = trees.Attention(torch.from_numpy(forest.end), torch.from_numpy(forest.positions), forest.blocks)
    everything = torch.arange(total)
    allowed = trees.sees(everything[:, None], everything, attention.end, attention.positions, window)
    assert (allowed.numpy() == expected).all()
    seen = np.zeros((total, total), bool)
    for start, stop, keys, mask in attention.block_inputs(window):
        keys = np.arange(start, stop) if keys is None else keys.numpy()
        mask = np.tril(np.ones((stop - start, len(keys)), bool)) if mask is None else mask.numpy()
        for q in range(start, stop):
            seen[q, keys[mask[q - start]]] = True
    assert (seen == expected).all()


@pytest.mark.parametrize("window", [None, 40])
def test_the_flex_attention_of_cuda_equals_the_blocks_of_the_cpu(window):
    """FlexAttention with our block mask, run on a CPU: same forest, grouped heads and windows."""
    from torch.nn.attention.flex_attention import flex_attention
    rng = np.random.default_rng(3)
    trunk = rng.integers(0, 99, 150)
    sequences = [sequence(np.concatenate([trunk[:n], rng.integers(0, 99, 60)]), n)
                 for n in (40, 40, 90, 90, 150, 150, 150)]
    forest = trees.build_prefix_forest(sequences)
    pad = -len(forest.ids) % 128
    end = np.concatenate([forest.end, np.arange(len(forest.ids), len(forest.ids) + pad) + 1])
    positions = np.pad(forest.positions, (0, pad))
    attention, flexible = (trees.Attention(torch.from_numpy(end), torch.from_numpy(positions), forest.blocks)
                           for _ in range(2))
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, len(end), 16) for heads in (4, 2, 2))
    mask = flexible.block_mask(window)
    row = torch.arange(len(end))
    dense = trees.sees(row[:, None], row, attention.end, attention.positions, window)
    blocks = dense.view(len(end) // 128, 128, -1, 128).permute(0, 2, 1, 3).flatten(2)
    listed = mask.to_dense()[0, 0].bool()
    assert (listed >= blocks.any(-1)).all(), "a block that somebody sees is left out"
    if window is None:
        assert (listed == blocks.any(-1)).all() and mask.full_kv_num_blocks.sum() == blocks.all(-1).sum()
    found = flex_attention(query, key, value, block_mask=mask, scale=0.25, enable_gqa=True)
    real = len(forest.ids)  # only CUDA pads
    expected, _ = trees.tree_attention(None, *(x[:, :, :real] for x in (query, key, value)), None, layout=attention,
                                    scaling=0.25, sliding_window=window)
    torch.testing.assert_close(found[:, :, :real].transpose(1, 2), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale, cap", [(1.0, None), (0.5, None), (1.0, 3.0), (2.0, 3.0)])
@pytest.mark.parametrize("keep", [True, False])
def test_the_chunked_head_and_its_gradient(scale, cap, keep):
    torch.manual_seed(0)
    inputs = [torch.randn(7, 5).requires_grad_(), torch.randn(11, 5).requires_grad_()]
    target, weight = torch.randint(11, (7,)), torch.randn(7)
    found = lm.TokenLogps.apply(*inputs, target, scale, cap, 3, keep)
    (found * weight).sum().backward()
    mine = [x.grad.clone() for x in inputs]
    for x in inputs:
        x.grad = None
    logits = (inputs[0] @ inputs[1].T) * scale
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    expected = torch.log_softmax(logits, -1).gather(1, target[:, None])[:, 0]
    (expected * weight).sum().backward()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for x, gradient in zip(inputs, mine):
        torch.testing.assert_close(gradient, x.grad, rtol=1e-4, atol=1e-6)


def test_no_tensor_of_the_vocabulary_times_all_tokens_is_made():
    """The largest tensor with a vocabulary dimension has one row for each scored token at most;
    with little memory, a chunk."""
    from torch.utils._python_dispatch import TorchDispatchMode
    rows = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            rows.extend(x.numel() // 300 for x in (out if isinstance(out, (tuple, list)) else [out])
                        if isinstance(x, torch.Tensor) and x.dim() > 1 and x.shape[-1] == 300)
            return out
    model = random_model("Llama")
    prompt = np.random.default_rng(0).integers(3, 300, 200)
    sequences = [sequence(np.concatenate([prompt, [5, 6, 7, n]]), 200) for n in range(8, 12)]
    batch = lm.collate([lm.Item(sequences, [], ())], CPU, "tree")
    for head_bytes, most in ((2 ** 29, 16), (4 * 4 * 300 * 4, 4)):
        rows.clear()
        with Watch():
            lm.Scorer(model, head_bytes=head_bytes)(batch).sum().backward()
        # 64: the gradient of the head's weight, transposed
        assert 0 < max(r for r in rows if r != 64) <= most, max(rows)


CAPPED = dict(intermediate_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=1,
              attn_logit_softcapping=0.5, initializer_range=0.3)


@pytest.mark.parametrize("family, sizes", [
    ("Mamba", dict(state_size=4)),
    ("Gemma2", CAPPED),    # transformers' default attention leaves its cap out
    ("GPTJ", dict(n_embd=32, n_layer=2, n_head=2, rotary_dim=8)),
    ("GptOss", dict(intermediate_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                    num_local_experts=2, num_experts_per_tok=1, sliding_window=16))])
def test_models_that_take_no_tree_mask_are_told_so(tmp_path, capsys, family, sizes):
    """A state-space model has no attention to mask, one with sinks or caps no attention of ours, an old one a table of its
    own: a sentence; with --pack none padded rows, and the same numbers as one by one."""
    import transformers
    shape = {} if "n_embd" in sizes else dict(hidden_size=32, num_hidden_layers=2)
    config = getattr(transformers, f"{family}Config")(vocab_size=300, pad_token_id=0, eos_token_id=1, **shape, **sizes)
    torch.manual_seed(0)
    of_family = getattr(transformers, f"{family}ForCausalLM")
    of_family(config).save_pretrained(tmp_path / "other")

    class Flags:
        pack, checkpointing, micro_tokens, dtype = "tree", "none", 4096, "float32"
    sequences = forest_of_dialogues(np.random.default_rng(0))[:6]
    with pytest.raises(SystemExit):
        lm.load_model(tmp_path / "other", CPU, Flags)
    assert "does not accept a tree mask" in (said := capsys.readouterr().err) and "--pack none" in said
    Flags.pack = "none"
    model = lm.load_model(tmp_path / "other", CPU, Flags)
    found = lm.score_all(model, sequences, CPU, Flags, "")
    plain = of_family.from_pretrained(tmp_path / "other", attn_implementation="eager")
    expected = one_at_a_time(plain, sequences, [torch.ones(len(s.scored)) for s in sequences])
    torch.testing.assert_close(torch.tensor(np.concatenate(found)), expected, rtol=1e-5, atol=1e-5)


def test_hidden_states_in_float32_meet_a_matrix_in_bfloat16():
    """A state-space model on CUDA: its last norm gives float32, its weights are bfloat16."""
    from transformers import MambaConfig, MambaForCausalLM
    torch.manual_seed(0)
    model = MambaForCausalLM(MambaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=2, state_size=4)).bfloat16()
    model.backbone.norm_f.float()
    batch = lm.collate([lm.Item(forest_of_dialogues(np.random.default_rng(0))[:2], [], ())], CPU, "none")
    assert torch.isfinite(lm.Scorer(model)(batch)).all()


TEXT = {**SHAPE, "head_dim": 16, "initializer_range": 0.5, "layer_types": ["sliding_attention", "full_attention"],
        "num_hidden_layers": 2}
VISION = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)


@pytest.mark.parametrize("pack", ["tree", "none"])
@pytest.mark.parametrize("family, kind, sizes", [
    ("Gemma3", "ForConditionalGeneration", dict(text_config=TEXT, vision_config=VISION)),
    ("Gemma4", "ForConditionalGeneration", dict(
        text_config={**TEXT, "global_head_dim": 16, "final_logit_softcapping": 2.0, "vocab_size_per_layer_input": 300,
                     "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
        vision_config={**VISION, "head_dim": 16, "num_key_value_heads": 2}))])
def test_caps_and_sizes_are_those_of_the_text_part(tmp_path, family, kind, sizes, pack):
    import transformers
    torch.manual_seed(0)
    model = getattr(transformers, family + kind)(getattr(transformers, family + "Config")(**sizes))
    model.save_pretrained(tmp_path / "model")
    sequences = forest_of_dialogues(np.random.default_rng(0))[:6]
    flags = argparse.Namespace(pack=pack, micro_tokens=4096, checkpointing="none", dtype="float32")
    found = lm.score_all(lm.load_model(tmp_path / "model", CPU, flags), sequences, CPU, flags, "")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    expected = one_at_a_time(plain, sequences, [torch.ones(len(s.scored)) for s in sequences])
    torch.testing.assert_close(torch.tensor(np.concatenate(found)), expected, rtol=1e-4, atol=1e-4)


def test_a_scale_of_the_logits_that_is_not_known_is_found_out(tmp_path, capsys):
    import transformers
    torch.manual_seed(0)
    config = transformers.HyperCLOVAXConfig(**SHAPE, logits_scaling=0.25, initializer_range=0.3)    # it multiplies by it
    transformers.HyperCLOVAXForCausalLM(config).save_pretrained(tmp_path / "model")
    flags = argparse.Namespace(pack="tree", micro_tokens=4096, checkpointing="none", dtype="float32")
    with pytest.raises(SystemExit):
        lm.load_model(tmp_path / "model", CPU, flags)
    assert "differ from those of the model's own logits" in capsys.readouterr().err


def test_a_model_whose_attention_ignores_the_mask_is_found_out(capsys):
    model = random_model("Llama").eval()
    lm.check_scores(model, "tree", "a model")
    model.set_attn_implementation("sdpa")
    with pytest.raises(SystemExit):
        lm.check_scores(model, "tree", "a model")
    assert "differ from those of the model's own logits" in capsys.readouterr().err


def test_that_check_is_made_in_float32(monkeypatch):
    """With AMX a pre-trained model's two layouts differ in bf16 by 0.15 nats a token: here a hook makes them differ."""
    model = random_model("Llama")
    loaded = lambda path, **options: (model, {"missing_keys": []})
    monkeypatch.setattr(lm.transformers.AutoModelForCausalLM, "from_pretrained", loaded)

    def rounding(module, inputs, output):
        if torch.is_autocast_enabled("cpu"):
            output.last_hidden_state.add_(torch.randn_like(output.last_hidden_state))
    model.model.register_forward_hook(rounding)
    flags = argparse.Namespace(pack="tree", checkpointing="none", dtype="bfloat16")
    scorer = lm.load_model("a model", CPU, flags)
    batch = lm.collate([lm.Item([sequence(range(20), 4)], [], ())], CPU, "tree")
    assert scorer.bf16 and not torch.allclose(scorer(batch), scorer(batch), atol=0.1), "it would fail in bf16"


@pytest.mark.parametrize("checkpointing, passes", [("none", 1), ("selective", 1.5), ("full", 2)])
def test_no_dropout_is_left_in_training(tmp_path, checkpointing, passes):
    """Nor where layers are computed again in the backward pass, which all, every second or none of them are."""
    import transformers
    config = transformers.LlamaConfig(**{**SHAPE, "num_hidden_layers": 4, "attention_dropout": 0.5})
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    flags = argparse.Namespace(pack="none", checkpointing=checkpointing, dtype="float32")
    model, ids = lm.load_model(tmp_path / "base", CPU, flags), torch.arange(20)[None]
    calls = []
    for layer in model.lm.model.layers:
        layer.mlp.register_forward_pre_hook(lambda *about: calls.append(1))
    logits = model.lm(ids).logits
    logits.sum().backward()
    assert len(calls) == 4 * passes
    assert torch.equal(model.lm(ids).logits, logits)
