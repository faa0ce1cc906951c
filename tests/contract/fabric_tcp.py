"""Run as a module in a process of its own, with UCX held to TCP: there reads really are under way
when things go wrong.

Prints `passed`, or ends with a traceback.
"""

import os
import signal

from baton.adapters import agent_reads
from baton.dev.contract.peer import Peer, PeerOrder
from baton.dev.contract.rig import FULL, SECONDS, Rig, copies
from baton.ports.fabric import ReadOutcome

POOLS = {"full": 24 << 20}


def main() -> None:
    boot = os.getpid() << 8
    peer, rig = Peer(PeerOrder("nixl", boot, 0, POOLS)), Rig("nixl", boot + 1, POOLS)
    rig.connect(peer.id, peer.manifest)
    whole, small = copies("full", 0, 0, POOLS["full"]), copies("full", 0, 0, 64)
    rig.read_ok(peer, whole)

    # F9: the source stands still; the deadline passes, the endpoint is torn down, which ends its
    # other read too
    os.kill(peer.process.pid, signal.SIGSTOP)
    late, other = rig.submit(peer, whole, deadline_us=SECONDS // 20), rig.submit(peer, small)
    ends = rig.ends(late, other)
    assert {end.outcome for end in ends.values()} == {ReadOutcome.FAILED}, ends
    assert "deadline" in ends[late].detail
    assert "not end in time" in ends[other].detail

    # F3: the source wakes up; what it still has to say to the old endpoint does not land. UCX
    # aborts it for finding nobody
    # there (1.5.1), or it lives and can be read
    rig.pools[FULL].array[:] = 0x5A
    rig.expected[FULL][:] = 0x5A
    os.kill(peer.process.pid, signal.SIGCONT)
    nobody = copies("full", [], [], [])
    for _ in range(20):
        if rig.read(peer, small).outcome is not ReadOutcome.OK:
            break
        assert rig.read(peer, nobody).outcome is ReadOutcome.OK
    rig.pools[FULL].array[:64] = 0x5A
    rig.check()
    peer.kill()
    rig.fabric.disconnect(peer.id)

    # a cancel ends the read; others from the same source are not hurt
    peer = Peer(PeerOrder("nixl", boot + 2, 0, POOLS))
    rig.connect(peer.id, peer.manifest)
    handle = rig.submit(peer, whole)
    rig.fabric.cancel(handle)
    assert rig.ends(handle)[handle].outcome is ReadOutcome.FAILED
    rig.expected[FULL][:] = rig.pools[FULL].array
    rig.read_ok(peer, copies("full", 5, 5, 100))

    # F5: the source is killed in mid read
    handles = [rig.submit(peer, whole) for _ in range(agent_reads.WINDOW_PARTS + 4)]
    peer.kill()
    ends = rig.ends(*handles)
    assert ends[handles[-1]].outcome is ReadOutcome.FAILED, ends
    rig.close()
    print("passed", flush=True)


if __name__ == "__main__":
    main()
