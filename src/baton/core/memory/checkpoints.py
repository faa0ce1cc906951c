"""The book of a worker's checkpoints: what its ranks keep in host memory of the state at the end of
prompts and of answers, and within long prompts, because cached pages lack it.

    prompt   [ page 0 ][ page 1 ][ page 2 ][ tai      its end: where computing goes on
    lasting    cached    cached    cached    kept     complete pages, and the last one
    window                       .. kept     kept     what a step behind the end looks back on
    slot                                     kept

A checkpoint serves prompts that begin with exactly its tokens. It belongs to the cached page that
its last complete page is: the pages above which that one was computed are the rest of its state.
When that page has left the cache, evicted or damaged, the checkpoint is of no use any more.

Those without pins are given up in the order of their last use.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from baton.core.errors import Bug
from baton.core.ids import CheckpointName, GroupName, Rank, TokenId
from baton.core.memory.prefix_cache import CacheChange, CachedPage, PageHash
from baton.core.memory.state import Full, Interval, Placement, StateTable, extent_blocks

# uint64 [blocks, units] by rank and group, of the blocks that are kept
KeptSums = Mapping[tuple[Rank, GroupName], NDArray[np.uint64]]

LONG = 1 << 30  # pages: more than any window has


def kept_blocks(table: StateTable, length: int, page_blocks: int) -> dict[GroupName, Interval]:
    """Return the blocks that complete cached pages lack of the state of `length` positions."""
    found = {}
    for group in table.groups:
        due = extent_blocks(group.extent, length, table.block_tokens)
        cached = length // (page_blocks * table.block_tokens) * page_blocks
        start = cached if isinstance(group.extent, Full) else due.start
        found[group.name] = Interval(start, due.end)
    return found


def kept_bytes(placement: Placement, length: int) -> int:
    """Return the bytes of these blocks on one rank."""
    blocks = kept_blocks(placement.table, length, placement.page_blocks)
    return sum(each.size * placement.block_bytes(group) for group, each in blocks.items())


def kept_at_most(placement: Placement) -> int:
    """Return the bytes of what is kept on one rank of a sequence that ends with a page and is so
    long that every window is full."""
    return kept_bytes(placement, LONG * placement.page_blocks * placement.table.block_tokens)


def kept_every(placements: Sequence[Placement], least: int) -> int:
    """Return after how many tokens of a prompt another checkpoint is worth its memory: it takes no
    more than the cached pages of so many tokens do. That is a multiple of a page, and not less than
    `least`."""
    table, page_tokens = (
        placements[0].table,
        placements[0].page_blocks * placements[0].table.block_tokens,
    )
    kept = sum(map(kept_at_most, placements))
    lasts = sum(p.block_bytes(group) for p in placements for group in table.lasting)
    parity = -(-kept * table.block_tokens // lasts)
    return -(-max(parity, least) // page_tokens) * page_tokens


class PromptCheckpoint:
    """What is kept of one sequence. Compared by identity."""

    __slots__ = ("beyond", "last", "length", "name", "page", "sums", "tail")

    def __init__(
        self,
        name: CheckpointName,
        *,
        length: int,
        page: PageHash,
        tail: Sequence[TokenId],
        last: CachedPage,
        sums: KeptSums,
        beyond: int,
    ) -> None:
        """page: the hash of the tokens in complete pages; tail: the tokens behind them

        last: the cached page with the last complete page; sums: of the blocks as they were computed
        beyond: how many of its tokens were generated; below 0: how many of the prompt follow
        """
        self.name, self.length, self.page, self.tail = name, length, page, tuple(tail)
        self.last, self.sums, self.beyond = last, sums, beyond


class Checkpoints:
    """The checkpoints of one worker that a prompt can begin with."""

    def __init__(self) -> None:
        self._by_page: dict[PageHash, list[PromptCheckpoint]] = {}
        self._used: dict[CheckpointName, PromptCheckpoint] = {}  # in the order of their last use
        self._pins: Counter[PromptCheckpoint] = Counter()
        self._counts: Counter[int] = Counter()  # checkpoints with so many tokens in complete pages
        self._changes: list[CacheChange] = []

    def __len__(self) -> int:
        return len(self._used)

    def __iter__(self) -> Iterator[PromptCheckpoint]:
        return iter(tuple(self._used.values()))

    @property
    def pages(self) -> Iterable[PageHash]:
        """The last complete pages of all checkpoints."""
        return self._by_page.keys()

    def take_changes(self) -> list[CacheChange]:
        """Return which of `pages` have come and gone since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def find(
        self, pages: Sequence[PageHash], tokens: Sequence[TokenId], *, page_tokens: int, most: int
    ) -> PromptCheckpoint | None:
        """Return the longest checkpoint of at most `most` positions that a sequence begins with.

        pages: the hashes of the sequence's complete pages, as far as they are wanted
        tokens: of the sequence
        """
        known = len(pages) * page_tokens
        for begin in sorted((n for n in self._counts if n <= known), reverse=True):
            found = [
                one
                for one in self._by_page.get(pages[begin // page_tokens - 1], ())
                if one.length <= most and tuple(tokens[begin : one.length]) == one.tail
            ]
            if found:
                return max(found, key=lambda one: one.length)
        return None

    def same(self, page: PageHash, tail: Sequence[TokenId]) -> PromptCheckpoint | None:
        """Return the checkpoint of exactly these tokens."""
        theirs = (one for one in self._by_page.get(page, ()) if one.tail == tuple(tail))
        return next(theirs, None)

    def add(self, one: PromptCheckpoint) -> None:
        """Add a checkpoint, of whose tokens there is none.

        Raises:
            Bug: there is one
        """
        if self.same(one.page, one.tail) is not None:
            raise Bug(f"checkpoint {one.name} has the tokens of another one")
        if one.page not in self._by_page:
            self._changes.append(CacheChange(one.page, entered=True))
        self._by_page.setdefault(one.page, []).append(one)
        self._counts[one.length - len(one.tail)] += 1
        self._used[one.name] = one

    def use(self, one: PromptCheckpoint) -> None:
        """It was used, or would have been kept again, just now."""
        self._used[one.name] = self._used.pop(one.name)

    def pin(self, one: PromptCheckpoint) -> None:
        """A room resumes from it."""
        self._pins[one] += 1
        self.use(one)

    def unpin(self, one: PromptCheckpoint) -> None:
        """The room does so no more. The checkpoint may have been removed meanwhile.

        Raises:
            Bug: no room did
        """
        if self._pins[one] < 1:
            raise Bug(f"checkpoint {one.name} is unpinned, and nobody has pinned it")
        self._pins[one] -= 1
        if not self._pins[one]:
            del self._pins[one]

    def pinned(self, one: PromptCheckpoint) -> bool:
        """Whether a room resumes from it, so that its copies must stay."""
        return one in self._pins

    def idle(self) -> list[PromptCheckpoint]:
        """Return those without pins, the one that was used longest ago first."""
        return [one for one in self._used.values() if one not in self._pins]

    def remove(self, one: PromptCheckpoint) -> None:
        """It is found no more. It need not have been added, nor be without pins."""
        if self._used.pop(one.name, None) is None:
            return
        alike = self._by_page[one.page]
        alike.remove(one)
        if not alike:
            del self._by_page[one.page]
            self._changes.append(CacheChange(one.page, entered=False))
        count = one.length - len(one.tail)
        self._counts[count] -= 1
        if not self._counts[count]:
            del self._counts[count]
