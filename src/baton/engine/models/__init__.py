"""Model families, one file each; `FAMILIES` is the table of what is supported."""

from collections.abc import Sequence

from baton.engine.models.base import Family
from baton.engine.models.llama import LlamaFamily
from baton.engine.models.qwen3 import Qwen3Family

FAMILIES: Sequence[Family] = (LlamaFamily(), Qwen3Family())
