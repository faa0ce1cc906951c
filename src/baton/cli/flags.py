"""Makes flags from settings structs: a field with a `Flag` becomes a parameter of the command.

    @with_flags(WorkerSettings)
    def worker(model: opt.Model = opt.DEFAULT_MODEL, *, given: Given) -> None:
        settings = given.make(WorkerSettings, model=model, name=given.get("name") or "worker", ...)

Typer does not know structs: it reads the signature of a function. So this module builds a signature
for the command.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from baton.core.errors import ConfigError
from baton.ports.flag import Setting, settings_of, structs_in

S = TypeVar("S", bound=msgspec.Struct)
Command = Callable[..., None]
PREFIX = "BATON_"


class Given:
    """The values of a command's flags, from the command line, a file, or defaults."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, key: str, default: Any = None) -> Any:
        """Return a flag's value; `default` if it was not given and its field has no default."""
        return self._values.get(key, default)

    def make(self, struct: type[S], **decided: Any) -> S:
        """Make a struct of the values. Fields in `decided` override flags. Raises ConfigError."""
        inner = dict(structs_in(struct))
        fields: dict[str, Any] = {n: self.make(inner[n]) for n in inner if n not in decided}
        for setting in settings_of(struct, nested=False):
            if setting.field not in decided and setting.key in self._values:
                fields[setting.field] = self._values[setting.key]
        return struct(**fields, **decided)


def with_flags(
    *structs: type[msgspec.Struct],
    only: Collection[str] | None = None,
    by_hand: bool = True,
    environment: bool = False,
) -> Callable[[Command], Command]:
    """Add flags to a command, which takes their values as `given`.

    If two structs have a flag of the same name, the first struct's flag is used.

    Args:
        structs: their fields become flags
        only: the flags to add; None = all
        by_hand: whether to add the flags that only processes started by hand take
        environment: whether a flag that is not given is looked up in the environment, by the name
            that `variable_of` makes; it wins over a configuration file
    """
    settings: dict[str, Setting] = {}
    for setting in (s for struct in structs for s in settings_of(struct)):
        if setting.key in only if only is not None else by_hand or not setting.flag.by_hand:
            settings.setdefault(setting.key, setting)

    def add(command: Command) -> Command:
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        own = [p.replace(kind=p.KEYWORD_ONLY) for p in parameters if p.name != "given"]
        flags = [_parameter(setting, environment) for setting in settings.values()]

        def run(**values: Any) -> None:
            said = {key: values.pop(key) for key in settings}
            given = {k: _value(settings[k], v) for k, v in said.items() if v is not None}
            command(**values, given=Given(given))

        run.__doc__, run.__name__ = command.__doc__, command.__name__
        run.__signature__ = inspect.Signature(own + flags)  # type: ignore[attr-defined]
        return run

    return add


def variable_of(key: str) -> str:
    """Return the environment variable of a flag, e.g. BATON_KV_MEMORY of `kv_memory`."""
    return f"{PREFIX}{key.upper()}"


def _parameter(setting: Setting, environment: bool) -> inspect.Parameter:
    """Make typer's parameter for a flag: its type, default and help."""
    flag, default, choices = setting.flag, _default(setting), setting.choices
    kind = setting.kind if flag.read is None and choices is None else str
    if flag.repeated:
        kind = list[str]
    metavar = flag.metavar
    if choices is not None and flag.choices is None:
        metavar = f"<{'|'.join(choices)}>"
    option = typer.Option(
        *setting.names,
        help=flag.help,
        rich_help_panel=flag.panel,
        metavar=metavar,
        envvar=variable_of(setting.key) if environment else None,
        show_default=flag.default if flag.default is not None else True,
    )
    return inspect.Parameter(
        setting.key,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind if default is not None else kind | None, option],
    )


def _default(setting: Setting) -> Any:
    """Return a flag's default as text or value; `empty` = the flag is required."""
    flag, default = setting.flag, setting.default
    if flag.default is not None:
        return None
    if default is msgspec.NODEFAULT:
        return inspect.Parameter.empty
    if setting.choices is not None:
        return next(word for word, value in setting.choices.items() if value == default)
    return None if flag.repeated else default


def _value(setting: Setting, said: Any) -> Any:
    """Convert a flag's value to the field's value. Raises ConfigError."""
    flag = setting.flag
    if (choices := setting.choices) is not None:
        if said not in choices:
            raise ConfigError(f"{setting.name} {said}: there is {', '.join(choices)}")
        return choices[said]
    if flag.repeated:
        items = [flag.read(setting.name, item) if flag.read is not None else item for item in said]
        return dict(items) if isinstance(setting.default, dict) else tuple(items)
    return flag.read(setting.name, said) if flag.read is not None else said
