"""Engines: who samples text from a language model. A model in this process (vLLM, or a plain engine on transformers),
or an OpenAI-compatible server.

`await engine.generate(messages, n, seed, temperature, max_tokens)` returns n Responses, or raises Refused (this request
failed) or Stop (no request can succeed). close() shuts the engine down. A server's engine has a `name`: the model
there. Agents, model humans, judges and writers of tasks all sample through an engine, and `Response.said` is what they
say: the text without its thoughts.

Seeds. vLLM on a CPU, in float32 and with OMP_NUM_THREADS=1, gives the same texts for the same seeds whatever else it
samples. Elsewhere rounding depends on the batch: the transformers engine repeats itself at the same settings, CUDA
nearly does. A server may ignore seeds. `vllm serve` on a CPU needs --no-enable-chunked-prefill, or a seeded request
ends it ("CPU Generator does not use offset").
"""
import asyncio
import hashlib
import importlib.util
import json
import math
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from records import ANSWER_MARK, THOUGHTS, die, first_line, mended, number

os.environ.setdefault("OMP_WAIT_POLICY", "passive")    # set before torch is imported: idle threads sleep, not spin
IN_FLIGHT = 512    # concurrent requests, enough to keep vLLM on a CPU busy
MORE_ROOM = 8    # a reply that was cut inside its thought is sampled again with this many times the token limit
COUNT = number(int, least=1)    # argparse types
SIZE = number(int, least=0)
THOUGHT_MARK = re.compile("|".join(map(re.escape, sorted({*THOUGHTS, *THOUGHTS.values()}, key=len, reverse=True))), re.I)
UNKNOWN_MARK = re.compile(r"<[^<>\s]*think[^<>\s]*>|\[/?think\w*\]", re.I)    # counted where it enters a dialogue
CODE = re.compile(r"```|^\s*(def|async def|class|return|import|from \w+ import)\b|^\s*@\w|^\s*\w+ = |\blambda\b|<html|^\s*<\w",
                  re.M | re.I)


def without_thoughts(text):
    """(What a text says, "open" if it ends inside a thought, "closed" if it has shown one, None otherwise)

    An answer is left as it is, even if its code speaks of such marks.
    """
    closings = {opening.lower(): closing.lower() for opening, closing in THOUGHTS.items()}
    said, shown = "", None
    while mark := THOUGHT_MARK.search(text):
        before = said + text[:mark.start()]
        _, answers, answer = before.partition(ANSWER_MARK)
        closing = closings.get(mark[0].lower())
        if answers and (closing or shown or CODE.search(answer)):
            break
        if closing:
            end = text.lower().find(closing, mark.end())
            if end < 0:
                return before, "open"
            said, text = before, text[end + len(closing):]
        else:    # everything so far was a thought, which the chat template has opened
            said, text = "", text[mark.end():]
        shown = "closed"
    return said + text, shown


@dataclass
class Response:
    """One of the n samples of `await engine.generate(messages, n, seed, temperature, max_tokens)`."""
    text: str               # without the end-of-turn token
    ids: list = None        # sampled token ids, with the end-of-turn token if the model emitted it; None from a server
    tokens: int = 0         # sampled tokens; from a server, the first of n has the total
    prompt_tokens: int = 0
    cut: bool = False       # whether it stopped at the token limit
    thinks: bool = False    # whether the chat template has opened a thought; a server's engine concludes it

    @property
    def said(self):
        """The text without its thoughts."""
        return without_thoughts(self.text)[0].strip()

    @property
    def unfinished(self):
        """Whether it was cut inside or right after its thought, so that nobody may see any of it."""
        said, shown = without_thoughts(self.text)
        return self.cut and (not said.strip() or shown == "open" or self.thinks and not shown)

    def sampled(self):
        """The keys that a record keeps of it: the text and ids as they were sampled, and whether it was cut."""
        return ({"output": self.text} | ({"output_ids": self.ids} if self.ids else {}) | ({"cut": True} if self.cut else {}))


