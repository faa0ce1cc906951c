"""Runs the gateway's core (core/gateway/front.py) between HTTP and the control plane, on one loop.

HTTP ──submit, cancel──▶ FrontDoor ──▶ Front ──Send──▶ Lines ──▶ workers
     ◀──── hear ─────────┘   ▲──────────── Received ─────┘
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from itertools import count
from urllib.parse import urlsplit

import msgspec
import structlog

from baton.core.door import Cancel, Emit, FrontView, Heard, RequestId, Submit
from baton.core.effects import Send
from baton.core.events import (
    AskWorkers,
    Core,
    ForgetQuestion,
    FrontEvent,
    MessageReceived,
    Submitted,
)
from baton.core.frames import Said
from baton.core.gateway.front import Front
from baton.core.gateway.request import Say
from baton.core.ids import Boot, Key, Room
from baton.core.manifest import Manifest
from baton.core.memory.state import Full
from baton.core.messages import AskLedger, Clear, Drain, Register, ResetCache
from baton.gateway.door import Capacity, Hear, LedgerReport, Readiness, pair_count
from baton.gateway.engine_client import EngineClient
from baton.gateway.scaling import WorkerLoad, loads_of
from baton.gateway.timelines import Timelines
from baton.gateway.warm_up import WarmUp
from baton.ports.clock import Clock
from baton.ports.entropy import Entropy
from baton.shell.gateway_pump import GatewayPump
from baton.shell.lines import Lines

log = structlog.get_logger()
LEDGER_WAIT_S = 1.0
LOOPBACK = "tcp://127.0.0.1:0"


class FrontDoor:
    """Implements `Door`. It is created on its asyncio loop; `close` releases everything it holds.

    `control` is the address where workers register.
    """

    def __init__(
        self,
        *,
        core: Core[FrontEvent, Send | Say],
        front: Front,
        lines: Lines,
        fileno: int,
        clock: Clock,
        entropy: Entropy,
        warms_up: bool = False,
        control: str = LOOPBACK,
        engines: EngineClient | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            engines: sends requests to engines whose workers are guests of them; None = none may
                register
            wall: returns the time in seconds since 1970, for timelines
        """
        self._front, self._lines, self._clock, self._entropy = front, lines, clock, entropy
        self._engines = engines
        self.timelines = Timelines(name_of=front.name_of, held=front.held, wall=wall)
        self._pump = GatewayPump(
            core=core,
            front=front,
            lines=lines,
            clock=clock,
            say=self._say,
            engines=engines,
            watcher=self.timelines,
        )
        if engines is not None:
            engines.answers = self._engine_says
        self._control = control
        # of the pairs that there are, or were: while there are none, requests wait for the next
        self._capacity: Capacity | None = None
        self._hear: dict[RequestId, Hear] = {}
        self._numbers, self._questions = count(1), count(1)
        self._loop = asyncio.get_running_loop()
        self._fileno = fileno
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0  # kept here, because a handle of uvloop does not always know its time
        self._soon = False  # a turn is due in this pass of the loop
        self._answered = asyncio.Event()
        # gets the exception if the pump fails
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self._warm_up = (
            WarmUp(submit=self.submit, next_request=self.next_request, later=self._resume)
            if warms_up
            else None
        )
        self._loop.add_reader(fileno, self._turn)
        self._turn()

    # ---- Door -----------------------------------------------------------------------------------

    def submit(self, submit: Submit, hear: Hear) -> None:
        self._pump.step(Submitted(submit, Room(f"{self._entropy.bits(128):032x}")))
        self._hear[submit.request] = hear
        self._turn_soon()

    def _engine_says(self, boot: Boot, message: Said) -> None:
        """An engine has answered over HTTP: to the core it is as if its worker had said so."""
        self._pump.step(MessageReceived(boot, message))
        self._turn_soon()

    def cancel(self, cancel: Cancel) -> None:
        self._hear.pop(cancel.request, None)
        self._pump.step(cancel)
        self._turn_soon()

    def key_of(self, request: RequestId) -> Key | None:
        return self._front.key_of(request)

    def next_request(self) -> RequestId:
        return RequestId(next(self._numbers))

    def next_seed(self) -> int:
        return self._entropy.bits(64)

    def ready(self) -> Readiness:
        pairs = self._front.usable_pairs()
        if pairs:
            return (
                Readiness(True, pair_count(len(pairs)))
                if self._warm_up is None
                else self._warm_up.judge(pairs)
            )
        workers = self._front.workers()
        names = ", ".join(sorted(r.name for r in workers)) or "none"
        whys = [
            "no pair of workers that can hand over yet",
            f"registered: {names}",
            *self._front.refusals(),
        ]
        return Readiness(False, "; ".join([*whys, *near_only(workers, control=self._control)]))

    def capacity(self) -> Capacity | None:
        usable = {boot for pair in self._front.usable_pairs() for boot in pair}
        manifests = [r.manifest for r in self._front.workers() if r.manifest.boot in usable]
        if manifests:
            self._capacity = Capacity(
                min(m.max_model_len for m in manifests), min(_pool_tokens(m) for m in manifests)
            )
        return self._capacity

    async def ledger(self, *, audit: bool = True) -> LedgerReport:
        return await self._answers(AskLedger(next(self._questions), audit))

    async def clear(self) -> LedgerReport:
        return await self._answers(Clear(next(self._questions)))

    async def reset_cache(self, worker: str | None) -> LedgerReport:
        return await self._answers(ResetCache(next(self._questions)), worker)

    async def drain(self, worker: str, role: str | None) -> LedgerReport:
        return await self._answers(Drain(next(self._questions), role), worker)

    async def _answers(
        self, message: AskLedger | Clear | ResetCache | Drain, worker: str | None = None
    ) -> LedgerReport:
        self._pump.step(AskWorkers(message, worker))
        self._turn_soon()
        question = message.question
        until = self._loop.time() + LEDGER_WAIT_S
        while self._front.ledger(question) is None and self._loop.time() < until:
            self._answered.clear()
            try:
                await asyncio.wait_for(self._answered.wait(), max(0.0, until - self._loop.time()))
            except TimeoutError:
                break
        views = self._front.answers(question)
        missing = tuple(self._front.unanswered(question))
        self._pump.step(ForgetQuestion(question))
        return msgspec.structs.replace(self.own_report(), workers=tuple(views), missing=missing)

    def own_report(self) -> LedgerReport:
        return LedgerReport(
            workers=(),
            missing=(),
            open_requests=self._front.open_requests,
            pairs=len(self._front.usable_pairs()),
            events={mark.name.lower(): n for mark, n in self._front.marks.items()},
            credits=self._front.credits(),
            queue=self._front.queue(self._clock.now()),
            known_pages=self._front.known_pages,
        )

    def loads(self) -> tuple[Sequence[WorkerLoad], int]:
        loads = loads_of(self._front.workers(), self._front.credits())
        return loads, self._front.queue(self._clock.now()).length

    def view(self, requests: Sequence[RequestId], *, most_pairs: int) -> FrontView:
        return self._front.view(requests, most_pairs=most_pairs, now=self._clock.now())

    def close(self) -> None:
        """Leave the loop and close the control plane."""
        self._loop.remove_reader(self._fileno)
        if self._timer is not None:
            self._timer.cancel()
        self._lines.close()

    # ---- pump -----------------------------------------------------------------------------------

    def _turn_soon(self) -> None:
        """Schedule a turn for this pass of the loop; many submits share it."""
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._soon = False
        try:
            self._drain()
        except Exception as error:  # top of the pump: if it fails, the process ends
            log.exception("gateway_pump_failed")
            if not self.failed.done():
                self.failed.set_exception(error)

    def _drain(self) -> None:
        sleep = self._pump.turn()
        self._answered.set()
        if self._warm_up is not None and not self._warm_up.knows_all(
            pairs := self._front.usable_pairs()
        ):
            self._warm_up.look(pairs, self.capacity())
        if sleep is not None:
            self._wake_in(sleep / 1e6)

    def _wake_in(self, seconds: float) -> None:
        """Schedule a turn at the latest then. An early
        turn is harmless, and cheaper than a new timer."""
        at = self._loop.time() + seconds
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(at, self._on_time), at

    def _on_time(self) -> None:
        self._timer = None
        self._turn()

    def _resume(self, after_s: float) -> None:
        assert self._warm_up is not None
        self._loop.call_later(after_s, self._warm_up.resume)
        self._loop.call_later(after_s, self._turn)

    def _say(self, heard: Heard) -> None:
        hear = (
            self._hear.get(heard.request)
            if isinstance(heard, Emit)
            else self._hear.pop(heard.request, None)
        )
        if hear is not None:
            hear(heard)


def near_only(workers: Sequence[Register], *, control: str) -> list[str]:
    """Name the workers that listen on loopback although others may be on other machines.

    `control` is the address where workers register.
    """
    if _on_loopback(control):
        return []
    listening = {
        r.name: r.address for r in workers if r.address is not None and _on_loopback(r.address)
    }
    return [
        f"{name} listens on {address}, which is reached from its own machine alone: for "
        "others start it with --bind tcp://IP:0"
        for name, address in sorted(listening.items())
    ]


def _on_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or "localhost"  # an ipc address is a path on this machine
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _pool_tokens(manifest: Manifest) -> int:
    """Return the length of the longest sequence whose state fits in the pools.

    Groups with a window do not count, because their state does not grow with the sequence.
    """
    page_tokens = manifest.page_blocks * manifest.table.block_tokens
    growing = {g.name for g in manifest.table.groups if isinstance(g.extent, Full)}
    pages = [p.pages for r in manifest.ranks for p in r.pools if p.group in growing]
    return min(pages) * page_tokens if pages else manifest.max_model_len
