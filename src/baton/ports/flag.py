"""What people are told of a setting, beside the field that holds it: its flag, its help, its limits.

    max_num_seqs: Annotated[int, Flag("Requests that one worker runs at once.", ENGINE, limits=ONE_OR_MORE)] = 128

From this one line come the flag `--max-num-seqs`, the key of a TOML file, the row of docs/flags.md and the default
(`cli/flags.py`). A field without a Flag is one that Baton decides itself.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, get_args, get_origin

import msgspec

from baton.core.errors import ConfigError

ENGINE, MEMORY, PROCESSES, HTTP = "Engine", "Memory", "Processes", "HTTP"  # the panels of --help

Reader = Callable[[str, str], Any]  # (flag, what was written) -> the field's value; raises ConfigError


@dataclass(frozen=True)
class Limits:
    """Of a number. `zero_is_off`: 0 is allowed as well, and switches the thing off."""

    least: float
    most: float = math.inf
    unit: str = ""
    zero_is_off: bool = False

    def hold(self, value: float) -> bool:
        """Whether a value is within them."""
        return self.least <= value <= self.most or (self.zero_is_off and value == 0)

    def __str__(self) -> str:
        bounds = f"be at least {self.least:g}" if self.most == math.inf else f"lie between {self.least:g} and {self.most:g}"
        return bounds + f" {self.unit}" * bool(self.unit) + "; 0 switches it off" * self.zero_is_off


ONE_OR_MORE = Limits(1)


@dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        names: all its names, ours first; none = the field's name, without its unit
        read: makes the field's value of what was written, where it is no plain text, number or choice
        choices: what may be written, and the value that it means
        repeated: the flag may be given several times
        default: in words, what holds where the flag is not given and the field has no default that says it
        by_hand: for a process that is started by hand; `baton serve` decides it for its own
    """

    help: str
    panel: str
    names: tuple[str, ...] = ()
    _: KW_ONLY
    read: Reader | None = None
    choices: Mapping[str, Any] | None = None
    repeated: bool = False
    default: str | None = None
    metavar: str | None = None
    limits: Limits | None = None
    by_hand: bool = False


class Setting(msgspec.Struct, frozen=True):
    """A field of a settings struct, and its flag."""

    field: str
    kind: Any  # its type, without annotations
    default: Any  # msgspec.NODEFAULT = it has none
    flag: Flag

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the flag, ours first."""
        return self.flag.names or (f"--{self.field.removesuffix('_s').replace('_', '-')}",)

    @property
    def name(self) -> str:
        """Our name of the flag."""
        return self.names[0].split("/")[0]

    @property
    def key(self) -> str:
        """The name as an identifier."""
        return self.name.lstrip("-").replace("-", "_")


def settings_of(struct: type[msgspec.Struct], *, nested: bool = True) -> Iterator[Setting]:
    """The fields of a struct that have a flag, in order; with `nested`, those of the structs in it at their place."""
    for each in msgspec.structs.fields(struct):
        if nested and isinstance(each.type, type) and issubclass(each.type, msgspec.Struct):
            yield from settings_of(each.type)
        elif get_origin(each.type) is Annotated:
            kind, *notes = get_args(each.type)
            default = each.default if each.default_factory is msgspec.NODEFAULT else each.default_factory()
            yield from (Setting(each.name, kind, default, note) for note in notes if isinstance(note, Flag))


def require_limits(settings: msgspec.Struct) -> None:
    """That every number is within the limits of its flag. Raises ConfigError, which names flag, value and limits."""
    for setting in settings_of(type(settings), nested=False):
        limits, value = setting.flag.limits, getattr(settings, setting.field)
        if limits is not None and value is not None and not limits.hold(value):
            raise ConfigError(f"{setting.name} {value:g}: it must {limits}")
