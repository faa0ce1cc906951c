"""What a draw needs of a request besides its logits: the tokens so far, if penalties count them,
and the tokens that are not allowed yet.

All of it travels in the step plan of every draw that needs it. So ranks keep no history, and a draw
in a new epoch, on another worker or in another batch sees the same as in the first one. Requests
without penalties that are past their `min_tokens` need nothing.
"""

from collections.abc import Sequence

import msgspec

from baton.core.ids import TokenId
from baton.core.messages import Drawn, Ticket


class Past(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one draw needs of its request."""

    prompt: tuple[TokenId, ...]  # distinct ids, ascending; empty without a repetition penalty
    # tokens generated so far, those of `said` included; empty without any penalty
    answer: tuple[TokenId, ...]
    barred: tuple[TokenId, ...]  # ids that would end the request before its `min_tokens`


def past_of(ticket: Ticket, generated: Sequence[Drawn] = ()) -> Past | None:
    """Return what the draw after `generated` (the tokens of this epoch) needs; None if nothing."""
    shaping, limits = ticket.sampling.shaping, ticket.limits
    early = len(ticket.said) + len(generated) < limits.min_tokens
    repetition = shaping is not None and shaping.repetition_penalty != 1
    counted = repetition or (
        shaping is not None and bool(shaping.presence_penalty or shaping.frequency_penalty)
    )
    if not (early or counted):
        return None
    return Past(
        prompt=tuple(sorted(set(ticket.prompt))) if repetition else (),
        answer=(*ticket.said, *(d.token for d in generated)) if counted else (),
        barred=(*limits.eos_token_ids, *limits.stop_token_ids) if early else (),
    )
