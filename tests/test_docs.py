"""The documents: every link leads somewhere, and what they type is what the command takes."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

import latency_plot
from baton.cli.main import commands

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FILES = "https://github.com/baton-llm/baton/blob/main/"
RAW = "https://raw.githubusercontent.com/baton-llm/baton/main/"
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target, anchor in LINK.findall(page.read_text()):
        local = target.removeprefix(FILES).removeprefix(RAW)
        if "://" in local:
            continue
        file = (
            (page.parent if local == target else ROOT).joinpath(local).resolve() if target else page
        )
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def test_the_readme_is_read_elsewhere_too():
    """A package index shows it without the files around it."""
    targets = [target for target, _ in LINK.findall((ROOT / "README.md").read_text())]
    assert len(targets) > 10
    assert [target for target in targets if target and "://" not in target] == []


def test_the_readme_quotes_the_latency_that_was_measured():
    readme = (ROOT / "README.md").read_text()
    found = latency_plot.rows(latency_plot.TABLE.read_text())
    shown = {
        layout: [f"{row.p99:g}" for row in found if row.layout == layout]
        for layout in ("split", "unified")
    }
    *others, last = shown["split"]
    assert f"disaggregated {', '.join(others)} and {last} ms" in readme
    *others, last = shown["unified"]
    assert f"colocated {', '.join(others)} and {last} ms" in readme
    heaviest = {
        row.layout: round(row.p99) for row in found if (row.clients, row.prompt) == (8, "2,048")
    }
    assert f"**{heaviest['split']} ms instead of {heaviest['unified']} ms**" in readme


def flags_of(words: list[str]) -> set[str]:
    """The flags that a command takes, found by its words."""
    command = get_command(commands(""))
    for word in words:
        below = getattr(command, "commands", {})
        if word not in below:
            command = below.get(getattr(command, "unnamed", None), command)
            break
        command = below[word]
    return {
        flag
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help", "-h"}


def typed() -> list[tuple[str, str]]:
    """Every `baton ...` line in a block of code, by page."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            found += [
                (page.name, line)
                for line in lines
                if re.match(r"(\$ " r")?(\.venv/bin/)?baton [a-z]", line)
            ]
    return found


@pytest.mark.parametrize(("page", "line"), typed())
def test_flags_in_the_documents_exist(page, line):
    _, *words = shlex.split(line.removeprefix("$ "), comments=True)
    used = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert used - flags_of(words) == set()


def test_there_is_something_to_check():
    assert len(typed()) > 10
