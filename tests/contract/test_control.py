"""The sentences of ports/control.py (C1-C9) against ZeroMQ, with real sockets."""

import contextlib
import os
import select
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from structlog.testing import capture_logs

from baton.adapters import zmq_control, zmq_handshakes
from baton.adapters.secret import Secret, load_secret, new_secret
from baton.adapters.zmq_control import ZmqControl, is_loopback
from baton.core.errors import ConfigError
from baton.core.ids import Link

LOOPBACK = "tcp://127.0.0.1:*"
MOST = 4096  # bytes of a frame
DEADLINE_S = 10.0

Frames = list[tuple[Link, bytes]]


@pytest.fixture
def make() -> Iterator[Callable[..., ZmqControl]]:
    """A port that is closed at the end of the test."""
    made: list[ZmqControl] = []

    def one(bind: str | None = None, secret: Secret | None = None) -> ZmqControl:
        made.append(ZmqControl(bind=bind, keys=secret, max_frame_bytes=MOST))
        return made[-1]

    yield one
    for control in made:
        control.close()


def secret(folder: Path, name: str = "secret") -> Secret:
    new_secret(folder / name)
    return load_secret(folder / name)


def address(control: ZmqControl) -> str:
    assert control.bound_address is not None
    return control.bound_address


def until(done: Callable[[], bool], *others: ZmqControl) -> None:
    """Poll, and let the others answer handshakes; as their pumps would."""
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        for other in others:
            assert other.receive() == []
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def heard(control: ZmqControl, count: int = 1, *others: ZmqControl) -> Frames:
    """The next frames, waiting on the descriptor alone (C7): a frame that does not make it readable
    is never seen."""
    frames: Frames = []
    poll = select.poll()
    poll.register(control.fileno(), select.POLLIN)
    deadline = time.monotonic() + DEADLINE_S
    while len(frames) < count:
        assert time.monotonic() < deadline, f"{len(frames)} of {count} frames"
        if poll.poll(20):
            frames += control.receive()
        for other in others:
            other.receive()
    return frames


def joined(
    make: Callable[..., ZmqControl], secret: Secret | None = None
) -> tuple[ZmqControl, Link, ZmqControl, Link]:
    """A dialler, its link, a listener, its link."""
    listener, dialler = make(LOOPBACK, secret), make(None, secret)
    link = dialler.dial(address(listener))
    until(lambda: dialler.send(link, b"first"), listener)
    [(back, raw)] = heard(listener)
    assert raw == b"first"
    return dialler, link, listener, back


# ---- C1, C2, C3, C4 ------------------------------------------------------------------------------


@pytest.mark.parametrize("encrypted", [False, True])
def test_frames_arrive_whole_both_ways(
    make: Callable[..., ZmqControl], tmp_path: Path, encrypted: bool
) -> None:
    dialler, link, listener, back = joined(make, secret(tmp_path) if encrypted else None)
    frames = [bytes([n]) * n for n in range(200)] + [os.urandom(MOST)]
    assert all(dialler.send(link, raw) for raw in frames)
    assert heard(listener, len(frames)) == [(back, raw) for raw in frames]
    assert all(listener.send(back, raw) for raw in frames)
    assert heard(dialler, len(frames)) == [(link, raw) for raw in frames]


def test_c1_a_full_queue_says_so_and_never_blocks(make: Callable[..., ZmqControl]) -> None:
    dialler, link, listener, back = joined(make)
    for control, name in ((dialler, link), (listener, back)):
        taken = 0
        while control.send(name, bytes(MOST)):  # nobody receives
            taken += 1
            assert taken < 1_000_000
        assert taken >= 1000


