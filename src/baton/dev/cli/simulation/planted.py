"""Planted bugs, by the names that the command line gives them."""

from dataclasses import replace

from baton.core.errors import ConfigError
from baton.dev.sim.parts import SHIPPED, Parts
from baton.dev.sim.plants import BY_NAME
from baton.dev.sim.plants.plant import Plant


def bank() -> list[Plant]:
    """Return every planted bug."""
    return list(BY_NAME.values())


def parts_of(planted: str | None, *, guests: bool) -> Parts:
    """Return the parts of a world with that bug; with None, the shipped ones.

    guests: whether workers are guests of vLLM engines; those of some bugs always are

    Raises:
        ConfigError: there is no such bug
    """
    parts = SHIPPED if planted is None else _plant(planted).make()
    return replace(parts, guests=guests or parts.guests)


def expected(planted: str | None) -> frozenset[str]:
    """Return the invariants that this bug is known to break; none for the shipped code."""
    return frozenset() if planted is None else frozenset(_plant(planted).invariants)


def _plant(name: str) -> Plant:
    if name not in BY_NAME:
        raise ConfigError(
            f"--planted {name}: there is no such planted bug; --list-planted shows them"
        )
    return BY_NAME[name]
