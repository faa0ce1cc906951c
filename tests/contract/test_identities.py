"""Identities over real sockets: who is a member gets through, for as long as it is one."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from tests.contract.test_control import LOOPBACK, address, heard, until
from zmq.utils import z85

from baton.adapters.credentials import bare, load_credentials
from baton.adapters.identity import Identity, load_identity, new_identity
from baton.adapters.secret import new_secret
from baton.adapters.zmq_control import ZmqControl
from baton.cli.main import run
from baton.core.errors import ConfigError

MOST = 4096


class House:
    """A members file, identities, and ports that are closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.members = folder, folder / "members"
        self.made: list[ZmqControl] = []

    def identity(self, name: str) -> Identity:
        path = self.folder / f"{name}.key"
        if not path.exists():
            new_identity(name, path, self.members)
        return load_identity(path, self.members)

    def port(self, name: str, bind: str | None = None) -> ZmqControl:
        self.made.append(ZmqControl(bind=bind, keys=self.identity(name), max_frame_bytes=MOST))
        return self.made[-1]

    def lines(self) -> list[str]:
        return self.members.read_text().splitlines()

    def write(self, lines: list[str]) -> None:
        """Replace the file, as an editor does."""
        new = self.folder / "members.new"
        new.write_text("".join(f"{line}\n" for line in lines))
        os.replace(new, self.members)

    def revoke(self, name: str) -> None:
        self.write([line for line in self.lines() if not line.startswith(f"{name} ")])


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    for control in house.made:
        control.close()


def ended(control: ZmqControl, *others: ZmqControl) -> list[int]:
    """The links whose end a port says, as its pump would hear it."""
    found: list[int] = []
    until_s = time.monotonic() + 10
    while not found:
        assert time.monotonic() < until_s, "it is not revoked"
        assert control.receive() == []
        found = list(control.broken())
        for other in others:
            other.receive()
        time.sleep(0.01)
    return found


def nothing_comes(listener: ZmqControl, dialler: ZmqControl, link: int) -> None:
    for _ in range(100):
        dialler.send(link, b"let me in")
        assert listener.receive() == []
        assert dialler.receive() == []
        time.sleep(0.005)


def test_members_speak_to_each_other_at_the_address_that_names_the_key(house: House) -> None:
    for name in ("decode-0", "prefill-0"):
        house.identity(name)
    listener, dialler = house.port("prefill-0", LOOPBACK), house.port("decode-0")
    assert address(listener).count("#") == 1
    link = dialler.dial(address(listener))
    until(lambda: dialler.send(link, b"x"), listener)
    ((back, raw),) = heard(listener, 1, dialler)
    assert raw == b"x"
    assert listener.send(back, b"y")
    assert heard(dialler) == [(link, b"y")]


def test_a_gateway_is_known_by_its_name_in_the_members_file(house: House) -> None:
    house.identity("decode-0")
    gateway, worker = house.port("gateway", LOOPBACK), house.port("decode-0")
    link = worker.dial(bare(address(gateway)))
    until(lambda: worker.send(link, b"x"), gateway)
    assert [raw for _, raw in heard(gateway, 1, worker)] == [b"x"]


def test_without_a_gateway_among_the_members_none_is_dialled(house: House) -> None:
    with pytest.raises(ConfigError, match="not in --members"):
        house.port("decode-0").dial("tcp://127.0.0.1:7")


@pytest.mark.parametrize("who", ["of another house", "the secret", "nothing"])
def test_who_is_no_member_gets_nothing_through(house: House, tmp_path: Path, who: str) -> None:
    house.identity("decode-0")
    listener, member = house.port("gateway", LOOPBACK), house.port("decode-0")
    key = address(listener).partition("#")[2]
    if who == "of another house":  # which knows our gateway's public key
        (tmp_path / "other").mkdir()
        other = House(tmp_path / "other")
        other.write([f"gateway {key}"])
        stranger = other.port("decode-0")
    else:
        new_secret(tmp_path / "secret")
        keys = load_credentials(str(tmp_path / "secret"), None) if who == "the secret" else None
        stranger = ZmqControl(bind=None, keys=keys, max_frame_bytes=MOST)
    house.made.append(stranger)
    strange, link = stranger.dial(bare(address(listener))), member.dial(address(listener))
    for n in range(5):
        stranger.send(strange, b"let me in")
        until(lambda: member.send(link, b"%d" % n), listener)  # noqa: B023
        assert [raw for _, raw in heard(listener, 1, stranger)] == [b"%d" % n]
    assert stranger.receive() == []


def test_nobody_listens_with_a_key_that_is_not_its_own(house: House) -> None:
    """Who has a worker's identity cannot stand for a gateway."""
    for name in ("gateway", "decode-0"):
        house.identity(name)
    false, worker = house.port("decode-1", LOOPBACK), house.port("decode-0")
    link = worker.dial(bare(address(false)))
    nothing_comes(false, worker, link)


