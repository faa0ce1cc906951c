"""What workers write down of their steps, so that these are compared with a profile."""

from pathlib import Path

import msgspec

COMPUTING, PACED = "computing", "paced"


class RecordedStep(msgspec.Struct, frozen=True):
    """A step. All are seconds; `began` is of the machine's monotonic clock."""

    began: float
    took: float
    planned: float


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """How workers write down their steps.

    Attributes:
        profile: the file of what a step takes by the plan
        directory: where each worker's steps are written
        paced: steps take the profile's times and compute nothing
    """

    profile: Path
    directory: Path
    paced: bool = False

    def arguments(self, worker: str) -> list[str]:
        """Return what `tools.held_out.worker` is to be told."""
        kind = PACED if self.paced else COMPUTING
        return [str(self.profile), str(self._file(worker)), kind]

    def pace(self, worker: str, since: float) -> float | None:
        """Return how long a worker's steps took that began since then, divided by what they take by
        the profile; None if there were none."""
        file = self._file(worker)
        lines = file.read_bytes().splitlines() if file.exists() else []
        found = [msgspec.json.decode(line, type=RecordedStep) for line in lines]
        steps = [step for step in found if step.began >= since]
        if not steps:
            return None
        return sum(step.took for step in steps) / sum(step.planned for step in steps)

    def _file(self, worker: str) -> Path:
        return self.directory / f"{worker}.jsonl"
