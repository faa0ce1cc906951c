"""The registry of backends: one row for each kind of cached state."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from baton.core.errors import Bug
from baton.core.ids import GroupName
from baton.core.memory.state import Placement
from baton.engine.attention.cpu import CpuAttention
from baton.engine.attention.delta import DELTA, ReferenceDelta
from baton.engine.attention.delta_cpu import CpuDelta
from baton.engine.attention.hidden import HIDDEN
from baton.engine.attention.index import INDEX, TopKIndex
from baton.engine.attention.interface import Attend, AttentionBackend, AttentionMetadata, Rows
from baton.engine.attention.latent import LATENT, CpuLatentAttention, ReferenceLatentAttention
from baton.engine.attention.reference import ReferenceAttention
from baton.engine.attention.rollback import Rollback
from baton.engine.kernels.team import NO_TEAM, Team
from baton.ports.fabric import Pool

# by name of the spec; those that take a team compute on its threads
Registry = Mapping[str, Callable[[Pool, Placement, str, Team], AttentionBackend[Any]]]
CPU: Registry = {
    "kv": CpuAttention,
    "swa": CpuAttention,
    LATENT: CpuLatentAttention,
    INDEX: TopKIndex,
    DELTA: CpuDelta,
}
# Plain torch; the others are tested against these.
REFERENCE: Registry = {
    "kv": ReferenceAttention,
    "swa": ReferenceAttention,
    LATENT: ReferenceLatentAttention,
    INDEX: TopKIndex,
    DELTA: ReferenceDelta,
}


class _Served(NamedTuple):
    """The backend for one kind of rows of one layer;
    `layer` is the index among those of the spec."""

    backend: AttentionBackend[Any]
    layer: int
    group: GroupName


class Backends:
    """The backends of all state of one rank.

    Attributes:
        groups: the groups of the state table whose block tables are needed
    """

    def __init__(
        self,
        pools: Mapping[GroupName, Pool],
        placement: Placement,
        registry: Registry = CPU,
        team: Team = NO_TEAM,
    ) -> None:
        self._backends: list[AttentionBackend[Any]] = []
        self._served: dict[tuple[int, type[Rows]], _Served] = {}
        first, kept = placement.layer_interval.start, set[str]()
        for name, place in placement.places.items():
            if name not in registry:
                continue
            backend = registry[name](pools[place.spec.group], placement, name, team)
            self._backends.append(backend)
            kept |= {name, *backend.beside}
            for n, layer in enumerate(place.layers):
                self._served[layer - first, backend.rows] = _Served(backend, n, place.spec.group)
        if forgotten := placement.places.keys() - kept - {HIDDEN}:  # the engine keeps that
            raise Bug(f"no attention backend keeps the state {sorted(forgotten)}")
        self.groups = frozenset(served.group for served in self._served.values())

    def warm(self) -> None:
        """Compile whatever would otherwise be compiled inside the first request."""
        for backend in self._backends:
            backend.warm()

    def over(
        self,
        metadata: Mapping[GroupName, AttentionMetadata],
        passed: Callable[[], None] = lambda: None,
        rollbacks: Mapping[GroupName, Rollback] = MappingProxyType({}),
    ) -> Attend:
        """Return the function with which a model attends in one batch.

        `passed` is called at each layer. Rows after those of the segments are padding: they are not
        cached, and their output is zero.

        rollbacks: of groups in which drafts that are wrong must be taken back
        """

        def attend(rows: Rows, layer: int) -> torch.Tensor:
            passed()
            backend, own, group = self._served[layer, type(rows)]
            where, out = metadata[group], rows.new_out()
            count = len(where.slot_mapping)
            if group in rollbacks:
                rollbacks[group].computes(backend, rows, layer=own)
            if count == len(out):
                backend.attend(rows, layer=own, metadata=where, out=out)
            else:
                backend.attend(rows.at(slice(count)), layer=own, metadata=where, out=out[:count])
                out[count:] = 0
            return out

        return attend
