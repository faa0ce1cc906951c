"""Measures the checkers: makes small mistakes in the core, one at a time, and counts how many the
simulator and the tests find.

tools/mutation_gate.py --sample 300 --seed 0     a sample, judged by 500 worlds and by the unit tests
tools/mutation_gate.py --module decode           all mutants of one module
tools/mutation_gate.py --known                   those that are known to be found: a minute, part of `make check`
tools/mutation_gate.py --list --module early     their names, and nothing is run

Exit codes: 0 fine, 1 a share is below what is required or a known one was not found, 2 bad usage, 3
the shipped code fails.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: E402

from document import with_parts  # noqa: E402
from mutation import known  # noqa: E402
from mutation.gate import Judging, Verdict, of_reach, plain  # noqa: E402
from mutation.mutants import ROOT, Mutant, equivalents, of_core, sample  # noqa: E402
from mutation.reach import NotGreen, measure, sources  # noqa: E402
from mutation.report import counted, interval, markdown, short, survivors  # noqa: E402

WORLDS = 500
TEST_SECONDS = 60.0
CACHE = ROOT / ".mutation"
PAGE = ROOT / "docs" / "simulation.md"
console = Console(highlight=False, soft_wrap=True)


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sample", type=int, metavar="N", help="so many, drawn by the seed (default: all)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument(
        "--module",
        action="append",
        default=[],
        metavar="NAME",
        help="of core/NAME.py alone; may be repeated",
    )
    parser.add_argument("--only", metavar="TEXT", help="those whose name contains this")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="J")
    parser.add_argument(
        "--worlds",
        type=int,
        default=WORLDS,
        metavar="N",
        help=f"that a mutant is judged by ({WORLDS})",
    )
    parser.add_argument(
        "--test-seconds",
        type=float,
        default=TEST_SECONDS,
        metavar="T",
        help=f"of tests that judge a mutant ({TEST_SECONDS:.0f})",
    )
    parser.add_argument("--require-simulation", type=float, default=0.0, metavar="SHARE")
    parser.add_argument("--require-all", type=float, default=0.0, metavar="SHARE")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every verdict there, as it comes"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="take from --json what was judged there already with these sources",
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    parser.add_argument(
        "--docs",
        action="store_true",
        help="write the table, and how it was made, into docs/simulation.md",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=CACHE,
        metavar="DIR",
        help="keeps which worlds and tests reach which line",
    )
    parser.add_argument(
        "--known", action="store_true", help="judge those that are known to be found, quickly"
    )
    parser.add_argument(
        "--choose-known",
        action="store_true",
        help="choose those anew, drawn by the seed: some minutes",
    )
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    return parser.parse_args()


def main() -> int:
    """Command line."""
    args = arguments()
    try:
        mutants = of_core(args.module) if not args.known else []
    except ValueError as error:
        print(f"mutation_gate: {error}", file=sys.stderr)
        return 2
    excused = equivalents()
    if args.known:
        return judge_known(args.jobs)
    if args.choose_known:
        known.write(chosen := known.choose(excused, args.seed, args.jobs))
        print(f"{len(chosen)} mutants in {known.FILE.relative_to(ROOT)}")
        return 0
    stale = [] if args.module else sorted(set(excused) - {mutant.name for mutant in mutants})
    chosen = [
        m for m in mutants if m.name not in excused and (args.only is None or args.only in m.name)
    ]
    chosen = chosen if args.sample is None else sample(chosen, args.sample, args.seed)
    if args.list:
        for mutant in chosen:
            print(f"{mutant.name}  {short(mutant.change)}")
        return 0
    try:
        reach = measure(args.worlds, args.jobs, args.cache)
    except NotGreen as error:
        print(f"mutation_gate: {error}; mend that first", file=sys.stderr)
        return 3
    record = Record(args, len(mutants) - len(excused) + len(stale), stale)
    earlier = record.earlier({mutant.name for mutant in chosen}) if args.resume else []
    left = [m for m in chosen if m.name not in {verdict.name for verdict in earlier}]
    judge(of_reach(left, reach, args.test_seconds, args.jobs), len(chosen), record, earlier)
    return record.summary()


class Record:
    """Verdicts as they come, and what is said of them in the end."""

    def __init__(self, args: argparse.Namespace, of: int, stale: Sequence[str]) -> None:
        self._args, self._of, self._stale = args, of, list(stale)
        self._sources = sources()
        self.verdicts: list[Verdict] = []

    def earlier(self, names: Collection[str]) -> list[Verdict]:
        """Those of the file, if they were made with the same sources."""
        path = self._args.json
        document = json.loads(path.read_text()) if path is not None and path.exists() else {}
        if (document.get("sources"), document.get("worlds")) != (self._sources, self._args.worlds):
            return []
        return [Verdict(**verdict) for verdict in document["verdicts"] if verdict["name"] in names]

    def add(self, verdict: Verdict) -> None:
        """One more; the file holds it from now on."""
        self.verdicts.append(verdict)
        if self._args.json is not None:
            document = {
                "sources": self._sources,
                "seed": self._args.seed,
                "worlds": self._args.worlds,
                "of": self._of,
                "stale": self._stale,
                "verdicts": [plain(verdict) for verdict in self.verdicts],
            }
            self._args.json.write_text(json.dumps(document, indent=1))

    def summary(self) -> int:
        """Say what was found; returns the exit code."""
        args, count = self._args, counted(self.verdicts)
        if args.markdown is not None:
            args.markdown.write_text(markdown(self.verdicts) + "\n")
        if args.docs:
            PAGE.write_text(with_parts(PAGE.read_text(), {"mutants": self._part()}))
        console.print(markdown(self.verdicts), markup=False)
        for line in survivors(self.verdicts):
            console.print(line, markup=False)
        for name in self._stale:
            console.print(
                f"stale: {name} is no mutant any more; take it out of equivalents.toml",
                markup=False,
            )
        console.print(f"\n{self._line()}")
        enough = count.by_simulation >= args.require_simulation and count.by_all >= args.require_all
        if not enough:
            console.print(f"required: {args.require_simulation:.1%} and {args.require_all:.1%}")
        return 0 if enough and not self._stale else 1

    def _line(self) -> str:
        args, count = self._args, counted(self.verdicts)
        return (
            f"{count.mutants:,} of {self._of:,} mutants, seed {args.seed}, {args.worlds} "
            "worlds: simulation alone"
            f" {_share(count.by_simulation, count.mutants)}, with unit tests "
            f"{_share(count.by_all, count.mutants)}"
        )

    def _part(self) -> str:
        """What the docs say."""
        args = self._args
        which = "".join(f" --module {name}" for name in args.module) + (
            f" --sample {args.sample}" if args.sample else ""
        )
        return (
            f"`tools/mutation_gate.py{which} --seed {args.seed}`: "
            f"{self._line()}.\n\n{markdown(self.verdicts)}"
        )


def judge(judging: Judging, total: int, record: Record, earlier: Sequence[Verdict]) -> None:
    """All verdicts; when this is interrupted, those so far."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    # Without a thread of its own: this process forks.
    with Progress(
        *columns, console=Console(stderr=True), auto_refresh=False, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("mutants", total=total)

        def done(verdict: Verdict) -> None:
            record.add(verdict)
            count = counted(record.verdicts)
            said = f"simulation {count.by_simulation:.1%}, all {count.by_all:.1%}"
            bar.update(task, advance=1, description=said, refresh=True)
            if not sys.stderr.isatty() and count.mutants % 25 == 0:
                print(f"{count.mutants} of {total}: {said}", file=sys.stderr, flush=True)

        for verdict in earlier:
            done(verdict)
        try:
            judging.run(done)
        except KeyboardInterrupt:
            console.print(f"interrupted after {len(record.verdicts)} of {total}")


def _share(share: float, of: int) -> str:
    low, high = interval(share, of)
    return f"{share:.1%} (95 %: {low:.1%} to {high:.1%})"


def judge_known(jobs: int) -> int:
    """The sample of `make check`."""
    entries = known.read()
    mutants: dict[str, Mutant] = {
        m.name: m for m in of_core(sorted({e.name.split(":")[0] for e in entries}))
    }
    here = {e.name: e for e in entries if e.name in mutants}
    missed: list[Verdict] = []

    def done(verdict: Verdict) -> None:
        if not verdict.found_by:
            missed.append(verdict)

    known.judging([mutants[name] for name in here], here, jobs).run(done)
    for verdict in missed:
        console.print(
            f"not found any more: {verdict.name}\n    {short(verdict.change)}", markup=False
        )
    console.print(
        f"{len(here) - len(missed)} of {len(here)} known mutants found; "
        f"{len(entries) - len(here)} are gone from the code"
    )
    if len(here) < known.LEAST * len(entries):
        console.print("too few are left; choose others: tools/mutation_gate.py --choose-known")
        return 1
    return 1 if missed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # a mutant's verdict is the same in every run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    # a shell's background job has the first one ignored
    for ends in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ends, signal.default_int_handler)
    sys.exit(main())
