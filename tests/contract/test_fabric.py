"""Every fabric keeps the sentences F1 to F9 of ports/fabric.py, with real processes on the other side."""

import itertools
import mmap
import os
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from baton.adapters.fabrics import available, build
from baton.adapters.memory import HostPool
from baton.core.errors import ConfigError, FabricError
from baton.core.ids import Boot, GroupName, RankId
from baton.core.manifest import PoolView, RankManifest
from baton.ports.fabric import Copies, Outcome

from .fabric_peer import Order, Peer, WallClock, pattern
from .fabric_rig import FULL, SECONDS, SLOT, Rig, copies

POOLS = {"full": (64 << 20) + 4096, "slot": 300_000}  # more than the largest range any fabric declares
SMALL = {"full": 1 << 20, "slot": 300_000}
BOOTS = itertools.count(0x1000 + os.getpid() * 0x10000)

Spawn = Callable[..., Peer]


def _kinds() -> Iterator[object]:
    for name, obstacle in available().items():
        yield pytest.param(name, marks=[pytest.mark.skip(reason=f"{name}: {obstacle}")] if obstacle else [])


@pytest.fixture(scope="module", params=_kinds())
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def peer(kind: str) -> Iterator[Peer]:
    """A source rank that lives as long as the module: nobody here kills it."""
    p = Peer(Order(kind, next(BOOTS), 3, POOLS))
    yield p
    assert p.end() == 0


@pytest.fixture
def spawn(kind: str) -> Iterator[Spawn]:
    """Source ranks that may be killed."""
    made: list[Peer] = []

    def make(pools: dict[str, int] = SMALL) -> Peer:
        made.append(Peer(Order(kind, next(BOOTS), 0, pools)))
        return made[-1]

    yield make
    for p in made:
        if p.process.poll() is None:
            p.kill()


@pytest.fixture
def rig(kind: str) -> Iterator[Rig]:
    r = Rig(kind, next(BOOTS), POOLS)
    yield r
    r.close()


@pytest.fixture
def joined(rig: Rig, peer: Peer) -> Rig:
    rig.fabric.connect(peer.id, peer.manifest)
    return rig


def scattered(rng: random.Random, group: str, pool: int, sizes: list[int]) -> Copies:
    """Ranges of these sizes at random places, those of the target apart from each other."""
    gaps = sorted(rng.randrange(pool - sum(sizes)) for _ in sizes)
    shuffled = rng.sample(sizes, len(sizes))
    before = [0, *itertools.accumulate(shuffled)][:-1]
    target = [gap + b for gap, b in zip(gaps, before, strict=True)]
    order = rng.sample(range(len(sizes)), len(sizes))
    source = [rng.randrange(pool - n + 1) for n in shuffled]
    return copies(group, [source[i] for i in order], [target[i] for i in order], [shuffled[i] for i in order])


