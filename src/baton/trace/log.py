"""The records of a log: the parts that the core objects were made of, then one step for each event.

    Header │ LeaderParts, RankParts (a worker) or FrontParts (a gateway) │ Step │ Step │ ...

A step is an event, its time, and its effects. A log never has KV cache; it has prompts and tokens,
as token ids.
"""

from enum import Enum

import msgspec

from baton.core.effects import Effect
from baton.core.events import FrontEvent, LeaderEvent, RankEvent
from baton.core.gateway.request import Say
from baton.core.ids import Micros
from baton.core.parts import FrontParts, LeaderParts, RankParts
from baton.core.rank.rank_effects import RankEffect

FORMAT = 2


class Header(msgspec.Struct, frozen=True, tag="baton_log"):
    """The first record of a file.

    Its layout never changes, so that every version can recognise a file of another version.
    """

    format: int
    protocol: int
    version: str  # of Baton; for people


class CoreKind(Enum):
    """The core object that a step belongs to."""

    LEADER = "leader"
    RANK = "rank"
    FRONT = "front"


class Raised(msgspec.Struct, frozen=True, tag="raised", forbid_unknown_fields=True):
    """The step ended in an exception."""

    kind: str
    text: str


AnyEvent = LeaderEvent | FrontEvent | RankEvent
AnyEffect = Effect | Say | RankEffect | Raised


class Step(msgspec.Struct, frozen=True, tag="step", forbid_unknown_fields=True):
    """One event and its effects."""

    at: Micros
    core: CoreKind
    event: AnyEvent
    effects: tuple[AnyEffect, ...]


Parts = LeaderParts | RankParts | FrontParts
Record = Header | Parts | Step
