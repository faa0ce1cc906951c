"""Damaged frames for the codec."""

import time
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.fuzz.mutate import Mutator
from tests.fuzz.report import Report, resident_mib
from tests.wire.test_codec import FRAMES, strategy

from baton.core.errors import PeerError
from baton.wire.codec import decode, encode

SAMPLES = 300
HANG_S = 5.0  # of one input; it takes microseconds
GROWTH_MIB = 64.0


def frames(count: int = SAMPLES) -> list[bytes]:
    """Right frames of every kind, the same ones each time."""
    found: list[bytes] = []

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of([strategy(kind) for kind in FRAMES]))
    def collect(frame: object) -> None:
        found.append(encode(frame))  # type: ignore[arg-type]

    collect()
    return found


def fuzz(count: int, seed: int, corpus: Sequence[bytes] = ()) -> Report:
    """Decode damaged frames: each is refused with PeerError, or is a frame that can be encoded."""
    report, mutator = Report("codec"), Mutator(corpus or frames(), seed)
    settled = 0.0
    for number in range(count):
        raw = mutator.draw()
        began = time.monotonic()
        try:
            encode(decode(raw))
            report.outcomes["frames"] += 1
        except PeerError:
            report.outcomes["refused"] += 1
        except Exception as error:  # noqa: BLE001 whatever it is, it would have ended a process
            report.breaks(repr(error), raw)
        took = time.monotonic() - began
        report.slowest_s = max(report.slowest_s, took)
        if took > HANG_S:
            report.breaks(f"took {took:.0f} s", raw)
        if number == count // 10:
            settled = resident_mib()
    report.growth_mib["this process"] = grown = resident_mib() - settled
    if grown > GROWTH_MIB:
        report.breaks(f"memory grew by {grown:.0f} MiB")
    return report
