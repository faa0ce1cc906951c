"""The operations of a transformer layer on a CPU: weights packed for oneDNN, and fused kernels.

`TorchOps` is the plain reference; tests/engine/test_ops.py checks that the two are equal. If one
kernel is replaced by the plain operation, a step of tools/decode_step.py takes this many times the
processor time (bfloat16, one thread, context 512; for a prompt of 512 tokens, for one sequence, for
eight):

    llama        norm 1.04, 1.03, 1.05    rotate 1.05, 0.97, 1.05    gate 1.04, 1.11, 1.06
    qwen3_moe    weigh 1.06, 1.02, 1.04    a call of oneDNN for each expert 1.05, 1.19, 0.98
    qwen3_next   gated_norm 1.03, 1.06, 1.02

With the kernels a row also has the same bits in every batch, which torch's operations do not
guarantee.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from baton.core.memory.state import DType
from baton.engine import onednn
from baton.engine.kernels import by_head as h
from baton.engine.kernels import grouped as g
from baton.engine.kernels import panels
from baton.engine.kernels import pointwise as p
from baton.engine.kernels import recurrent as r
from baton.engine.kernels.team import Task, Team
from baton.engine.ops import ROW_STEP, ByHead, Grouped, HeadNorms, Linear, TorchOps, lacking, padded
from baton.engine.rope import Rope

ALONE_ROWS = 64  # below this many rows, a second thread costs more than it gains
ALONE_DEPTH = 1024  # beyond this depth oneDNN sums a single row in another order than several rows
REHEARSED = 1 << 28  # multiplications; in larger products the time to generate code does not matter
SCORES = 256  # outputs that a thread takes at a time


class CpuOps:
    """Implements Ops for one compute thread; other threads must not share its tasks."""

    def __init__(self, dtype: DType, team: Team) -> None:
        self._team, self._dtype = team, dtype
        self._row_step = ROW_STEP[dtype] * team.threads
        self._plain = TorchOps()
        self._norm, self._rotate = (
            Task(p.norm, dtype, p.NormJob),
            Task(p.rotate, dtype, p.RotateJob),
        )
        self._gate, self._weigh = Task(p.gate, dtype, p.GateJob), Task(p.weigh, dtype, p.WeighJob)
        # one product of each size, with and without bias
        self._kinds: dict[tuple[int, int, bool, torch.dtype], Linear] = {}

    def warm(self) -> None:
        """Compile (or load) all kernels, also those that only some models run."""
        tasks: list[Task[Any]] = [self._heads, self._gated_norm]
        if self._dtype is not DType.F32:
            tasks.append(self._groups)
        assert all(task.address for task in tasks)

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        exact = weight.dtype is torch.float32 and self._dtype is not DType.F32
        product = self._product(weight, bias)
        if not exact:
            return product
        # rows of 16-bit batches are not padded for it
        step = ROW_STEP[DType.F32] * self._team.threads
        return lambda x: product(padded(x, lacking(len(x), step)))[: len(x)]

    def _product(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        if onednn.has_tiles(weight.dtype) or not onednn.multiplies(weight.dtype):
            return self._compiled(weight, bias)
        product = _at_once(onednn.linear(weight, bias), weight.shape[1])
        size = (weight.shape[0], weight.shape[1], bias is not None, weight.dtype)
        self._kinds.setdefault(size, product)
        return product

    def _compiled(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Multiply by the kernel for groups, with one matrix.

        For 16-bit elements that the processor does not multiply, torch takes twice as long for one
        row, and five times for eight and more. If it multiplies tiles of them, oneDNN divides the
        depth, and so the order of the sums, by the number of rows.
        """
        multiply = self._together([(weight, bias)])
        return lambda x: multiply(x, np.array([len(x)]))

    def rehearse(self, most: int) -> None:
        """Make oneDNN generate its code for products with up to `most` rows.

        oneDNN generates code when it meets a shape for the first time, which takes 3 to 4 ms for
        the shapes of a model and would delay a request. Call it on the thread that will compute.
        """
        for rows in sorted({n + lacking(n, self._row_step) for n in range(1, most + 1)}):
            for (width, depth, _, dtype), product in self._kinds.items():
                if rows * width * depth <= REHEARSED:
                    product(torch.zeros((rows, depth), dtype=dtype))

    def grouped(self, weights: Iterable[tuple[torch.Tensor, torch.Tensor | None]]) -> Grouped:
        """Pack the matrices one by one; matrices without rows are not read.

        In 16 bits this is one compiled product: with few rows, a call of oneDNN for each matrix
        would add a third of the time and more.
        """
        return self._each(weights) if self._dtype is DType.F32 else self._together(weights)

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
        task, unit = self._groups, 2 if panels.paired(self._dtype) else 1
        wide, deep, packed, biases = 0, 0, [], []
        for weight, bias in weights:
            wide, deep = weight.shape
            packed.append(panels.packed(weight.T[None], self._dtype))
            biases.append(bias)
        addresses = [
            (w.data_ptr(), 0 if b is None else b.data_ptr(), 0, 0)
            for w, b in zip(packed, biases, strict=True)
        ]
        matrices = np.array(addresses, dtype=np.dtype(g.CMatrix))
        odd = -deep % panels.depth_step(self._dtype)
        depth, kept = (deep + odd) // unit, (packed, biases)

        def multiply(x: torch.Tensor, counts: NDArray[np.int64]) -> torch.Tensor:
            assert len(kept[0]) == len(counts)
            whole = F.pad(x, (0, odd)) if odd else x.contiguous()
            whole = whole if unit > 1 else whole.float()
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
        kernel = g.grouped_on_amx if panels.on_tiles(self._dtype) else g.grouped
        return Task(kernel, self._dtype, g.GroupedJob)

    def by_head(self, weight: torch.Tensor, *, scale: float = 1.0) -> ByHead:
        """Use all threads even for few rows, because reading the weights takes the time."""
        task = self._heads
        packed, (heads, deep, wide) = panels.packed(weight, self._dtype), weight.shape
        unit = 2 if panels.paired(self._dtype) else 1
        odd = -deep % panels.depth_step(self._dtype)

        def multiply(x: torch.Tensor, out: torch.Tensor) -> None:
            if unit > 1 and (odd or x.stride(0) % unit or x.stride(1) % unit):
                x = F.pad(x, (0, odd)).contiguous()
            x = x if unit > 1 else x.float()
            job = task.job
            job.rows, job.heads, job.depth, job.wide = x.shape[0], heads, packed.shape[2], wide
            job.x, job.x_row, job.x_head = x.data_ptr(), x.stride(0) // unit, x.stride(1) // unit
            job.out, job.out_row, job.out_head = out.data_ptr(), out.stride(0), out.stride(1)
            job.weight, job.scale, job.exact = packed.data_ptr(), scale, out.dtype is torch.float32
            room = x.new_empty(x.shape if len(x) >= panels.FEW and x.stride(1) else 0)
            job.together = room.data_ptr()  # 0 = no buffer
            self._team.run(task)

        return multiply

    def scores(self, weight: torch.Tensor) -> Linear:
        """Use oneDNN for float32 only, where it does not round its inputs."""
        if self._dtype is DType.F32:
            return self.linear(weight, None)
        wide, deep = weight.shape
        odd, short = -deep % panels.depth_step(self._dtype), -wide % SCORES
        runs = (F.pad(weight, (0, odd, 0, short)) if odd or short else weight).view(
            -1, SCORES, deep + odd
        )
        product, count = self.by_head(runs.transpose(1, 2)), len(runs)
        paired = panels.paired(self._dtype)

        def score(x: torch.Tensor) -> torch.Tensor:
            found = x.new_empty((len(x), count, SCORES), dtype=torch.float32)
            even = F.pad(x, (0, odd)) if odd else x
            even = even if paired else even.float()
            product(even[:, None].expand(-1, count, -1), found)
            return found.view(len(x), -1)[:, :wide]

        return score

    @cached_property
    def _heads(self) -> Task[h.ByHeadJob]:
        # made only for models that have such products
        kernel = h.by_head_on_amx if panels.on_tiles(self._dtype) else h.by_head
        return Task(kernel, self._dtype, h.ByHeadJob)

    def norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        *,
        add: torch.Tensor | None,
        offset: float = 0.0,
    ) -> torch.Tensor:
        """As in Ops; `x` and `add` must be contiguous."""
        out, job = torch.empty_like(x, dtype=weight.dtype), self._norm.job
        job.rows, job.x, job.add = x.shape[0], x.data_ptr(), 0 if add is None else add.data_ptr()
        job.weight, job.out, job.dim = weight.data_ptr(), out.data_ptr(), x.shape[1]
        job.exact, job.eps, job.offset = x.dtype is torch.float32, eps, offset
        self._run(self._norm, x.shape[0])
        return out

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
        job = self._rotate.job
        job.rows, job.x, job.x_row = x.shape[0], x.data_ptr(), x.stride(0)
        job.heads, job.queries, job.dim, job.turned = x.shape[1], queries, x.shape[2], rope.dim
        job.positions, job.cos, job.sin = (
            positions.data_ptr(),
            rope.cos.data_ptr(),
            rope.sin.data_ptr(),
        )
        job.weight_q = 0 if norms is None else norms.q.data_ptr()
        job.weight_k = 0 if norms is None else norms.k.data_ptr()
        job.eps, job.offset = eps, 0.0 if norms is None else norms.offset
        self._run(self._rotate, x.shape[0])

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        """As in Ops; `x` must be contiguous."""
        dim, job = x.shape[1] // 2, self._gate.job
        out = x.new_empty((x.shape[0], dim))
        job.rows, job.x, job.out, job.dim = x.shape[0], x.data_ptr(), out.data_ptr(), dim
        self._run(self._gate, x.shape[0])
        return out

    def weigh(self, x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        if self._dtype is DType.F32:
            # the plain operation; its sums of many terms differ in their last bits
            return self._plain.weigh(x, weights, places)
        weights, job = weights.contiguous(), self._weigh.job
        out = x.new_empty((len(weights), x.shape[1]))
        job.rows, job.count = weights.shape
        job.x, job.dim, job.out = x.data_ptr(), x.shape[1], out.data_ptr()
        job.weights, job.places = weights.data_ptr(), places.data_ptr()
        self._run(self._weigh, len(out))
        return out

    def gated_norm(
        self, x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """As in Ops; `x` must be contiguous."""
        out, job = z.new_empty(z.shape), self._gated_norm.job
        job.rows, job.heads, job.dim = x.shape
        job.x, job.z, job.z_row = x.data_ptr(), z.data_ptr(), z.stride(0)
        job.weight, job.out, job.eps = weight.data_ptr(), out.data_ptr(), eps
        self._run(self._gated_norm, len(x))
        return out

    @cached_property
    def _gated_norm(self) -> Task[r.GatedNormJob]:
        return Task(r.gated_norm, self._dtype, r.GatedNormJob)

    def _run(self, task: Task[Any], rows: int) -> None:
        if rows < ALONE_ROWS:
            task.alone()
        else:
            self._team.run(task)


def _at_once(multiply: Linear, deep: int) -> Linear:
    """Multiply all rows at once, and a single one in company."""
    company = deep > ALONE_DEPTH
    return lambda x: multiply(padded(x, 1))[:1] if company and len(x) == 1 else multiply(x)
