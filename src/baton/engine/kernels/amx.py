"""Products of bfloat16 pairs on tile registers (Intel's AMX), for kernels that multiply words.

A product is c[rows, PANEL] (+)= a[rows, depth] b[depth, PANEL], in words as in vectors.py, with up
to AMX_ROWS rows: two tiles of `a` and two of `b` give four of `c`. A sum has the same bits for any
number of rows. A thread configures its tiles before its first product, and leaves them after the
last one as a matrix library had them.
"""

from collections.abc import Callable
from typing import Any

import llvmlite.binding
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from baton.engine.kernels.vectors import PANEL

_FEATURES = llvmlite.binding.get_host_cpu_features()
# with 16 lanes, a panel has two tiles
FITS = bool(_FEATURES.get("amx-bf16") and _FEATURES.get("amx-tile")) and PANEL == 32
AMX_ROWS, AMX_DEPTH = 32, 16  # rows of a product; the depth is a multiple of this, in words
_TILE, _LINE = 16, 64  # rows of a tile, and bytes of each
_ROWS_AT = 48  # where a configuration has the rows of each tile
# palette 1, and the same shape for eight tiles: bytes of a row at 16
_SHAPES = bytes([1, *[0] * 15, *[_LINE, 0] * 8, *[0] * 16, *[_TILE] * 8, *[0] * 8])
I8, I64, NOTHING = ir.IntType(8), ir.IntType(64), ir.VoidType()
BYTES = I8.as_pointer()


def available() -> bool:
    """Whether this process may use tiles; asks the system for them."""
    return FITS and bool(torch.cpu._init_amx())


def _call(builder: Any, name: str, *arguments: Any) -> None:
    shape = ir.FunctionType(NOTHING, [argument.type for argument in arguments])
    builder.call(
        cgutils.get_or_insert_function(builder.module, shape, f"llvm.x86.{name}"), arguments
    )


def _at(builder: Any, address: Any, offset: Any) -> Any:
    return builder.inttoptr(builder.add(address, offset), BYTES)


@intrinsic
def begin_tiles(context: Any) -> Any:
    """Configure the tiles of this thread. Returns the address of the configuration before, which is
    on the stack of the calling function."""

    def build(_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        shapes = ir.ArrayType(I8, len(_SHAPES))
        before = builder.bitcast(cgutils.alloca_once(builder, shapes), BYTES)
        ours = cgutils.alloca_once_value(builder, ir.Constant(shapes, bytearray(_SHAPES)))
        _call(builder, "sttilecfg", before)
        _call(builder, "ldtilecfg", builder.bitcast(ours, BYTES))
        return builder.ptrtoint(before, I64)

    return types.int64(), build


@intrinsic
def shape_tiles(context: Any, rows: Any) -> Any:
    """Configure the tiles of this thread for products of 1 to AMX_ROWS rows."""

    def build(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        shapes = ir.ArrayType(I8, len(_SHAPES))
        ours = builder.bitcast(cgutils.alloca_once(builder, shapes), BYTES)
        builder.store(
            ir.Constant(shapes, bytearray(_SHAPES)), builder.bitcast(ours, shapes.as_pointer())
        )
        few = builder.icmp_signed("<=", args[0], I64(_TILE))
        upper = builder.select(few, args[0], I64(_TILE))
        lower = builder.select(few, I64(_TILE), builder.sub(args[0], I64(_TILE)))
        for tiles, count in (((0, 1, 4), upper), ((2, 3, 5), lower)):
            for tile in tiles:
                place = builder.gep(ours, (I64(_ROWS_AT + tile),))
                builder.store(builder.trunc(count, I8), place)
        _call(builder, "ldtilecfg", ours)
        return _context.get_dummy_value()

    return types.void(types.int64), build


@intrinsic
def end_tiles(context: Any, before: Any) -> Any:
    """Configure the tiles of this thread as they were."""

    def build(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _call(builder, "ldtilecfg", builder.inttoptr(args[0], BYTES))
        return _context.get_dummy_value()

    return types.void(types.int64), build


def product_of(halves: int) -> Callable[..., Any]:
    """Return the product of up to 16 * `halves` rows, as many as the tiles are configured for.

    In the function, a, b and c are int64 addresses, *_row strides in units of 4 bytes.
    """

    @intrinsic
    def multiply(
        context: Any,
        a: Any,
        a_row: Any,
        b: Any,
        b_row: Any,
        c: Any,
        c_row: Any,
        depth: Any,
        add: Any,
    ) -> Any:
        def build(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            a, a_row, b, b_row, c, c_row, depth, add = args
            a_step, b_step, c_step = (builder.mul(row, I64(4)) for row in (a_row, b_row, c_row))
            below = builder.mul(c_step, I64(_TILE))
            places = [
                _at(builder, c, builder.add(builder.mul(below, I64(i)), I64(_LINE * j)))
                for i in range(halves)
                for j in (0, 1)
            ]
            with builder.if_else(builder.icmp_signed("!=", add, I64(0))) as (adding, fresh):
                with adding:
                    for n, place in enumerate(places):
                        _call(builder, "tileloadd64", I8(n), place, c_step)
                with fresh:
                    for n in range(2 * halves):
                        _call(builder, "tilezero", I8(n))

            def step(k: Any) -> None:
                _multiply(builder, k, a, a_step, b, b_step, halves)

            _each_step(builder, depth, step)
            for n, place in enumerate(places):
                _call(builder, "tilestored64", I8(n), place, c_step)
            return _context.get_dummy_value()

        return types.void(*(types.int64,) * 8), build

    return multiply


tile_product = product_of(2)
half_product = product_of(1)


def _each_step(builder: Any, depth: Any, body: Callable[[Any], None]) -> None:
    """Emit a loop over k = 0, AMX_DEPTH, ... < depth."""
    before, loop, done = (
        builder.block,
        builder.append_basic_block("words"),
        builder.append_basic_block("end"),
    )
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(I64)
    body(k)
    following = builder.add(k, I64(AMX_DEPTH))
    k.add_incoming(I64(0), before)
    k.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, depth), loop, done)
    builder.position_at_end(done)


def _multiply(builder: Any, k: Any, a: Any, a_step: Any, b: Any, b_step: Any, halves: int) -> None:
    along, down = builder.mul(k, I64(4)), builder.mul(k, b_step)
    below = builder.mul(a_step, I64(_TILE))
    for n in range(halves):
        left = _at(builder, a, builder.add(along, builder.mul(below, I64(n))))
        _call(builder, "tileloadd64", I8(4 + n), left, a_step)
    for n in (0, 1):
        right = _at(builder, b, builder.add(down, I64(_LINE * n)))
        _call(builder, "tileloadd64", I8(6 + n), right, b_step)
    for n in range(2 * halves):
        _call(builder, "tdpbf16ps", I8(n), I8(4 + n // 2), I8(6 + n % 2))
