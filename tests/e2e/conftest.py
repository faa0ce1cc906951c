"""Shared services: starting one costs seconds, so tests that leave it clean share it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.nursery import Nursery
from tests.e2e.service import TRIAL, Service, split, unified
from tests.tiny import make_tiny

FABRICS = ("shm", "nixl")


@pytest.fixture(scope="session")
def trial() -> Path:
    """The trial model, fetched on first use."""
    from baton.engine.trial import pull_smollm2

    return pull_smollm2(TRIAL, print)


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
def trial_split(tmp_path_factory: pytest.TempPathFactory, trial: Path) -> Iterator[Service]:
    """The trial model, prefill and decode apart."""
    with split(tmp_path_factory.mktemp("split"), trial, prefill=("--kv-pages", "700"), decode=("--kv-pages", "900")) as s:
        yield s


@pytest.fixture(scope="module")
def trial_unified(tmp_path_factory: pytest.TempPathFactory, trial: Path) -> Iterator[Service]:
    """The trial model in one worker."""
    with unified(tmp_path_factory.mktemp("unified"), trial, "--kv-pages", "900") as s:
        yield s
