"""The block pool of a simulated vLLM: reference counts, and a prefix cache of whole blocks.

free ──take──▶ used by one ──share──▶ used by several ──give back──▶ free, and found by its tokens until it is taken
"""

from collections import Counter, deque
from collections.abc import Collection, Sequence

Prefix = tuple[str, tuple[int, ...]]  # a salt, and all tokens up to the end of a block


class BlockPool:
    """As vLLM does: free blocks without known content are given out first, then the others, those
    that were given back longest ago first."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free: deque[int] = deque(range(total))
        self._uses: Counter[int] = Counter()
        self._content: dict[int, Prefix] = {}
        self._found: dict[Prefix, dict[int, None]] = {}

    @property
    def free(self) -> int:
        """The number of blocks that nobody uses."""
        return len(self._free)

    def idle(self, blocks: Collection[int]) -> int:
        """Return how many of these blocks nobody uses."""
        return sum(not self._uses[block] for block in blocks)

    def take(self, count: int) -> list[int]:
        """Give out free blocks. What they held is found no more."""
        taken = [self._free.popleft() for _ in range(count)]
        self.evict(taken)
        self._uses.update(taken)
        return taken

    def share(self, blocks: Sequence[int]) -> None:
        """One more request uses these blocks."""
        for block in blocks:
            if not self._uses[block]:
                self._free.remove(block)
            self._uses[block] += 1

    def give_back(self, blocks: Sequence[int]) -> None:
        """A request uses these blocks, in the order of its tokens, no more."""
        for block in reversed(blocks):
            self._uses[block] -= 1
            if self._uses[block]:
                continue
            del self._uses[block]
            if block in self._content:
                self._free.append(block)
            else:
                self._free.appendleft(block)

    def know(self, block: int, prefix: Prefix) -> None:
        """From now on the block is found by the tokens up to its end."""
        if block not in self._content:
            self._content[block] = prefix
            self._found.setdefault(prefix, {})[block] = None

    def find(self, prefix: Prefix) -> int | None:
        """Return a block with this content; None if there is none."""
        return next(iter(self._found.get(prefix, ())), None)

    def evict(self, blocks: Collection[int]) -> None:
        """Find these blocks no more."""
        for block in blocks:
            if (prefix := self._content.pop(block, None)) is not None:
                del self._found[prefix][block]
                if not self._found[prefix]:
                    del self._found[prefix]

    def cached(self) -> list[int]:
        """Return the blocks whose content is known."""
        return list(self._content)

    @property
    def used(self) -> dict[int, int]:
        """The blocks that are used, and by how many requests."""
        return dict(self._uses)
