"""Windows between real processes: what they see is handed over bit for bit, what lies behind is
not, whatever the layouts.

As in test_layouts.py the bytes are read from outside and judged by arithmetic of this file and by
`transformers`: a block of a layer and head is looked for in the pools by what it must hold, so it
does not matter in which page it lies.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.fleet import Fleet, Layout, pools_of
from tests.e2e.nursery import Nursery
from tests.e2e.reference import Reference
from tests.tiny import make_tiny

from baton.shell.settings import Role

BLOCK, DIM, PARTS, KV_HEADS, LAYERS = 16, 16, 2, 2, 4
WINDOW, ANSWER = 20, 3
TOLERANCE = 1e-4
L = Layout
LENGTHS = (
    1,
    WINDOW - 1,
    WINDOW,
    WINDOW + 1,
    3 * BLOCK,
    5 * BLOCK + 7,
    10 * BLOCK + 1,
    9 * BLOCK + 15,
    40,
)
PREFILL, DECODE = (L(1), L(2, page=64), L(1, 2)), (L(1, page=64), L(2), L(4))
KINDS = {
    "gemma3": pytest.param("gemma3", "shm", PREFILL, DECODE, id="gemma3"),
    "gpt_oss": pytest.param(
        "gpt_oss", "nixl", PREFILL, DECODE, id="gpt_oss-nixl", marks=pytest.mark.slow
    ),
}
WINDOWED = {"gemma3": (0, 2), "gpt_oss": (0, 2)}  # layers


class Blocks:
    """What the ranks of a worker hold: of a layer and head every block in the pools, uint32
    [blocks, part, token, dim]."""

    def __init__(self, pids: Sequence[int], layout: Layout, windowed: Sequence[int]) -> None:
        held, each = max(1, KV_HEADS // layout.tp), LAYERS // layout.pp
        self.found: dict[tuple[int, int], list[np.ndarray]] = {}
        for rank, pid in enumerate(pids):
            stage = range(rank // layout.tp * each, (rank // layout.tp + 1) * each)
            kinds = ([y for y in stage if y not in windowed], [y for y in stage if y in windowed])
            for pool, layers in zip(pools_of(pid), kinds, strict=True):
                units = pool.view(np.uint32).reshape(-1, held, len(layers), PARTS, BLOCK, DIM)
                for h, (n, layer) in product(range(held), enumerate(layers)):
                    head = rank % layout.tp * KV_HEADS // layout.tp + h
                    self.found.setdefault((layer, head), []).append(units[:, h, n])

    def near(self, layer: int, head: int, truth: np.ndarray, most: float) -> list[np.ndarray]:
        """Of each rank that holds them the block that is about `truth` [part, tokens, dim], as
        bits, if there is one."""
        count = truth.shape[1]
        found = []
        for units in self.found[layer, head]:
            rows = np.ascontiguousarray(units[:, :, :count])
            right = (np.abs(rows.view(np.float32) - truth) <= most).all(axis=(1, 2, 3))
            found += list(rows[np.flatnonzero(right)[:1]])
        return found


@pytest.mark.parametrize(("family", "fabric", "prefill", "decode"), KINDS.values())
@pytest.mark.timeout(300)
def test_live_windows_alone_are_handed_over_between_any_layouts(
    tmp_path: Path,
    nursery: Nursery,
    family: str,
    fabric: str,
    prefill: Sequence[Layout],
    decode: Sequence[Layout],
) -> None:
    windowed = WINDOWED[family]
    path = make_tiny(tmp_path / "model", family, num_hidden_layers=LAYERS)
    reference, prompts = (
        Reference(path),
        [np.random.default_rng(n).integers(0, 300, n).tolist() for n in LENGTHS],
    )
    # before: a fleet wants to be turned
    due = [(p, reference.answer(p, ANSWER), reference.whole_state(p)) for p in prompts]
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        path,
        {Role.PREFILL: prefill, Role.DECODE: decode},
        fabric=fabric,
    )
    try:
        for (prompt, answer, truth), (source, target) in zip(
            due, product(prefill, decode), strict=True
        ):
            length = len(prompt)
            fleet.clear()
            before = read_bytes(fleet, target)
            request = fleet.begin(fleet.pair(source, target), prompt, ANSWER)
            assert fleet.answer(request) == answer, f"{length}: {source} -> {target}"
            fleet.settle()
            replicas = max(1, target.tp // KV_HEADS)
            first = max(0, length - WINDOW + 1) // BLOCK
            blocks = -(-length // BLOCK)
            per_layer = KV_HEADS * PARTS * BLOCK * DIM * 4 * replicas
            due = per_layer * ((LAYERS - len(windowed)) * blocks + len(windowed) * (blocks - first))
            assert read_bytes(fleet, target) - before == due, f"{length}: {source} -> {target}"
            there = Blocks(fleet.pids(Role.PREFILL, source), source, windowed)
            here = Blocks(fleet.pids(Role.DECODE, target), target, windowed)
            for layer, head, block in product(range(LAYERS), range(KV_HEADS), range(blocks)):
                right = truth[layer][:, head, block * BLOCK : (block + 1) * BLOCK]
                owners = there.near(
                    layer, head, right, most := TOLERANCE * float(np.abs(truth[layer]).max())
                )
                takers = here.near(layer, head, right, most)
                where = f"{length}: {source} -> {target}, layer {layer}, head {head}, block {block}"
                if layer in windowed and block < first:
                    assert not takers, where
                else:
                    assert len(owners) == max(1, source.tp // KV_HEADS), where
                    assert len(takers) == replicas, where
                    assert all(
                        any(np.array_equal(bits, owner) for owner in owners) for bits in takers
                    ), where
    finally:
        fleet.close()


def read_bytes(fleet: Fleet, layout: Layout) -> int:
    """Bytes that the ranks of a decode worker have read so far."""
    name = fleet.names[Role.DECODE, layout]
    return sum(view.counters.ranks.read_bytes for view in fleet.books() if view.name == name)
