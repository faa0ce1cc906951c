"""The text let through never depends on how it was cut, and nothing of a stop string is ever
shown."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.gateway.stops import StopFinder

letters = st.text(alphabet="ab", max_size=24)
words = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4)


def brute(text: str, stops: list[str], *, include: bool = False) -> tuple[str, str | None]:
    """Character by character: the stop completed first, the longest of those completed together."""
    for end in range(1, len(text) + 1):
        hits = [s for s in stops if text[:end].endswith(s)]
        if hits:
            longest = max(hits, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


def cut(text: str, cuts: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(c % (len(text) + 1) for c in cuts)})
    return [text[a:b] for a, b in pairwise(borders)]


@given(letters, words, st.lists(st.integers(0, 100), max_size=8))
def test_equals_brute_force_however_the_text_is_cut(text, stops, cuts):
    expected, stop = brute(text, stops)
    finder, shown = StopFinder(stops), ""
    for piece in cut(text, cuts):
        shown += finder.push(piece)
        assert expected.startswith(shown), "something was shown that a stop string swallows"
        if finder.found is not None:
            break
    else:
        shown += finder.flush()
    assert (shown, finder.found) == (expected, stop)


@given(letters, words, st.lists(st.integers(0, 100), max_size=8))
def test_a_stop_that_is_included_is_shown_and_nothing_waits_for_it(text, stops, cuts):
    expected, stop = brute(text, stops, include=True)
    finder, shown, heard = StopFinder(stops, include=True), "", ""
    for piece in cut(text, cuts):
        heard += piece
        shown += finder.push(piece)
        assert shown == expected[: len(heard)]
        if finder.found is not None:
            break
    assert (shown + finder.flush(), finder.found) == (expected, stop)


@given(letters, words)
def test_holds_back_no_more_than_could_begin_a_stop(text, stops):
    finder = StopFinder(stops)
    shown = finder.push(text)
    if finder.found is None:
        held = text[len(shown) :]
        assert held == "" or any(s.startswith(held) and s != held for s in stops)


@pytest.mark.parametrize(
    ("pieces", "stops", "shown"),
    [
        (["Hello EN", "D and more"], ["END"], "Hello "),
        (["Hello EN", "DURE"], ["ENDIVE"], "Hello ENDURE"),
        (["abab", "abc"], ["ababc"], "ab"),
        (["x\n", "\nUser:"], ["\n\nUser:", "\n\n"], "x"),
        (["🎉🎉"], ["🎉"], ""),
        (["xba"], ["a", "ba"], "x"),  # of those completed together the longest
        (["xabc"], ["abc", "b"], "xa"),  # the one completed first
    ],
)
def test_examples(pieces, stops, shown):
    finder, got = StopFinder(stops), ""
    for piece in pieces:
        got += finder.push(piece)
        if finder.found is not None:
            break
    else:
        got += finder.flush()
    assert got == shown
