"""Drawing tokens: the random number of generated token i of a request depends on (seed, i) alone.

logits -> / temperature -> top_k -> top_p -> inverse of the cumulated probabilities, in token-id order
"""

import numpy as np
import torch
from numpy.typing import NDArray

from baton.core.ids import TokenId
from baton.core.messages import Drawn
from baton.core.work import Draw

MASK = (1 << 64) - 1
FIRST_LOOK = 1024  # candidates sorted first for top_p; all are, where these do not reach it


def mix64(seed: int, index: int) -> int:
    """64 random bits for a counter: splitmix64 (Steele, Lea, Flood 2014) of `seed` at step `index`."""
    x = (seed + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def uniform(seed: int, index: int) -> float:
    """In [0, 1), with 53 bits."""
    return (mix64(mix64(seed, 0), index) >> 11) * 2.0**-53


def draw(logits: torch.Tensor, order: Draw) -> Drawn:
    """One row's token. logits: float32 [vocab]."""
    sampling = order.sampling
    values = logits.numpy()
    # argmax takes the lowest id on ties
    token = _sample(values, order) if sampling.temperature > 0 else int(values.argmax())
    if sampling.logprobs is None:
        return Drawn(TokenId(token), None, ())
    logprobs = torch.log_softmax(logits, dim=-1)
    found, ids = torch.topk(logprobs, sampling.logprobs) if sampling.logprobs else (torch.zeros(0), torch.zeros(0))
    top = tuple((TokenId(int(i)), float(v)) for i, v in zip(ids.tolist(), found.tolist(), strict=True))
    return Drawn(TokenId(token), float(logprobs[token]), top)


def _sample(values: NDArray[np.float32], order: Draw) -> int:
    sampling = order.sampling
    scaled = values.astype(np.float64) / sampling.temperature
    weights = np.exp(scaled - scaled.max())
    kept = np.arange(values.size)
    if 0 < sampling.top_k < values.size:
        kept = _largest(scaled, sampling.top_k)
    if sampling.top_p < 1.0:
        kept = _nucleus(scaled, weights, kept, sampling.top_p)
    kept.sort()
    cumulated = np.cumsum(weights[kept])
    at = np.searchsorted(cumulated, uniform(sampling.seed, order.index) * cumulated[-1], side="right")
    return int(kept[min(int(at), kept.size - 1)])


def _largest(scaled: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Ids of the `count` largest; among equals the lowest ids."""
    edge = np.partition(scaled, scaled.size - count)[scaled.size - count]
    above = np.flatnonzero(scaled > edge)
    return np.concatenate((above, np.flatnonzero(scaled == edge)[: count - above.size]))


def _nucleus(
    scaled: NDArray[np.float64], weights: NDArray[np.float64], kept: NDArray[np.int64], top_p: float
) -> NDArray[np.int64]:
    """The fewest ids, likeliest first, whose probabilities sum to at least top_p (Holtzman et al. 2020)."""
    target = top_p * weights[kept].sum()
    for count in (FIRST_LOOK, kept.size):
        some = kept if count >= kept.size else kept[_largest(scaled[kept], count)]
        ranked = some[np.lexsort((some, -scaled[some]))]
        reached = np.searchsorted(np.cumsum(weights[ranked]), target, side="left") + 1
        if reached <= ranked.size:
            return ranked[:reached]
    return kept
