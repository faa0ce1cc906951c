"""Gateways and rooms: epochs, ends, and peers that are gone."""

from typing import Any

import msgspec

from baton.core.agreement import Agreement, RowOrder
from baton.core.effects import Send
from baton.core.events import FrontEvent, MessageReceived
from baton.core.gateway import front as front_module
from baton.core.gateway.delivery import Delivery
from baton.core.gateway.epoch_failures import EpochFailures
from baton.core.gateway.epochs import Epochs
from baton.core.gateway.front import Front
from baton.core.gateway.request import FrontSettings, Request
from baton.core.gateway.stamps import Stamps
from baton.core.gateway.worker_pairs import Pair
from baton.core.handoff.pairing import Partners
from baton.core.ids import Boot, Epoch, Key, Micros, Room, Stamp, TokenIndex
from baton.core.messages import Credits, Drawn, Ended, FailCode, Failed, FinishReason, Ticket
from baton.core.scheduler import generating as generating_module
from baton.core.scheduler import roles as roles_module
from baton.core.scheduler.books import LeaderBooks
from baton.core.scheduler.draining import Draining
from baton.core.scheduler.generating import decode_row
from baton.core.scheduler.generating_room import GeneratingRoom
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.open_orders import OpenOrders
from baton.core.scheduler.pairs import Pairing
from baton.core.scheduler.room import OpenRoom
from baton.core.scheduler.worker import Worker
from baton.core.session.session import WrongPeer
from baton.core.session.stream import Stream
from baton.dev.sim import gateway as gateway_module
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant
from baton.dev.sim.watched import Watched
from baton.shell.gateway_pump import GatewayPump
from baton.shell.worker import WorkerPump

# ruff: noqa: D101  (each class is described by the plant that it is part of)

NEVER = Micros(1 << 60)


class SameEpoch(Epochs):
    def begin(self, request: Request, pair: Pair, now: Micros) -> None:
        request.epoch = Epoch(max(0, request.epoch - 1))
        super().begin(request, pair, now)


class HearsDecodeOnly(EpochFailures):
    def on_failed(self, sender: Boot, message: Failed, now: Micros) -> None:
        request = self._front.requests.find(message.key, sender)
        if request is not None and request.pair is not None and sender == request.pair[1]:
            super().on_failed(sender, message, now)


_due = Request.due


def _due_while_waiting(self: Request, settings: FrontSettings, pairless: Micros | None) -> Micros:
    """What workers have is theirs to end."""
    return NEVER if self.with_workers else _due(self, settings, pairless)


def _waits_for_ever(self: Leader, room: OpenRoom) -> bool:
    return False


class TellsAgain(Delivery):
    def _take(
        self,
        request: Request,
        start: TokenIndex,
        drawn: tuple[Drawn, ...],
        finish: FinishReason | None,
        cached: int,
    ) -> None:
        super()._take(request, TokenIndex(len(request.said)), drawn, finish, cached)


class NeverCloses(Epochs):
    def _maybe_close(self, room: Room) -> None:
        """The workers keep its record."""


class LosesNobody(Front):
    def _lose(self, boot: Boot, why: str, now: Micros) -> None:
        """It comes back, surely."""


class BlamesWorkers(Epochs):
    def fail(self, request: Request, code: FailCode, detail: str) -> None:
        waits = not request.with_workers and code in (
            FailCode.DEADLINE_EXCEEDED,
            FailCode.QUEUE_TIMEOUT,
        )
        super().fail(request, FailCode.WORKER_LOST if waits else code, detail)


def _forgets_no_order(self: OpenOrders, key: Key, agreement: Agreement) -> None:
    """Its votes are counted for ever."""


class RepeatsTickets(GatewayPump):
    """Harmless by itself: a pump says a ticket once more when a side has ended its epoch."""

    def __init__(self, **made_of: Any) -> None:
        super().__init__(**made_of)
        self._core = Watched(self._core, self._before, lambda event, effects: None)
        self._tickets: dict[tuple[Key, Boot], Ticket] = {}

    def _before(self, event: FrontEvent) -> None:
        if isinstance(event, MessageReceived) and isinstance(event.message, Ended):
            ticket = self._tickets.pop((event.message.key, event.sender), None)
            if ticket is not None:
                self._lines.send(event.sender, ticket)

    def _perform(self) -> None:
        for effect in self._effects:
            if isinstance(effect, Send) and isinstance(effect.message, Ticket):
                self._tickets[effect.message.key, effect.to] = effect.message
        super()._perform()


def _forget_all(self: Worker[Any], room: Any) -> None:
    self.epochs.close(room.key.room)
    _forget(self, room)


_forget = Worker.forget


def _keep_rooms(self: Leader, boot: Boot, why: str) -> None:
    if boot not in self.worker.gateways:
        _peer_lost(self, boot, why)


_peer_lost = Leader._lose


def _looks_at_no_room(self: Draining, now: Micros, *, rooms: int, gateways: int) -> None:
    _look(self, now, rooms=0, gateways=gateways)


_look = Draining.look


def _tells_no_stamp(self: LeaderBooks) -> Credits:
    return msgspec.structs.replace(_capacity(self), stamp=Stamp(0))


_capacity = LeaderBooks._capacity


