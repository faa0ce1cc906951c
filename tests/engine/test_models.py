"""Every layer's output and the logits against transformers, through pages, however the prompt is
cut."""

import ctypes
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tests.engine.whole import B, placement_of
from tests.tiny import make_tiny

from baton.adapters.memory import HostPool
from baton.core.errors import ConfigError
from baton.core.memory.state import DType
from baton.engine.attention.interface import AttentionMetadata, Segment
from baton.engine.attention.registry import CPU, REFERENCE, Backends, Registry
from baton.engine.checkpoint import Checkpoint
from baton.engine.comm import Alone
from baton.engine.cpu_ops import CpuOps
from baton.engine.kernels.team import Team
from baton.engine.models import FAMILIES
from baton.engine.models.base import SLOT, family_of
from baton.engine.models.config import identity
from baton.engine.ops import Linear, Ops, TorchOps
from baton.engine.trial import default_directory

LENGTH = 77  # over ALONE_ROWS in one piece
CUTS = {"whole": [LENGTH], "odd": [7, 1, 16, 3, 30, 5, 15], "single": [1] * LENGTH}
TOLERANCE = 1e-4
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # of 8 frequencies some are kept, one is blended, some are divided
    "original_max_position_embeddings": 256,
}
LINEAR = {"rope_type": "linear", "rope_theta": 5_000.0, "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 8.0,
}
# as DeepSeek's configs have it
MSCALE = {**YARN, "factor": 40.0, "beta_fast": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0}
SHORT, LONG = [1.0 + 0.1 * i for i in range(8)], [1.0 + 0.7 * i for i in range(8)]
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": SHORT,
    "long_factor": LONG,
}
PARTIAL = {
    **LONGROPE,
    "short_factor": SHORT[:6],
    "long_factor": LONG[:6],
    "partial_rotary_factor": 0.75,
}
HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
WINDOW = {"sliding_window": 20}  # shorter than the prompt, neither a block nor a tile
UPPER = {"use_sliding_window": True, "max_window_layers": 1, **WINDOW}
SLIDES = ["sliding_attention"]
BY_KIND = {
    "full_attention": LINEAR,
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
WEIGHED = {"norm_topk_prob": True, "use_sliding_window": True, **WINDOW}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "linear rope": ("llama", {"rope_parameters": LINEAR}),
    "theta": ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}}),
    "untied": ("llama", {"tie_word_embeddings": False}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3 biases": ("qwen3", {"attention_bias": True}),
    "wide heads": ("qwen3", {"head_dim": 40, "num_key_value_heads": 1}),
    "no sharing": ("llama", {"num_key_value_heads": 4, "num_hidden_layers": 3}),
    "three to one": (
        "llama",
        {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2},
    ),
    "eps": ("llama", {"rms_norm_eps": 0.1}),
    "dynamic rope, not stretched": ("llama", {"rope_parameters": DYNAMIC}),
    "dynamic rope, stretched": (
        "llama",
        {"rope_parameters": DYNAMIC, "max_position_embeddings": 64},
    ),
    "yarn rope": ("qwen2", {"rope_parameters": YARN}),
    "yarn rope, scaled by hand": (
        "llama",
        {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4}},
    ),
    "yarn rope, not truncated": (
        "mistral",
        {"rope_parameters": {**YARN, "truncate": False, "attention_factor": 1.3}},
    ),
    "mistral": ("mistral", {}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "mistral window": ("mistral", WINDOW),
    "smollm3": ("smollm3", {"num_hidden_layers": 4}),
    "smollm3 by list": ("smollm3", {"num_hidden_layers": 3, "no_rope_layers": [0, 1, 0]}),
    "smollm3 window": (
        "smollm3",
        {"num_hidden_layers": 3, "no_rope_layer_interval": 2, "use_sliding_window": True, **WINDOW},
    ),
    "qwen2": ("qwen2", {}),
    "qwen2 window": ("qwen2", UPPER),
    "qwen3 window": ("qwen3", UPPER),
    "qwen3 window by name": (
        "qwen3",
        {**UPPER, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "phi3": ("phi3", {}),
    "phi3 window": ("phi3", WINDOW),
    "phi3 in part": (
        "phi3",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.75,
            }
        },
    ),
    "phi3 short": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 1024}),
    "phi3 long": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}),
    "gpt_oss": ("gpt_oss", {}),
    "gpt_oss by list": (
        "gpt_oss",
        {"num_hidden_layers": 3, "layer_types": ["full_attention", "sliding_attention", *SLIDES]},
    ),
    "gemma3": ("gemma3", {}),
    "gemma3 scales": (
        "gemma3",
        {"query_pre_attn_scalar": 9, "final_logit_softcapping": 8.0, "rope_parameters": BY_KIND},
    ),
    "mixtral": ("mixtral", {}),
    "mixtral window": ("mixtral", WINDOW),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe in some layers": (
        "qwen3_moe",
        {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3], **WEIGHED},
    ),
    "deepseek_v2": ("deepseek_v2", {}),
    "deepseek_v2 greedy": (
        "deepseek_v2",
        {"topk_method": "greedy", "q_lora_rank": None, "first_k_dense_replace": 0},
    ),
    "deepseek_v2 biases": (
        "deepseek_v2",
        {"attention_bias": True, "mlp_bias": False, "rope_parameters": MSCALE},
    ),
    "deepseek_v3": ("deepseek_v3", {}),
    "deepseek_v3 yarn": ("deepseek_v3", {"rope_parameters": MSCALE}),
    "deepseek_v3 unlike": (
        "deepseek_v3",
        {"rope_parameters": {**MSCALE, "mscale": 0.7}, "attention_bias": True},
    ),
    "deepseek_v3 halves": (
        "deepseek_v3",
        {"rope_interleave": False, "q_lora_rank": None, "norm_topk_prob": False},
    ),
    "kimi_k2": (
        "deepseek_v3",
        {"n_group": 1, "topk_group": 1, "n_shared_experts": 2, "routed_scaling_factor": 2.827},
    ),
    "deepseek_v32": ("deepseek_v32", {}),
    "deepseek_v32 yarn": ("deepseek_v32", {"rope_parameters": MSCALE, "index_topk": 7}),
    "deepseek_v32 short": ("deepseek_v32", {"index_topk": 200}),
    "glm_moe_dsa": ("glm_moe_dsa", {}),
    "glm_moe_dsa shared": (
        "glm_moe_dsa",
        {"num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"]},
    ),
    "qwen3_next": ("qwen3_next", {}),
    "qwen3_next unlike": (
        "qwen3_next",
        {
            "layer_types": ["full_attention", "linear_attention"] * 2,
            "mlp_only_layers": [2],
            "attention_bias": True,
        }
        | {
            "linear_num_key_heads": 1,
            "linear_conv_kernel_dim": 3,
            "norm_topk_prob": False,
            "rope_parameters": HALF,
        },
    ),
    "qwen3_5": ("qwen3_5", {}),
    "qwen3_5_moe": ("qwen3_5_moe", {}),
    "qwen3_5 no sharing": (
        "qwen3_5",
        {"linear_num_key_heads": 4, "linear_key_head_dim": 20, "num_hidden_layers": 5},
    ),
    "phi3 long in part": (
        "phi3",
        {"rope_parameters": PARTIAL, "original_max_position_embeddings": 32},
    ),
}
# served by a flag; else by what the config says
LONGEST = {"dynamic rope, stretched": LENGTH, "phi3 short": 1024}


