"""Damages bytes that were right, as a broken machine or somebody hostile would."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

# what msgpack, lengths and counters read as the largest, the smallest or the next one
EXTREMES = (
    *(b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff" * 8, b"\x00" * 8, b"\x80" + b"\x00" * 7),
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdc\xff\xff"),
    *(b"\xc7\x08\x01", b"\xd6\xff", b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\x00" * 7),
)
# what readers of JSON may take for something else
WORDS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**400),
    *(0.0, -0.0, 1e308, 5e-324, 1.5, float("nan"), float("inf")),
    *("", "0", "x" * 5000, "\x00", "\ud800", "\u202e", "a\nb", "{{", "<|im_end|>", "../../etc"),
    *([], {}, [[]], [None], {"": ""}, [0] * 300, {"type": "object"}),
)


class Mutator:
    """Draws damaged copies of a corpus; the same seed draws the same ones."""

    def __init__(self, corpus: Sequence[bytes], seed: int) -> None:
        assert corpus
        self._corpus, self._rng = list(corpus), Random(seed)

    def draw(self) -> bytes:
        """One of the corpus, with one to six damages."""
        raw = bytearray(self._rng.choice(self._corpus))
        for _ in range(self._rng.choice((1, 1, 1, 2, 3, 6))):
            self._damage(raw)
        return bytes(raw)

    def _damage(self, raw: bytearray) -> None:
        rng, size = self._rng, len(raw)
        at = rng.randrange(size + 1)
        to = min(size, at + rng.choice((1, 2, 4, 8, 64, 1024)))
        match rng.randrange(9):
            case 0 | 1 if at < size:
                raw[at] ^= 1 << rng.randrange(8)
            case 2 if at < size:
                raw[at] = rng.randrange(256)
            case 3:
                raw[at:to] = rng.choice(EXTREMES)
            case 4:
                raw[at:at] = rng.choice(EXTREMES)
            case 5:
                del raw[at:to]
            case 6:
                raw[at:at] = raw[at:to]
            case 7:
                other = rng.choice(self._corpus)
                begin = rng.randrange(len(other) + 1)
                raw[at:to] = other[begin : begin + rng.choice((1, 4, 16, 64, 256))]
            case _:
                del raw[at:]

    def value(self, whole: Any) -> Any:
        """A JSON value with one to three of its parts exchanged, left out or doubled."""
        found = json.loads(json.dumps(whole))
        for _ in range(self._rng.choice((1, 1, 2, 3))):
            found = self._exchange(found)
        return found

    def _exchange(self, value: Any) -> Any:
        rng = self._rng
        if rng.random() < 0.25 or not value or not isinstance(value, (dict, list)):
            return rng.choice(WORDS)
        if isinstance(value, list):
            at = rng.randrange(len(value))
            return [*value[:at], self._exchange(value[at]), *value[at + 1 :]]
        key = rng.choice(list(value))
        match rng.randrange(8):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return value | {str(rng.choice(("", "x", key + "_", "\x00", "__class__"))): 1}
            case _:
                return value | {key: self._exchange(value[key])}
