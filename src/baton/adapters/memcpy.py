"""Copy lists of byte ranges without the interpreter: one call, the GIL released, stopped from outside by a word in memory.

A Python loop over `ctypes.memmove` takes the GIL back after every range, up to a switch interval (5 ms) each where
another thread computes in Python.
"""

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

CHUNK_BYTES = 4 << 20  # the stop word is looked at every so many bytes
PIECE_BYTES = 512 << 10  # longer ranges are cut: beyond its threshold the C library streams past the cache, which is slower here
RANGE_COST = 512  # a range counts as so many bytes more, so that tiny ones do not hide the stop word

_memcpy = types.ExternalFunction("memcpy", types.uintp(types.uintp, types.uintp, types.uintp))


@numba.njit("void(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[::1])", nogil=True, cache=True)
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
    """Copy on from `cursor` until about `budget` bytes are moved, the ranges end, or `stop[0]` is not zero.

    source, target: int64 [n], addresses; they must be valid, nothing is checked here
    nbytes: int64 [n]
    cursor: int64 [2], range index and offset inside it; (0, 0) at first, (n, 0) when all is copied
    stop: int64 [1], may be set by another thread while this runs
    """
    _copy(source, target, nbytes, cursor, budget, stop)
