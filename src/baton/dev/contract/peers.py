"""F5, F8, F10: peers that die, restart, are slow, are forgotten, or claim a false identity."""

import msgspec
import numpy as np

from baton.core.errors import FabricError
from baton.core.ids import Boot, Rank, RankId
from baton.core.manifest import RankManifest
from baton.dev.contract.peer import pattern
from baton.dev.contract.rig import FULL, POOLS, CheckWorld, copies, refused
from baton.ports.fabric import Connected, ReadOutcome


def f5_a_killed_peer_fails_its_reads_and_its_restart_is_another_peer(w: CheckWorld) -> None:
    """A killed peer fails its reads and its restart is another peer."""
    rig, peer, spawn = w.rig, w.peer, w.spawn
    old = spawn()
    rig.connect(old.id, old.manifest)
    rig.connect(peer.id, peer.manifest)
    rig.read_ok(old, copies("full", 0, 0, 8192))
    old.kill()
    assert rig.read(old, copies("full", 0, 8192, 8192)).outcome is ReadOutcome.FAILED
    new = spawn()  # same rank, same role, next boot
    rig.connect(new.id, new.manifest)
    assert rig.read(old, copies("full", 0, 8192, 8192)).outcome is ReadOutcome.FAILED
    for whole in (new, peer):
        assert rig.read(whole, copies("full", 0, 0, 8192)).outcome is ReadOutcome.OK
        assert np.array_equal(
            rig.pools[FULL].contents()[:8192],
            pattern(whole.order.boot, "full", whole.order.pools["full"])[:8192],
        )


def f5_a_peer_killed_under_reads_leaves_none_open(w: CheckWorld) -> None:
    """A peer killed under reads leaves none open."""
    rig, spawn = w.rig, w.spawn
    source = spawn(POOLS)
    rig.connect(source.id, source.manifest)
    handles = [rig.submit(source, copies("full", 0, 0, POOLS["full"])) for _ in range(40)]
    source.kill()
    ends = rig.ends(*handles)
    assert ends[handles[-1]].outcome is ReadOutcome.FAILED


def f5_a_dead_peer_cannot_be_connected_or_cannot_be_read(w: CheckWorld) -> None:
    """A dead peer cannot be connected or cannot be read."""
    rig, spawn = w.rig, w.spawn
    source = spawn()
    source.kill()
    try:
        rig.connect(source.id, source.manifest)
    except FabricError:
        return
    assert rig.read(source, copies("full", 0, 0, 1)).outcome is ReadOutcome.FAILED


def f5_disconnect_ends_reads_and_forgets(w: CheckWorld) -> None:
    """Disconnect ends reads and forgets."""
    joined, peer = w.joined, w.peer
    joined.hold()
    handles = [joined.submit(peer, copies("full", 0, 0, POOLS["full"])) for _ in range(3)]
    joined.fabric.disconnect(peer.id)
    joined.let_go()
    assert {end.outcome for end in joined.ends(*handles).values()} == {ReadOutcome.FAILED}
    with refused(FabricError, "not connected"):
        joined.submit(peer, copies("full", 0, 0, 1))
    joined.fabric.disconnect(peer.id)
    joined.pools[FULL].fill(np.zeros(POOLS["full"], np.uint8))
    joined.connect(peer.id, peer.manifest)
    joined.connect(peer.id, peer.manifest)
    joined.read_ok(peer, copies("full", 0, 0, 4096))


def f10_connecting_waits_for_nobody(w: CheckWorld) -> None:
    """Connecting waits for nobody."""
    rig, source = w.rig, w.spawn()
    source.stop()
    try:
        rig.fabric.connect(source.id, source.manifest)  # waiting here would never end
    finally:
        source.resume()
    assert rig.events(1) == [Connected(source.id, "")]
    rig.read_ok(source, copies("full", 0, 0, 4096))


def f10_of_a_peer_that_was_disconnected_nothing_more_is_said(w: CheckWorld) -> None:
    """Nothing more is reported about a peer that was disconnected."""
    rig, peer, source = w.rig, w.peer, w.spawn()
    source.stop()
    try:
        for who in (source, peer):
            rig.fabric.connect(who.id, who.manifest)
            rig.fabric.disconnect(who.id)
    finally:
        source.resume()
    for who in (source, peer):
        with refused(FabricError, "not connected"):
            rig.submit(who, copies("full", 0, 0, 1))
    source.kill()
    rig.fabric.connect(peer.id, peer.manifest)  # its event comes after any of the first attempts
    assert rig.events(1) == [Connected(peer.id, "")]
    rig.fabric.connect(peer.id, peer.manifest)
    assert rig.events(1) == [Connected(peer.id, "")]
    rig.read_ok(peer, copies("full", 0, 0, 4096))


def f8_an_unknown_peer_is_refused(w: CheckWorld) -> None:
    """An unknown peer is refused."""
    rig, peer = w.rig, w.peer
    with refused(FabricError, "not connected"):
        rig.submit(peer, copies("full", 0, 0, 1))


def f8_manifests_that_cannot_be_are_refused(w: CheckWorld) -> None:
    """Manifests that cannot be are refused."""
    rig, kind, peer = w.rig, w.kind, w.peer
    good = peer.manifest
    full, slot = good.pools
    larger, fewer = (msgspec.structs.replace(full, nbytes=full.nbytes + 1), slot), (full,)
    stranger = RankId(Boot(1), Boot(1), Rank(3))
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
        with refused(FabricError):
            rig.connect(who, manifest)
    rig.connect(peer.id, good)
    rig.read_ok(peer, copies("slot", 0, 0, 100))
