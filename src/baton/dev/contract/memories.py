"""F11: which memory a fabric reaches, and what it says of memory that it does not."""

from dataclasses import dataclass

import msgspec

from baton.adapters.fabrics import build
from baton.core.errors import ConfigError, FabricError
from baton.core.ids import Boot, GroupName
from baton.core.manifest import RankManifest
from baton.core.memory.kinds import CudaMemory, MemoryKind
from baton.dev.contract.peer import Peer, WallClock
from baton.dev.contract.rig import BOOTS, FULL, SLOT, CheckWorld, copies, refused
from baton.ports.fabric import Fabric, Pool

DEVICE = CudaMemory(7)


@dataclass(frozen=True)
class ClaimedPool:
    """Another pool's memory under another name; nobody may touch it as what it claims to be."""

    pool: Pool
    memory: MemoryKind
    fd: int | None = None

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.pool.nbytes

    @property
    def address(self) -> int:
        """The start address."""
        return self.pool.address


def f11_pools_on_a_device_are_refused_by_a_fabric_that_does_not_reach_it(w: CheckWorld) -> None:
    """Pools on a device are refused by a fabric that does not reach it."""
    pools = {g: ClaimedPool(pool, DEVICE) for g, pool in w.rig.pools.items()}
    fabric = _fabric(w)
    reaches = fabric.capabilities.device_memory
    try:
        # one that reaches devices finds out that these pools are not on one
        with refused(
            ConfigError, "" if reaches else f"{DEVICE}, {w.kind} only reaches host memory"
        ):
            fabric.expose(pools)
    finally:
        fabric.close()


def f11_pools_in_two_memories_are_refused(w: CheckWorld) -> None:
    """Pools in two memories are refused."""
    fabric = _fabric(w)
    try:
        with refused(ConfigError, str(DEVICE)):
            fabric.expose({**w.rig.pools, SLOT: ClaimedPool(w.rig.pools[SLOT], DEVICE)})
    finally:
        fabric.close()


def f11_a_peer_whose_manifest_names_another_memory_than_it_exposes_is_refused(
    w: CheckWorld,
) -> None:
    """A peer whose manifest names another memory than it exposes is refused."""
    rig, peer = w.rig, w.peer
    for groups in ({FULL, SLOT}, {SLOT}):
        with refused(FabricError, str(DEVICE)):
            rig.connect(peer.id, _moved(peer, groups))
    rig.connect(peer.id, peer.manifest)
    rig.read_ok(peer, copies("full", 0, 0, 4096))


def _fabric(w: CheckWorld) -> Fabric:
    return build(w.kind, Boot(next(BOOTS)), 0, wake=lambda: None, clock=WallClock())


def _moved(peer: Peer, groups: set[GroupName]) -> RankManifest:
    """Return the peer's manifest, which says that the pools of these groups lie on a device."""
    views = tuple(
        msgspec.structs.replace(view, memory=DEVICE) if view.group in groups else view
        for view in peer.manifest.pools
    )
    return msgspec.structs.replace(peer.manifest, pools=views)
