"""/sleep and /wake_up: the service stands still with empty pools, its processes and weights in place.

    AWAKE ──sleep──▶ no new requests ──open ones end, or are ended──▶ every worker zeroes every pool ──▶ ASLEEP
      ▲──────────────────────────────── wake_up, or not done in time ────────────────────────────────────────┘

Nothing is given back to the operating system.
"""

import asyncio

import msgspec

from baton.gateway.dispatcher import Dispatcher
from baton.gateway.door import Door
from baton.gateway.faults import refuse, unavailable

PAUSE_S = 0.05
CLEAR_S = 5.0  # rooms that have just ended may still be read from


class Slept(msgspec.Struct, frozen=True):
    """POST /sleep: which groups of state each worker has zeroed."""

    cleared: dict[str, tuple[str, ...]]


class Sleeping(msgspec.Struct, frozen=True):
    """GET /is_sleeping, and the answer to POST /wake_up."""

    is_sleeping: bool


class Sleeper:
    """One gateway's sleep. All calls are made on the loop."""

    def __init__(self, door: Door, dispatcher: Dispatcher, *, retry_after_s: int) -> None:
        self._door, self._dispatcher, self._retry_after_s = door, dispatcher, retry_after_s
        self._busy = False

    async def sleep(self, *, abort: bool, within_s: float) -> Slept:
        """Take no more requests, let the open ones end or end them, and have all pools cleared.

        Raises:
            HttpFault: 409 while another sleep is under way, 503 if requests or workers did not end in time (awake again)
        """
        if self._busy:
            raise refuse("another /sleep is under way", code="busy", status=409)
        self._busy = True
        self._dispatcher.pause()
        try:
            return Slept(await self._fall_asleep(abort=abort, within_s=within_s))
        except BaseException:
            self._dispatcher.resume()
            raise
        finally:
            self._busy = False

    async def _fall_asleep(self, *, abort: bool, within_s: float) -> dict[str, tuple[str, ...]]:
        if abort:
            self._dispatcher.fail_all()
        for _ in range(int(within_s / PAUSE_S)):
            if not self._dispatcher.open_requests:
                break
            await asyncio.sleep(PAUSE_S)
        if self._dispatcher.open_requests:
            raise self._late(f"{self._dispatcher.open_requests} requests are still open after {within_s:g} s; use mode=abort")
        why = "no worker is registered"
        for _ in range(int(CLEAR_S / PAUSE_S)):
            report = await self._door.clear()
            unclear = [view.name for view in report.workers if not view.cleared]
            if report.workers and not report.missing and not unclear:
                return {view.name: tuple(map(str, view.cleared)) for view in report.workers}
            why = f"not cleared: {', '.join((*report.missing, *unclear)) or why}"
            await asyncio.sleep(PAUSE_S)
        raise self._late(why)

    def _late(self, why: str) -> Exception:
        return unavailable(f"the service stays awake: {why}", code="not_asleep", retry_after_s=self._retry_after_s)

    def wake_up(self) -> None:
        """Take requests again; no error if awake."""
        self._dispatcher.resume()

    @property
    def asleep(self) -> bool:
        """Whether new requests are refused."""
        return self._dispatcher.paused
