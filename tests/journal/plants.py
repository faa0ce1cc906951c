"""Core objects with one changed decision each."""

from typing import Any

from baton.core.agreement import StepPlan
from baton.core.cores import AnyFront, AnyLeader, AnyRank, FrontParts, LeaderParts, PlainCores, RankParts
from baton.core.decode import DecodeLeader
from baton.core.decode_room import DecodeRoom
from baton.core.front import Front
from baton.core.ids import Boot, Micros, TokenIndex
from baton.core.messages import FirstToken, Received
from baton.core.prefill import PrefillLeader
from baton.core.rank import RankCore
from baton.core.rank_effects import RankEffect
from baton.core.request import Bits, Request
from baton.core.room import RoomState, Saw


class EagerFront(Front):
    """Shows the first token before decode has admitted the room."""

    def _on_first_token(self, sender: Boot, message: FirstToken, now: Micros) -> None:
        request = self._find(message.key, sender)
        if request is not None:
            request.admitted = True
        super()._on_first_token(sender, message, now)


class RepeatingFront(Front):
    """Tells what the client has already."""

    def _take(self, request: Request, start: TokenIndex, drawn: Any, finish: Any, cached: int) -> None:
        if start < len(request.said):
            request.said = request.said[:start]
        super()._take(request, start, drawn, finish, cached)


class CuriousFront(Front):
    """Draws bits that nobody asked for."""

    def on_timer(self, now: Micros) -> None:
        self._bits(8)
        super().on_timer(now)


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

    def apply(self, plan: StepPlan) -> list[RankEffect]:
        effects = super().apply(plan)
        for key in sorted(self._dropping):
            self._dropping.discard(key)
            self._quiet.append(key)
        return effects


class Planted(PlainCores):
    """PlainCores with some classes exchanged."""

    def __init__(self, *kinds: type) -> None:
        super().__init__()
        self._kinds = kinds

    def _find(self, base: type) -> Any:
        return next((k for k in self._kinds if issubclass(k, base)), None)

    def leader(self, parts: LeaderParts) -> AnyLeader:
        prefill, decode = self._find(PrefillLeader), self._find(DecodeLeader)
        if parts.manifest.role == "prefill" and prefill is not None:
            return prefill(parts.manifest, parts.settings, dict(parts.totals))
        if parts.manifest.role == "decode" and decode is not None:
            return decode(parts.manifest, parts.settings, dict(parts.totals))
        return super().leader(parts)

    def rank(self, parts: RankParts) -> AnyRank:
        kind = self._find(RankCore)
        if kind is None:
            return super().rank(parts)
        return kind(rank=parts.rank, boot=parts.boot, placements=parts.placements, seal=parts.seal)

    def front(self, parts: FrontParts, bits: Bits) -> AnyFront:
        kind = self._find(Front)
        return super().front(parts, bits) if kind is None else kind(parts.boot, parts.settings, bits)