FULL_AND_LEFT = """
import sys, time
from baton.adapters.zmq_control import ZmqControl
listener = ZmqControl(bind="tcp://127.0.0.1:0", keys=None, max_frame_bytes=4096)
dialler = ZmqControl(bind=None, keys=None, max_frame_bytes=4096)
link, heard = dialler.dial(listener.bound_address), []
while not dialler.send(link, b"x"):
    time.sleep(0.01)
while not heard:
    heard = listener.receive()
for control, name in ((dialler, link), (listener, heard[0][0])):
    while control.send(name, bytes(4096)):
        pass
time.sleep(5)  # longer than any timer of a connection
listener.close()
dialler.close()
print("closed")
"""


@pytest.mark.slow
def test_c1_a_peer_that_ends_while_queues_are_full_is_no_error() -> None:
    """The library may abort the process. One time in four it did, so twelve are tried."""
    tries = [
        subprocess.Popen([sys.executable, "-c", FULL_AND_LEFT], stdout=subprocess.PIPE, text=True)
        for _ in range(12)
    ]
    assert [one.communicate()[0] for one in tries] == ["closed\n"] * 12


def test_c1_without_a_connection_nothing_is_taken(make: Callable[..., ZmqControl]) -> None:
    control = make()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        link = control.dial(f"tcp://127.0.0.1:{free.getsockname()[1]}")
    assert not control.send(link, b"x")


def test_c1_a_gone_dialler_is_no_error(make: Callable[..., ZmqControl]) -> None:
    dialler, _, listener, back = joined(make)
    dialler.close()
    until(lambda: not listener.send(back, b"x"))


@pytest.mark.parametrize("link", [0, 77])
def test_c1_an_unknown_link_takes_nothing(make: Callable[..., ZmqControl], link: int) -> None:
    _, _, listener, _ = joined(make)
    assert not listener.send(Link(link), b"x")
    listener.hang_up(Link(link))


def test_c3_a_link_hung_up_takes_nothing_and_its_name_is_not_used_again(
    make: Callable[..., ZmqControl],
) -> None:
    dialler, link, listener, back = joined(make)
    listener.hang_up(back)
    assert not listener.send(back, b"x")
    assert dialler.send(link, b"again")
    [(other, _)] = heard(listener)
    assert other != back
    dialler.hang_up(link)
    assert not dialler.send(link, b"x")
    assert dialler.dial(address(listener)) > link


def test_c3_the_table_of_those_who_dial_us_is_bounded(
    make: Callable[..., ZmqControl], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq_control, "MAX_LINKS", 3)
    listener, dialler = make(LOOPBACK), make()

    def arrives(link: Link) -> Link:
        until(lambda: dialler.send(link, b"x"))
        [(name, _)] = heard(listener)
        return name

    links = [dialler.dial(address(listener)) for _ in range(5)]
    names = [arrives(link) for link in links[:3]]
    assert arrives(links[0]) == names[0], "in use, so the second is now idle for longest"
    names.append(arrives(links[3]))
    assert [listener.send(name, b"y") for name in names] == [True, False, True, True]
    again = arrives(links[1])
    assert again not in names
    assert [listener.send(name, b"y") for name in (*names, again)] == [
        True,
        False,
        False,
        True,
        True,
    ]


def test_c4_too_large_a_frame_is_not_taken(make: Callable[..., ZmqControl]) -> None:
    dialler, link, listener, back = joined(make)
    assert not dialler.send(link, bytes(MOST + 1))
    assert not listener.send(back, bytes(MOST + 1))
    assert dialler.send(link, bytes(MOST))
    assert heard(listener) == [(back, bytes(MOST))]


@pytest.mark.parametrize("size", [MOST + 1, 4 * MOST])
def test_c4_too_large_a_frame_does_not_come_through(
    make: Callable[..., ZmqControl], size: int
) -> None:
    dialler, link, listener, _ = joined(make)
    context = zmq.Context()
    raw = context.socket(zmq.DEALER)
    raw.setsockopt(zmq.LINGER, 0)
    try:
        raw.connect(address(listener))
        raw.send(b"fits")
        assert heard(listener)[0][1] == b"fits"
        raw.send(bytes(size))
        until(lambda: dialler.send(link, b"after"))
        time_left = [raw for _, raw in heard(listener)]
        assert time_left == [b"after"]
    finally:
        context.destroy(linger=0)


