"""No endless waits: pages of a room that decode has not admitted come back in time.

prefill holds ──▶ Admitted ──▶ ..            or, when the ticket's `admit_ms` are over ──▶ dropped

A unified worker has no such wait: it holds a room's pages once it has admitted the room.
"""

from collections.abc import Callable, Mapping

from baton.core.agreement import StepPlan
from baton.core.frames import Said
from baton.core.ids import Boot, Key, is_loan, room_key
from baton.core.messages import Admitted, Ticket
from baton.dev.sim.excuses import DISTURBED, InjectedFault

# between the end of `admit_ms` and the plan that drops the room; the gateway would end it two
# seconds later
SLACK_US = 20_000


class Waits:
    """Judges how long prefill workers hold pages for rooms that wait."""

    def __init__(
        self,
        tickets: Mapping[Key, Ticket],
        faults: list[InjectedFault],
        violate: Callable[[str, str], None],
        now: Callable[[], int],
    ) -> None:
        self._tickets, self._faults, self._violate, self._now = tickets, faults, violate, now
        self._since: dict[tuple[Boot, Key], int] = {}
        self._known: set[tuple[Boot, Key]] = set()  # rooms are given pages more than once

    def ordered(self, worker: Boot, plan: StepPlan) -> None:
        """A leader has issued a plan."""
        for hold in plan.hold:
            ticket = self._tickets[room_key(hold.key)]
            if worker == ticket.prefill != ticket.decode and (worker, hold.key) not in self._known:
                self._known.add((worker, hold.key))
                self._since[worker, hold.key] = self._now()
        for key in plan.drop:
            if not is_loan(key):
                self._ends(worker, key)

    def heard(self, worker: Boot, message: Said) -> None:
        """A leader receives a message."""
        if isinstance(message, Admitted):
            self._ends(worker, message.key)

    def _ends(self, worker: Boot, key: Key) -> None:
        """Judge how long a room has waited. A process that was paused or cut off may be late."""
        held_us = self._now() - self._since.pop((worker, key), self._now())
        most = self._tickets[key].admit_ms * 1000 + SLACK_US
        if held_us > most and not any(f.kind in DISTURBED for f in self._faults):
            what = (
                f"{key.room[-4:]}.{key.epoch} held pages of prefill for {held_us // 1000} "
                "ms without being admitted"
            )
            self._violate("bounded_wait", f"{what}; {most // 1000} ms are the most")
