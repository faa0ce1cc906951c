"""How long a prefill worker holds pages of a room that waits: the checker on histories made by
hand."""

import msgspec
import pytest
from tests.sim.test_checkers import PREFILL, PROMPT, SAMPLING, WHOLE, breaks, key, plan, violate

from baton.core.ids import Boot, Stamp
from baton.core.messages import Admitted, Limits, Ticket
from baton.dev.sim.excuses import InjectedFault
from baton.dev.sim.waits import SLACK_US, Waits

TICKET = Ticket(
    key(),
    Stamp(1),
    Boot(3),
    PREFILL,
    Boot(2),
    PROMPT,
    (),
    SAMPLING,
    Limits(4, (), (), 1000),
    admit_ms=30,
)
MOST_US = 30_000 + SLACK_US
DROP = plan(2, drop=(key(),))


class History:
    def __init__(self, *faults: InjectedFault) -> None:
        self.now = 7
        self.waits = Waits({key(): TICKET}, list(faults), violate, lambda: self.now)
        self.waits.ordered(PREFILL, WHOLE)

    def after(self, us: int) -> "History":
        self.now += us
        return self


def test_pages_come_back_in_time():
    history = History().after(MOST_US)
    history.waits.ordered(PREFILL, DROP)
    with breaks("bounded_wait"):
        History().after(MOST_US + 1).waits.ordered(PREFILL, DROP)


def test_admission_ends_the_wait_and_growing_begins_no_other():
    history = History().after(MOST_US)
    history.waits.heard(PREFILL, Admitted(key()))
    history.waits.ordered(PREFILL, WHOLE)
    history.after(10 * MOST_US).waits.ordered(PREFILL, DROP)
    with breaks("bounded_wait"):
        History().after(MOST_US + 1).waits.heard(PREFILL, Admitted(key()))


@pytest.mark.parametrize(
    ("kind", "excused"), [("pause", True), ("crash", True), ("corrupt read", False)]
)
def test_a_process_that_stood_still_may_be_late(kind, excused):
    history = History(InjectedFault(1, kind, frozenset({"prefill-0"}))).after(MOST_US + 1)
    if excused:
        history.waits.ordered(PREFILL, DROP)
    else:
        with breaks("bounded_wait"):
            history.waits.ordered(PREFILL, DROP)


def test_decode_holds_its_pages_as_long_as_it_generates():
    history = History()
    history.waits.ordered(Boot(2), WHOLE)
    history.after(10 * MOST_US).waits.ordered(Boot(2), DROP)


def test_on_a_unified_worker_a_room_that_holds_pages_waits_for_nobody():
    ticket = msgspec.structs.replace(TICKET, decode=PREFILL)
    history = History()
    history.waits = Waits({key(): ticket}, [], violate, lambda: history.now)
    history.waits.ordered(PREFILL, WHOLE)
    history.after(10 * MOST_US).waits.ordered(PREFILL, DROP)
