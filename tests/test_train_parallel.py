"""The number of processes and of micro-batches changes the speed of training, not its result; kills change nothing."""
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import train_critic
import train_policy
from conftest import ROOT, call, make_data, metrics, never_ending, running

PAIRS = ["--in", "scored.jsonl", "--method", "multi-turn-dpo", "--pair-rule", "all", "--model", "base", "--lr", "1e-4",
         "--batch-size", "8"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    make_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def started(processes, *arguments, script="train_policy.py"):
    """torchrun beside the test."""
    return running(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes,
                   ROOT / script, *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def torchrun(processes, *arguments, script="train_policy.py"):
    """What torchrun says."""
    with started(processes, *arguments, script=script) as process:
        said = process.communicate()[0]
    assert process.returncode == 0, said[-3000:]
    return said


def weights(folder):
    from safetensors.torch import load_file
    return load_file(Path(folder) / "model.safetensors")


def furthest(a, b):
    """The largest relative distance of two models' parameters."""
    a, b = weights(a), weights(b)
    assert a.keys() == b.keys()
    return max(((a[k] - b[k]).norm() / a[k].norm()).item() for k in a)


def tie(folder):
    """Give the model a shared input and output embedding and biases: the shape that is easily sharded wrongly."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                 num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
                                 initializer_range=0.08, eos_token_id=tokenizer.eos_token_id,
                                 bos_token_id=None)).save_pretrained(folder)


def test_micro_batches_and_packing_change_nothing(place):
    for name, extra in (("1", []), ("2", ["--micro-tokens", 400]), ("4", ["--micro-tokens", 200]),
                        ("none", ["--pack", "none"]), ("full", ["--checkpointing", "full"]),
                        ("selective", ["--checkpointing", "selective", "--micro-tokens", 300])):
        code, _, error = call(train_policy, *PAIRS, "--max-steps", 3, "--out", name, *extra)
        assert code == 0, error
        assert furthest("1", name) < 1e-5, name
        norms = [[line["gradient_norm"] for line in metrics(run)] for run in ("1", name)]
        assert norms[1] == pytest.approx(norms[0], rel=1e-4), "AdamW forgives a gradient of the wrong scale"
    assert furthest("1", "base") > 1e-3, "training changed nothing"


def test_a_loss_that_is_nan_leaves_the_checkpoint_before(place):
    code, _, error = call(train_policy, *PAIRS, "--lr", "1e30", "--epochs", 3, "--save-every", 1, "--out", "out")
    assert code == 2 and "step 2: the loss is nan" in error and "Traceback" not in error
    assert [folder.name for folder in checkpoints("out")] == ["step-000001"] and not Path("out/config.json").exists()
    assert [line["step"] for line in metrics("out")] == [1]


@pytest.mark.parametrize("module, processes, extra", [
    (train_policy, 2, []), (train_critic, 2, []),
    pytest.param(train_policy, 4, [], marks=pytest.mark.slow),
    pytest.param(train_policy, 4, ["--micro-tokens", 400], marks=pytest.mark.slow)])
def test_processes_change_nothing(place, module, processes, extra):
    """FSDP over several processes, uneven shares and micro-batches, tied embeddings: the parameters of one process."""
    tie("base")
    pairs = [*PAIRS[:2], *PAIRS[4:]] if module is train_critic else PAIRS  # the critic has no --method
    assert call(module, *pairs, "--max-steps", 3, "--out", "one")[0] == 0
    torchrun(processes, *pairs, "--max-steps", 3, "--out", "many", "--micro-tokens", 1, *extra,
             script=f"{module.__name__}.py")
    assert furthest("one", "many") < 1e-5
    lines, others = metrics("one"), metrics("many")
    for line in (lines[0], others[0]):
        del line["accuracy"]    # of log-ratios that are zero but for rounding
    for a, b in zip(lines, others):
        assert ({k: v for k, v in b.items() if k != "tokens"}
                == pytest.approx({k: v for k, v in a.items() if k != "tokens"}, rel=1e-3, abs=1e-6))


@pytest.mark.slow
def test_two_nodes_meet_by_rendezvous(place):
    """Two torchrun agents, as on two machines, find each other by the command that the README gives."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 1, "--rdzv-backend",
               "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", ROOT / "train_policy.py", *PAIRS, "--max-steps", 3,
               "--out", "many"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with running(*command, **pipes) as one, running(*command, **pipes) as other:
        for node in (one, other):
            said = node.communicate()[0]
            assert node.returncode == 0, said[-3000:]
    assert call(train_policy, *PAIRS, "--max-steps", 3, "--out", "one")[0] == 0
    assert furthest("one", "many") < 1e-5


def test_ranks_without_a_folder_in_common_do_as_rank_0_does(place):
    """Rank 1 works in a folder of its own, which has data and model but no output: rank 0's decides for both."""
    assert call(train_policy, *PAIRS, "--max-steps", 3, "--out", "one")[0] == 0
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree("base", elsewhere / "base"), shutil.copy("scored.jsonl", elsewhere)
    Path("launch.py").write_text(
        f"import os, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "os.environ['RANK'] == '1' and os.chdir('elsewhere')\n"
        "sys.argv[0] = 'train_policy.py'\nimport records, train_policy\nrecords.run_script(train_policy.main)\n")
    torchrun(2, *PAIRS, "--max-steps", 3, "--save-every", 0, "--out", "many", script=place / "launch.py")
    assert furthest("one", "many") < 1e-5
    assert not (elsewhere / "many").exists()


@pytest.mark.slow
def test_a_critic_with_a_head_says_the_same_twice_on_two_ranks(place):
    """Sharding must not touch the head, and what one request gathers must not be left for the next."""
    call(train_critic, "--in", "scored.jsonl", "--model", "base", "--head", "value", "--lr", "1e-3", "--max-steps", "2",
         "--out", "critic")
    (place / "ask.py").write_text(f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
import lm, train_critic
lm.start_process_group()
critic = train_critic.Critic("critic")
turns = [([{{"role": "user", "content": "Write f."}}], {{"content": text}}, "def f(): pass")
         for text in ("Which field?", "Why?")]
first, second = critic.advantages(turns), critic.advantages(turns)
lm.say("equal" if first == second else (first, second), first)
lm.finish()
sys.stdout.flush()
os._exit(0)
""")
    said = torchrun(2, script=place / "ask.py")
    one = subprocess.run([sys.executable, "ask.py"], capture_output=True, text=True, check=True).stdout
    values = [[float(word.strip("[],")) for word in text.split("equal")[1].split()[:2]] for text in (said, one)]
    assert values[0] == pytest.approx(values[1], abs=1e-6) and any(values[0])


def test_a_sentence_is_said_on_every_rank_that_stops(place):
    done = subprocess.run([sys.executable, "-c", "import train_critic; train_critic.die('the weights are damaged')"],
                          cwd=ROOT, env={**os.environ, "RANK": "1"}, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == "-c: rank 1: the weights are damaged\n"


def checkpoints(folder):
    return sorted(Path(folder, "checkpoints").glob("step-??????"))


@pytest.mark.slow
def test_a_run_killed_on_two_processes_goes_on_with_one(place):
    long = [*PAIRS, "--batch-size", "2", "--epochs", "4", "--save-every", "2"]
    assert call(train_policy, *long, "--out", "straight")[0] == 0
    with started(2, *long, "--out", "killed", script=never_ending(place / "script.py")) as process:
        while process.poll() is None and len(checkpoints("killed")) < 2:
            time.sleep(0.01)
    assert process.returncode == -signal.SIGKILL
    code, said, error = call(train_policy, *long, "--out", "killed")
    assert code == 0 and "continuing" in said, error
    assert furthest("straight", "killed") < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_twenty_kills_at_random_moments(place, processes):
    long = [*PAIRS, "--batch-size", "1", "--epochs", "20", "--save-every", "5"]
    assert call(train_policy, *long, "--out", "straight")[0] == 0
    random.seed(0)
    for kills in range(20):
        with started(processes, *long, "--out", "killed") as process:
            before = len(checkpoints("killed")) and int(checkpoints("killed")[-1].name[5:])
            while process.poll() is None and not (checkpoints("killed")
                                                  and int(checkpoints("killed")[-1].name[5:]) > before):
                time.sleep(0.01)
            time.sleep(random.random() * 0.5)
            if process.poll() is not None:
                break
    assert kills > 5
    torchrun(processes, *long, "--out", "killed")
    if processes == 1:
        assert all(torch.equal(a, b) for a, b in zip(weights("straight").values(), weights("killed").values()))
    assert furthest("straight", "killed") < (1e-12 if processes == 1 else 1e-6)


def test_a_finished_run_leaves_the_interpreter_standing(place, monkeypatch):
    """There gloo's threads can abort it (pytorch/pytorch#190489); here whatever is taken down does, and exit hooks run."""
    (place / "sitecustomize.py").write_text(
        "import atexit, os\n"
        "class Fragile:\n"
        "    def __del__(self, abort=os.abort): abort()\n"
        "if 'RANK' in os.environ:\n"
        "    fragile = Fragile()\n"
        "    atexit.register(print, 'the hook ran', flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(place))
    said = torchrun(2, *PAIRS, "--max-steps", 1, "--out", "out")
    assert said.count("the hook ran") == 2 and Path("out/config.json").exists()


@pytest.mark.slow
def test_a_rank_that_dies_leaves_the_checkpoints(place):
    long = [*PAIRS, "--batch-size", "1", "--epochs", "20", "--save-every", "5"]
    with started(2, *long, "--out", "out", script=never_ending(place / "script.py")) as process:
        while process.poll() is None and not checkpoints("out"):
            time.sleep(0.01)
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
        os.kill(int(children[-1]), signal.SIGKILL)
        process.communicate()
    assert process.returncode != 0 and not Path("out/config.json").exists()
    assert "continuing" in torchrun(2, *long, "--out", "out")


@pytest.mark.slow
def test_a_full_disk_while_saving_is_one_sentence(place):
    import resource
    long = [*PAIRS, "--batch-size", "1", "--save-every", "2"]
    half = max(f.stat().st_size for f in Path("base").iterdir())  # weights and averages are three times as large

    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (half, half))
    done = subprocess.run([sys.executable, str(ROOT / "train_policy.py"), *map(str, long), "--out", "out"],
                          capture_output=True, text=True, preexec_fn=small_files)
    assert (done.returncode == 1 and "the checkpoint could not be written" in done.stderr
            and "Traceback" not in done.stderr)
    assert not checkpoints("out")
    assert call(train_policy, *long, "--out", "out")[0] == 0
    half //= 2    # now the weights alone, which safetensors writes
    done = subprocess.run([sys.executable, str(ROOT / "train_policy.py"), *map(str, long), "--save-every", "0",
                           "--out", "whole"], capture_output=True, text=True, preexec_fn=small_files)
    assert (done.returncode == 1 and "whole: could not be written" in done.stderr and "Traceback" not in done.stderr)
