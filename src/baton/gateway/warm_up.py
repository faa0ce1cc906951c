"""Sends a real request through every new pair of workers before the service reports itself ready.

The warm-up takes the costs of a first request (touching mapped pages, choosing matrix kernels,
filling caches), and finds a pair that cannot hand over before a client does. The prompts are zeros,
an id that every model has. Requests are sent pair by pair, one at a time, and bypass the gateway's
queue, so they do not wait for each other however small pools and queue are.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import structlog

from baton.core.door import Fail, Finish, Heard, RequestId, Submit
from baton.core.ids import Boot, TokenId
from baton.core.messages import Limits, Sampling
from baton.gateway.door import Capacity, Hear, Readiness, pair_count

log = structlog.get_logger()
# one prompt that fills a chunk and a short one, because kernels are chosen by shape
PROMPT_TOKENS = (300, 24)
GENERATED = 4
DEADLINE_MS = 30_000
AGAIN_S = 1.0
# the sampling of requests without parameters
SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=0, seed=0, logprobs=None)
LIMITS = Limits(max_tokens=GENERATED, stop_token_ids=(), eos_token_ids=(), deadline_ms=DEADLINE_MS)
Pair = tuple[Boot, Boot]


class WarmUp:
    """Sends the requests and keeps their results; the owner calls `look` after every turn."""

    def __init__(
        self,
        *,
        submit: Callable[[Submit, Hear], None],
        next_request: Callable[[], RequestId],
        later: Callable[[float], None],
    ) -> None:
        self._submit, self._next_request, self._later = submit, next_request, later
        self._warm: set[Pair] = set()
        # a pair that fails must not keep others from being tried
        self._failures: Counter[Pair] = Counter()
        self._trying: Pair | None = None
        self._lengths: list[int] = []  # lengths of the prompts that the pair has still to compute
        self._open: RequestId | None = None
        self._failed = ""  # the reason of the last failure
        self._paused = False

    def knows_all(self, pairs: Sequence[Pair]) -> bool:
        """Whether exactly these pairs are warm, so that there is nothing to do."""
        return self._warm == set(pairs)

    def look(self, pairs: Sequence[Pair], capacity: Capacity | None) -> None:
        """Send the next prompt to a pair that is not warm."""
        self._warm &= set(pairs)
        if self._open is not None or self._paused or capacity is None:
            return
        if self._trying not in pairs or not self._lengths:
            cold = [pair for pair in pairs if pair not in self._warm]
            self._trying = min(cold, key=self._failures.__getitem__, default=None)
            room = min(capacity.max_model_len, capacity.pool_tokens) - GENERATED
            self._lengths = [max(1, min(length, room)) for length in PROMPT_TOKENS]
        if self._trying is not None:
            self._begin(self._trying, self._lengths.pop(0))

    def _begin(self, pair: Pair, length: int) -> None:
        request = self._open = self._next_request()
        self._submit(
            Submit(request, (TokenId(0),) * length, SAMPLING, LIMITS, pair=pair), self._hear
        )

    def _hear(self, heard: Heard) -> None:
        pair = self._trying
        assert pair is not None
        match heard:
            case Finish():
                self._open = None
                if not self._lengths:
                    self._warm.add(pair)
                    log.info("warmed_up", prefill=f"{pair[0]:x}", decode=f"{pair[1]:x}")
            case Fail():
                log.warning("warm_up_failed", code=heard.code.value, why=heard.detail)
                self._open, self._lengths, self._failed = None, [], heard.detail
                self._failures[pair] += 1
                self._paused = True
                self._later(AGAIN_S)
            case _:
                pass

    def resume(self) -> None:
        """The pause after a failure is over."""
        self._paused = False

    def judge(self, pairs: Sequence[Pair]) -> Readiness:
        """Whether at least one of these pairs is warm."""
        if self._warm & set(pairs):
            return Readiness(True, pair_count(len(pairs)))
        why = f": {self._failed}" if self._failed else ""
        return Readiness(False, f"the warm-up handoff {'failed' if why else 'is under way'}{why}")
