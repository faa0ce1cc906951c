"""The workers that one gateway knows: which pairs there are, what they state of their capacity, and
whom to give a request.

    Credits (absolute, numbered) ─▶ pages free ─ tickets under way ─ rooms that are not admitted ─▶ room for one more?
    Tokens ─▶ throughput ─▶ how long one more answer would take ─▶ would it end in time?

A statement is a hint, never a permission: several gateways may use it up at once, and a worker that
has made none counts as free. What does not fit waits at the gateway, where it holds nothing.
"""

from collections.abc import Iterator

import msgspec

from baton.core.gateway.page_reservations import PageReservations, Pages
from baton.core.gateway.request import DECODE, PREFILL, UNIFIED
from baton.core.gateway.throughput import SPARE, SPARE_LATER, PendingAnswer, Throughput
from baton.core.ids import Boot, Key, Micros
from baton.core.memory.span import Span
from baton.core.messages import Credits, Register, Ticket

# rooms that may wait at a worker for its pages, so that it is not idle while its credits travel
AHEAD = 2
FIRST = 16  # answers that may begin on a worker before it is known how fast it generates
Pair = tuple[Boot, Boot]


class RegisteredWorker:
    """A registered worker as its gateway sees it."""

    def __init__(self, register: Register) -> None:
        manifest = register.manifest
        self.register, self.role = register, manifest.role
        self.open: dict[Key, PendingAnswer] = {}
        self.credits: Credits | None = None
        self._span = Span(manifest.table, manifest.page_blocks * manifest.table.block_tokens)
        self._sent = 0  # tickets
        self._unheard = PageReservations()  # tickets that the last statement does not know of
        self._unadmitted = PageReservations()  # rooms that hold nothing here yet
        self._admitted = PageReservations()  # rooms admitted since the last statement
        self._throughput = Throughput()

    def need(self, tokens: int) -> Pages:
        """Return the pages of a room with so many positions."""
        return self._span.live(tokens)

    def gives(self, ticket: Ticket, tokens: int, answer: PendingAnswer) -> None:
        """A ticket goes out to the worker."""
        self._sent += 1
        self.open[ticket.key] = answer
        self._unheard.add(self._sent, self.need(tokens))
        self._unadmitted.add(ticket.key, self.need(tokens))

    def states(self, credits: Credits) -> None:
        """The worker states its capacity. A statement that is older than the last one changes
        nothing."""
        if self.credits is not None and self.credits.number >= credits.number:
            return
        self.credits = credits
        self._unheard.drop_to(credits.tickets)
        self._admitted.clear()

    def full(self) -> None:
        """The worker has refused a room because its queue is full, whatever it said before."""
        if self.credits is not None:
            self.credits = msgspec.structs.replace(self.credits, free_queue=0)

    def queues(self) -> bool:
        """Return whether one more room may wait at the worker."""
        return self.credits is None or self.credits.free_queue > len(self._unheard)

    def admits(self, key: Key) -> None:
        """The worker holds pages for a room now."""
        if (pages := self._unadmitted.drop(key)) is not None:
            self._admitted.add(key, pages)

    def ended(self, key: Key, now: Micros) -> None:
        """The worker holds nothing of a room any more."""
        self.open.pop(key, None)
        self._unadmitted.drop(key)
        self._throughput.ended(key, now)

    def made(self, key: Key, tokens: int, now: Micros) -> None:
        """The worker has generated tokens of an answer."""
        if key in self.open:  # an engine's answer may be slower than its leader's `Ended`
            self._throughput.made(key, tokens, now)

    def takes_us(self, answer: PendingAnswer, now: Micros) -> int:
        """Return how many microseconds an answer would take if it began now; 0 if it would have the
        worker to itself, or if that is not known."""
        pace = self._throughput.pace(len(self.open) + 1, now) if self.open else None
        return round(answer.tokens * pace) if pace is not None else 0

    def in_time(self, answer: PendingAnswer, now: Micros) -> bool:
        """Return whether an answer would end in time if it began now, and would keep none that is
        under way from ending in time.

        While nothing is known of the worker's pace, a few may begin so that it can be seen.
        """
        if answer.begun or answer.tokens <= 1 or not self.open:
            return True
        present, then = (self._throughput.pace(len(self.open) + more, now) for more in (0, 1))
        if present is None or then is None:
            return len(self.open) < FIRST
        under_way = ((a, self._throughput.of(key)) for key, a in self.open.items())
        return answer.in_time(then, 0, now, SPARE) and all(
            a.in_time(then, made, now, SPARE_LATER) or not a.in_time(present, made, now)
            for a, made in under_way
        )

    @property
    def draining(self) -> bool:
        """Whether the worker is to get no more requests."""
        return self.credits is not None and self.credits.draining

    @property
    def unadmitted(self) -> int:
        """How many rooms hold nothing at the worker yet."""
        return len(self._unadmitted)

    def could_hold(self, tokens: int) -> bool:
        """Return whether the worker's pools would hold so many positions if they were empty."""
        return self.credits is None or all(
            self.credits.total_pages.get(g, n) >= n for g, n in self.need(tokens).items()
        )

    def takes(self, tokens: int) -> bool:
        """Return whether the worker would begin such a prompt at once, or nearly so."""
        if self.credits is None:
            return True
        free = self._unheard.leaves(self.credits.free_pages, self.need(tokens))
        rooms = self.role == PREFILL or self.credits.free_rooms > len(self._unheard)
        return (free and rooms and not self.credits.waiting) or self.credits.waiting + len(
            self._unheard
        ) < AHEAD

    def generates(self, tokens: int) -> bool:
        """Return whether a decode worker would admit one more room of this size as soon as its
        prompt has pages."""
        if self.credits is None:
            return True
        rooms = self.credits.free_rooms > len(self._unadmitted) + len(self._admitted)
        return rooms and self._unadmitted.leaves(
            self.credits.free_pages, self.need(tokens), self._admitted
        )


