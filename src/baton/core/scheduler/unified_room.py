"""What a unified worker keeps of one request."""

from baton.core.ids import Micros
from baton.core.messages import Ticket
from baton.core.scheduler.generating_room import GeneratingRoom
from baton.core.scheduler.room import no_scores


class UnifiedRoom(GeneratingRoom):
    """A request whose prompt is computed here and whose tokens are generated in the same pages."""

    def __init__(self, ticket: Ticket, now: Micros) -> None:
        super().__init__(ticket, now)
        # a position that is not computed has no logits
        self.scores, self.computes_all = no_scores(ticket), ticket.scores_prompt
        self.ordered = 0  # prompt positions in batches so far
        self.done = 0  # prompt positions computed on every rank
        # positions that will be cached when its turn comes, as it seemed when it came
        self.foreseen = 0
