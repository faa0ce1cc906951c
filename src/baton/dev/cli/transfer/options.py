"""Flags of `baton bench transfer`. Flags of fabrics and page sizes are named as elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

LAYOUT, STATE, RESULT = "Layouts", "State", "Result"
MANY = "N[,N...]"

Fabric = Annotated[
    str,
    typer.Option(
        "--fabric",
        "--disaggregation-transfer-backend",
        metavar="NAME[,...]",
        help="shm, nixl, mooncake or tcp.",
    ),
]
PrefillTp = Annotated[
    str,
    typer.Option(
        metavar=MANY,
        help="Ranks that share a layer's heads, source; the n-th values of all four make a layout.",
        rich_help_panel=LAYOUT,
    ),
]
PrefillPp = Annotated[
    str,
    typer.Option(metavar=MANY, help="Ranks that share the layers, source.", rich_help_panel=LAYOUT),
]
DecodeTp = Annotated[
    str,
    typer.Option(
        metavar=MANY, help="Ranks that share a layer's heads, target.", rich_help_panel=LAYOUT
    ),
]
DecodePp = Annotated[
    str,
    typer.Option(metavar=MANY, help="Ranks that share the layers, target.", rich_help_panel=LAYOUT),
]
PageSize = Annotated[
    int, typer.Option(help="Tokens in a page, a multiple of 16.", rich_help_panel=LAYOUT)
]
PrefillPageSize = Annotated[
    int | None,
    typer.Option(help="Of the source alone.", show_default="--page-size", rich_help_panel=LAYOUT),
]
DecodePageSize = Annotated[
    int | None,
    typer.Option(help="Of the target alone.", show_default="--page-size", rich_help_panel=LAYOUT),
]
Pages = Annotated[
    str,
    typer.Option(
        metavar="WHERE[,WHERE]",
        help="adjacent, scattered, or both with a comma.",
        rich_help_panel=LAYOUT,
    ),
]
ContextLen = Annotated[
    str,
    typer.Option(
        "--context-len",
        "--random-input-len",
        metavar=MANY,
        help="Tokens handed over.",
        rich_help_panel=STATE,
    ),
]
NumLayers = Annotated[
    int,
    typer.Option(min=1, help="Of the model; the defaults are Llama-3-8B's.", rich_help_panel=STATE),
]
NumKvHeads = Annotated[
    int, typer.Option(min=1, help="Key/value heads of a layer.", rich_help_panel=STATE)
]
HeadDim = Annotated[
    int, typer.Option(min=1, help="Elements of one head's key.", rich_help_panel=STATE)
]
DType = Annotated[
    str, typer.Option("--dtype", help="bfloat16, float16, float32 or fp8.", rich_help_panel=STATE)
]
Rounds = Annotated[
    int,
    typer.Option(min=1, help="Times each thing is read; the best counts.", rich_help_panel=RESULT),
]
VoidBelow = Annotated[
    float | None,
    typer.Option(
        metavar="GB/S",
        help="A single-range rate below this makes a run void: the machine is busy or slow. "
        "Marked, and exit code 1.",
        rich_help_panel=RESULT,
    ),
]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write all figures here.", rich_help_panel=RESULT),
]
PlotFile = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE", help="Write the bars here, as SVG.", rich_help_panel=RESULT
    ),
]
