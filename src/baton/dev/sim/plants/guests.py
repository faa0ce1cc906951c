"""Guests of vLLM that are wrong about what it does with its pages: when it takes them back, whose
they are, and when it may compute in them."""

from collections.abc import Mapping

from baton.core.effects import Notice
from baton.core.events import GuestEvent, GuestFinished
from baton.core.ids import Epoch, GroupName, Key, Page
from baton.core.memory.foreign_pages import ForeignLedger
from baton.core.memory.page_sums import PageSums
from baton.core.memory.pages import PageState
from baton.core.scheduler.guest import tell
from baton.core.scheduler.guest_decode import GuestLoading
from baton.core.work import Batch
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant
from baton.dev.sim.plants.votes import PLANTS as VOTES
from baton.vllm.scheduler_side import SchedulerSide
from baton.vllm.seal_queue import SealQueue

SHIPPED_GUEST = GuestLoading.guest
SHIPPED_HEARD = SchedulerSide._heard
SHIPPED_ADOPT = ForeignLedger.adopt


def _free_at_abort(self: GuestLoading, event: GuestEvent) -> None:
    """Tell vLLM at once that nothing of a request that has ended is needed."""
    SHIPPED_GUEST(self, event)
    if isinstance(event, GuestFinished):
        tell(self.worker, event.key, Notice.FAILED)


def _adopt_for_the_room(
    self: ForeignLedger,
    key: Key,
    pages: Mapping[GroupName, tuple[Page, ...]],
    state: PageState,
) -> None:
    """The pages of an earlier epoch of the room are still its first ones."""
    begins = not any(self._held.get(key, {}).values())
    earlier = self.__dict__.setdefault("earlier_epochs", {})
    if begins and key.room in earlier:
        SHIPPED_ADOPT(self, key, earlier[key.room], state)
    elif begins:
        earlier[key.room] = dict(pages)
    SHIPPED_ADOPT(self, key, pages, state)


def _heard_of_the_room(self: SchedulerSide, key: Key, notice: Notice) -> None:
    """What is said of one epoch counts for the newest one of its room."""
    epochs = [other.epoch for other in self._names if other.room == key.room]
    SHIPPED_HEARD(self, Key(key.room, max(epochs, default=key.epoch)), notice)


def _computed_for_the_room(self: SealQueue, batch: Batch) -> bool:
    """What vLLM has computed of one epoch counts for all of its room."""
    computed = {Key(key.room, Epoch(0)): end for key, (end, _) in self._computed.items()}
    return all(computed.get(Key(r.key.room, Epoch(0)), 0) >= r.valid for r in batch.rows)


def _never_wrong(self: PageSums, group: GroupName, pages: object, sums: object) -> list[int]:
    """Sums at birth are not looked at."""
    return []


def _one_rank_suffices() -> Parts:
    (votes,) = (plant for plant in VOTES if plant.name == "one_rank_suffices")
    return Parts(replaced=votes.make().replaced, guests=True)


def _replaced(owner: type, name: str, value: object) -> Parts:
    return Parts(replaced=(Replaced(owner, name, value),), guests=True)


PLANTS = (
    Plant(
        "guest_frees_at_abort",
        "decode tells vLLM that the pages of an aborted request are free while a read of ours into "
        "them is under way",
        ("own_reads_ended", "landing"),
        6,
        lambda: _replaced(GuestLoading, "guest", _free_at_abort),
    ),
    Plant(
        "guest_keeps_old_pages",
        "prefill forgets no pages of an ended epoch: the next one of the room is offered from them",
        ("offers_held",),
        7,
        lambda: _replaced(ForeignLedger, "adopt", _adopt_for_the_room),
    ),
    Plant(
        "guest_loaded_by_one_rank",
        "vLLM is told that a request is loaded when the first rank has its state",
        ("right_commit", "commit_after_arrival", "right_bytes"),
        2,
        _one_rank_suffices,
    ),
    Plant(
        "guest_hears_other_epoch",
        "the hooks in vLLM's scheduler take what is said of an old epoch for the new one",
        ("right_bytes", "own_reads_ended", "landing", "offers_held", "vllm_asserts"),
        7,
        lambda: _replaced(SchedulerSide, "_heard", _heard_of_the_room),
    ),
    Plant(
        "guest_seals_other_epoch",
        "what vLLM has computed of an old epoch counts for the new one, which is sealed too early",
        ("seals_computed",),
        7,
        lambda: _replaced(SealQueue, "_is_computed", _computed_for_the_room),
    ),
    Plant(
        "guest_seals_what_was_cached",
        "a page of vLLM's prefix cache is sealed anew when it is hit, whatever became of it",
        ("right_commit", "right_bytes"),
        9,
        lambda: _replaced(PageSums, "wrong", _never_wrong),
    ),
)
