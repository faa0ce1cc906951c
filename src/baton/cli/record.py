"""`--record`: how a process's core objects are made, with a journal around them or without."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from baton.adapters.journal_file import journal_path, open_journal
from baton.core.cores import Cores, PlainCores
from baton.core.errors import ConfigError
from baton.ports.clock import Clock


@dataclass(frozen=True)
class Making:
    """Makes the core objects of one process; `close` when they are no longer used."""

    cores: Cores
    close: Callable[[], None]


def making(record: str | None, *, name: str, clock: Clock) -> Making:
    """As --record says. Raises ConfigError: the file exists, or cannot be made."""
    if record is None:
        return Making(PlainCores(), lambda: None)
    from baton.journal.recorder import Recorder
    from baton.journal.recording import RecordedCores

    file = open_journal(Path(record), name)
    recorder = Recorder(file)

    def close() -> None:
        recorder.flush()
        file.close()

    return Making(RecordedCores(PlainCores(), recorder, clock.now), close)


def prepare_directory(path: str, names: Iterable[str]) -> None:
    """Make the directory for the journals of a service, open to its owner alone.

    Raises:
        ConfigError: it cannot be made, or holds the journals of an earlier run
    """
    directory = Path(path)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--record {path}: cannot make this directory: {error.strerror}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigError(f"--record {path}: this directory cannot be written to")
    for name in names:
        if (file := journal_path(directory, name)).exists():
            raise ConfigError(f"--record {path}: {file} exists from an earlier run; name a new directory, or move it away")
