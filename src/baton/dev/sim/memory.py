"""Memory and the data plane: reads that sample their source over time and land over time.

A read is cut into cells. Each is sampled at one drawn time and lands at a later one, so a page that
is reused meanwhile is torn; memory keeps its content when it is freed. A read may fail after a part
of it has landed, straggle beyond every timeout, or bring bytes that were not there. Where the
fabric does not promise that an ended read is quiet, it may also go on landing.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from baton.core.errors import FabricError
from baton.core.ids import Boot, GroupName, Micros, RankId
from baton.core.manifest import RankManifest
from baton.core.memory.kinds import HOST
from baton.core.work import Connected, Copies, FabricEvent, Handle, ReadEnded, ReadOutcome, Released
from baton.dev.sim.costs import Costs, Wires
from baton.dev.sim.heap import Heap
from baton.dev.sim.process import Process
from baton.dev.sim.settings import Faults
from baton.dev.sim.tape import Tape
from baton.ports.fabric import Capabilities, Pool

STALE_BYTE = 0xEE  # fresh memory is never zero, so that bytes nobody wrote are noticed
# within, about and beyond every timeout of the code under test
STRAGGLES_US = (20_000, 200_000, 700_000, 12_000_000)
LIES_AGAIN = (0, 0, 2, 2, 3, 3, 6, 60)
# a prompt goes to decode chunk by chunk; a conversation comes back in one piece, more slowly
FORTH_US, BACK_US = 10, 100
LIES_BACK = 0.5  # of fetched-back reads where reads lie at all: the state is computed instead
# until the endpoint of reads that ended UNKNOWN is torn down
RELEASES_US = (300_000, 300_000, 300_000, 3_000_000)
Range = tuple[GroupName, int, int, int]  # group, source offset, target offset, bytes


def _ranges(copies: Copies) -> Iterable[tuple[int, int, int]]:
    return zip(copies.source.tolist(), copies.target.tolist(), copies.nbytes.tolist(), strict=True)


class SimPool:
    """Port Pool: the bytes of one group on one rank."""

    def __init__(self, nbytes: int) -> None:
        self.data: NDArray[np.uint8] = np.full(nbytes, STALE_BYTE, dtype=np.uint8)
        self.raw = self.data.data  # the same bytes; faster to read and write when there are few
        self.nbytes = nbytes
        self.memory = HOST
        self.address = 0
        self.fd = None


class MemoryWatcher(Protocol):
    """Watches what happens to memory (sim/books.py)."""

    def read_began(self, handle: Handle, peer: RankId, ranges: Sequence[Range]) -> None:
        """A read of ours into these ranges is under way."""
        ...

    def landing(self, handle: Handle, group: GroupName, start: int, nbytes: int) -> None:
        """Bytes are about to be written."""
        ...

    def read_quiet(self, handle: Handle) -> None:
        """The code has been told that nothing more lands."""
        ...

    def whose(self, handle: Handle) -> str:
        """Return the room that a read under way is for."""
        ...


class FabricWorld(Protocol):
    """What a fabric needs to know of its world."""

    heap: Heap
    tape: Tape
    quiet_ends: bool
    costs: Costs
    wires: Wires
    story: object | None  # the story, if one is wanted

    @property
    def healthy(self) -> bool:
        """Whether no fault has occurred in this world, and none will."""
        ...

    def faults(self) -> Faults:
        """Return the faults that may occur at the moment."""
        ...

    def violate(self, invariant: str, detail: str) -> None:
        """Stop the run."""
        ...

    def fault(self, kind: str, *names: str) -> None:
        """Note a fault."""
        ...

    def tell(self, line: str) -> None:
        """Add a line to the story, if one is wanted."""
        ...

    def memory_of(self, boot: Boot) -> tuple[Process, Mapping[GroupName, SimPool]] | None:
        """Return the rank with this boot, and its pools; None if it has ended."""
        ...


class UnderWay:
    """A read that is under way."""

    def __init__(self, handle: Handle, peer: RankId, cells: list[list[Range]]) -> None:
        self.handle, self.peer, self.cells = handle, peer, cells
        self.landed = 0
        self.ended = False  # whether the code has been told of its end
        self.quiet = False  # whether nothing lands any more
        self.brings: list[list[bytes] | None] = [None] * len(cells)


class SimFabric:
    """Port Fabric for one rank."""

    def __init__(
        self,
        world: FabricWorld,
        process: Process,
        pools: Mapping[GroupName, SimPool],
        books: MemoryWatcher,
    ) -> None:
        self._world, self._process, self._pools, self._books = world, process, pools, books
        self._peers: dict[RankId, RankManifest] = {}
        self._reaching: dict[RankId, RankManifest] = {}  # connections that are being made
        self._reads: dict[Handle, UnderWay] = {}
        self._said: list[FabricEvent] = []
        self._lying: dict[RankId, int] = {}  # how many more reads lie, by peer
        self._comes_back = process.name.startswith("prefill")
        self._piece_us, self._lies_back = (
            (BACK_US, LIES_BACK) if self._comes_back else (FORTH_US, 0.0)
        )

    @property
    def name(self) -> str:
        return "sim"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(1 << 20, 1 << 40, False, False, self._world.quiet_ends, True)

    def expose(self, pools: Mapping[GroupName, Pool]) -> bytes:
        return b""

    def connect(self, peer: RankId, manifest: RankManifest) -> None:
        self._process.port_call()
        if self._world.tape.chance(self._world.faults().connect_fail, "a connection fails"):
            self._world.fault("connect", self._process.name)
            self._said.append(Connected(peer, "the simulated fabric does not reach it"))
            return
        if (late := self._world.costs.connect_us) and peer not in self._peers:
            self._reaching[peer] = manifest
            self._world.heap.after(late, self._reached, peer, manifest)
            return
        self._peers[peer] = manifest
        self._said.append(Connected(peer, ""))

    def _reached(self, peer: RankId, manifest: RankManifest) -> None:
        """A connection that took time is made. It, or a later one, may be unwanted."""
        if self._process.alive and self._reaching.get(peer) is manifest:
            del self._reaching[peer]
            self._peers[peer] = manifest
            self._said.append(Connected(peer, ""))
            self._process.wake()

    def disconnect(self, peer: RankId) -> None:
        self._process.port_call()
        self._peers.pop(peer, None)
        self._reaching.pop(peer, None)
        self._said = [
            event
            for event in self._said
            if not (isinstance(event, Connected) and event.peer == peer)
        ]
        for read in [r for r in self._reads.values() if r.peer == peer]:
            self._give_up(read, "disconnected")

    def submit(
        self, handle: Handle, peer: RankId, copies: Sequence[Copies], *, deadline: Micros
    ) -> None:
        self._process.port_call()
        manifest = self._peers.get(peer)
        if manifest is None:
            raise FabricError(f"rank {peer} is not connected")
        ranges = [(c.group, s, t, n) for c in copies for s, t, n in _ranges(c)]
        there = {p.group: p.nbytes for p in manifest.pools}
        for group, source, target, nbytes in ranges:
            if (
                source + nbytes > there[group]
                or target + nbytes > self._pools[group].nbytes
                or min(source, target) < 0
            ):
                raise FabricError(
                    f"range {(source, target, nbytes)} of group {group} is outside the pools"
                )
        self._start(UnderWay(handle, peer, self._cut(ranges)), ranges, deadline)

    def _tell(self, read: UnderWay, what: str) -> None:
        if self._world.story is not None:
            self._world.tell(
                f"{self._process.name}: read {read.handle} for "
                f"{self._books.whose(read.handle)} {what}"
            )

    def _name(self, peer: RankId) -> str:
        memory = self._world.memory_of(peer.boot)
        return memory[0].name if memory is not None else "an ended process"

    def _cut(self, ranges: list[Range]) -> list[list[Range]]:
        world = self._world
        if not world.tape.chance(world.faults().read_torn, "a read in pieces"):
            return [ranges]
        cells: list[list[Range]] = []
        for group, source, target, nbytes in ranges:
            step = max(16, nbytes // (2 + world.tape.below(3, "pieces")) // 16 * 16)
            cells += [
                [(group, source + at, target + at, min(step, nbytes - at))]
                for at in range(0, nbytes, step)
            ]
        return cells

    def _start(self, read: UnderWay, ranges: list[Range], deadline: Micros) -> None:
        self._reads[read.handle] = read
        self._books.read_began(read.handle, read.peer, ranges)
        nbytes, source = sum(r[3] for r in ranges), self._name(read.peer)
        if self._world.story is not None:
            self._tell(read, f"begins, {nbytes} bytes from {source} in {len(read.cells)} pieces")
        self._world.heap.after(deadline, self._too_late, read)
        wanted = partial(self._wanted, read)
        self._world.wires.enter(
            source, self._process.name, nbytes, wanted, partial(self._carry, read)
        )

    def _wanted(self, read: UnderWay) -> bool:
        """Whether a read that has waited for its wire is still to be carried."""
        return self._process.alive and not read.quiet

    def _carry(self, read: UnderWay, duration: int) -> None:
        """The read's turn has come: sample its cells in turn while the wire carries it."""
        world, heap, tape, faults = (
            self._world,
            self._world.heap,
            self._world.tape,
            self._world.faults(),
        )
        fails = (
            tape.below(len(read.cells) + 1, "fail after")
            if tape.chance(faults.read_fail, "a read fails")
            else None
        )
        straggles = tape.chance(faults.read_straggle, "a read straggles")
        lies = (
            tape.below(len(read.cells), "cell")
            if self._lies(read.peer, faults.read_corrupt)
            else None
        )
        if straggles:
            world.fault("straggling read", self._process.name)
        if fails is not None:
            world.fault("failed read", self._process.name)
        last, end = 0, len(read.cells) if fails is None else fails
        for i in range(end):
            sampled = (
                20
                + duration * (i + 1) // len(read.cells)
                + (tape.below(200, "sampled") * self._piece_us if len(read.cells) > 1 else 0)
            )
            landed = (
                sampled
                + 10
                + (tape.below(200, "landed") * self._piece_us if len(read.cells) > 1 else 0)
            )
            if straggles and (i == end - 1 or tape.below(2, "straggling cell")):
                landed += STRAGGLES_US[tape.below(len(STRAGGLES_US), "straggles by")]
            last = max(last, landed)
            heap.after(sampled, self._sample, read, i, i == lies)
            heap.after(landed, self._land, read, i)
        outcome = ReadOutcome.OK if fails is None else ReadOutcome.FAILED
        heap.after(
            last + 5, self._finish, read, outcome, "a simulated error" if fails is not None else ""
        )

    def _lies(self, peer: RankId, probability: float) -> bool:
        """Whether a read brings what was not there. Once one does, the next ones may do so too."""
        if self._lying.get(peer, 0) and probability:
            self._lying[peer] -= 1
            return True
        lies = self._world.tape.chance(
            max(probability, self._lies_back) if probability else 0.0, "a read lies"
        )
        if lies:
            self._lying[peer] = LIES_AGAIN[self._world.tape.below(len(LIES_AGAIN), "lies again")]
        return lies

    def _sample(self, read: UnderWay, cell: int, lies: bool) -> None:
        if read.quiet or not self._process.alive:
            return
        source = self._world.memory_of(read.peer.boot)
        if source is None:
            self._finish(read, ReadOutcome.FAILED, "the source has ended")
            return
        pools = source[1]
        read.brings[cell] = [bytes(pools[g].raw[s : s + n]) for g, s, _, n in read.cells[cell]]
        if lies:
            self._world.fault("corrupt read", self._process.name)
            self._lie(read, cell, pools)

    def _lie(self, read: UnderWay, cell: int, pools: Mapping[GroupName, SimPool]) -> None:
        """Replace what a cell brings: by a flipped bit, by bytes from another place, by two
        neighbours exchanged, or by nothing at all."""
        brought = read.brings[cell]
        assert brought is not None
        tape, which = self._world.tape, 0
        group, source, _, nbytes = read.cells[cell][which]
        data = bytearray(brought[which])
        match tape.below(4, "lie"):
            case 0:
                at = tape.below(nbytes, "byte")
                data[at] ^= 1 << tape.below(8, "bit")
            case 1:
                shifted = (source + 16) % max(16, pools[group].nbytes - nbytes + 1)
                data = bytearray(pools[group].raw[shifted : shifted + nbytes])
            case 2 if nbytes >= 32:
                # the size of a token's row, a part, a layer, a head or a block
                size = 16 << tape.below((nbytes // 32).bit_length(), "size")
                at = tape.below(nbytes // size - 1, "exchange at") * size
                data[at : at + 2 * size] = data[at + size : at + 2 * size] + data[at : at + size]
            case _:
                read.brings[cell] = []
                return
        brought[which] = bytes(data)

    def _land(self, read: UnderWay, cell: int) -> None:
        brought = read.brings[cell]
        if read.quiet or brought is None or not self._process.alive:
            return
        for (group, _, target, nbytes), data in zip(read.cells[cell], brought, strict=False):
            self._books.landing(read.handle, group, target, nbytes)
            self._pools[group].raw[target : target + nbytes] = data

    def _finish(self, read: UnderWay, outcome: ReadOutcome, detail: str) -> None:
        if not read.ended and self._process.alive:
            self._end(read, outcome, detail, quiet=True)

    def _end(self, read: UnderWay, outcome: ReadOutcome, detail: str, *, quiet: bool) -> None:
        if self._world.story is not None:
            self._tell(read, f"ended: {outcome.value}{' (' + detail + ')' if detail else ''}")
        read.ended, read.quiet = True, quiet
        del self._reads[read.handle]
        self._said.append(ReadEnded(read.handle, outcome, detail))
        if quiet:
            self._books.read_quiet(read.handle)
        self._process.wake()

    def cancel(self, handle: Handle) -> None:
        self._process.port_call()
        read = self._reads.get(handle)
        if read is not None:
            self._world.heap.after(10, self._give_up, read, "cancelled")

    def _too_late(self, read: UnderWay) -> None:
        """End a read whose deadline has passed. In a healthy world no read of decode may run out of
        time, whatever waits beside it. (Reads that fetch back have a short time on purpose: their
        state is computed instead.)"""
        if not read.ended and self._process.alive and self._world.healthy and not self._comes_back:
            self._world.violate(
                "time_for_reads",
                f"{self._process.name}: read {read.handle} ran out of time in a healthy world",
            )
        self._give_up(read, "its deadline passed")

    def _give_up(self, read: UnderWay, why: str) -> None:
        if read.ended or not self._process.alive:
            return
        if self._world.quiet_ends:
            self._end(read, ReadOutcome.FAILED, why, quiet=True)
        else:
            self._tear_down(read, why)

    def _tear_down(self, read: UnderWay, why: str) -> None:
        """Tear down the endpoint that a read came through. Where reads hang this takes a while, and
        other reads may have had parts under way there. No read through the endpoint is quiet before
        the endpoint has gone."""
        tape, hangs = self._world.tape, self._world.faults().read_straggle
        release_us, torn = RELEASES_US[0], []
        if tape.chance(2 * hangs, "an endpoint hangs"):
            self._world.fault("hanging endpoint", self._process.name)
            release_us = RELEASES_US[tape.below(len(RELEASES_US), "endpoint hangs for")]
            torn = [
                other
                for other in self._reads.values()
                if other.peer == read.peer and other is not read
            ]
        self._end_unquiet(read, why, release_us)
        for other in torn:
            self._end_torn(other, release_us)

    def _end_torn(self, read: UnderWay, release_us: int) -> None:
        """End a read because another one's endpoint was torn down."""
        self._end_unquiet(read, "the endpoint was torn down under it", release_us)

    def _end_unquiet(self, read: UnderWay, why: str, release_us: int) -> None:
        self._end(read, ReadOutcome.UNKNOWN, why, quiet=False)
        self._world.heap.after(release_us, self._release, read)

    def _release(self, read: UnderWay) -> None:
        if self._process.alive:
            read.quiet = True
            self._tell(read, "can land no more")
            self._books.read_quiet(read.handle)
            self._said.append(Released(read.handle))
            self._process.wake()

    def attend(self) -> None: ...

    def poll(self) -> list[FabricEvent]:
        said, self._said = self._said, []
        return said

    def close(self) -> None: ...
