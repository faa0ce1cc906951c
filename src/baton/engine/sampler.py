"""Samples tokens: the random number for generated token i of a request depends only on (seed, i).

logits -> grammar, allowed, bad and barred ids -> bias -> penalties -> / temperature -> min_p
       -> top_k -> top_p -> inverse of the cumulative probabilities, in order of token ids

The order and the formulas are vLLM's. Logprobs are those of the unchanged logits.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from baton.core.ids import TokenId
from baton.core.matchers import GrammarError
from baton.core.messages import Drawn, FailCode, RowFailure, Sampling, Shaping
from baton.core.mixing import mix64
from baton.core.past import Past
from baton.core.work import Draw

# errors that a row's own values can cause
ROW_ERRORS = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
FIRST_LOOK = 1024  # candidates sorted at first for top_p; if they are not enough, all are sorted


# what a row's grammar allows: bool [vocab]; it may wait, and raise one of ROW_ERRORS
Allowed = Callable[[], NDArray[np.bool_] | None]


def uniform(seed: int, index: int) -> float:
    """Return a uniform number in [0, 1) with 53 bits."""
    return (mix64(mix64(seed, 0), index) >> 11) * 2.0**-53


class NoToken(ValueError):
    """No token may come next."""


def everything() -> None:
    """Return what a row without a grammar is allowed."""
    return None


def draw(logits: torch.Tensor, order: Draw, allowed: Allowed = everything) -> Drawn | RowFailure:
    """Sample one token. An error concerns only its row: the others of the step get their tokens.

    Args:
        logits: float32 [vocab]; they are not changed
        allowed: returns what the row's grammar allows, bool [vocab]; None = everything
    """
    try:
        token = _token(logits.numpy(), order, allowed())
        return _scored(logits, token, order.sampling.logprobs)
    except ROW_ERRORS as error:
        asked = isinstance(error, (GrammarError, NoToken))
        code = FailCode.UNSATISFIABLE if asked else FailCode.COMPUTE_FAILED
        what = str(error) if asked else f"{type(error).__name__}: {error}"
        return RowFailure(code, f"its token {order.index} cannot be drawn: {what}")


def draw_along(
    logits: torch.Tensor,
    orders: Sequence[Draw],
    tokens: Sequence[TokenId],
    allowed: Sequence[Allowed] | None = None,
) -> list[Drawn | RowFailure]:
    """Sample one token after the other for a row, as long as the row goes on with the one that was
    sampled.

    Args:
        logits: float32 [draws, vocab]; they are not changed
        orders: one for each of them
        tokens: of the row; the last ones but for the first of these follow each draw but the last
        allowed: for each of them, returns what the row's grammar allows, bool [vocab]; it is asked
            only when all drafts before it were drawn
    """
    found: list[Drawn | RowFailure] = []
    drafts = tokens[len(tokens) - len(orders) + 1 :]
    for n, order in enumerate(orders):
        drawn = draw(logits[n], order, allowed[n] if allowed is not None else everything)
        found.append(drawn)
        if n == len(drafts) or isinstance(drawn, RowFailure) or drawn.token != drafts[n]:
            break
    return found


def _token(values: NDArray[np.float32], order: Draw, allowed: NDArray[np.bool_] | None) -> int:
    shaped = shape(values, order.sampling.shaping, order.past, allowed)
    if shaped is not values and shaped.max() == -np.inf:
        raise NoToken("allowed_token_ids, bad_words and the grammar together leave no token")
    if order.sampling.temperature > 0:
        return _sample(shaped, order.sampling, order.index)
    return int(shaped.argmax())  # ties: the lowest id


def _scored(logits: torch.Tensor, token: int, wanted: int | None) -> Drawn:
    if wanted is None:
        return Drawn(TokenId(token), None, ())
    logprobs = torch.log_softmax(logits, dim=-1)
    found, ids = torch.topk(logprobs, wanted) if wanted else (torch.zeros(0), torch.zeros(0))
    top = tuple(
        (TokenId(int(i)), float(v)) for i, v in zip(ids.tolist(), found.tolist(), strict=True)
    )
    return Drawn(TokenId(token), float(logprobs[token]), top)


def shape(
    values: NDArray[np.float32],
    shaping: Shaping | None,
    past: Past | None,
    allowed: NDArray[np.bool_] | None = None,
) -> NDArray[np.float32]:
    """Apply masks, biases and penalties; returns float32 [vocab], the same array if there are none.

    Tokens that the grammar, `allowed_token_ids` or a bad word exclude become minus infinity, and
    nothing raises them from there. Barred tokens may come after all where nothing else may: an
    answer that is complete ends.

    The repetition penalty divides positive logits, and multiplies others, of tokens in prompt or
    answer (Keskar et al. 2019). The frequency penalty is subtracted for each occurrence, and the
    presence penalty once, for tokens in the answer (OpenAI).
    """
    if shaping is None and past is None:
        return values
    out = values.copy()
    _exclude(out, shaping, past, allowed)
    if shaping is None:
        return out
    if shaping.logit_bias:
        ids, biases = zip(*shaping.logit_bias, strict=True)
        out[list(ids)] += np.array(biases, dtype=np.float32)
    if past is not None:
        _penalize(out, shaping, past)
    return out


def _exclude(
    out: NDArray[np.float32],
    shaping: Shaping | None,
    past: Past | None,
    allowed: NDArray[np.bool_] | None,
) -> None:
    """Set the logits of tokens that must not be drawn to minus infinity."""
    if allowed is not None:
        out[~allowed] = -np.inf
    if shaping is not None and shaping.allowed_token_ids:
        ids = np.array(shaping.allowed_token_ids)
        kept = out[ids]
        out[:] = -np.inf
        out[ids] = kept
    if past is None:
        return
    out[list(past.bad)] = -np.inf
    ends = list(past.barred)
    kept = out[ends]
    out[ends] = -np.inf
    if ends and out.max() == -np.inf:
        out[ends] = kept


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
    # If every token may be sampled, skip the indirection over ids: it would cost more than the
    # rest.
    cumulated = np.cumsum(weights if kept is None else weights[kept])
    at = np.searchsorted(cumulated, uniform(sampling.seed, index) * cumulated[-1], side="right")
    # rounding may lead beyond the last token that has a weight
    found = min(int(at), int(np.searchsorted(cumulated, cumulated[-1], side="left")))
    return found if kept is None else int(kept[found])


def _kept(
    scaled: NDArray[np.float64], weights: NDArray[np.float64], sampling: Sampling
) -> NDArray[np.int64] | None:
    """Return the ids that may be sampled, ascending; None = all."""
    if not sampling.min_p and not 0 < sampling.top_k < scaled.size and sampling.top_p == 1.0:
        return None
    kept = np.arange(scaled.size)
    if sampling.min_p > 0:  # relative to the largest weight, which is 1
        kept = np.flatnonzero(weights >= sampling.min_p)
    if 0 < sampling.top_k < kept.size:
        kept = kept[_largest(scaled[kept], sampling.top_k)]
    if sampling.top_p < 1.0:
        kept = _nucleus(scaled, weights, kept, sampling.top_p)
    kept.sort()
    return kept


def _largest(scaled: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the ids of the `count` largest; ties go to the lowest ids."""
    edge = np.partition(scaled, scaled.size - count)[scaled.size - count]
    above = np.flatnonzero(scaled > edge)
    return np.concatenate((above, np.flatnonzero(scaled == edge)[: count - above.size]))


def _nucleus(
    scaled: NDArray[np.float64], weights: NDArray[np.float64], kept: NDArray[np.int64], top_p: float
) -> NDArray[np.int64]:
    """Return the fewest ids, likeliest first, whose
    probabilities sum to top_p (Holtzman et al. 2020)."""
    target = top_p * weights[kept].sum()
    for count in (FIRST_LOOK, kept.size):
        some = kept if count >= kept.size else kept[_largest(scaled[kept], count)]
        ranked = some[np.lexsort((some, -scaled[some]))]
        reached = np.searchsorted(np.cumsum(weights[ranked]), target, side="left") + 1
        if reached <= ranked.size:
            return ranked[:reached]
    return kept
