"""Compiled kernels of gated-delta layers, which work on slots in place.

They compute one segment after the other, so no result depends on other segments. `segments` is an
array of SEGMENT: first row, rows, slot, and whether the sequence begins (then the slot is not
read).
"""

from typing import NamedTuple

import numba
import numpy as np

from baton.engine.kernels.machine import exp2, widen

LOG2_E = np.float32(1.4426950408889634)
ONE = np.float32(1)
_any_order = numba.njit(
    nogil=True, cache=True, fastmath={"contract", "nsz", "reassoc"}, error_model="numpy"
)
# flags as in kernels.py
_inlined = numba.njit(
    forceinline=True, fastmath={"contract", "nsz", "reassoc"}, error_model="numpy"
)


SEGMENT = np.dtype([("first", "i8"), ("count", "i8"), ("slot", "i8"), ("fresh", "i8")])


class SlotLayer(NamedTuple):
    """One layer's part of a slot: slot stride, start of the first head, head stride.

    All in elements of the pool's array.
    """

    slot_stride: int
    base: int
    head_stride: int


@_inlined
def _activate(x, norm, scale, eps):  # type: ignore[no-untyped-def]
    """Apply SiLU in place; with `norm`, then scale to the length `scale`."""
    total = np.float32(0)
    for d in range(x.size):
        e = exp2(-abs(x[d]) * LOG2_E)
        x[d] *= (ONE if x[d] >= 0 else e) / (ONE + e)
        total += x[d] * x[d]
    if norm:
        factor = scale / np.sqrt(total + eps)
        for d in range(x.size):
            x[d] *= factor


@_inlined
def _add(out, filters, inputs):  # type: ignore[no-untyped-def]
    for d in range(out.size):
        out[d] += filters[d] * widen(inputs[d])


@_any_order
def convolve(pool, x, filters, out, segments, layer, heads, dim, column, norm, scale, eps):  # type: ignore[no-untyped-def]
    """Compute q, k or v: causal convolution of each channel, SiLU, norm.

    The inputs of the last rows are stored in the slot.

    Args:
        pool: stored elements
        x: stored elements [rows, columns]
        filters: float32 [taps, columns]
        out: float32 [rows, columns of q, k, v], is written
        column: first column of this part in x, filters and out
    """
    kept = filters.shape[0] - 1
    for s in range(segments.shape[0]):
        first, count, slot, fresh = (
            segments[s].first,
            segments[s].count,
            segments[s].slot,
            segments[s].fresh,
        )
        for h in range(heads):
            begin, end = column + h * dim, column + (h + 1) * dim
            at = slot * layer.slot_stride + layer.base + h * layer.head_stride
            past = pool[at : at + kept * dim]
            for t in range(count):
                found = out[first + t, begin:end]
                found[:] = np.float32(0)
                for tap in range(kept + 1):
                    back = t + tap - kept
                    if back >= 0:
                        _add(found, filters[tap, begin:end], x[first + back, begin:end])
                    elif not fresh:
                        _add(
                            found,
                            filters[tap, begin:end],
                            past[(back + kept) * dim : (back + kept + 1) * dim],
                        )
                _activate(found, norm, scale, eps)
            for n in range(kept):  # oldest first: each is copied from a later place
                back = count - kept + n
                place = past[n * dim : (n + 1) * dim]
                if back >= 0:
                    place[:] = x[first + back, begin:end]
                elif fresh:
                    place[:] = 0
                else:
                    place[:] = past[(back + kept) * dim : (back + kept + 1) * dim]


@_any_order
def step(pool, mixed, decay, beta, out, segments, layer, key_heads, key):  # type: ignore[no-untyped-def]
    """Update the recurrent state row by row: for each row, one pass reads it and one writes it.

    Args:
        pool: float32
        mixed: float32 [rows, columns of q, k, v], the output of `convolve`
        decay, beta: float32 [rows, value heads]
        out: float32 [rows, value heads, value], is written
    """
    value_heads, value = out.shape[1], out.shape[2]
    shared = value_heads // key_heads
    error = np.empty(value, np.float32)
    for s in range(segments.shape[0]):
        first, count, slot, fresh = (
            segments[s].first,
            segments[s].count,
            segments[s].slot,
            segments[s].fresh,
        )
        for h in range(value_heads):
            at = slot * layer.slot_stride + layer.base + h * layer.head_stride
            state = pool[at : at + key * value]
            if fresh:
                state[:] = np.float32(0)
            q_at = h // shared * key
            k_at, v_at = key_heads * key + q_at, 2 * key_heads * key + h * value
            for row in range(first, first + count):
                kept, share, found = np.exp(decay[row, h]), beta[row, h], out[row, h]
                error[:] = np.float32(0)
                for i in range(key):
                    k, line = mixed[row, k_at + i], state[i * value : (i + 1) * value]
                    for d in range(value):
                        error[d] += k * line[d]
                for d in range(value):
                    error[d] = (mixed[row, v_at + d] - kept * error[d]) * share
                found[:] = np.float32(0)
                for i in range(key):
                    q, k, line = (
                        mixed[row, q_at + i],
                        mixed[row, k_at + i],
                        state[i * value : (i + 1) * value],
                    )
                    for d in range(value):
                        line[d] = kept * line[d] + k * error[d]
                        found[d] += q * line[d]
