"""What serve and worker know before anything heavy is loaded."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from tests.core.build import table
from tests.engine.quantization.packing import gptq, rewrite
from tests.tiny import make_tiny

from baton.cli import compose_rank
from baton.cli.host_share import automatic, uses_host_memory
from baton.cli.preflight import _weights, require_room
from baton.core.errors import ConfigError
from baton.core.ids import GroupName
from baton.core.memory.state import Group, Unit, Whole
from baton.engine.checkpoint import Checkpoint
from baton.shell.settings import HostKvMemory, Role, WorkerSettings

GIB = 1 << 30
WORKER = WorkerSettings(
    role=Role.DECODE,
    name="decode-0",
    model="/m",
    served_model_name="m",
    dtype="auto",
    max_model_len=None,
    page_tokens=64,
    kv_pages=None,
    kv_bytes=4 * GIB,
    host_kv_memory=HostKvMemory(0),
    max_batched_tokens=512,
    max_num_seqs=8,
    threads=1,
    cores=(),
    fabrics=("shm",),
    seal=True,
    gateways=("tcp://127.0.0.1:1",),
    secret=None,
    bind="tcp://127.0.0.1:0",
    log_level="info",
)


@pytest.mark.parametrize(
    ("pools", "weights", "available", "fits"),
    [
        ([4, 4], [1, 1], 10, True),
        ([4, 4], [1, 1], 9, False),  # each alone would fit
        ([4], [1], 5, True),
        ([4], [2], 5, False),  # the pool alone would fit
        ([None, 4], [1, 1], 6, True),  # a pool in pages: the worker itself knows how large they are
    ],
)
def test_the_workers_of_a_machine_share_its_memory(pools, weights, available, fits):
    def size(pool):
        return {"kv_bytes": None, "kv_pages": 1} if pool is None else {"kv_bytes": pool * GIB}

    workers = [
        msgspec.structs.replace(WORKER, name=f"w{i}", **size(pool)) for i, pool in enumerate(pools)
    ]
    sizes = [w * GIB for w in weights]
    if fits:
        require_room(workers, weights=sizes, available=available * GIB)
        return
    with pytest.raises(
        ConfigError,
        match=rf"w0.* need \d+ GiB .* {available} GiB are " rf"available; lower --kv-memory",
    ):
        require_room(workers, weights=sizes, available=available * GIB)


def test_each_rank_has_a_pool_of_its_own():
    worker = msgspec.structs.replace(WORKER, tp=2, pp=2)
    require_room([worker], weights=[GIB], available=17 * GIB)
    with pytest.raises(ConfigError, match="pools of 16 GiB"):
        require_room([worker], weights=[GIB], available=16 * GIB)
    follower = msgspec.structs.replace(worker, rank=3, rendezvous="127.0.0.1:1")
    require_room([follower], weights=[GIB], available=5 * GIB)


def test_host_memory_of_those_that_generate_counts_too():
    worker = msgspec.structs.replace(WORKER, host_kv_memory=HostKvMemory(3 * GIB), tp=2)
    require_room([worker], weights=[GIB], available=15 * GIB)
    with pytest.raises(
        ConfigError, match=r"weights of 1 GiB, 6 GiB for requests .* " r"--host-kv-memory"
    ):
        require_room([worker], weights=[GIB], available=14 * GIB)
    require_room(
        [msgspec.structs.replace(worker, role=Role.PREFILL)], weights=[GIB], available=9 * GIB
    )
    require_room(
        [msgspec.structs.replace(worker, host_kv_memory=HostKvMemory())],
        weights=[GIB],
        available=9 * GIB,
    )


@pytest.mark.parametrize(
    ("pools", "available", "ranks", "found"),
    [(4, 100, 1, 8), (4, 100, 4, 6), (4, 20, 1, 5), (4, 0, 1, 0)],
)
def test_where_nobody_says_twice_the_pools_and_a_quarter_of_what_is_free_at_most(
    pools, available, ranks, found
):
    assert automatic(pools * GIB, available=available * GIB, ranks=ranks) // GIB == found


def test_all_ranks_of_all_workers_that_generate_share_it(monkeypatch):
    """96 GiB are free, a quarter of them for two workers of three ranks."""
    monkeypatch.setattr(compose_rank, "available_bytes", lambda: 96 * GIB)
    one = msgspec.structs.replace(WORKER, host_kv_memory=HostKvMemory(sharers=2), tp=3)
    rank = SimpleNamespace(
        settings=one,
        placement=SimpleNamespace(table=table()),
        _host_pools={"full": SimpleNamespace(nbytes=40 * GIB)},
    )
    assert compose_rank.RankResources._host_bytes(rank) == 4 * GIB
    rank.settings = msgspec.structs.replace(one, role=Role.PREFILL)
    assert compose_rank.RankResources._host_bytes(rank) == 0


@pytest.mark.parametrize("off", [{}, {"prefix_caching": False}, {"seal": False}])
def test_prefill_keeps_the_ends_of_prompts_where_state_does_not_last(off):
    slot = Group(GroupName("slot"), Unit.SLOT, Whole())
    mixed = msgspec.structs.replace(table(), groups=(*table().groups, slot))
    for role, state, uses in (
        (Role.PREFILL, table(), False),
        (Role.PREFILL, mixed, not off),
        (Role.DECODE, table(), True),
        (Role.UNIFIED, mixed, True),
    ):
        settings = msgspec.structs.replace(WORKER, role=role, **off)
        assert uses_host_memory(settings, state) == uses


def test_quantised_weights_count_as_what_they_are_served_in(tmp_path: Path) -> None:
    """Four bits a weight in the file, two bytes in memory."""
    make_tiny(tmp_path / "model")
    said = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    rewrite(tmp_path / "model", gptq(), said, tmp_path / "meant")
    worker = msgspec.structs.replace(WORKER, dtype="bfloat16")
    plain, quantised = (
        _weights(Checkpoint.open(tmp_path / name), [worker]) for name in ("meant", "model")
    )
    assert quantised == plain


def test_torch_is_not_needed_to_look():
    code = "import sys, baton.cli.preflight; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert (
        set(done.stdout.split()) & {"torch", "transformers", "numba", "tokenizers", "fastapi"}
        == set()
    )
