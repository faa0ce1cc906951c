"""What a rank has seen since its last report, for the next one."""

from baton.core.agreement import Ballot, ConnectResult, Rehashed, Wedged
from baton.core.ids import Key
from baton.core.work import BatchDone


class ReportDraft:
    """Collects what the parts of a rank have to say; nothing is taken back."""

    def __init__(self) -> None:
        self.changed = False  # whether there is something to report
        self.ballots: list[Ballot] = []
        self.quiet: list[Key] = []
        self.done: list[BatchDone] = []
        self.connected: list[ConnectResult] = []
        self.rehashed: list[Rehashed] = []
        self.wedged: list[Wedged] = []

    def applied(self) -> None:
        """A plan is applied."""
        self.changed = True

    def vote(self, ballot: Ballot) -> None:
        """An order has ended here, well or not."""
        self.ballots.append(ballot)
        self.changed = True

    def is_quiet(self, key: Key) -> None:
        """Nothing touches the pages of a room that was dropped."""
        self.quiet.append(key)
        self.changed = True

    def computed(self, done: BatchDone) -> None:
        """A batch has ended."""
        self.done.append(done)
        self.changed = True

    def add_connection(self, result: ConnectResult) -> None:
        """All connections to a worker's ranks are made, or one cannot be."""
        self.connected.append(result)
        self.changed = True

    def hashed(self, answer: Rehashed) -> None:
        """What was to be looked at again has been hashed."""
        self.rehashed.append(answer)
        self.changed = True

    def stuck(self, found: Wedged) -> None:
        """Something that was handed to a port does not end."""
        self.wedged.append(found)
        self.changed = True
