"""How likely the tokens of a prompt are, from the hidden states of the positions before them.

Logits of a whole prompt would need as many floats as the vocabulary has entries for each of its
tokens, so they are computed for a few positions at a time.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from baton.core.prompt_scores import PromptScores, joined
from baton.engine.ops import lacking, padded

POSITIONS = 64  # whose logits exist at a time

Logits = Callable[[torch.Tensor], torch.Tensor | None]


def score(
    hidden: torch.Tensor,
    tokens: Sequence[int],
    top: int,
    *,
    logits: Logits,
    row_step: int,
    passed: Callable[[], None],
) -> PromptScores | None:
    """Score the token after each position.

    All ranks that have `logits`, which is a collective, make the same calls of it.

    Args:
        hidden: [positions, hidden]
        tokens: what follows each position
        top: how many of the most likely tokens are wanted
        logits: of hidden states, as Model.logits
        row_step: as for `lacking`
        passed: is called for every few positions

    Returns:
        None on ranks without logits
    """
    found: PromptScores | None = PromptScores(top)
    for start in range(0, len(tokens), POSITIONS):
        part = hidden[start : min(start + POSITIONS, len(tokens))]
        values = logits(padded(part, lacking(len(part), row_step)))
        passed()
        if values is None or found is None:
            found = None
            continue
        scored = _scored(values[: len(part)], tokens[start : start + POSITIONS], top)
        found = joined(found, scored)
    return found


def _scored(logits: torch.Tensor, tokens: Sequence[int], top: int) -> PromptScores:
    """Score one token for each row of logits, float32 [rows, vocab]."""
    logprobs = torch.log_softmax(logits, dim=-1)
    own = logprobs.gather(-1, torch.tensor(tokens)[:, None])
    ranks = (logprobs > own).sum(dim=-1) + 1
    tops, ids = torch.topk(logprobs, top, dim=-1)
    return PromptScores(
        top, _packed(own, "<f4"), _packed(ranks, "<u4"), _packed(ids, "<u4"), _packed(tops, "<f4")
    )


def _packed(values: torch.Tensor, dtype: str) -> bytes:
    return np.ascontiguousarray(values.numpy(), dtype=dtype).tobytes()
