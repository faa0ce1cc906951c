"""What a simulation of many seeds found: for people, for programs, and as an exit code."""

from collections.abc import Collection, Sequence
from typing import Self

import msgspec
from rich.console import Console
from rich.markup import escape

from baton.dev.sim.run import RunKind
from baton.dev.sim.tally import Tally, Violated

FINE, FAILED, SAFETY, LIVENESS, CRASH, NOT_DETERMINISTIC, INTERRUPTED = 0, 1, 3, 4, 5, 6, 130
CODES = {
    RunKind.FINE: FINE,
    RunKind.SAFETY: SAFETY,
    RunKind.CRASH: CRASH,
    RunKind.LIVENESS: LIVENESS,
}
GRAVEST = (RunKind.SAFETY, RunKind.CRASH, RunKind.LIVENESS)
SHOWN = 8  # violations that are shown


class SimulationReport(msgspec.Struct, frozen=True):
    """The content of `--json`. Shares and marks are shares of worlds, from 0 to 1; marks have the
    names of `baton.core.marks.Mark`."""

    first: int
    seeds: int
    seconds: float
    jobs: int
    interrupted: bool
    seeds_per_second: float
    events_per_second: float
    median_events: float
    median_requests: float
    violations: tuple[Violated, ...]
    marks: dict[str, float]
    never_hit: tuple[str, ...]
    shares: dict[str, float]
    rate: float  # violations per world
    first_seed: int | None  # the first seed that broke an invariant
    planted: str | None
    verdict: str
    differing: tuple[int, ...]  # seeds whose second run was different

    @classmethod
    def of(
        cls,
        tally: Tally,
        *,
        first: int,
        seconds: float,
        jobs: int,
        interrupted: bool,
        planted: str | None,
        expected: Collection[str],
        differing: Sequence[int],
    ) -> Self:
        """Sum up a simulation. `expected`: the invariants that the planted bug is known to break"""
        violations = tuple(sorted(tally.violations, key=lambda v: v.seed))
        return cls(
            first=first,
            seeds=tally.seeds,
            seconds=round(seconds, 3),
            jobs=jobs,
            interrupted=interrupted,
            seeds_per_second=round(tally.seeds / seconds, 2),
            events_per_second=round(tally.events / seconds, 1),
            median_events=tally.median_events,
            median_requests=tally.median_requests,
            violations=violations,
            marks={mark.name: share for mark, share in tally.marks().items()},
            never_hit=tuple(mark.name for mark in tally.never_hit()),
            shares=tally.shares(),
            rate=len(violations) / max(1, tally.seeds),
            first_seed=violations[0].seed if violations else None,
            planted=planted,
            verdict=_verdict(violations, planted, expected),
            differing=tuple(differing),
        )

    def exit_code(self, *, require_marks: bool) -> int:
        """Return the exit code of the most serious finding."""
        kinds = {v.kind for v in self.violations}
        for kind in GRAVEST:
            if kind in kinds:
                return CODES[kind]
        if self.differing:
            return NOT_DETERMINISTIC
        if self.interrupted:
            return INTERRUPTED
        return FAILED if require_marks and self.never_hit else FINE


def _verdict(violations: Sequence[Violated], planted: str | None, expected: Collection[str]) -> str:
    if planted is None:
        return "violated" if violations else "fine"
    if not violations:
        return "not found"
    return (
        "found"
        if not expected or {v.invariant for v in violations} & set(expected)
        else "found by other invariants"
    )


def show(report: SimulationReport, tally: Tally, console: Console) -> None:
    """Print everything, for people."""
    show_findings(report, console)
    if report.seeds:
        _show_reach(report, tally, console)


def show_findings(report: SimulationReport, console: Console) -> None:
    """Print the result in a line, and the violations."""
    _show_line(report, console)
    for violated in report.violations[:SHOWN]:
        console.print(
            f"  [red]seed {violated.seed}[/red]  {violated.kind.value}: {violated.invariant}: "
            f"{escape(violated.detail)}"
        )
    if len(report.violations) > SHOWN:
        console.print(f"  and {len(report.violations) - SHOWN} more")
    for seed in report.differing:
        console.print(f"  [red]seed {seed}[/red]  not deterministic: its second run was another")


def _show_reach(report: SimulationReport, tally: Tally, console: Console) -> None:
    """Print what the worlds were like, and which rare branches they took."""
    console.print(
        f"\na world: {report.median_events:.0f} events, "
        f"{report.median_requests:.0f} requests (medians)"
    )
    console.print(
        "worlds with: " + ", ".join(f"{name} {_percent(share)}" for name, share in _worlds(report))
    )
    console.print(
        f"requests that repeat a prompt: {_percent(report.shares['requests that repeat a prompt'])}"
    )
    console.print("\nrare branches of the core, and the share of worlds that took them:")
    for mark, share in sorted(tally.marks().items(), key=lambda item: -item[1]):
        if share:
            console.print(f"  {_percent(share):>7}  {mark.name:<20} {mark.value}")
    for mark in tally.never_hit():
        console.print(f"  [yellow]  never  {mark.name:<20} {mark.value}[/yellow]")


def _show_line(report: SimulationReport, console: Console) -> None:
    found = {0: "no violation", 1: "1 violation"}.get(
        len(report.violations), f"{len(report.violations)} violations"
    )
    note = " [yellow](interrupted)[/yellow]" if report.interrupted else ""
    plant = f", planted bug {report.planted}: {report.verdict}" if report.planted else ""
    speed = f"{report.seeds_per_second:.1f} seeds/s, {report.events_per_second:,.0f} events/s"
    console.print(
        f"{report.seeds:,} seeds from {report.first} on: [bold]{found}[/bold]{plant};"
        f" {report.seconds:.1f} s, {report.jobs} jobs, {speed}{note}"
    )


def _worlds(report: SimulationReport) -> list[tuple[str, float]]:
    return [
        (name, share) for name, share in report.shares.items() if not name.startswith("requests")
    ]


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 or not share else f"{share:.3%}"
