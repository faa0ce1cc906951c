"""What can happen to a room in each role. A pair of state and event that a role's table lacks is a
bug of ours."""

from baton.core.scheduler.room import RoomState, Saw, Table

OFFLOAD: Table = {
    (RoomState.RUNNING, Saw.PREEMPTED): RoomState.OFFLOADING,
    (RoomState.OFFLOADING, Saw.STORED): RoomState.OFFLOADED,
    (RoomState.OFFLOADING, Saw.END): RoomState.ENDING,
    (RoomState.OFFLOADED, Saw.HELD): RoomState.RESTORING,
    (RoomState.OFFLOADED, Saw.END): RoomState.ENDING,  # its copy is still to be forgotten
    (RoomState.RESTORING, Saw.RESTORED): RoomState.RUNNING,
    (RoomState.RESTORING, Saw.END): RoomState.ENDING,
}

PREFILL: Table = {
    (RoomState.QUEUED, Saw.HELD): RoomState.COMPUTING,
    (RoomState.QUEUED, Saw.END): RoomState.ENDED,  # it holds nothing
    (RoomState.COMPUTING, Saw.ADMITTED): RoomState.COMPUTING,
    (RoomState.COMPUTING, Saw.ASKED): RoomState.BORROWING,
    (RoomState.BORROWING, Saw.ADMITTED): RoomState.BORROWING,
    (RoomState.BORROWING, Saw.BORROWED): RoomState.COMPUTING,
    (RoomState.BORROWING, Saw.END): RoomState.ENDING,
    (RoomState.COMPUTING, Saw.LAST_CHUNK): RoomState.OFFERED,
    (RoomState.COMPUTING, Saw.END): RoomState.ENDING,
    (RoomState.OFFERED, Saw.ADMITTED): RoomState.OFFERED,
    (RoomState.OFFERED, Saw.RECEIVED): RoomState.ENDING,
    (RoomState.OFFERED, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.ADMITTED): RoomState.ENDING,  # it crossed with our end
    (RoomState.ENDING, Saw.RECEIVED): RoomState.ENDING,
    (RoomState.ENDING, Saw.LAST_CHUNK): RoomState.ENDING,  # its batch was under way
    (RoomState.ENDING, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.QUIET): RoomState.ENDED,
}

DECODE: Table = OFFLOAD | {
    (RoomState.QUEUED, Saw.HELD): RoomState.FETCHING,
    (RoomState.QUEUED, Saw.END): RoomState.ENDED,  # it holds nothing
    (RoomState.FETCHING, Saw.ARRIVED): RoomState.COMMITTING,
    (RoomState.FETCHING, Saw.END): RoomState.ENDING,
    (RoomState.COMMITTING, Saw.COMMITTED): RoomState.RUNNING,
    (RoomState.COMMITTING, Saw.END): RoomState.ENDING,
    (RoomState.RUNNING, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.COMMITTED): RoomState.ENDING,  # its plan was under way
    (RoomState.ENDING, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.QUIET): RoomState.ENDED,
}

UNIFIED: Table = OFFLOAD | {
    (RoomState.QUEUED, Saw.HELD): RoomState.COMPUTING,
    (RoomState.QUEUED, Saw.END): RoomState.ENDED,  # it holds nothing
    (RoomState.COMPUTING, Saw.LAST_CHUNK): RoomState.RUNNING,
    (RoomState.COMPUTING, Saw.END): RoomState.ENDING,
    (RoomState.RUNNING, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.QUIET): RoomState.ENDED,
}
