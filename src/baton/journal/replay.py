"""Feeds a journal to fresh core objects and compares what comes out, step by step.

The first step that differs is named; what follows it is not played, for the two runs have parted.
"""

from collections import deque
from typing import TypeVar

from baton.core.cores import AnyFront, AnyLeader, AnyRank, Cores, FrontParts, LeaderParts, RankParts
from baton.core.messages import PROTOCOL
from baton.journal.coding import Damaged
from baton.journal.difference import Difference, describe, first_difference
from baton.journal.entries import (
    FORMAT,
    Answer,
    DrewBits,
    Header,
    Kind,
    Out,
    Raised,
    Record,
    Step,
)
from baton.journal.playing import ENTRIES, play_front, play_leader, play_rank

T = TypeVar("T")


class Unforeseen(Exception):
    """The core asked the outside something that it did not ask when the journal was written.

    Not a BatonError, so that nothing in the core takes it for an answer.
    """


class Replay:
    """One journal being replayed. `steps` have been played; they were the same if no Difference was returned."""

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._header: Header | None = None
        self._leader: AnyLeader | None = None
        self._rank: AnyRank | None = None
        self._front: AnyFront | None = None
        self._answers: deque[Answer] = deque()
        self.steps = 0

    def feed(self, record: Record) -> Difference | None:
        """Take the next record; the first difference, if it is in this one.

        Raises:
            Damaged: a record that cannot stand here, or parts of which nothing can be made
        """
        if self._header is None:
            self._begin(record)
            return None
        match record:
            case Header():
                raise Damaged("a second header: this is more than one journal")
            case Step():
                self.steps += 1
                return self._compare(record)
            case _:
                try:
                    self._make(record)
                except Exception as error:
                    raise Damaged(f"nothing can be made of its {type(record).__name__}: {error}") from error
                return None

    def _begin(self, record: Record) -> None:
        if not isinstance(record, Header):
            raise Damaged("it does not begin with the header of a journal")
        if (record.format, record.protocol) != (FORMAT, PROTOCOL):
            theirs = f"format {record.format}, protocol {record.protocol} (baton {record.version})"
            raise Damaged(
                f"it has {theirs}; this is format {FORMAT}, protocol {PROTOCOL}: replay it with the baton that wrote it"
            )
        self._header = record

    def _make(self, parts: LeaderParts | RankParts | FrontParts) -> None:
        match parts:
            case LeaderParts():
                self._leader = self._cores.leader(parts)
            case RankParts():
                self._rank = self._cores.rank(parts)
            case FrontParts():
                self._front = self._cores.front(parts, self._bits)

    # ---- a step ---------------------------------------------------------------------------------

    def _compare(self, step: Step) -> Difference | None:
        if type(step.entry) not in ENTRIES[step.core]:
            raise Damaged(f"entry {self.steps}: {describe(step.entry)!r} is nothing that enters a {step.core.value}")
        self._answers = deque(step.answers)
        try:
            came: tuple[Out, ...] = tuple(self._play(step))
        except Damaged:
            raise
        except Exception as error:  # noqa: BLE001  (what a core raises is an outcome, as it was when this was written)
            came = (Raised(type(error).__name__, str(error)),)
        found = first_difference(step.outs, came)
        if found is None and self._answers:
            found = ("what was asked of the outside", repr(self._answers[0]), "no question")
        if found is None:
            return None
        where, expected, value = found
        return Difference(self.steps, step.at, step.core, describe(step.entry), where, expected, value)

    def _play(self, step: Step) -> list[Out]:
        match step.core:
            case Kind.LEADER:
                return play_leader(self._made(self._leader, step), step.entry, step.at)
            case Kind.RANK:
                return play_rank(self._made(self._rank, step), step.entry)
            case Kind.FRONT:
                return play_front(self._made(self._front, step), step.entry, step.at)

    def _made(self, core: T | None, step: Step) -> T:
        if core is None:
            raise Damaged(f"entry {self.steps} is for a {step.core.value}, whose parts the journal does not hold")
        return core

    # ---- the outside ----------------------------------------------------------------------------

    def _bits(self, n: int) -> int:
        match self._next():
            case DrewBits(count=count, value=value) if count == n:
                return int(value, 16)
            case other:
                raise Unforeseen(f"{n} random bits were asked for; the journal has {other!r}")

    def _next(self) -> Answer | None:
        return self._answers.popleft() if self._answers else None
