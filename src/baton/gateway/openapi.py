"""The endpoints in one table, and the OpenAPI 3.1 document that follows from it.

The schemas come from the pydantic models of request bodies and the msgspec types of answers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pydantic.json_schema import models_json_schema

from baton import __version__
from baton.gateway.faults import FaultBody
from baton.gateway.schema import ModelBody

REFERENCE = "#/components/schemas/"
TEXT, JSON, EVENTS = "text/plain", "application/json", "text/event-stream"
FAULTS: Mapping[int, str] = {
    400: "The request cannot be served as it is; `param` names the field.",
    401: "No valid API key.",
    403: "Not for this client.",
    404: "Not here, or no such model.",
    409: "The same is under way already.",
    413: "The body is too large.",
    429: "No room now, or more than the API key allows; see Retry-After.",
    500: "A fault of ours.",
    502: "The handoff failed.",
    503: "Not ready, asleep, or a worker was lost; see Retry-After.",
    504: "Not done before the deadline.",
    529: "No room now; see Retry-After.",
}
GENERATION_FAULTS = tuple(s for s in FAULTS if s not in (403, 409, 529))
MESSAGES_FAULTS = tuple(s for s in FAULTS if s not in (403, 409))


class Query(msgspec.Struct, frozen=True):
    """A query parameter."""

    name: str
    schema: Mapping[str, Any]
    about: str
    required: bool = False


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint.

    Attributes:
        path: as in the URL, e.g. "/v1/models/{name}"
        answer: type of the JSON of status 200; None if the answer is text
        streams: the answer may also be a stream of events
        faults: other statuses it may end with, all with an error body of type `fault`
        shown: statuses other than 200 that answer with `answer`
    """

    path: str
    method: str
    name: str  # of the handler in Routes
    summary: str
    answer: type[msgspec.Struct] | None
    body: type[ModelBody] | None = None
    streams: bool = False
    queries: tuple[Query, ...] = ()
    faults: tuple[int, ...] = (500,)
    fault: type[msgspec.Struct] = FaultBody
    shown: Mapping[int, str] = {}


def document(operations: Sequence[Operation], *, root_path: str = "") -> dict[str, Any]:
    """The whole document. `root_path` is where a proxy serves the paths; empty = where we do."""
    answers = [op.answer for op in operations if op.answer is not None]
    faults = {op.fault for op in operations}
    _, schemas = msgspec.json.schema_components(
        [*faults, *answers], ref_template=REFERENCE + "{name}"
    )
    bodies = [(op.body, "validation") for op in operations if op.body is not None]
    _, described = models_json_schema(bodies, ref_template=REFERENCE + "{model}")  # type: ignore[arg-type]
    paths: dict[str, dict[str, Any]] = {}
    for op in operations:
        paths.setdefault(op.path, {})[op.method.lower()] = _operation(op)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Baton",
            "version": __version__,
            "summary": "Large language models, prefill and decode apart.",
        },
        **({"servers": [{"url": root_path}]} if root_path else {}),
        "paths": paths,
        "components": {
            "schemas": dict(schemas) | described.get("$defs", {}),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(op: Operation) -> dict[str, Any]:
    name = op.name
    content: dict[str, Any] = (
        {TEXT: {"schema": {"type": "string"}}} if op.answer is None else {JSON: _refer(op.answer)}
    )
    if op.streams:
        content[EVENTS] = {}  # OpenAPI 3.1 cannot describe the events of a stream
    responses: dict[str, Any] = {"200": {"description": op.summary, "content": content}}
    for status, text in op.shown.items():
        responses[str(status)] = {"description": text, "content": content}
    for status in op.faults:
        responses[str(status)] = {
            "description": FAULTS[status],
            "content": {JSON: _refer(op.fault)},
        }
    found: dict[str, Any] = {"operationId": name, "summary": op.summary, "responses": responses}
    if 401 in op.faults:
        found["security"] = [{"key": []}, {"x-api-key": []}, {}]
    if op.body is not None:
        found["requestBody"] = {"required": True, "content": {JSON: _refer(op.body)}}
    parameters = [
        {
            "name": q.name,
            "in": "query",
            "required": q.required,
            "description": q.about,
            "schema": dict(q.schema),
        }
        for q in op.queries
    ]
    if "{name}" in op.path:
        parameters.append(
            {
                "name": "name",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "minLength": 1},
            }
        )
    if parameters:
        found["parameters"] = parameters
    return found


def _refer(described: type) -> dict[str, Any]:
    return {"schema": {"$ref": REFERENCE + described.__name__}}
