"""The text model inside a checkpoint of a model that also sees images.

config.json has the text model's settings in `text_config`; its tensors have a prefix, which differs
between versions of transformers. The tensors of the vision tower are left alone.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from baton.core.errors import ConfigError

# The supported model_type of the text model, by architecture.
TEXT_MODELS: Mapping[str, str] = {
    "Gemma3ForConditionalGeneration": "gemma3_text",
    "Mistral3ForConditionalGeneration": "mistral",
    "Qwen3_5ForConditionalGeneration": "qwen3_5_text",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe_text",
}
# Settings that config.json may have beside `text_config` and not in it.
SHARED = (
    "dtype",
    "torch_dtype",
    "tie_word_embeddings",
    "quantization_config",
    "compression_config",
)
# Prefixes of the text model's tensors, and what text models have in their place.
PREFIXES = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("lm_head.", "lm_head."),
    ("mtp.", "mtp."),  # the draft layer
)
T = TypeVar("T")


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the text model, under the architecture of the whole; of a text model
    all its settings.

    Raises:
        ConfigError: the text model is of another kind than the architecture's
    """
    name = _architecture(config)
    if name is None:
        return config
    text, kind = config.get("text_config"), TEXT_MODELS[name]
    if not isinstance(text, dict) or text.get("model_type") != kind:
        found = text.get("model_type") if isinstance(text, dict) else text
        raise ConfigError(
            f"config.json: the text model of {name} is {found!r}, which is not supported; "
            f"supported is {kind!r}"
        )
    shared = {key: config[key] for key in SHARED if key in config}
    return {**shared, **text, "architectures": [name]}


def text_tensors(config: Mapping[str, Any], tensors: Mapping[str, T]) -> Mapping[str, T]:
    """Return the tensors of the text model, by their names in a text model."""
    if _architecture(config) is None:
        return tensors
    return {
        own + name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        for prefix, own in PREFIXES
        if name.startswith(prefix)
    }


def _architecture(config: Mapping[str, Any]) -> str | None:
    named = config.get("architectures")
    names = named if isinstance(named, list) else []
    return next((name for name in names if isinstance(name, str) and name in TEXT_MODELS), None)
