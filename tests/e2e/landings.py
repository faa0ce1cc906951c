"""Copies of a rank's pools as they are when a read has ended, before anything is computed with what
it brought: a step of decoding overwrites recurrent state.

    fabric ──Ended──▶ copy of the pools ──▶ file         then the rank hears of the end
"""

from collections.abc import Callable, Mapping
from os import getpid
from pathlib import Path
from typing import Any

import numpy as np

from baton.adapters.fabrics import FabricParts
from baton.core.ids import GroupName
from baton.engine.engine import pool_bytes
from baton.ports.fabric import Fabric, FabricEvent, Pool, ReadEnded

MakeFabric = Callable[[str, FabricParts], Fabric]


class Watched:
    """A fabric that leaves copies in `directory`. Each end replaces those of the end before."""

    def __init__(self, inner: Fabric, directory: Path) -> None:
        self._inner, self._directory = inner, directory
        self._pools: Mapping[GroupName, Pool] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def expose(self, pools: Mapping[GroupName, Pool]) -> bytes:
        self._pools = pools
        return self._inner.expose(pools)

    def poll(self) -> list[FabricEvent]:
        events = self._inner.poll()
        if any(isinstance(event, ReadEnded) for event in events):
            for group, pool in self._pools.items():
                pool_bytes(pool).tofile(self._directory / f"{getpid()}-{group}")
        return events


def watched(make: MakeFabric, directory: Path) -> MakeFabric:
    """Fabrics that are watched."""
    return lambda name, parts: Watched(make(name, parts), directory)  # type: ignore[return-value]


def landed(directory: Path, pid: int, group: str) -> np.ndarray:
    """uint8, a group's pool of a process when its last read had ended."""
    return np.fromfile(directory / f"{pid}-{group}", dtype=np.uint8)
