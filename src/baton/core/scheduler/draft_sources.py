"""Where drafts come from: the text so far, or the draft layer of the engine.

lookup    tokens so far ──▶ drafts                                            when a row is composed
layer     the row before ──step──▶ drafts of what follows its last token      they wait here for the next row
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import msgspec

from baton.core.ids import Key, TokenId
from baton.core.scheduler.generating_room import GeneratingRoom
from baton.core.scheduler.lookup_rule import LookupRule
from baton.core.scheduler.suffix_lookup import Answers, SuffixLookup

SALTS = 64  # of which answers are kept


class DraftSource(Protocol):
    """The drafts of one worker's rooms.

    Attributes:
        ahead: drafts that the engine is to make of a room for its next row, at most
    """

    ahead: int

    def draft(self, room: GeneratingRoom, most: int) -> tuple[TokenId, ...]:
        """Return drafts of a room's tokens after its last one, at most `most`. It is asked in every
        step in which rooms have drafts, with 0 for a room that is to have none."""
        ...

    def made(self, room: GeneratingRoom, drafts: tuple[TokenId, ...]) -> None:
        """The engine has drafted what follows a room's last token."""
        ...

    def forget(self, room: GeneratingRoom) -> None:
        """A room holds nothing any more."""
        ...

    def kept(self) -> Mapping[str, Collection[Any]]:
        """Return the tables that are empty at rest."""
        ...


class TextLookup:
    """Implements DraftSource: looks up what came after the end of the text when it occurred
    before, in the text itself or in earlier answers."""

    ahead = 0

    def __init__(self, rule: LookupRule, *, answers: bool) -> None:
        """answers: whether those of other requests count"""
        self._rule, self._shares = rule, answers
        self._texts: dict[Key, SuffixLookup] = {}
        self._said: OrderedDict[str, Answers] = OrderedDict()  # by salt, the latest last

    def draft(self, room: GeneratingRoom, most: int) -> tuple[TokenId, ...]:
        text = self._texts.get(room.key)
        if text is None:
            text = self._texts[room.key] = SuffixLookup(self._rule, self._answers(room))
        text.append(room.tokens(len(text), room.position + 1))
        return text.draft(most) if most > 0 else ()

    def made(self, room: GeneratingRoom, drafts: tuple[TokenId, ...]) -> None:
        assert not drafts, "none are wanted"

    def forget(self, room: GeneratingRoom) -> None:
        """Its answer may come again in those of others with its salt."""
        self._texts.pop(room.key, None)
        if (answers := self._answers(room)) is not None and room.generated:
            answers.add([drawn.token for drawn in room.generated])

    def _answers(self, room: GeneratingRoom) -> Answers | None:
        """Return the answers that a room may be compared with, which are those whose state it might
        share; None where none are kept."""
        if not self._shares:
            return None
        salt = room.ticket.cache_salt
        found = self._said.pop(salt, None) or Answers()
        self._said[salt] = found
        if len(self._said) > SALTS:
            self._said.popitem(last=False)
        return found

    def kept(self) -> Mapping[str, Collection[Any]]:
        return {"texts": self._texts}


class MadeDrafts(msgspec.Struct, frozen=True):
    """Drafts of the tokens after a position."""

    position: int
    tokens: tuple[TokenId, ...]


class LayerDrafts:
    """Implements DraftSource: keeps what the engine has drafted for the next row of each room.
    These are tokens and nothing else, so a room that was away has them still."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self._made: dict[Key, MadeDrafts] = {}

    def draft(self, room: GeneratingRoom, most: int) -> tuple[TokenId, ...]:
        made = self._made.get(room.key)
        if made is None or made.position != room.position:
            return ()  # the step before was to make none
        return made.tokens[: max(0, most)]

    def made(self, room: GeneratingRoom, drafts: tuple[TokenId, ...]) -> None:
        if drafts:
            self._made[room.key] = MadeDrafts(room.position, drafts)

    def forget(self, room: GeneratingRoom) -> None:
        self._made.pop(room.key, None)

    def kept(self) -> Mapping[str, Collection[Any]]:
        return {"made drafts": self._made}
