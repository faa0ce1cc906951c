"""Windows with page lists of their own, through the engine: given up pages are overwritten, and the
tokens are the same."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.test_models import WINDOW, truth
from tests.engine.whole import GREEDY, B, Rig
from tests.tiny import make_tiny

from baton.core.handoff.seal import block_sums
from baton.core.ids import BlockIndex, Epoch, GroupName, Key, Room, TokenId, TokenIndex
from baton.core.memory.span import Span
from baton.core.memory.state import extent_blocks
from baton.core.work import Draw, Row, RowDone
from baton.engine.models.base import WINDOW as SLIDING

CHUNKS = (7, 24, 25, 48)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt_oss": ("gpt_oss", {}),
    "gemma3": ("gemma3", {}),
    "mistral": ("mistral", WINDOW),
}


class Sequence:
    """One request on one rig: per group the pages that a leader would let it hold, and no
    others."""

    def __init__(self, rig: Rig, tokens: list[int], *, position: int = 0) -> None:
        self.rig, self.tokens = rig, tokens
        self.k = rig.placement.page_blocks
        self.span = Span(rig.placement.table, self.k * B)
        self.free = {g: np.random.default_rng(6).permutation(64).tolist() for g in rig.pools}
        self.begins = self.span.gone(position)
        self.pages: dict[GroupName, list[int]] = {g: [] for g in rig.pools}
        self.most = 0

    def reach(self, start: int, past: int) -> None:
        """Give up what a step at `start` does not look back on, and overwrite it; take pages up to
        `past`."""
        for group, gone in self.span.gone(start).items():
            passed, size = max(0, gone - self.begins[group]), self.rig.placement.page_bytes(group)
            for page in self.pages[group][:passed]:
                # nan in every dtype
                self.rig.pools[group].array[page * size : (page + 1) * size] = 0xFF
                self.free[group].append(page)
            self.begins[group] += passed
            del self.pages[group][:passed]
            while len(self.pages[group]) < self.span.past(past)[group] - self.begins[group]:
                self.pages[group].append(self.free[group].pop(0))
        self.most = max(self.most, len(self.pages[SLIDING]))

    def row(self, start: int, past: int, *, draw: int | None, final: bool = False) -> Row:
        self.reach(start, past)
        blocks = {g: self.due(g, past) for g in self.pages} if final else {}
        return Row(
            key=Key(Room("a"), Epoch(1)),
            start=start,
            tokens=tuple(TokenId(t) for t in self.tokens[start:past]),
            pages={g: np.array(pages, dtype=np.int32) for g, pages in self.pages.items()},
            final={g: (BlockIndex(b.start), BlockIndex(b.stop)) for g, b in blocks.items() if b},
            valid=past,
            draw=None if draw is None else Draw(GREEDY, TokenIndex(draw)),
            begins={g: BlockIndex(n * self.k) for g, n in self.begins.items() if n},
        )

    def due(self, group: GroupName, length: int) -> range:
        found = extent_blocks(self.rig.placement.table.group(group).extent, length, B)
        return range(found.start, found.end)

    def slots(self, group: GroupName, blocks: range) -> np.ndarray:
        at = np.array(blocks, dtype=np.int64) - self.begins[group] * self.k
        return np.array(self.pages[group], dtype=np.int64)[at // self.k] * self.k + at % self.k

    def rows_of(self, group: GroupName, blocks: range) -> np.ndarray:
        """A view of the pool, a line a block."""
        return self.rig.pools[group].array.reshape(-1, self.rig.placement.block_bytes(group))

    def prefill(self) -> RowDone:
        borders = [0, *(c for c in CHUNKS if c < len(self.tokens)), len(self.tokens)]
        for start, past in pairwise(borders):
            last = past == len(self.tokens)
            (done,) = self.rig.run([self.row(start, past, draw=0 if last else None, final=last)])
        self.tokens.append(done.drawn.token)
        return done

    def decode(self, count: int) -> None:
        """`count` tokens, of which the first is there."""
        for index in range(1, count):
            at = len(self.tokens) - 1
            (done,) = self.rig.run([self.row(at, at + 1, draw=index)])
            self.tokens.append(done.drawn.token)


CASES = [("gpt_oss", length, 12) for length in (1, 19, 20, 21)] + [
    (family, 61, 200) for family in FAMILIES
]


@pytest.mark.parametrize(("case", "length", "answer"), CASES)
def test_live_windows_alone_are_held_and_handed_over(
    tmp_path: Path, case: str, length: int, answer: int
) -> None:
    family, overrides = FAMILIES[case]
    path = make_tiny(tmp_path, family, **overrides)
    source, target = Rig(path), Rig(path, page_blocks=3)
    tokens = np.random.default_rng(4).integers(0, 300, length).tolist()
    theirs = Sequence(source, list(tokens))
    done = theirs.prefill()
    ours = Sequence(target, list(theirs.tokens), position=length)
    ours.reach(length, length + 1)
    for group in source.pools:
        blocks = theirs.due(group, length)
        numbers = np.array(blocks, dtype=np.int64)
        if not blocks:
            continue
        there, here = theirs.slots(group, blocks), ours.slots(group, blocks)
        ours.rows_of(group, blocks)[here] = theirs.rows_of(group, blocks)[there]
        found = block_sums(
            target.pools[group].array, target.placement, group, here, numbers, target.identity
        )
        assert np.array_equal(found, done.sums[group]), (
            "sealed at birth, by the numbers of the blocks"
        )
    theirs.decode(answer)
    ours.decode(answer)
    source.close()
    target.close()
    assert ours.tokens == theirs.tokens
    window = int(source.placement.table.group(SLIDING).extent.tokens)
    assert theirs.most <= (window - 1 + 25 + B - 2) // B + 1  # the longest chunk has 24 tokens
    assert ours.most <= (window + 3 * B - 2) // (3 * B) + 1
    with torch.inference_mode():
        _, logits = truth(path, ours.tokens)
    assert logits[length - 1 : -1].argmax(-1).tolist() == ours.tokens[length:]
