"""Two processes joined by bad cables, in virtual time: what a session must survive, and what it
must never do.

A cable is a link that one side dials. It loses, delays, repeats and reorders frames, is cut,
reconnects under another name at the listening end, and hands frames of long ago to whoever is there
now. Frames pass through the codec.
"""

import heapq
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field

from baton.core.ids import Boot, Link, Micros, Room
from baton.core.messages import AnyMessage, AskLedger, Close
from baton.core.session.session import (
    Delivered,
    MessageReceived,
    PeerLost,
    PeerUp,
    SessionEvent,
    SessionLimits,
    Sessions,
    WrongPeer,
)
from baton.wire.codec import decode, encode

SECOND = 1_000_000
MANY = 1_000_000  # more than the messages of one session


def saying(number: int) -> AnyMessage:
    """A message that carries a number; one of five is of a kind that has a frame of its own."""
    return AskLedger(number) if number % 5 == 4 else Close(Room(str(number)))


def said(message: object) -> int:
    """The number that a message carries."""
    assert isinstance(message, AskLedger | Close)
    return message.question if isinstance(message, AskLedger) else int(message.room)


@dataclass
class Faults:
    """Shares of frames, and how many times something happens in the hostile phase."""

    loss: float = 0.0
    repeat: float = 0.0
    old: float = 0.0  # a frame of any time comes again
    delay_us: int = 500
    cuts: int = 0
    one_way_cuts: int = 0
    reconnects: int = 0
    restarts: tuple[int, int] = (0, 0)  # of either side
    most_said: int = 20  # at once


@dataclass
class Node:
    """One process: its sessions, and the oracle's view of what they delivered."""

    boot: Boot
    sessions: Sessions
    up: dict[Boot, int] = field(default_factory=dict)  # peer -> number of the session
    highest: dict[Boot, int] = field(default_factory=dict)
    heard: Counter[tuple[Boot, int]] = field(default_factory=Counter)
    said: Counter[tuple[Boot, int]] = field(default_factory=Counter)
    asked: dict[Boot, int] = field(default_factory=dict)  # messages said when it asked for delivery
    delivered: dict[Boot, int] = field(default_factory=dict)  # the same, when it is reported
    lost: list[PeerLost] = field(default_factory=list)
    wrong: list[WrongPeer] = field(default_factory=list)

    def check(self, event: SessionEvent) -> None:
        """Raise AssertionError for anything a session must never do."""
        match event:
            case PeerUp(boot=boot):
                number = self.sessions.number(boot)
                assert boot not in self.up, "a session began while another with that boot was open"
                assert number is not None
                assert number > self.highest.get(boot, 0), "a session's number came again"
                self.up[boot] = self.highest[boot] = number
            case PeerLost(boot=boot):
                assert boot in self.up, "the end of a session that had not begun"
                del self.up[boot]
                self.asked.pop(boot, None)
                self.lost.append(event)
            case Delivered(boot=boot):
                assert boot in self.asked, "nobody has asked for that, or it was reported already"
                self.delivered[boot] = self.asked.pop(boot)
            case MessageReceived(sender=boot, message=message):
                number, index = divmod(said(message), MANY)
                assert self.up.get(boot) == number, (
                    f"a message of session {number} in session {self.up.get(boot)}"
                )
                assert index == self.heard[boot, number], (
                    f"message {index} instead of {self.heard[boot, number]}"
                )
                self.heard[boot, number] += 1
            case WrongPeer():
                self.wrong.append(event)

    def check_remembered(self, now: Micros) -> None:
        """Streams are not asked all the time: what is remembered of one must be what it would
        answer now."""
        for session in self.sessions._sessions.values():
            assert session.due in (None, session.stream.timer()), (
                "a stream wants to be called at another time"
            )
            assert session.peer in self.sessions._stirred or not session.stream.to_send(now), (
                "a stream has something to say, and nobody would ask it"
            )


