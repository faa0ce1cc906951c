"""The orders and answers of the two processes of `baton bench transfer`."""

import msgspec

from baton.core.manifest import RankManifest
from baton.dev.bench.transfer.layout import Case, Layout, Pages


class Sources(msgspec.Struct, frozen=True):
    """The source process is ready. `port` is that of a plain socket; 0 if there is none."""

    manifests: tuple[RankManifest, ...]
    pid: int
    port: int


class Sealed(msgspec.Struct, frozen=True):
    """The sums of the source's blocks in one case, block after block, by leg; and the rate of
    hashing them."""

    sums: dict[int, tuple[int, ...]]
    gb_per_s: float


class Slices(msgspec.Struct, frozen=True):
    """The same state cut by token, layer and part, as a layout with tokens before heads needs it.

    Attributes:
        descriptors: how many all legs need
        range_bytes: the size of each
        measured: how many of them were read, from one source rank
        gb_per_s: the rate of those, best round
    """

    descriptors: int
    range_bytes: int
    measured: int
    gb_per_s: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one handoff. Rates are in 1e9 bytes per second, of the best round unless said
    otherwise; times are in seconds.

    Attributes:
        legs: reads from one source rank into one target rank
        bytes: the size of the state, all legs together
        descriptors_before_coalescing: one byte range for each block, head and layer, before
            neighbours are merged
        descriptors: byte ranges that were read
        gb_per_s: all legs, from the first submit to the last end
        median_gb_per_s: the same, median round
        single_range_gb_per_s: as many bytes as one range, between the two ranks 0, same fabric,
            rounds interleaved
        ratio: the quotient of the two best rounds
        memcpy_gb_per_s: as many bytes (at most 256 MiB) by memcpy inside the reading process, one
            thread
        socket_gb_per_s: over a plain socket between the two processes, if the fabric uses the
            network
        seal_gb_per_s, verify_gb_per_s: hashing in the source and in the reading process, one thread
        bind_us: making the ranges of all legs
        cpu_s, source_cpu_s: CPU time of the reading and of the source process for one handoff, mean
            of all rounds
        single_range_cpu_s: CPU time of the reading process for the one range. Where engines copy
            inside the reading process, its ratio to `cpu_s` is what `ratio` would be on an idle
            machine
    """

    fabric: str
    prefill_tp: int
    prefill_pp: int
    decode_tp: int
    decode_pp: int
    prefill_page_size: int
    decode_page_size: int
    context_len: int
    pages: Pages
    legs: int
    bytes: int
    descriptors_before_coalescing: int
    descriptors: int
    gb_per_s: float
    median_gb_per_s: float
    single_range_gb_per_s: float
    ratio: float
    memcpy_gb_per_s: float
    socket_gb_per_s: float | None
    seal_gb_per_s: float
    verify_gb_per_s: float
    bind_us: float
    cpu_s: float
    source_cpu_s: float
    single_range_cpu_s: float
    token_slices: Slices


class MeasureOrder(msgspec.Struct, frozen=True):
    """Tells the reader to measure a case. The sums are what must have arrived."""

    case: Case
    sealed: Sealed


class ProcessFailure(msgspec.Struct, frozen=True):
    """Why a process ends. `setting`: whether the operator can change it"""

    why: str
    setting: bool = False


def widths(layout: Layout) -> str:
    """Return both layouts for people: `tp1 -> tp4`."""
    return f"{layout.prefill} -> {layout.decode}"
