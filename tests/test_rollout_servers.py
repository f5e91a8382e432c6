"""Real servers' ways: what is kept of a reply, what is waited for, which sentence ends a run, and what stays secret."""
import asyncio
import importlib.util
import os
import socket
import sys
import time
from argparse import Namespace

import pytest

import engines
from conftest import read_lines, running
from stub_server import Stub
from test_rollout import play, world  # noqa: F401  (world is a fixture)

LOOP = asyncio.new_event_loop()    # a client keeps its connections, so it stays in one loop
MESSAGES = [{"role": "user", "content": "?"}]


def server(url, name="stub-1", **flags):
    return engines.ServerEngine(url, name, "agent", Namespace(**{"timeout": 30, "retries": 0, "model": url, **flags}))


def ask(engine, n=1, max_tokens=9):
    return LOOP.run_until_complete(engine.generate(MESSAGES, n, 0, 1.0, max_tokens))


def completion(*texts, finish="stop", tokens=10, **more):
    choices = [{"index": n, "finish_reason": finish, "message": {"content": text}} for n, text in enumerate(texts)]
    return 200, {"choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": tokens}, **more}


# ---- Replies


@pytest.mark.parametrize("finish", ["error", "content_filter", "abort", "SAFETY", "insufficient_system_resource",
                                    "tool_calls", "refusal", "RECITATION", "something_new"])
def test_half_a_reply_that_ended_for_another_reason_is_refused(finish):
    with Stub(says=lambda path, body: completion("I WANT TO ANSWER: hal", finish=finish)) as stub:
        with pytest.raises(engines.Refused):
            ask(server(stub.url))


@pytest.mark.parametrize("finish, cut", [("stop", False), ("STOP", False), (None, False), ("end_turn", False),
                                         ("eos", False), ("length", True), ("MAX_TOKENS", True)])
def test_a_reply_at_its_end_or_limit_is_kept_and_says_which(finish, cut):
    with Stub(says=lambda path, body: completion("What is x?", finish=finish)) as stub:
        [response] = ask(server(stub.url))
    assert (response.text, response.cut) == ("What is x?", cut)
    assert response.sampled() == {"output": "What is x?"} | ({"cut": True} if cut else {})


def test_half_a_surrogate_pair_is_replaced_where_it_enters():
    with Stub(says=lambda path, body: completion("a\ud83d b \ud83d\ude00")) as stub:
        [response] = ask(server(stub.url))
    assert response.text == "a\ufffd b \U0001f600"


@pytest.mark.parametrize("thinks, first, unfinished", [
    ("auto", "What is x?", False), ("auto", "<think>hm</think>What is x?", True), ("auto", "hm</think>What is x?", True),
    ("yes", "What is x?", True), ("no", "<think>hm</think>What is x?", False)])
def test_a_cut_reply_is_a_thought_only_of_a_model_that_thinks(thinks, first, unfinished):
    texts = iter([completion(first), completion("The first thing that", finish="length")])
    with Stub(says=lambda path, body: next(texts)) as stub:
        engine = server(stub.url, thinks=thinks)
        ask(engine)
        assert ask(engine)[0].unfinished is unfinished


@pytest.mark.parametrize("text", ["<think>It is 7, so", "Well. <thinking>It is 7, so", "[THINK]It", "", "<think>x</think>"])
def test_a_cut_reply_that_shows_only_a_thought_is_unfinished(text):
    with Stub(says=lambda path, body: completion(text, finish="length")) as stub:
        assert ask(server(stub.url, thinks="no"))[0].unfinished


@pytest.mark.parametrize("finish, more", [("stop", {}), ("length", {}), ("stop", {"timings": {"predicted_n": 5}})])
def test_tokens_are_right_where_usage_counts_one_choice_of_several(finish, more):
    """llama.cpp: ten choices of five tokens each are said to be five tokens."""
    def says(path, body):
        return completion(*["one two three four five"] * body.get("n", 1), finish=finish, tokens=5, **more)
    with Stub(says=says) as stub:
        engine = server(stub.url)
        for _ in range(2):
            responses = ask(engine, n=10, max_tokens=5)
            assert len(responses) == 10 and sum(response.tokens for response in responses) == 50
    assert [request.get("n") for request in stub.requests] == [10] + [None] * 20


def test_several_choices_with_a_right_count_stay_one_request():
    with Stub(says=lambda path, body: completion(*["one two three four five"] * body["n"], tokens=50)) as stub:
        assert sum(response.tokens for response in ask(server(stub.url), n=10)) == 50
    assert len(stub.requests) == 1


# ---- Waiting


