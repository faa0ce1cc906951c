"""All ranks of a worker in this process, without a model: the shipped rank core and its host,
engine, host memory and fabric.

The test is their leader. What a pool must hold is written down here from the documents, with
nothing of core/memory/state.py.
"""

import random
import threading
from collections.abc import Mapping, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.core.handoff.layouts import Layout, extent, heads_of, layers_of, placements

from baton.adapters.fabrics import build
from baton.adapters.host_memory import HostMemory
from baton.adapters.memory import HostPool
from baton.core.agreement import (
    ConnectOrder,
    Fetch,
    Hold,
    Offload,
    Rehash,
    Report,
    Restore,
    StepPlan,
    Vote,
    unpack_sums,
)
from baton.core.handoff.plan import leg_seals, pair
from baton.core.ids import BlockIndex, Boot, Epoch, GroupName, Key, Page, Rank, Room, Seal, Seq
from baton.core.manifest import Manifest, PoolView, RankManifest
from baton.core.memory.state import StateTable, Unit
from baton.core.messages import BlockRun, LegSums
from baton.core.protocol import PROTOCOL
from baton.core.rank.rank import RankCore
from baton.core.rank.watchdog import WatchdogSettings
from baton.dev.contract.peer import WallClock
from baton.dev.contract.rig import BOOTS
from baton.engine.digest import block_sums
from baton.engine.engine import TorchEngine
from baton.shell.narration import Narration
from baton.shell.rank_host import RankHost

PATIENCE_S = 60.0
IDENTITY = 77
HOST_BYTES = 64 << 20
Pages = dict[GroupName, tuple[Page, ...]]
NO_MODEL: Any = SimpleNamespace(draft_layer="it is never computed", logits=None)


