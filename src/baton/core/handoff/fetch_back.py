"""The rule that decides whether a prompt's state is fetched back from a decode worker that has it,
or computed again (pure).

    fetch back, if     FIXED_US + bytes / read rate     <     time to compute the tokens (core/prefill_cost.py)

This worker measures both: how long its steps take, and bytes of earlier fetches by the time from
their order to the last verified block. Recent figures count most. The rate begins with the prior
below, which counts for as much as a short measurement. The rule does not know who else waits for
the step or for the network.
"""

from enum import Enum

FIXED_US = 2_000  # for two messages and one plan more than computing needs
READ_PRIOR = (10_000_000.0, 10_000.0)  # bytes, microseconds: 1 GB/s
# measured time that the rate remembers; what is older counts less and less
READ_WINDOW_US = 1_000_000.0


class FetchBack(Enum):
    """What the operator chooses."""

    AUTO = "auto"  # by the rule above
    ALWAYS = "always"  # whenever decode has any of it
    NEVER = "never"


class DecayingRate:
    """An amount per time, in which recent figures count most."""

    def __init__(self, prior: tuple[float, float], window_us: float) -> None:
        self._amount, self._us = prior
        self._window = window_us

    def saw(self, amount: float, us: float) -> None:
        """Count an amount that was done in a time of `us` microseconds."""
        self._amount, self._us = self._amount + amount, self._us + us
        if self._us > self._window:
            self._amount, self._us = self._amount / 2, self._us / 2

    def time(self, amount: float) -> float:
        """Return in how many microseconds this amount would be done."""
        return amount * self._us / self._amount


class FetchBackRule:
    """The rule of one prefill worker, and the rate at which it reads."""

    def __init__(self, mode: FetchBack) -> None:
        self.mode = mode
        self.read = DecayingRate(READ_PRIOR, READ_WINDOW_US)

    def pays(self, *, compute_us: float, nbytes: int) -> bool:
        """Whether to fetch back state of this size that would take `compute_us` to compute."""
        if self.mode is not FetchBack.AUTO:
            return self.mode is FetchBack.ALWAYS
        return FIXED_US + self.read.time(nbytes) < compute_us
