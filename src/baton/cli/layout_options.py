"""Flags that lay a service out: how many workers, over which ranks and machines each is divided, page sizes of each side."""

from enum import Enum
from typing import Annotated

import typer

from baton.cli.options import MEMORY, PROCESS


class Layout(Enum):
    """Whether prefill and decode have processes of their own."""

    SPLIT = "split"
    UNIFIED = "unified"


Prefill = Annotated[int, typer.Option(min=1, help="Number of prefill workers.", rich_help_panel=PROCESS)]
Decode = Annotated[int, typer.Option(min=1, help="Number of decode workers.", rich_help_panel=PROCESS)]
LayoutRole = Annotated[
    Layout, typer.Option("--role", help="split; or unified: one worker does both (the baseline).", rich_help_panel=PROCESS)
]
PrefillPageSize = Annotated[
    int | None, typer.Option(help="For prefill workers alone.", show_default="--page-size", rich_help_panel=MEMORY)
]
DecodePageSize = Annotated[
    int | None, typer.Option(help="For decode workers alone.", show_default="--page-size", rich_help_panel=MEMORY)
]
TensorParallel = Annotated[
    int,
    typer.Option(
        "--tp",
        "--tensor-parallel-size",
        "--tp-size",
        min=1,
        help="Ranks that each layer of a worker is divided over.",
        rich_help_panel=PROCESS,
    ),
]
PipelineParallel = Annotated[
    int,
    typer.Option(
        "--pp",
        "--pipeline-parallel-size",
        "--pp-size",
        min=1,
        help="Stages that the layers of a worker are divided over.",
        rich_help_panel=PROCESS,
    ),
]
PrefillTensorParallel = Annotated[
    int | None, typer.Option(min=1, help="For prefill workers alone.", show_default="--tp", rich_help_panel=PROCESS)
]
PrefillPipelineParallel = Annotated[
    int | None, typer.Option(min=1, help="For prefill workers alone.", show_default="--pp", rich_help_panel=PROCESS)
]
DecodeTensorParallel = Annotated[
    int | None, typer.Option(min=1, help="For decode workers alone.", show_default="--tp", rich_help_panel=PROCESS)
]
DecodePipelineParallel = Annotated[
    int | None, typer.Option(min=1, help="For decode workers alone.", show_default="--pp", rich_help_panel=PROCESS)
]
Nodes = Annotated[int, typer.Option(min=1, help="Machines that the ranks are divided over.", rich_help_panel=PROCESS)]
NodeRank = Annotated[int, typer.Option(min=0, help="Which of these machines this is.", rich_help_panel=PROCESS)]
Rendezvous = Annotated[
    str | None,
    typer.Option(
        "--rendezvous",
        "--dist-init-addr",
        metavar="HOST:PORT",
        help="Where the ranks find each other, at the machine of rank 0; in a network that is trusted.",
        show_default="a free port of loopback",
        rich_help_panel=PROCESS,
    ),
]
Rank = Annotated[int | None, typer.Option(hidden=True, help="Which rank this process is; given by the one that starts it.")]