class Refused(Exception):
    """One request failed (prompt too long, content policy, malformed reply): its episode ends with an error."""


class Stop(Exception):
    """Ends the run, with one sentence and an exit code."""

    def __init__(self, message, code=1):
        super().__init__(message)
        self.code = code


async def sample_with_room(engine, messages, n, seed, temperature, max_tokens):
    """(n Responses, all that were sampled for them). What is cut inside its thought is sampled again with more room."""
    responses = await engine.generate(messages, n, seed, temperature, max_tokens)
    paid = list(responses)
    for i, response in enumerate(responses):
        if response.unfinished:
            with suppress(Refused):    # a server may have no room for more tokens
                [responses[i]] = await engine.generate(messages, 1, seed + i, temperature, MORE_ROOM * max_tokens)
                paid.append(responses[i])
    return responses, paid


def derive_seed(*key):
    """A seed for one request, from (seed, task, sample, turn, ...), so that it does not depend on scheduling."""
    return int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()[:6], "big")


class LocalEngine:
    """A model in this process. Sampling runs in a thread of its own, so that the event loop stays free.

    A subclass has load(path, args, cuda), and sample(requests), which takes all pending requests, oldest first, works
    on them, and returns those that are finished: [(name, [(token ids, whether cut)])].
    """
    pool = ThreadPoolExecutor(1)    # one for all models: two vLLM engines that sample at once corrupt memory on a CPU

    def __init__(self, path, name, role, args):
        import torch
        from lm import context_of, load_tokenizer
        self.tokenizer = load_tokenizer(path)
        cuda = torch.cuda.is_available()
        self.dtype = args.dtype
        if args.dtype == "auto":
            self.dtype = "bfloat16" if cuda else "float32"
        self.context = min(context_of(path) or 8192, args.max_model_len or (math.inf if cuda else 8192))
        self.count = 0
        self.pending = {}    # name of a request -> the request, with the future of its samples
        self.closed = False
        try:
            self.load(path, args, cuda)
        except Exception as error:    # of many types, such as SafetensorError
            die(f"{path}: {self.library} cannot load a causal language model from there ({first_line(error)}); try "
                "another --engine, or a shorter --max-model-len")

    async def generate(self, messages, n, seed, temperature, max_tokens):
        prompt = encode_chat(self.tokenizer, messages)
        room = min(max_tokens, self.context - len(prompt))
        if room < 1:
            raise Refused(f"prompt of {len(prompt)} tokens does not fit the context of {self.context} tokens")
        self.count += 1
        samples = await self.answer(SimpleNamespace(
            name=str(self.count), prompt=prompt, room=room, n=n, seed=seed, temperature=temperature))
        thinks = self.tokenizer.decode(prompt[-8:]).rstrip().lower().endswith(tuple(map(str.lower, THOUGHTS)))
        return [Response(self.text_of(ids, cut), ids, len(ids), len(prompt), cut, thinks) for ids, cut in samples]

    def text_of(self, ids, cut):
        """The text of sampled ids, without special tokens unless they mark a thought."""
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        whole = self.tokenizer.decode(ids if cut else ids[:-1])
        return whole if len(THOUGHT_MARK.findall(whole)) > len(THOUGHT_MARK.findall(text)) else text

    async def answer(self, request):
        request.future = asyncio.get_running_loop().create_future()
        self.pending[request.name] = request
        if len(self.pending) == 1:
            self.driver = asyncio.create_task(self.drive())    # kept, or it may be collected as garbage
        return await request.future

    async def drive(self):
        """Sample until no request is pending."""
        while self.pending:
            await asyncio.sleep(0)    # let episodes that just got a response send their next request
            try:
                finished = await asyncio.get_running_loop().run_in_executor(
                    self.pool, self.sample, list(self.pending.values()))
            except Exception as error:
                for request in self.pending.values():
                    request.future.set_exception(Stop(f"{self.library} failed: {first_line(error)}"))
                return
            for name, samples in finished:
                self.pending.pop(name).future.set_result(samples)

    def close(self):
        self.closed = True
        self.pool.submit(int).result()    # wait for the batch that is being sampled


