"""Two workers that do not fit are told which field differs, what each has there, and what to do."""

from typing import Any

import msgspec
import pytest
from tests.core.build import KV, manifest, table

from baton.core.errors import Mismatch
from baton.core.ids import Boot
from baton.core.manifest import Manifest, PoolView, RankManifest, choose_fabric, require_fit
from baton.core.memory.kinds import HOST, CudaMemory, MemoryKind

FREE = {"protocol", "role", "page_blocks", "tp", "pp", "max_model_len", "ranks"}  # may differ


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("protocol", 99, "same version"),
        ("model", "other", "--served-model-name"),
        ("dtype", "bfloat16", "--dtype"),
        ("weights", "cd" * 16, "same checkpoint"),
        ("seal", False, "--seal"),
    ],
)
def test_the_field_both_values_and_the_remedy_are_named(
    field: str, value: Any, remedy: str
) -> None:
    ours = manifest("decode", 1)
    theirs = msgspec.structs.replace(manifest("prefill", 2), **{field: value})
    require_fit(ours, manifest("prefill", 2))
    with pytest.raises(Mismatch) as raised:
        require_fit(ours, theirs)
    assert raised.value.field == field
    told = str(raised.value)
    assert repr(getattr(ours, field)) in told
    assert repr(value) in told
    assert remedy in told


def test_another_table_is_named_by_its_part() -> None:
    theirs = msgspec.structs.replace(manifest("prefill", 2), table=table(layers=3))
    with pytest.raises(
        Mismatch,
        match=r"table\.num_layers differs: ours is 2, theirs is 3: "
        r"start both from the same checkpoint",
    ):
        require_fit(manifest("decode", 1), theirs)


def test_every_field_is_compared_or_free_to_differ() -> None:
    from baton.core.manifest import MUST_AGREE

    assert set(Manifest.__struct_fields__) == set(MUST_AGREE) | FREE


# ---- fabrics -------------------------------------------------------------------------------------


def worker(*ranks: str) -> Manifest:
    """Ranks by what they expose, in order of preference: "shm@host" stays on its host."""
    return msgspec.structs.replace(
        manifest("decode", 1), ranks=tuple(rank(n, names.split()) for n, names in enumerate(ranks))
    )


def rank(number: int, names: list[str]) -> RankManifest:
    exposures = {name.split("@")[0]: b"" for name in names}
    return RankManifest(
        Boot(number),
        number,
        number,
        0,
        (),
        exposures,
        dict(n.split("@") for n in names if "@" in n),
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "chosen"),
    [
        (["shm@a nixl"], ["shm@a nixl"], "shm"),
        (["nixl shm@a"], ["nixl shm@a"], "shm"),
        (["shm@a nixl"], ["shm@b nixl"], "nixl"),
        (["shm@a nixl tcp"], ["shm@b tcp nixl"], "nixl"),
        (["shm@a tcp nixl"], ["shm@b nixl tcp"], "tcp"),
        (["shm@a nixl"], ["nixl"], "nixl"),
        (["nixl"], ["nixl carrier-pigeon"], "nixl"),
        (["shm@a"], ["shm@a"], "shm"),
        (["shm@a nixl", "shm@b nixl"], ["shm@a nixl"], "nixl"),
        (["shm@a nixl"], ["shm@a nixl", "shm@b nixl"], "nixl"),
        (["shm@a tcp", "shm@a nixl tcp"], ["shm@b nixl tcp"], "tcp"),
        (["shm@a nixl tcp"], ["shm@b nixl tcp", "shm@b tcp"], "tcp"),
    ],
)
def test_the_nearest_fabric_that_all_ranks_have_and_that_reaches_all(
    ours: list[str], theirs: list[str], chosen: str
) -> None:
    assert choose_fabric(worker(*ours), worker(*theirs)) == chosen


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        (["shm@a"], ["shm@b"], r"ours is \['shm'\], theirs is \['shm'\]: shm only within one host"),
        (
            ["shm@a nixl"],
            ["tcp"],
            r"ours is \['nixl', 'shm'\], theirs is \['tcp'\]: give both " r"one --fabric",
        ),
        (["nixl", "tcp"], ["nixl"], r"ours is \[\], theirs is \['nixl'\]"),
    ],
)
def test_that_none_reaches_is_said_with_both_lists(
    ours: list[str], theirs: list[str], why: str
) -> None:
    with pytest.raises(Mismatch, match=why):
        choose_fabric(worker(*ours), worker(*theirs))


def in_memory(manifest: Manifest, kind: MemoryKind, device_fabrics: str) -> Manifest:
    """With a pool in this memory on the last rank; these fabrics reach devices from every rank."""
    pools = [(), (PoolView(KV, 1, 64, kind),)]
    ranks = tuple(
        msgspec.structs.replace(
            r, pools=pools[r is manifest.ranks[-1]], device_fabrics=tuple(device_fabrics.split())
        )
        for r in manifest.ranks
    )
    return msgspec.structs.replace(manifest, ranks=ranks)


@pytest.mark.parametrize(
    ("ours", "theirs", "chosen"),
    [
        ((HOST, "nixl"), (HOST, "nixl"), "shm"),
        ((HOST, ""), (HOST, ""), "shm"),
        ((CudaMemory(0), "nixl"), (HOST, "nixl"), "nixl"),
        ((HOST, "nixl"), (CudaMemory(1), "nixl"), "nixl"),
        ((CudaMemory(0), "nixl"), (CudaMemory(0), "nixl"), "nixl"),
        ((CudaMemory(0), "nixl tcp"), (HOST, "tcp nixl"), "tcp"),
        ((CudaMemory(0), "nixl shm"), (HOST, "shm"), "shm"),
    ],
)
def test_a_pool_on_a_device_is_read_by_a_fabric_that_reaches_devices_from_both(
    ours: tuple[MemoryKind, str], theirs: tuple[MemoryKind, str], chosen: str
) -> None:
    names = "shm@a tcp nixl", "shm@a tcp nixl"
    assert choose_fabric(in_memory(worker(*names), *ours), in_memory(worker(*names), *theirs)) == (
        chosen
    )


def test_that_no_fabric_reaches_the_device_is_said_with_its_name() -> None:
    ours = in_memory(worker("shm@a nixl tcp"), HOST, "nixl")
    theirs = in_memory(worker("shm@a tcp", "shm@a tcp"), CudaMemory(3), "")
    with pytest.raises(Mismatch, match=r"cuda:3, and shm, tcp cannot reach .* --fabric .* nixl"):
        choose_fabric(ours, theirs)
