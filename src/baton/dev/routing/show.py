"""Tables and plots of a comparison of routing policies."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from baton.dev.routing.cells import CellResult

Groups = Mapping[tuple[str, int], Mapping[float, Mapping[str, CellResult]]]


def grouped(results: Sequence[CellResult]) -> Groups:
    """Return results by trace and number of workers, load, and policy."""
    found: dict[tuple[str, int], dict[float, dict[str, CellResult]]] = {}
    for r in results:
        loads = found.setdefault((r.cell.trace, r.cell.workers), {})
        loads.setdefault(r.cell.load, {})[r.cell.policy] = r
    return found


def table(results: Sequence[CellResult]) -> str:
    """Return the mean times to the first token as a Markdown table, the best of each row in
    bold."""
    policies = list(dict.fromkeys(r.cell.policy for r in results))
    lines = [
        f"| trace | workers | load | {' | '.join(policies)} |",
        f"|---|---|---|{'---|' * len(policies)}",
    ]
    for (trace, workers), loads in grouped(results).items():
        for load, by_policy in loads.items():
            best = min(r.mean for r in by_policy.values())
            cells = [_shown(by_policy.get(policy), best) for policy in policies]
            lines.append(f"| {trace} | {workers} | {load:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(result: CellResult | None, best: float) -> str:
    if result is None:
        return ""
    text = f"{result.mean:.2f}"
    return f"**{text}**" if result.mean == best else text


def plot(results: Sequence[CellResult], target: Path) -> None:
    """Draw the mean times to the first token over the load, as PNG and SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = grouped(results)
    figure, axes = pyplot.subplots(
        1, len(groups), figsize=(4.2 * len(groups), 4), sharey=True, squeeze=False
    )
    policies = list(dict.fromkeys(r.cell.policy for r in results))
    for axis, ((trace, workers), loads) in zip(axes[0], groups.items(), strict=True):
        for number, policy in enumerate(policies):
            points = [(load, by[policy].mean) for load, by in loads.items() if policy in by]
            bold = {"linewidth": 2.5, "zorder": 3} if policy == "priced" else {"linewidth": 1.2}
            # of every axis, so that a policy has one colour and all are in the legend
            xs, ys = zip(*points, strict=True) if points else ((), ())
            axis.plot(xs, ys, marker="o", label=policy, color=f"C{number}", **bold)
        axis.set_yscale("log")
        axis.set_title(f"{trace}, {workers} workers")
        axis.set_xlabel("load, as a multiple of the trace's rate")
        axis.grid(visible=True, which="major", alpha=0.3)
    axes[0][0].set_ylabel("mean TTFT, seconds")
    axes[0][-1].legend()
    figure.tight_layout()
    for ending in ("png", "svg"):
        figure.savefig(target.with_suffix(f".{ending}"))
