"""The text model inside a multimodal checkpoint: its settings, its tensors, and what is refused."""

from typing import Any

import pytest

from baton.core.errors import ConfigError
from baton.engine.models import FAMILIES
from baton.engine.text_part import TEXT_MODELS, text_config, text_tensors

GEMMA = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "awq"},
    "text_config": {"model_type": "gemma3_text", "hidden_size": 64},
    "vision_config": {"hidden_size": 32},
}
MISTRAL3: dict[str, Any] = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "tie_word_embeddings": True,
    "text_config": {"model_type": "mistral", "tie_word_embeddings": False},
}


def test_a_text_model_is_left_as_it_is() -> None:
    config = {"architectures": ["LlamaForCausalLM"], "text_config": {"hidden_size": 1}}
    tensors = {"model.norm.weight": 1, "language_model.model.norm.weight": 2}
    assert text_config(config) is config
    assert text_tensors(config, tensors) is tensors


def test_settings_are_those_of_the_text_model_and_those_beside_it_that_hold_for_it() -> None:
    assert text_config(GEMMA) == {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "awq"},
        "model_type": "gemma3_text",
        "hidden_size": 64,
    }


def test_what_the_text_model_says_itself_comes_first() -> None:
    assert text_config(MISTRAL3)["tie_word_embeddings"] is False
    said = {**MISTRAL3, "text_config": {"model_type": "mistral"}}
    assert text_config(said)["tie_word_embeddings"] is True


def test_tensors_get_the_names_of_a_text_model_whichever_version_wrote_them() -> None:
    names = [
        "language_model.model.embed_tokens.weight",
        "model.language_model.norm.weight",
        "language_model.lm_head.weight",
        "model.visual.blocks.0.attn.qkv.weight",
        "vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight",
        "model.vision_tower.encoder.layers.0.mlp.fc1.weight",
        "multi_modal_projector.linear_1.weight",
        "mtp.fc.weight",
    ]
    found = text_tensors(GEMMA, {name: name for name in names})
    assert found == {
        "model.embed_tokens.weight": names[0],
        "model.norm.weight": names[1],
        "lm_head.weight": names[2],
        "mtp.fc.weight": names[7],
    }
    assert list(text_tensors(GEMMA, {"lm_head.weight": 1})) == ["lm_head.weight"]


@pytest.mark.parametrize("text", [None, "mistral", {}, {"model_type": "ministral3"}])
def test_a_text_model_of_another_kind_is_named(text: object) -> None:
    """Ministral 3 has the architecture of Mistral Small 3.1, and scales its queries by position."""
    with pytest.raises(ConfigError, match="supported is 'mistral'") as caught:
        text_config({**MISTRAL3, "text_config": text})
    if isinstance(text, dict) and text:
        assert "ministral3" in str(caught.value)


def test_every_such_architecture_belongs_to_a_family() -> None:
    assert set(TEXT_MODELS) <= {name for family in FAMILIES for name in family.architectures}
