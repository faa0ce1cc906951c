"""Replays a whole log, compares the effects, and checks the invariants."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from baton.core.parts import FrontParts, LeaderParts, RankParts
from baton.trace.checks.all import Checks, LogViolation
from baton.trace.coding import Damaged, records
from baton.trace.difference import Difference
from baton.trace.log import Parts, Record, Step
from baton.trace.replay import Make, Replay, make


@dataclass
class Findings:
    """The contents of a log, and everything found wrong with it."""

    parts: list[Parts] = field(default_factory=list)
    steps: int = 0  # steps read and checked
    same: int = 0  # steps replayed with the same effects
    difference: Difference | None = None
    violations: list[LogViolation] = field(default_factory=list)
    damage: str | None = None  # why the rest of the file cannot be read

    @property
    def whose(self) -> str:
        """Describe the process that wrote the log."""
        for parts in self.parts:
            match parts:
                case LeaderParts(manifest=m, settings=s):
                    return f"{m.role} worker {s.name} (boot {m.boot:x})"
                case FrontParts(boot=boot):
                    return f"gateway (boot {boot:x})"
                case RankParts():
                    continue
        rank = next((p for p in self.parts if isinstance(p, RankParts)), None)
        return (
            f"rank {rank.rank} (boot {rank.boot:x})"
            if rank is not None
            else "a process of unknown kind"
        )


Watch = Callable[[int, Record], None]  # bytes read, record


def examine(
    chunks: Iterable[bytes], *, until: int | None, watch: Watch, make: Make = make
) -> Findings:
    """Read a log to its end, or up to step `until`.

    After the first difference the replay stops, but the checks go on.

    Raises:
        Damaged: this version cannot replay the file. Damage at its end is in the findings instead.
    """
    found, replay, checks = Findings(), Replay(make), Checks()
    try:
        for at, record in records(chunks):
            if isinstance(record, Step) and until is not None and found.steps >= until:
                break
            _take(record, found, replay, checks)
            watch(at, record)
    except Damaged as error:
        if not found.parts:
            raise
        found.damage = str(error)
    if not found.parts and found.damage is None:
        raise Damaged("it holds nothing that could be played")
    return found


def _take(record: Record, found: Findings, replay: Replay, checks: Checks) -> None:
    if found.difference is None:
        found.difference = replay.feed(record)
    match record:
        case Step():
            found.steps += 1
            found.same += found.difference is None
        case LeaderParts() | RankParts() | FrontParts():
            found.parts.append(record)
        case _:
            pass
    found.violations += checks.feed(record)
