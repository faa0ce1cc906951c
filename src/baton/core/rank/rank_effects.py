"""What a rank asks of its host: most effects are answered by one event (core/events.py)."""

import msgspec

from baton.core.agreement import Report
from baton.core.ids import GroupName, Key, RankId, StoreKey
from baton.core.manifest import RankManifest
from baton.core.messages import Grammar
from baton.core.work import Batch, Copies, DigestOrder, Handle, HostCopy


class Connect(msgspec.Struct, frozen=True, tag="connect"):
    """Reach a source rank over the named fabric; answered by Connected."""

    peer: RankId
    manifest: RankManifest
    fabric: str


class Disconnect(msgspec.Struct, frozen=True, tag="disconnect"):
    """Forget a source rank."""

    peer: RankId


class Read(msgspec.Struct, frozen=True, tag="read"):
    """Start a read for a room; answered by Ended."""

    key: Key
    handle: Handle
    peer: RankId
    fabric: str
    copies: tuple[Copies, ...]
    nbytes: int  # of all of them
    deadline_ms: int


class CancelRead(msgspec.Struct, frozen=True, tag="cancel_read"):
    """End a read early."""

    handle: Handle


class Compute(msgspec.Struct, frozen=True, tag="compute"):
    """Run a batch; answered by BatchDone."""

    batch: Batch


class ConstrainDraws(msgspec.Struct, frozen=True, tag="constrain_draws"):
    """From now on, tokens of this room are drawn by the grammar; answered by GrammarReady."""

    key: Key
    grammar: Grammar


class ReleaseDraws(msgspec.Struct, frozen=True, tag="release_draws"):
    """No token of this room will be drawn any more: forget its grammar."""

    key: Key


class Digest(msgspec.Struct, frozen=True, tag="digest"):
    """Hash blocks of ours; answered by DigestDone."""

    order: DigestOrder
    passing: bool = (
        # of cached pages, which may be given to a room meanwhile; else they stay as they are until
        # it has ended
        False
    )


class ClearPools(msgspec.Struct, frozen=True, tag="clear_pools"):
    """Zero these groups' pools before anything that is ordered later; nothing of ours touches them
    now."""

    groups: tuple[GroupName, ...]


class Save(msgspec.Struct, frozen=True, tag="save"):
    """Copy blocks of ours into the host store; answered by Copied."""

    copy: HostCopy


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Copy what was saved under its key back into blocks of ours; answered by Copied."""

    copy: HostCopy


class Discard(msgspec.Struct, frozen=True, tag="discard"):
    """Forget what was saved under a key; no copy of it is under way."""

    key: StoreKey


# A Report is for the leader.
RankEffect = (
    ClearPools
    | Connect
    | Disconnect
    | Read
    | CancelRead
    | Compute
    | ConstrainDraws
    | ReleaseDraws
    | Digest
    | Save
    | Load
    | Discard
    | Report
)
