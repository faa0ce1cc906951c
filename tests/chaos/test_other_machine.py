"""What the kernel does to the packets of a real cable, at one of its two ends."""

import os
import socket
import sys
import time
from collections.abc import Iterator

import pytest
from tests.chaos.networks import OwnNetwork, needs

from baton.dev.chaos.bandwidth import BURST_BYTES, Bandwidth
from baton.dev.chaos.cable import DEVICE, THERE, OtherMachine
from baton.dev.chaos.loss import Loss

pytestmark = [
    needs("nft", "tc"),
    pytest.mark.skipif(not os.path.exists("/dev/net/tun"), reason="the kernel has no tunnels"),
]
PORT, SENT = 9999, 200
ECHO = f"""
import socket
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind(("{THERE}", {PORT}))
while True:
    own.sendto(*own.recvfrom(65536))
"""


class Pair:
    """Two machines; one that asks, and one that echoes."""

    def __init__(self) -> None:
        self.own = OwnNetwork()
        program = [sys.executable, "-c", ECHO]
        self.other = self.own.run(lambda: OtherMachine(self.own.network, [program]))
        self.socket = self.own.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.socket.connect((THERE, PORT))
        self.socket.settimeout(0.2)
        until = time.monotonic() + 30
        while not self.echoes(1, b"are you there?"):
            assert time.monotonic() < until

    def echoes(self, count: int, packet: bytes) -> int:
        """How many of so many packets come back, each before the next one is sent."""
        came = 0
        for _ in range(count):
            try:
                self.socket.send(packet)
                came += len(self.socket.recv(65536)) == len(packet)
            except (TimeoutError, ConnectionRefusedError):
                continue
        return came

    def close(self) -> None:
        self.socket.close()
        self.own.run(self.other.close)
        self.own.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.mark.parametrize("side", [0, 1])
def test_packets_are_lost_where_they_arrive_and_nowhere_else(pair: Pair, side: int) -> None:
    loss = Loss(pair.other.networks[side], DEVICE)
    pair.socket.settimeout(0.02)
    loss.begin(0.3)
    came = pair.echoes(SENT, b"x")
    dropped = loss.end()
    assert 0.15 * SENT < dropped < 0.45 * SENT
    assert came <= SENT - dropped  # an echo that is late is taken for the next one's
    pair.socket.settimeout(5)
    assert pair.echoes(20, b"again") >= 10


@pytest.mark.parametrize("side", [0, 1])
def test_packets_as_large_as_the_cable_takes_wait_and_arrive(pair: Pair, side: int) -> None:
    packet = bytes(31_000)
    pair.socket.settimeout(10)
    bandwidth = Bandwidth(pair.other.networks[side], DEVICE)
    bandwidth.begin(4e6)
    began = time.monotonic()
    assert pair.echoes(6, packet) == 6
    assert time.monotonic() - began >= 8 * (6 * len(packet) - BURST_BYTES) / 4e6
    assert bandwidth.end() > 0
