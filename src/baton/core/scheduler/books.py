"""What a worker says about itself: its ledger to whoever asks, its capacity to the gateways, and
the changes of its prefix cache to gateways and subscribers."""

from collections.abc import Sequence
from typing import Any

import msgspec

from baton.core.effects import Publish
from baton.core.ids import Boot, Micros, Seq
from baton.core.memory.prefix_cache import CacheChange
from baton.core.messages import (
    AskCache,
    AskLedger,
    Clear,
    Credits,
    Drain,
    LedgerView,
    RankView,
    ResetCache,
    RoomView,
)
from baton.core.prefill_cost import Backlog
from baton.core.scheduler.cache_news import CacheNews
from baton.core.scheduler.credit_news import CreditNews
from baton.core.scheduler.room import OpenRoom, RoomState
from baton.core.scheduler.stage import Handlers, Stage
from baton.core.scheduler.worker import Worker
from baton.core.statistics import Counters, added


class LeaderBooks(Stage[Any]):
    """The accounts of one worker."""

    def __init__(self, worker: Worker[Any], others: Sequence[Stage[Any]]) -> None:
        """others: the stages of its role, which have figures of their own"""
        super().__init__(worker)
        self._others = others
        self._clearing: list[tuple[Seq, Boot, int]] = []  # plan, asker, question
        self.news, self.cache_news = CreditNews(), CacheNews(worker.manifest.boot)
        self.opened_epochs = 0
        self._publishes = worker.settings.publish_cache
        self._published = False  # whether subscribers have been told anything

    def handlers(self) -> Handlers:
        return {
            AskCache: self._on_ask_cache,
            AskLedger: self._on_ask_ledger,
            Clear: self._on_clear,
            ResetCache: self._on_reset_cache,
            Drain: self._on_drain,
        }

    # ---- for gateways and subscribers -----------------------------------------------------------

    def gateway_up(self, boot: Boot) -> None:
        self.news.joined(boot)
        self.cache_news.joined(boot, self.worker.reuse.told)

    def gateway_lost(self, boot: Boot) -> None:
        """A session with a gateway has ended."""
        self.news.left(boot)
        self.cache_news.left(boot)

    def timer(self) -> Micros | None:
        dues = (self.news.timer(), self.cache_news.timer())
        return min((due for due in dues if due is not None), default=None)

    def tell(self) -> None:
        """Tell gateways and subscribers what has changed, at the end of a turn."""
        worker = self.worker
        changes = worker.ledger.cache.take_changes()
        self.cache_news.changed(worker.reuse.news(changes))
        self._publish(changes)
        for boot, changed in self.cache_news.due(worker.now):
            worker.send(boot, changed)
        for boot, credits in self.news.due(self._capacity, worker.now):
            told = self.cache_news.told(boot)
            worker.send(boot, msgspec.structs.replace(credits, cache_changes=told))

    def _publish(self, changes: Sequence[CacheChange]) -> None:
        if self._publishes and (changes or not self._published):
            self.worker.effects.append(Publish(tuple(changes), afresh=not self._published))
            self._published = True

    def _on_ask_cache(self, sender: Boot, ask: AskCache) -> None:
        self.cache_news.asked(sender, self.worker.reuse.told)

    def _capacity(self) -> Credits:
        """Return what this worker holds and how much more it could take."""
        worker, settings = self.worker, self.worker.settings
        queued, ending = worker.rooms.count(RoomState.QUEUED), worker.rooms.count(RoomState.ENDING)
        running = len(worker.rooms) - queued
        return Credits(
            number=0,  # CreditNews numbers what it sends
            worker=worker.manifest.boot,
            free_pages=worker.ledger.free(),
            total_pages=worker.ledger.totals(),
            waiting=queued,
            running=running,
            free_rooms=max(0, settings.max_rooms - running + ending),
            free_queue=max(0, settings.max_queue - queued),
            ahead_pages={g: n for stage in self._others for g, n in stage.ahead_pages().items()},
            stamp=self.news.stamp,
            draining=worker.draining.on,
            backlog=sum((stage.backlog() for stage in self._others), Backlog()),
            prefill_cost=worker.prefill.cost if worker.prefill.seen else None,
            cache_changes=self.cache_news.sent,  # each gateway is told how many of them it was sent
        )

    # ---- for whoever asks -----------------------------------------------------------------------

    def _on_ask_ledger(self, sender: Boot, ask: AskLedger) -> None:
        if ask.audit:
            self.worker.ledger.audit()
        self.worker.send(sender, self._view(ask.question))

    def _on_clear(self, sender: Boot, clear: Clear) -> None:
        """Order the ranks to zero the pools of all groups in the state table. While a room is open
        nothing is cleared, and the answer says so; nor where the pools are another engine's."""
        worker = self.worker
        if worker.rooms or worker.beside or worker.role.guest:
            worker.send(sender, self._view(clear.question))
            return
        worker.ledger.forget_cached()
        worker.draft.clear = [group.name for group in worker.state_table.groups]
        self._clearing.append((worker.next_seq, sender, clear.question))

    def answer_cleared(self) -> None:
        """Answer those who asked to clear the pools, once every rank has applied the plan that
        clears them."""
        if not self._clearing:
            return
        worker = self.worker
        groups = tuple(group.name for group in worker.state_table.groups)
        for _, asker, question in [c for c in self._clearing if worker.agreement.all_applied(c[0])]:
            worker.send(asker, msgspec.structs.replace(self._view(question), cleared=groups))
        self._clearing = [c for c in self._clearing if not worker.agreement.all_applied(c[0])]

    def _on_reset_cache(self, sender: Boot, reset: ResetCache) -> None:
        """Empty the cache. Pages need not be zeroed, as a page that is not found is not read. Pages
        that open rooms share go with the last of these rooms."""
        self.worker.ledger.forget_cached()
        self.worker.send(sender, self._view(reset.question))

    def _on_drain(self, sender: Boot, drain: Drain) -> None:
        self.worker.draining.ask(drain.role)
        self.worker.send(sender, self._view(drain.question))

    def _view(self, question: int) -> LedgerView:
        worker = self.worker
        ranks = zip(worker.manifest.ranks, worker.settings.pids, strict=True)
        reads, copies = sum(worker.agreement.reads.values()), sum(worker.agreement.copies.values())
        return LedgerView(
            question=question,
            name=worker.settings.name,
            role=worker.manifest.role,
            ranks=tuple(RankView(r.rank, pid, r.boot) for r, pid in ranks),
            pages=worker.ledger.view(),
            pins=worker.ledger.pins,
            reads=reads,
            rooms=tuple(self._room_view(room) for room in worker.rooms.values()),
            clean=worker.ledger.clean and not worker.rooms and not reads and not copies,
            counters=self._counters(),
            host=worker.host.view(),
            copies=copies,
            speculation=worker.speculation.figures(),
        )

    def _counters(self) -> Counters:
        worker = self.worker
        return Counters(
            epochs=self.opened_epochs,
            failures={code.value: n for code, n in worker.failures.items()},
            events={mark.name.lower(): n for mark, n in worker.marks.items()},
            spent={told: durations.view() for told, durations in worker.spent.items()},
            ranks=added(worker.agreement.counted.values()),
            cache=worker.reuse.tally(),
        )

    def _room_view(self, room: OpenRoom) -> RoomView:
        held = {g: len(p) for g, p in self.worker.ledger.held(room.key).items()}
        age_ms = (self.worker.now - room.born) // 1000
        return RoomView(room.key.room, room.key.epoch, room.stands, age_ms, held)
