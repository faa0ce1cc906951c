"""How the processes of `baton bench transfer` speak: one JSON document a line, on stdin and stdout.

A transfer library writes to stdout as it likes, so our lines begin with a mark.
"""

import sys
from typing import IO, TypeVar

import msgspec

from baton.core.errors import BatonError, ConfigError
from baton.core.ids import Boot, Rank, RankId
from baton.dev.bench.transfer.figures import ProcessFailure
from baton.dev.bench.transfer.layout import Layout
from baton.ports.fabric_settings import FabricSettings

MARK = "baton-transfer: "
T = TypeVar("T", bound=msgspec.Struct)


class TransferOrder(msgspec.Struct, frozen=True):
    """What both processes are started with. `boot` is the first of 65,536 boots that are this run's
    own."""

    fabric: str
    settings: FabricSettings
    layout: Layout
    rounds: int
    boot: int

    def source(self, rank: int) -> RankId:
        """A prefill rank."""
        return RankId(Boot(self.boot), Boot(self.boot + rank), Rank(rank))

    def reader_boot(self, rank: int) -> Boot:
        """A decode rank's."""
        return Boot(self.boot + (1 << 15) + rank)


def say(what: msgspec.Struct) -> None:
    """Write one line."""
    kind = type(what).__name__
    print(f"{MARK}{kind} {msgspec.json.encode(what).decode()}", flush=True)


def hear(stream: IO[str], kind: type[T]) -> T:
    """The next line of ours on a stream.

    Raises:
        ConfigError, BatonError: the other process says why it cannot go on, or has ended
    """
    for line in stream:
        if not line.startswith(MARK):
            continue
        name, _, text = line.removeprefix(MARK).partition(" ")
        if name == ProcessFailure.__name__:
            failed = msgspec.json.decode(text, type=ProcessFailure)
            raise (ConfigError if failed.setting else BatonError)(failed.why)
        assert name == kind.__name__, line
        return msgspec.json.decode(text, type=kind)
    raise BatonError("a process of the benchmark has ended before it answered")


def tell(stream: IO[str], what: msgspec.Struct) -> None:
    """Write one line to a child's stdin."""
    stream.write(msgspec.json.encode(what).decode() + "\n")
    stream.flush()


def complain(error: BatonError) -> int:
    """Say why we end; the exit code."""
    say(ProcessFailure(str(error), setting=isinstance(error, ConfigError)))
    return 1


def order() -> TransferOrder:
    """Our command line."""
    return msgspec.json.decode(sys.argv[1], type=TransferOrder)
