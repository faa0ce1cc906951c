"""A worker's pump: drain the ports, step the leader and its ranks, perform the effects, sleep until
the next timer.

Control ──▶ Lines ──▶ Leader ──Issue──▶ RankHost (rank 0) ──▶ Fabric, Engine
              ◀──Send──┘  ◀──Report──────┘  ◀──ends──┘
              ◀──────StepPlan────┘▲
              ───Report───────────┘          the other ranks, each in a process of its own (shell/rank_pump.py)

The worker dials no gateway before all its ranks have joined, and ends when one of them is lost.
"""

from collections.abc import Mapping, Sequence

import structlog

from baton.core.agreement import Report
from baton.core.effects import (
    AskDelivery,
    Dial,
    Effect,
    Evict,
    GiveUp,
    HangUp,
    Issue,
    Leave,
    Publish,
    Send,
    TellEngine,
)
from baton.core.errors import Bug, ConfigError, GivenUp, PeerError
from baton.core.events import (
    Core,
    DrainAsked,
    GatewayConnected,
    LeaderEvent,
    PeerConnected,
    PeerLost,
    RankReported,
    TimerDue,
)
from baton.core.frames import Join
from baton.core.ids import Boot, Key, Link, Micros
from baton.core.messages import (
    Admitted,
    AnyMessage,
    Doubt,
    Ended,
    Failed,
    Offer,
    Received,
    Recompute,
    Verdict,
    Withdrawn,
    logged_why,
)
from baton.core.session import session
from baton.core.session.session import SessionEvent
from baton.ports.clock import Clock
from baton.ports.directory import Directory
from baton.ports.guest import GuestLink
from baton.ports.kv_events import EventPublisher
from baton.shell.lines import Lines
from baton.shell.narration import Narration
from baton.shell.rank_host import RankHost

log = structlog.get_logger()
MAX_ROUNDS = 1000  # of effects within one turn; more means that the core loops


