"""A run told in lines, and one room's part of it as a sequence diagram. Only a run whose story is
wanted has one."""

import re
from collections.abc import Iterable, Mapping
from functools import singledispatch

import msgspec

from baton.core.agreement import Report, StepPlan
from baton.core.frames import (
    AnyFrame,
    Beat,
    Bye,
    Data,
    Open,
    Opened,
    Said,
    WrongBoot,
    WrongProtocol,
)
from baton.core.ids import Boot, Key, Room
from baton.core.messages import (
    Close,
    Credits,
    Doubt,
    Failed,
    FirstToken,
    Introduce,
    Offer,
    Paired,
    PromptLogprobs,
    Refused,
    Register,
    Ticket,
    Tokens,
    Unpaired,
    Verdict,
)
from baton.dev.sim.excuses import worker_of
from baton.wire.codec import decode

# most frames are of these; plans are told when they are applied
UNTOLD = (Beat, Credits, StepPlan, Report)
SHORT_ROOM = re.compile(r"\b([0-9a-f]{4})\.\d+\b")  # how details and stories name a room's epoch
REQUEST = re.compile(r"\brequest (\d+)\b")


def short(key: Key) -> str:
    """Return a room's epoch in a form for people: 83e7.1."""
    return f"{key.room[-4:]}.{key.epoch}"


class Arrow(msgspec.Struct, frozen=True):
    """A message about a room on its way between two workers or gateways."""

    source: str
    target: str
    room: Room
    arrived: bool


class Line(msgspec.Struct, frozen=True):
    """Something that happened."""

    at: int
    text: str
    arrow: Arrow | None = None

    def __str__(self) -> str:
        return f"{self.at / 1000:10.2f} ms  {self.text}"


