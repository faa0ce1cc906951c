"""Encodes frames as bytes and decodes them: msgpack, strictly typed."""

import msgspec

from baton.core.errors import Bug, PeerError
from baton.core.frames import AnyFrame

MAX_FRAME_BYTES = 64 << 20
SHOWN = 200  # characters of what is wrong with a frame

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyFrame] = msgspec.msgpack.Decoder(AnyFrame)


def encode(frame: AnyFrame) -> bytes:
    """Encode one frame.

    Raises:
        Bug: the frame is larger than `MAX_FRAME_BYTES`. The receiver would refuse it, and every
            later message of the session would wait behind it.
    """
    raw = _encoder.encode(frame)
    if len(raw) > MAX_FRAME_BYTES:
        raise Bug(
            f"a {type(frame).__name__} frame of {len(raw)} bytes; the limit is {MAX_FRAME_BYTES}"
        )
    return raw


def decode(raw: bytes) -> AnyFrame:
    """Decode one frame from bytes of unknown origin.

    Raises:
        PeerError: the bytes are not a frame of this protocol, or more than `MAX_FRAME_BYTES`
    """
    if len(raw) > MAX_FRAME_BYTES:
        raise PeerError(f"a frame of {len(raw)} bytes; the limit is {MAX_FRAME_BYTES}")
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # it may name a field that the frame has, which may be as long as the frame
        raise PeerError(f"not a frame of this protocol: {str(error)[:SHOWN]}") from error
