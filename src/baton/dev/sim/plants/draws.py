"""Draws that are told a wrong past, tokens of two epochs mixed, and logprobs of prompts that are
not whole or get lost."""

from collections.abc import Sequence
from typing import Any

import msgspec

from baton.core.gateway.request import Request
from baton.core.gateway.worker_pairs import Pair
from baton.core.ids import Key
from baton.core.matchers import Matchers
from baton.core.memory.prefix_cache import CachedPage
from baton.core.messages import Drawn, Ticket
from baton.core.past import Past, past_of
from baton.core.prompt_scores import PromptScores
from baton.core.scheduler import computing, generating
from baton.core.scheduler.constraining import Constraining
from baton.core.scheduler.generating import Generating
from baton.core.scheduler.generating_room import GeneratingRoom
from baton.core.scheduler.reuse import Reuse
from baton.core.scheduler.room import OpenRoom
from baton.dev.sim import engine as engine_module
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
    first, scores = self.first, self.scores
    _begin(self, pair)
    self.first, self.scores = first, scores


_begin = Request.begin


def _unconstrained(ticket: Ticket, generated: Sequence[Drawn] = ()) -> Past | None:
    found = past_of(ticket, generated)
    return msgspec.structs.replace(found, constrained=False) if found is not None else None


def _begins_anew(ticket: Ticket, generated: Sequence[Drawn] = ()) -> Past | None:
    return _without_said(ticket, generated) if ticket.grammar else past_of(ticket, generated)


def _ends_at_will(ticket: Ticket, generated: Sequence[Drawn] = ()) -> Past | None:
    found = past_of(ticket, generated)
    early = len(ticket.said) + len(generated) < ticket.limits.min_tokens
    return found if found is None or early else msgspec.structs.replace(found, barred=())


class NeverBack(Matchers[Any]):
    """Gives the matcher of an ended room to the next one as it is."""

    def release(self, key: Key) -> None:
        room = self._rooms.pop(key)
        room.accepted = ()
        self._spares[room.grammar] = room


def _awaits_nothing(self: Constraining[Any], room: OpenRoom, reuse: Sequence[CachedPage]) -> None:
    _admitted(self, room, reuse)
    room.awaits_grammar = False


_admitted = Constraining.admitted


def _reuses_for_scores(
    self: Reuse, room: OpenRoom, *, leaving: int | None = None
) -> Sequence[CachedPage]:
    computes_all, room.computes_all = room.computes_all, False
    found = _find(self, room, leaving=leaving)
    room.computes_all = computes_all
    return found


_find = Reuse.find


def _of_the_last_chunk(first: PromptScores, then: PromptScores) -> PromptScores:
    return then


def _says_no_scores(self: Generating[Any], room: GeneratingRoom) -> None:
    room.scores = None


PLANTS = (
    Plant(
        "cache_reused_for_scores",
        "a request that wants its prompt's logprobs reuses what is cached: positions that are not "
        "computed have none",
        ("right_prompt_logprobs",),
        None,
        lambda: Parts(replaced=(Replaced(Reuse, "find", _reuses_for_scores),)),
    ),
    Plant(
        "scores_of_the_last_chunk",
        "of a prompt's logprobs those of its last chunk replace those before",
        ("right_prompt_logprobs",),
        None,
        lambda: Parts(replaced=(Replaced(computing, "joined", _of_the_last_chunk),)),
    ),
    Plant(
        "scores_not_handed_over",
        "decode does not say the prompt's logprobs: they are lost where its tokens are the first",
        ("no_spurious_failure", "healed_succeeds"),
        None,
        lambda: Parts(replaced=(Replaced(Generating, "_tell_scores", _says_no_scores),)),
    ),
    Plant(
        "first_token_unmasked",
        "prefill draws the first token without the grammar, which begins on decode",
        ("follows_grammar",),
        None,
        lambda: Parts(replaced=(Replaced(computing, "past_of", _unconstrained),)),
    ),
    Plant(
        "ends_before_its_grammar",
        "an answer may end before its grammar has begun, as a model may while it reasons",
        ("right_tokens",),
        None,
        lambda: _past(_ends_at_will),
    ),
    Plant(
        "matcher_not_rebuilt",
        "in a new epoch the matcher of a grammar begins anew and does not see what was said",
        ("follows_grammar",),
        None,
        lambda: _past(_begins_anew),
    ),
    Plant(
        "grammar_not_awaited",
        "a token is drawn as soon as it can be, and its grammar is still being built",
        ("follows_grammar",),
        None,
        lambda: Parts(replaced=(Replaced(Constraining, "admitted", _awaits_nothing),)),
    ),
    Plant(
        "matcher_not_rolled_back",
        "the matcher of an ended room serves the next one with the same grammar, and is not taken "
        "back to the beginning",
        ("follows_grammar",),
        None,
        lambda: Parts(replaced=(Replaced(engine_module, "Matchers", NeverBack),)),
    ),
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
        ("right_logprobs", "right_prompt_logprobs"),
        7,
        lambda: Parts(replaced=(Replaced(Request, "begin", _keeps_first),)),
    ),
)
