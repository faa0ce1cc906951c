"""How long a request may take: what the operator allows, or less if its client says so."""

from collections.abc import Mapping

from baton.gateway.faults import refuse
from baton.gateway.neutral import brief

HEADER = "X-Request-Timeout-Ms"
DIGITS = 12


def timeout_ms(headers: Mapping[str, str], *, most_ms: int) -> int:
    """Milliseconds from the request's arrival to its last token. A client that asks for more than `most_ms` gets that.

    Raises:
        HttpFault: 400, the header is no whole number of milliseconds from 1 on
    """
    text = headers.get(HEADER)
    if text is None:
        return most_ms
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS and int(text) >= 1):
        limit = f"it takes a whole number of milliseconds from 1 on, of which {most_ms} count at most (--request-timeout)"
        raise refuse(f"the header {HEADER} is {brief(text)}; {limit}", param=HEADER)
    return min(int(text), most_ms)
