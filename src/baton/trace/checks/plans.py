"""Plans are numbered without gaps, ranks apply the issued
plans, and only the newest epoch of a room is served."""

from collections.abc import Iterator

from typing_extensions import override

from baton.core.agreement import StepPlan
from baton.core.events import MessageReceived, PeerLost
from baton.core.ids import Boot, Epoch, Key, Room, Seq, room_key
from baton.core.messages import Close, Ended, Ticket
from baton.core.parts import LeaderParts
from baton.trace.checks.check import Check, brief, plans, raised, sent
from baton.trace.coding import canonical
from baton.trace.log import CoreKind, Parts, Step


class PlanSequence(Check):
    """The leader issues plans 1, 2, 3, ...; the rank beside it applies the same ones in the same
    order."""

    name = "plan_sequence"
    cores = (CoreKind.LEADER, CoreKind.RANK)
    invariant = "plans come in order, without gaps, and are applied as issued"

    def __init__(self) -> None:
        self._issued = self._applied = 0
        self._open: dict[Seq, bytes] = {}
        self._led = False  # whether the leader's steps are in this log

    @override
    def made(self, parts: Parts) -> None:
        self._led |= isinstance(parts, LeaderParts)

    @override
    def see(self, step: Step) -> Iterator[str]:
        for plan in plans(step):
            if plan.seq != self._issued + 1:
                yield f"plan {plan.seq} was issued after plan {self._issued}"
            self._issued = plan.seq
            self._open[plan.seq] = canonical(plan)
        if isinstance(step.event, StepPlan) and not raised(step):
            yield from self._apply(step.event)

    def _apply(self, plan: StepPlan) -> Iterator[str]:
        if plan.seq != self._applied + 1:
            yield f"plan {plan.seq} was applied after plan {self._applied}"
        self._applied = plan.seq
        issued = self._open.pop(plan.seq, None)
        if self._led and issued is None:
            yield f"plan {plan.seq} was applied and never issued"
        elif issued is not None and issued != canonical(plan):
            yield f"plan {plan.seq} was applied otherwise than issued"


class NewestEpoch(Check):
    """A worker serves a room only in the highest epoch for which it has a ticket."""

    name = "newest_epoch"
    cores = (CoreKind.LEADER,)
    invariant = "only the newest epoch of a room is served"

    def __init__(self) -> None:
        self._boot: Boot | None = None
        self._newest: dict[Room, tuple[Epoch, Boot]] = {}
        self._open: set[Key] = set()  # a ticket came, and the end was not told
        self._closed: set[Room] = set()  # while an epoch of it is open: somebody was mistaken

    @override
    def made(self, parts: Parts) -> None:
        if isinstance(parts, LeaderParts):
            self._boot = parts.manifest.boot

    @override
    def see(self, step: Step) -> Iterator[str]:
        match step.event:
            case MessageReceived(message=Ticket() as ticket) if self._boot in (
                ticket.prefill,
                ticket.decode,
            ):
                known = self._newest.get(ticket.key.room)
                if known is None or ticket.key.epoch > known[0]:
                    self._newest[ticket.key.room] = ticket.key.epoch, ticket.gateway
                    self._open.add(ticket.key)
            case MessageReceived(message=Close() as close):
                self._closed.add(close.room)
                self._forget_closed()
            case PeerLost(boot=boot):
                self._newest = {r: n for r, n in self._newest.items() if n[1] != boot}
            case _:
                pass
        for plan in plans(step):
            for what, key in ((what, room_key(key)) for what, key in served(plan)):
                newest = self._newest.get(key.room)
                if newest is None:
                    yield f"plan {plan.seq} has a {what} of {brief(key)}, for which no ticket came"
                elif newest[0] != key.epoch:
                    yield (
                        f"plan {plan.seq} has a {what} of {brief(key)}; epoch {newest[0]} "
                        "of that room had begun"
                    )
        if told := {ended.key for _, ended in sent(step, Ended)}:
            self._open -= told
            self._forget_closed()

    def _forget_closed(self) -> None:
        """Forget the closed rooms of which no epoch is open any more."""
        for room in self._closed - {key.room for key in self._open}:
            self._closed.discard(room)
            self._newest.pop(room, None)


def served(plan: StepPlan) -> Iterator[tuple[str, Key]]:
    """Yield (what the plan does, room) for every room that the plan does not drop."""
    rows = [("hold", h.key) for h in plan.hold]
    rows += [("fetch", f.key) for f in plan.fetch]
    rows += [("offload", o.key) for o in plan.offload]
    rows += [("restore", r.key) for r in plan.restore]
    rows += [("resume", r.key) for r in plan.resume]
    rows += [("commit", key) for key in plan.commit]
    rows += [("row", row.key) for row in plan.batch]
    yield from (row for row in rows if row[1] not in plan.drop)
