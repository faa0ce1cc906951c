"""Errors as clients see them: OpenAI's error schema, and the HTTP status of each error.

The message of an error that is the request's fault shows what is wrong in it, which may be a part
of a prompt. The client gets it; no log does.
"""

import re

import msgspec

from baton.core.door import Fail
from baton.core.messages import FailCode

ASKED = "invalid_request_error"  # the type of all errors that are the request's fault
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class Fault(msgspec.Struct, frozen=True):
    """The inner object of an error body."""

    message: str
    type: str
    param: str | None
    code: str | None


class FaultBody(msgspec.Struct, frozen=True):
    """An error body, and the payload of an error event in a stream."""

    error: Fault


class HttpFault(Exception):
    """A request that ends with an error status."""

    def __init__(self, status: int, fault: Fault, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(fault.message)
        self.status, self.fault, self.headers = status, fault, dict(headers or {})

    @property
    def body(self) -> bytes:
        """JSON of the error."""
        return msgspec.json.encode(FaultBody(self.fault))

    @property
    def logged(self) -> dict[str, str]:
        """What a log line says of it: nothing that the client has written but the name of a
        field."""
        fault = self.fault
        param = {"param": fault.param} if fault.param and is_word(fault.param) else {}
        return param if fault.type == ASKED else {**param, "why": fault.message}

    @property
    def event(self) -> bytes:
        """The error as one server-sent event."""
        return b"data: " + self.body + b"\n\n"


def is_word(field: str) -> bool:
    """Whether a name that a client has given to a field looks like one, so that a log may have
    it."""
    return _WORD.fullmatch(field) is not None


def refuse(
    message: str, *, param: str | None = None, code: str | None = None, status: int = 400
) -> HttpFault:
    """Make an error for an invalid request; `message` names value, limit and what is supported."""
    return HttpFault(status, Fault(message, ASKED, param, code))


def unavailable(message: str, *, code: str, retry_after_s: int) -> HttpFault:
    """Make a 503 error for a condition that may pass soon."""
    return HttpFault(
        503, Fault(message, "server_error", None, code), headers={"retry-after": str(retry_after_s)}
    )


def overloaded(message: str, *, retry_after_s: int) -> HttpFault:
    """Make a 429 error: there is no capacity now."""
    fault = Fault(message, "overloaded_error", None, FailCode.OVERLOADED.value)
    return HttpFault(429, fault, headers={"retry-after": str(retry_after_s)})


STATUS = {
    FailCode.HANDOFF_FAILED: 502,
    FailCode.WORKER_LOST: 503,
    FailCode.DEADLINE_EXCEEDED: 504,
    FailCode.OVERLOADED: 429,
    FailCode.QUEUE_TIMEOUT: 503,
    FailCode.COMPUTE_FAILED: 500,
    # not a 5xx: clients retry those by themselves, and each retry could kill two workers
    FailCode.POISON: 422,
    FailCode.UNSATISFIABLE: 422,
}


def fault_of(fail: Fail, *, retry_after_s: int) -> HttpFault:
    """Translate a failure of the core into an HTTP error."""
    if fail.code is FailCode.OVERLOADED:
        return overloaded(fail.detail, retry_after_s=retry_after_s)
    headers = {"retry-after": str(retry_after_s)} if STATUS[fail.code] == 503 else {}
    asked = fail.code is FailCode.UNSATISFIABLE  # all others are not the request's fault
    kind = ASKED if asked else "server_error"
    return HttpFault(
        STATUS[fail.code], Fault(fail.detail, kind, None, fail.code.value), headers=headers
    )
