"""The operating system's randomness."""

import secrets


class SystemEntropy:
    """Implements ports.entropy.Entropy."""

    def bits(self, n: int) -> int:
        """A uniform integer in [0, 2**n)."""
        return secrets.randbits(n)
