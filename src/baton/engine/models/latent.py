"""Multi-head latent attention in its absorbed form (DeepSeek-AI 2024: DeepSeek-V2, section 2.1).

    x ─▶ query (compressed, normed, expanded) ─▶ still part · W_uk ─┐
                                                 turned part ───────┴▶ query of `row` elements, one per head
    x ─▶ compressed keys and values, normed ─┐
         one rotated key for all heads ──────┴▶ row, cached            attention over rows ─▶ · W_uv ─▶ out

For a cached c, a head's key is W_uk c and its value W_uv c. Since q (W_uk c) = (q W_uk) c, W_uk is
applied to the query and W_uv to the attended sum, and rows are never expanded. Heads are divided
over the ranks of a stage; each rank caches all rows.
"""

from collections.abc import Iterator

import torch

from baton.core.memory.state import Interval
from baton.engine.attention.interface import Attend
from baton.engine.attention.latent import LatentRows
from baton.engine.models.deepseek_config import LatentSettings
from baton.engine.models.indexer import Indexer
from baton.engine.models.weights import Filed, Loader, Matrix
from baton.engine.ops import Linear
from baton.engine.rope import Rope

EPS = 1e-6  # of the norms of compressed rows; the config's value is for other norms
QUERY_DOWN, QUERY_UP, QUERY = "self_attn.q_a_proj", "self_attn.q_b_proj", "self_attn.q_proj"
ROW_DOWN, ROW_UP, OUT = "self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj", "self_attn.o_proj"
QUERY_NORM, ROW_NORM = "self_attn.q_a_layernorm.weight", "self_attn.kv_a_layernorm.weight"


class LatentRopes:
    """The rope of keys, and the rope of queries, which includes the factor of the scores."""

    def __init__(self, s: LatentSettings, *, longest: int) -> None:
        self.keys = Rope(s.rope, positions=longest)
        self.queries = self.keys.times(s.scale)


