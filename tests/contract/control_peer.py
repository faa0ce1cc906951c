"""A process that listens at ADDRESS and sends every frame back: `python control_peer.py ADDRESS
MAX_FRAME_BYTES [SECRET]`.

It prints the address at which it listens, then nothing more.
"""

import select
import sys
from pathlib import Path

from baton.adapters.secret import load_secret
from baton.adapters.zmq_control import ZmqControl


def main(address: str, most: str, *secret: str) -> None:
    key = load_secret(Path(secret[0])) if secret else None
    control = ZmqControl(bind=address, keys=key, max_frame_bytes=int(most))
    print(control.bound_address, flush=True)
    poll = select.poll()
    poll.register(control.fileno(), select.POLLIN)
    while True:
        poll.poll()
        for link, frame in control.receive():
            control.send(link, frame)


if __name__ == "__main__":
    main(*sys.argv[1:])
