"""Which memory a fabric reaches (F11): the pools that `expose` and `connect` refuse."""

from collections.abc import Mapping

from baton.core.errors import ConfigError, FabricError
from baton.core.ids import GroupName
from baton.core.manifest import RankManifest
from baton.core.memory.kinds import HOST, HostRam, MemoryKind
from baton.ports.fabric import Capabilities, Pool


def memory_of(pools: Mapping[GroupName, Pool], fabric: str, can: Capabilities) -> MemoryKind:
    """Return the memory in which our pools lie; host memory if there are none.

    Raises:
        ConfigError: the fabric does not reach it, or the pools do not lie in one memory
    """
    kinds = {group: pool.memory for group, pool in pools.items()}
    if why := _obstacle(kinds, fabric, can):
        raise ConfigError(f"{why}, choose another fabric, such as nixl")
    return next(iter(kinds.values()), HOST)


def require_readable(
    manifest: RankManifest, exposed: MemoryKind, fabric: str, can: Capabilities
) -> None:
    """Check that the pools of a peer can be read.

    Raises:
        FabricError: the fabric does not reach them, or they are not in the memory that was exposed
    """
    kinds = {view.group: view.memory for view in manifest.pools}
    if why := _obstacle(kinds, fabric, can):
        raise FabricError(f"rank {manifest.rank}: {why}")
    other = next((f"{g!r} in {k}" for g, k in kinds.items() if k != exposed), "")
    if other:
        raise FabricError(
            f"rank {manifest.rank} exposes pools in {exposed}, the manifest says {other}"
        )


def _obstacle(kinds: Mapping[GroupName, MemoryKind], fabric: str, can: Capabilities) -> str:
    """Return why a fabric cannot reach pools in these kinds of memory; "" = it can."""
    for group, kind in kinds.items():
        if not isinstance(kind, HostRam) and not can.device_memory:
            return f"pool {group!r} lies in {kind}, {fabric} only reaches host memory"
    if len(set(kinds.values())) > 1:
        listed = ", ".join(f"{group!r} in {kind}" for group, kind in kinds.items())
        return f"the pools of a rank must lie in one memory; {fabric} is given {listed}"
    return ""
