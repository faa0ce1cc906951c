"""The supervisor over tiny real programs. It runs in a process of its own, as its signals and its
death are what is tested."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from baton.shell.child import Program
from baton.shell.supervisor import Patience

DEADLINE_S = 30

HOST = """
import os, sys
import msgspec
from baton.shell.child import Program
from baton.shell.supervisor import Patience, Supervisor

programs, patience, ready = msgspec.json.decode(sys.argv[1], type=tuple[list[Program], Patience, str])
def tell(event):
    print(msgspec.json.encode([type(event).__name__, event]).decode(), flush=True)
sys.exit(Supervisor(programs, probe=lambda: None if os.path.exists(ready) else "not yet", tell=tell, patience=patience).run())
"""

STAYS = "import signal\nprint('up', flush=True)\nwhile True: signal.pause()"
STUBBORN = (
    "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', "
    "flush=True)\nwhile True: signal.pause()"
)
POLITE = (
    "import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: (os.write(1, "
    "b'bye\\n'), sys.exit(0)))\n"
    "print('up', flush=True)\nwhile True: signal.pause()"
)


def program(name, code, ends=0):
    return Program(name, (sys.executable, "-IS", "-c", code), ends)


class Host:
    """A supervisor's process, and what it told."""

    def __init__(self, *programs, tmp_path, ahead=(), **patience):
        self._ready = tmp_path / "ready"
        patience = Patience(**{"probe_every_s": 0.01, "first_pause_s": 0.01, **patience})
        config = msgspec.json.encode([programs, patience, str(self._ready)]).decode()
        # Where tests run under nohup, they ignore a hang-up, and their children would inherit that.
        hang_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self.process = subprocess.Popen(
            [*ahead, sys.executable, "-c", HOST, config], stdout=subprocess.PIPE
        )
        signal.signal(signal.SIGHUP, hang_up)
        self.heard, self._rest = [], b""

    def be_ready(self):
        self._ready.touch()
        self.expect("Ready")

    def _more(self, deadline):
        assert select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[
            0
        ], self.heard
        chunk = os.read(self.process.stdout.fileno(), 65536)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self.heard += [json.loads(line) for line in lines]
        return chunk

    def expect(self, kind, **fields):
        """The next event of that kind and fields that has not been taken yet."""
        deadline, looked = time.monotonic() + DEADLINE_S, 0
        while True:
            for i, (name, event) in enumerate(self.heard[looked:], start=looked):
                if name == kind and fields.items() <= event.items():
                    del self.heard[: i + 1]
                    return event
            looked = len(self.heard)
            assert self._more(deadline), f"the supervisor ended: {self.heard}"

    def end(self):
        """Its exit code, and all that was told since the last `expect`."""
        deadline = time.monotonic() + DEADLINE_S
        while self._more(deadline):
            pass
        return self.process.wait(DEADLINE_S), [name for name, _ in self.heard]


@pytest.fixture
def host(tmp_path):
    hosts = []

    def start(*programs, **patience):
        hosts.append(Host(*programs, tmp_path=tmp_path, **patience))
        return hosts[-1]

    yield start
    for h in hosts:
        h.process.kill()
        h.process.wait()
        h.process.stdout.close()


