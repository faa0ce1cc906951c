"""The ways in which a number of workers can be divided."""

from collections.abc import Sequence

import msgspec

from baton.core.errors import ConfigError
from baton.core.gateway.request import DECODE, PREFILL, UNIFIED

MOST_SPLITS = 7  # tried of a large number of workers


class Division(msgspec.Struct, frozen=True, order=True):
    """So many prefill and decode workers; or unified workers, and none of the others."""

    prefill: int = 0
    decode: int = 0
    unified: int = 0

    @property
    def roles(self) -> tuple[str, ...]:
        """The role of each worker."""
        return (
            *(PREFILL,) * self.prefill,
            *(DECODE,) * self.decode,
            *(UNIFIED,) * self.unified,
        )

    @property
    def split(self) -> bool:
        """Whether prompts are handed over."""
        return self.prefill > 0

    def __str__(self) -> str:
        return f"{self.prefill}p:{self.decode}d" if self.split else f"{self.unified} unified"


def divisions(workers: int) -> list[Division]:
    """Return the divisions to try: all workers unified, and every split of a few, or splits at
    equal distances of many.

    Raises:
        ConfigError: there are no workers
    """
    if workers < 1:
        raise ConfigError(f"--workers {workers}: there must be at least 1")
    if workers - 1 <= MOST_SPLITS:
        prefills = list(range(1, workers))
    else:
        places = (workers * i / (MOST_SPLITS + 1) for i in range(1, MOST_SPLITS + 1))
        prefills = sorted({max(1, round(place)) for place in places})
    return [Division(unified=workers), *(Division(p, workers - p) for p in prefills)]


def chosen_divisions(workers: int, texts: Sequence[str]) -> list[Division]:
    """Return all workers unified, to compare with, and these splits (`P:D`).

    Raises:
        ConfigError: a text is no split of so many workers
    """
    found = divisions(workers)[:1]
    for text in texts:
        left, _, right = text.partition(":")
        if not (left.isdecimal() and right.isdecimal()):
            raise ConfigError(f"--divisions {text}: give PREFILL:DECODE, e.g. 1:3")
        split = Division(int(left), int(right))
        if min(split.prefill, split.decode) < 1 or split.prefill + split.decode != workers:
            raise ConfigError(
                f"--divisions {text}: give at least one of each, {workers} in all (--workers)"
            )
        found.append(split)
    return found
