"""Writes the log of a process: a step is buffered until it has an effect, then goes to a sink.

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
from baton.core.parts import FrontParts, LeaderParts, RankParts
from baton.core.protocol import PROTOCOL
from baton.trace import log
from baton.trace.coding import encode

KEEP_BYTES = 1 << 20  # most that is buffered
KINDS: Mapping[type[log.Parts], log.CoreKind] = MappingProxyType(
    {LeaderParts: log.CoreKind.LEADER, RankParts: log.CoreKind.RANK, FrontParts: log.CoreKind.FRONT}
)

E = TypeVar("E", bound=log.AnyEvent)
F = TypeVar("F", bound=log.AnyEffect)


class Sink(Protocol):
    """The destination of a log's bytes."""

    def write(self, data: bytes, /) -> None:
        """Write some complete frames."""
        ...


class Recorder:
    """The log of one process."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._kept: list[bytes] = []
        self._size = 0
        self.write(log.Header(log.FORMAT, PROTOCOL, __version__))

    def write(self, record: log.Record) -> None:
        """Add a record. It reaches the sink at the next
        `flush`, or once KEEP_BYTES are buffered."""
        frame = encode(record)
        self._kept.append(frame)
        self._size += len(frame)
        if self._size >= KEEP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered records to the sink."""
        if self._kept:
            kept, self._kept, self._size = self._kept, [], 0
            self._sink.write(b"".join(kept))


class Recorded(Core[E, F], Generic[E, F]):
    """Implements Core around another core, and records every step."""

    def __init__(self, kind: log.CoreKind, core: Core[E, F], recorder: Recorder) -> None:
        self._kind, self._core, self._recorder = kind, core, recorder

    @override
    def step(self, event: E, now: Micros, /) -> list[F]:
        try:
            effects = self._core.step(event, now)
        except Exception as error:
            self._recorder.write(
                log.Step(now, self._kind, event, (log.Raised(type(error).__name__, str(error)),))
            )
            self._recorder.flush()
            raise
        self._recorder.write(
            log.Step(now, self._kind, event, cast(tuple[log.AnyEffect, ...], tuple(effects)))
        )
        if effects:
            self._recorder.flush()
        return effects

    @override
    def next_wake(self) -> Micros | None:
        return self._core.next_wake()


def recorded(core: Core[Any, Any], parts: log.Parts, recorder: Recorder) -> Core[Any, Any]:
    """Record that `core` was made of `parts`, and wrap it so that every step is recorded."""
    recorder.write(parts)
    return Recorded(KINDS[type(parts)], core, recorder)
