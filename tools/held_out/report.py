"""A plan and reality, load by load: figures, a table, and a plot."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from tools.held_out.live import LiveRun
from tools.held_out.loads import LAYOUTS, HeldOutLoad, verdict_of

from baton.dev.fleet.profile import MachineProfile
from baton.dev.fleet.served_request import ServedRequest
from baton.dev.planning.judging import Advice, ServedDivision, is_met, times_of


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What became of some requests. Times in milliseconds, medians of those that were answered."""

    attained: float
    failed: int
    ttft: float
    tpot: float


def figures(served: Sequence[ServedRequest], slos: Mapping[str, float]) -> Figures:
    """Return the figures of some requests."""
    times = [found for one in served if (found := times_of(one)) is not None]
    return Figures(
        attained=sum(is_met(one, slos) for one in served) / len(served),
        failed=len(served) - len(times),
        ttft=median(t["ttft"] for t in times) if times else 0.0,
        tpot=median(t["tpot"] for t in times) if times else 0.0,
    )


def measured_verdict(rounds: Mapping[str, Sequence[LiveRun]], slos: Mapping[str, float]) -> str:
    """Return which layout served a load better, as a plan judges that; noise unless every round
    with it was better than every round with the other."""
    both = {name: [one for run in runs for one in run.served] for name, runs in rounds.items()}
    found = verdict_of(both, slos)
    if found not in LAYOUTS:
        return found
    shares = {name: [figures(r.served, slos).attained for r in rounds[name]] for name in LAYOUTS}
    others = max(share for name in LAYOUTS if name != found for share in shares[name])
    return found if min(shares[found]) > others else Advice.NOISE.value


def compared(
    load: HeldOutLoad,
    plans: Mapping[str, ServedDivision],
    apart: Mapping[str, ServedDivision],
    rounds: Mapping[str, Sequence[LiveRun]],
    *,
    advice: str,
    advice_apart: str,
) -> dict[str, Any]:
    """Return everything about one load, as JSON's types.

    plans, apart: with cores that all share, and as if each process had its own
    advice, advice_apart: which layout each of the two recommends
    """
    both = {name: [one for run in runs for one in run.served] for name, runs in rounds.items()}
    layouts = {}
    for name in LAYOUTS:
        plan, real = figures(plans[name].served, load.slos), figures(both[name], load.slos)
        layouts[name] = {
            "planned": msgspec.to_builtins(plan),
            "planned_apart": msgspec.to_builtins(figures(apart[name].served, load.slos)),
            "measured": msgspec.to_builtins(real),
            "rounds": [msgspec.to_builtins(figures(run.served, load.slos)) for run in rounds[name]],
            "planned_busy": plans[name].busy,
            "cores": {
                process: sum(run.cores.get(process, 0.0) for run in rounds[name])
                / len(rounds[name])
                for process in rounds[name][0].cores
            },
            "pace": [dict(run.pace) for run in rounds[name]],
            "late_p99_ms": max(run.late_ms for run in rounds[name]),
        }
    return {
        "mix": load.mix,
        "fraction": load.fraction,
        "rate": load.rate,
        "requests": len(load.rows),
        "slos_ms": load.slos,
        "verdict": {
            "planned": advice,
            "planned_apart": advice_apart,
            "measured": measured_verdict(rounds, load.slos),
        },
        "layouts": layouts,
    }


