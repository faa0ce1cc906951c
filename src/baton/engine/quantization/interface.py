"""How a checkpoint stores a tensor of a model: as one tensor, or quantised, as several.

    config.json ──▶ WeightFormat ──find(stored tensors)──▶ name: Quantised ──load(rows, columns)──▶ float32

Formats read only headers, without torch, which takes seconds to import.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from baton.core.errors import ConfigError
from baton.core.memory.state import Interval

if TYPE_CHECKING:
    import torch


class Unserved(Exception):
    """A method or a setting of a method that is not supported; the text names it."""


class Stored(msgspec.Struct, frozen=True):
    """One tensor of a file, as its header describes it; `dtype` is safetensors' name."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def parts(self) -> Sequence["Stored"]:
        return (self,)

    @property
    def quantised(self) -> bool:
        return False

    def load(
        self, read: "ReadStored", rows: Interval | None, columns: Interval | None
    ) -> "torch.Tensor":
        return read(self, rows, columns)


class ReadStored(Protocol):
    """Reads some rows and columns (None = all) of a stored tensor, in its stored dtype."""

    def __call__(
        self, stored: Stored, rows: Interval | None = None, columns: Interval | None = None
    ) -> "torch.Tensor": ...


class TensorSource(Protocol):
    """A tensor of a model, as a checkpoint stores it."""

    @property
    def file(self) -> Path:
        """The file with its main part."""
        ...

    @property
    def dtype(self) -> str:
        """The stored dtype, or the name of the method."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that the model needs."""
        ...

    @property
    def parts(self) -> Sequence[Stored]:
        """The stored tensors that it is made of."""
        ...

    @property
    def quantised(self) -> bool:
        """Whether it is not stored as it is."""
        ...

    def load(
        self, read: ReadStored, rows: Interval | None, columns: Interval | None
    ) -> "torch.Tensor":
        """Return some rows and columns; of a quantised tensor in float32. Raises ConfigError."""
        ...


class WeightFormat(Protocol):
    """The form of a checkpoint's quantised tensors. Its fields are settings of config.json."""

    def find(self, stored: Mapping[str, Stored]) -> Mapping[str, TensorSource]:
        """Return the quantised tensors, by the names that the unquantised model has for them.

        Raises:
            ConfigError: a part of one is missing, or its parts do not fit together
        """
        ...


class Quantised(msgspec.Struct, frozen=True, kw_only=True):
    """What all quantised tensors have; `weight` is the main part."""

    weight: Stored
    shape: tuple[int, ...]

    @property
    def file(self) -> Path:
        return self.weight.file

    @property
    def quantised(self) -> bool:
        return True

    def cut(self, rows: Interval | None, columns: Interval | None) -> tuple[Interval, Interval]:
        """Return the rows and columns of a matrix; None stands for all."""
        return rows or Interval(0, self.shape[0]), columns or Interval(0, self.shape[1])


def part(stored: Mapping[str, Stored], name: str, of: Stored) -> Stored:
    """Return a stored tensor. Raises ConfigError if `of` lacks it."""
    if name not in stored:
        raise ConfigError(
            f"{of.file}: quantised tensor {of.name!r} has no {name!r} beside it; fetch it again"
        )
    return stored[name]


def require_shape(tensor: Stored, shape: tuple[int, ...], of: Stored) -> None:
    """Raise ConfigError if a part has not the shape that the main part asks for."""
    if tensor.shape != shape:
        raise ConfigError(
            f"{tensor.file}: tensor {tensor.name!r} has shape {list(tensor.shape)} where "
            f"{of.name!r} of shape {list(of.shape)} asks for {list(shape)}; weights and "
            "quantization_config of config.json do not belong together"
        )


def require_dtype(tensor: Stored, *dtypes: str) -> None:
    """Raise ConfigError if a part is not stored in one of these dtypes."""
    if tensor.dtype not in dtypes:
        raise ConfigError(
            f"{tensor.file}: tensor {tensor.name!r} is stored as {tensor.dtype}; its method of "
            f"quantisation asks for {' or '.join(dtypes)}"
        )
