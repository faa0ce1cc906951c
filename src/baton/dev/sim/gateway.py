"""The process of one gateway from its start to its end: the shipped pump, and clients, not HTTP."""

from collections.abc import Sequence
from typing import Any

from baton.core.effects import Send
from baton.core.events import FrontEvent, MessageReceived
from baton.core.frames import Said
from baton.core.gateway.front import Front
from baton.core.gateway.request import FrontSettings, Say
from baton.core.ids import Boot
from baton.core.messages import CacheChanged, Close, Failed, Ticket
from baton.core.parts import FrontParts
from baton.dev.sim.checked import Checked
from baton.dev.sim.confusion import Voice
from baton.dev.sim.guests.client import SimEngineClient
from baton.dev.sim.network import SimControl
from baton.dev.sim.parts import Parts
from baton.dev.sim.process import Process
from baton.dev.sim.watched import Watched
from baton.shell.gateway_pump import GatewayPump
from baton.shell.lines import Lines
from baton.trace.checks.all import Checks
from baton.trace.log import CoreKind


class GatewayRun:
    """One boot of a gateway."""

    def __init__(
        self,
        world: Any,
        process: Process,
        *,
        address: str,
        settings: FrontSettings,
        parts: Parts,
        spoken: Sequence[int],
    ) -> None:
        self._world, self.process, self.spoken = world, process, spoken
        self.front: Front = parts.front(process.boot, settings)
        self.front.marks = world.core_marks
        sessions = parts.sessions(process.boot, world.limits, spoken)
        control = SimControl(world.network, process, address, spoken)
        lines = Lines(sessions, control, process.clock)
        world.confusion.joins(process.boot, Voice(process, sessions, lines))
        checks = Checks()
        checks.made(FrontParts(process.boot, settings))
        watched = Watched[FrontEvent, Send | Say](
            self.front, self._before, self._after, misses=self._misses
        )
        core = Checked(CoreKind.FRONT, watched, checks, world.violate)
        engines = SimEngineClient(world, process, self._engine_says) if world.draw.guests else None
        self._pump = GatewayPump(
            core=core,
            front=self.front,
            lines=lines,
            clock=process.clock,
            say=world.people.hear if engines is None else world.people.hear_if_there,
            engines=engines,
        )
        process.start(lambda: self._pump)

    @property
    def boot(self) -> Boot:
        """The boot of its process."""
        return self.process.boot

    def step(self, event: FrontEvent) -> None:
        """Take an event from the HTTP side.

        Raises:
            Overloaded: the request is refused
        """
        self._pump.step(event)
        self.process.wake(0)

    def _engine_says(self, boot: Boot, message: Said) -> None:
        """An engine has answered over HTTP: to the core it is as if its worker had said so."""
        self.step(MessageReceived(boot, message))

    def _misses(self, event: FrontEvent) -> bool:
        missed = self._world.faults().missed
        return (
            bool(missed)
            and isinstance(event, MessageReceived)
            and isinstance(event.message, CacheChanged)
            and not event.message.afresh  # an answer comes, or its session ends
            and bool(self._world.tape.chance(missed, "news missed"))
        )

    def _before(self, event: FrontEvent) -> None:
        if not isinstance(event, MessageReceived):
            return
        sender, message = event.sender, event.message
        aborted = isinstance(message, Failed) and not self.front.hears(sender, message.key)
        if not aborted and self._world.confusion.rightful(sender, message):
            self._world.handoffs.told(message)
        self._world.overtaking.told(self.boot, message)
        self._world.confusion.heard(sender, self.boot, message)

    def _after(self, event: FrontEvent, effects: list[Send | Say]) -> None:
        self._world.overtaking.begins(self.boot, self.process.name, effects)
        for effect in effects:
            match effect:
                case Send(message=Ticket() as ticket):
                    self._world.concerns(ticket)
                case Send(message=Close(room=room)):
                    self._world.confusion.closes(room)
                case _:
                    pass
