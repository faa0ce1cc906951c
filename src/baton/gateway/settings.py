"""Settings of a gateway's HTTP side."""

import msgspec

from baton.core.errors import ConfigError
from baton.gateway.api_keys import ApiKey
from baton.gateway.generation_config import Defaults
from baton.gateway.response_formats import AUTO
from baton.shell.gateway_settings import CorsSettings


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and names, from the gateway's settings, its files of keys and the model.

    Attributes:
        model: the name that clients use
        api_keys: keys, one of which /v1 requires; empty = everybody is served
        max_body_bytes: larger request bodies are refused while they are read
        max_prompts: prompts in one completions request
        max_logprobs: most likely tokens reported beside each token
        max_pending_bytes: most unread answer bytes before the request of a slow client fails
        deadline_ms: upper limit for the time of a request (`--request-timeout`)
        grammar_deadline_s: how long a request waits until its grammar is checked
        retry_after_s: seconds that refused clients are told to wait
        defaults: sampling parameters of requests that do not name them
        tool_call_parser, reasoning_parser: names of formats in response_formats.toml, auto or none
        exclude_tools_when_tool_choice_none: the prompt does not show tools that must not be called
        cors: web pages of other origins that may use the service
        root_path: path under which a proxy serves this, e.g. "/api"; empty = none
        demo: whether clients on this machine may break the service's processes (demo.py)
        describes_itself: whether /openapi.json is served
        inline_chars: prompts up to this length are tokenized on the loop, longer ones on a thread
    """

    model: str
    name: str = "gateway"
    api_keys: tuple[ApiKey, ...] = ()
    max_body_bytes: int = 8 << 20
    max_prompts: int = 64
    max_logprobs: int = 20
    max_pending_bytes: int = 1 << 20
    deadline_ms: int = 600_000
    grammar_deadline_s: float = 5.0  # ten of the most expensive checks on an idle core
    retry_after_s: int = 1
    inline_chars: int = 2_000
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO
    exclude_tools_when_tool_choice_none: bool = False
    defaults: Defaults = Defaults()
    cors: CorsSettings = CorsSettings()
    root_path: str = ""
    describes_itself: bool = True
    demo: bool = False

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError(
                "the served model's name is empty; give a name of at least one character"
            )
