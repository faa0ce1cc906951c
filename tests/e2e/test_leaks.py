"""Mixed traffic with aborts at random moments: afterwards everything is back, to the last page and
descriptor."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.e2e.service import Footprint, Service, split, wait_for

PAGES = 64
PAGE = 16
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", params=["shm", "nixl"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny: Path
) -> Iterator[Service]:
    flags = ("--kv-pages", str(PAGES), "--page-size", str(PAGE))
    # the thread that copies to host memory comes with the first request that gives way:
    # tests/e2e/test_pressure.py is about those
    alone = (*flags, "--host-kv-memory", "0")
    with split(
        tmp_path_factory.mktemp("leaks"), tiny, fabric=request.param, prefill=flags, decode=alone
    ) as s:
        # what the service keeps open for the next request is not counted
        s.http.headers["connection"] = "close"
        yield s


def one(service: Service, n: int) -> str:
    """A request of random size; every third is left by its client at a random moment."""
    rng = random.Random(n)
    prompt = [rng.randint(1, 250) for _ in range(rng.randint(1, 300))]
    fields = {
        "max_tokens": rng.randint(1, 60),
        "temperature": rng.choice([0, 0.8]),
        "ignore_eos": True,
        "seed": n,
    }
    if n % 3:
        answer = service.complete(prompt, **fields)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["choices"][0]["token_ids"]) == fields["max_tokens"]
        return "done"
    # Long enough that it cannot be done before its client goes.
    body = {"model": "m", "prompt": prompt, "stream": True} | fields | {"max_tokens": 700}
    patience = rng.choice([0.002, 0.01, 0.03, 0.06, 0.1])
    try:
        with httpx.stream(
            "POST", f"http://127.0.0.1:{service.port}/v1/completions", json=body, timeout=patience
        ) as answer:
            until = time.monotonic() + patience
            last = ""
            for number, line in enumerate(answer.iter_lines()):
                last = line or last
                if time.monotonic() > until or number > n % 8:
                    return "left"
    except httpx.TimeoutException:
        return "left"
    return f"prompt of {len(prompt)}, status {answer.status_code}: {last}"


def footprints(service: Service) -> dict[str, Footprint]:
    return {name: Footprint(p.pid) for name, p in service.processes.items()}


def traffic(service: Service, numbers: range) -> list[str]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda n: one(service, n), numbers))


def test_300_requests_100_of_them_left_by_their_clients(service: Service) -> None:
    traffic(service, range(40))  # whatever is made lazily is made now
    service.wait_clean()
    before = footprints(service)
    outcomes = traffic(service, range(300))
    assert {*outcomes} == {"left", "done"}
    assert outcomes.count("left") == 100
    service.wait_clean(2)

    def grown() -> list[str]:
        after = footprints(service)
        counts = [
            (n, what, getattr(before[n], what), getattr(after[n], what))
            for n in before
            for what in ("files", "threads", "sockets")
        ]
        return [
            f"{n} has {now} {what}, {then} before" for n, what, then, now in counts if now > then
        ]

    try:
        wait_for(lambda: not grown(), seconds=8, why="files, threads and sockets are as before")
    except AssertionError as error:
        raise AssertionError(f"{error}: {grown()}") from None
    after = footprints(service)
    for name in before:
        assert after[name].shared_mappings == before[name].shared_mappings
        assert after[name].anon_mib - before[name].anon_mib < 40, name
    # One request that needs every page of each pool.
    whole = [1 + i % 250 for i in range(PAGES * PAGE - 1)]
    assert service.complete(whole, max_tokens=1, ignore_eos=True).status_code == 200
    tokens = service.ids(whole[: PAGES * PAGE - 20], max_tokens=20, ignore_eos=True)
    assert len(tokens) == 20
    service.wait_clean()


def test_memory_of_a_worker_is_bounded_and_its_pool_is_not_anonymous(service: Service) -> None:
    for name in ("prefill", "decode"):
        assert Footprint(service.processes[name].pid).anon_mib < 1024


def test_a_pool_larger_than_the_machine_is_refused_before_allocation(
    tmp_path: Path, tiny: Path
) -> None:
    service = Service(tmp_path, tiny)
    worker = service.start_worker("prefill", "--kv-memory", "4TiB")
    try:
        assert worker.popen.wait(30) == 2
        last = service.log("prefill").strip().splitlines()
        assert len(last) == 1, last
        assert "pool" in last[0]
    finally:
        service.close()
