"""The engine of one rank: threads for compute, digests and grammars beside the pump.

submit(batch) ──▶ compute thread: forward, draw, roll back, draft, zero tails, seal ──▶ poll
digest(order) ──▶ digest thread: hash blocks as they lie         ──▶ poll
"""

import ctypes
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from baton.core.errors import PeerError
from baton.core.ids import GroupName, Key, TokenId
from baton.core.memory.kinds import HostRam
from baton.core.memory.state import Placement, Unit
from baton.core.messages import Drawn, Grammar, RowFailure, logged_why
from baton.core.prompt_scores import PromptScores
from baton.core.rank.watchdog import WorkKind
from baton.core.work import Batch, BatchDone, DigestDone, DigestOrder, Done, Row, RowDone
from baton.engine.attention.interface import ENDLESS, Attend, AttentionMetadata, Segment
from baton.engine.attention.registry import Backends
from baton.engine.attention.rollback import Rollback
from baton.engine.comm import Alone, Comm
from baton.engine.drafts import Drafter
from baton.engine.grammars import BuildMatcher, Grammars, Masks, no_grammars
from baton.engine.models.base import Model
from baton.engine.models.mtp import DRAFT
from baton.engine.ops import ROW_STEP, lacking, padded
from baton.engine.outcomes import outcomes_of
from baton.engine.sampler import draw_along
from baton.engine.scorer import score
from baton.ports.fabric import Pool

log = structlog.get_logger()
BlockSums = Callable[
    [NDArray[np.uint8], Placement, GroupName, NDArray[np.int64], NDArray[np.int64], int],
    NDArray[np.uint64],
]
PATIENCE_S = 10.0  # on close, to wait for a batch under way
DIGEST_BLOCKS = 64  # hashed at a time, so that a short verification can pass a long one


def pool_bytes(pool: Pool) -> NDArray[np.uint8]:
    """View a pool's memory, which must be the host's, as uint8 [bytes]; valid while it is open."""
    assert isinstance(pool.memory, HostRam), f"a pool in {pool.memory} has no view on the host"
    return np.ctypeslib.as_array((ctypes.c_uint8 * pool.nbytes).from_address(pool.address))


