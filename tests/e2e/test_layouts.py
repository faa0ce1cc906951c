"""Any layout to any other, between real processes: right bytes in the right place of every decode
rank, and right tokens.

The bytes are read from outside (the pools are memory files) and cut by arithmetic of this file
alone: no plan, no placement, no seal. Each row is compared bit for bit with the row of the prefill
rank that computed it, and, to know that this is the row of that layer, head and position, with what
transformers computes for it.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.fleet import Fleet, Layout
from tests.e2e.layouts import BLOCK, KINDS, PRODUCT, Kind
from tests.e2e.nursery import Nursery
from tests.e2e.reference import Reference
from tests.tiny import make_tiny

from baton.adapters.fabrics import available
from baton.shell.settings import Role

PARTS, ANSWER = 2, 8
TOLERANCE = 1e-4  # of the largest element: sums over ranks are made in another order


def rows(
    pools: Sequence[np.ndarray], layout: Layout, k: Kind, length: int
) -> list[dict[tuple[int, int], np.ndarray]]:
    """For every rank: (layer, head) -> uint32 [part, position, dim], the bits of what its pool
    holds from its first page on."""
    held, each = max(1, k.kv_heads // layout.tp), k.layers // layout.pp
    found = []
    for rank, pool in enumerate(pools):
        blocks = pool.view(np.uint32).reshape(-1, held, each, PARTS, BLOCK, k.dim)[
            : -(-length // BLOCK)
        ]
        # [head, layer, part, position, dim]
        state = np.concatenate(list(blocks), axis=3)[:, :, :, :length]
        first_head = rank % layout.tp * k.kv_heads // layout.tp
        first_layer = rank // layout.tp * each
        found.append(
            {
                (first_layer + y, first_head + h): state[h, y]
                for h in range(held)
                for y in range(each)
            }
        )
    return found


def _marks(k: Kind) -> list[pytest.MarkDecorator]:
    obstacle = available()[k.fabric]
    missing = [pytest.mark.skip(reason=f"{k.fabric}: {obstacle}")] if obstacle else []
    return [*missing, *[pytest.mark.slow] * k.slow]


@pytest.mark.parametrize("kind", [pytest.param(n, marks=_marks(k)) for n, k in KINDS.items()])
@pytest.mark.timeout(600)
def test_every_layout_hands_over_to_every_other(
    tmp_path: Path, nursery: Nursery, kind: str, request: pytest.FixtureRequest
) -> None:
    k = KINDS[kind]
    every_pair(
        tmp_path,
        nursery,
        k,
        request.getfixturevalue("trial") if kind == "trial" else random_model(tmp_path, k),
    )


@pytest.mark.parametrize("kind", [pytest.param(n, marks=_marks(k)) for n, k in PRODUCT.items()])
@pytest.mark.timeout(1800)
def test_every_pair_goes_through_every_fabric(tmp_path: Path, nursery: Nursery, kind: str) -> None:
    every_pair(tmp_path, nursery, PRODUCT[kind], random_model(tmp_path, PRODUCT[kind]))


def random_model(tmp_path: Path, k: Kind) -> Path:
    """A checkpoint of that shape."""
    return make_tiny(
        tmp_path / "model",
        k.family,
        num_hidden_layers=k.layers,
        num_attention_heads=k.heads,
        hidden_size=8 * k.heads,
        num_key_value_heads=k.kv_heads,
        head_dim=k.dim,
        intermediate_size=24 * k.heads,
    )


def every_pair(tmp_path: Path, nursery: Nursery, k: Kind, path: Path) -> None:
    """Start all of a kind's workers, and hand a request over between each two of them."""
    reference, due = Reference(path), []
    for number in range(len(k.prefill) * len(k.decode)):
        prompt = (
            np.random.default_rng(number)
            .integers(0, 300, k.lengths[number % len(k.lengths)])
            .tolist()
        )
        due.append((prompt, reference.answer(prompt, ANSWER), reference.state(prompt)))
    workers = {Role.PREFILL: k.prefill, Role.DECODE: k.decode, Role.UNIFIED: k.unified}
    fleet = Fleet(nursery, tmp_path / "logs", path, workers, fabric=k.fabric)
    try:
        for (prompt, answer, truth), (prefill, decode) in zip(
            due, product(k.prefill, k.decode), strict=True
        ):
            fleet.clear()
            asked = fleet.begin(fleet.pair(prefill, decode), prompt, ANSWER)
            assert fleet.answer(asked) == answer, f"{prefill} -> {decode}"
            fleet.settle()
            sources = rows(fleet.pools(Role.PREFILL, prefill), prefill, k, len(prompt))
            targets = rows(fleet.pools(Role.DECODE, decode), decode, k, len(prompt))
            for place in [(y, h) for y in range(k.layers) for h in range(k.kv_heads)]:
                owners = [rank[place] for rank in sources if place in rank]
                takers = [rank[place] for rank in targets if place in rank]
                right = truth[:, place[0], place[1]]
                assert len(owners) == max(1, prefill.tp // k.kv_heads)
                assert len(takers) == max(1, decode.tp // k.kv_heads)
                for bits in owners:
                    assert (
                        np.abs(bits.view(np.float32) - right).max()
                        <= TOLERANCE * np.abs(truth).max()
                    ), f"{prefill} {place}"
                for bits in takers:
                    assert any(np.array_equal(bits, owner) for owner in owners), (
                        f"{prefill} -> {decode} {place}"
                    )
        for layout in k.unified:
            prompt, answer, _ = due[0]
            pools = []
            for role, pair in (
                (Role.PREFILL, fleet.pair(layout, k.decode[0])),
                (Role.UNIFIED, (fleet.boot(Role.UNIFIED, layout),) * 2),
            ):
                fleet.clear()
                assert fleet.answer(fleet.begin(pair, prompt, ANSWER)) == answer
                fleet.settle()
                pools.append(rows(fleet.pools(role, layout), layout, k, len(prompt)))
            for ours, theirs in zip(*pools, strict=True):
                assert ours.keys() == theirs.keys()
                wrong = {
                    place: np.argwhere((ours[place] != theirs[place]).any(axis=(0, 2)))
                    .ravel()
                    .tolist()
                    for place in ours
                }
                assert not any(wrong.values()), (
                    f"unified {layout}: (layer, head) and positions {wrong}"
                )
    finally:
        fleet.close()
