"""What gateways do with the requests of guests: the contract of gateway/engine_client.py, over
simulated HTTP.

    Front ──Ticket──▶ Calls to both engines at once ──▶ prefill's answer is dropped
                                                    └──▶ decode's is passed on as Tokens

If decode's first token is another than prefill's, the epoch fails, and the next one goes on after
prefill's.

A request may arrive long before or after the ticket of its room, and at a later boot of its engine.
What a guest says before its engine is up is kept back.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from baton.core.frames import Said
from baton.core.ids import Boot, Key, TokenId, TokenIndex
from baton.core.messages import (
    Abort,
    AnyMessage,
    Drawn,
    Ended,
    FailCode,
    Failed,
    FinishReason,
    FirstToken,
    Register,
    Ticket,
    Tokens,
)
from baton.dev.sim.guests.call import Call, SimAnswerEvent
from baton.dev.sim.process import Process

WIRE_US = 120
LATER_US = (1_000, 20_000, 300_000, 900_000, 2_500_000)  # a request that arrives late
NOTICED_US = (1_000, 10_000, 200_000)  # until an engine knows that its client has left
LOOK_US = 10_000  # between two looks whether a gateway that stood still goes on
UP_US = 50_000  # times up to 8: until the HTTP server of an engine is up
FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class SimEngineClient:
    """Implements shell.gateway_pump.GuestEngines. answers: takes what an engine says"""

    def __init__(self, world: Any, process: Process, answers: Callable[[Boot, Said], None]) -> None:
        self._world, self._process, self._answers = world, process, answers
        self._urls: dict[Boot, str] = {}
        self._calls: dict[tuple[Boot, Key], Call] = {}
        self._first: dict[Key, TokenId] = {}
        self._prefill_of: dict[Key, Boot] = {}  # of open requests
        self._inbox: list[tuple[Boot, Said]] = []  # what engines have said
        self._passing = False  # whether a look at it is due
        self._held: dict[Boot, list[Said]] = {}
        self._prefills: set[Boot] = set()
        process.on_death.append(self._ended)

    # ---- what passes between the core and workers -----------------------------------------------

    def heard(self, sender: Boot, message: Said) -> bool:
        match message:
            case Register(url=url, manifest=of) if url is not None and sender not in self._urls:
                self._urls[sender], self._held[sender] = url, []
                if of.role == "prefill":
                    self._prefills.add(sender)
                self._world.heap.after(self._starts(), self._up, sender)
            case FirstToken(key=key, drawn=drawn) if self._prefill_of.get(key) == sender:
                self._first[key] = drawn.token
            case Ended(key=key) if sender in self._prefills:
                self._hang_up(sender, key)
            case _:
                pass
        if sender not in self._held:
            return False
        self._held[sender].append(message)
        return True

    def sent(self, to: Boot, message: AnyMessage) -> None:
        match message:
            case Ticket() as ticket if to in self._urls:
                self._world.ticket(ticket)
                self._prefill_of[ticket.key] = ticket.prefill
                self._ask(to, ticket)
            case Abort(key=key):
                self._hang_up(to, key)
            case _:
                pass

    def lost(self, boot: Boot) -> None:
        self._urls.pop(boot, None)
        self._held.pop(boot, None)
        self._inbox = [said for said in self._inbox if said[0] != boot]
        self._prefills.discard(boot)
        for other, key in list(self._calls):
            if other == boot:
                self._hang_up(boot, key)

    def _starts(self) -> int:
        slow = self._world.hostile and self._world.tape.chance(0.2, "an engine is up late")
        return UP_US * self._world.tape.below(8, "up after") if slow else WIRE_US

    def _up(self, boot: Boot) -> None:
        for message in self._held.pop(boot, []):
            self._tell(boot, message)

    def _tell(self, boot: Boot, message: Said) -> None:
        """Pass something on, as soon as the gateway's process goes on if it stands still."""
        self._inbox.append((boot, message))
        if not self._passing:
            self._passing = True
            self._pass_on()

    def _pass_on(self) -> None:
        if self._world.heap.now < self._process.paused_until:
            self._world.heap.after(LOOK_US, self._pass_on)
            return
        self._passing = False
        inbox, self._inbox = self._inbox, []
        for boot, message in inbox if self._process.alive else ():
            self._answers(boot, message)

    def _is_open(self, key: Key) -> bool:
        return any(other == key for _, other in self._calls)

    def _ended(self, why: str) -> None:
        """The gateway has ended, and its connections with it."""
        for boot, key in list(self._calls):
            self._hang_up(boot, key)

    # ---- one request ----------------------------------------------------------------------------

    def _ask(self, boot: Boot, ticket: Ticket) -> None:
        world, url = self._world, self._urls[boot]
        prefill = boot == ticket.prefill
        left = ticket.limits.max_tokens - len(ticket.said)
        decoding = Decoding(self, boot, ticket)
        call = self._calls[boot, ticket.key] = Call(
            url,
            ticket,
            1 if prefill else left,
            hear=partial(self._drops, boot, ticket.key) if prefill else decoding.hear,
            broken=partial(self._broken, boot, ticket.key),
        )
        after = WIRE_US
        if world.tape.chance(world.faults().http_late, "a late request"):
            world.fault("late request", f"request {ticket.sampling.seed}")
            after += LATER_US[world.tape.below(len(LATER_US), "arrives after")]
        world.heap.after(after, self._arrive, call)

    def _arrive(self, call: Call) -> None:
        engine = self._world.engine_at(call.url)
        if engine is None:
            self._world.heap.after(WIRE_US, call.broken, "the connection was refused")
            return
        engine.comes(call)
        if call.closed:
            engine.leaves(call)

    def _hang_up(self, boot: Boot, key: Key) -> None:
        call = self._calls.get((boot, key))
        if call is None:
            return
        call.closed = True
        self._done(boot, key)
        late = self._world.hostile and self._world.tape.chance(0.2, "an engine notices late")
        after = NOTICED_US[self._world.tape.below(len(NOTICED_US), "noticed")] if late else 0
        self._world.heap.after(WIRE_US + after, self._left, call)

    def _left(self, call: Call) -> None:
        engine = self._world.engine_at(call.url)
        if engine is not None:
            engine.leaves(call)

    def _done(self, boot: Boot, key: Key) -> None:
        self._calls.pop((boot, key), None)
        if not self._is_open(key):
            self._first.pop(key, None)
            self._prefill_of.pop(key, None)

    def _drops(self, boot: Boot, key: Key, event: SimAnswerEvent) -> None:
        """Prefill's leader reports the token, so its engine's answer is not needed."""
        if event.finish is not None:
            self._done(boot, key)

    def _broken(self, boot: Boot, key: Key, why: str) -> None:
        """A call has ended badly: its epoch fails."""
        if (boot, key) in self._calls and self._process.alive:
            self.fail(boot, key, FailCode.COMPUTE_FAILED, why)

    # ---- decode's answer ------------------------------------------------------------------------

    def first(self, key: Key) -> TokenId | None:
        """Return the token that prefill drew; None if it is not known."""
        return self._first.get(key)

    def say(self, boot: Boot, message: Tokens) -> None:
        """Pass on tokens of a call that is still open."""
        if (boot, message.key) in self._calls and self._process.alive:
            if message.finish is not None:
                self._done(boot, message.key)
            self._tell(boot, message)

    def fail(self, boot: Boot, key: Key, code: FailCode, why: str) -> None:
        """A call is given up: its epoch fails."""
        if (boot, key) in self._calls and self._process.alive:
            self._hang_up(boot, key)
            self._tell(boot, Failed(key, code, why, retry=True))


class Decoding:
    """The answer of a decode engine to one request."""

    def __init__(self, client: SimEngineClient, boot: Boot, ticket: Ticket) -> None:
        self._client, self._boot, self._ticket = client, boot, ticket
        self._at = len(ticket.said)

    def hear(self, event: SimAnswerEvent) -> None:
        """Take an event."""
        client, boot, key = self._client, self._boot, self._ticket.key
        finish = FINISH.get(event.finish or "")
        if event.token is not None:
            first = client.first(key) if self._at == len(self._ticket.said) else None
            if first is not None and first != event.token:
                why = f"decode drew token {event.token} first, and prefill {first}"
                client.fail(boot, key, FailCode.HANDOFF_FAILED, why)
                return
            drawn = (Drawn(event.token, None, ()),)
            client.say(boot, Tokens(key, TokenIndex(self._at), drawn, finish))
            self._at += 1
        elif finish is None:
            why = f"its answer ended before the request did: {event.finish}"
            client.fail(boot, key, FailCode.COMPUTE_FAILED, why)
