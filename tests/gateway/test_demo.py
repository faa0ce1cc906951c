"""The buttons of --demo: whom they hurt, and who may press them."""

import os
import signal
import socket
import subprocess
import sys
import time

import msgspec
import psutil
import pytest

from baton.core.ids import Epoch, Room
from baton.core.messages import RankView, RoomView
from baton.gateway import demo
from baton.gateway.door import LedgerReport

from .fake_door import FakeDoor, view
from .rig import request

KILL = "/demo/kill?worker=decode-0"
OWN = {"x-baton-demo": "1", "host": "127.0.0.1:9"}
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def sleeper():
    with subprocess.Popen(SLEEP) as process:
        yield process
        process.kill()


def door(*pids: int) -> FakeDoor:
    found = FakeDoor()
    ranks = tuple(RankView(rank, pid, 7) for rank, pid in enumerate(pids))
    worker = msgspec.structs.replace(view("decode-0", clean=True), ranks=ranks)
    found.report = LedgerReport((worker,), (), 0)
    return found


def press(door: FakeDoor, path: str = KILL, *, supervisor: int, monkeypatch, **more):
    monkeypatch.setattr(os, "getppid", lambda: supervisor)
    arguments = {"headers": OWN, "settings": {"demo": True}} | more
    return request(door, "POST", path, **arguments)


def test_a_worker_of_this_service_is_killed(sleeper, monkeypatch):
    answer = press(door(sleeper.pid), supervisor=os.getpid(), monkeypatch=monkeypatch)
    assert answer.json() == {"worker": "decode-0", "pids": [sleeper.pid]}
    assert sleeper.wait(5) == -signal.SIGKILL


def test_a_worker_stands_still_and_goes_on(sleeper, monkeypatch):
    path = "/demo/freeze?worker=decode-0"
    # the loop of the request ends at once, and so the pause does
    answer = press(door(sleeper.pid), path, supervisor=os.getpid(), monkeypatch=monkeypatch)
    assert answer.json()["pids"] == [sleeper.pid]
    until = time.monotonic() + 5
    while psutil.Process(sleeper.pid).status() == psutil.STATUS_STOPPED:
        assert time.monotonic() < until, "it stands still for ever"
    assert sleeper.poll() is None


def test_a_pid_that_is_not_of_this_service_gets_no_signal(sleeper, monkeypatch):
    stranger = 1 << 22  # no process has this pid
    answer = press(door(sleeper.pid, stranger), supervisor=stranger, monkeypatch=monkeypatch)
    assert answer.json() == {"worker": "decode-0", "pids": []}
    assert sleeper.poll() is None


DIAL = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
DIAL += "print(1, flush=True); print(s.recv(1), flush=True)"


@pytest.mark.parametrize("ours", [True, False])
def test_the_wire_of_a_worker_of_this_service_is_cut_and_no_other(monkeypatch, ours):
    """The other one is of a process that is no rank of that worker."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dial = [sys.executable, "-c", DIAL, str(listening.getsockname()[1])]
        with (
            subprocess.Popen(dial, stdout=subprocess.PIPE) as worker,
            subprocess.Popen(dial, stdout=subprocess.PIPE) as other,
        ):
            ends = [listening.accept()[0] for _ in range(2)]
            for process in (worker, other):
                assert process.stdout.readline() == b"1\n"
            answer = press(
                door(worker.pid),
                "/demo/cut?worker=decode-0",
                supervisor=os.getpid() if ours else 1 << 22,
                monkeypatch=monkeypatch,
            )
            assert answer.json() == {"worker": "decode-0", "pids": [worker.pid] * ours}
            if ours:
                assert worker.stdout.readline() == b"b''\n"
                assert worker.wait(5) == 0
            assert [other.poll(), worker.poll()].count(None) == (1 if ours else 2)
            for process in (worker, other):
                process.kill()
        for end in ends:
            end.close()


def test_a_worker_without_a_connection_is_not_said_to_be_cut(sleeper, monkeypatch):
    path = "/demo/cut?worker=decode-0"
    answer = press(door(sleeper.pid), path, supervisor=os.getpid(), monkeypatch=monkeypatch)
    assert answer.json()["pids"] == []


@pytest.mark.parametrize(
    "busy", [{"rooms": (RoomView(Room("r"), Epoch(1), "computing", 5, {}),)}, {"reads": 1}]
)
def test_the_memory_of_a_worker_with_requests_is_left_alone(sleeper, monkeypatch, busy):
    found, written = door(sleeper.pid), []
    (worker,) = found.report.workers
    found.report = LedgerReport((msgspec.structs.replace(worker, **busy),), (), 0)
    monkeypatch.setattr(demo, "flip_bits", lambda *what, **how: written.append(what))
    path = "/demo/flip?worker=decode-0"
    answer = press(found, path, supervisor=os.getpid(), monkeypatch=monkeypatch)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "busy")
    assert written == []


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"client": ("10.0.0.7", 5)}, 403),
        ({"headers": OWN | {"x-forwarded-for": "127.0.0.1"}}, 403),
        ({"headers": {"host": "127.0.0.1:9"}}, 403),
        ({"headers": OWN | {"host": "elsewhere.example"}}, 403),
        ({"settings": {"demo": True, "api_keys": ("k",)}}, 401),
        ({"settings": {}}, 404),
    ],
)
def test_nobody_else_may(sleeper, monkeypatch, more, status):
    answer = press(door(sleeper.pid), supervisor=os.getpid(), monkeypatch=monkeypatch, **more)
    assert answer.status_code == status
    assert sleeper.poll() is None


@pytest.mark.parametrize(
    ("path", "status"),
    [("/demo/melt?worker=decode-0", 404), ("/demo/kill?worker=nobody", 400), ("/demo/kill", 400)],
)
def test_what_there_is_not_is_refused(monkeypatch, path, status):
    answer = press(door(1), path, supervisor=1, monkeypatch=monkeypatch)
    assert answer.status_code == status


def test_freezing_is_short():
    assert demo.FROZEN_S == 3.0
