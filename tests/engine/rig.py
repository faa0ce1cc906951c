"""An engine over a tiny checkpoint, driven one batch at a time."""

import mmap
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from baton.core.handoff.seal import block_sums
from baton.core.ids import Epoch, GroupName, Key, Room, Seq, TokenIndex
from baton.core.memory.kinds import HOST
from baton.core.memory.state import DType, Placement
from baton.core.messages import Sampling
from baton.core.work import Batch, BatchDone, Draw, Row
from baton.engine.attention.registry import REFERENCE, Backends
from baton.engine.checkpoint import Checkpoint
from baton.engine.comm import Alone
from baton.engine.cpu_ops import CpuOps
from baton.engine.engine import TorchEngine
from baton.engine.kernels.team import Team
from baton.engine.models import FAMILIES
from baton.engine.models.base import KV, family_of
from baton.engine.ops import Ops

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, logprobs=None)
B = 16
IDENTITY = 77


class MemoryPool:
    """Anonymous memory, filled with a pattern that is no row of anybody."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.memory, self.fd = nbytes, HOST, None
        self._map = mmap.mmap(-1, nbytes)
        self.bytes = np.frombuffer(self._map, dtype=np.uint8)
        self.bytes[:] = 0x3E
        self.address = self.bytes.__array_interface__["data"][0]


class Rig:
    """A model, a pool of 64 pages and an engine."""

    def __init__(
        self,
        path: Path,
        *,
        dtype: DType = DType.F32,
        threads: int = 1,
        page_blocks: int = 1,
        ops: Ops | None = None,
    ) -> None:
        checkpoint = Checkpoint.open(path)
        family = family_of(checkpoint.config, FAMILIES)
        table = family.table(checkpoint.config, block_tokens=B, dtype=dtype)
        self.placement = Placement(table, 1, 1, 0, 0, page_blocks)
        self.pool = MemoryPool(64 * self.placement.page_bytes(KV))
        self.model = family.build(
            checkpoint, self.placement, dtype, ops or CpuOps(dtype, Team(threads)), Alone()
        )
        self._ended = threading.Event()
        self._number = 0
        self.engine = TorchEngine(
            model=self.model,
            placement=self.placement,
            pools={KV: self.pool},
            backends=Backends({KV: self.pool}, self.placement, REFERENCE),
            block_sums=block_sums,
            identity=IDENTITY,
            threads=threads,
            wake=self._ended.set,
        )

    def run(self, *rows: Row) -> BatchDone:
        """One batch, to its end."""
        self._number += 1
        self.engine.submit(Batch(Seq(self._number), rows))
        while True:
            for done in self.engine.poll():
                assert isinstance(done, BatchDone)
                return done
            assert self._ended.wait(60)
            self._ended.clear()

    def __enter__(self) -> "Rig":
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()


def row(
    tokens: Sequence[int],
    *,
    start: int = 0,
    pages: Sequence[int],
    sampling: Sampling | None = GREEDY,
    index: int = 0,
    final: tuple[int, int] | None = None,
    group: GroupName = KV,
    name: str = "a",
) -> Row:
    """A row that draws unless `sampling` is None."""
    return Row(
        key=Key(Room(name), Epoch(1)),
        start=start,
        tokens=tuple(tokens),
        pages={group: np.array(pages, dtype=np.int32)},
        final={} if final is None else {group: final},
        valid=start + len(tokens),
        draw=None if sampling is None else Draw(sampling, TokenIndex(index)),
    )
