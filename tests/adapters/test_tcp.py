"""What fabric tcp refuses: strangers, rubbish, other boots, and what its pools do not hold."""

import os
import socket
import struct
import threading
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from baton.adapters import tcp_source
from baton.adapters.shm_door import decode_exposure
from baton.adapters.tcp_door import (
    MAGIC,
    PART_BYTES,
    PART_RANGES,
    POOL_BITS,
    ask,
    dial,
    require_loopback_or_key,
    take,
)
from baton.adapters.tcp_source import TcpSource
from baton.core.errors import ConfigError, FabricError
from baton.core.ids import Boot, GroupName

BOOT, RANK, KEY, HOST = Boot(7), 2, b"k" * 32, "127.0.0.1"
POOL = bytes(range(256)) * 16


@pytest.fixture
def source() -> Iterator[TcpSource]:
    s = TcpSource(HOST, BOOT, RANK, [(GroupName("full"), memoryview(POOL))], key=KEY)
    yield s
    s.close()


def hung_up(sock: socket.socket) -> bool:
    sock.settimeout(10)
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_whoever_proves_the_secret_reads(source: TcpSource) -> None:
    sock, keys, welcome = dial((HOST, source.port), BOOT, RANK, key=KEY)
    with sock:
        assert welcome.pools == (("full", len(POOL)),)
        for _ in range(2):
            ask(sock, keys, int64(3, len(POOL) - 5), int64(4, 5))
            assert take(sock, 9) == POOL[3:7] + POOL[-5:]


@pytest.mark.parametrize(
    ("boot", "rank", "key"),
    [(BOOT, RANK, b"x" * 32), (BOOT, RANK, b""), (Boot(8), RANK, KEY), (BOOT, 3, KEY)],
)
def test_another_secret_boot_or_rank_meets_a_closed_door(
    source: TcpSource, boot: Boot, rank: int, key: bytes
) -> None:
    with pytest.raises(FabricError, match="start that worker with --fabric-host IP"):
        dial((HOST, source.port), boot, rank, key=key)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9"])
def test_nobody_at_an_address_of_loopback_is_said_with_the_flag_that_mends_it(
    source: TcpSource, host: str
) -> None:
    with socket.socket() as free:
        free.bind((host, 0))
        with pytest.raises(
            FabricError,
            match=rf"tcp {host}:\d+: .*refused; {host} is reached from its own "
            rf"machine alone: .*--fabric-host",
        ):
            dial(free.getsockname(), BOOT, RANK, key=KEY)


def test_an_address_that_is_none_is_refused_as_any_other() -> None:
    """It is a peer who says it."""
    with pytest.raises(FabricError, match=r"^tcp no such host\.invalid:5: [^;]*$"):
        dial(("no such host.invalid", 5), BOOT, RANK, key=KEY)


@pytest.mark.parametrize("address", [("a\0b", 5), (HOST, 70_000), (HOST, -1), ("x" * 70, 5)])
def test_whatever_a_peer_states_of_itself_is_met_with_the_same_error(
    address: tuple[str, int],
) -> None:
    with pytest.raises(FabricError, match=r"^tcp "):
        dial(address, BOOT, RANK, key=KEY)


@pytest.mark.parametrize("boot", [Boot(-1), Boot(1 << 64)])
def test_a_boot_that_no_process_has_is_met_with_the_same_error(
    source: TcpSource, boot: Boot
) -> None:
    with pytest.raises(FabricError, match=r"^tcp "):
        dial((HOST, source.port), boot, RANK, key=KEY)


@pytest.mark.parametrize("said", [b"\x81\xa5group\xa2\xcf\x00", b"\xa1\xff", b"\xc1"])
def test_a_welcome_that_is_none_is_met_with_the_same_error(said: bytes) -> None:
    """Text that is not UTF-8 is an error of another kind than others: it ended the process."""
    with socket.create_server((HOST, 0)) as liar:

        def lie() -> None:
            line, _ = liar.accept()
            with line:
                line.recv(64)
                line.sendall(struct.pack("!I", len(said)) + said)

        talking = threading.Thread(target=lie)
        talking.start()
        with pytest.raises(FabricError, match="does not parse"):
            dial((HOST, liar.getsockname()[1]), BOOT, RANK, key=KEY)
        talking.join()


def test_what_a_peer_exposes_and_is_not_utf8_is_refused() -> None:
    text = msgspec.msgpack.encode({"host": {}, "name": "@@"}).replace(b"@@", b"\xcf\x00")
    with pytest.raises(FabricError, match="does not parse"):
        decode_exposure(text)


