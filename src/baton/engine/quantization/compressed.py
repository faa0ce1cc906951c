"""compressed-tensors: one quantization_config for several formats of weights."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from baton.engine.quantization.integers import BITS
from baton.engine.quantization.interface import Unserved, WeightFormat
from baton.engine.quantization.packed import Packed
from baton.engine.quantization.scaled import Scaled

Weights = Sequence[Mapping[str, Any]]  # of config_groups: how their weights are quantised
NAME = "compressed-tensors"


def _scaled(weights: Weights) -> Scaled:
    blocks = {tuple(w["block_structure"]) for w in weights if w.get("block_structure")}
    if len(blocks) > 1 or any(w.get("num_bits") != 8 for w in weights):
        raise Unserved(f"{NAME} whose groups of layers differ, or are not of 8 bits")
    if not blocks:
        return Scaled()
    match blocks.pop():
        case (int(rows), int(columns)) if rows > 0 and columns > 0:
            return Scaled(block=(rows, columns))
        case other:
            raise Unserved(f"{NAME} with block_structure {list(other)}")


def _packed(weights: Weights) -> Packed:
    bits = {w.get("num_bits") for w in weights}
    if len(bits) != 1 or not bits <= set(BITS):
        raise Unserved(f"{NAME} of {' and '.join(map(str, sorted(map(str, bits))))} bits")
    return Packed(bits=int(bits.pop() or 0))


FORMATS: Mapping[str, Callable[[Weights], WeightFormat]] = {
    "float-quantized": _scaled,
    "int-quantized": _scaled,
    "naive-quantized": _scaled,
    "pack-quantized": _packed,
}


def read_compressed(said: Mapping[str, Any]) -> WeightFormat:
    """Read a quantization_config. Raises Unserved."""
    name = str(said.get("format"))
    if name not in FORMATS:
        raise Unserved(f"{NAME} in format {name!r}")
    if said.get("transform_config"):
        raise Unserved(f"{NAME} with transform_config, which rotates weights")
    sparsity = said.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        raise Unserved(f"{NAME} with sparse weights")
    groups = said.get("config_groups")
    weights = [g.get("weights") for g in groups.values()] if isinstance(groups, dict) else []
    if not weights or not all(isinstance(w, dict) for w in weights):
        raise Unserved(f"{NAME} without weights in config_groups")
    return FORMATS[name](weights)
