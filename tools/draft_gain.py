"""What drafts gain: tokens a second with `--speculative-config` and without, in turns.

    tools/draft_gain.py --at-once 1,8

The trial model, one prefill and one decode worker. Copies: a file is to be said again, as when an
assistant edits one. Chat: questions whose answers hold little that was said before. Every request has
a salt of its own, so that none gains from the answers of others. Every answer must be the same with
and without.
"""

import argparse
import inspect
import json
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
from rich.console import Console
from rich.table import Table

CONFIG = {"method": "suffix"}
READY_S = 120.0


def _copies() -> list[str]:
    """Prompts that are to be gone on with a file that they have in them."""
    parts = (textwrap.wrap, textwrap.dedent, textwrap.shorten, inspect.getdoc, statistics.mean)
    files = [inspect.getsource(part) for part in parts]
    return [
        f"### The file\n```python\n{text}```\n\n### The same file again\n```python\n"
        for text in files
    ]


CHAT = (
    "Why is the sky blue?",
    "Tell me a story about a lighthouse.",
    "How do I bake bread?",
    "What is the difference between a virus and a bacterium?",
    "Write a letter to an old friend.",
)


@contextmanager
def served(port: int, dtype: str, *flags: str) -> Iterator[httpx.Client]:
    """A service on a port of its own."""
    command = [sys.executable, "-m", "baton.cli.main", "serve", "smollm2", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--dtype", dtype, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300)
    try:
        until = time.monotonic() + READY_S
        while not _ready(client):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{' '.join(command)} does not become ready")
            time.sleep(0.2)
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait(30)


def _ready(client: httpx.Client) -> bool:
    try:
        return client.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


def measure(
    client: httpx.Client, bodies: Sequence[Mapping[str, object]], at_once: int
) -> tuple[float, list[str]]:
    """Return the tokens a second of all these requests, and their answers."""

    def ask(body: Mapping[str, object]) -> tuple[int, str]:
        chat = "messages" in body
        answer = client.post("/v1/chat/completions" if chat else "/v1/completions", json=body)
        choice = answer.raise_for_status().json()
        text = choice["choices"][0]
        said = text["message"]["content"] if chat else text["text"]
        return choice["usage"]["completion_tokens"], said

    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        found = list(pool.map(ask, bodies))
    return sum(n for n, _ in found) / (time.perf_counter() - began), [said for _, said in found]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-once", default="1,8", help="requests at once, several by commas")
    parser.add_argument("--tokens", type=int, default=120, help="of each answer")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--port", type=int, default=8290)
    args = parser.parse_args()
    sets: Mapping[str, list[dict[str, object]]] = {
        "copies": [{"prompt": prompt} for prompt in _copies()],
        "chat": [{"messages": [{"role": "user", "content": text}]} for text in CHAT],
    }
    drafts = ("--speculative-config", json.dumps(CONFIG))
    table = Table("set", "at once", "without, tokens/s", "with, tokens/s", "ratio", "the same")
    with (
        served(args.port, args.dtype) as plain,
        served(args.port + 1, args.dtype, *drafts) as drafted,
    ):
        for name, each in sets.items():
            for at_once in map(int, args.at_once.split(",")):
                common = {"model": "smollm2", "max_tokens": args.tokens, "temperature": 0}
                count = max(len(each), 2 * at_once)
                warm, bodies = (
                    [
                        common | each[n % len(each)] | {"cache_salt": f"{name} {at_once} {n} {use}"}
                        for n in range(count)
                    ]
                    for use in ("to warm up", "measured")
                )
                measure(plain, warm[:at_once], at_once)
                measure(drafted, warm[:at_once], at_once)
                (off, one), (on, other) = (
                    measure(client, bodies, at_once) for client in (plain, drafted)
                )
                same = sum(a == b for a, b in zip(one, other, strict=True))
                figures = (f"{off:.1f}", f"{on:.1f}", f"{on / off:.2f}", f"{same} of {len(one)}")
                table.add_row(name, str(at_once), *figures)
    Console().print(table)


if __name__ == "__main__":
    main()
