"""A cable between two ends carries packets in order, late if it must, and nothing where it is cut."""

import socket
import time
from collections.abc import Iterator

import pytest

from baton.dev.chaos.cable import Cable

DELAY_S = 0.05


class Ends:
    """A cable, and what is plugged in at its two ends."""

    def __init__(self) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        self.outside = [outside for outside, _ in pairs]
        for each in self.outside:
            each.settimeout(20)
        here, there = (inside.detach() for _, inside in pairs)
        self.cable = Cable((here, there))

    def carries(self, source: int, packet: bytes) -> None:
        """A packet comes out at the other end, before any other."""
        self.outside[source].send(packet)
        assert self.outside[1 - source].recv(100) == packet


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.cable.close()
    for each in made.outside:
        each.close()


def test_it_carries_both_ways(ends: Ends) -> None:
    ends.carries(0, b"there")
    ends.carries(1, b"back")


@pytest.mark.parametrize("side", [0, 1])
def test_what_is_sent_into_a_cut_direction_never_comes_and_the_other_one_works(
    ends: Ends, side: int
) -> None:
    ends.cable.cut(side)
    ends.outside[side].send(b"lost")
    ends.carries(1 - side, b"across")  # read after the lost one, which is gone by now
    ends.cable.cut()
    ends.carries(side, b"again")


def test_what_is_late_keeps_its_order_when_the_cable_is_fast_again(ends: Ends) -> None:
    ends.cable.delay(DELAY_S)
    began = time.monotonic()
    for packet in (b"1", b"2"):
        ends.outside[0].send(packet)
    assert ends.outside[1].recv(100) == b"1"
    assert time.monotonic() - began >= DELAY_S
    ends.cable.delay(0)
    ends.outside[0].send(b"3")
    assert [ends.outside[1].recv(100) for _ in range(2)] == [b"2", b"3"]
