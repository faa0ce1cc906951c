"""The chat templates of a model, as its files or the operator give them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baton.core.errors import ConfigError
from baton.gateway.chat_encoder import ChatEncoder, chat_encoder
from baton.gateway.template import ChatTemplate, TemplateRefused
from baton.vocabulary.json_file import read_object

TOOL_USE = "tool_use"  # the name of a template that is used where a request has tools


class Templates:
    """The templates of one model.

    Attributes:
        text: their text; it shows in which format the model writes tool calls and reasoning
    """

    def __init__(
        self, sources: Mapping[str, str], tokens: Mapping[str, str], *, model_type: str
    ) -> None:
        self._templates: dict[str, ChatEncoder] = {}
        for name in ("default", TOOL_USE):
            template = ChatTemplate(sources[name], tokens) if name in sources else None
            if name != TOOL_USE or template is not None:
                encoder = chat_encoder(model_type, template)
                self._templates |= {} if encoder is None else {name: encoder}
        self.text = "\n".join(encoder.text for encoder in self._templates.values())

    def choose(self, *, tools: bool) -> ChatEncoder:
        """Return the template of a request with or without tools.

        Raises:
            TemplateRefused: the model has none
        """
        names = (TOOL_USE, "default") if tools else ("default",)
        for name in names:
            if name in self._templates:
                return self._templates[name]
        raise TemplateRefused("this model has no chat template; use /v1/completions")


def read_templates(
    directory: Path, settings: Mapping[str, Any], *, chosen: Path | None
) -> dict[str, str]:
    """Return the sources of a model's templates by name.

    `chosen` (`--chat-template`) comes before chat_template.jinja, that before chat_template.json,
    and that before tokenizer_config.json, which is `settings`.

    Raises:
        ConfigError: `chosen` or a file of the model cannot be read, or templates are not texts
    """
    if chosen is not None:
        return {"default": _text(chosen, f"--chat-template {chosen}")}
    more = {
        path.stem: _text(path, str(path))
        for path in sorted((directory / "additional_chat_templates").glob("*.jinja"))
    }
    file = directory / "chat_template.jinja"
    if file.is_file():
        return more | {"default": _text(file, str(file))}
    found = read_object(directory / "chat_template.json").get(
        "chat_template", settings.get("chat_template")
    )
    if isinstance(found, list):
        return more | dict(_named(entry, directory) for entry in found)
    return more | {"default": found} if isinstance(found, str) else more


def _text(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{what} cannot be read: {e}") from e


def _named(entry: object, directory: Path) -> tuple[str, str]:
    match entry:
        case {"name": str(name), "template": str(template)}:
            return name, template
    raise ConfigError(
        f"{directory}: a chat_template in a list is {str(entry)[:80]}; each must be an object with "
        "the texts `name` and `template`"
    )
