"""The workers that one gateway knows: which pairs there are, what each has room and time for, and
whom to give a request.

    a request ──▶ a price for each worker that could compute its prompt (routing_policy.py) ──the lowest that has room──▶ prefill
                the open rooms of each of its partners ──the fewest, with room and time──▶ decode

What does not fit waits at the gateway, where it holds nothing.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop
from itertools import product
from typing import Any

import msgspec

from baton.core.door import PairView
from baton.core.gateway.known_caches import KnownCaches, Places
from baton.core.gateway.page_reservations import PageReservations
from baton.core.gateway.prompt_pages import PromptPages, page_kind
from baton.core.gateway.registered_worker import RegisteredWorker
from baton.core.gateway.request import DECODE, PREFILL
from baton.core.gateway.routing_policy import RoutingPolicy
from baton.core.gateway.throughput import PendingAnswer
from baton.core.ids import Boot, Key, Micros
from baton.core.messages import CacheChanged, Credits, Register, Ticket

TIE = 1.05  # a price so many times the lowest is as good as that
LAST = 1e15  # added to the price of a worker that seems stuck; any other price is lower
Pair = tuple[Boot, Boot]


class WorkerList(msgspec.Struct, frozen=True):
    """Some workers, in an order."""

    boots: list[Boot]
    workers: list[RegisteredWorker]
    places: Places


class Usable(msgspec.Struct, frozen=True):
    """Who can be given a request: the workers that could compute its prompt, and the partners of
    each, which could generate its answer."""

    sources: WorkerList
    partners: dict[Boot, WorkerList]
    targets: list[RegisteredWorker]  # all partners, each once


class Router:
    """Knows the workers and their pairs, and what each pair has room and time for."""

    def __init__(
        self, introduce_again_ms: int, policy: RoutingPolicy, *, local_prefill: bool = False
    ) -> None:
        """local_prefill: whether decode workers may compute prompts themselves"""
        self._again, self._policy = introduce_again_ms * 1000, policy
        self._local = local_prefill
        self.caches = KnownCaches()
        self._known: Usable | None = None  # None after a change
        self._turn = 0
        self._all: dict[Boot, RegisteredWorker] = {}
        self._pairs: dict[Pair, str] = {}  # (prefill, decode) -> fabric
        self._introduce: dict[Pair, Micros] = {}  # try again at
        self._refusals: dict[Pair, str] = {}  # the last reason of a pair that is none
        # pages on prefill of rooms that decode has not admitted
        self._ahead: dict[Pair, PageReservations] = {}

    def __contains__(self, boot: Boot) -> bool:
        return boot in self._all

    def __iter__(self) -> Iterator[Boot]:
        return iter(self._all)

    def get(self, boot: Boot) -> RegisteredWorker | None:
        """Return the worker of that boot, or None."""
        return self._all.get(boot)

    # ---- who is there ---------------------------------------------------------------------------

    def registers(self, boot: Boot, message: Register) -> list[Pair]:
        """A worker has registered. Returns the pairs that are to be introduced; there are none if
        it had registered before."""
        if boot in self._all:
            return []
        worker = self._all[boot] = RegisteredWorker(message)
        self.caches.joins(boot, page_kind(message.manifest), caches=message.caches)
        self._known = None
        others = [
            (b, w) for b, w in self._all.items() if {worker.role, w.role} == {PREFILL, DECODE}
        ]
        return [(boot, b) if worker.role == PREFILL else (b, boot) for b, _ in others]

    def lost(self, boot: Boot) -> RegisteredWorker | None:
        """A worker is gone, with all its pairs. Returns it, or None if it was not registered."""
        self._pairs = {p: fabric for p, fabric in self._pairs.items() if boot not in p}
        self._introduce = {p: at for p, at in self._introduce.items() if boot not in p}
        self._refusals = {p: why for p, why in self._refusals.items() if boot not in p}
        self._ahead = {p: tab for p, tab in self._ahead.items() if boot not in p}
        self._known = None
        worker = self._all.pop(boot, None)
        if worker is not None:
            self.caches.leaves(boot)
        return worker

    def paired(self, pair: Pair, fabric: str) -> bool:
        """Two workers have proved that they fit. Returns whether both are registered in these
        roles; else nothing changes."""
        if not self._are(pair):
            return False
        self._refusals.pop(pair, None)
        self._pairs[pair] = fabric
        self._known = None
        return True

    def unpaired(self, pair: Pair, why: str, now: Micros) -> Micros | None:
        """Two workers do not fit, or not any more. Returns when they are to be introduced again."""
        self._pairs.pop(pair, None)
        self._known = None
        if not self._are(pair):
            return None
        self._refusals[pair] = why
        return self._later(pair, now)

    def _are(self, pair: Pair) -> bool:
        """Return whether the two are registered as a prefill and a decode worker."""
        return [w.role for boot in pair if (w := self._all.get(boot)) is not None] == [
            PREFILL,
            DECODE,
        ]

    def doubt(self, pair: Pair, now: Micros) -> Micros | None:
        """One of the two says that it has lost the other: the pair is not used until decode says
        Paired again."""
        self._known = None
        return self._later(pair, now) if self._pairs.pop(pair, None) is not None else None

    def _later(self, pair: Pair, now: Micros) -> Micros:
        self._introduce[pair] = at = Micros(now + self._again)
        return at

    def introduced(self, pair: Pair) -> None:
        """The two have just been told of each other."""
        self._introduce.pop(pair, None)

    def introductions(self) -> dict[Pair, Micros]:
        """Return the pairs that are to be introduced again, and when."""
        return self._introduce

    def usable_pairs(self) -> list[Pair]:
        """Return the pairs (prefill, decode) that a request can be given to; a worker that computes
        prompts and generates answers is a pair by itself."""
        return [(source, b) for source, some in self._usable().partners.items() for b in some.boots]

    def is_usable(self, pair: Pair) -> bool:
        """Return whether a request can be given to this pair."""
        partners = self._usable().partners.get(pair[0])
        return partners is not None and pair[1] in partners.boots

    @property
    def has_pair(self) -> bool:
        """Whether there is a pair that a request can be given to."""
        return bool(self._usable().partners)

    def _usable(self) -> Usable:
        """Return who can be given a request."""
        if self._known is None:
            found: dict[Boot, list[Boot]] = {}
            alone = [
                (b, b) for b, w in self._all.items() if w.serves_alone(local_prefill=self._local)
            ]
            for pair in (*alone, *self._pairs):
                if not any(self._all[boot].draining for boot in pair):
                    found.setdefault(pair[0], []).append(pair[1])
            partners = {source: self._list(some) for source, some in found.items()}
            targets = {b: self._all[b] for some in found.values() for b in some}
            self._known = Usable(self._list(list(found)), partners, list(targets.values()))
        return self._known

    def _list(self, boots: list[Boot]) -> WorkerList:
        return WorkerList(boots, [self._all[b] for b in boots], self.caches.places(boots))

    def registered(self) -> list[Register]:
        """Return all workers as they have registered."""
        return [w.register for w in self._all.values()]

    def refusals(self) -> list[str]:
        """Return which pairs cannot hand over, and why not."""
        name = {boot: worker.register.name for boot, worker in self._all.items()}
        return [
            f"{name[d]} and {name[p]} do not fit: {why}"
            for (p, d), why in self._refusals.items()
            if {p, d} <= name.keys()
        ]

    def pair_views(self) -> Iterator[PairView]:
        """Yield all pairs: those that are refused first, then those that are used, then those that
        are not ready."""
        name = {boot: worker.register.name for boot, worker in self._all.items()}
        for (p, d), why in self._refusals.items():
            yield PairView(name[p], name[d], why=why)
        for p, d in self.usable_pairs():
            yield PairView(name[p], name[d], self._pairs.get((p, d), ""))
        sources, targets = (
            [boot for boot, worker in self._all.items() if worker.role == role]
            for role in (PREFILL, DECODE)
        )
        for p, d in product(sources, targets):
            if (p, d) not in self._pairs and (p, d) not in self._refusals:
                yield PairView(name[p], name[d], why="they have not connected to each other yet")
            elif (p, d) in self._pairs and not self.is_usable((p, d)):
                leaving = [name[boot] for boot in (p, d) if self._all[boot].draining]
                yield PairView(name[p], name[d], why=f"{' and '.join(leaving)} drains")

    def credits(self) -> dict[str, Credits]:
        """Return what workers last said of their capacity, by name."""
        return {w.register.name: w.credits for w in self._all.values() if w.credits is not None}

    @property
    def unadmitted(self) -> int:
        """How many requests were given out for which no worker holds memory to generate in."""
        return sum(worker.unadmitted for worker in self._all.values() if worker.role != PREFILL)

    # ---- what they hold -------------------------------------------------------------------------

    def states(self, boot: Boot, credits: Credits, now: Micros) -> bool:
        """A worker states its capacity. Returns whether it is to be asked for what it has cached,
        because changes of that were lost."""
        worker = self._all[boot]
        drained = worker.draining
        worker.states(credits, now)
        if worker.draining != drained:
            self._known = None
        if credits.prefill_cost is not None:
            # supposed of those that have computed nothing yet, so that they will
            for other in self._all.values():
                if not other.queue.measured:
                    other.queue.costs(credits.prefill_cost)
        return self.caches.stated(boot, credits.cache_changes, now)

    def cache_changed(self, boot: Boot, message: CacheChanged, now: Micros) -> bool:
        """A worker's prefix cache has changed. Returns whether it is to be asked for all that it
        has cached."""
        missed = self.caches.changed(boot, message, now)
        self._all[boot].cached_pages = self.caches.count(boot)
        return missed

    def gives(
        self, ticket: Ticket, answer: PendingAnswer, prompt: PromptPages, now: Micros
    ) -> None:
        """A ticket goes out to both sides of a pair."""
        pair, tokens = (ticket.prefill, ticket.decode), len(ticket.prompt) + len(ticket.said)
        self._turn += 1
        for boot in sorted(set(pair)):
            self._all[boot].gives(ticket, tokens + (boot == ticket.decode), answer, self._turn)
        cached = self._cached(self._list([ticket.prefill]), prompt)[0]
        self._all[ticket.prefill].computes(cached, tokens, now)
        if self._policy.uses_caches:
            self.caches.gives(ticket.prefill, ticket.key, prompt)
        self._ahead.setdefault(pair, PageReservations()).add(
            ticket.key, self._all[ticket.prefill].need(tokens)
        )

    def full(self, boot: Boot) -> None:
        """A worker has refused a room because too many wait there."""
        if (worker := self._all.get(boot)) is not None:
            worker.full()

    def admits(self, boot: Boot, key: Key) -> None:
        """Decode holds pages for a room."""
        if (worker := self._all.get(boot)) is not None:
            worker.admits(key)
        self._not_ahead(boot, key)

    def owes(self, boot: Boot, key: Key, now: Micros) -> None:
        """A worker is asked to end an epoch that has failed."""
        if (worker := self._all.get(boot)) is not None:
            worker.owes(key, now)

    def made(self, boot: Boot, key: Key, tokens: int, now: Micros) -> None:
        """A decode worker has generated tokens of an answer."""
        if (worker := self._all.get(boot)) is not None:
            worker.made(key, tokens, now)

    def ended(self, boot: Boot, key: Key, now: Micros) -> None:
        """A side holds nothing of an epoch any more."""
        if (worker := self._all.get(boot)) is not None:
            worker.ended(key, now)
        self.caches.ended(boot, key)
        self._not_ahead(boot, key)

    def _not_ahead(self, boot: Boot, key: Key) -> None:
        for pair, tab in self._ahead.items():
            if boot in pair:
                tab.drop(key)

    def takes_us(self, answer: PendingAnswer, now: Micros) -> int:
        """Return how many microseconds an answer would take on the fastest worker if it began now;
        0 where that is not known."""
        return min((w.takes_us(answer, now) for w in self._usable().targets), default=0)

    def in_time(self, answer: PendingAnswer, now: Micros) -> bool:
        """Return whether some worker has time for an answer, if it has room."""
        return any(w.in_time(answer, now) for w in self._usable().targets)

    # ---- whom to give a request -----------------------------------------------------------------

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
        cached = self._cached(sources, prompt)
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
            return min(self.usable_pairs(), key=lambda p: sum(self._all[b].load for b in p))
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

    def _cached(self, sources: WorkerList, prompt: PromptPages) -> list[int]:
        """Return how much of a prompt will have been computed on each of these workers when its
        turn comes."""
        if not self._policy.uses_caches:
            return [0] * len(sources.boots)
        return self.caches.positions(sources.places, len(sources.boots), prompt, coming=True)

    def _partners_of(self, source: Boot, prompt: PromptPages, now: Micros) -> Iterator[Boot]:
        """Yield the partners of a worker, those that seem stuck last, and the one with the fewest
        open rooms first. Of those with as many, it is the one that has most of the prompt, then the
        one that was given nothing for the longest time."""
        targets = self._usable().partners[source]
        have = [0] * len(targets.boots)
        if self._policy.uses_caches and len(have) > 1:
            have = self.caches.positions(targets.places, len(have), prompt, coming=False)
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
        worker = self._all[target]
        if worker.queues() and worker.could_hold(tokens + 1) and worker.in_time(answer, now):
            return worker.generates(tokens + 1)
        return None

    def _could_hold(self, tokens: int) -> bool:
        """Return whether empty pools of some pair would hold so many positions."""
        could = {b: w.could_hold(tokens) for b, w in self._all.items()}
        return any(
            could[source] and could[target]
            for source, lot in self._usable().partners.items()
            for target in lot.boots
        )

    def _may_run_ahead(self, pair: Pair, tokens: int) -> bool:
        """Return whether prefill may compute a prompt while decode is full. It may, up to the share
        that it states, and one prompt always."""
        prefill, ahead = self._all[pair[0]], self._ahead.get(pair, PageReservations())
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
