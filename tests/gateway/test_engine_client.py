"""Requests to engines whose workers are guests of them, over a real HTTP server that answers as a
script says."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace
from tests.core.build import drawn, key, manifest, ticket

from baton.core.ids import Boot, TokenIndex
from baton.core.messages import (
    Abort,
    Credits,
    Ended,
    FailCode,
    Failed,
    FinishReason,
    FirstToken,
    Register,
    Tokens,
)
from baton.gateway.engine_client import MAX_LINE, EngineClient, body_of

P, D = Boot(2), Boot(3)


def chunk(ids: list[int], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"token_ids": ids, "finish_reason": finish}]}


class Engine:
    """An HTTP server with vLLM's endpoints. `script`: the events of its answers; bytes as they are;
    None: nothing more for ever."""

    def __init__(self, script: list[Any], *, up: bool = True, status: int = 200) -> None:
        self.script, self.up, self.status = script, up, status
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.left = asyncio.Event()
        self.looks = 0

    async def __aenter__(self) -> "Engine":
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        self.looks += 1
        return web.Response(status=200 if self.up else 503)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        if self.status != 200:
            return web.Response(status=self.status, text="the prompt is too long")
        reply = web.StreamResponse()
        await reply.prepare(request)
        try:
            for event in self.script:
                if event is None:
                    await asyncio.Event().wait()  # for ever
                raw = event if isinstance(event, bytes) else json.dumps(event).encode()
                await reply.write(b"data: " + raw + b"\n\n")
        except asyncio.CancelledError:
            self.left.set()
            raise
        await reply.write(b"data: [DONE]\n\n")
        return reply


class Wired:
    """A client whose engine is registered, and what it says."""

    def __init__(self, api_key: str | None = None) -> None:
        self.client, self.said = EngineClient("m", api_key), asyncio.Queue[Any]()
        self.client.answers = lambda boot, message: self.said.put_nowait((boot, message))

    def register(self, boot: Boot, url: str) -> bool:
        card = replace(manifest("decode" if boot == D else "prefill", boot), guest=True)
        return self.client.heard(boot, Register("w", None, card, url=url))

    async def hear(self) -> Any:
        return await asyncio.wait_for(self.said.get(), 10)


def play(
    engine: Engine,
    scene: Callable[[Wired, Engine], Awaitable[None]],
    *,
    api_key: str | None = None,
) -> None:
    async def go() -> None:
        async with engine:
            wired = Wired(api_key)
            try:
                await scene(wired, engine)
            finally:
                await wired.client.close()

    asyncio.run(go())


async def up(wired: Wired, engine: Engine, boot: Boot) -> None:
    assert wired.register(boot, engine.url)
    assert (await wired.hear())[0] == boot


def test_tokens_of_an_answer_go_to_the_core_with_their_indices() -> None:
    async def scene(wired: Wired, engine: Engine) -> None:
        await up(wired, engine, D)
        wired.client.sent(D, ticket(max_tokens=4))
        told = [await wired.hear() for _ in range(3)]
        assert told == [
            (D, Tokens(key(), TokenIndex(0), (drawn(7),), None)),
            (D, Tokens(key(), TokenIndex(1), (drawn(8), drawn(9)), None)),
            (D, Tokens(key(), TokenIndex(3), (drawn(4),), FinishReason.LENGTH)),
        ]
        (body,) = engine.bodies
        assert body["prompt"] == [1, 2, 3, 4, 5]
        assert body["kv_transfer_params"] == {"room": key().room, "epoch": 1}
        assert (body["max_tokens"], body["stream"], body["return_token_ids"]) == (4, True, True)

    play(Engine([chunk([7]), chunk([8, 9]), chunk([4], "length")]), scene)


@pytest.mark.parametrize(("api_key", "shown"), [("k", "Bearer k"), (None, None)])
def test_engines_are_shown_the_key_of_the_cluster(api_key: str | None, shown: str | None) -> None:
    async def scene(wired: Wired, engine: Engine) -> None:
        await up(wired, engine, D)
        wired.client.sent(D, ticket(max_tokens=1))
        await wired.hear()
        assert engine.keys == [shown]

    play(Engine([chunk([7], "length")]), scene, api_key=api_key)


def test_prefill_draws_one_token_which_its_worker_reports() -> None:
    async def scene(wired: Wired, engine: Engine) -> None:
        await up(wired, engine, P)
        wired.client.sent(P, ticket(max_tokens=4))
        while not engine.bodies:
            await asyncio.sleep(0.01)
        assert engine.bodies[0]["max_tokens"] == 1
        assert wired.said.empty()

    play(Engine([chunk([7], "length")]), scene)


def test_an_epoch_that_goes_on_asks_for_what_is_left_with_another_seed() -> None:
    async def scene(wired: Wired, engine: Engine) -> None:
        await up(wired, engine, D)
        goes_on = replace(ticket(epoch=2, max_tokens=4), said=(7, 8))
        wired.client.sent(D, goes_on)
        assert (await wired.hear())[1] == Tokens(
            key(1, 2), TokenIndex(2), (drawn(9),), FinishReason.STOP
        )
        (body,) = engine.bodies
        assert body["prompt"] == [1, 2, 3, 4, 5, 7, 8]
        assert body["max_tokens"] == 2
        assert body["seed"] == goes_on.sampling.seed + 2

    play(Engine([chunk([9], "stop")]), scene)


def test_an_engine_that_refuses_fails_the_epoch_and_says_why() -> None:
    async def scene(wired: Wired, engine: Engine) -> None:
        await up(wired, engine, D)
        wired.client.sent(D, ticket())
        _, failed = await wired.hear()
        assert isinstance(failed, Failed)
        assert (failed.code, failed.retry) == (FailCode.COMPUTE_FAILED, True)
        assert "HTTP 400: the prompt is too long" in failed.detail

    play(Engine([], status=400), scene)


def test_what_an_engine_would_not_be_told_is_refused() -> None:
    async def scene(wired: Wired, engine: Engine) -> None:
        await up(wired, engine, D)
        wants = replace(ticket(), sampling=replace(ticket().sampling, logprobs=2))
        wired.client.sent(D, wants)
        _, failed = await wired.hear()
        assert (failed.detail, failed.retry) == (
            "logprobs is not passed on to vLLM engines",
            False,
        )
        assert engine.bodies == []

    play(Engine([]), scene)


def test_an_answer_that_breaks_off_fails_the_epoch() -> None:
    async def scene(wired: Wired, engine: Engine) -> None:
        await up(wired, engine, D)
        wired.client.sent(D, ticket())
        assert isinstance((await wired.hear())[1], Tokens)
        assert "ended before" in (await wired.hear())[1].detail

    play(Engine([chunk([7])]), scene)


@pytest.mark.parametrize("boot", [P, D])
@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b'{"choices": [', "no event"),
        (b"\xff\xfe", "no event"),
        (b"[1, 2]", "no event"),
        (b'{"choices": [{"token_ids": ["a"]}]}', "no event"),
        (b'{"choices": [{"token_ids": [-1]}]}', "no event"),
        (b'{"choices": 5}', "no event"),
        (b'{"error": {"message": "out of memory"}}', "out of memory"),
        (b'{"choices": [], "padding": "' + b"x" * (3 * MAX_LINE) + b'"}', "bytes"),
    ],
)
def test_what_is_no_answer_fails_the_epoch_at_once(boot: Boot, sent: bytes, said: str) -> None:
    async def scene(wired: Wired, engine: Engine) -> None:
        await up(wired, engine, boot)
        wired.client.sent(boot, ticket())
        _, failed = await wired.hear()
        assert (failed.code, failed.retry) == (FailCode.COMPUTE_FAILED, True)
        assert said in failed.detail
        assert len(failed.detail) < 1000

    play(Engine([sent, None]), scene)


def test_a_salt_is_passed_on_and_a_priority_is_not() -> None:
    plain, salted = ticket(), replace(ticket(), cache_salt="s", priority=3)
    for prefill in (False, True):
        assert body_of(salted, "m", prefill=prefill) == {
            **body_of(plain, "m", prefill=prefill),
            "cache_salt": "s",
        }


def test_two_first_tokens_that_differ_fail_the_epoch_before_a_client_sees_the_second() -> None:
    async def scene(wired: Wired, engine: Engine) -> None:
        await up(wired, engine, D)
        wired.client.sent(D, ticket())
        wired.client.heard(P, FirstToken(key(), TokenIndex(0), drawn(6), None))
        _, failed = await wired.hear()
        assert "decode drew token 7 first, and prefill 6" in failed.detail

    play(Engine([chunk([7]), chunk([8], "length")]), scene)


def test_a_first_token_that_another_than_prefill_says_is_not_believed() -> None:
    async def scene(wired: Wired, engine: Engine) -> None:
        await up(wired, engine, D)
        wired.client.sent(D, ticket())
        wired.client.heard(D, FirstToken(key(), TokenIndex(0), drawn(6), None))
        _, said = await wired.hear()
        assert isinstance(said, Tokens)
        assert [d.token for d in said.drawn] == [7]

    play(Engine([chunk([7]), chunk([8], "length")]), scene)


def test_an_epoch_that_ends_takes_its_request_away_from_the_engine() -> None:
    async def scene(wired: Wired, engine: Engine) -> None:
        await up(wired, engine, D)
        wired.client.sent(D, ticket())
        assert isinstance((await wired.hear())[1], Tokens)
        wired.client.sent(D, Abort(key(), "gone"))
        await asyncio.wait_for(engine.left.wait(), 10)
        assert wired.said.empty(), "nobody waits for more"

    play(Engine([chunk([7]), None]), scene)


@pytest.mark.parametrize("boot", [P, D])
def test_only_a_prefill_engine_stops_when_its_leader_has_ended_its_part(boot: Boot) -> None:
    """What decode's leader says may be faster than the last tokens of the engine."""

    async def scene(wired: Wired, engine: Engine) -> None:
        await up(wired, engine, boot)
        wired.client.sent(boot, ticket())
        while not engine.bodies:
            await asyncio.sleep(0.01)
        wired.client.heard(boot, Ended(key()))
        if boot == P:
            await asyncio.wait_for(engine.left.wait(), 10)
        else:
            assert isinstance((await wired.hear())[1], Tokens)

    play(Engine([chunk([7]), None] if boot == P else [chunk([7], "length")]), scene)


def test_what_a_guest_says_waits_until_its_engine_is_up() -> None:
    async def scene(wired: Wired, engine: Engine) -> None:
        assert wired.register(D, engine.url)
        credits = Credits(1, D, {}, {}, 0, 0)
        assert wired.client.heard(D, credits)
        while engine.looks < 2:
            await asyncio.sleep(0.01)
        assert wired.said.empty()
        engine.up = True
        assert isinstance((await wired.hear())[1], Register)
        assert (await wired.hear())[1] == credits
        assert not wired.client.heard(D, credits), "from now on nothing is kept back"

    play(Engine([], up=False), scene)
