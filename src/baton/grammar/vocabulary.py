"""The model's vocabulary as llguidance needs it: built from the tokenizer, once for each set of end
tokens."""

from collections.abc import Callable

from llguidance import LLTokenizer

from baton.core.ids import TokenId
from baton.core.matchers import GrammarError


class Vocabulary:
    """The vocabulary of one model.

    Args:
        read: returns the text of the model's tokenizer.json; called when the first grammar comes
        size: how many logits the model has; the tokenizer may have fewer tokens, or more (reserved
            ones, as Kimi's has)
    """

    def __init__(self, read: Callable[[], str], *, size: int) -> None:
        self._read, self.size = read, size
        self._built: dict[tuple[TokenId, ...], LLTokenizer] = {}

    def ending_with(self, ends: tuple[TokenId, ...]) -> LLTokenizer:
        """Return the vocabulary with these end tokens.

        When it is first asked for, it is built. That takes 1.5 s for 150,000 tokens, in which no
        other thread of the process runs, so a process asks for the usual ones when it starts.

        Raises:
            GrammarError: llguidance cannot take this vocabulary, so no grammar can be followed
        """
        if ends not in self._built:
            self._built[ends] = self._build(ends)
        return self._built[ends]

    def _build(self, ends: tuple[TokenId, ...]) -> LLTokenizer:
        text = self._read()
        try:
            return LLTokenizer(text, n_vocab=self.size, eos_token=list(ends))
        except ValueError as e:
            refused = e
        try:
            built = LLTokenizer(text, eos_token=list(ends))
        except ValueError:
            built = None
        if built is None or built.vocab_size <= self.size:  # its size was not the reason
            raise GrammarError(
                f"the model's vocabulary cannot follow a grammar: {refused}"
            ) from refused
        return built
