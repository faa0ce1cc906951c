"""Where compiled kernels go when the program, or the user's home, cannot be written."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from baton.cli import kernel_cache
from baton.cli.kernel_cache import PACKAGES, VARIABLE, compiled, provide_cache
from baton.core.errors import ConfigError

KERNEL = """
import sys
import numba

@numba.njit("int64(int64)", cache=True)
def twice(x):
    return 2 * x

print(sum(twice.stats.cache_hits.values()), twice.stats.cache_path)
"""


class Machine:
    """A program and a home, of which a test says what can be written; root may write everywhere, so
    it is pretended."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.program, self.home, self.temporary = (
            base / "site" / "baton",
            base / "home",
            base / "tmp",
        )
        self.read_only: list[Path] = []
        for directory in (*(self.program / package for package in PACKAGES), self.temporary):
            directory.mkdir(parents=True, exist_ok=True)
        self.kernel = self.program / "engine" / "kernels" / "twice.py"
        self.kernel.write_text(KERNEL)
        monkeypatch.setenv("XDG_CACHE_HOME", str(self.home))
        monkeypatch.delenv(VARIABLE, raising=False)
        monkeypatch.setattr(kernel_cache.tempfile, "tempdir", str(self.temporary))
        writable = kernel_cache._writable
        monkeypatch.setattr(
            kernel_cache,
            "_writable",
            lambda d: not any(d.is_relative_to(r) for r in self.read_only) and writable(d),
        )

    def compile(self, cache: Path | None = None) -> tuple[int, Path]:
        """(kernels found compiled, where), in a process of its own."""
        environment = os.environ | ({VARIABLE: str(cache)} if cache is not None else {})
        said = subprocess.run(
            [sys.executable, self.kernel],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        hits, _, place = said.strip().partition(" ")
        return int(hits), Path(place)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_where_the_program_can_be_written_nothing_is_done(machine):
    assert provide_cache(machine.program) is None
    assert VARIABLE not in os.environ
    assert not machine.home.exists()
    assert list(machine.temporary.iterdir()) == []


def test_what_was_compiled_at_the_installation_is_found_in_the_users_cache(machine):
    assert not compiled(machine.program)
    assert machine.compile()[0] == 0
    assert compiled(machine.program)
    machine.read_only = [machine.program]
    assert provide_cache(machine.program) is None
    # where numba would look: the program can be written in truth
    hits, place = machine.compile(machine.home / "numba")
    assert (hits, place.parent) == (1, machine.home / "numba")
    shutil.rmtree(machine.kernel.parent / "__pycache__")
    assert compiled(machine.program), "in the user's cache"


def test_where_nothing_can_be_written_a_temporary_directory_is_taken_and_told(machine, monkeypatch):
    assert machine.compile()[0] == 0
    machine.read_only = [machine.program, machine.home]
    note = provide_cache(machine.program)
    directory = machine.temporary / f"baton-kernels-{os.getuid()}"
    assert str(directory) in note
    assert VARIABLE in note
    assert os.environ[VARIABLE] == str(directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert machine.compile()[0] == 1, "what was compiled at the installation has been copied"
    assert provide_cache(machine.program) is None, "a child process says it no second time"


def test_a_place_that_the_operator_names_is_taken(machine, monkeypatch, tmp_path):
    machine.compile()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "named"))
    machine.read_only = [machine.program, machine.home]
    assert not compiled(machine.program), "not in the place that is named"
    assert provide_cache(machine.program) is None
    assert compiled(machine.program)
    assert machine.compile()[0] == 1
    assert list(machine.temporary.iterdir()) == []


def test_what_is_there_already_is_left_alone(machine):
    machine.compile()
    machine.read_only = [machine.program]
    provide_cache(machine.program)
    before = {f: f.stat().st_ino for f in machine.home.rglob("*.nb?")}
    provide_cache(machine.program)
    assert before
    assert {f: f.stat().st_ino for f in machine.home.rglob("*.nb?")} == before
    assert {f.suffix for f in machine.home.rglob("*") if f.is_file()} == {".nbi", ".nbc"}, (
        "no half-made file is left"
    )


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o702])
def test_a_directory_that_others_can_write_is_not_trusted(machine, mode):
    """What lies in a cache is machine code that is run."""
    directory = machine.temporary / f"baton-kernels-{os.getuid()}"
    directory.mkdir()
    directory.chmod(mode)
    machine.read_only = [machine.program, machine.home]
    with pytest.raises(
        ConfigError, match=f"{directory.name} can be written by others.*{VARIABLE}=DIRECTORY"
    ):
        provide_cache(machine.program)


def test_a_link_is_not_trusted(machine, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (machine.temporary / f"baton-kernels-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    machine.read_only = [machine.program, machine.home]
    with pytest.raises(ConfigError, match="can be written by others"):
        provide_cache(machine.program)


def test_no_place_at_all_is_one_sentence(machine, monkeypatch):
    machine.read_only = [machine.program, machine.home]
    monkeypatch.setattr(kernel_cache.tempfile, "tempdir", str(machine.temporary / "gone"))
    monkeypatch.setattr(kernel_cache, "SHARED_MEMORY", machine.temporary / "gone")
    with pytest.raises(ConfigError, match=f"neither beside the program .*{VARIABLE}=DIRECTORY"):
        provide_cache(machine.program)


def test_without_a_temporary_directory_shared_memory_is_taken(machine, monkeypatch, tmp_path):
    assert machine.compile()[0] == 0
    machine.read_only = [machine.program, machine.home]
    monkeypatch.setattr(kernel_cache.tempfile, "tempdir", str(machine.temporary / "gone"))
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(kernel_cache, "SHARED_MEMORY", tmp_path / "shm")
    assert f"{tmp_path}/shm/baton-kernels-{os.getuid()}" in provide_cache(machine.program)
    assert machine.compile()[0] == 1


def test_every_package_with_kernels_is_looked_at():
    root = Path(kernel_cache.__file__).parents[1]
    compiled = {
        str(f.parent.relative_to(root))
        for f in root.rglob("*.py")
        if re.search(r"\bcache=True", f.read_text())
    }
    assert compiled - {"cli"} == set(PACKAGES)
