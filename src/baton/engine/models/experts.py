"""Routed experts: of a layer's many MLPs each row passes through a few (Shazeer et al. 2017; Fedus et al. 2022).

    router ──(weights, ids)──▶ rows sorted by expert ──▶ one product a matrix ──▶ weighted sum in the order of the ids

Each rank of a stage holds whole experts, a run of them, and what the ranks found is added up. A row's result depends on its
own experts alone, never on which rows share them.
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

Activate = Callable[[torch.Tensor], torch.Tensor]  # [rows, 2 * inner], gate before up -> [rows, inner]
Router = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # x [rows, hidden] -> weights, ids [rows, experts used]


def held_experts(count: int, *, tp: int, rank: int) -> Interval:
    """Which of a layer's experts that rank of a stage holds. Raises ConfigError where they cannot be divided evenly."""
    if count % tp:
        fits = [n for n in range(1, count + 1) if count % n == 0]
        raise ConfigError(f"{count} experts cannot be divided over tensor parallel width {tp}; widths that fit: {fits}")
    return Interval(rank * count // tp, (rank + 1) * count // tp)


class ExpertFiles(msgspec.Struct, frozen=True):
    """Experts whose matrices are tensors of their own, as most checkpoints have them.

    Attributes:
        path: of a layer's experts, before their number
        gate, up, down: names of the matrices
        count: experts of a layer
        hidden, inner: elements before and inside
    """

    path: str
    gate: str
    up: str
    down: str
    count: int
    hidden: int
    inner: int

    def tensors(self, at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of every tensor; names begin with `at`."""
        for expert in range(self.count):
            for name in (self.gate, self.up):
                yield f"{at}{self.path}.{expert}.{name}.weight", (self.inner, self.hidden)
            yield f"{at}{self.path}.{expert}.{self.down}.weight", (self.hidden, self.inner)

    def load(self, load: Loader, at: str, activate: Activate) -> "Experts":
        """This rank's experts. Raises ConfigError if they cannot be read, or not be divided."""
        held = held_experts(self.count, tp=load.comm.tp, rank=load.comm.tp_rank)

        def gates_and_ups() -> Iterator[tuple[torch.Tensor, None]]:
            for expert in range(held.start, held.end):
                names = [f"{at}{self.path}.{expert}.{name}.weight" for name in (self.gate, self.up)]
                yield torch.cat([load(name) for name in names]), None

        def downs() -> Iterator[tuple[torch.Tensor, None]]:
            for expert in range(held.start, held.end):
                yield load(f"{at}{self.path}.{expert}.{self.down}.weight"), None

        return Experts(held, load.ops.grouped(gates_and_ups()), load.ops.grouped(downs()), activate, load.ops, load.comm)


class Experts:
    """One rank's part of a layer's experts. first, second: the products of those held, in their order."""

    def __init__(self, held: Interval, first: Grouped, second: Grouped, activate: Activate, ops: Ops, comm: Comm) -> None:
        self.held, self._first, self._second, self._activate, self._ops, self._comm = held, first, second, activate, ops, comm

    def __call__(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The weighted sum of what each row's experts make of it, the same on every rank of the stage.

        x: [rows, hidden]; weights: float [rows, k]; ids: int64 [rows, k], each expert once a row; returns [rows, hidden].
        Sums are float32 and rounded once. (Where rows go is found with numpy: on so few numbers torch's calls take longer.)
        """
        count = self.held.size
        local = ids.numpy().reshape(-1) - self.held.start
        local = np.where((local >= 0) & (local < count), local, count)  # the others come last
        counts = np.bincount(local, minlength=count + 1)[:count]
        taken = local.argsort(kind="stable")[: counts.sum()]
        places = np.full(local.size, -1)
        places[taken] = np.arange(taken.size)
        found = x[:0]
        if taken.size:
            found = self._second(self._activate(self._first(x[torch.from_numpy(taken // ids.shape[1])], counts)), counts)
        return self._comm.add_up(self._ops.weigh(found, weights.float(), torch.from_numpy(places).view(ids.shape)))


class SoftmaxRouter:
    """Probabilities over all experts, of which a row keeps the highest; logits: the router's product, whole on every rank."""

    def __init__(self, logits: Linear, *, used: int, renormalised: bool) -> None:
        self._logits, self._used, self._renormalised = logits, used, renormalised

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, ids = self._logits(x).float().softmax(-1).topk(self._used)
        return weights / weights.sum(-1, keepdim=True) if self._renormalised else weights, ids


def mixture_of(router: Router, experts: Experts) -> Linear:
    """An MLP whose experts a router chooses."""
    return lambda x: experts(x, *router(x))
