"""Finds stop strings in streamed text.

Text is let through as soon as no stop string can begin in it:

    heard so far   Hello wor|ld. EN        stop "END"
    let through    Hello world. |
    held back                   EN         the longest suffix that begins a stop string

The stop string that is *completed* first ends the text, so the result does not depend on how the
text is divided into pieces. If one character completes several, the longest counts.
"""

from collections.abc import Sequence


class _Stop:
    """One stop string, matched by Knuth-Morris-Pratt: amortised O(1) for each character."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.matched = 0
        self._fall = [0] * len(word)
        k = 0
        for i in range(1, len(word)):
            while k and word[i] != word[k]:
                k = self._fall[k - 1]
            k += word[i] == word[k]
            self._fall[i] = k

    def scan(self, text: str, end: int) -> int | None:
        """Advance over text[:end]; returns the end of the first full match, or None."""
        word, fall, k = self.word, self._fall, self.matched
        if k == 0 and word[0] not in text:
            return None
        for i in range(end):
            c = text[i]
            while k and word[k] != c:
                k = fall[k - 1]
            if word[k] == c:
                k += 1
                if k == len(word):
                    return i + 1
        self.matched = k
        return None


class StopFinder:
    """Finds the first of some non-empty stop strings in text that arrives in pieces.

    With `include` the text ends behind the stop string, and nothing has to be held back.
    """

    def __init__(self, words: Sequence[str], *, include: bool = False) -> None:
        self._stops = [_Stop(word) for word in words]
        self._include = include
        self._held = ""
        self.found: str | None = None  # the stop string that ended the text

    def push(self, text: str) -> str:
        """Take the next piece; returns the text to show
        now. Do not call it after a stop was found."""
        assert self.found is None
        if not self._stops or not text:
            return text
        first = len(text)
        for stop in self._stops:
            end = stop.scan(text, first)
            if end is not None and (
                end < first or self.found is None or len(stop.word) > len(self.found)
            ):
                first, self.found = end, stop.word
        whole = self._held + text
        if self.found is not None:
            end = len(self._held) + first - (0 if self._include else len(self.found))
            self._held = ""
            return whole[:end]
        keep = 0 if self._include else max(stop.matched for stop in self._stops)
        shown = len(whole) - keep
        self._held = whole[shown:]
        return whole[:shown]

    def flush(self) -> str:
        """Return the text that is held back; call it when the text has ended."""
        held, self._held = self._held, ""
        return held
