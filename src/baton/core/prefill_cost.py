"""How long prompts take a worker to compute, as it has measured it, and how much of them it still
has to compute.

    time of a step = token_us x tokens + pair_us x pairs of a token and a position up to it

The first term is the work that each token needs by itself, the second is attention. Both are fitted
to the steps of late by least squares.
"""

from typing import Annotated

import msgspec

from baton.core.ids import Micros

WINDOW_US = 10_000_000.0  # measured time that is remembered; what is older counts less and less
PRIOR_TOKENS, PRIOR_US = 200.0, 100_000.0  # before anything is measured: 2,000 tokens/s
# and so many pairs in no time: else the first steps, which are short, would say what pairs cost
PRIOR_PAIRS = 1_000_000.0

Cost = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class PrefillCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The time that a worker needs for a prompt.

    Attributes:
        token_us: microseconds for each token
        pair_us: microseconds for each pair of a token and a position at or before it
    """

    token_us: Cost = PRIOR_US / PRIOR_TOKENS
    pair_us: Cost = 0.0

    def time(self, start: int, end: int) -> float:
        """Return the microseconds for the positions in [start, end) of a prompt, where those before
        `start` are computed already."""
        return (end - start) * (self.token_us + self.pair_us * (start + end) / 2)


class Backlog(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What a worker still has to compute of the prompts that it was given.

    Attributes:
        prompts: prompts of which something is not computed
        tokens: their tokens that are not computed, less those that are cached
        us: microseconds that the worker will need for them, as it predicts
    """

    prompts: Count = 0
    tokens: Count = 0
    us: Count = 0

    def __add__(self, other: "Backlog") -> "Backlog":
        return Backlog(self.prompts + other.prompts, self.tokens + other.tokens, self.us + other.us)


class MeasuredPrefill:
    """Fits a worker's `PrefillCost` to the steps that it has run."""

    def __init__(self) -> None:
        self._began: list[tuple[Micros, int, int]] = []  # steps under way: when, tokens, pairs
        self._ended = Micros(0)  # when the last step ended
        self._us = PRIOR_US
        # sums over steps of products of tokens, pairs and microseconds
        self._tt, self._tu = PRIOR_TOKENS**2, PRIOR_TOKENS * PRIOR_US
        self._tp, self._pp, self._pu = 0.0, PRIOR_PAIRS**2, 0.0
        self.cost = PrefillCost()
        self.seen = False  # whether any step was

    @property
    def under_way(self) -> list[tuple[Micros, int, int]]:
        """The steps that have begun: when, with how many tokens, and with how many pairs."""
        return self._began

    def stepping(self, tokens: int, pairs: int, now: Micros) -> None:
        """A step begins. It has this many tokens of prompts; none if it only generates."""
        self._began.append((now, tokens, pairs))

    def stepped(self, now: Micros) -> None:
        """The oldest step under way has ended."""
        began, tokens, pairs = self._began.pop(0)
        if tokens:
            self.saw(tokens, pairs, max(1, now - max(began, self._ended)))
        self._ended = now

    def saw(self, tokens: float, pairs: float, us: float) -> None:
        """Count a step that took this many microseconds."""
        self._us += us
        self.seen = True
        self._tt, self._tp, self._pp, self._tu, self._pu = (
            self._tt + tokens * tokens,
            self._tp + tokens * pairs,
            self._pp + pairs * pairs,
            self._tu + tokens * us,
            self._pu + pairs * us,
        )
        if self._us > WINDOW_US:
            self._us /= 2
            self._tt, self._tp, self._pp, self._tu, self._pu = (
                x / 2 for x in (self._tt, self._tp, self._pp, self._tu, self._pu)
            )
        self.cost = self._fit()

    def _fit(self) -> PrefillCost:
        """Return the two costs of least squares. Neither is negative: where steps are too much
        alike to tell the two apart, tokens alone account for the time."""
        det = self._tt * self._pp - self._tp * self._tp
        if det > 1e-6 * self._tt * self._pp:
            token = (self._tu * self._pp - self._pu * self._tp) / det
            pair = (self._pu * self._tt - self._tu * self._tp) / det
            if token > 0 and pair >= 0:
                return PrefillCost(token, pair)
        return PrefillCost(self._tu / self._tt, 0.0)
