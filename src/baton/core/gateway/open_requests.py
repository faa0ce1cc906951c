"""The requests of a gateway that have not ended, by the number that the HTTP side gave them and by
their rooms."""

from collections.abc import Iterator

from baton.core.door import RequestId
from baton.core.gateway.request import Request
from baton.core.ids import Boot, Key, Room


class OpenRequests:
    """Finds requests, and lists them in the order in which they came."""

    def __init__(self) -> None:
        self._by_id: dict[RequestId, Request] = {}
        self._by_room: dict[Room, Request] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._by_id.values())

    def add(self, request: Request) -> None:
        """A request has come."""
        self._by_id[request.submit.request] = request
        self._by_room[request.room] = request

    def remove(self, request: Request) -> None:
        """A request has ended."""
        del self._by_id[request.submit.request]
        del self._by_room[request.room]

    def get(self, request: RequestId) -> Request | None:
        """Return the request of that number, or None if it has ended."""
        return self._by_id.get(request)

    def in_room(self, room: Room) -> Request | None:
        """Return the request of that room, or None if it has ended."""
        return self._by_room.get(room)

    def find(self, key: Key, sender: Boot) -> Request | None:
        """Return the open request whose current epoch this is, if the sender is one of its two
        workers."""
        request = self._by_room.get(key.room)
        return (
            request
            if request is not None and request.key == key and sender in (request.pair or ())
            else None
        )
