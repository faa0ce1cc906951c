"""Flags of `baton bench serve`: vLLM's names where vLLM has one."""

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from baton.cli.served import root_url
from baton.core.errors import ConfigError

T = TypeVar("T")

LOAD, DATA, SERVICE, RESULT = "Load", "Workload", "Service", "Result"


class Backend(Enum):
    """The endpoint of OpenAI's API that is asked."""

    OPENAI = "openai"
    VLLM = "vllm"
    CHAT = "openai-chat"

    @property
    def endpoint(self) -> str:
        """Its path."""
        return "/v1/chat/completions" if self is Backend.CHAT else "/v1/completions"


class Against(Enum):
    """What a service is compared with."""

    UNIFIED = "unified"


# `--goodput ttft:200 tpot:50`, as vLLM takes it
MoreSlos = Annotated[list[str] | None, typer.Argument(hidden=True)]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        help="Of the service.",
        callback=root_url,
        show_default="http://HOST:PORT",
        rich_help_panel=SERVICE,
    ),
]
Host = Annotated[str, typer.Option(help="Instead of --base-url.", rich_help_panel=SERVICE)]
Port = Annotated[int, typer.Option(help="Instead of --base-url.", rich_help_panel=SERVICE)]
BackendName = Annotated[
    Backend, typer.Option(help="Completions, or chat for prompts of text.", rich_help_panel=SERVICE)
]
Endpoint = Annotated[
    str | None,
    typer.Option(help="Path to post to.", show_default="the backend's", rich_help_panel=SERVICE),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Name to ask for; with --compare what to serve.",
        show_default="the first served",
        rich_help_panel=SERVICE,
    ),
]
ApiKey = Annotated[str | None, typer.Option(help="Bearer token.", rich_help_panel=SERVICE)]
Timeout = Annotated[
    float, typer.Option(min=1, help="Seconds for one request.", rich_help_panel=SERVICE)
]

DatasetName = Annotated[
    str,
    typer.Option(
        help="random; custom: JSON lines with 'prompt' (text or ids) and perhaps "
        "'output_tokens'; mooncake or azure: traces.",
        rich_help_panel=DATA,
    ),
]
DatasetPath = Annotated[
    Path | None, typer.Option(help="File of prompts, or trace.", rich_help_panel=DATA)
]
InputLen = Annotated[
    str,
    typer.Option(metavar="N[,N...]", help="Prompt tokens; one run for each.", rich_help_panel=DATA),
]
OutputLen = Annotated[int, typer.Option(min=1, help="Generated tokens.", rich_help_panel=DATA)]
RangeRatio = Annotated[
    float, typer.Option(help="Random lengths vary by this part of them.", rich_help_panel=DATA)
]
TokenIds = Annotated[
    str,
    typer.Option(
        metavar="LOW:HIGH",
        help="Prompts are made of these ids, HIGH not included.",
        rich_help_panel=DATA,
    ),
]
LengthScale = Annotated[
    float, typer.Option(help="Factor on a trace's lengths.", rich_help_panel=DATA)
]
TimeScale = Annotated[
    float,
    typer.Option(
        help="Factor on a trace's arrival times; 2 is half as fast.", rich_help_panel=DATA
    ),
]
IgnoreEos = Annotated[
    bool,
    typer.Option(
        "--ignore-eos/--respect-eos",
        help="Ask for exactly the tokens stated.",
        rich_help_panel=DATA,
    ),
]
Temperature = Annotated[float, typer.Option(min=0, help="0 is greedy.", rich_help_panel=DATA)]

NumPrompts = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Requests of each run.",
        show_default="4 a client, at least 8",
        rich_help_panel=LOAD,
    ),
]
RequestRate = Annotated[
    str | None,
    typer.Option(
        metavar="R[,R...]",
        help="Requests a second, Poisson, whether or not earlier ones have ended (open "
        "loop); inf sends all at once.",
        show_default="as the trace says, else inf",
        rich_help_panel=LOAD,
    ),
]
Burstiness = Annotated[
    float, typer.Option(help="1 is Poisson, less comes in bursts.", rich_help_panel=LOAD)
]
MaxConcurrency = Annotated[
    str | None,
    typer.Option(
        metavar="N[,N...]",
        help="Requests under way at once; without a rate, a closed loop.",
        rich_help_panel=LOAD,
    ),
]
NumWarmups = Annotated[
    int, typer.Option(min=0, help="Requests before each run, not counted.", rich_help_panel=LOAD)
]
Seed = Annotated[int, typer.Option(help="Of prompts, lengths and arrivals.", rich_help_panel=LOAD)]

Goodput = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME:MS",
        help="SLOs of a request: ttft:200 tpot:50, also e2el and stall.",
        rich_help_panel=RESULT,
    ),
]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write all figures here.", rich_help_panel=RESULT),
]
Compare = Annotated[
    Against | None,
    typer.Option(
        help="Start a split and a unified service, one after the other, and judge.",
        rich_help_panel=RESULT,
    ),
]
UnifiedUrl = Annotated[
    str | None,
    typer.Option(
        help="A unified service that runs already; --base-url is the split one.",
        callback=root_url,
        rich_help_panel=RESULT,
    ),
]
SloScale = Annotated[
    float,
    typer.Option(
        min=1,
        help="Without --goodput: SLOs are this times the idle unified service.",
        rich_help_panel=RESULT,
    ),
]
KvPages = Annotated[
    int,
    typer.Option(
        min=1,
        help="Pool of each worker of the pair; the unified one gets the sum.",
        rich_help_panel=RESULT,
    ),
]
ServeArgs = Annotated[
    str,
    typer.Option(
        help="More flags for 'baton serve' in a comparison, in one string.", rich_help_panel=RESULT
    ),
]


def several(flag: str, text: str | None, convert: Callable[[str], T]) -> list[T]:
    """Return the values of a flag that takes a list.

    Raises:
        ConfigError: one cannot be read
    """
    try:
        return [convert(part.strip()) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise ConfigError(
            f"{flag} {text}: give one number, or several with commas between them"
        ) from None


def token_range(text: str) -> tuple[int, int]:
    """Return (low, high) of `LOW:HIGH`.

    Raises:
        ConfigError: the text has another form
    """
    low, _, high = text.partition(":")
    if not (low.isdecimal() and high.isdecimal()):
        raise ConfigError(f"--token-ids {text}: give LOW:HIGH, e.g. 100:20000")
    return int(low), int(high)
