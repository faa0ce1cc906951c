"""Gray failures: steps that never end, and requests that kill every worker that computes them."""

from collections.abc import Sequence
from typing import Any

from baton.core.gateway import front as front_module
from baton.core.gateway.epoch_failures import EpochFailures
from baton.core.gateway.epochs import Epochs
from baton.core.gateway.registered_worker import RegisteredWorker
from baton.core.gateway.request import Request
from baton.core.gateway.request_state import RequestSaw
from baton.core.ids import Micros, Seq
from baton.core.messages import FailCode
from baton.core.rank.watchdog import Lane, Watchdog, WorkKind
from baton.core.scheduler.batches import Batches
from baton.core.scheduler.turns import Turns
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant


def _sees_nothing(self: Watchdog, lane: Lane) -> bool:
    return False


_is_stuck = Watchdog._is_stuck


def _sees_steps_alone(self: Watchdog, lane: Lane) -> bool:
    return lane is self._lanes[WorkKind.STEP] and _is_stuck(self, lane)


class TriesEverywhere(Epochs):
    """A worker's end is its own fault, and is not held against any request."""

    def another(
        self,
        request: Request,
        code: FailCode,
        detail: str,
        now: Micros,
        *,
        counts: bool,
        needs_pair: bool,
    ) -> None:
        super().another(request, code, detail, now, counts=False, needs_pair=needs_pair)


def _everybody_at_once(self: Turns, rooms: Sequence[Any], *, flying: bool) -> list[list[Any]]:
    return [list(rooms)]


def _shares_its_step(self: Batches[Any], seq: Seq) -> None:
    self._turns.stepped(alone=self._composed[0][0].alone)
    self._flight[seq], self._composed = self._composed, []
    self._results[seq] = {}


class BeginsAtOnce(Epochs):
    """Do not wait for the outcome of a suspect's last epoch."""

    def _hold(self, request: Request, now: Micros) -> None:
        request.waits(RequestSaw.AGAIN, now)
        self._front.assignment.start(request, now)


class BlamesAll(EpochFailures):
    """Refuse every request that was on a worker that ended, and before that on another one."""

    def lost(self, worker: RegisteredWorker, why: str, now: Micros) -> None:
        boot = worker.register.manifest.boot
        for request in [r for r in self._front.requests if boot in (r.pair or ()) and r.suspect]:
            self._convict(request.key, why)
        super().lost(worker, why, now)


PLANTS = (
    Plant(
        "watchdog_asleep",
        "nobody looks whether steps, hashes and host copies end",
        ("hang_noticed",),
        8,
        lambda: Parts(replaced=(Replaced(Watchdog, "_is_stuck", _sees_nothing),)),
    ),
    Plant(
        "watchdog_of_steps_alone",
        "steps are watched, hashes and host copies are not",
        ("hang_noticed",),
        8,
        lambda: Parts(replaced=(Replaced(Watchdog, "_is_stuck", _sees_steps_alone),)),
    ),
    Plant(
        "poison_tried_everywhere",
        "a request that was with a worker when it ended is given to the next one like any other",
        ("poison_bounded",),
        8,
        lambda: Parts(replaced=(Replaced(front_module, "Epochs", TriesEverywhere),)),
    ),
    Plant(
        "suspect_shares_its_step",
        "a suspect is computed together with others, and nobody knows whose fault it is when "
        "that ends the worker",
        ("poison_bounded", "no_spurious_failure"),
        None,
        lambda: Parts(
            replaced=(
                Replaced(Turns, "lots", _everybody_at_once),
                Replaced(Batches, "issue", _shares_its_step),
            ),
        ),
    ),
    Plant(
        "suspect_begins_at_once",
        "a suspect whose handoff fails is given to the next worker before it is known that "
        "it has ended the last one",
        ("poison_bounded",),
        None,
        lambda: Parts(replaced=(Replaced(front_module, "Epochs", BeginsAtOnce),)),
    ),
    Plant(
        "company_refused",
        "whoever was on two workers that ended is refused, though it was another request "
        "that ended the second one",
        ("no_spurious_failure",),
        None,
        lambda: Parts(replaced=(Replaced(front_module, "EpochFailures", BlamesAll),)),
    ),
)
