"""How often a thread looks at a transfer engine that cannot wake it.

    reads of ours under way      every MOVING_WAIT_US
    a peer may read from us      every AWAKE_WAIT_US, until AWAKE_US after the last sign of it
    otherwise                    every ASLEEP_WAIT_US

Looks take turns with the computation of the process: each needs the GIL, and leaves the processor's
caches cold. At one look every millisecond all the time, generation on one core was a fifth slower.
"""

from baton.core.ids import Micros

BUSY_US = 30  # an idle look takes 2 us of processor time; one that takes longer has moved bytes
AWAKE_US = 50_000
SHORTEST_WAIT_US, MOVING_WAIT_US, AWAKE_WAIT_US, ASLEEP_WAIT_US = 20, 100, 1_000, 50_000


class Pace:
    """Says how long to wait before the next look. Waits double from the shortest one while nothing
    moves."""

    def __init__(self) -> None:
        self._wait = 0
        self._awake_until = 0
        self._rested = True  # the thread has slept before this look, so the caches are cold

    def awake(self, now: Micros) -> bool:
        """Whether the thread looks often."""
        return now < self._awake_until

    def attend(self, now: Micros) -> None:
        """Look often for a while: a peer may read from us."""
        self._awake_until = now + AWAKE_US

    def after(self, now: Micros, *, moved: bool, spent_us: float, reading: bool) -> int:
        """Return how long to wait after a look, in microseconds; 0 = look again at once.

        A look after a pause takes longer than BUSY_US even if nothing moves, because the caches are
        cold. The look that follows it without a pause says whether bytes move.

        Args:
            moved: whether a read of ours has progressed
            spent_us: processor time of the look
            reading: whether a read of ours is under way
        """
        busy = spent_us > BUSY_US
        if moved or (busy and not self._rested):
            self._wait = 0
            self.attend(now)
        if moved or busy:
            self._rested = False
            return 0
        longest = AWAKE_WAIT_US if self.awake(now) else ASLEEP_WAIT_US
        if reading:
            longest = MOVING_WAIT_US
        self._wait = min(longest, max(2 * self._wait, SHORTEST_WAIT_US))
        self._rested = True
        return self._wait
