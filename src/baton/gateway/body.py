"""Reading a request's body, bounded while it comes in, and its schema."""

from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import Request

from baton.gateway.faults import HttpFault, refuse
from baton.gateway.neutral import judge_extra_fields
from baton.gateway.schema import GenerationBody

B = TypeVar("B", bound=GenerationBody)


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """The whole body. Raises HttpFault 413 before more than `max_bytes` are held, ClientDisconnect."""
    stated = request.headers.get("content-length", "")
    if stated.isdigit() and int(stated) > max_bytes:
        raise _too_large(max_bytes)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
    return b"".join(parts)


def parse_body(schema: type[B], raw: bytes) -> B:
    """Check a body against its schema. Raises HttpFault 400, naming the first field that does not fit."""
    try:
        body = schema.model_validate_json(raw)
    except ValidationError as e:
        raise _unfit(e) from e
    judge_extra_fields(body.model_extra or {})
    return body


def _unfit(invalid: ValidationError) -> HttpFault:
    errors = invalid.errors(include_url=False, include_input=False, include_context=False)
    first = errors[0]
    if first["type"] == "json_invalid":
        return refuse(f"the body is not JSON: {first['msg']}", code="invalid_json")
    if not first["loc"]:
        return refuse(f"the body does not fit: {first['msg']}")
    field = str(first["loc"][0])
    # where a field may have one of several types, all of them complain: the one whose type fits says what is wrong
    same = [e for e in errors if e["loc"][0] == field]
    telling = [e for e in same if not e["type"].endswith("_type")] or same
    reasons = dict.fromkeys(f"{_where(e['loc'])}: {e['msg']}" for e in telling)
    return refuse(" or ".join(reasons)[:500], param=field[:64])


def _where(path: tuple[int | str, ...]) -> str:
    """messages[0].content, logit_bias[5]; names of alternatives (`str`, `list[...]`) are left out."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "TextPart"):
            shown += f".{part}" if shown else part
        elif part.isdigit():  # a key of logit_bias
            shown += f"[{part[:20]}]"
    return shown


def _too_large(max_bytes: int) -> HttpFault:
    fault = refuse(f"the body is larger than {max_bytes} bytes, the most that is read", code="body_too_large", status=413)
    fault.headers["connection"] = "close"  # nobody reads the rest of it
    return fault
