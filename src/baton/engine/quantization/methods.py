"""The table of quantisation methods, by the name in config.json's quantization_config."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from baton.core.errors import ConfigError
from baton.engine.quantization.awq import read_awq
from baton.engine.quantization.compressed import FORMATS, read_compressed
from baton.engine.quantization.gptq import read_gptq
from baton.engine.quantization.interface import Unserved, WeightFormat
from baton.engine.quantization.mxfp4 import Mxfp4
from baton.engine.quantization.scaled import Scaled

MODELOPT = "modelopt"


class Method(msgspec.Struct, frozen=True):
    """One method.

    Attributes:
        read: reads a quantization_config; raises Unserved
        served: what of the method is supported, for people; empty = all that is published
    """

    read: Callable[[Mapping[str, Any]], WeightFormat]
    served: str = ""


def _fp8(said: Mapping[str, Any]) -> Scaled:
    match said.get("weight_block_size"):
        case None:
            return Scaled()
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return Scaled(block=(rows, columns))
        case other:
            raise ConfigError(
                f"config.json: weight_block_size is {other!r}; expected are two "
                "whole numbers, rows and columns"
            )


def _modelopt(said: Mapping[str, Any]) -> Scaled:
    algorithm = said.get("quant_algo")
    if algorithm != "FP8":
        raise Unserved(f"{MODELOPT} ({algorithm or 'unknown'})")
    return Scaled()


METHODS: Mapping[str, Method] = {
    "awq": Method(read_awq, "4 bits, version gemm"),
    "compressed-tensors": Method(read_compressed, ", ".join(FORMATS)),
    "fbgemm_fp8": Method(lambda _: Scaled()),
    "fp8": Method(_fp8, "a scale for each tensor, channel or block"),
    "gptq": Method(read_gptq, "4 and 8 bits"),
    MODELOPT: Method(_modelopt, "FP8"),
    "mxfp4": Method(lambda _: Mxfp4()),
}


def served_methods() -> str:
    """Name all methods that are supported, for people."""
    return ", ".join(f"{name} ({m.served})" if m.served else name for name, m in METHODS.items())


def format_of(
    directory: Path, config: Mapping[str, Any], modelopt: Mapping[str, Any] | None
) -> WeightFormat | None:
    """Return the format of the quantised weights of a checkpoint; None = there are none.

    Args:
        directory: of the checkpoint, for messages
        config: config.json
        modelopt: hf_quant_config.json, in which ModelOpt states its method; None = no such file

    Raises:
        ConfigError: the method or one of its settings is not supported; the message names it and
            what is supported
    """
    said = config.get("quantization_config") or config.get("compression_config")
    if not said and modelopt is not None:
        found = modelopt.get("quantization")
        said = {"quant_method": MODELOPT, **(found if isinstance(found, dict) else {})}
    if not said:
        return None
    try:
        return _read(said)
    except Unserved as refused:
        raise ConfigError(
            f"{directory} is quantised with {refused}, which is not supported; supported are "
            f"checkpoints in float32, bfloat16, float16, {served_methods()}, and GGUF files "
            "(all served in --dtype)"
        ) from None


def _read(said: object) -> WeightFormat:
    if not isinstance(said, dict):
        raise Unserved(str(said))
    name = str(said.get("quant_method", MODELOPT if "quant_algo" in said else "an unknown method"))
    if name not in METHODS:
        raise Unserved(name)
    return METHODS[name].read(said)
