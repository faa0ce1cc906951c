"""How much of a world's work is done twice: the positions of requests that are computed, and how
many of them were computed before."""

from collections import Counter

from baton.core.messages import Ticket


class Work:
    """Counts positions, whichever worker and epoch computes them."""

    def __init__(self) -> None:
        self._times: Counter[tuple[int, int]] = Counter()  # by request and position

    def computed(self, ticket: Ticket, start: int, tokens: int) -> None:
        """A step computes `tokens` positions of a request, from `start` on."""
        request = ticket.sampling.seed
        self._times.update((request, position) for position in range(start, start + tokens))

    @property
    def done(self) -> int:
        """The number of positions computed, repetitions included."""
        return self._times.total()

    @property
    def again(self) -> int:
        """The number of repetitions among them."""
        return self._times.total() - len(self._times)
