"""What a rank asks of its engine and of a fabric, and what they answer: values only.

The ports (`ports/engine.py`, `ports/fabric.py`) say what each of them promises.
"""

from collections.abc import Mapping
from enum import Enum
from typing import NewType

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.ids import BlockIndex, GroupName, Key, RankId, Seq, StoreKey, TokenId, TokenIndex
from baton.core.messages import Drawn, RowFailure, Sampling
from baton.core.past import Past
from baton.core.prompt_scores import PromptScores, Score

Job = NewType("Job", int)  # one digest
Handle = NewType("Handle", int)  # one read from one source rank


class Copies(msgspec.Struct, frozen=True):
    """Byte ranges of one group's pool, to be read from one source rank: three int64 vectors of
    equal length."""

    group: GroupName
    source: NDArray[np.int64]  # offsets in the source rank's pool
    target: NDArray[np.int64]  # offsets in our pool
    nbytes: NDArray[np.int64]


class ReadOutcome(Enum):
    """How a read ended."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"  # may still land; wait for `Released`


class ReadEnded(msgspec.Struct, frozen=True, tag="read_ended"):
    """The one end of a handle."""

    handle: Handle
    outcome: ReadOutcome
    detail: str


class Released(msgspec.Struct, frozen=True, tag="read_released"):
    """Nothing more can land for a handle that ended UNKNOWN."""

    handle: Handle


class Connected(msgspec.Struct, frozen=True, tag="connected"):
    """The one answer to a `connect`. `why` says why the peer cannot be read; empty if it can."""

    peer: RankId
    why: str


FabricEvent = Connected | ReadEnded | Released


class Draw(msgspec.Struct, frozen=True):
    """Sample after the row's last token: the request's generated token `index`."""

    sampling: Sampling
    index: TokenIndex
    past: Past | None = None


class Row(msgspec.Struct, frozen=True):
    """One room's part of a batch: `tokens` at positions start, start + 1, ...

    `draw` samples after the last token. With drafts, which are the last len(ahead) tokens, it
    samples before the first of them, and `ahead` after each one: as long as a draft is the very
    token that was drawn before it.

    `pages` are the room's whole page lists: page p of a list holds blocks begin + p * k ...
    `begins` names the first block of a list that does not begin with block 0; the row looks at
    nothing before it. `final` names blocks [first, end) that no later step writes; this batch seals
    them. `valid` is the number of positions of the sequence that hold accepted tokens after the
    batch.
    """

    key: Key
    start: int
    tokens: tuple[TokenId, ...]
    pages: Mapping[GroupName, NDArray[np.int32]]
    final: Mapping[GroupName, tuple[BlockIndex, BlockIndex]]
    valid: int
    draw: Draw | None
    begins: Mapping[GroupName, BlockIndex] = {}
    score: Score | None = None  # compute the logprobs of the tokens that follow its positions
    # how many of its tokens, the last ones, were generated: they are computed as if they came one
    # by one, so that an answer which goes on elsewhere is the same
    said: int = 0
    ahead: tuple[Draw, ...] = ()
    # whether the positions before `start` were computed by others: what is optional (Group) of them
    # is not there, and counts as zeros
    cold: bool = False
    # drafts of the tokens after the last one drawn that the draft layer is to make, at most; there
    # are pages for them
    drafts: int = 0

    @property
    def draws(self) -> tuple[Draw, ...]:
        """The draws, each after one of the last tokens."""
        return () if self.draw is None else (self.draw, *self.ahead)


class Batch(msgspec.Struct, frozen=True):
    """What one forward pass computes."""

    seq: Seq
    rows: tuple[Row, ...]


class RowDone(msgspec.Struct, frozen=True):
    """The result of one row. `sums[group]` is uint64 [blocks of final, units of the group on this
    rank] (Placement.units)."""

    key: Key
    drawn: Drawn | None
    sums: Mapping[GroupName, NDArray[np.uint64]]
    failed: RowFailure | None = None
    scores: PromptScores | None = None
    more: tuple[Drawn, ...] = ()  # drawn after drafts that were right
    drafts: tuple[TokenId, ...] = ()  # of the tokens after the last one drawn


class BatchDone(msgspec.Struct, frozen=True, tag="batch_done"):
    """A batch has ended. All that it has written is visible to readers of the pools."""

    seq: Seq
    rows: tuple[RowDone, ...]


class DigestOrder(msgspec.Struct, frozen=True):
    """Hash blocks of one group as they lie in our pool.

    Attributes:
        slots: int64 [n], block index in the pool: page * k + j
        numbers: int64 [n], block number in its sequence (positions start at number * B)
    """

    job: Job
    group: GroupName
    slots: NDArray[np.int64]
    numbers: NDArray[np.int64]


class GrammarReady(msgspec.Struct, frozen=True, tag="grammar_ready"):
    """Tokens of this room can be drawn by its grammar."""

    key: Key


class HostCopy(msgspec.Struct, frozen=True):
    """Copy a room's state, or a part of it, out of our pools into the host store, or back.

    Attributes:
        key: under which the store has it
        slots: by group, int64 [n], block index in the pool: page * k + j; in the order of the
            sequence, the same both ways
    """

    job: Job
    key: StoreKey
    slots: Mapping[GroupName, NDArray[np.int64]]


class Copied(msgspec.Struct, frozen=True, tag="host_copied"):
    """A copy has ended. `why` is empty if every byte is there. The pools are no longer touched."""

    job: Job
    why: str


class DigestDone(msgspec.Struct, frozen=True, tag="digest_done"):
    """A digest has ended. sums: uint64 [n, units]"""

    job: Job
    sums: NDArray[np.uint64]


Done = BatchDone | DigestDone | GrammarReady  # what an engine reports