@pytest.mark.parametrize("encrypted", [False, True])
def test_c4_a_peer_with_a_higher_limit_gets_no_more_through(
    make: Callable[..., ZmqControl], tmp_path: Path, encrypted: bool
) -> None:
    key = secret(tmp_path) if encrypted else None
    _, _, listener, _ = joined(make, key)
    with contextlib.closing(ZmqControl(bind=None, keys=key, max_frame_bytes=2 * MOST)) as liberal:
        link = liberal.dial(address(listener))
        for size in (MOST, MOST + 1, MOST - 1):
            until(lambda: liberal.send(link, bytes(size)), listener)  # noqa: B023
            if size == MOST + 1:  # the connection is dropped, and what was under way with it
                until(lambda: not liberal.send(link, b""), listener)
            else:
                assert bytes(size) in [raw for _, raw in heard(listener)]


def test_frames_of_several_parts_are_none_of_ours(make: Callable[..., ZmqControl]) -> None:
    _, _, listener, _ = joined(make)
    context = zmq.Context()
    raw = context.socket(zmq.DEALER)
    try:
        raw.connect(address(listener))
        raw.send_multipart([b"a", b"b"])
        raw.send(b"whole")
        assert [r for _, r in heard(listener)] == [b"whole"]
    finally:
        context.destroy(linger=0)


# ---- C5 ------------------------------------------------------------------------------------------


def held() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("encrypted", [False, True])
def test_c5_close_frees_everything_and_may_come_twice(
    make: Callable[..., ZmqControl], tmp_path: Path, encrypted: bool
) -> None:
    key = secret(tmp_path) if encrypted else None
    joined(make, key)[0].close()
    before = held()
    for _ in range(5):
        dialler, link, listener, back = joined(make, key)
        dialler.hang_up(dialler.dial(address(listener)))
        for control, name in ((dialler, link), (listener, back)):
            control.close()
            control.close()
            assert not control.send(name, b"x")
            assert control.receive() == []
            control.hang_up(name)
    until(lambda: held() <= before)


def test_c5_a_farewell_leaves_before_the_port_closes(make: Callable[..., ZmqControl]) -> None:
    """Else every ordered shutdown looks like a crash to the other side, which then waits for
    silence."""
    for hang_up in (True, False) * 5:
        dialler, link, listener, back = joined(make)
        said = [bytes(MOST)] * 50 + [b"bye"]
        assert all(dialler.send(link, raw) for raw in said)
        dialler.hang_up(link) if hang_up else dialler.close()
        assert heard(listener, len(said)) == [(back, raw) for raw in said]


# ---- C6 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    [
        "tcp://0.0.0.0:*",
        "tcp://*:*",
        "tcp://10.1.2.3:5000",
        "tcp://[::]:*",
        "tcp://some.host:5000",
        "tcp://eth0:5000",
    ],
)
def test_c6_off_loopback_a_secret_is_required(make: Callable[..., ZmqControl], where: str) -> None:
    before = held()
    with pytest.raises(ConfigError, match="--secret") as caught:
        ZmqControl(bind=where, keys=None, max_frame_bytes=MOST)
    assert where in str(caught.value)
    until(lambda: held() <= before)
    with pytest.raises(ConfigError, match="--secret"):
        make().dial(where)


@pytest.mark.parametrize(
    "where",
    [
        "tcp://127.0.0.1:0;10.1.2.3:5000",  # ZeroMQ reads: from 127.0.0.1 to 10.1.2.3
        "tcp://127.0.0.1@10.1.2.3:5000",
        "tcp://127.0.0.1",
        "udp://127.0.0.1:5000",
        "127.0.0.1:5000",
        "",
    ],
)
def test_c6_an_address_that_is_not_understood_is_refused_even_with_a_secret(
    make: Callable[..., ZmqControl], tmp_path: Path, where: str
) -> None:
    for key in (None, secret(tmp_path)):
        with pytest.raises(ConfigError, match="is not of the form"):
            make(None, key).dial(where)


