"""Random bits from counters: every random number of a request follows from its seed, wherever and
however often it is drawn."""

MASK = (1 << 64) - 1


def mix64(seed: int, index: int) -> int:
    """Return 64 random bits for a counter: the output of splitmix64 (Steele, Lea, Flood 2014) with
    this seed at step `index`."""
    x = (seed + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)
