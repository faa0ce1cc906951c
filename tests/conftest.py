"""Two kinds of tests: those of whole services, which hold real processes to times of seconds, and
all others, for which what they wait for may take long. `make test` runs the first two at a time,
then the others on all cores.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

HERE = Path(__file__).parent
SERVICES = HERE / "e2e"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--only", choices=("services", "others"), help="tests of whole services, or all but those"
    )


def pytest_configure() -> None:
    """A run in the background of a shell has SIGINT ignored, and so would have every process that a
    test interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _left_out(path: Path, config: pytest.Config) -> bool:
    only = config.getoption("--only")
    return only is not None and (SERVICES in path.parents) is not (only == "services")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spares the imports of what is not run."""
    return True if collection_path.is_file() and _left_out(collection_path, config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Paths given by hand are collected in any case."""
    out = [item for item in items if _left_out(item.path, config)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if not _left_out(item.path, config)]


@pytest.fixture(scope="session")
def logs_at_first() -> dict[str, Any]:
    """How logs are set up before anything else of this process has run: a fixture of a whole module
    may set them up too."""
    return structlog.get_config()


@pytest.fixture(autouse=True)
def _own_logs(logs_at_first: dict[str, Any]) -> Iterator[None]:
    """A command that runs in this process sets its logs up, and a simulated world wants none.
    Neither outlives its test."""
    yield
    structlog.configure(**logs_at_first)
