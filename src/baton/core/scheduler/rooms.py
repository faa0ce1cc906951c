"""The open rooms of one worker, by key and by state: what is looked for in every turn is not looked
for among all of them."""

from collections.abc import ItemsView, Iterator, ValuesView
from typing import Generic, TypeVar

from baton.core.ids import Key
from baton.core.scheduler.room import OpenRoom, RoomState

R = TypeVar("R", bound=OpenRoom)


class Rooms(Generic[R]):
    """Rooms come by `add`, change their state by `move` and go by `drop`, and in no other way."""

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
        """The room of that key, if it is open."""
        return self._all.get(key)

    def values(self) -> ValuesView[R]:
        """All of them, in the order in which they came."""
        return self._all.values()

    def items(self) -> ItemsView[Key, R]:
        """With their keys, in that order."""
        return self._all.items()

    def add(self, room: R) -> None:
        """A new room."""
        self._came += 1
        room.number = self._came
        self._all[room.key] = self._standing[room.state][room.key] = room

    def move(self, room: R, state: RoomState) -> None:
        """A room goes from its state to another."""
        del self._standing[room.state][room.key]
        room.state = state
        self._standing[state][room.key] = room

    def drop(self, room: R) -> None:
        """A room is over."""
        del self._all[room.key], self._standing[room.state][room.key]

    def count(self, state: RoomState) -> int:
        """How many are in a state."""
        return len(self._standing[state])

    def in_state(self, *states: RoomState) -> list[R]:
        """Rooms in one of these states, oldest request first; of epochs of one request the one that
        came first."""
        found: list[R] = []
        for state in states:
            if lot := self._standing[state]:  # seldom
                found += lot.values()
        if not found:
            return found
        return sorted(found, key=lambda r: (r.ticket.came, r.number)) if len(found) > 1 else found
