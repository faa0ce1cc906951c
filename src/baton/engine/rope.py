"""Rotary position embedding (Su et al. 2021) in half-split form, and the scalings of checkpoints.

Angles depend only on the position, never on the current length of a sequence, so cached keys stay
valid, and prefill and decode agree. A method that needs a length (dynamic, longrope) gets the
maximum length of a request, as in vLLM.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch

from baton.core.errors import ConfigError

LARGEST = 1e38  # number of a config; models compute in float32, which holds little more


class RopeSettings(msgspec.Struct, frozen=True):
    """A rope with all its numbers resolved: ranks with equal settings rotate alike.

    Attributes:
        kind: key of SCALINGS
        dim: number of elements of a head that are rotated; they are the first
        theta: base; wavelengths are between 2 pi and about 2 pi theta
        numbers: further numbers of this kind
    """

    kind: str
    dim: int
    theta: float
    numbers: dict[str, float | tuple[float, ...]] = {}


class RopeConfig(msgspec.Struct, frozen=True):
    """The part of a config about the rope.

    Attributes:
        values: rope_parameters, or rope_scaling of older configs
        limit: max_position_embeddings
        longest: maximum length of a request
    """

    values: Mapping[str, Any]
    dim: int
    theta: float
    limit: int
    longest: int

    def number(self, name: str, default: float | None = None) -> float:
        """Return a positive number. Raises ConfigError if the value is not one."""
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
            raise ConfigError(
                f"config.json: rope parameter {name} is {str(value)[:80]}; expected is a positive "
                f"number below {LARGEST:g}"
            )
        return float(value)

    def original(self) -> float:
        """The length that the model was originally trained with."""
        return self.number("original_max_position_embeddings", self.limit)


Numbers = dict[str, float | tuple[float, ...]]


def _plain(_: RopeConfig) -> Numbers:
    return {}


def _linear(s: RopeConfig) -> Numbers:
    return {"factor": s.number("factor")}


def _llama3(s: RopeConfig) -> Numbers:
    found = {n: s.number(n) for n in ("factor", "low_freq_factor", "high_freq_factor")}
    return {**found, "original": s.original()}


def _dynamic(s: RopeConfig) -> Numbers:
    """Dynamic scaling: the plain rope within the trained
    length; else the base grows with `longest`."""
    if s.longest <= s.limit:
        return {"growth": 1.0}
    factor = s.number("factor")
    return {"growth": (factor * s.longest / s.limit - (factor - 1)) ** (s.dim / (s.dim - 2))}


def _strength(factor: float, weight: float) -> float:
    """Return YaRN's mscale; the scores of a scaled rope are multiplied by its square."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _yarn(s: RopeConfig) -> Numbers:
    original = s.original()
    factor = s.number("factor", s.limit / original)

    over, under = s.values.get("mscale"), s.values.get("mscale_all_dim")
    scale = _strength(factor, 1.0)
    if over and under:
        scale = _strength(factor, float(over)) / _strength(factor, float(under))

    def turns(count: float) -> float:
        """Return the (fractional) index of the frequency
        with `count` turns in the original length."""
        return s.dim * math.log(original / (count * 2 * math.pi)) / (2 * math.log(s.theta))

    fast, slow = turns(s.number("beta_fast", 32)), turns(s.number("beta_slow", 1))
    if s.values.get("truncate", True):
        fast, slow = math.floor(fast), math.ceil(slow)
    return {
        "factor": factor,
        "fast": float(max(fast, 0)),
        "slow": float(min(slow, s.dim - 1)),
        "scale": s.number("attention_factor", scale),
    }


def _longrope(s: RopeConfig) -> Numbers:
    original = s.original()
    name = "long_factor" if s.longest > original else "short_factor"
    factors = s.values.get(name)
    if (
        not isinstance(factors, list)
        or len(factors) != s.dim // 2
        or not all(isinstance(f, int | float) for f in factors)
    ):
        raise ConfigError(
            f"config.json: rope parameter {name} must be a list of {s.dim // 2} numbers"
        )
    factor = s.number("factor", s.limit / original)
    scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return {"factors": tuple(map(float, factors)), "scale": s.number("attention_factor", scale)}


def _by_llama3(inverse: torch.Tensor, n: Mapping[str, Any]) -> torch.Tensor:
    """Divide low frequencies by `factor`, keep high
    ones, blend between (Llama 3.1's model card)."""
    wave = 2 * math.pi / inverse
    smooth = (n["original"] / wave - n["low_freq_factor"]) / (
        n["high_freq_factor"] - n["low_freq_factor"]
    )
    blended = (1 - smooth) * inverse / n["factor"] + smooth * inverse
    kept = torch.where(wave > n["original"] / n["low_freq_factor"], inverse / n["factor"], inverse)
    between = (wave <= n["original"] / n["low_freq_factor"]) & (
        wave >= n["original"] / n["high_freq_factor"]
    )
    return torch.where(between, blended, kept)


