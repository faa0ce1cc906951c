"""What happened in a turn of a pump, told once the turn has acted: writing a line costs more than most effects."""

import structlog

log = structlog.get_logger()


class Narration:
    """Debug lines kept until `tell`; each carries the time at which it was noted."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, dict[str, object]]] = []

    def note(self, event: str, **fields: object) -> None:
        """Keep one line."""
        self._kept.append((event, fields))

    def tell(self) -> None:
        """Write what was kept, in order."""
        kept, self._kept = self._kept, []
        for event, fields in kept:
            log.debug(event, **fields)
