"""The gateway's view of one request, and the bounds that hold for all."""

import msgspec

from baton.core.door import Heard, Submit
from baton.core.gateway.prompt_pages import PromptPages
from baton.core.gateway.request_state import REQUEST, WITH_WORKERS, RequestSaw, RequestState
from baton.core.ids import Arrival, Boot, Epoch, Key, Micros, Room, Stamp, TokenId
from baton.core.messages import FirstToken, Ticket
from baton.core.prompt_scores import PromptScores

UNIFIED, PREFILL, DECODE = "unified", "prefill", "decode"


class FrontSettings(msgspec.Struct, frozen=True):
    """States the bounds of a gateway's request table."""

    max_requests: int = 4096  # open at once
    max_queued: int = 1024  # of them waiting at the edge (`--max-queued-requests`)
    # most that a request waits for memory to generate in (`--queue-timeout`)
    queue_ms: int = 30_000
    # attempts after failures; giving way to others (Recompute, Withdrawn) is not counted
    max_epochs: int = 3
    wait_for_workers_ms: int = 30_000  # most that a request waits of whose answer nothing is said
    # an answer whose workers are lost waits for others until its deadline; if not, it ends
    failover_waits: bool = True
    grace_ms: int = 2_000  # beyond a ticket's deadline, before the gateway ends it by itself
    introduce_again_ms: int = 1_000
    routing_policy: str = "priced"  # one of routing_policy.POLICIES (`--routing-policy`)
    local_prefill: bool = False  # whether decode workers may compute prompts (`--local-prefill`)


class Say(msgspec.Struct, frozen=True, tag="say", gc=False):
    """Tells the HTTP side something."""

    heard: Heard


class Request:
    """A client's request over all its epochs."""

    __slots__ = (
        *(
            "admit_by",
            "acquitted",
            "alone_until",
            "arrival",
            "came",
            "deadline",
            "epoch",
            "failures",
            "first",
            "given",
            "key",
            "pair",
            "patience_ms",
            "room",
        ),
        *("said", "scores", "since", "stamp", "state", "submit", "_pages"),
    )

    def __init__(
        self, submit: Submit, room: Room, arrival: Arrival, now: Micros, *, settings: FrontSettings
    ) -> None:
        self.submit, self.room, self.arrival = submit, room, arrival
        self.stamp: Stamp | None = None  # once its first epoch begins
        self.state = RequestState.WAITING
        self.came = self.since = now  # since: it has waited
        self.deadline = Micros(now + submit.limits.deadline_ms * 1000)
        self.patience_ms = patience_ms(submit, settings)
        self.admit_by = Micros(now + self.patience_ms * 1000)
        self.epoch = Epoch(0)
        self.key = Key(room, self.epoch)  # looked at with every message
        self.failures = 0
        self.alone_until = 0  # see Ticket
        # an epoch of it ended while a worker computed another request alone; that excuses it once
        self.acquitted = False
        self.said: list[TokenId] = []
        self.pair: tuple[Boot, Boot] | None = None  # while two workers have it
        self.given: Ticket | None = None  # the last that workers were given
        self.first: FirstToken | None = None  # of this epoch, and held back until Admitted
        self.scores: PromptScores | None = None  # of this epoch, until the first token is shown
        self._pages: PromptPages | None = None

    def pages(self) -> PromptPages:
        """Return the pages of what is to be computed before its next token."""
        tokens = len(self.submit.prompt) + len(self.said)
        if self._pages is None or self._pages.tokens != tokens:
            self._pages = PromptPages((*self.submit.prompt, *self.said), self.submit.cache_salt)
        return self._pages

    def ticket(self, gateway: Boot, pair: tuple[Boot, Boot], now: Micros) -> Ticket:
        """Return the current epoch's ticket for a (prefill, decode) pair: it goes on after what was
        said, in the time that is left."""
        left_ms = max(1, (self.deadline - now) // 1000)
        assert self.stamp is not None, "an epoch has begun"
        return Ticket(
            key=self.key,
            stamp=self.stamp,
            gateway=gateway,
            prefill=pair[0],
            decode=pair[1],
            prompt=self.submit.prompt,
            said=tuple(self.said),
            sampling=self.submit.sampling,
            limits=msgspec.structs.replace(self.submit.limits, deadline_ms=left_ms),
            priority=self.submit.priority,
            cache_salt=self.submit.cache_salt,
            admit_ms=left_ms if self.said else max(1, (self.admit_by - now) // 1000),
            alone_until=self.alone_until,
            grammar=self.submit.grammar,
        )

    def see(self, saw: RequestSaw) -> None:
        """Move the request along the table. A pair that the table lacks is our bug."""
        self.state = REQUEST[self.state, saw]

    @property
    def with_workers(self) -> bool:
        """Whether two workers have its current epoch."""
        return self.state in WITH_WORKERS

    @property
    def admitted(self) -> bool:
        """Whether decode holds memory for it."""
        return self.state is RequestState.ADMITTED or self.state is RequestState.STREAMING

    @property
    def suspect(self) -> bool:
        """Whether its next token is computed in a step of its own."""
        return len(self.said) < self.alone_until

    def due(self, settings: FrontSettings, pairless: Micros | None) -> Micros:
        """Return when the gateway ends the request by itself. pairless: since when there is no pair
        of workers"""
        due = self.deadline if self.admitted or self.said else min(self.deadline, self.admit_by)
        if self.with_workers:
            # its workers know of it, and say so first
            return Micros(due + settings.grace_ms * 1000)
        return due if pairless is None else min(due, self.gives_up(settings, pairless))

    def gives_up(self, settings: FrontSettings, pairless: Micros) -> Micros:
        """Return until when the request waits for a pair of workers."""
        if self.said:
            return self.deadline
        return Micros(max(pairless, self.since) + settings.wait_for_workers_ms * 1000)

    def waits(self, saw: RequestSaw, now: Micros) -> None:
        """The request has no workers, and begins to wait for some. If it was admitted, it has its
        whole patience again."""
        if self.admitted:
            self.admit_by = Micros(now + self.patience_ms * 1000)
        self.see(saw)
        self.since, self.pair = now, None

    def begin(self, pair: tuple[Boot, Boot]) -> None:
        """The next epoch begins on these two."""
        self.see(RequestSaw.BEGINS)
        self.epoch = Epoch(self.epoch + 1)
        self.key = Key(self.room, self.epoch)
        self.pair, self.first, self.scores = pair, None, None


def patience_ms(submit: Submit, settings: FrontSettings) -> int:
    """Return how long a request waits for memory: half of its own time at most, so that the other
    half is left to serve it in."""
    return min(settings.queue_ms, max(1, submit.limits.deadline_ms // 2))
