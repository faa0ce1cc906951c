"""The endpoints, one method each. They validate and prepare; answer.py writes the answer."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from baton import __version__
from baton.core.matchers import GrammarError
from baton.core.messages import Grammar
from baton.gateway.answer import Answer
from baton.gateway.answer_grammar import answer_grammar
from baton.gateway.ask import (
    Ask,
    Order,
    Terms,
    require_plain_best_of,
    require_something,
    understand,
)
from baton.gateway.auth import client_of, require_local
from baton.gateway.body import B, parse_body, read_body
from baton.gateway.books import books
from baton.gateway.counts import GatewayCounts, Siblings, joined
from baton.gateway.detokenize import Detokenizer
from baton.gateway.dispatcher import Dispatcher
from baton.gateway.door import Door, Readiness
from baton.gateway.echo import Echo, echoes
from baton.gateway.exchange import Exchange, Streamed, Undivided
from baton.gateway.faults import refuse, unavailable
from baton.gateway.forms import ChatForm, CompletionForm, Form, Heading
from baton.gateway.grammar_checks import GrammarChecks
from baton.gateway.logprobs import chat_logprobs, completion_logprobs, prompt_scored
from baton.gateway.masks import bad_words
from baton.gateway.messages_chat import as_chat
from baton.gateway.messages_form import MessageForm, TokenCount
from baton.gateway.messages_schema import CountTokensBody, MessagesBody
from baton.gateway.metrics import CONTENT_TYPE, Metrics
from baton.gateway.parsers import PLAIN, Parsers, Reading
from baton.gateway.prefill_leg import is_prefill_leg, prefilled_chat, prefilled_completion
from baton.gateway.prompts import ChatPrompt, Prompt, Prompter
from baton.gateway.responses_form import PREFIX, ResponsesForm
from baton.gateway.responses_input import chat_of
from baton.gateway.responses_schema import ResponsesBody
from baton.gateway.scaling_watch import ScalingWatch
from baton.gateway.schema import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerationBody,
    TokenizeBody,
)
from baton.gateway.scores import IdSpeller, Speller
from baton.gateway.settings import HttpSettings
from baton.gateway.sleep import Sleeper, Sleeping
from baton.gateway.stream import TextStream
from baton.gateway.structured import GrammarMaker
from baton.gateway.timeline import EndedRequests, ended_request
from baton.gateway.timelines import KEPT, Timelines
from baton.gateway.timeouts import timeout_ms
from baton.gateway.tokenization import Detokenized, Tokenized, require_one_prompt
from baton.gateway.tokenizer import Tokenizer
from baton.gateway.tool_choice import ToolUse, listed_tools, use_of_tools
from baton.gateway.truncation import truncate
from baton.grammar.vocabulary import Vocabulary
from baton.shell.settings import Role

SLEEP_MODES = ("wait", "abort")
SLEEP_WITHIN_S = 60.0
SHOWN_REQUESTS = 100
MOST_TRACEPARENT = 128  # characters; one of today's version has 55
ROLES = tuple(role.value for role in Role)
COMPLETION = "cmpl-"  # begins the ids of completions
ENTRY_BYTES = 256  # of one logprob and the text of its token, in an answer
MakeForm = Callable[[Heading, Speller], Form]


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


class DrainBegun(msgspec.Struct, frozen=True):
    """POST /drain: these workers get no more requests. With a role they begin again in it when
    their requests have ended; else they end."""

    workers: tuple[str, ...]
    role: str | None


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
        parsers: Parsers,
        siblings: Siblings | None,
        timelines: Timelines | None,
        scaling: ScalingWatch,
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
        vocabulary = Vocabulary(tokenizer.to_json, size=tokenizer.vocab_size)
        with suppress(GrammarError):  # which refuses requests that have a grammar, and no others
            vocabulary.ending_with(tokenizer.eos_ids)  # all streams would wait for it later
        checks = GrammarChecks(
            retry_after_s=settings.retry_after_s, deadline_s=settings.grammar_deadline_s
        )
        self._grammars = GrammarMaker(vocabulary, checks, ends=tokenizer.eos_ids)
        self._metrics, self._sleeper, self._parsers = metrics, sleeper, parsers
        self._siblings, self._timelines, self._scaling = siblings, timelines, scaling
        self._started = int(time.time())

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        body = await self._body(request, ChatBody)
        return await self._converse(request, body, prefix="chatcmpl-", make_form=ChatForm)

    async def responses(self, request: Request) -> Response:
        """POST /v1/responses."""
        body = await self._body(request, ResponsesBody)
        form = partial(ResponsesForm, body=body)
        return await self._converse(request, chat_of(body), prefix=PREFIX, make_form=form)

    async def messages(self, request: Request) -> Response:
        """POST /v1/messages."""
        body = as_chat(await self._body(request, MessagesBody))
        return await self._converse(request, body, prefix="msg_", make_form=MessageForm)

    async def count_tokens(self, request: Request) -> Response:
        """POST /v1/messages/count_tokens."""
        body = as_chat(await self._body(request, CountTokensBody))
        prompt = await self._prompt(body, self._use_of_tools(body))
        return json_response(TokenCount(len(prompt.tokens)))

    async def _converse(
        self, request: Request, body: ChatBody, *, prefix: str, make_form: MakeForm
    ) -> Response:
        terms = self._terms(request)
        logprobs = chat_logprobs(body, most=self._settings.max_logprobs)
        use = self._use_of_tools(body)
        prompt = await self._prompt(body, use)
        prompts = truncate(
            [prompt.tokens], body, capacity=terms.capacity, defaults=self._settings.defaults
        )
        grammar = await answer_grammar(
            body, use, self._grammars, self._parsers.frame(prompt), client=client_of(request)
        )
        ask = await self._understand(body, prompts, logprobs=logprobs, terms=terms, grammar=grammar)
        if is_prefill_leg(body):
            return json_response(prefilled_chat(self._heading(ask, prefix), ask))
        return self._answer(
            ask,
            prefix=prefix,
            make_form=make_form,
            reading=self._parsers.reading(
                prompt, use, next_seed=self._door.next_seed, streams=ask.stream
            ),
            reasoning=body.include_reasoning is not False,
            named_tool=use.named,
        )

    def _use_of_tools(self, body: ChatBody) -> ToolUse:
        return use_of_tools(
            body,
            tool_format=self._parsers.formats.tool_calls,
            exclude_when_none=self._settings.exclude_tools_when_tool_choice_none,
        )

    async def _prompt(self, body: ChatBody, use: ToolUse) -> ChatPrompt:
        return await self._prompter.chat(
            body.messages, body, tools=use.shown, parsed=self._parsers.parses(use)
        )

    async def completion(self, request: Request) -> Response:
        """POST /v1/completions."""
        body = await self._body(request, CompletionBody)
        terms = self._terms(request)
        logprobs = completion_logprobs(body, most=self._settings.max_logprobs)
        require_plain_best_of(body)
        require_something(body)
        whole = await self._prompter.completion(
            body.prompt, add_special_tokens=body.add_special_tokens is not False
        )
        prompts = truncate(whole, body, capacity=terms.capacity, defaults=self._settings.defaults)
        grammar = await self._grammars.of(body, client=client_of(request))
        ask = await self._understand(body, prompts, logprobs=logprobs, terms=terms, grammar=grammar)
        if is_prefill_leg(body):
            return json_response(prefilled_completion(self._heading(ask, COMPLETION), ask))
        shown = await self._echoes(body, ask, whole, prompts) if body.echo else ()
        make_form = partial(CompletionForm, echoes=shown)
        return self._answer(ask, prefix=COMPLETION, make_form=make_form, echoes=shown)

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        body = await self._body(request, TokenizeBody)
        require_one_prompt(body)
        if body.messages is not None:
            prompt = await self._prompter.chat(
                body.messages, body, tools=listed_tools(body) or None, parsed=False
            )
            tokens = prompt.tokens
        else:
            tokens = await self._prompter.tokens(
                body.prompt or "", add_special_tokens=body.add_special_tokens is not False
            )
        pieces = self._tokenizer.pieces(tokens) if body.return_token_strs else None
        return json_response(Tokenized(len(tokens), self._card().max_model_len, tokens, pieces))

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        body = await self._body(request, DetokenizeBody)
        return json_response(Detokenized(await self._prompter.text(body.tokens)))

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
        if self._siblings is not None:
            raise refuse(
                "this service has several gateways behind one port, and one of them cannot send "
                "all to sleep; start it with --gateways 1",
                code="several_gateways",
                status=409,
            )
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

    async def drain(self, request: Request) -> Response:
        """POST /drain."""
        self._require_operator(request)
        worker, role = (request.query_params.get(name) for name in ("worker", "role"))
        if worker is None:
            raise refuse("name the worker to drain: /drain?worker=NAME", param="worker")
        if role is not None and role not in ROLES:
            raise refuse(f"role is {role[:40]!r}; there is {', '.join(ROLES)}", param="role")
        report = await self._door.drain(worker, role)
        if not (report.workers or report.missing):
            raise refuse(f"no worker is called {worker[:40]!r}", param="worker")
        if report.missing:
            why = f"{worker[:40]} has not answered, and may drain or not"
            raise unavailable(why, code="not_drained", retry_after_s=self._settings.retry_after_s)
        return json_response(DrainBegun(tuple(view.name for view in report.workers), role))

    def _require_operator(self, request: Request) -> None:
        """Raise HttpFault 403 if there are no keys and the client is not local.

        With keys, KeyCheck has already checked the client.
        """
        if not self._settings.api_keys:
            require_local(request)

    async def metrics(self) -> Response:
        """GET /metrics: for Prometheus."""
        report, others = await self._door.ledger(audit=False), await self._others()
        return Response(self._metrics.scrape(report, others), media_type=CONTENT_TYPE)

    async def autoscaling(self) -> Response:
        """GET /autoscaling."""
        return json_response(self._scaling.wanted())

    async def ledger(self, request: Request) -> Response:
        """GET /debug/ledger: the ledgers of all workers, for clients on this machine."""
        require_local(request)
        return json_response(books(joined(await self._door.ledger(), await self._others())))

    async def requests(self, request: Request) -> Response:
        """GET /debug/requests: the requests that ended last, for clients on this machine."""
        require_local(request)
        timelines = () if self._timelines is None else self._timelines.latest(SHOWN_REQUESTS)
        return json_response(EndedRequests(tuple(map(ended_request, timelines))))

    async def timeline(self, request: Request, name: str) -> Response:
        """GET /debug/requests/NAME: where the time of one went, for clients on this machine."""
        require_local(request)
        found = None if self._timelines is None else self._timelines.find(name)
        if found is None and self._siblings is not None:
            found = await self._siblings.timeline(name)
        if found is None:
            why = (
                f"no request {name[:80]!r} among the last {KEPT} that have ended; give its room, "
                "or the id of its answer"
            )
            raise refuse(why, code="request_not_found", status=404)
        return json_response(found)

    async def _others(self) -> Sequence[GatewayCounts]:
        """What the other gateways behind the port count."""
        return () if self._siblings is None else await self._siblings.others()

    async def _body(self, request: Request, schema: type[B]) -> B:
        settings = self._settings
        raw = await read_body(
            request, max_bytes=settings.max_body_bytes, within_s=settings.deadline_ms / 1000
        )
        body = parse_body(schema, raw)
        if body.model is not None:
            self._require_model(body.model)
        return body

    async def _understand(
        self,
        body: GenerationBody,
        prompts: Sequence[Prompt],
        *,
        logprobs: int | None,
        terms: Terms,
        grammar: Grammar | None,
    ) -> Ask:
        """Make tokens of the bad words, which may take long, then validate all the rest."""
        scored = prompt_scored(
            body, prompts, most=self._settings.max_logprobs, vocab_size=terms.vocab_size
        )
        words = await bad_words(
            body.bad_words,
            encode=self._tokenizer.encode_chat,
            vocab_size=terms.vocab_size,
            inline_chars=self._settings.inline_chars,
        )
        return understand(
            body,
            prompts,
            logprobs=logprobs,
            prompt_scored=scored,
            terms=terms,
            grammar=grammar,
            bad_words=words,
        )

    async def _echoes(
        self, body: CompletionBody, ask: Ask, whole: Sequence[Prompt], kept: Sequence[Prompt]
    ) -> tuple[Echo, ...]:
        """Return what each choice begins with. Long prompts are decoded on a thread."""
        decode = partial(
            echoes,
            body.prompt,
            whole=whole,
            kept=kept,
            choices=body.n or 1,
            decode=partial(self._tokenizer.decode, skip_special_tokens=ask.skip_special_tokens),
            detokenizer=None if ask.logprobs is None else partial(self._detokenizer, ask, ()),
        )
        if sum(map(len, kept)) <= self._settings.inline_chars:
            return decode()
        return await asyncio.to_thread(decode)

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
            request.headers.get("traceparent", "")[:MOST_TRACEPARENT],
        )

    def _card(self) -> ModelCard:
        capacity = self._door.capacity()
        return ModelCard(
            self._settings.model,
            self._started,
            None if capacity is None else capacity.max_model_len,
        )

    def _answer(
        self,
        ask: Ask,
        *,
        prefix: str,
        make_form: MakeForm,
        reading: Reading = PLAIN,
        reasoning: bool = True,
        named_tool: bool = False,
        echoes: Sequence[Echo] = (),
    ) -> Response:
        heading = structs.replace(
            self._heading(ask, prefix), reasoning=reasoning, named_tool=named_tool
        )
        speller = IdSpeller(self._tokenizer) if ask.tokens_as_ids else self._tokenizer
        form = make_form(heading, speller)
        begins = [len(echo.text) for echo in echoes] or [0] * len(ask.orders)
        streams = [
            self._stream(i, order, ask, reading, begins=begin)
            for i, (order, begin) in enumerate(zip(ask.orders, begins, strict=True))
        ]
        style = Streamed(form) if ask.stream else Undivided(form)
        exchange = Exchange(
            style,
            streams,
            id=heading.id,
            max_pending_bytes=self._settings.max_pending_bytes + _echoed_bytes(ask),
        )
        return Answer(self._dispatcher, exchange, ask)

    def _heading(self, ask: Ask, prefix: str) -> Heading:
        return Heading(
            id=f"{prefix}{self._door.next_seed():016x}{self._door.next_seed():016x}",
            created=int(time.time()),
            model=self._settings.model,
            usage=ask.usage,
            running_usage=ask.running_usage,
            token_ids=ask.token_ids,
            logprobs=ask.logprobs,
            prompt_logprobs=ask.prompt_logprobs,
            temperature=ask.temperature,
            top_p=ask.top_p,
        )

    def _detokenizer(
        self, ask: Ask, prompt: Prompt, kept: frozenset[int] = frozenset()
    ) -> Detokenizer:
        """Begin the text that follows a prompt. kept: special tokens that are shown anyway"""
        return self._tokenizer.detokenizer(
            prompt,
            skip_special_tokens=ask.skip_special_tokens,
            spaces_between_special_tokens=ask.spaces_between_special_tokens,
            kept=kept,
        )

    def _stream(
        self, index: int, order: Order, ask: Ask, reading: Reading, *, begins: int
    ) -> TextStream:
        limits = order.limits
        return TextStream(
            index=index,
            choice=order.choice,
            prompt=order.prompt,
            detokenizer=self._detokenizer(ask, order.prompt, reading.kept),
            begins=begins,
            stops=ask.stops,
            include_stop=ask.include_stop,
            min_tokens=limits.min_tokens,
            stop_token_ids=frozenset(limits.stop_token_ids),
            quiet=frozenset()
            if ask.include_stop
            else frozenset(limits.stop_token_ids) | frozenset(limits.eos_token_ids),
            scored=ask.logprobs is not None,
            prompt_only=ask.prompt_only,
            reader=None if reading.make is None else reading.make(),
        )


def _echoed_bytes(ask: Ask) -> int:
    """Return a bound of what a stream begins with, if it begins with a prompt's logprobs. All of it
    is there at once, so that it waits to be read is not the client's slowness."""
    if ask.prompt_scored is None or not ask.stream:
        return 0
    return sum(len(o.prompt) for o in ask.orders) * (ask.prompt_scored + 2) * ENTRY_BYTES
