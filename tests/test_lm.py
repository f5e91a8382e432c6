"""A model is neither changed nor misread: its weights, its chat template, its special tokens, its vocabulary."""
import difflib
import inspect
import json
import linecache
import os
import runpy
import shutil
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import engines
import lm
import train_critic
import train_policy
from conftest import ROOT, call, metrics, place, read_lines, write  # noqa: F401  (place is a fixture)
from test_train import CRITIC, SCORE, refusal

CPU = torch.device("cpu")
DIALOGUE = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Bye"}]


# ---- Weights


def configure(folder, **changes):
    file = Path(folder) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def make_model(kind):
    """The model in `base`, untied; or tied; or with a head of its own that its configuration denies."""
    if kind == "tied":
        from transformers import AutoModelForCausalLM
        model = AutoModelForCausalLM.from_pretrained("base")
        model.config.tie_word_embeddings = True
        model.lm_head.weight = model.model.embed_tokens.weight
        model.save_pretrained("base")
    if kind == "contradictory":
        configure("base", tie_word_embeddings=True)


def saved(folder):
    from safetensors.torch import load_file
    return load_file(Path(folder) / "model.safetensors")


@pytest.mark.parametrize("kind", [
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("untied", "tied")), "contradictory"])
def test_training_on_ranks_changes_no_weight_but_by_its_step(place, kind):  # noqa: F811
    """One step at 2e-7, sharded and not: the same loss, and every tensor within a step of the original."""
    make_model(kind)
    before = saved("base")
    command = ["--method", "multi-turn-dpo", "--in", "scored.jsonl", "--model", "base", "--max-steps", "1", "--out"]
    code, _, error = call(train_policy, *command, "one")
    assert code == 0, error
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                           ROOT / "train_policy.py", *command, "two"], capture_output=True, text=True,
                          env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    for out in ("one", "two"):
        after = saved(out)
        assert after.keys() == before.keys() and ("lm_head.weight" in after) == (kind != "tied")
        assert max((after[name] - before[name]).abs().max() for name in before) < 1e-6
        assert json.loads(Path(out, "config.json").read_text())["tie_word_embeddings"] == (kind == "tied")
    assert metrics("two")[0]["loss"] == pytest.approx(metrics("one")[0]["loss"], abs=1e-6)


def test_a_sharded_weight_that_differs_is_named(capsys):
    model = torch.nn.Linear(3, 2)
    expected = lm.sums_of(model)
    lm.check_sums(lm.sums_of(model), expected, "m")
    with torch.no_grad():
        model.weight[1, 2] += 0.01
    for found in (lm.sums_of(model), {"bias": expected["bias"]}, {**expected, "more": [0.0, 0.0]}):
        with pytest.raises(SystemExit):
            lm.check_sums(found, expected, "m")
        assert "m: the weight " in capsys.readouterr().err


# ---- Chat templates


def templated(template):
    tokenizer = lm.load_tokenizer("base")
    tokenizer.chat_template = template
    return tokenizer


TURN = "{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}"
PARTS = "{{ '<|' + m['role'] + '|>' }}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}<|end|>"
ASK = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
TWO_ROLES = "{% if m['role'] in ['user', 'assistant'] %}" + TURN + "{% endif %}"
LOOP = "{% for m in messages %}%s{% endfor %}" + ASK


@pytest.mark.parametrize("body", [TURN, TWO_ROLES, PARTS, PARTS.join(["{% if m['role'] != 'tool' %}", "{% endif %}"]),
                                  TWO_ROLES.replace(TURN, PARTS)])
def test_a_template_loses_no_text(place, body):  # noqa: F811
    """Without a branch for system messages, or with lists of parts as contents, or both."""
    tokenizer = templated(LOOP.replace("%s", body))
    for text in (lm.render_prompt(tokenizer, DIALOGUE), tokenizer.decode(lm.encode_prompt(tokenizer, DIALOGUE))):
        places = [text.find(message["content"]) for message in DIALOGUE]
        assert places == sorted(places) and places[0] >= 0 and text.endswith("<|assistant|>")
    assert lm.end_of_turn(tokenizer) == [tokenizer.eos_token_id]


