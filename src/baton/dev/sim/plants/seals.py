"""Seals that do not notice what a seal must notice."""

import numpy as np
from numpy.typing import NDArray

from baton.core.handoff import seal
from baton.core.ids import GroupName
from baton.core.memory.state import Placement, SpecPlace
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant

Sums = NDArray[np.uint64]


def _blind(
    pool: NDArray[np.uint8],
    placement: Placement,
    group: GroupName,
    slots: NDArray[np.int64],
    numbers: NDArray[np.int64],
    identity: int,
) -> Sums:
    return np.zeros_like(seal.block_sums(pool, placement, group, slots, numbers, identity))


def _added(blocks: NDArray[np.uint8], place: SpecPlace, keys: Sums) -> Sums:
    """Sum like core/handoff/seal.py, but with mix(words) + key where it has mix(words XOR key).
    Rows of the simulator are one cell."""
    n, _, units, parts, tokens = keys.shape
    rows = blocks[:, place.offset : place.offset + place.nbytes].reshape(
        n, units, parts, tokens, place.row_bytes
    )
    words = np.ascontiguousarray(rows).view("<u4").astype(np.uint64)
    dots: Sums = (words * seal.constants(words.shape[-1])).sum(axis=-1, dtype=np.uint64)
    added: Sums = seal.mix(dots) + keys[:, 0]
    total: Sums = added.sum(axis=(2, 3), dtype=np.uint64)
    return total


_unit_keys, _row_keys = seal._unit_keys, seal.row_keys


def _without_head(
    spec: int, layers: tuple[int, ...], parts: int, first_head: int, past_head: int
) -> Sums:
    one = _unit_keys(spec, layers, parts, 0, 1)
    return np.tile(one, (past_head - first_head, 1))


def _without_layer(
    spec: int, layers: tuple[int, ...], parts: int, first_head: int, past_head: int
) -> Sums:
    return _unit_keys(spec, (0,) * len(layers), parts, first_head, past_head)


def _without_part(
    spec: int, layers: tuple[int, ...], parts: int, first_head: int, past_head: int
) -> Sums:
    return np.repeat(_unit_keys(spec, layers, 1, first_head, past_head), parts, axis=1)


def _without_position(units: Sums, positions: Sums, cell: int) -> Sums:
    return _row_keys(units, np.zeros_like(positions), cell)


def _seal(name: str, models: str, owner_name: str, value: object) -> Plant:
    """Keys are not remembered: shipped code would go on with those of the plant, and the plant with
    those of shipped code."""
    afresh = Replaced(seal, "_block_keys", seal._block_keys.__wrapped__)
    return Plant(
        name,
        models,
        ("right_commit",),
        None,
        lambda: Parts(replaced=(Replaced(seal, owner_name, value), afresh)),
    )


PLANTS = (
    Plant("blind_seal", "every sum is 0", ("right_commit",), 9, lambda: Parts(block_sums=_blind)),
    _seal(
        "seal_key_added",
        "a row's key is added to its hash and not mixed in: rows that change places go unnoticed",
        "_spec_sums",
        _added,
    ),
    _seal(
        "seal_without_head", "the key of a row does not name its head", "_unit_keys", _without_head
    ),
    _seal(
        "seal_without_layer",
        "the key of a row does not name its layer",
        "_unit_keys",
        _without_layer,
    ),
    _seal(
        "seal_without_part",
        "the key of a row does not say whether it is of k or v",
        "_unit_keys",
        _without_part,
    ),
    _seal(
        "seal_without_position",
        "the key of a row does not name its position",
        "row_keys",
        _without_position,
    ),
)
