"""Requests that may have ended a worker: an exception, a signal or a hang while somebody computed
them may be their own doing.

    an epoch fails ──▶ suspect: its next steps are its own (Ticket.alone_until), and it begins only when the epoch before has
                       ended on both sides, however that ended ──▶ MARGIN tokens further ──▶ a suspect no more
                       └── a worker ends during such a step (Trial) ──▶ refused; whoever else was there is innocent

So a request ends two workers at most, and is refused only after one that computed nothing else.
"""

from baton.core.gateway.request import Request
from baton.core.ids import Boot, Key, Room
from baton.core.messages import Trial

# tokens that a worker may have computed, and the gateway has not heard of, when it ends; a step
# computes as many as lookup_rule.MOST_DRAFTS and one
MARGIN = 32


class Suspects:
    """Keeps the suspects of one gateway, and what its workers compute alone."""

    def __init__(self) -> None:
        self._trials: dict[Boot, Trial] = {}  # what workers last said of steps for one request
        self._giving_up: set[Boot] = set()  # workers that end because such a step does not
        self._held: dict[Room, Request] = {}

    def __len__(self) -> int:
        """Count what is kept; nothing is, of a request that has ended."""
        return len(self._trials) + len(self._giving_up) + len(self._held)

    def heard(self, worker: Boot, trial: Trial) -> None:
        """A worker begins a step for a suspect, or has ended it. What it says again changes
        nothing; a worker of protocol 1 does not number what it says."""
        known = self._trials.get(worker)
        if known is None or not trial.step or (trial.step, trial.over) > (known.step, known.over):
            self._trials[worker] = trial

    def side_ended(self, worker: Boot, key: Key) -> None:
        """A worker holds nothing of an epoch any more."""
        if (known := self._trials.get(worker)) is not None and known.key == key:
            del self._trials[worker]

    def _alone(self, worker: Boot) -> Key | None:
        """Return what a worker computes alone now."""
        known = self._trials.get(worker)
        return known.key if known is not None and not known.over else None

    def lost(self, worker: Boot) -> Key | None:
        """A worker is gone. Returns what it computed alone, if anything."""
        self._giving_up.discard(worker)
        alone = self._alone(worker)
        self._trials.pop(worker, None)
        return alone

    def blamed(self, worker: Boot, key: Key) -> None:
        """A worker refuses a request because the step that it has alone does not end; its other
        rooms fail with it."""
        if self._alone(worker) == key:
            self._giving_up.add(worker)

    def innocent(self, request: Request, sender: Boot) -> bool:
        """Return whether an epoch that a worker says has failed was ended by another request.

        The sender ended it by giving up, or it has waited for the other worker in vain: whoever it
        was must compute another request alone, and not an earlier epoch of this one. What the
        sender computes when the other one is gone says nothing.
        """
        failing = {sender} if sender in self._giving_up else {*(request.pair or ())} - {sender}
        trials = {key.room for boot in failing if (key := self._alone(boot)) is not None}
        return bool(trials) and request.room not in trials

    def hold(self, request: Request) -> None:
        """A request does not begin again before its last epoch has ended on both sides."""
        self._held[request.room] = request

    def release(self, key: Key) -> Request | None:
        """An epoch has ended on both sides. Returns the request that waited for that, if one
        did."""
        request = self._held.get(key.room)
        return self._held.pop(key.room) if request is not None and request.key == key else None

    def forget(self, request: Request) -> None:
        """A request has ended."""
        self._held.pop(request.room, None)
