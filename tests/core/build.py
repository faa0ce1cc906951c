"""Small manifests, tickets and settings for tests of the core."""

from typing import Any

from baton.core.door import RequestId, Submit
from baton.core.ids import Boot, Epoch, GroupName, Key, Room, Stamp, TokenId
from baton.core.manifest import Manifest, PoolView, RankManifest
from baton.core.memory.state import DType, Full, Group, StateSpec, StateTable, Unit
from baton.core.messages import Drawn, Limits, Sampling, Ticket
from baton.core.protocol import PROTOCOL
from baton.core.scheduler.room import LeaderSettings

KV = GroupName("full")
B = 4
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=1, logprobs=None)


def table(layers: int = 2, heads: int = 2) -> StateTable:
    """K and V of `layers` layers, blocks of 4 tokens."""
    spec = StateSpec("kv", KV, tuple(range(layers)), ("k", "v"), heads, 4, DType.F32)
    return StateTable(layers, B, (Group(KV, Unit.PAGE, Full()),), (spec,))


def manifest(
    role: str, boot: int, *, pages: int = 16, page_blocks: int = 1, weights: str = "ab" * 16
) -> Manifest:
    """A worker of one rank."""
    rank = RankManifest(
        Boot(boot), 0, 0, 0, (PoolView(KV, pages, pages * page_blocks * 256 * B),), {"shm": b""}
    )
    return Manifest(
        PROTOCOL, role, "tiny", weights, "float32", table(), page_blocks, 1, 1, 4096, True, (rank,)
    )


def settings(name: str = "w", **changes: float) -> LeaderSettings:
    """Roomy limits; `changes` override single ones."""
    fields: dict[str, Any] = {
        "step_tokens": 64,
        "last_chunk_tokens": 64,
        "max_rooms": 8,
        "max_queue": 64,
        "stall_ms": 5_000,
        "fetch_ms": 1_000,
    } | changes
    return LeaderSettings(name=name, address=f"inproc://{name}", pids=(1,), **fields)


def limits(max_tokens: int = 4, deadline_ms: int = 60_000, eos: tuple[int, ...] = ()) -> Limits:
    """When generation ends."""
    return Limits(max_tokens, (), tuple(TokenId(t) for t in eos), deadline_ms)


def submit(number: int = 1, prompt: tuple[int, ...] = (1, 2, 3, 4, 5), **changes: int) -> Submit:
    """A request."""
    return Submit(RequestId(number), tuple(TokenId(t) for t in prompt), GREEDY, limits(**changes))


def key(number: int = 1, epoch: int = 1) -> Key:
    """A room's epoch."""
    return Key(Room(f"{number:032x}"), Epoch(epoch))


def drawn(token: int) -> Drawn:
    """A token without logprobs."""
    return Drawn(TokenId(token), None, ())


def ticket(
    number: int = 1,
    *,
    epoch: int = 1,
    gateway: int = 1,
    prefill: int = 2,
    decode: int = 3,
    length: int = 5,
    **changes: int,
) -> Ticket:
    """A ticket whose prompt is 1, 2, ... length."""
    prompt = tuple(TokenId(t) for t in range(1, length + 1))
    return Ticket(
        key(number, epoch),
        Stamp(number),
        Boot(gateway),
        Boot(prefill),
        Boot(decode),
        prompt,
        (),
        GREEDY,
        limits(**changes),
    )
