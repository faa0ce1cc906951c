"""The operations of a transformer layer besides attention, behind one interface.

`TorchOps` says what they mean, on any device; `CpuOps` does the same with weights packed for oneDNN and fused kernels.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from baton.core.state import DType
from baton.engine.kernels import by_head as h
from baton.engine.kernels import grouped as g
from baton.engine.kernels import pointwise as p
from baton.engine.kernels import recurrent as r
from baton.engine.kernels.team import Task, Team
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
ALONE_ROWS = 64  # below this a second thread costs more than it brings
ALONE_DEPTH = 1024  # beyond it oneDNN adds up the products of a single row in another order than those of several
REHEARSED = 1 << 28  # multiplications; in larger products the making of their code is lost
SCORES = 256  # outputs that a thread takes at a time where a product is whole
PACK_ROWS = 8  # oneDNN packs for a row count; measured: the packing it picks serves all


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

    def rates(
        self, a: torch.Tensor, b: torch.Tensor, rate: torch.Tensor, shift: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """rate * softplus(a + shift), and sigmoid(b), float32. a, b: [rows, heads], columns of one tensor; the others float32."""
        ...

    def gated_norm(self, x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm of each head times the weight times silu(z), rounded once to [rows, heads * dim].

        x: float32 [rows, heads, dim]; z: [rows, heads * dim]; weight: float32 [dim].
        """
        ...


