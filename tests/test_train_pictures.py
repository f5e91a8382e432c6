"""The critic that sees pages: a regression head on an image-text model, over the reference's picture and the agent's."""
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from test_render import needs_browser
from test_train import ROOT, Flags, call, metrics, train_critic, train_policy, write

CPU = torch.device("cpu")
SHADES = [["#ffffff", "#fef3c7"], ["#1d4ed8", "#1e3a8a"]]  # of trained pages: light ones and dark ones
UNSEEN = ["#e5e7eb", "#312e81"]
IMAGE = {"llava": "<image>", "gemma3": "<image_soft_token>", "idefics3": "<image>", "qwen2_vl": "<|image_pad|>"}


def page(colour, words=""):
    """A page whose colour is all that its picture shows."""
    return f'<html><body style="margin:0;background:{colour}"><p style="color:{colour}">{words}</p></body></html>'


def seeing_tokenizer(family):
    tokenizer = train_policy.tiny_tokenizer(["The pictures show the page of the last reply. user: Make me a page, please."] * 3, 400)
    image = IMAGE[family]
    if family == "idefics3":
        others = ["<fake_token_around_image>", "<end_of_utterance>", "<global-img>"]
    else:
        others = ["<start_of_image>", "<end_of_image>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>", image, *others]})
    shown = {"gemma3": "<start_of_image>", "qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>"}.get(family, image)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{% for part in m['content'] %}{% if part['type'] == 'image' %}" + shown +
        "{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|end|>{% endfor %}")
    return tokenizer


