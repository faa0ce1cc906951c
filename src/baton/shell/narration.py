"""Debug lines of a pump's turn, written at its end: a line costs more than most effects."""

import structlog

log = structlog.get_logger()


class Narration:
    """Keeps debug lines until `tell`."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, dict[str, object]]] = []

    def note(self, event: str, **fields: object) -> None:
        """Keep one line; callers pass the time of the event as a field."""
        self._kept.append((event, fields))

    def tell(self) -> None:
        """Write the kept lines, in order."""
        kept, self._kept = self._kept, []
        for event, fields in kept:
            log.debug(event, **fields)
