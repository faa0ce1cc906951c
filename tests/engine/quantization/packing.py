"""Quantises matrices as the published tools do, in plain numpy, loop by loop: the oracle for what
Baton reads. Each function returns the tensors of one matrix, by the end of their names, and the
float32 matrix [outputs, inputs] that they mean.

    gptq    AutoGPTQ 0.7, nn_modules/qlinear/qlinear_cuda.py (pack); GPTQModel, utils/model.py (v2 to v1)
    awq     AutoAWQ 0.2, awq/modules/linear/gemm.py (from_linear)
    packed  compressed-tensors 0.20, compressors/pack_quantized
    scaled  compressed-tensors, float-quantized and int-quantized; blocks of DeepSeek-V3's report

All were compared once with these packages themselves.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Parts = dict[str, torch.Tensor]
Pack = Callable[[np.ndarray], tuple[Parts, np.ndarray]]


def pack_rows(levels: np.ndarray, bits: int) -> np.ndarray:
    """uint32 [ceil(rows * bits / 32), columns]: the first of a word in its lowest bits."""
    each = 32 // bits
    words = np.zeros((-(-len(levels) // each), levels.shape[1]), dtype=np.uint32)
    for row in range(len(levels)):
        words[row // each] |= levels[row].astype(np.uint32) << np.uint32(bits * (row % each))
    return words


def tensor(words: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(words).view(np.int32))


def levels_of(
    weight: np.ndarray, groups: np.ndarray, bits: int, *, symmetric: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Levels [outputs, inputs], zeros and float16 scales [outputs, groups], and what they mean."""
    top, count = 2**bits - 1, int(groups.max()) + 1
    zeros, scales = np.zeros((len(weight), count)), np.zeros((len(weight), count), np.float16)
    levels, meant = np.zeros(weight.shape), np.zeros(weight.shape, np.float32)
    for group in range(count):
        here = groups == group
        low = np.minimum(weight[:, here].min(1), 0)
        high = np.maximum(weight[:, here].max(1), 0)
        if symmetric:
            high = np.maximum(np.abs(low), high)
            low = -high
        scales[:, group] = (high - low) / top
        step = scales[:, group].astype(np.float32)
        zeros[:, group] = (top + 1) // 2 if symmetric else np.round(-low / step)
        found = np.round(weight[:, here] / step[:, None]) + zeros[:, group, None]
        levels[:, here] = found.clip(0, top)
        meant[:, here] = (levels[:, here] - zeros[:, group, None]).astype(np.float32) * step[
            :, None
        ]
    return levels, zeros, scales, meant


def gptq(
    bits: int = 4,
    *,
    group: int = 32,
    symmetric: bool = True,
    shuffled: bool = False,
    version: int = 1,
    order: bool = True,
) -> Pack:
    """`shuffled` as with desc_act; `order` whether g_idx is stored."""

    def pack(weight: np.ndarray) -> tuple[Parts, np.ndarray]:
        groups = np.arange(weight.shape[1]) // group
        if shuffled:
            groups = np.random.default_rng(weight.size).permutation(groups)
        levels, zeros, scales, meant = levels_of(weight, groups, bits, symmetric=symmetric)
        qzeros = pack_rows(zeros, bits).T
        if version == 1:
            qzeros = qzeros - np.uint32(sum(1 << at for at in range(0, 32, bits)))
        parts = {
            "qweight": tensor(pack_rows(levels.T, bits)),
            "qzeros": tensor(qzeros),
            "scales": torch.from_numpy(np.ascontiguousarray(scales.T)),
        }
        if order:
            parts["g_idx"] = torch.from_numpy(groups.astype(np.int32))
        return parts, meant

    return pack


