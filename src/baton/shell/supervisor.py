"""Keeps the programs of a service running: starts them, restarts those that die, stops them all.

    STARTING ──probe says ready──▶ SERVING ──signal──▶ STOPPING ──all gone──▶ exit 0
        └──a program cannot start──────────────────────▶ STOPPING ──all gone──▶ exit 1 or 2

One thread sleeps in one `poll` on process descriptors, output pipes and the signal socket, until
the next timer.
- If a program exits with code 2 before the service is ready, its settings are wrong: no retry.
- After any other death the program is restarted, after a pause that doubles each time unless it
  had ended in order (code 0). Before the service is ready, this happens a few times only.
- The first signal stops the programs gently, one group after the other: what does not end in its
  turn is asked for its stacks with SIGQUIT, and killed. The second signal kills all.
- The kernel kills the programs if the supervisor dies (shell/leash.py).

Programs are processes of this machine, unless `start` runs them elsewhere (launch/).
"""

import select
import signal
import time
from collections.abc import Callable, Sequence
from enum import Enum

import msgspec

from baton.shell.child import Child, Program, Running
from baton.shell.signals import Signals

MISCONFIGURED = 2  # exit code of a program that must not be tried again
PREFIX = "baton: "  # of the one line in which a program says why it cannot start


class Patience(msgspec.Struct, frozen=True):
    """How long the supervisor waits, in seconds."""

    grace_s: float = 4.5  # for each group of programs, between SIGTERM and SIGKILL
    requests_s: float = 0.0  # added for the first group, which ends when open requests have
    stacks_s: float = 0.3  # between SIGQUIT and SIGKILL
    first_pause_s: float = 0.2  # before the first restart
    longest_pause_s: float = 5.0
    settled_s: float = 10.0  # after a life this long, the next pause is the first one again
    probe_every_s: float = 0.2
    start_failures: int = 3  # most deaths of one program before the service is ready


class Started(msgspec.Struct, frozen=True):
    """A program was started."""

    name: str
    pid: int


class LineWritten(msgspec.Struct, frozen=True):
    """A program wrote a line."""

    name: str
    line: str


class NotReady(msgspec.Struct, frozen=True):
    """The service is not ready; `why` is the probe's answer."""

    why: str


class Ready(msgspec.Struct, frozen=True):
    """The service has become ready for the first time."""


class Died(msgspec.Struct, frozen=True):
    """A program ended unasked. It is restarted after `again_in_s`; None = it is not restarted."""

    name: str
    how: str
    again_in_s: float | None


class GaveUp(msgspec.Struct, frozen=True):
    """The service cannot start; `why` is the program's own message if it wrote one."""

    name: str
    why: str


class Stopping(msgspec.Struct, frozen=True):
    """The programs are being stopped."""


class Killed(msgspec.Struct, frozen=True):
    """A program has not ended `waited_s` after SIGTERM, so it is killed.

    It gets SIGQUIT before, to which Baton's programs answer with the stacks of their threads.
    """

    name: str
    waited_s: float


Event = Started | LineWritten | NotReady | Ready | Died | GaveUp | Stopping | Killed
Tell = Callable[[Event], None]
Start = Callable[[Program], Running]  # must return at once
# says what the service waits for, None = ready; must return within some 100 ms
Probe = Callable[[], str | None]


