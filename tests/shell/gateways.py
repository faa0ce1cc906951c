"""A directory of gateways that a test changes."""


class Gateways:
    """Implements ports.directory.Directory."""

    def __init__(self, *known: str) -> None:
        self.known = known

    def addresses(self) -> tuple[str, ...]:
        return self.known

    def close(self) -> None: ...
