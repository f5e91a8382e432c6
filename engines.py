"""Engines: who samples text from a language model. A model in this process (vLLM, or a plain engine on transformers),
or an OpenAI-compatible server (server.py).

`await engine.generate(messages, n, seed, temperature, max_tokens)` returns n Responses, or raises Refused (this request
failed) or Stop (no request can succeed). close() shuts the engine down. A server's engine has a `name`: the model
there. Agents, model humans, judges and writers of tasks all sample through an engine.

Seeds. vLLM on a CPU, in float32 and with OMP_NUM_THREADS=1, gives the same texts for the same seeds whatever else it
samples. Elsewhere rounding depends on the batch: the transformers engine repeats itself at the same settings, CUDA
nearly does. A server may ignore seeds.
"""
import asyncio
import hashlib
import importlib.util
import json
import math
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from records import THOUGHTS, die, first_line, number, refuse_idle
from server import THOUGHT_MARK, Refused, Response, ServerEngine, Stop

os.environ.setdefault("OMP_WAIT_POLICY", "passive")    # set before torch is imported: idle threads sleep, not spin
IN_FLIGHT = 512    # concurrent requests, enough to keep vLLM on a CPU busy
MORE_ROOM = 8    # a reply that was cut inside its thought is sampled again with this many times the token limit
COUNT = number(int, least=1)    # argparse types
SIZE = number(int, least=0)


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
    """A seed for one request, from (seed, task, sample, turn, ...), so that it does not depend on scheduling.

    It has 31 bits, since some servers take no more: the same model gets the same seeds here and behind a URL.
    """
    return int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()[:6], "big") % (1 << 31)


class LocalEngine:
    """A model in this process. Sampling runs in a thread of its own, so that the event loop stays free.

    A subclass has load(path, args, cuda), and sample(requests), which takes all pending requests, oldest first, works
    on them, and returns those that are finished: [(name, [(token ids, whether cut, log-probabilities or None)])].
    """
    pool = ThreadPoolExecutor(1)    # one for all models: two vLLM engines that sample at once corrupt memory on a CPU
    logps = False    # True: responses carry the sampler's log-probabilities, for on-policy training

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
        return [Response(self.text_of(ids, cut), ids, len(ids), len(prompt), cut, thinks, logps)
                for ids, cut, logps in samples]

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
                                     max_tokens=request.room, logprobs=0 if self.logps else None)
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

    def take(self, weights):
        """Sample from these weights from now on: (name, tensor) of each parameter; for engines in this process."""
        self.engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        self.engine.reset_prefix_cache()    # it was computed by the weights before

    def samples(self, result):
        return [(list(output.token_ids), output.finish_reason == "length",
                 [of[token].logprob for token, of in zip(output.token_ids, output.logprobs)] if self.logps else None)
                for output in result.outputs]

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

    def take(self, weights):
        """Sample from these weights from now on: (name, tensor) of each parameter."""
        for name, weight in weights:
            self.model.get_parameter(name).data.copy_(weight)

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
            return_dict_in_generate=True, output_logits=self.logps,
            stopping_criteria=[lambda ids, scores: torch.full((len(ids),), self.closed, device=ids.device)])
        new = out.sequences[:, ids.shape[1]:]    # (R, new)
        logps = [None] * len(new)
        if self.logps:
            logps = torch.stack(out.logits, 1).float().log_softmax(-1).gather(-1, new[..., None])[..., 0].tolist()
        rows = zip(new.tolist(), logps)
        return [(request.name, [self.until_end(*next(rows), request.room) for _ in range(first.n)])
                for request in batch]

    def until_end(self, ids, logps, room):
        """(ids up to and including the first end of turn, whether there is none, their log-probabilities)."""
        end = next((i + 1 for i, token in enumerate(ids[:room]) if token in self.ends), None)
        return ids[:end or room], end is None, logps and logps[:end or room]


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


def refuse_idle_engines(models, args):
    """Exit if a flag of engine_flags is given that none of these models uses."""
    local = [engine_of(model, args) for model in models if not is_url(model)]
    vllm = ["--gpu-memory-utilization", "--tensor-parallel-size", "--data-parallel-size"]
    if not local:
        refuse_idle(["--engine", "--dtype", "--max-model-len", *vllm], "without a local model")
    elif "vllm" not in local:
        refuse_idle(vllm, "without vLLM")
    if len(local) == len(models):
        refuse_idle(["--extra-body", "--thinks", "--timeout", "--retries"], "without a server")


def json_object(text):
    """An argparse type."""
    return {**json.loads(text)}


def is_url(spec):
    return str(spec).lower().startswith(("http://", "https://"))


def encode_chat(tokenizer, messages):
    """Token ids of a prompt in the model's own chat template, as the trainers make them."""
    from lm import encode_prompt
    return encode_prompt(tokenizer, messages)
