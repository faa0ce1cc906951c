"""The timeout of a request: the operator's limit, or less if the client asks for less."""

from collections.abc import Mapping

from baton.gateway.faults import refuse
from baton.gateway.neutral import brief

HEADER = "X-Request-Timeout-Ms"
DIGITS = 12


def timeout_ms(headers: Mapping[str, str], *, most_ms: int) -> int:
    """Return the milliseconds from a request's arrival to its last token; at most `most_ms`.

    Raises:
        HttpFault: 400, the header is not a positive whole number of milliseconds
    """
    text = headers.get(HEADER)
    if text is None:
        return most_ms
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS and int(text) >= 1):
        limit = (
            f"it takes a whole number of milliseconds from 1 on, of which {most_ms} count "
            "at most (--request-timeout)"
        )
        raise refuse(f"the header {HEADER} is {brief(text)}; {limit}", param=HEADER)
    return min(int(text), most_ms)
