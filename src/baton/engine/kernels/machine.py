"""Intrinsics that numba lacks: typed addresses, a shared counter, 16-bit floats.

A kernel is a function of one pointer to its job (job.py). The pointer's element type is the type of
the stored rows: uint16 for bfloat16 bits, int16 for float16 bits, float32 for float32.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numba
from llvmlite import ir
from numba import extending
from numba.core import types

from baton.core.memory.state import DType

STORED: Mapping[DType, Any] = {
    DType.BF16: types.uint16,
    DType.F16: types.int16,
    DType.F32: types.float32,
}
F32, I16, I32, I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
# 1.5 * 2**23 and its bits; adding it to x makes the low bits round(x)
ROUNDING, ROUNDING_BITS = 12582912.0, 0x4B400000
# Coefficients of 2**f on [-1/2, 1/2], highest power first: Taylor's ln(2)**n / n!; error below
# 2e-7.
POWERS = (
    1.5403530393381608e-4, 1.3333558146428443e-3, 9.6181291076284771e-3, 5.5504108664821580e-2,
    2.4022650695910072e-1, 6.9314718055994531e-1, 1.0,
)  # fmt: skip


def pointer_to(element: Any) -> Any:
    """Return numba's type of a pointer to `element`."""
    return types.CPointer(element)  # type: ignore[no-untyped-call]


def _intrinsic(made: Callable[..., Any]) -> Callable[..., Any]:
    return extending.intrinsic(made)


@_intrinsic
def typed(context: Any, like: Any, address: Any) -> Any:
    """Convert an address to a pointer of the type of `like`."""

    def build(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[1], args[0].type)

    return like(like, types.int64), build


@_intrinsic
def size_of(context: Any, like: Any) -> Any:
    """Return the size in bytes of the element type of `like`."""
    size = like.dtype.bitwidth // 8

    def build(_context: Any, _builder: Any, _signature: Any, _args: Any) -> Any:
        return I64(size)

    return types.int64(like), build


@_intrinsic
def floats(context: Any, address: Any) -> Any:
    """Convert an address to a pointer to float32."""

    def build(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], F32.as_pointer())

    return pointer_to(types.float32)(types.int64), build


@_intrinsic
def integers(context: Any, address: Any) -> Any:
    """Convert an address to a pointer to int64."""

    def build(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], I64.as_pointer())

    return pointer_to(types.int64)(types.int64), build


@_intrinsic
def indices(context: Any, address: Any) -> Any:
    """Convert an address to a pointer to int32."""

    def build(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], I32.as_pointer())

    return pointer_to(types.int32)(types.int64), build


@_intrinsic
def take(context: Any, pointer: Any) -> Any:
    """Fetch and increment the `next_item` of a job atomically; all threads of a team share it."""

    def build(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.atomic_rmw(
            "add", builder.bitcast(args[0], I64.as_pointer()), I64(1), "monotonic"
        )

    return types.int64(pointer), build


@_intrinsic
def float_bits(context: Any, value: Any) -> Any:
    """Return the bits of a float32 as int32."""

    def build(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], I32)

    return types.int32(types.float32), build


@_intrinsic
def bits_float(context: Any, value: Any) -> Any:
    """Return the float32 with the given int32 bits."""

    def build(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], F32)

    return types.float32(types.int32), build


@_intrinsic
def widen(context: Any, value: Any) -> Any:
    """Convert a stored element to float32."""

    def build(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if value == types.float32:
            return args[0]
        if value == types.int16:
            return builder.fpext(builder.bitcast(args[0], ir.HalfType()), F32)
        return builder.bitcast(builder.shl(builder.zext(args[0], I32), I32(16)), F32)

    return types.float32(value), build


@_intrinsic
def narrow(context: Any, value: Any, like: Any) -> Any:
    """Round a float32 (to nearest, ties to even) to the stored type of `like`."""

    def build(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if like == types.float32:
            return args[0]
        if like == types.int16:
            return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), I16)
        bits = builder.bitcast(args[0], I32)
        odd = builder.and_(builder.lshr(bits, I32(16)), I32(1))
        rounded = builder.lshr(builder.add(bits, builder.add(odd, I32(0x7FFF))), I32(16))
        # Rounding could carry a NaN's payload into the sign bit, so NaNs are kept as they are.
        kept = builder.or_(builder.lshr(bits, I32(16)), I32(0x40))
        broken = builder.fcmp_unordered("uno", args[0], args[0])
        return builder.trunc(builder.select(broken, kept, rounded), I16)

    return like(types.float32, like), build


@numba.njit(forceinline=True, fastmath={"contract"})
def exp2(x):  # type: ignore[no-untyped-def]
    """Return 2**x for float32 x <= 0, with an error within 2e-7; 0 below -126.5."""
    x = max(x, numba.float32(-127.0))
    shifted = x + numba.float32(ROUNDING)
    f = x - (shifted - numba.float32(ROUNDING))
    p = numba.float32(POWERS[0])
    for n in range(1, 7):
        p = p * f + numba.float32(POWERS[n])
    whole = numba.int32(float_bits(shifted) - numba.int32(ROUNDING_BITS - 127))
    return p * bits_float(numba.int32(whole << numba.int32(23)))
