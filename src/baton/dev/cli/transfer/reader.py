"""The decode side of `baton bench transfer`: all its ranks, which read through their fabrics as a
worker's ranks do.

python -m baton.dev.cli.transfer.reader ORDER      hears Sources, then answers each Ask with Figures, until stdin ends
"""

import itertools
import sys
import threading
import time
from collections.abc import Callable
from statistics import median

import msgspec
import numpy as np

from baton.adapters.clock import MonotonicClock
from baton.adapters.fabrics import build, connect_and_wait
from baton.adapters.memory import HostPool
from baton.core.errors import BatonError, FabricError
from baton.core.handoff.plan import Leg, leg_seals
from baton.core.ids import Micros, RankId
from baton.dev.bench.transfer.figures import Figures, MeasureOrder, Slices, Sources
from baton.dev.bench.transfer.layout import BLOCK_TOKENS, GROUP, Handoff
from baton.dev.cli.transfer.source import IDENTITY
from baton.dev.cli.transfer.talk import TransferOrder, complain, order, say
from baton.dev.cli.transfer.yardsticks import MEMCPY_BYTES, memcpy_rate, socket_rate
from baton.engine.digest import block_sums
from baton.ports.fabric import Copies, Fabric, Handle, ReadEnded, ReadOutcome

DEADLINE_S = 60
SLICES = 1 << 16  # token slices that are really read
BINDS = 5

Job = tuple[int, RankId, list[Copies]]  # which of our ranks reads what from whom


