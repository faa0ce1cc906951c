"""A worker without a model: it takes every ticket and says tokens at a given rate, over the real
control plane.

tools/scripted_worker.py GATEWAY [--interval-ms 50] [--sent FILE] [--answers FILE]

    gateway ◀──Register, Admitted, FirstToken, Tokens, Ended── script        sessions, codec and sockets as shipped
            ───Ticket, Abort──▶

It begins to step when no room has opened for --settle-ms: a gateway that does not know a worker's
pace yet gives it a few requests first. From then on every step says the next token of each room,
one message a room and all in one turn as a decode leader does, a step each interval (0: as soon as
the gateway has taken the one before). A room is known by the first id of its prompt, and
FILE gets the time at which each of its tokens was handed to the socket.

What is said is always the same, or chosen by the prompt from a file of `Answers`.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import msgspec
import numpy as np

from baton.adapters.clock import MonotonicClock
from baton.adapters.entropy import SystemEntropy
from baton.adapters.zmq_control import ZmqControl
from baton.core.frames import Said
from baton.core.ids import Boot, GroupName, Micros, TokenId, TokenIndex
from baton.core.manifest import Manifest, PoolView, RankManifest
from baton.core.memory.state import DType, Full, Group, StateSpec, StateTable, Unit
from baton.core.messages import (
    Abort,
    Admitted,
    AskLedger,
    Drawn,
    Ended,
    FinishReason,
    FirstToken,
    LedgerView,
    RankView,
    Register,
    RoomView,
    Ticket,
    Tokens,
)
from baton.core.protocol import PROTOCOL
from baton.core.session.session import MessageReceived, PeerLost, PeerUp, SessionLimits, Sessions
from baton.shell.lines import Lines
from baton.shell.wake import sleep_until
from baton.wire.codec import MAX_FRAME_BYTES

TABLE = StateTable(
    1,
    16,
    (Group(GroupName("full"), Unit.PAGE, Full()),),
    (StateSpec("kv", GroupName("full"), (0,), ("k", "v"), 1, 1, DType.BF16),),
)
PAGES = 1 << 24
# what is said, over and over: plain text in the trial model's vocabulary
WORDS = tuple(TokenId(i) for i in range(1000, 1064))


def manifest(boot: Boot, max_model_len: int) -> Manifest:
    """A unified worker's, with room for everything."""
    rank = RankManifest(boot, 0, 0, 0, (PoolView(GroupName("full"), PAGES, 0),), {})
    return Manifest(
        PROTOCOL,
        "unified",
        "script",
        "none",
        "bfloat16",
        TABLE,
        1,
        1,
        1,
        max_model_len,
        True,
        (rank,),
    )


class Answers(msgspec.Struct, frozen=True):
    """Whole answers, chosen by how often a prompt has a token: once for each of its messages, say.

    Attributes:
        mark: the token
        answers: by its number in the prompt, the tokens that are said, the one that ends them too
        prompts: the file that gets each prompt, a line each
    """

    mark: int
    answers: dict[int, tuple[TokenId, ...]]
    prompts: str

    def to(self, ticket: Ticket) -> tuple[TokenId, ...]:
        """Return the answer to a ticket."""
        with Path(self.prompts).open("ab") as prompts:
            prompts.write(msgspec.json.encode(ticket.prompt) + b"\n")
        return self.answers[ticket.prompt.count(TokenId(self.mark))]


class Room:
    """One ticket's answer so far: some tokens, or words for ever if there are none."""

    def __init__(self, ticket: Ticket, tokens: tuple[TokenId, ...] = ()) -> None:
        self.key, self.number, self.limit = ticket.key, ticket.prompt[0], ticket.limits.max_tokens
        self.said, self._tokens = 0, tokens

    def next(self) -> Drawn:
        """The next token."""
        token = (
            self._tokens[self.said]
            if self._tokens
            else WORDS[(self.number + self.said) % len(WORDS)]
        )
        self.said += 1
        return Drawn(token, None, ())

    @property
    def finish(self) -> FinishReason | None:
        """After the last token."""
        if self._tokens and self.said == len(self._tokens):
            return FinishReason.STOP
        return FinishReason.LENGTH if self.said >= self.limit else None


