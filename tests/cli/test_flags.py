"""Flags made of settings structs."""

import re
from typing import Annotated, Literal

import msgspec
import pytest
import typer
from typer.exceptions import TyperException

from baton.cli.flags import Given, with_flags
from baton.cli.main import commands
from baton.core.errors import ConfigError
from baton.ports.flag import (
    ENGINE,
    MEMORY,
    ONE_OR_MORE,
    Flag,
    NumberLimits,
    require_limits,
    settings_of,
)
from baton.ports.written import pair, size


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    streams: Annotated[int, Flag("Connections.", MEMORY, ("--tcp-streams",))] = 2


class Both(msgspec.Struct, frozen=True, kw_only=True):
    needed: Annotated[str, Flag("It has no default.", ENGINE)]
    decided: str
    address: Annotated[
        str, Flag("Found out unless given.", ENGINE, default="the route's", by_hand=True)
    ]
    level: Annotated[Literal["low", "high"], Flag("One of two.", ENGINE)] = "low"
    order: Annotated[
        tuple[str, ...],
        Flag("Words that mean values.", ENGINE, choices={"all": ("a", "b"), "a": ("a",)}),
    ] = (
        "a",
        "b",
    )
    nbytes: Annotated[
        int | None, Flag("A size.", MEMORY, ("--memory", "--mem"), read=size, default="1GiB")
    ] = None
    pairs: Annotated[
        dict[str, str], Flag("Several.", MEMORY, ("--pair",), read=pair, repeated=True)
    ] = {}
    wait_s: Annotated[
        float, Flag("A time.", MEMORY, limits=NumberLimits(1, 9, "seconds", zero_is_off=True))
    ] = 3.0
    count: Annotated[int, Flag("How many.", MEMORY, limits=ONE_OR_MORE)] = 1
    inner: Inner = Inner()

    def __post_init__(self) -> None:
        require_limits(self)


class Other(msgspec.Struct, frozen=True):
    level: Annotated[str, Flag("Of the same name as another.", ENGINE)] = "high"


def called(*argv, structs=(Both,), **which):
    """What a command with these flags is given."""
    seen = []

    @with_flags(*structs, **which)
    def command(name: Annotated[str, typer.Argument()] = "none", *, given: Given) -> None:
        """Help."""
        seen.extend([name, given])

    app = typer.Typer()
    app.command()(command)
    app(list(argv), standalone_mode=False)
    return seen


def test_what_is_not_given_is_the_structs_default():
    name, given = called("--needed=n")
    assert name == "none"
    assert given.get("address", "found") == "found"
    assert given.make(Both, decided="d", address="x") == Both(needed="n", decided="d", address="x")


def test_what_is_given_is_read_as_its_field_wants_it():
    flags = [
        "--needed=n",
        "--address=h",
        "--level=high",
        "--order=a",
        "--mem=2KiB",
        "--pair=k=v",
        "--pair=l=w",
        "--wait=0",
    ]
    name, given = called("me", *flags, "--count=3", "--tcp-streams=4")
    assert name == "me"
    assert given.make(Both, decided="d") == Both(
        needed="n",
        decided="d",
        address="h",
        level="high",
        order=("a",),
        nbytes=2048,
        pairs={"k": "v", "l": "w"},
        wait_s=0.0,
        count=3,
        inner=Inner(streams=4),
    )


def test_what_a_command_decides_wins_over_flags():
    _, given = called("--needed=n", "--tcp-streams=4")
    made = given.make(Both, needed="mine", decided="d", address="x", inner=Inner(streams=7))
    assert (made.needed, made.inner.streams) == ("mine", 7)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--order=c", "--order c: there is all, a"),
        ("--level=middle", "--level middle: there is low, high"),
        ("--memory=x", "--memory: 'x' is not a size"),
        ("--pair=k", "--pair k: write KEY=VALUE"),
        ("--wait=0.5", "--wait 0.5: it must lie between 1 and 9 seconds; 0 switches it off"),
        ("--wait=nan", "--wait nan: it must lie between"),
        ("--count=0", "--count 0: it must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_flag(flag, said):
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}"):
        called("--needed=n", flag)[1].make(Both, decided="d", address="x")


@pytest.mark.parametrize("argv", [[], ["--needed=n", "--count=x"], ["--needed=n", "--decided=d"]])
def test_what_typer_sees_by_itself(argv):
    with pytest.raises(TyperException):
        called(*argv)


def test_of_two_flags_of_one_name_the_first_counts():
    assert called(structs=(Other, Both), by_hand=False, only=("level",))[1].get("level") == "high"


def test_flags_may_be_left_out():
    with pytest.raises(TyperException):
        called("--needed=n", "--address=h", by_hand=False)
    with pytest.raises(TyperException):
        called("--count=3", only=("level",))


@pytest.mark.parametrize("command", ["serve", "worker", "gateway"])
def test_every_flag_of_a_process_has_help(command):
    parameters = {p.name: p for p in typer.main.get_command(commands("")).commands[command].params}
    assert len(parameters) > 20
    assert not [p.name for p in parameters.values() if not p.help]


def test_no_setting_of_a_struct_shares_its_flag_with_another():
    from baton.shell.gateway_settings import GatewaySettings
    from baton.shell.settings import WorkerSettings

    for struct in (WorkerSettings, GatewaySettings):
        names = [name for setting in settings_of(struct) for name in setting.names]
        assert len(names) == len(set(names))