def is_gone(pid):
    """Wait until no process has that number."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z" and os.getppid() != pid:
            return True  # dead; whoever inherited it has not asked yet
        time.sleep(0.01)
    return False


def up(host, name):
    pid = host.expect("Started", name=name)["pid"]
    host.expect("LineWritten", name=name, line="up")
    return pid


def test_a_killed_program_runs_again(host):
    h = host(program("a", STAYS))
    first = up(h, "a")
    h.be_ready()
    os.kill(first, signal.SIGKILL)
    assert h.expect("Died", name="a")["how"] == "was ended by SIGKILL"
    assert up(h, "a") != first


def test_pauses_double_up_to_a_limit(host):
    h = host(
        program("a", STAYS),
        program("b", "import time, sys; sys.exit(7)"),
        longest_pause_s=0.05,
        start_failures=10**6,
    )
    h.be_ready()
    pauses = [h.expect("Died", name="b")["again_in_s"] for _ in range(8)]
    assert pauses[-1] == 0.05
    assert all(b in (2 * a, 0.05) for a, b in pairwise(pauses))


@pytest.mark.parametrize(
    ("script", "number", "patience"),
    [(STAYS, signal.SIGKILL, {"settled_s": 0.0}), (POLITE, signal.SIGTERM, {})],
    ids=["lived long", "ended in order"],
)
def test_who_does_not_fail_again_and_again_starts_with_the_first_pause(
    host, script, number, patience
):
    h = host(program("a", script), **patience)
    pid = up(h, "a")
    h.be_ready()
    for _ in range(3):
        os.kill(pid, number)
        assert h.expect("Died", name="a")["again_in_s"] == 0.01
        pid = up(h, "a")


def test_a_wrong_setting_ends_the_service_with_its_line(host):
    h = host(
        program("a", STAYS),
        program("b", "import sys\nprint('baton: no such fabric', file=sys.stderr)\nsys.exit(2)"),
    )
    gave_up = h.expect("GaveUp")
    assert gave_up == {"name": "b", "why": "no such fabric"}
    code, told = h.end()
    assert code == 2
    assert "Started" not in told


def test_the_line_is_said_once(host):
    h = host(program("b", "print('one'); print('baton: no such fabric'); raise SystemExit(2)"))
    h.expect("Started")
    h.expect("LineWritten", line="one")
    assert "LineWritten" not in h.end()[1]


def test_a_death_is_told_in_the_programs_own_words(host):
    h = host(
        program("a", "print('baton: a rank was lost')\nraise SystemExit(1)"), start_failures=10**6
    )
    assert h.expect("Died")["how"] == "ended: a rank was lost"


def test_a_wrong_setting_of_a_restart_does_not_end_a_service_that_was_ready(host, tmp_path):
    flag = tmp_path / "flag"
    h = host(
        program("a", f"import os\nif os.path.exists({str(flag)!r}): raise SystemExit(2)\n{STAYS}")
    )
    pid = up(h, "a")
    h.be_ready()
    flag.touch()
    os.kill(pid, signal.SIGKILL)
    h.expect("Died", how="was ended by SIGKILL")
    h.expect("Died", how="ended with exit code 2")
    flag.unlink()
    up(h, "a")


def test_a_program_that_cannot_start_is_tried_a_few_times(host):
    h = host(program("a", STAYS), program("b", "raise SystemExit(9)"), start_failures=3)
    assert h.expect("GaveUp") == {"name": "b", "why": "ended with exit code 9"}
    assert h.end()[0] == 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_one_signal_ends_everything_in_order(host, signum):
    h = host(program("a", POLITE), program("b", POLITE))
    pids = {h.expect("Started")["pid"] for _ in "ab"}
    for _ in "ab":
        h.expect("LineWritten", line="up")
    h.be_ready()
    h.process.send_signal(signum)
    h.expect("Stopping")
    assert {h.expect("LineWritten", line="bye")["name"] for _ in "ab"} == {"a", "b"}
    assert h.end() == (0, [])
    assert all(is_gone(pid) for pid in pids)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_in_the_background_of_a_shell_an_interruption_is_heard_and_a_hang_up_is_not(host, signum):
    h = host(program("a", STAYS), ahead=("sh", "-c", 'trap \'\' INT HUP; exec "$0" "$@"'))
    up(h, "a")
    h.be_ready()
    h.process.send_signal(signum)
    if signum is signal.SIGHUP:
        h.process.send_signal(signal.SIGTERM)
    assert h.end() == (0, ["Stopping"])


def test_programs_end_in_their_order(host):
    h = host(
        program("last", POLITE, ends=1),
        program("first", POLITE, ends=0),
        program("with first", POLITE, ends=0),
    )
    for _ in range(3):
        h.expect("LineWritten", line="up")
    h.process.send_signal(signal.SIGTERM)
    assert [h.expect("LineWritten", line="bye")["name"] for _ in range(3)][-1] == "last"
    assert h.end() == (0, [])


def test_one_that_does_not_end_in_its_turn_keeps_no_other_alive(host):
    h = host(program("last", STAYS, ends=1), program("first", STUBBORN, ends=0), grace_s=0.05)
    pids = {h.expect("Started")["pid"] for _ in "ab"}
    for _ in "ab":
        h.expect("LineWritten", line="up")
    h.process.send_signal(signal.SIGTERM)
    assert h.end()[0] == 0
    assert all(is_gone(pid) for pid in pids)


def test_a_program_of_a_later_turn_has_no_more_than_its_own_time(host):
    """The time of open requests is the first program's: the last one is not waited for that long."""
    h = host(
        program("gateway", POLITE, ends=0),
        program("worker", STUBBORN, ends=1),
        grace_s=0.05,
        requests_s=10**6,
    )
    for _ in "ab":
        h.expect("LineWritten", line="up")
    h.process.send_signal(signal.SIGTERM)
    assert h.expect("Killed")["name"] == "worker"
    assert h.end()[0] == 0


