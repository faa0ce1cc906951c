"""Sends a workload by its schedule: open loop (a request is sent when it is due) or closed loop (as
many at once as allowed)."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence

import aiohttp
import msgspec

from baton.core.errors import BatonError, ConfigError
from baton.dev.bench.client import RequestOutcome, Target, ask
from baton.dev.bench.workload import Item

Tell = Callable[[RequestOutcome], None]


class SendSchedule(msgspec.Struct, frozen=True):
    """When requests are sent.

    Attributes:
        due: seconds from the start, one for each request; all 0 if only `concurrency` limits
        concurrency: requests under way at once; None = no limit
    """

    due: tuple[float, ...]
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(f"--max-concurrency {self.concurrency}: it must be at least 1")


def drive(
    target: Target,
    items: Sequence[Item],
    pace: SendSchedule,
    *,
    warm_up: Sequence[Item],
    tell: Tell,
) -> list[RequestOutcome]:
    """Send all requests, and return the outcomes in the order of `items`. `tell` is called with
    each as it ends. Warm-up requests are not among them.

    Raises:
        BatonError: a warm-up request failed
    """
    runner = asyncio.Runner(loop_factory=_loop)
    with runner:
        return runner.run(_drive(target, items, pace, warm_up, tell))


def _loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


async def _drive(
    target: Target, items: Sequence[Item], pace: SendSchedule, warm_up: Sequence[Item], tell: Tell
) -> list[RequestOutcome]:
    timeout = aiohttp.ClientTimeout(total=target.timeout_s, sock_connect=30)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        for item in warm_up:
            first = await ask(session, target, item, due=time.perf_counter())
            if first.failure:
                raise BatonError(
                    f"a warm-up request to {target.url} failed: {first.failure}: {first.detail}"
                )
        return await _send_all(session, target, items, pace, tell)


async def _send_all(
    session: aiohttp.ClientSession,
    target: Target,
    items: Sequence[Item],
    pace: SendSchedule,
    tell: Tell,
) -> list[RequestOutcome]:
    gate = asyncio.Semaphore(pace.concurrency if pace.concurrency is not None else len(items) or 1)
    start = time.perf_counter()

    async def one(item: Item, due: float) -> RequestOutcome:
        await asyncio.sleep(due - (time.perf_counter() - start))
        async with gate:
            at = start + due
            closed = pace.concurrency is not None and math.isclose(due, 0.0)
            outcome = await ask(session, target, item, due=time.perf_counter() if closed else at)
        tell(outcome)
        return outcome

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(one(item, due)) for item, due in zip(items, pace.due, strict=True)
        ]
    return [task.result() for task in tasks]
