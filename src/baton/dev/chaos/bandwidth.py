"""A cable that carries little: the kernel of a machine sends into it at a rate, by a token bucket.

What does not fit waits in the bucket's queue, and is dropped when the queue is full: so do routers.
"""

import re

from baton.dev.chaos.network import NetworkNamespace

BURST_BYTES = 64_000  # more than a packet, which would never be sent otherwise
QUEUED_MS = 400  # the longest wait in the queue
HELD_UP = re.compile(r"overlimits (\d+)")


class Bandwidth:
    """Of what a machine sends into its cable.

    Args:
        network: of the machine
        device: by which it sends
    """

    KIND = "bandwidth"
    NEEDS = "a kernel with the token bucket filter, sch_tbf"

    def __init__(self, network: NetworkNamespace, device: str) -> None:
        self._network, self._device = network, device

    def begin(self, bits_per_s: float) -> None:
        """Send no faster from now on."""
        bucket = ("rate", f"{round(bits_per_s)}bit", "burst", f"{BURST_BYTES}b")
        self._qdisc("add", "root", "tbf", *bucket, "latency", f"{QUEUED_MS}ms")

    def end(self) -> int:
        """Send as fast as before. Returns how often a packet had to wait."""
        said = self._qdisc("show", "root")
        self._qdisc("del", "root")
        return sum(int(count) for count in HELD_UP.findall(said))

    def _qdisc(self, verb: str, *words: str) -> str:
        command = ("tc", "-s", "qdisc", verb, "dev", self._device, *words)
        return self._network.run(*command, package="iproute2")
