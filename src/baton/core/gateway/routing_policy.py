"""Which of the workers that could compute a prompt should do it: a price for each of them, of which
the lowest is taken.

round_robin   each in turn
least_load    the shortest time until it has computed what it has
cache_aware   the longest cached beginning, unless the load is far from even (as SGLang's router)
lmetric       tokens to compute, its own among them, x requests there (LMetric)
mooncake      the shortest predicted TTFT (Mooncake, FAST'25, algorithm 1, without transfers)
priced        predicted wait, and its own work, which delays those that come after it as well

`priced`: work of a request makes everybody wait who comes to that worker before its queue is empty.
These are about as many as wait there now, or as wait at a worker on average if that is more. So its
own work counts once more for each of them, and its wait once. A worker that also generates delays
each of its answers by that work, so it counts once more for each of these, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from typing_extensions import override

from baton.core.gateway.prompt_queue import PromptQueue
from baton.core.ids import Micros

# SGLang's router: the load is uneven if the longest queue exceeds the shortest by so many requests
# and by so many times; a beginning counts if it is so much of the prompt
UNEVEN, UNEVEN_TIMES, ENOUGH = 64, 1.5, 0.3


class Candidate(Protocol):
    """A worker that could compute the prompt."""

    @property
    def queue(self) -> PromptQueue:
        """What it has to compute."""
        ...

    @property
    def turn(self) -> int:
        """When it was last given a request; a higher number is later."""
        ...

    @property
    def cached_pages(self) -> int:
        """How many pages it has cached."""
        ...

    @property
    def streams(self) -> int:
        """How many answers stand still while it computes a prompt."""
        ...


class RoutingPolicy(Protocol):
    """Sets prices."""

    uses_caches: bool  # otherwise `cached` is 0 for all
    predicts: bool  # whether prices are predictions, of which near ones are as good as equal

    def prices(
        self, workers: Sequence[Candidate], cached: Sequence[int], tokens: int, now: Micros
    ) -> list[float]:
        """Return a price for each worker.

        cached: how many positions of the prompt each of them has
        tokens: the length of the prompt
        """
        ...


class RoundRobin(RoutingPolicy):
    """Takes one after the other."""

    uses_caches = predicts = False

    @override
    def prices(
        self, workers: Sequence[Candidate], cached: Sequence[int], tokens: int, now: Micros
    ) -> list[float]:
        return [w.turn for w in workers]


class LeastLoad(RoutingPolicy):
    """Looks at what a worker has to do, and not at what it has cached."""

    uses_caches = predicts = False

    @override
    def prices(
        self, workers: Sequence[Candidate], cached: Sequence[int], tokens: int, now: Micros
    ) -> list[float]:
        return [w.queue.wait_us(now) for w in workers]


class CacheAware(RoutingPolicy):
    """Takes the longest cached beginning; the smallest cache where none is long; the shortest queue
    where the load is uneven."""

    uses_caches, predicts = True, False

    @override
    def prices(
        self, workers: Sequence[Candidate], cached: Sequence[int], tokens: int, now: Micros
    ) -> list[float]:
        queued = [w.queue.prompts for w in workers]
        most, least = max(queued), min(queued)
        if most - least > UNEVEN and most > UNEVEN_TIMES * least:
            return [float(n) for n in queued]
        if max(cached) > ENOUGH * tokens:
            return [float(-n) for n in cached]
        return [float(w.cached_pages) for w in workers]


class LMetric(RoutingPolicy):
    """Multiplies tokens by requests."""

    uses_caches, predicts = True, False

    @override
    def prices(
        self, workers: Sequence[Candidate], cached: Sequence[int], tokens: int, now: Micros
    ) -> list[float]:
        return [
            (w.queue.tokens + tokens - have) * (w.queue.prompts + 1.0)
            for w, have in zip(workers, cached, strict=True)
        ]


class Mooncake(RoutingPolicy):
    """Takes the shortest time to the first token of this request."""

    uses_caches, predicts = True, False

    @override
    def prices(
        self, workers: Sequence[Candidate], cached: Sequence[int], tokens: int, now: Micros
    ) -> list[float]:
        return [wait + work for wait, work in _predicted(workers, cached, tokens, now)]


class Priced(RoutingPolicy):
    """Counts what the request costs all others, too."""

    uses_caches, predicts = True, True

    @override
    def prices(
        self, workers: Sequence[Candidate], cached: Sequence[int], tokens: int, now: Micros
    ) -> list[float]:
        queued = 0
        for w in workers:
            queued += w.queue.prompts
        mean, found = queued / len(workers), []
        for w, (wait, work) in zip(workers, _predicted(workers, cached, tokens, now), strict=True):
            later = w.queue.prompts if w.queue.prompts > mean else mean
            found.append(wait + work * (1 + later + w.streams))
        return found


def _predicted(
    workers: Sequence[Candidate], cached: Sequence[int], tokens: int, now: Micros
) -> Iterator[tuple[float, float]]:
    """Yield each worker's wait, and its work for the prompt, in microseconds. `PromptQueue.wait_us`
    and `PrefillCost.time` are written out: this is done for every worker and every request."""
    for w, have in zip(workers, cached, strict=True):
        queue = w.queue
        work = (tokens - have) * (queue.token_us + queue.pair_us * (have + tokens) / 2)
        wait = queue.free_at - now
        if wait < 0:
            wait = -wait if queue.prompts else 0
        yield wait, work


POLICIES: Mapping[str, RoutingPolicy] = MappingProxyType(
    {
        "priced": Priced(),
        "round_robin": RoundRobin(),
        "least_load": LeastLoad(),
        "cache_aware": CacheAware(),
        "lmetric": LMetric(),
        "mooncake": Mooncake(),
    }
)
