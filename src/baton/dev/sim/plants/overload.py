"""Leaders and ranks that make work out of a queue: what waits for its turn is given up and done
again."""

from baton.core.handoff.progress import ProgressTracker
from baton.core.ids import Boot, Micros
from baton.core.messages import Progress
from baton.core.rank import read_queue
from baton.core.scheduler.leader import Leader
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant


def _own_clock(self: ProgressTracker, boot: Boot, since: Micros) -> Micros:
    """A room without progress for a while has failed, whatever it waits for."""
    return Micros(since + self._patience)


def _deaf(self: Leader, sender: Boot, message: Progress) -> None:
    """Ignore what others report about their progress."""


PLANTS = (
    Plant(
        "patience_counts_queueing",
        "a room fails when it has not moved for a while, though those before it do",
        ("no_spurious_failure",),
        None,
        lambda: Parts(replaced=(Replaced(ProgressTracker, "patience_ends", _own_clock),)),
    ),
    Plant(
        "progress_unheard",
        "what another worker says of its progress is dropped",
        ("no_spurious_failure",),
        None,
        lambda: Parts(replaced=(Replaced(Leader, "_on_progress", _deaf),)),
    ),
    Plant(
        "reads_all_at_once",
        "a fabric is given all reads at once, and their deadlines run while they queue",
        ("time_for_reads",),
        None,
        lambda: Parts(replaced=(Replaced(read_queue, "READS", 10_000),)),
    ),
)
