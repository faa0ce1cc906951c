"""Recurrent state between real processes: every part of a slot is where its heads are, bit for bit,
whatever the layouts.

As in test_layouts.py the bytes are read from outside and cut by arithmetic of this file. What a
decode rank has got is looked at when its reads have ended, for its first step overwrites it; what
prefill computed is compared with `transformers`.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.e2e.fleet import Fleet, Layout, pools_of
from tests.e2e.landings import landed
from tests.e2e.layouts import BLOCK, RECURRENT, Recurrent
from tests.e2e.nursery import Nursery
from tests.e2e.reference import Reference
from tests.e2e.test_windows import read_bytes
from tests.tiny import HYBRID, make_tiny

from baton.shell.settings import Role

LAYERS, ANSWER = 4, 3
KV_HEADS, DIM = 2, 16
KEY_HEADS, VALUE_HEADS = HYBRID["linear_num_key_heads"], HYBRID["linear_num_value_heads"]
KEY, VALUE, PAST = (
    HYBRID["linear_key_head_dim"],
    HYBRID["linear_value_head_dim"],
    HYBRID["linear_conv_kernel_dim"] - 1,
)
HEADS = {"s": VALUE_HEADS, "q": KEY_HEADS, "k": KEY_HEADS, "v": VALUE_HEADS, "kv": KV_HEADS}
TOLERANCE = 1e-4  # of the largest element of its kind
Unit = tuple[str, int, int]  # what, layer, head
Units = dict[Unit, np.ndarray]  # uint32, the bits of each


def held(heads: int, layout: Layout, rank: int) -> range:
    """Heads of a rank: a part of them, or one that others hold too."""
    tp, r = layout.tp, rank % layout.tp
    return (
        range(r * heads // tp, (r + 1) * heads // tp)
        if tp <= heads
        else range(r * heads // tp, r * heads // tp + 1)
    )


def stage(layout: Layout, rank: int, layers: Sequence[int]) -> list[int]:
    """Those of these layers that a rank holds."""
    each = LAYERS // layout.pp
    return [y for y in layers if y // each == rank // layout.tp]


def slot_units(pool: np.ndarray, k: Recurrent, layout: Layout, rank: int) -> Units:
    """What lies in the one slot of a rank that is not empty."""
    layers = stage(layout, rank, [y for y in range(LAYERS) if y not in k.attending])
    rows = {"s": KEY * VALUE, "q": PAST * KEY, "k": PAST * KEY, "v": PAST * VALUE}
    sizes = [
        ((name, y, h), row)
        for name, row in rows.items()
        for h in held(HEADS[name], layout, rank)
        for y in layers
    ]
    slots = pool.view(np.uint32).reshape(-1, sum(row for _, row in sizes))
    (used,) = np.flatnonzero(slots.any(axis=1))
    borders = np.cumsum([row for _, row in sizes])[:-1]
    return {
        unit: words for (unit, _), words in zip(sizes, np.split(slots[used], borders), strict=True)
    }


def page_units(pool: np.ndarray, k: Recurrent, layout: Layout, rank: int, length: int) -> Units:
    """K and V of the positions, from the first page on: [part, position, dim] of each layer and
    head."""
    layers, heads = stage(layout, rank, k.attending), held(KV_HEADS, layout, rank)
    blocks = pool.view(np.uint32).reshape(-1, len(heads), len(layers), 2, BLOCK, DIM)[
        : -(-length // BLOCK)
    ]
    state = np.concatenate(list(blocks), axis=3)[:, :, :, :length]
    return {("kv", y, h): state[i, j] for i, h in enumerate(heads) for j, y in enumerate(layers)}


def units(
    pools: dict[str, np.ndarray], k: Recurrent, layout: Layout, rank: int, length: int
) -> Units:
    """Everything that a rank holds."""
    found = page_units(pools["full"], k, layout, rank, length) if "full" in pools else {}
    return found | slot_units(pools["slot"], k, layout, rank) if "slot" in pools else found


def groups(k: Recurrent, layout: Layout, rank: int) -> list[str]:
    """Those of which a rank has pools, in their order."""
    attending = stage(layout, rank, k.attending)
    return ["full"] * bool(attending) + ["slot"] * (len(attending) < LAYERS // layout.pp)


def now(fleet: Fleet, role: Role, layout: Layout, k: Recurrent, length: int) -> list[Units]:
    """What the ranks of a worker hold now."""
    found = []
    for rank, pid in enumerate(fleet.pids(role, layout)):
        pools = dict(zip(groups(k, layout, rank), pools_of(pid), strict=True))
        found.append(units(pools, k, layout, rank, length))
    return found


class Hybrid(Reference):
    """What transformers computes."""

    def units(self, prompt: Sequence[int]) -> Units:
        """float32, by (what, layer, head)."""
        from transformers.cache_utils import LinearAttentionLayer

        with torch.inference_mode():
            cache = self.model(torch.tensor([prompt]), use_cache=True).past_key_values
        found: Units = {}
        for y, layer in enumerate(cache.layers):
            parts = _linear(layer) if isinstance(layer, LinearAttentionLayer) else _full(layer)
            found |= {
                (name, y, h): rows.numpy() for name, heads in parts for h, rows in enumerate(heads)
            }
        return found


def _full(layer: Any) -> Iterator[tuple[str, Sequence[torch.Tensor]]]:
    """By head: [key and value, position, dim]."""
    yield "kv", torch.stack((layer.keys[0], layer.values[0]), 1)


def _linear(layer: Any) -> Iterator[tuple[str, Sequence[torch.Tensor]]]:
    """By head: the state [key, value], and the last inputs of the convolution, the oldest first:
    [past, elements]."""
    past = layer.conv_states[0][0, :, -PAST:]
    q, k, v = torch.split(past, [KEY_HEADS * KEY, KEY_HEADS * KEY, VALUE_HEADS * VALUE])
    yield "s", layer.recurrent_states[0][0]
    for name, rows, heads in (("q", q, KEY_HEADS), ("k", k, KEY_HEADS), ("v", v, VALUE_HEADS)):
        yield name, rows.reshape(heads, -1, PAST).transpose(1, 2)


def due_bytes(k: Recurrent, target: Layout, length: int) -> int:
    """What all ranks of a worker read: every row of every head that one of them holds, as often as
    it is held."""
    keys, values, kv = (max(n, target.tp) for n in (KEY_HEADS, VALUE_HEADS, KV_HEADS))
    slot = values * KEY * VALUE + 2 * keys * PAST * KEY + values * PAST * VALUE
    pages = -(-length // BLOCK) * kv * 2 * BLOCK * DIM
    return 4 * ((LAYERS - len(k.attending)) * slot + len(k.attending) * pages)


@pytest.mark.parametrize(
    "kind", [pytest.param(n, marks=[pytest.mark.slow] * k.slow) for n, k in RECURRENT.items()]
)
@pytest.mark.timeout(300)
def test_slots_go_between_any_layouts_bit_for_bit(
    tmp_path: Path, nursery: Nursery, kind: str
) -> None:
    k = RECURRENT[kind]
    kinds = ["full_attention" if y in k.attending else "linear_attention" for y in range(LAYERS)]
    path = make_tiny(tmp_path / "model", k.family, num_hidden_layers=LAYERS, layer_types=kinds)
    reference, prompts = (
        Hybrid(path),
        [np.random.default_rng(n).integers(0, 300, n).tolist() for n in k.lengths],
    )
    # before: a fleet wants to be turned
    due = [(p, reference.answer(p, ANSWER), reference.units(p)) for p in prompts]
    (copies := tmp_path / "landed").mkdir()
    watched = {(Role.DECODE, layout): {"landings": str(copies)} for layout in k.decode}
    workers = {Role.PREFILL: k.prefill, Role.DECODE: k.decode, Role.UNIFIED: k.unified}
    fleet = Fleet(nursery, tmp_path / "logs", path, workers, fabric=k.fabric, hurt=watched)
    pairs = list(product(k.prefill, k.decode))
    try:
        for number, (prompt, answer, truth) in enumerate(due):
            source, target = pairs[number % len(pairs)]
            length, where = len(prompt), f"{len(prompt)}: {source} -> {target}"
            fleet.clear()
            before = read_bytes(fleet, target)
            assert (
                fleet.answer(fleet.begin(fleet.pair(source, target), prompt, ANSWER)) == answer
            ), where
            fleet.settle()
            assert read_bytes(fleet, target) - before == due_bytes(k, target, length), where
            there, here = now(fleet, Role.PREFILL, source, k, length), []
            for rank, pid in enumerate(fleet.pids(Role.DECODE, target)):
                pools = {group: landed(copies, pid, group) for group in groups(k, target, rank)}
                here.append(units(pools, k, target, rank, length))
            assert set().union(*there) == set().union(*here) == set(truth), where
            for unit, right in truth.items():
                owners, takers = (
                    [rank[unit] for rank in ranks if unit in rank] for ranks in (there, here)
                )
                copies_of = [max(1, layout.tp // HEADS[unit[0]]) for layout in (source, target)]
                assert [len(owners), len(takers)] == copies_of, f"{where} {unit}"
                most = TOLERANCE * max(
                    float(np.abs(rows).max())
                    for other, rows in truth.items()
                    if other[0] == unit[0]
                )
                for bits in owners:
                    assert (
                        np.abs(bits.view(np.float32).reshape(right.shape) - right).max() <= most
                    ), f"{where} {unit}"
                for bits in takers:
                    assert any(np.array_equal(bits, owner) for owner in owners), f"{where} {unit}"
        for layout, (prompt, answer, _) in product(k.unified, due[-1:]):
            held_by = []
            unified = fleet.boot(Role.UNIFIED, layout)
            for role, pair in (
                (Role.PREFILL, fleet.pair(layout, k.decode[0])),
                (Role.UNIFIED, (unified, unified)),
            ):
                fleet.clear()
                # a second one would change the slot
                assert fleet.answer(fleet.begin(pair, prompt, 1)) == answer[:1]
                fleet.settle()
                held_by.append(now(fleet, role, layout, k, len(prompt)))
            for rank, (ours, theirs) in enumerate(zip(*held_by, strict=True)):
                assert ours.keys() == theirs.keys()
                assert all(np.array_equal(ours[unit], theirs[unit]) for unit in ours), (
                    f"unified {layout}, rank {rank}"
                )
    finally:
        fleet.close()
