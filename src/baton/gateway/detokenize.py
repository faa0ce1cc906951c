"""Turns token ids into text, one token at a time.

The bytes of a character may be spread over several tokens; the character is returned when it is
complete. Bytes that never become a character (a model may generate any bytes) are returned as
U+FFFD at the end, or after HOLD_TOKENS tokens without text.
"""

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer as Vocabulary
from tokenizers.decoders import DecodeStream

CONTEXT_TOKENS = 8  # of the prompt's end: some decoders strip a space at the beginning of a text
HOLD_TOKENS = 64  # held tokens are all decoded again with each new one, so their number is bounded
BROKEN = "\ufffd"


class OwnTexts(dict[int, str | None]):
    """Maps a token to its text, or to None if the text depends on other tokens. Filled on demand.

    `special` are the tokens that have no text.

    Byte-level decoders concatenate the bytes of tokens, so a token of whole characters has the same
    text everywhere. The text from other decoders depends on neighbours (spaces at the beginning,
    byte tokens), so all their tokens map to None.
    """

    def __init__(
        self, vocabulary: Vocabulary, special: frozenset[int], *, byte_level: bool
    ) -> None:
        self._vocabulary, self.special, self._byte_level = vocabulary, special, byte_level

    def keeping(self, kept: frozenset[int]) -> "OwnTexts":
        """Return the same for a text in which the special tokens `kept` are shown."""
        return OwnTexts(self._vocabulary, self.special - kept, byte_level=self._byte_level)

    def __missing__(self, token: int) -> str | None:
        found = self[token] = self._find(token)
        return found

    def _find(self, token: int) -> str | None:
        if token in self.special:
            return ""
        text = (
            self._vocabulary.decode([token], skip_special_tokens=False)
            if self._byte_level
            else BROKEN
        )
        return None if BROKEN in text else text


class Detokenizer:
    """The text of one growing sequence.

    All returned pieces together are the text, without the special tokens of `own`.
    """

    __slots__ = ("_context", "_held", "_own", "_stream", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, own: OwnTexts, prompt: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._own = own
        self._held: list[int] = []  # tokens without text so far
        self._restart([t for t in prompt[-CONTEXT_TOKENS:] if t not in own.special])

    def _restart(self, context: list[int]) -> None:
        if self._decode(context).endswith(BROKEN):
            context = []
        self._context = context
        # `push` leaves special tokens out, so those that come here are to be shown
        self._stream = DecodeStream(ids=context, skip_special_tokens=False)

    def _decode(self, tokens: list[int]) -> str:
        return self._vocabulary.decode(tokens, skip_special_tokens=False)

    def push(self, token: int) -> str:
        """Return the text that this token completes; may be empty."""
        own = self._own[token]
        if own is not None and not self._held:
            return own  # the decoder's stream can skip this token: it holds nothing incomplete
        if token in self._own.special:
            return ""
        self._held.append(token)
        try:
            text = self._stream.step(self._vocabulary, token)
        except Exception as refusal:  # the binding raises the base class itself
            if not str(refusal).startswith("Invalid prefix"):
                raise
            return self.flush()  # an invalid byte changed the text returned before
        if text is None:
            return self.flush() if len(self._held) >= HOLD_TOKENS else ""
        self._context, self._held = self._held, []
        return text

    def flush(self) -> str:
        """Return the text that is held back, complete or not."""
        if not self._held:
            return ""
        before = self._decode(self._context)
        whole = self._decode(self._context + self._held)
        text = whole[len(before) :] if whole.startswith(before) else self._decode(self._held)
        held, self._held = self._held, []
        self._restart(held)
        return text


class UnspacedDetokenizer(Detokenizer):
    """A detokenizer for `spaces_between_special_tokens` = false.

    An added token that follows another one is shown as it is; some decoders write a space there.
    """

    __slots__ = ("_added", "_after_added")

    def __init__(
        self,
        vocabulary: Vocabulary,
        own: OwnTexts,
        prompt: Sequence[int],
        *,
        added: Mapping[int, str],
    ) -> None:
        super().__init__(vocabulary, own, prompt)
        self._added = added
        self._after_added = False

    def push(self, token: int) -> str:
        """Return the text that this token completes; may be empty."""
        text, bare = super().push(token), self._added.get(token)
        follows, self._after_added = self._after_added, bare is not None
        return bare if bare is not None and follows else text
