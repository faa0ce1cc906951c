"""A machine sends at the rate that it is held to, and the kernel says that packets had to wait."""

import socket
import time
from collections.abc import Iterator

import pytest
from tests.chaos.networks import OwnNetwork, needs

from baton.dev.chaos.bandwidth import BURST_BYTES, Bandwidth

pytestmark = needs("tc")
RATE = 4e6
PACKET_BYTES, SENT = 1000, 164  # 100 of them beyond the bucket, which is full at first


@pytest.fixture
def own() -> Iterator[OwnNetwork]:
    made = OwnNetwork()
    yield made
    made.close()


def taken_s(own: OwnNetwork) -> float:
    """How long it takes until all datagrams have arrived."""

    def send() -> float:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as target,
        ):
            target.bind(("127.0.0.1", 0))
            target.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            target.settimeout(20)
            began = time.monotonic()
            for _ in range(SENT):
                source.sendto(bytes(PACKET_BYTES), target.getsockname())
            for _ in range(SENT):
                target.recv(PACKET_BYTES)
            return time.monotonic() - began

    return own.run(send)


def test_what_is_beyond_the_bucket_leaves_at_the_rate(own: OwnNetwork) -> None:
    bandwidth = Bandwidth(own.network, "lo")
    bandwidth.begin(RATE)
    least_s = 8 * (PACKET_BYTES * SENT - BURST_BYTES) / RATE
    assert taken_s(own) >= least_s
    assert bandwidth.end() > 0
    assert "tbf" not in own.network.run("tc", "qdisc", package="iproute2")


def test_who_sends_little_does_not_wait(own: OwnNetwork) -> None:
    bandwidth = Bandwidth(own.network, "lo")
    bandwidth.begin(1e11)  # more than any machine sends in a burst
    taken_s(own)
    assert bandwidth.end() == 0
