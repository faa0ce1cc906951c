"""Grouped-query attention with an output gate (Qwen Team 2025: Qwen3-Next; Qiu et al. 2025: Gated
Attention).

Each head of q and k is normalised before a part of it is rotated; a head's output is multiplied by
the sigmoid of its own gate. In checkpoints, the gate of a head follows its query; here queries,
keys, values and gates are one product.
"""

from collections.abc import Iterator

import torch

from baton.engine.attention.interface import Attend, AttentionRows
from baton.engine.models.qwen3_next_config import Qwen3NextConfig, Qwen3NextShards
from baton.engine.models.weights import Filed, Loader, Matrix
from baton.engine.ops import HeadNorms, sigmoid
from baton.engine.rope import Rope
from baton.engine.shards import elements

AT = "self_attn."
OFFSET = 1.0  # norms' weights are stored as differences from 1


class GatedAttention:
    """One rank's heads of one layer; `at` is the prefix of its tensors' names."""

    def __init__(
        self, load: Loader, at: str, c: Qwen3NextConfig, held: Qwen3NextShards, rope: Rope
    ) -> None:
        self._heads, self._kv_heads, self._dim, self._eps = (
            held.heads.size,
            held.kv_heads.size,
            c.head_dim,
            c.eps,
        )
        self._ops, self._rope = load.ops, rope
        weight = _joined(load, at + AT, "weight", c, held)
        bias = _joined(load, at + AT, "bias", c, held) if c.biased else None
        self._product = load.ops.linear(weight, bias)
        self._norms = HeadNorms(
            *(load(f"{at}{AT}{n}_norm.weight") for n in ("q", "k")), offset=OFFSET
        )
        self._out = load.by_inputs(at, _out(c), elements(held.heads, c.head_dim))

    def __call__(
        self, x: torch.Tensor, layer: int, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Compute what the layer adds to the residual stream.

        x is [rows, hidden], after the norm; `layer` is the index among those of its kind on this
        rank.
        """
        rows, keys = len(x), self._heads + self._kv_heads
        values = keys + self._kv_heads
        found = self._product(x).view(rows, values + self._heads, self._dim)
        self._ops.rotate(
            found[:, :keys],
            positions,
            self._rope,
            queries=self._heads,
            norms=self._norms,
            eps=self._eps,
        )
        q, k, v, gate = (
            found[:, : self._heads],
            found[:, self._heads : keys],
            found[:, keys:values],
            found[:, values:],
        )
        attended = attend(AttentionRows(q, k, v), layer)
        return self._out(
            (attended.float() * sigmoid(gate.float().flatten(1)).view(gate.shape))
            .to(x.dtype)
            .view(rows, -1)
        )


def _joined(
    load: Loader, at: str, name: str, c: Qwen3NextConfig, held: Qwen3NextShards
) -> torch.Tensor:
    """Load the rows of all queries, keys, values and gates of a rank."""
    each = 2 * c.head_dim
    both = load(f"{at}q_proj.{name}", elements(held.heads, each))
    queries, gates = both.view(held.heads.size, 2, c.head_dim, *both.shape[1:]).transpose(0, 1)
    k, v = (load(f"{at}{n}_proj.{name}", elements(held.kv_heads, c.head_dim)) for n in ("k", "v"))
    return torch.cat((queries.flatten(0, 1), k, v, gates.flatten(0, 1)))


def gated_attention_tensors(at: str, c: Qwen3NextConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every tensor of one layer's attention, with its shape."""
    sizes = (("q_proj", 2 * c.heads), ("k_proj", c.kv_heads), ("v_proj", c.kv_heads))
    yield from Matrix(
        tuple(Filed(AT + n, (heads * c.head_dim,)) for n, heads in sizes), c.hidden, c.biased
    ).tensors(at)
    yield from _out(c).tensors(at)
    yield from ((f"{at}{AT}{n}_norm.weight", (c.head_dim,)) for n in ("q", "k"))


def _out(c: Qwen3NextConfig) -> Matrix:
    return Matrix((Filed(AT + "o_proj", (c.hidden,)),), c.heads * c.head_dim, c.biased)