class Script:
    """Answers one gateway."""

    def __init__(
        self,
        lines: Lines,
        sessions: Sessions,
        boot: Boot,
        *,
        interval_s: float,
        settle_s: float,
        max_model_len: int,
        answers: Answers | None,
    ) -> None:
        self._settle_s, self._answers = settle_s, answers
        self._lines, self._sessions, self._boot = lines, sessions, boot
        self._interval_s, self._max_model_len = interval_s, max_model_len
        self._rooms: dict[object, Room] = {}
        self._gateway: Boot | None = None
        self._due: float | None = None  # of the next step; None while no room is open
        self._stepping = False
        self.sent: list[tuple[int, int, float]] = []  # room, token index, when
        self.late_s = 0.0  # how far behind its time a step has begun at most

    def hear(self, event: object) -> None:
        """Something came in."""
        match event:
            case PeerUp():
                self._gateway = event.boot
                self._say(Register("script", None, manifest(self._boot, self._max_model_len)))
            case PeerLost():
                raise SystemExit(f"the gateway was lost: {event.why}")
            case MessageReceived(message=Ticket() as ticket):
                self._open(ticket)
            case MessageReceived(message=Abort() as abort):
                if self._rooms.pop(abort.key, None) is not None:
                    self._say(Ended(abort.key))
            case MessageReceived(message=AskLedger() as ask):
                self._say(self._ledger(ask.question))

    def _ledger(self, question: int) -> LedgerView:
        """The ledger of a worker that runs these rooms."""
        group = TABLE.groups[0].name
        rooms = tuple(
            RoomView(room.key.room, room.key.epoch, "running", 0, {group: 1 + room.said // 16})
            for room in self._rooms.values()
        )
        held = sum(room.pages[group] for room in rooms)
        return LedgerView(
            question,
            "script",
            "unified",
            (RankView(0, os.getpid(), self._boot),),
            {group: {"full": held, "free": PAGES - held, "total": PAGES}},
            0,
            0,
            rooms,
            not self._rooms,
        )

    def _say(self, message: Said) -> None:
        assert self._gateway is not None
        self._lines.send(self._gateway, message)

    def _open(self, ticket: Ticket) -> None:
        tokens = () if self._answers is None else self._answers.to(ticket)
        room = self._rooms[ticket.key] = Room(ticket, tokens)
        self._say(Admitted(room.key))
        self._say(FirstToken(room.key, TokenIndex(0), room.next(), room.finish))
        self._noted([room])
        self._end_if_done(room)
        if not self._stepping:
            self._due = time.monotonic() + self._settle_s

    def _noted(self, rooms: list[Room]) -> None:
        self._lines.flush()
        now = time.monotonic()
        self.sent += [(room.number, room.said - 1, now) for room in rooms]

    def _end_if_done(self, room: Room) -> None:
        if room.finish is not None:
            del self._rooms[room.key]
            self._say(Ended(room.key))

    def wait(self) -> Micros | None:
        """Time until the next step."""
        if self._due is None:
            return None
        return Micros(max(0, int(1e6 * (self._due - time.monotonic()))))

    def step(self) -> None:
        """The next token of every room, if it is time."""
        now = time.monotonic()
        if self._due is None or now < self._due:
            return
        if not self._interval_s and self._behind():
            self._due = now + 0.001
            return
        self._stepping = True
        self.late_s = max(self.late_s, now - self._due)
        self._due += self._interval_s or now - self._due
        rooms = list(self._rooms.values())
        for room in rooms:
            start = TokenIndex(room.said)
            drawn = room.next()
            self._say(Tokens(room.key, start, (drawn,), room.finish))
        self._noted(rooms)
        for room in rooms:
            self._end_if_done(room)
        if not self._rooms:
            self._due, self._stepping = None, False

    def _behind(self) -> bool:
        assert self._gateway is not None
        return self._sessions.unacknowledged(self._gateway) > len(self._rooms) // 2


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gateway")
    parser.add_argument("--interval-ms", type=float, default=50.0)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--settle-ms", type=float, default=500.0)
    parser.add_argument("--sent", type=Path)
    parser.add_argument("--answers", type=Path)
    args = parser.parse_args()
    clock, boot = MonotonicClock(), Boot(SystemEntropy().bits(64))
    control = ZmqControl(bind=None, keys=None, max_frame_bytes=MAX_FRAME_BYTES)
    sessions = Sessions(boot, SessionLimits())
    lines = Lines(sessions, control, clock)
    script = Script(
        lines,
        sessions,
        boot,
        interval_s=args.interval_ms / 1e3,
        settle_s=args.settle_ms / 1e3,
        max_model_len=args.max_model_len,
        answers=None
        if args.answers is None
        else msgspec.json.decode(args.answers.read_bytes(), type=Answers, strict=False),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    lines.dial(args.gateway, None)
    try:
        while True:
            for event in lines.receive():
                script.hear(event)
            script.step()
            lines.flush()
            due, waits = lines.timer(), [script.wait()]
            waits.append(None if due is None else Micros(max(0, due - clock.now())))
            sleep_until((control.fileno(),), min((w for w in waits if w is not None), default=None))
    except KeyboardInterrupt:
        print(
            f"worst step began {1e3 * script.late_s:.1f} ms late; {time.process_time():.2f} "
            "s of processor time",
            flush=True,
        )
    finally:
        if args.sent is not None:
            np.save(args.sent, np.array(script.sent, dtype=np.float64).reshape(-1, 3))
        lines.close()


if __name__ == "__main__":
    main()
