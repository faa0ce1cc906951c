"""`--record`: returns a process's core objects
unchanged, or wrapped so that each step is recorded."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from baton.adapters.log_file import log_path, open_log
from baton.core.errors import ConfigError
from baton.core.events import Core

if TYPE_CHECKING:
    from baton.trace.log import Parts
    from baton.trace.recorder import Recorder

E = TypeVar("E")
F = TypeVar("F")


@dataclass(frozen=True)
class Recording:
    """The recording of one process. Close it when its core objects are no longer used."""

    recorder: "Recorder | None"
    close: Callable[[], None]

    def of(self, core: Core[E, F], parts: "Parts") -> Core[E, F]:
        """Return the core object for the pump; `parts` are what `core` was made of."""
        if self.recorder is None:
            return core
        from baton.trace.recorder import recorded

        return recorded(core, parts, self.recorder)


def recording(record: str | None, *, name: str) -> Recording:
    """Make the recording that --record asks for.

    Raises:
        ConfigError: the file exists, or cannot be created
    """
    if record is None:
        return Recording(None, lambda: None)
    from baton.trace.recorder import Recorder

    file = open_log(Path(record), name)
    recorder = Recorder(file)

    def close() -> None:
        recorder.flush()
        file.close()

    return Recording(recorder, close)


def prepare_directory(path: str, names: Iterable[str]) -> None:
    """Create the directory for the logs of a service, accessible only to its owner.

    Raises:
        ConfigError: it cannot be created, or has logs of an earlier run
    """
    directory = Path(path)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--record {path}: cannot make this directory: {error.strerror}"
        ) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigError(f"--record {path}: this directory cannot be written to")
    for name in names:
        if (file := log_path(directory, name)).exists():
            raise ConfigError(
                f"--record {path}: {file} exists from an earlier run; name a "
                "new directory, or move it away"
            )
