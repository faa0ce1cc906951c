"""Checks of what a fabric leaves behind."""

import os
import threading
from pathlib import Path

import numpy as np

from baton.adapters.fabrics import build
from baton.core.errors import FabricError
from baton.core.ids import Boot, Rank, RankId
from baton.core.manifest import RankManifest
from baton.dev.contract.peer import WallClock
from baton.dev.contract.rig import BOOTS, FULL, POOLS, SMALL, CheckWorld, copies, refused
from baton.ports.fabric import ReadOutcome


def house_two_ranks_in_one_process_read_each_other(w: CheckWorld) -> None:
    """Two ranks in one process read each other."""
    kind = w.kind
    boot = next(BOOTS)
    rigs = [w.reader(SMALL, boot=boot + (i << 40), rank=i) for i in range(2)]
    try:
        for i, rig in enumerate(rigs):
            rig.pools[FULL].fill(np.full(4096, i + 1, np.uint8))
        for i, rig in enumerate(rigs):
            other = rigs[1 - i]
            who, exposures = (
                RankId(Boot(boot), Boot(other.boot), Rank(1 - i)),
                {kind: other.exposure},
            )
            rig.connect(who, RankManifest(Boot(other.boot), 1 - i, 0, 0, other.views, exposures))
            assert rig.read(who, copies("full", 0, 8192, 4096)).outcome is ReadOutcome.OK
            assert set(rig.pools[FULL].contents()[8192 : 8192 + 4096].tolist()) == {2 - i}
    finally:
        for rig in rigs:
            rig.close()


def house_close_ends_open_reads_and_may_be_called_twice(w: CheckWorld) -> None:
    """Close ends open reads and may be called twice."""
    joined, peer = w.joined, w.peer
    joined.hold()
    handle = joined.submit(peer, copies("full", 0, 0, POOLS["full"]))
    closer = threading.Thread(target=joined.fabric.close)
    closer.start()
    joined.let_go()
    closer.join()
    joined.fabric.close()
    assert joined.ends(handle)[handle].outcome is ReadOutcome.FAILED
    with refused(FabricError, "closed"):
        joined.submit(peer, copies("full", 0, 0, 1))


def house_close_without_expose(w: CheckWorld) -> None:
    """Close without expose."""
    kind = w.kind
    build(kind, Boot(next(BOOTS)), 0, wake=lambda: None, clock=WallClock()).close()


def house_nothing_is_left_after_close(w: CheckWorld) -> None:
    """Nothing is left after close."""
    peer = w.peer

    def live() -> None:
        rig = w.reader(SMALL)
        rig.connect(peer.id, peer.manifest)
        assert rig.read(peer, copies("full", 0, 0, 4096)).outcome is ReadOutcome.OK
        rig.close()

    live()  # libraries open what they keep at their first use
    fds, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    maps = Path("/proc/self/maps").read_text().count("memfd:baton-pool")
    for _ in range(3):
        live()
    assert len(os.listdir("/proc/self/fd")) == fds
    assert threading.active_count() == threads
    assert Path("/proc/self/maps").read_text().count("memfd:baton-pool") == maps


def house_a_process_that_forgets_to_close_ends_cleanly(w: CheckWorld) -> None:
    """A process that forgets to close ends cleanly."""
    spawn = w.spawn
    source = spawn()
    source.tell("exit")
    assert source.process.wait(20) == 0
