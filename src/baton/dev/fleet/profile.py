"""What a worker's machine can do, as figures that a simulation runs on: how long steps, reads and
messages take, and what fits in memory."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from baton.core.errors import ConfigError
from baton.core.work import Row

# state of a long prompt's last chunk, whose transfer is not overlapped; as a worker has it
LAST_CHUNK_BYTES = 32 << 20
ELEMENT_BYTES = 4  # the state of a token is a row of such elements

Time = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class StepTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a step takes: the sum of these, in microseconds.

    Attributes:
        tokens_us: what a step with so many tokens takes, of prompts and answers alike (matrix
            products), as points: counts that rise, and microseconds. Between two points, and beyond
            the last, it is a straight line. A few tokens often take as long as one, as the weights
            are read once for all of them.
        padded_to: a step with at least so many tokens computes a multiple of that many
        pair_us: for each pair of a prompt's token and a position up to it (attention)
        row_us: besides, for each answer of which the step generates a token (logits, sampling)
        context_us: for each position of that answer's context
    """

    tokens_us: tuple[tuple[Count, Time], ...]
    padded_to: Count = 1
    pair_us: Time
    row_us: Time
    context_us: Time

    def __post_init__(self) -> None:
        counts = [count for count, _ in self.tokens_us]
        if not counts or any(a >= b for a, b in pairwise(counts)):
            raise ValueError(f"tokens_us: counts {counts} must rise, and there must be one")

    def of(self, rows: Sequence[Row]) -> float:
        """Return the microseconds of a step with these rows."""
        us, tokens = 0.0, 0
        for row in rows:
            count, past = len(row.tokens), row.start + len(row.tokens)
            asked = count - row.said
            tokens += count
            us += asked * self.pair_us * (row.start + row.start + asked) / 2
            us += row.said * (self.row_us + self.context_us * (past + past - row.said + 1) / 2)
        return us + self.of_tokens(tokens)

    def of_tokens(self, tokens: int) -> float:
        """Return the microseconds of so many tokens without what their attention and the answers
        take besides."""
        counts = [count for count, _ in self.tokens_us]
        point, along = between(counts, padded(tokens, self.padded_to))
        us = self.tokens_us[point][1]
        return us + along * (self.tokens_us[point + 1][1] - us) if along else us

    def generating(self, rows: Sequence[Row], steps: int) -> float:
        """Return the microseconds of so many steps in succession, each of which generates a token
        of every row's answer."""
        return steps * self.of(rows) + self.context_us * len(rows) * steps * (steps - 1) / 2