def _by_yarn(inverse: torch.Tensor, n: Mapping[str, Any]) -> torch.Tensor:
    """Keep high frequencies, divide low ones by
    `factor`, with a ramp between (Peng et al. 2023)."""
    span = n["slow"] - n["fast"] or 0.001
    ramp = ((torch.arange(len(inverse), dtype=torch.float32) - n["fast"]) / span).clamp(0, 1)
    stretched: torch.Tensor = inverse / n["factor"] * ramp + inverse * (1 - ramp)
    return stretched


Resolve = Callable[[RopeConfig], Numbers]
Stretch = Callable[[torch.Tensor, Mapping[str, Any]], torch.Tensor]
SCALINGS: Mapping[str, tuple[Resolve, Stretch]] = {
    "default": (_plain, lambda inverse, _: inverse),
    "linear": (_linear, lambda inverse, n: inverse / n["factor"]),
    "dynamic": (_dynamic, lambda inverse, _: inverse),
    "llama3": (_llama3, _by_llama3),
    "yarn": (_yarn, _by_yarn),
    "longrope": (
        _longrope,
        lambda inverse, n: inverse / torch.tensor(n["factors"], dtype=torch.float32),
    ),
}
ALIASES = {"su": "longrope"}  # the name in early Phi-3 configs


def rope_source(config: Mapping[str, Any], *, dim: int, longest: int) -> tuple[str, RopeConfig]:
    """Return the rope kind of a config, and its values; `dim` is the size of a whole head.

    Raises:
        ConfigError: the kind is not supported
    """
    said = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(said, Mapping):
        raise ConfigError(
            f"config.json: rope_parameters (or rope_scaling) is {said!r}; expected is an object"
        )
    values = dict(said)
    for name in ("original_max_position_embeddings", "partial_rotary_factor"):
        if config.get(name) is not None:  # Phi-3's configs have it beside the other values
            values[name] = config[name]
    kind = str(values.get("rope_type", values.get("type", "default")))
    # some configs of Phi-3 call it "yarn"
    kind = "longrope" if "long_factor" in values else ALIASES.get(kind, kind)
    if kind not in SCALINGS:
        raise ConfigError(f"rope type {kind!r} is not supported; supported are {sorted(SCALINGS)}")
    theta, limit = (
        values.get("rope_theta", config.get("rope_theta", 10_000.0)),
        int(config["max_position_embeddings"]),
    )
    source = RopeConfig(values, dim, theta, limit, longest)
    return kind, msgspec.structs.replace(source, theta=source.number("rope_theta", theta))


def score_factor(config: Mapping[str, Any], *, dim: int) -> float:
    """Return the factor of the scores in DeepSeek's models.

    With a scaled rope it is the mscale of mscale_all_dim, squared; the rope itself is multiplied by
    mscale over mscale_all_dim.

    Raises:
        ConfigError: a value is not a number
    """
    kind, source = rope_source(config, dim=dim, longest=1)
    if kind == "default" or not source.values.get("mscale_all_dim"):
        return 1.0
    return _strength(source.number("factor"), source.number("mscale_all_dim")) ** 2


def rope_settings(config: Mapping[str, Any], *, dim: int, longest: int) -> RopeSettings:
    """Return the rope of a config, for heads of `dim` elements and requests of `longest` positions.

    Raises:
        ConfigError: the kind or a value is not supported
    """
    kind, whole = rope_source(config, dim=dim, longest=longest)
    part = whole.number("partial_rotary_factor", 1.0)
    turned = int(dim * part)
    if not 0 < turned <= dim or turned % 2:
        raise ConfigError(
            f"config.json: partial_rotary_factor {part} of {dim} elements is "
            f"{turned}, not an even part of them"
        )
    source = msgspec.structs.replace(whole, dim=turned)
    resolve, _ = SCALINGS[kind]
    return RopeSettings(kind, source.dim, source.theta, resolve(source))


def longest_by_rope(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return (default, largest) maximum length of a request. Raises ConfigError.

    YaRN states its factor over the original length, and published configs often leave
    max_position_embeddings at that length. Dynamic scaling can go beyond the trained length, with
    other angles than within it.
    """
    limit = int(config["max_position_embeddings"])
    kind, source = rope_source(config, dim=2, longest=limit)
    if kind == "yarn":
        original = source.original()
        reached = max(limit, int(original * source.number("factor", limit / original)))
        return reached, reached
    return limit, int(limit * source.number("factor")) if kind == "dynamic" else limit


class Rope:
    """Cosines and sines for all positions, computed once: float32 [positions, dim / 2] each."""

    def __init__(self, settings: RopeSettings, *, positions: int) -> None:
        numbers, self.dim = settings.numbers, settings.dim
        growth, scale = numbers.get("growth", 1.0), numbers.get("scale", 1.0)
        assert isinstance(growth, float)
        assert isinstance(scale, float)
        powers = torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim
        _, stretch = SCALINGS[settings.kind]
        inverse = stretch(1.0 / (settings.theta * growth) ** powers, numbers)
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * inverse
        self.cos, self.sin = angles.cos().mul_(scale), angles.sin().mul_(scale)

    def times(self, factor: float) -> "Rope":
        """Return a rope that also multiplies by `factor`."""
        found = copy.copy(self)
        found.cos, found.sin = self.cos * factor, self.sin * factor
        return found
