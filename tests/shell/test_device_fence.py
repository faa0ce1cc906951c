"""No block is offered before the device has executed what wrote it.

Two workers whose pools lie on devices, with the shipped pumps, hosts, leaders and ranks; the
gateway's front asks them. A device executes one piece of work only when both workers have come to
rest, so whatever does not wait for an event is too early. What an offer says is compared with the
bytes that a reader would find at that moment.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import numpy as np
from tests.core.build import KV, manifest, settings, submit
from tests.core.driven import T0, DrivenFront
from tests.core.world import expected
from tests.shell.device import DeviceEngine, DeviceFabric, Event
from tests.shell.gateways import Gateways

from baton.core.effects import Send
from baton.core.events import MessageReceived
from baton.core.gateway.front import Front
from baton.core.gateway.request import FrontSettings, Say
from baton.core.handoff.plan import leg_seals, pair
from baton.core.ids import Boot, Link, Micros, Rank
from baton.core.manifest import Manifest
from baton.core.memory.kinds import CudaMemory
from baton.core.messages import Doubt, Offer
from baton.core.rank.rank import RankCore
from baton.core.rank.watchdog import WatchdogSettings
from baton.core.scheduler.leader import Leader
from baton.core.session.session import Delivered, PeerUp, SessionEvent
from baton.shell.narration import Narration
from baton.shell.rank_host import RankHost
from baton.shell.worker import WorkerPump

GATEWAY, PREFILL, DECODE = Boot(1), Boot(2), Boot(3)
PAGES, MAX_ROUNDS = 16, 10_000
PROMPT = tuple(range(1, 12))  # three blocks, the last one in part, in three steps
DEVICES = {PREFILL: 0, DECODE: 1}


class EagerEngine(DeviceEngine):
    """Planted: reports the end of a batch when its work has been launched."""

    def _fence(self) -> Event:
        return Event(completed=True)


class EagerFabric(DeviceFabric):
    """Planted: reports the end of a read when its copies have been launched."""

    def _fence(self) -> Event:
        return Event(completed=True)


class NoStore:
    """A host store that is not used."""

    def poll(self) -> list[Any]:
        return []


class Wires:
    """The lines of one worker, which end in the same process."""

    def __init__(self, world: "DeviceWorld", boot: Boot) -> None:
        self._world, self._boot = world, boot
        self.inbox: list[SessionEvent] = []

    def dial(self, address: str, expect: Boot | None) -> Link:
        peer, link = self._world.addresses[address], Link(next(self._world.links))
        self.inbox.append(PeerUp(peer, link))
        if peer in self._world.wires:
            self._world.wires[peer].inbox.append(PeerUp(self._boot, Link(next(self._world.links))))
        return link

    def receive(self) -> list[SessionEvent]:
        found, self.inbox = self.inbox, []
        return found

    def send(self, boot: Boot, message: Any) -> bool:
        self._world.carry(self._boot, boot, message)
        return True

    def ask_delivery(self, boot: Boot) -> None:
        self.inbox.append(Delivered(boot))

    def flush(self) -> None: ...

    def timer(self) -> None: ...


class DeviceWorld:
    """A gateway, a prefill worker and a decode worker. Time stands still.

    Attributes:
        offers: those with blocks
        early: what an offer says of blocks that are not visible yet
        doubts: decode found that what it had read differs from its seals
    """

    def __init__(
        self,
        engine: Callable[..., DeviceEngine] = DeviceEngine,
        fabric: Callable[..., DeviceFabric] = DeviceFabric,
    ) -> None:
        self.links = count(1)
        self.front: Any = DrivenFront(Front(GATEWAY, FrontSettings()))
        self.heard: list[Any] = []
        self.offers: list[Offer] = []
        self.early: list[str] = []
        self.doubts: list[Doubt] = []
        self.addresses = {"gateway": GATEWAY, "inproc://2": PREFILL, "inproc://3": DECODE}
        self.manifests = {
            PREFILL: on_device("prefill", PREFILL),
            DECODE: on_device("decode", DECODE),
        }
        self.plan = pair(
            [self.manifests[PREFILL].placement(0)], [self.manifests[DECODE].placement(0)]
        )
        self.wires = {boot: Wires(self, boot) for boot in self.manifests}
        self.engines = {
            boot: engine(m.placement(0), PAGES, device=DEVICES[boot])
            for boot, m in self.manifests.items()
        }
        self.fabrics = {
            boot: fabric(own, lambda peer: self.engines[peer.boot])
            for boot, own in self.engines.items()
        }
        self.pumps = [self._pump(boot, m) for boot, m in self.manifests.items()]

    def now(self) -> Micros:
        return T0

    def _pump(self, boot: Boot, m: Manifest) -> WorkerPump:
        host = RankHost(
            core=RankCore(rank=Rank(0), boot=boot, placements=[m.placement(0)], seal=True),
            engine=self.engines[boot],
            fabrics={"nixl": self.fabrics[boot]},
            store=NoStore(),
            clock=self,
            narration=Narration(),
            watchdog=WatchdogSettings(0, 0),
        )
        return WorkerPump(
            leader=Leader(m, settings(str(boot), step_tokens=4), {KV: PAGES}),
            rank=host,
            others=(),
            absent=(),
            lines=self.wires[boot],
            clock=self,
            gateways=Gateways("gateway"),
            narration=Narration(),
        )

    def carry(self, source: Boot, target: Boot, message: Any) -> None:
        """Take a message to where it goes; look at what it says first."""
        if isinstance(message, Offer) and message.sums:
            self.offers.append(message)
            self._compare(message)
        if isinstance(message, Doubt):
            self.doubts.append(message)
        if target == GATEWAY:
            self.front.step(MessageReceived(source, message), T0)
        else:
            self.wires[target].inbox.append(MessageReceived(source, message))

    def _compare(self, offer: Offer) -> None:
        engine, run = self.engines[PREFILL], offer.runs[KV]
        pages = dict(zip(range(run.start, run.end), run.pages, strict=True))
        for said in offer.sums:
            leg = self.plan.legs[said.leg]
            slots = np.array([pages[b] for b in said.blocks], dtype=np.int64)
            found = engine.sums(slots, np.array(said.blocks, dtype=np.int64))
            seals = tuple(int(s) for s in leg_seals(found, self.plan.source_units(leg, KV)))
            if seals != said.seals:
                self.early.append(f"offer {offer.number}: blocks {said.blocks}")

    def run(self) -> None:
        """Until nothing moves. Devices execute only while everybody else rests."""
        for _ in range(MAX_ROUNDS):
            for pump in self.pumps:
                pump.turn()
            if not (self._front() or any(w.inbox for w in self.wires.values()) or self._execute()):
                return
        raise AssertionError("still moving")

    def _front(self) -> bool:
        effects = self.front.effects()
        for effect in effects:
            match effect:
                case Say(heard=heard):
                    self.heard.append(heard)
                case Send(to=to, message=message):
                    self.carry(GATEWAY, to, message)
        return bool(effects)

    def _execute(self) -> bool:
        # copies last, so that a digest which does not wait for them overtakes them
        streams = [part.stream for part in (*self.engines.values(), *self.fabrics.values())]
        return any(stream.execute() for stream in streams)

    def answer(self) -> list[int]:
        """What the client gets."""
        self.run()
        self.front.submit(submit(prompt=PROMPT), T0)
        self.run()
        return [drawn.token for heard in self.heard for drawn in getattr(heard, "drawn", ())]


def on_device(role: str, boot: Boot) -> Manifest:
    """Of a worker whose pool lies on a device."""
    made = manifest(role, boot, pages=PAGES)
    (rank,) = made.ranks
    views = tuple(
        msgspec.structs.replace(view, memory=CudaMemory(DEVICES[boot])) for view in rank.pools
    )
    rank = msgspec.structs.replace(
        rank, pools=views, exposures={"shm": b"", "nixl": b""}, device_fabrics=("nixl",)
    )
    return msgspec.structs.replace(made, ranks=(rank,))


def test_blocks_on_a_device_are_offered_when_they_are_visible() -> None:
    world = DeviceWorld()
    assert world.answer() == expected(PROMPT, 4)
    assert len(world.offers) == 3
    assert world.early == []
    assert world.doubts == []


def test_an_offer_before_the_fence_is_found() -> None:
    world = DeviceWorld(engine=EagerEngine)
    world.answer()
    assert len(world.early) == len(world.offers)


def test_a_read_that_ends_before_its_bytes_are_there_is_found_by_the_seal() -> None:
    """No token is drawn over bytes that had not come; the request fails instead."""
    world = DeviceWorld(fabric=EagerFabric)
    answer = world.answer()
    assert answer == expected(PROMPT, 4)[: len(answer)]
    assert world.early == []
    assert world.doubts
