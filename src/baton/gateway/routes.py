"""The endpoints, one method each. They validate and prepare; answer.py writes the answer."""

import time
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from baton import __version__
from baton.gateway.answer import Answer
from baton.gateway.ask import Ask, Order, Terms, chat_logprobs, completion_logprobs, understand
from baton.gateway.auth import require_local
from baton.gateway.body import B, parse_body, read_body
from baton.gateway.books import books
from baton.gateway.dispatcher import Dispatcher
from baton.gateway.door import Door, Readiness
from baton.gateway.exchange import Exchange, Streamed, Undivided
from baton.gateway.faults import refuse, unavailable
from baton.gateway.forms import ChatForm, CompletionForm, Form, Heading
from baton.gateway.metrics import CONTENT_TYPE, Metrics
from baton.gateway.prompts import Prompter
from baton.gateway.schema import ChatBody, CompletionBody
from baton.gateway.settings import HttpSettings
from baton.gateway.sleep import Sleeper, Sleeping
from baton.gateway.stream import TextStream
from baton.gateway.timeouts import timeout_ms
from baton.gateway.tokenizer import Tokenizer

SLEEP_MODES = ("wait", "abort")
SLEEP_WITHIN_S = 60.0
MakeForm = Callable[[Heading, Tokenizer], Form]


class ModelCard(msgspec.Struct, frozen=True):
    """One served model. `max_model_len` is null until a worker has registered."""

    id: str
    created: int
    max_model_len: int | None
    object: str = "model"
    owned_by: str = "baton"


class ModelList(msgspec.Struct, frozen=True):
    """GET /v1/models."""

    data: tuple[ModelCard, ...]
    object: str = "list"


class CacheReset(msgspec.Struct, frozen=True):
    """POST /reset_prefix_cache: these workers have emptied their caches."""

    workers: tuple[str, ...]
    success: bool = True


class Alive(msgspec.Struct, frozen=True):
    """GET /health."""

    status: str = "alive"


class Version(msgspec.Struct, frozen=True):
    """GET /version."""

    version: str = __version__


