"""The loans of decode workers to prefill, kept from what their leaders say and hear, without the
code under test.

Checked: only cached pages are lent, or those of a checkpoint that was brought back for the loan,
and they hold what the room's own tokens imply (the cache's book checks this, caches.py); while a
loan is open none of its pages is given to a room; prefill tells the lender of blocks that differ
before it returns the loan. A loan is open from `Loan` until `Returned`, the end of its room on
decode, or the end of the session between the two, whichever is first.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from baton.core.agreement import Ballot, StepPlan, Suspect
from baton.core.frames import Said
from baton.core.ids import Boot, GroupName, Key
from baton.core.messages import Doubt, Ended, Returned, Ticket

Where = tuple[GroupName, int]


class Lent(msgspec.Struct, frozen=True):
    """The content of a loan: the stamps of its positions by block, and whether it was computed from
    damaged memory."""

    blocks: Mapping[int, tuple[int, ...]]
    tainted: bool
    # of a checkpoint: its length, and its stamps in groups that do not last
    length: int = 0
    beside: tuple[int, ...] = ()


class Loans:
    """The loans of a world."""

    def __init__(self, tickets: Mapping[Key, Ticket], violate: Callable[[str, str], None]) -> None:
        self._tickets, self._violate = tickets, violate
        self.lent: dict[Key, Lent] = {}
        self._open: dict[tuple[Boot, Key], frozenset[Where]] = {}  # by decode worker
        self._reads: dict[tuple[Boot, int], Key] = {}  # orders of prefill workers
        self._suspects: dict[Key, set[Suspect]] = {}  # not yet told to the lender
        # how many cached pages, from the first on, a loan needs
        self._chains: dict[tuple[Boot, Key], int] = {}

    def lends(
        self, worker: Boot, key: Key, pages: frozenset[Where], lent: Lent, *, chain: int = 0
    ) -> None:
        """A loan begins. chain: how many cached pages there are up to the last one that is lent"""
        self.lent[key] = lent
        self._open[worker, key], self._chains[worker, key] = pages, chain

    # ---- what prefill says of them --------------------------------------------------------------

    def ordered(self, worker: Boot, plan: StepPlan) -> None:
        """A prefill leader orders loans to be read."""
        self._reads |= {(worker, fetch.order): fetch.key for fetch in plan.fetch if fetch.patient}

    def found(self, worker: Boot, ballots: Iterable[Ballot]) -> None:
        """A rank has told its leader which blocks of a loan differ from their sums."""
        for ballot in ballots:
            if (key := self._reads.get((worker, ballot.order))) is not None:
                self._suspects.setdefault(key, set()).update(ballot.suspects)

    def says(self, to: Boot, message: Said) -> None:
        """A prefill leader sends a message. It must tell the lender of blocks that differ before it
        returns the loan. (A loan that somebody else speaks of is returned, too, and one that is
        spoken of again when the room has ended.)"""
        match message:
            case Ended(key=key):
                self._suspects.pop(key, None)
            case Doubt(key=key, leg=leg, group=group, blocks=blocks):
                self._suspects.get(key, set()).discard(Suspect(leg, group, blocks))
            case Returned(key=key) if to == self._tickets[key].decode and (
                untold := self._suspects.pop(key, None)
            ):
                self._violate(
                    "lender_told",
                    f"the loan for {_short(key)} is returned, and nobody is "
                    f"told of {sorted(untold, key=str)}",
                )
            case _:
                pass

    # ---- what decode does -----------------------------------------------------------------------

    def pinned(self, worker: Boot, pins: int, rooms: int) -> None:
        """A decode worker's turn is over, and its cache has `pins` pins. rooms: how many of them
        open rooms need, at least"""
        due = rooms + sum(self._chains[loan] for loan in self._open if loan[0] == worker)
        if pins < due:
            self._violate(
                "lent_pinned",
                f"{pins} pins on cached pages, and open rooms and loans are due {due}",
            )

    def said(self, worker: Boot, message: Said) -> None:
        """A decode leader sends a message, perhaps that a room has ended."""
        if isinstance(message, Ended):
            self._open.pop((worker, message.key), None)

    def heard(self, worker: Boot, message: Said) -> None:
        """A decode leader receives a message."""
        if isinstance(message, Returned):
            self._open.pop((worker, message.key), None)

    def lost(self, worker: Boot, peer: Boot) -> None:
        """A decode leader has lost a peer."""
        for boot, key in list(self._open):
            if boot == worker and self._tickets[key].prefill == peer:
                del self._open[boot, key]

    def given(self, worker: Boot, where: Where, key: Key) -> None:
        """A page is given to a room of a decode worker, as its own."""
        for (boot, other), pages in self._open.items():
            if boot == worker and where in pages:
                self._violate(
                    "lent_pinned",
                    f"page {where} is given to {_short(key)}, and is lent to "
                    f"prefill for {_short(other)}",
                )


def _short(key: Key) -> str:
    return f"{key.room[-4:]}.{key.epoch}"
