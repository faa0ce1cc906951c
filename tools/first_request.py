"""How long a start takes, and the first request after it beside later ones.

tools/first_request.py [--starts 3] [--later 20] [--model DIRECTORY] [-- FLAGS OF baton serve]

A figure for docs/benchmarks.md. Each start is a whole `baton serve`; ready is when /ready says so.
Time to the first token of a streamed chat of one short sentence, over a connection that is open
already.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx

from baton.engine.trial import default_directory

START_S = 120.0
BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": "What is a relay race?"}],
    "stream": True,
    "max_tokens": 8,
}


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_ready(http: httpx.Client) -> None:
    """Until requests are served."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        try:
            if http.get("/ready").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.02)
    raise SystemExit(f"not ready within {START_S:g} s")


def first_token_ms(http: httpx.Client) -> float:
    """One request."""
    began = time.perf_counter()
    with http.stream("POST", "/v1/chat/completions", json=BODY) as answer:
        lines = answer.iter_lines()
        first = next(line for line in lines if '"content":"' in line and '"content":""' not in line)
        took = 1e3 * (time.perf_counter() - began)
        assert first
        for _ in lines:
            pass
    return took


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--later", type=int, default=20)
    parser.add_argument("--model", type=Path, default=default_directory())
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    for _ in range(args.starts):
        port, began = free_port(), time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "baton.cli.main",
            "serve",
            str(args.model),
            "--port",
            str(port),
        ]
        command += ["--served-model-name", "m", "--log-level", "warning", *args.flags]
        with (
            subprocess.Popen(command) as service,
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
        ):
            try:
                wait_ready(http)
                ready = time.perf_counter() - began
                first, *later = (first_token_ms(http) for _ in range(1 + args.later))
                spread = (
                    f"{statistics.median(later):.1f} ms at the median, {min(later):.1f} "
                    f"to {max(later):.1f}"
                )
                print(
                    f"ready after {ready:.1f} s; first request {first:.1f} ms; the "
                    f"{args.later} after it {spread}",
                    flush=True,
                )
            finally:
                service.terminate()


if __name__ == "__main__":
    main()
