"""Messages from the wrong party: a message from one process to another is sent to it again, by a
third process or by the same one.

    sender ──message──▶ target          over the session of the two, once and in order
    other ───message──▶ target          some time later, over a session of its own: it is confused, or takes one room for another
    sender ──message──▶ target          some time later, as a new message: the sessions deliver it, as nothing was repeated there

A session keeps out whatever is repeated below it. Above it any process can send any message, and
only what the message names tells whether its sender may send it. A message that names nobody
(HelloBack, Refused, Paired, Unpaired) counts for any sender, and may be wrong.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from baton.core.frames import Said
from baton.core.ids import Boot, Key, Room
from baton.core.messages import (
    Abort,
    Admitted,
    Borrow,
    Clear,
    Close,
    Credits,
    Doubt,
    Ended,
    Failed,
    FirstToken,
    HelloBack,
    Loan,
    Offer,
    Paired,
    Progress,
    PromptLogprobs,
    Received,
    Recompute,
    Refused,
    ResetCache,
    Returned,
    Stale,
    Ticket,
    Tokens,
    Trial,
    Unpaired,
    Verdict,
    Withdrawn,
)
from baton.core.session.session import Sessions
from baton.dev.sim.process import Process
from baton.dev.sim.tape import Tape
from baton.shell.lines import Lines

RECENT = 4  # epochs with which one is confused
Authors = Callable[[Ticket], tuple[Boot, ...]]
LATER_US = (0, 0, 0, 100, 1_000, 20_000)
OF_NOBODY = (HelloBack, Refused, Paired, Unpaired)  # the receiver believes any sender
ONCE = (Clear, ResetCache)  # sent twice, they act twice, as they should


def _gateway(ticket: Ticket) -> tuple[Boot, ...]:
    return (ticket.gateway,)


def _prefill(ticket: Ticket) -> tuple[Boot, ...]:
    return (ticket.prefill,)


def _decode(ticket: Ticket) -> tuple[Boot, ...]:
    return (ticket.decode,)


def _either(ticket: Ticket) -> tuple[Boot, ...]:
    return (ticket.prefill, ticket.decode)


# the senders that the judges believe; the protocol page says the same in words
AUTHORS: Mapping[type[Any], Authors] = {
    **dict.fromkeys((Ticket, Abort, Close), _gateway),
    **dict.fromkeys((FirstToken, Offer, Withdrawn, Borrow, Returned), _prefill),
    **dict.fromkeys((Tokens, Recompute, Admitted, Received, Loan), _decode),
    **dict.fromkeys((PromptLogprobs, Failed, Ended, Stale, Trial, Doubt, Verdict), _either),
}


class Voice:
    """A process that sends and receives messages: a gateway, or the leader of a worker."""

    def __init__(self, process: Process, sessions: Sessions, lines: Lines) -> None:
        self.process, self.sessions, self.lines = process, sessions, lines


class Confusion:
    """Sends messages from the wrong party in a world, and knows who the right one would be."""

    def __init__(self, world: Any, tape: Tape) -> None:
        self._world, self._tape = world, tape
        self._voices: dict[Boot, Voice] = {}
        # a message of its gateway about a room after Close would open a new room
        self._closed: set[Room] = set()

    def joins(self, boot: Boot, voice: Voice) -> None:
        """A process begins."""
        self._voices[boot] = voice

    def rightful(self, sender: Boot, message: Said) -> bool:
        """Whether a message may come from its sender, if it is about a room whose ticket is
        known."""
        authors = AUTHORS.get(type(message))
        if isinstance(message, Credits | Progress):
            return sender == message.worker
        ticket = self._ticket(message) if authors is not None else None
        return authors is None or ticket is None or sender in authors(ticket)

    def _ticket(self, message: Any) -> Ticket | None:
        tickets: Mapping[Key, Ticket] = self._world.tickets
        match message:
            case Close(room=room):
                return next((ticket for key, ticket in tickets.items() if key.room == room), None)
            case Ticket(key=key):
                return tickets.get(key, message)
            case _:
                return tickets.get(message.key)

    def closes(self, room: Room) -> None:
        """A gateway sends Close. No later message of the gateway overtakes it."""
        self._closed.add(room)

    def heard(self, sender: Boot, target: Boot, message: Said) -> None:
        """A gateway or a leader has received a message."""
        faults = self._world.faults()
        if (
            faults.twice
            and not isinstance(message, ONCE)
            and self._tape.chance(faults.twice, "said twice")
        ):
            self._later(sender, target, message)
        if (
            faults.confused
            and self.rightful(sender, message)
            and self._tape.chance(faults.confused, "a confused peer")
        ):
            self._confused(sender, target, message)

    def _confused(self, sender: Boot, target: Boot, message: Said) -> None:
        who = list(self._who_reach(target))
        speaker = who[self._tape.below(len(who), "who is confused")] if who else sender
        if type(message) in AUTHORS and self._tape.chance(0.5, "about another room"):
            mistaken = self._of_another(target, message)
            if mistaken is not None and not self.rightful(speaker, mistaken):
                self._later(speaker, target, mistaken)
        elif speaker != sender and not self._believed(speaker, message):
            self._later(speaker, target, message)

    def _believed(self, speaker: Boot, message: Said) -> bool:
        """Whether a message counts that a process says instead of another one. What a worker of
        an epoch says of it for the other worker is no mistake that a receiver could notice."""
        ticket = self._ticket(message) if type(message) in AUTHORS else None
        return ticket is not None and speaker in AUTHORS[type(message)](ticket)

    def _of_another(self, target: Boot, message: Any) -> Said | None:
        """Return the same message about another epoch in which the target takes part; None if
        there is none. The first gateway that opens a room owns it, so tickets and Close are not
        changed."""
        if isinstance(message, Close | Ticket):
            return None
        tickets: Mapping[Key, Ticket] = self._world.tickets
        keys = [
            k
            for k, t in tickets.items()
            if k != message.key and target in (t.gateway, t.prefill, t.decode)
        ][-RECENT:]
        if not keys:
            return None
        mistaken: Said = msgspec.structs.replace(
            message, key=keys[self._tape.below(len(keys), "which room")]
        )
        return mistaken

    def _who_reach(self, target: Boot) -> Iterator[Boot]:
        """Yield the live processes that have a session with the target."""
        for boot, voice in self._voices.items():
            if boot != target and voice.process.alive and voice.sessions.number(target) is not None:
                yield boot

    def _later(self, speaker: Boot, target: Boot, message: Said) -> None:
        after = LATER_US[self._tape.below(len(LATER_US), "says it after")]
        self._world.heap.after(after, self._say, speaker, target, message)

    def _say(self, speaker: Boot, target: Boot, message: Said) -> None:
        voice = self._voices[speaker]
        over = isinstance(message, Ticket) and message.key.room in self._closed
        if over or not voice.process.alive or voice.sessions.number(target) is None:
            return
        self._world.marks["said again"] += 1
        self._world.tell(
            f"{voice.process.name}: says {type(message).__name__} again, "
            f"{self._whose(speaker, message)}"
        )
        if isinstance(message, OF_NOBODY):
            self._world.fault("mistaken pair", voice.process.name)
        voice.lines.send(target, message)
        voice.process.wake(0)

    def _whose(self, speaker: Boot, message: Said) -> str:
        return "as it did before" if self.rightful(speaker, message) else "which is not its to say"
