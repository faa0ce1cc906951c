"""One handoff, from flags to byte ranges: the geometry, the layouts of both sides, and where their
pages lie. It needs no process and no fabric.

Geometry ─▶ StateTable ─┐
Side (tp, pp, pages) ───┴▶ placements ─▶ pair ─▶ PairPlan ─▶ bind ─▶ the copies of each leg
"""

from enum import Enum

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.handoff.plan import Leg, PairPlan, pair
from baton.core.ids import BlockIndex, GroupName, Page
from baton.core.memory.state import DType, Full, Group, Placement, StateSpec, StateTable, Unit
from baton.core.messages import BlockRun
from baton.core.work import Copies

GROUP = GroupName("full")
BLOCK_TOKENS = 16
PARTS = ("k", "v")


class Geometry(msgspec.Struct, frozen=True):
    """The state that one token has in the cache. The defaults are those of Llama-3-8B."""

    layers: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    dtype: DType = DType.BF16

    def table(self) -> StateTable:
        """Return a table with keys and values of every layer, for all positions."""
        kv = StateSpec(
            "kv", GROUP, tuple(range(self.layers)), PARTS, self.kv_heads, self.head_dim, self.dtype
        )
        return StateTable(self.layers, BLOCK_TOKENS, (Group(GROUP, Unit.PAGE, Full()),), (kv,))


class Side(msgspec.Struct, frozen=True):
    """How one side divides the state: tensor and pipeline parallel widths, and blocks per page."""

    tp: int
    pp: int
    page_blocks: int

    def placements(self, table: StateTable) -> tuple[Placement, ...]:
        """Return the placements of all ranks, in rank order."""
        return tuple(
            Placement(table, self.tp, self.pp, tp_rank, pp_rank, self.page_blocks)
            for pp_rank in range(self.pp)
            for tp_rank in range(self.tp)
        )

    def __str__(self) -> str:
        return f"tp{self.tp}" + (f" pp{self.pp}" if self.pp > 1 else "")


class Pages(Enum):
    """Where a sequence's pages lie in the pools."""

    ADJACENT = "adjacent"
    SCATTERED = "scattered"


class Case(msgspec.Struct, frozen=True):
    """One handoff to measure."""

    tokens: int
    pages: Pages

    @property
    def blocks(self) -> int:
        """The number of blocks of the sequence."""
        return -(-self.tokens // BLOCK_TOKENS)


class Layout(msgspec.Struct, frozen=True):
    """Both sides, with pools large enough for the longest case."""

    geometry: Geometry
    prefill: Side
    decode: Side
    max_tokens: int

    def plan(self) -> PairPlan:
        """Return the plan between the two sides.

        Raises:
            ConfigError: heads or layers cannot be divided so
        """
        table = self.geometry.table()
        return pair(self.prefill.placements(table), self.decode.placements(table))

    def page_count(self, side: Side) -> int:
        """Return the number of pages in each rank's pool."""
        return -(-Case(self.max_tokens, Pages.ADJACENT).blocks // side.page_blocks)

    def pool_bytes(self, side: Side, rank: int) -> int:
        """Return the size of one rank's pool. Rank 0 has space for all bytes that move, so that
        they can also be read as one range."""
        table = self.geometry.table()
        own = self.page_count(side) * side.placements(table)[rank].page_bytes(GROUP)
        moved = sum(placement.block_bytes(GROUP) for placement in self.decode.placements(table))
        return max(own, Case(self.max_tokens, Pages.ADJACENT).blocks * moved) if rank == 0 else own

    def page_list(self, side: Side, case: Case, *, seed: int) -> NDArray[np.int32]:
        """Return the pages of the case, int32 [pages]: in order from 0, or drawn from the whole
        pool in an order that `seed` fixes."""
        there, wanted = self.page_count(side), -(-case.blocks // side.page_blocks)
        if case.pages is Pages.ADJACENT:
            return np.arange(wanted, dtype=np.int32)
        rng = np.random.default_rng(seed)  # noqa: TID251  a fixed order, not chance
        return rng.permutation(there)[:wanted].astype(np.int32)


class Handoff:
    """One case of a layout, ready to be read: what each leg brings, from where to where."""

    def __init__(self, layout: Layout, plan: PairPlan, case: Case) -> None:
        self.layout, self.plan, self.case = layout, plan, case
        self.source_pages = layout.page_list(layout.prefill, case, seed=1)
        self.target_pages = layout.page_list(layout.decode, case, seed=2)
        self._run = BlockRun(
            BlockIndex(0), BlockIndex(case.blocks), tuple(Page(int(p)) for p in self.source_pages)
        )

    def blocks(self, leg: Leg) -> NDArray[np.int64]:
        """Return the blocks that the leg brings."""
        return self.plan.admit(leg, GROUP, self.case.tokens)

    def bind(self) -> dict[int, list[Copies]]:
        """Return the copies of each leg, by its index, as a decode rank makes them."""
        return {
            leg.index: self.plan.bind(
                leg,
                GROUP,
                source=self._run,
                target_pages=self.target_pages,
                target_start=0,
                blocks=self.blocks(leg),
            )
            for leg in self.plan.legs
        }

    def ranges_before_merging(self) -> int:
        """Return the number of ranges if there is one for each head and layer of each block, which
        is contiguous in any layout."""
        return sum(
            self.blocks(leg).size * self.plan.source_units(leg, GROUP).size
            for leg in self.plan.legs
        )

    def slots(self, side: Side, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where blocks of the sequence lie in a side's pools, counted in blocks."""
        pages = self.source_pages if side is self.layout.prefill else self.target_pages
        return (
            pages.astype(np.int64)[blocks // side.page_blocks] * side.page_blocks
            + blocks % side.page_blocks
        )

    def token_slices(self, leg: Leg, limit: int) -> tuple[Copies, int]:
        """Return the copies that a layout with the token before the head needs for this leg: a
        range for each token, layer and part.

        Both pools are taken as [layer][part][token][head][row], with tokens where their pages put
        them.

        Returns:
            the first `limit` ranges, and how many there are
        """
        share = leg.shares[0]
        theirs, ours = (
            self.plan.source[leg.source].places[share.spec],
            self.plan.target[leg.target].places[share.spec],
        )
        tokens = np.arange(self.case.tokens, dtype=np.int64)
        count = tokens.size * len(share.layers) * len(PARTS)
        planes = np.arange(
            min(len(share.layers) * len(PARTS), -(-limit // tokens.size)), dtype=np.int64
        )
        columns = []
        for side, place in ((self.layout.prefill, theirs), (self.layout.decode, ours)):
            at = self.slots(side, tokens // BLOCK_TOKENS) * BLOCK_TOKENS + tokens % BLOCK_TOKENS
            stride = place.heads.size * place.row_bytes
            plane = self.layout.page_count(side) * side.page_blocks * BLOCK_TOKENS * stride
            offset = (share.heads.start - place.heads.start) * place.row_bytes
            columns.append(
                (planes[:, None] * plane + at[None, :] * stride + offset).ravel()[:limit]
            )
        nbytes = np.full(columns[0].size, share.heads.size * theirs.row_bytes, dtype=np.int64)
        return Copies(GROUP, columns[0], columns[1], nbytes), count
