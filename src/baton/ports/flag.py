"""The flag, help and limits of a setting, which stand beside the field that holds its value.

    max_num_seqs: Annotated[int, Flag("Requests at once.", ENGINE, limits=ONE_OR_MORE)] = 128

This line makes the flag `--max-num-seqs` with its default, the key of a TOML file and the row of
docs/flags.md (`cli/flags.py`). Fields without a Flag are decided by Baton itself.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from baton.core.errors import ConfigError

ENGINE, MEMORY, PROCESSES, HTTP = "Engine", "Memory", "Processes", "HTTP"  # the panels of --help

Reader = Callable[[str, str], Any]  # (flag, text) -> the field's value; raises ConfigError


@dataclass(frozen=True)
class NumberLimits:
    """The limits of a number. `zero_is_off`: 0 is allowed too, and switches the feature off."""

    least: float
    most: float = math.inf
    unit: str = ""
    zero_is_off: bool = False

    def hold(self, value: float) -> bool:
        """Whether a value is within the limits."""
        return self.least <= value <= self.most or (self.zero_is_off and value == 0)

    def __str__(self) -> str:
        bounds = f"lie between {self.least:g} and {self.most:g}"
        if self.most == math.inf:
            bounds = f"be at least {self.least:g}"
        return bounds + f" {self.unit}" * bool(self.unit) + "; 0 switches it off" * self.zero_is_off


ONE_OR_MORE = NumberLimits(1)


@dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        help: one sentence for --help and docs/flags.md
        panel: the part of --help in which the flag stands
        names: all its names, ours first; none = the name of the field, without its unit
        read: makes the field's value from a text that is not a plain number or choice
        choices: the texts that may be given, with the value of each, where the field's type
            (Literal, Enum) does not say it
        repeated: the flag may be given several times
        default: says in words what holds without the flag, where the field's default does not
        metavar: stands for the value in --help
        limits: the limits of a number
        by_hand: only processes that are started by hand take it; `baton serve` decides it
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
    limits: NumberLimits | None = None
    by_hand: bool = False


class Setting(msgspec.Struct, frozen=True):
    """A field of a settings struct, with its flag."""

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
        """The flag's name that is ours."""
        return self.names[0].split("/")[0]

    @property
    def choices(self) -> Mapping[str, Any] | None:
        """The texts that may be given, with their values; None = the setting is not a choice."""
        if get_origin(self.kind) is Literal:
            return {word: word for word in get_args(self.kind)}
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return {each.value: each for each in self.kind}
        return self.flag.choices

    @property
    def key(self) -> str:
        """The flag's name as an identifier."""
        return self.name.lstrip("-").replace("-", "_")


def settings_of(struct: type[msgspec.Struct], *, nested: bool = True) -> Iterator[Setting]:
    """Yield the fields of a struct that have a flag, in order; with `nested`, those of the structs
    in it too."""
    inner = dict(structs_in(struct)) if nested else {}
    for each in msgspec.structs.fields(struct):
        if each.name in inner:
            yield from settings_of(inner[each.name])
        elif get_origin(each.type) is Annotated:
            kind, *notes = get_args(each.type)
            makes_default = each.default_factory is not msgspec.NODEFAULT
            default = each.default_factory() if makes_default else each.default
            flags = [note for note in notes if isinstance(note, Flag)]
            yield from (Setting(each.name, kind, default, flag) for flag in flags)


def structs_in(struct: type[msgspec.Struct]) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield the fields of a struct that hold structs with flags, and these structs."""
    for each in msgspec.structs.fields(struct):
        if isinstance(each.type, type) and issubclass(each.type, msgspec.Struct):
            yield each.name, each.type


def require_limits(settings: msgspec.Struct) -> None:
    """Check that every number is within the limits of its flag.

    Raises:
        ConfigError: one is not
    """
    for setting in settings_of(type(settings), nested=False):
        limits, value = setting.flag.limits, getattr(settings, setting.field)
        if limits is not None and value is not None and not limits.hold(value):
            raise ConfigError(f"{setting.name} {value:g}: it must {limits}")
