"""The hooks in the process of vLLM's scheduler: they pass what the scheduler does to the leader,
and what the leader says back to the scheduler.

A hook never waits. What the leader has said by then is known; the rest is known at the next step.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from baton.core.effects import Notice
from baton.core.events import GuestAllocated, GuestEvent, GuestFinished, GuestScheduled
from baton.core.ids import Key, Page, TokenId
from baton.core.messages import Drawn
from baton.vllm.guest_link import SchedulerEnd
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


class SchedulerSide:
    """The connector in the scheduler.

    Args:
        producer: this engine computes prompts
        patience_s: a request that nobody hands over is computed here after this time
        clock: returns seconds
    """

    def __init__(
        self, *, producer: bool, patience_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._producer, self._patience_s, self._clock = producer, patience_s, clock
        self._asked: dict[Key, float] = {}  # consumer: when a request was asked for first
        self._link: SchedulerEnd | None = None
        self._keys: dict[str, Key] = {}  # of open requests that name a room
        self._names: dict[Key, str] = {}
        self._said: dict[Key, Notice] = {}
        self._loading: set[Key] = set()
        self._ended: set[Key] = set()  # requests that have ended and keep their pages
        self._begun: set[Key] = set()  # producer: requests of which the leader knows pages
        self._news = StepNotes()

    def connect(self, address: str) -> None:
        """The leader listens there."""
        self._link = SchedulerEnd(address)

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
            case Notice.MAY_LOAD:
                return request.num_tokens - computed, True
            case None if self._clock() < self._asked.setdefault(key, self._clock()) + (
                self._patience_s
            ):
                return None, False
            case _:
                return 0, False  # it cannot be loaded (any more): it is computed here

    def allocated(self, request: Any, pages: Sequence[int], tokens: int) -> None:
        """A request has got its pages; `tokens` of it are to be loaded."""
        key = self._key(request)
        if self._producer or key is None or not tokens or key in self._loading:
            return
        self._loading.add(key)
        hit = request.num_tokens - tokens
        self._say(GuestAllocated(key, {FULL: tuple(map(Page, pages))}, hit))

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
        new = {r.req_id: (r.block_ids, r.num_computed_tokens) for r in output.scheduled_new_reqs}
        old = output.scheduled_cached_reqs
        going_on = {
            name: (old.new_block_ids[i], old.num_computed_tokens[i])
            for i, name in enumerate(old.req_ids)
            if name not in old.resumed_req_ids
        }
        for name, (blocks, start) in (new | going_on).items():
            key = self._keys.get(name)
            if key is None or (name in going_on and key not in self._begun):
                continue
            pages = tuple(map(Page, blocks[0])) if blocks is not None else ()
            if pages or key not in self._begun:
                self._begun.add(key)
                self._say(GuestAllocated(key, {FULL: pages}, start))
            rows[key] = start, start + output.num_scheduled_tokens[name]
        if rows:
            self._say(GuestScheduled(rows))
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
        params: Mapping[str, Any] | None = request.kv_transfer_params
        key = key_of(params)
        if key is not None:
            self._keys[request.request_id], self._names[key] = key, request.request_id
        return key

    def _forget(self, key: Key) -> None:
        name = self._names.pop(key, None)
        if name is not None:
            self._keys.pop(name, None)
        self._said.pop(key, None)
        self._asked.pop(key, None)
        self._begun.discard(key)
        self._news.ended.append(key)

    def _say(self, event: GuestEvent) -> None:
        assert self._link is not None, "vLLM connects the two before its first request"
        self._link.say(event)

    def _hear(self) -> None:
        if self._link is None:
            return
        for said in self._link.notices():
            name = self._names.get(said.key)
            match said.notice:
                case Notice.RELEASED if said.key in self._ended and name is not None:
                    self._news.released.append(name)
                    self._over(said.key)
                case Notice.LOADED if said.key in self._loading and name is not None:
                    # Only once: should vLLM take its pages back later, it computes them itself.
                    self._said[said.key] = said.notice
                    self._news.loaded.append(name)
                    self._over(said.key)
                case Notice.FAILED if said.key in self._loading and name is not None:
                    self._said[said.key] = said.notice
                    self._news.failed.append(name)
                    self._over(said.key)
                case Notice.FAILED if name is None:
                    self._said.pop(said.key, None)  # its request has gone, or never came
                case Notice.MAY_LOAD | Notice.FAILED:
                    self._said[said.key] = said.notice
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
