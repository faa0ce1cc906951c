"""What a handoff costs in addition to the transfer, from the service's own log.

    prefill: step computed ──▶ offered ──▶ decode: read started ──wire──▶ read ended ──▶ verified ──▶ received
             └────────────────────────────────── handoff ───────────────────────────────────────────────────┘

From there on the room takes part in decode's next step. All times are of one machine's monotonic
clock.
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
    """Return all handoffs of a service with one prefill worker and one rank a worker."""
    computed = [
        (int(e["t_us"]), int(e["seal_us"]))
        for e in service.events("step_computed")
        if "prefill" in e["worker"]
    ]
    # the last of each room: of its last chunk
    started = {e["room"]: (int(e["t_us"]), int(e["bytes"])) for e in service.events("read_started")}
    ended = {e["room"]: int(e["t_us"]) for e in service.events("read_ended")}
    received = {e["room"]: int(e["t_us"]) for e in service.events("received")}
    found = []
    for event in service.events("offered"):
        room = event["room"]
        if event.get("last") == "false" or room not in received:  # true is written as a bare word
            continue
        done, seal = max(c for c in computed if c[0] <= int(event["t_us"]))
        (begin, nbytes), end, commit = started[room], ended[room], received[room]
        found.append(HandoffTimes(commit - done, end - begin, commit - end, seal, nbytes))
    return found


def summary(found: list[HandoffTimes]) -> dict[str, float]:
    """Return medians in milliseconds and MB, and the 99th percentile of what is beyond the
    wire."""
    beyond = sorted(h.beyond for h in found)
    return {
        "handoffs": len(found),
        "total_ms": statistics.median(h.total for h in found) / 1e3,
        "wire_ms": statistics.median(h.wire for h in found) / 1e3,
        "verify_ms": statistics.median(h.verify for h in found) / 1e3,
        "beyond_wire_ms": statistics.median(beyond) / 1e3,
        "beyond_wire_p99_ms": beyond[-(-99 * len(beyond) // 100) - 1] / 1e3,
        "birth_seal_ms": statistics.median(h.seal for h in found) / 1e3,
        "mbytes": statistics.median(h.nbytes for h in found) / 1e6,
    }
