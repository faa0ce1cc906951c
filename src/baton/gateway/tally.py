"""Counters in the stream of tokens: an addition for each token, read at a scrape (metrics.py).

The client library's own histogram takes a lock at each observation, which is too slow for a gateway
that streams 60,000 tokens/s.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from baton.core.door import Cancel, Emit, Fail, Finish, FrontView, Heard, RequestId, Submit
from baton.core.errors import Overloaded
from baton.core.ids import Key
from baton.gateway.door import STOP_STRING, Capacity, Door, Hear, LedgerReport, Readiness
from baton.gateway.live_times import LiveTimes
from baton.gateway.scaling import WorkerLoad
from baton.gateway.timeline import Moments

# vLLM's buckets in seconds, so that its dashboards fit.
FIRST_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_S = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
WHOLE_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKENS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))


class Histogram(msgspec.Struct):
    """Counts values in buckets; `counts` has an entry for each bound, and one above the last."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    @classmethod
    def of(cls, bounds: tuple[float, ...]) -> "Histogram":
        """Return an empty one."""
        return cls(bounds, [0] * (len(bounds) + 1))

    def add(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


def _histogram(bounds: tuple[float, ...]) -> Histogram:
    made: Histogram = msgspec.field(default_factory=partial(Histogram.of, bounds))
    return made


class RequestTally(msgspec.Struct):
    """Counts all requests of one gateway. Each choice of `n` is a request.

    Attributes:
        prompt_tokens: of requests that have their first token
        finished: requests by vLLM's finished_reason
        failed: requests by error code
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: dict[str, int] = msgspec.field(default_factory=Counter)
    failed: dict[str, int] = msgspec.field(default_factory=Counter)
    first: Histogram = _histogram(FIRST_S)
    between: Histogram = _histogram(BETWEEN_S)
    per_token: Histogram = _histogram(BETWEEN_S)
    whole: Histogram = _histogram(WHOLE_S)
    prompts: Histogram = _histogram(TOKENS)
    answers: Histogram = _histogram(TOKENS)
    queue: Histogram = _histogram(WHOLE_S)
    prefill: Histogram = _histogram(WHOLE_S)
    decode: Histogram = _histogram(WHOLE_S)
    inference: Histogram = _histogram(WHOLE_S)

    def ended(self, moments: Moments) -> None:
        """Count where the time of a request went that had an answer."""
        if (spent := moments.spent) is not None:
            self.queue.add(spent.queue_us / 1e6)
            self.prefill.add(spent.prefill_us / 1e6)
            self.decode.add(spent.decode_us / 1e6)
            self.inference.add((spent.prefill_us + spent.decode_us) / 1e6)


class _Timed:
    """One request under way; it passes the core's events on and counts them."""

    __slots__ = (
        "_began",
        "_count",
        "_first",
        "_hear",
        "_last",
        "_live",
        "_now",
        "_over",
        "_prompt",
        "_tally",
    )

    def __init__(
        self,
        hear: Hear,
        tally: RequestTally,
        now: Callable[[], float],
        over: Callable[[RequestId], object],
        *,
        prompt: int,
        live: LiveTimes,
    ) -> None:
        self._hear, self._tally, self._now, self._over = hear, tally, now, over
        self._live = live
        self._began, self._prompt = now(), prompt
        self._first = self._last = 0.0
        self._count = 0

    def hear(self, heard: Heard) -> None:
        """Count an event, and pass it on."""
        match heard:
            case Emit():
                count, at = len(heard.drawn), self._now()
                if self._count and count:
                    gap = (at - self._last) / count
                    self._tally.between.add(gap, count)
                    if self._live.watched:
                        self._live.between.append(gap)
                elif count:
                    self._begin(at)
                self._last = at
                self._count += count
                self._tally.generated_tokens += count
            case Finish():
                self.end(heard.reason.value)
                self._over(heard.request)
            case Fail():
                self._tally.failed[heard.code.value] += 1
                self._over(heard.request)
        self._hear(heard)

    def _begin(self, at: float) -> None:
        """Count the first token."""
        self._first = at
        self._tally.first.add(at - self._began)
        self._live.first.append((at, at - self._began))
        self._tally.prompt_tokens += self._prompt

    def end(self, reason: str) -> None:
        """Count a request that ended without an error, or whose client left ("abort")."""
        tally = self._tally
        tally.finished[reason] += 1
        tally.whole.add(self._now() - self._began)
        tally.prompts.add(self._prompt)
        tally.answers.add(self._count)
        if self._count > 1:
            tally.per_token.add((self._last - self._first) / (self._count - 1))


class TallyingDoor:
    """Implements Door around another one, and counts what passes through."""

    def __init__(
        self, door: Door, tally: RequestTally, live: LiveTimes, now: Callable[[], float]
    ) -> None:
        self._door, self._tally, self._live, self._now = door, tally, live, now
        self._open: dict[RequestId, _Timed] = {}

    def submit(self, submit: Submit, hear: Hear) -> None:
        timed = _Timed(
            hear,
            self._tally,
            self._now,
            self._open.pop,
            prompt=len(submit.prompt),
            live=self._live,
        )
        self._open[submit.request] = timed
        try:
            self._door.submit(submit, timed.hear)
        except Overloaded:
            del self._open[submit.request]
            self._tally.failed["overloaded"] += 1
            raise

    def cancel(self, cancel: Cancel) -> None:
        timed = self._open.pop(cancel.request, None)
        if timed is not None:
            timed.end("stop" if cancel.reason == STOP_STRING else "abort")
        self._door.cancel(cancel)

    def key_of(self, request: RequestId) -> Key | None:
        return self._door.key_of(request)

    def next_request(self) -> RequestId:
        return self._door.next_request()

    def next_seed(self) -> int:
        return self._door.next_seed()

    def ready(self) -> Readiness:
        return self._door.ready()

    def capacity(self) -> Capacity | None:
        return self._door.capacity()

    async def clear(self) -> LedgerReport:
        return await self._door.clear()

    async def reset_cache(self, worker: str | None) -> LedgerReport:
        return await self._door.reset_cache(worker)

    async def drain(self, worker: str, role: str | None) -> LedgerReport:
        return await self._door.drain(worker, role)

    def loads(self) -> tuple[Sequence[WorkerLoad], int]:
        return self._door.loads()

    def view(self, requests: Sequence[RequestId], *, most_pairs: int) -> FrontView:
        return self._door.view(requests, most_pairs=most_pairs)

    def own_report(self) -> LedgerReport:
        return self._door.own_report()

    async def ledger(self, *, audit: bool = True) -> LedgerReport:
        return await self._door.ledger(audit=audit)
