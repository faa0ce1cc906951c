"""`baton plan`: how a number of workers is best divided into prefill and decode, if at all."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from baton.cli.models import TRIAL
from baton.core.errors import ConfigError
from baton.dev.cli import plan_options as opt
from baton.dev.cli.bench_options import several

if TYPE_CHECKING:
    from baton.dev.planning.division import Division
    from baton.dev.planning.plan import LoadResult, PlannedLoad

DEFAULT, MIX_REQUESTS = "workers", 1_000
LONGEST_REQUEST = 1 << 20  # tokens
PICTURES = (".png", ".svg")


class PlanCommands(TyperGroup):
    """The commands of `baton plan`; where none is named, `unnamed` is meant."""

    unnamed = DEFAULT

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Name the command, if it is not named, and parse the line."""
        named = args and args[0] in (*self.commands, *ctx.help_option_names)
        return super().parse_args(ctx, args if named else [self.unnamed, *args])


app = typer.Typer(
    cls=PlanCommands,
    help="Plan a service: how many prefill and decode workers, or none of either.",
)


@app.command(DEFAULT)
def plan(
    workers: opt.Workers,
    slo: opt.Slo,
    profile: opt.Profile,
    trace: opt.Trace = None,
    divisions: opt.Divisions = None,
    cores: opt.Cores = None,
    attainment: opt.Attainment = 0.9,
    prefix_caching: opt.PrefixCache = True,
    routing_policy: opt.RoutingPolicy = "priced",
    dataset_name: opt.DatasetName = None,
    length_scale: opt.LengthScale = 1.0,
    time_scale: opt.TimeScale = 1.0,
    num_prompts: opt.NumPrompts = None,
    random_input_len: opt.InputLen = None,
    random_output_len: opt.OutputLen = "128",
    random_range_ratio: opt.RangeRatio = 0.0,
    request_rate: opt.RequestRate = None,
    burstiness: opt.Burstiness = 1.0,
    loads: opt.Loads = "1.0",
    seeds: opt.Seeds = 3,
    seed: opt.Seed = 0,
    jobs: opt.Jobs = None,
    json_file: opt.JsonFile = None,
    plot: opt.Plot = None,
) -> None:
    """Serve a workload with every division of N workers, on a virtual clock with the gateway, the
    leaders and the ranks as they are shipped, and say which one meets the SLOs for most requests.
    'baton plan TRACE' is short for 'baton plan workers TRACE'."""
    from baton.core.gateway.request import FrontSettings
    from baton.core.gateway.routing_policy import POLICIES
    from baton.dev.bench.figures import parse_slos
    from baton.dev.fleet.fleet import FleetSettings
    from baton.dev.fleet.profile import read_profile
    from baton.dev.planning.judging import MEASURES
    from baton.dev.planning.plan import planned_load
    from baton.dev.planning.traffic import mix_of, read_trace
    from baton.shell.threads import available_cores

    slos = parse_slos(slo, flag="--slo", measures=MEASURES)
    if not slos:
        raise ConfigError("--slo: give NAME:MILLISECONDS, e.g. ttft:500,tpot:50")
    if routing_policy not in POLICIES:
        raise ConfigError(f"--routing-policy {routing_policy}: there is {', '.join(POLICIES)}")
    _require_writable(json_file, plot)
    if trace is None:
        mix = mix_of(
            several("--random-input-len", random_input_len, int),
            several("--random-output-len", random_output_len, int),
            rate=request_rate,
            count=num_prompts or MIX_REQUESTS,
            burstiness=burstiness,
            range_ratio=random_range_ratio,
        )
        traffic = [mix.rows(seed + n) for n in range(seeds)]
    elif random_input_len is not None or request_rate is not None:
        raise ConfigError(
            f"{trace} has lengths and times of its own: leave out --random-input-len and "
            "--request-rate, or the trace (--loads and --length-scale change it)"
        )
    else:
        scales = {"length_scale": length_scale, "time_scale": time_scale}
        traffic = [read_trace(trace, dataset_name, count=num_prompts, **scales)]
    planned = planned_load(
        read_profile(profile),
        traffic,
        FleetSettings(
            front=FrontSettings(routing_policy=routing_policy),
            prefix_cache=prefix_caching,
            cores=cores,
        ),
        length_scale=length_scale,
    )
    runs = _factors(loads), _tried(workers, divisions)
    results = _run(planned, *runs, slos, seed=seed, jobs=jobs or len(available_cores()))
    _report(results, planned, slos, attainment=attainment, json_file=json_file, picture=plot)


