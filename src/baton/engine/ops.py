"""The operations of a transformer layer besides attention, behind one interface.

`TorchOps` is the reference for any device; `CpuOps` (cpu_ops.py) does the same with packed weights
and fused kernels.
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
# ([rows, in], sorted by matrix; number of rows of each matrix) -> [rows, out]
Grouped = Callable[[torch.Tensor, NDArray[np.int64]], torch.Tensor]
# (x [rows, heads, in], out [rows, heads, out]); out is written
ByHead = Callable[[torch.Tensor, torch.Tensor], None]
# The rows of a product's input are padded to a multiple of this, times the threads: with other
# counts, the bits of float32 products would depend on the number of rows.
ROW_STEP = {DType.F32: 4, DType.BF16: 1, DType.F16: 1}
VECTORS = 64  # a multiple of the elements that torch computes at once
SHARED = 1 << 15  # from this many elements on, torch's elementwise functions use several threads
CHUNK_STEP = 32  # larger inputs are padded to a multiple of this many rows


def lacking(rows: int, step: int) -> int:
    """Return the number of rows by which an input of `rows` rows is padded.

    Padding gives few different shapes: the matrix library keeps some 100 KB of compiled code for
    each shape. `step` is ROW_STEP of the dtype, times the threads.
    """
    return -rows % (CHUNK_STEP if rows >= CHUNK_STEP else step)


def padded(x: torch.Tensor, lacks: int) -> torch.Tensor:
    """Append `lacks` rows of zeros."""
    return x if lacks == 0 else torch.cat((x, x.new_zeros((lacks, *x.shape[1:]))))


def by_rows(function: Callable[[torch.Tensor], object], x: torch.Tensor) -> torch.Tensor:
    """Apply an elementwise in-place function to [rows, columns], so that no row depends on others.

    torch computes whole vectors differently from the remainder of a thread's share, so the last
    bits of a row would depend on the number of rows around it. Here columns are padded to whole
    vectors, and each call gets either one row or too few elements for several threads.
    """
    columns = x.shape[1]
    whole = F.pad(x, (0, -columns % VECTORS))  # a copy, even if nothing is padded
    each = max(1, SHARED // max(1, whole.shape[1]))
    for part in torch.split(whole, each) if len(whole) > each else (whole,):
        function(part)
    return whole[:, :columns]


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Compute the sigmoid of [rows, columns], as `by_rows` does."""
    return by_rows(torch.Tensor.sigmoid_, x)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """Compute log(1 + exp(x)) of [rows, columns], as `by_rows` does."""
    return by_rows(lambda part: part.copy_(F.softplus(part)), x)


class HeadNorms:
    """Weights [dim] of the norms over each head of q
    and of k (Qwen3); `offset` as in `Ops.norm`."""

    def __init__(self, q: torch.Tensor, k: torch.Tensor, *, offset: float = 0.0) -> None:
        self.q, self.k, self.offset = q, k, offset


class Ops(Protocol):
    """The operations. A row's result does not depend on other rows.

    All tensors are [rows, ...] in the served dtype unless said otherwise.
    """

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Return the product x W^T + b. It may repack
        the weight; the caller must not use it again."""
        ...

    def grouped(self, weights: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> Grouped:
        """Return a product with several (weight, bias) of one shape, each over its own rows."""
        ...

    def by_head(self, weight: torch.Tensor, *, scale: float = 1.0) -> ByHead:
        """Return the product scale * x[:, h] W[h] for every head h.

        `weight` is [heads, in, out]; the caller must not use it again. The result is rounded once,
        or not at all if `out` is float32. The elements of a head must be contiguous in x and in
        out.
        """
        ...

    def scores(self, weight: torch.Tensor) -> Linear:
        """Return the product x W^T in float32, whatever dtype is served.

        It is for logits, which are compared: two of them often differ by less than 16 bits can
        tell. It may repack the weight; the caller must not use it again.
        """
        ...

    def norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        *,
        add: torch.Tensor | None,
        offset: float = 0.0,
    ) -> torch.Tensor:
        """Add `add` to x in place, if given; return the RMS norm of x times (offset + weight).

        The result is rounded once to the weight's dtype. x has that dtype, or float32: the residual
        stream, which would otherwise be rounded in every layer.
        """
        ...

    def rotate(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        rope: Rope,
        *,
        queries: int,
        norms: HeadNorms | None,
        eps: float,
    ) -> None:
        """Normalise each head, if `norms` is given, and rotate its first `rope.dim` elements, in
        place.

        Args:
            x: [rows, heads, dim]; the heads of q come before those of k
            positions: int64 [rows]
            queries: number of heads of q
        """
        ...

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        """Compute silu(first half of the columns) * second half."""
        ...

    def weigh(self, x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Sum weights[row, n] * x[places[row, n]] over n, in float32 and in order, rounded once.

        Args:
            x: contiguous
            weights: float32 [rows, count]
            places: int64 [rows, count]; -1 adds nothing
        """
        ...

    def gated_norm(
        self, x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Compute the RMS norm of each head times weight times silu(z), rounded once.

        Args:
            x: float32 [rows, heads, dim]
            z: [rows, heads * dim]
            weight: float32 [dim]

        Returns:
            [rows, heads * dim]
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
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        *,
        add: torch.Tensor | None,
        offset: float = 0.0,
    ) -> torch.Tensor:
        if add is not None:
            x += add
        return F.rms_norm(x.float(), (x.shape[-1],), weight.float() + offset, eps).to(weight.dtype)

    def rotate(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        rope: Rope,
        *,
        queries: int,
        norms: HeadNorms | None,
        eps: float,
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

    def gated_norm(
        self, x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        gated = F.rms_norm(x, weight.shape, weight, eps) * F.silu(z.float().view(x.shape))
        return gated.to(z.dtype).view(z.shape)
