"""Hurts one process of a service at a time, by a seeded schedule, until it is whole again.

kill     SIGKILL of a rank of a worker, or of a gateway; the supervisor starts it again
stop     SIGSTOP, and SIGCONT after a while, before or after silence has ended its sessions
restart  SIGTERM, as an operator restarts a service that nobody may miss
"""

import asyncio
import os
import random
import re
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import aiohttp
import psutil

from baton.dev.chaos.history import GATEWAY, RESTART, ProcessFault, role_of

PAUSE_S = (1.0, 4.0)  # between a service that is whole and the next fault
STOPPED_S = (0.2, 8.0)
WHOLE_S = 90.0
LOOK_S = 0.05
PAIRS = re.compile(r"^baton:pairs(?:\{.*\})? (\d+)", re.MULTILINE)


async def _kill(pid: int, chance: random.Random) -> None:
    os.kill(pid, signal.SIGKILL)


async def _stop(pid: int, chance: random.Random) -> None:
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(chance.uniform(*STOPPED_S))
    os.kill(pid, signal.SIGCONT)


async def _restart(pid: int, chance: random.Random) -> None:
    os.kill(pid, signal.SIGTERM)


Injection = Callable[[int, random.Random], Awaitable[None]]
KINDS: Mapping[str, Injection] = MappingProxyType({"kill": _kill, "stop": _stop, RESTART: _restart})
VICTIMS = ("prefill", "decode", GATEWAY)


class NotWhole(Exception):
    """The service has not become whole again in time."""


class Nemesis:
    """What it has done so far is in `faults`.

    Args:
        supervisor: process id of `baton serve`
        gateways: how many it has
        prefill: how many prefill workers
        decode: how many decode workers
        victims: names, without the number: prefill, decode, gateway
    """

    def __init__(
        self,
        url: str,
        supervisor: int,
        *,
        gateways: int,
        prefill: int,
        decode: int,
        kinds: Sequence[str],
        victims: Sequence[str],
        seed: int,
        began: float,
    ) -> None:
        self._url, self._supervisor = url, supervisor
        self._gateways, self._workers, self._pairs = gateways, prefill + decode, prefill * decode
        self._kinds, self._victims, self._chance = kinds, victims, random.Random(seed)
        self._began = began
        self.faults: list[ProcessFault] = []

    async def run(self, seconds: float) -> None:
        """Strike until the time is over.

        Raises:
            NotWhole: the service does not recover
        """
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            until = time.monotonic() + seconds
            await self._whole(http, frozenset())
            while time.monotonic() < until:
                await asyncio.sleep(self._chance.uniform(*PAUSE_S))
                await self._strike(http)

    async def _strike(self, http: aiohttp.ClientSession) -> None:
        pids = await self._processes(http)
        victim = self._chance.choice(sorted(v for v in pids if role_of(v) in self._victims))
        pid, kind = self._chance.choice(pids[victim]), self._chance.choice(self._kinds)
        at = time.monotonic()
        with suppress(ProcessLookupError):
            await KINDS[kind](pid, self._chance)
        await self._whole(http, frozenset() if kind == "stop" else frozenset(pids[victim]))
        self.faults.append(
            ProcessFault(kind, victim, at - self._began, time.monotonic() - self._began)
        )

    async def _whole(self, http: aiohttp.ClientSession, gone: frozenset[int]) -> None:
        """Wait until the service is ready and has all its processes, none of them of those, and
        every gateway knows every pair."""
        until = time.monotonic() + WHOLE_S
        while time.monotonic() < until:
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with http.get(f"{self._url}/ready") as ready:
                    pids = await self._processes(http) if ready.status == 200 else {}
                there = {pid for lot in pids.values() for pid in lot}
                if len(pids) == self._workers + self._gateways and not there & gone:
                    async with http.get(f"{self._url}/metrics") as page:
                        pairs = PAIRS.findall(await page.text())
                    if [int(n) for n in pairs] == [self._pairs] * self._gateways:
                        return
            await asyncio.sleep(LOOK_S)
        raise NotWhole(f"not whole {WHOLE_S:g} s after the last fault")

    async def _processes(self, http: aiohttp.ClientSession) -> dict[str, list[int]]:
        """Return the process ids of the workers' ranks, and of the gateways."""
        async with http.get(f"{self._url}/debug/ledger") as answer:
            books: dict[str, Any] = await answer.json()
        found = {w["name"]: [rank["pid"] for rank in w["ranks"]] for w in books["workers"]}
        workers = {pid for lot in found.values() for pid in lot}
        children = psutil.Process(self._supervisor).children(recursive=True)
        for child in children:
            name = _gateway(child) if child.pid not in workers else None
            if name is not None:
                found[name] = [child.pid]
        return found


def _gateway(process: psutil.Process) -> str | None:
    """Return the name of a gateway; None if the process is none."""
    with suppress(psutil.NoSuchProcess):
        command = process.cmdline()
        return command[-1] if GATEWAY in command else None
    return None
