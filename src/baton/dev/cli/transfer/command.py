"""`baton bench transfer`: how fast state moves between two layouts, compared with the best that the
same fabric can do."""

import os
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, TypeVar

import typer

from baton.cli.flags import Given, with_flags
from baton.core.errors import ConfigError
from baton.dev.cli.bench_options import several
from baton.dev.cli.transfer import options as opt
from baton.ports.fabric_settings import FabricSettings

if TYPE_CHECKING:
    from baton.core.memory.state import DType
    from baton.dev.bench.transfer.figures import Figures
    from baton.dev.bench.transfer.layout import Case, Side

A = TypeVar("A")
B = TypeVar("B")
MAX_WIDTH = 64


@with_flags(FabricSettings)
def transfer(
    fabric: opt.Fabric = "shm",
    prefill_tp: opt.PrefillTp = "1",
    prefill_pp: opt.PrefillPp = "1",
    decode_tp: opt.DecodeTp = "1",
    decode_pp: opt.DecodePp = "1",
    page_size: opt.PageSize = 16,
    prefill_page_size: opt.PrefillPageSize = None,
    decode_page_size: opt.DecodePageSize = None,
    pages: opt.Pages = "adjacent,scattered",
    context_len: opt.ContextLen = "2048",
    num_layers: opt.NumLayers = 32,
    num_kv_heads: opt.NumKvHeads = 8,
    head_dim: opt.HeadDim = 128,
    dtype: opt.DType = "bfloat16",
    rounds: opt.Rounds = 5,
    void_below: opt.VoidBelow = None,
    json_file: opt.JsonFile = None,
    plot_file: opt.PlotFile = None,
    *,
    given: Given,
) -> None:
    """Hand state over between two processes, layout to layout, verified; print rates beside one
    range of as many bytes."""
    from rich.console import Console

    from baton.dev.bench.show import paper
    from baton.dev.bench.transfer import show
    from baton.dev.bench.transfer.figures import widths
    from baton.dev.bench.transfer.layout import Geometry, Layout
    from baton.dev.cli.transfer.pair import measure
    from baton.dev.cli.transfer.talk import TransferOrder

    settings = given.make(FabricSettings)
    for flag, file in (("--json", json_file), ("--plot", plot_file)):
        if file is not None and not file.absolute().parent.is_dir():
            raise ConfigError(f"{flag} {file}: no such directory")
    fabrics = [_known(name.strip()) for name in fabric.split(",")]
    geometry = Geometry(num_layers, num_kv_heads, head_dim, _dtype(dtype))
    prefill = _sides(prefill_tp, prefill_pp, prefill_page_size or page_size, side="prefill")
    decode = _sides(decode_tp, decode_pp, decode_page_size or page_size, side="decode")
    cases = _cases(context_len, pages)
    layouts = [
        Layout(geometry, *sides, max(case.tokens for case in cases))
        for sides in _together(prefill, decode)
    ]
    for layout in layouts:
        layout.plan()  # refuses a layout that cannot be divided before anything is started
    found: list[Figures] = []
    with Console(stderr=True).status("starting") as status:
        for i, (name, layout) in enumerate(product(fabrics, layouts)):
            status.update(f"{name}, {widths(layout)}")
            order = TransferOrder(
                name, settings, layout, rounds, boot=(os.getpid() << 32) + (i << 16)
            )
            for figures in measure(order, cases):
                status.console.print(show.line(figures))
                found.append(figures)
    paper().print(show.tables(found, void_below=void_below))
    if json_file is not None:
        json_file.write_bytes(show.as_json(found))
    if plot_file is not None:
        plot_file.write_text(show.as_svg(found))
    void = void_below is not None and any(f.single_range_gb_per_s < void_below for f in found)
    raise typer.Exit(1 if void else 0)


def _known(name: str) -> str:
    from baton.adapters.fabrics import FABRICS

    if name not in FABRICS:
        raise ConfigError(f"--fabric {name}: there is {', '.join(FABRICS)}")
    return name


def _dtype(name: str) -> "DType":
    from baton.core.memory.state import DType

    dtypes = {"bfloat16": DType.BF16, "float16": DType.F16, "float32": DType.F32, "fp8": DType.FP8}
    if name not in dtypes:
        raise ConfigError(f"--dtype {name}: there is {', '.join(dtypes)}")
    return dtypes[name]


def _sides(tp: str, pp: str, page_size: int, *, side: str) -> "list[Side]":
    from baton.dev.bench.transfer.layout import BLOCK_TOKENS, Side

    widths = {
        flag: several(flag, text, int)
        for flag, text in ((f"--{side}-tp", tp), (f"--{side}-pp", pp))
    }
    for flag, values in widths.items():
        if bad := [value for value in values if not 1 <= value <= MAX_WIDTH]:
            raise ConfigError(f"{flag} {bad[0]}: from 1 to {MAX_WIDTH} ranks")
    if page_size < BLOCK_TOKENS or page_size % BLOCK_TOKENS:
        raise ConfigError(
            f"--{side}-page-size or --page-size {page_size}: give a multiple of "
            f"{BLOCK_TOKENS} tokens"
        )
    return [Side(t, p, page_size // BLOCK_TOKENS) for t, p in _together(*widths.values())]


def _together(left: "Sequence[A]", right: "Sequence[B]") -> "list[tuple[A, B]]":
    """Return pairs of the n-th value of one with the n-th of the other. A single value is paired
    with each of the other's.

    Raises:
        ConfigError: both have several values, but not equally many
    """
    if len(left) != len(right) and 1 not in (len(left), len(right)):
        raise ConfigError(
            f"{len(left)} and {len(right)} values for the widths of a layout: --prefill-tp, "
            "--prefill-pp, --decode-tp and"
            " --decode-pp take one value, or as many as the longest of them"
        )
    count = max(len(left), len(right))
    return list(
        zip(list(left) * (count // len(left)), list(right) * (count // len(right)), strict=True)
    )


def _cases(context_len: str, pages: str) -> "list[Case]":
    from baton.dev.bench.transfer.layout import Case, Pages

    lengths = several("--context-len", context_len, int)
    if bad := [length for length in lengths if length < 1]:
        raise ConfigError(f"--context-len {bad[0]}: at least 1 token")
    known = {where.value: where for where in Pages}
    orders = [where.strip() for where in pages.split(",")]
    if unknown := [where for where in orders if where not in known]:
        raise ConfigError(f"--pages {unknown[0]}: there is {', '.join(known)}")
    return [Case(length, known[where]) for length, where in product(lengths, orders)]
