"""The gateway's table of open requests: the only place where HTTP requests meet the core's.

Invariants: an entry is in the table exactly while something may be heard of it; every entry leaves by Finish, by Fail, or
with a Cancel to the core, once.
"""

import msgspec

from baton.core.door import Cancel, Emit, Fail, Finish, Heard, RequestId, Submit
from baton.core.errors import Overloaded
from baton.gateway.ask import Ask
from baton.gateway.door import STOP_STRING, Door
from baton.gateway.exchange import Exchange
from baton.gateway.faults import HttpFault, fault_of, overloaded, unavailable
from baton.gateway.stream import TextStream


class Entry(msgspec.Struct, frozen=True):
    """One request of the core: a choice of an exchange."""

    exchange: Exchange
    stream: TextStream


class Desk:
    """Submits, hears and cancels. All calls are made on the loop and none waits."""

    def __init__(self, door: Door, *, retry_after_s: int) -> None:
        self._door = door
        self._retry_after_s = retry_after_s
        self._table: dict[RequestId, Entry] = {}
        self._closing = False
        self.paused = False

    @property
    def open_requests(self) -> int:
        """Entries in the table."""
        return len(self._table)

    def open(self, exchange: Exchange, ask: Ask) -> None:
        """Submit every order of a request. If one is refused, the exchange has a fault and nothing is left running."""
        if self._closing or self.paused:
            exchange.fail(self._standing_still())
            return
        for order, stream in zip(ask.orders, exchange.streams, strict=True):
            if exchange.ended:  # an earlier one failed before this one was begun
                return
            request = self._door.next_request()
            sampling = ask.sampling(order, fresh_seed=self._door.next_seed())
            self._table[request] = Entry(exchange, stream)
            exchange.requests.add(request)
            try:
                self._door.submit(Submit(request, order.prompt, sampling, order.limits, ask.priority), self.hear)
                exchange.note(stream, self._door.key_of(request))
            except Overloaded as e:
                self._leave(request, exchange)
                self._fail(exchange, overloaded(str(e), retry_after_s=e.retry_after_s))

    def hear(self, heard: Heard) -> None:
        """What the core says of a request; what it says after the request has left the table is dropped."""
        entry = self._table.get(heard.request)
        if entry is None:
            return
        exchange, stream = entry.exchange, entry.stream
        match heard:
            case Emit():
                if exchange.emit(stream, heard):
                    self._cancel(heard.request, exchange, STOP_STRING)
                if exchange.ended:
                    self.close(exchange, exchange.outcome)
            case Finish():
                self._leave(heard.request, exchange)
                exchange.note(stream, heard.key)
                exchange.finish(stream, heard.reason)
            case Fail():
                self._leave(heard.request, exchange)
                exchange.note(stream, heard.key)
                self._fail(exchange, fault_of(heard, retry_after_s=self._retry_after_s))

    def close(self, exchange: Exchange, reason: str) -> None:
        """Nothing more is wanted by this exchange: cancel what still runs for it. Does nothing the second time."""
        exchange.abandon(reason)
        for request in tuple(exchange.requests):
            self._cancel(request, exchange, reason)

    def pause(self) -> None:
        """Take no requests until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Take requests again."""
        self.paused = False

    def shut(self) -> None:
        """Take no more requests."""
        self._closing = True

    def fail_all(self) -> None:
        """End every open request with an error: the gateway goes, or falls asleep."""
        for exchange in {id(e.exchange): e.exchange for e in self._table.values()}.values():
            self._fail(exchange, self._standing_still())

    def _fail(self, exchange: Exchange, fault: HttpFault) -> None:
        exchange.fail(fault)
        self.close(exchange, "another choice of the request failed" if len(exchange.streams) > 1 else "failed")

    def _leave(self, request: RequestId, exchange: Exchange) -> None:
        del self._table[request]
        exchange.requests.discard(request)

    def _cancel(self, request: RequestId, exchange: Exchange, reason: str) -> None:
        exchange.note(self._table[request].stream, self._door.key_of(request))
        self._leave(request, exchange)
        self._door.cancel(Cancel(request, reason))

    def _standing_still(self) -> HttpFault:
        why, code = "the service is asleep; POST /wake_up", "asleep"
        if self._closing:
            why, code = "the gateway is shutting down", "shutting_down"
        return unavailable(why, code=code, retry_after_s=self._retry_after_s)