class WorkerPump:
    """One worker, with its leader and rank 0 in this process.

    `others` are the boots of ranks 1, 2, .., which run in processes of their own; `absent` are
    those of them that have no session with this process yet.
    """

    def __init__(
        self,
        *,
        leader: Core[LeaderEvent, Effect],
        rank: RankHost,
        others: Sequence[Boot],
        absent: Sequence[Boot],
        lines: Lines,
        clock: Clock,
        gateways: Directory,
        narration: Narration,
        guest: GuestLink | None = None,
        publisher: EventPublisher | None = None,
    ) -> None:
        """
        Args:
            guest: the engine that this worker is a guest of; None if it computes itself
            publisher: tells subscribers what the cache holds; None if the leader publishes nothing
        """
        self._guest, self._publisher = guest, publisher
        self._leader, self._rank, self._lines, self._clock, self._narration = (
            leader,
            rank,
            lines,
            clock,
            narration,
        )
        self._others, self._absent = frozenset(others), set(absent)
        self._gateways = gateways
        self._gateway_links: dict[str, Link] = {}  # by address
        # links on which a gateway has answered; replaced, as other threads read it
        self._gateways_up: Mapping[Boot, Link] = {}
        self._peer_links: dict[Boot, Link] = {}
        self._effects: list[Effect] = []  # not performed yet
        self._wake: Micros | None = None  # the leader's next wake at the end of the last turn
        self._dialled: tuple[str, ...] = ()
        self._left: Leave | None = None
        self._draining = False  # read by other threads
        self._dial_gateways()

    @property
    def left(self) -> Leave | None:
        """What the leader has said last, if the worker has drained: it is to end."""
        return self._left

    def drain(self) -> None:
        """Take no more requests, and leave when those that are here have ended."""
        if not self._draining:
            self._draining = True
            self._step(DrainAsked())

    @property
    def why_not_ready(self) -> str | None:
        """What keeps gateways from sending requests here; None = nothing. For any thread."""
        if self._draining:
            return "the worker drains"
        if self._gateways_up:
            return None
        known = ", ".join(self._gateways.addresses())
        return f"no gateway has answered at {known}" if known else "no gateway is known"

    def turn(self) -> Micros | None:
        """Do everything that can be done now; returns how long to sleep (None: until woken).

        Raises:
            PeerError: a rank of this worker was lost
            GivenUp: the leader gave the worker up, because some of its work never ends
            Bug: a rank has diverged, or an invariant does not hold
        """
        self._dial_gateways()
        for event in self._lines.receive():
            self._heard(event)
        if self._wake is not None and self._clock.now() >= self._wake:
            self._step(TimerDue())
        for _ in range(MAX_ROUNDS):
            said = self._guest.events() if self._guest is not None else []
            for guest_event in said:
                self._step(guest_event)
            moved = self._rank.poll() or bool(said)
            report = self._rank.report()
            if report is not None:
                self._step(RankReported(report))
            effects, self._effects = self._effects, []
            for effect in effects:
                self._perform(effect)
            if effects:
                self._lines.flush()  # at once, because other processes wait for these messages
            if not (moved or report or effects):
                break
        else:
            raise Bug(f"{MAX_ROUNDS} rounds without rest in one turn")
        self._lines.flush()
        self._narration.tell()
        return self._next()

    def _dial_gateways(self) -> None:
        """Dial the gateways that are new, once all ranks are here. A link to one that is not named
        any more is given up when its gateway is lost, or at once if none has answered."""
        known = self._gateways.addresses()
        if self._absent or known == self._dialled:
            return
        self._dialled = known
        for address in known:
            if address not in self._gateway_links:
                self._dial_gateway(address)
        self._hang_up_gateways()

    def _dial_gateway(self, address: str) -> None:
        try:
            self._gateway_links[address] = self._lines.dial(address, None)
        except ConfigError as error:
            if not self._gateway_links:
                raise  # whoever starts the worker is to know
            log.warning("dial_refused", address=address, why=str(error))

    def _hang_up_gateways(self) -> None:
        up = set(self._gateways_up.values())
        for address, link in [*self._gateway_links.items()]:
            if address not in self._dialled and link not in up:
                del self._gateway_links[address]
                self._lines.hang_up(link)

    def _next(self) -> Micros | None:
        self._wake, due = self._leader.next_wake(), self._lines.timer()
        if due is None or (self._wake is not None and self._wake < due):
            due = self._wake
        if (look := self._rank.timer()) is not None and (due is None or look < due):
            due = look
        return Micros(max(0, due - self._clock.now())) if due is not None else None

    def _step(self, event: LeaderEvent) -> None:
        self._effects += self._leader.step(event, self._clock.now())

    def _heard(self, event: SessionEvent) -> None:
        match event:
            case session.PeerUp():
                log.info("peer_up", boot=f"{event.boot:x}")
                self._peer_up(event)
            case session.MessageReceived(message=Report() as report):
                if event.sender in self._others and report.boot == event.sender:
                    self._step(RankReported(report))
            case session.MessageReceived(message=Join()):
                pass  # the rank is known already
            case session.MessageReceived() | session.Delivered():
                self._step(event)
            case session.PeerLost():
                log.warning("peer_lost", boot=f"{event.boot:x}", why=event.why)
                if event.boot in self._others:
                    raise PeerError(
                        f"rank {event.boot:x} of this worker was lost "
                        f"({event.why}); a worker ends with its ranks"
                    )
                self._gateways_up = {b: k for b, k in self._gateways_up.items() if b != event.boot}
                self._step(event)
                self._hang_up_gateways()
            case session.WrongPeer():
                self._wrong_peer(event)
            case _:
                log.warning("session_event", what=repr(event))

    def _wrong_peer(self, event: session.WrongPeer) -> None:
        """Report a worker as lost if another process
        answers at its address; keep dialling a gateway."""
        log.warning("wrong_peer", link=event.link, why=event.why)
        for boot in [boot for boot, link in self._peer_links.items() if link == event.link]:
            self._step(PeerLost(boot, event.why))

    def _peer_up(self, event: session.PeerUp) -> None:
        if event.boot in self._others:
            self._absent.discard(event.boot)
            self._dial_gateways()
        elif event.link in self._gateway_links.values():
            self._gateways_up = {**self._gateways_up, event.boot: event.link}
            self._step(GatewayConnected(event.boot))
        else:
            self._step(PeerConnected(event.boot))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._note(effect.message)
                self._lines.send(effect.to, effect.message)
            case AskDelivery():
                self._lines.ask_delivery(effect.to)
            case Issue():
                for boot in self._others:
                    self._lines.send(boot, effect.plan)
                self._rank.apply(effect.plan)
            case Dial():
                self._dial(effect)
            case HangUp():
                link = self._peer_links.pop(effect.boot, None)
                if link is not None:
                    self._lines.hang_up(link)
            case TellEngine() | Evict():
                assert self._guest is not None, "only guests have somebody to tell"
                self._guest.tell(effect)
            case Publish():
                assert self._publisher is not None, "only a leader that is told to publishes"
                self._publisher.publish(effect)
            case GiveUp():
                self._lines.flush()
                raise GivenUp(effect.why)
            case Leave():
                log.info("worker_left", again_as=effect.role)
                self._left = effect

    def _dial(self, effect: Dial) -> None:
        """Dial a worker. If its address must not be dialled from here, only this pair fails."""
        try:
            self._peer_links[effect.boot] = self._lines.dial(effect.address, effect.boot)
        except ConfigError as error:
            log.warning("dial_refused", address=effect.address, why=str(error))
            self._step(PeerLost(effect.boot, str(error)))

    def _note(self, message: AnyMessage) -> None:
        """Log each transition that another process is told of."""
        match message:
            case Offer():
                last = message.record is not None
                self._narration.note(
                    "offered",
                    **_about(message.key),
                    number=message.number,
                    last=last,
                    t_us=self._clock.now(),
                )
            case Admitted() | Received() | Ended() | Withdrawn() | Recompute():
                self._narration.note(
                    type(message).__name__.lower(), **_about(message.key), t_us=self._clock.now()
                )
            case Failed():
                log.warning(
                    "epoch_failed",
                    **_about(message.key),
                    code=message.code.value,
                    **logged_why(message.code, message.detail),
                )
            case Doubt() | Verdict():
                log.warning(
                    type(message).__name__.lower(),
                    **_about(message.key),
                    group=message.group,
                    blocks=message.blocks,
                )
            case _:
                pass


def _about(key: Key) -> dict[str, object]:
    return {"room": key.room, "epoch": key.epoch}
