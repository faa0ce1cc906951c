"""F1 to F4: what the end of a handle promises."""

import random

from baton.dev.contract.peer import pattern
from baton.dev.contract.rig import FULL, POOLS, SECONDS, SMALL, CheckWorld, copies, scattered
from baton.ports.fabric import ReadEnded, ReadOutcome

PIECE = 8 << 20  # a read from a stopped source: more bytes than are on their way already


def f1_submit_returns_before_any_byte_is_moved(w: CheckWorld) -> None:
    """Submit returns before any byte is moved."""
    joined, peer = w.joined, w.peer
    joined.hold()
    handle = joined.submit(peer, copies("full", 0, 0, POOLS["full"]))
    assert joined.fabric.poll() == []
    joined.check()  # all zero
    joined.let_go()
    assert joined.ends(handle)[handle].outcome is ReadOutcome.OK


def f1_the_wake_comes_after_the_end_can_be_polled(w: CheckWorld) -> None:
    """The wake comes after the end can be polled."""
    joined, peer = w.joined, w.peer
    joined.woken.clear()
    handle = joined.submit(peer, copies("slot", 0, 0, 16))
    assert joined.woken.wait(30)
    (end,) = joined.fabric.poll()
    assert isinstance(end, ReadEnded)
    assert end.handle == handle


def f2_scattered_ranges_of_two_groups_land_byte_for_byte(w: CheckWorld) -> None:
    """Scattered ranges of two groups land byte for byte."""
    joined, peer = w.joined, w.peer
    for seed in range(4):
        rng = random.Random(seed)
        sizes = [rng.choice((1, 7, 64, 4096, 92_160, 368_640)) for _ in range(60)]
        joined.read_ok(
            peer,
            scattered(rng, "full", POOLS["full"], sizes),
            scattered(rng, "slot", POOLS["slot"], [1, 128, 4097]),
        )


def f2_reads_see_what_the_source_wrote_last(w: CheckWorld) -> None:
    """Reads see what the source wrote last."""
    rig, spawn = w.rig, w.spawn
    source = spawn()
    rig.connect(source.id, source.manifest)
    rig.read_ok(source, copies("full", 0, 0, SMALL["full"]))
    source.tell("fill 77")
    rig.read_ok(source, copies("full", 0, 0, SMALL["full"]), seed=77)


def f2_nothing_to_read_ends_ok(w: CheckWorld) -> None:
    """Nothing to read ends ok."""
    joined, peer = w.joined, w.peer
    joined.read_ok(peer)
    joined.read_ok(peer, copies("full", [], [], []))
    joined.read_ok(peer, copies("full", [5, 9], [7, 1], [0, 3]))


def f3_each_of_many_reads_ends_once(w: CheckWorld) -> None:
    """Each of many reads ends once."""
    joined, peer = w.joined, w.peer
    handles = [joined.submit(peer, copies("full", i * 4096, i * 4096, 4096)) for i in range(200)]
    for handle in handles[::3]:
        joined.fabric.cancel(handle)
    ends = joined.ends(*handles)
    assert all(ends[h].outcome is ReadOutcome.OK for i, h in enumerate(handles) if i % 3)
    # and nothing else comes before it
    assert joined.read(peer, copies("slot", 0, 0, 1)).outcome is ReadOutcome.OK


def f3_after_a_cancelled_read_has_ended_nothing_of_it_lands(w: CheckWorld) -> None:
    """After a cancelled read has ended nothing of it lands."""
    joined, peer = w.joined, w.peer
    whole = copies("full", 0, 0, POOLS["full"])
    handles = [joined.submit(peer, whole) for _ in range(4)]
    for handle in handles:
        joined.fabric.cancel(handle)
    joined.ends(*handles)
    joined.fill(slice(None))
    # whatever was queued before has had its turn
    joined.read_ok(peer, copies("slot", 0, 0, POOLS["slot"]))


def f3_what_ended_while_its_source_stood_still_lands_nothing_when_it_goes_on(w: CheckWorld) -> None:
    """What ended while its source stood still lands nothing when it goes on."""
    rig, source = w.rig, w.spawn(POOLS)
    rig.connect(source.id, source.manifest)
    rig.read_ok(source, copies("slot", 0, 0, 1))  # the first use, which may take the source's help
    source.stop()
    try:
        places = [slice(i * PIECE, (i + 1) * PIECE) for i in range(6)]
        handles = [
            rig.submit(source, copies("full", p.start, p.start, PIECE), deadline_us=5 * SECONDS)
            for p in places
        ]
        for handle in handles[::3]:
            rig.fabric.cancel(handle)
        ends = rig.ends(*handles, hurry_us=SECONDS)
        for handle, place in zip(handles, places, strict=True):
            if ends[handle].outcome is ReadOutcome.FAILED:
                rig.fill(place)
    finally:
        source.resume()
    rig.all_released()
    for handle, place in zip(handles, places, strict=True):
        if ends[handle].outcome is ReadOutcome.UNKNOWN:
            rig.fill(place)
        # memory that can be read without the help of its owner
        elif ends[handle].outcome is ReadOutcome.OK:
            rig.expected[FULL][place] = pattern(source.order.boot, "full", POOLS["full"])[place]
    # comes after whatever the source still had to do, or fails with it
    rig.read(source, copies("slot", 0, 0, 1))
    rig.check()


def f4_a_cancelled_read_is_not_ok(w: CheckWorld) -> None:
    """A cancelled read is not ok."""
    joined, peer = w.joined, w.peer
    joined.hold()
    handles = [joined.submit(peer, copies("full", 0, 0, POOLS["full"])) for _ in range(2)]
    joined.fabric.cancel(handles[0])
    joined.let_go()
    ends = joined.ends(*handles)
    assert [ends[h].outcome for h in handles] == [ReadOutcome.FAILED, ReadOutcome.OK]
    assert "cancel" in ends[handles[0]].detail


def f4_cancelling_what_has_ended_or_never_was_changes_nothing(w: CheckWorld) -> None:
    """Cancelling what has ended or never was changes nothing."""
    joined, peer = w.joined, w.peer
    handle = joined.submit(peer, copies("slot", 0, 0, 1))
    joined.ends(handle)
    joined.fabric.cancel(handle)
    joined.fabric.cancel(handle)
    assert joined.read(peer, copies("slot", 0, 0, 1)).outcome is ReadOutcome.OK
