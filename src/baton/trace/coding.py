"""Encodes the records of a log and decodes them: msgpack, strictly typed, one frame for each.

    frame = length (u32, little endian) │ crc32 of the body (u32) │ body (msgpack)

The checksum tells a complete frame from a damaged one. A process that is killed leaves at most one
incomplete frame, at the end of its file.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, get_args
from zlib import crc32

import msgspec
import numpy as np

from baton.core.errors import BatonError, Bug, ConfigError
from baton.trace.log import Record

FRAME = struct.Struct("<II")
MAX_BODY_BYTES = 256 << 20
RECORD: Any = Record  # a union is a value for msgspec, not for mypy


class Damaged(ConfigError):
    """The rest of the file cannot be read: it ends inside a frame, or the frame is damaged."""


def _pack(value: object) -> object:
    """Encode a numpy array as its shape and its little-endian bytes."""
    if isinstance(value, np.ndarray):
        return value.shape, np.ascontiguousarray(
            value, dtype=value.dtype.newbyteorder("<")
        ).tobytes()
    raise NotImplementedError(f"{type(value).__name__} has no place in a log")


def _unpack(kind: Any, value: Any) -> object:
    """Decode the array of a field of type NDArray[kind].

    Raises:
        ValueError: shape and bytes do not fit
    """
    dtype = np.dtype(get_args(get_args(kind)[1])[0])
    match value:
        case [list(shape), bytes(raw)] if all(type(n) is int and n >= 0 for n in shape):
            return np.frombuffer(raw, dtype=dtype.newbyteorder("<")).astype(dtype).reshape(shape)
        case _:
            raise ValueError(f"an array is [shape, bytes], not {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_pack)
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(RECORD, dec_hook=_unpack)


def canonical(value: object) -> bytes:
    """Encode a value so that equal values have equal bytes."""
    return _encoder.encode(value)


def encode(record: Record) -> bytes:
    """Encode one record as a frame.

    Raises:
        Bug: the record is larger than `MAX_BODY_BYTES`; it could not be read back
    """
    body = _encoder.encode(record)
    if len(body) > MAX_BODY_BYTES:
        raise Bug(
            f"a {type(record).__name__} of {len(body)} bytes in a log; the limit is "
            f"{MAX_BODY_BYTES}"
        )
    return FRAME.pack(len(body), crc32(body)) + body


def decode(body: bytes) -> Record:
    """Decode one record from the body of a frame, which may be of unknown origin.

    Raises:
        Damaged: the body is not a record of this format
    """
    try:
        return _decoder.decode(body)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
        OverflowError,
        BatonError,
    ) as error:
        raise Damaged(f"not a record of a log: {error}") from error


def records(chunks: Iterable[bytes]) -> Iterator[tuple[int, Record]]:
    """Yield (end, record) for every complete record; `end` is its end in the file, in bytes.

    Raises:
        Damaged: the rest cannot be read; every complete record before it has been yielded
    """
    rest, at = bytearray(), 0
    for chunk in chunks:
        rest += chunk
        used = 0
        while (body := _whole(rest, used, at)) is not None:
            used += FRAME.size + len(body)
            yield at + used, _decode_at(body, at + used - len(body))
        del rest[:used]
        at += used
    if rest:
        raise Damaged(f"it ends inside a record that begins at byte {at}")


def _whole(rest: bytearray, start: int, base: int) -> bytes | None:
    """Return the body of the frame at `start`, or None if the frame is not complete yet."""
    if len(rest) - start < FRAME.size:
        return None
    length, expected = FRAME.unpack_from(rest, start)
    if length > MAX_BODY_BYTES:
        raise Damaged(
            f"at byte {base + start} stands a record of {length} bytes; the limit "
            f"is {MAX_BODY_BYTES}"
        )
    begin = start + FRAME.size
    if len(rest) - begin < length:
        return None
    body = bytes(memoryview(rest)[begin : begin + length])
    if crc32(body) != expected:
        raise Damaged(
            f"the record at byte {base + start} is not what was written (its checksum differs)"
        )
    return body


def _decode_at(body: bytes, at: int) -> Record:
    try:
        return decode(body)
    except Damaged as error:
        raise Damaged(f"at byte {at}: {error}") from error