def test_a_reader_that_skips_its_proof_reads_nothing(source: TcpSource) -> None:
    """One that takes the welcome and then asks without knowing the secret."""
    with socket.create_connection((HOST, source.port)) as sock:
        sock.sendall(struct.pack("!10sQI16s", MAGIC, BOOT, RANK, os.urandom(16)))
        (length,) = struct.unpack("!I", take(sock, 4))
        take(sock, length)
        sock.sendall(os.urandom(16) + os.urandom(16) + struct.pack("!I", 1) + int64(0, 4).tobytes())
        assert hung_up(sock)


@pytest.mark.parametrize(
    "rubbish", [b"GET / HTTP/1.1\r\nHost: there\r\n\r\n" * 4, os.urandom(4096), b"\0" * 64]
)
def test_rubbish_is_hung_up_on_and_others_are_served_on(source: TcpSource, rubbish: bytes) -> None:
    with socket.create_connection((HOST, source.port)) as sock:
        sock.sendall(rubbish)
        assert hung_up(sock)
    test_whoever_proves_the_secret_reads(source)


@pytest.mark.parametrize(
    ("address", "nbytes"),
    [
        ([len(POOL) - 3], [4]),
        ([1 << POOL_BITS], [1]),
        ([-1], [1]),
        ([0], [0]),
        ([0], [-1]),
        ([0], [2**63 - 1]),
        ([0] * (PART_RANGES + 1), [1] * (PART_RANGES + 1)),
    ],
)
def test_only_what_the_pools_hold_is_served(
    source: TcpSource, address: list[int], nbytes: list[int]
) -> None:
    sock, keys, _ = dial((HOST, source.port), BOOT, RANK, key=KEY)
    with sock:
        ask(sock, keys, int64(*address), int64(*nbytes))
        assert hung_up(sock)


def test_a_request_for_more_than_a_part_is_refused() -> None:
    count = 65
    big = memoryview(bytes(PART_BYTES // (count - 1)))
    source = TcpSource(HOST, BOOT, RANK, [(GroupName("full"), big)], key=KEY)
    sock, keys, _ = dial((HOST, source.port), BOOT, RANK, key=KEY)
    with sock:
        ask(sock, keys, int64(*[0] * count), int64(*[big.nbytes] * count))
        assert hung_up(sock)
    source.close()


def test_a_request_said_again_is_refused(source: TcpSource) -> None:
    sock, keys, _ = dial((HOST, source.port), BOOT, RANK, key=KEY)
    with sock:
        body = int64(0, 4).tobytes()
        frame = keys.tag(body) + struct.pack("!I", 1) + body
        sock.sendall(frame)
        assert take(sock, 4) == POOL[:4]
        sock.sendall(frame)
        assert hung_up(sock)


def test_close_hangs_up_on_readers(source: TcpSource) -> None:
    sock, _, _ = dial((HOST, source.port), BOOT, RANK, key=KEY)
    with sock:
        source.close()
        assert hung_up(sock)


@pytest.mark.parametrize(
    ("host", "key", "words"),
    [
        ("10.0.0.1", b"", "--secret"),
        ("localhost", b"", "IP address"),
        ("0.0.0.0", KEY, "this machine's own"),
        ("::1", b"", ""),
    ],
)
def test_off_loopback_a_secret_is_asked_for(host: str, key: bytes, words: str) -> None:
    if not words:
        require_loopback_or_key(host, key)
        return
    with pytest.raises(ConfigError, match=words):
        require_loopback_or_key(host, key)


def test_an_address_that_is_not_ours_is_refused_by_its_flag() -> None:
    with pytest.raises(ConfigError, match="--fabric-host"):
        TcpSource("192.0.2.1", BOOT, RANK, [], key=KEY)


def test_a_stranger_that_greets_byte_by_byte_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would hold one of the places of readers for minutes."""
    monkeypatch.setattr(tcp_source, "GREETING_TIMEOUT_S", 0.3)
    source = TcpSource(HOST, BOOT, RANK, [], key=KEY)
    try:
        with socket.create_connection((HOST, source.port)) as stranger:
            for byte in MAGIC:
                stranger.sendall(bytes([byte]))
                stranger.settimeout(0.1)
                try:
                    if stranger.recv(1) == b"":
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
            else:
                pytest.fail("it was listened to all the time")
    finally:
        source.close()