class TestReads:
    def test_f1_submit_returns_before_any_byte_is_moved(self, joined: Rig, peer: Peer) -> None:
        joined.hold()
        handle = joined.submit(peer, copies("full", 0, 0, POOLS["full"]))
        assert joined.fabric.poll() == []
        joined.check()  # all zero
        joined.let_go()
        assert joined.ends(handle)[handle].outcome is Outcome.OK

    def test_f1_the_wake_comes_after_the_end_can_be_polled(self, joined: Rig, peer: Peer) -> None:
        joined.woken.clear()
        handle = joined.submit(peer, copies("slot", 0, 0, 16))
        assert joined.woken.wait(30)
        assert [end.handle for end in joined.fabric.poll()] == [handle]

    @pytest.mark.parametrize("seed", range(4))
    def test_f2_scattered_ranges_of_two_groups_land_byte_for_byte(self, joined: Rig, peer: Peer, seed: int) -> None:
        rng = random.Random(seed)
        sizes = [rng.choice((1, 7, 64, 4096, 92_160, 368_640)) for _ in range(60)]
        joined.read_ok(
            peer,
            scattered(rng, "full", POOLS["full"], sizes),
            scattered(rng, "slot", POOLS["slot"], [1, 128, 4097]),
        )

    def test_f2_reads_see_what_the_source_wrote_last(self, rig: Rig, spawn: Spawn) -> None:
        source = spawn()
        rig.fabric.connect(source.id, source.manifest)
        rig.read_ok(source, copies("full", 0, 0, SMALL["full"]))
        source.tell("fill 77")
        rig.read_ok(source, copies("full", 0, 0, SMALL["full"]), seed=77)

    def test_f2_nothing_to_read_ends_ok(self, joined: Rig, peer: Peer) -> None:
        joined.read_ok(peer)
        joined.read_ok(peer, copies("full", [], [], []))
        joined.read_ok(peer, copies("full", [5, 9], [7, 1], [0, 3]))

    def test_f3_each_of_many_reads_ends_once(self, joined: Rig, peer: Peer) -> None:
        handles = [joined.submit(peer, copies("full", i * 4096, i * 4096, 4096)) for i in range(200)]
        for handle in handles[::3]:
            joined.fabric.cancel(handle)
        ends = joined.ends(*handles)
        assert all(ends[h].outcome is Outcome.OK for i, h in enumerate(handles) if i % 3)
        assert joined.read(peer, copies("slot", 0, 0, 1)).outcome is Outcome.OK  # and nothing else comes before it

    def test_f3_after_a_cancelled_read_has_ended_nothing_of_it_lands(self, joined: Rig, peer: Peer) -> None:
        whole = copies("full", 0, 0, POOLS["full"])
        handles = [joined.submit(peer, whole) for _ in range(4)]
        for handle in handles:
            joined.fabric.cancel(handle)
        joined.ends(*handles)
        joined.pools[FULL].array[:] = 0xA5
        joined.expected[FULL][:] = 0xA5
        joined.read_ok(peer, copies("slot", 0, 0, POOLS["slot"]))  # whatever was queued before has had its turn

    def test_f4_a_cancelled_read_is_not_ok(self, joined: Rig, peer: Peer) -> None:
        joined.hold()
        handles = [joined.submit(peer, copies("full", 0, 0, POOLS["full"])) for _ in range(2)]
        joined.fabric.cancel(handles[0])
        joined.let_go()
        ends = joined.ends(*handles)
        assert [ends[h].outcome for h in handles] == [Outcome.FAILED, Outcome.OK]
        assert "cancel" in ends[handles[0]].detail

    def test_f4_cancelling_what_has_ended_or_never_was_changes_nothing(self, joined: Rig, peer: Peer) -> None:
        handle = joined.submit(peer, copies("slot", 0, 0, 1))
        joined.ends(handle)
        joined.fabric.cancel(handle)
        joined.fabric.cancel(handle)
        assert joined.read(peer, copies("slot", 0, 0, 1)).outcome is Outcome.OK


