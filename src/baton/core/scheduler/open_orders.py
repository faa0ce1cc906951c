"""Orders that every rank votes on (fetches and copies alike): which room each belongs to, and what
follows when the votes are in."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from baton.core.agreement import Agreement, Ballot, Vote
from baton.core.ids import Key, Rank

# arguments: room, order, the votes of all ranks folded into one, the ballots by rank
Counted = Callable[[Key, int, Vote, Mapping[Rank, Ballot]], None]


class AwaitedOrder(msgspec.Struct):
    """An order under way."""

    key: Key
    counted: Counted
    # whether it ends when all ranks have voted; otherwise, as soon as the outcome is decided
    by_all: bool


class OpenOrders:
    """The open orders of one leader."""

    def __init__(self) -> None:
        self._open: dict[int, AwaitedOrder] = {}

    def __len__(self) -> int:
        return len(self._open)

    def expect(self, order: int, key: Key, counted: Counted, *, by_all: bool = False) -> None:
        """Ranks are given an order for a room. `counted` is called once, unless the room is
        forgotten before."""
        self._open[order] = AwaitedOrder(key, counted, by_all)

    def take(self, ballots: Iterable[Ballot], agreement: Agreement) -> None:
        """Take the ballots of a rank, which the agreement already knows."""
        for number in [ballot.order for ballot in ballots if ballot.order in self._open]:
            order = self._open[number]
            vote, by_rank = agreement.verdict(number)
            if vote is Vote.WAITING or (order.by_all and len(by_rank) < agreement.ranks):
                continue
            del self._open[number]
            agreement.settle(number)
            order.counted(order.key, number, vote, by_rank)

    def forget(self, key: Key, agreement: Agreement) -> None:
        """A room holds nothing any more: forget its orders, as ranks will not vote on them."""
        for number in [number for number, order in self._open.items() if order.key == key]:
            del self._open[number]
            agreement.settle(number)
