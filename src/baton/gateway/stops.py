"""Stop strings in streamed text.

Text is let through as soon as no stop string could begin in it any more:

    heard so far   Hello wor|ld. EN        stop "END"
    let through    Hello world. |
    held back                   EN         the longest suffix that begins a stop string

The stop string that is *completed* first ends the text, so the result does not depend on how the text was cut into pieces;
of several completed by the same character the longest counts.
"""

from collections.abc import Sequence


class _Stop:
    """One stop string and how much of it the text's end spells (Knuth-Morris-Pratt, so a character costs O(1))."""

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
        """Advance over text[:end]; the end of the first full match, or None."""
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
    """Finds the first of some non-empty stop strings in text that arrives in pieces."""

    def __init__(self, words: Sequence[str]) -> None:
        self._stops = [_Stop(word) for word in words]
        self._held = ""
        self.found: str | None = None  # the stop string that ended the text

    def push(self, text: str) -> str:
        """Take the next piece; returns what may be shown now. Nothing may be pushed after a stop was found."""
        assert self.found is None
        if not self._stops or not text:
            return text
        first = len(text)
        for stop in self._stops:
            end = stop.scan(text, first)
            if end is not None and (end < first or self.found is None or len(stop.word) > len(self.found)):
                first, self.found = end, stop.word
        whole = self._held + text
        if self.found is not None:
            end = len(self._held) + first - len(self.found)
            self._held = ""
            return whole[:end]
        keep = max(stop.matched for stop in self._stops)
        shown = len(whole) - keep
        self._held = whole[shown:]
        return whole[:shown]

    def flush(self) -> str:
        """The text has ended: what was held back."""
        held, self._held = self._held, ""
        return held
