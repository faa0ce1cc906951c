"""What a decode leader keeps of one request: what was offered, ordered, and has arrived."""

from baton.core.agreement import Fetch, Suspect
from baton.core.generation import Generation
from baton.core.ids import BlockIndex, GroupName, Micros, Seq
from baton.core.messages import Offer, Record, Ticket


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
