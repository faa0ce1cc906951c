"""How much host memory a rank that generates has for the state of requests that give way, where nobody has said how much.

Running requests that give way one after the other leave the pools to those that stay, which grow: of n requests, c of which fit
at their full length, the states away come to about ln(n / c) times the pools. Twice is enough up to n = 7 c. The memory is taken
from the machine when it is first used.
"""

POOLS = 2  # times a rank's own, at most
SHARE = 0.25  # of what is free on the machine when the rank has its pools, at most, for all ranks that generate there


def automatic(pools: int, *, available: int, ranks: int) -> int:
    """Bytes. pools: bytes of the rank's own; available: of host memory; ranks: those that generate on this machine."""
    return min(POOLS * pools, int(SHARE * available) // ranks)
