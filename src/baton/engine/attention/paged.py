"""Attention of one batch: its rows are cached, then attend to what is cached."""

from collections.abc import Callable, Sequence

import torch

from baton.engine.attention.delta import DeltaBackend, DeltaRows
from baton.engine.attention.index import Chosen
from baton.engine.attention.interface import AttentionBackend, Seen, Segment
from baton.engine.attention.sparse import SparseBackend

Place = tuple[Sequence[Segment], torch.Tensor]  # where sequences lie, and slots of the new rows, int64: block slot * B + token


class PagedAttend:
    """Implements Attend. Rows behind those of the segments are padding: they are not cached, and attend to nothing.

    places: of each layer of the rank; a layer with an index has its keys where its rows are, and all such layers the same; of a
        layer with recurrent state the slots
    passed: called when a layer is reached
    """

    def __init__(
        self,
        attention: AttentionBackend,
        sparse: SparseBackend,
        delta: DeltaBackend,
        places: Sequence[Place],
        passed: Callable[[], None] = lambda: None,
    ) -> None:
        self._attention, self._sparse, self._delta, self._places = attention, sparse, delta, places
        self._passed = passed
        self._count = len(places[0][1])

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Seen, sinks: torch.Tensor | None = None, /
    ) -> torch.Tensor:
        """See Attend."""
        out, n, (segments, _) = self._cache(layer, q, k, v), self._count, self._places[layer]
        q, k, v = q[:n], k[:n], v[:n]
        self._attention.attend(layer=layer, q=q, k=k, v=v, segments=segments, seen=seen, out=out[:n], sinks=sinks)
        return out

    def choose(self, layer: int, q: torch.Tensor, k: torch.Tensor, weights: torch.Tensor, count: int, /) -> Chosen:
        """See Attend."""
        n, (segments, slots) = self._count, self._places[0]
        self._sparse.write_keys(layer=layer, k=k[:n], slots=slots)
        return self._sparse.choose(layer=layer, q=q[:n], weights=weights[:n], segments=segments, count=count)

    def chosen(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chosen: Chosen, /) -> torch.Tensor:
        """See Attend."""
        out, n, (segments, _) = self._cache(layer, q, k, v), self._count, self._places[layer]
        self._sparse.attend_chosen(layer=layer, q=q[:n], segments=segments, chosen=chosen, out=out[:n])
        return out

    def delta(self, layer: int, rows: DeltaRows, value_dim: int, /) -> torch.Tensor:
        """See Attend."""
        self._passed()
        n, (segments, _) = self._count, self._places[layer]
        whole, shape = n == len(rows.decay), (*rows.decay.shape, value_dim)
        out = rows.decay.new_empty(shape) if whole else rows.decay.new_zeros(shape)
        self._delta.mix(layer=layer, rows=rows if whole else rows.first(n), segments=segments, out=out[:n])
        return out

    def _cache(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store the rows; returns where the answer goes, zeros for padding."""
        self._passed()
        n, shape, (_, slots) = self._count, (*q.shape[:-1], v.shape[-1]), self._places[layer]
        self._attention.write(layer=layer, k=k[:n], v=v[:n], slots=slots)
        return q.new_zeros(shape) if n < len(q) else q.new_empty(shape)
