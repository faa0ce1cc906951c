"""Where a worker says that it is reached."""

import pytest

from baton.cli import main, processes
from baton.cli.own_address import own_address, reached_at, route_to
from baton.core.errors import ConfigError

ROUTES = {"10.0.0.1": "10.0.0.2", "gw": "192.168.1.2", "fd00::1": "fd00::2"}


def route(host):
    if host not in ROUTES:
        raise OSError(101, "Network is unreachable")
    return ROUTES[host]


@pytest.fixture
def routes(monkeypatch):
    """Routes of our own."""
    monkeypatch.setattr("baton.cli.own_address.route_to", route)


@pytest.mark.parametrize(
    ("gateways", "own"),
    [
        (["tcp://127.0.0.1:5500"], "127.0.0.1"),
        (["tcp://127.0.0.9:5500"], "127.0.0.1"),
        (["tcp://[::1]:5500"], "127.0.0.1"),
        (["tcp://localhost:5500"], "127.0.0.1"),
        (["ipc:///run/gateway"], "127.0.0.1"),
        (["tcp://10.0.0.1:5500"], "10.0.0.2"),
        (["tcp://10.0.0.1:*"], "10.0.0.2"),
        (["tcp://gw:5500"], "192.168.1.2"),
        (["tcp://[fd00::1]:5500"], "fd00::2"),
        # what reaches the farthest
        (["tcp://127.0.0.1:5500", "tcp://gw:5500", "tcp://10.0.0.1:5500"], "192.168.1.2"),
    ],
)
def test_the_own_address_is_that_of_the_route_to_the_gateway(gateways, own, routes):
    assert own_address(gateways) == own


def test_no_way_to_the_gateway_is_said_with_the_flags_that_do_without(routes):
    with pytest.raises(
        ConfigError, match=r"tcp://10\.9\.9\.9:1 .*unreachable.*--fabric-host " r"IP --bind"
    ):
        own_address(["tcp://10.9.9.9:1"])
    assert reached_at(["tcp://10.9.9.9:1"], host="10.9.9.1", bind="tcp://10.9.9.1:7") == (
        "10.9.9.1",
        "tcp://10.9.9.1:7",
    )


@pytest.mark.parametrize(
    ("host", "bind", "told"),
    [
        (None, None, ("10.0.0.2", "tcp://10.0.0.2:0")),
        ("10.1.0.2", None, ("10.1.0.2", "tcp://10.0.0.2:0")),
        (None, "tcp://10.1.0.2:7", ("10.0.0.2", "tcp://10.1.0.2:7")),
    ],
)
def test_flags_win_one_by_one(host, bind, told, routes):
    assert reached_at(["tcp://10.0.0.1:5500"], host=host, bind=bind) == told


def test_an_ipv6_address_is_written_in_brackets(routes):
    assert reached_at(["tcp://[fd00::1]:5500"], host=None, bind=None)[1] == "tcp://[fd00::2]:0"


def test_the_kernel_is_asked_and_nothing_is_sent():
    assert route_to("127.0.0.7") == "127.0.0.1"
    assert route_to("::1") == "::1"


def test_a_name_that_nobody_knows_is_an_operating_error():
    with pytest.raises(
        ConfigError, match=r"no way to the gateway at " r"tcp://no-such-host\.invalid:1"
    ):
        own_address(["tcp://no-such-host.invalid:1"])


@pytest.fixture
def worker(monkeypatch, checkpoint, routes):
    """Settings of a worker started with these flags."""
    seen = []
    monkeypatch.setattr(processes, "run_worker", seen.append)

    def start(*flags):
        assert main.run(["worker", str(checkpoint), "--role", "prefill", *flags]) == 0
        return seen.pop()

    return start


def test_a_worker_announces_its_route_unless_told(worker):
    settings = worker("--gateway", "tcp://10.0.0.1:5500")
    assert (settings.fabric_settings.host, settings.bind) == ("10.0.0.2", "tcp://10.0.0.2:0")
    settings = worker(
        "--gateway",
        "tcp://10.0.0.1:5500",
        "--fabric-host",
        "10.7.0.1",
        "--bind",
        "tcp://10.7.0.1:9",
    )
    assert (settings.fabric_settings.host, settings.bind) == ("10.7.0.1", "tcp://10.7.0.1:9")
    settings = worker("--gateway", "tcp://127.0.0.1:5500")
    assert (settings.fabric_settings.host, settings.bind) == ("127.0.0.1", "tcp://127.0.0.1:0")
