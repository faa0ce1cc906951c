"""Port: chance. N1 every call draws afresh; N2 draws are uniform."""

from typing import Protocol


class Entropy(Protocol):
    """A source of random identities and seeds."""

    def bits(self, n: int) -> int:
        """A uniform integer in [0, 2**n)."""
        ...
