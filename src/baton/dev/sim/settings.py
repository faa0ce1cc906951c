"""The settings of one world. They are drawn from its tape, so that every seed has its own layouts,
pools and faults (swarm testing: Groce et al., Swarm Testing, ISSTA 2012)."""

from collections.abc import Mapping

import msgspec

from baton.core.handoff.fetch_back import FetchBack
from baton.core.ids import GroupName
from baton.core.memory.host_ledger import state_bytes
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    Placement,
    StateSpec,
    StateTable,
    Unit,
    Whole,
    Window,
)
from baton.dev.sim.costs import Costs, Shares
from baton.dev.sim.tape import Tape

BLOCK_TOKENS = 4
LAYERS = 2
LONGEST = 33  # tokens of the largest ordinary request, one of headroom among them
# of a world; beyond it workers are narrow, as messages between ranks would take most of the run
MAX_RANKS = 8
# likewise for the second and third worker of a role, which are only there as an alternative
MORE_RANKS = 4
FULL, WINDOW, SLOT = GroupName("full"), GroupName("window"), GroupName("slot")
FAR, INDEX, HIDDEN = GroupName("far window"), GroupName("index"), GroupName("hidden")

# Values are drawn evenly from these lists, so a rare value stands there once; the first is calm.
HEADS = (2, 2, 2, 2, 4, 4, 4, 8, 1, 1, 1, 3)
WIDTHS: Mapping[int, tuple[int, ...]] = {  # by heads
    1: (1, 1, 1, 1, 1, 2, 2, 1, 4, 3),
    2: (1, 1, 1, 1, 1, 1, 2, 2, 4),
    3: (1, 1, 3),
    4: (1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 4),
    8: (1, 1, 1, 1, 2, 2, 4),
}
STEP_TOKENS = (32, 8, 16, 8, 32, 16, 16, 4)
# for a pipeline: its steps are under way at the same time, one behind the other
STEP_TOKENS_PIPED = (16, 4, 8, 4, 8, 4, 8, 4)
COUNTS = (1, 1, 2, 1, 1, 2, 1, 3)  # of the workers of a role
PAGE_BLOCKS = (1, 1, 1, 1, 2, 2, 2, 4, 3, 3, 3, 4)
CROWDS = (0, 1, 2, 3, 1, 2, 1)  # how short memory is; 0 = there is plenty
HURRY_MS = (0, 0, 300, 1_500)  # deadlines of requests in a crowd; 0 = as long as they need
# with this shortage all ask at once, and for long answers, so that running rooms run out of pages
PRESSED = 3
# the size of the host store, in states of the longest request, by the draw of `pages`
HOST_STATES = (4, 0, 2, 0.5)

# Whether there is a unified worker beside the others, or alone; or decode workers compute prompts
# themselves where that is cheaper; or who is of the version before ours.
OLDER = ("gateway", "prefill", "decode")
UNIFIED = (None, None, "local", "beside", None, "local", "beside", None, "alone", *OLDER)

# Whether prefill fetches back what decode workers have cached; None = they have no prefix cache.
CACHES = (
    FetchBack.NEVER,
    FetchBack.ALWAYS,
    FetchBack.ALWAYS,
    FetchBack.AUTO,
    FetchBack.ALWAYS,
    None,
)


VERIFY_MS = (1500, 300, 1500, 0)  # intervals within which cached pages are hashed again


class WorkerDraw(msgspec.Struct, frozen=True):
    """One worker: its layout and the size of its pools."""

    name: str
    role: str
    tp: int
    pp: int
    page_blocks: int
    pages: int
    slots: int
    step_tokens: int
    last_chunk_tokens: int
    max_rooms: int
    host_bytes: int = 0  # the size of each rank's host store


