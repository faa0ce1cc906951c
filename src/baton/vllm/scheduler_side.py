"""The hooks in the process of vLLM's scheduler: they pass what the scheduler does to the leader,
and what the leader says back to the scheduler.

A hook never waits. What the leader has said by then is known; the rest is known at the next step.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from baton.core.effects import Evict, Notice, TellEngine
from baton.core.events import (
    GuestAllocated,
    GuestComputes,
    GuestEvent,
    GuestFinished,
    GuestScheduled,
)
from baton.core.ids import Key, Page, TokenId
from baton.core.messages import Drawn
from baton.ports.guest import SchedulerLink
from baton.vllm.names import FULL, key_of


class StepNotes(msgspec.Struct):
    """What the ranks of vLLM are told with one step.

    Attributes:
        computed: prompts of which this step computes a part: up to which position
        loaded, failed: requests whose state has been loaded, or will not be
        released: requests that have ended, and whose pages nothing needs any more
    """

    computed: dict[Key, int] = {}
    loaded: list[str] = []
    failed: list[str] = []
    released: list[str] = []
    ended: list[Key] = []


class PartOrder(Enum):
    """Where a part of a request stands among the parts that steps compute of it."""

    FIRST = "first"  # all its pages are named, beginning with those that vLLM had cached
    NEXT = "next"  # its pages come after those named before
    RESUMED = "resumed"  # it was preempted: all its pages are named anew


class StepPart(NamedTuple):
    """What a step of vLLM computes of one request, from position `start` on."""

    name: str
    pages: tuple[Page, ...]
    start: int
    order: PartOrder


def parts_of(output: Any) -> Iterator[StepPart]:
    """Yield what a step computes, as vLLM's scheduler has decided."""
    for new in output.scheduled_new_reqs:
        yield StepPart(new.req_id, _pages(new.block_ids), new.num_computed_tokens, PartOrder.FIRST)
    old = output.scheduled_cached_reqs
    for name, blocks, start in zip(
        old.req_ids, old.new_block_ids, old.num_computed_tokens, strict=True
    ):
        order = PartOrder.RESUMED if name in old.resumed_req_ids else PartOrder.NEXT
        yield StepPart(name, _pages(blocks), start, order)


def _pages(blocks: Sequence[Sequence[int]] | None) -> tuple[Page, ...]:
    return tuple(map(Page, blocks[0])) if blocks is not None else ()