def test_loopback() -> None:
    ours = [
        "tcp://127.0.0.1:5",
        "tcp://127.8.9.1:*",
        "tcp://localhost:1",
        "tcp://[::1]:5",
        "ipc:///tmp/x",
    ]
    assert [a for a in ours if not is_loopback(a)] == []
    theirs = ["tcp://128.0.0.1:5", "tcp://localhost.evil.org:1", "tcp://[::2]:5", "tcp://0.0.0.0:1"]
    assert [a for a in theirs if is_loopback(a)] == []


def test_c6_with_the_secret_a_port_may_listen_everywhere(
    make: Callable[..., ZmqControl], tmp_path: Path
) -> None:
    key = secret(tmp_path)
    listener, dialler = make("tcp://0.0.0.0:*", key), make(None, key)
    link = dialler.dial(address(listener).replace("0.0.0.0", "127.0.0.1"))
    until(lambda: dialler.send(link, b"x"), listener)
    assert heard(listener)[0][1] == b"x"


@pytest.mark.parametrize("who", ["another secret", "no secret", "only the server's public key"])
def test_c6_who_does_not_hold_the_secret_gets_nothing_through(
    make: Callable[..., ZmqControl], tmp_path: Path, who: str
) -> None:
    key, other = secret(tmp_path), secret(tmp_path, "other")
    listener, member = make(LOOPBACK, key), make(None, key)
    made = {
        "another secret": other,
        "no secret": None,
        "only the server's public key": Secret(key.server, other.client),
    }
    stranger = make(None, made[who])
    strange = stranger.dial(address(listener))
    link = member.dial(address(listener))
    for n in range(5):
        stranger.send(strange, b"let me in")
        until(lambda: member.send(link, b"%d" % n), listener)  # noqa: B023
        assert [raw for _, raw in heard(listener, 1, stranger)] == [b"%d" % n]
    assert stranger.receive() == []


def test_c6_a_member_does_not_speak_to_a_listener_without_the_secret(
    make: Callable[..., ZmqControl], tmp_path: Path
) -> None:
    key = secret(tmp_path)
    for wrong in (secret(tmp_path, "other"), None):
        listener, good = make(LOOPBACK, wrong), make(LOOPBACK, key)
        member = make(None, key)
        link, probe = member.dial(address(listener)), member.dial(address(good))
        until(lambda: member.send(probe, b"x"), good, listener)  # noqa: B023
        for _ in range(50):
            assert not member.send(link, b"x")
            assert listener.receive() == []


# ---- C7 ------------------------------------------------------------------------------------------


def test_c7_every_frame_wakes_whoever_polls_even_between_sends_of_its_own(
    make: Callable[..., ZmqControl],
) -> None:
    """A send processes ZeroMQ's signals and so takes away the edge that announces a frame."""
    dialler, link, listener, back = joined(make)
    stop = threading.Event()
    poll = select.poll()
    poll.register(dialler.fileno(), select.POLLIN)

    def shout() -> None:
        n = 0
        while not stop.is_set() and n < 3000:
            n += listener.send(back, b"%d" % n)

    thread = threading.Thread(target=shout)
    thread.start()
    got = 0
    deadline = time.monotonic() + DEADLINE_S
    try:
        while got < 3000:
            dialler.send(link, b"noise" if got % 2 else bytes(MOST + 1))
            assert poll.poll(5000), f"asleep with {got} of 3000 frames"
            assert time.monotonic() < deadline
            got += len(dialler.receive())
    finally:
        stop.set()
        thread.join()


