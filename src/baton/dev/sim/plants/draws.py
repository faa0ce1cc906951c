"""Draws that are told a wrong past, and tokens of two epochs mixed."""

from collections.abc import Sequence

import msgspec

from baton.core.gateway.request import Request
from baton.core.gateway.router import Pair
from baton.core.messages import Drawn, Ticket
from baton.core.past import Past, past_of
from baton.core.scheduler import computing, generating
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant


def _without_said(ticket: Ticket, generated: Sequence[Drawn] = ()) -> Past | None:
    return past_of(msgspec.structs.replace(ticket, said=()), generated)


def _without_first(ticket: Ticket, generated: Sequence[Drawn] = ()) -> Past | None:
    return past_of(ticket, generated[1:])


def _with_prompt(ticket: Ticket, generated: Sequence[Drawn] = ()) -> Past | None:
    found = past_of(ticket, generated)
    counted = found is not None and bool(found.answer)
    return (
        msgspec.structs.replace(found, answer=(*ticket.prompt, *found.answer))
        if found is not None and counted
        else found
    )


def _past(wrong: object) -> Parts:
    return Parts(
        replaced=tuple(Replaced(module, "past_of", wrong) for module in (computing, generating))
    )


def _keeps_first(self: Request, pair: Pair) -> None:
    first = self.first
    _begin(self, pair)
    self.first = first


_begin = Request.begin


PLANTS = (
    Plant(
        "past_of_this_epoch",
        "after a failover penalties and least lengths do not see what was said before",
        ("right_tokens",),
        None,
        lambda: _past(_without_said),
    ),
    Plant(
        "past_without_first",
        "the token that is handed over is no part of the past that decode's draws are told",
        ("right_tokens",),
        None,
        lambda: _past(_without_first),
    ),
    Plant(
        "prompt_is_penalised",
        "penalties of the answer's tokens count those of the prompt too",
        ("right_tokens",),
        None,
        lambda: _past(_with_prompt),
    ),
    Plant(
        "first_token_kept",
        "a first token that waits for Admitted is kept over a failure, and shown in the next "
        "epoch: the same token, of the last",
        ("right_logprobs",),
        7,
        lambda: Parts(replaced=(Replaced(Request, "begin", _keeps_first),)),
    ),
)
