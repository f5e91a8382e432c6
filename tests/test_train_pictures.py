"""The critic that sees pages: a regression head on an image-text model, over the reference's picture and the page's."""
import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from test_render import WITHOUT, needs_browser
import lm
import train_critic
import train_policy
from conftest import ROOT, call, metrics, write
from test_train import Flags

CPU = torch.device("cpu")
SHADES = [["#ffffff", "#fef3c7"], ["#1d4ed8", "#1e3a8a"]]  # of trained pages: light ones and dark ones
UNSEEN = ["#e5e7eb", "#312e81"]
IMAGE = {"llava": "<image>", "gemma3": "<image_soft_token>", "idefics3": "<image>", "qwen2_vl": "<|image_pad|>"}
REQUEST = [{"role": "user", "content": "Make me a page, please."}]
PICTURES = Path("cache/pictures")


def page(colour, words=""):
    """A page whose colour is all that its picture shows."""
    return f'<html><body style="margin:0;background:{colour}"><p style="color:{colour}">{words}</p></body></html>'


# A small random model that sees


def seeing_tokenizer(family):
    words = "The pictures show the page of the last reply. user: Make me a page, please."
    tokenizer, image = train_policy.tiny_tokenizer([words] * 3, 400), IMAGE[family]
    others = ["<start_of_image>", "<end_of_image>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"]
    if family == "idefics3":
        others = ["<fake_token_around_image>", "<end_of_utterance>", "<global-img>"]
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>", image, *others]})
    shown = {"gemma3": "<start_of_image>", "qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>"}.get(family, image)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{% for part in m['content'] %}"
        "{% if part['type'] == 'image' %}" + shown + "{% else %}{{ part['text'] }}{% endif %}"
        "{% endfor %}<|end|>{% endfor %}")
    return tokenizer


