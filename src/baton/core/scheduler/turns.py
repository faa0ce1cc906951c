"""Reserves steps for single rooms: suspects, which are requests that may have killed another worker
while it computed them.

    [suspect]  everybody else  [suspect]  everybody else  ..      in turn, so that nobody waits longer than twice as long

While such a step is under way nothing else is, so if the worker dies it is known with which
request. The gateway is told when the step begins and when it is over (Trial), and the next step
waits until it has heard that (batches.py).
"""

from collections.abc import Sequence
from typing import TypeVar

from baton.core.scheduler.room import OpenRoom

R = TypeVar("R", bound=OpenRoom)


class Turns:
    """Decides whose turn the next step is."""

    def __init__(self) -> None:
        self._alone_last = False

    def stepped(self, *, alone: bool) -> None:
        """A step is issued. alone: whether it has a single row, that of a suspect"""
        self._alone_last = alone

    def lots(self, rooms: Sequence[R], *, flying: bool) -> list[list[R]]:
        """Return the groups of rooms that may make up the next step, the first choice first. A
        later group is for when those before it have nothing to compute. (A suspect that lacks a
        page may wait for a younger one, which gives way only after a step of its own.)

        rooms: oldest request first
        flying: whether another step is under way, which a suspect waits for
        """
        suspects = [room for room in rooms if room.ticket.alone_until and room.alone]
        if not suspects:
            return [list(rooms)]
        others = [room for room in rooms if not room.alone]
        alone = [[room] for room in suspects]
        lots = [others, *alone] if self._alone_last else [*alone, others]
        if flying:
            lots = lots[:1] if lots[0] is others else []
        return [lot for lot in lots if lot]
