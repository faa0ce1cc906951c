"""A source rank in a process of its own, run as a script; and its handle in the test's process.

The script prints what it exposes and then obeys one line at a time: `fill SEED`, `close`, `exit` (without closing).
"""

import random
import subprocess
import sys
import time
from dataclasses import dataclass, field

import msgspec
import numpy as np

from baton.adapters.fabrics import build
from baton.adapters.memory import HostPool
from baton.core.ids import Boot, GroupName, Micros, RankId
from baton.core.manifest import PoolView, RankManifest

SAYS = "peer: "


class WallClock:
    """Monotonic time."""

    def now(self) -> Micros:
        return Micros(time.monotonic_ns() // 1000)


class Order(msgspec.Struct):
    """How the peer is made."""

    kind: str
    boot: int
    rank: int
    pools: dict[str, int]


def pattern(seed: int, group: str, nbytes: int) -> np.ndarray:
    """The bytes of a source pool: what the test compares with, byte for byte."""
    return np.frombuffer(random.Random(f"{seed} {group}").randbytes(nbytes), dtype=np.uint8)


@dataclass
class Peer:
    """A running source rank."""

    order: Order
    env: dict[str, str] | None = None
    process: subprocess.Popen[str] = field(init=False)
    manifest: RankManifest = field(init=False)

    def __post_init__(self) -> None:
        spec = msgspec.json.encode(self.order).decode()
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, __file__, spec], stdin=pipe, stdout=pipe, text=True, env=self.env)
        exposure = bytes.fromhex(self._answer())
        views = tuple(PoolView(GroupName(g), 1, n) for g, n in self.order.pools.items())
        self.manifest = RankManifest(Boot(self.order.boot), self.order.rank, 0, 0, views, {self.order.kind: exposure})

    @property
    def id(self) -> RankId:
        return RankId(Boot(self.order.boot), Boot(self.order.boot), self.order.rank)

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self._answer() == "done"

    def end(self) -> int:
        """Have it close its fabric and end; its exit status."""
        self.tell("close")
        return self._reap()

    def kill(self) -> None:
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
    order = msgspec.json.decode(sys.argv[1], type=Order)
    fabric = build(order.kind, Boot(order.boot), order.rank, wake=lambda: None, clock=WallClock())
    pools = {GroupName(g): HostPool(n, what=g) for g, n in order.pools.items()}
    for group, pool in pools.items():
        pool.array[:] = pattern(order.boot, group, pool.nbytes)
    print(SAYS + fabric.expose(pools).hex(), flush=True)
    for line in sys.stdin:
        verb, *args = line.split()
        if verb == "fill":
            for group, pool in pools.items():
                pool.array[:] = pattern(int(args[0]), group, pool.nbytes)
        elif verb == "close":
            fabric.close()
            fabric.close()
        print(SAYS + "done", flush=True)
        if verb in ("close", "exit"):
            return


if __name__ == "__main__":
    main()
