"""The bank of planted bugs, by name."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from baton.core.errors import ConfigError
from baton.sim.parts import SHIPPED, Parts


def bank() -> Mapping[str, Any]:
    """Every planted bug."""
    try:
        plants: Mapping[str, Any] = import_module("baton.sim.plants").PLANTS
    except ModuleNotFoundError:
        return {}
    return plants


def parts_of(planted: str | None) -> Parts:
    """What runs with that bug; None: what is shipped. Raises ConfigError."""
    if planted is None:
        return SHIPPED
    plants = bank()
    if planted not in plants:
        raise ConfigError(f"--planted {planted}: there is no such planted bug; --list-planted shows them")
    parts: Parts = plants[planted].make()
    return parts


def expected(planted: str | None) -> frozenset[str]:
    """The invariants that this bug is known to break; none for what is shipped."""
    return frozenset() if planted is None else frozenset(bank()[planted].invariants)