class SchedulerSide:
    """The connector in the scheduler.

    Args:
        producer: this engine computes prompts
        block_tokens: positions of a page
        patience_s: a request that nobody hands over is computed here after this time
        clock: returns seconds
    """

    def __init__(
        self,
        *,
        producer: bool,
        block_tokens: int,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._producer, self._patience_s, self._clock = producer, patience_s, clock
        self._block_tokens = block_tokens
        self._evict: Callable[[set[int]], None] = lambda pages: None
        self._asked: dict[Key, float] = {}  # consumer: when a request was asked for first
        self._link: SchedulerLink | None = None
        self._keys: dict[str, Key] = {}  # of open requests that name a room
        self._names: dict[Key, str] = {}
        self._said: dict[Key, Notice] = {}
        self._loading: set[Key] = set()
        self._own: set[Key] = set()  # consumer: requests that vLLM computes without any load
        self._ended: set[Key] = set()  # requests that have ended and keep their pages
        self._begun: set[Key] = set()  # producer: requests of which the leader knows pages
        self._news = StepNotes()

    def connect(self, link: SchedulerLink) -> None:
        """The link leads to the leader."""
        self._link = link

    def evicts(self, evict: Callable[[set[int]], None]) -> None:
        """evict: takes pages out of vLLM's prefix cache"""
        self._evict = evict

    def arrives(self) -> None:
        """A request has arrived. vLLM looks for it in its prefix cache before it asks for anything,
        and damaged pages must have left that by then."""
        self._hear()

    # ---- decode ---------------------------------------------------------------------------------

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """Return how many tokens can be loaded beyond `computed`, and whether that takes time; None
        if it is not known yet.

        vLLM asks again when it has preempted a request. That was running then, so it has been
        loaded: vLLM preempts none that is being loaded. A state is loaded once; prefill has given
        up its pages, and decode's leader has nothing to read from.
        """
        key = self._key(request)
        if self._producer or key is None:
            return 0, False
        self._hear()
        match self._said.get(key):
            case Notice.MAY_LOAD if key not in self._own:
                return request.num_tokens - computed, True
            case None if self._clock() < self._asked.setdefault(key, self._clock()) + (
                self._patience_s
            ):
                return None, False
            case _:
                return 0, False  # it cannot be loaded (any more): it is computed here

    def allocated(self, request: Any, pages: Sequence[int], tokens: int) -> None:
        """A request has got its pages; `tokens` of it are to be loaded. If none are, vLLM goes on
        with what was loaded, or computes all of the prompt itself."""
        key = self._key(request)
        if self._producer or key is None or key in self._loading:
            return
        if tokens:
            self._loading.add(key)
            hit = request.num_tokens - tokens
            self._say(GuestAllocated(key, {FULL: tuple(map(Page, pages))}, hit, True))
        elif key not in self._own and self._said.get(key) in (None, Notice.MAY_LOAD):
            self._own.add(key)
            self._say(GuestComputes(key))

    # ---- a step ---------------------------------------------------------------------------------

    def step(self, output: Any) -> StepNotes:
        """Return what the ranks are told with this step."""
        self._hear()
        notes, self._news = self._news, StepNotes()
        if self._producer:
            self._computes(output, notes)
        return notes

    def _computes(self, output: Any, notes: StepNotes) -> None:
        """Tell the leader which parts of prompts this step computes."""
        for name in output.preempted_req_ids or ():
            if (key := self._keys.get(name)) in self._begun and key is not None:
                self._begun.discard(key)
                self._say(GuestFinished(key, None, preempted=True))
        rows: dict[Key, tuple[int, int]] = {}
        written: list[Page] = []
        for part in parts_of(output):
            kept = 0 if part.order is PartOrder.NEXT else part.start // self._block_tokens
            written += part.pages[kept:]  # those before are of the prefix cache
            key = self._keys.get(part.name)
            if key is None or (part.order is not PartOrder.FIRST and key not in self._begun):
                continue
            if part.pages or key not in self._begun:
                first = key not in self._begun
                self._begun.add(key)
                self._say(GuestAllocated(key, {FULL: part.pages}, part.start, first))
            rows[key] = part.start, part.start + output.num_scheduled_tokens[part.name]
        if rows or written:
            self._say(GuestScheduled(rows, {FULL: tuple(written)}))
            notes.computed = {key: end for key, (_, end) in rows.items()}

    def finished(self, request: Any) -> bool:
        """A request has ended. Returns whether it keeps its pages."""
        key = self._key(request)
        if key is None:
            return False
        tokens = request.output_token_ids
        drawn = Drawn(TokenId(tokens[0]), None, ()) if self._producer and len(tokens) else None
        self._say(GuestFinished(key, drawn))
        self._said.pop(key, None)
        if self._producer or key in self._loading:
            self._ended.add(key)
        else:
            self._forget(key)
        return self._producer

    # ---- the leader -----------------------------------------------------------------------------

    def _key(self, request: Any) -> Key | None:
        """Return the room of a request; None if it names none, or one that another open request
        has: then it is computed here, and the other one keeps its state."""
        key = key_of(request.kv_transfer_params)
        if key is None or self._names.setdefault(key, request.request_id) != request.request_id:
            return None
        self._keys[request.request_id] = key
        return key

    def _forget(self, key: Key) -> None:
        name = self._names.pop(key, None)
        if name is not None:
            self._keys.pop(name, None)
        self._said.pop(key, None)
        self._asked.pop(key, None)
        self._own.discard(key)
        self._begun.discard(key)
        self._news.ended.append(key)

    def _say(self, event: GuestEvent) -> None:
        assert self._link is not None, "vLLM connects the two before its first request"
        self._link.say(event)

    def _hear(self) -> None:
        if self._link is None:
            return
        for said in self._link.news():
            match said:
                case TellEngine():
                    self._heard(said.key, said.notice)
                case Evict():
                    self._evict({int(page) for pages in said.pages.values() for page in pages})

    def _heard(self, key: Key, notice: Notice) -> None:
        name = self._names.get(key)
        match notice:
            case Notice.RELEASED if key in self._ended and name is not None:
                self._news.released.append(name)
                self._over(key)
            case Notice.LOADED if key in self._loading and name is not None:
                # Only once: should vLLM take its pages back later, it computes them itself.
                self._said[key] = notice
                self._news.loaded.append(name)
                self._over(key)
            case Notice.FAILED if key in self._loading and name is not None:
                self._said[key] = notice
                self._news.failed.append(name)
                self._over(key)
            case Notice.FAILED if name is None:
                self._said.pop(key, None)  # its request has gone, or never came
            case Notice.MAY_LOAD if key in self._own:
                self._say(GuestComputes(key))  # its ticket came later than that was said
            case Notice.MAY_LOAD | Notice.FAILED:
                self._said[key] = notice
            case _:
                pass

    def _over(self, key: Key) -> None:
        """Nothing of ours needs the pages of a request any more."""
        self._loading.discard(key)
        if key in self._ended:
            self._ended.discard(key)
            self._forget(key)

    def close(self) -> None:
        """Close the link."""
        if self._link is not None:
            self._link.close()
