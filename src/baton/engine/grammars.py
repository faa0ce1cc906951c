"""The grammars of a rank's rooms, on two threads of their own beside compute.

constrain ──a spare matcher──────────────────────┐
        └──▶ building thread: a new matcher ─────┴──▶ GrammarReady
submit(batch) ──rows with a grammar──▶ mask thread: accept what is new, mask ──▶ the compute thread draws

Masks are computed while the batch is; those of draws after drafts only when it comes to them. They
never wait for a grammar that is being built: the leader orders no draw of a room before every rank
has said GrammarReady. The mask thread alone touches the matchers, in the order of the calls, so a
room's matcher is released after the first mask of its last row.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from baton.core.errors import BatonError
from baton.core.ids import Key
from baton.core.matchers import Answer, GrammarError, Matcher, Matchers, NoMatcher
from baton.core.messages import Grammar
from baton.core.work import GrammarReady, Row
from baton.grammar.matcher import Mask

# by number of the row, for each of its draws: waits for the mask and returns it
Masks = Mapping[int, Sequence[Callable[[], Mask | None]]]
BuildMatcher = Callable[[Grammar], Matcher[Mask]]
SPARES = 64  # matchers of ended rooms that are kept; each may have some megabytes


def no_grammars(grammar: Grammar) -> Matcher[Mask]:
    """Build matchers for an engine that knows no vocabulary."""
    return NoMatcher("this engine knows no vocabulary, and so follows no grammar")


class Grammars:
    """The grammars of one rank's rooms.

    Args:
        build: makes the matcher of a grammar
        report: takes, on any thread, that a grammar is ready, or an error that ends the process
    """

    def __init__(
        self, build: BuildMatcher, *, report: Callable[[GrammarReady | BaseException], None]
    ) -> None:
        self._build, self._report = build, report
        self._matchers: Matchers[Mask] = Matchers(spares=SPARES)
        self._unbuilt: set[Key] = set()  # rooms whose matcher is being built
        self._builds = ThreadPoolExecutor(max_workers=1, thread_name_prefix="baton-grammar")
        self._masks = ThreadPoolExecutor(max_workers=1, thread_name_prefix="baton-mask")

    # ---- the pump's thread ----------------------------------------------------------------------

    def constrain(self, key: Key, grammar: Grammar) -> None:
        """Begin to build a room's matcher; its end is reported."""
        self._run(self._masks, self._begin, key, grammar)

    def release(self, key: Key) -> None:
        """Forget a room's grammar when its masks are computed."""
        self._run(self._masks, self._forget, key)

    def masks(self, rows: Sequence[Row]) -> Masks:
        """Begin to compute the masks of the rows that have a grammar."""
        found: dict[int, Sequence[Callable[[], Mask | None]]] = {}
        for i, row in enumerate(rows):
            pasts = [draw.past for draw in row.draws if draw.past is not None]
            if not pasts or not pasts[0].constrained:
                continue
            first: Future[Mask | None] = self._masks.submit(
                self._matchers.allowed, row.key, pasts[0].answer
            )
            # the grammar may not allow a draft, so what follows it is looked up once it was drawn
            later = [partial(self._later, row.key, past.answer) for past in pasts[1:]]
            found[i] = [first.result, *later]
        return found

    # ---- the compute thread ---------------------------------------------------------------------

    def _later(self, key: Key, answer: Answer) -> Mask | None:
        return self._masks.submit(self._allowed_still, key, answer).result()

    def close(self) -> None:
        """End the threads."""
        for pool in (self._builds, self._masks):  # the first hands its work to the second
            pool.shutdown(cancel_futures=True)

    # ---- the mask thread ------------------------------------------------------------------------

    def _begin(self, key: Key, grammar: Grammar) -> None:
        if self._matchers.reuse(key, grammar):
            self._report(GrammarReady(key))
            return
        self._unbuilt.add(key)
        self._run(self._builds, self._make, key, grammar)

    def _add(self, key: Key, grammar: Grammar, matcher: Matcher[Mask]) -> None:
        if key in self._unbuilt:  # otherwise the room has ended
            self._unbuilt.remove(key)
            self._matchers.add(key, grammar, matcher)
            self._report(GrammarReady(key))

    def _allowed_still(self, key: Key, answer: Answer) -> Mask | None:
        if not self._matchers.knows(key):
            raise GrammarError("its room has ended")
        return self._matchers.allowed(key, answer)

    def _forget(self, key: Key) -> None:
        if key in self._unbuilt:
            self._unbuilt.remove(key)
        else:
            self._matchers.release(key)

    # ---- the building thread --------------------------------------------------------------------

    def _make(self, key: Key, grammar: Grammar) -> None:
        try:
            matcher = self._build(grammar)
        except (GrammarError, BatonError) as error:
            matcher = NoMatcher(str(error))  # the room's first draw fails, and says why
        self._run(self._masks, self._add, key, grammar, matcher)

    def _run(self, pool: ThreadPoolExecutor, action: Callable[..., None], *args: Any) -> None:
        """Have a thread do something; what it raises is reported."""
        pool.submit(action, *args).add_done_callback(self._ended)

    def _ended(self, future: "Future[None]") -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._report(error)