def names(
    room: int, unit: tuple[int, int, int, int], positions: np.ndarray, nbytes: int
) -> np.ndarray:
    """uint8 [*positions, nbytes] of a unit (spec, head, layer, part): each eight bytes are a number
    that stands nowhere else."""
    spec, head, layer, part = unit
    number = np.uint64((((room * 32 + spec) * 256 + head) * 256 + layer) * 8 + part)
    words = np.arange(-(-nbytes // 8), dtype=np.uint64)
    x = (
        (number << np.uint64(33))
        + (positions[..., None].astype(np.uint64) << np.uint64(20))
        + words
    )
    # one to one, and every byte depends on all
    for shift, odd in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(odd)
    return np.ascontiguousarray(x ^ (x >> np.uint64(31))).view(np.uint8)[..., :nbytes]


def blocks_of(
    table: StateTable, layout: Layout, rank: int, group: GroupName, room: int, blocks: np.ndarray
) -> np.ndarray:
    """uint8 [blocks, bytes]: these blocks of a room as they lie on a rank."""
    tokens = table.block_tokens if table.group(group).unit is Unit.PAGE else 1
    positions = blocks[:, None] * tokens + np.arange(tokens)
    found = [np.zeros((len(blocks), 0), dtype=np.uint8)]
    for n, spec in enumerate(table.specs):
        if spec.group == group:
            layers, parts = layers_of(table, spec, layout, rank), range(len(spec.parts))
            for head, layer, part in product(heads_of(spec, layout, rank), layers, parts):
                rows = names(room, (n, head, layer, part), positions, spec.row * spec.dtype.size)
                found.append(rows.reshape(len(blocks), -1))
    return np.concatenate(found, axis=1)


def key_of(room: int) -> Key:
    return Key(Room(f"{room:032x}"), Epoch(1))


class Worker:
    """All ranks, whose pools begin full of noise. rooms: positions of each."""

    def __init__(self, table: StateTable, layout: Layout, rooms: Mapping[int, int]) -> None:
        self.table, self.layout, self.rooms = table, layout, rooms
        self.placements = placements(table, layout)
        self._seq, self._order = 0, 0
        self._woken = threading.Event()
        self._random = random.Random(layout.tp)
        self.extents = {
            (room, g.name): extent(table, g.name, n)
            for room, n in rooms.items()
            for g in table.groups
        }
        count = {g.name: sum(self._pages(room, g.name)[1] for room in rooms) for g in table.groups}
        self._free = {g: set(range(2 * n + 3)) for g, n in count.items()}
        self.pages: dict[int, Pages] = {}
        self._hosts, self.stores, self._parts, self.pools = [], [], [], []
        boots = [Boot(next(BOOTS)) for _ in self.placements]
        ranks = [self._rank(rank, boot) for rank, boot in enumerate(boots)]
        self.manifest = Manifest(
            PROTOCOL,
            "unified",
            "m",
            "ab" * 16,
            "float32",
            table,
            layout.k,
            layout.tp,
            layout.pp,
            4096,
            True,
            tuple(ranks),
        )
        self.expected = [
            {g: pool.array.copy() for g, pool in pools.items()} for pools in self.pools
        ]

    def _rank(self, rank: int, boot: Boot) -> RankManifest:
        placement, clock = self.placements[rank], WallClock()
        sizes = {g: len(free) * placement.page_bytes(g) for g, free in self._free.items()}
        pools = {g: HostPool(size) for g, size in sizes.items() if size}
        for pool in pools.values():
            pool.array[:] = np.random.default_rng(rank).integers(
                0, 256, pool.nbytes, dtype=np.uint8
            )
        unused: Any = None
        engine = TorchEngine(
            model=NO_MODEL,
            placement=placement,
            pools=pools,
            backends=unused,
            block_sums=block_sums,
            identity=IDENTITY,
            threads=1,
            wake=self._woken.set,
        )
        fabric = build("shm", boot, rank, wake=self._woken.set, clock=clock)
        block_bytes = {g: placement.block_bytes(g) for g in pools}
        store = HostMemory(
            pools=pools, block_bytes=block_bytes, total=HOST_BYTES, wake=self._woken.set
        )
        core = RankCore(rank=Rank(rank), boot=boot, placements=self.placements, seal=True)
        host = RankHost(
            core=core,
            engine=engine,
            fabrics={"shm": fabric},
            store=store,
            clock=clock,
            narration=Narration(),
            watchdog=WatchdogSettings(0, 0),
        )
        self._hosts.append(host)
        self.stores.append(store)
        self._parts += [fabric, store, engine]
        self.pools.append(pools)
        views = tuple(PoolView(g, len(self._free[g]), p.nbytes) for g, p in pools.items())
        return RankManifest(
            boot,
            Rank(rank),
            placement.tp_rank,
            placement.pp_rank,
            views,
            {"shm": fabric.expose(pools)},
        )

    def close(self) -> None:
        """End every thread, free everything."""
        for part in self._parts:
            part.close()
        for pool in (pool for pools in self.pools for pool in pools.values()):
            pool.close()

    # ---- what a leader does ---------------------------------------------------------------------

    def order(self, answers: int = 0, **fields: Any) -> list[list[Any]]:
        """Have all ranks apply a plan, and wait for so many answers of each: ballots, meetings,
        sums."""
        self._seq += 1
        plan = StepPlan(Seq(self._seq), **fields)
        found: list[list[Any]] = [[] for _ in self._hosts]
        for host in self._hosts:
            host.apply(plan)
        while True:
            self._woken.clear()
            for host, said in zip(self._hosts, found, strict=True):
                host.poll()
                report = host.report() or _NOTHING
                said += [*report.ballots, *report.connected, *report.rehashed]
            if all(len(said) == answers for said in found):
                return found
            assert self._woken.wait(PATIENCE_S), f"{found} of {answers} answers"

    def vote(self, **fields: Any) -> None:
        """Orders of which every rank must say that all has arrived."""
        count = sum(len(orders) for orders in fields.values() if not isinstance(orders[0], Hold))
        for said in self.order(count, **fields):
            assert all(ballot.vote is Vote.ARRIVED for ballot in said), said

    def number(self) -> int:
        """Of the next order."""
        self._order += 1
        return self._order

    def _pages(self, room: int, group: GroupName) -> tuple[int, int]:
        """Pages of the sequence before those that a room holds, and how many it holds."""
        first, past = self.extents[room, group]
        k = self.layout.k if self.table.group(group).unit is Unit.PAGE else 1
        return first // k, -(-past // k) - first // k

    def take(self) -> tuple[Hold, ...]:
        """Other pages for every room than it had, scattered."""
        left = {
            g: sorted(free - {p for held in self.pages.values() for p in held[g]})
            for g, free in self._free.items()
        }
        holds = []
        for room in self.rooms:
            passed = {g: self._pages(room, g)[0] for g in left}
            self.pages[room] = {}
            for group, free in left.items():
                chosen = self._random.sample(free, self._pages(room, group)[1])
                left[group] = [page for page in free if page not in chosen]
                self.pages[room][group] = tuple(Page(page) for page in chosen)
            holds.append(
                Hold(key_of(room), self.pages[room], {g: n for g, n in passed.items() if n})
            )
        return tuple(holds)

    def fill(self) -> None:
        """Every row of every room gets its name, as if it had been computed."""
        self.order(hold=self.take())
        self.expect()
        for pools, expected in zip(self.pools, self.expected, strict=True):
            for group, pool in pools.items():
                pool.array[:] = expected[group]

    def away_and_back(self) -> None:
        """All rooms go to the host store, everything is cleared, and they come back into other
        pages."""
        lengths = [(key_of(room), length) for room, length in self.rooms.items()]
        self.vote(offload=tuple(Offload(self.number(), key, length) for key, length in lengths))
        self.order(vacate=tuple(key for key, _ in lengths), clear=tuple(self._free))
        self.expected = [
            {g: np.zeros_like(bytes_) for g, bytes_ in expected.items()}
            for expected in self.expected
        ]
        self.check("cleared")
        holds = self.take()
        self.vote(
            hold=holds,
            restore=tuple(Restore(self.number(), key, length) for key, length in lengths),
        )
        self.expect()
        assert not any(store.held for store in self.stores)

    def fetch(self, source: "Worker") -> None:
        """All rooms are read from another worker, and verified."""
        self.order(1, connect=(ConnectOrder(source.manifest, "shm"),))
        holds = self.take()
        fetches = [self._fetch(source, room) for room in self.rooms]
        self.vote(hold=holds, fetch=tuple(fetches))
        self.expect()

    def _fetch(self, source: "Worker", room: int) -> Fetch:
        runs, sums, length = {}, [], self.rooms[room]
        plan = pair(source.placements, self.placements)
        for group in source._free:
            first, past = source.extents[room, group]
            runs[group] = BlockRun(BlockIndex(first), BlockIndex(past), source.pages[room][group])
            blocks = np.arange(first, past)
            found = source.sums(room, group, blocks)
            for leg in plan.legs:
                owned = plan.owned(leg, group, blocks)
                seals = leg_seals(found[leg.source][owned - first], plan.source_units(leg, group))
                if owned.size:
                    sums.append(
                        LegSums(
                            leg.index,
                            group,
                            tuple(owned.tolist()),
                            tuple(Seal(int(s)) for s in seals),
                        )
                    )
        boot = source.manifest.boot
        return Fetch(
            self.number(),
            None,
            (),
            key_of(room),
            boot,
            length,
            runs,
            tuple(sums),
            int(PATIENCE_S * 1000),
        )

    def sums(
        self, room: int, group: GroupName, blocks: Sequence[int] | np.ndarray
    ) -> list[np.ndarray]:
        """Of every rank: uint64 [blocks, units]."""
        numbers = tuple(BlockIndex(int(b)) for b in blocks)
        said = self.order(
            1, rehash=(Rehash(self.number(), key_of(room), self.rooms[room], group, numbers),)
        )
        units = [len(placement.units(group)) for placement in self.placements]
        found = [
            unpack_sums(answer.sums[group], n) for (answer,), n in zip(said, units, strict=True)
        ]
        return [
            sums if n else np.zeros((len(numbers), 0), np.uint64)
            for sums, n in zip(found, units, strict=True)
        ]

    # ---- what must be there ---------------------------------------------------------------------

    def expect(self) -> None:
        """From now on every room's blocks lie in the pages it holds; what lies beside them is as it
        was."""
        for (room, group), (first, past) in self.extents.items():
            k = self.layout.k if self.table.group(group).unit is Unit.PAGE else 1
            blocks = np.arange(first, past)
            at = np.array(self.pages[room][group])[blocks // k - first // k] * k + blocks % k
            for rank, expected in enumerate(self.expected):
                if group in expected:
                    right = blocks_of(self.table, self.layout, rank, group, room, blocks)
                    expected[group].reshape(-1, right.shape[1])[at] = right

    def check(self, what: str) -> None:
        """Compare every byte of every pool."""
        for rank, (pools, expected) in enumerate(zip(self.pools, self.expected, strict=True)):
            for group, pool in pools.items():
                wrong = np.flatnonzero(pool.array != expected[group])
                assert not wrong.size, (
                    f"{what}, {self.layout}, rank {rank}: {wrong.size} "
                    f"bytes of {group}, first {wrong[:4]}"
                )


_NOTHING = Report(Rank(0), Boot(0), Seq(0), b"", (), (), (), (), (), 0)