def json_response(value: object, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


class Routes:
    """All endpoints of one gateway."""

    def __init__(
        self,
        *,
        door: Door,
        dispatcher: Dispatcher,
        tokenizer: Tokenizer,
        settings: HttpSettings,
        metrics: Metrics,
        sleeper: Sleeper,
    ) -> None:
        self._door, self._dispatcher, self._tokenizer, self._settings = (
            door,
            dispatcher,
            tokenizer,
            settings,
        )
        self._prompter = Prompter(
            tokenizer, inline_chars=settings.inline_chars, max_prompts=settings.max_prompts
        )
        self._metrics, self._sleeper = metrics, sleeper
        self._started = int(time.time())

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        body = await self._body(request, ChatBody)
        terms = self._terms(request)
        logprobs = chat_logprobs(body, self._settings)
        prompt = await self._prompter.chat(body.messages)
        ask = understand(body, [prompt], logprobs=logprobs, terms=terms)
        return self._answer(ask, prefix="chatcmpl", make_form=ChatForm)

    async def completion(self, request: Request) -> Response:
        """POST /v1/completions."""
        body = await self._body(request, CompletionBody)
        terms = self._terms(request)
        logprobs = completion_logprobs(body, self._settings)
        prompts = await self._prompter.completion(body.prompt)
        ask = understand(body, prompts, logprobs=logprobs, terms=terms)
        return self._answer(ask, prefix="cmpl", make_form=CompletionForm)

    async def models(self) -> Response:
        """GET /v1/models."""
        return json_response(ModelList((self._card(),)))

    async def model(self, name: str) -> Response:
        """GET /v1/models/{name}."""
        self._require_model(name)
        return json_response(self._card())

    async def health(self) -> Response:
        """GET /health: the process is alive."""
        return json_response(Alive())

    async def ready(self) -> Response:
        """GET /ready: whether requests can be served, and if not, why."""
        readiness = self._door.ready()
        if self._sleeper.asleep:
            readiness = Readiness(False, "the service is asleep; POST /wake_up")
        return json_response(readiness, 200 if readiness.ready else 503)

    async def version(self) -> Response:
        """GET /version."""
        return json_response(Version())

    async def sleep(self, request: Request) -> Response:
        """POST /sleep."""
        self._require_operator(request)
        mode = request.query_params.get("mode", "wait")
        if mode not in SLEEP_MODES:
            raise refuse(f"mode is {mode[:40]!r}; there is {', '.join(SLEEP_MODES)}", param="mode")
        return json_response(
            await self._sleeper.sleep(abort=mode == "abort", within_s=SLEEP_WITHIN_S)
        )

    async def wake_up(self, request: Request) -> Response:
        """POST /wake_up."""
        self._require_operator(request)
        self._sleeper.wake_up()
        return json_response(Sleeping(self._sleeper.asleep))

    async def is_sleeping(self) -> Response:
        """GET /is_sleeping."""
        return json_response(Sleeping(self._sleeper.asleep))

    async def reset_prefix_cache(self, request: Request) -> Response:
        """POST /reset_prefix_cache."""
        self._require_operator(request)
        worker = request.query_params.get("worker")
        report = await self._door.reset_cache(worker)
        if worker is not None and not (report.workers or report.missing):
            raise refuse(f"no worker is called {worker[:40]!r}", param="worker")
        if report.missing:
            why = (
                "these workers did not answer, and may have emptied their caches or not: "
                f"{', '.join(report.missing)}"
            )
            raise unavailable(why, code="not_reset", retry_after_s=self._settings.retry_after_s)
        return json_response(CacheReset(tuple(view.name for view in report.workers)))

    def _require_operator(self, request: Request) -> None:
        """Raise HttpFault 403 if there are no keys and the client is not local.

        With keys, KeyCheck has already checked the client.
        """
        if not self._settings.api_keys:
            require_local(request)

    async def metrics(self) -> Response:
        """GET /metrics: for Prometheus."""
        return Response(
            self._metrics.scrape(await self._door.ledger(audit=False)), media_type=CONTENT_TYPE
        )

    async def ledger(self, request: Request) -> Response:
        """GET /debug/ledger: the ledgers of all workers, for clients on this machine."""
        require_local(request)
        return json_response(books(await self._door.ledger()))

    async def _body(self, request: Request, schema: type[B]) -> B:
        body = parse_body(schema, await read_body(request, max_bytes=self._settings.max_body_bytes))
        if body.model is not None:
            self._require_model(body.model)
        return body

    def _require_model(self, name: str) -> None:
        if name != self._settings.model:
            message = (
                f"the model {name[:200]!r} is not served here; this gateway serves "
                f"{self._settings.model!r}"
            )
            raise refuse(message, param="model", code="model_not_found", status=404)

    def _terms(self, request: Request) -> Terms:
        deadline_ms = timeout_ms(request.headers, most_ms=self._settings.deadline_ms)
        capacity = self._door.capacity()
        if capacity is None:
            why = f"not ready: {self._door.ready().why}"
            raise unavailable(why, code="not_ready", retry_after_s=self._settings.retry_after_s)
        return Terms(
            self._settings,
            capacity,
            self._tokenizer.eos_ids,
            self._tokenizer.vocab_size,
            deadline_ms,
        )

    def _card(self) -> ModelCard:
        capacity = self._door.capacity()
        return ModelCard(
            self._settings.model,
            self._started,
            None if capacity is None else capacity.max_model_len,
        )

    def _answer(self, ask: Ask, *, prefix: str, make_form: MakeForm) -> Response:
        heading = Heading(
            id=f"{prefix}-{self._door.next_seed():016x}{self._door.next_seed():016x}",
            created=int(time.time()),
            model=self._settings.model,
            usage=ask.usage,
            running_usage=ask.running_usage,
            token_ids=ask.token_ids,
            scored=ask.logprobs is not None,
        )
        form = make_form(heading, self._tokenizer)
        streams = [self._stream(i, order, ask) for i, order in enumerate(ask.orders)]
        style = Streamed(form) if ask.stream else Undivided(form)
        exchange = Exchange(
            style, streams, id=heading.id, max_pending_bytes=self._settings.max_pending_bytes
        )
        return Answer(self._dispatcher, exchange, ask)

    def _stream(self, index: int, order: Order, ask: Ask) -> TextStream:
        limits = order.limits
        return TextStream(
            index=index,
            choice=order.choice,
            prompt=order.prompt,
            detokenizer=self._tokenizer.detokenizer(order.prompt),
            stops=ask.stops,
            min_tokens=limits.min_tokens,
            stop_token_ids=frozenset(limits.stop_token_ids),
            quiet=frozenset(limits.stop_token_ids) | frozenset(limits.eos_token_ids),
            scored=ask.logprobs is not None,
        )
