"""What it costs a gateway that somebody watches: processor time with and without a reader of
/debug/live.

tools/live_cost.py [--streams 1000] [--interval-ms 200] [--watchers 1] [--windows 6] [--window-s 10]

    clients ──one connection a stream──▶ `baton gateway`, as shipped ──▶ tools/scripted_worker.py
    watchers ──/debug/live──▶ ┘

When nearly all streams run, windows without and with watchers take turns; the figures are medians.
"""

import argparse
import contextlib
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import msgspec
import psutil

from baton.engine.trial import default_directory
from gateway_rate import TOOLS, Stream, free_port, wait_for

RUN_S = 240.0  # until they run
MOST = 0.95  # of the streams: the last ones begin late, as the gateway learns the pace
TOKENS = 7_000  # of each: more than are said while this takes


class Seen(msgspec.Struct):
    """What a snapshot says of its size."""

    lanes: list[msgspec.Raw]
    lanes_left_out: int


def _read(port: int, streams: int) -> None:
    """Open streams, and read whatever comes until this process is ended."""
    import select

    opened = [Stream(port, number, TOKENS) for number in range(streams)]
    by_file, poll = {stream.socket.fileno(): stream for stream in opened}, select.epoll()
    for file in by_file:
        poll.register(file, select.EPOLLIN)
    while True:
        for file, _ in poll.poll():
            if not by_file[file].socket.recv(1 << 16):
                poll.unregister(file)


def _watch(port: int) -> None:
    with contextlib.suppress(httpx.HTTPError):
        for _ in _snapshots(port):
            pass


def _snapshots(port: int) -> Iterator[bytes]:
    url = f"http://127.0.0.1:{port}/debug/live"
    with httpx.stream("GET", url, timeout=None) as told:
        yield from (line[6:].encode() for line in told.iter_lines() if line.startswith("data: "))


@contextlib.contextmanager
def _processes(target: object, arguments: tuple[int, ...], count: int) -> Iterator[None]:
    spawn = multiprocessing.get_context("spawn")
    started: list[BaseProcess] = [
        spawn.Process(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        for _ in range(count)
    ]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.terminate()
            process.join()


def _share(process: psutil.Process, seconds: float) -> float:
    """The share of a core that a process takes for some seconds."""
    before, began = _spent_s(process), time.monotonic()
    time.sleep(seconds)
    return (_spent_s(process) - before) / (time.monotonic() - began)


def _spent_s(process: psutil.Process) -> float:
    """The processor time of a process, which the kernel counts in nanoseconds for each thread."""
    threads = Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def _measure(args: argparse.Namespace, port: int, gateway: psutil.Process) -> None:
    until, running, size = time.monotonic() + RUN_S, 0, 0
    for snapshot in _snapshots(port):
        seen = msgspec.json.decode(snapshot, type=Seen)
        running, size = len(seen.lanes) + seen.lanes_left_out, len(snapshot)
        if running >= MOST * args.streams and snapshot.count(b'"running"') >= len(seen.lanes):
            break
        if time.monotonic() > until:
            raise SystemExit(f"{running} of {args.streams} streams run after {RUN_S:g} s")
    alone, watched = list[float](), list[float]()
    for _ in range(args.windows):
        alone.append(_share(gateway, args.window_s))
        with _processes(_watch, (port,), args.watchers):
            time.sleep(2)  # until they have begun
            watched.append(_share(gateway, args.window_s))
    print(f"requests under way       {running:10,}")
    print(f"bytes of a snapshot      {size:10,}")
    for name, shares in (("nobody watches", alone), (f"{args.watchers} watches", watched)):
        shown = " ".join(f"{100 * share:.2f}" for share in shares)
        print(f"{name:24} {100 * statistics.median(shares):10.2f} % of a core ({shown})")
    added = [100 * (b - a) for a, b in zip(alone, watched, strict=True)]
    print(f"added, pair by pair      {statistics.median(added):10.2f} % of a core")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--interval-ms", type=float, default=200.0)
    parser.add_argument("--watchers", type=int, default=1)
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--window-s", type=float, default=10.0)
    parser.add_argument("--model", type=Path, default=default_directory())
    args = parser.parse_args()
    port, control = free_port(), f"tcp://127.0.0.1:{free_port()}"
    baton = [
        sys.executable,
        "-m",
        "baton.cli.main",
        "gateway",
        str(args.model),
        "--port",
        str(port),
    ]
    flags = ["--control", control, "--served-model-name", "m", "--skip-server-warmup"]
    flags += ["--request-timeout", "36000", "--queue-timeout", "600"]  # all are to begin
    script = [sys.executable, str(TOOLS / "scripted_worker.py"), control]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen([*baton, *flags, "--log-level", "error"]) as gateway,
    ):
        worker = subprocess.Popen(
            [*script, "--interval-ms", str(args.interval_ms)],
            stdout=said,
        )
        try:
            wait_for(f"http://127.0.0.1:{port}/ready", gateway)
            with _processes(_read, (port, args.streams), 1):
                _measure(args, port, psutil.Process(gateway.pid))
        finally:
            worker.terminate()
            gateway.kill()
            worker.wait(20)


if __name__ == "__main__":
    main()