class Faults(msgspec.Struct, frozen=True):
    """Probabilities of faults, per frame, per read, per digest or per request; 0 means that the
    fault does not occur in this world. Integers count occurrences in the hostile phase."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    lag: float = 0.0  # a frame, and all behind it on its link, is late by some milliseconds
    old: float = 0.0  # a copy of a frame that arrives seconds later
    late: float = 0.0  # a frame that arrives after every timeout of the code
    read_fail: float = 0.0
    read_straggle: float = 0.0
    read_corrupt: float = 0.0
    read_torn: float = 0.0  # sampled and landed in pieces over time
    source_damage: int = 0  # bit flips in a source's own pages
    crashes: int = 0
    pauses: int = 0
    partitions: int = 0
    abort: float = 0.0
    retry: float = 0.0
    tight: float = 0.0  # a deadline that cannot always be met
    big: float = 0.0  # a request larger than a pool
    mismatch: float = 0.0  # a worker restarts, or begins, with other weights
    connect_fail: float = 0.0
    host_slow: float = 0.0  # a copy to or from the host store takes long
    host_fail: float = 0.0
    host_damage: float = 0.0  # a bit flips in the store
    # a process computes at a fraction of its pace for a while; this excuses no failure
    slow_hosts: int = 0
    confused: float = 0.0  # a message to a process is sent again by another process
    twice: float = 0.0  # a message is sent again by the same process
    # news of a worker's prefix cache does not come, though its session says that it did
    missed: float = 0.0
    http_late: float = 0.0  # a request to an engine arrives late, by up to some seconds
    hangs: int = 0  # work of a worker that never ends
    drains: int = 0  # workers that drain, which excuses no failure
    poison: bool = False  # whether one of the requests kills every worker that computes it


class GuestDraw(msgspec.Struct, frozen=True):
    """What is special in a world of guests.

    Attributes:
        merged: whether vLLM names requests that go on after a preemption among the new ones
        patience_ms: after which decode computes a prompt that nobody hands over
        short: whether blocks are so few that requests are preempted
        idle_us: between two steps that compute nothing
    """

    merged: bool
    patience_ms: int
    short: bool
    idle_us: int


class WorldDraw(msgspec.Struct, frozen=True):
    """The settings of one world."""

    table: StateTable
    gateways: tuple[str, ...]
    workers: tuple[WorkerDraw, ...]
    faults: Faults
    requests: int
    hostile_ms: int
    attempts_differ: bool  # whether every computation of the same rows gives other bits
    quiet_ends: bool  # whether the fabric promises that a read lands nothing after its end
    pressed: bool = False  # whether all requests come at once and want long answers
    decode_caches: bool = True  # whether decode workers have a prefix cache, as prefill workers do
    fetch_back: FetchBack = FetchBack.NEVER
    alike: bool = False  # whether most prompts were asked before, or begin like one that was
    costs: Costs = Costs()
    crowded: bool = False  # whether there are many more requests than the workers hold at once
    hurry_ms: int = 0  # the deadline of each request; 0 = as long as it could need
    shaped: bool = False  # whether requests have penalties, least lengths, logprobs
    verify_ms: int = 0  # within which every cached page is hashed again; 0 = never
    guests: GuestDraw | None = None  # None: workers compute by themselves
    local_prefill: bool = False  # whether decode workers may compute prompts
    # whose processes are of the version before ours until they start again
    older: str = ""
    drafts: bool = False  # whether tokens are drafted, and answers repeat themselves

    @property
    def draft_layer(self) -> int:
        """How many tokens the draft layer drafts after a row; 0 = there is no such layer."""
        return LAYER_DRAFTS if any(group.optional for group in self.table.groups) else 0

    @property
    def lends_checkpoints(self) -> bool:
        """Whether what decode lends to prefill are checkpoints."""
        return self.fetch_back is not FetchBack.NEVER and not self.table.cacheable

    @property
    def clean(self) -> bool:
        """Whether no fault occurs in this world."""
        return self.faults == Faults()


HOSTILE_MS = (800, 1200, 600, 2000)  # how long faults happen
DRAFTS_MS = (1200, 2000)  # in worlds with so long ones tokens are drafted
LAYER_DRAFTS = 2  # by a draft layer, which drafts in every world that has one


def draw_table(tape: Tape) -> StateTable:
    """Draw a table with one to five kinds of state over two layers."""
    heads = HEADS[tape.below(len(HEADS), "heads")]
    groups = [Group(FULL, Unit.PAGE, Full())]
    specs = [StateSpec("kv", FULL, (0, 1), ("k", "v"), heads, 4, DType.F32)]
    # half of the tables can be cached, a third have a window, a third a slot
    kinds = tape.below(12, "kinds")
    if kinds in (1, 4, 6, 8):
        groups.append(Group(WINDOW, Unit.PAGE, Window(6)))
        specs.append(StateSpec("swa", WINDOW, (1,), ("k", "v"), heads, 4, DType.F32))
    if kinds in (6, 8):
        # of another length, so that one passes pages that the other holds
        groups.append(Group(FAR, Unit.PAGE, Window(13)))
        specs.append(StateSpec("far", FAR, (0, 1), ("k",), 1, 4, DType.F32))
    if kinds in (2, 4, 8):
        groups.append(Group(SLOT, Unit.SLOT, Whole()))
        specs.append(StateSpec("delta", SLOT, (0,), ("s",), heads, 8, DType.F32))
    if kinds == 3:
        specs.append(StateSpec("index", FULL, (0, 1), ("k",), 1, 4, DType.F32))
    if kinds in (7, 8):
        groups.append(Group(INDEX, Unit.PAGE, Full() if kinds == 7 else Window(9)))
        specs.append(StateSpec("index", INDEX, (0, 1), ("k",), 1, 4, DType.F32))
    if kinds in (8, 9):
        groups += [] if kinds == 8 else [Group(SLOT, Unit.SLOT, Whole())]
        specs.append(StateSpec("draft", SLOT, (1,), ("hidden",), 1, 8, DType.F32))
    table = StateTable(LAYERS, BLOCK_TOKENS, tuple(groups), tuple(specs))
    return with_draft_layer(table, SLOT) if kinds == 10 else table


def with_draft_layer(table: StateTable, group: GroupName = HIDDEN) -> StateTable:
    """Return the table with the rows of a draft layer, and the last hidden state in a group of
    its own."""
    return msgspec.structs.replace(
        table,
        groups=(*table.groups, Group(group, Unit.SLOT, Whole(), optional=True)),
        specs=(
            *table.specs,
            StateSpec("draft rows", FULL, (1,), ("c",), 1, 4, DType.F32),
            StateSpec("last hidden", group, (1,), ("h",), 1, 8, DType.F32),
        ),
    )


def draw_world(tape: Tape) -> WorldDraw:
    """Draw a world. If all choices are zero it has one prefill and one decode worker of one rank
    each, no faults, and nothing that costs time."""
    found = draw_service(tape)
    # what is drawn already decides on drafts, so that all other choices of a seed stay as they were
    recurrent = any(g.unit is Unit.SLOT and not g.optional for g in found.table.groups)
    piped = any(w.pp > 1 and w.role != "prefill" for w in found.workers)
    if found.hostile_ms in DRAFTS_MS and not (recurrent and piped):
        found = msgspec.structs.replace(found, drafts=True)
        if found.hostile_ms == DRAFTS_MS[1] and recurrent and not found.older:
            found = msgspec.structs.replace(found, table=with_draft_layer(found.table))
    found = msgspec.structs.replace(found, drafts=found.drafts or found.draft_layer > 0)
    if not found.clean and tape.chance(0.33, "gray"):
        found = msgspec.structs.replace(found, faults=grayer(found.faults, tape))
    if tape.chance(0.045, "a crowd"):
        return _crowded(tape, found)
    return (
        msgspec.structs.replace(found, costs=draw_costs(tape, found))
        if tape.chance(0.12, "costs")
        else found
    )


def draw_service(tape: Tape) -> WorldDraw:
    """Draw workers, clients and faults."""
    table = draw_table(tape)
    heads = max(s.heads for s in table.specs)
    wide = tape.chance(0.42, "wide")
    narrow = 2 if wide and heads % 2 == 0 else 1
    workers, ranks = [], 0
    counts = {
        "prefill": COUNTS[tape.below(len(COUNTS), "prefills")],
        "decode": COUNTS[tape.below(len(COUNTS), "decodes")],
    }
    k_of = {role: PAGE_BLOCKS[tape.below(len(PAGE_BLOCKS), "page_blocks")] for role in counts}
    crowd = CROWDS[tape.below(len(CROWDS), "crowd")]
    for role, count in counts.items():
        for i in range(count):
            least, most = (narrow, MAX_RANKS) if i == 0 else (1, MORE_RANKS)
            worker = draw_worker(
                tape, table, f"{role}-{i}", role, k_of[role], crowd, least=least, most=most - ranks
            )
            ranks += worker.tp * worker.pp
            workers.append(worker)
    caches = CACHES[tape.below(len(CACHES), "decode caches")]
    back = caches if caches is not None else FetchBack.NEVER
    found = WorldDraw(
        table=table,
        gateways=("gateway-0", "gateway-1") if tape.chance(0.2, "two gateways") else ("gateway-0",),
        workers=tuple(workers),
        faults=Faults() if tape.chance(0.06, "clean") else draw_faults(tape),
        requests=5 + tape.below(2, "requests"),
        hostile_ms=HOSTILE_MS[tape.below(len(HOSTILE_MS), "hostile_ms")],
        attempts_differ=not tape.chance(0.3, "attempts_alike"),
        quiet_ends=not tape.chance(0.4, "loud_ends"),
        pressed=crowd == PRESSED,
        decode_caches=caches is not None,
        fetch_back=back,
        alike=tape.chance(0.5, "alike") or back is FetchBack.ALWAYS,
        shaped=tape.chance(0.4, "shaped"),
    )
    if found.lends_checkpoints:  # which takes host memory on both sides
        least = HOST_STATES[0] * state_bytes(Placement(table, 1, 1, 0, 0, 1), LONGEST)
        more = tuple(
            msgspec.structs.replace(w, host_bytes=w.host_bytes or int(least)) for w in workers
        )
        found = msgspec.structs.replace(found, workers=more)
    verify_ms = VERIFY_MS[tape.below(len(VERIFY_MS), "verified within")]
    found = msgspec.structs.replace(found, verify_ms=verify_ms)
    where = UNIFIED[tape.below(len(UNIFIED), "unified")]
    if where is None:
        return found
    if where == "local":
        return msgspec.structs.replace(found, local_prefill=True)
    if where in OLDER:
        # workers of the version before have no draft layer, and so another table
        knows = where == "gateway" or not found.draft_layer
        return msgspec.structs.replace(found, older=where) if knows else found
    beside = found.workers if where == "beside" else ()
    unified = draw_unified(
        tape, table, crowd, count=1 if beside else 1 + tape.below(2, "unifieds"), narrow=narrow
    )
    return msgspec.structs.replace(found, workers=beside + unified)


def _crowded(tape: Tape, draw: WorldDraw) -> WorldDraw:
    """Return the same world with many clients and workers that hold more of them; every other one
    without faults."""
    workers = tuple(
        msgspec.structs.replace(w, pages=16 * w.pages, slots=16 * w.slots, max_rooms=64)
        for w in draw.workers
    )
    return msgspec.structs.replace(
        draw,
        workers=workers,
        requests=80 + 20 * tape.below(4, "how many"),
        costs=draw_costs(tape, draw),
        faults=draw.faults if tape.below(2, "with faults") else Faults(),
        crowded=True,
        hurry_ms=HURRY_MS[tape.below(len(HURRY_MS), "hurry")],
    )


def longest_bytes(draw: WorldDraw) -> int:
    """Return how many bytes the ranks of one worker read for the state of the largest ordinary
    request. If there are fewer heads than ranks, several ranks hold the same heads, and each reads
    them for itself."""
    read = (
        sum(
            state_bytes(Placement(draw.table, w.tp, w.pp, t, p, 1), LONGEST)
            for p in range(w.pp)
            for t in range(w.tp)
        )
        for w in draw.workers
    )
    return max(read, default=0)


def draw_costs(tape: Tape, draw: WorldDraw) -> Costs:
    """Draw slow engines, slow wires, or both. They are never so slow that a step, or the reads that
    a fabric is given at once, take longer than the time after which the code gives them up."""
    # in two of four cases only wires are slow: with a slow engine they are never full
    slow = tape.below(4, "what is slow")
    longest = longest_bytes(draw)
    sharing = max(1, len(draw.workers) - 1)  # reads may come from, or go into, as many workers
    longest_ms = (100, 100, 50)[tape.below(3, "the wire")] // sharing
    engine, wire = slow in (0, 3), slow != 0
    return Costs(
        step_us=(20_000, 40_000, 60_000)[tape.below(3, "a step")] if engine else 400,
        row_us=500 * tape.below(3, "a row") if engine else 0,
        token_us=(8_000, 4_000, 500)[tape.below(3, "a token")] if engine else 25,
        read_us=200 * tape.below(4, "a read") if wire else 0,
        bytes_per_ms=-(-longest // longest_ms) if wire else 0,
        shares=(Shares.ALL, Shares.SOURCE, Shares.TARGET)[tape.below(3, "the wire is shared")]
        if wire
        else Shares.NONE,
        connect_us=100_000 * tape.below(4, "to connect"),
    )


def draw_unified(
    tape: Tape, table: StateTable, crowd: int, *, count: int, narrow: int
) -> tuple[WorkerDraw, ...]:
    """Draw unified workers, which compute prompts and generate tokens."""
    k = PAGE_BLOCKS[tape.below(len(PAGE_BLOCKS), "page_blocks")]
    return tuple(
        draw_worker(tape, table, f"unified-{i}", "unified", k, crowd, least=narrow, most=MORE_RANKS)
        for i in range(count)
    )


def draw_worker(
    tape: Tape,
    table: StateTable,
    name: str,
    role: str,
    page_blocks: int,
    crowd: int,
    *,
    least: int,
    most: int,
) -> WorkerDraw:
    """Draw one worker with at most `most` ranks; if its draw has more, it gets `least` ranks and
    one stage."""
    heads = max(s.heads for s in table.specs)
    # a pipeline may pass pages of a window while orders are under way
    windowed = any(isinstance(g.extent, Window) for g in table.groups)
    tp = max(WIDTHS[heads][tape.below(len(WIDTHS[heads]), "tp")], least)
    pp = 1 + (tape.below(6 if windowed else 16, "pp") == 4)  # any but 0, the calm choice
    tp, pp = (tp, pp) if tp * pp <= most else (least, 1)
    more = tape.below(4, "pages")
    need = -(-LONGEST // (BLOCK_TOKENS * page_blocks))  # pages of the largest ordinary request
    longest = state_bytes(Placement(table, 1, 1, 0, 0, 1), LONGEST)
    return WorkerDraw(
        name=name,
        role=role,
        tp=tp,
        pp=pp,
        page_blocks=page_blocks,
        pages=need * (4, 2, 1, 1)[crowd] + (more % 2 if crowd == PRESSED else more),
        slots=(8, 3, 2, 2)[crowd],
        step_tokens=(STEP_TOKENS if pp == 1 else STEP_TOKENS_PIPED)[
            tape.below(len(STEP_TOKENS), "step_tokens")
        ],
        last_chunk_tokens=(32, 4, 8, 32)[tape.below(4, "last_chunk")],
        max_rooms=(8, 2, 3, 4)[tape.below(4, "max_rooms")],
        host_bytes=int(HOST_STATES[more] * longest)
        if role != "prefill" or not table.cacheable
        else 0,
    )


def grayer(faults: Faults, tape: Tape) -> Faults:
    """Add gray failures: work that never ends, and a request that kills every worker that computes
    it."""
    kinds = 1 + tape.below(3, "gray kinds")
    return msgspec.structs.replace(
        faults, hangs=2 + tape.below(3, "hangs") if kinds & 1 else 0, poison=bool(kinds & 2)
    )


def draw_faults(tape: Tape) -> Faults:
    """Draw which kinds of fault occur, and the intensity of each."""

    def some(probability: float, label: str, *levels: float) -> float:
        return (
            levels[tape.below(len(levels), label)]
            if tape.chance(probability, f"with {label}")
            else 0.0
        )

    found = Faults(
        loss=some(0.4, "loss", 0.02, 0.1),
        duplicate=some(0.35, "duplicate", 0.02, 0.1),
        reorder=some(0.4, "reorder", 0.05, 0.3),
        old=some(0.3, "old", 0.01, 0.03),
        lag=some(0.3, "lag", 0.05, 0.3),
        late=some(0.2, "late", 0.002, 0.01),
        read_fail=some(0.35, "read_fail", 0.05, 0.2),
        read_straggle=some(0.25, "read_straggle", 0.05, 0.2),
        read_corrupt=some(0.25, "read_corrupt", 0.05, 0.2, 0.3),
        read_torn=some(0.5, "read_torn", 0.3, 1.0),
        source_damage=int(some(0.35, "source_damage", 2, 5)),
        crashes=int(some(0.35, "crashes", 1, 2, 3)),
        pauses=int(some(0.25, "pauses", 1, 2)),
        partitions=int(some(0.3, "partitions", 1, 2)),
        abort=some(0.4, "abort", 0.1, 0.4),
        retry=some(0.25, "retry", 0.5),
        tight=some(0.3, "tight", 0.2, 0.5),
        big=some(0.15, "big", 0.1),
        mismatch=some(0.15, "mismatch", 0.3),
        connect_fail=some(0.15, "connect_fail", 0.2),
        host_damage=some(0.35, "host_damage", 0.2, 0.5),
        slow_hosts=int(some(0.1, "slow_hosts", 1, 3)),
    )
    slow, fail = found.read_straggle + found.lag, found.read_fail / 2
    more = {"confused": some(0.2, "confused", 0.2, 0.6), "twice": some(0.2, "twice", 0.05, 0.2)}
    more["missed"] = some(0.2, "missed", 0.1, 0.5)
    # where hosts are slow, a worker that drains has requests that take their time
    drains = 1 + tape.below(3, "drains") if found.slow_hosts else 0
    return msgspec.structs.replace(found, host_slow=slow, host_fail=fail, drains=drains, **more)
