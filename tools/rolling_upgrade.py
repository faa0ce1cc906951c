"""Replaces every process of a running service by one of another version of Baton, one after the
other, while clients ask.

    tools/rolling_upgrade.py --from /path/to/another/checkout --model DIRECTORY

Two gateways, two prefill and two decode workers begin with the code of `--from`; each gets SIGTERM
when its successor, which runs this checkout's code, may take its place. Clients take whichever
gateway is in service, as a load balancer does. Every answer must be whole, and token for token that
of the service before anything was replaced.
"""

import argparse
import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from baton.dev.chaos.clients import ask, bodies, references
from baton.dev.chaos.history import Seen

ROOT = Path(__file__).resolve().parent.parent
NAME, CASES, CLIENTS = "bench", 16, 4
PATIENCE_S, SETTLE_S, OUT_S = 180.0, 3.0, 1.0
ROLES = ("prefill", "decode")


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Cluster:
    """The processes by name, and the gateways that are in service."""

    def __init__(self, directory: Path, model: str) -> None:
        self._directory, self._model = directory, model
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = {f"gateway-{i}": free_port() for i in range(2)}
        self._controls = {name: f"tcp://127.0.0.1:{free_port()}" for name in self._ports}
        self.names = (*self._ports, *(f"{role}-{i}" for role in ROLES for i in range(2)))
        self.urls: list[str] = []

    def start(self, name: str, code: Path) -> None:
        """Start one with this checkout's code."""
        role = name.rsplit("-", 1)[0]
        if role == "gateway":
            port, control = self._ports[name], self._controls[name]
            flags = ["gateway", self._model, "--port", str(port), "--control", control]
            flags += ["--generation-config", "vllm"]
        else:
            flags = ["worker", self._model, "--role", role, "--name", name, "--threads", "1"]
            flags += ["--dtype", "float32", "--kv-pages", "300"]
            flags += [w for control in self._controls.values() for w in ("--gateway", control)]
        command = [sys.executable, "-m", "baton.cli.main", *flags, "--served-model-name", NAME]
        with (self._directory / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": str(code / "src")},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def url(self, name: str) -> str:
        """Of a gateway."""
        return f"http://127.0.0.1:{self._ports[name]}"

    async def end(self, name: str) -> None:
        """Ask one to end, and wait until it has."""
        if name in self._ports:
            self.urls.remove(self.url(name))
            await asyncio.sleep(OUT_S)
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(process.wait, PATIENCE_S)
        assert code == 0, f"{name} ended with {code}: {self.log(name)}"

    async def whole(self, http: aiohttp.ClientSession) -> None:
        """Wait until every gateway is ready and has all four pairs."""
        until = time.monotonic() + PATIENCE_S
        for name in self._ports:
            while not await _has_pairs(http, self.url(name), 4):
                assert time.monotonic() < until, f"{name} has not all pairs: {self.log(name)}"
                await asyncio.sleep(0.1)
            if self.url(name) not in self.urls:
                self.urls.append(self.url(name))

    def log(self, name: str) -> str:
        """The end of a log."""
        return (self._directory / f"{name}.log").read_text()[-2000:]

    def close(self) -> None:
        """End what is left."""
        for process in self._running.values():
            process.kill()
            process.wait()


async def _has_pairs(http: aiohttp.ClientSession, url: str, pairs: int) -> bool:
    try:
        async with http.get(f"{url}/ready") as answer:
            return answer.status == 200 and f"{pairs} pairs" in (await answer.json())["why"]
    except (aiohttp.ClientError, OSError):
        return False


async def upgrade(cluster: Cluster, old: Path) -> tuple[list[Seen], list[tuple[int, ...]]]:
    """Do it; returns what clients have seen, and the right answers."""
    began, cases, history = time.monotonic(), bodies(NAME, CASES, seed=1), list[Seen]()
    stop = asyncio.Event()
    async with aiohttp.ClientSession() as http:
        for name in cluster.names:
            cluster.start(name, old)
        await cluster.whole(http)
        right = await references(f"{cluster.urls[0]}/v1/completions", cases)

        async def client(seed: int) -> None:
            chance = random.Random(seed)
            while not stop.is_set():
                case = chance.randrange(CASES)
                url = f"{chance.choice(cluster.urls)}/v1/completions"
                history.append(await ask(http, url, case, cases[case], began=began))

        clients = [asyncio.ensure_future(client(n)) for n in range(CLIENTS)]
        for name in cluster.names:
            await asyncio.sleep(SETTLE_S)
            await cluster.end(name)
            cluster.start(name, ROOT)
            await cluster.whole(http)
            print(f"{name} is new; {len(history)} answers", flush=True)
        await asyncio.sleep(SETTLE_S)
        stop.set()
        await asyncio.gather(*clients)
    return history, right


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="old", type=Path, required=True)
    parser.add_argument("--model", required=True)
    args = parser.parse_args()
    with TemporaryDirectory(prefix="baton-") as directory:
        cluster = Cluster(Path(directory), args.model)
        try:
            history, right = asyncio.run(upgrade(cluster, args.old))
        finally:
            cluster.close()
    failed = [seen.failure for seen in history if seen.failure]
    wrong = sum(not s.failure and s.tokens != right[s.case] for s in history)
    print(f"{len(history)} answers, {wrong} wrong, {len(failed)} failed: {sorted(set(failed))}")
    sys.exit(bool(wrong or failed))


if __name__ == "__main__":
    main()
