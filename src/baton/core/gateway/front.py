"""The gateway's request logic: rooms, epochs, tokens already sent, choice of workers, retries, aborts.

    HTTP ──Submit, Cancel──▶ Front ──Ticket, Abort, Close──▶ leaders
    HTTP ◀──Emit, Finish, Fail── Front ◀──Admitted, FirstToken, Tokens, Failed, Recompute, Ended── leaders

Invariants: a client sees each token index once, in order; index 0 only after `Admitted`, so an unadmitted request can
still be refused with a clean status; a request ends exactly once; a room is closed when both sides have ended its last
epoch (a lost worker counts as ended).
"""

from collections.abc import Callable
from typing import Any

from baton.core.door import Cancel, Emit, Fail, Finish, QueueView, RequestId, Submit
from baton.core.effects import Send
from baton.core.events import AskWorkers, ForgetQuestion, FrontEvent, MessageReceived, PeerLost, Submitted, TimerDue
from baton.core.frames import Said
from baton.core.gateway.alarm import Alarm
from baton.core.gateway.closing import Closing
from baton.core.gateway.edge import Edge
from baton.core.gateway.questions import Questions
from baton.core.gateway.request import FrontSettings, Request, Say, Standing
from baton.core.gateway.router import Pair, Router
from baton.core.gateway.stamps import Stamps
from baton.core.gateway.suspects import MARGIN, Suspects
from baton.core.gateway.throughput import AnswerLengths, PendingAnswer
from baton.core.ids import Arrival, Boot, Key, Micros, Room, TokenIndex
from baton.core.marks import Mark, Marks
from baton.core.messages import (
    Abort,
    Admitted,
    Close,
    Credits,
    Drawn,
    Ended,
    FailCode,
    Failed,
    FinishReason,
    FirstToken,
    Introduce,
    LedgerView,
    Paired,
    Recompute,
    Register,
    Ticket,
    Tokens,
    Trial,
    Unpaired,
    Withdrawn,
)
from baton.core.session.senders import may_say

LOOK_AGAIN_US = 50_000  # at who waits for time to generate in: workers do not tell how fast they are, it is seen