def document(
    rows: Sequence[Mapping[str, Any]], profile: MachineProfile, machine: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all loads, and how far the plan was off."""
    cells = [cell for row in rows for cell in row["layouts"].values()]
    return {
        "machine": dict(machine),
        "errors": {
            **errors_of(cells, "planned"),
            "verdicts": verdicts(rows, "planned"),
        },
        "errors_apart": {
            **errors_of(cells, "planned_apart"),
            "verdicts": verdicts(rows, "planned_apart"),
        },
        "pace": pace_of(cells),
        "loads": list(rows),
        "profile": msgspec.to_builtins(profile),
    }


def pace_of(cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return how long steps took beside the profile's: one ratio for each worker, load and
    round."""
    found = sorted(ratio for cell in cells for run in cell["pace"] for ratio in run.values())
    tenth = (len(found) - 1) // 10
    return {"median": median(found), "p10": found[tenth], "p90": found[len(found) - 1 - tenth]}


def verdicts(rows: Sequence[Mapping[str, Any]], plan: str) -> dict[str, int]:
    """Count the loads under which one layout was better at the service, and the plan said so, or
    recommended the other."""
    found = [(row["verdict"][plan], row["verdict"]["measured"]) for row in rows]
    outside = [(planned, real) for planned, real in found if real in LAYOUTS]
    return {
        "loads": len(found),
        "alike": sum(planned == real for planned, real in found),
        "outside_noise": len(outside),
        "right": sum(planned == real for planned, real in outside),
        "opposite": sum(planned in LAYOUTS and planned != real for planned, real in outside),
    }


def errors_of(cells: Sequence[Mapping[str, Any]], plan: str) -> dict[str, Any]:
    """Return how far a plan was off."""
    errors = [abs(cell[plan]["attained"] - cell["measured"]["attained"]) for cell in cells]
    found: dict[str, Any] = {
        "attained_error": {"median": median(errors), "worst": max(errors)},
        "attained_within_5_points": sum(error <= 0.05 for error in errors),
        "runs": len(cells),
    }
    for name in ("ttft", "tpot"):
        off = [
            abs(cell[plan][name] / cell["measured"][name] - 1)
            for cell in cells
            if cell["measured"][name]
        ]
        again = [
            max(times) / min(times) - 1
            for cell in cells
            if len(times := [r[name] for r in cell["rounds"]]) > 1 and min(times) > 0
        ]
        found[f"{name}_error"] = {"median": median(off), "worst": max(off)} if off else None
        found[f"{name}_within_10_percent"] = sum(one <= 0.1 for one in off)
        found[f"{name}_between_rounds"] = median(again) if again else None
    return found


def table(found: Mapping[str, Any]) -> str:
    """Return a table in Markdown, and a sentence with the errors."""
    head = ["load", "a second", "layout"]
    head += ["within SLOs, planned", "measured", "difference"]
    head += ["TTFT p50, planned", "measured", "ratio", "TPOT p50, planned", "measured", "ratio"]
    head += ["steps took, of the profile", "verdict, planned", "planned apart", "measured"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in found["loads"]:
        for number, (name, cell) in enumerate(row["layouts"].items()):
            first = number == 0
            cells = [row["mix"], f"{row['rate']:.2f}"] if first else ["", ""]
            cells += [name, *_shares(cell), *_times(cell, "ttft", 0), *_times(cell, "tpot", 1)]
            cells.append(_pace(cell))
            told = [row["verdict"][one] for one in ("planned", "planned_apart", "measured")]
            cells += told if first else [""] * len(told)
            lines.append(f"| {' | '.join(cells)} |")
    pace = found["pace"]
    said = (
        f"Steps took {pace['median']:.2f} times as long as by the profile (median of workers, loads and "
        f"rounds; {pace['p10']:.2f} to {pace['p90']:.2f} are 10th and 90th percentile).\n\n"
        f"Median differences: {sentence(found['errors'])}."
    )
    if found["errors_apart"] == found["errors"]:
        return "\n".join([*lines, "", said])
    apart = f"As if each process had its own cores: {sentence(found['errors_apart'])}."
    return "\n".join([*lines, "", said, "", apart])


def sentence(errors: Mapping[str, Any]) -> str:
    """Return how far the plan was off, in words."""
    runs = errors["runs"]

    def off(name: str) -> str:
        one = errors[f"{name}_error"]
        if one is None:
            return "none measured"
        again = errors[f"{name}_between_rounds"]
        return (
            f"{100 * one['median']:.0f} % (worst {100 * one['worst']:.0f} %; within 10 %: "
            f"{errors[f'{name}_within_10_percent']} of {runs}"
            f"{'' if again is None else f'; between the rounds {100 * again:.0f} %'})"
        )

    share, counts = errors["attained_error"], errors["verdicts"]
    return (
        f"within SLOs {100 * share['median']:.1f} points (worst "
        f"{100 * share['worst']:.1f}; within 5: {errors['attained_within_5_points']} of {runs}), "
        f"TTFT {off('ttft')}, TPOT {off('tpot')}. One layout was better at the service, beyond its "
        f"noise, under {counts['outside_noise']} of {counts['loads']} loads; the plan said so of "
        f"{counts['right']}, and recommended the other of {counts['opposite']}. Verdicts alike: "
        f"{counts['alike']} of {counts['loads']}"
    )


def _shares(cell: Mapping[str, Any]) -> list[str]:
    rounds = [f"{100 * one['attained']:.0f}" for one in cell["rounds"]]
    return [
        f"{100 * cell['planned']['attained']:.0f} %",
        f"{100 * cell['measured']['attained']:.0f} % ({', '.join(rounds)})",
        f"{100 * (cell['planned']['attained'] - cell['measured']['attained']):+.0f}",
    ]


def _times(cell: Mapping[str, Any], name: str, digits: int) -> list[str]:
    rounds = [f"{one[name]:.{digits}f}" for one in cell["rounds"]]
    real = cell["measured"][name]
    return [
        f"{cell['planned'][name]:.{digits}f}",
        f"{cell['measured'][name]:.{digits}f} ({', '.join(rounds)})",
        f"{cell['planned'][name] / real:.2f}" if real else "",
    ]


def _pace(cell: Mapping[str, Any]) -> str:
    workers = dict.fromkeys(name for run in cell["pace"] for name in run)
    found = {name: [run[name] for run in cell["pace"] if name in run] for name in workers}
    return ", ".join(
        f"{name} {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        for name, ratios in found.items()
    )


def plot(found: Mapping[str, Any], target: Path) -> None:
    """Draw planned and measured figures over the rate, as PNG and SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    mixes = list(dict.fromkeys(row["mix"] for row in found["loads"]))
    parts = (
        ("attained", "within SLOs, %", 100.0),
        ("ttft", "TTFT p50, ms", 1.0),
        ("tpot", "TPOT p50, ms", 1.0),
    )
    figure, axes = pyplot.subplots(
        len(parts),
        len(mixes),
        figsize=(4 * len(mixes), 3 * len(parts)),
        squeeze=False,
        sharex="col",
    )
    for column, mix in enumerate(mixes):
        rows = [row for row in found["loads"] if row["mix"] == mix]
        for axis, (name, label, factor) in zip(axes[:, column], parts, strict=True):
            for layout, colour in (("split", "#2563eb"), ("unified", "#d97706")):
                cells = [row["layouts"][layout] for row in rows]
                rates = [row["rate"] for row in rows]
                plan = [factor * cell["planned"][name] for cell in cells]
                axis.plot(rates, plan, color=colour, label=f"{layout}, planned")
                real = [factor * cell["measured"][name] for cell in cells]
                low, high = (
                    [factor * edge(one[name] for one in cell["rounds"]) for cell in cells]
                    for edge in (min, max)
                )
                around = [
                    [max(0.0, r - one) for r, one in zip(real, low, strict=True)],
                    [max(0.0, one - r) for r, one in zip(real, high, strict=True)],
                ]
                axis.errorbar(
                    *(rates, real, around),
                    color=colour,
                    fmt="o",
                    capsize=3,
                    label=f"{layout}, measured (all rounds)",
                )
            axis.set_ylim(bottom=0)
            axis.grid(visible=True, alpha=0.3)
            if column == 0:
                axis.set_ylabel(label)
        axes[0][column].set_title(mix)
        axes[-1][column].set_xlabel("requests a second")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    for ending in ("png", "svg"):
        figure.savefig(target.with_suffix(f".{ending}"))
    pyplot.close(figure)


def write(found: Mapping[str, Any], target: Path, *, plots: bool) -> None:
    """Write TARGET.json and TARGET.md, and the plots."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    target.with_suffix(".md").write_text(table(found) + "\n")
    if plots:
        plot(found, target)
