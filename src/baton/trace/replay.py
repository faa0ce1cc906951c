"""Feeds the events of a log to fresh core objects and compares the effects, step by step.

The replay ends at the first step that differs: after it the two runs have different states.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from baton.core.events import Core, FrontEvent, LeaderEvent, RankEvent
from baton.core.handoff.plans import Plans
from baton.core.parts import FrontParts
from baton.core.protocol import PROTOCOL
from baton.trace.coding import Damaged
from baton.trace.difference import Difference, describe, first_difference
from baton.trace.log import FORMAT, AnyEffect, CoreKind, Header, Parts, Raised, Record, Step
from baton.trace.recorder import KINDS

Make = Callable[[Parts, Plans], Core[Any, Any]]
EVENTS: Mapping[CoreKind, Any] = MappingProxyType(
    {CoreKind.LEADER: LeaderEvent, CoreKind.RANK: RankEvent, CoreKind.FRONT: FrontEvent}
)


def make(parts: Parts, plans: Plans) -> Core[Any, Any]:
    """Make the core object that these parts describe."""
    return parts.make() if isinstance(parts, FrontParts) else parts.make(plans)


class Replay:
    """One log being replayed.

    `steps` counts the steps replayed so far. All were the same unless `feed` returned a Difference.
    """

    def __init__(self, make: Make = make) -> None:
        self._make = make
        self._header: Header | None = None
        self._cores: dict[CoreKind, Core[Any, Any]] = {}
        self._plans = Plans()
        self.steps = 0

    def feed(self, record: Record) -> Difference | None:
        """Replay the next record; returns a Difference if this step is the first that differs.

        Raises:
            Damaged: a record is out of place, or no core object can be made of its parts
        """
        if self._header is None:
            self._begin(record)
            return None
        match record:
            case Header():
                raise Damaged("a second header: this is more than one log")
            case Step():
                self.steps += 1
                return self._compare(record)
            case _:
                self._add(record)
                return None

    def _begin(self, record: Record) -> None:
        if not isinstance(record, Header):
            raise Damaged("it does not begin with the header of a log")
        if (record.format, record.protocol) != (FORMAT, PROTOCOL):
            theirs = f"format {record.format}, protocol {record.protocol} (baton {record.version})"
            raise Damaged(
                f"it has {theirs}; this is format {FORMAT}, protocol {PROTOCOL}: replay it "
                "with the baton that wrote it"
            )
        self._header = record

    def _add(self, parts: Parts) -> None:
        try:
            self._cores[KINDS[type(parts)]] = self._make(parts, self._plans)
        except Exception as error:
            raise Damaged(f"nothing can be made of its {type(parts).__name__}: {error}") from error

    def _compare(self, step: Step) -> Difference | None:
        if not isinstance(step.event, EVENTS[step.core]):
            raise Damaged(
                f"step {self.steps}: {describe(step.event)!r} is nothing that "
                f"enters a {step.core.value}"
            )
        if step.core not in self._cores:
            raise Damaged(
                f"step {self.steps} is for a {step.core.value}, whose parts the log does not hold"
            )
        came: tuple[AnyEffect, ...]
        try:
            came = tuple(self._cores[step.core].step(step.event, step.at))
        except Exception as error:  # noqa: BLE001  (an exception is an outcome of the step: the log has it too)
            came = (Raised(type(error).__name__, str(error)),)
        found = first_difference(step.effects, came)
        if found is None:
            return None
        where, expected, value = found
        return Difference(
            self.steps, step.at, step.core, describe(step.event), where, expected, value
        )