class TestPeers:
    def test_f5_a_killed_peer_fails_its_reads_and_its_restart_is_another_peer(self, rig: Rig, peer: Peer, spawn: Spawn) -> None:
        old = spawn()
        rig.fabric.connect(old.id, old.manifest)
        rig.fabric.connect(peer.id, peer.manifest)
        rig.read_ok(old, copies("full", 0, 0, 8192))
        old.kill()
        assert rig.read(old, copies("full", 0, 8192, 8192)).outcome is Outcome.FAILED
        new = spawn()  # same rank, same role, next boot
        rig.fabric.connect(new.id, new.manifest)
        assert rig.read(old, copies("full", 0, 8192, 8192)).outcome is Outcome.FAILED
        for whole in (new, peer):
            assert rig.read(whole, copies("full", 0, 0, 8192)).outcome is Outcome.OK
            assert np.array_equal(
                rig.pools[FULL].array[:8192], pattern(whole.order.boot, "full", whole.order.pools["full"])[:8192]
            )

    def test_f5_a_peer_killed_under_reads_leaves_none_open(self, rig: Rig, spawn: Spawn) -> None:
        source = spawn(POOLS)
        rig.fabric.connect(source.id, source.manifest)
        handles = [rig.submit(source, copies("full", 0, 0, POOLS["full"])) for _ in range(40)]
        source.kill()
        ends = rig.ends(*handles)
        assert ends[handles[-1]].outcome is Outcome.FAILED

    def test_f5_a_dead_peer_cannot_be_connected_or_cannot_be_read(self, rig: Rig, spawn: Spawn) -> None:
        source = spawn()
        source.kill()
        try:
            rig.fabric.connect(source.id, source.manifest)
        except FabricError:
            return
        assert rig.read(source, copies("full", 0, 0, 1)).outcome is Outcome.FAILED

    def test_f5_names_are_made_exclusively(self, kind: str, rig: Rig) -> None:
        twin = build(kind, Boot(rig.boot), 0, wake=lambda: None, clock=WallClock())
        try:
            if kind == "shm":
                with pytest.raises(ConfigError, match="taken"):
                    twin.expose(rig.pools)
        finally:
            twin.close()

    def test_disconnect_ends_reads_and_forgets(self, joined: Rig, peer: Peer) -> None:
        joined.hold()
        handles = [joined.submit(peer, copies("full", 0, 0, POOLS["full"])) for _ in range(3)]
        joined.fabric.disconnect(peer.id)
        joined.let_go()
        assert {end.outcome for end in joined.ends(*handles).values()} == {Outcome.FAILED}
        with pytest.raises(FabricError, match="not connected"):
            joined.submit(peer, copies("full", 0, 0, 1))
        joined.fabric.disconnect(peer.id)
        joined.pools[FULL].array[:] = 0
        joined.fabric.connect(peer.id, peer.manifest)
        joined.fabric.connect(peer.id, peer.manifest)
        joined.read_ok(peer, copies("full", 0, 0, 4096))

    def test_an_unknown_peer_is_refused(self, rig: Rig, peer: Peer) -> None:
        with pytest.raises(FabricError, match="not connected"):
            rig.submit(peer, copies("full", 0, 0, 1))

    def test_manifests_that_cannot_be_are_refused(self, rig: Rig, kind: str, peer: Peer) -> None:
        good = peer.manifest
        larger = (PoolView(FULL, 1, POOLS["full"] + 1), PoolView(SLOT, 1, POOLS["slot"]))
        fewer = (PoolView(FULL, 1, POOLS["full"]),)
        stranger = RankId(Boot(1), Boot(1), 3)
        cases: list[tuple[RankId, RankManifest]] = [
            (peer.id, msgspec.structs.replace(good, exposures={})),
            (peer.id, msgspec.structs.replace(good, exposures={kind: b""})),
            (peer.id, msgspec.structs.replace(good, exposures={kind: good.exposures[kind][:-3]})),
            (peer.id, msgspec.structs.replace(good, exposures={kind: rig.exposure})),  # another rank's
            (peer.id, msgspec.structs.replace(good, pools=larger)),
            (peer.id, msgspec.structs.replace(good, pools=fewer)),
            (stranger, good),
            (stranger, msgspec.structs.replace(good, boot=Boot(1))),
        ]
        for who, manifest in cases:
            with pytest.raises(FabricError):
                rig.fabric.connect(who, manifest)
        rig.fabric.connect(peer.id, good)
        rig.read_ok(peer, copies("slot", 0, 0, 100))


