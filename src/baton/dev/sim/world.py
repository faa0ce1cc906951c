"""A world: gateways, workers and clients over simulated ports; first hostile, then healed, then at
rest.

    hostile ──▶ healed: everything restarts, faults stop ──▶ all requests end ──▶ probes succeed ──▶ nothing is held

One seed gives one run, byte for byte. A broken invariant raises Violation.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count

import msgspec

from baton.core.agreement import StepPlan
from baton.core.door import Finish
from baton.core.errors import Bug
from baton.core.events import AskWorkers, ForgetQuestion
from baton.core.gateway.request import FrontSettings
from baton.core.handoff.fetch_back import FetchBack
from baton.core.handoff.plans import Plans
from baton.core.ids import Boot, GroupName, Key, Micros, Rank, Room
from baton.core.marks import Marks
from baton.core.memory.state import Placement
from baton.core.messages import BlockRun, Clear, Drain, ResetCache, Ticket
from baton.core.protocol import OLDEST, PROTOCOL, SPOKEN
from baton.core.session.session import SessionLimits
from baton.dev.sim import content
from baton.dev.sim.cache_news import unknown
from baton.dev.sim.caches import CacheBook
from baton.dev.sim.confusion import Confusion
from baton.dev.sim.costs import Wires
from baton.dev.sim.endings import Endings
from baton.dev.sim.excuses import EVERYBODY, InjectedFault, worker_of
from baton.dev.sim.gateway import GatewayRun
from baton.dev.sim.gray import CRASH, Gray
from baton.dev.sim.guests.draw import draw_guests
from baton.dev.sim.guests.vllm import SimulatedVllm
from baton.dev.sim.guests.worker import GuestRun
from baton.dev.sim.handoffs import Handoffs
from baton.dev.sim.heap import Heap
from baton.dev.sim.loans import Loans
from baton.dev.sim.memory import SimPool
from baton.dev.sim.network import OLD_US, Network
from baton.dev.sim.overtaking import Overtaking
from baton.dev.sim.parts import SHIPPED, Parts
from baton.dev.sim.people import MET_DAMAGE, SimulatedClients
from baton.dev.sim.pressure import Pressure
from baton.dev.sim.process import Process, SkewedClock
from baton.dev.sim.residue import kept
from baton.dev.sim.settings import LONGEST, Faults, WorkerDraw, WorldDraw, draw_world, longest_bytes
from baton.dev.sim.sharing import Sharing
from baton.dev.sim.story import Story, ordered, short
from baton.dev.sim.sums import Sums
from baton.dev.sim.tape import Tape
from baton.dev.sim.waits import Waits
from baton.dev.sim.weather import Weather
from baton.dev.sim.work import Work
from baton.dev.sim.worker import WorkerRun, address_of

WEIGHTS = "ab" * 16
OTHER_WEIGHTS = "cd" * 16
# until all pairs are made, once everybody lives: lost peers are noticed, workers introduced
MADE_US = 5_500_000
# after healing; old copies of a dead peer's frames can delay the end of its session
PAIRED_US = OLD_US + MADE_US
SERVED_US = 2_000_000
# by then every request has ended, long before its own deadline would end it
END_US = PAIRED_US + SERVED_US
DRAINED_US = 1_000_000  # from the end of all requests until workers that drain have left
PROBE_US = 1_000_000  # too short for a handoff that stalls and is tried again
REST_US = 1_000_000
# until a gateway knows of a change in a cache, with another try after news was lost
KNOWN_US = 200_000
HASHED_US = 500_000  # until the hashes of cached pages have ended, if nothing delays them
LONG_US = 13_000_000  # until the oldest copy of a frame and the last straggler have come
SCRUBS = 8  # orders to hash cached pages within the interval; all ranks answer each
QUIET_TURNS = 60  # per process and second at rest; more is a busy loop or a message storm
MAX_EVENTS = 60_000  # for a world with tens of requests; more means an endless loop
# For each request, where there are many: each of 9 blocks is read over 8 legs in 2 groups, with 7
# events (begun, sampled, landed, ended, its time limit, hashed, reported), and steps and messages
# take about 300 events.
EVENTS_EACH = 1_300
# the other ranks of a worker are ended a multiple of this after the first one
REAPED_US, REAPED_TIMES = 600_000, 8
RESTARTS_US, RESTARTS_TIMES = 200_000, 5  # .. and it starts again a multiple of this later
RESTARTS_FIRST_US = 100_000
# a worker has started again this long after its first rank has ended, at the latest
RESTARTED_US = (
    REAPED_US * (REAPED_TIMES - 1) + RESTARTS_FIRST_US + RESTARTS_US * (RESTARTS_TIMES - 1)
)
CALM = Faults()
FRONT = FrontSettings(wait_for_workers_ms=8_000)


class Violation(BaseException):
    """An invariant does not hold. The code under test must not be able to catch it."""

    def __init__(self, invariant: str, detail: str) -> None:
        self.invariant, self.detail = invariant, detail
        super().__init__(f"{invariant}: {detail}")


class World:
    """All parts of one run."""

    def __init__(
        self,
        tape: Tape,
        parts: Parts = SHIPPED,
        *,
        seal: bool = True,
        calm: bool = False,
        draw: WorldDraw | None = None,
        front: FrontSettings = FRONT,
    ) -> None:
        self.tape, self.parts, self.seal = tape, parts, seal
        drawn = (draw_guests if parts.guests else draw_world)(tape) if draw is None else draw
        self.draw = msgspec.structs.replace(drawn, hurry_ms=0) if calm else drawn
        self._front_settings = msgspec.structs.replace(front, local_prefill=self.draw.local_prefill)
        self.heap = Heap(tape, shuffle=not self.draw.clean and tape.chance(0.5, "shuffle"))
        self.hostile = not self.draw.clean and not calm
        self.clearing = False  # whether somebody has asked to clear the pools
        self.quiet_ends, self.attempts_differ = self.draw.quiet_ends, self.draw.attempts_differ
        self.limits = SessionLimits(
            beat=Micros(1_400_000), ack_delay=Micros(200_000), resend_first=Micros(300_000)
        )
        self.network = Network(self.heap, tape, self.faults, self.fault, self.violate)
        self.weather = Weather(self, tape)
        self.confusion = Confusion(self, tape)
        self.gray = Gray(self, tape)
        self.tickets: dict[Key, Ticket] = {}
        self.people = SimulatedClients(self)
        self.tainted: set[Key] = set()  # rooms computed from damaged memory
        self.stamps: dict[tuple[Boot, Key], list[int]] = {}  # by prefill worker and room
        # the same in groups that do not last, where these are others
        self.beside: dict[tuple[Boot, Key], list[int]] = {}
        self.caches: dict[Boot, CacheBook] = {}  # of decode workers
        # room -> names of its request and of the workers and gateways of its tickets
        self.concerned: dict[str, set[str]] = {}
        self.all_faults: list[InjectedFault] = []
        self.costs, self.work = self.draw.costs, Work()
        self.wires = Wires(self.heap, self.costs)
        longest = longest_bytes(self.draw)
        # how much longer a request takes than by default
        self.alone_us = self.costs.request_us(steps=LONGEST, nbytes=longest)
        if self.draw.crowded:
            self.all_faults.append(InjectedFault(0, "crowd", frozenset({EVERYBODY})))
        if self.draw.hurry_ms:
            self.all_faults.append(InjectedFault(0, "tight", frozenset({EVERYBODY})))
        self.endings = Endings(self.tickets, self.violate)
        self.handoffs = Handoffs(
            self.tickets,
            self.all_faults,
            self.concerned,
            self.violate,
            lossy=bool(self.draw.faults.loss),
        )
        self.sharing = Sharing(self.violate)
        self.loans = Loans(self.tickets, self.violate)
        self.pressure = Pressure(self.tickets, self.violate, self._lacks)
        self.overtaking = Overtaking(self.violate, lambda: self.heap.now, timely=self.draw.clean)
        self.waits = Waits(self.tickets, self.all_faults, self.violate, lambda: self.heap.now)
        self.marks: Counter[str] = Counter()
        self.core_marks = Marks()  # shared by all roles of all processes
        self.plans = Plans()  # likewise, as proving plans again would take a tenth of the run
        self.story: Story | None = None
        self.gateway_addresses = tuple(address_of(g) for g in self.draw.gateways)
        self.workers: dict[str, WorkerRun] = {}
        self.gateways: dict[str, GatewayRun] = {}
        # when a hang or a request last ended a worker; some do so after healing
        self._started: set[str] = set()
        # when a worker last ended because of work or a request, and when one left
        self._ended_at = self._left_at = 0
        self._names: dict[Boot, str] = {}
        self._boots = count(1)
        self._bits, self._questions = count(1), count(1)
        self._ranks: dict[Boot, tuple[Process, Mapping[GroupName, SimPool]]] = {}
        self._rows: dict[Placement, content.BlockContents] = {}
        self._sums: dict[Placement, Sums] = {}

    # ---- what ports ask of their world ----------------------------------------------------------

    def faults(self) -> Faults:
        """Return the faults that may occur at the moment."""
        return self.draw.faults if self.hostile else CALM

    @property
    def healthy(self) -> bool:
        """Whether no fault has occurred in this world, and none will."""
        return self.draw.clean

    def fault(self, kind: str, *names: str) -> None:
        """Note a fault and the processes that it hit."""
        self.all_faults.append(
            InjectedFault(self.heap.now, kind, frozenset(worker_of(n) for n in names))
        )
        self.marks[f"fault: {kind}"] += 1
        self.tell(f"FAULT {kind}: {', '.join(names)}")

    def violate(self, invariant: str, detail: str) -> None:
        """Stop the run: an invariant does not hold."""
        raise Violation(invariant, detail)

    def tell(self, line: str) -> None:
        """Add a line to the story, if one is wanted."""
        if self.story is not None:
            self.story.tell(self.heap.now, line)

    def tell_frames(self, story: Story) -> None:
        """Tell everything that happens from now on, frames included."""
        self.story, story.names = story, self._names
        self.network.on_frame = lambda *frame: story.frame(self.heap.now, *frame)

    def memory_of(self, boot: Boot) -> tuple[Process, Mapping[GroupName, SimPool]] | None:
        """Return the rank with this boot, and its pools; None if it has ended."""
        found = self._ranks.get(boot)
        return found if found is not None and found[0].alive else None

    def engine_at(self, url: str) -> SimulatedVllm | None:
        """Return the engine that answers there; None if none does."""
        runs = [w for w in self.workers.values() if isinstance(w, GuestRun)]
        engines = [run.vllm for run in runs if address_of(run.draw.name) == url]
        return next((engine for engine in engines if engine.alive), None)

    def rows_of(self, placement: Placement) -> content.BlockContents:
        """Return the contents of a rank with this placement. They are the same for every worker and
        every start of it, and for every page size."""
        alike = msgspec.structs.replace(placement, page_blocks=1)
        if alike not in self._rows:
            self._rows[alike] = content.BlockContents(alike)
        return self._rows[alike]

    def sums_of(self, placement: Placement) -> Sums:
        """Return the sums of the contents of a rank with this placement."""
        return self._sums.setdefault(
            msgspec.structs.replace(placement, page_blocks=1), Sums(self.parts.block_sums)
        )

    def _lacks(self, worker: Boot, key: Key, runs: Mapping[GroupName, BlockRun]) -> bool:
        """Whether a room of a decode worker has to read any of the blocks that it was offered."""
        return self.caches[worker].lacks(key, runs)

    def ticket(self, ticket: Ticket) -> None:
        """A leader has received a ticket."""
        if self.story is not None and ticket.key not in self.tickets:
            workers = " and ".join(self._names.get(b, "?") for b in (ticket.prefill, ticket.decode))
            self.tell(
                f"room {short(ticket.key)} is for request {ticket.sampling.seed}, by {workers}"
            )
        known = self.tickets.setdefault(ticket.key, ticket)
        if known != ticket:
            self.violate("same_ticket", f"two tickets for {ticket.key}")
        self.concerns(ticket)

    def concerns(self, ticket: Ticket) -> None:
        """Note the processes whose faults may excuse the request's failure. A worker may have ended
        before its ticket came."""
        names = {
            worker_of(self._names.get(b, "?"))
            for b in (ticket.gateway, ticket.prefill, ticket.decode)
        }
        names.add(f"request {ticket.sampling.seed}")
        self.concerned.setdefault(ticket.key.room, set()).update(names)

    def plan_applied(self, worker: WorkerRun, rank: Rank, plan: StepPlan) -> None:
        """A rank has applied a plan."""
        if self.story is not None and rank == 0:
            self.tell(f"{worker.draw.name}: {ordered(plan)}")
        if rank == 0:
            self.handoffs.ordered(worker.manifest, plan)
            if not worker.manifest.guest:  # vLLM's own limits say how long its requests wait
                self.waits.ordered(worker.boot, plan)
            worker.cache.committed(plan.commit)
            self.marks["commit"] += len(plan.commit)
            self.marks["rehash"] += len(plan.rehash)
            self.marks["inspect"] += len(plan.inspect)

    def process(self, name: str, boot: Boot) -> Process:
        """Make a new process."""
        offset = 1_000_000 * boot + self.tape.below(5, "clock offset") * 40_000_000
        drift = (0, 100, -100)[self.tape.below(3, "clock drift")]
        process = Process(
            name, boot, self.heap, SkewedClock(self.heap, offset=offset, drift_ppm=drift)
        )
        process.reaction = self._reaction
        process.on_bug = self._bug
        process.on_hang = self.gray.hangs
        self._names[boot] = name
        return process

    def _reaction(self) -> int:
        return (
            self.tape.below(20, "scheduled late") * 50
            if self.hostile and self.tape.chance(0.1, "a busy core")
            else 0
        )

    def _bug(self, process: Process, error: Bug) -> None:
        self.violate("no_bug", f"{process.name}: {error}")

    # ---- starting and ending processes ----------------------------------------------------------

    def start(self) -> None:
        """Start all processes."""
        for name in self.draw.gateways:
            self.start_gateway(name)
        for draw in self.draw.workers:
            late = (
                100_000 * self.tape.below(9, "starts late")
                if self.hostile and self.tape.chance(0.15, "a slow start")
                else 0
            )
            if late:
                self.heap.after(late, self._restart_worker, draw)
            else:
                self.start_worker(draw)

    def start_gateway(self, name: str) -> None:
        """Start a gateway, as a new boot."""
        boot = Boot(next(self._boots))
        process = self.process(name, boot)
        self.tell(f"{name}: starts as boot {boot}")
        self.gateways[name] = GatewayRun(
            self,
            process,
            address=address_of(name),
            settings=self._front_settings,
            parts=self.parts,
            spoken=self._spoken(name, "gateway"),
        )
        process.on_death.append(partial(self._gateway_died, name, process))

    def _spoken(self, name: str, role: str) -> Sequence[int]:
        """Return the protocols of a process that starts: the first one of its name may be of the
        version before ours."""
        first = name not in self._started
        self._started.add(name)
        return (OLDEST,) if first and role == self.draw.older else SPOKEN

    def new_room(self) -> Room:
        """Return a room that was never used before and cannot be guessed from others."""
        return Room(
            f"{content.scramble(next(self._bits)) << 64 | content.scramble(next(self._bits)):032x}"
        )

    def start_worker(self, draw: WorkerDraw) -> None:
        """Start a worker, all ranks as new boots."""
        boots = [Boot(next(self._boots)) for _ in range(draw.tp * draw.pp)]
        weights = WEIGHTS
        if self.tape.chance(self.faults().mismatch, "other weights"):
            weights = OTHER_WEIGHTS
            self.fault("mismatch", EVERYBODY)
        self.tell(
            f"{draw.name}: starts as boot "
            f"{boots[0]}{' with other weights' if weights != WEIGHTS else ''}"
        )
        run = WorkerRun if self.draw.guests is None else GuestRun
        spoken = self._spoken(draw.name, draw.role)
        worker = run(self, draw, boots, weights=weights, parts=self.parts, spoken=spoken)
        self.workers[draw.name] = worker
        for process, engine in zip(worker.processes, worker.engines, strict=True):
            self._ranks[process.boot] = (process, engine.sim_pools)
            process.on_death.append(partial(self._rank_died, worker, process))

    def _rank_died(self, worker: WorkerRun, process: Process, why: str) -> None:
        if worker.processes[0].left:
            self._left(worker, process)
            return
        kind = self.gray.kind_of_death(process)
        self.fault(kind, process.name)
        self.tell(f"{process.name}: ends: {why}")
        if kind != CRASH and sum(not p.alive for p in worker.processes) == 1:
            self._ended_at = self.heap.now
        self.heap.after(
            self.tape.below(REAPED_TIMES, "reaped after") * REAPED_US, self._reap, worker
        )

    def _left(self, worker: WorkerRun, process: Process) -> None:
        """A worker has drained: its leader ends first, and ends the others."""
        self.tell(f"{process.name}: ends, as its worker has drained")
        if process is not worker.processes[0]:
            return
        self._left_at = self.heap.now
        if held := worker.open():
            self.violate("drained", f"{worker.draw.name} has left, and {held}")
        for other in worker.processes[1:]:
            other.die("its worker has drained")
        del self.workers[worker.draw.name]
        self.heap.after(self._restarts_after(), self._restart_worker, worker.draw)

    def _reap(self, worker: WorkerRun) -> None:
        """The supervisor ends what is left of a worker. It starts the worker again soon, or only
        when everything heals."""
        for process in worker.processes:
            process.die("a rank of its worker has ended")
        if self.workers.get(worker.draw.name) is worker and (
            not self.hostile or not self.tape.chance(0.3, "stays down")
        ):
            del self.workers[worker.draw.name]
            self.heap.after(self._restarts_after(), self._restart_worker, worker.draw)

    def _restart_worker(self, draw: WorkerDraw) -> None:
        if draw.name not in self.workers:
            self.start_worker(draw)

    def _gateway_died(self, name: str, process: Process, why: str) -> None:
        self.fault("crash", name)
        self.tell(f"{name}: ends: {why}")
        self.people.gateway_ended(name)
        self.heap.after(self._restarts_after(), self._restart_gateway, name)

    def _restarts_after(self) -> int:
        return RESTARTS_FIRST_US + RESTARTS_US * self.tape.below(RESTARTS_TIMES, "restarts after")

    def _restart_gateway(self, name: str) -> None:
        if not self.gateways[name].process.alive:
            self.start_gateway(name)

    # ---- phases ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Run everything.

        Raises:
            Violation: an invariant does not hold
        """
        self.tell("---- start ----")
        self.start()
        # Pairs are made before the first client comes; in a hostile world perhaps not all, or none.
        self._advance(
            20_000 if self.hostile and self.tape.chance(0.15, "early clients") else 400_000
        )
        self.tell("---- hostile ----" if self.hostile else "---- clients come, without faults ----")
        self._schedule()
        self._advance(self.heap.now + self.draw.hostile_ms * 1000)
        self._heal()
        healed = self.heap.now
        self._until_served(healed)
        if not self.draw.clean:  # peers that were silent before may be given up until now
            self._advance(max(self.heap.now, healed + self.limits.silence + 100_000))
        # A hang is a fault until its worker has ended, which may be later than that; the judge of
        # hangs decides when it is too late.
        self._advance(max(self.heap.now, healed + END_US), done=lambda: not self.gray.unnoticed)
        self._until_paired(healed)
        self.tell("---- everything has ended and every pair is made; two probes ----")
        self._probe(2)
        self._rest()
        if not self.draw.clean and self.tape.chance(0.04, "a long rest"):
            self._advance(self.heap.now + LONG_US)
            self._rest()
        if self.tape.chance(0.1, "the pools are cleared"):
            self._clear()

    def _until_served(self, healed: int) -> None:
        """Wait until every request has ended. If a worker ends after healing, because of work that
        hung or of a request that kills it, the requests that it had get the time of its successor
        too."""
        alone = self.alone_us * self.draw.requests
        until = healed + END_US + alone
        while not self.people.all_ended() and self.heap.now < until:
            self._advance(until, done=self.people.all_ended)
            again = self._ended_at + RESTARTED_US + MADE_US + SERVED_US + alone
            until = max(until, again)
        self._until_ended(until)

    def _clear(self) -> None:
        """Zero all pools while nothing is held; the service must go on as if it were new."""
        self.tell("---- the pools are cleared; two probes ----")
        self.clearing = True
        gateway, question = next(iter(self.gateways.values())), next(self._questions)
        gateway.step(AskWorkers(Clear(question)))
        self._advance(self.heap.now + PROBE_US)
        cleared = {view.name for view in gateway.front.ledger(question) or () if view.cleared}
        gateway.step(ForgetQuestion(question))
        due = {w.name for w in self.draw.workers} if self.draw.guests is None else set()
        if cleared != due:
            self.violate("healed_succeeds", f"only {sorted(cleared)} have cleared their pools")
        self.clearing = False
        self._probe(2)
        self._rest()

    def _probe(self, count: int) -> None:
        for _ in range(count):
            self.people.ask(probe=True)
        self._until_ended(self.heap.now + PROBE_US + count * self.alone_us)
        for client in self.people.clients:
            well = isinstance(client.end, Finish) or client.gone == MET_DAMAGE
            if client.probe and not well:
                self.violate(
                    "healed_succeeds",
                    f"{client.name}, sent after healing, has not ended "
                    f"well: {client.gone or client.end}",
                )

    def _until_paired(self, healed: int) -> None:
        """Wait until every decode worker can take from every prefill worker again, and every
        gateway knows exactly these pairs. If a worker ends after healing, because of work that hung
        or of a request that kills it, or as it has drained, it is started again, and its pairs get
        their time too."""
        self._advance(self.heap.now + DRAINED_US, done=lambda: not self._draining())
        while not self._paired():
            restarted = max(self._ended_at, self._left_at) + RESTARTED_US
            until = max(healed + OLD_US, restarted) + MADE_US
            if self.heap.now >= until:
                made = [gateway.front.usable_pairs() for gateway in self.gateways.values()]
                seconds = (until - healed) / 1e6
                self.violate(
                    "liveness",
                    f"{seconds:.1f} s after healing the pairs are "
                    f"{made}; {self._due_pairs()} are due",
                )
            self._advance(until, done=self._paired)

    def _draining(self) -> bool:
        return any(w.alive and w.leader.worker.draining.on for w in self.workers.values())

    def _due_pairs(self) -> set[tuple[Boot, Boot]]:
        boots = {
            role: [w.boot for w in self.workers.values() if w.draw.role == role]
            for role in ("prefill", "decode", "unified")
        }
        alone = boots["unified"] + (boots["decode"] if self.draw.local_prefill else [])
        return {(p, d) for p in boots["prefill"] for d in boots["decode"]} | {(b, b) for b in alone}

    def _paired(self) -> bool:
        complete = len(self.workers) == len(self.draw.workers) and all(
            w.alive for w in self.workers.values()
        )
        due, live = self._due_pairs(), {w.boot for w in self.workers.values()}
        return complete and all(
            set(gateway.front.usable_pairs()) == due
            and {r.manifest.boot for r in gateway.front.workers()} == live
            for gateway in self.gateways.values()
        )

    def _schedule(self) -> None:
        span = self.draw.hostile_ms * 1000
        start = self.heap.now
        bursts = (2, 2, 40) if self.draw.fetch_back is FetchBack.ALWAYS else (2, 40, 160)
        window = (
            span
            // bursts[
                max(self.tape.below(3, "burst"), 2 * (self.draw.pressed or self.draw.crowded))
            ]
        )  # the time within which all requests are sent
        for i in range(self.draw.requests):
            at = window * i // self.draw.requests + window * self.tape.below(20, "asks at") // 40
            self.heap.at(start + at, self.people.ask)
        if self.hostile:
            self.weather.schedule(start, span)

    def ask_to_drain(self, name: str) -> None:
        """An operator asks a gateway to have a worker drain."""
        gateway, question = next(iter(self.gateways.values())), next(self._questions)
        if gateway.process.alive:
            gateway.step(AskWorkers(Drain(question), name))
            gateway.step(ForgetQuestion(question))

    def reset_prefill(self) -> None:
        """Empty the prefix caches of prefill workers, so that only decode has cached state."""
        gateway = next(iter(self.gateways.values()))
        if gateway.process.alive:
            self.tell("operator: the prefix caches of prefill workers are emptied")
            for draw in [w for w in self.draw.workers if w.role == "prefill"]:
                question = next(self._questions)
                gateway.step(AskWorkers(ResetCache(question), draw.name))
                gateway.step(ForgetQuestion(question))

    def processes(self) -> list[Process]:
        """Return all live processes, gateways first."""
        found = [gateway.process for gateway in self.gateways.values()]
        return [
            p for p in found + [p for w in self.workers.values() for p in w.processes] if p.alive
        ]

    def _heal(self) -> None:
        self.tell("---- healed ----")
        self.hostile = False
        self.network.cut.clear()
        for process in self.processes():
            process.paused_until = 0
            process.calls_left = None
            process.hangs.clear()
            process.wake(0)
        for name, process in [(name, gateway.process) for name, gateway in self.gateways.items()]:
            if not process.alive:
                self._restart_gateway(name)
        for draw in self.draw.workers:
            worker = self.workers.get(draw.name)
            if worker is not None and (not worker.alive or worker.manifest.weights != WEIGHTS):
                for process in worker.processes:
                    process.die("restarted")
                self.workers.pop(draw.name, None)
            self._restart_worker(draw)

    def _rest(self) -> None:
        self.tell("---- rest ----")
        self._advance(self.heap.now + REST_US)
        turns = {p.name: p.turns for p in self.processes()}
        self._advance(self.heap.now + 500_000)
        for process in self.processes():
            moved = 2 * (process.turns - turns.get(process.name, 0))
            peers = len(self.processes())
            hashing = (
                SCRUBS * 1000 * (2 + peers) // self.draw.verify_ms if self.draw.verify_ms else 0
            )
            if moved > QUIET_TURNS + 8 * peers + hashing:
                self.violate(
                    "quiet_at_rest",
                    f"{process.name} was turned {moved} times in a second with nothing to do",
                )
        # Cached pages are hashed all the time; orders that are under way just now must end first.
        self._advance(
            self.heap.now + HASHED_US,
            done=lambda: not any(w.leader.worker.scrubber.under_way for w in self.workers.values()),
        )
        for process, front in [
            (gateway.process, gateway.front) for gateway in self.gateways.values()
        ]:
            if front.open_requests:
                waiting = {
                    f"{key.room[-4:]}.{key.epoch}": [self._names[b] for b in boots]
                    for key, boots in front.epochs.closing
                }
                self.violate(
                    "nothing_left",
                    f"{process.name} holds {front.open_requests} "
                    f"requests or rooms, waits for {waiting}",
                )
            if front.epochs.suspects:
                self.violate("nothing_left", f"{process.name} still keeps suspects")
        for worker in self.workers.values():
            if not worker.alive:
                self.violate("liveness", f"{worker.draw.name} is not alive after healing")
            if what := worker.at_rest():
                self.violate("nothing_left", what)
        self._nothing_kept()
        self._caches_are_known()
        self._damage_is_found()

    def _nothing_kept(self) -> None:
        """Check that no table keeps anything. While old copies of a dead peer's frames still come,
        its session lives on, so wait for the last of them first."""
        if not self.draw.clean and next(self._kept(), None) is not None:
            self._advance(self.heap.now + LONG_US)
        for process, what in self._kept():
            self.violate("nothing_left", f"{process.name} still keeps {what}")

    def _kept(self) -> Iterator[tuple[Process, str]]:
        return kept([(g.process, g.front) for g in self.gateways.values()], self.workers.values())

    def _caches_are_known(self) -> None:
        """Check that gateways know what workers have cached, once all news has come."""
        for gateway in self.gateways.values():
            caches = {
                w.boot: (w.leader.worker.reuse, w.leader.worker.ledger.cache)
                for w in self.workers.values()
                if PROTOCOL in w.spoken and PROTOCOL in gateway.spoken
            }
            if unknown(gateway.front, caches):
                self._advance(self.heap.now + KNOWN_US)
            if wrong := unknown(gateway.front, caches):
                self.violate("index_exact", f"{gateway.process.name}: {wrong}")

    def _damage_is_found(self) -> None:
        """Check that cached pages that are damaged now are gone after the time within which damage
        must be found."""
        now = {
            w.boot: damaged
            for w in self.workers.values()
            if self.draw.verify_ms and (damaged := w.damaged())
        }
        if not now:
            return
        self._advance(self.heap.now + self.draw.verify_ms * 1000 + 100_000)
        for worker in self.workers.values():
            if stays := worker.damaged() & now.get(worker.boot, set()):
                pages = [dict(entry.pages) for entry in stays]
                self.violate(
                    "damage_found_in_time",
                    f"{worker.draw.name} keeps {pages}, which were damaged long ago",
                )

    def _advance(self, until: int, *, done: Callable[[], bool] | None = None) -> None:
        most = max(MAX_EVENTS, EVENTS_EACH * self.draw.requests)
        if not self.heap.advance(until, most=most, done=done):
            self.violate("liveness", f"more than {most} events")

    def _until_ended(self, until: int) -> None:
        self._advance(until, done=self.people.all_ended)
        if late := [c for c in self.people.clients if c.open]:
            self.violate(
                "liveness",
                f"{late[0].name} has not ended "
                f"{(until - late[0].sent_at) / 1e6:.1f} s after it was sent",
            )
