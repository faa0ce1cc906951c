"""What was measured, as JSON, as a table, and as a plot."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.peers.case import Case

OURS = "baton"


class Row(NamedTuple):
    """One case with one number of threads.

    Attributes:
        seconds: by engine, of every turn
        read_gb_s, gemm_gflop_s: what the machine did in the same turns
    """

    case: Case
    threads: int
    seconds: Mapping[str, Sequence[float]]
    read_gb_s: Sequence[float]
    gemm_gflop_s: Sequence[float]

    def median_ms(self, engine: str) -> float:
        """Median milliseconds."""
        return 1000 * statistics.median(self.seconds[engine])

    def spread(self, engine: str) -> float:
        """How far apart the quartiles are, as a share of the median."""
        values = self.seconds[engine]
        if len(values) < 2:
            return 0.0
        low, _, high = statistics.quantiles(values, n=4)
        return (high - low) / statistics.median(values)

    def ratio(self, engine: str) -> float:
        """How long ours takes, as a multiple of what that engine takes."""
        return self.median_ms(OURS) / self.median_ms(engine)

    def limit_ms(self, weights_bytes: int, weights: int) -> float:
        """Return the machine's own limit: weights are read once for each pass, and each token takes
        two operations a weight."""
        tokens = self.case.batch * (self.case.tokens if self.case.what == "prefill" else 1)
        read = weights_bytes / statistics.median(self.read_gb_s) / 1e9
        computed = 2 * weights * tokens / statistics.median(self.gemm_gflop_s) / 1e9
        return 1000 * max(read, computed)


def document(rows: Sequence[Row], *, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything as JSON's types."""
    return {
        "machine": dict(machine),
        "rows": [
            {
                "case": row.case.name,
                "threads": row.threads,
                "ms": {name: round(row.median_ms(name), 2) for name in row.seconds},
                "spread": {name: round(row.spread(name), 3) for name in row.seconds},
                "ratio": {name: round(row.ratio(name), 3) for name in row.seconds if name != OURS},
                "limit_ms": round(row.limit_ms(machine["weights_bytes"], machine["weights"]), 2),
                "turns": len(row.read_gb_s),
            }
            for row in rows
        ],
    }


def outside(found: Mapping[str, Any], committed: Mapping[str, Any], band: float) -> list[str]:
    """Return the ratios that differ from the committed ones by more than `band`, a share of these,
    as sentences; cases and engines that only one of the two has are left out.

    Raises:
        ValueError: they have no ratio in common
    """
    known = {(row["case"], row["threads"]): row["ratio"] for row in committed["rows"]}
    pairs = [
        (f"{row['case']}, threads {row['threads']}, beside {name}", ratio, before[name])
        for row in found["rows"]
        if (before := known.get((row["case"], row["threads"]))) is not None
        for name, ratio in row["ratio"].items()
        if name in before
    ]
    if not pairs:
        raise ValueError("the two have no ratio in common: no case of the same engine and threads")
    return [
        f"{what}: {ratio:.2f}, committed {before:.2f}, a difference of more than {band:.0%}"
        for what, ratio, before in pairs
        if abs(ratio / before - 1) > band
    ]


def table(found: Mapping[str, Any]) -> str:
    """Return a table in Markdown. A ratio is our time over theirs: below 1 ours is faster."""
    names = list(found["rows"][0]["ms"])
    others = [name for name in names if name != OURS]
    head = ["case", "threads", "limit", *names, *(f"beside {name}" for name in others)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in found["rows"]:
        cells = [row["case"], str(row["threads"]), f"{row['limit_ms']:,.1f}"]
        cells += [f"{row['ms'][name]:,.1f}" for name in names]
        cells += [f"{row['ratio'][name]:.2f}" for name in others]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(found: Mapping[str, Any], target: Path) -> None:
    """Draw the times beside ours, as PNG and SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = found["rows"]
    others = list(rows[0]["ratio"])
    figure, axes = pyplot.subplots(figsize=(9, 0.32 * len(rows) * len(others) + 1.5))
    for n, name in enumerate(others):
        at = [i * (len(others) + 1) + n for i in range(len(rows))]
        axes.barh(at, [1 / row["ratio"][name] for row in rows], label=name)
    axes.axvline(1, color="black", linewidth=1)
    labels = [f"{row['case']}, {row['threads']} threads" for row in rows]
    axes.set_yticks([i * (len(others) + 1) + (len(others) - 1) / 2 for i in range(len(rows))])
    axes.set_yticklabels(labels)
    axes.invert_yaxis()
    axes.set_xlabel("their time over Baton's: right of the line Baton is faster")
    axes.legend()
    figure.tight_layout()
    for ending in ("png", "svg"):
        figure.savefig(target.with_suffix(f".{ending}"))


def write(found: Mapping[str, Any], target: Path, *, plots: bool) -> None:
    """Write TARGET.json and TARGET.md, and the plots."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    target.with_suffix(".md").write_text(table(found) + "\n")
    if plots:
        plot(found, target)
