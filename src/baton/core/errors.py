"""Errors by blame.

BatonError
├── ConfigError     the operator's: names the value, the limit and the remedy
├── PeerError       another process said something it must not
│   └── Mismatch    two workers do not fit together: names the field and both values
├── FabricError     a transfer engine failed or refused
├── Overloaded      no space now; try again later
├── GivenUp         work of this process never ends, so the process ends at once, without cleaning up
└── Bug             ours; the process ends
"""


class BatonError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(BatonError):
    """A setting that cannot work."""


class PeerError(BatonError):
    """A message that breaks the protocol."""


class Mismatch(PeerError):
    """Two workers that cannot hand over to each other."""

    def __init__(self, field: str, ours: object, theirs: object, why: str = "") -> None:
        self.field, self.ours, self.theirs = field, ours, theirs
        super().__init__(
            f"{field} differs: ours is {ours!r}, theirs is {theirs!r}{': ' + why if why else ''}"
        )


class FabricError(BatonError):
    """A transfer that cannot be made."""


class Overloaded(BatonError):
    """There is no space now. Says how long to wait before another try."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class GivenUp(BatonError):
    """Work of ours never ends. Threads may hang in it, so nothing is waited for."""


class Bug(BatonError):
    """An invariant of ours does not hold."""
