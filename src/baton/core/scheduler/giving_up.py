"""Finds steps that no rank will ever end: all ranks that still work on one are wedged (pure).

rank 0: wedged ──┐
rank 1: ended  ──┼──▶ given up        rank 2 says nothing: it was stopped, and the others wait for it; or its process is
rank 2: wedged ──┘                    gone, and its session tells us
"""

from collections.abc import Collection, Mapping

from baton.core.agreement import Report
from baton.core.ids import Rank, Seq


class Wedges:
    """Collects what the ranks of one worker say about steps that do not end."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        # for each step under way, the reasons of the ranks on which it does not end
        self._said: dict[Seq, dict[Rank, str]] = {}

    def __len__(self) -> int:
        """Return the number of steps that a rank has reported and that have not ended."""
        return len(self._said)

    def ended(self, seq: Seq) -> None:
        """A step has ended on every rank after all."""
        self._said.pop(seq, None)

    def judge(
        self, report: Report, ended_on: Mapping[Seq, Collection[Rank]]
    ) -> tuple[str, Seq | None] | None:
        """Return why the worker cannot go on, and in which step; None if it can go on.

        ended_on: the steps under way, each with the ranks on which it has ended
        """
        for found in report.wedged:
            if found.seq is None:
                return found.why, None  # hashes and copies wait for nobody
            if found.seq in ended_on:
                self._said.setdefault(found.seq, {})[report.rank] = found.why
        for seq, ranks in self._said.items():
            if len(ranks.keys() | set(ended_on[seq])) == self._ranks:
                return next(iter(ranks.values())), seq
        return None
