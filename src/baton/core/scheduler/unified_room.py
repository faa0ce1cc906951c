"""What a unified leader keeps of one request."""

from baton.core.handoff.birth_sums import RoomSums
from baton.core.ids import Micros
from baton.core.messages import Ticket
from baton.core.scheduler.generation import Generation


class UnifiedRoom(Generation):
    """A request computed and continued in the same pages."""

    def __init__(self, ticket: Ticket, now: Micros) -> None:
        super().__init__(ticket, now)
        self.ordered = 0  # prompt positions in batches so far
        self.done = 0  # of them computed on every rank
        self.sums: RoomSums = {}  # birth sums of whole blocks
