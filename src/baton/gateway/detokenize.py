"""Token ids to text, one token at a time.

A character's bytes may be spread over several tokens: nothing is shown before the character is complete. What never
completes (a model may say any bytes) is shown as U+FFFD at the end, or after HOLD_TOKENS tokens that showed nothing.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer as Vocabulary
from tokenizers.decoders import DecodeStream

CONTEXT_TOKENS = 8  # of the prompt's end: decoders of some vocabularies strip a space only at the very beginning
HOLD_TOKENS = 64  # each held token is decoded again with each further one, so their number is bounded
BROKEN = "\ufffd"


class OwnTexts(dict[int, str | None]):
    """By token: the text that it has wherever it stands, or None if that depends on others. Filled as tokens are asked for.

    Byte-level decoders put the bytes of tokens one behind the other, so a token of whole characters has a text of its own. Other
    decoders look at more than that (spaces at the beginning, byte tokens): none of their tokens has one.
    """

    def __init__(self, vocabulary: Vocabulary, special: frozenset[int], *, byte_level: bool) -> None:
        self._vocabulary, self._special, self._byte_level = vocabulary, special, byte_level

    def __missing__(self, token: int) -> str | None:
        found = self[token] = self._find(token)
        return found

    def _find(self, token: int) -> str | None:
        if token in self._special:
            return ""
        text = self._vocabulary.decode([token], skip_special_tokens=False) if self._byte_level else BROKEN
        return None if BROKEN in text else text


class Detokenizer:
    """The text of one growing sequence. The sum of all returned pieces is the text, special tokens left out."""

    __slots__ = ("_context", "_held", "_own", "_special", "_stream", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, own: OwnTexts, special: frozenset[int], prompt: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._own = own
        self._special = special
        self._held: list[int] = []  # tokens that have shown nothing yet
        self._restart([t for t in prompt[-CONTEXT_TOKENS:] if t not in special])

    def _restart(self, context: list[int]) -> None:
        if self._vocabulary.decode(context).endswith(BROKEN):
            context = []
        self._context = context
        self._stream = DecodeStream(ids=context, skip_special_tokens=True)

    def push(self, token: int) -> str:
        """Text that this token completes, perhaps none."""
        own = self._own[token]
        if own is not None and not self._held:
            return own  # the stream below need not know: what it has is complete, and so is this
        if token in self._special:
            return ""
        self._held.append(token)
        try:
            text = self._stream.step(self._vocabulary, token)
        except Exception as refusal:  # the binding raises this bare class
            if not str(refusal).startswith("Invalid prefix"):
                raise
            return self.flush()  # a broken byte changed how the one shown before it reads
        if text is None:
            return self.flush() if len(self._held) >= HOLD_TOKENS else ""
        self._context, self._held = self._held, []
        return text

    def flush(self) -> str:
        """What is held back, complete or not."""
        if not self._held:
            return ""
        before = self._vocabulary.decode(self._context)
        whole = self._vocabulary.decode(self._context + self._held)
        text = whole[len(before) :] if whole.startswith(before) else self._vocabulary.decode(self._held)
        held, self._held = self._held, []
        self._restart(held)
        return text
