"""Hurts one part of a service at a time, by a seeded schedule, until it is whole again.

What needs no more than a process or the cable stands in `injections.py`. Here is

corrupt    bits flip in half of the pages of a worker, while no request uses any; clients go on
           after the interval in which the service verifies its cache
clock      the wall clock of a machine jumps by minutes, forward or back, and after a while back
"""

import asyncio
import random
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import aiohttp
import psutil

from baton.dev.chaos.cable import OtherMachine
from baton.dev.chaos.history import CORRUPT, GATEWAY, ProcessFault, role_of
from baton.dev.chaos.injections import CABLE_KINDS, PROCESS_KINDS
from baton.dev.chaos.machine_clock import MachineClock
from baton.gateway.pool_bits import flip_bits

PAUSE_S = (1.0, 4.0)  # between a service that is whole and the next fault
JUMPS_S = (60.0, 3600.0)
JUMPED_S = (1.5, 4.0)  # processes see it within a second
DAMAGED_SHARE = 0.5  # of a worker's pages
WHOLE_S = 90.0
CLEAN_S = 5.0
LOOK_S = 0.05
PAIRS = re.compile(r"^baton:pairs(?:\{.*\})? (\d+)", re.MULTILINE)
DAMAGED = re.compile(r"^baton:prefix_cache_damaged_pages_total(?:\{.*\})? ([\d.e+]+)", re.MULTILINE)


KINDS = (*PROCESS_KINDS, CORRUPT, MachineClock.KIND, *CABLE_KINDS)
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
        machine: the other one, if there is one
        clocks: of this one, and of the other one, if they are to jump
        paused: while it is open, no client has a request
        verify_s: interval in which the service verifies what it has cached
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
        machine: OtherMachine | None,
        clocks: Sequence[MachineClock],
        paused: Callable[[], AbstractAsyncContextManager[None]],
        verify_s: float,
        seed: int,
        began: float,
    ) -> None:
        self._url, self._supervisor = url, supervisor
        self._gateways, self._workers, self._pairs = gateways, prefill + decode, prefill * decode
        self._kinds, self._victims, self._chance = kinds, victims, random.Random(seed)
        self._machine, self._paused, self._verify_s = machine, paused, verify_s
        self._clocks, self._began = clocks, began
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
        kind = self._chance.choice(self._kinds)
        if kind in CABLE_KINDS:
            assert self._machine is not None
            at, victim, gone = time.monotonic(), "cable", frozenset[int]()
            found = await CABLE_KINDS[kind](self._machine, self._chance)
        elif kind == CORRUPT:
            victim, (at, found) = await self._corrupt(http)
            gone = frozenset()
        elif kind == MachineClock.KIND:
            at, victim, gone = time.monotonic(), "machine", frozenset()
            found = await self._jump(http)
        else:
            pids, found = await self._processes(http), 0
            victim = self._chance.choice(sorted(v for v in pids if role_of(v) in self._victims))
            pid, at = self._chance.choice(pids[victim]), time.monotonic()
            gone = frozenset() if kind == "stop" else frozenset(pids[victim])
            with suppress(ProcessLookupError):
                await PROCESS_KINDS[kind](pid, self._chance)
        await self._whole(http, gone)
        ended = time.monotonic()
        self.faults.append(ProcessFault(kind, victim, at - self._began, ended - self._began, found))

    async def _jump(self, http: aiohttp.ClientSession) -> int:
        """Set a clock, and set it right again. Returns how many processes live by it."""
        clock = self._chance.choice(self._clocks)
        clock.jump_to(self._chance.choice((-1, 1)) * self._chance.uniform(*JUMPS_S))
        await asyncio.sleep(self._chance.uniform(*JUMPED_S))
        pids = [pid for lot in (await self._processes(http)).values() for pid in lot]
        clock.jump_to(0)
        return sum(clock.is_clock_of(pid) for pid in pids)

    async def _corrupt(self, http: aiohttp.ClientSession) -> tuple[str, tuple[float, int]]:
        """Damage the memory of a worker. Returns its name, when, and how many cached pages were
        found damaged."""
        async with self._paused():
            await self._clean(http)
            before = await self._damaged(http)
            books = await self._books(http)
            workers = [w for w in books["workers"] if w["role"] in self._victims]
            worker = self._chance.choice(sorted(workers, key=lambda w: str(w["name"])))
            pages = max(group["total"] for group in worker["pages"].values())
            at = time.monotonic()
            for rank in worker["ranks"]:
                flip_bits(rank["pid"], pages, self._chance, share=DAMAGED_SHARE)
            await asyncio.sleep(self._verify_s)
        return worker["name"], (at, await self._damaged(http) - before)

    async def _damaged(self, http: aiohttp.ClientSession) -> int:
        async with http.get(f"{self._url}/metrics") as page:
            found = DAMAGED.findall(await page.text())
        return sum(int(float(n)) for n in found)

    async def _clean(self, http: aiohttp.ClientSession) -> None:
        until = time.monotonic() + CLEAN_S
        while not (await self._books(http))["clean"]:
            if time.monotonic() > until:
                raise NotWhole(f"the ledger is not clean {CLEAN_S:g} s after the last request")
            await asyncio.sleep(LOOK_S)

    async def _books(self, http: aiohttp.ClientSession) -> dict[str, Any]:
        async with http.get(f"{self._url}/debug/ledger") as answer:
            return dict(await answer.json())

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
        books = await self._books(http)
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
