"""What becomes of a request whose epoch a worker has failed, given up, or ended with.

Failed ──▶ worth another try? ──yes──▶ another epoch, which counts unless it was nobody's or another request's doing
              └──no──▶ the client is told
PeerLost ──▶ a request that was computed alone is refused; the others go on elsewhere
"""

from typing import TYPE_CHECKING

from baton.core.gateway.registered_worker import RegisteredWorker
from baton.core.gateway.request import Request
from baton.core.gateway.request_state import RequestState
from baton.core.ids import Boot, Key, Micros
from baton.core.marks import Mark
from baton.core.messages import FailCode, Failed, Recompute, Withdrawn

if TYPE_CHECKING:
    from baton.core.gateway.front import Front


class EpochFailures:
    """Decides what becomes of the requests of one gateway when an epoch fails."""

    def __init__(self, front: "Front") -> None:
        self._front = front

    def on_failed(self, sender: Boot, message: Failed, now: Micros) -> None:
        """A worker says that an epoch has failed."""
        front, epochs = self._front, self._front.epochs
        request = front.requests.find(message.key, sender)
        if request is None:
            return
        # it crossed with Admitted
        if message.code is FailCode.QUEUE_TIMEOUT and (request.admitted or request.said):
            epochs.another(
                request, message.code, message.detail, now, counts=False, needs_pair=False
            )
        elif message.code in (FailCode.QUEUE_TIMEOUT, FailCode.DEADLINE_EXCEEDED):
            epochs.fail(request, message.code, front.edge.why(request, message.code, now))
        # its queue is full, as another gateway fills it too
        elif message.code is FailCode.OVERLOADED and message.retry:
            front.router.full(sender)
            epochs.another(
                request, message.code, message.detail, now, counts=False, needs_pair=False
            )
        elif message.retry:
            if message.code is FailCode.WORKER_LOST:
                assert request.pair is not None, "the sender is one of the two"
                front.membership.doubt(request.pair, now)
            acquitted = epochs.suspects.innocent(request, sender) and self._acquit(request)
            counts = not (acquitted or self._partner_drains(request, sender))
            epochs.another(
                request, message.code, message.detail, now, counts=counts, needs_pair=False
            )
        else:
            if message.code is FailCode.POISON:
                epochs.suspects.blamed(sender, message.key)
            epochs.fail(request, message.code, message.detail)

    def on_given_up(self, sender: Boot, message: Recompute | Withdrawn, now: Micros) -> None:
        """A worker has given an epoch up, as others needed its memory more."""
        request = self._front.requests.find(message.key, sender)
        if request is not None:
            epochs = self._front.epochs
            epochs.another(
                request,
                FailCode.OVERLOADED,
                "gave way to others",
                now,
                counts=False,
                needs_pair=False,
            )

    def lost(self, worker: RegisteredWorker, why: str, now: Micros) -> None:
        """A worker is gone: whoever needed it goes on elsewhere, or fails.

        One that drained was to end, so it is no request's doing that it has.
        """
        front, epochs = self._front, self._front.epochs
        boot, name = worker.register.manifest.boot, worker.register.name
        tried = epochs.suspects.lost(boot)
        if tried is not None and not worker.draining:
            self._convict(tried, f"{name} ended while it computed nothing else: {why}")
        for request in [r for r in front.requests if r.pair is not None and boot in r.pair]:
            assert request.pair is not None
            if (
                boot == request.pair[0] != request.pair[1]
                and request.state is RequestState.STREAMING
            ):
                continue  # its prefill is behind it
            # an answer that has begun goes on with a successor, if that is wanted; otherwise its
            # client is told at once
            ends = bool(request.said) and not front.settings.failover_waits
            counts = not (worker.draining or (tried is not None and self._acquit(request)))
            detail = f"{worker.role} worker {name} was lost: {why}"
            epochs.another(
                request, FailCode.WORKER_LOST, detail, now, counts=counts, needs_pair=ends
            )
        if tried is None and not worker.draining:
            self._suspect_earlier(boot)

    def _suspect_earlier(self, boot: Boot) -> None:
        """A worker is gone. Steps of epochs that others have ended, or that it had given up itself,
        may have been under way there."""
        for key in self._front.epochs.closing.owed_by(boot):
            request = self._front.requests.in_room(key.room)
            if request is not None and (request.pair is None or request.key != key):
                self._front.epochs.suspect(request)

    def _partner_drains(self, request: Request, sender: Boot) -> bool:
        """Return whether the other worker of a request's pair was to end. Then it may have ended,
        which the sender knows before this gateway does."""
        assert request.pair is not None, "the sender is one of the two"
        partners = (self._front.router.get(boot) for boot in request.pair if boot != sender)
        return any(partner is not None and partner.draining for partner in partners)

    def _acquit(self, request: Request) -> bool:
        """An epoch has ended while a worker computed another request alone, so it was not this
        one's doing.

        That excuses a request once: what workers say of it may be late or lost, and no request is
        to be tried without end.
        """
        first, request.acquitted = not request.acquitted, True
        self._front.marks[Mark.INNOCENT] += first
        return first

    def _convict(self, key: Key, how: str) -> None:
        """A worker has ended in a step that was this request's alone, and another one has
        before."""
        request = self._front.requests.in_room(key.room)
        if request is not None:
            self._front.marks[Mark.POISON] += 1
            why = f"two workers have ended while they computed this request; {how}"
            self._front.epochs.fail(request, FailCode.POISON, why)
