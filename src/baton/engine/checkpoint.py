"""A Hugging Face checkpoint directory: its config, its tensors one at a time, and the identity of
its weights.

Config and headers are read without torch, which takes seconds to import, so that a bad checkpoint
is reported at once.
"""

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from safetensors import SafetensorError, safe_open

from baton.core.errors import ConfigError
from baton.core.memory.state import Interval
from baton.engine.quantization.interface import Stored, TensorSource, WeightFormat
from baton.engine.quantization.methods import format_of
from baton.engine.text_part import text_config, text_tensors

if TYPE_CHECKING:
    import torch

MODELOPT = "hf_quant_config.json"
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
SAMPLE_BYTES, SAMPLES = 4096, 16


class Checkpoint:
    """A checkpoint made by `open`. It reads one tensor at a time and keeps no file mapped.

    Attributes:
        config: config.json; of a model that also sees images, the part about its text model
        tensors: how each tensor of the model is stored, by the name that the model has for it
    """

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any],
        tensors: Mapping[str, TensorSource],
        stored: Mapping[str, Stored],
        form: WeightFormat | None,
    ) -> None:
        self.directory, self.config, self.tensors = directory, config, tensors
        self._stored, self._form = stored, form

    @classmethod
    def open(cls, directory: Path) -> "Checkpoint":
        """Read config and tensor headers.

        Raises:
            ConfigError: the directory, config.json or safetensors are missing, or a file is damaged
        """
        if not directory.is_dir():
            raise ConfigError(
                f"model directory {directory} does not exist; give a directory "
                "with config.json and *.safetensors"
            )
        config = text_config(_read_json(directory / "config.json"))
        modelopt = directory / MODELOPT
        form = format_of(directory, config, _read_json(modelopt) if modelopt.is_file() else None)
        stored: dict[str, Stored] = {}
        for file in _weight_files(directory):
            stored |= _headers(file)
        tensors = _sources(stored, form)
        return cls(directory, config, text_tensors(config, tensors), stored, form)

    def load(
        self,
        name: str,
        dtype: "torch.dtype",
        *,
        rows: Interval | None = None,
        columns: Interval | None = None,
    ) -> "torch.Tensor":
        """Read a tensor, or only some rows and columns of it, into its own memory, as `dtype`.

        Raises:
            ConfigError: the tensor is missing, or smaller than the rows and columns
        """
        import torch

        source = self.tensors.get(name)
        if source is None:
            raise ConfigError(
                f"{self.directory} has no tensor {name!r}, which its architecture needs"
            )
        cuts = [c for c in (rows, columns) if c is not None]
        if any(
            c.end > size
            for c, size in zip((rows, columns), source.shape, strict=False)
            if c is not None
        ):
            raise ConfigError(
                f"{source.file}: tensor {name!r} has shape {source.shape}; the "
                f"config asks for {cuts} of it"
            )
        part = source.load(_Reader(), rows, columns)
        # A copy: a mapped tensor would change with the file while it is served.
        return torch.empty(part.shape, dtype=dtype).copy_(part)

    def identity(self, served_dtype: str) -> str:
        """Return the weights identity, in hex; it is the same on every rank of every layout.

        It is BLAKE2b over (name, stored dtype, shape, 16 spread 4-KB samples) of every tensor in
        order of name, and the served dtype; of quantised weights also their format, because equal
        bytes may mean different weights.
        """
        import torch

        read, digest = _Reader(), blake2b(served_dtype.encode(), digest_size=32)
        if self._form is not None:
            digest.update(type(self._form).__name__.encode() + msgspec.json.encode(self._form))
        for name in sorted(self._stored):
            stored = self._stored[name]
            digest.update(f"\0{name}\0{stored.dtype}\0{stored.shape}\0".encode())
            raw = read(stored).reshape(-1).view(torch.uint8).numpy()
            last = max(0, raw.size - SAMPLE_BYTES)
            for i in range(SAMPLES):
                at = last * i // (SAMPLES - 1)
                digest.update(raw[at : at + SAMPLE_BYTES].tobytes())
        return digest.hexdigest()


class _Reader:
    """Implements ReadStored. It opens each file once, because that parses all of its header."""

    def __init__(self) -> None:
        self._files: dict[Path, Any] = {}

    def __call__(
        self, stored: Stored, rows: Interval | None = None, columns: Interval | None = None
    ) -> "torch.Tensor":
        try:
            file = self._files.get(stored.file)
            if file is None:
                file = self._files[stored.file] = safe_open(stored.file, framework="pt")
            if rows is None and columns is None:
                tensor: torch.Tensor = file.get_tensor(stored.name)
                return tensor
            wanted = [slice(None) if c is None else slice(c.start, c.end) for c in (rows, columns)]
            part: torch.Tensor = file.get_slice(stored.name)[tuple(wanted[: len(stored.shape)])]
            return part
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{stored.file} is damaged: {error}; fetch it again") from error


def _sources(stored: Mapping[str, Stored], form: WeightFormat | None) -> dict[str, TensorSource]:
    """Return the tensors that the stored ones make; a part of a quantised one is none itself."""
    found: dict[str, TensorSource] = dict(stored)
    for name, source in ({} if form is None else form.find(stored)).items():
        for part in source.parts:
            del found[part.name]
        found[name] = source
    return found


def _weight_files(directory: Path) -> list[Path]:
    """Return the weight files: those in the index, else model.safetensors, else all *.safetensors.

    Some models have copies in other formats beside model.safetensors.
    """
    index = directory / INDEX
    if index.is_file():
        placed = _read_json(index).get("weight_map")
        if (
            not isinstance(placed, dict)
            or not placed
            or not all(isinstance(n, str) for n in placed.values())
        ):
            raise ConfigError(f"{index} has no weight_map from tensors to files; fetch it again")
        files = sorted({directory / n for n in placed.values()})
        if missing := [f.name for f in files if not f.is_file()]:
            raise ConfigError(
                f"{index} names {', '.join(missing)}, not there; fetch the model again"
            )
        return files
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    if files := sorted(directory.glob("*.safetensors")):
        return files
    raise ConfigError(
        f"{directory} holds no *.safetensors file; convert the weights to safetensors first"
    )


def _headers(path: Path) -> dict[str, Stored]:
    try:
        with safe_open(path, framework="np") as file:
            found = {}
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                part = file.get_slice(name)
                found[name] = Stored(name, path, part.get_dtype(), tuple(part.get_shape()))
            return found
    except (SafetensorError, OSError) as error:
        held = f"{path.stat().st_size} bytes" if path.is_file() else "no file"
        raise ConfigError(
            f"{path} ({held}) is damaged or not a safetensors file: {error}; fetch it again"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist; the model directory is not complete") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} does not hold a JSON object")
    return data
