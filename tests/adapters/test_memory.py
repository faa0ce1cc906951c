import fcntl
import os
from pathlib import Path

import numpy as np
import pytest

from baton.adapters import memory
from baton.adapters.memory import HostPool, available_bytes, require_memory
from baton.core.errors import ConfigError

GIB = 1 << 30


def world(
    root: Path, groups: dict[str, dict[str, str]], lines: str, available: int = 8 * GIB
) -> Path:
    """A file tree that looks like /proc and /sys to available_bytes."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {available // 1024} kB\n")
    (root / "proc/self/cgroup").write_text(lines)
    for path, files in groups.items():
        folder = root / "sys/fs/cgroup" / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    return root


def v2(limit: str, used: int, cache: int = 0) -> dict[str, str]:
    return {
        "memory.max": limit,
        "memory.current": str(used),
        "memory.stat": f"anon 5\ninactive_file {cache}\n",
    }


def test_without_a_cgroup_limit_the_machine_counts(tmp_path: Path) -> None:
    assert available_bytes(world(tmp_path, {"a": v2("max", 1)}, "0::/a\n")) == 8 * GIB


def test_the_tightest_parent_group_counts_and_dropped_cache_is_free(tmp_path: Path) -> None:
    groups = {"a": v2(str(3 * GIB), 2 * GIB, cache=GIB // 2), "a/b": v2(str(5 * GIB), GIB)}
    assert available_bytes(world(tmp_path, groups, "0::/a/b\n")) == GIB + GIB // 2


def test_version_1_groups_count(tmp_path: Path) -> None:
    files = {
        "memory.limit_in_bytes": str(2 * GIB),
        "memory.usage_in_bytes": str(GIB),
        "memory.stat": "total_inactive_file 7\n",
    }
    lines = "5:cpu:/x\n4:cpuset,memory:/x\n0::/\n"
    assert available_bytes(world(tmp_path, {"memory/x": files, "memory": {}}, lines)) == GIB + 7


def test_more_in_use_than_allowed_is_nothing_left(tmp_path: Path) -> None:
    assert available_bytes(world(tmp_path, {"a": v2("1000", 2000)}, "0::/a\n")) == 0


def test_too_much_is_refused_before_anything_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise AssertionError("allocated")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(
        ConfigError, match=r"pool 'full' needs 1125899906842624 bytes .* only " r"\d+ .*fewer pages"
    ):
        HostPool(1 << 50, what="pool 'full'")
    for nbytes in (0, -1):
        with pytest.raises(ConfigError, match="positive"):
            require_memory(nbytes, "pool 'full'")


def test_a_pool_is_zeroed_sealed_memory_at_its_address() -> None:
    pool = HostPool(3 * 4096 + 5)
    assert (pool.nbytes, pool.array.nbytes, pool.address % 4096) == (12293, 12293, 0)
    assert not pool.array.any()
    pool.array[-1] = 200
    assert os.pread(pool.fd, 1, pool.nbytes - 1) == b"\xc8"
    assert pool.array.ctypes.data == pool.address
    assert fcntl.fcntl(pool.fd, fcntl.F_GET_SEALS) == memory.POOL_SEALS
    assert not os.get_inheritable(pool.fd)
    pool.close()


def test_a_closed_pool_gives_back_descriptor_and_mapping() -> None:
    def state() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count(
            "baton-pool"
        )

    before = state()
    pool = HostPool(4096)
    assert state() != before
    pool.close()
    pool.close()
    assert state() == before
    with pytest.raises(ValueError, match="closed"):
        _ = pool.array


def test_views_outlive_the_pool_and_the_mapping_goes_with_the_last() -> None:
    before = Path("/proc/self/maps").read_text().count("baton-pool")
    pool = HostPool(4096)
    view = pool.array[100:116]
    pool.close()
    view[:] = 1
    assert int(view.sum()) == 16
    del view
    assert Path("/proc/self/maps").read_text().count("baton-pool") == before


def test_populating_a_mapping_leaves_it_readable() -> None:
    pool = HostPool(8192)
    memory.populate_read(pool.address, pool.nbytes)
    assert np.count_nonzero(pool.array) == 0
    pool.close()
