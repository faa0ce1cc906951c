"""ports/control.py over ZeroMQ with the other end in a process of its own, which is killed and
comes back."""

import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton.adapters import zmq_control
from baton.adapters.secret import load_secret, new_secret
from baton.adapters.zmq_control import ZmqControl
from baton.core.ids import Link

MOST = 4096  # bytes of a frame
DEADLINE_S = 30.0


class Echo:
    """The other process."""

    def __init__(self, address: str, *secret: str) -> None:
        command = [
            sys.executable,
            str(Path(__file__).parent / "control_peer.py"),
            address,
            str(MOST),
            *secret,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address, "it did not start"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Echo]]:
    """A process that is gone at the end of the test."""
    started: list[Echo] = []

    def one(address: str, *secret: str) -> Echo:
        started.append(Echo(address, *secret))
        return started[-1]

    yield one
    for echo in started:
        echo.kill()


def said_until_taken(control: ZmqControl, link: Link, frame: bytes) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not control.send(link, frame):
        assert time.monotonic() < deadline, "nobody took it"
        time.sleep(0.001)


def heard(control: ZmqControl, count: int) -> list[tuple[Link, bytes]]:
    """The next frames, waiting on the descriptor alone."""
    frames: list[tuple[Link, bytes]] = []
    poll = select.poll()
    poll.register(control.fileno(), select.POLLIN)
    deadline = time.monotonic() + DEADLINE_S
    while len(frames) < count:
        assert time.monotonic() < deadline, f"{len(frames)} of {count} frames"
        if poll.poll(100):
            frames += control.receive()
    return frames


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_killed_listener_takes_its_frames_with_it_and_its_successor_is_reached_by_the_same_link(
    start: Callable[..., Echo], tmp_path: Path, encrypted: bool
) -> None:
    new_secret(tmp_path / "secret")
    key = load_secret(tmp_path / "secret") if encrypted else None
    words = (str(tmp_path / "secret"),) if encrypted else ()
    echo = start("tcp://127.0.0.1:*", *words)
    control = ZmqControl(bind=None, keys=key, max_frame_bytes=MOST)
    try:
        link = control.dial(echo.address)
        said_until_taken(control, link, b"0")
        assert heard(control, 1) == [(link, b"0")]
        frames = [b"%d" % n for n in range(1000)]
        for n, frame in enumerate(frames):
            assert control.send(link, frame)
            if n % 50 == 49:  # a burst comes back whole before the next leaves
                assert heard(control, 50) == [(link, f) for f in frames[n - 49 : n + 1]]

        echo.kill()
        deadline = time.monotonic() + DEADLINE_S
        while control.send(link, b"for the dead"):
            assert time.monotonic() < deadline, "its death was not noticed"
        assert control.receive() == []

        start(echo.address, *words)
        said_until_taken(control, link, b"for its successor")
        assert heard(control, 1) == [(link, b"for its successor")], (
            "what the dead one was told is not delivered"
        )
    finally:
        control.close()


def test_a_killed_dialler_takes_its_link_with_it(tmp_path: Path) -> None:
    listener = ZmqControl(bind=f"ipc://{tmp_path}/control", keys=None, max_frame_bytes=MOST)
    code = (
        "import sys, time\n"
        "from baton.adapters.zmq_control import ZmqControl\n"
        f"control = ZmqControl(bind=None, keys=None, max_frame_bytes={MOST})\n"
        "link = control.dial(sys.argv[1])\n"
        "while not control.send(link, b'here'):\n"
        "    time.sleep(0.001)\n"
        "sys.stdin.read()\n"
    )
    try:
        links = []
        for _ in range(2):
            command = [sys.executable, "-c", code, f"ipc://{tmp_path}/control"]
            with subprocess.Popen(command, stdin=subprocess.PIPE) as dialler:
                try:
                    [(link, frame)] = heard(listener, 1)
                finally:
                    dialler.kill()
            assert frame == b"here"
            links.append(link)
            deadline = time.monotonic() + DEADLINE_S
            while listener.send(link, b"for the dead"):
                assert time.monotonic() < deadline, "its death was not noticed"
        assert links[0] != links[1]
    finally:
        listener.close()


def test_what_was_handed_over_before_a_hang_up_leaves_even_if_the_other_end_is_slow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """More than the kernel's buffers hold, so that most of it is still queued here when the link is
    given up."""
    monkeypatch.setattr(zmq_control, "FAREWELL_MS", int(1000 * DEADLINE_S))
    listener = ZmqControl(bind=f"ipc://{tmp_path}/control", keys=None, max_frame_bytes=1 << 20)
    dialler = ZmqControl(bind=None, keys=None, max_frame_bytes=1 << 20)
    try:
        link = dialler.dial(f"ipc://{tmp_path}/control")
        said_until_taken(dialler, link, b"first")
        sizes = [1 << 20] * 40 + [3]
        assert all(dialler.send(link, bytes(size)) for size in sizes)
        dialler.hang_up(link)
        assert [len(frame) for _, frame in heard(listener, 1 + len(sizes))] == [5, *sizes]
    finally:
        listener.close()
        dialler.close()
