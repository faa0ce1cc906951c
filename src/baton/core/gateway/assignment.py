"""Which request begins when, and on which workers.

    Submit ──▶ might it wait too long? ──no──▶ in line ──its turn, and a pair has room and time──▶ an epoch begins (epochs.py)
                                                  └── it cannot end in time any more ──▶ refused

A request that is to try a certain pair of workers out does not wait.
"""

from typing import TYPE_CHECKING

from baton.core.door import Submit
from baton.core.gateway.request import Request
from baton.core.gateway.request_state import RequestState
from baton.core.gateway.throughput import AnswerLengths, PendingAnswer
from baton.core.gateway.worker_pairs import Pair
from baton.core.ids import Micros
from baton.core.marks import Mark
from baton.core.messages import FailCode

if TYPE_CHECKING:
    from baton.core.gateway.front import Front

# at who waits for time to generate in: workers do not tell how fast they are, it is seen
LOOK_AGAIN_US = 50_000


class Assignment:
    """Takes the requests of one gateway from the line at its edge, and chooses their workers."""

    def __init__(self, front: "Front") -> None:
        self._front = front
        self._lengths = AnswerLengths()

    def require_room(self, submit: Submit, now: Micros) -> None:
        """Refuse a request that might wait too long.

        Raises:
            Overloaded: says which bound was met
        """
        front = self._front
        answer = PendingAnswer(
            self._lengths.expected(submit.limits),
            Micros(now + submit.limits.deadline_ms * 1000),
            begun=False,
        )
        unadmitted, answer_us = front.router.unadmitted, front.router.choice.takes_us(answer, now)
        front.edge.require_room(
            submit,
            open_requests=len(front.requests),
            unadmitted=unadmitted,
            answer_us=answer_us,
            now=now,
        )

    def start(self, request: Request, now: Micros) -> None:
        """A request gets in line: its first epoch, or its next one, begins when workers have
        room."""
        front, pair = self._front, request.submit.pair
        if pair is not None and front.router.is_usable(pair):
            front.epochs.begin(request, pair, now)
            return
        if pair is not None:
            front.epochs.fail(
                request, FailCode.WORKER_LOST, "the two workers that were to be tried are no pair"
            )
            return
        front.edge.enter(request, now)
        self.advance(now)
        if request.state is RequestState.WAITING:
            front.alarm.tell(front.edge.due(request))
            front.marks[Mark.QUEUED if front.edge.pairless is None else Mark.NO_PAIR] += 1

    def advance(self, now: Micros) -> None:
        """Requests begin in their order, for as long as workers have room."""
        front = self._front
        if not front.router.has_pair:
            if front.edge.pairless is None:
                front.edge.pairless = now
                front.alarm.tell(Micros(now + front.settings.wait_for_workers_ms * 1000))
            return
        front.edge.pairless = None
        while (request := front.edge.next()) is not None:
            answer = self.pending(request)
            pair = self._choose(request, answer, now)
            if pair is not None:
                front.edge.begins(request, now)
                front.epochs.begin(request, pair, now)
            elif (
                not answer.begun
                and now + (takes_us := front.router.choice.takes_us(answer, now)) > request.deadline
            ):
                front.marks[Mark.TOO_LATE] += 1
                front.epochs.fail(
                    request, FailCode.QUEUE_TIMEOUT, front.edge.too_late(request, takes_us, now)
                )
            else:
                if not front.router.choice.in_time(answer, now):
                    front.alarm.tell(Micros(now + LOOK_AGAIN_US))
                return

    def _choose(self, request: Request, answer: PendingAnswer, now: Micros) -> Pair | None:
        return self._front.router.choice.choose(request.pages(), answer, now)

    def pending(self, request: Request) -> PendingAnswer:
        """Return what is still to be generated of a request."""
        tokens = max(0, self._lengths.expected(request.submit.limits) - len(request.said))
        return PendingAnswer(tokens, request.deadline, begun=bool(request.said))

    def ended(self, request: Request) -> None:
        """A request has ended, perhaps while it stood in line."""
        self._front.edge.forget(request)
        if request.said:
            self._lengths.add(len(request.said))
