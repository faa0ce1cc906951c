"""Settings of configs that no family would obey: each is refused with the field or the value that
is wrong, before a weight is read. What is refused of weights is in test_checkpoint.py and
quantization/.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.tiny import make_tiny

from baton.core.errors import ConfigError
from baton.core.memory.state import DType
from baton.engine.checkpoint import Checkpoint
from baton.engine.models import FAMILIES
from baton.engine.models.base import family_of

SLIDES, SEES, LINEAR = "sliding_attention", "full_attention", "linear_attention"
SPIRAL = {"rope_type": "spiral", "rope_theta": 1e4, "factor": 2.0}
STRETCHED = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 0}
EVERY = {  # whatever the family
    "rope": ({"rope_parameters": SPIRAL, "rope_scaling": SPIRAL}, "spiral"),
    "rope that is a word": ({"rope_parameters": "yarn"}, "rope_parameters"),
    "rope factor": ({"rope_parameters": STRETCHED}, "factor"),
    "layers": ({"num_hidden_layers": 0}, "num_hidden_layers"),
    "heads": ({"num_attention_heads": "four"}, "num_attention_heads"),
    "vocabulary": ({"vocab_size": None}, "vocab_size"),
    "eps": ({"rms_norm_eps": -1}, "rms_norm_eps"),
    "positions": ({"max_position_embeddings": "long"}, "max_position_embeddings"),
}
FAMILIES_OF_TESTS = (
    "llama",
    "gpt_oss",
    "gemma3",
    "mixtral",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
)
FAMILIES_OF_TESTS += ("glm_moe_dsa", "qwen3_next", "qwen3_5", "qwen3_5_moe")
OWN: list[tuple[str, Mapping[str, Any], str]] = [
    ("llama", {"head_dim": 15}, "15"),
    ("gpt_oss", {"layer_types": [SLIDES]}, "layer_types"),
    ("gpt_oss", {"layer_types": [SLIDES, "chunked_attention"]}, "chunked_attention"),
    ("gpt_oss", {"layer_types": SLIDES}, "layer_types"),
    ("gpt_oss", {"sliding_window": None}, "sliding_window"),
    ("gpt_oss", {"sliding_window": -1}, "sliding_window"),
    ("gpt_oss", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
    ("gpt_oss", {"num_key_value_heads": 3}, "3 key and value heads"),
    ("gemma3", {"layer_types": [SLIDES, SEES, SLIDES]}, "4 layers"),
    ("gemma3", {"sliding_window": None}, "sliding_window"),
    ("gemma3", {"sliding_window": 2.5}, "sliding_window"),
    ("gemma3", {"layer_types": None, "sliding_window_pattern": 0}, "sliding_window_pattern"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma3", {"hidden_activation": "gelu"}, "gelu"),
    ("gemma3", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    (
        "gemma3",
        {"rope_parameters": {SLIDES: SPIRAL, SEES: {"rope_type": "default", "rope_theta": 1e4}}},
        "spiral",
    ),
    ("qwen3", {"use_sliding_window": False, "layer_types": [SEES, SLIDES]}, "sliding_window"),
    (
        "qwen2",
        {"use_sliding_window": True, "layer_types": None, "max_window_layers": "two"},
        "max_window_layers",
    ),
    ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok is 5"),
    ("mixtral", {"num_local_experts": 0}, "num_local_experts"),
    ("qwen3_moe", {"mlp_only_layers": "0"}, "mlp_only_layers"),
    ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
    ("qwen3_moe", {"moe_intermediate_size": None}, "moe_intermediate_size"),
    ("deepseek_v3", {"num_experts_per_tok": 9}, "9 experts"),
    ("deepseek_v3", {"kv_lora_rank": 0}, "kv_lora_rank"),
    ("deepseek_v3", {"n_shared_experts": -1}, "n_shared_experts"),
    ("deepseek_v32", {"index_n_heads": 0}, "index_n_heads"),
    ("deepseek_v32", {"index_topk": None}, "index_topk"),
    ("glm_moe_dsa", {"indexer_types": ["full", "odd", "full"]}, "indexer_types"),
    ("glm_moe_dsa", {"indexer_types": None, "index_topk_freq": "often"}, "index_topk_freq"),
    ("glm_moe_dsa", {"indexer_types": 3}, "indexer_types"),
    ("qwen3_next", {"layer_types": [LINEAR]}, "4 layers"),
    ("qwen3_next", {"layer_types": [LINEAR] * 4}, SEES),
    ("qwen3_next", {"layer_types": [LINEAR, SLIDES] * 2}, SLIDES),
    ("qwen3_next", {"layer_types": None, "full_attention_interval": 0}, "full_attention_interval"),
    ("qwen3_next", {"linear_num_value_heads": 3}, "3 value heads cannot share 2 key heads"),
    ("qwen3_next", {"linear_key_head_dim": 11}, "11"),
    ("qwen3_next", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
    ("qwen3_next", {"num_key_value_heads": 3}, "3 key and value heads"),
    ("qwen3_next", {"hidden_act": "gelu"}, "gelu"),
    ("qwen3_next", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
    ("qwen3_next", {"mlp_only_layers": [0.5]}, "mlp_only_layers"),
    ("qwen3_next", {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size"),
    ("qwen3_5", {"linear_num_key_heads": 3}, "4 value heads cannot share 3 key heads"),
    ("qwen3_5_moe", {"num_experts": 2}, "num_experts_per_tok is 3"),
]
CASES = [
    pytest.param(f, changes, named, id=f"{f} {what}")
    for f in FAMILIES_OF_TESTS
    for what, (changes, named) in EVERY.items()
]
CASES += [pytest.param(f, changes, named, id=f"{f} {named}") for f, changes, named in OWN]


@cache
def config_of(family: str) -> Mapping[str, Any]:
    with TemporaryDirectory() as directory:
        return Checkpoint.open(make_tiny(Path(directory), family)).config


@pytest.mark.parametrize(("family", "changes", "named"), CASES)
def test_a_setting_that_would_give_other_tokens_is_named(
    family: str, changes: Mapping[str, Any], named: str
) -> None:
    config = {**config_of(family), **changes}
    known = family_of(config, FAMILIES)
    with pytest.raises(ConfigError) as refused:
        known.table(config, block_tokens=16, dtype=DType.F32)
    assert named in str(refused.value)