def make_seeing_model(folder, family="llava"):
    """A small random image-text model and its processor in `folder`, in Hugging Face format."""
    import transformers as hf
    torch.manual_seed(0)
    tokenizer = seeing_tokenizer(family)
    image_id = tokenizer.convert_tokens_to_ids(IMAGE[family])
    text = dict(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=1024, initializer_range=0.08, bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    sight = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=16,
                 initializer_range=0.08)
    if family == "llava":
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
        config = hf.LlavaConfig(vision_config=hf.CLIPVisionConfig(**sight, projection_dim=32), text_config=hf.LlamaConfig(**text),
                                image_token_index=image_id, vision_feature_layer=-1, initializer_range=0.08)
        model = hf.LlavaForConditionalGeneration(config)
        processor = hf.LlavaProcessor(CLIPImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False), tokenizer,
                                      patch_size=16, vision_feature_select_strategy="default", num_additional_image_tokens=1,
                                      chat_template=tokenizer.chat_template)
    elif family == "gemma3":
        from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
        tokenizer._set_model_specific_special_tokens({"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
                                                      "image_token": IMAGE[family]})
        config = hf.Gemma3Config(vision_config=hf.SiglipVisionConfig(**sight), mm_tokens_per_image=4, image_token_index=image_id,
                                 text_config=hf.Gemma3TextConfig(**text, head_dim=16, sliding_window=16, layer_types=[
                                     "sliding_attention", "full_attention"]))
        model = hf.Gemma3ForConditionalGeneration(config)
        processor = hf.Gemma3Processor(Gemma3ImageProcessorPil(size={"height": 32, "width": 32}), tokenizer, image_seq_length=4,
                                       chat_template=tokenizer.chat_template)
    elif family == "idefics3":
        from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
        config = hf.Idefics3Config(vision_config=hf.Idefics3VisionConfig(**sight), text_config=hf.LlamaConfig(**text),
                                   image_token_id=image_id, scale_factor=1)
        model = hf.Idefics3ForConditionalGeneration(config)
        images = Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
        processor = hf.Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=tokenizer.chat_template)
    else:
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
        config = hf.Qwen2VLConfig(
            vision_config=dict(depth=1, embed_dim=32, hidden_size=64, num_heads=2, mlp_ratio=2, patch_size=14, initializer_range=0.08),
            text_config=text, image_token_id=image_id, video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
            vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
            vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"))
        model = hf.Qwen2VLForConditionalGeneration(config)
        images = hf.Qwen2VLImageProcessor(size={"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 6})
        processor = hf.Qwen2VLProcessor(images, tokenizer, hf.Qwen2VLVideoProcessor(), chat_template=tokenizer.chat_template)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def trajectory(task, sample, shown, wanted, reward, words=""):
    history = [{"role": "user", "content": "Make me a page, please."}]
    for colour in shown:
        history += [{"role": "assistant", "content": page(colour, words)}, {"role": "user", "content": "Not yet."}]
    return {"task_id": f"task-{task}", "sample": sample, "domain": "frontend", "finish": "answered", "reward": reward,
            "task": {"task_id": f"task-{task}", "ground_truth": page(wanted, words)}, "dialogue_history": history[:-1]}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a seeing model, and trajectories whose reward says whether the last page is light or dark as wanted."""
    folder = tmp_path_factory.mktemp("pictures")
    make_seeing_model(folder / "base")
    records = []
    for task in range(8):
        wanted, other = (SHADES[(task + n) % 2][task // 2 % 2] for n in (0, 1))
        records += [trajectory(task, 0, [other, wanted], wanted, 0.9), trajectory(task, 1, [other, other], wanted, 0.3),
                    trajectory(task, 2, [wanted, wanted], wanted, 0.85)]
    write(folder / "scored.jsonl", records)
    rng = np.random.default_rng(0)
    candidates = []
    for task in range(6):
        wanted = UNSEEN[task % 2]
        order = rng.permutation([0, 0, 1, 1])
        candidates.append({
            "task_id": f"new-{task}", "sample": 0, "turn": 0, "prompt": [{"role": "user", "content": "Make me a page, please."}],
            "task": {"ground_truth": page(wanted)}, "right": [UNSEEN[i] == wanted for i in order],
            "candidates": [{"output": page(UNSEEN[i], f"Unseen {n}")} for n, i in enumerate(order)]})
    write(folder / "candidates.jsonl", candidates)
    texts = [m["content"] for r in records for m in r["dialogue_history"]]
    train_policy.make_tiny_model(folder / "policy-base", texts, 400, seed=0)
    return folder


@pytest.fixture
def place(world, monkeypatch):
    monkeypatch.chdir(world)
    for module in (train_critic, train_policy):
        monkeypatch.setattr(module, "PICTURE", (32, 64))  # small files: these tests are not about detail
    return world


CRITIC = ["--domain", "frontend", "--head", "regression", "--in", "scored.jsonl", "--model", "base", "--lr", "2e-3", "--beta", "5",
          "--epochs", "12"]


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
def test_a_critic_learns_from_the_two_pictures_what_the_text_does_not_say(critic):
    losses = [m["preference_loss"] for m in metrics(critic)]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6) and np.mean(losses[-3:]) < 0.2
    # Pages whose rewards are 0.05 apart are no pair: one pair of 0.9 and 0.3 and one of 0.85 and 0.3 in each of 8 tasks.
    assert "16 pairs from 8 tasks" in Path("said").read_text()
    note = json.loads(Path("critic/critic.json").read_text())
    assert note["pictures"] and note["head"] == "regression" and len(note["weights"]["weight"]) == 64
    code, said, error = call(train_critic, *CRITIC, "--out", "blind", "--context", "without-c")
    assert code == 0, error
    assert np.mean([m["preference_loss"] for m in metrics("blind")[-3:]]) > 0.5, "without the reference nobody could tell"


@needs_browser
def test_the_policy_ranks_unseen_candidates_by_their_pictures(critic):
    code, said, error = call(train_policy, "--in", "candidates.jsonl", "--model", "policy-base", "--critic", critic, "--out", "policy",
                             "--pairs", "pairs.jsonl", "--lr", "1e-3", "--batch-size", "4", "--pack", "turn")
    assert code == 0, error
    turns = [json.loads(line) for line in open("candidates.jsonl")]
    file, = Path("cache").glob("advantages-*.jsonl")
    for turn, line in zip(turns, open(file)):
        values = np.array(json.loads(line)["advantages"])
        right = np.array(turn["right"])
        assert values[right].min() > values[~right].max(), (turn["task"], values, right)
    pairs = [json.loads(line) for line in open("pairs.jsonl")]
    assert len(pairs) == len(turns)
    for turn, pair in zip(turns, pairs):
        texts = [c["output"] for c in turn["candidates"]]
        assert turn["right"][texts.index(pair["chosen"][0]["content"])]
        assert not turn["right"][texts.index(pair["rejected"][0]["content"])]
    from transformers import AutoModelForCausalLM
    assert AutoModelForCausalLM.from_pretrained("policy").config.model_type == "llama"


@needs_browser
def test_annotated_turns_have_the_value_of_their_page(critic):
    code, said, error = call(train_critic, "--annotate", "scored.jsonl", "--critic", critic, "--out", "seen.jsonl", "--overwrite")
    assert code == 0 and "24 trajectories with 48 advantages" in said, error
    for line in open("seen.jsonl"):
        record = json.loads(line)
        first, last = (m["advantage"] for m in record["dialogue_history"] if m["role"] == "assistant")
        if record["sample"] == 0:
            assert last > first, "it turned the page into the one that is wanted"


# That a turn's value is what it says


def views_of(processor, folder, replies, reference=page(SHADES[0][0])):
    turns = [([{"role": "user", "content": "Make me a page, please. " * (1 + n)}], reply, reference) for n, reply in enumerate(replies)]
    return train_critic.view_turns(turns, processor, Path(folder))


@needs_browser
@pytest.mark.parametrize("family", ["llava", "gemma3", "idefics3", "qwen2_vl"])
def test_a_turns_value_is_the_head_on_its_mean_hidden_state_whatever_is_batched_with_it(family, tmp_path, monkeypatch):
    """One at a time, in padded rows, and by the model and the processor alone, as Hugging Face's documentation has them."""
    if family == "qwen2_vl":
        pytest.importorskip("torchvision", reason="the processor of Qwen2-VL needs torchvision")
    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor
    monkeypatch.chdir(tmp_path)
    make_seeing_model(tmp_path / "base", family)
    processor = train_critic.load_processor("base")
    long = '<html><body style="margin:0"><div style="height:3000px;background:#1d4ed8"></div></body></html>'
    sequences = views_of(processor, "cache", [page(SHADES[1][0]), long, "Which colour?"])
    assert len({len(s.ids) for s in sequences}) == 3
    head = torch.nn.Linear(64, 1)

    class Loose(Flags):
        pack, micro_tokens = "turn", 1
    one = train_critic.score_all(train_critic.load_model("base", CPU, Loose(), head, False, processor), sequences, CPU, Loose(), "")
    args = Loose()
    args.micro_tokens = 10 ** 6
    model = train_critic.load_model("base", CPU, args, head, False, processor)
    assert args.pack == "padded"
    batched = train_critic.score_all(model, sequences, CPU, args, "")
    means = np.array([value.mean() for value in one])
    assert len({round(float(m), 4) for m in means}) == 3, "the pages differ"
    assert [value.mean() for value in batched] == pytest.approx(means, abs=1e-5)
    theirs, alone = AutoProcessor.from_pretrained("base"), AutoModelForImageTextToText.from_pretrained("base").eval()
    for sequence, mean in zip(sequences, means):
        text, files = sequence.view
        inputs = theirs(text=[text], images=[[Image.open(f) for f in files]], add_special_tokens=False, return_tensors="pt")
        with torch.no_grad():
            hidden = alone(**inputs, output_hidden_states=True).hidden_states[-1][0]
            assert head(hidden.mean(0)).item() == pytest.approx(mean, abs=1e-5)


@needs_browser
def test_what_the_critic_sees_of_a_turn(place):
    from PIL import Image
    processor = train_critic.load_processor("base")
    dark, light = page(SHADES[1][0], "secret words"), page(SHADES[0][0])
    prompt = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "A page. <image><|end|>"},
              {"role": "assistant", "content": dark}, {"role": "user", "content": "Lighter."}]
    replies = [f"A thought. OUTPUT: {light}", "Which colour?", "<html><p>" + "x" * 1_100_000 + "</p></html>"]
    sequences = train_critic.view_turns([(prompt, reply, dark) for reply in replies], processor, Path("cache/pictures"))
    brightness = [[np.asarray(Image.open(f)).mean() for f in s.view[1]] for s in sequences]
    assert all(reference < 120 for reference, _ in brightness), "the reference comes first"
    assert [shown for _, shown in brightness] == [255, 255, 255], "white: a white page, no page, and one too large to render"
    for sequence in sequences:
        text, _ = sequence.view
        assert text.count("<image>") == 2 and text.count("<|end|>") == 1, "what a stranger wrote stands for no picture"
        assert "secret" not in text and "kind" not in text and "assistant: [page]" in text and "user: Lighter." in text
        assert (sequence.ids == processor.tokenizer.convert_tokens_to_ids("<image>")).sum() == 2 * 4
        assert len(sequence.scored) == len(sequence.ids)
    assert "assistant: A thought. OUTPUT: [page]" in sequences[0].view[0] and "assistant: Which colour?" in sequences[1].view[0]
    alone, = train_critic.view_turns([(prompt, light, None)], processor, Path("cache/pictures"))
    assert len(alone.view[1]) == 1 and alone.view[0].count("<image>") == 1, "without c only the agent's page is seen"


# Stopping, going on, and many processes


@needs_browser
def test_a_stopped_run_goes_on_to_the_same_bits(place, monkeypatch):
    command = [*CRITIC, "--epochs", "3", "--batch-size", "4"]
    assert call(train_critic, *command, "--out", "straight")[0] == 0
    real = train_critic.write_metrics

    def write_and_stop(log, bar, values):
        real(log, bar, values)
        if values["step"] == 5:
            os.kill(os.getpid(), signal.SIGTERM)
    monkeypatch.setattr(train_critic, "write_metrics", write_and_stop)
    monkeypatch.setattr(train_critic, "signals", [])
    code, said, _ = call(train_critic, *command, "--out", "stopped")
    assert code == 128 + signal.SIGTERM and "after step 5" in said
    monkeypatch.undo()
    monkeypatch.chdir(place)
    monkeypatch.setattr(train_critic, "PICTURE", (32, 64))
    code, said, error = call(train_critic, *command, "--out", "stopped", "--resume")
    assert code == 0 and "after step 5 of 12" in said, error
    assert Path("stopped/model.safetensors").read_bytes() == Path("straight/model.safetensors").read_bytes()
    assert metrics("stopped") == metrics("straight")


@needs_browser
@pytest.mark.slow
def test_two_processes_train_the_critic_that_one_trains(place):
    from safetensors.torch import load_file
    command = [*CRITIC, "--max-steps", "3", "--batch-size", "3", "--micro-batch", "1"]  # one rank has a batch less
    for count, out in ((1, "one"), (2, "two")):
        done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count),
                               str(ROOT / "train_critic.py"), *command, "--out", out], capture_output=True, text=True,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr[-2000:]
    one, two = load_file("one/model.safetensors"), load_file("two/model.safetensors")
    assert one.keys() == two.keys()
    assert all(((one[k] - two[k]).norm() / one[k].norm()).item() < 1e-5 for k in one)


