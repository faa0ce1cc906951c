"""Model families, one file each; `FAMILIES` is the table of what is supported."""

from collections.abc import Sequence

from baton.engine.models.base import Family
from baton.engine.models.deepseek import DeepseekV2Family, DeepseekV3Family
from baton.engine.models.deepseek_v32 import DeepseekV32Family, GlmMoeDsaFamily
from baton.engine.models.gemma3 import Gemma3Family
from baton.engine.models.gpt_oss import GptOssFamily
from baton.engine.models.llama import LlamaFamily
from baton.engine.models.mistral import MistralFamily
from baton.engine.models.mixtral import MixtralFamily
from baton.engine.models.phi3 import Phi3Family
from baton.engine.models.qwen2 import Qwen2Family
from baton.engine.models.qwen3 import Qwen3Family
from baton.engine.models.qwen3_5 import Qwen35Family, Qwen35MoeFamily
from baton.engine.models.qwen3_moe import Qwen3MoeFamily
from baton.engine.models.qwen3_next import Qwen3NextFamily
from baton.engine.models.smollm3 import SmolLM3Family

FAMILIES: Sequence[Family] = (
    LlamaFamily(),
    MistralFamily(),
    SmolLM3Family(),
    Qwen2Family(),
    Qwen3Family(),
    Phi3Family(),
    GptOssFamily(),
    Gemma3Family(),
    MixtralFamily(),
    Qwen3MoeFamily(),
    Qwen3NextFamily(),
    Qwen35Family(),
    Qwen35MoeFamily(),
    DeepseekV2Family(),
    DeepseekV3Family(),
    DeepseekV32Family(),
    GlmMoeDsaFamily(),
)
