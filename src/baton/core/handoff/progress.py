"""Progress contracts between two workers: a room may wait as long as whoever it waits for goes on
with its work.

    room waits ──▶ for its own ranks: orders to read that they settle, in their turn
              └──▶ for the other worker: what it says of itself, `Progress(done)`, while the two share rooms

A room that waits behind others stands still through no fault of its own, however long that takes.
So a wait is over only when neither the room nor the one it waits for has moved for the stated time.
A worker that is gone is noticed by its session.
"""

from baton.core.ids import Boot, Micros

SHARE = 4  # of the stated time passes between two statements at most: one of them may be late


class ProgressTracker:
    """What this worker has done, and what it has heard of others."""

    def __init__(self, us: Boot, patience_ms: int) -> None:
        self._us, self._patience = us, patience_ms * 1000
        # steps of prompts, orders to read, answers to doubts: whatever another worker may wait for
        self.done = 0
        self._said, self._said_at = 0, Micros(0)
        self._heard: dict[Boot, tuple[int, Micros]] = {}  # the last number, and when it last grew

    def __len__(self) -> int:
        return len(self._heard)

    def __contains__(self, boot: Boot) -> bool:
        return boot in self._heard

    def did(self, now: Micros) -> None:
        """Something was done that another worker, or a room of ours, may wait for."""
        self.done += 1
        self._heard[self._us] = (self.done, now)

    def heard(self, boot: Boot, done: int, now: Micros) -> None:
        """What another worker has done since it started."""
        known = self._heard.get(boot)
        if known is None or done > known[0]:
            self._heard[boot] = (done, now)

    def lost(self, boot: Boot) -> None:
        """That worker is gone."""
        self._heard.pop(boot, None)

    def patience_ends(self, boot: Boot, since: Micros) -> Micros:
        """When a room that has moved last at `since` has waited for that worker, or for us, for too
        long."""
        return Micros(
            max(since, self._heard[boot][1] if boot in self._heard else since) + self._patience
        )

    def timer(self) -> Micros | None:
        """When there is something to state; None while there is no news."""
        return Micros(self._said_at + self._patience // SHARE) if self.done != self._said else None

    def due(self, now: Micros) -> bool:
        """Whether it is stated now to all who may wait for us; asked once, it counts as stated."""
        at = self.timer()
        if at is None or now < at:
            return False
        self._said, self._said_at = self.done, now
        return True
