"""Plays logs of an earlier Baton (format 1, see record_before.py) with this one: every effect must be the same.

What differs on purpose is listed in ON_PURPOSE, and compared without regard to order.
"""

import argparse
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from baton.core import agreement
from baton.core.agreement import Chain, StepPlan
from baton.core.effects import Send
from baton.core.errors import Bug
from baton.core.handoff.plans import Plans
from baton.core.messages import LedgerView
from baton.core.parts import FrontParts, LeaderParts, RankParts
from baton.core.protocol import PROTOCOL
from baton.trace.coding import _encoder, decode
from baton.trace.difference import first_difference
from baton.trace.log import Raised, Step
from baton.trace.replay import make

FRAME = struct.Struct("<II")
EVENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "gateway_up": ("gateway_connected", ("boot",)),
    "peer_up": ("peer_connected", ("boot",)),
    "peer_lost": ("peer_lost", ("boot", "why")),
    "heard": ("message_received", ("sender", "message")),
    "reported": ("rank_reported", ("report",)),
    "timer": ("timer_due", ()),
    "connected": ("connected", ("peer", "why")),
    "read_refused": ("read_refused", ("handle", "why")),
    "report_taken": ("report_due", ()),
    "ledger_forgotten": ("forget_question", ("question",)),
}
WRAPPED = {  # an entry that held nothing but a struct, which is the event now
    "applied": "step_plan",
    "read_ended": "read_ended",
    "read_released": "read_released",
    "computed": "batch_done",
    "hashed": "digest_done",
    "host_copied": "host_copied",
    "found_wedged": "wedged",
    "cancelled": "cancel",
}
ASKS = {"ledger_asked": "ask_ledger", "clear_asked": "clear", "reset_cache_asked": "reset_cache"}
LEFT_OUT: dict[str, Any] = {"chain": b"", "events": {}}
ON_PURPOSE = {
    "gateway_connected"
}  # a gateway that connects hears of decode's pairs before its credits


def bodies(data: bytes) -> Iterator[Any]:
    """Every record as plain values."""
    at = 0
    while at + FRAME.size <= len(data):
        length, _ = FRAME.unpack_from(data, at)
        yield msgspec.msgpack.decode(data[at + FRAME.size : at + FRAME.size + length], strict=False)
        at += FRAME.size + length


def event_of(step: Any) -> dict[str, Any]:
    """What entered, as it enters now."""
    tag, *fields = step["entry"]
    if tag in WRAPPED:
        return {**fields[0], "type": WRAPPED[tag]}
    if tag == "submitted":
        (bits,) = [a["value"] for a in step["answers"]] or ["0"]
        return {"type": "submitted", "submit": fields[0], "room": bits.zfill(32)}
    if tag in ASKS:
        (asked,) = [o["question"] for o in step["outs"] if o["type"] == "asked"]
        audit = {"audit": fields[0]} if tag == "ledger_asked" else {}
        worker = fields[0] if tag == "reset_cache_asked" else None
        return {
            "type": "ask_workers",
            "message": {"type": ASKS[tag], "question": asked, **audit},
            "worker": worker,
        }
    kind, names = EVENTS[tag]
    return {"type": kind, **dict(zip(names, fields, strict=True))}


def comparable(value: Any) -> Any:
    """Reports without the digest of all plans, as a manifest in a plan has one field more now; books without the events that
    were counted, as the processes of a world share these."""
    if isinstance(value, dict):
        return {k: LEFT_OUT[k] if k in LEFT_OUT else comparable(v) for k, v in value.items()}
    return [comparable(v) for v in value] if isinstance(value, list) else value


def count_only(self: Chain, plan: StepPlan) -> bytes:
    """As Chain.extend, and every digest is the same."""
    if plan.seq != self.seq + 1:
        raise Bug(f"plan {plan.seq} came after plan {self.seq}")
    self.seq, self.value = plan.seq, b""
    return b""


Chain.extend = count_only  # type: ignore[method-assign]
agreement.FIRST_CHAIN = b""


def converted(record: Any) -> Any:
    """A record of format 1 as one of format 2."""
    record = comparable(record)
    if record["type"] == "step":
        outs = [o for o in record["outs"] if o["type"] not in ("asked", "unanswered")]
        record = {
            "type": "step",
            "at": record["at"],
            "core": record["core"],
            "event": event_of(record),
            "effects": outs,
        }
    return decode(msgspec.msgpack.encode(record))


def without_events(effect: Any) -> Any:
    """An effect of now, as `comparable` leaves it."""
    match effect:
        case Send(message=LedgerView() as view):
            counters = msgspec.structs.replace(view.counters, events={})
            return Send(effect.to, msgspec.structs.replace(view, counters=counters))
        case _:
            return effect


def played(path: Path) -> tuple[int, str | None]:
    """(steps, the first difference)."""
    cores: dict[str, Any] = {}
    plans, steps = Plans(), 0
    header, *records = bodies(path.read_bytes())
    assert (header["format"], header["protocol"]) == (1, PROTOCOL), header
    for raw in records:
        record = converted(raw)
        match record:
            case LeaderParts() | RankParts() | FrontParts():
                cores[
                    {LeaderParts: "leader", RankParts: "rank", FrontParts: "front"}[type(record)]
                ] = make(record, plans)
            case Step():
                steps += 1
                try:
                    came = tuple(cores[record.core.value].step(record.event, record.at))
                except Exception as error:  # noqa: BLE001  (an outcome, as it was then)
                    came = (Raised(type(error).__name__, str(error)),)
                expected = record.effects
                came = tuple(without_events(effect) for effect in came)
                if raw["entry"][0] in EVENTS and EVENTS[raw["entry"][0]][0] in ON_PURPOSE:
                    came, expected = (
                        tuple(sorted(effects, key=_encoder.encode)) for effects in (came, expected)
                    )
                if (found := first_difference(expected, came)) is not None:
                    return (
                        steps,
                        f"{path}: step {steps}, {record.core.value} {raw['entry'][0]}: {found}",
                    )
    return steps, None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    steps = logs = different = 0
    for path in sorted(parser.parse_args().directory.rglob("*.baton-log")):
        n, found = played(path)
        steps, logs = steps + n, logs + 1
        if found is not None:
            different += 1
            print(found)
    print(f"{logs:,} logs, {steps:,} steps, {different} logs differ")
    return 1 if different else 0


sys.exit(main())