class Reader:
    """The ranks of one decode worker."""

    def __init__(self, what: TransferOrder) -> None:
        self._order, self._layout = what, what.layout
        self._sources = Sources((), 0, 0)
        self._plan = what.layout.plan()
        self._handles = itertools.count(1)
        self._woken = threading.Event()
        self._fabrics: list[Fabric] = []
        self._pools: list[HostPool] = []
        for rank in range(len(self._plan.target)):
            boot = what.reader_boot(rank)
            fabric = build(
                what.fabric,
                boot,
                rank,
                wake=self._woken.set,
                clock=MonotonicClock(),
                settings=what.settings,
            )
            self._fabrics.append(fabric)
            pool = HostPool(
                what.layout.pool_bytes(what.layout.decode, rank),
                what=f"the pool of decode rank {rank}",
            )
            self._pools.append(pool)
            fabric.expose({GROUP: pool})

    def connect(self, sources: Sources) -> None:
        """Connect every rank to the ranks that it reads from.

        Raises:
            FabricError: one cannot be reached
        """
        self._sources = sources
        for rank, fabric in enumerate(self._fabrics):
            wanted = {leg.source for leg in self._plan.legs_into(rank)} | (
                {0} if rank == 0 else set()
            )
            for source in sorted(wanted):
                connect_and_wait(fabric, self._order.source(source), sources.manifests[source])

    def close(self) -> None:
        """Free everything."""
        for fabric in self._fabrics:
            fabric.close()

    def measure(self, ask: MeasureOrder) -> Figures:
        """Measure and verify one case.

        Raises:
            FabricError: a read failed
            BatonError: what arrived is not what the source has
        """
        handoff = Handoff(self._layout, self._plan, ask.case)
        copies = handoff.bind()
        jobs: list[Job] = [
            (leg.target, self._order.source(leg.source), copies[leg.index])
            for leg in self._plan.legs
        ]
        moved = sum(_size(c) for _, _, c in jobs)
        whole = Copies(GROUP, *(np.array([x], dtype=np.int64) for x in (0, 0, moved)))
        single: list[Job] = [(0, self._order.source(0), [whole])]
        for pool in self._pools:
            pool.array[:] = 0
        self._read(jobs)
        verify_rate = self._verify(handoff, ask.sealed.sums)
        self._read(single)
        times, bests, cpu, single_cpu = [], [], _Cpu(self._sources.pid), _Cpu(self._sources.pid)
        for _ in range(self._order.rounds):
            with single_cpu:
                bests.append(self._read(single))
            with cpu:
                times.append(self._read(jobs))
        layout, rounds = self._layout, self._order.rounds
        return Figures(
            fabric=self._order.fabric,
            prefill_tp=layout.prefill.tp,
            prefill_pp=layout.prefill.pp,
            decode_tp=layout.decode.tp,
            decode_pp=layout.decode.pp,
            prefill_page_size=layout.prefill.page_blocks * BLOCK_TOKENS,
            decode_page_size=layout.decode.page_blocks * BLOCK_TOKENS,
            context_len=ask.case.tokens,
            pages=ask.case.pages,
            legs=len(jobs),
            bytes=moved,
            descriptors_before_coalescing=handoff.ranges_before_merging(),
            descriptors=sum(c.nbytes.size for _, _, group in jobs for c in group),
            gb_per_s=moved / 1e9 / min(times),
            median_gb_per_s=moved / 1e9 / median(times),
            single_range_gb_per_s=moved / 1e9 / min(bests),
            ratio=min(bests) / min(times),
            memcpy_gb_per_s=memcpy_rate(min(moved, MEMCPY_BYTES), rounds),
            socket_gb_per_s=self._socket_rate(min(moved, MEMCPY_BYTES)),
            seal_gb_per_s=ask.sealed.gb_per_s,
            verify_gb_per_s=verify_rate,
            bind_us=1e6 * min(_timed(handoff.bind) for _ in range(BINDS)),
            cpu_s=cpu.ours / rounds,
            source_cpu_s=cpu.theirs / rounds,
            single_range_cpu_s=single_cpu.ours / rounds,
            token_slices=self._token_slices(handoff, self._plan.legs[0]),
        )

    def _read(self, jobs: list[Job]) -> float:
        """Return the seconds from the first submit to the last end."""
        left = {Handle(next(self._handles)) for _ in jobs}
        began = time.perf_counter()
        for handle, (rank, peer, copies) in zip(sorted(left), jobs, strict=True):
            self._fabrics[rank].submit(
                handle, peer, copies, deadline=Micros(DEADLINE_S * 1_000_000)
            )
        while left:
            if not self._woken.wait(2 * DEADLINE_S):
                raise FabricError(
                    f"{len(left)} of {len(jobs)} reads have not ended after {2 * DEADLINE_S} s"
                )
            self._woken.clear()
            for end in (end for fabric in self._fabrics for end in fabric.poll()):
                if not isinstance(end, ReadEnded) or end.outcome is not ReadOutcome.OK:
                    raise FabricError(f"a read failed while it was measured: {end}")
                left.remove(end.handle)
        return time.perf_counter() - began

    def _verify(self, handoff: Handoff, sums: dict[int, tuple[int, ...]]) -> float:
        """Compare what has landed with the source's sums. Returns the rate of hashing, in 1e9 bytes
        per second."""
        numbers = np.arange(handoff.case.blocks, dtype=np.int64)
        slots = handoff.slots(self._layout.decode, numbers)
        began = time.perf_counter()
        found = [
            block_sums(pool.array, placement, GROUP, slots, numbers, IDENTITY)
            for pool, placement in zip(self._pools, self._plan.target, strict=True)
        ]
        seconds = time.perf_counter() - began
        for leg in self._plan.legs:
            mine = leg_seals(
                found[leg.target][handoff.blocks(leg)], self._plan.target_units(leg, GROUP)
            )
            wrong = int((mine != np.array(sums[leg.index], dtype=np.uint64)).sum())
            if wrong:
                raise BatonError(
                    f"{wrong} of {mine.size} blocks differ from their seals on "
                    f"the leg {leg.source} -> {leg.target}"
                )
        hashed = sum(
            handoff.case.blocks * placement.block_bytes(GROUP) for placement in self._plan.target
        )
        return hashed / 1e9 / seconds

    def _token_slices(self, handoff: Handoff, leg: Leg) -> Slices:
        cut, _ = handoff.token_slices(leg, SLICES)
        job: list[Job] = [(leg.target, self._order.source(leg.source), [cut])]
        seconds = min(self._read(job) for _ in range(3))
        needed = sum(handoff.token_slices(other, 1)[1] for other in self._plan.legs)
        return Slices(needed, int(cut.nbytes[0]), cut.nbytes.size, _size([cut]) / 1e9 / seconds)

    def _socket_rate(self, nbytes: int) -> float | None:
        if not self._sources.port:
            return None
        return socket_rate(self._sources.port, self._pools[0].array, nbytes, self._order.rounds)


class _Cpu:
    """Measures the CPU seconds of this process and of another within its context."""

    def __init__(self, pid: int) -> None:
        # clock_getcpuclockid(3): the CPU time of all threads of a process
        self._clock = (~pid << 3) | 2
        self.ours = self.theirs = 0.0

    def __enter__(self) -> None:
        self.ours -= time.process_time()
        self.theirs -= time.clock_gettime(self._clock)

    def __exit__(self, *_: object) -> None:
        self.ours += time.process_time()
        self.theirs += time.clock_gettime(self._clock)


def _size(copies: list[Copies]) -> int:
    return sum(int(c.nbytes.sum()) for c in copies)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> int:
    """Run the reader."""
    what = order()
    try:
        reader = Reader(what)  # makes its pools while the source makes those it has
        try:
            reader.connect(msgspec.json.decode(sys.stdin.readline(), type=Sources))
            for line in sys.stdin:
                say(reader.measure(msgspec.json.decode(line, type=MeasureOrder)))
        finally:
            reader.close()
    except BatonError as error:
        return complain(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
