"""One registered worker as its gateway sees it: what it states of its capacity, what it was given
that it did not know of then, and how fast it generates.

    Credits (absolute, numbered) ─▶ pages free ─ tickets under way ─ rooms that are not admitted ─▶ room for one more?
    Tokens ─▶ throughput ─▶ how long one more answer would take ─▶ would it end in time?

A statement is a hint, never a permission: several gateways may use it up at once, and a worker that
has made none counts as free.
"""

import msgspec

from baton.core.gateway.page_reservations import PageReservations, Pages
from baton.core.gateway.prompt_queue import PromptQueue
from baton.core.gateway.request import DECODE, PREFILL, UNIFIED
from baton.core.gateway.throughput import SPARE, SPARE_LATER, PendingAnswer, Throughput
from baton.core.ids import Key, Micros
from baton.core.memory.span import Span
from baton.core.messages import Credits, Register, Ticket

# rooms that may wait at a worker for its pages, so that it is not idle while its credits travel
AHEAD = 2
STUCK_US = 500_000  # a worker that lives ends an epoch within a step
FIRST = 16  # answers that may begin on a worker before it is known how fast it generates


class RegisteredWorker:
    """The worker, as far as this gateway knows."""

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
        self.queue = PromptQueue()
        self.turn = 0  # when it was last given a ticket
        self.cached_pages = 0  # as it says
        self.load = 0  # open rooms
        self.streams = 0  # answers that stand still while it computes a prompt
        self._owes: dict[Key, Micros] = {}  # epochs that it was asked to end, and when

    def need(self, tokens: int) -> Pages:
        """Return the pages of a room with so many positions."""
        return self._span.live(tokens)

    def gives(self, ticket: Ticket, tokens: int, answer: PendingAnswer, turn: int) -> None:
        """A ticket goes out to the worker. turn: a number that is higher for later tickets"""
        self._sent += 1
        self.turn = turn
        self.open[ticket.key] = answer
        self._unheard.add(self._sent, self.need(tokens))
        self._unadmitted.add(ticket.key, self.need(tokens))
        self._count()

    def computes(self, cached: int, length: int, now: Micros) -> None:
        """The ticket that was given last has a prompt that the worker is to compute. It has
        `cached` of its positions."""
        self.queue.gives(self._sent, cached, length, now)
        self._count()

    def states(self, credits: Credits, now: Micros) -> None:
        """The worker states its capacity. A statement that is older than the last one changes
        nothing."""
        if self.credits is not None and self.credits.number >= credits.number:
            return
        self.credits = credits
        self._unheard.drop_to(credits.tickets)
        self._admitted.clear()
        self.queue.states(credits, now)
        self._count()

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
        self._owes.pop(key, None)
        self._unadmitted.drop(key)
        self._count()
        self._throughput.ended(key, now)

    def made(self, key: Key, tokens: int, now: Micros) -> None:
        """The worker has generated tokens of an answer."""
        if key in self.open:  # an engine's answer may be slower than its leader's `Ended`
            self._throughput.made(key, tokens, now)

    def owes(self, key: Key, now: Micros) -> None:
        """The worker is asked to end an epoch that has failed."""
        self._owes.setdefault(key, now)

    def seems_stuck(self, now: Micros) -> bool:
        """Return whether the worker was asked to end an epoch, and has not done so for a while."""
        # it seldom owes any, and every worker is asked for every request
        return bool(self._owes) and any(now > since + STUCK_US for since in self._owes.values())

    def _count(self) -> None:
        """Note how many rooms are open at the worker: ours, and those of other gateways, as far as
        it has told; and how many of them generate."""
        self.load = len(self.open)
        if self.credits is not None:
            told = self.credits.running + self.credits.waiting + len(self._unheard)
            self.load = max(self.load, told)
        if self.role != PREFILL:
            self.streams = max(0, self.load - self.queue.prompts)

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

    def serves_alone(self, *, local_prefill: bool) -> bool:
        """Return whether the worker may compute prompts and generate the answers. Of decode workers
        those may that say so; one of protocol 1 does not.

        local_prefill: whether decode workers are asked at all
        """
        if self.role == DECODE:
            return local_prefill and self.register.local_prefill
        return self.role == UNIFIED

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
