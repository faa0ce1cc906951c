"""The control plane below the sessions: frames that are lost, repeated, late, reordered, or reach a
later incarnation.

It is never kinder than ZeroMQ: a link outlives the process that listened, and delivers queued
frames to the next process that listens there.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

from baton.core.ids import Link
from baton.core.protocol import PROTOCOL, SPOKEN
from baton.dev.sim.heap import Heap
from baton.dev.sim.older import not_understood
from baton.dev.sim.process import Process
from baton.dev.sim.settings import Faults
from baton.dev.sim.tape import Tape

LATENCY_US = 60
BREAK_US = 1_000  # from the death of a process until its peers see their connections end
OLD_US = 6_000_000
LATE_US = 4_000_000  # beyond the silence that ends a session
BURST = 4  # frames lost in a row on one route: enough to end a session by silence


class SimControl:
    """Port Control for one process."""

    def __init__(
        self,
        network: "Network",
        process: Process,
        address: str | None,
        spoken: Sequence[int] = SPOKEN,
    ) -> None:
        """spoken: the protocols of the process"""
        self.network, self.process = network, process
        self._old = PROTOCOL not in spoken
        self._inbox: list[tuple[Link, bytes]] = []
        self._routes: dict[Link, Route] = {}
        self._inward: dict[tuple[SimControl, Link], Link] = {}
        self._broken: list[Link] = []
        self._links = count(1)
        process.on_death.append(lambda _: network.died(self))
        network.joins(self)
        self.closed = False
        self.address = address
        if address is not None:
            network.listen(address, self)

    def dial(self, address: str) -> Link:
        link = Link(next(self._links))
        self._routes[link] = ToAddress(address)
        return link

    def send(self, link: Link, frame: bytes) -> bool:
        self.process.port_call()
        route = self._routes.get(link)
        if route is None or self.closed:
            return False
        self.network.carry(self, link, route, frame)
        return True

    def receive(self) -> list[tuple[Link, bytes]]:
        inbox, self._inbox = self._inbox, []
        return inbox

    def broken(self) -> list[Link]:
        broken, self._broken = self._broken, []
        return broken

    def breaks(self, other: "SimControl") -> None:
        """The connections with another control port end."""
        if not self.process.alive or self.closed:
            return
        self._broken += [
            link for link, route in self._routes.items() if self.network.leads(route, other)
        ]
        if self._broken:
            self.process.wake()

    def hang_up(self, link: Link) -> None:
        self._routes.pop(link, None)

    @property
    def bound_address(self) -> str | None:
        return self.address

    def fileno(self) -> int:
        """Return no descriptor: `deliver` wakes the process."""
        return -1

    def close(self) -> None:
        self.closed = True

    def deliver(
        self, source: "SimControl", source_link: Link, to: Link | None, frame: bytes
    ) -> None:
        """Take a frame that has come, on a link of ours or (None) one that dialled us."""
        if not self.process.alive or self.closed:
            return
        if to is None:
            to = self._inward.get((source, source_link))
            if to is None:
                to = self._inward[source, source_link] = Link(next(self._links))
                self._routes[to] = ToLink(source, source_link)
        elif to not in self._routes:
            return
        if self._old and (what := not_understood(frame)):
            self.network.violate("understood", f"{self.process.name} is older, and gets {what}")
        self._inbox.append((to, frame))
        self.process.wake()


class ToAddress:
    """A route to the process that listens at an address when the frame arrives."""

    def __init__(self, address: str) -> None:
        self.address = address


class ToLink:
    """A route to exactly the process that dialled."""

    def __init__(self, control: SimControl, link: Link) -> None:
        self.control, self.link = control, link


Route = ToAddress | ToLink


class FaultListener(Protocol):
    """Wants to know of faults."""

    def __call__(self, kind: str, *names: str) -> None:
        """A fault of this kind has hit these processes."""
        ...


class Network:
    """The links of a world."""

    def __init__(
        self,
        heap: Heap,
        tape: Tape,
        faults: Callable[[], Faults],
        fault: FaultListener,
        violate: Callable[[str, str], object],
    ) -> None:
        self._heap, self._tape, self._faults, self._fault = heap, tape, faults, fault
        self.violate = violate
        self._listening: dict[str, SimControl] = {}
        self._ports: list[SimControl] = []  # of living processes
        self._last: dict[tuple[SimControl, Link], int] = {}  # when the last frame in order arrives
        self._lost: dict[tuple[str, str], int] = {}  # frames lost in a row
        self.cut: set[tuple[str, str]] = set()  # (from, to): one-way partitions
        self.frames = 0
        self.on_frame: Callable[[str, str, bytes, str], None] | None = None  # .., how it was lost

    def joins(self, control: SimControl) -> None:
        """There is one more control port."""
        self._ports.append(control)

    def died(self, control: SimControl) -> None:
        """A process is dead. Of two in three the host is dead too, and says nothing of it."""
        self._ports.remove(control)
        if control.process.boot % 3 == 0:
            for other in self._ports:
                self._heap.at(self._heap.now + BREAK_US, other.breaks, control)

    def _break(self, source: SimControl, route: Route) -> None:
        """A connection ends between two that live; they connect again at once."""
        target = route.control if isinstance(route, ToLink) else self._listening.get(route.address)
        if target is not None:
            for one, other in ((source, target), (target, source)):
                self._heap.at(self._heap.now + BREAK_US, one.breaks, other)

    def leads(self, route: Route, control: SimControl) -> bool:
        """Return whether a route leads to a control port."""
        if isinstance(route, ToLink):
            return route.control is control
        return self._listening.get(route.address) is control

    def listen(self, address: str, control: SimControl) -> None:
        """Deliver frames for the address here from now on."""
        self._listening[address] = control

    def carry(self, source: SimControl, link: Link, route: Route, frame: bytes) -> None:
        """Send a frame on its way."""
        self.frames += 1
        self._heap.mix(frame)
        faults, tape = self._faults(), self._tape
        if self.cut and (pair := self._pair(source, route)) in self.cut:
            self._gone(pair, frame, "cut off")
            return
        if faults.loss and tape.chance(faults.loss, "lose a frame"):
            pair = self._pair(source, route)
            self._lost[pair] = self._lost.get(pair, 0) + 1
            if self._lost[pair] >= BURST:
                self._fault("loss burst", *pair)
            if self._lost[pair] == BURST:
                self._break(source, route)
            self._gone(pair, frame, "lost")
            return
        if self._lost:
            self._lost.pop(self._pair(source, route), None)
        arrival = self._heap.now + LATENCY_US
        if faults.late and tape.chance(faults.late, "a frame beyond every timeout"):
            self._fault("late frame", *self._pair(source, route))
            arrival += LATE_US
        elif faults.reorder and tape.chance(faults.reorder, "reorder"):
            arrival += 50 * (1 + tape.below(400, "reorder by"))
        else:
            if faults.lag and tape.chance(faults.lag, "a frame lags"):
                arrival += 1000 * (1 + tape.below(40, "lags by"))
            if (last := self._last.get((source, link), 0)) > arrival:
                arrival = last
            self._last[source, link] = arrival
        self._heap.at(arrival, self._arrive, source, link, route, frame)
        if faults.duplicate and tape.chance(faults.duplicate, "duplicate"):
            self._heap.at(
                arrival + 100 * tape.below(300, "duplicate after"),
                self._arrive,
                source,
                link,
                route,
                frame,
            )
        if faults.old and tape.chance(faults.old, "an old copy"):
            self._heap.at(
                arrival + tape.below(60, "old by") * OLD_US // 60,
                self._arrive,
                source,
                link,
                route,
                frame,
            )

    def _gone(self, pair: tuple[str, str], frame: bytes, how: str) -> None:
        if self.on_frame is not None:
            self.on_frame(*pair, frame, how)

    def _pair(self, source: SimControl, route: Route) -> tuple[str, str]:
        """Return the names of the sender and the receiver."""
        if isinstance(route, ToLink):
            return source.process.name, route.control.process.name
        listener = self._listening.get(route.address)
        return source.process.name, listener.process.name if listener is not None else route.address

    def _arrive(self, source: SimControl, link: Link, route: Route, frame: bytes) -> None:
        if isinstance(route, ToLink):
            target, to = route.control, route.link
        else:
            listener = self._listening.get(route.address)
            if listener is None:
                return
            target, to = listener, None
        if self.on_frame is not None:
            self.on_frame(source.process.name, target.process.name, frame, "")
        target.deliver(source, link, to, frame)
