"""What state holds in a simulated model: a pure function of what was computed, by which attempt,
and where it belongs.

A row is a function of (spec, layer, part, head, tokens up to its position, attempt). The attempt is
the boot and epoch that computed it, as other batches give other last bits. A token is a function of
the tokens before it, its index and the request's seed and, if there are penalties, biases or a
least length, of the past that the draw is given. So a byte in a wrong place differs from what is
expected there, and so does a token drawn from it or from a wrong past. The logprobs of a token, be
it drawn or a part of the prompt, have last bits that identify the attempt, and so tell from which
epoch they came.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache

from baton.core.errors import Bug
from baton.core.ids import Boot, GroupName, TokenId, TokenIndex
from baton.core.memory.state import Placement, SpecPlace
from baton.core.messages import Sampling, Shaping
from baton.core.prompt_scores import TokenScore

MASK = (1 << 64) - 1
VOCABULARY = 61
END_OF_SEQUENCE = TokenId(7)
STAMP_BYTES = 8
REPEATS = 2  # as a request's top_k: its answer repeats itself


def scramble(x: int) -> int:
    """Mix 64 bits, one to one, with the constants of MurmurHash3's finaliser. It differs from the
    seal's mixing on purpose."""
    x = ((x ^ (x >> 33)) * 0xFF51AFD7ED558CCD) & MASK
    x = ((x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53) & MASK
    return x ^ (x >> 33)


def histories(tokens: tuple[int, ...]) -> list[int]:
    """Return, for every position, the digest of the tokens up to it."""
    found: list[int] = []
    add_histories(found, tokens)
    return found


def add_histories(found: list[int], tokens: Iterable[int]) -> None:
    """Append to `found` the histories of these tokens, which follow those of `found`."""
    h = found[-1] if found else 0x5EED
    for token in tokens:
        h = scramble(h * 31 + token + 1 & MASK)
        found.append(h)


def attempt(boot: Boot, epoch: int) -> int:
    """Return the number by which one computation of the same tokens differs from another."""
    return scramble(boot * 1009 + epoch & MASK)


def next_token(
    history: int,
    sampling: Sampling,
    index: TokenIndex,
    *,
    prompt: Iterable[int] = (),
    answer: Sequence[int] = (),
    barred: Collection[int] = (),
    allowed: Collection[int] | None = None,
    bad: Collection[int] = (),
) -> TokenId:
    """Return the token after a history. A request with REPEATS says the same token for a while, and
    then another one, so that drafts are often right. Penalties depend on the tokens of the prompt,
    each once, and on those of the answer so far. Only tokens are drawn that the grammar allows
    (`allowed`; None: all) and the request too, and none of `bad`; `barred` ones only if no others
    are left."""
    if sampling.top_k == REPEATS:
        history, index = 0, TokenIndex(index // 5)
    drawn = history ^ (sampling.seed * 0x9E37 + index)
    if sampling.shaping is not None:
        drawn ^= _shaped(sampling.shaping, prompt, answer)
    token = scramble(drawn) % VOCABULARY
    permitted = set(range(VOCABULARY) if allowed is None else allowed).difference(bad)
    if sampling.shaping is not None and sampling.shaping.allowed_token_ids:
        permitted.intersection_update(sampling.shaping.allowed_token_ids)
    permitted = permitted.difference(barred) or permitted
    if not permitted:
        raise Bug("no token is left to draw: the simulated clients ask for no such thing")
    while token not in permitted:
        token = (token + 1) % VOCABULARY
    return TokenId(token)


def _shaped(shaping: Shaping, prompt: Iterable[int], answer: Sequence[int]) -> int:
    """Return the effect of penalties and biases on a draw; 0 if all are off. It does not depend on
    the order of the tokens."""
    found = _digest(1, (token * 1009 + int(64 * bias) for token, bias in shaping.logit_bias))
    if shaping.repetition_penalty != 1:
        found ^= _digest(2, sorted({*prompt, *answer}))
    if shaping.presence_penalty:
        found ^= _digest(3, sorted(set(answer)))
    if shaping.frequency_penalty:
        found ^= _digest(4, sorted(answer))
    return found


def _digest(what: int, numbers: Iterable[int]) -> int:
    """Return a digest of numbers; 0 if there are none."""
    found = 0
    for number in numbers:
        found = scramble(found * 31 + number * 7 + what & MASK)
    return found


def logprobs(
    history: int, count: int, author: int
) -> tuple[float, tuple[tuple[TokenId, float], ...]]:
    """Return the logprob of the token after a history, and those of the `count` most likely tokens.
    Their last bits are those of the attempt that computes them."""
    noise = author % (1 << 20) / (1 << 24)
    top = ((TokenId((history + i) % VOCABULARY), -1.0 - i - noise) for i in range(count))
    return -0.5 - history % 16 - noise, tuple(top)


def token_score(history: int, token: TokenId, top: int, author: int) -> TokenScore:
    """Return the score of a prompt's token after a history, with the last bits of the attempt that
    computes it. Its logprobs are numbers that a float32 has."""
    noise = author % (1 << 12) / (1 << 16)
    mixed = scramble(history ^ token)
    likely = ((TokenId((history + i) % VOCABULARY), -0.5 - i - noise) for i in range(top))
    return TokenScore(-1.0 - mixed % 8 - noise, 1 + mixed % VOCABULARY, tuple(likely))


def _at(
    places: Sequence[SpecPlace], token: int, value: Callable[[str, int, int, int, int], int]
) -> int:
    """Return a block in which all rows of one position have their value and everything else is
    zero."""
    found = 0
    for place in places:
        for h in range(place.heads.size):
            for i, layer in enumerate(place.layers):
                for part in range(len(place.spec.parts)):
                    at = (
                        place.offset
                        + h * place.head_stride
                        + i * place.layer_stride
                        + part * place.part_stride
                    )
                    row = value(
                        place.spec.name, place.row_bytes, place.heads.start + h, layer, part
                    )
                    found |= row << 8 * (at + token * place.row_bytes)
    return found


@lru_cache(maxsize=1024)
def _unit_key(spec: str, row_bytes: int, head: int, layer: int, part: int) -> int:
    """Return the key of a unit. It is odd, so that different stamps give different products."""
    assert row_bytes > STAMP_BYTES, "a row holds a stamp and something of its unit"
    key = scramble(
        scramble(int.from_bytes(spec.encode()[:8], "little") * 7 + layer & MASK) * 7
        + head * 3
        + part
        & MASK
    )
    words = sum(scramble(key + n & MASK) << 64 * n for n in range(row_bytes // 8))
    return words & (1 << 8 * (row_bytes - STAMP_BYTES)) - 1 | 1


def _whole_row(spec: str, row_bytes: int, head: int, layer: int, part: int) -> int:
    return (1 << 8 * row_bytes) - 1


class BlockContents:
    """The contents of one rank's blocks. Each is one little-endian integer with as many bytes as
    the block.

    A row is the product of its unit's key and its position's stamp; keys are so short that the
    product fills the row. So a block is a sum over its positions: each has the keys of all units,
    at its own place, times its stamp.
    """

    def __init__(self, placement: Placement) -> None:
        groups = placement.table.groups
        self._tokens = {g.name: placement.block_positions(g.name) for g in groups}
        places = {
            g.name: [p for p in placement.places.values() if p.spec.group == g.name] for g in groups
        }
        self._keys = {
            g: [_at(found, t, _unit_key) for t in range(self._tokens[g])]
            for g, found in places.items()
        }
        whole = {
            g: [_at(found, t, _whole_row) for t in range(self._tokens[g])]
            for g, found in places.items()
        }
        # For every interval of positions within a block: which bits of the block belong to them.
        self._masks = {
            g: {(i, j): sum(at[i:j]) for i in range(len(at)) for j in range(i + 1, len(at) + 1)}
            for g, at in whole.items()
        }

    def block(self, group: GroupName, stamps: Sequence[int]) -> int:
        """Return a whole block. stamps: by position, the digest of history and attempt; nothing was
        computed beyond them"""
        assert len(stamps) <= self._tokens[group], "a block holds no more positions"
        return sum(stamp * key for stamp, key in zip(stamps, self._keys[group], strict=False))

    def row(self, group: GroupName, at: int, stamp: int) -> int:
        """Return what position `at` adds to a block."""
        return stamp * self._keys[group][at]

    def mask(self, group: GroupName, first: int, past: int) -> int:
        """Return which bits of a block belong to its positions [first, past)."""
        return self._masks[group][first, past]

    def tokens_per_block(self, group: GroupName) -> int:
        """Return the number of positions in a block; a slot has one."""
        return self._tokens[group]
