"""Drafts tokens for running rooms, so that one step can give several of them.

    drafts ──▶ a row of 1 + n tokens ──▶ a draw after each, until one is not the next draft ──▶ 1 to 1 + n new tokens
      ▲                                                                                                │
      └── draft_sources.py: from the text so far, or from the draft layer in the same step ◀───────────┘

A draw is a function of the tokens before it, of the request's seed and of its index. A draft is
accepted only if it is the very token that is drawn in its place, so an answer is the same with
drafts and without. What a step computes for other drafts lies behind the room's last token: it is
neither sealed nor cached nor stored, and the next step writes over it. Recurrent state, which has
no place behind that token, is put back in the same step (engine/attention/rollback.py).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from baton.core.errors import ConfigError
from baton.core.ids import Key, Micros, TokenId
from baton.core.memory.state import StateTable, Unit
from baton.core.messages import Limits
from baton.core.scheduler.draft_payoff import DraftPayoff
from baton.core.scheduler.draft_sources import DraftSource, LayerDrafts, TextLookup
from baton.core.scheduler.generating_room import GeneratingRoom
from baton.core.scheduler.preemption import Preemption
from baton.core.scheduler.room import LeaderSettings, ends_answer
from baton.core.scheduler.worker import Worker

LONGEST_PAUSE = 32  # tokens for which a room has no drafts after some that were all wrong


class DraftedRoom(msgspec.Struct):
    """How one room's drafts fare."""

    pause: int = 0  # tokens for which it has no drafts
    wrong: int = 0  # drafts in a row of which none was accepted


class RowDrafts(msgspec.Struct, frozen=True):
    """The drafts of one row, and how many the engine is to make for the next one, at most."""

    tokens: tuple[TokenId, ...] = ()
    ahead: int = 0


class DraftedStep(msgspec.Struct, frozen=True):
    """A step under way in which rooms generate."""

    rooms: int
    drafts: int
    ahead: int  # drafts that the engine makes in it
    began: Micros
    others: bool  # whether it computes prompts too


class Drafting:
    """The drafts of one worker's rooms."""

    def __init__(self, worker: Worker[Any], preemption: Preemption[Any]) -> None:
        self._worker, self._preemption = worker, preemption
        self._source = source_of(worker.settings)
        if self._source is not None:
            require_draftable(worker.state_table, pp=worker.manifest.pp)
        self._rooms: dict[Key, DraftedRoom] = {}
        makes = self._source is not None and self._source.ahead > 0
        self._payoff = DraftPayoff(lead=1 if makes else 0)
        self._now = False  # whether the step that is composed has drafts
        self._step: DraftedStep | None = None

    def forget(self, room: GeneratingRoom) -> None:
        """A room holds nothing any more."""
        self._rooms.pop(room.key, None)
        if self._source is not None:
            self._source.forget(room)

    def kept(self) -> Mapping[str, Collection[Any]]:
        """Return the tables that are empty at rest."""
        own = {"drafts": self._rooms}
        return own | dict(self._source.kept()) if self._source is not None else own

    def composing(self, rooms: int) -> None:
        """A step of so many rooms is composed."""
        self._now = self._source is not None and self._payoff.allows(rooms)

    def of(self, room: GeneratingRoom, most: int) -> RowDrafts:
        """Return the drafts of a room's next row, at most `most`. It has the pages that they
        need."""
        if not self._now or self._source is None or not _suits(room):
            return RowDrafts()
        drafted = self._rooms.setdefault(room.key, DraftedRoom())
        left = room.ticket.limits.max_tokens - room.next_index - 1  # beside the one that is drawn
        drafts = self._source.draft(room, 0 if drafted.pause > 0 else min(most, left))
        drafts = before_end(drafts, room.ticket.limits)
        # those for the next row are made while it is its turn to have some
        ahead = min(self._source.ahead, left - len(drafts)) if drafted.pause <= 1 else 0
        if ahead > 0 and not self._reach(room, len(drafts) + ahead):
            ahead = 0
        while drafts and not self._reach(room, len(drafts)):
            drafts = drafts[: len(drafts) // 2]
        return RowDrafts(drafts, max(0, ahead))

    def _reach(self, room: GeneratingRoom, tokens: int) -> bool:
        return self._preemption.reach(room, room.position + tokens)

    def drawn(
        self, room: GeneratingRoom, drafts: int, tokens: int, ahead: tuple[TokenId, ...]
    ) -> None:
        """A row has ended that had so many drafts, and gives so many tokens.

        ahead: what the engine has drafted of the tokens after them
        """
        if self._source is not None:
            self._source.made(room, ahead)
        drafted = self._rooms.get(room.key)
        if drafted is None:
            return
        drafted.pause = max(0, drafted.pause - tokens)
        if not drafts:
            return
        self._worker.speculation.add(drafts, tokens - 1)
        drafted.wrong = drafted.wrong + 1 if tokens == 1 else 0
        if drafted.wrong:
            drafted.pause = min(LONGEST_PAUSE, 1 << (drafted.wrong - 1))

    # ---- time -----------------------------------------------------------------------------------

    def stepping(self, rows: Sequence[RowDrafts], *, others: bool) -> None:
        """A step goes out, with these drafts in the rows of rooms that generate.

        others: whether it computes prompts too
        """
        drafts, ahead = (sum(len(row.tokens) for row in rows), sum(row.ahead for row in rows))
        self._step = DraftedStep(len(rows), drafts, ahead, self._worker.now, others)

    def stepped(self, tokens: int) -> None:
        """It has ended, and gives so many tokens."""
        step, self._step = self._step, None
        if step is None or step.others or self._worker.manifest.pp > 1 or not step.rooms:
            return  # its time says nothing of drafts
        if step.ahead and not step.drafts:
            return  # it has the costs of drafts, and cannot gain from them
        us = Micros(self._worker.now - step.began)
        self._payoff.stepped(step.rooms, step.drafts, tokens, us)


def source_of(settings: LeaderSettings) -> DraftSource | None:
    """Return where the drafts of a worker come from; None if nothing is drafted."""
    if settings.draft_layer:
        return LayerDrafts(settings.draft_layer)
    if settings.drafts is not None:
        return TextLookup(settings.drafts, answers=settings.prefix_cache)
    return None


def before_end(drafts: tuple[TokenId, ...], limits: Limits) -> tuple[TokenId, ...]:
    """Return the drafts before the first that would end the answer.

    An end is drawn and never computed, so no room has taken one into its state: what is kept of
    an answer is of all tokens before its last.
    """
    ends = (n for n, token in enumerate(drafts) if ends_answer(token, limits))
    return drafts[: next(ends, len(drafts))]


def require_draftable(table: StateTable, *, pp: int) -> None:
    """Check that tokens of a model with this state can be drafted in `pp` stages.

    Raises:
        ConfigError: it has state that must go back to what it was before drafts that are wrong, and
            stages that do not know which were
    """
    if pp > 1 and any(group.unit is Unit.SLOT and not group.optional for group in table.groups):
        raise ConfigError(
            f"--speculative-config: this model has recurrent state, and with --pp {pp} only the "
            "last stage knows which drafts were wrong, so that the others cannot take them back "
            "yet; use --tp instead, or leave the flag out"
        )


def _suits(room: GeneratingRoom) -> bool:
    """Whether a room may have drafts: not where each step is told to the gateway."""
    return not room.alone
