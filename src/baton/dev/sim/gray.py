"""Gray failures: work that never ends, and a request that kills every worker that computes it.

a piece of work's turn comes ──hang──▶ nothing more is heard of it ──▶ its worker must have ended within NOTICED_US
a batch with the poison in it ──▶ a process of that worker ends ──▶ at most DEATHS of them for one request

One more may end for each worker that drains.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from baton.core.ids import Key
from baton.core.work import Row
from baton.dev.sim.clients import Client
from baton.dev.sim.process import Process
from baton.dev.sim.tape import Tape

STEP, DIGEST, COPY = "step", "digest", "host copy"
KINDS = (STEP, DIGEST, COPY, STEP, DIGEST)
# From the end of all earlier work of its kind (they run one after the other) to the end of the
# worker: the watchdog's bound (3 s at most), the interval at which it looks (0.3 s), and about a
# second until the leader hears of it.
NOTICED_US = 4_500_000
DEATHS = 2
# if a worker's last message (that the step had only this request) may be lost: all epochs of the
# request, one of them excused
ATTEMPTS = 4
POISON, HANG, CRASH, IS_POISON, ROW = "poison", "hang", "crash", "is poison", "row"


class Gray:
    """Makes these failures happen, and judges the outcome."""

    def __init__(self, world: Any, tape: Tape) -> None:
        self._world, self._tape = world, tape
        # request -> positions of its sequence that can be computed without harm
        self.poisonous: dict[int, int] = {}
        self.deaths: Counter[int] = Counter()  # by request
        self.failing: dict[int, int] = {}  # request -> index of the token whose drawing raises
        self._killed: set[str] = set()
        self._stuck: dict[Process, str] = {}

    # ---- hangs ----------------------------------------------------------------------------------

    def hang(self) -> None:
        """Let the next piece of some kind of work on some rank never end."""
        alive = [p for w in self._world.workers.values() for p in w.processes if p.alive]
        if self._world.hostile and alive:
            process = alive[self._tape.below(len(alive), "who hangs")]
            process.hangs.add(KINDS[self._tape.below(len(KINDS), "what hangs")])

    def hangs(self, process: Process, kind: str) -> None:
        """A piece of work that will never end has begun."""
        self._world.fault(HANG, process.name)
        self._stuck[process] = kind
        self._world.heap.after(
            NOTICED_US, self._must_have_ended, process, kind, self._world.heap.now
        )

    @property
    def unnoticed(self) -> bool:
        """Whether a worker lives although some of its work hangs: a fault that healing does not
        end."""
        return any(
            w.alive and not self._stuck.keys().isdisjoint(w.processes)
            for w in self._world.workers.values()
        )

    def _must_have_ended(self, process: Process, kind: str, since: int) -> None:
        worker = next((w for w in self._world.workers.values() if process in w.processes), None)
        # if one of its ranks has ended, the others are ended with it
        if worker is None or not worker.alive:
            return
        turn = max(since, process.last_ends.get(kind, 0))
        if turn > since:
            self._world.heap.at(turn + NOTICED_US, self._must_have_ended, process, kind, turn)
            return
        stood = sum(
            f.kind == "pause" and process.name.split("/")[0] in f.whom
            for f in self._world.all_faults
        )
        if not stood:
            seconds = (self._world.heap.now - since) / 1e6
            self._world.violate(
                "hang_noticed",
                f"a {kind} of {process.name} has not ended in {seconds:.1f} s, and it lives",
            )

    # ---- poison ---------------------------------------------------------------------------------

    def asked(self, client: Client) -> None:
        """A client asks. The tape decides which request is the first poison, and which is the first
        whose row raises."""
        if not self._world.faults().poison or client.probe or client.big:
            return
        submit, kind = client.submit, self._tape.below(4, "poison")
        if kind == 1 and not self.poisonous:
            most = len(submit.prompt) + submit.limits.max_tokens - 1
            at = self.poisonous[submit.request] = self._tape.below(most, "poisons at")
            self._world.tell(f"{client.name} kills whoever computes more than {at} positions of it")
        elif kind == 2 and not self.failing:
            at = self.failing[submit.request] = self._tape.below(
                submit.limits.max_tokens, "raises at"
            )
            self._world.tell(f"{client.name} raises when its token {at} is drawn")

    def raises(self, row: Row) -> str:
        """Return why a row's token cannot be drawn; empty if it can."""
        if not self.failing:
            return ""
        request = self._request(row.key)
        if row.draw is None or row.draw.index != self.failing.get(request):
            return ""
        self._world.fault(ROW, f"request {request}")
        return "a simulated error"

    def strikes(self, worker: str, rows: Sequence[Row]) -> bool:
        """Whether a batch kills a rank of the worker."""
        for row in rows if self.poisonous else ():
            request = self._request(row.key)
            harmless = self.poisonous.get(request)
            if harmless is not None and row.start + len(row.tokens) > harmless:
                self._strike(request, worker)
                return True
        return False

    def _request(self, key: Key) -> int:
        seed: int = self._world.tickets[key].sampling.seed
        return seed

    def _strike(self, request: int, worker: str) -> None:
        if not self.deaths[request]:
            self._world.fault(IS_POISON, f"request {request}")
        self.deaths[request] += 1
        self._killed.add(worker)
        self._world.tell(f"request {request} kills {worker}")
        faults = self._world.draw.faults
        unheard = faults.loss or faults.late or faults.reorder or faults.lag or faults.partitions
        # An operator may hurry a worker that drains, so its end is taken for nobody's doing, and
        # may be noticed before that of the worker that the request has ended.
        most = (ATTEMPTS if unheard else DEATHS) + faults.drains
        if self.deaths[request] > most:
            self._world.violate(
                "poison_bounded", f"request {request} has killed {self.deaths[request]} workers"
            )

    def kind_of_death(self, process: Process) -> str:
        """Return the kind of fault by which a process has just ended."""
        worker = process.name.split("/")[0]
        if process.gave_up and not any(p.name.split("/")[0] == worker for p in self._stuck):
            self._world.violate(
                "no_false_alarm", f"{worker} was given up, and everything of it would have ended"
            )
        if worker in self._killed:
            self._killed.discard(worker)
            return POISON
        return HANG if process.gave_up or process in self._stuck else CRASH