class VLLMEngine(LocalEngine):
    """vLLM with prefix caching: its asynchronous engine on CUDA, an engine in this process on a CPU."""
    library = "vLLM"

    def load(self, path, args, cuda):
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        settings = {}
        if not cuda:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")    # GiB
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
            # No chunked prefill on a CPU: after a chunk vLLM rewinds the request's seeded generator, which a CPU
            # generator does not support.
            settings = {"enforce_eager": True, "enable_chunked_prefill": False,
                        "max_num_batched_tokens": max(16384, self.context)}
        self.added = set()    # names of the requests that the engine knows
        self.in_process = os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"
        from vllm import AsyncEngineArgs, AsyncLLMEngine, LLMEngine, SamplingParams
        from vllm.sampling_params import RequestOutputKind
        self.params = partial(SamplingParams, output_kind=RequestOutputKind.FINAL_ONLY)
        engine_class = LLMEngine if self.in_process else AsyncLLMEngine
        self.engine = engine_class.from_engine_args(AsyncEngineArgs(
            model=str(path), dtype=self.dtype, max_model_len=self.context, max_num_seqs=IN_FLIGHT,
            enable_prefix_caching=True, gpu_memory_utilization=args.gpu_memory_utilization,
            tensor_parallel_size=args.tensor_parallel_size, data_parallel_size=args.data_parallel_size,
            disable_log_stats=True, **settings))

    async def answer(self, request):
        request.prompt = {"prompt_token_ids": request.prompt}
        request.params = self.params(n=request.n, seed=request.seed, temperature=request.temperature,
                                     max_tokens=request.room)
        if self.in_process:
            return await super().answer(request)
        try:
            async for result in self.engine.generate(request.prompt, request.params, request.name):
                pass
        except Exception as error:
            raise Stop(f"vLLM failed: {first_line(error)}") from error
        return self.samples(result)

    def sample(self, requests):
        for request in requests:
            if request.name not in self.added:
                self.engine.add_request(request.name, request.prompt, request.params)
                self.added.add(request.name)
        return [(result.request_id, self.samples(result)) for result in self.engine.step() if result.finished]

    def samples(self, result):
        return [(list(output.token_ids), output.finish_reason == "length") for output in result.outputs]

    def close(self):
        super().close()
        (self.engine.engine_core if self.in_process else self.engine).shutdown()
        self.engine = None    # delete it now: at interpreter exit its clean-up fails, because modules are gone


