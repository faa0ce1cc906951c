"""Shared services: starting one costs seconds, so tests that leave it clean share it."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.e2e.nursery import Nursery
from tests.e2e.service import Service
from tests.tiny import make_tiny

FABRICS = ("shm", "nixl")
# pages of 64 tokens: the eight longest prompts of the trial model's tests, twice; more would be
# zeroed for nothing
POOL = "240"


@pytest.fixture(scope="session")
def trial() -> Path:
    """The trial model, fetched on first use."""
    from baton.cli.models import TRIAL as NAME
    from baton.cli.models import ensure

    return ensure(NAME)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers."""
    return make_tiny(tmp_path_factory.mktemp("tiny") / "model", "llama")


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Where the processes of fleets come from."""
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def trial_services(
    tmp_path_factory: pytest.TempPathFactory, trial: Path
) -> Iterator[tuple[Service, Service]]:
    """The trial model, prefill and decode apart, and in one worker: started together, as starting
    is waiting, mostly."""
    apart, together = (
        Service(tmp_path_factory.mktemp(name), trial) for name in ("split", "unified")
    )
    try:
        for service in (apart, together):
            service.start_gateway()
        apart.start_worker("prefill", "--kv-pages", POOL)
        apart.start_worker("decode", "--kv-pages", POOL)
        together.start_worker("unified", "--kv-pages", POOL)
        for service in (apart, together):
            service.wait_ready()
        yield apart, together
    finally:
        with closing(together), closing(apart):
            pass


@pytest.fixture
def trial_split(trial_services: tuple[Service, Service]) -> Service:
    """The one with prefill and decode apart."""
    return trial_services[0]


@pytest.fixture
def trial_unified(trial_services: tuple[Service, Service]) -> Service:
    """The other one."""
    return trial_services[1]
