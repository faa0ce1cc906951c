"""The prefill side of `baton bench transfer`: all its ranks, which fill their pools and seal their
state on demand.

python -m baton.dev.cli.transfer.source ORDER      says Sources, then answers each Case with Sealed, until stdin ends
"""

import os
import sys
import time

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.adapters.clock import MonotonicClock
from baton.adapters.fabrics import build
from baton.adapters.memory import HostPool
from baton.core.errors import BatonError
from baton.core.handoff.plan import leg_seals
from baton.core.manifest import PoolView, RankManifest
from baton.dev.bench.transfer.figures import Sealed, Sources
from baton.dev.bench.transfer.layout import GROUP, Case, Handoff
from baton.dev.cli.transfer.talk import TransferOrder, complain, order, say
from baton.dev.cli.transfer.yardsticks import SocketServer
from baton.engine.digest import block_sums
from baton.ports.fabric import Fabric

IDENTITY = 0  # the weights identity: there are no weights
CHUNK = 1 << 22  # words


def fill(pool: NDArray[np.uint8], seed: int) -> None:
    """Fill a pool with bytes in which every word differs from every other one of every rank."""
    words = pool[: pool.size // 8 * 8].view(np.uint64)
    for at in range(0, words.size, CHUNK):
        part = words[at : at + CHUNK]
        part[:] = np.arange(at, at + part.size, dtype=np.uint64)
        part += np.uint64(seed << 48)
        part *= np.uint64(0x9E3779B97F4A7C15)


class Source:
    """The ranks of one prefill worker."""

    def __init__(self, what: TransferOrder) -> None:
        self._layout = what.layout
        self._plan = what.layout.plan()
        self._fabrics: list[Fabric] = []
        self._pools: list[HostPool] = []
        self._server: SocketServer | None = None
        side, views = what.layout.prefill, []
        for rank, placement in enumerate(self._plan.source):
            boot = what.source(rank).boot
            fabric = build(
                what.fabric,
                boot,
                rank,
                wake=lambda: None,
                clock=MonotonicClock(),
                settings=what.settings,
            )
            self._fabrics.append(fabric)
            nbytes = what.layout.pool_bytes(side, rank)
            pool = HostPool(nbytes, what=f"the pool of prefill rank {rank}")
            self._pools.append(pool)
            fill(pool.array, rank)
            exposures = {what.fabric: fabric.expose({GROUP: pool})}
            view = PoolView(GROUP, nbytes // placement.page_bytes(GROUP), nbytes)
            views.append(
                RankManifest(boot, rank, placement.tp_rank, placement.pp_rank, (view,), exposures)
            )
        if not self._fabrics[0].capabilities.same_host_only:
            self._server = SocketServer(self._pools[0].array)
        say(Sources(tuple(views), os.getpid(), self._server.port if self._server else 0))

    def seal(self, case: Case) -> Sealed:
        """Hash what every leg brings."""
        handoff = Handoff(self._layout, self._plan, case)
        numbers = np.arange(case.blocks, dtype=np.int64)
        slots = handoff.slots(self._layout.prefill, numbers)
        began = time.perf_counter()
        sums = [
            block_sums(pool.array, placement, GROUP, slots, numbers, IDENTITY)
            for pool, placement in zip(self._pools, self._plan.source, strict=True)
        ]
        seconds = time.perf_counter() - began
        hashed = sum(case.blocks * placement.block_bytes(GROUP) for placement in self._plan.source)
        found = {}
        for leg in self._plan.legs:
            mine = sums[leg.source][handoff.blocks(leg)]
            found[leg.index] = tuple(leg_seals(mine, self._plan.source_units(leg, GROUP)).tolist())
        return Sealed(found, hashed / 1e9 / seconds)

    def close(self) -> None:
        """Free everything."""
        for fabric in self._fabrics:
            fabric.close()
        if self._server is not None:
            self._server.close()


def main() -> int:
    """Run the source."""
    try:
        source = Source(order())
    except BatonError as error:
        return complain(error)
    try:
        for line in sys.stdin:
            say(source.seal(msgspec.json.decode(line, type=Case)))
    finally:
        source.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
