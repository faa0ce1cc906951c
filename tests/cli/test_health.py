"""What a worker answers to probes, at each stage of its life."""

import threading

import httpx
import pytest

from baton.cli import health as module
from baton.cli.health import Health, serve_health
from baton.core.errors import ConfigError


class Worker:
    """Turns when it is woken, unless it hangs."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self.why_not_ready: str | None = "no gateway has answered"
        self.hangs = False

    def wake(self) -> None:
        if not self.hangs:
            threading.Timer(0.02, self._health.turned).start()


@pytest.fixture
def health(free_port):
    health = Health()
    serve_health(health, "127.0.0.1", free_port)
    return health


@pytest.fixture
def http(free_port, health):
    with httpx.Client(base_url=f"http://127.0.0.1:{free_port}") as client:
        yield client


def said(http, path):
    answer = http.get(path)
    return answer.status_code, answer.json()


def test_a_worker_that_loads_is_alive_and_not_ready(http):
    assert said(http, "/health") == (200, {"alive": True, "stage": "loading"})
    assert said(http, "/ready") == (503, {"ready": False, "why": "the worker is loading"})


def test_a_worker_is_ready_when_a_gateway_has_answered(http, health):
    worker = Worker(health)
    health.loaded(worker)
    assert said(http, "/ready") == (503, {"ready": False, "why": "no gateway has answered"})
    assert said(http, "/health") == (200, {"alive": True, "stage": "turning"})
    worker.why_not_ready = None
    assert said(http, "/ready") == (200, {"ready": True})


def test_a_worker_whose_main_thread_hangs_is_not_alive(http, health, monkeypatch):
    monkeypatch.setattr(module, "TURN_S", 0.1)
    worker = Worker(health)
    worker.hangs = True
    health.turned()  # what it did before does not count
    health.loaded(worker)
    status, body = said(http, "/health")
    assert (status, body["alive"]) == (503, False)
    assert "0.1 s" in body["why"]
    health.ending()  # it hung in a step that has ended since
    assert said(http, "/health")[0] == 200


def test_a_worker_that_ends_is_alive_and_not_ready(http, health):
    worker = Worker(health)
    worker.why_not_ready = None
    health.loaded(worker)
    health.ending()
    assert said(http, "/health")[0] == 200
    assert said(http, "/ready") == (503, {"ready": False, "why": "the worker is ending"})


def test_another_path_is_not_found(http):
    assert http.get("/metrics").status_code == 404


def test_a_port_in_use_is_named_with_its_flag(free_port, health):
    with pytest.raises(ConfigError, match=f"127.0.0.1:{free_port}: .*--health-port"):
        serve_health(Health(), "127.0.0.1", free_port)
