"""What one client can make the gateway hold is bounded, whatever it sends and does not send."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from baton.core.messages import FinishReason
from baton.gateway import connection
from baton.gateway.connection import MOST_HEAD

from .fake_door import FakeDoor
from .models import ids
from .rig import served

CHAT = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
MORE = b"x" * 16_000
BOUND = 30 * MOST_HEAD  # more than the kernel and the loop hold in between
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


def talked(talk: Talk, **settings) -> bytes:
    """What a client hears that talks to a gateway in this way."""

    async def go() -> bytes:
        door = FakeDoor()
        door.script = [ids("x"), FinishReason.STOP]
        async with served(door, **settings) as (url, *_):
            at = urlsplit(url)
            reader, writer = await asyncio.open_connection(at.hostname, at.port)
            with closing(writer):
                return await asyncio.wait_for(talk(reader, writer), 60)

    return asyncio.run(go())


async def heard(reader: asyncio.StreamReader) -> bytes:
    """All there is until the gateway closes the connection."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /" + MORE,
        b"GET / HTTP/1.1\r\n" + MORE,
        b"GET / HTTP/1.1\r\nname: " + MORE,
        HEAD + b"content-length: 0\r\n",
    ],
)
def test_a_header_without_end_is_refused_and_not_kept(begin):
    async def talk(reader, writer):
        sent = 0
        writer.write(begin)
        try:
            while sent < BOUND and not reader.at_eof():
                writer.write(b"a: b\r\n" * 3000 if begin.endswith(b"\r\n") else MORE)
                await writer.drain()
                sent += len(MORE)
                await asyncio.sleep(0)
        except ConnectionError:
            return b""
        assert sent < BOUND, "all of it was taken"
        return await heard(reader)

    said = talked(talk)
    assert said == b"" or b" 431 " in said or b" 400 " in said


def test_what_follows_a_body_is_bounded_too():
    async def talk(reader, writer):
        writer.write(CHUNKED + b"2\r\n{}\r\n0\r\n")
        sent = 0
        try:
            while sent < BOUND and not reader.at_eof():
                writer.write(b"trailer: " + MORE + b"\r\n")
                await writer.drain()
                sent += len(MORE)
                await asyncio.sleep(0)
        except ConnectionError:
            return b""
        return b"" if sent < BOUND else b"all of it was taken"

    assert talked(talk) == b""


@pytest.mark.parametrize("begin", [b"", b"\r\n", b"GE", HEAD, HEAD + b"content-length: 3\r\nx"])
def test_a_client_that_sends_no_request_is_not_waited_for(begin, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_S", 0.2)

    async def talk(reader, writer):
        writer.write(begin)
        return await heard(reader)

    assert talked(talk) == b""


def test_nor_one_that_sends_more_than_a_request_when_it_has_been_answered(monkeypatch):
    monkeypatch.setattr(connection, "HEAD_S", 0.2)

    async def talk(reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nhost: h\r\ncontent-length: 1000000\r\n\r\n")
        said = await reader.readuntil(b"alive")
        writer.write(b"x")
        return said + await heard(reader)

    assert b" 200 " in talked(talk)


def test_a_request_may_take_longer_than_its_header_may(monkeypatch):
    monkeypatch.setattr(connection, "HEAD_S", 0.2)

    async def talk(reader, writer):
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(CHAT))
        await asyncio.sleep(0.6)
        writer.write(CHAT)
        return await reader.readuntil(b"}]")

    assert b" 200 " in talked(talk)


def test_a_body_comes_in_the_time_of_its_request():
    async def talk(reader, writer):
        writer.write(HEAD + b"content-length: 9\r\n\r\n{")
        return await heard(reader)

    said = talked(talk, deadline_ms=200)
    assert b" 408 " in said
    assert b"body_too_slow" in said


def test_more_connections_than_descriptors_allow_are_closed_and_others_served_on(monkeypatch):
    limits = lambda _: (2 * connection.KEPT_BACK, 0)  # noqa: E731
    monkeypatch.setattr(connection.resource, "getrlimit", limits)

    async def talk(reader, writer):
        at = writer.get_extra_info("peername")
        others = [await asyncio.open_connection(*at) for _ in range(connection.KEPT_BACK)]
        try:
            assert await heard(others[-1][0]) == b""
            writer.write(b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n")
            return await reader.readuntil(b"alive")
        finally:
            for _, other in others:
                other.close()

    assert b" 200 " in talked(talk)
