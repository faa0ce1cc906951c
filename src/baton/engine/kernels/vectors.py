"""Vector instructions that numba lacks, for attention and the products of heads.

A *word* is 32 bits of a row in the form in which it is multiplied: one float32, or two bfloat16 if
the processor multiplies pairs of them (`PAIRS`). The dtype of the array passed in selects the form:
float32 or uint32. Stored elements are float32, uint16 (bfloat16 bits), int16 (float16 bits) or
uint32 (pairs). All sums are float32, in an order that depends only on the arguments.
"""

from collections.abc import Callable
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from baton.engine.kernels.machine import POWERS, ROUNDING, ROUNDING_BITS

_FEATURES = llvmlite.binding.get_host_cpu_features()
PAIRS = bool(_FEATURES.get("avx512bf16"))
LANES = 16 if _FEATURES.get("avx512f") else 8
PANEL = 2 * LANES  # columns of a product's tile
ROWS = 12 if LANES == 16 else 6  # rows of a product's tile: 2 * ROWS sums fill the registers
SCRATCH = 32 * PANEL  # sums of the tile with most rows, that of amx.py
HEADS = 4  # query heads that `blend` computes together
PARTS = 4  # of a row, whose highest elements are looked for together

I16, I32, I64, F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
FLOATS = ir.VectorType(F32, LANES)
ZERO = ir.Constant(FLOATS, [0.0] * LANES)
Values = list[Any]


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


def _pointer(builder: Any, address: Any, index: Any, pointee: Any, size: int = 4) -> Any:
    return builder.inttoptr(
        builder.add(address, builder.mul(index, I64(size))), pointee.as_pointer()
    )


def _fma(builder: Any) -> Any:
    return cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(FLOATS, (FLOATS, FLOATS, FLOATS)),
        f"llvm.fmuladd.v{LANES}f32",
    )


def _multiply(builder: Any, kind: Any, a: Any, b: Any, total: Any) -> Any:
    """total + a * b, vectors of words; `kind` is the numba dtype of the words."""
    if kind == types.float32:
        return builder.call(_fma(builder), (a, b, total))
    pairs = ir.VectorType(_BFloat(), 2 * LANES)
    shape = ir.FunctionType(FLOATS, (FLOATS, pairs, pairs))
    call = cgutils.get_or_insert_function(builder.module, shape, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(call, (total, builder.bitcast(a, pairs), builder.bitcast(b, pairs)))


def _element(kind: Any) -> Any:
    return F32 if kind == types.float32 else I32


def _splat(builder: Any, scalar: Any) -> Any:
    nothing = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
    one = builder.insert_element(nothing, scalar, I32(0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(I32, LANES), [0] * LANES))


def _widened(builder: Any, stored: Any, value: Any, wide: Any, whole: Any) -> Any:
    """Convert stored elements (a scalar or a vector) to float32.

    `wide` and `whole` are the float32 and int32 types of that shape.
    """
    if stored == types.uint16:
        bits = builder.zext(value, whole)
        by = I32(16) if whole is I32 else ir.Constant(whole, [16] * LANES)
        return builder.bitcast(builder.shl(bits, by), wide)
    if stored == types.int16:
        half = ir.HalfType() if whole is I32 else ir.VectorType(ir.HalfType(), LANES)
        return builder.fpext(builder.bitcast(value, half), wide)
    return value


def _loop(
    builder: Any, initial: Values, limit: Any, step: int, body: Callable[[Any, Values], Values]
) -> Values:
    """Emit a loop over k = 0, step, ... < limit, at least once; sums become body(k, sums)."""
    before = builder.block
    loop, done = builder.append_basic_block("words"), builder.append_basic_block("end")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(I64)
    sums = [builder.phi(FLOATS) for _ in initial]
    new = body(k, sums)
    following = builder.add(k, I64(step))
    for phi, first, later in zip((k, *sums), (I64(0), *initial), (following, *new), strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, limit), loop, done)
    builder.position_at_end(done)
    return new


