"""Real processes of which something hangs, or that die of a request: replaced and refused in time,
and others are served."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from tests.e2e.gray_worker import POISON, RAISING_BIAS
from tests.e2e.reference import Reference
from tests.e2e.service import Service, wait_for

PROMPT = [(7 * i) % 200 + 1 for i in range(100)]
TOKENS = 12
REPLACED_S = 10.0
pytestmark = pytest.mark.timeout(180)


class Gray(Service):
    """Workers that do what they are told, and are started again when they end, as a supervisor
    would."""

    def start(self, role: str, name: str) -> None:
        """A worker; one that is started again is well."""
        order = self.directory / f"{name}-order"
        order.write_text("")
        main = ["-m", "tests.e2e.gray_worker", str(order)]
        self.start_worker(role, "--kv-pages", "40", "--page-size", "16", name=name, main=main)

    def hang(self, name: str) -> None:
        """From its next step on."""
        (self.directory / f"{name}-order").write_text("hang")

    def ended(self, name: str) -> bool:
        return self.processes[name].popen.poll() is not None

    def names(self, role: str) -> list[str]:
        return [name for name in self.processes if name.startswith(role)]


def started(tmp_path: Path, tiny: Path, *, prefills: int, decodes: int) -> Gray:
    service = Gray(tmp_path, tiny)
    try:
        service.start_gateway()
        for role, count in (("prefill", prefills), ("decode", decodes)):
            for i in range(count):
                service.start(role, f"{role}-{i}")
        pairs = prefills * decodes
        wait_for(
            lambda: service.why_not_ready().startswith(f"{pairs} pair"),
            seconds=60,
            why=f"{pairs} pairs",
        )
    except BaseException:
        service.close()
        raise
    return service


@pytest.fixture(scope="module")
def expected(tiny: Path) -> list[int]:
    return Reference(tiny).answer(PROMPT, TOKENS)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_step_that_never_ends_costs_its_requests_seconds_and_its_worker_is_replaced(
    tmp_path: Path, tiny: Path, expected: list[int], role: str
) -> None:
    """One worker of each role, so that everybody needs the one that hangs; a request's own deadline
    is 600 s."""
    with (
        closing(started(tmp_path, tiny, prefills=1, decodes=1)) as service,
        ThreadPoolExecutor(1) as pool,
    ):
        name = f"{role}-0"
        assert service.ids(PROMPT, max_tokens=TOKENS, ignore_eos=True) == expected
        service.hang(name)
        began = time.monotonic()
        asked = pool.submit(service.complete, [*PROMPT[1:], 3], max_tokens=TOKENS, ignore_eos=True)
        wait_for(
            lambda: service.ended(name), seconds=REPLACED_S, why="the worker that hangs is ended"
        )
        assert "has made no progress" in service.log(name)
        service.start(role, name)
        answer = asked.result(60)
        waited = time.monotonic() - began
        assert answer.status_code == 200, "it went on with the next worker"
        assert waited < REPLACED_S
        service.wait_ready()
        assert service.ids(PROMPT, max_tokens=TOKENS, ignore_eos=True) == expected
        service.wait_clean()


def test_a_request_that_kills_its_workers_is_refused_after_the_second_and_others_are_served(
    tmp_path: Path, tiny: Path, expected: list[int]
) -> None:
    with (
        closing(started(tmp_path, tiny, prefills=3, decodes=1)) as service,
        ThreadPoolExecutor(8) as pool,
    ):
        assert service.ids(PROMPT, max_tokens=TOKENS, ignore_eos=True) == expected
        poison = pool.submit(service.complete, [POISON, *PROMPT], max_tokens=TOKENS)
        others = [
            pool.submit(service.ids, PROMPT, max_tokens=TOKENS, ignore_eos=True) for _ in range(6)
        ]
        answer = poison.result(60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "poison_request")
        assert [other.result(60) for other in others] == [expected] * 6
        # A worker says goodbye before its process ends.
        wait_for(
            lambda: sum(map(service.ended, service.names("prefill"))) >= 2,
            seconds=20,
            why="two workers have ended",
        )
        assert service.ids(PROMPT, max_tokens=TOKENS, ignore_eos=True) == expected
        assert sum(map(service.ended, service.names("prefill"))) == 2


def test_what_one_row_raises_ends_that_request_alone(
    tmp_path: Path, tiny: Path, expected: list[int]
) -> None:
    with (
        closing(started(tmp_path, tiny, prefills=1, decodes=1)) as service,
        ThreadPoolExecutor(4) as pool,
    ):
        others = [
            pool.submit(service.ids, PROMPT, max_tokens=TOKENS, ignore_eos=True) for _ in range(3)
        ]
        answer = service.complete(PROMPT, max_tokens=TOKENS, logit_bias={"5": RAISING_BIAS})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "compute_failed")
        assert [other.result(60) for other in others] == [expected] * 3
        service.wait_clean()
