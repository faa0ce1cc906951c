"""Port: randomness.

N1 Every call draws anew. N2 Draws are uniform.
"""

from typing import Protocol


class Entropy(Protocol):
    """A source of random identities and seeds."""

    def bits(self, n: int) -> int:
        """Return a uniform integer in [0, 2**n)."""
        ...
