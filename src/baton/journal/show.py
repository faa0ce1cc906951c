"""A record in one line, for people."""

from collections import Counter

from baton.core.ids import Key
from baton.core.request import Say
from baton.core.room import Send
from baton.journal.difference import describe, name_of
from baton.journal.entries import Answer, AnyEntry, DrewBits, Header, Out, Raised, Record, Step


def line(number: int, record: Record) -> str:
    """The record; `number` counts the steps, from 1."""
    match record:
        case Header():
            return f"baton {record.version}, format {record.format}, protocol {record.protocol}"
        case Step():
            outs = Counter(_out(out) for out in record.outs)
            effects = ", ".join(f"{n} x {what}" if n > 1 else what for what, n in outs.items())
            asked = "".join(f" [{_answer(a)}]" for a in record.answers)
            entry = f"{record.core.value:6} {describe(record.entry)}{_about(record.entry)}"
            return f"{number:>8} {record.at / 1e6:14.6f} {entry}{asked}{' -> ' if effects else ''}{effects}"
        case _:
            return f"{name_of(record)}: {record!r}"[:300]


def _about(entry: AnyEntry) -> str:
    """The room that an entry is about, if it is about one."""
    key = getattr(getattr(entry, "message", None), "key", None)
    return f" {key.room[:8]}.{key.epoch}" if isinstance(key, Key) else ""


def _out(out: Out) -> str:
    match out:
        case Send():
            return f"send {name_of(out.message)}"
        case Say():
            return f"say {name_of(out.heard)}"
        case Raised():
            return f"raised {out.kind}: {out.text}"
        case _:
            return name_of(out)


def _answer(answer: Answer) -> str:
    match answer:
        case DrewBits():
            return f"{answer.count} bits"
