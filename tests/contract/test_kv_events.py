"""The promises of ports/kv_events.py, kept over real sockets of ZeroMQ."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq
from tests.e2e.service import free_port, wait_for

from baton.adapters.zmq_events import EventSockets, ZmqEventPublisher
from baton.core.effects import Publish
from baton.core.errors import ConfigError
from baton.core.ids import TokenId
from baton.core.memory.prefix_cache import CacheChange, PageHash, PageText
from baton.ports.kv_events_config import KvEventsConfig

MISSED = b"\xff" * 8  # the number at the end of what is sent again
PATIENCE_MS = 10_000


def said(number: int, *, tokens: int = 2) -> Publish:
    """One page has entered; its number is in its tokens."""
    text = PageText((TokenId(number), *[TokenId(70_000)] * (tokens - 1)), "")
    page = PageHash(number.to_bytes(32, "big"))
    return Publish((CacheChange(page, entered=True, text=text),), afresh=False)


class Side:
    """A publisher, and the sockets of whoever listens to it."""

    def __init__(self, **config: Any) -> None:
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.replay_endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.context: zmq.Context[Any] = zmq.Context()
        settings = KvEventsConfig(
            enable_kv_cache_events=True,
            endpoint=self.endpoint,
            replay_endpoint=self.replay_endpoint,
            **config,
        )
        self.publisher = ZmqEventPublisher(settings, rank=1, block_size=2)

    def subscribe(self, topic: str = "", **options: int) -> Any:
        """A subscriber that the publisher knows: it has got something."""
        socket = self.context.socket(zmq.SUB)
        for name, value in options.items():
            socket.setsockopt(getattr(zmq, name), value)
        socket.connect(self.endpoint)
        socket.setsockopt_string(zmq.SUBSCRIBE, topic)

        def heard() -> bool:
            self.publisher.publish(said(0))
            return bool(socket.poll(20))

        wait_for(heard, seconds=10, why="a subscriber hears something")
        while socket.poll(100):
            socket.recv_multipart()
        return socket

    def ask_again(self, first: int | bytes) -> Any:
        """A question for all that was published from this number on."""
        asker = self.context.socket(zmq.DEALER)
        asker.connect(self.replay_endpoint)
        asker.send_multipart([b"", first.to_bytes(8, "big") if isinstance(first, int) else first])
        return asker

    def again(self, first: int) -> list[tuple[int, list[int]]]:
        """All that was published from this number on: number and tokens."""
        asker, found = self.ask_again(first), []
        while asker.poll(PATIENCE_MS):
            empty, topic, number, payload = asker.recv_multipart()
            assert empty == b""
            if number == MISSED:
                assert (topic, payload) == (b"", b"")
                return found
            found.append((int.from_bytes(number, "big"), tokens(payload)))
        raise AssertionError("no end of what is sent again")


@contextmanager
def side(**config: Any) -> Iterator[Side]:
    made = Side(**config)
    try:
        yield made
    finally:
        made.publisher.close()
        made.context.destroy(linger=0)


def tokens(payload: bytes) -> list[int]:
    _, events, rank = msgspec.msgpack.decode(payload)
    assert rank == 1
    return [event["token_ids"][0] for event in events]


def receive(socket: Any) -> tuple[bytes, int, list[int]]:
    assert socket.poll(PATIENCE_MS), "nothing comes"
    topic, number, payload = socket.recv_multipart()
    return topic, int.from_bytes(number, "big"), tokens(payload)


def test_subscribers_hear_all_in_order_with_numbers_that_follow_each_other() -> None:
    with side(topic="kv@w@m") as s:
        one, other = s.subscribe("kv@"), s.subscribe()
        first = s.publisher._number
        while other.poll(100) or one.poll(0):
            [each.recv_multipart() for each in (one, other) if each.poll(0)]
        for number in range(50):
            s.publisher.publish(said(number))
        for socket in (one, other):
            heard = [receive(socket) for _ in range(50)]
            assert [t for _, _, t in heard] == [[n] for n in range(50)]
            assert [n for _, n, _ in heard] == list(range(first, first + 50))
            assert {topic for topic, _, _ in heard} == {b"kv@w@m"}


def test_a_subscriber_of_another_topic_hears_nothing() -> None:
    with side(topic="a") as s:
        mine = s.subscribe("a")
        other = s.context.socket(zmq.SUB)
        other.connect(s.endpoint)
        other.setsockopt_string(zmq.SUBSCRIBE, "b")
        s.publisher.publish(said(1))
        assert receive(mine)[2] == [1]
        assert not other.poll(100)


def test_what_was_missed_is_sent_again_as_far_as_it_is_kept() -> None:
    with side(buffer_steps=5) as s:
        for number in range(8):
            s.publisher.publish(said(number))
        wait_for(lambda: len(s.again(0)) == 5, seconds=10, why="all are sent")
        assert s.again(0) == [(n, [n]) for n in range(3, 8)], "the last five are kept"
        assert s.again(6) == [(6, [6]), (7, [7])]
        assert s.again(8) == []


def test_a_whole_replay_reaches_an_asker_who_reads_late() -> None:
    with side(buffer_steps=5_000) as s:
        for number in range(5_000):
            s.publisher.publish(said(number))
        wait_for(lambda: not s.publisher._queue, seconds=10, why="all are sent")
        asker = s.ask_again(0)
        time.sleep(0.5)
        found = 0
        while asker.poll(PATIENCE_MS) and asker.recv_multipart()[2] != MISSED:
            found += 1
        assert found == 5_000


@pytest.mark.parametrize("question", [b"", b"1", b"x" * 9, b"x" * 4000])
def test_a_question_that_is_none_is_not_answered_and_hurts_nobody(question: bytes) -> None:
    with side() as s:
        s.publisher.publish(said(1))
        asker = s.ask_again(question)
        asker.send(b"without a delimiter")
        assert not asker.poll(100)
        assert s.again(0) == [(0, [1])]


def slow(s: Side) -> Any:
    """A subscriber that reads nothing, with as little room for messages as there can be."""
    return s.subscribe(RCVHWM=1, RCVBUF=4096)


def longest(act: Callable[[int], None], times: int) -> float:
    """Seconds of the longest call."""
    found = 0.0
    for number in range(times):
        began = time.perf_counter()
        act(number)
        found = max(found, time.perf_counter() - began)
    return found


def test_a_slow_subscriber_holds_nobody_and_what_it_misses_is_counted() -> None:
    with side(hwm=10, buffer_steps=0) as s:
        lazy, quick = slow(s), s.subscribe(RCVHWM=0)
        before = s.publisher._number
        publish = s.publisher.publish
        assert longest(lambda n: publish(said(n, tokens=20_000)), 200) < 0.5
        wait_for(lambda: not s.publisher._queue, seconds=20, why="all are sent")
        assert s.publisher.fell_behind >= 1
        assert s.publisher.dropped == 0
        # the queue of 10 is the quick one's too, so it may miss some; its numbers say which
        heard = []
        while quick.poll(300):
            heard.append(receive(quick)[1])
        assert heard == sorted(set(heard))
        assert heard[0] >= before
        read = []
        while lazy.poll(300):
            read.append(receive(lazy)[1])
        assert len(read) < 190, "it has missed some, as their numbers say"
        assert len(set(range(before, before + 200)) - set(read)) > 10
        publish(said(3))
        assert receive(lazy)[2] == [3], "it hears again what comes later"
        assert receive(quick)[2] == [3]


def test_a_full_queue_drops_and_leaves_a_gap_in_the_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with side(max_queue_size=3) as s:
        socket = s.subscribe()
        first = s.publisher._number
        held: list[Callable[[], None]] = [s.publisher._send_all]
        monkeypatch.setattr(s.publisher, "_send_all", lambda: None)  # the thread is busy
        assert longest(lambda n: s.publisher.publish(said(n)), 10) < 0.5
        assert s.publisher.dropped == 7
        monkeypatch.setattr(s.publisher, "_send_all", held[0])
        s.publisher.publish(said(99))
        assert [receive(socket)[1] for _ in range(3)] == [first, first + 1, first + 2]
        wait_for(lambda: not s.publisher._queue, seconds=10, why="there is room again")
        s.publisher.publish(said(100))
        _, number, heard = receive(socket)
        assert (number, heard) == (first + 11, [100])


def test_what_is_queued_at_the_end_is_sent() -> None:
    with side() as s:
        socket = s.subscribe()
        for number in range(20):
            s.publisher.publish(said(number))
        s.publisher.close()
        s.publisher.publish(said(1000))
        s.publisher.close()
        assert [receive(socket)[2] for _ in range(20)] == [[n] for n in range(20)]
        assert not socket.poll(100)


def test_an_endpoint_in_use_is_refused_and_free_again_after_the_end() -> None:
    with side() as s:
        taken = KvEventsConfig(enable_kv_cache_events=True, endpoint=s.endpoint)
        with pytest.raises(ConfigError, match=f"cannot listen at endpoint {s.endpoint}.*another"):
            EventSockets(taken)
        replay = KvEventsConfig(
            endpoint=f"tcp://127.0.0.1:{free_port()}", replay_endpoint=s.replay_endpoint
        )
        with pytest.raises(ConfigError, match="replay_endpoint"):
            EventSockets(replay)
    EventSockets(taken).close()
    elsewhere = KvEventsConfig(endpoint="tcp://192.0.2.1:5557")
    with pytest.raises(ConfigError, match=r"tcp://192\.0\.2\.1:5557"):
        EventSockets(elsewhere)
