"""The leader of a worker: takes events, asks the stages of its role, and issues what they decide as
one plan for its ranks.

    event ──▶ leader ──Send(boot, message)──▶ gateway or peer leader
                   └──Issue(plan)──▶ its ranks          Dial, HangUp: the shell's links

Each event is handled in one turn: the event changes rooms, then the stages decide what can be done,
and all decisions of the turn go out as one step plan.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from baton.core.agreement import PlanDraft, Report
from baton.core.effects import AskDelivery, Effect, GiveUp, Issue
from baton.core.events import (
    Delivered,
    DrainAsked,
    GatewayConnected,
    GuestAllocated,
    GuestComputes,
    GuestFinished,
    GuestScheduled,
    LeaderEvent,
    MessageReceived,
    PeerConnected,
    PeerLost,
    RankReported,
    TimerDue,
)
from baton.core.frames import Said
from baton.core.ids import Boot, GroupName, Key, Micros, Seq
from baton.core.manifest import Manifest
from baton.core.marks import Mark
from baton.core.messages import (
    Abort,
    Close,
    Ended,
    FailCode,
    Failed,
    Progress,
    Register,
    Ticket,
    Trial,
)
from baton.core.scheduler.admission import Admission
from baton.core.scheduler.batches import Outcomes, Rows
from baton.core.scheduler.books import LeaderBooks
from baton.core.scheduler.roles import role_of
from baton.core.scheduler.room import LeaderSettings, OpenRoom, RoomState, Saw
from baton.core.scheduler.stage import IN_HANDOFF, Handlers, Stage
from baton.core.scheduler.worker import Worker
from baton.core.session.senders import may_say

S = TypeVar("S", bound=Stage[Any])


class Leader:
    """The leader of one worker. Its manifest names its role. Sans-IO."""

    def __init__(
        self, manifest: Manifest, settings: LeaderSettings, totals: dict[GroupName, int]
    ) -> None:
        role = role_of(manifest)
        self.worker: Worker[Any] = Worker(manifest, settings, totals, role.rules)
        self._new_room = role.room
        policy, stages = role.stages(self.worker)
        self._admission = Admission(self.worker, policy)
        self._books = LeaderBooks(self.worker, stages)
        self._stages: tuple[Stage[Any], ...] = (self._books, *stages)
        self.worker.on_forget += [stage.forgotten for stage in stages]
        self.worker.on_resumed += [stage.resumed for stage in stages]
        self._handlers: dict[type[Any], list[Callable[[Boot, Any], None]]] = {}
        for handlers in (self._own_handlers(), *(stage.handlers() for stage in self._stages)):
            for kind, handler in handlers.items():
                self._handlers.setdefault(kind, []).append(handler)
        self._due: Micros | None = None  # what `next_wake` found
        self._changed = True  # whether an event came since then
        self._given_up = ""  # why this worker is to end; empty while it goes on

    def stage(self, kind: type[S]) -> S:
        """Return the stage of this class. The role must have one."""
        return next(stage for stage in self._stages if isinstance(stage, kind))

    # ---- events ---------------------------------------------------------------------------------

    def step(self, event: LeaderEvent, now: Micros) -> list[Effect]:
        """Take one event, and return what is to be done, in order.

        Raises:
            Bug: a rank has diverged
        """
        self.worker.now = now
        match event:
            case MessageReceived():
                self._receive(event.sender, event.message)
            case RankReported():
                self._take(event.report)
            case TimerDue():
                self._on_timer()
            case PeerConnected():
                for stage in self._stages:
                    stage.peer_up(event.boot)
            case PeerLost():
                self._lose(event.boot, event.why)
            case Delivered():
                self.worker.batches.heard(event.boot)
            case GatewayConnected():
                self._on_gateway_up(event.boot)
            case DrainAsked():
                self.worker.draining.ask(None)
            case GuestAllocated() | GuestScheduled() | GuestComputes() | GuestFinished():
                for stage in self._stages:
                    stage.guest(event)
        self._turn()
        if isinstance(event, TimerDue) and (leave := self.worker.draining.leaves(now)) is not None:
            self.worker.marks[Mark.LEFT] += 1
            self.worker.effects.append(leave)
        effects, self.worker.effects = self.worker.effects, []
        return effects

    def _on_gateway_up(self, boot: Boot) -> None:
        worker = self.worker
        worker.gateways.add(boot)
        worker.send(
            boot,
            Register(
                worker.settings.name,
                worker.settings.address,
                worker.manifest,
                self._books.news.stamp,
                worker.settings.url,
                # an engine that this worker is a guest of may well do so; where prompts begin with
                # checkpoints, two that come together have nothing from each other
                (worker.reuse.on and not worker.reuse.keeps) or worker.role.guest,
                self._local_prefill(),
            ),
        )
        for stage in self._stages:
            stage.gateway_up(boot)

    def _local_prefill(self) -> bool:
        """Return whether this is a decode worker that has room for the chunks of a prompt. Engines
        that a worker is a guest of are not asked to compute one."""
        manifest, settings = self.worker.manifest, self.worker.settings
        room = settings.local_prefill or manifest.table.cacheable
        return room and manifest.role == "decode" and not manifest.guest

    def _lose(self, boot: Boot, why: str) -> None:
        """A session has ended: an event for every room that is shared with that process."""
        worker = self.worker
        if boot in worker.gateways:
            worker.gateways.discard(boot)
            worker.batches.heard(boot)
            self._books.gateway_lost(boot)
            for room in [r for r in worker.rooms.values() if r.ticket.gateway == boot]:
                worker.marks[Mark.GATEWAY_LOST] += 1
                worker.end(room)
            worker.epochs.lost(boot)
        else:
            worker.progress.lost(boot)
            for stage in self._stages:
                stage.peer_lost(boot, why)

    def _receive(self, sender: Boot, message: Said) -> None:
        """Handle a message. One that this role does not handle, or that the sender may not send
        (session/senders.py), changes nothing and is not answered."""
        handlers = self._handlers.get(type(message))
        if handlers is None:
            return
        if not may_say(sender, message, self.worker):
            self.worker.marks[Mark.WRONG_PARTY] += 1
            return
        for handle in handlers:
            handle(sender, message)

    def _take(self, report: Report) -> None:
        """A rank has reported.

        Raises:
            Bug: the rank has diverged
        """
        worker = self.worker
        worker.agreement.take(report)
        worker.inspections.take(report.rank, report.rehashed)
        self._books.answer_cleared()
        worker.orders.take(report.ballots, worker.agreement)
        for stage in self._stages:
            stage.report(report)
        for batch, ranks in worker.batches.take(report):
            self._batch_ended(batch, ranks)
        for key in worker.agreement.newly_quiet():
            if key in worker.beside:
                worker.beside.pop(key)()
                continue
            room = worker.rooms[key]
            worker.see(room, Saw.QUIET)
            worker.forget(room)
        if (wedged := worker.batches.wedged(report)) is not None:
            self._give_up(*wedged)

    def _batch_ended(self, batch: Rows[Any], ranks: Outcomes) -> None:
        worker = self.worker
        if (trial := worker.batches.trial) is not None:
            gateway = trial.ticket.gateway
            worker.send(gateway, Trial(trial.key, True, worker.batches.trials))
            worker.effects.append(AskDelivery(gateway))
            worker.batches.trial_ended(gateway if gateway in worker.gateways else None)
        for i, (room, _) in enumerate(batch):
            failed = next((f for rows in ranks if (f := rows[i].failed) is not None), None)
            if failed is not None and room.state is not RoomState.ENDING:
                worker.marks[Mark.ROW_FAILED] += 1
                worker.fail(room, failed.code, failed.why, retry=False)
        for stage in self._stages:
            stage.stepped()
        for stage in self._stages:
            stage.rows_ended(batch, ranks)

    def _give_up(self, why: str, seq: Seq | None) -> None:
        """This worker cannot go on. Its rooms are to go on elsewhere, except a suspect that was
        alone in the step that does not end."""
        worker, trial = self.worker, self.worker.batches.trial
        worker.marks[Mark.GIVEN_UP] += 1
        self._given_up = why
        stuck = worker.batches.rooms(seq) if seq is not None else []
        rooms = [r for r in worker.rooms.values() if r.state is not RoomState.ENDING]
        # The suspect is reported first: the other rooms are innocent.
        for room in sorted(rooms, key=lambda r: r is not trial):
            if room is trial and room in stuck:
                why_it = f"{worker.settings.name} computed nothing else, and {why}"
                worker.fail(room, FailCode.POISON, why_it, retry=False)
            else:
                worker.fail(
                    room,
                    FailCode.WORKER_LOST,
                    f"{worker.settings.name} gives up: {why}",
                    retry=True,
                )

    # ---- time -----------------------------------------------------------------------------------

    def _on_timer(self) -> None:
        """Handle what is due: timers of stages, pages to verify, and rooms whose time is over."""
        worker, now = self.worker, self.worker.now
        for stage in self._stages:
            stage.on_timer()
        worker.followers.lose_patience(now, worker.marks)
        worker.scrub()
        for room in list(worker.rooms.values()):
            if room.state is RoomState.ENDING:
                continue
            if now >= room.deadline:
                worker.marks[Mark.DEADLINE] += 1
                why = f"not done in {room.ticket.limits.deadline_ms} ms"
                worker.fail(room, FailCode.DEADLINE_EXCEEDED, why, retry=False)
            elif self._unadmitted(room) and now >= room.admit_by:
                worker.marks[Mark.WAITED] += 1
                why = f"not admitted in {room.ticket.admit_ms} ms, while {room.state.value}"
                worker.fail(room, FailCode.QUEUE_TIMEOUT, why, retry=False)
            elif (
                other := self._waits_for(room)
            ) is not None and now >= worker.progress.patience_ends(other, room.progress):
                self._stalled(room, other)

    def _stalled(self, room: OpenRoom, other: Boot) -> None:
        worker = self.worker
        worker.marks[Mark.STALL] += 1
        whom = "this worker's own reads" if other == worker.manifest.boot else f"worker {other:x}"
        limit = f"{worker.settings.stall_ms} ms (--handoff-timeout)"
        why = f"no progress for {limit} while {room.state.value}, nor of {whom}"
        worker.fail(room, FailCode.HANDOFF_FAILED, why, retry=True)

    def _waits_for(self, room: OpenRoom) -> Boot | None:
        """Return the worker, this one or another, whose work the room's handoff waits for; None if
        it waits for none."""
        if room.state not in IN_HANDOFF:
            return None
        others = (stage.waits_for(room) for stage in self._stages)
        return next((other for other in others if other is not None), None)

    def _unadmitted(self, room: OpenRoom) -> bool:
        """Whether no worker holds memory to generate in; such a room fails at `admit_by`."""
        return room.state is RoomState.QUEUED or self._admission.policy.unadmitted(room)

    def next_wake(self) -> Micros | None:
        """Return when a TimerDue is wanted next. The shell asks in every turn, and only events
        change the answer."""
        if self._changed:
            self._due, self._changed = self._next_due(), False
        return self._due

    def _next_due(self) -> Micros | None:
        worker = self.worker
        own = [
            worker.followers.timer(),
            worker.progress.timer(),
            worker.scrubber.timer(busy=bool(worker.rooms)),
            worker.draining.timer(),
        ]
        own += [stage.timer() for stage in self._stages]
        soonest = min((due for due in own if due is not None), default=None)
        for room in worker.rooms.values():
            if room.state is RoomState.ENDING:
                continue
            if soonest is None or room.deadline < soonest:
                soonest = room.deadline
            other = self._waits_for(room)
            if (
                other is not None
                and (ends := worker.progress.patience_ends(other, room.progress)) < soonest
            ):
                soonest = ends
            if room.admit_by < soonest and self._unadmitted(room):
                soonest = room.admit_by
        return soonest

    # ---- messages of every role -----------------------------------------------------------------

    def _own_handlers(self) -> Handlers:
        return {
            Ticket: self._on_ticket,
            Abort: self._on_abort,
            Close: self._on_close,
            Progress: self._on_progress,
        }

    def _on_ticket(self, sender: Boot, ticket: Ticket) -> None:
        worker, key = self.worker, ticket.key
        if worker.epochs.passed(key):
            return  # an old epoch, or this one again, changes nothing
        self._books.news.heard(sender, ticket.stamp)
        if worker.manifest.boot not in (ticket.prefill, ticket.decode):
            worker.send(
                sender,
                Failed(
                    key, FailCode.WORKER_LOST, "the ticket names another boot of this worker", True
                ),
            )
            worker.send(sender, Ended(key))
            return
        highest = worker.epochs.highest(key.room)
        if highest is not None and (earlier := worker.find(Key(key.room, highest))) is not None:
            worker.marks[Mark.TICKET_HIGHER_EPOCH] += 1
            worker.end(earlier)
        worker.epochs.begin(key, ticket.gateway)
        self._books.opened_epochs += 1
        room = self._new_room(ticket, worker.now)
        worker.rooms.add(room)
        if not self._refused(room):
            for stage in self._stages:
                stage.opened(room)

    def _refused(self, room: OpenRoom) -> bool:
        """Fail a room that this worker cannot take."""
        worker, want = self.worker, self.worker.pages_for(room, room.length + 1)
        refusal = next((why for stage in self._stages if (why := stage.refuse(room.ticket))), "")
        if refusal:
            worker.marks[Mark.TICKET_UNPAIRED] += 1
            worker.fail(room, FailCode.WORKER_LOST, refusal, retry=True)
        elif not worker.ledger.could_ever_fit(want):
            worker.marks[Mark.TICKET_TOO_LARGE] += 1
            why = f"{room.length} tokens need {want} pages; the pools hold {worker.ledger.totals()}"
            worker.fail(room, FailCode.OVERLOADED, why, retry=False)
        elif worker.rooms.count(RoomState.QUEUED) > worker.settings.max_queue:
            worker.fail(
                room,
                FailCode.OVERLOADED,
                f"{worker.settings.max_queue} requests wait already",
                retry=True,
            )
        return room.state is not RoomState.QUEUED

    def _on_abort(self, sender: Boot, abort: Abort) -> None:
        room = self.worker.find(abort.key)
        if room is not None:
            self.worker.end(room)

    def _on_close(self, sender: Boot, close: Close) -> None:
        self.worker.epochs.close(close.room)

    def _on_progress(self, sender: Boot, message: Progress) -> None:
        if any(sender in (r.ticket.prefill, r.ticket.decode) for r in self.worker.rooms.values()):
            self.worker.progress.heard(sender, message.done, self.worker.now)

    def _tell_progress(self) -> None:
        """Tell the workers whose rooms may wait for this one."""
        worker = self.worker
        if worker.progress.due(worker.now):
            sides = {
                boot
                for room in worker.rooms.values()
                for boot in (room.ticket.prefill, room.ticket.decode)
            }
            for boot in sorted(sides - {worker.manifest.boot}):
                worker.send(boot, Progress(worker.manifest.boot, worker.progress.done))

    # ---- a turn ---------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._changed = True
        if self._given_up:
            self.worker.effects.append(GiveUp(self._given_up))
            return
        if self.worker.rooms:
            self._schedule()
        self._issue()
        self._tell_progress()
        self._books.tell()
        if not self.worker.role.guest:  # whose process is another engine's
            self.worker.draining.look(
                self.worker.now, rooms=len(self.worker.rooms), gateways=len(self.worker.gateways)
            )

    def _schedule(self) -> None:
        """Decide what can be done now."""
        for stage in self._stages:
            stage.schedule()
        for room, reuse in self._admission.admit():
            for stage in self._stages:
                stage.admitted(room, reuse)
        for stage in self._stages:
            stage.advance()
        if self.worker.batches.may_issue:
            self._compose()

    def _compose(self) -> None:
        """Compose the next step: tokens of running rooms first, then chunks of prompts in the
        tokens that are left."""
        worker = self.worker
        lists = [due for stage in self._stages if (due := stage.due())]
        rooms = (
            lists[0]
            if len(lists) == 1
            else sorted((r for due in lists for r in due), key=lambda r: (r.ticket.came, r.number))
        )
        for lot in worker.batches.lots(rooms):
            left = worker.settings.step_tokens
            for stage in self._stages:
                left -= stage.add_rows(lot, left)
            if worker.draft.batch:
                return

    def _issue(self) -> None:
        """Issue all that was decided in this turn as one plan."""
        worker = self.worker
        worker.draft.hold += worker.blocks.changes()
        if not worker.draft:
            return
        draft, worker.draft = worker.draft, PlanDraft()
        plan = draft.finish(worker.next_seq)
        if plan.batch:
            self._step_begins(plan.seq, sum(len(row.tokens) for row in plan.batch))
        worker.agreement.issue(plan)
        worker.effects.append(Issue(plan))

    def _step_begins(self, seq: Seq, tokens: int) -> None:
        worker = self.worker
        if worker.batches.under_way:
            worker.marks[Mark.PIPELINED] += 1
        if (suspect := worker.batches.issue(seq)) is not None:
            worker.marks[Mark.ALONE] += 1
            worker.send(suspect.ticket.gateway, Trial(suspect.key, False, worker.batches.trials))
        for stage in self._stages:
            stage.stepping(tokens)

    # ---- views ----------------------------------------------------------------------------------

    def kept(self) -> dict[str, int]:
        """Return, by name, the sizes of tables that must be empty when no room is open: anything
        else is a leak. Offers that came before their ticket count only once their time is over."""
        worker = self.worker
        tables = {
            "epochs": len(worker.epochs),
            "votes and drops": len(worker.agreement),
            "followers": len(worker.followers),
            "inspections": len(worker.inspections),
            "orders": len(worker.orders),
            "wedged": len(worker.batches.wedges),
            "trials": worker.batches.trials_open,
            "beside rooms": len(worker.beside),
        }
        for stage in self._stages:
            tables |= {name: len(table) for name, table in stage.kept().items()}
        return {name: n for name, n in tables.items() if n}
