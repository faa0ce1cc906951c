"""Published checkpoints as data: config.json as it is on the Hugging Face Hub, without what says nothing
about the computation (tokens, dropout, names of classes), and the names of the tensors.

In names, {i} is a layer, {e} an expert, and (a|b) one of several. `small` replaces sizes of the config, and
lists that have an entry for each layer or frequency.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Config = Mapping[str, Any]

ENDS = ("model.embed_tokens.weight", "model.norm.weight")
HEAD = ("lm_head.weight",)
NORMS = ("(input|post_attention)_layernorm.weight",)
ATTENTION = ("self_attn.(q|k|v|o)_proj.weight",)
HEAD_NORMS = ("self_attn.(q|k)_norm.weight",)
MLP = ("mlp.(gate|up|down)_proj.weight",)
DENSE = (*NORMS, *ATTENTION, *MLP)
EXPERTS = ("mlp.gate.weight", "mlp.experts.{e}.(gate|up|down)_proj.weight")


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """One published checkpoint.

    Attributes:
        config, small: see above
        layers: the tensors of a layer, for each kind of layer; a name without a prefix
        kinds: the kind of each of the small model's layers
        others: tensors outside of layers
        prefix: of a layer's tensors
        unused: tensors that are there and are not needed
        skipped: prefixes of tensors of parts that are not served
        quantised: method of tests.engine.quantization that the release is stored in; None = as it is
    """

    config: Config
    small: Config
    layers: Sequence[Sequence[str]]
    kinds: Sequence[int] = (0, 0)
    others: Sequence[str] = (*ENDS, *HEAD)
    prefix: str = "model.layers.{i}."
    unused: Sequence[str] = ()
    skipped: tuple[str, ...] = ()
    quantised: str | None = None


def llama(**more: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        **more,
    }


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
LLAMA31 = llama(
    hidden_size=4096,
    intermediate_size=14336,
    max_position_embeddings=131072,
    mlp_bias=False,
    num_attention_heads=32,
    num_hidden_layers=32,
    num_key_value_heads=8,
    rms_norm_eps=1e-05,
    rope_scaling=LLAMA3,
    rope_theta=500000.0,
    vocab_size=128256,
)
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}
HEADS = {**SIZES, "head_dim": 16}
MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_act": "silu",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
QWEN2_LAYER = (*DENSE, "self_attn.(q|k|v)_proj.bias")
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_MOE = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
FEW_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
PHI3 = {
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": 2047,
    "tie_word_embeddings": False,
    "vocab_size": 32064,
}
PHI3_LAYER = (*NORMS, "self_attn.(qkv|o)_proj.weight", "mlp.(gate_up|down)_proj.weight")
GEMMA3_LAYER = (*DENSE, *HEAD_NORMS, "(pre|post)_feedforward_layernorm.weight")
SIGLIP = {
    "hidden_size": 1152,
    "image_size": 896,
    "intermediate_size": 4304,
    "model_type": "siglip_vision_model",
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
    "vision_use_head": False,
}
SMALL_VISION = {
    "hidden_size": 32,
    "image_size": 28,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
}
DEEPSEEK = {
    "attention_bias": False,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
SMALL_DEEPSEEK = {
    **SIZES,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 40,
}
LATENT = (
    "self_attn.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj|o_proj).weight",
    "self_attn.(q_a|kv_a)_layernorm.weight",
)
INDEXER = (
    "self_attn.indexer.(wq_b|wk|weights_proj|k_norm).weight",
    "self_attn.indexer.k_norm.bias",
)
SHARED = ("mlp.shared_experts.(gate|up|down)_proj.weight",)
BIASED_GATE = ("mlp.gate.e_score_correction_bias",)
DEEPSEEK_LAYERS = ((*NORMS, *LATENT, *MLP), (*NORMS, *LATENT, *EXPERTS, *SHARED, *BIASED_GATE))
SPARSE_LAYERS = tuple((*layer, *INDEXER) for layer in DEEPSEEK_LAYERS)
# the layer for multi-token prediction
NEXT = (
    "model.layers.3.(eh_proj|enorm|hnorm|embed_tokens|shared_head.head|shared_head.norm).weight",
)
GLM5 = {
    **DEEPSEEK,
    "architectures": ["GlmMoeDsaForCausalLM"],
    "head_dim": 64,
    "hidden_size": 6144,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_topk": 2048,
    "indexer_rope_interleave": True,
    "intermediate_size": 12288,
    "max_position_embeddings": 202752,
    "model_type": "glm_moe_dsa",
    "n_group": 1,
    "num_attention_heads": 64,
    "num_hidden_layers": 78,
    "num_key_value_heads": 64,
    "q_lora_rank": 2048,
    "qk_head_dim": 256,
    "qk_nope_head_dim": 192,
    "rms_norm_eps": 1e-05,
    "rope_interleave": True,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "rope_scaling": None,
    "rope_theta": None,
    "topk_group": 1,
    "v_head_dim": 256,
    "vocab_size": 154880,
}
for key in ("rope_scaling", "rope_theta"):
    del GLM5[key]
SMALL_INDEX = {"index_topk": 20, "index_head_dim": 28, "index_n_heads": 16}
SMALL_GLM5 = {**SMALL_DEEPSEEK, **SMALL_INDEX, "head_dim": 8, "qk_head_dim": 20}
DELTA = (
    "linear_attn.(A_log|dt_bias)",
    "linear_attn.(conv1d|norm|out_proj|in_proj_qkvz|in_proj_ba).weight",
)
DELTA_APART = (
    "linear_attn.(A_log|dt_bias)",
    "linear_attn.(conv1d|norm|out_proj|in_proj_qkv|in_proj_z|in_proj_b|in_proj_a).weight",
)
SHARED_EXPERT = ("mlp.shared_expert.(gate|up|down)_proj.weight", "mlp.shared_expert_gate.weight")
QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "decoder_sparse_step": 1,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "model_type": "qwen3_next",
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
SMALL_HYBRID = {
    **SIZES,
    "head_dim": 32,
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
}
MROPE = {
    "mrope_interleaved": True,
    "mrope_section": [11, 11, 10],
    "rope_type": "default",
    "rope_theta": 10000000,
    "partial_rotary_factor": 0.25,
}
QWEN35_TEXT = {
    "attention_bias": False,
    "attn_output_gate": True,
    "dtype": "bfloat16",
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "model_type": "qwen3_5_text",
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "num_attention_heads": 24,
    "num_hidden_layers": 64,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "vocab_size": 248320,
    "mamba_ssm_dtype": "float32",
    "rope_parameters": MROPE,
}
QWEN35 = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "image_token_id": 248056,
    "model_type": "qwen3_5",
    "text_config": QWEN35_TEXT,
    "tie_word_embeddings": False,
    "vision_config": {
        "deepstack_visual_indexes": [],
        "depth": 27,
        "hidden_size": 1152,
        "in_channels": 3,
        "intermediate_size": 4304,
        "model_type": "qwen3_5",
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": 5120,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}
QWEN35_MOE_TEXT = {
    **{key: value for key, value in QWEN35_TEXT.items() if key != "intermediate_size"},
    "hidden_size": 2048,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
    "linear_num_value_heads": 32,
    "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
}
QWEN35_MOE = {
    **QWEN35,
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "text_config": QWEN35_MOE_TEXT,
    "vision_config": {**QWEN35["vision_config"], "model_type": "qwen3_5_moe"},
}
SMALL_35 = {
    **SMALL_HYBRID,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "rope_parameters": {**MROPE, "mrope_section": [2, 1, 1]},
}
SMALL_35_MOE = {
    **{key: value for key, value in SMALL_35.items() if key != "intermediate_size"},
    **FEW_EXPERTS,
    "shared_expert_intermediate_size": 48,
}
SMALL_35_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": 64,
}
IN_MODEL = {
    "prefix": "model.language_model.layers.{i}.",
    "others": ("model.language_model.(embed_tokens|norm).weight", *HEAD),
    "skipped": ("model.visual.",),
    "unused": ("mtp.(fc|norm|pre_fc_norm_hidden|layers.0.self_attn.q_proj).weight",),
}
IN_LANGUAGE_MODEL = {
    "prefix": "language_model.model.layers.{i}.",
    "others": ("language_model.model.(embed_tokens|norm).weight",),
    "skipped": ("vision_tower.", "multi_modal_projector."),
}
FACTORS = [1.0 + 0.37 * i for i in range(8)]
RELEASES: dict[str, Release] = {
    "meta-llama/Llama-2-7b-hf": Release(
        config=llama(
            hidden_size=4096,
            intermediate_size=11008,
            max_position_embeddings=4096,
            num_attention_heads=32,
            num_hidden_layers=32,
            num_key_value_heads=32,
            rms_norm_eps=1e-05,
            vocab_size=32000,
        ),
        small={**SIZES, "num_key_value_heads": 4},
        layers=[DENSE],
        unused=("model.layers.(0|1).self_attn.rotary_emb.inv_freq",),
    ),
    "meta-llama/Llama-3.1-8B": Release(config=LLAMA31, small=SIZES, layers=[DENSE]),
    "meta-llama/Llama-3.2-1B": Release(
        config={
            **LLAMA31,
            "head_dim": 64,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "rope_scaling": {**LLAMA3, "factor": 32.0},
            "tie_word_embeddings": True,
        },
        small=HEADS,
        layers=[DENSE],
        others=ENDS,
    ),
    "HuggingFaceTB/SmolLM2-135M-Instruct": Release(
        config=llama(
            hidden_size=576,
            intermediate_size=1536,
            is_llama_config=True,
            max_position_embeddings=8192,
            mlp_bias=False,
            num_attention_heads=9,
            num_hidden_layers=30,
            num_key_value_heads=3,
            rms_norm_eps=1e-05,
            rope_interleaved=False,
            rope_theta=100000,
            tie_word_embeddings=True,
            vocab_size=49152,
        ),
        small=SIZES,
        layers=[DENSE],
        others=ENDS,
    ),
    "mistralai/Mistral-7B-v0.1": Release(
        config={
            **MISTRAL,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "max_position_embeddings": 32768,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "vocab_size": 32000,
        },
        small={**SIZES, "sliding_window": 20},
        layers=[DENSE],
    ),
    "mistralai/Mistral-Nemo-Instruct-2407": Release(
        config={
            **MISTRAL,
            "head_dim": 128,
            "hidden_size": 5120,
            "intermediate_size": 14336,
            "max_position_embeddings": 1024000,
            "num_hidden_layers": 40,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "vocab_size": 131072,
        },
        small={**SIZES, "head_dim": 24},
        layers=[DENSE],
    ),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": Release(
        config={
            "architectures": ["Mistral3ForConditionalGeneration"],
            "image_token_index": 10,
            "model_type": "mistral3",
            "multimodal_projector_bias": False,
            "projector_hidden_act": "gelu",
            "spatial_merge_size": 2,
            "text_config": {
                "head_dim": 128,
                "hidden_act": "silu",
                "hidden_size": 5120,
                "intermediate_size": 32768,
                "max_position_embeddings": 131072,
                "model_type": "mistral",
                "num_attention_heads": 32,
                "num_hidden_layers": 40,
                "num_key_value_heads": 8,
                "rms_norm_eps": 1e-05,
                "rope_theta": 1000000000.0,
                "sliding_window": None,
                "vocab_size": 131072,
            },
            "vision_config": {
                "head_dim": 64,
                "hidden_act": "gelu",
                "hidden_size": 1024,
                "image_size": 1540,
                "intermediate_size": 4096,
                "model_type": "pixtral",
                "num_attention_heads": 16,
                "num_hidden_layers": 24,
                "patch_size": 14,
            },
            "vision_feature_layer": -1,
        },
        small={
            "text_config": {**SIZES, "head_dim": 24},
            "vision_config": {**SMALL_VISION, "head_dim": 16},
        },
        layers=[DENSE],
        **{
            **IN_LANGUAGE_MODEL,
            "others": (*IN_LANGUAGE_MODEL["others"], "language_model.lm_head.weight"),
        },
    ),
    "HuggingFaceTB/SmolLM3-3B": Release(
        config={
            "architectures": ["SmolLM3ForCausalLM"],
            "attention_bias": False,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "layer_types": ["full_attention"] * 36,
            "max_position_embeddings": 65536,
            "max_window_layers": 28,
            "mlp_bias": False,
            "model_type": "smollm3",
            "no_rope_layer_interval": 4,
            "no_rope_layers": [1, 1, 1, 0] * 9,
            "num_attention_heads": 16,
            "num_hidden_layers": 36,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 5000000.0,
            "sliding_window": None,
            "use_sliding_window": False,
            "vocab_size": 128256,
        },
        small={
            **SIZES,
            "num_hidden_layers": 4,
            "layer_types": ["full_attention"] * 4,
            "no_rope_layers": [1, 1, 1, 0],
        },
        layers=[DENSE],
        kinds=(0,) * 4,
        others=ENDS,
    ),
    "Qwen/Qwen2.5-7B-Instruct-AWQ": Release(
        config=QWEN2, small=SIZES, layers=[QWEN2_LAYER], quantised="awq"
    ),
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8": Release(
        config=QWEN2, small=SIZES, layers=[QWEN2_LAYER], quantised="gptq 8 bits"
    ),
    "Qwen/Qwen3-0.6B": Release(
        config=QWEN3, small=HEADS, layers=[(*DENSE, *HEAD_NORMS)], others=ENDS
    ),
    "Qwen/Qwen3-32B-FP8-Static-PerTensor": Release(
        config={**QWEN3, "tie_word_embeddings": False},
        small=HEADS,
        layers=[(*DENSE, *HEAD_NORMS)],
        unused=("model.layers.0.self_attn.(k_proj.k_scale|v_proj.v_scale|q_proj.input_scale)",),
        quantised="modelopt",
    ),
    "Qwen/Qwen3-30B-A3B-FP8": Release(
        config=QWEN3_MOE,
        small={**HEADS, **FEW_EXPERTS},
        layers=[(*NORMS, *ATTENTION, *HEAD_NORMS, *EXPERTS)],
        quantised="fp8 blocks",
    ),
    "microsoft/Phi-3-mini-4k-instruct": Release(
        config=PHI3,
        small={**SIZES, "num_key_value_heads": 4, "sliding_window": 20},
        layers=[PHI3_LAYER],
    ),
    "microsoft/Phi-3-mini-128k-instruct": Release(
        config={
            **PHI3,
            "max_position_embeddings": 131072,
            "rope_scaling": {"long_factor": [], "short_factor": [], "type": "longrope"},
            "sliding_window": 262144,
        },
        small={
            **SIZES,
            "num_key_value_heads": 4,
            "rope_scaling": {
                "long_factor": FACTORS,
                "short_factor": FACTORS[::-1],
                "type": "longrope",
            },
        },
        layers=[PHI3_LAYER],
    ),
    "microsoft/phi-4": Release(
        config={
            **PHI3,
            "hidden_size": 5120,
            "intermediate_size": 17920,
            "max_position_embeddings": 16384,
            "num_attention_heads": 40,
            "num_hidden_layers": 40,
            "num_key_value_heads": 10,
            "original_max_position_embeddings": 16384,
            "rope_theta": 250000,
            "sliding_window": None,
            "vocab_size": 100352,
        },
        small=SIZES,
        layers=[PHI3_LAYER],
    ),
    "microsoft/Phi-4-mini-instruct": Release(
        config={
            **PHI3,
            "full_attn_mod": 1,
            "interpolate_factor": 1,
            "lm_head_bias": False,
            "max_position_embeddings": 131072,
            "mlp_bias": False,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "partial_rotary_factor": 0.75,
            "rope_scaling": {"long_factor": [], "short_factor": [], "type": "longrope"},
            "sliding_window": 262144,
            "tie_word_embeddings": True,
            "vocab_size": 200064,
        },
        small={
            **SIZES,
            "rope_scaling": {
                "long_factor": FACTORS[:6],
                "short_factor": FACTORS[5::-1],
                "type": "longrope",
            },
        },
        layers=[PHI3_LAYER],
        others=ENDS,
    ),
    "openai/gpt-oss-20b": Release(
        config={
            "architectures": ["GptOssForCausalLM"],
            "attention_bias": True,
            "experts_per_token": 4,
            "head_dim": 64,
            "hidden_act": "silu",
            "hidden_size": 2880,
            "initial_context_length": 4096,
            "intermediate_size": 2880,
            "layer_types": ["sliding_attention", "full_attention"] * 12,
            "max_position_embeddings": 131072,
            "model_type": "gpt_oss",
            "num_attention_heads": 64,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 24,
            "num_key_value_heads": 8,
            "num_local_experts": 32,
            "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "rope_type": "yarn",
                "truncate": False,
            },
            "rope_theta": 150000,
            "sliding_window": 128,
            "swiglu_limit": 7.0,
            "tie_word_embeddings": False,
            "vocab_size": 201088,
        },
        small={
            **HEADS,
            "intermediate_size": 32,
            "layer_types": ["sliding_attention", "full_attention"],
            "num_local_experts": 8,
            "sliding_window": 20,
        },
        layers=[
            (
                *NORMS,
                "self_attn.(q|k|v|o)_proj.(weight|bias)",
                "self_attn.sinks",
                "mlp.router.(weight|bias)",
                "mlp.experts.(gate_up|down)_proj_(blocks|scales|bias)",
            )
        ],
        quantised="mxfp4",
    ),
    "google/gemma-3-1b-it": Release(
        config={
            "architectures": ["Gemma3ForCausalLM"],
            "attention_bias": False,
            "attn_logit_softcapping": None,
            "cache_implementation": "hybrid",
            "final_logit_softcapping": None,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "max_position_embeddings": 32768,
            "model_type": "gemma3_text",
            "num_attention_heads": 4,
            "num_hidden_layers": 26,
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "rope_local_base_freq": 10000,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "vocab_size": 262144,
        },
        small={
            **HEADS,
            "num_key_value_heads": 1,
            "num_hidden_layers": 6,
            "sliding_window": 20,
        },
        layers=[GEMMA3_LAYER],
        kinds=(0,) * 6,
        others=ENDS,
    ),
    # What its config leaves out is transformers' default, heads and vocabulary among it.
    "google/gemma-3-4b-it": Release(
        config={
            "architectures": ["Gemma3ForConditionalGeneration"],
            "image_token_index": 262144,
            "mm_tokens_per_image": 256,
            "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "torch_dtype": "bfloat16",
            "vision_config": SIGLIP,
        },
        small={
            "mm_tokens_per_image": 4,
            "text_config": {
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_hidden_layers": 6,
                "sliding_window": 20,
            },
            "vision_config": SMALL_VISION,
        },
        layers=[GEMMA3_LAYER],
        kinds=(0,) * 6,
        **IN_LANGUAGE_MODEL,
    ),
    "google/gemma-3-27b-it": Release(
        config={
            "architectures": ["Gemma3ForConditionalGeneration"],
            "image_token_index": 262144,
            "mm_tokens_per_image": 256,
            "model_type": "gemma3",
            "text_config": {
                "head_dim": 128,
                "hidden_size": 5376,
                "intermediate_size": 21504,
                "model_type": "gemma3_text",
                "num_attention_heads": 32,
                "num_hidden_layers": 62,
                "num_key_value_heads": 16,
                "query_pre_attn_scalar": 168,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "torch_dtype": "bfloat16",
            "vision_config": SIGLIP,
        },
        small={
            "mm_tokens_per_image": 4,
            "text_config": {**HEADS, "num_hidden_layers": 6, "sliding_window": 20},
            "vision_config": SMALL_VISION,
        },
        layers=[GEMMA3_LAYER],
        kinds=(0,) * 6,
        **IN_LANGUAGE_MODEL,
    ),
    "mistralai/Mixtral-8x7B-v0.1": Release(
        config={
            **MISTRAL,
            "architectures": ["MixtralForCausalLM"],
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "max_position_embeddings": 32768,
            "model_type": "mixtral",
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "vocab_size": 32000,
        },
        small={**SIZES, "intermediate_size": 48},
        layers=[
            (
                *NORMS,
                *ATTENTION,
                "block_sparse_moe.gate.weight",
                "block_sparse_moe.experts.{e}.(w1|w2|w3).weight",
            )
        ],
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": Release(
        config=QWEN3_NEXT,
        small={**SMALL_HYBRID, **FEW_EXPERTS, "shared_expert_intermediate_size": 48},
        layers=[
            (*NORMS, *DELTA, *EXPERTS, *SHARED_EXPERT),
            (*NORMS, *ATTENTION, *HEAD_NORMS, *EXPERTS, *SHARED_EXPERT),
        ],
        kinds=(0, 0, 0, 1),
        unused=("mtp.(fc|norm|pre_fc_norm_hidden|layers.0.self_attn.q_proj).weight",),
    ),
    "Qwen/Qwen3.5-27B": Release(
        config=QWEN35,
        small={"text_config": SMALL_35, "vision_config": SMALL_35_VISION},
        layers=[(*NORMS, *DELTA_APART, *MLP), (*DENSE, *HEAD_NORMS)],
        kinds=(0, 0, 0, 1),
        **IN_MODEL,
    ),
    "Qwen/Qwen3.5-4B": Release(
        config={
            **QWEN35,
            "text_config": {**QWEN35_TEXT, "tie_word_embeddings": True},
            "tie_word_embeddings": True,
        },
        small={"text_config": SMALL_35, "vision_config": SMALL_35_VISION},
        layers=[(*NORMS, *DELTA_APART, *MLP), (*DENSE, *HEAD_NORMS)],
        kinds=(0, 0, 0, 1),
        **{**IN_MODEL, "others": IN_MODEL["others"][:1]},
    ),
    "Qwen/Qwen3.5-35B-A3B": Release(
        config=QWEN35_MOE,
        small={"text_config": SMALL_35_MOE, "vision_config": SMALL_35_VISION},
        layers=[
            (
                *NORMS,
                *mixer,
                "mlp.gate.weight",
                "mlp.experts.(gate_up|down)_proj",
                *SHARED_EXPERT,
            )
            for mixer in (DELTA_APART, (*ATTENTION, *HEAD_NORMS))
        ],
        kinds=(0, 0, 0, 1),
        **IN_MODEL,
    ),
    "Qwen/Qwen3.5-35B-A3B-FP8": Release(
        config=QWEN35_MOE,
        small={"text_config": SMALL_35_MOE, "vision_config": SMALL_35_VISION},
        layers=[
            (*NORMS, *mixer, *EXPERTS, *SHARED_EXPERT)
            for mixer in (DELTA_APART, (*ATTENTION, *HEAD_NORMS))
        ],
        kinds=(0, 0, 0, 1),
        quantised="fp8 blocks",
        **IN_MODEL,
    ),
    "deepseek-ai/DeepSeek-V2": Release(
        config={
            **DEEPSEEK,
            "architectures": ["DeepseekV2ForCausalLM"],
            "first_k_dense_replace": 1,
            "hidden_size": 5120,
            "intermediate_size": 12288,
            "model_type": "deepseek_v2",
            "moe_intermediate_size": 1536,
            "n_routed_experts": 160,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
            "num_experts_per_tok": 6,
            "num_hidden_layers": 60,
            "routed_scaling_factor": 16.0,
            "scoring_func": "softmax",
            "topk_group": 3,
            "topk_method": "group_limited_greedy",
            "vocab_size": 102400,
        },
        small=SMALL_DEEPSEEK,
        layers=[(*NORMS, *LATENT, *MLP), (*NORMS, *LATENT, *EXPERTS, *SHARED)],
        kinds=(0, 1, 1),
    ),
    "deepseek-ai/DeepSeek-V2-Lite": Release(
        config={
            **DEEPSEEK,
            "architectures": ["DeepseekV2ForCausalLM"],
            "first_k_dense_replace": 1,
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "model_type": "deepseek_v2",
            "moe_intermediate_size": 1408,
            "n_group": 1,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
            "num_attention_heads": 16,
            "num_experts_per_tok": 6,
            "num_hidden_layers": 27,
            "num_key_value_heads": 16,
            "q_lora_rank": None,
            "rope_scaling": {**DEEPSEEK["rope_scaling"], "mscale": 0.707, "mscale_all_dim": 0.707},
            "routed_scaling_factor": 1.0,
            "scoring_func": "softmax",
            "topk_group": 1,
            "topk_method": "greedy",
            "vocab_size": 102400,
        },
        small={key: value for key, value in SMALL_DEEPSEEK.items() if key != "q_lora_rank"},
        layers=[
            (
                *NORMS,
                "self_attn.(q_proj|kv_a_proj_with_mqa|kv_b_proj|o_proj|kv_a_layernorm).weight",
                *mlp,
            )
            for mlp in (MLP, (*EXPERTS, *SHARED))
        ],
        kinds=(0, 1, 1),
    ),
    "deepseek-ai/DeepSeek-V3": Release(
        config={
            **DEEPSEEK,
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
        },
        small=SMALL_DEEPSEEK,
        layers=DEEPSEEK_LAYERS,
        kinds=(0, 1, 1),
        unused=NEXT,
        quantised="fp8 blocks",
    ),
    "moonshotai/Kimi-K2-Instruct": Release(
        config={
            **DEEPSEEK,
            "architectures": ["DeepseekV3ForCausalLM"],
            "first_k_dense_replace": 1,
            "max_position_embeddings": 131072,
            "model_type": "kimi_k2",
            "n_group": 1,
            "n_routed_experts": 384,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "num_nextn_predict_layers": 0,
            "rope_scaling": {**DEEPSEEK["rope_scaling"], "beta_fast": 1.0, "factor": 32.0},
            "rope_theta": 50000.0,
            "routed_scaling_factor": 2.827,
            "topk_group": 1,
            "vocab_size": 163840,
        },
        small=SMALL_DEEPSEEK,
        layers=DEEPSEEK_LAYERS,
        kinds=(0, 1, 1),
        quantised="fp8 blocks",
    ),
    "deepseek-ai/DeepSeek-V3.2": Release(
        config={
            **DEEPSEEK,
            "architectures": ["DeepseekV32ForCausalLM"],
            "index_head_dim": 128,
            "index_n_heads": 64,
            "index_topk": 2048,
            "model_type": "deepseek_v32",
        },
        small={**SMALL_DEEPSEEK, **SMALL_INDEX},
        layers=SPARSE_LAYERS,
        kinds=(0, 1, 1),
        unused=NEXT,
        quantised="fp8 blocks",
    ),
    "zai-org/GLM-5": Release(
        config=GLM5, small=SMALL_GLM5, layers=SPARSE_LAYERS, kinds=(0, 1, 1), unused=NEXT
    ),
    "zai-org/GLM-5.2": Release(
        config={
            **GLM5,
            "head_dim": 192,
            "index_share_for_mtp_iteration": True,
            "index_skip_topk_offset": 3,
            "index_topk_freq": 4,
            "index_topk_pattern": None,
            "indexer_types": ["full"] * 3 + (["shared"] * 3 + ["full"]) * 18 + ["shared"] * 3,
            "max_position_embeddings": 1048576,
            "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 75,
            "moe_router_dtype": "float32",
            "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
        },
        small={
            **SMALL_GLM5,
            "indexer_types": ["full", "full", "shared"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
        },
        layers=[*SPARSE_LAYERS, DEEPSEEK_LAYERS[1]],
        kinds=(0, 1, 2),
        unused=NEXT,
    ),
}
