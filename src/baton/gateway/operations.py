"""Every endpoint of the gateway, as a table: what is routed is what is documented."""

from baton.gateway.books import Books
from baton.gateway.door import Readiness
from baton.gateway.forms import ChatAnswer, CompletionAnswer
from baton.gateway.openapi import GENERATION_FAULTS, Operation, Query
from baton.gateway.routes import Alive, CacheReset, ModelCard, ModelList, Version
from baton.gateway.schema import ChatBody, CompletionBody
from baton.gateway.sleep import Sleeping, Slept

OPERATIONS = (
    Operation(
        path="/v1/chat/completions",
        method="POST",
        name="chat",
        summary="Continue a conversation.",
        answer=ChatAnswer,
        body=ChatBody,
        streams=True,
        faults=GENERATION_FAULTS,
    ),
    Operation(
        path="/v1/completions",
        method="POST",
        name="completion",
        summary="Continue a text, or several.",
        answer=CompletionAnswer,
        body=CompletionBody,
        streams=True,
        faults=GENERATION_FAULTS,
    ),
    Operation(path="/v1/models", method="GET", name="models", summary="What is served.", answer=ModelList, faults=(401, 500)),
    Operation(
        path="/v1/models/{name}",
        method="GET",
        name="model",
        summary="One served model.",
        answer=ModelCard,
        faults=(401, 404, 500),
    ),
    Operation(path="/health", method="GET", name="health", summary="This process is alive.", answer=Alive),
    Operation(
        path="/ready",
        method="GET",
        name="ready",
        summary="Requests can be served.",
        answer=Readiness,
        shown={503: "They cannot; `why` says what is missing."},
    ),
    Operation(path="/version", method="GET", name="version", summary="The version that runs.", answer=Version),
    Operation(
        path="/sleep",
        method="POST",
        name="sleep",
        summary="Take no more requests and clear all pools.",
        answer=Slept,
        queries=(
            Query("mode", {"type": "string", "enum": ["wait", "abort"]}, "what becomes of open requests"),
            Query("level", {"type": "integer", "enum": [1, 2]}, "as in vLLM; makes no difference: weights stay"),
        ),
        faults=(400, 401, 403, 409, 500, 503),
    ),
    Operation(
        path="/wake_up",
        method="POST",
        name="wake_up",
        summary="Take requests again.",
        answer=Sleeping,
        faults=(401, 403, 500),
    ),
    Operation(path="/is_sleeping", method="GET", name="is_sleeping", summary="Whether the service sleeps.", answer=Sleeping),
    Operation(
        path="/reset_prefix_cache",
        method="POST",
        name="reset_prefix_cache",
        summary="Give up all cached prefixes.",
        answer=CacheReset,
        faults=(401, 403, 500),
    ),
    Operation(path="/metrics", method="GET", name="metrics", summary="Counters in Prometheus' format.", answer=None),
    Operation(
        path="/debug/ledger",
        method="GET",
        name="ledger",
        summary="Who holds what, for clients on this machine.",
        answer=Books,
        faults=(403, 500),
    ),
)
