"""What became of a request that was asked of a fleet."""

import msgspec


class ServedRequest(msgspec.Struct, kw_only=True):
    """One request. Times in microseconds.

    Attributes:
        at: when it came
        prompt_tokens: of its prompt
        asked: tokens that its answer is to have
        first, last: when its first and its last token came; None if none did
        tokens: that came
        failure: why it was not answered to its end; empty if it was
    """

    at: int
    prompt_tokens: int
    asked: int
    first: int | None = None
    last: int | None = None
    tokens: int = 0
    failure: str = ""

    @property
    def ttft_us(self) -> int | None:
        """The time to the first token; None if there was none."""
        return None if self.first is None else self.first - self.at

    @property
    def tpot_us(self) -> float:
        """The mean time of each token after the first; 0 for an answer of one token."""
        if self.first is None or self.last is None or self.tokens < 2:
            return 0.0
        return (self.last - self.first) / (self.tokens - 1)
