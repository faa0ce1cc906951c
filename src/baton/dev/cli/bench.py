"""`baton bench serve`: loads an OpenAI-compatible service and reports how it performs. (`baton
bench transfer` is in transfer/.)"""

import json
import shlex
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from baton.core.errors import ConfigError
from baton.dev.cli import bench_options as opt
from baton.dev.cli.routing import routing
from baton.dev.cli.transfer.command import transfer

if TYPE_CHECKING:
    from baton.dev.bench.client import Target
    from baton.dev.bench.load import Tell
    from baton.dev.bench.sweep import Plan

app = typer.Typer(help="Measure a service, or what moves state between its workers.")
app.command("transfer")(transfer)
app.command("routing")(routing)


@app.command("serve")
def serve(
    more_slos: opt.MoreSlos = None,
    base_url: opt.BaseUrl = None,
    host: opt.Host = "127.0.0.1",
    port: opt.Port = 8000,
    backend: opt.BackendName = opt.Backend.OPENAI,
    endpoint: opt.Endpoint = None,
    model: opt.Model = None,
    api_key: opt.ApiKey = None,
    timeout: opt.Timeout = 600.0,
    dataset_name: opt.DatasetName = "random",
    dataset_path: opt.DatasetPath = None,
    random_input_len: opt.InputLen = "1024",
    random_output_len: opt.OutputLen = 128,
    random_range_ratio: opt.RangeRatio = 0.0,
    token_ids: opt.TokenIds = "100:20000",
    length_scale: opt.LengthScale = 1.0,
    time_scale: opt.TimeScale = 1.0,
    ignore_eos: opt.IgnoreEos = True,
    temperature: opt.Temperature = 0.0,
    num_prompts: opt.NumPrompts = None,
    request_rate: opt.RequestRate = None,
    burstiness: opt.Burstiness = 1.0,
    max_concurrency: opt.MaxConcurrency = None,
    num_warmups: opt.NumWarmups = 1,
    seed: opt.Seed = 0,
    goodput: opt.Goodput = None,
    json_file: opt.JsonFile = None,
    compare: opt.Compare = None,
    unified_url: opt.UnifiedUrl = None,
    slo_scale: opt.SloScale = 5.0,
    kv_pages: opt.KvPages = 1024,
    serve_args: opt.ServeArgs = "",
) -> None:
    """Send requests to a service; print latencies, throughput and goodput. Exit code 1 when a
    request failed."""
    from baton.dev.bench.client import Target
    from baton.dev.bench.figures import parse_slos
    from baton.dev.bench.sweep import Plan, loads, maker
    from baton.dev.bench.workload import Shape

    if more_slos and not goodput:
        raise ConfigError(f"unexpected argument {more_slos[0]!r}")
    slos = parse_slos([*(goodput or ()), *(more_slos or ())])
    low, high = opt.token_range(token_ids)
    shape = Shape(
        seed=seed,
        low=low,
        high=high,
        length_scale=length_scale,
        time_scale=time_scale,
        output_tokens=random_output_len,
    )
    lengths = (
        opt.several("--random-input-len", random_input_len, int)
        if dataset_name == "random"
        else [None]
    )
    plan = Plan(
        make=maker(
            dataset_name,
            dataset_path,
            output_len=random_output_len,
            range_ratio=random_range_ratio,
            shape=shape,
        ),
        loads=loads(
            lengths,
            opt.several("--max-concurrency", max_concurrency, int),
            opt.several("--request-rate", request_rate, float),
        ),
        count=num_prompts,
        warm_ups=num_warmups,
        burstiness=burstiness,
        seed=seed,
        keep_times=request_rate is None,
    )
    target = Target(
        base_url=base_url or f"http://{host}:{port}",
        endpoint=endpoint or backend.endpoint,
        model=model or "",
        api_key=api_key,
        chat=backend is opt.Backend.CHAT,
        ignore_eos=ignore_eos,
        temperature=temperature,
        timeout_s=timeout,
    )
    if compare is None:
        raise typer.Exit(_measure(_named(target), plan, slos, json_file))
    if (unified_url is None) != (base_url is None):
        raise ConfigError(
            "--compare takes --base-url (split) and --unified-url together, or "
            "starts both services itself"
        )
    if unified_url is not None:
        services = _given(target, unified_url)
    else:
        services = _started(target, model or "smollm2", shlex.split(serve_args), kv_pages)
    _compare(services, plan, slos, slo_scale, json_file)


def _named(target: "Target") -> "Target":
    """Return the target with the name of the first served model, if no model was given."""
    import msgspec

    from baton.cli.served import first_model

    return msgspec.structs.replace(
        target, model=target.model or first_model(target.base_url, target.api_key)
    )


def _watch(label: str, total: int) -> "AbstractContextManager[Tell]":
    from rich.console import Console

    from baton.dev.bench.show import progress

    return progress(label, total, Console(stderr=True))


def _measure(
    target: "Target", plan: "Plan", slos: Mapping[str, float], json_file: Path | None
) -> int:
    """Measure one service under every load. Returns the exit code."""
    from baton.dev.bench.figures import summarize
    from baton.dev.bench.show import paper, run_table, summary_fields
    from baton.dev.bench.sweep import measure

    runs = []
    for load, outcomes in measure(target, plan, _watch):
        summary = summarize(outcomes, slos)
        paper().print(run_table(str(load), summary, slos))
        runs.append({"load": load.fields(), "slos_ms": dict(slos), **summary_fields(summary)})
        for detail in sorted({f"{o.failure}: {o.detail}" for o in outcomes if o.failure})[:3]:
            typer.echo(f"baton: {detail}", err=True)
    _write(json_file, {"model": target.model, "url": target.url, "seed": plan.seed, "runs": runs})
    return 1 if any(run["failed"] for run in runs) else 0


Services = dict[str, "AbstractContextManager[Target]"]


def _given(target: "Target", unified_url: str) -> Services:
    from contextlib import nullcontext

    import msgspec

    unified = msgspec.structs.replace(target, base_url=unified_url)
    return {"unified": nullcontext(_named(unified)), "split": nullcontext(_named(target))}


def _started(target: "Target", model: str, flags: list[str], pages: int) -> Services:
    from baton.cli.models import ensure
    from baton.dev.bench.layouts import layouts, started

    ensure(model)
    return {
        name: started(target, [model, *its]) for name, its in layouts(flags, pages=pages).items()
    }


def _compare(
    services: Services,
    plan: "Plan",
    slos: Mapping[str, float],
    slo_scale: float,
    json_file: Path | None,
) -> None:
    from baton.dev.bench.show import comparison, paper, point_fields
    from baton.dev.bench.sweep import compare, idle, measure, slos_of
    from baton.dev.bench.verdict import cross_overs, sentence

    with services["unified"] as target:
        alone = (
            {}
            if slos
            else {length: slos_of(o, slo_scale) for length, o in idle(target, plan, _watch).items()}
        )
        unified = dict(measure(target, plan, _watch, label="unified, "))
    with services["split"] as target:
        split = dict(measure(target, plan, _watch, label="split, "))
    points = compare(split, unified, {load: slos or alone[load.prompt_tokens] for load in split})
    paper().print(comparison(points))
    verdict = {"verdict": sentence(points), "cross_over": cross_overs(points)}
    _write(json_file, {"seed": plan.seed, **verdict, "points": [point_fields(p) for p in points]})


def _write(file: Path | None, fields: dict[str, object]) -> None:
    if file is not None:
        file.write_text(json.dumps(fields, indent=1) + "\n")
