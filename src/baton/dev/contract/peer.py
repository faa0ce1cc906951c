"""A source rank in a process of its own, run as a script, and its handle in the process of the
checks.

The script prints what it exposes and then obeys one line at a time: `fill SEED`, `close`, `exit`
(without closing).
"""

import signal
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.adapters.fabrics import attend_until, build
from baton.adapters.pools import make_pool
from baton.core.ids import Boot, GroupName, Micros, Rank, RankId
from baton.core.manifest import PoolView, RankManifest
from baton.core.memory.kinds import HOST, MemoryKind
from baton.ports.fabric_settings import FabricSettings

SAYS = "peer: "


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> Micros:
        """Return the time in microseconds."""
        return Micros(time.monotonic_ns() // 1000)


class PeerOrder(msgspec.Struct):
    """The settings of a peer."""

    kind: str
    boot: int
    rank: int
    pools: dict[str, int]
    settings: FabricSettings = FabricSettings()
    memory: MemoryKind = HOST


def pattern(seed: int, group: str, nbytes: int) -> NDArray[np.uint8]:
    """Return the bytes of a source pool, uint8 [nbytes]. Reads are compared with them."""
    half = nbytes // 8 + 1
    words = np.arange(half, dtype=np.uint64) + np.uint64(
        zlib.crc32(f"{seed} {group}".encode()) << 32
    )
    # splitmix64's finaliser
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (words ^ (words >> np.uint64(31))).view(np.uint8)[:nbytes]


@dataclass
class Peer:
    """A running source rank."""

    order: PeerOrder
    process: subprocess.Popen[str] = field(init=False)
    manifest: RankManifest = field(init=False)

    def __post_init__(self) -> None:
        spec = msgspec.json.encode(self.order).decode()
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, __file__, spec], stdin=pipe, stdout=pipe, text=True
        )
        exposure = bytes.fromhex(self._answer())
        views = tuple(
            PoolView(GroupName(g), 1, n, self.order.memory) for g, n in self.order.pools.items()
        )
        self.manifest = RankManifest(
            Boot(self.order.boot), self.order.rank, 0, 0, views, {self.order.kind: exposure}
        )

    @property
    def id(self) -> RankId:
        """Its identity. It is the leader of its worker."""
        return RankId(Boot(self.order.boot), Boot(self.order.boot), Rank(self.order.rank))

    def tell(self, line: str) -> None:
        """Let it obey a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self._answer() == "done"

    def end(self) -> int:
        """Let it close its fabric and end. Returns its exit status."""
        self.tell("close")
        return self._reap()

    def stop(self) -> None:
        """Stop it with SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on, with SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        self._reap()

    def _reap(self) -> int:
        status = self.process.wait(20)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        return status

    def _answer(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(SAYS):  # UCX writes its warnings to stdout
                return line.removeprefix(SAYS).strip()
        raise AssertionError(f"peer ended with status {self.process.wait(10)}")


def main() -> None:
    """Run the source rank."""
    order = msgspec.json.decode(sys.argv[1], type=PeerOrder)
    fabric = build(
        order.kind,
        Boot(order.boot),
        order.rank,
        wake=lambda: None,
        clock=WallClock(),
        settings=order.settings,
    )
    pools = {GroupName(g): make_pool(order.memory, n, what=g) for g, n in order.pools.items()}
    for group, pool in pools.items():
        pool.fill(pattern(order.boot, group, pool.nbytes))
    print(SAYS + fabric.expose(pools).hex(), flush=True)
    while True:
        attend_until(fabric, sys.stdin.fileno())
        verb, *args = (sys.stdin.readline() or "exit").split()
        if verb == "fill":
            for group, pool in pools.items():
                pool.fill(pattern(int(args[0]), group, pool.nbytes))
        elif verb == "close":
            fabric.close()
            fabric.close()
        print(SAYS + "done", flush=True)
        if verb in ("close", "exit"):
            return


if __name__ == "__main__":
    main()
