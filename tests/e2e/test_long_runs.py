"""What takes minutes: a peer that restarts again and again at one address, and thousands of clients
that leave."""

import asyncio
import random
import signal
import threading
import time
from pathlib import Path

import aiohttp
import pytest
from tests.e2e.service import Footprint, Service, free_port, split, wait_for

POOLS = ("--kv-pages", "300")
RESTARTS = 50
SETTLED_S = 5.0  # what belonged to a peer that is gone goes within 3 s of its silence
LAZY = 2  # connections to a peer that are opened when they are first needed
LEAVERS, WITHIN_S = 2_000, 30.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Askers:
    """Clients that ask without a pause, and compare what they get."""

    def __init__(self, service: Service, clients: int) -> None:
        self.answered, self.faults = 0, list[str]()
        self._service, self._stop = service, threading.Event()
        self._prompts = [[(7 * i + n) % 250 + 1 for i in range(20 + 30 * n)] for n in range(6)]
        self._expected = [self._ask(n) for n in range(len(self._prompts))]
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self, n: int) -> list[int]:
        return self._service.ids(self._prompts[n], max_tokens=20, ignore_eos=True)

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._stop.is_set():
            n = chance.randrange(len(self._prompts))
            answer = self._service.complete(self._prompts[n], max_tokens=20, ignore_eos=True)
            if answer.status_code == 503:  # the only prefill worker drains
                time.sleep(0.1)
            elif answer.status_code != 200:
                self.faults.append(answer.text)
            elif answer.json()["choices"][0]["token_ids"] != self._expected[n]:
                self.faults.append(f"prompt {n}: another answer")
            else:
                self.answered += 1

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("fabric", ["shm", "tcp", "nixl"])
def test_a_prefill_worker_that_restarts_at_the_same_port_leaves_nothing_in_decode(
    tmp_path: Path, tiny: Path, fabric: str
) -> None:
    """Killed and drained in turns, while clients ask. Were it killed each time, requests would be
    refused that two of its incarnations died of."""
    prefill = (*POOLS, "--bind", f"tcp://127.0.0.1:{free_port()}", "--drain-timeout", "60")
    alone = (*POOLS, "--host-kv-memory", "0")
    with split(tmp_path, tiny, fabric=fabric, prefill=prefill, decode=alone) as service:
        service.http.headers["connection"] = "close"
        decode = service.processes["decode"]

        def restarted(times: int) -> tuple[int, Footprint]:
            """Restart it, and return how many were answered, and what decode holds at rest."""
            askers = Askers(service, clients=3)
            try:
                for number in range(times):
                    old, before = service.processes["prefill"], askers.answered
                    if number % 2:
                        old.kill()
                    else:
                        old.popen.send_signal(signal.SIGTERM)
                        old.popen.wait(60)
                    service.start_worker("prefill", *prefill)
                    wait_for(
                        lambda before=before: askers.faults or askers.answered >= before + 3,
                        seconds=120,
                        why=f"answers after restart {number}",
                    )
                    assert decode.popen.poll() is None, service.log("decode")[-3000:]
            finally:
                askers.stop()
            assert askers.faults == []
            service.wait_ready()
            service.wait_clean(10)
            time.sleep(SETTLED_S)
            return askers.answered, Footprint(decode.pid)

        _, before = restarted(4)  # what is made lazily is made now
        answered, after = restarted(RESTARTS)
        print(f"\n{fabric}: {RESTARTS} restarts, {answered} answers; before, after:")
        for what, now in vars(after).items():
            print(f"  {what} {getattr(before, what)} {now}")
        for what in ("files", "threads", "sockets"):
            assert getattr(after, what) <= getattr(before, what) + LAZY, what
        assert after.shared_mappings <= before.shared_mappings
        assert after.anon_mib - before.anon_mib < 40


def test_2000_clients_leave_at_random_moments_and_nothing_is_held(
    tmp_path: Path, tiny: Path
) -> None:
    with split(tmp_path, tiny, prefill=POOLS, decode=POOLS) as service:
        counts = asyncio.run(_all_leave(f"http://127.0.0.1:{service.port}/v1/completions"))
        left = time.monotonic()
        service.wait_clean(2)
        print(f"\n{counts}; the ledger is clean after {time.monotonic() - left:.2f} s")
        assert counts["left"] + counts["refused"] == LEAVERS
        assert counts["left"] > LEAVERS // 2
        assert service.ids([1, 2, 3], max_tokens=5, ignore_eos=True)


async def _all_leave(url: str) -> dict[str, int]:
    """Send all requests and leave each, within the time. How many had some of their answer."""
    counts = {"left": 0, "refused": 0, "before a token": 0}

    async def one(http: aiohttp.ClientSession, n: int) -> None:
        chance = random.Random(n)
        sent, stays = chance.uniform(0, WITHIN_S), 10 ** chance.uniform(-2.5, 0.5)
        body = {
            "model": "m",
            "prompt": [chance.randint(1, 250) for _ in range(chance.randint(1, 300))],
            "max_tokens": 3000,  # nobody reads it to the end
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        await asyncio.sleep(sent)
        pieces = 0
        try:
            async with asyncio.timeout(min(stays, WITHIN_S - sent)):
                async with http.post(url, json=body) as response:
                    if response.status != 200:
                        counts["refused"] += 1
                        return
                    async for _ in response.content.iter_any():
                        pieces += 1
        except TimeoutError:
            counts["left"] += 1
            counts["before a token"] += pieces == 0

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        await asyncio.gather(*(one(http, n) for n in range(LEAVERS)))
    return counts
