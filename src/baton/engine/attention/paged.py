"""The cached rows of one layer, for compiled kernels: where they lie, and how rows are written.

A kernel is a function of a pointer to its job (job.py), whose type is that of the stored elements.
*Words* are explained in vectors.py; `unit` is a pointer of the type in which stored rows are read
to be multiplied: pairs of bfloat16, or single elements.
"""

from typing import Any

import numba
from llvmlite import ir
from numba import extending
from numba.core import types
from numba.np.numpy_support import carray

from baton.engine.kernels.job import Job, fields, reader
from baton.engine.kernels.machine import integers, pointer_to, size_of, typed
from baton.engine.kernels.vectors import word

compiled = numba.njit(nogil=True, cache=True, fastmath={"contract", "nsz"}, error_model="numpy")
# Always inlined. For a function that is called, a process that compiles has another copy than one
# that loads compiled code; since sums may be reordered, the two would differ in their last bits.
inlined = numba.njit(forceinline=True, fastmath={"contract", "nsz"}, error_model="numpy")
in_any_order = numba.njit(
    forceinline=True, fastmath={"contract", "nsz", "reassoc", "nnan"}, error_model="numpy"
)


@fields
class PagedJob(Job):
    """The location of one layer's cached rows, and the queries and outputs of a batch.

    A value is the first `wide` elements of its row. Strides are in stored elements.

    Attributes:
        pool: address of the pool
        base, block_stride, head_stride: start of the layer's first key, and strides
        part_stride: distance from a row's key to its value; 0 = they share the row (latent
            attention)
        tokens: tokens of a block
        dim, wide: elements of a row, and of a value
        kv_heads, group: kv heads, and query heads of each
        q, q_row: [rows, heads, dim], and the stride of rows
        out, out_row: [rows, heads, wide], is written, and the stride of rows
        sinks: float32 [kv heads, group], a score without a value for each head, times log2(e);
            LOW = none
        window: a row sees the last `window` positions up to its own
        scale: factor of the scores, times log2(e)
    """

    pool: int
    base: int
    block_stride: int
    head_stride: int
    part_stride: int
    tokens: int
    dim: int
    wide: int
    kv_heads: int
    group: int
    q: int
    q_row: int
    out: int
    out_row: int
    sinks: int
    window: int
    scale: float


@fields
class StoreJob(PagedJob):
    """The job of `store`; queries and outputs are not looked at.

    Attributes:
        rows: rows to write
        k, k_row, v, v_row: [rows, kv heads, dim] as stored, and their strides; a value has `wide`
            elements
        slots: int64 [rows], block * tokens + token
    """

    rows: int
    k: int
    k_row: int
    v: int
    v_row: int
    slots: int


_store_job = reader(StoreJob)


@extending.intrinsic
def pairs(context: Any, kind: Any) -> Any:
    """Return the unit of which two stored elements are one."""
    found = pointer_to(types.uint32)

    def build(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32).as_pointer())

    return found(kind), build


@extending.intrinsic
def words_of(context: Any, unit: Any, address: Any) -> Any:
    """Convert an address to a pointer to words: uint32 for pairs, else float32."""
    found = pointer_to(types.uint32 if unit.dtype == types.uint32 else types.float32)

    def build(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[1], context.get_value_type(found))

    return found(unit, types.int64), build


@compiled
def copy_words(unit, source, target, rows, width, step):  # type: ignore[no-untyped-def]
    """Convert rows of `width` units, which lie one behind the other, to words `step` apart."""
    for t in range(rows):
        row = carray(typed(unit, source + t * width * size_of(unit)), (width,))
        line = carray(words_of(unit, target + 4 * t * step), (width,))
        for d in range(width):
            line[d] = word(row[d])


def store(kind):  # type: ignore[no-untyped-def]
    """Make the kernel that writes rows to their places."""
    job, size = _store_job(kind), size_of(kind)
    slots = carray(integers(job.slots), (job.rows,))
    for n in range(job.rows):
        block, token = slots[n] // job.tokens, slots[n] % job.tokens
        first = block * job.block_stride + job.base + token * job.dim
        for h in range(job.kv_heads):
            at = first + h * job.head_stride
            keys = carray(typed(kind, job.pool + size * at), (job.dim,))
            k = carray(typed(kind, job.k + size * (n * job.k_row + h * job.dim)), (job.dim,))
            for d in range(job.dim):
                keys[d] = k[d]
            values = carray(typed(kind, job.pool + size * (at + job.part_stride)), (job.wide,))
            v = carray(typed(kind, job.v + size * (n * job.v_row + h * job.wide)), (job.wide,))
            for d in range(job.wide):
                values[d] = v[d]
