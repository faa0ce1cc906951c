"""The files of recorded logs: always new files, readable only by their owner."""

import errno
import os
from itertools import count
from pathlib import Path

import structlog

from baton.core.errors import ConfigError

log = structlog.get_logger()
SUFFIX = ".baton-log"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def log_path(directory: Path, name: str, number: int = 1) -> Path:
    """Return the path of the log of a process's `number`-th incarnation."""
    return directory / (f"{name}{SUFFIX}" if number == 1 else f"{name}.{number}{SUFFIX}")


def open_log(where: Path, name: str) -> "LogFile | NoLog":
    """Create a log file at `where`; in a directory, at the first free path for the process.

    If the disk is full when a process starts again, it continues without a log.

    Raises:
        ConfigError: the file exists, or cannot be created
    """
    if not where.is_dir():
        return LogFile(where)
    for number in count(1):
        path = log_path(where, name, number)
        if not path.exists():
            try:
                return LogFile(path)
            except FileExists:
                continue  # another process has just created it
            except DiskFull as error:
                if number == 1:
                    raise  # whoever starts a service learns that it would not be recorded
                log.error("record_ended", file=str(path), bytes=0, why=str(error))
                return NoLog()
    raise AssertionError("count never ends")


class FileExists(ConfigError):
    """The log file exists; logs are never overwritten."""


class DiskFull(ConfigError):
    """There is no room for a log file."""


class NoLog:
    """Takes frames, and keeps none."""

    def write(self, data: bytes, /) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class LogFile:
    """A log file. Frames written to it survive the end of this process, however it ends.

    If a write fails, the log ends at its last complete frame and the process continues: serving is
    more important than recording.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError as error:
            raise FileExists(
                f"--record {path}: the file exists; name a new one, or a directory, or move it away"
            ) from error
        except OSError as error:
            kind = DiskFull if error.errno in NO_ROOM else ConfigError
            raise kind(f"--record {path}: cannot make it: {error.strerror}") from error
        self._size = 0

    def write(self, data: bytes, /) -> None:
        """Append complete frames, as far as the disk allows."""
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
        """Close the file; later writes are ignored."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
