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


def flip_bits(pid: int, pages: int, chance: random.Random) -> int:
    """Flip a bit in about half of the pages of every pool of a process. Returns how many.

    Nothing may use these pages meanwhile.

    Args:
        pages: how many pages each pool has

    Raises:
        OSError: this user may not write to the memory of that process
    """
    flipped = 0
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for start, end in _own_pools(pid):
            page_bytes = (end - start) // pages
            for page in range(pages):
                if chance.random() < 0.5:
                    at = start + page * page_bytes + chance.randrange(page_bytes)
                    (byte,) = os.pread(memory.fileno(), 1, at)
                    os.pwrite(memory.fileno(), bytes([byte ^ 1 << chance.randrange(8)]), at)
                    flipped += 1
    return flipped


def _own_pools(pid: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each pool of a process; those of peers are mapped read-only."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if found := OWN_POOL.match(line):
            yield int(found["start"], 16), int(found["end"], 16)
