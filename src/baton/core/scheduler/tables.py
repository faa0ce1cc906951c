"""What can happen to a room in each role. A pair of state and event that a role's table lacks is a
bug of ours."""

from baton.core.scheduler.room import RoomState, Saw, Table

EVERY_ROLE: Table = {
    (RoomState.QUEUED, Saw.END): RoomState.ENDED,  # it holds nothing
    (RoomState.ENDING, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.QUIET): RoomState.ENDED,
}

COMPUTE: Table = {
    (RoomState.QUEUED, Saw.HELD_TO_COMPUTE): RoomState.COMPUTING,
    (RoomState.COMPUTING, Saw.END): RoomState.ENDING,
}

RESUME: Table = {
    (RoomState.QUEUED, Saw.HELD_TO_RESUME): RoomState.RESUMING,
    (RoomState.RESUMING, Saw.RESUMED): RoomState.COMPUTING,
    (RoomState.RESUMING, Saw.NOT_RESUMED): RoomState.QUEUED,
    (RoomState.RESUMING, Saw.END): RoomState.ENDING,
}

OFFLOAD: Table = {
    (RoomState.RUNNING, Saw.PREEMPTED): RoomState.OFFLOADING,
    (RoomState.OFFLOADING, Saw.STORED): RoomState.OFFLOADED,
    (RoomState.OFFLOADING, Saw.END): RoomState.ENDING,
    (RoomState.OFFLOADED, Saw.HELD): RoomState.RESTORING,
    (RoomState.OFFLOADED, Saw.END): RoomState.ENDING,  # its copy is still to be forgotten
    (RoomState.RESTORING, Saw.RESTORED): RoomState.RUNNING,
    (RoomState.RESTORING, Saw.END): RoomState.ENDING,
}

GENERATE: Table = OFFLOAD | {(RoomState.RUNNING, Saw.END): RoomState.ENDING}

PREFILL: Table = {
    **EVERY_ROLE,
    **COMPUTE,
    **RESUME,
    (RoomState.COMPUTING, Saw.ADMITTED): RoomState.COMPUTING,
    (RoomState.COMPUTING, Saw.ASKED): RoomState.BORROWING,
    (RoomState.RESUMING, Saw.ASKED): RoomState.BORROWING,  # before it resumes
    (RoomState.BORROWING, Saw.ADMITTED): RoomState.BORROWING,
    (RoomState.BORROWING, Saw.BORROWED): RoomState.COMPUTING,
    (RoomState.BORROWING, Saw.RESUMED): RoomState.COMPUTING,  # from a checkpoint of decode's
    (RoomState.BORROWING, Saw.NOT_RESUMED): RoomState.QUEUED,
    (RoomState.BORROWING, Saw.END): RoomState.ENDING,
    (RoomState.COMPUTING, Saw.LAST_CHUNK): RoomState.OFFERED,
    (RoomState.OFFERED, Saw.ADMITTED): RoomState.OFFERED,
    (RoomState.OFFERED, Saw.RECEIVED): RoomState.ENDING,
    (RoomState.OFFERED, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.ADMITTED): RoomState.ENDING,  # it crossed with our end
    (RoomState.ENDING, Saw.RECEIVED): RoomState.ENDING,
    (RoomState.ENDING, Saw.LAST_CHUNK): RoomState.ENDING,  # its batch was under way
}

COMPUTE_AND_GENERATE: Table = {
    **EVERY_ROLE,
    **COMPUTE,
    **GENERATE,
    (RoomState.COMPUTING, Saw.LAST_CHUNK): RoomState.RUNNING,
}

UNIFIED: Table = COMPUTE_AND_GENERATE | RESUME

DECODE: Table = {
    **COMPUTE_AND_GENERATE,  # where it computes a prompt itself
    **RESUME,
    (RoomState.QUEUED, Saw.HELD): RoomState.FETCHING,
    (RoomState.FETCHING, Saw.ARRIVED): RoomState.COMMITTING,
    (RoomState.FETCHING, Saw.END): RoomState.ENDING,
    (RoomState.COMMITTING, Saw.COMMITTED): RoomState.RUNNING,
    (RoomState.COMMITTING, Saw.END): RoomState.ENDING,
    (RoomState.ENDING, Saw.COMMITTED): RoomState.ENDING,  # its plan was under way
}

# A guest's engine decides by itself when it waits no longer for a handoff. It may do so before
# prefill has computed anything.
GUEST_PREFILL: Table = {
    **PREFILL,
    (RoomState.QUEUED, Saw.RECEIVED): RoomState.ENDED,
    (RoomState.COMPUTING, Saw.RECEIVED): RoomState.ENDING,
}
GUEST_DECODE: Table = {**DECODE, (RoomState.QUEUED, Saw.COMPUTED_THERE): RoomState.RUNNING}
