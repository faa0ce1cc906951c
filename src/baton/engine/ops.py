"""The operations of a transformer layer besides attention, behind one interface.

`TorchOps` says what they mean, on any device; `CpuOps` (cpu_ops.py) does the same with packed weights and fused kernels.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from baton.core.memory.state import DType
from baton.engine.rope import Rope

Linear = Callable[[torch.Tensor], torch.Tensor]  # [rows, in] -> [rows, out]
# [rows, in], those of one matrix after those of the one before, and how many each has -> [rows, out]
Grouped = Callable[[torch.Tensor, NDArray[np.int64]], torch.Tensor]
ByHead = Callable[[torch.Tensor, torch.Tensor], None]  # x [rows, heads, in], out [rows, heads, out], which is written
# Rows a product's input is padded to a multiple of, per thread: the bits of float32 products depend on row counts below it.
ROW_STEP = {DType.F32: 4, DType.BF16: 1, DType.F16: 1}
VECTORS = 64  # elements that torch takes at once, and multiples of them
SHARED = 1 << 15  # elements above which torch's functions of single elements divide their work among threads
CHUNK_STEP = 32  # rows a larger input is padded to a multiple of


def lacking(rows: int, step: int) -> int:
    """Rows that pad an input of `rows` to few different shapes: the matrix library keeps compiled code, some 100 KB, for each
    one it has met. step: ROW_STEP of the dtype, times the threads."""
    return -rows % (CHUNK_STEP if rows >= CHUNK_STEP else step)


def padded(x: torch.Tensor, lacks: int) -> torch.Tensor:
    """With `lacks` rows of zeros more."""
    return x if lacks == 0 else torch.cat((x, x.new_zeros((lacks, *x.shape[1:]))))


def by_rows(function: Callable[[torch.Tensor], object], x: torch.Tensor) -> torch.Tensor:
    """A function of single elements that works in place, of [rows, columns], each row by itself.

    torch takes whole vectors one way and what is left over at the end of a thread's share another, so a row's last bits would
    depend on how many rows lie around it. Columns fill vectors up, and what is taken at once is too little to share or one row.
    """
    columns = x.shape[1]
    whole = F.pad(x, (0, -columns % VECTORS))  # ours, even where nothing lacks
    each = max(1, SHARED // max(1, whole.shape[1]))
    for part in torch.split(whole, each) if len(whole) > each else (whole,):
        function(part)
    return whole[:, :columns]


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Of [rows, columns], as `by_rows`."""
    return by_rows(torch.Tensor.sigmoid_, x)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + exp(x)) of [rows, columns], as `by_rows`."""
    return by_rows(lambda part: part.copy_(F.softplus(part)), x)


class HeadNorms:
    """Weights [dim] of norms over each head of q and of k (Qwen3). offset: as in `Ops.norm`."""

    def __init__(self, q: torch.Tensor, k: torch.Tensor, *, offset: float = 0.0) -> None:
        self.q, self.k, self.offset = q, k, offset


class Ops(Protocol):
    """All tensors are [rows, ...] in the served dtype unless said otherwise; a row's result does not depend on the other rows."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """x W^T + b; may repack the weight, which the caller gives up."""
        ...

    def grouped(self, weights: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> Grouped:
        """One product for each (weight, bias), all of one shape, over its own rows; as `linear` otherwise."""
        ...

    def by_head(self, weight: torch.Tensor, *, scale: float = 1.0) -> ByHead:
        """scale * x[:, h] W[h] for every head, rounded once, or not at all where `out` is float32. weight: [heads, in, out],
        which the caller gives up; elements of a head lie one after the other in what is multiplied and in what is written."""
        ...

    def scores(self, weight: torch.Tensor) -> Linear:
        """x W^T in float32 whatever is served, for what is compared and not computed with: the logits of two tokens are often
        nearer to each other than 16 bits can tell. May repack the weight, which the caller gives up."""
        ...

    def norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, *, add: torch.Tensor | None, offset: float = 0.0
    ) -> torch.Tensor:
        """x += add in place, where given; returns RMS norm of x times (offset + weight), rounded once to the weight's dtype.

        x: in that dtype, or float32: what is added up over many layers is rounded in every one otherwise.
        """
        ...

    def rotate(
        self, x: torch.Tensor, positions: torch.Tensor, rope: Rope, *, queries: int, norms: HeadNorms | None, eps: float
    ) -> None:
        """In place: norm each head, where given, and rotate its first `rope.dim` elements.

        x: [rows, heads of q, then of k, dim].
        """
        ...

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        """silu(first half of the columns) * second half."""
        ...

    def weigh(self, x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Sum of weights[row, n] * x[places[row, n]], float32 in the order of n, rounded once; a place of -1 adds nothing.

        x: contiguous; weights: float32 [rows, count]; places: int64 [rows, count].
        """
        ...

    def gated_norm(self, x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm of each head times the weight times silu(z), rounded once to [rows, heads * dim].

        x: float32 [rows, heads, dim]; z: [rows, heads * dim]; weight: float32 [dim].
        """
        ...


class TorchOps:
    """Implements Ops in plain torch."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return lambda x: F.linear(x, weight, bias)

    def grouped(self, weights: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> Grouped:
        pairs = list(weights)
        stacked = torch.stack([weight for weight, _ in pairs]).transpose(1, 2)
        biases = [bias for _, bias in pairs if bias is not None]
        added = torch.stack(biases) if biases else None

        def multiply(x: torch.Tensor, counts: NDArray[np.int64]) -> torch.Tensor:
            each = torch.from_numpy(counts)
            out = F.grouped_mm(x, stacked, offs=each.cumsum(0, dtype=torch.int32))
            return out if added is None else out + added.repeat_interleave(each, 0)

        return multiply

    def by_head(self, weight: torch.Tensor, *, scale: float = 1.0) -> ByHead:

        def multiply(x: torch.Tensor, out: torch.Tensor) -> None:
            out.copy_(torch.einsum("rhi,hio->rho", x.float(), weight.float()) * scale)

        return multiply

    def scores(self, weight: torch.Tensor) -> Linear:
        return lambda x: F.linear(x.float(), weight.float())

    def norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, *, add: torch.Tensor | None, offset: float = 0.0
    ) -> torch.Tensor:
        if add is not None:
            x += add
        return F.rms_norm(x.float(), (x.shape[-1],), weight.float() + offset, eps).to(weight.dtype)

    def rotate(
        self, x: torch.Tensor, positions: torch.Tensor, rope: Rope, *, queries: int, norms: HeadNorms | None, eps: float
    ) -> None:
        if norms is not None:
            x[:, :queries] = self.norm(x[:, :queries], norms.q, eps, add=None, offset=norms.offset)
            x[:, queries:] = self.norm(x[:, queries:], norms.k, eps, add=None, offset=norms.offset)
        cos, sin = rope.cos[positions][:, None], rope.sin[positions][:, None]
        first, second = x[..., : rope.dim].float().chunk(2, -1)
        x[..., : rope.dim] = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.float().chunk(2, -1)
        return (F.silu(first) * second).to(x.dtype)

    def weigh(self, x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        found = torch.cat((x, x.new_zeros(1, x.shape[1]))).float()[places]
        return (found * weights[..., None]).sum(1).to(x.dtype)

    def gated_norm(self, x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        gated = F.rms_norm(x, weight.shape, weight, eps) * F.silu(z.float().view(x.shape))
        return gated.to(z.dtype).view(z.shape)
