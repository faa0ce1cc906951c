"""Runs hostile grammars in processes with little memory and time.

    python -m tests.grammar.ordeal [NAME ..]

Prints one JSON line for each: what became of it, the processor time of making and checking it, the
longest wait for one of 100 masks, and how much memory the process grew by.
"""

import gc
import json
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
from tests.grammar.hostile import HOSTILE
from tests.grammar.walk import END, grammar, vocabulary

from baton.core.ids import TokenId
from baton.core.matchers import GrammarError
from baton.grammar.check import check
from baton.grammar.matcher import LlguidanceMatcher

STEPS = 100
MOST_BYTES = 3 << 30  # of address space, so that nothing takes the machine down
MOST_SECONDS = 4  # of processor time; half a second is what is promised


def trial(name: str) -> dict[str, Any]:
    """What becomes of one grammar: as a gateway checks it, and as a rank follows it."""
    found: dict[str, Any] = {"name": name, "mask_s": 0.0}
    began = time.thread_time()
    try:
        said = grammar(HOSTILE[name]())
        check(said, vocabulary())
    except GrammarError as e:
        return found | {"end": "refused", "why": str(e), "check_s": time.thread_time() - began}
    found["check_s"] = time.thread_time() - began
    matcher, rng = LlguidanceMatcher(said, vocabulary()), random.Random(name)
    for step in range(STEPS):
        began = time.thread_time()
        try:
            allowed = np.flatnonzero(matcher.allowed()).tolist()
        except GrammarError as e:
            return found | {"end": "stopped", "why": str(e), "step": step}
        if step:  # the first one builds the grammar
            found["mask_s"] = max(found["mask_s"], time.thread_time() - began)
        # white space, which is nearly always allowed, only where nothing else is
        tokens = [t for t in allowed if t not in (9, 10, 13, 32, END)] or allowed
        if not tokens or tokens == [END]:
            return found | {"end": "complete", "step": step}
        began = time.thread_time()
        try:
            matcher.accept([TokenId(rng.choice(tokens))])
        except GrammarError as e:
            return found | {"end": "stopped", "why": str(e), "step": step}
        found["mask_s"] = max(found["mask_s"], time.thread_time() - began)
    return found | {"end": "followed", "step": STEPS}


def _in_a_thread(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """As gateways and ranks do it: a thread's stack is smaller than a process's."""
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    return found[0] if found else {"end": "raised"}


def _one_by_one(names: Sequence[str], writing: int) -> NoReturn:
    """The life of a child process."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in names:
        before = resource.getrusage(resource.RUSAGE_SELF)
        soft = int(before.ru_utime + before.ru_stime) + 1 + MOST_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
        found = {"name": name} | _in_a_thread(partial(trial, name))
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before.ru_maxrss
        os.write(writing, (json.dumps(found | {"grown_mib": grown >> 10}) + "\n").encode())
    os._exit(0)


def apart(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The trials of some grammars in a child process; in another one from where it dies."""
    while names:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            _one_by_one(names, writing)
        os.close(writing)
        done = 0
        with os.fdopen(reading) as pipe:
            for done, line in enumerate(pipe, start=1):  # noqa: B007
                yield json.loads(line)
        _, status = os.waitpid(child, 0)
        if status:
            yield {"name": names[done], "end": f"died {status}", "grown_mib": 0}
            done += 1
        names = names[done:]


def main(names: Sequence[str]) -> None:
    vocabulary().ending_with((END,))
    gc.freeze()
    for some in batched(names or tuple(HOSTILE), 25):
        for found in apart(some):
            print(json.dumps(found), flush=True)


def batched(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Some names after others."""
    return (names[i : i + size] for i in range(0, len(names), size))


if __name__ == "__main__":
    main(sys.argv[1:])
