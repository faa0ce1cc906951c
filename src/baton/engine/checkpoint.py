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
from baton.engine.fp8 import FP8, Block, block_of, dequantised, scale_name

if TYPE_CHECKING:
    import torch

MODELOPT = "hf_quant_config.json"
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PACKINGS = ("mxfp4",)  # quantised formats that families dequantise at load
SAMPLE_BYTES, SAMPLES = 4096, 16


class Stored(msgspec.Struct, frozen=True):
    """The location of a tensor in its file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


class Checkpoint:
    """A checkpoint made by `open`. It reads one tensor at a time and keeps no file mapped.

    Attributes:
        config: config.json
        tensors: by name: location, stored dtype ("BF16", "F32", ...) and shape
        packing: one of PACKINGS, or None
        block: shape of the blocks of fp8 weights that share a scale; None = no such weights
    """

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any],
        tensors: Mapping[str, Stored],
        packing: str | None = None,
        block: Block | None = None,
    ) -> None:
        self.directory, self.config, self.tensors, self.packing, self.block = (
            directory,
            config,
            tensors,
            packing,
            block,
        )

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
        config = _read_json(directory / "config.json")
        method, block = _quantised(directory, config), block_of(config)
        if method is not None and method not in PACKINGS and block is None:
            raise ConfigError(
                f"{directory} is quantised with {method}, which is not supported; "
                "supported are checkpoints in float32, bfloat16, float16, "
                f"{', '.join(PACKINGS)} and fp8 with "
                "weight_block_size, and GGUF files (all served in --dtype)"
            )
        tensors: dict[str, Stored] = {}
        for file in _weight_files(directory):
            tensors |= _headers(file)
        return cls(directory, config, tensors, method if method in PACKINGS else None, block)

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
        part = self._mapped(name, rows, columns)
        if self.block is not None and self.tensors[name].dtype == FP8:
            part = self._unscaled(name, part, rows, columns, self.block)
        # A mapped tensor would change with the file while it is served.
        return part.to(dtype, copy=True)

    def _unscaled(
        self,
        name: str,
        part: "torch.Tensor",
        rows: Interval | None,
        columns: Interval | None,
        block: Block,
    ) -> "torch.Tensor":
        here = [
            cut or Interval(0, size)
            for cut, size in zip((rows, columns), self.tensors[name].shape, strict=True)
        ]
        blocks = [
            Interval(cut.start // size, -(-cut.end // size))
            for cut, size in zip(here, block, strict=True)
        ]
        scales = self._mapped(scale_name(name), *blocks)
        return dequantised(
            part, scales, block, first=(here[0].start % block[0], here[1].start % block[1])
        )

    def _mapped(
        self, name: str, rows: Interval | None = None, columns: Interval | None = None
    ) -> "torch.Tensor":
        stored = self.tensors.get(name)
        if stored is None:
            raise ConfigError(
                f"{self.directory} has no tensor {name!r}, which its architecture needs"
            )
        cuts = [c for c in (rows, columns) if c is not None]
        if any(
            c.end > size
            for c, size in zip((rows, columns), stored.shape, strict=False)
            if c is not None
        ):
            raise ConfigError(
                f"{stored.file}: tensor {name!r} has shape {stored.shape}; the "
                f"config asks for {cuts} of it"
            )
        try:
            with safe_open(stored.file, framework="pt") as file:
                if not cuts:
                    tensor: torch.Tensor = file.get_tensor(name)
                    return tensor
                wanted = [
                    slice(None) if c is None else slice(c.start, c.end) for c in (rows, columns)
                ]
                part: torch.Tensor = file.get_slice(name)[tuple(wanted[: len(stored.shape)])]
                return part
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{stored.file} is damaged: {error}; fetch it again") from error

    def identity(self, served_dtype: str) -> str:
        """Return the weights identity, in hex; it is the same on every rank of every layout.

        It is BLAKE2b over (name, stored dtype, shape, 16 spread 4-KB samples) of every tensor in
        order of name, and the served dtype.
        """
        import torch

        digest = blake2b(served_dtype.encode(), digest_size=32)
        for name in sorted(self.tensors):
            stored = self.tensors[name]
            digest.update(f"\0{name}\0{stored.dtype}\0{stored.shape}\0".encode())
            raw = self._mapped(name).reshape(-1).view(torch.uint8).numpy()
            last = max(0, raw.size - SAMPLE_BYTES)
            for i in range(SAMPLES):
                at = last * i // (SAMPLES - 1)
                digest.update(raw[at : at + SAMPLE_BYTES].tobytes())
        return digest.hexdigest()


def _quantised(directory: Path, config: Mapping[str, Any]) -> str | None:
    """Return the quantisation method (awq, gptq, fp8, ...) of a checkpoint, or None.

    It is read from transformers' config, or from ModelOpt's.
    """
    if found := config.get("quantization_config") or config.get("compression_config"):
        method = found.get("quant_method") if isinstance(found, dict) else found
        return str(method or "an unknown method")
    if (directory / MODELOPT).is_file():
        found = _read_json(directory / MODELOPT).get("quantization")
        method = found.get("quant_algo") if isinstance(found, dict) else None
        return f"modelopt ({method or 'unknown'})"
    return None


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
                found[name] = Stored(path, part.get_dtype(), tuple(part.get_shape()))
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
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} does not hold a JSON object")
    return data