def test_waiting_is_said_once_with_what_for_and_until_when(capsys, monkeypatch):
    waits, sleep = [], asyncio.sleep

    async def quick(seconds):
        waits.append(seconds)
        await sleep(0)
    monkeypatch.setattr(engines.asyncio, "sleep", quick)
    with Stub(faults=["busy 600"] * 5) as stub:
        engine = server(stub.url, retries=5)

        async def together():
            await asyncio.gather(*(engine.generate(MESSAGES, 1, seed, 1.0, 9) for seed in range(5)))
        asyncio.run(together())
    said = capsys.readouterr().err
    assert waits == [600] * 5 and said.count("waiting until ") == 1
    assert f"(600 s) for {stub.url}: HTTP 429: Slow down." in said


def test_a_server_that_asks_for_hours_ends_the_run():
    with Stub(always="busy 7200") as stub, pytest.raises(engines.Stop, match="asks to wait for 7,200 seconds"):
        ask(server(stub.url, retries=5))
    assert len(stub.requests) == 1


def test_a_dead_server_is_not_asked_again_for_one_choice(monkeypatch):
    """A refused connection is no refusal of n."""
    waits = []

    async def quick(seconds):
        waits.append(seconds)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    engine = server(url, retries=3)
    monkeypatch.setattr(engine, "wait", lambda seconds, message: quick(seconds))
    with pytest.raises(engines.Stop, match="failed: "):
        ask(engine, n=4)
    assert waits == [0.5, 1, 2]


# ---- Mistakes


def refused(status, body, **headers):
    return lambda path, sent: (status, body, headers.items())


@pytest.mark.parametrize("says, words", [
    (refused(400, {"error": {"message": "Authentication Error, Invalid proxy server token passed"}}), "rejected the key"),
    (refused(400, {"error": {"message": "No api key passed in."}}), "rejected the key"),
    (refused(403, {"detail": "Unauthorized"}), "rejected the key"),
    (refused(401, b"<html><h1>401 Authorization Required</h1></html>"), "rejected the key"),
    (refused(400, {"error": {"message": "Invalid model name passed in model=stub-1"}}), "has no model 'stub-1'"),
    (refused(500, {"detail": "stub-1 is not a local folder and is not a valid model identifier"}), "has no model"),
    (refused(503, {"error": {"message": "No model 'stub-1' is served"}}), "has no model 'stub-1'"),
    (refused(404, b"<html><title>404 Not Found</title><hr>nginx</html>"), "its URL ends in /v1 (HTTP 404: 404 Not Found nginx)"),
    (refused(405, {"detail": "Method Not Allowed"}), "its URL ends in /v1"),
    (refused(301, b"", Location="https://there/v1"), "is somewhere else; name that URL"),
    (refused(402, {"error": "no credit"}), "failed: HTTP 402: no credit")])
def test_a_mistake_that_no_request_survives_is_one_sentence_at_once(says, words):
    with Stub(says=says) as stub, pytest.raises(engines.Stop) as stop:
        ask(server(stub.url, retries=5))
    assert words in str(stop.value) and "<" not in str(stop.value) and len(stub.requests) == 1


@pytest.mark.parametrize("says", [
    refused(400, {"error": {"message": "This model's maximum context length is 10 tokens, no such model has more"}}),
    refused(403, {"error": {"message": "flagged by moderation"}}), refused(422, {"detail": [{"msg": "bad"}]})])
def test_a_mistake_of_one_prompt_ends_its_episode_alone(says):
    with Stub(says=says) as stub, pytest.raises(engines.Refused):
        ask(server(stub.url))


@pytest.mark.parametrize("status, body, words", [
    (401, {"error": "bad key"}, "rejected the key in the environment variable AGENT_API_KEY"),
    (200, b"<html><title>Welcome</title></html>", "cannot list the models of this server"),
    (302, b"", "is somewhere else")])
def test_what_is_wrong_when_models_are_listed_is_named(monkeypatch, capsys, status, body, words):
    monkeypatch.setenv("AGENT_API_KEY", "sk-secret")
    with Stub(says=lambda path, sent: (status, body)) as stub, pytest.raises(SystemExit) as end:
        server(stub.url, None)
    said = capsys.readouterr().err
    assert end.value.code == 2 and words in said and "sk-secret" not in said


@pytest.mark.parametrize("kind", ["text/html", "application/json"])
def test_a_web_page_in_place_of_replies_says_what_a_url_ends_in(kind):
    page = b"<html><title>Welcome</title></html>"
    with Stub(says=refused(200, page, **{"Content-Type": kind})) as stub:
        with pytest.raises(engines.Refused, match="malformed reply .* does the URL end in /v1"):
            ask(server(stub.url))


@pytest.mark.parametrize("ending", ["/", "/chat/completions", "/models", "/chat/completions/"])
def test_a_url_with_a_whole_path_is_understood(ending):
    with Stub() as stub:
        assert ask(server(stub.url + ending, None))[0].text


