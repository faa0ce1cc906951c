"""Many workers of many layouts, and a gateway's request logic that is told which two of them serve
a request.

The gateway is in the test's own process: the shipped pump, lines and request logic, with one
decision replaced.
"""

import contextlib
import os
import re
import select
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.e2e.nursery import Birth, Nursery, Ranks

from baton.adapters.clock import MonotonicClock
from baton.adapters.entropy import SystemEntropy
from baton.adapters.zmq_control import ZmqControl
from baton.core.door import Emit, Fail, Finish, Heard, RequestId, Submit
from baton.core.events import AskWorkers, ForgetQuestion, Submitted
from baton.core.gateway.assignment import Assignment
from baton.core.gateway.front import Front
from baton.core.gateway.request import FrontSettings, Request
from baton.core.gateway.throughput import PendingAnswer
from baton.core.handoff.fetch_back import FetchBack
from baton.core.ids import Boot, Micros, Room, TokenId
from baton.core.messages import AskLedger, Clear, Drawn, LedgerView, Limits, ResetCache, Sampling
from baton.core.session.session import SessionLimits, Sessions
from baton.ports.fabric_settings import FabricSettings, MooncakeSettings
from baton.ports.speculative_config import SpeculativeConfig
from baton.shell.gateway_pump import GatewayPump
from baton.shell.lines import Lines
from baton.shell.settings import HostKvMemory, Role, WorkerSettings
from baton.wire.codec import MAX_FRAME_BYTES

PATIENCE_S = 120.0
ANY_FABRIC = FabricSettings(mooncake=MooncakeSettings(allow_unauthenticated=True))
NO_DRAFTS = SpeculativeConfig()
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, logprobs=0)


class Layout(msgspec.Struct, frozen=True):
    """One worker's parallel layout."""

    tp: int = 1
    pp: int = 1
    page: int = 16

    def __str__(self) -> str:
        return (
            f"tp{self.tp}"
            + f" pp{self.pp}" * (self.pp > 1)
            + f" page {self.page}" * (self.page != 16)
        )


class Chosen(Assignment):
    """A gateway's choice of workers: every request is given to the pair that it was told."""

    wanted: tuple[Boot, Boot] | None = None

    def _choose(
        self, request: Request, answer: PendingAnswer, now: Micros
    ) -> tuple[Boot, Boot] | None:
        return self.wanted if self.wanted in self._front.usable_pairs() else None


