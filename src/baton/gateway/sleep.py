"""/sleep and /wake_up: the service refuses requests and clears its pools; processes and weights
stay.

    AWAKE ──sleep──▶ no new requests ──open ones end, or are ended──▶ every worker zeroes every pool ──▶ ASLEEP
      ▲──────────────────────────────── wake_up, or not done in time ────────────────────────────────────────┘

No memory is given back to the operating system.
"""

import asyncio

import msgspec

from baton.gateway.dispatcher import Dispatcher
from baton.gateway.door import Door
from baton.gateway.faults import refuse, unavailable

PAUSE_S = 0.05
CLEAR_S = 5.0  # pages of rooms that have just ended may still be read


class Slept(msgspec.Struct, frozen=True):
    """POST /sleep: the groups of state that each worker has zeroed."""

    cleared: dict[str, tuple[str, ...]]


class Sleeping(msgspec.Struct, frozen=True):
    """GET /is_sleeping, and the answer to POST /wake_up."""

    is_sleeping: bool


class Sleeper:
    """Puts one gateway to sleep and wakes it. All calls are made on the loop."""

    def __init__(self, door: Door, dispatcher: Dispatcher, *, retry_after_s: int) -> None:
        self._door, self._dispatcher, self._retry_after_s = door, dispatcher, retry_after_s
        self._busy = False

    async def sleep(self, *, abort: bool, within_s: float) -> Slept:
        """Refuse new requests, wait for open ones or end them, and have all pools cleared.

        Raises:
            HttpFault: 409, another sleep is under way; 503, requests or workers did not end in
                time, and the gateway is awake again
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
            raise self._late(
                f"{self._dispatcher.open_requests} requests are still open after "
                f"{within_s:g} s; use mode=abort"
            )
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
        return unavailable(
            f"the service stays awake: {why}", code="not_asleep", retry_after_s=self._retry_after_s
        )

    def wake_up(self) -> None:
        """Accept requests again; has no effect if awake."""
        self._dispatcher.resume()

    @property
    def asleep(self) -> bool:
        """Whether new requests are refused."""
        return self._dispatcher.paused
