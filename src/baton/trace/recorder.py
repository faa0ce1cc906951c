"""The log of a process while it is written: each step is kept until something comes of it, then handed to a sink.

pump ──event──▶ Recorded ──event──▶ Leader, Rank or Front
                    └──Step──▶ Recorder ──whole frames──▶ Sink     written before the effects of the step are performed
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar, cast

from typing_extensions import override

from baton import __version__
from baton.core.events import Core
from baton.core.ids import Micros
from baton.core.messages import PROTOCOL
from baton.core.parts import FrontParts, LeaderParts, RankParts
from baton.trace import log
from baton.trace.coding import encode

KEEP_BYTES = 1 << 20  # unwritten, at most
KINDS: Mapping[type[log.Parts], log.CoreKind] = MappingProxyType(
    {LeaderParts: log.CoreKind.LEADER, RankParts: log.CoreKind.RANK, FrontParts: log.CoreKind.FRONT}
)

E = TypeVar("E", bound=log.AnyEvent)
F = TypeVar("F", bound=log.AnyEffect)


class Sink(Protocol):
    """Where a log's bytes go."""

    def write(self, data: bytes, /) -> None:
        """Take some whole frames."""
        ...


class Recorder:
    """The log of one process."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._kept: list[bytes] = []
        self._size = 0
        self.write(log.Header(log.FORMAT, PROTOCOL, __version__))

    def write(self, record: log.Record) -> None:
        """Add a record; it reaches the sink with the next `flush`, or when much has been kept."""
        frame = encode(record)
        self._kept.append(frame)
        self._size += len(frame)
        if self._size >= KEEP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand over what was kept."""
        if self._kept:
            kept, self._kept, self._size = self._kept, [], 0
            self._sink.write(b"".join(kept))


class Recorded(Core[E, F], Generic[E, F]):
    """Implements Core: another one, of which every step is written down."""

    def __init__(self, kind: log.CoreKind, core: Core[E, F], recorder: Recorder) -> None:
        self._kind, self._core, self._recorder = kind, core, recorder

    @override
    def step(self, event: E, now: Micros, /) -> list[F]:
        try:
            effects = self._core.step(event, now)
        except Exception as error:
            self._recorder.write(log.Step(now, self._kind, event, (log.Raised(type(error).__name__, str(error)),)))
            self._recorder.flush()
            raise
        self._recorder.write(log.Step(now, self._kind, event, cast(tuple[log.AnyEffect, ...], tuple(effects))))
        if effects:
            self._recorder.flush()
        return effects

    @override
    def next_wake(self) -> Micros | None:
        return self._core.next_wake()


def recorded(core: Core[Any, Any], parts: log.Parts, recorder: Recorder) -> Core[Any, Any]:
    """A core object that was made of these parts, every step of which is written down."""
    recorder.write(parts)
    return Recorded(KINDS[type(parts)], core, recorder)
