"""What a handoff costs in addition to the transfer, from the service's own log.

    prefill: step computed ──▶ offered ──▶ decode: read started ──wire──▶ read ended ──▶ hash ended ──▶ received ──▶ step started
             └────────────────────────────────── handoff ────────────────────────────────────────────────────────────┘

All times are of one machine's monotonic clock.
"""

import statistics

import msgspec

from baton.dev.bench.service import Service


class HandoffTimes(msgspec.Struct, frozen=True):
    """The times of one request's handoff, in microseconds. `wire` and `verify` are those of the
    last chunk."""

    total: int
    wire: int
    verify: int
    seal: int  # at birth, of the last step
    nbytes: int

    @property
    def beyond(self) -> int:
        """The time other than `wire`."""
        return self.total - self.wire


def handoffs(service: Service) -> list[HandoffTimes]:
    """Return all handoffs of a service that had one request at a time."""
    computed = [
        (int(e["t_us"]), int(e["seal_us"]))
        for e in service.events("step_computed")
        if "prefill" in e["worker"]
    ]
    started = [(int(e["t_us"]), int(e["bytes"])) for e in service.events("read_started")]
    ended = [int(e["t_us"]) for e in service.events("read_ended")]
    hashed = [int(e["t_us"]) for e in service.events("hash_ended")]
    steps = [int(e["t_us"]) for e in service.events("step_started") if "decode" in e["worker"]]
    found = []
    for event in service.events("offered"):
        if event.get("last") == "false":  # true is written as a bare word
            continue
        offered = int(event["t_us"])
        done, seal = max(c for c in computed if c[0] <= offered)
        begin, nbytes = min(s for s in started if s[0] >= offered)
        end = min(t for t in ended if t >= begin)
        verified = min((t for t in hashed if t >= end), default=end)
        step = min(t for t in steps if t >= end)
        found.append(HandoffTimes(step - done, end - begin, verified - end, seal, nbytes))
    return found


def summary(found: list[HandoffTimes]) -> dict[str, float]:
    """Return medians, in milliseconds and MB."""
    return {
        "handoffs": len(found),
        "total_ms": statistics.median(h.total for h in found) / 1e3,
        "wire_ms": statistics.median(h.wire for h in found) / 1e3,
        "verify_ms": statistics.median(h.verify for h in found) / 1e3,
        "beyond_wire_ms": statistics.median(h.beyond for h in found) / 1e3,
        "birth_seal_ms": statistics.median(h.seal for h in found) / 1e3,
        "mbytes": statistics.median(h.nbytes for h in found) / 1e6,
    }
