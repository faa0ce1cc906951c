"""A process of vLLM ends with the one that has started it, and no other process does."""

import multiprocessing
import multiprocessing.connection
import os
import signal
from multiprocessing.connection import Connection

import pytest

from baton.vllm.parent import end_with_parent

SPAWN = multiprocessing.get_context("spawn")


def core(pipe: Connection) -> None:
    end_with_parent()
    pipe.send(os.getpid())
    signal.pause()


def server(pipe: Connection) -> None:
    SPAWN.Process(target=core, args=(pipe,)).start()
    signal.pause()


@pytest.mark.timeout(60)
def test_a_core_ends_with_its_killed_server() -> None:
    here, there = SPAWN.Pipe()
    parent = SPAWN.Process(target=server, args=(there,))
    parent.start()
    watched = os.pidfd_open(here.recv())
    parent.kill()
    parent.join()
    ended = multiprocessing.connection.wait([watched], timeout=20)
    os.close(watched)
    assert ended


def test_a_program_that_uses_vllm_itself_goes_on() -> None:
    end_with_parent()  # pytest's process was not started by multiprocessing
