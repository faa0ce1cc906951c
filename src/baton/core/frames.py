"""What travels on a link, below the sessions. Every frame of a session names both boots and the
session's number.

`Open` and `WrongProtocol` keep their layout in every version of the protocol, so that two versions
can tell each other that they differ.
"""

from typing import Annotated

import msgspec

from baton.core.agreement import Report, StepPlan
from baton.core.ids import Boot
from baton.core.manifest import Manifest
from baton.core.messages import (
    Abort,
    Admitted,
    AnyMessage,
    Close,
    Ended,
    FirstToken,
    Received,
    Recompute,
    Stale,
    Tokens,
    Trial,
    Withdrawn,
)

# We add to numbers that a peer chose and send them on, so they must stay far below what msgpack can
# carry.
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Join(msgspec.Struct, frozen=True, tag="join", forbid_unknown_fields=True):
    """Rank -> its leader, the first message of their session: a manifest of the worker in which
    this rank is the only one."""

    manifest: Manifest
    pid: int  # of the rank's process
    host_bytes: int = 0  # its host memory for state (`--host-kv-memory`)


# What a session carries: messages between processes; plans, reports and joins between a leader and
# its ranks.
Said = AnyMessage | StepPlan | Report | Join

# A turn may send one of these for every room, and each is small, so neighbours share a frame. The
# size of all others grows with a prompt or a pool: each has its own frame, so that no frame grows
# beyond what the largest message needs.
SMALL: frozenset[type[Said]] = frozenset(
    {Abort, Admitted, Close, Ended, FirstToken, Received, Recompute, Stale, Tokens, Withdrawn}
)

# The sender goes on only when it knows that one of these has arrived.
ACKED_AT_ONCE: frozenset[type[Said]] = frozenset({Trial})


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all frames."""


class Open(Frame, frozen=True, tag="open"):
    """The dialling side: who I am, whom I expect (None: whoever listens), and the highest session
    number that I know."""

    protocol: int
    src: Boot
    expect: Boot | None
    session: Number


class Opened(Frame, frozen=True, tag="opened"):
    """The listening side: the session begins, with this number."""

    protocol: int
    src: Boot
    dst: Boot
    session: Number


class Data(Frame, frozen=True, tag="data"):
    """Messages with the numbers from `number` on. `ack` is the highest number received in order
    from the other side.

    The sender chooses anew which neighbours share a frame each time that it sends them.
    """

    src: Boot
    dst: Boot
    session: Number
    number: Number  # from 1
    ack: Number
    messages: Annotated[tuple[Said, ...], msgspec.Meta(min_length=1)]


class Beat(Frame, frozen=True, tag="beat"):
    """I am here and have received everything up to `ack`. If `held` is not 0 I have that message
    too, but none between the two."""

    src: Boot
    dst: Boot
    session: Number
    ack: Number
    held: Number


class Bye(Frame, frozen=True, tag="bye"):
    """The session ends now."""

    src: Boot
    dst: Boot
    session: Number
    why: str


class WrongBoot(Frame, frozen=True, tag="wrong_boot"):
    """You spoke to `meant`, or in a session that I do not have (0: you opened one). I am `src`."""

    src: Boot
    dst: Boot
    meant: Boot
    session: Number


class WrongProtocol(Frame, frozen=True, tag="wrong_protocol"):
    """We speak different versions."""

    ours: int
    theirs: int


AnyFrame = Open | Opened | Data | Beat | Bye | WrongBoot | WrongProtocol
