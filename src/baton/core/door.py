"""What the HTTP side of a gateway sends to the request logic (core/gateway/front.py), and what it
receives from it."""

from typing import NewType

import msgspec

from baton.core.ids import Boot, Epoch, Key, Room, TokenId, TokenIndex
from baton.core.messages import Drawn, FailCode, FinishReason, Grammar, Limits, Sampling
from baton.core.prompt_scores import PromptScores
from baton.core.statistics import Durations, Spent

RequestId = NewType("RequestId", int)  # local to one gateway process


class Submit(msgspec.Struct, frozen=True):
    """A validated, tokenized request."""

    request: RequestId
    prompt: tuple[TokenId, ...]
    sampling: Sampling
    limits: Limits
    priority: int = 0  # goes into every ticket
    # (prefill, decode) to be tried: the request goes to these two at once, and to no others
    pair: tuple[Boot, Boot] | None = None
    cache_salt: str = ""  # goes into every ticket too; see there
    grammar: Grammar | None = None  # likewise
    id: str = ""  # of the answer, as the client knows it
    traceparent: str = ""  # by which the client's trace goes on (W3C Trace Context)


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The client is gone, or a stop string was found: end the request everywhere. Nothing more is
    heard of it."""

    request: RequestId
    reason: str


class Emit(msgspec.Struct, frozen=True, tag="emit", gc=False):
    """Tokens of an answer: in order, without gaps and repetitions."""

    request: RequestId
    start: TokenIndex
    drawn: tuple[Drawn, ...]
    cached: int = 0  # with the first token: positions of the prompt whose state was cached
    # with the first token, if they are wanted: the logprobs of the prompt's tokens
    scores: PromptScores | None = None


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """The request ended well. This comes after its last Emit."""

    request: RequestId
    reason: FinishReason
    key: Key | None = None  # its last epoch; None if it never had one


class Fail(msgspec.Struct, frozen=True, tag="fail"):
    """The request failed. Nothing follows."""

    request: RequestId
    code: FailCode
    detail: str
    key: Key | None = None  # as in Finish


class QueueView(msgspec.Struct, frozen=True):
    """The requests that wait at the edge, and counts of those that were refused there, by reason.
    Requests that waited too long count as `timeout`."""

    length: int = 0
    oldest_ms: int = 0  # how long the oldest has waited
    refused: dict[str, int] = {}
    # how long requests waited for their turn; one may have several turns
    waited: Spent = Durations().view()


class RequestView(msgspec.Struct, frozen=True):
    """One open request as its gateway sees it.

    Attributes:
        state: of request_state.py
        age_ms: since it came
        prefill, decode: names of the workers that have it; empty while there are none
    """

    room: Room
    epoch: Epoch
    state: str
    age_ms: int
    prefill: str = ""
    decode: str = ""


class PairView(msgspec.Struct, frozen=True):
    """Two workers, or one that serves alone and is then named twice.

    Attributes:
        fabric: over which the pair hands over; empty if it does not, or need not
        why: why no request is given to the pair; empty if it is used
    """

    prefill: str
    decode: str
    fabric: str = ""
    why: str = ""


class FrontView(msgspec.Struct, frozen=True):
    """Some requests and some pairs, for people who watch. `pairs_left_out`: how many pairs there
    are beyond these."""

    requests: dict[RequestId, RequestView] = {}
    pairs: tuple[PairView, ...] = ()
    pairs_left_out: int = 0


Heard = Emit | Finish | Fail
