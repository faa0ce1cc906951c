"""The fabrics in order of preference, and which of them work on this machine.

`choose_fabric` in core/manifest.py is the rule by which two workers choose one.
"""

import importlib.util
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import structlog

from baton.adapters.credentials import Credentials, DoorKey
from baton.adapters.nixl_agent import PACKAGES
from baton.adapters.shm_door import this_host
from baton.core.errors import ConfigError, FabricError
from baton.core.ids import Boot, GroupName, RankId
from baton.core.manifest import RankManifest
from baton.core.memory.kinds import HostRam
from baton.ports.clock import Clock
from baton.ports.fabric import Connected, Fabric, Pool
from baton.ports.fabric_settings import FabricSettings

log = structlog.get_logger()
DEFAULTS = FabricSettings()
# Their engines authenticate nobody: they read and write for whoever reaches their ports.
OPEN = ("nixl", "mooncake")
CONNECT_S = 30.0
ATTEND_S = 0.01  # more often than a fabric falls asleep


@dataclass(frozen=True, slots=True)
class FabricParts:
    """Arguments to make a fabric. `wake` is called from its thread when `poll` has events."""

    boot: Boot
    rank: int
    wake: Callable[[], None]
    clock: Clock
    settings: FabricSettings
    keys: Credentials | None

    @property
    def door(self) -> DoorKey:
        return self.keys.door if self.keys is not None else DoorKey(b"", told=False)


Factory = Callable[[FabricParts], Fabric]


@dataclass(frozen=True, slots=True)
class FabricEntry:
    """One fabric: how to make it, and why it does not work on this machine ("" = it works)."""

    make: Factory
    obstacle: Callable[[], str]


def _make_shm(p: FabricParts) -> Fabric:
    from baton.adapters.shm import ShmFabric  # numba takes half a second to import

    return ShmFabric(p.boot, p.rank, p.wake, p.clock)


def _make_nixl(p: FabricParts) -> Fabric:
    from baton.adapters.agent_fabric import AgentFabric
    from baton.adapters.nixl import nixl_engine

    return AgentFabric(nixl_engine(p.settings), p.boot, p.rank, p.wake, p.clock)


def _make_mooncake(p: FabricParts) -> Fabric:
    from baton.adapters.agent_fabric import AgentFabric
    from baton.adapters.mooncake import mooncake_engine

    if p.door.told:
        raise ConfigError(
            "fabric mooncake needs one secret that all have; leave --members out, or take another"
        )
    engine = mooncake_engine(p.settings, p.boot, p.rank, key=p.door.key)
    return AgentFabric(engine, p.boot, p.rank, p.wake, p.clock)


def _make_tcp(p: FabricParts) -> Fabric:
    from baton.adapters.tcp import TcpFabric

    return TcpFabric(
        p.boot,
        p.rank,
        p.wake,
        p.clock,
        host=p.settings.host,
        key=p.door.key,
        tells_key=p.door.told,
        streams=p.settings.tcp.streams,
    )


def _mooncake_obstacle() -> str:
    from baton.adapters.mooncake import obstacle

    return obstacle()


def _nixl_obstacle() -> str:
    found = any(importlib.util.find_spec(package) for package in PACKAGES)
    return "" if found else "not installed: pip install 'baton-llm[nixl]'"


FABRICS: Mapping[str, FabricEntry] = MappingProxyType(
    {
        "shm": FabricEntry(_make_shm, lambda: ""),
        "nixl": FabricEntry(_make_nixl, _nixl_obstacle),
        "mooncake": FabricEntry(_make_mooncake, _mooncake_obstacle),
        "tcp": FabricEntry(_make_tcp, lambda: ""),
    }
)


def build(
    name: str,
    boot: Boot,
    rank: int,
    *,
    wake: Callable[[], None],
    clock: Clock,
    settings: FabricSettings = DEFAULTS,
    keys: Credentials | None = None,
) -> Fabric:
    """Make a fabric by name. `wake` is called from its thread when `poll` has events.

    Raises:
        ConfigError: there is no such fabric, or it does not work on this machine
    """
    return make(name, FabricParts(boot, rank, wake, clock, settings, keys))


