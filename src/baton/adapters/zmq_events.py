"""KV events over ZeroMQ, as vLLM publishes them: a PUB socket, and a ROUTER that sends again what
subscribers have missed.

    pump ──publish──▶ queue ──▶ thread ──▶ PUB      topic │ number │ batch
                                  │  kept   ▲
                                  └──────▶ ROUTER   (empty) │ number from which on  ──▶  (empty) │ topic │ number │ batch, ..
                                                                                         (empty) │ (empty) │ -1 │ (empty)

Numbers are eight bytes, big-endian. A number is drawn when the pump publishes, so a batch that
finds the queue full leaves a gap that subscribers see. ZeroMQ drops messages for a subscriber whose
own queue is full, silently and until there is room in it. So the thread asks ZeroMQ to say that a
queue has become full (XPUB_NODROP), counts that, and then sends to the others.
"""

import os
import threading
import time
from collections import deque
from contextlib import suppress

import msgspec
import structlog
import zmq

from baton.adapters.vllm_events import batch_of
from baton.core.effects import Publish
from baton.core.errors import ConfigError
from baton.ports.kv_events_config import FLAG, KvEventsConfig

log = structlog.get_logger()
NUMBER_BYTES = 8
END = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)  # after all that is sent again
FAREWELL_MS = 100  # time for what is still queued at `close`
CLOSE_S = 2.0  # for the thread to send the rest
MOST_ASKED = 64  # requests to send again that wait, of all subscribers
MOST_HEARD_BYTES = 4096  # of one such request, which has eight, and of a topic subscribed to
SAY_S = 10.0  # between two log lines about what was missed


class EventSockets:
    """The sockets of a publisher, bound.

    Raises:
        ConfigError: one of them cannot be bound
    """

    def __init__(self, config: KvEventsConfig) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.replay: zmq.Socket[bytes] | None = None
        try:
            self.events = self._bound("endpoint", config.endpoint, zmq.PUB, config.hwm)
            if config.replay_endpoint is not None:
                # the answer to one question fits in, so none of it is dropped
                most = config.buffer_steps + 1
                self.replay = self._bound(
                    "replay_endpoint", config.replay_endpoint, zmq.ROUTER, most
                )
        except ConfigError:
            self.close()
            raise

    def _bound(self, name: str, endpoint: str, kind: int, high_water: int) -> "zmq.Socket[bytes]":
        socket = self.context.socket(kind)
        for option, value in (
            (zmq.LINGER, FAREWELL_MS),
            (zmq.SNDHWM, high_water),
            (zmq.RCVHWM, MOST_ASKED),
            (zmq.MAXMSGSIZE, MOST_HEARD_BYTES),
            (zmq.IPV6, int("[" in endpoint)),
        ):
            socket.setsockopt(option, value)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"{FLAG}: cannot listen at {name} {endpoint}: {error.strerror}; choose another "
                "port, or an address of this machine"
            ) from error
        return socket

    def close(self) -> None:
        """Close them, and send what is queued if that takes no longer than a moment."""
        self.context.destroy(linger=FAREWELL_MS)


class ZmqEventPublisher:
    """Implements ports.kv_events.EventPublisher."""

    def __init__(self, config: KvEventsConfig, *, rank: int, block_size: int) -> None:
        """
        Args:
            rank: the number of this worker among those of its service
            block_size: tokens of a page

        Raises:
            ConfigError: an endpoint cannot be bound
        """
        self._rank, self._block_size = rank, block_size
        self._sockets = EventSockets(config)
        self._topic = config.topic.encode()
        self._most = config.max_queue_size
        self._queue: deque[tuple[int, Publish]] = deque()
        again = config.buffer_steps if config.replay_endpoint is not None else 0
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=again)  # numbers and batches
        self._number = 0
        self.dropped = 0  # batches that nobody was sent, because the queue was full
        self.fell_behind = 0  # times that a subscriber was too slow, and missed batches
        self._said = (0, 0)
        self._say_at = 0.0
        self._sockets.events.setsockopt(zmq.XPUB_NODROP, 1)
        self._encoder = msgspec.msgpack.Encoder()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="baton-kv-events", daemon=True)
        self._thread.start()
        log.info(
            "kv_events", endpoint=config.endpoint, replay_endpoint=config.replay_endpoint, rank=rank
        )

    def publish(self, changes: Publish) -> None:
        if self._closing:
            return
        number, self._number = self._number, self._number + 1
        if len(self._queue) >= self._most:
            self.dropped += 1
        else:
            self._queue.append((number, changes))
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():  # else it still uses them
            self._sockets.close()
            os.close(self._wake)

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        poller, replay = zmq.Poller(), self._sockets.replay
        poller.register(self._wake, zmq.POLLIN)
        if replay is not None:
            poller.register(replay, zmq.POLLIN)
        while not self._closing:
            ready = dict(poller.poll())
            if self._wake in ready:
                os.eventfd_read(self._wake)
            self._send_all()
            if replay is not None and replay in ready:
                self._send_again(replay)
        self._send_all()

    def _send_all(self) -> None:
        while self._queue:
            number, said = self._queue.popleft()
            batch = batch_of(said, block_size=self._block_size, ts=time.time(), rank=self._rank)
            numbered = number.to_bytes(NUMBER_BYTES, "big"), self._encoder.encode(batch)
            self._kept.append(numbered)
            self._send(self._topic, *numbered)
        self._say_missed()

    def _send(self, *frames: bytes) -> None:
        """Send to all subscribers; if one of them is too slow, to the others."""
        events = self._sockets.events
        try:
            events.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            self.fell_behind += 1
            events.setsockopt(zmq.XPUB_NODROP, 0)
            events.send_multipart(frames, zmq.DONTWAIT)
            events.setsockopt(zmq.XPUB_NODROP, 1)

    def _send_again(self, replay: "zmq.Socket[bytes]") -> None:
        """Answer one question, so that what is new does not wait for all of them."""
        try:
            asker, *delimiter, first = replay.recv_multipart(zmq.DONTWAIT)
        except (zmq.Again, ValueError):  # a message of one frame has no question in it
            return
        if delimiter != [b""] or len(first) != NUMBER_BYTES:
            return
        with suppress(zmq.Again):
            for number, batch in self._kept:
                if number >= first:  # equally long and big-endian
                    replay.send_multipart((asker, b"", self._topic, number, batch), zmq.DONTWAIT)
            replay.send_multipart((asker, b"", b"", END, b""), zmq.DONTWAIT)

    def _say_missed(self) -> None:
        now, counts = time.monotonic(), (self.dropped, self.fell_behind)
        if counts == self._said or now < self._say_at:
            return
        self._said, self._say_at = counts, now + SAY_S
        log.warning("kv_events_missed", dropped=self.dropped, fell_behind=self.fell_behind)