def padded(tokens: int, step: int) -> int:
    """Return how many tokens a step computes that has so many: a multiple of `step`, unless it has
    fewer than that."""
    return tokens if tokens < step else -(-tokens // step) * step


def between(counts: Sequence[int], tokens: int) -> tuple[int, float]:
    """Return the point that so many tokens have passed, and how far they are on the way to the
    next: 0 before the first and where there is one point, more than 1 beyond the last."""
    if len(counts) == 1:
        return 0, 0.0
    point = min(max(bisect_right(counts, tokens) - 1, 0), len(counts) - 2)
    return point, max(0.0, (tokens - counts[point]) / (counts[point + 1] - counts[point]))


def in_proportion(step_us: float, token_us: float) -> tuple[tuple[int, float], ...]:
    """Return the points of steps that take so long, and so long for each token."""
    return ((1, step_us + token_us), (2, step_us + 2 * token_us))


class HostTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a machine does besides the steps. Times in microseconds.

    The core decides about the next step when it has heard of the last. The others count only where
    all workers, the gateway and the clients share one machine's cores (`FleetSettings.cores`).

    Attributes:
        turn_us: of the core, for each step
        row_us: of the core, for each answer of which the step generates a token
        request_us: processor time of gateway and client for each request, before it is computed
        reply_us: processor time of both for each token
        threads: cores that a step takes
        contention: by how much of its time a step takes longer for each other worker that computes
            on the same machine at that time
    """

    turn_us: Time = 0.0
    row_us: Time = 0.0
    request_us: Time = 0.0
    reply_us: Time = 0.0
    threads: Count = 1
    contention: Time = 0.0


class WireTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long it takes to hand state over.

    Attributes:
        bytes_per_s: what a worker sends at most, and what it receives at most
        read_us: microseconds of a read beyond those of its bytes
        message_us: microseconds from one process to another, of any message
    """

    bytes_per_s: Annotated[float, msgspec.Meta(gt=0)]
    read_us: Time
    message_us: Time


class GroupMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker has for state that is not of all positions: windows, or recurrent state.

    Attributes:
        name: of the group
        window: so many positions are kept, in pages like those of all positions; None = recurrent
            state, a slot for each request
        count: pages, or slots
        nbytes: of one position, or of one slot; a multiple of 4
    """

    name: str
    window: Count | None
    count: Count
    nbytes: int

    def __post_init__(self) -> None:
        _require_elements(f"nbytes of {self.name}", self.nbytes)


class WorkerMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker's pool holds.

    Attributes:
        page_tokens: positions of a page
        pages: pages of the pool
        token_bytes: bytes of one position's state, a multiple of 4
        others: what there is besides, each with a pool of its own
    """

    page_tokens: int
    pages: int
    token_bytes: int
    others: tuple[GroupMemory, ...] = ()

    def __post_init__(self) -> None:
        for name in ("page_tokens", "pages"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} {value}: it must be at least 1")
        _require_elements("token_bytes", self.token_bytes)

    @property
    def windows(self) -> tuple[GroupMemory, ...]:
        """Those of the others that are windows."""
        return tuple(other for other in self.others if other.window is not None)


def _require_elements(name: str, nbytes: int) -> None:
    """Raise ValueError if a state cannot have so many bytes."""
    if nbytes < ELEMENT_BYTES:
        raise ValueError(f"{name} {nbytes}: it must be at least {ELEMENT_BYTES}")
    if nbytes % ELEMENT_BYTES:
        raise ValueError(f"{name} {nbytes}: give a multiple of {ELEMENT_BYTES}")


class StepLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator sets for a worker.

    Attributes:
        step_tokens: tokens of one step (`--max-num-batched-tokens`)
        max_rooms: requests that run at once (`--max-num-seqs`)
    """

    step_tokens: Count
    max_rooms: Count


class DraftGain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What drafts gain and cost (`--speculative-config`), as the operator has measured it.

    Attributes:
        accepted_per_step: drafted tokens of an answer that a step accepts, on average
        step_cost: the time of a step with drafts, as a multiple of one without
    """

    accepted_per_step: Time
    step_cost: Annotated[float, msgspec.Meta(ge=1)]

    @property
    def factor(self) -> float:
        """The time for each token, as a multiple of that without drafts."""
        return self.step_cost / (1 + self.accepted_per_step)


class FitQuality(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How well the times of a profile describe what was measured.

    Attributes:
        measured: how many different steps or reads
        median_error: median of |fitted - measured| / measured
        worst_error: the largest of these
    """

    measured: int
    median_error: float
    worst_error: float


class MachineProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker.

    Attributes:
        drafts: None if nothing is drafted
        fit: how well the times describe what was measured, by what that was; None for figures that
            were not measured
    """

    name: str
    steps: StepTimes
    wire: WireTimes
    memory: WorkerMemory
    limits: StepLimits
    host: HostTimes = HostTimes()
    drafts: DraftGain | None = None
    fit: dict[str, FitQuality] | None = None

    @property
    def step_times(self) -> StepTimes:
        """From the beginning of a step to the beginning of the next: the step, and the host's turn
        between the two."""
        return msgspec.structs.replace(
            self.steps,
            tokens_us=tuple((n, us + self.host.turn_us) for n, us in self.steps.tokens_us),
            row_us=self.steps.row_us + self.host.row_us,
        )

    @property
    def last_chunk_tokens(self) -> int:
        """The tokens of a long prompt's last chunk."""
        memory = self.memory
        each = memory.token_bytes + sum(window.nbytes for window in memory.windows)
        return max(memory.page_tokens, LAST_CHUNK_BYTES // each)


def read_profile(path: Path) -> MachineProfile:
    """Return the profile that a file holds as JSON.

    Raises:
        ConfigError: the file cannot be read, or is no profile
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=MachineProfile)
    except OSError as error:
        raise ConfigError(f"--profile {path}: {error.strerror or error}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"--profile {path}: {error}; 'baton plan measure --out FILE' writes one"
        ) from error


def write_profile(profile: MachineProfile, path: Path) -> None:
    """Write a profile as JSON.

    Raises:
        ConfigError: the file cannot be written
    """
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(profile)) + b"\n")
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror or error}") from error
