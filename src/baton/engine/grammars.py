"""The masks of a rank's rows, computed on a thread of their own while the batch is computed.

submit(batch) ──rows with a grammar──▶ grammar thread: accept what is new, mask ──▶ the compute thread draws

What is ordered is done in that order, so a room's grammar is released after its last mask.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from baton.core.ids import Key
from baton.core.matchers import Matcher, Matchers, NoMatcher
from baton.core.messages import Grammar
from baton.core.work import Row
from baton.grammar.matcher import Mask

# by number of the row: waits for its mask and returns it
Masks = Mapping[int, Callable[[], Mask | None]]
BuildMatcher = Callable[[Grammar], Matcher[Mask]]
SPARES = 64  # matchers of ended rooms that are kept; each may have some megabytes


def no_grammars(grammar: Grammar) -> Matcher[Mask]:
    """Build matchers for an engine that knows no vocabulary."""
    return NoMatcher("this engine knows no vocabulary, and so follows no grammar")


class Grammars:
    """The grammars of one rank's rooms."""

    def __init__(self, build: BuildMatcher) -> None:
        self._matchers = Matchers(build, spares=SPARES)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="baton-grammar")

    def constrain(self, key: Key, grammar: Grammar) -> None:
        """Begin to build a room's matcher."""
        self._thread.submit(self._matchers.constrain, key, grammar)

    def release(self, key: Key) -> None:
        """Forget a room's grammar when its masks are computed."""
        self._thread.submit(self._matchers.release, key)

    def masks(self, rows: Sequence[Row]) -> Masks:
        """Begin to compute the masks of the rows that have a grammar."""
        found: dict[int, Callable[[], Mask | None]] = {}
        for i, row in enumerate(rows):
            past = row.draw.past if row.draw is not None else None
            if past is not None and past.constrained:
                mask: Future[Mask | None] = self._thread.submit(
                    self._matchers.allowed, row.key, past.answer
                )
                found[i] = mask.result
        return found

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)
