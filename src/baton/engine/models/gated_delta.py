"""A gated-delta layer: linear attention whose state is one matrix a head (Yang, Kautz, Hatamizadeh
2024: Gated Delta Networks).

    x ─▶ q, k, v ─▶ convolution and recurrent state (attention/delta.py) ─▶ norm of each head · silu(z) ─▶ out
      └▶ z, beta, decay ─────────────────────────────┘                                    ▲ z

Value heads are divided over the ranks of a stage, together with their key heads. In the state table
(`delta_specs`), the matrices and the convolution's past inputs of v are divided by value heads, its
past inputs of q and k by key heads.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from baton.core.ids import GroupName
from baton.core.memory.state import DType, Interval, StateSpec
from baton.engine.attention.delta import CONVOLVED, DELTA, DeltaRows
from baton.engine.attention.interface import Attend
from baton.engine.models.qwen3_next_config import DeltaSettings, Qwen3NextConfig, Qwen3NextShards
from baton.engine.models.weights import Filed, Loader, Matrix
from baton.engine.ops import sigmoid, softplus
from baton.engine.shards import elements

AT = "linear_attn."
Tensors = Iterator[tuple[str, tuple[int, ...]]]


def delta_specs(
    s: DeltaSettings, layers: tuple[int, ...], group: GroupName, dtype: DType
) -> tuple[StateSpec, ...]:
    """Return the specs of the state that such layers keep for a request.

    The matrices are float32 in any served dtype, because rounding errors would accumulate in them.
    They come first, so that they are aligned to words. A row is the whole state of one head, or the
    last `taps - 1` inputs of the convolution, oldest first.
    """
    sizes = zip(
        CONVOLVED, (s.key_heads, s.key_heads, s.value_heads), (s.key, s.key, s.value), strict=True
    )
    return (
        StateSpec(
            DELTA, group, layers, ("s",), heads=s.value_heads, row=s.key * s.value, dtype=DType.F32
        ),
        *(
            StateSpec(name, group, layers, ("x",), heads, (s.taps - 1) * dim, dtype)
            for name, heads, dim in sizes
        ),
    )


class DeltaFiles(Protocol):
    """How a checkpoint stores the rows of the product over the hidden state."""

    def rows(
        self, load: Loader, at: str, s: DeltaSettings, held: Qwen3NextShards
    ) -> Sequence[torch.Tensor]:
        """Load a rank's rows of q, k, v, z, b (for beta)
        and a (for decay): [outputs, hidden] each."""
        ...

    def tensors(self, at: str, s: DeltaSettings, hidden: int) -> Tensors:
        """Yield the tensors that `rows` reads."""
        ...


class ByKeyHead:
    """Implements DeltaFiles for Qwen3-Next: q, k, v, z
    are stored key head by key head, and so are b, a."""

    def rows(
        self, load: Loader, at: str, s: DeltaSettings, held: Qwen3NextShards
    ) -> Sequence[torch.Tensor]:
        keys, first = held.keys, held.keys.start * s.shared
        # this rank's among the value heads of these key heads
        mine = slice(held.values.start - first, held.values.end - first)

        def parts(name: str, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
            """Load the parts of each key head: [key heads, outputs, hidden]."""
            weight = load(f"{at}{AT}{name}.weight", elements(keys, sum(sizes)))
            return torch.split(weight.view(keys.size, sum(sizes), -1), list(sizes), 1)

        q, k, *of_values = parts("in_proj_qkvz", [s.key] * 2 + [s.shared * s.value] * 2)
        of_values = [
            x.reshape(keys.size * s.shared, s.value, -1)[mine].flatten(0, 1) for x in of_values
        ]
        gates = [x.flatten(0, 1)[mine] for x in parts("in_proj_ba", [s.shared] * 2)]
        return [q.flatten(0, 1), k.flatten(0, 1), *of_values, *gates]

    def tensors(self, at: str, s: DeltaSettings, hidden: int) -> Tensors:
        yield (
            f"{at}{AT}in_proj_qkvz.weight",
            (2 * (s.key_heads * s.key + s.value_heads * s.value), hidden),
        )
        yield f"{at}{AT}in_proj_ba.weight", (2 * s.value_heads, hidden)


class ByKind:
    """Implements DeltaFiles for Qwen3.5: one tensor has
    q, then k, then v of all heads; z, b, a are apart."""

    def rows(
        self, load: Loader, at: str, s: DeltaSettings, held: Qwen3NextShards
    ) -> Sequence[torch.Tensor]:
        name = f"{at}{AT}in_proj_"
        found = [load(f"{name}qkv.weight", rows) for rows in _convolved(s, held)]
        found.append(load(f"{name}z.weight", elements(held.values, s.value)))
        return found + [load(f"{name}{x}.weight", held.values) for x in "ba"]

    def tensors(self, at: str, s: DeltaSettings, hidden: int) -> Tensors:
        values = s.value_heads * s.value
        sizes = {
            "qkv": 2 * s.key_heads * s.key + values,
            "z": values,
            "b": s.value_heads,
            "a": s.value_heads,
        }
        yield from (
            (f"{at}{AT}in_proj_{name}.weight", (size, hidden)) for name, size in sizes.items()
        )


class GatedDelta:
    """One rank's heads of one layer; `at` is the prefix of its tensors' names."""

    def __init__(
        self, load: Loader, at: str, c: Qwen3NextConfig, held: Qwen3NextShards, files: DeltaFiles
    ) -> None:
        s = self._s = c.delta
        self._ops, self._eps = load.ops, c.eps
        rows = files.rows(load, at, s, held)
        self._sizes = [sum(len(x) for x in rows[:3]), *(len(x) for x in rows[3:])]
        self._product = load.ops.linear(torch.cat(list(rows)), None)
        filters = torch.cat(
            [load(f"{at}{AT}conv1d.weight", here)[:, 0] for here in _convolved(s, held)]
        )
        self._filters = filters.float().T.contiguous()
        mine = slice(held.values.start, held.values.end)
        self._rate = -load.exactly(f"{at}{AT}A_log")[mine].exp()
        self._shift = load.exactly(f"{at}{AT}dt_bias")[mine]
        self._norm = load.exactly(f"{at}{AT}norm.weight")
        self._out = load.by_inputs(at, _out(s, c.hidden), elements(held.values, s.value))

    def __call__(
        self, x: torch.Tensor, layer: int, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Compute what the layer adds to the residual stream.

        x is [rows, hidden], after the norm; `layer` is the index among those of its kind on this
        rank.
        """
        mixed = self._product(x)
        _, z, b, a = torch.split(mixed, self._sizes, 1)
        decay = self._rate * softplus(a.float() + self._shift)
        found = attend(
            DeltaRows(mixed, decay, sigmoid(b.float()), self._filters, self._s.value), layer
        )
        return self._out(self._ops.gated_norm(found, z, self._norm, self._eps))


def delta_tensors(at: str, s: DeltaSettings, hidden: int, files: DeltaFiles) -> Tensors:
    """Yield every tensor of one layer, with its shape."""
    yield from files.tensors(at, s, hidden)
    yield f"{at}{AT}conv1d.weight", (2 * s.key_heads * s.key + s.value_heads * s.value, 1, s.taps)
    yield from ((f"{at}{AT}{name}", (s.value_heads,)) for name in ("A_log", "dt_bias"))
    yield f"{at}{AT}norm.weight", (s.value,)
    yield from _out(s, hidden).tensors(at)


def _convolved(s: DeltaSettings, held: Qwen3NextShards) -> tuple[Interval, Interval, Interval]:
    """Return the intervals of a rank's q, k and v among those of all heads."""
    keys, values, all_keys = (
        elements(held.keys, s.key),
        elements(held.values, s.value),
        s.key_heads * s.key,
    )
    return (
        keys,
        Interval(all_keys + keys.start, all_keys + keys.end),
        Interval(2 * all_keys + values.start, 2 * all_keys + values.end),
    )


def _out(s: DeltaSettings, hidden: int) -> Matrix:
    return Matrix((Filed(AT + "out_proj", (hidden,)),), s.value_heads * s.value)
