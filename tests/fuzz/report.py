"""What a run of a fuzzer has found."""

import time
from collections import Counter
from dataclasses import dataclass, field

import psutil

MOST = 20  # inputs that are shown


def resident_mib(pid: int | None = None) -> float:
    """The memory that a process, by default this one, holds now."""
    return float(psutil.Process(pid).memory_info().rss) / (1 << 20)


@dataclass
class Report:
    """Counts, and every input that broke something.

    Attributes:
        outcomes: what became of the inputs
        broken: what was wrong, with the input
        slowest_s: the longest time of one input
        growth_mib: memory that was held at the end, and not when a tenth was done, by process
    """

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    growth_mib: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    _kinds: set[str] = field(default_factory=set)

    def breaks(self, what: str, raw: bytes = b"", *, kind: str = "") -> None:
        """Note one input that broke something; a thousand of a kind tell no more than one."""
        if kind and kind in self._kinds:
            return
        self._kinds.add(kind)
        if len(self.broken) < MOST:
            self.broken.append(f"{what}: {raw[:400]!r}")

    def lines(self) -> list[str]:
        """The report for people."""
        took = time.monotonic() - self.began
        counts = ", ".join(f"{n:,} {what}" for what, n in self.outcomes.most_common(12))
        grown = ", ".join(f"{who} {mib:+.0f} MiB" for who, mib in self.growth_mib.items())
        total = sum(self.outcomes.values())
        return [
            f"{self.name}: {total:,} inputs in {took:.0f} s; slowest {self.slowest_s * 1e3:.0f} ms",
            f"  {counts}",
            f"  memory: {grown or 'not measured'}",
            *(f"  BROKEN {what}" for what in self.broken),
        ]
