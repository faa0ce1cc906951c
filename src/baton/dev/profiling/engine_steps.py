"""Times steps of the engine in this process: prompts, answers, and both in one step.

Each kind of step is timed in turn, round after round, so that a slow moment of the machine does not
fall on one kind alone. The state that steps look back on is zero, which takes as long as any other.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.adapters.memory import HostPool
from baton.core.ids import BlockIndex, Epoch, GroupName, Key, Room, Seq, TokenId, TokenIndex
from baton.core.memory.state import DType, Full, Placement, Unit, Window
from baton.core.messages import Sampling
from baton.core.work import Batch, BatchDone, DigestDone, DigestOrder, Draw, Job, Row
from baton.dev.profiling.least_squares import MeasuredStep
from baton.engine.attention.registry import Backends
from baton.engine.checkpoint import Checkpoint
from baton.engine.comm import Alone
from baton.engine.cpu_ops import CpuOps
from baton.engine.digest import block_sums
from baton.engine.engine import TorchEngine
from baton.engine.kernels.team import Team
from baton.engine.models import FAMILIES
from baton.engine.models.base import family_of
from baton.engine.ops import CHUNK_STEP

B = 16  # tokens of a block
LEAST_ROUNDS, MOST_ROUNDS = 2, 9
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, logprobs=None)
FED = TokenId(5)
# tokens of a step for which a profile has points, besides the most of a step
COUNTS = (1, 2, 4, 16, 64, 256)
LONG_FOR = 16  # contexts of more answers are not the longest: they would take much memory
PADDED_TO = CHUNK_STEP


class StepShape(msgspec.Struct, frozen=True):
    """A step to time: a chunk of a prompt behind `start` positions, and answers of one length.

    held_back: it is not fitted to, but tells how well the fit foretells steps that it does not know
    """

    tokens: int = 0
    start: int = 0
    rows: int = 0
    context: int = 0
    held_back: bool = False

    @property
    def pages(self) -> int:
        """Pages of B positions that its sequences have."""
        return self.rows * pages_of(self.context) + pages_of(self.start + self.tokens)


def pages_of(positions: int) -> int:
    """Return how many pages so many positions take."""
    return -(-positions // B)


def counts(step_tokens: int) -> list[int]:
    """Return the numbers of tokens for which a profile has points."""
    return [*(n for n in COUNTS if n < step_tokens), step_tokens]


def shapes(step_tokens: int, positions: int) -> list[StepShape]:
    """Return the steps to time.

    step_tokens: most tokens of a step; positions: of the longest sequence
    """
    chunks = [n for n in counts(step_tokens) if n >= min(B, step_tokens)]
    starts = [0, positions // 4, positions // 2]
    prompts = [StepShape(n, s) for n in chunks for s in starts if n + s <= positions]
    answers = [
        StepShape(rows=rows, context=context)
        for rows in (1, 2, 4, LONG_FOR, 64)
        for context in (32, positions // 4, positions // 2)
        if rows <= LONG_FOR or context <= positions // 4
    ]
    known = [
        StepShape(chunks[-1] // 2, 0, 4, positions // 4),
        StepShape(B, 0, 16, positions // 4),
    ]
    # of every kind some that the fit has not seen
    fresh = [
        StepShape(chunks[-1] // 2, positions // 4, held_back=True),
        StepShape(rows=8, context=positions // 4, held_back=True),
        StepShape(chunks[-1] // 4, positions // 4, 8, positions // 4, held_back=True),
    ]
    return list(dict.fromkeys([*prompts, *answers, *known, *fresh]))


class TimedModel:
    """A model on this machine's engine, with pools of its own."""

    def __init__(
        self,
        path: Path,
        dtype: DType,
        *,
        threads: int,
        step_tokens: int,
        wanted: Sequence[StepShape],
    ) -> None:
        """wanted: the steps that its memory is enough for; step_tokens: of one step at most"""
        checkpoint = Checkpoint.open(path)
        family = family_of(checkpoint.config, FAMILIES)
        table = family.table(checkpoint.config, block_tokens=B, dtype=dtype)
        self.placement = Placement(table, 1, 1, 0, 0, 1)
        most = {
            Unit.PAGE: max(shape.pages for shape in wanted),
            Unit.SLOT: max(shape.rows for shape in wanted) + 1,
        }
        self._pools = {
            g.name: HostPool(most[g.unit] * self.placement.page_bytes(g.name)) for g in table.groups
        }
        self._full = [g.name for g in table.groups if isinstance(g.extent, Full)]
        self._ended, self._seq = threading.Event(), 0
        team = Team(threads)
        ops = CpuOps(dtype, team)
        self._engine = TorchEngine(
            model=family.build(checkpoint, self.placement, dtype, ops, Alone()),
            placement=self.placement,
            pools=self._pools,
            backends=Backends(self._pools, self.placement, team=team),
            block_sums=block_sums,
            identity=1,
            threads=threads,
            wake=self._ended.set,
            rehearse=lambda: ops.rehearse(step_tokens),
        )

    @property
    def token_bytes(self) -> int:
        """Bytes of the state of one position, without windows and recurrent state."""
        return sum(self.placement.block_bytes(g) for g in self._full) // B

    def close(self) -> None:
        """End its threads, then give its memory back."""
        self._engine.close()
        for pool in self._pools.values():
            pool.close()

    def step_us(self, shape: StepShape) -> float:
        """Return the microseconds of one step."""
        each = pages_of(shape.context)
        rows = [self._row(n, n * each, shape.context - 1, 1, said=1) for n in range(shape.rows)]
        if shape.tokens:
            rows.append(self._row(shape.rows, shape.rows * each, shape.start, shape.tokens, said=0))
        self._seq += 1
        batch, began = Batch(Seq(self._seq), tuple(rows)), time.perf_counter()
        self._engine.submit(batch)
        done = self._wait()
        assert isinstance(done, BatchDone), "nothing else is under way"
        assert not [row for row in done.rows if row.failed], "nothing is drawn that cannot be"
        return 1e6 * (time.perf_counter() - began)

    def digest_us(self, blocks: int) -> float:
        """Return the microseconds in which so many blocks are hashed, as after a read."""
        began = time.perf_counter()
        for number, group in enumerate(self._full):
            numbers = np.arange(blocks, dtype=np.int64)
            slots = numbers % (self._pools[group].nbytes // self.placement.block_bytes(group))
            self._engine.digest(DigestOrder(Job(number), group, slots, numbers))
            assert isinstance(self._wait(), DigestDone), "nothing else is under way"
        return 1e6 * (time.perf_counter() - began)

    def _wait(self) -> object:
        while not (found := self._engine.poll()):
            self._ended.wait()
            self._ended.clear()
        return found[0]

    def _row(self, n: int, first: int, start: int, tokens: int, *, said: int) -> Row:
        """Return the n-th row, whose pages begin with `first`."""
        pages, begins = dict[GroupName, NDArray[np.int32]](), dict[GroupName, BlockIndex]()
        own = np.arange(first, first + pages_of(start + tokens), dtype=np.int32)
        for group in self.placement.table.groups:
            pages[group.name] = own if group.unit is Unit.PAGE else np.array([n], dtype=np.int32)
            if isinstance(group.extent, Window):
                passed = max(0, start - group.extent.tokens + 1) // B
                pages[group.name] = own[passed:]
                if passed:
                    begins[group.name] = BlockIndex(passed)
        # a prompt's blocks are sealed, as they are handed over
        final = (BlockIndex(start // B), BlockIndex((start + tokens) // B))
        sealed = not said and final[0] < final[1]
        paged = [g.name for g in self.placement.table.groups if g.unit is Unit.PAGE]
        return Row(
            key=Key(Room(f"{n:032x}"), Epoch(1)),
            start=start,
            tokens=(FED,) * tokens,
            pages=pages,
            begins=begins,
            final=dict.fromkeys(paged, final) if sealed else {},
            valid=start + tokens,
            draw=Draw(GREEDY, TokenIndex(0)),
            said=said,
        )


def timed(
    model: TimedModel, wanted: Sequence[StepShape], *, seconds: float
) -> Iterator[tuple[StepShape, float]]:
    """Time steps round after round for so long, each at least twice after one that does not count.
    Yields single times, in microseconds."""
    for shape in wanted:
        model.step_us(shape)
    ends = time.monotonic() + seconds
    for number in range(MOST_ROUNDS):
        for shape in wanted:
            if number >= LEAST_ROUNDS and time.monotonic() > ends:
                return
            yield shape, model.step_us(shape)


def medians(times: Sequence[tuple[StepShape, float]]) -> dict[StepShape, MeasuredStep]:
    """Return the median step of each shape."""
    by_shape: dict[StepShape, list[float]] = {}
    for shape, us in times:
        by_shape.setdefault(shape, []).append(us)
    return {shape: _measured(shape, median(found)) for shape, found in by_shape.items()}


def _measured(shape: StepShape, us: float) -> MeasuredStep:
    return MeasuredStep(
        tokens=shape.tokens,
        pairs=shape.tokens * (shape.start + shape.start + shape.tokens) / 2,
        rows=shape.rows,
        context=shape.rows * shape.context,
        us=us,
    )
