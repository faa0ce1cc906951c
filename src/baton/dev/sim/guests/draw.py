"""The settings of a world of guests, drawn from its tape."""

import msgspec

from baton.core.memory.state import DType, Full, Group, StateSpec, StateTable, Unit
from baton.dev.sim.settings import (
    BLOCK_TOKENS,
    FULL,
    LAYERS,
    LONGEST,
    Faults,
    GuestDraw,
    WorkerDraw,
    WorldDraw,
    draw_faults,
)
from baton.dev.sim.tape import Tape

HEADS = (2, 2, 4, 1)
WIDTHS = (1, 1, 2, 1, 2)  # tensor-parallel ranks, if there are as many heads
COUNTS = (1, 1, 1, 2)
BUDGETS = (32, 8, 16, 4, 5)  # tokens of a step
SEQS = (8, 2, 4, 3)
# blocks, in requests of the largest size; vLLM starts with no fewer than one of them needs
ROOMY = (6.0, 3.0, 1.7, 1.2, 1.0)
SHORT = 1.7  # with as many or fewer, requests are preempted
IDLE_US = (2_000, 300, 1_000)
PATIENCE_MS = (1_500, 1_500, 300)


def draw_guests(tape: Tape) -> WorldDraw:
    """Draw a world. If all choices are zero it has one prefill and one decode engine of one rank
    each, and no faults."""
    heads = HEADS[tape.below(len(HEADS), "heads")]
    spec = StateSpec("kv", FULL, tuple(range(LAYERS)), ("k", "v"), heads, 4, DType.F32)
    table = StateTable(LAYERS, BLOCK_TOKENS, (Group(FULL, Unit.PAGE, Full()),), (spec,))
    roomy = ROOMY[tape.below(len(ROOMY), "roomy")]
    workers = [
        _worker(tape, f"{role}-{i}", role, heads, roomy)
        for role in ("prefill", "decode")
        for i in range(COUNTS[tape.below(len(COUNTS), f"{role}s")])
    ]
    guests = GuestDraw(
        merged=bool(tape.below(2, "merged")),
        patience_ms=PATIENCE_MS[tape.below(len(PATIENCE_MS), "patience")],
        short=roomy <= SHORT,
        idle_us=IDLE_US[tape.below(len(IDLE_US), "idle")],
    )
    return WorldDraw(
        table=table,
        gateways=("gateway-0", "gateway-1") if tape.chance(0.2, "two gateways") else ("gateway-0",),
        workers=tuple(workers),
        faults=Faults() if tape.chance(0.1, "clean") else _faults(tape),
        requests=5 + tape.below(5, "requests"),
        hostile_ms=(800, 1200, 600, 2000)[tape.below(4, "hostile_ms")],
        attempts_differ=not tape.chance(0.3, "attempts_alike"),
        quiet_ends=not tape.chance(0.4, "loud_ends"),
        pressed=tape.chance(0.4, "long answers at once"),
        decode_caches=False,
        alike=tape.chance(0.6, "alike"),
        guests=guests,
    )


def _worker(tape: Tape, name: str, role: str, heads: int, roomy: float) -> WorkerDraw:
    need = -(-LONGEST // BLOCK_TOKENS)
    return WorkerDraw(
        name=name,
        role=role,
        tp=min(heads, WIDTHS[tape.below(len(WIDTHS), "tp")]),
        pp=1,
        page_blocks=1,
        pages=int(need * roomy) + tape.below(4, "pages"),
        slots=0,
        step_tokens=BUDGETS[tape.below(len(BUDGETS), "budget")],
        last_chunk_tokens=1,
        max_rooms=SEQS[tape.below(len(SEQS), "seqs")],
    )


def _faults(tape: Tape) -> Faults:
    """Draw faults. Left out are those of what vLLM does by itself: host memory, requests that no
    pool holds (vLLM refuses them by their length), other weights, and work that never ends."""
    late = (0.1, 0.4)[tape.below(2, "http_late")] if tape.chance(0.5, "with http_late") else 0.0
    found = draw_faults(tape)
    return msgspec.structs.replace(
        found, http_late=late, big=0.0, mismatch=0.0, host_damage=0.0, host_slow=0.0, host_fail=0.0
    )
