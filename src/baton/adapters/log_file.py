"""Files that a process's log goes to: new ones only, readable by their owner alone."""

import os
from itertools import count
from pathlib import Path

import structlog

from baton.core.errors import ConfigError

log = structlog.get_logger()
SUFFIX = ".baton-log"


def log_path(directory: Path, name: str, number: int = 1) -> Path:
    """Where the `number`-th incarnation of a process writes."""
    return directory / (f"{name}{SUFFIX}" if number == 1 else f"{name}.{number}{SUFFIX}")


def open_log(where: Path, name: str) -> "LogFile":
    """A log in that new file; in an existing directory, in the first free file of that process.

    Raises:
        ConfigError: the file exists, or cannot be made
    """
    if not where.is_dir():
        return LogFile(where)
    for number in count(1):
        path = log_path(where, name, number)
        if not path.exists():
            try:
                return LogFile(path)
            except FileExists:
                continue  # made by another process since
    raise AssertionError("count never ends")


class FileExists(ConfigError):
    """A log is never written over another."""


class LogFile:
    """Takes whole frames; what was taken survives the end of this process, however it ends.

    A write that fails ends the log at its last whole frame, not the process: serving goes before writing down.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError as error:
            raise FileExists(f"--record {path}: the file exists; name a new one, or a directory, or move it away") from error
        except OSError as error:
            raise ConfigError(f"--record {path}: cannot make it: {error.strerror}") from error
        self._size = 0

    def write(self, data: bytes, /) -> None:
        """Append, as far as the disk allows."""
        if self._fd < 0:
            return
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            log.error("record_ended", file=str(self.path), bytes=self._size, why=str(error))
            os.ftruncate(self._fd, self._size)
            self.close()
            return
        self._size += len(data)

    def close(self) -> None:
        """Close the file; later writes go nowhere."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
