"""What is done with a failing seed: it is run again in this process, shrunk, kept as a file and
offered as a test."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from baton.core.errors import ConfigError
from baton.dev.cli.simulation.planted import parts_of
from baton.dev.sim.regression import encoded, regression, snippet
from baton.dev.sim.run import PROCESS_ENDED, be_silent, run
from baton.dev.sim.shrink import shrink
from baton.dev.sim.tally import Violated

AT_MOST = 3  # runs that one simulation keeps, each with another invariant


class Keeper:
    """Keeps failing runs.

    Attributes:
        differing: seeds that did not break the same invariant again, with the same choices
    """

    def __init__(
        self,
        directory: Path,
        planted: str | None,
        *,
        guests: bool,
        runs: int,
        console: Console,
    ) -> None:
        self._guests = guests
        self._directory, self._planted, self._runs, self._console = (
            directory,
            planted,
            runs,
            console,
        )
        self.differing: list[int] = []

    def keep(self, violations: Sequence[Violated]) -> None:
        """Keep the first run of each broken invariant, as long as the budget lasts.

        Raises:
            ConfigError: a file cannot be written
        """
        be_silent()
        for violated in violations[:AT_MOST] if self._runs else ():
            if violated.invariant != PROCESS_ENDED:  # such a run would end this process too
                self._keep(violated)

    def _keep(self, violated: Violated) -> None:
        parts = parts_of(self._planted, guests=self._guests)
        first = run(violated.seed, parts=parts)
        small = first
        if first.invariant == violated.invariant:
            with self._console.status(f"making seed {violated.seed} small: {violated.invariant}"):
                small = run(
                    script=shrink(first.choices, parts, first.invariant, self._runs), parts=parts
                )
        if small.invariant != violated.invariant:
            self.differing.append(violated.seed)
            return
        kept = regression(small, self._planted, seed=violated.seed, guests=self._guests)
        file = self._write(f"{violated.invariant}-{violated.seed}.json", encoded(kept))
        before, after = len(first.choices), len(kept.choices)
        self._console.print(
            f"\nseed {violated.seed}: {before} choices, {after} are enough: {escape(kept.detail)}"
        )
        for choice in kept.choices:
            self._console.print(escape(f"{choice.at:>6}  {choice.label}: {choice.choice}"))
        self._console.print(escape(f"read it: baton sim replay {file}\n\n{snippet(kept)}"))

    def _write(self, name: str, content: bytes) -> Path:
        file = self._directory / (name if self._planted is None else f"{self._planted}-{name}")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        except OSError as error:
            raise ConfigError(
                f"--keep {self._directory}: cannot write {file}: {error.strerror}"
            ) from error
        return file
