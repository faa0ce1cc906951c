"""What a leader keeps of a request whose tokens are generated on its worker: how far its prompt is
computed here, or what was offered of it, ordered, and has arrived."""

from baton.core.agreement import Fetch, Suspect
from baton.core.handoff.brought import Brought
from baton.core.ids import BlockIndex, GroupName, Micros, Seq
from baton.core.memory.prefix_cache import CachedPage
from baton.core.messages import Offer, Record, Ticket
from baton.core.scheduler.generating_room import GeneratingRoom
from baton.core.scheduler.room import no_scores


class DecodeRoom(GeneratingRoom):
    """A request whose tokens are generated here. Its prompt is computed in the same pages, or the
    state of that is fetched from a prefill worker."""

    def __init__(self, ticket: Ticket, now: Micros) -> None:
        super().__init__(ticket, now)
        self.computes = ticket.prefill == ticket.decode
        # ---- of a prompt that is computed here
        if self.computes:
            # a position that is not computed has no logits
            self.scores, self.computes_all = no_scores(ticket), ticket.scores_prompt
        self.ordered = 0  # prompt positions in batches so far
        self.done = 0  # prompt positions computed on every rank
        # positions that will be cached when its turn comes, as it seemed when it came
        self.foreseen = 0
        # ---- of a prompt whose state is fetched
        self.offers: dict[int, Offer] = {}
        self.taken = 0  # offers handed to the ranks as fetch orders: numbers 1 .. taken
        self.open_orders: dict[int, Fetch] = {}
        self.arrived: dict[GroupName, set[BlockIndex]] = {}
        self.record: Record | None = None
        # by order: what differed, and whether prefill found it intact
        self.doubts: dict[int, dict[Suspect, bool]] = {}
        self.committed_at: Seq | None = None
        # the cached pages of its prompt when it was admitted
        self.pinned: tuple[CachedPage, ...] = ()
        self.brought = Brought()
        self.lent = False  # whether a checkpoint was ever lent for it

    @property
    def cached(self) -> int:
        """Positions of the prompt that were not computed: here, or on prefill as its record
        says."""
        return self.hit if self.computes or self.record is None else self.record.cached
