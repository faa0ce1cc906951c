"""How a model's conversations become text: by its Jinja template, or by an encoder of ours.

A few models publish Python code instead of a template, or beside it. That code is never run; what
it does is written here, and a table says which models need it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from baton.gateway.deepseek_v32_chat import DeepseekV32Chat


class ChatEncoder(Protocol):
    """Renders conversations as the text of a prompt, which has its special tokens.

    Attributes:
        text: what it tells the model; it shows the format of tool calls and reasoning
    """

    text: str

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """Render a conversation.

        Args:
            messages: as in a request for a chat completion
            tools: the tools that the model may call, as in the request
            add_generation_prompt: end with the beginning of the assistant's next message
            continue_final_message: end inside the last message, which the answer continues
            kwargs: `chat_template_kwargs` of the request

        Raises:
            TemplateRefused: the model's format does not take these messages
        """
        ...


class SortedTools:
    """Gives tools to a template with their keys in alphabetical order, at every depth.

    The tokenizer of Kimi-K2 does so before it renders its template.
    """

    def __init__(self, inner: ChatEncoder) -> None:
        self._inner = inner
        self.text = inner.text

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        return self._inner.render(
            messages,
            tools=None if tools is None else [_sorted(tool) for tool in tools],
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **kwargs,
        )


# By `model_type` of config.json: makes the encoder of a checkpoint from its template, which may be
# missing. DeepSeek-V3.2-Exp has the same model_type as DeepSeek-V3.2, and a template.
ENCODERS: Mapping[str, Callable[[ChatEncoder | None], ChatEncoder | None]] = {
    "deepseek_v32": lambda template: template or DeepseekV32Chat(),
    "kimi_k2": lambda template: template and SortedTools(template),
}


def chat_encoder(model_type: str, template: ChatEncoder | None) -> ChatEncoder | None:
    """Return the encoder of a model, or None if its conversations cannot be rendered."""
    make = ENCODERS.get(model_type)
    return template if make is None else make(template)


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
