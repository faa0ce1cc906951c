"""Flags of `baton plan`, which have the names that `baton bench serve` has where the two mean the
same."""

from pathlib import Path
from typing import Annotated

import typer

WORK, FLEET, RESULT = "Workload", "Workers", "Result"

Trace = Annotated[
    Path | None,
    typer.Argument(
        metavar="[TRACE]",
        help="A trace: Mooncake's JSON lines (.jsonl), or Azure's CSV (.csv). Without it: a mix of "
        "random prompts.",
    ),
]
Workers = Annotated[
    str,
    typer.Option(
        metavar="N[,N...]",
        help="Workers to divide; of several numbers, the smallest that is enough is named.",
        rich_help_panel=FLEET,
    ),
]
Attainment = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Share of requests within the SLOs with which workers are enough.",
        rich_help_panel=RESULT,
    ),
]
Slo = Annotated[
    list[str],
    typer.Option(
        metavar="NAME:MS[,...]",
        help="Limits of a request: ttft:500,tpot:50, also e2el.",
        rich_help_panel=RESULT,
    ),
]
Profile = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help="What a worker can do, from 'baton plan measure'.",
        rich_help_panel=FLEET,
    ),
]
Cores = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Cores of one machine that all workers, the gateway and the clients share.",
        show_default="each has its own",
        rich_help_panel=FLEET,
    ),
]
Divisions = Annotated[
    str | None,
    typer.Option(
        metavar="P:D[,P:D...]",
        help="Splits to compare with unified workers.",
        show_default="all, or 7 of many workers",
        rich_help_panel=FLEET,
    ),
]
PrefixCache = Annotated[
    bool,
    typer.Option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        help="Whether workers keep the pages of earlier prompts.",
        rich_help_panel=FLEET,
    ),
]
RoutingPolicy = Annotated[str, typer.Option(help="As that of the gateway.", rich_help_panel=FLEET)]
DatasetName = Annotated[
    str | None,
    typer.Option(
        help="mooncake or azure.", show_default="by the ending of TRACE", rich_help_panel=WORK
    ),
]
LengthScale = Annotated[
    float, typer.Option(help="Factor on a trace's lengths.", rich_help_panel=WORK)
]
TimeScale = Annotated[
    float,
    typer.Option(
        help="Factor on a trace's arrival times; 2 is half as fast.", rich_help_panel=WORK
    ),
]
NumPrompts = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Requests of each run.",
        show_default="all of a trace, 1000 of a mix",
        rich_help_panel=WORK,
    ),
]
InputLen = Annotated[
    str | None,
    typer.Option(
        metavar="N[,N...]",
        help="Prompt tokens of each kind of request in a mix.",
        rich_help_panel=WORK,
    ),
]
OutputLen = Annotated[
    str,
    typer.Option(
        metavar="N[,N...]",
        help="Generated tokens of each kind, or of all.",
        rich_help_panel=WORK,
    ),
]
RangeRatio = Annotated[
    float, typer.Option(help="Lengths of a mix vary by this part of them.", rich_help_panel=WORK)
]
RequestRate = Annotated[
    float | None,
    typer.Option(metavar="R", help="Requests a second of a mix.", rich_help_panel=WORK),
]
Burstiness = Annotated[
    float, typer.Option(help="1 is Poisson, less comes in bursts.", rich_help_panel=WORK)
]
Loads = Annotated[
    str,
    typer.Option(
        metavar="F[,F...]",
        help="Factors on the rate at which requests come; a verdict for each.",
        rich_help_panel=WORK,
    ),
]
Seeds = Annotated[
    int,
    typer.Option(min=1, help="Runs of a mix, each drawn from another seed.", rich_help_panel=WORK),
]
Seed = Annotated[
    int, typer.Option(help="Of lengths, arrivals and intervals.", rich_help_panel=WORK)
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Processes that make runs.",
        show_default="the cores of this process",
        rich_help_panel=RESULT,
    ),
]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write all figures here.", rich_help_panel=RESULT),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draw the share of requests within the SLOs as FILE.png or FILE.svg.",
        rich_help_panel=RESULT,
    ),
]

# ---- measure ------------------------------------------------------------------------------------

Model = Annotated[str, typer.Option(help="What to serve: as MODEL of 'baton serve'.")]
Out = Annotated[Path, typer.Option(metavar="FILE", help="Write the profile here.")]
Dtype = Annotated[str, typer.Option(help="As that of a worker.")]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, help="Compute threads of a worker.", show_default="the cores of this process"
    ),
]
BatchedTokens = Annotated[
    int, typer.Option("--max-num-batched-tokens", min=16, help="Tokens of one step at most.")
]
NumSeqs = Annotated[
    int, typer.Option("--max-num-seqs", min=1, help="Requests that one worker runs at once.")
]
KvMemory = Annotated[str, typer.Option(metavar="SIZE", help="Pool of a worker, e.g. 4GiB.")]
FabricName = Annotated[str, typer.Option("--fabric", help="Over which state is handed over.")]
MessageUs = Annotated[
    float,
    typer.Option(min=0, help="Microseconds of a message between processes; not measured."),
]
Seconds = Annotated[float, typer.Option(min=1, help="For how long steps are timed.")]
