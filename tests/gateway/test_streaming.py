"""Over a real socket: streams, clients that leave or read slowly, and shutting down."""

import asyncio
import json
import socket as sockets

import httpx
import openai
import pytest
import uvloop

from baton.core.errors import ConfigError
from baton.core.messages import FailCode, FinishReason
from baton.gateway import serve
from baton.shell.listener import bound

from .fake_door import FakeDoor
from .models import ids
from .rig import events, served, until

HI = [{"role": "user", "content": "hi"}]


def run(scenario) -> None:
    uvloop.run(asyncio.wait_for(scenario(), 30))  # as `baton gateway` does


def client(url: str, **arguments) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0, **arguments)


async def chat(http: openai.AsyncOpenAI, **arguments):
    return await http.chat.completions.create(model="tiny", messages=HI, **arguments)


def test_an_openai_client_reads_a_stream_as_it_is_said():
    async def scenario():
        door = FakeDoor()
        async with served(door) as (url, *_), client(url) as http:
            opening = asyncio.ensure_future(
                chat(http, stream=True, stream_options={"include_usage": True})
            )
            await until(lambda: door.submitted)
            request = door.submitted[0].request
            door.say(request, ids("he"))
            stream = await opening
            chunks = aiter(stream)
            assert (await anext(chunks)).choices[0].delta.role == "assistant"
            assert (await anext(chunks)).choices[0].delta.content == "he"
            door.say(request, ids("y"))  # said only after "he" was read
            assert (await anext(chunks)).choices[0].delta.content == "y"
            door.finish(request)
            assert (await anext(chunks)).choices[0].finish_reason == "stop"
            assert (await anext(chunks)).usage.completion_tokens == 3
            with pytest.raises(StopAsyncIteration):
                await anext(chunks)

    run(scenario)


def test_an_openai_client_reads_undivided_answers():
    async def scenario():
        door = FakeDoor()
        door.script = [ids("hey"), FinishReason.LENGTH]
        async with served(door) as (url, *_), client(url) as http:
            answer = await chat(http, logprobs=True, top_logprobs=1)
            assert answer.choices[0].message.content == "hey"
            assert answer.choices[0].logprobs.content[2].top_logprobs[0].token == "y"
            text = await http.completions.create(model="tiny", prompt="a", logprobs=1)
            assert text.choices[0].logprobs.tokens == list("hey")
            assert [m.id async for m in http.models.list()] == ["tiny"]

    run(scenario)


def test_the_status_line_waits_for_the_first_thing_heard():
    async def scenario():
        door = FakeDoor()
        async with served(door) as (url, *_), client(url) as http:
            opening = asyncio.ensure_future(chat(http, stream=True))
            await until(lambda: door.submitted)
            door.fail(door.submitted[0].request, FailCode.WORKER_LOST)
            with pytest.raises(openai.APIStatusError) as failed:
                await opening
            assert (failed.value.status_code, failed.value.code) == (503, "worker_lost")

    run(scenario)


def test_a_failure_inside_a_stream_is_an_event_and_no_end_mark():
    async def scenario():
        door = FakeDoor()
        door.script = [ids("a")]
        async with served(door) as (url, *_), httpx.AsyncClient() as http:
            body = {"messages": HI, "stream": True}
            async with http.stream("POST", url + "/v1/chat/completions", json=body) as response:
                lines = response.aiter_lines()
                seen = [await anext(lines)]
                door.fail(door.submitted[0].request, FailCode.HANDOFF_FAILED)
                seen += [line async for line in lines]
        last = [line for line in seen if line][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "handoff_failed"
        assert "[DONE]" not in "".join(seen)

    run(scenario)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [[], [ids("a")]])
def test_a_client_that_leaves_is_cancelled_at_once(stream, script):
    async def scenario():
        door = FakeDoor()
        door.script = script
        async with served(door) as (url, app, *_), httpx.AsyncClient() as http:
            body = {"messages": HI, "stream": stream}
            asking = asyncio.ensure_future(http.post(url + "/v1/chat/completions", json=body))
            await until(lambda: door.submitted)
            assert app.state.dispatcher.open_requests == 1
            asking.cancel()
            await until(lambda: door.cancelled)
            assert door.cancelled[0].reason == "client disconnected"
            assert app.state.dispatcher.open_requests == 0

    run(scenario)


