"""The settings of a world, in words."""

from collections.abc import Iterable
from enum import Enum

import msgspec

from baton.core.memory.state import StateTable, Window
from baton.dev.sim.settings import Faults, WorldDraw

TOLD_APART = ("table", "workers", "faults", "guests")


def described(draw: WorldDraw) -> tuple[str, ...]:
    """Return a line for the model, each worker, the faults, and the rest."""
    return (
        f"state     {_state(draw.table)}",
        *(f"worker    {w.name}: {_fields(w, ('name', 'role'))}" for w in draw.workers),
        f"faults    {_faults(draw.faults)}",
        f"world     {_fields(draw, TOLD_APART)}",
        *([f"guests    {_fields(draw.guests, ())}"] if draw.guests is not None else []),
    )


def _state(table: StateTable) -> str:
    kinds = []
    for spec in table.specs:
        group = table.group(spec.group)
        extent = (
            f"window of {group.extent.tokens}"
            if isinstance(group.extent, Window)
            else type(group.extent).__name__.lower()
        )
        kinds.append(
            f"{spec.name} ({extent}, by {group.unit.value}, layers "
            f"{' '.join(map(str, spec.layers))},"
            f" {'+'.join(spec.parts)}, {spec.heads} heads)"
        )
    return f"{', '.join(kinds)}; blocks of {table.block_tokens} tokens"


def _faults(faults: Faults) -> str:
    on = {name: value for name, value in msgspec.structs.asdict(faults).items() if value}
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in on.items()) or "none"


def _fields(struct: msgspec.Struct, apart: Iterable[str]) -> str:
    fields = msgspec.structs.asdict(struct)
    return ", ".join(
        f"{name.replace('_', ' ')} {_value(value)}"
        for name, value in fields.items()
        if name not in apart
    )


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Enum):
        return str(value.value)
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
