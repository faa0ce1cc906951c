"""Reads a model's tensors; names and shapes are checked against the headers before any is read."""

from collections.abc import Iterator, Sequence

import msgspec
import structlog
import torch

from baton.core.errors import ConfigError
from baton.core.memory.state import Interval
from baton.engine.checkpoint import Checkpoint
from baton.engine.comm import Comm
from baton.engine.ops import Linear, Ops
from baton.engine.quantization.methods import served_methods

log = structlog.get_logger()
FLOATS = {"F64", "F32", "F16", "BF16"}  # dtypes that can be read, by safetensors' names
# Tensors that published checkpoints have and that are not needed: rope tables, and scales for
# activations and caches that are quantised elsewhere.
USELESS = (
    "rotary_emb.inv_freq",
    ".input_scale",
    ".activation_scale",
    ".k_scale",
    ".v_scale",
    ".output_scale",
)
LISTED = 3  # most unread tensors that the log names


class Filed(msgspec.Struct, frozen=True):
    """One tensor of a checkpoint, with the outputs of one or more projections (Phi-3: q, k, v)."""

    name: str
    outputs: tuple[int, ...]


class Matrix(msgspec.Struct, frozen=True):
    """Matrices of a checkpoint over the same input, stacked in this order to one product.

    `columns` is the number of elements of the input.
    """

    parts: tuple[Filed, ...]
    columns: int
    biased: bool = False

    def tensors(self, at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of each tensor; names begin with `at`."""
        for part in self.parts:
            yield f"{at}{part.name}.weight", (sum(part.outputs), self.columns)
            if self.biased:
                yield f"{at}{part.name}.bias", (sum(part.outputs),)


class Loader:
    """Reads a rank's parts of a checkpoint in the served dtype."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, ops: Ops, comm: Comm) -> None:
        self._checkpoint, self.dtype, self.ops, self.comm = checkpoint, dtype, ops, comm

    def __call__(self, name: str, rows: Interval | None = None) -> torch.Tensor:
        """Read a tensor, or some of its rows. Raises ConfigError."""
        return self._checkpoint.load(name, self.dtype, rows=rows)

    def exactly(self, name: str) -> torch.Tensor:
        """Read a tensor in float32, for parameters that decide a choice. Raises ConfigError."""
        return self._checkpoint.load(name, torch.float32)

    def by_outputs(self, at: str, matrix: Matrix, *held: Interval) -> Linear:
        """Load a column-parallel product: this rank holds the outputs `held` of each projection.

        Raises:
            ConfigError: a tensor cannot be read
        """
        outputs = list(_rows(matrix, held))
        bias = (
            _joined([self(f"{at}{name}.bias", rows) for name, rows in outputs])
            if matrix.biased
            else None
        )
        return self.ops.linear(
            _joined([self(f"{at}{name}.weight", rows) for name, rows in outputs]), bias
        )

    def by_inputs(self, at: str, matrix: Matrix, held: Interval) -> Linear:
        """Load a row-parallel product: this rank holds the inputs `held`.

        The results of the ranks of a stage are summed; the bias is added once.
        """
        (part,) = matrix.parts
        weight = self._checkpoint.load(f"{at}{part.name}.weight", self.dtype, columns=held)
        biased = matrix.biased and self.comm.tp_rank == 0
        product = self.ops.linear(weight, self(f"{at}{part.name}.bias") if biased else None)
        return product if self.comm.tp == 1 else lambda x: self.comm.add_up(product(x))


def _rows(matrix: Matrix, held: Sequence[Interval]) -> Iterator[tuple[str, Interval]]:
    """Yield the tensor and the rows of the held outputs of each projection."""
    wanted = iter(held)
    for part in matrix.parts:
        first = 0
        for size in part.outputs:
            here = next(wanted)
            yield part.name, Interval(first + here.start, first + here.end)
            first += size


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(tensors)) if len(tensors) > 1 else tensors[0]


def require(checkpoint: Checkpoint, wanted: Sequence[tuple[str, tuple[int, ...]]]) -> None:
    """Check that a checkpoint has these tensors, with these shapes, as floats or quantised by its
    method.

    Raises:
        ConfigError: one is missing or different; the message names the first
    """
    for name, shape in wanted:
        stored = checkpoint.tensors.get(name)
        if stored is None:
            raise ConfigError(
                f"{checkpoint.directory} has no tensor {name!r}, which its "
                "architecture needs; fetch it again"
            )
        if not stored.quantised and stored.dtype not in FLOATS:
            raise ConfigError(
                f"{stored.file}: tensor {name!r} is stored as {stored.dtype}, and config.json "
                "states no method of quantisation for it; supported are float32, bfloat16, "
                f"float16, {served_methods()}"
            )
        if stored.shape != shape:
            raise ConfigError(
                f"{stored.file}: tensor {name!r} has shape {list(stored.shape)} where "
                f"config.json asks for {list(shape)}; "
                "weights and config do not belong together"
            )


def require_all(
    checkpoint: Checkpoint,
    wanted: Sequence[tuple[str, tuple[int, ...]]],
    *,
    tied: bool,
) -> None:
    """Check that a checkpoint has all tensors that a model reads.

    Tensors that are not used are named in the log.

    Raises:
        ConfigError: one is missing or different; the message names the first
    """
    require(checkpoint, wanted)
    if others := _unread(checkpoint, wanted, tied=tied):
        log.warning("tensors_not_used", count=len(others), first=others[:LISTED])


def _unread(
    checkpoint: Checkpoint, wanted: Sequence[tuple[str, tuple[int, ...]]], *, tied: bool
) -> list[str]:
    """Return unused tensors, without known useless ones."""
    known = {name for name, _ in wanted} | ({"lm_head.weight"} if tied else set())
    return sorted(n for n in checkpoint.tensors if n not in known and not n.endswith(USELESS))
