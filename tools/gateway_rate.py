"""How many tokens a second one gateway process streams, what it adds to each, and what a stream
costs it.

tools/gateway_rate.py [--streams 1000] [--tokens 200] [--interval-ms 50] [--clients 1]
                      [--model DIRECTORY] [--json FILE]

    clients ──HTTP, one connection a stream──▶ `baton gateway`, as shipped ──control plane──▶ tools/scripted_worker.py

With `--interval-ms 0` the worker says the next token of every stream as soon as the gateway has
taken the last: the most that goes through. Figures for docs/benchmarks.md. The delay of a token is
from the worker's socket to the client's read, which is everything between the two; the processor's
time is that of the gateway alone, and says what a core of its own would do.
"""

import argparse
import json
import multiprocessing
import select
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from numpy.typing import NDArray

from baton.engine.trial import default_directory

TOKEN = b'"finish_reason":null'  # in every event that brings a token, and in no other
DONE = b"data: [DONE]"
START_S = 30.0
TOOLS = Path(__file__).parent


class Stream:
    """One request on a connection of its own: when how many tokens came."""

    def __init__(self, port: int, number: int, tokens: int) -> None:
        body = json.dumps(
            {
                "model": "m",
                "prompt": [number],
                "max_tokens": tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
            }
        ).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
        )
        self.number, self._rest = number, b""
        self.arrivals: list[tuple[float, int]] = []
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def read(self) -> bool:
        """A part of the answer has come; False at its end. What is cut in two is counted with its
        second half."""
        data = self.socket.recv(1 << 16)
        whole = self._rest + data
        found = whole.count(TOKEN)
        if found:
            self.arrivals.append((time.monotonic(), found))
        self._rest = (
            whole[max(0, len(whole) - len(TOKEN) + 1) :]
            if found == 0
            else whole[whole.rindex(TOKEN) + len(TOKEN) :]
        )
        return bool(data) and DONE not in whole


def _drive(port: int, first: int, streams: int, tokens: int) -> NDArray[np.float64]:
    """Plain reads of whatever is readable: with an event loop it takes twice the processor's time,
    which the gateway needs."""
    opened = [Stream(port, first + i, tokens) for i in range(streams)]
    by_file, poll = {stream.socket.fileno(): stream for stream in opened}, select.epoll()
    for file in by_file:
        poll.register(file, select.EPOLLIN)
    while by_file:
        for file, _ in poll.poll():
            if not by_file[file].read():
                poll.unregister(file)
                by_file.pop(file).socket.close()
    rows = []
    for stream in opened:
        index = 0
        for at, count in stream.arrivals:
            rows += [(stream.number, index + i, at) for i in range(count)]
            index += count
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def _client(port: int, first: int, streams: int, tokens: int, say: Connection) -> None:
    found = _drive(port, first, streams, tokens)
    say.send_bytes(found.tobytes())
    say.send_bytes(repr(time.process_time()).encode())


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for(url: str, gateway: subprocess.Popen[bytes]) -> None:
    """Until the gateway answers 200."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and gateway.poll() is None:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"{url} did not answer 200 within {START_S:g} s")


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(args: argparse.Namespace, directory: Path) -> dict[str, float]:
    """Run it all; returns the figures by name."""
    port, control = free_port(), f"tcp://127.0.0.1:{free_port()}"
    profile = [] if args.profile is None else ["-m", "cProfile", "-o", str(args.profile)]
    baton = [
        sys.executable,
        *profile,
        "-m",
        "baton.cli.main",
        "gateway",
        str(args.model),
        "--port",
        str(port),
        "--control",
        control,
    ]
    flags = ["--served-model-name", "m", "--skip-server-warmup", "--log-level", "warning"]
    sent_file = directory / "sent.npy"
    script = [str(TOOLS / "scripted_worker.py"), control, "--sent", str(sent_file)]
    with subprocess.Popen([*baton, *flags]) as gateway:
        worker = subprocess.Popen([sys.executable, *script, "--interval-ms", str(args.interval_ms)])
        try:
            wait_for(f"http://127.0.0.1:{port}/ready", gateway)
            figures = _load(args, port, psutil.Process(gateway.pid))
        finally:
            worker.terminate()
            worker.wait(20)
            gateway.terminate()
    arrived = figures.pop("arrived")
    return {**figures, **_latencies(arrived, np.load(sent_file))}


def _load(args: argparse.Namespace, port: int, gateway: psutil.Process) -> dict[str, Any]:
    idle, spawn = gateway.memory_info().rss, multiprocessing.get_context("spawn")
    shares = [
        args.streams // args.clients + (i < args.streams % args.clients)
        for i in range(args.clients)
    ]
    pipes, first = [], 0
    for share in shares:
        ours, theirs = spawn.Pipe()
        spawn.Process(
            target=_client, args=(port, first, share, args.tokens, theirs), daemon=True
        ).start()
        pipes.append(ours)
        first += share
    until = time.monotonic() + START_S
    while len(gateway.net_connections("tcp")) < args.streams + 2:
        if time.monotonic() > until:
            raise SystemExit(f"not all of {args.streams} streams were open within {START_S:g} s")
        time.sleep(0.05)
    files, cpu, began, most = gateway.num_fds(), _cpu_s(gateway), time.monotonic(), 0
    while not all(pipe.poll() for pipe in pipes):
        most = max(most, gateway.memory_info().rss)
        time.sleep(0.05)
    cpu, took = _cpu_s(gateway) - cpu, time.monotonic() - began
    arrived = np.concatenate(
        [np.frombuffer(pipe.recv_bytes(), dtype=np.float64).reshape(-1, 3) for pipe in pipes]
    )
    clients = sum(float(pipe.recv_bytes()) for pipe in pipes)
    return {
        "arrived": arrived,
        "gateway_us_a_token": 1e6 * cpu / len(arrived),
        "gateway_core_share": cpu / took,
        "clients_us_a_token": 1e6 * clients / len(arrived),
        "kib_a_stream": (most - idle) / 1024 / args.streams,
        "open_files": files,
    }


def _latencies(arrived: NDArray[np.float64], sent: NDArray[np.float64]) -> dict[str, float]:
    """Of all tokens but each stream's first one, which comes while others still connect."""
    a = arrived[np.lexsort((arrived[:, 1], arrived[:, 0]))]
    s = sent[np.lexsort((sent[:, 1], sent[:, 0]))]
    assert a.shape == s.shape, f"{len(s)} tokens were said and {len(a)} came"
    assert (a[:, :2] == s[:, :2]).all(), "other tokens came than were said"
    later = a[:, 1] > 0
    delays = 1e3 * (a[later, 2] - s[later, 2])
    gaps = 1e3 * np.diff(a[:, 2])[later[1:] & (a[1:, 1] > 1)]
    first, last = a[later, 2].min(), a[later, 2].max()
    d50, d99 = np.percentile(delays, (50, 99))
    g50, g99 = np.percentile(gaps, (50, 99))
    return {
        "tokens": len(a),
        "tokens_per_s": float(later.sum() / (last - first)),
        "delay_p50_ms": float(d50),
        "delay_p99_ms": float(d99),
        "delay_max_ms": float(delays.max()),
        "itl_p50_ms": float(g50),
        "itl_p99_ms": float(g99),
        "itl_max_ms": float(gaps.max()),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--interval-ms", type=float, default=50.0)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--model", type=Path, default=default_directory())
    parser.add_argument(
        "--profile",
        type=Path,
        help="where to put a cProfile of the gateway, which slows it to half",
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(args, Path(directory))
    for name, value in figures.items():
        print(f"{name:22} {value:14,.2f}")
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
