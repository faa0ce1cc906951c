"""What a planted bug is: the shipped code with one decision replaced, and what must notice it."""

from collections.abc import Callable
from dataclasses import dataclass

from baton.dev.sim.parts import Parts


@dataclass(frozen=True)
class Plant:
    """A bug on purpose.

    Attributes:
        models: what it stands for, in a sentence
        invariants: invariants of which one must be the first to break
        row: of the record in the design of what must never happen here (1 is the first), if it
            stands for one
    """

    name: str
    models: str
    invariants: tuple[str, ...]
    row: int | None
    make: Callable[[], Parts]
