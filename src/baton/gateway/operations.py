"""A table of every endpoint of the gateway; routing and documentation both come from it."""

from collections.abc import Mapping

import msgspec

from baton.gateway.books import Books
from baton.gateway.door import Readiness
from baton.gateway.forms import ChatAnswer, CompletionAnswer
from baton.gateway.messages_faults import MessagesFaultBody
from baton.gateway.messages_form import MessageAnswer, TokenCount
from baton.gateway.messages_schema import CountTokensBody, MessagesBody
from baton.gateway.openapi import GENERATION_FAULTS, MESSAGES_FAULTS, Operation, Query
from baton.gateway.responses_answer import ResponsesAnswer
from baton.gateway.responses_schema import ResponsesBody
from baton.gateway.routes import ROLES, Alive, CacheReset, DrainBegun, ModelCard, ModelList, Version
from baton.gateway.scaling_watch import Autoscaling
from baton.gateway.schema import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    ModelBody,
    TokenizeBody,
)
from baton.gateway.sleep import Sleeping, Slept
from baton.gateway.timeline import EndedRequests, Timeline
from baton.gateway.tokenization import Detokenized, Tokenized

OPERATOR_FAULTS = (401, 403, 429, 500)


def _generation(
    path: str, name: str, summary: str, body: type[ModelBody], answer: type[msgspec.Struct]
) -> Operation:
    """Describe an endpoint that generates tokens."""
    return Operation(
        path=path,
        method="POST",
        name=name,
        summary=summary,
        answer=answer,
        body=body,
        streams=True,
        faults=GENERATION_FAULTS,
    )


def _read(
    path: str,
    name: str,
    summary: str,
    answer: type[msgspec.Struct] | None,
    *,
    faults: tuple[int, ...] = (500,),
    shown: Mapping[int, str] | None = None,
) -> Operation:
    """Describe an endpoint that changes nothing."""
    return Operation(
        path=path,
        method="GET",
        name=name,
        summary=summary,
        answer=answer,
        faults=faults,
        shown=shown or {},
    )


def _tokenization(
    path: str, summary: str, body: type[ModelBody], answer: type[msgspec.Struct]
) -> Operation:
    """Describe an endpoint that asks the tokenizer; its handler has the path's name."""
    return Operation(
        path=path,
        method="POST",
        name=path.removeprefix("/"),
        summary=summary,
        answer=answer,
        body=body,
        faults=(400, 401, 404, 413, 429, 500),
    )


def _order(
    path: str,
    summary: str,
    answer: type[msgspec.Struct],
    *,
    queries: tuple[Query, ...] = (),
    more_faults: tuple[int, ...] = (),
) -> Operation:
    """Describe an order of the operator to the whole service; its handler has the path's name."""
    faults = tuple(sorted((*OPERATOR_FAULTS, *more_faults)))
    return Operation(
        path=path,
        method="POST",
        name=path.removeprefix("/"),
        summary=summary,
        answer=answer,
        queries=queries,
        faults=faults,
    )


SLEEP_QUERIES = (
    Query("mode", {"type": "string", "enum": ["wait", "abort"]}, "what becomes of open requests"),
    Query(
        "level",
        {"type": "integer", "enum": [1, 2]},
        "as in vLLM; makes no difference: weights stay",
    ),
)

RESET_QUERIES = (
    Query(
        "worker",
        {"type": "string"},
        "the name of the one worker that gives them up; all, if left out",
    ),
)

DRAIN_QUERIES = (
    Query("worker", {"type": "string"}, "the name of the worker", required=True),
    Query(
        "role",
        {"type": "string", "enum": [*ROLES]},
        "the role in which it begins again; it ends, if left out",
    ),
)

OPERATIONS = (
    _generation("/v1/chat/completions", "chat", "Continue a conversation.", ChatBody, ChatAnswer),
    _generation(
        "/v1/completions",
        "completion",
        "Continue a text, or several.",
        CompletionBody,
        CompletionAnswer,
    ),
    _generation(
        "/v1/responses", "responses", "Continue a list of items.", ResponsesBody, ResponsesAnswer
    ),
    Operation(
        path="/v1/messages",
        method="POST",
        name="messages",
        summary="Continue a conversation, as Anthropic's API does.",
        answer=MessageAnswer,
        body=MessagesBody,
        streams=True,
        faults=MESSAGES_FAULTS,
        fault=MessagesFaultBody,
    ),
    Operation(
        path="/v1/messages/count_tokens",
        method="POST",
        name="count_tokens",
        summary="Count the tokens of a conversation.",
        answer=TokenCount,
        body=CountTokensBody,
        faults=(400, 401, 404, 413, 429, 500),
        fault=MessagesFaultBody,
    ),
    _tokenization("/tokenize", "The tokens of a prompt.", TokenizeBody, Tokenized),
    _tokenization("/detokenize", "The text of tokens.", DetokenizeBody, Detokenized),
    _read("/v1/models", "models", "What is served.", ModelList, faults=(401, 429, 500)),
    _read(
        "/v1/models/{name}",
        "model",
        "One served model.",
        ModelCard,
        faults=(401, 404, 429, 500),
    ),
    _read("/health", "health", "This process is alive.", Alive),
    _read(
        "/ready",
        "ready",
        "Requests can be served.",
        Readiness,
        shown={503: "They cannot; `why` says what is missing."},
    ),
    _read("/version", "version", "The version that runs.", Version),
    _order(
        "/sleep",
        "Take no more requests and clear all pools.",
        Slept,
        queries=SLEEP_QUERIES,
        more_faults=(400, 409, 503),
    ),
    _order("/wake_up", "Take requests again.", Sleeping),
    _read("/is_sleeping", "is_sleeping", "Whether the service sleeps.", Sleeping),
    _order(
        "/reset_prefix_cache",
        "Give up cached prefixes.",
        CacheReset,
        queries=RESET_QUERIES,
        more_faults=(400, 503),
    ),
    _order(
        "/drain",
        "Give a worker no more requests; it ends, or takes another role, when its requests have "
        "ended.",
        DrainBegun,
        queries=DRAIN_QUERIES,
        more_faults=(400, 503),
    ),
    _read("/metrics", "metrics", "Counters in Prometheus' format.", None),
    _read("/autoscaling", "autoscaling", "How many workers the load asks for.", Autoscaling),
    _read(
        "/debug/ledger",
        "ledger",
        "Who holds what, for clients on this machine.",
        Books,
        faults=(403, 500),
    ),
    _read(
        "/debug/requests",
        "requests",
        "The requests that ended last, for clients on this machine.",
        EndedRequests,
        faults=(403, 500),
    ),
    _read(
        "/debug/requests/{name}",
        "timeline",
        "Where the time of a request went, for clients on this machine.",
        Timeline,
        faults=(403, 404, 500),
    ),
)