class TestBounds:
    def test_f6_ranges_at_and_beyond_the_declared_limits(self, joined: Rig, peer: Peer) -> None:
        limits = joined.fabric.capabilities
        for count in (limits.max_ranges_per_call, limits.max_ranges_per_call + 1):
            at = np.arange(count) * 2
            joined.read_ok(peer, copies("full", at + 1, at, np.ones(count)))
        longest = min(limits.max_range_bytes, POOLS["full"] - 4096)
        for nbytes in (longest, longest + 1):
            joined.read_ok(peer, copies("full", 3, 5, nbytes))

    def test_f7_a_peer_cannot_be_written_through_what_the_reader_holds(self, rig: Rig, kind: str, peer: Peer) -> None:
        if not rig.fabric.capabilities.reads_read_only:
            pytest.skip(f"{kind} does not promise it")
        if kind != "shm":
            return  # tests/adapters/test_tcp.py: nothing can be said to a source but what to read
        from baton.adapters.shm_door import call, decode_exposure

        def maps() -> Counter[str]:
            return Counter(re.findall(r"(\S{4}) \S+ \S+ \d+ +/memfd:baton-pool", Path("/proc/self/maps").read_text()))

        before = maps()
        rig.fabric.connect(peer.id, peer.manifest)
        assert maps() - before == Counter({"r--s": 2})
        line, fds = call(decode_exposure(peer.manifest.exposures[kind]).name, peer.manifest.boot, 3, peer.manifest.pools)
        with line:
            for fd in fds.values():
                with pytest.raises(PermissionError):
                    mmap.mmap(fd, 4096, flags=mmap.MAP_SHARED)
                with pytest.raises(PermissionError):
                    os.pwrite(fd, b"x", 0)
                with pytest.raises(PermissionError):
                    os.ftruncate(fd, 0)
                os.close(fd)

    @pytest.mark.parametrize(
        ("source", "target", "nbytes"),
        [
            (POOLS["slot"] - 3, 0, 4),
            (0, POOLS["slot"] - 3, 4),
            (POOLS["slot"], 0, 1),
            (-1, 0, 4),
            (0, -1, 4),
            (0, 0, -1),
            (0, 0, POOLS["slot"] + 1),
            (2**63 - 1, 0, 2),
            (0, 2**63 - 1, 2),
            (8, 8, 2**63 - 1),
            (-(2**63), 0, 2),
            (POOLS["slot"] + 1, 0, 0),
        ],
    )
    def test_f8_ranges_outside_either_pool_are_refused(
        self, joined: Rig, peer: Peer, source: int, target: int, nbytes: int
    ) -> None:
        with pytest.raises(FabricError, match="outside the pool"):
            joined.submit(peer, copies("slot", [0, source], [0, target], [8, nbytes]))
        joined.read_ok(peer, copies("slot", 16, 16, 4))  # the first, good range was not submitted either

    def test_f8_malformed_copies_are_refused(self, joined: Rig, peer: Peer) -> None:
        good = copies("slot", [0], [0], [4])
        for bad in (
            copies("draft", 0, 0, 4),
            copies("slot", [0, 1], [0], [4]),
            msgspec.structs.replace(good, source=good.source.astype(np.int32)),
            msgspec.structs.replace(good, nbytes=good.nbytes.reshape(1, 1)),
        ):
            with pytest.raises(FabricError):
                joined.submit(peer, bad)
        joined.check()

    def test_f9_a_read_ends_failed_at_its_deadline(self, joined: Rig, peer: Peer) -> None:
        joined.hold()
        late = joined.submit(peer, copies("full", 0, 0, POOLS["full"]), deadline_us=5 * SECONDS)
        fine = joined.submit(peer, copies("slot", 0, 0, 4), deadline_us=50 * SECONDS)
        joined.clock.ahead = 6 * SECONDS
        joined.let_go()
        ends = joined.ends(late, fine)
        assert (ends[late].outcome, ends[fine].outcome) == (Outcome.FAILED, Outcome.OK)
        assert "deadline" in ends[late].detail


