"""The link between a simulated vLLM's scheduler and the leader, with the codec that is shipped.

scheduler ──GuestAllocated, GuestScheduled, GuestFinished──▶ leader
          ◀──────────────TellEngine, Evict─────────────────┘      each a little later, in order
"""

from typing import Any

import msgspec

from baton.core.effects import GuestNews
from baton.core.events import GuestEvent
from baton.dev.sim.process import Process

LATENCY_US = 40
LATE_US = 200  # times up to 50: how long one side may be behind the other


class Way:
    """One direction. `reads`: what is carried"""

    def __init__(self, world: Any, process: Process, reads: Any) -> None:
        self._world, self._process = world, process
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(reads)
        self._arrived: list[bytes] = []
        self._last = 0  # when the last one arrives

    def send(self, what: Any) -> None:
        """Send something on its way."""
        world = self._world
        late = (
            LATE_US * world.tape.below(50, "the link is late")
            if world.hostile and world.tape.chance(0.05, "a late link")
            else 0
        )
        # never two at the same time, which would come in any order
        self._last = max(self._last + 1, world.heap.now + LATENCY_US + late)
        world.heap.at(self._last, self._arrive, msgspec.msgpack.encode(what))

    def _arrive(self, encoded: bytes) -> None:
        self._arrived.append(encoded)
        self._process.wake()

    def receive(self) -> list[Any]:
        """Return what has arrived since the last call."""
        arrived, self._arrived = self._arrived, []
        return [self._decoder.decode(encoded) for encoded in arrived]


class SimGuestLink:
    """Implements ports.guest.GuestLink and ports.guest.SchedulerLink."""

    def __init__(self, world: Any, process: Process) -> None:
        self._process = process
        self._up, self._down = Way(world, process, GuestEvent), Way(world, process, GuestNews)

    # ---- the leader's end -----------------------------------------------------------------------

    def events(self) -> list[GuestEvent]:
        return self._up.receive()

    def tell(self, news: GuestNews) -> None:
        self._process.port_call()
        self._down.send(news)

    def fileno(self) -> int:
        """Return no descriptor: what arrives wakes the process."""
        return -1

    # ---- the scheduler's end --------------------------------------------------------------------

    def say(self, event: GuestEvent) -> None:
        self._up.send(event)

    def news(self) -> list[GuestNews]:
        return self._down.receive()

    def close(self) -> None: ...
