"""Makes flags of settings structs: every field with a `Flag` becomes a parameter of the command, as typer wants it.

    @with_flags(WorkerSettings)
    def worker(model: opt.Model = opt.DEFAULT_MODEL, *, given: Given) -> None:
        settings = given.make(WorkerSettings, model=model, name=given.get("name") or "worker", ...)

Typer has no notion of a struct: it reads a function's signature, so the command gets one that is put together here.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from baton.core.errors import ConfigError
from baton.ports.flag import Setting, settings_of

S = TypeVar("S", bound=msgspec.Struct)
Command = Callable[..., None]


class Given:
    """What holds for one command: what the command line and its config file say, and defaults. By name of the flag."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a flag; `default` where nobody gave it, and its field has no default that --help shows as a value."""
        return self._values.get(key, default)

    def make(self, struct: type[S], **decided: Any) -> S:
        """The settings: fields in `decided`, which no flag overrides, and the others as given. Raises ConfigError."""
        fields = dict(decided)
        for each in msgspec.structs.fields(struct):
            if each.name not in decided and isinstance(each.type, type) and issubclass(each.type, msgspec.Struct):
                fields[each.name] = self.make(each.type)
        for setting in settings_of(struct, nested=False):
            if setting.field not in decided and setting.key in self._values:
                fields[setting.field] = self._values[setting.key]
        return struct(**fields)


def with_flags(
    *structs: type[msgspec.Struct], only: Collection[str] | None = None, by_hand: bool = True
) -> Callable[[Command], Command]:
    """Adds flags to a command, which takes them as `given`. Of two of the same name the first counts.

    Args:
        structs: whose fields become flags
        only: names of flags, where not all are wanted
        by_hand: whether flags for processes started by hand are among them
    """
    settings: dict[str, Setting] = {}
    for setting in (s for struct in structs for s in settings_of(struct)):
        if setting.key in only if only is not None else by_hand or not setting.flag.by_hand:
            settings.setdefault(setting.key, setting)

    def add(command: Command) -> Command:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]

        def run(**values: Any) -> None:
            said = {key: values.pop(key) for key in settings}
            given = {key: _value(settings[key], value) for key, value in said.items() if value is not None}
            command(**values, given=Given(given))

        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in own] + [_parameter(s) for s in settings.values()]
        run.__doc__, run.__name__, run.__module__ = command.__doc__, command.__name__, command.__module__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer looks at
        return run

    return add


def _parameter(setting: Setting) -> inspect.Parameter:
    """A flag as typer wants it: its type there, its default and its help."""
    flag, default = setting.flag, _default(setting)
    kind = setting.kind if flag.read is None and flag.choices is None else str
    if flag.repeated:
        kind = list[str]
    option = typer.Option(
        *setting.names,
        help=flag.help,
        rich_help_panel=flag.panel,
        metavar=flag.metavar,
        show_default=flag.default if flag.default is not None else True,
    )
    return inspect.Parameter(
        setting.key,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind if default is not None else kind | None, option],
    )


def _default(setting: Setting) -> Any:
    """As people would write it; None = nothing is passed on, and `inspect.Parameter.empty`: the flag must be given."""
    flag, default = setting.flag, setting.default
    if flag.default is not None:
        return None
    if default is msgspec.NODEFAULT:
        return inspect.Parameter.empty
    if flag.choices is not None:
        return next(word for word, value in flag.choices.items() if value == default)
    return None if flag.repeated else default


def _value(setting: Setting, said: Any) -> Any:
    """The field's value. Raises ConfigError."""
    flag = setting.flag
    if flag.choices is not None:
        if said not in flag.choices:
            raise ConfigError(f"{setting.name} {said}: there is {', '.join(flag.choices)}")
        return flag.choices[said]
    if flag.repeated:
        items = [flag.read(setting.name, item) if flag.read is not None else item for item in said]
        return dict(items) if isinstance(setting.default, dict) else tuple(items)
    return flag.read(setting.name, said) if flag.read is not None else said
