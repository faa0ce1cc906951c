"""What a decode leader keeps of one request: what was offered, ordered, and has arrived."""

from baton.core.agreement import Fetch, Suspect
from baton.core.handoff.brought import Brought
from baton.core.ids import BlockIndex, GroupName, Micros, Seq
from baton.core.memory.prefix_cache import CachedPage
from baton.core.messages import Offer, Record, Ticket
from baton.core.scheduler.generating_room import GeneratingRoom


class DecodeRoom(GeneratingRoom):
    """A request whose prompt's state is fetched and whose tokens are generated here."""

    def __init__(self, ticket: Ticket, now: Micros) -> None:
        super().__init__(ticket, now)
        self.offers: dict[int, Offer] = {}
        self.ordered = 0  # offers handed to the ranks as fetch orders: numbers 1 .. ordered
        self.open_orders: dict[int, Fetch] = {}
        self.arrived: dict[GroupName, set[BlockIndex]] = {}
        self.record: Record | None = None
        # by order: what differed, and whether prefill found it intact
        self.doubts: dict[int, dict[Suspect, bool]] = {}
        self.committed_at: Seq | None = None
        # the cached pages of its prompt when it was admitted
        self.pinned: tuple[CachedPage, ...] = ()
        self.brought = Brought()

    @property
    def cached(self) -> int:
        """Positions that prefill did not compute, as its record says."""
        return self.record.cached if self.record is not None else 0
