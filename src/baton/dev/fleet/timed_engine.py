"""An engine that takes time instead of computing: batches end one after the other, and every token
that it draws is the same."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.ids import TokenId
from baton.core.messages import Drawn
from baton.core.work import Batch, BatchDone, Row, RowDone
from baton.dev.fleet.profile import DraftGain, StepTimes
from baton.dev.fleet.shared_cores import SharedCores
from baton.dev.fleet.virtual_clock import VirtualClock

DRAWN = Drawn(TokenId(1), None, ())


def blank_sums(blocks: int) -> NDArray[np.uint64]:
    """Return the sums of so many blocks: uint64 [blocks, 1]. All are equal, as nothing is damaged
    here."""
    return np.zeros((blocks, 1), dtype=np.uint64)


class TimedBatch(msgspec.Struct, frozen=True, eq=False):
    """A batch that is computed, or several in succession which differ only in what they have
    generated before.

    Attributes:
        began: when the first of them began, microseconds
        steps: how many of them there are whose end was not told
        ends: when the last of them ends
    """

    batch: Batch
    began: float
    steps: int
    ends: float


class TimedEngine:
    """Takes as long for each batch as the profile says."""

    def __init__(
        self,
        times: StepTimes,
        clock: VirtualClock,
        *,
        tell: Callable[[BatchDone, Batch, int], None],
        cores: SharedCores | None = None,
        drafts: DraftGain | None = None,
    ) -> None:
        """tell: takes the end of a batch, the batch, and how many steps in succession it was
        cores: for which it competes; None if it has cores of its own"""
        self._times, self._clock, self._tell, self._cores = times, clock, tell, cores
        self._factor = 1.0 if drafts is None else drafts.factor
        self._under_way: TimedBatch | None = None
        self._ended_at = 0.0  # when the last batch ended
        self.busy_us = 0.0
        self.steps = self.turns = 0  # steps computed, and how many times their end was told

    def compute(self, batch: Batch, *, steps: int) -> None:
        """Compute a batch, so many times in succession unless `interrupt` ends that earlier."""
        assert self._under_way is None, "a rank of one stage has one batch at a time"
        now = float(self._clock.now)
        if abs(now - self._ended_at) < 1:
            now = self._ended_at  # the clock has whole microseconds, and steps would drift by them
        us = self._us(batch.rows, steps)
        self._under_way = TimedBatch(batch, now, steps, now + us)
        if self._cores is None:
            self._clock.at(now + us, self._ended, self._under_way)
        else:
            assert steps == 1, "how long several take is not known before"
            self._cores.step(us, self._ended_late)

    def _us(self, rows: Sequence[Row], steps: int) -> float:
        """The microseconds of so many steps. With drafts, a step of answers alone stands for a part
        of one that generates several tokens."""
        if any(row.said < len(row.tokens) for row in rows):
            return self._times.of(rows)
        return self._factor * self._times.generating(rows, steps)

    def interrupt(self) -> tuple[Batch, int] | None:
        """Something happens that the next step may depend on: of several steps in succession, the
        one that is computed now becomes the last. Returns the batch, and how many steps have ended
        before that one; None if no steps in succession are under way."""
        found = self._under_way
        if found is None or found.steps == 1:
            return None
        rows, since = found.batch.rows, self._clock.now - found.began
        low, high = 1, found.steps  # the first number of steps that takes longer than has passed
        while low < high:
            middle = (low + high) // 2
            if self._us(rows, middle) > since:
                high = middle
            else:
                low = middle + 1
        ends = found.began + self._us(rows, low)
        self._under_way = TimedBatch(found.batch, found.began, 1, ends)
        self.steps += low - 1
        self._clock.at(ends, self._ended, self._under_way)
        return found.batch, low - 1

    def _ended_late(self) -> None:
        """A step has ended that had to share its cores."""
        batch = self._under_way
        assert batch is not None, "it is computed"
        self._under_way = TimedBatch(batch.batch, batch.began, 1, float(self._clock.now))
        self._ended(self._under_way)

    def _ended(self, batch: TimedBatch) -> None:
        if batch is not self._under_way:
            return  # it was interrupted
        self._under_way, self._ended_at = None, batch.ends
        self.busy_us += batch.ends - batch.began
        self.steps += batch.steps
        self.turns += 1
        rows = tuple(
            RowDone(
                row.key,
                DRAWN if row.draw is not None else None,
                {group: blank_sums(past - first) for group, (first, past) in row.final.items()},
            )
            for row in batch.batch.rows
        )
        self._tell(BatchDone(batch.batch.seq, rows), batch.batch, batch.steps)
