"""The model's vocabulary as llguidance needs it: built from the tokenizer, once for each set of end
tokens."""

from collections.abc import Callable

from llguidance import LLTokenizer

from baton.core.ids import TokenId


class Vocabulary:
    """The vocabulary of one model.

    Args:
        read: returns the text of the model's tokenizer.json; called when the first grammar comes
        size: how many logits the model has
    """

    def __init__(self, read: Callable[[], str], *, size: int) -> None:
        self._read, self.size = read, size
        self._built: dict[tuple[TokenId, ...], LLTokenizer] = {}

    def is_built(self, ends: tuple[TokenId, ...]) -> bool:
        """Whether `ending_with` returns at once."""
        return ends in self._built

    def ending_with(self, ends: tuple[TokenId, ...]) -> LLTokenizer:
        """Return the vocabulary with these end tokens. Takes about a second for 150,000 tokens when
        it is built."""
        if ends not in self._built:
            self._built[ends] = LLTokenizer(self._read(), n_vocab=self.size, eos_token=list(ends))
        return self._built[ends]
