"""The engine exactly as a worker builds it (compiled attention and seal), and requests to run on
it."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch.distributed import HashStore

from baton.adapters.memory import HostPool
from baton.core.handoff.seal import identity_bits
from baton.core.ids import BlockIndex, Epoch, GroupName, Key, Room, Seq, TokenId, TokenIndex
from baton.core.memory.state import DType, Placement
from baton.core.messages import Sampling
from baton.core.work import Batch, BatchDone, DigestDone, Draw, Row, RowDone
from baton.engine.attention.interface import Attend
from baton.engine.attention.registry import Backends
from baton.engine.checkpoint import Checkpoint
from baton.engine.comm import Alone, Comm, GlooComm
from baton.engine.cpu_ops import CpuOps
from baton.engine.digest import block_sums
from baton.engine.engine import TorchEngine
from baton.engine.kernels.team import Team
from baton.engine.models import FAMILIES
from baton.engine.models.base import KV, SLOT, WINDOW, Model, family_of
from baton.engine.models.mtp import DRAFT

B = 16
PATIENCE_S = 60.0
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, logprobs=5)


def placement_of(
    checkpoint: Checkpoint,
    dtype: DType,
    page_blocks: int,
    *,
    tp: int = 1,
    pp: int = 1,
    rank: int = 0,
    drafts: bool = False,
) -> Placement:
    """drafts: with the rows of the draft layer"""
    family = family_of(checkpoint.config, FAMILIES)
    table = family.table(checkpoint.config, block_tokens=B, dtype=dtype)
    table = family.with_draft_layer(checkpoint.config, table) if drafts else table
    return Placement(table, tp, pp, rank % tp, rank // tp, page_blocks)


class Recorder:
    """A model that keeps what it answered."""

    def __init__(self, model: Model) -> None:
        self._model, self.vocab_size = model, model.vocab_size
        self.draft_layer = model.draft_layer
        self.hidden: list[torch.Tensor] = []
        self.answers: list[torch.Tensor] = []

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        self.hidden.append(self._model.forward(tokens, positions, attend))
        return self.hidden[-1]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.answers.append(self._model.logits(hidden))
        return self.answers[-1]


class Rig:
    """One engine. Its pool begins full of noise: what a request may not rely on, and must not hand
    over."""

    def __init__(
        self,
        path: Path,
        *,
        dtype: DType = DType.F32,
        pages: int = 64,
        page_blocks: int = 1,
        threads: int = 1,
        model: object = None,
        placement: Placement | None = None,
        comm: Comm | None = None,
    ) -> None:
        checkpoint = Checkpoint.open(path)
        self.placement = placement or placement_of(checkpoint, dtype, page_blocks)
        sizes = {
            g.name: pages * self.placement.page_bytes(g.name) for g in self.placement.table.groups
        }
        self.pools = {group: HostPool(size) for group, size in sizes.items() if size}
        for pool in self.pools.values():  # finite in every dtype
            pool.array[:] = np.random.default_rng(1).integers(0, 0x30, pool.nbytes, dtype=np.uint8)
        family = family_of(checkpoint.config, FAMILIES)
        built = model or Recorder(
            family.build(
                checkpoint, self.placement, dtype, CpuOps(dtype, Team(threads)), comm or Alone()
            )
        )
        self.model = built
        self.identity = identity_bits(checkpoint.identity(dtype.value))
        self.woken = threading.Semaphore(0)
        self._seq = 0
        self.engine = TorchEngine(
            model=built,
            placement=self.placement,
            pools=self.pools,
            backends=Backends(self.pools, self.placement, team=Team(threads)),
            block_sums=block_sums,
            identity=self.identity,
            threads=threads,
            wake=self.woken.release,
            comm=comm or Alone(),
        )

    def submit(self, rows: Sequence[Row]) -> Seq:
        self._seq += 1
        self.engine.submit(Batch(Seq(self._seq), tuple(rows)))
        return Seq(self._seq)

    def wait(self) -> list[BatchDone | DigestDone]:
        """What has ended, at least one."""
        assert self.woken.acquire(timeout=PATIENCE_S), "the engine did not wake"
        while not (found := self.engine.poll()):
            assert self.woken.acquire(timeout=PATIENCE_S), "the engine did not wake"
        return found

    def run(self, rows: Sequence[Row]) -> tuple[RowDone, ...]:
        """One batch, on its own."""
        seq = self.submit(rows)
        (done,) = self.wait()
        assert isinstance(done, BatchDone)
        assert done.seq == seq
        return done.rows

    @property
    def bytes(self) -> np.ndarray:
        """Of the pool for layers that see everything."""
        return self.pools[KV].array

    def state(self, blocks: Sequence[int]) -> np.ndarray:
        """float32 [heads, layers, k and v, position, dim] of a sequence that lies in these blocks
        of every pool."""
        found = {}
        for place in self.placement.places.values():
            shape = (-1, place.heads.size, len(place.layers), 2, B, place.spec.row)
            rows = self.pools[place.spec.group].array.view(np.float32).reshape(shape)[blocks]
            found |= {
                layer: np.concatenate(list(rows[:, :, n]), axis=2)
                for n, layer in enumerate(place.layers)
            }
        return np.stack([found[layer] for layer in sorted(found)], axis=1)

    def close(self) -> None:
        self.engine.close()
        for pool in self.pools.values():
            pool.close()


class Crew:
    """The engines of all ranks of one worker, in this process."""

    def __init__(
        self,
        path: Path,
        *,
        tp: int,
        pp: int,
        dtype: DType = DType.F32,
        page_blocks: int = 1,
        drafts: bool = False,
    ) -> None:
        checkpoint, store = Checkpoint.open(path), HashStore()

        def build(rank: int) -> Rig:
            placement = placement_of(
                checkpoint, dtype, page_blocks, tp=tp, pp=pp, rank=rank, drafts=drafts
            )
            comm = GlooComm(placement, store, host="127.0.0.1", timeout_s=PATIENCE_S)
            return Rig(path, dtype=dtype, placement=placement, comm=comm)

        with ThreadPoolExecutor(tp * pp) as pool:
            self.rigs = list(pool.map(build, range(tp * pp)))
        self._sampler = (pp - 1) * tp

    def run(self, rows: Sequence[Row]) -> tuple[RowDone, ...]:
        """One batch on all ranks; what the one that draws says."""
        for rig in self.rigs:
            rig.submit(rows)
        ends = [rig.wait() for rig in self.rigs]
        for rank, (end,) in enumerate(ends):
            assert rank == self._sampler or all(row.drawn is None for row in end.rows)
        return ends[self._sampler][0].rows

    @property
    def answers(self) -> list[torch.Tensor]:
        """Logits so far."""
        return self.rigs[self._sampler].model.answers

    def close(self) -> None:
        for rig in self.rigs:
            rig.close()


class Request:
    """A prompt with pages of its own, and the rows it takes part in."""

    def __init__(
        self, number: int, prompt: Sequence[int], pages: Sequence[int], sampling: Sampling = GREEDY
    ) -> None:
        self.key = Key(Room(f"{number:032x}"), Epoch(1))
        self.prompt, self.sampling = list(prompt), sampling
        held = np.array(pages, dtype=np.int32)
        self.pages: Mapping[GroupName, np.ndarray] = {
            **{KV: held, WINDOW: held},
            **dict.fromkeys((SLOT, DRAFT), held[:1]),
        }

    def chunk(
        self,
        start: int,
        end: int,
        *,
        final: tuple[int, int] | None = None,
        draw: bool = True,
        said: int = 0,
    ) -> Row:
        """Positions [start, end) of the prompt."""
        sealed = {} if final is None else {KV: (BlockIndex(final[0]), BlockIndex(final[1]))}
        tokens = tuple(TokenId(t) for t in self.prompt[start:end])
        order = Draw(self.sampling, TokenIndex(0)) if draw else None
        return Row(self.key, start, tokens, self.pages, sealed, end, order, said=said)

    def whole(self) -> Row:
        """The prompt at once, all its blocks final."""
        n = len(self.prompt)
        return self.chunk(0, n, final=(0, -(-n // B)))

    def guessed(self, tokens: Sequence[int], index: int) -> Row:
        """The same with drafts: all tokens but the first."""
        row, ahead = self.next(tokens[0], index), range(index + 1, index + len(tokens))
        return msgspec.structs.replace(
            row,
            tokens=tuple(TokenId(t) for t in tokens),
            ahead=tuple(Draw(self.sampling, TokenIndex(n)) for n in ahead),
            said=len(tokens),
        )

    def next(self, token: int, index: int) -> Row:
        """One step of decoding: the token with number `index - 1` is fed, the one with number
        `index` drawn."""
        at = len(self.prompt) + index - 1
        return Row(
            self.key,
            at,
            (TokenId(token),),
            self.pages,
            {},
            at + 1,
            Draw(self.sampling, TokenIndex(index)),
            said=1,
        )
