"""Looks at the workers once a second for the scaling signal, and answers GET /autoscaling."""

import asyncio
import time

import msgspec

from baton.gateway.door import Door
from baton.gateway.scaling import RoleDemand, ScalingSignal

PERIOD_S = 1.0


class Autoscaling(msgspec.Struct, frozen=True, omit_defaults=True):
    """GET /autoscaling: what the load asks of each role that has a worker."""

    prefill: RoleDemand | None = None
    decode: RoleDemand | None = None
    unified: RoleDemand | None = None


class ScalingWatch:
    """Everything is on one asyncio loop."""

    def __init__(self, door: Door) -> None:
        self._door, self._signal = door, ScalingSignal()

    async def run(self) -> None:
        """Look, until it is cancelled."""
        while True:
            self.look(time.monotonic())
            await asyncio.sleep(PERIOD_S)

    def look(self, at: float) -> None:
        """Look once. at: seconds"""
        loads, queued = self._door.loads()
        self._signal.sample(loads, queued=queued, at=at)

    def wanted(self) -> Autoscaling:
        """Return what is wanted now."""
        return Autoscaling(**self._signal.wanted())
