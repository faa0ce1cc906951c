"""Drafts change no stream: requests of every kind say with drafts what they say without, in pools
that are too small for them, and after a decode worker was killed under them."""

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.drafted_streams import KINDS, Ask, Choice, Streams, asks
from tests.e2e.service import Service, unified, wait_for
from tests.e2e.test_agents import TEMPLATE
from tests.tiny import make_tiny

AT_ONCE = 24
FEW = 4 * len(KINDS)  # each kind greedy and seeded, twice
MANY = 200
# prompts of a model with recurrent state are rounded at the ends of chunks: none is cut
WHOLE = ("--max-num-batched-tokens", "4096")
ROOMY = ("--kv-pages", "400", "--page-size", "16", *WHOLE)
# of 16 tokens: one request at its full length has up to 12, and those at once want far more
TIGHT = ("--kv-pages", "48", "--page-size", "16", "--host-kv-memory", "32MiB", *WHOLE)
DRAFTS = ("--speculative-config", json.dumps({"method": "suffix", "num_speculative_tokens": 6}))
Said = dict[str, dict[int, Choice]]
SIZES = pytest.mark.parametrize(
    "count",
    [
        pytest.param(FEW, marks=pytest.mark.timeout(180)),
        pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags of every gateway."""
    template = tmp_path_factory.mktemp("template") / "tools.jinja"
    template.write_text(TEMPLATE)
    patience = ("--queue-timeout", "300")
    return ("--chat-template", str(template), "--tool-call-parser", "hermes", *patience)


@pytest.fixture(scope="module", params=["llama", "qwen3_next"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny: Path
) -> Path:
    """State in pages, and state that must go back where drafts were wrong."""
    if request.param == "llama":
        return tiny
    return make_tiny(tmp_path_factory.mktemp("recurrent") / "model", request.param)


@pytest.fixture(scope="module")
def without(
    tmp_path_factory: pytest.TempPathFactory, model: Path, gateway: tuple[str, ...]
) -> Iterator[Service]:
    """One worker with memory for all, which drafts nothing."""
    with unified(tmp_path_factory.mktemp("without"), model, *ROOMY, gateway=gateway) as service:
        yield service


@pytest.fixture(scope="module")
def closing(without: Service) -> list[int]:
    """The tokens that end strings, lists and objects."""
    texts = ('"', "]", "}")
    said = [without.http.post("/tokenize", json={"prompt": text}).json() for text in texts]
    return [token for each in said for token in each["tokens"]]


def counted(service: Service, name: str) -> int:
    """A counter, of all workers together."""
    page = service.http.get("/metrics").text
    return sum(int(float(n)) for n in re.findall(rf"^{name}\{{.*\}} ([0-9.e+]+)$", page, re.M))


def events(service: Service, counter: str, event: str) -> int:
    return counted(service, rf'baton:{counter}_total(?=.*event="{event}")')


def same(found: Said, due: Said) -> None:
    assert found.keys() == due.keys()
    for name, choices in due.items():
        assert found[name] == choices, name


def assert_varied(due: Said) -> None:
    """So a stream that is taken for another, or ends too soon, is found."""
    ends = Counter(choice.why for choices in due.values() for choice in choices.values())
    assert ends["stop"] >= len(due) / 8, ends
    assert ends["length"] >= len(due) / 4, ends
    assert ends["tool_calls"] > 0, ends
    ids = [tuple(choice.ids) for choices in due.values() for choice in choices.values()]
    assert len({*ids}) > 0.9 * len(ids)
    assert any(choice.logprobs for choices in due.values() for choice in choices.values())


def said_without(service: Service, all_: Sequence[Ask]) -> Said:
    """What the worker without drafts says."""
    due = Streams(f"http://127.0.0.1:{service.port}", all_).run(AT_ONCE)
    assert_varied(due)
    return due


def assert_drafted(service: Service) -> None:
    """Some were right and some were not."""
    drafted = counted(service, "vllm:spec_decode_num_draft_tokens_total")
    accepted = counted(service, "vllm:spec_decode_num_accepted_tokens_total")
    assert 0 < accepted < drafted


@SIZES
def test_streams_are_the_same_with_drafts_while_memory_is_short_and_a_worker_is_killed(
    tmp_path: Path,
    model: Path,
    without: Service,
    gateway: tuple[str, ...],
    closing: list[int],
    count: int,
) -> None:
    all_ = asks(count, closing=closing)
    due = said_without(without, all_)
    service = Service(tmp_path, model)
    try:
        service.start_gateway(*gateway)
        service.start_worker("prefill", *TIGHT)
        for name in ("decode-a", "decode-b"):
            service.start_worker("decode", *TIGHT, *DRAFTS, name=name)
        service.wait_ready()
        wait_for(lambda: len(service.ledger()["workers"]) == 3, seconds=20, why="all are there")
        streams = Streams(f"http://127.0.0.1:{service.port}", all_)
        total = sum(len(choice.ids) for choices in due.values() for choice in choices.values())
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(streams.run, AT_ONCE)
            while streams.said() < total / 3 and not found.done():
                time.sleep(0.005)
            service.processes["decode-a"].kill()
            same(found.result(), due)
        assert events(service, "gateway_events", "new_epoch") > 0, "some went on elsewhere"
        assert events(service, "events", "offloaded") > 0, "some gave way"
        assert_drafted(service)
        service.wait_clean(10.0)
    finally:
        service.close()


@SIZES
def test_streams_of_one_worker_are_the_same_with_drafts_while_memory_is_short(
    tmp_path: Path,
    model: Path,
    without: Service,
    gateway: tuple[str, ...],
    closing: list[int],
    count: int,
) -> None:
    all_ = asks(count, closing=closing)
    due = said_without(without, all_)
    with unified(tmp_path, model, *TIGHT, *DRAFTS, gateway=gateway) as service:
        streams = Streams(f"http://127.0.0.1:{service.port}", all_)
        same(streams.run(AT_ONCE), due)
        assert events(service, "events", "offloaded") > 0, "some gave way"
        assert_drafted(service)
        service.wait_clean(10.0)
