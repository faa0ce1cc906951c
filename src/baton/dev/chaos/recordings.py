"""What the processes of a run write of all that enters their cores, to be replayed afterwards.

Each start of each process has a file of its own, and a step is written before its effects are
performed: a process that is killed leaves all that others have seen of it.
"""

import shutil
from pathlib import Path
from tempfile import mkdtemp

from baton.core.errors import ConfigError

LOGS = "*.baton-log"


class Recordings:
    """A directory. It goes when it is closed, unless the user has named it or a run has kept it.

    Args:
        wanted: the directory that the user has named, if any

    Raises:
        ConfigError: it cannot be made, or has recordings of another run
    """

    def __init__(self, wanted: str | None) -> None:
        self.kept = wanted is not None
        if wanted is None:
            self.directory = Path(mkdtemp(prefix="baton-chaos-"))
            return
        self.directory = Path(wanted).absolute()
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--record {wanted}: {error.strerror}") from error
        if any(self.directory.glob(LOGS)):
            raise ConfigError(
                f"--record {wanted}: it has recordings of another run; name a new one"
            )

    def keep(self) -> None:
        """Let it stay where it is."""
        self.kept = True

    def close(self) -> None:
        """Remove it, if nobody wants it. All processes have ended."""
        if not self.kept:
            shutil.rmtree(self.directory)
