"""Drafts tokens for running rooms, so that one step can give several of them.

    tokens so far ──lookup──▶ drafts ──▶ a row of 1 + n tokens ──▶ a draw after each, until one is not the next draft
                                                                    └──▶ 1 to 1 + n new tokens

A draw is a function of the tokens before it, of the request's seed and of its index. A draft is
accepted only if it is the very token that is drawn in its place, so an answer is the same with
drafts and without. What a step computes for other drafts lies behind the room's last token: it is
neither sealed nor cached nor stored, and the next step writes over it.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from baton.core.errors import ConfigError
from baton.core.ids import Key, Micros, TokenId
from baton.core.memory.state import StateTable, Unit
from baton.core.scheduler.draft_payoff import DraftPayoff
from baton.core.scheduler.generating_room import GeneratingRoom
from baton.core.scheduler.lookup_rule import LookupRule
from baton.core.scheduler.preemption import Preemption
from baton.core.scheduler.suffix_lookup import Answers, SuffixLookup
from baton.core.scheduler.worker import Worker

SALTS = 64  # of which answers are kept
LONGEST_PAUSE = 32  # tokens for which a room has no drafts after some that were all wrong


class DraftedRoom(msgspec.Struct):
    """One room's text, and how its drafts fare."""

    text: SuffixLookup
    pause: int = 0  # tokens for which it has no drafts
    wrong: int = 0  # drafts in a row of which none was accepted


class DraftedStep(msgspec.Struct, frozen=True):
    """A step under way in which rooms generate."""

    rooms: int
    drafts: int
    began: Micros
    others: bool  # whether it computes prompts too


class Drafting:
    """The drafts of one worker's rooms."""

    def __init__(self, worker: Worker[Any], preemption: Preemption[Any]) -> None:
        self._worker, self._preemption = worker, preemption
        self._rule: LookupRule | None = worker.settings.drafts
        if self._rule is not None:
            require_draftable(worker.state_table)
        self._rooms: dict[Key, DraftedRoom] = {}
        self._said: OrderedDict[str, Answers] = OrderedDict()  # by salt, the latest last
        self._payoff = DraftPayoff()
        self._now = False  # whether the step that is composed has drafts
        self._step: DraftedStep | None = None

    def forget(self, room: GeneratingRoom) -> None:
        """A room holds nothing any more. Its answer may come again in those of others with its
        salt."""
        self._rooms.pop(room.key, None)
        if (answers := self._answers(room)) is not None and room.generated:
            answers.add([drawn.token for drawn in room.generated])

    def _answers(self, room: GeneratingRoom) -> Answers | None:
        """Return the answers that a room may be compared with, which are those whose state it might
        share; None where none are kept."""
        if self._rule is None or not self._worker.settings.prefix_cache:
            return None
        salt = room.ticket.cache_salt
        found = self._said.pop(salt, None) or Answers()
        self._said[salt] = found
        if len(self._said) > SALTS:
            self._said.popitem(last=False)
        return found

    def kept(self) -> Mapping[str, Collection[Any]]:
        """Return the tables that are empty at rest."""
        return {"drafts": self._rooms}

    def composing(self, rooms: int) -> None:
        """A step of so many rooms is composed."""
        self._now = self._rule is not None and self._payoff.allows(rooms)

    def of(self, room: GeneratingRoom, most: int) -> tuple[TokenId, ...]:
        """Return drafts of a room's tokens after its last one, at most `most`. It has the pages
        that they need."""
        if not self._now or self._rule is None or not _suits(room):
            return ()
        drafted = self._rooms.get(room.key)
        if drafted is None:
            text = SuffixLookup(self._rule, self._answers(room))
            drafted = self._rooms[room.key] = DraftedRoom(text)
        text = drafted.text
        text.append(room.tokens(len(text), room.position + 1))
        if drafted.pause > 0:
            return ()
        left = room.ticket.limits.max_tokens - room.next_index - 1  # beside the one that is drawn
        drafts = text.draft(min(most, left))
        while drafts and not self._preemption.reach(room, room.position + len(drafts)):
            drafts = drafts[: len(drafts) // 2]
        return drafts

    def drawn(self, room: GeneratingRoom, drafts: int, tokens: int) -> None:
        """A row has ended that had so many drafts, and gives so many tokens."""
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

    def stepping(self, rows: Sequence[int], *, others: bool) -> None:
        """A step goes out, with so many drafts in the rows of rooms that generate.

        others: whether it computes prompts too
        """
        self._step = DraftedStep(len(rows), sum(rows), self._worker.now, others)

    def stepped(self, tokens: int) -> None:
        """It has ended, and gives so many tokens."""
        step, self._step = self._step, None
        if step is None or step.others or self._worker.manifest.pp > 1 or not step.rooms:
            return  # its time says nothing of drafts
        us = Micros(self._worker.now - step.began)
        self._payoff.stepped(step.rooms, step.drafts, tokens, us)


def require_draftable(table: StateTable) -> None:
    """Check that tokens of a model with this state can be drafted.

    Raises:
        ConfigError: it has state that cannot go back to what it was before drafts that are wrong
    """
    slots = [group.name for group in table.groups if group.unit is Unit.SLOT]
    if slots:
        raise ConfigError(
            "--speculative-config: this model has recurrent state, which cannot go back to what it "
            "was before drafts that are wrong; leave the flag out"
        )


def _suits(room: GeneratingRoom) -> bool:
    """Whether a room may have drafts: not where each step is told to the gateway."""
    return not room.alone
