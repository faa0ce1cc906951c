"""Tiny random checkpoints that look like real ones: config, weights, tokenizer, chat template.

    token 0..255    one byte each, in the byte-level alphabet
    256, 257        <|im_start|>, <|im_end|> (special; the second ends a turn)
    258             <|pad|> (special)
    259 ...         merges learned from SENTENCES

A random model's text is noise. It never ends by itself in greedy decoding (the logit of <|im_end|>
is always 0): a test that wants an end asks for it, by a limit, a stop string or another
`eos_token_id`.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

START, END, PAD = 256, 257, 258
SPECIALS = {"<|im_start|>": START, "<|im_end|>": END, "<|pad|>": PAD}
VOCABULARY = 320
SENTENCES = (
    "The first runner carries the request through its prompt and hands the baton over.",
    "A baton is either in one hand or in the other, and it is never dropped.",
    "What is the capital of France? The capital of France is Paris.",
    "Write a short story about a lighthouse keeper who counts the waves.",
    "def add(a, b):\n    return a + b\n",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


CLASSES = {
    "llama": "Llama",
    "mistral": "Mistral",
    "smollm3": "SmolLM3",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "phi3": "Phi3",
    "gpt_oss": "GptOss",
    "gemma3": "Gemma3",
    "mixtral": "Mixtral",
    "qwen3_moe": "Qwen3Moe",
    "deepseek_v2": "DeepseekV2",
    "deepseek_v3": "DeepseekV3",
    "deepseek_v32": "DeepseekV32",
    "glm_moe_dsa": "GlmMoeDsa",
    "qwen3_next": "Qwen3Next",
    "qwen3_5": "Qwen3_5",
    "qwen3_5_moe": "Qwen3_5Moe",
}
# where it is another name
CONFIGS = {"gemma3": "Gemma3Text", "qwen3_5": "Qwen3_5Text", "qwen3_5_moe": "Qwen3_5MoeText"}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 15_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "truncate": False,
}
# No two sizes alike, so that a part taken for another does not fit.
LATENT = {
    "num_key_value_heads": 4,
    "head_dim": 8,  # of what is rotated
    "num_hidden_layers": 3,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}
HYBRID = {  # linear, linear, linear, full
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "linear_conv_kernel_dim": 4,
}
SHARED_EXPERT = {
    **HYBRID,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
UNTIED = {
    "tie_word_embeddings": False
}  # with an end that is never drawn its row would be zeros at the entrance too: see make_tiny
# sizes of what others have not; windows shorter than most prompts
OWN: dict[str, dict[str, Any]] = {
    "gpt_oss": {
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "intermediate_size": 32,
        "sliding_window": 20,
        "tie_word_embeddings": False,
        "swiglu_limit": 1.5,
        "rope_parameters": YARN,
    },
    "gemma3": {
        "sliding_window": 20,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "mixtral": {"num_local_experts": 4, "intermediate_size": 48},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32},
    "deepseek_v2": {**LATENT, "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.5},
    "deepseek_v3": LATENT,
    # Many index heads: a position that all of them find worth nothing ties with others, and any of
    # these may be chosen.
    "deepseek_v32": {
        **LATENT,
        **UNTIED,
        "index_topk": 20,
        "index_head_dim": 28,
        "index_n_heads": 16,
    },
    "glm_moe_dsa": {
        **LATENT,
        **UNTIED,
        "index_topk": 20,
        "index_head_dim": 28,
        "index_n_heads": 16,
    },
    "qwen3_next": SHARED_EXPERT,
    "qwen3_5": HYBRID,
    "qwen3_5_moe": SHARED_EXPERT,
}


def make_tiny(path: Path, family: str = "llama", *, seed: int = 0, **overrides: Any) -> Path:
    """Write a float32 checkpoint of that family (a key of `CLASSES`) with weights drawn from
    `seed`; returns `path`.

    `overrides` replace values of its config. The weights spread wider than by default
    (`initializer_range`), which keeps the top logits apart: nearly tied ones would make equal
    tokens a matter of rounding.
    """
    import transformers

    config_type = getattr(transformers, f"{CONFIGS.get(family, CLASSES[family])}Config")
    model_type = getattr(transformers, f"{CLASSES[family]}ForCausalLM")
    path.mkdir(parents=True, exist_ok=True)
    vocabulary = _write_tokenizer(path)
    values = {
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
        "bos_token_id": START,
        "eos_token_id": END,
        "pad_token_id": PAD,
        **OWN.get(family, {}),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_type(config_type(**(values | overrides))).to(torch.float32)
        spread_vectors(model)
        with torch.no_grad():
            padding = model.get_input_embeddings().weight[PAD]
            # a row of zeros ties all scores of an index, and which of equal ones count is nobody's
            # rule
            if not padding.any():
                padding.normal_(std=0.2)
            model.get_output_embeddings().weight[END] = 0.0
    model.generation_config.do_sample = False
    model.save_pretrained(path)
    return path


class DraftNames(NamedTuple):
    """How checkpoints of a family name the tensors of the layer that drafts.

    Attributes:
        at, layer: what the names begin with, and those of what every layer has
        token, before, last: norms: of the embedding, of the hidden state, and the last one
        product: the matrix over both
        offset: what is added to the weights of norms
        count: the key of config.json that says how many such layers there are
    """

    at: str
    layer: str
    token: str
    before: str
    last: str
    product: str
    offset: float
    count: str


def draft_names(family: str, layers: int) -> DraftNames:
    """layers: of the model without it"""
    if family.startswith("qwen"):
        count = "num_nextn_predict_layers" if family == "qwen3_next" else "mtp_num_hidden_layers"
        norms = "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"
        return DraftNames("mtp.", "mtp.layers.0.", *norms, "fc", 1.0, count)
    at, norms = f"model.layers.{layers}.", ("enorm", "hnorm", "shared_head.norm")
    return DraftNames(at, at, *norms, "eh_proj", 0.0, "num_nextn_predict_layers")


def make_tiny_with_draft_layer(
    path: Path, family: str = "deepseek_v3", *, right: bool = False, **overrides: Any
) -> Path:
    """The same with a draft layer, as DeepSeek and Qwen publish it: made as one more layer behind
    the last one.

    right: the next token depends on the last one nearly alone, and the draft layer knows it: most
        of its drafts are right
    """
    layers = {**OWN[family], **overrides}["num_hidden_layers"]
    names = draft_names(family, layers)
    if right:  # or each token would be followed by itself
        overrides |= UNTIED
    if family.startswith("qwen"):  # the draft layer attends
        own = ["full_attention" if (n + 1) % 4 == 0 else "linear_attention" for n in range(layers)]
        overrides |= {"layer_types": [*own, "full_attention"]}
    make_tiny(path, family, **(overrides | {"num_hidden_layers": layers + 1}))
    config = json.loads((path / "config.json").read_text())
    for name, value in config.items():  # what it says of each layer
        if isinstance(value, list) and len(value) == layers + 1:
            config[name] = value[:layers]
    config |= {"num_hidden_layers": layers, names.count: 1}
    (path / "config.json").write_text(json.dumps(config))
    tensors = {
        name.replace(f"model.layers.{layers}.", names.layer): tensor
        for name, tensor in load_file(path / "model.safetensors").items()
    }
    at, size = names.at, config["hidden_size"]
    some = torch.Generator().manual_seed(9)
    for name in (names.token, names.before, names.last):
        spread = 0.2 * torch.randn(size, generator=some)
        tensors[f"{at}{name}.weight"] = 1 - names.offset + spread
    tensors[f"{at}{names.product}.weight"] = 0.2 * torch.randn(size, 2 * size, generator=some)
    if right:
        for name, tensor in tensors.items():
            if "o_proj" in name or "out_proj" in name or "down_proj" in name:
                tensor *= 0.002
        tensors[f"{at}{names.token}.weight"] = torch.full((size,), 1 - names.offset)
        tensors[f"{at}{names.last}.weight"] = tensors["model.norm.weight"].clone()
        tensors[f"{at}{names.product}.weight"] = torch.eye(size, 2 * size)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def spread_vectors(model: torch.nn.Module) -> None:
    """Norm weights start as all ones and biases as all zeros: a loader that leaves one out would
    not be noticed."""
    with torch.no_grad():
        buffers = (
            (name, tensor) for name, tensor in model.named_buffers() if name.endswith("bias")
        )
        for name, parameter in [*model.named_parameters(), *buffers]:
            if parameter.dim() == 1:
                middle = 0.0 if name.endswith("bias") or not parameter.any() else 1.0
                if name.endswith("A_log"):  # states that last for tens of tokens
                    middle = -3.0
                parameter.copy_(middle + 0.2 * torch.randn(parameter.shape))
            elif name.endswith("bias"):  # of experts, which share a tensor
                parameter.copy_(0.2 * torch.randn(parameter.shape))


def _write_tokenizer(path: Path) -> int:
    """Write tokenizer.json and tokenizer_config.json; returns the vocabulary's size."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    room = VOCABULARY - len(SPECIALS)
    learner.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(vocab_size=room, initial_alphabet=alphabet, show_progress=False),
    )
    merges = [tuple(merge) for merge in json.loads(learner.to_str())["model"]["merges"]]
    vocabulary = {mark: i for i, mark in enumerate(alphabet)} | SPECIALS
    for a, b in merges:
        vocabulary.setdefault(a + b, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "model_max_length": 4096,
        "chat_template": CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return len(vocabulary)
