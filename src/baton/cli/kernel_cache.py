"""Where compiled kernels are kept: beside the sources, else in the user's cache, else in a temporary directory of this user.

numba looks for the first two by itself, and refuses to start where it can write to neither, as in a container whose files are
read-only. It also passes by kernels that lie beside sources where it may not write. So what was compiled there when the
program was installed is copied to the place that it may write: a worker's first start loads them instead of compiling.
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
PACKAGES = ("adapters", "engine", "engine/attention", "engine/kernels")  # of ours that have kernels
REMEDY = f"{VARIABLE}=DIRECTORY in the environment says another place"


def provide_cache(root: Path = Path(baton.__file__).parent) -> str | None:
    """See that numba finds a place for the kernels of the package at `root`, this process and its children alike.

    Returns:
        What the operator should know: that they are in a temporary directory

    Raises:
        ConfigError: there is no place
    """
    beside = [root / package / "__pycache__" for package in PACKAGES]
    if all(_writable(directory) for directory in beside):
        return None
    chosen, user = os.environ.get(VARIABLE), Path(platformdirs.user_cache_dir("numba", appauthor=False))
    for cache in (Path(chosen), user) if chosen else (user,):  # numba's order
        if _writable(cache):
            _copy_compiled(beside, cache)
            return None
    temporary = _temporary()
    _copy_compiled(beside, temporary)
    os.environ[VARIABLE] = str(temporary)
    return f"compiled kernels are kept in {temporary}: neither {root} nor {user} can be written; {REMEDY}"


def _writable(directory: Path) -> bool:
    """As numba finds out: permissions do not tell of a file system that is read-only."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        return False
    return True


def _temporary() -> Path:
    """This user's alone: what lies there is run."""
    why = "compiled kernels can be kept neither beside the program nor in the user's cache nor in a temporary directory"
    try:
        directory = Path(tempfile.gettempdir()) / f"baton-kernels-{os.getuid()}"
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise ConfigError(f"{why}: {error.strerror}; {REMEDY}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{why}: {directory} can be written by others; remove it, or {REMEDY}")
    return directory


def _copy_compiled(beside: list[Path], cache: Path) -> None:
    """What is there already stays: it may be in use, and numba compiles anew what does not fit its source."""
    for directory in beside:
        target = cache / _subdirectory(directory.parent)
        for file in [*directory.glob("*.nbc"), *directory.glob("*.nbi")]:  # an index only when what it names is there
            if not (target / file.name).exists():
                target.mkdir(parents=True, exist_ok=True)
                made = tempfile.NamedTemporaryFile(dir=target, delete=False)  # noqa: SIM115
                made.close()
                shutil.copyfile(file, made.name)
                os.replace(made.name, target / file.name)


def _subdirectory(sources: Path) -> str:
    """numba's name, in a cache for several packages, of the place for one directory of sources."""
    return f"{sources.name}_{sha1(str(sources).encode()).hexdigest()}"
