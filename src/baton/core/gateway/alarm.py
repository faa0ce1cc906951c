"""The earliest of many due times, for whoever is asked for it far more often than it changes."""

from collections.abc import Iterable

from baton.core.ids import Micros


class Alarm:
    """Never later than the earliest due time it was told of; perhaps earlier, as nothing is taken out before it rings.

    Whoever hears it ring looks what is due, and says by `reset` what is left.
    """

    def __init__(self) -> None:
        self.at: Micros | None = None

    def tell(self, due: Micros) -> None:
        """Something is due then."""
        if self.at is None or due < self.at:
            self.at = due

    def reset(self, dues: Iterable[Micros]) -> None:
        """All that is due at any time."""
        self.at = min(dues, default=None)
