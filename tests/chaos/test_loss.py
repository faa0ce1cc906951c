"""A share of what arrives is dropped by the kernel, which counts it; before and after, nothing is."""

import socket
from collections.abc import Iterator

import pytest
from tests.chaos.networks import OwnNetwork, needs

from baton.dev.chaos.loss import Loss

pytestmark = needs("nft")
SENT = 400


@pytest.fixture
def own() -> Iterator[OwnNetwork]:
    made = OwnNetwork()
    yield made
    made.close()


def arrived(own: OwnNetwork) -> int:
    """How many of SENT datagrams arrive."""

    def send() -> int:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as target,
        ):
            target.bind(("127.0.0.1", 0))
            target.setblocking(False)
            came = 0
            for _ in range(SENT):
                source.sendto(b"x", target.getsockname())
                try:
                    came += len(target.recv(10))  # loopback delivers before it returns
                except BlockingIOError:
                    continue
            return came

    return own.run(send)


def test_a_share_of_what_arrives_is_dropped_and_counted(own: OwnNetwork) -> None:
    loss = Loss(own.network, "lo")
    assert arrived(own) == SENT
    loss.begin(0.3)
    came = arrived(own)
    assert loss.end() == SENT - came
    assert 0.15 * SENT < SENT - came < 0.45 * SENT
    assert arrived(own) == SENT


def test_another_device_loses_nothing(own: OwnNetwork) -> None:
    loss = Loss(own.network, "cable")
    loss.begin(0.9)
    assert arrived(own) == SENT
    assert loss.end() == 0
