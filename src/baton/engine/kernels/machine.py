"""What the kernels need from the machine and numba does not offer: typed addresses, a shared counter, 16-bit floats, and
one vector micro kernel.

A kernel is a function of one pointer to a job (int64 fields, see team.py). The pointer's element type says in what the
rows are stored: uint16 for bfloat16 bits, int16 for float16 bits, float32 for float32.
"""

from collections.abc import Mapping
from typing import Any

import llvmlite.binding
import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from baton.core.state import DType

STORED: Mapping[DType, Any] = {DType.BF16: types.uint16, DType.F16: types.int16, DType.F32: types.float32}
LANES = 16 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 8
PANEL = 2 * LANES  # columns of the micro kernel: 8 rows x 2 vectors leave registers to spare on every x86
ROWS = 8
F32 = ir.FloatType()
VECTOR = ir.VectorType(F32, LANES)
I64 = ir.IntType(64)
OPTIONS = {"error_model": "numpy", "inline": "never"}


@intrinsic
def typed(context: Any, like: Any, address: Any) -> Any:
    """The address as a pointer to what `like` points to."""

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[1], args[0].type)

    return like(like, types.int64), build


@intrinsic
def size_of(context: Any, like: Any) -> Any:
    """Bytes of what `like` points to."""
    size = like.dtype.bitwidth // 8

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return I64(size)

    return types.int64(like), build


@intrinsic
def floats(context: Any, address: Any) -> Any:
    """The address as a pointer to float32."""

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], F32.as_pointer())

    return types.CPointer(types.float32)(types.int64), build


@intrinsic
def integers(context: Any, address: Any) -> Any:
    """The address as a pointer to int64."""

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], I64.as_pointer())

    return types.CPointer(types.int64)(types.int64), build


@intrinsic
def job_of(context: Any, pointer: Any) -> Any:
    """A kernel's argument as a pointer to its job's int64 fields."""

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], I64.as_pointer())

    return types.CPointer(types.int64)(pointer), build


@intrinsic
def take(context: Any, pointer: Any) -> Any:
    """Fetch and increment the int64 a pointer points to: one counter for all threads of a team."""

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.bitcast(args[0], I64.as_pointer()), I64(1), "monotonic")

    return types.int64(pointer), build


@intrinsic
def float_bits(context: Any, value: Any) -> Any:
    """A float32's bits as int32."""

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), build


@intrinsic
def bits_float(context: Any, value: Any) -> Any:
    """The float32 of int32 bits."""

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], F32)

    return types.float32(types.int32), build


@intrinsic
def widen(context: Any, value: Any) -> Any:
    """A stored element as float32."""

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if value == types.float32:
            return args[0]
        if value == types.int16:
            return builder.fpext(builder.bitcast(args[0], ir.HalfType()), F32)
        wide = builder.zext(args[0], ir.IntType(32))
        return builder.bitcast(builder.shl(wide, ir.IntType(32)(16)), F32)

    return types.float32(value), build


@intrinsic
def narrow(context: Any, value: Any, like: Any) -> Any:
    """A float32 rounded (to nearest, ties to even) to the stored type of `like`."""

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if like == types.float32:
            return args[0]
        if like == types.int16:
            return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))
        i32 = ir.IntType(32)
        bits = builder.bitcast(args[0], i32)
        odd = builder.and_(builder.lshr(bits, i32(16)), i32(1))
        rounded = builder.lshr(builder.add(bits, builder.add(odd, i32(0x7FFF))), i32(16))
        # The carry of a NaN's payload could reach the sign: keep a NaN a NaN.
        kept = builder.or_(builder.lshr(bits, i32(16)), i32(0x40))
        broken = builder.fcmp_unordered("uno", args[0], args[0])
        return builder.trunc(builder.select(broken, kept, rounded), ir.IntType(16))

    return like(types.float32, like), build


def _micro(rows: int) -> Any:
    @intrinsic
    def micro(
        context: Any, a: Any, a_row: Any, a_depth: Any, b: Any, b_row: Any, c: Any, c_row: Any, depth: Any, add: Any
    ) -> Any:
        """c[rows, PANEL] (+)= a[rows, depth] b[depth, PANEL], all float32.

        a, b, c: addresses; strides in elements: a[i, k] at a_row * i + a_depth * k, b[k] at b_row * k, c[i] at c_row * i.
        add: int64, 1 to add to c, 0 to overwrite it. Every element of c is summed in the order of k.
        """

        def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _micro_loop(builder, rows, *args)
            return _context.get_dummy_value()

        return types.void(*(types.int64,) * 9), build

    return micro


micro8, micro4 = _micro(ROWS), _micro(4)


@intrinsic
def dots(context: Any, a: Any, b: Any, b_row: Any, depth: Any, out: Any) -> Any:
    """out[8] = b[8, depth] a[depth], all float32 at addresses; depth is a multiple of LANES."""

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _dots_loop(builder, *args)
        return _context.get_dummy_value()

    return types.void(*(types.int64,) * 5), build