class TestHouse:
    def test_two_ranks_in_one_process_read_each_other(self, kind: str) -> None:
        boot = next(BOOTS)
        rigs = [Rig(kind, boot + (i << 40), SMALL, rank=i) for i in range(2)]
        try:
            for i, rig in enumerate(rigs):
                rig.pools[FULL].array[:4096] = i + 1
            for i, rig in enumerate(rigs):
                other = rigs[1 - i]
                views = tuple(PoolView(g, 1, p.nbytes) for g, p in other.pools.items())
                who = RankId(Boot(boot), Boot(other.boot), 1 - i)
                rig.fabric.connect(who, RankManifest(Boot(other.boot), 1 - i, 0, 0, views, {kind: other.exposure}))
                assert rig.read(who, copies("full", 0, 8192, 4096)).outcome is Outcome.OK
                assert set(rig.pools[FULL].array[8192 : 8192 + 4096].tolist()) == {2 - i}
        finally:
            for rig in rigs:
                rig.close()

    def test_close_ends_open_reads_and_may_be_called_twice(self, joined: Rig, peer: Peer) -> None:
        joined.hold()
        handle = joined.submit(peer, copies("full", 0, 0, POOLS["full"]))
        closer = threading.Thread(target=joined.fabric.close)
        closer.start()
        joined.let_go()
        closer.join()
        joined.fabric.close()
        assert joined.ends(handle)[handle].outcome is Outcome.FAILED
        with pytest.raises(FabricError, match="closed"):
            joined.submit(peer, copies("full", 0, 0, 1))

    def test_close_without_expose(self, kind: str) -> None:
        build(kind, Boot(next(BOOTS)), 0, wake=lambda: None, clock=WallClock()).close()

    def test_nothing_is_left_after_close(self, kind: str, peer: Peer) -> None:
        def live() -> None:
            rig = Rig(kind, next(BOOTS), SMALL)
            rig.fabric.connect(peer.id, peer.manifest)
            assert rig.read(peer, copies("full", 0, 0, 4096)).outcome is Outcome.OK
            rig.close()

        live()  # libraries open what they keep at their first use
        fds, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        maps = Path("/proc/self/maps").read_text().count("memfd:baton-pool")
        for _ in range(3):
            live()
        assert len(os.listdir("/proc/self/fd")) == fds
        assert threading.active_count() == threads
        assert Path("/proc/self/maps").read_text().count("memfd:baton-pool") == maps

    def test_a_process_that_forgets_to_close_ends_cleanly(self, spawn: Spawn) -> None:
        source = spawn()
        source.tell("exit")
        assert source.process.wait(20) == 0


def test_a_pool_without_a_memory_file_cannot_be_exposed_by_shm() -> None:
    class DevicePool:
        nbytes, address, fd = 4096, 1 << 32, None

    fabric = build("shm", Boot(next(BOOTS)), 0, wake=lambda: None, clock=WallClock())
    try:
        with pytest.raises(ConfigError, match="choose another fabric"):
            fabric.expose({GroupName("full"): DevicePool()})
    finally:
        fabric.close()


def test_deadlines_are_durations() -> None:
    """A rank whose clock started long ago reads all the same."""
    rig = Rig("shm", next(BOOTS), SMALL)
    rig.clock.ahead = 10**12
    me = RankId(Boot(rig.boot), Boot(rig.boot), 0)
    views = tuple(PoolView(g, 1, p.nbytes) for g, p in rig.pools.items())
    rig.fabric.connect(me, RankManifest(Boot(rig.boot), 0, 0, 0, views, {"shm": rig.exposure}))
    rig.pools[SLOT].array[:4] = 9
    assert rig.read(me, copies("slot", 0, 100, 4)).outcome is Outcome.OK
    assert rig.pools[SLOT].array[100:104].tolist() == [9, 9, 9, 9]
    rig.close()


def test_host_pool_survives_views_at_close() -> None:
    pool = HostPool(4096)
    view = pool.array[:16]
    pool.close()
    pool.close()
    view[:] = 1
    assert int(view.sum()) == 16
