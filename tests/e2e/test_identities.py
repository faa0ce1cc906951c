"""A service whose processes have identities: one that is revoked is out, and may come back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.service import Service, wait_for

from baton.adapters.identity import new_identity

GONE_S = 10.0
PROMPT = [1 + 7 * i % 250 for i in range(50)]


@pytest.fixture
def members(tmp_path: Path) -> Path:
    for name in ("gateway", "prefill", "decode"):
        new_identity(name, tmp_path / f"{name}.key", tmp_path / "members")
    return tmp_path / "members"


@pytest.fixture
def service(tmp_path: Path, tiny: Path, members: Path) -> Iterator[Service]:
    service = Service(tmp_path, tiny)

    def flags(name: str) -> tuple[str, ...]:
        return ("--secret", str(tmp_path / f"{name}.key"), "--members", str(members))

    try:
        service.start_gateway(*flags("gateway"))
        for role in ("prefill", "decode"):
            service.start_worker(role, *flags(role), "--fabric", "tcp", name=role)
        service.wait_ready()
        yield service
    finally:
        service.close()


def registered(service: Service) -> set[str]:
    return {worker["name"] for worker in service.ledger()["workers"]}


@pytest.mark.parametrize("who", ["prefill", "decode"])
def test_a_revoked_worker_is_out_and_comes_back_when_it_is_a_member_again(
    service: Service, members: Path, who: str
) -> None:
    expected = service.ids(PROMPT, max_tokens=8)
    lines = members.read_text().splitlines(keepends=True)
    members.write_text("".join(line for line in lines if not line.startswith(f"{who} ")))
    wait_for(lambda: who not in registered(service), seconds=GONE_S, why="it is out")
    members.write_text("".join(lines))
    service.wait_ready()
    assert service.ids(PROMPT, max_tokens=8) == expected
    service.wait_clean()
