"""The time that reads take: each worker sends one byte after the other, and receives so too."""

from baton.core.ids import Boot
from baton.dev.fleet.profile import WireTimes


class FleetNetwork:
    """Knows until when each worker sends and receives what was asked for so far.

    A read begins when its source has sent, and its target has received, what was asked for before.
    Its latency delays its own end alone.
    """

    def __init__(self, times: WireTimes) -> None:
        self.times = times
        self._sends: dict[Boot, float] = {}
        self._receives: dict[Boot, float] = {}
        self.nbytes = 0  # read so far

    def read(self, source: Boot, target: Boot, nbytes: int, now: float) -> float:
        """Return when a read that is asked for now ends."""
        self.nbytes += nbytes
        begins = max(now, self._sends.get(source, 0.0), self._receives.get(target, 0.0))
        ends = begins + 1e6 * nbytes / self.times.bytes_per_s
        self._sends[source] = self._receives[target] = ends
        return ends + self.times.read_us
