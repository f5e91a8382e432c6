"""A reply of a language model, and the engine that asks an OpenAI-compatible server for it.

`Response.said` is what a model says: its text without thoughts. Whoever shows a model's text to somebody takes it from
there. `await ServerEngine.generate(messages, n, seed, temperature, max_tokens)` returns n Responses, or raises Refused
(this request failed) or Stop (no request can succeed). engines.py has the engines of local models.

`vllm serve` on a CPU needs --no-enable-chunked-prefill, or a seeded request ends it ("CPU Generator does not use
offset"). A server may ignore seeds.
"""
import asyncio
import json
import math
import os
import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from records import ANSWER_MARK, THOUGHTS, die, first_line, mended

THOUGHT_MARK = re.compile(
    "|".join(map(re.escape, sorted({*THOUGHTS, *THOUGHTS.values()}, key=len, reverse=True))), re.I)
UNKNOWN_MARK = re.compile(r"<[^<>\s]*think[^<>\s]*>|\[/?think\w*\]", re.I)    # counted where it enters a dialogue
CODE = re.compile(r"```|^\s*(def|async def|class|return|import|from \w+ import)\b|^\s*@\w|^\s*\w+ = |\blambda\b|<html"
                  r"|^\s*<\w", re.M | re.I)


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
    logps: list = None      # log-probability of each id at temperature 1, from a local engine whose `logps` is True

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
        kept = {"output": self.text, "output_ids": self.ids, "cut": self.cut}
        return {name: value for name, value in kept.items() if value or name == "output"}


class Refused(Exception):
    """One request failed (prompt too long, content policy, malformed reply): its episode ends with an error."""


class Stop(Exception):
    """Ends the run, with one sentence and an exit code."""

    def __init__(self, message, code=1):
        super().__init__(message)
        self.code = code


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
        r"model\b.{0,80}(not found|not exist|n't exist|not available|unknown)|model_not_found|not a valid model|"
        r"(invalid|unknown|incorrect|no such|no) model\b|no healthy deployment", re.I)
    NO_KEY = re.compile(r"api[ _-]?key|authenti|authori[sz]|invalid token|bearer", re.I)

    def __init__(self, url, name, role, args):
        import openai
        url = re.sub(r"(/chat/completions|/completions|/models)?/*$", "", url)
        self.url = without_secrets(url)
        self.name = name
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
        """(HTTP status, message) of a failed request: 200 if the model refused, 502: malformed reply, 599: none."""
        status, message = 502, f"malformed reply ({type(error).__name__}: {first_line(error)})"
        if isinstance(error, Refused):
            status, message = 200, str(error)
        elif hasattr(error, "status_code"):
            status = error.status_code
            message = f"HTTP {status}: {message_of(error.body) or message_of(error.response.text)}"
            if to := error.response.headers.get("location"):
                message += f" (moved to {without_secrets(to)})"
        elif isinstance(error, ValueError) and "Expecting value" in str(error):
            message = "malformed reply (no JSON; does the URL end in /v1?)"
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
            sentence = f"has no model {self.name!r}, or is not an OpenAI-compatible server; its URL ends in /v1"
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
