"""Decode as a guest: the state of prompts is fetched into pages of another engine, which then
generates tokens in them.

    QUEUED ──Offer 0──▶ MAY_LOAD ──the engine gives it pages──▶ FETCHING ──▶ COMMITTING ──▶ RUNNING: LOADED
       │                                                           └──ends in any way, nothing is read any more──▶ FAILED
       └──the engine has waited long enough, and computes the prompt itself──▶ RUNNING; prefill is told Received

The engine draws the first token again, from the last position of the prompt, which it computes a
second time; the gateway compares it with the token that prefill drew.

An engine that computes a prompt itself has no need of prefill any more: for prefill that is the
same as if it had the state, so it ends its part as after any handoff, whether it has begun with the
prompt or not. The epoch goes on here until its answer ends.
"""

from collections.abc import Sequence
from typing import Any

from baton.core.effects import Notice
from baton.core.events import GuestAllocated, GuestComputes, GuestEvent, GuestFinished
from baton.core.ids import Key
from baton.core.memory.pages import PageState
from baton.core.messages import Admitted, Received
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.fetching import Fetching
from baton.core.scheduler.guest import adopt, tell
from baton.core.scheduler.room import RoomState, Saw
from baton.core.scheduler.stage import Stage
from baton.core.scheduler.worker import Worker


class GuestLoading(Stage[DecodeRoom]):
    """The rooms of one worker, from the first offer until the engine has ended the request."""

    def __init__(self, worker: Worker[DecodeRoom], fetching: Fetching) -> None:
        super().__init__(worker)
        self._fetching = fetching
        self._asked: set[Key] = set()  # rooms of which the engine was told that it may load them
        self._loaded: set[Key] = set()  # rooms of which it was told that they are loaded
        self._computed: set[Key] = set()  # rooms whose prompt it computes itself

    def kept(self) -> dict[str, Sequence[Any]]:
        return {
            "may load": sorted(self._asked),
            "loaded": sorted(self._loaded),
            "computed there": sorted(self._computed),
        }

    def guest(self, event: GuestEvent) -> None:
        match event:
            case GuestAllocated():
                self._allocated(event)
            case GuestComputes():
                self._computes(event.key)
            case GuestFinished():
                if (room := self.worker.find(event.key)) is not None:
                    self.worker.end(room)
            case _:
                pass  # what the engine computes here is its own affair

    def _allocated(self, event: GuestAllocated) -> None:
        room = self.worker.find(event.key)
        if room is None or room.state is not RoomState.QUEUED:
            tell(self.worker, event.key, Notice.FAILED)  # it has ended meanwhile
            return
        adopt(self.worker, room, event, PageState.FETCHING)
        self.worker.see(room, Saw.HELD)
        self._fetching.admitted(room, ())
        room.hit = event.hit
        for boot in (room.ticket.prefill, room.ticket.gateway):
            self.worker.send(boot, Admitted(room.key))

    def _computes(self, key: Key) -> None:
        room = self.worker.find(key)
        if room is None or room.state is not RoomState.QUEUED:
            return  # it has ended meanwhile, or the engine says it again
        self._computed.add(key)
        self.worker.see(room, Saw.COMPUTED_THERE)
        self.worker.send(room.ticket.prefill, Received(key))
        self.worker.send(room.ticket.gateway, Admitted(key))

    def advance(self) -> None:
        """Tell the engine of rooms that it may load, and of those that are loaded."""
        for room in self.worker.rooms.in_state(RoomState.QUEUED):
            if self._fetching.admissible(room) and room.key not in self._asked:
                self._asked.add(room.key)
                tell(self.worker, room.key, Notice.MAY_LOAD)
        for room in self.worker.rooms.in_state(RoomState.RUNNING):
            if room.key not in self._loaded and room.key not in self._computed:
                self._loaded.add(room.key)
                tell(self.worker, room.key, Notice.LOADED)

    def forgotten(self, room: DecodeRoom) -> None:
        self._asked.discard(room.key)
        self._computed.discard(room.key)
        if room.key in self._loaded:
            self._loaded.remove(room.key)
        else:  # also when it has computed the prompt itself: MAY_LOAD may come to it too late
            tell(self.worker, room.key, Notice.FAILED)
