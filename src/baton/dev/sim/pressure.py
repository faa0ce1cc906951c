"""Invariants of a worker while some of its rooms are away in the host store, kept from what its
leader hears and orders.

Checked: blocks that prefill offers for an admitted room, and that the room lacks, are ordered to be
read in the turn in which the offer comes, whatever is being copied; a room that has come back
computes before it is sent away again; rooms come back in their order; and while a room is away only
a bounded number of later ones is admitted, with a higher bound if more urgent ones are counted too.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from baton.core.agreement import StepPlan
from baton.core.effects import Effect, Issue
from baton.core.frames import Said
from baton.core.ids import Boot, GroupName, Key, is_loan
from baton.core.messages import BlockRun, Offer, Ticket

OVERTAKES, URGENT_OVERTAKES = 4, 16  # as the docs say
Seen = tuple[Boot, Key]


Runs = Mapping[GroupName, BlockRun]
# whether a room that holds its pages has to read any of these blocks
Lacks = Callable[[Boot, Key, Runs], bool]


def _all(worker: Boot, key: Key, runs: Runs) -> bool:
    return True


class Pressure:
    """The workers of a world that generate, by boot."""

    def __init__(
        self,
        tickets: Mapping[Key, Ticket],
        violate: Callable[[str, str], None],
        lacks: Lacks = _all,
    ) -> None:
        self._tickets, self._violate, self._lacks = tickets, violate, lacks
        self._next: dict[Seen, int] = {}  # number of the offer that comes next
        self._early: set[Seen] = set()  # an offer came before the ticket, or not in its turn
        # the runs of offers that have come and were not ordered to be read
        self._unread: dict[Seen, list[Runs]] = {}
        self._held: set[Seen] = set()
        self._away: dict[Seen, bool] = {}  # whether it gave up its pages
        self._back: set[Seen] = set()  # rooms that came back and have computed nothing since
        self._passed: Counter[Seen] = Counter()  # by rooms that are behind it in order
        self._passed_in_all: Counter[Seen] = Counter()

    def heard(self, worker: Boot, message: Said) -> None:
        """A leader receives a message. Offers before the ticket may be forgotten, so rooms with
        such offers are not judged."""
        match message:
            case Ticket(key=key, decode=decode) if decode == worker:
                if (worker, key) not in self._early:
                    self._next.setdefault((worker, key), 0)
            case Offer(key=key, number=number) if (worker, key) in self._next:
                if number != self._next[worker, key]:
                    del self._next[worker, key]
                    self._unread.pop((worker, key), None)
                    return
                self._next[worker, key] = number + 1
                self._unread.setdefault((worker, key), []).append(message.runs)
            case Offer(key=key):
                self._early.add((worker, key))
            case _:
                pass

    def acts(self, worker: Boot, name: str, effects: Iterable[Effect]) -> None:
        """A leader's turn is over."""
        for effect in effects:
            if isinstance(effect, Issue):
                self._plan(worker, name, effect.plan)
        held = [key for boot, key in self._unread if boot == worker and (boot, key) in self._held]
        late = [
            key
            for key in held
            if any(self._lacks(worker, key, runs) for runs in self._unread[worker, key] if runs)
        ]
        if late:
            self._violate(
                "read_at_once",
                f"{name} was offered blocks of {_short(late[0])} and does not read them",
            )

    def _plan(self, worker: Boot, name: str, plan: StepPlan) -> None:
        for key in plan.drop:
            self._forget((worker, key))
        for key in plan.vacate:
            if (worker, key) in self._away:
                self._away[worker, key] = True
        # before the rooms that are admitted in the same turn, as it is no longer away
        for back in plan.restore:
            self._return(worker, name, back.key)
        for hold in plan.hold:
            if is_loan(hold.key):
                continue  # it waits for no memory, and nobody waits for it
            if (worker, hold.key) not in self._held and hold.key not in plan.drop:
                self._enter(worker, name, hold.key)
        for fetch in plan.fetch:
            if fetch.follows is None and (worker, fetch.key) in self._next:
                unread = self._unread.get((worker, fetch.key), [])
                at = next(
                    (
                        i
                        for i, runs in enumerate(unread)
                        if runs and self._lacks(worker, fetch.key, runs)
                    ),
                    len(unread),
                )
                del unread[: at + 1]
        for order in plan.offload:
            if (worker, order.key) in self._back:
                self._violate(
                    "runs_between",
                    f"{name} sends {_short(order.key)} away again before it has computed anything",
                )
            self._away[worker, order.key] = False
        self._back -= {(worker, row.key) for row in plan.batch}

    def _enter(self, worker: Boot, name: str, key: Key) -> None:
        self._held.add((worker, key))
        for boot, other in self._away:
            if boot != worker:
                continue
            later = self._tickets[other].came < self._tickets[key].came
            self._passed[boot, other] += self._turn(other) < self._turn(key)
            self._passed_in_all[boot, other] += later or self._turn(other) < self._turn(key)
            if (
                self._passed[boot, other] > OVERTAKES
                or self._passed_in_all[boot, other] > URGENT_OVERTAKES
            ):
                count = f"after {self._passed_in_all[boot, other] - 1} others"
                self._violate(
                    "overtaking",
                    f"{name} admits {_short(key)} while {_short(other)} is away, {count}",
                )

    def _return(self, worker: Boot, name: str, key: Key) -> None:
        self._away.pop((worker, key), None)
        self._passed.pop((worker, key), None)
        self._passed_in_all.pop((worker, key), None)
        self._back.add((worker, key))
        for (boot, other), vacated in self._away.items():
            if boot == worker and vacated and self._turn(other) < self._turn(key):
                self._violate(
                    "overtaking", f"{name} brings back {_short(key)} before {_short(other)}"
                )

    def _forget(self, seen: Seen) -> None:
        for table in (self._next, self._unread, self._away, self._passed, self._passed_in_all):
            table.pop(seen, None)
        self._back.discard(seen)

    def _turn(self, key: Key) -> tuple[int, tuple[int, Boot]]:
        ticket = self._tickets[key]
        return ticket.priority, ticket.came


def _short(key: Key) -> str:
    return f"{key.room[-4:]}.{key.epoch}"
