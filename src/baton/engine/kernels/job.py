"""Jobs: the arguments of a kernel, as a struct that Python fills and compiled code reads."""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from llvmlite import ir
from numba import extending
from numba.core import types

S = TypeVar("S", bound=ctypes.Structure)
C_TYPES: Mapping[type, Any] = {int: ctypes.c_int64, float: ctypes.c_float}
COMPILED: Mapping[type, Any] = {int: types.int64, float: types.float32}


def fields(struct: type[S]) -> type[S]:
    """Make ctypes fields of a struct's annotations:
    `int` is int64 (also addresses), `float` float32."""
    struct._fields_ = [(name, C_TYPES[kind]) for name, kind in struct.__annotations__.items()]
    return struct


@fields
class Job(ctypes.Structure):
    """The base of all jobs.

    Attributes:
        next_item: the counter that hands out items to the threads of a team
    """

    next_item: int


def reader(struct: type[ctypes.Structure]) -> Callable[..., Any]:
    """Return a function by which compiled code views
    the struct at an int64 address or a pointer."""
    named: dict[str, type] = {}
    for base in reversed(struct.__mro__):
        if issubclass(base, ctypes.Structure) and base is not ctypes.Structure:
            named |= base.__annotations__
    record = types.Record.make_c_struct([(name, COMPILED[kind]) for name, kind in named.items()])

    def view(context: Any, address: Any) -> Any:
        def build(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            wanted = context.get_value_type(record)
            if isinstance(args[0].type, ir.PointerType):
                return builder.bitcast(args[0], wanted)
            return builder.inttoptr(args[0], wanted)

        return record(address), build

    return extending.intrinsic(view)
