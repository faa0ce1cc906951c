"""Implements ports.engine for a rank whose engine is vLLM: vLLM computes, this seals.

    leader's plan ──submit──▶ waits ──vLLM has computed its rows──▶ a thread hashes ──BatchDone──▶ pump

A batch is what a step of vLLM computes of prompts that are handed over. It ends when vLLM has said
so for each of its rows, the fences of these steps have passed, and its blocks are sealed.
"""

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

from baton.core.errors import Bug
from baton.core.ids import GroupName, Key
from baton.core.messages import Grammar
from baton.core.rank.watchdog import WorkKind
from baton.core.work import Batch, BatchDone, DigestDone, DigestOrder, Done, Row, RowDone
from baton.ports.fabric import Pool
from baton.vllm.memory import Sums
from baton.vllm.seal_queue import Computed, Fence, SealQueue, places_of


class GuestEngine:
    """Seals what vLLM computes.

    Args:
        pools: the memory of every group, which vLLM has allocated
        sums: of every group: what computes the sums of its blocks
        pages: number of blocks of every group
        wake: called from the thread when `poll` has something
    """

    def __init__(
        self,
        *,
        pools: Mapping[GroupName, Pool],
        sums: Mapping[GroupName, Sums],
        pages: Mapping[GroupName, int],
        wake: Callable[[], None],
    ) -> None:
        self._pools, self._sums, self._pages = pools, sums, dict(pages)
        self._wake = wake
        self._change = threading.Condition()
        self._queue = SealQueue()
        self._ends: list[Done | BaseException] = []
        self._done = dict.fromkeys((WorkKind.STEP, WorkKind.DIGEST), 0)
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="baton-seal", daemon=True)
        self._thread.start()

    @property
    def pools(self) -> Mapping[GroupName, Pool]:
        return self._pools

    @property
    def pool_pages(self) -> Mapping[GroupName, int]:
        return self._pages

    @property
    def progress(self) -> Mapping[WorkKind, int]:
        return MappingProxyType(self._done)

    # ---- vLLM's thread --------------------------------------------------------------------------

    def computed(self, rows: Mapping[Key, int], fence: Fence) -> None:
        """vLLM has computed these requests up to these positions; the pools have the result when
        the fence has passed."""
        with self._change:
            self._queue.computed(rows, fence)
            self._change.notify()

    def forget(self, key: Key) -> None:
        """vLLM computes no more of a request."""
        with self._change:
            self._queue.forget(key)

    # ---- the pump's thread ----------------------------------------------------------------------

    def submit(self, batch: Batch) -> None:
        with self._change:
            self._queue.add(batch)
            self._change.notify()

    def digest(self, order: DigestOrder) -> None:
        with self._change:
            self._queue.add(order)
            self._change.notify()

    def poll(self) -> list[Done]:
        with self._change:
            ends, self._ends = self._ends, []
        found: list[Done] = []
        for end in ends:
            if isinstance(end, BaseException):
                raise end
            found.append(end)
        return found

    def constrain(self, key: Key, grammar: Grammar) -> None:
        raise Bug("vLLM draws tokens, so no leader of a guest orders this")

    def release(self, key: Key) -> None:
        raise Bug("there is no grammar to release")

    def clear(self, group: GroupName) -> None:
        raise Bug("the pools belong to vLLM, and cannot be cleared")

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join()

    # ---- the sealing thread ---------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                kind = WorkKind.STEP if isinstance(job, Computed) else WorkKind.DIGEST
                self._end(self._seal(job) if isinstance(job, Computed) else self._hash(job), kind)
        except BaseException as error:  # noqa: BLE001 (top of the thread: the pump raises it again)
            self._end(error)

    def _end(self, end: Done | BaseException, *kinds: WorkKind) -> None:
        with self._change:
            self._ends.append(end)
            for kind in kinds:
                self._done[kind] += 1
        self._wake()

    def _next(self) -> Computed | DigestOrder | None:
        """Return the next thing to hash; None when closed."""
        with self._change:
            while not self._closed:
                if (order := self._queue.take()) is not None:
                    return order
                self._change.wait()
        return None

    def _seal(self, computed: Computed) -> BatchDone:
        for fence in computed.fences:
            fence()
        batch = computed.batch
        return BatchDone(batch.seq, tuple(self._sealed(row) for row in batch.rows))

    def _sealed(self, row: Row) -> RowDone:
        sums = {g: self._sums[g](slots, numbers) for g, slots, numbers in places_of(row)}
        return RowDone(row.key, None, sums)

    def _hash(self, order: DigestOrder) -> DigestDone:
        return DigestDone(order.job, self._sums[order.group](order.slots, order.numbers))
