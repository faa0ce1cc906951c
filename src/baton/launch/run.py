"""A program that runs in actors, as the supervisor sees it: its output, its end, its signals.

A worker has one actor for each rank, the gateway has one. A worker ends with its ranks: when one
process has ended, the others are ended too, and the exit code is that of the first.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from signal import SIGINT, SIGKILL, SIGTERM, Signals
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError

from baton import __version__
from baton.launch.actor import Prepared
from baton.launch.raylet import Raylet
from baton.shell.supervisor import PREFIX

POLL_S = 0.2  # between looks at whether a wait for Ray has been given up
PATIENCE_S = 3.0  # of the other ranks after SIGTERM, and of an actor that must report a kill
SAY_AFTER_S = 5.0  # a wait for Ray that lasts longer is told

MakeActor = Callable[[], Any]
Document = Callable[[int, str | None], bytes]  # (rank, rendezvous) -> settings of the process


class Seat:
    """The place of one process: an actor, which Ray restarts, and which is made anew if Ray has
    given it up."""

    def __init__(self, make: MakeActor) -> None:
        self._make = make
        self._actor: Any = None

    def actor(self) -> Any:
        """Return the actor; it may still wait for its node."""
        if self._actor is None:
            self._actor = self._make()
        return self._actor

    def leave(self) -> None:
        """Kill the actor."""
        if self._actor is not None:
            actor, self._actor = self._actor, None
            ray.kill(actor)


class _Cancelled(Exception):
    """The program has been asked to end before it had started, or it cannot start any more."""


class RemoteRun:
    """Implements Running with actors.

    One thread waits for the actors, so that nothing here makes the supervisor wait.
    """

    def __init__(
        self,
        name: str,
        arguments: tuple[str, ...],
        seats: Sequence[Seat],
        document: Document,
        raylet: Raylet,
    ) -> None:
        self.ended, self.output = (os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2))
        self.talking = True
        self._name, self._arguments, self._seats = name, arguments, seats
        self._document, self._raylet = document, raylet
        self._lock = threading.Lock()  # over all that follows
        self._said: deque[str] = deque()
        self._actors: list[Any] = []  # those that hold a process; empty = not started yet
        self._pid = 0
        self._asked: Signals | None = None
        self._give_up_at: float | None = None
        self._closed = False
        self._code = 1
        self._thread = threading.Thread(target=self._run, name=f"ray-{name}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._pid

    def lines(self) -> Iterator[str]:
        with self._lock:
            if self._said and not self._closed:
                os.eventfd_read(self.output)
            said, self._said = self._said, deque()
        yield from said

    def signal(self, signum: Signals) -> None:
        with self._lock:
            self._asked = signum
            if signum is SIGKILL:
                self._give_up_at = time.monotonic() + PATIENCE_S
            self._send(signum)

    def reap(self) -> tuple[int, list[str]]:
        self._thread.join(2 * PATIENCE_S)
        said = list(self.lines())
        with self._lock:
            self._closed = True
            os.close(self.ended)
            os.close(self.output)
        return self._code, said

    def _send(self, signum: Signals) -> None:
        for actor in self._actors:
            actor.signal.remote(int(signum))

    def _say(self, *lines: str) -> None:
        with self._lock:
            if lines and not self._closed:
                self._said.extend(lines)
                os.eventfd_write(self.output, 1)

    def _run(self) -> None:
        try:
            self._start()
            self._code = self._follow()
        except _Cancelled:
            self._code = -int(self._asked or SIGTERM)
        except RayError as error:
            self._code = self._lost(error)
        finally:
            with self._lock:
                if not self._closed:
                    os.eventfd_write(self.ended, 1)

    def _start(self) -> None:
        """Start the processes.

        Raises:
            RayError: an actor has died
        """
        actors = [seat.actor() for seat in self._seats]
        # Ray repeats this call until the actor lives: on its first node, or after a restart.
        there = [actor.prepare.options(max_task_retries=-1).remote() for actor in actors]
        prepared: list[Prepared] = self._wait(there)
        if odd := {p.version for p in prepared} - {__version__}:
            self._say(f"warning: its node has Baton {odd.pop()}, and this one has {__version__}")
        # The ranks of a worker are on one node, so loopback is enough for their rendezvous.
        rendezvous = f"127.0.0.1:{prepared[0].port}" if len(actors) > 1 else None
        pids = self._wait(
            [
                actor.start.remote(self._name, self._arguments, self._document(rank, rendezvous))
                for rank, actor in enumerate(actors)
            ]
        )
        self._say(f"runs on {prepared[0].host}, process {', '.join(map(str, pids))}")
        with self._lock:
            self._actors, self._pid = actors, pids[0]
            if self._asked is not None:
                self._send(self._asked)

    def _wait(self, results: list[Any]) -> list[Any]:
        """Wait for results of actors, which may have to wait for a node.

        Raises:
            _Cancelled: the program has been asked to end, or Ray can start nothing any more
            RayError: an actor has died
        """
        say_at = time.monotonic() + SAY_AFTER_S
        while True:
            try:
                return list(ray.get(results, timeout=POLL_S))
            except GetTimeoutError:
                if self._asked is not None:
                    raise _Cancelled from None
            if self._raylet.ended:
                raise _Cancelled
            if time.monotonic() >= say_at:
                self._say("waits for Ray to start it on a node")
                say_at = float("inf")

    def _follow(self) -> int:
        """Hand on the output until every process has ended; returns the exit code of the first."""
        follows = {actor.follow.remote(): rank for rank, actor in enumerate(self._actors)}
        first: int | None = None
        kill_at = float("inf")
        while follows:
            done, _ = ray.wait(list(follows), num_returns=1, timeout=POLL_S)
            for result in done:
                rank = follows.pop(result)
                lines, code = self._news(result, rank, tell=first is None)
                self._say(*lines)
                if code is None:
                    follows[self._actors[rank].follow.remote()] = rank
                elif first is None:
                    first, kill_at = code, time.monotonic() + PATIENCE_S
                    # the first ends a rank that loads, the second one that would drain
                    self._send(SIGTERM)
                    self._send(SIGINT)
            now = time.monotonic()
            if now >= kill_at:
                kill_at = float("inf")
                self.signal(SIGKILL)
            if self._raylet.ended or (self._give_up_at is not None and now >= self._give_up_at):
                break
        return first if first is not None else -SIGKILL

    def _news(self, result: Any, rank: int, *, tell: bool) -> tuple[list[str], int | None]:
        """Return new lines and the exit code of a rank; `tell`: whether its reason counts."""
        try:
            lines, code = ray.get(result)
        except RayError as error:
            return [], self._lost(error, rank) if tell else -SIGKILL
        # The supervisor shows one reason for a death, and that is the reason of the first rank.
        return [line for line in lines if tell or not line.startswith(PREFIX)], code

    def _lost(self, error: RayError, rank: int | None = None) -> int:
        """Say that an actor is lost; its process has ended with it. Returns the exit code."""
        for seat in self._seats if isinstance(error, ActorDiedError) else ():
            seat.leave()  # Ray does not restart it any more
        which = f" of rank {rank}" if rank is not None and len(self._seats) > 1 else ""
        self._say(f"{PREFIX}its Ray actor{which} is lost: {brief(error)}")
        return -SIGKILL


def brief(error: Exception) -> str:
    """Return an error of Ray on one line; of a long one its beginning and its end."""
    words = " ".join(str(error).split())
    return words if len(words) <= 300 else f"{words[:100]} ... {words[-190:]}"
