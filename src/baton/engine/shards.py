"""The part of each weight matrix on a rank: whole heads, and equal columns of the MLP.

The matrices into attention and the MLP are divided by outputs (column-parallel), those out of them
by inputs (row-parallel). So a layer needs two sums over the ranks of a stage (Shoeybi et al. 2019,
Megatron-LM).
"""

from baton.core.errors import ConfigError
from baton.core.memory.state import Interval, Placement, shard
from baton.engine.models.config import ModelConfig


class Shards:
    """One rank's part of a grouped-query transformer, in numbers of the whole model.

    Attributes:
        heads, kv_heads: the heads of attention
        queries, keys: the elements of these heads in a row
        inner: columns of the MLP's hidden dimension
        layers: layers of the rank's stage
    """

    def __init__(self, c: ModelConfig, placement: Placement) -> None:
        tp, rank = placement.tp, placement.tp_rank
        require_width(c, tp)
        self.kv_heads = shard(c.kv_heads, tp, rank, what="K/V")
        self.heads = Interval(rank * c.heads // tp, (rank + 1) * c.heads // tp)
        self.queries, self.keys = (
            elements(self.heads, c.head_dim),
            elements(self.kv_heads, c.head_dim),
        )
        self.inner = Interval(rank * c.inner // tp, (rank + 1) * c.inner // tp)
        self.layers = range(placement.layer_interval.start, placement.layer_interval.end)


def require_width(c: ModelConfig, tp: int) -> None:
    """Check that a model can be divided over `tp` ranks.

    Query heads, columns of the MLP and experts are divided; K/V heads are divided or replicated.

    Raises:
        ConfigError: one of them cannot be divided; the message names it and every tp that fits
    """
    experts = c.mixture.experts if c.mixture is not None else 0
    needs = (
        ("attention heads", c.heads, c.heads % tp == 0),
        ("columns of the MLP", c.inner, c.inner % tp == 0),
        ("K/V heads", c.kv_heads, _shared(c.kv_heads, tp)),
        ("experts", experts, experts % tp == 0),
    )
    divided = (c.heads, c.inner, experts)
    for what, count, met in needs:
        if not met:
            fits = [
                n
                for n in range(1, c.heads + 1)
                if not any(d % n for d in divided) and _shared(c.kv_heads, n)
            ]
            raise ConfigError(
                f"{count} {what} cannot be divided over tensor parallel width "
                f"{tp}; widths that fit: {fits}"
            )


def _shared(kv_heads: int, tp: int) -> bool:
    return kv_heads % tp == 0 or tp % kv_heads == 0


def elements(heads: Interval, dim: int) -> Interval:
    """Return the elements of heads of `dim` elements in a row."""
    return Interval(heads.start * dim, heads.end * dim)
