"""Finds the arguments of calls in JSON while it grows, so that they need not wait for its end.

{"name": "f", "arguments": {"a": 1}}      or a list of such objects; or, where the format has
                           ~~~~~~~~       written the name before, the arguments alone
                           passed on as the model writes them
"""

from collections.abc import Generator, Iterator
from itertools import islice
from json import JSONDecoder

import msgspec

ARGUMENTS = ("arguments", "parameters")
SPACE = " \t\n\r"  # of JSON
# Longest text around arguments. It is looked through at each step.
LONGEST_HEAD = 16384
_DECODER = JSONDecoder()


class Found(msgspec.Struct, frozen=True):
    """A piece of the arguments of one call.

    Attributes:
        name: of the function
        text: the next characters of a JSON object
        begins: whether it is the first piece of this call
        ends: whether the object is complete with it
    """

    name: str
    text: str
    begins: bool
    ends: bool


class ArgumentScanner:
    """Reads one region of calls. `name` is the function's, if the region has only its arguments.

    A call whose name comes behind its arguments is not found, nor is any call after it.
    """

    def __init__(self, name: str | None) -> None:
        self._alone = name
        # What was read, with {} in the place of arguments that were found.
        self._head = ""
        self._found = 0
        self._name = ""  # of the call whose arguments grow
        self._depth = 0  # of open brackets in them; 0 = none grow
        self._in_string = self._escaped = False

    def feed(self, text: str) -> Iterator[Found]:
        """Take the next characters; yields at most one piece of each call."""
        while text:
            begins = not self._depth
            if begins:
                self._head += text
                short = len(self._head) <= LONGEST_HEAD
                call = next(islice(self._calls(), self._found, None), None) if short else None
                if call is None:
                    return
                self._name, at = call
                self._found += 1
                self._head, text = self._head[:at], self._head[at:]
            piece, text = self._divide(text)
            if not self._depth:
                self._head += "{}"
            yield Found(self._name, piece, begins, not self._depth)

    def _divide(self, text: str) -> tuple[str, str]:
        """Divide a text behind the bracket that closes the arguments."""
        for i, c in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped, self._in_string = c == "\\", c != '"'
            elif c == '"':
                self._in_string = True
            elif c in "{[":
                self._depth += 1
            elif c in "}]":
                self._depth -= 1
                if not self._depth:
                    return text[: i + 1], text[i + 1 :]
        return text, ""

    def _calls(self) -> Iterator[tuple[str, int]]:
        """Yield the name of each call, and where its arguments begin."""
        s = self._head
        at = _skip(s, 0)
        if self._alone is not None:
            if s[at : at + 1] == "{":
                yield self._alone, at
            return
        listed = s[at : at + 1] == "["
        if listed:
            at = _skip(s, at + 1)
        try:
            while s[at : at + 1] == "{":
                at = yield from _members(s, _skip(s, at + 1))
                if not listed or s[at : at + 1] != ",":
                    return
                at = _skip(s, at + 1)
        except (ValueError, RecursionError):  # not complete, or no JSON
            return


def _members(s: str, at: int) -> Generator[tuple[str, int], None, int]:
    """Yield the call of the object whose first member is at `at`; returns where what follows is.

    Raises:
        ValueError: the object is not complete, or has no name before its arguments
    """
    name: object = None
    found = False
    while s[at : at + 1] == '"':
        key, at = _DECODER.raw_decode(s, at)
        at = _skip(s, at)
        if s[at : at + 1] != ":":
            raise ValueError
        at = _skip(s, at + 1)
        if key in ARGUMENTS and s[at : at + 1] == "{" and not found:
            if not isinstance(name, str) or not name.strip():
                raise ValueError
            found = True
            yield name.strip(), at
        value, at = _DECODER.raw_decode(s, at)
        if key == "name":
            name = value
        at = _skip(s, at)
        if s[at : at + 1] == ",":
            at = _skip(s, at + 1)
    if s[at : at + 1] != "}":
        raise ValueError
    return _skip(s, at + 1)


def _skip(s: str, at: int) -> int:
    """Return where the white space at `at` ends."""
    return len(s) - len(s[at:].lstrip(SPACE))