class Story:
    """What has happened so far."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.names: Mapping[Boot, str] = {}
        self._seen: set[bytes] = set()

    def tell(self, now: int, text: str) -> None:
        """Add a line."""
        self.lines.append(Line(now, text))

    def frame(self, now: int, source: str, target: str, raw: bytes, lost: str) -> None:
        """Add a frame that has come or, if `lost` says how it was lost, never will."""
        frame = decode(raw)
        again = " (again)" if raw in self._seen else ""
        if not lost:
            self._seen.add(raw)
        ending = f"{again}{' -- ' + lost if lost else ''}"
        if not isinstance(frame, (Data, *UNTOLD)):
            self.lines.append(Line(now, f"{source} -> {target}: {self._frame(frame)}{ending}"))
        for message in frame.messages if isinstance(frame, Data) else ():
            if not isinstance(message, UNTOLD):
                arrow = _arrow(worker_of(source), worker_of(target), message, arrived=not lost)
                self.lines.append(
                    Line(now, f"{source} -> {target}: {self._message(message)}{ending}", arrow)
                )

    def _message(self, message: Said) -> str:
        return (
            said(message)
            if not isinstance(message, Introduce | Paired | Unpaired)
            else self._pair(message)
        )

    def _frame(self, frame: AnyFrame) -> str:
        match frame:
            case Open(session=session, expect=expect):
                return (
                    f"opens session {session} with "
                    f"{'whoever listens' if expect is None else self._name(expect)}"
                )
            case Opened(session=session):
                return f"session {session} is open"
            case Bye(session=session, why=why):
                return f"ends session {session}: {why}"
            case WrongBoot(meant=meant, session=session):
                return f"is not {self._name(meant)}, or has no session {session}"
            case WrongProtocol() | Beat() | Data():
                return type(frame).__name__

    def _pair(self, message: Introduce | Paired | Unpaired) -> str:
        why = f": {message.why}" if isinstance(message, Unpaired) else ""
        return f"{type(message).__name__} with {self._name(message.prefill)}{why}"

    def _name(self, boot: Boot) -> str:
        return f"{self.names.get(boot, 'an unknown process')} (boot {boot})"


def _arrow(source: str, target: str, message: object, *, arrived: bool) -> Arrow | None:
    room = _room(message)
    return Arrow(source, target, room, arrived) if room is not None and source != target else None


def _room(message: object) -> Room | None:
    if isinstance(message, Close):
        return message.room
    key = getattr(message, "key", None)
    return key.room if isinstance(key, Key) else None


# ---- messages and plans in words -----------------------------------------------------------------


@singledispatch
def _more(message: Said) -> str:
    return ""


@_more.register
def _(message: Ticket) -> str:
    return (
        f"prompt of {len(message.prompt)}, {len(message.said)} said before, at most "
        f"{message.limits.max_tokens}"
    )


@_more.register
def _(message: FirstToken) -> str:
    return f"index {message.index}{_finish(message)}"


@_more.register
def _(message: PromptLogprobs) -> str:
    return f"of {message.scores.count} tokens"


@_more.register
def _(message: Tokens) -> str:
    return f"index {message.start}..{message.start + len(message.drawn) - 1}{_finish(message)}"


def _finish(message: FirstToken | Tokens) -> str:
    return f", {message.finish.value}" if message.finish is not None else ""


@_more.register
def _(message: Offer) -> str:
    runs = "; ".join(f"{group} {run.start}..{run.end}" for group, run in message.runs.items())
    return (
        f"#{message.number} "
        f"{runs or 'memory is held'}{', with the record' if message.record is not None else ''}"
    )


@_more.register
def _(message: Failed) -> str:
    return f"{message.code.value}: {message.detail}{'' if message.retry else ' (final)'}"


@_more.register
def _(message: Doubt) -> str:
    return f"{message.group} {list(message.blocks)} on leg {message.leg}"


@_more.register
def _(message: Verdict) -> str:
    return f"{message.group} {list(message.blocks)} on leg {message.leg}: {message.found.value}"


@_more.register
def _(message: Register) -> str:
    return message.name


@_more.register
def _(message: Refused) -> str:
    return message.why


def said(message: Said) -> str:
    """Return a message in a few words."""
    key = getattr(message, "key", None)
    about = (
        short(key)
        if isinstance(key, Key)
        else message.room[-4:]
        if isinstance(message, Close)
        else ""
    )
    return " ".join(part for part in (type(message).__name__, about, _more(message)) if part)


def ordered(plan: StepPlan) -> str:
    """Return a step plan in a few words."""
    rooms: dict[str, Iterable[Key]] = {
        "drop": plan.drop,
        "hold": [h.key for h in plan.hold],
        "fetch": [f.key for f in plan.fetch],
        "offload": [o.key for o in plan.offload],
        "vacate": plan.vacate,
        "restore": [o.key for o in plan.restore],
        "keep": [o.key for o in plan.keep],
        "resume": [o.key for o in plan.resume],
        "rehash": [r.key for r in plan.rehash],
        "commit": plan.commit,
        "batch": [r.key for r in plan.batch],
    }
    parts = [
        f"{len(peers)} {what}"
        for what, peers in (("to meet", plan.connect), ("to part from", plan.disconnect))
        if peers
    ]
    parts += [f"{len(plan.inspect)} to inspect"] * bool(plan.inspect)
    parts += [f"{verb} {' '.join(short(k) for k in keys)}" for verb, keys in rooms.items() if keys]
    return f"plan {plan.seq}: {', '.join(parts)}"


# ---- one room ------------------------------------------------------------------------------------


def room_of(detail: str, lines: Iterable[Line], tickets: Mapping[Key, Ticket]) -> Room | None:
    """Return the room that the detail of a violation is about, otherwise the last one with a
    message; None if there is none."""
    found, request = SHORT_ROOM.search(detail), REQUEST.search(detail)
    if found is not None:
        return next((key.room for key in tickets if key.room.endswith(found.group(1))), None)
    if request is not None:
        return next(
            (key.room for key, t in tickets.items() if t.sampling.seed == int(request.group(1))),
            None,
        )
    spoken = [line.arrow.room for line in lines if line.arrow is not None]
    return spoken[-1] if spoken else None


def diagram(room: Room, lines: Iterable[Line], ending: str) -> str:
    """Return what the processes of a room said to each other and did for it, as a mermaid sequence
    diagram."""
    mine = [line for line in lines if _concerns(line, room)]
    names = list(
        dict.fromkeys(
            n
            for line in mine
            if line.arrow is not None
            for n in (line.arrow.source, line.arrow.target)
        )
    )
    if not names:
        return ""
    parts = ["sequenceDiagram", *(f"    participant {_id(n)} as {n}" for n in names)]
    parts += [drawn for line in mine if (drawn := _drawn(line, names))]
    if ending:
        parts.append(f"    Note over {_id(names[0])},{_id(names[-1])}: {_plain(ending)}")
    return "\n".join(parts)


def _concerns(line: Line, room: Room) -> bool:
    return (
        line.arrow.room == room
        if line.arrow is not None
        else any(m == room[-4:] for m in SHORT_ROOM.findall(line.text))
    )


def _drawn(line: Line, names: list[str]) -> str:
    if line.arrow is not None:
        head = "->>" if line.arrow.arrived else "-x"
        return (
            f"    {_id(line.arrow.source)}{head}{_id(line.arrow.target)}: "
            f"{_plain(line.text.split(': ', 1)[1])}"
        )
    who, _, what = line.text.partition(": ")
    whose = line.text if "/" in who else what
    return (
        f"    Note over {_id(worker_of(who))}: {_plain(whose)}" if worker_of(who) in names else ""
    )


def _id(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _plain(text: str) -> str:
    """Return text without characters that have a meaning in mermaid."""
    return text.replace(";", ",").replace("#", "no. ")
