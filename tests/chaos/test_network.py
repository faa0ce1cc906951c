"""Commands run in a network that is not that of the test, and say what they lack."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest
from tests.chaos.networks import OwnNetwork, needs

from baton.core.errors import ConfigError

pytestmark = needs()


@pytest.fixture
def own() -> Iterator[OwnNetwork]:
    made = OwnNetwork()
    yield made
    made.close()


def test_a_command_runs_in_that_network(own: OwnNetwork) -> None:
    own.network.run("ip", "addr", "add", "10.79.9.9", "dev", "lo", package="iproute2")
    assert "10.79.9.9" in own.network.run("ip", "addr", package="iproute2")
    assert "10.79.9.9" not in subprocess.check_output(["ip", "addr"], text=True)


def test_a_command_that_fails_says_what_it_said(own: OwnNetwork) -> None:
    with pytest.raises(ConfigError, match=r"ip link show cable: .*cable.* does not exist"):
        own.network.run("ip", "link", "show", "cable", package="iproute2")


def test_a_command_that_is_not_there_is_to_be_installed(
    own: OwnNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="no command nft here: install nftables"):
        own.network.run("nft", "list", "tables", package="nftables")