class World:
    """The two processes, their cables and the clock."""

    def __init__(
        self,
        seed: int,
        faults: Faults,
        cables: tuple[tuple[int, int], ...],
        limits: SessionLimits,
        *,
        named: bool = False,
    ) -> None:
        self.random, self.faults, self.limits, self.named = (
            random.Random(seed),
            faults,
            limits,
            named,
        )
        self.cables, self.connection = cables, [0] * len(cables)
        self.now = 0
        self.boots = itertools.count(1)
        self.order = itertools.count()
        self.heap: list[tuple[int, int, tuple[object, ...]]] = []
        self.old: list[tuple[int, int, int, bytes]] = []
        self.cut_until = {(side, cable): 0 for side in (0, 1) for cable in range(len(cables))}
        self.frames = self.deliveries = 0
        self.dead: list[Boot] = []
        self.nodes = [self._node(), self._node()]
        for side in (0, 1):
            self._dial_all(side)

    def _node(self) -> Node:
        boot = Boot(next(self.boots))
        return Node(boot, Sessions(boot, self.limits))

    def _dial_all(self, side: int) -> None:
        for cable, (dialler, listener) in enumerate(self.cables):
            if dialler == side:
                expect = self.nodes[listener].boot if self.named else None
                self.nodes[side].sessions.dial(Link(cable + 1), expect, Micros(self.now))

    # ---- cables ---------------------------------------------------------------------------------

    def _name(self, side: int, cable: int, connection: int) -> Link:
        return (
            Link(cable + 1)
            if self.cables[cable][0] == side
            else Link(1000 * (cable + 1) + connection)
        )

    def _put(self, side: int, link: Link, raw: bytes) -> None:
        cable, connection = (
            (link - 1, self.connection[link - 1])
            if link < 1000
            else (link // 1000 - 1, link % 1000)
        )
        self.frames += 1
        chance, faults = self.random, self.faults
        if connection != self.connection[cable]:
            return  # the other end has reconnected: this name is dead
        frame = (1 - side, cable, connection, raw)
        self.old.append(frame)
        if chance.random() < faults.old:
            self.at(chance.randrange(2 * SECOND), "arrive", *chance.choice(self.old))
        if self.now < self.cut_until[side, cable] or chance.random() < faults.loss:
            return
        for _ in range(2 if chance.random() < faults.repeat else 1):
            self.at(chance.randrange(100, 101 + faults.delay_us), "arrive", *frame)

    def at(self, delay: int, *what: object) -> None:
        """Let something happen in `delay` microseconds."""
        heapq.heappush(self.heap, (self.now + delay, next(self.order), what))

    # ---- what happens ---------------------------------------------------------------------------

    def plan_faults(self, until: int) -> None:
        """Draw the times of the hostile phase."""
        faults, chance = self.faults, self.random
        kinds: list[tuple[object, ...]] = [("cut", True)] * faults.cuts + [
            ("cut", False)
        ] * faults.one_way_cuts
        kinds += [("reconnect",)] * faults.reconnects
        kinds += [("restart", side) for side in (0, 1) for _ in range(faults.restarts[side])]
        for kind in kinds:
            self.at(chance.randrange(until), *kind)
        for _ in range(until // 200_000):
            self.at(
                chance.randrange(until),
                "say",
                chance.randrange(2),
                chance.randint(1, faults.most_said),
            )

    def heal(self) -> None:
        """From now on every frame arrives, once, in order and soon; frames under way still
        arrive."""
        self.faults = Faults(delay_us=0)
        self.cut_until = dict.fromkeys(self.cut_until, 0)

    def run(self, until: int) -> None:
        """Let time pass."""
        self._settle()
        while True:
            timers = [t for node in self.nodes if (t := node.sessions.timer()) is not None]
            times = [*timers, *(at for at, _, _ in self.heap[:1])]
            if not times or min(times) > until:
                self.now = until
                return
            self.now = max(self.now, min(times))
            while self.heap and self.heap[0][0] <= self.now:
                self._happen(heapq.heappop(self.heap)[2])
                self._settle()
            for node in self.nodes:
                timer = node.sessions.timer()
                if timer is not None and timer <= self.now:
                    node.sessions.on_timer(Micros(self.now))
            self._settle()

    def _settle(self) -> None:
        for side, node in enumerate(self.nodes):
            node.check_remembered(Micros(self.now))
            for event in node.sessions.events():
                node.check(event)
                if isinstance(event, Delivered):
                    self._delivered(node, event.boot)
            for link, frame in node.sessions.to_send(Micros(self.now)):
                self._put(side, link, encode(frame))

    def _delivered(self, node: Node, boot: Boot) -> None:
        peer = next((n for n in self.nodes if n.boot == boot), None)
        if peer is not None:
            heard = peer.heard[node.boot, node.up[boot]]
            assert heard >= node.delivered[boot], "it is said to have received what it has not"
            self.deliveries += 1

    def say(self, side: int, count: int) -> None:
        """Send messages to every peer there is."""
        node = self.nodes[side]
        for peer, number in list(node.up.items()):
            for _ in range(count):
                if not node.sessions.send(
                    peer, saying(number * MANY + node.said[peer, number]), Micros(self.now)
                ):
                    break
                node.said[peer, number] += 1
            if self.random.random() < 0.5 and peer in node.up:
                node.asked[peer] = node.said[peer, number]
                node.sessions.ask_delivery(peer)

    def _happen(self, what: tuple[object, ...]) -> None:
        match what:
            case ("arrive", int(side), int(cable), int(connection), bytes(raw)):
                self.nodes[side].sessions.receive(
                    self._name(side, cable, connection), decode(raw), Micros(self.now)
                )
            case ("say", int(side), int(count)):
                self.say(side, count)
            case ("cut", bool(both)):
                length = self.random.randrange(SECOND // 10, 6 * SECOND)
                for side in (0, 1) if both else (self.random.randrange(2),):
                    for cable in range(len(self.cables)):
                        self.cut_until[side, cable] = self.now + length
            case ("reconnect",):
                self._reconnect(self.random.randrange(len(self.cables)))
            case ("restart", int(side)):
                self.dead.append(self.nodes[side].boot)
                self.nodes[side] = self._node()
                for cable in range(len(self.cables)):
                    self._reconnect(cable)
                self._dial_all(side)

    def _reconnect(self, cable: int) -> None:
        self.connection[cable] += 1
        self.heap = [
            i
            for i in self.heap
            if i[2][0] != "arrive" or i[2][2] != cable or self.random.random() < 0.3
        ]
        heapq.heapify(self.heap)