class TransformersEngine(LocalEngine):
    """Static batches through model.generate; a batch runs until its last text is finished. Slower than vLLM.

    The same settings give the same texts again, but a text depends on the other requests of its batch.
    """
    library = "transformers"
    most_rows = 64

    def load(self, path, args, cuda):
        from transformers import AutoModelForCausalLM, GenerationConfig
        from transformers.utils import logging
        logging.disable_progress_bar()
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=self.dtype).to("cuda" if cuda else "cpu")
        ends = self.model.generation_config.eos_token_id    # one, a list, or None
        ends = ends if isinstance(ends, list) else [ends]
        self.ends = list({self.tokenizer.eos_token_id, *ends} - {None})
        # Of the model's own settings (min_p, num_beams, stop_strings, ...) only the end tokens stay.
        self.model.generation_config = GenerationConfig(
            eos_token_id=self.ends or None, pad_token_id=min(self.ends, default=0))

    def sample(self, requests):
        """Sample one batch of at most most_rows texts: the oldest request, and others with its n and temperature."""
        import torch
        from torch.nn.utils.rnn import pad_sequence
        first = requests[0]
        similar = [other for other in requests if (other.n, other.temperature) == (first.n, first.temperature)]
        batch = similar[:max(1, self.most_rows // first.n)]
        prompts = [torch.tensor(request.prompt) for request in batch]
        ids = pad_sequence(prompts, batch_first=True, padding_value=-1, padding_side="left")
        ids = ids.repeat_interleave(first.n, 0).to(self.model.device)    # (R, T)
        torch.manual_seed(first.seed)
        out = self.model.generate(
            input_ids=ids.clamp(min=0), attention_mask=(ids >= 0).long(), do_sample=first.temperature > 0,
            temperature=first.temperature or 1.0, top_k=0, top_p=1.0,
            max_new_tokens=max(request.room for request in batch),
            stopping_criteria=[lambda ids, scores: torch.full((len(ids),), self.closed, device=ids.device)])
        # out: (R, T + new)
        sampled = out[:, ids.shape[1]:].unflatten(0, (len(batch), first.n)).tolist()    # (requests, n, new)
        return [(request.name, [self.until_end(sample[:request.room]) for sample in samples])
                for request, samples in zip(batch, sampled)]

    def until_end(self, ids):
        """(ids up to and including the first end of turn, whether there is none)."""
        for i, token in enumerate(ids):
            if token in self.ends:
                return ids[:i + 1], False
        return ids, True


class ServerEngine:
    """An OpenAI-compatible server.

    A failed request raises Refused, which ends its episode (prompt too long, content policy, malformed reply), or Stop,
    which ends the run (rejected key, no credit, unknown model, rejected parameter, no server; or MOST_FAILURES failed
    requests in a row). A busy server is asked again, and a line says until when it is waited for.
    """
    MOST_FAILURES = 8
    LONGEST_WAIT = 900    # seconds; a server that asks for more ends the run
    ENDS = {None: False, "": False, "stop": False, "eos": False, "end_turn": False, "stop_sequence": False,
            "length": True, "max_tokens": True, "model_length": True}    # finish_reason: whether the reply was cut
    NO_MODEL = re.compile(
        r"model\b.{0,80}(not found|not exist|n't exist|not available|unknown)|invalid model|model_not_found|not a valid model|"
        r"(unknown|incorrect|no such|no) model\b|no healthy deployment", re.I)
    NO_KEY = re.compile(r"api[ _-]?key|authenti|authori[sz]|invalid token|bearer", re.I)

    def __init__(self, url, name, role, args):
        import openai
        url = re.sub(r"(/chat/completions|/completions|/models)?/*$", "", url)
        self.url = without_secrets(url)
        self.retries = args.retries
        self.failures = 0            # since the last success
        self.usual = math.inf        # the lowest token limit so far; a request for more may fail, which does not count
        self.limit = "max_tokens"    # what the server calls its token limit
        self.thinks = getattr(args, "thinks", "auto")    # becomes "yes" when the model shows a thought
        self.at_once = True          # whether n choices can be asked for in one request
        self.announced = 0.0         # the last wait that was announced ends then
        self.extra = getattr(args, f"{role}_extra_body".removeprefix("agent_"), None) or {}
        keys = [f"{role.upper()}_API_KEY"]
        if urlsplit(url)[:2] == urlsplit(args.model)[:2]:
            keys += ["AGENT_API_KEY", "OPENAI_API_KEY"]    # sent only to the agent's server
        self.key = next((key for key in keys if os.environ.get(key)), f"{keys[0]}, which is not set")
        secret = os.environ.get(self.key, "none").strip()
        if not re.fullmatch("[!-~]+", secret):
            die(f"{self.url}: the key in the environment variable {self.key} has characters that no key has")
        self.secrets = {secret, urlsplit(url).password} - {None, "none"}
        settings = {"base_url": url, "api_key": secret, "timeout": args.timeout}
        self.client = openai.AsyncOpenAI(
            max_retries=0, http_client=openai.DefaultAsyncHttpxClient(follow_redirects=False), **settings)
        names = [name]
        if not name:
            listing = openai.OpenAI(http_client=openai.DefaultHttpxClient(follow_redirects=False), **settings)
            try:
                names = [model["id"] for model in checked(listing.get("/models", cast_to=object))["data"]]
            except Exception as error:
                status, message = self.problem(error)
                stop = self.final(status, message)
                if status in (401, 403) or 300 <= status < 400:
                    die(stop)
                die(f"{self.url}: cannot list the models of this server ({message}); check the URL, or name the model")
        if len(names) != 1:
            die(f"{self.url} needs the {role}'s name (--model-name, --simulator-name, --judge-name); its models are: "
                f"{', '.join(names) or 'none'}")
        self.name = names[0]

    async def generate(self, messages, n, seed, temperature, max_tokens):
        responses = []
        self.usual = min(self.usual, max_tokens)
        while len(responses) < n:    # some servers return one choice whatever n is
            request = {"model": self.name, "messages": messages, "temperature": temperature, "top_p": 1,
                       self.limit: max_tokens, "seed": (seed + len(responses)) % (1 << 31)}
            if n > 1 and not responses and self.at_once:
                request["n"] = n
            try:
                responses += await self.ask(request | self.extra)
            except Refused as problem:
                self.failures += max_tokens == self.usual
                if self.failures < self.MOST_FAILURES:
                    raise
                raise Stop(f"{self.url}: {self.failures} requests in a row failed ({problem})") from problem
        return responses[:n]

    async def ask(self, request, attempt=0):
        """The Responses to one request; raises Refused or Stop. A parameter that is None is not sent."""
        sent = {name: value for name, value in request.items() if value is not None}
        try:    # chat.completions.create() would take twice as long, because it validates every message
            completion = checked(await self.client.post("/chat/completions", body=sent, cast_to=object))
            responses = self.responses(completion, sent.get(self.limit) or 0)
            self.failures = 0
            return responses
        except Exception as error:
            status, message = self.problem(error)
            problem = self.final(status, message)
            hopeless = isinstance(problem, Stop) and status != 599
            busy = (status >= 500 or status in (408, 409, 425, 429)) and not hopeless
            if busy and attempt < self.retries:
                wait = min(60, 0.5 * 2 ** attempt)
                with suppress(AttributeError, LookupError, ValueError):
                    wait = max(wait, float(error.response.headers["retry-after"]))
                await self.wait(wait, message)
                return await self.ask(request, attempt + 1)
            if "max_tokens" in sent and "max_completion_tokens" in message and "context" not in message:
                self.limit = "max_completion_tokens"    # OpenAI's newer models call it so
                return await self.ask(request | {"max_tokens": None, self.limit: sent["max_tokens"]})
            if "n" in sent and not isinstance(problem, Stop):    # no n > 1 perhaps; the message could be anything
                return await self.ask(request | {"n": None}, attempt)
            raise problem from error

    async def wait(self, seconds, message):
        """Sleep, and say so, unless another request has just said it."""
        if seconds > self.LONGEST_WAIT:
            raise Stop(f"{self.url} asks to wait for {seconds:,.0f} seconds ({message})")
        if seconds >= 2 and time.time() + seconds > self.announced + 1:
            self.announced = time.time() + seconds
            until = time.strftime("%H:%M:%S", time.localtime(self.announced))
            print(f"waiting until {until} ({seconds:.0f} s) for {self.url}: {message}", file=sys.stderr)
        await asyncio.sleep(seconds)

    def responses(self, completion, max_tokens):
        """The Responses of a chat completion. A refusal raises Refused, a malformed reply any other exception."""
        if completion.get("error"):
            raise Refused(message_of(completion))
        usage = completion.get("usage") or {}
        responses = []
        for choice in completion["choices"]:
            message = choice["message"]
            finish = (choice.get("finish_reason") or "").lower()
            text = message.get("content")
            if isinstance(text, list):
                text = "".join(part.get("text") or "" for part in text)
            if text is None and (message.get("refusal") or message.get("tool_calls")):
                raise Refused(first_line(message.get("refusal") or "the model calls a tool instead of speaking"))
            if re.search("filter|safety|refus|tool|function|recitation|prohibited", finish):
                raise Refused("the reply was withheld by a content filter" if "filter" in finish else
                              f"the server ended the reply for another reason than its end: {finish}")
            if finish not in self.ENDS:    # "error", "abort", "insufficient_system_resource": half a reply
                raise ValueError(f"the reply is not whole: {finish}")
            cut = self.ENDS[finish]
            if text is None and not cut:    # a hidden thought may use up the limit
                raise TypeError("no content")
            text = mended(text or "")
            if self.thinks == "auto" and without_thoughts(text)[1]:
                self.thinks = "yes"
            responses.append(Response(text, prompt_tokens=usage.get("prompt_tokens") or 0, cut=cut))
        if not responses:
            raise TypeError("no choices")
        for response in responses:
            response.thinks = self.thinks == "yes"
        tokens = usage.get("completion_tokens") or 0    # the sum over all choices, but with llama.cpp the first one's
        fewest = max(max_tokens * sum(response.cut for response in responses),
                     sum(len(response.text.split()) for response in responses) / 2)
        if len(responses) > 1 and (tokens < fewest or "timings" in completion):
            self.at_once = False    # the count cannot be right: ask for one choice at a time
            return []
        responses[0].tokens = tokens
        return responses

    def problem(self, error):
        """(HTTP status, message) of a failed request: 200 if the model refused, 502 for a malformed reply, 599 for none."""
        status, message = 502, f"malformed reply ({type(error).__name__}: {first_line(error)})"
        if isinstance(error, Refused):
            status, message = 200, str(error)
        elif hasattr(error, "status_code"):
            status = error.status_code
            message = f"HTTP {status}: {message_of(error.body) or message_of(error.response.text)}"
            if to := error.response.headers.get("location"):
                message += f" (moved to {without_secrets(to)})"
        elif error.__cause__:    # the library's APIConnectionError
            status, message = 599, first_line(error.__cause__)
        host, proxies = urlsplit(self.url).hostname or "", getproxies()
        proxy = proxies.get(urlsplit(self.url).scheme) or proxies.get("all")
        if proxy and status in (403, 407, 502, 503, 504, 599) and not proxy_bypass(host):
            message += f", through the proxy {without_secrets(proxy)}, which NO_PROXY={host} leaves out"
        for secret in self.secrets:
            message = message.replace(secret, "***")
        return status, message

    def final(self, status, message):
        """The exception for a request that is not retried: Refused ends its episode, Stop ends the run."""
        about_length = re.search("context|too long", message)
        if status in (400, 422) and re.search(r"temperature|top_p|\bseed\b", message) and not about_length:
            sentence = "rejects a parameter, which null in --extra-body removes"
        elif status == 401 or status in (400, 403, 500) and self.NO_KEY.search(message):
            sentence = f"rejected the key in the environment variable {self.key}"
        elif status in (404, 405) or 400 <= status < 599 and self.NO_MODEL.search(message) and not about_length:
            sentence = f"has no model {getattr(self, 'name', None)!r}, or is not an OpenAI-compatible server; its URL ends in /v1"
        elif 300 <= status < 400:
            sentence = "is somewhere else; name that URL"
        elif status in (402, 599) or "billing" in message:
            return Stop(f"{self.url} failed: {message}")
        else:
            return Refused(message)
        return Stop(f"{self.url} {sentence} ({message})", 2)

    def close(self):
        pass


def checked(reply):
    """A server's reply, which must be a JSON object."""
    if not isinstance(reply, dict):
        raise TypeError(f"no JSON but {message_of(reply)!r}; does the URL end in /v1?")
    return reply


def message_of(body):
    """What the body of a failed request says, in one line: JSON of several shapes, HTML or text."""
    while isinstance(body, dict):
        body = next((body[key] for key in ("message", "error", "detail") if body.get(key)), json.dumps(body))
    body = body if isinstance(body, str) else json.dumps(body) if body else ""
    return first_line(" ".join(re.sub(r"(?s)<(style|script)\b.*?</\1>|<[^>]*>", " ", body).split()) or "no message")


def without_secrets(url):
    """A URL without password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.netloc else url


ENGINES = {"vllm": VLLMEngine, "transformers": TransformersEngine}    # --engine; a URL is for ServerEngine


def engine_of(spec, args):
    """Name of the engine for a model: server for a URL, else --engine, where auto means vLLM if it is installed."""
    if is_url(spec):
        return "server"
    if args.engine != "auto":
        return args.engine
    return "vllm" if importlib.util.find_spec("vllm") else "transformers"


def make_engine(spec, name, role, args):
    """The engine for a model, given as a folder, hub name or URL.

    name: the model's name on its server, None if it is the only one there; role: agent, simulator or judge, which
    decides a server's key; args: the flags of engine_flags, and args.model if the role is not agent.
    """
    if re.match(r"[\w.-]+:\d+(/|$)|localhost\b", str(spec)) and not Path(spec).exists():
        die(f"{spec}: a URL starts with http:// or https://")
    return ENGINES.get(engine_of(spec, args), ServerEngine)(spec, name, role, args)


def engine_flags(parser):
    add = parser.add_argument_group("local models").add_argument
    add("--engine", default="auto", choices=["auto", *ENGINES],
        help="auto = vllm if installed, else transformers, which is slower (default: auto)")
    add("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"],
        help="auto = float32 on CPU, bfloat16 on CUDA (default: auto)")
    add("--max-model-len", type=SIZE, default=0,
        help="context length in tokens; 0 = the model's own, but at most 8192 on a CPU (default: 0)")
    add("--gpu-memory-utilization", type=number(above=0, most=1), default=0.9, help="vLLM: share of each "
        "GPU's memory (default: 0.9); lower it if several local models share a GPU")
    add("--tensor-parallel-size", type=COUNT, default=1, help="vLLM: GPUs per copy of the model (default: 1)")
    add("--data-parallel-size", type=COUNT, default=1, help="vLLM: copies of the model (default: 1)")
    add = parser.add_argument_group(
        "servers", "Keys come from the environment: AGENT_API_KEY or OPENAI_API_KEY for the agent, SIMULATOR_API_KEY "
        "for the simulator, JUDGE_API_KEY for the judge. A simulator or judge on the agent's server may "
        "use the agent's key, which is sent to no other host.").add_argument
    add("--extra-body", type=json_object, help="JSON object added to each request to the agent's server: top_k, "
        "repetition_penalty, reasoning_effort, chat_template_kwargs, ...; null removes a parameter that is sent by "
        "default: temperature, top_p (1), seed, max_tokens")
    add("--thinks", default="auto", choices=["auto", "yes", "no"], help="whether a server's models think before they "
        "speak; a reply cut without the end of a thought is then sampled again; auto = once a thought was shown "
        "(default: auto)")
    add("--timeout", type=number(above=0), default=300.0, help="seconds to wait for a server's reply (default: 300)")
    add("--retries", type=SIZE, default=8, help="retries if a server is busy, unreachable or sends a malformed reply, "
        "with pauses that grow to a minute, or as long as the server asks (default: 8)")


def json_object(text):
    """An argparse type."""
    return {**json.loads(text)}


def is_url(spec):
    return str(spec).lower().startswith(("http://", "https://"))


def encode_chat(tokenizer, messages):
    """Token ids of a prompt in the model's own chat template, as the trainers make them."""
    from lm import encode_prompt
    return encode_prompt(tokenizer, messages)
