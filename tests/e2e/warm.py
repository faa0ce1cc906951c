"""Imported by servers that fork processes: kernels are compiled, or loaded, once, and not by every
child at the same time."""

from baton.cli.kernels import compile_kernels
from baton.core.memory.state import DType

compile_kernels(DType.F32)
