"""What a leader does with its prefix cache: which pages a room begins with, and which of its own it
leaves to others.

    room gets pages ──find──▶ [cached | own] ──computed and sealed on every rank──▶ its complete pages enter, one after the other

A hit ends at the last page border before the last token, so at least one token is always computed,
in a page of the room's own. A room whose prompt's logprobs are wanted reuses nothing, because a
position that is not computed has no logits; its own pages enter like any others.

Pages that last are cached (`StateTable.lasting`). A model that has other state too (windows, slots)
cannot compute on from them, as that state is gone. A room whose state is fetched gets the rest from
prefill. Where prompts are computed, a room begins with cached pages only if a checkpoint has the
rest (memory/checkpoints.py); without checkpoints the cache of such a model is off there, and on
decode it is for rooms that are fetched. A checkpoint belongs to the very pages above which its own
state was computed. So a room that computes what is cached already enters its pages too, under
another hash.
"""

from collections.abc import Iterable, Sequence

from baton.core.handoff.birth_sums import RoomSums
from baton.core.ids import TokenId
from baton.core.manifest import Manifest
from baton.core.marks import Mark, Marks
from baton.core.memory.checkpoints import Checkpoints, PromptCheckpoint
from baton.core.memory.pages import Ledger
from baton.core.memory.prefix_cache import (
    CacheChange,
    CachedPage,
    PageHash,
    PageText,
    page_hash,
    root_hash,
    twin_hash,
)
from baton.core.memory.scrubber import Scrubber
from baton.core.scheduler.room import OpenRoom
from baton.core.statistics import CacheTally


