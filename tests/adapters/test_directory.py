"""Gateways by name: they come and go with the addresses of the name."""

from collections.abc import Callable, Iterator, Sequence
from threading import Event

import pytest

from baton.adapters.directory import GatewayDirectory, is_named
from baton.core.errors import ConfigError

LOOK_S = 0.005


class Names:
    """A name server with answers of our own."""

    def __init__(self, *hosts: str) -> None:
        self.hosts: tuple[str, ...] | None = hosts
        self.asked: list[str] = []
        self._asked_again = Event()

    def resolve(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        self._asked_again.set()
        if self.hosts is None:
            raise OSError("the name server does not answer")
        return self.hosts

    def looked_up(self) -> None:
        """Wait until a lookup that has begun after this call has ended."""
        for _ in range(2):
            self._asked_again.clear()
            assert self._asked_again.wait(10)


Open = Callable[..., GatewayDirectory]


@pytest.fixture
def names() -> Names:
    return Names("10.0.0.1")


@pytest.fixture
def woken() -> Event:
    return Event()


@pytest.fixture
def directory(names: Names, woken: Event) -> Iterator[Open]:
    made: list[GatewayDirectory] = []

    def make(*addresses: str) -> GatewayDirectory:
        made.append(GatewayDirectory(addresses, woken.set, resolve=names.resolve, look_s=LOOK_S))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_addresses_that_are_given_are_known_at_once_and_need_no_thread(
    directory: Open, names: Names
) -> None:
    found = directory("tcp://10.0.0.9:5", "ipc:///run/b")
    assert found.addresses() == ("ipc:///run/b", "tcp://10.0.0.9:5")
    assert found._thread is None
    assert names.asked == []


def test_a_name_stands_for_all_its_addresses_and_the_process_wakes_when_they_change(
    directory: Open, names: Names, woken: Event
) -> None:
    found = directory("dns://gateways.svc:5", "tcp://10.0.0.9:5")
    assert woken.wait(10)
    assert found.addresses() == ("tcp://10.0.0.1:5", "tcp://10.0.0.9:5")
    woken.clear()
    names.hosts = ("10.0.0.2", "fd00::1")
    assert woken.wait(10)
    assert found.addresses() == ("tcp://10.0.0.2:5", "tcp://10.0.0.9:5", "tcp://[fd00::1]:5")
    assert set(names.asked) == {"gateways.svc"}


def test_while_nothing_can_be_learned_the_last_answer_stands(
    directory: Open, names: Names, woken: Event
) -> None:
    found = directory("dns://gateways.svc:5")
    assert woken.wait(10)
    woken.clear()
    names.hosts = None
    names.looked_up()
    assert found.addresses() == ("tcp://10.0.0.1:5",)
    assert not woken.is_set()
    names.hosts = ()
    assert woken.wait(10)
    assert found.addresses() == ()


def test_it_stops_asking_when_it_is_closed(directory: Open, names: Names) -> None:
    found = directory("dns://gateways.svc:5")
    names.looked_up()
    found.close()
    assert found._thread is not None
    found._thread.join(10)
    assert not found._thread.is_alive()


@pytest.mark.parametrize("wrong", ["dns://gateways", "dns://a:b", "dns://:5", "dns://a:5/x"])
def test_a_name_that_does_not_parse_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="dns://NAME:PORT"):
        is_named(wrong)


def test_this_machine_is_found_by_its_name() -> None:
    woken = Event()
    found = GatewayDirectory(("dns://localhost:5",), woken.set)
    try:
        assert woken.wait(20)
        assert found.addresses() == ("tcp://127.0.0.1:5",)
    finally:
        found.close()
