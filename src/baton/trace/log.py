"""What a log holds: how the core objects of a process were made, then one step for each event that entered them.

    Header │ LeaderParts, RankParts (a worker) or FrontParts (a gateway) │ Step │ Step │ ...

A step is an event, its time, and the effects that came of it. No key/value state is ever in it; prompts and tokens are, as ids.
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
    """First in a file. Its layout stays in every version of the format: two versions must be able to say so."""

    format: int
    protocol: int
    version: str  # of Baton, for people


class CoreKind(Enum):
    """The core object of a process that a step is about."""

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
    """One event and all that came of it."""

    at: Micros
    core: CoreKind
    event: AnyEvent
    effects: tuple[AnyEffect, ...]


Parts = LeaderParts | RankParts | FrontParts
Record = Header | Parts | Step
