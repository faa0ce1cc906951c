"""What a kernel must do for faults of the cable is tried before a service starts."""

import shutil
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.chaos.networks import OwnNetwork, needs

from baton.core.errors import ConfigError
from baton.dev.chaos.cable import DEVICE
from baton.dev.chaos.injections import try_out

pytestmark = needs("nft", "tc")


@pytest.fixture
def machine() -> Iterator[SimpleNamespace]:
    """All of another machine that is asked here."""
    both = OwnNetwork(), OwnNetwork()
    for each in both:
        words = ("tuntap", "add", DEVICE, "mode", "tun")
        each.network.run("ip", *words, package="iproute2")
    yield SimpleNamespace(networks=tuple(each.network for each in both))
    for each in both:
        each.close()


def test_what_the_kernel_does_leaves_nothing_behind(machine: SimpleNamespace) -> None:
    try_out(("kill", "partition", "loss", "bandwidth"), machine)
    for network in machine.networks:
        assert network.run("nft", "list", "tables", package="nftables") == ""
        assert "tbf" not in network.run("tc", "qdisc", package="iproute2")


def test_a_kernel_that_cannot_is_named(machine: SimpleNamespace) -> None:
    machine.networks[1].run("ip", "link", "del", DEVICE, package="iproute2")
    with pytest.raises(ConfigError, match=r"tc .*: .*\(bandwidth needs a kernel with the token"):
        try_out(("bandwidth",), machine)


def test_what_is_missing_is_named_with_its_remedy(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    try_out(("partition", "delay"), machine)
    with pytest.raises(ConfigError) as raised:
        try_out(("kill", "loss"), machine)
    assert str(raised.value) == (
        "no command nft here: install nftables (loss needs a kernel with nf_tables and its "
        "expression numgen; or leave it out of --kinds)"
    )
