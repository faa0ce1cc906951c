"""Rotary position embedding (Su et al. 2021), half-split form, with Llama 3's frequency scaling (model card, 2024)."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from baton.core.errors import ConfigError


def _plain(inverse: torch.Tensor, _: Mapping[str, Any]) -> torch.Tensor:
    return inverse


def _llama3(inverse: torch.Tensor, p: Mapping[str, Any]) -> torch.Tensor:
    """Long wavelengths are divided by `factor`, short ones kept, those between blended."""
    old = p["original_max_position_embeddings"]
    wave = 2 * math.pi / inverse
    smooth = (old / wave - p["low_freq_factor"]) / (p["high_freq_factor"] - p["low_freq_factor"])
    blended = (1 - smooth) * inverse / p["factor"] + smooth * inverse
    kept = torch.where(wave > old / p["low_freq_factor"], inverse / p["factor"], inverse)
    between = torch.logical_and(wave <= old / p["low_freq_factor"], wave >= old / p["high_freq_factor"])
    return torch.where(between, blended, kept)


def _linear(inverse: torch.Tensor, p: Mapping[str, Any]) -> torch.Tensor:
    return inverse / float(p["factor"])


SCALINGS: Mapping[str, Callable[[torch.Tensor, Mapping[str, Any]], torch.Tensor]] = {
    "default": _plain,
    "linear": _linear,
    "llama3": _llama3,
}


class Rope:
    """Cosines and sines for all positions, computed once: float32 [max_positions, dim / 2] each."""

    def __init__(self, config: Mapping[str, Any], *, dim: int) -> None:
        parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        kind = str(parameters.get("rope_type", parameters.get("type", "default")))
        if kind not in SCALINGS:
            raise ConfigError(f"rope type {kind!r} is not supported; supported are {sorted(SCALINGS)}")
        theta = float(parameters.get("rope_theta", config.get("rope_theta", 10_000.0)))
        inverse = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        inverse = SCALINGS[kind](inverse, parameters)
        angles = torch.arange(int(config["max_position_embeddings"]), dtype=torch.float32)[:, None] * inverse
        self.cos, self.sin = angles.cos(), angles.sin()
