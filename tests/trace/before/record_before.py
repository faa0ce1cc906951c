"""Records simulated worlds with the code of another commit: run it with that commit's sources on PYTHONPATH.

    git worktree add /tmp/before COMMIT
    PYTHONPATH=/tmp/before/src python tests/trace/before/record_before.py /tmp/logs --seeds 500
    python tests/trace/before/same_effects.py /tmp/logs

Knows that commit's interface alone: a method for each event, and effects that are asked for.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from baton.core.cores import FrontParts, LeaderParts, RankParts
from baton.core.decode import DecodeLeader
from baton.core.front import Front
from baton.core.prefill import PrefillLeader
from baton.core.unified import UnifiedLeader
from baton.journal import entries as e
from baton.journal.recorder import Recorder
from baton.sim.parts import Parts
from baton.sim.run import _replaced, be_silent
from baton.sim.tape import Tape
from baton.sim.world import Violation, World

from baton.core.rank import RankCore

LEADER: dict[str, Callable[..., Any]] = {
    "gateway_up": lambda boot, now: e.GatewayUp(boot),
    "peer_up": lambda boot, now: e.PeerUp(boot),
    "peer_lost": lambda boot, why, now: e.PeerLost(boot, why),
    "receive": lambda sender, message, now: e.Heard(sender, message),
    "reported": lambda report, now: e.Reported(report),
    "on_timer": lambda now: e.Timer(),
}
FRONT: dict[str, Callable[..., Any]] = {
    "submit": lambda submit, now: e.Submitted(submit),
    "cancel": lambda cancel, now: e.Cancelled(cancel),
    "peer_lost": lambda boot, why, now: e.PeerLost(boot, why),
    "receive": lambda sender, message, now: e.Heard(sender, message),
    "on_timer": lambda now: e.Timer(),
}
RANK: dict[str, Callable[..., Any]] = {
    "apply": e.Applied,
    "connected": e.Connected,
    "refused": e.ReadRefused,
    "ended": e.ReadEnded,
    "released": e.ReadReleased,
    "computed": e.Computed,
    "hashed": e.Hashed,
    "copied": e.HostCopied,
    "wedged": e.FoundWedged,
}


class File:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, data: bytes, /) -> None:
        self._file.write(data)


class Logs:
    def __init__(self, directory: Path) -> None:
        self.directory, self.count, self.recorders = directory, 0, list[Recorder]()

    def new(self) -> Recorder:
        self.count += 1
        self.recorders.append(Recorder(File(self.directory / f"{self.count}.baton-log")))
        return self.recorders[-1]


def timed(
    base: type,
    kind: e.Kind,
    table: dict[str, Callable[..., Any]],
    logs: Logs,
    parts: Callable[..., Any],
) -> type:
    """The class with every call written down, of those whose last argument is the time."""

    class Recorded(base):  # type: ignore[misc, valid-type]
        def __init__(self, *made_of: Any) -> None:
            self._log, self._kept, self._inside = logs.new(), [], False
            self._log.write(parts(*made_of))
            super().__init__(*made_of)

        def effects(self) -> list[Any]:
            kept, self._kept = self._kept, []
            return kept

    def method(name: str) -> Callable[..., None]:
        inner = getattr(base, name)

        def call(self: Any, *args: Any) -> None:
            if self._inside:
                return inner(self, *args)
            self._inside = True

            def play() -> list[Any]:
                inner(self, *args)
                return base.effects(self)

            try:
                self._kept += self._log.step(kind, table[name](*args), args[-1], play)
            finally:
                self._inside = False
            return None

        return call

    for name in table:
        setattr(Recorded, name, method(name))
    if kind is e.Kind.FRONT:
        for name, entry in (
            ("ask_ledger", e.LedgerAsked),
            ("ask_clear", e.ClearAsked),
            ("ask_reset_cache", e.ResetCacheAsked),
        ):

            def ask(
                self: Any, *args: Any, _name: str = name, _entry: Any = entry, **named: Any
            ) -> int:
                question: list[int] = []

                def play() -> list[Any]:
                    question.append(getattr(base, _name)(self, *args, **named))
                    return [e.Asked(question[0]), *base.effects(self)]

                self._kept += self._log.step(kind, _entry(*args, **named), 0, play)[1:]
                return question[0]

            setattr(Recorded, name, ask)

        def forget(self: Any, question: int) -> list[str]:
            left: list[str] = []

            def play() -> list[Any]:
                left.extend(base.forget_ledger(self, question))
                return [e.Unanswered(tuple(left)), *base.effects(self)]

            self._kept += self._log.step(kind, e.LedgerForgotten(question), 0, play)[1:]
            return left

        Recorded.forget_ledger = forget
    return Recorded


def rank_of(logs: Logs) -> type:
    class Recorded(RankCore):
        def __init__(self, **made_of: Any) -> None:
            self._log, self._inside = logs.new(), False
            self._log.write(
                RankParts(
                    made_of["rank"], made_of["boot"], tuple(made_of["placements"]), made_of["seal"]
                )
            )
            super().__init__(**made_of)

        def report(self) -> Any:
            found = super().report()
            if found is not None:
                self._log.step(e.Kind.RANK, e.ReportTaken(), 0, lambda: [found])
            return found

    def method(name: str) -> Callable[..., Any]:
        inner = getattr(RankCore, name)

        def call(self: Any, *args: Any) -> Any:
            if self._inside:
                return inner(self, *args)
            self._inside = True
            try:
                return self._log.step(
                    e.Kind.RANK, RANK[name](*args), 0, lambda: inner(self, *args) or []
                )
            finally:
                self._inside = False

        return call

    for name in RANK:
        setattr(Recorded, name, method(name))
    return Recorded


def record(seed: int, directory: Path) -> None:
    """All processes of one world."""
    directory.mkdir(parents=True, exist_ok=True)
    logs = Logs(directory)
    leads = {
        base: timed(
            base, e.Kind.LEADER, LEADER, logs, lambda m, s, t, *rest: LeaderParts(m, s, dict(t))
        )
        for base in (PrefillLeader, DecodeLeader, UnifiedLeader)
    }

    class DrawnFront(
        timed(Front, e.Kind.FRONT, FRONT, logs, lambda boot, s, bits: FrontParts(boot, s))
    ):  # type: ignore[misc]
        def __init__(self, boot: Any, settings: Any, bits: Any) -> None:
            def draw(n: int) -> int:
                value: int = bits(n)
                self._log.answered(e.DrewBits(n, f"{value:x}"))
                return value

            super().__init__(boot, settings, draw)

    parts = Parts(
        front=DrawnFront,
        prefill=leads[PrefillLeader],
        decode=leads[DecodeLeader],
        unified=leads[UnifiedLeader],
        rank=rank_of(logs),
    )
    with _replaced(parts):
        try:
            World(Tape(seed=seed), parts).run()
        except Violation as found:
            print(f"seed {seed}: {found}")
    for recorder in logs.recorders:
        recorder.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    wanted = parser.parse_args()
    be_silent()
    for seed in range(wanted.first, wanted.first + wanted.seeds):
        record(seed, wanted.directory / str(seed))


main()