@intrinsic
def prefetch(context: Any, address: Any) -> Any:
    """Ask for the cache line at an address."""

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i8, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        shape = ir.FunctionType(ir.VoidType(), (i8, i32, i32, i32))
        call = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0")
        builder.call(call, (builder.inttoptr(args[0], i8), i32(0), i32(3), i32(1)))
        return _context.get_dummy_value()

    return types.void(types.int64), build


def _at(builder: Any, base: Any, offset: Any, pointee: Any) -> Any:
    """Pointer to the float32 number `offset` after address `base`."""
    address = builder.add(base, builder.shl(offset, I64(2)))
    return builder.inttoptr(address, pointee.as_pointer())


def _fma(builder: Any) -> Any:
    shape = ir.FunctionType(VECTOR, (VECTOR, VECTOR, VECTOR))
    return cgutils.get_or_insert_function(builder.module, shape, f"llvm.fmuladd.v{LANES}f32")


def _splat(builder: Any, scalar: Any) -> Any:
    nothing, i32 = ir.Constant(VECTOR, ir.Undefined), ir.IntType(32)
    one = builder.insert_element(nothing, scalar, i32(0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(i32, LANES), [0] * LANES))


def _accumulate(builder: Any, initial: list[Any], limit: Any, step: int, body: Any) -> list[Any]:
    """A loop k = 0, step, ... < limit (once at least) that turns sums into body(k, sums)."""
    before = builder.block
    loop, done = builder.append_basic_block("vector.loop"), builder.append_basic_block("vector.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(I64)
    sums = [builder.phi(VECTOR) for _ in initial]
    new = body(k, sums)
    following = builder.add(k, I64(step))
    for phi, first, later in zip((k, *sums), (I64(0), *initial), (following, *new), strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", following, limit), loop, done)
    builder.position_at_end(done)
    return list(new)


def _micro_loop(
    builder: Any, rows: int, a: Any, a_row: Any, a_depth: Any, b: Any, b_row: Any, c: Any, c_row: Any, depth: Any, add: Any
) -> None:
    fma, halves = _fma(builder), (0, 1)
    spots = [
        _at(builder, c, builder.add(builder.mul(c_row, I64(i)), I64(j * LANES)), VECTOR) for i in range(rows) for j in halves
    ]
    adding, zero = builder.icmp_signed("!=", add, I64(0)), ir.Constant(VECTOR, [0.0] * LANES)
    initial = [builder.select(adding, builder.load(s, align=4), zero) for s in spots]

    def body(k: Any, sums: list[Any]) -> list[Any]:
        row, column = builder.mul(k, b_row), builder.mul(k, a_depth)
        right = [builder.load(_at(builder, b, builder.add(row, I64(j * LANES)), VECTOR), align=4) for j in halves]
        new = []
        for i in range(rows):
            at = _at(builder, a, builder.add(column, builder.mul(a_row, I64(i))), F32)
            left = _splat(builder, builder.load(at, align=4))
            new += [builder.call(fma, (left, right[j], sums[2 * i + j])) for j in halves]
        return new

    for spot, value in zip(spots, _accumulate(builder, initial, depth, 1, body), strict=True):
        builder.store(value, spot, align=4)


def _dots_loop(builder: Any, a: Any, b: Any, b_row: Any, depth: Any, out: Any) -> None:
    fma, zero = _fma(builder), ir.Constant(VECTOR, [0.0] * LANES)

    def body(k: Any, sums: list[Any]) -> list[Any]:
        left = builder.load(_at(builder, a, k, VECTOR), align=4)
        rights = [_at(builder, b, builder.add(k, builder.mul(b_row, I64(i))), VECTOR) for i in range(ROWS)]
        return [builder.call(fma, (left, builder.load(r, align=4), s)) for r, s in zip(rights, sums, strict=True)]

    shape = ir.FunctionType(F32, (F32, VECTOR))
    reduce = cgutils.get_or_insert_function(builder.module, shape, f"llvm.vector.reduce.fadd.v{LANES}f32")
    for i, total in enumerate(_accumulate(builder, [zero] * ROWS, depth, LANES, body)):
        value = builder.call(reduce, (ir.Constant(F32, -0.0), total), fastmath=("reassoc",))
        builder.store(value, _at(builder, out, I64(i), F32), align=4)


@numba.njit(forceinline=True, fastmath={"contract"})
def exp2(x):  # type: ignore[no-untyped-def]
    """2**x for float32 x <= 0, within 2e-7 of it; 0 below -126.5."""
    x = max(x, numba.float32(-127.0))
    shifted = x + numba.float32(12582912.0)  # 1.5 * 2**23: the sum's low bits are round(x)
    f = x - (shifted - numba.float32(12582912.0))
    p = numba.float32(1.5403530393381608e-4)
    p = p * f + numba.float32(1.3333558146428443e-3)
    p = p * f + numba.float32(9.6181291076284771e-3)
    p = p * f + numba.float32(5.5504108664821580e-2)
    p = p * f + numba.float32(2.4022650695910072e-1)
    p = p * f + numba.float32(6.9314718055994531e-1)
    p = p * f + numba.float32(1.0)
    whole = numba.int32(float_bits(shifted) - numba.int32(0x4B400000 - 127))
    return p * bits_float(numba.int32(whole << numba.int32(23)))
