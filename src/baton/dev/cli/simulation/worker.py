"""The program of a simulating process: reads lists of seeds, and writes one line for each run.

    python -m baton.dev.cli.simulation.worker [--guests] [PLANTED]
    stdin:  a line is a JSON list of seeds         stdout: an empty line when ready, then Outcomes as JSON

A run that computes for too long, or does not end at all, hangs in the code under test: this
process writes where, and ends. Processor time is counted, as a busy machine may give a run very
little of it.
"""

import faulthandler
import gc
import signal
import sys

import msgspec

from baton.dev.cli.simulation.planted import parts_of
from baton.dev.sim.run import be_silent, run

GUESTS = "--guests"
PATIENCE_S = 120  # of processor time: thousands of times as much as a world takes
BLOCKED_S = 3600


def main() -> None:
    """Serve until stdin ends."""
    faulthandler.register(signal.SIGPROF, chain=True)  # which ends the process
    be_silent(for_good=True)
    gc.freeze()
    gc.disable()
    names = [argument for argument in sys.argv[1:] if argument != GUESTS]
    parts = parts_of(names[0] if names else None, guests=GUESTS in sys.argv)
    _say(b"")
    for line in sys.stdin.buffer:
        for seed in msgspec.json.decode(line, type=list[int]):
            faulthandler.dump_traceback_later(BLOCKED_S, exit=True)
            signal.setitimer(signal.ITIMER_PROF, PATIENCE_S)
            outcome = run(seed, parts=parts)
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.cancel_dump_traceback_later()
            # the world goes as a whole, and its memory is used again at once: 5 to 10 % faster than
            # now and then
            gc.collect(0)
            _say(msgspec.json.encode(msgspec.structs.replace(outcome, choices={}, labels={})))
        gc.collect()  # what a world has left to other generations


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