def make(name: str, parts: FabricParts) -> Fabric:
    """Make a fabric by name from `parts`; raises ConfigError as `build` does."""
    require_fabric(name)
    kept_in = name == "nixl" and parts.settings.is_local  # Mooncake listens on every interface
    if name in OPEN and not kept_in:
        log.warning(
            "fabric_open",
            fabric=name,
            why="whoever reaches its ports can read and write memory of this process",
            remedy="let only the machines of the cluster reach them, or use --fabric tcp",
        )
    return FABRICS[name].make(parts)


def connect_and_wait(fabric: Fabric, peer: RankId, manifest: RankManifest) -> None:
    """Connect and wait for the result; for callers without a pump. No read may be open.

    Raises:
        FabricError: the peer cannot be reached, or does not answer within CONNECT_S
    """
    fabric.connect(peer, manifest)
    until = time.monotonic() + CONNECT_S
    while time.monotonic() < until:
        for event in fabric.poll():
            assert isinstance(event, Connected)
            assert event.peer == peer
            if event.why:
                raise FabricError(event.why)
            return
        time.sleep(0.0002)
    raise FabricError(f"{fabric.name} has not reached {peer} for {CONNECT_S:g} s")


def attend_until(fabric: Fabric, ready: int) -> None:
    """Be a source that peers may read from, until a file descriptor can be read.

    For callers without a pump.
    """
    while not select.select((ready,), (), (), ATTEND_S)[0]:
        fabric.attend()


def require_fabric(name: str) -> None:
    """Raise ConfigError unless the fabric works here;
    the message says why and what is available."""
    if name not in FABRICS:
        raise ConfigError(f"no fabric {name!r}: there are {', '.join(FABRICS)}")
    if why := FABRICS[name].obstacle():
        here = ", ".join(other for other in FABRICS if not FABRICS[other].obstacle())
        raise ConfigError(f"fabric {name}: {why}; those that work here: {here}")


def usable(names: Sequence[str]) -> list[str]:
    """Return the fabrics that work here. A single name is returned unchecked; `make` checks it."""
    return [name for name in names if len(names) == 1 or not FABRICS[name].obstacle()]


def guarded(names: Sequence[str], settings: FabricSettings) -> list[str]:
    """Return the fabrics to choose from: off loopback those that serve strangers are left out,
    unless the operator has named one."""
    if len(names) == 1 or settings.is_local:
        return list(names)
    for name in (name for name in usable(names) if name in OPEN):
        log.info(
            "fabric_left_out",
            fabric=name,
            why="whoever reaches its ports could read and write memory of this process",
            remedy=f"--fabric {name}, where only the machines of the cluster reach them",
        )
    return [name for name in names if name not in OPEN]


def available() -> dict[str, str]:
    """Return, for every fabric's name, why it does not work here ("" = it works)."""
    return {name: entry.obstacle() for name, entry in FABRICS.items()}


def near(ours: Mapping[str, Fabric]) -> dict[str, str]:
    """Return the host of every fabric that cannot leave its host, for `RankManifest.near`."""
    here = this_host().place
    return {name: here for name, fabric in ours.items() if fabric.capabilities.same_host_only}


def on_devices(ours: Mapping[str, Fabric]) -> tuple[str, ...]:
    """Return the fabrics that reach memory of a device, for `RankManifest.device_fabrics`."""
    return tuple(name for name, fabric in ours.items() if fabric.capabilities.device_memory)


def keep_reaching(made: Mapping[str, Fabric], pools: Mapping[GroupName, Pool]) -> dict[str, Fabric]:
    """Close the fabrics that do not reach the memory of our pools, and return the others.

    If none does, all are returned, and `expose` of the first says why.
    """
    host = all(isinstance(pool.memory, HostRam) for pool in pools.values())
    kept = {n: f for n, f in made.items() if host or f.capabilities.device_memory}
    for name, fabric in made.items():
        if kept and name not in kept:
            fabric.close()
    return kept or dict(made)
