"""What lines do with frames that are none."""

from typing import Any

import msgspec
from structlog.testing import capture_logs

from baton.core.ids import Boot, Link, Micros
from baton.core.session.session import SessionLimits, Sessions
from baton.shell.lines import TELL_EVERY, Lines

RUBBISH = b"\xc1rubbish"
LONG_NAME = msgspec.msgpack.encode({"type": "bye", "x" * 100_000: 1})


class Flooded:
    """A control port on which a peer sends frames of one kind; and a clock."""

    def __init__(self, frame: bytes) -> None:
        self._frame, self.time = frame, Micros(0)

    def now(self) -> Micros:
        return self.time

    def receive(self) -> list[tuple[Link, bytes]]:
        return [(Link(1), self._frame)] * 1000

    def broken(self) -> list[Link]:
        return []


def refusals(frame: bytes, *at: int) -> list[Any]:
    flood: Any = Flooded(frame)
    lines = Lines(Sessions(Boot(1), SessionLimits()), flood, flood)
    with capture_logs() as logged:
        for time in at:
            flood.time = Micros(time)
            assert lines.receive() == []
    return [line for line in logged if line["event"] == "frame_refused"]


def test_a_flood_of_refused_frames_is_a_line_a_second() -> None:
    logged = refusals(RUBBISH, 1, 2, 3, TELL_EVERY, TELL_EVERY + 1)
    assert [line["frames"] for line in logged] == [1, 4000]


def test_a_line_about_a_frame_is_short_whatever_the_frame_has() -> None:
    (line,) = refusals(LONG_NAME, 1)
    assert len(line["why"]) < 300