def make_seeing_model(folder, family="llava"):
    """An image-text model and its processor in `folder`, in Hugging Face format."""
    import transformers as hf
    torch.manual_seed(0)
    tokenizer = seeing_tokenizer(family)
    of = tokenizer.convert_tokens_to_ids
    image = of(IMAGE[family])
    text = dict(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024, initializer_range=0.08,
                bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    sight = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, image_size=32,
                 patch_size=16, initializer_range=0.08)
    square, template = {"height": 32, "width": 32}, {"chat_template": tokenizer.chat_template}
    if family == "llava":
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
        model = hf.LlavaForConditionalGeneration(hf.LlavaConfig(
            vision_config=hf.CLIPVisionConfig(**sight), text_config=hf.LlamaConfig(**text), image_token_index=image,
            vision_feature_layer=-1, initializer_range=0.08))
        processor = hf.LlavaProcessor(
            CLIPImageProcessorPil(size=square, do_center_crop=False), tokenizer, patch_size=16,
            vision_feature_select_strategy="default", num_additional_image_tokens=1, **template)
    elif family == "gemma3":
        from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
        tokenizer._set_model_specific_special_tokens({"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
                                                      "image_token": IMAGE[family]})
        layers = ["sliding_attention", "full_attention"]
        model = hf.Gemma3ForConditionalGeneration(hf.Gemma3Config(
            vision_config=hf.SiglipVisionConfig(**sight), mm_tokens_per_image=4, image_token_index=image,
            text_config=hf.Gemma3TextConfig(**text, head_dim=16, sliding_window=16, layer_types=layers)))
        processor = hf.Gemma3Processor(Gemma3ImageProcessorPil(size=square), tokenizer, image_seq_length=4, **template)
    elif family == "idefics3":
        from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
        model = hf.Idefics3ForConditionalGeneration(hf.Idefics3Config(
            vision_config=hf.Idefics3VisionConfig(**sight), text_config=hf.LlamaConfig(**text), image_token_id=image,
            scale_factor=1))
        images = Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
        processor = hf.Idefics3Processor(images, tokenizer, image_seq_len=4, **template)
    else:
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
        vision = dict(depth=1, embed_dim=32, hidden_size=64, num_heads=2, mlp_ratio=2, initializer_range=0.08)
        model = hf.Qwen2VLForConditionalGeneration(hf.Qwen2VLConfig(
            vision_config=vision, text_config=text, image_token_id=image, video_token_id=of("<|video_pad|>"),
            vision_start_token_id=of("<|vision_start|>"), vision_end_token_id=of("<|vision_end|>")))
        images = hf.Qwen2VLImageProcessor(size={"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 6})
        processor = hf.Qwen2VLProcessor(images, tokenizer, hf.Qwen2VLVideoProcessor(), **template)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


# Trajectories whose reward says whether the last page is light or dark as wanted, and nothing but pictures tells it


def trajectory(task, sample, shown, wanted, reward):
    history = list(REQUEST)
    for colour in shown:
        history += [{"role": "assistant", "content": page(colour)}, {"role": "user", "content": "Not yet."}]
    return {"task_id": f"task-{task}", "sample": sample, "domain": "frontend", "finish": "answered", "reward": reward,
            "task": {"task_id": f"task-{task}", "ground_truth": page(wanted)}, "dialogue_history": history[:-1]}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    make_seeing_model(folder / "base")
    records, candidates, rng = [], [], np.random.default_rng(0)
    for task in range(8):
        wanted, other = (SHADES[(task + n) % 2][task // 2 % 2] for n in (0, 1))
        records += [trajectory(task, 0, [other, wanted], wanted, 0.9), trajectory(task, 1, [other, other], wanted, 0.3),
                    trajectory(task, 2, [wanted, wanted], wanted, 0.85)]
    for task in range(6):
        wanted, order = UNSEEN[task % 2], rng.permutation([0, 0, 1, 1])
        candidates.append({
            "task_id": f"new-{task}", "sample": 0, "turn": 0, "prompt": REQUEST, "task": {"ground_truth": page(wanted)},
            "candidates": [{"output": page(UNSEEN[i], f"Unseen {n}")} for n, i in enumerate(order)],
            "right": [UNSEEN[i] == wanted for i in order]})
    write(folder / "scored.jsonl", records)
    write(folder / "candidates.jsonl", candidates)
    texts = [m["content"] for r in records for m in r["dialogue_history"]]
    train_policy.make_tiny_model(folder / "policy-base", texts, 400, seed=0)
    return folder


@pytest.fixture
def place(world, monkeypatch):
    monkeypatch.chdir(world)
    monkeypatch.setattr(train_critic, "PICTURE", (32, 64))  # small files: these tests are not about detail
    return world


CRITIC = ["--domain", "frontend", "--head", "regression", "--in", "scored.jsonl", "--model", "base", "--lr", "2e-3",
          "--beta", "5", "--epochs", "12"]


@pytest.fixture
def critic(place):
    """The trained critic, trained once."""
    if not Path("critic/config.json").is_file():
        code, said, error = call(train_critic, *CRITIC, "--out", "critic")
        assert code == 0, error
        Path("said").write_text(said)
    return "critic"


# What it learns


@needs_browser
def test_a_critic_learns_what_only_the_pictures_say(critic):
    losses = [m["preference_loss"] for m in metrics(critic)]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6) and np.mean(losses[-3:]) < 0.2
    # In each of the 8 tasks 0.9 and 0.85 are each paired with 0.3; rewards that are 0.05 apart are no pair.
    assert "16 pairs from 8 tasks" in Path("said").read_text()
    note = json.loads(Path("critic/critic.json").read_text())
    assert note["pictures"] and note["head"] == "regression" and len(note["weights"]["weight"]) == 64
    code, said, error = call(train_critic, *CRITIC, "--out", "blind", "--context", "without-c")
    assert code == 0, error
    blind = np.mean([m["preference_loss"] for m in metrics("blind")[-3:]])
    assert blind > 0.5, "without the reference nobody could tell"


@needs_browser
def test_the_policy_ranks_unseen_candidates_by_their_pictures(critic):
    code, said, error = call(train_critic, "--score", "candidates.jsonl", "--critic", critic, "--out", "ranked.jsonl")
    assert code == 0, error
    code, said, error = call(train_policy, "--in", "ranked.jsonl", "--model", "policy-base", "--out", "policy",
                             "--lr", "1e-3", "--batch-size", "4")
    assert code == 0, error
    turns = [json.loads(line) for line in open("ranked.jsonl")]
    for turn in turns:
        values, right = np.array([one["advantage"] for one in turn["candidates"]]), np.array(turn["right"])
        assert values[right].min() > values[~right].max(), (turn["task"], values, right)
    pairs = [json.loads(line) for line in open("policy.pairs.jsonl")]
    assert len(pairs) == len(turns)
    for turn, pair in zip(turns, pairs):
        texts = [c["output"] for c in turn["candidates"]]
        assert turn["right"][texts.index(pair["chosen"][0]["content"])]
        assert not turn["right"][texts.index(pair["rejected"][0]["content"])]
    from transformers import AutoModelForCausalLM
    assert AutoModelForCausalLM.from_pretrained("policy").config.model_type == "llama"


@needs_browser
def test_annotated_turns_have_the_value_of_their_page(critic):
    code, said, error = call(train_critic, "--score", "scored.jsonl", "--critic", critic, "--out", "seen.jsonl")
    assert code == 0 and "24 records" in said, error
    for record in map(json.loads, open("seen.jsonl")):
        first, last = (m["advantage"] for m in record["dialogue_history"] if m["role"] == "assistant")
        if record["sample"] == 0:
            assert last > first, "it turned the page into the one that is wanted"


# That a turn's value is what it says


@needs_browser
@pytest.mark.parametrize("family", ["llava", "gemma3", "idefics3", "qwen2_vl"])
def test_a_turns_value_is_the_head_on_its_mean_hidden_state(family, tmp_path, monkeypatch):
    """One at a time, in padded rows, and by nothing but transformers' own model and processor."""
    if family == "qwen2_vl":
        pytest.importorskip("torchvision", reason="the processor of Qwen2-VL needs torchvision")
    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor
    monkeypatch.chdir(tmp_path)
    make_seeing_model(tmp_path / "base", family)
    processor, head = train_critic.load_processor("base"), torch.nn.Linear(64, 1)
    tall = '<html><body style="margin:0"><div style="height:3000px;background:#1d4ed8"></div></body></html>'
    turns = [(REQUEST * (1 + n), {"content": reply}, page(SHADES[0][0]))
             for n, reply in enumerate([page(SHADES[1][0]), tall, "Which colour?"])]
    sequences = train_critic.picture_turns(processor, turns, PICTURES)
    assert len({len(s.ids) for s in sequences}) == 3

    def means(micro_tokens):
        args = Flags()
        args.micro_tokens, args.pack, args.pictures = micro_tokens, "none", True
        model = train_critic.load_scorer("base", CPU, args, head, processor)
        return [value.mean() for value in lm.score_all(model, sequences, CPU, args, "")]

    one = means(1)
    assert len({round(float(mean), 4) for mean in one}) == 3, "the pages differ"
    assert means(10 ** 6) == pytest.approx(one, abs=1e-5)
    processor, model = AutoProcessor.from_pretrained("base"), AutoModelForImageTextToText.from_pretrained("base").eval()
    for sequence, mean in zip(sequences, one):
        text, files = sequence.page_inputs
        inputs = processor(text=[text], images=[[Image.open(file) for file in files]], return_tensors="pt",
                           add_special_tokens=False)
        with torch.no_grad():
            hidden = model(**inputs, output_hidden_states=True).hidden_states[-1][0]  # (T, D)
            assert head(hidden.mean(0)).item() == pytest.approx(mean, abs=1e-5)


@needs_browser
def test_what_the_critic_sees_of_a_turn(place):
    from PIL import Image
    processor = train_critic.load_processor("base")
    dark, light = page(SHADES[1][0], "secret words"), page(SHADES[0][0])
    prompt = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "A page. <image><|end|>"},
              {"role": "assistant", "content": dark}, {"role": "user", "content": "Lighter."}]
    replies = [f"A thought. OUTPUT: {light}", "Which colour?", "<html><p>" + "x" * 1_100_000 + "</p></html>"]
    sequences = train_critic.picture_turns(
        processor, [(prompt, {"content": reply}, dark) for reply in replies], PICTURES)
    brightness = [[np.asarray(Image.open(file)).mean() for file in s.page_inputs[1]] for s in sequences]
    assert all(reference < 120 for reference, _ in brightness), "the reference comes first"
    assert [shown for _, shown in brightness] == [255] * 3, "a white page, no page, and one too large to render"
    for sequence in sequences:
        text, _ = sequence.page_inputs
        assert text.count("<image>") == 2 and text.count("<|end|>") == 1, "a stranger's words stand for no picture"
        assert "secret" not in text and "kind" not in text
        assert "assistant: [page]" in text and "user: Lighter." in text
        assert (sequence.ids == processor.tokenizer.convert_tokens_to_ids("<image>")).sum() == 2 * 4
        assert len(sequence.scored) == len(sequence.ids)
    assert "assistant: A thought. OUTPUT: [page]" in sequences[0].page_inputs[0]
    assert "assistant: Which colour?" in sequences[1].page_inputs[0]
    record = {**trajectory(0, 0, SHADES[0], SHADES[1][0], 0.5), "system": "Be kind."}
    first, second = train_critic.picture_turns(processor, lm.turns_of(record, True), PICTURES)
    batch = lm.collate([lm.Item([first, second], [], ())], CPU, "none")
    assert batch.turn.tolist() == [0] * len(first.ids) + [1] * len(second.ids), "Eq. 2 adds up the turns"
    digests = [hashlib.sha256(source.encode()).hexdigest() for source in [page(SHADES[1][0]), *map(page, SHADES[0])]]
    assert first.page_inputs[1] + second.page_inputs[1][1:] == [str(PICTURES / f"{digest[:16]}.png") for digest in digests]
    alone, = train_critic.picture_turns(processor, [(prompt, {"content": light}, None)], PICTURES)
    assert len(alone.page_inputs[1]) == 1 and alone.page_inputs[0].count("<image>") == 1, "without c: the agent's page only"


# Stopping, going on, and many processes


@needs_browser
def test_a_stopped_run_goes_on_to_the_same_bits(place, monkeypatch):
    command = [*CRITIC, "--epochs", "3", "--batch-size", "4", "--save-every", "2"]
    assert call(train_critic, *command, "--out", "straight")[0] == 0
    real = lm.log

    def log_and_stop(values, *others):
        real(values, *others)
        if values["step"] == 5:
            raise KeyboardInterrupt
    with monkeypatch.context() as m:
        m.setattr(train_critic, "log", log_and_stop)
        with pytest.raises(KeyboardInterrupt):
            call(train_critic, *command, "--out", "stopped")
    code, said, error = call(train_critic, *command, "--out", "stopped")
    assert code == 0 and "after step 4" in said, error
    assert Path("stopped/model.safetensors").read_bytes() == Path("straight/model.safetensors").read_bytes()
    assert metrics("stopped") == metrics("straight")


@needs_browser
@pytest.mark.slow
def test_two_processes_train_the_critic_that_one_trains(place):
    from safetensors.torch import load_file
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command = [*CRITIC, "--max-steps", "3", "--batch-size", "3", "--micro-tokens", "1"]  # one rank has a batch less
    for count, out in (("1", "one"), ("2", "two")):
        done = subprocess.run([*torchrun, count, str(ROOT / "train_critic.py"), *command, "--out", out], text=True,
                              capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr[-2000:]
    one, two = load_file("one/model.safetensors"), load_file("two/model.safetensors")
    assert one.keys() == two.keys()
    # A key's bias changes no attention: its gradient is rounding alone, which AdamW scales up to the learning rate.
    assert all((one[k] - two[k]).norm() <= 1e-5 * one[k].norm() for k in one if not k.endswith("k_proj.bias"))


# Mistakes


def test_mistakes_are_one_sentence_each(place, monkeypatch):
    def sentence(*arguments):
        code, _, error = call(train_critic, *CRITIC, "--out", "none/none", *arguments)
        assert code == 2 and "Traceback" not in error, error
        found = [line for line in error.splitlines() if line.startswith("train_critic.py: ")]
        assert len(found) == 1, error
        return found[0]

    assert "reads only text" in sentence("--model", "policy-base")
    make_seeing_model(Path("no-processor"))
    Path("no-processor/processor_config.json").unlink()
    assert "no-processor: " in sentence("--model", "no-processor")
    make_seeing_model(Path("no-template"))
    Path("no-template/chat_template.jinja").unlink()
    assert "has no chat template" in sentence("--model", "no-template")
    if WITHOUT is None:
        with monkeypatch.context() as m:
            m.setenv("CHROMIUM_PATH", "/nowhere/chromium")
            assert "/nowhere/chromium" in sentence()
    assert not Path("none/none").exists()
