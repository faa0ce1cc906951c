"""Three machines, each with one process of a service, started by the commands of docs/deploy.md;
and a stranger on their network, who does not have the secret."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.machines import ADDRESSES, GATEWAY, MOVED, Machines, documented, ip
from tests.e2e.service import Footprint, alive, wait_for

from baton.adapters.fabrics import available

SMALL = ("--served-model-name", "m")
# As if the machines had kernels of their own: else UCX would read through shared memory.
APART = {"UCX_TLS": "tcp,self"}
BODY = {"model": "m", "prompt": list(range(1, 60)), "max_tokens": 6, "ignore_eos": True}
GREETING = b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f"  # that of every ZeroMQ socket


def start_worker(machines: Machines, role: str, fabric: str) -> None:
    flags = ("--kv-pages", "40", "--threads", "1", "--fabric", fabric)
    machines.start(role, documented()[role], *SMALL, *flags, env=APART)


@pytest.fixture(scope="module", params=["tcp", "nixl"])
def machines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny: Path
) -> Iterator[Machines]:
    """A service whose state moves by one fabric."""
    if shutil.which("ip") is None:
        pytest.skip("no command ip here")
    if why := available()[request.param]:
        pytest.skip(why)
    machines = Machines(tmp_path_factory.mktemp(f"machines-{request.param}"), tiny)
    try:
        try:
            machines.join()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces for this user: {error.stderr.decode().strip()}")
        machines.equip()
        machines.start("gateway", documented()["gateway"], *SMALL)
        for role in ("prefill", "decode"):
            start_worker(machines, role, request.param)
        wait_for(lambda: machines.ask("/ready")["ready"], seconds=150, why="three machines")
        yield machines
    finally:
        machines.part()


@pytest.mark.timeout(300)
def test_three_machines_serve_by_the_documented_commands(machines: Machines) -> None:
    """Without a flag that says where anybody is but the gateway."""
    assert machines.ask("/v1/completions", BODY)["usage"]["completion_tokens"] == 6
    assert f"reached_at={ADDRESSES['prefill']}" in machines.log("prefill")
    wait_for(lambda: machines.ask("/debug/ledger")["clean"], seconds=20, why="nothing is held")


@pytest.mark.timeout(300)
def test_a_stranger_gets_nothing_from_any_port_but_that_for_clients(machines: Machines) -> None:
    names = ("gateway", "prefill", "decode")
    places = [
        (ADDRESSES[name], port)
        for name in names
        for port in machines.listening(name)
        if (name, port) != ("gateway", 8000)
    ]
    assert {host for host, _ in places} >= {GATEWAY, ADDRESSES["prefill"]}
    assert machines.ask("/v1/completions", BODY)["usage"]["completion_tokens"] == 6
    before = {name: footprint(machines, name) for name in names}
    boots = [int(boot, 16) for boot in re.findall(r"peer_up boot=(\w+)", machines.log("gateway"))]
    said = machines.run("stranger", ["-m", "tests.e2e.knock"], json.dumps([places, boots]))
    answers, refusals = json.loads(said)
    assert len(answers) >= 6 * len(places)
    helpful = {
        place: answer
        for place, answer in answers.items()
        if bytes.fromhex(answer)[: len(GREETING)] not in (b"", GREETING) or len(answer) > 2 * 64
    }
    assert helpful == {}
    # NIXL's ports get what they take for noise; docs/fabrics.md says what they would answer to
    assert all(refusals.values())
    if "tcp" in machines.directory.name:
        assert any("has another secret" in why for why in refusals.values())
    assert all(alive(machines.processes[name].pid) for name in names)
    assert machines.ask("/v1/completions", BODY)["usage"]["completion_tokens"] == 6
    try:
        wait_for(lambda: not grown(machines, before), seconds=45, why="nothing stays behind")
    except AssertionError:
        raise AssertionError(f"{grown(machines, before)}, and before {before}") from None
    wait_for(lambda: machines.ask("/debug/ledger")["clean"], seconds=20, why="nothing is held")


def footprint(machines: Machines, name: str) -> dict[str, int]:
    """What a process holds."""
    held = Footprint(machines.processes[name].pid)
    return {"files": held.files, "threads": held.threads, "MiB": held.anon_mib}


def grown(machines: Machines, before: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """What processes hold now that hold more than before; a few MiB are nothing."""
    slack = {"files": 0, "threads": 0, "MiB": 8}
    now = {name: footprint(machines, name) for name in before}
    return {
        name: held
        for name, held in now.items()
        if any(held[what] > before[name][what] + slack[what] for what in slack)
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("machines", ["tcp"], indirect=True)
def test_another_secret_is_refused_by_name(machines: Machines) -> None:
    command = documented()["decode"].replace("/etc/baton/secret", "/etc/baton/other")
    stranger = machines.start("stranger", command, *SMALL, "--kv-pages", "40", "--threads", "1")
    lines = {
        "stranger": f"key_refused by=tcp://{GATEWAY}:5500",
        "gateway": f"wrong_key peer={ADDRESSES['stranger']}",
    }
    for name, words in lines.items():
        said = re.compile(f"{words} .*another secret.*--secret FILE")
        wait_for(lambda: said.search(machines.log(name)), seconds=90, why=words)  # noqa: B023
    stranger.end()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("machines", ["tcp"], indirect=True)
def test_a_gateway_that_moves_is_found_by_its_name(machines: Machines) -> None:
    machines.processes["gateway"].end()
    ip("-n", machines.space("gateway"), "addr", "add", f"{MOVED}/24", "dev", "cable")
    moved = documented()["gateway"].replace(GATEWAY, MOVED)
    machines.start("gateway", moved, *SMALL)
    wait_for(lambda: "none" in machines.ask("/ready")["why"], seconds=60, why="it is up, alone")
    machines.name_gateway(MOVED)
    wait_for(lambda: machines.ask("/ready")["ready"], seconds=60, why="the workers have found it")
    assert machines.ask("/v1/completions", BODY)["usage"]["completion_tokens"] == 6