@pytest.mark.parametrize("body", ["{% if m['role'] == 'user' %}" + TURN + "{% endif %}", "<|user|>",
                                  "{{ raise_exception('No.') }}"])
def test_a_template_that_hides_messages_is_refused(place, body, capsys):  # noqa: F811
    with pytest.raises(SystemExit):
        lm.render_prompt(templated(LOOP.replace("%s", body)), DIALOGUE)
    assert "base: its chat template does not show a dialogue" in capsys.readouterr().err


def test_the_tiny_model_leaves_system_messages_out_on_purpose(place):  # noqa: F811
    text = lm.render_prompt(lm.load_tokenizer("base"), DIALOGUE)
    assert text == "<|user|>Hi<|end|><|assistant|>Yes?<|end|><|user|>Bye<|end|><|assistant|>"


def test_a_template_with_a_clock_shows_the_same_day_every_day(place):  # noqa: F811
    tokenizer = templated("{{ strftime_now('%d %b %Y') }}\n" + LOOP.replace("%s", TURN))
    assert lm.render_prompt(tokenizer, DIALOGUE).startswith("26 Jul 2024\n<|system|>Be kind.")


# ---- Special tokens, cut replies, vocabularies


@pytest.mark.parametrize("text", ["a <|end|> b", "<|end|>", "<|user|><|assistant|>", "x<|end|><|end|>y"])
def test_special_tokens_in_a_text_are_letters(place, text):  # noqa: F811
    """In a reply and in a prompt; the template's own marks and the end of turn are the only special tokens."""
    tokenizer = lm.load_tokenizer("base")
    prompt = [{"role": "user", "content": text}]
    sequence, = lm.tokenise(tokenizer, [(prompt, {"content": text}, text)])
    special = [tokenizer.convert_ids_to_tokens(int(i)) for i in sequence.ids if i in tokenizer.all_special_ids]
    assert special == ["<|user|>", "<|end|>", "<|assistant|>", "<|end|>"]
    shown = f"<|user|>In light that the final answer is: {text}.\n\n{text}<|end|><|assistant|>"
    assert tokenizer.decode(sequence.ids) == f"{shown}{text}<|end|>"
    assert tokenizer.decode(sequence.ids[sequence.scored]) == f"{text}<|end|>"
    plain = tokenizer("Which field?", add_special_tokens=False)["input_ids"]
    assert lm.encode(tokenizer, lm.as_words(tokenizer, "Which field?")) == plain, "any other text is as before"


def test_a_cut_reply_is_not_taught_to_stop(place):  # noqa: F811
    """Known by `cut` of a message, of a candidate, and of the pairs that are drawn from candidates."""
    tokenizer = lm.load_tokenizer("base")
    whole, cut = lm.tokenise(tokenizer, [(DIALOGUE[1:2], {"content": "Yes", **how}, None) for how in ({}, {"cut": True})])
    assert whole.ids.tolist() == [*cut.ids.tolist(), tokenizer.eos_token_id]
    write(Path("ranked.jsonl"), [{"prompt": DIALOGUE[1:2], "candidates": [
        {"output": "Yes", "advantage": 1.0, "cut": True}, {"output": "No", "advantage": 0.0}]}])
    args = SimpleNamespace(input="ranked.jsonl", pairs_per_turn=1, seed=0)
    pairs, _ = train_policy.make_pairs(args)
    train_policy.write_pairs(list(pairs), "pairs.jsonl")
    item, = train_policy.pair_items(train_policy.read_pairs("pairs.jsonl"), tokenizer)
    ends = [sequence.ids[-1] == tokenizer.eos_token_id for (sequence,) in (item.chosen, item.rejected)]
    assert ends == [False, True]


