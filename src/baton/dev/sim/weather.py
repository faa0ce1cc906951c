"""The faults of a world that do not concern single frames and reads: crashes, pauses, partitions,
damaged memory.

Each happens at a drawn moment of the hostile phase, to a process that is alive then.
"""

from typing import Any

from baton.core.ids import GroupName
from baton.dev.sim.engine import SimEngine
from baton.dev.sim.process import Process
from baton.dev.sim.tape import Tape

Place = tuple[Process, SimEngine, tuple[GroupName, int]]  # a page of a rank


class Weather:
    """Schedules these faults and makes them happen."""

    def __init__(self, world: Any, tape: Tape) -> None:
        self._world, self._tape = world, tape

    def schedule(self, start: int, span: int) -> None:
        """Schedule all faults of this world's draw, within `span` microseconds from `start`."""
        faults = self._world.draw.faults
        happenings = (
            (faults.crashes, self._crash),
            (faults.pauses, self._pause),
            (faults.partitions, self._partition),
            (faults.source_damage, self._damage),
            (faults.slow_hosts, self._slow),
            (faults.hangs, self._world.gray.hang),
            (faults.drains, self._drain),
        )
        for times, what in happenings:
            for _ in range(times):
                self._world.heap.at(start + self._moment(span), what)

    def _moment(self, span: int) -> int:
        return span * self._tape.below(100, "moment") // 130

    def _crash(self) -> None:
        alive = self._world.processes()
        if self._world.hostile and alive:
            process = alive[self._tape.below(len(alive), "who crashes")]
            process.calls_left = self._tape.below(6, "after calls")
            self._world.tell(
                f"{process.name}: will crash after {process.calls_left} more calls of a port"
            )
            if process.calls_left == 0:
                process.die("crashed")

    def _pause(self) -> None:
        alive = self._world.processes()
        if self._world.hostile and alive:
            process = alive[self._tape.below(len(alive), "who pauses")]
            process.paused_until = self._world.heap.now + 300_000 * (
                1 + self._tape.below(20, "pause")
            )
            self._world.fault("pause", process.name)
            self._world.tell(
                f"{process.name}: stands still until {process.paused_until / 1000:.0f} ms"
            )

    def _slow(self) -> None:
        """Slow a host down. This is not noted as a fault, as a slow host excuses nothing."""
        alive = self._world.processes()
        if self._world.hostile and alive:
            process = alive[self._tape.below(len(alive), "who is slow")]
            process.slow_until = self._world.heap.now + 300_000 * (
                1 + self._tape.below(10, "slow for")
            )
            self._world.tell(
                f"{process.name}: computes slowly until {process.slow_until / 1000:.0f} ms"
            )

    def _drain(self) -> None:
        """Have a worker drain. It gets SIGTERM, or an operator asks a gateway."""
        alive = [w for w in self._world.workers.values() if w.alive]
        if not self._world.hostile or not alive:
            return
        worker = alive[self._tape.below(len(alive), "who drains")]
        if worker.manifest.guest:
            return
        self._world.tell(f"{worker.draw.name}: is to drain")
        if self._tape.below(2, "by a gateway"):
            self._world.ask_to_drain(worker.draw.name)
        else:
            worker.pump.drain()
            worker.processes[0].wake()

    def _partition(self) -> None:
        alive = self._world.processes()
        if not self._world.hostile or len(alive) < 2:
            return
        a = alive[self._tape.below(len(alive), "partition from")].name
        b = alive[self._tape.below(len(alive), "partition to")].name
        cut = {(a, b)} if self._tape.below(2, "one way") else {(a, b), (b, a)}
        self._world.network.cut |= cut
        self._world.fault("partition", a, b)
        self._world.tell(f"cut off: {', '.join(f'{a} from {b}' for a, b in sorted(cut))}")
        self._world.heap.after(
            250_000 * (1 + self._tape.below(20, "partition for")), self._join, cut
        )

    def _join(self, cut: set[tuple[str, str]]) -> None:
        self._world.network.cut -= cut
        self._world.tell(f"partition over: {', '.join(f'{a} reaches {b}' for a, b in sorted(cut))}")

    def _damage(self) -> None:
        """Flip a bit: in a cached page of a decode rank, or in the memory of a prefill rank, where
        a page of an open room lies or a closed room has left its state."""
        cached = self._cached() if self._world.hostile else []
        if cached and self._tape.chance(0.5, "on decode"):
            self._flip(cached)
            return
        anywhere = self._tape.chance(0.6, "in what was left")
        places: list[Place] = [
            (p, e, where)
            for w in self._world.workers.values()
            if w.draw.role == "prefill"
            for p, e, b in zip(w.processes, w.engines, w.books, strict=True)
            for where in (b.used() if anywhere else b.owned())
            if e.placement.page_bytes(where[0])
        ]
        if self._world.hostile and places:
            self._flip(places)

    def _cached(self) -> list[Place]:
        """Return the pages that decode workers have cached."""
        return [
            (p, e, where)
            for w in self._world.workers.values()
            for p, e in zip(w.processes, w.engines, strict=True)
            for where in w.cache.cached()
            if e.placement.page_bytes(where[0]) and p.alive
        ]

    def _flip(self, places: list[Place]) -> None:
        process, engine, (group, page) = places[self._tape.below(len(places), "which page")]
        byte = self._tape.below(engine.placement.page_bytes(group), "byte")
        engine.flip(group, page, byte, self._tape.below(8, "bit"))
        self._world.fault("damage", process.name)
        self._world.tell(f"{process.name}: a bit flips in page {page} of group {group}")