class Reuse:
    """The cache use of one worker. Counts in tokens what was looked for and what was found."""

    def __init__(
        self,
        manifest: Manifest,
        ledger: Ledger,
        scrubber: Scrubber,
        *,
        on: bool,
        tells_tokens: bool,
    ) -> None:
        """tells_tokens: whether the changes of the cache say which tokens have entered it"""
        # whether a prompt may be computed from the end of what is cached
        self.resumes = manifest.table.cacheable
        self.on, self._tells_tokens = on and self.resumes, tells_tokens
        # whether prompts begin with checkpoints, where they cannot with cached pages alone
        self.keeps = False
        self.checkpoints = Checkpoints()
        self._scrubber = scrubber
        self.page_tokens = manifest.page_blocks * manifest.table.block_tokens
        self._ledger, self._model, self._weights = ledger, manifest.model, manifest.weights
        self._k = manifest.page_blocks
        self._queries = self._hits = self._saved = self._borrowed = self._lent = 0
        self._block_tokens = manifest.table.block_tokens
        placements = [manifest.placement(r) for r in range(len(manifest.ranks))]
        self.block_bytes = sum(
            p.block_bytes(name) for p in placements for name in manifest.table.lasting
        )

    def find(self, room: OpenRoom, *, leaving: int | None = None) -> tuple[CachedPage, ...]:
        """Return the longest cached beginning of a room's context that leaves at least `leaving`
        tokens: by default the one that draws the first token, where the prompt is computed.
        Nothing for a room that computes all of its prompt. With checkpoints, the pages of a prompt
        that is computed here are those of the longest one, which the room is told.

        It ends before the first page that was not verified in time. What follows is computed or
        fetched as if it were not cached: to verify it first would make the room wait for a worker
        that does not even keep up with its own cache.
        """
        room.checkpoint, room.overdue = None, False
        if room.computes_all:
            return ()
        if self.keeps and room.computes:
            return self._resumable(room)
        found = self._ledger.cache.find(self.chain(room, leaving=leaving))
        fresh = self._scrubber.fresh(found)
        room.overdue = len(fresh) < len(found)
        return fresh

    def _resumable(self, room: OpenRoom) -> tuple[CachedPage, ...]:
        one = self.checkpoint_of(room)
        if one is None:
            return ()
        chain = one.last.chain()
        room.overdue = len(self._scrubber.fresh(chain)) < len(chain)
        if room.overdue:
            return ()
        room.checkpoint = one
        return chain

    def checkpoint_of(self, room: OpenRoom) -> PromptCheckpoint | None:
        """Return the longest checkpoint that a room's context begins with and that leaves it a
        token to compute; None if there is none."""
        most = room.length - 1
        pages = self._hashes(room, most // self.page_tokens)
        found = self.checkpoints.find(pages, room.context, page_tokens=self.page_tokens, most=most)
        return found if found is not None and self._ledger.cache.has(found.last) else None

    def ending(self, room: OpenRoom, length: int) -> tuple[PageHash, tuple[TokenId, ...]]:
        """Return the hash of all complete pages of a room's first `length` positions, of which
        there is one at least, and the tokens behind them."""
        pages = length // self.page_tokens
        tail = room.tokens(pages * self.page_tokens, length)
        return self._hashes(room, pages)[pages - 1], tail

    def _is_kept(self, room: OpenRoom) -> bool:
        """Whether there is a checkpoint of exactly a room's context, so no other is made."""
        return (
            room.length >= self.page_tokens
            and self.checkpoints.same(*self.ending(room, room.length)) is not None
        )

    def chain(self, room: OpenRoom, *, leaving: int | None = None) -> list[PageHash]:
        """Return the hashes of the pages that `find` looks for; empty where nothing is cached, or
        where the prompt is computed and could not go on from that."""
        if not self.on or (room.computes and not (self.resumes or self.keeps)):
            return []
        leaving = int(room.computes) if leaving is None else leaving
        return self._hashes(room, (room.length - leaving) // self.page_tokens)

    @property
    def told(self) -> Iterable[PageHash]:
        """The pages that gateways know: those that a prompt may go on from."""
        return self.checkpoints.pages if self.keeps else self._ledger.cache.hashes()

    def news(self, changes: Sequence[CacheChange]) -> Sequence[CacheChange]:
        """Return what has changed of these pages. changes: of the cache"""
        return self.checkpoints.take_changes() if self.keeps else changes

    def has(self, page: PageHash) -> bool:
        """Whether a page is cached."""
        return bool(self._ledger.cache.find((page,)))

    def begin(self, room: OpenRoom, chain: Sequence[CachedPage], marks: Marks) -> int:
        """A room has got its pages, of which those in `chain` are cached. Returns the number of its
        positions that are computed already."""
        room.enters = self.on
        self._begins(room, len(chain) * self.page_tokens)
        if self.on and not room.computes_all:
            marks[Mark.REUSED] += bool(chain)
            marks[Mark.OVERDUE] += room.overdue
        return room.hit

    def resumed(self, room: OpenRoom, computed: int) -> None:
        """A room has the state of that many positions back from a checkpoint."""
        room.enters = self.on
        self._begins(room, computed)

    def _begins(self, room: OpenRoom, computed: int) -> None:
        room.hit = computed
        if self.on and not room.computes_all:
            self._queries += room.length
            self._hits += room.hit
            self._saved += room.hit // self._block_tokens * self.block_bytes

    def enter(self, room: OpenRoom, computed: int, sums: RoomSums | None, marks: Marks) -> None:
        """Put a room's complete pages in the cache, with their sums if these are known. `computed`
        positions are computed on every rank, and their whole blocks are sealed.

        Where the cache has another page with the same beginning, the room's page and all that
        follow stay its own. With checkpoints those of a prompt that is computed here enter under
        other hashes, if a checkpoint is to belong to them; what is above such a page too, so that
        whoever looks for the plain hashes finds pages that were computed above each other.
        """
        while room.enters and (at := self._ledger.shared(room.key)) < computed // self.page_tokens:
            blocks = slice(at * self._k, (at + 1) * self._k)
            page_sums = {
                where: rows[blocks].copy()
                for where, rows in (sums or {}).items()
                if where[1] in self._ledger.cached
            }
            digest = self._hashes(room, at + 1)[at]
            text = self._text(room, at) if self._tells_tokens else None
            above = self._is_twin(room, at - 1)
            room.enters = not above and self._ledger.enter(room.key, digest, page_sums, text)
            marks[Mark.COMPUTED_TWICE] += not room.enters
            kept = self.keeps and room.computes and (above or not self._is_kept(room))
            if not room.enters and kept:
                name = f"{room.key.room}.{room.key.epoch}".encode()
                twin = twin_hash(digest, name)
                room.enters = self._ledger.enter(room.key, twin, page_sums, text)
            if room.enters:
                self._scrubber.entered(self._ledger.chain(room.key)[at])

    def _is_twin(self, room: OpenRoom, at: int) -> bool:
        """Whether the page `at` of a room is cached under another hash than its own."""
        return at >= 0 and self._ledger.chain(room.key)[at].digest != self._hashes(room, at + 1)[at]

    def _text(self, room: OpenRoom, at: int) -> PageText:
        """Return what the page `at` of a room says."""
        tokens = room.tokens(at * self.page_tokens, (at + 1) * self.page_tokens)
        return PageText(tokens, room.ticket.cache_salt if at == 0 else "")

    def _hashes(self, room: OpenRoom, count: int) -> list[PageHash]:
        """Return the hashes of the first `count` pages of a room."""
        found, size = room.hashes, self.page_tokens
        while len(found) < count:
            before = (
                found[-1]
                if found
                else root_hash(self._model, self._weights, room.ticket.cache_salt)
            )
            start = len(found) * size
            found.append(page_hash(before, room.tokens(start, start + size)))
        return found[:count]

    def borrowed(self, blocks: int) -> None:
        """This many blocks were fetched back from a decode worker."""
        self._borrowed += blocks

    def lent(self, blocks: int) -> None:
        """This many blocks were offered to a prefill worker."""
        self._lent += blocks

    def tally(self) -> CacheTally:
        """Return the figures so far."""
        return CacheTally(
            queries=self._queries,
            hits=self._hits,
            evicted=self._ledger.cache.evicted,
            saved_bytes=self._saved,
            borrowed_tokens=self._borrowed * self._block_tokens,
            borrowed_bytes=self._borrowed * self.block_bytes,
            lent_tokens=self._lent * self._block_tokens,
            verified_pages=self._scrubber.verified,
            damaged_pages=self._scrubber.damaged,
        )
