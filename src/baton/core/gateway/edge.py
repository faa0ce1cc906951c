"""The gateway's edge: requests wait here, holding nothing, until workers state that they have room.

Submit ──▶ might it wait too long? ──yes──▶ Overloaded, at once
                    └──no──▶ in line ──its turn, and room──▶ first epoch          back in line: the next epoch
                                 └──patience over──▶ QUEUE_TIMEOUT
"""

from collections import Counter

from baton.core.door import QueueView, Submit
from baton.core.errors import Overloaded
from baton.core.gateway.edge_queue import EdgeQueue
from baton.core.gateway.request import FrontSettings, Request, patience_ms
from baton.core.ids import Arrival, Micros
from baton.core.messages import FailCode
from baton.core.statistics import Durations

# who is taken may wait so many times longer than was foretold: the pace of a service changes
CAUTION = 4


class Edge:
    """Knows which requests wait, and counts those that were sent away."""

    def __init__(self, settings: FrontSettings) -> None:
        self._settings = settings
        self._queue = EdgeQueue()
        self._waiting: dict[Arrival, Request] = {}
        self.pairless: Micros | None = None  # since when there is no pair of workers
        self._refused: Counter[str] = Counter()
        self._waited = Durations()

    def require_room(
        self, submit: Submit, *, open_requests: int, unadmitted: int, answer_us: int, now: Micros
    ) -> None:
        """Refuse a request that might wait too long: a client can do more with a refusal than with
        waiting in vain.

        unadmitted: requests that workers have, and hold no memory for to generate in
        answer_us: how long its answer would take if it began now

        Raises:
            Overloaded: says which bound was met
        """
        s, waiting = self._settings, len(self._queue)
        wait, answer = (
            self._queue.wait(submit.priority, now, before=unadmitted) // 1000,
            answer_us // 1000,
        )
        most = patience_ms(submit, s) // CAUTION
        late = wait + answer - submit.limits.deadline_ms
        if open_requests >= s.max_requests:
            reason, why = "open", f"{s.max_requests} requests are open already"
        elif waiting >= s.max_queued:
            reason, why = "full", f"{s.max_queued} requests wait already (--max-queued-requests)"
        elif wait > most:
            reason = "slow"
            why = (
                f"{waiting} requests wait, and the turn of this one would come in {wait} "
                "ms; it is taken if that is at most"
            )
            why += (
                f" {most} ms, a quarter of what it may wait (--queue-timeout, or half of "
                "its own timeout)"
            )
        elif late > 0:
            reason, why = "late", _late(answer, submit.limits.deadline_ms - wait)
        else:
            return
        self._refused[reason] += 1
        raise Overloaded(
            f"{why}; try again later", retry_after_s=max(1, -(-max(wait - most, late) // 1000))
        )

    def enter(self, request: Request, now: Micros) -> None:
        """A request stands in line, for its first epoch or for the next."""
        self._queue.add(
            request.arrival, priority=request.submit.priority, begun=request.epoch > 0, now=now
        )
        self._waiting[request.arrival] = request

    def next(self) -> Request | None:
        """Return the request whose turn it is. It is not passed over for one that needs less."""
        arrival = self._queue.next()
        return self._waiting[arrival] if arrival is not None else None

    def begins(self, request: Request, now: Micros) -> None:
        """The turn of a request has come, and workers have room for it."""
        del self._waiting[request.arrival]
        self._waited.add(now - request.since)
        self._queue.leave(request.arrival, now)

    def forget(self, request: Request) -> None:
        """A request has ended. It need not have waited."""
        if self._waiting.pop(request.arrival, None) is not None:
            self._queue.discard(request.arrival)

    def view(self, now: Micros) -> QueueView:
        """Return what operators see of the line."""
        oldest = self._queue.oldest
        since = self._waiting[oldest].since if oldest is not None else now
        return QueueView(
            len(self._queue), (now - since) // 1000, dict(self._refused), self._waited.view()
        )

    def too_late(self, request: Request, answer_us: int, now: Micros) -> str:
        """Count a request whose turn has come too late for its answer, and return the reason for
        its client."""
        self._refused["late"] += 1
        return f"{_late(answer_us // 1000, (request.deadline - now) // 1000)}; try again later"

    # ---- times that are over --------------------------------------------------------------------

    def due(self, request: Request) -> Micros:
        """Return when the gateway ends a request by itself."""
        return request.due(self._settings, self.pairless)

    def over(self, request: Request, now: Micros) -> FailCode:
        """Return which time of a request is over, once it is due."""
        if now >= request.deadline:
            return FailCode.DEADLINE_EXCEEDED
        lost = self.pairless is not None and now >= request.gives_up(self._settings, self.pairless)
        return FailCode.WORKER_LOST if lost and not request.with_workers else FailCode.QUEUE_TIMEOUT

    def why(self, request: Request, code: FailCode, now: Micros) -> str:
        """Return which limit a request has met and what its client can do about it."""
        if code is FailCode.WORKER_LOST:
            return f"no worker pair was ready for {(now - request.since) // 1000} ms"
        if code is FailCode.DEADLINE_EXCEEDED:
            limit = (
                f"not done in {request.submit.limits.deadline_ms} ms (--request-timeout, "
                "or the header X-Request-Timeout-Ms)"
            )
            return f"{limit}; ask for fewer tokens, or give it more time"
        self._refused["timeout"] += 1
        what = "memory to generate in" if self.pairless is None else "a pair of workers"
        limit = (
            f"waited {request.patience_ms} ms for {what}, the most that it may "
            "(--queue-timeout, or half of its own timeout)"
        )
        return f"{limit}; try again later, or let it wait longer"


def _late(answer_ms: int, left_ms: int) -> str:
    what = (
        f"an answer of this length takes {answer_ms} ms beside those that are being "
        f"generated, and {left_ms} ms are left for it"
    )
    return (
        f"{what} (--request-timeout, or the header X-Request-Timeout-Ms); ask for fewer "
        "tokens or give it more time"
    )
