"""Sends requests to vLLM engines whose workers are guests (`baton.vllm.connector`).

    Front ──Ticket──▶ leader of the guest         the handoff
       │ └──Ticket──▶ EngineClient ──POST /v1/completions──▶ vLLM's HTTP server      the request itself
       └──◀──Tokens, Failed── EngineClient ◀──server-sent events──┘

Both engines get the request at once, with the same sampling and the room in `kv_transfer_params`.
Prefill draws one token, which its leader reports. Decode draws that token again before it goes on.
Should the two differ (a near-tie), the epoch fails, and the next one goes on after prefill's token.
A prefill engine whose leader has ended its part need not go on: decode may not need it any more.

A guest registers before the HTTP server of its engine is up. What it says is kept back until then.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import aiohttp
import msgspec
import structlog

from baton.core.frames import Said
from baton.core.ids import Boot, Key, Room, TokenId, TokenIndex
from baton.core.messages import (
    Abort,
    AnyMessage,
    Drawn,
    Ended,
    FailCode,
    Failed,
    FinishReason,
    FirstToken,
    Register,
    Ticket,
    Tokens,
)

log = structlog.get_logger()
FINISH: Mapping[str, FinishReason] = MappingProxyType(
    {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
)
SEED_BITS = 63
MAX_LINE = 1 << 20
MAX_REFUSAL = 500  # bytes of an engine's refusal that are told
LOOK_S = 0.25  # between two looks whether an engine is up


class EngineFault(Exception):
    """An engine did not answer as it should."""


class Choice(msgspec.Struct, frozen=True):
    """What one event says of the answer, as far as it is looked at."""

    token_ids: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] | None = None
    finish_reason: str | None = None


class AnswerEvent(msgspec.Struct, frozen=True):
    """One event of an answer of vLLM's /v1/completions."""

    choices: tuple[Choice, ...] = ()
    error: Any = None


