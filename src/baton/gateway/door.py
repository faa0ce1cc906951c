"""The gateway's view of the request logic: what HTTP may ask of it. Implemented by the shell around core/gateway/front.py.

D1 Everything runs on the one asyncio loop; no method blocks, only `ledger` waits.
D2 `hear` is called on that loop: any number of Emit, then exactly one Finish or Fail, unless the request is cancelled.
D3 `hear` may be called before `submit` returns, and `cancel` may be called from inside `hear`.
D4 After `cancel` nothing more is heard of the request; a cancel of an unknown or ended request is ignored.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from baton.core.door import Cancel, Heard, QueueView, RequestId, Submit
from baton.core.ids import Key
from baton.core.messages import Credits, LedgerView

STOP_STRING = "stop string"  # reason of a Cancel that ends a request well
Hear = Callable[[Heard], None]


class Readiness(msgspec.Struct, frozen=True):
    """Whether a request sent now would find workers; `why` says what is missing, or what there is."""

    ready: bool
    why: str


def pair_count(pairs: int) -> str:
    """The `why` of a service that is ready."""
    return f"{pairs} pair{'s' if pairs > 1 else ''} of workers"


class Capacity(msgspec.Struct, frozen=True):
    """The largest request that the registered workers can hold."""

    max_model_len: int  # positions, prompt and generated tokens together
    pool_tokens: int  # positions of the smallest pool that a request must fit into


class LedgerReport(msgspec.Struct, frozen=True):
    """The books of all workers; `missing` names those that did not answer in time.

    The rest is the gateway's own: requests that have not ended and rooms that a side has still to end, usable pairs, rare
    branches taken by name, what workers last stated of their capacity, by name, and who waits for it.
    """

    workers: tuple[LedgerView, ...]
    missing: tuple[str, ...]
    open_requests: int
    pairs: int = 0
    events: dict[str, int] = {}
    credits: dict[str, Credits] = {}
    queue: QueueView = QueueView()


class Door(Protocol):
    """The request logic, as HTTP sees it."""

    def submit(self, submit: Submit, hear: Hear) -> None:
        """Start a request. Raises Overloaded when it would wait too long, or too many do: nothing was started then."""
        ...

    def cancel(self, cancel: Cancel) -> None:
        """End a request everywhere (D4)."""
        ...

    def key_of(self, request: RequestId) -> Key | None:
        """Room and current epoch of an open request, epoch 0 while none has begun; None before and after."""
        ...

    def next_request(self) -> RequestId:
        """A number not used before by this process."""
        ...

    def next_seed(self) -> int:
        """64 random bits."""
        ...

    def ready(self) -> Readiness:
        """Whether requests can be served now."""
        ...

    def capacity(self) -> Capacity | None:
        """None until workers that can serve a request have registered."""
        ...

    async def clear(self) -> LedgerReport:
        """Ask every worker to zero its pools; the books say which groups were (`cleared`). Ends within a bounded time."""
        ...

    async def reset_cache(self, worker: str | None) -> LedgerReport:
        """Ask every worker, or those of this name, to empty its prefix cache; ends within a bounded time, `missing` names who
        did not answer."""
        ...

    async def ledger(self, *, audit: bool = True) -> LedgerReport:
        """Ask every worker for its books, checked page by page or not; ends within a bounded time."""
        ...