class TorchOps:
    """Implements Ops in plain torch."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """See Ops."""
        return lambda x: F.linear(x, weight, bias)

    def grouped(self, weights: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> Grouped:
        """See Ops."""
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
        """See Ops."""

        def multiply(x: torch.Tensor, out: torch.Tensor) -> None:
            out.copy_(torch.einsum("rhi,hio->rho", x.float(), weight.float()) * scale)

        return multiply

    def scores(self, weight: torch.Tensor) -> Linear:
        """See Ops."""
        return lambda x: F.linear(x.float(), weight.float())

    def norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, *, add: torch.Tensor | None, offset: float = 0.0
    ) -> torch.Tensor:
        """See Ops."""
        if add is not None:
            x += add
        return F.rms_norm(x.float(), (x.shape[-1],), weight.float() + offset, eps).to(weight.dtype)

    def rotate(
        self, x: torch.Tensor, positions: torch.Tensor, rope: Rope, *, queries: int, norms: HeadNorms | None, eps: float
    ) -> None:
        """See Ops."""
        if norms is not None:
            x[:, :queries] = self.norm(x[:, :queries], norms.q, eps, add=None, offset=norms.offset)
            x[:, queries:] = self.norm(x[:, queries:], norms.k, eps, add=None, offset=norms.offset)
        cos, sin = rope.cos[positions][:, None], rope.sin[positions][:, None]
        first, second = x[..., : rope.dim].float().chunk(2, -1)
        x[..., : rope.dim] = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        """See Ops."""
        first, second = x.float().chunk(2, -1)
        return (F.silu(first) * second).to(x.dtype)

    def weigh(self, x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """See Ops."""
        return _weigh(x, weights, places)

    def rates(
        self, a: torch.Tensor, b: torch.Tensor, rate: torch.Tensor, shift: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Ops."""
        return rate * F.softplus(a.float() + shift), b.float().sigmoid()

    def gated_norm(self, x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See Ops."""
        gated = F.rms_norm(x, weight.shape, weight, eps) * F.silu(z.float().view(x.shape))
        return gated.to(z.dtype).view(z.shape)


class CpuOps:
    """Implements Ops for one compute thread: its tasks are not shared."""

    def __init__(self, dtype: DType, team: Team) -> None:
        self._team, self._dtype = team, dtype
        self._packs, self._row_step = _packs(dtype), ROW_STEP[dtype] * team.threads
        self._norm, self._rotate = Task(p.norm, dtype, p.NormJob), Task(p.rotate, dtype, p.RotateJob)
        self._gate, self._weigh = Task(p.gate, dtype, p.GateJob), Task(p.weigh, dtype, p.WeighJob)
        self._kinds: dict[tuple[int, int, bool, torch.dtype], Linear] = {}  # one product of each size, with a bias or without

    def warm(self) -> None:
        """Compile (or load) also what some models alone run."""
        tasks: list[Task[Any]] = [self._heads, self._rates, self._gated_norm]
        if self._multiplies_groups:
            tasks.append(self._groups)
        assert all(task.address for task in tasks)

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """See Ops."""
        exact = weight.dtype is torch.float32 and self._dtype is not DType.F32
        product = self._product(weight, bias) if self._packs or (exact and _packs(DType.F32)) else _plain(weight, bias)
        if not exact:
            return product
        step = ROW_STEP[DType.F32] * self._team.threads  # for which the rows of a 16-bit batch are not padded
        return lambda x: product(padded(x, lacking(len(x), step)))[: len(x)]

    def _product(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
        multiply = torch.ops.mkldnn._linear_pointwise.default
        company = weight.shape[1] > ALONE_DEPTH

        def product(x: torch.Tensor) -> torch.Tensor:
            if company and len(x) == 1:
                return product(padded(x, 1))[:1]
            found: torch.Tensor = multiply(x, packed, bias, "none", [], "")
            return found

        self._kinds.setdefault((weight.shape[0], weight.shape[1], bias is not None, weight.dtype), product)
        return product

    def rehearse(self, most: int) -> None:
        """Have the code made of products with up to so many rows: oneDNN makes it when it meets a shape for the first time,
        which takes 3 to 4 ms for those of a model, in whatever request that happens. For the thread that will compute."""
        for rows in sorted({n + lacking(n, self._row_step) for n in range(1, most + 1)}):
            for (width, depth, _, dtype), product in self._kinds.items():
                if rows * width * depth <= REHEARSED:
                    product(torch.zeros((rows, depth), dtype=dtype))

    def grouped(self, weights: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> Grouped:
        """See Ops. Packed one by one: matrices without rows are not read.

        In 16 bits it is one compiled product: with few rows, calls of oneDNN for each matrix take a third of the time and more.
        Where the processor multiplies tiles, oneDNN does and the kernel does not.
        """
        return self._together(weights) if self._multiplies_groups else self._each(weights)

    @property
    def _multiplies_groups(self) -> bool:
        return self._dtype is not DType.F32 and not torch.cpu._is_amx_tile_supported()

    def _each(self, weights: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> Grouped:
        width, products = 0, []
        for weight, bias in weights:
            width = weight.shape[0]
            products.append(self.linear(weight, bias))

        def multiply(x: torch.Tensor, counts: NDArray[np.int64]) -> torch.Tensor:
            out, start = x.new_empty((x.shape[0], width)), 0
            for product, count in zip(products, counts.tolist(), strict=True):
                if count:
                    rows = padded(x[start : start + count], lacking(count, self._row_step))
                    out[start : start + count] = product(rows)[:count]
                start += count
            return out

        return multiply

    def _together(self, weights: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> Grouped:
        task, unit = self._groups, 2 if h.paired(self._dtype) else 1
        wide, deep, panels, biases = 0, 0, [], []
        for weight, bias in weights:
            wide, deep = weight.shape
            panels.append(h.packed(weight.T[None], self._dtype))
            biases.append(bias)
        addresses = [(w.data_ptr(), 0 if b is None else b.data_ptr(), 0, 0) for w, b in zip(panels, biases, strict=True)]
        matrices = np.array(addresses, dtype=np.dtype(g.Matrix))
        depth, odd, kept = -(-deep // unit), -deep % unit, (panels, biases)

        def multiply(x: torch.Tensor, counts: NDArray[np.int64]) -> torch.Tensor:
            assert len(kept[0]) == len(counts)
            whole = F.pad(x, (0, odd)) if odd else x.contiguous()
            out, job = x.new_empty((len(x), wide)), task.job
            used = counts.nonzero()[0]
            some = matrices[used]
            some["rows"] = counts[used]
            some["first"] = some["rows"].cumsum() - some["rows"]
            job.x, job.out, job.depth, job.wide = whole.data_ptr(), out.data_ptr(), depth, wide
            job.matrices, job.count = some.ctypes.data, len(some)
            self._team.run(task)
            return out

        return multiply

    @cached_property
    def _groups(self) -> Task[g.GroupedJob]:
        return Task(g.grouped, self._dtype, g.GroupedJob)

    def by_head(self, weight: torch.Tensor, *, scale: float = 1.0) -> ByHead:
        """See Ops. On all threads however few the rows are: what takes its time are the weights."""
        task = self._heads
        panels, (heads, deep, wide) = h.packed(weight, self._dtype), weight.shape
        unit = 2 if h.paired(self._dtype) else 1

        def multiply(x: torch.Tensor, out: torch.Tensor) -> None:
            if unit > 1 and (deep % unit or x.stride(0) % unit or x.stride(1) % unit):
                x = F.pad(x, (0, -deep % unit)).contiguous()
            job = task.job
            job.rows, job.heads, job.depth, job.wide = x.shape[0], heads, panels.shape[2], wide
            job.x, job.x_row, job.x_head = x.data_ptr(), x.stride(0), x.stride(1)
            job.out, job.out_row, job.out_head = out.data_ptr(), out.stride(0), out.stride(1)
            job.weight, job.scale, job.exact = panels.data_ptr(), scale, out.dtype is torch.float32
            room = x.new_empty(x.shape if len(x) >= h.FEW and x.stride(1) else 0)
            job.together = room.data_ptr()  # 0 for none
            self._team.run(task)

        return multiply

    def scores(self, weight: torch.Tensor) -> Linear:
        """See Ops. oneDNN rounds what it multiplies in 16 bits; in float32 it need not, and is the faster."""
        if self._dtype is DType.F32:
            return self.linear(weight, None)
        wide, deep = weight.shape
        odd, short = deep % 2, -wide % SCORES
        runs = (F.pad(weight, (0, odd, 0, short)) if odd or short else weight).view(-1, SCORES, deep + odd)
        product, count = self.by_head(runs.transpose(1, 2)), len(runs)

        def score(x: torch.Tensor) -> torch.Tensor:
            found = x.new_empty((len(x), count, SCORES), dtype=torch.float32)
            even = F.pad(x, (0, odd)) if odd else x
            product(even[:, None].expand(-1, count, -1), found)
            return found.view(len(x), -1)[:, :wide]

        return score

    @cached_property
    def _heads(self) -> Task[h.ByHeadJob]:
        return Task(h.by_head, self._dtype, h.ByHeadJob)  # for models that have such products

    def norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, *, add: torch.Tensor | None, offset: float = 0.0
    ) -> torch.Tensor:
        """See Ops. x, add: contiguous."""
        out, job = torch.empty_like(x, dtype=weight.dtype), self._norm.job
        job.rows, job.x, job.add = x.shape[0], x.data_ptr(), 0 if add is None else add.data_ptr()
        job.weight, job.out, job.dim = weight.data_ptr(), out.data_ptr(), x.shape[1]
        job.exact, job.eps, job.offset = x.dtype is torch.float32, eps, offset
        self._run(self._norm, x.shape[0])
        return out

    def rotate(
        self, x: torch.Tensor, positions: torch.Tensor, rope: Rope, *, queries: int, norms: HeadNorms | None, eps: float
    ) -> None:
        """See Ops. Heads of a row lie one after the other."""
        job = self._rotate.job
        job.rows, job.x, job.x_row = x.shape[0], x.data_ptr(), x.stride(0)
        job.heads, job.queries, job.dim, job.turned = x.shape[1], queries, x.shape[2], rope.dim
        job.positions, job.cos, job.sin = positions.data_ptr(), rope.cos.data_ptr(), rope.sin.data_ptr()
        job.weight_q = 0 if norms is None else norms.q.data_ptr()
        job.weight_k = 0 if norms is None else norms.k.data_ptr()
        job.eps, job.offset = eps, 0.0 if norms is None else norms.offset
        self._run(self._rotate, x.shape[0])

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        """See Ops. x: contiguous."""
        dim, job = x.shape[1] // 2, self._gate.job
        out = x.new_empty((x.shape[0], dim))
        job.rows, job.x, job.out, job.dim = x.shape[0], x.data_ptr(), out.data_ptr(), dim
        self._run(self._gate, x.shape[0])
        return out

    def weigh(self, x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """See Ops."""
        if self._dtype is DType.F32:
            return _weigh(x, weights, places)  # whose sums of many have other last bits
        weights, job = weights.contiguous(), self._weigh.job
        out = x.new_empty((len(weights), x.shape[1]))
        job.rows, job.count = weights.shape
        job.x, job.dim, job.out = x.data_ptr(), x.shape[1], out.data_ptr()
        job.weights, job.places = weights.data_ptr(), places.data_ptr()
        self._run(self._weigh, len(out))
        return out

    def rates(
        self, a: torch.Tensor, b: torch.Tensor, rate: torch.Tensor, shift: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Ops."""
        decay, beta = a.new_empty((2, *a.shape), dtype=torch.float32)
        job = self._rates.job
        job.rows, job.heads, job.ab_row = *a.shape, a.stride(0)
        job.a, job.b, job.rate = a.data_ptr(), b.data_ptr(), rate.data_ptr()
        job.shift, job.decay, job.beta = shift.data_ptr(), decay.data_ptr(), beta.data_ptr()
        self._run(self._rates, len(a))
        return decay, beta

    def gated_norm(self, x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See Ops. x: contiguous."""
        out, job = z.new_empty(z.shape), self._gated_norm.job
        job.rows, job.heads, job.dim = x.shape
        job.x, job.z, job.z_row = x.data_ptr(), z.data_ptr(), z.stride(0)
        job.weight, job.out, job.eps = weight.data_ptr(), out.data_ptr(), eps
        self._run(self._gated_norm, len(x))
        return out

    @cached_property
    def _rates(self) -> Task[r.RatesJob]:
        return Task(r.rates, self._dtype, r.RatesJob)

    @cached_property
    def _gated_norm(self) -> Task[r.GatedNormJob]:
        return Task(r.gated_norm, self._dtype, r.GatedNormJob)

    def _run(self, task: Task[Any], rows: int) -> None:
        if rows < ALONE_ROWS:
            task.alone()
        else:
            self._team.run(task)


def _weigh(x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    found = torch.cat((x, x.new_zeros(1, x.shape[1]))).float()[places]
    return (found * weights[..., None]).sum(1).to(x.dtype)


def _plain(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    return lambda x: F.linear(x, weight, bias)


def _packs(dtype: DType) -> bool:
    """Whether oneDNN multiplies this dtype natively here."""
    known = torch.ops.mkldnn
    supported: Mapping[DType, Callable[[], bool]] = {
        DType.F32: lambda: True,
        DType.BF16: known._is_mkldnn_bf16_supported,
        DType.F16: known._is_mkldnn_fp16_supported,
    }
    return bool(torch._C._has_mkldnn and supported[dtype]())
