"""A split and a unified service with equal resources, one at a time.

Each has all cores of the machine (split divides them between its two workers) and the same total
memory for state.
"""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from baton.core.errors import ConfigError
from baton.dev.bench.client import Target
from baton.dev.bench.service import serving

OURS = (
    "--role",
    "--kv-memory",
    "--kv-pages",
    "--threads",
    "--prefill",
    "--decode",
    "--port",
    "--host",
    "--api-key",
)


def layouts(flags: Sequence[str], *, pages: int) -> dict[str, list[str]]:
    """Return the flags of `baton serve` for each layout.

    pages: the pool of each worker of the pair

    Raises:
        ConfigError: a flag that would make the two unequal
    """
    for flag in flags:
        if flag.partition("=")[0] in OURS:
            raise ConfigError(
                f"--serve-args {shlex.join(flags)}: {flag} is set by the "
                "comparison, so that both get the same"
            )
    return {
        "split": [*flags, "--role", "split", "--kv-pages", str(pages)],
        "unified": [*flags, "--role", "unified", "--kv-pages", str(2 * pages)],
    }


@contextmanager
def started(target: Target, flags: Sequence[str]) -> Iterator[Target]:
    """Run a service while it is measured. Yields the target with its address."""
    with serving(*flags) as service:
        yield msgspec.structs.replace(
            target, base_url=f"http://127.0.0.1:{service.port}", model="bench", api_key=None
        )