def awq(group: int = 32) -> Pack:
    def words(levels: np.ndarray) -> torch.Tensor:
        """[rows, outputs] to int32 [rows, outputs / 8]."""
        found = np.zeros((len(levels), levels.shape[1] // 8), dtype=np.uint32)
        for column in range(found.shape[1]):
            for i, place in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
                one = levels[:, column * 8 + place].astype(np.uint32)
                found[:, column] |= one << np.uint32(4 * i)
        return tensor(found)

    def pack(weight: np.ndarray) -> tuple[Parts, np.ndarray]:
        groups = np.arange(weight.shape[1]) // (group if group > 0 else weight.shape[1])
        levels, zeros, scales, meant = levels_of(weight, groups, 4, symmetric=False)
        return {
            "qweight": words(levels.T),
            "qzeros": words(zeros.T),
            "scales": torch.from_numpy(np.ascontiguousarray(scales.T)),
        }, meant

    return pack


def packed(
    bits: int = 4,
    *,
    group: int = 32,
    symmetric: bool = True,
    shuffled: bool = False,
    zeros_as: str = "words",
) -> Pack:
    """`zeros_as`: "words", or "bytes" as compressed-tensors before 0.10 stored them."""

    def pack(weight: np.ndarray) -> tuple[Parts, np.ndarray]:
        groups = np.arange(weight.shape[1]) // (group if group > 0 else weight.shape[1])
        if shuffled:
            groups = np.random.default_rng(weight.size).permutation(groups)
        levels, zeros, scales, meant = levels_of(weight, groups, bits, symmetric=symmetric)
        parts = {
            "weight_packed": tensor(pack_rows(levels.T, bits).T),
            "weight_scale": torch.from_numpy(scales).to(torch.float32),
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            signed = torch.from_numpy(zeros - 2 ** (bits - 1)).to(torch.int8)
            words = tensor(pack_rows(zeros, bits))
            parts["weight_zero_point"] = words if zeros_as == "words" else signed
        if shuffled:
            parts["weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
        return parts, meant

    return pack


def e4m3_values() -> np.ndarray:
    """The number of each byte (Micikevicius et al. 2022): 4 bits of exponent with bias 7, 3 of
    mantissa; 0x7f and 0xff are not numbers."""
    found = np.zeros(256, np.float32)
    for byte in range(256):
        exponent, mantissa = byte >> 3 & 15, byte & 7
        size = (
            mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        )
        found[byte] = np.nan if byte & 0x7F == 0x7F else size * (-1) ** (byte >> 7)
    return found


E4M3 = e4m3_values()


def scaled(kind: str, step: tuple[int, int], suffix: str = "_scale", *, flat: bool = False) -> Pack:
    """`kind` "e4m3" or "int8"; `step` rows and columns that share a scale, 0 = all of them; `flat`:
    the scales have one dimension less for each `step` of 0."""

    def pack(weight: np.ndarray) -> tuple[Parts, np.ndarray]:
        rows, columns = (s or size for s, size in zip(step, weight.shape, strict=True))
        grid = np.zeros((-(-len(weight) // rows), -(-weight.shape[1] // columns)), np.float32)
        stored, meant = np.zeros(weight.shape, np.uint8), np.zeros(weight.shape, np.float32)
        for i in range(len(grid)):
            for j in range(grid.shape[1]):
                here = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
                block = weight[here]
                grid[i, j] = np.abs(block).max() / (448 if kind == "e4m3" else 127)
                if kind == "e4m3":
                    numbers = np.nan_to_num(E4M3, nan=np.inf)
                    distance = np.abs(block[..., None] / grid[i, j] - numbers)
                    stored[here] = distance.argmin(-1)
                    meant[here] = E4M3[stored[here]] * grid[i, j]
                else:
                    whole = np.round(block / grid[i, j]).astype(np.int8)
                    stored[here] = whole.view(np.uint8)
                    meant[here] = whole.astype(np.float32) * grid[i, j]
        as_type = torch.float8_e4m3fn if kind == "e4m3" else torch.int8
        keep = [size for size, s in zip(grid.shape, step, strict=True) if s] if flat else grid.shape
        scales = torch.from_numpy(grid).reshape(keep)
        return {"weight": torch.from_numpy(stored).view(as_type), f"weight{suffix}": scales}, meant

    return pack


def is_linear(name: str, weight: torch.Tensor) -> bool:
    """What published checkpoints quantise: matrices of layers, not norms, routers, embeddings and
    heads."""
    gates = ("mlp.gate.weight", "block_sparse_moe.gate.weight", "shared_expert_gate.weight")
    return "layers." in name and weight.dim() == 2 and not name.endswith(gates)


def rewrite(path: Path, pack: Pack, said: Mapping[str, Any], twin: Path) -> None:
    """Quantise the matrices of a checkpoint; `twin` gets the checkpoint with what they mean."""
    tensors = load_file(path / "model.safetensors")
    meant, stored = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if name.endswith(".weight") and is_linear(name, weight):
            parts, numbers = pack(weight.numpy())
            meant[name] = torch.from_numpy(numbers)
            del stored[name]
            stored |= {name.removesuffix("weight") + end: part for end, part in parts.items()}
    twin.mkdir()
    for file in path.iterdir():
        (twin / file.name).write_bytes(file.read_bytes())
    save_file(meant, twin / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text()) | {"quantization_config": said}
    (path / "config.json").write_text(json.dumps(config))
