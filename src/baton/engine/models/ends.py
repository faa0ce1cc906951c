"""The parts around a model's layers: embedding, last norm, output head, and transfers between
stages.

Embedding and head are divided by rows over the ranks of a stage: each rank has a range of the
vocabulary.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from baton.core.memory.state import Interval
from baton.engine.models.weights import Loader
from baton.engine.ops import by_rows

EMBEDDING, LAST_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


class Ends:
    """One rank's part of embedding, last norm and head.

    Args:
        tied: whether the head is the embedding
        eps, offset: of the last norm
        scale: factor of embeddings
        softcap: logits x become softcap * tanh(x / softcap); None = unchanged
    """

    def __init__(
        self,
        load: Loader,
        *,
        vocab: int,
        hidden: int,
        tied: bool,
        eps: float,
        offset: float = 0.0,
        scale: float = 1.0,
        softcap: float | None = None,
    ) -> None:
        self._ops, self._comm, self._eps, self._offset = load.ops, load.comm, eps, offset
        self._scale, self._softcap, comm = scale, softcap, load.comm
        self._vocab, self._hidden = vocab, hidden
        step = -(-vocab // comm.tp)  # entries of each rank; the last rank may have fewer
        start = min(vocab, comm.tp_rank * step)
        self._words = Interval(start, min(vocab, start + step))
        self._embedding = load(EMBEDDING, self._words) if comm.first else None
        self._norm = self._head = None
        if comm.last:
            self._norm = load(LAST_NORM)
            filed = EMBEDDING if tied else HEAD
            rows = (
                self._embedding
                if tied and self._embedding is not None
                else load(filed, self._words)
            )
            # Equally many rows on every rank, for the gather; rows beyond the vocabulary are cut
            # off.
            short = step - self._words.size
            self._head = load.ops.scores(F.pad(rows, (0, 0, 0, short)) if short else rows)

    def begin(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the input of this stage's first layer:
        float32 [rows, hidden], in any served dtype."""
        if self._embedding is None:
            return self._comm.receive(torch.empty(len(tokens), self._hidden))
        if self._comm.tp == 1:
            rows = F.embedding(tokens, self._embedding)
        else:
            here = (tokens >= self._words.start) & (tokens < self._words.end)
            rows = F.embedding(torch.where(here, tokens - self._words.start, 0), self._embedding)
            rows = self._comm.add_up(rows * here[:, None])
        # rounded, as in training
        scaled = rows if self._scale == 1.0 else rows * torch.tensor(self._scale, dtype=rows.dtype)
        return scaled.float()

    def end(self, x: torch.Tensor, add: torch.Tensor | None) -> torch.Tensor | None:
        """Return x + add after the last norm; None if it
        was sent to the next stage. x is overwritten."""
        if self._norm is not None:
            return self._ops.norm(x, self._norm, self._eps, add=add, offset=self._offset)
        self._comm.send(x if add is None else x + add)
        return None

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        assert self._head is not None, "only the last stage has logits"
        found = self._comm.gather(self._head(hidden))
        if found is None:
            return None
        logits, cap = found[:, : self._vocab], self._softcap
        return logits if cap is None else by_rows(torch.Tensor.tanh_, logits / cap) * cap


def end_tensors(vocab: int, hidden: int, *, tied: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every tensor that is read, with its shape."""
    yield EMBEDDING, (vocab, hidden)
    yield LAST_NORM, (hidden,)
    if not tied:
        yield HEAD, (vocab, hidden)
