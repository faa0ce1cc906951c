"""Formats a record as one line, for people."""

from collections import Counter

from baton.core.effects import Send
from baton.core.events import MessageReceived
from baton.core.gateway.request import Say
from baton.core.ids import Key
from baton.trace.difference import describe, name_of
from baton.trace.log import AnyEffect, AnyEvent, Header, Raised, Record, Step


def line(number: int, record: Record) -> str:
    """Format a record; `number` is the number of the step, from 1."""
    match record:
        case Header():
            return f"baton {record.version}, format {record.format}, protocol {record.protocol}"
        case Step():
            kinds = Counter(_effect(effect) for effect in record.effects)
            effects = ", ".join(f"{n} x {what}" if n > 1 else what for what, n in kinds.items())
            event = f"{record.core.value:6} {describe(record.event)}{_about(record.event)}"
            return (
                f"{number:>8} {record.at / 1e6:14.6f} {event}{' -> ' if effects else ''}{effects}"
            )
        case _:
            return f"{name_of(record)}: {record!r}"[:300]


def _about(event: AnyEvent) -> str:
    """Name the room of an event; empty if the event has none."""
    key = getattr(event.message, "key", None) if isinstance(event, MessageReceived) else None
    return f" {key.room[:8]}.{key.epoch}" if isinstance(key, Key) else ""


def _effect(effect: AnyEffect) -> str:
    match effect:
        case Send():
            return f"send {name_of(effect.message)}"
        case Say():
            return f"say {name_of(effect.heard)}"
        case Raised():
            return f"raised {effect.kind}: {effect.text}"
        case _:
            return name_of(effect)
