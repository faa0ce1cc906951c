"""One rank of a simulated vLLM: it computes what the scheduler decides, and seals what is computed
in the order in which the shipped queue says.

Before it writes, it compares the context that a request reads with what must be there. So a wrong
byte is found at its first use, whatever the protocol believes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from baton.core.errors import Bug
from baton.core.ids import GroupName, Key
from baton.core.work import Batch, BatchDone, DigestDone, DigestOrder, Row, RowDone
from baton.dev.sim.engine import DIGEST_US, SimEngine
from baton.dev.sim.guests.request import ComputedPart
from baton.vllm.names import FULL
from baton.vllm.scheduler_side import StepNotes
from baton.vllm.seal_queue import Computed, SealQueue, passed, places_of

SLOW_US = 500  # times up to 20: sealing may fall behind the steps


class GuestRank(SimEngine):
    """Port Engine for one rank under vLLM."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.queue, self._hashing = SealQueue(), False
        # blocks that were sealed as they were computed, and those of them that were offered so
        self._intact: set[int] = set()
        self._vouched: set[int] = set()
        # whether vLLM has a block as that number of the request of a room
        self.holds: Callable[[Key, int, int], bool] = lambda key, block, number: False

    @override
    def submit(self, batch: Batch) -> None:
        self.process.port_call()
        self.queue.add(batch)
        self._look()

    @override
    def digest(self, order: DigestOrder) -> None:
        self.process.port_call()
        self.digesting[order.job] = order
        self.queue.add(order)
        self._look()

    @override
    def clear(self, group: GroupName) -> None:
        raise Bug("the pools belong to vLLM, and cannot be cleared")

    # ---- what vLLM computes ---------------------------------------------------------------------

    def execute(self, parts: Sequence[ComputedPart], notes: StepNotes) -> None:
        """Compute a step."""
        for part in parts:
            self._attend(part)
            self._store(part)
        self.queue.computed(notes.computed, passed)
        for key in notes.ended:
            self.queue.forget(key)
        self._look()

    def _attend(self, part: ComputedPart) -> None:
        """Compare what a request reads with what was computed, or was handed over."""
        key = part.request.key
        wrong = self._wrong(part.blocks, part.stamps[: part.start])
        if wrong and key not in self.world.tainted and not self.was_damaged(FULL, wrong):
            self.world.violate(
                "right_bytes",
                f"{self.process.name} computes {key.room[-4:]}.{key.epoch} from position "
                f"{part.start} on: blocks {wrong} of the pool do not hold what was computed",
            )

    def _wrong(self, blocks: Sequence[int], stamps: Sequence[int]) -> list[int]:
        """Return the blocks of a sequence that do not hold these stamps."""
        b = self._rows.tokens_per_block(FULL)
        found = []
        for n in range(-(-len(stamps) // b)):
            right = stamps[n * b : (n + 1) * b]
            meant = self._rows.mask(FULL, 0, len(right))
            if (self._block(FULL, blocks[n]) ^ self._rows.block(FULL, right)) & meant:
                found.append(blocks[n])
        return found

    def _store(self, part: ComputedPart) -> None:
        b = self._rows.tokens_per_block(FULL)
        for n in range(part.start // b, (part.end - 1) // b + 1):
            first, past = max(part.start - n * b, 0), min(part.end - n * b, b)
            new = self._rows.block(FULL, part.stamps[n * b : n * b + past])
            meant, held = self._rows.mask(FULL, first, past), self._block(FULL, part.blocks[n])
            self._write(FULL, part.blocks[n], held ^ (held ^ new) & meant)

    def taken(self, block: int) -> None:
        """vLLM has given a block out anew: what it held is forgotten."""
        super().given(FULL, block)
        self._intact.discard(block)
        self._vouched.discard(block)

    # ---- what is sealed -------------------------------------------------------------------------

    def _look(self) -> None:
        """Hash the next order, one after the other, as the thread of the shipped engine does."""
        if self._hashing or (order := self.queue.take()) is None:
            return
        self._hashing = True
        late = SLOW_US * self.world.tape.below(20, "hashed after") if self.world.hostile else 0
        self.world.heap.after(DIGEST_US * self.process.slowness + late, self._hashed, order)

    def _hashed(self, order: Computed | DigestOrder) -> None:
        if not self.process.alive:
            return
        self._hashing = False
        if isinstance(order, Computed):
            batch = order.batch
            self._done.append(BatchDone(batch.seq, tuple(self._sealed_row(r) for r in batch.rows)))
        else:
            del self.digesting[order.job]
            self._done.append(DigestDone(order.job, self._sums(order, slice(None))))
        self.process.wake()
        self._look()

    def _sealed_row(self, row: Row) -> RowDone:
        sums: dict[GroupName, NDArray[np.uint64]] = {}
        for group, slots, numbers in places_of(row):
            self._judge_seal(row, slots.tolist(), numbers.tolist())
            sums[group] = self._sum(group, slots.tolist(), numbers.tolist())
        return RowDone(row.key, None, sums)

    def _judge_seal(self, row: Row, slots: list[int], numbers: list[int]) -> None:
        """Check that what is sealed was computed. A page that was damaged before anybody has
        offered it is sealed as it is, and nobody can know."""
        stamps, b = self.world.stamps.get((self.collective.boot, row.key), []), self._tokens
        for slot, n in zip(slots, numbers, strict=True):
            right = stamps[n * b : min((n + 1) * b, row.valid)]
            wrong = len(right) < min(b, row.valid - n * b) or self._wrong([slot], right)
            if not wrong:
                self._intact.add(slot)
            elif self.was_damaged(FULL, [slot]):
                self._intact.discard(slot)  # whoever offers it now does not offer what it was
                if slot not in self._vouched:
                    self.world.tainted.add(row.key)
            elif self.holds(row.key, slot, n):
                self.world.violate(
                    "seals_computed",
                    f"{self.process.name} seals block {n} of {row.key.room[-4:]}."
                    f"{row.key.epoch}, which vLLM has not computed",
                )

    @property
    def _tokens(self) -> int:
        return self._rows.tokens_per_block(FULL)

    def vouch(self, pages: Sequence[int]) -> None:
        """The leader has offered pages: it knows their sums from now on."""
        self._vouched.update(self._intact.intersection(pages))

    # ---- what the books ask ---------------------------------------------------------------------

    @override
    def given(self, group: GroupName, page: int) -> None:
        """Do nothing: vLLM has given the page out earlier than the leader says so."""

    @override
    def reuses(self, key: Key, group: GroupName, at: int, page: int) -> None:
        """Do nothing: the prefix cache is vLLM's."""

    @override
    def differs(
        self, key: Key, pages: Mapping[GroupName, Sequence[int]], passed: Mapping[GroupName, int]
    ) -> str:
        ticket = self.world.tickets[key]
        if key in self.world.tainted:
            return ""
        known, stamps = len(ticket.prompt) + len(ticket.said), self.collective.begun(key)
        if len(stamps) < known:
            return f"prefill has computed {len(stamps)} of {known} positions"
        # A step under way may still compute what vLLM had cached: that is judged when it is read.
        hit = len(self.collective.inherited.get(key, ())) // self._tokens
        wrong = self._wrong(pages[FULL][hit:], stamps[hit * self._tokens : known])
        return f"blocks {wrong} of the pool" if wrong else ""
