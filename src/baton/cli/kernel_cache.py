"""Finds a place for compiled kernels: beside the sources, in the user's cache, or in a temporary
folder.

numba tries the first two by itself, and fails if it can write to neither, as in a container with
read-only files. It also ignores kernels beside sources if it cannot write there. So the kernels
that were compiled at installation are copied to a writable place, and a worker's first start loads
them instead of compiling.
"""

import os
import shutil
import stat
import tempfile
from hashlib import sha1
from pathlib import Path

import platformdirs

import baton
from baton.core.errors import ConfigError

VARIABLE = "NUMBA_CACHE_DIR"
# packages of Baton that have kernels
PACKAGES = ("adapters", "engine", "engine/attention", "engine/kernels")
REMEDY = f"{VARIABLE}=DIRECTORY in the environment says another place"


def provide_cache(root: Path = Path(baton.__file__).parent) -> str | None:
    """Make sure that numba can store the kernels of the package at `root`, in this process and its
    children.

    Returns:
        A note for the operator if they are in a temporary directory, else None

    Raises:
        ConfigError: there is no writable place
    """
    beside = [root / package / "__pycache__" for package in PACKAGES]
    if all(_writable(directory) for directory in beside):
        return None
    chosen, user = (
        os.environ.get(VARIABLE),
        Path(platformdirs.user_cache_dir("numba", appauthor=False)),
    )
    for cache in (Path(chosen), user) if chosen else (user,):  # numba's order
        if _writable(cache):
            _copy_compiled(beside, cache)
            return None
    temporary = _temporary()
    _copy_compiled(beside, temporary)
    os.environ[VARIABLE] = str(temporary)
    return (
        f"compiled kernels are kept in {temporary}: neither {root} nor {user} can be "
        f"written; {REMEDY}"
    )


def _writable(directory: Path) -> bool:
    """Test by writing, as numba does: permissions do not show a read-only file system."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        return False
    return True


def _temporary() -> Path:
    """Return a temporary directory that only this user
    can write, because its contents are executed."""
    why = (
        "compiled kernels can be kept neither beside the program nor in the user's cache "
        "nor in a temporary directory"
    )
    try:
        directory = Path(tempfile.gettempdir()) / f"baton-kernels-{os.getuid()}"
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise ConfigError(f"{why}: {error.strerror}; {REMEDY}") from error
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.getuid()
        or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    ):
        raise ConfigError(f"{why}: {directory} can be written by others; remove it, or {REMEDY}")
    return directory


def _copy_compiled(beside: list[Path], cache: Path) -> None:
    """Copy compiled kernels. Existing files stay: they
    may be in use, and numba recompiles stale ones."""
    for directory in beside:
        target = cache / _subdirectory(directory.parent)
        # indexes (.nbi) last, after the files that they name
        for file in [*directory.glob("*.nbc"), *directory.glob("*.nbi")]:
            if not (target / file.name).exists():
                target.mkdir(parents=True, exist_ok=True)
                made = tempfile.NamedTemporaryFile(dir=target, delete=False)  # noqa: SIM115
                made.close()
                shutil.copyfile(file, made.name)
                os.replace(made.name, target / file.name)


def _subdirectory(sources: Path) -> str:
    """Return numba's name for the cache directory of one source directory."""
    return f"{sources.name}_{sha1(str(sources).encode()).hexdigest()}"
