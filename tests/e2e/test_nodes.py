"""The ranks of one worker started by two commands, as on two machines: they find each other, serve,
and end together."""

from pathlib import Path

import pytest
from tests.e2e.service import Service, free_port, wait_for

PROMPT = list(range(1, 60))


@pytest.mark.timeout(180)
def test_two_nodes_are_one_worker(tmp_path: Path, tiny: Path) -> None:
    service = Service(tmp_path, tiny)
    pages = ("--kv-pages", "40")
    nodes = ("--tp", "2", "--nnodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}")
    try:
        service.start_gateway()
        service.start_worker("prefill", *pages)
        second = service.start_worker("decode", *pages, *nodes, "--node-rank", "1", name="second")
        first = service.start_worker("decode", *pages, *nodes, "--node-rank", "0", name="first")
        service.wait_ready()
        assert len(service.ids(PROMPT, max_tokens=8, ignore_eos=True)) == 8
        (decode,) = [worker for worker in service.ledger()["workers"] if worker["role"] == "decode"]
        assert [rank["pid"] for rank in decode["ranks"]] == [first.pid, second.pid]
        service.wait_clean()
        first.kill()
        wait_for(
            lambda: second.popen.poll() is not None,
            seconds=10,
            why="the other node ends with rank 0",
        )
        assert "ranks end with their leader" in service.log("second")
    finally:
        service.close()
