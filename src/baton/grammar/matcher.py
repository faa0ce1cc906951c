"""One grammar and the tokens that it has accepted, by llguidance.

llguidance's matcher raises nothing: after a grammar that it cannot build, a token that the grammar
does not allow, or too much work, it stays in an error state.
"""

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from baton.core.ids import TokenId
from baton.core.matchers import GrammarError
from baton.core.messages import Grammar
from baton.grammar.limits import limits
from baton.grammar.vocabulary import Vocabulary
from baton.grammar.wording import readable

Mask = NDArray[np.bool_]
SILENT = 0  # log level


class LlguidanceMatcher:
    """Implements core.matchers.Matcher. A grammar that cannot be built fails at the first use."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        self._size = vocabulary.size
        tokens = vocabulary.ending_with(grammar.ends)
        self._matcher = LLMatcher(tokens, grammar.text, log_level=SILENT, limits=limits())
        self._bits = np.zeros(-(-tokens.vocab_size // 32) * 4, dtype=np.uint8)

    def accept(self, tokens: Sequence[TokenId]) -> None:
        if not self._matcher.consume_tokens(list(tokens)):
            raise self._broken()

    def go_back(self, count: int) -> None:
        if not self._matcher.rollback(count):
            raise self._broken()

    def allowed(self) -> Mask:
        """Return bool [vocab]: which tokens may come next."""
        if self._matcher.is_error():
            raise self._broken()
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error():
            raise self._broken()
        return np.unpackbits(self._bits, count=self._size, bitorder="little").view(np.bool_)

    def forced(self) -> tuple[TokenId, ...]:
        """Return the tokens that must come next, as far as that is certain."""
        return tuple(map(TokenId, self._matcher.compute_ff_tokens()))

    def _broken(self) -> GrammarError:
        return GrammarError(
            f"the grammar cannot be followed: {readable(self._matcher.get_error())}"
        )