@intrinsic
def product(
    context: Any,
    like: Any,
    a: Any,
    a_row: Any,
    b: Any,
    b_row: Any,
    c: Any,
    c_row: Any,
    depth: Any,
    add: Any,
) -> Any:
    """Compute c[ROWS, PANEL] (+)= a[ROWS, depth] b[depth, PANEL].

    `like` is an array of the words' dtype; a and b are int64 addresses of words, c of float32;
    *_row are strides in units of 4 bytes.
    """
    kind = like.dtype

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, a, a_row, b, b_row, c, c_row, depth, add = args
        spots = [
            _pointer(builder, c, builder.add(builder.mul(c_row, I64(i)), I64(j * LANES)), FLOATS)
            for i in range(ROWS)
            for j in (0, 1)
        ]
        adding = builder.icmp_signed("!=", add, I64(0))
        initial = [builder.select(adding, builder.load(s, align=4), ZERO) for s in spots]
        lines = [builder.mul(a_row, I64(i)) for i in range(ROWS)]

        def body(k: Any, sums: Values) -> Values:
            at, vector = builder.mul(k, b_row), ir.VectorType(_element(kind), LANES)
            right = [
                builder.load(_pointer(builder, b, builder.add(at, I64(j * LANES)), vector), align=4)
                for j in (0, 1)
            ]
            new = []
            for i in range(ROWS):
                left = _splat(
                    builder,
                    builder.load(
                        _pointer(builder, a, builder.add(k, lines[i]), _element(kind)), align=4
                    ),
                )
                new += [_multiply(builder, kind, left, right[j], sums[2 * i + j]) for j in (0, 1)]
            return new

        for spot, value in zip(spots, _loop(builder, initial, depth, 1, body), strict=True):
            builder.store(value, spot, align=4)
        return _context.get_dummy_value()

    return types.void(like, *(types.int64,) * 8), build


def tile_of(rows: int, *, widened: bool = False) -> Callable[..., Any]:
    """Return a function that computes c[rows, PANEL] = a[rows, depth] b[depth, PANEL].

    A sum has the same bits for every `rows`. A unit is a pair of bfloat16 if the processor
    multiplies pairs, else a single stored element. In the function, `like` is a pointer to the
    stored dtype of a and b; a, b and c are int64 addresses; a_row and depth are in units, and depth
    is not 0; c is float32, with contiguous rows. With `widened`, a is float32 unless a unit is a
    pair: to convert its elements once for each column would take half of the time.
    """

    @intrinsic
    def tile(context: Any, like: Any, a: Any, a_row: Any, b: Any, c: Any, depth: Any) -> Any:
        stored = _unit(like)
        kind, size = (
            (types.uint32 if stored == types.uint32 else types.float32),
            stored.bitwidth // 8,
        )
        single = F32 if stored == types.float32 else ir.IntType(8 * size)
        vector = ir.VectorType(single, LANES)

        def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _, a, a_row, b, c, depth = args
            lines = [builder.mul(a_row, I64(i)) for i in range(rows)]

            def loaded(address: Any, index: Any, pointee: Any, wide: Any, whole: Any) -> Any:
                value = builder.load(_pointer(builder, address, index, pointee, size), align=size)
                return _widened(builder, stored, value, wide, whole)

            def element(index: Any) -> Any:
                if widened and kind == types.float32:
                    return builder.load(_pointer(builder, a, index, F32), align=4)
                return loaded(a, index, single, F32, I32)

            def body(k: Any, sums: Values) -> Values:
                at = [builder.add(builder.mul(k, I64(PANEL)), I64(j * LANES)) for j in (0, 1)]
                right = [loaded(b, n, vector, FLOATS, ir.VectorType(I32, LANES)) for n in at]
                left = [_splat(builder, element(builder.add(k, line))) for line in lines]
                return [
                    _multiply(builder, kind, x, right[j], sums[2 * i + j])
                    for i, x in enumerate(left)
                    for j in (0, 1)
                ]

            for n, value in enumerate(_loop(builder, [ZERO] * (2 * rows), depth, 1, body)):
                builder.store(value, _pointer(builder, c, I64(n * LANES), FLOATS), align=4)
            return _context.get_dummy_value()

        return types.void(like, *(types.int64,) * 5), build

    return tile


def _unit(like: Any) -> Any:
    """Return the type of a unit of a stored dtype (see `tile_of`)."""
    return types.uint32 if like.dtype == types.uint16 and PAIRS else like.dtype


@intrinsic
def unit_of(context: Any, like: Any) -> Any:
    """Return the bytes of a unit (see `tile_of`)."""
    size = _unit(like).bitwidth // 8
    return types.int64(like), lambda _context, builder, signature, args: I64(size)


@intrinsic
def scratch(context: Any) -> Any:
    """Return the address of SCRATCH float32 on the stack of the calling function."""

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = cgutils.alloca_once(builder, ir.ArrayType(F32, SCRATCH))
        return builder.ptrtoint(place, I64)

    return types.int64(), build


