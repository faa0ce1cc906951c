"""Settings of a gateway's HTTP side."""

import msgspec

from baton.core.errors import ConfigError
from baton.gateway.generation_config import Defaults


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and names, from the gateway's settings, its files of keys and the model.

    Attributes:
        model: the name that clients use
        api_keys: bearer tokens, one of which /v1 requires; empty = everybody is served
        max_body_bytes: larger request bodies are refused while they are read
        max_prompts: prompts in one completions request
        max_logprobs: most likely tokens reported beside each token
        max_pending_bytes: most unread answer bytes before the request of a slow client fails
        deadline_ms: upper limit for the time of a request (`--request-timeout`)
        retry_after_s: seconds that refused clients are told to wait
        defaults: sampling parameters of requests that do not name them
        inline_chars: prompts up to this length are tokenized on the loop, longer ones on a thread
    """

    model: str
    api_keys: tuple[str, ...] = ()
    max_body_bytes: int = 8 << 20
    max_prompts: int = 64
    max_logprobs: int = 20
    max_pending_bytes: int = 1 << 20
    deadline_ms: int = 600_000
    retry_after_s: int = 1
    inline_chars: int = 2_000
    defaults: Defaults = Defaults()

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError(
                "the served model's name is empty; give a name of at least one character"
            )
        if "" in self.api_keys:
            raise ConfigError(
                "an API key is empty; give keys of at least one character or none at all"
            )
