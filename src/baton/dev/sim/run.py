"""One run: takes a seed or a script, and returns an outcome."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum

import msgspec
import structlog

from baton.dev.sim.describe import described
from baton.dev.sim.parts import SHIPPED, Parts
from baton.dev.sim.story import Story, diagram, room_of
from baton.dev.sim.tape import Script, Tape
from baton.dev.sim.world import Violation, World


class RunKind(Enum):
    """The verdict on a run."""

    FINE = "fine"
    SAFETY = "safety"
    LIVENESS = "liveness"
    CRASH = "crash"  # the code under test raised what it must not


GRAY = ("hang_noticed", "no_false_alarm", "poison_bounded")
LIVENESS = frozenset(
    {
        *("liveness", "healed_succeeds", "nothing_left", "quiet_at_rest", "no_spurious_failure"),
        *("index_exact", *GRAY),
    }
)
CRASHED = "no_bug"
# reported by the process that started the run: its process died, or was silent for too long
PROCESS_ENDED = "process_lives"


class RunOutcome(msgspec.Struct, frozen=True):
    """The outcome of one run. `choices` are those other than 0: as a script they repeat the run."""

    seed: int
    invariant: str  # the violated one; empty if none was
    detail: str
    events: int
    trace: int  # hash of everything that happened
    marks: Mapping[str, int]
    core_marks: Mapping[str, int]
    requests: int
    repeats: int  # requests whose prompt was asked before
    wide: bool  # more than one tensor-parallel rank on both sides
    clean: bool  # no fault was drawn
    choices: Mapping[int, int]
    story: tuple[str, ...]
    labels: Mapping[int, str] = {}  # of the choices
    # the world in words; this and the following only with a story
    settings: tuple[str, ...] = ()
    diagram: str = ""  # mermaid: the room that the violation is about

    @property
    def kind(self) -> RunKind:
        """The verdict on the run."""
        if not self.invariant:
            return RunKind.FINE
        if self.invariant in (CRASHED, PROCESS_ENDED):
            return RunKind.CRASH
        return RunKind.LIVENESS if self.invariant in LIVENESS else RunKind.SAFETY


def be_silent(*, for_good: bool = False) -> None:
    """Silence the log of the code under test, which a simulation of thousands of worlds does not
    need.

    for_good: whether it stays silent for the rest of this process
    """
    silent = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=silent, cache_logger_on_first_use=for_good)


@contextmanager
def _replaced(parts: Parts) -> Iterator[None]:
    before = [getattr(r.owner, r.name) for r in parts.replaced]
    try:
        for r in parts.replaced:
            setattr(r.owner, r.name, r.value)
        yield
    finally:
        for r, value in zip(parts.replaced, before, strict=True):
            setattr(r.owner, r.name, value)


def run(
    seed: int = 0,
    *,
    script: Script | None = None,
    tape: Tape | None = None,
    parts: Parts = SHIPPED,
    story: bool = False,
    calm: bool = False,
) -> RunOutcome:
    """Run one world. A `script` or a `tape` replaces the choices that the seed would draw. `calm`
    leaves out the faults."""
    tape = Tape(seed=seed, script=script) if tape is None else tape
    invariant, detail = "", ""
    with _replaced(parts):
        world = World(tape, parts, calm=calm)
        if story:
            world.tell_frames(Story())
        try:
            world.run()
        except Violation as violation:
            invariant, detail = violation.invariant, violation.detail
        except Exception as error:  # noqa: BLE001 - top of a run: what the code under test raises is the outcome
            invariant, detail = CRASHED, f"{type(error).__name__}: {error}"
    if invariant:
        world.tell(f"VIOLATION {invariant}: {detail}")
    clients = world.people.clients
    tps = [
        max((w.tp for w in world.draw.workers if w.role == role), default=1)
        for role in ("prefill", "decode")
    ]
    return RunOutcome(
        seed=seed,
        invariant=invariant,
        detail=detail,
        events=world.heap.events,
        trace=world.heap.trace,
        marks=dict(world.marks),
        core_marks={mark.name: n for mark, n in world.core_marks.items() if n},
        requests=len(clients),
        repeats=sum(c.repeats for c in clients),
        wide=min(tps) > 1,
        clean=world.draw.clean,
        choices=tape.taken,
        story=tuple(map(str, world.story.lines)) if world.story is not None else (),
        labels=tape.labels,
        settings=described(world.draw) if story else (),
        diagram=_diagram(world, invariant, detail),
    )


def _diagram(world: World, invariant: str, detail: str) -> str:
    if world.story is None:
        return ""
    room = room_of(detail, world.story.lines, world.tickets)
    return (
        diagram(room, world.story.lines, f"{invariant}: {detail}" if invariant else "")
        if room is not None
        else ""
    )
