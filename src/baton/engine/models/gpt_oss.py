"""gpt-oss: every other layer with a window, attention sinks, mixtures of experts stored in four
bits (OpenAI 2025).

A sink is a score without a value in the softmax of each head. Experts have biases and a clamped
gate: (up + 1) * gate * sigmoid(alpha * gate). In checkpoints, gates and ups alternate row by row.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch

from baton.core.memory.state import Interval
from baton.engine.attention.interface import Seen
from baton.engine.models.config import Mixture, ModelConfig, count, named_layers, number
from baton.engine.models.experts import Experts, held_experts, mixture_of
from baton.engine.models.llama import LayerWeights, LlamaFamily
from baton.engine.models.mixtral import require_used
from baton.engine.models.weights import Filed, Loader, Matrix
from baton.engine.ops import Linear, sigmoid
from baton.engine.shards import Shards

EXPERTS = "mlp.experts."
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150_000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


class GptOssWeights(LayerWeights):
    """Experts in one tensor a matrix: [experts, in, out]."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__(c)
        assert c.mixture is not None
        self.mixture = c.mixture
        self.router = Matrix((Filed("mlp.router", (c.mixture.experts,)),), c.hidden, biased=True)
        self._shapes = {
            "gate_up_proj": (2 * c.mixture.inner, c.hidden),
            "down_proj": (c.hidden, c.mixture.inner),
        }

    def mlp_tensors(self, at: str, index: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield from self.router.tensors(at)
        for name, (outs, ins) in self._shapes.items():
            yield f"{at}{EXPERTS}{name}", (self.mixture.experts, ins, outs)
            yield f"{at}{EXPERTS}{name}_bias", (self.mixture.experts, outs)

    def mlp(self, load: Loader, at: str, index: int, held: Shards) -> Linear:
        m = self.mixture
        own = held_experts(m.experts, tp=load.comm.tp, rank=load.comm.tp_rank)
        first = load.ops.grouped(
            _apart(w, b) for w, b in self._matrices(load, at + EXPERTS + "gate_up_proj", own)
        )
        second = load.ops.grouped(self._matrices(load, at + EXPERTS + "down_proj", own))
        experts = Experts(own, first, second, lambda x: clamped_gate(x, m), load.ops, load.comm)
        logits = load.by_outputs(at, self.router, Interval(0, m.experts))

        def route(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            best, ids = logits(x).float().topk(m.used)
            return best.softmax(-1), ids

        return mixture_of(route, experts)

    def _matrices(
        self, load: Loader, name: str, held: Interval
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield weight [out, in] and bias [out] of each expert."""
        for expert in range(held.start, held.end):
            one = Interval(expert, expert + 1)
            yield load(name, one)[0].T.contiguous(), load(f"{name}_bias", one)[0]


def _apart(weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort rows of gates before rows of ups; they alternate in the checkpoint."""
    return torch.cat((weight[::2], weight[1::2])), torch.cat((bias[::2], bias[1::2]))


def clamped_gate(x: torch.Tensor, m: Mixture) -> torch.Tensor:
    """Compute (up + 1) * gate * sigmoid(alpha * gate).

    gate is clamped to at most `limit`, up to +-`limit`. x is [rows, gates before ups].
    """
    assert m.limit is not None
    gate, up = x.float().chunk(2, -1)
    gate, up = gate.clamp(max=m.limit), up.clamp(-m.limit, m.limit)
    return ((up + 1) * (gate * sigmoid(m.alpha * gate))).to(x.dtype)


class GptOssFamily(LlamaFamily):
    """Implements Family."""

    name = "gpt-oss"
    architectures: Sequence[str] = ("GptOssForCausalLM",)
    examples = "gpt-oss-20b, gpt-oss-120b"
    notes = "mixture of experts, also in MXFP4; attention sinks"
    window = "every other layer, or by layer_types"
    defaults: Mapping[str, Any] = {
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": YARN["rope_theta"],
        "sliding_window": 128,
        "num_local_experts": 128,
        "swiglu_limit": 7.0,
        "swiglu_alpha": 1.702,
        "attention_bias": True,
    }
    own_biases: Mapping[str, bool] = {"mlp": False}

    def complete(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Complete the config; the default rope is YaRN."""
        found = dict(super().complete(config))
        if not (found.get("rope_parameters") or found.get("rope_scaling")):
            found["rope_parameters"] = YARN
        if found.get("num_experts_per_tok") is None:
            found["num_experts_per_tok"] = found.get("experts_per_token", 4)
        return found

    def read(self, config: Mapping[str, Any], *, longest: int | None = None) -> ModelConfig:
        return msgspec.structs.replace(super().read(config, longest=longest), sinks=True)

    def seen(self, config: Mapping[str, Any], layers: int) -> tuple[Seen, ...]:
        """Return what each layer sees; by default, every
        other layer has a window, the first included."""
        kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)]
        return (
            named_layers({**config, "layer_types": config.get("layer_types") or kinds}, layers)
            or ()
        )

    def mixture(self, config: Mapping[str, Any], layers: int) -> Mixture:
        return require_used(
            Mixture(
                experts=count(config, "num_local_experts"),
                used=count(config, "num_experts_per_tok"),
                inner=count(config, "intermediate_size"),
                sparse=(True,) * layers,
                limit=number(config, "swiglu_limit"),
                alpha=number(config, "swiglu_alpha"),
            )
        )

    def weights(self, config: ModelConfig) -> GptOssWeights:
        return GptOssWeights(config)
