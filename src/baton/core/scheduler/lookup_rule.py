"""How tokens are drafted, as an operator chooses it."""

import msgspec

MOST_DRAFTS = 24  # of one request in a step


class LookupRule(msgspec.Struct, frozen=True, kw_only=True):
    """What is drafted.

    Attributes:
        drafts: tokens at most, no more than MOST_DRAFTS
        shortest: tokens that must have occurred before
        longest: tokens that are compared at most
        factor: drafts for each token that has occurred before
    """

    drafts: int
    shortest: int = 2
    longest: int = 32
    factor: float = 1.0
