"""Checks a grammar before any worker gets it: builds it, and looks at its first masks."""

from baton.core.matchers import GrammarError
from baton.core.messages import Grammar
from baton.grammar.combining import check_combinations
from baton.grammar.embedded import schemas
from baton.grammar.matcher import LlguidanceMatcher
from baton.grammar.vocabulary import Vocabulary


def check(grammar: Grammar, vocabulary: Vocabulary) -> None:
    """Check that an answer can follow the grammar.

    What must come first is followed too, because some grammars grow beyond the limits only there.

    Raises:
        GrammarError: the grammar cannot be built, allows nothing, or makes too much work
    """
    if not grammar.ends:
        raise GrammarError("this model has no end token, so no answer could be complete")
    check_combinations(schemas(grammar.text))
    matcher = LlguidanceMatcher(grammar, vocabulary)
    if not matcher.allowed().any():
        raise GrammarError("the grammar allows no answer")
    if forced := matcher.forced():
        matcher.accept(forced)
        matcher.allowed()