def test_c7_a_send_that_swallowed_the_edge_leaves_the_descriptor_readable(
    make: Callable[..., ZmqControl],
) -> None:
    dialler, link, listener, back = joined(make)
    dialler.receive()
    poll = select.poll()
    poll.register(dialler.fileno(), select.POLLIN)
    for n in range(300):
        assert listener.send(back, b"%d" % n)
        assert poll.poll(5000)
        dialler.send(link, b"takes the edge")
        assert poll.poll(5000), "the frame is there, and nobody would wake"
        assert heard(dialler) == [(link, b"%d" % n)]


def test_c7_a_failed_send_that_swallowed_the_edge_leaves_the_descriptor_readable(
    make: Callable[..., ZmqControl],
) -> None:
    dialler, link, listener, back = joined(make)
    other = make()
    other_link = other.dial(address(listener))
    until(lambda: other.send(other_link, b"x"))
    [(gone, _)] = heard(listener)
    other.close()
    until(lambda: not listener.send(gone, b"x"))
    listener.receive()
    poll = select.poll()
    poll.register(listener.fileno(), select.POLLIN)
    for n in range(300):
        assert dialler.send(link, b"%d" % n)
        assert poll.poll(5000)
        assert not listener.send(gone, b"takes the edge")
        assert poll.poll(5000), "the frame is there, and nobody would wake"
        assert heard(listener) == [(back, b"%d" % n)]


def test_c7_more_than_one_call_takes_stays_readable(
    make: Callable[..., ZmqControl], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq_control, "MAX_FRAMES", 10)
    dialler, link, listener, _ = joined(make)
    assert all(dialler.send(link, b"%d" % n) for n in range(95))
    assert [raw for _, raw in heard(listener, 95)] == [b"%d" % n for n in range(95)]


def test_c7_an_idle_port_does_not_spin(make: Callable[..., ZmqControl]) -> None:
    dialler, link, listener, _ = joined(make)
    dialler.send(link, b"x")
    heard(listener)
    poll = select.poll()
    poll.register(listener.fileno(), select.POLLIN)
    deadline = time.monotonic() + DEADLINE_S
    while poll.poll(0):  # signals without a frame may follow, but they end
        assert listener.receive() == []
        assert time.monotonic() < deadline


# ---- addresses and secrets -----------------------------------------------------------------------


def test_a_port_that_is_taken_is_a_config_error_and_leaves_nothing(
    make: Callable[..., ZmqControl],
) -> None:
    listener = make(LOOPBACK)
    before = held()
    with pytest.raises(ConfigError, match="cannot listen") as caught:
        ZmqControl(bind=address(listener), keys=None, max_frame_bytes=MOST)
    assert address(listener) in str(caught.value)
    until(lambda: held() <= before)


def test_without_a_bind_nothing_is_bound(make: Callable[..., ZmqControl]) -> None:
    assert make().bound_address is None


