"""What the references of a JSON schema may mean."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote


def nodes(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object in a JSON value."""
    left = [value]
    while left:
        found = left.pop()
        if isinstance(found, Mapping):
            yield found
            left.extend(found.values())
        elif isinstance(found, list):
            left.extend(found)


# An address that is only what it says: nothing to decode, and no step back.
PLAIN = re.compile(
    r"(?:[a-z][a-z0-9+.-]*://[^/%?#]+/)?(?:[\w@~-][\w.@~-]*/)*([\w@~-][\w.@~-]*)",
    re.ASCII | re.IGNORECASE,
)


class References:
    """The places of one document that a reference may mean.

    Of addresses only the last names are compared, so a reference may mean too much here, but never
    too little.
    """

    def __init__(self, root: Any) -> None:
        self._parts = [root]  # within which places are counted
        self._names: set[str | None] = set()  # of the parts; None = it may be any
        self._anchors: dict[str, list[Any]] = defaultdict(list)
        for node in nodes(root):
            ids = [node[key] for key in ("$id", "id", "$anchor") if isinstance(node.get(key), str)]
            if ids and node is not root:
                self._parts.append(node)
            for name in ids:
                self._names.add(_last_name(name))
                self._anchors[name.removeprefix("#")].append(node)

    def targets(self, reference: str) -> Iterator[Any]:
        """Yield what a reference may mean: a place in the document or in a part that has an id, or
        an anchor."""
        address, _, place = reference.partition("#")
        if address and not self._has(address):
            return
        place = unquote(place)
        if place and not place.startswith("/"):
            yield from self._anchors.get(place, ())
            return
        for part in self._parts:
            yield from _at(part, place.split("/")[1:])

    def _has(self, address: str) -> bool:
        name = _last_name(address)
        return name is None or name in self._names or None in self._names


def _last_name(address: str) -> str | None:
    found = PLAIN.fullmatch(address.partition("#")[0])
    return found and found[1]


def _at(value: Any, names: Sequence[str]) -> Iterator[Any]:
    for name in names:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return
    yield value
