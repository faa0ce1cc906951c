"""Every fabric keeps the sentences F1 to F11 of ports/fabric.py, with real processes on the other
side.

The checks are those of `baton fabric check`: src/baton/contract.
"""

import mmap
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton.adapters.fabrics import available, build
from baton.adapters.memory import HostPool
from baton.adapters.nixl_agent import UCX_PARAMS, NixlAgent, load_nixl
from baton.adapters.reads import Region
from baton.adapters.shm_door import call, decode_exposure
from baton.core.errors import ConfigError
from baton.core.ids import Boot, GroupName, RankId
from baton.core.manifest import PoolView, RankManifest
from baton.core.memory.kinds import HOST, CudaMemory
from baton.dev.contract.checks import CHECKS, ContractCheck
from baton.dev.contract.cuts import (
    f3_of_a_source_stopped_in_mid_read_nothing_lands_after_the_end,
    f4_of_reads_cancelled_in_mid_read_nothing_lands_after_the_end,
    f5_of_a_source_killed_in_mid_read_nothing_lands_after_the_end,
)
from baton.dev.contract.peer import Peer, PeerOrder, WallClock
from baton.dev.contract.reads import (
    f3_what_ended_while_its_source_stood_still_lands_nothing_when_it_goes_on,
)
from baton.dev.contract.rig import BOOTS, POOLS, SLOT, SMALL, CheckWorld, Rig, copies
from baton.ports.fabric import ReadOutcome


def _kinds() -> Iterator[object]:
    for name, obstacle in available().items():
        missing = [pytest.mark.skip(reason=f"{name}: {obstacle}")] if obstacle else []
        yield pytest.param(name, marks=[*missing, *[pytest.mark.slow] * (name == "mooncake")])


@pytest.fixture(scope="module", params=_kinds())
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    """A source rank that lives as long as the module: nobody here kills it."""
    p = Peer(PeerOrder(str(request.param), next(BOOTS), 3, POOLS))
    yield p
    assert p.end() == 0


@pytest.fixture
def world(peer: Peer) -> Iterator[CheckWorld]:
    w = CheckWorld(peer.order.kind, peer)
    yield w
    w.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_contract(world: CheckWorld, check: ContractCheck) -> None:
    check.run(world)


@pytest.mark.skipif(bool(available()["nixl"]), reason=available()["nixl"])
@pytest.mark.parametrize(
    "check",
    [
        f3_what_ended_while_its_source_stood_still_lands_nothing_when_it_goes_on,
        f3_of_a_source_stopped_in_mid_read_nothing_lands_after_the_end,
        f4_of_reads_cancelled_in_mid_read_nothing_lands_after_the_end,
        f5_of_a_source_killed_in_mid_read_nothing_lands_after_the_end,
    ],
    ids=lambda check: check.__name__,
)
def test_nixl_over_tcp_lands_nothing_after_the_end(
    monkeypatch: pytest.MonkeyPatch, check: Callable[[CheckWorld], None]
) -> None:
    """Over shared memory it reads without the source's help; over TCP it cannot, and takes parts
    back whose bytes still come."""
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    spawned = Peer(PeerOrder("nixl", next(BOOTS), 3, POOLS))
    w = CheckWorld("nixl", spawned)
    check(w)
    w.close()
    spawned.end()


def test_f7_shm_maps_a_peer_read_only_and_what_it_is_handed_cannot_be_written() -> None:
    kind, spawned = "shm", Peer(PeerOrder("shm", next(BOOTS), 3, SMALL))

    def maps() -> Counter[str]:
        return Counter(
            re.findall(
                r"(\S{4}) \S+ \S+ \d+ +/memfd:baton-pool", Path("/proc/self/maps").read_text()
            )
        )

    rig = Rig(kind, next(BOOTS), SMALL)
    before = maps()
    rig.connect(spawned.id, spawned.manifest)
    assert maps() - before == Counter({"r--s": 2})
    manifest = spawned.manifest
    line, fds = call(
        decode_exposure(manifest.exposures[kind]).name, manifest.boot, 3, manifest.pools
    )
    with line:
        for fd in fds.values():
            with pytest.raises(PermissionError):
                mmap.mmap(fd, 4096, flags=mmap.MAP_SHARED)
            with pytest.raises(PermissionError):
                os.pwrite(fd, b"x", 0)
            with pytest.raises(PermissionError):
                os.ftruncate(fd, 0)
            os.close(fd)
    rig.close()
    spawned.end()


def test_f5_the_name_of_an_shm_door_is_made_exclusively() -> None:
    rig = Rig("shm", next(BOOTS), SMALL)
    twin = build("shm", Boot(rig.boot), 0, wake=lambda: None, clock=WallClock())
    with pytest.raises(ConfigError, match="taken"):
        twin.expose(rig.pools)
    twin.close()
    rig.close()


def test_a_pool_without_a_memory_file_cannot_be_exposed_by_shm() -> None:
    class AnonymousPool:
        nbytes, memory, address, fd = 4096, HOST, 1 << 32, None

    fabric = build("shm", Boot(next(BOOTS)), 0, wake=lambda: None, clock=WallClock())
    try:
        with pytest.raises(ConfigError, match="choose another fabric"):
            fabric.expose({GroupName("full"): AnonymousPool()})
    finally:
        fabric.close()


@pytest.mark.skipif(bool(available()["nixl"]), reason=available()["nixl"])
def test_f11_nixl_does_not_register_memory_of_the_host_as_a_device_s() -> None:
    """Baton asks the driver before; this is what the engine itself says."""
    agent = NixlAgent(load_nixl(), "claims", backend="UCX", params=UCX_PARAMS)
    pool = HostPool(4096)
    try:
        with pytest.raises(ConfigError, match="cuda:0 cannot be registered"):
            agent.register([Region(pool.address, pool.nbytes, CudaMemory(0))])
    finally:
        agent.close()
        pool.close()


def test_deadlines_are_durations() -> None:
    """A rank whose clock started long ago reads all the same."""
    rig = Rig("shm", next(BOOTS), SMALL)
    rig.clock.ahead = 10**12
    me = RankId(Boot(rig.boot), Boot(rig.boot), 0)
    views = tuple(PoolView(g, 1, p.nbytes) for g, p in rig.pools.items())
    rig.connect(me, RankManifest(Boot(rig.boot), 0, 0, 0, views, {"shm": rig.exposure}))
    rig.pools[SLOT].array[:4] = 9
    assert rig.read(me, copies("slot", 0, 100, 4)).outcome is ReadOutcome.OK
    assert rig.pools[SLOT].array[100:104].tolist() == [9, 9, 9, 9]
    rig.close()


def test_host_pool_survives_views_at_close() -> None:
    pool = HostPool(4096)
    view = pool.array[:16]
    pool.close()
    pool.close()
    view[:] = 1
    assert int(view.sum()) == 16
