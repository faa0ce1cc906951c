"""The machine's monotonic clock."""

import time

from baton.core.ids import Micros


class MonotonicClock:
    """Implements ports.clock.Clock."""

    def now(self) -> Micros:
        """Microseconds since an arbitrary start."""
        return Micros(time.monotonic_ns() // 1000)
