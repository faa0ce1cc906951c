"""A service on a virtual clock: the core of one gateway, and the leaders and ranks of its workers,
as they are shipped. Only computing and reading are modelled.

    request ──▶ Front ──Ticket──▶ leaders ──plans──▶ ranks that are busy for as long as their machine would be
       ▲          ▲                  └──Credits, CacheChanged, Admitted, FirstToken, Tokens──▶ Front
    a trace       └── all messages take the profile's message_us

Workers may come and go. Left out: everything that fails (docs/planning.md).
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import count

import msgspec

from baton.core.door import Emit, Fail, Finish, RequestId, Submit
from baton.core.effects import Send
from baton.core.errors import Overloaded
from baton.core.events import (
    DrainAsked,
    FrontEvent,
    GatewayConnected,
    MessageReceived,
    PeerLost,
    Submitted,
    TimerDue,
)
from baton.core.gateway.front import Front
from baton.core.gateway.request import FrontSettings, Say
from baton.core.ids import Boot, Micros, Room, TokenId
from baton.core.messages import AnyMessage, Limits, Sampling
from baton.dev.fleet.fleet_worker import FleetWorker
from baton.dev.fleet.network import FleetNetwork
from baton.dev.fleet.profile import MachineProfile
from baton.dev.fleet.served_request import ServedRequest
from baton.dev.fleet.shared_cores import SharedCores
from baton.dev.fleet.virtual_clock import VirtualClock

SAMPLING = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, logprobs=None)
SETTLE_US = 1_000_000  # until all workers are introduced to each other


class FleetRequest(msgspec.Struct, frozen=True):
    """What a fleet is asked. at_us: counted from the first request"""

    at_us: int
    prompt: tuple[TokenId, ...]
    output_tokens: int


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a fleet is run.

    Attributes:
        front: of the gateway
        deadline_ms: of each request (`--request-timeout`)
        prefix_cache: whether workers keep the pages of earlier prompts
        most_steps: steps in succession that the core is not asked about at most, as nothing changes
            between them; 1 asks it about each
        cores: of one machine, which all workers, the gateway and the clients share; None if each
            worker has its own, and the others do too. Steps are not skipped then
    """

    front: FrontSettings = FrontSettings()
    deadline_ms: int = 600_000
    prefix_cache: bool = True
    most_steps: int = 64
    cores: int | None = None


class Fleet:
    """Workers and their gateway."""

    GATEWAY = Boot(1)

    def __init__(
        self, roles: Sequence[str], profile: MachineProfile, settings: FleetSettings
    ) -> None:
        """roles: of each worker"""
        self.clock = VirtualClock()
        self.network = FleetNetwork(profile.wire)
        self._settings, self._message_us = settings, profile.wire.message_us
        self._host = profile.host
        self._cores = (
            None
            if settings.cores is None
            else SharedCores(settings.cores, profile.host, self.clock)
        )
        self.front = Front(self.GATEWAY, settings.front)
        self._front_wakes_at: Micros | None = None
        self._coming: Iterator[FleetRequest] | None = None  # requests that have not come yet
        self._start = Micros(0)  # when the first of them came, or is to come
        self._open: dict[RequestId, ServedRequest] = {}
        self.served: list[ServedRequest] = []
        self._boots = count(self.GATEWAY + 1)
        self._profile = profile
        self.workers: dict[Boot, FleetWorker] = {}
        for role in roles:
            self.add(role)

    def add(self, role: str) -> None:
        """Start a worker, which is there at once."""
        boot = Boot(next(self._boots))
        self.workers[boot] = FleetWorker(
            boot,
            role,
            self._profile,
            clock=self.clock,
            network=self.network,
            send=self._send,
            leave=self._leave,
            prefix_cache=self._settings.prefix_cache,
            most_steps=self._settings.most_steps if self._settings.cores is None else 1,
            cores=self._cores,
        )
        self.workers[boot].take(GatewayConnected(self.GATEWAY))

    def drain(self, boot: Boot) -> None:
        """Have a worker leave when the requests that it has have ended."""
        self.workers[boot].take(DrainAsked())

    def _leave(self, boot: Boot) -> None:
        del self.workers[boot]
        lost = PeerLost(boot, "it has left")
        self._front(lost)
        for worker in list(self.workers.values()):
            worker.take(lost)

    def serve(self, requests: Iterable[FleetRequest]) -> list[ServedRequest]:
        """Serve requests at their times until all have ended; they come in the order of these, and
        each is asked for when the one before has come. Returns what became of them, in order."""
        self._coming, self._start = iter(requests), Micros(self.clock.now + SETTLE_US)
        self._expect_next()
        while (self._open or self._coming is not None) and self.clock.advance():
            pass
        return self.served

    # ---- requests -------------------------------------------------------------------------------

    def _expect_next(self) -> None:
        request = next(self._coming, None) if self._coming is not None else None
        if request is None:
            self._coming = None
        else:
            self.clock.at(self._start + request.at_us, self._ask, request)

    def _ask(self, request: FleetRequest) -> None:
        self._expect_next()
        number, prompt = RequestId(len(self.served)), request.prompt
        served = ServedRequest(
            at=self.clock.now, prompt_tokens=len(prompt), asked=request.output_tokens
        )
        self._open[number] = served
        self.served.append(served)
        limits = Limits(request.output_tokens, (), (), self._settings.deadline_ms)
        submit = Submit(number, prompt, SAMPLING, limits)
        if self._cores is None:
            self._submit(submit)
        else:
            self._cores.serve(self._host.request_us, partial(self._submit, submit))

    def _submit(self, submit: Submit) -> None:
        try:
            self._front(Submitted(submit, Room(f"{submit.request:032x}")))
        except Overloaded as error:
            self._open.pop(submit.request).failure = str(error)

    def _say(self, heard: Emit | Finish | Fail) -> None:
        if self._cores is None:
            self._hear(heard)
        else:
            tokens = len(heard.drawn) if isinstance(heard, Emit) else 0
            self._cores.serve(tokens * self._host.reply_us, partial(self._hear, heard))

    def _hear(self, heard: Emit | Finish | Fail) -> None:
        served = self._open[heard.request]
        match heard:
            case Emit():
                served.first = self.clock.now if served.first is None else served.first
                served.last = self.clock.now
                served.tokens += len(heard.drawn)
            case Finish():
                del self._open[heard.request]
            case Fail():
                del self._open[heard.request]
                served.failure = heard.detail

    # ---- the gateway ----------------------------------------------------------------------------

    def _send(self, source: Boot, target: Boot, message: AnyMessage) -> None:
        when, event = self.clock.now + self._message_us, MessageReceived(source, message)
        if target == self.GATEWAY:
            self.clock.at(when, self._front, event)
        else:
            self.clock.at(when, self._deliver, target, event)

    def _deliver(self, target: Boot, event: MessageReceived) -> None:
        worker = self.workers.get(target)
        if worker is not None:  # else it has left meanwhile
            worker.take(event)

    def _front(self, event: FrontEvent) -> None:
        for effect in self.front.step(event, self.clock.now):
            match effect:
                case Send():
                    self._send(self.GATEWAY, effect.to, effect.message)
                case Say():
                    self._say(effect.heard)
        wake = self.front.next_wake()
        if wake is not None and (self._front_wakes_at is None or wake < self._front_wakes_at):
            self._front_wakes_at = wake
            self.clock.at(wake, self._front_timer, wake)

    def _front_timer(self, wake: Micros) -> None:
        if self._front_wakes_at == wake:
            self._front_wakes_at = None
            self._front(TimerDue())
