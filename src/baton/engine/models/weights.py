"""Which tensors a model needs, in what shape; all are checked against the files' headers before one is read."""

from collections.abc import Iterator, Sequence

import msgspec
import torch

from baton.core.errors import ConfigError
from baton.engine.checkpoint import Checkpoint
from baton.engine.ops import Linear, Ops

FLOATS = {"F64", "F32", "F16", "BF16"}  # safetensors' names of what can be read
LISTED = 3  # of unread tensors, named in the log


class Matrix(msgspec.Struct, frozen=True):
    """Matrices of a checkpoint over the same input, stacked in this order to one product.

    Attributes:
        parts: name and rows of each
        columns: elements of the input
    """

    parts: tuple[tuple[str, int], ...]
    columns: int
    biased: bool = False

    def tensors(self, at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of each tensor; names begin with `at`."""
        for name, rows in self.parts:
            yield f"{at}{name}.weight", (rows, self.columns)
            if self.biased:
                yield f"{at}{name}.bias", (rows,)


class Loader:
    """Reads tensors of a checkpoint in the served dtype."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, ops: Ops) -> None:
        self._checkpoint, self._dtype, self._ops = checkpoint, dtype, ops

    def __call__(self, name: str) -> torch.Tensor:
        """One tensor. Raises ConfigError if it cannot be read."""
        return self._checkpoint.load(name, self._dtype)

    def linear(self, at: str, matrix: Matrix) -> Linear:
        """The product. Raises ConfigError if a part cannot be read."""
        bias = self._stacked([f"{at}{name}.bias" for name, _ in matrix.parts]) if matrix.biased else None
        return self._ops.linear(self._stacked([f"{at}{name}.weight" for name, _ in matrix.parts]), bias)

    def _stacked(self, names: Sequence[str]) -> torch.Tensor:
        found = [self(name) for name in names]
        return torch.cat(found) if len(found) > 1 else found[0]


def require(checkpoint: Checkpoint, wanted: Sequence[tuple[str, tuple[int, ...]]]) -> None:
    """That a checkpoint has these tensors, as numbers and in these shapes.

    Raises:
        ConfigError: names the first that is missing or different
    """
    for name, shape in wanted:
        stored = checkpoint.tensors.get(name)
        if stored is None:
            raise ConfigError(f"{checkpoint.directory} has no tensor {name!r}, which its architecture needs; fetch it again")
        if stored.dtype not in FLOATS:
            raise ConfigError(
                f"{stored.file}: tensor {name!r} is stored as {stored.dtype}, which is quantised; "
                "supported are float32, bfloat16 and float16"
            )
        if stored.shape != shape:
            raise ConfigError(
                f"{stored.file}: tensor {name!r} has shape {list(stored.shape)} where config.json asks for {list(shape)}; "
                "weights and config do not belong together"
            )


def unread(checkpoint: Checkpoint, wanted: Sequence[tuple[str, tuple[int, ...]]], *, tied: bool) -> list[str]:
    """Tensors that nothing uses, without those that old checkpoints carry for no use (rope tables, copies of tied heads)."""
    known = {name for name, _ in wanted} | ({"lm_head.weight"} if tied else set())
    return sorted(n for n in checkpoint.tensors if n not in known and not n.endswith("rotary_emb.inv_freq"))
