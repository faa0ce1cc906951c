"""What one worker still has to compute of prompts, as its gateway knows it: its last statement, and
the tickets that it did not know of then."""

from collections import deque

from baton.core.ids import Micros
from baton.core.messages import Credits
from baton.core.prefill_cost import PrefillCost


class PromptQueue:
    """The prompts at one worker.

    Attributes:
        measured: whether the worker has said how long prompts take it
        cost: how long they take it
        token_us, pair_us: the two figures of `cost`
        free_at: when it will have computed all of them, as far as is known
        prompts: how many are not computed
        tokens: how many of their tokens are not computed
    """

    def __init__(self) -> None:
        self.measured = False
        self.costs(PrefillCost())
        self.free_at = Micros(0)
        self.prompts = self.tokens = 0
        self._unheard: deque[tuple[int, int, int]] = deque()  # number, tokens, microseconds

    def costs(self, cost: PrefillCost) -> None:
        """Prompts take the worker so long; if it has not said so, they take others so long."""
        self.cost, self.token_us, self.pair_us = cost, cost.token_us, cost.pair_us

    def gives(self, number: int, cached: int, length: int, now: Micros) -> None:
        """A ticket goes out, the `number`-th of this gateway. The worker has `cached` positions of
        its prompt."""
        tokens, us = length - cached, round(self.cost.time(cached, length))
        self._unheard.append((number, tokens, us))
        self._add(tokens, us, now)

    def states(self, credits: Credits, now: Micros) -> None:
        """The worker states what it has to compute, and how long that takes it."""
        backlog = credits.backlog
        if credits.prefill_cost is not None:
            self.measured = True
            self.costs(credits.prefill_cost)
        self.prompts, self.tokens = backlog.prompts, backlog.tokens
        self.free_at = Micros(now + backlog.us)
        while self._unheard and self._unheard[0][0] <= credits.tickets:
            self._unheard.popleft()
        for _, tokens, us in self._unheard:
            self._add(tokens, us, now)

    def wait_us(self, now: Micros) -> int:
        """Return for how long the worker will compute what it has. If that should have ended by
        now, and it has not said so, it may be stuck: it is taken to need as long again as it is
        late."""
        left = self.free_at - now
        if left >= 0:
            return left
        return -left if self.prompts else 0

    def _add(self, tokens: int, us: int, now: Micros) -> None:
        self.prompts += 1
        self.tokens += tokens
        self.free_at = Micros(max(self.free_at, now) + us)
