"""What the HTTP side of a gateway says to the request logic (core/gateway/front.py), and what it
hears back."""

from typing import NewType

import msgspec

from baton.core.ids import Boot, Key, TokenId, TokenIndex
from baton.core.messages import Drawn, FailCode, FinishReason, Limits, Sampling
from baton.core.statistics import Durations, Spent

RequestId = NewType("RequestId", int)  # local to one gateway process


class Submit(msgspec.Struct, frozen=True):
    """A validated, tokenized request."""

    request: RequestId
    prompt: tuple[TokenId, ...]
    sampling: Sampling
    limits: Limits
    priority: int = 0  # goes into every ticket
    # (prefill, decode) that are to be tried: it goes to these at once, and to no others
    pair: tuple[Boot, Boot] | None = None
    cache_salt: str = ""  # so does this; see Ticket


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The client is gone, or a stop string was found: end it everywhere. Nothing more is heard of
    the request."""

    request: RequestId
    reason: str


class Emit(msgspec.Struct, frozen=True, tag="emit", gc=False):
    """Tokens in order, no gap, no repeat."""

    request: RequestId
    start: TokenIndex
    drawn: tuple[Drawn, ...]
    cached: int = 0  # with the first token: positions of the prompt whose state was cached


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """The request ended well; comes after its last Emit."""

    request: RequestId
    reason: FinishReason
    key: Key | None = None  # its last epoch; None of a request that never had a room


class Fail(msgspec.Struct, frozen=True, tag="fail"):
    """The request ended badly; nothing follows."""

    request: RequestId
    code: FailCode
    detail: str
    key: Key | None = None  # as in Finish


class QueueView(msgspec.Struct, frozen=True):
    """Who waits at the edge, and who was sent away: new requests by the reason, waiting ones as
    `timeout`."""

    length: int = 0
    oldest_ms: int = 0  # how long the oldest has waited
    refused: dict[str, int] = {}
    # how long those waited that had their turn, each time they had one
    waited: Spent = Durations().view()


Heard = Emit | Finish | Fail
