"""A request in a simulated vLLM, and what its scheduler decides for one step, in the shape in which
vLLM gives both to a connector."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from baton.core.ids import Key, TokenId
from baton.core.messages import Ticket
from baton.dev.sim import content


class Status(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    LOADING = "waiting for remote kvs"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class VllmRequest:
    """One request.

    Attributes:
        stamps: what the positions that are there must hold (content.py)
        most: tokens that it may generate
    """

    def __init__(self, request_id: str, ticket: Ticket, *, most: int) -> None:
        self.request_id, self.ticket, self.most = request_id, ticket, most
        self.key: Key = ticket.key
        self.kv_transfer_params = {"room": ticket.key.room, "epoch": ticket.key.epoch}
        self.prompt = (*ticket.prompt, *ticket.said)
        self.output_token_ids: list[TokenId] = []
        self.status = Status.WAITING
        self.computed, self.preemptions = 0, 0
        self.blocks: list[int] = []
        self.known = 0  # blocks whose content is in the prefix cache, or was
        self.stamps: list[int] = []

    @property
    def num_tokens(self) -> int:
        """The tokens of the prompt and of the answer so far."""
        return len(self.prompt) + len(self.output_token_ids)

    @property
    def tokens(self) -> tuple[int, ...]:
        """These tokens."""
        return (*self.prompt, *self.output_token_ids)

    def draw(self) -> TokenId:
        """Return the token after all that is there."""
        history = content.histories(self.tokens)[-1]
        index = len(self.ticket.said) + len(self.output_token_ids)
        return content.next_token(history, self.ticket.sampling, index)  # type: ignore[arg-type]

    def add(self, token: TokenId) -> str | None:
        """Add a token to the answer. Returns why the answer ends; None if it goes on."""
        self.output_token_ids.append(token)
        limits = self.ticket.limits
        if token in (*limits.eos_token_ids, *limits.stop_token_ids):
            return "stop"
        return "length" if len(self.output_token_ids) >= self.most else None


@dataclass(frozen=True)
class Named:
    """vLLM's NewRequestData."""

    req_id: str
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int


@dataclass
class GoingOn:
    """vLLM's CachedRequestData."""

    req_ids: list[str] = field(default_factory=list)
    new_block_ids: list[tuple[list[int], ...] | None] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)


@dataclass
class SchedulerOutput:
    """vLLM's SchedulerOutput: what a step computes. `parts` is ours: what the ranks must do."""

    scheduled_new_reqs: list[Named] = field(default_factory=list)
    scheduled_cached_reqs: GoingOn = field(default_factory=GoingOn)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    preempted_req_ids: set[str] = field(default_factory=set)
    parts: list["ComputedPart"] = field(default_factory=list)


@dataclass(frozen=True)
class ComputedPart:
    """What a step computes of one request: positions [start, end) of blocks that hold `stamps`."""

    request: Any
    start: int
    end: int
    blocks: tuple[int, ...]
    stamps: tuple[int, ...]
