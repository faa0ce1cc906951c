"""State that is fetched back: lent without a pin, used too early or unverified, and borrows whose
failure does harm."""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from baton.core.ids import Boot, Key, Micros, loan_key
from baton.core.memory.checkpoints import PromptCheckpoint
from baton.core.memory.pages import Ledger
from baton.core.memory.prefix_cache import CachedPage
from baton.core.messages import FailCode, Loan
from baton.core.rank import rank as rank_module
from baton.core.rank.fetch_order import OpenOrder, Piece
from baton.core.rank.fetches import Fetches
from baton.core.rank.rank_effects import RankEffect
from baton.core.scheduler import lending as lending_module
from baton.core.scheduler import roles as roles_module
from baton.core.scheduler.borrowing import Borrowing
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.lending import Lending
from baton.core.scheduler.lending_checkpoints import CheckpointLoan, CheckpointLoans
from baton.core.scheduler.prefill_room import PrefillRoom
from baton.core.scheduler.room import RoomState
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant

# ruff: noqa: D101  (each class is described by the plant that it is part of)


def _lend_unpinned(self: Ledger, key: Key, chain: Sequence[CachedPage]) -> None:
    """What is cached may go as before."""


class LoanUsedBeforeEnd(Fetches):
    def _read(self, piece: Piece) -> list[RankEffect]:
        effects = super()._read(piece)
        order, source = (
            self._orders[piece.order],
            self._core.sources.find(self._orders[piece.order].fetch.source),
        )
        if effects and order.fetch.patient:
            assert source is not None, "it is read from"
            sums = np.zeros(
                (len(piece.blocks), len(self._core.placement.units(piece.group))), dtype=np.uint64
            )
            order.note(
                piece.group, piece.blocks, sums, source.plan.target_units(piece.leg, piece.group)
            )
            self._settle(piece, piece.blocks)
        return effects


class LoanUnchecked(Fetches):
    def _compare(
        self, piece: Piece, order: OpenOrder, sums: NDArray[np.uint64]
    ) -> list[RankEffect]:
        source = self._core.sources.find(order.fetch.source)
        if not order.fetch.patient or source is None:
            return super()._compare(piece, order, sums)
        order.note(
            piece.group, piece.blocks, sums, source.plan.target_units(piece.leg, piece.group)
        )
        self._settle(piece, piece.blocks)
        return []


class Impatient(Borrowing):
    def order(self, room: PrefillRoom, loan: Loan) -> None:
        super().order(room, loan)
        room.answer_by = Micros(self.worker.now + 1_000)


def _lends_on(self: Lending, room: DecodeRoom) -> None:
    """Never end a loan."""


class NeverGoesOn(Borrowing):
    def go_on(self, room: PrefillRoom) -> None:
        room.answer_by = None
        if room.borrowed:
            super().go_on(room)


class FailsWithIt(Borrowing):
    def on_loan(self, sender: Boot, loan: Loan) -> None:
        super().on_loan(sender, loan)
        room = self.worker.find(loan.key)
        if room is not None and room.state is RoomState.COMPUTING and not loan.runs:
            self.worker.fail(room, FailCode.HANDOFF_FAILED, "nothing is lent", retry=False)


class LendsOneTooMany(CheckpointLoans):
    def _loan(self, key: Key, one: PromptCheckpoint, loan: CheckpointLoan) -> Loan:
        found = super()._loan(key, one, loan)
        return replace(found, length=found.length + 1)


class LendsForAMoment(CheckpointLoans):
    def _brought(self, key: Key, one: PromptCheckpoint, right: bool) -> None:
        super()._brought(key, one, right)
        self._worker.ledger.give_back(key)


class LendsForEver(CheckpointLoans):
    def end(self, room: Key) -> None:
        self.open.pop(loan_key(room), None)


PLANTS = (
    Plant(
        "checkpoint_lent_too_long",
        "a checkpoint is lent as that of one position more than it has",
        ("lends_cached",),
        4,
        lambda: Parts(replaced=(Replaced(lending_module, "CheckpointLoans", LendsOneTooMany),)),
    ),
    Plant(
        "lent_checkpoint_reused",
        "the pages that a checkpoint is lent from are given to others while they are read",
        ("lent_pinned", "one_owner", "page_books"),
        6,
        lambda: Parts(replaced=(Replaced(lending_module, "CheckpointLoans", LendsForAMoment),)),
    ),
    Plant(
        "lent_checkpoint_kept",
        "the pages that a checkpoint is lent from are never given back",
        ("nothing_left", "liveness", "healed_succeeds", "no_spurious_failure"),
        6,
        lambda: Parts(replaced=(Replaced(lending_module, "CheckpointLoans", LendsForEver),)),
    ),
    Plant(
        "loan_unpinned",
        "pages that are lent to prefill are given up for others while they are read",
        ("lent_pinned",),
        6,
        lambda: Parts(replaced=(Replaced(Ledger, "lend", _lend_unpinned),)),
    ),
    Plant(
        "borrowed_before_end",
        "blocks that are fetched back count as arrived once their read has been started",
        ("computes_alone", "right_bytes"),
        1,
        lambda: Parts(replaced=(Replaced(rank_module, "Fetches", LoanUsedBeforeEnd),)),
    ),
    Plant(
        "borrowed_unverified",
        "what was fetched back is taken without a look at its sum",
        ("right_bytes", "right_commit", "right_reuse"),
        9,
        lambda: Parts(replaced=(Replaced(rank_module, "Fetches", LoanUnchecked),)),
    ),
    Plant(
        "borrow_given_up_early",
        "a prompt is computed when its read takes long, into pages in which that may still land",
        ("computes_alone",),
        6,
        lambda: Parts(replaced=(Replaced(roles_module, "Borrowing", Impatient),)),
    ),
    Plant(
        "loan_outlives_room",
        "what is lent for a room that ends on its way stays pinned",
        ("nothing_left",),
        6,
        lambda: Parts(replaced=(Replaced(Lending, "forgotten", _lends_on),)),
    ),
    Plant(
        "failed_borrow_waits",
        "a prompt of which nothing comes back is not computed either",
        ("liveness", "healed_succeeds", "no_spurious_failure"),
        8,
        lambda: Parts(replaced=(Replaced(roles_module, "Borrowing", NeverGoesOn),)),
    ),
    Plant(
        "failed_borrow_fails",
        "a prompt of which decode has nothing fails",
        ("no_spurious_failure", "healed_succeeds"),
        8,
        lambda: Parts(replaced=(Replaced(roles_module, "Borrowing", FailsWithIt),)),
    ),
)
