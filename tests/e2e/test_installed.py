"""The wheel, installed, as in a container that is run safely: by a user without a name, a home or a
right to write anywhere."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.e2e.service import Process, free_port, wait_ready

import baton
from baton.cli.kernel_cache import PACKAGES

ROOT = Path(__file__).parents[2]
SOURCES = Path(baton.__file__).parent
USER = "54321"
# In a mount namespace of its own: no disk can be written, nor the temporary directory. What is left is
# what Docker leaves with --read-only.
READ_ONLY = """
set -e
mount --make-rprivate /
mount -o remount,bind,ro /
if mountpoint -q /tmp; then mount -o remount,bind,ro /tmp; fi
mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm
cd /
exec setpriv --reuid $USER --regid $USER --clear-groups --no-new-privs $RIGHTS "$@"
"""


def why_not() -> str | None:
    """Why this machine does not permit it."""
    if os.geteuid() != 0:
        return "only root can become another user and mount"
    if shutil.which("setpriv") is None:
        return "there is no setpriv (util-linux)"
    tried = ["unshare", "--mount", "sh", "-c", "mount -o remount,bind,ro /"]
    if subprocess.run(tried, capture_output=True).returncode:
        return "a namespace with a read-only root cannot be made"
    return None


WHY_NOT = why_not()
pytestmark = [
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
    pytest.mark.timeout(300),
]


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One that everybody may read."""
    with tempfile.TemporaryDirectory(prefix="baton-installed-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def installed(folder: Path) -> Path:
    """`baton` of the wheel. Its dependencies are those of the interpreter that runs the tests."""
    sources, environment = folder / "sources", folder / "environment"
    sources.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    shutil.copytree(
        ROOT / "src" / "baton", sources / "src" / "baton", ignore=lambda *_: ["__pycache__"]
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, sources)
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    (wheel,) = folder.glob("*.whl")
    python = environment / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel)
    (packages,) = environment.glob("lib/python*/site-packages")
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(paths))
    compile_at_installation(packages / "baton")
    return environment / "bin" / "baton"


def compile_at_installation(package: Path) -> None:
    """As `python -m baton.cli.kernels` does, without the minute that it takes: the kernels of the
    sources, whose files numba tells from other ones by their times and sizes."""
    for name in PACKAGES:
        for source in (SOURCES / name).glob("*.py"):
            shutil.copystat(source, package / name / source.name)
        (package / name / "__pycache__").mkdir(exist_ok=True)
        for kernel in (SOURCES / name / "__pycache__").glob("*.nb[ci]"):
            shutil.copy2(kernel, package / name / "__pycache__")


def rights() -> str:
    """Flags for a user who can read the interpreter even if it lies in root's home."""
    others = all(parent.stat().st_mode & 1 for parent in Path(sys.executable).resolve().parents)
    read = "+dac_read_search"
    return "" if others else f"--inh-caps {read} --ambient-caps {read}"


@contextmanager
def serving(baton: Path, model: Path, folder: Path) -> Iterator[tuple[Process, httpx.Client]]:
    """`baton serve` for a user who can write nothing."""
    port, log = free_port(), folder / "serve.log"
    words = ["--port", str(port), "--dtype", "float32", "--kv-pages", "100", "--threads", "1"]
    environment = {"PATH": os.environ["PATH"], "USER": USER, "RIGHTS": rights()}
    with log.open("wb") as said:
        popen = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", baton, "serve", model, *words],
            env=environment,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    process = Process("serve", popen, log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            wait_ready(http, [process], seconds=200)
            yield process, http
    finally:
        process.kill()


def kernels(directory: Path) -> set[str]:
    return {file.name for file in directory.rglob("*.nbc")}


def test_it_serves_for_a_user_who_can_write_nothing_and_says_once_where_its_kernels_are(
    installed: Path, tiny: Path, folder: Path
) -> None:
    model = shutil.copytree(tiny, folder / "model")
    for file in model.iterdir():
        file.chmod(0o644)  # weights are written for their owner alone
    with serving(installed, model, folder) as (process, http):
        body = {"prompt": "A baton is", "max_tokens": 4, "ignore_eos": True}
        answer = http.post("/v1/completions", json=body)
        assert answer.json()["usage"]["completion_tokens"] == 4, answer.text
        assert http.get("/page/app.js").status_code == 200, "the live page is in the wheel"
        (warning,) = (line for line in process.log.read_text().splitlines() if "warning" in line)
        kept = f"/dev/shm/baton-kernels-{USER}"
        assert warning.startswith(f"baton: warning: compiled kernels are kept in {kept}: ")
        its_files = Path(f"/proc/{process.pid}/root")
        assert kernels(its_files / kept[1:]) == kernels(folder / "environment"), "none is compiled"
        assert os.statvfs(its_files).f_flag & os.ST_RDONLY
        assert its_files.parent.stat().st_uid == int(USER)
