"""Checks grammars on threads, in turns among clients, and remembers the verdicts.

    request ──known?──▶ verdict
       └──▶ its client's queue ──clients in turn, one check of each at a time──▶ thread ──▶ verdict

A thread cannot be stopped. What bounds a check is the work that a grammar may make, about half a
second of an idle core (baton.grammar.limits), and only that makes a grammar a bad one. The deadline
here bounds how long a request waits on a busy machine, and says nothing about its grammar.
llguidance works without Python's global lock, so the loop goes on meanwhile.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from baton.core.matchers import GrammarError
from baton.core.messages import Grammar
from baton.gateway.faults import overloaded, unavailable

THREADS = 2  # so that another client's grammar is checked while one with much work is
# Each takes half a second at most, so of more than these none would be in time.
WAITING_EACH = 16  # checks of one client
WAITING = 128  # checks of all
REMEMBERED = 1024  # verdicts
REMEMBERED_CHARS = 16 << 20  # of their grammars
Verdict = Grammar | GrammarError
Check = Callable[[], Grammar]


class _Job:
    """One check that waits or runs, for all requests with the same grammar."""

    def __init__(self, key: bytes, client: str, check: Check) -> None:
        self.key, self.client, self.check = key, client, check
        self.verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self.wanted = 0  # requests that wait for the verdict


class GrammarChecks:
    """The checks of one gateway. All calls are made on the loop.

    Args:
        retry_after_s: what clients are told that come when the queue is full
        deadline_s: how long a request waits for a verdict
    """

    def __init__(self, *, retry_after_s: int, deadline_s: float) -> None:
        self._retry_after_s, self._deadline_s = retry_after_s, deadline_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="baton-grammar")
        self._jobs: dict[bytes, _Job] = {}  # that have no verdict
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()  # by client, in turn
        self._running: set[str] = set()  # clients, of which each has one thread at most
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()  # oldest use first
        self._chars = 0  # of the grammars that are remembered

    async def grammar(self, key: bytes, client: str, check: Check) -> Grammar:
        """Return what `check` returns, which is called once for all requests with this key.

        Raises:
            GrammarError: `check` raised it
            HttpFault: 429, too many checks wait; 503, the check has not ended in time
        """
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = await self._in_time(self._jobs.get(key) or self._submit(key, client, check))
        else:
            self._verdicts.move_to_end(key)
        if isinstance(verdict, GrammarError):
            raise GrammarError(str(verdict))
        return verdict

    def knows(self, key: bytes) -> bool:
        """Whether the verdict on this key is remembered."""
        return key in self._verdicts

    def _submit(self, key: bytes, client: str, check: Check) -> _Job:
        of_client, of_all = (
            len(self._waiting.get(client, ())),
            sum(map(len, self._waiting.values())),
        )
        if of_client >= WAITING_EACH or of_all >= WAITING:
            raise overloaded(
                f"{of_client} grammars of this client and {of_all} of all wait to be checked; at "
                f"most {WAITING_EACH} and {WAITING} may. Ask again later, or for the same grammar "
                "in all requests: it is checked once",
                retry_after_s=self._retry_after_s,
            )
        job = self._jobs[key] = _Job(key, client, check)
        self._waiting.setdefault(client, deque()).append(job)
        return job

    def _start_jobs(self) -> None:
        while len(self._running) < THREADS:
            client = next((c for c in self._waiting if c not in self._running), None)
            if client is None:
                return
            queue = self._waiting[client]
            job = queue.popleft()
            if not queue:
                del self._waiting[client]
            if not job.wanted:
                del self._jobs[job.key]
                continue
            self._running.add(client)
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._threads, job.check)
            running.add_done_callback(partial(self._ended, job))

    def _ended(self, job: _Job, ended: "asyncio.Future[Grammar]") -> None:
        self._running.discard(job.client)
        if job.client in self._waiting:
            self._waiting.move_to_end(job.client)  # all others come first
        del self._jobs[job.key]
        self._start_jobs()
        failure = ended.exception()
        if failure is None:
            self._remember(job.key, ended.result())
            job.verdict.set_result(ended.result())
        elif isinstance(failure, GrammarError):
            self._remember(job.key, failure)
            job.verdict.set_result(failure)
        else:
            job.verdict.set_exception(failure)

    async def _in_time(self, job: _Job) -> Verdict:
        job.wanted += 1
        self._start_jobs()
        try:
            done, _ = await asyncio.wait({job.verdict}, timeout=self._deadline_s)
        finally:
            job.wanted -= 1
        if done:
            return job.verdict.result()
        raise unavailable(
            f"the grammar was not checked in {self._deadline_s:g} s, as others were before it or "
            "the machine is busy",
            code="queue_timeout",
            retry_after_s=self._retry_after_s,
        )

    def _remember(self, key: bytes, verdict: Verdict) -> None:
        self._verdicts[key] = verdict
        self._chars += _chars(verdict)
        while len(self._verdicts) > REMEMBERED or self._chars > REMEMBERED_CHARS:
            _, oldest = self._verdicts.popitem(last=False)
            self._chars -= _chars(oldest)


def _chars(verdict: Verdict) -> int:
    return len(verdict.text) if isinstance(verdict, Grammar) else len(str(verdict))
