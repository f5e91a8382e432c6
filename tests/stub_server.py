"""A real HTTP server that speaks the OpenAI protocol and plays agent, human or judge, well or badly.

Its answers depend only on the request (messages, seed, position among the choices), so that an interrupted client
gets the same ones again. `Stub(...)` starts it in a thread:

    with Stub(latency=lambda rng: 0.01) as stub:
        ... stub.url, stub.requests
"""
import hashlib
import json
import random
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def long_tailed(rng, median=0.05, sigma=1.0, most=3.0):
    """Seconds, log-normal: most answers come soon, a few take many times as long."""
    return min(most, median * rng.lognormvariate(0, sigma))


def agent(messages, rng):
    """Asks with probability 3/4, else answers; at turn 5 it answers for sure."""
    turn = sum(m["role"] == "assistant" for m in messages)
    if turn < 5 and rng.random() < 0.75:
        return f"What is the {rng.choice(['threshold', 'rounding', 'unit'])}?"
    return f"I thought.\nOUTPUT: I WANT TO ANSWER:\ndef f(x):\n    return {rng.randrange(1000)}"


class Stub:
    """`faults`: list of what the first requests meet instead of an answer (None = an answer): "429", "500", "reset",
    "empty choices", "no content", "torn", "html"; `always`: a fault of every request, also "refuse" and
    "unknown model", "no credit", "busy SECONDS"; characters_a_token: if given, a request's max_tokens cuts its answers;
    context: the largest max_tokens that it accepts; says: (path, the request's body or None -> None for the usual reply, or
    status, body, headers); odd: (messages -> whether they meet it, a message or "error" or a status, finish_reason)."""

    def __init__(self, answer=agent, latency=None, faults=(), always=None, key=None, one_choice=False, o1=False,
                 models=("stub-1",), characters_a_token=None, odd=None, one_at_a_time=False,
                 context=None, says=lambda path, body: None):
        self.answer, self.latency, self.faults, self.always = answer, latency, list(faults), always
        self.key, self.one_choice, self.o1, self.models = key, one_choice, o1, models
        self.characters_a_token, self.odd, self.one_at_a_time = characters_a_token, odd, one_at_a_time
        self.context, self.says = context, says
        self.requests, self.lock = [], threading.Lock()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments):
                pass

            def send(self, status, body, headers=()):
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                usual = {"Content-Type": "application/json", "Content-Length": str(len(data))}
                for name, value in (usual | dict(headers)).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                if said := stub.says(self.path, None):
                    return self.send(*said)
                self.send(200, {"data": [{"id": name} for name in stub.models]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                with stub.lock:
                    number = len(stub.requests)
                    stub.requests.append(body | {"headers": headers, "time": time.time()})
                    fault = stub.always or (stub.faults.pop(0) if stub.faults else None)
                if said := stub.says(self.path, body):
                    return self.send(*said)
                stub.respond(self, body, number, fault)

        class Server(ThreadingHTTPServer):
            request_queue_size = 1024
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass  # the client was killed, or the fault is a dropped connection

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def respond(self, handler, body, number, fault):
        if self.key and handler.headers.get("Authorization") != f"Bearer {self.key}":
            return handler.send(401, {"error": {"message": "Incorrect API key provided."}})
        if self.o1 and "max_tokens" in body:
            return handler.send(400, {"error": {"message": "Unsupported parameter: 'max_tokens' is not supported with "
                                                           "this model. Use 'max_completion_tokens' instead."}})
        if self.o1 and "temperature" in body:
            return handler.send(400, {"error": {"message": "Unsupported value: 'temperature' does not support "
                                                           "0.7 with this model."}})
        if fault == "unknown model" or body["model"] not in self.models:
            return handler.send(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
        if fault == "refuse" or self.context and body["max_tokens"] > self.context:
            return handler.send(400, {"error": {"message": "This model's maximum context length is 10 tokens."}})
        if fault == "429":
            return handler.send(429, {"error": {"message": "Rate limit reached."}}, [("Retry-After", "0")])
        if fault == "no credit":
            return handler.send(429, {"error": {"message": "You exceeded your current quota, check your billing."}})
        if (fault or "").startswith("busy"):
            return handler.send(429, {"error": {"message": "Slow down."}}, [("Retry-After", fault.split()[1])])
        if self.one_at_a_time and "n" in body:
            return handler.send(422, {"error": {"message": "Only a single completion is offered."}})
        if self.odd and self.odd[0](body["messages"]):
            _, message, why = self.odd
            if message == 500:
                return handler.send(500, b"upstream died")
            if message == 403:
                return handler.send(403, {"error": {"message": "flagged by moderation"}})
            if message == "error":
                return handler.send(200, {"error": {"message": "Provider returned error", "code": 502}})
            return handler.send(200, {"choices": [{"index": 0, "finish_reason": why, "message": message}]})
        if fault == "500":
            return handler.send(500, b"upstream died")
        if fault == "reset":
            # close() alone does nothing: the files of a kept-alive connection hold its socket
            handler.close_connection = True
            return handler.connection.shutdown(socket.SHUT_RDWR)
        if fault == "html":
            return handler.send(200, b"<html>Bad gateway</html>")
        key = json.dumps([body["messages"], body.get("seed")]).encode()
        if self.latency:
            time.sleep(self.latency(random.Random(key)))
        count = 1 if self.one_choice else body.get("n", 1)
        choices = []
        for index in range(count):
            rng = random.Random(hashlib.sha256(key + bytes([index])).digest())
            text = None if fault == "no content" else self.answer(body["messages"], rng)
            most = (self.characters_a_token or 1 << 30) * body.get("max_tokens", body.get("max_completion_tokens", 0))
            choices.append({"index": index, "finish_reason": "length" if len(text or "") > most else "stop",
                            "message": {"role": "assistant", "content": text and text[:most]}})
        if fault == "empty choices":
            choices = []
        tokens = 10 * count
        if self.characters_a_token:
            texts = [choice["message"]["content"] or "" for choice in choices]
            tokens = sum(-(-len(text) // self.characters_a_token) for text in texts)
        whole = json.dumps({"id": str(number), "model": body["model"], "choices": choices,
                            "usage": {"prompt_tokens": 100, "completion_tokens": tokens,
                                      "prompt_tokens_details": {"cached_tokens": 50}}}).encode()
        handler.send(200, whole[:len(whole) // 2] if fault == "torn" else whole)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()
