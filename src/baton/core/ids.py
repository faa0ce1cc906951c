"""Identities and counts. One NewType per thing, so that a page is never taken for a block."""

from typing import NewType

import msgspec

Room = NewType("Room", str)  # 128 random bits as 32 hex digits, minted by the gateway
Epoch = NewType("Epoch", int)  # attempt number within a room, from 1
Boot = NewType("Boot", int)  # random 64-bit id of one start of one rank (or gateway)
Rank = NewType("Rank", int)  # index of a rank inside its worker: pp_rank * tp + tp_rank
Page = NewType("Page", int)  # index of a page in a group's pool
BlockIndex = NewType("BlockIndex", int)  # number of a block in its sequence: position // B
TokenId = NewType("TokenId", int)
TokenIndex = NewType("TokenIndex", int)  # 0 is the first generated token of a request
GroupName = NewType("GroupName", str)
Seal = NewType("Seal", int)  # 64-bit sum, see core/handoff/seal.py
Seq = NewType("Seq", int)  # number of a step plan
Link = NewType("Link", int)  # a Control port's name for one connection
Arrival = NewType("Arrival", int)  # number of a request at its gateway, from 1
# logical time of the start of a request's first epoch; later epochs keep it (gateway/stamps.py)
Stamp = NewType("Stamp", int)
# what is kept of one prompt's state in host memory; the leader counts them
CheckpointName = NewType("CheckpointName", int)
Micros = NewType("Micros", int)  # a monotonic time or a duration in microseconds


class Key(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True, gc=False):
    """One attempt of one request: what every message of a handoff is about."""

    room: Room
    epoch: Epoch


LOAN = ".loan"


def loan_key(key: Key) -> Key:
    """Return the name under which a worker holds what it lends for a room, beside the room."""
    return Key(Room(key.room + LOAN), key.epoch)


def is_loan(key: Key) -> bool:
    """Whether a key holds what is lent for a room, and is no room."""
    return key.room.endswith(LOAN)


def room_key(key: Key) -> Key:
    """Return the room for which a key holds something: itself, if that is no loan."""
    return Key(Room(key.room.removesuffix(LOAN)), key.epoch)


# whose copy it is, in a host store
StoreKey = Key | CheckpointName


class RankId(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A rank of a worker, always named by all three fields. `boot` is the rank's own."""

    worker: Boot  # the leader's boot
    boot: Boot
    rank: Rank
