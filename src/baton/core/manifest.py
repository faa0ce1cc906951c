"""What a worker publishes about itself, and how two workers are compared."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from baton.core.errors import Mismatch
from baton.core.ids import Boot, GroupName
from baton.core.memory.kinds import HOST, HostRam, MemoryKind
from baton.core.memory.state import Placement, StateTable, Strides, Unit
from baton.core.protocol import OLDEST


class PoolView(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pool of one group on one rank: what a reader may address, and in what memory it lies."""

    group: GroupName
    pages: int
    nbytes: int
    memory: MemoryKind = HOST


class RankManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker publishes about one rank.

    Attributes:
        exposures: by fabric, what its adapter needs to reach the pools (opaque bytes), in order of
            preference
        near: for fabrics that only reach ranks in one place, such as a host: by fabric, the place
        strides: where the state lies in pools that another engine has laid out; empty = in our own
            layout
        device_fabrics: the fabrics that also reach memory of a device, our own and that of peers
    """

    boot: Boot
    rank: int
    tp_rank: int
    pp_rank: int
    pools: tuple[PoolView, ...]
    exposures: dict[str, bytes]
    near: dict[str, str] = {}
    strides: tuple[Strides, ...] = ()
    device_fabrics: tuple[str, ...] = ()


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one worker publishes. Its boot is that of its leader (`ranks[0].boot`)."""

    protocol: int
    role: str
    model: str
    weights: str  # identity: hex digest over the checkpoint's tensors and the served dtype
    dtype: str
    table: StateTable
    page_blocks: int
    tp: int
    pp: int
    max_model_len: int
    seal: bool
    ranks: tuple[RankManifest, ...]
    # whether another engine gives out the pages and computes (vLLM with our connector)
    guest: bool = False

    @property
    def boot(self) -> Boot:
        """The worker's boot."""
        return self.ranks[0].boot

    def blocks_per_page(self, group: GroupName) -> int:
        """Return the blocks in a page of the group: k for groups of pages, 1 for a slot."""
        return self.page_blocks if self.table.group(group).unit is Unit.PAGE else 1

    def placement(self, rank: int) -> Placement:
        """Return where a rank's part of the state lies."""
        r = self.ranks[rank]
        return Placement(
            self.table, self.tp, self.pp, r.tp_rank, r.pp_rank, self.page_blocks, r.strides
        )


SAME_VERSION = "run the same version on both"
# fields are compared in this order, as weights differ too where the dtype does
MUST_AGREE: Mapping[str, str] = MappingProxyType(
    {
        "guest": "hand over from vLLM to vLLM, or between workers of our own",
        "model": "give both the same --served-model-name",
        "dtype": "start both with the same --dtype",
        "weights": "start both from the same checkpoint and with the same --max-model-len; a "
        "GGUF file, or another copy that was "
        "converted, holds other weights",
        "table": "start both from the same checkpoint, and either both or none with "
        "--speculative-config of method mtp; engines of vLLM also with the same version, "
        "--quantization, --kv-cache-dtype and --hf-overrides",
        "seal": "start both with the same --seal",
    }
)


def require_fit(ours: Manifest, theirs: Manifest) -> None:
    """Compare, field by field, what two workers must have in common. A peer that speaks a newer
    protocol than ours states ours, as in everything that it says to us.

    Raises:
        Mismatch: names the first differing field, both values and the remedy
    """
    if not OLDEST <= theirs.protocol <= ours.protocol:
        raise Mismatch("protocol", ours.protocol, theirs.protocol, SAME_VERSION)
    for field, remedy in MUST_AGREE.items():
        a, b = getattr(ours, field), getattr(theirs, field)
        if field == "table":
            _require_same_table(a, b, remedy)
        elif a != b:
            raise Mismatch(field, a, b, remedy)


def choose_fabric(ours: Manifest, theirs: Manifest) -> str:
    """Return the fabric by which every rank of ours reads from every rank of theirs.

    Candidates are the fabrics that all ranks have and that reach all of them: the ranks are in one
    place, or the fabric reaches everywhere; and if any pool lies on a device, the fabric reaches
    devices from every rank. A fabric that stays in its place is preferred (memory that is read
    through a mapping is never slower than through a transfer engine), then the order of our
    exposures decides.

    Raises:
        Mismatch: no common fabric reaches all ranks
    """
    ranks = [*ours.ranks, *theirs.ranks]
    common = [
        name for name in ours.ranks[0].exposures if all(name in rank.exposures for rank in ranks)
    ]
    places = {name: {rank.near.get(name, "") for rank in ranks} for name in common}
    device = _on_device(ranks)
    able = [name for name in common if not device or all(name in r.device_fabrics for r in ranks)]
    reach = [name for name in able if len(places[name]) == 1]
    if not reach:
        own, other = (
            sorted(set.intersection(*(set(r.exposures) for r in m.ranks))) for m in (ours, theirs)
        )
        raise Mismatch("fabric", own, other, _why_none(common, able, device))
    return min(reach, key=lambda name: places[name] == {""})


def _on_device(ranks: Sequence[RankManifest]) -> str:
    """Name the first memory of a device in which a pool of these ranks lies; "" = there is none."""
    kinds = (view.memory for rank in ranks for view in rank.pools)
    return next((str(kind) for kind in kinds if not isinstance(kind, HostRam)), "")


def _why_none(common: Sequence[str], able: Sequence[str], device: str) -> str:
    if not common:
        return "give both one --fabric that they have in common"
    if not able:
        return (
            f"pools lie in {device}, and {', '.join(common)} cannot reach a device from both: "
            "give both one --fabric that can, such as nixl"
        )
    return f"{', '.join(able)} only within one host"


def _require_same_table(ours: StateTable, theirs: StateTable, remedy: str) -> None:
    ours, theirs = ours.layout, theirs.layout
    for field in ("num_layers", "block_tokens", "groups", "specs"):
        a, b = getattr(ours, field), getattr(theirs, field)
        if a != b:
            raise Mismatch(
                f"table.{field}",
                a,
                b,
                SAME_VERSION if field == "block_tokens" else remedy,
            )