class Watched:
    """Ops that keep the residual stream as each norm finds it."""

    def __init__(self, ops: Ops, hidden: int) -> None:
        self._ops, self._hidden = ops, hidden
        self.linear: Callable[..., Linear] = ops.linear
        self.rotate, self.gate, self.grouped, self.by_head = (
            ops.rotate,
            ops.gate,
            ops.grouped,
            ops.by_head,
        )
        self.gated_norm, self.scores, self.weigh = ops.gated_norm, ops.scores, ops.weigh
        self.streams: list[torch.Tensor] = []

    def norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        *,
        add: torch.Tensor | None,
        offset: float = 0.0,
    ) -> torch.Tensor:
        out = self._ops.norm(x, weight, eps, add=add, offset=offset)
        if x.shape[1] == self._hidden:  # compressed rows are normed too
            self.streams.append(x.clone())
        return out


class Driver:
    """A model run over scattered pages without the engine."""

    def __init__(
        self,
        path: Path,
        ops: Ops,
        registry: Registry,
        *,
        dtype: DType = DType.F32,
        longest: int | None = None,
    ) -> None:
        checkpoint = Checkpoint.open(path)
        placement = placement_of(checkpoint, dtype, 1)
        self.layers = int(checkpoint.config["num_hidden_layers"])
        self._ops = Watched(ops, int(checkpoint.config["hidden_size"]))
        family = family_of(checkpoint.config, FAMILIES)
        self._model = family.build(
            checkpoint, placement, dtype, self._ops, Alone(), longest=longest
        )
        self._blocks = np.random.default_rng(5).permutation(12).astype(np.int32)[: -(-LENGTH // B)]
        self._pools = {
            g.name: HostPool(12 * placement.page_bytes(g.name)) for g in placement.table.groups
        }
        for pool in self._pools.values():
            # float32 3e38: whoever reads too far is seen
            ctypes.memset(pool.address, 0x7F, pool.nbytes)
        self._backends = Backends(self._pools, placement, registry)

    def run(
        self, tokens: Sequence[int], cuts: Sequence[int]
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Each layer's output [tokens, hidden] and the logits [tokens, vocab]."""
        pieces, start = [], 0
        for count in cuts:
            pieces.append(self._piece(tokens[start : start + count], start))
            start += count
        assert start == len(tokens)
        layers = [torch.cat(parts) for parts in zip(*(p[0] for p in pieces), strict=True)]
        return layers, torch.cat([p[1] for p in pieces])

    def _piece(self, tokens: Sequence[int], start: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        at = torch.arange(start, start + len(tokens))
        blocks = self._blocks[: -(-(start + len(tokens)) // B)]
        slots = torch.from_numpy(blocks.astype(np.int64))[at // B] * B + at % B
        segment = Segment(first=0, count=len(tokens), start=start, block_table=blocks)

        self._ops.streams.clear()
        with torch.inference_mode():
            slot = msgspec.structs.replace(segment, block_table=self._blocks[:1])
            metadata = {
                g: AttentionMetadata([slot if g == SLOT else segment], slots) for g in self._pools
            }
            attend = self._backends.over(metadata)
            hidden = self._model.forward(torch.tensor(tokens), at, attend)
            logits = self._model.logits(hidden)
        # before layer 0, inside layer 0 (once, or three times), after layer 0, ...
        streams = self._ops.streams
        each = len(streams) // self.layers
        assert len(streams) == each * self.layers + 1
        return streams[each::each], logits

    def close(self) -> None:
        del self._backends
        for pool in self._pools.values():
            pool.close()


def truth(
    path: Path, tokens: Sequence[int], dtype: torch.dtype = torch.float32
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The same from transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation="eager"
    ).eval()
    layers: list[torch.Tensor] = []
    for layer in model.model.layers:
        layer.register_forward_hook(
            lambda _module, _inputs, out: layers.append(out[0] if out[0].dim() == 2 else out[0][0])
        )
    with torch.inference_mode():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return layers, logits


def worst(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    assert found.isfinite().all()
    return float((found - expected).abs().max() / expected.abs().max())


def compare(
    driver: Driver, path: Path, tokens: Sequence[int], cuts: Sequence[Sequence[int]]
) -> None:
    layers, logits = truth(path, tokens)
    assert len(layers) == driver.layers
    for cut in cuts:
        our_layers, our_logits = driver.run(tokens, cut)
        errors = [worst(a, b) for a, b in zip(our_layers, layers, strict=True)] + [
            worst(our_logits, logits)
        ]
        assert max(errors) <= TOLERANCE, f"by layer, logits last: {errors}"


def prompt(vocabulary: int) -> list[int]:
    return np.random.default_rng(2).integers(0, vocabulary, LENGTH).tolist()


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize("case", CASES)
def test_layers_and_logits_are_those_of_transformers(
    tmp_path: Path, case: str, compiled: bool
) -> None:
    family, overrides = CASES[case]
    path = make_tiny(tmp_path, family, **overrides)
    ops, registry = (CpuOps(DType.F32, Team(1)), CPU) if compiled else (TorchOps(), REFERENCE)
    driver = Driver(path, ops, registry, longest=LONGEST.get(case))
    compare(
        driver, path, prompt(int(Checkpoint.open(path).config["vocab_size"])), list(CUTS.values())
    )
    driver.close()


def test_the_rope_settings_of_older_configs(tmp_path: Path) -> None:
    """`rope_theta` and `rope_scaling` beside each other, the way most published checkpoints have
    them."""
    path = make_tiny(tmp_path, rope_parameters=LLAMA3 | {"rope_theta": 500_000.0})
    tokens = prompt(320)
    layers, logits = truth(path, tokens)
    config = json.loads((path / "config.json").read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = parameters
    (path / "config.json").write_text(json.dumps(config))
    driver = Driver(path, TorchOps(), REFERENCE)
    found_layers, found = driver.run(tokens, [LENGTH])
    assert (
        max(worst(a, b) for a, b in zip([*found_layers, found], [*layers, logits], strict=True))
        <= TOLERANCE
    )
    driver.close()


def test_the_trial_model_is_that_of_transformers() -> None:
    path = default_directory()
    if not (path / "config.json").is_file():
        pytest.skip("the trial model is not here; baton models pull smollm2")
    driver = Driver(path, CpuOps(DType.F32, Team(1)), CPU)
    compare(
        driver,
        path,
        prompt(int(Checkpoint.open(path).config["vocab_size"])),
        [CUTS["whole"], CUTS["odd"]],
    )
    driver.close()


def test_what_is_computed_has_an_identity(tmp_path: Path) -> None:
    """Same weights, other config: a pair of workers that would continue each other's requests
    wrongly."""
    config = dict(Checkpoint.open(make_tiny(tmp_path, "qwen3")).config)
    family = family_of(config, FAMILIES)
    longrope = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 1024}
    others = [
        {},
        UPPER | {"layer_types": None},
        {"rope_parameters": YARN},
        {"rms_norm_eps": 1e-5},
        longrope,
    ]
    found = [identity("weights", family.read(config | other)) for other in others]
    found += [
        identity("other weights", family.read(config)),
        identity("weights", family.read(config | longrope, longest=1024)),
    ]
    assert len(set(found)) == len(found)
    older = {n: v for n, v in config.items() if n != "rope_parameters"} | {
        "rope_theta": config["rope_parameters"]["rope_theta"]
    }
    assert identity("weights", family.read(older | {"transformers_version": "4.1"})) == found[0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (4096, 4096)),
        ({"rope_parameters": {**YARN, "original_max_position_embeddings": 4096}}, (16_384, 16_384)),
        ({"rope_parameters": YARN}, (4096, 4096)),
        ({"rope_parameters": DYNAMIC}, (4096, 8192)),
        ({"max_position_embeddings": None}, None),
    ],
)
def test_how_long_a_request_may_be(
    tmp_path: Path, changes: dict[str, object], expected: tuple[int, int] | None
) -> None:
    config = dict(Checkpoint.open(make_tiny(tmp_path)).config) | changes
    family = family_of(config, FAMILIES)
    if expected is None:
        with pytest.raises(ConfigError, match="max_position_embeddings"):
            family.longest(config)
    else:
        assert family.longest(config) == expected


# ---- refusals -----------------------------------------------------------------------------------


def refused(path: Path, **changes: object) -> str:
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError) as caught:
        Driver(path, TorchOps(), REFERENCE)
    return str(caught.value)


def test_an_architecture_that_nobody_serves(tmp_path: Path) -> None:
    message = refused(make_tiny(tmp_path), architectures=["MambaForCausalLM"])
    assert "MambaForCausalLM" in message
    assert "LlamaForCausalLM" in message


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("llama", {"hidden_act": "gelu"}, "gelu"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4, "factor": 4.0}},
            "spiral",
        ),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": -1}}, "factor"),
        ("phi3", {"rope_parameters": {**LONGROPE, "short_factor": [1.0]}}, "short_factor"),
        ("qwen3", {"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ("mistral", {"sliding_window": 0}, "sliding_window"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers"),
        ("qwen2", {"num_key_value_heads": 3}, "3 key and value heads"),
        ("llama", {"hidden_size": None}, "hidden_size"),
        ("llama", {"rms_norm_eps": "small"}, "rms_norm_eps"),
    ],
)
def test_a_setting_that_would_give_other_tokens(
    tmp_path: Path, family: str, changes: dict[str, object], named: str
) -> None:
    assert named in refused(make_tiny(tmp_path, family), **changes)


SLIDING = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}


@pytest.mark.parametrize(
    "changes",
    [
        # as published: a window that is not used
        {"layer_types": None, "use_sliding_window": False},
        {"layer_types": None, "max_window_layers": 2},  # used by the layers after the last
        {"layer_types": None, "sliding_window": None},
    ],
)
def test_a_sliding_window_that_no_layer_uses_is_served(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    path = make_tiny(tmp_path, "qwen3")
    config = json.loads((path / "config.json").read_text()) | SLIDING | changes
    (path / "config.json").write_text(json.dumps(config))
    driver = Driver(path, TorchOps(), REFERENCE)
    compare(driver, path, prompt(320), [CUTS["whole"]])
    driver.close()


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    assert "lm_head.weight" in refused(make_tiny(tmp_path), tie_word_embeddings=False)


@pytest.mark.parametrize(
    ("case", "derived"),
    [
        ("qwen2 window", "layer_types"),
        ("qwen3 window", "layer_types"),
        ("qwen2", "layer_types"),
        ("smollm3", "no_rope_layers"),
        ("smollm3 window", "no_rope_layers"),
        ("smollm3 window", "layer_types"),
    ],
)
def test_what_transformers_writes_out_follows_from_what_published_configs_say(
    tmp_path: Path, case: str, derived: str
) -> None:
    """The other cases find the list that `transformers` has saved; published configs have the rule
    it was made by."""
    family, overrides = CASES[case]
    config = dict(Checkpoint.open(make_tiny(tmp_path, family, **overrides)).config)
    known = family_of(config, FAMILIES)
    assert config[derived] is not None
    assert known.read(
        {name: value for name, value in config.items() if name != derived}
    ) == known.read(config)