class TorchEngine:
    """Implements ports.engine.Engine on a CPU."""

    def __init__(
        self,
        *,
        model: Model,
        placement: Placement,
        pools: Mapping[GroupName, Pool],
        backends: Backends,
        block_sums: BlockSums,
        identity: int,
        threads: int,
        wake: Callable[[], None],
        build_matcher: BuildMatcher = no_grammars,
        rehearse: Callable[[], None] = lambda: None,
        comm: Comm | None = None,
    ) -> None:
        """comm: of the model's ranks, by which they share what becomes of drafts; None = there is
        one rank"""
        self._model, self._placement, self._backends = model, placement, backends
        self._pools = dict(pools)
        self._bytes = {g: pool_bytes(p) for g, p in pools.items()}
        self._block_sums, self._identity, self._threads, self._wake = (
            block_sums,
            identity,
            threads,
            wake,
        )
        self._grammars = Grammars(build_matcher, report=self._finish)
        self._rehearse = rehearse  # called before the first batch, on the compute thread
        # what attention reads is in the served dtype
        self._row_step = ROW_STEP[placement.table.specs[0].dtype] * threads
        # whose state must be taken back where drafts were wrong
        self._recurrent = [
            g.name
            for g in placement.table.groups
            if g.unit is Unit.SLOT and not g.optional and placement.block_bytes(g.name)
        ]
        self._comm = comm or Alone()
        self._drafter: Drafter | None = None
        if DRAFT in pools:
            assert model.draft_layer is not None, "it is built for this table"
            self._drafter = Drafter(
                layer=model.draft_layer,
                comm=self._comm,
                placement=placement,
                pools=pools,
                logits=model.logits,
                inputs=self._inputs,
                row_step=self._row_step,
            )
        self._progress = dict.fromkeys(WorkKind, 0)  # each counter is changed by one thread only
        self._done: deque[Done | BaseException] = deque()
        self._batches: queue.SimpleQueue[tuple[Batch, Masks] | None] = queue.SimpleQueue()
        self._digests: queue.SimpleQueue[DigestOrder | None] = queue.SimpleQueue()
        self._running = [
            threading.Thread(target=self._compute_loop, name="baton-compute", daemon=True),
            threading.Thread(target=self._digest_loop, name="baton-digest", daemon=True),
        ]
        for thread in self._running:
            thread.start()

    # ---- port -----------------------------------------------------------------------------------

    @property
    def pools(self) -> Mapping[GroupName, Pool]:
        return self._pools

    @property
    def pool_pages(self) -> Mapping[GroupName, int]:
        return {
            g: p.nbytes // size
            for g, p in self._pools.items()
            if (size := self._placement.page_bytes(g))
        }

    def submit(self, batch: Batch) -> None:
        # masks are computed while the batch is
        self._batches.put((batch, self._grammars.masks(batch.rows)))

    def constrain(self, key: Key, grammar: Grammar) -> None:
        self._grammars.constrain(key, grammar)

    def release(self, key: Key) -> None:
        self._grammars.release(key)

    def digest(self, order: DigestOrder) -> None:
        self._digests.put(order)

    def clear(self, group: GroupName) -> None:
        """Zero a group's pool, at the speed of memory: about 0.1 s for a gigabyte."""
        if group in self._bytes:  # otherwise no layer of this stage is in the group
            self._bytes[group][:] = 0

    @property
    def progress(self) -> Mapping[WorkKind, int]:
        return self._progress

    def poll(self) -> list[Done]:
        found: list[Done] = []
        while self._done:
            done = self._done.popleft()
            if isinstance(done, BaseException):
                raise done
            found.append(done)
        return found

    def close(self) -> None:
        """Stop the threads. The owner of the pools closes them, once no fabric exposes them."""
        self._batches.put(None)
        self._digests.put(None)
        for thread in self._running:
            thread.join(PATIENCE_S)
            if thread.is_alive():
                raise PeerError(
                    f"{thread.name} waits for another rank still after "
                    f"{PATIENCE_S:.0f} s; its memory stays as it is"
                )
        self._grammars.close()
        self._bytes.clear()

    # ---- threads --------------------------------------------------------------------------------

    def _compute_loop(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                self._rehearse()
                while (order := self._batches.get()) is not None:
                    self._finish(self._compute(*order))
        except BaseException as error:  # noqa: BLE001 (top of the thread: the pump raises it again)
            self._finish(error)

    def _digest_loop(self) -> None:
        try:
            while (order := self._digests.get()) is not None:
                starts = range(0, max(1, len(order.slots)), DIGEST_BLOCKS)
                cuts = [slice(i, i + DIGEST_BLOCKS) for i in starts]
                sums = [self._counted(order, c) for c in cuts]
                self._finish(DigestDone(order.job, np.concatenate(sums)))
        except BaseException as error:  # noqa: BLE001 (top of the thread: the pump raises it again)
            self._finish(error)

    def _counted(self, order: DigestOrder, cut: slice) -> NDArray[np.uint64]:
        sums = self._sums(order.group, order.slots[cut], order.numbers[cut])
        self._progress[WorkKind.DIGEST] += 1
        return sums

    def _finish(self, done: Done | BaseException) -> None:
        self._done.append(done)
        self._wake()

    def _sums(
        self, group: GroupName, slots: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> NDArray[np.uint64]:
        if not self._placement.block_bytes(group):
            # no layer of this stage is in the group
            return np.zeros((len(slots), 0), dtype=np.uint64)
        return self._block_sums(
            self._bytes[group], self._placement, group, slots, numbers, self._identity
        )

    # ---- compute --------------------------------------------------------------------------------

    def _compute(self, batch: Batch, masks: Masks) -> BatchDone:
        hidden, rollbacks = self._forward(batch.rows)
        scores = {} if hidden is None else self._score(batch.rows, hidden)
        drawn = {} if hidden is None else self._draw(batch.rows, hidden, masks)
        drafts: Mapping[int, tuple[TokenId, ...]] = {}
        if self._drafter is not None or rollbacks:
            assert hidden is not None, "there is one stage"
            outcomes = outcomes_of(self._comm, batch.rows, drawn)
            for rollback in rollbacks:
                rollback.settle([outcome.right for outcome in outcomes])
            if self._drafter is not None:
                drafts = self._drafter.after(batch.rows, hidden, outcomes)
        computed = time.monotonic_ns()
        rows = tuple(
            _row_done(r, drawn.get(i, ()), self._seal(r), scores.get(i), drafts.get(i, ()))
            for i, r in enumerate(batch.rows)
        )
        ended = time.monotonic_ns()
        log.debug(
            "step_computed",
            seq=batch.seq,
            rows=len(rows),
            seal_us=(ended - computed) // 1000,
            t_us=ended // 1000,
        )
        return BatchDone(batch.seq, rows)

    def _score(self, rows: Sequence[Row], hidden: torch.Tensor) -> dict[int, PromptScores | None]:
        """Score the prompt's tokens of the rows that want it; None on ranks without logits."""
        found, first = {}, 0
        for i, row in enumerate(rows):
            past = first + len(row.tokens)
            if (wanted := row.score) is not None:
                found[i] = score(
                    hidden[first:past],
                    (*row.tokens[1:], *(() if wanted.next is None else (wanted.next,))),
                    wanted.top,
                    logits=self._model.logits,
                    row_step=self._row_step,
                    passed=self._passed,
                )
            first = past
        return found

    def _draw(
        self, rows: Sequence[Row], hidden: torch.Tensor, masks: Masks
    ) -> dict[int, list[Drawn | RowFailure]]:
        """Sample tokens for the rows that want some; empty on ranks without logits."""
        ends = np.cumsum([len(row.tokens) for row in rows])
        at = [n for row, end in zip(rows, ends, strict=True) for n in _drawing(row, int(end))]
        if not at:
            return {}
        logits = self._model.logits(padded(hidden[at], -len(at) % self._row_step))
        if logits is None:
            return {}
        drawn, first = {}, 0
        for i, row in enumerate(rows):
            if count := len(row.draws):
                own = logits[first : first + count]
                drawn[i] = draw_along(own, row.draws, row.tokens, masks.get(i))
                first += count
        return drawn

    def _forward(self, rows: Sequence[Row]) -> tuple[torch.Tensor | None, Sequence[Rollback]]:
        """Compute the model. Returns its hidden states, and the ways back where there are
        drafts."""
        metadata = self._all_metadata(rows)
        drafted = self._recurrent if any(row.ahead for row in rows) else []
        rollbacks = {g: Rollback(self._blocks(g), metadata[g]) for g in drafted}
        attend = self._backends.over(metadata, self._passed, rollbacks)
        return self._model.forward(*self._padded(rows), attend), list(rollbacks.values())

    def _inputs(self, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, Attend]:
        """Return what a layer needs of rows: tokens, positions, and how they attend."""
        return *self._padded(rows), self._backends.over(self._all_metadata(rows), self._passed)

    def _all_metadata(self, rows: Sequence[Row]) -> Mapping[GroupName, AttentionMetadata]:
        return {group: self._metadata(rows, group) for group in self._backends.groups}

    def _blocks(self, group: GroupName) -> NDArray[np.uint8]:
        """View a pool as its blocks (or slots), uint8 [blocks, bytes]."""
        return self._bytes[group].reshape(-1, self._placement.block_bytes(group))

    def _padded(self, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens and positions of rows, padded."""
        tokens = np.fromiter((t for row in rows for t in row.tokens), dtype=np.int64)
        positions = np.concatenate(
            [np.arange(r.start, r.start + len(r.tokens), dtype=np.int64) for r in rows]
        )
        short = lacking(len(tokens), self._row_step)
        return padded(torch.from_numpy(tokens), short), padded(torch.from_numpy(positions), short)

    def _passed(self) -> None:
        """Count a layer, or a few positions that were scored, as a sign of progress."""
        self._progress[WorkKind.STEP] += 1

    def _metadata(self, rows: Sequence[Row], group: GroupName) -> AttentionMetadata:
        """Return the places of the rows' sequences in a
        group; a slot has all positions of its sequence."""
        paged = self._placement.table.group(group).unit is Unit.PAGE
        b = self._placement.table.block_tokens if paged else ENDLESS
        segments, slots, first = [], [], 0
        for row in rows:
            past = row.start + len(row.tokens)
            begin = row.begins.get(group, 0)
            blocks = self._block_slots(row, group, begin, -(-past // b))
            at = np.arange(row.start, past, dtype=np.int64)
            segments.append(
                Segment(
                    first=first,
                    count=past - row.start,
                    start=row.start,
                    block_table=blocks,
                    begin=begin,
                    said=row.said,
                    undecided=len(row.ahead),
                )
            )
            slots.append(blocks[at // b - begin].astype(np.int64) * b + at % b)
            first += past - row.start
        return AttentionMetadata(segments, torch.from_numpy(np.concatenate(slots)))

    def _block_slots(self, row: Row, group: GroupName, first: int, past: int) -> NDArray[np.int32]:
        """Return the places of blocks [first, past) of a
        row's sequence; block j of page p is p * k + j."""
        k, begin, pages = (
            self._placement.blocks_per_page(group),
            row.begins.get(group, 0),
            row.pages[group],
        )
        slots = (pages[:, None] * np.int32(k) + np.arange(k, dtype=np.int32)).reshape(-1)[
            first - begin : past - begin
        ]
        return slots.astype(np.int32, copy=False)

    def _seal(self, row: Row) -> dict[GroupName, NDArray[np.uint64]]:
        b, found = self._placement.table.block_tokens, {}
        for group, (first, past) in row.final.items():
            slots = self._block_slots(row, group, first, past).astype(np.int64)
            numbers = np.arange(first, past, dtype=np.int64)
            if self._placement.table.group(group).unit is Unit.SLOT:
                # the position of a slot is the number of tokens consumed
                numbers = np.full_like(numbers, row.valid)
            elif row.valid < past * b and self._placement.block_bytes(group):
                self._zero_tail(group, int(slots[-1]), row.valid - (past - 1) * b)
            found[group] = self._sums(group, slots, numbers)
        return found

    def _zero_tail(self, group: GroupName, slot: int, used: int) -> None:
        """Zero the unused rows of a prompt's last block, which may have another request's state."""
        size = self._placement.block_bytes(group)
        block = self._bytes[group][slot * size : (slot + 1) * size]
        for place in self._placement.places.values():
            if place.spec.group == group:
                rows = block[place.offset : place.offset + place.nbytes].reshape(
                    -1, self._placement.table.block_tokens, place.row_bytes
                )
                rows[:, used:] = 0


def _drawing(row: Row, end: int) -> range:
    """Return the positions of a flattened batch after which a row draws; it ends before `end`."""
    return range(end - len(row.draws), end)


def _row_done(
    row: Row,
    draws: Sequence[Drawn | RowFailure],
    sums: Mapping[GroupName, NDArray[np.uint64]],
    scores: PromptScores | None,
    drafts: tuple[TokenId, ...],
) -> RowDone:
    drawn = draws[0] if draws else None
    if isinstance(drawn, RowFailure):
        log.error(
            "row_failed",
            room=row.key.room,
            epoch=row.key.epoch,
            code=drawn.code.value,
            **logged_why(drawn.code, drawn.why),
        )
        return RowDone(row.key, None, sums, drawn)
    # what a later draw fails of is reported when it is the first one
    more = tuple(d for d in draws[1:] if isinstance(d, Drawn))
    return RowDone(row.key, drawn, sums, scores=scores, more=more, drafts=drafts)
