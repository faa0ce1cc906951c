"""The pump of a rank other than rank 0: it receives
plans and sends reports until the leader is lost."""

import structlog

from baton.core.agreement import StepPlan
from baton.core.errors import PeerError
from baton.core.frames import Join
from baton.core.ids import Boot, Micros
from baton.core.session import session
from baton.core.session.session import SessionEvent
from baton.ports.clock import Clock
from baton.shell.lines import Lines
from baton.shell.narration import Narration
from baton.shell.rank_host import RankHost

log = structlog.get_logger()


class RankPump:
    """One rank that dials its leader at `address`.
    `leader` is the expected boot; None takes any."""

    def __init__(
        self,
        *,
        rank: RankHost,
        join: Join,
        lines: Lines,
        clock: Clock,
        leader: Boot | None,
        address: str,
        narration: Narration,
    ) -> None:
        self._rank, self._join, self._lines, self._clock, self._narration = (
            rank,
            join,
            lines,
            clock,
            narration,
        )
        self._leader = leader
        self._joined = False
        self._lines.dial(address, leader)

    @property
    def why_not_ready(self) -> str | None:
        """What keeps this rank from its work; None = nothing. For any thread."""
        return None if self._joined else "the leader of this worker has not answered"

    def turn(self) -> Micros | None:
        """Do everything that can be done now; returns how long to sleep (None: until woken).

        Raises:
            PeerError: the leader was lost; a rank ends with its leader
        """
        for event in self._lines.receive():
            self._heard(event)
        while self._rank.poll():
            pass
        report = self._rank.report()
        if report is not None and self._leader is not None:
            self._lines.send(self._leader, report)
        self._lines.flush()
        self._narration.tell()
        timer, look = self._lines.timer(), self._rank.timer()
        if look is not None and (timer is None or look < timer):
            timer = look
        return Micros(max(0, timer - self._clock.now())) if timer is not None else None

    def _heard(self, event: SessionEvent) -> None:
        match event:
            case session.MessageReceived(message=StepPlan() as plan):
                if event.sender == self._leader:
                    self._rank.apply(plan)
            case session.PeerLost():
                if event.boot == self._leader:
                    raise PeerError(
                        f"the leader {event.boot:x} was lost ({event.why}); ranks "
                        "end with their leader"
                    )
            case session.WrongPeer() if self._leader is not None:
                raise PeerError(
                    f"the leader {self._leader:x} is not there ({event.why}); "
                    "ranks end with their leader"
                )
            case session.PeerUp():
                log.info("leader_up", boot=f"{event.boot:x}")
                self._leader, self._joined = event.boot, True
                self._lines.send(event.boot, self._join)
            case _:
                log.warning("session_event", what=repr(event))
