"""Which layouts hand over to which in the tests between real processes; docs/layouts.md shows the
same table."""

from typing import Any

import msgspec
from tests.e2e.fleet import Layout

L = Layout
BLOCK = 16
PROMPT = 5 * BLOCK + 7  # more than one chunk of 64, and a last block that is not full
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 64, 65, PROMPT, 8 * BLOCK, 10 * BLOCK + 1)


class Kind(msgspec.Struct, frozen=True):
    """A model's heads and the layouts of its workers; every prefill layout is paired with every
    decode layout.

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
    lengths: tuple[int, ...] = (PROMPT,)  # of the prompts, in turn


WIDTHS, THREES = (L(1), L(2), L(4)), (L(1), L(3), L(1, 2))
KINDS = {
    "1 head": Kind(8, 1, WIDTHS, WIDTHS),
    "2 heads": Kind(8, 2, WIDTHS, WIDTHS, lengths=LENGTHS),
    "3 heads": Kind(6, 3, (L(1), L(3)), (L(1), L(3)), unified=(L(1), L(3))),
    "4 heads": Kind(
        8,
        4,
        (*WIDTHS, L(1, 2), L(2, 2), L(1, page=64)),
        (*WIDTHS, L(1, 2), L(2, 2), L(1, page=64), L(2, page=48)),
    ),
    "8 heads": Kind(8, 8, WIDTHS, WIDTHS),
    "nixl": Kind(8, 4, (L(2, page=64),), (L(1, page=64), L(4)), fabric="nixl"),
    "tcp": Kind(
        8,
        4,
        (L(1), L(2, page=64), L(1, 2)),
        (L(1, page=64), L(4), L(2)),
        unified=(L(2, page=64), L(1, 2)),
        fabric="tcp",
    ),
    "mooncake": Kind(
        8, 4, (L(2, page=64), L(1, 2)), (L(1, page=64), L(4)), fabric="mooncake", slow=True
    ),
    "trial": Kind(
        9, 3, THREES, THREES, layers=30, dim=64, model="SmolLM2-135M-Instruct", slow=True
    ),
    "mixtral": Kind(
        8,
        2,
        (L(1), L(2, page=64)),
        (L(4), L(1, 2)),
        fabric="nixl",
        model="a random Mixtral",
        family="mixtral",
        slow=True,
    ),
    "qwen3_moe": Kind(
        8,
        2,
        (L(4), L(1, 2)),
        (L(1), L(2, page=64)),
        fabric="nixl",
        model="a random Qwen3 MoE",
        family="qwen3_moe",
        slow=True,
    ),
}

# Every pair of the random Llama through every other fabric; docs/layouts.md counts them.
LLAMA = {
    name: kind
    for name, kind in KINDS.items()
    if kind.model == "a random Llama" and kind.fabric == "shm"
}
PRODUCT = {
    f"{name} {fabric}": msgspec.structs.replace(kind, fabric=fabric, slow=True)
    for fabric in ("nixl", "mooncake", "tcp")
    for name, kind in LLAMA.items()
}


class Recurrent(Kind, frozen=True, kw_only=True):
    """A model with slots, of 4 layers. `attending`: those that have pages."""

    attending: tuple[int, ...]


def _recurrent(family: str, model: str, attending: tuple[int, ...], **fields: Any) -> Recurrent:
    return Recurrent(
        4,
        2,
        family=family,
        model=f"a random {model}",
        attending=attending,
        lengths=LENGTHS,
        **fields,
    )


# Each width to the next and back, stages and pages too: tp 1 2 4, pp 1 2, page 16 64.
FROM, TO = (L(1, 2), L(2, page=64), L(4)), (L(2), L(4), L(1, 2, page=64))
SOME, OTHERS = (L(1), L(2, page=64)), (L(4), L(1, 2))
RECURRENT = {
    # the first of two stages has no pages
    "qwen3_next": _recurrent("qwen3_next", "Qwen3-Next", (3,), prefill=FROM, decode=TO),
    "qwen3_5": _recurrent(
        "qwen3_5", "Qwen3.5", (1, 2), prefill=FROM, decode=TO, unified=FROM[:2], slow=True
    ),
    "qwen3_next-nixl": _recurrent(
        "qwen3_next", "Qwen3-Next", (3,), prefill=SOME, decode=OTHERS, fabric="nixl", slow=True
    ),
    "qwen3_5-nixl": _recurrent(
        "qwen3_5", "Qwen3.5", (0, 3), prefill=OTHERS, decode=SOME, fabric="nixl", slow=True
    ),
}
