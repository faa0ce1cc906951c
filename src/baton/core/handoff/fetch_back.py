"""The rule that decides whether a prompt's state is fetched back from a decode worker that has it,
or computed again (pure).

    fetch back, if     FIXED_US + bytes / read rate     <     tokens / compute rate

Both rates are measured by this worker: tokens of whole steps by the time that the steps took, and
bytes of earlier fetches by the time from their order to the last verified block. Recent figures
count most. A rate begins with the prior below, which counts for as much as a short measurement. The
rule does not know who else waits for the step or for the network.
"""

from enum import Enum

FIXED_US = 2_000  # for two messages and one plan more than computing needs
COMPUTE_PRIOR = (200.0, 100_000.0)  # tokens, microseconds: 2,000 tokens/s
READ_PRIOR = (10_000_000.0, 10_000.0)  # bytes, microseconds: 1 GB/s
# measured time that a rate remembers; what is older counts less and less
COMPUTE_WINDOW_US, READ_WINDOW_US = 10_000_000.0, 1_000_000.0


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


class PrefillRates:
    """The rates of one prefill worker, and the rule that uses them."""

    def __init__(self, mode: FetchBack) -> None:
        self.mode = mode
        self.compute = DecayingRate(COMPUTE_PRIOR, COMPUTE_WINDOW_US)
        self.read = DecayingRate(READ_PRIOR, READ_WINDOW_US)

    def pays(self, *, tokens: int, nbytes: int) -> bool:
        """Whether to fetch back the state of this many tokens."""
        if self.mode is not FetchBack.AUTO:
            return self.mode is FetchBack.ALWAYS
        return FIXED_US + self.read.time(nbytes) < self.compute.time(tokens)
