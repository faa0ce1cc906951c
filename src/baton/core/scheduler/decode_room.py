"""What a decode leader keeps of one request: what was offered, ordered, and has arrived."""

from baton.core.agreement import Fetch, Suspect
from baton.core.handoff.birth_sums import RoomSums
from baton.core.handoff.brought import Brought
from baton.core.ids import BlockIndex, GroupName, Micros, Seq
from baton.core.memory.prefix_cache import CachedPage
from baton.core.messages import Borrow, Offer, Record, Ticket
from baton.core.scheduler.generation import Generation


class DecodeRoom(Generation):
    """A request whose tokens are generated here."""

    def __init__(self, ticket: Ticket, now: Micros) -> None:
        super().__init__(ticket, now)
        self.offers: dict[int, Offer] = {}
        self.ordered = 0  # offers handed to the ranks as fetch orders: numbers 1 .. ordered
        self.open_orders: dict[int, Fetch] = {}
        self.arrived: dict[GroupName, set[BlockIndex]] = {}
        self.record: Record | None = None
        self.doubts: dict[int, dict[Suspect, bool]] = {}  # by order: what differed, and whether prefill found it intact
        self.committed_at: Seq | None = None
        self.borrow: Borrow | None = None  # that came before the ticket
        self.pinned: tuple[CachedPage, ...] = ()  # what was cached of its prompt when it was admitted
        self.brought = Brought()
        self.sums: RoomSums | None = None  # from its commit on, of its whole blocks; None where some are not known
