"""Whom a gateway gives a request.

a request ──▶ a price for each worker that could compute its prompt (routing_policy.py) ──the lowest that has room──▶ prefill
            the open rooms of each of its partners ──the fewest, with room and time──▶ decode
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop
from typing import Any

import msgspec

from baton.core.gateway.known_caches import KnownCaches, Places
from baton.core.gateway.page_reservations import PageReservations
from baton.core.gateway.prompt_pages import PageKind, PromptPages
from baton.core.gateway.registered_worker import RegisteredWorker
from baton.core.gateway.routing_policy import RoutingPolicy
from baton.core.gateway.throughput import PendingAnswer
from baton.core.gateway.worker_pairs import Pair
from baton.core.ids import Boot, Micros

TIE = 1.05  # a price so many times the lowest is as good as that
LAST = 1e15  # added to the price of a worker that seems stuck; any other price is lower


class WorkerList(msgspec.Struct, frozen=True):
    """Some workers, in an order."""

    boots: list[Boot]
    workers: list[RegisteredWorker]
    places: dict[PageKind, Places]


class Usable(msgspec.Struct, frozen=True):
    """Who can be given a request: the workers that could compute its prompt, and the partners of
    each, which could generate its answer."""

    sources: WorkerList
    partners: dict[Boot, WorkerList]
    targets: list[RegisteredWorker]  # all partners, each once

    def pairs(self) -> list[Pair]:
        """Return the pairs that a request can be given to."""
        return [(source, b) for source, some in self.partners.items() for b in some.boots]


class WorkerChoice:
    """Chooses among workers that can be given a request."""

    def __init__(
        self,
        policy: RoutingPolicy,
        caches: KnownCaches,
        *,
        workers: Mapping[Boot, RegisteredWorker],
        usable: Callable[[], Usable],
        ahead: Mapping[Pair, PageReservations],
    ) -> None:
        """
        Args:
            workers: those that are registered
            usable: returns who can be given a request
            ahead: by pair, the pages on prefill of rooms that decode has not admitted
        """
        self._policy, self._caches, self._workers = policy, caches, workers
        self._usable, self._ahead = usable, ahead

    def takes_us(self, answer: PendingAnswer, now: Micros) -> int:
        """Return how many microseconds an answer would take on the fastest worker if it began now;
        0 where that is not known."""
        return min((w.takes_us(answer, now) for w in self._usable().targets), default=0)

    def in_time(self, answer: PendingAnswer, now: Micros) -> bool:
        """Return whether some worker has time for an answer, if it has room."""
        return any(w.in_time(answer, now) for w in self._usable().targets)

    def choose(self, prompt: PromptPages, answer: PendingAnswer, now: Micros) -> Pair | None:
        """Return the pair for a request, or None while no pair has room, or time for the answer.

        Of the workers that could compute its prompt, and have room for it, it is the one with the
        lowest price that has a partner with room; of these partners the one with the fewest open
        rooms. If there is none, a prompt may be computed ahead. What no pair could ever hold is
        given to any of them: the worker says why it cannot be served.

        Workers that seem stuck are chosen only where no other one can be.
        """
        sources, tokens = self._usable().sources, prompt.tokens
        if not sources.boots:
            return None
        cached = self.cached(sources, prompt)
        prices = self._policy.prices(sources.workers, cached, tokens, now)
        for i, worker in enumerate(sources.workers):
            prices[i] += LAST if worker.seems_stuck(now) else 0
        ahead: Pair | None = None
        ready: dict[Boot, bool | None] = {}  # of partners: None if they have no room or no time
        for i in self._order(prices, sources.workers):
            source, worker = sources.boots[i], sources.workers[i]
            if not (worker.takes(tokens) and worker.queues() and worker.could_hold(tokens + 1)):
                continue
            for target in self._partners_of(source, prompt, now):
                if target not in ready:
                    ready[target] = self._is_ready(target, tokens, answer, now)
                if ready[target]:
                    return source, target
                pair = source, target
                if ahead is None and ready[target] is False and self._may_run_ahead(pair, tokens):
                    ahead = pair
        if ahead is None and not self._could_hold(tokens + 1):
            return min(self._usable().pairs(), key=lambda p: sum(self._workers[b].load for b in p))
        return ahead

    def _order(self, prices: list[float], workers: list[RegisteredWorker]) -> Iterator[int]:
        """Yield the indices of workers, the lowest price first.

        No prediction is better than TIE: of workers whose prices are as close as that to the
        lowest, the one comes first that was given nothing for the longest time. Otherwise a service
        with little to do would use the cache of a single worker.
        """
        lowest = min(prices)
        bound = lowest * TIE if self._policy.predicts else lowest
        ties = [i for i, price in enumerate(prices) if price <= bound]
        if len(ties) > 1:
            prices = [*prices]
            prices[min(ties, key=lambda i: workers[i].turn)] = lowest - 1
        return _ascending(prices)

    def cached(self, sources: WorkerList, prompt: PromptPages) -> list[int]:
        """Return how much of a prompt will have been computed on each of these workers when its
        turn comes."""
        if not self._policy.uses_caches:
            return [0] * len(sources.boots)
        return self._caches.positions(sources.places, len(sources.boots), prompt, coming=True)

    def _partners_of(self, source: Boot, prompt: PromptPages, now: Micros) -> Iterator[Boot]:
        """Yield the partners of a worker, those that seem stuck last, and the one with the fewest
        open rooms first. Of those with as many, it is the one that has most of the prompt, then the
        one that was given nothing for the longest time."""
        targets = self._usable().partners[source]
        have = [0] * len(targets.boots)
        if self._policy.uses_caches and len(have) > 1:
            have = self._caches.positions(targets.places, len(have), prompt, coming=False)
        order = [
            (w.seems_stuck(now), w.load, -has, w.turn)
            for w, has in zip(targets.workers, have, strict=True)
        ]
        return (targets.boots[i] for i in _ascending(order))

    def _is_ready(
        self, target: Boot, tokens: int, answer: PendingAnswer, now: Micros
    ) -> bool | None:
        """Return whether a worker has room to generate an answer now; None if it may not even be
        given one, because too many wait there, or it would not end in time."""
        worker = self._workers[target]
        if worker.queues() and worker.could_hold(tokens + 1) and worker.in_time(answer, now):
            return worker.generates(tokens + 1)
        return None

    def _could_hold(self, tokens: int) -> bool:
        """Return whether empty pools of some pair would hold so many positions."""
        could = {b: w.could_hold(tokens) for b, w in self._workers.items()}
        return any(
            could[source] and could[target]
            for source, lot in self._usable().partners.items()
            for target in lot.boots
        )

    def _may_run_ahead(self, pair: Pair, tokens: int) -> bool:
        """Return whether prefill may compute a prompt while decode is full. It may, up to the share
        that it states, and one prompt always."""
        prefill, ahead = self._workers[pair[0]], self._ahead.get(pair, PageReservations())
        if pair[0] == pair[1]:
            return True  # its own pages were looked at
        limit = prefill.credits.ahead_pages if prefill.credits is not None else {}
        return not len(ahead) or ahead.leaves(limit, prefill.need(tokens))


def _ascending(prices: Sequence[Any]) -> Iterator[int]:
    """Yield the indices of prices, the lowest first. Seldom is more than the first one taken."""
    first = prices.index(min(prices))
    yield first
    order = [(price, i) for i, price in enumerate(prices) if i != first]
    heapify(order)
    while order:
        yield heappop(order)[1]