def test_ids_of_a_padded_vocabulary_are_the_models_own(place):  # noqa: F811
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained("base")
    words = len(lm.load_tokenizer("base"))
    model.resize_token_embeddings(words + 64)
    model.save_pretrained("base")
    tokenizer = lm.load_tokenizer("base")
    replies = [{"content": "Hi", "output_ids": [*tokenizer("Hi")["input_ids"], words + 5]}]
    sequence, = lm.tokenise(tokenizer, [(DIALOGUE[1:2], replies[0], None)])
    assert sequence.ids[sequence.scored].tolist() == replies[0]["output_ids"]
    replies[0]["output_ids"][-1] = words + 64
    assert not lm.ids_match(tokenizer, replies)


@pytest.mark.parametrize("said, cut", [("[THINK]hm[/THINK]Which field?<|end|>", False), ("[THINK]hm", True),
                                       ("Which [THINK], field?<|end|>", False)])
def test_ids_whose_special_tokens_mark_thoughts_are_its_own(place, said, cut):  # noqa: F811
    """As an engine records them: the text keeps special tokens only where they mark a thought."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained("base")
    tokenizer.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]"]})
    tokenizer.save_pretrained("base")
    model = AutoModelForCausalLM.from_pretrained("base")
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained("base")
    tokenizer = lm.load_tokenizer("base")
    ids = tokenizer(said, add_special_tokens=False)["input_ids"]
    text = engines.LocalEngine.text_of(SimpleNamespace(tokenizer=tokenizer), ids, cut)
    assert text == said.removesuffix("<|end|>")
    assert lm.ids_match(tokenizer, [{"output": text, "output_ids": ids}])
    assert not lm.ids_match(tokenizer, [{"output": text.replace("h", "H"), "output_ids": ids}])


def test_tokens_without_embeddings_are_one_sentence(place):  # noqa: F811
    tokenizer = lm.load_tokenizer("base")
    words = len(tokenizer)
    tokenizer.add_tokens(["threshold"])
    tokenizer.save_pretrained("base")
    sentence = refusal(train_critic, *CRITIC)
    assert f"base: the tokenizer has {words + 1} tokens" in sentence and f"the model has {words} embeddings" in sentence


# ---- Dialogues that no loss can read

SAID = DIALOGUE[1:3]
RANKED = {"prompt": SAID[:1], "candidates": [{"output": "a", "advantage": 1}, {"output": "b", "advantage": 0.5}]}
PAIR = {"prompt": SAID[:1], "chosen": SAID[1:], "rejected": [{"role": "assistant", "content": "No"}]}
PLAYED = {"task_id": "t", "sample": 0, "domain": "backend", "dialogue_history": SAID, "finish": "answered",
          "reward": 1.0, "task": {"ground_truth": "x"}}
TOOL = {"role": "tool", "content": "3"}


@pytest.mark.parametrize("module, good, changes, expected", [
    (train_policy, RANKED, {"candidates": [{"output": "a", "advantage": float("nan")}] * 2},
     'candidates[0].advantage must be a number, found NaN'),
    (train_policy, RANKED, {"cost": {"sampled_tokens": float("inf")}}, 'cost.sampled_tokens must be a number, found Infinity'),
    (train_policy, RANKED, {"prompt": SAID}, "prompt has an assistant message where the user should speak"),
    (train_policy, RANKED, {"prompt": []}, "prompt must begin with a user message"),
    (train_policy, RANKED, {"prompt": [SAID[0], TOOL]}, "prompt has tools"),
    (train_policy, RANKED, {"tools": [{"name": "search"}]}, "prompt has tools"),
    (train_policy, PAIR, {"chosen": []}, "chosen must end with an assistant message"),
    (train_policy, PAIR, {"rejected": SAID[:1]}, "rejected must end with an assistant message"),
    (train_policy, PAIR, {"chosen": SAID}, "chosen repeats the prompt"),
    (train_policy, PAIR, {"prompt": SAID}, "an assistant message where the user should speak"),
    (train_policy, PAIR, {"tools": [{"name": "search"}]}, "has tools"),
    (train_critic, PLAYED, {"dialogue_history": []}, "dialogue_history must begin with a user message"),
    (train_critic, PLAYED, {"dialogue_history": SAID + SAID[1:]}, "an assistant message where the user should speak"),
    (train_critic, PLAYED, {"dialogue_history": [*SAID, TOOL]}, "dialogue_history has tools"),
    (train_critic, PLAYED, {"dialogue_history": [SAID[0], SAID[1] | {"tool_calls": [{"id": 1}]}]}, "has tools"),
    (train_critic, PLAYED, {"tools": [{"name": "search"}]}, "dialogue_history has tools"),
], ids=lambda value: str(value)[:40] if isinstance(value, str) else "")
def test_what_no_loss_can_read_is_named(place, module, good, changes, expected):  # noqa: F811
    write(Path("odd.jsonl"), [good, {**good, **changes}])
    sentence = refusal(module, "--in", "odd.jsonl", "--model", "base", "--out", "out")
    assert "odd.jsonl, line 2: " in sentence and expected in sentence


def test_a_value_head_needs_successes_and_failures(place):  # noqa: F811
    write(Path("scored.jsonl"), [row | {"reward": 0.9} for row in read_lines("scored.jsonl")])
    assert "0 of 36 trajectories are successes; --head q" in refusal(train_critic, *CRITIC, "--head", "value")
    assert "--head q predicts the reward itself" in refusal(train_critic, "--domain", "frontend", "--head", "value")
    write(Path("scored.jsonl"), [row | {"reward": (1 - 1e-16 * n) * (n % 2)} for n, row in enumerate(read_lines("scored.jsonl"))])
    assert call(train_critic, *CRITIC, "--head", "value", "--batch-size", 36)[0] == 0
    assert 0.4 < metrics("critic")[0]["success"] < 0.6, "a reward that rounding made smaller than 1 is a success"


# ---- Edited mathematics


@pytest.mark.slow
def test_edited_mathematics_is_noticed(place):  # noqa: F811
    """Each edit is made in a copy of the scripts; what was finished before is refused, and the function is named."""
    for path in ROOT.glob("*.py"):
        shutil.copy(path, place)
    critic = ["train_critic.py", *CRITIC, "--max-steps", "1"]
    score = ["train_critic.py", *SCORE[:-1]]
    policy = ["train_policy.py", "--in", "ranked.jsonl", "--model", "base", "--out", "policy", "--max-steps", "1"]

    def run(command, code=0):
        """What a script says. A fork of this process runs it, since 25 imports of torch would take minutes."""
        child = os.fork()
        if not child:
            ended = 1
            try:
                sys.stdout = sys.stderr = open("said", "w")
                for name, module in list(sys.modules.items()):    # the copies take the place of the scripts
                    if Path(getattr(module, "__file__", None) or "/").parent == ROOT:
                        del sys.modules[name]
                linecache.clearcache()
                sys.path.insert(0, str(place))
                sys.argv[:] = map(str, command)
                runpy.run_path(command[0], run_name="__main__")
                ended = 0
            except SystemExit as error:
                ended = error.code or 0
            except Exception:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(ended)
        said = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), Path("said").read_text()
        assert said[0] == code, said[1]
        return said[1]

    for command in (critic, score, policy):
        run(command)
    assert "already finished" in run(critic) and "wrote 0 records" in run(score) and "already finished" in run(policy)
    for file, old, new, refused in [
            ("train_critic.py", "ratio = logps - reference", "ratio = 2 * (logps - reference)",
             {"turn_advantages": (critic, score)}),
            ("train_critic.py", "return -F.logsigmoid(beta * (chosen", "return -F.logsigmoid(2 * beta * (chosen",
             {"bradley_terry_loss": (critic,)}),
            ("train_critic.py", "values, turn, turns):\n", "values, turn, turns, beta=1):\n", {"last_of_turn": (score,)}),
            ("lm.py", "gap = max(0.0,", "gap = max(0.01,", {"pair_trajectories": (critic,)}),
            ("lm.py", "In light that the final answer is", "The final answer is", {"put_c_in_front": (critic, score)}),
            ("lm.py", "WARMUP, FINAL_LR = 0.03", "WARMUP, FINAL_LR = 0.05", {"learning_rate": (critic, policy)}),
            ("lm.py", "def special_tokens(tokenizer):", "def special_tokens(tokenizer, x=0):",
             {"special_tokens": (policy,)}),    # its answers are cached
            ("lm.py", "index_add_(0, index, values)", "index_add_(0, index, values / 2)",
             {"segment_sum": (critic, score, policy)}),
            ("train_policy.py", "preference + args.nll", "preference + 2 * args.nll", {"preference_loss": (policy,)}),
            ("train_policy.py", "half = len(order) // 2", "half = len(order) // 4", {"draw_pairs": (policy,)})]:
        text = Path(file).read_text()
        assert text.count(old) == 1, old
        Path(file).write_text(text.replace(old, new))
        for name, commands in refused.items():
            for command in commands:
                assert f"code of {name} was" in run(command, code=2), (name, command)
        Path(file).write_text(text)
    assert "already finished" in run(critic) and "already finished" in run(policy)


# ---- The command line


@pytest.mark.parametrize("module, arguments, flag", [
    (train_critic, ["--score", "candidates.jsonl", flag, value], flag) for flag, value in [
        ("--in", "scored.jsonl"), ("--model", "base"), ("--advantage", "sum"), ("--context", "without-c"),
        ("--head", "value"), ("--lr", "1"), ("--beta", "1"), ("--seed", "1"), ("--max-steps", "1")]
] + [
    (train_critic, ["--critic", "critic"], "--critic"),
    (train_critic, ["--head", "value", "--pair-rule", "all"], "--pair-rule"),
    (train_critic, ["--head", "q", "--beta", "1"], "--beta"), (train_critic, ["--head", "regression", "--nll", "1"], "--nll"),
    (train_critic, ["--domain", "frontend", "--head", "regression", "--pack", "tree"], "--pack"),
    (train_policy, ["--pair-rule", "all"], "--pair-rule"), (train_policy, ["--min-gap", "0.1"], "--min-gap"),
    (train_policy, ["--min-reward", "0.5"], "--min-reward"), (train_policy, ["--with-c", "0.5"], "--with-c"),
] + [
    (train_policy, ["--method", "rejection-ft", flag, "1"], flag)
    for flag in ("--surest", "--pairs-per-turn", "--with-c", "--min-gap", "--beta", "--nll")
] + [(train_policy, ["--method", "multi-turn-dpo", "--shuffle", "pairs"], "--shuffle")])
def test_a_flag_that_a_mode_ignores_is_refused(place, module, arguments, flag):  # noqa: F811
    sentence = refusal(module, *arguments)
    assert f"{flag} does nothing with" in sentence and sentence.endswith("; leave it out")


@pytest.mark.parametrize("module", [train_critic, train_policy])
def test_a_flag_has_one_name_and_any_environment_is_taken(place, module):  # noqa: F811
    assert "--over" in refusal(module, "--over")
    assert parsed_flags(module, "--domain", "guess-my-city").domain == "guess-my-city"
    assert parsed_flags(module, "--domain", "guess-my-city").min_gap == 0


def parsed_flags(module, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"{module.__name__}.py", *arguments])
        return module.parse_args()


def test_scoring_without_trees_gives_the_same_advantages(place):  # noqa: F811
    assert call(train_critic, *CRITIC, "--max-steps", 2)[0] == 0
    assert call(train_critic, *SCORE)[0] == 0
    code, _, error = call(train_critic, *SCORE[:-2], "rows.jsonl", "--pack", "none", "--domain", "anything")
    assert code == 0, error
    values = [[c["advantage"] for row in read_lines(file) for c in row["candidates"]] for file in ("ranked.jsonl", "rows.jsonl")]
    assert values[0] == pytest.approx(values[1], abs=2e-5) and any(values[0])


@pytest.mark.slow
def test_without_the_file_of_trees_everything_trains(place):  # noqa: F811
    (place / "code").mkdir()
    for name in ("records.py", "lm.py", "train_critic.py", "train_policy.py"):
        shutil.copy(ROOT / name, place / "code")
    policy = ["--in", "ranked.jsonl", "--model", "base", "--out", "policy", "--max-steps", "2"]
    for script, command in (("train_critic.py", [*CRITIC, "--max-steps", "2"]), ("train_critic.py", SCORE),
                            ("train_policy.py", policy)):
        done = subprocess.run([sys.executable, "-P", f"code/{script}", *command, "--pack", "none"], capture_output=True,
                              text=True, env={"PYTHONPATH": "code", "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"})
        assert done.returncode == 0, done.stderr
    assert len(metrics("policy")) == 2


# ---- A critic elsewhere


def test_a_critic_can_be_moved_with_its_reference(place, monkeypatch):  # noqa: F811
    assert call(train_critic, *CRITIC, "--max-steps", 2)[0] == 0
    turns = [(DIALOGUE[1:2], {"content": "Which field?"}, "def f(): pass")]
    before = train_critic.Critic("critic").advantages(turns)
    Path("elsewhere").mkdir()
    shutil.move("critic", "elsewhere"), shutil.move("base", "elsewhere")
    assert train_critic.Critic("elsewhere/critic").advantages(turns) == before and any(before)
    shutil.move("elsewhere/base", "gone")
    with pytest.raises(ValueError, match="was not found at base or elsewhere/base"):
        train_critic.Critic("elsewhere/critic")
    sentence = refusal(train_critic, "--score", "candidates.jsonl", "--critic", "elsewhere/critic")
    assert "its reference model was not found at base or elsewhere/base" in sentence


def test_only_one_rank_reads_the_whole_reference(place):  # noqa: F811
    assert call(train_critic, *CRITIC, "--max-steps", 1)[0] == 0
    Path("ask.py").write_text(f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
import lm, train_critic
real = train_critic.fingerprint
def counted(path):
    open(f"hashed-by-{{os.environ['RANK']}}", "a").write("x")
    return real(path)
train_critic.fingerprint = counted
lm.start_process_group()
train_critic.Critic("critic")
lm.finish()
os._exit(0)
""")
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "ask.py"],
                          capture_output=True, text=True, env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr[-2000:]
    assert Path("hashed-by-0").read_text() == "x" and not Path("hashed-by-1").exists()


# ---- Two loops


def lines_of(module):
    return [line.split("#")[0].strip() for line in inspect.getsource(module.train).splitlines()[1:]]


def test_the_two_loops_are_alike_and_short():
    """Batch, log-probabilities, loss, backward, step, log, checkpoint: but for the loss and its weight the same lines."""
    critic, policy = lines_of(train_critic), lines_of(train_policy)
    assert max(len(critic), len(policy)) < 45
    same = difflib.SequenceMatcher(None, critic, policy).get_matching_blocks()
    shared = sum(block.size for block in same)
    assert len(critic) - shared <= 4, "docstring, weight, log-probabilities and loss"
    assert len(policy) - shared <= 7, "the same, and the choice of a loss"
    order = ["collate(", "model(batch)", "stats = ", ".backward()", "optimizer_step(", "log(", "save_checkpoint("]
    for lines in (critic, policy):
        found = [next(n for n, line in enumerate(lines) if word in line) for word in order]
        assert found == sorted(found)
    assert "train_critic" not in (ROOT / "train_policy.py").read_text().split('"""')[2].split("# ---- The command")[0]
