"""`baton plan-memory`: computes how many tokens and requests fit into a pool of given size.

It uses the functions that size a worker's pools, so a worker will have exactly these sizes. Every
kind of state has its own budget: pages of layers with full attention, pages of windows, slots of
recurrent state.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from baton.cli import options as opt
from baton.cli.flags import Given, with_flags
from baton.cli.host_share import automatic, uses_host_memory
from baton.cli.models import require
from baton.cli.processes import names_of
from baton.cli.sizes import show_size
from baton.core.ids import GroupName
from baton.core.memory.state import Placement, StateTable, Unit
from baton.shell.settings import Role, WorkerSettings

if TYPE_CHECKING:
    from rich.table import Table

NOWHERE = "tcp://127.0.0.1:0"  # settings require addresses, but nothing is started here
# of requests (prompt and answer); the model's maximum is added
LENGTHS = (512, 2048, 8192, 32768, 131072)


class PoolPlan(msgspec.Struct, frozen=True):
    """One group's pool on the rank with the fewest pages of that group."""

    group: GroupName
    unit: Unit
    specs: tuple[str, ...]
    page_bytes: int
    pages: int
    tokens: int | None  # capacity of the pages; None for slots


class MemoryPlan(msgspec.Struct, frozen=True):
    """The capacity of a worker's pools.

    Attributes:
        host_bytes: host memory of each rank for the state of preempted requests or, on prefill,
            for checkpoints of prompts
        fits: number of requests that fit at once, by their length in tokens
        away: number of preempted requests that fit in host memory, by their length; on prefill, of
            prompts whose ends fit there
    """

    model: str
    role: Role
    dtype: str
    tp: int
    pp: int
    page_tokens: int
    max_model_len: int
    pools: tuple[PoolPlan, ...]
    host_bytes: int
    fits: dict[int, int]
    away: dict[int, int]


