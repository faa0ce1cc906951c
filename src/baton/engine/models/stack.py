"""A rank's layers, each a mixer over the sequence
and an MLP, with a norm before each of the two."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch

from baton.engine.models.base import DraftLayer
from baton.engine.models.ends import Ends
from baton.engine.ops import Linear, Ops

M = TypeVar("M")
# layer, its mixer, x [rows, hidden] -> [rows, hidden]
Mix = Callable[[int, M, torch.Tensor], torch.Tensor]


class Layer(Generic[M]):
    """One rank's part of one layer."""

    def __init__(self, norms: Sequence[torch.Tensor], mixer: M, mlp: Linear) -> None:
        (self.norm1, self.norm2), self.mixer, self.mlp = norms, mixer, mlp


class Stack(Generic[M]):
    """One rank's layers, and its parts of embedding
    and head; `eps` and `offset` are for the norms."""

    def __init__(
        self,
        layers: Sequence[Layer[M]],
        ends: Ends,
        ops: Ops,
        *,
        vocab: int,
        eps: float,
        offset: float = 0.0,
    ) -> None:
        self.vocab_size, self._eps, self._offset = vocab, eps, offset
        self.draft_layer: DraftLayer | None = None
        self._layers, self._ends, self._ops = layers, ends, ops

    def run(self, tokens: torch.Tensor, mix: Mix[M]) -> torch.Tensor | None:
        """Run all layers of this stage; returns what Model.forward returns."""
        x = self._ends.begin(tokens)
        add: torch.Tensor | None = None
        for index, layer in enumerate(self._layers):
            add = mix(index, layer.mixer, self._norm(x, layer.norm1, add))
            add = layer.mlp(self._norm(x, layer.norm2, add))
        return self._ends.end(x, add)

    def _norm(
        self, x: torch.Tensor, weight: torch.Tensor, add: torch.Tensor | None
    ) -> torch.Tensor:
        return self._ops.norm(x, weight, self._eps, add=add, offset=self._offset)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        return self._ends.logits(hidden)
