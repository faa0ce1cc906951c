"""The rooms that workers know of: who has still to end which of their epochs, and whom to tell when
nobody has.

begins ─▶ both sides owe the epoch's end ──ended──▶ one ──ended──▶ none, in any epoch ─▶ close: its workers may forget it
"""

from collections.abc import Iterable, Iterator

from baton.core.ids import Boot, Epoch, Key, Room


class Closing:
    """Keeps these books for one gateway. A worker that is lost must be reported as having ended all
    that it owes."""

    def __init__(self) -> None:
        self._owed: dict[Room, dict[Epoch, set[Boot]]] = {}
        self._told: dict[Room, set[Boot]] = {}  # whom a ticket of the room was given to

    def __len__(self) -> int:
        return len(self._owed)

    def __contains__(self, room: Room) -> bool:
        """Whether a worker still holds something of a room."""
        return room in self._owed

    def __iter__(self) -> Iterator[tuple[Key, list[Boot]]]:
        """Yield every epoch that has not ended, with the workers that have not ended it."""
        return (
            (Key(r, e), sorted(sides))
            for r, epochs in self._owed.items()
            for e, sides in epochs.items()
        )

    def begins(self, key: Key, sides: Iterable[Boot]) -> None:
        """An epoch is given to these workers."""
        both = set(sides)
        self._owed.setdefault(key.room, {})[key.epoch] = both
        self._told.setdefault(key.room, set()).update(both)

    def owing(self, key: Key) -> list[Boot]:
        """Return the workers that have not ended an epoch yet."""
        return sorted(self._owed.get(key.room, {}).get(key.epoch, ()))

    def owed_by(self, boot: Boot) -> list[Key]:
        """Return the epochs that a worker has not ended yet."""
        return [key for key, sides in self if boot in sides]

    def ended(self, key: Key, boot: Boot) -> bool:
        """A worker has ended an epoch. Returns whether it was the last to do so."""
        epochs = self._owed.get(key.room, {})
        if key.epoch not in epochs:
            return False
        epochs[key.epoch].discard(boot)
        if epochs[key.epoch]:
            return False
        del epochs[key.epoch]
        return True

    def close(self, room: Room) -> list[Boot]:
        """Return the workers that are to be told that a room is closed. There are none while an
        epoch of the room is open, and each is named once."""
        if self._owed.get(room):
            return []
        self._owed.pop(room, None)
        return sorted(self._told.pop(room, ()))
