"""Log lines, for people and for collectors."""

import json
import subprocess
import sys

import pytest

CODE = """
import structlog
from baton.cli.logs import configure
configure("info", {form!r})
log = structlog.get_logger()
log.debug("quiet")
log.info("epoch_failed", room="ab", epoch=2, why="a b")
prompt = "private"
try:
    1 / 0
except ZeroDivisionError:
    log.exception("broken")
"""


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_line_an_event_with_its_fields(form):
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(form=form)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, *rest = done.stderr.splitlines()
    assert done.stdout == ""
    assert "quiet" not in done.stderr
    if form == "json":
        line = json.loads(first)
        assert (line["event"], line["level"], line["room"], line["epoch"], line["why"]) == (
            "epoch_failed",
            "info",
            "ab",
            2,
            "a b",
        )
        assert line["time"].endswith("Z")
        (broken,) = rest
        assert "private" not in broken
        assert json.loads(broken)["exception"][0]["exc_type"] == "ZeroDivisionError"
    else:
        assert "level=info event=epoch_failed" in first
        assert 'room=ab epoch=2 why="a b"' in first
