"""A GGUF file as the seed model: what is unpacked is the model and the tokenizer that went in. Needs gguf and
accelerate, as `make demo-llm` installs them."""
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")
import lm  # noqa: E402

ROOT = Path(lm.__file__).parent
sys.path.insert(0, str(ROOT / "study"))
from unpack_gguf import unpack_gguf  # noqa: E402

TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def write_gguf(path, template=TEMPLATE, context=512, split="smollm"):
    """A tiny Llama with a byte-level tokenizer as a GGUF file, as llama.cpp writes one; returns the model."""
    vocabulary = ["<|endoftext|>", "<|im_start|>", "<|im_end|>",
                  *sorted(pre_tokenizers.ByteLevel.alphabet()), "12", "he", "Ġf"]
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=context, tie_word_embeddings=True, initializer_range=0.3)).eval()
    out = gguf.GGUFWriter(path, "llama")
    out.add_context_length(context), out.add_embedding_length(32), out.add_feed_forward_length(64)
    out.add_block_count(2), out.add_head_count(4), out.add_head_count_kv(2), out.add_rope_dimension_count(8)
    out.add_layer_norm_rms_eps(model.config.rms_norm_eps), out.add_rope_freq_base(10000.0)
    out.add_vocab_size(len(vocabulary))
    out.add_tokenizer_model("gpt2"), out.add_tokenizer_pre(split), out.add_token_list(vocabulary)
    out.add_token_types([3] * 3 + [1] * (len(vocabulary) - 3)), out.add_token_merges(["1 2", "h e", "Ġ f"])
    out.add_bos_token_id(1), out.add_eos_token_id(2), out.add_unk_token_id(0), out.add_pad_token_id(2)
    if template:
        out.add_chat_template(template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, weight in model.named_parameters():
        value = weight.detach().numpy()
        if heads := {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2]):  # the other order of rotated pairs
            value = value.reshape(heads, 2, -1, 32).swapaxes(1, 2).reshape(value.shape)
        out.add_tensor(names.get_name(name, (".weight",)), np.ascontiguousarray(value))
    out.write_header_to_file(), out.write_kv_data_to_file(), out.write_tensors_to_file(), out.close()
    return model


def test_what_is_unpacked_is_what_went_in(tmp_path):
    model = write_gguf(tmp_path / "m.gguf")
    unpack_gguf(tmp_path / "m.gguf", tmp_path / "model")
    tokenizer = lm.load_tokenizer(tmp_path / "model")
    said = [{"role": "user", "content": "Hi 12"}]
    prompt = "<|im_start|>user\nHi 12<|im_end|>\n<|im_start|>assistant\n"
    assert lm.render_prompt(tokenizer, said) == prompt and lm.end_of_turn(tokenizer) == [2]
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
    assert tokenizer.decode(ids[0]) == prompt and ids[0].tolist().count(1) == 2
    words = tokenizer("the f 12", add_special_tokens=False).tokens()
    assert words == ["t", "he", "Ġf", "Ġ", "1", "2"], "digits stand alone, whatever the merges say"
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert found.dtype == torch.float32 and found.config.max_position_embeddings == 512
    torch.testing.assert_close(found(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fault", ["cut in its weights", "cut in its header", "no GGUF at all", "empty", "missing"])
def test_a_damaged_gguf_is_refused_in_one_sentence(tmp_path, fault, capsys):
    file = tmp_path / "m.gguf"
    write_gguf(file)
    whole = file.read_bytes()
    file.write_bytes({"cut in its weights": whole[:-40], "cut in its header": whole[:400],
                      "no GGUF at all": b"{}"}.get(fault, b""))
    if fault == "missing":
        file.unlink()
    with pytest.raises(SystemExit) as stopped:
        unpack_gguf(file, tmp_path / "model")
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and f"{file}: cannot be unpacked (" in said and said.count("\n") == 1
    assert not (tmp_path / "model").exists()


def test_models_that_cannot_talk_are_refused_in_one_sentence(tmp_path, capsys):
    """No chat template; a tokenizer that splits words by an unknown rule; a context shorter than a dialogue."""
    for name, settings in (("mute", {"template": ""}), ("other", {"split": "tekken"}), ("short", {"context": 16})):
        write_gguf(tmp_path / f"{name}.gguf", **settings)
    unpack_gguf(tmp_path / "mute.gguf", tmp_path / "mute")
    unpack_gguf(tmp_path / "short.gguf", tmp_path / "short")
    capsys.readouterr()
    dialogue, flags = lm.Sequence(np.arange(17), 0), SimpleNamespace(input="d.jsonl")
    items = [lm.Item([dialogue], [], ("", 0))]
    for refused, words in ((lambda: lm.load_tokenizer(tmp_path / "mute"), "mute has no chat template"),
                           (lambda: unpack_gguf(tmp_path / "other.gguf", tmp_path / "o"), "'tekken'"),
                           (lambda: lm.usable_items(items, tmp_path / "short", flags),
                            "d.jsonl: no dialogue fits the context of")):
        with pytest.raises(SystemExit) as stopped:
            refused()
        said = capsys.readouterr().err.splitlines()
        assert stopped.value.code == 2 and words in said[-1] and len(said) == 1, said


def test_a_gguf_is_unpacked_on_the_command_line(tmp_path):
    """What is whole becomes a folder; one that is cut off leaves nothing behind."""
    write_gguf(tmp_path / "m.gguf")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "m.gguf").read_bytes()[:-40])
    for name, code in (("cut", 2), ("m", 0)):
        done = subprocess.run([sys.executable, ROOT / "study/unpack_gguf.py", f"{name}.gguf", "--out", f"run/{name}"],
                              cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert (tmp_path / "run" / name / "config.json").exists() == (code == 0)
