"""The earliest of many due times, for whoever is asked for it far more often than it changes."""

from collections.abc import Iterable

from baton.core.ids import Micros


class Alarm:
    """Keeps a time that is never later than the earliest due time it was told of.

    It may be earlier, as nothing is taken out before it rings. Whoever hears it ring looks at what
    is due, and says by `reset` what is left.
    """

    def __init__(self) -> None:
        self.at: Micros | None = None

    def tell(self, due: Micros) -> None:
        """Something is due at this time."""
        if self.at is None or due < self.at:
            self.at = due

    def reset(self, dues: Iterable[Micros]) -> None:
        """Forget what was told: these are all the due times that there are."""
        self.at = min(dues, default=None)
