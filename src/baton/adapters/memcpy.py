"""Copies lists of byte ranges in one compiled call, with the GIL released.

Another thread can stop it through a word in memory. A Python loop over `ctypes.memmove` would take
the GIL back after every range, which may take up to a switch interval (5 ms) while another thread
runs Python.
"""

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

CHUNK_BYTES = 4 << 20  # bytes copied between two looks at the stop word
# longer ranges are cut: for those the C library bypasses the cache, which is slower here
PIECE_BYTES = 512 << 10
RANGE_COST = 512  # bytes added for each range, so that many tiny ranges do not delay the stop

_memcpy = types.ExternalFunction("memcpy", types.uintp(types.uintp, types.uintp, types.uintp))


@numba.njit(
    "void(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[::1])",
    nogil=True,
    cache=True,
)
def _copy(source, target, nbytes, cursor, budget, stop):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    i, offset = cursor[0], cursor[1]
    spent, since = 0, 0
    while i < source.size and spent < budget:
        if since >= CHUNK_BYTES:
            if stop[0] != 0:
                break
            since = 0
        n = min(nbytes[i] - offset, PIECE_BYTES)
        _memcpy(target[i] + offset, source[i] + offset, n)
        offset += n
        spent += n + RANGE_COST
        since += n + RANGE_COST
        if offset == nbytes[i]:
            i, offset = i + 1, 0
    cursor[0], cursor[1] = i, offset


def copy_ranges(
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    *,
    cursor: NDArray[np.int64],
    budget: int,
    stop: NDArray[np.int64],
) -> None:
    """Copy from `cursor` on, until about `budget` bytes are moved, all is copied, or `stop[0]` is
    set.

    Args:
        source, target: int64 [n], addresses; they must be valid, they are not checked
        nbytes: int64 [n], sizes of the ranges
        cursor: int64 [2], index of a range and offset in it; is advanced from (0, 0) to (n, 0)
        budget: bytes to copy in this call
        stop: int64 [1], another thread may set it to a value other than 0 during the call
    """
    _copy(source, target, nbytes, cursor, budget, stop)
