"""Routed experts: each row passes through a few of a layer's MLPs (Shazeer 2017; Fedus 2022).

    router ──(weights, ids)──▶ rows sorted by expert ──▶ one product a matrix ──▶ weighted sum in the order of the ids

Each rank of a stage holds a range of whole experts, and the results of the ranks are summed. A
row's result depends only on its own experts, never on other rows that use them.
"""

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import torch

from baton.core.errors import ConfigError
from baton.core.memory.state import Interval
from baton.engine.comm import Comm
from baton.engine.models.weights import Loader
from baton.engine.ops import Grouped, Linear, Ops

GATE_UP = "gate_up_proj"
# [rows, 2 * inner], gate before up -> [rows, inner]
Activate = Callable[[torch.Tensor], torch.Tensor]
# x [rows, hidden] -> weights, ids [rows, experts used]
Router = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def held_experts(count: int, *, tp: int, rank: int) -> Interval:
    """Return the experts on a rank of a stage. Raises
    ConfigError if they cannot be divided evenly."""
    if count % tp:
        fits = [n for n in range(1, count + 1) if count % n == 0]
        raise ConfigError(
            f"{count} experts cannot be divided over tensor parallel width "
            f"{tp}; widths that fit: {fits}"
        )
    return Interval(rank * count // tp, (rank + 1) * count // tp)


class ExpertFiles(msgspec.Struct, frozen=True):
    """Experts whose matrices are tensors of their own, as most checkpoints have them.

    Attributes:
        path: prefix of the names of a layer's experts, before the number
        gate, up, down: names of the matrices
        count: experts of a layer
        hidden, inner: input size and inner size of an expert
    """

    path: str
    gate: str
    up: str
    down: str
    count: int
    hidden: int
    inner: int

    def tensors(self, at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of every tensor; names begin with `at`."""
        for expert in range(self.count):
            for name in (self.gate, self.up):
                yield f"{at}{self.path}.{expert}.{name}.weight", (self.inner, self.hidden)
            yield f"{at}{self.path}.{expert}.{self.down}.weight", (self.hidden, self.inner)

    def first(self, load: Loader, at: str, expert: int) -> torch.Tensor:
        """Load gate and up of one expert: [2 * inner, hidden]."""
        names = [f"{at}{self.path}.{expert}.{name}.weight" for name in (self.gate, self.up)]
        return torch.cat([load(name) for name in names])

    def second(self, load: Loader, at: str, expert: int) -> torch.Tensor:
        """Load down of one expert: [hidden, inner]."""
        return load(f"{at}{self.path}.{expert}.{self.down}.weight")

    def load(self, load: Loader, at: str, activate: Activate) -> "Experts":
        """Load this rank's experts. Raises ConfigError if they cannot be read or divided."""
        held = held_experts(self.count, tp=load.comm.tp, rank=load.comm.tp_rank)
        own = range(held.start, held.end)
        return Experts(
            held,
            load.ops.grouped((self.first(load, at, expert), None) for expert in own),
            load.ops.grouped((self.second(load, at, expert), None) for expert in own),
            activate,
            load.ops,
            load.comm,
        )


class StackedExpertFiles(ExpertFiles, frozen=True):
    """Experts of a layer in two tensors, as Qwen3.5 has them: [experts, outputs, inputs]; gates
    before ups."""

    def tensors(self, at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{at}{self.path}.{GATE_UP}", (self.count, 2 * self.inner, self.hidden)
        yield f"{at}{self.path}.{self.down}", (self.count, self.hidden, self.inner)

    def first(self, load: Loader, at: str, expert: int) -> torch.Tensor:
        return load(f"{at}{self.path}.{GATE_UP}", Interval(expert, expert + 1))[0]

    def second(self, load: Loader, at: str, expert: int) -> torch.Tensor:
        return load(f"{at}{self.path}.{self.down}", Interval(expert, expert + 1))[0]


class Experts:
    """One rank's experts of a layer; `first` and
    `second` are their products, in order of expert."""

    def __init__(
        self,
        held: Interval,
        first: Grouped,
        second: Grouped,
        activate: Activate,
        ops: Ops,
        comm: Comm,
    ) -> None:
        self.held, self._first, self._second, self._activate, self._ops, self._comm = (
            held,
            first,
            second,
            activate,
            ops,
            comm,
        )

    def __call__(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Compute the weighted sum of the outputs of each row's experts.

        Sums are float32 and rounded once. (Rows are sorted with numpy, which is faster than torch
        for so few numbers.)

        Args:
            x: [rows, hidden]
            weights: float [rows, k]
            ids: int64 [rows, k], without duplicates in a row

        Returns:
            [rows, hidden], the same on every rank of the stage
        """
        count = self.held.size
        local = ids.numpy().reshape(-1) - self.held.start
        # experts of other ranks come last
        local = np.where((local >= 0) & (local < count), local, count)
        counts = np.bincount(local, minlength=count + 1)[:count]
        taken = local.argsort(kind="stable")[: counts.sum()]
        places = np.full(local.size, -1)
        places[taken] = np.arange(taken.size)
        found = x[:0]
        if taken.size:
            found = self._second(
                self._activate(self._first(x[torch.from_numpy(taken // ids.shape[1])], counts)),
                counts,
            )
        return self._comm.add_up(
            self._ops.weigh(found, weights.float(), torch.from_numpy(places).view(ids.shape))
        )


class SoftmaxRouter:
    """Chooses the experts with the highest probabilities.

    `logits` is the router's product, complete on every rank.
    """

    def __init__(self, logits: Linear, *, used: int, renormalised: bool) -> None:
        self._logits, self._used, self._renormalised = logits, used, renormalised

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, ids = self._logits(x).float().softmax(-1).topk(self._used)
        return weights / weights.sum(-1, keepdim=True) if self._renormalised else weights, ids


def mixture_of(router: Router, experts: Experts) -> Linear:
    """Return an MLP whose experts are chosen by a router."""
    return lambda x: experts(x, *router(x))
