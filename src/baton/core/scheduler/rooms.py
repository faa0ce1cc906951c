"""The open rooms of one worker, by key and by state, so that turns need not search all of them."""

from collections.abc import ItemsView, Iterator, ValuesView
from operator import attrgetter
from typing import Generic, TypeVar

from baton.core.ids import Key
from baton.core.scheduler.room import OpenRoom, RoomState

R = TypeVar("R", bound=OpenRoom)
AGE = attrgetter("age")


class Rooms(Generic[R]):
    """Holds the open rooms. `add`, `move` and `drop` are the only ways to change them."""

    def __init__(self) -> None:
        self._all: dict[Key, R] = {}
        self._standing: dict[RoomState, dict[Key, R]] = {state: {} for state in RoomState}
        self._came = 0

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._all)

    def __contains__(self, key: Key) -> bool:
        return key in self._all

    def __getitem__(self, key: Key) -> R:
        return self._all[key]

    def get(self, key: Key) -> R | None:
        """Return the room with this key; None if it is not open."""
        return self._all.get(key)

    def values(self) -> ValuesView[R]:
        """Return all rooms, in the order in which they came."""
        return self._all.values()

    def items(self) -> ItemsView[Key, R]:
        """Return all rooms with their keys, in the order in which they came."""
        return self._all.items()

    def add(self, room: R) -> None:
        """Add a new room, and number it."""
        self._came += 1
        room.number = self._came
        room.age = (room.ticket.came, room.number)
        self._all[room.key] = self._standing[room.state][room.key] = room

    def move(self, room: R, state: RoomState) -> None:
        """Move a room to another state."""
        del self._standing[room.state][room.key]
        room.state = state
        self._standing[state][room.key] = room

    def drop(self, room: R) -> None:
        """Remove a room that is over."""
        del self._all[room.key], self._standing[room.state][room.key]

    def count(self, *states: RoomState) -> int:
        """Return the number of rooms in one of these states."""
        return sum(len(self._standing[state]) for state in states)

    def in_state(self, *states: RoomState) -> list[R]:
        """Return the rooms in one of these states, oldest request first. Epochs of the same request
        are in the order in which they came."""
        found: list[R] = []
        for state in states:
            if lot := self._standing[state]:  # seldom
                found += lot.values()
        if not found:
            return found
        found.sort(key=AGE)
        return found
