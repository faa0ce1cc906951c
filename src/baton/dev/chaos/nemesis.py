"""Hurts one process of a service at a time, by a seeded schedule, until it is whole again.

kill    SIGKILL of a rank of a worker, or of the gateway; the supervisor starts it again
stop    SIGSTOP, and SIGCONT after a while, before or after silence has ended its sessions
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import aiohttp
import psutil

from baton.dev.chaos.history import GATEWAY, ProcessFault

PAUSE_S = (1.0, 4.0)  # between a service that is whole and the next fault
STOPPED_S = (0.2, 8.0)
WHOLE_S = 90.0
LOOK_S = 0.05


async def _kill(pid: int, chance: random.Random) -> None:
    os.kill(pid, signal.SIGKILL)


async def _stop(pid: int, chance: random.Random) -> None:
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(chance.uniform(*STOPPED_S))
    os.kill(pid, signal.SIGCONT)


Injection = Callable[[int, random.Random], Awaitable[None]]
KINDS: Mapping[str, Injection] = MappingProxyType({"kill": _kill, "stop": _stop})
VICTIMS = ("prefill", "decode", GATEWAY)


class NotWhole(Exception):
    """The service has not become whole again in time."""


class Nemesis:
    """What it has done so far is in `faults`.

    Args:
        supervisor: process id of `baton serve`
        workers: how many it has
        victims: names, without the number: prefill, decode, gateway
    """

    def __init__(
        self,
        url: str,
        supervisor: int,
        *,
        workers: int,
        kinds: Sequence[str],
        victims: Sequence[str],
        seed: int,
        began: float,
    ) -> None:
        self._url, self._supervisor, self._workers = url, supervisor, workers
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
        victim = self._chance.choice(
            sorted(v for v in pids if v.rsplit("-", 1)[0] in self._victims)
        )
        pid, kind = self._chance.choice(pids[victim]), self._chance.choice(self._kinds)
        at = time.monotonic()
        with suppress(ProcessLookupError):
            await KINDS[kind](pid, self._chance)
        await self._whole(http, frozenset(pids[victim]) if kind == "kill" else frozenset())
        self.faults.append(
            ProcessFault(kind, victim, at - self._began, time.monotonic() - self._began)
        )

    async def _whole(self, http: aiohttp.ClientSession, gone: frozenset[int]) -> None:
        """Wait until the service is ready and has all its processes, none of them of those."""
        until = time.monotonic() + WHOLE_S
        while time.monotonic() < until:
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with http.get(f"{self._url}/ready") as ready:
                    pids = await self._processes(http) if ready.status == 200 else {}
                there = {pid for lot in pids.values() for pid in lot}
                if len(pids) == self._workers + 1 and not there & gone:
                    return
            await asyncio.sleep(LOOK_S)
        raise NotWhole(f"not whole {WHOLE_S:g} s after the last fault")

    async def _processes(self, http: aiohttp.ClientSession) -> dict[str, list[int]]:
        """Return the process ids of the workers' ranks, and of the gateway."""
        async with http.get(f"{self._url}/debug/ledger") as answer:
            books: dict[str, Any] = await answer.json()
        found = {w["name"]: [rank["pid"] for rank in w["ranks"]] for w in books["workers"]}
        workers = {pid for lot in found.values() for pid in lot}
        children = psutil.Process(self._supervisor).children(recursive=True)
        gateways = [c.pid for c in children if c.pid not in workers and _is_gateway(c)]
        return found | ({GATEWAY: gateways} if gateways else {})


def _is_gateway(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return GATEWAY in process.cmdline()
    return False
