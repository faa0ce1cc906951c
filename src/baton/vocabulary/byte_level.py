"""Byte-level BPE from ranks: the form that tiktoken's files have, as a `tokenizers` object.

tiktoken stores the bytes of each token with its rank, and merges the two neighbours whose
concatenation has the lowest rank. `tokenizers` stores pairs, and merges the pair that comes first.
The same merges follow if every split of a token into two tokens is a pair, in the order of the
rank of the whole. Of all splits of one token only one can occur: no merge of a text crosses the
ends of a token in its result, so the merges inside are always those of the token's bytes alone.
"""

import binascii
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers


def _byte_alphabet() -> dict[str, int]:
    """Map the characters of byte-level BPE to bytes.

    Printable bytes are written as themselves, the others as characters from U+0100 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()
CHARACTER_OF = {byte: character for character, byte in BYTE_ALPHABET.items()}


def ranks_of(tokens: Sequence[str]) -> dict[bytes, int]:
    """Return the rank of each token: its place in a list of tokens in base64.

    Raises:
        ValueError: a token is not base64 or occurs twice, or a single byte is missing
    """
    try:
        ranks = {b64decode(token, validate=True): rank for rank, token in enumerate(tokens)}
    except binascii.Error as e:
        raise ValueError(f"a token is not base64: {e}") from e
    if len(ranks) != len(tokens):
        raise ValueError(f"{len(tokens) - len(ranks)} tokens occur twice")
    for byte in range(256):
        if bytes([byte]) not in ranks:
            raise ValueError(f"no token is the single byte 0x{byte:02x}")
    return ranks


def byte_level_bpe(
    ranks: Mapping[bytes, int],
    *,
    first: int,
    added: Mapping[int, AddedToken],
    splits: Sequence[pre_tokenizers.PreTokenizer],
) -> Tokenizer:
    """Make a tokenizer that gives the same ids as tiktoken.

    Args:
        ranks: the bytes of all tokens but the added ones; a token's id is `first` + its rank
        first: the lowest id of `ranks`
        added: tokens that are recognised in a text before it is split, by id
        splits: what splits a text into words; merges do not cross their borders
    """
    names = {token: _spelled(token) for token in ranks}
    # an added token takes precedence over a token of the same text: no text is encoded as the other
    vocab = {names[token]: first + rank for token, rank in ranks.items()} | {
        token.content: i for i, token in added.items()
    }
    merges = [(names[left], names[right]) for left, right in _merges(ranks)]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([token for _, token in sorted(added.items())])
    return tokenizer


def words(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Split a text into the matches of a regular expression."""
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    for token in sorted(ranks, key=ranks.__getitem__):
        for middle in range(1, len(token)):
            left, right = token[:middle], token[middle:]
            if left in ranks and right in ranks:
                yield left, right


def _spelled(token: bytes) -> str:
    return "".join(CHARACTER_OF[byte] for byte in token)
