"""Which layouts hand over to which in the tests between real processes; docs/layouts.md shows the same table."""

import msgspec
from tests.e2e.fleet import Layout

L = Layout


class Kind(msgspec.Struct, frozen=True):
    """A model's heads and the layouts of its workers; every prefill layout is paired with every decode layout.

    `unified`: layouts of prefill that are compared with a unified worker's too.
    """

    heads: int
    kv_heads: int
    prefill: tuple[Layout, ...]
    decode: tuple[Layout, ...]
    unified: tuple[Layout, ...] = ()
    fabric: str = "shm"
    layers: int = 4
    dim: int = 8
    model: str = "a random Llama"
    family: str = "llama"
    slow: bool = False


WIDTHS, THREES = (L(1), L(2), L(4)), (L(1), L(3), L(1, 2))
KINDS = {
    "1 head": Kind(8, 1, WIDTHS, WIDTHS),
    "2 heads": Kind(8, 2, WIDTHS, WIDTHS),
    "3 heads": Kind(6, 3, (L(1), L(3)), (L(1), L(3)), unified=(L(1), L(3))),
    "4 heads": Kind(8, 4, (*WIDTHS, L(1, 2), L(2, 2), L(1, page=64)), (*WIDTHS, L(1, 2), L(2, 2), L(1, page=64), L(2, page=48))),
    "8 heads": Kind(8, 8, WIDTHS, WIDTHS),
    "nixl": Kind(8, 4, (L(2, page=64),), (L(1, page=64), L(4)), fabric="nixl"),
    "tcp": Kind(
        8, 4, (L(1), L(2, page=64), L(1, 2)), (L(1, page=64), L(4), L(2)), unified=(L(2, page=64), L(1, 2)), fabric="tcp"
    ),
    "mooncake": Kind(8, 4, (L(2, page=64), L(1, 2)), (L(1, page=64), L(4)), fabric="mooncake", slow=True),
    "trial": Kind(9, 3, THREES, THREES, layers=30, dim=64, model="SmolLM2-135M-Instruct", slow=True),
    "mixtral": Kind(
        8, 2, (L(1), L(2, page=64)), (L(4), L(1, 2)), fabric="nixl", model="a random Mixtral", family="mixtral", slow=True
    ),
    "qwen3_moe": Kind(
        8, 2, (L(4), L(1, 2)), (L(1), L(2, page=64)), fabric="nixl", model="a random Qwen3 MoE", family="qwen3_moe", slow=True
    ),
}

# Every pair of the random Llama through every other fabric; docs/layouts.md counts them.
LLAMA = {name: kind for name, kind in KINDS.items() if kind.model == "a random Llama" and kind.fabric == "shm"}
PRODUCT = {
    f"{name} {fabric}": msgspec.structs.replace(kind, fabric=fabric, slow=True)
    for fabric in ("nixl", "mooncake", "tcp")
    for name, kind in LLAMA.items()
}
