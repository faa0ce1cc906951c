"""Core objects with one changed decision each."""

from typing import Any

import pytest

from baton.core import parts as core_parts
from baton.core.agreement import StepPlan
from baton.core.gateway.front import Front
from baton.core.gateway.request_state import RequestSaw
from baton.core.handoff.plans import Plans
from baton.core.ids import Boot, Micros
from baton.core.messages import FirstToken, Received, Tokens
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import RankEffect
from baton.core.rank.rank_room import RankSaw
from baton.core.scheduler import leader, roles
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.fetching import Fetching
from baton.core.scheduler.offering import Offering
from baton.core.scheduler.room import RoomState, Saw
from baton.core.scheduler.worker import Worker
from baton.trace.log import Parts
from baton.trace.replay import make


class EagerFront(Front):
    """Shows the first token before decode has admitted the room."""

    def _receive(self, sender: Boot, message: Any, now: Micros) -> None:
        if (
            isinstance(message, FirstToken)
            and (request := self.requests.find(message.key, sender)) is not None
        ):
            request.see(RequestSaw.ADMITTED)
        super()._receive(sender, message, now)


class RepeatingFront(Front):
    """Tells what the client has already."""

    def _receive(self, sender: Boot, message: Any, now: Micros) -> None:
        if (
            isinstance(message, Tokens)
            and (request := self.requests.find(message.key, sender)) is not None
        ):
            request.said = request.said[: message.start]
        super()._receive(sender, message, now)


class KeepingPrefill(Offering):
    """Does not hear that its pages may go."""

    def _on_received(self, sender: Boot, message: Received) -> None:
        pass


class HastyDecode(Fetching):
    """Commits when the record is there, whether the blocks are or not."""

    def _try_commit(self, room: DecodeRoom) -> None:
        if room.state is RoomState.FETCHING and room.record is not None:
            self.worker.see(room, Saw.ARRIVED)
            self.worker.draft.commit.append(room.key)
            room.committed_at = self.worker.next_seq


class ForgetfulWorker(Worker[Any]):
    """Gives a dropped room's pages away at once, on decode."""

    def leave(self, room: Any, saw: Saw) -> None:
        super().leave(room, saw)
        if self.manifest.role == "decode":
            self.ledger.give_back(room.key)


class LoudRank(RankCore):
    """Says quiet without looking."""

    def _apply(self, plan: StepPlan) -> list[RankEffect]:
        effects = super()._apply(plan)
        for key in sorted(self.rooms.dropped):
            self.rooms.see(key, RankSaw.QUIET)
            self.draft.is_quiet(key)
        return effects


class Planted:
    """Makes core objects, some of them of other classes, or with other parts."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds

    def __call__(self, parts: Parts, plans: Plans) -> Any:
        """As replay.make does."""
        with pytest.MonkeyPatch.context() as patch:
            for kind in self._kinds:
                shipped = kind.__bases__[0].__name__.split("[")[0]
                for module in (roles, leader, core_parts):
                    if shipped in vars(module):
                        patch.setattr(module, shipped, kind)
            return make(parts, plans)
