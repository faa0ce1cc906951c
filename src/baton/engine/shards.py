"""Which part of each weight matrix a rank holds: whole heads, equal columns of the MLP, a run of the vocabulary.

Matrices before attention and the MLP are cut by their outputs, those behind them by their inputs, so a layer needs two sums
over the ranks of a stage (Shoeybi et al. 2019, Megatron-LM).
"""

from baton.core.errors import ConfigError
from baton.core.state import Interval, Placement, shard
from baton.engine.models.config import ModelConfig


class Shards:
    """One rank's part of a grouped-query transformer, in numbers of the whole model.

    Attributes:
        heads, kv_heads: of attention
        queries, keys: elements of those heads in a row
        inner: columns of the MLP's hidden dimension
        vocabulary: tokens whose rows of the embedding and of the head are here
        vocabulary_step: entries per rank; the last rank's may be fewer
        layers: of the rank's stage
    """

    def __init__(self, c: ModelConfig, placement: Placement) -> None:
        tp, rank = placement.tp, placement.tp_rank
        for what, count in (("attention heads", c.heads), ("columns of the MLP", c.inner)):
            if count % tp:
                fits = _widths(c)
                raise ConfigError(f"{count} {what} cannot be divided over tensor parallel width {tp}; widths that fit: {fits}")
        self.kv_heads = shard(c.kv_heads, tp, rank, what="K/V")
        self.heads = Interval(rank * c.heads // tp, (rank + 1) * c.heads // tp)
        self.queries, self.keys = _elements(self.heads, c.head_dim), _elements(self.kv_heads, c.head_dim)
        self.inner = Interval(rank * c.inner // tp, (rank + 1) * c.inner // tp)
        self.vocabulary_step = -(-c.vocab // tp)
        start = min(c.vocab, rank * self.vocabulary_step)
        self.vocabulary = Interval(start, min(c.vocab, start + self.vocabulary_step))
        self.layers = range(placement.layer_interval.start, placement.layer_interval.end)


def _elements(heads: Interval, dim: int) -> Interval:
    return Interval(heads.start * dim, heads.end * dim)


def _widths(c: ModelConfig) -> list[int]:
    """Tensor parallel widths that divide everything that must be divided."""
    return [n for n in range(1, c.heads + 1) if c.heads % n == c.inner % n == 0 and (c.kv_heads % n == 0 or n % c.kv_heads == 0)]
