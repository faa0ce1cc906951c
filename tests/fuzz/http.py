"""Damaged requests for the gateway of a running service: bodies that are JSON still, bodies that are
not, and heads that are no HTTP."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

from tests.e2e.service import Service
from tests.fuzz.live import live
from tests.fuzz.mutate import Mutator
from tests.fuzz.report import Report

AT_ONCE = 4
ANSWER_S = 90.0  # longer than any of these requests may take on a busy machine
HEAD_S = 0.3  # how long a damaged head is waited for: it may be the beginning of one
MOST_TOKENS = 6
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
SAMPLING = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "seed": 1,
    "n": 2,
    "stop": ["x", "y"],
    "logit_bias": {"5": 1.5},
    "max_tokens": MOST_TOKENS,
    "stream": True,
    "stream_options": {"include_usage": True},
}
BODIES = (
    ("/v1/completions", {"prompt": "hello", "logprobs": 2, "echo": True} | SAMPLING),
    ("/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 2, "bad_words": ["a"]}),
    ("/v1/completions", {"prompt": "a", "structured_outputs": {"json": SCHEMA}, "max_tokens": 4}),
    ("/v1/chat/completions", {"messages": TALK, "logprobs": True, "top_logprobs": 2} | SAMPLING),
    ("/v1/chat/completions", {"messages": TALK, "tools": [TOOL], "max_tokens": 4}),
    (
        "/v1/chat/completions",
        {
            "messages": TALK,
            "max_tokens": 4,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
            },
        },
    ),
    ("/v1/responses", {"input": "hi", "instructions": "i", "max_output_tokens": 16}),
    ("/v1/messages", {"messages": TALK[1:], "system": "s", "max_tokens": 4, "stop_sequences": []}),
    ("/v1/messages/count_tokens", {"messages": TALK[1:]}),
    ("/tokenize", {"messages": TALK, "return_token_strs": True}),
    ("/tokenize", {"prompt": "hello", "add_special_tokens": False}),
    ("/detokenize", {"tokens": [1, 2, 300]}),
)
GETS = (
    "/health",
    "/ready",
    "/metrics",
    "/v1/models",
    "/v1/models/m",
    "/debug/ledger",
    "/version",
    "/",
)


class _Client:
    """One of the clients at once."""

    def __init__(self, service: Service, report: Report, lock: threading.Lock) -> None:
        self._service, self._report, self._lock = service, report, lock

    def ask(self, seed: int) -> None:
        """One damaged request; its answer is none of ours to fail at."""
        rng = Random(seed)
        path, body = rng.choice(BODIES)
        mutator = Mutator([json.dumps(body).encode()], seed)
        kind = rng.choice(("value", "value", "value", "bytes", "head", "get"))
        raw = json.dumps(mutator.value(body)).encode() if kind == "value" else mutator.draw()
        lines = [f"host: h\r\ncontent-length: {len(raw)}\r\nconnection: close\r\n"]
        if rng.random() < 0.2:
            name = rng.choice(
                ("x-request-timeout-ms", "authorization", "content-type", "x-api-key")
            )
            lines.append(
                f"{name}: {rng.choice(('', '-1', '9' * 400, 'Bearer', chr(0xE9), '1e9'))}\r\n"
            )
        if kind == "get":
            query = rng.choice(("", "?a=%ff&worker=%00", "?" + "q" * 3000))
            whole = (
                f"GET {rng.choice(GETS)}{query} HTTP/1.1\r\n{''.join(lines[:1])}\r\n".encode() + raw
            )
        else:
            whole = f"POST {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode("latin-1") + raw
        damaged = kind == "head"
        if damaged:
            head, _, rest = whole.partition(b"\r\n\r\n")
            whole = Mutator([head], seed).draw() + b"\r\n\r\n" + rest
        began = time.monotonic()
        outcome = self._sent(whole, within_s=HEAD_S if damaged else ANSWER_S)
        took = time.monotonic() - began
        with self._lock:
            self._report.outcomes[outcome] += 1
            self._report.slowest_s = max(self._report.slowest_s, took)
            if outcome == "500" or (outcome in ("no answer", "closed") and not damaged):
                self._report.breaks(f"{outcome} after {took:.1f} s", whole)

    def _sent(self, whole: bytes, *, within_s: float) -> str:
        try:
            with socket.create_connection(("127.0.0.1", self._service.port), ANSWER_S) as sock:
                sock.settimeout(within_s)
                sock.sendall(whole)
                said = sock.recv(1 << 16)
                words = said.split(b" ", 2)
                while more := sock.recv(1 << 16):
                    said = said[-200:] + more
                return words[1].decode("latin-1") if len(words) > 1 else "closed"
        except TimeoutError:
            return "no answer"
        except ConnectionError:
            return "reset"


def fuzz(count: int, seed: int) -> Report:
    """So many requests."""
    report, lock = Report("http"), threading.Lock()
    with live() as found:
        client = _Client(found.service, report, lock)
        before = found.residents()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            first = count // 10
            list(pool.map(client.ask, range(seed, seed + first)))
            before = found.residents()
            list(pool.map(client.ask, range(seed + first, seed + count)))
        found.judge(report, before)
    return report
