"""llguidance's messages, for people who asked for an answer and not for a parser."""

import re
from collections.abc import Sequence

CHARS = 300  # of a message, which may repeat the grammar
ONE_OF = (
    "the options of oneOf must exclude each other in a way that can be seen: by their types, or by "
    "a required property that is another constant text in each; anyOf has no such condition"
)
WORK = "it makes too much work"
# What llguidance says, and what is said instead; \1 is what was found.
SENTENCES: Sequence[tuple[re.Pattern[str], str]] = tuple(
    (re.compile(pattern, re.DOTALL), said)
    for pattern, said in (
        (r".*Unimplemented keys: \[([^]]*)\].*", r"these keywords are not implemented: \1"),
        (r".*oneOf constraints are not supported.*", ONE_OF),
        (r".*Unknown format: (.*)", r"the format \1 is not implemented"),
        (r".*NoExtensionBias.*", "it allows no answer: what must come never ends"),
        (r".*Current row has (\d+) items; max is (\d+).*", rf"{WORK}: \1 ways on, at most \2"),
        (r".*Too many items \(limit (\d+).*", rf"{WORK}: more than \1 items of a parser"),
        (r".*(?:fuel exhausted|grammar\) too big|grammar size|schema too large).*", WORK),
        (r".*Schema intersection stack level exceeded.*", f"{WORK}: schemas inside of schemas"),
        (r".*Unable to determine if regex is empty.*", f"{WORK}: a pattern with its bounds"),
        (r".*Regex is empty.*", "a pattern, format and length contradict each other"),
        (
            r".*Resource '([^']*)' is not present in a registry.*",
            r"\1 is another document; only references within the schema are followed",
        ),
        (
            r"circular references with sibling keys are not supported: (?:json-schema:///)?(.*)",
            r"the reference \1 leads back to itself and has keywords beside it",
        ),
        (r".*regex parse error:.* error: (.*?)(?: 1 \| .*)?", r"a regular expression: \1"),
        (
            r".*lookarounds not supported yet.*",
            "a regular expression: only ^ at its beginning and $ at its end are served; no \\\\b",
        ),
        (
            r".*Failed to generate regex for (?:float|integer) range.*",
            "the bounds of a number are too far apart or too large",
        ),
        (r"panic:.*", "llguidance cannot read it"),
    )
)


def readable(why: str) -> str:
    """Return what llguidance says about a grammar in one short line."""
    line = " ".join(why.replace("<non-verbose/>", "").split())
    for pattern, said in SENTENCES:
        if found := pattern.fullmatch(line):
            return found.expand(said)[:CHARS]
    return line[:CHARS]
