"""A stranger on the network: tries ports of other machines without the secret, and prints, as JSON,
what each of them answered.

Standard input: [[host, port], ..] and the boots of the ranks that listen there.
"""

import json
import os
import socket
import struct
import sys
import time

from baton.adapters.tcp_door import MAGIC, dial
from baton.core.errors import FabricError
from baton.core.ids import Boot

PATIENCE_S = 1.0
NULL = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL".ljust(24, b"\x00") + bytes(32)
READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
GREETINGS = {
    "nothing": b"",
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "noise": b"\x80\x00\xff\x01" * 4096,
    "zeros": bytes(4096),
    "ZeroMQ": NULL + READY + b"\x00\x05hello",
    "fabric tcp": struct.pack("!10sQI16s", MAGIC, 1, 0, os.urandom(16)) + bytes(16),
}


def say(host: str, port: int, words: bytes) -> bytes:
    """What is answered until the other side closes or is silent for a while."""
    heard = b""
    try:
        with socket.create_connection((host, port), timeout=PATIENCE_S) as line:
            line.sendall(words)
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until and (more := line.recv(4096)):
                heard += more
    except OSError:
        pass
    return heard


def wrong_key(host: str, port: int, boot: int) -> str:
    """Ask for a pool by a rank's own name, without its secret; why that is refused."""
    try:
        line, _, _ = dial((host, port), Boot(boot), 0, key=b"another secret")
    except FabricError as error:
        return str(error)
    line.close()
    return ""


def main() -> None:
    places, boots = json.load(sys.stdin)
    answers = {
        f"{host}:{port} {name}": say(host, port, words).hex()
        for host, port in places
        for name, words in GREETINGS.items()
    }
    refusals = {
        f"{host}:{port} {boot:x}": wrong_key(host, port, boot)
        for host, port in places
        for boot in boots
    }
    print(json.dumps([answers, refusals]))


if __name__ == "__main__":
    main()