def test_a_client_that_does_not_read_is_cancelled_and_others_go_on():
    async def scenario():
        door = FakeDoor()
        async with served(door, max_pending_bytes=100_000) as (url, app, *_):
            host, port = url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
            writer.transport.pause_reading()
            body = json.dumps({"prompt": "a", "stream": True, "logprobs": 20}).encode()
            head = (
                f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await until(lambda: door.submitted)
            slow = door.submitted[0].request

            def fill() -> bool:
                door.say(slow, ids("x" * 16))  # about 25 kB
                return bool(door.cancelled)

            await until(fill)
            assert door.cancelled[0].reason == "slow_client"
            assert app.state.dispatcher.open_requests == 0
            door.script = [ids("ok"), FinishReason.STOP]
            async with client(url) as http:
                assert (await chat(http)).choices[0].message.content == "ok"
            writer.transport.resume_reading()
            received = b""
            while b"slow_client" not in received[-1000:]:
                part = await reader.read(1 << 16)
                assert part, "the stream ended without a reason"
                received += part
            assert received.startswith(b"HTTP/1.1 200"), "it began well"
            assert b"[DONE]" not in received
            writer.close()

    run(scenario)


def test_a_client_that_pauses_again_and_again_gets_all_of_it_in_order():
    async def scenario():
        door, many = FakeDoor(), 4000
        async with served(door, max_pending_bytes=1 << 26, send_buffer=4096) as (url, *_):
            socket = sockets.socket()
            socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
            socket.connect(("127.0.0.1", int(url.rpartition(":")[2])))
            reader, writer = await asyncio.open_connection(sock=socket, limit=1024)
            body = json.dumps({"prompt": "a", "stream": True}).encode()
            head = (
                "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: "
                f"close\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await until(lambda: door.submitted)

            async def speak() -> None:
                for event in range(many):
                    door.say(door.submitted[0].request, ids(f"{event:05} "))
                    # sometimes several between two looks of the loop at the socket
                    if event % 5 == 0:
                        await asyncio.sleep(0)
                door.finish(door.submitted[0].request)

            speaking, received = asyncio.ensure_future(speak()), b""
            while part := await reader.read(1 << 16):
                received += part
                if len(received) % 11 == 0:
                    await asyncio.sleep(0.005)
            await speaking
            writer.close()
        *chunks, end = dechunked(received).split(b"data: ")[1:]
        assert end == b"[DONE]\n\n"
        text = "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)
        assert text == "".join(f"{event:05} " for event in range(many))

    run(scenario)


def dechunked(answer: bytes) -> bytes:
    """The body of an answer, whose chunks must be whole."""
    rest, whole, size = answer.partition(b"\r\n\r\n")[2], [], 1
    while size:
        line, _, rest = rest.partition(b"\r\n")
        size = int(line, 16)
        whole.append(rest[:size])
        assert rest[size : size + 2] == b"\r\n"
        rest = rest[size + 2 :]
    assert rest == b""
    return b"".join(whole)


def test_a_connection_serves_stream_after_stream():
    async def scenario():
        door, ends = FakeDoor(), set()
        async with served(door) as (url, *_), httpx.AsyncClient() as http:
            for turn in range(3):
                asking = asyncio.ensure_future(
                    http.post(url + "/v1/completions", json={"prompt": "a", "stream": True})
                )
                await until(lambda turn=turn: len(door.submitted) > turn)
                for letter in "abc":
                    door.say(door.submitted[turn].request, ids(letter))
                    await asyncio.sleep(0.002)
                door.finish(door.submitted[turn].request)
                response = await asking
                assert [e["choices"][0]["text"] for e in events(response)[:3]] == ["a", "b", "c"]
                assert response.text.endswith("data: [DONE]\n\n")
                ends.add(response.extensions["network_stream"].get_extra_info("client_addr"))
        assert len(ends) == 1, "on one connection"

    run(scenario)


def test_shutting_down_lets_open_requests_end():
    async def scenario():
        door = FakeDoor()
        door.script = [ids("a")]
        async with served(door, grace_s=10) as (url, _, stop, serving), client(url) as http:
            stream = await chat(http, stream=True)
            stop.set()
            await until(lambda: _refuses(url))
            door.say(door.submitted[0].request, ids("b"))
            door.finish(door.submitted[0].request)
            assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "ab"
            await asyncio.wait_for(serving, 10)
        assert door.cancelled == []

    run(scenario)


def test_shutting_down_answers_once_more_on_a_connection_and_asks_for_another(monkeypatch):
    monkeypatch.setattr(serve, "PARTING_S", 60.0)  # it ends with the last connection

    async def scenario():
        async with (
            served(FakeDoor(), grace_s=10) as (url, _, stop, serving),
            httpx.AsyncClient() as http,
        ):
            first = await http.get(f"{url}/health")
            assert "connection" not in first.headers
            stop.set()
            await until(lambda: _refuses(url))
            await asyncio.sleep(0.3)  # the server looks ten times a second whether it is to end
            last = await http.get(f"{url}/health")
            assert last.status_code == 200
            assert last.headers["connection"] == "close"
            await asyncio.wait_for(serving, 10)

    run(scenario)


def test_shutting_down_ends_what_does_not_end_itself():
    async def scenario():
        door = FakeDoor()
        async with served(door, grace_s=0.05) as (url, _, stop, serving), client(url) as http:
            waiting = asyncio.ensure_future(chat(http))
            await until(lambda: door.submitted)
            door.script = [ids("a")]
            stream = await chat(http, stream=True)
            stop.set()
            with pytest.raises(openai.APIStatusError) as failed:
                await waiting
            assert (failed.value.status_code, failed.value.code) == (503, "shutting_down")
            with pytest.raises(openai.APIError, match="shutting down"):
                [c async for c in stream]
            await asyncio.wait_for(serving, 10)
        assert len(door.cancelled) == 2

    run(scenario)


def test_hurried_open_requests_end_at_once_and_those_that_nobody_reads_are_cut():
    async def scenario():
        door, hurry = FakeDoor(), asyncio.Event()
        door.script = [ids("a")]
        async with (
            served(door, grace_s=10_000, hurry=hurry, send_buffer=4096) as (url, _, stop, serving),
            client(url) as http,
        ):
            stream = await chat(http, stream=True)
            deaf = _deaf_client(url)
            await until(lambda: len(door.submitted) == 2)
            for _ in range(100):
                door.say(door.submitted[1].request, ids("a" * 50))
                await asyncio.sleep(0)
            stop.set()
            await until(lambda: _refuses(url))
            assert not serving.done()
            hurry.set()
            with pytest.raises(openai.APIError, match="shutting down"):
                [c async for c in stream]
            await asyncio.wait_for(serving, 10)
            deaf.close()
        assert len(door.cancelled) == 2

    run(scenario)


def _deaf_client(url: str) -> sockets.socket:
    """One that asks for a stream and never reads: its answer cannot be written out."""
    host, port = url.removeprefix("http://").split(":")
    deaf = sockets.socket()
    deaf.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    deaf.connect((host, int(port)))
    body = json.dumps({"model": "tiny", "messages": HI, "stream": True})
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: "
        f"application/json\r\nContent-Length: {len(body)}"
    )
    deaf.sendall(f"{head}\r\n\r\n{body}".encode())
    return deaf


def _refuses(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with sockets.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


def test_a_large_body_over_a_socket():
    async def scenario():
        door = FakeDoor()
        async with served(door, max_body_bytes=100_000) as (url, *_), httpx.AsyncClient() as http:
            response = await http.post(url + "/v1/completions", json={"prompt": "x" * 200_000})
            assert response.status_code == 413
            assert (await http.get(url + "/health")).status_code == 200

    run(scenario)


def test_connections_have_no_nagle_delay_and_a_bound_on_unread_data():
    with bound("127.0.0.1", 0) as listener:
        listener.listen()
        with sockets.create_connection(listener.getsockname()) as _:
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY)
                assert accepted.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_USER_TIMEOUT) == 60_000
                assert accepted.proto == sockets.IPPROTO_TCP


def test_an_address_in_use_is_the_operators_error():
    with bound("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(ConfigError, match="--port"):
            bound("127.0.0.1", taken.getsockname()[1])


@pytest.mark.slow  # it waits
def test_a_connection_that_was_idle_for_some_seconds_is_still_there():
    """A client may use one again at any moment: what the server closes meanwhile is a request
    lost."""

    async def scenario():
        async with (
            served(FakeDoor()) as (url, *_),
            httpx.AsyncClient(limits=httpx.Limits(keepalive_expiry=60)) as http,
        ):
            first = await http.get(url + "/version")
            await asyncio.sleep(7)
            second = await http.get(url + "/version")
            assert first.extensions["network_stream"] is second.extensions["network_stream"]

    run(scenario)