def test_who_is_taken_out_is_out_at_once_and_who_is_put_back_gets_in_again(house: House) -> None:
    house.identity("decode-0")
    listener, dialler = house.port("gateway", LOOPBACK), house.port("decode-0")
    link = dialler.dial(address(listener))
    until(lambda: dialler.send(link, b"x"), listener)
    ((back, _),) = heard(listener, 1, dialler)
    before = house.lines()
    house.revoke("decode-0")
    assert ended(listener) == [back]
    assert not listener.send(back, b"you get nothing")
    nothing_comes(listener, dialler, link)
    again = dialler.dial(address(listener))
    nothing_comes(listener, dialler, again)
    house.write(before)
    deadline = time.monotonic() + 20
    got: list[bytes] = []
    while not got:
        assert time.monotonic() < deadline, "it does not get in again"
        dialler.send(again, b"back")
        dialler.receive()
        got = [raw for _, raw in listener.receive()]
        time.sleep(0.01)
    assert set(got) == {b"back"}


def test_a_dialler_leaves_whoever_is_taken_out(house: House) -> None:
    house.identity("decode-0")
    listener, dialler = house.port("prefill-0", LOOPBACK), house.port("decode-0")
    link = dialler.dial(address(listener))
    until(lambda: dialler.send(link, b"x"), listener)
    ((back, _),) = heard(listener, 1, dialler)
    house.revoke("prefill-0")
    # the listener still counts itself and the other as members: only the dialler acts
    assert ended(dialler) == [link]
    for _ in range(100):
        listener.send(back, b"from one who is out")
        assert dialler.receive() == []
        time.sleep(0.005)


def test_a_gateway_with_a_new_key_is_dialled_with_it(house: House) -> None:
    house.identity("decode-0")
    first, worker = house.port("gateway", LOOPBACK), house.port("decode-0")
    where = bare(address(first))
    link = worker.dial(where)
    until(lambda: worker.send(link, b"x"), first)
    first.close()
    house.revoke("gateway")
    (house.folder / "gateway.key").unlink()
    second = house.port("gateway", where)
    deadline, got = time.monotonic() + 20, list[bytes]()
    while not got:
        assert time.monotonic() < deadline, "the worker does not come"
        worker.send(link, b"again")
        worker.receive()
        got = [raw for _, raw in second.receive()]
        time.sleep(0.01)


def test_a_damaged_members_file_changes_nothing(house: House) -> None:
    house.identity("decode-0")
    listener, dialler = house.port("gateway", LOOPBACK), house.port("decode-0")
    link = dialler.dial(address(listener))
    until(lambda: dialler.send(link, b"x"), listener)
    heard(listener, 1, dialler)
    for damage in (["decode-0 nonsense"], [*house.lines(), house.lines()[0]]):
        house.write(damage)
        time.sleep(0.6)
        until(lambda: dialler.send(link, b"y"))
        assert [raw for _, raw in heard(listener, 1, dialler)] == [b"y"]


def test_what_cannot_be_is_named(house: House, tmp_path: Path) -> None:
    path = tmp_path / "decode-0.key"
    house.identity("decode-0")
    assert path.stat().st_mode & 0o777 == 0o600
    public = z85.decode(house.identity("decode-0").server.public).hex()
    assert house.lines() == [f"decode-0 {public}"]
    assert zmq.curve_public(house.identity("decode-0").server.private) == z85.encode(
        bytes.fromhex(public)
    )
    for name, why in (
        ("decode-0", "has decode-0 already"),
        ("two words", "no name"),
        ("", "no name"),
    ):
        with pytest.raises(ConfigError, match=why):
            new_identity(name, tmp_path / "new.key", house.members)
    with pytest.raises(ConfigError, match="exists"):
        new_identity("decode-1", path, house.members)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_identity(path, house.members)
    path.chmod(0o600)
    house.revoke("decode-0")
    with pytest.raises(ConfigError, match="has not the public key of decode-0"):
        load_identity(path, house.members)
    path.write_text("baton-identity decode-0 ff")
    with pytest.raises(ConfigError, match="damaged"):
        load_identity(path, house.members)


@pytest.fixture
def files(house: House, tmp_path: Path) -> Callable[[str | None], str | None]:
    house.identity("decode-0")
    new_secret(tmp_path / "secret")
    return {
        "identity": str(tmp_path / "decode-0.key"),
        "secret": str(tmp_path / "secret"),
        "members": str(house.members),
    }.get


def test_secret_and_members_must_fit_together(files: Callable[..., str | None]) -> None:
    for secret, members, why in (
        (None, "members", "with --secret"),
        ("identity", None, "with --members"),
        ("secret", "members", "is none"),
    ):
        with pytest.raises(ConfigError, match=why):
            load_credentials(files(secret), files(members))
    assert load_credentials(None, None) is None
    assert isinstance(load_credentials(files("identity"), files("members")), Identity)


def test_the_command_writes_what_a_process_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("gateway", "decode-0"):
        assert run(["secret", "identity", name, "--members", "members"]) == 0
    assert load_identity(Path("decode-0.key"), Path("members")).name == "decode-0"
    assert (
        run(["secret", "identity", "decode-0", "--members", "members", "--file", "more.key"]) == 2
    )
    assert not Path("more.key").exists(), "nothing is left of a refused one"
