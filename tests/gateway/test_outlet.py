"""Past the coroutine: when a part of an answer goes straight to its connection, and when it must
not."""

import asyncio
import json
import socket
import struct

from baton.core.door import Emit, RequestId
from baton.core.ids import TokenIndex
from baton.core.messages import FinishReason
from baton.gateway.answer import PLAIN_SEND, PlainSend
from baton.gateway.exchange import Exchange
from baton.gateway.outlet import outlet_of
from baton.gateway.stream import TextStream

from .fake_door import FakeDoor, drawn
from .models import ids
from .rig import make_tokenizer, served, until
from .test_streaming import client, run


class Letters:
    """A style that writes the text and nothing else."""

    headers = ()

    def delta(self, stream, piece):
        return piece.text.encode()

    def ending(self, stream, piece):
        return b"."

    def closing(self, streams):
        return b""


class Pipe:
    """An outlet that takes what it is told to take."""

    def __init__(self) -> None:
        self.taken, self.open = [], True

    def write(self, data):
        if self.open:
            self.taken.append(data)
        return self.open


class Rig:
    """One exchange, and the coroutine that empties it."""

    def __init__(self) -> None:
        nothing = frozenset[int]()
        detokenizer = make_tokenizer().detokenizer(())
        self.stream = TextStream(
            index=0,
            choice=0,
            prompt=(),
            detokenizer=detokenizer,
            stops=(),
            include_stop=False,
            min_tokens=0,
            stop_token_ids=nothing,
            quiet=nothing,
            scored=False,
        )
        self.exchange = Exchange(Letters(), [self.stream], id="x", max_pending_bytes=8)
        self.pipe, self.written = Pipe(), []

    def say(self, letter: str) -> None:
        self.exchange.emit(
            self.stream, Emit(RequestId(1), TokenIndex(self.stream.count), (drawn(ids(letter)[0]),))
        )

    async def write(self) -> None:
        while not self.exchange.ended:
            await self.exchange.change()
            self.written.append(self.exchange.take())


def scenario(play):
    async def go():
        rig = Rig()
        writing = asyncio.ensure_future(rig.write())
        await asyncio.sleep(0)
        await play(rig)
        rig.exchange.finish(rig.stream, FinishReason.STOP)
        await writing
        return rig

    return asyncio.run(asyncio.wait_for(go(), 10))


def test_without_an_outlet_all_is_left_to_the_coroutine():
    async def play(rig):
        rig.say("a")
        await asyncio.sleep(0)
        rig.say("b")

    assert b"".join(scenario(play).written) == b"ab."


def test_what_comes_while_the_coroutine_waits_goes_past_it_and_the_end_does_not():
    async def play(rig):
        rig.exchange.pour(rig.pipe)
        rig.say("a")
        rig.say("b")

    rig = scenario(play)
    assert (rig.pipe.taken, rig.written) == ([b"a", b"b"], [b"."])


def test_what_the_connection_does_not_take_is_kept_and_what_comes_then_stays_behind_it():
    async def play(rig):
        rig.exchange.pour(rig.pipe)
        rig.say("a")
        rig.pipe.open = False
        rig.say("b")
        rig.pipe.open = True
        rig.say("c")  # nobody has written b yet
        await asyncio.sleep(0)
        rig.say("d")

    rig = scenario(play)
    assert (rig.pipe.taken, rig.written) == ([b"a", b"d"], [b"bc", b"."])


def test_a_client_that_takes_nothing_is_still_cut_off():
    async def play(rig):
        rig.exchange.pour(rig.pipe)
        rig.pipe.open = False
        for letter in "123456789":
            rig.say(letter)
        assert rig.exchange.outcome == "slow_client"
        rig.pipe.open = True
        rig.say("x")  # before the core hears that nobody reads this

    assert scenario(play).pipe.taken == []


def test_streams_over_a_real_connection_have_one_and_whole_answers_have_none(monkeypatch):
    found = []

    async def serve(self, scope, receive, send):
        scope[PLAIN_SEND] = send
        await self._app(scope, receive, send)
        found.append(outlet_of(send) is not None)

    monkeypatch.setattr(PlainSend, "__call__", serve)

    async def scenario():
        door = FakeDoor()
        door.script = [ids("o")]
        async with served(door) as (url, *_), client(url) as http:
            for asked, stream in enumerate((True, False), 1):
                asking = asyncio.ensure_future(
                    http.completions.create(model="tiny", prompt="a", stream=stream)
                )
                await until(lambda asked=asked: len(door.submitted) == asked)
                answer = await asking if stream else None  # its head has been sent
                door.say(door.submitted[-1].request, ids("k"))
                door.finish(door.submitted[-1].request)
                if stream:
                    assert "".join([c.choices[0].text async for c in answer]) == "ok"
                else:
                    assert (await asking).choices[0].text == "ok"
                await until(lambda asked=asked: len(found) == asked)
        assert found == [True, False]

    run(scenario)


def test_a_client_that_breaks_off_with_a_second_request_on_the_connection_harms_nobody_else():
    async def scenario():
        door = FakeDoor()
        door.script = [ids("a")]
        async with served(door) as (url, *_):
            body = json.dumps({"prompt": "a", "stream": True}).encode()
            asked = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (
                len(body),
                body,
            )
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as broken:
                broken.sendall(asked + asked)
                broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                await until(lambda: len(door.said) == 1)
                await asyncio.sleep(0.02)  # the head has been sent

            def say():
                # whoever speaks hears nothing of what is wrong there
                door.say(door.submitted[0].request, ids("b"))
                return door.cancelled

            await until(say)

    run(scenario)


def test_another_servers_send_has_none():
    async def send(message):
        pass

    assert outlet_of(send) is None
