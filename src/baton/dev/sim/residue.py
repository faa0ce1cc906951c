"""What the processes of a world keep at rest: only what the live processes justify.

    pump ──▶ lines, sessions, leader, rank, front, ...        every table that any of them owns, whatever it is called
                                                                  └── empty, or JUSTIFIED says what it holds then

The walk finds the tables by itself, so a table that is added later is checked from the start:
either it is empty at rest, or it is listed here with the reason why it is not. Tables of peers hold
exactly the live boots of this world.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

import msgspec

from baton.core.gateway.front import Front
from baton.core.handoff.plans import MOST
from baton.core.ids import Boot, Micros
from baton.core.scheduler.draft_sources import SALTS
from baton.core.scheduler.fetching import Fetching
from baton.core.scheduler.guest_prefill import GIVEN_UP
from baton.core.scheduler.leader import Leader
from baton.dev.sim.process import Process
from baton.dev.sim.worker import WorkerRun

PARTS = (
    "baton.core.",
    "baton.shell.",
    "baton.vllm.",
    "baton.dev.sim.network",
    "baton.dev.sim.memory",
    "baton.dev.sim.plants.",
)  # modules that own tables
# objects that all processes share, and values
OUTSIDE = ("Network", "World", "Process", "SimPool", "PairPlan", "ToLink")
TABLES = (dict, set, list, deque)
ROLES = ("prefill", "decode", "unified")


class Live(msgspec.Struct, frozen=True):
    """The live processes of a world at rest, and which of them one process is."""

    gateways: frozenset[Boot]
    prefills: frozenset[Boot]
    decodes: frozenset[Boot]
    unifieds: frozenset[Boot]
    now: Micros  # by the clock of the process
    role: str  # of the worker that the process is a rank of, or "gateway"
    rank: int = 0
    ranks: tuple[Boot, ...] = ()  # the ranks of its worker

    @property
    def workers(self) -> frozenset[Boot]:
        """The boots of all leaders."""
        return self.prefills | self.decodes | self.unifieds

    @property
    def sources(self) -> frozenset[Boot]:
        """The workers that this one reads from. Prefill reads from those that it chooses, and a
        unified worker from none."""
        by_role = {"decode": self.prefills, "prefill": self.decodes}
        return by_role.get(self.role, frozenset())

    @property
    def peers(self) -> frozenset[Boot]:
        """The processes with which this one has a session."""
        if self.role == "gateway":
            return self.workers
        return (
            self.gateways | self.sources | set(self.ranks[1:])
            if self.rank == 0
            else frozenset(self.ranks[:1])
        )

    @property
    def dialled(self) -> int:
        """The number of links that the process has dialled: leaders dial gateways, decode dials
        prefill, ranks dial their leader."""
        if self.role == "gateway":
            return 0
        return (
            len(self.gateways) + len(self.prefills) * (self.role == "decode")
            if self.rank == 0
            else 1
        )


Rule = Callable[[Live, Any, Any], bool]  # takes the table and its owner


def _always(live: Live, owner: Any, table: Collection[Any]) -> bool:
    """Accept a table that does not grow with what happens: its owner is made of it, or it counts by
    kind."""
    return True


def _cache(live: Live, owner: Any, table: Collection[Any]) -> bool:
    """Accept a table of cached pages, which `Ledger.audit` checks."""
    return True


def _some(who: str) -> Rule:
    return lambda live, owner, table: set(table) <= getattr(live, who)


def _each(who: str) -> Rule:
    return lambda live, owner, table: set(table) == getattr(live, who)


def _by_rank(live: Live, owner: Any, table: Collection[Any]) -> bool:
    return set(table) <= set(range(len(live.ranks)))


def _read_from(live: Live, owner: Any, table: Collection[Any]) -> bool:
    """Accept ranks of the workers that this one reads from: every prefill worker, or decode workers
    that lend."""
    found = {rank.worker for rank in table}
    return found <= live.sources


def _sources(live: Live, owner: Any, table: Collection[Any]) -> bool:
    return set(table) == live.sources if live.role == "decode" else set(table) <= live.sources


def _paired(live: Live, owner: Any, table: Mapping[Boot, Any]) -> bool:
    return table.keys() == live.prefills and all(
        partner.paired and partner.session for partner in table.values()
    )


def _pairs(live: Live, owner: Any, table: Collection[Any]) -> bool:
    return set(table) <= {(p, d) for p in live.prefills for d in live.decodes} | {
        (b, b) for b in live.unifieds | live.decodes
    }


JUSTIFIED: Mapping[tuple[str, str], Rule] = MappingProxyType(
    {
        # the peers that a process knows
        ("Sessions", "_sessions"): _each("peers"),
        ("Sessions", "_dialled"): lambda live, owner, table: (
            len(table) == live.dialled and {d.boot for d in table.values()} <= live.peers
        ),
        ("Sessions", "_numbers"): lambda live, owner, table: (
            len(table) <= owner.limits.remembered
        ),  # else an old frame is believed
        ("WorkerPump", "_gateway_links"): lambda live, owner, table: (
            len(table) == len(live.gateways)
        ),
        ("WorkerPump", "_gateways_up"): _each("gateways"),
        ("WorkerPump", "_peer_links"): lambda live, owner, table: (
            set(table) == (live.prefills if live.role == "decode" else set())
        ),
        ("Worker", "gateways"): _each("gateways"),
        ("CreditNews", "_tickets"): _each("gateways"),
        ("Partners", "_known"): _paired,
        ("Partner", "connected"): _by_rank,
        ("Offering", "_plans"): _each("decodes"),
        ("Borrowing", "_lenders"): _some("decodes"),
        ("Lender", "connected"): _by_rank,
        ("SourceWorkers", "_peers"): _sources,
        ("RankHost", "_peers"): _read_from,
        ("SimFabric", "_peers"): _read_from,
        ("ProgressTracker", "_heard"): _some("workers"),  # its own worker among them
        ("Router", "_all"): _each("workers"),
        ("Usable", "partners"): _some("workers"),
        ("WorkerList", "boots"): lambda live, owner, table: set(table) <= live.workers,
        ("WorkerList", "workers"): _always,
        ("WorkerList", "places"): _always,
        ("Usable", "targets"): _always,
        ("CacheNews", "_gateways"): _each("gateways"),
        ("KnownCaches", "_workers"): _each("workers"),
        # the bits of workers that are gone: as many as there were at one time
        ("KnownCaches", "_free"): lambda live, owner, table: len(set(table)) == len(table),
        ("CacheIndex", "_pages"): lambda live, owner, table: len(table) <= len(live.workers),
        ("CacheIndex", "_has"): lambda live, owner, table: (
            set(table) == set().union(*owner._pages.values())
        ),
        ("WorkerPairs", "_fabrics"): _pairs,
        ("WorkerPairs", "_workers"): _each("workers"),
        ("WorkerChoice", "_workers"): _each("workers"),
        ("WorkerChoice", "_ahead"): _pairs,
        ("Router", "_ahead"): _pairs,
        # of the links that dialled us the adapter forgets the oldest (adapters/zmq_control.py
        # MAX_LINKS); what we dialled is above
        ("SimControl", "_inward"): _always,
        ("SimControl", "_routes"): lambda live, owner, table: (
            len(table) == live.dialled + len(owner._inward)
        ),
        # plans and reports
        ("Agreement", "_applied"): _by_rank,
        ("Agreement", "reads"): _by_rank,
        ("Agreement", "copies"): _by_rank,
        ("Agreement", "counted"): _by_rank,
        # that of the last plan, which all ranks have applied
        ("Agreement", "_chains"): lambda live, owner, table: len(table) == 1,
        ("Plans", "_known"): lambda live, owner, table: len(table) <= MOST,
        # what a process is made of
        ("Leader", "_handlers"): _always,
        ("Worker", "on_forget"): _always,
        ("Worker", "on_resumed"): _always,
        ("Front", "_handlers"): _always,
        ("Worker", "placements"): _always,
        ("Inspections", "_placements"): _always,
        ("Partners", "_placements"): _always,
        ("Ledger", "_totals"): _always,
        ("Ledger", "pools"): _always,
        ("Rooms", "_standing"): _always,  # a table for each state
        ("RankHost", "_fabrics"): _always,
        ("Watchdog", "_lanes"): _always,  # one for each kind of work
        ("SimFabric", "_pools"): _always,
        # counts
        # belongs to a planted bug, which remembers more than a gateway may
        ("RepeatsTickets", "_tickets"): _always,
        ("Worker", "marks"): _always,
        ("Worker", "failures"): _always,
        ("Worker", "spent"): _always,
        ("Durations", "_counts"): _always,
        ("SpeculationCount", "_accepted"): _always,  # by place in a row of drafts
        ("DraftPayoff", "_plain"): _always,  # by class of numbers of rooms
        ("DraftPayoff", "_drafted"): _always,
        ("TextLookup", "_said"): lambda live, owner, table: len(table) <= SALTS,
        ("RankCore", "marks"): _always,
        ("Front", "marks"): _always,
        ("Edge", "_refused"): _always,
        ("AnswerLengths", "_lengths"): lambda live, owner, table: len(table) <= table.maxlen,
        ("DepartureRate", "_times"): lambda live, owner, table: len(table) <= table.maxlen,
        ("PageReservations", "_sum"): lambda live, owner, table: not any(table.values()),
        ("SimFabric", "_lying"): _always,
        ("UsualDuration", "_slowest"): _always,  # by size, in powers of two
        # cached pages
        ("PagePool", "_cached"): _cache,
        ("PrefixCache", "_entries"): _cache,
        ("PrefixCache", "_idle"): _cache,
        ("PrefixCache", "_verified"): lambda live, owner, table: (
            set(table) <= set(owner._entries.values())
        ),
        ("CachedPage", "children"): _cache,
        ("CachedPage", "pages"): _cache,
        ("CachedPage", "sums"): _cache,
        # checkpoints, each of which belongs to a cached page
        ("HostLedger", "_taken"): lambda live, owner, table: all(
            isinstance(key, int) for key in table
        ),
        ("Checkpoints", "_used"): _cache,
        ("Checkpoints", "_counts"): lambda live, owner, table: (
            sum(table.values()) == len(owner) and all(table.values())
        ),
        ("Checkpoints", "_by_page"): lambda live, owner, table: (
            {one.name for alike in table.values() for one in alike} == set(owner._used)
        ),
        ("PromptCheckpoint", "sums"): _cache,
        # what is known of pages that another engine gives out: as many as there are pages
        ("PageSums", "_totals"): _always,
        ("PageSums", "_known"): _always,
        ("PageSums", "_refused"): _always,
        ("PageSums", "_sums"): _always,
        ("GuestComputing", "_given_up"): lambda live, owner, table: len(table) <= GIVEN_UP,
        # messages that were sent once, a moment ago, and are not acknowledged yet
        ("Stream", "_kept"): lambda live, owner, table: owner._wait == owner._limits.resend_first,
        # kept for a stated time: sessions that the other side may not know, offers without a ticket
        ("Sessions", "_promised"): lambda live, owner, table: all(
            promised.until > live.now for promised in table.values()
        ),
        ("EarlyOffers", "_rooms"): lambda live, owner, table: all(
            sender in live.peers and waiting.until > live.now
            for (_, sender), waiting in table.items()
        ),
        ("HeldOffers", "offers"): _always,
    }
)


def kept(
    fronts: Collection[tuple[Process, Front]], workers: Collection[WorkerRun]
) -> Iterator[tuple[Process, str]]:
    """Yield what processes keep although no live process justifies it: the process, and what it
    keeps."""
    gateways = frozenset(process.boot for process, _ in fronts)
    boots = {role: frozenset(w.boot for w in workers if w.draw.role == role) for role in ROLES}

    def live(process: Process, role: str, rank: int = 0, ranks: Collection[Boot] = ()) -> Live:
        by_role = boots["prefill"], boots["decode"], boots["unified"]
        return Live(gateways, *by_role, process.clock.now(), role, rank, tuple(ranks))

    for process, front in fronts:
        for what in (
            *left(process.pump, live(process, "gateway")),
            *left(front, live(process, "gateway")),
            *_timer(front),
        ):
            yield process, what
    for worker in workers:
        lead = worker.processes[0]
        for what in (
            *left(worker.leader, live(lead, worker.draw.role, 0, worker.boots)),
            *_timer(worker.leader),
        ):
            yield lead, what
        for rank, process in enumerate(worker.processes):
            lives = live(process, worker.draw.role, rank, worker.boots)
            for what in (*left(process.pump, lives), *left(worker.cores[rank], lives)):
                yield process, what
            for table in worker.beside(rank):
                yield from ((process, what) for what in left(table, lives))


def left(pump: Any, live: Live) -> Iterator[str]:
    """Yield the tables of a process that hold what nothing justifies: their owners, and what is in
    them."""
    yield from _tables(pump, live, set())


def _tables(owner: Any, live: Live, seen: set[int]) -> Iterator[str]:
    if id(owner) in seen:
        return
    seen.add(id(owner))
    for name, value in _attributes(owner):
        if isinstance(value, TABLES):
            if not _justified(owner, name, value, live):
                yield f"{type(owner).__name__}.{name}: {_short(value)}"
            for item in value.values() if isinstance(value, dict) else value:
                if _owns(item):
                    yield from _tables(item, live, seen)
        elif isinstance(value, tuple):  # the parts of something: never empty, never full
            for item in value:
                if _owns(item):
                    yield from _tables(item, live, seen)
        elif _owns(value):
            yield from _tables(value, live, seen)


def _justified(owner: Any, name: str, table: Any, live: Live) -> bool:
    rule = next(
        (
            JUSTIFIED[c.__name__, name]
            for c in type(owner).__mro__
            if (c.__name__, name) in JUSTIFIED
        ),
        None,
    )
    return rule(live, owner, table) if rule is not None else not table


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(owner, msgspec.Struct):
        if not owner.__struct_config__.frozen:  # else it is a value
            yield from ((field, getattr(owner, field)) for field in owner.__struct_fields__)
        return
    yield from vars(owner).items() if hasattr(owner, "__dict__") else ()
    for kind in type(owner).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        yield from ((slot, getattr(owner, slot)) for slot in slots if slot != "__dict__")


def _owns(value: Any) -> bool:
    kind = type(value)
    return (
        kind.__module__.startswith(PARTS)
        and kind.__name__ not in OUTSIDE
        and not isinstance(value, Enum)
    )


def _short(table: Collection[Any]) -> str:
    """Return a table in a few words, as a manifest has pages of text."""
    names = ", ".join(str(key)[:60] for key in list(table)[:4])
    return f"{len(table)} entries ({names})" if table else "nothing"


def _timer(core: Leader | Front) -> Iterator[str]:
    """Yield the time at which a leader or a front will be woken although nothing is to be done.
    Offers without a ticket and cached pages have their own timers."""
    due = set()
    if isinstance(core, Leader):
        due = {core.worker.scrubber.timer(busy=False)}
        due |= {core.stage(Fetching).timer()} if core.worker.manifest.role == "decode" else set()
    if core.next_wake() != min((at for at in due if at is not None), default=None):
        yield f"a timer, at {core.next_wake()}"
