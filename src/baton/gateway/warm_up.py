"""A real request through every new pair of workers before the service calls itself ready.

What a first request pays for (pages of a mapping touched, matrix kernels chosen, caches filled) is paid here, and a pair
that looks well but cannot hand over is found before a client finds it. The token ids are zeros: every model has that one.
"""

from collections.abc import Callable, Sequence

import structlog

from baton.core.door import Fail, Finish, Heard, RequestId, Submit
from baton.core.errors import Overloaded
from baton.core.ids import Boot, TokenId
from baton.core.messages import FailCode, Limits, Sampling
from baton.gateway.door import Capacity, Hear, Readiness, pair_count

log = structlog.get_logger()
PROMPT_TOKENS = (300, 24)  # a prompt that fills a chunk, and a short one: kernels are chosen by shape
GENERATED = 4
DEADLINE_MS = 30_000
AGAIN_S = 1.0
SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=0, seed=0, logprobs=None)  # what clients get who say nothing
LIMITS = Limits(max_tokens=GENERATED, stop_token_ids=(), eos_token_ids=(), deadline_ms=DEADLINE_MS)
Pair = tuple[Boot, Boot]


class WarmUp:
    """Sends the requests and keeps what came of them; the owner calls `look` after every turn."""

    def __init__(
        self, *, submit: Callable[[Submit, Hear], None], next_request: Callable[[], RequestId], later: Callable[[float], None]
    ) -> None:
        self._submit, self._next_request, self._later = submit, next_request, later
        self._warm: set[Pair] = set()
        self._trying: set[Pair] = set()
        self._open: set[RequestId] = set()
        self._failed = ""  # why, the last time
        self._paused = False

    def knows_all(self, pairs: Sequence[Pair]) -> bool:
        """Whether there is nothing to look for: these pairs are warm, and no others were."""
        return self._warm == set(pairs)

    def look(self, pairs: Sequence[Pair], capacity: Capacity | None) -> None:
        """Warm pairs up that are not; one lot of requests at a time, as many as there are pairs to be reached."""
        new = set(pairs) - self._warm
        self._warm &= set(pairs)
        if not new or self._open or self._paused or capacity is None:
            return
        self._trying, self._failed = new, ""
        room = min(capacity.max_model_len, capacity.pool_tokens) - GENERATED
        # the choice is by open rooms, so as many at once as there are pairs reach every one
        lengths = [max(1, min(length, room)) for length in PROMPT_TOKENS for _ in pairs]
        requests = [self._next_request() for _ in lengths]
        self._open = set(requests)
        for request, length in zip(requests, lengths, strict=True):
            self._begin(request, length)

    def _begin(self, request: RequestId, length: int) -> None:
        try:
            self._submit(Submit(request, (TokenId(0),) * length, SAMPLING, LIMITS), self._hear)
        except Overloaded as error:
            self._hear(Fail(request, FailCode.OVERLOADED, str(error)))

    def _hear(self, heard: Heard) -> None:
        match heard:
            case Finish():
                self._open.discard(heard.request)
            case Fail():
                self._open.discard(heard.request)
                self._failed = heard.detail
                log.warning("warm_up_failed", code=heard.code.value, why=heard.detail)
            case _:
                return
        if self._open:
            return
        if self._failed:
            self._paused = True
            self._later(AGAIN_S)
        else:
            self._warm |= self._trying
            log.info("warmed_up", pairs=len(self._trying))

    def resume(self) -> None:
        """The pause after a failure is over."""
        self._paused = False

    def judge(self, pairs: Sequence[Pair]) -> Readiness:
        """Whether one of these pairs has been shown to work."""
        if self._warm & set(pairs):
            return Readiness(True, pair_count(len(pairs)))
        why = f": {self._failed}" if self._failed else ""
        return Readiness(False, f"the warm-up handoff {'failed' if why else 'is under way'}{why}")