@pytest.mark.parametrize("spec", ["localhost:8000/v1", "127.0.0.1:8000", "gpu-3.cluster:8000/v1"])
def test_a_url_without_its_scheme_is_one_sentence(spec, capsys):
    with pytest.raises(SystemExit):
        engines.make_engine(spec, None, "agent", Namespace(engine="auto"))
    assert f"{spec}: a URL starts with http://" in capsys.readouterr().err


def test_a_proxy_in_the_way_is_named(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://me:hidden@127.0.0.1:9")
    with Stub() as stub, pytest.raises(engines.Stop) as stop:
        ask(server(stub.url))
    assert "through the proxy http://127.0.0.1:9, which NO_PROXY=127.0.0.1 leaves out" in str(stop.value)
    assert "hidden" not in str(stop.value)


# ---- Secrets


def test_a_key_that_ends_in_a_newline_works_and_no_message_shows_a_key(monkeypatch):
    monkeypatch.setenv("AGENT_API_KEY", "sk-secret\n")
    with Stub(key="sk-secret") as stub:
        assert ask(server(stub.url))[0].text
    with Stub(says=refused(401, {"error": {"message": "Incorrect API key: sk-secret"}})) as stub:
        with pytest.raises(engines.Stop) as stop:
            ask(server(stub.url))
    assert "sk-secret" not in str(stop.value) and "***" in str(stop.value)


def test_a_password_in_a_url_stands_in_no_record_and_no_message(world, tmp_path):  # noqa: F811
    with Stub() as stub:
        url = stub.url.replace("http://", "http://me:hunter2@")
        done = play(tmp_path, "--in", world / "tasks.jsonl", "--limit", 2, "--model", url, "--simulator", url, "--out",
                    "a.jsonl")
    files = "".join(path.read_text() for path in tmp_path.glob("a.*"))
    assert "hunter2" not in files + done.stdout + done.stderr and read_lines(tmp_path / "a.jsonl")[0]["model"] == stub.url


# ---- A real server


def without_halves(model, folder):
    """A copy of a tiny model that says no tokens that are parts of characters: a server shows half a character less."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer, model = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    halves = [token for token in range(len(tokenizer)) if "\ufffd" in tokenizer.decode([token])]
    with torch.no_grad():
        model.get_input_embeddings().weight[:, 0] = 9    # one channel that is the same for all tokens
        model.lm_head.weight[:, 0] = 0
        model.lm_head.weight[halves, 0] = -99
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_real_server_plays_as_the_local_engine_does(world, tmp_path):  # noqa: F811
    """vLLM's own server as agent, as human and for candidates. The same seeds give the same texts as vLLM does here."""
    needed = ("vllm", "uvicorn", "watchfiles", "prometheus_fastapi_instrumentator", "model_hosting_container_standards")
    if missing := [name for name in needed if not importlib.util.find_spec(name)]:
        pytest.skip(f"{', '.join(missing)} not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = without_halves(world / "model", tmp_path / "model")
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--host",
               "127.0.0.1", "--port", port, "--dtype", "float32", "--max-model-len", 1024, "--enforce-eager",
               "--no-enable-chunked-prefill", "--max-num-batched-tokens", 16384, "--generation-config", "vllm"]
    served = {"--model": f"http://127.0.0.1:{port}/v1", "--simulator": f"http://127.0.0.1:{port}/v1"}
    local = {"--model": model, "--simulator": model, "--engine": "vllm", "--max-model-len": 1024}
    turns = ["--in", world / "trajectories.jsonl", "--limit", 2, "--candidates", 3]
    tasks = ["--in", world / "tasks.jsonl", "--limit", 4, "--max-turns", 3]
    plays = {"agent": (tasks, ["--simulator"]), "human": ([*tasks, "--simulator-max-tokens", 12], []),
             "candidates": (turns, ["--simulator"])}

    def texts(folder, models):
        """What each command writes, without what differs: token ids, which a server does not give, and models' names."""
        folder.mkdir()
        said = {}
        for name, (flags, absent) in plays.items():
            named = [word for pair in models.items() if pair[0] not in absent for word in pair]
            play(folder, *flags, *named, "--max-tokens", 12, "--out", f"{name}.jsonl")
            said[name] = [([message["content"] for message in record.get("dialogue_history", ())],
                           [candidate["output"] for candidate in record.get("candidates", ())], record["cost"])
                          for record in read_lines(folder / f"{name}.jsonl")]
        return said

    with open(tmp_path / "log", "w") as log, running(*command, stdout=log, stderr=log, env={
            **os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}) as server:
        while "startup complete" not in (tmp_path / "log").read_text():
            assert server.poll() is None, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.5)
        behind_a_url = texts(tmp_path / "served", served)
    assert behind_a_url == texts(tmp_path / "local", local)
    assert any(text for _, texts, _ in behind_a_url["candidates"] for text in texts)
