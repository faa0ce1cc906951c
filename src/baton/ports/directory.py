"""Port: where a worker finds its gateways.

A1 `addresses` waits for nobody. A2 A change wakes the process that asks. A3 While nothing can be
learned, the last answer stands.
"""

from typing import Protocol


class Directory(Protocol):
    """The control addresses of the gateways, as they are now."""

    def addresses(self) -> tuple[str, ...]:
        """Return them, sorted, each tcp://HOST:PORT or ipc://PATH."""
        ...

    def close(self) -> None:
        """Stop looking. May be called twice."""
        ...