class Phase(Enum):
    """The phase of the service's life."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


class _Post:
    """One program, with its running process or the time of its next start."""

    def __init__(self, program: Program, start: Start) -> None:
        self.program, self._start = program, start
        self.child: Running | None = None
        self.start_at: float | None = 0.0
        self.started_at = 0.0
        self.deaths = 0  # in a row
        self.last_words: str | None = None

    def start(self, now: float) -> Running:
        self.child, self.start_at, self.started_at, self.last_words = (
            self._start(self.program),
            None,
            now,
            None,
        )
        return self.child

    def signal(self, signum: signal.Signals) -> None:
        if self.child is not None:
            self.child.signal(signum)

    def hear(self, lines: Sequence[str], tell: Tell) -> None:
        for line in lines:
            if line.startswith(PREFIX):
                # reported once, with the death that it explains
                self.last_words = line.removeprefix(PREFIX)
            else:
                tell(LineWritten(self.program.name, line))


class Supervisor:
    """Starts and watches programs, and restarts those that die.

    `run` is called once, in the main thread.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        probe: Probe,
        tell: Tell,
        patience: Patience,
        start: Start = Child,
    ) -> None:
        self._posts = [_Post(program, start) for program in programs]
        self._probe, self._tell, self._patience = probe, tell, patience
        self._phase = Phase.STARTING
        self._probe_at = 0.0
        self._asked: list[_Post] = []  # to end
        self._asked_at = self._kill_at = 0.0  # of the last ones asked
        self._late: list[_Post] = []  # those that have got SIGQUIT
        self._code = 0

    def run(self) -> int:
        """Run the service to its end; returns the exit code.

        0 after a signal, 128 + signal after a second one, 1 or 2 if the service cannot start.
        """
        try:
            with Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
                while self._phase is not Phase.STOPPING or any(post.child for post in self._posts):
                    self._sleep(signals)
                    for signum in signals.take():
                        if self._phase is Phase.STOPPING:
                            self._code = 128 + signum
                            return self._code
                        self._stop(code=0)
                    self._look()
                    self._act(time.monotonic())
            return self._code
        finally:
            for post in self._posts:
                if post.child is not None:
                    post.child.signal(signal.SIGKILL)
                    post.child.reap()

    def _sleep(self, signals: Signals) -> None:
        """Sleep until something happens or the next timer is due."""
        waiting = select.poll()
        waiting.register(signals.fileno(), select.POLLIN)
        for post in self._posts:
            if post.child is not None:
                waiting.register(post.child.ended, select.POLLIN)
                if post.child.talking:
                    waiting.register(post.child.output, select.POLLIN)
        timer = self._next_timer()
        waiting.poll(None if timer is None else max(0.0, timer - time.monotonic()) * 1000 + 1)

    def _next_timer(self) -> float | None:
        if self._phase is Phase.STOPPING:
            return self._kill_at
        timers = [post.start_at for post in self._posts if post.start_at is not None]
        if self._phase is Phase.STARTING:
            timers.append(self._probe_at)
        return min(timers, default=None)

    def _look(self) -> None:
        """Read the output of the programs and find those that have ended."""
        ended = select.poll()
        for post in self._posts:
            if post.child is not None:
                post.hear(list(post.child.lines()), self._tell)
                ended.register(post.child.ended, select.POLLIN)
        gone = {fd for fd, _ in ended.poll(0)}
        for post in self._posts:
            if post.child is not None and post.child.ended in gone:
                code, last = post.child.reap()
                post.child = None
                post.hear(last, self._tell)
                self._bury(post, code)

    def _bury(self, post: _Post, code: int) -> None:
        """Decide what a death means."""
        if self._phase is Phase.STOPPING:
            return
        now, name = time.monotonic(), post.program.name
        settled = now - post.started_at >= self._patience.settled_s
        if self._phase is Phase.SERVING and (settled or code == 0):
            post.deaths = 0
        post.deaths += 1
        if self._phase is Phase.STARTING and (
            code == MISCONFIGURED or post.deaths >= self._patience.start_failures
        ):
            self._tell(GaveUp(name, post.last_words or _how(code)))
            self._stop(code=MISCONFIGURED if code == MISCONFIGURED else 1)
            return
        pause = min(
            self._patience.first_pause_s * 2 ** min(post.deaths - 1, 30),
            self._patience.longest_pause_s,
        )
        post.start_at = now + pause
        self._tell(
            Died(name, f"ended: {post.last_words}" if post.last_words else _how(code), pause)
        )

    def _stop(self, *, code: int) -> None:
        self._phase, self._code = Phase.STOPPING, code
        self._tell(Stopping())

    def _ask_to_end(self, now: float) -> None:
        """Send SIGTERM, once each, to the running programs with the lowest `ends`."""
        running = [post for post in self._posts if post.child is not None]
        turn = min((post.program.ends for post in running), default=0)
        asked = [p for p in running if p.program.ends == turn and p not in self._asked]
        if not asked:
            return
        first = not self._asked
        patience = self._patience.grace_s + (self._patience.requests_s if first else 0.0)
        self._asked_at, self._kill_at = now, now + patience
        self._asked += asked
        for post in asked:
            post.signal(signal.SIGTERM)

    def _kill_asked(self, now: float) -> None:
        """Kill the programs that were asked to end and have not, after a last word."""
        self._kill_at = now + self._patience.stacks_s
        for post in self._asked:
            if post.child is None:
                continue
            if post in self._late:
                post.signal(signal.SIGKILL)
            else:
                self._late.append(post)
                self._tell(Killed(post.program.name, now - self._asked_at))
                post.signal(signal.SIGQUIT)

    def _act(self, now: float) -> None:
        """Do what is due at this time."""
        if self._phase is Phase.STOPPING:
            self._ask_to_end(now)
            if now >= self._kill_at:
                self._kill_asked(now)
            return
        for post in self._posts:
            if post.start_at is not None and now >= post.start_at:
                self._tell(Started(post.program.name, post.start(now).pid))
        if self._phase is Phase.STARTING and now >= self._probe_at:
            self._look_whether_ready()

    def _look_whether_ready(self) -> None:
        why = self._probe()
        self._probe_at = time.monotonic() + self._patience.probe_every_s
        if why is None:
            self._phase = Phase.SERVING
            self._tell(Ready())
        else:
            self._tell(NotReady(why))


def _how(code: int) -> str:
    """Describe an exit code in words."""
    return (
        f"ended with exit code {code}"
        if code >= 0
        else f"was ended by {signal.Signals(-code).name}"
    )
