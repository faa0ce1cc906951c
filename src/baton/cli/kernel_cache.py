"""Finds a place for compiled kernels: beside the sources, in the user's cache, or in a temporary
folder.

numba tries the first two by itself, and fails if it can write to neither, as in a container with
read-only files. It also ignores kernels beside sources if it cannot write there. So the kernels
that were compiled at installation are copied to a writable place, shared memory at the last, and a
worker's first start loads them instead of compiling.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha1
from pathlib import Path

import platformdirs

import baton
from baton.core.errors import ConfigError

VARIABLE = "NUMBA_CACHE_DIR"
# packages of Baton that have kernels
PACKAGES = ("adapters", "engine", "engine/attention", "engine/kernels")
# A container has it even if no file system of it can be written.
SHARED_MEMORY = Path("/dev/shm")
NOWHERE = (
    "compiled kernels can be kept neither beside the program nor in the user's cache "
    "nor in a temporary directory"
)
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
    chosen, user = os.environ.get(VARIABLE), _user_cache()
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


def compiled(root: Path = Path(baton.__file__).parent) -> bool:
    """Whether there are compiled kernels of the package at `root` where numba looks for them."""
    chosen = os.environ.get(VARIABLE)
    sources = [root / package for package in PACKAGES]
    cache = Path(chosen) if chosen else _user_cache()
    places = [cache / _subdirectory(directory) for directory in sources]
    if not chosen:
        places += [directory / "__pycache__" for directory in sources]
    return any(any(place.glob("*.nbi")) for place in places)


def _user_cache() -> Path:
    return Path(platformdirs.user_cache_dir("numba", appauthor=False))


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
    for parent in _temporary_places():
        directory = parent / f"baton-kernels-{os.getuid()}"
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            continue
        _require_own(directory)
        if _writable(directory):
            return directory
    raise ConfigError(f"{NOWHERE}; {REMEDY}")


def _temporary_places() -> Iterator[Path]:
    with suppress(FileNotFoundError):
        yield Path(tempfile.gettempdir())
    yield SHARED_MEMORY


def _require_own(directory: Path) -> None:
    """Raises ConfigError if others can write there."""
    found = directory.lstat()
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.getuid()
        or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    ):
        raise ConfigError(
            f"{NOWHERE}: {directory} can be written by others; remove it, or {REMEDY}"
        )


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