def plan(s: WorkerSettings) -> MemoryPlan:
    """Compute the plan from the checkpoint's config alone.

    Raises:
        ConfigError: family, layout or dtype is not supported, or not even one page fits
    """
    from baton.cli.compose_rank import SERVED, model_length, served_dtype, served_table
    from baton.cli.pool_size import Use, pool_pages
    from baton.core.memory.checkpoints import kept_bytes
    from baton.core.memory.host_ledger import state_bytes
    from baton.core.memory.span import Span
    from baton.engine.checkpoint import Checkpoint
    from baton.engine.models import FAMILIES
    from baton.engine.models.base import family_of

    config = Checkpoint.open(Path(s.model)).config
    family = family_of(config, FAMILIES)
    family.require_width(config, s.tp)
    dtype = served_dtype(s.dtype, config)
    table = served_table(
        family,
        config,
        dtype=SERVED[dtype],
        index_dtype=s.index_dtype,
        draft_layer=bool(s.speculative.draft_layer),
    )
    longest = model_length(s.max_model_len, *family.longest(config))
    use = Use(
        rooms=s.max_num_seqs,
        tokens=longest,
        step=s.room_step,
    )
    ranks = [
        Placement(table, s.tp, s.pp, r % s.tp, r // s.tp, s.page_blocks) for r in range(s.tp * s.pp)
    ]
    pools = [pool_pages(p, use, pages=s.kv_pages, budget=s.pool_bytes or 0) for p in ranks]
    pages = {
        g: min(pool[g] for p, pool in zip(ranks, pools, strict=True) if p.page_bytes(g))
        for g in pools[0]
    }
    span = Span(table, s.page_tokens)
    measure = kept_bytes if s.role is Role.PREFILL else state_bytes
    host = _host_bytes(
        s,
        table,
        [
            sum(n * p.page_bytes(g) for g, n in pool.items())
            for p, pool in zip(ranks, pools, strict=True)
        ],
    )
    return MemoryPlan(
        model=s.served_model_name,
        role=s.role,
        dtype=dtype,
        tp=s.tp,
        pp=s.pp,
        page_tokens=s.page_tokens,
        max_model_len=longest,
        pools=tuple(
            PoolPlan(
                group=g.name,
                unit=g.unit,
                specs=tuple(spec.name for spec in table.specs_of(g.name)),
                page_bytes=max(p.page_bytes(g.name) for p in ranks),
                pages=pages[g.name],
                tokens=pages[g.name] * s.page_tokens if g.unit is Unit.PAGE else None,
            )
            for g in table.groups
        ),
        host_bytes=host,
        fits={n: _fit(pages, span.reserve(n, step=use.step), use.rooms) for n in _lengths(longest)},
        away={n: host // max(1, *(measure(p, n) for p in ranks)) for n in _lengths(longest)},
    )


def _host_bytes(s: WorkerSettings, table: StateTable, pools: Sequence[int]) -> int:
    """Return the host memory of each rank, if all ranks are on this machine.

    `pools` has the bytes of each rank's pools.
    """
    from baton.adapters.memory import available_bytes

    if not uses_host_memory(s, table):
        return 0
    if s.host_kv_memory.nbytes is not None:
        return s.host_kv_memory.nbytes
    left = max(0, available_bytes() - sum(pools))
    return min(
        automatic(size, available=left, ranks=len(pools) * s.host_kv_memory.sharers)
        for size in pools
    )


def _lengths(longest: int) -> Sequence[int]:
    return [*(n for n in LENGTHS if n < longest), longest]


def _fit(pages: Mapping[GroupName, int], need: Mapping[GroupName, int], rooms: int) -> int:
    return min(rooms, *(pages[g] // n for g, n in need.items() if n))


POOL_FLAGS = (
    "kv_memory",
    "kv_pages",
    "host_kv_memory",
    "tp",
    "pp",
    "page_size",
    "dtype",
    "index_dtype",
    "max_model_len",
)
STEP_FLAGS = ("max_num_batched_tokens", "max_num_seqs", "local_prefill")


@with_flags(WorkerSettings, only=POOL_FLAGS + STEP_FLAGS)
def plan_memory(
    model: opt.Model = opt.DEFAULT_MODEL,
    model_path: opt.ModelPath = None,
    role: Annotated[
        Role,
        typer.Option(
            help="Prefill and unified workers have a chunk of a prompt under way; decode workers "
            "with --local-prefill auto, too."
        ),
    ] = Role.DECODE,
    json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
    *,
    given: Given,
) -> None:
    """Say how many tokens and requests fit into a pool of each rank, from the model's config
    alone."""
    model = opt.one_model(model, model_path)
    require(model)
    settings = given.make(
        WorkerSettings,
        **names_of(model, given),
        gateways=(NOWHERE,),
        bind=NOWHERE,
        role=role,
        name=role.value,
        threads=1,
    )
    found = plan(settings)
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _print(found)


def _what(found: MemoryPlan) -> str:
    return "the ends of prompts" if found.role is Role.PREFILL else "requests that give way"


def _print(found: MemoryPlan) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{found.model} in {found.dtype}, tp {found.tp}, pp {found.pp}, pages of "
        f"{found.page_tokens} tokens; of each rank:"
    )
    rows = [
        (
            p.group,
            ", ".join(p.specs),
            show_size(p.page_bytes),
            f"{p.pages:,} {p.unit.value}s",
            show_size(p.pages * p.page_bytes),
        )
        for p in found.pools
    ]
    tokens = ["" if p.tokens is None else f"{p.tokens:,}" for p in found.pools]
    pools = _table("group", "state", "one takes", "pool", "bytes", "tokens")
    for row, count in zip(rows, tokens, strict=True):
        pools.add_row(*row, count)
    console.print(pools)
    console.print(f"host memory of each rank for {_what(found)}: {show_size(found.host_bytes)}")
    kept = "ends kept" if found.role is Role.PREFILL else "away"
    fits = _table("request of (prompt and answer)", "at once", kept)
    for length, rooms in found.fits.items():
        longest = " (the longest)" * (length == found.max_model_len)
        fits.add_row(f"{length:,} tokens{longest}", f"{rooms:,}", f"{found.away[length]:,}")
    console.print(fits)


def _table(*headings: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table