class Fleet:
    """Workers by (role, layout), every prefill worker paired with every decode worker."""

    def __init__(
        self,
        nursery: Nursery,
        directory: Path,
        model: Path,
        workers: Mapping[Role, Sequence[Layout]],
        *,
        fabric: str = "shm",
        pages: int = 24,
        dtype: str = "float32",
        host_kv_bytes: int | None = 0,
        record: Path | None = None,
        max_model_len: int = 512,
        prefix_caching: bool = False,
        fetch_back: FetchBack = FetchBack.NEVER,
        cache_verify_interval_s: float = 60.0,
        speculative: SpeculativeConfig = NO_DRAFTS,
        hurt: Mapping[tuple[Role, Layout], Mapping[str, Any]] | None = None,
    ) -> None:
        """`hurt`: fields of Birth for some workers."""
        directory.mkdir(parents=True, exist_ok=True)
        self._clock, self.directory = MonotonicClock(), directory
        self._control = ZmqControl(
            bind="tcp://127.0.0.1:0", keys=None, max_frame_bytes=MAX_FRAME_BYTES
        )
        boot = Boot(SystemEntropy().bits(64))
        self.front = Front(boot, FrontSettings())
        self.front.assignment = self._chosen = Chosen(self.front)
        lines = Lines(Sessions(boot, SessionLimits()), self._control, self._clock)
        self._lines = lines
        self._heard: dict[RequestId, list[Heard]] = {}
        self._pump = GatewayPump(
            core=self.front, front=self.front, lines=lines, clock=self._clock, say=self._hear
        )
        self._next, self._questions = 0, count(1)
        self.names = {
            (role, layout): f"{role.value} {layout}"
            for role, layouts in workers.items()
            for layout in layouts
        }
        address = self._control.bound_address
        assert address is not None
        settings = {
            name: WorkerSettings(
                role=role,
                name=name,
                model=str(model),
                served_model_name="m",
                dtype=dtype,
                max_model_len=max_model_len,
                page_tokens=layout.page,
                kv_pages=pages * 16 // layout.page,
                kv_bytes=None,
                host_kv_memory=HostKvMemory(host_kv_bytes),
                max_batched_tokens=64,
                max_num_seqs=16,
                threads=1,
                cores=(),
                fabrics=(fabric,),
                fabric_settings=ANY_FABRIC,
                seal=True,
                gateways=(address,),
                secret=None,
                bind="tcp://127.0.0.1:0",
                log_level="info",
                record=None if record is None else str(record),
                tp=layout.tp,
                pp=layout.pp,
                prefix_caching=prefix_caching,
                speculative=speculative,
                fetch_back=fetch_back,
                cache_verify_interval_s=cache_verify_interval_s,
            )
            for (role, layout), name in self.names.items()
        }
        harm = {self.names[who]: fields for who, fields in (hurt or {}).items()}
        births = {
            n: Birth(own, str(directory / f"{n}.log"), **harm.get(n, {}))
            for n, own in settings.items()
        }
        self.ranks = Ranks(nursery.address, births)
        pairs = len(workers.get(Role.PREFILL, ())) * len(workers.get(Role.DECODE, ())) + len(
            workers.get(Role.UNIFIED, ())
        )
        try:
            self.turn_until(lambda: len(self.front.usable_pairs()) == pairs, what=f"{pairs} pairs")
        except BaseException:
            self.close()  # an open socket would keep the test run from ending
            raise

    def turn_until(self, done: Callable[[], bool], *, what: str) -> None:
        """Turn the gateway's pump until so."""
        until = time.monotonic() + PATIENCE_S
        while not done():
            self.ranks.look()
            assert time.monotonic() < until, (
                f"not within {PATIENCE_S:.0f} s: {what}; {self.front.refusals()}; {self.logs()}"
            )
            self.turn()

    def turn(self) -> None:
        """One turn of the gateway's pump, and a short sleep where there is nothing to do."""
        timeout = self._pump.turn()
        select.select(
            [self._control.fileno()], [], [], 0.05 if timeout is None else min(0.05, timeout / 1e6)
        )

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"--- {log.name}\n{log.read_text()[-1500:]}"
            for log in sorted(self.directory.glob("*.log"))
        )

    def boot(self, role: Role, layout: Layout) -> Boot:
        """The boot of a worker."""
        (boot,) = [
            r.manifest.boot for r in self.front.workers() if r.name == self.names[role, layout]
        ]
        return boot

    def pair(self, prefill: Layout, decode: Layout) -> tuple[Boot, Boot]:
        """The boots of two workers."""
        return self.boot(Role.PREFILL, prefill), self.boot(Role.DECODE, decode)

    def begin(
        self,
        pair: tuple[Boot, Boot],
        prompt: Sequence[int],
        count: int,
        *,
        priority: int = 0,
        sampling: Sampling = GREEDY,
    ) -> RequestId:
        """Submit a request for `count` tokens to these two."""
        self._next += 1
        request = RequestId(self._next)
        self._heard[request] = []
        self._chosen.wanted = pair
        limits = Limits(
            max_tokens=count,
            min_tokens=count,
            eos_token_ids=(),
            stop_token_ids=(),
            deadline_ms=int(PATIENCE_S * 1000),
        )
        ids = tuple(TokenId(t) for t in prompt)
        self._pump.step(
            Submitted(
                Submit(request, ids, sampling, limits, priority),
                Room(f"{SystemEntropy().bits(128):032x}"),
            )
        )
        return request

    def until_said(self, request: RequestId, count: int) -> None:
        """Until so many of its tokens have come."""

        def enough() -> bool:
            return sum(len(h.drawn) for h in self._heard[request] if isinstance(h, Emit)) >= count

        self.turn_until(enough, what=f"{count} tokens of request {request}")

    def answer(self, request: RequestId) -> list[int]:
        """All its tokens."""
        return [drawn.token for drawn in self.drawn(request)]

    def drawn(self, request: RequestId) -> list[Drawn]:
        """All its tokens, with their logprobs."""
        ends = (Finish, Fail)
        self.turn_until(
            lambda: any(isinstance(h, ends) for h in self._heard[request]),
            what=f"request {request}",
        )
        heard = self._heard.pop(request)
        assert isinstance(heard[-1], Finish), (heard[-1], self.logs())
        return [drawn for h in heard if isinstance(h, Emit) for drawn in h.drawn]

    def books(self) -> list[LedgerView]:
        """What every worker holds."""
        return self._ask(AskLedger(next(self._questions)))

    def clear(self) -> None:
        """Zero all pools."""
        for view in self._ask(Clear(next(self._questions))):
            assert view.cleared, f"{view.name} holds {view.rooms}"

    def reset(self, role: Role, layout: Layout) -> None:
        """Empty the prefix cache of one worker."""
        (view,) = self._ask(ResetCache(next(self._questions)), self.names[role, layout])
        assert {pages["cached"] for pages in view.pages.values()} == {0}

    def _hear(self, heard: Heard) -> None:
        self._heard.setdefault(heard.request, []).append(heard)

    def _ask(
        self, message: AskLedger | Clear | ResetCache, worker: str | None = None
    ) -> list[LedgerView]:
        question = message.question
        self._pump.step(AskWorkers(message, worker))
        self.turn_until(lambda: self.front.ledger(question) is not None, what="the books")
        views = self.front.ledger(question)
        self._pump.step(ForgetQuestion(question))
        assert views is not None
        return views

    def settle(self) -> None:
        """Until nothing is held anywhere."""
        self.turn_until(lambda: not self.front.open_requests, what="rooms closed")
        self.turn_until(lambda: all(view.clean for view in self.books()), what="clean books")

    def pools(self, role: Role, layout: Layout) -> list[np.ndarray]:
        """uint8, the pool of every rank of a worker, read from outside its process."""
        return [pool for pid in self.pids(role, layout) for pool in pools_of(pid)[:1]]

    def pids(self, role: Role, layout: Layout) -> list[int]:
        """The processes of a worker, by rank."""
        name = self.names[role, layout]
        (view,) = [v for v in self.books() if v.name == name]
        return [rank.pid for rank in view.ranks]

    def close(self) -> None:
        """End all."""
        self.ranks.tell()
        with contextlib.suppress(AssertionError, Exception):
            self._lines.close()
        self.ranks.close()


def pools_of(pid: int) -> list[np.ndarray]:
    """The bytes of a process's pools, in the order of the groups: they are memory files, which
    /proc shows."""
    maps = [
        line.split()
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if "memfd:baton-pool" in line
    ]
    # those of peers are mapped read-only
    own = {int(inode) for _, may, _, _, inode, *_ in maps if "w" in may}
    found = {}
    for fd in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
        path = f"/proc/{pid}/fd/{fd}"
        with contextlib.suppress(OSError):
            if re.match(r"/memfd:baton-pool", os.readlink(path)):
                # Python's mapping keeps a descriptor of its own
                found.setdefault(os.stat(path).st_ino, path)
    assert own <= found.keys(), f"process {pid} has pools that it shows no descriptor of"
    return [np.fromfile(path, dtype=np.uint8) for inode, path in found.items() if inode in own]
