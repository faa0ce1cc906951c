"""How the processes of `baton bench transfer` communicate: one JSON document per line, on stdin and
stdout.

Transfer libraries also write to stdout, so our lines begin with a mark.
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
    """The order with which both processes are started. `boot` is the first of 65,536 boots that
    belong to this run."""

    fabric: str
    settings: FabricSettings
    layout: Layout
    rounds: int
    boot: int

    def source(self, rank: int) -> RankId:
        """Return the id of a prefill rank."""
        return RankId(Boot(self.boot), Boot(self.boot + rank), Rank(rank))

    def reader_boot(self, rank: int) -> Boot:
        """Return the boot of a decode rank."""
        return Boot(self.boot + (1 << 15) + rank)


def say(what: msgspec.Struct) -> None:
    """Write one line."""
    kind = type(what).__name__
    print(f"{MARK}{kind} {msgspec.json.encode(what).decode()}", flush=True)


def hear(stream: IO[str], kind: type[T]) -> T:
    """Return the next line of ours on a stream.

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
    """Report why this process ends. Returns the exit code."""
    say(ProcessFailure(str(error), setting=isinstance(error, ConfigError)))
    return 1


def order() -> TransferOrder:
    """Return the order on our command line."""
    return msgspec.json.decode(sys.argv[1], type=TransferOrder)
