"""Core objects with one changed decision each."""

from typing import Any

from baton.core.agreement import StepPlan
from baton.core.gateway.front import Front
from baton.core.gateway.request_state import RequestSaw
from baton.core.handoff.plans import Plans
from baton.core.ids import Boot, Micros
from baton.core.messages import FirstToken, Received, Tokens
from baton.core.parts import FrontParts, LeaderParts, RankParts
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import RankEffect
from baton.core.rank.rank_room import RankSaw
from baton.core.scheduler.decode import DecodeLeader
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.prefill import PrefillLeader
from baton.core.scheduler.room import RoomState, Saw
from baton.trace.log import Parts
from baton.trace.replay import make


class EagerFront(Front):
    """Shows the first token before decode has admitted the room."""

    def _receive(self, sender: Boot, message: Any, now: Micros) -> None:
        if isinstance(message, FirstToken) and (request := self.requests.find(message.key, sender)) is not None:
            request.see(RequestSaw.ADMITTED)
        super()._receive(sender, message, now)


class RepeatingFront(Front):
    """Tells what the client has already."""

    def _receive(self, sender: Boot, message: Any, now: Micros) -> None:
        if isinstance(message, Tokens) and (request := self.requests.find(message.key, sender)) is not None:
            request.said = request.said[: message.start]
        super()._receive(sender, message, now)


class KeepingPrefill(PrefillLeader):
    """Does not hear that its pages may go."""

    def _on_received(self, sender: Boot, message: Received, now: Micros) -> None:
        pass


class HastyDecode(DecodeLeader):
    """Commits when the record is there, whether the blocks are or not."""

    def _try_commit(self, room: DecodeRoom) -> None:
        if room.state is RoomState.FETCHING and room.record is not None:
            self.see(room, Saw.ARRIVED)
            self.draft.commit.append(room.key)
            room.committed_at = self._agreement.chain.seq + 1


class ForgetfulDecode(DecodeLeader):
    """Gives a dropped room's pages away at once."""

    def leave(self, room: DecodeRoom, saw: Saw) -> None:
        super().leave(room, saw)
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
    """Makes core objects, some of them of other classes."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds

    def __call__(self, parts: Parts, plans: Plans) -> Any:
        """See replay.make."""
        core = make(parts, plans)
        kind = next((k for k in self._kinds if issubclass(k, type(core))), None)
        if kind is None:
            return core
        match parts:
            case LeaderParts():
                return kind(parts.manifest, parts.settings, dict(parts.totals))
            case RankParts():
                return kind(rank=parts.rank, boot=parts.boot, placements=parts.placements, seal=parts.seal)
            case FrontParts():
                return kind(parts.boot, parts.settings)
