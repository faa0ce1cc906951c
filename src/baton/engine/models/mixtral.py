"""Mixtral: Mistral whose MLPs are mixtures of experts (Jiang et al. 2024)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from baton.core.errors import ConfigError
from baton.core.memory.state import Interval
from baton.engine.models.config import Mixture, ModelConfig, count
from baton.engine.models.experts import ExpertFiles, SoftmaxRouter, mixture_of
from baton.engine.models.llama import LayerWeights
from baton.engine.models.mistral import MistralFamily
from baton.engine.models.weights import Filed, Loader, Matrix
from baton.engine.ops import Linear
from baton.engine.shards import Shards


class MixtureWeights(LayerWeights):
    """The weights of layers with mixtures, in the layers that `Mixture.sparse` selects.

    `path` is the name of an MLP, `names` are those of an expert's matrices.
    """

    def __init__(self, c: ModelConfig, *, path: str, names: tuple[str, str, str]) -> None:
        super().__init__(c)
        assert c.mixture is not None
        self.mixture = c.mixture
        self.router = Matrix((Filed(f"{path}.gate", (c.mixture.experts,)),), c.hidden)
        self.experts = ExpertFiles(
            f"{path}.experts", *names, c.mixture.experts, c.hidden, c.mixture.inner
        )

    def mlp_tensors(self, at: str, index: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        if self.mixture.sparse[index]:
            yield from self.router.tensors(at)
            yield from self.experts.tensors(at)
        else:
            yield from super().mlp_tensors(at, index)

    def mlp(self, load: Loader, at: str, index: int, held: Shards) -> Linear:
        m = self.mixture
        if not m.sparse[index]:
            return super().mlp(load, at, index, held)
        logits = load.by_outputs(at, self.router, Interval(0, m.experts))
        router = SoftmaxRouter(logits, used=m.used, renormalised=m.renormalised)
        return mixture_of(router, self.experts.load(load, at, load.ops.gate))


def require_used(mixture: Mixture) -> Mixture:
    """Raise ConfigError if the config uses more experts for a row than a layer has."""
    if mixture.used > mixture.experts:
        raise ConfigError(
            f"config.json: num_experts_per_tok is {mixture.used}, and a layer "
            f"has {mixture.experts} experts"
        )
    return mixture


class MixtralFamily(MistralFamily):
    """Implements Family."""

    name = "Mixtral"
    architectures: Sequence[str] = ("MixtralForCausalLM",)
    examples = "Mixtral 8x7B, Mixtral 8x22B"
    notes = "mixture of experts in every layer"
    defaults: Mapping[str, Any] = {
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rope_theta": 1e6,
    }

    def mixture(self, config: Mapping[str, Any], layers: int) -> Mixture:
        return require_used(
            Mixture(
                experts=count(config, "num_local_experts"),
                used=count(config, "num_experts_per_tok"),
                inner=count(config, "intermediate_size"),
                sparse=(True,) * layers,
            )
        )

    def weights(self, config: ModelConfig) -> MixtureWeights:
        """Return the weights; in checkpoints w1 is gate, w3 is up and w2 is down."""
        return MixtureWeights(config, path="block_sparse_moe", names=("w1", "w3", "w2"))
