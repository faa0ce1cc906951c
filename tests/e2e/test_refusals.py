"""What real processes refuse: workers that do not fit together, and requests that cannot be
served."""

import re
from pathlib import Path

import pytest
from tests.e2e.service import Service, split, wait_for
from tests.gateway.bad_requests import bad_requests
from tests.tiny import VOCABULARY, make_tiny

PAGES, PAGE_TOKENS = 4, 64


def test_workers_of_another_dtype_or_other_weights_are_named_with_both_values(
    tmp_path: Path, tiny: Path
) -> None:
    """Nothing ends: another worker may fit. The operator reads why in /ready and in the gateway's
    log, once."""
    service = Service(tmp_path, tiny)
    try:
        service.start_gateway()
        service.start_worker("prefill")
        service.start_worker("decode", "--dtype", "bfloat16", name="rounded")
        service.model = make_tiny(tmp_path / "other", seed=1)
        service.start_worker("decode", name="stranger")

        wait_for(
            lambda: service.why_not_ready().count("do not fit") == 2,
            seconds=60,
            why="both are refused",
        )
        told = dict(
            re.findall(
                r"(rounded|stranger) and prefill do not fit: (.*?)(?=; (?:rounded|stranger) "
                r"and|$)",
                service.why_not_ready(),
            )
        )
        assert (
            "dtype differs: ours is 'bfloat16', theirs is 'float32': start both with the "
            "same --dtype" in told["rounded"]
        )
        assert len(set(re.findall(r"[0-9a-f]{64}", told["stranger"]))) == 2, "both identities"
        assert "start both from the same checkpoint" in told["stranger"]
        answer = service.complete("a", max_tokens=1)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert "do not fit" in answer.json()["error"]["message"]
        lines = [line for line in service.log("gateway").splitlines() if "pair_refused" in line]
        assert len(lines) == 2, lines
        assert all(p.popen.poll() is None for p in service.processes.values())
    finally:
        service.close()


@pytest.mark.slow
def test_a_service_goes_on_after_every_bad_request(tmp_path: Path, tiny: Path) -> None:
    """The table of the gateway's tests, against processes; the pool is smaller than the model's
    context."""
    pool = ("--kv-pages", str(PAGES))
    rows = bad_requests(
        model="m",
        vocabulary=VOCABULARY,
        room=PAGES * PAGE_TOKENS,
        what="the smallest worker's memory",
    )
    with split(tmp_path, tiny, prefill=pool, decode=pool) as service:
        good = service.ids("The first runner", max_tokens=5)
        for name, row in rows.items():
            answer = service.http.post(
                row.path, content=row.body, headers={"content-type": "application/json"}
            )
            assert (answer.status_code, answer.json()["error"]["param"]) == (
                row.status,
                row.param,
            ), name
            message = answer.json()["error"]["message"]
            assert [word for word in row.words if word not in message] == [], (name, message)
            assert service.ids("The first runner", max_tokens=5) == good, name
        service.wait_clean()
        assert all("Traceback" not in service.log(process) for process in service.processes)
