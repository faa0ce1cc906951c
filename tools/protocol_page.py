"""Draws the state diagrams and the table of messages in docs/protocol.md from the code, and keeps
them true.

Requests and rooms: the tables of baton.core, as they are. Sessions keep no table, so the code
itself is asked: in each state every kind of frame is put to it, and where it stands afterwards is
the arrow.
"""

import sys
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from baton.core.frames import Beat, Bye, Open, Opened, WrongBoot
from baton.core.gateway.request_state import REQUEST, RequestState
from baton.core.ids import Boot, Link, Micros
from baton.core.messages import AnyMessage
from baton.core.protocol import PROTOCOL
from baton.core.rank.rank_room import RANK_ROOM, RankRoomState
from baton.core.scheduler.room import RoomState, Table
from baton.core.scheduler.tables import DECODE, GUEST_DECODE, GUEST_PREFILL, PREFILL, UNIFIED
from baton.core.session.session import SessionLimits, Sessions
from document import with_parts, write_or_check

PAGE = Path(__file__).parents[1] / "docs" / "protocol.md"
Arrows = Mapping[tuple[str, str], list[str]]  # (from, to) -> events
State, Event = TypeVar("State", bound=StrEnum), TypeVar("Event", bound=StrEnum)

US, PEER, OTHER = Boot(1), Boot(2), Boot(3)
LINK, START = Link(1), Micros(0)
LIMITS = SessionLimits()


def mermaid(arrows: Arrows, *, first: str, last: str | None) -> str:
    """A state diagram; arrows between the same two states are one arrow."""
    lines = [f"    [*] --> {first}"]
    lines += [f"    {a} --> {b}: {', '.join(events)}" for (a, b), events in arrows.items()]
    lines += [f"    {last} --> [*]"] if last is not None else []
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def table_diagram(table: Mapping[tuple[State, Event], State], *, first: State, last: State) -> str:
    """A table of states. What changes nothing is left out: messages that crossed with an end."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, saw), target in table.items():
        if state is not target:
            arrows.setdefault((state.value, target.value), []).append(saw.value)
    return mermaid(arrows, first=first.value, last=last.value)


def ignored(table: Mapping[tuple[State, Event], State]) -> str:
    """What is legal and changes nothing, in words."""
    found = [
        f"{saw.value} in {state.value}" for (state, saw), target in table.items() if state is target
    ]
    return f"Legal without effect on the state: {', '.join(found)}." if found else ""


def drawn(table: Mapping[tuple[State, Event], State], *, first: State, last: State) -> str:
    """A table of states as a diagram, and what the diagram leaves out."""
    return f"{table_diagram(table, first=first, last=last)}\n\n{ignored(table)}"


def room(table: Table) -> str:
    """A room on the worker of one role."""
    return drawn(table, first=RoomState.QUEUED, last=RoomState.ENDED)


def guests() -> str:
    """What the tables of guests have beyond those of the workers whose part they do."""
    lines = ["| on | from | event | to |", "|---|---|---|---|"]
    for role, own, other in (
        ("prefill", GUEST_PREFILL, PREFILL),
        ("decode", GUEST_DECODE, DECODE),
    ):
        lines += [
            f"| {role} | {state} | {saw} | {target} |"
            for (state, saw), target in own.items()
            if (state, saw) not in other
        ]
    return "\n".join(lines)


# ---- sessions -----------------------------------------------------------------------------------


def _listening() -> Sessions:
    return Sessions(US, LIMITS)


def _dialling() -> Sessions:
    sessions = _listening()
    sessions.dial(LINK, PEER, START)
    return sessions


def _state(sessions: Sessions, *, idle: str) -> str:
    """Where we stand with the peer, as far as one can see from outside."""
    if sessions.number(PEER) is not None:
        return "up"
    return "promised" if idle == "closed" and sessions.timer() is not None else idle


def _open(sessions: Sessions, known: int) -> None:
    sessions.receive(LINK, Open(PROTOCOL, PEER, US, known), START)


def _next(sessions: Sessions) -> int:
    return (sessions.number(PEER) or 0) + 1


def _silence(sessions: Sessions) -> None:
    sessions.on_timer(Micros(START + LIMITS.silence))


EVENTS: Mapping[str, Callable[[Sessions], None]] = {
    "Open": lambda s: _open(s, 0),
    "Open that knows our session": lambda s: _open(s, s.number(PEER) or 1),
    "Opened": lambda s: s.receive(LINK, Opened(PROTOCOL, PEER, US, _next(s)), START),
    "Beat or Data": lambda s: s.receive(LINK, Beat(PEER, US, s.number(PEER) or 1, 0, 0), START),
    "Beat or Data of a later session": lambda s: s.receive(
        LINK, Beat(PEER, US, _next(s) + 1, 0, 0), START
    ),
    "Bye": lambda s: s.receive(LINK, Bye(PEER, US, s.number(PEER) or 1, "why"), START),
    "WrongBoot": lambda s: s.receive(LINK, WrongBoot(OTHER, US, PEER, s.number(PEER) or 0), START),
    "silence": _silence,
    "close": lambda s: s.close(PEER, "why", START),
}


def session_diagram(make: Callable[[], Sessions], *, idle: str) -> str:
    """One side of a session, found by asking the code from every state that can be reached."""
    ways: dict[str, list[str]] = {idle: []}
    arrows: dict[tuple[str, str], list[str]] = {}
    queue = [idle]
    for state in queue:
        for name, event in EVENTS.items():
            sessions = make()
            for earlier in ways[state]:
                EVENTS[earlier](sessions)
            event(sessions)
            after = _state(sessions, idle=idle)
            if after not in ways:
                ways[after] = [*ways[state], name]
                queue.append(after)
            if after != state:
                arrows.setdefault((state, after), []).append(name)
    return mermaid(arrows, first=idle, last=None)


# ---- messages -----------------------------------------------------------------------------------


def message_table() -> str:
    """Every message with the first paragraph of its docstring, and its fields."""
    lines = ["| message | who says it to whom, and what | fields |", "|---|---|---|"]
    for kind in typing.get_args(AnyMessage):
        said = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        lines.append(f"| `{kind.__name__}` | {said} | {', '.join(kind.__struct_fields__)} |")
    return "\n".join(lines)


# ---- the page -----------------------------------------------------------------------------------


def parts() -> dict[str, str]:
    """Everything that is drawn, by the name in the page's markers."""
    return {
        "messages": message_table(),
        "request": drawn(REQUEST, first=RequestState.WAITING, last=RequestState.ENDED),
        "prefill": room(PREFILL),
        "decode": room(DECODE),
        "unified": room(UNIFIED),
        "guests": guests(),
        "rank": drawn(RANK_ROOM, first=RankRoomState.ABSENT, last=RankRoomState.QUIET),
        "session, listening side": session_diagram(_listening, idle="closed"),
        "session, dialling side": session_diagram(_dialling, idle="knocking"),
    }


if __name__ == "__main__":
    sys.exit(
        write_or_check(
            PAGE, lambda page: with_parts(page, parts()), "Draw docs/protocol.md from the code."
        )
    )
