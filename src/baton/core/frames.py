"""What travels on a link, below the sessions. Every frame but Open names both boots and the session's number."""

import msgspec

from baton.core.ids import Boot
from baton.core.messages import AnyMessage


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all frames."""


class Open(Frame, frozen=True, tag="open"):
    """The dialling side: who I am, whom I expect (None: whoever listens), and the highest session number I know of."""

    protocol: int
    src: Boot
    expect: Boot | None
    session: int


class Opened(Frame, frozen=True, tag="opened"):
    """The listening side: the session begins, with this number."""

    protocol: int
    src: Boot
    dst: Boot
    session: int


class Data(Frame, frozen=True, tag="data"):
    """A numbered message; `ack` is the highest number received in order from the other side."""

    src: Boot
    dst: Boot
    session: int
    number: int
    ack: int
    message: AnyMessage


class Beat(Frame, frozen=True, tag="beat"):
    """I am here, and have received up to `ack`."""

    src: Boot
    dst: Boot
    session: int
    ack: int


class Bye(Frame, frozen=True, tag="bye"):
    """The session ends now."""

    src: Boot
    dst: Boot
    session: int
    why: str


class WrongBoot(Frame, frozen=True, tag="wrong_boot"):
    """You spoke to `dst` (or in a session I do not have); here is `src`."""

    src: Boot
    dst: Boot
    meant: Boot
    session: int


class WrongProtocol(Frame, frozen=True, tag="wrong_protocol"):
    """We speak different versions."""

    ours: int
    theirs: int


AnyFrame = Open | Opened | Data | Beat | Bye | WrongBoot | WrongProtocol