@intrinsic
def narrow_panel(context: Any, like: Any, sums: Any, out: Any) -> Any:
    """Round PANEL float32 to bfloat16, if `like` is that and the processor has an instruction for
    it; returns whether. `sums` and `out` are int64 addresses."""
    fits = PAIRS and like.dtype == types.uint16

    def build(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if fits:
            half = ir.VectorType(_BFloat(), LANES)
            call = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(half, (FLOATS,)),
                "llvm.x86.avx512bf16.cvtneps2bf16.512",
            )
            for j in (0, 1):
                line = builder.load(_pointer(builder, args[1], I64(j * LANES), FLOATS), align=4)
                place = _pointer(builder, args[2], I64(j * LANES), half, 2)
                builder.store(builder.call(call, (line,)), place, align=2)
        return ir.Constant(ir.IntType(1), int(fits))

    return types.boolean(like, types.int64, types.int64), build


@intrinsic
def dots(context: Any, like: Any, a: Any, b: Any, b_row: Any, depth: Any, out: Any) -> Any:
    """Compute out[LANES] = b[LANES, depth] a[depth]; arguments as in `product`.

    depth must be a multiple of LANES.
    """
    kind = like.dtype

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, a, b, b_row, depth, out = args
        vector = ir.VectorType(_element(kind), LANES)

        def body(k: Any, sums: Values) -> Values:
            left = builder.load(_pointer(builder, a, k, vector), align=4)
            at = [
                _pointer(builder, b, builder.add(k, builder.mul(b_row, I64(i))), vector)
                for i in range(LANES)
            ]
            return [
                _multiply(builder, kind, left, builder.load(p, align=4), s)
                for p, s in zip(at, sums, strict=True)
            ]

        sums = _loop(builder, [ZERO] * LANES, depth, LANES, body)
        masks = [
            ir.Constant(ir.VectorType(I32, LANES), list(range(odd, 2 * LANES, 2))) for odd in (0, 1)
        ]
        # add adjacent elements of two vectors; the last vector has the sums in order
        while len(sums) > 1:
            halves = [
                [builder.shuffle_vector(x, y, m) for m in masks]
                for x, y in zip(sums[::2], sums[1::2], strict=True)
            ]
            sums = [builder.fadd(even, odd) for even, odd in halves]
        builder.store(sums[0], _pointer(builder, out, I64(0), FLOATS), align=4)
        return _context.get_dummy_value()

    return types.void(like, *(types.int64,) * 5), build


@intrinsic
def blend(
    context: Any, like: Any, v: Any, v_row: Any, w: Any, w_row: Any, c: Any, c_row: Any, depth: Any
) -> Any:
    """Compute c[HEADS, PANEL] += w[HEADS, depth] v[depth, PANEL].

    v is stored as `like`; w and c are float32.
    """
    stored = like.dtype
    size = stored.bitwidth // 8

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, v, v_row, w, w_row, c, c_row, depth = args
        at = [
            builder.add(builder.mul(c_row, I64(i)), I64(j * LANES))
            for i in range(HEADS)
            for j in (0, 1)
        ]
        spots = [_pointer(builder, c, n, FLOATS) for n in at]
        vector = FLOATS if size == 4 else ir.VectorType(I16, LANES)

        def body(k: Any, sums: Values) -> Values:
            row = builder.mul(k, v_row)
            places = [
                _pointer(builder, v, builder.add(row, I64(j * LANES)), vector, size) for j in (0, 1)
            ]
            whole = ir.VectorType(I32, LANES)
            right = [
                _widened(builder, stored, builder.load(p, align=size), FLOATS, whole)
                for p in places
            ]
            new = []
            for i in range(HEADS):
                left = _splat(
                    builder,
                    builder.load(
                        _pointer(builder, w, builder.add(k, builder.mul(w_row, I64(i))), F32)
                    ),
                )
                new += [
                    builder.call(_fma(builder), (left, right[j], sums[2 * i + j])) for j in (0, 1)
                ]
            return new

        initial = [builder.load(s, align=4) for s in spots]
        for spot, value in zip(spots, _loop(builder, initial, depth, 1, body), strict=True):
            builder.store(value, spot, align=4)
        return _context.get_dummy_value()

    return types.void(like, *(types.int64,) * 7), build


