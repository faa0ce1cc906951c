"""Steps that do not end on some ranks: when none of those that still work on one will end it
(pure).

rank 0: wedged ──┐
rank 1: ended  ──┼──▶ given up        rank 2 says nothing: it was stopped, and the others wait for it; or its process is
rank 2: wedged ──┘                    gone, which its session says
"""

from collections.abc import Collection, Mapping

from baton.core.agreement import Report
from baton.core.ids import Rank, Seq


class Wedges:
    """What the ranks of one worker have said."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        # of steps under way, by ranks on which they do not end
        self._said: dict[Seq, dict[Rank, str]] = {}

    def __len__(self) -> int:
        """Steps of which something was said, and that have not ended."""
        return len(self._said)

    def ended(self, seq: Seq) -> None:
        """A step has ended everywhere after all."""
        self._said.pop(seq, None)

    def judge(
        self, report: Report, ended_on: Mapping[Seq, Collection[Rank]]
    ) -> tuple[str, Seq | None] | None:
        """Why the worker cannot go on, and in which step; None if it can. ended_on: steps under
        way, and where they have ended"""
        for found in report.wedged:
            if found.seq is None:
                return found.why, None  # hashes and copies wait for nobody
            if found.seq in ended_on:
                self._said.setdefault(found.seq, {})[report.rank] = found.why
        for seq, ranks in self._said.items():
            if len(ranks.keys() | set(ended_on[seq])) == self._ranks:
                return next(iter(ranks.values())), seq
        return None
