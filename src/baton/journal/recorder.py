"""The journal of a process while it is written: steps are kept for a turn, then handed to a sink as whole frames."""

from collections.abc import Callable
from typing import Protocol

from baton import __version__
from baton.core.ids import Micros
from baton.core.messages import PROTOCOL
from baton.journal import entries as e
from baton.journal.coding import encode

KEEP_BYTES = 1 << 20  # unwritten, at most


class Sink(Protocol):
    """Where a journal's bytes go."""

    def write(self, data: bytes, /) -> None:
        """Take some whole frames."""
        ...


class Recorder:
    """The journal of one process."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._kept: list[bytes] = []
        self._size = 0
        self._answers: list[e.Answer] = []
        self.write(e.Header(e.FORMAT, PROTOCOL, __version__))

    def write(self, record: e.Record) -> None:
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

    def answered(self, answer: e.Answer) -> None:
        """The outside answered the core within the step under way."""
        self._answers.append(answer)

    def step(self, core: e.Kind, entry: e.AnyEntry, at: Micros, play: Callable[[], list[e.Out]]) -> list[e.Out]:
        """Play an entry and write down what came of it, even if that is an exception."""
        try:
            outs = play()
        except Exception as error:
            self._step(core, entry, at, (e.Raised(type(error).__name__, str(error)),))
            self.flush()
            raise
        self._step(core, entry, at, tuple(outs))
        return outs

    def _step(self, core: e.Kind, entry: e.AnyEntry, at: Micros, outs: tuple[e.Out, ...]) -> None:
        answers, self._answers = self._answers, []
        self.write(e.Step(at, core, entry, tuple(answers), outs))
