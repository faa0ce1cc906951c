"""Rooms whose tokens are drawn by a grammar: every rank that draws builds it first.

    admitted ──Constrain──▶ ranks build the grammar ──all have voted──▶ the room's tokens may be drawn

Building one takes milliseconds, and some take half a second. Meanwhile the prompt is computed or
fetched, and steps of other rooms go on; only a step that draws a token of this room waits.
"""

from collections.abc import Mapping

from baton.core.agreement import Ballot, Constrain, Vote
from baton.core.ids import Key, Rank
from baton.core.scheduler.admission import Reuse
from baton.core.scheduler.room import UNTOLD, OpenRoom
from baton.core.scheduler.stage import Stage
from baton.core.scheduler.worker import R


class Constraining(Stage[R]):
    """Gives the grammars of a worker's rooms to its ranks."""

    def admitted(self, room: R, reuse: Reuse) -> None:
        if room.state not in UNTOLD:  # else it may have to give up everything again
            self.resumed(room)

    def resumed(self, room: R) -> None:
        """Have the ranks build a room's grammar, if it has one."""
        grammar = room.ticket.grammar
        if grammar is None:
            return
        order = self.worker.new_order()
        room.awaits_grammar = True
        self.worker.orders.expect(order, room.key, self._built)
        self.worker.draft.constrain.append(Constrain(order, room.key, grammar))

    def _built(self, key: Key, order: int, vote: Vote, by_rank: Mapping[Rank, Ballot]) -> None:
        """Every rank can draw tokens of the room. A grammar that cannot be built counts as built,
        and its first draw fails."""
        assert vote is Vote.ARRIVED, "no rank votes otherwise"
        room: OpenRoom = self.worker.rooms[key]
        room.awaits_grammar = False
