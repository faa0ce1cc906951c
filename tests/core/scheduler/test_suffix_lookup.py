"""What is drafted: the tokens after the longest earlier occurrence of a text's end."""

from hypothesis import given
from hypothesis import strategies as st

from baton.core.scheduler.lookup_rule import LookupRule
from baton.core.scheduler.suffix_lookup import KEPT, Answers, SuffixLookup

RULE = LookupRule(drafts=8, shortest=2, longest=6)
RULES = st.sampled_from([RULE, LookupRule(drafts=5, shortest=1, longest=3, factor=2.0)])
TEXT = st.lists(st.integers(0, 3), max_size=40)


def oracle(text: list[int], others: list[list[int]], rule: LookupRule, most: int) -> list[int]:
    """Compare every length at every place, the longest and the latest first; the text itself
    before others."""
    for length in range(min(rule.longest, len(text)), rule.shortest - 1, -1):
        end = text[-length:]
        for at in range(len(text) - 1, length - 1, -1):  # where it would go on
            if text[at - length : at] == end:
                found = text[at:]
                count = min(most, rule.drafts, int(length * rule.factor))
                return [found[n % len(found)] for n in range(count)]
        for other in reversed(others):
            for at in range(len(other) - 1, length - 1, -1):
                if other[at - length : at] == end:
                    return other[at:][: min(most, rule.drafts, int(length * rule.factor))]
    return []


@given(TEXT, st.integers(0, 9), RULES)
def test_the_longest_and_then_the_latest_occurrence_counts(text, most, rule) -> None:
    lookup = SuffixLookup(rule)
    lookup.append(text)
    assert list(lookup.draft(most)) == oracle(text, [], rule, most)


@given(TEXT, st.lists(TEXT, max_size=4), st.integers(0, 9), RULES)
def test_earlier_answers_count_where_more_is_the_same_there(text, others, most, rule) -> None:
    answers = Answers()
    for other in others:
        answers.add(other)
    lookup = SuffixLookup(rule, answers)
    lookup.append(text)
    assert list(lookup.draft(most)) == oracle(text, others, rule, most)


def test_what_is_kept_of_earlier_answers_is_bounded() -> None:
    answers = Answers()
    for n in range(3):
        answers.add([n] * (KEPT // 2))
    assert len(answers.tokens) == KEPT
    lookup = SuffixLookup(RULE, answers)
    lookup.append([0, 0])
    assert lookup.draft(4) == (), "it has gone"
    lookup.append([1, 1])
    assert lookup.draft(4) == (1,)


@given(st.lists(st.lists(st.integers(0, 70_000), max_size=300), max_size=6))
def test_a_text_that_grows_is_one_that_was_there_at_once(parts) -> None:
    whole, grown = SuffixLookup(RULE), SuffixLookup(RULE)
    for part in parts:
        grown.append(part)
    text = [token for part in parts for token in part]
    whole.append(text)
    assert len(grown) == len(text)
    assert grown.draft(8) == whole.draft(8)


def test_a_text_that_repeats_itself_is_expected_to_go_on() -> None:
    lookup = SuffixLookup(LookupRule(drafts=8, factor=4.0))
    lookup.append([9, 1, 2, 1, 2, 1])
    assert lookup.draft(8) == (2, 1, 2, 1, 2, 1, 2, 1)