class EngineClient:
    """The requests of one gateway to its engines. All calls are on the gateway's loop.

    Attributes:
        answers: called with what an engine says, as if its worker had said it
    """

    def __init__(self, model: str, key: str | None = None) -> None:
        """key: the API key that engines may ask for."""
        self.answers: Callable[[Boot, Said], None] = lambda boot, message: None
        self._model = model
        # returns the headers with which an engine continues the trace of a request
        self.headers_of: Callable[[Room], Mapping[str, str]] = lambda room: {}
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._urls: dict[Boot, str] = {}
        self._prefill: set[Boot] = set()
        self._tasks: dict[tuple[Boot, Key], asyncio.Task[None]] = {}
        # of open requests: who computes the prompt, and the token that it drew
        self._prefill_of: dict[Key, Boot] = {}
        self._first: dict[Key, TokenId] = {}
        self._session: aiohttp.ClientSession | None = None
        self._held: dict[Boot, list[Said]] = {}  # of guests whose engine is not up yet
        self._starts: dict[Boot, asyncio.Task[None]] = {}

    # ---- what passes between the core and workers -----------------------------------------------

    def heard(self, sender: Boot, message: Said) -> bool:
        match message:
            case Register(manifest=manifest, url=url) if url is not None and manifest.guest:
                if sender not in self._urls:
                    self._urls[sender], self._held[sender] = url, []
                    if manifest.role == "prefill":
                        self._prefill.add(sender)
                    start = asyncio.get_running_loop().create_task(self._start(sender, url))
                    self._starts[sender] = start
            case FirstToken(key=key, drawn=drawn) if self._prefill_of.get(key) == sender:
                self._first[key] = drawn.token
            case Ended(key=key) if sender in self._prefill:
                self._cancel(sender, key)
            case _:
                pass
        if sender not in self._held:
            return False
        self._held[sender].append(message)
        return True

    def sent(self, to: Boot, message: AnyMessage) -> None:
        match message:
            case Ticket() as ticket if to in self._urls and (lacks := unsupported(ticket)):
                why = f"{lacks} is not passed on to vLLM engines"
                self.answers(to, Failed(ticket.key, FailCode.COMPUTE_FAILED, why, retry=False))
            case Ticket() as ticket if to in self._urls:
                task = asyncio.get_running_loop().create_task(self._ask(to, ticket))
                self._tasks[to, ticket.key] = task
                self._prefill_of[ticket.key] = ticket.prefill
                task.add_done_callback(lambda _: self._done(to, ticket.key))
            case Abort(key=key):
                self._cancel(to, key)
            case _:
                pass

    def lost(self, boot: Boot) -> None:
        self._urls.pop(boot, None)
        self._prefill.discard(boot)
        self._held.pop(boot, None)
        if (start := self._starts.pop(boot, None)) is not None:
            start.cancel()
        for other, key in list(self._tasks):
            if other == boot:
                self._cancel(boot, key)

    async def close(self) -> None:
        """End all requests."""
        for boot, key in list(self._tasks):
            self._cancel(boot, key)
        for start in self._starts.values():
            start.cancel()
        if self._session is not None:
            await self._session.close()

    def _is_open(self, key: Key) -> bool:
        return any(other == key for _, other in self._tasks)

    def _cancel(self, boot: Boot, key: Key) -> None:
        task = self._tasks.get((boot, key))
        if task is not None:
            task.cancel()

    def _done(self, boot: Boot, key: Key) -> None:
        self._tasks.pop((boot, key), None)
        if not self._is_open(key):
            self._first.pop(key, None)
            self._prefill_of.pop(key, None)

    async def _start(self, boot: Boot, url: str) -> None:
        """Wait until the engine answers, then pass on what its guest has said."""
        while not await self._is_up(url):
            await asyncio.sleep(LOOK_S)
        log.info("engine_up", url=url, boot=f"{boot:x}")
        for message in self._held.pop(boot):
            self.answers(boot, message)

    async def _is_up(self, url: str) -> bool:
        try:
            async with self._http().get(f"{url}/health") as reply:
                return reply.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None), headers=self._headers
            )
        return self._session

    # ---- one request ----------------------------------------------------------------------------

    async def _ask(self, boot: Boot, ticket: Ticket) -> None:
        prefill = boot == ticket.prefill
        try:
            if prefill:
                async for _ in self._events(boot, ticket, prefill=True):
                    pass
            else:
                await self._generate(boot, ticket)
        except (EngineFault, aiohttp.ClientError, OSError) as error:
            side = "prefill" if prefill else "decode"
            why = f"the {side} engine at {self._urls.get(boot, 'an unknown address')}: {error}"
            self.answers(boot, Failed(ticket.key, FailCode.COMPUTE_FAILED, why, retry=True))

    async def _generate(self, boot: Boot, ticket: Ticket) -> None:
        key, at, finish = ticket.key, len(ticket.said), None
        async for event in self._events(boot, ticket, prefill=False):
            for choice in event.choices:
                drawn = tuple(Drawn(TokenId(t), None, ()) for t in choice.token_ids or ())
                finish = FINISH.get(choice.finish_reason or "")
                first = self._first.get(key)
                if drawn and at == len(ticket.said) and first not in (None, drawn[0].token):
                    why = f"decode drew token {drawn[0].token} first, and prefill {first}"
                    self.answers(boot, Failed(key, FailCode.HANDOFF_FAILED, why, retry=True))
                    return
                if drawn or finish is not None:
                    self.answers(boot, Tokens(key, TokenIndex(at), drawn, finish))
                    at += len(drawn)
        if finish is None:
            raise EngineFault("its answer ended before the request did")

    async def _events(
        self, boot: Boot, ticket: Ticket, *, prefill: bool
    ) -> AsyncIterator[AnswerEvent]:
        """Yield the events of one answer.

        Raises:
            EngineFault: the engine refuses, or answers with something else
        """
        url = f"{self._urls[boot]}/v1/completions"
        body = body_of(ticket, self._model, prefill=prefill)
        headers = self.headers_of(ticket.key.room)
        async with self._http().post(url, json=body, headers=headers) as reply:
            if reply.status != 200:
                said = (await reply.content.read(MAX_REFUSAL)).decode(errors="replace")
                raise EngineFault(f"HTTP {reply.status}: {said}")
            async for line in _lines(reply.content):
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = _event(line[6:])
                if event.error is not None:
                    raise EngineFault(str(event.error)[:MAX_REFUSAL])
                yield event


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of an answer.

    Raises:
        EngineFault: one is too long
    """
    rest = b""
    async for more in content.iter_any():
        *lines, rest = (rest + more).split(b"\n")
        if len(rest) > MAX_LINE:
            raise EngineFault(f"it sent a line of more than {MAX_LINE} bytes")
        for line in lines:
            yield line


def _event(raw: bytes) -> AnswerEvent:
    """Decode one event.

    Raises:
        EngineFault: it is something else
    """
    try:
        return msgspec.json.decode(raw, type=AnswerEvent)
    except msgspec.DecodeError as error:
        # a log gets this, so it does not say what the engine has written
        raise EngineFault(f"it sent {len(raw)} bytes that are no event") from error


def unsupported(ticket: Ticket) -> str:
    """Return what a request wants and its engine would not be told; empty if there is nothing."""
    wants = {
        "structured output": ticket.grammar is not None,
        "logprobs": ticket.sampling.logprobs is not None,
        "prompt_logprobs": ticket.sampling.prompt_logprobs is not None,
        "bad_words": bool(ticket.sampling.shaping and ticket.sampling.shaping.bad_words),
    }
    return next((name for name, wanted in wants.items() if wanted), "")


def body_of(ticket: Ticket, model: str, *, prefill: bool) -> dict[str, Any]:
    """Return the body of a request to vLLM's /v1/completions.

    The priority is left out: requests wait for it at the gateway, and an engine without priority
    scheduling, which is the default, refuses any other than 0.
    """
    sampling, limits = ticket.sampling, ticket.limits
    left = limits.max_tokens - len(ticket.said)
    body: dict[str, Any] = {
        "model": model,
        "prompt": [*ticket.prompt, *ticket.said],
        "max_tokens": 1 if prefill else left,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        # an epoch that goes on after some tokens must not draw the numbers of the first ones again
        "seed": (sampling.seed + len(ticket.said)) % (1 << SEED_BITS),
        "ignore_eos": True,
        "stop_token_ids": [*limits.eos_token_ids, *limits.stop_token_ids],
        "min_tokens": max(0, min(limits.min_tokens - len(ticket.said), 1 if prefill else left)),
        "stream": True,
        "return_token_ids": True,
        "kv_transfer_params": {"room": ticket.key.room, "epoch": ticket.key.epoch},
    }
    if ticket.cache_salt:
        body["cache_salt"] = ticket.cache_salt
    if (shaping := sampling.shaping) is not None:
        body |= {
            "repetition_penalty": shaping.repetition_penalty,
            "presence_penalty": shaping.presence_penalty,
            "frequency_penalty": shaping.frequency_penalty,
            "logit_bias": {str(token): bias for token, bias in shaping.logit_bias},
        }
        if shaping.allowed_token_ids:
            body["allowed_token_ids"] = list(shaping.allowed_token_ids)
    return body
