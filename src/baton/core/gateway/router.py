"""The workers that one gateway knows, and what each of them holds.

    worker_pairs.py     which of them can hand over to each other
    worker_choice.py    whom to give a request

What does not fit waits at the gateway, where it holds nothing.
"""

from collections.abc import Iterator

from baton.core.door import PairView
from baton.core.gateway.known_caches import KnownCaches
from baton.core.gateway.page_reservations import PageReservations
from baton.core.gateway.prompt_pages import PromptPages, page_kind
from baton.core.gateway.registered_worker import RegisteredWorker
from baton.core.gateway.request import PREFILL
from baton.core.gateway.routing_policy import RoutingPolicy
from baton.core.gateway.throughput import PendingAnswer
from baton.core.gateway.worker_choice import Usable, WorkerChoice, WorkerList
from baton.core.gateway.worker_pairs import Pair, WorkerPairs
from baton.core.ids import Boot, Key, Micros
from baton.core.messages import CacheChanged, Credits, Register, Ticket


class Router:
    """Knows the workers, and what they hold."""

    def __init__(
        self, introduce_again_ms: int, policy: RoutingPolicy, *, local_prefill: bool = False
    ) -> None:
        """local_prefill: whether decode workers may compute prompts themselves"""
        self._policy, self._local = policy, local_prefill
        self._known: Usable | None = None  # None after a change
        self._known_at = 0  # changes of the pairs
        self._turn = 0
        self._all: dict[Boot, RegisteredWorker] = {}
        # pages on prefill of rooms that decode has not admitted
        self._ahead: dict[Pair, PageReservations] = {}
        self.caches = KnownCaches()
        self.pairs = WorkerPairs(self._all, introduce_again_ms)
        self.choice = WorkerChoice(
            policy, self.caches, workers=self._all, usable=self._usable, ahead=self._ahead
        )

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
        self._all[boot] = RegisteredWorker(message)
        self.caches.joins(boot, page_kind(message), caches=message.caches)
        self._known = None
        return self.pairs.joins(boot)

    def lost(self, boot: Boot) -> RegisteredWorker | None:
        """A worker is gone, with all its pairs. Returns it, or None if it was not registered."""
        self.pairs.leaves(boot)
        for pair in [pair for pair in self._ahead if boot in pair]:
            del self._ahead[pair]
        worker = self._all.pop(boot, None)
        if worker is not None:
            self.caches.leaves(boot)
        return worker

    def usable_pairs(self) -> list[Pair]:
        """Return the pairs (prefill, decode) that a request can be given to; a worker that computes
        prompts and generates answers is a pair by itself."""
        return self._usable().pairs()

    def is_usable(self, pair: Pair) -> bool:
        """Return whether a request can be given to this pair."""
        partners = self._usable().partners.get(pair[0])
        return partners is not None and pair[1] in partners.boots

    @property
    def has_pair(self) -> bool:
        """Whether there is a pair that a request can be given to. It is asked after every change,
        while workers come too, so it does not look at all of them."""
        return any(map(self._lasts, self.pairs)) or any(map(self._lasts, self._alone()))

    def _alone(self) -> Iterator[Pair]:
        """Yield the workers that need no other one."""
        return ((b, b) for b, w in self._all.items() if w.serves_alone(local_prefill=self._local))

    def _lasts(self, pair: Pair) -> bool:
        """Whether neither side is about to leave."""
        return not (self._all[pair[0]].draining or self._all[pair[1]].draining)

    def _usable(self) -> Usable:
        """Return who can be given a request."""
        if self._known is None or self._known_at != self.pairs.changes:
            self._known_at = self.pairs.changes
            found: dict[Boot, list[Boot]] = {}
            for pair in filter(self._lasts, (*self._alone(), *self.pairs)):
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

    def name_of(self, boot: Boot) -> str:
        """Return the name of a worker; its boot, if it is gone."""
        worker = self._all.get(boot)
        return worker.register.name if worker is not None else f"{boot:x}"

    def pair_views(self) -> Iterator[PairView]:
        """Yield all pairs: those that are refused first, then those that are used, then those that
        are not ready."""
        return self.pairs.views(self.usable_pairs())

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
        cached = self.choice.cached(self._list([ticket.prefill]), prompt)[0]
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
