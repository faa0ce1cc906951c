"""Drawing tokens: the random number of generated token i of a request depends on (seed, i) alone.

logits -> barred ids, bias -> penalties -> / temperature -> min_p -> top_k -> top_p
       -> inverse of the cumulated probabilities, in token-id order

The order and the formulas are vLLM's. Logprobs are those of the model: of the logits before anything is done to them.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from baton.core.ids import TokenId
from baton.core.messages import Drawn, Sampling, Shaping
from baton.core.mixing import mix64
from baton.core.past import Past
from baton.core.work import Draw

ROW_ERRORS = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)  # what computing with a row's values can raise
FIRST_LOOK = 1024  # candidates sorted first for top_p; all are, where these do not reach it


def uniform(seed: int, index: int) -> float:
    """In [0, 1), with 53 bits."""
    return (mix64(mix64(seed, 0), index) >> 11) * 2.0**-53


class Undrawn(msgspec.Struct, frozen=True):
    """A row whose token cannot be drawn, and why."""

    why: str


def draw_rows(logits: torch.Tensor, orders: Sequence[Draw]) -> list[Drawn | Undrawn]:
    """One token per row, whatever its company. logits: float32 [rows, vocab]; they are left as they are."""
    return [_row(row, order) for row, order in zip(logits, orders, strict=True)]


def draw(logits: torch.Tensor, order: Draw) -> Drawn | Undrawn:
    """One row's token. logits: float32 [vocab]."""
    return draw_rows(logits[None], [order])[0]


def _row(logits: torch.Tensor, order: Draw) -> Drawn | Undrawn:
    """What a request asks for may be what nobody foresaw: then it has no token, and the others of the step have theirs."""
    try:
        return _scored(logits, _token(logits.numpy(), order), order.sampling.logprobs)
    except ROW_ERRORS as error:
        return Undrawn(f"its token {order.index} cannot be drawn: {type(error).__name__}: {error}")


def _token(values: NDArray[np.float32], order: Draw) -> int:
    shaped = shape(values, order.sampling.shaping, order.past)
    if order.sampling.temperature > 0:
        return _sample(shaped, order.sampling, order.index)
    return int(shaped.argmax())  # the lowest id on ties


def _scored(logits: torch.Tensor, token: int, wanted: int | None) -> Drawn:
    if wanted is None:
        return Drawn(TokenId(token), None, ())
    logprobs = torch.log_softmax(logits, dim=-1)
    found, ids = torch.topk(logprobs, wanted) if wanted else (torch.zeros(0), torch.zeros(0))
    top = tuple((TokenId(int(i)), float(v)) for i, v in zip(ids.tolist(), found.tolist(), strict=True))
    return Drawn(TokenId(token), float(logprobs[token]), top)


def shape(values: NDArray[np.float32], shaping: Shaping | None, past: Past | None) -> NDArray[np.float32]:
    """The logits that are drawn from: float32 [vocab], the same array where nothing is to be done.

    Repetition divides positive and multiplies other logits of tokens seen in prompt or answer (Keskar et al. 2019);
    frequency and presence are subtracted per occurrence and once, of tokens in the answer alone (OpenAI).
    """
    if shaping is None and past is None:
        return values
    out = values.copy()
    if past is not None:
        out[list(past.barred)] = -np.inf
    if shaping is None:
        return out
    if shaping.logit_bias:
        ids, biases = zip(*shaping.logit_bias, strict=True)
        out[list(ids)] += np.array(biases, dtype=np.float32)
    if past is not None:
        _penalize(out, shaping, past)
    return out


def _penalize(out: NDArray[np.float32], shaping: Shaping, past: Past) -> None:
    said, counts = np.unique(np.array(past.answer, dtype=np.int64), return_counts=True)
    if shaping.repetition_penalty != 1:
        seen = np.union1d(said, np.array(past.prompt, dtype=np.int64))
        penalty, before = np.float32(shaping.repetition_penalty), out[seen]
        out[seen] = np.where(before > 0, before / penalty, before * penalty)
    out[said] -= np.float32(shaping.frequency_penalty) * counts.astype(np.float32)
    out[said] -= np.float32(shaping.presence_penalty)


def _sample(values: NDArray[np.float32], sampling: Sampling, index: int) -> int:
    scaled = values.astype(np.float64)
    scaled /= sampling.temperature
    weights = scaled - scaled.max()
    np.exp(weights, out=weights)
    kept = _kept(scaled, weights, sampling)
    # without the detour over ids where every token may be drawn: it would cost more than all the rest
    cumulated = np.cumsum(weights if kept is None else weights[kept])
    at = np.searchsorted(cumulated, uniform(sampling.seed, index) * cumulated[-1], side="right")
    found = min(int(at), cumulated.size - 1)
    return found if kept is None else int(kept[found])


def _kept(scaled: NDArray[np.float64], weights: NDArray[np.float64], sampling: Sampling) -> NDArray[np.int64] | None:
    """Ids that may be drawn, ascending; None for all of them."""
    if not sampling.min_p and not 0 < sampling.top_k < scaled.size and sampling.top_p == 1.0:
        return None
    kept = np.arange(scaled.size)
    if sampling.min_p > 0:  # the largest weight is 1, whatever the others sum to
        kept = np.flatnonzero(weights >= sampling.min_p)
    if 0 < sampling.top_k < kept.size:
        kept = kept[_largest(scaled[kept], sampling.top_k)]
    if sampling.top_p < 1.0:
        kept = _nucleus(scaled, weights, kept, sampling.top_p)
    kept.sort()
    return kept


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
