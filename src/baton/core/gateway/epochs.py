"""The epochs of a gateway's requests: each is one attempt with one pair of workers.

    begin ──Ticket──▶ both workers ──Abort, if it does not end by itself──▶ Ended, Ended ──▶ none of its room's is open: Close
                                └── it ended badly ──▶ wait for the next one, be held for it, or fail

A worker that is lost counts as having ended what it had.
"""

from typing import TYPE_CHECKING

from baton.core.door import Fail, Finish
from baton.core.gateway.closing import Closing
from baton.core.gateway.request import Request
from baton.core.gateway.request_state import RequestSaw
from baton.core.gateway.suspects import MARGIN, Suspects
from baton.core.gateway.worker_pairs import Pair
from baton.core.ids import Boot, Key, Micros, Room
from baton.core.marks import Mark
from baton.core.messages import Abort, Close, Ended, FailCode, FinishReason, Trial

if TYPE_CHECKING:
    from baton.core.gateway.front import Front


class Epochs:
    """Follows the epochs of one gateway from the ticket until both sides have ended them."""

    def __init__(self, front: "Front") -> None:
        self._front = front
        self.closing = Closing()
        self.suspects = Suspects()

    def begin(self, request: Request, pair: Pair, now: Micros) -> None:
        """The next epoch of a request begins on these two workers."""
        front = self._front
        request.begin(pair)
        if request.stamp is None:
            request.stamp = front.stamps.next()
        front.alarm.tell(front.edge.due(request))
        ticket = request.given = request.ticket(front.boot, pair, now)
        self.closing.begins(request.key, pair)
        front.router.gives(ticket, front.assignment.pending(request), request.pages(), now)
        for boot in sorted(set(pair)):
            front.send(boot, ticket)

    def _abort(self, request: Request, reason: str) -> None:
        """Ask both sides to end the current epoch, except for one that has ended it already."""
        for boot in self.closing.owing(request.key):
            self._front.send(boot, Abort(request.key, reason))

    def another(
        self,
        request: Request,
        code: FailCode,
        detail: str,
        now: Micros,
        *,
        counts: bool,
        needs_pair: bool,
    ) -> None:
        """An epoch has ended badly: its request goes on after what was said, in a new one, or
        fails.

        counts: whether it may have been the request's own doing
        needs_pair: whether the request fails, rather than waits, while there is no pair of workers
        """
        front = self._front
        self._abort(request, detail)
        for boot in self.closing.owing(request.key):
            front.router.owes(boot, request.key, now)
        request.failures += counts
        front.marks[Mark.NEW_EPOCH if counts else Mark.GAVE_WAY] += 1
        tried, open_still = request.suspect, bool(self.closing.owing(request.key))
        if counts:
            self.suspect(request)
        if request.failures >= front.settings.max_epochs or (
            needs_pair and not front.router.has_pair
        ):
            self.fail(request, code, detail)
        elif tried and open_still:
            self._hold(request, now)
        else:
            request.waits(RequestSaw.AGAIN, now)
            front.assignment.start(request, now)

    def suspect(self, request: Request) -> None:
        """A request may have ended a worker: its next steps are its own."""
        request.alone_until = len(request.said) + MARGIN

    def _hold(self, request: Request, now: Micros) -> None:
        """Keep a suspect until both sides have ended its epoch. What was computed alone may have
        ended its worker, and that is not known before."""
        self._front.marks[Mark.HELD] += 1
        request.waits(RequestSaw.HOLD, now)
        self.suspects.hold(request)
        self._front.alarm.tell(self._front.edge.due(request))

    # ---- requests that end ----------------------------------------------------------------------

    def fail(self, request: Request, code: FailCode, detail: str) -> None:
        """A request ends without the rest of its answer, and its client is told why."""
        self._abort(request, detail)
        self._front.say(Fail(request.submit.request, code, detail, request.key))
        self._end(request)

    def finish(self, request: Request, finish: FinishReason) -> None:
        """A request has its whole answer."""
        self._abort(request, "finished")
        self._front.say(Finish(request.submit.request, finish, request.key))
        self._end(request)

    def cancel(self, request: Request, reason: str) -> None:
        """Nobody wants the rest of an answer."""
        self._abort(request, reason)
        self._end(request)

    def _end(self, request: Request) -> None:
        request.see(RequestSaw.END)
        self._front.assignment.ended(request)
        self.suspects.forget(request)
        self._front.requests.remove(request)
        self._maybe_close(request.room)

    # ---- workers that have ended an epoch -------------------------------------------------------

    def on_trial(self, sender: Boot, trial: Trial, now: Micros) -> None:
        """A worker begins a step that is one suspect's alone, or has ended it."""
        if sender in self.closing.owing(trial.key):
            self.suspects.heard(sender, trial)

    def on_ended(self, sender: Boot, message: Ended, now: Micros) -> None:
        """A worker holds nothing of an epoch any more."""
        self._side_ended(message.key, sender, now)
        self._front.assignment.advance(now)  # with one answer less, the next may be in time

    def lost(self, boot: Boot, now: Micros) -> None:
        """A worker is gone, and holds nothing of any epoch."""
        for key in self.closing.owed_by(boot):
            self._side_ended(key, boot, now)

    def _side_ended(self, key: Key, boot: Boot, now: Micros) -> None:
        self.suspects.side_ended(boot, key)
        self._front.router.ended(boot, key, now)
        if not self.closing.ended(key, boot):
            return
        if (held := self.suspects.release(key)) is not None:
            held.waits(RequestSaw.RELEASED, now)
            self._front.assignment.start(held, now)
        self._maybe_close(key.room)

    def _maybe_close(self, room: Room) -> None:
        if self._front.requests.in_room(room) is None:
            for boot in self.closing.close(room):
                if boot in self._front.router:
                    self._front.send(boot, Close(room))
