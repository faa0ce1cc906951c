"""How much of a world's work is done twice: positions of requests that are computed, and how many
of them again."""

from collections import Counter

from baton.core.messages import Ticket


class Work:
    """Counts positions, whichever worker and epoch computes them."""

    def __init__(self) -> None:
        self._times: Counter[tuple[int, int]] = Counter()  # by request and position

    def computed(self, ticket: Ticket, start: int, tokens: int) -> None:
        """A step computes so many positions of a request."""
        request = ticket.sampling.seed
        self._times.update((request, position) for position in range(start, start + tokens))

    @property
    def done(self) -> int:
        """Positions computed, each as often as it was."""
        return self._times.total()

    @property
    def again(self) -> int:
        """Those computed beyond the first time."""
        return self._times.total() - len(self._times)