class Front:
    """Sans-IO, like the leaders; effects are Send (to workers) and Say (to the HTTP side)."""

    def __init__(self, boot: Boot, settings: FrontSettings) -> None:
        self.boot, self.settings = boot, settings
        self._effects: list[Send | Say] = []
        self._requests: dict[RequestId, Request] = {}
        self._rooms: dict[Room, Request] = {}
        self._closing = Closing()
        self._router = Router(settings.introduce_again_ms)
        self._edge = Edge(settings)
        self._lengths = AnswerLengths()
        self._suspects = Suspects()
        self._alarm = Alarm()  # of requests and introductions
        self.marks: Marks = Marks()
        self._arrived = 0
        self._stamps = Stamps()
        self._questions = Questions()
        self._handlers: dict[type[Any], Callable[[Boot, Any, Micros], None]] = {
            Register: self._on_register,
            Paired: self._on_paired,
            Unpaired: self._on_unpaired,
            Credits: self._on_credits,
            Admitted: self._on_admitted,
            FirstToken: self._on_first_token,
            Tokens: self._on_tokens,
            Failed: self._on_failed,
            Recompute: self._on_given_up,
            Withdrawn: self._on_given_up,
            Ended: self._on_ended,
            Trial: self._on_trial,
            LedgerView: lambda sender, view, now: self._questions.answered(sender, view),
        }

    # ---- events ---------------------------------------------------------------------------------

    def step(self, event: FrontEvent, now: Micros) -> list[Send | Say]:
        """Take one event; returns what is to be done, in order.

        Raises:
            Overloaded: of a new request: too many are open or wait, or it would wait too long; nothing was kept
        """
        match event:
            case MessageReceived():
                self._receive(event.sender, event.message, now)
            case Submitted():
                self._submit(event.submit, event.room, now)
            case Cancel():
                self._cancel(event, now)
            case TimerDue():
                self._on_timer(now)
            case PeerLost():
                self._lose(event.boot, event.why, now)
            case AskWorkers():
                self._ask(event)
            case ForgetQuestion():
                self._questions.forget(event.question)
        effects, self._effects = self._effects, []
        return effects

    def _submit(self, submit: Submit, room: Room, now: Micros) -> None:
        if submit.pair is None:
            deadline = Micros(now + submit.limits.deadline_ms * 1000)
            answer = PendingAnswer(self._lengths.expected(submit.limits), deadline, begun=False)
            unadmitted, answer_us = self._router.unadmitted, self._router.takes_us(answer, now)
            self._edge.require_room(
                submit, open_requests=len(self._requests), unadmitted=unadmitted, answer_us=answer_us, now=now
            )
        self._arrived += 1
        request = Request(submit, room, Arrival(self._arrived), now, settings=self.settings)
        self._requests[submit.request] = request
        self._rooms[request.room] = request
        self._start(request, now)

    def _cancel(self, cancel: Cancel, now: Micros) -> None:
        """The client is gone, or has enough; a request that has ended already is no error."""
        request = self._requests.get(cancel.request)
        if request is not None:
            self._abort_epoch(request, cancel.reason)
            self._done(request)
            self._advance(now)  # it may have been in the way

    def _receive(self, sender: Boot, message: Said, now: Micros) -> None:
        """A leader said something; what is not the sender's to say (session/senders.py) changes nothing."""
        handler = self._handlers.get(type(message))
        if handler is not None and may_say(sender, message, self):
            handler(sender, message, now)
        elif handler is not None:
            self.marks[Mark.WRONG_PARTY] += 1

    def ticket_of(self, key: Key) -> Ticket | None:
        request = self._rooms.get(key.room)
        return request.given if request is not None and request.key == key else None

    def owner_of(self, room: Room) -> Boot | None:
        return self.boot if room in self._rooms else None

    def is_gateway(self, boot: Boot) -> bool:
        """Gateways do not speak to each other."""
        return False

    def _lose(self, boot: Boot, why: str, now: Micros) -> None:
        """A worker is gone: it counts as having ended everything; what needed it goes on elsewhere or fails."""
        worker = self._router.lost(boot)
        if worker is None:
            return
        tried = self._suspects.lost(boot)
        if tried is not None:
            self._convict(tried, f"{worker.register.name} ended while it computed nothing else: {why}")
        for request in [r for r in self._requests.values() if r.pair is not None and boot in r.pair]:
            assert request.pair is not None
            if boot == request.pair[0] != request.pair[1] and request.streaming:
                continue  # its prefill is behind it
            detail = f"{worker.role} worker {worker.register.name} was lost: {why}"
            begun = bool(request.said)  # its client is told at once; whoever has heard nothing waits for a successor
            counts = not (tried is not None and self._acquit(request))
            self._another_epoch(request, FailCode.WORKER_LOST, detail, now, counts=counts, needs_pair=begun)
        for key in self._closing.owed_by(boot):
            self._side_ended(key, boot, now)
        self._questions.lost(boot)
        self._advance(now)

    def _acquit(self, request: Request) -> bool:
        """An epoch ended while a worker computed another request alone: not this one's doing. Once, as what workers say of that
        may be late or lost, and nobody is to be tried without end."""
        first, request.acquitted = not request.acquitted, True
        self.marks[Mark.INNOCENT] += first
        return first

    def _convict(self, key: Key, how: str) -> None:
        """A worker has ended in a step that was this request's alone; another one has before."""
        request = self._rooms.get(key.room)
        if request is not None:
            self.marks[Mark.POISON] += 1
            self._fail(request, FailCode.POISON, f"two workers have ended while they computed this request; {how}")

    def _on_timer(self, now: Micros) -> None:
        """A deadline may have passed."""
        for request in list(self._requests.values()):
            if now >= self._edge.due(request):
                self.marks[Mark.GRACE] += 1
                code = self._edge.over(request, now)
                self._fail(request, code, self._edge.why(request, code, now))
        for pair, at in list(self._router.introductions().items()):
            if now >= at:
                self._say_introduce(pair)
        self._alarm.reset(self._dues())
        self._advance(now)

    def _dues(self) -> list[Micros]:
        """All that is due at any time: ends of requests, introductions."""
        return [self._edge.due(r) for r in self._requests.values()] + list(self._router.introductions().values())

    def next_wake(self) -> Micros | None:
        """When a TimerDue is wanted next, at the latest."""
        return self._alarm.at if self._requests or self._router.introductions() else None

    # ---- what others ask ------------------------------------------------------------------------

    def usable_pairs(self) -> list[tuple[Boot, Boot]]:
        """(prefill, decode) boots that a request can be given to; a unified worker is its own pair."""
        return self._router.usable_pairs()

    def hears(self, sender: Boot, key: Key) -> bool:
        """Whether what this worker says of this epoch changes anything."""
        return self._find(key, sender) is not None

    def key_of(self, request: RequestId) -> Key | None:
        """Room and current epoch of an open request; epoch 0 while none has begun."""
        return self._requests[request].key if request in self._requests else None

    def workers(self) -> list[Register]:
        """All registered workers."""
        return self._router.registered()

    def refusals(self) -> list[str]:
        """Pairs of registered workers that cannot hand over, and why not."""
        return self._router.refusals()

    def credits(self) -> dict[str, Credits]:
        """What workers last said of their capacity, by name."""
        return self._router.credits()

    def queue(self, now: Micros) -> QueueView:
        """Who waits at the edge, and who was sent away."""
        return self._edge.view(now)

    def _ask(self, event: AskWorkers) -> None:
        names = {r.manifest.boot: r.name for r in self._router.registered()}
        asked = {boot: name for boot, name in names.items() if event.worker in (None, name)}
        self._questions.ask(event.message.question, asked)
        self._effects += [Send(boot, event.message) for boot in asked]

    def ledger(self, question: int) -> list[LedgerView] | None:
        """All answers, once every worker that is still there has answered; None until then."""
        return self._questions.complete(question)

    def answers(self, question: int) -> list[LedgerView]:
        """The answers so far."""
        return self._questions.answers(question)

    def unanswered(self, question: int) -> list[str]:
        """The names of the workers that have not answered, of those that were asked and are still there."""
        return self._questions.unanswered(question)

    @property
    def open_requests(self) -> int:
        """Requests that have not ended, and rooms not closed yet."""
        return len(self._requests) + len(self._closing)

    # ---- workers --------------------------------------------------------------------------------

    def _on_register(self, sender: Boot, message: Register, now: Micros) -> None:
        self._stamps.heard(message.stamp)
        for pair in self._router.registers(sender, message):
            self._say_introduce(pair)
        self._advance(now)

    def _say_introduce(self, pair: Pair) -> None:
        self._router.introduced(pair)
        prefill = self._router.get(pair[0])
        assert prefill is not None
        assert prefill.register.address is not None, "a prefill worker listens"
        self._effects.append(Send(pair[1], Introduce(pair[0], prefill.register.address, prefill.register.manifest)))

    def _on_paired(self, sender: Boot, message: Paired, now: Micros) -> None:
        if self._router.paired((message.prefill, sender), message.fabric):
            self._advance(now)

    def _on_unpaired(self, sender: Boot, message: Unpaired, now: Micros) -> None:
        self._ring_at(self._router.unpaired((message.prefill, sender), message.why, now))
        self._advance(now)

    def _doubt_pair(self, pair: Pair, now: Micros) -> None:
        again = self._router.doubt(pair, now)
        self.marks[Mark.PAIR_DOUBTED] += again is not None
        self._ring_at(again)

    def _ring_at(self, at: Micros | None) -> None:
        if at is not None:
            self._alarm.tell(at)

    def _on_credits(self, sender: Boot, message: Credits, now: Micros) -> None:
        self._stamps.heard(message.stamp)
        worker = self._router.get(sender)
        if worker is not None:
            worker.states(message)
            self._advance(now)

    def _answer(self, request: Request) -> PendingAnswer:
        """What is still to be generated."""
        tokens = max(0, self._lengths.expected(request.submit.limits) - len(request.said))
        return PendingAnswer(tokens, request.deadline, begun=bool(request.said))

    def _choose(self, request: Request, answer: PendingAnswer, now: Micros) -> Pair | None:
        return self._router.choose(len(request.submit.prompt) + len(request.said), answer, now)

    def _start(self, request: Request, now: Micros) -> None:
        """Get in line; the first epoch, or the next, begins when workers have room. Who tries a pair out does not wait."""
        pair = request.submit.pair
        if pair is not None and pair in self.usable_pairs():
            self._begin(request, pair, now)
            return
        if pair is not None:
            self._fail(request, FailCode.WORKER_LOST, "the two workers that were to be tried are no pair")
            return
        self._edge.enter(request, now)
        self._advance(now)
        if request.standing is Standing.WAITING:
            self._alarm.tell(self._edge.due(request))
            self.marks[Mark.QUEUED if self._edge.pairless is None else Mark.NO_PAIR] += 1

    def _advance(self, now: Micros) -> None:
        """Whoever's turn it is begins, as long as there is room."""
        if not self.usable_pairs():
            if self._edge.pairless is None:
                self._edge.pairless = now
                self._alarm.tell(Micros(now + self.settings.wait_for_workers_ms * 1000))
            return
        self._edge.pairless = None
        while (request := self._edge.next()) is not None:
            answer = self._answer(request)
            pair = self._choose(request, answer, now)
            if pair is not None:
                self._edge.begins(request, now)
                self._begin(request, pair, now)
            elif not answer.begun and now + (takes_us := self._router.takes_us(answer, now)) > request.deadline:
                self.marks[Mark.TOO_LATE] += 1
                self._fail(request, FailCode.QUEUE_TIMEOUT, self._edge.too_late(request, takes_us, now))
            else:
                if not self._router.in_time(answer, now):
                    self._alarm.tell(Micros(now + LOOK_AGAIN_US))
                return

    # ---- epochs ---------------------------------------------------------------------------------

    def _begin(self, request: Request, pair: Pair, now: Micros) -> None:
        """The next epoch, on these two."""
        request.begin(pair)
        if request.stamp is None:
            request.stamp = self._stamps.next()
        self._alarm.tell(self._edge.due(request))
        ticket = request.given = request.ticket(self.boot, pair, now)
        self._closing.begins(request.key, pair)
        self._router.gives(ticket, self._answer(request))
        self._effects += [Send(boot, ticket) for boot in sorted(set(pair))]

    def _abort_epoch(self, request: Request, reason: str) -> None:
        """Both sides end the current epoch; those that have ended it already are not asked."""
        self._effects += [Send(boot, Abort(request.key, reason)) for boot in self._closing.owing(request.key)]
        request.pair = None

    def _another_epoch(
        self, request: Request, code: FailCode, detail: str, now: Micros, *, counts: bool, needs_pair: bool
    ) -> None:
        """The epoch ended badly: go on after what was said, in a new one, or fail. counts: whether it may be its own doing"""
        self._abort_epoch(request, detail)
        request.failures += counts
        self.marks[Mark.NEW_EPOCH if counts else Mark.GAVE_WAY] += 1
        tried, open_still = request.suspect, bool(self._closing.owing(request.key))
        if counts:
            request.alone_until = len(request.said) + MARGIN
        if request.failures >= self.settings.max_epochs or (needs_pair and not self.usable_pairs()):
            self._fail(request, code, detail)
        elif tried and open_still:
            self._hold(request, now)
        else:
            self._start(request, now)

    def _hold(self, request: Request, now: Micros) -> None:
        """What was computed alone may have ended its worker, which is not known yet: whoever owes its end is alive, or lost."""
        self.marks[Mark.HELD] += 1
        request.waits(now)
        self._suspects.hold(request)
        self._alarm.tell(self._edge.due(request))

    def _fail(self, request: Request, code: FailCode, detail: str) -> None:
        self._abort_epoch(request, detail)
        self._effects.append(Say(Fail(request.submit.request, code, detail, request.key)))
        self._done(request)

    def _done(self, request: Request) -> None:
        self._edge.forget(request)
        self._suspects.forget(request)
        if request.said:
            self._lengths.add(len(request.said))
        del self._requests[request.submit.request]
        del self._rooms[request.room]
        self._maybe_close(request.room)

    def _find(self, key: Key, sender: Boot) -> Request | None:
        """The open request whose current epoch this is, if the sender is one of its two workers."""
        request = self._rooms.get(key.room)
        return request if request is not None and request.key == key and sender in (request.pair or ()) else None

    def _on_trial(self, sender: Boot, trial: Trial, now: Micros) -> None:
        if trial.over or sender in self._closing.owing(trial.key):
            self._suspects.heard(sender, trial)

    def _on_ended(self, sender: Boot, message: Ended, now: Micros) -> None:
        self._side_ended(message.key, sender, now)
        self._advance(now)  # with one answer less, the next may be in time

    def _side_ended(self, key: Key, boot: Boot, now: Micros) -> None:
        self._suspects.heard(boot, Trial(key, over=True))
        self._router.ended(boot, key, now)
        if not self._closing.ended(key, boot):
            return
        if (held := self._suspects.release(key)) is not None:
            self._start(held, now)
        self._maybe_close(key.room)

    def _maybe_close(self, room: Room) -> None:
        if room not in self._rooms:
            self._effects += [Send(boot, Close(room)) for boot in self._closing.close(room) if boot in self._router]

    # ---- what leaders say of a room -------------------------------------------------------------

    def _on_admitted(self, sender: Boot, message: Admitted, now: Micros) -> None:
        request = self._find(message.key, sender)
        self._router.admits(sender, message.key)
        if request is not None:
            request.admitted = True
            self._show_first(request)
        self._advance(now)

    def _on_first_token(self, sender: Boot, message: FirstToken, now: Micros) -> None:
        request = self._find(message.key, sender)
        if request is not None:
            request.first = message
            self.marks[Mark.FIRST_HELD] += not request.admitted
            self._show_first(request)

    def _show_first(self, request: Request) -> None:
        first = request.first
        if first is None or not (request.admitted or first.finish is not None):
            return
        request.first = None
        self._take(request, first.index, (first.drawn,), first.finish, first.cached)

    def _on_tokens(self, sender: Boot, message: Tokens, now: Micros) -> None:
        request = self._find(message.key, sender)
        if request is None:
            return
        request.streaming = True
        drawn = message.drawn
        self._router.made(sender, message.key, len(drawn), now)
        if len(drawn) == 1 and message.finish is None and message.start == len(request.said):  # nearly always; as `_take` does
            request.said.append(drawn[0].token)
            self._effects.append(Say(Emit(request.submit.request, message.start, drawn, 0 if message.start else message.cached)))
        else:
            self._take(request, message.start, drawn, message.finish, message.cached)

    def _take(
        self, request: Request, start: TokenIndex, drawn: tuple[Drawn, ...], finish: FinishReason | None, cached: int
    ) -> None:
        """Drop what the client has; a gap, or a different token at an index it has, ends the request."""
        have = len(request.said)
        if start > have:
            self._fail(request, FailCode.HANDOFF_FAILED, f"tokens from index {start} came while {have} were known")
            return
        known = request.said[start : start + len(drawn)]
        if known != [d.token for d in drawn[: len(known)]]:
            self._fail(request, FailCode.HANDOFF_FAILED, f"the two sides differ on a token in [{start}, {have})")
            return
        fresh = drawn[have - start :]
        self.marks[Mark.KNOWN_TOKENS] += bool(known)
        if fresh:
            request.said += [d.token for d in fresh]
            self._effects.append(Say(Emit(request.submit.request, TokenIndex(have), fresh, 0 if have else cached)))
        if finish is not None:
            self._abort_epoch(request, "finished")
            self._effects.append(Say(Finish(request.submit.request, finish, request.key)))
            self._done(request)

    def _on_failed(self, sender: Boot, message: Failed, now: Micros) -> None:
        request = self._find(message.key, sender)
        if request is None:
            return
        if message.code is FailCode.QUEUE_TIMEOUT and (request.admitted or request.said):  # it crossed with Admitted
            self._another_epoch(request, message.code, message.detail, now, counts=False, needs_pair=False)
        elif message.code in (FailCode.QUEUE_TIMEOUT, FailCode.DEADLINE_EXCEEDED):
            self._fail(request, message.code, self._edge.why(request, message.code, now))
        elif message.code is FailCode.OVERLOADED and message.retry:  # its queue is full, as another gateway fills it too
            self._router.full(sender)
            self._another_epoch(request, message.code, message.detail, now, counts=False, needs_pair=False)
        elif message.retry:
            if message.code is FailCode.WORKER_LOST and request.pair is not None:
                self._doubt_pair(request.pair, now)
            counts = not (self._suspects.innocent(request, sender) and self._acquit(request))
            self._another_epoch(request, message.code, message.detail, now, counts=counts, needs_pair=False)
        else:
            if message.code is FailCode.POISON:
                self._suspects.blamed(sender, message.key)
            self._fail(request, message.code, message.detail)

    def _on_given_up(self, sender: Boot, message: Recompute | Withdrawn, now: Micros) -> None:
        request = self._find(message.key, sender)
        if request is not None:
            self._another_epoch(request, FailCode.OVERLOADED, "gave way to others", now, counts=False, needs_pair=False)
