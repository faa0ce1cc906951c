"""Progress contracts between two workers: a room may wait for as long as the worker that it waits
for makes progress.

    room waits ──▶ for its own ranks: orders to read that they settle, in their turn
              └──▶ for the other worker: what it says of itself, `Progress(done)`, while the two share rooms

A room that waits behind others makes no progress through no fault of its own, however long that
takes. So a wait is over only when neither the room nor the worker that it waits for has made
progress for the stated time. If a worker is gone, its session notices.
"""

from baton.core.ids import Boot, Micros

SHARE = 4  # statements come every 1/SHARE of the stated time, so that one of them may be late


class ProgressTracker:
    """Counts what this worker has done, and remembers what others have said of theirs."""

    def __init__(self, us: Boot, patience_ms: int) -> None:
        self._us, self._patience = us, patience_ms * 1000
        # steps of prompts, orders to read, answers to doubts: all that another worker may wait for
        self.done = 0
        self._said, self._said_at = 0, Micros(0)
        self._heard: dict[Boot, tuple[int, Micros]] = {}  # the last number, and when it last grew

    def __len__(self) -> int:
        return len(self._heard)

    def __contains__(self, boot: Boot) -> bool:
        return boot in self._heard

    def did(self, now: Micros) -> None:
        """Count something that another worker, or a room of ours, may wait for."""
        self.done += 1
        self._heard[self._us] = (self.done, now)

    def heard(self, boot: Boot, done: int, now: Micros) -> None:
        """Another worker says how much it has done since it started."""
        known = self._heard.get(boot)
        if known is None or done > known[0]:
            self._heard[boot] = (done, now)

    def lost(self, boot: Boot) -> None:
        """Forget a worker that is gone."""
        self._heard.pop(boot, None)

    def patience_ends(self, boot: Boot, since: Micros) -> Micros:
        """Return when a room has waited too long for that worker, which may be ours. since: when
        the room last made progress"""
        return Micros(
            max(since, self._heard[boot][1] if boot in self._heard else since) + self._patience
        )

    def timer(self) -> Micros | None:
        """Return when there is something to state; None while there is no news."""
        return Micros(self._said_at + self._patience // SHARE) if self.done != self._said else None

    def due(self, now: Micros) -> bool:
        """Whether to state our progress now to all who may wait for us. Once it has returned True,
        the progress counts as stated."""
        at = self.timer()
        if at is None or now < at:
            return False
        self._said, self._said_at = self.done, now
        return True
