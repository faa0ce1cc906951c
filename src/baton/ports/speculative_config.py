"""The operator's settings of speculative decoding (`--speculative-config`), in vLLM's shape and
with its names.

Tokens are looked up in the text so far, or guessed by the checkpoint's own draft layer; there is no
draft model beside it.
"""

from typing import Any, Literal

import msgspec

from baton.core.errors import ConfigError
from baton.core.scheduler.lookup_rule import MOST_DRAFTS, LookupRule
from baton.ports.written import structure

FLAG = "--speculative-config"
EXAMPLE = '\'{"method": "suffix"}\''
# the draft layer of a checkpoint; vLLM knows all these names
LAYER = ("mtp", "deepseek_mtp", "qwen3_next_mtp", "qwen3_5_mtp")
METHODS = ("ngram", "suffix", *LAYER)
MOST = MOST_DRAFTS  # of everything that is counted in tokens
NGRAM = 5  # vLLM's default
SHORTEST = 2  # tokens that must have occurred before, with `suffix`


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are drafted.

    Attributes:
        method: ngram drafts what followed the last few tokens before; suffix compares as many as it
            can, and drafts the more, the more are the same; mtp asks the checkpoint's draft layer;
            None = nothing is drafted
        num_speculative_tokens: drafts of a request in a step at most; ngram needs it; with mtp 1 if
            it is not given, as the layer is trained for one
        prompt_lookup_min, prompt_lookup_max: ngram: tokens that must be the same, and that are
            compared
        suffix_decoding_max_tree_depth: suffix: tokens that are compared at most
        suffix_decoding_max_spec_factor: suffix: drafts for each token that is the same
    """

    method: (
        Literal["ngram", "suffix", "mtp", "deepseek_mtp", "qwen3_next_mtp", "qwen3_5_mtp"] | None
    ) = None
    num_speculative_tokens: int | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    suffix_decoding_max_tree_depth: int = MOST_DRAFTS
    suffix_decoding_max_spec_factor: float = 1.0

    def __post_init__(self) -> None:
        counts = (
            ("num_speculative_tokens", self.num_speculative_tokens),
            ("prompt_lookup_min", self.prompt_lookup_min),
            ("prompt_lookup_max", self.prompt_lookup_max),
            ("suffix_decoding_max_tree_depth", self.suffix_decoding_max_tree_depth),
        )
        for name, value in counts:
            if value is not None and not 1 <= value <= MOST:
                raise ConfigError(f"{FLAG}: {name} {value}: it must lie between 1 and {MOST}")
        if not 0 < self.suffix_decoding_max_spec_factor <= MOST:
            raise ConfigError(
                f"{FLAG}: suffix_decoding_max_spec_factor {self.suffix_decoding_max_spec_factor}: "
                f"it must be more than 0 and at most {MOST}"
            )
        if self.method == "ngram" and self.num_speculative_tokens is None:
            raise ConfigError(
                f"{FLAG}: method ngram needs num_speculative_tokens, e.g. "
                '\'{"method": "ngram", "num_speculative_tokens": 5}\''
            )
        least, most = self._ngram
        if least > most:
            raise ConfigError(
                f"{FLAG}: prompt_lookup_min {least} is more than prompt_lookup_max {most}"
            )

    @property
    def _ngram(self) -> tuple[int, int]:
        """Return the least and the largest number of tokens of an n-gram. Each is the other's
        default."""
        least, most = self.prompt_lookup_min, self.prompt_lookup_max
        if least is None and most is None:
            return NGRAM, NGRAM
        return least or most or NGRAM, most or least or NGRAM

    @property
    def rule(self) -> LookupRule | None:
        """What is looked up; None if nothing is."""
        drafts = self.num_speculative_tokens or MOST_DRAFTS
        if self.method == "suffix":
            return LookupRule(
                drafts=drafts,
                shortest=SHORTEST,
                longest=max(SHORTEST, self.suffix_decoding_max_tree_depth),
                factor=self.suffix_decoding_max_spec_factor,
            )
        if self.method == "ngram":
            least, most = self._ngram
            return LookupRule(drafts=drafts, shortest=least, longest=most, factor=float(drafts))
        return None

    @property
    def draft_layer(self) -> int:
        """How many tokens the checkpoint's draft layer drafts for a row; 0 = it is not used."""
        return (self.num_speculative_tokens or 1) if self.method in LAYER else 0

    @staticmethod
    def read(flag: str, text: str) -> "SpeculativeConfig":
        """Parse JSON.

        Raises:
            ConfigError: it is no JSON object, has a key that there is not, or a wrong value
        """

        def check(said: dict[str, Any]) -> None:
            if said.get("method") not in METHODS:
                raise ConfigError(
                    f"{flag}: method {said.get('method')!r}: there is {', '.join(METHODS)}; drafts "
                    "come from the text so far or the model's own layer, and not from another model"
                )

        return structure(flag, text, SpeculativeConfig, example=EXAMPLE, check=check)