class LatentAttention:
    """One rank's `heads` of one layer; `at` is the prefix of its tensors' names.

    A layer with an index attends to the positions that the index chooses.
    """

    def __init__(
        self,
        load: Loader,
        at: str,
        s: LatentSettings,
        hidden: int,
        heads: Interval,
        ropes: LatentRopes,
        index: Indexer | None,
    ) -> None:
        self._index = index
        self._s, self._heads, self._ropes, self._ops = s, heads.size, ropes, load.ops
        self._query_down: Linear | None = None
        self._query_norm: torch.Tensor | None = None
        if s.query_rank is not None:
            self._query_down = load.by_outputs(
                at, _query_down(s, hidden), Interval(0, s.query_rank)
            )
            self._query_norm = load(at + QUERY_NORM)
        self._queries = load.ops.linear(self._query_weight(load, at, heads), None)
        bias = _in_halves(load(f"{at}{ROW_DOWN}.bias"), s) if s.biased else None
        self._row_down = load.ops.linear(_in_halves(load(f"{at}{ROW_DOWN}.weight"), s), bias)
        self._row_norm = load(at + ROW_NORM)
        each = s.still + s.value
        up = load(f"{at}{ROW_UP}.weight", Interval(heads.start * each, heads.end * each)).view(
            heads.size, each, s.rank
        )
        self._key_up = load.ops.by_head(up[:, : s.still], scale=s.scale)
        self._value_up = load.ops.by_head(up[:, s.still :].transpose(1, 2))
        self._out = load.by_inputs(
            at, _out(s, hidden), Interval(heads.start * s.value, heads.end * s.value)
        )

    def _query_weight(self, load: Loader, at: str, heads: Interval) -> torch.Tensor:
        """Load the unrotated parts of all heads, then the
        rotated: [heads * (still + turned), inputs]."""
        s, each = self._s, self._s.still + self._s.turned
        name = QUERY if s.query_rank is None else QUERY_UP
        weight = load(f"{at}{name}.weight", Interval(heads.start * each, heads.end * each))
        by_head = weight.view(heads.size, each, -1)
        turned = torch.stack([_halves(head[s.still :], s) for head in by_head])
        return torch.cat(
            (by_head[:, : s.still].reshape(-1, weight.shape[1]), turned.view(-1, weight.shape[1]))
        )

    def __call__(
        self,
        x: torch.Tensor,
        layer: int,
        positions: torch.Tensor,
        attend: Attend,
        chosen: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute what the layer adds to the residual stream, and the positions it attended to.

        Args:
            x: [rows, hidden], after the norm
            layer: index of the layer on this rank
            positions: int64 [rows]
            attend: attends from rows to cached state
            chosen: positions that the previous layer attended to, which a layer without an index
                uses as well; None = all
        """
        compressed, cached = self._compressed(x), self._cached(x, positions)
        if self._index is not None:
            chosen = self._index(x, compressed, layer, positions, attend)
        found = attend(
            LatentRows(self._absorbed(compressed, positions), cached, self._s.rank, chosen), layer
        )
        values = found.new_empty(len(x), self._heads, self._s.value)
        self._value_up(found, values)
        return self._out(values.view(len(x), -1)), chosen

    def _compressed(self, x: torch.Tensor) -> torch.Tensor:
        """Return the compressed queries [rows, query rank], or x if queries are not compressed."""
        if self._query_down is None or self._query_norm is None:
            return x
        return self._ops.norm(self._query_down(x), self._query_norm, EPS, add=None)

    def _cached(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Compute the rows to cache: [rows, rank + turned]."""
        rank = self._s.rank
        row = self._row_down(x)
        self._ops.rotate(
            row[:, None, rank:], positions, self._ropes.keys, queries=0, norms=None, eps=EPS
        )
        return torch.cat(
            (
                self._ops.norm(row[:, :rank].contiguous(), self._row_norm, EPS, add=None),
                row[:, rank:],
            ),
            dim=1,
        )

    def _absorbed(self, compressed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Compute scaled queries for cached rows: [rows, heads, rank + turned]."""
        s, rows, cut = self._s, len(compressed), self._heads * self._s.still
        queries = self._queries(compressed)
        turned = queries[:, cut:].view(rows, self._heads, s.turned)
        self._ops.rotate(
            turned, positions, self._ropes.queries, queries=self._heads, norms=None, eps=EPS
        )
        found = queries.new_empty(rows, self._heads, s.row)
        self._key_up(queries[:, :cut].view(rows, self._heads, s.still), found[..., : s.rank])
        found[..., s.rank :] = turned
        return found


def latent_tensors(
    at: str, s: LatentSettings, hidden: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every tensor of one layer's attention that is read, with its shape."""
    queries = s.heads * (s.still + s.turned)
    if s.query_rank is None:
        yield f"{at}{QUERY}.weight", (queries, hidden)
    else:
        yield from _query_down(s, hidden).tensors(at)
        yield at + QUERY_NORM, (s.query_rank,)
        yield f"{at}{QUERY_UP}.weight", (queries, s.query_rank)
    yield from Matrix((Filed(ROW_DOWN, (s.row,)),), hidden, s.biased).tensors(at)
    yield at + ROW_NORM, (s.rank,)
    yield f"{at}{ROW_UP}.weight", (s.heads * (s.still + s.value), s.rank)
    yield from _out(s, hidden).tensors(at)


def _query_down(s: LatentSettings, hidden: int) -> Matrix:
    assert s.query_rank is not None
    return Matrix((Filed(QUERY_DOWN, (s.query_rank,)),), hidden, s.biased)


def _out(s: LatentSettings, hidden: int) -> Matrix:
    return Matrix((Filed(OUT, (hidden,)),), s.heads * s.value, s.biased)


def _halves(rows: torch.Tensor, s: LatentSettings) -> torch.Tensor:
    """Permute outputs so that rotation of adjacent elements becomes rotation of halves.

    Queries and keys are permuted alike, so their products do not change.
    """
    return torch.cat((rows[::2], rows[1::2])) if s.interleaved else rows


def _in_halves(down: torch.Tensor, s: LatentSettings) -> torch.Tensor:
    """Permute the rotated key, which follows the compressed row, in the same way."""
    return torch.cat((down[: s.rank], _halves(down[s.rank :], s)))