@app.command("measure")
def measure(
    out: opt.Out,
    model: opt.Model = TRIAL,
    dtype: opt.Dtype = "auto",
    threads: opt.Threads = None,
    max_num_batched_tokens: opt.BatchedTokens = 512,
    max_num_seqs: opt.NumSeqs = 128,
    kv_memory: opt.KvMemory = "1GiB",
    fabric: opt.FabricName = "shm",
    message_us: opt.MessageUs = 200.0,
    seconds: opt.Seconds = 45.0,
) -> None:
    """Time steps of the engine and reads of a fabric on this machine, and write what a worker can
    do as a profile. The machine should do nothing else meanwhile."""
    from baton.adapters.fabrics import require_fabric
    from baton.cli import logs
    from baton.cli.compose_rank import SERVED, served_dtype
    from baton.cli.models import ensure
    from baton.cli.pool_size import Use, pool_pages
    from baton.dev.bench.show import paper
    from baton.dev.fleet.profile import StepLimits, write_profile
    from baton.dev.planning.show import fit_table
    from baton.dev.profiling.measuring import ProfileOrder, measured_profile
    from baton.engine.checkpoint import Checkpoint
    from baton.ports.written import size
    from baton.shell.threads import available_cores

    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: no such directory")
    pool_bytes = size("--kv-memory", kv_memory)
    require_fabric(fabric)
    logs.configure("warning", "console")
    # of a longer request a window holds no more
    use = Use(rooms=max_num_seqs, tokens=LONGEST_REQUEST, step=max_num_batched_tokens)
    path, count = ensure(model), threads or len(available_cores())
    served = served_dtype(dtype, Checkpoint.open(path).config)
    order = ProfileOrder(
        name=f"{model} in {served}, {count} threads, {fabric}",
        path=path,
        dtype=SERVED[served],
        threads=count,
        limits=StepLimits(step_tokens=max_num_batched_tokens, max_rooms=max_num_seqs),
        pools=partial(pool_pages, use=use, pages=None, budget=pool_bytes),
        fabric=fabric,
        message_us=message_us,
        seconds=seconds,
    )
    profile = measured_profile(order)
    write_profile(profile, out)
    paper().print(fit_table(profile))


def _require_writable(json_file: Path | None, picture: Path | None) -> None:
    """Check what is written at the end before anything is computed.

    Raises:
        ConfigError: a file cannot be written
    """
    if picture is not None and picture.suffix not in PICTURES:
        raise ConfigError(f"--plot {picture}: end its name with {' or '.join(PICTURES)}")
    if picture is not None and find_spec("matplotlib") is None:
        raise ConfigError(f"--plot {picture}: it needs matplotlib; pip install 'baton-llm[bench]'")
    for flag, file in (("--json", json_file), ("--plot", picture)):
        if file is not None and not file.absolute().parent.is_dir():
            raise ConfigError(f"{flag} {file}: no such directory")


def _factors(loads: str) -> list[float]:
    factors = several("--loads", loads, float)
    if low := [factor for factor in factors if not factor > 0]:
        raise ConfigError(f"--loads {low[0]}: a factor must be above 0")
    return factors


def _tried(workers: str, texts: str | None) -> dict[int, list["Division"]]:
    """Return the divisions of each number of workers."""
    from baton.dev.planning.division import chosen_divisions, divisions

    numbers = several("--workers", workers, int)
    if texts is None:
        return {number: divisions(number) for number in numbers}
    if len(numbers) > 1:
        raise ConfigError(f"--divisions {texts}: give one number of workers (--workers {workers})")
    return {number: chosen_divisions(number, texts.split(",")) for number in numbers}


def _run(
    planned: "PlannedLoad",
    loads: Sequence[float],
    tried: Mapping[int, Sequence["Division"]],
    slos: Mapping[str, float],
    *,
    seed: int,
    jobs: int,
) -> list["LoadResult"]:
    """Make all runs, with a bar on standard error if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from baton.dev.cli.plan_runner import in_processes
    from baton.dev.planning.plan import LoadResult, judged, one_by_one

    console, results = Console(stderr=True), list[LoadResult]()
    each = one_by_one if jobs == 1 else in_processes(jobs)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("runs", total=len(loads) * sum(map(len, tried.values())))
        for news in judged(planned, loads, tried, slos, seed=seed, each=each):
            if isinstance(news, LoadResult):
                results.append(news)
            else:
                bar.advance(task)
    return results


def _report(
    results: Sequence["LoadResult"],
    planned: "PlannedLoad",
    slos: Mapping[str, float],
    *,
    attainment: float,
    json_file: Path | None,
    picture: Path | None,
) -> None:
    from baton.dev.bench.show import paper
    from baton.dev.planning.plan import fewest_workers
    from baton.dev.planning.show import draw, enough, legend, load_table, plan_fields

    for result in results:
        paper().print(load_table(result, slos))
    fewest = fewest_workers(results, attainment)
    for one in fewest:
        if len(one.tried) > 1:
            paper().print(enough(one, attainment))
    paper().print(legend(planned))
    if json_file is not None:
        fields = plan_fields(results, fewest, slos, planned.profile)
        json_file.write_text(json.dumps(fields, indent=1) + "\n")
    if picture is not None:
        draw(results, slos, picture)
