"""A gateway takes as many open files as it may, in a process of its own: limits cannot be put
back."""

import resource
import subprocess
import sys

import pytest

LOOK = """
import resource
from baton.adapters.descriptors import raise_limit
print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "hard"), [(256, 512), (512, 512)])
def test_the_soft_limit_becomes_the_hard_one(soft: int, hard: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(hard)] * 3