def _only_logged(self: WorkerPump, event: WrongPeer) -> None:
    """A line in a log, which nobody reads."""


class KeepsConnections(Pairing):
    def unpair(self, boot: Boot, why: str) -> None:
        parted = list(self.worker.draft.disconnect)
        super().unpair(boot, why)
        self.worker.draft.disconnect = parted


def _restarted_counter(room: GeneratingRoom, final: Any = None, drafts: Any = ()) -> RowOrder:
    row = decode_row(room, final, drafts)
    return msgspec.structs.replace(row, index=TokenIndex(len(room.generated)))


PLANTS = (
    Plant(
        "same_epoch_again",
        "a gateway tries again elsewhere within the same epoch: it is bound to other boots now",
        ("same_ticket", "one_attempt"),
        7,
        lambda: Parts(replaced=(Replaced(front_module, "Epochs", SameEpoch),)),
    ),
    Plant(
        "refusal_ignored",
        "prefill refuses or fails a room, and nobody tells decode, which waits: no wait in "
        "the middle has a deadline of its own",
        ("liveness", "healed_succeeds"),
        8,
        lambda: Parts(
            replaced=(
                Replaced(front_module, "EpochFailures", HearsDecodeOnly),
                Replaced(Leader, "_unadmitted", _waits_for_ever),
                Replaced(Request, "due", _due_while_waiting),
            ),
        ),
    ),
    Plant(
        "index_ignored",
        "a gateway streams what comes, without a look at the index: after a failover tokens "
        "are heard twice",
        ("right_tokens", "client_streams"),
        None,
        lambda: Parts(replaced=(Replaced(front_module, "Delivery", TellsAgain),)),
    ),
    Plant(
        "room_never_closed",
        "workers keep the record of every room for ever",
        ("nothing_left",),
        None,
        lambda: Parts(replaced=(Replaced(front_module, "Epochs", NeverCloses),)),
    ),
    Plant(
        "lost_worker_ignored",
        "a gateway waits for a worker that is gone",
        ("liveness",),
        8,
        lambda: Parts(front=LosesNobody),
    ),
    Plant(
        "forgotten_record",
        "a worker forgets a room when it ends, and serves a ticket of it that is said once more",
        ("ended_once",),
        7,
        lambda: Parts(
            replaced=(
                Replaced(gateway_module, "GatewayPump", RepeatsTickets),
                Replaced(Worker, "forget", _forget_all),
            ),
        ),
    ),
    Plant(
        "lost_gateway_ignored",
        "workers go on with the rooms of a gateway that is gone, and keep their records",
        ("nothing_left",),
        8,
        lambda: Parts(replaced=(Replaced(Leader, "_lose", _keep_rooms),)),
    ),
    Plant(
        "silence_ignored",
        "a peer that says nothing is never given up",
        ("liveness", "healed_succeeds"),
        8,
        lambda: Parts(replaced=(Replaced(Stream, "silent", lambda self, now: False),)),
    ),
    Plant(
        "dead_peer_kept",
        "a prefill worker that ended before it was dialled is kept for ever: its entry, its "
        "link, its connections (found here)",
        ("nothing_left",),
        8,
        lambda: Parts(
            replaced=(
                Replaced(WorkerPump, "_wrong_peer", _only_logged),
                Replaced(Partners, "overdue", lambda self, now: []),
                Replaced(Partners, "timer", lambda self: None),
            )
        ),
    ),
    Plant(
        "connections_kept",
        "a decode worker forgets a prefill worker that is gone, and its ranks stay connected to it",
        ("nothing_left",),
        None,
        lambda: Parts(replaced=(Replaced(roles_module, "Pairing", KeepsConnections),)),
    ),
    Plant(
        "stamps_from_one",
        "a gateway that starts gives out its stamps from 1: its requests pass all those of "
        "the other one, for hours",
        ("one_order",),
        None,
        lambda: Parts(replaced=(Replaced(Stamps, "heard", lambda self, stamp: None),)),
    ),
    Plant(
        "stamps_not_said",
        "a worker does not tell gateways of the stamps that it has seen",
        ("one_order",),
        None,
        lambda: Parts(replaced=(Replaced(LeaderBooks, "_capacity", _tells_no_stamp),)),
    ),
    Plant(
        "counter_restarts",
        "after a failover the random numbers of a request begin at 0 again",
        ("right_tokens",),
        None,
        lambda: Parts(replaced=(Replaced(generating_module, "decode_row", _restarted_counter),)),
    ),
    Plant(
        "deadline_blamed",
        "a request whose deadline passes while it waits for workers is told that workers "
        "were lost (found by this simulator)",
        ("no_spurious_failure",),
        None,
        lambda: Parts(replaced=(Replaced(front_module, "Epochs", BlamesWorkers),)),
    ),
    Plant(
        "left_in_the_middle",
        "a worker that drains does not wait for the requests that it has",
        ("drained",),
        None,
        lambda: Parts(replaced=(Replaced(Draining, "look", _looks_at_no_room),)),
    ),
    Plant(
        "orders_forgotten",
        "the fetch orders of a room that was dropped stay in the leader's table for ever "
        "(found by this simulator)",
        ("nothing_left",),
        None,
        lambda: Parts(replaced=(Replaced(OpenOrders, "forget", _forgets_no_order),)),
    ),
)
