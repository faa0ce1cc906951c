"""The interface of the request logic to the HTTP side; front_door.py implements it around the core.

D1 Everything runs on one asyncio loop. No method blocks; only the coroutines wait.
D2 `hear` is called on that loop: any number of Emit, then exactly one Finish or Fail, unless the
   request is cancelled.
D3 `hear` may be called before `submit` returns, and `cancel` may be called from inside `hear`.
D4 After `cancel`, `hear` is not called again for the request. Cancelling an unknown or ended
   request has no effect.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from baton.core.door import Cancel, FrontView, Heard, QueueView, RequestId, Submit
from baton.core.ids import Key
from baton.core.messages import Credits, LedgerView
from baton.gateway.scaling import WorkerLoad

STOP_STRING = "stop string"  # the reason of a Cancel that is not a failure
Hear = Callable[[Heard], None]


class Readiness(msgspec.Struct, frozen=True):
    """Whether a request sent now would find workers; `why` says what is missing or available."""

    ready: bool
    why: str


def pair_count(pairs: int) -> str:
    """Return the `why` of a service that is ready."""
    return f"{pairs} pair{'s' if pairs > 1 else ''} of workers"


class Capacity(msgspec.Struct, frozen=True):
    """The largest request that the registered workers can hold."""

    max_model_len: int  # positions, prompt and generated tokens together
    pool_tokens: int  # positions of the smallest pool that a request must fit into


class LedgerReport(msgspec.Struct, frozen=True):
    """The ledgers of all workers; `missing` names workers that did not answer in time.

    The other fields are the gateway's own: the number of requests and rooms that have not ended,
    the number of usable pairs, counts of rare branches, each worker's last statement of capacity,
    the queue, and how many pages of workers' prefix caches it knows of.
    """

    workers: tuple[LedgerView, ...]
    missing: tuple[str, ...]
    open_requests: int
    pairs: int = 0
    events: dict[str, int] = {}
    credits: dict[str, Credits] = {}
    queue: QueueView = QueueView()
    known_pages: int = 0


class Door(Protocol):
    """The request logic, as HTTP sees it."""

    def submit(self, submit: Submit, hear: Hear) -> None:
        """Start a request.

        Raises:
            Overloaded: it would wait too long, or too many are waiting; nothing was started
        """
        ...

    def cancel(self, cancel: Cancel) -> None:
        """Cancel a request on all workers (D4)."""
        ...

    def key_of(self, request: RequestId) -> Key | None:
        """Room and current epoch of an open request (epoch 0: none has begun); None if not open."""
        ...

    def next_request(self) -> RequestId:
        """Return a request number that this process has not used before."""
        ...

    def next_seed(self) -> int:
        """64 random bits."""
        ...

    def ready(self) -> Readiness:
        """Whether requests can be served now."""
        ...

    def capacity(self) -> Capacity | None:
        """The largest request possible; while no workers are there, that of the last ones. None
        until workers that can serve one have registered."""
        ...

    async def clear(self) -> LedgerReport:
        """Ask every worker to zero its pools; returns within a bounded time.

        `cleared` in the ledgers names the groups that were zeroed.
        """
        ...

    async def reset_cache(self, worker: str | None) -> LedgerReport:
        """Ask every worker, or those named `worker`, to empty its prefix cache.

        Returns within a bounded time; `missing` names the workers that did not answer.
        """
        ...

    async def drain(self, worker: str, role: str | None) -> LedgerReport:
        """Ask the workers with this name to take no more requests, and to end when theirs have;
        with `role`, to begin again in that role. Returns within a bounded time, as `reset_cache`.
        """
        ...

    def own_report(self) -> LedgerReport:
        """The fields of `ledger` that are the gateway's own; it names no workers."""
        ...

    def loads(self) -> tuple[Sequence[WorkerLoad], int]:
        """Return what each worker has stated of its capacity, and how many requests wait here."""
        ...

    def view(self, requests: Sequence[RequestId], *, most_pairs: int) -> FrontView:
        """Return what is to be seen of these requests, those that have ended left out, and of so
        many pairs of workers."""
        ...

    async def ledger(self, *, audit: bool = True) -> LedgerReport:
        """Ask every worker for its ledger; returns within a bounded time.

        With `audit`, workers check every page first.
        """
        ...
