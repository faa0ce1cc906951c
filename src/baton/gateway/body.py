"""Reads a request's body, up to a limit, and validates it against a schema."""

import asyncio
import json
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from baton.gateway.faults import HttpFault, refuse
from baton.gateway.neutral import brief, judge_extra_fields
from baton.gateway.schema import Body, ModelBody

B = TypeVar("B", bound=ModelBody)
S = TypeVar("S", bound=Body)

# what pydantic calls the types of a field that may have one of several
TYPES = frozenset(
    [
        "str",
        "int",
        "TextPart",
        "NamedTool",
        "InputMessage",
        "InputCall",
        "InputCallOutput",
        "InputReasoning",
        "ChosenFunction",
    ]
)


async def read_body(request: Request, *, max_bytes: int, within_s: float) -> bytes:
    """Read the whole body.

    Raises:
        HttpFault: 413, before more than `max_bytes` are held; 408, it has not come in time
        ClientDisconnect: the client left
    """
    stated = request.headers.get("content-length", "")
    if stated.isdigit() and int(stated) > max_bytes:
        raise _too_large(f"has {stated[:20]}", max_bytes)
    parts, size = [], 0
    try:
        async with asyncio.timeout(within_s):
            async for part in request.stream():
                size += len(part)
                if size > max_bytes:
                    raise _too_large(f"has more than {max_bytes}", max_bytes)
                parts.append(part)
    except TimeoutError:
        raise _not_read(
            f"the body has not come in {within_s:g} s", code="body_too_slow", status=408
        ) from None
    return b"".join(parts)


def parse_body(schema: type[B], raw: bytes) -> B:
    """Validate a body, and judge fields that its schema does not have.

    Raises:
        HttpFault: 400; the message names the first invalid field, its value and the reason
    """
    body = fit(schema, raw)
    judge_extra_fields(body.model_extra or {})
    return body


def fit(schema: type[S], raw: bytes) -> S:
    """Validate a body; fields that the schema does not have are kept in its `model_extra`."""
    try:
        return schema.model_validate_json(raw)
    except ValidationError as e:
        raise _unfit(e, raw) from e


def _unfit(invalid: ValidationError, raw: bytes) -> HttpFault:
    errors = invalid.errors(include_url=False, include_context=False)
    first = errors[0]
    if first["type"] == "json_invalid":
        if ("surrogate" in first["msg"] or "escape" in first["msg"]) and (
            field := _with_lone_surrogate(raw)
        ) is not None:
            return refuse(
                f"{field} holds a lone surrogate, half of a character; text must be valid Unicode",
                param=field,
            )
        return refuse(f"the body is not JSON: {first['msg']}", code="invalid_json")
    if not first["loc"]:
        return refuse(f"the body is {brief(first['input'])}; it must be a JSON object")
    field = str(first["loc"][0])[:64]
    # If a field may have one of several types, each type reports an error. The error of the type
    # that fits the value says what is wrong.
    same = [e for e in errors if e["loc"][0] == first["loc"][0]]
    telling = [e for e in same if not e["type"].endswith("_type")] or same
    reasons: dict[str, list[str]] = {}
    for error in telling:
        reasons.setdefault(_named(error), []).append(error["msg"][:1].lower() + error["msg"][1:])
    said = (
        name if e == ["field required"] else f"{name}: {' or '.join(dict.fromkeys(e))}"
        for name, e in reasons.items()
    )
    return refuse("; or ".join(said)[:500], param=field)


def _named(error: ErrorDetails) -> str:
    where = _where(error["loc"])
    return (
        f"{where} is missing"
        if error["type"] == "missing"
        else f"{where} = {brief(error['input'])}"
    )


def _with_lone_surrogate(raw: bytes) -> str | None:
    """Return the field of a body that has half of a surrogate pair, or None.

    The strict parser stops there without saying where.
    """
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    for field, value in body.items() if isinstance(body, dict) else ():
        try:
            json.dumps({field: value}, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return str(field).encode(errors="replace").decode()[:64]
    return None


def _where(path: tuple[int | str, ...]) -> str:
    """Format a path, e.g. messages[0].content; names of types (`list[...]`) are left out."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        elif part.isidentifier() and part not in TYPES:
            shown += f".{part}" if shown else part
        elif part.isdigit():  # a key of logit_bias
            shown += f"[{part[:20]}]"
    return shown


def _too_large(has: str, max_bytes: int) -> HttpFault:
    return _not_read(
        f"the body {has} bytes; at most {max_bytes} are read", code="body_too_large", status=413
    )


def _not_read(why: str, *, code: str, status: int) -> HttpFault:
    fault = refuse(why, code=code, status=status)
    fault.headers["connection"] = "close"  # the rest of the body is not read
    return fault
