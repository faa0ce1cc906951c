"""Which backend reads which kind of cached state."""

from collections.abc import Callable, Mapping, Sequence

import torch

from baton.core.errors import Bug
from baton.core.ids import GroupName
from baton.core.state import Placement
from baton.engine.attention.cpu import CpuAttention
from baton.engine.attention.delta import DELTA, DeltaBackend, NoDelta
from baton.engine.attention.delta_cpu import CpuDelta
from baton.engine.attention.index import INDEX
from baton.engine.attention.interface import AttentionBackend, Seen, Segment
from baton.engine.attention.latent import LATENT, CpuLatentAttention
from baton.engine.attention.sparse import CpuSparse, NoSparse, SparseBackend
from baton.ports.fabric import Pool

Make = Callable[[Pool, Placement, str], AttentionBackend]
MakeSparse = Callable[[Pool, Placement], SparseBackend]
MakeDelta = Callable[[Pool, Placement], DeltaBackend]
CPU: Mapping[str, Make] = {"kv": CpuAttention, "swa": CpuAttention, LATENT: CpuLatentAttention}  # by the name of the spec


def attention_for(pools: Mapping[GroupName, Pool], placement: Placement, backends: Mapping[str, Make] = CPU) -> AttentionBackend:
    """The backend for the rows of a model's table, over the pools that hold them."""
    found: dict[int, tuple[AttentionBackend, int]] = {}
    for place in placement.places.values():
        if place.spec.name in backends:
            backend = backends[place.spec.name](pools[place.spec.group], placement, place.spec.name)
            found |= {layer: (backend, n) for n, layer in enumerate(place.layers)}
    stage = placement.layer_interval
    recurrent = placement.places[DELTA].layers if DELTA in placement.places else ()
    if {*found, *recurrent} != set(range(stage.start, stage.end)):
        raise Bug(f"no attention backend reads some layer of {[s.name for s in placement.table.specs]}")
    return LayeredAttention({layer - stage.start: found[layer] for layer in sorted(found)})


def sparse_for(pools: Mapping[GroupName, Pool], placement: Placement, make: MakeSparse = CpuSparse) -> SparseBackend:
    """What chooses positions and attends to them, for a table with an index."""
    for spec in placement.table.specs:
        if spec.name == INDEX:
            return make(pools[spec.group], placement)
    return NoSparse()


def delta_for(pools: Mapping[GroupName, Pool], placement: Placement, make: MakeDelta = CpuDelta) -> DeltaBackend:
    """What brings recurrent state forward, for a rank that has layers with some."""
    if DELTA in placement.places:
        return make(pools[placement.places[DELTA].spec.group], placement)
    return NoDelta()


class LayeredAttention:
    """Implements AttentionBackend for a rank whose layers keep their rows in several specs, each with a backend of its own.

    layers: for each layer of the rank that attends its backend, and which of that backend's layers it is
    """

    def __init__(self, layers: Mapping[int, tuple[AttentionBackend, int]]) -> None:
        self._layers = dict(layers)

    def warm(self) -> None:
        """See AttentionBackend."""
        for backend in {id(backend): backend for backend, _ in self._layers.values()}.values():
            backend.warm()

    def write(self, *, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """See AttentionBackend."""
        backend, own = self._layers[layer]
        backend.write(layer=own, k=k, v=v, slots=slots)

    def attend(
        self,
        *,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        segments: Sequence[Segment],
        seen: Seen,
        out: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """See AttentionBackend."""
        backend, own = self._layers[layer]
        backend.attend(layer=own, q=q, k=k, v=v, segments=segments, seen=seen, out=out, sinks=sinks)
