"""Errors in Anthropic's schema, which clients of the Messages API expect.

The types and their statuses are those of Anthropic's API. Where its API has none, the status stays.
"""

import re
from collections.abc import Mapping

import msgspec

from baton.gateway.faults import HttpFault

PATHS = re.compile(r"/v1/messages(/|\Z)")
OVERLOADED = 529
# The codes of conditions that Anthropic's API calls overload, whatever status OpenAI's has.
OVERLOADS = frozenset(["overloaded", "queue_timeout"])
TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


class MessagesFault(msgspec.Struct, frozen=True):
    """The inner object of an error."""

    type: str
    message: str


class MessagesFaultBody(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """An error, as a document and as an event of a stream."""

    error: MessagesFault


class MessagesHttpFault(HttpFault):
    """An error with the status, the type and the schema of Anthropic's API."""

    def __init__(self, fault: HttpFault) -> None:
        status = OVERLOADED if fault.fault.code in OVERLOADS else fault.status
        super().__init__(status, fault.fault, headers=fault.headers)

    @property
    def body(self) -> bytes:
        """JSON of the error."""
        other = "invalid_request_error" if self.status < 500 else "api_error"
        found = MessagesFault(TYPES.get(self.status, other), self.fault.message)
        return msgspec.json.encode(MessagesFaultBody(found))

    @property
    def event(self) -> bytes:
        """The error as one server-sent event."""
        return b"event: error\ndata: " + self.body + b"\n\n"


def in_schema_of(path: str, fault: HttpFault) -> HttpFault:
    """Return an error as the endpoint of this path shows it."""
    return fault if PATHS.search(path) is None else MessagesHttpFault(fault)
