"""What state holds in a simulated model: a pure function of what was computed, by whom, and where it belongs.

A row is a function of (spec, layer, part, head, tokens up to its position, attempt); the attempt is the boot and epoch
that computed it, as other batches give other last bits. A token drawn is a function of the tokens before it, its index and
the request's seed. So a byte in a wrong place differs from what is expected there, and so does a token drawn from it.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from baton.core.ids import Boot, GroupName, TokenId, TokenIndex
from baton.core.messages import Sampling
from baton.core.state import Placement, Unit

MASK = (1 << 64) - 1
VOCABULARY = 61
END_OF_SEQUENCE = TokenId(7)
_SHIFT, _FIRST, _SECOND = np.array([33, 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53], dtype=np.uint64)[:, None]  # faster than scalars


def scramble(x: int) -> int:
    """A one-to-one mixing of 64 bits (constants of MurmurHash3's finaliser; unlike the seal's on purpose)."""
    x = ((x ^ (x >> 33)) * 0xFF51AFD7ED558CCD) & MASK
    x = ((x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53) & MASK
    return x ^ (x >> 33)


def _scramble(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """As `scramble`, in place."""
    x ^= x >> _SHIFT
    x *= _FIRST
    x ^= x >> _SHIFT
    x *= _SECOND
    x ^= x >> _SHIFT
    return x


def histories(tokens: tuple[int, ...]) -> list[int]:
    """For every position the digest of the tokens up to it."""
    found: list[int] = []
    add_histories(found, tokens)
    return found


def add_histories(found: list[int], tokens: Iterable[int]) -> None:
    """Go on with `found`, the histories of the tokens before these."""
    h = found[-1] if found else 0x5EED
    for token in tokens:
        h = scramble(h * 31 + token + 1 & MASK)
        found.append(h)


def attempt(boot: Boot, epoch: int) -> int:
    """What sets one computation of the same tokens apart from another."""
    return scramble(boot * 1009 + epoch & MASK)


def next_token(history: int, sampling: Sampling, index: TokenIndex) -> TokenId:
    """The token after a history."""
    return TokenId(scramble(history ^ (sampling.seed * 0x9E37 + index)) % VOCABULARY)


class Rows:
    """The contents of one rank's blocks."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        # Per spec of a group: the keys of its units, [1, units, 1], and what sets the words of a row apart.
        self._keys: dict[GroupName, list[tuple[NDArray[np.uint64], NDArray[np.uint64]]]] = {}
        for group in placement.table.groups:
            self._keys[group.name] = [
                (self._unit_keys(name)[None, :, None], np.arange(1, place.row_bytes // 4, 2, dtype=np.uint64))
                for name, place in placement.places.items()
                if place.spec.group == group.name
            ]
        self._tokens = {g.name: placement.table.block_tokens if g.unit is Unit.PAGE else 1 for g in placement.table.groups}
        self._bytes = {g: self._bytes_of_tokens(g) for g in self._tokens}

    def _bytes_of_tokens(self, group: GroupName) -> dict[tuple[int, int], NDArray[np.bool_]]:
        """For every interval of positions within a block: which bytes of the block belong to them."""
        b = self._tokens[group]
        rows = [np.tile(np.repeat(np.arange(b), words.size * 8), keys.size) for keys, words in self._keys[group]]
        token = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        return {(i, j): (token >= i) & (token < j) for i in range(b) for j in range(i + 1, b + 1)}

    def _unit_keys(self, spec: str) -> NDArray[np.uint64]:
        place = self._placement.places[spec]
        name = int.from_bytes(spec.encode()[:8], "little")
        keys = [
            scramble(scramble(name * 7 + layer) * 7 + head * 3 + part & MASK)
            for head in range(place.heads.start, place.heads.end)
            for layer in place.layers
            for part in range(len(place.spec.parts))
        ]
        return np.array(keys, dtype=np.uint64)

    def blocks(self, group: GroupName, stamps: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Bytes of whole blocks.

        Args:
            group: whose blocks
            stamps: uint64 [blocks, tokens], per position digest of history and attempt; 0 = nothing was computed there

        Returns:
            uint8 [blocks, bytes of a block]
        """
        by_unit = stamps[:, None, :]
        written = by_unit != 0
        parts = []
        for keys, words in self._keys[group]:
            first = _scramble(by_unit ^ keys)
            first *= written
            parts.append((first[..., None] * words).reshape(len(stamps), -1).view(np.uint8))
        if not parts:
            return np.zeros((len(stamps), 0), dtype=np.uint8)
        return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]

    def bytes_of(self, group: GroupName, first: int, past: int) -> NDArray[np.bool_]:
        """Which bytes of a block belong to its positions [first, past)."""
        return self._bytes[group][first, past]

    def tokens_per_block(self, group: GroupName) -> int:
        """Positions in a block; a slot has one."""
        return self._tokens[group]
