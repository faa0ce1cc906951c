"""Latent rows and index keys between real processes: every rank of a stage ends with all of them,
each read once.

As in test_layouts.py the bytes are read from outside and cut by arithmetic of this file. A block is
looked for in the pools by what it must hold: of a latent row the compressed part, of an index key
what is not rotated, as `transformers` computes them. All other bits of the block are then compared
with the block of the prefill rank that computed it.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tests.e2e.fleet import Fleet, Layout, pools_of
from tests.e2e.nursery import Nursery
from tests.e2e.reference import Reference
from tests.e2e.test_windows import read_bytes
from tests.tiny import LATENT, make_tiny

from baton.shell.settings import Role

BLOCK, LAYERS, ANSWER = 16, 4, 3
COMPRESSED, TURNED, KEY = LATENT["kv_lora_rank"], LATENT["qk_rope_head_dim"], 28
TOLERANCE = 1e-4
L = Layout
# an index chooses 20 positions
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 19, 20, 21, 5 * BLOCK + 7, 10 * BLOCK + 1)
PREFILL, DECODE = (L(1), L(4, page=64), L(1, 2)), (L(1, page=64), L(2), L(1, 2))


class Kind(msgspec.Struct, frozen=True):
    """A family, what it is handed over through, and its layers that have an index of their own."""

    family: str
    indexed: tuple[int, ...]
    fabric: str = "shm"


KINDS = {
    "glm_moe_dsa": Kind("glm_moe_dsa", tuple(range(LAYERS))),
    "deepseek_v3": Kind("deepseek_v3", (), "nixl"),
    "deepseek_v32": Kind("deepseek_v32", tuple(range(LAYERS)), "nixl"),
}


class Rows(Reference):
    """Of every layer compressed rows and index keys too, before they are rotated."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._seen: dict[tuple[str, int], np.ndarray] = {}
        for n, layer in enumerate(self.model.model.layers):
            attention = layer.self_attn
            attention.kv_a_layernorm.register_forward_hook(self._keep("c", n))
            if getattr(attention, "indexer", None) is not None:
                attention.indexer.k_norm.register_forward_hook(self._keep("k", n))

    def _keep(self, name: str, layer: int) -> Any:
        def hook(_module: object, _inputs: object, out: torch.Tensor) -> None:
            self._seen[name, layer] = out.reshape(-1, out.shape[-1]).numpy().copy()

        return hook

    def rows(self, prompt: Sequence[int]) -> dict[tuple[str, int], np.ndarray]:
        """(name, layer) -> float32 [positions, known columns]."""
        self._seen.clear()
        self.answer(prompt, 1)
        return {at: rows if at[0] == "c" else rows[:, TURNED:] for at, rows in self._seen.items()}


def blocks_of(pid: int, stage: range, indexed: Sequence[int]) -> dict[tuple[str, int], np.ndarray]:
    """What a rank's pool holds: (name, layer) -> uint32 [blocks, token, column], the known columns
    first."""
    (pool,) = pools_of(pid)
    keyed = [y for y in stage if y in indexed]
    sizes = {("c", y): COMPRESSED + TURNED for y in stage} | {("k", y): KEY for y in keyed}
    words = pool.view(np.uint32).reshape(-1, BLOCK * sum(sizes.values()))
    found, at = {}, 0
    for (name, layer), width in sizes.items():
        rows = words[:, at : at + BLOCK * width].reshape(-1, BLOCK, width)
        found[name, layer] = rows if name == "c" else np.roll(rows, -TURNED, axis=2)
        at += BLOCK * width
    return found


def holders(
    ranks: Sequence[dict[tuple[str, int], np.ndarray]], at: tuple[str, int], right: np.ndarray
) -> list[np.ndarray]:
    """Of each rank of the layer's stage the block that begins with about these rows, as bits, if
    there is one."""
    found, most = [], TOLERANCE * float(np.abs(right).max())
    for rank in ranks:
        if at in rank:
            rows = np.ascontiguousarray(rank[at][:, : len(right)])
            near = (np.abs(rows.view(np.float32)[:, :, : right.shape[1]] - right) <= most).all(
                axis=(1, 2)
            )
            found += list(rows[np.flatnonzero(near)[:1]])
    return found


@pytest.mark.parametrize(
    "kind",
    [pytest.param(n, marks=[pytest.mark.slow] * (k.fabric != "shm")) for n, k in KINDS.items()],
)
@pytest.mark.timeout(300)
def test_every_rank_gets_every_row_once_from_one_source(
    tmp_path: Path, nursery: Nursery, kind: str
) -> None:
    k = KINDS[kind]
    path = make_tiny(tmp_path / "model", k.family, num_hidden_layers=LAYERS)
    reference, prompts = (
        Rows(path),
        [np.random.default_rng(n).integers(0, 300, n).tolist() for n in LENGTHS],
    )
    # before: a fleet wants to be turned
    due = [(p, reference.answer(p, ANSWER), reference.rows(p)) for p in prompts]
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        path,
        {Role.PREFILL: PREFILL, Role.DECODE: DECODE},
        fabric=k.fabric,
    )
    per_block = 4 * BLOCK * (LAYERS * (COMPRESSED + TURNED) + len(k.indexed) * KEY)
    try:
        for (prompt, answer, known), (source, target) in zip(
            due, product(PREFILL, DECODE), strict=True
        ):
            length = len(prompt)
            fleet.clear()
            before = read_bytes(fleet, target)
            request = fleet.begin(fleet.pair(source, target), prompt, ANSWER)
            assert fleet.answer(request) == answer, f"{length}: {source} -> {target}"
            fleet.settle()
            blocks = -(-length // BLOCK)
            assert read_bytes(fleet, target) - before == target.tp * blocks * per_block, (
                f"{length}: {source} -> {target}"
            )
            there, here = (
                [
                    blocks_of(pid, stage(rank, layout), k.indexed)
                    for rank, pid in enumerate(fleet.pids(role, layout))
                ]
                for role, layout in ((Role.PREFILL, source), (Role.DECODE, target))
            )
            for at, rows in known.items():
                for block in range(blocks):
                    right = rows[block * BLOCK : (block + 1) * BLOCK]
                    owners, takers = holders(there, at, right), holders(here, at, right)
                    where = f"{length}: {source} -> {target}, {at}, block {block}"
                    assert (len(owners), len(takers)) == (source.tp, target.tp), where
                    assert all(
                        any(np.array_equal(bits, owner) for owner in owners) for bits in takers
                    ), where
    finally:
        fleet.close()


def stage(rank: int, layout: Layout) -> range:
    """Layers of a rank."""
    each = LAYERS // layout.pp
    return range(rank // layout.tp * each, (rank // layout.tp + 1) * each)
