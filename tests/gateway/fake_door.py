"""A Door that says what a script tells it, and remembers what it was asked."""

from collections.abc import Sequence

import msgspec

from baton.core.door import Cancel, Emit, Fail, Finish, FrontView, RequestId, Submit
from baton.core.errors import Overloaded
from baton.core.ids import Epoch, Key, Room, TokenId, TokenIndex
from baton.core.messages import Drawn, FailCode, FinishReason, LedgerView
from baton.core.prompt_scores import PromptScores, TokenScore, pack_scores
from baton.gateway.door import Capacity, Hear, LedgerReport, Readiness
from baton.gateway.scaling import WorkerLoad


def drawn(token: int, *, logprobs: int | None = None) -> Drawn:
    if logprobs is None:
        return Drawn(TokenId(token), None, ())
    top = tuple((TokenId((token + i) % 256), -0.5 - i) for i in range(logprobs))
    return Drawn(TokenId(token), -0.5, top)


def prompt_scores(submit: Submit) -> PromptScores | None:
    """Token t has logprob -t / 8 and rank t; likelier by far are those with the next ids."""
    top = submit.sampling.prompt_logprobs
    if top is None:
        return None
    each = [
        TokenScore(-t / 8, t, tuple((TokenId(t + 1 + i), -0.5 - i) for i in range(top)))
        for t in submit.prompt[1:]
    ]
    return pack_scores(top, each)


class FakeDoor:
    def __init__(self) -> None:
        self.submitted: list[Submit] = []
        self.cancelled: list[Cancel] = []
        self.hearers: dict[RequestId, Hear] = {}
        self.said: dict[RequestId, int] = {}
        self.room: int | None = None  # requests taken before Overloaded
        self.limits: Capacity | None = Capacity(max_model_len=128, pool_tokens=1024)
        self.readiness = Readiness(True, "1 pair")
        self.report = LedgerReport((), (), 0)
        self.stated: list[WorkerLoad] = []  # what workers say of their capacity
        # answers to `clear`, the last one for ever
        self.clears, self.cleared = 0, [LedgerReport((), (), 0)]
        self.resets = 0
        self.views, self.seen, self.pairs = 0, {}, []  # what watchers see of requests and pairs
        self.cached: list[int] = []  # of the prompts of the next requests, in tokens
        self.script: list[object] = []  # played inside submit, for every request
        self.epoch = Epoch(1)  # of all open requests
        self._requests = 0
        self._seeds = 1000

    def submit(self, submit: Submit, hear: Hear) -> None:
        if self.room is not None and len(self.submitted) >= self.room:
            raise Overloaded("2 of 2 places taken", retry_after_s=7)
        self.submitted.append(submit)
        self.hearers[submit.request] = hear
        for step in self.script:
            self.play(submit.request, step)

    def play(self, request: RequestId, step: object) -> None:
        match step:
            case list():
                self.say(request, step)
            case FinishReason():
                self.finish(request, step)
            case FailCode():
                self.fail(request, step)
            case _:
                raise AssertionError(step)

    def say(self, request: RequestId, tokens: Sequence[int]) -> None:
        """Tokens for a request; ignored after its end, as the real one does."""
        if request not in self.hearers:
            return
        submit = next(s for s in self.submitted if s.request == request)
        logprobs = submit.sampling.logprobs
        start = self.said.get(request, 0)
        self.said[request] = start + len(tokens)
        cached = self.cached.pop(0) if self.cached and not start else 0
        self.hearers[request](
            Emit(
                request,
                TokenIndex(start),
                tuple(drawn(t, logprobs=logprobs) for t in tokens),
                cached,
                None if start else prompt_scores(submit),
            )
        )

    def finish(
        self,
        request: RequestId,
        reason: FinishReason = FinishReason.STOP,
        *,
        key: Key | None = None,
    ) -> None:
        if request in self.hearers:
            self.hearers.pop(request)(Finish(request, reason, key))

    def fail(self, request: RequestId, code: FailCode, detail: str = "as told") -> None:
        if request in self.hearers:
            self.hearers.pop(request)(Fail(request, code, detail))

    def cancel(self, cancel: Cancel) -> None:
        assert cancel.request in self.hearers, f"cancelled twice or after its end: {cancel}"
        del self.hearers[cancel.request]
        self.cancelled.append(cancel)

    def key_of(self, request: RequestId) -> Key | None:
        return Key(Room(f"{request:032x}"), self.epoch) if request in self.hearers else None

    def next_request(self) -> RequestId:
        self._requests += 1
        return RequestId(self._requests)

    def next_seed(self) -> int:
        self._seeds += 1
        return self._seeds

    def ready(self) -> Readiness:
        return self.readiness

    def capacity(self) -> Capacity | None:
        return self.limits

    async def drain(self, worker: str, role: str | None) -> LedgerReport:
        self.drained = (worker, role)
        return await self.reset_cache(worker)

    async def reset_cache(self, worker: str | None) -> LedgerReport:
        self.resets += 1
        views = tuple(view for view in self.report.workers if worker in (None, view.name))
        return msgspec.structs.replace(self.report, workers=views)

    async def clear(self):
        self.clears += 1
        return self.cleared.pop(0) if len(self.cleared) > 1 else self.cleared[0]

    def own_report(self) -> LedgerReport:
        return msgspec.structs.replace(self.report, workers=(), missing=())

    def loads(self):
        return self.stated, 0

    def view(self, requests, *, most_pairs: int) -> FrontView:
        self.views += 1
        views = {id: self.seen[id] for id in requests if id in self.seen}
        shown = self.pairs[:most_pairs]
        return FrontView(views, tuple(shown), len(self.pairs) - len(shown))

    async def ledger(self, *, audit=True) -> LedgerReport:
        return self.report


def view(name: str, *, clean: bool) -> LedgerView:
    from baton.core.messages import RankView, RoomView

    return LedgerView(
        question=1,
        name=name,
        role="decode",
        ranks=(RankView(0, 4242, (1 << 64) - 1),),
        pages={"full": {"free": 10, "cached": 2}},
        pins=0 if clean else 3,
        reads=0,
        rooms=() if clean else (RoomView("ab" * 16, 1, "running", 12, {"full": 1}),),
        clean=clean,
    )
