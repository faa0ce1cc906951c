"""The gateway's request logic: its one door, and what its parts share.

    HTTP ──Submit, Cancel──▶ Front ──Ticket, Abort, Close──▶ leaders
    HTTP ◀──Emit, Finish, Fail── Front ◀──Admitted, PromptLogprobs, FirstToken, Tokens, Failed, Recompute, Ended── leaders

    membership.py       which workers there are, and which of them can hand over to each other
    assignment.py       which request begins when, and on which of them
    epochs.py           from a ticket until both workers have ended what it began
    epoch_failures.py   what becomes of a request whose epoch has failed
    delivery.py         tokens, and which of them the client is sent

Invariants: a client sees each token index once, in order; index 0 only after `Admitted`, so an
unadmitted request can still be refused with a clean status; a request ends exactly once; a room is
closed when both sides have ended its last epoch (a lost worker counts as ended).
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from baton.core.door import Cancel, FrontView, Heard, QueueView, RequestId, RequestView, Submit
from baton.core.effects import Send
from baton.core.events import (
    AskWorkers,
    ForgetQuestion,
    FrontEvent,
    MessageReceived,
    PeerLost,
    Submitted,
    TimerDue,
)
from baton.core.frames import Said
from baton.core.gateway.alarm import Alarm
from baton.core.gateway.assignment import Assignment
from baton.core.gateway.delivery import Delivery
from baton.core.gateway.edge import Edge
from baton.core.gateway.epoch_failures import EpochFailures
from baton.core.gateway.epochs import Epochs
from baton.core.gateway.membership import Membership
from baton.core.gateway.open_requests import OpenRequests
from baton.core.gateway.questions import Questions
from baton.core.gateway.request import FrontSettings, Request, Say
from baton.core.gateway.router import Router
from baton.core.gateway.routing_policy import POLICIES
from baton.core.gateway.stamps import Stamps
from baton.core.ids import Arrival, Boot, Key, Micros, Room
from baton.core.marks import Mark, Marks
from baton.core.messages import (
    Admitted,
    AnyMessage,
    CacheChanged,
    Credits,
    Ended,
    Failed,
    FirstToken,
    LedgerView,
    Paired,
    PromptLogprobs,
    Recompute,
    Register,
    Ticket,
    Tokens,
    Trial,
    Unpaired,
    Withdrawn,
)
from baton.core.session.senders import may_say


class Front:
    """Takes one event at a time, and performs nothing: effects are Send (to workers) and Say (to
    the HTTP side).

    It keeps what its parts share: which requests are open and which of them wait, which workers
    there are, when it is to be woken.
    """

    def __init__(self, boot: Boot, settings: FrontSettings) -> None:
        self.boot, self.settings = boot, settings
        self._effects: list[Send | Say] = []
        self._arrived = 0
        self._questions = Questions()
        # what the parts share
        self.requests = OpenRequests()
        self.edge = Edge(settings)
        self.router = Router(
            settings.introduce_again_ms,
            POLICIES[settings.routing_policy],
            local_prefill=settings.local_prefill,
        )
        self.stamps = Stamps()
        self.alarm = Alarm()  # of requests and introductions
        self.marks: Marks = Marks()
        # the parts
        self.membership = Membership(self)
        self.assignment = Assignment(self)
        self.epochs = Epochs(self)
        self.failures = EpochFailures(self)
        self.delivery = Delivery(self)
        self._handlers: dict[type[Any], Callable[[Boot, Any, Micros], None]] = {
            Register: self.membership.on_register,
            Paired: self.membership.on_paired,
            Unpaired: self.membership.on_unpaired,
            Credits: self.membership.on_credits,
            CacheChanged: self.membership.on_cache_changed,
            Admitted: self.delivery.on_admitted,
            PromptLogprobs: self.delivery.on_prompt_logprobs,
            FirstToken: self.delivery.on_first_token,
            Tokens: self.delivery.on_tokens,
            Failed: self.failures.on_failed,
            Recompute: self.failures.on_given_up,
            Withdrawn: self.failures.on_given_up,
            Ended: self.epochs.on_ended,
            Trial: self.epochs.on_trial,
            LedgerView: lambda sender, view, now: self._questions.answered(sender, view),
        }

    # ---- events ---------------------------------------------------------------------------------

    def step(self, event: FrontEvent, now: Micros) -> list[Send | Say]:
        """Take one event; returns what is to be done, in order.

        Raises:
            Overloaded: of a new request: too many are open or wait, or it would wait too long;
                nothing was kept
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

    def _receive(self, sender: Boot, message: Said, now: Micros) -> None:
        """A leader has said something. What is not its own to say (session/senders.py) changes
        nothing."""
        handler = self._handlers.get(type(message))
        if handler is not None and may_say(sender, message, self):
            handler(sender, message, now)
        elif handler is not None:
            self.marks[Mark.WRONG_PARTY] += 1

    def _submit(self, submit: Submit, room: Room, now: Micros) -> None:
        if submit.pair is None:
            self.assignment.require_room(submit, now)
        self._arrived += 1
        request = Request(submit, room, Arrival(self._arrived), now, settings=self.settings)
        self.requests.add(request)
        self.assignment.start(request, now)

    def _cancel(self, cancel: Cancel, now: Micros) -> None:
        """The client has gone, or has enough. The request may have ended already."""
        request = self.requests.get(cancel.request)
        if request is not None:
            self.epochs.cancel(request, cancel.reason)
            self.assignment.advance(now)  # it may have been in the way

    def _lose(self, boot: Boot, why: str, now: Micros) -> None:
        """A worker is gone, and counts as having ended everything. What needed it goes on
        elsewhere, or fails."""
        worker = self.router.lost(boot)
        if worker is None:
            return
        self.failures.lost(worker, why, now)
        self.epochs.lost(boot, now)
        self._questions.lost(boot)
        self.assignment.advance(now)

    def _on_timer(self, now: Micros) -> None:
        """A deadline may have passed."""
        for request in list(self.requests):
            if now >= self.edge.due(request):
                self.marks[Mark.GRACE] += 1
                code = self.edge.over(request, now)
                self.epochs.fail(request, code, self.edge.why(request, code, now))
        self.membership.on_timer(now)
        self.alarm.reset(self._dues())
        self.assignment.advance(now)

    def _dues(self) -> list[Micros]:
        """Return when requests are to end, and when workers are to be introduced."""
        return [self.edge.due(r) for r in self.requests] + self.membership.dues()

    def _ask(self, event: AskWorkers) -> None:
        names = {r.manifest.boot: r.name for r in self.router.registered()}
        asked = {boot: name for boot, name in names.items() if event.worker in (None, name)}
        self._questions.ask(event.message.question, asked)
        for boot in asked:
            self.send(boot, event.message)

    def next_wake(self) -> Micros | None:
        """Return when a TimerDue is wanted at the latest."""
        return self.alarm.at if self.requests or self.router.pairs.introductions() else None

    # ---- effects --------------------------------------------------------------------------------

    def send(self, to: Boot, message: AnyMessage) -> None:
        """Say something to a worker, with the other effects of this step."""
        self._effects.append(Send(to, message))

    def say(self, heard: Heard) -> None:
        """Tell the HTTP side something, with the other effects of this step."""
        self._effects.append(Say(heard))

    # ---- what others ask ------------------------------------------------------------------------

    def usable_pairs(self) -> list[tuple[Boot, Boot]]:
        """Return the pairs (prefill, decode) that a request can be given to; a unified worker is a
        pair by itself."""
        return self.router.usable_pairs()

    def hears(self, sender: Boot, key: Key) -> bool:
        """Return whether what this worker says of this epoch changes anything."""
        return self.requests.find(key, sender) is not None

    def key_of(self, request: RequestId) -> Key | None:
        """Return the room and the current epoch of an open request. The epoch is 0 while none has
        begun."""
        found = self.requests.get(request)
        return found.key if found is not None else None

    def view(self, requests: Iterable[RequestId], *, most_pairs: int, now: Micros) -> FrontView:
        """Return what is to be seen of these requests, those that have ended left out, and of so
        many pairs."""
        opened = {id: found for id in requests if (found := self.requests.get(id)) is not None}
        pairs = self.router.pair_views()
        shown = tuple(islice(pairs, most_pairs))
        return FrontView(
            {id: self._view_of(request, now) for id, request in opened.items()},
            shown,
            sum(1 for _ in pairs),
        )

    def _view_of(self, request: Request, now: Micros) -> RequestView:
        workers = [self.router.get(boot) for boot in request.pair or ()]
        names = [worker.register.name if worker is not None else "" for worker in workers]
        age_ms = (now - request.came) // 1000
        return RequestView(request.room, request.epoch, request.state.value, age_ms, *names)

    def workers(self) -> list[Register]:
        """Return all registered workers."""
        return self.router.registered()

    def name_of(self, boot: Boot) -> str:
        """Return the name of a worker; its boot, if it is gone."""
        return self.router.name_of(boot)

    def held(self, room: Room) -> bool:
        """Return whether a worker still holds something of a room."""
        return room in self.epochs.closing

    def refusals(self) -> list[str]:
        """Return which registered workers cannot hand over to each other, and why not."""
        return self.router.pairs.refusals()

    def credits(self) -> dict[str, Credits]:
        """Return what workers last said of their capacity, by name."""
        return self.router.credits()

    def queue(self, now: Micros) -> QueueView:
        """Return how many requests wait at the edge, and how many were sent away."""
        return self.edge.view(now)

    def ledger(self, question: int) -> list[LedgerView] | None:
        """Return all answers to a question, or None while a worker that is still there has not
        answered."""
        return self._questions.complete(question)

    def answers(self, question: int) -> list[LedgerView]:
        """Return the answers to a question so far."""
        return self._questions.answers(question)

    def unanswered(self, question: int) -> list[str]:
        """Return the names of the workers that were asked, are still there and have not
        answered."""
        return self._questions.unanswered(question)

    @property
    def known_pages(self) -> int:
        """How many pages of workers' prefix caches the gateway knows of."""
        return len(self.router.caches)

    @property
    def open_requests(self) -> int:
        """How many requests have not ended, and how many rooms are not closed yet."""
        return len(self.requests) + len(self.epochs.closing)

    # ---- what it knows of who takes part in what (session/senders.py) ----------------------------

    def ticket_of(self, key: Key) -> Ticket | None:
        request = self.requests.in_room(key.room)
        return request.given if request is not None and request.key == key else None

    def owner_of(self, room: Room) -> Boot | None:
        return self.boot if self.requests.in_room(room) is not None else None

    def is_gateway(self, boot: Boot) -> bool:
        """Gateways do not speak to each other."""
        return False
