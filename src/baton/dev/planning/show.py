"""Tables and plots of a plan, and its fields for a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

from baton.dev.bench.show import limits
from baton.dev.fleet.profile import MachineProfile
from baton.dev.planning.judging import DivisionResult, sentence_of
from baton.dev.planning.plan import FewestWorkers, LoadResult, PlannedLoad
from baton.dev.planning.resampling import Estimate

HEADS = (
    *("division", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "within SLOs", "goodput"),
    *("failed", "busy", "handed over"),
)


def load_table(result: LoadResult, slos: Mapping[str, float]) -> RenderableType:
    """Return the table of one load, and its verdict."""
    title = (
        f"{result.workers} workers, {result.rate:.3g} requests a second (load {result.load:g}), "
        f"{limits(slos)}"
    )
    table = Table(*HEADS, title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for one in result.divisions:
        best = one.division == result.verdict.best
        table.add_row(*_cells(one), style="bold" if best else None)
    refused = [
        f"{one.division}: {one.failed} failed, the first because {one.why}"
        for one in result.divisions
        if one.why
    ]
    return Group(table, *refused, sentence_of(result.verdict), "")


def _cells(one: DivisionResult) -> list[str]:
    busy = " ".join(f"{role[0]} {100 * share:.0f} %" for role, share in one.busy.items())
    return [
        str(one.division),
        f"{one.ttft_p50.value:.0f}",
        _shown(one.ttft_p99, 0),
        f"{one.tpot_p50.value:.1f}",
        _shown(one.tpot_p99, 1),
        f"{_shown(one.attained, 1, 100)} %",
        _shown(one.goodput, 2),
        str(one.failed),
        busy,
        f"{one.handed_over / 1e9:.1f} GB" if one.division.split else "",
    ]


def _shown(figure: Estimate, digits: int, factor: float = 1.0) -> str:
    spread = factor * (figure.high - figure.low) / 2
    return f"{factor * figure.value:.{digits}f} ±{spread:.{digits}f}"


def enough(one: FewestWorkers, attainment: float) -> str:
    """Return in words how many workers are enough."""
    share = f"the SLOs for {100 * attainment:g} % of the requests"
    tried = ", ".join(map(str, one.tried))
    if one.division is None:
        return f"{one.rate:.3g} requests a second: none of {tried} workers meets {share}."
    return (
        f"{one.rate:.3g} requests a second: of {tried} workers, {len(one.division.roles)} "
        f"({one.division}) are the fewest that meet {share}."
    )


def legend(plan: PlannedLoad) -> str:
    """Return what the figures of the tables are."""
    profile, memory, runs = plan.profile, plan.profile.memory, len(plan.traffic)
    fitted = "stated, not measured"
    if profile.fit is not None:
        errors = (f"{n} {100 * q.median_error:.1f} %" for n, q in profile.fit.items())
        fitted = f"fitted; median errors: {', '.join(errors)}"
    return (
        f"profile {profile.name} ({fitted}). {plan.requests} requests in {runs} "
        f"run{'s' if runs > 1 else ''} of each division. "
        "Milliseconds; goodput in requests a second that meet every SLO; ± is half of the 95 % "
        "interval, by a bootstrap over blocks of requests; the interval of a verdict is wider, for "
        f"all splits that were tried. Pages of {memory.page_tokens} tokens, "
        f"{memory.pages} in each worker."
    )


def fit_table(profile: MachineProfile) -> RenderableType:
    """Return the times of a profile, and how well they describe what was measured."""
    times = Table("time of", "figure")
    steps = profile.steps
    for count, us in steps.tokens_us:
        times.add_row(f"a step of {count} token{'s' if count > 1 else ''}, us", f"{us:.4g}")
    for name in ("pair_us", "row_us", "context_us"):
        times.add_row(name, f"{getattr(steps, name):.4g}")
    for name, figure in msgspec.structs.asdict(profile.host).items():
        if figure:  # what gateway and client take is not measured
            times.add_row(f"{name} of the host", f"{figure:.4g}")
    times.add_row("read_us", f"{profile.wire.read_us:.4g}")
    times.add_row("bytes_per_s", f"{profile.wire.bytes_per_s:.4g}")
    errors = Table("fit", "measured", "median error", "worst error")
    for name, one in (profile.fit or {}).items():
        shares = (f"{100 * share:.1f} %" for share in (one.median_error, one.worst_error))
        errors.add_row(name, str(one.measured), *shares)
    return Group(profile.name, times, errors)


def plan_fields(
    results: Sequence[LoadResult],
    fewest: Sequence[FewestWorkers],
    slos: Mapping[str, float],
    profile: MachineProfile,
) -> dict[str, object]:
    """Return a plan for a file."""
    return {
        "slos_ms": dict(slos),
        "profile": msgspec.to_builtins(profile),
        "fewest_workers": msgspec.to_builtins(fewest),
        "loads": [
            {**msgspec.to_builtins(result), "sentence": sentence_of(result.verdict)}
            for result in results
        ],
    }


def draw(results: Sequence[LoadResult], slos: Mapping[str, float], target: Path) -> None:
    """Draw the share of requests that meet the SLOs, by division: one line for each load. The
    target's name says the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4))
    for result in results:
        shares = [one.attained for one in result.divisions]
        axis.errorbar(
            [str(one.division) for one in result.divisions],
            [100 * share.value for share in shares],
            yerr=[
                [100 * max(0.0, share.value - share.low) for share in shares],
                [100 * max(0.0, share.high - share.value) for share in shares],
            ],
            marker="o",
            capsize=3,
            label=f"{result.workers} workers, {result.rate:.3g} requests a second",
        )
    axis.set_ylabel(f"requests with {limits(slos)}, %")
    axis.set_ylim(0, 102)
    axis.tick_params(axis="x", rotation=30)
    axis.grid(visible=True, alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(target)
    pyplot.close(figure)
