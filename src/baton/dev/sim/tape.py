"""The tape: every choice of a run, in order. 0 is always the calm choice.

A run is made from a seed (choices are drawn) or from a script (choices are given; those that it
lacks are 0). Only choices other than 0 are kept, so a failing run is a short list, and to shrink it
is to set more of them to 0.
"""

from collections.abc import Mapping
from random import Random
from typing import Any

Script = Mapping[int, int]  # position on the tape -> choice


class Tape:
    """Draws and records choices."""

    def __init__(self, *, seed: int = 0, script: Script | None = None) -> None:
        self._draw = Random(seed).random
        self._script = script
        self._at = 0
        # position, choice and label of each, in a flat list, as there are thousands
        self._kept: list[Any] = []

    def below(self, n: int, label: str) -> int:
        """Return an integer in [0, n)."""
        at = self._at
        self._at = at + 1
        choice = (
            int(self._draw() * n) if self._script is None else min(self._script.get(at, 0), n - 1)
        )
        if choice:
            self._kept += at, choice, label
        return choice

    def chance(self, probability: float, label: str) -> bool:
        """Return True with this probability; False is the calm choice. A probability of 0 makes no
        choice at all."""
        if probability <= 0.0:
            return False
        at = self._at
        self._at = at + 1
        hit = self._draw() < probability if self._script is None else bool(self._script.get(at, 0))
        if hit:
            self._kept += at, 1, label
        return hit

    @property
    def taken(self) -> dict[int, int]:
        """The choices other than 0, by position."""
        return dict(zip(self._kept[0::3], self._kept[1::3], strict=True))

    @property
    def labels(self) -> dict[int, str]:
        """The labels of the choices other than 0, by position."""
        return dict(zip(self._kept[0::3], self._kept[2::3], strict=True))

    @property
    def length(self) -> int:
        """The number of choices made so far."""
        return self._at