def test_a_program_whose_turn_comes_after_one_that_was_killed_ends_in_peace(host):
    # the worker's own time must do for an interpreter's end on a busy machine
    h = host(program("gateway", STUBBORN, ends=0), program("worker", POLITE, ends=1), grace_s=3.0)
    for _ in "ab":
        h.expect("LineWritten", line="up")
    h.process.send_signal(signal.SIGTERM)
    assert h.expect("Killed")["name"] == "gateway"
    h.expect("LineWritten", name="worker", line="bye")
    assert h.end() == (0, [])


def test_a_signal_while_a_restart_is_due_starts_nothing(host):
    h = host(program("a", STAYS), first_pause_s=1000, longest_pause_s=1000)
    pid = up(h, "a")
    h.be_ready()
    os.kill(pid, signal.SIGKILL)
    h.expect("Died")
    h.process.send_signal(signal.SIGTERM)
    assert h.end() == (0, ["Stopping"])


def test_a_program_that_does_not_end_is_killed(host):
    h = host(program("a", STUBBORN), grace_s=0.05)
    pid = up(h, "a")
    h.process.send_signal(signal.SIGTERM)
    assert h.expect("Killed")["name"] == "a"
    assert h.end()[0] == 0
    assert is_gone(pid)


def test_a_program_that_does_not_end_may_say_where_it_hangs(host):
    says = (
        "import faulthandler, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "faulthandler.register(signal.SIGQUIT)\nprint('up', flush=True)\n"
        "def where_it_hangs():\n while True: signal.pause()\nwhere_it_hangs()"
    )
    h = host(program("a", says), grace_s=0.05, stacks_s=1.0)
    pid = up(h, "a")
    h.process.send_signal(signal.SIGTERM)
    h.expect("Killed")
    assert h.end()[0] == 0
    assert any(
        "where_it_hangs" in e.get("line", "") for name, e in h.heard if name == "LineWritten"
    )
    assert is_gone(pid)


def test_open_requests_have_their_time_before_anything_is_killed(host, tmp_path):
    """The first one ends when its requests do; the others are asked only then."""
    done = tmp_path / "done"
    drains = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, lambda *_: os.write(1, "
        "b'draining\\n'))\n"
        f"print('up', flush=True)\nwhile not os.path.exists({str(done)!r}): time.sleep(0.01)"
    )
    h = host(
        program("gateway", drains, ends=0),
        program("worker", POLITE, ends=1),
        grace_s=3.0,
        requests_s=10**6,
    )
    for _ in "ab":
        h.expect("LineWritten", line="up")
    h.process.send_signal(signal.SIGTERM)
    h.expect("LineWritten", name="gateway", line="draining")
    done.touch()
    h.expect("LineWritten", name="worker", line="bye")
    assert h.end() == (0, [])


def test_a_second_signal_ends_at_once(host):
    h = host(program("a", STUBBORN), requests_s=10**6)
    pid = up(h, "a")
    h.process.send_signal(signal.SIGINT)
    h.expect("Stopping")
    h.process.send_signal(signal.SIGINT)
    assert h.end()[0] == 128 + signal.SIGINT
    assert not Path(f"/proc/{pid}").exists()  # reaped before we ended, so its ports are free


def test_nothing_outlives_a_killed_supervisor(host):
    h = host(program("a", STUBBORN), program("b", STUBBORN))
    pids = {h.expect("Started")["pid"] for _ in "ab"}
    for _ in "ab":
        h.expect("LineWritten", line="up")
    h.process.kill()
    assert all(is_gone(pid) for pid in pids)


def test_the_terminals_signal_does_not_reach_the_programs(host):
    h = host(program("a", STAYS))
    pid = up(h, "a")
    assert os.getpgid(pid) == pid