@intrinsic
def highest(context: Any, address: Any, count: Any) -> Any:
    """Return the highest of `count` float32 at an address; count is a multiple of LANES, not 0."""

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def body(k: Any, sums: Values) -> Values:
            value = builder.load(_pointer(builder, args[0], k, FLOATS), align=4)
            return [builder.select(builder.fcmp_ordered(">", value, sums[0]), value, sums[0])]

        lowest = ir.Constant(FLOATS, [float("-inf")] * LANES)
        (top,) = _loop(builder, [lowest], args[1], LANES, body)
        shape = ir.FunctionType(F32, (FLOATS,))
        reduce = cgutils.get_or_insert_function(
            builder.module, shape, f"llvm.vector.reduce.fmax.v{LANES}f32"
        )
        return builder.call(reduce, (top,))

    return types.float32(types.int64, types.int64), build


def _power(builder: Any, x: Any) -> Any:
    """2**x for a vector of float32 x <= 0, as `machine.exp2`."""

    def all_lanes(value: float) -> Any:
        return ir.Constant(FLOATS, [value] * LANES)

    whole = ir.VectorType(I32, LANES)
    low = all_lanes(-127.0)
    x = builder.select(builder.fcmp_ordered(">", x, low), x, low)
    shifted = builder.fadd(x, all_lanes(ROUNDING))
    part = builder.fsub(x, builder.fsub(shifted, all_lanes(ROUNDING)))
    found = all_lanes(POWERS[0])
    for factor in POWERS[1:]:
        found = builder.call(_fma(builder), (found, part, all_lanes(factor)))
    bias = ir.Constant(whole, [ROUNDING_BITS - 127] * LANES)
    exponent = builder.sub(builder.bitcast(shifted, whole), bias)
    bits = builder.shl(exponent, ir.Constant(whole, [23] * LANES))
    return builder.fmul(found, builder.bitcast(bits, FLOATS))


@intrinsic
def weigh_words(
    context: Any, like: Any, scores: Any, weights: Any, count: Any, scale: Any, top: Any
) -> Any:
    """Write weights 2**(score * scale - top) as words; returns their sum, before they are rounded.

    Args:
        like: an array of words, whose dtype selects their form
        scores, weights: int64 addresses of float32, and of words
        count: scores, a multiple of LANES, not 0
        scale, top: float32; no scaled score is above top
    """

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, scores, weights, count, scale, top = args
        factor, most = _splat(builder, scale), _splat(builder, builder.fneg(top))
        paired = signature.args[0].dtype == types.uint32
        whole, halves = ir.VectorType(I32, LANES), ir.VectorType(I16, LANES)

        def body(k: Any, sums: Values) -> Values:
            score = builder.load(_pointer(builder, scores, k, FLOATS), align=4)
            found = _power(builder, builder.call(_fma(builder), (score, factor, most)))
            if paired:  # two bfloat16 that follow each other are a word
                bits = builder.add(
                    builder.bitcast(found, whole), ir.Constant(whole, [0x8000] * LANES)
                )
                kept = builder.lshr(bits, ir.Constant(whole, [16] * LANES))
                place = _pointer(builder, weights, k, halves, 2)
                builder.store(builder.trunc(kept, halves), place, align=2)
            else:
                builder.store(found, _pointer(builder, weights, k, FLOATS), align=4)
            return [builder.fadd(sums[0], found)]

        (total,) = _loop(builder, [ZERO], count, LANES, body)
        shape = ir.FunctionType(F32, (F32, FLOATS))
        reduce = cgutils.get_or_insert_function(
            builder.module, shape, f"llvm.vector.reduce.fadd.v{LANES}f32"
        )
        return builder.call(reduce, (F32(0.0), total), fastmath=("reassoc",))

    return types.float32(like, *(types.int64,) * 3, types.float32, types.float32), build


@intrinsic
def pointer(context: Any, like: Any, address: Any) -> Any:
    """Convert an address to a pointer to the elements of `like`, without reference counting."""
    found = types.CPointer(like.dtype)

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[1], _context.get_value_type(found))

    return found(like, types.int64), build


@intrinsic
def word(context: Any, stored: Any) -> Any:
    """Convert a stored element to a word."""
    found = types.uint32 if stored == types.uint32 else types.float32

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _widened(builder, stored, args[0], F32, I32)

    return found(stored), build


@intrinsic
def prefetch(context: Any, address: Any) -> Any:
    """Prefetch the cache line at an int64 address, which need not be valid."""

    def build(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        shape = ir.FunctionType(ir.VoidType(), (pointer, I32, I32, I32))
        call = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0")
        builder.call(call, (builder.inttoptr(args[0], pointer), I32(0), I32(3), I32(1)))
        return _context.get_dummy_value()

    return types.void(types.int64), build
