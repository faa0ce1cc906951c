"""A gateway's pump: drain the control plane, step the request logic, perform its effects.

workers ──▶ Lines ──▶ Front ──Say──▶ HTTP side
                ◀──Send──┘
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from baton.core.door import Heard
from baton.core.effects import Send
from baton.core.events import Core, FrontEvent, MessageReceived, PeerLost, TimerDue
from baton.core.frames import Said
from baton.core.gateway.front import Front
from baton.core.gateway.request import Say
from baton.core.ids import Boot, Micros
from baton.core.messages import Abort, AnyMessage, Paired, Ticket, Unpaired
from baton.core.session.session import PeerUp
from baton.ports.clock import Clock
from baton.shell.lines import Lines

log = structlog.get_logger()
PAIRING = (Paired, Unpaired)


class GuestEngines(Protocol):
    """The engines whose workers are guests of them: they get requests over HTTP, beside tickets."""

    def heard(self, sender: Boot, message: Said) -> bool:
        """A message came from a worker. Returns whether it is kept back: its engine is not up yet,
        and the message is said again when it is."""
        ...

    def sent(self, to: Boot, message: AnyMessage) -> None:
        """A message goes to a worker."""
        ...

    def lost(self, boot: Boot) -> None:
        """A worker is gone."""
        ...


class Watcher(Protocol):
    """Sees what the core does."""

    def stepped(self, event: FrontEvent, effects: Sequence[Send | Say], now: Micros) -> None:
        """The core has taken an event, and wants these effects."""
        ...


class GatewayPump:
    """One gateway. Its owner calls `turn` when frames have come, after every `step`, and when it
    asked.

    `core` takes the events and may record them; `front` is the object behind it, for queries.
    """

    def __init__(
        self,
        *,
        core: Core[FrontEvent, Send | Say],
        front: Front,
        lines: Lines,
        clock: Clock,
        say: Callable[[Heard], None],
        engines: GuestEngines | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self._engines, self._watcher = engines, watcher
        self._core, self._front, self._lines, self._clock, self._say = (
            core,
            front,
            lines,
            clock,
            say,
        )
        self._effects: list[Send | Say] = []
        self._refusals: frozenset[str] = frozenset()  # refusals already logged

    def step(self, event: FrontEvent) -> None:
        """Give the core an event of the HTTP side; its effects are performed in the next turn.

        Raises:
            Overloaded: the request is refused
        """
        self._step(event, self._clock.now())

    def _step(self, event: FrontEvent, now: Micros) -> None:
        effects = self._core.step(event, now)
        self._effects += effects
        if self._watcher is not None:
            self._watcher.stepped(event, effects, now)

    def turn(self) -> Micros | None:
        """Do everything that can be done now; returns how long to sleep (None: until woken)."""
        now = self._clock.now()
        for event in self._lines.receive():
            match event:
                case MessageReceived():
                    if self._engines is not None and self._engines.heard(
                        event.sender, event.message
                    ):
                        continue
                    self._step(event, now)
                    if isinstance(event.message, PAIRING):
                        self._tell_refusals()
                case PeerLost():
                    log.warning("peer_lost", boot=f"{event.boot:x}", why=event.why)
                    if self._engines is not None:
                        self._engines.lost(event.boot)
                    self._step(event, now)
                case PeerUp():
                    log.info("peer_up", boot=f"{event.boot:x}")
                case _:
                    log.warning("session_event", what=repr(event))
        wake = self._core.next_wake()
        if wake is not None and now >= wake:
            self._step(TimerDue(), now)
        self._perform()
        self._lines.flush()
        timers = [t for t in (self._core.next_wake(), self._lines.timer()) if t is not None]
        return Micros(max(0, min(timers) - self._clock.now())) if timers else None

    def _tell_refusals(self) -> None:
        """Log each pair of workers that does not fit once, although they try again all the time."""
        found = frozenset(self._front.refusals())
        for why in sorted(found - self._refusals):
            log.warning("pair_refused", why=why)
        self._refusals = found

    def _perform(self) -> None:
        """Perform effects until none are left: `say` may make the HTTP side submit or cancel."""
        while self._effects:
            effects, self._effects = self._effects, []
            for effect in effects:
                if isinstance(effect, Say):
                    self._say(effect.heard)
                else:
                    self._note(effect)
                    if self._engines is not None:
                        self._engines.sent(effect.to, effect.message)
                    self._lines.send(effect.to, effect.message)

    def _note(self, send: Send) -> None:
        """Log each epoch that begins, and each that this gateway aborts."""
        match send.message:
            case Ticket() as ticket if send.to == ticket.prefill:
                # a later epoch: something went wrong
                tell = log.debug if ticket.key.epoch == 1 else log.warning
                boots = {"prefill": f"{ticket.prefill:x}", "decode": f"{ticket.decode:x}"}
                tell(
                    "epoch_opened",
                    room=ticket.key.room,
                    epoch=ticket.key.epoch,
                    said=len(ticket.said),
                    **boots,
                )
            case Abort() as abort:
                log.debug(
                    "abort",
                    room=abort.key.room,
                    epoch=abort.key.epoch,
                    to=f"{send.to:x}",
                    why=abort.reason,
                )
            case _:
                pass
