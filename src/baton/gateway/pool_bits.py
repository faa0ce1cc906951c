"""Flips bits in the pools of another process, as failing memory would.

Pools are memory files that are sealed against writing, so this writes through the mapping of their
owner, which needs the right to trace it: the same user, and on many systems an ancestor.
"""

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

OWN_POOL = re.compile(r"(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) .w.* /memfd:baton-pool")


def flip_bits(pid: int, pages: int, chance: random.Random, *, share: float) -> None:
    """Flip a bit in some pages of every pool of a process, while nothing uses them.

    Args:
        pages: how many pages each pool has
        share: of the pages, in which a bit is flipped

    Raises:
        OSError: this user may not write to the memory of that process
    """
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for start, end in _own_pools(pid):
            page_bytes = (end - start) // pages
            for page in range(pages):
                if chance.random() < share:
                    at = start + page * page_bytes + chance.randrange(page_bytes)
                    (byte,) = os.pread(memory.fileno(), 1, at)
                    os.pwrite(memory.fileno(), bytes([byte ^ 1 << chance.randrange(8)]), at)


def _own_pools(pid: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each pool of a process; those of peers are mapped read-only."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if found := OWN_POOL.match(line):
            yield int(found["start"], 16), int(found["end"], 16)
