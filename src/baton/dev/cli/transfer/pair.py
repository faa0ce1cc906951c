"""Starts the two processes of `baton bench transfer`, passes messages between them, and ends them.

command ──starts──▶ source: makes and fills pools, says Sources ───────────┐
   ├─────starts──▶ reader: hears that, connects                      ◀─────┘
   └── each case: source ─Sealed─▶ reader ─Figures─▶ command
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from baton.dev.bench.transfer.figures import Figures, MeasureOrder, Sealed, Sources
from baton.dev.bench.transfer.layout import Case
from baton.dev.cli.transfer.talk import TransferOrder, hear, tell

END_S = 20.0  # a process that does not end by itself in this time is killed


def measure(order: TransferOrder, cases: Sequence[Case]) -> Iterator[Figures]:
    """Measure every case in turn with one pair of processes.

    Raises:
        ConfigError, BatonError: what one of them could not do
    """
    with _child("source", order) as source, _child("reader", order) as reader:
        assert source.stdin is not None
        assert source.stdout is not None
        assert reader.stdin is not None
        assert reader.stdout is not None
        tell(reader.stdin, hear(source.stdout, Sources))
        for case in cases:
            tell(source.stdin, case)
            tell(reader.stdin, MeasureOrder(case, hear(source.stdout, Sealed)))
            yield hear(reader.stdout, Figures)


@contextmanager
def _child(part: str, order: TransferOrder) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-P",
        "-m",
        f"baton.dev.cli.transfer.{part}",
        msgspec.json.encode(order).decode(),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
        process.communicate(timeout=END_S)
    finally:
        process.kill()
        process.communicate()
