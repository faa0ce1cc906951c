"""The indexer of a layer: computes queries, keys and weights (DeepSeek-V3.2, 2025; GLM-5, 2026).

    compressed query ─▶ index queries, one per index head ─┐
    x ─▶ normed index key, one for all heads ──────────────┼▶ choose positions (attention/index.py)
    x ─▶ a weight for each index head ─────────────────────┘

It is replicated on each rank of a stage, so all ranks choose the same positions.
"""

from collections.abc import Iterator

import msgspec
import torch
import torch.nn.functional as F

from baton.engine.attention.index import IndexRows
from baton.engine.attention.interface import Attend
from baton.engine.models.weights import Loader
from baton.engine.rope import Rope

EPS = 1e-6  # of the keys' norm
AT = "self_attn.indexer."


class IndexSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The index of a model. Sizes in elements.

    Attributes:
        heads, dim: heads of the queries and their elements; a key has one head
        count: positions that a row attends to
        interleaved: whether the checkpoint rotates adjacent elements, instead of halves
        own: for each layer, whether it has an index; others use the choice of the layer before
    """

    heads: int
    dim: int
    count: int
    interleaved: bool
    own: tuple[bool, ...]


class Indexer:
    """One layer's index; `at` is the prefix of its tensors' names.

    `rope` is that of attention's keys; here it rotates the first elements.
    """

    def __init__(self, load: Loader, at: str, s: IndexSettings, rope: Rope) -> None:
        self._s, self._rope, self._ops = s, rope, load.ops
        order = _order(s.dim, rope.dim) if s.interleaved else torch.arange(s.dim)
        queries = load(f"{at}{AT}wq_b.weight")
        self._queries = load.ops.linear(
            queries.view(s.heads, s.dim, -1)[:, order].reshape(queries.shape), None
        )
        self._key = load.ops.linear(load(f"{at}{AT}wk.weight")[order], None)
        self._norm, self._bias = (
            load.exactly(f"{at}{AT}k_norm.{name}")[order] for name in ("weight", "bias")
        )
        self._weights = load.ops.linear(load(f"{at}{AT}weights_proj.weight"), None)

    def __call__(
        self,
        x: torch.Tensor,
        compressed: torch.Tensor,
        layer: int,
        positions: torch.Tensor,
        attend: Attend,
    ) -> torch.Tensor:
        """Choose the positions that each row attends to, as in LatentRows.

        Args:
            x: [rows, hidden]
            compressed: [rows, query rank], compressed queries after their norm
            layer: index among the layers with an index on this rank
            positions: int64 [rows]
            attend: attends from rows to cached state
        """
        s = self._s
        q = self._queries(compressed).view(len(x), s.heads, s.dim)
        k = F.layer_norm(self._key(x).float(), (s.dim,), self._norm, self._bias, EPS).to(x.dtype)
        self._ops.rotate(q, positions, self._rope, queries=s.heads, norms=None, eps=EPS)
        self._ops.rotate(k[:, None], positions, self._rope, queries=0, norms=None, eps=EPS)
        return attend(IndexRows(q, k, self._weights(x).float(), s.count), layer)


def indexer_tensors(
    at: str, s: IndexSettings, *, hidden: int, query_rank: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every tensor that is read, with its shape."""
    yield f"{at}{AT}wq_b.weight", (s.heads * s.dim, query_rank)
    yield f"{at}{AT}wk.weight", (s.dim, hidden)
    yield f"{at}{AT}k_norm.weight", (s.dim,)
    yield f"{at}{AT}k_norm.bias", (s.dim,)
    yield f"{at}{AT}weights_proj.weight", (s.heads, hidden)


def _order(dim: int, turned: int) -> torch.Tensor:
    """Return the order that turns rotation of adjacent elements into rotation of halves.

    Queries and keys are permuted alike, so their products do not change.
    """
    return torch.cat(
        (torch.arange(0, turned, 2), torch.arange(1, turned, 2), torch.arange(turned, dim))
    )