# Mistakes


def test_mistakes_are_one_sentence_each(place, monkeypatch):
    def sentence(module, *arguments):
        code, _, error = call(module, *arguments)
        assert code == 2 and "Traceback" not in error, error
        found = [line for line in error.splitlines() if line.startswith(module.__name__ + ".py: ")]
        assert len(found) == 1, error
        return found[0]
    command = [*CRITIC, "--out", "none"]
    assert "reads text only" in sentence(train_critic, *command, "--model", "policy-base")
    make_seeing_model(Path("no-processor"))
    for name in ("processor_config.json", "preprocessor_config.json"):
        Path("no-processor", name).unlink(missing_ok=True)
    assert "no-processor: " in sentence(train_critic, *command, "--model", "no-processor")
    make_seeing_model(Path("no-template"))
    Path("no-template/chat_template.jinja").unlink()
    assert "has no chat template" in sentence(train_critic, *command, "--model", "no-template")
    with monkeypatch.context() as m:
        m.setitem(sys.modules, "render", None)
        assert "needs pillow, and render.py beside this file" in sentence(train_critic, *command)
    with monkeypatch.context() as m:
        m.setenv("CHROMIUM_PATH", "/nowhere/chromium")
        m.setattr(train_critic, "PICTURE", (30, 60))
        assert "/nowhere/chromium" in sentence(train_critic, *command, "--in", "scored.jsonl", "--out", "elsewhere/none")