class Router:
    """Knows the workers and their pairs, and what each pair has room and time for."""

    def __init__(self, introduce_again_ms: int) -> None:
        self._again = introduce_again_ms * 1000
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
        return self._all.pop(boot, None)

    def paired(self, pair: Pair, fabric: str) -> bool:
        """Two workers have proved that they fit. Returns whether both are registered in these
        roles; else nothing changes."""
        if not self._are(pair):
            return False
        self._refusals.pop(pair, None)
        self._pairs[pair] = fabric
        return True

    def unpaired(self, pair: Pair, why: str, now: Micros) -> Micros | None:
        """Two workers do not fit, or not any more. Returns when they are to be introduced again."""
        self._pairs.pop(pair, None)
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
        """Return the pairs (prefill, decode) that a request can be given to; a unified worker is a
        pair by itself."""
        pairs = [(b, b) for b, w in self._all.items() if w.role == UNIFIED] + list(self._pairs)
        return [pair for pair in pairs if not any(self._all[boot].draining for boot in pair)]

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

    def credits(self) -> dict[str, Credits]:
        """Return what workers last said of their capacity, by name."""
        return {w.register.name: w.credits for w in self._all.values() if w.credits is not None}

    @property
    def unadmitted(self) -> int:
        """How many requests were given out for which no worker holds memory to generate in."""
        return sum(worker.unadmitted for worker in self._all.values() if worker.role != PREFILL)

    # ---- what they hold -------------------------------------------------------------------------

    def gives(self, ticket: Ticket, answer: PendingAnswer) -> None:
        """A ticket goes out to both sides of a pair."""
        pair, tokens = (ticket.prefill, ticket.decode), len(ticket.prompt) + len(ticket.said)
        for boot in sorted(set(pair)):
            self._all[boot].gives(ticket, tokens + (boot == ticket.decode), answer)
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

    def made(self, boot: Boot, key: Key, tokens: int, now: Micros) -> None:
        """A decode worker has generated tokens of an answer."""
        if (worker := self._all.get(boot)) is not None:
            worker.made(key, tokens, now)

    def ended(self, boot: Boot, key: Key, now: Micros) -> None:
        """A side holds nothing of an epoch any more."""
        if (worker := self._all.get(boot)) is not None:
            worker.ended(key, now)
        self._not_ahead(boot, key)

    def _not_ahead(self, boot: Boot, key: Key) -> None:
        for pair, tab in self._ahead.items():
            if boot in pair:
                tab.drop(key)

    def takes_us(self, answer: PendingAnswer, now: Micros) -> int:
        """Return how many microseconds an answer would take on the fastest worker if it began now;
        0 where that is not known."""
        return min(
            (self._all[decode].takes_us(answer, now) for _, decode in self.usable_pairs()),
            default=0,
        )

    def in_time(self, answer: PendingAnswer, now: Micros) -> bool:
        """Return whether some worker has time for an answer, if it has room."""
        return any(self._all[decode].in_time(answer, now) for _, decode in self.usable_pairs())

    def choose(self, tokens: int, answer: PendingAnswer, now: Micros) -> Pair | None:
        """Return the pair for a request of so many positions, or None while no pair has room, or
        time for the answer.

        Of the pairs whose decode side has room it is the one with the fewest open rooms of ours;
        else one whose prefill side may compute ahead. What no pair could ever hold is given to any
        of them: the worker says why it cannot be served.
        """
        pairs = self.usable_pairs()
        could = [p for p in pairs if all(self._all[b].could_hold(tokens + 1) for b in p)]
        if not could:
            return min(pairs, key=self._load, default=None)
        taken = [
            p
            for p in could
            if self._all[p[0]].takes(tokens) and all(self._all[b].queues() for b in p)
        ]
        taken = [p for p in taken if self._all[p[1]].in_time(answer, now)]
        ready = {p: self._all[p[1]].generates(tokens + 1) for p in taken}
        usable = [
            p for p, generates in ready.items() if generates or self._may_run_ahead(p, tokens)
        ]
        return min(usable, key=lambda p: (not ready[p], self._load(p)), default=None)

    def _load(self, pair: Pair) -> int:
        return sum(len(self._all[b].open) for b in pair)

    def _may_run_ahead(self, pair: Pair, tokens: int) -> bool:
        """Return whether prefill may compute a prompt while decode is full. It may, up to the share
        that it states, and one prompt always."""
        prefill, ahead = self._all[pair[0]], self._ahead.get(pair, PageReservations())
        if pair[0] == pair[1]:
            return True  # its own pages were looked at
        limit = prefill.credits.ahead_pages if prefill.credits is not None else {}
        return not len(ahead) or ahead.leaves(limit, prefill.need(tokens))
