"""Prompts that go on from a checkpoint which is not theirs, not whole or not verified."""

from collections.abc import Sequence
from typing import Any

from baton.core.ids import TokenId
from baton.core.memory.checkpoints import Checkpoints, PromptCheckpoint
from baton.core.memory.prefix_cache import PageHash
from baton.core.scheduler.checkpointing import Checkpointing
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant


def _found_by_length(
    self: Checkpoints,
    pages: Sequence[PageHash],
    tokens: Sequence[TokenId],
    *,
    page_tokens: int,
    most: int,
) -> PromptCheckpoint | None:
    return max(
        (one for one in self if one.length <= most), key=lambda one: one.length, default=None
    )


def _found_without_tail(
    self: Checkpoints,
    pages: Sequence[PageHash],
    tokens: Sequence[TokenId],
    *,
    page_tokens: int,
    most: int,
) -> PromptCheckpoint | None:
    """What is behind the last complete page may be anything."""
    found = (one for one in self if one.page in pages and one.length <= most)
    return max(found, key=lambda one: one.length, default=None)


_resumed = Checkpointing._resumed


def _one_too_far(self: Checkpointing, key: Any, *about: Any) -> None:
    _resumed(self, key, *about)
    room = self.worker.find(key)
    if room is not None and room.checkpoint is not None and room.length > room.done + 1 > 1:
        room.ordered = room.done = room.done + 1


def _forget_in_the_book(self: Checkpointing, one: PromptCheckpoint) -> None:
    self._book.remove(one)
    self._host.give_back(one.name)


def _one_more(self: Checkpointing, room: Any) -> None:
    """The last token counts as computed."""
    if self.worker.reuse.keeps:
        self._keep(room, room.position + 1, None)


PLANTS = (
    Plant(
        "checkpoint_of_other_tokens",
        "a prompt goes on from the end of any earlier one that is shorter",
        ("right_reuse", "own_salt", "right_resume", "page_books"),
        None,
        lambda: Parts(replaced=(Replaced(Checkpoints, "find", _found_by_length),)),
    ),
    Plant(
        "checkpoint_of_other_tail",
        "a prompt goes on from an earlier one that differs from it behind the last complete page",
        ("right_resume",),
        None,
        lambda: Parts(replaced=(Replaced(Checkpoints, "find", _found_without_tail),)),
    ),
    Plant(
        "checkpoint_of_the_wrong_length",
        "a prompt that goes on from a checkpoint leaves out the position behind it",
        ("nothing_skipped",),
        None,
        lambda: Parts(replaced=(Replaced(Checkpointing, "_resumed", _one_too_far),)),
    ),
    Plant(
        "checkpoint_unverified",
        "what comes back from a checkpoint is taken without a look at its sums",
        ("right_bytes", "right_resume"),
        None,
        lambda: Parts(
            replaced=(Replaced(Checkpointing, "_as_computed", lambda self, one, by_rank: True),)
        ),
    ),
    Plant(
        "kept_while_computed",
        "a prompt is computed on while what is before that is kept",
        ("right_resume", "right_bytes"),
        None,
        lambda: Parts(replaced=(Replaced(Checkpointing, "waits", lambda self, room: False),)),
    ),
    Plant(
        "answer_kept_too_long",
        "of an answer the last token is kept as well, which is not computed",
        ("right_resume",),
        None,
        lambda: Parts(replaced=(Replaced(Checkpointing, "answered", _one_more),)),
    ),
    Plant(
        "checkpoint_never_forgotten",
        "what host memory holds of a prompt stays there when its checkpoint has given way",
        ("nothing_left",),
        None,
        lambda: Parts(replaced=(Replaced(Checkpointing, "_forget", _forget_in_the_book),)),
    ),
)
