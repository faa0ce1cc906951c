"""Grammars made to break whoever compiles them. Each is tried in a process with little memory and
time, and is refused, followed for 100 tokens, or stopped in the middle."""

import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from tests.grammar.hostile import HOSTILE, SLOW

ROOT = Path(__file__).parents[2]
GROWN_MIB = 300
# Half a second on an idle machine; processor time grows where others use the same cores.
PROCESSOR_S = 0.9


def ordeal(names: Collection[str]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.grammar.ordeal", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["name"] for row in found] == list(names)
    return found


def judge(rows: list[dict[str, Any]]) -> None:
    ends = {"refused", "stopped", "followed", "complete"}
    assert [row for row in rows if row["end"] not in ends] == [], "died, or raised"
    assert [row for row in rows if row["grown_mib"] >= GROWN_MIB] == []
    for row in rows:
        why = row.get("why", "x")
        assert 0 < len(why) < 400, row
        assert "panic" not in why, row
        assert "NoExtension" not in why, row


def test_hostile_grammars_are_refused_or_followed():
    judge(ordeal([name for name in HOSTILE if name not in SLOW]))


@pytest.mark.slow
def test_large_hostile_grammars_are_refused_or_followed():
    rows = ordeal(SLOW)
    judge(rows)
    assert [row for row in rows if row["check_s"] > PROCESSOR_S or row["mask_s"] > 0.05] == []
