"""One incarnation of an engine whose ranks are Baton's guests: a simulated vLLM, and in each of its
ranks the pump that is shipped."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from typing_extensions import override

from baton.core.effects import Effect, Send
from baton.core.events import GuestFinished, LeaderEvent
from baton.core.frames import Said
from baton.core.ids import Key, Rank
from baton.core.manifest import Manifest
from baton.core.memory.state import Placement
from baton.core.messages import FailCode, Failed, Offer, Ticket
from baton.core.rank.watchdog import WatchdogSettings
from baton.core.scheduler.room import LeaderSettings
from baton.dev.sim.guests.books import GuestBooks
from baton.dev.sim.guests.link import SimGuestLink
from baton.dev.sim.guests.rank import GuestRank
from baton.dev.sim.guests.vllm import SimulatedVllm
from baton.dev.sim.parts import Parts
from baton.dev.sim.process import Process
from baton.dev.sim.settings import WorkerDraw
from baton.dev.sim.story import short
from baton.dev.sim.worker import WorkerRun, address_of
from baton.trace.checks.all import CHECKS
from baton.trace.checks.pages import PageBooks
from baton.trace.checks.quiet import QuietIsTrue
from baton.vllm.names import FULL
from baton.vllm.scheduler_side import SchedulerSide

MOST_ROOMS = 4096  # as in vllm/rank_process.py
# the others suppose that the leader gives out the pages, and that none is taken back before the
# ranks are quiet; vLLM takes back those of a prompt that it preempts
OF_GUESTS = tuple(check for check in CHECKS if check not in (PageBooks, QuietIsTrue))
UNWATCHED = WatchdogSettings(0, 0)


class GuestRun(WorkerRun):
    """The processes of one engine, from its start to its end."""

    watchdog = UNWATCHED
    checks = OF_GUESTS

    def __init__(
        self,
        world: Any,
        draw: WorkerDraw,
        boots: list[Any],
        *,
        weights: str,
        parts: Parts,
        spoken: Sequence[int],
    ) -> None:
        self.link: SimGuestLink | None = None
        self._ranks: list[GuestRank] = []
        self._guest_books: list[GuestBooks] = []
        self.vllm: SimulatedVllm
        super().__init__(world, draw, boots, weights=weights, parts=parts, spoken=spoken)
        assert self.link is not None, "rank 0 has it"
        lead = self.processes[0]
        side = SchedulerSide(
            producer=draw.role == "prefill",
            block_tokens=self.table.block_tokens,
            patience_s=world.draw.guests.patience_ms / 1000,
            clock=lambda: lead.clock.now() / 1e6,
        )
        side.connect(self.link)
        self.vllm = SimulatedVllm(world, draw, self.boot, self._ranks, self._guest_books, side)
        for process in self.processes:
            process.on_death.append(lambda why: self.vllm.ends())

    # ---- its parts ------------------------------------------------------------------------------

    @override
    def _manifest(self, weights: str) -> Manifest:
        return msgspec.structs.replace(super()._manifest(weights), guest=True, seal=True)

    @override
    def _leader_settings(self) -> LeaderSettings:
        return LeaderSettings(
            name=self.draw.name,
            address=address_of(self.draw.name),
            step_tokens=1,
            last_chunk_tokens=1,
            max_rooms=MOST_ROOMS,
            max_queue=MOST_ROOMS,
            stall_ms=1500,
            fetch_ms=500,
            pids=tuple(range(len(self.boots))),
            url=address_of(self.draw.name),
        )

    @override
    def _memory(
        self, rank: Rank, process: Process, placement: Placement
    ) -> tuple[GuestRank, GuestBooks]:
        books = GuestBooks(process.name, placement, self.world.violate)
        engine = GuestRank(
            world=self.world,
            process=process,
            placement=placement,
            rank=rank,
            pages=self.pages,
            collective=self.collective,
        )
        self._ranks.append(engine)
        self._guest_books.append(books)
        return engine, books

    @override
    def _guest(self, process: Process) -> SimGuestLink:
        self.link = SimGuestLink(self.world, process)
        return self.link

    # ---- what goes in and out, for the judges ---------------------------------------------------

    @override
    def _before(self, event: LeaderEvent) -> None:
        if isinstance(event, GuestFinished):
            self.world.endings.ended_by_engine(self.boot, event.key)
        super()._before(event)

    @override
    def _hears(self, message: Said) -> None:
        if isinstance(message, Ticket):
            self.world.ticket(message)
        self.world.endings.heard(self.boot, message)
        self.world.overtaking.heard(self.boot, message)

    @override
    def _after(self, event: LeaderEvent, effects: list[Effect]) -> None:
        self.world.endings.acts(self.boot, self.draw.name, effects)
        self.world.overtaking.acts(self.boot, self.draw.name, effects)
        for effect in effects:
            match effect:
                case Send(message=Offer(key=key, runs=runs)) if runs:
                    self._offered(key, [int(page) for page in runs[FULL].pages])
                case Send(message=Failed(key=key, code=FailCode.OVERLOADED)):
                    self.world.handoffs.taken_back(key)
                case _:
                    pass

    def _offered(self, key: Key, pages: list[int]) -> None:
        """The leader of a prefill worker offers pages of a room."""
        if strangers := self.vllm.strangers(key, pages):
            self.world.violate(
                "offers_held",
                f"{self.draw.name} offers pages {strangers} of {short(key)}, "
                "and vLLM has not given them to it",
            )
        for rank in self._ranks:
            rank.vouch(pages)

    @override
    def beside(self, rank: int) -> Iterable[object]:
        """Return vLLM's hooks, and what waits to be sealed."""
        return self._ranks[rank].queue, *([self.vllm.side] if rank == 0 else [])

    @override
    def at_rest(self) -> str:
        return super().at_rest() or self.vllm.held()
