"""Damaged conversations for the doors of fabrics tcp and shm: of strangers, of readers that know the
secret and break the protocol, and of a source that is none, for a reader."""

import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import msgspec
import numpy as np
import psutil
from tests.fuzz.mutate import Mutator
from tests.fuzz.report import Report, resident_mib

from baton.adapters.shm_door import Server, call
from baton.adapters.tcp_door import _HELLO, MAGIC, Keys, Welcome, ask, dial, take
from baton.adapters.tcp_source import TcpSource
from baton.core.errors import FabricError
from baton.core.ids import Boot, GroupName
from baton.core.manifest import PoolView

BOOT, RANK, KEY, HOST = Boot(7), 2, b"k" * 32, "127.0.0.1"
GROUP, POOL = GroupName("full"), bytes(range(256)) * 64
PATIENCE_S = 20.0  # a door answers in a millisecond
GROWTH_MIB = 64.0


def fuzz(count: int, seed: int) -> Report:
    """Half of the inputs for each door; after them both serve whoever is right."""
    report = Report("doors")
    rng = Random(seed)
    with _tcp() as source, _shm() as server:
        _settle()
        held, before = _held(), resident_mib()
        for number in range(count):
            began = time.monotonic()
            if number % 10 == 0:
                _dial_liar(rng, report)
            elif number % 2:
                _talk_tcp(source.port, rng, report)
            else:
                _talk_shm(server.name, rng, report)
            report.slowest_s = max(report.slowest_s, time.monotonic() - began)
            if number == count // 10:
                before = resident_mib()
        _settle()
        _require_served(source.port, server.name, report)
        _require_left(held, report)
    report.growth_mib["this process"] = grown = resident_mib() - before
    if grown > GROWTH_MIB:
        report.breaks(f"memory grew by {grown:.0f} MiB")
    return report


@contextmanager
def _tcp() -> Iterator[TcpSource]:
    source = TcpSource(HOST, BOOT, RANK, [(GROUP, memoryview(POOL))], key=KEY)
    try:
        yield source
    finally:
        source.close()


@contextmanager
def _shm() -> Iterator[Server]:
    fd = os.memfd_create("fuzzed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, len(POOL))
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    server = Server(Boot(os.getpid()), RANK, {GROUP: (fd, len(POOL))})
    try:
        yield server
    finally:
        server.close()
        os.close(fd)


def _talk_tcp(port: int, rng: Random, report: Report) -> None:
    """A stranger's greeting, or a member's request, damaged; the source must hang up or serve only
    what it may."""
    nonce = rng.randbytes(16)
    hello = _HELLO.pack(MAGIC, BOOT, RANK, nonce)
    try:
        if rng.random() < 0.5:
            with socket.create_connection((HOST, port), PATIENCE_S) as sock:
                sock.sendall(Mutator([hello], rng.getrandbits(64)).draw() + rng.randbytes(20))
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(4096):
                    pass
            report.outcomes["tcp strangers hung up on"] += 1
            return
        sock, keys, _ = dial((HOST, port), BOOT, RANK, key=KEY)
        with sock:
            sock.settimeout(PATIENCE_S)
            sock.sendall(_request(keys, rng))
            sock.shutdown(socket.SHUT_WR)
            got = 0
            while more := sock.recv(1 << 16):
                got += len(more)
        report.outcomes["tcp requests served" if got else "tcp requests refused"] += 1
    except TimeoutError:
        report.breaks("the tcp door does not answer")
    except OSError:
        report.outcomes["tcp connections reset"] += 1
    except FabricError as error:
        report.breaks(f"a member is not let in: {error}")


def _dial_liar(rng: Random, report: Report) -> None:
    """A source answers with damaged bytes: the reader gives up, and says so."""
    welcome = Welcome(BOOT, RANK, rng.randbytes(16), rng.randbytes(16), ((GROUP, 4096),))
    packed = msgspec.msgpack.encode(welcome)
    said = Mutator([struct.pack("!I", len(packed)) + packed], rng.getrandbits(64)).draw()

    def lie(listener: socket.socket) -> None:
        line, _ = listener.accept()
        with line:
            line.recv(64)
            line.sendall(said)

    with socket.create_server((HOST, 0)) as listener:
        liar = threading.Thread(target=lie, args=(listener,), daemon=True)
        liar.start()
        try:
            dial((HOST, listener.getsockname()[1]), BOOT, RANK, key=KEY)
            report.breaks("a source without the secret is believed", said)
        except FabricError:
            report.outcomes["tcp sources not believed"] += 1
        liar.join()


def _request(keys: Keys, rng: Random) -> bytes:
    """A request with any ranges and the right tag, or a right one that is damaged."""
    ranges = [
        (
            rng.choice((0, 1 << 46, -1, rng.getrandbits(63), rng.randrange(len(POOL)))),
            rng.choice((1, 16, 0, -5, len(POOL), rng.getrandbits(40), (1 << 63) - 1)),
        )
        for _ in range(rng.choice((1, 1, 2, 5)))
    ]
    body = b"".join(struct.pack("<qq", *r) for r in ranges)
    raw = struct.pack("!16sI", keys.tag(body), len(ranges)) + body
    return raw if rng.random() < 0.7 else Mutator([raw], rng.getrandbits(64)).draw()


def _talk_shm(name: str, rng: Random, report: Report) -> None:
    """A reader that sends something, which readers do not, or leaves at once."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with sock:
        sock.settimeout(PATIENCE_S)
        try:
            sock.connect("\0" + name)
            if rng.random() < 0.8:
                sock.send(rng.randbytes(rng.choice((1, 4, 64, 4096))))
            if rng.random() < 0.5:
                _, fds, _, _ = socket.recv_fds(sock, 65536, 250)
                for fd in fds:
                    os.close(fd)
            report.outcomes["shm readers"] += 1
        except TimeoutError:
            report.breaks("the shm door does not answer")
        except OSError:
            report.outcomes["shm connections reset"] += 1


def _require_served(port: int, name: str, report: Report) -> None:
    sock, keys, _ = dial((HOST, port), BOOT, RANK, key=KEY)
    with sock:
        ask(sock, keys, np.array([3], np.int64), np.array([9], np.int64))
        if take(sock, 9) != POOL[3:12]:
            report.breaks("tcp serves other bytes")
    line, fds = call(name, Boot(os.getpid()), RANK, (PoolView(GROUP, 1, len(POOL)),))
    line.close()
    for fd in fds.values():
        os.close(fd)


def _held() -> tuple[int, int]:
    return psutil.Process().num_fds(), threading.active_count()


def _settle() -> None:
    """Wait until the source has ended with all that it was asked before."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and any(
        thread.name.startswith("tcp-source") for thread in threading.enumerate()
    ):
        time.sleep(0.01)


def _require_left(held: tuple[int, int], report: Report) -> None:
    """Descriptors and threads are those of the beginning."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        now = _held()
        if now[0] <= held[0] + 2 and now[1] <= held[1] + 1:
            return
        time.sleep(0.05)
    report.breaks(f"descriptors and threads were {held}, and are {_held()}")
