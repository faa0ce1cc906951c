"""What people read of a run: what shows that a fault took place, and where the recordings are."""

import msgspec

from baton.dev.chaos.history import ProcessFault, figures
from baton.dev.chaos.run import ChaosReport, ChaosSettings, sentence

FAULTS = (
    ProcessFault("loss", "cable", 1.0, 2.0, 70),
    ProcessFault("loss", "cable", 3.0, 4.0, 7),
    ProcessFault("kill", "decode-1", 5.0, 6.0),
)
REPORT = ChaosReport(ChaosSettings(model="m"), (), figures([], FAULTS), None)


def test_what_shows_that_a_fault_took_place_is_added_up() -> None:
    kill, loss = sentence(REPORT)[-2:]
    assert loss.startswith("    2 x loss cable")
    assert loss.endswith("   77 packets dropped")
    assert kill.startswith("    1 x kill decode")
    assert "packets" not in kill


def test_recordings_that_were_kept_are_named_after_the_complaints() -> None:
    report = msgspec.structs.replace(REPORT, complaints=("hung: case 1",), recordings="/r")
    assert sentence(report)[-2:] == [
        "hung: case 1",
        "recordings of all processes are in /r; 'baton replay-log FILE' replays one of them",
    ]
