"""The gateway's table of open requests, which connects HTTP requests with requests of the core.

Invariants: an entry is in the table exactly as long as the core may send events for it. Every entry
is removed once: by Finish, by Fail, or with a Cancel to the core.
"""

from collections.abc import Collection

from baton.core.door import Cancel, Emit, Fail, Finish, Heard, RequestId, Submit
from baton.core.errors import Overloaded
from baton.gateway.ask import Ask
from baton.gateway.door import STOP_STRING, Door
from baton.gateway.exchange import Exchange
from baton.gateway.faults import HttpFault, fault_of, overloaded, unavailable
from baton.gateway.stream import TextStream


class DispatchedRequest:
    """One request of the core, which is one choice
    of an exchange; it receives the core's events."""

    __slots__ = ("_dispatcher", "exchange", "request", "stream")

    def __init__(
        self, dispatcher: "Dispatcher", request: RequestId, exchange: Exchange, stream: TextStream
    ) -> None:
        self._dispatcher, self.request, self.exchange, self.stream = (
            dispatcher,
            request,
            exchange,
            stream,
        )

    def hear(self, heard: Heard) -> None:
        """Take an event from the core; none comes after a Cancel (D4)."""
        exchange = self.exchange
        if isinstance(heard, Emit):
            stopped = exchange.emit(self.stream, heard)
            if stopped or exchange.ended:
                self._dispatcher.enough(self, stopped=stopped)
        else:
            self._dispatcher.over(self, heard)


class Dispatcher:
    """Submits and cancels requests and passes their
    events on. All calls are on the loop; none waits."""

    def __init__(self, door: Door, *, retry_after_s: int) -> None:
        self._door = door
        self._retry_after_s = retry_after_s
        self._table: dict[RequestId, DispatchedRequest] = {}
        self._closing = False
        self.paused = False

    @property
    def open_requests(self) -> int:
        """Entries in the table."""
        return len(self._table)

    @property
    def entries(self) -> Collection[DispatchedRequest]:
        """The entries of the table, in the order in which they came; a view, not a copy."""
        return self._table.values()

    def open(self, exchange: Exchange, ask: Ask) -> None:
        """Submit every order of a request. If one is refused,
        the exchange fails and none keeps running."""
        if self._closing or self.paused:
            exchange.fail(self._standing_still())
            return
        for order, stream in zip(ask.orders, exchange.streams, strict=True):
            if exchange.ended:  # an earlier order has failed
                return
            request = self._door.next_request()
            sampling = ask.sampling(order, fresh_seed=self._door.next_seed())
            entry = self._table[request] = DispatchedRequest(self, request, exchange, stream)
            exchange.requests.add(request)
            try:
                submit = Submit(
                    request,
                    order.prompt,
                    sampling,
                    order.limits,
                    priority=ask.priority,
                    cache_salt=ask.cache_salt,
                    grammar=ask.grammar,
                    id=exchange.id,
                    traceparent=ask.traceparent,
                )
                self._door.submit(submit, entry.hear)
                exchange.note(stream, self._door.key_of(request))
            except Overloaded as e:
                self._leave(request, exchange)
                self._fail(exchange, overloaded(str(e), retry_after_s=e.retry_after_s))

    def enough(self, entry: DispatchedRequest, *, stopped: bool) -> None:
        """Stop a choice: a stop string was found in it, or its exchange has ended."""
        if stopped:
            self._cancel(entry.request, entry.exchange, STOP_STRING)
        if entry.exchange.ended:
            self.close(entry.exchange, entry.exchange.outcome)

    def over(self, entry: DispatchedRequest, heard: Finish | Fail) -> None:
        """The core has ended a choice."""
        self._leave(entry.request, entry.exchange)
        entry.exchange.note(entry.stream, heard.key)
        if isinstance(heard, Finish):
            entry.exchange.finish(entry.stream, heard.reason)
        else:
            self._fail(entry.exchange, fault_of(heard, retry_after_s=self._retry_after_s))

    def close(self, exchange: Exchange, reason: str) -> None:
        """Cancel everything that still runs for an exchange. A second call has no effect."""
        exchange.abandon(reason)
        for request in tuple(exchange.requests):
            self._cancel(request, exchange, reason)

    def pause(self) -> None:
        """Refuse new requests until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Accept requests again."""
        self.paused = False

    def shut(self) -> None:
        """Refuse all further requests."""
        self._closing = True

    def fail_all(self) -> None:
        """End every open request with an error, because the gateway shuts down or goes to sleep."""
        for exchange in {id(e.exchange): e.exchange for e in self._table.values()}.values():
            self._fail(exchange, self._standing_still())

    def _fail(self, exchange: Exchange, fault: HttpFault) -> None:
        exchange.fail(fault)
        self.close(
            exchange,
            "another choice of the request failed" if len(exchange.streams) > 1 else "failed",
        )

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
