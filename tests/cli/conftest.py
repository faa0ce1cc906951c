"""A checkpoint directory that is enough for a command line."""

import socket

import pytest
import structlog


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.fixture
def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(autouse=True)
def _logs_of_the_session():
    """A command that runs in this process sets its logs up; what it bound to a captured stderr must not outlive the test."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
