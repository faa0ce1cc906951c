"""`--speculative-config`: vLLM's shape and names, and errors that say what is wrong."""

import pytest

from baton.core.errors import ConfigError
from baton.core.scheduler.lookup_rule import LookupRule
from baton.ports.speculative_config import FLAG, SpeculativeConfig


def rule(text: str) -> LookupRule | None:
    return SpeculativeConfig.read(FLAG, text).rule


def test_nothing_is_drafted_unless_asked_for() -> None:
    assert SpeculativeConfig().rule is None


def test_suffix_compares_many_tokens_and_drafts_as_many_as_are_the_same() -> None:
    assert rule('{"method": "suffix"}') == LookupRule(drafts=24, shortest=2, longest=24, factor=1.0)
    said = (
        '{"method": "suffix", "num_speculative_tokens": 4, "suffix_decoding_max_tree_depth": 10, '
        '"suffix_decoding_max_spec_factor": 2}'
    )
    assert rule(said) == LookupRule(drafts=4, shortest=2, longest=10, factor=2.0)


@pytest.mark.parametrize(
    ("said", "shortest", "longest"),
    [
        ("", 5, 5),
        (', "prompt_lookup_max": 4', 4, 4),
        (', "prompt_lookup_min": 2', 2, 2),
        (', "prompt_lookup_max": 4, "prompt_lookup_min": 2', 2, 4),
    ],
)
def test_ngram_drafts_as_many_as_it_may(said: str, shortest: int, longest: int) -> None:
    text = f'{{"method": "ngram", "num_speculative_tokens": 3{said}}}'
    assert rule(text) == LookupRule(drafts=3, shortest=shortest, longest=longest, factor=3.0)


@pytest.mark.parametrize("method", ["mtp", "deepseek_mtp", "qwen3_next_mtp", "qwen3_5_mtp"])
@pytest.mark.parametrize(("more", "drafts"), [("", 1), (', "num_speculative_tokens": 3', 3)])
def test_a_draft_layer_drafts_one_token_unless_told(method: str, more: str, drafts: int) -> None:
    found = SpeculativeConfig.read(FLAG, f'{{"method": "{method}"{more}}}')
    assert (found.draft_layer, found.rule) == (drafts, None)


def test_what_is_looked_up_needs_no_draft_layer() -> None:
    assert SpeculativeConfig().draft_layer == 0
    assert SpeculativeConfig.read(FLAG, '{"method": "suffix"}').draft_layer == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("suffix", "this is not JSON"),
        ("[]", "write a JSON object"),
        ("{}", "method None: there is ngram, suffix"),
        ('{"method": "eagle"}', "method 'eagle': there is ngram, suffix"),
        ('{"method": "suffix", "model": "x"}', "'model' is no key of it"),
        ('{"method": "ngram"}', "method ngram needs num_speculative_tokens"),
        ('{"method": "suffix", "num_speculative_tokens": 0}', "0: it must lie between 1 and 24"),
        ('{"method": "suffix", "num_speculative_tokens": 25}', "25: it must lie between 1 and 24"),
        ('{"method": "suffix", "num_speculative_tokens": "many"}', "Expected `int | null`"),
        ('{"method": "suffix", "suffix_decoding_max_spec_factor": 0}', "it must be more than 0"),
        (
            '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 4, '
            '"prompt_lookup_max": 2}',
            "prompt_lookup_min 4 is more than prompt_lookup_max 2",
        ),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="--speculative-config") as error:
        SpeculativeConfig.read(FLAG, text)
    assert said in str(error.value)
