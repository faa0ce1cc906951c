"""What a draw needs of a request besides its logits: the tokens so far, if penalties count them or
a grammar goes on from them, and the tokens that are not allowed now.

All of it travels in the step plan of every draw that needs it. So ranks keep no history, and a draw
in a new epoch, on another worker or in another batch sees the same as in the first one. Requests
without penalties, bad words and grammar that are past their `min_tokens` need nothing.

An answer whose grammar begins behind the model's reasoning does not end before: where the grammar
masks nothing yet, end tokens are barred.
"""

from collections.abc import Sequence

import msgspec

from baton.core.ids import TokenId
from baton.core.matchers import begins
from baton.core.messages import Drawn, Shaping, Ticket


class Past(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one draw needs of its request."""

    prompt: tuple[TokenId, ...]  # distinct ids, ascending; empty without a repetition penalty
    # tokens generated so far, those of `said` included; empty without any penalty or grammar
    answer: tuple[TokenId, ...]
    # ids that would end the request before its `min_tokens`, or before its grammar has begun
    barred: tuple[TokenId, ...]
    # whether the draw follows the grammar that the ranks were given for the room; then `answer` is
    # complete
    constrained: bool = False
    bad: tuple[TokenId, ...] = ()  # ids that would complete a bad word


def past_of(ticket: Ticket, generated: Sequence[Drawn] = ()) -> Past | None:
    """Return what the draw after `generated` (the tokens of this epoch) needs; None if nothing."""
    shaping, limits = ticket.sampling.shaping, ticket.limits
    early = len(ticket.said) + len(generated) < limits.min_tokens
    constrained = ticket.grammar is not None
    if shaping is None and not early and not constrained:
        return None  # nearly all draws: what follows is as long as the answer
    answer = (*ticket.said, *(d.token for d in generated))
    repetition = shaping is not None and shaping.repetition_penalty != 1
    counted = shaping is not None and _counts(shaping)
    bad = _completions(shaping.bad_words, answer) if shaping is not None else ()
    if not (early or counted or constrained or bad):
        return None
    return Past(
        prompt=tuple(sorted(set(ticket.prompt))) if repetition else (),
        answer=answer if counted or constrained else (),
        barred=_barred(ticket, answer, early=early),
        constrained=constrained,
        bad=bad,
    )


def _barred(ticket: Ticket, answer: tuple[TokenId, ...], *, early: bool) -> tuple[TokenId, ...]:
    """Return the ids that must not end the answer now. Stop tokens, like stop texts, are the
    client's own: they may end its reasoning."""
    limits, grammar = ticket.limits, ticket.grammar
    if early:
        return (*limits.eos_token_ids, *limits.stop_token_ids)
    if grammar is not None and begins(answer, grammar.after) is None:
        return limits.eos_token_ids
    return ()


def _counts(shaping: Shaping) -> bool:
    """Whether any penalty is on."""
    return shaping.repetition_penalty != 1 or bool(
        shaping.presence_penalty or shaping.frequency_penalty
    )


def _completions(
    words: Sequence[tuple[TokenId, ...]], answer: tuple[TokenId, ...]
) -> tuple[TokenId, ...]:
    """Return the last tokens of the words whose other tokens are the end of the answer. (A word
    with more of them than the answer has is compared with fewer, so it differs.)"""
    return tuple(w[-1] for w in words if answer[len(answer) + 1 - len(w) :] == w[:-1])
