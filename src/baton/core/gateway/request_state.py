"""The states of a request at its gateway, and what moves it between them.

WAITING ──its turn, and workers have room──▶ GIVEN ──first token──▶ ANSWERED ──decode has memory──▶ ADMITTED ──▶ STREAMING
   ▲                                           └──────────────── decode has memory ───────────────────▲
   ├── an epoch ends without an answer: it goes on in another one ─────────────────────── any of these four
   └── HELD: a suspect begins again only when its last epoch has ended on both sides
"""

from collections.abc import Mapping
from enum import StrEnum


class RequestState(StrEnum):
    """Where a request stands at its gateway."""

    WAITING = "waiting"  # it stands in line at the edge, and no worker has it
    HELD = "held"  # it is a suspect, and begins again when its last epoch has ended on both sides
    GIVEN = "given"  # two workers have its ticket
    # its first token is here, and the client is sent it when decode has admitted the request
    ANSWERED = "answered"
    # decode holds memory for it, so the client is sent the first token as soon as it is here
    ADMITTED = "admitted"
    STREAMING = "streaming"  # decode sends tokens of it, and has no need of prefill any more
    ENDED = "ended"


class RequestSaw(StrEnum):
    """What happens to a request at its gateway."""

    BEGINS = "begins"  # an epoch, on two workers
    FIRST_TOKEN = "first_token"  # prefill has drawn it
    ADMITTED = "admitted"
    TOKENS = "tokens"  # decode has generated some
    AGAIN = "again"  # its epoch has ended without an answer, and it goes on in another one
    HOLD = "hold"  # likewise, and that epoch may have ended a worker
    RELEASED = "released"  # that epoch has ended on both sides
    END = "end"  # it has finished, failed, or been cancelled


WITH_WORKERS = frozenset(
    {RequestState.GIVEN, RequestState.ANSWERED, RequestState.ADMITTED, RequestState.STREAMING}
)

# Prefill and decode speak on sessions of their own, so what one says may come before or after
# anything that the other says.
REQUEST: Mapping[tuple[RequestState, RequestSaw], RequestState] = {
    (RequestState.WAITING, RequestSaw.BEGINS): RequestState.GIVEN,
    (RequestState.WAITING, RequestSaw.END): RequestState.ENDED,
    (RequestState.HELD, RequestSaw.RELEASED): RequestState.WAITING,
    (RequestState.HELD, RequestSaw.END): RequestState.ENDED,
    (RequestState.GIVEN, RequestSaw.FIRST_TOKEN): RequestState.ANSWERED,
    (RequestState.GIVEN, RequestSaw.ADMITTED): RequestState.ADMITTED,
    (RequestState.GIVEN, RequestSaw.TOKENS): RequestState.STREAMING,
    (RequestState.ANSWERED, RequestSaw.FIRST_TOKEN): RequestState.ANSWERED,
    (RequestState.ANSWERED, RequestSaw.ADMITTED): RequestState.ADMITTED,
    (RequestState.ANSWERED, RequestSaw.TOKENS): RequestState.STREAMING,
    (RequestState.ADMITTED, RequestSaw.FIRST_TOKEN): RequestState.ADMITTED,
    (RequestState.ADMITTED, RequestSaw.ADMITTED): RequestState.ADMITTED,
    (RequestState.ADMITTED, RequestSaw.TOKENS): RequestState.STREAMING,
    (RequestState.STREAMING, RequestSaw.FIRST_TOKEN): RequestState.STREAMING,
    (RequestState.STREAMING, RequestSaw.ADMITTED): RequestState.STREAMING,
    (RequestState.STREAMING, RequestSaw.TOKENS): RequestState.STREAMING,
    **{
        (state, RequestSaw.AGAIN): RequestState.WAITING
        for state in RequestState
        if state in WITH_WORKERS
    },
    **{
        (state, RequestSaw.HOLD): RequestState.HELD
        for state in RequestState
        if state in WITH_WORKERS
    },
    **{
        (state, RequestSaw.END): RequestState.ENDED
        for state in RequestState
        if state in WITH_WORKERS
    },
}
