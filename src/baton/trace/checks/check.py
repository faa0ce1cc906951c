"""The base class of checks, and helpers that several checks use."""

from collections.abc import Iterator
from typing import TypeVar

from baton.core.agreement import StepPlan
from baton.core.effects import Issue, Send
from baton.core.ids import Boot, Key
from baton.core.messages import AnyMessage
from baton.trace.log import CoreKind, Parts, Raised, Step

M = TypeVar("M")


class Check:
    """One invariant over the log of one process."""

    name: str  # short, as the simulator and its docs call it
    invariant: str  # as a sentence
    cores: tuple[CoreKind, ...]  # whose steps it sees

    def made(self, parts: Parts) -> None:
        """Note the parts of a core object that was made."""

    def see(self, step: Step) -> Iterator[str]:
        """Check the next step; yields one sentence for each violation."""
        raise NotImplementedError


def plans(step: Step) -> list[StepPlan]:
    """Return the plans that the leader issued in this step."""
    return (
        [out.plan for out in step.effects if isinstance(out, Issue)]
        if step.core is CoreKind.LEADER
        else []
    )


def sent(step: Step, kind: type[M]) -> list[tuple[Boot, M]]:
    """Return (receiver, message) for every message of this kind that was sent."""
    found: list[tuple[Boot, AnyMessage]] = [
        (o.to, o.message) for o in step.effects if isinstance(o, Send)
    ]
    return [(to, message) for to, message in found if isinstance(message, kind)]


def raised(step: Step) -> bool:
    """Whether the step ended in an exception."""
    return any(isinstance(out, Raised) for out in step.effects)


def brief(key: Key) -> str:
    """Name a room and its epoch, short enough for a sentence."""
    return f"{key.room[:8]}.{key.epoch}"