def test_a_secret_is_for_its_owner_alone_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    new_secret(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    with pytest.raises(ConfigError, match="exists"):
        new_secret(path)
    assert path.read_text() == text
    assert load_secret(path) == load_secret(path)
    assert load_secret(path) != secret(tmp_path, "other")
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            load_secret(path)


@pytest.mark.parametrize("text", ["", "xyz", "00" * 31, "00" * 33, "\N{SNOWMAN}" * 64])
def test_what_is_no_secret_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secret"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="secret"):
        load_secret(path)
    with pytest.raises(ConfigError, match="cannot read"):
        load_secret(tmp_path / "missing")
    with pytest.raises(ConfigError, match="cannot write"):
        new_secret(tmp_path / "missing" / "secret")


def test_private_keys_do_not_get_into_a_log(tmp_path: Path) -> None:
    key = secret(tmp_path)
    assert key.server.private != key.client.private
    for pair in (key.server, key.client):
        assert pair.private.decode() not in repr(key)
        assert pair.public.decode() in repr(key)


# ---- C8 ------------------------------------------------------------------------------------------

PEER = """
import sys, time
from baton.adapters.secret import load_secret
from baton.adapters.zmq_control import ZmqControl
from pathlib import Path
how, where, *key = sys.argv[1:]
secret = load_secret(Path(key[0])) if key else None
bind = where if how == "listen" else None
control = ZmqControl(bind=bind, keys=secret, max_frame_bytes=4096)
link = None if bind else control.dial(where)
print(control.bound_address, flush=True)
while link is not None and not control.send(link, b"hello"):
    control.receive()
    time.sleep(0.001)
while True:
    for back, frame in control.receive():
        control.send(back, frame)
    control.broken()
    time.sleep(0.001)
"""
SOON_S = 1.0  # 0.05 s, and what a busy machine takes to wake anybody


@contextlib.contextmanager
def peer(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A port in a process of its own, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", PEER, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def broken_after_kill(control: ZmqControl, process: "subprocess.Popen[str]") -> list[Link]:
    """The links that are broken when a process has been killed; waits on the descriptor alone."""
    control.receive()
    assert control.broken() == []
    poll = select.poll()
    poll.register(control.fileno(), select.POLLIN)
    process.kill()
    found, until = [], time.monotonic() + SOON_S
    while not found:
        assert time.monotonic() < until, "nobody says so"
        poll.poll(20)
        control.receive()
        found = control.broken()
    return found


@pytest.mark.parametrize("encrypted", [False, True])
def test_c8_the_death_of_a_listener_breaks_its_link_alone(
    make: Callable[..., ZmqControl], tmp_path: Path, encrypted: bool
) -> None:
    known = secret(tmp_path) if encrypted else None
    key = [str(tmp_path / "secret")] if encrypted else []
    control = make(None, known)
    with peer("listen", LOOPBACK, *key) as (_, stays), peer("listen", LOOPBACK, *key) as (dies, at):
        links = [control.dial(address) for address in (stays, at)]
        for link in links:
            until(lambda link=link: control.send(link, b"x"))
        assert sorted(heard(control, 2)) == [(link, b"x") for link in links]
        assert broken_after_kill(control, dies) == [links[1]]
        assert control.broken() == [], "it is said once"
        assert control.send(links[0], b"y")
        assert heard(control) == [(links[0], b"y")]


@pytest.mark.parametrize("encrypted", [False, True])
def test_c8_the_death_of_a_dialler_breaks_its_link_alone(
    make: Callable[..., ZmqControl], tmp_path: Path, encrypted: bool
) -> None:
    known = secret(tmp_path) if encrypted else None
    key = [str(tmp_path / "secret")] if encrypted else []
    control = make(LOOPBACK, known)
    with peer("dial", address(control), *key) as (_, _), contextlib.ExitStack() as later:
        [(stays, _)] = heard(control)
        dies, _ = later.enter_context(peer("dial", address(control), *key))
        [(gone, _)] = heard(control)
        assert broken_after_kill(control, dies) == [gone]
        assert control.broken() == []
        assert not control.send(gone, b"x")
        assert control.send(stays, b"y")
        assert heard(control) == [(stays, b"y")], "and nobody sees what was sent to find it out"


def test_c8_a_link_that_is_hung_up_is_not_broken(make: Callable[..., ZmqControl]) -> None:
    dialler, link, listener, back = joined(make)
    dialler.hang_up(link)
    until(lambda: listener.broken() == [back])
    assert dialler.broken() == []


# ---- C9 ------------------------------------------------------------------------------------------


def turn(*controls: ZmqControl) -> None:
    """What pumps do while nobody has anything to say."""
    for control in controls:
        assert control.receive() == []
        control.broken()
    time.sleep(0.001)


def with_keys(folder: Path, names: tuple[str | None, str | None]) -> list[Secret | None]:
    """A secret for each name; None has none."""
    return [None if name is None else secret(folder, name) for name in names]


KEYS = [("one", "other"), ("one", None), (None, "one")]


@pytest.mark.parametrize("names", KEYS)
def test_c9_keys_that_differ_are_told_on_both_sides(
    make: Callable[..., ZmqControl], tmp_path: Path, names: tuple[str | None, str | None]
) -> None:
    keys = with_keys(tmp_path, names)
    listener, stranger = make(LOOPBACK, keys[0]), make(None, keys[1])
    deadline = time.monotonic() + DEADLINE_S
    with capture_logs() as lines:
        link = stranger.dial(address(listener))
        said: dict[str, str] = {}
        while not {address(listener), "127.0.0.1"} <= said.keys():
            assert time.monotonic() < deadline, lines
            assert not stranger.send(link, b"let me in")
            turn(listener, stranger)
            said = {
                line.get("by", line.get("peer")): line["event"]
                for line in lines
                if "--secret FILE" in line["remedy"]
            }
        for _ in range(500):  # tries go on, and are not told each time
            stranger.send(link, b"let me in")
            turn(listener, stranger)
    assert said[address(listener)] == "key_refused"
    assert said["127.0.0.1"] == "wrong_key"
    assert [line["event"] for line in lines].count("key_refused") == 1


@pytest.mark.parametrize("names", KEYS)
def test_c9_a_link_that_was_refused_connects_once_the_keys_agree(
    make: Callable[..., ZmqControl], tmp_path: Path, names: tuple[str | None, str | None]
) -> None:
    """Without help a socket never tries again after an error of the protocol."""
    keys = with_keys(tmp_path, names)
    wrong, stranger = make(LOOPBACK, keys[0]), make(None, keys[1])
    where = address(wrong)
    link = stranger.dial(where)
    with capture_logs() as lines:
        deadline = time.monotonic() + DEADLINE_S
        while not any(line["event"] == "key_refused" for line in lines):
            assert time.monotonic() < deadline
            turn(wrong, stranger)
    wrong.close()
    right = make(where, keys[1])
    until(lambda: stranger.receive() == [] and stranger.send(link, b"x"), right)
    assert [raw for _, raw in heard(right, 1, stranger)] == [b"x"]


def test_c9_a_link_survives_what_is_no_process_of_ours(
    make: Callable[..., ZmqControl], tmp_path: Path
) -> None:
    key = secret(tmp_path)
    member = make(None, key)
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        link = member.dial(where)
        connection, _ = other.accept()
    with capture_logs() as lines, connection:
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        deadline = time.monotonic() + DEADLINE_S
        while not any("another protocol" in line.get("why", "") for line in lines):
            assert time.monotonic() < deadline
            turn(member)
    right = make(where, key)
    until(lambda: member.receive() == [] and member.send(link, b"x"), right)
    assert [raw for _, raw in heard(right, 1, member)] == [b"x"]


def test_c9_strangers_cost_the_members_nothing(
    make: Callable[..., ZmqControl], tmp_path: Path
) -> None:
    """A refused connection is not searched for among the members."""
    key = secret(tmp_path)
    listener, stranger = make(LOOPBACK, key), make(None, secret(tmp_path, "other"))
    context = zmq.Context()
    member = context.socket(zmq.DEALER)
    try:
        member.curve_serverkey = key.server.public
        member.curve_publickey, member.curve_secretkey = key.client.public, key.client.private
        member.connect(address(listener))
        member.send(b"here")
        heard(listener)
        with capture_logs() as lines:
            stranger.dial(address(listener))
            deadline = time.monotonic() + DEADLINE_S
            while not any(line["event"] == "wrong_key" for line in lines):
                assert time.monotonic() < deadline
                turn(listener, stranger)
        assert not member.poll(100)
    finally:
        context.destroy(linger=0)


def test_c9_strangers_do_not_fill_the_log() -> None:
    told = zmq_handshakes.Told()
    strangers = [f"10.0.{n // 250}.{n % 250}" for n in range(1000)]
    due = [host for host in strangers * 2 if told.is_due(host)]
    assert due == strangers[: zmq_handshakes.MOST_SAID]
