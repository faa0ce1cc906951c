"""The roles of a worker. Each is a set of stages.

prefill    compute, offer             a prompt's state is handed over to a decode worker
decode     fetch, compute, generate   the state comes from a prefill worker; or the prompt is computed
                                      here, where its ticket says so
unified    compute, generate          the state stays where it is: the colocated baseline

A guest (guest.py) does its part of a handoff for another engine, which gives out the pages and
computes.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from baton.core.errors import ConfigError
from baton.core.handoff.early import EarlyOffers
from baton.core.handoff.fetch_back import FetchBack
from baton.core.handoff.pairing import Partners
from baton.core.ids import Micros
from baton.core.manifest import Manifest
from baton.core.memory.chunks import ChunkRule
from baton.core.messages import Ticket
from baton.core.scheduler.admission import AdmissionPolicy
from baton.core.scheduler.ahead import AheadOfDecode
from baton.core.scheduler.borrowing import Borrowing
from baton.core.scheduler.borrowing_checkpoints import AskingFirst, BorrowingCheckpoints
from baton.core.scheduler.checkpointing import Checkpointing
from baton.core.scheduler.computing import Computing
from baton.core.scheduler.constraining import Constraining
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.fetching import Fetching
from baton.core.scheduler.generating import Generating
from baton.core.scheduler.guest import AdmittedElsewhere
from baton.core.scheduler.guest_decode import GuestLoading
from baton.core.scheduler.guest_prefill import GuestComputing, GuestPrefillRoom
from baton.core.scheduler.lending import Lending
from baton.core.scheduler.offering import Offering
from baton.core.scheduler.pairs import Pairing
from baton.core.scheduler.preemption import Preemption
from baton.core.scheduler.prefill_room import PrefillRoom
from baton.core.scheduler.room import OpenRoom, RoomState
from baton.core.scheduler.stage import Stage
from baton.core.scheduler.tables import DECODE, GUEST_DECODE, GUEST_PREFILL, PREFILL, UNIFIED
from baton.core.scheduler.verifying import Verification
from baton.core.scheduler.worker import RoleRules, Worker

# the admission policy, which is one of the stages, and all stages
Stages = tuple[AdmissionPolicy[Any], Sequence[Stage[Any]]]


class RoleParts(msgspec.Struct, frozen=True):
    """The parts of a worker of one role."""

    rules: RoleRules
    room: Callable[[Ticket, Micros], OpenRoom]
    stages: Callable[[Worker[Any]], Stages]


def prefill(worker: Worker[PrefillRoom]) -> Stages:
    """Compute prompts and offer their blocks."""
    _use_checkpoints(worker)
    rule = ChunkRule(worker.settings.step_tokens, worker.settings.last_chunk_tokens)
    offering, checkpointing = Offering(worker), Checkpointing(worker)
    ahead = AheadOfDecode(worker, offering)
    stages = (
        *(checkpointing, Constraining(worker)),
        *(Computing(worker, checkpointing, rule=rule, then=offering.computed), offering),
    )
    if worker.reuse.keeps:
        borrowing = BorrowingCheckpoints(worker, offering)
        return ahead, (ahead, AskingFirst(worker, borrowing), *stages, borrowing)
    return ahead, (ahead, *stages, Borrowing(worker, offering))


def _use_checkpoints(worker: Worker[Any]) -> None:
    """Let prompts begin with checkpoints, where they cannot with cached pages alone and there is
    memory for them; on decode, let prefill have those of answers."""
    manifest, settings = worker.manifest, worker.settings
    # state that comes back unverified must not spread
    worker.reuse.keeps = (
        settings.prefix_cache
        and manifest.seal
        and settings.host_bytes > 0
        and bool(manifest.table.lasting)
        and not manifest.table.cacheable
    )
    worker.reuse.on |= worker.reuse.keeps


def decode(worker: Worker[DecodeRoom]) -> Stages:
    """Fetch the state of prompts, or compute it, and generate tokens."""
    # state that was fetched unverified must not spread
    manifest = worker.manifest
    worker.reuse.on = (
        worker.settings.prefix_cache and manifest.seal and bool(manifest.table.lasting)
    )
    if worker.settings.local_prefill or worker.settings.fetch_back is not FetchBack.NEVER:
        _use_checkpoints(worker)
    partners, early, checkpointing = Partners(manifest), EarlyOffers(), Checkpointing(worker)
    lending = Lending(worker, partners, early, checkpointing)
    pairing = Pairing(worker, partners, lends=lending.way)
    # state is lent, and verified at rest, only with its sums
    verification = Verification(worker, tell=worker.reuse.on)
    fetching = Fetching(worker, pairing, verification, early)
    preemption = Preemption(worker, checkpointing, admissible=fetching.admissible)
    generating = Generating(worker, preemption, checkpointing)
    return preemption, (
        *(pairing, lending, fetching, verification, checkpointing, preemption),
        *(Constraining(worker), generating, _computing(worker, checkpointing, generating)),
    )


def unified(worker: Worker[DecodeRoom]) -> Stages:
    """Compute prompts and generate tokens in the same pages."""
    _use_checkpoints(worker)
    checkpointing = Checkpointing(worker)
    preemption = Preemption(worker, checkpointing, admissible=lambda room: True)
    generating = Generating(worker, preemption, checkpointing)
    return preemption, (
        *(checkpointing, preemption, Constraining(worker), generating),
        _computing(worker, checkpointing, generating),
    )


def _computing(
    worker: Worker[DecodeRoom], checkpointing: Checkpointing, generating: Generating[DecodeRoom]
) -> Computing:
    """Return the stage that computes prompts whose tokens are generated in the same pages."""
    rule = ChunkRule(worker.settings.step_tokens, worker.settings.step_tokens)
    return Computing(worker, checkpointing, rule=rule, then=generating.first)


def guest_prefill(worker: Worker[PrefillRoom]) -> Stages:
    """Offer the blocks of prompts that another engine computes."""
    offering = Offering(worker)
    return AdmittedElsewhere[Any](), (GuestComputing(worker, offering), offering)


def guest_decode(worker: Worker[DecodeRoom]) -> Stages:
    """Fetch the state of prompts into pages of another engine."""
    partners, early = Partners(worker.manifest), EarlyOffers()
    pairing = Pairing(worker, partners, lends=lambda manifest, fabric: None)
    verification = Verification(worker, tell=False)
    fetching = Fetching(worker, pairing, verification, early)
    stages = pairing, fetching, verification, GuestLoading(worker, fetching)
    return AdmittedElsewhere[Any](), stages


ROLES: Mapping[str, RoleParts] = MappingProxyType(
    {
        "prefill": RoleParts(
            RoleRules(
                PREFILL,
                generates=False,
                bringing=(RoomState.COMPUTING, RoomState.BORROWING),
            ),
            PrefillRoom,
            prefill,
        ),
        "decode": RoleParts(
            RoleRules(
                DECODE,
                generates=True,
                bringing=(RoomState.FETCHING, RoomState.COMMITTING, RoomState.COMPUTING),
            ),
            DecodeRoom,
            decode,
        ),
        "unified": RoleParts(
            RoleRules(UNIFIED, generates=True, bringing=(RoomState.COMPUTING,)),
            DecodeRoom,
            unified,
        ),
    }
)

GUEST_ROLES: Mapping[str, RoleParts] = MappingProxyType(
    {
        "prefill": RoleParts(
            RoleRules(GUEST_PREFILL, generates=False, bringing=(), guest=True),
            GuestPrefillRoom,
            guest_prefill,
        ),
        "decode": RoleParts(
            RoleRules(GUEST_DECODE, generates=True, bringing=(), guest=True),
            DecodeRoom,
            guest_decode,
        ),
    }
)


def role_of(manifest: Manifest) -> RoleParts:
    """Return the role of a worker.

    Raises:
        ConfigError: there is no such role
    """
    roles = GUEST_ROLES if manifest.guest else ROLES
    if manifest.role not in roles:
        raise ConfigError(f"a worker of role {manifest.role!r}: there is {', '.join(roles)}")
    return roles[manifest.role]
