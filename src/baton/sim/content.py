"""What state holds in a simulated model: a pure function of what was computed, by whom, and where it belongs.

A row is a function of (spec, layer, part, head, tokens up to its position, attempt); the attempt is the boot and epoch
that computed it, as other batches give other last bits. A token drawn is a function of the tokens before it, its index and
the request's seed. So a byte in a wrong place differs from what is expected there, and so does a token drawn from it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from baton.core.ids import Boot, GroupName, TokenId, TokenIndex
from baton.core.messages import Sampling
from baton.core.state import Placement, Unit

MASK = (1 << 64) - 1
VOCABULARY = 61
END_OF_SEQUENCE = TokenId(7)
_U = np.uint64


def scramble(x: int) -> int:
    """A one-to-one mixing of 64 bits (constants of MurmurHash3's finaliser; unlike the seal's on purpose)."""
    x = ((x ^ (x >> 33)) * 0xFF51AFD7ED558CCD) & MASK
    x = ((x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53) & MASK
    return x ^ (x >> 33)


def _scramble(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> _U(33))) * _U(0xFF51AFD7ED558CCD)
    x = (x ^ (x >> _U(33))) * _U(0xC4CEB9FE1A85EC53)
    return x ^ (x >> _U(33))


def histories(tokens: tuple[int, ...]) -> list[int]:
    """For every position the digest of the tokens up to it."""
    found, h = [], 0x5EED
    for token in tokens:
        h = scramble(h * 31 + token + 1 & MASK)
        found.append(h)
    return found


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
        self._keys: dict[GroupName, list[tuple[NDArray[np.uint64], int]]] = {}
        for group in placement.table.groups:
            self._keys[group.name] = [
                (self._unit_keys(name), place.row_bytes // 8)
                for name, place in placement.places.items()
                if place.spec.group == group.name
            ]

        self._token_of_byte = {g.name: self._tokens_of_bytes(g.name) for g in placement.table.groups}

    def _tokens_of_bytes(self, group: GroupName) -> NDArray[np.int64]:
        """For every byte of a block the position within the block that it belongs to."""
        b = self.tokens_per_block(group)
        rows = [np.tile(np.repeat(np.arange(b), words * 8), len(keys)) for keys, words in self._keys[group]]
        return np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)

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
        written = (stamps != 0).astype(np.uint64)[:, None, :]
        parts = []
        for keys, words in self._keys[group]:
            first = _scramble(stamps[:, None, :] ^ keys[None, :, None])
            first *= written
            rows = np.empty((*first.shape, words), dtype=np.uint64)
            for w in range(words):
                np.multiply(first, _U(2 * w + 1), out=rows[..., w])
            parts.append(rows.reshape(len(stamps), -1).view(np.uint8))
        if not parts:
            return np.zeros((len(stamps), 0), dtype=np.uint8)
        return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]

    def part(
        self, group: GroupName, slots: NDArray[np.int64], stamps: Sequence[int], first: int, past: int
    ) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.bool_]]:
        """Positions [first, past) of a sequence: pool blocks that hold them, their contents, and which bytes are meant."""
        b = self.tokens_per_block(group)
        a, z = first // b, (past - 1) // b + 1
        grid = np.zeros((z - a) * b, dtype=np.uint64)
        grid[first - a * b : past - a * b] = stamps[first:past]
        positions = self._token_of_byte[group][None, :] + np.arange(a, z)[:, None] * b
        return slots[a:z], self.blocks(group, grid.reshape(-1, b)), (positions >= first) & (positions < past)

    def tokens_per_block(self, group: GroupName) -> int:
        """Positions in a block; a slot has one."""
        paged = self._placement.table.group(group).unit is Unit.PAGE
        return self._placement.table.block_tokens if paged else 1
