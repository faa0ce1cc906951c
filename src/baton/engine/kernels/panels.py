"""Some rows times a panel, for the products of by_head.py and grouped.py.

    a panel    PANEL columns of a matrix, stored depth by depth, in units: pairs of bfloat16 if the
               processor multiplies pairs, else single elements

Sums are float32, in the order of the depth, and a row's have the same bits for any number of rows.
"""

import numba
import torch

from baton.core.memory.state import DType
from baton.engine.kernels import amx
from baton.engine.kernels.vectors import PAIRS, PANEL, tile_of
from baton.engine.kernels.vectors import ROWS as MOST

FEW = 4  # rows
BLOCK = 1 << 17  # words of rows that pass together: half a megabyte of a second-level cache
_most, _few, _one = (tile_of(rows, widened=True) for rows in (MOST, FEW, 1))
_inlined = numba.njit(forceinline=True, fastmath={"contract"})


def paired(dtype: DType) -> bool:
    """Whether the processor multiplies two elements of the depth at once."""
    return PAIRS and dtype is DType.BF16


def on_tiles(dtype: DType) -> bool:
    """Whether the processor multiplies this dtype on tile registers."""
    return paired(dtype) and amx.available()


def depth_step(dtype: DType) -> int:
    """Return what the depth of a product is padded to a multiple of, in elements."""
    unit = 2 if paired(dtype) else 1
    return unit * amx.AMX_DEPTH if on_tiles(dtype) else unit


def packed(weight: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Pack [matrices, in, out] as [matrices, panels, depth, PANEL, elements of a unit], padded with
    zeros."""
    count, deep, wide = weight.shape
    unit = 2 if paired(dtype) else 1
    more = (0, -wide % PANEL, 0, -deep % depth_step(dtype))
    whole = torch.nn.functional.pad(weight, more) if any(more) else weight
    return (
        whole.view(count, -1, unit, whole.shape[2] // PANEL, PANEL)
        .permute(0, 3, 1, 4, 2)
        .contiguous()
    )


@_inlined
def _on_vectors(kind, x, step, panel, sums, depth, left):  # type: ignore[no-untyped-def]
    if left >= MOST:
        _most(kind, x, step, panel, sums, depth)
        return MOST
    if left >= FEW:
        _few(kind, x, step, panel, sums, depth)
        return FEW
    _one(kind, x, step, panel, sums, depth)
    return 1


@_inlined
def _on_amx(kind, x, step, panel, sums, depth, left):  # type: ignore[no-untyped-def]
    if left > amx.AMX_ROWS // 2:
        amx.tile_product(x, step, panel, PANEL, sums, PANEL, depth, 0)
    else:
        amx.half_product(x, step, panel, PANEL, sums, PANEL, depth, 0)
    return min(left, amx.AMX_ROWS)


_on_tiles = _on_amx if amx.FITS else _on_vectors  # it is not compiled for another processor


@_inlined
def _shape_tiles(rows):  # type: ignore[no-untyped-def]
    amx.shape_tiles(rows)  # type: ignore[call-arg]


@_inlined
def _shape_nothing(rows):  # type: ignore[no-untyped-def]
    return


_shape = _shape_tiles if amx.FITS else _shape_nothing


@_inlined
def some_rows(tiles, kind, x, step, panel, sums, depth, left):  # type: ignore[no-untyped-def]
    """Multiply the first of `left` rows, `step` units apart, with a panel; return how many.

    With `tiles`, the tiles have been configured for min(left, AMX_ROWS) rows (`row_block`).
    """
    if tiles:
        return _on_tiles(kind, x, step, panel, sums, depth, left)
    return _on_vectors(kind, x, step, panel, sums, depth, left)


@_inlined
def row_block(tiles, depth, left):  # type: ignore[no-untyped-def]
    """Return how many of `left` rows pass the panels of a share before the next ones do.

    They stay in a cache, and with `tiles` they are products of one shape, for which the tiles are
    configured.
    """
    if not tiles:
        return left
    if left < amx.AMX_ROWS:
        _shape(left)
        return left
    _shape(amx.AMX_ROWS)
    return min(left, max(BLOCK // depth, amx.AMX_ROWS)) // amx.AMX_ROWS * amx.AMX_ROWS
