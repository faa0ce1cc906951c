"""What a subscriber knows who hears KV events of a real service: which tokens each worker has cached.

The subscriber knows vLLM's format alone: nothing of ours takes part in reading it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from tests.e2e.service import Service, free_port, split, wait_for
from zmq.utils.monitor import parse_monitor_message

PAGE = 16
END = b"\xff" * 8
PATIENCE_MS = 10_000
THERE, GONE = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED


class Heard:
    """What one worker has published so far, live and again."""

    def __init__(self, context: "zmq.Context[Any]", rank: int) -> None:
        self.port, self.replay_port, self.rank = free_port(), free_port(), rank
        self.live: list[tuple[int, bytes]] = []
        self._sub, self._replay = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self._monitor, self._connected = self._sub.get_monitor_socket(THERE | GONE), False
        self._sub.connect(f"tcp://127.0.0.1:{self.port}")
        self._sub.setsockopt_string(zmq.SUBSCRIBE, "kv@")
        self._replay.connect(f"tcp://127.0.0.1:{self.replay_port}")

    @property
    def flags(self) -> tuple[str, ...]:
        config = {
            "enable_kv_cache_events": True,
            "endpoint": f"tcp://127.0.0.1:{self.port}",
            "replay_endpoint": f"tcp://127.0.0.1:{self.replay_port}",
            "topic": "kv@w@m",
        }
        return (
            "--page-size",
            str(PAGE),
            "--kv-events-config",
            msgspec.json.encode(config).decode(),
        )

    def connects(self) -> None:
        """Wait until it is connected: a batch that it does not hear from then on was lost.

        A service that starts binds its ports once before the worker does, to see that they are free,
        and a subscriber that waits may connect to that. libzmq then subscribes again at the worker,
        but only when the socket is used next.
        """

        def connected() -> bool:
            while self._monitor.poll(0):
                event = parse_monitor_message(self._monitor.recv_multipart())["event"]
                self._connected = event == THERE
            self.listen()
            return self._connected

        wait_for(connected, seconds=10, why="connected to the worker")

    def listen(self) -> None:
        """Take what has come."""
        while self._sub.poll(0):
            topic, number, payload = self._sub.recv_multipart()
            assert topic == b"kv@w@m"
            self.live.append((int.from_bytes(number, "big"), payload))

    def all(self) -> list[tuple[int, bytes]]:
        """Everything from the first batch on; what came live is the end of it."""
        self._replay.send_multipart([b"", (0).to_bytes(8, "big")])
        found: list[tuple[int, bytes]] = []
        while True:
            assert self._replay.poll(PATIENCE_MS), "nothing is sent again"
            _, _, number, payload = self._replay.recv_multipart()
            if number == END:
                break
            found.append((int.from_bytes(number, "big"), payload))
        assert [number for number, _ in found] == list(range(len(found)))

        def heard_all() -> bool:
            self.listen()
            return bool(self.live) and self.live[-1][0] >= len(found) - 1

        wait_for(heard_all, seconds=10, why="what is sent again was heard, too")
        live = [said for said in self.live if said[0] < len(found)]
        assert live == found[-len(live) :]
        return found

    def blocks(self) -> dict[int, tuple[int | None, tuple[int, ...]]]:
        """Hash, parent and tokens of all blocks that are cached now."""
        # of a worker that was here before: the first batch says that nothing of it is left
        cached: dict[int, tuple[int | None, tuple[int, ...]]] = {7: (None, (7,))}
        for _, payload in self.all():
            ts, events, rank = msgspec.msgpack.decode(payload)
            assert isinstance(ts, float)
            assert rank == self.rank
            for event in events:
                _apply(event, cached)
        return cached

    def sequences(self) -> list[tuple[int, ...]]:
        """Every beginning of a sequence that is cached."""
        blocks = self.blocks()

        def tokens(block: int | None) -> tuple[int, ...]:
            if block is None:
                return ()
            parent, own = blocks[block]
            return (*tokens(parent), *own)

        return sorted(map(tokens, blocks))


def _apply(event: dict[str, Any], cached: dict[int, tuple[int | None, tuple[int, ...]]]) -> None:
    match event["type"]:
        case "AllBlocksCleared":
            cached.clear()
        case "BlockRemoved":
            assert event["medium"] == "GPU"
            for block in event["block_hashes"]:
                del cached[block]
        case "BlockStored":
            assert (event["medium"], event["block_size"]) == ("GPU", PAGE)
            assert (event["lora_id"], event["lora_name"]) == (None, None)
            parent, tokens = event["parent_block_hash"], event["token_ids"]
            assert len(tokens) == PAGE * len(event["block_hashes"])
            assert parent is None or parent in cached
            for at, block in enumerate(event["block_hashes"]):
                assert block not in cached
                cached[block] = (parent, tuple(tokens[at * PAGE : (at + 1) * PAGE]))
                parent = block
        case other:
            raise AssertionError(f"no event is called {other}")


@pytest.fixture
def context() -> Iterator["zmq.Context[Any]"]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


@contextmanager
def published(
    directory: Path, model: Path, context: "zmq.Context[Any]"
) -> Iterator[tuple[Service, Heard, Heard]]:
    prefill, decode = Heard(context, 0), Heard(context, 0)
    with split(directory, model, prefill=prefill.flags, decode=decode.flags) as service:
        for heard in (prefill, decode):
            heard.connects()
        yield service, prefill, decode


def beginnings(*sequences: list[int]) -> list[tuple[int, ...]]:
    """Each of their beginnings that ends with a page, once."""
    return sorted(
        {tuple(s[:end]) for s in sequences for end in range(PAGE, len(s) // PAGE * PAGE + 1, PAGE)}
    )


def pages(service: Service, role: str) -> int:
    (books,) = [worker for worker in service.ledger()["workers"] if worker["role"] == role]
    (counts,) = books["pages"].values()
    return int(counts["cached"] + counts["shared"])


def some(n: int, seed: int) -> list[int]:
    return list(map(int, np.random.default_rng(seed).integers(0, 250, n)))


@pytest.mark.timeout(120)
def test_a_subscriber_knows_exactly_what_each_worker_has_cached(
    tmp_path: Path, tiny: Path, context: "zmq.Context[Any]"
) -> None:
    with published(tmp_path, tiny, context) as (service, prefill, decode):
        system = some(50, 1)
        prompts = [system + some(39, 2), system + some(21, 3)]
        answers = [service.ids(p, max_tokens=20, ignore_eos=True) for p in prompts]
        service.wait_clean()
        assert prefill.sequences() == beginnings(*prompts)
        # the last token that was drawn is in no page
        told = [p + a[:-1] for p, a in zip(prompts, answers, strict=True)]
        assert decode.sequences() == beginnings(*told)
        assert len(prefill.blocks()) == pages(service, "prefill") == 5 + 4 - 3
        assert len(decode.blocks()) == pages(service, "decode")

        # what the events promise of another prompt is what it finds
        asked = prompts[0][:70] + some(30, 4)
        promised = max(
            len(s)
            for s in prefill.sequences()
            if tuple(asked[: len(s)]) == s and len(s) < len(asked)
        )
        said = service.complete(asked, max_tokens=2, ignore_eos=True).json()
        assert said["usage"]["prompt_tokens_details"]["cached_tokens"] == promised == 64

        assert service.http.post("/reset_prefix_cache").json()["success"]
        service.wait_clean()
        assert prefill.blocks() == decode.blocks() == {}
        service.ids(prompts[1], max_tokens=2, ignore_eos=True)
        service.wait_clean()
        assert prefill.sequences() == beginnings(prompts[1])
    for heard in (prefill, decode):
        first = heard.live[0][0]
        assert [number for number, _ in heard.live] == list(range(first, first + len(heard.live)))
