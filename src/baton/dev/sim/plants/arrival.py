"""Ranks that take blocks for arrived before that is proved."""

from baton.core.ids import BlockIndex
from baton.core.rank import fetches as fetches_module
from baton.core.rank import rank as rank_module
from baton.core.rank.fetch_order import OpenOrder, Piece
from baton.core.rank.fetches import Fetches
from baton.core.rank.rank_effects import RankEffect
from baton.core.work import ReadEnded, ReadOutcome
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant

# ruff: noqa: D101  (each class is described by the plant that it is part of)


class UsesBeforeEnd(Fetches):
    def _read(self, piece: Piece) -> list[RankEffect]:
        effects = super()._read(piece)
        if effects:
            self._settle(piece, piece.blocks)
        return effects


class CountsFailed(Fetches):
    def ended(self, end: ReadEnded) -> list[RankEffect]:
        if end.outcome is not ReadOutcome.FAILED:
            return super().ended(end)
        piece = self._reads.pop(end.handle)
        self._settle(piece, piece.blocks)
        return []


class ChecksNothing(Fetches):
    def _compare(self, piece: Piece, order: OpenOrder, sums: object) -> list[RankEffect]:
        self._settle(piece, piece.blocks)
        return []


class CompletesByStage(Fetches):
    def _settle(self, piece: Piece, blocks: tuple[BlockIndex, ...]) -> None:
        order = self._orders.get(piece.order)
        if order is None:
            return
        source = self._core.sources.find(order.fetch.source)
        assert source is not None, "it is read from"
        plan = source.plan
        stage = plan.source[piece.leg.source].pp_rank
        alike = [
            leg.index
            for leg in plan.legs_into(self._core.rank)
            if plan.source[leg.source].pp_rank == stage
        ]
        order.open -= {(leg, piece.group, b) for leg in alike for b in blocks}
        if not order.open:
            self._judge(piece.order)


PLANTS = (
    Plant(
        "fetch_used_before_end",
        "blocks count as arrived once their read has been started, before it has ended",
        ("right_commit", "landing"),
        1,
        lambda: Parts(replaced=(Replaced(rank_module, "Fetches", UsesBeforeEnd),)),
    ),
    Plant(
        "failed_read_arrived",
        "a read that failed counts as arrived",
        ("right_commit",),
        9,
        lambda: Parts(replaced=(Replaced(rank_module, "Fetches", CountsFailed),)),
    ),
    Plant(
        "no_seal_check",
        "what a read brought is taken without a look at its sum",
        ("right_commit",),
        9,
        lambda: Parts(replaced=(Replaced(rank_module, "Fetches", ChecksNothing),)),
    ),
    Plant(
        "collapsed_leg",
        "arrival is noted by the source's pipeline stage: one leg of a stage completes all of them",
        ("right_commit",),
        5,
        lambda: Parts(replaced=(Replaced(rank_module, "Fetches", CompletesByStage),)),
    ),
    Plant(
        "refetch_without_bound",
        "blocks that differ from their sums are read again and again, and the leader never "
        "hears of it",
        ("bounded_reads",),
        8,
        lambda: Parts(replaced=(Replaced(fetches_module, "MAX_TRIES", 1 << 30),)),
    ),
)
