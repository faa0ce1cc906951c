"""The pump of a rank in a vLLM worker's process, over memory that is not its own."""

import numpy as np
import pytest
import torch
from tests.core.build import table

from baton.core.errors import Bug, ConfigError
from baton.core.memory.state import Placement
from baton.core.work import DigestOrder
from baton.vllm.memory import memory_of
from baton.vllm.names import FULL
from baton.vllm.rank_process import RankProcess, Served
from baton.vllm.settings import settings_of

PAGES = 4
EXTRA = {"name": "p", "url": "http://127.0.0.1:1", "gateways": [], "fabric": ["tcp"]}


def make_rank(tp: int, rank: int, *, pages: int = PAGES, dtype: str = "float32") -> RankProcess:
    places = tuple(Placement(table(), tp, 1, r, 0, 1) for r in range(tp))
    served = Served(
        role="prefill",
        model="m",
        weights="ab" * 16,
        dtype=dtype,
        max_model_len=64,
        placements=places,
        rank=rank,
        pages=pages,
    )
    nbytes = pages * places[rank].block_bytes(served.group)
    return RankProcess(settings_of(EXTRA), served, memory_of(torch.zeros(nbytes // 4)))


@pytest.fixture
def rank():
    made = make_rank(1, 0)
    made.join(made.address)
    yield made
    made.close()


@pytest.fixture
def pair():
    """Two ranks of one engine, which have not joined."""
    ranks = [make_rank(2, 0), make_rank(2, 1, pages=PAGES + 1)]
    yield ranks
    for each in ranks:
        each.close()


def test_the_ranks_of_an_engine_join_and_end_with_their_leader(pair) -> None:
    first, second = pair
    second.join(first.address)
    second.start()
    first.join(first.address)
    first.start()
    first.require_alive()
    second.require_alive()
    assert (first.link is not None, second.link) == (True, None)
    first.close()
    second._thread.join(10)
    with pytest.raises(ConfigError, match=r"leader \w+ was lost"):
        second.require_alive()


def test_a_rank_with_another_dtype_is_refused(pair) -> None:
    first, _ = pair
    other = make_rank(2, 1, dtype="bfloat16")
    other.join(first.address)
    other.start()
    try:
        with pytest.raises(ConfigError, match="dtype"):
            first.join(first.address)
    finally:
        other.close()


def test_a_pump_that_runs_is_alive_until_it_is_closed(rank: RankProcess) -> None:
    rank.start()
    rank.require_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("error", "said"),
    [(ConfigError("no way"), "no way"), (AssertionError("why"), r"raised AssertionError: why")],
)
def test_a_pump_that_has_ended_is_noticed_at_vllms_next_step(
    rank: RankProcess, error: Exception, said: str
) -> None:
    def turn() -> None:
        raise error

    rank._pump.turn = turn
    rank.start()
    rank._thread.join(10)
    with pytest.raises(ConfigError, match=said):
        rank.require_alive()


@pytest.mark.parametrize("error", [Bug("a row of 7 bytes"), IndexError("a row of 7 bytes")])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_seal_that_raises_ends_the_pump(rank: RankProcess, error: Exception) -> None:
    def raises(*_: object) -> None:
        raise error

    rank.engine._sums = {FULL: raises}
    rank.start()
    rank.engine.digest(DigestOrder(1, FULL, np.array([0]), np.array([0])))
    rank._thread.join(10)
    with pytest.raises(ConfigError, match="a row of 7 bytes"):
        rank.require_alive()


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"nmae": "x"}, "nmae"), ({"name": 5}, "name"), ({"fabric": "tcp"}, "fabric")],
)
def test_settings_that_cannot_be_read_are_refused_by_name(changes, said) -> None:
    with pytest.raises(ConfigError, match=said):
        settings_of(EXTRA | changes)
