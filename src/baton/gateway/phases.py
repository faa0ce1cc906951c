"""In which phase a request is: one word for what its gateway and its two workers say of it.

gateway:   waiting ─────────────▶ given ─▶ .. ─▶ streaming
prefill:                queued ─▶ awaits_turn ─▶ computing ─▶ offered
decode:                 queued ────────────────────────────▶ fetching ─▶ committing ─▶ running
phase:     waiting ──▶ queued ────────────────▶ computing ─▶ fetching ─▶ committing ─▶ running
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from baton.core.scheduler.room import AWAITS_TURN, RoomState


class RequestPhase(StrEnum):
    """What a request does, or waits for."""

    WAITING = "waiting"  # at the gateway, for its turn or for workers with room
    HELD = "held"  # at the gateway; see request_state.py
    QUEUED = "queued"  # at its workers, for memory or behind other prompts
    RESUMING = "resuming"  # prefill copies back where an earlier prompt has ended
    BORROWING = "borrowing"  # prefill fetches back what decode has cached of the prompt
    COMPUTING = "computing"  # its prompt is computed
    OFFERED = "offered"  # its prompt is computed, and decode has no memory for it yet
    FETCHING = "fetching"  # decode reads the state of its prompt
    COMMITTING = "committing"  # decode has read it, and its ranks agree on that
    RUNNING = "running"  # tokens are generated
    PREEMPTED = "preempted"  # it gave way to others, or comes back from that
    ENDING = "ending"  # what it holds is being freed


# What the workers say, the word that tells most first. A unified worker stands on the decode side.
_PREFILL, _DECODE = 0, 1
_WORDS: Sequence[tuple[int, str, RequestPhase]] = (
    (_DECODE, RoomState.RUNNING, RequestPhase.RUNNING),
    (_DECODE, RoomState.OFFLOADING, RequestPhase.PREEMPTED),
    (_DECODE, RoomState.OFFLOADED, RequestPhase.PREEMPTED),
    (_DECODE, RoomState.RESTORING, RequestPhase.PREEMPTED),
    (_DECODE, RoomState.COMMITTING, RequestPhase.COMMITTING),
    (_PREFILL, RoomState.RESUMING, RequestPhase.RESUMING),
    (_PREFILL, RoomState.BORROWING, RequestPhase.BORROWING),
    (_PREFILL, AWAITS_TURN, RequestPhase.QUEUED),
    (_DECODE, AWAITS_TURN, RequestPhase.QUEUED),
    (_PREFILL, RoomState.COMPUTING, RequestPhase.COMPUTING),
    (_DECODE, RoomState.COMPUTING, RequestPhase.COMPUTING),
    (_DECODE, RoomState.FETCHING, RequestPhase.FETCHING),
    (_PREFILL, RoomState.OFFERED, RequestPhase.OFFERED),
    (_PREFILL, RoomState.QUEUED, RequestPhase.QUEUED),
    (_DECODE, RoomState.QUEUED, RequestPhase.QUEUED),
    (_DECODE, RoomState.ENDING, RequestPhase.ENDING),
    (_PREFILL, RoomState.ENDING, RequestPhase.ENDING),
)
# Without a word of the workers, whose ledgers may be older than what the gateway knows.
_AT_GATEWAY: Mapping[str, RequestPhase] = {
    "waiting": RequestPhase.WAITING,
    "held": RequestPhase.HELD,
    "given": RequestPhase.QUEUED,
    "answered": RequestPhase.FETCHING,
    "admitted": RequestPhase.COMPUTING,
    "streaming": RequestPhase.RUNNING,
}


def phase_of(gateway: str, prefill: str | None, decode: str | None) -> RequestPhase:
    """Return the phase of a request.

    Args:
        gateway: its state at the gateway; empty if it is another gateway's
        prefill, decode: the states of its rooms; None where a worker has none
    """
    if gateway in ("waiting", "held"):
        return _AT_GATEWAY[gateway]
    said = (prefill, decode)
    found = (phase for side, state, phase in _WORDS if said[side] == state)
    return next(found, _AT_GATEWAY.get(gateway, RequestPhase.QUEUED))
