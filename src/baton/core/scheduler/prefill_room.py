"""What a prefill leader keeps of one request: how far its prompt is computed, the sums of its
blocks, and what it borrows."""

from baton.core.agreement import Fetch
from baton.core.handoff.birth_sums import RoomSums
from baton.core.ids import Micros
from baton.core.messages import Ticket
from baton.core.scheduler.room import OpenRoom, no_scores


class PrefillRoom(OpenRoom):
    """A prompt being computed."""

    def __init__(self, ticket: Ticket, now: Micros) -> None:
        super().__init__(ticket, now)
        # a position that is not computed has no logits
        self.scores, self.computes_all = no_scores(ticket), ticket.scores_prompt
        self.ordered = 0  # positions in batches so far
        self.done = 0  # positions computed on every rank
        # positions that will be cached when its turn comes, as it seemed when it came
        self.foreseen = 0
        self.offers = 0
        self.admitted = False
        self.sums: RoomSums = {}  # of its whole blocks, as they were computed
        self.borrowed = 0  # positions whose state was fetched back from decode
        self.asked = False  # whether decode was asked for a checkpoint
        self.answer_by: Micros | None = None  # set while decode is asked what it has of the prompt
        self.loan: Fetch | None = None  # set while it is being read
        self.reads_since = now

    @property
    def cached(self) -> int:
        """Positions of the prompt that were not computed."""
        return self.hit + self.borrowed
