"""The last epoch of each room that a worker has seen, and the gateway that owns the room."""

from baton.core.ids import Boot, Epoch, Key, Room


class SeenEpochs:
    """The highest epoch of every room, until its gateway closes the room or is lost."""

    def __init__(self) -> None:
        self._seen: dict[Room, tuple[Epoch, Boot]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def highest(self, room: Room) -> Epoch | None:
        """Return the last epoch of a room; None if the room is not known."""
        seen = self._seen.get(room)
        return seen[0] if seen is not None else None

    def owner(self, room: Room) -> Boot | None:
        """Return the gateway that opened the room; None if the room is not known."""
        seen = self._seen.get(room)
        return seen[1] if seen is not None else None

    def passed(self, key: Key) -> bool:
        """Whether this epoch, or a later one of its room, has come before."""
        highest = self.highest(key.room)
        return highest is not None and highest >= key.epoch

    def begin(self, key: Key, gateway: Boot) -> None:
        """Note the next epoch of a room."""
        assert not self.passed(key), "an epoch begins once"
        self._seen[key.room] = (key.epoch, gateway)

    def close(self, room: Room) -> None:
        """Forget a room that its gateway has closed."""
        self._seen.pop(room, None)

    def lost(self, gateway: Boot) -> None:
        """Forget the rooms of a gateway that is gone."""
        self._seen = {room: seen for room, seen in self._seen.items() if seen[1] != gateway}
